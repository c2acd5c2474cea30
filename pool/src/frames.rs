//! Frames: the memory that holds pages, one descriptor a frame, and the list of free frames.
//!
//! One reservation of address space, cut in extents of 2 MiB. Extents are taken into use one by one
//! as misses need them, up to the limit; the kernel backs them when they are first touched.
//!
//! A few extents are taken into use ahead of need by a thread that touches them first, so that no
//! query waits while the kernel zeroes 2 MiB, or compacts memory to find a huge page. (On a fragmented
//! machine that took 26 ms an extent, against 2.6 ms with small pages.) Huge pages are asked for only
//! below the furthest extent prepared in that way, so an extent that a query has to start itself is
//! of small pages; as that region only grows, the mapping never falls into more than two parts. When the
//! limit falls, extents are drained and given back to it whole: see [`crate::resize`]. The
//! reservation stays mapped for ever, so a stale optimistic read never faults: it may read zeroes.
//! And a frame's descriptor outlives its memory, so that versions go on where they were.
//!
//! Where the kernel counts [what may be written](crate::mapping), an extent is committed when it is started and given up with its
//! memory, which the kernel may refuse: then the pool goes on with what it has. That cuts the mapping in as many parts as there are runs of
//! extents in use, and holes between them; at worst one for every 2 MiB, of which 65,530 are allowed as a rule.
//!
//! A frame is *free* (on the list; no page; nobody touches it), *in use* (some page word names it;
//! its bytes belong to who holds that word's latch), or *in transit*: owned by the one thread that
//! took it off the list, or that evicted its page, until that thread installs or gives it back.
//!
//! Locking: the list's mutex is innermost; nothing is called under it (but `mprotect`, for the extent that somebody waits for).

#![expect(
    unsafe_code,
    reason = "hands out the bytes of frames, whose exclusion the latches ensure"
)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::Condvar;

use crate::error::{Error, Result};
use crate::extents::{Extents, Survey};
use crate::latch::MAX_FRAMES;
use crate::mapping::{Accounting, Mapping, Zeroable, ZeroedArray};
use crate::page::{PageId, PageSize};
use crate::rarely::Rarely;
use crate::view::RacyBytes;
use crate::watched::Watched;

/// Bytes that are taken into use, and given back, together.
pub(crate) const EXTENT_BYTES: usize = 2 << 20;

/// Extents prepared ahead of need, at most: 8 MiB are what a fast disk fills while a thread is woken.
const AHEAD_EXTENTS: u32 = 4;

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

    /// Whether the page differs from its file. Exact under the exclusive latch, where once false it stays so, and under the dirty
    /// queue's mutex. Otherwise a hint: between the two looks a write-out may begin, which takes the one mark off when the
    /// other is set.
    pub(crate) fn is_dirty(&self) -> bool {
        // A failed write-out restores `rec_lsn` before it clears `flushing`, and needs no latch for that, hence this order.
        self.flushing.load(Ordering::Acquire) != 0 || self.rec_lsn.load(Ordering::Acquire) != 0
    }
}

struct FreeList {
    extents: Extents,
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
    free: Watched<FreeList>,
    freed: Condvar,
    // What the extents say, as of the last change.
    limit: AtomicU32,
    started: AtomicU32,
    held: AtomicU32,
    available: AtomicU32,
    free_frames: AtomicU32,
    /// Whether to ask for huge pages.
    huge_pages: bool,
    /// Extents below this have asked for huge pages.
    advised: AtomicU32,
    /// Extents that are draining or leaving.
    draining: AtomicU32,
    accounting: Accounting,
    /// Whether the kernel has refused memory, and was not asked again.
    refused: AtomicBool,
    refusals: Rarely,
    /// Makes the kernel seem to refuse.
    #[cfg(test)]
    pub(crate) refuse: AtomicBool,
}

impl Frames {
    /// Reserves room for `max_bytes` (less where the kernel refuses, but `bytes` at least), of which
    /// `bytes` may be used.
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
        // Whole extents.
        let per_extent = (EXTENT_BYTES / page_size.bytes()) as u32;
        let whole = |frames: u64| frames.next_multiple_of(per_extent as u64);
        let most = (MAX_FRAMES / per_extent * per_extent) as u64;
        let least = whole(limit).min(most);
        let limit = limit.min(most);
        let mut wanted = whole(frames_in(max_bytes.max(bytes))).min(most);
        let (memory, reserved) = loop {
            let len = wanted as usize * page_size.bytes() + EXTENT_BYTES;
            match Mapping::reserve(len, accounting) {
                Ok(memory) => break (memory, wanted as u32),
                Err(_) if wanted > least => wanted = whole(wanted / 2).max(least),
                Err(error) => return Err(Error::system(format!("reserving {len} bytes"), error)),
            }
        };
        memory.exclude_from_core_dumps();
        let base = memory.base().as_ptr() as usize;
        let descriptors = ZeroedArray::new(reserved as usize)
            .map_err(|error| Error::system("reserving frame descriptors", error))?;
        let extents = Extents::new(per_extent, reserved / per_extent, limit as u32)
            .map_err(|error| Error::system("reserving the list of free frames", error))?;
        let skip = base.next_multiple_of(EXTENT_BYTES) - base;
        // The first to be started, so that a pool which could have no memory at all is none.
        memory
            .commit(skip, EXTENT_BYTES)
            .map_err(|error| Error::system("the first 2 MiB of frames", error))?;
        Ok(Frames {
            skip,
            memory,
            page_size,
            descriptors,
            reserved,
            free: Watched::new(FreeList { extents, waiting: 0 }),
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
            refusals: Rarely::default(),
            #[cfg(test)]
            refuse: AtomicBool::new(false),
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

    /// Frames of extents that were in use at some time: all are below this.
    pub(crate) fn ever_started(&self) -> u32 {
        (self.free.lock().extents.highest() * self.per_extent()).min(self.reserved)
    }

    /// Frames that may be in use.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Frames from this one on have never been taken into use.
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

    /// After a change to the extents, under the mutex.
    fn publish(&self, extents: &Extents) {
        self.limit.store(extents.limit(), Ordering::Relaxed);
        self.started.store(extents.started(), Ordering::Relaxed);
        self.held.store(extents.held(), Ordering::Relaxed);
        self.available.store(extents.available(), Ordering::Relaxed);
        self.free_frames.store(extents.free(), Ordering::Relaxed);
        self.refused.store(extents.is_refused(), Ordering::Relaxed);
        self.draining.store(extents.closed(), Ordering::Relaxed);
    }

    fn offset_of(&self, extent: u32) -> usize {
        self.skip + extent as usize * EXTENT_BYTES
    }

    /// Lets a vacant extent be written. False: the kernel refuses.
    fn commit(&self, extent: u32) -> bool {
        let committed = self.memory.commit(self.offset_of(extent), EXTENT_BYTES);
        #[cfg(test)]
        let committed = match self.refuse.load(Ordering::Relaxed) {
            true => Err(std::io::ErrorKind::OutOfMemory.into()),
            false => committed,
        };
        committed.is_ok()
    }

    /// Not to be called under the mutex.
    fn say_refused(&self) {
        if self.refusals.is_due(Instant::now()).is_some() {
            let mib = u64::from(self.extents_held()) * EXTENT_BYTES as u64 / (1 << 20);
            tracing::warn!(
                "the kernel may promise no more memory (vm.overcommit_memory is 2, see CommitLimit in /proc/meminfo): the buffer pool goes on with {mib} MiB"
            );
        }
    }

    /// Gives a committed extent's memory back.
    ///
    /// # Safety
    /// Nobody has a reference into the extent, but racy readers.
    unsafe fn release(&self, extent: u32) -> std::io::Result<()> {
        let offset = self.offset_of(extent);
        // SAFETY: by the caller's promise.
        unsafe { self.memory.release(offset, EXTENT_BYTES)? };
        if self.accounting == Accounting::Writable {
            // What replaces it must be like what is beside it, or the two stay two mappings for ever.
            self.memory.exclude_from_core_dumps_at(offset, EXTENT_BYTES);
            if extent < self.advised.load(Ordering::Relaxed) {
                self.memory.prefer_huge_pages(offset, EXTENT_BYTES);
            }
        }
        Ok(())
    }

    /// Whether the kernel has refused memory, and was not asked again.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// It may be asked again.
    pub(crate) fn forget_refusal(&self) {
        if self.is_refused() {
            let mut free = self.free.lock();
            free.extents.set_refused(false);
            self.publish(&free.extents);
        }
    }

    /// Changes how many frames may be in use. Raised, they come with the next misses; lowered,
    /// those in use are [`Frames::debt`] until their extents are drained and given back.
    pub(crate) fn set_limit(&self, frames: u32) {
        assert!(frames <= self.reserved);
        let mut free = self.free.lock();
        free.extents.set_limit(frames);
        self.publish(&free.extents);
        if free.waiting > 0 {
            self.freed.notify_all();
        }
    }

    /// Takes a free frame, starting a new extent if the list is empty and the limit allows.
    pub(crate) fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let was_refused = free.extents.is_refused();
        let frame = free.extents.take(|extent| self.commit(extent));
        let is_refused = free.extents.is_refused();
        if frame.is_some() || is_refused != was_refused {
            self.publish(&free.extents);
        }
        drop(free);
        if is_refused && !was_refused {
            self.say_refused();
        }
        frame
    }

    /// Gives a frame back that has no page.
    pub(crate) fn give(&self, frame: u32) {
        debug_assert!(
            self.descriptor(frame).page().is_none() && !self.descriptor(frame).is_dirty()
        );
        let mut free = self.free.lock();
        if free.extents.give(frame) {
            self.publish(&free.extents);
            if free.waiting > 0 {
                self.freed.notify_one();
            }
        }
    }

    /// Whether a frame in transit may be used for another page. If not, it was given back: its
    /// extent is being drained.
    pub(crate) fn may_reuse(&self, frame: u32) -> bool {
        if self.draining.load(Ordering::Relaxed) == 0 || self.free.lock().extents.is_open(frame) {
            return true;
        }
        self.give(frame);
        false
    }

    /// Waits until a frame may be free, at most for `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        let mut free = self.free.lock();
        if free.extents.available() == 0 {
            free.waiting += 1;
            self.freed.wait_for(&mut free, timeout);
            free.waiting -= 1;
        }
    }

    /// What the extents hold that are not vacant. Looks at some hundreds at a time, so that nobody
    /// waits long for a frame: the whole is no snapshot.
    pub(crate) fn survey(&self) -> Vec<Survey> {
        const AT_ONCE: u32 = 512;
        let mut out = Vec::new();
        let mut next = 0;
        loop {
            let free = self.free.lock();
            if next >= free.extents.highest() {
                return out;
            }
            free.extents.survey(next..next + AT_ONCE, &mut out);
            next += AT_ONCE;
        }
    }

    /// Takes no more frames from the extent, if any must be given back. Only the resize calls this, and what follows.
    pub(crate) fn drain(&self, extent: u32) {
        let mut free = self.free.lock();
        free.extents.drain(extent);
        self.publish(&free.extents);
    }

    /// Whether no frame is taken from the extent, because it is to be given back.
    pub(crate) fn is_draining(&self, extent: u32) -> bool {
        self.free.lock().extents.is_draining(extent)
    }

    /// The draining extent is in use again.
    pub(crate) fn reopen(&self, extent: u32) {
        let mut free = self.free.lock();
        free.extents.reopen(extent);
        self.publish(&free.extents);
        if free.waiting > 0 {
            self.freed.notify_all();
        }
    }

    /// Gives the memory of a draining extent back to the kernel, if no frame of it is in use or in
    /// transit: then true. If the kernel refuses, the extent is in use again.
    pub(crate) fn give_back(&self, extent: u32) -> std::io::Result<bool> {
        if !self.free.lock().extents.leave(extent) {
            return Ok(false);
        }
        // SAFETY: all frames of the extent are free, and none is taken while it is leaving; so
        // nobody has a page word that names one of them latched, and without that nobody but
        // optimistic readers looks at a frame. Those read atomics, may find zeroes as they may find
        // anything, and don't believe it: their page left the frame, so its word has changed.
        let released = unsafe { self.release(extent) };
        if let Err(error) = released {
            self.reopen(extent);
            return Err(error);
        }
        let mut free = self.free.lock();
        free.extents.given_back(extent);
        self.publish(&free.extents);
        if free.waiting > 0 {
            self.freed.notify_all();
        }
        Ok(true)
    }

    /// Whether an extent should be started ahead of need: there is room for it, and few frames are
    /// free. (A small pool has none started ahead; they would be too large a share of it.)
    #[inline]
    pub(crate) fn wants_extent(&self) -> bool {
        let (limit, started) = (self.limit(), self.started());
        let ahead = (AHEAD_EXTENTS * self.per_extent()).min(limit / 16);
        self.free_frames.load(Ordering::Relaxed) < ahead
            && limit.saturating_sub(started) >= self.per_extent()
            && !self.is_refused()
    }

    /// Starts an extent whose memory the kernel has backed already, with a huge page if it can.
    /// False if there is no room for one. Only one thread at a time calls this.
    ///
    /// # Errors
    /// If there is no room any more once it is ready, and the kernel refuses to take it back.
    pub(crate) fn start_extent(&self) -> std::io::Result<bool> {
        let Some(extent) = self.free.lock().extents.begin_start() else { return Ok(false) };
        if !self.commit(extent) {
            let mut free = self.free.lock();
            free.extents.cancel_start(extent);
            free.extents.set_refused(true);
            self.publish(&free.extents);
            drop(free);
            self.say_refused();
            return Ok(false);
        }
        let advised = self.advised.load(Ordering::Relaxed);
        if self.huge_pages && extent >= advised {
            let from = self.offset_of(advised);
            self.memory.prefer_huge_pages(from, (extent + 1 - advised) as usize * EXTENT_BYTES);
            self.advised.store(extent + 1, Ordering::Relaxed);
        }
        let first = extent * self.per_extent();
        for frame in first..first + self.per_extent() {
            self.touch(frame);
        }
        let mut free = self.free.lock();
        let fits = free.extents.finish_start(extent);
        if fits {
            self.publish(&free.extents);
            if free.waiting > 0 {
                self.freed.notify_all();
            }
            return Ok(true);
        }
        drop(free);
        // SAFETY: the extent is starting, so none of its frames is in use or in transit; optimistic
        // readers that still look at one may find zeroes, as in `give_back`.
        let released = unsafe { self.release(extent) };
        self.free.lock().extents.cancel_start(extent);
        released.map(|()| false)
    }

    /// Touches every page of a frame in transit or of a starting extent, so that who fills it under a latch meets no fault.
    pub(crate) fn touch(&self, frame: u32) {
        // As at every first store into a frame: who still reads it for the page that it had must,
        // if it sees this, see that page's word changed.
        fence(Ordering::Release);
        // SAFETY: the caller has the frame in transit, or its extent starting.
        let bytes = unsafe { self.bytes_mut(frame) };
        for at in (0..bytes.len()).step_by(4096) {
            // Volatile, as the compiler would not see a reason to write it.
            // SAFETY: a byte of the frame.
            unsafe { std::ptr::write_volatile(&raw mut bytes[at], 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::charged_bytes;
    use crate::view::PageView;

    #[test]
    fn frames_are_aligned_distinct_and_limited() {
        let size = PageSize::DEFAULT;
        let frames = Frames::new(size, 200 * 16384, 1 << 30, true, Accounting::Touched).unwrap();
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
        let frames =
            Frames::new(PageSize::DEFAULT, 100 * 16384, 1 << 30, true, Accounting::Touched)
                .unwrap();
        let taken = std::iter::from_fn(|| frames.take()).count();
        frames.set_limit(300);
        assert_eq!((taken, frames.limit(), frames.available()), (100, 300, 200));
        let more: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
        assert_eq!(more, (100..300).collect::<Vec<_>>());
    }

    #[test]
    fn a_drained_extent_loses_its_bytes_and_comes_back_empty() {
        let frames =
            Frames::new(PageSize::DEFAULT, 256 * 16384, 0, false, Accounting::Touched).unwrap();
        let taken: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
        // SAFETY: the frame is in transit.
        unsafe { frames.bytes_mut(130).fill(7) };
        frames.set_limit(128);
        assert_eq!(frames.debt(), 128);
        frames.drain(1);
        for &frame in &taken[129..] {
            assert!(!frames.may_reuse(frame));
        }
        assert!(!frames.give_back(1).unwrap(), "frame 128 is in transit");
        frames.give(128);
        assert!(frames.give_back(1).unwrap());
        assert_eq!((frames.debt(), frames.started(), frames.take()), (0, 128, None));
        frames.set_limit(256);
        assert!(frames.may_reuse(0));
        let again: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
        assert_eq!(again, (128..256).collect::<Vec<_>>());
        // SAFETY: the frame is in transit.
        assert!(unsafe { frames.bytes(130) }.iter().all(|&byte| byte == 0));
    }
    #[test]
    fn extents_are_started_ahead_while_there_is_room() {
        const EXTENT: u64 = EXTENT_BYTES as u64;
        let frames =
            Frames::new(PageSize::DEFAULT, 40 * EXTENT, 0, true, Accounting::Touched).unwrap();
        // A sixteenth of the frames is 320, in three extents.
        assert!(frames.wants_extent());
        while frames.wants_extent() {
            assert!(frames.start_extent().unwrap());
        }
        assert_eq!((frames.extents_held(), frames.started()), (3, 384));
        assert_eq!(frames.available(), 40 * 128, "what is started can still be taken");
        // They are taken before others are started.
        for _ in 0..384 {
            assert!(frames.take().unwrap() < 384);
        }
        assert!(frames.wants_extent());
        // No room for a whole one.
        frames.set_limit(500);
        assert!(!frames.wants_extent());
        assert!(!frames.start_extent().unwrap());
        assert_eq!(frames.take(), Some(384));
        // A small pool has none started ahead.
        assert!(
            !Frames::new(PageSize::DEFAULT, EXTENT / 2, 0, true, Accounting::Touched)
                .unwrap()
                .wants_extent()
        );
    }

    #[test]
    fn where_all_counts_that_may_be_written_only_extents_in_use_may() {
        const EXTENT: u64 = EXTENT_BYTES as u64;
        let (size, most) = (4 * EXTENT, 64 << 30);
        let frames = Frames::new(PageSize::DEFAULT, size, most, false, Accounting::Writable);
        let frames = frames.unwrap();
        let charged = || charged_bytes(frames.memory.base().as_ptr(), most as usize);
        if charged().is_none() {
            eprintln!("skipped: the kernel does not say what it counts");
            return;
        }
        assert_eq!(charged(), Some(EXTENT), "what is started first");
        let fill = || {
            let taken: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
            for &frame in &taken {
                // SAFETY: the frame is in transit.
                unsafe { frames.bytes_mut(frame).fill(7) };
            }
            taken
        };
        assert_eq!((fill().len(), charged()), (512, Some(size)));
        frames.set_limit(3 * 128);
        frames.drain(1);
        (128..256).for_each(|frame| frames.give(frame));
        assert!(frames.give_back(1).unwrap());
        assert_eq!(charged(), Some(size - EXTENT));
        frames.set_limit(4 * 128);
        // Who still looks there finds zeroes.
        assert_eq!(frames.racy(130).u64_at(8), Ok(0));
        assert_eq!((fill(), charged()), ((128..256).collect(), Some(size)));
    }

    #[test]
    fn a_refused_extent_is_asked_for_again_when_there_is_reason() {
        const EXTENT: u64 = EXTENT_BYTES as u64;
        let frames = Frames::new(PageSize::DEFAULT, 40 * EXTENT, 0, false, Accounting::Touched);
        let frames = frames.unwrap();
        frames.refuse.store(true, Ordering::Relaxed);
        assert_eq!((frames.take(), frames.available(), frames.limit()), (None, 0, 40 * 128));
        assert!(!frames.wants_extent(), "nobody is woken for nothing");
        frames.forget_refusal();
        assert!(frames.wants_extent() && !frames.start_extent().unwrap());
        assert!(frames.is_refused());
        frames.refuse.store(false, Ordering::Relaxed);
        assert_eq!(frames.take(), None, "not asked again yet");
        frames.set_limit(20 * 128);
        assert_eq!(frames.available(), 20 * 128);
        assert_eq!(std::iter::from_fn(|| frames.take()).count(), 20 * 128);
    }
}
