//! Pages as files hold them: identities, the page header, and the disk.
//!
//! # Reading path
//! [`page`] says what a page is and how its bytes are checked. [`storage`] is the contract with the
//! disk: directories, files, batches of reads and writes; on Linux with direct I/O and io_uring,
//! and simulated with crashes and faults. [`packed`] are the files of spaces: their pages are
//! compressed, packed, and never overwritten.
//!
//! This crate knows nothing of frames, trees or rows.

pub mod encryption;
mod lend;
mod log_throttle;
mod optional_observer;
pub mod packed;
pub mod page;
pub mod storage;

pub use lend::lend;
pub use log_throttle::LogThrottle;
pub use optional_observer::OptionalObserver;
