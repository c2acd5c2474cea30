//! Tables that are filled before there is anybody who could see them.
//!
//! # Steps
//! ```text
//! begin     the name is taken; pending → file → empty trees, as for CREATE (`definition`)
//! entries   in the order of their keys: the leaves are written one behind the other; else they are sorted first
//! commit    what waits is written → catalog commit
//! ```
//! Until the catalog's commit there is no table, and what a crash leaves is a file that the log
//! says belongs to no transaction. So entries need no undo, no locks and no versions: each is
//! written and logged once, settled, in a leaf that is filled to its end. From the commit on the
//! whole table is there, durably.
//!
//! The auto-increment counter that the rows ask for is in the log before the catalog's commit, too:
//! with the table comes its counter.
//!
//! A close of the database does not wait for a load: it takes the space away, and each call of the
//! load sees that before it begins (`enter`).
//!
//! A snapshot older than the commit does not get to see the table ([`Error::TableChanged`]), as
//! with any that is new.
//!
//! # A table that is there, and empty
//! It gets a second file, filled in the same way, and the catalog's commit puts that in the place
//! of the first, as for TRUNCATE. What a crash leaves before is the empty table. A reader that sees
//! that does not learn of the change, so it is for a table that no other session knows yet: a
//! rename gives it its name then, and older snapshots are refused from there on. A table whose rows
//! were discarded is filled in this way, too (`export`): older snapshots are refused at once.

use super::index_change::tree_file;
use super::{Db, DuplicateEntry, Handle, Inner};
use crate::btree::Loader;
use crate::catalog::{TableDef, TableRecord};
use crate::error::{Error, Result};
use crate::pause::{self, PausePoint};
use crate::sort::Sorter;
use crate::table::Table;
use crate::trx::{Isolation, TransactionOptions};
use crate::versioned::ReadRequest;
use crate::versioned::VersionedTree;
use parking_lot::RwLockReadGuard;
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// What is known of an index so far.
enum Filling {
    /// Nothing.
    Empty,
    /// Entries that came in order are in the tree, except the last few.
    InOrder(Loader),
    /// Entries that came in any order wait to be sorted.
    Sorting(Sorter),
    Built,
}

impl Filling {
    fn push(&mut self, key: &[u8], payload: &[u8]) -> Result<()> {
        match self {
            Filling::InOrder(loader) => loader.push(key, payload),
            Filling::Sorting(sorter) => sorter.push(key, payload),
            Filling::Empty | Filling::Built => unreachable!("it has been begun, and not ended"),
        }
    }
}

/// A table that is being filled, begun by [`Db::load_table`] or [`Db::fill_table`]. Dropped without
/// [`commit`](Self::commit), it leaves nothing, or the empty table.
///
/// ```
/// # use tidepool::{Db, IndexDef, LockMode, LockWait, Options, TableDef, TransactionOptions};
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
    inner: Arc<Handle>,
    name: String,
    table: Arc<Table>,
    record: TableRecord,
    /// The empty table in whose place it comes.
    replaces: Option<Arc<Table>>,
    indexes: Vec<Filling>,
    rows: i64,
    payload: Vec<u8>,
    duplicate: Option<DuplicateEntry>,
    /// What went wrong: then there is nothing to be done but to drop it.
    failure: Option<Error>,
    /// An entry is on its way, or an index is built. Still so at the next call: a panic has lost
    /// the one, or left the other as it is.
    at_work: bool,
    committed: bool,
}

impl Db {
    /// Begins to fill a new table, which no session sees before [`TableLoad::commit`]: the fast way
    /// to bring many rows in, in one piece. An index gets its entries by [`TableLoad::push`], if
    /// they come in the order of their keys, or by [`TableLoad::add`]. Other tables may be used and
    /// changed meanwhile.
    ///
    /// [`Error::TableExists`] if there is one of this name, [`Error::TableBusy`] if somebody else
    /// is filling one.
    pub fn load_table(&self, name: &str, def: &TableDef) -> Result<TableLoad> {
        let (_turn, table, record) = self.inner.new_table(name, def)?;
        Ok(TableLoad::begin(&self.inner, name, table, record, None))
    }

    /// The same for a table that is there, without an entry and without anybody else who knows of
    /// it: any snapshot that sees the empty table sees the full one from the commit on. Until then
    /// it takes no writes ([`Error::TableBusy`]). Its counters go on; handles of it are void after
    /// the commit, the one that it returns is good.
    ///
    /// [`Error::TableMissing`] if there is none of this name, [`Error::TableBusy`] while a
    /// transaction that has used it is unfinished, [`Error::InvalidOption`] if it is not empty.
    ///
    /// [`Error::TableDiscarded`] if its rows were discarded: it waits for an
    /// [import](Self::import_table).
    pub fn fill_table(&self, name: &str) -> Result<TableLoad> {
        self.fill_table_of(name, |old| match old.is_discarded {
            true => Err(Error::TableDiscarded(name.into())),
            false => Ok(old.def.clone()),
        })
    }

    /// The same; the table gets the definition that `def_of` makes of what the catalog has.
    pub(super) fn fill_table_of(
        &self,
        name: &str,
        def_of: impl FnOnce(&TableRecord) -> Result<TableDef>,
    ) -> Result<TableLoad> {
        let inner = &self.inner;
        let _turn = inner.begin_definition(&[name])?;
        let old = inner.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        if inner.is_used_by_recovered(old.space) {
            return Err(Error::TableBusy(name.into()));
        }
        let def = def_of(&old)?;
        let replaces = inner.open_in_definition(name)?;
        replaces.stop_writes(&inner.presences, Duration::ZERO)?;
        // Now that it stays so.
        let made = check_empty(name, &replaces).and_then(|()| inner.new_space(&def));
        let (space, header, mut record) = made.inspect_err(|_| replaces.take_writes())?;
        record.id = old.id;
        let table = Arc::new(Table::open(&inner.env, &space, name, &record, &header));
        Ok(TableLoad::begin(inner, name, table, record, Some(replaces)))
    }
}

impl TableLoad {
    /// Within the turn of the definition change that has made the table.
    fn begin(
        inner: &Arc<Handle>,
        name: &str,
        table: Arc<Table>,
        record: TableRecord,
        replaces: Option<Arc<Table>>,
    ) -> Self {
        inner.tables.lock().begin_load(name, &table);
        Self {
            inner: inner.clone(),
            name: name.into(),
            indexes: record.trees.iter().map(|_| Filling::Empty).collect(),
            table,
            record,
            replaces,
            rows: 0,
            payload: Vec::new(),
            duplicate: None,
            failure: None,
            at_work: false,
            committed: false,
        }
    }

    /// Adds an entry to an index, whose key is greater than all that the index has: it goes to its
    /// leaf at once. Takes the memory of a leaf.
    ///
    /// Of an equal key the error is [`Error::DuplicateKey`], with the value of the entry that is
    /// there, of a smaller one [`Error::KeyOutOfOrder`]. The load can go on after these, and after
    /// [`Error::KeyTooLong`] and [`Error::InvalidOption`] (an index that has got entries by `add`).
    /// After any other it is over. [`Error::NoIndex`] if the table has no such index.
    pub fn push(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(index, key, value, true)
    }

    /// Adds an entry to an index, in any order: all of them are sorted at the
    /// [`commit`](Self::commit), in a file if they are more than fit the memory that sorts may
    /// take. An index has all its entries by `push`, or all by this: else it is an
    /// [`Error::InvalidOption`]. The load can go on after that, and after [`Error::KeyTooLong`].
    /// [`Error::NoIndex`] if the table has no such index.
    pub fn add(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        self.put(index, key, value, false)
    }

    fn check_goes_on(&self) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        match self.at_work {
            true => Err(Error::Storage(format!(
                "the load of the table {} has met an internal error: begin it anew",
                self.name
            ))),
            false => Ok(()),
        }
    }

    fn put(&mut self, index: usize, key: &[u8], value: &[u8], in_order: bool) -> Result<()> {
        self.check_goes_on()?;
        self.table.check_has_index(index)?;
        let _inside = enter(&self.inner, &self.table, key)?;
        let tree = self.table.tree(index);
        let filling = &mut self.indexes[index];
        if matches!(filling, Filling::Built) {
            return Err(Error::InvalidOption(format!(
                "index {index} of a table that is filled has been built: it takes no more entries"
            )));
        }
        if let Filling::Empty = filling {
            let memory = || self.inner.sort_share_bytes(self.record.trees.len());
            *filling = match in_order {
                true => Filling::InOrder(Loader::new(tree.tree())),
                false => {
                    Filling::Sorting(self.inner.sorter(&tree_file(tree.tree().id()), memory()))
                }
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
        self.at_work = true;
        // Long values go to their chains now: there is no memory for sorting them.
        let payload = &mut self.payload;
        payload.clear();
        let put = tree
            .settled_payload(key.len(), value, payload)
            .and_then(|()| filling.push(key, payload));
        self.at_work = false;
        put.inspect_err(|error| self.failure = Some(error.clone()))?;
        self.rows += i64::from(index == Table::CLUSTERED);
        Ok(())
    }

    /// Fills the indexes with what waits: no entries come after that. `go_on` is asked now and
    /// then; if it says no, the error is [`Error::Interrupted`]. Two entries of one key, of those
    /// that were [added](Self::add), are an [`Error::DuplicateKey`] with the value of the one that
    /// came later: see [`duplicate`](Self::duplicate). After an error there is nothing to be done
    /// but to drop it.
    pub fn build(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        self.check_goes_on()?;
        for index in 0..self.indexes.len() {
            let filling = std::mem::replace(&mut self.indexes[index], Filling::Built);
            self.at_work = true;
            let built = self.build_index(index, filling, go_on);
            self.at_work = false;
            built.inspect_err(|error| self.failure = Some(error.clone()))?;
        }
        Ok(())
    }

    fn build_index(
        &mut self,
        index: usize,
        filling: Filling,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let inner = &self.inner;
        let _inside = enter(inner, &self.table, &[])?;
        match filling {
            Filling::Empty | Filling::Built => Ok(()),
            Filling::InOrder(loader) => loader.finish(),
            Filling::Sorting(sorter) => {
                let mut go_on = || match go_on() {
                    true => inner.check_writable(),
                    false => Err(Error::Interrupted),
                };
                let filled = fill_sorted(self.table.tree(index), sorter, &mut go_on)?;
                filled.map_err(|(key, value)| {
                    self.duplicate = Some(DuplicateEntry { index, key, value: value.clone() });
                    Error::DuplicateKey { index, value }
                })
            }
        }
    }

    /// The entries that [`build`](Self::build) found to have the same key.
    pub fn duplicate(&self) -> Option<&DuplicateEntry> {
        self.duplicate.as_ref()
    }

    /// Reads the entry of the clustered index with this key into `value`, once that index is built;
    /// false if there is none.
    pub fn row(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let db = Db { inner: self.inner.clone() };
        let mut trx =
            db.begin(TransactionOptions { isolation: Isolation::ReadCommitted, read_only: true });
        trx.read(&self.table, Table::CLUSTERED, ReadRequest::new(key, value))
    }

    /// Makes the table's next auto-increment value at least `next`, from the commit on and as
    /// durably: done behind the commit, a crash in between would have the values given again that
    /// its rows have.
    pub fn raise_auto_increment(&self, next: u64) -> Result<()> {
        self.check_goes_on()?;
        self.inner.check_writable()?;
        self.table.raise_auto_increment(next)
    }

    /// Makes it a table, after [`build`](Self::build) if that was not called; durable on return.
    /// After an error there is no table, or the empty one. [`Error::TableBusy`] if somebody has
    /// used that meanwhile, and is not at the end of the transaction.
    pub fn commit(mut self) -> Result<Arc<Table>> {
        self.build(&mut || true)?;
        let inner = self.inner.clone();
        let names = std::slice::from_ref(&self.name);
        let _turn = inner.begin_definition_of_changes(names, &[])?;
        match &self.replaces {
            None => {
                self.table.add_rows(self.rows);
                self.table.note_change();
                inner.list_table(&self.name, self.record.clone(), &self.table, &[])?;
            }
            Some(old) => {
                self.replace(old)?;
                inner.tables.lock().by_name.insert(self.name.clone(), self.table.clone());
                inner.delete_space(old.space_id(), Some(old));
            }
        }
        self.committed = true;
        inner.tables.lock().end_load(&self.name);
        Ok(self.table.clone())
    }

    /// The moment of truth for the empty table: afterwards it has another file.
    fn replace(&self, old: &Table) -> Result<()> {
        let inner = &self.inner;
        old.close_entrance(&inner.presences)?;
        // Who passed the gate before may be taking values.
        drop(old.clear());
        let next = old.auto_increment().max(self.table.auto_increment());
        let counted = self.table.reset_auto_increment(next);
        let pending = counted.and_then(|()| inner.env.add_pending_space(old.space_id()));
        let replaced = pending.and_then(|()| {
            inner.catalog.replace(&mut inner.definition_trx(), &self.name, self.record.clone())
        });
        replaced.inspect_err(|_| {
            inner.env.remove_pending_space(old.space_id());
            old.reopen_entrance();
        })?;
        if old.is_discarded() {
            // Those who have seen it without rows, or before, must not see these.
            self.table.set_since(inner.catalog.newest_change());
        } else {
            self.table.succeed(old, &[]);
        }
        self.table.add_rows(self.rows);
        self.table.note_change();
        Ok(())
    }
}

/// [`Error::InvalidOption`] if the table has an entry.
fn check_empty(name: &str, table: &Table) -> Result<()> {
    for index in 0..table.index_count() {
        if table.tree(index).tree().greatest_key()?.is_some() {
            return Err(Error::InvalidOption(format!(
                "table {name} has entries: only an empty one can be filled"
            )));
        }
    }
    pause::reach(PausePoint::TableFoundEmpty);
    Ok(())
}

/// An error if the database is closed, or there can't be an entry with this key. Until the result
/// is dropped, no thread closes the database.
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
            // No transaction has entered a table that none sees.
            if table.close_entrance(&self.presences).is_ok() {
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
        if let Some(old) = &self.replaces {
            old.take_writes();
        }
        let name = std::slice::from_ref(&self.name);
        // If nothing may be written any more, the load stays listed: a close that is on its way
        // removes the file, or else the next opening does.
        if let Ok(_turn) = self.inner.begin_definition_of_changes(name, &[]) {
            self.inner.delete_space(self.record.space, Some(&self.table));
            self.inner.tables.lock().end_load(&self.name);
        }
    }
}

/// Entries between two looks at whether to go on.
const ENTRIES_A_TURN: u32 = 1000;

/// Fills an empty tree, which no other thread can see, with sorted payloads of settled entries.
/// `go_on` is asked now and then, and ends it by an error. Of two entries with the same key it
/// gives the one that came later: its key and its value.
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
            tree.tree().env().give_way_in_log();
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
