//! The catalog, undo, and each table: trees, and whether allocation agrees with what trees lead to.

use super::{IndexReport, InspectProgress, Inspection, ProgressFn, Report, TableReport};
use crate::catalog::TableRecord;
use crate::db::Db;
use crate::error::{Error, Remedy, Result};
use crate::files::{SYSTEM_SPACE, space_file_name};
use crate::format::entry::Entry;
use crate::space::{self, PageSet};

impl Inspection {
    pub(super) fn check_tables(
        &self,
        db: &Db,
        report: &mut Report,
        progress: ProgressFn<'_>,
    ) -> Result<()> {
        let file_bytes = self.file_bytes()?;
        let (mut done_bytes, total_bytes) = (file_bytes, 2 * file_bytes);
        let found = self.check_catalog(db);
        report.problems.extend(found.err().map(|error| error.to_string()));
        match self.check_undo(db) {
            Ok(()) => {}
            Err(error @ Error::Key { .. }) => report.note_missing_key("undo records", &error),
            Err(error) => report.problems.push(error.to_string()),
        }
        let is_settled = self.is_settled(db);
        for (name, record) in db.catalog().tables() {
            let file = space_file_name(record.space);
            let mut table_report =
                TableReport { name: name.clone(), file: file.clone(), ..TableReport::default() };
            let lost_changes = self.has_lost_changes(db, &record);
            if lost_changes {
                let why = "it has lost changes in a recovery that did not find it";
                let error = Error::format(&*file, why, Remedy::RestoreTable);
                table_report.problems.push(error.to_string());
            }
            let page_size = self.page_size().bytes() as u64;
            let len = self.base.exists(&file)?.then(|| self.base.open(&file)).transpose()?;
            let len = len.map_or(Ok(0), |file| file.len())?;
            let mut leaves = 0;
            let mut told = || {
                leaves += 1;
                // Pages are longer than their images.
                let done_bytes = done_bytes + (leaves * page_size).min(len);
                progress(InspectProgress { what: &name, done_bytes, total_bytes });
            };
            let mut files = report.files.iter();
            let found = if files.any(|found| found.file == file && found.encrypted_pages > 0) {
                Err(Error::no_key("pages of its file are encrypted, and their key was not given"))
            } else if lost_changes {
                Ok(())
            } else {
                check_table(db, &name, is_settled, &mut table_report, &mut told)
            };
            match found {
                Ok(()) => {}
                Err(error @ Error::Key { .. }) => {
                    report.note_missing_key(&format!("table {name}"), &error);
                }
                Err(error) => table_report.problems.push(error.to_string()),
            }
            report.tables.push(table_report);
            done_bytes += len;
        }
        Ok(())
    }

    /// Whether the log had changes of the table that recovery could not make. A start that writes
    /// nothing has not marked such a table.
    pub(super) fn has_lost_changes(&self, db: &Db, record: &TableRecord) -> bool {
        record.lost_changes || db.inner.env().missing_spaces().contains(&record.space)
    }

    /// Whether no rollback and no purge will free pages.
    fn is_settled(&self, db: &Db) -> bool {
        let status = db.trx_system();
        status.rollbacks_pending() == 0
            && status.undo.history_len() == 0
            && status.recovered_xids().is_empty()
    }

    fn check_catalog(&self, db: &Db) -> Result<()> {
        let env = db.inner.env();
        let tree = db.catalog().tree().tree();
        let walked = tree.check(&mut |leaf, first| match (first..leaf.count())
            .find(|&slot| Entry::decode(leaf.payload(slot)).is_none())
        {
            Some(slot) => Err(crate::format::entry::corrupt_entry(
                tidepool_pool::page::page_id(leaf.page()),
                slot,
            )),
            None => Ok(()),
        })?;
        let mut reached = PageSet::default();
        walked.pages.iter().for_each(|&no| reached.insert(no));
        let system = env.space(SYSTEM_SPACE)?;
        // Long records have chains, which may be of versions that purge has still to free.
        space::check_allocated(env, &system, &reached).map(drop)
    }

    fn check_undo(&self, db: &Db) -> Result<()> {
        let (env, undo) = (db.inner.env(), &db.trx_system().undo);
        let mut reached = PageSet::default();
        undo.check_pages(&mut |no| reached.insert(no))?;
        space::check_allocated(env, undo.space(), &reached).map(drop)
    }
}

fn check_table(
    db: &Db,
    name: &str,
    is_settled: bool,
    report: &mut TableReport,
    told: &mut dyn FnMut(),
) -> Result<()> {
    let table = db.open_table(name)?;
    let mut reached = PageSet::default();
    let checked = table.check_pages(&mut reached, &mut |_| {
        told();
        true
    })?;
    let indexes = table.def().indexes.iter().zip(&checked.indexes);
    report.indexes = indexes
        .map(|(index, found)| IndexReport {
            name: index.name.clone(),
            entries: found.entries,
            delete_marked: found.delete_marked,
            pages: found.pages,
        })
        .collect();
    let is_whole = checked.is_clean();
    report.problems.extend(checked.problems);
    let unreachable = table.compare_allocation(&reached);
    match unreachable {
        // Of a tree that could not be walked to its end, not all pages were reached.
        Ok(pages) if is_whole && is_settled => report.unreachable_pages = Some(pages),
        Ok(_) => {}
        Err(error) if error.is_of_files() => {
            report.problems.push(error.to_string());
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
