//! Changes of definition: tables are created, dropped, renamed, truncated; and opened.
//!
//! # What makes them crash-safe
//! The catalog's transaction is the moment of truth. Files come before it and go after it:
//! ```text
//! create    ids durable → pending → file, synced → SPACE_CREATE → pages → catalog commit
//! drop      pending → catalog commit → SPACE_DELETE, durable → file removed
//! truncate  as create up to the pages → catalog commit (old space out, new one in) → as drop for the old one
//! rename    catalog commit
//! indexes   see `index_change`; their names alone: catalog commit
//! rebuild   see `rebuild`: as truncate, once the new file is filled
//! load      see `load`: as create, or as truncate
//! discard   as truncate; import: as load (see `export`)
//! ```
//! A crash in between leaves at most a file that no table has; the log says so as long as that may
//! happen ([`Env::add_pending_space`]), and `open` removes it. A file that is missing for a table
//! is an error of that table alone; it can still be dropped.

use super::{Db, Inner, OpenTables};
use crate::btree::max_key_len;
use crate::catalog::{Attachment, TableDef, TableRecord, TreeRecord, check_table_name};
use crate::env::{Env, LogReserve};
use crate::error::{Error, Remedy, Result};
use crate::files::space_file_name;
use crate::format::space_header::{self, SpaceHeader};
use crate::mtr::Mtr;
use crate::pause::{self, PausePoint};
use crate::space;
use crate::table::Table;
use crate::trx::{Isolation, TransactionCore, TransactionOptions};
use crate::versioned::VersionedTree;
use parking_lot::MutexGuard;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_pool::Space;

/// What changes in the catalog at one moment: all of it or nothing, also after a crash.
#[derive(Debug, Clone, Copy, Default)]
pub struct DefinitionChange<'a> {
    /// Tables get other names, and their attachments with them: from, to. No name is in two of
    /// them.
    pub renames: &'a [(&'a str, &'a str)],
    /// Those of the renames, by the names of before, that make a table known: a copy that one
    /// statement has made and filled, say. A snapshot from before refuses to read it
    /// ([`Error::TableChanged`]).
    pub replacements: &'a [&'a str],
    /// Tables get other metadata, by their names of before.
    pub metadata: &'a [(&'a str, &'a [u8])],
    /// Attachments are set and removed, by the names of afterwards.
    pub attachments: &'a [Attachment<'a>],
}

impl Db {
    /// Creates a table. [`Error::TableExists`] if there is one of this name.
    pub fn create_table(&self, name: &str, def: &TableDef) -> Result<Arc<Table>> {
        self.create_table_with(name, def, &[])
    }

    /// The same, and attachments (of the table, or of another name) are set at the same moment.
    pub fn create_table_with(
        &self,
        name: &str,
        def: &TableDef,
        attachments: &[Attachment<'_>],
    ) -> Result<Arc<Table>> {
        Attachment::validate_all(attachments)?;
        let inner = &self.inner;
        let (_one, table, record) = inner.new_table(name, def)?;
        let space = record.space;
        inner
            .list_table(name, record, &table, attachments)
            .inspect_err(|_| inner.env.forget_space(space))?;
        Ok(table)
    }

    /// An attachment, as it was committed last; `None` if this name has none of this kind.
    pub fn attachment(&self, name: &str, kind: u8) -> Result<Option<Vec<u8>>> {
        self.inner.check_open()?;
        self.inner.catalog.attachment(&mut self.inner.definition_trx(), name, kind)
    }

    /// Gives all attachments to `each`, by name and kind, in this order.
    pub fn for_each_attachment(&self, each: &mut dyn FnMut(&str, u8, &[u8])) -> Result<()> {
        self.inner.check_open()?;
        self.inner.catalog.for_each_attachment(&mut self.inner.definition_trx(), each)
    }

    /// Drops a table and removes its file.
    ///
    /// [`Error::TableMissing`] if there is none of this name; [`Error::TableBusy`] while a
    /// transaction that has used it is unfinished.
    pub fn drop_table(&self, name: &str) -> Result<()> {
        self.drop_tables(&[name], &[])
    }

    /// Drops tables at one moment: after a crash all of them are gone, or none. Attachments of
    /// other names are set or removed with
    /// them; those of the tables' names are removed. Errors as for
    /// [`drop_table`](Self::drop_table), and nothing is dropped then.
    pub fn drop_tables(&self, names: &[&str], attachments: &[Attachment<'_>]) -> Result<()> {
        Attachment::validate_all(attachments)?;
        let inner = &self.inner;
        let _one = inner.begin_definition(names)?;
        let _reserve = inner.log_reserve_to_drop(names);
        let mut leaving = Leaving { inner, tables: Vec::with_capacity(names.len()) };
        let mut ids = Vec::with_capacity(names.len());
        for name in names {
            ids.push(leaving.take(name)?);
        }
        inner.catalog.remove(&mut inner.definition_trx(), names, attachments)?;
        let gone = std::mem::take(&mut leaving.tables);
        let mut tables = inner.tables.lock();
        inner.note_vacated(&mut tables, names.iter().copied().zip(ids));
        for name in names {
            tables.by_name.remove(*name);
        }
        drop(tables);
        for (space, table) in gone {
            inner.delete_space(space, table.as_deref());
        }
        Ok(())
    }

    /// Renames a table. Handles of it stay good, and older snapshots read it under its new name,
    /// unless that was another table's when they were taken: then [`Error::TableChanged`].
    /// [`Error::TableMissing`] if there is none,
    /// [`Error::TableExists`] if the new name is taken, [`Error::TableBusy`] while a prepared
    /// transaction without a session has used it.
    ///
    /// Other transactions may use it meanwhile. One without a session is known to no other thread:
    /// an ALTER TABLE that renames the table away, in favour of a copy made from a snapshot, would
    /// lose what that transaction wrote. If the first rename was let pass, so is the way back:
    /// while no thread prepares on the table, none without a session comes to use it.
    pub fn rename_table(&self, from: &str, to: &str) -> Result<()> {
        self.change_tables(&DefinitionChange {
            renames: &[(from, to)],
            ..DefinitionChange::default()
        })
    }

    /// Changes the catalog's entries of tables at one moment. Errors as for
    /// [`rename_table`](Self::rename_table), and [`Error::TableMissing`] if a table that gets other
    /// metadata does not exist.
    pub fn change_tables(&self, change: &DefinitionChange<'_>) -> Result<()> {
        let inner = &self.inner;
        Attachment::validate_all(change.attachments)?;
        let mut names: Vec<_> = change.metadata.iter().map(|(name, _)| *name).collect();
        for &(from, to) in change.renames {
            check_table_name(to, max_key_len(inner.env.page_size()))?;
            names.extend([from, to]);
        }
        let _one = inner.begin_definition(&names)?;
        let mut ids = Vec::with_capacity(change.renames.len());
        for &(from, to) in change.renames {
            let record = inner.catalog.get(from).ok_or_else(|| Error::TableMissing(from.into()))?;
            if inner.catalog.get(to).is_some() {
                return Err(Error::TableExists(to.into()));
            }
            if inner.is_used_without_session(record.space) {
                return Err(Error::TableBusy(from.into()));
            }
            ids.push(record.id);
        }
        let records = inner.with_metadata(change.metadata)?;
        let attachments = change.attachments;
        inner.catalog.change(&mut inner.definition_trx(), change.renames, records, attachments)?;
        let newest = inner.catalog.newest_change();
        let mut tables = inner.tables.lock();
        inner.note_vacated(&mut tables, change.renames.iter().map(|(from, _)| *from).zip(ids));
        for &(from, to) in change.renames {
            if let Some(table) = tables.by_name.remove(from) {
                table.set_name(to);
                if change.replacements.contains(&from) {
                    table.set_since(newest);
                }
                if let Some(since) = tables.named_since(to, table.id()) {
                    table.set_since(since);
                }
                tables.by_name.insert(to.into(), table);
            }
        }
        Ok(())
    }

    /// Empties a table: it gets a new file, auto-increment starts again at 1. Handles of it are
    /// void; the one returned is good. Errors as for [`drop_table`](Self::drop_table).
    ///
    /// [`Error::TableDiscarded`] if its rows were discarded.
    pub fn truncate_table(&self, name: &str) -> Result<Arc<Table>> {
        let inner = &self.inner;
        let _one = inner.begin_definition(&[name])?;
        let old = inner.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        if old.is_discarded {
            return Err(Error::TableDiscarded(name.into()));
        }
        inner.give_empty_file(name, &old, Discarded::No)
    }

    /// Opens a table; waits while its definition changes.
    ///
    /// [`Error::TableMissing`] if there is none of this name. If its file is missing, damaged or
    /// another directory's, the error names it; other tables are not concerned.
    pub fn open_table(&self, name: &str) -> Result<Arc<Table>> {
        self.inner.check_open()?;
        let mut tables = self.inner.tables.lock();
        while tables.changing.iter().any(|changing| changing == name) {
            self.inner.changed.wait(&mut tables);
        }
        self.inner.open_among(&mut tables, name)
    }

    /// Opens a table, or makes it of `def` if there is none of this name. One that exists is opened
    /// as it is, whatever `def` says.
    ///
    /// ```
    /// # use tidepool::{Db, Options, TableDef};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = Db::open(dir.path(), Options::default())?;
    /// let fruit = db.open_or_create_table("fruit", &TableDef::map())?;
    /// let same = db.open_or_create_table("fruit", &TableDef::map())?;
    /// assert_eq!(fruit.id(), same.id());
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::open_table`] and [`Db::create_table`].
    pub fn open_or_create_table(&self, name: &str, def: &TableDef) -> Result<Arc<Table>> {
        loop {
            match self.open_table(name) {
                Err(Error::TableMissing(_)) => {}
                opened => return opened,
            }
            match self.create_table(name, def) {
                // Another thread was faster.
                Err(Error::TableExists(_)) => {}
                created => return created,
            }
        }
    }

    /// Names of all tables, in order.
    pub fn table_names(&self) -> Result<Vec<String>> {
        self.inner.check_open()?;
        Ok(self.inner.catalog.tables().into_iter().map(|(name, _)| name).collect())
    }

    /// How many tables have names that begin so.
    pub fn count_tables(&self, prefix: &str) -> Result<usize> {
        self.inner.check_open()?;
        Ok(self.inner.catalog.count_with_prefix(prefix))
    }

    /// Whether there is a table of this name; its file is not looked at.
    pub fn table_exists(&self, name: &str) -> Result<bool> {
        self.inner.check_open()?;
        Ok(self.inner.catalog.get(name).is_some())
    }

    /// The definition of a table; its file is not looked at.
    pub fn table_def(&self, name: &str) -> Result<TableDef> {
        self.inner.check_open()?;
        let record =
            self.inner.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        Ok(record.def.clone())
    }

    /// Gives the indexes of a table these names, in their order. Transactions may use the table
    /// meanwhile; open handles keep the definition that they were opened with.
    ///
    /// [`Error::TableMissing`] if there is no table of this name; [`Error::TableBusy`] while its
    /// indexes are being changed.
    pub fn rename_indexes(&self, name: &str, names: &[&str]) -> Result<()> {
        let inner = &self.inner;
        let _one = inner.begin_definition(&[name])?;
        let record = inner.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        match record.with_index_names(names)? {
            None => Ok(()),
            Some(renamed) => inner.catalog.replace(&mut inner.definition_trx(), name, renamed),
        }
    }

    /// Sets the names that a table's indexes have where its definition is kept besides: if a crash
    /// came between the two, the reports say these from now on. Writes nothing.
    pub fn learn_index_names(&self, name: &str, names: &[&str]) -> Result<()> {
        self.inner.check_open()?;
        self.inner.catalog.learn_index_names(name, names)
    }

    /// Replaces the metadata of a table. Open handles keep those that they were opened with.
    pub fn set_table_metadata(&self, name: &str, metadata: &[u8]) -> Result<()> {
        self.change_tables(&DefinitionChange {
            metadata: &[(name, metadata)],
            ..DefinitionChange::default()
        })
    }
}

/// Whether a table that gets an empty file takes rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Discarded {
    No,
    Yes,
}

/// Tables that are about to be dropped: announced as such in the log, and their entrances closed.
/// Those that are still in it when
/// it is dropped stay.
struct Leaving<'a> {
    inner: &'a Inner,
    /// Their spaces, and the tables if they are open.
    tables: Vec<(u32, Option<Arc<Table>>)>,
}

impl Leaving<'_> {
    /// Adds a table; returns its id.
    fn take(&mut self, name: &str) -> Result<u64> {
        let inner = self.inner;
        let record = inner.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        let table = inner.close_for_definition(name, record.space)?;
        self.tables.push((record.space, table));
        inner.env.add_pending_space(record.space)?;
        Ok(record.id)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        for (space, table) in &self.tables {
            self.inner.env.remove_pending_space(*space);
            table.as_ref().inspect(|table| table.reopen_entrance());
        }
    }
}

/// A definition change's turn.
pub(super) struct Definition<'a> {
    inner: &'a Inner,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Definition<'_> {
    fn drop(&mut self) {
        self.inner.tables.lock().changing.clear();
        self.inner.changed.notify_all();
    }
}

impl OpenTables {
    pub(super) fn begin_load(&mut self, name: &str, table: &Arc<Table>) {
        self.changing_indexes.insert(name.into());
        self.loading.insert(name.into(), table.clone());
    }

    pub(super) fn end_load(&mut self, name: &str) {
        self.changing_indexes.remove(name);
        self.loading.remove(name);
    }

    fn begin_changing(&mut self, names: &[&str]) -> Result<()> {
        if let Some(busy) = names.iter().find(|name| self.changing_indexes.contains(**name)) {
            return Err(Error::TableBusy(busy.to_string()));
        }
        self.changing = names.iter().map(|name| name.to_string()).collect();
        Ok(())
    }
}

impl Inner {
    /// Leave to write to a full log, if a page of one of these tables can't be written: the log may
    /// be full because of it, and has room once the page is discarded.
    fn log_reserve_to_drop(&self, names: &[&str]) -> Option<LogReserve> {
        let pool = self.env.pool();
        let mut spaces = names.iter().filter_map(|name| Some(self.catalog.get(name)?.space));
        spaces.any(|space| pool.has_unwritten_pages(space)).then(LogReserve::take)
    }

    /// Waits for its turn. Then no thread opens the tables of these names until the result is
    /// dropped.
    ///
    /// Rollbacks that an earlier life left go on at the same time: a table's new file or index is
    /// made of what is committed, and a rollback passes over spaces and trees that are gone. Those
    /// of changes of definitions ended with the open.
    ///
    /// [`Error::TableBusy`] if the indexes of one are being changed, or it is being filled.
    pub(super) fn begin_definition(&self, names: &[&str]) -> Result<Definition<'_>> {
        self.check_writable()?;
        let turn = self.definitions.lock();
        self.tables.lock().begin_changing(names)?;
        Ok(Definition { inner: self, _turn: turn })
    }

    /// The same for the end of changes of the indexes of tables `names`, whose beginnings had
    /// separate turns. The metadata of the `others` change with them.
    pub(super) fn begin_definition_of_changes(
        &self,
        names: &[String],
        others: &[(&str, &[u8])],
    ) -> Result<Definition<'_>> {
        self.check_writable()?;
        let turn = self.definitions.lock();
        let others: Vec<_> = others.iter().map(|(name, _)| *name).collect();
        let mut tables = self.tables.lock();
        tables.begin_changing(&others)?;
        tables.changing.extend_from_slice(names);
        Ok(Definition { inner: self, _turn: turn })
    }

    /// The records of tables with other metadata.
    pub(super) fn with_metadata(
        &self,
        metadata: &[(&str, &[u8])],
    ) -> Result<BTreeMap<String, Arc<TableRecord>>> {
        let changed = metadata.iter().map(|(name, metadata)| {
            let record =
                self.catalog.get(name).ok_or_else(|| Error::TableMissing((*name).into()))?;
            let mut record = TableRecord::clone(&record);
            record.def.metadata = metadata.to_vec();
            record.def.validate()?;
            Ok((name.to_string(), Arc::new(record)))
        });
        changed.collect()
    }

    /// The table, for the definition change whose turn it is.
    pub(super) fn open_in_definition(&self, name: &str) -> Result<Arc<Table>> {
        self.open_among(&mut self.tables.lock(), name)
    }

    fn open_among(&self, tables: &mut OpenTables, name: &str) -> Result<Arc<Table>> {
        if let Some(table) = tables.by_name.get(name) {
            return Ok(table.clone());
        }
        let record = self.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        let opened = self.open_space_of(&record);
        let (space, header) = opened.map_err(|error| error.with_table(name))?;
        let table = Arc::new(Table::open(&self.env, &space, name, &record, &header));
        if !table.has_settled_rows()
            && let Err(error) = table.estimate_rows()
        {
            // A reader of that page gets the error; the other pages are of use.
            tracing::warn!(table = name, %error, "the rows of a table can't be estimated");
        }
        if let Some(since) = tables.named_since(name, record.id) {
            table.set_since(since);
        }
        tables.by_name.insert(name.into(), table.clone());
        Ok(table)
    }

    /// Notes that tables (name, id) have left their names, and forgets those that did so before
    /// every live snapshot.
    fn note_vacated<'a>(
        &self,
        tables: &mut OpenTables,
        left: impl Iterator<Item = (&'a str, u64)>,
    ) {
        let newest = self.catalog.newest_change();
        tables.vacated.extend(left.map(|(name, id)| (name.to_owned(), (newest, id))));
        if let Some(horizon) = self.trx_system.views.horizon(&self.trx_system.csn) {
            tables.vacated.retain(|_, (since, _)| *since > horizon);
        }
    }

    pub(super) fn definition_trx(&self) -> TransactionCore {
        self.trx_system
            .begin(TransactionOptions { isolation: Isolation::ReadCommitted, read_only: false })
    }

    /// Opens the file of `record` and checks its header.
    pub(super) fn open_space_of(&self, record: &TableRecord) -> Result<(Arc<Space>, SpaceHeader)> {
        let env = &self.env;
        let name = space_file_name(record.space);
        if !env.storage().exists(&name)? {
            return Err(Error::format(name, "the file is missing", Remedy::PutBackOrDrop));
        }
        let is_forced = env.force_recovery().is_read_only();
        if record.lost_changes && !is_forced {
            let why = "the file was missing when a crash was recovered from, and lacks changes \
                       made before";
            return Err(Error::format(name, why, Remedy::RestoreTable));
        }
        let space = env.space(record.space)?;
        space.set_compression(record.def.compression);
        match self.header_of(&space) {
            Err(error) if is_forced => {
                tracing::error!("{error}; what can be read of the table is read all the same");
                Ok((space, SpaceHeader::unknown(record.space)))
            }
            header => Ok((space, header?)),
        }
    }

    /// The header of a table's space, checked.
    fn header_of(&self, space: &Space) -> Result<SpaceHeader> {
        let env = &self.env;
        let header = space_header::read(env.pool(), space)?;
        header.check(space.name(), env.page_size(), space.id(), &env.instance())?;
        space.note_page_count(header.size_pages);
        Ok(header)
    }

    /// The open table of this name with its entrance closed, or `None` if its file is missing or
    /// unusable.
    fn close_for_definition(&self, name: &str, space: u32) -> Result<Option<Arc<Table>>> {
        if self.is_used_by_recovered(space) {
            return Err(Error::TableBusy(name.into()));
        }
        let table = self.tables.lock().by_name.get(name).cloned();
        let Some(table) = table else {
            pause::reach(PausePoint::TableFoundClosed);
            return Ok(None);
        };
        table.close_entrance(&self.presences)?;
        Ok(Some(table))
    }

    /// Begins a definition change, and makes a table for it that is not in the catalog yet.
    /// [`Error::TableExists`] if there is one of this name.
    pub(super) fn new_table(
        &self,
        name: &str,
        def: &TableDef,
    ) -> Result<(Definition<'_>, Arc<Table>, TableRecord)> {
        check_table_name(name, max_key_len(self.env.page_size()))?;
        def.validate()?;
        let turn = self.begin_definition(&[name])?;
        if self.catalog.get(name).is_some() {
            return Err(Error::TableExists(name.into()));
        }
        let (space, header, record) = self.new_space(def)?;
        let table = Arc::new(Table::open(&self.env, &space, name, &record, &header));
        Ok((turn, table, record))
    }

    /// Enters a new table in the catalog, durably, and among the open ones.
    pub(super) fn list_table(
        &self,
        name: &str,
        record: TableRecord,
        table: &Arc<Table>,
        attachments: &[Attachment<'_>],
    ) -> Result<()> {
        self.catalog.insert(&mut self.definition_trx(), name, record, attachments)?;
        table.set_since(self.catalog.newest_change());
        self.tables.lock().by_name.insert(name.into(), table.clone());
        Ok(())
    }

    /// A new file with an empty tree for each index. Not in the catalog yet.
    pub(super) fn new_space(
        &self,
        def: &TableDef,
    ) -> Result<(Arc<Space>, SpaceHeader, TableRecord)> {
        let key = self.key_for_new_table(&def.encryption)?;
        let ids = self.catalog.new_ids(def.indexes.len() as u32)?;
        let pending = self.env.add_pending_space(ids.space);
        let create = || self.env.create_encrypted_space(ids.space, key);
        let made = pending.and_then(|()| create()).and_then(|space| {
            space.set_compression(def.compression);
            let trees = make_trees(&self.env, &space, ids.first_tree, def.indexes.len())?;
            pause::reach(PausePoint::TableMade);
            // Behind the catalog's commit nothing may fail.
            let header = space_header::read(self.env.pool(), &space)?;
            Ok((space, header, trees))
        });
        match made {
            Ok((space, header, trees)) => Ok((
                space,
                header,
                TableRecord {
                    id: ids.table,
                    space: ids.space,
                    lost_changes: false,
                    has_notes: false,
                    is_discarded: false,
                    trees,
                    def: def.clone(),
                },
            )),
            Err(error) => {
                self.env.forget_space(ids.space);
                Err(error)
            }
        }
    }

    /// Gives a table an empty file, and removes the one it has. Within the turn of a definition
    /// change.
    pub(super) fn give_empty_file(
        &self,
        name: &str,
        old: &TableRecord,
        discarded: Discarded,
    ) -> Result<Arc<Table>> {
        let inner = self;
        let old_table = inner.close_for_definition(name, old.space)?;
        let swapped = inner.new_space(&old.def).and_then(|(space, header, mut new)| {
            new.id = old.id;
            new.is_discarded = discarded == Discarded::Yes;
            let table = Arc::new(Table::open(&inner.env, &space, name, &new, &header));
            let space = new.space;
            let replaced = inner
                .env
                .add_pending_space(old.space)
                .and_then(|()| inner.catalog.replace(&mut inner.definition_trx(), name, new));
            replaced.inspect_err(|_| {
                inner.env.remove_pending_space(old.space);
                inner.env.forget_space(space);
            })?;
            Ok(table)
        });
        let table = match swapped {
            Ok(table) => table,
            Err(error) => {
                old_table.inspect(|table| table.reopen_entrance());
                return Err(error);
            }
        };
        table.set_since(inner.catalog.newest_change());
        inner.tables.lock().by_name.insert(name.into(), table.clone());
        inner.delete_space(old.space, old_table.as_deref());
        Ok(table)
    }

    /// Removes the space of a dropped table. The table is gone already: what fails here leaves a
    /// file that the close, or the next open, removes.
    pub(super) fn delete_space(&self, space: u32, table: Option<&Table>) {
        let _no_purge = self.trx_system.exclude_purge();
        let _cleared = table.map(Table::clear);
        pause::reach(PausePoint::TableUnlisted);
        self.env.forget_space(space);
    }
}

fn make_trees(
    env: &Arc<Env>,
    space: &Arc<Space>,
    first: u32,
    count: usize,
) -> Result<Vec<TreeRecord>> {
    let mut mtr = Mtr::begin(env)?;
    space::create(&mut mtr, env, space)?;
    mtr.commit();
    (first..)
        .take(count)
        .map(|tree| {
            let mut mtr = Mtr::begin(env)?;
            let root = VersionedTree::create(&mut mtr, env, space, tree)?;
            mtr.commit();
            Ok(TreeRecord { tree, root })
        })
        .collect()
}
