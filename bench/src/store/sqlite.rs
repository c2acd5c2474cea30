//! SQLite, bundled by rusqlite: a B-tree in one file, and a write-ahead log beside it.
//!
//! A connection a thread, as its documentation wants it. Each has a separate page cache, so the
//! memory is divided among them. Writers take turns by a lock of this program. Without it they
//! would sleep and try again when the file is locked, which is several times slower; a program that
//! embeds SQLite and writes from several threads does the same.

use super::{EachRow, Session, Snapshot, Store};
use crate::error::{Error, Result};
use crate::row::{Key, Row};
use rusqlite::{Connection, OptionalExtension, params};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) const NAME: &str = "SQLite";
pub(super) const SETTINGS: &str = "`WITHOUT ROWID` table, `journal_mode=WAL`, `synchronous=FULL`: a commit syncs the write-ahead log. A \
connection a thread; `cache_size` = the memory divided among them. Writers take turns by a lock of this program, not by SQLite's sleeping";

const GET: &str = "SELECT value FROM t WHERE key = ?1";
const SCAN: &str = "SELECT key, value FROM t WHERE key >= ?1 ORDER BY key LIMIT ?2";
const INSERT: &str = "INSERT INTO t (key, value) VALUES (?1, ?2)";
const UPDATE: &str = "UPDATE t SET value = ?2 WHERE key = ?1";

pub(super) struct Sqlite {
    path: PathBuf,
    cache_kib: u64,
    writing: Mutex<()>,
}

fn error(doing: &'static str) -> impl Fn(rusqlite::Error) -> Error {
    Error::of(NAME, doing)
}

impl Sqlite {
    pub(super) fn open(dir: &Path, memory_bytes: u64, sessions: usize) -> Result<Sqlite> {
        std::fs::create_dir_all(dir).map_err(Error::at(dir))?;
        let cache_kib = (memory_bytes / sessions.max(1) as u64 / 1024).max(1);
        let store = Sqlite { path: dir.join("rows.sqlite"), cache_kib, writing: Mutex::new(()) };
        let sql = "CREATE TABLE IF NOT EXISTS t (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID";
        store.connect()?.execute_batch(sql).map_err(error("create the table"))?;
        Ok(store)
    }

    fn connect(&self) -> Result<Connection> {
        let connection = Connection::open(&self.path).map_err(error("open"))?;
        // Checkpoints and closing connections still lock the file for moments.
        connection.busy_timeout(Duration::from_secs(60)).map_err(error("set a timeout"))?;
        let mode: String = connection
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .map_err(error("choose WAL"))?;
        assert_eq!(
            mode, "wal",
            "SQLite answers with the mode that it has, and without WAL all would be different"
        );
        // A negative number is KiB.
        let sql = format!("PRAGMA synchronous = FULL; PRAGMA cache_size = -{}", self.cache_kib);
        connection.execute_batch(&sql).map_err(error("set up"))?;
        Ok(connection)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Sqlite {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(SqliteSession { store: self, connection: self.connect()? }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        // The last connection has copied the log into the file and removed it.
        Ok(())
    }
}

struct SqliteSession<'a> {
    store: &'a Sqlite,
    connection: Connection,
}

fn get(connection: &Connection, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
    value.clear();
    let mut statement = connection.prepare_cached(GET).map_err(error("prepare"))?;
    let found = statement
        .query_row([key.as_slice()], |row| {
            value.extend_from_slice(row.get_ref(0)?.as_blob()?);
            Ok(())
        })
        .optional();
    Ok(found.map_err(error("read"))?.is_some())
}

impl SqliteSession<'_> {
    fn write(&mut self, sql: &str, rows: &[Row]) -> Result<()> {
        let _turn = self.store.lock();
        self.connection.execute_batch("BEGIN IMMEDIATE").map_err(error("begin"))?;
        let mut statement = self.connection.prepare_cached(sql).map_err(error("prepare"))?;
        for Row { key, value } in rows {
            let changed = statement.execute(params![key.as_slice(), value]);
            if changed.map_err(error("write"))? != 1 {
                return Err(Error::WrongData(format!("{key:?} is missing")));
            }
        }
        self.connection.execute_batch("COMMIT").map_err(error("commit"))
    }
}

impl Session for SqliteSession<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        get(&self.connection, key, value)
    }

    fn scan(&mut self, from: &Key, rows: usize, each: &mut EachRow<'_>) -> Result<()> {
        let mut statement = self.connection.prepare_cached(SCAN).map_err(error("prepare"))?;
        let mut found =
            statement.query(params![from.as_slice(), rows as i64]).map_err(error("seek"))?;
        while let Some(row) = found.next().map_err(error("scan"))? {
            let blob = |at| row.get_ref(at).and_then(|value| Ok(value.as_blob()?));
            each(blob(0).map_err(error("scan"))?, blob(1).map_err(error("scan"))?)?;
        }
        Ok(())
    }

    fn insert(&mut self, rows: &[Row]) -> Result<()> {
        self.write(INSERT, rows)
    }

    fn update(&mut self, rows: &[Row]) -> Result<()> {
        self.write(UPDATE, rows)
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot + '_>> {
        // BEGIN alone takes no snapshot: the first read does.
        let sql = "BEGIN; SELECT key FROM t LIMIT 1";
        self.connection.execute_batch(sql).map_err(error("begin a read"))?;
        Ok(Box::new(SqliteSnapshot(&self.connection)))
    }
}

struct SqliteSnapshot<'a>(&'a Connection);

impl Snapshot for SqliteSnapshot<'_> {
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool> {
        get(self.0, key, value)
    }
}

impl Drop for SqliteSnapshot<'_> {
    fn drop(&mut self) {
        // It has only read: nothing is lost if this fails, and the next use says so.
        let _ = self.0.execute_batch("COMMIT");
    }
}
