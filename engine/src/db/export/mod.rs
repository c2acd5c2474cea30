//! One table moves between databases: its entries are written to a file in the order of their keys,
//! and a table is filled of such a file.
//!
//! # Export
//! The file has the entries that one snapshot sees, in all indexes, and nothing of this database:
//! no transactions, older versions, pages or ids. So nothing waits for the export, and nothing has
//! to be settled or purged for it. A table that a prepared transaction without a session has used
//! is refused: its rows would be missed.
//!
//! # Discard
//! The table gets an empty file, as by TRUNCATE, and the catalog notes in the same commit that it
//! was discarded. No transaction enters it then ([`Error::TableDiscarded`]).
//!
//! # Import
//! A [load](super::load): pages are written once, in order, through the log. So a backup that is
//! under way has them, and after a crash the table is as it was before (discarded, or not there),
//! or imported. Nothing of the file is believed before its checksum is right, and the table is not
//! there before the file's end was.

pub(crate) mod file;
#[cfg(test)]
mod tests;

use super::definition::Discarded;
use super::{Cursor, Db, TableLoad};
use crate::catalog::{ATTACHMENT_LEN_MAX, TableDef, TableRecord};
use crate::error::{Error, Result};
use crate::lock::{LockMode, LockWait};
use crate::table::Table;
use crate::trx::{Isolation, TransactionOptions};
use file::{Block, Exported, TableExport, Writer};
use std::io::Write;
use std::sync::Arc;
use tidepool_pool::PageCompression;
use tidepool_pool::packed::Codec;

/// How far an export or an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ExportProgress {
    /// Entries of all indexes written or read.
    pub entries: u64,
    /// Bytes of the file written or read.
    pub bytes: u64,
}

/// Entries between two looks at whether an export goes on.
const ENTRIES_A_TURN: u64 = 1000;

impl Db {
    /// Writes all rows of a table that are committed to `to`, from which
    /// [`import_table`](Self::import_table) makes a table of another database, whatever its page
    /// size. `description` is kept for the importing layer. Other transactions go on; the file has
    /// nothing that they commit after its beginning. `go_on` is called every thousand entries; if it
    /// returns false, the export ends with [`Error::Interrupted`].
    ///
    /// ```
    /// # use tidepool::{Db, Options, TableDef, TableExport};
    /// # let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    /// # let db = Db::open(here.path(), Options::default())?;
    /// let fruit = db.open_or_create_table("fruit", &TableDef::map())?;
    /// db.write(|trx| trx.put(&fruit, b"apple", b"red"))?;
    /// let mut file = Vec::new();
    /// db.export_table("fruit", &[], &mut file, &mut |_| true)?;
    ///
    /// let other = Db::open(there.path(), Options::default())?;
    /// let export = TableExport::open("fruit.tpx", Box::new(std::io::Cursor::new(file)))?;
    /// let def = export.exported().def.clone();
    /// let fruit = other.import_table("fruit", &def, export, &mut |_| true)?;
    /// assert_eq!(fruit.rows(), 1);
    /// # db.close()?;
    /// # other.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TableMissing`] if there is no table of this name, [`Error::TableBusy`] if a
    /// prepared transaction without a session has used it. After any error the file is not
    /// complete, and can't be imported.
    pub fn export_table(
        &self,
        name: &str,
        description: &[u8],
        to: &mut dyn Write,
        go_on: &mut dyn FnMut(ExportProgress) -> bool,
    ) -> Result<ExportProgress> {
        let inner = &self.inner;
        let table = self.open_table(name)?;
        table.check_not_discarded()?;
        if inner.is_used_without_session(table.space_id()) {
            return Err(Error::TableBusy(name.into()));
        }
        if description.len() > ATTACHMENT_LEN_MAX {
            let len = description.len();
            let why = format!("a description of {len} bytes: must be at most {ATTACHMENT_LEN_MAX}");
            return Err(Error::InvalidOption(why));
        }
        let mut trx = self
            .begin(TransactionOptions { isolation: Isolation::RepeatableRead, read_only: true });
        trx.ensure_view();
        let def = self.table_def(name)?;
        if def.indexes.len() != table.index_count() {
            return Err(Error::TableBusy(name.into()));
        }
        let encryption = inner.env.encryption();
        let key = match encryption.key_id_of(&def.encryption) {
            Some(id) => Some(encryption.newest(id)?),
            None => table.space().file().encrypts_with(),
        };
        let codec = match def.compression {
            PageCompression::Off => Codec::Raw,
            PageCompression::Zstd => Codec::Zstd,
            PageCompression::Auto | PageCompression::Lz4 => Codec::Lz4,
        };
        let exported = Exported {
            table: name.into(),
            page_size: inner.env.page_size() as u32,
            auto_increment: table.auto_increment(),
            key_id: key.as_ref().map(|key| key.id()),
            def,
            description: description.to_vec(),
        };
        let mut writer = Writer::begin(to, &exported, codec, key)?;
        let mut progress = ExportProgress::default();
        for index in 0..table.index_count() {
            let mut cursor = Cursor::new(table.clone(), index, LockMode::None, LockWait::Wait);
            cursor.set_scan(true);
            let mut is_there = cursor.first(&mut trx)?;
            while is_there {
                if progress.entries.is_multiple_of(ENTRIES_A_TURN) {
                    progress.bytes = writer.written();
                    if !go_on(progress) {
                        return Err(Error::Interrupted);
                    }
                }
                writer.entry(index, cursor.key(), cursor.value())?;
                progress.entries += 1;
                is_there = cursor.next(&mut trx)?;
            }
        }
        writer.finish()?;
        trx.rollback()?;
        Ok(progress)
    }

    /// Takes the rows of a table away, as [`truncate_table`](Self::truncate_table) does, and leaves
    /// one that no transaction uses ([`Error::TableDiscarded`]) until an export is
    /// [imported](Self::import_table). Handles of it are void; the one returned is good.
    /// Discarding it again changes nothing. Errors as for [`drop_table`](Self::drop_table).
    pub fn discard_table(&self, name: &str) -> Result<Arc<Table>> {
        let inner = &self.inner;
        let _one = inner.begin_definition(&[name])?;
        let old = inner.catalog.get(name).ok_or_else(|| Error::TableMissing(name.into()))?;
        match old.is_discarded {
            true => inner.open_in_definition(name),
            false => inner.give_empty_file(name, &old, Discarded::Yes),
        }
    }

    /// Whether the rows of a table were discarded.
    pub fn is_discarded(&self, name: &str) -> Result<bool> {
        self.inner.check_open()?;
        let record = self.inner.catalog.get(name);
        Ok(record.ok_or_else(|| Error::TableMissing(name.into()))?.is_discarded)
    }

    /// Fills a table of an export: one that was [discarded](Self::discard_table), or a new one. It
    /// gets the definition `def`, whose indexes are those of the export, in its order; its other
    /// parts are the caller's. Durable on return; no session sees it before. Snapshots from before
    /// the import are refused ([`Error::TableChanged`]). `go_on` is asked now and then; if it says
    /// no, that is [`Error::Interrupted`].
    ///
    /// # Errors
    /// [`Error::TableExists`] if there is a table of this name with its rows;
    /// [`Error::InvalidOption`] if `def` has other indexes than the export; [`Error::Format`] if
    /// the file is damaged or not complete; [`Error::Key`] if it is encrypted with a key that can't
    /// be had. After any error the table is as it was before.
    pub fn import_table(
        &self,
        name: &str,
        def: &TableDef,
        mut from: TableExport,
        go_on: &mut dyn FnMut(ExportProgress) -> bool,
    ) -> Result<Arc<Table>> {
        if def.indexes != from.exported().def.indexes {
            let why = "a table that is imported has the indexes of its export, in their order";
            return Err(Error::InvalidOption(why.into()));
        }
        def.validate()?;
        let discarded = |old: &TableRecord| match old.is_discarded {
            true => Ok(def.clone()),
            false => Err(Error::TableExists(name.into())),
        };
        let mut load = match self.inner.catalog.get(name) {
            None => self.load_table(name, def)?,
            Some(_) => self.fill_table_of(name, discarded)?,
        };
        self.fill_from(&mut load, &mut from, go_on)?;
        load.raise_auto_increment(from.exported().auto_increment)?;
        load.commit()
    }

    /// Gives a load all entries of an export.
    fn fill_from(
        &self,
        load: &mut TableLoad,
        from: &mut TableExport,
        go_on: &mut dyn FnMut(ExportProgress) -> bool,
    ) -> Result<()> {
        let env = &self.inner.env;
        let key_of_block = |id, version| env.encryption().version(id, version);
        let mut counts = vec![0u64; from.exported().def.indexes.len()];
        let mut progress = ExportProgress::default();
        // What an entry has that goes on in the next block, and of which index.
        let (mut bytes, mut filling) = (Vec::new(), 0);
        loop {
            if !go_on(progress) {
                return Err(Error::Interrupted);
            }
            env.give_way_in_log();
            let is_between_entries = bytes.is_empty();
            let index = match from.block(&key_of_block, &mut bytes)? {
                Block::Entries { index } if index == filling || is_between_entries => index,
                Block::Entries { .. } => return Err(from.spoilt("an entry has no end")),
                Block::End(expected) if expected == counts && bytes.is_empty() => {
                    return load.build(&mut || go_on(progress));
                }
                Block::End(_) => {
                    return Err(from.spoilt("its entries are not as many as its end says"));
                }
            };
            if index < filling {
                return Err(from.spoilt("its indexes are not in their order"));
            }
            filling = index;
            let mut at = 0;
            while let Some((key, value, len)) = file::entry(&bytes[at..]) {
                load.push(index, key, value).map_err(|error| match error {
                    Error::KeyOutOfOrder { .. } | Error::DuplicateKey { .. } => {
                        from.spoilt("its keys are not in their order")
                    }
                    error => error,
                })?;
                counts[index] += 1;
                at += len;
            }
            bytes.drain(..at);
            progress.entries = counts.iter().sum();
            progress.bytes = from.bytes_read();
        }
    }
}
