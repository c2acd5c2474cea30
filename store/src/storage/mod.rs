//! Files, directories and their durability: everything the pool and the engine know of disks.
//!
//! All I/O of the product goes through two object-safe traits, [`Storage`] (a directory tree) and
//! [`StorageFile`] (one open file), so that the whole engine runs unchanged on real files
//! ([`FileStorage`]) and on a simulated disk that tears, loses and refuses on purpose
//! ([`SimStorage`]).
//!
//! # What a caller may rely on
//! - Nothing is durable before it is synced. [`StorageFile::sync_data`] makes a file's bytes and
//!   its length durable; [`Storage::sync_dir`] makes creations, removals and renames in that
//!   directory durable. Neither implies the other: a new file needs both.
//! - Until then, after a power cut, any subset of the 512-byte sectors written since the last sync
//!   may be there or not: no order between writes, no atomicity above a sector.
//! - A failed sync is final. The kernel may have dropped the very pages it failed to write, and a
//!   second `fsync` would report success all the same. Hence the file is *poisoned*: every later
//!   sync of this open file fails, and the caller must stop trusting anything not synced before.
//! - A failed write leaves the range it was to write undefined, each sector old or new.
//! - [`StorageFile::set_len`] allocates as it grows, so a full disk shows there; a write inside the
//!   length never fails for want of space (on file systems that do not copy on write).
//!
//! # Alignment
//! With direct I/O the kernel demands aligned addresses, lengths and offsets.
//! [`StorageFile::io_alignment`] says how much; [`AlignedBuf`] and page frames satisfy it always.

mod aligned;
mod ballast;
mod error;
mod file;
mod handles;
mod observed;
#[cfg(test)]
mod observed_tests;
mod open_file;
mod overlay;
mod sim;
mod uring;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

pub use aligned::{AlignedBuf, BUFFER_ALIGNMENT};
pub use ballast::Ballast;
pub use error::{Result, StorageError, StorageOp};
pub use file::{FileOptions, FileStorage};
pub use handles::{FileLease, FileUse};
pub use observed::{
    FileObserver, FileOperation, FileToken, FileWatch, ObservedFile, ObservedStorage,
};
pub use overlay::OverlayStorage;
pub use sim::{Fault, FaultKind, SimStorage};

/// A directory tree of files. Names are paths relative to the storage's root, with `/` between the
/// parts; `..`, `.`, empty parts and absolute paths are refused.
pub trait Storage: Send + Sync + 'static {
    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> Result<Arc<dyn StorageFile>>;

    /// Creates an empty file; an error if the name exists. Durable after [`Storage::sync_dir`].
    fn create(&self, name: &str) -> Result<Arc<dyn StorageFile>>;

    /// Removes a file; who has it open keeps its bytes. Durable after [`Storage::sync_dir`].
    fn remove(&self, name: &str) -> Result<()>;

    /// Renames a file, atomically replacing `to` if it exists. Durable after [`Storage::sync_dir`]
    /// of both directories.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Whether a file or directory of this name exists.
    fn exists(&self, name: &str) -> Result<bool>;

    /// [`Storage::remove`], if there is such a file.
    fn remove_if_there(&self, name: &str) -> Result<()> {
        if self.exists(name)? {
            self.remove(name)?;
        }
        Ok(())
    }

    /// Names of the files and directories directly in `dir` ("" = the root), sorted.
    fn list(&self, dir: &str) -> Result<Vec<String>>;

    /// Creates a directory; no error if it exists. Durable after [`Storage::sync_dir`] of its
    /// parent.
    fn create_dir(&self, dir: &str) -> Result<()>;

    /// Makes the creations, removals and renames in `dir` ("" = the root) durable.
    fn sync_dir(&self, dir: &str) -> Result<()>;

    /// Takes the exclusive lock of the data directory, kept in the file `name` (made if missing),
    /// until the returned guard is dropped or the process ends, however it ends.
    /// Never waits: [`StorageError::is_locked`] if another process or another storage has it.
    fn lock(&self, name: &str) -> Result<StorageLock>;

    /// Runs all reads and writes, concurrently where possible, in no particular order, and returns
    /// when all are done. Each operation carries its own result. The operations must not overlap.
    fn run_batch(&self, ops: &mut [IoOp<'_>]) {
        for op in ops {
            op.run();
        }
    }
}

/// One open file. All methods may be called from several threads at once.
pub trait StorageFile: Send + Sync {
    /// The name the file was opened by, for messages.
    fn name(&self) -> &str;

    /// Fills `buf` from `offset`. Reading past the end is an error of kind
    /// [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof).
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Writes all of `bytes` at `offset`, extending the file if that reaches past its end.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Makes all completed writes and the length durable. After a failure every later call fails.
    fn sync_data(&self) -> Result<()>;

    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Sets the length in bytes. Growing allocates the space (on failure the old length stays) and
    /// the new bytes read as zeroes; shrinking truncates. The caller excludes concurrent calls.
    ///
    /// The first write into space allocated this way still costs the file system some bookkeeping
    /// at the next sync; a log that is synced often should write zeroes once, after allocating.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Like [`StorageFile::set_len`] where the file system allocates space by itself. Returns
    /// false where it has to be written to for that: then nothing has changed.
    fn set_len_without_writing(&self, len: u64) -> Result<bool> {
        self.set_len(len).map(|()| true)
    }

    /// What the address, length and offset of every read and write must be a multiple of;
    /// 1 where nothing is asked. At most [`BUFFER_ALIGNMENT`].
    fn io_alignment(&self) -> usize;

    /// The file descriptor, where there is one and it can be had, for asynchronous I/O. The lease
    /// must outlive the operation; after a write it notes that the file needs a sync.
    fn lease(&self, purpose: FileUse) -> Option<FileLease> {
        let _ = purpose;
        None
    }

    /// This file as one of an [`ObservedStorage`], if it is one.
    fn as_observed(&self) -> Option<&ObservedFile> {
        None
    }
}

/// Holds the exclusive lock of a data directory; dropping it gives the lock back.
pub struct StorageLock {
    _held: Box<dyn Any + Send + Sync>,
}

impl StorageLock {
    /// Wraps whatever holds the lock while it lives.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self { _held: Box::new(held) }
    }
}

impl fmt::Debug for StorageLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StorageLock")
    }
}

/// The bytes of one operation of a batch.
#[derive(Debug)]
pub enum IoBuf<'a> {
    /// Read into these bytes.
    Read(&'a mut [u8]),
    /// Write these bytes.
    Write(&'a [u8]),
}

impl IoBuf<'_> {
    /// The bytes, for their address and length.
    pub fn bytes(&self) -> &[u8] {
        match self {
            IoBuf::Read(buf) => buf,
            IoBuf::Write(bytes) => bytes,
        }
    }

    /// Number of bytes to transfer.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there is nothing to transfer.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One read or write of a batch, see [`Storage::run_batch`].
pub struct IoOp<'a> {
    /// The file, opened by the storage that runs the batch.
    pub file: &'a dyn StorageFile,
    /// Byte offset in the file.
    pub offset: u64,
    /// Direction and bytes.
    pub buf: IoBuf<'a>,
    /// The outcome; `Ok` and meaningless before the batch has run.
    pub result: Result<()>,
}

impl<'a> IoOp<'a> {
    /// A read of `buf.len()` bytes at `offset`.
    pub fn read(file: &'a dyn StorageFile, buf: &'a mut [u8], offset: u64) -> Self {
        Self { file, offset, buf: IoBuf::Read(buf), result: Ok(()) }
    }

    /// A write of `bytes` at `offset`.
    pub fn write(file: &'a dyn StorageFile, bytes: &'a [u8], offset: u64) -> Self {
        Self { file, offset, buf: IoBuf::Write(bytes), result: Ok(()) }
    }

    /// Runs this operation alone, and gives its outcome.
    pub fn alone(mut self) -> Result<()> {
        self.run();
        self.result
    }

    /// Runs this operation alone, in the calling thread.
    pub fn run(&mut self) {
        self.result = match &mut self.buf {
            IoBuf::Read(buf) => self.file.read_at(buf, self.offset),
            IoBuf::Write(bytes) => self.file.write_at(bytes, self.offset),
        };
    }
}

/// Whether `name` stays below the storage's root and has no empty part.
fn name_is_valid(name: &str) -> bool {
    name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}
