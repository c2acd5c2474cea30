//! Compact locks: a transaction's further locks, as bits instead of queue entries.
//!
//! A locking read of a million rows takes a million locks. A statement that has changed as many
//! rows and is taken back leaves as many behind, since the entries no longer carry the lock. As
//! entries of the key-lock table they would take hundreds of bytes each. So the first
//! `QUEUED_LOCKS_MAX` locks of an owner are ordinary queue entries, and the further ones are
//! hashes in the owner's sets, one for each mode. A request that meets such locks of others makes
//! queue entries on their behalf and waits there, as with the implicit lock of a written entry.
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
//! # Memory
//! A set that has to grow asks first whether there is room (`RoomForLocks`); without, the request
//! fails, and its transaction is rolled back. A rollback to a savepoint keeps its locks anyway.
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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::LockMode;
use super::owner::{Held, Owner};

/// While an owner has fewer locks in the table of key locks, all go there. Tests have fewer, so
/// that they come to compact ones.
pub(super) const QUEUED_LOCKS_MAX: usize = if cfg!(test) { 10 } else { 1000 };

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
    /// The map's capacity at its largest. (What it says of it is less after removals, while its
    /// memory stays.)
    places: usize,
}

impl CompactKeys {
    fn insert(&mut self, Place { hash, end }: Place) {
        let ends = self.ends.entry(hash).or_default();
        self.len += usize::from(*ends & end == 0);
        *ends |= end;
        self.places = self.places.max(self.ends.capacity());
    }

    fn contains(&self, Place { hash, end }: Place) -> bool {
        // Most sets are of one mode: the other one's needs no look.
        self.len > 0 && self.ends.get(&hash).is_some_and(|ends| ends & end != 0)
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
        assert!(self.len > 0 && self.ends.len() <= self.len, "locks are counted");
        self.len -= 1;
        true
    }

    /// Memory, about, bytes: for each place a hash, the bits and a byte, and an eighth of the
    /// places is not used.
    fn memory_bytes(&self) -> u64 {
        (self.places * 8 / 7 * 17) as u64
    }

    /// What the set takes in addition while it makes room for one more hash, bytes: it doubles, and
    /// has the places from before until they are copied.
    /// None if there is room.
    fn growth_bytes(&self) -> Option<u64> {
        (self.ends.len() == self.ends.capacity()).then(|| 2 * self.memory_bytes())
    }
}

/// The keys that one owner has locked.
#[derive(Default)]
pub(super) struct CompactKeysByMode {
    shared: CompactKeys,
    exclusive: CompactKeys,
}

impl CompactKeysByMode {
    fn of_mode(&mut self, mode: LockMode) -> &mut CompactKeys {
        match mode {
            LockMode::Exclusive => &mut self.exclusive,
            _ => &mut self.shared,
        }
    }

    /// How the key with this place is locked.
    fn mode_of(&self, place: Place) -> LockMode {
        if self.exclusive.contains(place) {
            LockMode::Exclusive
        } else if self.shared.contains(place) {
            LockMode::Shared
        } else {
            LockMode::None
        }
    }

    fn len(&self) -> usize {
        self.shared.len + self.exclusive.len
    }

    fn memory_bytes(&self) -> u64 {
        self.shared.memory_bytes() + self.exclusive.memory_bytes()
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
    /// How the owner keeps the key with this place locked.
    pub(super) fn mode_kept(&self, place: Place) -> LockMode {
        self.compact.as_ref().map_or(LockMode::None, |keys| keys.lock().mode_of(place))
    }
}

/// Whether a set may grow.
#[derive(Clone, Copy)]
pub(super) enum RoomForLocks<'r> {
    /// Up to this number of bytes for all sets.
    UpTo(&'r dyn Fn() -> u64),
    /// A rollback can't go on without.
    Always,
}

/// What became of a lock that was to be added to a set.
pub(super) enum Insertion {
    /// It is there.
    Locked,
    /// Its owner has ended.
    Ended,
    NoRoom,
}

/// The locks of one owner.
pub(super) type CompactSet = Arc<Mutex<CompactKeysByMode>>;

/// The sets of all owners.
#[derive(Default)]
pub struct CompactLocks {
    hash: RandomState,
    /// Sets in the list.
    count: AtomicUsize,
    /// Memory of the sets, about, bytes.
    bytes: AtomicU64,
    sets: RwLock<Vec<(Arc<Owner>, CompactSet)>>,
}

impl CompactLocks {
    /// Locks the key with this place for the owner whose list is `held`.
    pub(super) fn insert(
        &self,
        owner: &Arc<Owner>,
        held: &mut Held,
        (place, mode): (Place, LockMode),
        room: RoomForLocks<'_>,
    ) -> Insertion {
        if held.has_ended() {
            return Insertion::Ended;
        }
        let set = held.compact.get_or_insert_with(|| self.new_set(owner));
        let mut keys = set.lock();
        let keys = keys.of_mode(mode);
        let Some(growth) = keys.growth_bytes() else {
            keys.insert(place);
            return Insertion::Locked;
        };
        if let RoomForLocks::UpTo(bytes) = room
            && self.memory_bytes() + growth > bytes()
        {
            return Insertion::NoRoom;
        }
        let before = keys.memory_bytes();
        keys.insert(place);
        self.bytes.fetch_add(keys.memory_bytes() - before, Ordering::Relaxed);
        Insertion::Locked
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

    /// Who other than `owner` keeps the key locked so that `owner` may not lock it in this mode. To
    /// be asked under the latch on the key's leaf.
    pub fn holders(&self, owner: &Owner, tree: u32, key: &[u8], mode: LockMode) -> Vec<Arc<Owner>> {
        let mine = usize::from(owner.keeps_locks.load(Ordering::SeqCst));
        if self.count.load(Ordering::SeqCst) <= mine {
            return Vec::new();
        }
        let place = self.place_of(tree, key);
        let sets = self.sets.read();
        let others = sets.iter().filter(|(other, _)| other.number() != owner.number());
        others
            .filter(|(_, set)| set.lock().mode_of(place).conflicts(mode))
            .map(|(other, _)| Arc::clone(other))
            .collect()
    }

    /// Whether the owner keeps the key locked, at least so.
    pub(super) fn keeps(&self, owner: &Owner, tree: u32, key: &[u8], mode: LockMode) -> bool {
        owner.keeps_locks.load(Ordering::Relaxed)
            && owner.held.lock().mode_kept(self.place_of(tree, key)) >= mode
    }

    /// Gives up a lock that the owner's newest locking reads have added; false if there is none.
    pub(super) fn remove(&self, owner: &Owner, tree: u32, key: &[u8]) -> bool {
        let held = owner.held.lock();
        let Some(set) = &held.compact else { return false };
        let place = self.place_of(tree, key);
        let mut keys = set.lock();
        // One that was locked before in another mode is no new lock, and not given up.
        keys.exclusive.remove(place) | keys.shared.remove(place)
    }

    /// Locks in all sets.
    pub fn len(&self) -> usize {
        self.sets.read().iter().map(|(_, set)| set.lock().len()).sum()
    }

    /// Locks of one owner.
    pub fn len_of(&self, owner: &Owner) -> usize {
        if self.is_empty() {
            return 0;
        }
        let sets = self.sets.read();
        let set = sets.iter().find(|(other, _)| other.number() == owner.number());
        set.map_or(0, |(_, set)| set.lock().len())
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Memory of the sets, about, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn release(&self, owner: &Owner) {
        let mut sets = self.sets.write();
        let at = sets.iter().position(|(other, _)| other.number() == owner.number());
        let gone = at.map(|at| sets.swap_remove(at));
        owner.keeps_locks.store(false, Ordering::SeqCst);
        self.count.store(sets.len(), Ordering::SeqCst);
        if let Some((_, set)) = &gone {
            self.bytes.fetch_sub(set.lock().memory_bytes(), Ordering::Relaxed);
        }
        // Before a large one is given back, which takes a while.
        drop(sets);
        drop(gone);
    }
}
