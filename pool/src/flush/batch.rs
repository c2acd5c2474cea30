//! One batch of dirty pages on its way to disk.
//!
//! For each page of a batch: latch shared (try only), note it in flight, copy it, unlatch. Then,
//! with no latch held: make the redo durable up to the newest page LSN of the batch; stamp the
//! copies' checksums; write and sync them; only then is a page clean (unless it was changed
//! meanwhile, which queued it anew).
//!
//! How they are written depends on the file. Pages of packed files become images, which are
//! appended to their files (`packed`). Pages that are overwritten in place go to the doublewrite
//! file first, which is synced, and then to their places, neighbours with one write.
//!
//! One batch at a time: the flusher's mutex covers all of that.
//!
//! # When it fails
//! - The redo log, or the doublewrite file: nothing was written home; all stay dirty.
//! - A page's home write: it stays dirty and is tried again; its image, if it is one of a file that
//!   is overwritten in place, stays in the doublewrite file until that succeeds. The others of the
//!   batch are not held up. Once a batch's number of
//!   pages has failed, nothing else is written until fewer have: the file has no room for more.
//! - All that is tried again for ever is in the log now and then only.
//! - A home file's sync: final. What that file holds is no longer known, a second sync would lie,
//!   and the doublewrite file must stay as it is for recovery. So nothing is written any more; the
//!   pool goes on serving what it has and can read, and the log is told
//!   ([`WriteAhead::storage_failed`](crate::WriteAhead::storage_failed)).
//! - A panic (a bug): where the disk was being asked for something, that counts as failed. Anywhere
//!   else the panic goes on to whoever called, and the pages left in flight are dirty as before
//!   ([`Batch`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Cause;
use crate::doublewrite::Doublewrite;
use crate::error::{Error, Result};
use crate::page::{self, Lsn, PageDefect, PageId, PageSize};
use crate::pool::Pool;
use crate::space::Space;
use crate::step::survive;
use crate::storage::{AlignedBuf, IoOp, StorageOp};
use crate::sync::Wants;

/// Files synced at the same time.
const SYNCS_AT_ONCE: usize = 8;

/// What a write-out needs, one at a time.
pub(crate) struct Flusher {
    page_size: PageSize,
    batch_pages: usize,
    /// The copies, behind room for the doublewrite header; made when first needed, and as large as
    /// the pool's size asks for.
    buffer: Option<AlignedBuf>,
    pub(crate) doublewrite: Option<Doublewrite>,
    /// Why nothing is written any more: a failed sync, or the pool was shut down.
    failed: Option<Error>,
}

impl Flusher {
    pub(crate) fn new(page_size: PageSize, batch_pages: usize, doublewrite: bool) -> Flusher {
        Flusher {
            page_size,
            batch_pages,
            buffer: None,
            doublewrite: doublewrite.then(|| Doublewrite::new(page_size, batch_pages)),
            failed: None,
        }
    }

    /// From now on nothing is written. The first reason stays.
    pub(crate) fn shut_down(&mut self) {
        self.failed.get_or_insert(Error::ShutDown);
    }

    /// Whether there are pages whose home write failed and that were not written since. Not known
    /// without a doublewrite file.
    fn carries_any(&self) -> bool {
        let carried = |doublewrite: &Doublewrite| doublewrite.carried().next().is_some();
        self.doublewrite.as_ref().is_some_and(carried)
    }

    /// What the buffer for a batch takes, if it is there (and not in use just now).
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len())
    }

    /// The buffer, for `copies` at once where mostly `usual_batch` are written. One that is larger
    /// than that was of a larger pool, and is given back.
    fn take_buffer(&mut self, copies: usize, usual_batch: usize) -> AlignedBuf {
        let carried =
            self.doublewrite.as_ref().map_or(0, |doublewrite| doublewrite.carried().count());
        let slots = Doublewrite::half_pages(usual_batch).max(1 + copies + carried);
        let bytes = slots * self.page_size.bytes();
        match self.buffer.take() {
            Some(buffer) if buffer.len() == bytes => buffer,
            other => {
                drop(other);
                AlignedBuf::zeroed(bytes)
            }
        }
    }
}

/// The part of the buffer that holds the image in `slot`; slot 0 is the doublewrite header.
pub(super) fn slot_range(page_size: PageSize, slot: usize) -> Range<usize> {
    slot * page_size.bytes()..(slot + 1) * page_size.bytes()
}

/// A page of the batch.
pub(super) struct Copied {
    frame: u32,
    pub(super) id: PageId,
    /// Which part of the buffer holds it.
    pub(super) slot: usize,
    lsn: Lsn,
    pub(super) space: Arc<Space>,
}

impl Copied {
    /// Whether the next page is the next one in the file as well as in the buffer.
    fn is_before(&self, next: &Copied) -> bool {
        (self.id.no + 1, self.slot + 1) == (next.id.no, next.slot)
            && Arc::ptr_eq(&self.space, &next.space)
    }
}

/// Writes those of the copies that have a place in a mirror to it, too: a page is written when both
/// are.
fn write_mirrors(
    page_size: PageSize,
    buffer: &AlignedBuf,
    batch: &[Copied],
    results: &mut [Result<()>],
) {
    for (page, result) in batch.iter().zip(results) {
        if let (Ok(()), Some(mirror)) = (&result, page.space.mirror()) {
            let bytes = &buffer[slot_range(page_size, page.slot)];
            *result = mirror.write(page.id.no, bytes).map_err(Error::from);
        }
    }
}

/// The pages in flight. Nobody else can write, move or evict them until each is completed: by
/// [`Batch::complete`], or as not written when this is dropped, be it by a panic.
struct Batch<'a> {
    pool: &'a Pool,
    pages: Vec<Copied>,
}

impl Batch<'_> {
    /// Each page of the batch is clean now, or as dirty as before.
    fn complete(mut self, mut is_written: impl FnMut(usize) -> bool) {
        for (i, page) in std::mem::take(&mut self.pages).into_iter().enumerate() {
            self.pool.dirty.complete(self.pool.frames(), page.frame, is_written(i));
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for page in &self.pages {
            self.pool.dirty.complete(self.pool.frames(), page.frame, false);
        }
        if !self.pages.is_empty() {
            self.pool.counters.write_errors.fetch_add(self.pages.len() as u64, Ordering::Relaxed);
        }
    }
}

impl Pool {
    /// Writes those pages in `frames` that are dirty and can be latched, a batch at most; returns
    /// how many are clean now. If there are too many pages whose write failed before, these are
    /// written instead. See the head of this module.
    pub(super) fn flush_batch(
        &self,
        flusher: &mut Flusher,
        frames: &[u32],
        cause: Cause,
    ) -> Result<usize> {
        if let Some(error) = &flusher.failed {
            return Err(error.clone());
        }
        let errors = || self.counters.write_errors.load(Ordering::Relaxed);
        let errors_before = errors();
        // With so many failed pages that there is hardly room to carry more, only those are tried,
        // whichever the caller means: it goes by age or by coldness, and would never come to them
        // while others are older or colder.
        let full = flusher.doublewrite.as_ref().filter(|doublewrite| doublewrite.is_full());
        let mut chosen: Vec<u32> = match full {
            Some(full) => full.carried().filter_map(|id| self.resident_frame(id)).collect(),
            None => frames.iter().copied().take(flusher.batch_pages).collect(),
        };
        // In file order, so that neighbours lie side by side in the buffer, and those of packed
        // files, which do not go through the doublewrite file, last. The keys are cached: a shrink
        // moves pages from frame to frame meanwhile, and a sort whose keys change may panic.
        chosen.sort_by_cached_key(|&frame| {
            let id = self.frames().descriptor(frame).page();
            (id.is_some_and(|id| self.is_packed(id.space)), id)
        });
        let room = chosen.len().min(flusher.batch_pages);
        let mut buffer = flusher.take_buffer(room, self.flush_batch_pages());
        let mut batch = Batch { pool: self, pages: Vec::with_capacity(room) };
        for frame in chosen {
            // There may be more than a batch of failed pages; those that cannot be latched take no
            // place.
            if batch.pages.len() == flusher.batch_pages {
                break;
            }
            let slot = batch.pages.len() + 1;
            batch.pages.extend(self.copy_dirty(
                frame,
                slot,
                &mut buffer[slot_range(flusher.page_size, slot)],
            ));
        }
        let result = self.write_batch(flusher, &mut buffer, batch, cause);
        flusher.buffer = Some(buffer);
        self.keep_up();
        match &result {
            Err(error) => self.note_write_error(error.clone()),
            // Else whoever starves for another reason, be it days later, would be told of this one.
            Ok(1..) if errors() == errors_before && !flusher.carries_any() => {
                *self.last_write_error.lock() = None;
            }
            Ok(_) => {}
        }
        result
    }

    /// Has packed files kept short: by the thread that does so, or here if there is none.
    fn keep_up(&self) {
        if self.background.runs() {
            self.background.wake_upkeep();
        } else {
            // Said where it happened; the files are as before.
            let _ = self.run_upkeep_step();
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

    fn is_packed(&self, space: u32) -> bool {
        self.space(space).is_some_and(|space| space.packed().is_some())
    }

    /// The frame of a page, which may move at any time.
    fn resident_frame(&self, id: PageId) -> Option<u32> {
        self.space(id.space)?.existing_word(id.no)?.load().frame()
    }

    /// Copies the page in `frame` and notes it in flight, if it is dirty and can be latched.
    fn copy_dirty(&self, frame: u32, slot: usize, bytes: &mut [u8]) -> Option<Copied> {
        let id = self.frames().descriptor(frame).page()?;
        let space = self.space(id.space)?;
        if space.is_discarded() {
            return None;
        }
        let word = space.existing_word(id.no)?;
        let latched = word.try_lock(Wants::Shared).ok()?;
        let ours = latched.latched_frame() == frame && self.dirty.begin(self.frames(), frame);
        if ours {
            #[expect(unsafe_code, reason = "the latch makes the bytes safe to read")]
            // SAFETY: the page in the frame is latched shared until below.
            bytes.copy_from_slice(unsafe { self.frames().bytes(frame) });
        }
        word.unlock_shared();
        let found = page::page_id(bytes);
        if ours && found != id {
            // A page whose header is overwritten must go neither to this place nor to the one that
            // it names.
            let why = PageDefect::Misplaced { found }.to_string();
            let file = space.name().to_owned();
            self.note_write_error(Error::Corrupt { file, page: id, why });
            self.dirty.complete(self.frames(), frame, false);
            self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        ours.then(|| Copied { frame, id, slot, lsn: page::page_lsn(bytes), space })
    }

    /// Writes the copies.
    fn write_batch(
        &self,
        flusher: &mut Flusher,
        buffer: &mut AlignedBuf,
        batch: Batch<'_>,
        cause: Cause,
    ) -> Result<usize> {
        let pages = &batch.pages;
        if pages.is_empty() {
            return Ok(0);
        }
        self.prepare_batch(flusher, buffer, pages)?;

        let in_place = pages.partition_point(|page| page.space.packed().is_none());
        let (in_place, packed) = pages.split_at(in_place);
        let (mut results, mut failed_sync) = self.write_in_place(flusher, buffer, in_place);
        for result in self.write_packed(flusher.page_size, buffer, packed, cause) {
            if let Err(Error::Storage(error)) = &result
                && error.op == StorageOp::Sync
            {
                failed_sync.get_or_insert(Error::Storage(error.clone()));
            }
            results.push(result);
        }
        batch.complete(|i| results[i].is_ok());
        let written = results.iter().filter(|result| result.is_ok()).count();
        let failed = (results.len() - written) as u64;
        self.counters.write_errors.fetch_add(failed, Ordering::Relaxed);
        let failure = results.into_iter().find_map(Result::err);
        self.counters.pages_flushed.fetch_add(written as u64, Ordering::Relaxed);
        if cause == Cause::Eviction {
            self.counters.pages_flushed_lru.fetch_add(written as u64, Ordering::Relaxed);
        }
        if let Some(error) = failed_sync {
            tracing::error!(%error, "a data file could not be synced; no page is written any more");
            if let Some(log) = self.write_ahead.read().clone() {
                log.storage_failed(&error);
            }
            flusher.failed = Some(error);
        }
        failure.map_or(Ok(written), Err)
    }

    /// Writes copies of pages that are overwritten in place, and syncs their files. How that went
    /// for each, and the error of a sync, if one failed.
    fn write_in_place(
        &self,
        flusher: &mut Flusher,
        buffer: &AlignedBuf,
        pages: &[Copied],
    ) -> (Vec<Result<()>>, Option<Error>) {
        const WRITE: &str = "a write of pages";
        let results = survive(WRITE, || {
            let mut results = self.write_home(flusher.page_size, buffer, pages);
            write_mirrors(flusher.page_size, buffer, pages, &mut results);
            results
        });
        let mut results = results.unwrap_or_else(|| vec![Err(Error::Panicked(WRITE)); pages.len()]);
        if let Some(doublewrite) = &mut flusher.doublewrite {
            for (page, _) in pages.iter().zip(&results).filter(|(_, result)| result.is_err()) {
                doublewrite.carry(page.id, &buffer[slot_range(flusher.page_size, page.slot)]);
            }
        }
        let syncs = self.sync_homes(pages);
        for (page, result) in pages.iter().zip(&mut results) {
            if let (Ok(()), Some(Err(error))) = (&result, syncs.get(&page.id.space)) {
                *result = Err(error.clone());
            }
        }
        let written = results.iter().filter(|result| result.is_ok()).count() as u64;
        self.counters.in_place_pages_written.fetch_add(written, Ordering::Relaxed);
        (results, syncs.into_values().find_map(Result::err))
    }

    /// Writes the copies to their places, and says of each how that went.
    fn write_home(
        &self,
        page_size: PageSize,
        buffer: &AlignedBuf,
        batch: &[Copied],
    ) -> Vec<Result<()>> {
        let runs: Vec<&[Copied]> = batch.chunk_by(Copied::is_before).collect();
        let results = self.write_runs(page_size, buffer, &runs);
        let mut of_pages = Vec::with_capacity(batch.len());
        for (run, result) in runs.into_iter().zip(results) {
            match result {
                Err(_) if run.len() > 1 => {
                    // One bad page must not hold its neighbours up.
                    let alone: Vec<&[Copied]> = run.chunks(1).collect();
                    of_pages.extend(self.write_runs(page_size, buffer, &alone));
                }
                result => of_pages.extend(std::iter::repeat_n(result, run.len())),
            }
        }
        of_pages
    }

    /// Writes runs of neighbouring pages, each with one write.
    fn write_runs<'a>(
        &self,
        page_size: PageSize,
        buffer: &'a AlignedBuf,
        runs: &[&'a [Copied]],
    ) -> Vec<Result<()>> {
        let write = |run: &&'a [Copied]| {
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let bytes =
                slot_range(page_size, first.slot).start..slot_range(page_size, last.slot).end;
            let file = first.space.in_place().expect("its pages lie side by side");
            file.write_op(first.id.no, &buffer[bytes])
        };
        let mut ops: Vec<IoOp<'_>> = runs.iter().map(write).collect();
        self.storage.run_batch(&mut ops);
        ops.into_iter().map(|op| op.result.map_err(Error::from)).collect()
    }

    /// What must be durable before the first page goes home.
    fn prepare_batch(
        &self,
        flusher: &mut Flusher,
        buffer: &mut AlignedBuf,
        batch: &[Copied],
    ) -> Result<()> {
        let newest = batch.iter().map(|page| page.lsn).max().unwrap_or(Lsn::ZERO);
        self.ensure_durable(newest)?;
        for page in batch {
            let copy = &mut buffer[slot_range(flusher.page_size, page.slot)];
            page::stamp_checksum(copy);
        }
        let Some(doublewrite) = &mut flusher.doublewrite else { return Ok(()) };
        let in_place = batch.iter().take_while(|page| page.space.packed().is_none());
        let ids: Vec<PageId> = in_place.map(|page| page.id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        doublewrite.write(&*self.storage, buffer, &ids)?;
        self.counters.doublewrite_writes.fetch_add(1, Ordering::Relaxed);
        self.counters.doublewrite_pages.fetch_add(ids.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Syncs each file of the batch once, side by side if there are threads.
    fn sync_homes(&self, batch: &[Copied]) -> BTreeMap<u32, Result<()>> {
        let homes: BTreeMap<u32, &Space> =
            batch.iter().map(|page| (page.id.space, &*page.space)).collect();
        // After a panic nobody knows whether the file was synced, and a second sync might lie.
        const SYNC: &str = "a sync of a data file";
        let sync = |space: &Space| {
            let synced = survive(SYNC, || -> Result<()> {
                space.in_place().map_or(Ok(()), |file| file.file().sync_data())?;
                Ok(space.mirror().map_or(Ok(()), |mirror| mirror.file().sync_data())?)
            });
            synced.unwrap_or(Err(Error::Panicked(SYNC)))
        };
        let homes: Vec<(u32, &Space)> = homes.into_iter().collect();
        let mut results = BTreeMap::new();
        for group in homes.chunks(if self.background.runs() { SYNCS_AT_ONCE } else { 1 }) {
            std::thread::scope(|scope| {
                // The last in this thread: mostly it is the only one.
                let Some(((id, space), others)) = group.split_last() else { return };
                let others: Vec<_> = others
                    .iter()
                    .map(|&(id, space)| {
                        let thread =
                            std::thread::Builder::new().spawn_scoped(scope, move || sync(space));
                        (id, space, thread)
                    })
                    .collect();
                results.insert(*id, sync(space));
                for (id, space, thread) in others {
                    let synced = match thread {
                        Ok(thread) => thread.join().unwrap_or(Err(Error::Panicked(SYNC))),
                        // No thread to be had.
                        Err(_) => sync(space),
                    };
                    results.insert(id, synced);
                }
            });
        }
        results
    }

    /// The write-ahead rule: no page before its redo.
    fn ensure_durable(&self, lsn: Lsn) -> Result<()> {
        let log = self.write_ahead.read().clone();
        let Some(log) = log else { return Ok(()) };
        log.ensure_durable(lsn).map_err(|source| Error::WriteAhead { lsn, source })?;
        if let Some(durable) = log.durable_lsn() {
            assert!(durable >= lsn, "redo is durable up to {durable}, but a page has LSN {lsn}");
        }
        Ok(())
    }
}
