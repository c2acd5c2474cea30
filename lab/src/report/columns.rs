//! The figures that the tables of runs show, and what the pools held.

use std::collections::BTreeSet;

use crate::experiment::sideload::CONTENT;
use crate::record::{NEVER, Record};

/// A figure of the summary.
#[derive(Debug)]
pub(super) struct Column {
    figure: &'static str,
    pub heading: &'static str,
    digits: usize,
    /// A time that may never come.
    may_be_never: bool,
}

const fn column(figure: &'static str, heading: &'static str, digits: usize) -> Column {
    Column { figure, heading, digits, may_be_never: false }
}

static COLUMNS: [Column; 43] = [
    column("qps", "queries/s", 0),
    column("tps", "tx/s", 0),
    column("p95_ms", "p95 ms", 2),
    column("pool_mib", "pool MiB", 0),
    column("disk_read_mb_s", "disk read MB/s", 1),
    column("disk_write_mb_s", "disk write MB/s", 1),
    column("swap_in_mb_s", "swap-in MB/s", 2),
    column("swap_out_mb_s", "swap-out MB/s", 2),
    column("cpu_s_per_s", "CPU s/s", 2),
    column("seconds_below_90_percent", "seconds below 90 %", 0),
    Column { may_be_never: true, ..column("seconds_to_90_percent", "seconds to 90 %", 0) },
    Column { may_be_never: true, ..column("rescue_set_s", "SET s", 2) },
    column("slowest_10_s_qps", "slowest 10 s, queries/s", 0),
    column("dump_mb_s", "dump MB/s", 1),
    column("dump_s", "one dump, s", 0),
    column("oom_kills", "OOM kills", 0),
    column("q01_s", "Q1", 2),
    column("q02_s", "Q2", 2),
    column("q03_s", "Q3", 2),
    column("q04_s", "Q4", 2),
    column("q05_s", "Q5", 2),
    column("q06_s", "Q6", 2),
    column("q07_s", "Q7", 2),
    column("q08_s", "Q8", 2),
    column("q09_s", "Q9", 2),
    column("q10_s", "Q10", 2),
    column("q11_s", "Q11", 2),
    column("q12_s", "Q12", 2),
    column("q13_s", "Q13", 2),
    column("q14_s", "Q14", 2),
    column("q15_s", "Q15", 2),
    column("q16_s", "Q16", 2),
    column("q17_s", "Q17", 2),
    column("q18_s", "Q18", 2),
    column("q19_s", "Q19", 2),
    column("q20_s", "Q20", 2),
    column("q21_s", "Q21", 2),
    column("q22_s", "Q22", 2),
    column("node_cpu_ms", "CPU ms on nodes", 3),
    column("front_cpu_ms", "CPU ms on the server asked", 3),
    column("queries_s", "sum, s", 1),
    column("queries_unfinished", "not finished", 0),
    column("wrong_answers", "wrong", 0),
];

/// Those that one of the runs has a figure for.
pub(super) fn of(records: &[&Record]) -> Vec<&'static Column> {
    let is_there =
        |column: &&Column| records.iter().any(|record| record.figure(column.figure).is_some());
    COLUMNS.iter().filter(is_there).collect()
}

/// A run's figures.
pub(super) fn cells(columns: &[&Column], record: &Record) -> Vec<String> {
    let cell = |column: &&Column| match record.figure(column.figure) {
        None => "–".into(),
        Some(value) if column.may_be_never && value >= NEVER => "never".into(),
        Some(value) => format!("{value:.digits$}", digits = column.digits),
    };
    columns.iter().map(cell).collect()
}

/// What the pools held at the end of runs: MiB of each index.
#[derive(Debug)]
pub(super) struct Contents<'a> {
    pub indexes: Vec<&'a str>,
    pub rows: Vec<(&'a Record, Vec<String>)>,
}

/// Of the runs that say it; nothing if none does.
pub(super) fn contents<'a>(records: &[&'a Record]) -> Option<Contents<'a>> {
    fn names(record: &Record) -> impl Iterator<Item = &str> {
        record.summary.keys().filter_map(|name| name.strip_prefix(CONTENT))
    }
    let indexes: BTreeSet<&str> = records.iter().flat_map(|record| names(record)).collect();
    let indexes: Vec<&str> = indexes.into_iter().collect();
    let cell = |record: &Record, index: &str| {
        record.figure(&format!("{CONTENT}{index}")).map_or("–".into(), |mib| format!("{mib:.0}"))
    };
    let told = records.iter().filter(|record| names(record).next().is_some());
    let rows: Vec<_> = told
        .map(|record| (*record, indexes.iter().map(|index| cell(record, index)).collect()))
        .collect();
    (!rows.is_empty()).then_some(Contents { indexes, rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::finished;

    #[test]
    fn a_table_has_the_columns_that_its_runs_fill() {
        let dip = finished(
            "resize",
            "4 → 2",
            "tidepool",
            &[("qps", 9.6), ("seconds_below_90_percent", 3.0)],
        );
        let rescue =
            finished("swap", "rescue", "innodb", &[("qps", 1.0), ("seconds_to_90_percent", NEVER)]);
        let headings = |records: &[&Record]| -> Vec<&str> {
            of(records).iter().map(|column| column.heading).collect()
        };
        assert_eq!(headings(&[&dip]), ["queries/s", "seconds below 90 %"]);
        assert_eq!(cells(&of(&[&dip]), &dip), ["10", "3"]);
        let both = of(&[&dip, &rescue]);
        assert_eq!(cells(&both, &rescue), ["1", "–", "never"]);
    }

    #[test]
    fn what_pools_held_is_a_table_of_runs_by_indexes() {
        let content = |index: &str| format!("{CONTENT}{index}");
        let (hot, big) = (content("hot85.sbtest1.PRIMARY"), content("sbtest.sbtest1.PRIMARY"));
        let alone = finished("sideload", "OLTP alone", "innodb", &[(&hot, 380.4)]);
        let dump = finished("sideload", "dump", "innodb", &[(&hot, 12.0), (&big, 420.0)]);
        let other = finished("sideload", "report", "innodb", &[("qps", 1.0)]);
        let contents = contents(&[&alone, &dump, &other]).unwrap();
        assert_eq!(contents.indexes, ["hot85.sbtest1.PRIMARY", "sbtest.sbtest1.PRIMARY"]);
        let cells: Vec<&[String]> = contents.rows.iter().map(|(_, cells)| &cells[..]).collect();
        assert_eq!(cells, [["380", "–"], ["12", "420"]]);
        assert!(super::contents(&[&other]).is_none());
    }
}
