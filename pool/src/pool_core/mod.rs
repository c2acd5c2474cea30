//! The core of the pool: where pages are, which of them are dirty, which leaves next, and the disk.
//!
//! All that is above shares one core, and changes it by what is here: the writing of pages
//! ([`crate::flush`]), the compressed tier, eviction, read-ahead, the resize, and the pool's face.
//! The core calls none of them. What it must have them do, it asks for by a wake-up of
//! [`Background`].
//!
//! # Life of a page
//! ```text
//!            install                     page is filled            guard dropped
//!   absent ───────────▶ being loaded ───────────────────▶ latched ──────────────▶ resident
//!      ▲    (exclusive)      │ abandon                                               │
//!      ├─────────────────────┘                                    vacate (exclusive, │
//!      └───────────────────────────────────────────────────────── clean, off lists) ─┘
//! ```
//!
//! # Invariants
//! - A page is in the replacement policy's lists from the end of its load until it is vacated, and
//!   counts in `pages_data` exactly as long.
//! - The word of a resident page names its frame, and the frame's descriptor names the page. They
//!   differ only while a thread has the page latched exclusively.
//! - A dirty page is in one shard of the dirty queue, that of its frame; a frame that is vacated or
//!   given back is clean.
//!
//! # Waiting for frames
//! Nothing here waits. A thread that wants a frame, and may hold page latches, waits in
//! [`crate::eviction`]. That is safe because all background work only *tries* latches, and passes
//! over what it cannot have.
//!
//! # Locking order
//! page latches (in the order that the layer above defines) → `spaces` → replacement policy's mutex
//! → free list's mutex; page latch → dirty queue's mutex.
//!
//! # Where
//! Here: what the core consists of, and its sizes. `residency`: pages that come, change and go.
//! `spaces`: which tablespaces are open. `images`: what a page is for its file.

mod images;
mod residency;
mod spaces;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;

pub(crate) use self::residency::Loading;
use crate::access_sampling::{AccessSamplers, Sample};
use crate::background::Background;
use crate::config::{CheckPage, MIN_FRAMES, PoolConfig};
use crate::contention::LongestWait;
use crate::dirty::DirtyQueue;
use crate::error::{Error, Result};
use crate::frames::{EXTENT_BYTES, Frames};
use crate::mapping::Accounting;
use crate::packed;
use crate::page::{Lsn, PageSize};
use crate::replacement::{self, Clock, Replacement};
use crate::scan_throttle::ScanThrottle;
use crate::shrink_throttle::ShrinkThrottle;
use crate::space::{Space, SpacesMemory};
use crate::stats::{Counters, PoolStats};
use crate::storage::{Ballast, Storage};
use crate::write_ahead::WriteAhead;

/// How many of `frames` frames the evictor keeps free, at most.
pub(crate) fn reserve_of(frames: u32) -> u32 {
    (frames / 32).clamp(2, 1024)
}

/// See the head of this module.
pub(crate) struct PoolCore {
    pub(crate) frames: Frames,
    pub(crate) spaces: RwLock<BTreeMap<u32, Arc<Space>>>,
    pub(crate) spaces_memory: Arc<SpacesMemory>,
    /// The space whose file's map is looked at next.
    pub(crate) next_map: AtomicU32,
    pub(crate) replacement: Box<dyn Replacement>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) samplers: AccessSamplers,
    pub(crate) dirty: DirtyQueue,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) counters: Counters,
    pub(crate) background: Background,
    pub(crate) scan_throttle: ScanThrottle,
    pub(crate) shrink_throttle: ShrinkThrottle,
    /// The longest that any thread can have waited because of a resize.
    pub(crate) resize_wait: LongestWait,
    /// Frames that hold images of the compressed tier, which counts them here.
    pub(crate) image_frames: AtomicU32,
    /// The files may be another process's by now: no page is read any more.
    pub(crate) is_shut_down: AtomicBool,
    write_ahead: RwLock<Option<Arc<dyn WriteAhead>>>,
    ballast: Option<Arc<Ballast>>,
    check_page: CheckPage,
    /// A [`PageCompression`](crate::PageCompression).
    compression: AtomicU8,
    flush_batch_pages_max: usize,
}

impl PoolCore {
    /// Makes the core of an empty pool; `config` was validated. No access is sampled yet.
    pub(crate) fn new(config: &PoolConfig, storage: Arc<dyn Storage>) -> Result<PoolCore> {
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
        Ok(PoolCore {
            frames,
            spaces: RwLock::new(BTreeMap::new()),
            spaces_memory: Arc::default(),
            next_map: AtomicU32::new(0),
            replacement,
            clock,
            samplers: AccessSamplers::new(Sample::NONE),
            dirty: DirtyQueue::default(),
            storage,
            counters: Counters::new(),
            background: Background::new(
                config.background,
                config.memory_threads,
                config.threads.clone(),
            ),
            scan_throttle: ScanThrottle::new(),
            shrink_throttle: ShrinkThrottle::default(),
            resize_wait: LongestWait::default(),
            image_frames: AtomicU32::new(0),
            is_shut_down: AtomicBool::new(false),
            write_ahead: RwLock::new(None),
            ballast: config.ballast.clone(),
            check_page: config.check_page,
            compression: AtomicU8::new(config.page_compression as u8),
            flush_batch_pages_max: config.flush_batch_pages,
        })
    }

    /// Does the work, and once more with the space of the ballast if the disk is full.
    pub(crate) fn with_ballast<T>(
        &self,
        mut work: impl FnMut() -> packed::Result<T>,
    ) -> packed::Result<T> {
        match work() {
            Err(packed::Error::Storage(error)) if error.is_no_space() && self.release_ballast() => {
                work()
            }
            outcome => outcome,
        }
    }

    /// The disk is full: releases the ballast. Returns whether it is worth trying again.
    pub(crate) fn release_ballast(&self) -> bool {
        self.ballast.as_ref().is_some_and(|ballast| ballast.release())
    }

    /// The size of every page.
    pub(crate) fn page_size(&self) -> PageSize {
        self.frames.page_size()
    }

    /// Frames that hold compressed images.
    pub(crate) fn image_frames(&self) -> u32 {
        self.image_frames.load(Ordering::Relaxed)
    }

    /// The tier has given a frame back.
    pub(crate) fn note_image_frame_released(&self) {
        let before = self.image_frames.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a frame of the tier was counted");
    }

    /// How many frames may hold pages: those that hold no compressed images.
    pub(crate) fn frames_for_pages(&self) -> u32 {
        self.frames.limit().saturating_sub(self.image_frames()).max(MIN_FRAMES as u32)
    }

    /// How many frames the evictor keeps free: this many after each of its steps, a quarter less
    /// before the next.
    pub(crate) fn reserve(&self) -> u32 {
        reserve_of(self.frames_for_pages())
    }

    /// Pages written in one batch, at the present size of the pool.
    pub(crate) fn flush_batch_pages(&self) -> usize {
        self.flush_batch_pages_max.min((self.frames_for_pages() as usize / 8).max(4))
    }

    /// Memory that the frames hold: whole extents, from the first use of a frame until they are
    /// given back.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.frames.extents_held() as u64 * EXTENT_BYTES as u64
    }

    /// Where the redo begins that the dirty pages need; `None` if none is dirty.
    pub(crate) fn oldest_dirty_lsn(&self) -> Option<Lsn> {
        self.dirty.oldest(&self.frames)
    }

    // The redo log.

    /// Sets the log that page writes wait for, or none.
    pub(crate) fn set_write_ahead(&self, log: Option<Arc<dyn WriteAhead>>) {
        *self.write_ahead.write() = log;
    }

    pub(crate) fn write_ahead(&self) -> Option<Arc<dyn WriteAhead>> {
        self.write_ahead.read().clone()
    }

    /// The write-ahead rule: no page before its redo. The caller holds no page latch.
    pub(crate) fn ensure_durable(&self, lsn: Lsn) -> Result<()> {
        let Some(log) = self.write_ahead() else { return Ok(()) };
        log.ensure_durable(lsn).map_err(|source| Error::WriteAhead { lsn, source })?;
        if let Some(durable) = log.durable_lsn() {
            assert!(durable >= lsn, "redo is durable up to {durable}, but a page has LSN {lsn}");
        }
        Ok(())
    }

    /// Rests as long as the [`ScanThrottle`] says, on behalf of a scan. Without threads no other
    /// could read during the rest.
    pub(crate) fn let_queries_read(&self, rest: impl Fn(&ScanThrottle, Instant) -> Duration) {
        if !self.background.runs() || self.background.is_stopping() {
            return;
        }
        let rest = rest(&self.scan_throttle, Instant::now());
        if rest > Duration::ZERO {
            self.counters.scan_rests_us.fetch_add(rest.as_micros() as u64, Ordering::Relaxed);
            std::thread::sleep(rest);
        }
    }

    /// The counters.
    pub(crate) fn stats(&self) -> PoolStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let replacement = self.replacement.stats();
        let pages_data = get(&counters.pages_data);
        let pages_total = self.frames.limit() as u64;
        PoolStats {
            page_size_bytes: self.page_size().bytes() as u64,
            pages_total,
            pages_free: pages_total.saturating_sub(pages_data + u64::from(self.image_frames())),
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
