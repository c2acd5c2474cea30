//! What can go wrong in the pool. Every message names the file or page, and what to do: that is a
//! [`Remedy`] beside what is wrong, or the variant's own.

use std::io;
use std::sync::Arc;

use tidepool_store::packed::{self, Object, Remedy};

use crate::page::{Lsn, PageId};
use crate::storage::StorageError;

/// Result of pool operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the redo log reports when it cannot make a position durable.
pub type WriteAheadError = Arc<dyn std::error::Error + Send + Sync>;

/// An error of the buffer pool. The pool stays usable after any of them.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing a file failed. A page that could not be written stays dirty.
    #[error(transparent)]
    Storage(#[from] StorageError),

    /// A page came from disk with other bytes than were once written.
    #[error("{file}: page {} is corrupt: {why}: {}", .page.no, Remedy::Restore)]
    Corrupt {
        /// The file.
        file: String,
        /// The page that was asked for.
        page: PageId,
        /// What is wrong with it.
        why: String,
    },

    /// A file as a whole is not what it should be.
    #[error("{file}: {why}: {remedy}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
        /// What helps.
        remedy: Remedy,
    },

    /// A page or a file is encrypted, and the key can't be had. Nothing is damaged.
    #[error("{file}: {why}")]
    Key {
        /// The file.
        file: String,
        /// Which key, and why it can't be had.
        why: String,
    },

    /// No frame could be freed: every page is in use, or dirty and not to be written.
    #[error(
        "the buffer pool of {frames} pages has no page left to give up ({why}); \
         make the pool larger, or see the error log for failed writes"
    )]
    NoFreeFrame {
        /// Frames in the pool.
        frames: u32,
        /// Why none became free.
        why: String,
    },

    /// The redo log could not be written up to the page's LSN, so the page may not be written.
    #[error("pages up to LSN {lsn} stay unwritten, because the redo log is not durable: {source}")]
    WriteAhead {
        /// What had to be durable.
        lsn: Lsn,
        /// The log's error.
        source: WriteAheadError,
    },

    /// The tablespace is already open, or was closed.
    #[error("space {space} {state}")]
    Space {
        /// The tablespace.
        space: u32,
        /// What state it is in.
        state: &'static str,
    },

    /// Pages stayed latched by others for too long to be written out.
    #[error("{pages} dirty pages stayed in use and could not be written; retry when they are idle")]
    PagesInUse {
        /// How many at least.
        pages: u64,
    },

    /// Pages are neither read nor written any more, since the pool was shut down.
    #[error("the buffer pool was shut down, and reads and writes no page any more")]
    ShutDown,

    /// A step of the pool's work ended by a panic. What it was to do counts as failed.
    #[error("{0} ended by an internal error, which the error log describes: please report it")]
    Panicked(&'static str),

    /// The configuration cannot be.
    #[error("invalid buffer pool configuration: {0}")]
    InvalidConfig(String),

    /// The kernel refuses memory or threads.
    #[error("{what} failed: {source}")]
    System {
        /// What was asked for.
        what: String,
        /// The kernel's answer.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// The pool's error for one of a packed file.
    pub fn of_file(error: packed::Error) -> Error {
        match error {
            packed::Error::Storage(error) => Error::Storage(error),
            packed::Error::Key { file, why } => Error::Key { file, why },
            packed::Error::File { file, why, remedy }
            | packed::Error::WrongFile { file, why, remedy } => Error::File { file, why, remedy },
            packed::Error::Corrupt { file, object: Object::Page { space, no }, why } => {
                Error::Corrupt { file, page: PageId::new(space, no), why }
            }
            packed::Error::Corrupt { file, object, why } => {
                let why = format!("{object} is corrupt: {why}");
                Error::File { file, why, remedy: Remedy::Restore }
            }
        }
    }

    /// The pool's error for a page that a packed file did not give.
    pub(crate) fn of_read(page: PageId, error: packed::Error) -> Error {
        match error {
            // The error names the page that was asked for.
            packed::Error::Corrupt { file, object: Object::Page { .. }, why } => {
                Error::Corrupt { file, page, why }
            }
            packed::Error::Corrupt { file, object, why } => {
                Error::Corrupt { file, page, why: format!("{object} is corrupt: {why}") }
            }
            error => Error::of_file(error),
        }
    }

    /// The pool's error for a page that can't be written: its file does not say where it is.
    pub(crate) fn of_lost_place(page: PageId, error: packed::Error) -> Error {
        match error {
            packed::Error::Storage(error) => {
                let why = format!("its place in the file can't be read: {}", error.what());
                Error::Corrupt { file: error.file.to_string(), page, why }
            }
            error => Error::of_read(page, error),
        }
    }

    pub(crate) fn system(what: impl Into<String>, source: io::Error) -> Error {
        Error::System { what: what.into(), source: Arc::new(source) }
    }
}
