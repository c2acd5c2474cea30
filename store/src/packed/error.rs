//! What can go wrong in a packed file, and what helps against it.
//!
//! An error says what is wrong; what to do about it is a [`Remedy`] beside that. Its words end the
//! message, and a caller that knows what the file is for puts better ones in their place.

use std::fmt;

use super::entry::Object;
use crate::storage::StorageError;

/// Result of operations on packed files.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a packed file.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Reading, writing or syncing failed. A batch that failed has changed nothing.
    #[error(transparent)]
    Storage(#[from] StorageError),

    /// Bytes are not those that were written.
    #[error("{file}: {object} is corrupt: {why}: {}", Remedy::Restore)]
    Corrupt {
        /// The file.
        file: String,
        /// What the bytes should have been.
        object: Object,
        /// What is wrong with them.
        why: String,
    },

    /// An image is encrypted, and its key can't be had.
    #[error("{file}: {why}")]
    Key {
        /// The file.
        file: String,
        /// Which image needs which key, and why that can't be had.
        why: String,
    },

    /// The file is not the one that belongs here: it is of another directory, space, page size or
    /// version.
    #[error("{file}: {why}: {remedy}")]
    WrongFile {
        /// The file.
        file: String,
        /// How that shows.
        why: String,
        /// What helps.
        remedy: Remedy,
    },

    /// The file as a whole is not what it should be, or can't do what was asked of it.
    #[error("{file}: {why}: {remedy}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
        /// What helps.
        remedy: Remedy,
    },
}

/// What helps against an error of a packed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Another copy of what was lost. Only the whole directory can be restored: an older copy of
    /// one file is refused, and its rows would not fit the other files.
    Restore,
    /// Another file lies in the place of this directory's own.
    PutOwnFile,
    /// Another version of the program.
    UseItsVersion,
    /// The file is as long as one can be.
    DivideTable,
    /// The file was opened for reading only.
    OpenForWriting,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Remedy::Restore => {
                "restore the data directory from a backup, or save what can be read with 'tidepool \
                 salvage'"
            }
            Remedy::PutOwnFile => "put back this data directory's own file",
            Remedy::UseItsVersion => "use the version of Tidepool that wrote it",
            Remedy::DivideTable => "divide its table into partitions",
            Remedy::OpenForWriting => "open the directory for writing",
        })
    }
}
