//! When an operation must wait for another transaction.
//!
//! All tests here run under the latch of the entry's leaf: exclusive for a write, shared for a
//! locking read. See [`crate::lock`] for why nothing is missed between the test and the wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::VersionedTree;
use super::moved_row::RecentVersions;
use super::read::{ReadRequest, ReadValue};
use crate::btree::Seek;
use crate::error::{Error, Remedy, Result};
use crate::format::entry::{Entry, corrupt_entry};
use crate::lock::keys::{Acquire, Holders};
use crate::lock::reach::Reading;
use crate::lock::version_cache::Before;
use crate::lock::{LockMode, LockWait, Owner};
use crate::trx::TransactionCore;
use crate::undo::damage::is_damage;

/// What stands in the way. To be waited for without a latch.
pub(super) enum Obstacle {
    /// The request is in the key's queue.
    Queue,
    /// These owners' ranges cover the key, and forbid a lock of this mode.
    Owners(Vec<Arc<Owner>>, LockMode),
    /// Its transaction has just ended.
    Gone,
}

/// The outcome of asking for a read lock.
pub(super) enum ReadLock {
    /// Held, or not needed because the transaction wrote the entry.
    Held,
    /// Locked by another, and the reader skips what is locked.
    Skip,
    Wait(Obstacle),
}

/// How long an operation still waits. All its waits for one key share the time: else it would wait
/// without end where each is short and followed by another, as for ranges that come and go.
#[derive(Default)]
pub(super) struct WaitDeadline {
    key: Vec<u8>,
    at: Option<Instant>,
}

impl WaitDeadline {
    /// What is left of `timeout` for a wait on this key.
    fn left(&mut self, key: &[u8], timeout: Duration) -> Duration {
        let now = Instant::now();
        if self.at.is_none() || self.key != key {
            self.at = now.checked_add(timeout);
            key.clone_into(&mut self.key);
        }
        // One that is unknown is too far away to come.
        self.at.map_or(timeout, |at| at.saturating_duration_since(now))
    }
}

impl VersionedTree {
    /// The owners whose locks on `key`, whose entry is given if there is one, are in no queue yet
    /// and forbid this transaction a lock of this mode: another that has written it, or others that
    /// keep it locked. `Some(None)`: the writer has just ended.
    fn holders(
        &self,
        trx: &TransactionCore,
        key: &[u8],
        entry: Option<&Entry<'_>>,
        mode: LockMode,
    ) -> Option<Option<Holders>> {
        if let Some(writer) = entry.and_then(|entry| trx.implicit_holder(entry)) {
            return Some(writer.map(Holders::Writer));
        }
        let keepers = trx.system.locks.compact.holders(&trx.owner, self.id(), key, mode);
        (!keepers.is_empty()).then_some(Some(Holders::Compact(keepers)))
    }

    /// An error if an entry is by a transaction that is still to come: it has no owner, and no
    /// thread ends it.
    fn check_has_begun(&self, trx: &TransactionCore, entry: Option<&Entry<'_>>) -> Result<()> {
        let next = trx.system.csn.next_id();
        match entry {
            Some(entry) if entry.trx_id >= next => Err(Error::format(
                self.tree.space().name(),
                format!(
                    "a row names transaction {}, but from {} on there was none: the file is of a later time than undo.tpd",
                    entry.trx_id.0, next.0
                ),
                Remedy::RestoreBothOrDrop,
            )),
            _ => Ok(()),
        }
    }

    /// Whether this transaction has a row's lock, exclusively. Then the ranges of others that cover
    /// the row are nothing to wait for: who has locked one is yet to lock the row itself, behind
    /// this transaction, before he reads it. That is so for rows that are there; others a scan
    /// passes without a separate lock.
    fn has_row(&self, trx: &TransactionCore, key: &[u8], entry: &Entry<'_>) -> bool {
        !entry.is_deleted()
            && trx.system.locks.holds(&trx.owner, self.id(), key, LockMode::Exclusive)
    }

    /// Tests whether this transaction may write at `key`, whose entry, if there is one, is given.
    pub(super) fn obstacle_to_write(
        &self,
        trx: &TransactionCore,
        key: &[u8],
        entry: Option<&Entry<'_>>,
    ) -> Result<Option<Obstacle>> {
        if entry.is_some_and(|entry| trx.wrote(entry)) {
            // Its lock is exclusive and held. A range of another that covers the key was locked by
            // one that still waits for the entry itself.
            return Ok(None);
        }
        if let Some(entry) = entry {
            trx.system.check_not_in_doubt(entry.trx_id, entry.roll)?;
        }
        let locks = &trx.system.locks;
        let owners = locks.ranges.blockers(&trx.owner, self.id(), key, LockMode::Exclusive);
        if !owners.is_empty() && !entry.is_some_and(|entry| self.has_row(trx, key, entry)) {
            return Ok(Some(Obstacle::Owners(owners, LockMode::Exclusive)));
        }
        let mode = LockMode::Exclusive;
        let answer = match self.holders(trx, key, entry, mode) {
            None => locks.keys.acquire_for_write(&trx.owner, self.id(), key, true),
            Some(None) => {
                self.check_has_begun(trx, entry)?;
                Acquire::Retry
            }
            Some(Some(holders)) => {
                check_not_blocked(self, &holders)?;
                locks.acquire(&trx.owner, (self.id(), key), mode, Some(&holders), true)
            }
        };
        Ok(match answer {
            Acquire::Granted(_) => None,
            Acquire::MustWait => Some(Obstacle::Queue),
            Acquire::Retry => Some(Obstacle::Gone),
            Acquire::NoRoom => return Err(too_many_locks(trx)),
            Acquire::Conflict => unreachable!("waiting was allowed"),
        })
    }

    /// Asks for a lock on an entry that exists (perhaps delete-marked).
    pub(super) fn lock_entry(
        &self,
        trx: &mut TransactionCore,
        key: &[u8],
        entry: &Entry<'_>,
        mode: LockMode,
        wait: LockWait,
    ) -> Result<ReadLock> {
        if trx.wrote(entry) {
            // The implicit lock is exclusive.
            return Ok(ReadLock::Held);
        }
        trx.system.check_not_in_doubt(entry.trx_id, entry.roll)?;
        let may_wait = wait == LockWait::Wait;
        let conflict = || match wait {
            LockWait::SkipLocked => Ok(ReadLock::Skip),
            _ => Err(Error::LockNoWait),
        };
        let locks = &trx.system.locks;
        let owners = locks.ranges.blockers(&trx.owner, self.id(), key, mode);
        if !owners.is_empty() && !self.has_row(trx, key, entry) {
            return if may_wait {
                Ok(ReadLock::Wait(Obstacle::Owners(owners, mode)))
            } else {
                conflict()
            };
        }
        let holders = match self.holders(trx, key, Some(entry), mode) {
            Some(None) => {
                self.check_has_begun(trx, Some(entry))?;
                return Ok(ReadLock::Wait(Obstacle::Gone));
            }
            Some(holders) => holders,
            None => None,
        };
        if let Some(holders) = &holders
            && may_wait
        {
            check_not_blocked(self, holders)?;
        }
        let answer = locks.acquire(&trx.owner, (self.id(), key), mode, holders.as_ref(), may_wait);
        match answer {
            Acquire::Granted(fresh) => {
                trx.fresh_locks.note(self.id(), key, fresh);
                Ok(ReadLock::Held)
            }
            Acquire::MustWait => {
                let fresh = !locks.holds(&trx.owner, self.id(), key, LockMode::Shared);
                trx.fresh_locks.note(self.id(), key, fresh);
                Ok(ReadLock::Wait(Obstacle::Queue))
            }
            Acquire::Conflict => conflict(),
            Acquire::Retry => Ok(ReadLock::Wait(Obstacle::Gone)),
            Acquire::NoRoom => Err(too_many_locks(trx)),
        }
    }

    /// Gives up the lock that the present read has waited for if it has come to another key since,
    /// or to none: an insert that was taken back leaves no row to lock.
    pub(super) fn give_up_passed(&self, trx: &mut TransactionCore, key: Option<&[u8]>) {
        if !trx.locks_gaps()
            && let Some(passed) = trx.fresh_locks.passed(self.id(), key)
        {
            self.unlock(trx, &passed);
        }
    }

    /// Waits for what [`Self::obstacle_to_write`] or [`Self::lock_entry`] found. No latch may be
    /// held.
    pub(super) fn wait(
        &self,
        trx: &TransactionCore,
        key: &[u8],
        what: Obstacle,
        deadline: &mut WaitDeadline,
    ) -> Result<()> {
        let locks = &trx.system.locks;
        match what {
            Obstacle::Gone => {
                // Between publishing its end and letting go there are a few instructions.
                std::thread::yield_now();
                Ok(())
            }
            Obstacle::Queue => {
                let timeout = deadline.left(key, trx.lock_wait_timeout);
                locks.wait_for_key(&trx.owner, self.id(), key, timeout)
            }
            Obstacle::Owners(owners, mode) => {
                let wanted = (self.id(), key, mode);
                let timeout = deadline.left(key, trx.lock_wait_timeout);
                locks.wait_for_end(&trx.owner, owners, wanted, timeout)
            }
        }
    }

    /// Gives up the lock on this key, if one of the last two locking reads (an index entry's, and
    /// its row's) took it, and it was not held before. Written entries stay locked.
    pub fn unlock(&self, trx: &mut TransactionCore, key: &[u8]) {
        if trx.fresh_locks.take(self.id(), key) {
            trx.system.locks.unlock(&trx.owner, self.id(), key);
        }
    }

    /// [`Self::read`], if it locks. It gives whole values only: pages of long ones that are not
    /// asked for are not read.
    pub(super) fn locking_read(
        &self,
        trx: &mut TransactionCore,
        request: ReadRequest<'_>,
    ) -> Result<bool> {
        let ReadRequest { key, lock: mode, wait, access, value } = request;
        let mut value = match value {
            ReadValue::Whole(value) => Some(value),
            ReadValue::Prefix { bytes, is_cut } => {
                *is_cut = false;
                Some(bytes)
            }
            ReadValue::Nothing => None,
        };
        let reading = if trx.is_searching() { Reading::Found } else { Reading::Lookup };
        trx.fresh_locks.begin_read();
        let mut deadline = WaitDeadline::default();
        loop {
            let leaf = self.tree.leaf_shared(Seek::Key(key), access)?;
            let obstacle = match leaf.find(key) {
                Err(_) if !trx.locks_gaps() => {
                    self.note_absent(trx, key);
                    drop(leaf);
                    self.give_up_passed(trx, None);
                    return Ok(false);
                }
                Err(_) => {
                    trx.system.locks.check_room()?;
                    let ranges = &trx.system.locks.ranges;
                    match ranges.acquire(&trx.owner, self.id(), key, Some(key), mode) {
                        Ok(()) => return Ok(false),
                        Err(_) if wait == LockWait::SkipLocked => return Ok(false),
                        Err(_) if wait == LockWait::NoWait => return Err(Error::LockNoWait),
                        Err(owners) => Obstacle::Owners(owners, mode),
                    }
                }
                Ok(slot) => {
                    let entry = Entry::decode(leaf.payload_at(slot))
                        .ok_or_else(|| corrupt_entry(leaf.page_id(), slot))?;
                    match self.lock_entry(trx, key, &entry, mode, wait)? {
                        ReadLock::Skip => {
                            trx.leave_out(&entry);
                            let recent = self.recent_of_passed(trx, key, &entry, reading)?;
                            drop(leaf);
                            self.check_departures(trx, recent)?;
                            return Ok(false);
                        }
                        ReadLock::Wait(obstacle) => obstacle,
                        ReadLock::Held => {
                            if trx.conflicts_with_view(entry.trx_id) {
                                return Err(Error::RecordChanged);
                            }
                            let newest = Before::of(&entry);
                            let recent = RecentVersions::of(trx, newest, reading)?;
                            if entry.is_deleted() {
                                if !trx.locks_gaps() {
                                    self.note_absent(trx, key);
                                    drop(leaf);
                                    self.unlock(trx, key);
                                    self.check_departures(trx, recent)?;
                                }
                                return Ok(false);
                            }
                            trx.near = Some(leaf.hint(slot));
                            let mut value = value.take();
                            if let Some(value) = &mut value {
                                value.clear();
                                value.extend_from_slice(entry.value);
                            }
                            drop(leaf);
                            self.check_departures(trx, recent)?;
                            if let Some(value) = value {
                                // The lock keeps the chain: no other transaction can replace this
                                // version.
                                self.complete(newest.flags, value)?;
                            }
                            return Ok(true);
                        }
                    }
                }
            };
            drop(leaf);
            self.wait(trx, key, obstacle, &mut deadline)?;
        }
    }
}

fn too_many_locks(trx: &TransactionCore) -> Error {
    Error::TooManyLocks(trx.system.locks.memory_bytes())
}

/// An error if it is unknown when one of the holders will release the entry.
fn check_not_blocked(tree: &VersionedTree, holders: &Holders) -> Result<()> {
    let Some(error) = holders.owners().iter().find_map(|holder| holder.blocked()) else {
        return Ok(());
    };
    let remedy = match is_damage(error) {
        true => Remedy::DropTable,
        false => Remedy::RestoreTable,
    };
    let why =
        format!("a transaction that has changed this row can't be rolled back ({})", error.what());
    Err(Error::format(tree.tree.space().name(), why, remedy))
}
