//! What can go wrong in an experiment, said so that the reader knows what to do.

use std::path::{Path, PathBuf};

use crate::client::SqlError;

/// Why something could not be done. The text names the file or command, and what to do where that
/// is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or a system call.
    #[error("{what}: {source}")]
    Io {
        /// The path, and what was done with it.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A statement or a connection.
    #[error("{what}: {source}")]
    Sql {
        /// The statement.
        what: String,
        /// The client's or server's answer.
        source: mysql::Error,
    },
    /// The same through [`Client`](crate::client::Client).
    #[error("{what}: {source}")]
    Statement {
        /// The statement.
        what: String,
        /// The client's or server's answer.
        source: SqlError,
    },
    /// A program that was started: what it printed.
    #[error("{program}: {message}")]
    Program {
        /// Its name.
        program: String,
        /// The end of its output.
        message: String,
    },
    /// A page trace that can't be replayed.
    #[error("{}: {message}", .path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// The machine or the user can't do what the experiment needs.
    #[error("{0}")]
    Missing(String),
}

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err`: names the path.
    pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    /// For `map_err`: names the path and says what was done with it.
    pub fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        Error::io(path.display().to_string())
    }

    /// For `map_err`: names the statement.
    pub fn sql(what: impl Into<String>) -> impl FnOnce(mysql::Error) -> Error {
        let what = what.into();
        move |source| Error::Sql { what, source }
    }

    /// For `map_err`: names the statement that went through [`Client`](crate::client::Client).
    pub fn statement(what: impl Into<String>) -> impl FnOnce(SqlError) -> Error {
        let what = what.into();
        move |source| Error::Statement { what, source }
    }
}

/// The last lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
