//! Courses of readings with stalls in them, through the whole decision.

use super::super::{Decision, Governor, HOLD_AFTER_TROUBLE, MIB, Signal};
use super::*;
use crate::cgroup::Level;
use crate::signals::{Stall, share_bytes};

const GIB: u64 = 1 << 30;
const TICK: Duration = Duration::from_millis(50);

/// A process in a cgroup of version 2, on a machine with memory to spare.
struct Group {
    governor: Governor,
    pool: PoolState,
    now: Duration,
    limit: u64,
    /// What the group holds beside the pool, file cache apart.
    others: u64,
    file_cache: u64,
    own_swapped: u64,
    stall: Stall,
}

impl Group {
    /// One whose first reading has been answered.
    fn new(limit: u64, resident: u64) -> Group {
        let pool = PoolState {
            resident_bytes: resident,
            limit_bytes: resident,
            floor_bytes: 16 * MIB,
            ceiling_bytes: u64::MAX,
            wants_more: true,
        };
        let place = Place::Cgroup("/db".into());
        let mut group = Group {
            governor: Governor::new(),
            pool,
            now: Duration::ZERO,
            limit,
            others: 100 * MIB,
            file_cache: 0,
            own_swapped: 0,
            stall: Stall { place, total_us: 1_000_000, refaults: Some(Refaults::default()) },
        };
        group.read_after(Duration::ZERO, 0).unwrap();
        group
    }

    /// Later, after a stall for so long, there is another reading. The pool obeys at once.
    fn read_after(&mut self, time: Duration, stalled_us: u64) -> Option<Decision> {
        self.now += time;
        self.stall.total_us += stalled_us;
        let level = Level {
            directory: "/db".into(),
            limit_bytes: Some(self.limit),
            usage_bytes: self.pool.resident_bytes + self.others + self.file_cache,
            file_cache_bytes: self.file_cache,
            limit_hits: 0,
        };
        let signals = Signals {
            at: self.now,
            levels: vec![level],
            machine_total_bytes: Some(256 * GIB),
            machine_available_bytes: Some(128 * GIB),
            own_swapped_bytes: Some(self.own_swapped),
            stall: Some(self.stall.clone()),
            ..Signals::default()
        };
        let decision = self.governor.decide(&signals, &self.pool)?;
        self.pool.limit_bytes = decision.to_bytes;
        self.pool.resident_bytes = self.pool.resident_bytes.min(decision.to_bytes);
        Some(decision)
    }

    fn tick(&mut self, stalled_us: u64) -> Option<Decision> {
        self.read_after(TICK, stalled_us)
    }

    fn refault(&mut self, anon_pages: u64, file_pages: u64) {
        let refaults = self.stall.refaults.as_mut().unwrap();
        refaults.anon_pages += anon_pages;
        refaults.file_pages += file_pages;
    }
}

#[test]
fn a_pool_that_warms_on_a_fragmented_machine_keeps_its_limit() {
    let mut group = Group::new(64 * GIB, 2 * GIB);
    let full = group.pool.limit_bytes;
    assert!(full > 60 * GIB);
    // Each extent takes 26 ms of compaction.
    for tick in 0..4000 {
        assert_eq!(group.tick(26_000), None, "{tick}");
        group.pool.resident_bytes = (group.pool.resident_bytes + 16 * MIB).min(full);
    }
    assert_eq!(group.pool.resident_bytes, full);
}

#[test]
fn file_cache_that_fills_the_cgroup_does_not_shrink_the_pool() {
    let mut group = Group::new(8 * GIB, GIB);
    group.pool.resident_bytes = group.pool.limit_bytes;
    let full = group.pool.limit_bytes;
    // A backup: whatever the pool leaves is file cache, and who wants memory drops some of it
    // first. The rest breathes, so there is now a bit more than the headroom, now a bit less.
    for tick in 0..4000 {
        group.others = 100 * MIB + tick % 7 * MIB;
        group.file_cache = group.limit - group.pool.resident_bytes - group.others;
        let stalled_us = 7_500 + tick % 5 * 10_000;
        group.refault(0, 1000);
        assert_eq!(group.tick(stalled_us), None, "{tick}");
    }
    assert_eq!(group.pool.limit_bytes, full);
}

#[test]
fn a_neighbour_that_takes_the_room_is_answered_at_once_stalled_or_not() {
    for stalled_us in [0, 40_000] {
        let mut group = Group::new(8 * GIB, GIB);
        group.pool.resident_bytes = group.pool.limit_bytes;
        let full = group.pool.limit_bytes;
        group.tick(0);
        let took = share_bytes(group.limit) - 20 * MIB;
        group.others += took;
        let decision = group.tick(stalled_us).unwrap();
        assert!(decision.to_bytes <= full - took, "{decision:?}");
    }
}

#[test]
fn stalls_with_hardly_any_room_left_shrink_a_pool_that_lags_behind() {
    let mut group = Group::new(8 * GIB, GIB);
    let full = group.pool.limit_bytes;
    group.pool.resident_bytes = full;
    group.tick(0);
    group.others += share_bytes(group.limit) - 20 * MIB;
    let found = (1..=10).find_map(|tick| {
        let decision = group.tick(25_000)?;
        // It has the new target, and still holds all of it.
        group.pool.resident_bytes = full;
        (decision.signal == Signal::Stall).then_some((tick, decision))
    });
    let (ticks, decision) = found.unwrap();
    assert!(ticks <= 3, "50 ms of stall are a tenth of the window: {ticks}");
    assert!(decision.to_bytes < full * 19 / 20);
    assert!(
        decision.reason.ends_with("and cgroup /db has 20 MiB left of 8192 MiB"),
        "{decision:?}"
    );
}

#[test]
fn stalls_while_memory_goes_to_swap_or_comes_back_shrink_whatever_the_room_says() {
    let stalled = |swapped: u64, refaults: u64| {
        let mut group = Group::new(64 * GIB, 2 * GIB);
        (0..10).find_map(|_| {
            group.own_swapped += swapped;
            group.refault(refaults, 0);
            group.tick(20_000)
        })
    };
    // Between two readings either is too little to count by itself.
    for (swapped, refaults) in [(MIB / 2, 0), (0, 5)] {
        let decision = stalled(swapped, refaults).unwrap();
        assert_eq!(decision.signal, Signal::Stall);
        assert!((3 * GIB / 2..19 * GIB / 10).contains(&decision.to_bytes), "{decision:?}");
    }
    assert_eq!(stalled(MIB / 20, 1), None, "a daemon wakes up");
}

#[test]
fn file_pages_that_come_back_count_where_hardly_any_are_left() {
    // A limit that can't be seen takes them.
    let stalled = |file_cache: u64| {
        let mut group = Group::new(64 * GIB, 2 * GIB);
        group.file_cache = file_cache;
        (0..10).find_map(|_| {
            group.refault(0, 50);
            group.tick(20_000)
        })
    };
    assert_eq!(stalled(4 * MIB).unwrap().signal, Signal::Stall);
    assert_eq!(stalled(100 * MIB), None);
}

#[test]
fn a_moment_between_two_readings_is_no_tenth_of_the_time() {
    let mut group = Group::new(64 * GIB, 2 * GIB);
    let glance = Duration::from_millis(2);
    for tick in 0..2000 {
        // All of one time between two readings in sixteen, with pages that come back: 6 % of the
        // time.
        let stalled_us = if tick % 16 == 0 { 2_000 } else { 0 };
        group.refault(2, 0);
        assert_eq!(group.read_after(glance, stalled_us), None, "{tick}");
    }
}

#[test]
fn a_step_that_does_not_lower_the_stall_is_the_last_for_a_minute() {
    let mut group = Group::new(64 * GIB, 2 * GIB);
    let full = group.pool.limit_bytes;
    let mut steps = Vec::new();
    while group.now < Duration::from_secs(50) {
        group.refault(10, 0);
        // It is not the pool's doing, and wavers.
        let stalled_us = if group.now.as_millis() % 1000 < 500 { 15_000 } else { 16_000 };
        if let Some(decision) = group.tick(stalled_us) {
            steps.push((group.now, decision.signal, decision.to_bytes));
        }
    }
    // The first could not be judged yet, the second could, and after the verdict nothing is held
    // back.
    let [(_, Signal::Stall, _), (second, Signal::Stall, _), (back, Signal::RoomLasted, size)] =
        steps[..]
    else {
        panic!("{steps:?}");
    };
    assert!(back - second <= HOLD_AFTER_TROUBLE + STALL_WINDOW, "{steps:?}");
    assert_eq!(size, full);
    let again = loop {
        group.refault(10, 0);
        if let Some(decision) = group.tick(15_000) {
            break decision;
        }
    };
    assert_eq!((again.signal, group.now - second), (Signal::Stall, USELESS_MEMORY));
}

#[test]
fn steps_that_lower_the_stall_go_on_until_it_is_gone() {
    let mut group = Group::new(64 * GIB, 4 * GIB);
    let fits = 3 * GIB;
    let mut steps = 0;
    while group.now < Duration::from_secs(5) {
        let excess = group.pool.resident_bytes.saturating_sub(fits);
        group.refault(excess / MIB, 0);
        // Half of the time for each GiB too many.
        if let Some(decision) = group.tick(excess / MIB * 25_000 / 1024) {
            assert_eq!(decision.signal, Signal::Stall);
            steps += 1;
        }
    }
    assert!(steps > 1, "{steps}");
    // What is left of the stall is below a tenth.
    let size = group.pool.resident_bytes;
    assert!(size < fits + GIB / 5 && size > fits * 4 / 5, "{} MiB", size / MIB);
}

/// A stall of the machine, in readings without a cgroup.
fn stalled_machine(place: &Place, stalled_us: u64, available: u64) -> Option<Decision> {
    let pool = PoolState {
        resident_bytes: GIB,
        limit_bytes: GIB,
        floor_bytes: 16 * MIB,
        ceiling_bytes: GIB,
        wants_more: true,
    };
    let mut governor = Governor::new();
    let mut stall = Stall { place: place.clone(), total_us: 0, refaults: None };
    let mut signals = Signals {
        machine_available_bytes: Some(available),
        machine_total_bytes: Some(16 * GIB),
        stall: Some(stall.clone()),
        ..Signals::default()
    };
    governor.decide(&signals, &pool);
    // The pool does not follow, so the room stays what it is; what is said last counts.
    let decisions = (0..3).filter_map(|_| {
        signals.at += TICK;
        stall.total_us += stalled_us;
        signals.stall = Some(stall.clone());
        governor.decide(&signals, &pool)
    });
    decisions.max_by_key(|decision| decision.signal == Signal::Stall)
}

#[test]
fn a_stall_shrinks_only_if_memory_is_short() {
    let own = Place::Cgroup("/db".into());
    let signal = |place, stalled_us, available| {
        stalled_machine(place, stalled_us, available).map(|decision| decision.signal)
    };
    for place in [&own, &Place::Machine] {
        assert_eq!(signal(place, 25_000, 8 * GIB), None);
        // The first reading shrinks for the room that is gone, the second for the stall, which is a
        // tenth of the window by then.
        assert_eq!(signal(place, 25_000, 10 * MIB), Some(Signal::Stall));
        assert_eq!(signal(place, 1_000, 10 * MIB), Some(Signal::RoomShrank));
    }
}

#[test]
fn totals_of_different_places_are_not_compared() {
    let mut group = Group::new(8 * GIB, GIB);
    group.pool.resident_bytes = group.pool.limit_bytes;
    let place = |name: &str| Place::Cgroup(name.into());
    // The process is moved, its group's file vanishes, it is there again; each total is larger than
    // the one before.
    let places = [place("/a"), place("/b"), Place::Machine, place("/b")];
    for _ in 0..10 {
        for place in &places {
            group.stall.place = place.clone();
            group.refault(1000, 0);
            assert_eq!(group.tick(90_000_000), None, "{place:?}");
        }
    }
    // A total that falls is of another group, too.
    group.stall.total_us = 0;
    group.refault(1000, 0);
    assert_eq!(group.tick(5_000_000), None);
}
