//! What is required of an oversized pool.

use super::{
    Bound, OURS, Row, add, count, distinct, figure_of, highest, killed, mb_s, percent, ratio,
    seconds, tell,
};
use crate::experiment::swap::{IN_TURNS, RESCUE, turn_error, turn_figure};
use crate::record::{Outcome, Record};

/// A pool under the guard is back at its size this soon after a neighbour has gone (`pressure`),
/// and should be as fast again as that when it has to make room.
const RESCUED_S: f64 = 10.0;

/// Two standard errors of the ratio of two sizes in turns; none for other runs.
fn tolerance_of_ratio(record: &Record) -> Option<f64> {
    if !record.scenario.ends_with(IN_TURNS) {
        return None;
    }
    let (ours, others) =
        (record.figure(&turn_error("governed"))?, record.figure(&turn_error("75 %"))?);
    Some(2.0 * ours.hypot(others))
}

/// The sizes, and the rescue of a size that does not fit: that one swaps, and may die, on purpose.
pub(super) fn rows(records: &[&Record], rows: &mut Vec<Row>) {
    let (rescues, sizes): (Vec<&Record>, Vec<&Record>) =
        records.iter().copied().partition(|record| record.scenario == RESCUE);
    of_sizes(&sizes, rows);
    of_rescues(&rescues, rows);
}

fn of_sizes(records: &[&Record], rows: &mut Vec<Row>) {
    let case = |record: &Record| {
        record.scenario.rsplit_once(", ").map_or(String::new(), |(case, _)| case.to_string())
    };
    let cases: Vec<String> = records.iter().map(|record| case(record)).collect();
    for wanted in distinct(cases.iter().map(String::as_str)) {
        let of_case: Vec<&Record> =
            records.iter().copied().filter(|record| case(record) == wanted).collect();
        // A run that was killed has no throughput to speak of.
        let qps = |own: &[&Record], size: &str| {
            // Turns on one server tell more than runs that are minutes apart.
            let in_turns = own.iter().find(|record| record.scenario.ends_with(IN_TURNS));
            if let Some(qps) = in_turns.and_then(|record| record.figure(&turn_figure(size))) {
                return Some(qps);
            }
            let record =
                own.iter().find(|record| record.scenario.ends_with(&format!(", {size}")))?;
            if record.outcome == Outcome::Finished { record.figure("qps") } else { Some(0.0) }
        };
        let large = |own: &[&Record]| -> Vec<f64> {
            let sizes = ["governed", "100 %", "150 %", "300 %"];
            sizes.iter().filter_map(|size| qps(own, size)).collect()
        };
        let spread = |own: &[&Record]| {
            let large = large(own);
            if large.len() < 2 {
                return None;
            }
            let (least, most) =
                (large.iter().copied().reduce(f64::min)?, large.iter().copied().reduce(f64::max)?);
            Some(if most > 0.0 { 1.0 - least / most } else { 1.0 })
        };
        let against_75 = |own: &[&Record]| {
            let least = large(own).into_iter().reduce(f64::min)?;
            Some(least / qps(own, "75 %").filter(|qps| *qps > 0.0)?)
        };
        let what = format!("{wanted}: governed, 100, 150 and 300 % differ by");
        add(rows, &of_case, what, Bound::AtMost(0.03), percent, spread);
        // What is slower by less than the figures are good for is not slower.
        let tolerance = of_case.iter().copied().find_map(tolerance_of_ratio).unwrap_or(0.0);
        let what = match tolerance {
            0.0 => format!("{wanted}: the slowest of these, relative to 75 %"),
            _ => format!(
                "{wanted}: the slowest of these, relative to 75 %; two standard errors are {tolerance:.3}"
            ),
        };
        add(rows, &of_case, what, Bound::AtLeast(1.0 - tolerance), ratio, against_75);
    }
    add(
        rows,
        records,
        "swap-in in the steady state, the highest",
        Bound::AtMost(0.1),
        mb_s,
        |own| highest(own, "swap_in_mb_s"),
    );
    add(rows, records, "runs in which the server was killed", Bound::AtMost(0.0), count, |own| {
        Some(killed(own))
    });
}

/// The report judges Tidepool's rescue, and shows the others beside it.
fn of_rescues(records: &[&Record], rows: &mut Vec<Row>) {
    // Tidepool has one way, so its name is enough.
    let named = records.iter().map(|record| {
        let mut record = (*record).clone();
        if record.engine == OURS {
            record.variant.clear();
        }
        record
    });
    let named: Vec<Record> = named.collect();
    let records: Vec<&Record> = named.iter().collect();
    let of = |name: &'static str| move |own: &[&Record]| figure_of(own, RESCUE, name);
    let what = "rescue: seconds to 90 % of the throughput at the end";
    let limit = Bound::AtMost(RESCUED_S);
    add(rows, &records, what, limit, seconds, of("seconds_to_90_percent"));
    let what = "rescue: the worst second, relative to the throughput at the end";
    tell(rows, &records, what, ratio, of("worst_second_ratio"));
    let what = "rescue: the slowest ten seconds in a row, queries/s";
    tell(rows, &records, what, count, of("slowest_10_s_qps"));
    tell(rows, &records, "rescue: SET GLOBAL returned after", seconds, of("rescue_set_s"));
}

#[cfg(test)]
mod tests {
    use super::super::tests::{record, row};
    use super::super::{Figure, rows};
    use super::*;

    #[test]
    fn a_pool_that_swaps_fails_and_its_peer_stands_beside_it() {
        let of = |engine: &str, governed: f64, large: f64| {
            [("governed", governed), ("75 %", 1000.0), ("150 %", large)].map(|(size, qps)| {
                record("swap", &format!("select, uniform, {size}"), engine, &[("qps", qps)])
            })
        };
        let mut records: Vec<Record> = of("tidepool", 1010.0, 1000.0).into();
        records.extend(of("innodb", 0.0, 300.0));
        records[5].outcome = Outcome::OomKilled;
        let rows = rows(&records);
        let spread = row(&rows, "differ by");
        assert_eq!(spread.ours.as_ref().map(|figure| figure.pass), Some(true));
        assert_eq!(row(&rows, "relative to 75").ours.as_ref().unwrap().text, "1.000");
        let kills = row(&rows, "killed");
        assert!(kills.ours.as_ref().unwrap().pass);
        assert_eq!(kills.peers, [("innodb".into(), Figure { text: "1".into(), pass: false })]);
    }

    #[test]
    fn a_size_alone_is_held_against_nothing() {
        let alone = record("swap", "select, uniform, 150 %", "tidepool", &[("qps", 1000.0)]);
        let rows = rows(&[alone]);
        assert!(rows.iter().all(|row| !row.what.contains("differ by")), "{}", rows.len());
        assert!(rows.iter().any(|row| row.what.contains("killed")));
    }

    #[test]
    fn a_size_in_turns_is_slower_only_beyond_the_error() {
        let with_error = |error: f64| {
            let mut figures: Vec<(String, f64)> = Vec::new();
            for size in ["governed", "100 %", "75 %", "150 %", "300 %"] {
                let qps = if size == "75 %" { 1000.0 } else { 990.0 };
                figures.extend([(turn_figure(size), qps), (turn_error(size), error)]);
            }
            let figures: Vec<(&str, f64)> =
                figures.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            let rows = rows(&[record("swap", "select, uniform, in turns", "tidepool", &figures)]);
            row(&rows, "relative to 75 %").ours.as_ref().unwrap().pass
        };
        assert!(with_error(0.01));
        assert!(!with_error(0.001));
    }

    #[test]
    fn a_rescue_is_judged_by_itself_and_spoils_no_other_figure() {
        let mut records = vec![
            record("swap", "select, uniform, 75 %", "tidepool", &[("swap_in_mb_s", 0.0)]),
            record(
                "swap",
                RESCUE,
                "tidepool",
                &[("seconds_to_90_percent", 4.0), ("swap_in_mb_s", 50.0), ("rescue_set_s", 0.01)],
            ),
            record("swap", RESCUE, "innodb", &[]),
        ];
        records[1].variant = "guard ON".into();
        records[2].variant = "SET 75 %".into();
        records[2].outcome = Outcome::OomKilled;
        let rows = rows(&records);
        let back = row(&rows, "rescue: seconds to 90 %");
        assert_eq!(back.ours, Some(Figure { text: "4.0 s".into(), pass: true }));
        let died = Figure { text: "died".into(), pass: false };
        assert_eq!(back.peers, [("innodb SET 75 %".into(), died)]);
        assert_eq!(row(&rows, "SET GLOBAL returned").bound, "");
        assert!(row(&rows, "swap-in").ours.as_ref().unwrap().pass);
        assert!(row(&rows, "killed").peers.is_empty());
        // No case without a name.
        assert!(rows.iter().all(|row| !row.what.starts_with(':')), "{rows:?}");
    }
}
