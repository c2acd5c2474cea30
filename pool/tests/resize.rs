//! Resizing: what the pool holds afterwards, what it says of itself, and that no page is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidepool_pool::storage::{
    Fault, FaultKind, FileOptions, FileStorage, SimStorage, Storage, StorageOp,
};
use tidepool_pool::{
    Access, Error, ExclusiveGuard, Haste, Lsn, PageId, PageSize, PageView, Pool, PoolConfig,
    ResizeState, Space, page, statement,
};

/// The largest pages: 32 to an extent, so that a few pages are many extents.
const SIZE: usize = 65536;
const EXTENT: u64 = 2 << 20;
const EXTENT_PAGES: u32 = 32;

struct Fixture {
    pool: Arc<Pool>,
    space: Arc<Space>,
    lsn: AtomicU64,
}

fn fixture(storage: Arc<dyn Storage>, extents: u64, pages: u32, background: bool) -> Fixture {
    let file = storage.create("16.tpd").unwrap();
    file.set_len(pages as u64 * SIZE as u64).unwrap();
    let config = PoolConfig {
        page_size: PageSize::new(SIZE).unwrap(),
        size_bytes: extents * EXTENT,
        max_size_bytes: 64 * EXTENT,
        // With threads, so many that a sort would notice pages that move meanwhile.
        flush_batch_pages: if background { 32 } else { 8 },
        huge_pages: false,
        background,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config, storage).unwrap();
    let space = pool.open_space(16, file).unwrap();
    Fixture { pool, space, lsn: AtomicU64::new(100) }
}

fn simulated(extents: u64, pages: u32) -> (Fixture, SimStorage) {
    let sim = SimStorage::new(7);
    (fixture(Arc::new(sim.clone()), extents, pages, false), sim)
}

/// What page `no` holds after its `change`-th change: every word says so.
fn fill(guard: &mut ExclusiveGuard<'_>, no: u32, change: u64) {
    page::set_page_id(guard.bytes_mut(), PageId::new(16, no));
    let value = (no as u64) << 40 | change;
    let words = &mut guard.bytes_mut()[32..];
    words[..8].copy_from_slice(&value.to_le_bytes());
    let (mut done, len) = (8, words.len());
    while done < len {
        words.copy_within(..done.min(len - done), done);
        done *= 2;
    }
}

/// Which change the page holds; checks the whole of it.
fn change_of(bytes: &[u8], no: u32) -> u64 {
    let first = bytes.u64_at(32).unwrap();
    assert!(bytes[40..] == bytes[32..bytes.len() - 8], "torn page");
    assert!(first == 0 || first >> 40 == no as u64, "page {no} holds page {}", first >> 40);
    first & 0xff_ffff_ffff
}

impl Fixture {
    /// Reads all pages, and those that are hot once more, much later.
    fn read_all(&self, pages: u32, is_hot: impl Fn(u32) -> bool) {
        for no in 0..pages {
            self.read(no);
        }
        self.pool.advance_clock(5000);
        statement::begin();
        for no in (0..pages).filter(|&no| is_hot(no)) {
            self.read(no);
        }
    }

    fn write(&self, no: u32, change: u64) -> Result<(), Error> {
        let mut guard = self.pool.exclusive(&self.space, no, Access::Normal)?;
        fill(&mut guard, no, change);
        let start = self.lsn.fetch_add(10, Ordering::Relaxed);
        self.pool.mark_dirty(&mut guard, Lsn(start), Lsn(start + 10));
        Ok(())
    }

    fn read(&self, no: u32) -> u64 {
        tidepool_pool::statement::begin();
        change_of(&self.pool.shared(&self.space, no, Access::Normal).unwrap(), no)
    }

    /// Pages that are in the pool, of the first `pages`.
    fn resident(&self, pages: u32) -> Vec<u32> {
        // Those that are latched count.
        (0..pages)
            .filter(|&no| self.pool.try_shared(&self.space, no, Access::Prefetch).is_some())
            .collect()
    }

    fn run(&self) {
        while self.pool.run_resize_step() {}
    }

    fn state(&self) -> ResizeState {
        self.pool.resize_status().state
    }

    /// Waits for the background to have it done.
    fn settle(&self) {
        let began = Instant::now();
        while self.state() != ResizeState::Idle {
            assert!(began.elapsed() < Duration::from_secs(120), "{:?}", self.pool.resize_status());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn shrinking_evicts_the_coldest_and_keeps_the_rest_wherever_they_are() {
    let pages = 8 * EXTENT_PAGES;
    let (it, _) = simulated(8, pages);
    // Every fourth page is hot, in every extent.
    it.read_all(pages, |no| no % 4 == 0);
    assert_eq!(it.pool.resident_bytes(), 8 * EXTENT);
    it.pool.set_size(5 * EXTENT + 4711, Haste::Pressing);
    let status = it.pool.resize_status();
    assert_eq!((status.target_bytes, status.limit_bytes), (5 * EXTENT, 8 * EXTENT));
    assert_eq!((status.state, status.resizes), (ResizeState::Shrinking, 1));
    it.run();
    let status = it.pool.resize_status();
    assert_eq!((&status.state, status.resident_bytes), (&ResizeState::Idle, 5 * EXTENT));
    assert_eq!(status.limit_bytes, status.target_bytes);
    assert!(status.pages_moved > 0, "{status:?}");
    assert_eq!(status.longest_wait_us, 0, "nobody was there to wait");
    let resident = it.resident(pages);
    assert!(resident.len() as u32 >= 5 * EXTENT_PAGES - 8, "{}", resident.len());
    let hot = resident.iter().filter(|&no| no % 4 == 0).count() as u32;
    assert_eq!(hot, pages / 4, "not one hot page was evicted");
    // And back: what was given back is used again.
    it.pool.set_size(100 * EXTENT, Haste::Pressing);
    assert_eq!(it.state(), ResizeState::Growing);
    it.run();
    assert_eq!(it.pool.resize_status().target_bytes, 64 * EXTENT, "all that is reserved");
    for no in 0..pages {
        it.read(no);
    }
    assert_eq!((it.resident(pages).len() as u32, it.pool.resident_bytes()), (pages, 8 * EXTENT));
}

#[test]
fn dirty_pages_move_as_they_are_and_cold_ones_are_written() {
    let pages = 6 * EXTENT_PAGES;
    let (it, _) = simulated(6, pages);
    for no in 0..pages {
        it.write(no, 1).unwrap();
    }
    let (written, oldest) = (it.pool.stats().pages_flushed, it.pool.oldest_dirty_lsn());
    it.pool.set_size(2 * EXTENT, Haste::Pressing);
    it.run();
    let (stats, status) = (it.pool.stats(), it.pool.resize_status());
    assert_eq!((status.state, status.resident_bytes), (ResizeState::Idle, 2 * EXTENT));
    // As many as must go, and not all.
    assert!(stats.pages_flushed - written >= 4 * EXTENT_PAGES as u64, "{stats:?}");
    assert!(stats.pages_dirty > EXTENT_PAGES as u64, "{stats:?}");
    assert!(it.pool.oldest_dirty_lsn() > oldest);
    for no in 0..pages {
        assert_eq!(it.read(no), 1);
    }
    it.pool.flush_all().unwrap();
    it.pool.close_space(&it.space, false).unwrap();
}

#[test]
fn a_later_size_overrides_the_one_under_way() {
    let pages = 16 * EXTENT_PAGES;
    let (it, _) = simulated(16, pages);
    for no in 0..pages {
        it.write(no, 1).unwrap();
    }
    it.pool.flush_all().unwrap();
    it.pool.set_size(EXTENT, Haste::Pressing);
    for _ in 0..6 {
        assert!(it.pool.run_resize_step());
    }
    let midway = it.pool.resize_status().resident_bytes;
    assert!(midway > EXTENT, "{midway}");
    it.pool.set_size(16 * EXTENT, Haste::Pressing);
    it.run();
    assert_eq!((it.state(), it.pool.resident_bytes()), (ResizeState::Idle, midway));
    for no in 0..pages {
        assert_eq!(it.read(no), 1);
    }
    assert_eq!(it.pool.resident_bytes(), 16 * EXTENT);
    it.pool.set_size(8 * EXTENT, Haste::Pressing);
    it.pool.run_resize_step();
    it.pool.set_size(0, Haste::Pressing);
    it.run();
    let status = it.pool.resize_status();
    assert_eq!((status.state, status.resident_bytes), (ResizeState::Idle, EXTENT), "the least");
    assert_eq!(status.resizes, 4);
    for no in 0..pages {
        assert_eq!(it.read(no), 1);
    }
}

/// Between two steps, so that the limit is what the worker knows, and nothing drains any more.
#[test]
fn a_size_taken_back_and_asked_for_again_is_reached() {
    for steps in 0..40 {
        let pages = 8 * EXTENT_PAGES;
        let (it, _) = simulated(8, pages);
        // Cold pages, and so the frames that become free, are in every extent.
        it.read_all(pages, |no| no % 4 > 0);
        it.pool.set_size(4 * EXTENT, Haste::Pressing);
        for _ in 0..steps {
            it.pool.run_resize_step();
        }
        it.pool.set_size(8 * EXTENT, Haste::Pressing);
        it.pool.set_size(4 * EXTENT, Haste::Pressing);
        let is_done = (0..10_000).any(|_| !it.pool.run_resize_step());
        assert!(is_done, "after {steps} steps: {:?}", it.pool.resize_status());
        assert_eq!((it.state(), it.pool.resident_bytes()), (ResizeState::Idle, 4 * EXTENT));
    }
}

#[test]
fn a_latched_page_is_gone_round_until_there_is_no_other() {
    let pages = 4 * EXTENT_PAGES;
    let (it, _) = simulated(4, pages);
    for no in 0..pages {
        it.read(no);
    }
    // One in each extent: three extents can't go.
    let mut held: Vec<_> = (0..4)
        .map(|extent| it.pool.shared(&it.space, extent * EXTENT_PAGES + 5, Access::Normal).unwrap())
        .collect();
    it.pool.set_size(EXTENT, Haste::Pressing);
    it.run();
    let ResizeState::Stuck { why } = it.state() else { panic!("{:?}", it.state()) };
    assert!(why.contains("pages are being used"), "{why}");
    let stuck_at = it.pool.resident_bytes();
    assert_eq!(stuck_at, 4 * EXTENT, "a page in each");
    it.run();
    assert!(matches!(it.state(), ResizeState::Stuck { .. }));
    // Which one is let go does not matter.
    for (gone, of) in [(2, 4), (0, 3), (1, 2)] {
        held.remove(gone % of);
        it.run();
        assert_eq!(it.pool.resident_bytes(), (of as u64 - 1) * EXTENT);
    }
    assert_eq!(it.state(), ResizeState::Idle);
    assert!(change_of(&held[0], 0) == 0);
}

/// With threads, which try again and again, but neither in haste nor in silence.
#[test]
fn a_shrink_that_latched_pages_stop_says_so_for_as_long() {
    let pages = 4 * EXTENT_PAGES;
    let it = fixture(Arc::new(SimStorage::new(7)), 4, pages, true);
    // One in each extent, as the first that came.
    let held: Vec<_> = (0..pages)
        .map(|no| (no, it.pool.shared(&it.space, no, Access::Normal).unwrap()))
        .filter(|(no, _)| no % EXTENT_PAGES == 5)
        .collect();
    it.pool.set_size(EXTENT, Haste::Pressing);
    let is_stuck = || matches!(it.state(), ResizeState::Stuck { .. });
    let began = Instant::now();
    while !is_stuck() {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", it.pool.resize_status());
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(10));
        assert!(is_stuck(), "nothing has come of it since");
    }
    drop(held);
    it.settle();
    assert_eq!(it.pool.resident_bytes(), EXTENT);
}

#[test]
fn a_broken_disk_leaves_it_stuck_with_the_reason_until_it_works_again() {
    let pages = 4 * EXTENT_PAGES;
    let (it, sim) = simulated(4, pages);
    for no in 0..pages - 2 {
        it.write(no, 1).unwrap();
    }
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).always());
    it.pool.set_size(2 * EXTENT, Haste::Pressing);
    it.run();
    let ResizeState::Stuck { why } = it.state() else { panic!("{:?}", it.state()) };
    assert!(why.starts_with("write error: "), "{why}");
    assert_eq!(it.pool.stats().pages_dirty, pages as u64 - 2);
    // Free frames can be given back all the same.
    sim.clear_faults();
    it.run();
    assert_eq!((it.state(), it.pool.resident_bytes()), (ResizeState::Idle, 2 * EXTENT));
    for no in 0..pages - 2 {
        assert_eq!(it.read(no), 1);
    }
}

/// Counts the errors that are logged.
struct Errors(Arc<AtomicU64>);

impl tracing::Subscriber for Errors {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_disk_that_stays_broken_is_not_logged_with_every_try() {
    let errors = Arc::new(AtomicU64::new(0));
    let (it, sim) = simulated(4, 16);
    tracing::subscriber::with_default(Errors(errors.clone()), || {
        for no in 0..16 {
            it.write(no, 1).unwrap();
        }
        sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).always());
        for _ in 0..20 {
            it.pool.flush_all().unwrap_err();
        }
    });
    // A second one if twenty tries take more than half a minute.
    assert!((1..=2).contains(&errors.load(Ordering::Relaxed)), "{errors:?}");
}

#[test]
fn free_frames_go_without_a_page_being_evicted() {
    let pages = 8 * EXTENT_PAGES;
    let (it, sim) = simulated(8, pages);
    for no in 0..pages {
        it.write(no, 1).unwrap();
    }
    // All but a few pages here and there leave.
    it.pool.flush_all().unwrap();
    it.pool.set_size(EXTENT, Haste::Pressing);
    it.run();
    it.pool.set_size(8 * EXTENT, Haste::Pressing);
    for no in 0..2 * EXTENT_PAGES {
        it.write(no, 2).unwrap();
    }
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).always());
    let evicted = it.pool.stats().pages_evicted;
    let resident = it.pool.stats().pages_data as u32;
    it.pool.set_size(
        (resident + 4).next_multiple_of(EXTENT_PAGES) as u64 * SIZE as u64,
        Haste::Pressing,
    );
    it.run();
    assert_eq!((it.state(), it.pool.stats().pages_evicted), (ResizeState::Idle, evicted));
}

/// Cold pages that lie together leave whole extents behind: nothing needs to move.
#[test]
fn extents_of_cold_pages_go_as_they_are() {
    let pages = 16 * EXTENT_PAGES;
    let (it, _) = simulated(16, pages);
    for no in 0..pages {
        it.read(no);
    }
    it.pool.advance_clock(5000);
    statement::begin();
    for no in pages / 2..pages {
        it.read(no);
    }
    it.pool.set_size(10 * EXTENT, Haste::Pressing);
    it.run();
    assert_eq!((it.state(), it.pool.resident_bytes()), (ResizeState::Idle, 10 * EXTENT));
    let moved = it.pool.resize_status().pages_moved;
    assert!(moved <= EXTENT_PAGES as u64, "{moved}");
}

/// Only the cleaner writes then, and what it can't write is said.
#[test]
fn a_shrink_at_leisure_leaves_dirty_pages_to_the_cleaner() {
    let pages = 8 * EXTENT_PAGES;
    let sim = SimStorage::new(7);
    let it = fixture(Arc::new(sim.clone()), 8, pages, true);
    for no in 0..pages {
        it.write(no, 1).unwrap();
    }
    it.pool.set_size(4 * EXTENT, Haste::AtLeisure);
    it.settle();
    assert_eq!(it.pool.resident_bytes(), 4 * EXTENT);

    for no in 0..4 * EXTENT_PAGES {
        it.write(no, 2).unwrap();
    }
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).always());
    it.pool.set_size(EXTENT, Haste::AtLeisure);
    let began = Instant::now();
    loop {
        if let ResizeState::Stuck { why } = it.state() {
            assert!(why.starts_with("the last page write failed: "), "{why}");
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", it.pool.resize_status());
        std::thread::sleep(Duration::from_millis(1));
    }
    // The same size, but now others need the memory.
    sim.clear_faults();
    it.pool.set_size(EXTENT, Haste::Pressing);
    it.settle();
    assert_eq!(it.pool.resident_bytes(), EXTENT);
    for no in 0..4 * EXTENT_PAGES {
        assert_eq!(it.read(no), 2);
    }
}

/// One step of the property test.
#[derive(Clone, Debug)]
enum Op {
    Read(u32),
    Write(u32),
    SetSize(u64),
    Step(u32),
    Clean,
    Flush,
    Evict,
    Prefetch(u32),
    Tick(u32),
    FailWrites(u64),
    Hold(u32),
    Release,
}

const PAGES: u32 = 7 * EXTENT_PAGES;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => (0..PAGES).prop_map(Op::Read),
        30 => (0..PAGES).prop_map(Op::Write),
        4 => (0..9u64).prop_map(Op::SetSize),
        15 => (1..12u32).prop_map(Op::Step),
        3 => Just(Op::Clean),
        2 => Just(Op::Flush),
        3 => Just(Op::Evict),
        3 => (0..PAGES).prop_map(Op::Prefetch),
        3 => (1..2000u32).prop_map(Op::Tick),
        1 => (1..4u64).prop_map(Op::FailWrites),
        3 => (0..PAGES).prop_map(Op::Hold),
        3 => Just(Op::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is done in whatever order, with writes that fail and pages that stay latched: every
    /// page is what was last written; memory is within what is allowed; and in the end the pool gets
    /// to the size that was asked for.
    #[test]
    fn no_change_is_lost_and_every_size_is_reached(
        ops in proptest::collection::vec(op(), 50..400),
    ) {
        let (it, sim) = simulated(4, PAGES);
        let mut changes: BTreeMap<u32, u64> = BTreeMap::new();
        let mut held = Vec::new();
        let mut asked = 4;
        for (at, op) in ops.into_iter().enumerate() {
            let is_held = |no: u32| {
                held.iter().any(|page: &tidepool_pool::SharedGuard<'_>| page.page_id().no == no)
            };
            match op {
                Op::Read(no) => {
                    // A pool that can't write may have no frame.
                    if let Ok(page) = it.pool.shared(&it.space, no, Access::Normal) {
                        let expected = changes.get(&no).copied().unwrap_or(0);
                        prop_assert_eq!(change_of(&page, no), expected);
                    }
                }
                Op::Write(no) if !is_held(no) => {
                    if it.write(no, at as u64 + 1).is_ok() {
                        changes.insert(no, at as u64 + 1);
                    }
                }
                Op::SetSize(extents) => {
                    it.pool.set_size(extents * EXTENT, Haste::Pressing);
                    asked = extents.max(1);
                }
                Op::Step(steps) => {
                    for _ in 0..steps {
                        it.pool.run_resize_step();
                    }
                }
                Op::Clean => drop(it.pool.run_cleaner_step()),
                Op::Flush => drop(it.pool.flush_up_to(Lsn::MAX, 20)),
                Op::Evict => drop(it.pool.run_evictor_step()),
                Op::Prefetch(no) => it.pool.prefetch(&it.space, &[no, no + 1, no + 2], Access::Normal),
                Op::Tick(ms) => it.pool.advance_clock(ms),
                Op::FailWrites(times) => {
                    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).times(times));
                }
                Op::Hold(no) if held.len() < 6 => {
                    held.extend(it.pool.shared(&it.space, no, Access::Normal));
                }
                Op::Release if !held.is_empty() => drop(held.remove(0)),
                Op::Write(_) | Op::Hold(_) | Op::Release => {}
            }
            let status = it.pool.resize_status();
            prop_assert_eq!(status.target_bytes, asked * EXTENT);
            prop_assert!(status.resident_bytes <= status.limit_bytes);
            prop_assert!(it.pool.stats().pages_data * SIZE as u64 <= status.resident_bytes);
        }
        held.clear();
        sim.clear_faults();
        // The first may end a pass that began when pages were held.
        it.run();
        it.run();
        prop_assert_eq!(it.state(), ResizeState::Idle);
        prop_assert!(it.pool.resident_bytes() <= asked * EXTENT);
        for no in 0..PAGES {
            prop_assert_eq!(it.read(no), changes.get(&no).copied().unwrap_or(0));
        }
        it.pool.flush_all().unwrap();
        prop_assert_eq!(it.pool.stats().pages_dirty, 0);
        // What is on disk is what was last written, too.
        it.pool.close_space(&it.space, false).unwrap();
        let space = it.pool.open_space(17, it.space.file().clone()).unwrap();
        for (no, change) in changes {
            let mut bytes = vec![0; SIZE];
            let file = space.file();
            let mut aligned = tidepool_pool::storage::AlignedBuf::zeroed(SIZE);
            file.read_at(&mut aligned, no as u64 * SIZE as u64).unwrap();
            bytes.copy_from_slice(&aligned);
            prop_assert_eq!(change_of(&bytes, no), change);
        }
    }
}

/// Readers of all kinds and writers, while the size goes up and down and a space is written out over
/// and over: no reader believes a page that it should not, and no change is lost.
#[test]
fn queries_do_not_notice() {
    const PAGES: u32 = 10 * EXTENT_PAGES;
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::new(
        directory.path(),
        FileOptions { direct_io: false, ..FileOptions::default() },
    )
    .unwrap();
    let it = fixture(Arc::new(storage), 8, PAGES, true);
    let newest: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let time = std::env::var("TIDEPOOL_STRESS_SECONDS")
        .map_or(3.0, |seconds| seconds.parse().expect("a number"));
    let random = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    };
    std::thread::scope(|scope| {
        let (it, newest, stop) = (&it, &newest, &stop);
        for seed in 1..3u64 {
            scope.spawn(move || {
                let mut state = seed * 0x9e37_79b9;
                while !stop.load(Ordering::Relaxed) {
                    let no = (random(&mut state) % PAGES as u64) as u32;
                    let before = newest[no as usize].load(Ordering::Acquire);
                    let page = it.pool.shared(&it.space, no, Access::Normal).unwrap();
                    assert!(change_of(&page, no) >= before, "an older page {no}");
                }
            });
            scope.spawn(move || {
                let mut state = seed * 0x1234_5677;
                while !stop.load(Ordering::Relaxed) {
                    let no = (random(&mut state) % PAGES as u64) as u32;
                    let before = newest[no as usize].load(Ordering::Acquire);
                    let page = it.pool.optimistic(&it.space, no, Access::Normal).unwrap();
                    let mut words = Vec::new();
                    if page.copy_to(32, 8, &mut words).is_err() {
                        continue;
                    }
                    // Give it some time to move.
                    if random(&mut state).is_multiple_of(16) {
                        std::thread::yield_now();
                    }
                    for offset in (32..SIZE).step_by(4096 + 8) {
                        page.copy_to(offset, 8, &mut words).unwrap();
                    }
                    if page.validate().is_ok() {
                        let first = u64::from_le_bytes(words[..8].try_into().unwrap());
                        assert!(words.chunks(8).all(|chunk| chunk == first.to_le_bytes()));
                        assert!(first == 0 || first >> 40 == no as u64);
                        assert!(first & 0xff_ffff_ffff >= before);
                    }
                }
            });
            scope.spawn(move || {
                let mut state = seed * 0x7777_1111;
                while !stop.load(Ordering::Relaxed) {
                    let no = (random(&mut state) % PAGES as u64) as u32;
                    let mut page = it.pool.exclusive(&it.space, no, Access::Normal).unwrap();
                    let change = change_of(&page, no) + 1;
                    fill(&mut page, no, change);
                    let start = it.lsn.fetch_add(10, Ordering::Relaxed);
                    it.pool.mark_dirty(&mut page, Lsn(start), Lsn(start + 10));
                    newest[no as usize].fetch_max(change, Ordering::Release);
                }
            });
        }
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match it.pool.flush_space(&it.space) {
                    Ok(()) | Err(Error::PagesInUse { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let mut state = 99;
        let began = Instant::now();
        let mut settled = 0;
        while began.elapsed().as_secs_f64() < time {
            let haste = match random(&mut state) % 2 {
                0 => Haste::Pressing,
                _ => Haste::AtLeisure,
            };
            it.pool.set_size((1 + random(&mut state) % 9) * EXTENT, haste);
            if random(&mut state).is_multiple_of(3) {
                it.settle();
                settled += 1;
                let status = it.pool.resize_status();
                assert!(status.resident_bytes <= status.target_bytes, "{status:?}");
            } else {
                std::thread::sleep(Duration::from_micros(random(&mut state) % 3000));
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(settled > 0);
    });
    let status = it.pool.resize_status();
    assert!(status.pages_moved > 0, "{status:?}");
    for no in 0..PAGES {
        assert_eq!(it.read(no), newest[no as usize].load(Ordering::Relaxed));
    }
    it.pool.flush_all().unwrap();
    it.pool.close_space(&it.space, false).unwrap();
    assert_eq!(it.pool.stats().pages_data, 0);
}
