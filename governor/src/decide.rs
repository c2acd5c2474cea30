//! From one reading of the signals to the pool's limit: pure decision.
//!
//! # The rule
//! There may be several limits above the process: one on each cgroup, and the machine's own. Below
//! each the pool may use what is left by all others, less a headroom (file cache counts as free:
//! the kernel drops it before it swaps):
//!
//! ```text
//! target = min over the limits of (limit - others - headroom)        clamped to [floor, ceiling]
//! ```
//!
//! The others are "all that is used below the limit, less what the pool holds". That is measured,
//! so it includes connections, sort buffers, another engine's pool and the neighbours in the
//! cgroup. Usage may be above a limit that was lowered under it; then the pool gives back all of
//! the excess at once, as far as it can.
//!
//! Swapped memory of the process counts as used. Part of it may be the pool's, which still holds
//! it, and the process may want the rest back. So swapping moves the target neither way: it makes
//! no room to grow into, and coming back takes none away.
//!
//! The limit with the lowest target is the one that *binds*; it need not be the one with the least
//! room. The headroom is subtracted before the limits are compared, so the target moves only as far
//! as the signals do, also where another limit begins to bind.
//!
//! # Shrinking and growing
//! * The pool takes a target below its limit **at once**.
//! * It takes a target above its limit when that has lasted: the limit rises to the lowest target
//!   of the last [`GROW_AFTER`]. So a neighbour that takes and frees memory faster than that causes
//!   one shrink, not one a cycle. Room above a ceiling counts: when the ceiling is raised, the
//!   limit rises at once.
//! * A pool may become smaller than its target, or later, because it consists of large pieces, or a
//!   step went ahead of neighbours that take memory fast. The size that such a step
//!   [took](Governor::took) counts as a target of its time. Otherwise the pool would give the rest
//!   back while the neighbours still take memory.
//! * Nothing grows while the pool has no use for more ([`PoolState::wants_more`]), nor for
//!   [`HOLD_AFTER_TROUBLE`] after trouble.
//!
//! # Trouble
//! A limit can be wrong: a hypervisor takes memory without notice, or another cgroup's limit makes
//! the kernel reclaim from us. Our own memory in swap is a sure sign: the limit falls by a step
//! that is sized to it, unless the pool shrinks by as much anyway (`swap.rs`). The time that tasks
//! stall on memory proves little by itself (`stall.rs` says why). It lowers the limit if the room
//! is nearly gone too, or if memory that was taken away is read back.
//!
//! # Headroom
//! Each limit has a headroom, from the observed use of the others below it. It is the largest of
//! * a share of the limit ([`Room::share_bytes`]), more for a pool that answers slowly
//!   ([`Timing::unforeseen_bytes`]);
//! * the growth of the others in their fastest [`Timing::reaction`] of the last minute: a neighbour
//!   that jumps gets a larger headroom than one that doesn't;
//! * their expected growth within the next [`Timing::lead`], if they go on as in the last
//!   [`Timing::pace`]: while a neighbour grows, the pool shrinks ahead of it.
//!
//! # Several pools below one limit
//! Each pool sees the others as neighbours, so they need no agreement. The smaller a pool's share
//! of the used memory, the less of the headroom it respects (down to [`HEADROOM_SMALL_PERCENT`]).
//! So a small pool that has use for more grows into the headroom, a large one restores the headroom
//! by shrinking, until they are equal. A pool that is alone, or beside a program that doesn't
//! yield, comes to rest in either case.

mod stall;
mod swap;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::signals::{Place, Room, Signals};
use stall::StallWatch;
pub use stall::{STALL_PERCENT, STALL_WINDOW, USELESS_MEMORY};
use swap::SwapWatch;

const MIB: u64 = 1 << 20;

/// Room must have lasted this long before the pool grows into it.
pub const GROW_AFTER: Duration = Duration::from_secs(3);
/// No growth for this long after memory of ours was swapped, or we stalled.
pub const HOLD_AFTER_TROUBLE: Duration = Duration::from_secs(5);
/// Share of the headroom that a very small pool respects, in per cent.
pub const HEADROOM_SMALL_PERCENT: u64 = 60;
/// How long a jump of the others is remembered.
pub const BURST_MEMORY: Duration = Duration::from_secs(60);
/// A remembered jump asks at most for the limit over this.
pub const BURST_SHARE: u64 = 12;
/// A jump under way asks at most for the limit over this.
pub const LEAD_SHARE: u64 = 6;
/// A jump counts as cut off when the room left is less than the jump over this; as wholly cut off
/// when no room is left.
const CUT_OFF_STEEPNESS: u64 = 4;
/// Trouble is answered at most this often, so that a step can take effect before the next is sized.
/// Only fast swapping is answered sooner.
pub const TROUBLE_EVERY: Duration = Duration::from_millis(500);

/// After so long without a decision the process or its asker was stopped (a frozen cgroup,
/// `SIGSTOP`), unless decisions are asked for that rarely. What was swapped meanwhile was swapped
/// because it slept, and is no rise of the moment.
pub const AWAY: Duration = Duration::from_secs(30);
/// Decisions are asked for rarely where the pause before was at least the pause over this.
const AWAY_PAUSES: u32 = 8;

/// How fast a pool can follow, and so how far ahead it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// From a change of the signals to memory given back.
    pub reaction: Duration,
    /// Interval over which the pace of the others is measured. Not below the time between two
    /// readings.
    pub pace: Duration,
    /// The pool keeps this far ahead of that pace.
    pub lead: Duration,
    /// What others may take before the pool has answered for the first time, bytes: kept free
    /// beside the share, up to as much again.
    pub unforeseen_bytes: u64,
}

impl Default for Timing {
    /// A pool in the same process, which a decision reaches within milliseconds.
    fn default() -> Self {
        Timing {
            reaction: Duration::from_millis(100),
            pace: Duration::from_millis(15),
            lead: Duration::from_millis(75),
            unforeseen_bytes: 0,
        }
    }
}

/// What the governor must know of the pool, bytes throughout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolState {
    /// Memory that the pool holds now.
    pub resident_bytes: u64,
    /// The most it may hold now: its limit. Frames come with the misses, so `resident` may be far
    /// below.
    pub limit_bytes: u64,
    /// Below this the engine can't work.
    pub floor_bytes: u64,
    /// What the user allows at most (`u64::MAX` for "no such setting").
    pub ceiling_bytes: u64,
    /// Whether a larger pool would save reads.
    pub wants_more: bool,
}

/// What a decision answers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The first reading.
    Start,
    /// Others need memory: the room got smaller.
    RoomShrank,
    /// Room has been there long enough.
    RoomLasted,
    /// Part of the process is in swap.
    OwnSwap,
    /// Tasks stall on memory, and it is for want of it.
    Stall,
    /// The user's ceiling changed.
    Ceiling,
    /// The least that is allowed changed.
    Floor,
    /// What else there is of the engine needs another part of a budget that is for all of it.
    Budget,
    /// The pool holds memory that brings nothing.
    Surplus,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signal::Start => "start",
            Signal::RoomShrank => "room shrank",
            Signal::RoomLasted => "room lasted",
            Signal::OwnSwap => "own memory in swap",
            Signal::Stall => "memory stall",
            Signal::Ceiling => "ceiling changed",
            Signal::Floor => "floor changed",
            Signal::Budget => "memory budget",
            Signal::Surplus => "memory without use",
        })
    }
}

/// A new limit for the pool, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What it answers to.
    pub signal: Signal,
    /// Limit before, bytes.
    pub from_bytes: u64,
    /// Limit from now on, bytes.
    pub to_bytes: u64,
    /// One sentence with the figures.
    pub reason: String,
}

/// The decision's memory: what it saw in the last minute.
#[derive(Debug, Default)]
pub struct Governor {
    /// (when, target), lowest first from the front: a monotonic queue, so that its head is the
    /// window's minimum.
    targets: VecDeque<(Duration, u64)>,
    timing: Timing,
    /// The others below each limit of the last reading.
    others: Vec<Others>,
    /// Since when targets have been seen without a gap.
    watched_since: Option<Duration>,
    swap: SwapWatch,
    stalls: StallWatch,
    hold_until: Duration,
    trouble_at: Option<Duration>,
    /// When the pool was last read, or set.
    heard_at: Option<Duration>,
    /// Before that it heard nothing for so long.
    last_pause: Duration,
    started: bool,
}

/// What was seen of the others below one limit.
#[derive(Debug)]
struct Others {
    place: Place,
    /// (when, what they used) of the last [`Timing::reaction`].
    used: VecDeque<(Duration, u64)>,
    /// (when, bytes that they grew by within one [`Timing::reaction`]), largest first from the
    /// front.
    bursts: VecDeque<(Duration, u64)>,
    /// What they will have grown by within [`Timing::lead`], bytes.
    lead_bytes: u64,
}

/// What one limit allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowance {
    /// The limit, and what is used below it.
    pub room: Room,
    /// What is kept free below it, bytes.
    pub headroom_bytes: u64,
    /// What is left for the pool, bytes.
    pub pool_bytes: u64,
}

impl Allowance {
    /// Whether the room is nearly gone. Not measured by the headroom: the room comes to rest there,
    /// and both sides of it mean nothing; nor is memory short because a neighbour's jump has just
    /// made the headroom wide.
    fn is_short(&self) -> bool {
        self.room.bytes() < self.room.share_bytes() / 2
    }

    /// Whether a pool shrinks by this step for it. Less is noise, which the headroom absorbs.
    fn is_worth_a_shrink(&self, step_bytes: u64) -> bool {
        step_bytes >= (self.headroom_bytes / 8).max(2 * MIB)
    }
}

impl Governor {
    /// A governor without readings.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same for a pool that follows slower or faster.
    pub fn with_timing(timing: Timing) -> Self {
        Governor { timing, ..Self::default() }
    }

    /// Decisions go on after a time in which none were asked for: said where that was not as long
    /// as [`AWAY`]. What changed over that time is no change between two readings, and no room has
    /// been seen to last.
    pub fn resume(&mut self) {
        let mut others = std::mem::take(&mut self.others);
        for others in &mut others {
            others.used.clear();
            others.lead_bytes = 0;
        }
        *self = Governor {
            timing: self.timing,
            // A jump of the others stays one, and trouble stays trouble, for as long as they would
            // have.
            others,
            hold_until: self.hold_until,
            trouble_at: self.trouble_at,
            heard_at: self.heard_at,
            last_pause: self.last_pause,
            // The pool already has a size, so it does not begin with all the room there is.
            started: true,
            ..Self::default()
        };
    }

    /// The target for one reading, before any hysteresis; `None` when nothing could be read.
    pub fn target(&self, signals: &Signals, pool: &PoolState) -> Option<u64> {
        Some(clamp(self.binding(signals, pool)?.pool_bytes, pool))
    }

    /// What the limit that binds allows; `None` when nothing could be read.
    pub fn binding(&self, signals: &Signals, pool: &PoolState) -> Option<Allowance> {
        self.binding_ahead(signals, pool, 1)
    }

    /// The same with the lead divided by `part`.
    fn binding_ahead(&self, signals: &Signals, pool: &PoolState, part: u64) -> Option<Allowance> {
        let allowances = signals.rooms().map(|room| {
            let others = others_bytes(&room, signals, pool);
            let headroom_bytes = self.headroom(&room, others, signals.at, pool, part);
            let kept = others.saturating_add(headroom_bytes);
            let pool_bytes = room.limit_bytes.saturating_sub(kept);
            Allowance { room, headroom_bytes, pool_bytes }
        });
        allowances.min_by_key(|allowance| allowance.pool_bytes)
    }

    /// What stays free below `room`'s limit, bytes, if the others use `others` there and the lead
    /// is divided by `part`.
    fn headroom(&self, room: &Room, others: u64, at: Duration, pool: &PoolState, part: u64) -> u64 {
        let share = room.share_bytes();
        let share = share + share.min(self.timing.unforeseen_bytes);
        // Others that are fewer than that hardly count: a pool beside them is large as soon as it
        // is larger than the headroom.
        let others = others.max(share);
        let smaller_by = others.saturating_sub(pool.resident_bytes);
        let unrespected = share * (100 - HEADROOM_SMALL_PERCENT) / 100;
        let spared = (u128::from(unrespected) * u128::from(smaller_by) / u128::from(others)) as u64;
        let respected = share - spared;
        let Some(seen) = self.others.iter().find(|others| others.place == room.place) else {
            return respected;
        };
        let burst = seen.bursts.front().filter(|(seen, _)| at.saturating_sub(*seen) < BURST_MEMORY);
        // A single huge jump must not take the pool away for a minute.
        let burst = burst.map_or(0, |&(_, bytes)| bytes.min(room.limit_bytes / BURST_SHARE));
        let lead = (seen.lead_bytes / part).min(room.limit_bytes / LEAD_SHARE);
        respected.max(burst).max(lead)
    }

    /// Takes one reading and says what the pool's limit should be from now on, if it should change.
    pub fn decide(&mut self, signals: &Signals, pool: &PoolState) -> Option<Decision> {
        self.listen(signals.at);
        self.stalls.observe(signals, pool);
        let owed_bytes = self.owed_bytes(signals, pool);
        self.swap.observe(signals.at, signals.own_swapped_bytes, owed_bytes);
        let trouble = self.trouble(signals, pool);
        self.observe(signals, pool);
        let binding = self.binding(signals, pool);
        // Without the ceiling, so that one which is raised finds the room that was there all along.
        let unbounded = binding.as_ref().map(|binding| binding.pool_bytes);
        match unbounded {
            Some(target) => self.remember_target(signals.at, target),
            // No reading: earlier readings prove nothing about the time since.
            None => self.watched_since = None,
        }
        let target = unbounded.map(|target| clamp(target, pool));
        let allowed = clamp(pool.limit_bytes, pool);
        let decision = |signal, to_bytes, reason| {
            debug_assert_eq!(clamp(to_bytes, pool), to_bytes, "the pool can have this size");
            Some(Decision { signal, from_bytes: pool.limit_bytes, to_bytes, reason })
        };
        if !std::mem::replace(&mut self.started, true) {
            let to = target.unwrap_or(allowed);
            let mut why = binding.map_or(
                "no memory signal can be read: keeping the configured size".to_owned(),
                |binding| binding.room.to_string(),
            );
            if let Some(unbounded) = unbounded.filter(|&unbounded| unbounded != to) {
                why = format!("{why}, and {}", range_ends(to, unbounded));
            }
            return decision(Signal::Start, to, why);
        }
        if let Some((signal, to, why)) = trouble {
            return decision(signal, to.min(target.unwrap_or(to)), why);
        }
        if allowed != pool.limit_bytes && target.is_none_or(|target| allowed <= target) {
            let signal = if allowed < pool.limit_bytes { Signal::Ceiling } else { Signal::Floor };
            return decision(signal, allowed, range_ends(allowed, pool.limit_bytes));
        }
        let (binding, target) = (binding?, target?);
        if target < pool.limit_bytes {
            // While others grow fast, a decision goes the whole lead ahead, and the next is due
            // when half of that is used up: a shrink that gets a new target every few milliseconds
            // makes no progress.
            let due = self.binding_ahead(signals, pool, 2)?;
            let step = pool.limit_bytes.saturating_sub(clamp(due.pool_bytes, pool));
            let above_ceiling = pool.limit_bytes > pool.ceiling_bytes;
            if !above_ceiling && !binding.is_worth_a_shrink(step) {
                return None;
            }
            self.swap.forget_asked();
            let why = format!("{}, and {} is kept free", binding.room, mib(binding.headroom_bytes));
            return decision(Signal::RoomShrank, target, why);
        }
        if !pool.wants_more || signals.at < self.hold_until || !self.window_is_full(signals.at) {
            return None;
        }
        let lasted = clamp(self.targets.front()?.1, pool);
        // Small steps are noise, except the one that brings the pool to its ceiling: no larger one
        // would follow.
        let step = match lasted < pool.ceiling_bytes {
            true => step_worth_taking(pool.limit_bytes),
            false => 1,
        };
        if lasted < pool.limit_bytes.saturating_add(step) {
            return None;
        }
        let why = format!(
            "room for this has been there for {} s in {}",
            GROW_AFTER.as_secs(),
            binding.room.place
        );
        decision(Signal::RoomLasted, lasted, why)
    }

    /// Notes a reading at `at`, maybe the first after a long time.
    fn listen(&mut self, at: Duration) {
        let pause = at.saturating_sub(self.heard_at.replace(at).unwrap_or(at));
        let usual = self.last_pause * AWAY_PAUSES;
        if pause >= AWAY.max(usual) && self.started {
            self.resume();
        } else if pause >= GROW_AFTER.max(usual) {
            // No reading shows whether the room was there all the time.
            self.watched_since = None;
        }
        self.last_pause = pause;
    }

    /// Signals that outrank the room: what to shrink to, and why.
    fn trouble(&mut self, signals: &Signals, pool: &PoolState) -> Option<(Signal, u64, String)> {
        let base = pool.limit_bytes.min(pool.resident_bytes);
        let stalled = self.stalled(signals, pool);
        if stalled.is_some() || self.swap.is_rising() {
            self.hold_until = signals.at + HOLD_AFTER_TROUBLE;
        }
        let since = self.trouble_at.map(|at| signals.at.saturating_sub(at));
        let is_resting = since.is_some_and(|since| since < TROUBLE_EVERY);
        // A stall is not answered before the last answer is judged. Memory that goes to swap is.
        let stalled = stalled.filter(|_| !is_resting && !self.stalls.awaits_effect());
        let risen = self.swap.risen_bytes();
        let for_swap = self.swap.ask(signals.at, base).map(|to| {
            (Signal::OwnSwap, to, format!("{} of this process went to swap", mib(risen)))
        });
        let for_stall = stalled.as_ref().map(|(percent, sign)| {
            // 10 % stalled: a twentieth; wholly stalled: a quarter.
            let step = base / 20 + base / 5 * percent / 100;
            let why = format!("{percent} % of the time was spent waiting for memory, and {sign}");
            (Signal::Stall, base.saturating_sub(step), why)
        });
        let answers = [for_swap, for_stall].into_iter().flatten();
        let (signal, to, why) = answers.min_by_key(|&(_, to, _)| to)?;
        self.trouble_at = Some(signals.at);
        let to = clamp(to, pool);
        if to >= pool.limit_bytes {
            return None;
        }
        if let Some((percent, _)) = stalled {
            self.stalls.answered(signals.at, percent, to);
        }
        Some((signal, to, why))
    }

    /// What the pool gives back in any case: it was asked for that, or the room will ask for it.
    fn owed_bytes(&self, signals: &Signals, pool: &PoolState) -> u64 {
        let for_room = self.binding(signals, pool).map_or(0, |binding| {
            let step = pool.limit_bytes.saturating_sub(clamp(binding.pool_bytes, pool));
            if binding.is_worth_a_shrink(step) { step } else { 0 }
        });
        pool.resident_bytes.saturating_sub(pool.limit_bytes.saturating_sub(for_room))
    }

    /// Whether memory of the process goes to swap so fast that the pool shrinks for it: the next
    /// reading should come soon.
    pub fn is_swapping(&self) -> bool {
        self.swap.is_rising_fast()
    }

    /// A stall for want of memory of *ours*: per cent of the time, and what shows the want.
    /// Otherwise tasks wait for something else, or others do at their own limits, because the
    /// machine's figure counts them too.
    fn stalled(&self, signals: &Signals, pool: &PoolState) -> Option<(u64, String)> {
        let percent = self.stalls.percent()?;
        let sign = self.stalls.want(self.swap.risen_bytes()).or_else(|| {
            let binding = self.binding(signals, pool)?;
            binding.is_short().then(|| binding.room.to_string())
        });
        Some((percent, sign?))
    }

    fn observe(&mut self, signals: &Signals, pool: &PoolState) {
        let at = signals.at;
        let mut known = std::mem::take(&mut self.others);
        for room in signals.rooms() {
            let is_here = |others: &Others| others.place == room.place;
            let mut others = match known.iter().position(is_here) {
                Some(index) => known.swap_remove(index),
                None => Others::new(room.place.clone()),
            };
            others.observe(&room, others_bytes(&room, signals, pool), at, self.timing);
            self.others.push(others);
        }
    }

    /// Notes that the pool has had `bytes` since `at`, in answer to `signal`; called after each
    /// step. After a step that answers a shortage of memory, the pool grows again only when room
    /// has lasted from then on. A size that the user sets says nothing about the room.
    pub fn took(&mut self, at: Duration, signal: Signal, bytes: u64) {
        // A step may take a minute without a gap in the readings.
        self.heard_at = Some(at);
        match signal {
            Signal::Start | Signal::RoomShrank | Signal::OwnSwap | Signal::Stall => {
                self.note_target(at, bytes);
            }
            Signal::RoomLasted
            | Signal::Ceiling
            | Signal::Floor
            | Signal::Budget
            | Signal::Surplus => {}
        }
    }

    fn remember_target(&mut self, at: Duration, target: u64) {
        self.note_target(at, target);
        self.watched_since.get_or_insert(at);
    }

    fn note_target(&mut self, at: Duration, target: u64) {
        while self.targets.back().is_some_and(|&(_, higher)| higher >= target) {
            self.targets.pop_back();
        }
        self.targets.push_back((at, target));
        while self.targets.front().is_some_and(|&(seen, _)| at.saturating_sub(seen) > GROW_AFTER) {
            self.targets.pop_front();
        }
        debug_assert!(
            self.targets.iter().is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1),
            "the lowest target of the time comes first"
        );
    }

    fn window_is_full(&self, at: Duration) -> bool {
        self.watched_since.is_some_and(|since| at.saturating_sub(since) >= GROW_AFTER)
    }
}

impl Others {
    fn new(place: Place) -> Others {
        Others { place, used: VecDeque::new(), bursts: VecDeque::new(), lead_bytes: 0 }
    }

    /// They use `now_bytes`.
    fn observe(&mut self, room: &Room, now_bytes: u64, at: Duration, timing: Timing) {
        let Timing { reaction, pace, lead, .. } = timing;
        self.forget(at, reaction);
        let burst = self.grown_within(reaction, now_bytes, at);
        let paces = lead.as_secs_f64() / pace.as_secs_f64();
        self.lead_bytes = (self.grown_within(pace, now_bytes, at) as f64 * paces) as u64;
        // With hardly any room left, the limit may have cut the jump off: how far it would have
        // gone is unknown, and twice as far a guess.
        let cut_off = burst.saturating_sub(room.bytes().saturating_mul(CUT_OFF_STEEPNESS));
        let burst = burst.saturating_add(cut_off);
        while self.bursts.back().is_some_and(|&(_, smaller)| smaller <= burst) {
            self.bursts.pop_back();
        }
        self.bursts.push_back((at, burst));
        while self.bursts.front().is_some_and(|(seen, _)| at.saturating_sub(*seen) >= BURST_MEMORY)
        {
            self.bursts.pop_front();
        }
        self.used.push_back((at, now_bytes));
    }

    /// The newest of the readings that are too old stays: readings may be far apart, and growth
    /// counts from the last one then.
    fn forget(&mut self, at: Duration, oldest: Duration) {
        while self.used.get(1).is_some_and(|&(seen, _)| at.saturating_sub(seen) >= oldest) {
            self.used.pop_front();
        }
    }

    /// By how much they have grown within `time` until they used `now_bytes`.
    fn grown_within(&self, time: Duration, now_bytes: u64, at: Duration) -> u64 {
        let recent = self.used.iter().rev().scan(false, |past, &(seen, bytes)| {
            let take = (!*past).then_some((seen, bytes));
            *past |= at.saturating_sub(seen) >= time;
            take
        });
        let growth = recent.map(|(seen, bytes)| {
            let grown = now_bytes.saturating_sub(bytes);
            // Readings further apart than that say less about a jump, so they are scaled down.
            let elapsed = at.saturating_sub(seen).max(Duration::from_millis(1));
            (grown as f64 * (time.as_secs_f64() / elapsed.as_secs_f64()).min(1.0)) as u64
        });
        growth.max().unwrap_or(0)
    }
}

/// What is used below the limit by all but the pool, with what may come back from swap.
fn others_bytes(room: &Room, signals: &Signals, pool: &PoolState) -> u64 {
    let swapped = match room.place {
        // Committed memory counts wherever it is.
        Place::Commit => 0,
        Place::Cgroup(_) | Place::Machine => signals.own_swapped_bytes.unwrap_or(0),
    };
    room.used_bytes.saturating_add(swapped).saturating_sub(pool.resident_bytes)
}

fn clamp(bytes: u64, pool: &PoolState) -> u64 {
    bytes.min(pool.ceiling_bytes).max(pool.floor_bytes)
}

/// That the allowed range ends at `bytes`, and so is without `other_bytes`.
fn range_ends(bytes: u64, other_bytes: u64) -> String {
    let than = if bytes < other_bytes { "more" } else { "less" };
    format!("no {than} than {} is allowed", mib(bytes))
}

/// Smaller changes are noise: 1 %, at least 4 MiB.
fn step_worth_taking(limit_bytes: u64) -> u64 {
    (limit_bytes / 100).max(4 * MIB)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = mib(self.limit_bytes);
        match self.used_bytes.checked_sub(self.limit_bytes) {
            Some(over) if over > 0 => write!(f, "{} has {} over {limit}", self.place, mib(over)),
            _ => write!(f, "{} has {} left of {limit}", self.place, mib(self.bytes())),
        }
    }
}

#[cfg(test)]
mod tests;
