//! What is required of a pool beside a side load.

use super::{Bound, Row, add, distinct, figure_of, percent, ratio, seconds, tell};
use crate::experiment::READS_PER_SECOND;
use crate::experiment::sideload::{DUMP_ALONE, OLTP_ALONE};
use crate::record::{Outcome, Record};

/// The share of the pool that the new working set of `sideload` takes.
const MOVED_SHARE: f64 = 0.45;
const PAGE_BYTES: f64 = 16384.0;

/// The throughput of another run of an engine. With old_blocks_time=0 there is no such run:
/// InnoDB's other one is as good.
fn same_engine(records: &[&Record], own: &[&Record], scenario: &str) -> Option<f64> {
    let engine = &own.first()?.engine;
    let same = |record: &&&Record| {
        let is_whole = record.outcome == Outcome::Finished;
        record.engine == *engine && record.scenario == scenario && is_whole
    };
    records.iter().find(same)?.figure("steady_tps")
}

pub(super) fn rows(records: &[&Record], rows: &mut Vec<Row>) {
    let pool_bytes =
        |record: &Record| record.figure("pool_mib").map(|mib| mib * f64::from(1 << 20));
    for scenario in distinct(records.iter().map(|record| record.scenario.as_str())) {
        if scenario.ends_with("of a cached table") || scenario.ends_with(OLTP_ALONE) {
            continue;
        }
        let what = format!("{scenario}: one dump of the big table takes");
        tell(rows, records, what, seconds, |own| figure_of(own, scenario, "dump_s"));
        if scenario == DUMP_ALONE {
            continue;
        }
        // What the article compares with: its OLTP had a 150th left beside a dump.
        let (share, _) = scenario.split_once(", ").unwrap_or((scenario, ""));
        let alone = format!("{share}, {OLTP_ALONE}");
        let what = format!("{scenario}: transactions, relative to the OLTP alone");
        tell(rows, records, what, ratio, |own| {
            Some(figure_of(own, scenario, "steady_tps")? / same_engine(records, own, &alone)?)
        });
        let what = format!("{scenario}: pages of the resident table that are missing");
        add(rows, records, what, Bound::AtMost(0.001), percent, |own| {
            figure_of(own, scenario, "missing_share")
        });
        let beside_cached = format!("{scenario} of a cached table");
        let what = format!("{scenario}: transactions, relative to a dump of a cached table");
        add(rows, records, what, Bound::AtLeast(0.97), ratio, |own| {
            Some(
                figure_of(own, scenario, "steady_tps")?
                    / same_engine(records, own, &beside_cached)?,
            )
        });
        let reads_take_s = records
            .iter()
            .find(|record| record.scenario == scenario)
            .and_then(|record| pool_bytes(record))
            .map_or(0.0, |bytes| bytes * MOVED_SHARE / PAGE_BYTES / f64::from(READS_PER_SECOND));
        // The dump takes its half of the reads, and a second is the unit of measuring.
        let limit = Bound::AtMost(2.0 * reads_take_s + 1.0);
        let what = format!("{scenario}: the new set is in after");
        add(rows, records, what, limit, seconds, |own| {
            figure_of(own, scenario, "new_set_in_after_s")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::super::tests::{record, row};
    use super::*;

    #[test]
    fn a_dump_is_compared_with_a_dump_of_what_is_cached() {
        let records = [
            record(
                "sideload",
                "resident 85 %, dump",
                "tidepool",
                &[("steady_tps", 98.0), ("missing_share", 0.0)],
            ),
            record(
                "sideload",
                "resident 85 %, dump of a cached table",
                "tidepool",
                &[("steady_tps", 100.0)],
            ),
        ];
        let rows = rows(&records);
        assert_eq!(row(&rows, "transactions").ours.as_ref().unwrap().text, "0.980");
        assert!(row(&rows, "missing").ours.as_ref().unwrap().pass);
        assert_eq!(rows.len(), 3);
    }

    #[test]
    fn what_both_do_alone_is_told_and_not_judged() {
        let run = |scenario: &str, figures: &[(&str, f64)]| {
            record("sideload", scenario, "tidepool", figures)
        };
        let alone = [("steady_tps", 200.0), ("missing_share", 0.5)];
        let beside = [("steady_tps", 150.0), ("missing_share", 0.0), ("dump_s", 30.0)];
        let records = [
            run("resident 85 %, OLTP alone", &alone),
            run(DUMP_ALONE, &[("dump_s", 20.0)]),
            run("resident 85 %, dump", &beside),
        ];
        let rows = rows(&records);
        let text = |what: &str| {
            let row = row(&rows, what);
            assert_eq!(row.bound, "");
            row.ours.clone().unwrap().text
        };
        assert_eq!(text("dump alone: one dump"), "20.0 s");
        assert_eq!(text("resident 85 %, dump: one dump"), "30.0 s");
        assert_eq!(text("relative to the OLTP alone"), "0.750");
        let bounds = rows.iter().filter(|row| !row.bound.is_empty());
        let judged: Vec<&str> = bounds.map(|row| row.what.as_str()).collect();
        assert_eq!(judged.len(), 2, "{judged:?}");
    }
}
