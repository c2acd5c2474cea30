//! Counters of the pool, named after InnoDB's.
//!
//! The counters on the path of every access are spread over cells of which each thread owns one, so
//! that counting takes no locked instruction; the others count events that cost far more than one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// A snapshot of the pool's counters. Counts are since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    pub page_size_bytes: u64,
    /// Frames the pool may use.
    pub pages_total: u64,
    /// Frames without a page and without compressed images, those never used included.
    pub pages_free: u64,
    /// Resident pages.
    pub pages_data: u64,
    /// Resident pages that differ from their file.
    pub pages_dirty: u64,
    /// Resident pages on the old list.
    pub pages_old: u64,
    /// Accesses to pages.
    pub read_requests: u64,
    /// Accesses that had to read the page from its file.
    pub reads: u64,
    /// How long these took in all, microseconds.
    pub reads_us: u64,
    /// Pages read by read-ahead.
    pub read_ahead: u64,
    /// Of these, pages evicted without ever having been accessed.
    pub read_ahead_evicted: u64,
    /// How long scans have rested to let queries read, microseconds.
    pub scan_rests_us: u64,
    /// Pages made anew.
    pub pages_created: u64,
    /// Mini-transactions' changes to pages.
    pub write_requests: u64,
    /// Pages written to their files.
    pub pages_flushed: u64,
    /// Of these, pages written because frames ran short.
    pub pages_flushed_lru: u64,
    /// Second copies of pages written to mirrors.
    pub mirror_pages_written: u64,
    pub pages_evicted: u64,
    /// Times a thread had to wait for a frame.
    pub wait_free: u64,
    /// How long these waits took in all, microseconds.
    pub wait_free_us: u64,
    /// Pages moved from the old to the young list.
    pub pages_made_young: u64,
    /// Accesses to old pages that came too soon to move them.
    pub pages_not_made_young: u64,
    /// Reads that failed or gave a corrupt page.
    pub read_errors: u64,
    /// Page writes that failed.
    pub write_errors: u64,
}

/// Cells of a sharded counter.
pub(crate) const CELLS: usize = 128;

/// The cell of all threads that found no other without an owner.
pub(crate) const SHARED_CELL: usize = CELLS - 1;

/// Numbers of cells without an owner.
static UNOWNED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// Cells from this number on never had one.
static NEVER_OWNED: AtomicUsize = AtomicUsize::new(0);

/// A thread's cell, in every sharded counter alike; another thread's once this one has ended.
struct OwnCell(usize);

impl OwnCell {
    fn claim() -> OwnCell {
        if let Some(cell) = UNOWNED.lock().pop() {
            return OwnCell(cell);
        }
        let cell = NEVER_OWNED
            .fetch_update(Relaxed, Relaxed, |next| (next < SHARED_CELL).then_some(next + 1));
        OwnCell(cell.unwrap_or(SHARED_CELL))
    }
}

impl Drop for OwnCell {
    fn drop(&mut self) {
        if self.0 != SHARED_CELL {
            UNOWNED.lock().push(self.0);
        }
    }
}

thread_local! {
    static OWN_CELL: OwnCell = OwnCell::claim();
    static WORK: std::cell::Cell<ThreadWork> = const { std::cell::Cell::new(ThreadWork::NONE) };
}

/// What a thread has asked of pools since it began: the difference of two says what a statement
/// took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadWork {
    pub pages_accessed: u64,
    /// Pages changed, each time that a mini-transaction did so.
    pub pages_updated: u64,
    /// Pages read from their files while the thread waited.
    pub pages_read: u64,
    /// How long it waited for those.
    pub read_time: Duration,
    /// Pages that it asked to be read ahead.
    pub pages_prefetched: u64,
}

impl ThreadWork {
    const NONE: ThreadWork = ThreadWork {
        pages_accessed: 0,
        pages_updated: 0,
        pages_read: 0,
        read_time: Duration::ZERO,
        pages_prefetched: 0,
    };
}

/// Counts what the calling thread does, beside the counters of all.
fn note_work(note: impl FnOnce(&mut ThreadWork)) {
    WORK.with(|cell| {
        let mut work = cell.get();
        note(&mut work);
        cell.set(work);
    });
}

/// The calling thread has waited for a page to be read.
pub(crate) fn note_read(took: Duration) {
    note_work(|work| {
        work.pages_read += 1;
        work.read_time += took;
    });
}

/// The calling thread has asked for pages to be read ahead.
pub(crate) fn note_prefetched(pages: usize) {
    note_work(|work| work.pages_prefetched += pages as u64);
}

/// The number of the calling thread's cell.
#[inline]
pub(crate) fn own_cell() -> usize {
    // A thread that is ending has given its cell away.
    OWN_CELL.try_with(|own| own.0).unwrap_or(SHARED_CELL)
}

#[repr(align(128))]
#[derive(Default)]
struct Cell(AtomicU64);

/// A counter that many threads increment often and few read.
pub(crate) struct ShardedCounter {
    cells: Box<[Cell]>,
    /// Where a thread without a cell counts what it adds itself.
    of_thread: fn(&mut ThreadWork) -> &mut u64,
}

impl ShardedCounter {
    pub(crate) fn new(of_thread: fn(&mut ThreadWork) -> &mut u64) -> ShardedCounter {
        ShardedCounter { cells: (0..CELLS).map(|_| Cell::default()).collect(), of_thread }
    }

    /// What grows by one with each increment by the calling thread, and by nothing else.
    fn of_this_thread(&self) -> u64 {
        match own_cell() {
            SHARED_CELL => *(self.of_thread)(&mut WORK.get()),
            own => self.cells[own].0.load(Relaxed),
        }
    }

    #[inline]
    pub(crate) fn increment(&self) {
        let own = own_cell();
        let cell = &self.cells[own].0;
        if own == SHARED_CELL {
            cell.fetch_add(1, Relaxed);
            note_work(|work| *(self.of_thread)(work) += 1);
        } else {
            // No other thread writes this cell: no need for the bus to be locked.
            cell.store(cell.load(Relaxed) + 1, Relaxed);
        }
    }

    pub(crate) fn sum(&self) -> u64 {
        self.cells.iter().map(|cell| cell.0.load(Relaxed)).sum()
    }
}

/// Counters that many threads add to often and few read: each thread adds to memory that no other
/// writes to.
#[derive(Debug)]
pub struct ShardedCounters<const N: usize> {
    cells: Box<[Cells<N>]>,
}

#[derive(Debug)]
#[repr(align(128))]
struct Cells<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for ShardedCounters<N> {
    fn default() -> Self {
        let cells = || Cells([const { AtomicU64::new(0) }; N]);
        ShardedCounters { cells: (0..CELLS).map(|_| cells()).collect() }
    }
}

impl<const N: usize> ShardedCounters<N> {
    /// Adds to the counter at this position.
    #[inline]
    pub fn add(&self, counter: usize, n: u64) {
        let own = own_cell();
        let cell = &self.cells[own].0[counter];
        if own == SHARED_CELL {
            cell.fetch_add(n, Relaxed);
        } else {
            // No other thread writes this cell: no need for the bus to be locked.
            cell.store(cell.load(Relaxed) + n, Relaxed);
        }
    }

    /// What the threads have added to it.
    pub fn get(&self, counter: usize) -> u64 {
        self.cells.iter().map(|cells| cells.0[counter].load(Relaxed)).sum()
    }
}

/// The live counters.
pub(crate) struct Counters {
    pub(crate) read_requests: ShardedCounter,
    pub(crate) write_requests: ShardedCounter,
    pub(crate) reads: AtomicU64,
    pub(crate) reads_us: AtomicU64,
    pub(crate) read_ahead: AtomicU64,
    pub(crate) read_ahead_evicted: AtomicU64,
    pub(crate) scan_rests_us: AtomicU64,
    pub(crate) pages_created: AtomicU64,
    pub(crate) pages_data: AtomicU64,
    pub(crate) pages_flushed: AtomicU64,
    pub(crate) pages_flushed_lru: AtomicU64,
    pub(crate) mirror_pages_written: AtomicU64,
    pub(crate) pages_evicted: AtomicU64,
    pub(crate) wait_free: AtomicU64,
    pub(crate) wait_free_us: AtomicU64,
    pub(crate) read_errors: AtomicU64,
    pub(crate) write_errors: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            read_requests: ShardedCounter::new(|work| &mut work.pages_accessed),
            write_requests: ShardedCounter::new(|work| &mut work.pages_updated),
            reads: AtomicU64::new(0),
            reads_us: AtomicU64::new(0),
            read_ahead: AtomicU64::new(0),
            read_ahead_evicted: AtomicU64::new(0),
            scan_rests_us: AtomicU64::new(0),
            pages_created: AtomicU64::new(0),
            pages_data: AtomicU64::new(0),
            pages_flushed: AtomicU64::new(0),
            pages_flushed_lru: AtomicU64::new(0),
            mirror_pages_written: AtomicU64::new(0),
            pages_evicted: AtomicU64::new(0),
            wait_free: AtomicU64::new(0),
            wait_free_us: AtomicU64::new(0),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
        }
    }
}

impl Counters {
    /// What the calling thread has done. Other pools' work is in it where a pool has no counter.
    pub(crate) fn thread_work(&self) -> ThreadWork {
        ThreadWork {
            pages_accessed: self.read_requests.of_this_thread(),
            pages_updated: self.write_requests.of_this_thread(),
            ..WORK.get()
        }
    }
}

/// Adds one to an event counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Adds a time to a counter of microseconds.
pub(crate) fn count_time(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(time.as_micros() as u64, Relaxed);
}

/// Processor's time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_among_more_threads_than_cells() {
        let counter = ShardedCounter::new(|work| &mut work.pages_accessed);
        for _ in 0..2 {
            let barrier = std::sync::Barrier::new(150);
            std::thread::scope(|scope| {
                for _ in 0..150 {
                    scope.spawn(|| {
                        counter.increment();
                        let own = counter.of_this_thread();
                        barrier.wait();
                        (0..100).for_each(|_| counter.increment());
                        assert_eq!(counter.of_this_thread() - own, 100, "also without a cell");
                    });
                }
            });
        }
        assert_eq!(counter.sum(), 2 * 150 * 101);
    }
}
