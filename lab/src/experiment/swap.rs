//! The oversized pool (the first two articles): a pool of up to three times the memory that there
//! is.
//!
//! A memory cgroup, a swap file of twice its size, a table of 3.7 times its size, 16 threads; point
//! selects and updates of a column without an index; rows chosen uniformly and by Pareto. Sizes are
//! taken in turn, and engines within a size, so that a slow drift of the machine meets all of them.
//!
//! Runs that are minutes apart differ by more than the sizes do. So, besides, one server takes all
//! sizes *in turns* of some seconds, by online resizes under one load; what is compared then are
//! neighbouring turns.
//!
//! `rescue` is the first article's last experiment: a pool that swaps is made smaller under load.

use crate::engine::Engine;
use crate::error::Result;
use crate::lab::{Lab, Moment, Plan, Settings};
use crate::load::sysbench::{Distribution, Job};
use crate::progress::Progress;
use crate::record::{Outcome, Point, Record, statistics};

use super::data::tables;
use super::{summarise, turn_qps};

mod rescue;

pub(crate) use rescue::RESCUE;

/// Percent of the memory; 0 is "governed". Other engines have nothing of that kind, and at three
/// times the memory they only die once more.
fn percents(engine: Engine, quick: bool) -> &'static [u64] {
    match (engine, quick) {
        (Engine::Tidepool, false) => &[0, 75, 100, 150, 300],
        (Engine::Tidepool, true) => &[0, 75, 150],
        (_, false) => &[75, 100, 150],
        (_, true) => &[75, 150],
    }
}

/// The sizes that take turns, in percent of the memory; 0 is "governed".
const TURN_PERCENTS: [u64; 5] = [0, 100, 75, 150, 300];
/// Seconds of a turn, and how many of them pass before it counts: the pool must fill again after 75
/// %.
const TURN_S: u32 = 5;
const SETTLE_S: u32 = 2;

/// Where the name of a scenario in turns ends.
pub const IN_TURNS: &str = "in turns";

/// The name of a size's throughput in the summary of a run in turns, queries per second.
pub fn turn_figure(size: &str) -> String {
    format!("turn_qps {size}")
}

/// The name of its relative standard error.
pub fn turn_error(size: &str) -> String {
    format!("turn_error {size}")
}

fn size_name(percent: u64) -> String {
    if percent == 0 { "governed".into() } else { format!("{percent} %") }
}

/// The size of a turn. What a turn inherits of the one before it (frames that are still free, pages
/// that are written already) must not always go to the same size: in four rounds each size comes
/// once after each other one, and in twenty it has each place four times.
fn turn_percent(turn: u32) -> u64 {
    let sizes = TURN_PERCENTS.len();
    let (round, place) = (turn as usize / sizes, turn as usize % sizes);
    // Every step leads through all of them, for their number is a prime.
    let step = [1, 4, 2, 3][round % 4];
    TURN_PERCENTS[(round / 4 + step * (place + 1)) % sizes]
}

/// The loads: a script, and how rows are chosen.
fn loads(quick: bool) -> &'static [(&'static str, Distribution)] {
    if quick {
        return &[("oltp_point_select", Distribution::Uniform)];
    }
    &[
        ("oltp_point_select", Distribution::Uniform),
        ("oltp_point_select", Distribution::Pareto),
        ("oltp_update_non_index", Distribution::Uniform),
        ("oltp_update_non_index", Distribution::Pareto),
    ]
}

/// The run of one size under one load.
struct Size {
    script: &'static str,
    distribution: Distribution,
    percent: u64,
    engine: Engine,
}

impl Size {
    fn name(&self) -> String {
        format!("{}, {}, {}", self.script, self.distribution.key(), size_name(self.percent))
    }
}

fn sizes(settings: &Settings) -> Vec<Size> {
    let mut sizes = Vec::new();
    for &(script, distribution) in loads(settings.quick) {
        for percent in [0, 75, 100, 150, 300] {
            for &engine in &settings.engines {
                if percents(engine, settings.quick).contains(&percent) {
                    sizes.push(Size { script, distribution, percent, engine });
                }
            }
        }
    }
    sizes
}

/// What can be chosen from.
pub(super) fn case_names(settings: &Settings) -> Vec<String> {
    let sizes = sizes(settings);
    let mut names: Vec<String> = sizes.iter().map(Size::name).collect();
    // Engines take turns within a size.
    names.dedup();
    let governed = sizes.iter().filter(|size| size.engine == Engine::Tidepool && size.percent == 0);
    names.extend(governed.map(|size| in_turns_name(&size.name())));
    if rescue::is_there(settings) {
        names.push(RESCUE.into());
    }
    names
}

/// The name of a load with all sizes in turns, by that of one of its sizes.
fn in_turns_name(scenario: &str) -> String {
    let (load, _) = scenario.rsplit_once(", ").unwrap_or((scenario, ""));
    format!("{load}, {IN_TURNS}")
}

fn plans(lab: &Lab, progress: &mut Progress) -> Result<Vec<Plan>> {
    let settings = &lab.settings;
    let memory = settings.memory_bytes;
    let data = tables(memory);
    let mut plans = Vec::new();
    for size in sizes(settings) {
        let engine = size.engine;
        let dir = lab.data(engine, &data, progress)?;
        let job = Job {
            script: size.script.into(),
            ..Job::point_selects(data.tables[0].rows, settings.threads(16), size.distribution)
        };
        let writes = size.script != "oltp_point_select";
        let mut plan = Plan::new("swap", engine, &dir, job);
        plan.scenario = size.name();
        plan.args = vec![
            engine.pool_size_option(memory / 100 * size.percent),
            engine.redo_option(memory / 2),
        ];
        plan.memory_limit = Some(memory);
        plan.keeps_clean = writes;
        (plan.warm_up_s, plan.measure_s) = if settings.quick { (8, 10) } else { (9, 11) };
        plan.measure_s = settings.seconds(plan.measure_s);
        plans.push(plan);
    }
    Ok(plans)
}

/// Runs the experiment.
///
/// # Errors
/// If the machine can't do it, or a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    lab.need_memory_cgroups()?;
    let plans = plans(lab, &mut Progress::new(1))?;
    let _swap = lab.swap_file(2 * lab.settings.memory_bytes)?;
    lab.begin("swap")?;
    let wanted: Vec<&Plan> =
        plans.iter().filter(|plan| lab.settings.wants(&plan.scenario)).collect();
    let mut progress =
        Progress::new(wanted.iter().map(|plan| plan.warm_up_s + plan.measure_s).sum());
    for plan in wanted {
        let mut record = lab.run(plan, &mut progress, |_, _| Ok(()))?;
        summarise(&mut record);
        lab.keep(&record)?;
    }
    let governed = plans
        .iter()
        .filter(|plan| plan.engine == Engine::Tidepool && plan.scenario.ends_with(", governed"));
    for plan in governed {
        let mut plan = plan.clone();
        plan.scenario = in_turns_name(&plan.scenario);
        if lab.settings.wants(&plan.scenario) {
            lab.keep(&in_turns(lab, plan)?)?;
        }
    }
    // Last: a disk may be slower for minutes after somebody has swapped to it.
    if rescue::is_there(&lab.settings) && lab.settings.wants(RESCUE) {
        rescue::run(lab)
    } else {
        Ok(())
    }
}

/// The case of a plan, with all sizes in turns on one server.
fn in_turns(lab: &Lab, mut plan: Plan) -> Result<Record> {
    let rounds = if lab.settings.quick { 3 } else { 24 };
    let turns = rounds * TURN_PERCENTS.len() as u32;
    plan.measure_s = turns * TURN_S;
    let memory = lab.settings.memory_bytes;
    let mut progress = Progress::new(plan.warm_up_s + plan.measure_s);
    let mut record = lab.run(&plan, &mut progress, |stage, moment| match moment {
        Moment::After(second) if second % TURN_S == 0 && second < plan.measure_s => {
            stage.set_pool_size(memory / 100 * turn_percent(second / TURN_S))
        }
        _ => Ok(()),
    })?;
    summarise(&mut record);
    if record.outcome == Outcome::Finished {
        let figures = turn_figures(&record.series, rounds);
        record.summary.extend(figures);
    }
    Ok(record)
}

/// Of each size the throughput, and its relative standard error.
///
/// What a turn is compared with is the mean of its round, which meets the same machine. The mean of
/// these ratios over all rounds, times the median round, is the size's throughput. Rounds in which
/// the server did nothing tell nothing.
fn turn_figures(series: &[Point], rounds: u32) -> Vec<(String, f64)> {
    let sizes = TURN_PERCENTS.len() as u32;
    let rounds: Vec<Vec<(u64, f64)>> = (0..rounds)
        .map(|round| {
            let turns = round * sizes..(round + 1) * sizes;
            turns
                .map(|turn| (turn_percent(turn), turn_qps(series, turn, TURN_S, SETTLE_S)))
                .collect()
        })
        .collect();
    let level = |round: &[(u64, f64)]| statistics::mean(round.iter().map(|(_, qps)| *qps));
    let median = statistics::median(rounds.iter().map(|round| level(round)));
    let figures = |percent: u64| {
        let ratios: Vec<f64> = rounds
            .iter()
            .filter(|round| level(round) > 0.0)
            .filter_map(|round| {
                let turn = round.iter().find(|(size, _)| *size == percent)?;
                Some(turn.1 / level(round))
            })
            .collect();
        let mean = statistics::mean(ratios.iter().copied());
        let error = statistics::standard_error(&ratios);
        let size = size_name(percent);
        [
            (turn_figure(&size), median * mean),
            (turn_error(&size), error / mean.max(f64::MIN_POSITIVE)),
        ]
    };
    TURN_PERCENTS.into_iter().flat_map(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine gets slower from round to round; 75 % has half of the others' throughput,
    /// whenever it comes.
    fn series(rounds: u32) -> Vec<Point> {
        let turns = 0..rounds * TURN_PERCENTS.len() as u32;
        let seconds = turns.flat_map(|turn| (0..TURN_S).map(move |second| (turn, second)));
        seconds
            .zip(1..)
            .map(|((turn, second), at_s)| {
                let speed = 1000.0 - 100.0 * f64::from(turn / TURN_PERCENTS.len() as u32);
                let qps = match turn_percent(turn) {
                    _ if second < SETTLE_S => 1.0,
                    75 => speed / 2.0,
                    _ => speed,
                };
                Point { at_s: f64::from(at_s), qps, ..Point::default() }
            })
            .collect()
    }

    #[test]
    fn each_size_follows_each_other_one_as_often() {
        let sizes = TURN_PERCENTS.len() as u32;
        let mut places = std::collections::BTreeMap::new();
        let mut pairs = places.clone();
        for round in 0..4 * sizes {
            let turns: Vec<u64> =
                (0..sizes).map(|place| turn_percent(round * sizes + place)).collect();
            for (place, &percent) in turns.iter().enumerate() {
                *places.entry((place as u64, percent)).or_insert(0) += 1;
            }
            for pair in turns.windows(2) {
                assert_ne!(pair[0], pair[1]);
                *pairs.entry((pair[0], pair[1])).or_insert(0) += 1;
            }
        }
        assert_eq!(places.len(), 25);
        assert!(places.values().all(|&times| times == 4), "{places:?}");
        assert_eq!(pairs.len(), 20);
        assert!(pairs.values().all(|&times| times == 4), "{pairs:?}");
    }

    #[test]
    fn turns_are_compared_with_their_own_round() {
        let figures: std::collections::BTreeMap<_, _> =
            turn_figures(&series(3), 3).into_iter().collect();
        let is = |name: String, wanted: f64| {
            assert!((figures[&name] - wanted).abs() < 1e-9, "{name}: {figures:?}");
        };
        is(turn_figure("governed"), 900.0);
        is(turn_figure("300 %"), 900.0);
        is(turn_figure("75 %"), 450.0);
        is(turn_error("75 %"), 0.0);
    }

    #[test]
    fn a_turn_that_was_slow_once_shows_as_an_error() {
        let mut series = series(3);
        let slow = (0..).find(|turn| turn_percent(*turn) == 300).unwrap();
        for point in &mut series[(slow * TURN_S) as usize..((slow + 1) * TURN_S) as usize] {
            point.qps /= 2.0;
        }
        let figures = turn_figures(&series, 3);
        let error = figures.iter().find(|(name, _)| *name == turn_error("300 %")).unwrap().1;
        assert!(error > 0.1, "{error}");
    }

    #[test]
    fn no_size_always_follows_the_same_one() {
        for percent in TURN_PERCENTS {
            let turns = (1..24 * 5).filter(|turn| turn_percent(*turn) == percent);
            let mut before: Vec<u64> = turns.map(|turn| turn_percent(turn - 1)).collect();
            before.sort_unstable();
            before.dedup();
            assert!(before.len() > 1, "{percent} % always follows {before:?}");
        }
    }
}
