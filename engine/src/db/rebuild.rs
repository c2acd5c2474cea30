//! A table is filled anew, in another file, while others read and write it.
//!
//! It is an [`IndexChange`] all of whose indexes are new, the clustered one included, and in a file
//! that no other thread sees:
//! ```text
//! begin     the table logs which rows are written; pending → file → empty trees, as for CREATE
//! rows      of a snapshot: the caller gives the rows and entries of the new table for each
//! build     what was not in order is sorted; the new trees are filled
//! rounds    rows written since ([`catch_up`](super::catch_up)), those of the clustered tree too
//! commit    the old space is pending → catalog commit: the table has the new file → the old one
//!           is removed
//! ```
//! What a crash leaves before the catalog's commit is the table as it was, after it the new one;
//! and a file that belongs to neither, which the log names, and the next opening removes
//! (`definition`).
//!
//! # The caller's part
//! A row of the old table may become a row of another key and other columns. What becomes of it
//! must depend on that row alone: a round asks for it again, and takes out what it was.
//!
//! # Long values
//! They go to their chains when they are given, as in a [load](super::TableLoad), and a round that
//! takes one out frees its chain.
//!
//! # Counters, older snapshots
//! The auto-increment value, the row ids and the count of rows go on. The new table has no versions
//! from before: a snapshot older than the commit is refused ([`Error::TableChanged`]), whichever
//! index it reads by.
//!
//! # Close
//! A close of the database does not wait for a rebuild: it takes the new file away, as a load's,
//! and each call that writes to that sees it before it begins.

use super::index_change::{IndexChange, LOG_MEMORY_BYTES, NewIndex, tree_file};
use super::{Db, Inner};
use crate::btree::Loader;
use crate::catalog::{TableDef, TableRecord};
use crate::error::{Error, Result};
use crate::format::space_header;
use crate::table::Table;
use crate::versioned::VersionedTree;
use parking_lot::RwLockReadGuard;
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Rows between two looks at whether the log has room for others.
const ROWS_A_TURN: u64 = 1000;

/// What a rebuilt table becomes.
pub(super) struct Rebuild {
    /// In its new file.
    pub table: Arc<Table>,
    /// Fills the clustered tree, if rows come in its order.
    loader: Option<Loader>,
    /// Rows that came so.
    rows: u64,
}

impl Db {
    /// Begins to rebuild a table as `def` says: with these indexes, in a new file, of this
    /// compression and encryption. The rows come as for [`change_indexes`](Self::change_indexes);
    /// the caller gives a row, by [`IndexChange::push_row`] or [`IndexChange::add`] at position 0,
    /// and the entries of the other indexes for each. Until the commit, transactions read the table
    /// as it is, and write it until [`IndexChange::stop_writes`].
    ///
    /// Errors as for [`change_indexes`](Self::change_indexes).
    pub fn rebuild_table(&self, name: &str, def: &TableDef) -> Result<IndexChange> {
        def.validate()?;
        let inner = &self.inner;
        let turn = inner.begin_definition(&[name])?;
        let old = inner.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        if inner.is_used_by_recovered(old.space) {
            return Err(Error::TableBusy(name.into()));
        }
        let table = inner.open_in_definition(name)?;
        table.check_not_discarded()?;
        // Its file is named after a tree whose entries are never sorted here.
        let log = format!("{}-0", tree_file(old.trees[Table::CLUSTERED].tree));
        let log = inner.sorter(&log, LOG_MEMORY_BYTES);
        table.log_writes(&inner.presences, log, Duration::ZERO)?;
        let made = inner.new_space(def);
        let (space, header, mut record) = made.inspect_err(|_| table.take_writes())?;
        record.id = old.id;
        let next = Arc::new(Table::open(&inner.env, &space, name, &record, &header));
        inner.tables.lock().begin_load(name, &next);

        // From here on its end tidies up.
        let share = inner.sort_share_bytes(record.trees.len());
        let new = record.trees.iter().enumerate().map(|(index, tree)| NewIndex {
            index,
            tree: VersionedTree::open(&inner.env, &space, tree.root, tree.tree, index),
            sorter: Some(inner.sorter(&tree_file(tree.tree), share)),
            is_built: false,
        });
        let new = new.collect();
        let rebuild = Rebuild { table: next, loader: None, rows: 0 };
        let mut change = IndexChange::of_rebuild(inner, name, table, record, rebuild);
        change.new = new;
        drop(turn);
        change.open_snapshot();
        Ok(change)
    }
}

impl IndexChange {
    /// Adds a row to a table that is [rebuilt](Db::rebuild_table), whose key is greater than those
    /// of all before: it goes to its leaf at once. A table gets all its rows so, or all by
    /// [`add`](Self::add).
    ///
    /// [`Error::KeyOutOfOrder`] of a key that is not greater. After an error there is nothing to be
    /// done but to drop the change.
    pub fn push_row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let index = Table::CLUSTERED;
        let max = self.table.key_len_max();
        if key.len() > max {
            return Err(Error::KeyTooLong { len: key.len(), max });
        }
        let Some(rebuild) = &mut self.rebuild else {
            let why = "the rows of a table that is not rebuilt stay where they are";
            return Err(Error::InvalidOption(why.into()));
        };
        let Some(new) = self.new.first_mut().filter(|new| !new.is_built) else {
            return Err(Error::NotFound);
        };
        if rebuild.rows.is_multiple_of(ROWS_A_TURN) {
            self.inner.env.give_way_in_log();
        }
        rebuild.rows += 1;
        let _inside = enter(&self.inner, &rebuild.table)?;
        new.sorter = None;
        let loader = rebuild.loader.get_or_insert_with(|| Loader::new(new.tree.tree()));
        if let Some((newest, _)) = loader.newest()
            && newest.cmp(key) != Ordering::Less
        {
            return Err(Error::KeyOutOfOrder { index });
        }
        self.payload.clear();
        new.tree.settled_payload(key.len(), value, &mut self.payload)?;
        loader.push(key, &self.payload)
    }

    /// Writes the rest of rows that came in order.
    pub(super) fn finish_rows(&mut self) -> Result<()> {
        let Some(loader) = self.rebuild.as_mut().and_then(|rebuild| rebuild.loader.take()) else {
            return Ok(());
        };
        loader.finish()?;
        self.new[Table::CLUSTERED].is_built = true;
        Ok(())
    }
}

/// An error if the database is closed. Until the result is dropped, no thread closes it.
pub(super) fn enter<'t>(inner: &Inner, table: &'t Table) -> Result<RwLockReadGuard<'t, ()>> {
    let inside = table.visit();
    inner.check_writable()?;
    inside
}

impl Inner {
    /// The table in its new file, with the counters of the old one, whose entrance is closed and
    /// which no thread visits.
    pub(super) fn table_rebuilt(
        &self,
        name: &str,
        old: &Table,
        rebuild: &Rebuild,
        record: &TableRecord,
    ) -> Result<Arc<Table>> {
        let next = &rebuild.table;
        next.raise_auto_increment(old.auto_increment())?;
        next.succeed(old, &[]);
        next.settle()?;
        let space = self.env.space(record.space)?;
        let header = space_header::read(self.env.pool(), &space)?;
        Ok(Arc::new(Table::open(&self.env, &space, name, record, &header)))
    }
}
