//! Which pages are dirty, in the order of the redo that they need.
//!
//! A page becomes dirty inside the redo log's append section, hence in LSN order, so the queue is a
//! plain FIFO of (recovery LSN, frame). Beside it are two small ordered sets: entries put aside
//! (taken up for write-out, but their page was latched or its write failed), and entries in flight.
//! An entry is in exactly one of the three, so the oldest dirty LSN is the least of three heads.
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
//! Locking: the mutex is taken under page latches and under the redo log's mutex; under it nothing
//! is taken.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::contention::CountingMutex;
use crate::frames::Frames;
use crate::latch::PageWord;
use crate::page::Lsn;

/// A recovery LSN plus one (as descriptors keep it), and the frame.
type Entry = (u64, u32);

#[derive(Default)]
struct Queues {
    fifo: VecDeque<Entry>,
    aside: BTreeSet<Entry>,
    in_flight: BTreeSet<Entry>,
}

#[derive(Default)]
pub(crate) struct DirtyQueue {
    queues: CountingMutex<Queues>,
    /// Dirty pages, those in flight included.
    count: AtomicU64,
}

impl DirtyQueue {
    /// Dirty pages now.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// How often a thread found the mutex taken.
    pub(crate) fn waits(&self) -> u64 {
        self.queues.waits()
    }

    /// Notes a change whose redo starts at `start`. The caller has the page latched exclusively.
    pub(crate) fn mark(&self, frames: &Frames, frame: u32, start: Lsn) {
        let descriptor = frames.descriptor(frame);
        if descriptor.rec_lsn.load(Ordering::Relaxed) != 0 {
            return;
        }
        let mut queues = self.queues.lock();
        // A failed write-out may have made it dirty again a moment ago.
        if descriptor.rec_lsn.load(Ordering::Relaxed) != 0 {
            return;
        }
        let entry = (start.0 + 1, frame);
        if descriptor.flushing.load(Ordering::Relaxed) == 0 {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        descriptor.rec_lsn.store(entry.0, Ordering::Release);
        match queues.fifo.back() {
            // Out of order, as recovery's may be: the set sorts it.
            Some(&last) if last.0 > entry.0 => {
                queues.aside.insert(entry);
            }
            _ => queues.fifo.push_back(entry),
        }
        // Pages written outside the queue's order leave stale entries behind; while its head is
        // stuck they would pile up.
        if queues.fifo.len() > 4096 && queues.fifo.len() as u64 > 4 * frames.limit() as u64 {
            queues.fifo.retain(|&(lsn, frame)| is_live(frames, lsn, frame));
        }
    }

    /// The frame of a page, if it is dirty or on its way to its file. Unlike
    /// [`Descriptor::is_dirty`](crate::frames::Descriptor::is_dirty) this needs no latch, and
    /// overlooks no page whose write-out begins, fails, or that moves meanwhile.
    pub(crate) fn dirty_frame_of(&self, frames: &Frames, word: &PageWord) -> Option<u32> {
        let _all_that_is_by_the_mutex = self.queues.lock();
        word.load().frame().filter(|&frame| frames.descriptor(frame).is_dirty())
    }

    /// Where the redo begins that the dirty pages need.
    pub(crate) fn oldest(&self, frames: &Frames) -> Option<Lsn> {
        let mut queues = self.queues.lock();
        while let Some(&(lsn, frame)) = queues.fifo.front()
            && !is_live(frames, lsn, frame)
        {
            queues.fifo.pop_front();
        }
        let heads = [queues.fifo.front(), queues.aside.first(), queues.in_flight.first()];
        heads.into_iter().flatten().map(|&(lsn, _)| Lsn(lsn - 1)).min()
    }

    /// Appends to `out` up to `max` frames whose recovery LSN is below `below`, oldest first. They
    /// stay noted as dirty.
    pub(crate) fn collect(&self, frames: &Frames, below: Lsn, max: usize, out: &mut Vec<u32>) {
        let mut queues = self.queues.lock();
        // Pages that can't be written (latched for long, or on a failing disk) stay aside; half of
        // the room is left to the others, so that those still make progress.
        let aside: Vec<u32> = queues
            .aside
            .range(..(below.0.saturating_add(1), 0))
            .take(max)
            .map(|&(_, frame)| frame)
            .collect();
        let (first, rest) = aside.split_at(aside.len().min(max / 2));
        out.extend(first);
        let mut taken = first.len();
        while taken < max
            && let Some(&(lsn, frame)) = queues.fifo.front()
            && lsn - 1 < below.0
        {
            queues.fifo.pop_front();
            if is_live(frames, lsn, frame) {
                queues.aside.insert((lsn, frame));
                out.push(frame);
                taken += 1;
            }
        }
        out.extend(rest.iter().take(max - taken));
    }

    /// Begins the write-out of a page that the caller has latched shared, before copying it. False:
    /// it is clean, or already in flight.
    pub(crate) fn begin(&self, frames: &Frames, frame: u32) -> bool {
        let descriptor = frames.descriptor(frame);
        let mut queues = self.queues.lock();
        let lsn = descriptor.rec_lsn.load(Ordering::Relaxed);
        if lsn == 0 || descriptor.flushing.load(Ordering::Relaxed) != 0 {
            return false;
        }
        queues.aside.remove(&(lsn, frame));
        queues.in_flight.insert((lsn, frame));
        descriptor.flushing.store(lsn, Ordering::Release);
        descriptor.rec_lsn.store(0, Ordering::Release);
        true
    }

    /// Ends what [`DirtyQueue::begin`] began. A page that was not written is dirty as before.
    pub(crate) fn complete(&self, frames: &Frames, frame: u32, written: bool) {
        let descriptor = frames.descriptor(frame);
        let mut queues = self.queues.lock();
        let lsn = descriptor.flushing.load(Ordering::Relaxed);
        debug_assert!(lsn != 0, "only a page in flight completes");
        queues.in_flight.remove(&(lsn, frame));
        if written {
            if descriptor.rec_lsn.load(Ordering::Relaxed) == 0 {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        } else {
            // If it was changed meanwhile, that entry of the queue goes stale by this.
            let newer = descriptor.rec_lsn.swap(lsn, Ordering::Release);
            queues.aside.remove(&(newer, frame));
            queues.aside.insert((lsn, frame));
        }
        descriptor.flushing.store(0, Ordering::Release);
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
        let mut queues = self.queues.lock();
        let (from_frame, to_frame) = (frames.descriptor(from), frames.descriptor(to));
        assert_eq!(from_frame.flushing.load(Ordering::Relaxed), 0, "page still being written");
        debug_assert!(!to_frame.is_dirty(), "a free frame is clean");
        let lsn = from_frame.rec_lsn.load(Ordering::Relaxed);
        to_frame.rec_lsn.store(lsn, Ordering::Release);
        let result = set_word();
        from_frame.rec_lsn.store(0, Ordering::Release);
        if lsn != 0 {
            queues.aside.remove(&(lsn, from));
            queues.aside.insert((lsn, to));
        }
        result
    }

    /// Forgets that a page is dirty, because its space is dropped. The caller has the page latched
    /// exclusively; it is not in flight.
    pub(crate) fn forget(&self, frames: &Frames, frame: u32) {
        let descriptor = frames.descriptor(frame);
        let mut queues = self.queues.lock();
        assert_eq!(descriptor.flushing.load(Ordering::Relaxed), 0, "page still being written");
        let lsn = descriptor.rec_lsn.swap(0, Ordering::Release);
        if lsn != 0 {
            queues.aside.remove(&(lsn, frame));
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
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
