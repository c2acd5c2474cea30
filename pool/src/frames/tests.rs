//! Frames by themselves: alignment, limits, memory given back and refused.

#![expect(unsafe_code, reason = "writes and reads the bytes of frames in transit")]

use std::time::Duration;

use super::*;
use crate::mapping::charged_bytes;
use crate::page_view::PageView;

#[test]
fn frames_are_aligned_distinct_and_limited() {
    let size = PageSize::DEFAULT;
    let frames = Frames::new(size, 200 * 16384, 1 << 30, true, Accounting::Touched).unwrap();
    assert_eq!((frames.limit(), frames.reserved()), (200, 65536));
    let mut taken: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
    assert_eq!(taken, (0..128).chain(128..200).collect::<Vec<_>>());
    assert_eq!(frames.available(), 0);
    assert_eq!(frames.address(0) as usize % EXTENT_BYTES, 0);
    assert_eq!(frames.address(3) as usize - frames.address(0) as usize, 3 * 16384);
    // SAFETY: the frame is in transit.
    unsafe { frames.bytes_mut(199).fill(7) };
    frames.give(taken.pop().unwrap());
    assert_eq!((frames.available(), frames.take()), (1, Some(199)));
    frames.wait(Duration::from_millis(1));
}

#[test]
fn the_limit_is_raised_in_place() {
    let frames =
        Frames::new(PageSize::DEFAULT, 100 * 16384, 1 << 30, true, Accounting::Touched).unwrap();
    let taken = std::iter::from_fn(|| frames.take()).count();
    frames.set_limit(300);
    assert_eq!((taken, frames.limit(), frames.available()), (100, 300, 200));
    let more: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
    assert_eq!(more, (100..300).collect::<Vec<_>>());
}

#[test]
fn a_drained_extent_loses_its_bytes_and_comes_back_empty() {
    let frames =
        Frames::new(PageSize::DEFAULT, 256 * 16384, 0, false, Accounting::Touched).unwrap();
    let taken: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
    // SAFETY: the frame is in transit.
    unsafe { frames.bytes_mut(130).fill(7) };
    frames.set_limit(128);
    assert_eq!(frames.debt(), 128);
    frames.drain(1);
    for &frame in &taken[129..] {
        assert!(!frames.may_reuse(frame));
    }
    assert!(!frames.give_back(1).unwrap(), "frame 128 is in transit");
    frames.give(128);
    assert!(frames.give_back(1).unwrap());
    assert_eq!((frames.debt(), frames.started(), frames.take()), (0, 128, None));
    frames.set_limit(256);
    assert!(frames.may_reuse(0));
    let again: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
    assert_eq!(again, (128..256).collect::<Vec<_>>());
    // SAFETY: the frame is in transit.
    assert!(unsafe { frames.bytes(130) }.iter().all(|&byte| byte == 0));
}
#[test]
fn extents_are_started_ahead_while_there_is_room() {
    const EXTENT: u64 = EXTENT_BYTES as u64;
    let frames = Frames::new(PageSize::DEFAULT, 40 * EXTENT, 0, true, Accounting::Touched).unwrap();
    // A sixteenth of the frames is 320, in three extents.
    assert!(frames.wants_extent());
    while frames.wants_extent() {
        assert!(frames.start_extent().unwrap());
    }
    assert_eq!((frames.extents_held(), frames.started()), (3, 384));
    assert_eq!(frames.available(), 40 * 128, "what is started can still be taken");
    // They are taken before others are started.
    for _ in 0..384 {
        assert!(frames.take().unwrap() < 384);
    }
    assert!(frames.wants_extent());
    // No room for a whole one.
    frames.set_limit(500);
    assert!(!frames.wants_extent());
    assert!(!frames.start_extent().unwrap());
    assert_eq!(frames.take(), Some(384));
    // A small pool has none started ahead.
    assert!(
        !Frames::new(PageSize::DEFAULT, EXTENT / 2, 0, true, Accounting::Touched)
            .unwrap()
            .wants_extent()
    );
}

#[test]
fn where_all_counts_that_may_be_written_only_extents_in_use_may() {
    const EXTENT: u64 = EXTENT_BYTES as u64;
    let (size, most) = (4 * EXTENT, 64 << 30);
    let frames = Frames::new(PageSize::DEFAULT, size, most, false, Accounting::Writable);
    let frames = frames.unwrap();
    let charged = || charged_bytes(frames.memory.base().as_ptr(), most as usize);
    if charged().is_none() {
        tidepool_skip::skip("the kernel does not say what it counts");
        return;
    }
    assert_eq!(charged(), Some(EXTENT), "what is started first");
    let fill = || {
        let taken: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
        for &frame in &taken {
            // SAFETY: the frame is in transit.
            unsafe { frames.bytes_mut(frame).fill(7) };
        }
        taken
    };
    assert_eq!((fill().len(), charged()), (512, Some(size)));
    frames.set_limit(3 * 128);
    frames.drain(1);
    (128..256).for_each(|frame| frames.give(frame));
    assert!(frames.give_back(1).unwrap());
    assert_eq!(charged(), Some(size - EXTENT));
    frames.set_limit(4 * 128);
    // Who still looks there finds zeroes.
    assert_eq!(frames.racy(130).u64_at(8), Ok(0));
    assert_eq!((fill(), charged()), ((128..256).collect(), Some(size)));
}

#[test]
fn a_refused_extent_is_asked_for_again_when_there_is_reason() {
    const EXTENT: u64 = EXTENT_BYTES as u64;
    let frames = Frames::new(PageSize::DEFAULT, 40 * EXTENT, 0, false, Accounting::Touched);
    let frames = frames.unwrap();
    frames.refuse.store(true, Ordering::Relaxed);
    assert_eq!((frames.take(), frames.available(), frames.limit()), (None, 0, 40 * 128));
    assert!(!frames.wants_extent(), "no thread is woken for nothing");
    frames.forget_refusal();
    assert!(frames.wants_extent() && !frames.start_extent().unwrap());
    assert!(frames.is_refused());
    frames.refuse.store(false, Ordering::Relaxed);
    assert_eq!(frames.take(), None, "not asked again yet");
    frames.set_limit(20 * 128);
    assert_eq!(frames.available(), 20 * 128);
    assert_eq!(std::iter::from_fn(|| frames.take()).count(), 20 * 128);
}
