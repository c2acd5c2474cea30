//! The miss-ratio curve of the pool's own policy, kept live by miniature simulations.
//!
//! # Method
//! A pool of S frames over all pages has very nearly the miss ratio of one of S·R frames over a
//! sample of the pages with rate R (Waldspurger et al., "Cache modeling and optimization using
//! miniature simulations", ATC 2017; SHARDS, FAST 2015). Each [`Point`] runs the policy at one
//! size, with a rate that gives it about [`FRAMES`] frames.
//!
//! # Sizes
//! The points lie on a fixed grid, three to each doubling, from a quarter to four times the present
//! size and a little beyond. A resize of the pool moves none of them: at most it adds a point at an
//! end, which begins with the pages of its neighbour. Between points, miss ratios are interpolated.
//!
//! # What is counted
//! Misses of the sample, divided by its rate, over *all* requests of the pool, which its counters
//! know exactly. So a page that is always hit matters as much as it does in truth, whether it is in
//! the sample or not: the root of a tree may have a third of all requests. (SHARDS calls the same
//! the adjustment of the first bucket.) The same lets hits be passed over that are certain: see
//! [`Recent`].
//!
//! A miss is an access to an absent page that the disk must be read for, by the query or ahead of
//! it; making a page anew is none.

use std::time::Duration;

use crate::access_sampling::{Event, Sample, Touch};
use crate::error::Result;
use crate::pool_core::reserve_of;
use crate::replacement::{Access, ReplacementConfig, Request, Simulation};

/// Frames of a miniature simulation, where costs permit.
pub(super) const FRAMES: f64 = 1024.0;
/// Frames that it has at least, whatever it costs.
const FRAMES_MIN: f64 = 64.0;
/// Requests a second that all simulations together may take: a few milliseconds' work.
pub(super) const REQUESTS_PER_SECOND_MAX: f64 = 50_000.0;
/// Where the highest rate stops to fall.
const RATE_MAX_LEAST: f64 = 1.0 / (1 << 20) as f64;
/// The rate is raised again only after so long with a quarter of that.
const CALM: Duration = Duration::from_secs(10);
/// What was counted so long ago counts half. Less at first, a quarter of the time that there was:
/// pages that are read for the first time after a start say nothing of the time after.
const HALF_LIFE_SECONDS: std::ops::RangeInclusive<f64> = 2.0..=60.0;
/// The same, of what the wish for memory goes by.
const WISH_HALF_LIFE_SECONDS: f64 = 15.0;
/// The smallest pool that is simulated, in frames.
const SIZE_MIN: f64 = 64.0;
/// Points of the grid between a size and its double.
const STEPS_PER_DOUBLING: f64 = 3.0;
/// Points beyond the sizes that are asked for: kept, so that a pool that swings to and fro keeps
/// its evidence.
const SPARE_POINTS: i32 = 3;

/// The policy at one size.
struct Point {
    /// Its place in the grid.
    step: i32,
    sample: Sample,
    simulation: Simulation,
    misses: f64,
    requests: f64,
    /// What was counted since the last turn of [`LATELY`], and in the turn before.
    lately: [Lately; 2],
    /// Requests until it counts: after its sample grew, the new pages are strangers.
    warming: u64,
}

/// Misses of some time, without decay: of a load that has ended a decayed count keeps a trace for a
/// quarter of an hour.
#[derive(Clone, Copy, Default)]
struct Lately {
    misses: f64,
    seconds: f64,
}

/// How long a turn of [`Lately`] takes, in seconds.
const LATELY: f64 = 30.0;

/// Which pages were asked for just now. A thread that asks for one of them again is sure of a hit
/// at every size, so the simulations need not hear of it: the root of a tree would else be all they
/// hear of. (They hear often enough of a page that is asked for all the time to take it for the
/// hottest.)
struct Recent {
    slots: Box<[(u64, u64)]>,
    passed: u64,
}

/// Requests back that count as just now; much less than the frames of any simulation.
const RECENT: u64 = 16;

impl Recent {
    fn new() -> Recent {
        Recent { slots: vec![(u64::MAX, 0); 64].into(), passed: RECENT }
    }

    fn holds_or_takes(&mut self, event: &Event) -> bool {
        // What a scan did says nothing of a query's use.
        let page = event.page ^ u64::from(event.touch == Touch::Scan) << 63;
        let slot = &mut self.slots[(page.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 58) as usize];
        if slot.0 == page && self.passed - slot.1 < RECENT {
            return true;
        }
        self.passed += 1;
        *slot = (page, self.passed);
        false
    }
}

/// What a larger pool would save, counted page for page on one sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Saved {
    /// Misses at the present size, and fewer at the largest.
    pub(super) misses: f64,
    pub(super) saved: f64,
    pub(super) seconds: f64,
}

pub(super) struct Curve {
    config: ReplacementConfig,
    points: Vec<Point>,
    /// The pool's present size, in frames.
    present: f64,
    /// Pages that it holds, compressed or not, as a multiple of its frames.
    reach_factor: f64,
    /// The highest rate that costs permit.
    rate_max: f64,
    recent: Recent,
    /// All of the pool's requests and the time that they took; decayed, and in all.
    requests: f64,
    seconds: f64,
    observed_seconds: f64,
    /// Seconds of the present turn of [`Lately`].
    turn_seconds: f64,
    /// Requests that simulations took since the last account, lately a second, and for how long
    /// few.
    simulated: u64,
    simulated_per_second: f64,
    calm: Duration,
    saved: Saved,
}

fn size_of_step(step: i32) -> f64 {
    (f64::from(step) / STEPS_PER_DOUBLING).exp2()
}

/// Frames that hold pages in a pool of `size` frames: the evictor keeps a few free.
pub(super) fn holding(size: f64) -> f64 {
    size - reserve_of(size as u32) as f64
}

/// The rate of the sample at `size` frames: one page in a whole number.
fn rate_at(size: f64, rate_max: f64) -> f64 {
    let rate = (FRAMES / holding(size)).min(rate_max).max(FRAMES_MIN / holding(size)).min(1.0);
    1.0 / (1.0 / rate).round()
}

impl Point {
    fn new(config: &ReplacementConfig, step: i32, rate_max: f64) -> Result<Point> {
        let size = size_of_step(step);
        let sample = Sample::of_rate(rate_at(size, rate_max));
        let frames = (holding(size) * sample.rate()).round() as u32;
        let simulation = Simulation::new(config, frames)?;
        let lately = Default::default();
        Ok(Point { step, sample, simulation, misses: 0.0, requests: 0.0, lately, warming: 0 })
    }

    fn size(&self) -> f64 {
        size_of_step(self.step)
    }

    /// Takes over the pages of another simulation, the coldest first.
    fn seed(&mut self, pages: &[u64]) {
        for (&page, statement) in pages.iter().zip(1..) {
            if self.sample.holds(page) {
                let at_ms = 1;
                self.simulation.request(&Request {
                    page,
                    statement,
                    access: Access::Normal,
                    at_ms,
                });
            }
        }
    }

    /// Misses a second in the last turn and this one, once a whole turn is known.
    fn misses_lately(&self) -> Option<f64> {
        let [now, before] = self.lately;
        let seconds = now.seconds + before.seconds;
        (seconds >= LATELY).then(|| (now.misses + before.misses) / seconds)
    }

    fn miss_ratio(&self) -> Option<f64> {
        (self.requests > 0.0).then(|| (self.misses / self.requests).min(1.0))
    }
}

impl Curve {
    /// A curve without evidence, around a pool of `frames` frames.
    pub(super) fn new(config: &ReplacementConfig, frames: u32) -> Result<Curve> {
        let mut curve = Curve {
            config: *config,
            points: Vec::new(),
            present: 0.0,
            reach_factor: 1.0,
            rate_max: 1.0,
            recent: Recent::new(),
            requests: 0.0,
            seconds: 0.0,
            observed_seconds: 0.0,
            turn_seconds: 0.0,
            simulated: 0,
            simulated_per_second: 0.0,
            calm: Duration::ZERO,
            saved: Saved::default(),
        };
        curve.set_present(frames)?;
        Ok(curve)
    }

    /// The policy that it simulates.
    pub(super) fn config(&self) -> ReplacementConfig {
        self.config
    }

    /// Which pages it wants to hear of.
    pub(super) fn sample(&self) -> Sample {
        self.points.iter().map(|point| point.sample).max().unwrap_or(Sample::NONE)
    }

    /// Sets the pool's present size. Costs nothing if it has not changed.
    pub(super) fn set_present(&mut self, frames: u32) -> Result<()> {
        let present = frames as f64;
        if present == self.present {
            return Ok(());
        }
        self.present = present;
        let step = |size: f64| size.max(SIZE_MIN).log2() * STEPS_PER_DOUBLING;
        let (low, high) = (step(present / 4.0).floor() as i32, step(present * 4.0).ceil() as i32);
        self.points
            .retain(|point| (low - SPARE_POINTS..=high + SPARE_POINTS).contains(&point.step));
        // Upwards from the smallest there is, then downwards: each new one has a neighbour.
        let (first, last) = match (self.points.first(), self.points.last()) {
            (Some(first), Some(last)) => (first.step, last.step),
            _ => {
                self.points.push(Point::new(&self.config, low, self.rate_max)?);
                (low, low)
            }
        };
        for step in last + 1..=high {
            let mut point = Point::new(&self.config, step, self.rate_max)?;
            let neighbour = self.points.last_mut().expect("there is one at least");
            point.seed(&neighbour.simulation.coldest_first());
            self.points.push(point);
        }
        for step in (low..first).rev() {
            let mut point = Point::new(&self.config, step, self.rate_max)?;
            point.seed(&self.points[0].simulation.coldest_first());
            self.points.insert(0, point);
        }
        Ok(())
    }

    /// Sets how many pages a pool holds for each of its frames, part of them compressed.
    pub(super) fn set_reach(&mut self, factor: f64) {
        self.reach_factor = factor;
    }

    /// Goes over to another policy, or other settings of it; the evidence is kept until better
    /// comes.
    pub(super) fn configure(&mut self, config: &ReplacementConfig) -> Result<()> {
        self.config = *config;
        for index in 0..self.points.len() {
            self.remake(index)?;
        }
        Ok(())
    }

    /// Makes a point anew, with the policy and the rate that are right now, and its old pages.
    fn remake(&mut self, index: usize) -> Result<()> {
        let old = &mut self.points[index];
        let mut new = Point::new(&self.config, old.step, self.rate_max)?;
        new.seed(&old.simulation.coldest_first());
        (new.misses, new.requests, new.lately) = (old.misses, old.requests, old.lately);
        if new.sample > old.sample {
            new.warming = u64::from(new.simulation.frames()) * 4;
        }
        self.points[index] = new;
        Ok(())
    }

    /// Takes out of the list what no simulation needs to hear of: see [`Recent`].
    pub(super) fn drop_certain_hits(&mut self, events: &mut Vec<Event>) {
        events.retain(|event| !self.recent.holds_or_takes(event));
    }

    /// Takes requests for sampled pages, in order of time, without those that are certain hits.
    pub(super) fn observe(&mut self, events: &[Event]) {
        let present =
            self.points.iter().position(|point| point.size() >= self.present * self.reach_factor);
        let last = self.points.len() - 1;
        let present = present.unwrap_or(last);
        for event in events {
            let request = request_of(event);
            let counts = event.touch != Touch::Created;
            let (mut at_present, mut at_last) = (true, true);
            for (index, point) in self.points.iter_mut().enumerate() {
                if !point.sample.holds(event.page) {
                    continue;
                }
                self.simulated += 1;
                let hit = point.simulation.request(&request);
                if point.warming > 0 {
                    point.warming -= 1;
                } else if !hit && counts {
                    point.misses += 1.0 / point.sample.rate();
                    point.lately[0].misses += 1.0 / point.sample.rate();
                }
                if index == present {
                    at_present = hit;
                } else if index == last {
                    at_last = hit;
                }
            }
            if counts && self.points[last].sample.holds(event.page) {
                let weight = 1.0 / self.points[last].sample.rate();
                self.saved.misses += weight * f64::from(u8::from(!at_present));
                let saved = i8::from(!at_present) - i8::from(!at_last);
                self.saved.saved += weight * f64::from(saved);
            }
        }
    }

    /// Adds how many requests the pool had in the last `seconds`, sampled or not, and how many
    /// of the sampled were dropped on the way for each that arrived.
    pub(super) fn account(
        &mut self,
        requests: u64,
        dropped_share: f64,
        seconds: f64,
    ) -> Result<()> {
        let heard = requests as f64 * (1.0 - dropped_share.clamp(0.0, 1.0));
        let (shortest, longest) = (*HALF_LIFE_SECONDS.start(), *HALF_LIFE_SECONDS.end());
        let half_life = (self.observed_seconds / 4.0).clamp(shortest, longest);
        let keep = (-seconds / half_life).exp2();
        for point in &mut self.points {
            point.misses *= keep;
            point.requests *= keep;
            if point.warming == 0 {
                point.requests += heard;
                point.lately[0].seconds += seconds;
            }
        }
        self.turn_seconds += seconds;
        if self.turn_seconds >= LATELY {
            self.turn_seconds = 0.0;
            for point in &mut self.points {
                point.lately = [Lately::default(), point.lately[0]];
            }
        }
        self.requests = self.requests * keep + requests as f64;
        self.seconds = self.seconds * keep + seconds;
        self.observed_seconds += seconds;
        let keep = (-seconds / WISH_HALF_LIFE_SECONDS).exp2();
        self.saved.misses *= keep;
        self.saved.saved *= keep;
        self.saved.seconds = self.saved.seconds * keep + seconds;
        self.adapt_rate(seconds)
    }

    /// Keeps the simulations' work within bounds.
    fn adapt_rate(&mut self, seconds: f64) -> Result<()> {
        let now = self.simulated as f64 / seconds.max(0.001);
        self.simulated = 0;
        let share = seconds.min(1.0);
        self.simulated_per_second += (now - self.simulated_per_second) * share;
        let highest = self.sample().rate();
        if self.simulated_per_second > REQUESTS_PER_SECOND_MAX {
            self.calm = Duration::ZERO;
            self.set_rate_max((self.rate_max.min(highest) / 2.0).max(RATE_MAX_LEAST))?;
        } else if self.simulated_per_second * 4.0 < REQUESTS_PER_SECOND_MAX
            && highest >= self.rate_max * 0.9
            && self.rate_max < 1.0
        {
            self.calm += Duration::from_secs_f64(seconds);
            if self.calm > CALM {
                self.calm = Duration::ZERO;
                self.set_rate_max(self.rate_max * 2.0)?;
            }
        } else {
            self.calm = Duration::ZERO;
        }
        Ok(())
    }

    fn set_rate_max(&mut self, rate_max: f64) -> Result<()> {
        let before = self.simulated_per_second;
        let total = |curve: &Curve| -> f64 { curve.points.iter().map(|p| p.sample.rate()).sum() };
        let total_before = total(self);
        self.rate_max = rate_max.min(1.0);
        for index in 0..self.points.len() {
            let point = &self.points[index];
            if point.sample != Sample::of_rate(rate_at(point.size(), self.rate_max)) {
                self.remake(index)?;
            }
        }
        self.simulated_per_second = before * total(self) / total_before;
        Ok(())
    }

    /// Forgets what was counted, not which pages there are.
    pub(super) fn forget(&mut self) {
        for point in &mut self.points {
            (point.misses, point.requests) = (0.0, 0.0);
            point.lately = Default::default();
        }
        (self.requests, self.seconds, self.saved) = (0.0, 0.0, Saved::default());
    }

    /// Share of the requests that a pool of `frames` frames would read from disk for; `None`
    /// without evidence.
    pub(super) fn miss_ratio(&self, frames: f64) -> Option<f64> {
        let mut below: Option<(f64, f64)> = None;
        // A larger pool of the same policy has hardly ever more misses: what says so is noise, or
        // a new point's lack of pages.
        let mut least = 1.0_f64;
        for point in &self.points {
            let Some(ratio) = point.miss_ratio() else { continue };
            least = least.min(ratio);
            if point.size() >= frames {
                let Some((size, ratio)) = below else { return Some(least) };
                let along = (frames - size) / (point.size() - size);
                return Some(ratio + (least - ratio) * along);
            }
            below = Some((point.size(), least));
        }
        below.map(|(_, ratio)| ratio)
    }

    /// Reads a second that a pool of `frames` frames would have had in the last half minute or
    /// minute; `None` without evidence, or below the smallest size that there is evidence of.
    pub(super) fn reads_lately(&self, frames: f64) -> Option<f64> {
        let mut below: Option<(f64, f64)> = None;
        // As in `miss_ratio`.
        let mut least = f64::INFINITY;
        for point in &self.points {
            let Some(reads) = point.misses_lately() else {
                below = None;
                continue;
            };
            least = least.min(reads);
            if point.size() >= frames {
                let (size, reads) = below?;
                let along = (frames - size) / (point.size() - size);
                return Some(reads + (least - reads) * along);
            }
            below = Some((point.size(), least));
        }
        below.map(|(_, reads)| reads)
    }

    /// Requests a second of late, or 0.
    pub(super) fn requests_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.requests / self.seconds } else { 0.0 }
    }

    pub(super) fn saved(&self) -> Saved {
        self.saved
    }

    /// Whether the largest simulation has frames that no page needed yet.
    pub(super) fn largest_is_filling(&self) -> bool {
        self.points
            .last()
            .is_some_and(|point| point.simulation.resident() < point.simulation.frames())
    }

    /// How much time the counts stand for, and how long they were taken for in all.
    pub(super) fn window(&self) -> (Duration, Duration) {
        (Duration::from_secs_f64(self.seconds), Duration::from_secs_f64(self.observed_seconds))
    }

    /// Requests a second that the simulations took of late.
    #[cfg(test)]
    pub(super) fn simulated_per_second(&self) -> f64 {
        self.simulated_per_second
    }

    /// Pages in all simulations.
    pub(super) fn sampled_pages(&self) -> u64 {
        self.points.iter().map(|point| u64::from(point.simulation.resident())).sum()
    }
}

/// The event as a policy sees it.
pub(super) fn request_of(event: &Event) -> Request {
    let access = if event.touch == Touch::Scan { Access::Scan } else { Access::Normal };
    let at_ms = (event.at_us / 1000) as u32;
    Request { page: event.page, statement: event.statement, access, at_ms }
}
