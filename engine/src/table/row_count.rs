//! How many rows a table has: counted by commits, kept in the table's header over a clean close,
//! estimated after a crash.
//!
//! Whether the header's count can be relied on is said there ([`ROWS_SETTLED`]), and not by how the
//! engine was closed last: a table that is not opened between a crash and a clean close is as the
//! crash has left it. The first write of a life takes the flag back. That precedes the write in the
//! log, so a recovery that finds the write after a crash finds the flag gone. A clean close sets
//! it, together with the count.
//!
//! A transaction adds its rows when it has committed. So one that is rolled back, be it by a later
//! life, is not in the count. It is in an estimate, which is made of the entries that are there: an
//! estimate is made anew when the table is closed, and settled only if no rollback of an earlier
//! life and no purge is left that would change it.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use super::Table;
use crate::error::Result;
use crate::format::space_header::{self, FLAGS_AT, ROW_COUNT_AT, ROWS_SETTLED, SpaceHeader};
use crate::mtr::Mtr;
use crate::page_op::PageOp;

/// A table's row count in memory.
#[derive(Debug)]
pub(super) struct RowCount {
    rows: AtomicI64,
    /// The header says that its count is settled.
    is_settled: AtomicBool,
    /// It is from a sample, and what commits have added since.
    is_estimate: AtomicBool,
}

impl RowCount {
    pub fn new(header: &SpaceHeader) -> RowCount {
        RowCount {
            rows: AtomicI64::new(header.row_count.min(i64::MAX as u64) as i64),
            is_settled: AtomicBool::new(header.flags & ROWS_SETTLED != 0),
            is_estimate: AtomicBool::new(false),
        }
    }

    /// Goes on where `old` is, whose header this one's is.
    pub fn succeed(&self, old: &RowCount) {
        self.rows.store(old.rows.load(Ordering::Relaxed), Ordering::Relaxed);
        self.is_estimate.store(old.is_estimate.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Table {
    /// Number of rows: those of finished transactions, or an estimate of it
    /// ([`Table::has_estimated_rows`]).
    pub fn rows(&self) -> u64 {
        self.rows.rows.load(Ordering::Relaxed).max(0) as u64
    }

    /// Whether the number of rows goes back to an estimate, made after a crash.
    pub fn has_estimated_rows(&self) -> bool {
        self.rows.is_estimate.load(Ordering::Relaxed)
    }

    pub(crate) fn add_rows(&self, n: i64) {
        if n != 0 {
            self.rows.rows.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Takes the row count from a sample: after a crash, when the counted one is lost.
    pub(crate) fn estimate_rows(&self) -> Result<()> {
        let sampled = self.tree(Table::CLUSTERED).tree().statistics()?;
        self.take_estimate(sampled.entries);
        Ok(())
    }

    pub(super) fn take_estimate(&self, entries: u64) {
        self.rows.rows.store(entries.min(i64::MAX as u64) as i64, Ordering::Relaxed);
        self.rows.is_estimate.store(true, Ordering::Relaxed);
    }

    /// Whether the header has a count that can be relied on.
    pub(crate) fn has_settled_rows(&self) -> bool {
        self.rows.is_settled.load(Ordering::Acquire)
    }

    /// Rows are going to change: from here on the header's count is not to be relied on.
    #[inline]
    pub(crate) fn unsettle_rows(&self) -> Result<()> {
        if self.has_settled_rows() { self.take_flag_back() } else { Ok(()) }
    }

    #[cold]
    fn take_flag_back(&self) -> Result<()> {
        let mut mtr = Mtr::begin(&self.env)?;
        let header = mtr.exclusive(&self.space, 0)?;
        let flags = SpaceHeader::parse(mtr.page(header), self.space.name())?.flags;
        let flags = flags & !ROWS_SETTLED;
        mtr.apply(header, &PageOp::Write { offset: FLAGS_AT as u32, bytes: &flags.to_le_bytes() });
        mtr.commit();
        // Others who come to write before this do the same: none goes on before the flag is gone
        // from the log.
        self.rows.is_settled.store(false, Ordering::Release);
        Ok(())
    }

    /// At a clean close: the header gets the exact counters, and an estimate of the rows only if
    /// `rest` leaves it as it is.
    pub(crate) fn settle_for_good(&self, rest: Rest) -> Result<()> {
        self.settle()?;
        let Ok(_inside) = self.visit() else { return Ok(()) };
        if self.has_settled_rows() || self.has_estimated_rows() && rest == Rest::Pending {
            return Ok(());
        }
        if self.has_estimated_rows()
            && let Err(error) = self.estimate_rows()
        {
            // The next opening tries again, and reports.
            tracing::debug!(%error, "the rows of a table can't be estimated");
            return Ok(());
        }
        let mut mtr = Mtr::begin(&self.env)?;
        let header = mtr.exclusive(&self.space, 0)?;
        let flags = SpaceHeader::parse(mtr.page(header), self.space.name())?.flags;
        let (flags, rows) = ((flags | ROWS_SETTLED).to_le_bytes(), self.rows().to_le_bytes());
        mtr.apply(header, &PageOp::Write { offset: ROW_COUNT_AT as u32, bytes: &rows });
        mtr.apply(header, &PageOp::Write { offset: FLAGS_AT as u32, bytes: &flags });
        mtr.commit();
        self.rows.is_settled.store(true, Ordering::Release);
        debug_assert_eq!(
            space_header::read(self.env.pool(), &self.space).map(|header| header.row_count),
            Ok(self.rows())
        );
        Ok(())
    }
}

/// Whether rollbacks of an earlier life, or purge, have something left to do when the engine is
/// closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// They have.
    Pending,
    /// They have not.
    Done,
}
