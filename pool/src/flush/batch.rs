//! One batch of dirty pages on its way to disk.
//!
//! For each page of a batch: latch shared (try only), note it in flight, copy it, unlatch. Then,
//! with no latch held: make the redo durable up to the newest page LSN of the batch; stamp the
//! copies' checksums; write and sync them; only then is a page clean (unless a change after the
//! copy queued it anew).
//!
//! The copies become images, and each file gets those of its pages as one run (`packed`). Pages
//! that have a second copy are then written to their mirror (`mirrors`).
//!
//! One batch at a time: the state's mutex covers all of that.
//!
//! # When it fails
//! - The redo log: nothing was written; all stay dirty.
//! - The write of a file's run, or of a page's second copy: those pages stay dirty and are tried
//!   again. So do pages whose place the file's map does not say, for a part of it can't be read.
//!   What the file had is untouched, for no image is overwritten. The others of the batch are not
//!   held up.
//! - All that is tried again for ever is in the log now and then only.
//! - A file's sync: final. What that file holds is no longer known, and a second sync would lie. So
//!   nothing is written any more; the pool goes on serving what it has and can read, and the log
//!   learns of it ([`WriteAhead::storage_failed`](crate::WriteAhead::storage_failed)).
//! - A panic (a bug): where the disk was being asked for something, that counts as failed. Anywhere
//!   else the panic goes on to the caller, and the pages left in flight are dirty as before
//!   ([`InFlight`]).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Cause, Flusher};
use crate::error::{Error, Result};
use crate::page::{self, Lsn, PageDefect, PageId, PageSize};
use crate::pool_core::PoolCore;
use crate::space::Space;
use crate::storage::{AlignedBuf, StorageOp};
use crate::sync::Wants;

/// What a write-out needs, one at a time.
pub(crate) struct BatchState {
    page_size: PageSize,
    batch_pages: usize,
    /// The copies; made when first needed, and as large as the pool's size asks for.
    buffer: Option<AlignedBuf>,
    /// Pages whose write failed, and that were not written since.
    unwritten: BTreeSet<PageId>,
    /// Why nothing is written any more: a failed sync, or the pool was shut down.
    failed: Option<Error>,
}

impl BatchState {
    pub(crate) fn new(page_size: PageSize, batch_pages: usize) -> BatchState {
        BatchState {
            page_size,
            batch_pages,
            buffer: None,
            unwritten: BTreeSet::new(),
            failed: None,
        }
    }

    /// From now on nothing is written. The first reason stays.
    pub(crate) fn shut_down(&mut self) {
        self.failed.get_or_insert(Error::ShutDown);
    }

    /// An error if nothing is written any more.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Whether the last write of a page of the space failed.
    pub(crate) fn has_unwritten(&self, space: u32) -> bool {
        self.unwritten.iter().any(|page| page.space == space)
    }

    /// A space is dropped: its pages will not be written any more.
    pub(crate) fn forget_space(&mut self, space: u32) {
        self.unwritten.retain(|page| page.space != space);
    }

    /// What the buffer for a batch takes, if it is there (and not in use just now).
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// The buffer, for `copies` at once where mostly `usual_batch` are written. One that is larger
    /// than that was of a larger pool, and is given back.
    fn take_buffer(&mut self, copies: usize, usual_batch: usize) -> AlignedBuf {
        assert!(copies <= self.batch_pages, "a batch has {} pages at most", self.batch_pages);
        let bytes = usual_batch.max(copies) * self.page_size.bytes();
        match self.buffer.take() {
            Some(buffer) if buffer.len() == bytes => buffer,
            other => {
                drop(other);
                AlignedBuf::zeroed(bytes)
            }
        }
    }
}

/// The part of the buffer that holds the copy in `slot`.
pub(super) fn slot_range(page_size: PageSize, slot: usize) -> Range<usize> {
    slot * page_size.bytes()..(slot + 1) * page_size.bytes()
}

/// A page of the batch.
pub(super) struct Copied<'a> {
    in_flight: InFlight<'a>,
    pub(super) id: PageId,
    /// Which part of the buffer holds it.
    pub(super) slot: usize,
    pub(super) lsn: Lsn,
    pub(super) space: Arc<Space>,
}

/// A page in flight. No other thread can write, move or evict it until this is completed: by
/// [`InFlight::complete`], or as not written when this goes, be it by a panic.
struct InFlight<'a> {
    core: &'a PoolCore,
    frame: u32,
}

impl<'a> InFlight<'a> {
    /// Notes the page in `frame` in flight, which the caller has latched shared. `None`: it is
    /// clean, or in flight already.
    fn begin(core: &'a PoolCore, frame: u32) -> Option<InFlight<'a>> {
        core.dirty.begin(&core.frames, frame).then(|| InFlight { core, frame })
    }

    /// The page is clean now, or as dirty as before.
    fn complete(self, is_written: bool) {
        let InFlight { core, frame } = *std::mem::ManuallyDrop::new(self);
        core.dirty.complete(&core.frames, frame, is_written);
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.core.dirty.complete(&self.core.frames, self.frame, false);
        self.core.counters.write_errors.fetch_add(1, Ordering::Relaxed);
    }
}

impl Flusher {
    /// Writes those pages in `frames` that are dirty and can be latched, a batch at most; returns
    /// how many are clean now. See the head of this module.
    pub(super) fn flush_batch(
        &self,
        state: &mut BatchState,
        frames: &[u32],
        cause: Cause,
    ) -> Result<usize> {
        state.check()?;
        let errors = || self.core.counters.write_errors.load(Ordering::Relaxed);
        let errors_before = errors();
        let chosen: Vec<u32> = frames.iter().copied().take(state.batch_pages).collect();
        let mut buffer = state.take_buffer(chosen.len(), self.core.flush_batch_pages());
        let mut batch: Vec<Copied<'_>> = Vec::with_capacity(chosen.len());
        for frame in chosen {
            // Those that cannot be latched take no place.
            let slot = batch.len();
            batch.extend(self.copy_dirty(
                frame,
                slot,
                &mut buffer[slot_range(state.page_size, slot)],
            ));
        }
        // By file, and in the order of its pages. Not before they are copied: until then a shrink
        // may move pages from frame to frame.
        batch.sort_unstable_by_key(|page| page.id);
        let result = self.write_batch(state, &mut buffer, batch, cause);
        state.buffer = Some(buffer);
        self.keep_up();
        match &result {
            Err(error) => self.note_write_error(error.clone()),
            // Else a thread that starves for another reason, days later, would report this error.
            Ok(1..) if errors() == errors_before && state.unwritten.is_empty() => {
                *self.last_write_error.lock() = None;
            }
            Ok(_) => {}
        }
        result
    }

    /// Has packed files kept short: by the thread that does so, or here if there is none.
    fn keep_up(&self) {
        if self.core.background.runs() {
            self.core.background.wake_upkeep();
        } else {
            // Said where it happened; the files are as before.
            let _ = self.upkeep.run_step();
        }
    }

    /// Keeps the error for those who starve because of it, and logs it now and then: the cleaner
    /// tries again several times a second, for as long as it takes.
    fn note_write_error(&self, error: Error) {
        if let Some(unsaid) = self.write_failures.is_due(Instant::now()) {
            tracing::error!(%error, unsaid, "writing dirty pages failed; they stay in the pool");
        }
        *self.last_write_error.lock() = Some(error);
    }

    /// Copies the page in `frame` and notes it in flight, if it is dirty and can be latched.
    fn copy_dirty(&self, frame: u32, slot: usize, bytes: &mut [u8]) -> Option<Copied<'_>> {
        let id = self.core.frames.descriptor(frame).page()?;
        let space = self.core.space(id.space)?;
        if space.is_discarded() {
            return None;
        }
        let word = space.existing_word(id.no)?;
        let latch = word.try_latch(Wants::Shared).ok()?;
        if latch.frame() != frame {
            return None;
        }
        let in_flight = InFlight::begin(&self.core, frame)?;
        #[expect(unsafe_code, reason = "the latch makes the bytes safe to read")]
        // SAFETY: the page in the frame is latched shared until below.
        bytes.copy_from_slice(unsafe { self.core.frames.bytes(frame) });
        drop(latch);
        let found = page::page_id(bytes);
        if found != id {
            // A page whose header is overwritten must go neither to this place nor to the one that
            // it names.
            let why = PageDefect::Misplaced { found }.to_string();
            let file = space.name().to_owned();
            self.note_write_error(Error::Corrupt { file, page: id, why });
            return None;
        }
        let started = self.core.dirty.flushing_lsn(&self.core.frames, frame);
        let lsn = page::page_lsn(bytes);
        assert!(started <= lsn, "page {id} has LSN {lsn}, but a change of {started} marked it");
        Some(Copied { in_flight, id, slot, lsn, space })
    }

    /// Writes the copies.
    fn write_batch(
        &self,
        state: &mut BatchState,
        buffer: &mut AlignedBuf,
        pages: Vec<Copied<'_>>,
        cause: Cause,
    ) -> Result<usize> {
        if pages.is_empty() {
            return Ok(0);
        }
        self.prepare_batch(state.page_size, buffer, &pages)?;

        let mut results = self.write_packed(state.page_size, buffer, &pages, cause);
        assert_eq!(results.len(), pages.len(), "each page has its outcome");
        let mut failed_sync = results.iter().find_map(|result| match result {
            Err(Error::Storage(error)) if error.op == StorageOp::Sync => {
                Some(Error::Storage(error.clone()))
            }
            _ => None,
        });
        if let Err(error) = self.write_mirrors(state.page_size, buffer, &pages, &mut results) {
            failed_sync.get_or_insert(error);
        }
        for (page, result) in pages.iter().zip(&results) {
            match result {
                Ok(()) => state.unwritten.remove(&page.id),
                Err(_) => state.unwritten.insert(page.id),
            };
        }
        for (page, result) in pages.into_iter().zip(&results) {
            page.in_flight.complete(result.is_ok());
        }
        let written = results.iter().filter(|result| result.is_ok()).count();
        let failed = (results.len() - written) as u64;
        self.core.counters.write_errors.fetch_add(failed, Ordering::Relaxed);
        let failure = results.into_iter().find_map(Result::err);
        self.core.counters.pages_flushed.fetch_add(written as u64, Ordering::Relaxed);
        if cause == Cause::Eviction {
            self.core.counters.pages_flushed_lru.fetch_add(written as u64, Ordering::Relaxed);
        }
        if let Some(error) = failed_sync {
            tracing::error!(%error, "a data file could not be synced; no page is written any more");
            if let Some(log) = self.core.write_ahead() {
                log.storage_failed(&error);
            }
            state.failed = Some(error);
        }
        failure.map_or(Ok(written), Err)
    }

    /// Makes the redo of the batch durable, and stamps the copies.
    fn prepare_batch(
        &self,
        page_size: PageSize,
        buffer: &mut AlignedBuf,
        batch: &[Copied<'_>],
    ) -> Result<()> {
        let newest = batch.iter().map(|page| page.lsn).max().unwrap_or(Lsn::ZERO);
        self.core.ensure_durable(newest)?;
        for page in batch {
            let copy = &mut buffer[slot_range(page_size, page.slot)];
            page::stamp_checksum(copy);
            self.core.assert_writable(page.id, page.lsn, copy);
        }
        Ok(())
    }
}
