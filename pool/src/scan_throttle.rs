//! The pace of scans: what queries wait for comes first.
//!
//! A dump that reads ahead can fill a disk's queue, and a query that misses then stands behind it
//! each time. While all that queries want is resident that does no harm, so scans go as fast as the
//! disk. Once queries wait for reads, a scan rests after each of its reads, for up to [`REST`]
//! times as long as that took, in proportion to the share of the time that queries wait. So a query
//! that does nothing but wait has most of the disk, and one that misses now and then hardly slows
//! the scan.
//!
//! What the cleaner writes though no thread waits for it (a shrink without urgency, too large a
//! share of dirty pages) goes at the same pace, and half of the time at most, since commits want
//! the disk too.
//!
//! Locking: the mutex is innermost; scans and the cleaner take it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How many times as long as a scan has worked it rests, if queries wait all the time.
const REST: f64 = 4.0;
/// The longest rest at once.
const REST_MAX: Duration = Duration::from_millis(20);
/// The same, of the cleaner, whose writes are longer than a scan's reads.
const WRITER_REST_MAX: Duration = Duration::from_millis(500);
/// The share of the time that queries wait is measured over this long at least.
const WINDOW: Duration = Duration::from_millis(10);
/// From this share on, a scan reads little at once.
const NOTABLE: f64 = 0.05;

pub(crate) struct ScanThrottle {
    /// How long queries have waited for reads in all, microseconds.
    waited_us: AtomicU64,
    window: Mutex<Window>,
}

struct Window {
    began: Instant,
    waited_us: u64,
    /// The share of the time in which queries waited, in the window before this one.
    share: f64,
    /// How long the last read of a scan by itself took.
    last_read: Duration,
}

impl ScanThrottle {
    pub(crate) fn new() -> ScanThrottle {
        let window =
            Window { began: Instant::now(), waited_us: 0, share: 0.0, last_read: Duration::ZERO };
        ScanThrottle { waited_us: AtomicU64::new(0), window: Mutex::new(window) }
    }

    /// A query has waited so long for a page to be read.
    pub(crate) fn query_waited(&self, time: Duration) {
        self.waited_us.fetch_add(time.as_micros() as u64, Relaxed);
    }

    /// The share of the time, up to `now`, in which queries wait: 0 to 1.
    fn share(&self, window: &mut Window, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(window.began);
        if elapsed >= WINDOW {
            let waited_us = self.waited_us.load(Relaxed);
            let waited = Duration::from_micros(waited_us - window.waited_us);
            window.share = (waited.as_secs_f64() / elapsed.as_secs_f64()).min(1.0);
            (window.began, window.waited_us) = (now, waited_us);
        }
        window.share
    }

    /// Whether a scan had better read little at once.
    pub(crate) fn is_contended(&self, now: Instant) -> bool {
        self.share(&mut self.window.lock(), now) >= NOTABLE
    }

    /// How long a scan is to rest that has worked for `work` until `now`.
    pub(crate) fn rest_after(&self, work: Duration, now: Instant) -> Duration {
        let share = self.share(&mut self.window.lock(), now);
        work.mul_f64(REST * share).min(REST_MAX)
    }

    /// How long the cleaner rests that has written for `work` until `now` what no thread waits
    /// for.
    pub(crate) fn rest_after_writing(&self, work: Duration, now: Instant) -> Duration {
        let share = self.share(&mut self.window.lock(), now);
        work.mul_f64((REST * share).max(1.0)).min(WRITER_REST_MAX)
    }

    /// How long a scan is to rest before it reads a page by itself. Before, not after: then it
    /// would have the page latched.
    pub(crate) fn rest_before_read(&self, now: Instant) -> Duration {
        let mut window = self.window.lock();
        let share = self.share(&mut window, now);
        window.last_read.mul_f64(REST * share).min(REST_MAX)
    }

    /// That read took so long.
    pub(crate) fn scan_read(&self, took: Duration) {
        self.window.lock().last_read = took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_scan_rests_in_proportion_to_what_queries_wait() {
        let pace = ScanThrottle::new();
        let began = pace.window.lock().began;
        assert_eq!(pace.rest_after(MS, began + WINDOW), Duration::ZERO);
        assert!(!pace.is_contended(began + WINDOW));
        // A quarter of the time, then all of it and more: sixteen queries at once.
        pace.query_waited(WINDOW / 4);
        assert_eq!(pace.rest_after(MS, began + 2 * WINDOW), MS);
        assert!(pace.is_contended(began + 2 * WINDOW));
        pace.query_waited(16 * WINDOW);
        assert_eq!(pace.rest_after(MS, began + 3 * WINDOW), 4 * MS);
        assert_eq!(pace.rest_after(100 * MS, began + 3 * WINDOW), REST_MAX);
        // Known until the window ends, and forgotten then.
        assert_eq!(pace.rest_after(MS, began + 4 * WINDOW - MS), 4 * MS);
        assert_eq!(pace.rest_after(MS, began + 4 * WINDOW), Duration::ZERO);
    }

    #[test]
    fn the_cleaner_rests_half_of_the_time_at_least() {
        let pace = ScanThrottle::new();
        let began = pace.window.lock().began;
        assert_eq!(pace.rest_after_writing(10 * MS, began + WINDOW), 10 * MS);
        pace.query_waited(WINDOW / 2);
        assert_eq!(pace.rest_after_writing(10 * MS, began + 2 * WINDOW), 20 * MS);
        pace.query_waited(8 * WINDOW);
        assert_eq!(pace.rest_after_writing(10 * MS, began + 3 * WINDOW), 40 * MS);
        assert_eq!(pace.rest_after_writing(1000 * MS, began + 3 * WINDOW), WRITER_REST_MAX);
    }

    #[test]
    fn a_read_without_read_ahead_rests_as_long_as_the_last_one_took_times_the_share() {
        let pace = ScanThrottle::new();
        let began = pace.window.lock().began;
        pace.query_waited(WINDOW / 2);
        assert_eq!(pace.rest_before_read(began + WINDOW), Duration::ZERO);
        pace.scan_read(MS);
        assert_eq!(pace.rest_before_read(began + WINDOW), 2 * MS);
    }
}
