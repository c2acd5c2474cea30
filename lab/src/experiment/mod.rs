//! The experiments. Each is a function from a [`Lab`] to records, and knows nothing of how they are judged or drawn.

use std::fmt::Display;

use crate::error::Result;
use crate::lab::Lab;
use crate::record::{Outcome, Record, statistics};

pub mod advice;
pub mod idle;
pub mod pressure;
pub mod resize;
pub mod sideload;
pub mod swap;
pub mod warm;

/// Runs an experiment and keeps its records.
pub type Experiment = fn(&Lab) -> Result<()>;

/// The experiments by name.
pub const ALL: &[(&str, Experiment)] = &[
    ("swap", swap::run),
    ("pressure", pressure::run),
    ("resize", resize::run),
    ("sideload", sideload::run),
    ("warm", warm::run),
    ("advice", advice::run),
    ("idle", idle::run),
];

/// The figures of the measured seconds that every experiment gives.
fn summarise(record: &mut Record) {
    let measured = statistics::between(&record.series, 0.0, f64::MAX);
    let median = |of: fn(&crate::record::Point) -> f64| statistics::median(measured.iter().map(of));
    let mean = |of: fn(&crate::record::Point) -> f64| statistics::mean(measured.iter().map(of));
    let figures = [
        ("qps", median(|point| point.qps)),
        ("tps", median(|point| point.tps)),
        ("p95_ms", median(|point| point.p95_ms)),
        ("pool_mib", median(|point| (point.pool_bytes >> 20) as f64)),
        ("disk_read_mb_s", mean(|point| point.disk_read_mb_s)),
        ("disk_write_mb_s", mean(|point| point.disk_write_mb_s)),
        ("swap_in_mb_s", mean(|point| point.swap_in_mb_s)),
        ("swap_out_mb_s", mean(|point| point.swap_out_mb_s)),
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
