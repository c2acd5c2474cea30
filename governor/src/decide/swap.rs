//! How fast the process's memory goes to swap, and how far the pool shrinks in answer.
//!
//! The rise is measured over [`SWAP_WINDOW`], however often the signals are read: the kernel's
//! thread may swap 10 MB/s for hours, which is half a MiB between two readings. It counts from the
//! lowest figure in the window, not from the first: pages that the pool gives back may have been in
//! swap, so the figure falls by them while other memory still goes there.
//!
//! It is unknown whose memory goes: the pool's, or memory that the process has not used for hours.
//! So the answer depends on how much goes:
//!
//! | rise in the window | answer |
//! |---|---|
//! | below [`NOTICED_BYTES`] | none |
//! | up to [`ANSWERED_BYTES`] | the pool does not grow |
//! | up to [`FAST_BYTES`] | it shrinks by twice the rise: if its own pages go, it is ahead of that; if other memory goes, that ends, and the pool grows back |
//! | more | the same, and at least by a twentieth: some process is at a limit right now |
//!
//! # Each byte is answered once
//! A limit that is lowered under the process has the kernel swap what is over it, at 500 MB/s,
//! until the pool has given back enough. If the limit can be seen, the room says exactly how much
//! that is. So memory that goes to swap while the pool *owes* as much is no reason to shrink
//! further. The pool owes what it holds above its limit, and what it will have to give back for the
//! room. Without that a pool was down at its floor when half of the memory was taken.
//!
//! Version 1 of cgroups shows a lower limit only when the usage has come down to it. Until then
//! nothing but the swapping shows. So fast swapping is answered again after each [`AGAIN_BYTES`],
//! and each time by a larger multiple, up to [`MULTIPLE_MAX`]. What an answer takes beyond the rise
//! is a guess, and is at most a quarter of the pool.
//!
//! A pool may consist of large pieces, and give back 128 MiB for a request of 2 MiB. So the next
//! request counts from the last request, not from the size: a pool that is already below it has
//! done its part.

use std::collections::VecDeque;
use std::time::Duration;

use super::stall::STALL_WINDOW;
use super::{HOLD_AFTER_TROUBLE, MIB, TROUBLE_EVERY};

/// The time over which the rise is measured.
const SWAP_WINDOW: Duration = STALL_WINDOW;
/// A smaller rise is an occasional page.
const NOTICED_BYTES: u64 = 64 << 10;
/// From here on the pool shrinks.
pub(super) const ANSWERED_BYTES: u64 = MIB;
/// From here on it shrinks by a good part of itself.
const FAST_BYTES: u64 = 10 * MIB;
/// That part is one over this.
const FAST_SHARE: u64 = 20;
/// This many more bytes are answered before [`TROUBLE_EVERY`] has passed, if it comes as fast.
const AGAIN_BYTES: u64 = 4 * MIB;
/// An answer is this multiple of the rise; after others that did not end it, up to the second.
const MULTIPLE: u64 = 2;
const MULTIPLE_MAX: u64 = 16;
/// What is taken beyond the rise is at most the pool over this.
const GUESS_SHARE: u64 = 4;

/// The process's recent memory in swap.
#[derive(Debug, Default)]
pub(super) struct SwapWatch {
    /// (when, bytes) of the last [`SWAP_WINDOW`], and the one before it; oldest first.
    readings: VecDeque<(Duration, u64)>,
    /// The last reading whose bytes have been answered.
    answered_at: Duration,
    /// What the pool was last asked to shrink to.
    asked: Option<Asked>,
}

#[derive(Debug, Clone, Copy)]
struct Asked {
    at: Duration,
    to_bytes: u64,
    multiple: u64,
}

impl SwapWatch {
    /// Takes a reading. `owed_bytes`: what the pool is about to give back anyway.
    pub(super) fn observe(&mut self, at: Duration, swapped_bytes: Option<u64>, owed_bytes: u64) {
        let Some(bytes) = swapped_bytes else {
            // How far it rises while it can't be read says nothing of how fast.
            self.readings.clear();
            return;
        };
        self.readings.push_back((at, bytes));
        let is_past = |&(seen, _): &(Duration, u64)| at.saturating_sub(seen) >= SWAP_WINDOW;
        while self.readings.get(1).is_some_and(is_past) {
            self.readings.pop_front();
        }
        if self.unanswered_bytes() <= owed_bytes {
            self.answered_at = at;
        }
    }

    /// By how much it has risen within the window, bytes.
    pub(super) fn risen_bytes(&self) -> u64 {
        self.risen_since(Duration::ZERO)
    }

    /// The same since the last answer.
    fn unanswered_bytes(&self) -> u64 {
        self.risen_since(self.answered_at)
    }

    fn risen_since(&self, since: Duration) -> u64 {
        let counted = self.readings.iter().filter(|&&(at, _)| at >= since);
        let lowest = counted.map(|&(_, bytes)| bytes).min();
        self.readings.back().zip(lowest).map_or(0, |(&(_, now), lowest)| now - lowest)
    }

    /// Whether it rises.
    pub(super) fn is_rising(&self) -> bool {
        self.risen_bytes() >= NOTICED_BYTES
    }

    /// Whether it rises so fast that the pool shrinks.
    pub(super) fn is_rising_fast(&self) -> bool {
        self.risen_bytes() > ANSWERED_BYTES
    }

    /// Whether what has come since the last answer can't wait.
    fn is_fast(&self, at: Duration, unanswered_bytes: u64) -> bool {
        let time = at.saturating_sub(self.answered_at).as_secs_f64();
        let fast = FAST_BYTES as f64 * time / SWAP_WINDOW.as_secs_f64();
        unanswered_bytes >= AGAIN_BYTES && unanswered_bytes as f64 > fast
    }

    /// What a pool of `pool_bytes` should shrink to for it, bytes, if it is not there yet; notes
    /// that as asked for.
    pub(super) fn ask(&mut self, at: Duration, pool_bytes: u64) -> Option<u64> {
        let unanswered = self.unanswered_bytes();
        if unanswered <= ANSWERED_BYTES {
            return None;
        }
        // For so long the pool has not grown.
        let since = |asked: &Asked| at.saturating_sub(asked.at);
        let asked = self.asked.filter(|asked| since(asked) < HOLD_AFTER_TROUBLE);
        let again = asked.filter(|asked| since(asked) < TROUBLE_EVERY);
        if again.is_some() && !self.is_fast(at, unanswered) {
            return None;
        }
        let multiple = again.map_or(MULTIPLE, |last| (last.multiple * 2).min(MULTIPLE_MAX));
        let guess = (unanswered * (multiple - 1)).min(pool_bytes / GUESS_SHARE);
        let from = asked.map_or(pool_bytes, |asked| asked.to_bytes);
        let to = from.saturating_sub(unanswered + guess);
        let to = match unanswered > FAST_BYTES {
            true => to.min(pool_bytes - pool_bytes / FAST_SHARE),
            false => to,
        };
        self.asked = Some(Asked { at, to_bytes: to, multiple });
        self.answered_at = at;
        Some(to)
    }

    /// The pool shrinks for the room: what was asked for swap is no measure of its size any more.
    pub(super) fn forget_asked(&mut self) {
        self.asked = None;
    }
}

#[cfg(test)]
mod tests;
