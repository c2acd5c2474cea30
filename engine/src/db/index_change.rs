//! Indexes are added to a table and taken from it, in place.
//!
//! # Steps
//! ```text
//! begin     the table logs from here on which rows are written; catalog: the table has notes;
//!           new trees, each noted as its root is made; a snapshot
//! rows      the caller reads the rows of the snapshot, and gives the entries of the new indexes for each
//! build     the entries, sorted, fill the new trees
//! rounds    rows written since are brought into the new trees ([`catch_up`](super::catch_up))
//! stop      the table takes no more writes; the last round
//! commit    the trees to be dropped are noted → catalog commit: the new definition → the notes of new trees are forgotten, these trees freed
//! ```
//! What a crash leaves before the catalog's commit is the old definition, after it the new one; and
//! notes of the trees that belong to neither ([`provisional_trees`]), which the next opening frees.
//! An [`IndexChange`] that is dropped does the same at once.
//!
//! Several tables may be changed at one moment ([`IndexChange::commit_all`]), as the partitions of
//! one table have to be.
//!
//! # Who else is there
//! At the beginning, and when writes are stopped, no transaction that has used the table may be
//! unfinished, a prepared one without a session least of all. In between others may read and
//! write. A change that adds no index takes no writes from its beginning.
//!
//! A rollback that the background still owes makes no difference: its changes are in no snapshot,
//! and undone they leave what is.
//!
//! # Versions
//! The entries are settled from the beginning: of one version that all see who may read the index.
//! All they are made of was committed before the index can be read. A snapshot older than the index
//! must not read it, with or without locks ([`Error::TableChanged`]): its rows may be others, and
//! the entries don't tell which. It may write: the rows in the clustered index tell whether they
//! have changed since. At READ COMMITTED a statement that has not used the table before may come to
//! an index younger than itself, and finds what was committed last. No transaction has written what
//! is there, so none can roll it back, or come to purge it: undo records from before are of other
//! trees, whose ids they carry.

use super::catch_up::Round;
use super::cursor::Cursor;
use super::load::fill_sorted;
use super::rebuild::{Rebuild, enter};
use super::transaction::Transaction;
use super::{Db, Handle, Inner};
use crate::catalog::{IndexDef, TableDef, TableRecord, TreeRecord};
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::lock::{Interrupt, LockMode, LockWait};
use crate::pause::{self, PausePoint};
use crate::sort::{self, Sorter};
use crate::table::{Table, provisional_trees};
use crate::trx::{Isolation, TransactionOptions};
use crate::versioned::{ReadRequest, VersionedTree};
use std::sync::Arc;
use std::time::Duration;

/// Memory for sorting, all new indexes of a change together.
const SORT_MEMORY_BYTES: usize = 64 << 20;
/// The same as a part of a memory budget, if that is less.
const SORT_MEMORY_PARTS: u64 = 8;

/// Memory for the log of rows written during a build. A write that finds it used up sorts it and
/// writes it to a file: so it is small.
pub(super) const LOG_MEMORY_BYTES: usize = 1 << 20;

/// What a round does with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    Remove,
    Add,
}

/// The file of a sort of a tree's entries.
pub(super) fn tree_file(tree: u32) -> String {
    format!("{tree:08x}")
}

/// An index as a change of a table's indexes leaves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedIndex {
    /// Its definition then.
    pub def: IndexDef,
    /// Which of the table's present indexes it is; `None`: a new one, to be filled.
    pub from: Option<usize>,
}

/// Two entries of a new index with the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DuplicateEntry {
    /// Position of the index in the new definition.
    pub index: usize,
    /// The key.
    pub key: Vec<u8>,
    /// Value of the entry that came later.
    pub value: Vec<u8>,
}

/// A new index.
pub(super) struct NewIndex {
    pub index: usize,
    pub tree: VersionedTree,
    /// Of entries: until it is about to be built, and during a round.
    pub sorter: Option<Sorter>,
    /// What its tree has is what the snapshot's rows ask for.
    pub is_built: bool,
}

/// A change of a table's indexes under way, begun by [`Db::change_indexes`], or of all that it has,
/// by [`Db::rebuild_table`]. Dropped without [`commit`](Self::commit), it leaves the table as it
/// was.
pub struct IndexChange {
    pub(super) inner: Arc<Handle>,
    pub(super) name: String,
    pub(super) table: Arc<Table>,
    pub(super) from: Vec<Option<usize>>,
    /// The definition to come.
    pub(super) record: TableRecord,
    pub(super) new: Vec<NewIndex>,
    pub(super) added: Vec<TreeRecord>,
    pub(super) dropped: Vec<TreeRecord>,
    /// The file that the table gets; none: it keeps its own.
    pub(super) rebuild: Option<Rebuild>,
    /// Sees the rows that the new trees are built from, and have after a round.
    pub(super) snapshot: Option<Transaction>,
    /// Reads them, until they are built.
    pub(super) rows: Option<Cursor>,
    pub(super) round: Option<Round>,
    pub(super) interrupt: Option<Arc<Interrupt>>,
    /// How long transactions inside the table have to leave it, while who comes waits.
    pub(super) wait: Duration,
    /// Of each sort; none: a share of what sorts may take.
    sort_memory: Option<usize>,
    /// Logs of written rows that were begun.
    pub(super) logs: u32,
    pub(super) writes_stopped: bool,
    /// Since they were stopped there was a round.
    pub(super) is_caught_up: bool,
    pub(super) payload: Vec<u8>,
    pub(super) duplicate: Option<DuplicateEntry>,
    pub(super) committed: bool,
}

impl Db {
    /// Begins to change the indexes of a table, whose [definition](Table::def) `indexes` has the
    /// positions of: those that `indexes` does not name are dropped, those `from` none are added.
    /// The first is the clustered one, and stays. Then come the rows, the new indexes' entries, and
    /// [`IndexChange::commit`]. Until that, transactions may read the table as it is, and write it
    /// until [`IndexChange::stop_writes`]: what they have written goes into the new indexes by
    /// rounds ([`IndexChange::begin_round`]). If no index is added, they get [`Error::TableBusy`]
    /// from the beginning if they write.
    ///
    /// [`Error::TableMissing`] if there is no such table any more. [`Error::TableBusy`] while a
    /// transaction that has used it is unfinished; also if the table has got other indexes or
    /// another file, so that `table` is void: to be opened, and the positions found, anew.
    ///
    /// An index that holds values longer than [`Table::value_len_inline_max`] must not be dropped
    /// so: the pages that they are in would stay in use.
    pub fn change_indexes(
        &self,
        table: &Arc<Table>,
        indexes: &[ChangedIndex],
    ) -> Result<IndexChange> {
        self.change_indexes_within(table, indexes, Duration::ZERO)
    }

    /// The same. Transactions inside the table have `wait` to leave it, here, in
    /// [`IndexChange::stop_writes`] and in the commit; who comes waits for that long at most. So a
    /// table that always has some transaction inside can be had.
    pub(crate) fn change_indexes_within(
        &self,
        table: &Arc<Table>,
        indexes: &[ChangedIndex],
        wait: Duration,
    ) -> Result<IndexChange> {
        let inner = &self.inner;
        let name = &*table.name();
        pause::reach(PausePoint::IndexChangePlanned);
        let turn = inner.begin_definition(&[name])?;
        let old = inner.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        // Another change may have come in between.
        if !table.has_trees_of(&old) {
            return Err(Error::TableBusy(name.into()));
        }
        let mut record = changed_record(&old, indexes)?;
        record.has_notes = true;
        let kept = |tree: &&TreeRecord| !record.trees.contains(tree);
        let dropped: Vec<TreeRecord> = old.trees.iter().filter(kept).copied().collect();
        if inner.is_used_by_recovered(old.space) {
            return Err(Error::TableBusy(name.into()));
        }
        let table = inner.open_in_definition(name)?;
        table.check_not_discarded()?;
        let adds = indexes.iter().any(|index| index.from.is_none());
        match adds {
            // Its file is named after the clustered tree, whose entries are never sorted here.
            true => table.log_writes(
                &inner.presences,
                inner.sorter(&format!("{:08x}-0", old.trees[0].tree), LOG_MEMORY_BYTES),
                wait,
            )?,
            false => table.stop_writes(&inner.presences, wait)?,
        }
        inner.tables.lock().changing_indexes.insert(name.into());

        // From here on its end tidies up.
        let mut change = IndexChange::begun(inner, name, table, record);
        change.wait = wait;
        change.from = indexes.iter().map(|index| index.from).collect();
        change.dropped = dropped;
        change.writes_stopped = !adds;
        change.is_caught_up = !adds;
        let begun = change.make_trees(&old);
        drop(turn);
        begun?;
        change.open_snapshot();
        Ok(change)
    }
}

/// The table's record with other indexes; trees of new ones are still 0.
fn changed_record(old: &TableRecord, indexes: &[ChangedIndex]) -> Result<TableRecord> {
    let refuse = |why: &str| Err(Error::InvalidOption(format!("change of indexes: {why}")));
    let mut record = old.clone();
    record.trees.clear();
    for (at, index) in indexes.iter().enumerate() {
        let Some(from) = index.from else {
            record.trees.push(TreeRecord { tree: 0, root: 0 });
            continue;
        };
        let Some(&tree) = old.trees.get(from) else {
            return refuse("it keeps an index that the table does not have");
        };
        if record.trees.contains(&tree) {
            return refuse("it keeps an index twice");
        }
        if (from == Table::CLUSTERED) != (at == Table::CLUSTERED)
            || old.def.indexes[from].unique != index.def.unique
        {
            return refuse("an index that is kept must stay what it is");
        }
        record.trees.push(tree);
    }
    if indexes.first().is_none_or(|first| first.from != Some(Table::CLUSTERED)) {
        return refuse("the clustered index must stay");
    }
    record.def = TableDef {
        indexes: indexes.iter().map(|index| index.def.clone()).collect(),
        ..old.def.clone()
    };
    record.def.validate()?;
    Ok(record)
}

/// The entries that one has got may be lost by now: an error may have come in the middle of filling
/// its tree.
fn not_built() -> Error {
    Error::InvalidOption("change of indexes: a new index is not built".into())
}

impl IndexChange {
    /// Most indexes that one change adds and drops together: what can be noted.
    pub const INDEXES_MAX: usize = provisional_trees::NOTES_MAX;

    /// A change that has begun: the table logs its writes, and nothing is made yet.
    fn begun(inner: &Arc<Handle>, name: &str, table: Arc<Table>, record: TableRecord) -> Self {
        Self {
            inner: inner.clone(),
            name: name.into(),
            table,
            from: vec![None; record.trees.len()],
            record,
            new: Vec::new(),
            added: Vec::new(),
            dropped: Vec::new(),
            rebuild: None,
            snapshot: None,
            rows: None,
            round: None,
            interrupt: None,
            wait: Duration::ZERO,
            sort_memory: None,
            logs: 0,
            writes_stopped: false,
            is_caught_up: false,
            payload: Vec::new(),
            duplicate: None,
            committed: false,
        }
    }

    /// The same of a table that gets another file.
    pub(super) fn of_rebuild(
        inner: &Arc<Handle>,
        name: &str,
        table: Arc<Table>,
        record: TableRecord,
        rebuild: Rebuild,
    ) -> Self {
        let mut change = Self::begun(inner, name, table, record);
        change.rebuild = Some(rebuild);
        change
    }

    /// Opens the view whose rows the new trees are built from.
    pub(super) fn open_snapshot(&mut self) {
        let mut trx = self.inner.snapshot();
        trx.ensure_view();
        let mut cursor =
            Cursor::new(self.table.clone(), Table::CLUSTERED, LockMode::None, LockWait::Wait);
        cursor.set_scan(true);
        self.rows = Some(cursor);
        self.snapshot = Some(trx);
    }

    fn make_trees(&mut self, old: &TableRecord) -> Result<()> {
        let inner = self.inner.clone();
        let new: Vec<usize> =
            (0..self.from.len()).filter(|&index| self.from[index].is_none()).collect();
        let most = Self::INDEXES_MAX;
        if new.len() + self.dropped.len() > most {
            return Err(Error::InvalidOption(format!("more than {most} indexes change at once")));
        }
        let mut trx = inner.definition_trx();
        let flagged = TableRecord { has_notes: true, ..old.clone() };
        inner.catalog.replace(&mut trx, &self.name, flagged)?;
        if new.is_empty() {
            return Ok(());
        }
        let first = inner.catalog.new_tree_ids(new.len() as u32)?;
        let (env, space) = (&inner.env, inner.env.space(self.record.space)?);
        for (&index, tree) in new.iter().zip(first..) {
            let made = provisional_trees::create(env, &space, tree)?;
            self.record.trees[index] = made;
            self.added.push(made);
            let sorter = inner.sorter(&tree_file(tree), inner.sort_share_bytes(new.len()));
            let tree = VersionedTree::open(env, &space, made.root, made.tree, index);
            self.new.push(NewIndex { index, tree, sorter: Some(sorter), is_built: false });
        }
        Ok(())
    }

    /// Sets how much memory the sort of each new index takes, about; before the first entry.
    pub fn set_sort_memory(&mut self, bytes: usize) {
        self.sort_memory = Some(bytes);
        for new in &mut self.new {
            new.sorter = Some(self.inner.sorter(&tree_file(new.tree.tree().id()), bytes));
        }
    }

    /// Name of the index at this position of the new definition.
    pub(super) fn new_name(&self, index: usize) -> &str {
        &self.record.def.indexes[index].name
    }

    /// Gives each new index a sorter of entries.
    pub(super) fn begin_sorts(&mut self) {
        let share = self.inner.sort_share_bytes(self.new.len().max(1));
        let bytes = self.sort_memory.unwrap_or(share);
        for new in &mut self.new {
            new.sorter = Some(self.inner.sorter(&tree_file(new.tree.tree().id()), bytes));
        }
    }

    /// A sorter for the log of written rows.
    pub(super) fn new_log(&mut self) -> Sorter {
        self.logs += 1;
        let name = format!("{}-{}", tree_file(self.record.trees[0].tree), self.logs);
        let bytes = self.sort_memory.unwrap_or(LOG_MEMORY_BYTES).min(LOG_MEMORY_BYTES);
        self.inner.sorter(&name, bytes)
    }

    /// Has [`next_row`](Self::next_row) listen to the interrupt of the session that asks for the
    /// change ([`Transaction::interrupt_handle`]): among rows that the snapshot does not see it may
    /// go on for long without giving one. Before the first row.
    pub fn set_interrupt(&mut self, interrupt: Arc<Interrupt>) {
        if let Some(trx) = &mut self.snapshot {
            trx.set_interrupt(interrupt.clone());
        }
        self.interrupt = Some(interrupt);
    }

    /// Positions of the new indexes in the new definition.
    pub fn new_indexes(&self) -> impl Iterator<Item = usize> {
        self.new.iter().map(|new| new.index)
    }

    /// The next row, as the clustered index has it: its key and its value. `None` after the last.
    /// [`Error::Interrupted`] if it is interrupted on the way
    /// ([`set_interrupt`](Self::set_interrupt)).
    pub fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let (Some(cursor), Some(trx)) = (&mut self.rows, &mut self.snapshot) else {
            return Err(Error::NotFound);
        };
        match cursor.next(trx)? {
            true => Ok(Some((cursor.key(), cursor.value()))),
            false => Ok(None),
        }
    }

    /// Reads the row with this clustered key into `row`, as it is at the end of the round if there
    /// is one; false if there is none. Of a table that is rebuilt it is the new one's row.
    pub fn row(&mut self, key: &[u8], row: &mut Vec<u8>) -> Result<bool> {
        let trx = match &mut self.round {
            Some(round) => Some(&mut round.next),
            None => self.snapshot.as_mut(),
        };
        let trx = trx.ok_or(Error::NotFound)?;
        let table = self.rebuild.as_ref().map_or(&self.table, |rebuild| &rebuild.table);
        trx.read_in_change(table, Table::CLUSTERED, ReadRequest::new(key, row))
    }

    /// Adds an entry to the new index at this position of the new definition.
    pub fn add(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<()> {
        let edit = self.round.is_some().then_some(Edit::Add);
        self.sort_entry(index, key, value, edit)
    }

    /// Gives an entry to an index's sorter: behind a byte that says what is done with it, in a
    /// round.
    pub(super) fn sort_entry(
        &mut self,
        index: usize,
        key: &[u8],
        value: &[u8],
        edit: Option<Edit>,
    ) -> Result<()> {
        let max = self.table.key_len_max();
        if key.len() > max {
            return Err(Error::KeyTooLong { len: key.len(), max });
        }
        let new = self.new.iter_mut().find(|new| new.index == index).ok_or(Error::NotFound)?;
        let sorter = new.sorter.as_mut().ok_or(Error::NotFound)?;
        self.payload.clear();
        if let Some(edit) = edit {
            self.payload.push(edit as u8);
        }
        let max = self.table.value_len_inline_max();
        match &self.rebuild {
            _ if value.len() <= max => Entry::settled(value).encode(&mut self.payload),
            // A chain that no entry leads to yet would be lost with a crash.
            None => return Err(Error::ValueTooLong { len: value.len() as u64, max: max as u64 }),
            Some(_) if edit == Some(Edit::Remove) => {
                new.tree.settled_payload_to_remove(key.len(), value, &mut self.payload);
            }
            Some(rebuild) => {
                let _inside = enter(&self.inner, &rebuild.table)?;
                new.tree.settled_payload(key.len(), value, &mut self.payload)?;
            }
        }
        sorter.push(key, &self.payload)
    }

    /// Fills the new indexes with the entries that were added. `go_on` is asked now and then; if it
    /// says no, the error is [`Error::Interrupted`]. After any error there is nothing to be done
    /// but to drop the change. Two entries with the same key are an [`Error::DuplicateKey`], which
    /// names the index by its position in the new definition: see [`duplicate`](Self::duplicate).
    pub fn build(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let inner = self.inner.clone();
        let next = self.rebuild.as_ref().map(|rebuild| rebuild.table.clone());
        let _inside = next.as_ref().map(|next| enter(&inner, next)).transpose()?;
        self.finish_rows()?;
        for at in 0..self.new.len() {
            if self.new[at].is_built {
                continue;
            }
            let Some(sorter) = self.new[at].sorter.take() else {
                return Err(not_built());
            };
            let NewIndex { index, tree, .. } = &self.new[at];
            let mut go_on =
                || if go_on() { inner.check_writable() } else { Err(Error::Interrupted) };
            if let Err((key, value)) = fill_sorted(tree, sorter, &mut go_on)? {
                let index = *index;
                self.duplicate = Some(DuplicateEntry { index, key, value: value.clone() });
                return Err(Error::DuplicateKey { index, value });
            }
            self.new[at].is_built = true;
        }
        self.rows = None;
        if let Some(trx) = &mut self.snapshot {
            trx.leave_tables();
        }
        Ok(())
    }

    /// Takes no more writes from here on: what is left is a last round, and
    /// [`commit`](Self::commit). [`Error::TableBusy`] while a transaction that has used the table
    /// is unfinished: then writes go on, and this may be tried again.
    pub fn stop_writes(&mut self) -> Result<()> {
        self.check_built()?;
        if !self.writes_stopped {
            self.table.stop_writes(&self.inner.presences, self.wait)?;
            self.writes_stopped = true;
        }
        Ok(())
    }

    pub(super) fn check_built(&self) -> Result<()> {
        match self.new.iter().all(|new| new.is_built) {
            true => Ok(()),
            false => Err(not_built()),
        }
    }

    /// The entries that [`build`](Self::build), or the end of a round, found to have the same key.
    pub fn duplicate(&self) -> Option<&DuplicateEntry> {
        self.duplicate.as_ref()
    }
}

impl Inner {
    /// What each sort takes at most, about, in bytes, if a change of a definition has `sorts` of
    /// them.
    pub(super) fn sort_share_bytes(&self, sorts: usize) -> usize {
        let all = match self.options.read().memory_budget_bytes {
            0 => SORT_MEMORY_BYTES,
            budget => SORT_MEMORY_BYTES.min((budget / SORT_MEMORY_PARTS) as usize),
        };
        (all / sorts).max(sort::MEMORY_MIN_BYTES)
    }

    /// `name`: of the file that the sort may come to need ([`tree_file`]).
    pub(super) fn sorter(&self, name: &str, memory_bytes: usize) -> Sorter {
        let sorter = Sorter::new(self.env.storage(), name, memory_bytes, &self.sort_memory);
        if self.has_nothing_encrypted() { sorter } else { sorter.encrypted() }
    }
}

impl Handle {
    /// A transaction that reads what is committed when its view is opened.
    pub(super) fn snapshot(self: &Arc<Self>) -> Transaction {
        let isolation = Isolation::RepeatableRead;
        Transaction::new(self.clone(), TransactionOptions { isolation, read_only: true })
    }
}
