//! What leaves and what stays, and what it costs.

use tidepool_pool::storage::{Fault, FaultKind, StorageOp};
use tidepool_pool::{ResizeState, ShrinkUrgency, statement};

use crate::fixture::{EXTENT, EXTENT_PAGES, SIZE, simulated};

#[test]
fn shrinking_evicts_the_coldest_and_keeps_the_rest_wherever_they_are() {
    let pages = 8 * EXTENT_PAGES;
    let (it, _) = simulated(8, pages);
    // Every fourth page is hot, in every extent.
    it.read_all(pages, |no| no % 4 == 0);
    assert_eq!(it.pool.resident_bytes(), 8 * EXTENT);
    it.pool.set_size(5 * EXTENT + 4711, ShrinkUrgency::Immediate);
    let status = it.pool.resize_status();
    assert_eq!((status.target_bytes, status.limit_bytes), (5 * EXTENT, 8 * EXTENT));
    assert_eq!((status.state, status.resizes), (ResizeState::Shrinking, 1));
    it.run();
    let status = it.pool.resize_status();
    assert_eq!((&status.state, status.resident_bytes), (&ResizeState::Idle, 5 * EXTENT));
    assert_eq!(status.limit_bytes, status.target_bytes);
    assert!(status.pages_moved > 0, "{status:?}");
    assert_eq!(status.longest_wait_us, 0, "no thread was there to wait");
    let resident = it.resident(pages);
    assert!(resident.len() as u32 >= 5 * EXTENT_PAGES - 8, "{}", resident.len());
    let hot = resident.iter().filter(|&no| no % 4 == 0).count() as u32;
    assert_eq!(hot, pages / 4, "not one hot page was evicted");
    // And back: what was given back is used again.
    it.pool.set_size(100 * EXTENT, ShrinkUrgency::Immediate);
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
    it.pool.set_size(2 * EXTENT, ShrinkUrgency::Immediate);
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
    it.pool.set_size(EXTENT, ShrinkUrgency::Immediate);
    for _ in 0..6 {
        assert!(it.pool.run_resize_step());
    }
    let midway = it.pool.resize_status().resident_bytes;
    assert!(midway > EXTENT, "{midway}");
    it.pool.set_size(16 * EXTENT, ShrinkUrgency::Immediate);
    it.run();
    assert_eq!((it.state(), it.pool.resident_bytes()), (ResizeState::Idle, midway));
    for no in 0..pages {
        assert_eq!(it.read(no), 1);
    }
    assert_eq!(it.pool.resident_bytes(), 16 * EXTENT);
    it.pool.set_size(8 * EXTENT, ShrinkUrgency::Immediate);
    it.pool.run_resize_step();
    it.pool.set_size(0, ShrinkUrgency::Immediate);
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
        it.pool.set_size(4 * EXTENT, ShrinkUrgency::Immediate);
        for _ in 0..steps {
            it.pool.run_resize_step();
        }
        it.pool.set_size(8 * EXTENT, ShrinkUrgency::Immediate);
        it.pool.set_size(4 * EXTENT, ShrinkUrgency::Immediate);
        let is_done = (0..10_000).any(|_| !it.pool.run_resize_step());
        assert!(is_done, "after {steps} steps: {:?}", it.pool.resize_status());
        assert_eq!((it.state(), it.pool.resident_bytes()), (ResizeState::Idle, 4 * EXTENT));
    }
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
    it.pool.set_size(EXTENT, ShrinkUrgency::Immediate);
    it.run();
    it.pool.set_size(8 * EXTENT, ShrinkUrgency::Immediate);
    for no in 0..2 * EXTENT_PAGES {
        it.write(no, 2).unwrap();
    }
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).always());
    let evicted = it.pool.stats().pages_evicted;
    let resident = it.pool.stats().pages_data as u32;
    it.pool.set_size(
        (resident + 4).next_multiple_of(EXTENT_PAGES) as u64 * SIZE as u64,
        ShrinkUrgency::Immediate,
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
    it.pool.set_size(10 * EXTENT, ShrinkUrgency::Immediate);
    it.run();
    assert_eq!((it.state(), it.pool.resident_bytes()), (ResizeState::Idle, 10 * EXTENT));
    let moved = it.pool.resize_status().pages_moved;
    assert!(moved <= EXTENT_PAGES as u64, "{moved}");
}
