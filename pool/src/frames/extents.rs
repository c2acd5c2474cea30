//! Extents: which frames are free, and which extents hold memory.
//!
//! An extent is some frames whose memory is taken into use, and given back, together. Each is in
//! one of these states:
//!
//! ```text
//!            start                 drain                 all its frames are free
//!   vacant ─────────▶ open ──────────────────▶ draining ──────────────▶ leaving
//!     ▲                ▲                          │                        │
//!     │                └────────── reopen ────────┴── the kernel refused ──┤
//!     └────────────────────────────── given back ──────────────────────────┘
//!
//!   vacant ── begin_start ─▶ starting ── finish_start ─▶ open, or vacant again by cancel_start
//! ```
//!
//! A free frame of an open extent may be taken; one of a draining extent stays on its stack until
//! its extent is given back or reopened.
//!
//! Vacant extents are started one at a time, and only while fewer frames than the limit are
//! started: either by a miss that finds no free frame, or ahead of need by a thread that prepares
//! the memory first, while the extent is `starting`. Extents given back are started again before
//! those that never were, so that the arrays with an entry a frame are touched no further than they
//! must be. After the kernel has refused the memory of one, none is started until there is reason
//! to ask again.
//!
//! The limit need not be a multiple of an extent, so an extent may be started *in part*: only its
//! first frames may be used. The rest of them are started before another extent is.
//!
//! Every operation but a start takes constant time (a logarithmic one where draining extents are
//! concerned): an extent's free frames are a linked stack, and the open extents that have any are
//! in an array. A start is a loop over one extent's frames.
//!
//! # Invariants
//! - `started` is the sum of the frames started in all extents that are not vacant, `free` that of
//!   the free frames in open ones.
//! - `started` exceeds `limit` only while the pool shrinks, and only then is any extent draining:
//!   once no more need be given back, because the limit was raised or enough was given back, those
//!   that still drain are opened again. (If one of them is started in part, its other frames can't
//!   be started while it drains; another extent would be started in their stead, and the pool would
//!   hold one more than it needs.)
//!
//! Locking: all of it is under the mutex of [`Frames`](super::Frames), and calls nothing but the
//! `commit` it is given.

#![deny(unsafe_code, reason = "this is bookkeeping; the memory itself is the parent's")]

use std::collections::BTreeSet;
use std::io;

use crate::mapping::ZeroedArray;

/// What state an extent is in; see the head of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ExtentState {
    /// Holds no memory. (Zero, as memory comes from the kernel.)
    Vacant = 0,
    /// In use.
    Open = 1,
    /// Being emptied.
    Draining = 2,
    /// Empty, and about to be given back to the kernel.
    Leaving = 3,
    /// Its memory is being prepared. It counts neither as held nor as started yet.
    Starting = 4,
}

/// One extent. All zero: vacant.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    state: ExtentState,
    /// How many of its frames are started, from the first.
    started: u16,
    /// How many of them are free.
    free: u16,
    /// The free frame on top of the stack, plus one; 0 if none is free.
    top: u32,
    /// Where it is in `with_free`, if it is open and has a free frame.
    position: u32,
}

/// What [`Extents::survey`] says of an extent that is not vacant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    pub(crate) extent: u32,
    pub(crate) started: u16,
    pub(crate) free: u16,
    pub(crate) state: ExtentState,
}

/// The extents of a pool, and its free frames.
pub(crate) struct Extents {
    frames_per_extent: u32,
    /// Extents that address space is reserved for.
    reserved: u32,
    /// Frames that may be started.
    limit: u32,
    /// The kernel refuses more memory.
    refused: bool,
    started: u32,
    free: u32,
    /// Extents that are not vacant.
    held: u32,
    /// Extents from this one on have never been started.
    never_started: u32,
    extents: ZeroedArray<Extent>,
    /// Of a free frame: the one below it on its extent's stack, plus one; 0 at the bottom.
    below: ZeroedArray<u32>,
    /// Open extents with a free frame.
    with_free: Vec<u32>,
    /// Extents given back.
    given_back: Vec<u32>,
    draining: BTreeSet<u32>,
    /// Extents that are leaving.
    leaving: u32,
    /// Open or draining extents of which only some frames are started, the limit being no multiple
    /// of an extent. (May name an extent that has been given back since.)
    partial: Vec<u32>,
}

impl Extents {
    /// `reserved` extents, all vacant; `limit` frames may be started.
    pub(crate) fn new(frames_per_extent: u32, reserved: u32, limit: u32) -> io::Result<Extents> {
        assert!(limit as u64 <= reserved as u64 * frames_per_extent as u64);
        assert!(0 < frames_per_extent && frames_per_extent <= u16::MAX as u32);
        Ok(Extents {
            frames_per_extent,
            reserved,
            limit,
            refused: false,
            started: 0,
            free: 0,
            held: 0,
            never_started: 0,
            extents: ZeroedArray::new(reserved as usize)?,
            below: ZeroedArray::new(reserved as usize * frames_per_extent as usize)?,
            with_free: Vec::new(),
            given_back: Vec::new(),
            draining: BTreeSet::new(),
            leaving: 0,
            partial: Vec::new(),
        })
    }

    /// Frames that may be started.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Frames of extents that hold memory.
    pub(crate) fn started(&self) -> u32 {
        self.started
    }

    /// Extents that hold memory.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// Free frames of open extents.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Frames that may be started besides those that are.
    fn room(&self) -> u32 {
        match self.refused {
            true => 0,
            false => self.limit.saturating_sub(self.started),
        }
    }

    /// Whether the kernel has refused memory, and was not asked again.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    pub(crate) fn set_refused(&mut self, refused: bool) {
        self.refused = refused;
    }

    /// Frames that can be taken without taking one from a page.
    pub(crate) fn available(&self) -> u32 {
        self.free + self.room()
    }

    /// All extents that were ever started are below this one.
    pub(crate) fn highest(&self) -> u32 {
        self.never_started
    }

    /// Changes how many frames may be started. Nothing is taken out of use by this; draining
    /// extents may be opened again.
    pub(crate) fn set_limit(&mut self, frames: u32) {
        assert!(frames as u64 <= self.reserved as u64 * self.frames_per_extent as u64);
        self.limit = frames;
        self.refused = false;
        self.settle();
    }

    /// Opens the draining extents again if no more need be given back.
    fn settle(&mut self) {
        if self.started <= self.limit {
            while let Some(&number) = self.draining.first() {
                self.reopen(number);
            }
        }
    }

    /// Extents that are draining or leaving: no frame of theirs is taken.
    pub(crate) fn closed(&self) -> u32 {
        self.draining.len() as u32 + self.leaving
    }

    fn extent_of(&self, frame: u32) -> u32 {
        frame / self.frames_per_extent
    }

    /// Takes a free frame of an open extent, starting a vacant one if there is none and the limit
    /// allows and `commit` says that its memory may be used.
    pub(crate) fn take(&mut self, commit: impl FnOnce(u32) -> bool) -> Option<u32> {
        if self.with_free.is_empty() {
            self.start(commit);
        }
        let number = *self.with_free.last()?;
        let extent = &mut self.extents[number as usize];
        debug_assert!(extent.state == ExtentState::Open && extent.free > 0, "it has a free frame");
        let frame = extent.top - 1;
        debug_assert_eq!(
            frame / self.frames_per_extent,
            number,
            "the stack has the extent's frames"
        );
        extent.top = self.below[frame as usize];
        extent.free -= 1;
        self.free -= 1;
        if extent.free == 0 {
            self.with_free.pop();
        }
        Some(frame)
    }

    /// Gives a frame back that was taken. True if it can be taken again: its extent is open.
    pub(crate) fn give(&mut self, frame: u32) -> bool {
        let number = self.extent_of(frame);
        let extent = &mut self.extents[number as usize];
        debug_assert!(
            matches!(extent.state, ExtentState::Open | ExtentState::Draining),
            "a frame is given back to an extent in use, not to one that is {:?}",
            extent.state
        );
        debug_assert!(extent.free < extent.started, "a frame is given back once");
        self.below[frame as usize] = extent.top;
        extent.top = frame + 1;
        extent.free += 1;
        if extent.state != ExtentState::Open {
            return false;
        }
        if extent.free == 1 {
            extent.position = self.with_free.len() as u32;
            self.with_free.push(number);
        }
        self.free += 1;
        true
    }

    /// Whether the frame's extent is in use.
    pub(crate) fn is_open(&self, frame: u32) -> bool {
        self.extents[self.extent_of(frame) as usize].state == ExtentState::Open
    }

    /// Whether the extent is being emptied.
    pub(crate) fn is_draining(&self, number: u32) -> bool {
        self.extents[number as usize].state == ExtentState::Draining
    }

    /// Starts a vacant extent, or more frames of one that is started in part.
    fn start(&mut self, commit: impl FnOnce(u32) -> bool) {
        let room = self.room();
        if room == 0 {
            return;
        }
        let partial = std::iter::from_fn(|| self.partial.pop()).find(|&number| {
            let extent = &self.extents[number as usize];
            extent.state == ExtentState::Open && (extent.started as u32) < self.frames_per_extent
        });
        let number = partial.or_else(|| {
            let number = self.next_vacant()?;
            self.refused = !commit(number);
            if self.refused {
                self.given_back.push(number);
            }
            (!self.refused).then_some(number)
        });
        if let Some(number) = number {
            self.open(number, room);
        }
    }

    /// A vacant extent; one given back before one that was never started.
    fn next_vacant(&mut self) -> Option<u32> {
        self.given_back.pop().or_else(|| {
            let next = self.never_started;
            (next < self.reserved).then(|| {
                self.never_started += 1;
                next
            })
        })
    }

    /// Starts the frames of the extent that are not started yet, `room` at most.
    fn open(&mut self, number: u32, room: u32) {
        let extent = &mut self.extents[number as usize];
        assert_eq!((extent.free, extent.top), (0, 0), "an extent has no free frames to be lost");
        self.held += u32::from(extent.started == 0);
        let count = room.min(self.frames_per_extent - extent.started as u32);
        let first = number * self.frames_per_extent + extent.started as u32;
        // From the last on, so that the first is taken first and the extent fills from its start.
        for frame in (first..first + count).rev() {
            self.below[frame as usize] = extent.top;
            extent.top = frame + 1;
        }
        extent.state = ExtentState::Open;
        extent.started += count as u16;
        extent.free = count as u16;
        extent.position = self.with_free.len() as u32;
        let partly = (extent.started as u32) < self.frames_per_extent;
        self.with_free.push(number);
        self.started += count;
        self.free += count;
        if partly {
            self.partial.push(number);
        }
    }

    /// A vacant extent to prepare, if there is room for all of its frames. Until `finish_start` or
    /// `cancel_start` only the caller touches its memory.
    pub(crate) fn begin_start(&mut self) -> Option<u32> {
        if self.room() < self.frames_per_extent {
            return None;
        }
        let number = self.next_vacant()?;
        let extent = &mut self.extents[number as usize];
        assert_eq!((extent.state, extent.started), (ExtentState::Vacant, 0));
        extent.state = ExtentState::Starting;
        Some(number)
    }

    /// Takes a starting extent into use. False if there is no room for it any more: then the caller
    /// gives its memory back, and cancels.
    pub(crate) fn finish_start(&mut self, number: u32) -> bool {
        assert_eq!(self.extents[number as usize].state, ExtentState::Starting);
        let room = self.room();
        let fits = room >= self.frames_per_extent;
        if fits {
            self.open(number, room);
        }
        fits
    }

    /// A starting extent is vacant again, and holds no memory.
    pub(crate) fn cancel_start(&mut self, number: u32) {
        let extent = &mut self.extents[number as usize];
        assert_eq!(extent.state, ExtentState::Starting);
        extent.state = ExtentState::Vacant;
        self.given_back.push(number);
    }

    /// Takes an open extent out of use: no frame of it is taken any more. Nothing happens if there
    /// is no need, or if it drains already.
    pub(crate) fn drain(&mut self, number: u32) {
        if self.started <= self.limit || !self.draining.insert(number) {
            return;
        }
        let extent = &mut self.extents[number as usize];
        assert_eq!(extent.state, ExtentState::Open);
        extent.state = ExtentState::Draining;
        if extent.free == 0 {
            return;
        }
        self.free -= extent.free as u32;
        let position = extent.position as usize;
        assert_eq!(self.with_free[position], number, "an extent has its own position");
        self.with_free.swap_remove(position);
        if let Some(&moved) = self.with_free.get(position) {
            self.extents[moved as usize].position = position as u32;
        }
    }

    /// Takes an extent into use again that is draining or leaving. Nothing happens if it is open
    /// already.
    pub(crate) fn reopen(&mut self, number: u32) {
        let extent = &mut self.extents[number as usize];
        match extent.state {
            ExtentState::Draining => {
                assert!(self.draining.remove(&number), "the set names what drains");
            }
            ExtentState::Leaving => self.leaving -= 1,
            ExtentState::Open => return,
            state => unreachable!("an extent that is {state:?} holds nothing to be used again"),
        }
        extent.state = ExtentState::Open;
        if (extent.started as u32) < self.frames_per_extent && !self.partial.contains(&number) {
            self.partial.push(number);
        }
        if extent.free > 0 {
            extent.position = self.with_free.len() as u32;
            self.with_free.push(number);
            self.free += extent.free as u32;
        }
    }

    /// Marks a draining extent as about to be given back, if all its frames are free: then no
    /// thread but the caller touches its memory until `given_back` or `reopen`. False too if it is
    /// open again meanwhile.
    pub(crate) fn leave(&mut self, number: u32) -> bool {
        let extent = &mut self.extents[number as usize];
        if extent.state != ExtentState::Draining || extent.free < extent.started {
            return false;
        }
        assert_eq!(extent.free, extent.started, "no frame is free twice");
        extent.state = ExtentState::Leaving;
        assert!(self.draining.remove(&number), "the set names what drains");
        self.leaving += 1;
        true
    }

    /// A leaving extent holds no memory any more.
    pub(crate) fn given_back(&mut self, number: u32) {
        let extent = &mut self.extents[number as usize];
        assert_eq!(extent.state, ExtentState::Leaving);
        assert_eq!(extent.free, extent.started, "a frame was taken while its extent left");
        self.started -= extent.started as u32;
        self.held -= 1;
        self.leaving -= 1;
        extent.state = ExtentState::Vacant;
        (extent.started, extent.free, extent.top) = (0, 0, 0);
        self.given_back.push(number);
        self.refused = false;
        self.settle();
    }

    /// Appends to `out` the extents in `range` that hold memory.
    pub(crate) fn survey(&self, range: std::ops::Range<u32>, out: &mut Vec<Survey>) {
        let range = range.start..range.end.min(self.never_started);
        for number in range {
            let extent = &self.extents[number as usize];
            if !matches!(extent.state, ExtentState::Vacant | ExtentState::Starting) {
                let Extent { state, started, free, .. } = *extent;
                out.push(Survey { extent: number, started, free, state });
            }
        }
    }
}

#[cfg(test)]
mod tests;
