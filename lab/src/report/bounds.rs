//! What a pool that looks after itself must show, as figures, and whether it did.
//!
//! The same figure is worked out for every engine that was measured; the verdict is about Tidepool,
//! the others stand beside it.

use crate::experiment::govern::GOVERNED;
use crate::experiment::pressure::BESIDE_THE_STEP;
use crate::record::{NEVER, Outcome, Record, statistics};

mod cluster;
mod defaults;
mod queries;
mod sideload;
mod swap;

/// Whose figures are judged.
const OURS: &str = "tidepool";

/// A requirement.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub experiment: String,
    /// What is required.
    pub what: String,
    /// The limit, for people; empty where there is none, and the report only shows the figure.
    pub bound: String,
    /// Tidepool's figure, and whether it meets the bound; nothing if it was not measured.
    pub ours: Option<Figure>,
    /// The others'.
    pub peers: Vec<(String, Figure)>,
}

/// A measured figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// With its unit.
    pub text: String,
    /// True if it meets the bound.
    pub pass: bool,
}

/// A limit.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn admits(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(limit) => value >= limit,
            Bound::AtMost(limit) => value <= limit,
        }
    }

    fn text(self, show: fn(f64) -> String) -> String {
        match self {
            Bound::AtLeast(limit) => format!("≥ {}", show(limit)),
            Bound::AtMost(limit) => format!("≤ {}", show(limit)),
        }
    }
}

/// All requirements that the records say something about.
pub fn rows(records: &[Record]) -> Vec<Row> {
    let mut rows = Vec::new();
    let of = |experiment: &str| -> Vec<&Record> {
        records.iter().filter(|record| record.experiment == experiment).collect()
    };
    swap::rows(&of("swap"), &mut rows);
    pressure(&of("pressure"), &mut rows);
    limits(&of("limits"), &mut rows);
    govern(&of("govern"), &mut rows);
    resize(&of("resize"), &mut rows);
    sideload::rows(&of("sideload"), &mut rows);
    warm(&of("warm"), &mut rows);
    advice(&of("advice"), &mut rows);
    idle(&of("idle"), &mut rows);
    defaults::rows(&of("defaults"), &mut rows);
    queries::rows(&of("queries"), &mut rows);
    cluster::rows(&of("cluster"), &mut rows);
    for experiment in ["resize", "sideload", "warm", "advice", "cluster", "queries"] {
        unplanned(&of(experiment), &mut rows);
    }
    // The rows of an experiment stand together.
    let order = distinct(rows.iter().map(|row| row.experiment.as_str()));
    let order: Vec<String> = order.into_iter().map(str::to_owned).collect();
    rows.sort_by_key(|row| order.iter().position(|name| *name == row.experiment));
    rows
}

fn ratio(value: f64) -> String {
    format!("{value:.3}")
}

fn percent(value: f64) -> String {
    format!("{:.2} %", value * 100.0)
}

fn mb_s(value: f64) -> String {
    format!("{value:.2} MB/s")
}

fn seconds(value: f64) -> String {
    if value >= NEVER { "never".into() } else { format!("{value:.1} s") }
}

fn milliseconds(value: f64) -> String {
    format!("{value:.2} ms")
}

fn count(value: f64) -> String {
    format!("{value:.0}")
}

/// Adds a row whose figure `of` works out for each label; an engine without a figure is left out.
fn add(
    rows: &mut Vec<Row>,
    records: &[&Record],
    what: impl Into<String>,
    bound: Bound,
    show: fn(f64) -> String,
    of: impl Fn(&[&Record]) -> Option<f64>,
) {
    let mut row = Row {
        experiment: records.first().map_or(String::new(), |record| record.experiment.clone()),
        what: what.into(),
        bound: bound.text(show),
        ours: None,
        peers: Vec::new(),
    };
    let mut labels: Vec<String> = Vec::new();
    for record in records {
        if !labels.contains(&record.label()) {
            labels.push(record.label());
        }
    }
    for label in labels {
        let own: Vec<&Record> =
            records.iter().copied().filter(|record| record.label() == label).collect();
        let figure = match of(&own) {
            Some(value) => Figure { text: show(value), pass: bound.admits(value) },
            // A server that died has no figure to be judged by, and did not do what was required.
            None if own.iter().all(|record| record.outcome != Outcome::Finished) => {
                Figure { text: "died".into(), pass: false }
            }
            None => continue,
        };
        if label == OURS { row.ours = Some(figure) } else { row.peers.push((label, figure)) }
    }
    if row.ours.is_some() || !row.peers.is_empty() {
        rows.push(row);
    }
}

/// Adds a row in which nothing is required.
fn tell(
    rows: &mut Vec<Row>,
    records: &[&Record],
    what: impl Into<String>,
    show: fn(f64) -> String,
    of: impl Fn(&[&Record]) -> Option<f64>,
) {
    let before = rows.len();
    add(rows, records, what, Bound::AtMost(f64::INFINITY), show, of);
    for row in &mut rows[before..] {
        row.bound.clear();
    }
}

/// The distinct values, in the order of their first appearance.
fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

fn killed(records: &[&Record]) -> f64 {
    let killed = |record: &&&Record| {
        record.outcome != Outcome::Finished || record.figure("oom_kills").unwrap_or(0.0) > 0.0
    };
    records.iter().filter(killed).count() as f64
}

fn highest(records: &[&Record], name: &str) -> Option<f64> {
    records.iter().filter_map(|record| record.figure(name)).reduce(f64::max)
}

fn lowest(records: &[&Record], name: &str) -> Option<f64> {
    records.iter().filter_map(|record| record.figure(name)).reduce(f64::min)
}

fn figure_of(records: &[&Record], scenario: &str, name: &str) -> Option<f64> {
    let finished =
        |record: &&&Record| record.scenario == scenario && record.outcome == Outcome::Finished;
    records.iter().find(finished)?.figure(name)
}

/// Adds the row that says whether a run is missing from the others.
fn unplanned(records: &[&Record], rows: &mut Vec<Row>) {
    let what = "runs that did not end as planned";
    add(rows, records, what, Bound::AtMost(0.0), count, |own| {
        let of = own.iter().filter(|record| record.outcome != Outcome::Finished);
        Some(of.count() as f64)
    });
}

fn pressure(records: &[&Record], rows: &mut Vec<Row>) {
    let under_pressure: Vec<&Record> =
        records.iter().copied().filter(|record| !record.scenario.starts_with("baseline")).collect();
    for scenario in distinct(under_pressure.iter().map(|record| record.scenario.as_str())) {
        let of_case: Vec<&Record> =
            under_pressure.iter().copied().filter(|record| record.scenario == scenario).collect();
        let mut one = |what: &str, bound, show, name: &'static str| {
            add(rows, &of_case, format!("{scenario}: {what}"), bound, show, |own| {
                figure_of(own, scenario, name)
            });
        };
        one("swapped out, of the memory moved", Bound::AtMost(0.01), percent, "swap_out_share");
        one("back to the full size after", Bound::AtMost(10.0), seconds, "back_after_s");
        let name = "worst_second_ratio";
        if scenario == "step" && records.iter().any(|record| record.scenario == BESIDE_THE_STEP) {
            let what =
                format!("{scenario}: worst second, relative to that of a fixed pool beside it");
            add(rows, &of_case, what, Bound::AtLeast(0.8), ratio, |own| {
                let engine = &own.first()?.engine;
                let fixed = records
                    .iter()
                    .find(|record| record.scenario == BESIDE_THE_STEP && record.engine == *engine);
                let fixed = fixed.filter(|record| record.outcome == Outcome::Finished)?;
                Some(figure_of(own, scenario, name)? / fixed.figure(name)?.min(1.0))
            });
            continue;
        }
        let worst = match scenario.starts_with("two servers") {
            true => "worst second, relative to the middle of those that both share",
            false => "worst second, relative to a fixed pool of that size",
        };
        one(worst, Bound::AtLeast(0.8), ratio, name);
    }
    add(rows, &under_pressure, "runs with a kill", Bound::AtMost(0.0), count, |own| {
        Some(killed(own))
    });
}

fn limits(records: &[&Record], rows: &mut Vec<Row>) {
    for scenario in distinct(records.iter().map(|record| record.scenario.as_str())) {
        let of_case: Vec<&Record> =
            records.iter().copied().filter(|record| record.scenario == scenario).collect();
        let mut one = |what: &str, bound, show, name: &'static str| {
            add(rows, &of_case, format!("{scenario}: {what}"), bound, show, |own| {
                figure_of(own, scenario, name)
            });
        };
        one("swapped out, MB", Bound::AtMost(50.0), count, "swapped_out_mb");
        one("the least pool, of what fits", Bound::AtLeast(0.5), ratio, "pool_least_ratio");
        one("the largest pool after that", Bound::AtMost(1.05), ratio, "pool_most_ratio");
        one("at the size that fits after", Bound::AtMost(10.0), seconds, "settled_after_s");
        one("back to the full size after", Bound::AtMost(10.0), seconds, "back_after_s");
    }
    add(rows, records, "runs with a kill", Bound::AtMost(0.0), count, |own| Some(killed(own)));
}

/// What is judged is the governor; the engine is always InnoDB, of MariaDB unless it is said.
fn govern(records: &[&Record], rows: &mut Vec<Row>) {
    let mut add = |what: String, bound: Bound, show: fn(f64) -> String, value: f64| {
        let ours = Figure { text: show(value), pass: bound.admits(value) };
        let bound = bound.text(show);
        rows.push(Row {
            experiment: "govern".into(),
            what,
            bound,
            ours: Some(ours),
            peers: Vec::new(),
        });
    };
    let governed: Vec<&Record> =
        records.iter().copied().filter(|record| record.variant.starts_with(GOVERNED)).collect();
    // A case may have been run twice: what is worst in either counts.
    let mut cases: Vec<(String, Vec<&Record>)> = Vec::new();
    for record in &governed {
        let scenario = match record.engine.as_str() {
            "mysql" => format!("{}, MySQL", record.scenario),
            _ => record.scenario.clone(),
        };
        match cases.iter_mut().find(|(case, _)| *case == scenario) {
            Some((_, runs)) => runs.push(record),
            None => cases.push((scenario, vec![record])),
        }
    }
    for (scenario, runs) in cases {
        if let Some(value) = lowest(&runs, "against_best_fixed") {
            let what = format!(
                "{scenario}: InnoDB under tidepool govern, relative to the best fixed size"
            );
            add(what, Bound::AtLeast(0.95), ratio, value);
        }
        if let Some(value) = lowest(&runs, "worst_step_ratio") {
            let what =
                format!("{scenario}: the worst second with a step, relative to those beside it");
            match lowest(&runs, "worst_step_against_fixed") {
                None => add(what, Bound::AtLeast(0.8), ratio, value),
                Some(value) => {
                    let what = format!("{what} and to fixed pools in the same second");
                    add(what, Bound::AtLeast(0.8), ratio, value);
                }
            }
        }
        // A second may be slow for other reasons too; this is what the step itself did to the page
        // reads around it.
        if let Some(value) = highest(&runs, "step_lost_ms_max") {
            let what = format!("{scenario}: the most of the queries' work that one step cost");
            add(what, Bound::AtMost(200.0), milliseconds, value);
        }
    }
    if !governed.is_empty() {
        add("runs with a kill".into(), Bound::AtMost(0.0), count, killed(&governed));
    }
}

fn resize(records: &[&Record], rows: &mut Vec<Row>) {
    let name = "worst_second_ratio";
    for scenario in distinct(records.iter().map(|record| record.scenario.as_str())) {
        if scenario.starts_with("no change") || scenario == "shrink of clean pages" {
            continue;
        }
        let what = format!("{scenario}: worst second, less that of the run without a change");
        add(rows, records, what, Bound::AtLeast(-0.05), ratio, |own| {
            Some(figure_of(own, scenario, name)? - figure_of(own, "no change", name)?)
        });
    }
    add(
        rows,
        records,
        "longest wait that a resize caused",
        Bound::AtMost(5.0),
        milliseconds,
        |own| highest(own, "resize_longest_wait_us").map(|us| us / 1e3),
    );
    let shrunk = highest(records, "shrunk_mib").unwrap_or(0.0) / 1024.0;
    let what = format!("giving {shrunk:.1} GiB of clean pages back");
    add(rows, records, what, Bound::AtMost(2.0), seconds, |own| highest(own, "shrink_s"));
}

fn warm(records: &[&Record], rows: &mut Vec<Row>) {
    let name = "seconds_to_90_percent";
    tell(rows, records, "seconds to 90 % after kill -9", seconds, |own| {
        figure_of(own, "warm restart", name)
    });
    add(rows, records, "warm, relative to cold", Bound::AtMost(0.25), ratio, |own| {
        let (warm, cold) =
            (figure_of(own, "warm restart", name)?, figure_of(own, "cold restart", name)?);
        match (warm >= NEVER, cold >= NEVER) {
            (true, _) => Some(f64::INFINITY),
            // The run was too short to say by how much.
            (false, true) => None,
            (false, false) => Some(warm / cold),
        }
    });
}

fn advice(records: &[&Record], rows: &mut Vec<Row>) {
    let load = |record: &Record| {
        record.scenario.split_once(", ").map_or(String::new(), |(load, _)| load.to_string())
    };
    let loads: Vec<String> = records.iter().map(|record| load(record)).collect();
    for wanted in distinct(loads.iter().map(String::as_str)) {
        let what = format!("{wanted}: mean error of the predicted hit ratio");
        add(rows, records, what, Bound::AtMost(0.02), ratio, |own| {
            let errors: Vec<f64> = own
                .iter()
                .filter(|record| load(record) == wanted)
                .filter_map(|record| record.figure("error"))
                .collect();
            (!errors.is_empty()).then(|| statistics::mean(errors))
        });
    }
}

fn idle(records: &[&Record], rows: &mut Vec<Row>) {
    let Some(on) = records.first() else { return };
    let bound = Bound::AtLeast(0.99);
    let what = "throughput with governor and advisor, relative to without (median and quartiles)";
    let figure = match on.figure("on_off_ratio") {
        Some(median) => {
            let quartile = |name: &str| {
                on.figure(&format!("on_off_ratio_{name}_quartile")).unwrap_or(f64::NAN)
            };
            let (low, high) = (quartile("first"), quartile("third"));
            let text = format!("{} ({}–{})", ratio(median), ratio(low), ratio(high));
            Figure { text, pass: bound.admits(median) }
        }
        None if on.outcome != Outcome::Finished => Figure { text: "died".into(), pass: false },
        None => return,
    };
    rows.push(Row {
        experiment: "idle".into(),
        what: what.into(),
        bound: bound.text(ratio),
        ours: Some(figure),
        peers: Vec::new(),
    });
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    pub(super) use crate::record::finished as record;

    pub(super) fn row<'a>(rows: &'a [Row], what: &str) -> &'a Row {
        rows.iter()
            .find(|row| row.what.contains(what))
            .unwrap_or_else(|| panic!("{what}: {rows:?}"))
    }

    #[test]
    fn a_governed_pool_is_judged_and_a_fixed_one_is_not() {
        let figures = [("against_best_fixed", 0.9), ("worst_step_ratio", 0.85)];
        let mut records = [
            record("govern", "step", "innodb", &[("worst_second_ratio", 0.1)]),
            record("govern", "step", "innodb", &figures),
        ];
        records[0].variant = "75 %".into();
        records[0].outcome = Outcome::OomKilled;
        records[1].variant = GOVERNED.into();
        let passes = |records: &[Record], what: &str| {
            let rows = rows(records);
            assert_eq!(rows.len(), 3, "{rows:?}");
            row(&rows, what).ours.as_ref().unwrap().pass
        };
        assert!(!passes(&records, "best fixed size"));
        assert!(passes(&records, "worst second") && passes(&records, "a kill"));
        // What is worse of two runs counts.
        let [fixed, first] = records;
        let mut again = first.clone();
        again.variant.push_str(", again");
        again.summary.insert("worst_step_ratio".into(), 0.7);
        assert!(!passes(&[fixed, first, again], "worst second"));
    }

    #[test]
    fn a_step_is_judged_by_a_fixed_pool_that_goes_through_it() {
        let step = |scenario: &str, worst| {
            record("pressure", scenario, "tidepool", &[("worst_second_ratio", worst)])
        };
        let mut records = vec![step("step", 0.72), step("leak", 0.9)];
        let pass = |records: &[Record]| {
            let rows = rows(records);
            let of_step = rows.iter().find(|row| row.what.starts_with("step: worst second"));
            of_step.unwrap().ours.as_ref().unwrap().pass
        };
        assert!(!pass(&records));
        records.push(step(BESIDE_THE_STEP, 0.88));
        assert!(pass(&records));
        records[2] = step(BESIDE_THE_STEP, 0.95);
        assert!(!pass(&records));
    }

    #[test]
    fn a_resize_is_judged_by_the_run_without_one() {
        let records = [
            record("resize", "no change", "tidepool", &[("worst_second_ratio", 0.9)]),
            record("resize", "4 → 2", "tidepool", &[("worst_second_ratio", 0.8)]),
        ];
        let rows = rows(&records);
        let figure = row(&rows, "4 → 2").ours.as_ref().unwrap();
        assert!(!figure.pass, "{figure:?}");
        assert_eq!(figure.text, "-0.100");
    }

    #[test]
    fn a_run_that_died_beside_others_is_not_passed_over() {
        let run =
            |scenario: &str| record("resize", scenario, "tidepool", &[("worst_second_ratio", 0.9)]);
        let mut records = [run("no change"), run("4 → 2"), run("4 → 8")];
        let passes = |records: &[Record]| {
            let rows = rows(records);
            let row = row(&rows, "did not end as planned");
            row.ours.as_ref().unwrap().pass
        };
        assert!(passes(&records));
        records[2].outcome = Outcome::Failed("died".into());
        assert!(!passes(&records));
    }

    #[test]
    fn a_restart_that_never_gets_warm_has_no_ratio_that_passes() {
        let judged = |warm: f64, cold: f64| {
            let run = |scenario: &str, seconds| {
                record("warm", scenario, "tidepool", &[("seconds_to_90_percent", seconds)])
            };
            let rows = rows(&[run("warm restart", warm), run("cold restart", cold)]);
            let row = rows.iter().find(|row| row.what.contains("relative to cold"));
            row.map(|row| row.ours.as_ref().unwrap().pass)
        };
        assert_eq!(judged(3.0, 30.0), Some(true));
        assert_eq!(judged(NEVER, NEVER), Some(false));
        assert_eq!(judged(3.0, NEVER), None);
    }

    #[test]
    fn a_server_that_died_meets_nothing() {
        let mut dead = record("pressure", "step", "tidepool", &[("swap_out_share", 0.0)]);
        dead.outcome = Outcome::OomKilled;
        let rows = rows(&[dead]);
        assert!(rows.iter().all(|row| !row.ours.as_ref().unwrap().pass), "{rows:?}");
        assert_eq!(row(&rows, "swapped out").ours.as_ref().unwrap().text, "died");
    }

    #[test]
    fn a_pool_that_never_comes_back_says_so() {
        let figures = [("back_after_s", f64::from(u16::MAX))];
        let rows = rows(&[record("pressure", "step", "tidepool", &figures)]);
        let figure = row(&rows, "back to").ours.as_ref().unwrap();
        assert_eq!((figure.text.as_str(), figure.pass), ("never", false));
    }

    #[test]
    fn the_cost_of_idling_is_the_median_of_neighbours_with_its_quartiles() {
        let on = record(
            "idle",
            "turns",
            "tidepool",
            &[
                ("on_off_ratio", 0.993),
                ("on_off_ratio_first_quartile", 0.981),
                ("on_off_ratio_third_quartile", 1.004),
            ],
        );
        let rows = rows(&[on]);
        let figure = row(&rows, "governor and advisor").ours.clone().unwrap();
        assert_eq!(figure, Figure { text: "0.993 (0.981–1.004)".into(), pass: true });
    }
}
