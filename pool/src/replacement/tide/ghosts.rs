//! Ghosts: how often pages were used that are not resident any more.
//!
//! One table of words, four a frame, indexed by hash; a page may lie in either of two neighbours.
//! A word holds a tag of the page, its uses, and the epoch of these. What is worth less makes
//! room for what is worth more, and of equals the older. About 0.1 % of the pool's memory.

use crate::error::{Error, Result};
use crate::mapping::ZeroedArray;

use super::word::USES;

/// Words a frame.
const PER_FRAME: usize = 4;

const TAG_SHIFT: u32 = 16;
const EPOCH_SHIFT: u32 = 4;

pub(super) struct Ghosts {
    words: ZeroedArray<u32>,
    mask: u32,
}

fn age(word: u32, epoch: u8) -> u8 {
    epoch.wrapping_sub((word >> EPOCH_SHIFT) as u8)
}

fn uses_in(word: u32, epoch: u8) -> u32 {
    (word & USES) >> age(word, epoch).min(4)
}

impl Ghosts {
    /// For a pool of `frames` frames.
    pub(super) fn new(frames: u32) -> Result<Ghosts> {
        let len = (frames as usize * PER_FRAME).next_power_of_two().clamp(64, 1 << 31);
        let words = ZeroedArray::new(len)
            .map_err(|error| Error::system("reserving replacement state", error))?;
        Ok(Ghosts { words, mask: len as u32 - 1 })
    }

    /// Whether a table of this size still suits `frames` frames.
    pub(super) fn suits(&self, frames: u32) -> bool {
        let wanted = (frames as usize * PER_FRAME).clamp(64, 1 << 31);
        (wanted..=wanted * 8).contains(&self.words.len())
    }

    /// Bytes of the table.
    pub(super) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }

    fn places(&self, hash: u64) -> (usize, usize, u32) {
        let first = hash as u32 & self.mask;
        let tag = (hash >> 48) as u32 | 1;
        (first as usize, (first ^ 1) as usize, tag)
    }

    pub(super) fn remember(&mut self, hash: u64, uses: u32, epoch: u8) {
        let (one, other, tag) = self.places(hash);
        let is_it = |word: u32| word >> TAG_SHIFT == tag;
        let place = match (self.words[one], self.words[other]) {
            (a, _) if is_it(a) => one,
            (_, b) if is_it(b) => other,
            (a, b) if uses_in(b, epoch) < uses_in(a, epoch) => other,
            (a, b) if uses_in(b, epoch) == uses_in(a, epoch) && age(b, epoch) > age(a, epoch) => {
                other
            }
            _ => one,
        };
        let held = self.words[place];
        if is_it(held) || uses >= uses_in(held, epoch) {
            self.words[place] = tag << TAG_SHIFT | u32::from(epoch) << EPOCH_SHIFT | uses.min(USES);
        }
    }

    /// The page's uses; 0 if nothing is known.
    pub(super) fn recall(&self, hash: u64, epoch: u8) -> u32 {
        let (one, other, tag) = self.places(hash);
        [self.words[one], self.words[other]]
            .into_iter()
            .find(|word| word >> TAG_SHIFT == tag)
            .map_or(0, |word| uses_in(word, epoch))
    }
}
