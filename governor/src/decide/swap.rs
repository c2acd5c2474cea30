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
//! A pool may consist of large pieces, and give back 128 MiB for a request of 2 MiB. So the next
//! request counts from the last request, not from the size: a pool that is already below it has
//! done its part.

use std::collections::VecDeque;
use std::time::Duration;

use super::stall::STALL_WINDOW;
use super::{HOLD_AFTER_TROUBLE, MIB};

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

/// The process's recent memory in swap.
#[derive(Debug, Default)]
pub(super) struct SwapWatch {
    /// (when, bytes) of the last [`SWAP_WINDOW`], and the one before it; oldest first.
    readings: VecDeque<(Duration, u64)>,
    /// (when, bytes) that the pool was last asked to shrink to.
    asked: Option<(Duration, u64)>,
}

impl SwapWatch {
    pub(super) fn observe(&mut self, at: Duration, swapped_bytes: Option<u64>) {
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
    }

    /// By how much it has risen within the window, bytes.
    pub(super) fn risen_bytes(&self) -> u64 {
        let lowest = self.readings.iter().map(|&(_, bytes)| bytes).min();
        self.readings.back().zip(lowest).map_or(0, |(&(_, now), lowest)| now - lowest)
    }

    /// Whether it rises.
    pub(super) fn is_rising(&self) -> bool {
        self.risen_bytes() >= NOTICED_BYTES
    }

    /// What a pool of `pool_bytes` should shrink to for it, bytes, if it is not there yet.
    pub(super) fn shrunk_bytes(&self, at: Duration, pool_bytes: u64) -> Option<u64> {
        let risen = self.risen_bytes();
        if risen <= ANSWERED_BYTES {
            return None;
        }
        // For so long the pool has not grown.
        let asked = self.asked.filter(|(when, _)| at.saturating_sub(*when) < HOLD_AFTER_TROUBLE);
        let from = asked.map_or(pool_bytes, |(_, bytes)| bytes);
        let to = from.saturating_sub(risen.saturating_mul(2));
        Some(match risen > FAST_BYTES {
            true => to.min(pool_bytes - pool_bytes / FAST_SHARE),
            false => to,
        })
    }

    /// The pool was asked to shrink to `bytes`, or it had before.
    pub(super) fn asked(&mut self, at: Duration, bytes: u64) {
        self.asked = Some((at, bytes));
    }
}

#[cfg(test)]
mod tests;
