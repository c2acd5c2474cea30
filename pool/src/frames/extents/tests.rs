//! Extents against a model, and the steps of their life one by one.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

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
    assert_eq!(surveyed(&extents), [(0, 4, 1, ExtentState::Open), (2, 4, 4, ExtentState::Open)]);
    // The one given back is used again before one that never was.
    extents.set_limit(16);
    let more: BTreeSet<u32> = std::iter::from_fn(|| extents.take(|_| true)).collect();
    assert_eq!(more, BTreeSet::from_iter((4..16).chain([0])));
    assert_eq!((extents.available(), extents.started()), (0, 16));
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

/// Frames in an extent.
const FRAMES: u32 = 4;

struct ModelExtent {
    state: ExtentState,
    started: u32,
    free: BTreeSet<u32>,
}

impl ModelExtent {
    fn vacant() -> ModelExtent {
        ModelExtent { state: ExtentState::Vacant, started: 0, free: BTreeSet::new() }
    }

    fn holds_memory(&self) -> bool {
        !matches!(self.state, ExtentState::Vacant | ExtentState::Starting)
    }
}

/// What the extents should be, kept in the plainest way.
struct Model {
    extents: Vec<ModelExtent>,
    /// Frames handed out.
    taken: Vec<u32>,
    limit: u32,
}

type Checked = Result<(), TestCaseError>;

impl Model {
    fn new(extents: u32, limit: u32) -> Model {
        let extents = (0..extents).map(|_| ModelExtent::vacant()).collect();
        Model { extents, taken: Vec::new(), limit }
    }

    fn started(&self) -> u32 {
        self.extents.iter().map(|extent| extent.started).sum()
    }

    fn free(&self) -> u32 {
        let open = self.extents.iter().filter(|extent| extent.state == ExtentState::Open);
        open.map(|extent| extent.free.len() as u32).sum()
    }

    fn pick(&self, state: ExtentState, index: usize) -> Option<u32> {
        let numbers = (0..).zip(&self.extents);
        let of_state: Vec<u32> =
            numbers.filter(|(_, extent)| extent.state == state).map(|(number, _)| number).collect();
        (!of_state.is_empty()).then(|| of_state[index % of_state.len()])
    }

    fn extent(&mut self, number: u32) -> &mut ModelExtent {
        &mut self.extents[number as usize]
    }

    /// Nothing drains without need.
    fn settle(&mut self) {
        if self.started() <= self.limit {
            for extent in &mut self.extents {
                if extent.state == ExtentState::Draining {
                    extent.state = ExtentState::Open;
                }
            }
        }
    }

    /// Does the same to the model and to the extents, and compares what both say of it.
    fn apply(&mut self, op: Op, extents: &mut Extents) -> Checked {
        match op {
            Op::Take(commits) => return self.take(commits, extents),
            Op::Give(_) if self.taken.is_empty() => {}
            Op::Give(index) => {
                let frame = self.taken.swap_remove(index % self.taken.len());
                let extent = self.extent(frame / FRAMES);
                extent.free.insert(frame);
                prop_assert_eq!(extents.give(frame), extent.state == ExtentState::Open);
            }
            Op::SetLimit(frames) => {
                self.limit = frames;
                extents.set_limit(frames);
                self.settle();
            }
            Op::Drain(index) => {
                if let Some(number) = self.pick(ExtentState::Open, index) {
                    extents.drain(number);
                    self.extent(number).state = ExtentState::Draining;
                    self.settle();
                }
            }
            Op::Reopen(index) => {
                if let Some(number) = self.pick(ExtentState::Draining, index) {
                    extents.reopen(number);
                    self.extent(number).state = ExtentState::Open;
                }
            }
            Op::GiveBack(index) => {
                if let Some(number) = self.pick(ExtentState::Draining, index) {
                    let extent = self.extent(number);
                    let is_empty = extent.free.len() == extent.started as usize;
                    prop_assert_eq!(extents.leave(number), is_empty);
                    if is_empty {
                        extents.given_back(number);
                        *extent = ModelExtent::vacant();
                        self.settle();
                    }
                }
            }
            Op::BeginStart => {
                let vacant = self.pick(ExtentState::Vacant, 0).is_some();
                let begun = extents.begin_start();
                prop_assert_eq!(begun.is_some(), vacant && self.started() + FRAMES <= self.limit);
                if let Some(number) = begun {
                    prop_assert_eq!(self.extent(number).state, ExtentState::Vacant);
                    self.extent(number).state = ExtentState::Starting;
                }
            }
            Op::FinishStart(index) => {
                if let Some(number) = self.pick(ExtentState::Starting, index) {
                    let fits = self.started() + FRAMES <= self.limit;
                    prop_assert_eq!(extents.finish_start(number), fits);
                    if fits {
                        let first = number * FRAMES;
                        let free = (first..first + FRAMES).collect();
                        *self.extent(number) =
                            ModelExtent { state: ExtentState::Open, started: FRAMES, free };
                    } else {
                        extents.cancel_start(number);
                        self.extent(number).state = ExtentState::Vacant;
                    }
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, commits: bool, extents: &mut Extents) -> Checked {
        let (free_before, started, limit) = (self.free(), self.started(), self.limit);
        let Some(frame) = extents.take(|_| commits) else {
            prop_assert_eq!(free_before, 0);
            let none_is_vacant = self.pick(ExtentState::Vacant, 0).is_none();
            prop_assert!(started >= limit || none_is_vacant || !commits);
            prop_assert!(!extents.is_refused() || extents.available() == 0);
            extents.set_refused(false);
            return Ok(());
        };
        let extent = self.extent(frame / FRAMES);
        if !extent.free.contains(&frame) {
            // Started for this: a vacant extent, or the rest of one that was started in part.
            prop_assert!(free_before == 0 && started < limit);
            prop_assert!(commits || extent.started > 0);
            prop_assert!(extent.state != ExtentState::Draining);
            let count = (FRAMES - extent.started).min(limit - started);
            let first = frame / FRAMES * FRAMES + extent.started;
            extent.free = (first..first + count).collect();
            extent.started += count;
            extent.state = ExtentState::Open;
        }
        prop_assert_eq!(extent.state, ExtentState::Open);
        prop_assert!(extent.free.remove(&frame));
        self.taken.push(frame);
        Ok(())
    }

    fn compare(&self, extents: &Extents) -> Checked {
        let started = self.started();
        prop_assert_eq!(extents.started(), started);
        let held: Vec<_> = (0..)
            .zip(&self.extents)
            .filter(|(_, extent)| extent.holds_memory())
            .map(|(number, it)| (number, it.started as u16, it.free.len() as u16, it.state))
            .collect();
        prop_assert_eq!(extents.held() as usize, held.len());
        prop_assert_eq!(surveyed(extents), held);
        let room = self.limit.saturating_sub(started);
        prop_assert_eq!(extents.available(), self.free() + room);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No frame is handed out twice, out of a draining extent, or beyond the limit; none is lost.
    #[test]
    fn frames_are_neither_lost_nor_handed_out_twice(
        ops in proptest::collection::vec(op(), 1..300),
    ) {
        let mut extents = Extents::new(FRAMES, 10, 17).unwrap();
        let mut model = Model::new(10, 17);
        for op in ops {
            model.apply(op, &mut extents)?;
            model.compare(&extents)?;
        }
    }
}
