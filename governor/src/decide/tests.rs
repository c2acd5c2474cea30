//! The governor on a simulated machine: a limit, neighbours that breathe, and a pool that fills at
//! a given pace.

use super::*;
use crate::cgroup::Level;
use crate::signals::{Commit, HEADROOM_MIN_BYTES, HEADROOM_SHARE, Refaults, Stall};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const TICK: Duration = Duration::from_millis(50);

/// One cgroup with governed pools and a neighbour in it.
struct Machine {
    limit: u64,
    neighbour: u64,
    now: Duration,
    pools: Vec<(Governor, PoolState)>,
    /// Bytes by which usage ever exceeded the limit: what a kernel would have swapped or killed
    /// for.
    worst_excess: u64,
    shrinks: usize,
    grows: usize,
}

impl Machine {
    fn new(limit: u64, pools: usize) -> Self {
        let state = PoolState {
            resident_bytes: 0,
            limit_bytes: 0,
            floor_bytes: 16 * MIB,
            ceiling_bytes: u64::MAX,
            wants_more: true,
        };
        Machine {
            limit,
            neighbour: 0,
            now: Duration::ZERO,
            pools: (0..pools).map(|_| (Governor::new(), state)).collect(),
            worst_excess: 0,
            shrinks: 0,
            grows: 0,
        }
    }

    fn usage(&self) -> u64 {
        self.neighbour + self.pools.iter().map(|(_, p)| p.resident_bytes).sum::<u64>()
    }

    fn signals(&self) -> Signals {
        let level = Level {
            directory: "/db".into(),
            limit_bytes: Some(self.limit),
            usage_bytes: self.usage(),
            file_cache_bytes: 0,
            limit_hits: 0,
        };
        Signals {
            at: self.now,
            levels: vec![level],
            machine_available_bytes: Some(64 * GIB),
            machine_total_bytes: Some(64 * GIB),
            ..Signals::default()
        }
    }

    /// One tick: the neighbour is at `neighbour`, pools fill by up to 50 MiB, every governor looks
    /// once and its pool obeys at once.
    fn tick(&mut self, neighbour: u64) {
        self.now += TICK;
        self.neighbour = neighbour;
        for index in 0..self.pools.len() {
            let signals = self.signals();
            let (governor, pool) = &mut self.pools[index];
            if let Some(decision) = governor.decide(&signals, pool) {
                match decision.to_bytes.cmp(&pool.limit_bytes) {
                    std::cmp::Ordering::Less => self.shrinks += 1,
                    std::cmp::Ordering::Greater => self.grows += 1,
                    std::cmp::Ordering::Equal => {}
                }
                pool.limit_bytes = decision.to_bytes;
                pool.resident_bytes = pool.resident_bytes.min(pool.limit_bytes);
                governor.took(self.now, decision.signal, pool.limit_bytes);
            }
        }
        self.worst_excess = self.worst_excess.max(self.usage().saturating_sub(self.limit));
        for (_, pool) in &mut self.pools {
            pool.resident_bytes = (pool.resident_bytes + 50 * MIB).min(pool.limit_bytes);
        }
    }

    fn run(&mut self, time: Duration, neighbour: impl Fn(Duration) -> u64) {
        let start = self.now;
        while self.now - start < time {
            let at = self.now - start;
            self.tick(neighbour(at));
        }
    }
}

#[test]
fn alone_the_pool_takes_all_but_the_headroom_and_stays_there() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 100 * MIB);
    let size = machine.pools[0].1.resident_bytes;
    assert_eq!(size, GIB - 100 * MIB - GIB / HEADROOM_SHARE);
    let decisions = machine.shrinks + machine.grows;
    machine.run(Duration::from_secs(600), |_| 100 * MIB);
    assert_eq!(machine.shrinks + machine.grows, decisions);
    assert_eq!(machine.worst_excess, 0);
}

#[test]
fn a_ramp_is_followed_without_excess_and_the_size_comes_back_within_ten_seconds() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 50 * MIB);
    let full = machine.pools[0].1.resident_bytes;
    machine
        .run(Duration::from_secs(10), |at| 50 * MIB + at.as_millis() as u64 * (512 * MIB / 10_000));
    assert_eq!(machine.worst_excess, 0);
    assert!(machine.pools[0].1.resident_bytes < full - 450 * MIB);
    machine.run(Duration::from_secs(10), |_| 50 * MIB);
    assert!(
        machine.pools[0].1.resident_bytes >= full * 97 / 100,
        "{} of {full}",
        machine.pools[0].1.resident_bytes
    );
}

#[test]
fn a_sawtooth_faster_than_the_window_does_not_make_the_pool_oscillate() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 50 * MIB);
    let before = machine.grows;
    let tooth = |at: Duration| 50 * MIB + (at.as_millis() as u64 % 2500) * (400 * MIB / 2500);
    machine.run(Duration::from_secs(120), tooth);
    assert_eq!(machine.grows, before, "the pool grew into room that never lasted");
    assert_eq!(machine.worst_excess, 0);
}

#[test]
fn a_slow_leak_is_met_in_many_small_steps() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 50 * MIB);
    machine.run(Duration::from_secs(300), |at| {
        50 * MIB + at.as_millis() as u64 * (600 * MIB / 300_000)
    });
    assert_eq!(machine.worst_excess, 0);
    assert!(machine.shrinks > 20);
}

#[test]
fn a_jumping_neighbour_earns_a_wider_berth() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 50 * MIB);
    machine.run(Duration::from_secs(1), |_| 130 * MIB);
    let room = machine.limit - machine.usage();
    assert!(room >= 80 * MIB, "{room}");
    // And it is forgotten after a minute.
    machine.run(BURST_MEMORY + Duration::from_secs(10), |_| 130 * MIB);
    assert_eq!(machine.limit - machine.usage(), GIB / HEADROOM_SHARE);
}

#[test]
fn two_governed_pools_in_one_cgroup_never_exceed_it_and_come_to_rest() {
    let mut machine = Machine::new(GIB, 2);
    machine.run(Duration::from_secs(60), |_| 50 * MIB);
    let before = machine.shrinks + machine.grows;
    machine.run(Duration::from_secs(240), |_| 50 * MIB);
    let moves = machine.shrinks + machine.grows - before;
    // Jumps are forgotten once a minute, and room that was kept for them is used.
    assert!(moves <= 12, "they keep pushing each other: {moves} moves in 240 s");
    assert_eq!(machine.worst_excess, 0);
    for (_, pool) in &machine.pools {
        assert!(pool.resident_bytes > machine.limit * 2 / 5, "{} is no half", pool.resident_bytes);
    }
}

#[test]
fn a_pool_that_comes_late_gets_its_part_if_it_has_use_for_it() {
    let mut machine = Machine::new(GIB, 2);
    machine.pools[1].1.ceiling_bytes = 0;
    machine.run(Duration::from_secs(20), |_| 50 * MIB);
    assert!(machine.pools[0].1.resident_bytes > 850 * MIB);
    machine.pools[1] =
        (Governor::new(), PoolState { ceiling_bytes: u64::MAX, ..machine.pools[1].1 });
    let sizes =
        |machine: &Machine| [0, 1].map(|at: usize| machine.pools[at].1.resident_bytes / MIB);
    machine.pools[1].1.wants_more = false;
    machine.run(Duration::from_secs(60), |_| 50 * MIB);
    assert!(
        sizes(&machine)[0] > 800,
        "a pool without use for memory took it: {:?}",
        sizes(&machine)
    );
    machine.pools[1].1.wants_more = true;
    machine.run(Duration::from_secs(240), |_| 50 * MIB);
    let [first, second] = sizes(&machine);
    assert!(second > 350 && first > 400, "{first} and {second} MiB");
    assert_eq!(machine.worst_excess, 0);
}

#[test]
fn a_step_that_went_further_than_asked_is_not_gone_back_on_before_room_has_lasted_since() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 50 * MIB);
    // Others rush in, and the pool goes ahead of them. That takes it a second.
    machine.now += TICK;
    machine.neighbour = 300 * MIB;
    let signals = machine.signals();
    let (governor, pool) = &mut machine.pools[0];
    let decision = governor.decide(&signals, pool).unwrap();
    assert_eq!(decision.signal, Signal::RoomShrank);
    machine.now += Duration::from_secs(1);
    let size = decision.to_bytes / 3 * 2;
    (pool.limit_bytes, pool.resident_bytes) = (size, size);
    governor.took(machine.now, decision.signal, size);
    // They pause, with room for what was asked for.
    machine.run(GROW_AFTER, |_| 300 * MIB);
    assert_eq!(machine.pools[0].1.limit_bytes, size);
    machine.run(TICK, |_| 300 * MIB);
    assert!(machine.pools[0].1.limit_bytes >= decision.to_bytes);
}

#[test]
fn a_step_down_to_a_ceiling_says_nothing_of_the_room() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 50 * MIB);
    machine.pools[0].1.ceiling_bytes = 256 * MIB;
    machine.run(TICK, |_| 50 * MIB);
    let (governor, pool) = &mut machine.pools[0];
    assert_eq!(pool.limit_bytes, 256 * MIB);
    governor.took(machine.now, Signal::Ceiling, pool.limit_bytes);
    pool.ceiling_bytes = 512 * MIB;
    machine.run(TICK, |_| 50 * MIB);
    assert_eq!(machine.pools[0].1.limit_bytes, 512 * MIB);
}

#[test]
fn no_use_for_more_means_no_growth() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(2), |_| 700 * MIB);
    machine.pools[0].1.wants_more = false;
    let size = machine.pools[0].1.limit_bytes;
    machine.run(Duration::from_secs(30), |_| 50 * MIB);
    assert_eq!(machine.pools[0].1.limit_bytes, size);
    machine.pools[0].1.wants_more = true;
    machine.run(Duration::from_secs(5), |_| 50 * MIB);
    assert!(machine.pools[0].1.limit_bytes > size + 600 * MIB);
}

/// The neighbours of a container and those of its machine are not the same: where memory is
/// shortest at the moment says nothing of growth.
#[test]
fn another_limit_that_becomes_the_tightest_is_no_jump_of_the_neighbours() {
    let mut governor = Governor::new();
    let mut pool = PoolState {
        resident_bytes: 4 * GIB,
        limit_bytes: 0,
        floor_bytes: 16 * MIB,
        ceiling_bytes: u64::MAX,
        wants_more: true,
    };
    let group = Level {
        directory: "/db".into(),
        limit_bytes: Some(16 * GIB),
        usage_bytes: 5 * GIB,
        file_cache_bytes: 0,
        limit_hits: 0,
    };
    let signals = |tick: u32, available: u64| Signals {
        at: TICK * tick,
        levels: vec![group.clone()],
        machine_available_bytes: Some(available),
        machine_total_bytes: Some(128 * GIB),
        ..Signals::default()
    };
    // The group has 11 GiB left, the machine hardly more, then hardly less: others take 2 MiB a
    // reading. Then it is now this, now that.
    let available = |tick: u32| match tick {
        0..100 => 11 * GIB + 100 * MIB - u64::from(tick) * 2 * MIB,
        _ => 11 * GIB - 100 * MIB + u64::from(tick % 2) * 200 * MIB,
    };
    for tick in 0..200 {
        if let Some(decision) = governor.decide(&signals(tick, available(tick)), &pool) {
            pool.limit_bytes = decision.to_bytes;
        }
        assert!(pool.limit_bytes > 13 * GIB, "{} MiB at {tick}", pool.limit_bytes / MIB);
    }
}

/// One moment of a pool in a cgroup of a machine of 64 GiB, bytes.
#[derive(Clone, Copy, Debug)]
struct Moment {
    limit: u64,
    resident: u64,
    /// Others in the group, and outside.
    inside: u64,
    outside: u64,
}

impl Moment {
    fn fields(self) -> [u64; 4] {
        [self.limit, self.resident, self.inside, self.outside]
    }

    /// `part` of the way (of `parts`) from here to `other`.
    fn towards(self, other: Moment, part: u64, parts: u64) -> Moment {
        let between = |(from, to): (u64, u64)| (from * (parts - part) + to * part) / parts;
        let [limit, resident, inside, outside] =
            std::array::from_fn(|at| between((self.fields()[at], other.fields()[at])));
        Moment { limit, resident, inside, outside }
    }

    fn distance(self, other: Moment) -> u64 {
        self.fields().into_iter().zip(other.fields()).map(|(one, two)| one.abs_diff(two)).sum()
    }

    fn see(self, governor: &mut Governor, tick: u32) -> u64 {
        let level = Level {
            directory: "/db".into(),
            limit_bytes: Some(self.limit),
            usage_bytes: self.resident + self.inside,
            file_cache_bytes: 0,
            limit_hits: 0,
        };
        let used = self.resident + self.inside + self.outside;
        let signals = Signals {
            at: TICK * tick,
            levels: vec![level],
            machine_available_bytes: Some((64 * GIB).saturating_sub(used)),
            machine_total_bytes: Some(64 * GIB),
            ..Signals::default()
        };
        let pool = PoolState {
            resident_bytes: self.resident,
            limit_bytes: GIB,
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
            wants_more: true,
        };
        governor.decide(&signals, &pool);
        governor.target(&signals, &pool).unwrap()
    }
}

fn moment() -> impl Strategy<Value = Moment> {
    let bytes = |mib: std::ops::Range<u64>| mib.prop_map(|mib| mib * MIB);
    (bytes(64..40_000), bytes(0..30_000), bytes(0..8_000), bytes(0..40_000))
        .prop_map(|(limit, resident, inside, outside)| Moment { limit, resident, inside, outside })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// From any course of events to any other in small steps, the target follows in small steps:
    /// whichever limit binds, and whatever is left below it.
    #[test]
    fn a_small_change_of_the_signals_changes_the_target_by_little(
        from in prop::collection::vec(moment(), 6),
        to in prop::collection::vec(moment(), 6),
    ) {
        const STEPS: u64 = 500;
        let course = |step: u64| -> Vec<Moment> {
            from.iter().zip(&to).map(|(from, to)| from.towards(*to, step, STEPS)).collect()
        };
        let mut before: Option<(Vec<Moment>, u64)> = None;
        for step in 0..=STEPS {
            let moments = course(step);
            let mut governor = Governor::new();
            let target = (0..).zip(&moments).map(|(tick, it)| it.see(&mut governor, tick)).last();
            let target = target.unwrap();
            if let Some((past, past_target)) = before {
                let changed: u64 = moments.iter().zip(&past).map(|(now, then)| now.distance(*then)).sum();
                let moved = target.abs_diff(past_target);
                prop_assert!(
                    moved <= 8 * changed + 1024,
                    "{} KiB for {} KiB at step {step}: {past:?} to {moments:?}", moved >> 10, changed >> 10
                );
            }
            before = Some((moments, target));
        }
    }
}

#[test]
fn usage_above_a_limit_that_was_lowered_is_made_good_for_at_once() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 100 * MIB);
    assert!(machine.pools[0].1.resident_bytes > 850 * MIB);
    machine.limit = GIB / 2;
    let shrinks = machine.shrinks;
    machine.tick(100 * MIB);
    // In one step, and with the headroom that such a limit has.
    let fits = GIB / 2 - 100 * MIB - GIB / 2 / HEADROOM_SHARE;
    assert_eq!((machine.shrinks - shrinks, machine.pools[0].1.limit_bytes), (1, fits));
    // The others have not grown, though it may look so: they are not given a wider berth.
    machine.run(Duration::from_secs(10), |_| 100 * MIB);
    assert_eq!((machine.shrinks - shrinks, machine.pools[0].1.resident_bytes), (1, fits));
}

#[test]
fn what_may_be_promised_is_a_limit_like_the_others() {
    let pool = PoolState {
        resident_bytes: 2 * GIB,
        limit_bytes: 4 * GIB,
        floor_bytes: 16 * MIB,
        ceiling_bytes: u64::MAX,
        wants_more: true,
    };
    let signals = Signals {
        machine_available_bytes: Some(8 * GIB),
        machine_total_bytes: Some(16 * GIB),
        commit: Some(Commit { limit_bytes: 8 * GIB, used_bytes: 7 * GIB }),
        ..Signals::default()
    };
    let binding = Governor::new().binding(&signals, &pool).unwrap();
    assert_eq!((binding.room.bytes(), &binding.room.place), (GIB, &Place::Commit));
    assert!(binding.pool_bytes < 3 * GIB && binding.pool_bytes > 2 * GIB);
    let decision = Governor::new().decide(&signals, &pool).unwrap();
    assert!(decision.reason.starts_with("the commit limit"), "{}", decision.reason);
}

#[test]
fn a_ceiling_is_obeyed_and_a_blind_governor_keeps_what_it_has() {
    let mut governor = Governor::new();
    let mut pool = PoolState {
        resident_bytes: 0,
        limit_bytes: 512 * MIB,
        floor_bytes: 16 * MIB,
        ceiling_bytes: 512 * MIB,
        wants_more: true,
    };
    let blind = Signals::default();
    assert_eq!(governor.decide(&blind, &pool).unwrap().to_bytes, 512 * MIB);
    let blind = Signals { at: TICK, ..blind };
    assert_eq!(governor.decide(&blind, &pool), None);
    pool.ceiling_bytes = 256 * MIB;
    let decision = governor.decide(&blind, &pool).unwrap();
    assert_eq!((decision.signal, decision.to_bytes), (Signal::Ceiling, 256 * MIB));
    assert_eq!(decision.reason, "no more than 256 MiB is allowed");
    (pool.floor_bytes, pool.ceiling_bytes) = (GIB, GIB);
    let decision = governor.decide(&blind, &pool).unwrap();
    assert_eq!((decision.signal, decision.to_bytes), (Signal::Floor, GIB));
    assert_eq!(decision.reason, "no less than 1024 MiB is allowed");
}

#[test]
fn a_first_size_that_is_not_the_rooms_says_whose_it_is() {
    let signals = Signals {
        machine_available_bytes: Some(8 * GIB),
        machine_total_bytes: Some(16 * GIB),
        ..Signals::default()
    };
    let first = |floor_bytes, ceiling_bytes| {
        let pool = PoolState {
            resident_bytes: GIB,
            limit_bytes: GIB,
            floor_bytes,
            ceiling_bytes,
            wants_more: false,
        };
        Governor::new().decide(&signals, &pool).unwrap().reason
    };
    let room = "the machine has 8192 MiB left of 16384 MiB";
    assert_eq!(first(MIB, u64::MAX), room);
    assert_eq!(first(MIB, 300 * MIB), format!("{room}, and no more than 300 MiB is allowed"));
    assert_eq!(first(12 * GIB, u64::MAX), format!("{room}, and no less than 12288 MiB is allowed"));
}

#[test]
fn a_raised_ceiling_is_grown_into_at_once_as_far_as_room_has_lasted() {
    let mut machine = Machine::new(GIB, 1);
    machine.pools[0].1.ceiling_bytes = 256 * MIB;
    let others = |at: Duration| if at < Duration::from_secs(7) { 500 * MIB } else { 100 * MIB };
    machine.run(Duration::from_secs(8), others);
    assert_eq!(machine.pools[0].1.limit_bytes, 256 * MIB);
    machine.pools[0].1.ceiling_bytes = 384 * MIB;
    machine.run(TICK, |_| 100 * MIB);
    assert_eq!(machine.pools[0].1.limit_bytes, 384 * MIB);
    // A second ago there was no room for this.
    machine.pools[0].1.ceiling_bytes = 800 * MIB;
    machine.run(TICK, |_| 100 * MIB);
    assert!(machine.pools[0].1.limit_bytes < 512 * MIB);
    machine.run(GROW_AFTER, |_| 100 * MIB);
    assert_eq!(machine.pools[0].1.limit_bytes, 800 * MIB);
}

#[test]
fn a_ceiling_is_reached_by_a_small_step_too() {
    let mut machine = Machine::new(GIB, 1);
    machine.pools[0].1.ceiling_bytes = 512 * MIB;
    machine.run(Duration::from_secs(5), |_| 100 * MIB);
    machine.pools[0].1.ceiling_bytes = 513 * MIB;
    machine.run(TICK, |_| 100 * MIB);
    assert_eq!((machine.pools[0].1.limit_bytes, machine.grows), (513 * MIB, 2));
    // And that is that.
    let signals = machine.signals();
    let (governor, pool) = &mut machine.pools[0];
    assert_eq!(governor.decide(&signals, pool), None);
    // Others come, and go in two steps: the first leaves all but 3 MiB, once their jump is
    // forgotten.
    machine.run(Duration::from_secs(5), |_| 800 * MIB);
    machine.run(BURST_MEMORY + Duration::from_secs(10), |_| 463 * MIB);
    assert_eq!(machine.pools[0].1.limit_bytes, GIB - GIB / HEADROOM_SHARE - 463 * MIB);
    machine.run(GROW_AFTER + TICK, |_| 100 * MIB);
    assert_eq!(machine.pools[0].1.limit_bytes, 513 * MIB);
}

proptest! {
    /// Whatever the neighbour does within the speed that the headroom covers, usage never exceeds
    /// the limit.
    #[test]
    fn usage_never_exceeds_the_limit(steps in prop::collection::vec(0u64..600, 1..40), limit_mib in 700u64..4000) {
        let limit = limit_mib * MIB;
        let mut machine = Machine::new(limit, 1);
        let mut neighbour = 0;
        let pace = (limit / HEADROOM_SHARE).max(HEADROOM_MIN_BYTES) / 2;
        for goal in steps {
            for _ in 0..30 {
                let goal = goal * MIB;
                neighbour = if goal > neighbour { goal.min(neighbour + pace) } else { goal };
                machine.tick(neighbour);
                prop_assert_eq!(machine.worst_excess, 0);
            }
        }
    }

    /// Garbage readings neither panic nor leave the allowed range.
    #[test]
    fn nonsense_is_survived(readings in prop::collection::vec(any::<(u64, u64, u64, Option<u64>, Option<u64>, Option<u64>, u32)>(), 1..60)) {
        let mut governor = Governor::new();
        let mut pool = PoolState { resident_bytes: GIB, limit_bytes: GIB, floor_bytes: 16 * MIB, ceiling_bytes: 4 * GIB, wants_more: true };
        let mut at = Duration::ZERO;
        for (limit, usage, cache, available, swapped, stall, step) in readings {
            at += Duration::from_micros(step.into());
            let level = Level { directory: "/x".into(), limit_bytes: Some(limit), usage_bytes: usage, file_cache_bytes: cache, limit_hits: 0 };
            let signals = Signals { at, levels: vec![level], machine_available_bytes: available, own_swapped_bytes: swapped, stall: stall.map(|total_us| Stall { place: Place::Cgroup("/x".into()), total_us, refaults: Some(Refaults { anon_pages: total_us, file_pages: usage }) }), ..Signals::default() };
            if let Some(decision) = governor.decide(&signals, &pool) {
                prop_assert!((pool.floor_bytes..=pool.ceiling_bytes).contains(&decision.to_bytes));
                pool.limit_bytes = decision.to_bytes;
                pool.resident_bytes = pool.resident_bytes.min(pool.limit_bytes);
            }
        }
    }
}

#[test]
fn a_pool_that_follows_slowly_is_further_ahead() {
    // Ten readings a second, a neighbour that grows by 140 MiB a second, and a pool that obeys two
    // readings later.
    let run = |timing: Timing| {
        let mut machine = Machine::new(GIB, 1);
        machine.pools[0].0 = Governor::with_timing(timing);
        let (mut late, mut worst) = (None, 0);
        for tick in 0..150u64 {
            machine.now += Duration::from_millis(100);
            machine.neighbour = 50 * MIB + tick.saturating_sub(80).min(40) * 14 * MIB;
            let signals = machine.signals();
            let (governor, pool) = &mut machine.pools[0];
            let decided = governor.decide(&signals, pool).map(|decision| decision.to_bytes);
            if late.is_none() {
                late = decided.map(|to| (tick + 2, to));
            }
            if let Some((when, to)) = late
                && when <= tick
            {
                pool.limit_bytes = to;
                pool.resident_bytes = pool.resident_bytes.min(to);
                late = None;
            }
            pool.resident_bytes = (pool.resident_bytes + 50 * MIB).min(pool.limit_bytes);
            worst = worst.max(machine.usage().saturating_sub(machine.limit));
        }
        worst
    };
    let slow = Timing {
        reaction: Duration::from_millis(500),
        pace: Duration::from_millis(200),
        lead: Duration::from_millis(600),
        unforeseen_bytes: 0,
    };
    let (ahead, late) = (run(slow), run(Timing::default()));
    assert!(ahead < late, "{ahead} against {late}");
}

#[test]
fn a_pool_that_follows_slowly_keeps_more_free_but_not_without_end() {
    let kept = |limit: u64, unforeseen_bytes: u64| {
        let mut machine = Machine::new(limit, 1);
        machine.pools[0].0 =
            Governor::with_timing(Timing { unforeseen_bytes, ..Timing::default() });
        machine.neighbour = 50 * MIB;
        machine.pools[0].1.resident_bytes = limit / 2;
        let signals = machine.signals();
        let (governor, pool) = &machine.pools[0];
        governor.binding(&signals, pool).unwrap().headroom_bytes
    };
    let share = kept(GIB, 0);
    assert_eq!(kept(GIB, 128 * MIB), 2 * share);
    assert_eq!(kept(GIB, 20 * MIB), share + 20 * MIB);
    assert_eq!(kept(100 * GIB, 128 * MIB), kept(100 * GIB, 0) + 128 * MIB);
}

#[test]
fn what_happened_while_nothing_was_decided_is_no_step() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 700 * MIB);
    // An hour without decisions, in which others go, and half of the process to swap; its tasks
    // waited for that.
    machine.now += Duration::from_secs(3600);
    machine.neighbour = 0;
    let pool = PoolState { resident_bytes: 200 * MIB, ..machine.pools[0].1 };
    let governor = &mut machine.pools[0].0;
    governor.resume();
    let mut signals = Signals { own_swapped_bytes: Some(300 * MIB), ..machine.signals() };
    let place = Place::Cgroup("/db".into());
    let refaults = Some(Refaults { anon_pages: 100_000, file_pages: 0 });
    signals.stall = Some(Stall { place, total_us: 900_000_000, refaults });
    let start = signals.at;
    let decision = loop {
        if let Some(decision) = machine.pools[0].0.decide(&signals, &pool) {
            break decision;
        }
        signals.at += TICK;
    };
    assert_eq!((decision.signal, signals.at - start), (Signal::RoomLasted, GROW_AFTER));
}

/// A server in a cgroup that was frozen for a while, together with its clients.
#[test]
fn who_was_not_asked_for_long_finds_no_rise_of_the_moment_and_no_room_that_has_lasted() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 500 * MIB);
    let swapped =
        |machine: &Machine, bytes| Signals { own_swapped_bytes: Some(bytes), ..machine.signals() };
    machine.now += TICK;
    let signals = swapped(&machine, 0);
    let (governor, pool) = &mut machine.pools[0];
    assert_eq!(governor.decide(&signals, pool), None);
    machine.now += AWAY;
    machine.neighbour = 0;
    let mut signals = swapped(&machine, 300 * MIB);
    let (governor, pool) = &mut machine.pools[0];
    let start = signals.at;
    let decision = loop {
        if let Some(decision) = governor.decide(&signals, pool) {
            break decision;
        }
        signals.at += TICK;
    };
    assert_eq!((decision.signal, signals.at - start), (Signal::RoomLasted, GROW_AFTER));
}

#[test]
fn one_reading_after_a_short_silence_is_no_room_that_has_lasted() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 500 * MIB);
    let size = machine.pools[0].1.limit_bytes;
    machine.now += 2 * GROW_AFTER;
    machine.run(GROW_AFTER, |_| 0);
    assert_eq!(machine.pools[0].1.limit_bytes, size);
    machine.run(TICK, |_| 0);
    assert!(machine.pools[0].1.limit_bytes > size + 400 * MIB);
}

#[test]
fn what_goes_to_swap_during_a_long_step_is_trouble() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 500 * MIB);
    let size = machine.pools[0].1.limit_bytes;
    let (governor, pool) = &mut machine.pools[0];
    governor.decide(&Signals { own_swapped_bytes: Some(0), ..machine_at(machine.now) }, pool);
    machine.now += 2 * AWAY;
    governor.took(machine.now, Signal::RoomShrank, size);
    let at = machine.now + TICK;
    let signals = Signals { own_swapped_bytes: Some(30 * MIB), ..machine_at(at) };
    assert_eq!(governor.decide(&signals, pool).unwrap().signal, Signal::OwnSwap);
}

fn machine_at(at: Duration) -> Signals {
    Signals {
        at,
        machine_available_bytes: Some(64 * GIB),
        machine_total_bytes: Some(64 * GIB),
        ..Signals::default()
    }
}

#[test]
fn who_is_asked_rarely_grows_all_the_same() {
    let mut machine = Machine::new(GIB, 1);
    let rarely = |machine: &mut Machine, neighbour: u64| {
        for _ in 0..4 {
            machine.now += 2 * AWAY;
            machine.tick(neighbour);
        }
        machine.pools[0].1.limit_bytes
    };
    let small = rarely(&mut machine, 500 * MIB);
    assert!(rarely(&mut machine, 100 * MIB) > small + 300 * MIB);
}

#[test]
fn a_governor_that_has_seen_nothing_does_not_start_when_it_resumes() {
    let mut machine = Machine::new(GIB, 1);
    machine.pools[0].1.limit_bytes = 128 * MIB;
    machine.pools[0].0.resume();
    machine.run(GROW_AFTER, |_| 100 * MIB);
    assert_eq!(machine.pools[0].1.limit_bytes, 128 * MIB);
    machine.run(TICK, |_| 100 * MIB);
    assert!(machine.pools[0].1.limit_bytes > 850 * MIB);
}

#[test]
fn a_jump_of_the_others_is_remembered_when_decisions_resume() {
    let mut machine = Machine::new(GIB, 1);
    machine.run(Duration::from_secs(5), |_| 50 * MIB);
    machine.run(Duration::from_secs(1), |_| 130 * MIB);
    machine.pools[0].0.resume();
    machine.run(Duration::from_secs(10), |_| 130 * MIB);
    assert!(machine.limit - machine.usage() >= 80 * MIB);
}
