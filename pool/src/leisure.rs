//! Shrinking at leisure: how a shrink that nobody waits for leaves disk, free frames and CPU to
//! queries.
//!
//! Half of a pool can be given back within a fraction of a second, and whoever runs queries beside
//! that notices. If nobody else needs the memory it may take some seconds instead:
//! - *Free frames go to misses first.* The shrink evicts only while more than half of the evictor's
//!   reserve is free, or misses would find only dirty pages at the cold end, and wait for writes.
//! - *Few extents are marked at a time*, [`marked_at_most`]. A frame that is freed in a marked
//!   extent is lost to misses; with half of the extents marked, two pages must be evicted for each
//!   that is read, and twice as many written. The price is that some pages move more than once.
//! - *Pages leave slowly while queries wait for the disk*: one for [`READS_PER_EVICTION`] that were
//!   read. Each page that leaves is one more that is read again or must be written now, and half of
//!   a pool at once takes a fifth of the throughput from a disk that is busy.
//! - *Dirty pages* are written by the cleaner alone, at the [pace](crate::pace) of scans. That the
//!   smaller pool has too large a share of them is mended at that pace as well, whoever asked.
//! - *The resizing thread rests* after each slice, [`REST`] times as long as it worked, while
//!   queries ask for pages.
//!
//! It ends when nothing comes of it: queries that miss all the time eat up every free frame, and a
//! slow disk may need more than half of its time. If nothing was given back for [`PATIENCE`], the
//! shrink goes on as if others pressed. Without background threads there is no leisure, since
//! nobody would go on.
//!
//! Locking: the mutexes are innermost, and never held together.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How soon memory is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// As soon as can be: others need it.
    Pressing,
    /// At a pace that leaves disk, free frames and CPU to queries.
    AtLeisure,
}

/// How long a leisurely shrink may give nothing back.
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

/// Whether there is leisure, and what follows.
#[derive(Default)]
pub(crate) struct Leisure {
    taken: AtomicBool,
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

impl Leisure {
    /// Whether the last resize was asked for at leisure.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Relaxed)
    }

    /// Returns what it was before.
    pub(crate) fn set(&self, taken: bool) -> bool {
        *self.least_debt.lock() = None;
        *self.allowance.lock() = None;
        self.taken.swap(taken, Relaxed)
    }

    /// So many frames are still to be given back. If they don't get fewer, leisure ends: true.
    pub(crate) fn ends_at(&self, debt: u32) -> bool {
        if !self.is_taken() || debt == 0 {
            return false;
        }
        let mut least = self.least_debt.lock();
        match *least {
            Some((least, since)) if debt >= least => {
                since.elapsed() > PATIENCE && self.taken.swap(false, Relaxed)
            }
            _ => {
                *least = Some((debt, Instant::now()));
                false
            }
        }
    }

    /// How many pages may be evicted at `now` while queries wait for the disk. `reads` have been
    /// read since the pool was made; `debt` frames are to be given back.
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

    /// So many pages were evicted.
    pub(crate) fn evicted(&self, pages: usize) {
        if let Some(allowance) = &mut *self.allowance.lock() {
            allowance.pages = (allowance.pages - pages as f64).max(0.0);
        }
    }

    /// Whether the cleaner is to leave alone what nobody waits for.
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

    /// How long the resizing thread is to rest after a slice that took `work`, when queries asked
    /// for as many pages as `requests` says since it last began to rest. It is not asked unless
    /// there is leisure.
    pub(crate) fn rest_after(&self, work: Duration, requests: impl FnOnce() -> u64) -> Duration {
        match self.is_taken() && requests() >= LOAD_MIN {
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
    fn a_leisurely_shrink_rests_while_there_are_queries() {
        let leisure = Leisure::default();
        let pressing = leisure.rest_after(MS, || unreachable!("it takes time to count them"));
        assert_eq!(pressing, Duration::ZERO);
        assert!(!leisure.set(true));
        assert_eq!(leisure.rest_after(MS, || 1000), 4 * MS);
        assert_eq!(leisure.rest_after(MS, || LOAD_MIN - 1), Duration::ZERO);
        assert_eq!((marked_at_most(1), marked_at_most(32_768)), (8, 512));
    }

    #[test]
    fn it_ends_when_nothing_comes_of_it() {
        let leisure = Leisure::default();
        leisure.set(true);
        let since_long_ago = || {
            let (least, _) = leisure.least_debt.lock().unwrap();
            *leisure.least_debt.lock() = Some((least, Instant::now() - 2 * PATIENCE));
        };
        assert!(!leisure.ends_at(20));
        assert!(!leisure.ends_at(20));
        since_long_ago();
        assert!(!leisure.ends_at(19));
        since_long_ago();
        assert!(!leisure.ends_at(0));
        assert!(leisure.ends_at(19));
        assert!(!leisure.is_taken() && !leisure.ends_at(19));
    }

    #[test]
    fn pages_leave_at_the_pace_of_reads_or_within_two_minutes() {
        let leisure = Leisure::default();
        let began = Instant::now();
        let second = |n: u32| began + n * Duration::from_secs(1);
        assert_eq!(leisure.allowance(1000, 100, began), 0);
        assert_eq!(leisure.allowance(1000 + 8 * 100, 100, began + 10 * MS), 100);
        leisure.evicted(90);
        assert_eq!(leisure.allowance(1800, 100, began + 10 * MS), 10);
        leisure.evicted(64);
        assert_eq!(leisure.allowance(1800, 100, began + 10 * MS), 0);
        // Slowly, though nothing is read; and not more at once for having waited.
        assert_eq!(leisure.allowance(1800, 100, began + 510 * MS), 128);
        assert_eq!(leisure.allowance(1800, 100, second(60)), 256);
        leisure.set(true);
        assert_eq!(leisure.allowance(1800, 120_000, second(60)), 0);
        assert_eq!(leisure.allowance(1800, 60_000, second(60) + 100 * MS), 100);
    }

    #[test]
    fn the_cleaner_rests_until_then() {
        let leisure = Leisure::default();
        assert!(!leisure.cleaner_rests());
        leisure.cleaner_rests_until(Instant::now() + Duration::from_secs(3600));
        assert!(leisure.cleaner_rests());
        leisure.cleaner_rests_until(Instant::now());
        assert!(!leisure.cleaner_rests());
    }
}
