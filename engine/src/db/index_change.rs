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
use super::definition::Definition;
use super::load::fill_sorted;
use super::transaction::Transaction;
use super::{Db, Inner};
use crate::catalog::{Attachment, IndexDef, TableDef, TableRecord, TreeRecord};
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::format::space_header;
use crate::lock::{Interrupt, LockMode, LockWait};
use crate::pause::{self, PausePoint};
use crate::sort::{self, Sorter};
use crate::table::{Table, provisional_trees};
use crate::trx::{Isolation, TransactionOptions};
use crate::versioned::{ReadRequest, VersionedTree};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Memory for sorting, all new indexes of a change together.
const SORT_MEMORY_BYTES: usize = 64 << 20;
/// The same as a part of a memory budget, if that is less.
const SORT_MEMORY_PARTS: u64 = 8;

/// Memory for the log of rows written during a build. A write that finds it used up sorts it and
/// writes it to a file: so it is small.
const LOG_MEMORY_BYTES: usize = 1 << 20;

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

/// A change of a table's indexes under way, begun by [`Db::change_indexes`]. Dropped without
/// [`commit`](Self::commit), it leaves the table as it was.
pub struct IndexChange {
    pub(super) inner: Arc<Inner>,
    name: String,
    pub(super) table: Arc<Table>,
    from: Vec<Option<usize>>,
    /// The definition to come.
    record: TableRecord,
    pub(super) new: Vec<NewIndex>,
    added: Vec<TreeRecord>,
    dropped: Vec<TreeRecord>,
    /// Sees the rows that the new trees are built from, and have after a round.
    pub(super) snapshot: Option<Transaction>,
    /// Reads them, until they are built.
    rows: Option<Cursor>,
    pub(super) round: Option<Round>,
    pub(super) interrupt: Option<Arc<Interrupt>>,
    /// Of each sort; none: a share of what sorts may take.
    sort_memory: Option<usize>,
    /// Logs of written rows that were begun.
    pub(super) logs: u32,
    pub(super) writes_stopped: bool,
    /// Since they were stopped there was a round.
    pub(super) is_caught_up: bool,
    payload: Vec<u8>,
    pub(super) duplicate: Option<DuplicateEntry>,
    committed: bool,
}

impl Db {
    /// Begins to change the indexes of a table: those that `indexes` does not name are dropped,
    /// those `from` none are added. The first is the clustered one, and stays. Then come the rows,
    /// the new indexes' entries, and [`IndexChange::commit`]. Until that, transactions may read the
    /// table as it is, and write it until [`IndexChange::stop_writes`]: what they have written goes
    /// into the new indexes by rounds ([`IndexChange::begin_round`]). If no index is added, they
    /// get [`Error::TableBusy`] from the beginning if they write.
    ///
    /// [`Error::TableMissing`] if there is no table of this name; [`Error::TableBusy`] while a
    /// transaction that has used it is unfinished.
    ///
    /// An index that holds values longer than [`Table::value_len_inline_max`] must not be dropped
    /// so: the pages that they are in would stay in use.
    pub fn change_indexes(&self, name: &str, indexes: &[ChangedIndex]) -> Result<IndexChange> {
        let inner = &self.inner;
        let turn = inner.begin_definition(&[name])?;
        let old = inner.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        let mut record = changed_record(&old, indexes)?;
        record.has_notes = true;
        let kept = |tree: &&TreeRecord| !record.trees.contains(tree);
        let dropped: Vec<TreeRecord> = old.trees.iter().filter(kept).copied().collect();
        if inner.is_used_by_recovered(old.space) {
            return Err(Error::TableBusy(name.into()));
        }
        let table = inner.open_in_definition(name)?;
        let adds = indexes.iter().any(|index| index.from.is_none());
        match adds {
            // Its file is named after the clustered tree, whose entries are never sorted here.
            true => table.log_writes(
                inner.sorter(&format!("{:08x}-0", old.trees[0].tree), LOG_MEMORY_BYTES),
            )?,
            false => table.stop_writes()?,
        }
        inner.tables.lock().changing_indexes.insert(name.into());

        // From here on its end tidies up.
        let mut change = IndexChange {
            inner: inner.clone(),
            name: name.into(),
            table,
            from: indexes.iter().map(|index| index.from).collect(),
            record,
            new: Vec::new(),
            added: Vec::new(),
            dropped,
            snapshot: None,
            rows: None,
            round: None,
            interrupt: None,
            sort_memory: None,
            logs: 0,
            writes_stopped: !adds,
            is_caught_up: !adds,
            payload: Vec::new(),
            duplicate: None,
            committed: false,
        };
        let begun = change.make_trees(&old);
        drop(turn);
        begun?;
        let mut trx = inner.snapshot();
        trx.ensure_view();
        let mut cursor =
            Cursor::new(change.table.clone(), Table::CLUSTERED, LockMode::None, LockWait::Wait);
        cursor.set_scan(true);
        change.rows = Some(cursor);
        change.snapshot = Some(trx);
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
    /// is one; false if there is none.
    pub fn row(&mut self, key: &[u8], row: &mut Vec<u8>) -> Result<bool> {
        let trx = match &mut self.round {
            Some(round) => Some(&mut round.next),
            None => self.snapshot.as_mut(),
        };
        let trx = trx.ok_or(Error::NotFound)?;
        trx.read_in_change(&self.table, Table::CLUSTERED, ReadRequest::new(key, row))
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
        let max = self.table.value_len_inline_max();
        if value.len() > max {
            return Err(Error::ValueTooLong { len: value.len() as u64, max: max as u64 });
        }
        let new = self.new.iter_mut().find(|new| new.index == index);
        let sorter = new.and_then(|new| new.sorter.as_mut()).ok_or(Error::NotFound)?;
        self.payload.clear();
        if let Some(edit) = edit {
            self.payload.push(edit as u8);
        }
        Entry::settled(value).encode(&mut self.payload);
        sorter.push(key, &self.payload)
    }

    /// Fills the new indexes with the entries that were added. `go_on` is asked now and then; if it
    /// says no, the error is [`Error::Interrupted`]. After any error there is nothing to be done
    /// but to drop the change. Two entries with the same key are an [`Error::DuplicateKey`], which
    /// names the index by its position in the new definition: see [`duplicate`](Self::duplicate).
    pub fn build(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        for at in 0..self.new.len() {
            if self.new[at].is_built {
                continue;
            }
            let Some(sorter) = self.new[at].sorter.take() else {
                return Err(not_built());
            };
            let NewIndex { index, tree, .. } = &self.new[at];
            let mut go_on = || if go_on() { Ok(()) } else { Err(Error::Interrupted) };
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
            self.table.stop_writes()?;
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

    /// Makes the new definition the table's; durable on return. Handles of the table are void then,
    /// the one returned is good. `metadata` is what replaces that of tables, this one or others, at
    /// the same moment.
    ///
    /// [`Error::TableBusy`] while a transaction that has used the table is unfinished, or the
    /// indexes of one of the others are being changed. [`Error::InvalidOption`] if rows were
    /// written, and there was no round since the writes were stopped.
    pub fn commit(self, metadata: &[(&str, &[u8])]) -> Result<Arc<Table>> {
        let mut tables = Self::commit_all(vec![self], metadata, &[])?;
        Ok(tables.pop().expect("one table of one change"))
    }

    /// [`commit`](Self::commit) of several tables' changes, all at one moment: after a crash, and
    /// after an error, either all tables have their new definition or none. Attachments are set and
    /// removed at that moment, too. The tables are returned in the order of the changes.
    pub fn commit_all(
        mut changes: Vec<IndexChange>,
        metadata: &[(&str, &[u8])],
        attachments: &[Attachment<'_>],
    ) -> Result<Vec<Arc<Table>>> {
        Attachment::validate_all(attachments)?;
        let refuse = |why: &str| Err(Error::InvalidOption(format!("change of indexes: {why}")));
        let Some(inner) = changes.first().map(|change| change.inner.clone()) else {
            return refuse("there is none");
        };
        let mut others: BTreeMap<&str, &[u8]> = metadata.iter().copied().collect();
        for change in &mut changes {
            change.stop_writes()?;
            if !change.is_caught_up && change.table.logged_writes()? > 0 {
                return refuse("rows were written that its last round has not seen");
            }
            change.snapshot = None;
            if !Arc::ptr_eq(&change.inner, &inner) {
                return refuse("the tables are of two databases");
            }
            if let Some(own) = others.remove(&*change.name) {
                change.record.def.metadata = own.to_vec();
                change.record.def.validate()?;
            }
        }
        let others: Vec<_> = others.into_iter().collect();
        let names: Vec<_> = changes.iter().map(|change| change.name.clone()).collect();
        let turn = inner.begin_definition_of_changes(&names, &others)?;
        let others = inner.with_metadata(&others)?;
        for change in &changes {
            if inner.is_used_by_recovered(change.record.space) {
                return Err(Error::TableBusy(change.name.clone()));
            }
            // The exact counters: the table is opened anew by them.
            change.table.settle()?;
        }
        let mut closed = ClosedEntrances(Vec::with_capacity(changes.len()));
        for change in &changes {
            change.table.close_entrance()?;
            closed.0.push(change.table.clone());
        }
        let tables = inner.switch_all(&changes, others, attachments)?;
        // The old ones stay closed.
        closed.0.clear();
        drop(closed);
        for change in &mut changes {
            change.committed = true;
            change.tidy_up(&turn);
        }
        Ok(tables)
    }

    /// Frees the trees that belong to no index, those dropped or, if it did not come to the commit,
    /// those added; then the notes are not needed any more. What fails here is done by the next
    /// opening.
    fn tidy_up(&mut self, _turn: &Definition<'_>) {
        let (inner, env) = (&self.inner, &self.inner.env);
        let (unwanted, wanted) = match self.committed {
            true => (&self.dropped, &self.added),
            false => (&self.added, &self.dropped),
        };
        let tidied = || -> Result<()> {
            let space = env.space(self.record.space)?;
            inner.trx_system.condemn_trees(unwanted.iter().map(|tree| tree.tree));
            // First: what can't be freed must not leave the note of a tree that is in use.
            for tree in wanted {
                provisional_trees::forget(env, &space, tree.tree)?;
            }
            for tree in unwanted {
                provisional_trees::free(env, &space, *tree)?;
            }
            let record = inner.catalog.get(&self.name);
            let record = record.ok_or_else(|| Error::TableMissing(self.name.clone()))?;
            if !record.has_notes || !provisional_trees::all(env, &space)?.is_empty() {
                return Ok(());
            }
            let record = TableRecord { has_notes: false, ..TableRecord::clone(&record) };
            inner.catalog.replace(&mut inner.definition_trx(), &self.name, record)?;
            Ok(())
        };
        if let Err(error) = tidied() {
            tracing::warn!(
                table = self.name,
                %error,
                "pages of an index that was dropped or not finished stay in use until the next start"
            );
        }
    }
}

impl Drop for IndexChange {
    fn drop(&mut self) {
        self.rows = None;
        self.round = None;
        self.snapshot = None;
        self.new.clear();
        if !self.committed {
            let name = std::slice::from_ref(&self.name);
            match self.inner.clone().begin_definition_of_changes(name, &[]) {
                Ok(turn) => self.tidy_up(&turn),
                Err(error) => tracing::warn!(
                    table = self.name,
                    %error,
                    "pages of an index that was not finished stay in use until the next start"
                ),
            }
        }
        // In this order: from the second on there may be another change, whose refusal stands.
        self.table.take_writes();
        self.inner.tables.lock().changing_indexes.remove(&self.name);
        pause::reach(PausePoint::IndexChangeOver);
    }
}

/// Tables that no transaction may enter; all may again when it is dropped.
struct ClosedEntrances(Vec<Arc<Table>>);

impl Drop for ClosedEntrances {
    fn drop(&mut self) {
        for table in &self.0 {
            table.reopen_entrance();
        }
    }
}

impl Inner {
    /// The moment of truth. The entrances are closed. `records` are those of other tables that
    /// change at the same moment.
    fn switch_all(
        &self,
        changes: &[IndexChange],
        records: BTreeMap<String, Arc<TableRecord>>,
        attachments: &[Attachment<'_>],
    ) -> Result<Vec<Arc<Table>>> {
        let env = &self.env;
        let mut records = records;
        let mut tables = Vec::with_capacity(changes.len());
        for change in changes {
            let (name, record) = (&change.name, &change.record);
            let space = env.space(record.space)?;
            let header = space_header::read(env.pool(), &space)?;
            tables.push(Arc::new(Table::open(env, &space, name, record, &header)));
            for tree in &change.dropped {
                provisional_trees::add(env, &space, *tree)?;
            }
            records.insert(name.clone(), Arc::new(record.clone()));
        }
        // Before the catalog entries are gone: rows of the tables are still found by threads that
        // ask for estimates.
        let _nobody: Vec<_> = changes.iter().map(|change| change.table.clear()).collect();
        let mut trx = self.definition_trx();
        self.catalog.change(&mut trx, &[], records, attachments)?;
        let since = self.catalog.newest_change();
        for (change, table) in changes.iter().zip(&tables) {
            table.succeed(&change.table, &change.from);
            for new in &change.new {
                table.set_index_since(new.index, since);
            }
            self.tables.lock().by_name.insert(change.name.clone(), table.clone());
        }
        Ok(tables)
    }

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

    /// A transaction that reads what is committed when its view is opened.
    pub(super) fn snapshot(self: &Arc<Self>) -> Transaction {
        let isolation = Isolation::RepeatableRead;
        Transaction::new(self.clone(), TransactionOptions { isolation, read_only: true })
    }
}
