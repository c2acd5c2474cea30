//! History over days, in a file of a fixed size: one file a server, below `--history DIR`.
//!
//! ```text
//! header     magic, version, number of columns, CRC-32 of their names    24 bytes
//! records    of 10 s, for a day       slot = (time / 10 s) mod 8,640
//! records    of 1 min, for 30 days    slot = (time / 1 min) mod 43,200
//! record     when it began (ms since 1970), a value for each column (f32, NaN: not known), CRC-32
//! ```
//!
//! Numbers are little-endian. A slot follows from the time, so there is no pointer that a crash
//! could leave wrong: a record that is torn has another checksum, and one of an earlier round
//! another time, and both are passed over. Why no SQLite: these records are written in order of
//! time and read by ranges of it, and the ring can't grow; a library for SQL would be larger than
//! the program.
//!
//! One process writes a file, which it locks (`flock`); another one is refused.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use serde_json::{Map, Value, json};

use super::sample::Sample;
use crate::exit::{Error, Result};

const MAGIC: &[u8; 12] = b"tidepool-his";
const VERSION: u32 = 1;
const HEADER: u64 = 24;

/// How the samples of one record become one value.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Merge {
    Mean,
    /// A peak must not vanish in a mean.
    Max,
}

type Column = (&'static str, Merge, fn(&Sample) -> Option<f64>);

/// What is kept, under the names that samples have in the state of the page. A change of this list
/// is another version of the file: its checksum is in the header.
const COLUMNS: [Column; 22] = {
    const fn count(value: Option<u64>) -> Option<f64> {
        match value {
            Some(value) => Some(value as f64),
            None => None,
        }
    }
    [
        ("qps", Merge::Mean, |s| Some(s.qps)),
        ("p95_ms", Merge::Max, |s| s.p95_ms),
        ("disk_read_mb_s", Merge::Mean, |s| Some(s.disk_read_mb_s)),
        ("disk_write_mb_s", Merge::Mean, |s| Some(s.disk_write_mb_s)),
        ("swap_mb_s", Merge::Max, |s| s.swap_mb_s),
        ("pool_bytes", Merge::Mean, |s| Some(s.pool_bytes as f64)),
        ("data_bytes", Merge::Mean, |s| Some(s.data_bytes as f64)),
        ("compressed_bytes", Merge::Mean, |s| count(s.compressed_bytes)),
        ("target_bytes", Merge::Mean, |s| count(s.target_bytes)),
        ("hit_ratio", Merge::Mean, |s| s.hit_ratio),
        ("reads_per_s", Merge::Mean, |s| Some(s.reads_per_s)),
        ("threads_running", Merge::Max, |s| Some(s.threads_running as f64)),
        ("server_resident_bytes", Merge::Max, |s| count(s.server_resident_bytes)),
        ("server_swapped_bytes", Merge::Max, |s| count(s.server_swapped_bytes)),
        ("dirty_bytes", Merge::Max, |s| count(s.health.dirty_bytes)),
        ("checkpoint_age_bytes", Merge::Max, |s| count(s.health.checkpoint_age_bytes)),
        ("checkpoint_age_max_bytes", Merge::Max, |s| count(s.health.checkpoint_age_max_bytes)),
        ("history_list_length", Merge::Max, |s| count(s.health.history_list_length)),
        ("row_lock_waits_per_s", Merge::Mean, |s| s.health.row_lock_waits_per_s),
        ("deadlocks_per_s", Merge::Mean, |s| s.health.deadlocks_per_s),
        ("tmp_disk_tables_per_s", Merge::Mean, |s| s.health.tmp_disk_tables_per_s),
        ("replication_lag_s", Merge::Max, |s| s.health.replication_lag_s),
    ]
};

const RECORD: usize = 8 + 4 * COLUMNS.len() + 4;
type Values = [f32; COLUMNS.len()];

/// Records of one length.
#[derive(Debug, Clone, Copy)]
struct Tier {
    step_ms: u64,
    slots: u64,
    /// Where its first record is.
    offset: u64,
}

const TIERS: [Tier; 2] = {
    let fine = Tier { step_ms: 10_000, slots: 8_640, offset: HEADER };
    let coarse = HEADER + fine.slots * RECORD as u64;
    [fine, Tier { step_ms: 60_000, slots: 43_200, offset: coarse }]
};

/// Points of an answer: more than a screen has pixels for would only cost time.
const POINTS: u64 = 720;
/// The longest time that there can be an answer about.
pub const SPAN_MAX_S: u64 = 30 * 86_400;

/// Values that become one.
#[derive(Debug, Clone, Copy)]
struct Sum {
    at_ms: u64,
    totals: [f64; COLUMNS.len()],
    counts: [u32; COLUMNS.len()],
}

impl Sum {
    fn new(at_ms: u64) -> Sum {
        Sum { at_ms, totals: [0.0; COLUMNS.len()], counts: [0; COLUMNS.len()] }
    }

    fn add(&mut self, column: usize, value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        let total = &mut self.totals[column];
        match COLUMNS[column].1 {
            Merge::Mean => *total += value,
            Merge::Max if self.counts[column] == 0 => *total = value,
            Merge::Max => *total = total.max(value),
        }
        self.counts[column] += 1;
    }

    fn value(&self, column: usize) -> Option<f64> {
        let (total, count) = (self.totals[column], self.counts[column]);
        match COLUMNS[column].1 {
            _ if count == 0 => None,
            Merge::Mean => Some(total / f64::from(count)),
            Merge::Max => Some(total),
        }
    }

    fn values(&self) -> Values {
        std::array::from_fn(|column| self.value(column).map_or(f32::NAN, |value| value as f32))
    }
}

/// The file of one server.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    file: File,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What is not written yet, by tier.
    sums: [Option<Sum>; TIERS.len()],
    /// Why the last record was not written.
    error: Option<String>,
}

impl Archive {
    /// The file of a server of this name; makes it, and the directory, if they are missing.
    ///
    /// # Errors
    /// If the file can't be used, another process writes it, or it is no such file.
    pub fn open(directory: &Path, server: &str) -> Result<Archive> {
        fs::create_dir_all(directory).map_err(|error| Error::file(directory, &error))?;
        let path = directory.join(file_name(server));
        let former = directory.join(former_file_name(server));
        if former != path && !path.exists() && former.exists() {
            fs::rename(&former, &path).map_err(|error| Error::file(&former, &error))?;
        }
        let failed = |error: std::io::Error| Error::file(&path, &error);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(failed)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            let path = path.display();
            Error::Local(format!("{path}: another process writes it; use another --history"))
        })?;
        let length = file.metadata().map_err(failed)?.len();
        let last = TIERS[TIERS.len() - 1];
        let whole = last.offset + last.slots * RECORD as u64;
        if length == 0 {
            file.set_len(whole).map_err(failed)?;
        }
        let mut found = [0; HEADER as usize];
        let is_whole = [0, whole].contains(&length) && file.read_exact_at(&mut found, 0).is_ok();
        if is_whole && is_begun(&found) {
            file.write_all_at(&header(), 0).map_err(failed)?;
        } else if !is_whole || found != header() {
            return Err(Error::Local(format!(
                "{}: no history of this version of the program; move it away",
                path.display()
            )));
        }
        Ok(Archive { path, file, state: Mutex::default() })
    }

    /// Adds a sample. An error is kept for the page, and the next record is tried again.
    pub fn push(&self, sample: &Sample) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { sums, error } = &mut *state;
        for (tier, sum) in TIERS.iter().zip(sums) {
            let at_ms = sample.at_ms / tier.step_ms * tier.step_ms;
            if let Some(done) = sum.take_if(|sum| sum.at_ms != at_ms) {
                let written = self.write(tier, &done);
                *error = written.err().map(|e| format!("{}: {e}", self.path.display()));
            }
            let sum = sum.get_or_insert_with(|| Sum::new(at_ms));
            for (column, (_, _, of)) in COLUMNS.iter().enumerate() {
                sum.add(column, of(sample));
            }
        }
    }

    fn write(&self, tier: &Tier, sum: &Sum) -> std::io::Result<()> {
        let mut record = Vec::with_capacity(RECORD);
        record.extend(sum.at_ms.to_le_bytes());
        record.extend(sum.values().iter().flat_map(|value| value.to_le_bytes()));
        record.extend(checksum(&record).to_le_bytes());
        let slot = sum.at_ms / tier.step_ms % tier.slots;
        self.file.write_all_at(&record, tier.offset + slot * RECORD as u64)
    }

    /// The newest `span_s` seconds, as the page reads them: `step_s`, and `samples`, oldest first.
    pub fn read(&self, span_s: u64, now_ms: u64) -> Value {
        let span_ms = span_s.clamp(60, SPAN_MAX_S) * 1000;
        let fits = |tier: &&Tier| tier.step_ms * tier.slots >= span_ms;
        let tier = TIERS.iter().find(fits).unwrap_or(&TIERS[TIERS.len() - 1]);
        let step_ms = (span_ms / POINTS).div_ceil(tier.step_ms).max(1) * tier.step_ms;
        let (mut samples, mut error) = (Vec::new(), None);
        match self.records(tier, now_ms.saturating_sub(span_ms), now_ms) {
            Ok(records) => samples = merged(&records, step_ms),
            Err(why) => error = Some(format!("{}: {why}", self.path.display())),
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let error = error.or_else(|| state.error.clone());
        json!({ "step_s": step_ms / 1000, "samples": samples, "error": error })
    }

    /// Those of a time, in its order.
    fn records(
        &self,
        tier: &Tier,
        from_ms: u64,
        to_ms: u64,
    ) -> std::io::Result<Vec<(u64, Values)>> {
        // The slots of the time: in one piece, or in two around the end of the ring.
        let (first, last) = (from_ms / tier.step_ms, to_ms / tier.step_ms);
        let count = (last - first + 1).min(tier.slots);
        let begin = (last + 1 - count) % tier.slots;
        let before_end = count.min(tier.slots - begin);
        let mut bytes = vec![0; count as usize * RECORD];
        let (piece, rest) = bytes.split_at_mut(before_end as usize * RECORD);
        self.file.read_exact_at(piece, tier.offset + begin * RECORD as u64)?;
        self.file.read_exact_at(rest, tier.offset)?;
        let mut found: Vec<(u64, Values)> = bytes.chunks_exact(RECORD).filter_map(record).collect();
        found.retain(|(at_ms, _)| (from_ms..=to_ms).contains(at_ms));
        found.sort_by_key(|(at_ms, _)| *at_ms);
        Ok(found)
    }
}

/// `None` for a slot that was never written, and for one that is torn.
fn record(bytes: &[u8]) -> Option<(u64, Values)> {
    let (content, sum) = bytes.split_at(RECORD - 4);
    let at_ms = u64::from_le_bytes(content[..8].try_into().ok()?);
    let is_whole = at_ms > 0 && checksum(content).to_le_bytes() == sum;
    let value = |column: usize| {
        let at = 8 + 4 * column;
        f32::from_le_bytes(std::array::from_fn(|i| content[at + i]))
    };
    is_whole.then(|| (at_ms, std::array::from_fn(value)))
}

fn merged(records: &[(u64, Values)], step_ms: u64) -> Vec<Map<String, Value>> {
    let mut sums: Vec<Sum> = Vec::new();
    for (at_ms, values) in records {
        let at_ms = at_ms / step_ms * step_ms;
        if sums.last().is_none_or(|sum| sum.at_ms != at_ms) {
            sums.push(Sum::new(at_ms));
        }
        let Some(sum) = sums.last_mut() else { continue };
        for (column, value) in values.iter().enumerate() {
            sum.add(column, Some(f64::from(*value)));
        }
    }
    let point = |sum: &Sum| {
        let values = COLUMNS.iter().enumerate();
        let mut point: Map<String, Value> = values
            .map(|(column, (name, ..))| ((*name).to_owned(), sum.value(column).into()))
            .collect();
        point.insert("at_ms".into(), sum.at_ms.into());
        point
    };
    sums.iter().map(point).collect()
}

/// The name of a server's file: another one for each server. What is no letter, digit or dot is
/// written as its bytes.
fn file_name(server: &str) -> String {
    let mut name = String::new();
    for byte in server.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || byte == b'.' => name.push(byte.into()),
            byte => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name + ".history"
}

/// What earlier builds called it. Several servers could have one such name: the first that comes
/// takes the file, and no file of [`file_name`] is called so, unless both names are the same.
fn former_file_name(server: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    server.trim_matches('/').chars().map(letter).collect::<String>() + ".history"
}

/// Whether this is the header of a file that was made, and whose header was not written, or not
/// all of it: the disk was full, or the machine lost power.
fn is_begun(found: &[u8; HEADER as usize]) -> bool {
    let header = header();
    let written = found.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    found[..written] == header[..written] && found != &header
}

fn header() -> [u8; HEADER as usize] {
    let mut names = Vec::new();
    for (name, ..) in COLUMNS {
        names.extend(name.bytes());
        names.push(0);
    }
    let mut header = Vec::from(MAGIC);
    for number in [VERSION, COLUMNS.len() as u32, checksum(&names)] {
        header.extend(number.to_le_bytes());
    }
    std::array::from_fn(|i| header[i])
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::health::Health;

    fn sample(at_s: u64, qps: f64, lag: Option<f64>) -> Sample {
        let health = Health { replication_lag_s: lag, ..Health::default() };
        Sample { at_ms: at_s * 1000, qps, health, ..Sample::default() }
    }

    fn column(answer: &Value, name: &str) -> Vec<Option<f64>> {
        answer["samples"].as_array().unwrap().iter().map(|s| s[name].as_f64()).collect()
    }

    #[test]
    fn means_and_peaks_are_there_after_the_program_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let archive = Archive::open(directory.path(), "/run/a server.sock").unwrap();
        for second in 0..25 {
            archive.push(&sample(1_000_000 + second, second as f64, (second == 3).then_some(7.0)));
        }
        drop(archive);
        let archive = Archive::open(directory.path(), "/run/a server.sock").unwrap();
        assert!(directory.path().join("%2frun%2fa%20server.sock.history").exists());
        let answer = archive.read(3600, 1_000_025_000);
        assert_eq!(answer["step_s"], 10);
        assert_eq!(column(&answer, "qps"), [Some(4.5), Some(14.5)], "the third is not over");
        assert_eq!(column(&answer, "replication_lag_s"), [Some(7.0), None]);
        assert_eq!(answer["samples"][0]["at_ms"], 1_000_000_000);
        assert_eq!(column(&archive.read(60, 2_000_000_000), "qps"), [], "that is long ago");
    }

    #[test]
    fn the_file_keeps_its_size_and_the_newest_round() {
        let directory = tempfile::tempdir().unwrap();
        let archive = Archive::open(directory.path(), "s").unwrap();
        let length = || fs::metadata(directory.path().join("s.history")).unwrap().len();
        let before = length();
        let day = TIERS[0].step_ms * TIERS[0].slots / 1000;
        // A day and an hour, a sample every 10 s.
        let begin = 20_000_000 / day * day;
        for i in 0..TIERS[0].slots + 361 {
            archive.push(&sample(begin + i * 10, i as f64, None));
        }
        assert_eq!(length(), before);
        let now_ms = (begin + day + 3600) * 1000;
        let newest = column(&archive.read(3600, now_ms), "qps");
        assert_eq!(newest.last(), Some(&Some((TIERS[0].slots + 359) as f64)));
        assert_eq!(newest.len(), 360);
        let of_a_day = archive.read(day, now_ms);
        assert_eq!(of_a_day["step_s"], 120);
        assert!(column(&of_a_day, "qps").len() as u64 <= POINTS + 1);
        let of_a_month = archive.read(SPAN_MAX_S, now_ms);
        assert_eq!(of_a_month["step_s"], 3600);
        assert_eq!(column(&of_a_month, "qps").len(), 25);
    }

    #[test]
    fn one_process_writes_a_file_and_no_other_file_is_touched() {
        let directory = tempfile::tempdir().unwrap();
        let first = Archive::open(directory.path(), "s").unwrap();
        let error = Archive::open(directory.path(), "s").unwrap_err();
        assert!(error.to_string().contains("another process writes it"), "{error}");
        assert!(Archive::open(directory.path(), "other").is_ok());
        drop(first);
        let path = directory.path().join("mine.history");
        fs::write(&path, "not one of these").unwrap();
        let error = Archive::open(directory.path(), "mine").unwrap_err();
        assert!(error.to_string().contains("move it away"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"not one of these");
    }

    #[test]
    fn each_server_has_its_file_and_takes_over_that_of_an_earlier_build() {
        let directory = tempfile::tempdir().unwrap();
        let former = Archive::open(directory.path(), "former").unwrap();
        (0..11).for_each(|i| former.push(&sample(1_000_000 + i, 1.0, None)));
        drop(former);
        let path = |name: &str| directory.path().join(name);
        fs::rename(path("former.history"), path("a-b.history")).unwrap();
        let names = ["a-b", "a_b", "a/b", "/a-b", "/a/b", "a b", "ä", "ö", "%2d"];
        let archives = names.map(|name| Archive::open(directory.path(), name).unwrap());
        let count = |archive: &Archive| column(&archive.read(3600, 1_000_011_000), "qps").len();
        assert_eq!(count(&archives[0]), 1, "it has the samples of before");
        assert!(archives[1..].iter().all(|archive| count(archive) == 0));
        let files = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(files, names.len());
    }

    #[test]
    fn a_file_that_was_made_and_not_headed_is_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        drop(Archive::open(directory.path(), "s").unwrap());
        let path = directory.path().join("s.history");
        // The disk was full, or power was lost, before the header was on disk, or in it.
        for written in [0, 5, HEADER as usize - 1] {
            let zeroes = vec![0; HEADER as usize - written];
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&zeroes, written as u64).unwrap();
            drop(Archive::open(directory.path(), "s").unwrap());
            assert_eq!(fs::read(&path).unwrap()[..HEADER as usize], header());
        }
        // One of another length is not one of these.
        fs::write(&path, [0; 100]).unwrap();
        assert!(Archive::open(directory.path(), "s").is_err());
        assert_eq!(fs::read(&path).unwrap(), [0; 100]);
    }

    #[test]
    fn a_torn_record_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let archive = Archive::open(directory.path(), "s").unwrap();
        (0..31).for_each(|i| archive.push(&sample(1_000_000 + i, 1.0, None)));
        let slot = 1_000_010_000 / TIERS[0].step_ms % TIERS[0].slots;
        archive.file.write_all_at(&[1], TIERS[0].offset + slot * RECORD as u64 + 9).unwrap();
        let answer = archive.read(3600, 1_000_031_000);
        assert_eq!(column(&answer, "qps").len(), 2);
    }
}
