//! All operations in any order, against a model.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidepool_pool::storage::{Fault, FaultKind, Storage, StorageOp};
use tidepool_pool::{Access, Lsn, ResizeState, SharedGuard, ShrinkUrgency};

use crate::fixture::{EXTENT, EXTENT_PAGES, SIZE, change_of, simulated};
use crate::packed;

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
    /// page is what was last written; memory is within what is allowed; and in the end the pool
    /// gets to the size that was asked for.
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
                held.iter().any(|page: &SharedGuard<'_>| page.page_id().no == no)
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
                    it.pool.set_size(extents * EXTENT, ShrinkUrgency::Immediate);
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
        let file = packed::open(sim.open("16.tpd").unwrap(), 16, SIZE);
        for (no, change) in changes {
            let mut bytes = vec![0; SIZE];
            file.read(16, no, &mut bytes).unwrap();
            prop_assert_eq!(change_of(&bytes, no), change);
        }
    }
}
