//! The `sync` module that `latch.rs` is compiled against here: loom's atomics, and a parking lot
//! of loom's mutex and condition variable with the semantics of the real one.

pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};

/// No spinning: the model is to park, which is what can go wrong.
pub(crate) const SPIN_ROUNDS: u32 = 0;
pub(crate) const POLITE_ROUNDS: u32 = 0;
pub(crate) const POLITE_NAPS: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    Shared,
    Exclusive,
}

#[derive(Default)]
struct Queue {
    next_ticket: u64,
    parked: Vec<(u64, usize, Wants)>,
}

struct Lot {
    queue: Mutex<Queue>,
    woken: Condvar,
}

loom::lazy_static! {
    static ref LOT: Lot = Lot { queue: Mutex::new(Queue::default()), woken: Condvar::new() };
}

pub(crate) fn spin(_round: u32) {
    loom::thread::yield_now();
}

pub(crate) fn nap() {
    loom::thread::yield_now();
}

pub(crate) fn park(address: usize, wants: Wants, still_blocked: impl FnOnce() -> bool) {
    let mut queue = LOT.queue.lock().unwrap();
    if !still_blocked() {
        return;
    }
    let ticket = queue.next_ticket;
    queue.next_ticket += 1;
    queue.parked.push((ticket, address, wants));
    while queue.parked.iter().any(|waiter| waiter.0 == ticket) {
        queue = LOT.woken.wait(queue).unwrap();
    }
}

pub(crate) fn unpark_next(address: usize, settle: impl FnOnce(bool)) {
    let mut queue = LOT.queue.lock().unwrap();
    let here = |queue: &Queue| {
        queue
            .parked
            .iter()
            .position(|waiter| waiter.1 == address)
            .map(|at| (at, queue.parked[at].2))
    };
    let mut readers = false;
    let mut more = false;
    while let Some((at, wants)) = here(&queue) {
        if wants == Wants::Exclusive {
            if !readers {
                queue.parked.remove(at);
            }
            more = here(&queue).is_some();
            break;
        }
        readers = true;
        queue.parked.remove(at);
    }
    settle(more);
    LOT.woken.notify_all();
}

pub(crate) fn unpark_all(address: usize) {
    let mut queue = LOT.queue.lock().unwrap();
    queue.parked.retain(|waiter| waiter.1 != address);
    LOT.woken.notify_all();
}
