//! What can go wrong in a packed file.

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
    #[error("{file}: {object} is corrupt: {why}")]
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
    #[error("{file}: {why}")]
    WrongFile {
        /// The file.
        file: String,
        /// How that shows, and what to do.
        why: String,
    },

    /// The file as a whole is not what it should be.
    #[error("{file}: {why}")]
    File {
        /// The file.
        file: String,
        /// What is wrong and what to do.
        why: String,
    },
}
