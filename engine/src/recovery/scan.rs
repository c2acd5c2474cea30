//! The first pass over the log: where it ends, and which files it creates and deletes.
//!
//! Where the log can't be read any further, it ends, or it is damaged: [`beyond`] finds out. Damage
//! stops the start, unless the user accepts what it loses.
//!
//! The end must be known before any page is touched, and a space's deletion before its first
//! record: a record for a missing file is fine if the file was deleted later in the log.

use std::collections::HashSet;

use tidepool_pool::Lsn;

use crate::error::{Error, Remedy, Result};
use crate::options::AcceptLogLoss;
use crate::redo::beyond::{self, Loss};
use crate::redo::reader::{Frame, Reader};
use crate::redo::record::{LogRecord, Record, RecordError};
use crate::redo::{LostLog, Ring};

/// What the first pass found.
#[derive(Debug, Default)]
pub struct Scan {
    /// End of the log.
    pub end: Lsn,
    /// Frames between the checkpoint and the end that say anything; durable marks don't.
    pub frames: u64,
    /// What is known to be lost, if the user accepts it.
    pub loss: Option<Loss>,
    /// The log ends where it is damaged, as the user accepts.
    pub is_cut: bool,
    /// Whether the user accepts a loss.
    pub accept: AcceptLogLoss,
    /// Where each epoch begins, the one at the checkpoint first.
    pub epochs: Vec<(Lsn, u32)>,
    /// Spaces whose file the log creates.
    pub created: HashSet<u32>,
    /// Spaces whose file the log deletes.
    pub deleted: HashSet<u32>,
    /// Spaces whose table the catalog was about to lose.
    pub unlisted: HashSet<u32>,
}

impl Scan {
    /// If the log is cut, has it go on behind all that is lost, which it gives: what pages hold of
    /// that can then be distinguished from what comes.
    pub fn go_on_behind_lost(&mut self, ring: &mut Ring) -> Result<Option<LostLog>> {
        if !self.is_cut {
            return Ok(None);
        }
        let start = self.end;
        let seen = self.loss.as_ref().map_or(start, |loss| loss.durable.max(loss.readable));
        self.end = ring.end_of_lost(seen)?;
        Ok(Some(LostLog { start, end: self.end }))
    }
}

/// Reads the log from the checkpoint to its end. Log that was durable and cannot be read is an
/// error, unless `accept` says so.
pub fn scan(ring: &mut Ring, accept: AcceptLogLoss) -> Result<Scan> {
    let control = ring.control();
    let mut scan = Scan {
        epochs: vec![(control.checkpoint, control.checkpoint_epoch)],
        accept,
        ..Scan::default()
    };
    // A process that was killed may have left bytes that this one can read, and a power cut would
    // take.
    if !control.clean {
        ring.sync_all()?;
    }
    let mut reader = Reader::new(ring);
    let mut unreadable = None;
    loop {
        let frame = match reader.next(ring) {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(error) if accept == AcceptLogLoss::Yes => {
                tracing::error!(%error, "the redo log ends here: it is accepted that the rest is lost");
                unreadable = Some(error);
                break;
            }
            Err(error) => return Err(error),
        };
        let mut is_mark = false;
        for record in frame.records() {
            match record.map_err(|error| undecodable(&frame, error))? {
                Record::Page { .. } => {}
                Record::Log(LogRecord::Epoch(epoch)) => scan.epochs.push((frame.start, epoch)),
                Record::Log(LogRecord::SpaceCreate(space)) => _ = scan.created.insert(space),
                Record::Log(LogRecord::SpaceDelete(space)) => _ = scan.deleted.insert(space),
                Record::Log(LogRecord::SpaceUnlist(space)) => _ = scan.unlisted.insert(space),
                Record::Log(LogRecord::Durable(_)) => is_mark = true,
            }
        }
        scan.frames += u64::from(!is_mark);
    }
    scan.end = reader.lsn();
    let is_unreadable = unreadable.is_some();
    scan.loss = find_loss(ring, &reader, accept, unreadable)?;
    scan.is_cut = is_unreadable || scan.loss.is_some();
    if ring.control().clean && scan.end > ring.control().checkpoint {
        ring.sync_all()?;
    }
    Ok(scan)
}

/// Looks behind the end for log that was durable.
fn find_loss(
    ring: &mut Ring,
    reader: &Reader,
    accept: AcceptLogLoss,
    unreadable: Option<Error>,
) -> Result<Option<Loss>> {
    // After a clean shutdown nothing lies behind the checkpoint, and the ring need not be read.
    let is_clean = ring.control().clean && reader.lsn() == ring.control().checkpoint;
    if is_clean && unreadable.is_none() && !ring.has_lost_a_slot() {
        return Ok(None);
    }
    let Some(loss) = beyond::look(ring, reader.lsn(), reader.epoch())? else { return Ok(None) };
    if accept == AcceptLogLoss::No {
        return Err(loss.error());
    }
    tracing::error!(loss = loss.description(), "this loss is accepted");
    Ok(Some(loss))
}

/// The error for a frame whose checksum is right, but not its records.
pub fn undecodable(frame: &Frame<'_>, error: RecordError) -> Error {
    Error::format(
        "redo",
        format!("the redo log at LSN {} cannot be understood ({error})", frame.start.0),
        Remedy::UseItsVersion,
    )
}
