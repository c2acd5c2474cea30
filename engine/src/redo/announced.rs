//! Announcements: spaces of which the log says, for as long as that matters, that no table may have them any more, or not yet.
//!
//! A file that the catalog doesn't list is somebody's data, unless the log tells that it is the rest of a CREATE or a DROP. A checkpoint may come
//! between the statement's first word and its end, and then the word would be gone at the next opening. So a checkpoint that would pass
//! announcements writes them once more, behind it, until they are withdrawn: when the catalog has the table, or its file is removed.
//!
//! # Invariant
//! While a space is announced, a frame that says so is in the log behind the checkpoint, and that frame is durable when the checkpoint is.

use std::collections::BTreeSet;

use tidepool_pool::Lsn;

use super::RedoLog;
use super::record::{LogRecord, Writer};
use crate::error::Result;

/// The spaces announced at present. Its mutex comes before all others of the log.
#[derive(Default)]
pub(super) struct Announced {
    spaces: BTreeSet<u32>,
    /// Every space's announcement lies here or later.
    start: Lsn,
    /// End of the frame at `start`, if that one names all of them.
    end: Option<Lsn>,
}

impl RedoLog {
    /// Announces that the catalog may be about to lose, or to get, the table of this space. The caller has waited for room in the log.
    pub(crate) fn announce(&self, space: u32) {
        let mut announced = self.announced.lock();
        let (start, _) = self.append_announcements([space]);
        if announced.spaces.is_empty() {
            announced.start = start;
        }
        announced.end = None;
        announced.spaces.insert(space);
    }

    /// Keeps announcements that recovery has found in the log.
    pub(crate) fn keep_announced(&self, spaces: impl IntoIterator<Item = u32>) {
        let mut announced = self.announced.lock();
        announced.spaces.extend(spaces);
        announced.start = self.checkpoint_lsn();
        announced.end = None;
    }

    /// The space's file is gone for good, or the catalog has its table: nothing needs to be known about it any more.
    pub(crate) fn withdraw(&self, space: u32) {
        self.announced.lock().spaces.remove(&space);
    }

    /// Whether anything is announced.
    pub(crate) fn has_announcements(&self) -> bool {
        !self.announced.lock().spaces.is_empty()
    }

    /// Makes sure that a checkpoint at `checkpoint` passes no announcement for good; returns where it may be taken. What is durable up to
    /// there, or is made so here, includes the announcements.
    pub(super) fn repeat_announcements(&self, checkpoint: Lsn) -> Result<Lsn> {
        let mut announced = self.announced.lock();
        if announced.spaces.is_empty() || checkpoint <= announced.start {
            return Ok(checkpoint);
        }
        // Nothing but durable marks was written since: an idle log does not grow.
        if announced.end == Some(self.said_end()) {
            return Ok(announced.start);
        }
        let (start, end) = self.append_announcements(announced.spaces.iter().copied());
        (announced.start, announced.end) = (start, Some(end));
        self.flush_to(end)?;
        Ok(checkpoint)
    }

    fn append_announcements(&self, spaces: impl IntoIterator<Item = u32>) -> (Lsn, Lsn) {
        let mut frame = Writer::default();
        spaces.into_iter().for_each(|space| frame.log(LogRecord::SpaceUnlist(space)));
        let mut start = Lsn::ZERO;
        let end = self.append(frame.bytes(), |at, _| start = at);
        (start, end)
    }
}
