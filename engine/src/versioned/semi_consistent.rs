//! Semi-consistent reads: a locking scan that waits for no row before it knows that it wants it.
//!
//! Many updates look at rows that they then leave alone. At READ COMMITTED such a scan need not wait for a row that another
//! transaction has locked: it gets the row as it was committed last, without a lock, and decides. A row that it wants is
//! read again, with a lock and a wait, and decided anew by what is there then. So nothing is changed but
//! what was locked and matched, and a row passed over did not match when the scan came by.

use super::VersionedTree;
use super::locking::Patience;
use super::locking_scan::Step;
use super::reach::Edge;
use super::scan::{Direction, ScanPosition};
use crate::error::{Error, Result};
use crate::lock::{LockMode, LockWait};
use crate::trx::TransactionCore;
use crate::trx::view::ReadView;

/// What [`TransactionCore::lock_next_or_peek`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peek {
    /// An entry, now locked.
    Locked,
    /// An entry that another transaction has locked, in the version committed last.
    Committed,
    /// The end.
    End,
}

impl TransactionCore {
    /// As [`Self::lock_next`], but an entry that another transaction has locked is given without a lock and without a wait, as it was
    /// committed last; one that never was, or was deleted, is passed over. Not for levels that lock gaps, or see one
    /// snapshot throughout.
    pub fn lock_next_or_peek(
        &mut self,
        tree: &VersionedTree,
        position: &mut ScanPosition,
        direction: Direction,
        mode: LockMode,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<Peek> {
        debug_assert!(self.isolation().is_by_statement());
        self.check_running()?;
        self.fresh_locks.begin_read();
        loop {
            let wait = LockWait::NoWait;
            match self.lock_step(tree, position, direction, mode, wait, key, value) {
                Ok(Step::Found(flags)) => {
                    // The lock keeps the chain.
                    tree.complete(flags, value)?;
                    return Ok(Peek::Locked);
                }
                Ok(Step::End) => return Ok(Peek::End),
                Ok(Step::NextLeaf) => self.check_interrupt()?,
                Ok(Step::Gone(departure)) => {
                    let checked = self.check_departure(tree, departure);
                    checked.map_err(|error| self.note(error))?;
                }
                // For somebody who is just ending, and for nobody else.
                Ok(Step::Wait(obstacle)) => {
                    let waited = self.wait(tree, key, obstacle, &mut Patience::default());
                    waited.map_err(|error| self.note(error))?;
                }
                Err(Error::LockNoWait) => {
                    let found = self.peek(tree, key, value)?;
                    self.extend_reach(tree, position, Edge::At(key));
                    position.pass(key);
                    if found {
                        return Ok(Peek::Committed);
                    }
                }
                Err(error) => return Err(self.note(error)),
            }
        }
    }

    /// The version of an entry that was committed last; false if there is none.
    fn peek(&mut self, tree: &VersionedTree, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        // What commits from now on is not purged before this view is closed, and so the version that it replaces keeps its chain
        // until that is read.
        self.read_view();
        let version = self.version_of(tree, &ReadView::COMMITTED, key, value)?;
        let Some(flags) = version else { return Ok(false) };
        tree.complete(flags, value)?;
        Ok(true)
    }
}
