//! The report on a directory of results: one HTML page that needs nothing else, a chart and a table
//! of the seconds of each run as separate files, and a summary in Markdown.
//!
//! Here: which files, and the words that both texts share. `repeats` makes one record of a case
//! that was repeated; `bounds` judges; `overview` and `chart` draw, by `svg`; `columns` are the
//! tables' figures; `page`, `summary` and `csv` write.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::experiment::ALL;
use crate::record::{CHOSEN, Record, read_all};

pub mod bounds;
pub mod chart;
mod columns;
mod csv;
pub mod overview;
mod page;
mod repeats;
mod summary;
pub mod svg;

use bounds::Row;

#[derive(Clone, Debug)]
pub struct Written {
    pub page: PathBuf,
    /// Requirements that are met, and all that were measured.
    pub met: (usize, usize),
    pub charts: usize,
}

/// Writes `report.html`, `summary.md`, `charts/*.svg` and `csv/*.csv` beside the results.
///
/// # Errors
/// If the results can't be read, there are none, or a file can't be written.
pub fn write(dir: &Path) -> Result<Written> {
    let mut records = read_all(dir)?;
    let place = |record: &Record| ALL.iter().position(|one| one.name == record.experiment);
    records.sort_by_key(|record| place(record).unwrap_or(ALL.len()));
    if records.is_empty() {
        let text =
            format!("{} holds no results: run an experiment with --out first", dir.display());
        return Err(Error::Missing(text));
    }
    let condensed = repeats::condensed(&records);
    let rows = bounds::rows(&condensed);
    number_repeats(&mut records);
    let [charts_dir, csv_dir] = ["charts", "csv"].map(|name| dir.join(name));
    for dir in [&charts_dir, &csv_dir] {
        fs::create_dir_all(dir).map_err(Error::at(dir))?;
    }
    let mut charts = 0;
    let mut save = |name: &str, text: &str| {
        let path = charts_dir.join(format!("{name}.svg"));
        charts += 1;
        fs::write(&path, text).map_err(Error::at(&path))
    };
    for overview in overview::all(&condensed) {
        save(&overview.name, &overview.svg.standalone(&overview.title))?;
    }
    for record in records.iter().filter(|record| !record.series.is_empty()) {
        let name = record.file_name();
        save(&name, &chart::run(record).standalone(&chart::title(record)))?;
        let path = csv_dir.join(format!("{name}.csv"));
        fs::write(&path, csv::series(record)).map_err(Error::at(&path))?;
    }
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(Error::at(&path)).map(|()| path)
    };
    put("summary.md", &summary::markdown(&records, &rows))?;
    let page = put("report.html", &page::html(&records, &condensed, &rows))?;
    let judged =
        rows.iter().filter(|row| !row.bound.is_empty()).filter_map(|row| row.ours.as_ref());
    let met = judged.clone().filter(|figure| figure.pass).count();
    Ok(Written { page, met: (met, judged.count()), charts })
}

/// Says of runs that were repeated which one each is.
fn number_repeats(records: &mut [Record]) {
    let numbers = repeats::numbers(records);
    for (record, (number, count)) in records.iter_mut().zip(numbers) {
        if count > 1 {
            let _ = write!(record.scenario, " (run {number} of {count})");
        }
    }
}

/// Whether a requirement is met.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Nothing is required.
    None,
    Met,
    NotMet,
    NotMeasured,
}

impl Verdict {
    fn of(row: &Row) -> Verdict {
        match &row.ours {
            _ if row.bound.is_empty() => Verdict::None,
            Some(figure) if figure.pass => Verdict::Met,
            Some(_) => Verdict::NotMet,
            None => Verdict::NotMeasured,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Verdict::None => "",
            Verdict::Met => "met",
            Verdict::NotMet => "not met",
            Verdict::NotMeasured => "not measured",
        }
    }
}

fn peers(row: &Row) -> String {
    let peers: Vec<String> =
        row.peers.iter().map(|(label, figure)| format!("{label} {}", figure.text)).collect();
    if peers.is_empty() { "–".into() } else { peers.join("; ") }
}

fn ours(row: &Row) -> &str {
    row.ours.as_ref().map_or("–", |figure| &figure.text)
}

/// Stands above results of which some are quick.
const QUICK: &str = "Some of these runs are quick ones: they show that things work, not how fast.";
/// Stands above results of which some have a load of the user's own.
const OWN_LOAD: &str = "Some of these runs have another load than the requirements are about: ";

/// What stands above results that are not what was required.
fn reservations(records: &[Record]) -> Vec<String> {
    let quick = records.iter().any(|record| record.quick).then(|| QUICK.to_owned());
    let loads: BTreeSet<&String> =
        records.iter().filter_map(|record| record.config.get(CHOSEN)).collect();
    let own = loads.into_iter().map(String::as_str).collect::<Vec<_>>().join("; ");
    let own = (!own.is_empty()).then(|| format!("{OWN_LOAD}{own}."));
    quick.into_iter().chain(own).collect()
}

fn outcome(record: &Record) -> String {
    use crate::record::Outcome;
    match &record.outcome {
        Outcome::Finished => "finished".into(),
        Outcome::OomKilled => "killed: out of memory".into(),
        Outcome::Failed(why) => format!("failed: {}", why.lines().next().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Earlier, Output};

    #[test]
    fn a_page_holds_hostile_names_as_text_and_refers_to_nothing_outside() {
        let dir = tempfile::tempdir().unwrap();
        let line = r#"{"experiment":"swap","scenario":"<script>alert(1)</script>, 75 %","engine":"tidepool","variant":"",
            "server_version":"\"><img src=x>","config":{},"config_hash":"0","quick":true,"started_at":0,
            "outcome":{"failed":"</svg>\nmore"},"events":[{"at_s":1.0,"what":"a & b"}],"series":[],"summary":{"qps":1.0}}"#;
        let mut record: Record = serde_json::from_str(line).unwrap();
        record.series.push(crate::record::Point { at_s: 1.0, qps: 5.0, ..Default::default() });
        let output = Output::new(dir.path(), Earlier::Go).unwrap();
        output.write(&record).unwrap();
        let written = write(dir.path()).unwrap();
        let page = fs::read_to_string(&written.page).unwrap();
        assert!(!page.contains("<script") && !page.contains("<img"));
        assert!(!page.contains("http://") && !page.contains("https://"));
        assert!(page.contains("&lt;script&gt;"));
        let charts = fs::read_dir(dir.path().join("charts")).unwrap().count();
        assert_eq!(charts, written.charts);
    }

    #[test]
    fn a_repeated_run_has_a_chart_each_and_one_verdict() {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::new(dir.path(), Earlier::Go).unwrap();
        for wait in [100.0, 9000.0] {
            let figures = [("resize_longest_wait_us", wait)];
            let mut record = crate::record::finished("resize", "4 → 2", "tidepool", &figures);
            record.series.push(crate::record::Point { at_s: 1.0, qps: 5.0, ..Default::default() });
            output.write(&record).unwrap();
        }
        let written = write(dir.path()).unwrap();
        let page = fs::read_to_string(&written.page).unwrap();
        assert!(page.contains("4 → 2 (run 1 of 2)") && page.contains("4 → 2 (run 2 of 2)"));
        assert_eq!(page.matches("longest wait that a resize caused").count(), 1);
        let charts = fs::read_dir(dir.path().join("charts")).unwrap().count();
        assert_eq!(charts, written.charts);
        let csv = dir.path().join("csv/resize-tidepool-4-to-2-run-1-of-2.csv");
        assert!(fs::read_to_string(csv).unwrap().starts_with("at_s,"));
    }

    #[test]
    fn a_load_of_ones_own_is_said_above_the_verdicts() {
        let mut records = vec![crate::record::finished("swap", "uniform", "tidepool", &[])];
        assert_eq!(reservations(&records), [""; 0]);
        for chosen in ["--threads 32", "--threads 64", "--threads 32"] {
            let mut record = records[0].clone();
            record.config.insert(CHOSEN.into(), chosen.into());
            records.push(record);
        }
        let said = reservations(&records).join(" ");
        assert!(said.ends_with("are about: --threads 32; --threads 64."), "{said}");
    }

    #[test]
    fn a_directory_without_results_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write(dir.path()).unwrap_err().to_string().contains("holds no results"));
    }
}
