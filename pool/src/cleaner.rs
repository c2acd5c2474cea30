//! The cleaner: which dirty pages are written when no thread waits for that, and how fast.
//!
//! In each step it writes, as far as there is reason to:
//! 1. cold pages, because frames run short (and evicts them), or because a shrink is about to evict
//!    them;
//! 2. the oldest, because the redo log asked for a checkpoint;
//! 3. the oldest, because too large a share of the pool is dirty.
//!
//! What no thread waits for, which is the shrink and the share, is written at the
//! [pace of scans](crate::scan_throttle).
//!
//! Locking: none. What it calls takes the flusher's mutex, for one batch at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::eviction::Evictor;
use crate::flush::Flusher;
use crate::page::Lsn;
use crate::pool_core::PoolCore;

/// The share of the pool, in percent, that may be dirty though neither log nor frames ask for a
/// write-out.
const DIRTY_PCT_MAX: u64 = 75;
/// From this share on the cleaner writes without resting.
const DIRTY_PCT_PRESSING: u64 = 90;

/// See the head of this module.
pub(crate) struct Cleaner {
    core: Arc<PoolCore>,
    flusher: Arc<Flusher>,
    evictor: Arc<Evictor>,
    /// The redo log wants every page clean whose recovery LSN is below this.
    checkpoint_target: AtomicU64,
}

impl Cleaner {
    pub(crate) fn new(
        core: Arc<PoolCore>,
        flusher: Arc<Flusher>,
        evictor: Arc<Evictor>,
    ) -> Cleaner {
        Cleaner { core, flusher, evictor, checkpoint_target: AtomicU64::new(0) }
    }

    /// Asks for all pages to be written whose changes begin before `target`.
    pub(crate) fn set_checkpoint_target(&self, target: Lsn) {
        if self.checkpoint_target.fetch_max(target.0, Ordering::Relaxed) < target.0 {
            self.core.background.wake_cleaner();
        }
    }

    /// One round of the cleaner: writes up to a batch of cold dirty pages if free frames run short
    /// (and evicts them), and up to a batch of the oldest if the redo log asked for it or too much
    /// is dirty. Returns how many were written.
    pub(crate) fn run_step(&self) -> Result<usize> {
        let mut written = 0;
        if self.core.frames.available() < self.core.reserve() {
            written += self.evictor.flush_cold()?;
        } else if self.core.frames.debt() > 0 {
            written += self.flush_for_shrink()?;
        }
        let target = Lsn(self.checkpoint_target.load(Ordering::Relaxed));
        if self.core.oldest_dirty_lsn().is_some_and(|oldest| oldest < target) {
            written += self.flusher.flush_up_to(target, self.core.flush_batch_pages())?;
        }
        if self.is_too_dirty() {
            written += self.at_its_pace(|| {
                self.flusher.flush_up_to(Lsn::MAX, self.core.flush_batch_pages())
            })?;
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
        let frames = match self.core.shrink_throttle.is_on() {
            // In a shrink without urgency, frames that are still to be given back count as before.
            true => self.core.frames.limit().max(self.core.frames.started()),
            false => self.core.frames.limit(),
        };
        let frames = frames.saturating_sub(self.core.image_frames());
        self.core.dirty.count() * 100 > u64::from(frames) * pct
    }

    /// How long the cleaner rests before it goes on, if too much is dirty.
    pub(crate) fn rest(&self) -> Option<Duration> {
        let rest = self.core.shrink_throttle.rest_of_cleaner()?;
        self.dirty_exceeds(DIRTY_PCT_MAX).then_some(rest)
    }

    /// Whether the cleaner rests from pages that no thread waits for. Not in an urgent shrink, nor
    /// without threads.
    fn cleaner_rests(&self) -> bool {
        let pressed = self.core.frames.debt() > 0 && !self.core.shrink_throttle.is_on();
        self.core.background.runs() && !pressed && self.core.shrink_throttle.cleaner_rests()
    }

    /// Writes dirty pages among the coldest, which a shrink is about to evict.
    fn flush_for_shrink(&self) -> Result<usize> {
        if self.cleaner_rests() {
            return Ok(0);
        }
        let frames = self.evictor.next_dirty();
        self.at_its_pace(|| self.flusher.flush_for_frames(&frames))
    }

    /// Writes pages that no thread waits for. Then the cleaner rests from such writes, the longer
    /// the more queries wait for the disk.
    fn at_its_pace(&self, write: impl FnOnce() -> Result<usize>) -> Result<usize> {
        let began = Instant::now();
        let written = write();
        let now = Instant::now();
        let rest = self.core.scan_throttle.rest_after_writing(now - began, now);
        self.core.shrink_throttle.cleaner_rests_until(now + rest);
        written
    }
}
