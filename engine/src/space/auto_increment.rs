//! A table's auto-increment counter, in memory and in the header page of its space.
//!
//! In memory is the next value to give. The header has a value that is above every value that a
//! logged row has, so after a crash no row's value is given again, and no others are skipped:
//!
//! * A row's insert raises the header in its own mini-transaction ([`AutoIncrement::latch`],
//!   [`Raise::apply`]). That costs one byte of log as a rule, for only the bytes that differ are
//!   written. Values that were given to no logged row are given again by the next life, as
//!   InnoDB's are. A rollback takes nothing back.
//! * Who takes values without saying later which row has which ([`AutoIncrement::reserve`]) finds
//!   the header raised [`AHEAD`] values ahead, so that one call in that many touches the page. A
//!   crash skips what is left of them. A clean close takes the header back
//!   ([`AutoIncrement::settle`]).
//!
//! # Latching
//! The header page is latched last, as for allocation. The mutex of `reserved_to` is taken before
//! any latch.
//!
//! `persisted` never has a value that the log does not have yet: an insert that trusts it could be
//! durable when the raise is not. So the raise of an insert leaves it alone, and the thread that
//! latches the header next learns what is there. It changes under that latch, or under the mutex,
//! which keeps resets away.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidepool_pool::{Lsn, PageId, PageType, Space};

use super::check_page;
use crate::env::Env;
use crate::error::Result;
use crate::format::space_header::{AUTO_INCREMENT_AT, u64_at};
use crate::mtr::{Mtr, PageHandle};
use crate::page_op::PageOp;

/// How many values [`AutoIncrement::reserve`] raises the header ahead: the longest gap that a crash
/// leaves.
const AHEAD: u64 = 128;

/// See the module's description.
#[derive(Debug)]
pub struct AutoIncrement {
    /// The next value to give.
    next: AtomicU64,
    /// A value that the log has of the header page, or a lower one.
    persisted: AtomicU64,
    /// The header's value, where [`AutoIncrement::reserve`] has raised it ahead in this life; else
    /// 0. Its mutex orders those who reserve values.
    reserved_to: Mutex<u64>,
}

/// A raise of the header's counter, whose page is latched.
#[derive(Debug)]
#[must_use]
pub struct Raise {
    header: PageHandle,
    next: u64,
    /// How many bytes of the value differ from the page's, from the lowest on.
    changed_len: usize,
}

impl AutoIncrement {
    /// From the space header's value (0 and 1 both mean "nothing given").
    pub fn new(persisted: u64) -> Self {
        let next = AtomicU64::new(persisted.max(1));
        Self { next, persisted: AtomicU64::new(persisted), reserved_to: Mutex::new(0) }
    }

    /// The next value to give.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Makes the next value to give at least `next`, in memory alone.
    pub fn expect(&self, next: u64) {
        if next > self.next() {
            self.next.fetch_max(next, Ordering::AcqRel);
        }
    }

    /// Latches the header page for a raise to `next`; `None` if it has that already. Nothing is
    /// changed yet.
    pub fn latch<'a>(
        &self,
        mtr: &mut Mtr<'a>,
        space: &'a Space,
        next: u64,
    ) -> Result<Option<Raise>> {
        if next <= self.persisted.load(Ordering::Acquire) {
            return Ok(None);
        }
        let was_latched = mtr.find(PageId::new(space.id(), 0)).is_some();
        let header = mtr.exclusive(space, 0)?;
        check_page(space, 0, mtr.page(header), PageType::SPACE_HEADER)?;
        let on_page = u64_at(mtr.page(header), AUTO_INCREMENT_AT);
        if !was_latched {
            self.persisted.store(on_page, Ordering::Release);
        }
        if next <= on_page {
            if !was_latched {
                mtr.release(header);
            }
            return Ok(None);
        }
        let changed_len = (u64::BITS - (next ^ on_page).leading_zeros()).div_ceil(8) as usize;
        Ok(Some(Raise { header, next, changed_len }))
    }

    /// Raises the header to `next`, in a mini-transaction for this alone, and the next value to
    /// give.
    pub fn raise(&self, env: &Env, space: &Space, next: u64) -> Result<()> {
        if next > self.persisted.load(Ordering::Acquire) {
            let mut mtr = Mtr::begin(env)?;
            if let Some(raise) = self.latch(&mut mtr, space, next)? {
                raise.apply(&mut mtr);
            }
            mtr.commit();
        }
        self.expect(next);
        Ok(())
    }

    /// Gives `n` values and returns the first. At the end of the range the last value is returned
    /// again and again: the layer above finds it taken or out of the column's range.
    pub fn reserve(&self, env: &Env, space: &Space, n: u64) -> Result<u64> {
        let mut reserved_to = self.reserved_to.lock();
        loop {
            let first = self.next();
            let next = first.saturating_add(n);
            if next > self.persisted.load(Ordering::Acquire) {
                let ahead = next.saturating_add(AHEAD - 1);
                let mut mtr = Mtr::begin(env)?;
                if let Some(raise) = self.latch(&mut mtr, space, ahead)? {
                    raise.apply(&mut mtr);
                }
                mtr.commit();
                // The log has it now, and a reset waits for the mutex.
                self.persisted.fetch_max(ahead, Ordering::AcqRel);
                *reserved_to = ahead;
            }
            // An insert of another thread may have gone past it.
            let given =
                self.next.compare_exchange(first, next, Ordering::AcqRel, Ordering::Acquire);
            if given.is_ok() {
                return Ok(first);
            }
        }
    }

    /// Makes the next value exactly `next`, here and in the header, which may be lower than before.
    /// Returns up to where the log has to be durable for it to stay.
    pub fn reset(&self, env: &Env, space: &Space, next: u64) -> Result<Lsn> {
        let mut reserved_to = self.reserved_to.lock();
        let next = next.max(1);
        let lsn = self.write(env, space, |_| next)?;
        self.next.store(next, Ordering::Release);
        *reserved_to = 0;
        Ok(lsn)
    }

    /// Takes the header back from what was reserved to what was given: what a clean close leaves.
    pub fn settle(&self, env: &Env, space: &Space) -> Result<()> {
        let mut reserved_to = self.reserved_to.lock();
        let (reserved, next) = (std::mem::take(&mut *reserved_to), self.next());
        if reserved > next {
            self.write(env, space, |on_page| if on_page == reserved { next } else { on_page })?;
        }
        Ok(())
    }

    /// Changes the header to what `value` makes of its value.
    fn write(&self, env: &Env, space: &Space, value: impl FnOnce(u64) -> u64) -> Result<Lsn> {
        let mut mtr = Mtr::begin(env)?;
        let header = mtr.exclusive(space, 0)?;
        let on_page = u64_at(mtr.page(header), AUTO_INCREMENT_AT);
        let value = value(on_page);
        let bytes = value.to_le_bytes();
        mtr.apply(header, &PageOp::Write { offset: AUTO_INCREMENT_AT as u32, bytes: &bytes });
        self.persisted.store(value.min(on_page), Ordering::Release);
        Ok(mtr.commit())
    }
}

impl Raise {
    /// Changes the page. From its mini-transaction's commit on the header has the value.
    pub fn apply(self, mtr: &mut Mtr<'_>) {
        let bytes = &self.next.to_le_bytes()[..self.changed_len];
        mtr.apply(self.header, &PageOp::Write { offset: AUTO_INCREMENT_AT as u32, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::new_space;
    use super::*;
    use crate::format::space_header;
    use std::sync::Arc;

    struct Fixture {
        env: Arc<Env>,
        space: Arc<Space>,
    }

    impl Fixture {
        fn new() -> Fixture {
            let (env, space) = new_space(4096);
            Fixture { env, space }
        }

        fn header(&self) -> u64 {
            space_header::read(self.env.pool(), &self.space).unwrap().auto_increment
        }

        fn reserve(&self, counter: &AutoIncrement, n: u64) -> u64 {
            counter.reserve(&self.env, &self.space, n).unwrap()
        }

        fn raise(&self, counter: &AutoIncrement, next: u64) {
            counter.raise(&self.env, &self.space, next).unwrap();
        }
    }

    #[test]
    fn values_that_are_reserved_follow_each_other_and_the_header_stays_ahead() {
        let at = Fixture::new();
        let counter = AutoIncrement::new(0);
        let mut raised = 0;
        for expected in 1..=1000 {
            let before = at.header();
            assert_eq!(at.reserve(&counter, 1), expected);
            assert!(at.header() > expected, "a crash now must not give {expected} again");
            raised += u64::from(at.header() != before);
        }
        assert_eq!(raised, 1000_u64.div_ceil(AHEAD));
        counter.settle(&at.env, &at.space).unwrap();
        assert_eq!(at.header(), 1001);
        assert_eq!(AutoIncrement::new(at.header()).next(), 1001);
    }

    #[test]
    fn the_header_follows_each_raise_and_not_what_is_only_expected() {
        let at = Fixture::new();
        let counter = AutoIncrement::new(0);
        for next in [2, 255, 256, 257, 65_536, 65_537, 1 << 40, u64::MAX] {
            at.raise(&counter, next);
            assert_eq!((at.header(), counter.next()), (next, next));
        }
        counter.reset(&at.env, &at.space, 500).unwrap();
        at.raise(&counter, 10);
        assert_eq!((at.header(), counter.next()), (500, 500));
        counter.expect(600);
        counter.expect(550);
        assert_eq!((at.header(), counter.next()), (500, 600));
        // The values in between were given, and no row had one.
        counter.settle(&at.env, &at.space).unwrap();
        assert_eq!(at.header(), 500);
        assert_eq!(at.reserve(&counter, 5), 600);
        assert!(at.header() >= 605);
    }

    /// Between the change of the page and the mini-transaction's commit, the log does not have it.
    #[test]
    fn no_insert_trusts_a_raise_that_is_not_in_the_log_yet() {
        let at = Fixture::new();
        let counter = AutoIncrement::new(0);
        let known = || counter.persisted.load(Ordering::Acquire);
        let mut mtr = Mtr::begin(&at.env).unwrap();
        counter.latch(&mut mtr, &at.space, 11).unwrap().expect("a raise").apply(&mut mtr);
        assert_eq!(known(), 0);
        mtr.commit();
        let mut mtr = Mtr::begin(&at.env).unwrap();
        assert!(counter.latch(&mut mtr, &at.space, 10).unwrap().is_none());
        assert_eq!((mtr.commit(), known()), (Lsn(0), 11));
        counter.reset(&at.env, &at.space, 500).unwrap();
        assert_eq!((known(), at.header()), (11, 500));
        counter.reset(&at.env, &at.space, 5).unwrap();
        assert_eq!((known(), at.header()), (5, 5));
    }

    #[test]
    fn a_raise_that_is_not_applied_changes_nothing() {
        let at = Fixture::new();
        let counter = AutoIncrement::new(0);
        let mut mtr = Mtr::begin(&at.env).unwrap();
        assert!(counter.latch(&mut mtr, &at.space, 7).unwrap().is_some());
        assert_eq!(mtr.commit(), Lsn(0));
        assert_eq!((at.header(), counter.next()), (0, 1));
        at.raise(&counter, 7);
        // One that knows less than the page looks there.
        let behind = AutoIncrement::new(0);
        let mut mtr = Mtr::begin(&at.env).unwrap();
        assert!(behind.latch(&mut mtr, &at.space, 6).unwrap().is_none());
        assert!(behind.latch(&mut mtr, &at.space, 8).unwrap().is_some());
        drop(mtr);
        at.env.check_writable().unwrap();
    }

    #[test]
    fn resetting_may_lower() {
        let at = Fixture::new();
        let counter = AutoIncrement::new(0);
        assert_eq!(at.reserve(&counter, 500), 1);
        counter.reset(&at.env, &at.space, 7).unwrap();
        assert_eq!((at.header(), counter.next()), (7, 7));
        assert_eq!(at.reserve(&counter, 1), 7);
        counter.reset(&at.env, &at.space, 0).unwrap();
        assert_eq!((at.header(), counter.next()), (1, 1));
    }

    #[test]
    fn the_end_of_the_range_is_not_passed() {
        let at = Fixture::new();
        let counter = AutoIncrement::new(u64::MAX - 1);
        assert_eq!(at.reserve(&counter, 10), u64::MAX - 1);
        assert_eq!(at.reserve(&counter, 10), u64::MAX);
        assert_eq!(at.reserve(&counter, 10), u64::MAX);
    }
}
