//! The directory of the table of commits under the model checker: every interleaving (up to a bound
//! on preemptions) and every outcome that the memory model allows.
//!
//! `directory.rs` is the product's own file, compiled here against loom's atomics.
//! `LOOM_MAX_PREEMPTIONS` widens the search.

#![allow(dead_code, reason = "the model uses a part of the module")]

#[path = "../../src/csn/directory.rs"]
mod directory;
mod sync;

use directory::{Directory, Occupancy};
use loom::sync::Arc;
use loom::thread;

const SLOTS: usize = 8;

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() {
        builder.preemption_bound = Some(3);
    }
    builder.check(test);
}

/// A directory with one chunk that stays and others that come and go, so that the next removals
/// copy it to the other array.
fn used(rounds: u64) -> (Directory, Occupancy) {
    let directory = Directory::new(SLOTS);
    let mut occupancy = Occupancy::default();
    directory.insert(&mut occupancy, 0, 7);
    for number in 1..=rounds {
        directory.insert(&mut occupancy, number, 1);
        directory.remove(&mut occupancy, number);
    }
    (directory, occupancy)
}

/// Chunks come and go, and the array changes under the reader, twice: the chunk that stays is found
/// always, and one that has gone before is not.
#[test]
fn a_chunk_that_stays_is_found_while_the_arrays_change() {
    model(|| {
        let (directory, mut occupancy) = used(3);
        let directory = Arc::new(directory);
        let reader = {
            let directory = Arc::clone(&directory);
            thread::spawn(move || {
                assert_eq!(directory.find(0), Some(7));
                assert_eq!(directory.find(2), None);
            })
        };
        directory.renew(&mut occupancy);
        directory.insert(&mut occupancy, 4, 2);
        directory.renew(&mut occupancy);
        reader.join().unwrap();
        assert_eq!(directory.find(4), Some(2));
    });
}

/// A chunk is found from the moment at which its number is known.
#[test]
fn a_chunk_is_found_by_who_has_its_number() {
    use loom::sync::atomic::{AtomicU64, Ordering};
    model(|| {
        let (directory, mut occupancy) = used(2);
        let shared = Arc::new((directory, AtomicU64::new(0)));
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let number = shared.1.load(Ordering::Acquire);
                let index = shared.0.find(number);
                assert_eq!(index, Some(if number == 0 { 7 } else { 3 }));
            })
        };
        shared.0.insert(&mut occupancy, 5, 3);
        shared.1.store(5, Ordering::Release);
        shared.0.renew(&mut occupancy);
        reader.join().unwrap();
    });
}
