//! The default of Tidepool against what a person made of each engine.

use super::{Bound, Figure, OURS, Row, count, distinct, ratio};
use crate::experiment::defaults::{GOVERNED, TUNED};
use crate::record::{Outcome, Record};

/// Two runs of the same server differ by a few hundredths.
const LEAST_RATIO: f64 = 0.95;

/// Adds the rows of the experiment.
pub(super) fn rows(records: &[&Record], rows: &mut Vec<Row>) {
    let scenarios = distinct(records.iter().map(|record| record.scenario.as_str()));
    let engines = distinct(records.iter().map(|record| record.engine.as_str()));
    for scenario in &scenarios {
        let of = |engine: &str, variant: &str| {
            records.iter().copied().find(|record| {
                record.scenario == *scenario && record.engine == engine && record.variant == variant
            })
        };
        let Some(ours) = of(OURS, GOVERNED) else { continue };
        for &engine in &engines {
            let Some(tuned) = of(engine, TUNED).and_then(throughput) else { continue };
            let bound = Bound::AtLeast(LEAST_RATIO);
            let figure = |record: &Record| match throughput(record) {
                Some(tps) => Figure { text: ratio(tps / tuned), pass: bound.admits(tps / tuned) },
                None => Figure { text: "died".into(), pass: false },
            };
            let others = records.iter().filter(|record| {
                record.scenario == *scenario && record.engine == engine && record.variant != TUNED
            });
            let peers = others
                .filter(|record| record.engine != OURS)
                .map(|record| (record.label(), figure(record)));
            rows.push(Row {
                experiment: "defaults".into(),
                what: format!("{scenario}: transactions, relative to {engine} tuned by hand"),
                bound: bound.text(ratio),
                ours: Some(figure(ours)),
                peers: peers.collect(),
            });
        }
    }
    sum(records, "runs in which the kernel killed a process", rows, |record| {
        f64::from(u8::from(record.figure("oom_kills").unwrap_or(0.0) > 0.0))
    });
    sum(records, "rows lost, or conditions of TPC-C broken, after a run", rows, |record| {
        record.figure("violations").unwrap_or(0.0)
    });
}

/// Transactions a second of a run that went to its end.
fn throughput(record: &Record) -> Option<f64> {
    let tps = record.figure("tps").filter(|tps| *tps > 0.0);
    tps.filter(|_| record.outcome == Outcome::Finished)
}

/// A row with a sum over all runs of each set-up. What a person has tuned is nothing that Tidepool
/// answers for.
fn sum(records: &[&Record], what: &str, rows: &mut Vec<Row>, of: impl Fn(&Record) -> f64) {
    let bound = Bound::AtMost(0.0);
    let labels: Vec<String> = records.iter().map(|record| record.label()).collect();
    let mut row = Row {
        experiment: "defaults".into(),
        what: what.into(),
        bound: bound.text(count),
        ours: None,
        peers: Vec::new(),
    };
    for label in distinct(labels.iter().map(String::as_str)) {
        let own = records.iter().filter(|record| record.label() == label);
        let value: f64 = own.map(|record| of(record)).sum();
        let figure = Figure { text: count(value), pass: bound.admits(value) };
        if label == format!("{OURS} {GOVERNED}") {
            row.ours = Some(figure);
        } else {
            row.peers.push((label.into(), figure));
        }
    }
    if row.ours.is_some() {
        rows.push(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bounds::tests::record;

    fn run(engine: &str, variant: &str, tps: f64) -> Record {
        let figures = [("tps", tps), ("oom_kills", 0.0), ("violations", 0.0)];
        Record { variant: variant.into(), ..record("defaults", "1024 MiB", engine, &figures) }
    }

    fn judged(records: &[Record]) -> Vec<Row> {
        let mut judged = Vec::new();
        rows(&records.iter().collect::<Vec<_>>(), &mut judged);
        judged
    }

    #[test]
    fn the_default_is_held_against_what_each_engine_can_do() {
        let records = [
            run("tidepool", "governed", 960.0),
            run("tidepool", "tuned", 1000.0),
            run("innodb", "default", 500.0),
            run("innodb", "tuned", 1200.0),
        ];
        let rows = judged(&records);
        assert_eq!(rows[0].ours, Some(Figure { text: "0.960".into(), pass: true }));
        assert!(rows[0].peers.is_empty());
        assert_eq!(rows[1].ours, Some(Figure { text: "0.800".into(), pass: false }));
        let default = ("innodb default".to_string(), Figure { text: "0.417".into(), pass: false });
        assert_eq!(rows[1].peers, [default]);
    }

    #[test]
    fn a_killed_server_is_counted_and_a_killed_yardstick_is_none() {
        let mut records = [
            run("tidepool", "governed", 900.0),
            run("innodb", "default", 500.0),
            run("innodb", "tuned", 700.0),
        ];
        records[2].outcome = Outcome::OomKilled;
        records[2].summary.insert("oom_kills".into(), 2.0);
        records[0].summary.insert("violations".into(), 3.0);
        let rows = judged(&records);
        assert_eq!(rows.len(), 2, "{rows:?}");
        let kills = &rows[0];
        assert!(kills.ours.as_ref().unwrap().pass);
        assert_eq!(kills.peers[1].1, Figure { text: "1".into(), pass: false });
        assert_eq!(rows[1].ours, Some(Figure { text: "3".into(), pass: false }));
    }
}
