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
//! A free frame of an open extent may be taken; one of a draining extent stays where it is until
//! its extent is given back or reopened. Vacant extents are started one at a time, and only while
//! fewer frames than the limit are started: when no frame is free, or by somebody who prepares their
//! memory ahead of need, for whom they are `starting` meanwhile. But for those few, the extents in
//! use are full of pages. Those given back are started again before those that never were.
//!
//! The kernel may refuse the memory of an extent to be started. Then no vacant one is started until there is reason to ask again.
//!
//! Every operation but a start takes constant time: an extent's free frames are a linked stack, and
//! the open extents that have any are in an array. A start is a loop over one extent's frames.
//!
//! Draining extents are for paying what is started beyond the limit. When nothing is, be it that the limit was raised or that enough was given
//! back, those that still drain are open again at once. Otherwise, with an extent drained of which only some frames are started, another would be
//! started for the rest of them, and the pool would hold one more than it needs.
//!
//! Invariants: `started` is the sum of the frames started in all extents that are not vacant,
//! `free` that of the free frames in open ones; `started` exceeds `limit` only while the pool
//! shrinks.

use std::collections::BTreeSet;
use std::io;

use crate::mapping::ZeroedArray;

/// What an extent is good for at present.
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
    /// Its first so many frames are started.
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

    /// Extents that were started at some time are below this.
    pub(crate) fn highest(&self) -> u32 {
        self.never_started
    }

    /// Changes how many frames may be started. Those that are, are not touched, but for those of extents that need not drain any more.
    pub(crate) fn set_limit(&mut self, frames: u32) {
        assert!(frames as u64 <= self.reserved as u64 * self.frames_per_extent as u64);
        self.limit = frames;
        self.refused = false;
        self.settle();
    }

    /// Opens what need not be drained any more.
    fn settle(&mut self) {
        if self.started <= self.limit {
            while let Some(&number) = self.draining.first() {
                self.reopen(number);
            }
        }
    }

    /// Extents of which no frame is taken, draining or leaving.
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
        let frame = extent.top - 1;
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
        debug_assert!(matches!(extent.state, ExtentState::Open | ExtentState::Draining));
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

    /// Starts those frames of the extent that are not, `room` at most.
    fn open(&mut self, number: u32, room: u32) {
        let extent = &mut self.extents[number as usize];
        debug_assert_eq!((extent.free, extent.top), (0, 0));
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
    /// `cancel_start` nobody but the caller touches its memory.
    pub(crate) fn begin_start(&mut self) -> Option<u32> {
        if self.room() < self.frames_per_extent {
            return None;
        }
        let number = self.next_vacant()?;
        self.extents[number as usize].state = ExtentState::Starting;
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

    /// Takes an open extent out of use: no frame of it is taken any more. Nothing happens if there is no need, or if it drains already.
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
        self.with_free.swap_remove(position);
        if let Some(&moved) = self.with_free.get(position) {
            self.extents[moved as usize].position = position as u32;
        }
    }

    /// Takes an extent into use again that is draining or leaving. Nothing happens if it is open already.
    pub(crate) fn reopen(&mut self, number: u32) {
        let extent = &mut self.extents[number as usize];
        match extent.state {
            ExtentState::Draining => _ = self.draining.remove(&number),
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

    /// Marks a draining extent as about to be given back, if all its frames are free: then nobody
    /// but the caller touches its memory until `given_back` or `reopen`. False too if it is open again meanwhile.
    pub(crate) fn leave(&mut self, number: u32) -> bool {
        let extent = &mut self.extents[number as usize];
        if extent.state != ExtentState::Draining || extent.free < extent.started {
            return false;
        }
        extent.state = ExtentState::Leaving;
        self.draining.remove(&number);
        self.leaving += 1;
        true
    }

    /// A leaving extent holds no memory any more.
    pub(crate) fn given_back(&mut self, number: u32) {
        let extent = &mut self.extents[number as usize];
        assert_eq!(extent.state, ExtentState::Leaving);
        self.started -= extent.started as u32;
        self.held -= 1;
        self.leaving -= 1;
        extent.state = ExtentState::Vacant;
        (extent.started, extent.free, extent.top) = (0, 0, 0);
        self.given_back.push(number);
        self.refused = false;
        self.settle();
    }

    /// Appends to `out` what there is of the extents in `range` that are not vacant.
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn surveyed(extents: &Extents) -> Vec<(u32, u16, u16, ExtentState)> {
        let mut out = Vec::new();
        extents.survey(0..u32::MAX, &mut out);
        out.into_iter().map(|it| (it.extent, it.started, it.free, it.state)).collect()
    }

    #[test]
    fn an_extent_goes_through_its_states() {
        let mut extents = Extents::new(4, 8, 6).unwrap();
        let taken: Vec<u32> = std::iter::from_fn(|| extents.take(|_| true)).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5]);
        extents.set_limit(12);
        assert_eq!(
            (extents.available(), extents.take(|_| true), extents.take(|_| true)),
            (6, Some(6), Some(7))
        );
        assert_eq!(extents.take(|_| true), Some(8));
        assert_eq!((extents.available(), extents.started()), (3, 12));
        extents.set_limit(4);
        assert_eq!(extents.available(), 3);
        // What a draining extent has is out of reach, and so is what it gets.
        extents.drain(2);
        assert_eq!((extents.available(), extents.take(|_| true)), (0, None));
        extents.drain(1);
        assert!(extents.give(0));
        for frame in [4, 5, 6] {
            assert!(!extents.give(frame));
        }
        assert!(!extents.leave(1), "frame 7 is in use");
        assert!(!extents.give(7) && !extents.give(8));
        assert!(extents.leave(1) && extents.leave(2));
        extents.given_back(1);
        assert_eq!((extents.started(), extents.available()), (8, 1));
        // The kernel did not want the other.
        extents.reopen(2);
        assert_eq!((extents.started(), extents.available()), (8, 5));
        assert_eq!(
            surveyed(&extents),
            [(0, 4, 1, ExtentState::Open), (2, 4, 4, ExtentState::Open)]
        );
        // The one given back is used again before one that never was.
        extents.set_limit(16);
        let more: BTreeSet<u32> = std::iter::from_fn(|| extents.take(|_| true)).collect();
        assert_eq!(more, BTreeSet::from_iter((4..16).chain([0])));
        assert_eq!((extents.available(), extents.started()), (0, 16));
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// And whether the kernel gives memory for one more extent.
        Take(bool),
        Give(usize),
        SetLimit(u32),
        Drain(usize),
        Reopen(usize),
        GiveBack(usize),
        BeginStart,
        FinishStart(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => prop::bool::weighted(0.9).prop_map(Op::Take),
            5 => any::<usize>().prop_map(Op::Give),
            1 => (0..=40u32).prop_map(Op::SetLimit),
            1 => any::<usize>().prop_map(Op::Drain),
            1 => any::<usize>().prop_map(Op::Reopen),
            2 => any::<usize>().prop_map(Op::GiveBack),
            1 => Just(Op::BeginStart),
            1 => any::<usize>().prop_map(Op::FinishStart),
        ]
    }

    /// An extent of the model: its state, and which of its frames are free.
    type Model = Vec<(ExtentState, u32, BTreeSet<u32>)>;

    fn pick(model: &Model, state: ExtentState, index: usize) -> Option<u32> {
        let of_state: Vec<u32> =
            (0..model.len() as u32).filter(|&it| model[it as usize].0 == state).collect();
        (!of_state.is_empty()).then(|| of_state[index % of_state.len()])
    }

    /// Nothing drains without need.
    fn settle(model: &mut Model, limit: u32) {
        if model.iter().map(|it| it.1).sum::<u32>() <= limit {
            for extent in model.iter_mut().filter(|it| it.0 == ExtentState::Draining) {
                extent.0 = ExtentState::Open;
            }
        }
    }

    #[test]
    fn an_extent_in_part_that_need_not_drain_is_filled_before_another_is_started() {
        // An extent and a half; half an extent less is wanted, then half an extent more.
        let mut extents = Extents::new(4, 8, 6).unwrap();
        assert_eq!(std::iter::from_fn(|| extents.take(|_| true)).count(), 6);
        extents.set_limit(4);
        extents.drain(1);
        extents.set_limit(8);
        assert_eq!((extents.available(), extents.take(|_| true)), (2, Some(6)));
        assert_eq!((extents.take(|_| true), extents.held()), (Some(7), 2));
        // The same when more is given back than was wanted.
        let mut extents = Extents::new(4, 8, 6).unwrap();
        assert_eq!(std::iter::from_fn(|| extents.take(|_| true)).count(), 6);
        extents.set_limit(4);
        extents.drain(1);
        extents.drain(0);
        assert!((0..4).all(|frame| !extents.give(frame)) && extents.leave(0));
        extents.given_back(0);
        assert_eq!((extents.closed(), extents.held()), (0, 1));
        assert_eq!((extents.take(|_| true), extents.take(|_| true)), (Some(6), Some(7)));
        assert_eq!((extents.take(|_| true), extents.held()), (None, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// No frame is handed out twice, out of a draining extent, or beyond the limit; none is lost.
        #[test]
        fn frames_are_neither_lost_nor_handed_out_twice(
            ops in proptest::collection::vec(op(), 1..300),
        ) {
            let mut extents = Extents::new(4, 10, 17).unwrap();
            let mut model: Model = vec![(ExtentState::Vacant, 0, BTreeSet::new()); 10];
            let mut taken: Vec<u32> = Vec::new();
            let mut limit = 17;
            for op in ops {
                let free = |model: &Model| -> u32 {
                    model
                        .iter()
                        .filter(|it| it.0 == ExtentState::Open)
                        .map(|it| it.2.len() as u32)
                        .sum()
                };
                let started: u32 = model.iter().map(|it| it.1).sum();
                match op {
                    Op::Take(commits) => match extents.take(|_| commits) {
                        Some(frame) => {
                            let before = free(&model);
                            let extent = &mut model[frame as usize / 4];
                            if !extent.2.contains(&frame) {
                                prop_assert!(before == 0 && started < limit);
                                prop_assert!(commits || extent.1 > 0);
                                let count = (4 - extent.1).min(limit - started);
                                let first = frame / 4 * 4 + extent.1;
                                extent.2 = (first..first + count).collect();
                                extent.1 += count;
                                prop_assert!(extent.0 != ExtentState::Draining);
                                extent.0 = ExtentState::Open;
                            }
                            prop_assert_eq!(extent.0, ExtentState::Open);
                            prop_assert!(extent.2.remove(&frame));
                            taken.push(frame);
                        }
                        None => {
                            prop_assert!(free(&model) == 0);
                            let none_is_vacant =
                                model.iter().all(|it| it.0 != ExtentState::Vacant);
                            prop_assert!(started >= limit || none_is_vacant || !commits);
                            prop_assert!(!extents.is_refused() || extents.available() == 0);
                            extents.set_refused(false);
                        }
                    },
                    Op::Give(index) if !taken.is_empty() => {
                        let frame = taken.swap_remove(index % taken.len());
                        let extent = &mut model[frame as usize / 4];
                        prop_assert_eq!(extents.give(frame), extent.0 == ExtentState::Open);
                        extent.2.insert(frame);
                    }
                    Op::SetLimit(frames) => {
                        limit = frames;
                        extents.set_limit(frames);
                        settle(&mut model, limit);
                    }
                    Op::Drain(index) => {
                        if let Some(extent) = pick(&model, ExtentState::Open, index) {
                            extents.drain(extent);
                            model[extent as usize].0 = ExtentState::Draining;
                            settle(&mut model, limit);
                        }
                    }
                    Op::Reopen(index) => {
                        if let Some(extent) = pick(&model, ExtentState::Draining, index) {
                            extents.reopen(extent);
                            model[extent as usize].0 = ExtentState::Open;
                        }
                    }
                    Op::GiveBack(index) => {
                        if let Some(extent) = pick(&model, ExtentState::Draining, index) {
                            let (_, started, free) = &mut model[extent as usize];
                            let empty = free.len() == *started as usize;
                            prop_assert_eq!(extents.leave(extent), empty);
                            if empty {
                                extents.given_back(extent);
                                model[extent as usize] =
                                    (ExtentState::Vacant, 0, BTreeSet::new());
                                settle(&mut model, limit);
                            }
                        }
                    }
                    Op::BeginStart => {
                        let vacant = pick(&model, ExtentState::Vacant, 0).is_some();
                        let extent = extents.begin_start();
                        prop_assert_eq!(extent.is_some(), vacant && started + 4 <= limit);
                        if let Some(extent) = extent {
                            prop_assert_eq!(model[extent as usize].0, ExtentState::Vacant);
                            model[extent as usize].0 = ExtentState::Starting;
                        }
                    }
                    Op::FinishStart(index) => {
                        if let Some(extent) = pick(&model, ExtentState::Starting, index) {
                            let fits = started + 4 <= limit;
                            prop_assert_eq!(extents.finish_start(extent), fits);
                            if fits {
                                let frames = (extent * 4..extent * 4 + 4).collect();
                                model[extent as usize] = (ExtentState::Open, 4, frames);
                            } else {
                                extents.cancel_start(extent);
                                model[extent as usize].0 = ExtentState::Vacant;
                            }
                        }
                    }
                    Op::Give(_) => {}
                }
                let started: u32 = model.iter().map(|it| it.1).sum();
                prop_assert_eq!(extents.started(), started);
                let holds = |it: &ExtentState| {
                    !matches!(it, ExtentState::Vacant | ExtentState::Starting)
                };
                let held = model.iter().filter(|it| holds(&it.0)).count();
                prop_assert_eq!(extents.held() as usize, held);
                prop_assert_eq!(
                    extents.available(),
                    free(&model) + limit.saturating_sub(started)
                );
                let expected: Vec<_> = model
                    .iter()
                    .enumerate()
                    .filter(|(_, it)| holds(&it.0))
                    .map(|(at, it)| (at as u32, it.1 as u16, it.2.len() as u16, it.0))
                    .collect();
                prop_assert_eq!(surveyed(&extents), expected);
            }
        }
    }
}
