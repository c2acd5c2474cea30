//! An open table: its space, its trees, its counters, and who uses it.
//!
//! # Use
//! A transaction *enters* a table before its first operation on it and leaves at its end
//! (`presence`). DROP and TRUNCATE close the entrance only while no transaction is inside, and
//! refuse otherwise: a transaction's undo records, locks and snapshot must find the table to the
//! end. Short work outside of transactions (estimates, statistics, CHECK) passes a gate instead
//! (`Table::visit`), for which DROP waits.
//!
//! While its indexes are changed, a table refuses writes or logs them: `writes`.
//!
//! # Older snapshots
//! A table that was made, emptied or filled by a copy and then given its name has no versions from
//! before. A snapshot from before would find it empty, and say so as if it were true. So a table
//! knows since when it is what it is, and reads by an older snapshot are refused. Likewise an index
//! that was added: it has the rows as they were then, and no versions from before.
//!
//! # Counters
//! - Auto-increment: `auto_increment`.
//! - Row ids: `row_ids`.
//! - Rows: counted in memory as transactions insert and delete, written to the space header at a
//!   clean shutdown; after a crash estimated anew from the tree. An estimate for the optimizer,
//!   never an answer to a query.

mod check;
mod entrance;
pub(crate) mod presence;
pub(crate) mod provisional_trees;
mod row_count;
mod row_ids;
mod statistics;
mod writes;

pub use check::{CheckProgress, CheckReport, IndexCheck};
pub(crate) use row_count::Rest;
pub use statistics::{FileUsage, IndexStatistics, Sampled, TableStatistics};
pub(crate) use writes::WriteNote;

use crate::btree::max_key_len;
use crate::catalog::{TableDef, TableRecord};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::format::space_header;
use crate::format::space_header::{ROW_COUNT_AT, SpaceHeader};
use crate::mtr::Mtr;
use crate::page_op::PageOp;
use crate::space::AutoIncrement;
use crate::trx::Csn;
use crate::versioned::VersionedTree;
use entrance::Entrance;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use row_count::RowCount;
use row_ids::RowIds;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidepool_pool::Space;
use writes::Writes;

/// An open table. All of its indexes are ordered maps from byte keys to byte values; what the bytes
/// mean, and that the indexes of a row are kept in step, is the business of the layer above.
pub struct Table {
    env: Arc<Env>,
    space: Arc<Space>,
    id: u64,
    name: RwLock<String>,
    def: TableDef,
    trees: Vec<VersionedTree>,
    auto_increment: AutoIncrement,
    row_ids: RowIds,
    rows: RowCount,
    /// The last commit before it got its content or its name; 0: before this process began.
    since: AtomicU64,
    /// The same of each index.
    index_since: Vec<AtomicU64>,
    writes: Writes,
    /// When a commit last changed rows, in seconds since 1970; 0: not in this life of the engine.
    changed_at: AtomicU64,
    /// See [`Table::set_temporary`].
    temporary: AtomicBool,
    /// See [`Error::TableDiscarded`]; with the next rows comes another `Table`.
    is_discarded: bool,
    entrance: Entrance,
    gate: RwLock<()>,
}

impl Table {
    /// Position of the clustered index.
    pub const CLUSTERED: usize = 0;

    /// Opens the trees that `record` names in `space`, whose header has been checked.
    pub(crate) fn open(
        env: &Arc<Env>,
        space: &Arc<Space>,
        name: &str,
        record: &TableRecord,
        header: &SpaceHeader,
    ) -> Self {
        let trees = record.trees.iter().enumerate();
        let trees = trees
            .map(|(index, tree)| VersionedTree::open(env, space, tree.root, tree.tree, index))
            .collect();
        Self {
            env: env.clone(),
            space: space.clone(),
            id: record.id,
            name: RwLock::new(name.into()),
            def: record.def.clone(),
            trees,
            auto_increment: AutoIncrement::new(header.auto_increment),
            row_ids: RowIds::new(),
            rows: RowCount::new(header),
            since: AtomicU64::new(0),
            index_since: record.trees.iter().map(|_| AtomicU64::new(0)).collect(),
            writes: Writes::new(),
            changed_at: AtomicU64::new(0),
            temporary: AtomicBool::new(false),
            is_discarded: record.is_discarded,
            entrance: Entrance::new(),
            gate: RwLock::new(()),
        }
    }

    /// Its name; follows a rename.
    pub fn name(&self) -> String {
        self.name.read().clone()
    }

    pub(crate) fn set_name(&self, name: &str) {
        *self.name.write() = name.into();
    }

    /// Notes that it is what it is since the commit `since`.
    pub(crate) fn set_since(&self, since: Csn) {
        self.since.fetch_max(since.0, Ordering::Release);
    }

    /// Says that it is of one session alone, which may well have made it after it took its
    /// snapshot: it is read by any.
    pub fn set_temporary(&self) {
        self.temporary.store(true, Ordering::Relaxed);
    }

    /// Notes that an index has its entries since the commit `since`.
    pub(crate) fn set_index_since(&self, index: usize, since: Csn) {
        self.index_since[index].fetch_max(since.0, Ordering::Release);
    }

    /// Takes over what `old` has come to know: the same table, with other indexes. `from` says
    /// which index of the old one each of this one is.
    pub(crate) fn succeed(&self, old: &Table, from: &[Option<usize>]) {
        self.set_since(Csn(old.since.load(Ordering::Acquire)));
        for (index, from) in from.iter().enumerate() {
            if let Some(from) = from {
                let since = old.index_since[*from].load(Ordering::Acquire);
                self.set_index_since(index, Csn(since));
            }
        }
        self.temporary.store(old.temporary.load(Ordering::Relaxed), Ordering::Relaxed);
        self.changed_at.store(old.changed_at.load(Ordering::Relaxed), Ordering::Relaxed);
        self.rows.succeed(&old.rows);
        self.row_ids.succeed(&old.row_ids);
    }

    /// [`Error::TableChanged`] if a snapshot that sees commits up to `snapshot` is older than the
    /// table, or this index, as it is.
    pub(crate) fn check_snapshot(&self, index: usize, snapshot: Csn) -> Result<()> {
        let (table, index) = (&self.since, &self.index_since[index]);
        let since = table.load(Ordering::Acquire).max(index.load(Ordering::Acquire));
        match snapshot.0 < since && !self.temporary.load(Ordering::Relaxed) {
            true => Err(Error::TableChanged(self.name())),
            false => Ok(()),
        }
    }

    /// Its definition, with the metadata as they were when the table was opened.
    pub fn def(&self) -> &TableDef {
        &self.def
    }

    /// Its id: never reused, and kept by TRUNCATE.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number of its space.
    pub fn space_id(&self) -> u32 {
        self.space.id()
    }

    /// When a commit last changed its rows, to the second. `None` if none has since the engine was
    /// opened: nothing on the disk says it.
    pub fn changed_at(&self) -> Option<SystemTime> {
        let seconds = self.changed_at.load(Ordering::Relaxed);
        (seconds > 0).then(|| UNIX_EPOCH + Duration::from_secs(seconds))
    }

    /// A commit has changed its rows.
    pub(crate) fn note_change(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        // All who commit here share the word: most only read it.
        if self.changed_at.load(Ordering::Relaxed) != now {
            self.changed_at.store(now, Ordering::Relaxed);
        }
    }

    /// Number of indexes, the clustered one included.
    pub fn index_count(&self) -> usize {
        self.trees.len()
    }

    /// An error if there is no index at this position.
    #[inline]
    pub(crate) fn check_has_index(&self, index: usize) -> Result<()> {
        match index < self.trees.len() {
            true => Ok(()),
            false => Err(Error::NoIndex { table: self.name(), index, count: self.trees.len() }),
        }
    }

    /// Longest key that an index takes, in bytes.
    pub fn key_len_max(&self) -> usize {
        max_key_len(self.env.page_size())
    }

    /// Longest value that an index keeps in its entry whatever the key, in bytes; what is longer
    /// may go to separate pages.
    pub fn value_len_inline_max(&self) -> usize {
        self.trees[Self::CLUSTERED].inline_max(self.key_len_max())
    }

    pub(crate) fn tree(&self, index: usize) -> &VersionedTree {
        &self.trees[index]
    }

    /// Whether its trees are those that the catalog's record lists.
    pub(crate) fn has_trees_of(&self, record: &TableRecord) -> bool {
        let own = self.trees.iter().map(|tree| tree.tree().id());
        self.space_id() == record.space && own.eq(record.trees.iter().map(|tree| tree.tree))
    }

    /// Whether it is of this environment's database.
    pub(crate) fn is_of(&self, env: &Arc<Env>) -> bool {
        Arc::ptr_eq(&self.env, env)
    }

    /// The next auto-increment value; 1 on a new table.
    pub fn auto_increment(&self) -> u64 {
        self.auto_increment.next()
    }

    /// The counter, for an insert that raises it.
    pub(crate) fn auto_increment_counter(&self) -> &AutoIncrement {
        &self.auto_increment
    }

    /// Takes `n` auto-increment values, and returns the first. They are used up, whatever becomes
    /// of the transaction that uses them. After a crash up to 127 values are skipped. Once the
    /// range is at its end, [`u64::MAX`], that value is returned again and again.
    pub fn reserve_auto_increment(&self, n: u64) -> Result<u64> {
        let _inside = self.visit()?;
        self.auto_increment.reserve(&self.env, &self.space, n)
    }

    /// Makes the next auto-increment value at least `next`, until the table is opened anew: then it
    /// follows those that rows were inserted with ([`NewRow`](crate::NewRow)).
    pub fn expect_auto_increment(&self, next: u64) {
        self.auto_increment.expect(next);
    }

    /// Makes the next auto-increment value at least `next`.
    pub fn raise_auto_increment(&self, next: u64) -> Result<()> {
        let _inside = self.visit()?;
        self.auto_increment.raise(&self.env, &self.space, next)
    }

    /// Makes the next auto-increment value `next`, even if that is lower than before. Durable on
    /// return: it is what a statement asked for, not what rows need whose own commit makes it
    /// durable.
    pub fn reset_auto_increment(&self, next: u64) -> Result<()> {
        let inside = self.visit()?;
        let lsn = self.auto_increment.reset(&self.env, &self.space, next)?;
        drop(inside);
        // Without the counter's mutex: who takes values meanwhile need not wait for the disk.
        self.env.redo().flush_to(lsn)
    }

    /// Writes the exact counters to the space header, for an opening in this life.
    pub(crate) fn settle(&self) -> Result<()> {
        let Ok(_inside) = self.visit() else { return Ok(()) };
        self.auto_increment.settle(&self.env, &self.space)?;
        if space_header::read(self.env.pool(), &self.space)?.row_count != self.rows() {
            self.persist_rows()?;
        }
        Ok(())
    }

    fn persist_rows(&self) -> Result<()> {
        let mut mtr = Mtr::begin(&self.env)?;
        let header = mtr.exclusive(&self.space, 0)?;
        let bytes = self.rows().to_le_bytes();
        mtr.apply(header, &PageOp::Write { offset: ROW_COUNT_AT as u32, bytes: &bytes });
        mtr.commit();
        Ok(())
    }

    /// Whether its rows were discarded ([`Db::discard_table`](crate::Db::discard_table)): no
    /// transaction uses it.
    pub fn is_discarded(&self) -> bool {
        self.is_discarded
    }

    /// [`Error::TableDiscarded`] if it is.
    pub(crate) fn check_not_discarded(&self) -> Result<()> {
        match self.is_discarded {
            true => Err(Error::TableDiscarded(self.name())),
            false => Ok(()),
        }
    }

    /// The space that holds its trees.
    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Passes the gate for as long as the result lives. Not for transactions: a DROP waits for it.
    pub(crate) fn visit(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let inside = self.gate.read();
        self.check_there()?;
        Ok(inside)
    }

    /// Waits until no transaction is past the gate, and closes it while the result lives.
    pub(crate) fn clear(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("name", &self.name())
            .field("space", &self.space_id())
            .finish()
    }
}
