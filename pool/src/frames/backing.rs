//! The memory behind the extents: taken from the kernel, ahead of need or not, and given back.
//!
//! Where the kernel counts [what may be written](crate::mapping), an extent is *committed* before a
//! frame of it is used, and the kernel may refuse. A refusal is remembered, so that not every miss
//! asks again, until [`Frames::forget_refusal`], a change of the limit, or an extent given back.
//!
//! # Huge pages
//! They are asked for only below the furthest extent that was prepared ahead of need. An extent
//! that a query has to start itself is of small pages: to find a huge page the kernel may have to
//! compact memory (on a fragmented machine that took 26 ms an extent, against 2.6 ms with small
//! pages). As the region with the advice only grows, the mapping never falls into more than two
//! parts by it.
//!
//! Locking: memory is prepared and released without the mutex, while the extent is `starting` or
//! `leaving` and hence no other thread's. Only [`Frames::commit`] for the extent that a miss waits
//! for is called under it.

use std::io;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use super::extents::Survey;
use super::{EXTENT_BYTES, Extent, Frames};
use crate::mapping::{Accounting, Zeroable};

/// Extents prepared ahead of need, at most: 8 MiB are what a fast disk fills while a thread is
/// woken.
const AHEAD_EXTENTS: u32 = 4;

/// The kernel's pages.
const MEMORY_PAGE_BYTES: usize = 4096;

// SAFETY: integers, and an enum of which zero is a variant.
unsafe impl Zeroable for Extent {}

impl Frames {
    /// Lets a vacant extent be written. False: the kernel refuses.
    pub(super) fn commit(&self, extent: u32) -> bool {
        let committed = self.memory.commit(self.offset_of(extent), EXTENT_BYTES);
        #[cfg(test)]
        let committed = match self.refuse.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => committed,
        };
        committed.is_ok()
    }

    /// Logs that the kernel has refused memory, now and then. Not to be called under the mutex.
    pub(super) fn log_refusal(&self) {
        if self.refusals.is_due(Instant::now()).is_some() {
            let mib = u64::from(self.extents_held()) * EXTENT_BYTES as u64 / (1 << 20);
            tracing::warn!(
                "the kernel may promise no more memory (vm.overcommit_memory is 2, see CommitLimit in /proc/meminfo): the buffer pool goes on with {mib} MiB; raise vm.overcommit_ratio to give it more"
            );
        }
    }

    /// Gives a committed extent's memory back.
    ///
    /// # Safety
    /// No thread has a reference into the extent, except racy readers.
    unsafe fn release(&self, extent: u32) -> io::Result<()> {
        let offset = self.offset_of(extent);
        // SAFETY: by the caller's promise.
        unsafe { self.memory.release(offset, EXTENT_BYTES)? };
        if self.accounting == Accounting::Writable {
            // The new mapping must have the advice of its neighbours, or the kernel never merges
            // them.
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

    /// Lets the kernel be asked for memory again.
    pub(crate) fn forget_refusal(&self) {
        if self.is_refused() {
            let mut free = self.free.lock();
            free.extents.set_refused(false);
            self.publish(&free.extents);
        }
    }

    /// What each extent holds that is not vacant. The mutex is released in between, so that no
    /// thread waits long for a frame; so the whole is no snapshot.
    pub(crate) fn survey(&self) -> Vec<Survey> {
        /// Extents looked at under one hold of the mutex.
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

    /// Takes no more frames from the extent, if any must be given back. Only the resize calls this,
    /// and what follows.
    pub(crate) fn drain(&self, extent: u32) {
        let mut free = self.free.lock();
        free.extents.drain(extent);
        self.publish(&free.extents);
    }

    /// Whether no frame is taken from the extent, because it will be given back.
    pub(crate) fn is_draining(&self, extent: u32) -> bool {
        self.free.lock().extents.is_draining(extent)
    }

    /// The draining extent is in use again.
    pub(crate) fn reopen(&self, extent: u32) {
        let mut free = self.free.lock();
        free.extents.reopen(extent);
        self.publish_freed(&free);
    }

    /// Gives the memory of a draining extent back to the kernel, if no frame of it is in use or in
    /// transit: then true. If the kernel refuses, the extent is in use again.
    pub(crate) fn give_back(&self, extent: u32) -> io::Result<bool> {
        if !self.free.lock().extents.leave(extent) {
            return Ok(false);
        }
        // SAFETY: all frames of the extent are free, and none is taken while it is leaving; so
        // no thread has a page word latched that names one of them, and without that no thread but
        // optimistic readers looks at a frame. Those read atomics, may find zeroes as they may find
        // anything, and don't believe it: their page left the frame, so its word has changed.
        let released = unsafe { self.release(extent) };
        if let Err(error) = released {
            self.reopen(extent);
            return Err(error);
        }
        let mut free = self.free.lock();
        free.extents.given_back(extent);
        self.publish_freed(&free);
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

    /// Takes an extent into use ahead of need, if few frames are free and there is room for it.
    /// Memory that the kernel refused is asked for again. False: there is nothing to do.
    pub(crate) fn grow_ahead(&self) -> bool {
        self.forget_refusal();
        self.wants_extent() && self.start_extent().unwrap_or_else(|error| {
            tracing::warn!(%error, "2 MiB prepared for the buffer pool could not be given back");
            false
        })
    }

    /// Starts an extent whose memory the kernel has backed already, with a huge page if it can.
    /// False if there is no room for one. Only one thread at a time calls this.
    ///
    /// # Errors
    /// If there is no room any more once it is ready, and the kernel refuses to take it back.
    pub(crate) fn start_extent(&self) -> io::Result<bool> {
        let Some(extent) = self.free.lock().extents.begin_start() else { return Ok(false) };
        if !self.commit(extent) {
            let mut free = self.free.lock();
            free.extents.cancel_start(extent);
            free.extents.set_refused(true);
            self.publish(&free.extents);
            drop(free);
            self.log_refusal();
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
            self.publish_freed(&free);
            return Ok(true);
        }
        drop(free);
        // SAFETY: the extent is starting, so none of its frames is in use or in transit; optimistic
        // readers that still look at one may find zeroes, as in `give_back`.
        let released = unsafe { self.release(extent) };
        self.free.lock().extents.cancel_start(extent);
        released.map(|()| false)
    }

    /// Touches the memory of a frame in transit, or in a starting extent, so that the thread that
    /// fills it under a latch meets no page fault.
    pub(crate) fn touch(&self, frame: u32) {
        // As at every first store into a frame: an optimistic reader of the page that it held
        // before must, if it sees this store, also see that page's word changed.
        fence(Ordering::Release);
        // SAFETY: the caller has the frame in transit, or its extent starting.
        let bytes = unsafe { self.bytes_mut(frame) };
        for at in (0..bytes.len()).step_by(MEMORY_PAGE_BYTES) {
            // Volatile, or the compiler might drop a store that nothing reads.
            // SAFETY: a byte of the frame.
            unsafe { std::ptr::write_volatile(&raw mut bytes[at], 0) };
        }
    }
}
