//! The rescue (the end of the first article): a pool of one and a half times the memory, which
//! swaps, is made to fit while the load goes on.
//!
//! InnoDB by `SET GLOBAL innodb_buffer_pool_size`, after which the article's server "pretty much
//! grinds to halt for 15 minutes", and once by `tidepool govern`, which is started at the same
//! second. Tidepool by the guard against just this, which was off until then. A server may be
//! killed before it can be rescued; that is its result.

use std::path::Path;

use crate::engine::Engine;
use crate::error::Result;
use crate::lab::{Lab, Moment, Plan, Settings, Stage};
use crate::load::sysbench::{Distribution, Job};
use crate::progress::Progress;
use crate::record::{NEVER, Outcome, Point, Record, statistics};

use super::super::data::tables;
use super::super::govern::SWAPS_MB_S;
use super::super::summarise;

/// The name of the case.
pub(crate) const RESCUE: &str = "rescue";

/// Percent of the memory that the pool has, and that it is given.
const FROM_PERCENT: u64 = 150;
const TO_PERCENT: u64 = 75;
const WARM_UP_S: u32 = 12;
/// When the pool is made smaller, and how long the server is watched then.
const BEFORE_S: u32 = 15;
const AFTER_S: u32 = 75;
/// The last seconds, which tell the throughput of a pool that fits.
const END_S: u32 = 15;
/// Length in seconds of the slowest interval: it distinguishes a halt from a slow second.
const HALT_S: usize = 10;

/// How a pool is made to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Resize,
    Govern,
    Guard,
}

impl Way {
    fn all(engine: Engine) -> &'static [Way] {
        match engine {
            Engine::Tidepool => &[Way::Guard],
            _ => &[Way::Resize, Way::Govern],
        }
    }

    /// For people.
    fn variant(self) -> String {
        match self {
            Way::Resize => format!("SET {TO_PERCENT} %"),
            Way::Govern => "govern".into(),
            Way::Guard => "guard ON".into(),
        }
    }

    fn begin(self, stage: &mut Stage, memory_bytes: u64) -> Result<()> {
        match self {
            Way::Resize => {
                let engine = stage.server.options().engine;
                stage.set(&engine.set_pool_size(memory_bytes / 100 * TO_PERCENT));
            }
            Way::Govern => stage.start_governing()?,
            Way::Guard => stage.set("SET GLOBAL tidepool_memory_guard=ON"),
        }
        Ok(())
    }
}

/// A quick run is too short for it.
pub(super) fn is_there(settings: &Settings) -> bool {
    !settings.quick
}

fn plan(settings: &Settings, (engine, dir): (Engine, &Path), rows: u64, way: Way) -> Plan {
    let memory_bytes = settings.memory_bytes;
    let job = Job::point_selects(rows, settings.threads(16), Distribution::Uniform);
    let mut plan = Plan::new("swap", engine, dir, job);
    plan.scenario = RESCUE.into();
    plan.variant = way.variant();
    plan.args = vec![
        engine.pool_size_option(memory_bytes / 100 * FROM_PERCENT),
        engine.redo_option(memory_bytes / 2),
    ];
    if way == Way::Guard {
        plan.args.push("--tidepool-memory-guard=OFF".into());
    }
    plan.memory_limit = Some(memory_bytes);
    (plan.warm_up_s, plan.measure_s) = (WARM_UP_S, BEFORE_S + AFTER_S);
    plan
}

/// Runs the case on each engine; there is swap space already.
pub(super) fn run(lab: &Lab) -> Result<()> {
    let memory = lab.settings.memory_bytes;
    let data = tables(memory);
    let mut plans = Vec::new();
    for &engine in &lab.settings.engines {
        let dir = lab.data(engine, &data, &mut Progress::new(1))?;
        let ways = Way::all(engine).iter();
        plans.extend(
            ways.map(|&way| (plan(&lab.settings, (engine, &dir), data.tables[0].rows, way), way)),
        );
    }
    let mut progress = Progress::new(plans.iter().map(|(plan, _)| plan.duration_s()).sum());
    for (plan, way) in &plans {
        let mut record = lab.run(plan, &mut progress, |stage, moment| match moment {
            Moment::After(BEFORE_S) => way.begin(stage, memory),
            _ => Ok(()),
        })?;
        summarise(&mut record);
        judge(&mut record, memory);
        lab.keep(&record)?;
    }
    Ok(())
}

/// Adds the figures of the rescue, of a server that lived through it.
fn judge(record: &mut Record, memory_bytes: u64) {
    let (from_s, end_s) = (f64::from(BEFORE_S), f64::from(BEFORE_S + AFTER_S - END_S));
    let before = statistics::between(&record.series, 0.0, from_s);
    let before = statistics::median(before.iter().map(|point| point.qps));
    record.summary.insert("qps_before".into(), before);
    if record.outcome != Outcome::Finished {
        return;
    }
    let end = steady(statistics::between(&record.series, end_s, f64::MAX), memory_bytes);
    for point in &mut record.series {
        point.relative = end.filter(|_| point.at_s > from_s).map(|end| point.qps / end);
    }
    let worst = statistics::worst_second(&record.series);
    let after = statistics::between(&record.series, from_s, f64::MAX);
    let back = end.and_then(|end| back_at(after, end)).map_or(NEVER, |at_s| at_s - from_s);
    let mean = |part: &[Point]| statistics::mean(part.iter().map(|point| point.qps));
    let set = |name: &str| record.figure(name).unwrap_or(0.0);
    let returned = match set("set_pending") + set("set_failed") > 0.0 {
        true => Some(NEVER),
        false => record.figure("set_returned_ms").map(|ms| ms / 1e3),
    };
    let figures = [
        ("qps_end", end),
        ("seconds_to_90_percent", Some(back)),
        ("worst_second_ratio", worst.map(|(ratio, _)| ratio)),
        ("worst_second_at_s", worst.map(|(_, at_s)| at_s)),
        ("worst_second_qps", after.iter().map(|point| point.qps).reduce(f64::min)),
        ("slowest_10_s_qps", after.windows(HALT_S).map(mean).reduce(f64::min)),
        ("rescue_set_s", returned),
    ];
    let measured = figures.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?)));
    record.summary.extend(measured);
}

/// The throughput of the end, if the pool fits by then and nothing swaps any more: a server that
/// stands still is steady, too.
fn steady(end: &[Point], memory_bytes: u64) -> Option<f64> {
    let size = statistics::median(end.iter().map(|point| point.pool_bytes as f64));
    let swap_in = statistics::mean(end.iter().map(|point| point.swap_in_mb_s));
    let qps = statistics::median(end.iter().map(|point| point.qps));
    (size <= memory_bytes as f64 && swap_in < SWAPS_MB_S && qps > 0.0).then_some(qps)
}

/// The end of the first of three seconds that have, as the quarter of a minute that begins with
/// them, 90 % of the throughput of the end.
fn back_at(after: &[Point], end: f64) -> Option<f64> {
    let is_back = |&at: &usize| {
        let (now, lasting) = statistics::now_and_lasting(after, at);
        now.min(lasting) >= 0.9 * end
    };
    (0..after.len()).find(is_back).map(|at| after[at].at_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::finished;

    const MEMORY: u64 = 1 << 30;

    /// A run with these queries a second, one number a second from the rescue on; the last one goes
    /// on. The pool fits from `fits_s` seconds after the rescue.
    fn record(qps: &[f64], fits_s: u32) -> Record {
        let mut record = finished("swap", RESCUE, "innodb", &[("set_returned_ms", 2500.0)]);
        for second in 1..=BEFORE_S + AFTER_S {
            let after = second.checked_sub(BEFORE_S + 1);
            let pool_bytes = match after {
                Some(after) if after >= fits_s => MEMORY / 4 * 3,
                _ => MEMORY / 2 * 3,
            };
            let qps = after.map_or(300.0, |after| qps[(after as usize).min(qps.len() - 1)]);
            record.series.push(Point {
                at_s: f64::from(second),
                qps,
                pool_bytes,
                ..Point::default()
            });
        }
        record
    }

    #[test]
    fn a_pool_that_fits_again_is_back_when_its_throughput_lasts() {
        // A halt of 12 seconds, with one quick second in it.
        let mut qps = vec![2.0; 12];
        qps[5] = 1200.0;
        qps.push(1000.0);
        let mut record = record(&qps, 4);
        judge(&mut record, MEMORY);
        let figure = |name: &str| record.figure(name).unwrap();
        assert_eq!(figure("seconds_to_90_percent"), 13.0);
        assert_eq!(figure("qps_before"), 300.0);
        assert_eq!(figure("qps_end"), 1000.0);
        assert_eq!(figure("worst_second_ratio"), 0.002);
        assert_eq!(figure("worst_second_qps"), 2.0);
        assert_eq!(figure("slowest_10_s_qps"), (9.0 * 2.0 + 1200.0) / 10.0);
        assert_eq!(figure("rescue_set_s"), 2.5);
        assert_eq!(record.series[14].relative, None);
    }

    #[test]
    fn a_server_that_stands_still_or_swaps_is_never_back() {
        let never = |mut record: Record| {
            judge(&mut record, MEMORY);
            assert_eq!(record.figure("worst_second_ratio"), None);
            record.figure("seconds_to_90_percent") == Some(NEVER)
        };
        assert!(never(record(&[0.0], 0)));
        // The same throughput all the time, of a pool that is as large as before.
        assert!(never(record(&[300.0], 1000)));
        let mut swaps = record(&[300.0], 0);
        for point in &mut swaps.series {
            point.swap_in_mb_s = 30.0;
        }
        assert!(never(swaps));
        let mut pending = record(&[1000.0], 0);
        pending.summary.insert("set_pending".into(), 1.0);
        judge(&mut pending, MEMORY);
        assert_eq!(pending.figure("rescue_set_s"), Some(NEVER));
        assert_eq!(pending.figure("seconds_to_90_percent"), Some(1.0));
    }

    #[test]
    fn a_server_that_was_killed_has_no_figures_of_the_rescue() {
        let mut record = record(&[0.0], 0);
        record.outcome = Outcome::OomKilled;
        record.series.truncate(10);
        judge(&mut record, MEMORY);
        assert_eq!(record.figure("qps_before"), Some(300.0));
        assert_eq!(record.figure("seconds_to_90_percent"), None);
    }

    #[test]
    fn each_engine_starts_with_a_pool_that_does_not_fit() {
        let dir = Path::new("data");
        let size = (MEMORY / 100 * FROM_PERCENT).to_string();
        let settings = Settings { memory_bytes: MEMORY, ..Settings::usual() };
        for engine in [Engine::Tidepool, Engine::InnoDb, Engine::MySql] {
            for &way in Way::all(engine) {
                let plan = plan(&settings, (engine, dir), 1, way);
                assert!(plan.args[0].ends_with(&size), "{:?}", plan.args);
                // Not from its start: the case is a rescue, not a protection.
                assert!(!plan.governed);
                let unguarded = plan.args.iter().any(|arg| arg.ends_with("guard=OFF"));
                assert_eq!(unguarded, engine == Engine::Tidepool);
            }
        }
    }
}
