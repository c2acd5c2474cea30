//! When an operation must wait for another transaction.
//!
//! All tests here run under the latch of the entry's leaf: exclusive for a write, shared for a locking read. See
//! [`crate::lock`] for why nothing is missed between the test and the wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::reach::Reading;
use super::{VersionedTree, corrupt_entry};
use crate::btree::Seek;
use crate::error::{Error, Result};
use crate::files::UNDO_FILE;
use crate::format::entry::Entry;
use crate::lock::keys::{Acquire, Holder};
use crate::lock::{LockMode, LockWait, Owner};
use crate::trx::{Isolation, TransactionCore, TrxId};

/// What stands in the way. To be waited for without a latch.
pub(super) enum Obstacle {
    /// The request is in the key's queue.
    Queue,
    /// These owners' ranges cover the key, and forbid a lock of this mode.
    Owners(Vec<Arc<Owner>>, LockMode),
    /// Whoever it was has just ended.
    Gone,
}

/// The outcome of asking for a read lock.
pub(super) enum ReadLock {
    /// Held, or not needed because the transaction wrote the entry.
    Held,
    /// Locked by another, and the reader skips what is locked.
    Skip,
    /// To be waited for.
    Wait(Obstacle),
}

/// How long an operation still waits. All its waits for one key share the time: else it would wait without end where each is short and
/// followed by another, as for ranges that come and go.
#[derive(Default)]
pub(super) struct Patience {
    key: Vec<u8>,
    deadline: Option<Instant>,
}

impl Patience {
    /// What is left of `timeout` for a wait on this key.
    fn left(&mut self, key: &[u8], timeout: Duration) -> Duration {
        let now = Instant::now();
        if self.deadline.is_none() || self.key != key {
            self.deadline = now.checked_add(timeout);
            key.clone_into(&mut self.key);
        }
        // One that can't be told is too far away to come.
        self.deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(now))
    }
}

/// Locking reads that a row takes at most: of an index entry, and of the row that it leads to.
const READS_OF_A_ROW: usize = 2;

/// The locks that the newest locking reads took and that were not held before, if nothing was written since.
///
/// A lock that a later read finds held is nobody's to give up any more: of two readers in one statement, the first may want the row.
#[derive(Default)]
pub(crate) struct FreshLocks {
    /// Number of the newest read.
    read: usize,
    /// What each read took, in the order of their numbers modulo the length.
    locks: [FreshLock; READS_OF_A_ROW],
}

/// What a read took, if anything. The key's memory is used again.
#[derive(Default)]
struct FreshLock {
    tree: Option<u32>,
    key: Vec<u8>,
}

impl FreshLock {
    /// Forgets the lock if it is the one on this key; says whether it was.
    fn take(&mut self, tree: u32, key: &[u8]) -> bool {
        self.tree.take_if(|own| *own == tree && self.key == key).is_some()
    }
}

impl FreshLocks {
    /// Another locking read begins.
    pub(super) fn begin_read(&mut self) {
        self.read = (self.read + 1) % READS_OF_A_ROW;
        self.locks[self.read].tree = None;
    }

    /// The present read has the lock, or has asked for it. `fresh`: it was not held until now.
    fn note(&mut self, tree: u32, key: &[u8], fresh: bool) {
        for (read, lock) in self.locks.iter_mut().enumerate() {
            if read != self.read {
                lock.take(tree, key);
            } else if fresh {
                lock.tree = Some(tree);
                lock.key.clear();
                lock.key.extend_from_slice(key);
            }
        }
    }

    /// The key of the lock that the present read took, in this tree, unless it is this one: the read has gone on since.
    fn passed(&self, tree: u32, key: Option<&[u8]>) -> Option<Vec<u8>> {
        let lock = &self.locks[self.read];
        (lock.tree == Some(tree) && key != Some(&lock.key[..])).then(|| lock.key.clone())
    }

    /// Whether the lock is among them; it is not any more.
    fn take(&mut self, tree: u32, key: &[u8]) -> bool {
        self.locks.iter_mut().any(|lock| lock.take(tree, key))
    }

    pub(super) fn clear(&mut self) {
        self.locks.iter_mut().for_each(|lock| lock.tree = None);
    }
}

impl TransactionCore {
    /// Whether this transaction wrote an entry. (One that has not written yet has the id that settled entries are by.)
    pub(super) fn wrote(&self, entry: &Entry<'_>) -> bool {
        entry.trx_id == self.id() && entry.trx_id != TrxId::NONE
    }

    /// Whether an entry carries the implicit lock of another transaction.
    pub(super) fn is_written_by_other(&self, entry: &Entry<'_>) -> bool {
        entry.trx_id != self.id() && self.system.csn.is_active(entry.trx_id)
    }

    /// The owner whose implicit lock an entry carries, if that is another transaction and still active.
    fn implicit_holder(&self, entry: &Entry<'_>) -> Option<Option<Arc<Owner>>> {
        self.is_written_by_other(entry).then(|| self.system.owner_of(entry.trx_id))
    }

    /// The owner whose lock on `key`, whose entry is given if there is one, is in no queue yet: another transaction that has written it, or
    /// keeps it locked. `Some(None)`: it has just ended.
    fn holder(
        &self,
        tree: &VersionedTree,
        key: &[u8],
        entry: Option<&Entry<'_>>,
    ) -> Option<Option<Holder>> {
        let keeper = || self.system.locks.kept.holder(&self.owner, tree.id(), key);
        match entry.and_then(|entry| self.implicit_holder(entry)) {
            Some(writer) => Some(writer.map(Holder::Writer)),
            None => keeper().map(|keeper| Some(Holder::Keeper(keeper))),
        }
    }

    /// An error if an entry is by a transaction that is still to come: it has no owner, and nobody ends it.
    fn check_has_begun(&self, tree: &VersionedTree, entry: Option<&Entry<'_>>) -> Result<()> {
        let next = self.system.csn.next_id();
        match entry {
            Some(entry) if entry.trx_id >= next => Err(Error::format(
                tree.tree.space().file().name(),
                format!(
                    "a row names transaction {}, but from {} on there was none: the file is of a later time than undo.tpd; \
                     restore both from one backup, or drop the table",
                    entry.trx_id.0, next.0
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Whether this transaction has a row's lock, exclusively. Then the ranges of others that cover the row are nothing to wait for: who has
    /// locked one is yet to lock the row itself, behind this transaction, before he reads it. That is so for rows that are there; others a
    /// scan passes without a lock of their own.
    fn has_row(&self, tree: &VersionedTree, key: &[u8], entry: &Entry<'_>) -> bool {
        !entry.is_deleted()
            && self.system.locks.holds(&self.owner, tree.id(), key, LockMode::Exclusive)
    }

    /// Tests whether this transaction may write at `key`, whose entry, if there is one, is given.
    pub(super) fn obstacle_to_write(
        &self,
        tree: &VersionedTree,
        key: &[u8],
        entry: Option<&Entry<'_>>,
    ) -> Result<Option<Obstacle>> {
        if entry.is_some_and(|entry| self.wrote(entry)) {
            // Its lock is exclusive and held. A range of another that covers the key was locked by one that still waits for
            // the entry itself.
            return Ok(None);
        }
        if let Some(entry) = entry {
            self.system.check_not_in_doubt(entry.trx_id, entry.roll)?;
        }
        let locks = &self.system.locks;
        let owners = locks.ranges.blockers(&self.owner, tree.id(), key, LockMode::Exclusive);
        if !owners.is_empty() && !entry.is_some_and(|entry| self.has_row(tree, key, entry)) {
            return Ok(Some(Obstacle::Owners(owners, LockMode::Exclusive)));
        }
        let answer = match self.holder(tree, key, entry) {
            None => locks.keys.acquire_for_write(&self.owner, tree.id(), key, true),
            Some(None) => {
                self.check_has_begun(tree, entry)?;
                Acquire::Retry
            }
            Some(Some(holder)) => {
                check_not_stranded(tree, holder.owner())?;
                let mode = LockMode::Exclusive;
                locks.acquire(&self.owner, (tree.id(), key), mode, Some(&holder), true)
            }
        };
        Ok(match answer {
            Acquire::Granted(_) => None,
            Acquire::MustWait => Some(Obstacle::Queue),
            Acquire::Retry => Some(Obstacle::Gone),
            Acquire::Conflict => unreachable!("waiting was allowed"),
        })
    }

    /// Asks for a lock on an entry that exists (perhaps delete-marked).
    pub(super) fn lock_entry(
        &mut self,
        tree: &VersionedTree,
        key: &[u8],
        entry: &Entry<'_>,
        mode: LockMode,
        wait: LockWait,
    ) -> Result<ReadLock> {
        if self.wrote(entry) {
            // The implicit lock is exclusive.
            return Ok(ReadLock::Held);
        }
        self.system.check_not_in_doubt(entry.trx_id, entry.roll)?;
        let may_wait = wait == LockWait::Wait;
        let conflict = || match wait {
            LockWait::SkipLocked => Ok(ReadLock::Skip),
            _ => Err(Error::LockNoWait),
        };
        let locks = &self.system.locks;
        let owners = locks.ranges.blockers(&self.owner, tree.id(), key, mode);
        if !owners.is_empty() && !self.has_row(tree, key, entry) {
            return if may_wait {
                Ok(ReadLock::Wait(Obstacle::Owners(owners, mode)))
            } else {
                conflict()
            };
        }
        let holder = match self.holder(tree, key, Some(entry)) {
            Some(None) => {
                self.check_has_begun(tree, Some(entry))?;
                return Ok(ReadLock::Wait(Obstacle::Gone));
            }
            Some(holder) => holder,
            None => None,
        };
        if let Some(holder) = &holder
            && may_wait
        {
            check_not_stranded(tree, holder.owner())?;
        }
        let answer = locks.acquire(&self.owner, (tree.id(), key), mode, holder.as_ref(), may_wait);
        match answer {
            Acquire::Granted(fresh) => {
                self.fresh_locks.note(tree.id(), key, fresh);
                Ok(ReadLock::Held)
            }
            Acquire::MustWait => {
                let fresh = !locks.keys.holds(&self.owner, tree.id(), key, LockMode::Shared);
                self.fresh_locks.note(tree.id(), key, fresh);
                Ok(ReadLock::Wait(Obstacle::Queue))
            }
            Acquire::Conflict => conflict(),
            Acquire::Retry => Ok(ReadLock::Wait(Obstacle::Gone)),
        }
    }

    /// Gives up the lock that the present read has waited for if it has come to another key since, or to none: an insert that was taken
    /// back leaves no row to lock.
    pub(super) fn give_up_passed(&mut self, tree: &VersionedTree, key: Option<&[u8]>) {
        if !self.locks_gaps()
            && let Some(passed) = self.fresh_locks.passed(tree.id(), key)
        {
            self.unlock(tree, &passed);
        }
    }

    /// Waits for what [`Self::obstacle_to_write`] or [`Self::lock_entry`] found. No latch may be held.
    pub(super) fn wait(
        &self,
        tree: &VersionedTree,
        key: &[u8],
        what: Obstacle,
        patience: &mut Patience,
    ) -> Result<()> {
        let locks = &self.system.locks;
        match what {
            Obstacle::Gone => {
                // Between publishing its end and letting go there are a few instructions.
                std::thread::yield_now();
                Ok(())
            }
            Obstacle::Queue => {
                let timeout = patience.left(key, self.lock_wait_timeout);
                locks.wait_for_key(&self.owner, tree.id(), key, timeout)
            }
            Obstacle::Owners(owners, mode) => {
                let wanted = (tree.id(), key, mode);
                let timeout = patience.left(key, self.lock_wait_timeout);
                locks.wait_for_end(&self.owner, owners, wanted, timeout)
            }
        }
    }

    /// Gives up the lock on this key, if one of the last two locking reads (an index entry's, and its row's) took it, and it was
    /// not held before. Written entries stay locked.
    pub fn unlock(&mut self, tree: &VersionedTree, key: &[u8]) {
        if self.fresh_locks.take(tree.id(), key) {
            self.system.locks.unlock(&self.owner, tree.id(), key);
        }
    }

    pub(super) fn locks_gaps(&self) -> bool {
        self.isolation() == Isolation::Serializable && !self.is_referential()
    }

    /// Without a `value`, that is not read: it may be long.
    pub(super) fn locking_get(
        &mut self,
        tree: &VersionedTree,
        key: &[u8],
        mode: LockMode,
        wait: LockWait,
        mut value: Option<&mut Vec<u8>>,
    ) -> Result<bool> {
        self.fresh_locks.begin_read();
        let mut patience = Patience::default();
        loop {
            let leaf = tree.tree.leaf_shared(Seek::Key(key), self.access)?;
            let obstacle = match leaf.find(key) {
                Err(_) if !self.locks_gaps() => {
                    self.note_absent(tree, key);
                    drop(leaf);
                    self.give_up_passed(tree, None);
                    return Ok(false);
                }
                Err(_) => {
                    let ranges = &self.system.locks.ranges;
                    match ranges.acquire(&self.owner, tree.id(), key, Some(key), mode) {
                        Ok(()) => return Ok(false),
                        Err(_) if wait == LockWait::SkipLocked => return Ok(false),
                        Err(_) if wait == LockWait::NoWait => return Err(Error::LockNoWait),
                        Err(owners) => Obstacle::Owners(owners, mode),
                    }
                }
                Ok(slot) => {
                    let entry = Entry::decode(leaf.payload_at(slot))
                        .ok_or_else(|| corrupt_entry(leaf.page_id(), slot))?;
                    match self.lock_entry(tree, key, &entry, mode, wait)? {
                        ReadLock::Skip => {
                            self.leave_out(&entry);
                            return Ok(false);
                        }
                        ReadLock::Wait(obstacle) => obstacle,
                        ReadLock::Held => {
                            if self.conflicts_with_view(entry.trx_id) {
                                return Err(Error::RecordChanged);
                            }
                            if entry.is_deleted() {
                                let gone = self.departure(&entry, Reading::Lookup);
                                if !self.locks_gaps() {
                                    self.note_absent(tree, key);
                                }
                                drop(leaf);
                                if !self.locks_gaps() {
                                    self.unlock(tree, key);
                                    if let Some(gone) = gone {
                                        self.check_departure(tree, gone)?;
                                    }
                                }
                                return Ok(false);
                            }
                            self.meet(entry.trx_id);
                            self.near = Some(leaf.hint(slot));
                            let Some(value) = value.take() else { return Ok(true) };
                            let flags = entry.flags;
                            value.clear();
                            value.extend_from_slice(entry.value);
                            drop(leaf);
                            // The lock keeps the chain: nobody can replace this version.
                            tree.complete(flags, value)?;
                            return Ok(true);
                        }
                    }
                }
            };
            drop(leaf);
            self.wait(tree, key, obstacle, &mut patience)?;
        }
    }
}

/// An error if nobody knows when the holder will let go of the entry.
fn check_not_stranded(tree: &VersionedTree, holder: &Owner) -> Result<()> {
    let Some(why) = holder.stranded() else { return Ok(()) };
    let advice = match why.contains(UNDO_FILE) {
        true => "drop the table",
        false => "restore the file from a backup, or drop the table",
    };
    let why =
        format!("a transaction that has changed this row can't be rolled back ({why}): {advice}");
    Err(Error::format(tree.tree.space().file().name(), why))
}
