//! What looking after itself costs when there is nothing to do: point selects on a resident table, with governor,
//! guard and advisor on and off.
//!
//! The cost that is looked for is a hundredth, and a machine that is shared drifts by a fifth within a minute. So both
//! servers are up at the same time, each with the same bytes of data in its pool, and the load goes to and fro between
//! them in turns of a few seconds, in the order on-off-off-on. Two turns that follow each other meet the same machine,
//! and what is told is the median of their ratios, with its quartiles. The server that is not in turn is stopped
//! (`SIGSTOP`), so that its threads cost the other nothing.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lab::{Lab, Plan, Settings};
use crate::load::sysbench::{Distribution, Job, Second, Sysbench};
use crate::load::tables::{self, DataSet};
use crate::progress::Progress;
use crate::record::{Outcome, Point, Record, statistics};
use crate::server::{Server, ServerOptions};

use super::{for_tidepool, resize::read_all, summarise};

/// Rows of a table that fits any pool.
const ROWS: u64 = 500_000;
/// The fixed pool, which holds the table several times.
const FIXED_BYTES: u64 = 512 << 20;
/// Seconds of a turn that are not counted: connecting, and a processor's caches that held the other server.
const SETTLE_S: u32 = 1;

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    for_tidepool(settings, vec![DataSet::one("idle", ROWS)])
}

/// One of the two servers, and what was measured on it.
struct Side {
    server: Server,
    record: Record,
    /// Median queries a second of each turn.
    turns: Vec<f64>,
    pages_read_before: u64,
}

impl Side {
    fn start(lab: &Lab, plan: &Plan) -> Result<Side> {
        let options = ServerOptions {
            engine: plan.engine,
            data_dir: plan.data_dir.clone(),
            args: plan.args.clone(),
            cgroup_procs: Vec::new(),
        };
        let server = Server::start(&lab.environment, options)?;
        let mut record = plan.record(lab.settings.quick);
        record.server_version = server.value("SELECT VERSION()")?.unwrap_or_default();
        server.execute(&read_all("sbtest.sbtest1", ROWS))?;
        let pages_read_before = server.pool_status()?.pages_read;
        server.signal(Signal::STOP);
        Ok(Side { server, record, turns: Vec::new(), pages_read_before })
    }

    /// Lets the server run under load for a turn; `at_s` is the clock of the experiment.
    fn turn(&mut self, job: &Job, seconds: u32, at_s: &mut f64, bar: &mut Progress) -> Result<()> {
        self.server.signal(Signal::CONT);
        let mut load = Sysbench::start(self.server.socket(), job)?;
        let mut measured: Vec<Second> = Vec::new();
        for second in 0..SETTLE_S + seconds {
            let Ok(report) = load.next_second() else {
                self.record.outcome = Outcome::Failed("sysbench fell silent".into());
                return Ok(());
            };
            bar.second();
            if second >= SETTLE_S {
                measured.push(report);
            }
        }
        drop(load);
        let status = self.server.pool_status()?;
        self.server.signal(Signal::STOP);
        for second in &measured {
            *at_s += 1.0;
            self.record.series.push(Point {
                at_s: *at_s,
                tps: second.tps,
                qps: second.qps,
                p95_ms: second.p95_ms,
                pool_bytes: status.size_bytes,
                target_bytes: status.target_bytes,
                data_bytes: status.data_bytes,
                ..Point::default()
            });
        }
        self.turns.push(statistics::mean(measured.iter().map(|second| second.qps)));
        Ok(())
    }

    /// Ends the server and sums up.
    fn finish(mut self) -> Result<Record> {
        self.server.signal(Signal::CONT);
        // 0 says that the table was resident all the time.
        let read = self.server.pool_status()?.pages_read.saturating_sub(self.pages_read_before);
        self.record.summary.insert("pages_read".into(), read as f64);
        self.server.stop()?;
        summarise(&mut self.record);
        Ok(self.record)
    }
}

/// Runs the experiment. It is about Tidepool only.
///
/// # Errors
/// If a server does not start or dies.
pub fn run(lab: &Lab) -> Result<()> {
    if !lab.settings.engines.contains(&Engine::Tidepool) {
        return Err(Error::Missing("only Tidepool has a governor".into()));
    }
    let engine = Engine::Tidepool;
    let (pairs, turn_s) = if lab.settings.quick { (10, 2) } else { (36, 3) };
    let mut progress = Progress::new(2 * pairs * (SETTLE_S + turn_s));
    let dir = lab.data(engine, &DataSet::one("idle", ROWS), &mut progress)?;
    lab.begin("idle")?;
    let _lock = tables::lock(&dir)?;
    // A data directory takes one server; what the lab has in its running directory goes when it ends.
    let copy = lab.environment.run_dir().join("idle");
    tables::copy(&dir, &copy)?;
    let job = Job {
        script: "oltp_point_select".into(),
        database: "sbtest".into(),
        rows: ROWS,
        threads: 8,
        distribution: Distribution::Uniform,
    };
    let plan = |variant: &str, dir: &Path, args: Vec<String>| {
        let mut plan = Plan::new("idle", engine, dir, job.clone());
        plan.scenario = "resident point selects in turns".into();
        plan.variant = variant.into();
        plan.args = args;
        (plan.warm_up_s, plan.measure_s) = (SETTLE_S, pairs * turn_s);
        plan
    };
    let mut on = Side::start(lab, &plan("on", &dir, vec![engine.pool_size_option(0)]))?;
    let fixed = vec![
        engine.pool_size_option(FIXED_BYTES),
        "--loose-tidepool-memory-guard=OFF".into(),
        "--loose-tidepool-cache-advice=OFF".into(),
    ];
    let mut off = Side::start(lab, &plan("off", &copy, fixed))?;
    progress.forget_time();
    progress.say("idle: on and off in turns");
    let mut at_s = 0.0;
    for pair in 0..pairs {
        let (first, second) = if pair % 2 == 0 { (&mut on, &mut off) } else { (&mut off, &mut on) };
        first.turn(&job, turn_s, &mut at_s, &mut progress)?;
        second.turn(&job, turn_s, &mut at_s, &mut progress)?;
        let dead = |side: &Side| side.record.outcome != Outcome::Finished;
        if dead(&on) || dead(&off) {
            break;
        }
    }
    let spread = Spread::of(&on.turns, &off.turns);
    let (mut on, off) = (on.finish()?, off.finish()?);
    spread.tell(&mut on);
    lab.keep(&on)?;
    lab.keep(&off)?;
    fs::remove_dir_all(&copy).map_err(Error::at(&copy))
}

/// The ratios of neighbouring turns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spread {
    pairs: usize,
    first_quartile: f64,
    median: f64,
    third_quartile: f64,
}

impl Spread {
    /// The n-th turn of one side is next to the n-th of the other.
    fn of(on: &[f64], off: &[f64]) -> Spread {
        let ratios: Vec<f64> =
            on.iter().zip(off).filter(|(_, off)| **off > 0.0).map(|(on, off)| on / off).collect();
        let quantile = |share| statistics::quantile(ratios.iter().copied(), share);
        Spread {
            pairs: ratios.len(),
            first_quartile: quantile(0.25),
            median: quantile(0.5),
            third_quartile: quantile(0.75),
        }
    }

    fn tell(self, record: &mut Record) {
        tracing::info!(
            "idle: on relative to off {:.4} (quartiles {:.4} to {:.4}, {} pairs of turns)",
            self.median,
            self.first_quartile,
            self.third_quartile,
            self.pairs
        );
        let figures = [
            ("on_off_ratio", self.median),
            ("on_off_ratio_first_quartile", self.first_quartile),
            ("on_off_ratio_third_quartile", self.third_quartile),
            ("on_off_pairs", self.pairs as f64),
        ];
        if self.pairs > 0 {
            record.summary.extend(figures.map(|(name, value)| (name.to_string(), value)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_of_the_machine_leaves_the_ratio_of_neighbours_alone() {
        // Twice as fast at the end as in the beginning, and one turn that something else disturbed.
        let speed = |at: usize| 1000.0 + 25.0 * at as f64;
        let mut on: Vec<f64> = Vec::new();
        let mut off: Vec<f64> = Vec::new();
        for pair in 0..20 {
            let (first, second) = (speed(2 * pair), speed(2 * pair + 1));
            let (of_on, of_off) = if pair % 2 == 0 { (first, second) } else { (second, first) };
            on.push(of_on * 0.98);
            off.push(of_off);
        }
        on[7] /= 3.0;
        let spread = Spread::of(&on, &off);
        assert_eq!(spread.pairs, 20);
        assert!(spread.first_quartile < spread.median && spread.median < spread.third_quartile);
        assert!((spread.median - 0.98).abs() < 0.02, "{spread:?}");
        assert!(spread.third_quartile - spread.first_quartile < 0.06, "{spread:?}");
    }

    #[test]
    fn a_pair_without_its_second_turn_is_left_out() {
        let spread = Spread::of(&[900.0, 950.0, 1.0], &[1000.0, 1000.0]);
        assert_eq!((spread.pairs, spread.median), (2, 0.95));
        assert_eq!(Spread::of(&[1.0], &[]), Spread::default());
    }
}
