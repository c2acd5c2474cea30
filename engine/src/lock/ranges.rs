//! Locks on closed ranges of keys, held to the transaction's end: how SERIALIZABLE keeps phantoms
//! away.
//!
//! A range covers entries and gaps alike: a writer may not insert, change or delete at a key inside
//! another owner's range, of whatever mode; a locking read conflicts by mode. A scan extends its
//! range as it moves; overlapping ranges of one owner melt into one, so a scan holds one range
//! however long it is.
//!
//! A join that looks into an index for each row of another table leaves a range each time, and so
//! does each key that is not there. So those of an owner are kept in their order: of one mode no
//! two overlap, and one look shows whether any covers a key. Owners of ranges are few, and one
//! counter says "none at all".

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::LockMode;
use super::owner::Owner;
use super::report::{Covers, LockRecord, LockRecords};

/// Memory of a range beside its keys' bytes, about: its place in a node of the tree, of which a
/// third is empty, and what the allocator adds to each key.
pub(super) const RANGE_BYTES: usize = 2 * size_of::<Option<Box<[u8]>>>() * 3 / 2 + 2 * 16;

/// Ranges of one mode that don't overlap.
#[derive(Default)]
struct Ranges {
    /// The last key covered (none = to the end of the tree) by the first.
    by_first: BTreeMap<Box<[u8]>, Option<Box<[u8]>>>,
    /// Bytes of the keys.
    key_bytes: usize,
}

impl Ranges {
    /// The last range that begins at `key` or before; none: the last of all.
    fn last_from(&self, key: Option<&[u8]>) -> Option<(&[u8], Option<&[u8]>)> {
        let (low, high) = self.by_first.range::<[u8], _>(up_to(key)).next_back()?;
        Some((low, high.as_deref()))
    }

    /// Whether one has a key in common with `low ..= high`. Of those that begin in time the last
    /// one ends last.
    fn overlap(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        self.last_from(high).is_some_and(|(_, last)| reaches(last, Some(low)))
    }

    /// Whether one covers all of `low ..= high`.
    fn cover(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        self.last_from(Some(low)).is_some_and(|(_, last)| reaches(last, high))
    }

    /// Adds a range, with which all melt that it overlaps: says how many.
    fn add(&mut self, low: &[u8], high: Option<&[u8]>) -> usize {
        let len_of = |key: &Option<Box<[u8]>>| key.as_ref().map_or(0, |key| key.len());
        let mut end = high.map(Box::from);
        let mut melted = 0;
        loop {
            let last = self.by_first.range_mut::<[u8], _>(up_to(high)).next_back();
            let Some((first, last)) = last.filter(|(_, last)| reaches(last.as_deref(), Some(low)))
            else {
                self.key_bytes += low.len() + len_of(&end);
                self.by_first.insert(low.into(), end);
                return melted;
            };
            melted += 1;
            self.key_bytes -= len_of(last);
            end = last.take().zip(end).map(|(a, b): (Box<[u8]>, _)| a.max(b));
            if **first <= *low {
                // Any other ends before it.
                self.key_bytes += len_of(&end);
                *last = end;
                return melted;
            }
            self.key_bytes -= first.len();
            let first = first.clone();
            self.by_first.remove(&first);
        }
    }
}

fn up_to(key: Option<&[u8]>) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, key.map_or(Bound::Unbounded, Bound::Included))
}

/// Whether a range that ends at `last` goes at least up to `key`; none is the end of the tree.
fn reaches(last: Option<&[u8]>, key: Option<&[u8]>) -> bool {
    match (last, key) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(last), Some(key)) => key <= last,
    }
}

/// What one owner has locked in a tree. A range of one mode may overlap those of the other.
struct Owned {
    owner: Arc<Owner>,
    shared: Ranges,
    exclusive: Ranges,
}

impl Owned {
    fn of_mode(&mut self, mode: LockMode) -> &mut Ranges {
        match mode {
            LockMode::Exclusive => &mut self.exclusive,
            _ => &mut self.shared,
        }
    }

    /// Whether a range of at least this mode covers all of `low ..= high`.
    fn cover(&self, low: &[u8], high: Option<&[u8]>, mode: LockMode) -> bool {
        self.exclusive.cover(low, high) || mode == LockMode::Shared && self.shared.cover(low, high)
    }

    /// Whether a range forbids others a lock of this mode on `low ..= high`.
    fn forbid(&self, low: &[u8], high: Option<&[u8]>, mode: LockMode) -> bool {
        self.exclusive.overlap(low, high)
            || mode == LockMode::Exclusive && self.shared.overlap(low, high)
    }

    fn len(&self) -> usize {
        self.shared.by_first.len() + self.exclusive.by_first.len()
    }

    fn key_bytes(&self) -> usize {
        self.shared.key_bytes + self.exclusive.key_bytes
    }
}

/// The table of range locks.
#[derive(Default)]
pub struct RangeLocks {
    /// Ranges in the table. Written under the mutex; read without it by those who have nothing to
    /// do if there is none. So it never says less than there are, not even while ranges melt into
    /// one: that happens with each step of a scan, which latches another leaf than a thread that
    /// asks for a key that the scan has passed.
    count: AtomicUsize,
    /// Bytes of their keys. Written under the mutex.
    key_bytes: AtomicUsize,
    trees: Mutex<HashMap<u32, Vec<Owned>>>,
}

impl RangeLocks {
    /// Memory of the ranges held, about, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let ranges = self.count.load(Ordering::Relaxed) * RANGE_BYTES;
        (ranges + self.key_bytes.load(Ordering::Relaxed)) as u64
    }

    /// Locks `low ..= high` (`None`: to the end) for `owner`. If others hold conflicting ranges,
    /// nothing is locked and they are returned: wait for the end of one and ask again.
    pub fn acquire(
        &self,
        owner: &Arc<Owner>,
        tree: u32,
        low: &[u8],
        high: Option<&[u8]>,
        mode: LockMode,
    ) -> Result<(), Vec<Arc<Owner>>> {
        debug_assert!(mode != LockMode::None && high.is_none_or(|high| low <= high));
        let mut held = owner.held.lock();
        let mut trees = self.trees.lock();
        let owners = trees.entry(tree).or_default();
        let blockers = conflicts(owners, owner, low, high, mode);
        if !blockers.is_empty() {
            return Err(blockers);
        }
        let mine = owners.iter().position(|one| one.owner.number() == owner.number());
        let mine = mine.unwrap_or_else(|| {
            let (shared, exclusive) = (Ranges::default(), Ranges::default());
            owners.push(Owned { owner: Arc::clone(owner), shared, exclusive });
            owners.len() - 1
        });
        // Answered before anything is taken out: a range of another mode may cover what is asked
        // for, but not all that the ranges of this mode cover with which it would melt.
        if owners[mine].cover(low, high, mode) {
            return Ok(());
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        let ranges = owners[mine].of_mode(mode);
        let before = ranges.key_bytes;
        let melted = ranges.add(low, high);
        let key_bytes = self.key_bytes.load(Ordering::Relaxed) - before + ranges.key_bytes;
        self.key_bytes.store(key_bytes, Ordering::Relaxed);
        let before = self.count.fetch_sub(melted, Ordering::SeqCst);
        assert!(before > melted, "ranges are counted when they are added");
        debug_assert!(owners[mine].cover(low, high, mode), "the range is locked");
        held.ranges = true;
        Ok(())
    }

    /// The others whose ranges forbid `owner` a lock of this mode on one key (a write is an
    /// exclusive one). To be asked under the latch on the key's leaf.
    pub fn blockers(
        &self,
        owner: &Owner,
        tree: u32,
        key: &[u8],
        mode: LockMode,
    ) -> Vec<Arc<Owner>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        match self.trees.lock().get(&tree) {
            None => Vec::new(),
            Some(owners) => conflicts(owners, owner, key, Some(key), mode),
        }
    }

    /// Whether `owner` holds a range of at least this mode over `key`.
    #[cfg(test)]
    pub fn holds(&self, owner: &Owner, tree: u32, key: &[u8], mode: LockMode) -> bool {
        self.count.load(Ordering::SeqCst) > 0
            && self.trees.lock().get(&tree).is_some_and(|owners| {
                let mut mine = owners.iter().filter(|one| one.owner.number() == owner.number());
                mine.any(|one| one.cover(key, Some(key), mode))
            })
    }

    /// Copies all locks.
    pub(super) fn report(&self, out: &mut LockRecords) {
        if self.is_empty() {
            return;
        }
        for (&tree, owners) in self.trees.lock().iter() {
            for Owned { owner, shared, exclusive } in owners {
                for (mode, ranges) in [(LockMode::Shared, shared), (LockMode::Exclusive, exclusive)]
                {
                    for (low, high) in &ranges.by_first {
                        if out.is_full() {
                            return;
                        }
                        out.push(LockRecord {
                            owner: Arc::clone(owner),
                            tree,
                            mode,
                            granted: true,
                            covers: Covers::Range(low.clone(), high.clone()),
                            blockers: Vec::new(),
                        });
                    }
                }
            }
        }
    }

    /// Ranges locked.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether no range is locked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn release(&self, owner: &Owner) {
        let mut gone = Vec::new();
        let mut trees = self.trees.lock();
        trees.retain(|_, owners| {
            let mine = owners.iter().position(|one| one.owner.number() == owner.number());
            gone.extend(mine.map(|mine| owners.swap_remove(mine)));
            !owners.is_empty()
        });
        let count = gone.iter().map(Owned::len).sum();
        let key_bytes = gone.iter().map(Owned::key_bytes).sum::<usize>();
        self.key_bytes.fetch_sub(key_bytes, Ordering::Relaxed);
        let before = self.count.fetch_sub(count, Ordering::SeqCst);
        assert!(before >= count, "ranges are counted when they are added");
        // Before many are given back, which takes a while.
        drop(trees);
        drop(gone);
    }
}

fn conflicts(
    owners: &[Owned],
    owner: &Owner,
    low: &[u8],
    high: Option<&[u8]>,
    mode: LockMode,
) -> Vec<Arc<Owner>> {
    let others = owners.iter().filter(|one| one.owner.number() != owner.number());
    others.filter(|one| one.forbid(low, high, mode)).map(|one| Arc::clone(&one.owner)).collect()
}
