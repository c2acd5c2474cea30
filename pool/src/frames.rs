//! Frames: the memory that holds pages, one descriptor a frame, and the list of free frames.
//!
//! One reservation of address space, cut in extents of 2 MiB. Extents are taken into use one by one
//! as misses need them, up to the limit; the kernel backs them when they are first touched. The
//! reservation stays mapped for ever, so a stale optimistic read never faults.
//!
//! A frame is *free* (on the list; no page; nobody touches it), *in use* (some page word names it;
//! its bytes belong to who holds that word's latch), or *in transit*: owned by the one thread that
//! took it off the list, or that evicted its page, until that thread installs or gives it back.
//!
//! Locking: the list's mutex is innermost; nothing is called under it.

#![expect(
    unsafe_code,
    reason = "hands out the bytes of frames, whose exclusion the latches ensure"
)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::latch::MAX_FRAMES;
use crate::mapping::{Mapping, Zeroable, ZeroedArray};
use crate::page::{PageId, PageSize};
use crate::view::RacyBytes;

/// Bytes that are taken into use, and given back, together.
pub(crate) const EXTENT_BYTES: usize = 2 << 20;

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
    _reserved: AtomicU32,
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

    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    pub(crate) fn set_version(&self, version: u32) {
        self.version.store(version, Ordering::Relaxed);
    }

    /// Whether the page differs from its file. Once false under the exclusive latch, it stays so.
    pub(crate) fn is_dirty(&self) -> bool {
        // A failed write-out restores `rec_lsn` before it clears `flushing`, hence this order.
        self.flushing.load(Ordering::Acquire) != 0 || self.rec_lsn.load(Ordering::Acquire) != 0
    }
}

struct FreeList {
    /// Free frames; taken from the end.
    frames: Vec<u32>,
    /// Frames below this have been taken into use at some time.
    started: u32,
    /// Threads waiting for a free frame.
    waiting: u32,
}

/// All frames.
pub(crate) struct Frames {
    memory: Mapping,
    /// Offset of the first frame in `memory`: frames are aligned to extents.
    skip: usize,
    page_size: PageSize,
    descriptors: ZeroedArray<Descriptor>,
    reserved: u32,
    limit: AtomicU32,
    free: Mutex<FreeList>,
    freed: Condvar,
    /// Free frames plus those not yet started: what can be had without evicting.
    available: AtomicU32,
}

impl Frames {
    /// Reserves room for `max_bytes` (less where the kernel refuses, but `bytes` at least), of which
    /// `bytes` may be used.
    pub(crate) fn new(
        page_size: PageSize,
        bytes: u64,
        max_bytes: u64,
        huge_pages: bool,
    ) -> Result<Frames> {
        let frames_in = |bytes: u64| bytes / page_size.bytes() as u64;
        let limit = frames_in(bytes);
        if limit > MAX_FRAMES as u64 {
            return Err(Error::InvalidConfig(format!("{bytes} bytes are more than can be mapped")));
        }
        let mut wanted = frames_in(max_bytes.max(bytes)).min(MAX_FRAMES as u64);
        let (memory, reserved) = loop {
            let len = wanted as usize * page_size.bytes() + EXTENT_BYTES;
            match Mapping::reserve(len) {
                Ok(memory) => break (memory, wanted as u32),
                Err(_) if wanted > limit => wanted = (wanted / 2).max(limit),
                Err(error) => return Err(Error::system(format!("reserving {len} bytes"), error)),
            }
        };
        memory.exclude_from_core_dumps();
        if huge_pages {
            memory.prefer_huge_pages();
        }
        let base = memory.base().as_ptr() as usize;
        let descriptors = ZeroedArray::new(reserved as usize)
            .map_err(|error| Error::system("reserving frame descriptors", error))?;
        Ok(Frames {
            skip: base.next_multiple_of(EXTENT_BYTES) - base,
            memory,
            page_size,
            descriptors,
            reserved,
            limit: AtomicU32::new(limit as u32),
            free: Mutex::new(FreeList { frames: Vec::new(), started: 0, waiting: 0 }),
            freed: Condvar::new(),
            available: AtomicU32::new(limit as u32),
        })
    }

    /// Frames that address space is reserved for.
    pub(crate) fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Frames that may be in use.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Frames from this one on have never been taken into use.
    pub(crate) fn started(&self) -> u32 {
        self.free.lock().started
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
        let offset = self.skip + frame as usize * self.page_size.bytes();
        // SAFETY: the offset is below the mapping's length, since the frame is below `reserved`.
        unsafe { self.memory.base().as_ptr().add(offset) }
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

    /// Raises the limit to `frames`, unless it is higher already; returns what it is.
    pub(crate) fn raise_limit(&self, frames: u32) -> u32 {
        assert!(frames <= self.reserved);
        let _free = self.free.lock();
        let before = self.limit();
        if frames > before {
            self.limit.store(frames, Ordering::Relaxed);
            self.available.fetch_add(frames - before, Ordering::Relaxed);
            self.freed.notify_all();
        }
        before.max(frames)
    }

    /// Takes a free frame, starting a new extent if the list is empty and the limit allows.
    pub(crate) fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        if free.frames.is_empty() {
            let extent = (EXTENT_BYTES / self.page_size.bytes()) as u32;
            let end = (free.started + extent).min(self.limit()).max(free.started);
            // Reversed, so that the lowest is taken first and the extent fills from its start.
            let started = free.started;
            free.frames.extend((started..end).rev());
            free.started = end;
        }
        let frame = free.frames.pop()?;
        self.available.fetch_sub(1, Ordering::Relaxed);
        Some(frame)
    }

    /// Gives a frame back that has no page.
    pub(crate) fn give(&self, frame: u32) {
        debug_assert!(
            self.descriptor(frame).page().is_none() && !self.descriptor(frame).is_dirty()
        );
        let mut free = self.free.lock();
        free.frames.push(frame);
        self.available.fetch_add(1, Ordering::Relaxed);
        if free.waiting > 0 {
            self.freed.notify_one();
        }
    }

    /// Waits until a frame may be free, at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        let mut free = self.free.lock();
        if free.frames.is_empty() {
            free.waiting += 1;
            self.freed.wait_for(&mut free, timeout);
            free.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_aligned_distinct_and_limited() {
        let size = PageSize::DEFAULT;
        let frames = Frames::new(size, 200 * 16384, 1 << 30, true).unwrap();
        assert_eq!((frames.limit(), frames.reserved()), (200, 65536));
        let mut taken: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
        assert_eq!(taken, (0..128).chain(128..200).collect::<Vec<_>>());
        assert_eq!(frames.available(), 0);
        assert_eq!(frames.address(0) as usize % EXTENT_BYTES, 0);
        assert_eq!(frames.address(3) as usize - frames.address(0) as usize, 3 * 16384);
        // SAFETY: the frame is in transit.
        unsafe { frames.bytes_mut(199).fill(7) };
        frames.give(taken.pop().unwrap());
        assert_eq!((frames.available(), frames.take()), (1, Some(199)));
        frames.wait(Duration::from_millis(1));
    }

    #[test]
    fn the_limit_is_raised_in_place() {
        let frames = Frames::new(PageSize::DEFAULT, 100 * 16384, 1 << 30, true).unwrap();
        let taken = std::iter::from_fn(|| frames.take()).count();
        assert_eq!((taken, frames.raise_limit(300), frames.raise_limit(200)), (100, 300, 300));
        assert_eq!(frames.available(), 200);
        let more: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
        assert_eq!(more, (100..300).collect::<Vec<_>>());
    }
}
