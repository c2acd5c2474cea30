//! Tidepool: a transactional storage engine, embedded.
//!
//! A [`Db`] is a data directory. It holds [`Table`]s, each with a clustered index and any number of
//! others: ordered maps from byte keys to byte values. A [`Transaction`] reads and writes them with
//! snapshots, row locks, savepoints and crash-safe commits; a [`Cursor`] reads an index in order.
//!
//! ```
//! use tidepool::{Cursor, Db, IndexDef, LockMode, LockWait, Options, ReadRequest, Seek, TableDef};
//! use tidepool::TransactionOptions;
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path();
//! let db = Db::open(dir, Options::default())?;
//! let fruit = db.create_table("fruit", &TableDef::new([IndexDef::unique("name")]))?;
//!
//! let mut trx = db.begin(TransactionOptions::default());
//! trx.insert(&fruit, 0, b"apple", b"red")?;
//! trx.insert(&fruit, 0, b"lemon", b"yellow")?;
//! trx.insert(&fruit, 0, b"plum", b"blue")?;
//! trx.commit()?;
//!
//! let mut cursor = Cursor::new(fruit.clone(), 0, LockMode::None, LockWait::Wait);
//! assert!(cursor.seek(&mut trx, b"b", Seek::AtOrAfter)?);
//! assert_eq!((cursor.key(), cursor.value()), (&b"lemon"[..], &b"yellow"[..]));
//! assert!(cursor.next(&mut trx)?);
//! assert_eq!(cursor.key(), b"plum");
//! assert!(!cursor.next(&mut trx)?);
//!
//! trx.delete(&fruit, 0, b"lemon")?;
//! trx.rollback()?;
//! let mut color = Vec::new();
//! let lemon = ReadRequest::new(b"lemon", &mut color);
//! assert!(trx.read(&fruit, 0, lemon.locked(LockMode::Exclusive, LockWait::NoWait))?);
//! assert_eq!(color, b"yellow");
//! drop(trx);
//! db.close()?;
//! # Ok::<(), tidepool::Error>(())
//! ```
//!
//! The layers of the engine, and an order to read its code in, are in ARCHITECTURE.md at the root
//! of the repository.

#![warn(missing_docs)]

mod backup;
mod btree;
mod catalog;
mod csn;
mod db;
mod env;
mod error;
pub mod explain;
mod files;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod governor;
mod hot_list;
pub mod inspect;
mod lock;
mod memory;
mod mirror;
mod mtr;
mod newest_runs;
mod options;
mod overflow;
mod page_files;
mod page_op;
mod pause;
mod recovery;
mod redo;
mod sort;
mod space;
mod status;
mod table;
#[cfg(test)]
pub(crate) mod test_storage;
mod trx;
mod undo;
mod versioned;

/// Parts of the inside, for the benchmarks and tests of this repository. They change without
/// notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::btree::{Seek, Tree};
    pub use crate::env::{Env, EnvOptions};
    pub use crate::files::FIRST_TABLE_SPACE;
    pub use crate::format::{entry, node};
    pub use crate::mtr::Mtr;
    pub use crate::page_op::PageOp;
    pub use crate::space::create as create_space;
}

pub use backup::combine::{CombineReport, combine_backups};
pub use backup::{Backup, BackupProgress, BackupReport, make_marked_dir};
pub use catalog::{
    ATTACHMENT_KIND_MAX, ATTACHMENT_LEN_MAX, Attachment, INDEXES_MAX, IndexDef, METADATA_LEN_MAX,
    NAME_LEN_MAX, TableDef,
};
pub use db::{
    ChangedIndex, ChangedRow, Cursor, Db, DefinitionChange, DuplicateEntry, IndexChange,
    ROW_BYTES_KEPT, RoundReport, Savepoint, Seek, TableLoad, Transaction,
};
pub use error::{Error, Result};
pub use files::{INCREMENT_MARK, UNFINISHED_MARK, space_file_name};
pub use lock::{Interrupt, LockMode, LockWait, SessionToken, WaitObserver};
pub use memory::{MemoryReport, MemoryRow};
pub use options::{AcceptLogLoss, ForceRecovery, Options, Replacement};
pub use redo::FORMAT_VERSION;
pub use status::Status;
pub use table::{
    CheckProgress, CheckReport, FileUsage, IndexCheck, IndexStatistics, Sampled, Table,
    TableStatistics,
};
pub use tidepool_governor::Policy as MemoryPolicy;
pub use tidepool_pool::trace::{TraceOptions, TraceStatus};
pub use tidepool_pool::{
    Access, Advice, AdviceRow, CompressedTier, Lsn, PageCompression, Sample, ThreadWork, storage,
};
pub use trx::{Isolation, TransactionOptions};
pub use versioned::{LongValues, ReadRequest, ReadValue};

/// Cases a property test runs: `default`, or `TIDEPOOL_TEST_CASES`.
#[cfg(test)]
pub(crate) fn test_cases(default: u32) -> u32 {
    std::env::var("TIDEPOOL_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}
