//! Which savepoints are void: those behind a position that the transaction has rolled back to since
//! they were taken.
//!
//! A position in the undo log is the number of records before it. We keep only rollbacks that no
//! later, deeper one supersedes; what remains ascends in both rollback number and position. Each
//! takes sixteen bytes, and between two of them lies at least one record of the log. None can be
//! dropped: behind its position there may be new records by now that look like those of a void
//! savepoint, and a rollback to that savepoint would keep a record that it never saw.

use crate::error::Error;

/// One transaction's rollbacks to savepoints.
#[derive(Debug, Default)]
pub(super) struct Rollbacks {
    count: u64,
    /// Numbers of rollbacks, and how many records each has left; both ascend.
    went_to: Vec<(u64, u64)>,
}

impl Rollbacks {
    /// How many there were: what a savepoint knows of when it is taken.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// There is one that leaves `records`.
    pub fn add(&mut self, records: u64) {
        let earlier = self.went_to.partition_point(|&(_, left)| left < records);
        self.went_to.truncate(earlier);
        self.went_to.push((self.count, records));
        self.count += 1;
    }

    /// Whether a place behind `records`, noted when there had been `count` rollbacks, is no more.
    pub fn have_voided(&self, records: u64, count: u64) -> bool {
        let since = self.went_to.partition_point(|&(number, _)| number < count);
        self.went_to.get(since).is_some_and(|&(_, left)| left < records)
    }
}

/// What is said of a void savepoint.
pub(super) fn void_savepoint() -> Error {
    let why = "a savepoint that is void: the transaction has been rolled back past it";
    Error::InvalidOption(why.into())
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn a_place_is_void_when_an_earlier_one_was_gone_back_to() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..200 {
            let (mut rollbacks, mut records) = (Rollbacks::default(), 0);
            // Places, and whether they are there.
            let mut places: Vec<(u64, u64, bool)> = Vec::new();
            for _ in 0..100 {
                match random.random_range(0..3) {
                    0 => records += random.random_range(1..4),
                    1 => places.push((records, rollbacks.count(), true)),
                    _ => {
                        records = random.random_range(0..=records);
                        rollbacks.add(records);
                        places.iter_mut().for_each(|place| place.2 &= place.0 <= records);
                    }
                }
                for &(records, count, is_there) in &places {
                    assert_eq!(rollbacks.have_voided(records, count), !is_there);
                }
            }
        }
    }

    #[test]
    fn the_last_of_very_many_counts_and_one_far_back_forgets_them() {
        let mut rollbacks = Rollbacks::default();
        for n in 0..10_000 {
            rollbacks.add(n);
            assert!(!rollbacks.have_voided(n, rollbacks.count()));
        }
        let taken = rollbacks.count();
        rollbacks.add(10_000);
        assert!(rollbacks.have_voided(10_001, taken) && !rollbacks.have_voided(10_000, taken));
        assert!(rollbacks.have_voided(1, 0));
        rollbacks.add(100);
        assert!(rollbacks.have_voided(101, 9000) && !rollbacks.have_voided(100, 9000));
        assert_eq!(rollbacks.went_to.len(), 101);
    }
}
