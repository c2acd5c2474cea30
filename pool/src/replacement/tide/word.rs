//! The access word: what the policy knows of the page in a frame, in 32 bits.
//!
//! ```text
//!  31      18 17    10   9       8        7     6    4  3    0
//!  statement   epoch   recent accessed pending  place   uses
//! ```
//!
//! Hits change statement, epoch, recent, accessed and uses, with one compare-and-swap that may
//! fail: a hit is then lost. Places change under the policy's mutex.

/// Uses saturate here.
pub(super) const USES: u32 = 15;
pub(super) const ACCESSED: u32 = 1 << 8;
/// Used since the policy last looked at the page.
pub(super) const RECENT: u32 = 1 << 9;
/// Read ahead for a scan that has not come by yet, nor had its grace.
pub(super) const PENDING: u32 = 1 << 7;

const PLACE_SHIFT: u32 = 4;
const PLACE: u32 = 7 << PLACE_SHIFT;
const EPOCH_SHIFT: u32 = 10;
const EPOCH: u32 = 0xff << EPOCH_SHIFT;
const STATEMENT_SHIFT: u32 = 18;
const STATEMENT: u32 = !0 << STATEMENT_SHIFT;

/// What the word of a page has that nothing can be added to in this epoch.
pub(super) const fn settled(epoch: u32) -> u32 {
    ACCESSED | RECENT | USES | epoch << EPOCH_SHIFT & EPOCH
}

/// The bits that [`settled`] speaks of.
pub(super) const SETTLED: u32 = ACCESSED | RECENT | USES | EPOCH;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u32);

impl Word {
    pub(super) fn new(place: usize, uses: u32, epoch: u32) -> Word {
        Word(uses.min(USES)).at(place).in_epoch(epoch)
    }

    pub(super) fn at(self, place: usize) -> Word {
        Word(self.0 & !PLACE | (place as u32) << PLACE_SHIFT)
    }

    fn in_epoch(self, epoch: u32) -> Word {
        Word(self.0 & !EPOCH | epoch << EPOCH_SHIFT & EPOCH)
    }

    /// As last used by `statement`.
    pub(super) fn by(self, statement: u32) -> Word {
        Word(self.0 & !STATEMENT | statement << STATEMENT_SHIFT | ACCESSED)
    }

    /// Whether `statement` has used the page in this epoch. (A statement that comes back epochs
    /// later, as a long join does, has used it again.)
    pub(super) fn was_used_by(self, statement: u32, epoch: u32) -> bool {
        let now = self.in_epoch(epoch).by(statement);
        (self.0 ^ now.0) & (STATEMENT | EPOCH | ACCESSED) == 0
    }

    pub(super) fn place(self) -> usize {
        ((self.0 & PLACE) >> PLACE_SHIFT) as usize
    }

    pub(super) fn has(self, bits: u32) -> bool {
        self.0 & bits != 0
    }

    pub(super) fn with(self, bits: u32) -> Word {
        Word(self.0 | bits)
    }

    /// The uses counted, halved once for each epoch that has gone by.
    pub(super) fn uses_in(self, epoch: u32) -> u32 {
        let age = epoch.wrapping_sub(self.0 >> EPOCH_SHIFT) & 0xff;
        (self.0 & USES) >> age.min(4)
    }

    /// Used `uses` times at least, as of now.
    pub(super) fn with_uses(self, uses: u32, epoch: u32) -> Word {
        let uses = self.uses_in(epoch).max(uses).min(USES);
        Word(self.0 & !USES | uses).in_epoch(epoch)
    }

    /// One use more, now.
    pub(super) fn used(self, statement: u32, epoch: u32) -> Word {
        let uses = (self.uses_in(epoch) + 1).min(USES);
        Word(self.0 & !USES | uses | RECENT).in_epoch(epoch).by(statement)
    }
}
