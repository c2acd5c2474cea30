//! What the locking reads of a statement that lock no gaps have read so far, and which transactions
//! they met: `versioned::moved_row` says what that is for.
//!
//! A [`Reach`] holds *stretches* of trees: where each scan began and how far it has come, and which
//! keys the statement looked up in vain. Its clock goes on each time the statement first meets a
//! transaction that committed after the statement's read point; a stretch keeps the clock at which
//! it was read.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry::Vacant;

use crate::csn::TrxId;

/// Stretches that are kept apart, at least. Of more, those of one tree become one, and what is
/// between them counts as read.
const STRETCHES_MAX: usize = 1024;

/// A place in a tree: at a key, or behind all keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge<'a> {
    At(&'a [u8]),
    End,
}

impl Edge<'_> {
    /// Before all keys.
    pub(crate) const START: Edge<'static> = Edge::At(b"");

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reading {
    /// In the order of an index.
    Scan,
    /// By its key.
    Lookup,
    /// By its key, which a search has found
    /// ([`set_searching`](crate::trx::TransactionCore::set_searching)).
    Found,
}

/// A tree, and the space of its table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub tree: u32,
    pub space: u32,
}

/// A part of a tree that was read, both ends included.
#[derive(Debug, Clone)]
pub(crate) struct Stretch {
    pub place: Place,
    pub reading: Reading,
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

    pub(crate) fn covers(&self, tree: u32, key: &[u8]) -> bool {
        let key = Edge::At(key);
        self.place.tree == tree
            && self.low.get().cmp(key).is_le()
            && self.high.get().cmp(key).is_ge()
    }
}

/// Which stretch a reading extends; it is void once the statement that it is of has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StretchId {
    /// [`Reach::statement`], which begins with 1.
    statement: u64,
    at: usize,
}

/// What is known of a transaction that committed after the read point, or has a lock that the
/// statement left out.
#[derive(Debug)]
pub(crate) enum Meeting {
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
    /// With this many the next one has them merged. At least twice as many as a merge has left:
    /// what it takes to merge them is little for each that was added.
    merge_at: usize,
    /// Goes on each time the statement first meets a transaction that committed after its read
    /// point.
    clock: u64,
    /// Those that it met.
    pub(crate) met: HashMap<TrxId, Meeting>,
}

impl Default for Reach {
    fn default() -> Self {
        Reach {
            statement: 1,
            stretches: Vec::new(),
            used: 0,
            merge_at: STRETCHES_MAX,
            clock: 1,
            met: HashMap::new(),
        }
    }
}

impl Reach {
    /// Another statement begins.
    pub(crate) fn clear(&mut self) {
        self.statement += 1;
        self.used = 0;
        if self.merge_at > STRETCHES_MAX {
            self.merge_at = STRETCHES_MAX;
            self.stretches.truncate(STRETCHES_MAX);
        }
        self.clock = 1;
        self.met.clear();
    }

    /// A scan of the tree that was at `from` has come to `to`.
    pub(crate) fn extend(
        &mut self,
        stretch: &mut StretchId,
        place: Place,
        from: Edge<'_>,
        to: Edge<'_>,
    ) {
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

    /// A key of the tree was looked up, and is not there.
    pub(crate) fn add_absent(&mut self, place: Place, key: &[u8]) {
        self.add(place, Reading::Lookup, Edge::At(key));
    }

    /// Adds a stretch that is only an edge so far; gives its position.
    fn add(&mut self, place: Place, reading: Reading, edge: Edge<'_>) -> usize {
        if self.used >= self.merge_at {
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

    /// Makes one stretch of all that are of one tree and were read in one way. Scans begin new
    /// ones.
    fn merge(&mut self) {
        let mut merged: Vec<Stretch> = Vec::new();
        let mut places = HashMap::new();
        for stretch in self.stretches.drain(..) {
            let at = *places.entry((stretch.place, stretch.reading)).or_insert(merged.len());
            match merged.get_mut(at) {
                Some(other) => {
                    other.clock = other.clock.min(stretch.clock);
                    other.take_in(stretch.low.get());
                    other.take_in(stretch.high.get());
                }
                None => merged.push(stretch),
            }
        }
        self.used = merged.len();
        self.merge_at = STRETCHES_MAX.max(2 * self.used);
        self.stretches = merged;
        self.statement += 1;
    }

    /// The statement meets an entry by `writer`, which committed after its read point.
    pub(crate) fn meet(&mut self, writer: TrxId) {
        if let Vacant(place) = self.met.entry(writer) {
            self.clock += 1;
            place.insert(Meeting::At(self.clock));
        }
    }

    /// The statement leaves out an entry that `writer` has locked, for that is what it was asked to
    /// do.
    pub(crate) fn leave_out(&mut self, writer: TrxId) {
        self.met.entry(writer).or_insert(Meeting::Behind(Vec::new()));
    }

    /// The stretches that were read before `clock`.
    pub(crate) fn before(&self, clock: u64) -> impl Iterator<Item = &Stretch> {
        self.stretches[..self.used].iter().filter(move |stretch| stretch.clock < clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: Place = Place { tree: 7, space: 1 };

    fn extend(reach: &mut Reach, stretch: &mut StretchId, from: &[u8], to: Edge<'_>) {
        reach.extend(stretch, TREE, Edge::At(from), to);
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
        reach.extend(&mut backward, TREE, Edge::At(b"p"), Edge::At(b"n"));
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
        // A scan that goes on, of a cursor that outlives its statement, begins a stretch of its
        // own.
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

    #[test]
    fn stretches_of_many_trees_stay_a_few_for_each() {
        const TREES: usize = STRETCHES_MAX + 500;
        let mut reach = Reach::default();
        for n in 0..20 * TREES {
            let place = Place { tree: (n % TREES) as u32, space: 1 };
            reach.add_absent(place, &n.to_be_bytes());
            assert!(reach.used <= 2 * TREES, "{n}: {} stretches", reach.used);
        }
        for n in [0, 1, TREES, 20 * TREES - 1] {
            let (tree, key) = ((n % TREES) as u32, n.to_be_bytes());
            assert!(reach.before(2).any(|stretch| stretch.covers(tree, &key)), "{n}");
        }
        reach.clear();
        assert!(reach.stretches.len() <= STRETCHES_MAX);
    }
}
