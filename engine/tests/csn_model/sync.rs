//! The atomics that `directory.rs` is compiled against here: loom's.

pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
