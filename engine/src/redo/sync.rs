//! What [`super::buffer`] is made of that is concurrent, and nothing else. The model checker
//! replaces it by its own (`tests/log_buffer_model/`).

use std::cell::Cell;
use std::sync::atomic::AtomicUsize;

pub(super) use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use parking_lot::{Mutex, MutexGuard};

pub(super) use crate::padded::Padded;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// `usize::MAX` as long as the thread has no number: so there is nothing to initialise.
    static HOME: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A number of the calling thread, which chooses where it looks first; of threads that began one
/// after the other they are neighbours, until [`set_home`].
#[inline]
pub(super) fn home() -> usize {
    match HOME.get() {
        usize::MAX => take_home(),
        home => home,
    }
}

#[cold]
fn take_home() -> usize {
    let home = THREADS.fetch_add(1, Ordering::Relaxed);
    set_home(home);
    home
}

/// Has [`home`] be this number from now on.
pub(super) fn set_home(home: usize) {
    HOME.set(home);
}
