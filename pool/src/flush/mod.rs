//! Which dirty pages are written, when, and why.
//!
//! | pages | for | by |
//! |---|---|---|
//! | the oldest | a checkpoint, or because too large a share is dirty | [`Pool::flush_up_to`], the cleaner |
//! | the coldest | frames that queries want, or a shrink | the cleaner, the resize |
//! | all of a space, all of the pool | closing it | [`Pool::flush_space`], [`Pool::flush_all`] |
//!
//! Pages that no thread waits for are written at the [pace of scans](crate::scan_throttle). How a
//! batch of pages goes to disk, and what is done when that fails, is in `batch`, `packed` and
//! `mirrors`.
//!
//! Locking: the flusher's mutex is held for one batch; under it, page latches are only tried.

mod batch;
mod compression;
mod mirrors;
mod packed;

use std::time::{Duration, Instant};

pub(crate) use self::batch::Flusher;
use crate::error::{Error, Result};
use crate::page::Lsn;
use crate::pool::Pool;
use crate::space::Space;

/// The share of the pool, in percent, that may be dirty though neither log nor frames ask for a
/// write-out.
const DIRTY_PCT_MAX: u64 = 75;
/// From this share on the cleaner writes without resting.
const DIRTY_PCT_PRESSING: u64 = 90;

/// How long [`Pool::flush_all`] waits for pages that stay latched.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why frames are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Checkpoint,
    /// Frames run short.
    Eviction,
}

impl Pool {
    /// Writes up to `max_pages` dirty pages whose changes begin before `lsn`, oldest first; returns
    /// how many are clean now that were not. Pages latched exclusively by others are passed over.
    /// On an error some pages may have been written all the same; those that could not be stay
    /// dirty, to be tried again.
    pub fn flush_up_to(&self, lsn: Lsn, max_pages: usize) -> Result<usize> {
        let mut flushed = 0;
        let mut frames = Vec::new();
        while flushed < max_pages {
            let mut flusher = self.flusher.lock();
            frames.clear();
            let batch = self.flush_batch_pages().min(max_pages - flushed);
            self.dirty.collect(self.frames(), lsn, batch, &mut frames);
            if frames.is_empty() {
                break;
            }
            let written = self.flush_batch(&mut flusher, &frames, Cause::Checkpoint)?;
            flushed += written;
            // None: all that is left is latched. Let the caller decide whether to wait.
            if written == 0 {
                break;
            }
        }
        Ok(flushed)
    }

    /// Writes all dirty pages. Waits for latched ones, but not for ever: [`Error::PagesInUse`].
    pub fn flush_all(&self) -> Result<()> {
        self.flush_patiently(|| self.flush_up_to(Lsn::MAX, usize::MAX), || self.dirty.count())
    }

    /// Writes all dirty pages of a space.
    pub fn flush_space(&self, space: &Space) -> Result<()> {
        let dirty = || {
            let mut frames = Vec::new();
            space.for_each_resident(|_, word| {
                frames.extend(self.dirty.dirty_frame_of(self.frames(), word));
            });
            frames
        };
        let flush = || {
            let mut written = 0;
            for frames in dirty().chunks(self.flush_batch_pages()) {
                written += self.flush_batch(&mut self.flusher.lock(), frames, Cause::Checkpoint)?;
            }
            Ok(written)
        };
        self.flush_patiently(flush, || dirty().len() as u64)
    }

    /// Calls `flush` until nothing is `left`, as long as that makes progress within [`PATIENCE`].
    fn flush_patiently(
        &self,
        flush: impl Fn() -> Result<usize>,
        left: impl Fn() -> u64,
    ) -> Result<()> {
        let mut idle_since = Instant::now();
        let mut tries = 0;
        loop {
            let written = flush()?;
            let pages = left();
            if pages == 0 {
                return Ok(());
            }
            if written > 0 {
                (idle_since, tries) = (Instant::now(), 0);
                continue;
            }
            // Without threads the latch is never given back.
            tries += 1;
            let given_up = match self.background.runs() {
                true => idle_since.elapsed() > PATIENCE,
                false => tries > 2,
            };
            if given_up {
                return Err(Error::PagesInUse { pages });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// One round of the cleaner: writes up to a batch of cold dirty pages if free frames run short
    /// (and evicts them), and up to a batch of the oldest if the redo log asked for it or too much
    /// is dirty. Returns how many were written.
    pub fn run_cleaner_step(&self) -> Result<usize> {
        let mut written = 0;
        if self.frames().available() < self.reserve() {
            written += self.flush_cold()?;
        } else if self.frames().debt() > 0 {
            written += self.flush_for_shrink()?;
        }
        let target = self.checkpoint_target();
        if self.oldest_dirty_lsn().is_some_and(|oldest| oldest < target) {
            written += self.flush_up_to(target, self.flush_batch_pages())?;
        }
        if self.is_too_dirty() {
            written += self.at_its_pace(|| self.flush_up_to(Lsn::MAX, self.flush_batch_pages()))?;
        }
        Ok(written)
    }

    /// Whether the share of dirty pages demands writes though neither frames nor log run
    /// short.
    fn is_too_dirty(&self) -> bool {
        self.dirty_exceeds(DIRTY_PCT_PRESSING)
            || self.dirty_exceeds(DIRTY_PCT_MAX) && !self.cleaner_rests()
    }

    fn dirty_exceeds(&self, pct: u64) -> bool {
        let frames = match self.resize.throttle.is_on() {
            // In a shrink without urgency, frames that are still to be given back count as before.
            true => self.frames().limit().max(self.frames().started()),
            false => self.frames().limit(),
        };
        let frames = frames.saturating_sub(self.tier.held());
        self.dirty.count() * 100 > u64::from(frames) * pct
    }

    /// How long the cleaner rests before it goes on, if too much is dirty.
    pub(crate) fn rest_of_cleaner(&self) -> Option<Duration> {
        let rest = self.resize.throttle.rest_of_cleaner()?;
        self.dirty_exceeds(DIRTY_PCT_MAX).then_some(rest)
    }

    /// Whether the cleaner rests from pages that no thread waits for. Not in an urgent shrink, nor
    /// without threads.
    fn cleaner_rests(&self) -> bool {
        let pressed = self.frames().debt() > 0 && !self.resize.throttle.is_on();
        self.background.runs() && !pressed && self.resize.throttle.cleaner_rests()
    }

    /// Writes dirty pages among the coldest, which a shrink is about to evict.
    fn flush_for_shrink(&self) -> Result<usize> {
        if self.cleaner_rests() {
            return Ok(0);
        }
        let mut frames = Vec::new();
        self.replacement().coldest(self.cold_depth(), &mut frames);
        frames.retain(|&frame| self.frames().descriptor(frame).is_dirty());
        frames.truncate(self.flush_batch_pages());
        self.at_its_pace(|| self.flush_for_frames(&frames))
    }

    /// Writes pages that no thread waits for. Then the cleaner rests from such writes, the longer
    /// the more queries wait for the disk.
    fn at_its_pace(&self, write: impl FnOnce() -> Result<usize>) -> Result<usize> {
        let began = Instant::now();
        let written = write();
        let now = Instant::now();
        let rest = self.scan_throttle.rest_after_writing(now - began, now);
        self.resize.throttle.cleaner_rests_until(now + rest);
        written
    }

    /// How many of the coldest pages the cleaner looks at for dirty ones at first.
    pub(crate) fn cold_depth(&self) -> usize {
        4 * self.flush_batch_pages()
    }

    /// Writes dirty pages among the coldest, and evicts what is clean.
    fn flush_cold(&self) -> Result<usize> {
        let batch = self.flush_batch_pages();
        let mut depth = self.cold_depth();
        loop {
            let mut frames = Vec::new();
            self.replacement().coldest(depth, &mut frames);
            let seen = frames.len();
            frames.retain(|&frame| self.frames().descriptor(frame).is_dirty());
            frames.truncate(batch);
            let written = self.flush_for_frames(&frames);
            let evicted = self.run_evictor_step();
            // Nothing to be had that near the tail: look further.
            if evicted == 0 && matches!(written, Ok(0)) && seen == depth {
                depth *= 4;
                continue;
            }
            return written;
        }
    }

    /// Writes those pages in `frames` that are dirty and can be latched, so that they can be
    /// evicted; a batch at most.
    pub(crate) fn flush_for_frames(&self, frames: &[u32]) -> Result<usize> {
        match frames.is_empty() {
            true => Ok(0),
            false => self.flush_batch(&mut self.flusher.lock(), frames, Cause::Eviction),
        }
    }
}
