//! fjall: a log-structured merge tree. The memory is its block cache; its memtables come on top, as
//! its documentation has it.

use super::{EachRow, Session, Store};
use crate::error::{Error, Result};
use crate::row::{Key, Row};
use fjall::{
    KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, PersistMode, Readable,
};
use std::path::Path;

pub(super) const NAME: &str = "fjall";
pub(super) const SETTINGS: &str = "`cache_size` = the memory; its memtables (64 MiB by default) come on top. Transactions of \
`OptimisticTxDatabase` with `PersistMode::SyncAll`; a commit syncs with its lock held. A load in key order is one `start_ingestion`, \
the others can't do that. It writes without looking whether the row is there: the others look";

pub(super) struct Fjall {
    db: OptimisticTxDatabase,
    rows: OptimisticTxKeyspace,
}

fn error<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> Error {
    Error::of(NAME, doing)
}

impl Fjall {
    pub(super) fn open(dir: &Path, memory_bytes: u64) -> Result<Fjall> {
        let builder = OptimisticTxDatabase::builder(dir).cache_size(memory_bytes);
        let db = builder.open().map_err(error("open"))?;
        let rows = db
            .keyspace("rows", KeyspaceCreateOptions::default)
            .map_err(error("open a keyspace"))?;
        Ok(Fjall { db, rows })
    }
}

impl Store for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(FjallSession(self)))
    }

    fn load_in_order(&self, rows: &mut dyn Iterator<Item = Row>) -> Result<()> {
        let mut ingestion = self.rows.inner().start_ingestion().map_err(error("begin a load"))?;
        for Row { key, value } in rows {
            ingestion.write(key, value).map_err(error("load"))?;
        }
        ingestion.finish().map_err(error("end a load"))
    }

    fn close(self: Box<Self>) -> Result<()> {
        // There is no way to close it and hear of errors; what is committed has been synced
        // already.
        self.db.persist(PersistMode::SyncAll).map_err(error("sync"))
    }
}

struct FjallSession<'a>(&'a Fjall);

fn take(found: Option<fjall::UserValue>, value: &mut Vec<u8>) -> bool {
    value.clear();
    let is_there = found.is_some();
    if let Some(found) = found {
        value.extend_from_slice(&found);
    }
    is_there
}

impl Session for FjallSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        Ok(take(self.0.rows.get(key).map_err(error("read"))?, value))
    }

    fn scan(&mut self, from: &Key, rows: usize, each: &mut EachRow<'_>) -> Result<()> {
        let snapshot = self.0.db.read_tx();
        for row in snapshot.range::<&[u8], _>(&self.0.rows, from.as_slice()..).take(rows) {
            let (key, value) = row.into_inner().map_err(error("scan"))?;
            each(&key, &value)?;
        }
        Ok(())
    }

    fn insert(&mut self, rows: &[Row]) -> Result<()> {
        self.update(rows)
    }

    fn update(&mut self, rows: &[Row]) -> Result<()> {
        let trx = self.0.db.write_tx().map_err(error("begin"))?;
        let mut trx = trx.durability(Some(PersistMode::SyncAll));
        for Row { key, value } in rows {
            trx.insert(&self.0.rows, key.as_slice(), value.as_slice());
        }
        trx.commit().map_err(error("commit"))?.map_err(error("commit"))
    }

    fn snapshot(&mut self) -> Result<Box<dyn super::Snapshot + '_>> {
        Ok(Box::new(FjallSnapshot { snapshot: self.0.db.read_tx(), rows: &self.0.rows }))
    }
}

struct FjallSnapshot<'a> {
    snapshot: fjall::Snapshot,
    rows: &'a OptimisticTxKeyspace,
}

impl super::Snapshot for FjallSnapshot<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        Ok(take(self.snapshot.get(self.rows, key).map_err(error("read"))?, value))
    }
}
