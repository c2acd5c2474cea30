//! Courses of swapping, fast and slow, through the whole decision.

use super::super::{Decision, Governor, PoolState, Signal};
use super::*;
use crate::cgroup::Level;
use crate::signals::{Commit, Place, Signals, share_bytes};

const GIB: u64 = 1 << 30;
const TICK: Duration = Duration::from_millis(50);
const LIMIT: u64 = 10 * GIB;

/// A process in a cgroup with 1 GiB beside the pool, on a machine with memory to spare.
struct Group {
    governor: Governor,
    pool: PoolState,
    now: Duration,
    others: u64,
    swapped: u64,
    /// Whether the process's status can be read.
    tells_swapped: bool,
    /// The pool consists of pieces of this many bytes.
    unit: u64,
}

impl Group {
    /// One whose pool has all that it may have.
    fn new() -> Group {
        let pool = PoolState {
            resident_bytes: 8 * GIB,
            limit_bytes: 8 * GIB,
            floor_bytes: 16 * MIB,
            ceiling_bytes: u64::MAX,
            wants_more: true,
        };
        let governor = Governor::new();
        let (now, others) = (Duration::ZERO, GIB);
        let mut group =
            Group { governor, pool, now, others, swapped: 0, tells_swapped: true, unit: 1 };
        group.tick(0).unwrap();
        group.pool.resident_bytes = group.pool.limit_bytes;
        assert_eq!(group.pool.limit_bytes, LIMIT - GIB - share_bytes(LIMIT));
        group
    }

    fn signals(&self) -> Signals {
        let level = Level {
            directory: "/db".into(),
            limit_bytes: Some(LIMIT),
            usage_bytes: (self.pool.resident_bytes + self.others).saturating_sub(self.swapped),
            file_cache_bytes: 0,
            limit_hits: 0,
        };
        Signals {
            at: self.now,
            levels: vec![level],
            machine_total_bytes: Some(256 * GIB),
            machine_available_bytes: Some(128 * GIB),
            own_swapped_bytes: Some(self.swapped).filter(|_| self.tells_swapped),
            ..Signals::default()
        }
    }

    /// A reading after this many more bytes have gone to swap. The pool obeys at once, and fills.
    fn tick(&mut self, swapped: u64) -> Option<Decision> {
        self.now += TICK;
        self.swapped += swapped;
        let decision = self.governor.decide(&self.signals(), &self.pool);
        if let Some(decision) = &decision {
            self.pool.limit_bytes = decision.to_bytes / self.unit * self.unit;
            self.pool.resident_bytes = self.pool.limit_bytes;
            self.governor.took(self.now, decision.signal, self.pool.limit_bytes);
        }
        decision
    }
}

#[test]
fn slow_swapping_shrinks_the_pool_and_never_lets_it_grow() {
    let mut group = Group::new();
    let full = group.pool.limit_bytes;
    // 10 MB/s until 2 GiB are in swap.
    let mut signals = Vec::new();
    while group.swapped < 2 * GIB {
        signals.extend(group.tick(MIB / 2).map(|decision| decision.signal));
        assert!(group.pool.limit_bytes <= full, "{} MiB", group.pool.limit_bytes / MIB);
    }
    assert!(signals.len() > 100 && signals.iter().all(|&signal| signal == Signal::OwnSwap));
    // The pool is ahead of it, and not by far.
    let shrunk = full - group.pool.limit_bytes;
    assert!((2 * GIB..=4 * GIB + GIB / 10).contains(&shrunk), "{} MiB", shrunk / MIB);
}

#[test]
fn what_goes_to_swap_even_slower_is_no_room_to_grow_into() {
    let mut group = Group::new();
    let full = group.pool.limit_bytes;
    while group.swapped < GIB {
        assert_eq!(group.tick(64 << 10), None);
    }
    // Nor when that has ended, nor when it comes back.
    for _ in 0..1000 {
        assert_eq!(group.tick(0), None);
    }
    while group.swapped > 0 {
        group.swapped -= 64 << 10;
        assert_eq!(group.tick(0), None);
    }
    assert_eq!(group.pool.limit_bytes, full);
}

#[test]
fn nothing_grows_while_a_little_goes_to_swap() {
    let mut group = Group::new();
    group.others = 2 * GIB;
    group.tick(0).unwrap();
    group.others = GIB;
    for _ in 0..200 {
        assert_eq!(group.tick(16 << 10), None);
    }
    // A page now and then is nothing to wait for.
    let back = (0..200).find_map(|_| group.tick(4 << 10)).unwrap();
    assert_eq!(back.signal, Signal::RoomLasted);
}

#[test]
fn memory_that_nobody_misses_costs_the_pool_its_size_for_a_while_only() {
    let mut group = Group::new();
    let full = group.pool.limit_bytes;
    for _ in 0..200 {
        group.tick(MIB / 2);
    }
    let least = group.pool.limit_bytes;
    assert!(least >= full - 210 * MIB, "{} MiB of {}", least / MIB, full / MIB);
    for _ in 0..200 {
        group.tick(0);
    }
    assert_eq!(group.pool.limit_bytes, full);
}

#[test]
fn own_memory_in_swap_shrinks_whatever_the_room_says() {
    let mut governor = Governor::new();
    let mut pool = PoolState {
        resident_bytes: GIB,
        limit_bytes: GIB,
        floor_bytes: 16 * MIB,
        ceiling_bytes: GIB,
        wants_more: true,
    };
    let mut signals = Signals {
        machine_available_bytes: Some(8 * GIB),
        machine_total_bytes: Some(16 * GIB),
        own_swapped_bytes: Some(0),
        ..Signals::default()
    };
    governor.decide(&signals, &pool);
    signals.at += TICK;
    signals.own_swapped_bytes = Some(100 * MIB);
    let decision = governor.decide(&signals, &pool).unwrap();
    assert_eq!((decision.signal, decision.to_bytes), (Signal::OwnSwap, GIB - 200 * MIB));
    pool.limit_bytes = decision.to_bytes;
    pool.resident_bytes = decision.to_bytes;
    // No growth back during the hold, though there is plenty of room; then it comes back by itself.
    let mut back_at = None;
    for _ in 0..400 {
        signals.at += TICK;
        if let Some(decision) = governor.decide(&signals, &pool) {
            assert!(signals.at >= HOLD_AFTER_TROUBLE);
            pool.limit_bytes = decision.to_bytes;
            back_at.get_or_insert(signals.at);
        }
    }
    assert!(back_at.unwrap() < Duration::from_secs(10));
    assert_eq!(pool.limit_bytes, GIB);
}

#[test]
fn a_pool_in_large_pieces_gives_back_no_more_of_them_than_others_do() {
    let mut group = Group::new();
    group.unit = 128 * MIB;
    let full = group.pool.limit_bytes;
    for _ in 0..200 {
        group.tick(MIB / 2);
    }
    let least = group.pool.limit_bytes;
    assert!(least > full - 210 * MIB - 128 * MIB, "{} MiB of {}", least / MIB, full / MIB);
}

#[test]
fn fast_swapping_is_answered_by_a_good_part_of_the_pool() {
    let mut group = Group::new();
    let full = group.pool.limit_bytes;
    let decision = group.tick(11 * MIB).unwrap();
    assert_eq!((decision.signal, decision.to_bytes), (Signal::OwnSwap, full - full / FAST_SHARE));
    assert_eq!(decision.reason, "11 MiB of this process went to swap");
    // It is not answered twice.
    for _ in 0..40 {
        assert_eq!(group.tick(0), None);
    }
}

#[test]
fn memory_that_leaves_swap_hides_none_that_goes_there() {
    let mut watch = SwapWatch::default();
    let mut at = Duration::ZERO;
    for mib in [300, 300, 100, 104, 108] {
        at += TICK;
        watch.observe(at, Some(mib * MIB), 0);
    }
    assert_eq!(watch.risen_bytes(), 8 * MIB);
    // What is not seen does not count afterwards.
    watch.observe(at + TICK, None, 0);
    watch.observe(at + 2 * TICK, Some(900 * MIB), 0);
    assert_eq!((watch.risen_bytes(), watch.ask(at, GIB)), (0, None));
}

#[test]
fn no_target_lies_above_a_limit_less_its_headroom() {
    let mut group = Group::new();
    group.tells_swapped = false;
    group.swapped = 4 * GIB;
    let allowed = group.governor.binding(&group.signals(), &group.pool).unwrap();
    assert_eq!(allowed.pool_bytes, LIMIT - allowed.headroom_bytes);
}

#[test]
fn what_was_promised_is_not_counted_twice_when_it_is_in_swap() {
    let mut group = Group::new();
    group.swapped = GIB;
    let commit = Commit { limit_bytes: LIMIT, used_bytes: group.pool.resident_bytes + 2 * GIB };
    let signals = Signals { commit: Some(commit), levels: Vec::new(), ..group.signals() };
    let allowed = group.governor.binding(&signals, &group.pool).unwrap();
    assert_eq!(allowed.room.place, Place::Commit);
    assert_eq!(allowed.pool_bytes, LIMIT - 2 * GIB - allowed.headroom_bytes);
}

/// A limit that is halved below a process while the kernel swaps what is over it.
struct Halved {
    group: Group,
    /// The limit that the kernel goes by.
    limit: u64,
    /// Whether the limit shows only once the usage has come down to it, as in version 1.
    shows_late: bool,
    /// What the kernel swaps, and the pool gives back, in a tick, bytes.
    swaps: u64,
    drains: u64,
    swapped_out: u64,
}

/// How often the thread reads while memory goes to swap.
const SWAPPING_TICK: Duration = Duration::from_millis(5);

impl Halved {
    fn new(shows_late: bool, swaps: u64) -> Halved {
        let group = Group::new();
        let drains = 8 * MIB;
        Halved { group, limit: LIMIT / 20, shows_late, swaps, drains, swapped_out: 0 }
    }

    /// A tenth of the [`Group`], so that the pool has some 850 MiB and the limit is 1 GiB.
    fn small(mut self) -> Halved {
        let group = &mut self.group;
        group.others = 100 * MIB;
        group.pool.limit_bytes = 860 * MIB;
        group.pool.resident_bytes = 860 * MIB;
        self
    }

    fn usage(&self) -> u64 {
        (self.group.pool.resident_bytes + self.group.others) - self.group.swapped
    }

    fn tick(&mut self) -> Option<Decision> {
        let over = self.usage().saturating_sub(self.limit).min(self.swaps);
        self.group.swapped += over;
        self.swapped_out += over;
        self.group.now += SWAPPING_TICK;
        let is_shown = !self.shows_late || self.usage() <= self.limit;
        let mut signals = self.group.signals();
        signals.levels[0].limit_bytes = Some(if is_shown { self.limit } else { 2 * self.limit });
        let pool = &mut self.group.pool;
        let decision = self.group.governor.decide(&signals, pool);
        if let Some(decision) = &decision {
            pool.limit_bytes = decision.to_bytes;
            self.group.governor.took(self.group.now, decision.signal, decision.to_bytes);
        }
        // What is in swap goes first; a pool that may grow fills.
        let drained = pool.resident_bytes.saturating_sub(pool.limit_bytes).min(self.drains);
        pool.resident_bytes -= drained;
        self.group.swapped -= drained.min(self.group.swapped);
        if pool.resident_bytes < pool.limit_bytes {
            pool.resident_bytes = (pool.resident_bytes + MIB).min(pool.limit_bytes);
        }
        decision
    }

    /// The least limit of the pool over `seconds`, and the largest since then.
    fn run(&mut self, seconds: u32) -> (u64, u64) {
        let (mut least, mut most) = (u64::MAX, 0);
        for _ in 0..Duration::from_secs(seconds.into()).as_millis() / SWAPPING_TICK.as_millis() {
            self.tick();
            let limit = self.group.pool.limit_bytes;
            if limit < least {
                (least, most) = (limit, limit);
            }
            most = most.max(limit);
        }
        (least, most)
    }
}

#[test]
fn a_limit_that_is_halved_leaves_the_pool_what_fits() {
    // By whether the limit shows late, and the MiB that the kernel swaps in a tick: fast, slow, and
    // all of it before the first reading.
    for (shows_late, swaps, swapped_out_most) in [
        (false, 2, 120),
        (false, 1, 60),
        (false, 1000, 470),
        (true, 2, 180),
        (true, 1, 100),
        (true, 1000, 470),
    ] {
        let mut machine = Halved::new(shows_late, swaps * MIB).small();
        for _ in 0..1000 {
            machine.limit = LIMIT / 10;
            machine.tick();
        }
        machine.limit = LIMIT / 20;
        let fits = machine.limit - machine.group.others - machine.limit / 20;
        let (least, most) = machine.run(20);
        let figures = format!(
            "late {shows_late}, {swaps} MiB a tick: {} to {} MiB, {} fit, {} MiB went to swap",
            least / MIB,
            most / MIB,
            fits / MIB,
            machine.swapped_out / MIB
        );
        // A limit that can be seen leaves nothing to guess.
        assert!(least >= if shows_late { fits / 2 } else { fits * 95 / 100 }, "{figures}");
        assert!(most <= fits, "{figures}");
        let now = machine.group.pool.limit_bytes;
        assert!(now >= fits * 95 / 100, "{} MiB: {figures}", now / MIB);
        assert!(machine.swapped_out <= swapped_out_most * MIB, "{figures}");
    }
}
