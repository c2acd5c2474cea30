//! What `buffer.rs` is compiled against here: loom's atomics and mutexes.

use std::cell::Cell;
use std::ops::Deref;

pub(super) use loom::sync::MutexGuard;
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};

/// Loom's mutex under the interface of the real one.
#[derive(Default)]
pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

pub(super) struct Padded<T>(pub(super) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

loom::thread_local! {
    static HOME: Cell<usize> = Cell::new(0);
}

pub(super) fn home() -> usize {
    HOME.with(Cell::get)
}

pub(super) fn set_home(home: usize) {
    HOME.with(|cell| cell.set(home));
}
