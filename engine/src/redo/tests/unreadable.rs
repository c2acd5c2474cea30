//! Blocks that can't be read until they are written again, as some devices tell of sectors that a
//! power cut tore.

use std::collections::BTreeSet;
use std::io;

use parking_lot::Mutex;
use tidepool_pool::storage::{Result as StorageResult, StorageError, StorageFile};

use super::*;
use crate::test_storage::{Hooked, Hooks};

const CONTROL: &str = "redo/control";
const FIRST_FILE: &str = "redo/redo.00000001";
const SECOND_FILE: &str = "redo/redo.00000002";

/// The file's name, and the block's offset in it.
type Blocks = BTreeSet<(String, u64)>;

/// A disk with bad blocks.
struct Worn(Arc<Hooked<Bad>>);

struct Bad(Mutex<Blocks>);

impl Worn {
    fn new(disk: SimStorage, bad: &[(&str, u64)]) -> Self {
        let bad = bad.iter().map(|&(name, at)| (name.to_owned(), at)).collect();
        Self(Hooked::new(disk, Bad(Mutex::new(bad))))
    }

    fn bad_blocks(&self) -> usize {
        self.0.hooks.0.lock().len()
    }

    fn open_log(&self) -> Result<(RedoLog, Scan, Payloads)> {
        open_on(self.0.clone())
    }

    fn message(&self) -> String {
        self.open_log().map(drop).expect_err("this must not open").to_string()
    }
}

impl Hooks for Bad {
    fn read(&self, file: &dyn StorageFile, buf: &mut [u8], offset: u64) -> StorageResult<()> {
        let range = offset..offset + buf.len() as u64;
        let is_hit = |(name, at): &(String, u64)| {
            name == file.name() && *at < range.end && *at + BLOCK_SIZE as u64 > range.start
        };
        if self.0.lock().iter().any(is_hit) {
            let why = io::Error::from_raw_os_error(5);
            return Err(StorageError::at(StorageOp::Read, file.name(), offset, why));
        }
        file.read_at(buf, offset)
    }

    fn write(&self, file: &dyn StorageFile, bytes: &[u8], offset: u64) -> StorageResult<()> {
        let range = offset..offset + bytes.len() as u64;
        self.0.lock().retain(|(name, at)| name != file.name() || !range.contains(at));
        file.write_at(bytes, offset)
    }
}

/// A disk with a log whose one frame ends at `end`, after a kill.
fn log_up_to(end: u64) -> SimStorage {
    let storage = SimStorage::new(1);
    let (log, ..) = open(&storage).unwrap();
    flush_up_to(&log, end, 1);
    drop(log);
    storage.kill()
}

#[test]
fn a_control_slot_that_cannot_be_read_counts_as_torn() {
    let disk = log_up_to(5000);
    for slot in [0, 4096] {
        let worn = Worn::new(disk.kill(), &[(CONTROL, slot)]);
        let (log, scan, frames) = worn.open_log().unwrap();
        assert_eq!((scan.end, frames.len()), (Lsn(5000), 1));
        assert_eq!(worn.bad_blocks(), 0, "the next state is written there");
        append(&log, b"more");
        log.flush().unwrap();
    }
    let error = Worn::new(disk.kill(), &[(CONTROL, 0), (CONTROL, 4096)]).message();
    assert!(error.starts_with("cannot read 'redo/control' at offset 4096: "), "{error}");
    // Beside one that is torn there is none to go by either.
    let disk = disk.kill();
    disk.corrupt(CONTROL, 100, 1);
    let error = Worn::new(disk, &[(CONTROL, 4096)]).message();
    assert!(error.starts_with("cannot read 'redo/control' at offset 4096: "), "{error}");
}

#[test]
fn files_that_are_not_in_use_and_cannot_be_read_stop_nothing() {
    let (log, ..) = open(&SimStorage::new(1)).unwrap();
    let end = log.ring.lock().end();
    // The log may go on in any of these, if a header says so.
    let disk = log_up_to(end.0);
    let strays = ["redo/redo.00000008", "redo/redo.00000009"];
    for name in strays {
        disk.create(name).unwrap().set_len(2 * BLOCK_SIZE as u64).unwrap();
    }
    disk.inject(Fault::new(StorageOp::Open, FaultKind::Io).on(strays[0]));
    let worn = Worn::new(disk, &[(SECOND_FILE, 0), (strays[1], 0)]);
    let (log, scan, frames) = worn.open_log().unwrap();
    assert_eq!((scan.end, frames.len()), (end, 1));
    for name in strays {
        assert!(!worn.0.exists(name).unwrap(), "{name}");
    }
    append(&log, &[2; 3000]);
    log.flush().unwrap();
    let flushed = log.flushed_lsn();
    drop(log);
    let (_, scan, _) = open(&worn.0.disk.kill()).unwrap();
    assert_eq!(scan.end, flushed);
}

#[test]
fn a_block_behind_the_end_of_the_log_need_not_be_readable() {
    let disk = log_up_to(5000);
    for bad in [8192, 12288, 65536] {
        let worn = Worn::new(disk.kill(), &[(FIRST_FILE, bad)]);
        let (log, scan, frames) = worn.open_log().unwrap();
        assert_eq!((scan.end, frames.len()), (Lsn(5000), 1), "{bad}");
        // The log comes to it.
        append(&log, &vec![2; 63 << 10]);
        log.flush().unwrap();
        assert_eq!(worn.bad_blocks(), 0, "{bad}");
        let flushed = log.flushed_lsn();
        drop(log);
        let (_, scan, _) = open(&worn.0.disk.kill()).unwrap();
        assert_eq!(scan.end, flushed, "{bad}");
    }
}

/// Wherever in the log it is: in the block that it begins in, in the middle, at its end.
#[test]
fn a_block_of_the_log_that_cannot_be_read_is_an_error() {
    let disk = log_up_to(14000);
    for bad in [4096, 8192, 12288] {
        let worn = Worn::new(disk.kill(), &[(FIRST_FILE, bad)]);
        let error = worn.message();
        let place = format!("{FIRST_FILE}: cannot read it at offset {bad}: ");
        assert!(error.starts_with(&place) && error.contains(" the redo log from LSN "), "{error}");
        assert!(error.contains("tidepool_accept_log_loss=ON"), "{error}");
        // As the message says.
        let (log, scan, frames) = open_with(worn.0.clone(), AcceptLogLoss::Yes).unwrap();
        assert!(scan.is_cut && frames.is_empty(), "{bad}: {}", scan.end.0);
        append(&log, b"goes on");
        log.flush().unwrap();
        let flushed = log.flushed_lsn();
        drop(log);
        worn.0.hooks.0.lock().clear();
        let (_, scan, frames) = open(&worn.0.disk.kill()).unwrap();
        assert_eq!((scan.end, frames.len()), (flushed, 1), "{bad}");
    }
}
