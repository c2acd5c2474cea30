//! Pending spaces: files whose CREATE or DROP is not complete. The log repeats the list at each
//! checkpoint until it is.
//!
//! A file that the catalog doesn't list is somebody's data, unless the log says that a CREATE or a
//! DROP left it. A checkpoint may come between the statement's begin and its end, and the next
//! opening would not see what the log said before the checkpoint. So a checkpoint that would pass
//! pending spaces writes them once more, behind it. A space is pending until the catalog has the
//! table, or its file is removed.
//!
//! # Invariant
//! While a space is pending, a frame that says so is in the log behind the checkpoint, and that
//! frame is durable when the checkpoint is.

use std::collections::BTreeSet;

use tidepool_pool::Lsn;

use super::RedoLog;
use super::record::{LogRecord, Writer};
use crate::error::Result;

/// The spaces pending at present. Its mutex comes before all others of the log.
#[derive(Default)]
pub(super) struct PendingSpaces {
    spaces: BTreeSet<u32>,
    /// What the log says of each lies here or later.
    start: Lsn,
    /// End of the frame at `start`, durable marks not counted, if that one names all of them. A
    /// mark that was appended at the same time may be counted: then the list is repeated once too
    /// often, or the checkpoint stays where it is until more is appended.
    end: Option<u64>,
}

impl RedoLog {
    /// The catalog may be about to lose, or to get, the table of this space. The caller has waited
    /// for room in the log.
    pub(crate) fn add_pending_space(&self, space: u32) {
        let mut pending = self.pending_spaces.lock();
        let (start, _) = self.append_pending_spaces([space]);
        if pending.spaces.is_empty() {
            pending.start = start;
        }
        pending.end = None;
        pending.spaces.insert(space);
    }

    /// Sets the pending spaces that recovery has found in the log.
    pub(crate) fn set_pending_spaces(&self, spaces: impl IntoIterator<Item = u32>) {
        let mut pending = self.pending_spaces.lock();
        pending.spaces.extend(spaces);
        pending.start = self.checkpoint_lsn();
        pending.end = None;
    }

    /// The space's file is gone for good, or the catalog has its table: nothing needs to be known
    /// about it any more.
    pub(crate) fn remove_pending_space(&self, space: u32) {
        self.pending_spaces.lock().spaces.remove(&space);
    }

    /// Whether any space is pending.
    pub(crate) fn has_pending_spaces(&self) -> bool {
        !self.pending_spaces.lock().spaces.is_empty()
    }

    /// Has the log name the pending spaces behind a checkpoint at `checkpoint`, durably; returns
    /// where the checkpoint may be taken.
    pub(super) fn repeat_pending_spaces(&self, checkpoint: Lsn) -> Result<Lsn> {
        let mut pending = self.pending_spaces.lock();
        if pending.spaces.is_empty() || checkpoint <= pending.start {
            return Ok(checkpoint);
        }
        // Nothing but durable marks was written since: an idle log does not grow.
        if pending.end == Some(self.end_without_marks()) {
            return Ok(pending.start);
        }
        let marks = self.marks_bytes();
        let (start, end) = self.append_pending_spaces(pending.spaces.iter().copied());
        (pending.start, pending.end) = (start, Some(end.0 - marks));
        self.flush_to(end)?;
        Ok(checkpoint)
    }

    fn append_pending_spaces(&self, spaces: impl IntoIterator<Item = u32>) -> (Lsn, Lsn) {
        let mut frame = Writer::default();
        spaces.into_iter().for_each(|space| frame.log(LogRecord::SpaceUnlist(space)));
        let mut start = Lsn::ZERO;
        let end = self.append(frame.bytes(), |at, _| start = at);
        (start, end)
    }
}
