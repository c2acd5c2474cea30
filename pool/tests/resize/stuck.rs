//! Latched pages and broken disks: a shrink says what stops it, and goes on when it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidepool_pool::storage::{Fault, FaultKind, SimStorage, StorageOp};
use tidepool_pool::{Access, EXTENT_BYTES, PageSize, PoolConfig, ResizeState, ShrinkUrgency};

use crate::fixture::{EXTENT, EXTENT_PAGES, change_of, configured, fixture, simulated};

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
    it.pool.set_size(EXTENT, ShrinkUrgency::Immediate);
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
    it.pool.set_size(EXTENT, ShrinkUrgency::Immediate);
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
    it.pool.set_size(2 * EXTENT, ShrinkUrgency::Immediate);
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
    // With one subscriber alone, tracing asks the thread that comes to a message first whether
    // anything listens, and keeps the answer: a test beside this one would answer no.
    let _second = tracing::Dispatch::new(Errors(errors.clone()));
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

/// Only the cleaner writes then, and what it can't write is said.
#[test]
fn a_background_shrink_leaves_dirty_pages_to_the_cleaner() {
    let pages = 8 * EXTENT_PAGES;
    let sim = SimStorage::new(7);
    let it = fixture(Arc::new(sim.clone()), 8, pages, true);
    for no in 0..pages {
        it.write(no, 1).unwrap();
    }
    it.pool.set_size(4 * EXTENT, ShrinkUrgency::Background);
    it.settle();
    assert_eq!(it.pool.resident_bytes(), 4 * EXTENT);

    for no in 0..4 * EXTENT_PAGES {
        it.write(no, 2).unwrap();
    }
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).always());
    it.pool.set_size(EXTENT, ShrinkUrgency::Background);
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
    it.pool.set_size(EXTENT, ShrinkUrgency::Immediate);
    it.settle();
    assert_eq!(it.pool.resident_bytes(), EXTENT);
    for no in 0..4 * EXTENT_PAGES {
        assert_eq!(it.read(no), 2);
    }
}

/// Every write fails, so a shrink that waits for one never ends. Clean pages leave all the same.
#[test]
fn an_urgent_shrink_evicts_clean_pages_wherever_they_are_before_it_waits_for_a_write() {
    const PAGE: usize = 4096;
    let extent_pages = (EXTENT_BYTES / PAGE) as u32;
    let (extents, pages, dirty) = (16, 16 * extent_pages, 8 * extent_pages);
    let config = PoolConfig {
        page_size: PageSize::new(PAGE).unwrap(),
        size_bytes: extents * EXTENT,
        max_size_bytes: extents * EXTENT,
        huge_pages: false,
        ..PoolConfig::default()
    };
    let sim = SimStorage::new(7);
    let it = configured(Arc::new(sim.clone()), config, pages);
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).always());
    for no in 0..dirty {
        it.write(no, 1).unwrap();
    }
    // Twice, so that they are hotter than all dirty ones.
    for no in (dirty..pages - extent_pages).chain(dirty..pages - extent_pages) {
        it.read(no);
    }
    it.pool.set_size((extents - 4) * EXTENT, ShrinkUrgency::Immediate);
    it.settle();
    assert_eq!(it.pool.resident_bytes(), (extents - 4) * EXTENT);
    assert_eq!(it.pool.stats().pages_dirty, u64::from(dirty), "nothing could be written");
    sim.clear_faults();
    it.pool.flush_all().unwrap();
    for no in 0..dirty {
        assert_eq!(it.read(no), 1);
    }
}
