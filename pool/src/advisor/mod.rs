//! The advisor: what another size of the pool would bring, from sampled accesses.
//!
//! A background thread drains the sampler some ten times a second, lets the replacement policy
//! learn from the sample, and brings the miss-ratio curve (`curve`) up to date. Oracle's name for
//! what comes out is `V$DB_CACHE_ADVICE`.
//!
//! Locking: the state's mutex is taken by the background thread and by who asks for advice, never
//! with a latch in hand; under it, the sampler's consumer and the policy's mutex.

mod curve;
mod replay;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::curve::{Curve, Saved, request_of};
pub use self::replay::{Comparison, compare};
use crate::access_sampling::{Event, Sample, now_us};
use crate::error::Result;
use crate::pool_core::PoolCore;
use crate::replacement::{ReplacementConfig, Request};
use crate::tier::Tier;

/// The sizes that advice is given for, relative to the present one.
pub const SIZE_FACTORS: [f64; 9] = [0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0];

/// What the pool would do at other sizes, from the last minutes' requests.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Advice {
    /// By size, ascending: [`SIZE_FACTORS`].
    pub rows: Vec<AdviceRow>,
    /// Pages that the simulations hold together.
    pub sampled_pages: u64,
    /// Share of all pages whose accesses the simulations hear of, the smallest sizes at least.
    pub sample_rate: f64,
    /// How much time the figures stand for: what is older counts less and less.
    pub window: Duration,
    /// Accesses to pages, a second.
    pub requests_per_second: f64,
    wants_more: bool,
}

/// One size.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdviceRow {
    /// Bytes of frames.
    pub size_bytes: u64,
    /// Relative to the present size.
    pub size_factor: f64,
    /// Share of the accesses that need no read from disk, neither by the query nor ahead of it:
    /// what `1 - (reads + read_ahead) / read_requests` would be. 1 if nothing was accessed.
    pub hit_ratio: f64,
    /// Pages read from disk a second.
    pub reads_per_second: f64,
}

impl Advice {
    /// Whether a larger pool would save reads worth having. With hysteresis: it says no again only
    /// when half of what made it say yes would be saved.
    pub fn wants_more(&self) -> bool {
        self.wants_more
    }
}

/// Reads that are worth memory: this many saved a second are, whatever share of all they are, …
const SAVED_PER_SECOND: f64 = 10.0;
/// … or a tenth of that, if it is this share of all reads.
const SAVED_SHARE: f64 = 0.01;
/// Frames that the policy's shadows should at most have.
const SHADOW_FRAMES: u32 = 512;
/// Until the curve knows of this much time, a full pool that misses wants more.
const NO_EVIDENCE: Duration = Duration::from_secs(10);

/// What is saved, against what is needed to go on wanting (half), or to begin.
fn is_worth_it(saved: Saved, wanted_before: bool) -> bool {
    if saved.seconds <= 0.0 {
        return false;
    }
    let scale = if wanted_before { 0.5 } else { 1.0 };
    let per_second = saved.saved / saved.seconds;
    per_second >= SAVED_PER_SECOND * scale
        || per_second >= SAVED_PER_SECOND / 10.0 * scale
            && saved.saved >= SAVED_SHARE * scale * saved.misses
}

/// How small the pool could be: what it loses below that costs reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// The smallest size with which at most 0.1 % more is read, or half a page a second.
    pub size_bytes: u64,
    /// Pages that a pool of this size would read beyond those of the present one, a second.
    pub extra_reads_per_second: f64,
    /// Pages that the present one reads a second.
    pub reads_per_second: f64,
}

/// Memory is of no use if its loss adds at most this share to the reads, and so to the time that is
/// spent on them, …
const COST_SHARE: f64 = 0.001;
/// … or this many reads a second. Much less than what makes a pool want more
/// ([`SAVED_PER_SECOND`]), or it would grow back at once.
const COST_PER_SECOND: f64 = 0.5;
/// Until the curve knows of this much time, and of this many requests, nothing is said of a need.
const NEED_EVIDENCE: Duration = Duration::from_secs(60);
const NEED_REQUESTS: f64 = 1000.0;
/// The sizes that are looked at are this part of the present one apart.
const NEED_PARTS: u32 = 64;

/// Behind [`Pool::advice`](crate::Pool::advice).
pub(crate) struct Advisor {
    core: Arc<PoolCore>,
    tier: Arc<Tier>,
    state: Mutex<State>,
}

struct State {
    curve: Curve,
    /// The pool's counter of requests, and the time, when the sampler was last drained.
    requests: u64,
    at_us: u64,
    wants_more: bool,
    enabled: bool,
    events: Vec<Event>,
    sampled: Vec<Request>,
}

impl Advisor {
    /// Begins to have accesses sampled.
    pub(crate) fn new(
        core: Arc<PoolCore>,
        tier: Arc<Tier>,
        config: &ReplacementConfig,
    ) -> Result<Advisor> {
        let state = State {
            curve: Curve::new(config, core.frames.limit())?,
            requests: 0,
            at_us: now_us(&core.clock),
            wants_more: false,
            enabled: true,
            events: Vec::new(),
            sampled: Vec::new(),
        };
        core.samplers.advisor.set_sample(state.curve.sample());
        core.samplers.set_bound();
        Ok(Advisor { core, tier, state: Mutex::new(state) })
    }

    pub(crate) fn configure(&self, config: &ReplacementConfig) {
        if let Err(error) = self.state.lock().curve.configure(config) {
            tracing::error!(%error, "the advisor goes on with the old replacement policy");
        }
    }
}

impl Advisor {
    /// Calls `each` with the miss ratio by number of frames, how much time that was observed for,
    /// and the requests a second. `None` while there is no evidence.
    pub(crate) fn with_curve<T>(
        &self,
        each: impl FnOnce(&dyn Fn(f64) -> f64, Duration, f64) -> Option<T>,
    ) -> Option<T> {
        let state = self.state.lock();
        let curve = &state.curve;
        curve.miss_ratio(1.0)?;
        let miss_ratio = |frames: f64| curve.miss_ratio(frames).unwrap_or(0.0);
        each(&miss_ratio, curve.window().1, curve.requests_per_second())
    }

    /// Takes in what was sampled since the last time.
    pub(crate) fn run_step(&self) {
        if let Err(error) = self.advise() {
            tracing::error!(%error, "the advisor is stuck");
        }
    }

    fn advise(&self) -> Result<()> {
        let reach_factor = self.tier.reach_factor();
        let mut state = self.state.lock();
        let state = &mut *state;
        if !state.enabled {
            return Ok(());
        }
        state.events.clear();
        let drained = self.core.samplers.advisor.drain(&mut state.events);
        let (requests, now) = (self.core.counters.read_requests.sum(), now_us(&self.core.clock));
        let (asked, elapsed_us) = (requests - state.requests, now.saturating_sub(state.at_us));
        if asked == 0 && state.events.is_empty() && elapsed_us < 1_000_000 {
            return Ok(());
        }
        (state.requests, state.at_us) = (requests, now);

        state.curve.drop_certain_hits(&mut state.events);
        // The policy needs no more pages than its shadows have frames, or few more.
        let heard_of = (1.0 / state.curve.sample().rate()).round().max(1.0) as u32;
        let enough = (self.core.frames.limit() / SHADOW_FRAMES).max(1).next_power_of_two();
        let pages_per_sample = heard_of.max(enough);
        let sample = Sample::of_rate(1.0 / f64::from(pages_per_sample));
        state.sampled.clear();
        let sampled = state.events.iter().filter(|event| sample.holds(event.page));
        state.sampled.extend(sampled.map(request_of));
        self.core.replacement.observe(&state.sampled, pages_per_sample);

        state.curve.set_present(self.core.frames.limit())?;
        state.curve.set_reach(reach_factor);
        state.curve.observe(&state.events);
        let dropped =
            drained.dropped as f64 / (drained.dropped + drained.events as u64).max(1) as f64;
        state.curve.account(asked, dropped, elapsed_us as f64 / 1e6)?;
        if state.curve.sample() != self.core.samplers.advisor.sample() {
            self.core.samplers.advisor.set_sample(state.curve.sample());
            self.core.samplers.set_bound();
        }
        self.note_wish(state);
        Ok(())
    }

    fn note_wish(&self, state: &mut State) {
        let saved = state.curve.saved();
        let (_, observed) = state.curve.window();
        let is_unknown = observed < NO_EVIDENCE && state.curve.largest_is_filling();
        state.wants_more = self.is_full()
            && (is_worth_it(saved, state.wants_more) || is_unknown && saved.misses > 0.0);
    }

    /// Turns the advisor on (as it is at first) or off. Off, it forgets what it knew; accesses cost
    /// nothing, the replacement policy learns no more, and a full pool always wants more.
    pub(crate) fn set_enabled(&self, enabled: bool) -> Result<()> {
        let mut state = self.state.lock();
        if state.enabled == enabled {
            return Ok(());
        }
        state.curve = Curve::new(&state.curve.config(), self.core.frames.limit())?;
        state.enabled = enabled;
        state.wants_more = false;
        self.core.samplers.advisor.drain(&mut Vec::new());
        (state.requests, state.at_us) =
            (self.core.counters.read_requests.sum(), now_us(&self.core.clock));
        let sample = if enabled { state.curve.sample() } else { Sample::NONE };
        self.core.samplers.advisor.set_sample(sample);
        self.core.samplers.set_bound();
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.core.frames.available() <= 2 * self.core.reserve()
    }

    /// Whether a larger pool would save reads worth having: [`Advice::wants_more`] alone.
    pub(crate) fn wants_more(&self) -> bool {
        let state = self.state.lock();
        if state.enabled { state.wants_more } else { self.is_full() }
    }

    /// What other sizes of the pool would bring.
    pub(crate) fn advice(&self) -> Advice {
        let reach_factor = self.tier.reach_factor();
        let state = self.state.lock();
        let (curve, frames) = (&state.curve, self.core.frames.limit() as f64);
        let requests_per_second = curve.requests_per_second();
        let row = |&size_factor: &f64| {
            let reach = frames * size_factor * reach_factor;
            let miss_ratio = curve.miss_ratio(reach).unwrap_or(0.0);
            AdviceRow {
                size_bytes: (frames * size_factor) as u64 * self.core.page_size().bytes() as u64,
                size_factor,
                hit_ratio: 1.0 - miss_ratio,
                reads_per_second: miss_ratio * requests_per_second,
            }
        };
        Advice {
            rows: SIZE_FACTORS.iter().map(row).collect(),
            sampled_pages: curve.sampled_pages(),
            sample_rate: curve.sample().rate(),
            window: curve.window().0,
            requests_per_second,
            wants_more: if state.enabled { state.wants_more } else { self.is_full() },
        }
    }

    /// How small the pool could be, if there is evidence. No less than a quarter of the limit: the
    /// curve reaches no further.
    pub(crate) fn need(&self) -> Option<Need> {
        let reach_factor = self.tier.reach_factor();
        let state = self.state.lock();
        let curve = &state.curve;
        let (window, observed) = curve.window();
        let requests_per_second = curve.requests_per_second();
        let requests = requests_per_second * window.as_secs_f64();
        if !state.enabled || observed < NEED_EVIDENCE || requests < NEED_REQUESTS {
            return None;
        }
        let page_bytes = self.core.page_size().bytes() as u64;
        let limit = f64::from(self.core.frames.limit());
        let held = limit.min((self.core.resident_bytes() / page_bytes) as f64);
        let reads_at = |frames: f64| curve.reads_lately(frames * reach_factor);
        let reads_per_second = reads_at(held)?;
        let affordable = (reads_per_second * COST_SHARE).max(COST_PER_SECOND);
        let sizes = (1..NEED_PARTS).map(|part| held * f64::from(part) / f64::from(NEED_PARTS));
        let mut smaller = sizes.filter(|&frames| frames >= limit / 4.0);
        let fits = smaller.find_map(|frames| {
            let extra = (reads_at(frames)? - reads_per_second).max(0.0);
            (extra <= affordable).then_some((frames, extra))
        });
        let (frames, extra_reads_per_second) = fits.unwrap_or((held, 0.0));
        let size_bytes = frames as u64 * page_bytes;
        Some(Need { size_bytes, extra_reads_per_second, reads_per_second })
    }
}
