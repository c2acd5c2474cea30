//! The pool over real files: pages made, written, evicted, loaded, refused.

mod packed;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidepool_pool::storage::{
    Fault, FaultKind, FileOptions, FileStorage, SimStorage, Storage, StorageOp,
};
use tidepool_pool::{
    Access, Error, ExclusiveGuard, Lsn, PageId, PageSize, PageType, PageView, Pool, PoolConfig,
    ResidentPage, Space, WriteAhead, WriteAheadError, page,
};

const SIZE: usize = 4096;

struct Fixture {
    pool: Arc<Pool>,
    space: Arc<Space>,
    storage: Arc<dyn Storage>,
    lsn: AtomicU64,
    _directory: Option<tempfile::TempDir>,
}

fn config(frames: u64, background: bool) -> PoolConfig {
    PoolConfig {
        page_size: PageSize::new(SIZE).unwrap(),
        size_bytes: frames * SIZE as u64,
        background,
        flush_batch_pages: 16,
        ..PoolConfig::default()
    }
}

fn fixture(frames: u64, pages: u64, background: bool) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(directory.path(), FileOptions::default()).unwrap();
    Fixture {
        _directory: Some(directory),
        ..fixture_on(Arc::new(storage), frames, pages, background)
    }
}

fn fixture_on(storage: Arc<dyn Storage>, frames: u64, pages: u64, background: bool) -> Fixture {
    let file = storage.create("16.tpd").unwrap();
    let pool = Pool::new(config(frames, background), storage.clone()).unwrap();
    let space = pool.open_space(16, packed::create(file, 16, SIZE)).unwrap();
    space.note_page_count(pages as u32);
    Fixture { pool, space, storage, lsn: AtomicU64::new(100), _directory: None }
}

impl Fixture {
    /// Fills the page with a value, as a mini-transaction would.
    fn fill(&self, guard: &mut ExclusiveGuard<'_>, value: u64) {
        for chunk in guard.bytes_mut()[32..].chunks_exact_mut(8) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        let start = self.lsn.fetch_add(10, Ordering::Relaxed);
        self.pool.mark_dirty(guard, Lsn(start), Lsn(start + 10));
    }

    fn write_new(&self, no: u32, value: u64) {
        let mut guard = self.pool.new_page(&self.space, no).unwrap();
        self.fill(&mut guard, value);
    }

    fn read(&self, no: u32) -> u64 {
        value_of(&self.pool.shared(&self.space, no, Access::Normal).unwrap())
    }
}

/// The value that fills the page, all of it.
fn value_of(page: &[u8]) -> u64 {
    let first = page.u64_at(32).unwrap();
    assert!(page[32..].chunks_exact(8).all(|chunk| chunk == first.to_le_bytes()), "torn page");
    first
}

#[test]
fn pages_survive_eviction_and_reopening() {
    for background in [false, true] {
        let it = fixture(32, 200, background);
        for no in 0..200 {
            it.write_new(no, no as u64 * 3);
        }
        for no in (0..200).rev() {
            assert_eq!(it.read(no), no as u64 * 3);
        }
        let stats = it.pool.stats();
        assert!(stats.pages_flushed >= 168 && stats.pages_evicted >= 168, "{stats:?}");
        assert!(stats.reads >= 168 && stats.pages_data <= 32, "{stats:?}");
        it.pool.flush_all().unwrap();
        assert_eq!((it.pool.oldest_dirty_lsn(), it.pool.stats().pages_dirty), (None, 0));
        it.pool.close_space(&it.space, false).unwrap();
        assert_eq!(it.pool.stats().pages_data, 0);
        assert!(matches!(
            it.pool.shared(&it.space, 0, Access::Normal),
            Err(Error::Space { space: 16, .. })
        ));
        let space = it
            .pool
            .open_space(16, packed::open(it.storage.open("16.tpd").unwrap(), 16, SIZE))
            .unwrap();
        let page = it.pool.exclusive(&space, 199, Access::Normal).unwrap();
        assert_eq!((value_of(&page), page.page_lsn()), (597, Lsn(100 + 200 * 10)));
    }
}

#[test]
fn flush_up_to_writes_the_oldest_and_the_checkpoint_may_move() {
    let it = fixture(64, 50, false);
    for no in 0..50 {
        it.write_new(no, 1);
    }
    assert_eq!(it.pool.oldest_dirty_lsn(), Some(Lsn(100)));
    assert_eq!(it.pool.flush_up_to(Lsn(200), usize::MAX).unwrap(), 10);
    assert_eq!(it.pool.oldest_dirty_lsn(), Some(Lsn(200)));
    assert_eq!(it.pool.flush_up_to(Lsn::MAX, 7).unwrap(), 7);
    assert_eq!(it.pool.oldest_dirty_lsn(), Some(Lsn(270)));
    let held = it.pool.exclusive(&it.space, 17, Access::Normal).unwrap();
    it.pool.set_checkpoint_pressure(Lsn(400));
    let written: usize = (0..3).map(|_| it.pool.run_cleaner_step().unwrap()).sum();
    assert_eq!(written, 12);
    assert_eq!(it.pool.oldest_dirty_lsn(), Some(Lsn(270)), "latched, so passed over");
    assert!(matches!(it.pool.flush_all(), Err(Error::PagesInUse { pages: 1 })));
    drop(held);
    it.pool.flush_all().unwrap();
    assert_eq!(it.pool.oldest_dirty_lsn(), None);
}

#[test]
fn optimistic_readers_notice_writers_and_eviction() {
    let it = fixture(16, 64, false);
    it.write_new(3, 7);
    let optimistic = it.pool.optimistic(&it.space, 3, Access::Normal).unwrap();
    assert_eq!(optimistic.u64_at(40), Ok(7));
    optimistic.validate().unwrap();
    drop(it.pool.exclusive(&it.space, 3, Access::Normal).unwrap());
    optimistic.validate().unwrap();
    drop(optimistic.upgrade_shared().unwrap());
    let mut exclusive = optimistic.upgrade_exclusive().unwrap();
    assert!(optimistic.validate().is_err());
    assert!(it.pool.try_shared(&it.space, 3, Access::Normal).is_none());
    it.fill(&mut exclusive, 8);
    let shared = exclusive.downgrade();
    assert_eq!(value_of(&shared), 8);
    assert!(it.pool.try_shared(&it.space, 3, Access::Normal).is_some());
    assert!(it.pool.try_exclusive(&it.space, 3, Access::Normal).is_none());
    drop(shared);
    assert!(optimistic.upgrade_shared().is_err());
    let optimistic = it.pool.optimistic(&it.space, 3, Access::Normal).unwrap();
    for no in 10..60 {
        it.write_new(no, 1);
    }
    assert!(optimistic.validate().is_err(), "evicted");
    assert_eq!(it.read(3), 8);
    assert!(optimistic.validate().is_err(), "loaded again, whichever the frame");
}

#[test]
fn corrupt_pages_are_errors_that_name_them_and_missing_ones_are_zeroes() {
    let it = fixture(16, 8, false);
    for no in [5, 6] {
        it.write_new(no, u64::from(no));
        it.pool.flush_all().unwrap();
    }
    it.pool.checkpoint_files().unwrap();
    it.pool.close_space(&it.space, false).unwrap();
    let offset_of = |no: u32| it.space.file().find(16, no).unwrap().unwrap().offset();
    let file = it.storage.open("16.tpd").unwrap();
    let block_of = |no: u32| offset_of(no) / SIZE as u64 * SIZE as u64;
    assert_ne!(block_of(5), block_of(6), "each batch has a separate block");
    let mut block = tidepool_pool::storage::AlignedBuf::zeroed(SIZE);
    file.read_at(&mut block, block_of(5)).unwrap();
    block[(offset_of(5) - block_of(5)) as usize + 10] ^= 4;
    file.write_at(&block, block_of(5)).unwrap();
    // Where page 6 was lies the image of page 5 as it was.
    block[(offset_of(5) - block_of(5)) as usize + 10] ^= 4;
    file.write_at(&block, block_of(6)).unwrap();
    let space = it.pool.open_space(16, packed::open(file, 16, SIZE)).unwrap();
    for no in [5, 6] {
        let error = it.pool.shared(&space, no, Access::Normal).unwrap_err().to_string();
        let start = format!("16.tpd: page {no} is corrupt: ");
        assert!(error.starts_with(&start), "{error}");
    }
    for no in [7, 800] {
        let page = it.pool.shared(&space, no, Access::Normal).unwrap();
        assert_eq!(page[..], [0; SIZE], "never written");
    }
    // A failed load leaves nothing behind.
    assert_eq!(it.pool.stats().pages_data, 2);
    assert_eq!(it.pool.stats().read_errors, 2);
}

#[test]
fn an_unmarked_new_page_vanishes() {
    let it = fixture(16, 8, false);
    drop(it.pool.new_page(&it.space, 2).unwrap());
    assert_eq!(it.pool.stats().pages_data, 0);
    assert_eq!(it.pool.shared(&it.space, 2, Access::Normal).unwrap()[..], [0; SIZE]);
}

#[test]
fn a_discarded_space_is_never_written() {
    let it = fixture(64, 50, false);
    for no in 0..50 {
        it.write_new(no, 1);
    }
    it.pool.close_space(&it.space, true).unwrap();
    assert_eq!(it.pool.oldest_dirty_lsn(), None);
    let stats = it.pool.stats();
    assert_eq!((stats.pages_flushed, stats.pages_data, stats.pages_dirty), (0, 0, 0));
    assert!(it.pool.space(16).is_none());
}

#[test]
fn prefetch_brings_pages_in_once() {
    let it = fixture(64, 40, false);
    for no in 0..40 {
        it.write_new(no, no as u64);
    }
    it.pool.close_space(&it.space, false).unwrap();
    let space =
        it.pool.open_space(16, packed::open(it.storage.open("16.tpd").unwrap(), 16, SIZE)).unwrap();
    it.pool.prefetch(&space, &(0..100).collect::<Vec<_>>(), Access::Normal);
    assert_eq!(it.pool.stats().read_ahead, 40);
    it.pool.prefetch(&space, &[1, 2, 3], Access::Scan);
    for no in 0..40 {
        assert_eq!(value_of(&it.pool.shared(&space, no, Access::Scan).unwrap()), no as u64);
    }
    let stats = it.pool.stats();
    assert_eq!((stats.read_ahead, stats.reads, stats.read_ahead_evicted), (40, 0, 0));
}

#[test]
fn images_that_lie_close_together_are_prefetched_with_one_read() {
    let sim = SimStorage::new(1);
    let it = fixture_on(Arc::new(sim.clone()), 64, 40, false);
    for no in 0..40 {
        it.write_new(no, no as u64);
    }
    it.pool.close_space(&it.space, false).unwrap();
    let file = packed::open(it.storage.open("16.tpd").unwrap(), 16, SIZE);
    let space = it.pool.open_space(16, file).unwrap();
    // It fails, and takes all of its pages with it.
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io));
    let wanted: Vec<u32> = (30..40).chain([25]).chain((0..20).rev()).collect();
    it.pool.prefetch(&space, &wanted, Access::Normal);
    let stats = it.pool.stats();
    assert_eq!((stats.read_ahead, stats.read_errors), (0, 31));
    it.pool.prefetch(&space, &wanted, Access::Normal);
    assert_eq!(it.pool.stats().read_ahead, 31);
    // Who wants the others reads them.
    for no in 0..40 {
        assert_eq!(value_of(&it.pool.shared(&space, no, Access::Normal).unwrap()), no as u64);
    }
    assert_eq!(it.pool.stats().reads, 9);
}

#[test]
fn every_resident_page_is_told_with_its_tree_and_state() {
    let it = fixture(32, 100, false);
    for no in 0..20 {
        it.write_new(no, 1);
        let mut guard = it.pool.exclusive(&it.space, no, Access::Normal).unwrap();
        let page_type = if no % 2 == 0 { PageType::TREE_LEAF } else { PageType::BITMAP };
        page::set_page_type(guard.bytes_mut(), page_type);
        page::set_tree_id(guard.bytes_mut(), 7 + no % 3);
        it.fill(&mut guard, 2);
    }
    let all = || {
        let mut all = Vec::new();
        // Which ones are hot is the policy's business.
        it.pool.for_each_resident(|page| all.push(ResidentPage { is_hot: false, ..page }));
        all.sort_by_key(|page| page.id);
        all
    };
    // A page that another thread has latched is listed like any other.
    let held = it.pool.exclusive(&it.space, 5, Access::Normal).unwrap();
    let expect = |no: u32, is_dirty| ResidentPage {
        id: PageId::new(16, no),
        page_type: if no.is_multiple_of(2) { PageType::TREE_LEAF } else { PageType::BITMAP },
        tree_id: 7 + no % 3,
        is_dirty,
        is_hot: false,
    };
    assert_eq!(all(), (0..20).map(|no| expect(no, true)).collect::<Vec<_>>());
    drop(held);
    it.pool.flush_all().unwrap();
    assert_eq!(all(), (0..20).map(|no| expect(no, false)).collect::<Vec<_>>());
    it.pool.close_space(&it.space, false).unwrap();
    assert_eq!(all(), []);
}

#[test]
fn a_pool_full_of_latched_pages_says_so() {
    let it = fixture(16, 40, false);
    let held: Vec<_> =
        (0..16).map(|no| it.pool.shared(&it.space, no, Access::Normal).unwrap()).collect();
    let error = it.pool.shared(&it.space, 20, Access::Normal).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the buffer pool of 16 pages has no page left to give up (all are in use); \
         make the pool larger, or see the error log for failed writes"
    );
    drop(held);
    assert_eq!(it.read(20), 0);
}

#[test]
fn a_write_that_failed_and_was_made_good_is_not_to_blame() {
    let sim = SimStorage::new(7);
    let it = fixture_on(Arc::new(sim.clone()), 16, 40, false);
    it.write_new(0, 1);
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).on("16.tpd"));
    it.pool.flush_all().unwrap_err();
    // Another page that is written makes nothing good.
    let held = it.pool.exclusive(&it.space, 0, Access::Normal).unwrap();
    it.write_new(9, 1);
    assert_eq!(it.pool.flush_up_to(Lsn::MAX, 1).unwrap(), 1);
    assert!(it.pool.last_write_error().is_some());
    drop(held);
    it.pool.flush_all().unwrap();
    assert!(it.pool.last_write_error().is_none());
    let _held: Vec<_> =
        (0..16).map(|no| it.pool.shared(&it.space, no, Access::Normal).unwrap()).collect();
    let error = it.pool.shared(&it.space, 20, Access::Normal).unwrap_err().to_string();
    assert!(error.contains("no page left to give up (all are in use)"), "{error}");
}

struct Log(AtomicU64, AtomicU64);

impl WriteAhead for Log {
    fn ensure_durable(&self, lsn: Lsn) -> Result<(), WriteAheadError> {
        if lsn.0 > self.1.load(Ordering::Relaxed) {
            return Err(Arc::new(std::io::Error::other("the log is full")));
        }
        self.0.fetch_max(lsn.0, Ordering::Relaxed);
        Ok(())
    }

    fn durable_lsn(&self) -> Option<Lsn> {
        Some(Lsn(self.0.load(Ordering::Relaxed)))
    }
}

#[test]
fn no_page_is_written_before_its_redo() {
    let it = fixture(16, 8, false);
    let log = Arc::new(Log(AtomicU64::new(0), AtomicU64::new(105)));
    it.pool.set_write_ahead(log.clone());
    it.write_new(1, 1);
    let error = it.pool.flush_all().unwrap_err().to_string();
    assert_eq!(
        error,
        "pages up to LSN 110 stay unwritten, because the redo log is not durable: the log is full"
    );
    assert_eq!(it.pool.oldest_dirty_lsn(), Some(Lsn(100)));
    log.1.store(1000, Ordering::Relaxed);
    it.pool.flush_all().unwrap();
    assert_eq!(log.0.load(Ordering::Relaxed), 110);
    let mut page = vec![0; SIZE];
    let file = packed::open(it.storage.open("16.tpd").unwrap(), 16, SIZE);
    file.read(16, 1, &mut page).unwrap();
    assert_eq!(value_of(&page), 1);
}

/// A log with a bug, as often as this says.
struct BrokenLog(AtomicU64);

impl WriteAhead for BrokenLog {
    fn ensure_durable(&self, _: Lsn) -> Result<(), WriteAheadError> {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        assert!(left.is_err(), "on purpose");
        Ok(())
    }
}

#[test]
fn a_batch_that_panics_gives_its_pages_back() {
    let it = fixture(32, 40, false);
    it.pool.set_write_ahead(Arc::new(BrokenLog(AtomicU64::new(1))));
    for no in 0..20 {
        it.write_new(no, 1);
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| it.pool.flush_all()));
    assert!(panicked.is_err());
    let stats = it.pool.stats();
    assert!(stats.pages_dirty == 20 && stats.write_errors > 0, "{stats:?}");
    assert_eq!(it.pool.oldest_dirty_lsn(), Some(Lsn(100)));
    // They can be changed, written, and evicted.
    it.fill(&mut it.pool.exclusive(&it.space, 3, Access::Normal).unwrap(), 5);
    it.pool.flush_all().unwrap();
    assert_eq!((it.pool.oldest_dirty_lsn(), it.pool.stats().pages_dirty), (None, 0));
    it.pool.close_space(&it.space, false).unwrap();
    let space =
        it.pool.open_space(16, packed::open(it.storage.open("16.tpd").unwrap(), 16, SIZE)).unwrap();
    let read = |no| value_of(&it.pool.shared(&space, no, Access::Normal).unwrap());
    assert_eq!((read(0), read(3)), (1, 5));
}

/// No thread waits for ever for frames that a thread with a bug would have freed.
#[test]
fn threads_outlive_panics() {
    let it = fixture(32, 400, true);
    it.pool.set_write_ahead(Arc::new(BrokenLog(AtomicU64::new(3))));
    for no in 0..400 {
        let write = || it.write_new(no, no as u64);
        while std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err() {}
    }
    for no in 0..400 {
        assert_eq!(it.read(no), no as u64);
    }
    it.pool.flush_all().unwrap();
    assert_eq!(it.pool.stats().pages_dirty, 0);
}

/// Threads over a pool a quarter the size of the data: every page is always whole, and no update
/// is lost.
#[test]
fn threads_over_a_small_pool() {
    const PAGES: u32 = 256;
    const THREADS: u64 = 6;
    let rounds: u64 = std::env::var("TIDEPOOL_STRESS_ROUNDS")
        .map_or(3_000, |rounds| rounds.parse().expect("a number"));
    let it = fixture(64, PAGES as u64, true);
    for no in 0..PAGES {
        it.write_new(no, 0);
    }
    // LSNs and dirtying go together, as in the redo log.
    let append = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (it, append) = (&it, &append);
            scope.spawn(move || {
                let mut state = thread * 0x9e37_79b9 + 1;
                for round in 0..rounds {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let no = (state % PAGES as u64) as u32;
                    match state >> 40 & 7 {
                        0..3 => {
                            let mut page =
                                it.pool.exclusive(&it.space, no, Access::Normal).unwrap();
                            let value = value_of(&page) + 1;
                            let _order = append.lock().unwrap();
                            it.fill(&mut page, value);
                        }
                        3 => {
                            let pages: Vec<u32> = (no..no + 8).collect();
                            it.pool.prefetch(&it.space, &pages, Access::Normal);
                        }
                        4..6 => {
                            let page = it.pool.optimistic(&it.space, no, Access::Normal).unwrap();
                            let mut copy = Vec::new();
                            page.copy_to(0, SIZE, &mut copy).unwrap();
                            if page.validate().is_ok() {
                                value_of(&copy);
                            }
                        }
                        _ => {
                            it.read(no);
                        }
                    }
                    if round % 512 == 0 {
                        it.pool.set_checkpoint_pressure(Lsn(it.lsn.load(Ordering::Relaxed)));
                    }
                }
            });
        }
    });
    let updates: u64 = (0..PAGES).map(|no| it.read(no)).sum();
    assert_eq!(updates, (it.lsn.load(Ordering::Relaxed) - 100) / 10 - PAGES as u64);
    it.pool.flush_all().unwrap();
    it.pool.close_space(&it.space, false).unwrap();
    let space =
        it.pool.open_space(16, packed::open(it.storage.open("16.tpd").unwrap(), 16, SIZE)).unwrap();
    let read = |no| value_of(&it.pool.shared(&space, no, Access::Scan).unwrap());
    assert_eq!((0..PAGES).map(read).sum::<u64>(), updates);
    assert!(it.pool.stats().pages_data <= 64);
}

/// The same on a disk whose reads and writes fail now and then: errors come out, nothing is lost,
/// nothing hangs.
#[test]
fn threads_on_a_failing_disk() {
    const PAGES: u32 = 256;
    const THREADS: u64 = 4;
    let sim = SimStorage::new(7);
    let file = sim.create("16.tpd").unwrap();
    let pool = Pool::new(config(64, true), Arc::new(sim.clone())).unwrap();
    let space = pool.open_space(16, packed::create(file, 16, SIZE)).unwrap();
    sim.set_error_chance(StorageOp::Read, FaultKind::Io, 20_000);
    sim.set_error_chance(StorageOp::Write, FaultKind::Io, 20_000);
    let (append, lsn) = (std::sync::Mutex::new(()), AtomicU64::new(100));
    let (errors, updates) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, space, append, lsn) = (&pool, &space, &append, &lsn);
            let (errors, updates) = (&errors, &updates);
            scope.spawn(move || {
                let mut state = thread * 0x9e37_79b9 + 1;
                for _ in 0..3_000 {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let no = (state % PAGES as u64) as u32;
                    // Two pages at a time, as a mini-transaction has them, in page order.
                    let two = pool.exclusive(space, no, Access::Normal).and_then(|first| {
                        let second = (no + 1 < PAGES)
                            .then(|| pool.exclusive(space, no + 1, Access::Normal))
                            .transpose()?;
                        Ok((first, second))
                    });
                    let (mut first, second) = match two {
                        Ok(both) => both,
                        Err(error) => {
                            assert!(matches!(error, Error::Storage(_)), "{error}");
                            errors.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                    };
                    let value = value_of(&first) + 1;
                    let bytes = first.bytes_mut();
                    tidepool_pool::page::set_page_id(bytes, PageId::new(16, no));
                    for chunk in bytes[32..].chunks_exact_mut(8) {
                        chunk.copy_from_slice(&value.to_le_bytes());
                    }
                    let _order = append.lock().unwrap();
                    let start = lsn.fetch_add(10, Ordering::Relaxed);
                    pool.mark_dirty(&mut first, Lsn(start), Lsn(start + 10));
                    updates.fetch_add(1, Ordering::Relaxed);
                    drop(second);
                }
            });
        }
    });
    let stats = pool.stats();
    assert!(errors.into_inner() > 0 && stats.write_errors > 0, "{stats:?}");
    sim.clear_faults();
    pool.flush_all().unwrap();
    let read = |no| value_of(&pool.shared(&space, no, Access::Normal).unwrap());
    assert_eq!((0..PAGES).map(read).sum::<u64>(), updates.into_inner());
}
