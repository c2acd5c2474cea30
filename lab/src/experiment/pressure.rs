//! Memory pressure: a neighbour in the server's cgroup takes and frees half of the memory, by a
//! [`Pattern`]; and two servers share one cgroup.
//!
//! How well a server does under pressure is judged by the pool that it has left: its throughput in
//! every second is divided by that of a server whose pool was always that large, in the same
//! cgroup, without a neighbour. These baselines are measured first, at four sizes; between them the
//! throughput is interpolated.
//!
//! A neighbour that takes half of the memory at once also takes much of that second's processor
//! time. So the step has one more baseline: a pool of a fixed size that fits beside the neighbour
//! and goes through the same step.

use std::path::{Path, PathBuf};

use crate::engine::Engine;
use crate::error::Result;
use crate::lab::{Lab, Moment, Plan, Settings};
use crate::load::sysbench::{Distribution, Job};
use crate::load::tables::DataSet;
use crate::machine::neighbour::Pattern;
use crate::progress::Progress;
use crate::record::{NEVER, Outcome, Record, statistics};

use super::data::{for_all, tables};
use super::summarise;

/// Percent of the memory that the baselines' pools have.
const BASELINE_PERCENTS: [u64; 4] = [20, 35, 55, 75];
/// Percent of the memory that a pool without a governor gets, and how small it may make itself.
const FIXED_PERCENT: u64 = 75;
const AUTO_MIN_PERCENT: u64 = 25;
/// The scenario of a fixed pool that goes through the step, and the percent of the memory that it
/// has.
pub(crate) const BESIDE_THE_STEP: &str = "baseline beside the step";
const BESIDE_PERCENT: u64 = 35;
/// When the neighbour starts, and how long the server is watched after it has gone.
const BEFORE_S: u32 = 8;
const AFTER_S: u32 = 15;
const WARM_UP_S: u32 = 10;

/// Throughput as a function of the size of a fixed pool.
#[derive(Clone, Debug, Default, PartialEq)]
struct Baseline {
    /// (bytes held, queries a second), ascending.
    points: Vec<(f64, f64)>,
}

impl Baseline {
    /// Interpolated; below the smallest size in proportion to the size, above the largest as there.
    fn qps(&self, bytes: f64) -> Option<f64> {
        let (first, last) = (*self.points.first()?, *self.points.last()?);
        if bytes <= first.0 {
            return Some(first.1 * bytes / first.0);
        }
        let above = self.points.iter().position(|point| point.0 >= bytes);
        let Some(above) = above else { return Some(last.1) };
        let (low, high) = (self.points[above - 1], self.points[above]);
        Some(low.1 + (high.1 - low.1) * (bytes - low.0) / (high.0 - low.0))
    }
}

/// What the plans of one engine have in common.
fn plan(lab: &Lab, engine: Engine, dir: &Path, rows: u64) -> Plan {
    let job = Job::point_selects(rows, lab.settings.threads(16), Distribution::Uniform);
    let mut plan = Plan::new("pressure", engine, dir, job);
    plan.memory_limit = Some(lab.settings.memory_bytes);
    plan.warm_up_s = if lab.settings.quick { 8 } else { WARM_UP_S };
    plan
}

/// The options of a server that meets pressure: governed, or the best that the other engine has.
fn options(engine: Engine, memory: u64) -> (Vec<String>, String) {
    match engine {
        Engine::Tidepool => (vec![engine.pool_size_option(0)], String::new()),
        // It has nothing of the kind.
        Engine::MySql => {
            (vec![engine.pool_size_option(memory / 100 * FIXED_PERCENT)], String::new())
        }
        _ => {
            let size = memory / 100 * FIXED_PERCENT;
            let min = memory / 100 * AUTO_MIN_PERCENT;
            let args = vec![
                engine.pool_size_option(size),
                // Not every version has it.
                format!("--loose-innodb-buffer-pool-size-auto-min={min}"),
            ];
            (args, "auto_min".into())
        }
    }
}

/// The options of a server whose pool stays as large as it is.
fn fixed_size(engine: Engine, bytes: u64) -> Vec<String> {
    let mut args = vec![engine.pool_size_option(bytes)];
    if engine == Engine::Tidepool {
        // A fixed size, not a ceiling.
        args.push("--tidepool-memory-guard=OFF".into());
    }
    args
}

fn patterns(quick: bool) -> &'static [Pattern] {
    if quick {
        &[Pattern::Step, Pattern::Sawtooth(15)]
    } else {
        &[Pattern::Ramp, Pattern::Step, Pattern::Sawtooth(120), Pattern::Leak(45)]
    }
}

/// What can be chosen from. The baselines are always run.
pub(super) fn case_names(settings: &Settings) -> Vec<String> {
    let patterns = patterns(settings.quick).iter().map(|pattern| pattern.key());
    let pair = (!settings.quick).then_some(PAIR);
    patterns.chain(pair).chain(["baseline"]).map(str::to_string).collect()
}

/// The table of a second server: as large as the share of the memory that it may get.
fn second_table(memory_bytes: u64) -> DataSet {
    DataSet::one("second", tables(memory_bytes).tables[0].rows / 4)
}

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    let mut data = vec![tables(settings.memory_bytes)];
    if !settings.quick {
        data.push(second_table(settings.memory_bytes));
    }
    for_all(settings, &data)
}

/// Runs the experiment.
///
/// # Errors
/// If the machine can't do it, or a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    lab.need_memory_cgroups()?;
    let settings = &lab.settings;
    let memory = settings.memory_bytes;
    let data = tables(memory);
    let rows = data.tables[0].rows;
    let second = second_table(memory);
    let mut dirs: Vec<Directories> = Vec::new();
    for &engine in &settings.engines {
        let dir = lab.data(engine, &data, &mut Progress::new(1))?;
        let second_dir = if settings.quick {
            None
        } else {
            Some(lab.data(engine, &second, &mut Progress::new(1))?)
        };
        dirs.push((engine, dir, second_dir));
    }
    let _swap = lab.swap_file(2 * memory)?;
    lab.begin("pressure")?;

    let plans = plans(lab, &dirs, rows);
    let pair_s = if settings.quick { 0 } else { (WARM_UP_S + PAIR_S) * dirs.len() as u32 };
    let planned: u32 = plans.iter().map(|(plan, _)| plan.duration_s()).sum();
    let mut progress = Progress::new(planned + pair_s);
    let mut baselines = vec![Baseline::default(); settings.engines.len()];
    for (plan, pattern) in &plans {
        let which = settings.engines.iter().position(|engine| *engine == plan.engine).unwrap_or(0);
        let baseline = &mut baselines[which];
        let mut record = lab.run(plan, &mut progress, |stage, moment| match pattern {
            Some(pattern) if moment == Moment::After(BEFORE_S) => {
                stage.start_neighbour(*pattern, memory / 2)
            }
            _ => Ok(()),
        })?;
        summarise(&mut record);
        match pattern {
            Some(pattern) => judge(&mut record, *pattern, memory / 2, baseline),
            None if record.outcome == Outcome::Finished => {
                let held = statistics::median(record.series.iter().map(|p| p.data_bytes as f64));
                baseline.points.push((held, record.figure("qps").unwrap_or(0.0)));
                baseline.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
            None => {}
        }
        lab.keep(&record)?;
    }
    for ((engine, dir, second_dir), baseline) in dirs.iter().zip(&baselines) {
        if let Some(second_dir) = second_dir
            && settings.wants(PAIR)
        {
            let plans = pair(lab, *engine, dir, second_dir, rows);
            run_pair(lab, &plans, baseline, &mut progress)?;
        }
    }
    Ok(())
}

/// An engine's data, and that of the second server, if the case has one.
type Directories = (Engine, PathBuf, Option<PathBuf>);

/// The runs of one server: first the baselines, then each pattern.
fn plans(lab: &Lab, dirs: &[Directories], rows: u64) -> Vec<(Plan, Option<Pattern>)> {
    let settings = &lab.settings;
    let memory = settings.memory_bytes;
    let (percents, after_s) = if settings.quick {
        (&BASELINE_PERCENTS[1..], 12)
    } else {
        (&BASELINE_PERCENTS[..], AFTER_S)
    };
    let mut plans = Vec::new();
    for &percent in percents {
        for (engine, dir, _) in dirs {
            let mut plan = plan(lab, *engine, dir, rows);
            plan.scenario = format!("baseline, {percent} %");
            plan.args = fixed_size(*engine, memory / 100 * percent);
            plan.measure_s = if settings.quick { 4 } else { 5 };
            plans.push((plan, None));
        }
    }
    for &pattern in patterns(settings.quick).iter().filter(|one| settings.wants(one.key())) {
        for (engine, dir, _) in dirs.iter().filter(|_| pattern == Pattern::Step) {
            let mut plan = plan(lab, *engine, dir, rows);
            plan.scenario = BESIDE_THE_STEP.into();
            plan.args = fixed_size(*engine, memory / 100 * BESIDE_PERCENT);
            plan.measure_s = BEFORE_S + pattern.duration_s() + after_s;
            plans.push((plan, Some(pattern)));
        }
        for (engine, dir, _) in dirs {
            let mut plan = plan(lab, *engine, dir, rows);
            plan.scenario = pattern.key().into();
            (plan.args, plan.variant) = options(*engine, memory);
            plan.measure_s = BEFORE_S + pattern.duration_s() + after_s;
            plans.push((plan, Some(pattern)));
        }
    }
    plans
}

/// Adds the figures that the bounds are about.
fn judge(record: &mut Record, pattern: Pattern, peak_bytes: u64, baseline: &Baseline) {
    let released_s = f64::from(BEFORE_S + pattern.duration_s());
    let cycles = match pattern {
        Pattern::Sawtooth(seconds) => f64::from(seconds / 5),
        _ => 1.0,
    };
    pressure_figures(record, f64::from(BEFORE_S), released_s, baseline);
    let moved_mb = peak_bytes as f64 / 1e6 * cycles;
    let out_mb: f64 = statistics::between(&record.series, f64::from(BEFORE_S), f64::MAX)
        .iter()
        .map(|point| point.swap_out_mb_s)
        .sum();
    record.summary.insert("swap_out_share".into(), out_mb / moved_mb);
}

/// A pool must have what the neighbour has released after this many seconds.
const BACK_S: f64 = 10.0;

/// The worst second by the baseline, and the seconds until the pool has its old size again.
///
/// The machine is not as fast as it was minutes ago, when the baselines were measured. The calm
/// seconds, before the neighbour comes and long after it has gone, say how fast it is: in them this
/// pool is nothing but a pool of a fixed size.
fn pressure_figures(record: &mut Record, from_s: f64, released_s: f64, baseline: &Baseline) {
    let series = &mut record.series;
    // A second's throughput comes from what the pool held at its beginning or its end, whichever is
    // less.
    let held: Vec<u64> = (0..series.len())
        .map(|at| series[at].data_bytes.min(series[at.saturating_sub(1)].data_bytes))
        .collect();
    for (point, held) in series.iter_mut().zip(held) {
        let fixed = baseline.qps(held as f64).filter(|qps| *qps > 0.0);
        point.relative = fixed.map(|fixed| point.qps / fixed);
    }
    let is_calm = |at_s: f64| at_s > 0.0 && (at_s <= from_s || at_s > released_s + BACK_S);
    let calm = series.iter().filter(|point| is_calm(point.at_s));
    let machine = statistics::median(calm.filter_map(|point| point.relative));
    for point in series.iter_mut() {
        let fixed = point.relative.filter(|_| point.at_s > from_s && machine > 0.0);
        point.relative = fixed.map(|ratio| ratio / machine);
    }
    let series = &record.series;
    let worst = statistics::worst_second(series);
    let before = statistics::between(series, 0.0, from_s);
    let full = statistics::median(before.iter().map(|point| point.pool_bytes as f64));
    let is_back = |point: &&crate::record::Point| point.pool_bytes as f64 >= 0.95 * full;
    let after = statistics::between(series, released_s - 1.0, f64::MAX);
    let back = after
        .iter()
        .find(is_back)
        .filter(|_| full > 0.0)
        .map(|point| (point.at_s - released_s).max(0.0));
    let least = statistics::between(series, from_s, released_s);
    let least = least.iter().map(|point| point.pool_bytes >> 20).min().unwrap_or(0);
    let mut add = |name: &str, value: f64| {
        record.summary.insert(name.into(), value);
    };
    if let Some((ratio, at_s)) = worst {
        add("worst_second_ratio", ratio);
        add("worst_second_at_s", at_s);
        add("machine_against_baseline", machine);
    }
    add("back_after_s", back.unwrap_or(NEVER));
    add("pool_before_mib", full / f64::from(1 << 20));
    add("pool_least_mib", least as f64);
}

/// The name of the case in which two servers share a cgroup.
const PAIR: &str = "two servers";
/// Seconds that the first server of a pair is measured; the second comes after 5 and stays for 25.
const PAIR_S: u32 = 52;
const SECOND_AT_S: u32 = 5;
const SECOND_S: u32 = 25;

fn pair(lab: &Lab, engine: Engine, dir: &Path, second_dir: &Path, rows: u64) -> [Plan; 2] {
    let mut first = plan(lab, engine, dir, rows);
    (first.args, first.variant) = options(engine, lab.settings.memory_bytes);
    first.scenario = format!("{PAIR}, first");
    first.measure_s = PAIR_S;
    let mut second = plan(lab, engine, second_dir, rows / 4);
    (second.args, second.variant) = (first.args.clone(), first.variant.clone());
    second.scenario = format!("{PAIR}, second");
    second.warm_up_s = 5;
    second.measure_s = SECOND_S;
    [first, second]
}

fn run_pair(
    lab: &Lab,
    plans: &[Plan; 2],
    baseline: &Baseline,
    progress: &mut Progress,
) -> Result<()> {
    let group = lab.memory_cgroup(lab.settings.memory_bytes)?;
    let [first, second] = plans;
    let (start, started) = std::sync::mpsc::channel();
    let (first, second) = std::thread::scope(|scope| {
        let group = &group;
        let beside = scope.spawn(move || {
            // An error: the first server never got that far, and there is nothing to run beside.
            started.recv().ok()?;
            Some(lab.run_in(Some(group), second, &mut Progress::hidden(), |_, _| Ok(())))
        });
        let first = lab.run_in(Some(group), first, progress, |stage, moment| {
            if moment == Moment::After(SECOND_AT_S) {
                stage.note("second server starts");
                let _ = start.send(());
            }
            Ok(())
        });
        drop(start);
        (first, beside.join().ok().flatten())
    });
    let mut first = first?;
    summarise(&mut first);
    // The second needs a second or two to start, and 5 to warm up.
    let released_s = f64::from(SECOND_AT_S + second_length(&second));
    pressure_figures(&mut first, f64::from(SECOND_AT_S), released_s, baseline);
    share_the_machine(&mut first, f64::from(SECOND_AT_S), released_s);
    lab.keep(&first)?;
    if let Some(second) = second {
        let mut second = second?;
        summarise(&mut second);
        lab.keep(&second)?;
    }
    Ok(())
}

/// While two servers are under load each has half of the processors, too: what a second is held
/// against then is the middle of these seconds.
fn share_the_machine(record: &mut Record, from_s: f64, to_s: f64) {
    let together: Vec<f64> =
        statistics::between(&record.series, from_s, to_s).iter().map(|point| point.qps).collect();
    let middle = statistics::median(together);
    for point in &mut record.series {
        let shares = point.at_s > from_s && point.at_s <= to_s;
        point.relative = (shares && middle > 0.0).then_some(point.qps / middle);
    }
    if let Some((ratio, at_s)) = statistics::worst_second(&record.series) {
        record.summary.insert("worst_second_ratio".into(), ratio);
        record.summary.insert("worst_second_at_s".into(), at_s);
    }
}

/// Seconds from the second server's start to its end.
fn second_length(second: &Option<Result<Record>>) -> u32 {
    const STARTING_S: u32 = 2;
    match second {
        Some(Ok(record)) => record.series.len() as u32 + STARTING_S,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Point;

    fn baseline() -> Baseline {
        Baseline { points: vec![(100.0, 1000.0), (200.0, 3000.0)] }
    }

    #[test]
    fn the_baseline_is_interpolated() {
        assert_eq!(baseline().qps(150.0), Some(2000.0));
        assert_eq!(baseline().qps(50.0), Some(500.0));
        assert_eq!(baseline().qps(500.0), Some(3000.0));
        assert_eq!(Baseline::default().qps(1.0), None);
    }

    #[test]
    fn two_servers_are_held_against_the_seconds_in_which_they_share() {
        let mut record = crate::record::finished("pressure", "two servers, first", "tidepool", &[]);
        for second in 1..=20u32 {
            let qps = match second {
                6..=15 if second == 9 => 300.0,
                6..=15 => 500.0,
                _ => 1000.0,
            };
            record.series.push(Point { at_s: f64::from(second), qps, ..Point::default() });
        }
        share_the_machine(&mut record, 5.0, 15.0);
        assert_eq!(record.figure("worst_second_ratio"), Some(0.6));
        assert_eq!(record.figure("worst_second_at_s"), Some(9.0));
        assert_eq!(record.series[15].relative, None);
    }

    #[test]
    fn a_dip_and_a_slow_return_are_seen() {
        let mut record = crate::record::finished("pressure", "step", "innodb", &[]);
        for second in 1..=40u32 {
            // Shrinks to a half from 10 to 30, and comes back two seconds later; second 11 is a bad
            // one.
            let small = (10..32).contains(&second);
            record.series.push(Point {
                at_s: f64::from(second),
                pool_bytes: if small { 100 << 20 } else { 200 << 20 },
                data_bytes: if small { 100 } else { 200 },
                // The machine has become slower by half.
                qps: if second == 11 { 200.0 } else { 500.0 },
                ..Point::default()
            });
        }
        pressure_figures(&mut record, 8.0, 30.0, &Baseline { points: vec![(50.0, 1000.0)] });
        assert_eq!(record.figure("worst_second_ratio"), Some(0.4));
        assert_eq!(record.figure("worst_second_at_s"), Some(11.0));
        assert_eq!(record.figure("machine_against_baseline"), Some(0.5));
        assert_eq!(record.series[7].relative, None, "before the neighbour");
        assert_eq!(record.figure("back_after_s"), Some(2.0));
        assert_eq!(record.figure("pool_least_mib"), Some(100.0));
    }
}
