//! How much of the pool the tier has.
//!
//! # Method
//! Of a pool of *L* frames the tier has the share *s*. So *P = L (1 − s)* frames hold pages, and
//! the tier holds *L s / c* images, where *c* is an image's share of a frame. The pages of some of
//! these are resident as well: the share *d* that the clock's hands met, but *P* at most. Together
//! the pool *reaches R = P + L s / c − min(P, d L s / c)* pages. The advisor's miss-ratio curve *m*
//! says what share of the requests finds its page neither in *P* nor in *R* frames. A request
//! costs, on average,
//!
//! ```text
//!   m(P) × time of a new frame + (m(P) − m(R)) × time of a hit in the tier
//!                              + m(R) × time of a read
//! ```
//!
//! A new frame costs what the evictor does, and what the cleaner and the upkeep of files do for
//! pages that must be written because frames run short. The share of the least cost is the best.
//!
//! # Times
//! What counts is the time that is lost to others. Of a frame, a hit and a read, that is the
//! processor's time ([`CpuSample`]). A read waits besides. That counts by the square of the share
//! in which the machine's processors are idle: another thread uses the time if there is one, and a
//! shorter wait brings no more than the idle time. So a volume that allows few reads a second
//! counts as slow: threads queue there and processors are idle. A fast disk below a busy server
//! does not.
//!
//! # Steadiness
//! The share moves towards the best one only if that saves [`GAIN_MIN`] of the cost and
//! [`SAVED_MIN`] of a thread's time; else, if the present share costs more than none, towards none.
//! It moves by [`STEP`] at most, and rests between two moves until the curve and the times have
//! followed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::advisor::Advisor;
use crate::config::CompressedTier;
use crate::pool_core::PoolCore;
use crate::stats::PoolStats;
use crate::tier::{CpuSample, DUPLICATES, SHARE_ONE, Tier, pages_reached};

/// A smaller pool than this gets no tier by itself: 16 MiB of pages of 16 KiB.
const POOL_FRAMES_MIN: u32 = 1024;
/// Shares that are compared lie so far apart.
const GRID: u32 = 50;
/// The largest share.
const SHARE_MAX: u32 = 850;
/// The most that one move changes the share.
const STEP: u32 = 200;
/// A move must save this share of the cost …
const GAIN_MIN: f64 = 0.08;
/// … and this number of seconds a second, over all threads.
const SAVED_MIN: f64 = 0.005;
/// How long nothing moves after a move.
const REST: Duration = Duration::from_secs(4);
/// How often the cost is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// How much time the curve must know of before anything moves.
const EVIDENCE: Duration = Duration::from_secs(5);
/// Reads or hits that a measured time must have.
const TIMED_MIN: u64 = 20;
/// The time of a hit before any was measured, in microseconds: copying an image and decompressing
/// it.
const HIT_US: f64 = 25.0;
/// Processor's time of a read that its thread does not see, in microseconds: an interrupt and a
/// switch of threads.
const SWITCHES_US: f64 = 10.0;
/// The time of a new frame before any was measured; and what a page that comes into one costs in
/// caches, which no thread sees as such.
const FRAME_US: f64 = 30.0;
const CACHES_US: f64 = 20.0;
/// What images take beside their bytes, as long as it is not measured.
const SLAB_LOSS: f64 = 0.1;
/// Decisions that are kept.
const DECISIONS_MAX: usize = 64;

/// A decision about the tier's share of the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct TierDecision {
    /// When it was taken.
    pub taken_at: SystemTime,
    /// Bytes of the tier's frames before.
    pub from_bytes: u64,
    /// The same, from then on.
    pub to_bytes: u64,
    /// Why, in a sentence with the figures.
    pub reason: String,
}

/// What the cost of a share is computed from.
struct Model<'a> {
    /// Frames of the pool.
    limit: f64,
    /// The miss ratio by the number of frames.
    miss_ratio: &'a dyn Fn(f64) -> f64,
    /// Frames that an image takes.
    image_share: f64,
    /// Share of the images whose page is resident.
    duplicates: f64,
    /// The time of a hit in the tier, and that of a read, in microseconds.
    hit_us: f64,
    read_us: f64,
    /// The time of a new frame, in microseconds.
    frame_us: f64,
}

impl Model<'_> {
    /// Pages that the pool holds in either form.
    fn reach(&self, share: u32) -> f64 {
        let share = f64::from(share) / f64::from(SHARE_ONE);
        let pages = self.limit * (1.0 - share);
        pages_reached(pages, self.limit * share / self.image_share, self.duplicates)
    }

    /// Share of the requests that find the image in the tier, and share of those that read.
    fn hits_and_misses(&self, share: u32) -> (f64, f64) {
        let pages = self.limit * f64::from(SHARE_ONE - share) / f64::from(SHARE_ONE);
        let out_of_frames = (self.miss_ratio)(pages);
        let read = (self.miss_ratio)(self.reach(share).max(pages)).min(out_of_frames);
        (out_of_frames - read, read)
    }

    /// What a request costs on average, in microseconds.
    fn cost_us(&self, share: u32) -> f64 {
        let (hits, misses) = self.hits_and_misses(share);
        hits * self.hit_us + misses * self.read_us + (hits + misses) * self.frame_us
    }

    /// The share to go to from `now`, where `requests` come a second.
    fn next_share(&self, now: u32, requests: f64) -> u32 {
        let cost_now = self.cost_us(now);
        let shares = (0..=SHARE_MAX).step_by(GRID as usize);
        // Of equals the smallest.
        let best = shares.min_by(|&a, &b| self.cost_us(a).total_cmp(&self.cost_us(b)));
        let best = best.expect("the grid is not empty");
        let saved = cost_now - self.cost_us(best);
        let is_worth_it = saved >= GAIN_MIN * cost_now && saved * requests / 1e6 >= SAVED_MIN;
        let wanted = match is_worth_it {
            true => best,
            false if self.cost_us(0) < cost_now => 0,
            false => now,
        };
        wanted.clamp(now.saturating_sub(STEP), now + STEP)
    }
}

/// See the head of this module.
pub(crate) struct TierSizing {
    core: Arc<PoolCore>,
    tier: Arc<Tier>,
    advisor: Arc<Advisor>,
    pub(crate) measured: Mutex<Measured>,
}

/// What is known of the times, and when the share may move again.
#[derive(Default)]
pub(crate) struct Measured {
    looked_at: Option<Instant>,
    moved_at: Option<Instant>,
    /// How long reads take; and the processor's time of reads and of hits.
    reads: Timed,
    reads_cpu: Timed,
    hits_cpu: Timed,
    /// Pages that left their frames, and the threads' time for that; the shares of pages that were
    /// written for it.
    frames: Timed,
    written: (u64, u64),
    busy_us: u64,
    frames_us: u64,
    machine: MachineTime,
    idle_share: f64,
    /// Makes the machine seem to have this share of its time to spare.
    #[cfg(test)]
    pub(crate) seems_idle: Option<f64>,
    passed: (u64, u64),
    decisions: VecDeque<TierDecision>,
}

/// The mean time of an event of late.
#[derive(Default)]
struct Timed {
    count: u64,
    us: u64,
    mean_us: Option<f64>,
}

/// What was measured now counts three tenths, all before it the rest.
fn smoothed(before: f64, now: f64) -> f64 {
    before + (now - before) * 0.3
}

impl Timed {
    fn note_sample(&mut self, sample: &CpuSample) {
        self.note(sample.count.load(Ordering::Relaxed), sample.us.load(Ordering::Relaxed));
    }

    /// Takes the counters' present values.
    fn note(&mut self, count: u64, us: u64) {
        let events = count - self.count;
        if events < TIMED_MIN {
            return;
        }
        let mean = (us - self.us) as f64 / events as f64;
        (self.count, self.us) = (count, us);
        self.mean_us = Some(self.mean_us.map_or(mean, |before| smoothed(before, mean)));
    }
}

/// How the machine's processors spend their time.
#[derive(Default)]
struct MachineTime {
    /// Idle and in all, in ticks.
    last: Option<(u64, u64)>,
}

impl MachineTime {
    /// The share of the processors' time since the last call that was idle.
    fn idle_since_last(&mut self) -> Option<f64> {
        let now = idle_and_all(&std::fs::read_to_string("/proc/stat").ok()?)?;
        let before = self.last.replace(now)?;
        let (idle, all) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        (all > 0).then(|| (idle as f64 / all as f64).min(1.0))
    }
}

/// Ticks that all processors were idle, and all of their ticks, from `/proc/stat`.
fn idle_and_all(stat: &str) -> Option<(u64, u64)> {
    // user nice system idle iowait irq softirq steal; what guests have is in the first two.
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|it| it.parse().ok()).collect();
    let (idle, waiting) = (ticks.get(3)?, ticks.get(4)?);
    Some((idle + waiting, ticks.iter().sum()))
}

impl Measured {
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = |since: Option<Instant>, pause| since.is_none_or(|at| now - at >= pause);
        if !is_due(self.looked_at, EVERY) {
            return false;
        }
        self.looked_at = Some(now);
        is_due(self.moved_at, REST)
    }
}

impl TierSizing {
    pub(crate) fn new(core: Arc<PoolCore>, tier: Arc<Tier>, advisor: Arc<Advisor>) -> TierSizing {
        TierSizing { core, tier, advisor, measured: Mutex::default() }
    }

    /// Changes the setting of the tier. Turned off, its frames are given back at once.
    pub(crate) fn set_setting(&self, setting: CompressedTier) {
        // No decision is under way that would give the tier a share afterwards.
        let _measured = self.measured.lock();
        self.tier.set_setting(setting);
    }

    /// Looks whether the tier should have another share of the pool, and gives it that. Called by
    /// the advisor's thread.
    pub(crate) fn run_step(&self) {
        if !self.core.background.runs() {
            return;
        }
        let now = Instant::now();
        let mut measured = self.measured.lock();
        let measured = &mut *measured;
        if self.tier.setting() == CompressedTier::Off || !measured.is_due(now) {
            return;
        }
        let (stats, tier) = (self.core.stats(), self.tier.stats());
        measured.reads.note(stats.reads, stats.reads_us);
        measured.reads_cpu.note_sample(&self.tier.reads_cpu);
        measured.hits_cpu.note_sample(&self.tier.hits_cpu);
        measured.note_frames(&stats, self.core.background.busy_us());
        measured.note_idle();
        measured.note_duplicates(&self.tier, self.tier.passed());
        self.tier.age();
        let limit = self.core.frames.limit();
        let known = self.tier.image_share(self.core.page_size().bytes()).zip(measured.read_us());
        let (Some((image_bytes, read_us)), true) = (known, limit >= POOL_FRAMES_MIN) else {
            return;
        };
        let from = self.tier.share();
        let to = self.advisor.with_curve(|curve, evidence, requests| {
            if evidence < EVIDENCE {
                return None;
            }
            let held = (tier.frames * stats.page_size_bytes) as f64;
            let loss = match tier.images > 1000 {
                true => (held / tier.image_bytes.max(1) as f64).clamp(1.0, 2.0),
                false => 1.0 + SLAB_LOSS,
            };
            let model = Model {
                limit: f64::from(limit),
                miss_ratio: curve,
                image_share: (image_bytes * loss).max(0.01),
                duplicates: self.tier.duplicates().unwrap_or(DUPLICATES),
                hit_us: measured.hits_cpu.mean_us.unwrap_or(HIT_US),
                read_us,
                frame_us: measured.frames.mean_us.unwrap_or(FRAME_US) + CACHES_US,
            };
            let to = model.next_share(from, requests);
            (to != from).then(|| (to, reason(&model, from, to, requests)))
        });
        let Some((to, reason)) = to else { return };
        measured.moved_at = Some(now);
        let bytes = |share: u32| {
            stats.page_size_bytes * u64::from(limit) * u64::from(share) / u64::from(SHARE_ONE)
        };
        if measured.decisions.len() == DECISIONS_MAX {
            measured.decisions.pop_front();
        }
        tracing::debug!(from, to, reason, "the compressed tier changes its share");
        measured.decisions.push_back(TierDecision {
            taken_at: SystemTime::now(),
            from_bytes: bytes(from),
            to_bytes: bytes(to),
            reason,
        });
        self.tier.set_share(to);
    }

    /// The last decisions about the compressed tier, oldest first.
    pub(crate) fn decisions(&self) -> Vec<TierDecision> {
        self.measured.lock().decisions.iter().cloned().collect()
    }
}

impl Measured {
    /// What a read costs: see the head of this module. `None` before any was measured.
    fn read_us(&self) -> Option<f64> {
        let (wall, cpu) = (self.reads.mean_us?, self.reads_cpu.mean_us?);
        Some(cpu + SWITCHES_US + (wall - cpu).max(0.0) * self.idle_share.powi(2))
    }

    fn note_idle(&mut self) {
        if let Some(idle) = self.machine.idle_since_last() {
            self.idle_share = smoothed(self.idle_share, idle);
        }
        #[cfg(test)]
        if let Some(idle) = self.seems_idle {
            self.idle_share = idle;
        }
    }

    /// Takes the threads' time as the time of frames, without the part that went into pages that
    /// were written for the sake of a checkpoint.
    fn note_frames(&mut self, stats: &PoolStats, busy_us: u64) {
        let written = (stats.pages_flushed, stats.pages_flushed_lru);
        let before = std::mem::replace(&mut self.written, written);
        let all = written.0 - before.0;
        let for_frames = (written.1 - before.1) as f64 / all.max(1) as f64;
        let us = busy_us.saturating_sub(std::mem::replace(&mut self.busy_us, busy_us));
        let us = if all == 0 { us } else { (us as f64 * for_frames) as u64 };
        self.frames_us += us;
        self.frames.note(stats.pages_evicted, self.frames_us);
    }

    fn note_duplicates(&mut self, tier: &Tier, passed: (u64, u64)) {
        let images = passed.0 - self.passed.0;
        if images < 1000 {
            return;
        }
        let share = (passed.1 - self.passed.1) as f64 / images as f64;
        self.passed = passed;
        let before = tier.duplicates().unwrap_or(share);
        tier.set_duplicates(smoothed(before, share).clamp(0.0, 0.9));
    }
}

/// The sentence that the decision's log has.
fn reason(model: &Model<'_>, from: u32, to: u32, requests: f64) -> String {
    let ((hits_before, reads_before), (hits, reads)) =
        (model.hits_and_misses(from), model.hits_and_misses(to));
    format!(
        "an image takes {:.0} % of a frame; a read costs {:.0} µs, a hit in the tier {:.0} µs, \
         a frame for either {:.0} µs; \
         with {:.0} % of the pool instead of {:.0} %, \
         {:.0} instead of {:.0} pages a second are read from files, \
         and {:.0} instead of {:.0} decompressed from the tier",
        model.image_share * 100.0,
        model.read_us,
        model.hit_us,
        model.frame_us,
        f64::from(to) / 10.0,
        f64::from(from) / 10.0,
        reads * requests,
        reads_before * requests,
        hits * requests,
        hits_before * requests,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uniform accesses to `pages` pages.
    fn uniform(pages: f64) -> impl Fn(f64) -> f64 {
        move |frames: f64| (1.0 - frames / pages).max(0.0)
    }

    fn model(miss_ratio: &dyn Fn(f64) -> f64) -> Model<'_> {
        Model {
            limit: 10_000.0,
            miss_ratio,
            image_share: 0.25,
            duplicates: 0.2,
            hit_us: 25.0,
            read_us: 300.0,
            frame_us: 30.0,
        }
    }

    fn settled(model: &Model<'_>, requests: f64) -> u32 {
        let mut share = 0;
        for _ in 0..20 {
            let next = model.next_share(share, requests);
            assert!(next.abs_diff(share) <= STEP);
            if next == share {
                return share;
            }
            share = next;
        }
        panic!("the share does not come to rest");
    }

    #[test]
    fn data_that_fits_as_images_gets_just_enough_of_them() {
        let curve = uniform(20_000.0);
        let model = model(&curve);
        let share = settled(&model, 10_000.0);
        assert!((400..=600).contains(&share), "{share}");
        assert!(model.reach(share) >= 19_000.0);
    }

    #[test]
    fn nothing_is_compressed_where_it_brings_nothing() {
        let fits = uniform(9_000.0);
        assert_eq!(settled(&model(&fits), 10_000.0), 0, "all pages fit in frames");
        let large = uniform(40_000.0);
        let hardly_shrinks = Model { image_share: 0.74, ..model(&large) };
        assert_eq!(settled(&hardly_shrinks, 10_000.0), 0);
        let fast_disk = Model { read_us: 40.0, image_share: 0.5, ..model(&large) };
        assert_eq!(settled(&fast_disk, 10_000.0), 0);
        let idle = model(&large);
        assert_eq!(settled(&idle, 1.0), 0, "a request a second");
    }

    #[test]
    fn the_machines_idle_time_is_read() {
        let stat = "cpu  100 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3 4\n";
        assert_eq!(idle_and_all(stat), Some((450, 621)));
        assert_eq!(idle_and_all("cpu  1 2"), None);
        assert_eq!(idle_and_all(""), None);
        assert!(idle_and_all(&std::fs::read_to_string("/proc/stat").unwrap()).is_some());
    }

    #[test]
    fn the_tier_goes_when_the_data_shrinks() {
        let curve = uniform(9_000.0);
        let model = model(&curve);
        let mut share = 600;
        for _ in 0..10 {
            share = model.next_share(share, 10_000.0);
        }
        assert!(model.hits_and_misses(share).0 < 0.05, "{share}");
    }
}
