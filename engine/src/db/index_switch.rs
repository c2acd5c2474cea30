//! The end of changes of indexes, and of rebuilds: the catalog takes what they have made, and what
//! is in use no more goes.
//!
//! ```text
//! notes, or a pending space, for what is about to go → catalog commit → it goes
//! ```
//! Until the catalog's commit the table is what it was, and an error leaves it so.

use super::Inner;
use super::definition::Definition;
use super::index_change::IndexChange;
use crate::catalog::{Attachment, TableRecord};
use crate::error::{Error, Result};
use crate::format::space_header;
use crate::pause::{self, PausePoint};
use crate::table::{Table, provisional_trees};
use std::collections::BTreeMap;
use std::sync::Arc;

impl IndexChange {
    /// Makes the new definition the table's; durable on return. Handles of the table are void then,
    /// the one returned is good. `metadata` is what replaces that of tables, this one or others, at
    /// the same moment.
    ///
    /// [`Error::TableBusy`] while a transaction that has used the table is unfinished, or the
    /// indexes of one of the others are being changed. [`Error::InvalidOption`] if rows were
    /// written, and there was no round since the writes were stopped.
    pub fn commit(mut self, metadata: &[(&str, &[u8])]) -> Result<Arc<Table>> {
        self.try_commit(metadata)
    }

    /// The same. After [`Error::TableBusy`] it may be tried again: nothing that was built is lost.
    /// Between the tries the table takes no writes, and no round can begin.
    pub fn try_commit(&mut self, metadata: &[(&str, &[u8])]) -> Result<Arc<Table>> {
        let mut tables = Self::try_commit_all(std::slice::from_mut(self), metadata, &[])?;
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
        Self::try_commit_all(&mut changes, metadata, attachments)
    }

    fn try_commit_all(
        changes: &mut [IndexChange],
        metadata: &[(&str, &[u8])],
        attachments: &[Attachment<'_>],
    ) -> Result<Vec<Arc<Table>>> {
        Attachment::validate_all(attachments)?;
        let refuse = |why: &str| Err(Error::InvalidOption(format!("change of indexes: {why}")));
        let Some(inner) = changes.first().map(|change| change.inner.clone()) else {
            return refuse("there is none");
        };
        let mut others: BTreeMap<&str, &[u8]> = metadata.iter().copied().collect();
        if changes.iter().any(|change| change.committed) {
            return refuse("it is committed");
        }
        for change in &mut *changes {
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
        for change in &*changes {
            if inner.is_used_by_recovered(change.table.space_id()) {
                return Err(Error::TableBusy(change.name.clone()));
            }
            if change.rebuild.is_none() {
                // The exact counters: the table is opened anew by them.
                change.table.settle()?;
            }
        }
        let mut closed = ClosedEntrances(Vec::with_capacity(changes.len()));
        for change in &*changes {
            change.table.close_entrance_within(&inner.presences, change.wait)?;
            closed.0.push(change.table.clone());
        }
        let tables = inner.switch_all(changes, others, attachments)?;
        // The old ones stay closed.
        closed.0.clear();
        drop(closed);
        for change in changes {
            change.committed = true;
            change.tidy_up(&turn);
            change.leave_lists(&turn);
        }
        Ok(tables)
    }

    /// The table may be changed anew. Within the turn that has made the change, or taken it back: a
    /// close that comes right behind it must not find the file of a rebuild listed, which it would
    /// remove.
    fn leave_lists(&self, _turn: &Definition<'_>) {
        // In this order: from the second on there may be another change, whose refusal stands.
        self.table.take_writes();
        self.inner.tables.lock().end_load(&self.name);
    }

    /// Frees the trees that belong to no index, those dropped or, if it did not come to the commit,
    /// those added; then the notes are not needed any more. What fails here is done by the next
    /// opening. Of a table that is rebuilt the one file goes, or the other.
    fn tidy_up(&mut self, _turn: &Definition<'_>) {
        if let Some(rebuild) = &self.rebuild {
            match self.committed {
                true => self.inner.retire(&self.table),
                false => self.inner.delete_space(rebuild.table.space_id(), Some(&rebuild.table)),
            }
            return;
        }
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
        pause::reach(PausePoint::IndexChangeEnds);
        if self.committed {
            // It is in no list any more: another change may be.
            return;
        }
        let name = std::slice::from_ref(&self.name);
        match self.inner.clone().begin_definition_of_changes(name, &[]) {
            Ok(turn) => {
                self.tidy_up(&turn);
                self.leave_lists(&turn);
            }
            Err(error) => {
                // It stays listed: a close that is on its way removes the file of a rebuild.
                self.table.take_writes();
                tracing::warn!(
                    table = self.name,
                    %error,
                    "pages of an index that was not finished stay in use until the next start"
                );
            }
        }
        pause::reach(PausePoint::IndexChangeOver);
    }
}

/// Files that are about to be replaced: pending. Those still in it when it is dropped stay.
struct LeavingSpaces<'a> {
    inner: &'a Inner,
    spaces: Vec<u32>,
}

impl LeavingSpaces<'_> {
    fn take(&mut self, space: u32) -> Result<()> {
        self.inner.env.add_pending_space(space)?;
        self.spaces.push(space);
        Ok(())
    }
}

impl Drop for LeavingSpaces<'_> {
    fn drop(&mut self) {
        for &space in &self.spaces {
            self.inner.env.remove_pending_space(space);
        }
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
        let mut records = records;
        for change in changes {
            records.insert(change.name.clone(), Arc::new(change.record.clone()));
        }
        // Before the catalog entries are gone: rows of the tables are still found by threads that
        // ask for estimates.
        let _nobody: Vec<_> = changes.iter().map(|change| change.table.clear()).collect();
        let tables = changes.iter().map(|change| self.table_after(change));
        let tables = tables.collect::<Result<Vec<_>>>()?;
        let replaced = changes.iter().filter(|change| change.rebuild.is_some());
        let mut leaving = LeavingSpaces { inner: self, spaces: Vec::new() };
        for change in replaced {
            leaving.take(change.table.space_id())?;
        }
        let mut trx = self.definition_trx();
        self.catalog.change(&mut trx, &[], records, attachments)?;
        leaving.spaces.clear();
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

    /// The table that a change leaves.
    fn table_after(&self, change: &IndexChange) -> Result<Arc<Table>> {
        let (name, record) = (&change.name, &change.record);
        if let Some(rebuild) = &change.rebuild {
            return self.table_rebuilt(name, &change.table, rebuild, record);
        }
        let env = &self.env;
        let space = env.space(record.space)?;
        let header = space_header::read(env.pool(), &space)?;
        for tree in &change.dropped {
            provisional_trees::add(env, &space, *tree)?;
        }
        Ok(Arc::new(Table::open(env, &space, name, record, &header)))
    }
}
