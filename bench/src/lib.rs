//! Speed, memory and disk space of the embedded engine beside embedded peers.
//!
//! # Contents
//! - [`store`]: what a store must do to be measured, and the stores: Tidepool, redb, fjall, SQLite.
//! - [`row`]: keys and values that can be checked without remembering them.
//! - [`workload`]: what is done to a store, and for how long.
//! - [`figures`]: what is measured: latencies, memory of the process, bytes on disk.
//! - [`task`]: one workload on one store: load, measure, close, open again, check.
//! - [`process`]: a task in a separate process, in a memory cgroup if it says so.
//! - [`turns`]: all of them, by turns, with a progress bar.
//! - [`table`]: the medians, as markdown.
//! - [`bytes`]: sizes as people write them. [`error`]: what can go wrong.
//!
//! # Why a process for each
//! Memory is measured for the whole process. An allocator keeps what was freed and a cache what was
//! read, so a second store in the same process would be charged for the first.
//!
//! # Why by turns
//! Machines get faster and slower within minutes, more so virtual ones. A B C D, A B C D spreads
//! that over all stores; A A, B B would give it to one.

pub mod bytes;
pub mod error;
pub mod figures;
pub mod process;
pub mod row;
pub mod store;
pub mod table;
pub mod task;
pub mod turns;
pub mod workload;

pub use error::{Error, Result};
