//! The engine explains itself: reports of what it holds and does at this moment, as plain records.
//!
//! # Contents
//! - [`buffer_pool`]: the pool's size and state in one record;
//! - [`by_index`]: which index has how many pages in memory, hot, cold and dirty.
//!
//! # Locking
//! A report stops nothing. It is made of racy reads and of short looks at one part after another, so its records need not
//! be of the very same instant. No lock is held while a caller gets a record: everything is copied first.

pub mod buffer_pool;
pub mod by_index;

pub use buffer_pool::BufferPoolReport;
pub use by_index::{CachedIndex, Owner};
