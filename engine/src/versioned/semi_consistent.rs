//! Semi-consistent reads: a locking scan that does not wait for a row before it knows that it wants
//! the row.
//!
//! Many updates look at rows that they then leave alone. At READ COMMITTED such a scan need not
//! wait for a row that another transaction has locked: it gets the row as it was committed last,
//! without a lock, and decides. If it wants the row, it reads it again, with a lock and a wait, and
//! decides anew by what is there then. So it changes only rows that were locked and matched, and a
//! row that it passed over did not match when the scan came by.

use tidepool_pool::Access;

use super::VersionedTree;
use super::locking::WaitDeadline;
use super::locking_scan::{LeafStep, LockRequest, LockedEntry, LockingScan, Reached};
use super::scan::ScanPosition;
use crate::error::{Error, Result};
use crate::lock::LockWait;
use crate::trx::TransactionCore;
use crate::trx::view::ReadView;

/// The outcome of [`VersionedTree::lock_next_or_peek`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peek {
    /// An entry, now locked.
    Locked,
    /// An entry that another transaction has locked, in the version committed last.
    Committed,
    End,
}

impl VersionedTree {
    /// As [`Self::lock_next`] with any [`LockRequest::wait`], but gives an entry that another
    /// transaction has locked without a lock and without a wait, as it was committed last. It
    /// passes over one that never was committed, or was deleted. Not for isolation levels that lock
    /// gaps, or see one snapshot throughout.
    pub fn lock_next_or_peek(
        &self,
        trx: &mut TransactionCore,
        position: &mut ScanPosition,
        request: LockRequest,
        found: &mut LockedEntry,
    ) -> Result<Peek> {
        debug_assert!(trx.isolation().is_by_statement());
        trx.check_running()?;
        trx.fresh_locks.begin_read();
        let request = LockRequest { wait: LockWait::NoWait, ..request };
        let mut scan = LockingScan { tree: self, trx, position, request, found };
        let outcome = scan.next_or_peek();
        outcome.map_err(|error| trx.note(error))
    }

    /// The version of an entry that was committed last; false if there is none.
    fn peek(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        access: Access,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        // Purge keeps what commits from now on until this view is closed. So the version that such
        // a commit replaces keeps its overflow chain until it is read.
        trx.ensure_view();
        let version = self.version_of(trx, ReadView::COMMITTED, (key, access), value)?;
        let Some(flags) = version else { return Ok(false) };
        self.complete(flags, value)?;
        Ok(true)
    }
}

impl LockingScan<'_> {
    fn next_or_peek(&mut self) -> Result<Peek> {
        loop {
            match self.step() {
                Ok(LeafStep::Found(flags, recent)) => {
                    self.complete(flags, recent)?;
                    return Ok(Peek::Locked);
                }
                Ok(LeafStep::End) => return Ok(Peek::End),
                Ok(LeafStep::NextLeaf) => self.trx.check_interrupt()?,
                Ok(LeafStep::Passed(recent)) => {
                    self.tree.check_departures(self.trx, Some(recent))?;
                }
                // For a transaction that is just ending, and for no other.
                Ok(LeafStep::Wait(obstacle)) => {
                    let mut deadline = WaitDeadline::default();
                    self.tree.wait(self.trx, &self.found.key, obstacle, &mut deadline)?;
                }
                Err(Error::LockNoWait) => {
                    let (access, LockedEntry { key, value }) =
                        (self.request.access, &mut *self.found);
                    let found = self.tree.peek(self.trx, key, access, value)?;
                    // Not before the look at the value: a row may leave in between.
                    self.tree.check_passed(self.trx, key, access)?;
                    // It is not asked when that version was committed.
                    self.trx.gave_recent = true;
                    self.extend_reach(Reached::Found);
                    self.position.pass(&self.found.key);
                    if found {
                        return Ok(Peek::Committed);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}
