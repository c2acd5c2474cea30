//! The cost of governor, guard and advisor when they have nothing to do: point selects on a
//! resident table, with these on and off.
//!
//! The expected cost is one percent. A shared machine drifts by a fifth within a minute, and two
//! servers differ by a few percent because of where their pages lie in memory. So one server under
//! one load turns them on and off, in turns of a few seconds in the order on-off-off-on. Two turns
//! that follow each other meet the same machine. The result is the median of their ratios, with its
//! quartiles.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lab::{Lab, Moment, Plan, Settings};
use crate::load::sysbench::{Distribution, Job};
use crate::load::tables::DataSet;
use crate::progress::Progress;
use crate::record::{Outcome, Point, Record, statistics};

use super::data::{for_tidepool, read_all};
use super::{summarise, turn_qps};

/// Rows of a table that fits any pool.
const ROWS: u64 = 500_000;
/// Seconds of a turn, and how many of them pass before it counts.
const TURN_S: u32 = 3;
const SETTLE_S: u32 = 1;

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    for_tidepool(settings, vec![DataSet::one("idle", ROWS)])
}

/// Whether the pool looks after itself in this turn.
fn is_on(turn: u32) -> bool {
    matches!(turn % 4, 0 | 3)
}

/// The statement that begins a turn. Off, the pool keeps the size that it has.
fn switch(on: bool, pool_bytes: u64) -> String {
    let (size, rest) = if on { (0, "ON") } else { (pool_bytes, "OFF") };
    format!(
        "SET GLOBAL tidepool_buffer_pool_size = {size}, GLOBAL tidepool_memory_guard = {rest}, \
         GLOBAL tidepool_cache_advice = {rest}"
    )
}

/// Runs the experiment. It is about Tidepool only.
///
/// # Errors
/// If the server does not start.
pub fn run(lab: &Lab) -> Result<()> {
    if !lab.settings.engines.contains(&Engine::Tidepool) {
        return Err(Error::Missing("only Tidepool has a governor".into()));
    }
    let engine = Engine::Tidepool;
    let pairs = if lab.settings.quick { 16 } else { 60 };
    let job = Job::point_selects(ROWS, lab.settings.threads(8), Distribution::Uniform);
    let dir = lab.data(engine, &DataSet::one("idle", ROWS), &mut Progress::new(1))?;
    lab.begin("idle")?;
    let mut plan = Plan::new("idle", engine, &dir, job);
    plan.scenario = "resident point selects, on and off in turns".into();
    plan.args = vec![engine.pool_size_option(0)];
    plan.first_statement = Some(read_all("sbtest.sbtest1", ROWS));
    plan.measure_s = 2 * pairs * TURN_S;
    let mut progress = Progress::new(plan.duration_s());
    let (mut read_before, mut read) = (0, 0);
    let mut record = lab.run(&plan, &mut progress, |stage, moment| match moment {
        Moment::After(second) if second < plan.measure_s => {
            if second == 0 {
                read_before = stage.server.pool_status()?.pages_read;
            }
            if second % TURN_S != 0 {
                return Ok(());
            }
            stage.server.execute(&switch(is_on(second / TURN_S), stage.point.pool_bytes))
        }
        Moment::After(_) => Ok(()),
        Moment::End => {
            read = stage.server.pool_status()?.pages_read;
            Ok(())
        }
    })?;
    summarise(&mut record);
    // 0 says that the table was resident all the time.
    record.summary.insert("pages_read".into(), read.saturating_sub(read_before) as f64);
    if record.outcome == Outcome::Finished {
        Spread::of(&record.series, pairs).tell(&mut record);
    }
    lab.keep(&record)
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
    fn of(series: &[Point], pairs: u32) -> Spread {
        let of_turn = |turn: u32| turn_qps(series, turn, TURN_S, SETTLE_S);
        let ratio = |pair: u32| {
            let (first, second) = (of_turn(2 * pair), of_turn(2 * pair + 1));
            let (on, off) = if is_on(2 * pair) { (first, second) } else { (second, first) };
            (on > 0.0 && off > 0.0).then(|| on / off)
        };
        let ratios: Vec<f64> = (0..pairs).filter_map(ratio).collect();
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

    /// A second of a turn that counts has this throughput, another has none.
    fn series(pairs: u32, qps: impl Fn(u32) -> f64) -> Vec<Point> {
        let second = |at_s: u32| {
            let settled = at_s % TURN_S >= SETTLE_S;
            let qps = if settled { qps(at_s / TURN_S) } else { 1.0 };
            Point { at_s: f64::from(at_s + 1), qps, ..Point::default() }
        };
        (0..2 * pairs * TURN_S).map(second).collect()
    }

    #[test]
    fn a_drift_of_the_machine_leaves_the_ratio_of_neighbours_alone() {
        // Twice as fast at the end as in the beginning, and one turn that something else disturbed.
        let speed = |turn: u32| {
            let own = if is_on(turn) { 0.98 } else { 1.0 };
            let disturbed = if turn == 7 { 3.0 } else { 1.0 };
            (1000.0 + 25.0 * f64::from(turn)) * own / disturbed
        };
        let spread = Spread::of(&series(20, speed), 20);
        assert_eq!(spread.pairs, 20);
        assert!(spread.first_quartile < spread.median && spread.median < spread.third_quartile);
        assert!((spread.median - 0.98).abs() < 0.02, "{spread:?}");
        assert!(spread.third_quartile - spread.first_quartile < 0.06, "{spread:?}");
    }

    #[test]
    fn a_pair_without_its_second_turn_is_left_out() {
        let cut: Vec<Point> = series(3, |_| 900.0).into_iter().take(5 * TURN_S as usize).collect();
        let spread = Spread::of(&cut, 3);
        assert_eq!((spread.pairs, spread.median), (2, 1.0));
        assert_eq!(Spread::of(&[], 3), Spread::default());
    }

    #[test]
    fn a_pool_that_is_left_alone_keeps_its_size() {
        assert!(switch(false, 4096).starts_with("SET GLOBAL tidepool_buffer_pool_size = 4096,"));
        assert!(!switch(true, 4096).contains("OFF"));
    }
}
