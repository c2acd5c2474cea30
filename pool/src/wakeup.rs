//! What a background thread sleeps on between two steps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Wakes one thread, or ends it. Waking it twice before it looks is waking it once; one that is
/// stopped stays so.
#[derive(Debug, Default)]
pub struct Wakeup {
    woken: AtomicBool,
    stopped: AtomicBool,
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Wakeup {
    /// Ends the sleep of the thread, or the next if it does not sleep now. Cheap if no thread has
    /// slept since the last.
    pub fn wake(&self) {
        // Always a swap: the thread that clears the flag sees what was done before this call.
        if !self.woken.swap(true, Ordering::AcqRel) {
            let _guard = self.mutex.lock();
            self.changed.notify_all();
        }
    }

    /// Asks the thread to end.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let _guard = self.mutex.lock();
        self.changed.notify_all();
    }

    /// Whether the thread was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Sleeps for `time`, or until woken or stopped. Whether to go on.
    pub fn sleep(&self, time: Duration) -> bool {
        self.sleep_unless(time, || self.woken.load(Ordering::Acquire));
        self.woken.swap(false, Ordering::AcqRel);
        !self.is_stopped()
    }

    /// Sleeps for `time`, or until stopped; who wakes it, does so for the next sleep. Whether to go
    /// on.
    pub fn rest(&self, time: Duration) -> bool {
        self.sleep_unless(time, || false);
        !self.is_stopped()
    }

    fn sleep_unless(&self, time: Duration, is_woken: impl Fn() -> bool) {
        // None: beyond what a clock can tell, as for who is never to wake by himself.
        let until = Instant::now().checked_add(time);
        let mut guard = self.mutex.lock();
        while !self.is_stopped() && !is_woken() {
            match until {
                None => self.changed.wait(&mut guard),
                Some(until) if self.changed.wait_until(&mut guard, until).timed_out() => return,
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Longer than any test may take.
    const FOR_EVER: Duration = Duration::from_secs(3600);

    #[test]
    fn a_wake_up_is_kept_and_counts_once() {
        let signal = Wakeup::default();
        signal.wake();
        signal.wake();
        assert!(signal.rest(Duration::ZERO));
        assert!(signal.sleep(FOR_EVER));
        assert!(!signal.woken.load(Ordering::Acquire));
        signal.wake();
        assert!(signal.sleep(Duration::MAX));
        assert!(signal.sleep(Duration::ZERO));
    }

    #[test]
    fn a_sleeper_is_woken_and_stopped() {
        let signal = Arc::new(Wakeup::default());
        let sleeps = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let thread = {
            let (signal, sleeps) = (signal.clone(), sleeps.clone());
            std::thread::spawn(move || {
                while signal.sleep(FOR_EVER) {
                    sleeps.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        for wanted in 1..50 {
            signal.wake();
            while sleeps.load(Ordering::Relaxed) < wanted {
                std::thread::yield_now();
            }
        }
        signal.stop();
        thread.join().unwrap();
        assert!(!signal.sleep(FOR_EVER), "stopped once, stopped for ever");
    }
}
