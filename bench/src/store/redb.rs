//! redb: a copy-on-write B-tree in one file. The memory is its cache.

use super::{EachRow, Session, Snapshot, Store};
use crate::error::{Error, Result};
use crate::row::{Key, Row};
use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase, TableDefinition,
};
use std::path::Path;

pub(super) const NAME: &str = "redb";
pub(super) const SETTINGS: &str = "`set_cache_size` = the memory. `Durability::Immediate` (its default): a commit syncs the file; one \
writer at a time";

const TABLE: TableDefinition<'static, &[u8; 8], &[u8]> = TableDefinition::new("rows");
type Table = ReadOnlyTable<&'static [u8; 8], &'static [u8]>;

pub(super) struct Redb {
    db: Database,
}

fn error<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> Error {
    Error::of(NAME, doing)
}

impl Redb {
    pub(super) fn open(dir: &Path, memory_bytes: u64) -> Result<Redb> {
        std::fs::create_dir_all(dir).map_err(Error::at(dir))?;
        let db = Database::builder()
            .set_cache_size(memory_bytes as usize)
            .create(dir.join("rows.redb"))
            .map_err(error("open"))?;
        let store = Redb { db };
        // A table comes into being with the first write transaction that opens it.
        store.write(&[], false)?;
        Ok(store)
    }

    fn read(&self) -> Result<(ReadTransaction, Table)> {
        let trx = self.db.begin_read().map_err(error("begin a read"))?;
        let table = trx.open_table(TABLE).map_err(error("open the table"))?;
        Ok((trx, table))
    }

    fn write(&self, rows: &[Row], are_there: bool) -> Result<()> {
        let mut trx = self.db.begin_write().map_err(error("begin a write"))?;
        trx.set_durability(Durability::Immediate).map_err(error("ask for durability"))?;
        let mut table = trx.open_table(TABLE).map_err(error("open the table"))?;
        for Row { key, value } in rows {
            let old = table.insert(key, value.as_slice()).map_err(error("write"))?;
            if old.is_some() != are_there {
                return Err(Error::WrongData(format!("{key:?} was there: {}", !are_there)));
            }
        }
        drop(table);
        trx.commit().map_err(error("commit"))
    }
}

impl Store for Redb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RedbSession(self)))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.close().map_err(error("close"))
    }
}

struct RedbSession<'a>(&'a Redb);

fn get(table: &Table, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
    value.clear();
    let found = table.get(key).map_err(error("read"))?;
    let is_there = found.is_some();
    if let Some(found) = found {
        value.extend_from_slice(found.value());
    }
    Ok(is_there)
}

impl Session for RedbSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        let (_trx, table) = self.0.read()?;
        get(&table, key, value)
    }

    fn scan(&mut self, from: &Key, rows: usize, each: &mut EachRow<'_>) -> Result<()> {
        let (_trx, table) = self.0.read()?;
        let range = table.range::<&[u8; 8]>(from..).map_err(error("seek"))?;
        for row in range.take(rows) {
            let (key, value) = row.map_err(error("scan"))?;
            each(key.value(), value.value())?;
        }
        Ok(())
    }

    fn insert(&mut self, rows: &[Row]) -> Result<()> {
        self.0.write(rows, false)
    }

    fn update(&mut self, rows: &[Row]) -> Result<()> {
        self.0.write(rows, true)
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot + '_>> {
        let (trx, table) = self.0.read()?;
        Ok(Box::new(RedbSnapshot { table, _trx: trx }))
    }
}

struct RedbSnapshot {
    table: Table,
    _trx: ReadTransaction,
}

impl Snapshot for RedbSnapshot {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        get(&self.table, key, value)
    }
}
