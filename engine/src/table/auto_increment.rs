//! A table's auto-increment counter: exact while the engine runs and over a clean shutdown, a small
//! jump ahead after a crash.
//!
//! The space header keeps a *ceiling*: every value given so far is below it. It is persisted
//! [`AHEAD`] values ahead, so that one insert in that many touches the header page. The ceiling's
//! redo record comes before the records of any insert that uses a value below it, so a recovery
//! that finds such a row after a crash finds the ceiling, too. Close persists `ceiling = next`.

use crate::error::Result;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many values the ceiling is persisted ahead: the longest gap that a crash leaves.
const AHEAD: u64 = 128;

/// Next value to give, and the persisted ceiling.
#[derive(Debug)]
pub(crate) struct AutoIncrement {
    /// Mirror of the next value, for readers without the mutex. Written with the mutex held only.
    next: AtomicU64,
    /// The persisted ceiling; its mutex orders changes of both.
    ceiling: Mutex<u64>,
}

impl AutoIncrement {
    /// From the space header's value (0 and 1 both mean "nothing given").
    pub fn new(ceiling: u64) -> Self {
        let next = ceiling.max(1);
        Self { next: AtomicU64::new(next), ceiling: Mutex::new(next) }
    }

    /// The next value to give.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Gives `n` values and returns the first. At the end of the range the last value is returned
    /// again and again: the layer above finds it taken or out of the column's range. `persist`
    /// writes a new ceiling.
    pub fn reserve(&self, n: u64, persist: impl FnOnce(u64) -> Result<()>) -> Result<u64> {
        let mut ceiling = self.ceiling.lock();
        let first = self.next();
        self.advance(&mut ceiling, first.saturating_add(n), persist)?;
        Ok(first)
    }

    /// Makes the next value at least `next`.
    pub fn raise(&self, next: u64, persist: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        if next <= self.next() {
            return Ok(());
        }
        let mut ceiling = self.ceiling.lock();
        if next <= self.next() {
            return Ok(());
        }
        self.advance(&mut ceiling, next, persist)
    }

    /// Makes the next value exactly `next`, which may be lower than before, and the ceiling the
    /// same.
    pub fn reset(&self, next: u64, persist: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let mut ceiling = self.ceiling.lock();
        let next = next.max(1);
        persist(next)?;
        *ceiling = next;
        self.next.store(next, Ordering::Release);
        Ok(())
    }

    /// Brings the ceiling down to the next value: what a clean shutdown leaves.
    pub fn settle(&self, persist: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let mut ceiling = self.ceiling.lock();
        let next = self.next();
        if *ceiling != next {
            persist(next)?;
            *ceiling = next;
        }
        Ok(())
    }

    fn advance(
        &self,
        ceiling: &mut u64,
        next: u64,
        persist: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        if next > *ceiling {
            let ahead = next.saturating_add(AHEAD - 1);
            persist(ahead)?;
            *ceiling = ahead;
        }
        debug_assert!(next <= *ceiling, "a value at or above the ceiling would be given again");
        self.next.store(next, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::cell::Cell;

    #[test]
    fn values_follow_each_other_and_the_ceiling_stays_ahead() {
        let disk = Cell::new(0);
        let writes = Cell::new(0);
        let persist = |ceiling| {
            disk.set(ceiling);
            writes.set(writes.get() + 1);
            Ok(())
        };
        let counter = AutoIncrement::new(0);
        for expected in 1..=1000 {
            assert_eq!(counter.reserve(1, persist).unwrap(), expected);
            assert!(disk.get() > expected, "a crash now must not give {expected} again");
        }
        assert_eq!(writes.get(), 1000_u64.div_ceil(AHEAD));
        counter.settle(persist).unwrap();
        assert_eq!(disk.get(), 1001);
        assert_eq!(AutoIncrement::new(disk.get()).next(), 1001);
    }

    #[test]
    fn raising_never_lowers_and_resetting_may() {
        let counter = AutoIncrement::new(0);
        counter.raise(500, |_| Ok(())).unwrap();
        counter.raise(10, |_| panic!("nothing to persist")).unwrap();
        assert_eq!(counter.reserve(5, |_| Ok(())).unwrap(), 500);
        assert_eq!(counter.next(), 505);
        let check = |ceiling| {
            assert_eq!(ceiling, 7);
            Ok(())
        };
        counter.reset(7, check).unwrap();
        assert_eq!(counter.reserve(1, |_| Ok(())).unwrap(), 7);
    }

    #[test]
    fn the_end_of_the_range_is_not_passed() {
        let counter = AutoIncrement::new(u64::MAX - 1);
        assert_eq!(counter.reserve(10, |_| Ok(())).unwrap(), u64::MAX - 1);
        assert_eq!(counter.reserve(10, |_| Ok(())).unwrap(), u64::MAX);
    }

    #[test]
    fn what_could_not_be_persisted_was_not_given() {
        let counter = AutoIncrement::new(0);
        assert_eq!(counter.reserve(1, |_| Err(Error::NotFound)), Err(Error::NotFound));
        assert_eq!(counter.next(), 1);
    }
}
