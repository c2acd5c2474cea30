//! What a store must do to be measured.
//!
//! The traits ask for what all stores have: rows in key order, transactions that are durable once
//! committed, snapshots. What a store has beyond (or lacks: several writers at once, say) is behind
//! them. Each file says which of the store's settings were made, and why; all others are the
//! store's defaults.

mod fjall;
mod lmdb;
mod redb;
mod sqlite;
mod tidepool;

use crate::error::Result;
use crate::row::{Key, Row};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Rows of a transaction of a load.
pub const LOAD_ROWS: usize = 10_000;

/// An open store.
pub trait Store: Sync {
    /// What one thread works with.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Inserts rows that come in key order, into an empty store, durably at the end. In the way
    /// that the store's documentation gives for this.
    fn load_in_order(&self, rows: &mut dyn Iterator<Item = Row>) -> Result<()> {
        let mut session = self.session()?;
        let mut batch = Vec::with_capacity(LOAD_ROWS);
        loop {
            batch.clear();
            batch.extend(rows.take(LOAD_ROWS));
            if batch.is_empty() {
                return Ok(());
            }
            session.insert(&batch)?;
        }
    }

    /// Closes it, as cleanly as it can be closed.
    fn close(self: Box<Self>) -> Result<()>;
}

/// What is called for each row of a scan.
pub type EachRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// One thread's use of a store.
pub trait Session {
    /// Reads one row, in a separate transaction, into `value`; false if it is not there.
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool>;

    /// Gives the first `rows` rows from `from` on, in a separate transaction.
    fn scan(&mut self, from: &Key, rows: usize, each: &mut EachRow<'_>) -> Result<()>;

    /// Inserts rows that are not there, in one transaction, durable on return.
    fn insert(&mut self, rows: &[Row]) -> Result<()>;

    /// Gives rows that are there new values, in one transaction, durable on return. The session's
    /// threads write different rows.
    fn update(&mut self, rows: &[Row]) -> Result<()>;

    /// A read transaction that sees what is committed now, for as long as it lives.
    fn snapshot(&mut self) -> Result<Box<dyn Snapshot + '_>>;
}

/// An open read transaction.
pub trait Snapshot {
    /// Reads one row into `value`; false if it is not there.
    fn get(&mut self, key: &Key, value: &mut Vec<u8>) -> Result<bool>;
}

/// Which stores there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Tidepool,
    Redb,
    Fjall,
    Sqlite,
    Lmdb,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Tidepool, Kind::Redb, Kind::Fjall, Kind::Sqlite, Kind::Lmdb];

    /// Its name as its people write it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Tidepool => tidepool::NAME,
            Kind::Redb => redb::NAME,
            Kind::Fjall => fjall::NAME,
            Kind::Sqlite => sqlite::NAME,
            Kind::Lmdb => lmdb::NAME,
        }
    }

    pub fn version(self) -> String {
        match self {
            Kind::Tidepool => locked_version("tidepool-engine"),
            Kind::Redb => locked_version("redb"),
            Kind::Fjall => locked_version("fjall"),
            Kind::Sqlite => {
                let driver = locked_version("rusqlite");
                format!("{} (rusqlite {driver})", ::rusqlite::version())
            }
            Kind::Lmdb => {
                let version = heed::lmdb_version();
                let driver = locked_version("heed");
                let (major, minor, patch) = (version.major, version.minor, version.patch);
                format!("{major}.{minor}.{patch} (heed {driver})")
            }
        }
    }

    /// Its settings: memory, durability, and what else is not the default.
    pub fn settings(self) -> &'static str {
        match self {
            Kind::Tidepool => tidepool::SETTINGS,
            Kind::Redb => redb::SETTINGS,
            Kind::Fjall => fjall::SETTINGS,
            Kind::Sqlite => sqlite::SETTINGS,
            Kind::Lmdb => lmdb::SETTINGS,
        }
    }

    /// Opens the store in `dir`, or makes one there. It is to use `memory_bytes`, and there will be
    /// `sessions` at once.
    pub fn open(self, dir: &Path, memory_bytes: u64, sessions: usize) -> Result<Box<dyn Store>> {
        Ok(match self {
            Kind::Tidepool => Box::new(tidepool::Tidepool::open(dir, memory_bytes)?),
            Kind::Redb => Box::new(redb::Redb::open(dir, memory_bytes)?),
            Kind::Fjall => Box::new(fjall::Fjall::open(dir, memory_bytes)?),
            Kind::Sqlite => Box::new(sqlite::Sqlite::open(dir, memory_bytes, sessions)?),
            Kind::Lmdb => Box::new(lmdb::Lmdb::open(dir, sessions)?),
        })
    }
}

/// The version that the lock file has: that is the one that was built.
fn locked_version(name: &str) -> String {
    let package = format!("name = \"{name}\"\nversion = \"");
    let lock = include_str!("../../Cargo.lock");
    let version = lock.split_once(&package).and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or("of an unknown version").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        for kind in Kind::ALL {
            assert!(kind.version().starts_with(|c: char| c.is_ascii_digit()), "{kind:?}");
        }
    }
}
