//! LMDB: a copy-on-write B-tree in a file that is mapped. The kernel's cache is all that it has.

use super::{EachRow, LOAD_ROWS, Session, Snapshot, Store};
use crate::error::{Error, Result};
use crate::row::{Key, Row};
use heed::types::Bytes;
use heed::{Database, Env, EnvOpenOptions, PutFlags, RoTxn, WithoutTls};
use std::ops::Bound;
use std::path::Path;

pub(super) const NAME: &str = "LMDB";
pub(super) const SETTINGS: &str = "no cache beside the kernel's, so the memory does not bound it. \
    A commit syncs the file (its default); one writer at a time. A load in key order appends \
    (`MDB_APPEND`)";

/// Addresses that the file may take: more than any run needs.
const MAP_BYTES: usize = 64 << 30;

pub(super) struct Lmdb {
    env: Env<WithoutTls>,
    rows: Database<Bytes, Bytes>,
}

fn error<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> Error {
    Error::of(NAME, doing)
}

impl Lmdb {
    pub(super) fn open(dir: &Path, sessions: usize) -> Result<Lmdb> {
        std::fs::create_dir_all(dir).map_err(Error::at(dir))?;
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP_BYTES).max_readers(sessions as u32 + 8);
        // SAFETY: The directory is the task's alone. Nothing else writes the file or makes it
        // shorter while it is mapped, and this process has it open once.
        let env = unsafe { options.open(dir) }.map_err(error("open"))?;
        let mut trx = env.write_txn().map_err(error("begin a write"))?;
        let rows = env.create_database(&mut trx, None).map_err(error("open the table"))?;
        trx.commit().map_err(error("commit"))?;
        Ok(Lmdb { env, rows })
    }

    fn read(&self) -> Result<RoTxn<'_, WithoutTls>> {
        self.env.read_txn().map_err(error("begin a read"))
    }

    fn get(&self, trx: &RoTxn<'_, WithoutTls>, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.rows.get(trx, key).map_err(error("read"))?;
        value.extend_from_slice(found.unwrap_or_default());
        Ok(found.is_some())
    }

    fn write(&self, rows: &[Row], write: Write) -> Result<()> {
        let mut trx = self.env.write_txn().map_err(error("begin a write"))?;
        for Row { key, value } in rows {
            if write != Write::Append {
                let is_there = self.rows.get(&trx, key).map_err(error("read"))?.is_some();
                if is_there != (write == Write::Update) {
                    return Err(Error::WrongData(format!("{key:?} was there: {is_there}")));
                }
            }
            let flags = if write == Write::Append { PutFlags::APPEND } else { PutFlags::empty() };
            self.rows.put_with_flags(&mut trx, flags, key, value).map_err(error("write"))?;
        }
        trx.commit().map_err(error("commit"))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Write {
    /// The rows are not there.
    Insert,
    /// The same, and all of their keys are greater than those that are.
    Append,
    /// The rows are there.
    Update,
}

impl Store for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LmdbSession(self)))
    }

    fn load_in_order(&self, rows: &mut dyn Iterator<Item = Row>) -> Result<()> {
        loop {
            let batch: Vec<Row> = rows.take(LOAD_ROWS).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.write(&batch, Write::Append)?;
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct LmdbSession<'a>(&'a Lmdb);

impl Session for LmdbSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        self.0.get(&self.0.read()?, key, value)
    }

    fn scan(&mut self, from: &Key, rows: usize, each: &mut EachRow<'_>) -> Result<()> {
        let trx = self.0.read()?;
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(from), Bound::Unbounded);
        let range = self.0.rows.range(&trx, &range).map_err(error("seek"))?;
        for row in range.take(rows) {
            let (key, value) = row.map_err(error("scan"))?;
            each(key, value)?;
        }
        Ok(())
    }

    fn insert(&mut self, rows: &[Row]) -> Result<()> {
        self.0.write(rows, Write::Insert)
    }

    fn update(&mut self, rows: &[Row]) -> Result<()> {
        self.0.write(rows, Write::Update)
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot + '_>> {
        Ok(Box::new(LmdbSnapshot { store: self.0, trx: self.0.read()? }))
    }
}

struct LmdbSnapshot<'a> {
    store: &'a Lmdb,
    trx: RoTxn<'a, WithoutTls>,
}

impl Snapshot for LmdbSnapshot<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        self.store.get(&self.trx, key, value)
    }
}
