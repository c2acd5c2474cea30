//! Errors, and the exit code of each. No message ever holds a password.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done; for `advise`: whatever it found, unless `--check` |
//! | 1 | `check` found damage, `salvage` could not read all; an experiment of `lab` failed, or could not begin |
//! | 1 | `convert` found that a table differs |
//! | 2 | the command line is wrong |
//! | 3 | unknown: no server answers, or `advise --check` found nothing and could not see all |
//! | 4 | the server refused the user, the password, or this way to connect; or TLS failed |
//! | 5 | the user lacks a privilege; the message says which grant |
//! | 6 | this server, or this version of it, can't do what is asked |
//! | 7 | the server went away in the middle |
//! | 8 | something on this side: a file, a port, a terminal |
//! | 9 | the server refused a statement, or has too many connections |
//! | 10 | `advise --check` found something |
//! | 11 | `convert --apply` was stopped, or left tables as they are |

use std::path::Path;
use std::process::ExitCode;

/// Why a command ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Nothing answers there.
    #[error("no server at {place}: {why}")]
    NoServer {
        /// Socket or address.
        place: String,
        /// What the system says.
        why: String,
    },
    /// Wrong user or password.
    #[error("the server at {place} refused user '{user}': {why}")]
    Denied {
        /// Socket or address.
        place: String,
        /// The user that was tried.
        user: String,
        /// What the server says.
        why: String,
    },
    /// There is no connection as safe as was asked for.
    #[error("no secure connection to {place}: {why}")]
    Insecure {
        /// Address.
        place: String,
        /// What failed.
        why: String,
    },
    /// A privilege is missing.
    #[error("{what} needs a privilege that this user lacks; grant it with: {grant}")]
    Privilege {
        /// What was asked for.
        what: String,
        /// The statement that helps.
        grant: String,
    },
    /// The server can't do it.
    #[error("{0}")]
    Unsupported(String),
    /// The connection broke.
    #[error("the server went away: {0}")]
    Gone(String),
    /// A file, a port, a terminal.
    #[error("{0}")]
    Local(String),
    /// A table is not what it was.
    #[error("{0}")]
    Differs(String),
    /// The server said no.
    #[error("{what}: the server says: {why}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Its answer.
        why: String,
    },
}

/// What most functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

/// `check` found damage, `salvage` could not read all, or `convert` found that a table differs.
pub const DAMAGED: u8 = 1;
/// Nagios's code for a state that is not known: as of a server that can't be reached, so of one of
/// which `advise --check` could not see all.
pub const UNKNOWN: u8 = 3;
/// `advise --check` found something.
pub const FOUND_SOMETHING: u8 = 10;
/// `convert --apply` was stopped before the end, or left tables as they are.
pub const UNFINISHED: u8 = 11;

impl Error {
    /// The exit code; see the [module](self).
    pub fn code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::NoServer { .. } => UNKNOWN,
            Error::Differs(_) => DAMAGED,
            Error::Denied { .. } | Error::Insecure { .. } => 4,
            Error::Privilege { .. } => 5,
            Error::Unsupported(_) => 6,
            Error::Gone(_) => 7,
            Error::Local(_) => 8,
            Error::Refused { .. } => 9,
        }
    }

    /// A file that can't be read or written.
    pub fn file(path: &Path, why: &std::io::Error) -> Error {
        Error::Local(format!("{}: {why}", path.display()))
    }
}

impl From<Error> for ExitCode {
    fn from(error: Error) -> ExitCode {
        ExitCode::from(error.code())
    }
}
