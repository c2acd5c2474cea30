//! A mutex that counts how often somebody had to wait for it.
//!
//! Whoever holds it for long learns from the count, before and after, whether that cost anybody anything.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Watched<T> {
    mutex: Mutex<T>,
    waits: AtomicU64,
}

impl<T> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Watched { mutex: Mutex::new(value), waits: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex.try_lock().unwrap_or_else(|| self.lock_slowly())
    }

    #[cold]
    fn lock_slowly(&self) -> MutexGuard<'_, T> {
        // Before it waits: who holds the mutex looks when letting go.
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.mutex.lock()
    }

    /// How often a thread found the mutex taken since it was made.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn only_who_finds_it_taken_is_counted() {
        let watched = Watched::new(0);
        *watched.lock() += 1;
        assert_eq!(watched.waits(), 0);
        thread::scope(|scope| {
            let held = watched.lock();
            scope.spawn(|| *watched.lock() += 1);
            while watched.waits() == 0 {
                thread::yield_now();
            }
            drop(held);
        });
        assert_eq!((*watched.lock(), watched.waits()), (2, 1));
    }
}
