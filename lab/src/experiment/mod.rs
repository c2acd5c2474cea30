//! The experiments. Each is a function from a [`Lab`] to records, and knows nothing of how they are
//! judged or drawn.

use std::fmt::Display;

use crate::engine::Engine;
use crate::error::Result;
use crate::lab::{Lab, Settings, Takes};
use crate::load::tables::DataSet;
use crate::record::{Outcome, Point, Record, statistics};

pub mod advice;
pub mod cluster;
mod data;
pub mod defaults;
pub mod govern;
pub mod idle;
pub mod limits;
pub mod pressure;
pub mod queries;
pub mod resize;
pub mod sideload;
pub mod swap;
pub mod traces;
pub mod warm;

#[derive(Debug)]
pub struct Experiment {
    /// Its name on the command line and in results.
    pub name: &'static str,
    /// Runs it and keeps its records.
    pub run: fn(&Lab) -> Result<()>,
    /// The engines that it runs on.
    pub engines: &'static [Engine],
    /// Others that it runs on where they are asked for.
    pub also: &'static [Engine],
    /// The data that it needs, for each of its engines.
    pub data: fn(&Settings) -> Vec<(Engine, DataSet)>,
    /// The names of its cases, with these settings; none if it is only ever run as a whole.
    pub cases: fn(&Settings) -> Vec<String>,
    /// What can be chosen of its load.
    pub takes: Takes,
}

/// Clients that only load.
const THREADS: Takes = Takes { threads: true, seconds: false, warehouses: false };
/// Runs of any length, too.
const SECONDS: Takes = Takes { seconds: true, ..THREADS };
const TPCC: Takes = Takes { warehouses: true, ..SECONDS };
/// The number of clients is a part of what is asked.
const NOTHING: Takes = Takes { threads: false, ..THREADS };

/// Engines with a buffer pool whose size can be changed on line, in the same server.
const POOLS: [Engine; 2] = [Engine::Tidepool, Engine::InnoDb];
/// InnoDB as it is in MySQL.
const MYSQL: [Engine; 1] = [Engine::MySql];

/// All of them.
pub const ALL: [Experiment; 13] = [
    with_mysql("swap", swap::run, data::data, swap::case_names, SECONDS),
    with_mysql("pressure", pressure::run, pressure::data, pressure::case_names, THREADS),
    with_mysql("limits", limits::run, data::data, limits::case_names, THREADS),
    with_mysql("govern", govern::run, govern::data, govern::case_names, THREADS),
    with_mysql("resize", resize::run, resize::data, resize::case_names, THREADS),
    with_mysql("sideload", sideload::run, data::data, sideload::case_names, NOTHING),
    with_mysql("warm", warm::run, data::data, no_cases, THREADS),
    with_mysql("queries", queries::run, queries::data, queries::case_names, NOTHING),
    whole("advice", advice::run, &POOLS, advice::data, SECONDS),
    whole("idle", idle::run, &POOLS, idle::data, THREADS),
    whole("defaults", defaults::run, &defaults::ENGINES, defaults::data, TPCC),
    Experiment {
        cases: cluster::case_names,
        ..whole("cluster", cluster::run, &[Engine::Tidepool], cluster::data, SECONDS)
    },
    whole("traces", traces::run, &POOLS, traces::data, NOTHING),
];

/// What an experiment needs, for each of its engines.
type Data = fn(&Settings) -> Vec<(Engine, DataSet)>;

fn no_cases(_: &Settings) -> Vec<String> {
    Vec::new()
}

/// What the disk of a side load or a restart allows, as a cloud volume does: reads a second.
pub(crate) const READS_PER_SECOND: u32 = 2000;

/// An experiment that compares pools, in MySQL too where that is asked for.
const fn with_mysql(
    name: &'static str,
    run: fn(&Lab) -> Result<()>,
    data: Data,
    cases: fn(&Settings) -> Vec<String>,
    takes: Takes,
) -> Experiment {
    Experiment { name, run, engines: &POOLS, also: &MYSQL, data, cases, takes }
}

/// An experiment whose cases belong together.
const fn whole(
    name: &'static str,
    run: fn(&Lab) -> Result<()>,
    engines: &'static [Engine],
    data: Data,
    takes: Takes,
) -> Experiment {
    Experiment { name, run, engines, also: &[], data, cases: no_cases, takes }
}

/// The mean throughput of one of several turns of `turn_s` seconds, of which the first `settle_s`
/// don't count.
fn turn_qps(series: &[Point], turn: u32, turn_s: u32, settle_s: u32) -> f64 {
    let from_s = f64::from(turn * turn_s + settle_s);
    let points = statistics::between(series, from_s, f64::from((turn + 1) * turn_s));
    statistics::mean(points.iter().map(|point| point.qps))
}

/// The figures of the measured seconds that every experiment gives.
fn summarise(record: &mut Record) {
    let measured = statistics::between(&record.series, 0.0, f64::MAX);
    let median = |of: fn(&Point) -> f64| statistics::median(measured.iter().map(of));
    let mean = |of: fn(&Point) -> f64| statistics::mean(measured.iter().map(of));
    let figures = [
        ("qps", median(|point| point.qps)),
        ("tps", median(|point| point.tps)),
        ("p95_ms", median(|point| point.p95_ms)),
        ("pool_mib", median(|point| (point.pool_bytes >> 20) as f64)),
        ("disk_read_mb_s", mean(|point| point.disk_read_mb_s)),
        ("disk_write_mb_s", mean(|point| point.disk_write_mb_s)),
        ("swap_in_mb_s", mean(|point| point.swap_in_mb_s)),
        ("swap_out_mb_s", mean(|point| point.swap_out_mb_s)),
        ("cpu_s_per_s", mean(|point| point.cpu_s_per_s)),
    ];
    record.summary.extend(figures.map(|(name, value)| (name.to_string(), value)));
    let line = |outcome: &dyn Display| {
        tracing::info!(
            "{} {}: {} — {outcome}: {:.0} queries/s, p95 {:.2} ms, swap-in {:.2} MB/s, pool {:.0} MiB",
            record.experiment,
            record.label(),
            record.scenario,
            record.figure("qps").unwrap_or(0.0),
            record.figure("p95_ms").unwrap_or(0.0),
            record.figure("swap_in_mb_s").unwrap_or(0.0),
            record.figure("pool_mib").unwrap_or(0.0),
        );
    };
    match &record.outcome {
        Outcome::Finished => line(&"finished"),
        Outcome::OomKilled => line(&"killed, out of memory"),
        Outcome::Failed(why) => line(&format!("failed ({why})")),
    }
}
