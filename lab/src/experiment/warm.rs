//! The warm restart: how long after `kill -9` a server is as fast as before.
//!
//! A table that fits the pool, reads limited to 2,000 a second (a fast local disk would warm any
//! cache in a moment). The server runs until its throughput is steady and its list of hot pages has
//! been saved, and is killed. It starts again with its list, and once more without. InnoDB saves
//! its list when it stops in order, so it is given one such stop before the kill.

use crate::engine::Engine;
use crate::error::Result;
use crate::lab::{Lab, Moment, Plan};
use crate::load::sysbench::{Distribution, Job};
use crate::progress::Progress;
use crate::record::{NEVER, Record, statistics};

use super::data::{read_all, rows_of, tables};
use super::{READS_PER_SECOND, summarise};

const PAGE_BYTES: u64 = 16 * 1024;
/// Of the pool; the rest is room for whatever else an engine keeps there.
const TABLE_PERCENT: u64 = 80;

/// Runs the experiment.
///
/// # Errors
/// If the machine can't do it, or a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    lab.need_read_throttle()?;
    let settings = &lab.settings;
    let pool_bytes = if settings.quick { settings.memory_bytes / 4 } else { settings.memory_bytes };
    let data = tables(settings.memory_bytes);
    let rows = (rows_of(pool_bytes / 100 * TABLE_PERCENT)).min(data.tables[0].rows);
    let (before_s, after_least_s) = if settings.quick { (14, 22) } else { (20, 60) };
    let after_s = after_s(pool_bytes).max(after_least_s);
    let mut progress = Progress::new((2 * before_s + 2 * after_s) * settings.engines.len() as u32);
    let mut prepared = Vec::new();
    for &engine in &settings.engines {
        prepared.push((engine, lab.data(engine, &data, &mut progress)?));
    }
    lab.begin("warm")?;
    for (engine, dir) in &prepared {
        let job = Job::point_selects(rows, settings.threads(8), Distribution::Uniform);
        let mut plan = Plan::new("warm", *engine, dir, job);
        plan.args = vec![engine.pool_size_option(pool_bytes)];
        if *engine != Engine::Tidepool {
            // Its default list has a quarter of the pages, Tidepool's has all.
            plan.args.push("--innodb-buffer-pool-dump-pct=100".into());
        }
        plan.warm_up_s = 0;
        let mut steady =
            Plan { measure_s: before_s, scenario: "before the kill".into(), ..plan.clone() };
        // A full pool soon; what is measured comes after.
        steady.first_statement = Some(read_all("sbtest.sbtest1", rows));
        if *engine != Engine::Tidepool {
            let list = Plan { keeps_clean: true, measure_s: before_s, ..steady.clone() };
            lab.run(&list, &mut progress, |_, _| Ok(()))?;
        }
        let mut record = lab.run(&steady, &mut progress, |stage, moment| {
            if moment == Moment::End {
                stage.server.kill9();
            }
            Ok(())
        })?;
        summarise(&mut record);
        let last = statistics::between(&record.series, f64::from(before_s / 2), f64::MAX);
        let steady_qps = statistics::median(last.iter().map(|point| point.qps));
        record.summary.insert("steady_qps".into(), steady_qps);
        lab.keep(&record)?;
        for (scenario, starts_warm) in [("warm restart", true), ("cold restart", false)] {
            let restart = Plan {
                scenario: scenario.into(),
                measure_s: after_s,
                starts_warm,
                reads_per_second: Some(READS_PER_SECOND),
                ..plan.clone()
            };
            let mut record = lab.run(&restart, &mut progress, |stage, moment| {
                // The next start shall find the list of the steady state, not of this one.
                if moment == Moment::End {
                    stage.server.kill9();
                }
                Ok(())
            })?;
            summarise(&mut record);
            judge(&mut record);
            lab.keep(&record)?;
        }
    }
    Ok(())
}

/// Seconds in which also a start without a list reads the whole table, and some in which it is
/// warm.
fn after_s(pool_bytes: u64) -> u32 {
    let table_bytes = pool_bytes / 100 * TABLE_PERCENT;
    let read_s = table_bytes.div_ceil(u64::from(READS_PER_SECOND) * PAGE_BYTES);
    u32::try_from(read_s * 3 / 2 + 15).unwrap_or(u32::MAX)
}

/// Seconds from the start of the process until the first three seconds with 90 % of the throughput
/// of the next fifteen, which is near that at this run's end. (Not of that before the kill, nor of
/// the end alone: the machine becomes slower and faster meanwhile.)
fn judge(record: &mut Record) {
    let series = &record.series;
    let end = series[series.len() * 2 / 3..].iter().map(|point| point.qps);
    let steady_qps = statistics::median(end);
    let is_warm = |&at: &usize| {
        let (now, lasting) = statistics::now_and_lasting(series, at);
        now >= 0.9 * lasting && now >= 0.6 * steady_qps
    };
    let starting_s = record.figure("start_s").unwrap_or(0.0);
    let warm = (0..series.len()).find(is_warm);
    let seconds = warm.map_or(NEVER, |at| starting_s + series[at].at_s);
    record.summary.insert("seconds_to_90_percent".into(), seconds);
    record.summary.insert("steady_qps".into(), steady_qps);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Settings;
    use crate::record::Point;

    fn seconds(qps: &[u32]) -> f64 {
        let job = Job::point_selects(1, 1, Distribution::Uniform);
        let plan = Plan::new("warm", Engine::Tidepool, std::path::Path::new("data"), job);
        let mut record = plan.record(&Settings::usual());
        let point = |(at, &qps): (usize, &u32)| Point {
            at_s: at as f64 + 1.0,
            qps: qps.into(),
            ..Point::default()
        };
        record.series = qps.iter().enumerate().map(point).collect();
        judge(&mut record);
        record.summary["seconds_to_90_percent"]
    }

    #[test]
    fn a_run_is_long_enough_for_the_whole_table() {
        // 2,000 reads of 16 KiB a second.
        assert_eq!(after_s(1 << 30), 27 * 3 / 2 + 15);
        assert_eq!(after_s(4 << 30), 105 * 3 / 2 + 15);
    }

    #[test]
    fn a_pool_is_warm_when_what_follows_is_no_faster() {
        // Slow for long, then warm; afterwards the machine becomes faster by a third.
        let mut qps = vec![2; 20];
        qps.extend([40, 90, 91, 90]);
        qps.extend([90; 16]);
        qps.extend([120; 20]);
        assert_eq!(seconds(&qps), 22.0);
        assert_eq!(seconds(&[100; 60]), 1.0);
    }
}
