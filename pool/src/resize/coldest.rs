//! What leaves the pool in a shrink: the coldest of its pages, wherever they are.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{PassedOver, SLICE_PAGES, Slice, Worker};
use crate::pool::{Eviction, Pool};

/// How many of the coldest pages are looked at for clean ones before dirty ones are written.
const DEPTH_MAX: usize = 2048;

impl Pool {
    /// Pages too many for the limit, a few free frames included.
    pub(super) fn excess(&self) -> u64 {
        let pages = self.counters.pages_data.load(Ordering::Relaxed);
        let free = (self.reserve() / 2) as u64;
        (pages + free).saturating_sub(self.frames().limit() as u64)
    }

    /// Whether so few frames are free that those who miss should have them first.
    pub(super) fn is_short_of_free(&self) -> bool {
        self.frames().available() <= self.reserve() / 2
    }

    pub(super) fn waiting(&self, why: impl FnOnce() -> String) -> Slice {
        Slice::Waiting(self.write_failure().unwrap_or_else(why))
    }

    /// Evicts some of the coldest pages.
    pub(super) fn evict_slice(&self, worker: &mut Worker) -> Slice {
        let at_leisure = self.resize.leisure.is_taken();
        if at_leisure && self.is_short_of_free() {
            self.background.wake_evictor();
            return self.waiting(|| "free frames go to queries first".to_owned());
        }
        let now = Instant::now();
        let allowance = match at_leisure && self.pace.is_contended(now) {
            true => {
                let reads = self.counters.reads.load(Ordering::Relaxed);
                self.resize.leisure.allowance(reads, self.frames().debt(), now)
            }
            false => usize::MAX,
        };
        if allowance < SLICE_PAGES / 4 {
            return self.waiting(|| "what queries read goes first".to_owned());
        }
        // The cleaner looks no further then.
        let depth_max = if at_leisure { self.cold_depth() } else { DEPTH_MAX };
        let mut coldest = Vec::new();
        loop {
            coldest.clear();
            self.timed(|| self.replacement().coldest(worker.depth, &mut coldest));
            let most = SLICE_PAGES.min(allowance).min(self.excess().max(1) as usize);
            let (evicted, mut dirty) = self.evict_some(&coldest, most);
            if !dirty.is_empty() {
                self.background.wake_cleaner();
            }
            // Without a cleaner beside us they would pile up at the cold end, to be looked at again
            // and again.
            let write_now = !self.background.runs() && dirty.len() >= self.flush_batch_pages();
            if evicted > 0 && !write_now {
                (worker.ahead, worker.worked) = (worker.ahead + evicted, true);
                self.resize.leisure.evicted(evicted);
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
            if at_leisure {
                let dirty = dirty.len();
                return self.waiting(|| format!("{dirty} pages are dirty, and written at leisure"));
            }
            dirty.truncate(self.flush_batch_pages());
            let written = self.flush_for_frames(&dirty);
            let (more, still_dirty) = self.evict_some(&dirty, most);
            let evicted = evicted + more;
            worker.ahead += evicted;
            worker.worked |= evicted > 0;
            return match written {
                _ if evicted > 0 => Slice::More,
                Err(error) => Slice::Blocked(format!("write error: {error}")),
                Ok(_) => {
                    let in_flight = still_dirty.len() as u32;
                    let in_use = dirty.len() as u32 - in_flight;
                    Slice::Blocked(PassedOver { in_use, in_flight }.why())
                }
            };
        }
    }

    /// Evicts up to `most` of the clean pages in `frames`; how many, and which are dirty.
    fn evict_some(&self, frames: &[u32], most: usize) -> (usize, Vec<u32>) {
        let (mut evicted, mut dirty) = (0, Vec::new());
        for &frame in frames {
            match self.timed(|| self.try_evict(frame)) {
                Eviction::Done => {
                    self.frames().give(frame);
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
