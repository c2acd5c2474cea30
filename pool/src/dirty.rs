//! Which pages are dirty, in the order of the redo that they need.
//!
//! A page becomes dirty while its mini-transaction is appended to the redo log. Appends run beside
//! each other, so pages come nearly in LSN order; a queue of (recovery LSN, frame) sorts the few
//! that come late. Beside it are two small ordered sets: entries put aside (taken up for write-out,
//! but their page was latched or its write failed; or far out of order), and entries in flight. An
//! entry is in exactly one of the three, so the oldest dirty LSN is the least of three heads.
//!
//! ```text
//!             mark                       begin (copied)             complete, written
//!   clean ───────────▶ queued / aside ───────────────▶ in flight ───────────────▶ clean
//!                            ▲                             │
//!                            └──────── complete, failed ───┘
//! ```
//! A page changed while in flight is queued anew under the later LSN: the copy being written covers
//! all that came before. Entries of the queue go stale when their page was written or discarded
//! outside the queue's order, or moved to another frame (whose entry is put aside); they are
//! dropped when they reach the head. An entry is stale if the frame's `rec_lsn` is another. It may
//! come alive again, when a failed write-out restores the frame's `rec_lsn`, or a page of the same
//! mini-transaction moves into the frame. Then the frame has two valid entries, one in the queue
//! and one aside; once its page has been written out by either, the other is stale.
//!
//! # Shards
//! Every thread that writes comes here, so frames are spread over [`SHARDS`] shards by their
//! number, each with these three and a mutex. All that is about one frame happens under its shard's
//! mutex. Who moves a page, or looks for the oldest, holds the mutexes of both frames, or of all:
//! no page slips from a shard that he has not looked at into one that he has.
//!
//! Locking: a mutex is taken under page latches and under one of the redo log's buffer; those of
//! several shards are taken in the shards' order. Under them nothing is taken.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::MutexGuard;

use crate::contention::CountingMutex;
use crate::frames::Frames;
use crate::latch::PageWord;
use crate::page::Lsn;

/// A recovery LSN plus one (as descriptors keep it), and the frame.
type Entry = (u64, u32);

const SHARDS: usize = 16;
/// An entry that belongs before more entries of the queue than these is put aside.
const DISORDER_MAX: usize = 64;

#[derive(Default)]
struct Queues {
    /// Ascending.
    fifo: VecDeque<Entry>,
    /// Longer than this, it is searched for entries that are stale.
    stale_search_len: usize,
    aside: BTreeSet<Entry>,
    in_flight: BTreeSet<Entry>,
}

impl Queues {
    fn insert(&mut self, entry: Entry) {
        let late = self.fifo.iter().rev().take(DISORDER_MAX + 1);
        let late = late.take_while(|other| other.0 > entry.0).count();
        // Far out of order, as recovery's may be: the set sorts it.
        if late > DISORDER_MAX {
            self.aside.insert(entry);
        } else {
            self.fifo.insert(self.fifo.len() - late, entry);
        }
    }

    fn drop_stale(&mut self, frames: &Frames) {
        while let Some(&(lsn, frame)) = self.fifo.front()
            && !is_live(frames, lsn, frame)
        {
            self.fifo.pop_front();
        }
    }
}

/// On cache lines that it shares with no other.
#[repr(align(128))]
#[derive(Default)]
struct Shard {
    queues: CountingMutex<Queues>,
    /// Dirty pages, those in flight included. Written under the mutex.
    count: AtomicU64,
}

impl Shard {
    fn add(&self, pages: u64) {
        self.count.store(self.count.load(Ordering::Relaxed) + pages, Ordering::Relaxed);
    }

    fn subtract_one(&self) {
        let count = self.count.load(Ordering::Relaxed);
        assert!(count > 0, "a page that gets clean was counted as dirty");
        self.count.store(count - 1, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(crate) struct DirtyQueue {
    shards: [Shard; SHARDS],
}

impl DirtyQueue {
    /// Dirty pages now.
    pub(crate) fn count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.count.load(Ordering::Relaxed)).sum()
    }

    /// How often a thread found a mutex taken.
    pub(crate) fn waits(&self) -> u64 {
        self.shards.iter().map(|shard| shard.queues.waits()).sum()
    }

    fn shard(&self, frame: u32) -> &Shard {
        &self.shards[frame as usize % SHARDS]
    }

    fn all(&self) -> [MutexGuard<'_, Queues>; SHARDS] {
        std::array::from_fn(|shard| self.shards[shard].queues.lock())
    }

    /// Notes a change whose redo starts at `start`. The caller has the page latched exclusively.
    pub(crate) fn mark(&self, frames: &Frames, frame: u32, start: Lsn) {
        let descriptor = frames.descriptor(frame);
        if descriptor.rec_lsn.load(Ordering::Relaxed) != 0 {
            return;
        }
        let shard = self.shard(frame);
        let mut queues = shard.queues.lock();
        // A failed write-out may have made it dirty again a moment ago.
        if descriptor.rec_lsn.load(Ordering::Relaxed) != 0 {
            return;
        }
        let entry = (start.0 + 1, frame);
        if descriptor.flushing.load(Ordering::Relaxed) == 0 {
            shard.add(1);
        }
        descriptor.rec_lsn.store(entry.0, Ordering::Release);
        queues.insert(entry);
        debug_assert!(self.is_in_one_place(frames, frame, &queues));
        // Pages written outside the queue's order leave stale entries behind; while its head is
        // stuck they would pile up.
        let stale_min = (4 * frames.limit() as usize).max(4096) / SHARDS;
        if queues.fifo.len() > queues.stale_search_len.max(stale_min) {
            queues.fifo.retain(|&(lsn, frame)| is_live(frames, lsn, frame));
            // A pool that has just become smaller may have more dirty pages than it has room for:
            // not each page that joins them pays for a search of all.
            queues.stale_search_len = 2 * queues.fifo.len();
        }
    }

    /// The frame of a page, if it is dirty or on its way to its file. Unlike
    /// [`Descriptor::is_dirty`](crate::frames::Descriptor::is_dirty) this needs no latch, and
    /// overlooks no page whose write-out begins, fails, or that moves meanwhile.
    pub(crate) fn dirty_frame_of(&self, frames: &Frames, word: &PageWord) -> Option<u32> {
        loop {
            let frame = word.load().frame()?;
            let _all_that_is_by_the_mutex = self.shard(frame).queues.lock();
            if word.load().frame() == Some(frame) {
                return Some(frame).filter(|&frame| frames.descriptor(frame).is_dirty());
            }
        }
    }

    /// Where the redo begins that the dirty pages need.
    pub(crate) fn oldest(&self, frames: &Frames) -> Option<Lsn> {
        let oldest_in = |mut queues: MutexGuard<'_, Queues>| {
            queues.drop_stale(frames);
            let heads = [queues.fifo.front(), queues.aside.first(), queues.in_flight.first()];
            heads.into_iter().flatten().map(|&(lsn, _)| Lsn(lsn - 1)).min()
        };
        // All mutexes are had before the first is let go of.
        self.all().into_iter().filter_map(oldest_in).min()
    }

    /// Appends to `out` up to `max` frames whose recovery LSN is below `below`, oldest first. They
    /// stay noted as dirty.
    pub(crate) fn collect(&self, frames: &Frames, below: Lsn, max: usize, out: &mut Vec<u32>) {
        let mut shards = self.all();
        // Pages that can't be written (latched for long, or on a failing disk) stay aside; half of
        // the room is left to the others, so that those still make progress.
        let end = (below.0.saturating_add(1), 0);
        let aside = shards.iter().flat_map(|queues| queues.aside.range(..end).take(max));
        let mut aside: Vec<Entry> = aside.copied().collect();
        aside.sort_unstable();
        aside.truncate(max);
        let (first, rest) = aside.split_at(aside.len().min(max / 2));
        out.extend(first.iter().map(|&(_, frame)| frame));
        let mut taken = first.len();
        while taken < max {
            shards.iter_mut().for_each(|queues| queues.drop_stale(frames));
            let heads = shards.iter_mut().filter(|queues| !queues.fifo.is_empty());
            let Some(oldest) = heads.min_by_key(|queues| queues.fifo[0]) else { break };
            let (lsn, frame) = oldest.fifo[0];
            if lsn > below.0 {
                break;
            }
            oldest.fifo.pop_front();
            oldest.aside.insert((lsn, frame));
            out.push(frame);
            taken += 1;
        }
        out.extend(rest.iter().take(max - taken).map(|&(_, frame)| frame));
    }

    /// Begins the write-out of a page that the caller has latched shared, before copying it. False:
    /// it is clean, or already in flight.
    pub(crate) fn begin(&self, frames: &Frames, frame: u32) -> bool {
        let descriptor = frames.descriptor(frame);
        let shard = self.shard(frame);
        let mut queues = shard.queues.lock();
        let lsn = descriptor.rec_lsn.load(Ordering::Relaxed);
        if lsn == 0 || descriptor.flushing.load(Ordering::Relaxed) != 0 {
            return false;
        }
        // Before the first change: who panics here leaves the page as dirty as it was.
        let dirty = shard.count.load(Ordering::Relaxed);
        assert!(dirty > queues.in_flight.len() as u64, "a page in flight counts as dirty");
        assert!(!queues.in_flight.contains(&(lsn, frame)), "a page is in flight once");
        queues.aside.remove(&(lsn, frame));
        queues.in_flight.insert((lsn, frame));
        descriptor.flushing.store(lsn, Ordering::Release);
        descriptor.rec_lsn.store(0, Ordering::Release);
        debug_assert!(self.is_in_one_place(frames, frame, &queues));
        true
    }

    /// Where the redo begins of the changes that the write-out now under way covers.
    pub(crate) fn flushing_lsn(&self, frames: &Frames, frame: u32) -> Lsn {
        let flushing = frames.descriptor(frame).flushing.load(Ordering::Relaxed);
        Lsn(flushing.checked_sub(1).expect("the page is in flight"))
    }

    /// Ends what [`DirtyQueue::begin`] began. A page that was not written is dirty as before.
    pub(crate) fn complete(&self, frames: &Frames, frame: u32, written: bool) {
        let descriptor = frames.descriptor(frame);
        let shard = self.shard(frame);
        let mut queues = shard.queues.lock();
        let lsn = descriptor.flushing.load(Ordering::Relaxed);
        assert!(lsn != 0, "only a page in flight completes");
        assert!(queues.in_flight.remove(&(lsn, frame)), "a page in flight is in its shard");
        if written {
            if descriptor.rec_lsn.load(Ordering::Relaxed) == 0 {
                shard.subtract_one();
            }
        } else {
            // If it was changed meanwhile, that entry of the queue goes stale by this.
            let newer = descriptor.rec_lsn.swap(lsn, Ordering::Release);
            queues.aside.remove(&(newer, frame));
            queues.aside.insert((lsn, frame));
        }
        descriptor.flushing.store(0, Ordering::Release);
        debug_assert!(self.is_in_one_place(frames, frame, &queues));
    }

    /// The page in `from` moves to `to`, which is when `set_word` is called. The caller has it
    /// latched exclusively; it is not in flight.
    pub(crate) fn relocate<T>(
        &self,
        frames: &Frames,
        from: u32,
        to: u32,
        set_word: impl FnOnce() -> T,
    ) -> T {
        assert_ne!(from, to, "a page moves to another frame");
        let (source, target) = (from as usize % SHARDS, to as usize % SHARDS);
        let mut first = self.shards[source.min(target)].queues.lock();
        let mut second = (source != target).then(|| self.shards[source.max(target)].queues.lock());
        let (from_frame, to_frame) = (frames.descriptor(from), frames.descriptor(to));
        assert_eq!(from_frame.flushing.load(Ordering::Relaxed), 0, "page still being written");
        assert!(!to_frame.is_dirty(), "a free frame is clean");
        let lsn = from_frame.rec_lsn.load(Ordering::Relaxed);
        to_frame.rec_lsn.store(lsn, Ordering::Release);
        let result = set_word();
        from_frame.rec_lsn.store(0, Ordering::Release);
        if lsn != 0 {
            let (in_source, in_target) = match &mut second {
                None => (&mut first, None),
                Some(second) if source < target => (&mut first, Some(second)),
                Some(second) => (second, Some(&mut first)),
            };
            in_source.aside.remove(&(lsn, from));
            in_target.unwrap_or(in_source).aside.insert((lsn, to));
            self.shards[source].subtract_one();
            self.shards[target].add(1);
        }
        result
    }

    /// Forgets that a page is dirty, because its space is dropped. The caller has the page latched
    /// exclusively; it is not in flight.
    pub(crate) fn forget(&self, frames: &Frames, frame: u32) {
        let descriptor = frames.descriptor(frame);
        let shard = self.shard(frame);
        let mut queues = shard.queues.lock();
        assert_eq!(descriptor.flushing.load(Ordering::Relaxed), 0, "page still being written");
        let lsn = descriptor.rec_lsn.swap(0, Ordering::Release);
        if lsn != 0 {
            queues.aside.remove(&(lsn, frame));
            shard.subtract_one();
        }
        debug_assert!(self.is_in_one_place(frames, frame, &queues));
    }

    /// Whether the frame's entries are where its descriptor says: those of the sets are live, and
    /// a page that is dirty has one. To be asked under the mutex of its shard.
    fn is_in_one_place(&self, frames: &Frames, frame: u32, queues: &Queues) -> bool {
        let descriptor = frames.descriptor(frame);
        let rec_lsn = descriptor.rec_lsn.load(Ordering::Relaxed);
        let flushing = descriptor.flushing.load(Ordering::Relaxed);
        let (entry, in_flight) = ((rec_lsn, frame), (flushing, frame));
        let is_queued = queues.aside.contains(&entry) || queues.fifo.contains(&entry);
        let is_dirty = rec_lsn != 0 || flushing != 0;
        is_queued == (rec_lsn != 0)
            && queues.in_flight.contains(&in_flight) == (flushing != 0)
            && (!is_dirty || self.shard(frame).count.load(Ordering::Relaxed) > 0)
    }
}

fn is_live(frames: &Frames, lsn: u64, frame: u32) -> bool {
    frames.descriptor(frame).rec_lsn.load(Ordering::Relaxed) == lsn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Accounting;
    use crate::page::PageSize;

    fn frames() -> Frames {
        Frames::new(PageSize::MIN, 1 << 20, 0, false, Accounting::Touched).unwrap()
    }

    fn collect(queue: &DirtyQueue, frames: &Frames, below: u64, max: usize) -> Vec<u32> {
        let mut out = Vec::new();
        queue.collect(frames, Lsn(below), max, &mut out);
        out
    }

    #[test]
    fn the_oldest_is_exact_at_every_step() {
        let (frames, queue) = (frames(), DirtyQueue::default());
        assert_eq!(queue.oldest(&frames), None);
        for (frame, lsn) in [(7, 0), (3, 10), (5, 10), (7, 20), (1, 30)] {
            queue.mark(&frames, frame, Lsn(lsn));
        }
        assert_eq!((queue.count(), queue.oldest(&frames)), (4, Some(Lsn(0))));
        assert_eq!(collect(&queue, &frames, 10, 9), [7]);
        assert_eq!(queue.oldest(&frames), Some(Lsn(0)), "aside");
        assert!(queue.begin(&frames, 7));
        assert!(!queue.begin(&frames, 7), "already in flight");
        assert_eq!(queue.oldest(&frames), Some(Lsn(0)), "in flight");
        queue.mark(&frames, 7, Lsn(40));
        queue.complete(&frames, 7, true);
        assert_eq!((queue.count(), queue.oldest(&frames)), (4, Some(Lsn(10))));
        // Out of the queue's order, as for want of frames.
        for frame in [3, 5] {
            assert!(queue.begin(&frames, frame));
            assert_eq!(queue.oldest(&frames), Some(Lsn(10)));
            queue.complete(&frames, frame, true);
        }
        assert_eq!((queue.count(), queue.oldest(&frames)), (2, Some(Lsn(30))));
        assert!(!queue.begin(&frames, 3), "clean");
        assert_eq!(collect(&queue, &frames, u64::MAX, 1), [1]);
        assert_eq!(collect(&queue, &frames, u64::MAX, 2), [1, 7]);
    }

    #[test]
    fn a_moved_page_is_dirty_from_where_it_was() {
        let (frames, queue) = (frames(), DirtyQueue::default());
        for (frame, lsn) in [(1, 5), (2, 5), (3, 9)] {
            queue.mark(&frames, frame, Lsn(lsn));
        }
        queue.relocate(&frames, 1, 7, || ());
        queue.relocate(&frames, 4, 8, || ());
        assert!(!frames.descriptor(1).is_dirty() && frames.descriptor(7).is_dirty());
        assert_eq!((queue.count(), queue.oldest(&frames)), (3, Some(Lsn(5))));
        // A page of the same mini-transaction comes where the other was.
        queue.relocate(&frames, 2, 1, || ());
        let mut oldest = collect(&queue, &frames, 6, 9);
        oldest.sort();
        oldest.dedup();
        assert_eq!(oldest, [1, 7]);
        for frame in [1, 7] {
            assert_eq!(queue.oldest(&frames), Some(Lsn(5)));
            assert!(queue.begin(&frames, frame));
            assert!(!queue.begin(&frames, frame));
            queue.complete(&frames, frame, true);
        }
        assert_eq!((queue.count(), queue.oldest(&frames)), (1, Some(Lsn(9))));
        queue.relocate(&frames, 3, 1, || ());
        assert_eq!(collect(&queue, &frames, 99, 9), [1]);
        assert!(queue.begin(&frames, 1));
        queue.complete(&frames, 1, true);
        assert_eq!((queue.count(), queue.oldest(&frames)), (0, None));
    }

    #[test]
    fn a_failed_write_leaves_the_page_dirty_from_its_first_change() {
        let (frames, queue) = (frames(), DirtyQueue::default());
        queue.mark(&frames, 1, Lsn(5));
        assert!(queue.begin(&frames, 1));
        queue.mark(&frames, 1, Lsn(9));
        queue.mark(&frames, 2, Lsn(9));
        queue.complete(&frames, 1, false);
        assert_eq!((queue.count(), queue.oldest(&frames)), (2, Some(Lsn(5))));
        assert!(frames.descriptor(1).is_dirty());
        assert!(queue.begin(&frames, 1));
        queue.complete(&frames, 1, true);
        assert!(!frames.descriptor(1).is_dirty());
        assert_eq!((queue.count(), queue.oldest(&frames)), (1, Some(Lsn(9))));
        queue.forget(&frames, 2);
        assert_eq!((queue.count(), queue.oldest(&frames)), (0, None));
        // Recovery may come out of order.
        queue.mark(&frames, 4, Lsn(20));
        queue.mark(&frames, 5, Lsn(12));
        assert_eq!(queue.oldest(&frames), Some(Lsn(12)));
        assert_eq!(collect(&queue, &frames, 21, 2), [5, 4]);
        queue.mark(&frames, 6, Lsn(30));
        assert_eq!(collect(&queue, &frames, 99, 1), [6], "not held up by those aside");
        assert_eq!(collect(&queue, &frames, 99, 9), [5, 4, 6]);
    }

    #[test]
    fn a_page_whose_write_out_begins_or_fails_is_never_taken_for_clean() {
        let (frames, queue) = (frames(), DirtyQueue::default());
        let word = PageWord::absent();
        assert!(word.install(1, 0));
        queue.mark(&frames, 1, Lsn(5));
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    assert!(queue.begin(&frames, 1));
                    queue.complete(&frames, 1, false);
                }
                done.store(1, Ordering::Release);
            });
            while done.load(Ordering::Acquire) == 0 {
                assert_eq!(queue.dirty_frame_of(&frames, &word), Some(1));
            }
        });
        assert!(queue.begin(&frames, 1));
        queue.complete(&frames, 1, true);
        assert_eq!(queue.dirty_frame_of(&frames, &word), None);
    }
}
