//! The engine's one error type.
//!
//! Every variant says which file, page or object it is about, and what the reader can do: of files,
//! by [`Remedies`] beside what is wrong. Errors are `Clone`, so that one failed group commit can be
//! reported to every transaction that waited for it.

mod remedy;

use std::fmt;

use tidepool_pool::Error as PoolError;
use tidepool_pool::packed;
use tidepool_pool::storage::StorageError;

pub use remedy::{LastResort, Remedies, Remedy};

/// What can go wrong in the engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading, writing or syncing a file failed.
    #[error("{what}")]
    Io {
        /// File, relative to the data directory.
        file: String,
        /// What failed, with file, offset and operation.
        what: String,
    },
    /// An operation failed on no single file, or the operating system refused something, or the
    /// engine met an internal error; the text says which.
    #[error("{0}")]
    Storage(String),
    /// The file system is full. The operation failed, nothing was lost; free space and try again.
    #[error("no space left for {0}: free disk space and try again")]
    NoSpace(String),
    /// A page or file holds bytes that cannot be right.
    #[error("{file}: page {page} is corrupt: {why}: {remedies}")]
    Corrupt {
        /// File, relative to the data directory.
        file: String,
        /// Page number in the file.
        page: u32,
        /// What is wrong.
        why: String,
        /// What to do.
        remedies: Remedies,
    },
    /// A file that must be there is missing, cut short or unreadable: what it held is lost.
    #[error("{file}: {why}: {remedies}")]
    Lost {
        /// File, relative to the data directory.
        file: String,
        /// What is wrong.
        why: String,
        /// What to do.
        remedies: Remedies,
    },
    /// A file is of another format version, page size or data directory.
    #[error("{file}: {why}: {remedies}")]
    Format {
        /// File, relative to the data directory.
        file: String,
        /// What is wrong.
        why: String,
        /// What to do.
        remedies: Remedies,
    },
    /// Something is encrypted, or should be, and the key can't be had. Nothing is damaged.
    #[error("{what}; see that the keyring has the key, and try again")]
    Key {
        /// The file that can't be read, relative to the data directory, if it is about one.
        file: Option<String>,
        /// Which key is missing, and what for; with the file.
        what: String,
    },
    /// An entry with this key exists.
    #[error("duplicate key in index {index}")]
    DuplicateKey {
        /// Position of the index in the table's definition.
        index: usize,
        /// Value of the entry that exists.
        value: Vec<u8>,
    },
    /// An entry for a table that is being filled has a smaller key than the one before.
    #[error(
        "keys of index {index} do not ascend: give its entries in the order of their keys, or have them sorted"
    )]
    KeyOutOfOrder {
        /// Position of the index in the table's definition.
        index: usize,
    },
    /// There is no such entry.
    #[error("no such entry")]
    NotFound,
    /// Another transaction held the lock for longer than the lock wait timeout.
    #[error("lock wait timeout exceeded")]
    LockWaitTimeout,
    /// The lock is held by another transaction and the statement said NOWAIT.
    #[error("lock is held by another transaction")]
    LockNoWait,
    /// This transaction was chosen as the victim of a deadlock; roll it back.
    #[error("deadlock found: roll the transaction back and try again")]
    Deadlock,
    /// Another transaction changed the entry after this one's snapshot was taken, or moved it
    /// behind a locking statement while that was reading; roll this one back.
    #[error("record has changed since the transaction's snapshot: roll back and try again")]
    RecordChanged,
    /// Row locks have taken all the memory that they may; roll the transaction back.
    #[error(
        "row locks take {0} bytes, which is as much as they may beside the buffer pool: roll the \
         transaction back, and lock fewer rows in one"
    )]
    TooManyLocks(u64),
    /// The wait was interrupted (KILL).
    #[error("interrupted")]
    Interrupted,
    /// An earlier error aborted the transaction: only a rollback is possible.
    #[error("the transaction was aborted by an earlier error: roll it back")]
    MustRollback,
    /// The engine or the transaction is read-only.
    #[error("read-only: {0}")]
    ReadOnly(String),
    /// The key is longer than the page size allows.
    #[error("key of {len} bytes is longer than the limit of {max} bytes")]
    KeyTooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The value is longer than the engine can hold.
    #[error("value of {len} bytes is longer than the limit of {max} bytes")]
    ValueTooLong {
        /// Bytes given.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// The table exists already.
    #[error("table '{0}' exists already")]
    TableExists(String),
    /// There is no such table.
    #[error("table '{0}' does not exist")]
    TableMissing(String),
    /// A transaction's snapshot is older than the table as it is now: it was made, emptied or
    /// renamed since.
    #[error("table '{0}' has changed since the transaction's snapshot: roll back and try again")]
    TableChanged(String),
    /// The table is in use: a transaction that wrote or locked it is unfinished, another definition
    /// change runs, or it is being filled.
    #[error(
        "table '{0}' is in use by an unfinished transaction or change of its definition: end it and try again"
    )]
    TableBusy(String),
    /// Another transaction is prepared under this XID.
    #[error("a transaction is prepared under XID '{0}' already: commit it or roll it back first")]
    XidExists(String),
    /// The table's rows were discarded ([`Db::discard_table`](crate::Db::discard_table)).
    #[error("the rows of table '{0}' were discarded: import an export of it, or drop it")]
    TableDiscarded(String),
    /// There is no row id above the greatest one in the table.
    #[error("table '{0}' has used up its row ids: rebuild it, or give it a primary key")]
    RowIdsUsedUp(String),
    /// More transactions write at once than the undo log has streams.
    #[error("too many concurrent writing transactions (limit {0})")]
    TooManyTransactions(usize),
    /// An unrecoverable failure (a failed fsync, say) stopped all writing; restart to recover.
    #[error("the engine has stopped writing: {0}; restart to recover")]
    Crashed(String),
    /// The database was closed ([`Db::close`](crate::Db::close)).
    #[error("the database has been closed: open it again")]
    Closed,
    /// The table has fewer indexes.
    #[error("table '{table}' has no index {index}: it has {count}, from 0")]
    NoIndex {
        /// The table's name.
        table: String,
        /// The position that was asked for.
        index: usize,
        /// How many indexes the table has.
        count: usize,
    },
    /// The bytes of a row are none of the types that its table was opened with, or a value has no
    /// bytes.
    #[error("table '{table}', row with the key {key}: {why}")]
    Codec {
        /// The table's name.
        table: String,
        /// The row's key, as bytes in ASCII with escapes.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// Another row has the same key in a unique index.
    #[error("table '{table}': another row has the key {key} in the unique index '{index}'")]
    NotUnique {
        /// The table's name.
        table: String,
        /// The index's name.
        index: String,
        /// The index key, as bytes in ASCII with escapes.
        key: String,
    },
    /// A secondary index is not what the rows ask for.
    #[error(
        "table '{table}': the index '{index}' is not what the rows ask for at its key {key}: drop it \
         by `Db::drop_typed_index`, and open the table again, which builds it anew"
    )]
    IndexDiffers {
        /// The table's name.
        table: String,
        /// The index's name.
        index: String,
        /// The entry's key, as bytes in ASCII with escapes.
        key: String,
    },
    /// An option is out of range or inconsistent.
    #[error("invalid option: {0}")]
    InvalidOption(String),
}

impl Error {
    /// Whether the same transaction may succeed if it is rolled back and run anew at once: it was
    /// the victim of a deadlock, or others have changed what it read. A lock wait that timed out is
    /// not among these, for the lock is still held.
    ///
    /// [`Db::write`](crate::Db::write) runs such a transaction again. By hand:
    ///
    /// ```
    /// # use tidepool::{Db, Options, TableDef, TransactionOptions};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = Db::open(dir.path(), Options::default())?;
    /// # let fruit = db.open_or_create_table("fruit", &TableDef::map())?;
    /// let mut trx = db.begin(TransactionOptions::default());
    /// while let Err(error) = trx.put(&fruit, b"apple", b"red").and_then(|()| trx.commit()) {
    ///     trx.rollback()?;
    ///     if !error.is_retryable() {
    ///         return Err(error);
    ///     }
    /// }
    /// # drop(trx);
    /// # db.close()?;
    /// # Ok::<(), tidepool::Error>(())
    /// ```
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::Deadlock | Error::RecordChanged | Error::TableChanged(_) | Error::MustRollback
        )
    }
}

/// Shorthand for results of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<StorageError> for Error {
    fn from(error: StorageError) -> Self {
        if error.is_no_space() {
            Error::NoSpace(error.file.to_string())
        } else if error.is_read_only() {
            Error::ReadOnly(error.to_string())
        } else if error.is_not_found() {
            Error::lost(&*error.file, error.what(), Remedy::PutBack)
        } else if error.is_unexpected_eof() {
            let remedies = Remedies::of_damaged(&error.file);
            Error::lost(&*error.file, format!("{}: it was cut short", error.what()), remedies)
        } else {
            Error::io(&error)
        }
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Storage(error) => error.into(),
            PoolError::Corrupt { file, page, why } => Error::corrupt(file, page.no, why),
            PoolError::File { file, why, remedy } => Error::of_packed_file(file, why, remedy),
            PoolError::Key { file, why } => {
                let what = format!("{file}: {why}");
                Error::Key { file: Some(file), what }
            }
            PoolError::ShutDown => Error::Closed,
            PoolError::InvalidConfig(why) => Error::InvalidOption(why),
            other => Error::Storage(other.to_string()),
        }
    }
}

impl Error {
    /// A [`Error::Io`] whatever the kernel's reason, also where a [`StorageError`] becomes another
    /// error by that.
    pub(crate) fn io(error: &StorageError) -> Self {
        Error::Io { file: error.file.to_string(), what: error.to_string() }
    }

    /// A [`Error::Corrupt`] from anything printable. What to do depends on what the file is for.
    pub fn corrupt(file: impl Into<String>, page: u32, why: impl fmt::Display) -> Self {
        let file = file.into();
        let remedies = Remedies::of_damaged(&file);
        Error::Corrupt { file, page, why: why.to_string(), remedies }
    }

    /// A [`Error::Lost`] from anything printable.
    pub fn lost(
        file: impl Into<String>,
        why: impl fmt::Display,
        remedies: impl Into<Remedies>,
    ) -> Self {
        Error::Lost { file: file.into(), why: why.to_string(), remedies: remedies.into() }
    }

    /// The same of a file that holds what can't be right. What to do depends on what it is for.
    pub(crate) fn damaged(file: impl Into<String>, why: impl fmt::Display) -> Self {
        let file = file.into();
        let remedies = Remedies::of_damaged(&file);
        Error::lost(file, why, remedies)
    }

    /// A [`Error::Format`] from anything printable.
    pub fn format(
        file: impl Into<String>,
        why: impl fmt::Display,
        remedies: impl Into<Remedies>,
    ) -> Self {
        Error::Format { file: file.into(), why: why.to_string(), remedies: remedies.into() }
    }

    /// What the store says of a file, with what helps for what the file is for.
    fn of_packed_file(file: String, why: String, remedy: packed::Remedy) -> Error {
        match remedy {
            packed::Remedy::Restore => Error::damaged(file, why),
            packed::Remedy::PutOwnFile => {
                let remedies = Remedies::of_foreign(&file);
                Error::lost(file, why, remedies)
            }
            packed::Remedy::UseItsVersion => Error::format(file, why, Remedy::UseItsVersion),
            packed::Remedy::OpenForWriting => Error::ReadOnly(format!("{file}: {why}: {remedy}")),
            packed::Remedy::DivideTable => Error::Storage(format!("{file}: {why}: {remedy}")),
        }
    }

    /// A [`Error::Key`] that is about no single file.
    pub(crate) fn no_key(what: impl Into<String>) -> Self {
        Error::Key { file: None, what: what.into() }
    }

    /// The file that the error is about, relative to the data directory, if it is about one that
    /// can't be read or written, or holds what can't be right.
    pub fn file(&self) -> Option<&str> {
        match self {
            Error::Io { file, .. }
            | Error::Corrupt { file, .. }
            | Error::Lost { file, .. }
            | Error::Format { file, .. } => Some(file),
            Error::Key { file, .. } => file.as_deref(),
            _ => None,
        }
    }

    /// What to do, if the error is about what a file holds.
    pub fn remedies(&self) -> Option<Remedies> {
        match self {
            Error::Corrupt { remedies, .. }
            | Error::Lost { remedies, .. }
            | Error::Format { remedies, .. } => Some(*remedies),
            _ => None,
        }
    }

    /// The error with other remedies, if it has any.
    pub(crate) fn with_remedies(mut self, other: impl Into<Remedies>) -> Error {
        if let Error::Corrupt { remedies, .. }
        | Error::Lost { remedies, .. }
        | Error::Format { remedies, .. } = &mut self
        {
            *remedies = other.into();
        }
        self
    }

    /// What is wrong, without the remedies that [`Self::remedies`] gives: for a message with other
    /// ones.
    pub fn what(&self) -> String {
        match self {
            Error::Corrupt { file, page, why, .. } => {
                format!("{file}: page {page} is corrupt: {why}")
            }
            Error::Lost { file, why, .. } | Error::Format { file, why, .. } => {
                format!("{file}: {why}")
            }
            error => error.to_string(),
        }
    }

    /// The error; if a key is missing, it names the table.
    pub(crate) fn with_table(self, table: &str) -> Error {
        match self {
            Error::Key { file, what } => {
                Error::Key { file, what: format!("table '{table}', {what}") }
            }
            error => error,
        }
    }

    pub(crate) fn not_unique(table: &str, index: &str, key: &[u8]) -> Error {
        let key = key.escape_ascii().to_string();
        Error::NotUnique { table: table.into(), index: index.into(), key }
    }

    pub(crate) fn index_differs(table: &str, index: &str, key: &[u8]) -> Error {
        let key = key.escape_ascii().to_string();
        Error::IndexDiffers { table: table.into(), index: index.into(), key }
    }

    /// Whether the error is about what a file holds, or about reading or writing it.
    pub fn is_of_files(&self) -> bool {
        matches!(
            self,
            Error::Io { .. }
                | Error::Storage(_)
                | Error::Corrupt { .. }
                | Error::Lost { .. }
                | Error::Format { .. }
                | Error::Key { .. }
        )
    }
}

#[cfg(test)]
mod tests;
