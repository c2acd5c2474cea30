//! The one error type. It says which store did what, so that the line that a user sees is enough.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A store failed.
    #[error("{store}: {doing}: {message}")]
    Store {
        /// Its name.
        store: &'static str,
        /// What it was asked to do.
        doing: &'static str,
        /// What it said.
        message: String,
    },
    /// A store gave something else than what was written: no figure of it counts.
    #[error("wrong data: {0}")]
    WrongData(String),
    /// A file or a directory.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The directory's file system has too little room.
    #[error(
        "{dir} has {free} free, and the run may need {needed}: free some, choose another --dir, or less --memory"
    )]
    NoSpace {
        /// Where.
        dir: PathBuf,
        free: String,
        /// What may be needed.
        needed: String,
    },
    /// A process of a run ended without figures.
    #[error("{workload} on {store}: {message}")]
    Run {
        /// Which store.
        store: &'static str,
        /// Which workload.
        workload: &'static str,
        /// What it wrote to its standard error, or how it ended.
        message: String,
    },
    /// A signal asked for the end.
    #[error("interrupted: what was made is removed")]
    Interrupted,
    /// The command line asks for what makes no sense.
    #[error("{0}")]
    Usage(String),
}

/// A result with the crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Of a store, for `map_err`.
    pub fn of<E: Display>(store: &'static str, doing: &'static str) -> impl Fn(E) -> Error {
        move |error| Error::Store { store, doing, message: error.to_string() }
    }

    /// Of a file, for `map_err`.
    pub fn at(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
        move |source| Error::File { path: path.into(), source }
    }
}
