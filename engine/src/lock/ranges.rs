//! Locks on closed ranges of keys, held to the transaction's end: how SERIALIZABLE keeps phantoms away.
//!
//! A range covers entries and gaps alike: a writer may not insert, change or delete at a key inside another owner's range, of whatever
//! mode; a locking read conflicts by mode. A scan extends its range as it moves; overlapping ranges of one owner melt
//! into one, so a scan holds one range however long it is.
//!
//! There are few: one for each scan of a SERIALIZABLE transaction, none otherwise. Hence a plain list a tree, and one
//! counter that says "none at all".

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::LockMode;
use super::owner::Owner;
use super::report::{Covers, LockRecord, LockRecords};

struct Range {
    owner: Arc<Owner>,
    mode: LockMode,
    /// First key covered.
    low: Box<[u8]>,
    /// Last key covered; none = to the end of the tree.
    high: Option<Box<[u8]>>,
}

impl Range {
    fn covers(&self, key: &[u8]) -> bool {
        *self.low <= *key && self.reaches(key)
    }

    /// Whether the range goes at least up to `key`.
    fn reaches(&self, key: &[u8]) -> bool {
        self.high.as_deref().is_none_or(|high| key <= high)
    }

    fn overlaps(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        self.reaches(low) && high.is_none_or(|high| *self.low <= *high)
    }
}

/// The table of range locks.
#[derive(Default)]
pub struct RangeLocks {
    /// Ranges in the table. Written under the mutex; read without it by those who have nothing to do if there is none. So it never says
    /// less than there are, not even while ranges melt into one: that happens with each step of a scan, which latches another leaf
    /// than whoever asks for a key that the scan has passed.
    count: AtomicUsize,
    trees: Mutex<HashMap<u32, Vec<Range>>>,
}

impl RangeLocks {
    /// Memory of the ranges held, about, bytes: there are few, and their keys are taken for 64 bytes each.
    pub fn memory_bytes(&self) -> u64 {
        (self.count.load(Ordering::Relaxed) * (size_of::<Range>() + 2 * 64)) as u64
    }

    /// Locks `low ..= high` (`None`: to the end) for `owner`. If others hold conflicting ranges, nothing is locked and
    /// they are returned: wait for the end of one and ask again.
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
        let ranges = trees.entry(tree).or_default();
        let blockers = conflicts(ranges, owner, low, high, mode);
        if !blockers.is_empty() {
            return Err(blockers);
        }
        let mine = |range: &Range| range.owner.number() == owner.number();
        // Answered before anything is taken out: a range of another mode may cover what is asked for, but not all that the ranges
        // of this mode cover with which it would melt.
        let is_covered = |range: &Range| {
            mine(range) && range.mode >= mode && *range.low <= *low && range.reaches_end(high)
        };
        if ranges.iter().any(is_covered) {
            return Ok(());
        }
        let mut new =
            Range { owner: Arc::clone(owner), mode, low: low.into(), high: high.map(Box::from) };
        self.count.fetch_add(1, Ordering::SeqCst);
        let (mut at, mut melted) = (0, 0);
        while at < ranges.len() {
            let old = &ranges[at];
            if mine(old) && old.mode == mode && old.overlaps(low, high) {
                let old = ranges.swap_remove(at);
                melted += 1;
                new.low = new.low.min(old.low);
                new.high = match (new.high, old.high) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                };
            } else {
                at += 1;
            }
        }
        ranges.push(new);
        self.count.fetch_sub(melted, Ordering::SeqCst);
        held.ranges = true;
        Ok(())
    }

    /// The others whose ranges forbid `owner` a lock of this mode on one key (a write is an exclusive one). To be asked under the
    /// latch on the key's leaf.
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
            Some(ranges) => conflicts(ranges, owner, key, Some(key), mode),
        }
    }

    /// Whether `owner` holds a range of at least this mode over `key`.
    pub fn holds(&self, owner: &Owner, tree: u32, key: &[u8], mode: LockMode) -> bool {
        self.count.load(Ordering::SeqCst) > 0
            && self.trees.lock().get(&tree).is_some_and(|ranges| {
                ranges.iter().any(|range| {
                    range.owner.number() == owner.number()
                        && range.mode >= mode
                        && range.covers(key)
                })
            })
    }

    /// Copies all locks.
    pub(super) fn report(&self, out: &mut LockRecords) {
        if self.is_empty() {
            return;
        }
        for (&tree, ranges) in self.trees.lock().iter() {
            for range in ranges {
                out.push(LockRecord {
                    owner: Arc::clone(&range.owner),
                    tree,
                    mode: range.mode,
                    granted: true,
                    covers: Covers::Range(range.low.clone(), range.high.clone()),
                    blockers: Vec::new(),
                });
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
        let mut trees = self.trees.lock();
        let mut gone = 0;
        trees.retain(|_, ranges| {
            let before = ranges.len();
            ranges.retain(|range| range.owner.number() != owner.number());
            gone += before - ranges.len();
            !ranges.is_empty()
        });
        self.count.fetch_sub(gone, Ordering::SeqCst);
    }
}

impl Range {
    fn reaches_end(&self, high: Option<&[u8]>) -> bool {
        match high {
            None => self.high.is_none(),
            Some(high) => self.reaches(high),
        }
    }
}

fn conflicts(
    ranges: &[Range],
    owner: &Owner,
    low: &[u8],
    high: Option<&[u8]>,
    mode: LockMode,
) -> Vec<Arc<Owner>> {
    let mut owners: Vec<Arc<Owner>> = Vec::new();
    for range in ranges {
        if range.owner.number() != owner.number()
            && range.mode.conflicts(mode)
            && range.overlaps(low, high)
            && !owners.iter().any(|other| other.number() == range.owner.number())
        {
            owners.push(Arc::clone(&range.owner));
        }
    }
    owners
}
