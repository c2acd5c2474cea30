//! The error of every storage operation: what was tried, on which file, where, why it failed, and
//! what the administrator can do about it.

use std::fmt;
use std::io;
use std::sync::Arc;

/// What was being done when a [`StorageError`] arose. Also how the simulated storage names the
/// operations that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StorageOp {
    /// Opening an existing file.
    Open,
    /// Creating a new file.
    Create,
    /// Removing a file.
    Remove,
    /// Renaming a file.
    Rename,
    /// Testing whether a file exists, or listing a directory.
    List,
    /// Creating a directory.
    CreateDir,
    /// Making a directory's entries durable.
    SyncDir,
    /// Locking the data directory.
    Lock,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making a file's bytes durable.
    Sync,
    /// Asking for a file's length.
    Len,
    /// Growing (with allocation) or shrinking a file.
    SetLen,
}

impl StorageOp {
    /// "cannot …" in messages.
    fn verb(self) -> &'static str {
        match self {
            StorageOp::Open => "open",
            StorageOp::Create => "create",
            StorageOp::Remove => "remove",
            StorageOp::Rename => "rename",
            StorageOp::List => "look up",
            StorageOp::CreateDir => "create directory",
            StorageOp::SyncDir => "sync directory",
            StorageOp::Lock => "lock",
            StorageOp::Read => "read",
            StorageOp::Write => "write",
            StorageOp::Sync => "sync",
            StorageOp::Len => "find the length of",
            StorageOp::SetLen => "change the length of",
        }
    }
}

/// Result of a storage operation.
pub type Result<T, E = StorageError> = std::result::Result<T, E>;

/// A failed storage operation. Cheap to clone, so that a fatal error can be kept and reported
/// again.
#[derive(Clone, Debug)]
pub struct StorageError {
    /// What was tried.
    pub op: StorageOp,
    /// The file or directory, relative to the storage's root (empty = the root itself).
    pub file: Arc<str>,
    /// Byte offset of the read or write, or the length asked of [`StorageOp::SetLen`].
    pub offset: Option<u64>,
    /// The operating system's (or the simulation's) error.
    pub source: Arc<io::Error>,
}

impl StorageError {
    /// An error of `op` on `file`.
    pub fn new(op: StorageOp, file: &str, source: impl Into<io::Error>) -> Self {
        Self { op, file: file.into(), offset: None, source: Arc::new(source.into()) }
    }

    /// An error of `op` on `file` at byte `offset`.
    pub fn at(op: StorageOp, file: &str, offset: u64, source: impl Into<io::Error>) -> Self {
        Self { op, file: file.into(), offset: Some(offset), source: Arc::new(source.into()) }
    }

    /// The kind of the underlying error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// Whether the disk (or the user's quota on it) is full: the operation may succeed later.
    pub fn is_no_space(&self) -> bool {
        matches!(self.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Whether a file or directory is missing.
    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }

    /// Whether a name that was to be created exists already.
    pub fn is_already_exists(&self) -> bool {
        self.kind() == io::ErrorKind::AlreadyExists
    }

    /// Whether a read reached past the end of the file: a truncated file.
    pub fn is_unexpected_eof(&self) -> bool {
        self.kind() == io::ErrorKind::UnexpectedEof
    }

    /// Whether the directory or the file system refuses writes.
    pub fn is_read_only(&self) -> bool {
        matches!(self.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
    }

    /// Whether the data directory's lock is held by somebody else.
    pub fn is_locked(&self) -> bool {
        self.op == StorageOp::Lock && self.kind() == io::ErrorKind::WouldBlock
    }

    /// What was tried and why it failed, for a message that names the file already and says itself
    /// what to do: "cannot read it at offset 4096: …".
    pub fn what(&self) -> String {
        self.what_of("it")
    }

    fn what_of(&self, file: &str) -> String {
        let place = match self.offset {
            Some(len) if self.op == StorageOp::SetLen => format!(" to {len} bytes"),
            Some(offset) => format!(" at offset {offset}"),
            None => String::new(),
        };
        format!("cannot {} {file}{place}: {}", self.op.verb(), self.source)
    }

    /// What the administrator can do; empty where the error speaks for itself.
    fn advice(&self) -> &'static str {
        use io::ErrorKind as Kind;
        match self.kind() {
            Kind::StorageFull => "free space on this disk; nothing committed is lost",
            Kind::QuotaExceeded => "raise the disk quota; nothing committed is lost",
            Kind::PermissionDenied => {
                "give the user this process runs as read and write permission on it"
            }
            Kind::ReadOnlyFilesystem => {
                "the file system is mounted read-only: remount it for writing, after looking in the \
                 kernel log for the reason"
            }
            Kind::NotFound => "put the missing file back, or restore a backup",
            Kind::UnexpectedEof => {
                "the file has been truncated: restore the data directory from a backup"
            }
            Kind::WouldBlock if self.op == StorageOp::Lock => {
                "this data directory is open already, in another process or in this one: close it \
                 there first"
            }
            _ if self.source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                "the disk failed: look in the kernel log and check the device"
            }
            _ => "",
        }
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = if self.file.is_empty() { "." } else { &*self.file };
        f.write_str(&self.what_of(&format!("'{file}'")))?;
        match self.advice() {
            "" => Ok(()),
            advice => write!(f, " ({advice})"),
        }
    }
}

// `source()` stays empty on purpose: the message holds the cause already, and reporters that print
// the whole chain would say it twice.
impl std::error::Error for StorageError {}
