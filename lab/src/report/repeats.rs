//! Runs that were repeated, as one.
//!
//! A single run on a machine with neighbours says as much about them as about the case. Of several, the median of a figure is
//! judged; but where a figure is the worst that happened, as a wait or a kill, once is too often, and the worst counts.

use crate::record::{Outcome, Record, statistics};

/// Figures of which the greatest of all repeats counts.
const WORST: [&str; 7] = [
    "oom_kills",
    "resize_longest_wait_us",
    "swap_in_mb_s",
    "swap_out_share",
    "missing_share",
    "violations",
    "step_lost_ms_max",
];

/// One record for each case of an engine, in the order in which they first came. Its figures are those of all its repeats, its
/// outcome is the first that was not as planned, and the rest is the first repeat's.
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

/// Which repeat of its case each record is, from 1, and how many there are.
pub(super) fn numbers(records: &[Record]) -> Vec<(usize, usize)> {
    let number = |at: usize| {
        let same = |record: &&Record| is_same_case(record, &records[at]);
        let before = records[..at].iter().filter(same).count();
        (before + 1, records.iter().filter(same).count())
    };
    (0..records.len()).map(number).collect()
}

fn is_same_case(one: &Record, other: &Record) -> bool {
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
    record
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
    fn one_death_among_the_repeats_is_a_death() {
        let mut records = [repeat("step", &[]), repeat("step", &[])];
        records[1].outcome = Outcome::OomKilled;
        assert_eq!(condensed(&records)[0].outcome, Outcome::OomKilled);
    }
}
