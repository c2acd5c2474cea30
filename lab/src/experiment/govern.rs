//! InnoDB under `tidepool govern`: the oversized pool and the neighbour of `swap` and `pressure`,
//! with a pool of a fixed size and with one that is looked after from outside.
//!
//! The best of several fixed sizes that live through a case is what somebody who knew all
//! beforehand would have set; the governed pool starts with a size that is wrong. The machine
//! drifts by more than the two may differ, so each size that fits is run before and, in reverse
//! order, after the governed one, which is run twice itself: the means of both meet the same
//! machine. The neighbour takes processor time with its memory, from a pool of any size; so what a
//! second with a step has is also held against what fixed pools have in the same second.

use std::collections::BTreeMap;
use std::path::Path;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lab::{Lab, Moment, Plan, Settings};
use crate::load::sysbench::{Distribution, Job};
use crate::load::tables::DataSet;
use crate::machine::neighbour::Pattern;
use crate::progress::Progress;
use crate::record::{Outcome, Point, Record, statistics};

use super::data::tables;
use super::summarise;

/// Those that it is about: InnoDB, wherever it is.
fn engines(settings: &Settings) -> Vec<Engine> {
    settings.engines.iter().copied().filter(|engine| *engine != Engine::Tidepool).collect()
}

/// When the neighbour starts, and how long the server is watched after it has gone.
const BEFORE_S: u32 = 8;
const AFTER_S: u32 = 15;
/// How many seconds on each side say what is normal for one.
const BESIDE: usize = 3;
/// The variant that is governed, and what its name has in addition when it is run again.
pub(crate) const GOVERNED: &str = "govern";
const AGAIN: &str = ", again";
/// A pool that swaps this much in does not fit.
pub(super) const SWAPS_MB_S: f64 = 1.0;

/// What happens to the machine, and which sizes (per cent of its memory) meet it.
struct Case {
    name: &'static str,
    pattern: Option<Pattern>,
    fixed: &'static [u64],
    /// What the governed pool starts with.
    start: u64,
}

const CASES: [Case; 4] = [
    Case { name: "oversized", pattern: None, fixed: &[65, 75, 85, 150], start: 150 },
    Case { name: "step", pattern: Some(Pattern::Step), fixed: &[35, 42, 75], start: 75 },
    Case { name: "ramp", pattern: Some(Pattern::Ramp), fixed: &[35, 42, 75], start: 75 },
    Case {
        name: "sawtooth",
        pattern: Some(Pattern::Sawtooth(40)),
        fixed: &[35, 42, 75],
        start: 75,
    },
];

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    let data = tables(settings.memory_bytes);
    engines(settings).into_iter().map(|engine| (engine, data.clone())).collect()
}

/// What can be chosen from.
pub(super) fn case_names(settings: &Settings) -> Vec<String> {
    let any = !engines(settings).is_empty();
    let cases = CASES.iter().filter(|case| any && has(case, settings.quick));
    cases.map(|case| case.name.to_string()).collect()
}

/// Whether a case is run.
fn has(case: &Case, quick: bool) -> bool {
    !(quick && matches!(case.pattern, Some(Pattern::Ramp)))
}

/// One run of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Run {
    /// With this size, per cent of the memory, for the first or the second time.
    Fixed {
        percent: u64,
        again: bool,
    },
    Governed {
        again: bool,
    },
}

/// The runs of a case in their order. What does not fit comes last: a disk may be slower for
/// minutes after somebody has swapped to it.
fn runs(case: &Case, quick: bool) -> Vec<Run> {
    if quick {
        let fixed = Run::Fixed { percent: case.fixed[1], again: false };
        return vec![fixed, Run::Governed { again: false }];
    }
    let fixed = |again| move |&percent| Run::Fixed { percent, again };
    let (fit, rest): (Vec<u64>, Vec<u64>) =
        case.fixed.iter().partition(|percent| **percent < case.start);
    let mut runs: Vec<Run> = fit.iter().map(fixed(false)).collect();
    runs.extend([false, true].map(|again| Run::Governed { again }));
    runs.extend(fit.iter().rev().map(fixed(true)));
    runs.extend(rest.iter().map(fixed(false)));
    runs
}

/// A run of an engine on its data.
fn plan(lab: &Lab, (engine, dir): (Engine, &Path), rows: u64, case: &Case, run: Run) -> Plan {
    let (memory, quick) = (lab.settings.memory_bytes, lab.settings.quick);
    let job = Job::point_selects(rows, lab.settings.threads(16), Distribution::Uniform);
    let mut plan = Plan::new("govern", engine, dir, job);
    plan.scenario = case.name.into();
    let percent = match run {
        Run::Fixed { percent, .. } => percent,
        Run::Governed { .. } => case.start,
    };
    let (name, again) = match run {
        Run::Fixed { percent, again } => (format!("{percent} %"), again),
        Run::Governed { again } => (GOVERNED.to_string(), again),
    };
    plan.variant = if again { format!("{name}{AGAIN}") } else { name };
    plan.memory_limit = Some(memory);
    plan.governed = matches!(run, Run::Governed { .. });
    plan.args =
        vec![engine.pool_size_option(memory / 100 * percent), engine.redo_option(memory / 2)];
    plan.warm_up_s = if quick { 8 } else { 12 };
    plan.measure_s = match case.pattern {
        Some(pattern) => BEFORE_S + pattern.duration_s() + AFTER_S,
        None => 20,
    };
    plan
}

/// Runs the experiment.
///
/// # Errors
/// If the machine can't do it, InnoDB is not among the engines, or a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    lab.need_memory_cgroups()?;
    let settings = &lab.settings;
    let engines = engines(settings);
    if engines.is_empty() {
        return Err(Error::Missing("it is about InnoDB, which was not asked for".into()));
    }
    let memory = settings.memory_bytes;
    let data = tables(memory);
    let mut dirs = Vec::new();
    for engine in engines {
        dirs.push((engine, lab.data(engine, &data, &mut Progress::new(1))?));
    }
    let mut plans = Vec::new();
    for case in CASES.iter().filter(|case| settings.wants(case.name)) {
        if !has(case, settings.quick) {
            continue;
        }
        let rows = data.tables[0].rows;
        for (engine, dir) in &dirs {
            let of_case = runs(case, settings.quick)
                .into_iter()
                .map(|run| plan(lab, (*engine, dir), rows, case, run));
            plans.push((case, of_case.collect::<Vec<_>>()));
        }
    }
    let _swap = lab.swap_file(2 * memory)?;
    lab.begin("govern")?;
    let all = plans.iter().flat_map(|(_, plans)| plans);
    let mut progress = Progress::new(all.map(Plan::duration_s).sum());
    for (case, plans) in &plans {
        run_case(lab, case, plans, &mut progress)?;
    }
    Ok(())
}

fn run_case(lab: &Lab, case: &Case, plans: &[Plan], progress: &mut Progress) -> Result<()> {
    let mut governed = Vec::new();
    // The throughput of each fixed size, a figure a run that it lived through.
    let mut fixed: BTreeMap<Vec<String>, Vec<f64>> = BTreeMap::new();
    // Each second of these runs, relative to those beside it.
    let mut lasting = Vec::new();
    for plan in plans {
        // Steps of the governor up to each second.
        let mut counts = Vec::new();
        let mut record = lab.run(plan, progress, |stage, moment| {
            if let Moment::After(_) = moment {
                counts.push(stage.governor_steps());
            }
            match case.pattern {
                Some(pattern) if moment == Moment::After(BEFORE_S) => {
                    stage.start_neighbour(pattern, lab.settings.memory_bytes / 2)
                }
                _ => Ok(()),
            }
        })?;
        summarise(&mut record);
        judge(&mut record, &counts);
        if plan.governed {
            governed.push((record, counts));
            continue;
        }
        let qps = record.figure("mean_qps").filter(|_| record.outcome == Outcome::Finished);
        fixed.entry(plan.args.clone()).or_default().extend(qps);
        // What swaps says nothing of the neighbour's own share.
        if qps.is_some() && record.figure("swap_in_mb_s").is_none_or(|rate| rate < SWAPS_MB_S) {
            lasting.push(ratios(&record));
        }
        lab.keep(&record)?;
    }
    let means = governed.iter().map(|(record, _)| record.figure("mean_qps").unwrap_or(0.0));
    let mean = statistics::mean(means);
    let levels = fixed.into_values().map(statistics::mean);
    let best = levels.reduce(f64::max).filter(|best| *best > 0.0);
    for (mut record, counts) in governed {
        let beside = stepped(&record, &counts).into_iter().filter_map(|(at, ratio)| {
            let of_fixed = statistics::mean(lasting.iter().filter_map(|run| run.get(at).copied()));
            (of_fixed > 0.0).then(|| ratio / of_fixed.min(1.0))
        });
        if let Some(worst) = beside.reduce(f64::min) {
            record.summary.insert("worst_step_against_fixed".into(), worst);
        }
        // That of both, in each.
        if let Some(best) = best {
            record.summary.insert("against_best_fixed".into(), mean / best);
        }
        lab.keep(&record)?;
    }
    Ok(())
}

/// Each measured second's throughput, relative to its surroundings.
fn ratios(record: &Record) -> Vec<f64> {
    let measured = statistics::between(&record.series, 0.0, f64::MAX);
    let qps: Vec<f64> = measured.iter().map(|point: &Point| point.qps).collect();
    (0..qps.len()).map(|at| against_neighbours(&qps, at)).collect()
}

/// The seconds with a step, and their ratios. `counts[n]`: the governor's steps until `n` measured
/// seconds had passed.
fn stepped(record: &Record, counts: &[u64]) -> Vec<(usize, f64)> {
    let has_step = |at: usize| counts.get(at + 1).zip(counts.get(at)).is_some_and(|(b, a)| b > a);
    ratios(record).into_iter().enumerate().filter(|(at, _)| has_step(*at)).collect()
}

/// Adds the figures that the bounds are about.
fn judge(record: &mut Record, counts: &[u64]) {
    let worst = ratios(record).into_iter().reduce(f64::min);
    let worst_step = stepped(record, counts).into_iter().map(|(_, ratio)| ratio).reduce(f64::min);
    let measured = statistics::between(&record.series, 0.0, f64::MAX);
    let mean = statistics::mean(measured.iter().map(|point: &Point| point.qps));
    let mut add = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            record.summary.insert(name.into(), value);
        }
    };
    add("mean_qps", Some(mean));
    add("worst_second_ratio", worst);
    add("worst_step_ratio", worst_step);
}

/// A second's throughput, relative to the slower side of its surroundings: a level that changes for
/// good is no dip.
fn against_neighbours(qps: &[f64], at: usize) -> f64 {
    let before = &qps[at.saturating_sub(BESIDE)..at];
    let after = &qps[at + 1..(at + 1 + BESIDE).min(qps.len())];
    let level = [before, after]
        .into_iter()
        .filter(|side| !side.is_empty())
        .map(|side| statistics::median(side.iter().copied()))
        .reduce(f64::min);
    match level {
        Some(level) if level > 0.0 => qps[at] / level,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{CASES, Run, against_neighbours, runs};

    #[test]
    fn a_dip_is_seen_and_a_new_level_is_none() {
        let qps = [100.0, 100.0, 100.0, 60.0, 100.0, 100.0, 100.0, 40.0, 40.0, 40.0, 40.0];
        assert_eq!(against_neighbours(&qps, 3), 0.6);
        assert_eq!(against_neighbours(&qps, 6), 2.5);
        assert_eq!(against_neighbours(&qps, 7), 1.0);
        assert_eq!(against_neighbours(&qps, 10), 1.0);
        assert_eq!(against_neighbours(&[0.0], 0), 1.0);
    }

    #[test]
    fn what_fits_is_run_on_both_sides_of_the_governed_pool() {
        let fixed = |percent, again| Run::Fixed { percent, again };
        for case in &CASES {
            let runs = runs(case, false);
            let governed = [false, true].map(|again| Run::Governed { again });
            let first = runs.windows(2).position(|pair| pair == governed).unwrap();
            for (at, run) in runs[..first].iter().enumerate() {
                let Run::Fixed { percent, again: false } = *run else { panic!("{run:?}") };
                assert_eq!(runs[2 * first + 1 - at], fixed(percent, true), "{}", case.name);
            }
            assert_eq!(
                runs.last(),
                case.fixed.last().map(|&percent| fixed(percent, false)).as_ref()
            );
        }
    }
}
