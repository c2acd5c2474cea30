//! The mixes A to F of the Yahoo! Cloud Serving Benchmark (Cooper and others, 2010).
//!
//! ```text
//! A   reads 50 %, updates 50 %          D   reads of the newest rows 95 %, inserts 5 %
//! B   reads 95 %, updates 5 %           E   scans of 1 to 100 rows 95 %, inserts 5 %
//! C   reads                             F   reads 50 %, reads with an update of the row 50 %
//! ```
//! Some rows are wanted far more often than others: the row of rank `r` in proportion to
//! `1 / (r + 1) ^ 0.99`. Ranks are spread over the table, except in D, where the newest row has the
//! first rank. Each update and insert is one durable commit. As in the other workloads a thread
//! updates rows that are its alone.

use super::{Worker, Workload};
use crate::error::{Error, Result};
use crate::row::{self, Random, Row};
use crate::store::Session;
use std::sync::atomic::Ordering;

/// How unequal the rows are.
const SKEW: f64 = 0.99;
/// Longest scan, in rows.
const SCAN_ROWS_MAX: u64 = 100;

/// Ranks below a number, the small ones more often.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ranks {
    count: u64,
}

impl Ranks {
    pub fn below(count: u64) -> Ranks {
        Ranks { count }
    }

    /// A rank. The sums of `1 / (r + 1) ^ SKEW` are taken as the integral of `1 / x ^ SKEW` from 1
    /// to `r + 1`, which is inverted here.
    pub fn draw(self, random: &mut Random) -> u64 {
        let power = 1.0 - SKEW;
        // 53 bits are what a float has.
        let uniform = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let all = ((self.count + 1) as f64).powf(power) - 1.0;
        let rank = (1.0 + uniform * all).powf(1.0 / power) - 1.0;
        (rank as u64).min(self.count - 1)
    }
}

/// Spreads ranks over the numbers below `count`: neighbours go far from each other.
fn spread(rank: u64, count: u64) -> u64 {
    Random::new(rank).below(count)
}

impl Worker<'_> {
    /// One operation of a mix.
    pub(super) fn ycsb(&mut self, mix: Workload, session: &mut dyn Session) -> Result<()> {
        let percent = self.random.below(100);
        match mix {
            Workload::YcsbA if percent < 50 => self.read_skewed(session),
            Workload::YcsbA => self.update_skewed(session),
            Workload::YcsbB if percent < 95 => self.read_skewed(session),
            Workload::YcsbB => self.update_skewed(session),
            Workload::YcsbC => self.read_skewed(session),
            Workload::YcsbD if percent < 95 => self.read_newest(session),
            Workload::YcsbE if percent < 95 => self.scan_skewed(session),
            Workload::YcsbD | Workload::YcsbE => self.insert_next(session),
            Workload::YcsbF if percent < 50 => self.read_skewed(session),
            Workload::YcsbF => self.read_and_update(session),
            _ => unreachable!("it is none of the six"),
        }
    }

    fn any_skewed(&mut self, count: u64) -> u64 {
        spread(Ranks::below(count).draw(&mut self.random), count)
    }

    fn read_number(&mut self, session: &mut dyn Session, number: u64) -> Result<u64> {
        let found = session.get(&number.to_be_bytes(), &mut self.value)?;
        self.check(number, found)
    }

    fn read_skewed(&mut self, session: &mut dyn Session) -> Result<()> {
        let number = self.any_skewed(self.task.rows);
        self.read_number(session, number).map(drop)
    }

    /// A row that is this thread's.
    fn own_skewed(&mut self) -> u64 {
        self.any_skewed(self.task.rows / self.threads) * self.threads + self.thread
    }

    fn update_skewed(&mut self, session: &mut dyn Session) -> Result<()> {
        let row = self.own_skewed();
        let row = self.next_version(row);
        session.update(&[row])
    }

    fn read_and_update(&mut self, session: &mut dyn Session) -> Result<()> {
        let number = self.own_skewed();
        self.read_number(session, number)?;
        let row = self.next_version(number);
        session.update(&[row])
    }

    /// Reads a row, the newest most often: those that this thread has inserted, then those that
    /// were loaded. Another thread's last row may not be there yet.
    fn read_newest(&mut self, session: &mut dyn Session) -> Result<()> {
        let own = self.inserted.len() as u64;
        let rank = Ranks::below(own + self.task.rows).draw(&mut self.random);
        let number = match rank.checked_sub(own) {
            None => self.inserted[(own - 1 - rank) as usize],
            Some(loaded) => self.task.rows - 1 - loaded,
        };
        self.read_number(session, number).map(drop)
    }

    fn insert_next(&mut self, session: &mut dyn Session) -> Result<()> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let row = self.next_version(number);
        session.insert(&[row])?;
        self.inserted.push(number);
        Ok(())
    }

    fn scan_skewed(&mut self, session: &mut dyn Session) -> Result<()> {
        let rows = 1 + self.random.below(SCAN_ROWS_MAX);
        let first = self.any_skewed(self.task.rows - rows + 1);
        let (mut next, value_bytes) = (first, self.task.value_bytes);
        session.scan(&first.to_be_bytes(), rows as usize, &mut |key, value| {
            if key != next.to_be_bytes() {
                return Err(Error::WrongData(format!("key {key:?} where row {next} should be")));
            }
            row::check(next, value, value_bytes)?;
            next += 1;
            Ok(())
        })?;
        if next != first + rows {
            return Err(Error::WrongData(format!("a scan from row {first} ended before {next}")));
        }
        self.checked_rows += rows;
        Ok(())
    }

    /// A version of the row that was not written before.
    fn next_version(&mut self, number: u64) -> Row {
        self.versions += 1;
        self.remember(number);
        Row::new(number, self.versions, self.task.value_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ranks_are_drawn_more_often() {
        let (ranks, mut random) = (Ranks::below(1000), Random::new(1));
        let mut drawn = vec![0_u32; 1000];
        for _ in 0..100_000 {
            drawn[ranks.draw(&mut random) as usize] += 1;
        }
        // A rank's share is about ln((r + 2) / (r + 1)) / ln(1001).
        let share = |from: usize, to: usize| drawn[from..to].iter().sum::<u32>() as f64 / 1e5;
        assert!((share(0, 1) - 0.1).abs() < 0.02, "{}", share(0, 1));
        assert!((share(0, 31) - 0.5).abs() < 0.03, "{}", share(0, 31));
        assert!(drawn[999] < 100);
    }

    #[test]
    fn ranks_stay_below_the_end() {
        let mut random = Random::new(1);
        for count in [1, 2, 7] {
            assert!((0..1000).all(|_| Ranks::below(count).draw(&mut random) < count));
        }
    }
}
