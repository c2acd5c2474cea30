//! Runs that were repeated, as one.
//!
//! A single run on a machine with neighbours says as much about them as about the case. Of several,
//! the median of a figure is judged; but where a figure is the worst that happened, as a wait or a
//! kill, once is too often, and the worst counts.
//!
//! The worst second of a run is a third kind. Each run has one, and on such a machine it is most
//! often the machine's. What an experiment does comes at the same second of every repeat, and so
//! does the dip that it causes. So of three repeats and more the median is taken of each second,
//! and then the worst of these; a dip may come one second sooner or later.

use std::collections::BTreeMap;

use crate::record::{Outcome, Point, Record, statistics};

/// Figures of which the greatest of all repeats counts.
const WORST: [&str; 13] = [
    "oom_kills",
    "resize_longest_wait_us",
    "swap_in_mb_s",
    "swap_out_share",
    "missing_share",
    "violations",
    "step_lost_ms_max",
    "swapped_out_mb",
    "wrong_answers",
    "queries_unfinished",
    "set_pending",
    "set_failed",
    "neighbour_killed",
];

/// One record for each case of an engine, in the order in which they first came. Its figures are
/// those of all its repeats, its outcome is the first that was not as planned, and the rest is the
/// first repeat's.
pub(super) fn condensed(records: &[Record]) -> Vec<Record> {
    let mut cases: Vec<Vec<&Record>> = Vec::new();
    for record in records {
        match cases.iter_mut().find(|case| is_same_case(case[0], record)) {
            Some(case) => case.push(record),
            None => cases.push(vec![record]),
        }
    }
    cases.iter().map(|repeats| condense(repeats)).collect()
}

/// Which of those with its name each record is, from 1, and how many there are.
pub(super) fn numbers(records: &[Record]) -> Vec<(usize, usize)> {
    let number = |at: usize| {
        let same = |record: &&Record| is_named_alike(record, &records[at]);
        let before = records[..at].iter().filter(same).count();
        (before + 1, records.iter().filter(same).count())
    };
    (0..records.len()).map(number).collect()
}

/// Whether one is a repeat of the other: of a case of the same configuration.
fn is_same_case(one: &Record, other: &Record) -> bool {
    is_named_alike(one, other) && one.config_hash == other.config_hash
}

fn is_named_alike(one: &Record, other: &Record) -> bool {
    one.experiment == other.experiment
        && one.scenario == other.scenario
        && one.label() == other.label()
}

fn condense(repeats: &[&Record]) -> Record {
    let mut record = repeats[0].clone();
    if repeats.len() == 1 {
        return record;
    }
    let unplanned = repeats.iter().find(|repeat| repeat.outcome != Outcome::Finished);
    if let Some(unplanned) = unplanned {
        record.outcome = unplanned.outcome.clone();
    }
    record.summary = repeats.iter().flat_map(|repeat| repeat.summary.clone()).collect();
    for (name, value) in &mut record.summary {
        let all = repeats.iter().filter_map(|repeat| repeat.figure(name));
        *value = if WORST.contains(&name.as_str()) {
            all.fold(f64::MIN, f64::max)
        } else {
            statistics::median(all)
        };
    }
    if let Some((ratio, second)) = worst_recurring_second(repeats) {
        record.summary.insert("worst_second_ratio".into(), ratio);
        record.summary.insert("worst_second_at_s".into(), second);
    }
    record
}

/// The number of repeats that show what recurs.
const RECURRING: usize = 3;

/// The lowest median of a second over all repeats, and that second. A second of a repeat counts as
/// the slower of itself and the next.
fn worst_recurring_second(repeats: &[&Record]) -> Option<(f64, f64)> {
    let mut seconds: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for repeat in repeats {
        let judged: Vec<&Point> =
            repeat.series.iter().filter(|point| point.relative.is_some()).collect();
        for pair in judged.windows(2) {
            let slower = pair.iter().filter_map(|point| point.relative).fold(f64::MAX, f64::min);
            seconds.entry(pair[0].at_s.round() as i64).or_default().push(slower);
        }
    }
    seconds
        .into_iter()
        .filter(|(_, ratios)| ratios.len() >= RECURRING)
        .map(|(second, ratios)| (statistics::median(ratios), second as f64))
        .min_by(|a, b| a.0.total_cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeat(scenario: &str, figures: &[(&str, f64)]) -> Record {
        crate::record::finished("resize", scenario, "tidepool", figures)
    }

    #[test]
    fn the_middle_counts_and_of_what_must_never_happen_the_worst() {
        let figures =
            |ratio, wait| [("worst_second_ratio", ratio), ("resize_longest_wait_us", wait)];
        let records = [
            repeat("4 → 2", &figures(0.9, 100.0)),
            repeat("4 → 8", &figures(1.1, 0.0)),
            repeat("4 → 2", &figures(0.2, 7000.0)),
            repeat("4 → 2", &figures(0.8, 200.0)),
        ];
        let condensed = condensed(&records);
        assert_eq!(condensed.len(), 2);
        assert_eq!(condensed[0].figure("worst_second_ratio"), Some(0.8));
        assert_eq!(condensed[0].figure("resize_longest_wait_us"), Some(7000.0));
        assert_eq!(condensed[1].figure("worst_second_ratio"), Some(1.1));
        assert_eq!(numbers(&records), [(1, 3), (1, 1), (2, 3), (3, 3)]);
    }

    #[test]
    fn another_load_is_another_case_of_the_same_name() {
        let run = |config_hash: &str, qps| {
            let config_hash = config_hash.to_owned();
            Record { config_hash, ..repeat("uniform", &[("qps", qps)]) }
        };
        let records = [run("16", 100.0), run("64", 900.0), run("16", 300.0)];
        let figures: Vec<_> =
            condensed(&records).iter().map(|record| record.figure("qps").unwrap()).collect();
        assert_eq!(figures, [200.0, 900.0]);
        // Each has its own chart.
        assert_eq!(numbers(&records), [(1, 3), (2, 3), (3, 3)]);
    }

    #[test]
    fn a_dip_counts_if_it_recurs() {
        let run = |dips: &[(usize, f64)]| {
            let worst = dips.iter().map(|dip| dip.1).fold(1.0, f64::min);
            let mut record = repeat("step", &[("worst_second_ratio", worst)]);
            for second in 1..=20 {
                let dip = dips.iter().find(|dip| dip.0 == second);
                record.series.push(Point {
                    at_s: second as f64 + 0.1,
                    relative: (second > 4).then_some(dip.map_or(1.0, |dip| dip.1)),
                    ..Point::default()
                });
            }
            record
        };
        let figure = |records: &[Record]| {
            assert_eq!(condensed(records).len(), 1);
            condensed(records)[0].figure("worst_second_ratio")
        };
        // Each at another second.
        let machine = [run(&[(6, 0.3)]), run(&[(12, 0.4)]), run(&[(18, 0.5)])];
        assert_eq!(figure(&machine), Some(1.0));
        // At the second of the change, or the one beside it.
        let change = [run(&[(9, 0.5), (15, 0.2)]), run(&[(10, 0.6)]), run(&[(9, 0.7)])];
        assert_eq!(figure(&change), Some(0.6));
        // Two runs can't tell.
        assert_eq!(figure(&machine[..2]), Some(0.35));
    }

    #[test]
    fn one_death_among_the_repeats_is_a_death() {
        let mut records = [repeat("step", &[]), repeat("step", &[])];
        records[1].outcome = Outcome::OomKilled;
        assert_eq!(condensed(&records)[0].outcome, Outcome::OomKilled);
    }
}
