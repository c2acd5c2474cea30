//! Reading in key order: consistent reads in batches, locking reads one by one.

use std::ops::Bound;

use tidepool_pool::Access;

use super::locking::{Obstacle, Patience, ReadLock};
use super::read::{Version, Walked};
use super::{VersionedTree, corrupt_entry};
use crate::btree::{LeafHint, LeafRef, Seek, Tree};
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry, OVERFLOW};
use crate::lock::{LockMode, LockWait};
use crate::pause::{self, PausePoint};
use crate::trx::{Isolation, Transaction};

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the first entry.
    Start,
    /// Behind the last entry.
    End,
    /// At `key`, which is still to be read.
    Key,
    /// Past `key`, which has been read.
    Past,
    /// Nothing is left.
    Done,
}

/// Where a scan is: before the first entry that it has not read. Holds no latch; entries may come and go around it.
#[derive(Debug, Clone)]
pub struct ScanPosition {
    at: At,
    key: Vec<u8>,
    /// The last key that is wanted, or the first that is not.
    end: Bound<Vec<u8>>,
    /// Where a locking read has found the entry with `key`, if it is past one.
    near: Option<LeafHint>,
}

impl ScanPosition {
    /// Before all entries.
    pub fn start() -> Self {
        Self::new(At::Start, b"")
    }

    /// Behind all entries.
    pub fn end() -> Self {
        Self::new(At::End, b"")
    }

    /// At a key, which is read if it is there (`Included`) or not (`Excluded`), in either direction. `Unbounded` is the start.
    pub fn at(bound: Bound<&[u8]>) -> Self {
        match bound {
            Bound::Included(key) => Self::new(At::Key, key),
            Bound::Excluded(key) => Self::new(At::Past, key),
            Bound::Unbounded => Self::start(),
        }
    }

    fn new(at: At, key: &[u8]) -> Self {
        ScanPosition { at, key: key.to_vec(), end: Bound::Unbounded, near: None }
    }

    /// Says how far the scan is to go, in its direction. A locking read that locks no gaps ends there: what lies beyond it neither locks nor
    /// waits for. For other reads it says where they are most likely left off.
    pub fn set_end(&mut self, end: Bound<Vec<u8>>) {
        self.end = end;
    }

    /// See [`Self::set_end`].
    pub fn take_end(&mut self) -> Bound<Vec<u8>> {
        std::mem::replace(&mut self.end, Bound::Unbounded)
    }

    /// Whether nothing behind `key` is wanted.
    fn reaches_end(&self, key: &[u8], direction: Direction) -> bool {
        match (&self.end, direction) {
            (Bound::Unbounded, _) => false,
            (Bound::Included(end) | Bound::Excluded(end), Direction::Forward) => key >= &end[..],
            (Bound::Included(end) | Bound::Excluded(end), Direction::Backward) => key <= &end[..],
        }
    }

    fn is_beyond_end(&self, key: &[u8], direction: Direction) -> bool {
        match (&self.end, direction) {
            (Bound::Unbounded, _) => false,
            (Bound::Included(end), Direction::Forward) => key > &end[..],
            (Bound::Excluded(end), Direction::Forward) => key >= &end[..],
            (Bound::Included(end), Direction::Backward) => key < &end[..],
            (Bound::Excluded(end), Direction::Backward) => key <= &end[..],
        }
    }

    /// Whether nothing is left to read.
    pub fn at_end(&self) -> bool {
        self.at == At::Done
    }

    /// The entry with this key has been read.
    pub(super) fn pass(&mut self, key: &[u8]) {
        self.set(At::Past, key);
    }

    fn set(&mut self, at: At, key: &[u8]) {
        self.at = at;
        self.near = None;
        self.key.clear();
        self.key.extend_from_slice(key);
    }

    /// The leaf to read next; none if nothing is left.
    fn seek(&self, direction: Direction) -> Option<Seek<'_>> {
        use Direction::{Backward, Forward};
        Some(match (self.at, direction) {
            (At::Done, _) | (At::Start, Backward) | (At::End, Forward) => return None,
            (At::Start, Forward) => Seek::First,
            (At::End, Backward) => Seek::Last,
            (At::Past, Backward) => Seek::Before(&self.key),
            _ => Seek::Key(&self.key),
        })
    }

    /// Latches the leaf to read next for a locking read, which is the one of the last read if more of it is to come; with the slots that
    /// are still to be read. None if nothing is left.
    #[inline]
    fn leaf<'t>(
        &self,
        tree: &'t Tree,
        direction: Direction,
        access: Access,
    ) -> Result<Option<(LeafRef<'t>, (usize, usize))>> {
        let before = direction == Direction::Backward;
        if self.at == At::Past
            && let Some(near) = self.near
            && let Some((leaf, found)) = tree.hinted_shared(near, &self.key, before, access)
        {
            let slots = self.slots_from(found, &leaf, direction);
            return Ok(Some((leaf, slots)));
        }
        let Some(seek) = self.seek(direction) else { return Ok(None) };
        let leaf = tree.leaf_shared(seek, access)?;
        let slots = self.slots(&leaf, direction);
        Ok(Some((leaf, slots)))
    }

    /// The slots of a leaf that are still to be read: going forward, from the first to the end; going backward, from the second down to the beginning.
    fn slots(&self, leaf: &LeafRef<'_>, direction: Direction) -> (usize, usize) {
        match self.at {
            At::Start | At::End => (0, leaf.count()),
            _ => self.slots_from(leaf.find(&self.key), leaf, direction),
        }
    }

    /// The same, where the key is known to be.
    fn slots_from(
        &self,
        found: Result<usize, usize>,
        leaf: &LeafRef<'_>,
        direction: Direction,
    ) -> (usize, usize) {
        match (direction, found) {
            (Direction::Forward, Ok(slot)) => {
                (slot + usize::from(self.at == At::Past), leaf.count())
            }
            (Direction::Forward, Err(slot)) => (slot, leaf.count()),
            (Direction::Backward, Ok(slot)) => (0, slot + usize::from(self.at == At::Key)),
            (Direction::Backward, Err(slot)) => (0, slot),
        }
    }

    /// Goes on to the neighbour of a leaf of which nothing is left.
    fn leave(&mut self, leaf: &LeafRef<'_>, direction: Direction) {
        match direction {
            Direction::Forward => match leaf.upper_fence() {
                Some(fence) => self.set(At::Key, fence),
                None => self.at = At::Done,
            },
            Direction::Backward => match leaf.lower_fence() {
                b"" => self.at = At::Done,
                fence => self.set(At::Past, fence),
            },
        }
    }
}

/// Entries read by one scan step.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// End of each key and of each value in `bytes`.
    ends: Vec<(usize, usize)>,
    /// The entries whose value is only the beginning of it, in ascending order.
    cut: Vec<usize>,
    scratch: Vec<u8>,
}

impl Batch {
    /// Forgets all entries, keeping the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.cut.clear();
    }

    /// Forgets all entries, and keeps no more than twice so many bytes of memory.
    pub fn clear_and_keep(&mut self, bytes: usize) {
        self.clear();
        self.scratch.clear();
        self.bytes.shrink_to(bytes);
        self.scratch.shrink_to(bytes);
    }

    /// Entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Memory that it has, bytes, but for the ends.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.scratch.capacity()
    }

    #[inline]
    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.ends[before].1)
    }

    /// Key of an entry.
    #[inline]
    pub fn key(&self, at: usize) -> &[u8] {
        &self.bytes[self.start(at)..self.ends[at].0]
    }

    /// Value of an entry.
    #[inline]
    pub fn value(&self, at: usize) -> &[u8] {
        &self.bytes[self.ends[at].0..self.ends[at].1]
    }

    /// Whether the value of an entry is only the beginning of it.
    #[inline]
    pub fn is_cut(&self, at: usize) -> bool {
        !self.cut.is_empty() && self.cut.binary_search(&at).is_ok()
    }

    /// Adds an entry of the tree with the value that it stands for; with `heads`, with as much of it as the entry has.
    fn add(
        &mut self,
        tree: &VersionedTree,
        key: &[u8],
        flags: u8,
        value: &mut Vec<u8>,
        heads: bool,
    ) -> Result<()> {
        if !heads {
            tree.complete(flags, value)?;
        } else if tree.cut(flags, value)? {
            self.cut.push(self.ends.len());
        }
        self.push(key, &[], value);
        Ok(())
    }

    #[inline]
    fn push(&mut self, prefix: &[u8], suffix: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(suffix);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((middle, self.bytes.len()));
    }
}

impl Transaction {
    /// A consistent read of the next entries: appends those that the view sees to `batch`, at most `rows` and at most the rest of one
    /// leaf, and moves `position` past them. An entry with a long value comes alone, and so does one whose version is far back. An empty batch does not mean
    /// the end: [`ScanPosition::at_end`] does. An entry at the position's end, or beyond, is the last of its batch.
    ///
    /// With `heads`, of long values only what the entries have of them is read ([`Batch::is_cut`]), and they come with the others. (But at
    /// READ UNCOMMITTED, where the whole could not be had later.)
    #[expect(clippy::too_many_arguments, reason = "a cursor's whole state")]
    pub fn scan(
        &mut self,
        tree: &VersionedTree,
        position: &mut ScanPosition,
        direction: Direction,
        rows: usize,
        access: Access,
        heads: bool,
        batch: &mut Batch,
    ) -> Result<()> {
        self.check_running()?;
        let view = self.read_view();
        let dirty = self.isolation() == Isolation::ReadUncommitted;
        let heads = heads && !dirty;
        let Some(seek) = position.seek(direction) else {
            position.at = At::Done;
            return Ok(());
        };
        let (mut key, mut value) = (Vec::new(), std::mem::take(&mut batch.scratch));
        let (mut long, mut older) = (None, None);
        let (mut added, mut stopped) = (0, false);
        {
            let leaf = tree.tree.leaf_shared(seek, access)?;
            let (mut low, mut high) = position.slots(&leaf, direction);
            let (node, prefix) = (leaf.node(), leaf.node().prefix());
            while low < high && added < rows {
                let slot = if direction == Direction::Forward { low } else { high - 1 };
                // With nearly all, the newest version is the one, and all of it is here: it is copied once, and looked up once.
                let (suffix, payload) = node.cell(slot).expect("cell lies in the heap");
                if let Some(entry) = Entry::decode(payload)
                    && entry.flags & (DELETED | OVERFLOW) == 0
                    && self.sees(&view, entry.trx_id)
                {
                    batch.push(prefix, suffix, entry.value);
                    added += 1;
                    match direction {
                        Direction::Forward => low += 1,
                        Direction::Backward => high -= 1,
                    }
                    if position.reaches_end(batch.key(batch.len() - 1), direction) {
                        break;
                    }
                    continue;
                }
                let version = self.system.visible_version(
                    tree,
                    &view,
                    self.id(),
                    || {
                        let mut key = Vec::new();
                        leaf.key_at(slot, &mut key);
                        key
                    },
                    leaf.page_id(),
                    slot,
                    payload,
                    &mut value,
                    false,
                )?;
                let flags = match version {
                    Version::Found(flags) => flags,
                    // As a long value, it comes alone.
                    Version::Older(_) if added > 0 => break,
                    Version::Older(walk) => {
                        leaf.key_at(slot, &mut key);
                        older = Some(walk);
                        None
                    }
                };
                if let Some(flags) = flags {
                    let is_long = flags & OVERFLOW != 0 && !heads;
                    if is_long && added > 0 {
                        break;
                    }
                    leaf.key_at(slot, &mut key);
                    added += 1;
                    if is_long && !dirty {
                        long = Some(flags);
                    } else {
                        // As in `get`: under the latch, for a rollback frees an uncommitted version's chain.
                        batch.add(tree, &key, flags, &mut value, heads)?;
                    }
                    stopped = is_long || position.reaches_end(&key, direction);
                }
                match direction {
                    Direction::Forward => low += 1,
                    Direction::Backward => high -= 1,
                }
                if stopped || long.is_some() || older.is_some() {
                    break;
                }
            }
            if low == high {
                position.leave(&leaf, direction);
            } else {
                // The last one read is the neighbour of the next one.
                let last = if direction == Direction::Forward { low - 1 } else { high };
                leaf.key_at(last, &mut position.key);
                position.at = At::Past;
            }
        }
        if let Some(walk) = older {
            long = match self.walk(tree, &view, &key, walk, &mut value)? {
                Walked::Found(flags) => flags,
                Walked::Gone => self.version_of(tree, &view, &key, &mut value)?,
            };
        }
        if let Some(flags) = long {
            // The view keeps the chain of what it sees.
            batch.add(tree, &key, flags, &mut value, heads)?;
        }
        batch.scratch = value;
        Ok(())
    }

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
                Step::Wait(obstacle) => {
                    let waited = self.wait(tree, key, obstacle, &mut patience);
                    waited.map_err(|error| self.note(error))?;
                }
            }
        }
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
        let leaf = position.leaf(&tree.tree, direction, self.access)?;
        let Some((leaf, (mut low, mut high))) = leaf else {
            position.at = At::Done;
            return Ok(Step::End);
        };
        while low < high {
            let slot = if direction == Direction::Forward { low } else { high - 1 };
            leaf.key_at(slot, key);
            if !self.locks_gaps() && position.is_beyond_end(key, direction) {
                position.at = At::Done;
                return Ok(Step::End);
            }
            let entry = Entry::decode(leaf.payload_at(slot))
                .ok_or_else(|| corrupt_entry(leaf.page_id(), slot))?;
            if let Some(step) = self.lock_gap(tree, position, direction, Some(key), mode, wait)? {
                return Ok(step);
            }
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
                ReadLock::Skip => {}
                ReadLock::Held => {
                    if self.conflicts_with_view(entry.trx_id) {
                        return Err(Error::RecordChanged);
                    }
                    // Else whoever deleted it has committed since it was asked whether that is certain.
                    if !entry.is_deleted() {
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
    /// For the entry in `key`, or for ranges.
    Wait(Obstacle),
}
