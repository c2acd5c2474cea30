//! What the engine's memory goes to: [`MemoryReport`].
//!
//! Everything that grows is counted. What is not the pool's frames needs no separate limit, since
//! the governor sizes the pool by what is left, of the machine or of a memory budget: a lock table
//! of a gibibyte is a gibibyte that the pool gives back. So a bound is given where there is one,
//! and none is made up.

use std::fmt;
use tidepool_pool::Pool;

/// One thing that memory goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryRow {
    /// What the memory is used for, as `information_schema.TIDEPOOL_MEMORY` names it.
    pub name: &'static str,
    /// Bytes now; of arrays that the kernel backs as they are touched, those touched.
    pub bytes: u64,
    /// The most it can come to as things are, if there is such a number.
    pub bound_bytes: Option<u64>,
}

/// What memory goes to, a row a thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// The rows, the pool's frames first.
    pub rows: Vec<MemoryRow>,
    /// Resident bytes of the whole process, if they could be read. What the rows don't explain is
    /// the program's that the engine runs in: a server's threads, sort buffers, caches.
    pub process_bytes: Option<u64>,
}

impl MemoryReport {
    /// The pool's rows, and those of what lies above it.
    pub(crate) fn new(
        pool: &Pool,
        above_pool: impl Iterator<Item = MemoryRow>,
        process_bytes: Option<u64>,
    ) -> MemoryReport {
        let pool_rows = pool.memory().into_iter().map(|used| MemoryRow {
            name: used.name,
            bytes: used.bytes,
            bound_bytes: used.bound_bytes,
        });
        MemoryReport { rows: pool_rows.chain(above_pool).collect(), process_bytes }
    }

    /// Bytes of all rows.
    pub fn total_bytes(&self) -> u64 {
        self.rows.iter().map(|row| row.bytes).sum()
    }

    /// Bytes of one row.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.rows.iter().find(|row| row.name == name).map(|row| row.bytes)
    }

    /// Bytes of the process that no row explains.
    pub fn rest_bytes(&self) -> Option<u64> {
        Some(self.process_bytes?.saturating_sub(self.total_bytes()))
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            write!(f, "{:<24} {:>14}", row.name, row.bytes)?;
            match row.bound_bytes {
                Some(bound) => writeln!(f, " of at most {bound}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
