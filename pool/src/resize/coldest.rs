//! What leaves the pool in a shrink: the coldest of its pages, wherever they are.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{PassedOver, Resize, SLICE_PAGES, Slice, Worker};
use crate::eviction::Eviction;

/// How many of the coldest pages are looked at for clean ones before dirty ones are written; more
/// in an urgent shrink that has much to give back.
const DEPTH_MAX: usize = 2048;
/// An urgent shrink looks at this many pages for each frame that it must give back.
const DEPTH_PER_FRAME: usize = 32;
/// Of these, in a slice.
const FAR_AT_ONCE: usize = 4096;
/// How long an urgent shrink waits for the cleaner before it writes pages itself.
const CLEANER_PATIENCE: Duration = Duration::from_millis(200);

impl Resize {
    /// Pages that must leave for the rest and a few free frames to be within the limit.
    pub(super) fn excess(&self) -> u64 {
        let pages = self.core.counters.pages_data.load(Ordering::Relaxed);
        let free = (self.core.reserve() / 2) as u64;
        let images = u64::from(self.core.image_frames());
        (pages + images + free).saturating_sub(self.core.frames.limit() as u64)
    }

    /// Whether so few frames are free that they should be left to queries that miss.
    pub(super) fn is_short_of_free(&self) -> bool {
        self.core.frames.available() <= self.core.reserve() / 2
    }

    /// A slice that waits for the cleaner or for queries: because a page write failed, else for the
    /// reason given.
    fn waiting(&self, why: impl FnOnce() -> String) -> Slice {
        Slice::Waiting(self.flusher.write_failure().unwrap_or_else(why))
    }

    /// How many pages may be evicted in this slice; the slice's outcome if they are too few to
    /// begin with.
    fn evictions_allowed(&self) -> Result<usize, Slice> {
        if !self.core.shrink_throttle.is_on() {
            return Ok(usize::MAX);
        }
        if self.is_short_of_free() {
            self.core.background.wake_evictor();
            return Err(self.waiting(|| "free frames go to queries first".to_owned()));
        }
        let now = Instant::now();
        if !self.core.scan_throttle.is_contended(now) {
            return Ok(usize::MAX);
        }
        let reads = self.core.counters.reads.load(Ordering::Relaxed);
        let allowance = self.core.shrink_throttle.allowance(reads, self.core.frames.debt(), now);
        if allowance < SLICE_PAGES / 4 {
            return Err(self.waiting(|| "what queries read goes first".to_owned()));
        }
        Ok(allowance)
    }

    /// Evicts some of the coldest pages: clean ones, looked for ever further from the cold end.
    /// Where there are none, dirty ones are written first, by the cleaner or here.
    ///
    /// A write takes milliseconds, in which a neighbour takes megabytes. So an urgent shrink with
    /// much to give back evicts clean pages far from the cold end before it writes; the cleaner
    /// writes beside it, so that colder pages become clean.
    pub(super) fn evict_slice(&self, worker: &mut Worker) -> Slice {
        let allowed = match self.evictions_allowed() {
            Ok(allowed) => allowed,
            Err(slice) => return slice,
        };
        let is_throttled = self.core.shrink_throttle.is_on();
        let most = SLICE_PAGES.min(allowed).min(self.excess().max(1) as usize);
        if !is_throttled && (self.evict_found(worker, most) || self.go_far(worker, most)) {
            return Slice::More;
        }
        // In a background shrink the cleaner writes what is dirty, and looks no further than this.
        let depth_max = if is_throttled { self.evictor.cold_depth() } else { DEPTH_MAX };
        let mut coldest = Vec::new();
        loop {
            coldest.clear();
            self.timed(|| self.core.replacement.coldest(worker.depth, &mut coldest));
            let (evicted, dirty) = self.evict_some(coldest.iter().copied(), most);
            if !dirty.is_empty() {
                self.core.background.wake_cleaner();
            }
            // Without a cleaner beside us they would pile up at the cold end, to be looked at again
            // and again.
            let write_now =
                !self.core.background.runs() && dirty.len() >= self.core.flush_batch_pages();
            if evicted > 0 && !write_now {
                (worker.ahead, worker.worked) = (worker.ahead + evicted, true);
                self.core.shrink_throttle.evicted(evicted);
                worker.depth = (worker.depth / 2).max(SLICE_PAGES);
                return Slice::More;
            }
            if !write_now && worker.depth < depth_max && coldest.len() == worker.depth {
                worker.depth *= 2;
                continue;
            }
            if dirty.is_empty() {
                let in_use = coldest.len() as u32;
                return Slice::Blocked(PassedOver { in_use, in_flight: 0 }.why());
            }
            if !is_throttled && self.find_far(worker, most) {
                return Slice::More;
            }
            if is_throttled || self.waits_for_cleaner(worker) {
                let dirty = dirty.len();
                return self
                    .waiting(|| format!("{dirty} pages are dirty, and the cleaner writes them"));
            }
            return self.write_and_evict(worker, dirty, evicted, most);
        }
    }

    /// Whether a shrink leaves the writing to the cleaner. The shrink then goes on with each page
    /// that becomes clean, and does not wait where the kernel holds up a write.
    fn waits_for_cleaner(&self, worker: &Worker) -> bool {
        let is_early = |since: Instant| since.elapsed() < CLEANER_PATIENCE;
        self.core.background.runs() && worker.blocked_since.is_none_or(is_early)
    }

    /// Begins to look for clean pages further from the cold end than [`DEPTH_MAX`], and evicts up
    /// to `most` of the first; false if there are none.
    fn find_far(&self, worker: &mut Worker, most: usize) -> bool {
        let depth = self.core.frames.debt() as usize * DEPTH_PER_FRAME;
        if !self.core.background.runs() || depth <= DEPTH_MAX {
            return false;
        }
        worker.far_left = depth;
        self.core.replacement.begin_walk();
        self.go_far(worker, most)
    }

    /// Goes on with that, if it is under way; false if it has come to its end, and nothing could be
    /// evicted.
    fn go_far(&self, worker: &mut Worker, most: usize) -> bool {
        if worker.far_left == 0 {
            return false;
        }
        let frames = &self.core.frames;
        let (at_once, mut coldest) = (FAR_AT_ONCE.min(worker.far_left), Vec::new());
        let goes_on = self.timed(|| self.core.replacement.walk_on(at_once, &mut coldest));
        worker.far_left = if goes_on { worker.far_left - at_once } else { 0 };
        coldest.retain(|&frame| !frames.descriptor(frame).is_dirty());
        coldest.reverse();
        worker.found = coldest;
        self.evict_found(worker, most) || worker.far_left > 0
    }

    /// Evicts up to `most` of the pages that were found far from the cold end; false if none could
    /// be evicted.
    fn evict_found(&self, worker: &mut Worker, most: usize) -> bool {
        let (evicted, _) = self.evict_some(std::iter::from_fn(|| worker.found.pop()), most);
        worker.ahead += evicted;
        worker.worked |= evicted > 0;
        evicted > 0
    }

    /// Writes a batch of dirty pages and evicts them; `evicted` went before in the same slice.
    fn write_and_evict(
        &self,
        worker: &mut Worker,
        mut dirty: Vec<u32>,
        evicted: usize,
        most: usize,
    ) -> Slice {
        dirty.truncate(self.core.flush_batch_pages());
        let written = self.flusher.flush_for_frames(&dirty);
        let (more, still_dirty) = self.evict_some(dirty.iter().copied(), most);
        let evicted = evicted + more;
        worker.ahead += evicted;
        worker.worked |= evicted > 0;
        match written {
            _ if evicted > 0 => Slice::More,
            Err(error) => Slice::Blocked(format!("write error: {error}")),
            Ok(_) => {
                let in_flight = still_dirty.len() as u32;
                let in_use = dirty.len() as u32 - in_flight;
                Slice::Blocked(PassedOver { in_use, in_flight }.why())
            }
        }
    }

    /// Evicts up to `most` of the clean pages in `frames`, and takes no frame after the last of
    /// them; how many, and which are dirty.
    fn evict_some(&self, frames: impl Iterator<Item = u32>, most: usize) -> (usize, Vec<u32>) {
        let (mut evicted, mut dirty) = (0, Vec::new());
        for frame in frames {
            match self.timed(|| self.evictor.try_evict(frame)) {
                Eviction::Done => {
                    self.core.frames.give(frame);
                    evicted += 1;
                    if evicted == most {
                        break;
                    }
                }
                Eviction::Dirty => dirty.push(frame),
                Eviction::Busy => {}
            }
        }
        (evicted, dirty)
    }
}
