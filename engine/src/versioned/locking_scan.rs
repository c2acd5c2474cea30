//! Locking reads in key order, entry by entry.

use tidepool_pool::Access;

use super::VersionedTree;
use super::locking::{Obstacle, ReadLock, WaitDeadline};
use super::moved_row::RecentVersions;
use super::scan::{At, Direction, ScanPosition};
use crate::btree::LeafRef;
use crate::error::{Error, Result};
use crate::format::entry::{Entry, corrupt_entry};
use crate::lock::reach::{Edge, Reading};
use crate::lock::version_cache::Before;
use crate::lock::{LockMode, LockWait};
use crate::pause::{self, PausePoint};
use crate::trx::TransactionCore;

/// How a locking read goes on: [`VersionedTree::lock_next`].
#[derive(Debug, Clone, Copy)]
pub struct LockRequest {
    /// Which way.
    pub direction: Direction,
    /// The lock that each entry gets.
    pub lock: LockMode,
    /// What the read does about entries that others have locked.
    pub wait: LockWait,
    /// How it uses the buffer pool.
    pub access: Access,
}

/// An entry that a locking read gives. Its memory is used again.
#[derive(Debug, Clone, Default)]
pub struct LockedEntry {
    pub key: Vec<u8>,
    /// The newest version's value.
    pub value: Vec<u8>,
}

/// What one leaf gave to a locking read.
pub(super) enum LeafStep {
    /// An entry, with these flags, locked; and what to check of it.
    Found(u8, Option<RecentVersions>),
    End,
    NextLeaf,
    /// The position is past an entry that the read does not give, with this to check of it.
    Passed(RecentVersions),
    /// For the entry with the key found, or for ranges.
    Wait(Obstacle),
}

/// A locking read that has not found its next entry yet.
pub(super) struct LockingScan<'a> {
    pub tree: &'a VersionedTree,
    pub trx: &'a mut TransactionCore,
    pub position: &'a mut ScanPosition,
    pub request: LockRequest,
    pub found: &'a mut LockedEntry,
}

impl VersionedTree {
    /// A locking read of the next entry: locks it, gives its newest version, and moves `position`
    /// past it. False at the end.
    ///
    /// With [`LockWait::SkipLocked`] it passes over entries that others have locked. In
    /// SERIALIZABLE it locks all that it passes, gaps included.
    pub fn lock_next(
        &self,
        trx: &mut TransactionCore,
        position: &mut ScanPosition,
        request: LockRequest,
        found: &mut LockedEntry,
    ) -> Result<bool> {
        trx.check_running()?;
        trx.fresh_locks.begin_read();
        let mut scan = LockingScan { tree: self, trx, position, request, found };
        let outcome = scan.next();
        outcome.map_err(|error| trx.note(error))
    }
}

impl LockingScan<'_> {
    fn next(&mut self) -> Result<bool> {
        let mut deadline = WaitDeadline::default();
        loop {
            match self.step()? {
                LeafStep::Found(flags, recent) => {
                    self.complete(flags, recent)?;
                    return Ok(true);
                }
                LeafStep::End => {
                    self.tree.give_up_passed(self.trx, None);
                    return Ok(false);
                }
                LeafStep::NextLeaf => self.trx.check_interrupt()?,
                LeafStep::Passed(recent) => self.tree.check_departures(self.trx, Some(recent))?,
                LeafStep::Wait(obstacle) => {
                    self.tree.wait(self.trx, &self.found.key, obstacle, &mut deadline)?;
                }
            }
        }
    }

    /// Makes the entry found whole, without a latch.
    pub(super) fn complete(&mut self, flags: u8, recent: Option<RecentVersions>) -> Result<()> {
        self.tree.check_departures(self.trx, recent)?;
        // The lock keeps the overflow chain.
        self.tree.complete(flags, &mut self.found.value)
    }

    /// Looks at one leaf.
    pub(super) fn step(&mut self) -> Result<LeafStep> {
        let (tree, direction) = (self.tree, self.request.direction);
        if !self.trx.locks_gaps() {
            self.trx.open_read_point();
        }
        let leaf = self.position.leaf(&tree.tree, direction, self.request.access)?;
        let Some((leaf, (mut low, mut high))) = leaf else {
            self.position.at = At::Done;
            return Ok(LeafStep::End);
        };
        while low < high {
            let slot = if direction == Direction::Forward { low } else { high - 1 };
            if let Some(step) = self.lock_slot(&leaf, slot)? {
                return Ok(step);
            }
            match direction {
                Direction::Forward => low += 1,
                Direction::Backward => high -= 1,
            }
        }
        let fence = match direction {
            Direction::Forward => leaf.upper_fence(),
            Direction::Backward => Some(leaf.lower_fence()),
        };
        if let Some(step) = self.lock_gap(fence)? {
            return Ok(step);
        }
        self.extend_reach(match fence {
            None | Some(b"") => Reached::ItsEnd,
            Some(fence) => Reached::Fence(fence),
        });
        self.position.leave(&leaf, direction);
        Ok(LeafStep::NextLeaf)
    }

    /// Locks the entry at `slot`, and the gap before it if gaps are locked. None if the position is
    /// past the entry now, which is not wanted.
    fn lock_slot(&mut self, leaf: &LeafRef<'_>, slot: usize) -> Result<Option<LeafStep>> {
        let (tree, LockRequest { lock, wait, direction, .. }) = (self.tree, self.request);
        leaf.key_at(slot, &mut self.found.key);
        if !self.trx.locks_gaps() && self.position.is_beyond_end(&self.found.key, direction) {
            self.extend_reach(Reached::ItsEnd);
            self.position.at = At::Done;
            return Ok(Some(LeafStep::End));
        }
        let entry = Entry::decode(leaf.payload_at(slot))
            .ok_or_else(|| corrupt_entry(leaf.page_id(), slot))?;
        if let Some(step) = self.lock_gap(Some(&self.found.key))? {
            return Ok(Some(step));
        }
        self.trx.system.check_not_in_doubt(entry.trx_id, entry.roll)?;
        // A delete-mark that is certain is nothing; one that may be rolled back must be waited for.
        let absent = entry.is_deleted()
            && (self.trx.wrote(&entry) || !self.trx.system.csn.is_active(entry.trx_id));
        if absent && self.trx.conflicts_with_view(entry.trx_id) {
            return Err(Error::RecordChanged);
        }
        pause::reach(PausePoint::ScanJudgedEntry);
        let lock = if absent {
            ReadLock::Skip
        } else {
            tree.give_up_passed(self.trx, Some(&self.found.key));
            tree.lock_entry(self.trx, &self.found.key, &entry, lock, wait)?
        };
        match lock {
            ReadLock::Wait(obstacle) => return Ok(Some(LeafStep::Wait(obstacle))),
            ReadLock::Skip if absent => {}
            ReadLock::Skip => self.trx.leave_out(&entry),
            ReadLock::Held => {
                if self.trx.conflicts_with_view(entry.trx_id) {
                    return Err(Error::RecordChanged);
                }
                // Else the transaction that deleted it has committed since the check above.
                if !entry.is_deleted() {
                    return self.take(leaf, slot, &entry).map(Some);
                }
            }
        }
        let recent = tree.recent_of_passed(self.trx, &self.found.key, &entry, Reading::Scan)?;
        if entry.is_deleted() && !self.trx.locks_gaps() {
            // The read may have locked it by waiting for the transaction that deleted it; a row
            // that is not there needs no lock.
            tree.unlock(self.trx, &self.found.key);
            self.extend_reach(Reached::Found);
        }
        self.position.pass(&self.found.key);
        Ok(recent.map(LeafStep::Passed))
    }

    /// The entry is locked, and is the one that the read gives.
    fn take(&mut self, leaf: &LeafRef<'_>, slot: usize, entry: &Entry<'_>) -> Result<LeafStep> {
        let recent = RecentVersions::of(self.trx, Before::of(entry), Reading::Scan)?;
        self.extend_reach(Reached::Found);
        self.found.value.clear();
        self.found.value.extend_from_slice(entry.value);
        self.position.pass(&self.found.key);
        self.position.near = Some(leaf.hint(slot));
        self.trx.near = self.position.near;
        Ok(LeafStep::Found(entry.flags, recent))
    }

    /// Notes how far a read that locks no gaps has come from its position.
    pub(super) fn extend_reach(&mut self, to: Reached<'_>) {
        if self.trx.locks_gaps() {
            return;
        }
        let to = match to {
            Reached::Found => Edge::At(&self.found.key),
            Reached::Fence(fence) => Edge::At(fence),
            Reached::ItsEnd => self.position.last_edge(self.request.direction),
        };
        let mut stretch = self.position.stretch;
        if let Some(from) = self.position.edge() {
            self.trx.reach.extend(&mut stretch, self.tree.place(), from, to);
        }
        self.position.stretch = stretch;
    }

    /// In SERIALIZABLE: locks what is between the position and `to` (none: the end of the tree).
    fn lock_gap(&self, to: Option<&[u8]>) -> Result<Option<LeafStep>> {
        if !self.trx.locks_gaps() {
            return Ok(None);
        }
        let LockRequest { direction, lock, wait, .. } = self.request;
        let from = match self.position.at {
            At::Start => Some(&b""[..]),
            At::End => None,
            _ => Some(&self.position.key[..]),
        };
        let (low, high) = match direction {
            Direction::Forward => (from.unwrap_or(b""), to),
            Direction::Backward => (to.unwrap_or(b""), from),
        };
        self.trx.system.locks.check_room()?;
        let ranges = &self.trx.system.locks.ranges;
        match ranges.acquire(&self.trx.owner, self.tree.id(), low, high, lock) {
            Ok(()) => Ok(None),
            // Others' ranges cover it: all in there is locked, and is skipped entry by entry.
            Err(_) if wait == LockWait::SkipLocked => Ok(None),
            Err(_) if wait == LockWait::NoWait => Err(Error::LockNoWait),
            Err(owners) => Ok(Some(LeafStep::Wait(Obstacle::Owners(owners, lock)))),
        }
    }
}

/// How far a locking read has come.
#[derive(Clone, Copy)]
pub(super) enum Reached<'l> {
    /// To the entry found.
    Found,
    /// To the fence of a leaf.
    Fence(&'l [u8]),
    /// To where it was set to end, or the end of the tree.
    ItsEnd,
}
