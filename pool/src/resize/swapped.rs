//! What of a shrinking pool is in swap: clean pages there leave first, whatever the policy thinks
//! of them.
//!
//! A page that is moved is read from swap to be copied, and so is what a free frame held before the
//! copy overwrites it: a pool of 1.5 GiB of which a third was in swap took five seconds to come
//! down to 0.65, at 100 MB/s of swap. A clean page that is dropped costs nothing now, and a read of
//! its file, no more than one from swap, if anybody asks for it again. And for each one that goes,
//! one that is in memory stays. Where none need leave, as after a large table was dropped, the
//! pages are looked for only in the extents that are emptied, where the others would be moved.
//!
//! # What it costs where there is little to find
//! One system call an extent, some microseconds. So nothing is looked for unless memory of the
//! machine is in swap and a sample of the extents has pages there; no further than [`FRUITLESS`]
//! extents without a find; and only as far as the wave needs frames. The next wave, and the next
//! resize, go on where it ended.
//!
//! Without background threads nothing is looked for: what the kernel does to the memory is not to
//! be seen in a simulation.

use std::sync::atomic::Ordering;

use super::{Resize, Worker};
use crate::eviction::Eviction;

/// Extents of the sample.
const SAMPLE: u32 = 64;
/// Extents looked at in a slice.
const AT_ONCE: u32 = 16;
/// After this many in which nothing was found the search ends.
const FRUITLESS: u32 = 1024;

/// How far the extents have been looked through.
#[derive(Default)]
pub(super) struct Sweep {
    finds: Finds,
    /// The extent to go on with.
    next: u32,
    /// Extents that are left of this round.
    left: u32,
    /// Extents since the last page that was dropped.
    fruitless: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Finds {
    /// No sample was taken yet.
    #[default]
    Unknown,
    Nothing,
    Some,
}

impl Sweep {
    /// Another round, from where this one ended.
    pub(super) fn again(&self) -> Sweep {
        Sweep { next: self.next, ..Sweep::default() }
    }

    /// Whether pages of the pool are in swap, as far as is known.
    pub(super) fn finds_any(&self) -> bool {
        self.finds == Finds::Some
    }
}

impl Resize {
    /// Takes the sample, once in a resize, before any page leaves or moves.
    pub(super) fn sample_swap(&self, worker: &mut Worker) {
        if worker.sweep.finds == Finds::Unknown {
            let extents = self.extents_to_sweep();
            let found = self.has_pages_in_swap(extents);
            worker.sweep.finds = if found { Finds::Some } else { Finds::Nothing };
            worker.sweep.left = extents;
        }
    }

    fn extents_to_sweep(&self) -> u32 {
        self.core.frames.highest() / self.core.frames.per_extent()
    }

    /// A slice of the sweep: drops clean pages that are in swap, as far as pages must leave. False:
    /// there is no more to look for.
    pub(super) fn sweep_swap(&self, worker: &mut Worker) -> bool {
        let extents = self.extents_to_sweep();
        let sweep = &worker.sweep;
        if !sweep.finds_any() || sweep.left == 0 || sweep.fruitless >= FRUITLESS {
            return false;
        }
        for _ in 0..AT_ONCE.min(sweep.left) {
            let excess = self.excess();
            if excess == 0 {
                break;
            }
            let extent = worker.sweep.next % extents;
            let dropped = self.drop_from_swap(extent, excess, worker);
            let sweep = &mut worker.sweep;
            (sweep.next, sweep.left) = (extent + 1, sweep.left - 1);
            sweep.fruitless = if dropped > 0 { 0 } else { sweep.fruitless + 1 };
        }
        true
    }

    fn has_pages_in_swap(&self, extents: u32) -> bool {
        let frames = &self.core.frames;
        let may_be = self.core.background.runs() && frames.may_be_in_swap();
        #[cfg(test)]
        let may_be = may_be || frames.seems_to_swap.load(Ordering::Relaxed);
        if !may_be {
            return false;
        }
        let sampled = (0..extents).step_by((extents / SAMPLE).max(1) as usize);
        sampled.into_iter().any(|extent| {
            self.holds_pages(extent)
                && frames.in_swap(extent).iter().any(|&it| frames.descriptor(it).page().is_some())
        })
    }

    fn holds_pages(&self, extent: u32) -> bool {
        let per_extent = self.core.frames.per_extent();
        let mut frames = extent * per_extent..(extent + 1) * per_extent;
        frames.any(|frame| self.core.frames.descriptor(frame).page().is_some())
    }

    /// Drops up to `most` of the clean pages of an extent that are in swap, if any were found so
    /// far in this resize; how many.
    pub(super) fn drop_from_swap(&self, extent: u32, most: u64, worker: &mut Worker) -> usize {
        let frames = &self.core.frames;
        if !worker.sweep.finds_any() || !self.holds_pages(extent) {
            return 0;
        }
        let mut dropped = 0;
        for frame in frames.in_swap(extent) {
            if dropped as u64 == most {
                break;
            }
            if let Eviction::Done = self.timed(|| self.evictor.try_evict(frame)) {
                frames.forget(frame);
                frames.give(frame);
                dropped += 1;
            }
        }
        // Also in a background shrink: a query that wants it again reads it, as from swap.
        self.pages_dropped_from_swap.fetch_add(dropped as u64, Ordering::Relaxed);
        worker.ahead += dropped;
        worker.worked |= dropped > 0;
        dropped
    }
}

#[cfg(test)]
mod tests;
