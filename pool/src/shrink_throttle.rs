//! Throttles a shrink in the background: queries keep disk, free frames and CPU.
//!
//! A pool can give half of its memory back within a fraction of a second, and queries that run
//! beside it get slower. If no other program needs the memory now
//! ([`ShrinkUrgency::Background`]), the shrink may take some seconds instead:
//! - *Free frames go to misses first.* The shrink evicts only while more than half of the evictor's
//!   reserve is free. Otherwise misses would find only dirty pages at the cold end, and wait for
//!   writes.
//! - *Few extents are marked at a time*, [`marked_at_most`]. A frame that is freed in a marked
//!   extent is lost to misses; with half of the extents marked, two pages must be evicted for each
//!   that is read, and twice as many written. The price is that some pages move more than once.
//! - *Pages leave slowly while queries wait for the disk*: one for [`READS_PER_EVICTION`] that were
//!   read. Each page that leaves is one more that is read again or must be written now, and half of
//!   a pool at once takes a fifth of the throughput from a disk that is busy.
//! - *Dirty pages* are written by the cleaner alone, at the pace of scans
//!   ([`crate::scan_throttle`]). The smaller pool may have too large a share of them; the cleaner
//!   mends that at the same pace, whatever the urgency.
//! - *The resizing thread rests* after each slice, [`REST`] times as long as it worked, while
//!   queries ask for pages.
//!
//! The throttle ends when the shrink makes no progress: queries that miss all the time use up every
//! free frame, and a slow disk may need more than half of its time. If nothing was given back for
//! [`PATIENCE`], the shrink goes on as an urgent one. Without background threads there is no
//! throttle, since no thread would go on.
//!
//! Locking: the mutexes are innermost, and never held together.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How soon a shrink gives memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShrinkUrgency {
    /// At once: other programs need the memory.
    Immediate,
    /// Slowly enough to leave disk, free frames and CPU to queries.
    Background,
}

/// How long a throttled shrink may give nothing back.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pages that are read for each that the shrink evicts, while queries wait for reads.
const READS_PER_EVICTION: f64 = 8.0;
/// But it goes so fast that it is over within this time, whatever is read.
const LONGEST: Duration = Duration::from_secs(120);
/// And so fast that something is given back before patience ends: pages a second.
const EVICTIONS_MIN: f64 = 256.0;
/// Evictions that may be saved up.
const ALLOWANCE_MAX: f64 = 256.0;

/// How many of the pool's extents are marked at a time.
pub(crate) fn marked_at_most(extents: usize) -> usize {
    (extents / 64).max(8)
}

/// How many times as long as it has worked the resizing thread rests.
const REST: u32 = 4;
/// Fewer requests for pages than this in a slice and its rest are no load.
const LOAD_MIN: u64 = 4;

/// Whether the shrink is throttled, and by how much.
#[derive(Default)]
pub(crate) struct ShrinkThrottle {
    on: AtomicBool,
    /// The fewest frames that were still to be given back, and since when they are that few.
    least_debt: Mutex<Option<(u32, Instant)>>,
    cleaner_rests_until: Mutex<Option<Instant>>,
    allowance: Mutex<Option<Allowance>>,
}

/// Evictions that queries which wait for the disk can bear.
#[derive(Clone, Copy)]
struct Allowance {
    pages: f64,
    /// Evictions a second that are allowed whatever is read.
    rate: f64,
    /// Pages read from disk, and when, at the last call.
    reads: u64,
    at: Instant,
}

impl ShrinkThrottle {
    /// Whether the last resize was asked for in the background, and makes progress.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Returns what it was before.
    pub(crate) fn set(&self, on: bool) -> bool {
        *self.least_debt.lock() = None;
        *self.allowance.lock() = None;
        self.on.swap(on, Relaxed)
    }

    /// Ends the throttle, and returns true, if the `debt`, the frames that must still be given
    /// back, has not become less for [`PATIENCE`].
    pub(crate) fn ends_at(&self, debt: u32) -> bool {
        if !self.is_on() || debt == 0 {
            return false;
        }
        let mut least = self.least_debt.lock();
        match *least {
            Some((least, since)) if debt >= least => {
                since.elapsed() > PATIENCE && self.on.swap(false, Relaxed)
            }
            _ => {
                *least = Some((debt, Instant::now()));
                false
            }
        }
    }

    /// How many pages may be evicted at `now` while queries wait for the disk. `reads` have been
    /// read since the pool was made; `debt` frames must still be given back.
    pub(crate) fn allowance(&self, reads: u64, debt: u32, now: Instant) -> usize {
        let mut allowance = self.allowance.lock();
        let it = allowance.get_or_insert_with(|| Allowance {
            pages: 0.0,
            rate: (f64::from(debt) / LONGEST.as_secs_f64()).max(EVICTIONS_MIN),
            reads,
            at: now,
        });
        let elapsed = now.saturating_duration_since(it.at).as_secs_f64();
        let read = reads.saturating_sub(it.reads) as f64;
        it.pages =
            (it.pages + (read / READS_PER_EVICTION).max(it.rate * elapsed)).min(ALLOWANCE_MAX);
        (it.reads, it.at) = (reads, now);
        it.pages as usize
    }

    /// Counts evicted pages against the allowance.
    pub(crate) fn evicted(&self, pages: usize) {
        if let Some(allowance) = &mut *self.allowance.lock() {
            allowance.pages = (allowance.pages - pages as f64).max(0.0);
        }
    }

    /// Whether the cleaner rests from pages that no thread waits for.
    pub(crate) fn cleaner_rests(&self) -> bool {
        self.rest_of_cleaner().is_some()
    }

    /// How long it rests still.
    pub(crate) fn rest_of_cleaner(&self) -> Option<Duration> {
        let until = (*self.cleaner_rests_until.lock())?;
        until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())
    }

    pub(crate) fn cleaner_rests_until(&self, until: Instant) {
        *self.cleaner_rests_until.lock() = Some(until);
    }

    /// How long the resizing thread rests after a slice that took `work`, when queries asked
    /// for as many pages as `requests` says since it last began to rest. `requests` is called
    /// only while the throttle is on.
    pub(crate) fn rest_after(&self, work: Duration, requests: impl FnOnce() -> u64) -> Duration {
        match self.is_on() && requests() >= LOAD_MIN {
            true => work * REST,
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_background_shrink_rests_while_there_are_queries() {
        let throttle = ShrinkThrottle::default();
        let immediate = throttle.rest_after(MS, || unreachable!("it takes time to count them"));
        assert_eq!(immediate, Duration::ZERO);
        assert!(!throttle.set(true));
        assert_eq!(throttle.rest_after(MS, || 1000), 4 * MS);
        assert_eq!(throttle.rest_after(MS, || LOAD_MIN - 1), Duration::ZERO);
        assert_eq!((marked_at_most(1), marked_at_most(32_768)), (8, 512));
    }

    #[test]
    fn it_ends_when_nothing_comes_of_it() {
        let throttle = ShrinkThrottle::default();
        throttle.set(true);
        let since_long_ago = || {
            let (least, _) = throttle.least_debt.lock().unwrap();
            *throttle.least_debt.lock() = Some((least, Instant::now() - 2 * PATIENCE));
        };
        assert!(!throttle.ends_at(20));
        assert!(!throttle.ends_at(20));
        since_long_ago();
        assert!(!throttle.ends_at(19));
        since_long_ago();
        assert!(!throttle.ends_at(0));
        assert!(throttle.ends_at(19));
        assert!(!throttle.is_on() && !throttle.ends_at(19));
    }

    #[test]
    fn pages_leave_at_the_pace_of_reads_or_within_two_minutes() {
        let throttle = ShrinkThrottle::default();
        let began = Instant::now();
        let second = |n: u32| began + n * Duration::from_secs(1);
        assert_eq!(throttle.allowance(1000, 100, began), 0);
        assert_eq!(throttle.allowance(1000 + 8 * 100, 100, began + 10 * MS), 100);
        throttle.evicted(90);
        assert_eq!(throttle.allowance(1800, 100, began + 10 * MS), 10);
        throttle.evicted(64);
        assert_eq!(throttle.allowance(1800, 100, began + 10 * MS), 0);
        // Slowly, though nothing is read; and not more at once for having waited.
        assert_eq!(throttle.allowance(1800, 100, began + 510 * MS), 128);
        assert_eq!(throttle.allowance(1800, 100, second(60)), 256);
        throttle.set(true);
        assert_eq!(throttle.allowance(1800, 120_000, second(60)), 0);
        assert_eq!(throttle.allowance(1800, 60_000, second(60) + 100 * MS), 100);
    }

    #[test]
    fn the_cleaner_rests_until_then() {
        let throttle = ShrinkThrottle::default();
        assert!(!throttle.cleaner_rests());
        throttle.cleaner_rests_until(Instant::now() + Duration::from_secs(3600));
        assert!(throttle.cleaner_rests());
        throttle.cleaner_rests_until(Instant::now());
        assert!(!throttle.cleaner_rests());
    }
}
