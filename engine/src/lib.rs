//! Tidepool: a transactional storage engine, embedded.
//!
//! A [`Db`] is a data directory. [`Db::write`] and [`Db::read`] run transactions, with snapshots,
//! row locks, savepoints and crash-safe commits.
//!
//! A [`TypedTable`] has rows of Rust types, in the order of their keys, and secondary indexes that
//! the engine keeps:
//!
//! ```
//! use tidepool::{Db, Index, Options, TypedTable};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path();
//! let db = Db::open(dir, Options::default())?;
//! let by_price = Index::new("price", |_: &String, price: &u32| *price);
//! let fruit = TypedTable::open_or_create(&db, "fruit", &[&by_price])?;
//! db.write(|trx| {
//!     fruit.put(trx, "apple", &3)?;
//!     fruit.put(trx, "lemon", &2)
//! })?;
//! let cheapest = db.read(|trx| fruit.iter_by(trx, &by_price).next().transpose())?;
//! assert_eq!(cheapest, Some(("lemon".into(), 2)));
//! # db.close()?;
//! # Ok::<(), tidepool::Error>(())
//! ```
//!
//! Below that is a [`Table`]: a clustered index and any number of others, each an ordered map from
//! byte keys to byte values.
//!
//! ```
//! use tidepool::{Db, Options, TableDef};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path();
//! let db = Db::open(dir, Options::default())?;
//! let fruit = db.open_or_create_table("fruit", &TableDef::map())?;
//! db.write(|trx| {
//!     trx.put(&fruit, b"apple", b"red")?;
//!     trx.put(&fruit, b"lemon", b"yellow")?;
//!     trx.put(&fruit, b"plum", b"blue")
//! })?;
//! db.read(|trx| {
//!     assert_eq!(trx.get(&fruit, b"apple")?.as_deref(), Some(&b"red"[..]));
//!     let mut range = trx.range(&fruit, "b"..);
//!     assert_eq!(range.next()?, Some((&b"lemon"[..], &b"yellow"[..])));
//!     assert_eq!(range.next_back()?, Some((&b"plum"[..], &b"blue"[..])));
//!     assert_eq!(range.next()?, None);
//!     Ok(())
//! })?;
//! # db.close()?;
//! # Ok::<(), tidepool::Error>(())
//! ```
//!
//! [`Db::begin`] gives a [`Transaction`] that is committed by hand; [`Transaction::insert`],
//! [`update`](Transaction::update), [`delete`](Transaction::delete) and
//! [`read`](Transaction::read) act on any index, and a [`Cursor`] moves in both directions:
//!
//! ```
//! use tidepool::{Cursor, Db, IndexDef, LockMode, LockWait, Options, ReadRequest, Seek, TableDef};
//! use tidepool::TransactionOptions;
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let db = Db::open(dir.path(), Options::default())?;
//! let people = db.create_table("people", &TableDef::new([IndexDef::unique("id")]))?;
//! let mut trx = db.begin(TransactionOptions::default());
//! trx.insert(&people, 0, b"7", b"Nora")?;
//! trx.commit()?;
//!
//! let mut cursor = Cursor::new(people.clone(), 0, LockMode::None, LockWait::Wait);
//! assert!(cursor.seek(&mut trx, b"5", Seek::AtOrAfter)?);
//! assert_eq!((cursor.key(), cursor.value()), (&b"7"[..], &b"Nora"[..]));
//!
//! trx.delete(&people, 0, b"7")?;
//! trx.rollback()?;
//! let mut name = Vec::new();
//! let request = ReadRequest::new(b"7", &mut name);
//! assert!(trx.read(&people, 0, request.locked(LockMode::Exclusive, LockWait::NoWait))?);
//! assert_eq!(name, b"Nora");
//! # drop(trx);
//! # db.close()?;
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
mod encryption;
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
mod padded;
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
pub mod typed;
mod undo;
mod varint;
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
    ChangedIndex, ChangedRow, Cursor, Db, DefinitionChange, DuplicateEntry, EncryptionRow,
    ExportProgress, Exported, IndexChange, NewRow, ROW_BYTES_KEPT, Range, RoundReport, Savepoint,
    Seek, TableExport, TableLoad, Transaction,
};
pub use encryption::{EncryptTables, EncryptionChoice, KeySource, TableEncryption};
pub use error::{Error, LastResort, Remedies, Remedy, Result};
pub use files::{FileKind, INCREMENT_MARK, UNFINISHED_MARK, space_file_name};
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
pub use tidepool_pool::encryption::{KeyError, Keyring, MemoryKeyring};
pub use tidepool_pool::trace::{TraceOptions, TraceStatus};
pub use tidepool_pool::{
    Access, Advice, AdviceRow, CompressedTier, Lsn, MemoryThreads, PageCompression, Sample,
    ThreadObserver, ThreadWork, Threads, storage,
};
pub use trx::{Isolation, TransactionOptions};
pub use typed::{Index, TypedTable};
pub use versioned::{LongValues, ReadRequest, ReadValue};

/// Cases a property test runs: `default`, or `TIDEPOOL_TEST_CASES`.
#[cfg(test)]
pub(crate) fn test_cases(default: u32) -> u32 {
    std::env::var("TIDEPOOL_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}
