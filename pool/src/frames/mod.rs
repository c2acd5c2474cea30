//! Frames: the memory that holds pages, one descriptor a frame, and the list of free frames.
//!
//! One reservation of address space, cut in extents of 2 MiB. Extents are taken into use one by one
//! as misses need them, up to the limit; the kernel backs them when they are first touched. A few
//! are prepared ahead of need by a background thread, so that no query waits while the kernel
//! zeroes 2 MiB. When the limit falls, extents are drained and given back whole: see
//! [`crate::resize`]. The reservation stays mapped for ever, so a stale optimistic read never
//! faults: it may read zeroes.
//!
//! Where the kernel counts [what may be written](crate::mapping), every run of extents in use, and
//! every hole between two runs, is a separate mapping: at worst one for every 2 MiB, of which the
//! kernel allows 65,530 as a rule.
//!
//! A frame is *free* (on the list; no page; untouched), *in use* (some page word names it;
//! its bytes belong to the holder of that word's latch), or *in transit*: owned by the one thread
//! that took it off the list, or that evicted its page, until that thread installs or gives it
//! back.
//!
//! # Where
//! Here: where the frames lie, and the figures of the pool's memory. `descriptor`: what is known of
//! the page in a frame. `extents`: which frames are free, and what state each extent is in. `free`:
//! frames taken and given back. `backing`: extents started, and their memory given back to the
//! kernel. `residency`: which frames are in swap.
//!
//! # Locking
//! The mutex of the free list is innermost; nothing is called under it but `mprotect`, for the
//! extent that a miss waits for. What it guards is published in atomics after each change, so that
//! the figures can be read without it; they may be a moment old.

#![expect(
    unsafe_code,
    reason = "hands out the bytes of frames, whose exclusion the latches ensure"
)]

mod backing;
mod descriptor;
mod extents;
mod free;
mod residency;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Condvar;

pub(crate) use self::descriptor::Descriptor;
use self::extents::Extents;
pub(crate) use self::extents::{Extent, ExtentState};
use crate::contention::CountingMutex;
use crate::error::{Error, Result};
use crate::latch::MAX_FRAMES;
use crate::mapping::{Accounting, Mapping, ZeroedArray};
use crate::page::PageSize;
use crate::page_view::RacyBytes;
use tidepool_store::LogThrottle;

/// Bytes of an extent, the unit in which a pool takes memory and gives it back: a huge page of
/// x86-64, so that each comes and goes whole.
pub const EXTENT_BYTES: usize = 2 << 20;

struct FreeList {
    extents: Extents,
    /// Threads waiting for a free frame.
    waiting: u32,
}

pub(crate) struct Frames {
    memory: Mapping,
    /// Offset of the first frame in `memory`: frames are aligned to extents.
    skip: usize,
    page_size: PageSize,
    descriptors: ZeroedArray<Descriptor>,
    reserved: u32,
    free: CountingMutex<FreeList>,
    freed: Condvar,
    // What the extents say, as of the last change: written by `publish` only.
    limit: AtomicU32,
    started: AtomicU32,
    held: AtomicU32,
    available: AtomicU32,
    free_frames: AtomicU32,
    /// Extents that are draining or leaving.
    draining: AtomicU32,
    /// Whether the kernel has refused memory, and was not asked again.
    refused: AtomicBool,
    /// Whether to ask for huge pages.
    huge_pages: bool,
    /// Extents below this have asked for huge pages.
    advised: AtomicU32,
    accounting: Accounting,
    /// When a refusal was logged.
    refusals: LogThrottle,
    /// Makes the kernel seem to refuse.
    #[cfg(test)]
    pub(crate) refuse: AtomicBool,
    /// Makes the machine seem to have memory in swap.
    #[cfg(test)]
    pub(crate) seems_to_swap: AtomicBool,
}

impl Frames {
    /// Reserves room for `max_bytes` (less where the kernel refuses, but `bytes` at least), of
    /// which `bytes` may be used.
    pub(crate) fn new(
        page_size: PageSize,
        bytes: u64,
        max_bytes: u64,
        huge_pages: bool,
        accounting: Accounting,
    ) -> Result<Frames> {
        let frames_in = |bytes: u64| bytes / page_size.bytes() as u64;
        let limit = frames_in(bytes);
        if limit > MAX_FRAMES as u64 {
            return Err(Error::InvalidConfig(format!("{bytes} bytes are more than can be mapped")));
        }
        let per_extent = (EXTENT_BYTES / page_size.bytes()) as u32;
        let whole_extents = |frames: u64| frames.next_multiple_of(u64::from(per_extent));
        let most = u64::from(MAX_FRAMES / per_extent * per_extent);
        let least = whole_extents(limit).min(most);
        let wanted = whole_extents(frames_in(max_bytes.max(bytes))).min(most);
        let limit = limit.min(most);
        let (memory, reserved) = reserve(page_size, least, wanted, accounting)?;
        let descriptors = ZeroedArray::new(reserved as usize)
            .map_err(|error| Error::system("reserving frame descriptors", error))?;
        let extents = Extents::new(per_extent, reserved / per_extent, limit as u32)
            .map_err(|error| Error::system("reserving the list of free frames", error))?;
        let base = memory.base().as_ptr() as usize;
        let skip = base.next_multiple_of(EXTENT_BYTES) - base;
        // Now rather than at the first miss: a machine that refuses even one extent can't have a
        // pool.
        memory
            .commit(skip, EXTENT_BYTES)
            .map_err(|error| Error::system("the first 2 MiB of frames", error))?;
        Ok(Frames {
            skip,
            memory,
            page_size,
            descriptors,
            reserved,
            free: CountingMutex::new(FreeList { extents, waiting: 0 }),
            freed: Condvar::new(),
            limit: AtomicU32::new(limit as u32),
            started: AtomicU32::new(0),
            held: AtomicU32::new(0),
            available: AtomicU32::new(limit as u32),
            free_frames: AtomicU32::new(0),
            huge_pages,
            advised: AtomicU32::new(0),
            draining: AtomicU32::new(0),
            accounting,
            refused: AtomicBool::new(false),
            refusals: LogThrottle::default(),
            #[cfg(test)]
            refuse: AtomicBool::new(false),
            #[cfg(test)]
            seems_to_swap: AtomicBool::new(false),
        })
    }

    /// How the kernel counts the pool's memory.
    pub(crate) fn accounting(&self) -> Accounting {
        self.accounting
    }

    /// Frames that address space is reserved for.
    pub(crate) fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Frames that may be in use.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// All frames that were ever taken into use are below this one.
    pub(crate) fn highest(&self) -> u32 {
        self.free.lock().extents.highest() * self.per_extent()
    }

    /// Frames that can be had without evicting a page.
    pub(crate) fn available(&self) -> u32 {
        self.available.load(Ordering::Relaxed)
    }

    pub(crate) fn page_size(&self) -> PageSize {
        self.page_size
    }

    #[inline]
    pub(crate) fn descriptor(&self, frame: u32) -> &Descriptor {
        &self.descriptors[frame as usize]
    }

    /// The first byte of a frame.
    #[inline]
    pub(crate) fn address(&self, frame: u32) -> *mut u8 {
        assert!(frame < self.reserved);
        // SAFETY: the offset is below the mapping's length, since the frame is below `reserved`.
        unsafe { self.memory.base().as_ptr().add(self.offset_of_frame(frame)) }
    }

    /// The bytes of a frame, to read.
    ///
    /// # Safety
    /// For all of `'a` the caller holds the shared or exclusive latch of the page in the frame, or
    /// has the frame in transit.
    #[inline]
    pub(crate) unsafe fn bytes<'a>(&self, frame: u32) -> &'a [u8] {
        // SAFETY: mapped for ever, initialised (zero or more), not written meanwhile by promise.
        unsafe { std::slice::from_raw_parts(self.address(frame), self.page_size.bytes()) }
    }

    /// The bytes of a frame, to read while others may write them.
    pub(crate) fn racy(&self, frame: u32) -> RacyBytes<'_> {
        // SAFETY: mapped while `self` lives; frames are aligned to their size, a power of two.
        unsafe { RacyBytes::new(self.address(frame), self.page_size.bytes()) }
    }

    /// The bytes of a frame, to write.
    ///
    /// # Safety
    /// For all of `'a` the caller holds the exclusive latch of the page in the frame, or has the
    /// frame in transit, and uses no other reference to its bytes.
    #[inline]
    pub(crate) unsafe fn bytes_mut<'a>(&self, frame: u32) -> &'a mut [u8] {
        // SAFETY: mapped for ever, initialised, excluded from others by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.address(frame), self.page_size.bytes()) }
    }

    /// Frames in an extent.
    pub(crate) fn per_extent(&self) -> u32 {
        (EXTENT_BYTES / self.page_size.bytes()) as u32
    }

    /// Frames of extents that hold memory.
    pub(crate) fn started(&self) -> u32 {
        self.started.load(Ordering::Relaxed)
    }

    /// Extents that hold memory.
    pub(crate) fn extents_held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    /// How often a thread found the free list's mutex taken.
    pub(crate) fn waits(&self) -> u64 {
        self.free.waits()
    }

    /// Frames that must be given back for the pool to be within its limit.
    pub(crate) fn debt(&self) -> u32 {
        self.started().saturating_sub(self.limit())
    }

    /// Publishes the figures after a change to the extents, under the mutex.
    fn publish(&self, extents: &Extents) {
        debug_assert!(extents.free() <= extents.started(), "a free frame is in an extent");
        debug_assert!(extents.limit() <= self.reserved, "all frames have an address");
        self.limit.store(extents.limit(), Ordering::Relaxed);
        self.started.store(extents.started(), Ordering::Relaxed);
        self.held.store(extents.held(), Ordering::Relaxed);
        self.available.store(extents.available(), Ordering::Relaxed);
        self.free_frames.store(extents.free(), Ordering::Relaxed);
        self.refused.store(extents.is_refused(), Ordering::Relaxed);
        self.draining.store(extents.closed(), Ordering::Relaxed);
    }

    /// The same, after a change by which frames may have become available: wakes all who wait for
    /// one.
    fn publish_freed(&self, free: &FreeList) {
        self.publish(&free.extents);
        if free.waiting > 0 {
            self.freed.notify_all();
        }
    }

    #[inline]
    fn offset_of_frame(&self, frame: u32) -> usize {
        self.skip + frame as usize * self.page_size.bytes()
    }

    fn offset_of(&self, extent: u32) -> usize {
        self.skip + extent as usize * EXTENT_BYTES
    }

    /// Changes how many frames may be in use. Raised, they come with the next misses; lowered,
    /// those in use are [`Frames::debt`] until their extents are drained and given back.
    pub(crate) fn set_limit(&self, frames: u32) {
        assert!(frames <= self.reserved);
        let mut free = self.free.lock();
        free.extents.set_limit(frames);
        self.publish_freed(&free);
    }
}

/// Reserves address space for `wanted` frames; where the kernel refuses, for half as many, again
/// and again, down to `least`. Returns it with the number of frames.
fn reserve(
    page_size: PageSize,
    least: u64,
    mut wanted: u64,
    accounting: Accounting,
) -> Result<(Mapping, u32)> {
    let per_extent = (EXTENT_BYTES / page_size.bytes()) as u64;
    loop {
        // An extent more, so that the frames can begin at a multiple of an extent.
        let len = wanted as usize * page_size.bytes() + EXTENT_BYTES;
        match Mapping::reserve(len, accounting) {
            Ok(memory) => {
                memory.exclude_from_core_dumps();
                return Ok((memory, wanted as u32));
            }
            Err(_) if wanted > least => {
                wanted = (wanted / 2).next_multiple_of(per_extent).max(least);
            }
            Err(error) => return Err(Error::system(format!("reserving {len} bytes"), error)),
        }
    }
}
