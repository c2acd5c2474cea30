//! The buffer pool: pages found, loaded, made, and latched.
//!
//! # How a page is had
//! The space's directory gives the page's word; latching the word gives the frame. If the word is
//! absent, the thread takes a free frame, installs it in the word exclusively latched, and reads
//! the page into it; others who want the page meanwhile park on the word.
//!
//! # How a frame is had
//! From the free list, which the evictor keeps stocked; else by evicting a clean page on the spot;
//! else, with everything dirty or in use, by waiting for the cleaner (`wait_free`). A thread that
//! waits may hold page latches. That is safe because cleaner, evictor and read-ahead only ever
//! *try* latches, and pass over what they cannot have.
//!
//! # Locking order
//! page latches (in the order that the layer above defines) → `spaces` → replacement policy's mutex
//! → free list's mutex; page latch → dirty queue's mutex. The flusher's mutex comes before all of
//! them, and the resize's worker before that; the holders of these only try page latches. The
//! recorder's and the advisor's mutexes are held by background work alone, never with a latch or
//! beside any of these but the policy's.
//!
//! # Where
//! `access` is what others call to have a page, `load` how it comes from its file, `evict` how
//! frames become free, `spaces` how tablespaces come and go.

mod access;
mod evict;
mod load;
mod spaces;

pub(crate) use evict::{NEAR_DEPTH, reserve_of};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::access_sampling::{self, AccessSamplers};
use crate::advisor::Advisor;
use crate::background::Background;
use crate::dirty::DirtyQueue;
use crate::error::{Error, Result, WriteAheadError};
use crate::flush::Flusher;
use crate::frames::Frames;
use crate::mapping::Accounting;
use crate::page::{Lsn, PageSize};
use crate::page_compression::PageCompression;
use crate::read_ahead::ReadAhead;
use crate::replacement::{self, Clock, Replacement, ReplacementConfig};
use crate::resize::Resize;
use crate::scan_throttle::ScanThrottle;
use crate::space::Space;
use crate::stats::{Counters, PoolStats, ThreadWork};
use crate::storage::Storage;
use crate::tier::{CompressedTier, Tier};
use crate::trace::Recorder;
use crate::upkeep::Upkeep;
use tidepool_store::LogThrottle;

pub(crate) use evict::Eviction;

/// Looks at the bytes of a page that came from its file, behind the page header; the error says
/// what cannot be.
pub type CheckPage = fn(&[u8]) -> std::result::Result<(), &'static str>;

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Bytes in a page; fixed when the data directory is created.
    pub page_size: PageSize,
    /// Bytes of frames.
    pub size_bytes: u64,
    /// Bytes of address space to reserve, so that the pool can grow; at least `size_bytes` is.
    pub max_size_bytes: u64,
    /// The replacement policy.
    pub replacement: ReplacementConfig,
    /// How pages are compressed.
    pub page_compression: PageCompression,
    /// Whether part of the pool holds compressed images of pages that left their frames.
    pub compressed_tier: CompressedTier,
    /// Pages written in one batch; fewer while the pool has not eight times as many.
    pub flush_batch_pages: usize,
    /// Ask the kernel for huge pages.
    pub huge_pages: bool,
    /// The process locks its memory (`mlockall`), or is about to: then the kernel would make all
    /// that may be written, and only what is in use may be.
    pub memory_locked: bool,
    /// What the layer above demands of a page that is read, besides checksum and place: its readers
    /// may then rely on that.
    pub check_page: CheckPage,
    /// Run cleaner, evictor and read-ahead in threads. Without, they run when called, or in the
    /// calling thread when needed, and only [`Pool::advance_clock`] moves the time: then a
    /// single-threaded run is the same each time.
    pub background: bool,
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        PoolConfig {
            page_size: PageSize::DEFAULT,
            size_bytes: 128 << 20,
            max_size_bytes: 0,
            replacement: ReplacementConfig::default(),
            page_compression: PageCompression::default(),
            compressed_tier: CompressedTier::default(),
            flush_batch_pages: 128,
            huge_pages: true,
            memory_locked: false,
            check_page: |_| Ok(()),
            background: true,
        }
    }
}

impl PoolConfig {
    fn validate(&self) -> Result<()> {
        let pages = self.size_bytes / self.page_size.bytes() as u64;
        if pages < MIN_FRAMES {
            return Err(Error::InvalidConfig(format!(
                "{} bytes hold {pages} pages of {} bytes, but at least {MIN_FRAMES} are needed",
                self.size_bytes,
                self.page_size.bytes(),
            )));
        }
        if self.flush_batch_pages == 0 || self.flush_batch_pages > 4096 {
            return Err(Error::InvalidConfig(format!(
                "a flush batch has 1 to 4096 pages, not {}",
                self.flush_batch_pages
            )));
        }
        Ok(())
    }
}

/// The redo log, as the pool sees it.
pub trait WriteAhead: Send + Sync {
    /// Returns when all redo before `lsn` is durable. Called before a page with that LSN is
    /// written; the caller holds no page latch.
    fn ensure_durable(&self, lsn: Lsn) -> Result<(), WriteAheadError>;

    /// Up to where redo is durable, if that is cheap to say: then every write-out asserts it.
    fn durable_lsn(&self) -> Option<Lsn> {
        None
    }

    /// Where redo ends, if pages are compared with that: one with a later LSN was written in
    /// another life of its file, and would pass for having seen changes that are still to come.
    fn end_lsn(&self) -> Option<Lsn> {
        None
    }

    /// A data file could not be synced: no page will be written any more, so the checkpoint stays
    /// where it is for good. Time to stop, and to recover from what is really there.
    fn storage_failed(&self, _error: &Error) {}
}

/// The smallest pool, in frames: enough for a few threads with a few latched pages each.
pub const MIN_FRAMES: u64 = 16;

/// The buffer pool.
pub struct Pool {
    frames: Frames,
    pub(crate) spaces: RwLock<BTreeMap<u32, Arc<Space>>>,
    replacement: Box<dyn Replacement>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) samplers: AccessSamplers,
    pub(crate) recorder: Recorder,
    pub(crate) advisor: Advisor,
    pub(crate) dirty: DirtyQueue,
    pub(crate) flusher: Mutex<Flusher>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) write_ahead: RwLock<Option<Arc<dyn WriteAhead>>>,
    pub(crate) counters: Counters,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) scan_throttle: ScanThrottle,
    pub(crate) background: Background,
    /// The redo log wants every page clean whose recovery LSN is below this.
    checkpoint_target: AtomicU64,
    /// The last failed page write, for those who starve because of it; none once all is written
    /// again.
    pub(crate) last_write_error: Mutex<Option<Error>>,
    /// Reports failed page writes in the error log, now and then.
    pub(crate) write_failures: LogThrottle,
    flush_batch_pages_max: usize,
    check_page: CheckPage,
    pub(crate) resize: Resize,
    /// A [`PageCompression`].
    pub(crate) compression: AtomicU8,
    pub(crate) upkeep: Upkeep,
    pub(crate) tier: Tier,
}

impl Pool {
    /// Makes a pool whose reads and writes `storage` runs; page files come with
    /// [`Pool::open_space`].
    pub fn new(config: PoolConfig, storage: Arc<dyn Storage>) -> Result<Arc<Pool>> {
        config.validate()?;
        let frames = Frames::new(
            config.page_size,
            config.size_bytes,
            config.max_size_bytes,
            config.huge_pages,
            match config.memory_locked {
                true => Accounting::Writable,
                false => Accounting::of_machine(),
            },
        )?;
        let clock = Arc::new(match config.background {
            true => Clock::Machine,
            false => Clock::Manual(AtomicU32::new(1)),
        });
        let replacement = replacement::make(&config.replacement, frames.reserved(), clock.clone())?;
        replacement.set_capacity(frames.limit());
        let advisor =
            Advisor::new(&config.replacement, frames.limit(), access_sampling::now_us(&clock))?;
        let samplers = AccessSamplers::new(advisor.sample());
        let pool = Arc::new(Pool {
            replacement,
            frames,
            spaces: RwLock::new(BTreeMap::new()),
            clock,
            samplers,
            recorder: Recorder::default(),
            advisor,
            dirty: DirtyQueue::default(),
            flusher: Mutex::new(Flusher::new(config.page_size, config.flush_batch_pages)),
            storage,
            write_ahead: RwLock::new(None),
            counters: Counters::new(),
            read_ahead: ReadAhead::default(),
            scan_throttle: ScanThrottle::new(),
            background: Background::new(config.background),
            checkpoint_target: AtomicU64::new(0),
            last_write_error: Mutex::new(None),
            write_failures: LogThrottle::default(),
            flush_batch_pages_max: config.flush_batch_pages,
            check_page: config.check_page,
            resize: Resize::default(),
            compression: AtomicU8::new(config.page_compression as u8),
            upkeep: Upkeep::default(),
            tier: Tier::new(config.compressed_tier),
        });
        if config.background {
            Background::start(&pool)?;
        }
        Ok(pool)
    }

    /// Stops the background threads and waits for their end. Nothing is flushed, and no page is
    /// written from then on: a thread that still has a handle, and wants frames, must not write
    /// dirty pages that could not be written before, without the redo log, into a directory that
    /// others may have opened since. Dropping the last handle stops the threads too, but may leave
    /// a thread's end to come a moment later.
    pub fn shutdown(&self) {
        self.background.stop();
        // Waits for a batch under way.
        self.flusher.lock().shut_down();
    }

    /// Names the redo log that page writes must wait for. Without one, they wait for nothing.
    pub fn set_write_ahead(&self, log: Arc<dyn WriteAhead>) {
        *self.write_ahead.write() = Some(log);
    }

    /// Lets go of the redo log (which usually refers to the pool, in a circle).
    pub fn clear_write_ahead(&self) {
        *self.write_ahead.write() = None;
    }

    /// How many pages may be resident now.
    pub fn page_limit(&self) -> u32 {
        self.frames.limit()
    }

    /// How many frames may hold pages: those that hold no compressed images.
    pub(crate) fn frames_for_pages(&self) -> u32 {
        self.frames.limit().saturating_sub(self.tier.held()).max(MIN_FRAMES as u32)
    }

    /// Bytes of frames that the pool may use as its size is now.
    pub fn size_limit_bytes(&self) -> u64 {
        self.frames.limit() as u64 * self.page_size().bytes() as u64
    }

    /// The most bytes of frames that [`Pool::set_size`] can give: those that address space is
    /// reserved for.
    pub fn size_max_bytes(&self) -> u64 {
        self.frames.reserved() as u64 * self.page_size().bytes() as u64
    }

    /// The size of every page.
    pub fn page_size(&self) -> PageSize {
        self.frames.page_size()
    }

    /// Changes the settings of the replacement policy; false if the pool has another policy.
    pub fn configure_replacement(&self, config: &ReplacementConfig) -> bool {
        let done = self.replacement.configure(config);
        if done {
            self.advisor.configure(config);
        }
        done
    }

    /// Moves the clock of a pool without background threads.
    pub fn advance_clock(&self, ms: u32) {
        self.clock.advance(ms);
    }

    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        &self.frames
    }

    pub(crate) fn replacement(&self) -> &dyn Replacement {
        &*self.replacement
    }

    /// Pages written in one batch, at the present size of the pool.
    pub(crate) fn flush_batch_pages(&self) -> usize {
        self.flush_batch_pages_max.min((self.frames_for_pages() as usize / 8).max(4))
    }

    // Checkpoints.

    /// Where the redo begins that the dirty pages need; `None` if none is dirty.
    pub fn oldest_dirty_lsn(&self) -> Option<Lsn> {
        self.dirty.oldest(&self.frames)
    }

    /// Asks the cleaner to write all pages whose changes begin before `target`.
    pub fn set_checkpoint_pressure(&self, target: Lsn) {
        if self.checkpoint_target.fetch_max(target.0, Ordering::Relaxed) < target.0 {
            self.background.wake_cleaner();
        }
    }

    pub(crate) fn checkpoint_target(&self) -> Lsn {
        Lsn(self.checkpoint_target.load(Ordering::Relaxed))
    }

    /// Why the last page that could not be written was not. Others may have been written since;
    /// `None` once a batch was written and no page is left whose write failed.
    pub fn last_write_error(&self) -> Option<Error> {
        self.last_write_error.lock().clone()
    }

    /// What the calling thread has done; see [`ThreadWork`].
    pub fn thread_work(&self) -> ThreadWork {
        self.counters.thread_work()
    }

    /// The counters.
    pub fn stats(&self) -> PoolStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let replacement = self.replacement.stats();
        let pages_data = get(&counters.pages_data);
        let pages_total = self.frames.limit() as u64;
        PoolStats {
            page_size_bytes: self.page_size().bytes() as u64,
            pages_total,
            pages_free: pages_total.saturating_sub(pages_data + u64::from(self.tier.held())),
            pages_data,
            pages_dirty: self.dirty.count(),
            pages_old: replacement.pages_old,
            read_requests: counters.read_requests.sum(),
            reads: get(&counters.reads),
            reads_us: get(&counters.reads_us),
            read_ahead: get(&counters.read_ahead),
            scan_rests_us: get(&counters.scan_rests_us),
            read_ahead_evicted: get(&counters.read_ahead_evicted),
            pages_created: get(&counters.pages_created),
            write_requests: counters.write_requests.sum(),
            pages_flushed: get(&counters.pages_flushed),
            pages_flushed_lru: get(&counters.pages_flushed_lru),
            mirror_pages_written: get(&counters.mirror_pages_written),
            pages_evicted: get(&counters.pages_evicted),
            wait_free: get(&counters.wait_free),
            wait_free_us: get(&counters.wait_free_us),
            pages_made_young: replacement.made_young,
            pages_not_made_young: replacement.not_made_young,
            read_errors: get(&counters.read_errors),
            write_errors: get(&counters.write_errors),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.background.stop();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("frames", &self.frames.limit()).finish_non_exhaustive()
    }
}
