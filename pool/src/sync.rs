//! The atomics and the parking lot that the latches are made of, and nothing else.
//!
//! `latch.rs` takes everything concurrent from here. Its model tests compile the same `latch.rs`
//! against another `sync` module made of `loom`'s types (`tests/latch_model/`), so what the model
//! checker explores is the very code that runs.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN, FilterOp, ParkToken};

/// Rounds to spin for a latch before the thread parks.
pub(crate) const SPIN_ROUNDS: u32 = 40;

/// Rounds that a newcomer asking for a shared latch lets those pass who were there before it,
/// spinning and then asleep.
pub(crate) const POLITE_ROUNDS: u32 = 20;
pub(crate) const POLITE_NAPS: u32 = 50;

/// What a parked thread waits to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Read beside other readers.
    Shared,
    /// Be alone.
    Exclusive,
}

const EXCLUSIVE_TOKEN: ParkToken = ParkToken(1);

/// Lets the other hardware thread run for a moment; longer as `round` grows.
pub(crate) fn spin(round: u32) {
    for _ in 0..1 << (round / 8).min(5) {
        std::hint::spin_loop();
    }
}

/// Sleeps for a moment: 50 of them are some 5 ms.
pub(crate) fn nap() {
    std::thread::sleep(Duration::from_micros(50));
}

/// Parks the thread at `address` unless `still_blocked` denies it. No wake-up on the same address
/// can come between that question and the sleep.
pub(crate) fn park(address: usize, wants: Wants, still_blocked: impl FnOnce() -> bool) {
    let token = match wants {
        Wants::Shared => DEFAULT_PARK_TOKEN,
        Wants::Exclusive => EXCLUSIVE_TOKEN,
    };
    #[expect(unsafe_code, reason = "parking_lot_core leaves the meaning of addresses to its users")]
    // SAFETY: the address is that of a page word, which the caller borrows, so no other user of
    // the parking lot has it; none of the callbacks panics or calls into the parking lot.
    unsafe {
        parking_lot_core::park(address, still_blocked, || {}, |_, _| {}, token, None);
    }
}

/// Wakes the threads at the head of the queue that can go together: all readers up to the first
/// that wants to be alone, or that one. `settle` learns, still inside the queue's lock, whether
/// anybody is left.
pub(crate) fn unpark_next(address: usize, settle: impl FnOnce(bool)) {
    let mut woken = 0;
    let filter = |token: ParkToken| {
        if token == EXCLUSIVE_TOKEN {
            if woken > 0 {
                return FilterOp::Stop;
            }
            // Count far past any number of readers, so that no other thread is woken with this one.
            woken = u32::MAX;
            return FilterOp::Unpark;
        }
        if woken == u32::MAX {
            return FilterOp::Stop;
        }
        woken += 1;
        FilterOp::Unpark
    };
    #[expect(unsafe_code, reason = "parking_lot_core leaves the meaning of addresses to its users")]
    // SAFETY: as in `park`.
    unsafe {
        parking_lot_core::unpark_filter(address, filter, |result| {
            settle(result.have_more_threads);
            DEFAULT_UNPARK_TOKEN
        });
    }
}

/// Wakes every thread parked at `address`.
pub(crate) fn unpark_all(address: usize) {
    #[expect(unsafe_code, reason = "parking_lot_core leaves the meaning of addresses to its users")]
    // SAFETY: as in `park`.
    unsafe {
        parking_lot_core::unpark_all(address, DEFAULT_UNPARK_TOKEN);
    }
}
