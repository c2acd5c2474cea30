//! The first pass over the log: where it ends, and which files it creates and deletes.
//!
//! The end must be known before any page is touched, and a space's deletion before its first record: a record
//! for a missing file is fine if the file was deleted later in the log.

use std::collections::HashSet;

use tidepool_pool::Lsn;

use crate::error::{Error, Result};
use crate::redo::Ring;
use crate::redo::reader::{Frame, Reader};
use crate::redo::record::{LogRecord, Record, RecordError};

/// What the first pass found.
#[derive(Debug, Default)]
pub struct Scan {
    /// End of the log.
    pub end: Lsn,
    /// Frames between the checkpoint and the end.
    pub frames: u64,
    /// Where each epoch begins, the one at the checkpoint first.
    pub epochs: Vec<(Lsn, u32)>,
    /// Spaces whose file the log creates.
    pub created: HashSet<u32>,
    /// Spaces whose file the log deletes.
    pub deleted: HashSet<u32>,
    /// Spaces whose table the catalog was about to lose.
    pub unlisted: HashSet<u32>,
}

/// Reads the log from the checkpoint to its end.
pub fn scan(ring: &mut Ring) -> Result<Scan> {
    let control = ring.control();
    let mut scan =
        Scan { epochs: vec![(control.checkpoint, control.checkpoint_epoch)], ..Scan::default() };
    // A process that was killed may have left bytes that this one can read, and a power cut would take.
    if !control.clean {
        ring.sync_all()?;
    }
    let mut reader = Reader::new(ring);
    while let Some(frame) = reader.next(ring)? {
        scan.frames += 1;
        for record in frame.records() {
            match record.map_err(|error| undecodable(&frame, error))? {
                Record::Page { .. } => {}
                Record::Log(LogRecord::Epoch(epoch)) => scan.epochs.push((frame.start, epoch)),
                Record::Log(LogRecord::SpaceCreate(space)) => _ = scan.created.insert(space),
                Record::Log(LogRecord::SpaceDelete(space)) => _ = scan.deleted.insert(space),
                Record::Log(LogRecord::SpaceUnlist(space)) => _ = scan.unlisted.insert(space),
            }
        }
    }
    scan.end = reader.lsn();
    if ring.control().clean && scan.frames > 0 {
        ring.sync_all()?;
    }
    Ok(scan)
}

/// The error for a frame whose checksum is right, but not its records.
pub fn undecodable(frame: &Frame<'_>, error: RecordError) -> Error {
    Error::format(
        "redo",
        format!(
            "the redo log at LSN {} cannot be understood ({error}): use the version of Tidepool that wrote it",
            frame.start.0
        ),
    )
}
