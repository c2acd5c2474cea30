//! The redo log, as the pool sees it.

use crate::error::{Error, WriteAheadError};
use crate::page::Lsn;

/// The redo log, as the pool sees it.
pub trait WriteAhead: Send + Sync {
    /// Returns when all redo before `lsn` is durable. Called before a page with that LSN is
    /// written; the caller holds no page latch.
    fn ensure_durable(&self, lsn: Lsn) -> Result<(), WriteAheadError>;

    /// Up to where redo is durable, if that is cheap to say: then every write-out asserts it.
    fn durable_lsn(&self) -> Option<Lsn> {
        None
    }

    /// Why a page that was read can't have this LSN, if it can't. One with a later LSN than the
    /// redo was written at another time of its file, and would pass for having seen changes that
    /// are still to come.
    fn contradiction(&self, _page_lsn: Lsn) -> Option<String> {
        None
    }

    /// A data file could not be synced: no page will be written any more, so the checkpoint stays
    /// where it is for good. Time to stop, and to recover from what is really there.
    fn storage_failed(&self, _error: &Error) {}
}
