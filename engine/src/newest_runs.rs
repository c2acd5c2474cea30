//! Which run of each packed file was durable, kept outside of the files.
//!
//! A packed file is consistent by itself, and so is an older copy of it in its place, and so is
//! what is left when its end is lost. What shows that is a number outside of the file: the newest
//! run that was durable ([`PackedFile::open`](tidepool_pool::packed::PackedFile::open)). It is
//! noted before each checkpoint of the redo log, since what a checkpoint passes can't be recovered
//! from the log.
//!
//! A mirror has no runs. Of it the greatest LSN is noted of a page that was durable there: a mirror
//! that has none so great is an older copy, and may restore nothing as a whole.
//!
//! # Format
//! Two files, `newest-runs.0` and `newest-runs.1`, written by turns, each as a whole:
//! ```text
//!  0  magic     "TPNRUNS1"
//!  8  crc32c    u32 of the bytes from 12 to the end of the entries
//! 12  entries   u32
//! 16  sequence  u64: the greater one counts
//! 24  instance  uuid, 16 bytes
//! 40  entries, 12 bytes each: space u32, run u64; space 8 and 9 stand for the mirrors of spaces 0
//!     and 1, with an LSN
//! ```
//! Zeroes follow up to a whole block. Numbers of spaces that are gone mean nothing.
//!
//! Losing both files loses no data, only this check. A backup has none. So no error of the disk in
//! them stops a checkpoint: where one of the files can't be written, the other one is, and where
//! neither can, the list is not noted, and the error log says so.
//!
//! # Locking order
//! The mutex is taken under the redo log's checkpoint, and held while a file is written; the locks
//! of packed files come after it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile};
use tidepool_pool::{LogThrottle, Lsn, Pool};

use crate::error::{Error, Result};
use crate::files::NEWEST_RUNS_FILES;

const MAGIC: &[u8; 8] = b"TPNRUNS1";
const CHECKED_AT: usize = 12;
const ENTRIES_AT: usize = 40;
const ENTRY_BYTES: usize = 12;
const BLOCK: usize = 4096;
/// What stands for the mirror of a space: this, and the space's number.
const MIRRORS_FROM: u32 = 8;
/// Length of a file at least.
const LEN_MIN: u64 = 16 << 10;

/// What is known of the newest runs.
pub(crate) struct NewestRuns {
    state: Mutex<State>,
    failures: LogThrottle,
}

#[derive(Default)]
struct State {
    instance: [u8; 16],
    runs: BTreeMap<u32, u64>,
    sequence: u64,
    /// Opened, or made, at the first write.
    files: [Option<Arc<dyn StorageFile>>; 2],
    /// Which of them has the newest list.
    newest: usize,
}

impl NewestRuns {
    /// Reads what was noted; nothing, if there is nothing to be read.
    pub fn load(storage: &dyn Storage, instance: [u8; 16]) -> NewestRuns {
        let (mut newest, mut damaged) = (State { instance, ..State::default() }, 0);
        for (at, name) in NEWEST_RUNS_FILES.into_iter().enumerate() {
            let bytes = match read_whole(storage, name) {
                // Nothing was written to it yet.
                Ok(Some(bytes)) if bytes.iter().all(|byte| *byte == 0) => continue,
                Ok(Some(bytes)) => bytes,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(%error, "a list of newest runs can't be read");
                    damaged += 1;
                    continue;
                }
            };
            match decode(&bytes, &instance) {
                Some((sequence, runs)) if sequence > newest.sequence => {
                    (newest.sequence, newest.runs, newest.newest) = (sequence, runs, at);
                }
                Some(_) => {}
                None => damaged += 1,
            }
        }
        if damaged > 0 && newest.sequence == 0 {
            tracing::error!(
                "{}: damaged; a table's file that was replaced by an older copy will not be found out",
                NEWEST_RUNS_FILES.join(", ")
            );
        }
        NewestRuns { state: Mutex::new(newest), failures: LogThrottle::default() }
    }

    /// The newest run of the space's file that is known to have been durable; 0 if none is.
    pub fn of(&self, space: u32) -> u64 {
        self.state.lock().runs.get(&space).copied().unwrap_or(0)
    }

    /// The greatest LSN of a page that is known to have been durable in the mirror of a space.
    pub fn of_mirror(&self, space: u32) -> Lsn {
        Lsn(self.of(MIRRORS_FROM + space))
    }

    /// The space is gone.
    pub fn forget(&self, space: u32) {
        self.state.lock().runs.remove(&space);
    }

    /// Makes the files if they are not there, with room for the list of a thousand tables or so, so
    /// that a disk that is full later does not matter. One that fails now does not matter either.
    pub fn make(&self, storage: &dyn Storage) {
        let mut state = self.state.lock();
        for at in 0..state.files.len() {
            let made = state.file(storage, at);
            self.warn_of(made.err());
        }
    }

    /// The list is a witness of what the files hold: a checkpoint, which gives the log room,
    /// matters more.
    fn warn_of(&self, error: Option<Error>) {
        let Some(error) = error else { return };
        if let Some(unsaid) = self.failures.is_due(Instant::now()) {
            tracing::warn!(%error, unsaid, "the newest runs of files were not noted");
        }
    }

    /// Notes, durably, which runs of the open files are durable now. What was noted before is still
    /// there if that fails; then the next checkpoint notes these runs.
    pub fn note(&self, storage: &dyn Storage, pool: &Pool) {
        let mut state = self.state.lock();
        let noted = |space: u32| state.runs.get(&space).copied();
        let runs = pool.newest_runs().into_iter().filter(|&(space, run)| noted(space) != Some(run));
        let mirrored = pool.newest_mirrored().into_iter();
        let mirrored = mirrored.map(|(space, lsn)| (MIRRORS_FROM + space, lsn.0));
        let mirrored = mirrored.filter(|&(space, lsn)| noted(space).unwrap_or(0) < lsn);
        let newer: Vec<(u32, u64)> = runs.chain(mirrored).collect();
        if !newer.is_empty() {
            self.warn_of(state.write(storage, newer).err());
        }
    }
}

impl State {
    /// Writes the list with these entries. They count from when they are durable: after an error
    /// the next checkpoint writes them.
    fn write(&mut self, storage: &dyn Storage, newer: Vec<(u32, u64)>) -> Result<()> {
        let mut runs = self.runs.clone();
        runs.extend(newer);
        // What a write that failed has left of it must not count as the newest.
        self.sequence += 1;
        let older = 1 - self.newest;
        let written = match self.write_to(storage, older, &runs) {
            // The other one would need the same space.
            Err(error @ Error::NoSpace(_)) => Err(error),
            Err(error) => {
                self.sequence += 1;
                let other = self.write_to(storage, self.newest, &runs);
                other.map(|()| self.newest).map_err(|_| error)
            }
            Ok(()) => Ok(older),
        };
        self.newest = written?;
        self.runs = runs;
        Ok(())
    }

    fn write_to(
        &mut self,
        storage: &dyn Storage,
        at: usize,
        runs: &BTreeMap<u32, u64>,
    ) -> Result<()> {
        let bytes = encode(self.sequence, &self.instance, runs);
        let file = self.file(storage, at)?;
        if file.len()? < bytes.len() as u64 {
            file.set_len((bytes.len() as u64).next_power_of_two())?;
        }
        file.write_at(&bytes, 0)?;
        Ok(file.sync_data()?)
    }

    /// One of the files, which is made if it is not there.
    fn file(&mut self, storage: &dyn Storage, at: usize) -> Result<Arc<dyn StorageFile>> {
        if let Some(file) = &self.files[at] {
            return Ok(file.clone());
        }
        let name = NEWEST_RUNS_FILES[at];
        let (file, is_new) = match storage.open(name) {
            Err(error) if error.is_not_found() => (storage.create(name)?, true),
            file => (file?, false),
        };
        if file.len()? < LEN_MIN {
            file.set_len(LEN_MIN)?;
            file.sync_data()?;
        }
        if is_new {
            storage.sync_dir("")?;
        }
        self.files[at] = Some(file.clone());
        Ok(file)
    }
}

fn read_whole(storage: &dyn Storage, name: &str) -> Result<Option<AlignedBuf>> {
    let file = match storage.open(name) {
        Err(error) if error.is_not_found() => return Ok(None),
        file => file?,
    };
    let len = file.len()? as usize / BLOCK * BLOCK;
    let mut bytes = AlignedBuf::zeroed(len);
    file.read_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

fn encode(sequence: u64, instance: &[u8; 16], runs: &BTreeMap<u32, u64>) -> AlignedBuf {
    let len = ENTRIES_AT + runs.len() * ENTRY_BYTES;
    let mut bytes = AlignedBuf::zeroed(len.next_multiple_of(BLOCK));
    bytes[..8].copy_from_slice(MAGIC);
    bytes[CHECKED_AT..16].copy_from_slice(&(runs.len() as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&sequence.to_le_bytes());
    bytes[24..ENTRIES_AT].copy_from_slice(instance);
    for (entry, (space, run)) in bytes[ENTRIES_AT..].chunks_exact_mut(ENTRY_BYTES).zip(runs) {
        entry[..4].copy_from_slice(&space.to_le_bytes());
        entry[4..].copy_from_slice(&run.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&bytes[CHECKED_AT..len]);
    bytes[8..CHECKED_AT].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The sequence number and the runs; `None` unless the file is whole, and of this data directory.
fn decode(bytes: &[u8], instance: &[u8; 16]) -> Option<(u64, BTreeMap<u32, u64>)> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let long = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let len = ENTRIES_AT + word(CHECKED_AT) as usize * ENTRY_BYTES;
    if bytes[..8] != *MAGIC || len > bytes.len() || bytes[24..ENTRIES_AT] != *instance {
        return None;
    }
    if crc32c::crc32c(&bytes[CHECKED_AT..len]) != word(8) {
        return None;
    }
    let entries = bytes[ENTRIES_AT..len].chunks_exact(ENTRY_BYTES).map(|entry| {
        let space = u32::from_le_bytes(entry[..4].try_into().expect("4 bytes"));
        (space, long(&entry[4..]))
    });
    Some((long(&bytes[16..24]), entries.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_survives_its_bytes_and_a_flipped_bit_is_found() {
        let runs = BTreeMap::from([(16, 5), (17, u64::MAX), (400, 0)]);
        let mut bytes = encode(7, &[3; 16], &runs);
        assert_eq!(decode(&bytes, &[3; 16]), Some((7, runs)));
        assert_eq!(decode(&bytes, &[4; 16]), None, "of another data directory");
        for at in 0..ENTRIES_AT + 3 * ENTRY_BYTES {
            bytes[at] ^= 1;
            assert_eq!(decode(&bytes, &[3; 16]), None, "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
