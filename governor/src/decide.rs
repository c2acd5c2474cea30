//! From one reading of the signals to the pool's limit: pure decision.
//!
//! # The rule
//! Let *room* be what the tightest limit above the process still allows (file cache counts as free: the kernel drops it before it
//! swaps). The pool may use what it has, plus the room, less a headroom:
//!
//! ```text
//! target = resident + room - headroom        clamped to [floor, ceiling]
//! ```
//!
//! `resident + room` is exactly "the limit less everything but the pool", measured instead of guessed: connections, sort
//! buffers, another engine's pool and the neighbours in the cgroup are all in the room already.
//!
//! # Shrinking and growing
//! * A target below the limit is taken **at once**.
//! * A target above it is taken when it has lasted: the limit rises to the lowest target of the last [`GROW_AFTER`]. A
//!   neighbour that breathes faster than that is met by one shrink, not by one shrink a breath. Room above a ceiling counts: once
//!   the ceiling is raised, the limit rises at once.
//! * Nothing grows while the pool has no use for more ([`PoolState::wants_more`]), nor for [`HOLD_AFTER_TROUBLE`] after trouble.
//!
//! # Trouble
//! Limits can lie: a hypervisor takes memory without telling, another cgroup's limit makes the kernel reclaim from us. Two signals
//! don't: our own memory being in swap, and time that we stall on memory. On either the limit falls by a step that is
//! sized to the signal, whatever the room says.
//!
//! # Headroom
//! The largest of
//! * a share of the limit ([`HEADROOM_SHARE`], within bounds);
//! * what the others grew by in their fastest [`Timing::reaction`] of the last minute: a neighbour that jumps is given a wider berth than
//!   one that doesn't;
//! * what they will have grown by within the next [`Timing::lead`], if they go on as in the last [`Timing::pace`]: while a neighbour is at it, the
//!   pool is ahead of it instead of behind.
//!
//! # Several pools below one limit
//! Each sees the others as neighbours, so nothing has to be agreed upon. The smaller a pool's part of what is used, the less of the
//! headroom it respects (down to [`HEADROOM_SMALL_PERCENT`]): a small one that has use for more grows into room which a large one
//! then makes again, until they are equal. One alone, or beside something that doesn't yield, comes to rest in either case.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::signals::{Place, Room, Signals};

const MIB: u64 = 1 << 20;

/// Room must have lasted this long before the pool grows into it.
pub const GROW_AFTER: Duration = Duration::from_secs(3);
/// No growth for this long after memory of ours was swapped, or we stalled.
pub const HOLD_AFTER_TROUBLE: Duration = Duration::from_secs(5);
/// The limit over this is left free.
pub const HEADROOM_SHARE: u64 = 20;
/// Headroom is never below this, bytes.
pub const HEADROOM_MIN_BYTES: u64 = 24 * MIB;
/// The share never asks for more than this, bytes.
pub const HEADROOM_MAX_BYTES: u64 = 1024 * MIB;
/// Share of the headroom that a very small pool respects, in per cent.
pub const HEADROOM_SMALL_PERCENT: u64 = 60;
/// How long a jump of the others is remembered.
pub const BURST_MEMORY: Duration = Duration::from_secs(60);
/// A remembered jump asks at most for the limit over this.
pub const BURST_SHARE: u64 = 12;
/// A jump under way asks at most for the limit over this.
pub const LEAD_SHARE: u64 = 6;
/// Stalled this share of the time since the last reading, in per cent: trouble.
pub const STALL_PERCENT: u64 = 10;
/// Trouble is answered at most this often, so that a step can take effect before the next is sized.
pub const TROUBLE_EVERY: Duration = Duration::from_millis(500);

/// How fast a pool can follow, and so how far ahead it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// From a change of the signals to memory given back.
    pub reaction: Duration,
    /// What the others grew by within this tells their pace. Not below the time between two readings.
    pub pace: Duration,
    /// The pool keeps this far ahead of that pace.
    pub lead: Duration,
}

impl Default for Timing {
    /// A pool in the same process, which is told within milliseconds.
    fn default() -> Self {
        Timing {
            reaction: Duration::from_millis(100),
            pace: Duration::from_millis(15),
            lead: Duration::from_millis(75),
        }
    }
}

/// What the governor must know of the pool, bytes throughout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolState {
    /// Memory that the pool holds now.
    pub resident_bytes: u64,
    /// The most it may hold now: its limit. Frames come with the misses, so `resident` may be far below.
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
    /// Tasks stall on memory.
    Stall,
    /// The user's ceiling (or the engine's floor) changed.
    Ceiling,
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
    /// (when, target), lowest first from the front: a monotonic queue, so that its head is the window's minimum.
    targets: VecDeque<(Duration, u64)>,
    timing: Timing,
    /// What the others used below each limit of the last reading.
    others: Vec<Others>,
    /// (when, bytes that others grew by within one [`Timing::reaction`]), largest first from the front.
    bursts: VecDeque<(Duration, u64)>,
    /// What the others will have grown by within [`Timing::lead`], bytes.
    lead_bytes: u64,
    /// Since when targets have been seen without a gap.
    watched_since: Option<Duration>,
    last: Option<Last>,
    hold_until: Duration,
    trouble_at: Option<Duration>,
    started: bool,
}

/// The others below one limit. Which limit is the tightest may change with every reading, and those below another are others.
#[derive(Debug)]
struct Others {
    place: Place,
    /// (when, what they used) of the last [`Timing::reaction`].
    used: VecDeque<(Duration, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    at: Duration,
    own_swapped_bytes: Option<u64>,
    stall_us: Option<u64>,
}

impl Governor {
    /// A governor that has seen nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same for a pool that follows slower or faster.
    pub fn with_timing(timing: Timing) -> Self {
        Governor { timing, ..Self::default() }
    }

    /// The target for one reading, before any hysteresis; `None` when nothing could be read.
    pub fn target(&self, signals: &Signals, pool: &PoolState) -> Option<u64> {
        let room = signals.room()?;
        Some(target_with(&room, pool, self.headroom(&room, pool, signals.at)))
    }

    /// What is left free below the tightest limit that `signals` show, bytes; 0 if they show none.
    pub fn headroom_bytes(&self, signals: &Signals, pool: &PoolState) -> u64 {
        signals.room().map_or(0, |room| self.headroom(&room, pool, signals.at))
    }

    /// What is left free below `room`'s limit, bytes.
    fn headroom(&self, room: &Room, pool: &PoolState, at: Duration) -> u64 {
        self.headroom_ahead(room, pool, at, self.lead_bytes)
    }

    /// The same with another lead.
    fn headroom_ahead(&self, room: &Room, pool: &PoolState, at: Duration, lead_bytes: u64) -> u64 {
        let share =
            (room.limit_bytes / HEADROOM_SHARE).clamp(HEADROOM_MIN_BYTES, HEADROOM_MAX_BYTES);
        let others = others_bytes(room, pool).max(1);
        let large = (pool.resident_bytes.min(others) as u128 * 100 / others as u128) as u64;
        let respected = HEADROOM_SMALL_PERCENT + (100 - HEADROOM_SMALL_PERCENT) * large / 100;
        let burst = self.bursts.front().filter(|(seen, _)| at.saturating_sub(*seen) < BURST_MEMORY);
        // A single huge jump must not take the pool away for a minute.
        let burst = burst.map_or(0, |&(_, bytes)| bytes.min(room.limit_bytes / BURST_SHARE));
        let lead = lead_bytes.min(room.limit_bytes / LEAD_SHARE);
        (share * respected / 100).max(burst).max(lead)
    }

    /// Takes one reading and says what the pool's limit should be from now on, if it should change.
    pub fn decide(&mut self, signals: &Signals, pool: &PoolState) -> Option<Decision> {
        let trouble = self.trouble(signals, pool);
        self.observe(signals, pool);
        let room = signals.room();
        // Without the ceiling, so that one which is raised finds the room that was there all along.
        let unbounded = self.target(signals, &PoolState { ceiling_bytes: u64::MAX, ..*pool });
        match unbounded {
            Some(target) => self.remember_target(signals.at, target),
            // Blind: what was seen before proves nothing about the time since.
            None => self.watched_since = None,
        }
        let target = unbounded.map(|target| clamp(target, pool));
        let allowed = clamp(pool.limit_bytes, pool);
        let decision = |signal, to_bytes, reason| {
            Some(Decision { signal, from_bytes: pool.limit_bytes, to_bytes, reason })
        };
        if !std::mem::replace(&mut self.started, true) {
            let to = target.unwrap_or(allowed);
            let why = room.map_or(
                "no memory signal can be read: keeping the configured size".to_owned(),
                |room| {
                    format!(
                        "{} has {} left of {}",
                        room.place,
                        mib(room.bytes),
                        mib(room.limit_bytes)
                    )
                },
            );
            return decision(Signal::Start, to, why);
        }
        if let Some((signal, to, why)) = trouble {
            return decision(signal, to.min(target.unwrap_or(to)), why);
        }
        if allowed != pool.limit_bytes && target.is_none_or(|target| allowed <= target) {
            return decision(
                Signal::Ceiling,
                allowed,
                format!("the allowed range is now up to {}", mib(allowed)),
            );
        }
        let (room, target) = (room?, target?);
        if target < pool.limit_bytes {
            // Less is noise, and the headroom is there to take it.
            let headroom = self.headroom(&room, pool, signals.at);
            // While others grow fast, a decision goes the whole lead ahead, and the next is due when half of that is used up:
            // a shrink that is told anew every few milliseconds gets nowhere.
            let due = self.headroom_ahead(&room, pool, signals.at, self.lead_bytes / 2);
            let step = pool.limit_bytes.saturating_sub(target_with(&room, pool, due));
            let worth_it = step >= (headroom / 8).max(2 * MIB);
            let why = || {
                format!(
                    "{} has {} left of {}, and {} is kept free",
                    room.place,
                    mib(room.bytes),
                    mib(room.limit_bytes),
                    mib(headroom)
                )
            };
            return worth_it.then(why).and_then(|why| decision(Signal::RoomShrank, target, why));
        }
        if !pool.wants_more || signals.at < self.hold_until || !self.window_is_full(signals.at) {
            return None;
        }
        let lasted = clamp(self.targets.front()?.1, pool);
        if lasted < pool.limit_bytes.saturating_add(step_worth_taking(pool.limit_bytes)) {
            return None;
        }
        let why = format!(
            "room for this has been there for {} s in {}",
            GROW_AFTER.as_secs(),
            room.place
        );
        decision(Signal::RoomLasted, lasted, why)
    }

    /// Signals that outrank the room: what to shrink to, and why.
    fn trouble(&mut self, signals: &Signals, pool: &PoolState) -> Option<(Signal, u64, String)> {
        let last = self.last?;
        let base = pool.limit_bytes.min(pool.resident_bytes);
        let swapped = match (last.own_swapped_bytes, signals.own_swapped_bytes) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => 0,
        };
        let found = if swapped > MIB {
            let step = swapped.saturating_mul(2).max(base / 20);
            Some((Signal::OwnSwap, step, format!("{} of this process went to swap", mib(swapped))))
        } else {
            self.stalled(&last, signals, pool).map(|percent| {
                // 10 % stalled: a twentieth; wholly stalled: a quarter.
                let step = base / 20 + base / 5 * percent.min(100) / 100;
                (
                    Signal::Stall,
                    step,
                    format!("{percent} % of the time was spent waiting for memory"),
                )
            })
        };
        let (signal, step, why) = found?;
        self.hold_until = signals.at + HOLD_AFTER_TROUBLE;
        if self.trouble_at.is_some_and(|at| signals.at.saturating_sub(at) < TROUBLE_EVERY) {
            return None;
        }
        self.trouble_at = Some(signals.at);
        let to = clamp(base.saturating_sub(step), pool);
        (to < pool.limit_bytes).then_some((signal, to, why))
    }

    /// Per cent of the time since the last reading that was stalled, if it is trouble *of ours*.
    fn stalled(&self, last: &Last, signals: &Signals, pool: &PoolState) -> Option<u64> {
        let elapsed_us = signals.at.saturating_sub(last.at).as_micros() as u64;
        if elapsed_us == 0 {
            return None;
        }
        let stalled_us = stall_us(signals)?.checked_sub(last.stall_us?)?;
        let percent = stalled_us.saturating_mul(100) / elapsed_us;
        if percent < STALL_PERCENT {
            return None;
        }
        // The machine's figure counts the stalls of others at limits of their own. It is ours only when memory is short for us too.
        let room = signals.room()?;
        let short = room.bytes < self.headroom(&room, pool, signals.at);
        (signals.own_stall_us.is_some() || short).then_some(percent)
    }

    fn observe(&mut self, signals: &Signals, pool: &PoolState) {
        let at = signals.at;
        let mut known = std::mem::take(&mut self.others);
        let tightest = signals.room();
        self.lead_bytes = 0;
        for room in signals.rooms() {
            let is_here = |others: &Others| others.place == room.place;
            let mut others = match known.iter().position(is_here) {
                Some(index) => known.swap_remove(index),
                None => Others { place: room.place.clone(), used: VecDeque::new() },
            };
            let now_bytes = others_bytes(&room, pool);
            others.forget(at, self.timing.reaction);
            if tightest.as_ref() == Some(&room) {
                self.observe_growth(&others, now_bytes, at, room.bytes == 0);
            }
            others.used.push_back((at, now_bytes));
            self.others.push(others);
        }
        self.last = Some(Last {
            at,
            own_swapped_bytes: signals.own_swapped_bytes,
            stall_us: stall_us(signals),
        });
    }

    /// The others below the tightest limit use `now_bytes`.
    fn observe_growth(&mut self, others: &Others, now_bytes: u64, at: Duration, cut_off: bool) {
        let Timing { reaction, pace, lead } = self.timing;
        let mut burst = others.grown_within(reaction, now_bytes, at);
        let paces = lead.as_secs_f64() / pace.as_secs_f64();
        self.lead_bytes = (others.grown_within(pace, now_bytes, at) as f64 * paces) as u64;
        if cut_off {
            // The jump was cut off by the limit: how far it would have gone is unknown.
            burst = burst.saturating_mul(2);
        }
        while self.bursts.back().is_some_and(|&(_, smaller)| smaller <= burst) {
            self.bursts.pop_back();
        }
        self.bursts.push_back((at, burst));
        while self.bursts.front().is_some_and(|(seen, _)| at.saturating_sub(*seen) >= BURST_MEMORY)
        {
            self.bursts.pop_front();
        }
    }

    fn remember_target(&mut self, at: Duration, target: u64) {
        while self.targets.back().is_some_and(|&(_, higher)| higher >= target) {
            self.targets.pop_back();
        }
        self.targets.push_back((at, target));
        while self.targets.front().is_some_and(|&(seen, _)| at.saturating_sub(seen) > GROW_AFTER) {
            self.targets.pop_front();
        }
        self.watched_since.get_or_insert(at);
    }

    fn window_is_full(&self, at: Duration) -> bool {
        self.watched_since.is_some_and(|since| at.saturating_sub(since) >= GROW_AFTER)
    }
}

impl Others {
    /// The newest of the readings that are too old stays: readings may be far apart, and growth counts from the last one then.
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

fn target_with(room: &Room, pool: &PoolState, headroom: u64) -> u64 {
    clamp(pool.resident_bytes.saturating_add(room.bytes).saturating_sub(headroom), pool)
}

/// Limit less room less the pool: what all the others use.
fn others_bytes(room: &Room, pool: &PoolState) -> u64 {
    room.limit_bytes.saturating_sub(room.bytes).saturating_sub(pool.resident_bytes)
}

fn stall_us(signals: &Signals) -> Option<u64> {
    signals.own_stall_us.or(signals.machine_stall_us)
}

fn clamp(bytes: u64, pool: &PoolState) -> u64 {
    bytes.min(pool.ceiling_bytes).max(pool.floor_bytes)
}

/// Smaller changes are noise: 1 %, at least 4 MiB.
fn step_worth_taking(limit_bytes: u64) -> u64 {
    (limit_bytes / 100).max(4 * MIB)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

#[cfg(test)]
mod tests;
