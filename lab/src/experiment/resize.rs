//! The online resize (the third article): six changes of the pool's size under `oltp_read_write`, a
//! small pool that is left alone, and how fast a large pool of clean pages gives its memory back.
//!
//! The article's sizes are kept in proportion: its 4 GB are our `--memory`, its data of 9.2 GB is
//! 2.3 times that, and its small data a quarter.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lab::{Lab, Moment, Plan, Settings};
use crate::load::sysbench::{Distribution, Job};
use crate::load::tables::{DataSet, Table};
use crate::progress::Progress;
use crate::record::{Record, statistics};
use crate::server::{Server, ServerOptions};

use super::data::{self, for_tidepool, read_all, tables};
use super::summarise;

/// Rows of the article's data, and of its small data, for each byte of memory.
const DATA_ROWS_PER_GIB: u64 = 10_000_000;
const SMALL_ROWS_PER_GIB: u64 = 1_000_000;
/// A shrink of clean pages that has not ended by then never will.
const SHRINK_LIMIT: Duration = Duration::from_secs(120);

/// One of the article's cases: sizes in quarters of the memory.
struct Case {
    name: &'static str,
    from: u64,
    to: u64,
    /// Back to the first size some seconds later.
    restore: bool,
    small_data: bool,
}

const CASES: [Case; 7] = [
    Case { name: "no change", from: 4, to: 4, restore: false, small_data: false },
    // Not the article's: a pool that reads more is less even by itself, and what a shrink adds to
    // that is its own.
    Case { name: "no change, 2", from: 2, to: 2, restore: false, small_data: false },
    Case { name: "4 → 2", from: 4, to: 2, restore: false, small_data: false },
    Case { name: "4 → 8", from: 4, to: 8, restore: false, small_data: false },
    Case { name: "2 → 8", from: 2, to: 8, restore: false, small_data: false },
    Case { name: "4 → 2, small data", from: 4, to: 2, restore: false, small_data: true },
    Case { name: "4 → 2 → 4", from: 4, to: 2, restore: true, small_data: false },
];

/// The seconds of a run.
struct Timing {
    warm_up_s: u32,
    change_s: u32,
    restore_s: u32,
    end_s: u32,
}

fn timing(quick: bool) -> Timing {
    if quick {
        Timing { warm_up_s: 6, change_s: 8, restore_s: 13, end_s: 20 }
    } else {
        Timing { warm_up_s: 8, change_s: 12, restore_s: 22, end_s: 36 }
    }
}

/// The size of the pool that is emptied at once, and a table that fills it.
fn clean_pool(settings: &Settings) -> (u64, DataSet) {
    let bytes = if settings.quick { settings.memory_bytes } else { 8 * settings.memory_bytes };
    (bytes, DataSet::wide("clean", bytes + bytes / 16))
}

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    let mut needed = data::data(settings);
    needed.extend(for_tidepool(settings, vec![clean_pool(settings).1]));
    needed
}

/// Runs the experiment.
///
/// # Errors
/// If a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    let settings = &lab.settings;
    let memory = settings.memory_bytes;
    let timing = timing(settings.quick);
    let plans = plans(lab, &timing)?;
    let planned = plans.iter().map(|(plan, _)| plan.warm_up_s + plan.measure_s).sum();
    let mut progress = Progress::new(planned);
    lab.begin("resize")?;
    for (plan, case) in &plans {
        let mut record = lab.run(plan, &mut progress, |stage, moment| match moment {
            Moment::After(second) if second == timing.change_s && case.from != case.to => {
                stage.set_pool_size(memory / 4 * case.to)
            }
            Moment::After(second) if second == timing.restore_s && case.restore => {
                stage.set_pool_size(memory / 4 * case.from)
            }
            _ => Ok(()),
        })?;
        summarise(&mut record);
        judge(&mut record, &timing, case.restore);
        lab.keep(&record)?;
    }
    // Of other engines the cases say enough; this one needs a lot of disk.
    if settings.engines.contains(&Engine::Tidepool) && settings.wants(CLEAN_SHRINK) {
        match shrink(lab, Engine::Tidepool, &mut progress) {
            Ok(record) => lab.keep(&record)?,
            // Most likely there is no room on the disk; the six cases are worth keeping.
            Err(Error::Missing(what)) => tracing::warn!("shrink of clean pages skipped: {what}"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a case is run.
fn has(case: &Case, quick: bool) -> bool {
    !quick || matches!(case.name, "no change" | "4 → 2" | "4 → 8")
}

/// What can be chosen from.
pub(super) fn case_names(settings: &Settings) -> Vec<String> {
    let cases = CASES.iter().filter(|case| has(case, settings.quick)).map(|case| case.name);
    let shrink = settings.engines.contains(&Engine::Tidepool).then_some(CLEAN_SHRINK);
    cases.chain(shrink).map(str::to_string).collect()
}

/// The article's cases on each engine.
fn plans(lab: &Lab, timing: &Timing) -> Result<Vec<(Plan, &'static Case)>> {
    let settings = &lab.settings;
    let memory = settings.memory_bytes;
    let data = tables(memory);
    let rows_for = |per_gib: u64| ((u128::from(memory) * u128::from(per_gib)) >> 30) as u64;
    let mut plans = Vec::new();
    for case in &CASES {
        if !has(case, settings.quick) || !settings.wants(case.name) {
            continue;
        }
        for &engine in &settings.engines {
            let dir = lab.data(engine, &data, &mut Progress::new(1))?;
            let per_gib = if case.small_data { SMALL_ROWS_PER_GIB } else { DATA_ROWS_PER_GIB };
            let rows = rows_for(per_gib);
            let job = Job {
                script: "oltp_read_write".into(),
                database: "sbtest".into(),
                rows,
                threads: settings.threads(8),
                distribution: Distribution::Uniform,
            };
            let mut plan = Plan::new("resize", engine, &dir, job);
            plan.scenario = case.name.into();
            plan.args = vec![
                engine.pool_size_option(memory / 4 * case.from),
                engine.redo_option(memory / 2),
            ];
            if engine == Engine::InnoDb {
                // Versions that reserve addresses at the start need to know; others don't have it.
                let most = memory / 4 * case.from.max(case.to);
                plan.args.push(format!("--loose-innodb-buffer-pool-size-max={most}"));
            }
            plan.first_statement = Some(read_all("sbtest.sbtest1", rows));
            (plan.warm_up_s, plan.measure_s) = (timing.warm_up_s, timing.end_s);
            plan.keeps_clean = true;
            plans.push((plan, case));
        }
    }
    Ok(plans)
}

/// The worst second after the change, relative to the lowest of the steady states: before, at the
/// end, and of a pool that is restored, in the middle.
fn judge(record: &mut Record, timing: &Timing, restore: bool) {
    let tps = |from_s: u32, to_s: u32| {
        statistics::between(&record.series, f64::from(from_s), f64::from(to_s))
            .iter()
            .map(|point| point.tps)
    };
    // The end of a part is steady, whatever happened at its beginning.
    let steady = |from_s: u32, to_s: u32| statistics::median(tps(to_s - (to_s - from_s) / 3, to_s));
    let before = statistics::median(tps(0, timing.change_s));
    let after = steady(if restore { timing.restore_s } else { timing.change_s }, timing.end_s);
    let middle = if restore { steady(timing.change_s, timing.restore_s) } else { f64::INFINITY };
    let lower = before.min(after).min(middle);
    let slow = tps(timing.change_s, timing.end_s).filter(|tps| *tps < 0.9 * lower).count();
    let (change_s, end_s) = (f64::from(timing.change_s), f64::from(timing.end_s));
    for point in &mut record.series {
        let judged = point.at_s > change_s && point.at_s <= end_s && lower > 0.0;
        point.relative = judged.then_some(point.tps / lower);
    }
    let worst = statistics::worst_second(&record.series).map_or(0.0, |(ratio, _)| ratio);
    let figures = [
        ("steady_before_tps", before),
        ("steady_after_tps", after),
        ("worst_second_ratio", worst),
        ("seconds_below_90_percent", slow as f64),
    ];
    record.summary.extend(figures.map(|(name, value)| (name.to_string(), value)));
}

/// The name of the case beside the six.
const CLEAN_SHRINK: &str = "shrink of clean pages";

/// Fills a pool of this size with clean pages, shrinks it to an eighth, and waits until the memory
/// is given back.
fn shrink(lab: &Lab, engine: Engine, progress: &mut Progress) -> Result<Record> {
    let (size_bytes, data) = clean_pool(&lab.settings);
    let Table { database, .. } = &data.tables[0];
    let dir = lab.data(engine, &data, progress)?;
    progress.say(&format!("resize {}: shrinking {} MiB", engine.name(), size_bytes >> 20));
    let job = Job::nothing(database, data.tables[0].rows);
    let mut plan = Plan::new("resize", engine, &dir, job);
    plan.scenario = CLEAN_SHRINK.into();
    plan.args = vec![engine.pool_size_option(size_bytes)];
    let mut record = plan.record(&lab.settings);
    let options =
        ServerOptions { engine, data_dir: dir, args: plan.args.clone(), cgroup_procs: Vec::new() };
    let server = Server::start(&lab.environment, options)?;
    record.server_version = server.value("SELECT VERSION()")?.unwrap_or_default();
    server.execute(&format!("SELECT SUM(LENGTH(c)) FROM {database}.sbtest1"))?;
    let full = server.pool_status()?;
    let target = size_bytes / 8;
    let resident = || {
        let pid = server.pid().unwrap_or(0);
        crate::machine::counters::resident_bytes(pid).unwrap_or(0)
    };
    let resident_full = resident();
    // The size that the server reports may be only a promise: the memory must really be back.
    let enough = resident_full.saturating_sub((size_bytes - target) * 9 / 10);
    let is_done = || -> Result<bool> {
        Ok(server.pool_status()?.size_bytes <= target && resident() <= enough)
    };
    let (took, returned) = set_and_wait(&server, &engine.set_pool_size(target), is_done)?;
    let figures = [
        (
            "shrunk_mib",
            ((full.data_bytes.min(size_bytes) - target.min(full.data_bytes)) >> 20) as f64,
        ),
        ("shrink_s", took),
        ("set_returned_ms", returned * 1e3),
    ];
    record.summary.extend(figures.map(|(name, value)| (name.to_string(), value)));
    if let Some(wait) = server.pool_status()?.resize_longest_wait_us {
        record.summary.insert("resize_longest_wait_us".into(), wait as f64);
    }
    tracing::info!("resize {}: {} MiB in {took:.2} s", engine.name(), size_bytes >> 20);
    server.stop()?;
    Ok(record)
}

/// Runs the statement, and waits until it has returned and the pool `is_done`, or for
/// [`SHRINK_LIMIT`]. Says after how many seconds the pool was done, and the statement returned; the
/// one may come long before the other.
fn set_and_wait(
    server: &Server,
    statement: &str,
    is_done: impl Fn() -> Result<bool>,
) -> Result<(f64, f64)> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let set = scope.spawn(|| server.execute(statement).map(|()| start.elapsed()));
        while !set.is_finished() && !is_done()? {
            sleep(Duration::from_millis(10));
        }
        let done_s = start.elapsed().as_secs_f64();
        let returned = set.join().map_err(|_| Error::Missing("SET GLOBAL panicked".into()))??;
        if is_done()? {
            return Ok((done_s, returned.as_secs_f64()));
        }
        while !is_done()? && start.elapsed() < SHRINK_LIMIT {
            sleep(Duration::from_millis(10));
        }
        Ok((start.elapsed().as_secs_f64(), returned.as_secs_f64()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Point, finished};

    #[test]
    fn a_dip_is_relative_to_the_lower_steady_state() {
        let mut record = finished("resize", "4 → 2", "innodb", &[]);
        let timing = timing(true);
        for second in 1..=timing.end_s {
            let tps = match second {
                9 => 100.0,
                10 => 350.0,
                _ if second <= timing.change_s => 800.0,
                _ => 400.0,
            };
            record.series.push(Point { at_s: f64::from(second), tps, ..Point::default() });
        }
        judge(&mut record, &timing, false);
        assert_eq!(record.figure("worst_second_ratio"), Some(0.25));
        assert_eq!(record.figure("seconds_below_90_percent"), Some(2.0));
        assert_eq!(record.figure("steady_after_tps"), Some(400.0));
    }

    #[test]
    fn a_pool_that_is_restored_was_steady_in_the_middle_too() {
        let mut record = finished("resize", "4 → 2", "innodb", &[]);
        let timing = timing(false);
        for second in 1..=timing.end_s {
            let small = (timing.change_s + 1..=timing.restore_s).contains(&second);
            let tps = match second {
                13 => 250.0,
                _ if small => 500.0,
                _ => 800.0,
            };
            record.series.push(Point { at_s: f64::from(second), tps, ..Point::default() });
        }
        judge(&mut record, &timing, true);
        assert_eq!(record.figure("worst_second_ratio"), Some(0.5));
        assert_eq!(record.series[11].relative, None);
    }
}
