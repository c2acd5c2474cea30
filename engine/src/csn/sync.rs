//! The atomics of [`super::directory`], which the model checker replaces by its own
//! (`tests/csn_model/`).

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
