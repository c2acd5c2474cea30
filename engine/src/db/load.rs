//! Tables that are filled before there is anybody who could see them.
//!
//! # Steps
//! ```text
//! begin     the name is taken; announced → file → empty trees, as for CREATE (`definition`)
//! entries   in the order of their keys: the leaves are written one behind the other; else they are sorted first
//! commit    what waits is written → catalog commit
//! ```
//! Until the catalog's commit there is no table, and what a crash leaves is a file that the log says is nobody's. So entries need no undo,
//! no locks and no versions of their own: each is written and logged once, settled, in a leaf that is filled to its end. From
//! the commit on the whole table is there, durably.
//!
//! A close of the database does not wait for a load: it takes the space away, and each call of the load sees that before it begins
//! (`enter`).
//!
//! A snapshot older than the commit does not get to see the table ([`Error::TableChanged`]), as with any that is new.

use super::{Db, Inner};
use crate::btree::Loader;
use crate::catalog::{TableDef, TableRecord};
use crate::error::{Error, Result};
use crate::sort::Sorter;
use crate::table::Table;
use crate::versioned::VersionedTree;
use parking_lot::RwLockReadGuard;
use std::cmp::Ordering;
use std::sync::Arc;

/// What is known of an index so far.
enum Filling {
    /// Nothing.
    Empty,
    /// Entries that came in order are in the tree, but for the last few.
    InOrder(Loader),
    /// Entries that came in any order wait to be sorted.
    Sorting(Sorter),
}

impl Filling {
    fn push(&mut self, key: &[u8], payload: &[u8]) -> Result<()> {
        match self {
            Filling::InOrder(loader) => loader.push(key, payload),
            Filling::Sorting(sorter) => sorter.push(key, payload),
            Filling::Empty => unreachable!("it has been begun"),
        }
    }
}

/// A table that is being filled, begun by [`Db::load_table`]. Dropped without [`commit`](Self::commit), it leaves nothing.
///
/// ```
/// # use tidepool::{Db, IndexDef, LockMode, LockWait, Options, TableDef, TrxOptions};
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = Db::open(dir.path(), Options::default())?;
/// let mut load = db.load_table("squares", &TableDef::new([IndexDef::unique("n")]))?;
/// for n in 0..10_000u64 {
///     load.push(0, &n.to_be_bytes(), &(n * n).to_be_bytes())?;
/// }
/// let squares = load.commit()?;
/// assert_eq!(squares.rows(), 10_000);
/// # Ok::<(), tidepool::Error>(())
/// ```
pub struct TableLoad {
    inner: Arc<Inner>,
    name: String,
    table: Arc<Table>,
    record: TableRecord,
    indexes: Vec<Filling>,
    rows: i64,
    payload: Vec<u8>,
    /// What went wrong: then there is nothing to be done but to drop it.
    failure: Option<Error>,
    /// An entry is on its way. Still so at the next call: a panic has lost it, and perhaps others.
    is_putting: bool,
    committed: bool,
}

impl Db {
    /// Begins to fill a new table, which nobody sees before [`TableLoad::commit`]: the fast way to bring many rows in, in one piece. An
    /// index gets its entries by [`TableLoad::push`], if they come in the order of their keys, or by [`TableLoad::add`]. Other tables may be
    /// used and changed meanwhile.
    ///
    /// [`Error::TableExists`] if there is one of this name, [`Error::TableBusy`] if somebody else is filling one.
    pub fn load_table(&self, name: &str, def: &TableDef) -> Result<TableLoad> {
        let inner = &self.inner;
        let (_turn, table, record) = inner.new_table(name, def)?;
        inner.tables.lock().begin_load(name, &table);
        Ok(TableLoad {
            inner: inner.clone(),
            name: name.into(),
            table,
            record,
            indexes: def.indexes.iter().map(|_| Filling::Empty).collect(),
            rows: 0,
            payload: Vec::new(),
            failure: None,
            is_putting: false,
            committed: false,
        })
    }
}

impl TableLoad {
    /// Adds an entry to an index, whose key is greater than all that the index has: it goes to its leaf at once. Takes the memory of a leaf.
    ///
    /// Of an equal key the error is [`Error::DuplicateKey`], with the value of the entry that is there, of a smaller one
    /// [`Error::KeyOutOfOrder`]. The load can go on after these, and after [`Error::KeyTooLong`] and [`Error::InvalidOption`] (an index that
    /// has got entries by `add`). After any other it is over.
    ///
    /// # Panics
    /// If the table has no such index.
    pub fn push(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(index, key, value, true)
    }

    /// Adds an entry to an index, in any order: all of them are sorted at the [`commit`](Self::commit), in a file if they are more than fit the
    /// memory that sorts may take. An index has all its entries by `push`, or all by this: else it is an [`Error::InvalidOption`]. The load
    /// can go on after that, and after [`Error::KeyTooLong`].
    ///
    /// # Panics
    /// If the table has no such index.
    pub fn add(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(index, key, value, false)
    }

    fn check_goes_on(&self) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        match self.is_putting {
            true => Err(Error::Storage(format!(
                "the load of the table {} has met an internal error: begin it anew",
                self.name
            ))),
            false => Ok(()),
        }
    }

    fn put(&mut self, index: usize, key: &[u8], value: &[u8], in_order: bool) -> Result<()> {
        self.check_goes_on()?;
        let _inside = enter(&self.inner, &self.table, key)?;
        let tree = self.table.tree(index);
        let filling = &mut self.indexes[index];
        if let Filling::Empty = filling {
            let memory = || self.inner.sort_share_bytes(self.record.trees.len());
            *filling = match in_order {
                true => Filling::InOrder(Loader::new(tree.tree())),
                false => Filling::Sorting(self.inner.sorter(tree.tree().id(), memory())),
            };
        }
        if in_order != matches!(filling, Filling::InOrder(_)) {
            return Err(Error::InvalidOption(format!(
                "index {index} of a table that is filled: its entries come by `push` or by `add`, not both"
            )));
        }
        if let Filling::InOrder(loader) = filling
            && let Some((newest, payload)) = loader.newest()
        {
            match key.cmp(newest) {
                Ordering::Greater => {}
                Ordering::Equal => {
                    let value = tree.value_of_settled(payload);
                    let value = value.inspect_err(|error| self.failure = Some(error.clone()))?;
                    return Err(Error::DuplicateKey { index, value });
                }
                Ordering::Less => return Err(Error::KeyOutOfOrder { index }),
            }
        }
        self.is_putting = true;
        // Long values go to their chains now: there is no memory for sorting them.
        let payload = &mut self.payload;
        payload.clear();
        let put = tree
            .settled_payload(key.len(), value, payload)
            .and_then(|()| filling.push(key, payload));
        self.is_putting = false;
        put.inspect_err(|error| self.failure = Some(error.clone()))?;
        self.rows += i64::from(index == Table::CLUSTERED);
        Ok(())
    }

    /// Makes it a table; durable on return. Two entries of one key, of those that were [added](Self::add), are an [`Error::DuplicateKey`] with
    /// the value of the one that came later. After an error there is no table.
    pub fn commit(mut self) -> Result<Arc<Table>> {
        self.check_goes_on()?;
        let inner = self.inner.clone();
        for (index, filling) in std::mem::take(&mut self.indexes).into_iter().enumerate() {
            let _inside = enter(&inner, &self.table, &[])?;
            match filling {
                Filling::Empty => {}
                Filling::InOrder(loader) => loader.finish()?,
                Filling::Sorting(sorter) => {
                    let tree = self.table.tree(index);
                    let mut go_on = || inner.check_writable();
                    if let Err((_, value)) = fill_sorted(tree, sorter, &mut go_on)? {
                        return Err(Error::DuplicateKey { index, value });
                    }
                }
            }
        }
        self.table.add_rows(self.rows);
        let names = std::slice::from_ref(&self.name);
        let _turn = inner.begin_definition_of_changes(names, &[])?;
        inner.list_table(&self.name, self.record.clone(), &self.table)?;
        self.committed = true;
        inner.tables.lock().end_load(&self.name);
        Ok(self.table.clone())
    }
}

/// An error if the database is closed, or there can't be an entry with this key. Until the result is dropped, nobody closes the database.
fn enter<'t>(inner: &Inner, table: &'t Table, key: &[u8]) -> Result<RwLockReadGuard<'t, ()>> {
    let inside = table.visit();
    inner.check_writable()?;
    let max = table.key_len_max();
    if key.len() > max {
        return Err(Error::KeyTooLong { len: key.len(), max });
    }
    inside
}

impl Inner {
    /// For the close: the loads under way come to nothing, and leave nothing.
    pub(super) fn abandon_loads(&self) {
        let loads = std::mem::take(&mut self.tables.lock().loading);
        for table in loads.into_values() {
            // Nobody has entered a table that nobody sees.
            if table.close_entrance().is_ok() {
                self.delete_space(table.space_id(), Some(&table));
            }
        }
    }
}

impl Drop for TableLoad {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        self.indexes.clear();
        let name = std::slice::from_ref(&self.name);
        // If nothing may be written any more, the load stays listed: a close that is on its way removes the file, or else the next opening does.
        if let Ok(_turn) = self.inner.begin_definition_of_changes(name, &[]) {
            self.inner.delete_space(self.record.space, Some(&self.table));
            self.inner.tables.lock().end_load(&self.name);
        }
    }
}

/// Entries between two looks at whether to go on.
const ENTRIES_A_TURN: u32 = 1000;

/// Fills an empty tree, which nobody else can see, with sorted payloads of settled entries. `go_on` is asked now and then, and ends it by an
/// error. Of two entries with the same key it gives the one that came later: its key and its value.
#[expect(clippy::type_complexity, reason = "a key and a value, in the one place")]
pub(super) fn fill_sorted(
    tree: &VersionedTree,
    sorter: Sorter,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<std::result::Result<(), (Vec<u8>, Vec<u8>)>> {
    let mut sorted = sorter.sorted(go_on)?;
    let mut loader = Loader::new(tree.tree());
    let (mut key, mut payload) = (Vec::new(), Vec::new());
    let mut turn = 0;
    while sorted.next(&mut key, &mut payload)? {
        if turn == 0 {
            go_on()?;
        }
        turn = (turn + 1) % ENTRIES_A_TURN;
        if loader.newest().is_some_and(|(newest, _)| newest == key) {
            let value = tree.value_of_settled(&payload)?;
            return Ok(Err((key, value)));
        }
        loader.push(&key, &payload)?;
    }
    loader.finish()?;
    Ok(Ok(()))
}
