//! One workload on one store.
//!
//! ```text
//! open ─▶ load, read all ─▶ workload ─▶ memory, disk ─▶ close ─▶ open, read all (if it wrote) ─▶ close
//!         (not of a load)   measured
//! ```
//! To read all first shows that the load is right, and warms what the store caches. To read all in
//! the end shows that everything committed is there, in its last version as far as that is
//! remembered: without this a store that forgets would be the fastest.

use crate::error::{Error, Result};
use crate::figures::{
    CoreTime, Figures, Percentiles, Samples, disk_bytes, forget_peak_memory, peak_memory_bytes,
};
use crate::row::{self, LOADED};
use crate::store::{Kind, Store};
use crate::workload::{Workload, load_in_order};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::PathBuf;

/// Rows of a scan when all are read: a read transaction shouldn't be long by accident.
const SCAN_ROWS: u64 = 10_000;
/// Least rows: each of eight threads has some, and a scan has its hundred.
pub const ROWS_MIN: u64 = 200;

/// What the task does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    pub store: Kind,
    pub workload: Workload,
    /// Where; the directory is the task's alone.
    pub dir: PathBuf,
    pub rows: u64,
    /// How long each value is.
    pub value_bytes: usize,
    /// How many threads, where the workload doesn't say.
    pub threads: usize,
    /// How long.
    pub seconds: f64,
    /// The memory that the store may use.
    pub memory_bytes: u64,
}

impl Task {
    /// Does it.
    ///
    /// # Errors
    /// Of the store, of files; or if the store gives wrong data.
    pub fn run(&self) -> Result<Figures> {
        self.run_on(&|| {
            let sessions = self.workload.sessions(self.threads);
            self.store.open(&self.dir, self.memory_bytes, sessions)
        })
    }

    /// Does it on whatever `open` opens.
    ///
    /// # Errors
    /// As above.
    pub fn run_on(&self, open: &dyn Fn() -> Result<Box<dyn Store>>) -> Result<Figures> {
        assert!(self.rows >= ROWS_MIN, "{} rows", self.rows);
        let mut store = open()?;
        let mut checked_rows = 0;
        if !self.workload.is_load() {
            load_in_order(&*store, self)?;
            checked_rows += self.read_all(&*store, self.rows, Expected::Loaded)?;
        }
        let disk_before_bytes = disk_bytes(&self.dir)?;
        forget_peak_memory();
        let began = CoreTime::now()?;
        let (timed, samples) = Samples::during(&self.dir, || self.workload.run(&*store, self))?;
        let end = CoreTime::now()?;
        let peak_bytes = peak_memory_bytes()?;
        checked_rows += timed.checked_rows;
        if self.workload.writes() {
            store.close()?;
            store = open()?;
            let expected = if self.workload.is_load() {
                Expected::Loaded
            } else {
                Expected::Written(timed.written.iter().copied().collect())
            };
            checked_rows += self.read_all(&*store, self.rows + timed.inserted, expected)?;
        }
        store.close()?;
        Ok(Figures {
            per_second: timed.count as f64 / timed.seconds,
            latency: Percentiles::of(&timed.latencies),
            peak_bytes,
            anonymous_bytes: samples.anonymous_bytes(),
            disk_before_bytes,
            disk_bytes: samples.disk_bytes(),
            checked_rows,
            core_us: end.own_seconds_since(&began) * 1e6 / timed.count.max(1) as f64,
            others: end.others_since(&began),
        })
    }

    /// Reads all rows and checks them; gives their number.
    fn read_all(&self, store: &dyn Store, rows: u64, expected: Expected) -> Result<u64> {
        let mut session = store.session()?;
        let mut next = 0;
        while next < rows {
            let first = next;
            session.scan(&first.to_be_bytes(), SCAN_ROWS as usize, &mut |key, value| {
                if key != next.to_be_bytes() {
                    return Err(Error::WrongData(format!(
                        "key {key:?} where row {next} should be"
                    )));
                }
                let version = row::check(next, value, self.value_bytes)?;
                expected.check(next, version)?;
                next += 1;
                Ok(())
            })?;
            if next != (first + SCAN_ROWS).min(rows) {
                return Err(Error::WrongData(format!("{next} rows, not {rows}")));
            }
        }
        Ok(next)
    }
}

/// What versions rows must have.
enum Expected {
    /// None was updated.
    Loaded,
    /// These rows were updated last to these versions; of others nothing is known.
    Written(HashMap<u64, u64>),
}

impl Expected {
    fn check(&self, number: u64, version: u64) -> Result<()> {
        let expected = match self {
            Expected::Loaded => LOADED,
            Expected::Written(versions) => versions.get(&number).copied().unwrap_or(version),
        };
        if version == expected {
            return Ok(());
        }
        Err(Error::WrongData(format!(
            "row {number} has version {version}, and {expected} was committed last"
        )))
    }
}
