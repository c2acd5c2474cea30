//! What a thread that panics had latched, or had marked as on its way to disk, is given back.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Lsn;
use crate::config::PoolConfig;
use crate::eviction::Eviction;
use crate::frames::EXTENT_BYTES;
use crate::page::{self, PageId, PageSize, PageType};
use crate::pool::Pool;
use crate::replacement::Access;
use crate::replacement::hooked::{Call, with_hook};
use crate::shrink_throttle::ShrinkUrgency;
use crate::space::Space;
use crate::storage::{AlignedBuf, SimStorage, Storage};
use crate::test_files;

const SPACE: u32 = 16;
const SIZE: usize = 16384;
const PAGES: u32 = 200;
const EXTENT: u64 = EXTENT_BYTES as u64;

struct Fixture {
    pool: Arc<Pool>,
    space: Arc<Space>,
    /// The policy panics at the next of these calls.
    panics: Arc<dyn Fn(Call) + Send + Sync>,
}

thread_local! {
    static CHECK_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// A pool of two extents, none of whose pages is resident, and a file with pages.
fn fixture() -> Fixture {
    let at = Arc::new((AtomicBool::new(false), parking_lot::Mutex::new(Call::Insert)));
    let (hook, armed) = (at.clone(), at);
    let hook = move |call: Call| {
        if call == *hook.1.lock() && hook.0.swap(false, Ordering::Relaxed) {
            panic!("on purpose, at {call:?}");
        }
    };
    let sim = SimStorage::new(1);
    let file = sim.create("16.tpd").unwrap();
    let config = PoolConfig {
        page_size: PageSize::new(SIZE).unwrap(),
        size_bytes: 2 * EXTENT,
        huge_pages: false,
        background: false,
        check_page: |_| {
            assert!(!CHECK_PANICS.take(), "on purpose, at a check");
            Ok(())
        },
        ..PoolConfig::default()
    };
    let pool = with_hook(hook, || Pool::new(config, Arc::new(sim)).unwrap());
    let file = test_files::create(file, SPACE, pool.page_size());
    let space = pool.open_space(SPACE, file).unwrap();
    space.grow_to(PAGES).unwrap();
    for no in 0..PAGES {
        change(&pool, &space, no, 100);
    }
    pool.flush_all().unwrap();
    evict_all(&pool);
    let panics = Arc::new(move |call| {
        *armed.1.lock() = call;
        armed.0.store(true, Ordering::Relaxed);
    });
    Fixture { pool, space, panics }
}

fn change(pool: &Pool, space: &Space, no: u32, lsn: u64) {
    let mut guard = pool.exclusive(space, no, Access::Normal).unwrap();
    page::set_page_id(guard.bytes_mut(), PageId::new(SPACE, no));
    page::set_page_type(guard.bytes_mut(), PageType::TREE_LEAF);
    pool.mark_dirty(&mut guard, Lsn(lsn), Lsn(lsn + 10));
}

fn evict_all(pool: &Pool) {
    for frame in 0..pool.core.frames.highest() {
        if let Eviction::Done = pool.evictor.try_evict(frame) {
            pool.core.frames.give(frame);
        }
    }
    assert_eq!(pool.stats().pages_data, 0);
}

fn panics<R>(run: impl FnOnce() -> R) {
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "it goes on");
}

impl Fixture {
    fn next_panics_at(&self, call: Call) {
        (self.panics)(call);
    }

    /// No thread has the page latched, and all of the pool's frames can be had.
    fn check(&self, no: u32) {
        if let Some(word) = self.space.existing_word(no) {
            assert!(!word.load().is_exclusive(), "page {no} is latched");
        }
        drop(self.pool.exclusive(&self.space, no, Access::Normal).unwrap());
        self.pool.flush_all().unwrap();
        evict_all(&self.pool);
        let stats = self.pool.stats();
        assert_eq!(stats.pages_free, stats.pages_total);
        let available = self.pool.core.frames.available();
        assert_eq!(u64::from(available), stats.pages_total, "a frame is lost");
    }

    fn is_resident(&self, no: u32) -> bool {
        self.pool.try_shared(&self.space, no, Access::Prefetch).is_some()
    }
}

#[test]
fn a_page_whose_check_panics_is_read_by_the_query_that_wants_it() {
    let it = fixture();
    CHECK_PANICS.set(true);
    it.pool.prefetch(&it.space, &[3, 4, 5], Access::Prefetch);
    assert_eq!([3, 4, 5].map(|no| it.is_resident(no)), [false, true, true]);
    it.check(3);
    CHECK_PANICS.set(true);
    let mut buffer = AlignedBuf::zeroed(64 * SIZE);
    let warmed = it.pool.warm(&it.space, &[(3, 1), (4, 1), (5, 1)], &mut buffer);
    assert_eq!((warmed.pages, warmed.tried), (2, 3));
    it.check(3);
}

#[test]
fn pages_that_a_read_ahead_panics_with_are_given_back() {
    for (call, stays) in [(Call::Insert, false), (Call::Warm, true)] {
        let it = fixture();
        it.next_panics_at(call);
        let mut buffer = AlignedBuf::zeroed(64 * SIZE);
        panics(|| it.pool.warm(&it.space, &[(3, 1), (4, 1)], &mut buffer));
        assert_eq!((it.is_resident(3), it.is_resident(4)), (stays, false), "{call:?}");
        it.check(3);
        it.check(4);
    }
    let it = fixture();
    it.next_panics_at(Call::Insert);
    panics(|| it.pool.prefetch(&it.space, &[3, 4], Access::Prefetch));
    it.check(3);
    it.check(4);
}

#[test]
fn a_page_that_a_query_panics_with_while_it_comes_is_given_back() {
    let it = fixture();
    it.next_panics_at(Call::Insert);
    panics(|| drop(it.pool.shared(&it.space, 3, Access::Normal)));
    it.check(3);
    it.next_panics_at(Call::Insert);
    panics(|| drop(it.pool.new_page(&it.space, PAGES + 1)));
    it.check(PAGES + 1);
}

#[test]
fn a_page_whose_eviction_panics_stays() {
    let it = fixture();
    drop(it.pool.shared(&it.space, 3, Access::Normal).unwrap());
    let frame = it.space.existing_word(3).unwrap().load().frame().unwrap();
    it.next_panics_at(Call::WasAccessed);
    panics(|| it.pool.evictor.try_evict(frame));
    assert!(it.is_resident(3));
    it.check(3);
}

#[test]
fn a_page_whose_write_panics_is_as_dirty_as_before() {
    let it = fixture();
    change(&it.pool, &it.space, 3, 200);
    change(&it.pool, &it.space, 4, 300);
    let set_lsn = |lsn| {
        let mut guard = it.pool.exclusive(&it.space, 4, Access::Normal).unwrap();
        page::set_page_lsn(guard.bytes_mut(), Lsn(lsn));
    };
    // Less than where its change began.
    set_lsn(250);
    panics(|| it.pool.flush_all());
    assert_eq!((it.pool.stats().pages_dirty, it.pool.oldest_dirty_lsn()), (2, Some(Lsn(200))));
    for no in [3, 4] {
        let frame = it.space.existing_word(no).unwrap().load().frame().unwrap();
        let descriptor = it.pool.core.frames.descriptor(frame);
        assert_eq!(descriptor.flushing.load(Ordering::Relaxed), 0, "page {no} is in flight");
    }
    set_lsn(310);
    it.pool.flush_all().unwrap();
    assert_eq!(it.pool.stats().pages_dirty, 0);
    it.check(4);
}

#[test]
fn a_page_whose_move_panics_stays_where_it_is() {
    let it = fixture();
    for no in 0..PAGES {
        drop(it.pool.shared(&it.space, no, Access::Normal).unwrap());
    }
    it.pool.set_size(EXTENT, ShrinkUrgency::Immediate);
    it.next_panics_at(Call::Relocate);
    panics(|| while it.pool.run_resize_step() {});
    for no in 0..PAGES {
        let word = it.space.existing_word(no).unwrap().load();
        assert!(!word.is_exclusive(), "page {no} is latched");
    }
}

#[test]
fn a_page_that_the_closing_of_its_space_panics_at_is_not_latched() {
    let it = fixture();
    change(&it.pool, &it.space, 3, 200);
    let word = it.space.existing_word(3).unwrap();
    let (core, frame) = (&it.pool.core, word.load().frame().unwrap());
    // As no batch leaves it.
    assert!(core.dirty.begin(&core.frames, frame));
    panics(|| it.pool.close_space(&it.space, true));
    assert!(!word.load().is_exclusive());
}
