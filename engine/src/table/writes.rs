//! Whether a table takes writes, and the log of the rows written while its indexes are built.
//!
//! ```text
//! TAKEN     nothing is noted
//! LOGGED    each write to the clustered index is noted before it is done: key, transaction
//! REFUSED   a write gets [`Error::TableBusy`]
//! ```
//! The state changes from TAKEN only while no transaction is inside, and to REFUSED likewise. A
//! transaction enters before it looks at the state. So from the change on each write is logged, or
//! refused, and none is under way that was not.
//!
//! # The log
//! It says which rows may have another version, and no more: what such a row was and is, the reader
//! of the log finds by views. So a rollback, of a transaction or of a part, need not be noted. An
//! entry is there before the write is done, and so before the transaction can commit. So a thread
//! that opens a view and then takes the log has the key of each row that differs between an earlier
//! view and this one.
//!
//! Entries are collected in a [`Sorter`], in bounded memory. A disk that fails it ends the build,
//! never the write ([`Table::take_log`]).
//!
//! # Locking
//! The log's mutex is innermost; a write may wait for it while a run is written to the log's file.

use super::Table;
use super::presence::Presences;
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::pause::{self, PausePoint};
use crate::sort::Sorter;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

const TAKEN: u8 = 0;
const LOGGED: u8 = 1;
const REFUSED: u8 = 2;

/// What becomes of a write that a table does not refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteNote {
    /// It is done.
    Unneeded,
    /// If it is of the clustered index, it is noted first ([`Table::note_write`]).
    Needed,
}

/// The log of one build.
struct WriteLog {
    sorter: Sorter,
    entries: u64,
    /// Why it lacks entries.
    failure: Option<Error>,
}

/// The state of one table.
pub(super) struct Writes {
    state: AtomicU8,
    log: Mutex<Option<WriteLog>>,
}

impl Writes {
    pub fn new() -> Self {
        Self { state: AtomicU8::new(TAKEN), log: Mutex::new(None) }
    }
}

impl Table {
    /// Logs writes from here on, if no transaction is inside; those inside have `wait` to leave,
    /// for as long as which who comes waits. [`Table::take_writes`] ends it.
    pub(crate) fn log_writes(
        &self,
        presences: &Presences,
        sorter: Sorter,
        wait: Duration,
    ) -> Result<()> {
        let _held = self.await_unused(presences, wait)?;
        *self.writes.log.lock() = Some(WriteLog { sorter, entries: 0, failure: None });
        self.writes.state.store(LOGGED, Ordering::Release);
        pause::reach(PausePoint::WritesLogged);
        // The check sees a transaction that entered before it; one that enters later logs.
        self.check_unused(presences).inspect_err(|_| self.take_writes())
    }

    /// Takes no more writes if no transaction is inside; those inside have `wait` to leave, for as
    /// long as which who comes waits. Without a wait, those that come to read find the entrance
    /// open all the time. [`Table::take_writes`] takes it back.
    pub(crate) fn stop_writes(&self, presences: &Presences, wait: Duration) -> Result<()> {
        // First without a word to those inside, who may be writing.
        let _held = self.await_unused(presences, wait)?;
        let before = self.writes.state.swap(REFUSED, Ordering::AcqRel);
        pause::reach(PausePoint::WritesRefused);
        // The check sees a transaction that entered before it; one that enters later is refused.
        self.check_unused(presences)
            .inspect_err(|_| self.writes.state.store(before, Ordering::Release))
    }

    /// Takes writes again, and logs none.
    pub(crate) fn take_writes(&self) {
        self.writes.state.store(TAKEN, Ordering::Release);
        *self.writes.log.lock() = None;
    }

    /// Whether a write has to be noted; [`Error::TableBusy`] if it is refused. For who is inside.
    #[inline]
    pub(crate) fn check_takes_writes(&self) -> Result<WriteNote> {
        match self.writes.state.load(Ordering::Acquire) {
            TAKEN => Ok(WriteNote::Unneeded),
            LOGGED => Ok(WriteNote::Needed),
            _ => Err(Error::TableBusy(self.name())),
        }
    }

    /// Notes that a transaction is about to write the row with this clustered key.
    pub(crate) fn note_write(&self, trx: TrxId, key: &[u8]) {
        let mut log = self.writes.log.lock();
        // The build may have been given up since the state was looked at.
        let Some(log) = log.as_mut().filter(|log| log.failure.is_none()) else { return };
        match log.sorter.push(key, &trx.0.to_le_bytes()) {
            Ok(()) => log.entries += 1,
            Err(error) => log.failure = Some(error),
        }
    }

    /// Takes what the log has, and goes on with an empty one. An error if entries are missing: then
    /// the build can't be finished.
    pub(crate) fn take_log(&self, next: Sorter) -> Result<Sorter> {
        let mut log = self.writes.log.lock();
        let log = log.as_mut().ok_or(Error::NotFound)?;
        if let Some(failure) = &log.failure {
            return Err(failure.clone());
        }
        log.entries = 0;
        Ok(std::mem::replace(&mut log.sorter, next))
    }

    /// Entries of the log that were not taken. An error if some are missing.
    pub(crate) fn logged_writes(&self) -> Result<u64> {
        let log = self.writes.log.lock();
        let Some(log) = &*log else { return Ok(0) };
        log.failure.clone().map_or(Ok(log.entries), Err)
    }
}
