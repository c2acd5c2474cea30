//! Locks that a rollback to a savepoint keeps: many at once, and hardly ever asked for.
//!
//! A statement that has changed a million rows and is taken back leaves its transaction a million exclusive locks, which the entries no
//! longer tell of. As queues in the table of key locks they would take hundreds of bytes each. So the first of them are, and of
//! the others each is a hash, in a set of its owner's. Who meets one gives its owner the lock in the table and waits there,
//! as with the implicit lock of a written entry. Two keys with one hash are both locked: that is one lock too many, and no harm.
//!
//! There are few such sets: an owner has one only after it has taken back more rows than `KEPT_IN_TABLE`. Hence a plain list, and a
//! counter that says "none at all".
//!
//! Sets are written and asked under the latch on the key's leaf. Their mutex comes after `Owner::held`, and nothing after it.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::owner::Owner;

/// While an owner has fewer locks in the table of key locks, what it keeps goes there.
pub(super) const KEPT_IN_TABLE: usize = 1000;

/// What is put in is a hash already.
#[derive(Default)]
struct AsItIs(u64);

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

type Hashes = HashSet<u64, BuildHasherDefault<AsItIs>>;

/// The sets of all owners.
#[derive(Default)]
pub struct KeptLocks {
    hash: RandomState,
    /// Sets in the list.
    count: AtomicUsize,
    sets: RwLock<Vec<(Arc<Owner>, Hashes)>>,
}

impl KeptLocks {
    /// Locks one key exclusively; false if the owner has ended.
    pub(super) fn insert(&self, owner: &Arc<Owner>, tree: u32, key: &[u8]) -> bool {
        let mut held = owner.held.lock();
        if !Owner::keep(&mut held) {
            return false;
        }
        let hash = self.hash.hash_one((tree, key));
        let mut sets = self.sets.write();
        match sets.iter_mut().find(|(other, _)| Arc::ptr_eq(other, owner)) {
            Some((_, hashes)) => _ = hashes.insert(hash),
            None => {
                sets.push((Arc::clone(owner), Hashes::from_iter([hash])));
                self.count.store(sets.len(), Ordering::SeqCst);
            }
        }
        true
    }

    /// Who other than `owner` keeps the key locked. To be asked under the latch on the key's leaf.
    pub fn holder(&self, owner: &Owner, tree: u32, key: &[u8]) -> Option<Arc<Owner>> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let hash = self.hash.hash_one((tree, key));
        let sets = self.sets.read();
        let mut others = sets.iter().filter(|(other, _)| other.number() != owner.number());
        others.find(|(_, hashes)| hashes.contains(&hash)).map(|(other, _)| Arc::clone(other))
    }

    /// Locks in all sets.
    pub fn len(&self) -> usize {
        self.sets.read().iter().map(|(_, hashes)| hashes.len()).sum()
    }

    /// Locks of one owner.
    pub fn len_of(&self, owner: &Owner) -> usize {
        if self.is_empty() {
            return 0;
        }
        let sets = self.sets.read();
        let set = sets.iter().find(|(other, _)| other.number() == owner.number());
        set.map_or(0, |(_, hashes)| hashes.len())
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Memory of the sets, about, bytes: for each place a hash and a byte, and an eighth of the places is not used.
    pub fn memory_bytes(&self) -> u64 {
        let places = |hashes: &Hashes| hashes.capacity() * 8 / 7;
        self.sets.read().iter().map(|(_, hashes)| places(hashes) as u64 * 9).sum()
    }

    pub(super) fn release(&self, owner: &Owner) {
        let mut sets = self.sets.write();
        let at = sets.iter().position(|(other, _)| other.number() == owner.number());
        let gone = at.map(|at| sets.swap_remove(at));
        self.count.store(sets.len(), Ordering::SeqCst);
        // Before a large one is given back, which takes a while.
        drop(sets);
        drop(gone);
    }
}
