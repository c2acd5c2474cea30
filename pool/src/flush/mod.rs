//! Dirty pages on their way to disk: which, when, and why.
//!
//! | pages | for | by |
//! |---|---|---|
//! | the oldest | a checkpoint; too large a share is dirty | [`Flusher::flush_up_to`] |
//! | the coldest | frames that queries want, or a shrink | [`Flusher::flush_for_frames`] |
//! | all of a space | closing it | [`Flusher::flush_space`] |
//! | all of the pool | closing it | [`Flusher::flush_all`] |
//!
//! How a batch of pages goes to disk, and what is done when that fails, is in `batch`, `packed` and
//! `mirrors`. Who asks for batches is above: the cleaner, [eviction](crate::eviction), the resize,
//! and who closes a space or the pool.
//!
//! # Invariants
//! - A page is written after the redo up to its LSN is durable, and never to the place of another:
//!   its header says which page it is.
//! - A page in flight is neither evicted, moved nor written a second time until its write ends.
//! - After a failed sync, or once the pool is shut down, nothing is written.
//!
//! Locking: the flusher's mutex is held for one batch; under it, page latches are only tried. It
//! comes before the mutex of a step of [upkeep](crate::upkeep), which a pool without threads runs
//! after each batch.

mod batch;
mod mirrors;
mod packed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::batch::BatchState;
use crate::error::{Error, Result};
use crate::page::Lsn;
use crate::pool_core::PoolCore;
use crate::space::Space;
use crate::tier::Tier;
use crate::upkeep::Upkeep;
use tidepool_store::LogThrottle;

/// How long [`Flusher::flush_all`] waits for pages that stay latched.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why frames are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Checkpoint,
    /// Frames run short.
    Eviction,
}

/// Writes dirty pages. See the head of this module.
pub(crate) struct Flusher {
    core: Arc<PoolCore>,
    tier: Arc<Tier>,
    upkeep: Arc<Upkeep>,
    state: Mutex<BatchState>,
    /// The last failed page write, for those who starve because of it; none once all is written
    /// again.
    last_write_error: Mutex<Option<Error>>,
    /// Reports failed page writes in the error log, now and then.
    write_failures: LogThrottle,
}

impl Flusher {
    /// One whose batches have `batch_pages` pages at most.
    pub(crate) fn new(
        core: Arc<PoolCore>,
        tier: Arc<Tier>,
        upkeep: Arc<Upkeep>,
        batch_pages: usize,
    ) -> Flusher {
        let state = Mutex::new(BatchState::new(core.page_size(), batch_pages));
        Flusher {
            core,
            tier,
            upkeep,
            state,
            last_write_error: Mutex::new(None),
            write_failures: LogThrottle::default(),
        }
    }

    /// From now on nothing is written. Waits for a batch under way.
    pub(crate) fn shut_down(&self) {
        self.state.lock().shut_down();
    }

    /// A space, which is marked as closed, is dropped: its pages will not be written any more.
    /// Waits for a batch under way, which may have some of them in flight.
    pub(crate) fn forget_space(&self, space: u32) {
        self.state.lock().forget_space(space);
    }

    /// Whether pages of the space could not be written, and are still dirty. Waits for a batch
    /// under way.
    pub(crate) fn has_unwritten(&self, space: u32) -> bool {
        self.state.lock().has_unwritten(space)
    }

    /// What the buffer for a batch takes, if no batch is under way.
    pub(crate) fn buffer_bytes(&self) -> Option<usize> {
        Some(self.state.try_lock()?.buffer_bytes())
    }

    /// Why the last page that could not be written was not. Others may have been written since;
    /// `None` once a batch was written and no page is left whose write failed.
    pub(crate) fn last_write_error(&self) -> Option<Error> {
        self.last_write_error.lock().clone()
    }

    /// What the last page write failed by, for those who can't have frames because of it.
    pub(crate) fn write_failure(&self) -> Option<String> {
        let error = self.last_write_error.lock();
        error.as_ref().map(|error| format!("the last page write failed: {error}"))
    }

    /// Writes up to `max_pages` dirty pages whose changes begin before `lsn`, oldest first; returns
    /// how many are clean now that were not. Pages latched exclusively by others are passed over.
    /// On an error some pages may have been written all the same; those that could not be stay
    /// dirty, to be tried again.
    pub(crate) fn flush_up_to(&self, lsn: Lsn, max_pages: usize) -> Result<usize> {
        let mut flushed = 0;
        let mut frames = Vec::new();
        while flushed < max_pages {
            let mut state = self.state.lock();
            frames.clear();
            let batch = self.core.flush_batch_pages().min(max_pages - flushed);
            self.core.dirty.collect(&self.core.frames, lsn, batch, &mut frames);
            if frames.is_empty() {
                break;
            }
            let written = self.flush_batch(&mut state, &frames, Cause::Checkpoint)?;
            flushed += written;
            // None: all that is left is latched. Let the caller decide whether to wait.
            if written == 0 {
                break;
            }
        }
        Ok(flushed)
    }

    /// Writes all dirty pages. Waits for latched ones, but not for ever: [`Error::PagesInUse`].
    pub(crate) fn flush_all(&self) -> Result<()> {
        self.flush_patiently(|| self.flush_up_to(Lsn::MAX, usize::MAX), || self.core.dirty.count())
    }

    /// Writes all dirty pages of a space.
    pub(crate) fn flush_space(&self, space: &Space) -> Result<()> {
        let dirty = || {
            let mut frames = Vec::new();
            space.for_each_resident(|_, word| {
                frames.extend(self.core.dirty.dirty_frame_of(&self.core.frames, word));
            });
            frames
        };
        let flush = || {
            let mut written = 0;
            for frames in dirty().chunks(self.core.flush_batch_pages()) {
                written += self.flush_batch(&mut self.state.lock(), frames, Cause::Checkpoint)?;
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
            let given_up = match self.core.background.runs() {
                true => idle_since.elapsed() > PATIENCE,
                false => tries > 2,
            };
            if given_up {
                return Err(Error::PagesInUse { pages });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes those pages in `frames` that are dirty and can be latched, so that they can be
    /// evicted; a batch at most.
    pub(crate) fn flush_for_frames(&self, frames: &[u32]) -> Result<usize> {
        match frames.is_empty() {
            true => Ok(0),
            false => self.flush_batch(&mut self.state.lock(), frames, Cause::Eviction),
        }
    }
}
