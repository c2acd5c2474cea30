//! How a frame is got: from the free list, by evicting a clean page, by waiting for the cleaner.
//!
//! A thread that waits may hold page latches. That is safe because the cleaner and the evictor only
//! *try* latches, and pass over what they cannot have.
//!
//! # Who writes
//! A page is evicted clean. Where all that is cold is dirty, the cleaner's thread writes it, woken
//! from here; without threads, who wants the frame does ([`Evictor::flush_cold`]).
//!
//! # Locking
//! page latch (only tried) → `spaces` → what the core takes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::flush::Flusher;
use crate::page::PageId;
use crate::pool_core::PoolCore;
use crate::replacement::Access;
use crate::stats::{count, count_time};
use crate::sync::Wants;
use crate::tier::{Key, Origin, Tier};

/// How many of the coldest pages a thread looks at first for one that it can evict at once.
pub(crate) const NEAR_DEPTH: usize = 64;

/// How many it looks at before, and while, it waits for a frame.
const STARVED_DEPTH: usize = 2048;

/// How long a thread waits for a frame while nothing at all is written or evicted.
const STARVED: Duration = Duration::from_secs(10);

/// How many frames may be missing in a reserve before the evictor is woken. Woken for each frame,
/// it switched threads 11,500 times a second beside 27,000 queries that missed: a tenth of a
/// processor, and as much again of theirs for waking it.
fn slack_of(reserve: u32) -> u32 {
    reserve / 4
}

/// What happens to the image of a page that leaves its frame and has none in the compressed tier.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Images {
    /// None is made: the thread has something else to do.
    Leave,
    /// It is made, if the page was used.
    Make,
}

/// Outcome of [`Evictor::try_evict`].
pub(crate) enum Eviction {
    /// The frame has no page any more, and is in transit.
    Done,
    /// The page must be written first.
    Dirty,
    /// The page is in use, or gone.
    Busy,
}

/// See the head of this module.
pub(crate) struct Evictor {
    core: Arc<PoolCore>,
    tier: Arc<Tier>,
    flusher: Arc<Flusher>,
}

impl Evictor {
    pub(crate) fn new(core: Arc<PoolCore>, tier: Arc<Tier>, flusher: Arc<Flusher>) -> Evictor {
        Evictor { core, tier, flusher }
    }

    /// Tries to take the page out of `frame`. Never waits.
    pub(crate) fn try_evict(&self, frame: u32) -> Eviction {
        self.try_evict_and(frame, Images::Leave)
    }

    fn try_evict_and(&self, frame: u32, images: Images) -> Eviction {
        let descriptor = self.core.frames.descriptor(frame);
        let Some(id) = descriptor.page() else { return Eviction::Busy };
        if descriptor.is_dirty() {
            return Eviction::Dirty;
        }
        let spaces = self.core.spaces.read();
        let word = spaces.get(&id.space).and_then(|space| space.existing_word(id.no));
        let Some(word) = word else { return Eviction::Busy };
        let Ok(latch) = word.try_latch(Wants::Exclusive) else { return Eviction::Busy };
        if latch.frame() != frame {
            return Eviction::Busy;
        }
        if descriptor.is_dirty() {
            return Eviction::Dirty;
        }
        debug_assert_eq!(descriptor.page(), Some(id), "word and frame name each other");
        // In a shrink pages are evicted that would have stayed: a thread that waits for one of them
        // waits for the resize.
        let began = (self.core.frames.debt() > 0).then(Instant::now);
        if !self.core.replacement.was_accessed(frame) {
            count(&self.core.counters.read_ahead_evicted);
        }
        if let Some(space) = spaces.get(&id.space) {
            self.leave_for_tier(id, space.tier_key(id.no), frame, images);
        }
        self.core.replacement.remove(frame);
        // It has no list now: if it can't leave its frame, no thread may have it.
        let word = latch.keep();
        let is_awaited = word.load().has_waiters();
        self.core.vacate(word, frame);
        if let Some(began) = began.filter(|_| is_awaited) {
            self.core.resize_wait.note_since(began);
        }
        count(&self.core.counters.pages_evicted);
        Eviction::Done
    }

    /// Has the compressed tier know that a clean page leaves its frame, and hold its image if the
    /// page is worth that. The caller has the page latched exclusively.
    fn leave_for_tier(&self, id: PageId, key: Key, frame: u32, images: Images) {
        if self.tier.note_evicted(key) || images == Images::Leave {
            return;
        }
        let is_wanted = self.core.replacement.heat(frame).is_some_and(|heat| heat > 0);
        if !is_wanted || !self.tier.keeps_images_of(Access::Normal) || !self.tier.may_compress() {
            return;
        }
        #[expect(unsafe_code, reason = "the latch makes the bytes safe to read")]
        // SAFETY: the page in the frame is latched exclusively, by the caller.
        let bytes = unsafe { self.core.frames.bytes(frame) };
        let image = self.core.image_of(id, bytes);
        self.tier.keep(key, image.codec, &image.bytes, Origin::Evicted);
    }

    /// A frame without a page, in transit. May wait; see the head of this module.
    pub(crate) fn take_frame(&self) -> Result<u32> {
        // The very coldest may all be dirty or on their way to disk while clean ones are not far
        // from them.
        let found =
            self.take_frame_at_once(NEAR_DEPTH).or_else(|| self.take_frame_at_once(STARVED_DEPTH));
        if let Some(frame) = found {
            return Ok(frame);
        }
        count(&self.core.counters.wait_free);
        let (began, debt) = (Instant::now(), self.core.frames.debt());
        let frame = match self.core.background.runs() {
            true => self.wait_for_frame(),
            false => self.make_frame(),
        };
        count_time(&self.core.counters.wait_free_us, began.elapsed());
        if debt > 0 || self.core.frames.debt() > 0 {
            self.core.resize_wait.note_since(began);
        }
        frame
    }

    /// A free frame, or that of one of the `depth` coldest pages, if one can be had without I/O.
    pub(crate) fn take_frame_at_once(&self, depth: usize) -> Option<u32> {
        let frame = self.core.frames.take();
        let reserve = self.core.reserve();
        if self.core.frames.available() < reserve - slack_of(reserve) {
            self.core.background.wake_evictor();
        }
        if self.core.frames.wants_extent() {
            self.core.background.wake_grower();
        }
        if frame.is_some() {
            return frame;
        }
        let mut coldest = Vec::new();
        self.core.replacement.coldest(depth, &mut coldest);
        coldest.into_iter().find(|&frame| {
            matches!(self.try_evict(frame), Eviction::Done) && self.core.frames.may_reuse(frame)
        })
    }

    /// Waits until the cleaner or evictor have freed a frame.
    fn wait_for_frame(&self) -> Result<u32> {
        let progress = || {
            self.core.counters.pages_flushed.load(Ordering::Relaxed)
                + self.core.counters.pages_evicted.load(Ordering::Relaxed)
        };
        let mut last_progress = (progress(), Instant::now());
        let errors_before = self.core.counters.write_errors.load(Ordering::Relaxed);
        loop {
            self.core.background.wake_evictor();
            self.core.background.wake_cleaner();
            self.core.frames.wait(Duration::from_millis(5));
            if let Some(frame) = self.take_frame_at_once(STARVED_DEPTH) {
                return Ok(frame);
            }
            let now = progress();
            if now != last_progress.0 {
                last_progress = (now, Instant::now());
            }
            let starved = last_progress.1.elapsed();
            let errors = self.core.counters.write_errors.load(Ordering::Relaxed) - errors_before;
            if starved > STARVED || errors > 0 && starved > STARVED / 10 {
                return Err(self.no_free_frame());
            }
        }
    }

    /// Without background threads: writes dirty pages here and now.
    fn make_frame(&self) -> Result<u32> {
        for _ in 0..4 {
            let written = self.flush_cold();
            if let Some(frame) = self.take_frame_at_once(self.core.frames.limit() as usize) {
                return Ok(frame);
            }
            written?;
        }
        Err(self.no_free_frame())
    }

    fn no_free_frame(&self) -> Error {
        let why =
            self.flusher.write_failure().unwrap_or_else(|| match self.core.frames.is_refused() {
                true => {
                    "the kernel may promise no more memory (vm.overcommit_memory is 2)".to_owned()
                }
                false => "all are in use".to_owned(),
            });
        Error::NoFreeFrame { frames: self.core.frames.limit(), why }
    }

    /// Evicts clean cold pages until the reserve of free frames is there, or none is left to be
    /// had. Returns how many.
    pub fn run_step(&self) -> usize {
        let mut evicted = 0;
        let mut coldest = Vec::new();
        loop {
            let missing = self.core.reserve().saturating_sub(self.core.frames.available()) as usize;
            if missing == 0 {
                return evicted;
            }
            coldest.clear();
            self.core.replacement.coldest(missing + NEAR_DEPTH, &mut coldest);
            let before = evicted;
            let mut dirty = false;
            for &frame in &coldest {
                match self.try_evict_and(frame, Images::Make) {
                    Eviction::Done => {
                        self.core.frames.give(frame);
                        evicted += 1;
                    }
                    Eviction::Dirty => dirty = true,
                    Eviction::Busy => {}
                }
                if evicted - before == missing {
                    break;
                }
            }
            if dirty {
                self.core.background.wake_cleaner();
            }
            if evicted == before {
                return evicted;
            }
        }
    }

    /// How many of the coldest pages the cleaner looks at for dirty ones at first.
    pub(crate) fn cold_depth(&self) -> usize {
        4 * self.core.flush_batch_pages()
    }

    /// Frames of a batch of dirty pages among the `depth` coldest, and how many pages were looked
    /// at.
    fn coldest_dirty(&self, depth: usize) -> (Vec<u32>, usize) {
        let mut frames = Vec::new();
        self.core.replacement.coldest(depth, &mut frames);
        let seen = frames.len();
        frames.retain(|&frame| self.core.frames.descriptor(frame).is_dirty());
        frames.truncate(self.core.flush_batch_pages());
        (frames, seen)
    }

    /// Frames of a batch of dirty pages that a shrink is about to evict.
    pub(crate) fn next_dirty(&self) -> Vec<u32> {
        self.coldest_dirty(self.cold_depth()).0
    }

    /// Writes dirty pages among the coldest, and evicts what is clean.
    pub(crate) fn flush_cold(&self) -> Result<usize> {
        let mut depth = self.cold_depth();
        loop {
            let (frames, seen) = self.coldest_dirty(depth);
            let written = self.flusher.flush_for_frames(&frames);
            let evicted = self.run_step();
            // Nothing to be had that near the tail: look further.
            if evicted == 0 && matches!(written, Ok(0)) && seen == depth {
                depth *= 4;
                continue;
            }
            return written;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::PoolConfig;
    use crate::frames::EXTENT_BYTES;
    use crate::pool::Pool;
    use crate::replacement::Access;
    use crate::storage::{SimStorage, Storage};
    use crate::test_files;

    #[test]
    fn a_pool_that_is_refused_memory_goes_on_with_what_it_has() {
        const EXTENT: u64 = EXTENT_BYTES as u64;
        for background in [false, true] {
            let storage = SimStorage::new(1);
            let file = storage.create("16.tpd").unwrap();
            let config = PoolConfig { size_bytes: 8 * EXTENT, background, ..PoolConfig::default() };
            let pool = Pool::new(config, Arc::new(storage)).unwrap();
            let space =
                pool.open_space(16, test_files::create(file, 16, pool.page_size())).unwrap();
            let read = |pages: std::ops::Range<u32>| {
                for no in pages {
                    pool.shared(&space, no, Access::Normal).unwrap();
                }
            };
            read(0..100);
            pool.core.frames.refuse.store(true, Ordering::Relaxed);
            read(0..1024);
            // One may have been prepared ahead.
            assert!(pool.resident_bytes() <= if background { 2 * EXTENT } else { EXTENT });
            pool.core.frames.refuse.store(false, Ordering::Relaxed);
            pool.run_grower_step();
            read(0..1024);
            assert!(background || pool.resident_bytes() == 8 * EXTENT);
        }
    }
}
