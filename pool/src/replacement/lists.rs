//! Doubly linked lists of frames, threaded through arrays that are indexed by frame.
//!
//! Each frame is on at most one of the `N` lists; the caller knows which. Linking and unlinking
//! allocate nothing. The lists belong under their policy's mutex.

use crate::error::{Error, Result};
use crate::mapping::ZeroedArray;

/// One list; numbers are frame + 1, 0 is none.
#[derive(Clone, Copy, Default)]
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

pub(super) struct Lists<const N: usize> {
    /// Neighbour towards the head.
    before: ZeroedArray<u32>,
    /// Neighbour towards the tail.
    after: ZeroedArray<u32>,
    lists: [List; N],
    /// Of a walk from the tails of the lists that other threads may come between: what it passed
    /// last of each list.
    passed: Option<Passed<N>>,
}

/// The frame that a walk passed last of each list; none where the tail is the next. All frames of a
/// list that are nearer to its tail have been passed.
pub(super) type Passed<const N: usize> = [Option<u32>; N];

impl<const N: usize> Lists<N> {
    /// Empty lists for frames below `frames`.
    pub(super) fn new(frames: u32) -> Result<Lists<N>> {
        let array = || {
            ZeroedArray::new(frames as usize)
                .map_err(|error| Error::system("reserving replacement state", error))
        };
        let lists = [List::default(); N];
        Ok(Lists { before: array()?, after: array()?, lists, passed: None })
    }

    pub(super) fn push_head(&mut self, which: usize, frame: u32) {
        let list = &mut self.lists[which];
        let old = std::mem::replace(&mut list.head, frame + 1);
        self.before[frame as usize] = 0;
        self.after[frame as usize] = old;
        match old {
            0 => list.tail = frame + 1,
            old => self.before[old as usize - 1] = frame + 1,
        }
        list.len += 1;
    }

    pub(super) fn push_tail(&mut self, which: usize, frame: u32) {
        let list = &mut self.lists[which];
        let old = std::mem::replace(&mut list.tail, frame + 1);
        self.after[frame as usize] = 0;
        self.before[frame as usize] = old;
        match old {
            0 => list.head = frame + 1,
            old => self.after[old as usize - 1] = frame + 1,
        }
        list.len += 1;
    }

    pub(super) fn unlink(&mut self, which: usize, frame: u32) {
        let list = &mut self.lists[which];
        let (before, after) = (self.before[frame as usize], self.after[frame as usize]);
        if let Some(passed) = &mut self.passed
            && passed[which] == Some(frame)
        {
            passed[which] = after.checked_sub(1);
        }
        match before {
            0 => {
                assert_eq!(list.head, frame + 1, "frame {frame} is on no list, or another");
                list.head = after;
            }
            before => self.after[before as usize - 1] = after,
        }
        match after {
            0 => list.tail = before,
            after => self.before[after as usize - 1] = before,
        }
        list.len -= 1;
    }

    /// Puts `to`, which is on no list, in the place of `from`.
    pub(super) fn replace(&mut self, which: usize, from: u32, to: u32) {
        let (before, after) = (self.before[from as usize], self.after[from as usize]);
        self.before[to as usize] = before;
        self.after[to as usize] = after;
        if let Some(passed) = &mut self.passed
            && passed[which] == Some(from)
        {
            passed[which] = Some(to);
        }
        match before {
            0 => self.lists[which].head = to + 1,
            before => self.after[before as usize - 1] = to + 1,
        }
        match after {
            0 => self.lists[which].tail = to + 1,
            after => self.before[after as usize - 1] = to + 1,
        }
    }

    /// Keeps what a walk has passed, and brings it up to date as frames come and go, until
    /// [`Lists::take_passed`].
    pub(super) fn keep_passed(&mut self, passed: Passed<N>) {
        self.passed = Some(passed);
    }

    /// What the walk under way has passed.
    pub(super) fn take_passed(&mut self) -> Option<Passed<N>> {
        self.passed.take()
    }

    pub(super) fn len(&self, which: usize) -> usize {
        self.lists[which].len
    }

    pub(super) fn head(&self, which: usize) -> Option<u32> {
        self.lists[which].head.checked_sub(1)
    }

    pub(super) fn tail(&self, which: usize) -> Option<u32> {
        self.lists[which].tail.checked_sub(1)
    }

    /// The neighbour towards the head.
    pub(super) fn before(&self, frame: u32) -> Option<u32> {
        self.before[frame as usize].checked_sub(1)
    }
}
