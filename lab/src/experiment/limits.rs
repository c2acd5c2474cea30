//! A limit that changes under a warm server: half of the memory cgroup's limit is taken away, and
//! given back later.
//!
//! An operator writes the lower limit at once, or in an order: first the pool is given a ceiling
//! that fits the new limit, then, when it has that size, the limit is written, and then the ceiling
//! is removed. With swap space the kernel takes any limit, and swaps what is above it. Without swap
//! space, version 1 refuses a limit that is too low for the memory in use, and version 2 kills.

use std::path::{Path, PathBuf};

use crate::engine::Engine;
use crate::error::Result;
use crate::lab::{Lab, Moment, Plan, Settings, Stage};
use crate::load::sysbench::{Distribution, Job};
use crate::progress::Progress;
use crate::record::{NEVER, Outcome, Record, statistics};

use super::data::tables;
use super::summarise;

/// Percent of the memory that the pool of an engine without a governor begins with.
const FIXED_PERCENT: u64 = 75;
/// Percent of the new limit that is the ceiling while the limit is lowered.
const CEILING_PERCENT: u64 = 60;
/// When things happen, in measured seconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    warm_up_s: u32,
    /// When the limit is lowered, or the pool gets its ceiling.
    lowered_s: u32,
    raised_s: u32,
    end_s: u32,
}

const USUAL: Times = Times { warm_up_s: 20, lowered_s: 10, raised_s: 35, end_s: 50 };
const QUICK: Times = Times { warm_up_s: 8, lowered_s: 5, raised_s: 17, end_s: 25 };
/// A pool that is within this share of a size has it.
const NEAR: f64 = 0.05;

/// A way to lower the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The limit is written, and nothing else done.
    AtOnce,
    /// The pool gets a ceiling first.
    CeilingFirst,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    order: Order,
    with_swap: bool,
}

impl Case {
    fn name(self) -> &'static str {
        match (self.order, self.with_swap) {
            (Order::AtOnce, true) => "at once",
            (Order::CeilingFirst, true) => "ceiling first",
            (Order::AtOnce, false) => "at once, no swap",
            (Order::CeilingFirst, false) => "ceiling first, no swap",
        }
    }
}

/// Those without swap space first, as it is the machine's.
const CASES: [Case; 4] = [
    Case { order: Order::AtOnce, with_swap: false },
    Case { order: Order::CeilingFirst, with_swap: false },
    Case { order: Order::AtOnce, with_swap: true },
    Case { order: Order::CeilingFirst, with_swap: true },
];

/// Those that are run.
fn cases(settings: &Settings) -> impl Iterator<Item = Case> {
    CASES.into_iter().filter(|case| case.with_swap || !settings.quick)
}

/// What can be chosen from.
pub(super) fn case_names(settings: &Settings) -> Vec<String> {
    cases(settings).map(|case| case.name().to_string()).collect()
}

/// Runs the experiment.
///
/// # Errors
/// If the machine can't do it, or a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    lab.need_memory_cgroups()?;
    let memory = lab.settings.memory_bytes;
    let data = tables(memory);
    let mut dirs: Vec<(Engine, PathBuf)> = Vec::new();
    for &engine in &lab.settings.engines {
        dirs.push((engine, lab.data(engine, &data, &mut Progress::new(1))?));
    }
    lab.begin("limits")?;
    let times = if lab.settings.quick { QUICK } else { USUAL };
    let wanted = cases(&lab.settings).filter(|case| lab.settings.wants(case.name()));
    let runs: Vec<(Case, Plan)> = wanted
        .flat_map(|case| dirs.iter().map(move |(engine, dir)| (case, *engine, dir)))
        .map(|(case, engine, dir)| (case, plan(lab, case, engine, dir)))
        .collect();
    let mut progress = Progress::new(runs.iter().map(|(_, plan)| plan.duration_s()).sum());
    let mut swap = None;
    for (case, plan) in &runs {
        if case.with_swap && swap.is_none() {
            swap = Some(lab.swap_file(2 * memory)?);
        }
        let mut lowering = Lowering::new(case.order, times, memory, plan.engine);
        let mut record = lab.run(plan, &mut progress, |stage, moment| match moment {
            Moment::After(second) => lowering.step(stage, second),
            Moment::End => lowering.end(stage),
        })?;
        summarise(&mut record);
        judge(&mut record, &lowering);
        lab.keep(&record)?;
    }
    Ok(())
}

fn plan(lab: &Lab, case: Case, engine: Engine, dir: &Path) -> Plan {
    let settings = &lab.settings;
    let times = if settings.quick { QUICK } else { USUAL };
    let rows = tables(settings.memory_bytes).tables[0].rows;
    let job = Job::point_selects(rows, settings.threads(16), Distribution::Uniform);
    let mut plan = Plan::new("limits", engine, dir, job);
    plan.scenario = case.name().into();
    plan.memory_limit = Some(settings.memory_bytes);
    let pool_bytes = match engine {
        Engine::Tidepool => 0,
        _ => settings.memory_bytes / 100 * FIXED_PERCENT,
    };
    plan.args = vec![engine.pool_size_option(pool_bytes)];
    (plan.warm_up_s, plan.measure_s) = (times.warm_up_s, times.end_s);
    plan
}

/// Lowers the limit in an order, and raises it again.
#[derive(Debug)]
struct Lowering {
    order: Order,
    times: Times,
    memory_bytes: u64,
    engine: Engine,
    /// When the limit was written.
    written_at_s: Option<u32>,
    /// The least size that the pool was asked to have, by the server's own record.
    least_asked_bytes: Option<u64>,
}

impl Lowering {
    fn new(order: Order, times: Times, memory_bytes: u64, engine: Engine) -> Lowering {
        let (written_at_s, least_asked_bytes) = (None, None);
        Lowering { order, times, memory_bytes, engine, written_at_s, least_asked_bytes }
    }

    fn ceiling_bytes(&self) -> u64 {
        self.memory_bytes / 2 / 100 * CEILING_PERCENT
    }

    /// `second` seconds have been measured.
    fn step(&mut self, stage: &mut Stage, second: u32) -> Result<()> {
        let Times { lowered_s, raised_s, .. } = self.times;
        match (self.order, self.written_at_s) {
            (_, Some(_)) if second == raised_s => {
                stage.limit_memory(self.memory_bytes);
                if self.order == Order::CeilingFirst && self.engine != Engine::Tidepool {
                    stage.set_pool_size(self.memory_bytes / 100 * FIXED_PERCENT)?;
                }
            }
            (Order::CeilingFirst, None) if second == lowered_s => {
                stage.set_pool_size(self.ceiling_bytes())?;
            }
            (Order::CeilingFirst, None) if second > lowered_s && self.has_ceiling(stage) => {
                self.write(stage, second);
            }
            (Order::AtOnce, None) if second == lowered_s => self.write(stage, second),
            // A pool without a governor stays at what was set.
            (Order::CeilingFirst, Some(at))
                if second == at + 1 && self.engine == Engine::Tidepool =>
            {
                stage.set_pool_size(0)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the pool is as small as the ceiling. InnoDB rounds a size up to whole chunks.
    fn has_ceiling(&self, stage: &Stage) -> bool {
        stage.point.pool_bytes <= self.ceiling_bytes() / 100 * 110
    }

    fn write(&mut self, stage: &mut Stage, second: u32) {
        stage.limit_memory(self.memory_bytes / 2);
        self.written_at_s = Some(second);
    }

    fn end(&mut self, stage: &Stage) -> Result<()> {
        if self.engine == Engine::Tidepool {
            let query = "SELECT MIN(TO_BYTES) FROM information_schema.TIDEPOOL_MEMORY_DECISIONS \
                         WHERE SIGNAL_NAME <> 'compressed tier' AND SIGNAL_NAME <> 'start'";
            let least = stage.server.value(query)?;
            self.least_asked_bytes = least.and_then(|bytes| bytes.parse().ok());
        }
        Ok(())
    }
}

/// Adds the figures that the bounds are about.
fn judge(record: &mut Record, lowering: &Lowering) {
    if record.outcome != Outcome::Finished {
        return;
    }
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let (lowered_s, raised_s) =
        (f64::from(lowering.times.lowered_s), f64::from(lowering.times.raised_s));
    let series = &record.series;
    let pool = |point: &crate::record::Point| point.pool_bytes as f64;
    let before = statistics::between(series, 0.0, lowered_s);
    let low = statistics::between(series, lowered_s, raised_s);
    let full = statistics::median(before.iter().map(pool));
    // Where it has come to rest.
    let rest = statistics::between(series, raised_s - 5.0, raised_s);
    let fits = statistics::median(rest.iter().map(pool));
    let seen = low.iter().map(pool).fold(f64::INFINITY, f64::min);
    let asked = lowering.least_asked_bytes.map_or(f64::INFINITY, |bytes| bytes as f64);
    let least = seen.min(asked);
    let is_far = |point: &&crate::record::Point| (pool(point) - fits).abs() > NEAR * fits;
    let settled_s = low.iter().rfind(is_far).map_or(0.0, |point| point.at_s + 1.0 - lowered_s);
    // From when it was first that small.
    let reached = low.iter().position(|point| pool(point) <= (1.0 + NEAR) * fits);
    let after = reached.map_or(&[][..], |at| &low[at..]);
    let most = after.iter().map(pool).fold(0.0, f64::max);
    let back = statistics::between(series, raised_s, f64::MAX);
    let back = back.iter().find(|point| pool(point) >= (1.0 - NEAR) * full);
    let swapped_mb = |from_s: f64, to_s: f64| -> f64 {
        statistics::between(series, from_s, to_s).iter().map(|point| point.swap_out_mb_s).sum()
    };
    let qps_before = statistics::median(before.iter().map(|point| point.qps));
    let worst_qps = low.iter().map(|point| point.qps).fold(f64::INFINITY, f64::min);
    let figures = [
        ("pool_before_mib", mib(full)),
        ("pool_fits_mib", mib(fits)),
        ("pool_least_mib", mib(least)),
        ("pool_least_ratio", least / fits.max(1.0)),
        ("pool_most_ratio", most / fits.max(1.0)),
        ("settled_after_s", settled_s),
        ("back_after_s", back.map_or(NEVER, |point| point.at_s - raised_s)),
        ("swapped_out_mb", swapped_mb(lowered_s, raised_s)),
        ("worst_second_qps", worst_qps),
        ("worst_second_ratio", worst_qps / qps_before.max(1.0)),
    ];
    record.summary.extend(figures.map(|(name, value)| (name.to_string(), value)));
    let shown = ["swapped_out_mb", "pool_fits_mib", "pool_least_mib", "settled_after_s"];
    let shown = shown.map(|name| format!("{name} {:.1}", record.figure(name).unwrap_or(0.0)));
    tracing::info!("limits {} {}: {}", record.label(), record.scenario, shown.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Point;

    /// A pool of 800 MiB, which is `least` for a second when the limit is lowered, then 350 for
    /// five, then 400; and 800 again four seconds after the limit was raised.
    fn record(least_mib: u64) -> Record {
        let mut record = crate::record::finished("limits", "at once", "tidepool", &[]);
        for second in 1..=USUAL.end_s {
            let mib = match second {
                11 => least_mib,
                12..=16 => 350,
                17..=38 => 400,
                _ => 800,
            };
            record.series.push(Point {
                at_s: f64::from(second),
                pool_bytes: mib << 20,
                qps: if second == 11 { 100.0 } else { 1000.0 },
                swap_out_mb_s: if second == 11 { 30.0 } else { 0.5 },
                ..Point::default()
            });
        }
        record
    }

    #[test]
    fn a_pool_that_falls_too_far_and_comes_back_is_seen() {
        let mut record = record(150);
        let mut lowering = Lowering::new(Order::AtOnce, USUAL, 1 << 30, Engine::Tidepool);
        judge(&mut record, &lowering);
        let is = |record: &Record, name: &str, wanted: f64| {
            assert_eq!(record.figure(name), Some(wanted), "{name}");
        };
        is(&record, "pool_before_mib", 800.0);
        is(&record, "pool_fits_mib", 400.0);
        is(&record, "pool_least_mib", 150.0);
        is(&record, "pool_most_ratio", 1.0);
        is(&record, "settled_after_s", 7.0);
        is(&record, "back_after_s", 4.0);
        is(&record, "swapped_out_mb", 42.0);
        is(&record, "worst_second_ratio", 0.1);
        // What the server was asked for in between counts, too.
        lowering.least_asked_bytes = Some(16 << 20);
        judge(&mut record, &lowering);
        is(&record, "pool_least_mib", 16.0);
    }

    #[test]
    fn the_ceiling_fits_the_new_limit() {
        let lowering = Lowering::new(Order::CeilingFirst, USUAL, 1 << 30, Engine::Tidepool);
        assert!(lowering.ceiling_bytes() < (1 << 29) && lowering.ceiling_bytes() > 1 << 28);
    }
}
