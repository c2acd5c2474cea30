//! What threads wait for each other: a mutex that counts how often that was, and the longest wait.
//!
//! A thread that holds the mutex for long compares the count before and after: did that cost
//! another one anything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

/// See the head of this module.
#[derive(Debug, Default)]
pub(crate) struct CountingMutex<T> {
    mutex: Mutex<T>,
    waits: AtomicU64,
}

impl<T> CountingMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        CountingMutex { mutex: Mutex::new(value), waits: AtomicU64::new(0) }
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

/// The longest that any thread has waited for something.
#[derive(Debug, Default)]
pub(crate) struct LongestWait {
    us: AtomicU64,
}

impl LongestWait {
    /// A thread has waited, since `began` at the earliest.
    pub(crate) fn note_since(&self, began: Instant) {
        let us = began.elapsed().as_micros() as u64;
        if us > self.longest_us() {
            self.us.fetch_max(us, Ordering::Relaxed);
        }
    }

    /// In microseconds; 0: none had to wait.
    pub(crate) fn longest_us(&self) -> u64 {
        self.us.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn only_who_finds_it_taken_is_counted() {
        let counted = CountingMutex::new(0);
        *counted.lock() += 1;
        assert_eq!(counted.waits(), 0);
        thread::scope(|scope| {
            let held = counted.lock();
            scope.spawn(|| *counted.lock() += 1);
            while counted.waits() == 0 {
                thread::yield_now();
            }
            drop(held);
        });
        assert_eq!((*counted.lock(), counted.waits()), (2, 1));
    }
}
