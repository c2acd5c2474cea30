//! Where the chunks of a [`CsnTable`](super::CsnTable) are: chunk number → index, without a lock.
//!
//! An open-addressing table of words. A multiplication scatters the chunk numbers, which come in
//! order: in their own order they would make long runs, and a search for a chunk that is gone walks
//! a run to its end.
//!
//! # Entries that go
//! A search must not end too early at an entry that went, so a removal leaves a tombstone, unless
//! the slot behind it is vacant. Tombstones would pile up as ids are used up. So there are two
//! arrays of slots: when an eighth of the present one is tombstones, [`Directory::remove`] copies
//! the entries that are left to the other one, and that becomes the present one.
//!
//! # Readers
//! Writers hold the table's mutex. A reader holds nothing: it probes the array that the generation
//! names, and looks at the generation again before it believes that a number is not there. What it
//! finds it need not check so: a word bears its chunk's number, and the chunk bears it too.
//! The array that is written anew is the one of the generation before; a reader that still probes
//! it looks at the generation after that, and sees another.
//!
//! The model checker compiles this file against its own atomics (`tests/csn_model/`).

use super::sync::{AtomicU64, Ordering, fence};

const VACANT: u64 = 0;
pub(super) const TOMBSTONE: u64 = 1;
/// Bits of a word that hold the index.
pub(super) const INDEX_BITS: u32 = 20;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// One slot in this number may be a tombstone.
const TOMBSTONE_SHARE: usize = 8;
/// 2^64 divided by the golden ratio, odd: neighbours come out far from each other.
const SCATTER: u64 = 0x9E37_79B9_7F4A_7C15;

/// The map from chunk numbers to indexes.
pub(super) struct Directory {
    /// Goes on when another array becomes the present one: that of its last bit.
    generation: AtomicU64,
    arrays: [Box<[AtomicU64]>; 2],
}

/// How full a directory is. Its table's mutex guards it, and so every change of the directory.
#[derive(Default)]
pub(super) struct Occupancy {
    pub(super) entries: usize,
    pub(super) tombstones: usize,
}

fn word_of(number: u64, index: usize) -> u64 {
    (number + 1) << INDEX_BITS | index as u64
}

fn has_number(word: u64, number: u64) -> bool {
    word >> INDEX_BITS == number + 1
}

impl Directory {
    /// An empty directory with this number of slots, a power of two. At most half of them can be in use.
    pub(super) fn new(slots: usize) -> Self {
        assert!(slots.is_power_of_two() && slots > 1, "a directory of {slots} slots");
        let array = || (0..slots).map(|_| AtomicU64::new(VACANT)).collect();
        Directory { generation: AtomicU64::new(0), arrays: [array(), array()] }
    }

    fn slots(&self) -> usize {
        self.arrays[0].len()
    }

    /// Memory of the slots, bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.arrays.iter().map(|array| size_of_val(&**array)).sum()
    }

    /// The slots where `number` may be, in the order of a search.
    fn places(&self, number: u64) -> impl Iterator<Item = usize> + use<> {
        let slots = self.slots();
        let start = number.wrapping_mul(SCATTER) >> (u64::BITS - slots.ilog2());
        (0..slots).map(move |step| (start as usize + step) & (slots - 1))
    }

    /// The index of a chunk; none if it is not there. The chunk may go right afterwards.
    pub(super) fn find(&self, number: u64) -> Option<usize> {
        loop {
            let generation = self.generation.load(Ordering::Acquire);
            let array = &self.arrays[(generation & 1) as usize];
            for at in self.places(number) {
                let word = array[at].load(Ordering::Acquire);
                if has_number(word, number) {
                    return Some((word & INDEX_MASK) as usize);
                }
                if word == VACANT {
                    break;
                }
            }
            // Pairs with the release fence in `renew`: who has read a word of a later generation
            // sees here that there is one.
            fence(Ordering::Acquire);
            if self.generation.load(Ordering::Relaxed) == generation {
                return None;
            }
        }
    }

    pub(super) fn present(&self) -> &[AtomicU64] {
        &self.arrays[(self.generation.load(Ordering::Relaxed) & 1) as usize]
    }

    /// Adds a chunk that is not there.
    pub(super) fn insert(&self, occupancy: &mut Occupancy, number: u64, index: usize) {
        assert!(index as u64 <= INDEX_MASK, "chunk index {index} has no room in a word");
        assert!(
            occupancy.entries < self.slots() / 2,
            "more chunks of transaction states than the directory has room for"
        );
        let array = self.present();
        let at = self.places(number).find(|&at| array[at].load(Ordering::Relaxed) <= TOMBSTONE);
        let slot = &array[at.expect("half of the slots are not in use")];
        occupancy.tombstones -= usize::from(slot.load(Ordering::Relaxed) == TOMBSTONE);
        occupancy.entries += 1;
        slot.store(word_of(number, index), Ordering::Release);
    }

    /// Takes out a chunk, which must be there.
    pub(super) fn remove(&self, occupancy: &mut Occupancy, number: u64) {
        let array = self.present();
        let mut at = self
            .places(number)
            .find(|&at| has_number(array[at].load(Ordering::Relaxed), number))
            .expect("a chunk in use is in the directory");
        array[at].store(TOMBSTONE, Ordering::Release);
        occupancy.entries -= 1;
        occupancy.tombstones += 1;
        // A tombstone matters only while an entry lies behind it.
        let last = self.slots() - 1;
        while array[at].load(Ordering::Relaxed) == TOMBSTONE
            && array[(at + 1) & last].load(Ordering::Relaxed) == VACANT
        {
            array[at].store(VACANT, Ordering::Release);
            occupancy.tombstones -= 1;
            at = at.wrapping_sub(1) & last;
        }
        if occupancy.tombstones > self.slots() / TOMBSTONE_SHARE {
            self.renew(occupancy);
        }
    }

    /// Copies the entries, without the tombstones, to the other array.
    pub(super) fn renew(&self, occupancy: &mut Occupancy) {
        let generation = self.generation.load(Ordering::Relaxed);
        let old = &self.arrays[(generation & 1) as usize];
        let new = &self.arrays[(!generation & 1) as usize];
        // Pairs with the acquire fence in `find`: the present generation is known to a reader
        // what is written from here on.
        fence(Ordering::Release);
        new.iter().for_each(|slot| slot.store(VACANT, Ordering::Relaxed));
        for slot in old {
            let word = slot.load(Ordering::Relaxed);
            if word > TOMBSTONE {
                let number = (word >> INDEX_BITS) - 1;
                let at = self.places(number).find(|&at| new[at].load(Ordering::Relaxed) == VACANT);
                let at = at.expect("the other array is as large");
                new[at].store(word, Ordering::Relaxed);
            }
        }
        occupancy.tombstones = 0;
        self.generation.store(generation + 1, Ordering::Release);
    }

    /// How many slots a search for `number` looks at.
    #[cfg(test)]
    pub(super) fn probes(&self, number: u64) -> usize {
        let array = self.present();
        let stops = |word: u64| word == VACANT || has_number(word, number);
        let looked = self.places(number).position(|at| stops(array[at].load(Ordering::Relaxed)));
        looked.expect("a search ends") + 1
    }
}
