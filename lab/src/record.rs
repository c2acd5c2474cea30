//! The result of one run: what was run, on what, second by second, and in sum. One JSON object a
//! line in `<out>/<experiment>.jsonl`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One second of a run. What an older version did not write is 0. Sizes in bytes, rates in MB (10⁶
/// bytes) a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Seconds since the measuring began; negative while warming up.
    pub at_s: f64,
    /// Transactions a second.
    pub tps: f64,
    /// Queries a second.
    pub qps: f64,
    /// The 95th percentile of the latency.
    pub p95_ms: f64,
    /// The pool's size as the server publishes it.
    pub pool_bytes: u64,
    /// The size that the pool is on the way to.
    pub target_bytes: u64,
    /// Pages in the pool.
    pub data_bytes: u64,
    /// The server's memory, as the kernel counts it.
    pub resident_bytes: u64,
    /// All that the memory cgroup is charged.
    pub cgroup_bytes: u64,
    /// The neighbour's memory.
    pub neighbour_bytes: u64,
    /// Reads of the server from its disk, without those from swap space.
    pub disk_read_mb_s: f64,
    /// Writes of the server to its disk.
    pub disk_write_mb_s: f64,
    /// Reads from swap space.
    pub swap_in_mb_s: f64,
    /// Writes to swap space.
    pub swap_out_mb_s: f64,
    /// Processor time of the server, all its threads together: seconds a second.
    pub cpu_s_per_s: f64,
    /// Throughput relative to what the experiment holds it against; none in seconds that it does
    /// not judge.
    pub relative: Option<f64>,
}

/// Something that was done in the middle of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// On the clock of [`Point::at_s`].
    pub at_s: f64,
    /// For a label in the chart.
    pub what: String,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As planned.
    Finished,
    /// The kernel killed the server because memory ran out.
    OomKilled,
    /// The server died in another way, or the load could not run.
    Failed(String),
}

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The command, as `swap`.
    pub experiment: String,
    /// Which of its cases.
    pub scenario: String,
    /// The engine's key.
    pub engine: String,
    /// What differs from the engine's defaults, for people; empty if nothing.
    pub variant: String,
    /// The server's own version string.
    pub server_version: String,
    /// The options of the server, the load and the machine.
    pub config: BTreeMap<String, String>,
    /// A hash of `config`, to tell runs that can be compared; without the machine's own settings
    /// (`vm.swappiness`).
    pub config_hash: String,
    /// True for a short run.
    pub quick: bool,
    /// Seconds since 1970 when the run began.
    pub started_at: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What was done in the middle.
    pub events: Vec<Event>,
    /// Every second.
    pub series: Vec<Point>,
    /// The figures that the bounds are about.
    pub summary: BTreeMap<String, f64>,
}

impl Record {
    /// A figure of the summary.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.summary.get(name).copied()
    }

    /// The engine and what differs from its defaults.
    pub fn label(&self) -> String {
        if self.variant.is_empty() {
            self.engine.clone()
        } else {
            format!("{} {}", self.engine, self.variant)
        }
    }

    /// A name for files of this run: letters, digits and hyphens.
    pub fn file_name(&self) -> String {
        let text = format!("{} {} {}", self.experiment, self.label(), self.scenario);
        let mut name = String::new();
        for character in text.replace('→', "to").chars() {
            if character.is_alphanumeric() {
                name.extend(character.to_lowercase());
            } else if character == '%' {
                name.push_str("pct");
            } else if !name.ends_with('-') {
                name.push('-');
            }
        }
        name.trim_end_matches('-').to_string()
    }
}

/// Seconds that stand for "not once in all of the run": more than any run takes.
pub(crate) const NEVER: f64 = u16::MAX as f64;

/// The key of what the user chose of the load in a configuration.
pub(crate) const CHOSEN: &str = "chosen";

/// The directory that results go to, unless another is named.
pub(crate) const DEFAULT_OUT: &str = "var/lab/results";

/// A run of a test that ended as planned, with these figures.
#[cfg(test)]
pub(crate) fn finished(
    experiment: &str,
    scenario: &str,
    engine: &str,
    figures: &[(&str, f64)],
) -> Record {
    Record {
        experiment: experiment.into(),
        scenario: scenario.into(),
        engine: engine.into(),
        variant: String::new(),
        server_version: String::new(),
        config: BTreeMap::new(),
        config_hash: String::new(),
        quick: false,
        started_at: 0,
        outcome: Outcome::Finished,
        events: Vec::new(),
        series: Vec::new(),
        summary: figures.iter().map(|(name, value)| (name.to_string(), *value)).collect(),
    }
}

/// What becomes of the results that the directory holds already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Those of an experiment go when it begins.
    Go,
    /// Those of a case of an engine go when it has been run again; the others stay.
    GoByCase,
    /// They stay.
    Stay,
}

/// What is run again in place of an earlier result.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Case {
    experiment: String,
    scenario: String,
    engine: String,
    variant: String,
}

impl Case {
    fn of(record: &Record) -> Case {
        Case {
            experiment: record.experiment.clone(),
            scenario: record.scenario.clone(),
            engine: record.engine.clone(),
            variant: record.variant.clone(),
        }
    }
}

/// Writes records as they come.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
    earlier: Earlier,
    /// The experiments, or cases, whose earlier results are gone: a repeat adds to what this
    /// program has written.
    renewed: Mutex<BTreeSet<Case>>,
}

impl Output {
    /// Results go to this directory.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn new(dir: &Path, earlier: Earlier) -> Result<Output> {
        fs::create_dir_all(dir).map_err(Error::at(dir))?;
        Ok(Output { dir: dir.to_path_buf(), earlier, renewed: Mutex::default() })
    }

    /// True the first time.
    fn renews(&self, case: Case) -> bool {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner).insert(case)
    }

    /// Keeps a program's log beside the results, as `<name>.log`.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn log(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(format!("{name}.log"));
        fs::write(&path, text).map_err(Error::at(&path))
    }

    /// Begins the results of an experiment, as [`Earlier`] says.
    ///
    /// # Errors
    /// If the file can't be made.
    pub fn begin(&self, experiment: &str) -> Result<()> {
        let whole = Case { experiment: experiment.into(), ..Case::default() };
        if self.earlier != Earlier::Go || !self.renews(whole) {
            return Ok(());
        }
        let path = self.path(experiment);
        File::create(&path).map(drop).map_err(Error::at(&path))
    }

    /// Adds a record.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn write(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.experiment);
        let record = &finite(record);
        let mut line = serde_json::to_string(record).map_err(|e| Error::at(&path)(e.into()))?;
        line.push('\n');
        let case = Case::of(record);
        if self.earlier == Earlier::GoByCase && self.renews(case.clone()) {
            let text = others(&path, &case)? + &line;
            // The name is not that of a file with results.
            let new = path.with_extension("jsonl.new");
            return fs::write(&new, text)
                .and_then(|()| fs::rename(&new, &path))
                .map_err(Error::at(&path));
        }
        let file = File::options().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(Error::at(&path))
    }

    fn path(&self, experiment: &str) -> PathBuf {
        self.dir.join(format!("{experiment}.jsonl"))
    }
}

/// The record without figures that are no numbers: JSON has none for them, and what it has instead
/// makes the whole file unreadable.
fn finite(record: &Record) -> Record {
    let mut record = record.clone();
    record.summary.retain(|name, value| {
        if !value.is_finite() {
            tracing::warn!("{}, {}: {name} is {value}", record.experiment, record.scenario);
        }
        value.is_finite()
    });
    for point in &mut record.series {
        point.relative = point.relative.filter(|relative| relative.is_finite());
    }
    record
}

/// The lines of a file that are not about this case; none if there is no such file.
fn others(path: &Path, case: &Case) -> Result<String> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text.map_err(Error::at(path))?,
    };
    let is_other =
        |line: &&str| serde_json::from_str::<Case>(line).ok().is_none_or(|of| of != *case);
    Ok(text.lines().filter(is_other).flat_map(|line| [line, "\n"]).collect())
}

/// Reads all results in a directory, in the order of the files' names.
///
/// # Errors
/// If a file can't be read, or a line is not a record: its number.
pub fn read_all(dir: &Path) -> Result<Vec<Record>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::at(dir))? {
        let path = entry.map_err(Error::at(dir))?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    let mut records = Vec::new();
    for path in files {
        let file = File::open(&path).map_err(Error::at(&path))?;
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(Error::at(&path))?;
            let what = || format!("{}, line {}", path.display(), number + 1);
            records.push(serde_json::from_str(&line).map_err(|e| Error::io(what())(e.into()))?);
        }
    }
    Ok(records)
}

/// FNV-1a, 64 bits.
pub fn fnv64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Figures over the seconds of a series.
pub mod statistics {
    use super::Point;

    /// The middle value; 0 of nothing.
    pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
        quantile(values, 0.5)
    }

    /// The value that this share of the values does not exceed, between two of them by
    /// interpolation; 0 of nothing.
    pub fn quantile(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let rank = values.len().saturating_sub(1) as f64 * share;
        let at = |rank: f64| values.get(rank as usize).copied().unwrap_or(0.0);
        let (low, high) = (at(rank.floor()), at(rank.ceil()));
        // Of equal ones no arithmetic: infinity stays what it is.
        if low == high { low } else { low + (high - low) * rank.fract() }
    }

    /// The slowest of the seconds that are judged: its throughput, relative, and when it ended.
    pub fn worst_second(series: &[Point]) -> Option<(f64, f64)> {
        let judged = series.iter().filter_map(|point| Some((point.relative?, point.at_s)));
        judged.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The mean; 0 of nothing.
    pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
        let (sum, count) =
            values.into_iter().fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
        if count == 0 { 0.0 } else { sum / f64::from(count) }
    }

    /// The standard error of the mean; 0 of fewer than two values.
    pub fn standard_error(values: &[f64]) -> f64 {
        if values.len() < 2 {
            return 0.0;
        }
        let (count, mean) = (values.len() as f64, mean(values.iter().copied()));
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        (squares / (count - 1.0) / count).sqrt()
    }

    /// Seconds that a throughput must last.
    const LASTING_S: usize = 15;

    /// The throughput of the three seconds that begin with the point `at`, their mean, and of the
    /// quarter of a minute that begins there, its median: whether a rise lasts is seen by both.
    pub fn now_and_lasting(series: &[Point], at: usize) -> (f64, f64) {
        let part =
            |len: usize| series[at..series.len().min(at + len)].iter().map(|point| point.qps);
        (mean(part(3)), median(part(LASTING_S)))
    }

    /// The points with `from_s < at_s ≤ to_s`.
    pub fn between(series: &[Point], from_s: f64, to_s: f64) -> &[Point] {
        let first = series.partition_point(|point| point.at_s <= from_s);
        let last = series.partition_point(|point| point.at_s <= to_s);
        &series[first..last.max(first)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let point = Point { at_s: 1.0, qps: 12.5, pool_bytes: 1 << 40, ..Point::default() };
        Record {
            experiment: "swap".into(),
            scenario: "uniform".into(),
            engine: "innodb".into(),
            variant: String::new(),
            server_version: "10".into(),
            config: BTreeMap::from([("threads".to_string(), "16".to_string())]),
            config_hash: "0".into(),
            quick: true,
            started_at: 1,
            outcome: Outcome::Failed("\"quoted\"\nand broken".into()),
            events: vec![Event { at_s: 0.5, what: "step".into() }],
            series: vec![point],
            summary: BTreeMap::from([("qps".to_string(), 12.5)]),
        }
    }

    #[test]
    fn a_figure_that_is_no_number_costs_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::new(dir.path(), Earlier::Go).unwrap();
        output.begin("swap").unwrap();
        let mut bad = record();
        bad.summary.extend([("ratio".to_string(), f64::NAN), ("ms".to_string(), f64::INFINITY)]);
        bad.series[0].relative = Some(f64::NAN);
        output.write(&bad).unwrap();
        let read = read_all(dir.path()).unwrap();
        assert_eq!(read[0].summary, record().summary);
        assert_eq!(read[0].series, record().series);
    }

    #[test]
    fn a_record_is_read_back_from_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::new(dir.path(), Earlier::Go).unwrap();
        output.begin("swap").unwrap();
        output.write(&record()).unwrap();
        // The experiment is repeated.
        output.begin("swap").unwrap();
        output.write(&record()).unwrap();
        let records = read_all(dir.path()).unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0].series, record().series);
        assert_eq!(records[1].outcome, record().outcome);
        Output::new(dir.path(), Earlier::Go).unwrap().begin("swap").unwrap();
        assert!(read_all(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn only_the_cases_that_are_run_again_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let run =
            |scenario: &str, engine: &str, qps| finished("swap", scenario, engine, &[("qps", qps)]);
        let earlier = Output::new(dir.path(), Earlier::Go).unwrap();
        earlier.begin("swap").unwrap();
        for record in [
            run("75 %", "tidepool", 1.0),
            run("75 %", "innodb", 2.0),
            run("100 %", "tidepool", 3.0),
        ] {
            earlier.write(&record).unwrap();
        }
        let figures = || -> Vec<f64> {
            read_all(dir.path()).unwrap().iter().filter_map(|record| record.figure("qps")).collect()
        };
        // One case, twice.
        let again = Output::new(dir.path(), Earlier::GoByCase).unwrap();
        for qps in [4.0, 5.0] {
            again.begin("swap").unwrap();
            again.write(&run("75 %", "tidepool", qps)).unwrap();
        }
        assert_eq!(figures(), [2.0, 3.0, 4.0, 5.0]);
        let more = Output::new(dir.path(), Earlier::Stay).unwrap();
        more.begin("swap").unwrap();
        more.write(&run("75 %", "tidepool", 6.0)).unwrap();
        assert_eq!(figures(), [2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn a_broken_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("swap.jsonl"), "{\"experiment\":1}\n").unwrap();
        let error = read_all(dir.path()).unwrap_err().to_string();
        assert!(error.contains("swap.jsonl, line 1"), "{error}");
    }

    #[test]
    fn statistics_are_those_of_the_seconds_asked_for() {
        use statistics::*;
        let at =
            |at_s: i32| Point { at_s: f64::from(at_s), qps: f64::from(at_s), ..Point::default() };
        let series: Vec<Point> = (-3..=10).map(at).collect();
        let seconds = |from, to| between(&series, from, to).iter().map(|point| point.qps);
        assert_eq!(seconds(0.0, 3.0).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
        assert_eq!(median(seconds(0.0, 9.0)), 5.0);
        assert_eq!(mean(seconds(0.0, 4.0)), 2.5);
        assert_eq!(quantile(seconds(0.0, 10.0), 1.0), 10.0);
        assert_eq!(median(seconds(0.0, 4.0)), 2.5, "between two");
        assert_eq!(median([1.0, f64::INFINITY, f64::INFINITY]), f64::INFINITY);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn a_second_without_any_throughput_is_the_worst() {
        use statistics::worst_second;
        let point = |at_s, relative| Point { at_s, relative, ..Point::default() };
        let mut series = vec![point(1.0, None), point(2.0, Some(0.5)), point(3.0, Some(0.0))];
        assert_eq!(worst_second(&series), Some((0.0, 3.0)));
        series.truncate(1);
        assert_eq!(worst_second(&series), None);
    }
}
