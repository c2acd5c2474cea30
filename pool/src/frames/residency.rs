//! Which frames the kernel has put into swap, and how what it holds of them is forgotten.
//!
//! A frame is in swap if any part of it is. What was never touched looks the same, but a frame that
//! has held a page was.
//!
//! Locking: none. Where a page is changes at any moment, so the answer is a hint.

use std::sync::atomic::{Ordering, fence};

use super::{EXTENT_BYTES, Frames};

impl Frames {
    /// Whether memory of any process is in swap; else none of the frames' is.
    pub(crate) fn may_be_in_swap(&self) -> bool {
        let info = rustix::system::sysinfo();
        info.totalswap > info.freeswap
    }

    /// The frames of an extent that are in swap, if it is one in use; none where the kernel does
    /// not say.
    pub(crate) fn in_swap(&self, extent: u32) -> Vec<u32> {
        let mut parts = Vec::new();
        if self.memory.residency(self.offset_of(extent), EXTENT_BYTES, &mut parts).is_err() {
            return Vec::new();
        }
        let per_extent = self.per_extent() as usize;
        let is_out = |&frame: &usize| {
            let part = |frame: usize| frame * parts.len() / per_extent;
            let end = part(frame + 1).max(part(frame) + 1);
            is_any_out(&parts[part(frame)..end])
        };
        let first = extent * self.per_extent();
        (0..per_extent).filter(is_out).map(|frame| first + frame as u32).collect()
    }

    /// Lets the kernel forget what a frame in transit holds, so that the thread that fills it does
    /// not wait for that to come from swap. Best effort: the kernel refuses for a frame smaller
    /// than its own pages, or locked.
    pub(crate) fn forget(&self, frame: u32) {
        // As at every first store into a frame: see `touch`.
        fence(Ordering::Release);
        let offset = self.offset_of_frame(frame);
        // SAFETY: the caller has the frame in transit, so only optimistic readers look at
        // it. They may find zeroes, as they may find anything, and don't believe it: the page left
        // the frame, so its word has changed.
        let _ = unsafe { self.memory.discard(offset, self.page_size.bytes()) };
    }

    /// [`Frames::forget`], if the frame is in swap.
    pub(crate) fn forget_if_in_swap(&self, frame: u32) {
        let (mut parts, len) = (Vec::new(), self.page_size.bytes());
        let told = self.memory.residency(self.offset_of_frame(frame), len, &mut parts);
        if told.is_ok() && is_any_out(&parts) {
            self.forget(frame);
        }
    }
}

/// Of the bytes that [`Mapping::residency`](crate::mapping::Mapping::residency) gives.
fn is_any_out(parts: &[u8]) -> bool {
    parts.iter().any(|part| part & 1 == 0)
}
