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
//! # The layers
//! Arrows of use point down only (`tests/layers.rs`).
//! ```text
//! explain   reports of what the engine holds and does                  inspect  a directory that
//! nobody has open, looked at
//! db        open, definition changes, cursors, background work         hot_list  the file that says which pages were hot
//! table     an open table: trees, counters, who uses it                catalog   which tables there are
//! ───────────────────────────────────────────────────────────────────────────────────────────
//! versioned trees whose entries have versions, and what transactions do with them
//! trx       transactions, read views, purge
//! undo      undo records                                               lock      row and range locks, deadlocks
//! ───────────────────────────────────────────────────────────────────────────────────────────
//! btree     trees on pages                                             overflow  values too long for a page
//! space     allocation of pages
//! mtr       mini-transactions                                          backup   copies of an open directory
//! env       log, pool and files together                               recovery  what a crash left
//! page_files the file of a space: its form, its opening
//! mirror    second copies of the pages that everything hangs on        newest_runs which runs of files were durable
//! redo      the log                                                    page_op   the changes of pages that it tells
//! encryption which files are encrypted, and with which key
//! format    what pages hold                                            csn       commit numbers
//! ───────────────────────────────────────────────────────────────────────────────────────────
//! pool      frames, latches, replacement, page I/O, files (the crate tidepool-pool)
//! ```

pub mod backup;
pub mod btree;
pub mod catalog;
pub mod csn;
pub mod db;
pub mod encryption;
pub mod env;
pub mod error;
pub mod explain;
pub mod files;
pub mod format;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod governor;
mod hot_list;
pub mod inspect;
pub mod lock;
mod memory;
mod mirror;
pub mod mtr;
mod newest_runs;
pub mod options;
pub mod overflow;
mod page_files;
pub mod page_op;
mod pause;
mod recovery;
pub mod redo;
mod sort;
pub mod space;
mod status;
pub mod table;
#[cfg(test)]
pub(crate) mod test_storage;
pub mod trx;
pub mod undo;
pub mod versioned;

pub use backup::combine::{CombineReport, combine_backups};
pub use backup::{Backup, BackupProgress, BackupReport, make_marked_dir};
pub use catalog::{ATTACHMENT_KIND_MAX, ATTACHMENT_LEN_MAX, Attachment, IndexDef, TableDef};
pub use db::{
    ChangedIndex, ChangedRow, Cursor, Db, DefinitionChange, DuplicateEntry, EncryptionRow,
    IndexChange, ROW_BYTES_KEPT, RoundReport, Savepoint, Seek, TableLoad, Transaction,
};
pub use encryption::{EncryptTables, EncryptionChoice, KeySource, TableEncryption};
pub use error::{Error, Result};
pub use files::{INCREMENT_MARK, UNFINISHED_MARK};
pub use lock::{Interrupt, LockMode, LockWait, SessionToken, WaitObserver};
pub use memory::{MemoryReport, MemoryRow};
pub use options::{AcceptLogLoss, ForceRecovery, Options, Replacement};
pub use status::Status;
pub use table::{CheckProgress, CheckReport, FileUsage, Sampled, Table, TableStatistics};
pub use tidepool_governor::Policy as MemoryPolicy;
pub use tidepool_pool::encryption::{KeyError, Keyring, MemoryKeyring};
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
