//! What the pool knows of the page in a frame, beside its word: which page it is, and since when it
//! is dirty.
//!
//! Descriptors outlive the memory of their frames, so that a frame's versions go on where they were
//! when its extent comes back (see [`crate::latch`]).
//!
//! Each field says under which latch or mutex it changes; all may be read without any, as hints.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::mapping::Zeroable;
use crate::page::PageId;

/// What is known of the page in a frame. All zero: no page.
#[derive(Default)]
pub(crate) struct Descriptor {
    /// The page id plus one; 0 without a page. Changes in transit or under the exclusive latch.
    page: AtomicU64,
    /// Where the redo of the oldest change begins that no write-out has begun to cover, plus one;
    /// 0 if there is none. Set under the exclusive latch and the dirty queue's mutex.
    pub(crate) rec_lsn: AtomicU64,
    /// The `rec_lsn` that the write-out now under way covers; 0 if none is. Set under the shared
    /// latch and cleared without one, under the dirty queue's mutex both.
    pub(crate) flushing: AtomicU64,
    /// The version that the frame's next page word starts from. Changes in transit.
    version: AtomicU32,
    /// The shard of the compressed tier that has the frame, plus one; 0: none has. Changes under
    /// the shard's mutex.
    tier_shard: AtomicU32,
}

// SAFETY: nothing but atomic integers.
unsafe impl Zeroable for Descriptor {}

impl Descriptor {
    pub(crate) fn page(&self) -> Option<PageId> {
        self.page.load(Ordering::Acquire).checked_sub(1).map(PageId::from_u64)
    }

    /// Only by the thread that has the frame in transit or its page latched exclusively.
    pub(crate) fn set_page(&self, id: Option<PageId>) {
        self.page.store(id.map_or(0, |id| id.to_u64() + 1), Ordering::Release);
    }

    /// Whether the frame holds neither a page nor images of the compressed tier.
    pub(crate) fn is_vacant(&self) -> bool {
        self.page().is_none() && !self.is_dirty() && self.tier_shard().is_none()
    }

    /// The shard of the compressed tier whose images the frame holds.
    pub(crate) fn tier_shard(&self) -> Option<u32> {
        self.tier_shard.load(Ordering::Acquire).checked_sub(1)
    }

    /// Only under the mutex of that shard.
    pub(crate) fn set_tier_shard(&self, shard: Option<u32>) {
        self.tier_shard.store(shard.map_or(0, |shard| shard + 1), Ordering::Release);
    }

    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    pub(crate) fn set_version(&self, version: u32) {
        self.version.store(version, Ordering::Relaxed);
    }

    /// Whether the page differs from its file. Exact under the dirty queue's mutex, and under the
    /// exclusive latch, where a page found clean stays clean. Otherwise a hint: a write-out that
    /// begins between the two loads moves the mark from `rec_lsn` to `flushing`, and the page looks
    /// clean.
    pub(crate) fn is_dirty(&self) -> bool {
        // In this order, because a failed write-out restores `rec_lsn` before it clears `flushing`,
        // and does so without a latch.
        self.flushing.load(Ordering::Acquire) != 0 || self.rec_lsn.load(Ordering::Acquire) != 0
    }
}
