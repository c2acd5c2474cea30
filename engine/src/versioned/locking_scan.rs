//! Locking reads in key order, entry by entry.

use super::VersionedTree;
use super::corrupt_entry;
use super::locking::{Obstacle, Patience, ReadLock};
use super::reach::{Departure, Edge, Reading};
use super::scan::{At, Direction, ScanPosition};
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::lock::{LockMode, LockWait};
use crate::pause::{self, PausePoint};
use crate::trx::TransactionCore;

impl TransactionCore {
    /// A locking read of the next entry: locks it, gives its newest version in `key` and `value`, and moves `position` past it. False at
    /// the end. With [`LockWait::SkipLocked`], entries locked by others are passed over. In SERIALIZABLE, all
    /// that was passed is locked, gaps included.
    #[expect(clippy::too_many_arguments, reason = "a cursor's whole state")]
    pub fn lock_next(
        &mut self,
        tree: &VersionedTree,
        position: &mut ScanPosition,
        direction: Direction,
        mode: LockMode,
        wait: LockWait,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        self.check_running()?;
        self.fresh_locks.begin_read();
        let mut patience = Patience::default();
        loop {
            let step = self.lock_step(tree, position, direction, mode, wait, key, value);
            match step.map_err(|error| self.note(error))? {
                Step::Found(flags) => {
                    // The lock keeps the chain.
                    tree.complete(flags, value)?;
                    return Ok(true);
                }
                Step::End => {
                    self.give_up_passed(tree, None);
                    return Ok(false);
                }
                Step::NextLeaf => self.check_interrupt()?,
                Step::Gone(departure) => {
                    let checked = self.check_departure(tree, departure);
                    checked.map_err(|error| self.note(error))?;
                }
                Step::Wait(obstacle) => {
                    let waited = self.wait(tree, key, obstacle, &mut patience);
                    waited.map_err(|error| self.note(error))?;
                }
            }
        }
    }

    /// Notes that a locking read which locks no gaps comes from `position` to an edge.
    pub(super) fn extend_reach(
        &mut self,
        tree: &VersionedTree,
        position: &mut ScanPosition,
        to: Edge<'_>,
    ) {
        if self.locks_gaps() {
            return;
        }
        let mut stretch = position.stretch;
        if let Some(from) = position.edge() {
            self.reach.extend(&mut stretch, tree, from, to);
        }
        position.stretch = stretch;
    }

    /// The same, to where it is to end.
    fn extend_reach_to_end(
        &mut self,
        tree: &VersionedTree,
        position: &mut ScanPosition,
        direction: Direction,
    ) {
        if self.locks_gaps() {
            return;
        }
        let mut stretch = position.stretch;
        if let Some(from) = position.edge() {
            self.reach.extend(&mut stretch, tree, from, position.last_edge(direction));
        }
        position.stretch = stretch;
    }

    /// One leaf of [`Self::lock_next`].
    #[expect(clippy::too_many_arguments, reason = "a cursor's whole state")]
    pub(super) fn lock_step(
        &mut self,
        tree: &VersionedTree,
        position: &mut ScanPosition,
        direction: Direction,
        mode: LockMode,
        wait: LockWait,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<Step> {
        if !self.locks_gaps() {
            self.open_read_point();
        }
        let leaf = position.leaf(&tree.tree, direction, self.access)?;
        let Some((leaf, (mut low, mut high))) = leaf else {
            position.at = At::Done;
            return Ok(Step::End);
        };
        while low < high {
            let slot = if direction == Direction::Forward { low } else { high - 1 };
            leaf.key_at(slot, key);
            if !self.locks_gaps() && position.is_beyond_end(key, direction) {
                self.extend_reach_to_end(tree, position, direction);
                position.at = At::Done;
                return Ok(Step::End);
            }
            let entry = Entry::decode(leaf.payload_at(slot))
                .ok_or_else(|| corrupt_entry(leaf.page_id(), slot))?;
            if let Some(step) = self.lock_gap(tree, position, direction, Some(key), mode, wait)? {
                return Ok(step);
            }
            self.system.check_not_in_doubt(entry.trx_id, entry.roll)?;
            // A delete-mark that is certain is nothing; one that may be rolled back must be waited for.
            let absent = entry.is_deleted()
                && (self.wrote(&entry) || !self.system.csn.is_active(entry.trx_id));
            if absent && self.conflicts_with_view(entry.trx_id) {
                return Err(Error::RecordChanged);
            }
            pause::reach(PausePoint::ScanJudgedEntry);
            let lock = if absent {
                ReadLock::Skip
            } else {
                self.give_up_passed(tree, Some(key));
                self.lock_entry(tree, key, &entry, mode, wait)?
            };
            match lock {
                ReadLock::Wait(obstacle) => return Ok(Step::Wait(obstacle)),
                ReadLock::Skip if absent => {}
                ReadLock::Skip => self.leave_out(&entry),
                ReadLock::Held => {
                    if self.conflicts_with_view(entry.trx_id) {
                        return Err(Error::RecordChanged);
                    }
                    // Else whoever deleted it has committed since it was asked whether that is certain.
                    if !entry.is_deleted() {
                        self.meet(entry.trx_id);
                        self.extend_reach(tree, position, Edge::At(key));
                        value.clear();
                        value.extend_from_slice(entry.value);
                        let flags = entry.flags;
                        position.set(At::Past, key);
                        position.near = Some(leaf.hint(slot));
                        self.near = position.near;
                        return Ok(Step::Found(flags));
                    }
                }
            }
            if entry.is_deleted() && !self.locks_gaps() {
                // It may have been locked by waiting for whoever deleted it; a row that is not there is nobody's.
                self.unlock(tree, key);
                self.extend_reach(tree, position, Edge::At(key));
                let is_certain = absent || matches!(lock, ReadLock::Held);
                if is_certain && let Some(gone) = self.departure(&entry, Reading::Scan) {
                    position.set(At::Past, key);
                    return Ok(Step::Gone(gone));
                }
            }
            position.set(At::Past, key);
            match direction {
                Direction::Forward => low += 1,
                Direction::Backward => high -= 1,
            }
        }
        let fence = match direction {
            Direction::Forward => leaf.upper_fence(),
            Direction::Backward => Some(leaf.lower_fence()),
        };
        if let Some(step) = self.lock_gap(tree, position, direction, fence, mode, wait)? {
            return Ok(step);
        }
        match fence {
            None | Some(b"") => self.extend_reach_to_end(tree, position, direction),
            Some(fence) => self.extend_reach(tree, position, Edge::At(fence)),
        }
        position.leave(&leaf, direction);
        Ok(Step::NextLeaf)
    }

    /// In SERIALIZABLE: locks what is between `position` and `to` (none: the end of the tree).
    fn lock_gap(
        &self,
        tree: &VersionedTree,
        position: &ScanPosition,
        direction: Direction,
        to: Option<&[u8]>,
        mode: LockMode,
        wait: LockWait,
    ) -> Result<Option<Step>> {
        if !self.locks_gaps() {
            return Ok(None);
        }
        let from = match position.at {
            At::Start => Some(&b""[..]),
            At::End => None,
            _ => Some(&position.key[..]),
        };
        let (low, high) = match direction {
            Direction::Forward => (from.unwrap_or(b""), to),
            Direction::Backward => (to.unwrap_or(b""), from),
        };
        let ranges = &self.system.locks.ranges;
        match ranges.acquire(&self.owner, tree.id(), low, high, mode) {
            Ok(()) => Ok(None),
            // Others' ranges cover it: whatever is in there is locked, and skipped entry by entry.
            Err(_) if wait == LockWait::SkipLocked => Ok(None),
            Err(_) if wait == LockWait::NoWait => Err(Error::LockNoWait),
            Err(owners) => Ok(Some(Step::Wait(Obstacle::Owners(owners, mode)))),
        }
    }
}

/// What one leaf gave to a locking read.
pub(super) enum Step {
    Found(u8),
    End,
    NextLeaf,
    /// The position is past a delete-mark that is to be asked about.
    Gone(Departure),
    /// For the entry in `key`, or for ranges.
    Wait(Obstacle),
}
