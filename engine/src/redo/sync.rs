//! What [`super::buffer`] is made of that is concurrent, and nothing else. The model checker
//! replaces it by its own (`tests/log_buffer_model/`).

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

pub(super) use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use parking_lot::{Mutex, MutexGuard};

pub(super) use crate::padded::Padded;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HOME: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
}

/// A number of the calling thread; those of threads that began one after the other are neighbours.
#[inline]
pub(super) fn home() -> usize {
    HOME.get()
}
