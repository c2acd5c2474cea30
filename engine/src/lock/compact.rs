//! Compact locks: a transaction's further exclusive locks, as bits instead of queue entries.
//!
//! A locking read of a million rows takes a million exclusive locks. A statement that has changed
//! as many rows and is taken back leaves as many behind, since the entries no longer carry the
//! lock. As entries of the key-lock table they would take hundreds of bytes each. So the first
//! `QUEUED_LOCKS_MAX` locks of an owner are ordinary queue entries, and the further ones are
//! hashes in a set that the owner has. A request that meets one makes the queue entry on the
//! owner's behalf and waits there, as with the implicit lock of a written entry.
//!
//! Two keys with one hash are both locked: one lock too many, which does no harm. (One too few is
//! possible only if the first of two such keys is given up when the second has just been locked.
//! Only the locks of the two newest locking reads can be given up, and hashes have 64 bits and a
//! key that each process draws anew.)
//!
//! Keys that differ in the last six bits share a hash, and have a bit each. So rows that are
//! numbered one by one take a quarter of a byte each when a scan locks them, and sixty-four in turn
//! use the same place in memory.
//!
//! There are few sets, since an owner has one only beyond `QUEUED_LOCKS_MAX` locks. Hence a plain
//! list, and a counter that says "no set", or "none but yours".
//!
//! # Latches and mutexes
//! A request looks into a set under the latch on the key's leaf. It writes to a set under that
//! latch too and, where the latch is shared, under the mutex of the key's shard in the table: of
//! two readers that lock one key, one by a hash and one by a queue entry, the second sees what the
//! first has done. Taking a lock out needs only the owner's `held`; a request that has seen the
//! lock looks again under `held` before it makes the lock explicit.
//!
//! The list's mutex comes after `Owner::held` and the shard's, a set's after the list's, and
//! nothing after that.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::owner::{Held, Owner};

/// While an owner has fewer locks in the table of key locks, all go there.
pub(super) const QUEUED_LOCKS_MAX: usize = 1000;

/// What is put in is a hash already.
#[derive(Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("hashes are written as u64");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A set of keys.
#[derive(Default)]
pub(super) struct CompactKeys {
    /// Of each hash a bit for each end that its keys may have.
    ends: HashMap<u64, u64, BuildHasherDefault<AsItIs>>,
    len: usize,
}

impl CompactKeys {
    /// False if it was there.
    fn insert(&mut self, Place { hash, end }: Place) -> bool {
        let ends = self.ends.entry(hash).or_default();
        let fresh = *ends & end == 0;
        *ends |= end;
        self.len += usize::from(fresh);
        fresh
    }

    fn contains(&self, Place { hash, end }: Place) -> bool {
        self.ends.get(&hash).is_some_and(|ends| ends & end != 0)
    }

    /// True if it was there.
    fn remove(&mut self, place: Place) -> bool {
        if !self.contains(place) {
            return false;
        }
        let ends = self.ends.entry(place.hash).or_default();
        *ends &= !place.end;
        if *ends == 0 {
            self.ends.remove(&place.hash);
        }
        self.len -= 1;
        true
    }
}

/// Where a key is in a set: the hash of what comes before its last six bits, and the bit that these
/// stand for.
#[derive(Clone, Copy)]
pub(super) struct Place {
    hash: u64,
    end: u64,
}

impl Held {
    /// Whether the owner keeps the key with this place locked.
    pub(super) fn keeps(&self, place: Place) -> bool {
        self.compact.as_ref().is_some_and(|set| set.lock().contains(place))
    }
}

/// The locks of one owner.
pub(super) type CompactSet = Arc<Mutex<CompactKeys>>;

/// The sets of all owners.
#[derive(Default)]
pub struct CompactLocks {
    hash: RandomState,
    /// Sets in the list.
    count: AtomicUsize,
    sets: RwLock<Vec<(Arc<Owner>, CompactSet)>>,
}

impl CompactLocks {
    /// Locks the key with this place exclusively for the owner whose list is `held`; says whether
    /// it was not locked so before. None if the owner has ended.
    pub(super) fn insert(&self, owner: &Arc<Owner>, held: &mut Held, place: Place) -> Option<bool> {
        if held.has_ended() {
            return None;
        }
        let set = held.compact.get_or_insert_with(|| self.new_set(owner));
        Some(set.lock().insert(place))
    }

    fn new_set(&self, owner: &Arc<Owner>) -> CompactSet {
        let set = CompactSet::default();
        let mut sets = self.sets.write();
        sets.push((Arc::clone(owner), Arc::clone(&set)));
        self.count.store(sets.len(), Ordering::SeqCst);
        // Behind the count, which therefore has the set whenever its owner leaves it out.
        owner.keeps_locks.store(true, Ordering::SeqCst);
        set
    }

    /// Where a key is in any set. It costs a hash.
    pub(super) fn place_of(&self, tree: u32, key: &[u8]) -> Place {
        let (last, before) = key.split_last().unwrap_or((&0, key));
        let mut hasher = self.hash.build_hasher();
        // The length distinguishes all that comes after it. In two pieces, for each costs.
        hasher.write_u64(u64::from(tree) << 32 | (key.len() as u64) << 2 | u64::from(last >> 6));
        hasher.write(before);
        Place { hash: hasher.finish(), end: 1 << (last & 63) }
    }

    /// Who other than `owner` keeps the key locked. To be asked under the latch on the key's leaf.
    pub fn holder(&self, owner: &Owner, tree: u32, key: &[u8]) -> Option<Arc<Owner>> {
        let mine = usize::from(owner.keeps_locks.load(Ordering::SeqCst));
        if self.count.load(Ordering::SeqCst) <= mine {
            return None;
        }
        let sets = self.sets.read();
        let mut others = sets.iter().filter(|(other, _)| other.number() != owner.number());
        let place = self.place_of(tree, key);
        others.find(|(_, set)| set.lock().contains(place)).map(|(other, _)| Arc::clone(other))
    }

    /// Whether the owner keeps the key locked.
    pub(super) fn keeps(&self, owner: &Owner, tree: u32, key: &[u8]) -> bool {
        owner.keeps_locks.load(Ordering::Relaxed)
            && owner.held.lock().keeps(self.place_of(tree, key))
    }

    /// Gives up a lock that the owner's newest locking reads have added; false if there is none.
    pub(super) fn remove(&self, owner: &Owner, tree: u32, key: &[u8]) -> bool {
        let held = owner.held.lock();
        held.compact.as_ref().is_some_and(|set| set.lock().remove(self.place_of(tree, key)))
    }

    /// Locks in all sets.
    pub fn len(&self) -> usize {
        self.sets.read().iter().map(|(_, set)| set.lock().len).sum()
    }

    /// Locks of one owner.
    pub fn len_of(&self, owner: &Owner) -> usize {
        if self.is_empty() {
            return 0;
        }
        let sets = self.sets.read();
        let set = sets.iter().find(|(other, _)| other.number() == owner.number());
        set.map_or(0, |(_, set)| set.lock().len)
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Memory of the sets, about, bytes: for each place a hash, the bits and a byte, and an eighth
    /// of the places is not used.
    pub fn memory_bytes(&self) -> u64 {
        let places = |set: &CompactSet| set.lock().ends.capacity() * 8 / 7;
        self.sets.read().iter().map(|(_, set)| places(set) as u64 * 17).sum()
    }

    pub(super) fn release(&self, owner: &Owner) {
        let mut sets = self.sets.write();
        let at = sets.iter().position(|(other, _)| other.number() == owner.number());
        let gone = at.map(|at| sets.swap_remove(at));
        owner.keeps_locks.store(false, Ordering::SeqCst);
        self.count.store(sets.len(), Ordering::SeqCst);
        // Before a large one is given back, which takes a while.
        drop(sets);
        drop(gone);
    }
}
