//! Writes of many entries at once.
//!
//! A write of a row whose leaf is not in the buffer pool waits for a read. One row after the other,
//! each at a random place of a table that is larger than the pool, each waits for its own read, and
//! the disk has one to do at a time. Here the keys are known before: they are sorted, so that each
//! leaf is read once, and the leaves that come next are asked for together while the rows before
//! are written.
//!
//! Invariant: at most [`LEAVES_MAX`] leaves, and of a large pool one frame in [`POOL_SHARE`], are
//! asked for and not yet written to. More would push each other out of the pool: with a 16th of a
//! pool of 20 MiB, a fifth of the leaves left it again before the write came to them.

use std::sync::Arc;

use super::Transaction;
use crate::error::Result;
use crate::lock::LockMode;
use crate::table::Table;

/// Leaves asked for in advance, of a small pool and of a large one.
const LEAVES_MIN: u64 = 8;
const LEAVES_MAX: u64 = 256;
/// One frame in this number may hold a leaf that was asked for and is not written to yet.
const POOL_SHARE: u64 = 128;

impl Transaction {
    /// Inserts entries of an index, which may come in any order; all or none of them. It is the
    /// faster way to write many to a table that is larger than the memory.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// let rows = [("lemon", "yellow"), ("apple", "red")];
    /// db.write(|trx| trx.insert_many(&fruit, 0, &rows))?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::insert`], and [`Error::DuplicateKey`](crate::Error::DuplicateKey) if a
    /// key comes twice. None of the entries is inserted then.
    pub fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        table: &Arc<Table>,
        index: usize,
        entries: &[(K, V)],
    ) -> Result<()> {
        self.write_in_order(table, index, entries, |trx, key, value| {
            trx.insert_or_lock(table, index, key, value, LockMode::Shared)
        })
    }

    /// Gives keys values, as [`Transaction::put`] does, of many at once; all or none of them. Of a
    /// key that comes twice the last value counts.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = tidepool::Db::open(dir.path(), tidepool::Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &tidepool::TableDef::map())?;
    /// let rows = [("lemon", "green"), ("apple", "red"), ("lemon", "yellow")];
    /// db.write(|trx| trx.put_many(&fruit, &rows))?;
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::put`]. None of the values is changed then.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        table: &Arc<Table>,
        entries: &[(K, V)],
    ) -> Result<()> {
        self.write_in_order(table, Table::CLUSTERED, entries, |trx, key, value| {
            trx.put(table, key, value)
        })
    }

    /// Calls `write` with each entry, in the order of their keys; equal ones in the order given.
    fn write_in_order<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        table: &Arc<Table>,
        index: usize,
        entries: &[(K, V)],
        mut write: impl FnMut(&mut Transaction, &[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        table.check_has_index(index)?;
        let mut order: Vec<usize> = (0..entries.len()).collect();
        let key = |at: usize| entries[at].0.as_ref();
        order.sort_by(|a, b| key(*a).cmp(key(*b)));
        self.all_or_nothing(|trx| {
            let mut ahead = ReadAhead::new(table, index);
            for (n, &at) in order.iter().enumerate() {
                ahead.keep_up(n, |n| order.get(n).map(|&at| key(at)));
                write(trx, key(at), entries[at].1.as_ref())?;
            }
            Ok(())
        })
    }

    /// Calls `write`. If it fails, all that it has written is undone.
    pub(crate) fn all_or_nothing<T>(
        &mut self,
        write: impl FnOnce(&mut Transaction) -> Result<T>,
    ) -> Result<T> {
        let savepoint = self.savepoint();
        let result = write(self);
        // After some errors all of the transaction is about to be undone.
        if result.is_err() && !self.must_rollback() && self.has_written_since(&savepoint) {
            self.rollback_to(savepoint)?;
        }
        result
    }
}

/// Keeps leaves coming for keys that are visited in their order.
struct ReadAhead<'t> {
    table: &'t Table,
    index: usize,
    /// Leaves asked for at a time.
    leaves: usize,
    /// The leaves of keys before this one have been asked for.
    asked_to: usize,
    /// When the visit comes to this key, where those begin that were asked for last, it is time to
    /// ask for more.
    next_at: usize,
}

impl<'t> ReadAhead<'t> {
    fn new(table: &'t Table, index: usize) -> Self {
        let pool = table.tree(index).tree().env().pool();
        let frames = pool.size_limit_bytes() / pool.page_size().bytes() as u64;
        // Half of what may be under way: one half is written to while the other is read.
        let leaves = (frames / POOL_SHARE).clamp(LEAVES_MIN, LEAVES_MAX) as usize / 2;
        ReadAhead { table, index, leaves, asked_to: 0, next_at: 0 }
    }

    /// The visit has come to key `n`.
    fn keep_up<'k>(&mut self, n: usize, key: impl Fn(usize) -> Option<&'k [u8]>) {
        while n >= self.next_at {
            let keys = (self.asked_to..).map_while(&key);
            let tree = self.table.tree(self.index).tree();
            let asked = tree.prefetch_leaves(keys, self.leaves).unwrap_or_else(|error| {
                // It is an error when the write comes to that page, if it does.
                tracing::debug!(%error, "leaves cannot be read ahead");
                0
            });
            self.next_at = if asked == 0 { usize::MAX } else { self.asked_to };
            self.asked_to += asked;
        }
    }
}
