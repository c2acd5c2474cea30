//! Memory that brings nothing goes back: from how small a pool could be to a ceiling for it.
//!
//! # The rule
//! The pool's advisor says how small the pool could be at hardly any cost ([`Need`]). When the pool
//! has held more than that for [`WAIT`], it gets a ceiling a step lower, and another step lower
//! every [`STEP_EVERY`], until it is a margin above the highest need of that time
//! ([`MARGIN_SHARE`]). A step takes at most an eighth of what the pool holds; where the pool holds
//! much less than it may, the step costs no page, and takes half of the limit.
//!
//! # Back
//! The ceiling goes at once when the pool has use for more. The room has been there all along, so
//! the pool grows without delay. What a wrong prediction costs is that the pages given back are
//! read once more.
//!
//! The higher the price, the rarer it is paid: each time that a ceiling had to go, the next wait is
//! twice as long, up to [`WAIT_MAX`]; after that time without such an event it is [`WAIT`] again.
//!
//! # Without evidence
//! An idle server says nothing about what it needs: it keeps what it has. So does one whose pool
//! still fills.
//!
//! It is pure, as [`crate::decide`] is: no clock, no file, no thread.

use std::collections::VecDeque;
use std::time::Duration;

use crate::decide::PoolState;
use crate::signals::Signals;

/// Whether memory that brings nothing is given back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// It is kept: nothing is lost by that on a machine of one's own.
    Keep,
    /// It is given back.
    Return,
    /// Given back below a cgroup's limit, kept elsewhere. A limit means that memory is shared out,
    /// to neighbours or by the GiB, and that it can be set lower.
    #[default]
    Auto,
}

impl Policy {
    /// Whether it is given back where these signals come from.
    pub fn returns(self, signals: &Signals) -> bool {
        match self {
            Policy::Keep => false,
            Policy::Return => true,
            Policy::Auto => signals.levels.iter().any(|level| {
                let machine = signals.machine_total_bytes.unwrap_or(u64::MAX);
                level.limit_bytes.is_some_and(|limit| limit < machine)
            }),
        }
    }
}

/// How small a pool could be, by its miss-ratio curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Need {
    /// The size, bytes.
    pub bytes: u64,
    /// Pages that it would read beyond those of the present size, a second.
    pub extra_reads_per_second: f64,
    /// Pages that the present size reads a second.
    pub reads_per_second: f64,
    pub page_bytes: u64,
}

/// A pool holds more than it needs for this long before the first step.
pub const WAIT: Duration = Duration::from_secs(60);
/// The longest such time, after ceilings that had to go.
pub const WAIT_MAX: Duration = Duration::from_secs(3600);
/// Between two steps.
pub const STEP_EVERY: Duration = Duration::from_secs(10);
/// The need over this is kept beside it.
pub const MARGIN_SHARE: u64 = 8;
/// A step takes what the pool holds over this, at most.
pub const STEP_SHARE: u64 = 8;
/// A step below this, or below the limit over [`STEP_MIN_SHARE`], is not worth taking, bytes.
const STEP_MIN_BYTES: u64 = 8 << 20;
const STEP_MIN_SHARE: u64 = 32;
/// A pool that grew by what it held over this within the wait still fills.
const FILLING_SHARE: u64 = 16;
/// What is observed counts as lasting only if it is observed this often.
const GAP_MAX: Duration = Duration::from_secs(15);

/// The needs of late, and the ceiling that follows from them.
#[derive(Debug)]
pub struct Surplus {
    /// (when, bytes needed) within the wait, highest first from the front.
    needs: VecDeque<(Duration, u64)>,
    /// Since when there has been evidence without a gap, of a pool that does not fill.
    since: Option<Duration>,
    observed_at: Duration,
    /// What the pool held when `since` began.
    held_bytes: u64,
    stepped_at: Option<Duration>,
    ceiling_bytes: Option<u64>,
    wait: Duration,
    /// When a ceiling last had to go.
    lifted_at: Duration,
}

impl Default for Surplus {
    fn default() -> Self {
        Surplus {
            needs: VecDeque::new(),
            since: None,
            observed_at: Duration::ZERO,
            held_bytes: 0,
            stepped_at: None,
            ceiling_bytes: None,
            wait: WAIT,
            lifted_at: Duration::ZERO,
        }
    }
}

impl Surplus {
    /// The most that the pool should have, if that is less than it may.
    pub fn ceiling_bytes(&self) -> Option<u64> {
        self.ceiling_bytes
    }

    /// The pool keeps what it has, and may have all that there is: the policy says so.
    pub fn forget(&mut self) {
        *self = Surplus { wait: self.wait, lifted_at: self.lifted_at, ..Surplus::default() };
    }

    /// Takes what is known now. Returns why, if the ceiling is lower from now on.
    pub fn step(&mut self, at: Duration, need: Option<&Need>, pool: &PoolState) -> Option<String> {
        let pause = at.saturating_sub(std::mem::replace(&mut self.observed_at, at));
        if pool.wants_more {
            self.lift(at);
            return None;
        }
        let held = pool.resident_bytes.min(pool.limit_bytes);
        let fills = held > self.held_bytes + self.held_bytes / FILLING_SHARE;
        let Some(need) = need.filter(|_| pause <= GAP_MAX && !fills) else {
            self.needs.clear();
            self.since = need.map(|_| at);
            self.held_bytes = held;
            return None;
        };
        self.held_bytes = self.held_bytes.min(held);
        let since = *self.since.get_or_insert(at);
        self.note(at, need.bytes);
        let rests = self.stepped_at.is_some_and(|last| at.saturating_sub(last) < STEP_EVERY);
        if at.saturating_sub(since) < self.wait || rests {
            return None;
        }
        let highest = self.needs.front()?.1;
        let wanted = highest + highest / MARGIN_SHARE;
        let to = wanted.max(pool.limit_bytes / 2).max(held - held / STEP_SHARE);
        let to = to.max(pool.floor_bytes);
        let step = pool.limit_bytes.saturating_sub(to);
        if step < STEP_MIN_BYTES.max(pool.limit_bytes / STEP_MIN_SHARE) {
            return None;
        }
        self.ceiling_bytes = Some(to);
        self.stepped_at = Some(at);
        if at.saturating_sub(self.lifted_at) >= WAIT_MAX {
            self.wait = WAIT;
        }
        Some(why(need, wanted, held.saturating_sub(to)))
    }

    /// The pool has use for more.
    fn lift(&mut self, at: Duration) {
        if self.ceiling_bytes.is_some() {
            self.wait = (self.wait * 2).min(WAIT_MAX);
            self.lifted_at = at;
        }
        self.needs.clear();
        (self.since, self.stepped_at, self.ceiling_bytes) = (None, None, None);
        self.held_bytes = 0;
    }

    fn note(&mut self, at: Duration, bytes: u64) {
        while self.needs.back().is_some_and(|&(_, lower)| lower <= bytes) {
            self.needs.pop_back();
        }
        self.needs.push_back((at, bytes));
        let wait = self.wait;
        while self.needs.front().is_some_and(|&(seen, _)| at.saturating_sub(seen) > wait) {
            self.needs.pop_front();
        }
    }
}

/// The reason of a step that gives `freed_bytes` back: what is predicted.
fn why(need: &Need, wanted_bytes: u64, freed_bytes: u64) -> String {
    let share = match need.reads_per_second > 0.0 {
        true => need.extra_reads_per_second / need.reads_per_second * 100.0,
        false => 0.0,
    };
    format!(
        "{} MiB would do, with {:.1} reads/s more ({share:.2} % of the time spent on reads); \
         {} pages are read again if they are wanted after all",
        wanted_bytes >> 20,
        need.extra_reads_per_second,
        freed_bytes / need.page_bytes.max(1)
    )
}

#[cfg(test)]
mod tests;
