use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::PoolConfig;
use crate::eviction::Eviction;
use crate::frames::EXTENT_BYTES;
use crate::page::{self, PageId, PageSize};
use crate::pool::Pool;
use crate::replacement::Access;
use crate::resize::ResizeState;
use crate::shrink_throttle::ShrinkUrgency;
use crate::space::Space;
use crate::storage::{SimStorage, Storage};
use crate::{Lsn, statement, test_files};

const SIZE: usize = 65536;
const EXTENT: u64 = EXTENT_BYTES as u64;
const EXTENTS: u64 = 8;
/// They leave a few frames free.
const PAGES: u32 = (EXTENTS * EXTENT / SIZE as u64) as u32 - 8;

/// A pool of eight extents, full of pages that say which they are; the file has them too.
fn full_pool() -> (Arc<Pool>, Arc<Space>) {
    let storage = SimStorage::new(5);
    let file = storage.create("16.tpd").unwrap();
    let config = PoolConfig {
        page_size: PageSize::new(SIZE).unwrap(),
        size_bytes: EXTENTS * EXTENT,
        huge_pages: false,
        background: false,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config, Arc::new(storage)).unwrap();
    let space = pool.open_space(16, test_files::create(file, 16, pool.page_size())).unwrap();
    for no in 0..PAGES {
        change(&pool, &space, no, u64::from(no));
    }
    assert!((0..PAGES).all(|no| is_resident(&pool, &space, no)));
    while pool.run_cleaner_step().unwrap() > 0 {}
    pool.flush_all().unwrap();
    (pool, space)
}

fn change(pool: &Pool, space: &Space, no: u32, value: u64) {
    statement::begin();
    let mut guard = pool.exclusive(space, no, Access::Normal).unwrap();
    page::set_page_id(guard.bytes_mut(), PageId::new(16, no));
    guard.bytes_mut()[32..40].copy_from_slice(&value.to_le_bytes());
    pool.mark_dirty(&mut guard, Lsn(100), Lsn(110));
}

fn value(pool: &Pool, space: &Space, no: u32) -> u64 {
    statement::begin();
    let guard = pool.shared(space, no, Access::Normal).unwrap();
    u64::from_le_bytes(guard[32..40].try_into().unwrap())
}

fn is_resident(pool: &Pool, space: &Space, no: u32) -> bool {
    pool.try_shared(space, no, Access::Prefetch).is_some()
}

fn frame_of(space: &Space, no: u32) -> u32 {
    space.existing_word(no).unwrap().load().frame().unwrap()
}

/// Puts the clean page into what looks like swap: its bytes are lost, so a thread that reads them
/// from the frame notices.
fn swap_out(pool: &Pool, space: &Space, no: u32) {
    let frame = frame_of(space, no);
    assert!(!pool.core.frames.descriptor(frame).is_dirty());
    pool.core.frames.forget(frame);
}

fn shrink(pool: &Pool, extents: u64) {
    pool.set_size(extents * EXTENT, ShrinkUrgency::Immediate);
    while pool.run_resize_step() {}
    let status = pool.resize_status();
    assert_eq!((&status.state, status.resident_bytes), (&ResizeState::Idle, extents * EXTENT));
}

#[test]
fn clean_pages_in_swap_leave_before_any_that_is_in_memory() {
    let (pool, space) = full_pool();
    pool.core.frames.seems_to_swap.store(true, Ordering::Relaxed);
    // Every third, also of the hottest.
    let is_out = |no: u32| no.is_multiple_of(3);
    for no in (0..PAGES).filter(|&no| is_out(no)) {
        swap_out(&pool, &space, no);
    }
    shrink(&pool, 6);
    let status = pool.resize_status();
    let gone = |no: &u32| !is_resident(&pool, &space, *no);
    let left = (0..PAGES).filter(gone).count();
    assert!((0..PAGES).filter(gone).all(is_out), "a page left that was in memory");
    // What had to leave, and what was in the extents that went.
    assert!(left >= PAGES as usize / 5 && left <= PAGES as usize / 3 + 1, "{left} left");
    assert_eq!(status.pages_dropped_from_swap, left as u64);
    for no in 0..PAGES {
        if !is_out(no) || gone(&no) {
            assert_eq!(value(&pool, &space, no), u64::from(no));
        }
    }
}

#[test]
fn dirty_pages_in_swap_are_not_dropped() {
    let (pool, space) = full_pool();
    pool.core.frames.seems_to_swap.store(true, Ordering::Relaxed);
    for no in 0..PAGES {
        match no % 4 {
            // What it is changed to is in its first part; the others are in swap still, and zero in
            // any case.
            0 => {
                swap_out(&pool, &space, no);
                change(&pool, &space, no, 1000 + u64::from(no));
            }
            1 => swap_out(&pool, &space, no),
            _ => {}
        }
    }
    // As far down that dirty ones must be written, too.
    shrink(&pool, 2);
    for no in 0..PAGES {
        let changed = if no % 4 == 0 { 1000 } else { 0 };
        if no % 4 != 1 || !is_resident(&pool, &space, no) {
            assert_eq!(value(&pool, &space, no), changed + u64::from(no));
        }
    }
}

#[test]
fn nothing_is_looked_for_where_nothing_is_in_swap() {
    let (pool, space) = full_pool();
    for no in 0..PAGES / 2 {
        swap_out(&pool, &space, no);
    }
    shrink(&pool, 6);
    assert_eq!(pool.resize_status().pages_dropped_from_swap, 0);
}

#[test]
fn clean_pages_in_swap_are_not_moved_though_none_need_leave() {
    let (pool, space) = full_pool();
    pool.core.frames.seems_to_swap.store(true, Ordering::Relaxed);
    // Half of the frames are free, in every extent, as after a large table was dropped.
    for no in (0..PAGES).step_by(2) {
        let frame = frame_of(&space, no);
        assert!(matches!(pool.evictor.try_evict(frame), Eviction::Done));
        pool.core.frames.give(frame);
    }
    for no in (1..PAGES).step_by(2) {
        swap_out(&pool, &space, no);
    }
    shrink(&pool, 6);
    let status = pool.resize_status();
    let left = (1..PAGES).step_by(2).filter(|&no| !is_resident(&pool, &space, no)).count();
    assert_eq!((status.pages_moved, status.pages_dropped_from_swap), (0, left as u64));
    // Those in the two extents that went, and no others.
    assert!((1..=EXTENT as usize / SIZE).contains(&left), "{left} left");
    for no in (1..PAGES).step_by(2).filter(|&no| !is_resident(&pool, &space, no)) {
        assert_eq!(value(&pool, &space, no), u64::from(no));
    }
}

#[test]
fn a_lower_limit_begins_nothing_anew() {
    let (pool, space) = full_pool();
    pool.core.frames.seems_to_swap.store(true, Ordering::Relaxed);
    (0..PAGES).step_by(3).for_each(|no| swap_out(&pool, &space, no));
    pool.set_size(5 * EXTENT, ShrinkUrgency::Immediate);
    while pool.resize.worker.lock().wave.is_empty() {
        assert!(pool.run_resize_step());
    }
    let far: Vec<u32> = (0..9).collect();
    let before = {
        let mut worker = pool.resize.worker.lock();
        (worker.found, worker.wave_len, worker.far_left) = (far.clone(), 7, 1000);
        (worker.wave.clone(), worker.sweep.next, worker.sweep.left)
    };
    assert!(before.1 > 0, "it has looked for pages in swap");
    for extents in [4, 3] {
        pool.resize.worker.lock().begin((extents * EXTENT) as u32 / SIZE as u32);
        let worker = pool.resize.worker.lock();
        assert_eq!((worker.wave.clone(), worker.sweep.next, worker.sweep.left), before);
        assert!(worker.sweep.finds_any());
        assert_eq!((&worker.found, worker.wave_len, worker.far_left), (&far, 7, 1000));
    }
    // One that is raised is another resize, and so is one after the pool was within its limit.
    pool.resize.worker.lock().begin(u32::MAX);
    let is_anew = |pool: &Pool| {
        let worker = pool.resize.worker.lock();
        worker.wave.is_empty() && worker.found.is_empty() && worker.wave_len == 1
    };
    assert!(is_anew(&pool));
    shrink(&pool, 4);
    pool.resize.worker.lock().found = far;
    pool.resize.worker.lock().begin(1);
    assert!(is_anew(&pool));
}

/// Each slice meets a lower limit than the one before, and the shrink ends all the same.
#[test]
fn a_limit_that_falls_with_every_slice_is_reached() {
    let (pool, space) = full_pool();
    pool.set_size(5 * EXTENT, ShrinkUrgency::Immediate);
    pool.run_resize_step();
    let frames = &pool.core.frames;
    let least = 2 * EXTENT as u32 / SIZE as u32;
    let mut longest_wave = 0;
    while frames.limit() > least {
        frames.set_limit(frames.limit() - 1);
        assert!(pool.run_resize_step());
        longest_wave = longest_wave.max(pool.resize.worker.lock().wave_len);
    }
    assert!(longest_wave > 2, "waves grow: {longest_wave}");
    while pool.run_resize_step() {}
    assert_eq!(pool.resident_bytes(), 2 * EXTENT);
    for no in 0..PAGES {
        assert_eq!(value(&pool, &space, no), u64::from(no));
    }
}

#[test]
fn another_round_goes_on_where_the_last_one_ended() {
    let (pool, space) = full_pool();
    pool.core.frames.seems_to_swap.store(true, Ordering::Relaxed);
    for no in 0..PAGES {
        swap_out(&pool, &space, no);
    }
    let mut before = 0;
    for extents in (1..EXTENTS).rev() {
        shrink(&pool, extents);
        let dropped = pool.resize_status().pages_dropped_from_swap;
        assert!(dropped > before, "{extents}: nothing was dropped");
        before = dropped;
    }
    assert_eq!(pool.resize_status().pages_moved, 0);
    assert!(
        (0..PAGES)
            .all(|no| is_resident(&pool, &space, no) || value(&pool, &space, no) == u64::from(no))
    );
}
