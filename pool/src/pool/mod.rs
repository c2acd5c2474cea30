//! The buffer pool: pages in frames of a fixed size, read and written through latches.
//!
//! [`Pool`] owns all parts, each of which is a struct in a module below this one and knows only the
//! parts in rows below its own. What is here is what no other part needs: how a page is had, how
//! spaces are closed, and the threads. The rest of its methods hand over to a part.
//!
//! # Where
//! `access` is what others call to have a page, `load` how it comes from its file, `spaces` how
//! tablespaces come and go, `threads` what each background thread does. `writing` and `sizing` are
//! the face of the parts that write pages, and of those that decide what memory is used for.
//!
//! # Locking order
//! That of the [core](crate::pool_core) is innermost. The flusher's mutex comes before it, and the
//! resize's worker before that; the holders of these only try page latches. The recorder's and the
//! advisor's mutexes are held by background work alone, never with a latch or beside any of these
//! but the policy's.

mod access;
mod load;
mod sizing;
mod spaces;
mod threads;
mod writing;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::advisor::Advisor;
use crate::cleaner::Cleaner;
use crate::config::PoolConfig;
use crate::error::Result;
use crate::eviction::Evictor;
use crate::flush::Flusher;
use crate::page::PageSize;
use crate::pool_core::PoolCore;
use crate::read_ahead::ReadAhead;
use crate::resize::Resize;
use crate::stats::{PoolStats, ThreadWork};
use crate::storage::Storage;
use crate::thread_observer::Threads;
use crate::tier::Tier;
use crate::tier_sizing::TierSizing;
use crate::trace::Recorder;
use crate::upkeep::Upkeep;

/// The buffer pool.
pub struct Pool {
    pub(crate) core: Arc<PoolCore>,
    pub(crate) tier: Arc<Tier>,
    pub(crate) upkeep: Arc<Upkeep>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) evictor: Arc<Evictor>,
    pub(crate) cleaner: Cleaner,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) resize: Resize,
    pub(crate) recorder: Recorder,
    pub(crate) advisor: Arc<Advisor>,
    pub(crate) tier_sizing: TierSizing,
}

impl Pool {
    /// Makes a pool whose reads and writes `storage` runs; page files come with
    /// [`Pool::open_space`].
    pub fn new(config: PoolConfig, storage: Arc<dyn Storage>) -> Result<Arc<Pool>> {
        config.validate()?;
        // Each part gets those below it.
        let core = Arc::new(PoolCore::new(&config, storage)?);
        let tier = Arc::new(Tier::new(core.clone(), config.compressed_tier));
        let upkeep = Arc::new(Upkeep::new(core.clone()));
        let flusher = Arc::new(Flusher::new(
            core.clone(),
            tier.clone(),
            upkeep.clone(),
            config.flush_batch_pages,
        ));
        let evictor = Arc::new(Evictor::new(core.clone(), tier.clone(), flusher.clone()));
        let advisor = Arc::new(Advisor::new(core.clone(), tier.clone(), &config.replacement)?);
        let pool = Arc::new(Pool {
            cleaner: Cleaner::new(core.clone(), flusher.clone(), evictor.clone()),
            read_ahead: ReadAhead::new(core.clone(), tier.clone(), evictor.clone()),
            resize: Resize::new(core.clone(), tier.clone(), flusher.clone(), evictor.clone()),
            recorder: Recorder::new(core.clone()),
            tier_sizing: TierSizing::new(core.clone(), tier.clone(), advisor.clone()),
            core,
            tier,
            upkeep,
            flusher,
            evictor,
            advisor,
        });
        if config.background {
            threads::start(&pool, &config)?;
        }
        Ok(pool)
    }

    /// Stops the background threads and waits for their end. Nothing is flushed, and no page is
    /// written from then on: a thread that still has a handle, and wants frames, must not write
    /// dirty pages that could not be written before, without the redo log, into a directory that
    /// others may have opened since. No page is read either, for its place may have another page by
    /// then; a read that is under way ends with the page as it was, or an error. Dropping the last
    /// handle stops the threads too, but may leave a thread's end to come a moment later.
    pub fn shutdown(&self) {
        self.core.background.stop();
        self.core.is_shut_down.store(true, Ordering::Release);
        self.flusher.shut_down();
    }

    /// The size of every page.
    pub fn page_size(&self) -> PageSize {
        self.core.page_size()
    }

    /// Moves the clock of a pool without background threads.
    pub fn advance_clock(&self, ms: u32) {
        self.core.clock.advance(ms);
    }

    /// How threads are started, for the layers above too: the same observer hears of them.
    pub fn threads(&self) -> &Threads {
        self.core.background.starter()
    }

    /// What the calling thread has done; see [`ThreadWork`].
    pub fn thread_work(&self) -> ThreadWork {
        self.core.counters.thread_work()
    }

    /// The counters.
    pub fn stats(&self) -> PoolStats {
        self.core.stats()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.core.background.stop();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("frames", &self.core.frames.limit()).finish_non_exhaustive()
    }
}
