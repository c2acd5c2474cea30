//! The access word: what the policy knows of the page in a frame, in 64 bits.
//!
//! ```text
//!  63     56 55      32 31       24 23  16 15  12   11      10       9      8   4  3  0
//!   counted   statement  generation  epoch    0    pending  recent  accessed  place  uses
//! ```
//!
//! `generation` is that of the last use, `counted` that of the last use that was counted, `epoch`
//! that in which `uses` is as it stands. Hits change all but place and pending, with one
//! compare-and-swap that may fail: a hit is then lost. Places change under the policy's mutex.

/// Uses saturate here.
pub(super) const USES: u32 = 15;
/// Used by anybody since it came.
pub(super) const ACCESSED: u64 = 1 << 9;
/// Used by a query since the policy last looked at the page.
pub(super) const RECENT: u64 = 1 << 10;
/// Read ahead for a scan that has not come by yet, nor had its grace.
pub(super) const PENDING: u64 = 1 << 11;

const USES_BITS: u64 = USES as u64;
const PLACE_SHIFT: u32 = 4;
const PLACE: u64 = 0x1f << PLACE_SHIFT;
const EPOCH_SHIFT: u32 = 16;
const EPOCH: u64 = 0xff << EPOCH_SHIFT;
const GENERATION_SHIFT: u32 = 24;
const GENERATION: u64 = 0xff << GENERATION_SHIFT;
const STATEMENT_SHIFT: u32 = 32;
const STATEMENT: u64 = 0xff_ffff << STATEMENT_SHIFT;
const COUNTED_SHIFT: u32 = 56;
const COUNTED: u64 = 0xff << COUNTED_SHIFT;

/// The bits that say whether a query has used the page in this generation: then there is nothing to
/// add.
pub(super) const SETTLED: u64 = ACCESSED | RECENT | GENERATION;

/// The policy's two clocks, eight bits each, as they lie in the word of a page that is used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Now(pub(super) u64);

impl Now {
    pub(super) const BEGINNING: Now = Now(ACCESSED | RECENT);

    pub(super) fn generation(self) -> u8 {
        (self.0 >> GENERATION_SHIFT) as u8
    }

    pub(super) fn epoch(self) -> u8 {
        (self.0 >> EPOCH_SHIFT) as u8
    }

    pub(super) fn next_epoch(self) -> Now {
        let epoch = u64::from(self.epoch().wrapping_add(1));
        Now(self.0 & !EPOCH | epoch << EPOCH_SHIFT)
    }

    pub(super) fn next_generation(self) -> Now {
        let generation = u64::from(self.generation().wrapping_add(1));
        Now(self.0 & !GENERATION | generation << GENERATION_SHIFT)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    /// Of a page that came now, with `uses` uses counted.
    pub(super) fn new(place: usize, uses: u32, now: Now) -> Word {
        let counted = u64::from(now.generation()) << COUNTED_SHIFT;
        Word(u64::from(uses.min(USES)) | now.0 & (EPOCH | GENERATION) | counted).at(place)
    }

    pub(super) fn at(self, place: usize) -> Word {
        Word(self.0 & !PLACE | (place as u64) << PLACE_SHIFT)
    }

    /// As last used by `statement`.
    pub(super) fn by(self, statement: u32) -> Word {
        Word(self.0 & !STATEMENT | u64::from(statement) << STATEMENT_SHIFT & STATEMENT | ACCESSED)
    }

    /// Whether `statement` has used the page in this epoch. (A statement that comes back epochs
    /// later, as a long join does, has used it again.)
    pub(super) fn was_used_by(self, statement: u32, now: Now) -> bool {
        let used = self.0 & !EPOCH | now.0 & EPOCH;
        self.0 == Word(used).by(statement).0
    }

    pub(super) fn place(self) -> usize {
        ((self.0 & PLACE) >> PLACE_SHIFT) as usize
    }

    pub(super) fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }

    pub(super) fn with(self, bits: u64) -> Word {
        Word(self.0 | bits)
    }

    /// How many generations ago the page came or was last used by a query.
    pub(super) fn idle(self, now: Now) -> u8 {
        now.generation().wrapping_sub((self.0 >> GENERATION_SHIFT) as u8)
    }

    /// The uses counted, halved once for each epoch that has gone by.
    pub(super) fn uses(self, now: Now) -> u32 {
        let age = now.epoch().wrapping_sub((self.0 >> EPOCH_SHIFT) as u8);
        (self.0 & USES_BITS) as u32 >> age.min(4)
    }

    /// Used `uses` times at least, as of now.
    pub(super) fn with_uses(self, uses: u32, now: Now) -> Word {
        let uses = self.uses(now).max(uses).min(USES);
        Word(self.0 & !(USES_BITS | EPOCH) | u64::from(uses) | now.0 & EPOCH)
    }

    /// One use more, now. It is counted unless the last counted one is less than this many
    /// generations old.
    pub(super) fn used(self, statement: u32, now: Now, burst_generations: u32) -> Word {
        let counted = now.generation().wrapping_sub((self.0 >> COUNTED_SHIFT) as u8);
        let stamped = Word(self.0 & !GENERATION | now.0 & GENERATION | RECENT).by(statement);
        if self.has(ACCESSED) && u32::from(counted) < burst_generations {
            return stamped;
        }
        let uses = (self.uses(now) + 1).min(USES);
        let rest = stamped.0 & !(USES_BITS | EPOCH | COUNTED);
        let counted = u64::from(now.generation()) << COUNTED_SHIFT;
        Word(rest | u64::from(uses) | now.0 & EPOCH | counted)
    }
}
