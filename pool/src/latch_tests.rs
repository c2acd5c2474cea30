//! Tests of the page word with real threads. (Not inside `latch.rs`, which the model tests compile
//! against other atomics.)

use crate::latch::*;
use crate::sync::Wants;

#[test]
fn a_word_goes_through_its_states() {
    let word = PageWord::absent();
    assert_eq!(word.lock_shared(), None);
    assert_eq!(word.try_lock(Wants::Exclusive), Err(Unavailable::Absent));
    assert!(word.install(MAX_FRAMES - 1, 41));
    assert!(!word.install(3, 0), "already resident");
    assert_eq!(word.load().frame(), Some(MAX_FRAMES - 1));
    assert_eq!(word.try_lock(Wants::Shared), Err(Unavailable::Busy));
    word.downgrade(true);
    let shared = word.try_lock(Wants::Shared).unwrap();
    assert_eq!(shared.latched_frame(), MAX_FRAMES - 1);
    assert_eq!(word.try_lock(Wants::Exclusive), Err(Unavailable::Busy));
    word.unlock_shared();
    word.unlock_shared();
    let seen = word.load();
    assert!(word.is_unchanged(seen));
    word.lock_exclusive().unwrap();
    assert!(!word.is_unchanged(seen), "somebody may be writing");
    word.unlock_exclusive(false);
    assert!(word.is_unchanged(seen), "nothing was written after all");
    word.lock_exclusive().unwrap();
    word.unlock_exclusive(true);
    assert!(!word.is_unchanged(seen));
    assert_eq!(word.try_upgrade(seen, Wants::Shared), None);
    word.lock_exclusive().unwrap();
    assert_eq!(word.evict(), 44);
    assert_eq!(word.load(), Word(0));
}

#[test]
fn the_version_wraps_without_touching_its_neighbours() {
    let word = PageWord::absent();
    assert!(word.install(7, VERSION_MASK as u32));
    word.unlock_exclusive(true);
    assert_eq!(word.load(), Word(8 << FRAME_SHIFT));
    word.lock_exclusive().unwrap();
    word.downgrade(true);
    assert_eq!(word.load(), Word(8 << FRAME_SHIFT | ONE_SHARED | 1));
    word.unlock_shared();
    word.lock_exclusive().unwrap();
    assert_eq!(word.evict(), 2);
}

#[test]
fn a_move_exchanges_frame_and_version_and_nothing_else() {
    let max = VERSION_MASK as u32;
    for (from, to) in [(0, MAX_FRAMES - 1), (MAX_FRAMES - 1, 0), (5, 6)] {
        for (old, new) in [(0, max), (max, 0), (17, 17)] {
            let word = PageWord::absent();
            assert!(word.install(from, old));
            assert_eq!(word.relocate(to, new) as u64, (old as u64 + 1) & VERSION_MASK);
            assert!(word.load().is_exclusive());
            assert_eq!(word.load().frame(), Some(to));
            word.unlock_exclusive(true);
            let version = (new as u64 + 1) & VERSION_MASK;
            assert_eq!(word.load(), Word((to as u64 + 1) << FRAME_SHIFT | version));
        }
    }
}

#[test]
fn shared_latches_run_out_at_254() {
    let word = PageWord::absent();
    assert!(word.install(0, 0));
    word.unlock_exclusive(true);
    for _ in 0..254 {
        word.try_lock(Wants::Shared).unwrap();
    }
    assert_eq!(word.try_lock(Wants::Shared), Err(Unavailable::Busy));
    for _ in 0..254 {
        word.unlock_shared();
    }
    word.try_lock(Wants::Exclusive).unwrap();
}

/// Readers who hold the latch for long and overlap: there is no moment without one, unless
/// newcomers give way. (This test can only fail by not ending.)
#[test]
fn a_writer_gets_in_among_readers_who_overlap() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let word = PageWord::absent();
    assert!(word.install(0, 0));
    word.unlock_exclusive(true);
    let done = AtomicBool::new(false);
    let hold = std::time::Duration::from_millis(2);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (word, done) = (&word, &done);
            scope.spawn(move || {
                std::thread::sleep(thread * hold / 4);
                while !done.load(Ordering::Relaxed) {
                    // Both ways in: that of who descends a tree, and that of who was turned away
                    // there.
                    let seen = word.load();
                    if thread % 2 == 0 || word.try_upgrade(seen, Wants::Shared).is_none() {
                        word.lock_shared().unwrap();
                    }
                    std::thread::sleep(hold);
                    word.unlock_shared();
                }
            });
        }
        for _ in 0..20 {
            // Until all of them are at it.
            std::thread::sleep(3 * hold);
            word.lock_exclusive().unwrap();
            word.unlock_exclusive(true);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(word.load().0 & (LATCH_MASK | WAITERS), 0);
}

#[test]
fn threads_exclude_each_other_and_all_wake_up() {
    use std::cell::UnsafeCell;
    struct Counter(PageWord, UnsafeCell<[u64; 2]>);
    #[expect(unsafe_code, reason = "the latch under test is what makes this sound")]
    // SAFETY: the cell is only touched under the latch.
    unsafe impl Sync for Counter {}
    let counter = Counter(PageWord::absent(), UnsafeCell::new([0; 2]));
    assert!(counter.0.install(0, 0));
    counter.0.unlock_exclusive(true);
    const ROUNDS: u64 = 5_000;
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let counter = &counter;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    if (round + thread) % 3 == 0 {
                        counter.0.lock_shared().unwrap();
                        #[expect(unsafe_code, reason = "see above")]
                        // SAFETY: the shared latch is held.
                        let both = unsafe { *counter.1.get() };
                        assert_eq!(both[0], both[1]);
                        counter.0.unlock_shared();
                    } else {
                        counter.0.lock_exclusive().unwrap();
                        #[expect(unsafe_code, reason = "see above")]
                        // SAFETY: the exclusive latch is held.
                        let both = unsafe { &mut *counter.1.get() };
                        both[0] += 1;
                        std::thread::yield_now();
                        both[1] += 1;
                        counter.0.unlock_exclusive(true);
                    }
                }
            });
        }
    });
    assert_eq!(counter.0.load().0 & (LATCH_MASK | WAITERS), 0);
    assert_eq!(counter.1.into_inner()[0], 6 * ROUNDS - 6 * ROUNDS / 3);
}
