//! Reading in key order: positions, and consistent reads in batches. (Locking reads go entry by
//! entry: `locking_scan`.)

use std::ops::Bound;

use tidepool_pool::Access;

use super::VersionedTree;
use super::read::{LATCHED_VERSIONS, LatchedEntry, Version, VersionQuery, Walk, Walked};
use crate::btree::{LeafHint, LeafRef, Seek, Tree};
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry, OVERFLOW};
use crate::format::node::Cell;
use crate::lock::reach::{Edge, StretchId};
use crate::trx::view::ReadView;
use crate::trx::{Isolation, TransactionCore};

/// Which way a scan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
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

/// The last key that a scan wants, or the first that it does not, in its direction. The memory of
/// the key is used again.
#[derive(Debug, Clone)]
pub struct ScanEnd {
    bound: Bound<()>,
    key: Vec<u8>,
}

impl Default for ScanEnd {
    fn default() -> Self {
        ScanEnd { bound: Bound::Unbounded, key: Vec::new() }
    }
}

impl ScanEnd {
    /// Sets it.
    pub fn set(&mut self, end: Bound<&[u8]>) {
        self.key.clear();
        if let Bound::Included(key) | Bound::Excluded(key) = end {
            self.key.extend_from_slice(key);
        }
        self.bound = end.map(|_| ());
    }

    /// What was set.
    #[inline]
    fn get(&self) -> Bound<&[u8]> {
        self.bound.map(|()| &self.key[..])
    }
}

/// Where a scan is: before the first entry that it has not read. Holds no latch; entries may come
/// and go around it.
#[derive(Debug, Clone)]
pub struct ScanPosition {
    pub(super) at: At,
    pub(super) key: Vec<u8>,
    end: ScanEnd,
    /// Where the scan has found the entry with `key`, if it is past one; else where it was before
    /// it went on at `key`, if that may be near.
    pub(super) near: Option<LeafHint>,
    /// What a locking read has noted of how far it has come.
    pub(super) stretch: StretchId,
}

impl ScanPosition {
    /// Before all entries.
    pub fn start() -> Self {
        Self::new(At::Start, b"")
    }

    /// Behind all entries.
    #[cfg(test)]
    pub fn end() -> Self {
        Self::new(At::End, b"")
    }

    /// See [`Self::go_on_at`].
    #[cfg(test)]
    pub fn at(bound: Bound<&[u8]>) -> Self {
        let mut position = Self::start();
        position.go_on_at(bound);
        position
    }

    fn new(at: At, key: &[u8]) -> Self {
        let (end, stretch) = (ScanEnd::default(), StretchId::default());
        ScanPosition { at, key: key.to_vec(), end, near: None, stretch }
    }

    /// Goes on as another scan that has the end of this one: at a key, which is read if it is there
    /// (`Included`) or not (`Excluded`), in either direction. `Unbounded` is the start.
    pub fn go_on_at(&mut self, bound: Bound<&[u8]>) {
        match bound {
            Bound::Included(key) => self.set(At::Key, key),
            Bound::Excluded(key) => self.set(At::Past, key),
            Bound::Unbounded => self.set(At::Start, b""),
        }
        self.stretch = StretchId::default();
    }

    /// The same, at a key that may be in the leaf of the last read, which is looked at first.
    pub fn go_on_near(&mut self, key: &[u8]) {
        let near = self.near;
        self.go_on_at(Bound::Included(key));
        self.near = near;
    }

    /// The same, from behind all entries.
    pub fn go_on_at_end(&mut self) {
        self.set(At::End, b"");
        self.stretch = StretchId::default();
    }

    /// Says how far the scan is to go, in its direction, and takes back what was said before: they
    /// change places. A consistent read ends there, and so does a locking read that locks no gaps:
    /// what lies beyond it neither locks nor waits for. One that locks gaps goes on.
    pub fn swap_end(&mut self, end: &mut ScanEnd) {
        std::mem::swap(&mut self.end, end);
    }

    /// Whether the scan has an end.
    pub fn has_end(&self) -> bool {
        self.end.bound != Bound::Unbounded
    }

    /// Takes the end away.
    pub fn forget_end(&mut self) {
        self.end.set(Bound::Unbounded);
    }

    pub(super) fn is_beyond_end(&self, key: &[u8], direction: Direction) -> bool {
        match (self.end.get(), direction) {
            (Bound::Unbounded, _) => false,
            (Bound::Included(end), Direction::Forward) => key > end,
            (Bound::Excluded(end), Direction::Forward) => key >= end,
            (Bound::Included(end), Direction::Backward) => key < end,
            (Bound::Excluded(end), Direction::Backward) => key <= end,
        }
    }

    /// Of the slots still to be read of a leaf, those that the scan's end leaves. And whether the
    /// end is in this leaf: then nothing is wanted of the next one.
    fn within_end(
        &self,
        leaf: &LeafRef<'_>,
        (low, high): (usize, usize),
        direction: Direction,
    ) -> ((usize, usize), bool) {
        let (end, is_included) = match self.end.get() {
            Bound::Unbounded => return ((low, high), false),
            Bound::Included(end) => (end, true),
            Bound::Excluded(end) => (end, false),
        };
        match direction {
            Direction::Forward => {
                let goes_on = |fence| if is_included { fence <= end } else { fence < end };
                if leaf.upper_fence().is_some_and(goes_on) {
                    return ((low, high), false);
                }
                let past = match leaf.find(end) {
                    Ok(slot) => slot + usize::from(is_included),
                    Err(slot) => slot,
                };
                let high = high.min(past);
                ((low.min(high), high), true)
            }
            Direction::Backward => {
                if leaf.lower_fence() > end {
                    return ((low, high), false);
                }
                let first = match leaf.find(end) {
                    Ok(slot) => slot + usize::from(!is_included),
                    Err(slot) => slot,
                };
                let low = low.max(first);
                ((low, high.max(low)), true)
            }
        }
    }

    /// Where it is; none if nothing is left to read.
    pub(super) fn edge(&self) -> Option<Edge<'_>> {
        match self.at {
            At::Start => Some(Edge::START),
            At::End => Some(Edge::End),
            At::Key | At::Past => Some(Edge::At(&self.key)),
            At::Done => None,
        }
    }

    /// The edge at which a reading in this direction ends: the end that was set, or the tree's.
    pub(super) fn last_edge(&self, direction: Direction) -> Edge<'_> {
        match (self.end.get(), direction) {
            (Bound::Included(key) | Bound::Excluded(key), _) => Edge::At(key),
            (Bound::Unbounded, Direction::Forward) => Edge::End,
            (Bound::Unbounded, Direction::Backward) => Edge::START,
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

    pub(super) fn set(&mut self, at: At, key: &[u8]) {
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

    /// Latches the leaf of the last read without a descent, if more of it is to come, or what comes
    /// is in it; with the slots that are still to be read.
    #[inline]
    fn same_leaf<'t>(
        &self,
        tree: &'t Tree,
        direction: Direction,
        access: Access,
    ) -> Option<(LeafRef<'t>, (usize, usize))> {
        let before = direction == Direction::Backward;
        // Backward, the leaf of what is before a key need not be the key's.
        let near = self.near.filter(|_| self.at == At::Past || (self.at == At::Key && !before))?;
        let (leaf, found) = tree.hinted_shared(near, &self.key, before, access)?;
        let slots = self.slots_from(found, &leaf, direction);
        Some((leaf, slots))
    }

    /// Latches the leaf to read next, which is the one of the last read if more of it is to come;
    /// with the slots that are still to be read. None if nothing is left.
    #[inline]
    pub(super) fn leaf<'t>(
        &self,
        tree: &'t Tree,
        direction: Direction,
        access: Access,
    ) -> Result<Option<(LeafRef<'t>, (usize, usize))>> {
        if let Some(same) = self.same_leaf(tree, direction, access) {
            return Ok(Some(same));
        }
        let Some(seek) = self.seek(direction) else { return Ok(None) };
        let leaf = tree.leaf_shared(seek, access)?;
        let slots = self.slots(&leaf, direction);
        Ok(Some((leaf, slots)))
    }

    /// The slots of a leaf that are still to be read: going forward, from the first to the end;
    /// going backward, from the second down to the beginning.
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
    pub(super) fn leave(&mut self, leaf: &LeafRef<'_>, direction: Direction) {
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

/// What a scan gives of values too long for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LongValues {
    /// All of them.
    #[default]
    Whole,
    /// Only what the entries hold of them, up to 256 bytes
    /// ([`Cursor::is_cut`](crate::Cursor::is_cut)). Reads at READ UNCOMMITTED give all of them,
    /// which could not be had later.
    Prefix,
}

/// A step of a consistent read in key order: [`VersionedTree::scan`].
#[derive(Debug, Clone, Copy)]
pub struct ScanRequest {
    /// Which way.
    pub direction: Direction,
    /// Entries that the step gives at most.
    pub rows: usize,
    /// How the scan uses the buffer pool.
    pub access: Access,
    /// What it gives of long values.
    pub long_values: LongValues,
}

/// Where an entry of a batch is in its bytes. The key begins where the entry before ends; between
/// the key and the value there may be bytes that are of neither.
#[derive(Debug, Clone, Copy)]
struct Place {
    key_end: usize,
    value_start: usize,
    end: usize,
}

/// Entries read by one scan step.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    places: Vec<Place>,
    /// The entries whose value is only the beginning of it, in ascending order.
    cut: Vec<usize>,
    scratch: Vec<u8>,
}

impl Batch {
    /// Forgets all entries, keeping the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
        self.cut.clear();
    }

    /// Forgets all entries, and keeps no more than twice `bytes` bytes of memory.
    pub fn clear_and_keep(&mut self, bytes: usize) {
        self.clear();
        self.scratch.clear();
        self.bytes.shrink_to(bytes);
        self.scratch.shrink_to(bytes);
    }

    /// Entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Memory that it has, bytes, without the places.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.scratch.capacity()
    }

    #[inline]
    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.places[before].end)
    }

    /// Key and value of an entry.
    #[inline]
    pub fn entry(&self, at: usize) -> (&[u8], &[u8]) {
        let Place { key_end, value_start, end } = self.places[at];
        (&self.bytes[self.start(at)..key_end], &self.bytes[value_start..end])
    }

    /// Key of an entry.
    #[inline]
    pub fn key(&self, at: usize) -> &[u8] {
        self.entry(at).0
    }

    /// Value of an entry.
    #[inline]
    pub fn value(&self, at: usize) -> &[u8] {
        self.entry(at).1
    }

    /// Whether the value of an entry is only the beginning of it.
    #[inline]
    pub fn is_cut(&self, at: usize) -> bool {
        !self.cut.is_empty() && self.cut.binary_search(&at).is_ok()
    }

    /// Adds an entry of the tree with the value that it stands for, or the prefix of it that the
    /// entry holds.
    fn add(
        &mut self,
        tree: &VersionedTree,
        (key, flags): (&[u8], u8),
        value: &mut Vec<u8>,
        long_values: LongValues,
    ) -> Result<()> {
        match long_values {
            LongValues::Whole => tree.complete(flags, value)?,
            LongValues::Prefix => {
                if tree.cut(flags, value)? {
                    self.cut.push(self.places.len());
                }
            }
        }
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.places.push(Place { key_end, value_start: key_end, end: self.bytes.len() });
        Ok(())
    }

    /// Adds an entry whose value is the end of a cell, the whole of which is copied at once.
    #[inline]
    fn push(&mut self, prefix: &[u8], cell: Cell<'_>, value_len: usize) {
        self.bytes.reserve(prefix.len() + cell.bytes.len());
        if !prefix.is_empty() {
            self.bytes.extend_from_slice(prefix);
        }
        let key_end = self.bytes.len() + cell.suffix_len;
        self.bytes.extend_from_slice(cell.bytes);
        let end = self.bytes.len();
        self.places.push(Place { key_end, value_start: end - value_len, end });
    }
}

/// What a step leaves to be read without the leaf's latch: the entry whose key is in
/// [`LeafScan::key`]. It comes alone in its batch.
enum Deferred {
    /// Its value is long; the view keeps its overflow chain.
    LongValue(u8),
    /// Its visible version is far down the chain.
    Older(Walk),
}

/// What a step made of one entry.
enum Taken {
    /// Nothing: the view sees no version of it.
    Nothing,
    /// It is in the batch.
    Added,
    /// It is in the batch, and comes alone.
    AddedAlone,
    /// It is read without the latch, and is the batch's only one.
    Deferred(Deferred),
    /// It belongs to the next batch.
    NextBatch,
}

/// What a batch still takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Any entry: the batch is empty.
    ForAny,
    /// Entries that don't come alone.
    ForShort,
}

/// One step of a scan.
struct LeafScan<'a> {
    tree: &'a VersionedTree,
    trx: &'a TransactionCore,
    query: VersionQuery<'a>,
    view_is_dirty: bool,
    request: ScanRequest,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl VersionedTree {
    /// A consistent read of the next entries: appends those that the view sees to `batch`, at most
    /// `request.rows` and at most the rest of one leaf, and moves `position` past them.
    ///
    /// An entry with a long value that is read whole comes alone, and so does one whose version is
    /// far down the chain. An empty batch does not mean the end: [`ScanPosition::at_end`] does.
    pub fn scan(
        &self,
        trx: &mut TransactionCore,
        position: &mut ScanPosition,
        request: ScanRequest,
        batch: &mut Batch,
    ) -> Result<()> {
        trx.check_running()?;
        let view = trx.read_view();
        let trx = &*trx;
        let view_is_dirty = trx.isolation() == Isolation::ReadUncommitted;
        let long_values = if view_is_dirty { LongValues::Whole } else { request.long_values };
        let request = ScanRequest { long_values, ..request };
        let Some(seek) = position.seek(request.direction) else {
            position.at = At::Done;
            return Ok(());
        };
        let query = VersionQuery::new(self, trx, view);
        let (key, value) = (Vec::new(), std::mem::take(&mut batch.scratch));
        let mut step = LeafScan { tree: self, trx, query, view_is_dirty, request, key, value };
        let deferred = {
            let leaf = match position.leaf(&self.tree, request.direction, request.access) {
                Err(error)
                    if request.direction == Direction::Forward && step.passes_over(&error) =>
                {
                    match self.tree.beyond_broken(seek, error)? {
                        Some(key) => position.set(At::Key, &key),
                        None => position.at = At::Done,
                    }
                    return Ok(());
                }
                leaf => leaf?,
            };
            let (leaf, slots) = leaf.expect("a position that leads to a leaf");
            step.read_leaf(&leaf, slots, position, batch)?
        };
        let flags = match deferred {
            None => None,
            Some(Deferred::LongValue(flags)) => Some(flags),
            Some(Deferred::Older(walk)) => step.walk(view, walk)?,
        };
        if let Some(flags) = flags {
            step.add(batch, flags)?;
        }
        batch.scratch = step.value;
        Ok(())
    }
}

impl LeafScan<'_> {
    /// Reads the entries of the leaf from `position` on, which are at these slots, and moves it.
    fn read_leaf(
        &mut self,
        leaf: &LeafRef<'_>,
        slots: (usize, usize),
        position: &mut ScanPosition,
        batch: &mut Batch,
    ) -> Result<Option<Deferred>> {
        let ScanRequest { direction, rows, .. } = self.request;
        let before = batch.len();
        let ((mut low, mut high), has_end) = position.within_end(leaf, slots, direction);
        let (cells, prefix) = (leaf.node().cells(), leaf.node().prefix());
        let mut deferred = None;
        while low < high && batch.len() - before < rows {
            let slot = if direction == Direction::Forward { low } else { high - 1 };
            // Nearly always the newest version is the visible one, and the entry holds all of it:
            // it is copied once, and looked up once.
            let cell = cells.get(slot).expect("cell lies in the heap");
            let mut is_last = false;
            if let Some(entry) = Entry::decode(cell.payload())
                && entry.flags & (DELETED | OVERFLOW) == 0
                && self.query.sees(entry.trx_id)
                && !self.trx.system.is_in_doubt(entry.trx_id, entry.roll)
            {
                batch.push(prefix, cell, entry.value.len());
            } else {
                let room = if batch.len() == before { Room::ForAny } else { Room::ForShort };
                match self.take(leaf, slot, batch, room)? {
                    Taken::Nothing | Taken::Added => {}
                    Taken::AddedAlone => is_last = true,
                    Taken::Deferred(entry) => {
                        deferred = Some(entry);
                        is_last = true;
                    }
                    Taken::NextBatch => break,
                }
            }
            match direction {
                Direction::Forward => low += 1,
                Direction::Backward => high -= 1,
            }
            if is_last {
                break;
            }
        }
        if low < high {
            // The last one read is the neighbour of the next one.
            let last = if direction == Direction::Forward { low - 1 } else { high };
            leaf.key_at(last, &mut position.key);
            (position.at, position.near) = (At::Past, Some(leaf.hint(last)));
        } else if has_end {
            position.at = At::Done;
        } else {
            position.leave(leaf, direction);
        }
        Ok(deferred)
    }

    /// Reads an entry that takes more than copying its newest version.
    fn take(
        &mut self,
        leaf: &LeafRef<'_>,
        slot: usize,
        batch: &mut Batch,
        room: Room,
    ) -> Result<Taken> {
        let key = || {
            let mut key = Vec::new();
            leaf.key_at(slot, &mut key);
            key
        };
        let entry = LatchedEntry::of(leaf, slot);
        let version = match self.query.visible(entry, key, &mut self.value, LATCHED_VERSIONS) {
            Err(error) if self.passes_over(&error) => Version::Found(None),
            version => version?,
        };
        let flags = match version {
            Version::Found(None) => return Ok(Taken::Nothing),
            Version::Found(Some(flags)) => flags,
            Version::Older(_) if room == Room::ForShort => return Ok(Taken::NextBatch),
            Version::Older(walk) => {
                leaf.key_at(slot, &mut self.key);
                return Ok(Taken::Deferred(Deferred::Older(walk)));
            }
        };
        let is_long = flags & OVERFLOW != 0 && self.request.long_values == LongValues::Whole;
        if is_long && room == Room::ForShort {
            return Ok(Taken::NextBatch);
        }
        leaf.key_at(slot, &mut self.key);
        if is_long && !self.view_is_dirty {
            return Ok(Taken::Deferred(Deferred::LongValue(flags)));
        }
        // At READ UNCOMMITTED under the latch: a rollback frees an uncommitted version's chain.
        self.add(batch, flags)?;
        Ok(if is_long { Taken::AddedAlone } else { Taken::Added })
    }

    /// The flags of the visible version of an entry whose versions are many.
    fn walk(&mut self, view: ReadView, walk: Walk) -> Result<Option<u8>> {
        let (key, value) = (&self.key, &mut self.value);
        let walked = match self.query.walk(key, walk, value) {
            Ok(Walked::Found(flags)) => Ok(flags),
            Ok(Walked::Gone) => {
                self.tree.version_of(self.trx, view, (key, self.request.access), value)
            }
            Err(error) => Err(error),
        };
        match walked {
            Err(error) if self.passes_over(&error) => Ok(None),
            walked => walked,
        }
    }

    /// Adds the entry that was read to a batch, unless the rest of its value can't be read and the
    /// scan passes over that.
    fn add(&mut self, batch: &mut Batch, flags: u8) -> Result<()> {
        let (key, long_values) = ((&self.key[..], flags), self.request.long_values);
        match batch.add(self.tree, key, &mut self.value, long_values) {
            Err(error) if self.passes_over(&error) => Ok(()),
            added => added,
        }
    }

    /// Whether the scan goes on behind what it can't read, as `force_recovery` says; then the error
    /// log has it.
    fn passes_over(&self, error: &Error) -> bool {
        let passes_over =
            error.is_of_files() && self.trx.system.env.force_recovery().is_read_only();
        if passes_over {
            tracing::error!("{error}; a scan passes over what was there");
        }
        passes_over
    }
}
