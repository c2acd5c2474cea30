//! The time of each query of TPC-H against that of the other engines.

use super::{Bound, Figure, OURS, Row, add, count, distinct, ratio};
use crate::experiment::queries::figure;
use crate::load::tpch::queries::COUNT;
use crate::record::Record;

/// Adds the rows of the experiment.
pub(super) fn rows(records: &[&Record], rows: &mut Vec<Row>) {
    let scenarios = distinct(records.iter().map(|record| record.scenario.as_str()));
    for scenario in scenarios {
        let of_case: Vec<&Record> =
            records.iter().copied().filter(|record| record.scenario == scenario).collect();
        let Some(ours) = of_case.iter().find(|record| record.engine == OURS) else { continue };
        for peer in of_case.iter().filter(|record| record.engine != OURS) {
            against(ours, peer, rows);
        }
    }
    let mut worst = |what: &str, name: &'static str| {
        add(rows, records, what, Bound::AtMost(0.0), count, |own| {
            own.iter().filter_map(|record| record.figure(name)).reduce(f64::max)
        });
    };
    worst("queries of a run with another answer than the published one", "wrong_answers");
    worst("queries of a run that were ended after 300 s", "queries_unfinished");
}

/// How many times as long the peer took: the geometric mean, and the two ends.
fn against(ours: &Record, peer: &Record, rows: &mut Vec<Row>) {
    let ratios: Vec<f64> = (1..=COUNT)
        .filter_map(|query| Some(peer.figure(&figure(query))? / ours.figure(&figure(query))?))
        .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        .collect();
    if ratios.is_empty() {
        return;
    }
    let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    let mean = (logarithms / ratios.len() as f64).exp();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    let (scenario, label) = (&ours.scenario, peer.label());
    let bound = Bound::AtLeast(1.0);
    let of = ratios.len();
    rows.push(Row {
        experiment: "queries".into(),
        what: format!("{scenario}: the time of {label}, relative to Tidepool's, {of} queries"),
        bound: bound.text(ratio),
        ours: Some(Figure {
            text: format!("{} ({}–{})", ratio(mean), ratio(least), ratio(most)),
            pass: bound.admits(mean),
        }),
        peers: Vec::new(),
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{record, row};
    use super::*;

    #[test]
    fn queries_are_compared_where_both_engines_finished() {
        let ours = [("q01_s", 1.0), ("q02_s", 2.0), ("q03_s", 9.0), ("wrong_answers", 0.0)];
        let theirs = [("q01_s", 4.0), ("q02_s", 2.0), ("wrong_answers", 1.0)];
        let records = [
            record("queries", "in memory", "tidepool", &ours),
            record("queries", "in memory", "innodb", &theirs),
        ];
        let records: Vec<&Record> = records.iter().collect();
        let mut found = Vec::new();
        rows(&records, &mut found);
        let times = row(&found, "the time of innodb, relative to Tidepool's, 2 queries");
        assert_eq!(times.ours.as_ref().unwrap().text, "2.000 (1.000–4.000)");
        let wrong = row(&found, "another answer");
        assert!(wrong.ours.as_ref().unwrap().pass && !wrong.peers[0].1.pass);
    }
}
