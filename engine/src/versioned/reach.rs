//! What the locking reads of a statement have read so far, and whether a row has moved behind them.
//!
//! # What a statement promises
//! A locking read takes the newest version of each entry that it meets, and below SERIALIZABLE it locks no gaps. So a row can move
//! from a place that the statement has yet to read to one that it has read: it matches all the time, and is met nowhere. The promise is:
//! *a row that matched when the statement began, and has matched ever since, is met, or the statement ends with
//! [`Error::RecordChanged`].* A row that began to match later may be met or not: those are phantoms, which only SERIALIZABLE keeps away.
//!
//! # How the statement finds out
//! - It has a **read point**: a view, opened before the statement first reads something that it leaves unlocked. The view keeps purge
//!   away from the delete-marks that others make from then on, and from these transactions' undo logs.
//! - It notes the **stretches** of trees that it has read: where each scan began and how far it has come, and which keys it has looked up in vain.
//! - A row that moves leaves a delete-mark where it was, whose undo record says that it moved. When the statement meets one that was committed after the read point, it asks the
//!   undo log of the transaction that made it whether that one inserted an entry into a stretch of the same tree, too. If so, the row may have
//!   gone there: the statement ends. If not, the row went where the statement doesn't look, or went where it is still to come.
//!
//! An entry that was inserted before the statement came by has been met. So when the statement first meets an entry of such a transaction, it
//! notes that its commit is visible from here on ([`Reach::meet`]): only stretches read earlier can have been read too early.
//!
//! # Latches
//! Stretches are noted under the leaf's latch. Undo logs are read without any.

use std::cmp::Ordering;
use std::collections::hash_map::Entry::Vacant;
use std::collections::{BTreeMap, HashMap};

use super::VersionedTree;
use crate::csn::TrxId;
use crate::error::{Error, Result};
use crate::format::entry::{DELETED, Entry, RollPointer};
use crate::trx::TransactionCore;
use crate::undo::record::{Body, MARK_MOVED};

/// Stretches that are kept apart. Of more, those of one tree become one, and what is between them counts as read.
const STRETCHES_MAX: usize = 1024;
/// Keys that are kept of what one transaction has written behind a statement.
const KEYS_MAX: usize = 100_000;
/// Undo records that are read before it is asked whether the reader is to go on.
const UNASKED_RECORDS: u32 = 1024;

/// A place in a tree: at a key, or behind all keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edge<'a> {
    At(&'a [u8]),
    End,
}

impl Edge<'_> {
    /// Before all keys.
    pub(super) const START: Edge<'static> = Edge::At(b"");

    fn cmp(self, other: Edge<'_>) -> Ordering {
        match (self, other) {
            (Edge::At(own), Edge::At(other)) => own.cmp(other),
            (Edge::At(_), Edge::End) => Ordering::Less,
            (Edge::End, Edge::At(_)) => Ordering::Greater,
            (Edge::End, Edge::End) => Ordering::Equal,
        }
    }
}

/// An [`Edge`] that is kept. Its memory is used again.
#[derive(Debug, Clone, Default)]
struct KeptEdge {
    key: Vec<u8>,
    is_end: bool,
}

impl KeptEdge {
    fn set(&mut self, edge: Edge<'_>) {
        self.key.clear();
        self.is_end = edge == Edge::End;
        if let Edge::At(key) = edge {
            self.key.extend_from_slice(key);
        }
    }

    fn get(&self) -> Edge<'_> {
        if self.is_end { Edge::End } else { Edge::At(&self.key) }
    }
}

/// How an entry is come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// In the order of an index.
    Scan,
    /// By its key.
    Lookup,
}

/// A tree, and the space of its table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    tree: u32,
    space: u32,
}

impl Place {
    fn of(tree: &VersionedTree) -> Place {
        Place { tree: tree.id(), space: tree.tree.space().id() }
    }
}

/// A part of a tree that was read, both ends included.
#[derive(Debug, Clone)]
struct Stretch {
    place: Place,
    reading: Reading,
    /// The [`Reach::clock`] at which it was read.
    clock: u64,
    low: KeptEdge,
    high: KeptEdge,
}

impl Stretch {
    fn take_in(&mut self, edge: Edge<'_>) {
        if edge.cmp(self.low.get()).is_lt() {
            self.low.set(edge);
        }
        if edge.cmp(self.high.get()).is_gt() {
            self.high.set(edge);
        }
    }

    fn covers(&self, tree: u32, key: &[u8]) -> bool {
        let key = Edge::At(key);
        self.place.tree == tree
            && self.low.get().cmp(key).is_le()
            && self.high.get().cmp(key).is_ge()
    }
}

/// Which stretch a reading extends; it is void once the statement that it is of has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StretchId {
    /// [`Reach::statement`], which begins with 1.
    statement: u64,
    at: usize,
}

/// What is known of a transaction that committed after the read point, or has a lock that the statement left out.
#[derive(Debug)]
enum Meeting {
    /// What was read from this [`Reach::clock`] on was read with all that it has inserted.
    At(u64),
    /// Where it has inserted behind the statement; later it can't, for it has committed.
    Behind(Vec<(Place, Reading)>),
}

/// What the locking reads of the present statement have read.
#[derive(Debug)]
pub(crate) struct Reach {
    statement: u64,
    /// The first `used` are of this statement.
    stretches: Vec<Stretch>,
    used: usize,
    /// Goes on each time the statement first meets a transaction that committed after its read point.
    clock: u64,
    /// Those that it met.
    met: HashMap<TrxId, Meeting>,
}

impl Default for Reach {
    fn default() -> Self {
        Reach { statement: 1, stretches: Vec::new(), used: 0, clock: 1, met: HashMap::new() }
    }
}

impl Reach {
    /// Another statement begins.
    pub(crate) fn clear(&mut self) {
        self.statement += 1;
        self.used = 0;
        self.clock = 1;
        self.met.clear();
    }

    /// A scan of `tree` that was at `from` has come to `to`.
    pub(super) fn extend(
        &mut self,
        stretch: &mut StretchId,
        tree: &VersionedTree,
        from: Edge<'_>,
        to: Edge<'_>,
    ) {
        self.extend_in(Place::of(tree), stretch, from, to);
    }

    fn extend_in(&mut self, place: Place, stretch: &mut StretchId, from: Edge<'_>, to: Edge<'_>) {
        if stretch.statement == self.statement {
            let own = &mut self.stretches[stretch.at];
            if own.clock == self.clock {
                own.take_in(to);
                return;
            }
        }
        let at = self.add(place, Reading::Scan, from);
        *stretch = StretchId { statement: self.statement, at };
        self.stretches[at].take_in(to);
    }

    /// A key of `tree` was looked up, and is not there.
    fn add_absent(&mut self, tree: &VersionedTree, key: &[u8]) {
        self.add(Place::of(tree), Reading::Lookup, Edge::At(key));
    }

    /// Adds a stretch that is only an edge so far; gives its position.
    fn add(&mut self, place: Place, reading: Reading, edge: Edge<'_>) -> usize {
        if self.used == STRETCHES_MAX {
            self.merge();
        }
        if self.used == self.stretches.len() {
            let (low, high) = (KeptEdge::default(), KeptEdge::default());
            self.stretches.push(Stretch { place, reading, clock: 0, low, high });
        }
        let new = &mut self.stretches[self.used];
        (new.place, new.reading, new.clock) = (place, reading, self.clock);
        new.low.set(edge);
        new.high.set(edge);
        self.used += 1;
        self.used - 1
    }

    /// Makes one stretch of all that are of one tree and were read in one way. Scans begin new ones.
    fn merge(&mut self) {
        let mut merged: Vec<Stretch> = Vec::new();
        for stretch in self.stretches.drain(..) {
            let is_same = |other: &&mut Stretch| {
                (other.place, other.reading) == (stretch.place, stretch.reading)
            };
            match merged.iter_mut().find(is_same) {
                Some(other) => {
                    other.clock = other.clock.min(stretch.clock);
                    other.take_in(stretch.low.get());
                    other.take_in(stretch.high.get());
                }
                None => merged.push(stretch),
            }
        }
        self.used = merged.len();
        self.stretches = merged;
        self.statement += 1;
    }

    /// The statement meets an entry by `writer`, which committed after its read point.
    fn meet(&mut self, writer: TrxId) {
        if let Vacant(place) = self.met.entry(writer) {
            self.clock += 1;
            place.insert(Meeting::At(self.clock));
        }
    }

    /// The statement leaves out an entry that `writer` has locked, for that is what it was asked to do.
    fn leave_out(&mut self, writer: TrxId) {
        self.met.entry(writer).or_insert(Meeting::Behind(Vec::new()));
    }

    /// The stretches that were read before `clock`.
    fn before(&self, clock: u64) -> impl Iterator<Item = &Stretch> {
        self.stretches[..self.used].iter().filter(move |stretch| stretch.clock < clock)
    }
}

/// A delete-mark that was committed after a statement's read point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Departure {
    writer: TrxId,
    /// The record of the deletion.
    roll: RollPointer,
    reading: Reading,
}

impl TransactionCore {
    /// Whether a version that is certain was committed by another transaction after the read point of the statement.
    #[inline]
    fn is_newer_than_statement(&self, writer: TrxId) -> bool {
        self.read_point()
            .is_some_and(|point| writer != self.id() && !point.sees(&self.system.csn, writer))
    }

    /// A locking read has looked up a key of `tree` that is not there, and has the latch of the leaf that would hold it.
    pub(super) fn note_absent(&mut self, tree: &VersionedTree, key: &[u8]) {
        // None can have been inserted and committed here between the look and the view.
        self.open_read_point();
        self.reach.add_absent(tree, key);
    }

    /// A locking read meets an entry by `writer`, and has its lock.
    #[inline]
    pub(super) fn meet(&mut self, writer: TrxId) {
        if self.is_newer_than_statement(writer) {
            self.reach.meet(writer);
        }
    }

    /// A locking read leaves out an entry that another has locked.
    pub(super) fn leave_out(&mut self, entry: &Entry<'_>) {
        self.open_read_point();
        if self.is_written_by_other(entry) {
            self.reach.leave_out(entry.trx_id);
        }
    }

    /// What is to be asked about a delete-mark that is certain and by another, if anything: [`Self::check_departure`].
    pub(super) fn departure(&self, entry: &Entry<'_>, reading: Reading) -> Option<Departure> {
        debug_assert!(entry.is_deleted());
        let departure = Departure { writer: entry.trx_id, roll: entry.roll, reading };
        self.is_newer_than_statement(entry.trx_id).then_some(departure)
    }

    /// An error if the transaction that moved an entry of `tree` away has inserted one where this statement had read before. No latch may be
    /// held.
    ///
    /// In another tree of the same table only scans count: of a lookup there, an entry of this tree was the reason.
    pub(super) fn check_departure(
        &mut self,
        tree: &VersionedTree,
        departure: Departure,
    ) -> Result<()> {
        let Departure { writer, roll, reading } = departure;
        self.reach.meet(writer);
        if self.system.undo.read(roll, |record| Ok(record.marks & MARK_MOVED == 0))? {
            return Ok(());
        }
        if let Some(&Meeting::At(clock)) = self.reach.met.get(&writer) {
            let behind = self.inserted_behind(writer, roll, clock)?;
            self.reach.met.insert(writer, Meeting::Behind(behind));
        }
        let Some(Meeting::Behind(behind)) = self.reach.met.get(&writer) else {
            unreachable!("it has just been found out");
        };
        let own = Place::of(tree);
        let both_scan = |other: Reading| (reading, other) == (Reading::Scan, Reading::Scan);
        let may_have_come = |(place, other): &(Place, Reading)| {
            *place == own || place.space == own.space && both_scan(*other)
        };
        if behind.iter().any(may_have_come) { Err(Error::RecordChanged) } else { Ok(()) }
    }

    /// Where `writer`, one of whose records is at `roll`, has inserted entries into what the statement had read before `clock`.
    fn inserted_behind(
        &self,
        writer: TrxId,
        roll: RollPointer,
        clock: u64,
    ) -> Result<Vec<(Place, Reading)>> {
        let mut behind = Vec::new();
        if self.reach.before(clock).next().is_none() {
            return Ok(behind);
        }
        let undo = &self.system.undo;
        let log = undo.log_around(roll)?;
        if log.record.trx_id != writer {
            return Err(undo.corrupt(log.start.page, "an undo log of another transaction"));
        }
        // Of the keys behind: whether it has found an entry there, and whether it has left one.
        let mut keys: BTreeMap<(u32, Vec<u8>), (bool, bool)> = BTreeMap::new();
        let mut records = 0;
        undo.for_each_record(log.stream, log.start, log.record.end, |_, record| {
            records += 1;
            if records % UNASKED_RECORDS == 0 {
                self.check_interrupt()?;
            }
            let (at, found, left) = match record.body {
                Body::Insert(at) => (at, false, true),
                Body::Update(at, prior) => (at, prior.flags & DELETED == 0, true),
                Body::Delete(at, _) => (at, true, false),
                _ => return Ok(()),
            };
            let is_behind = |stretch: &Stretch| stretch.covers(at.tree, at.key);
            if self.reach.before(clock).any(is_behind) && keys.len() <= KEYS_MAX {
                keys.entry((at.tree, at.key.to_vec())).or_insert((found, left)).1 = left;
            }
            Ok(())
        })?;
        // Of more than can be kept, some will have been inserted.
        let is_full = keys.len() > KEYS_MAX;
        let inserted = |state: &(bool, bool)| is_full || *state == (false, true);
        for (tree, key) in keys.iter().filter(|(_, state)| inserted(state)).map(|(key, _)| key) {
            for stretch in self.reach.before(clock).filter(|stretch| stretch.covers(*tree, key)) {
                let found = (stretch.place, stretch.reading);
                if !behind.contains(&found) {
                    behind.push(found);
                }
            }
        }
        Ok(behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: Place = Place { tree: 7, space: 1 };

    fn extend(reach: &mut Reach, stretch: &mut StretchId, from: &[u8], to: Edge<'_>) {
        reach.extend_in(TREE, stretch, Edge::At(from), to);
    }

    fn covers(reach: &Reach, clock: u64, key: &[u8]) -> bool {
        reach.before(clock).any(|stretch| stretch.covers(TREE.tree, key))
    }

    #[test]
    fn a_scan_covers_what_is_between_its_beginning_and_where_it_has_come() {
        let (mut reach, mut forward, mut backward) =
            (Reach::default(), StretchId::default(), StretchId::default());
        extend(&mut reach, &mut forward, b"c", Edge::At(b"e"));
        extend(&mut reach, &mut forward, b"e", Edge::At(b"g"));
        extend(&mut reach, &mut backward, b"r", Edge::At(b"p"));
        reach.extend_in(TREE, &mut backward, Edge::At(b"p"), Edge::At(b"n"));
        assert_eq!(reach.used, 2);
        for (key, expected) in [(b"b", false), (b"c", true), (b"f", true), (b"h", false)] {
            assert_eq!(covers(&reach, 2, key), expected, "{key:?}");
        }
        assert!(covers(&reach, 2, b"o") && !covers(&reach, 2, b"m") && !covers(&reach, 2, b"s"));
        assert!(!reach.before(2).any(|stretch| stretch.covers(8, b"d")), "of another tree");
        extend(&mut reach, &mut forward, b"g", Edge::End);
        assert!(covers(&reach, 2, b"zzz"));
    }

    #[test]
    fn what_is_read_after_a_meeting_is_kept_apart() {
        let (mut reach, mut scan) = (Reach::default(), StretchId::default());
        extend(&mut reach, &mut scan, b"a", Edge::At(b"c"));
        reach.meet(TrxId(5));
        extend(&mut reach, &mut scan, b"c", Edge::At(b"e"));
        reach.meet(TrxId(5));
        extend(&mut reach, &mut scan, b"e", Edge::At(b"g"));
        let Some(&Meeting::At(clock)) = reach.met.get(&TrxId(5)) else { panic!("it was met") };
        assert!(covers(&reach, clock, b"b") && !covers(&reach, clock, b"d"));
        assert!(covers(&reach, clock + 1, b"f"));
        assert_eq!(reach.used, 2);
    }

    #[test]
    fn another_statement_begins_with_nothing() {
        let (mut reach, mut scan) = (Reach::default(), StretchId::default());
        extend(&mut reach, &mut scan, b"a", Edge::At(b"c"));
        reach.meet(TrxId(5));
        reach.clear();
        assert!(!covers(&reach, u64::MAX, b"b") && reach.met.is_empty());
        // A scan that goes on, of a cursor that outlives its statement, begins a stretch of its own.
        extend(&mut reach, &mut scan, b"x", Edge::At(b"y"));
        assert!(covers(&reach, 2, b"x") && !covers(&reach, 2, b"c"));
    }

    #[test]
    fn too_many_stretches_become_one() {
        let (mut reach, mut scan) = (Reach::default(), StretchId::default());
        extend(&mut reach, &mut scan, b"a", Edge::At(b"b"));
        for n in 0..3 * STRETCHES_MAX as u32 {
            reach.add(TREE, Reading::Lookup, Edge::At(&n.to_be_bytes()));
            extend(&mut reach, &mut scan, b"b", Edge::At(b"b"));
            assert!(reach.used <= STRETCHES_MAX);
            assert!(covers(&reach, 2, &n.to_be_bytes()) && covers(&reach, 2, b"a"), "{n}");
        }
    }
}
