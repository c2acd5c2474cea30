//! Tidepool: one budget for all that it allocates; all else is as it comes.

use super::{EachRow, Session, Snapshot, Store};
use crate::error::{Error, Result};
use crate::row::{Key, Row};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tidepool::{
    Cursor, Db, IndexDef, LockMode, LockWait, Options, ReadRequest, Seek, Table, TableDef,
    Transaction, TransactionOptions,
};

pub(super) const NAME: &str = "Tidepool";
pub(super) const SETTINGS: &str = "`memory_budget_bytes` = the memory: pages, log buffers, all. Durable by default: a commit waits until \
the log is synced (`flush_log_at_trx_commit` = 1); commits at the same time share a sync. REPEATABLE READ, row locks. Direct I/O: the kernel \
caches nothing for it. Its redo log takes up to 128 MiB of the disk. A load in key order is one `load_table`; rows that come together are one `insert_many`; a scan \
knows how many rows are wanted";

const TABLE: &str = "rows";
const CLUSTERED: usize = 0;

pub(super) struct Tidepool {
    db: Db,
    /// Made by the first load or session.
    table: OnceLock<Arc<Table>>,
}

fn error(doing: &'static str) -> impl Fn(tidepool::Error) -> Error {
    Error::of(NAME, doing)
}

fn definition() -> TableDef {
    TableDef::new([IndexDef::unique("key")])
}

impl Tidepool {
    pub(super) fn open(dir: &Path, memory_bytes: u64) -> Result<Tidepool> {
        let options = Options { memory_budget_bytes: memory_bytes, ..Options::default() };
        let db = Db::open(dir, options).map_err(error("open"))?;
        let table = match db.open_table(TABLE) {
            Err(tidepool::Error::TableMissing(_)) => OnceLock::new(),
            opened => opened.map_err(error("open the table"))?.into(),
        };
        Ok(Tidepool { db, table })
    }

    fn table(&self) -> Result<&Arc<Table>> {
        if self.table.get().is_none() {
            match self.db.create_table(TABLE, &definition()) {
                // Another session came first, and is about to say so.
                Err(tidepool::Error::TableExists(_)) => {}
                made => drop(self.table.set(made.map_err(error("create the table"))?)),
            }
        }
        Ok(self.table.wait())
    }
}

impl Store for Tidepool {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let table = self.table()?;
        let reader =
            self.db.begin(TransactionOptions { read_only: true, ..TransactionOptions::default() });
        let cursor = Cursor::new(table.clone(), CLUSTERED, LockMode::None, LockWait::Wait);
        let writer = self.db.begin(TransactionOptions::default());
        Ok(Box::new(TidepoolSession { table, reader, cursor, writer }))
    }

    fn load_in_order(&self, rows: &mut dyn Iterator<Item = Row>) -> Result<()> {
        let mut load = self.db.load_table(TABLE, &definition()).map_err(error("begin a load"))?;
        for Row { key, value } in rows {
            load.push(CLUSTERED, &key, &value).map_err(error("load"))?;
        }
        drop(self.table.set(load.commit().map_err(error("end a load"))?));
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Tidepool { db, table } = *self;
        drop(table);
        db.close().map_err(error("close"))
    }
}

struct TidepoolSession<'a> {
    table: &'a Arc<Table>,
    reader: Transaction,
    cursor: Cursor,
    writer: Transaction,
}

fn read(trx: &mut Transaction, table: &Arc<Table>, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
    trx.read(table, CLUSTERED, ReadRequest::new(key, value)).map_err(error("read"))
}

impl Session for TidepoolSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        let found = read(&mut self.reader, self.table, key, value)?;
        self.reader.commit().map_err(error("end a read"))?;
        Ok(found)
    }

    fn scan(&mut self, from: &Key, rows: usize, each: &mut EachRow<'_>) -> Result<()> {
        let (cursor, trx) = (&mut self.cursor, &mut self.reader);
        cursor.set_expected_rows(rows);
        let mut more = cursor.seek(trx, from, Seek::AtOrAfter).map_err(error("seek"))?;
        let mut left = rows;
        while more && left > 0 {
            each(cursor.key(), cursor.value())?;
            left -= 1;
            if left > 0 {
                more = cursor.next(trx).map_err(error("scan"))?;
            }
        }
        trx.commit().map_err(error("end a scan"))
    }

    fn insert(&mut self, rows: &[Row]) -> Result<()> {
        let entries: Vec<_> = rows.iter().map(|row| (row.key, &row.value)).collect();
        self.writer.insert_many(self.table, CLUSTERED, &entries).map_err(error("insert"))?;
        self.writer.commit().map_err(error("commit"))
    }

    fn update(&mut self, rows: &[Row]) -> Result<()> {
        for Row { key, value } in rows {
            self.writer.update(self.table, CLUSTERED, key, value).map_err(error("update"))?;
        }
        self.writer.commit().map_err(error("commit"))
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot + '_>> {
        self.reader.ensure_view();
        Ok(Box::new(TidepoolSnapshot { table: self.table, trx: &mut self.reader }))
    }
}

struct TidepoolSnapshot<'a> {
    table: &'a Arc<Table>,
    trx: &'a mut Transaction,
}

impl Snapshot for TidepoolSnapshot<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        read(self.trx, self.table, key, value)
    }
}

impl Drop for TidepoolSnapshot<'_> {
    fn drop(&mut self) {
        // It has only read: nothing is lost if this fails, and the next use says so.
        let _ = self.trx.commit();
    }
}
