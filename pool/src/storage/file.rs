//! [`FileStorage`]: real files below a directory.
//!
//! Direct I/O (`O_DIRECT`) keeps the pages out of the kernel's page cache, as the pool is the cache.
//! Not every file system takes it: some refuse at open, some only at the first read or write. Both
//! fall back to buffered I/O, file by file, and say so once in the log.
//!
//! Batches go through io_uring, or where that is not allowed through a few threads.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::uring::Rings;
use super::{
    AlignedBuf, BUFFER_ALIGNMENT, IoOp, Result, Storage, StorageError, StorageFile, StorageLock,
    StorageOp, name_is_valid,
};

/// How a [`FileStorage`] treats its files.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Bypass the kernel's page cache where the file system allows it.
    pub direct_io: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { direct_io: true }
    }
}

/// The files below one directory of the operating system.
pub struct FileStorage {
    root: PathBuf,
    options: FileOptions,
    /// `None` where io_uring is not allowed or not wanted.
    rings: Option<Rings>,
    /// Set once the fallback to buffered I/O has been reported.
    fallback_reported: Arc<AtomicBool>,
}

impl FileStorage {
    /// The storage below `root`, a directory that is made (with its parents) if it is missing.
    pub fn new(root: impl AsRef<Path>, options: FileOptions) -> Result<Self> {
        let root = root.as_ref();
        let failed = |error| StorageError::new(StorageOp::Open, &root.display().to_string(), error);
        match std::fs::metadata(root) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(failed(io::ErrorKind::NotADirectory.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(root).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        // Absolute, so that a later change of the working directory moves nothing.
        let root = root.canonicalize().map_err(failed)?;
        let rings = Rings::probe();
        if rings.is_none() {
            tracing::info!("io_uring is not available: batches of I/O use threads");
        }
        Ok(Self { root, options, rings, fallback_reported: Arc::default() })
    }

    /// Uses threads for batches even where io_uring is allowed.
    pub fn without_io_uring(mut self) -> Self {
        self.rings = None;
        self
    }

    /// Whether batches go through io_uring.
    pub fn uses_io_uring(&self) -> bool {
        self.rings.is_some()
    }

    /// The directory, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, op: StorageOp, name: &str) -> Result<PathBuf> {
        if name_is_valid(name) {
            Ok(self.root.join(name))
        } else {
            Err(StorageError::new(op, name, invalid_input("not a name below the storage's root")))
        }
    }

    fn dir_path(&self, op: StorageOp, dir: &str) -> Result<PathBuf> {
        if dir.is_empty() { Ok(self.root.clone()) } else { self.path(op, dir) }
    }

    fn open_with(&self, op: StorageOp, name: &str, flags: OFlags) -> Result<Arc<dyn StorageFile>> {
        let path = self.path(op, name)?;
        let open = |extra: OFlags| {
            let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
            rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC | flags | extra, mode)
        };
        let failed = |errno: Errno| StorageError::new(op, name, errno);
        let mut direct = self.options.direct_io;
        let fd = match open(if direct { OFlags::DIRECT } else { OFlags::empty() }) {
            // Linux refuses O_DIRECT only after it has created the file, so the second try must not
            // ask for a new one.
            Err(Errno::INVAL) if direct => {
                direct = false;
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                match rustix::fs::open(&path, flags, Mode::empty()) {
                    Err(Errno::NOENT) => open(OFlags::empty()),
                    other => other,
                }
                .map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        let mut alignment = 1;
        if direct {
            match direct_io_alignment(fd.as_fd()) {
                Some(asked) => alignment = asked,
                None => {
                    clear_direct(fd.as_fd()).map_err(|errno| StorageError::new(op, name, errno))?;
                    direct = false;
                }
            }
        }
        if self.options.direct_io && !direct {
            report_fallback(&self.fallback_reported, name);
        }
        Ok(Arc::new(OpenFile {
            file: File::from(fd),
            name: name.into(),
            alignment,
            direct: AtomicBool::new(direct),
            poisoned: AtomicBool::new(false),
            fallback_reported: self.fallback_reported.clone(),
        }))
    }
}

impl Storage for FileStorage {
    fn open(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        self.open_with(StorageOp::Open, name, OFlags::empty())
    }

    fn create(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        self.open_with(StorageOp::Create, name, OFlags::CREATE | OFlags::EXCL)
    }

    fn remove(&self, name: &str) -> Result<()> {
        std::fs::remove_file(self.path(StorageOp::Remove, name)?)
            .map_err(|error| StorageError::new(StorageOp::Remove, name, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (old, new) = (self.path(StorageOp::Rename, from)?, self.path(StorageOp::Rename, to)?);
        std::fs::rename(old, new).map_err(|error| StorageError::new(StorageOp::Rename, from, error))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        std::fs::exists(self.path(StorageOp::List, name)?)
            .map_err(|error| StorageError::new(StorageOp::List, name, error))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let failed = |error| StorageError::new(StorageOp::List, dir, error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.dir_path(StorageOp::List, dir)?).map_err(failed)? {
            // Names that are not UTF-8 are not ours.
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        let path = self.path(StorageOp::CreateDir, dir)?;
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other.map_err(|error| StorageError::new(StorageOp::CreateDir, dir, error)),
        }
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        let failed = |errno: Errno| StorageError::new(StorageOp::SyncDir, dir, errno);
        let path = self.dir_path(StorageOp::SyncDir, dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        retry_interrupted(|| rustix::fs::fsync(&handle)).map_err(failed)
    }

    fn lock(&self, name: &str) -> Result<StorageLock> {
        let path = self.path(StorageOp::Lock, name)?;
        let failed = |error: io::Error| StorageError::new(StorageOp::Lock, name, error);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        // flock, not fcntl locks: those vanish when any descriptor of the file in the process is
        // closed, and do not exclude a second open in the same process.
        retry_interrupted(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive))
            .map_err(|errno| failed(errno.into()))?;
        Ok(StorageLock::new(file))
    }

    fn run_batch(&self, ops: &mut [IoOp<'_>]) {
        // What direct I/O would refuse is refused before anything is started.
        let misaligned =
            |op: &IoOp<'_>| !is_aligned(op.buf.bytes(), op.offset, op.file.io_alignment());
        match &self.rings {
            _ if ops.len() < 2 => ops.iter_mut().for_each(IoOp::run),
            Some(rings) if !ops.iter().any(misaligned) => rings.run(ops),
            _ => run_in_threads(ops),
        }
    }
}

impl fmt::Debug for FileStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStorage")
            .field("root", &self.root)
            .field("options", &self.options)
            .field("io_uring", &self.uses_io_uring())
            .finish()
    }
}

/// Runs the operations of a batch in a few threads, this one among them.
fn run_in_threads(ops: &mut [IoOp<'_>]) {
    /// Below this many operations a further thread costs more than it gains.
    const OPERATIONS_PER_THREAD_MIN: usize = 4;
    const THREADS_MAX: usize = 16;
    let threads = (ops.len() / OPERATIONS_PER_THREAD_MIN).clamp(1, THREADS_MAX);
    let (mine, others) = ops.split_at_mut(ops.len().div_ceil(threads));
    std::thread::scope(|scope| {
        for share in others.chunks_mut(mine.len().max(1)) {
            scope.spawn(|| share.iter_mut().for_each(IoOp::run));
        }
        mine.iter_mut().for_each(IoOp::run);
    });
}

/// One open file of a [`FileStorage`].
struct OpenFile {
    file: File,
    name: Box<str>,
    /// Stays as it was at open even when direct I/O is given up later.
    alignment: usize,
    direct: AtomicBool,
    /// Set by the first failed sync, never cleared.
    poisoned: AtomicBool,
    fallback_reported: Arc<AtomicBool>,
}

impl OpenFile {
    fn check_alignment(&self, op: StorageOp, bytes: &[u8], offset: u64) -> Result<()> {
        if is_aligned(bytes, offset, self.alignment) {
            return Ok(());
        }
        Err(StorageError::at(op, &self.name, offset, misaligned(bytes, self.alignment)))
    }

    /// Whether an aligned operation failed because the file system took `O_DIRECT` at open but not
    /// now; then the file is buffered from here on and the caller tries again.
    fn gave_up_direct(&self, error: &io::Error) -> bool {
        let refused = error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
            && self.direct.load(Ordering::Acquire)
            && clear_direct(self.file.as_fd()).is_ok();
        if refused {
            self.direct.store(false, Ordering::Release);
            report_fallback(&self.fallback_reported, &self.name);
        }
        refused
    }

    fn grow(&self, from: u64, to: u64) -> io::Result<()> {
        let allocated = retry_interrupted(|| {
            rustix::fs::fallocate(&self.file, FallocateFlags::empty(), from, to - from)
        });
        match allocated {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.grow_by_writing(from, to),
            Err(errno) => Err(errno.into()),
        }
    }

    /// For file systems without `fallocate`: zeroes really written allocate the space.
    fn grow_by_writing(&self, from: u64, to: u64) -> io::Result<()> {
        const CHUNK: u64 = 1 << 20;
        let zeroes = AlignedBuf::zeroed(CHUNK as usize);
        let mut offset = from;
        // Direct writes need whole blocks: a ragged start or end is only given its length.
        let align = self.alignment as u64;
        let (first, last) = (from.next_multiple_of(align), to / align * align);
        if first < last {
            offset = first;
            while offset < last {
                let len = CHUNK.min(last - offset);
                self.file.write_all_at(&zeroes[..len as usize], offset)?;
                offset += len;
            }
        }
        if offset < to { self.file.set_len(to) } else { Ok(()) }
    }
}

impl StorageFile for OpenFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check_alignment(StorageOp::Read, buf, offset)?;
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => {
                    let eof = io::ErrorKind::UnexpectedEof;
                    return Err(StorageError::at(StorageOp::Read, &self.name, offset, eof));
                }
                // A short read stops at the end of the file or at a signal. After a signal direct I/O
                // must go on from a whole block.
                Ok(n) if done + n == buf.len() || !self.direct.load(Ordering::Acquire) => done += n,
                Ok(_) if offset + buf.len() as u64 > self.len()? => {
                    let eof = io::ErrorKind::UnexpectedEof;
                    return Err(StorageError::at(StorageOp::Read, &self.name, offset, eof));
                }
                Ok(n) => done = (done + n) / self.alignment * self.alignment,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.gave_up_direct(&error) => {}
                Err(error) => {
                    return Err(StorageError::at(StorageOp::Read, &self.name, offset, error));
                }
            }
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_alignment(StorageOp::Write, bytes, offset)?;
        let mut done = 0;
        while done < bytes.len() {
            let error = match self.file.write_at(&bytes[done..], offset + done as u64) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                // A direct write that stops inside a block starts that block again.
                Ok(n) if self.direct.load(Ordering::Acquire) && done + n < bytes.len() => {
                    let whole = (done + n) / self.alignment * self.alignment;
                    if whole > done {
                        done = whole;
                        continue;
                    }
                    io::ErrorKind::WriteZero.into()
                }
                Ok(n) => {
                    done += n;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if self.gave_up_direct(&error) => continue,
                Err(error) => error,
            };
            return Err(StorageError::at(StorageOp::Write, &self.name, offset, error));
        }
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(StorageError::new(StorageOp::Sync, &self.name, poisoned()));
        }
        retry_interrupted(|| rustix::fs::fdatasync(&self.file)).map_err(|errno| {
            self.poisoned.store(true, Ordering::Release);
            StorageError::new(StorageOp::Sync, &self.name, errno)
        })?;
        // A sync that ran beside this one may have failed and taken this one's error with it.
        if self.poisoned.load(Ordering::Acquire) {
            return Err(StorageError::new(StorageOp::Sync, &self.name, poisoned()));
        }
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        match self.file.metadata() {
            Ok(meta) => Ok(meta.len()),
            Err(error) => Err(StorageError::new(StorageOp::Len, &self.name, error)),
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let failed = |error| StorageError::at(StorageOp::SetLen, &self.name, len, error);
        let old = self.len()?;
        if len <= old {
            return self.file.set_len(len).map_err(failed);
        }
        self.grow(old, len).map_err(|error| {
            // A half-grown file would pass for a grown one at the next start. If even this fails,
            // the error at hand is still the one to tell.
            let _ = self.file.set_len(old);
            failed(error)
        })
    }

    fn io_alignment(&self) -> usize {
        self.alignment
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// The error of every sync after a failed one.
pub(super) fn poisoned() -> io::Error {
    io::Error::other(
        "an earlier sync of this file failed, so what reached the disk is unknown; restart to recover",
    )
}

/// Whether address, length and offset are multiples of `align`.
pub(super) fn is_aligned(bytes: &[u8], offset: u64, align: usize) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(align)
        && bytes.len().is_multiple_of(align)
        && offset.is_multiple_of(align as u64)
}

/// The error of a read or write that breaks the rules of direct I/O.
pub(super) fn misaligned(bytes: &[u8], align: usize) -> io::Error {
    invalid_input(format!(
        "address {bytes:p}, length {} or offset is not a multiple of {align}, as direct I/O needs",
        bytes.len()
    ))
}

fn invalid_input(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn retry_interrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// The alignment that direct I/O on this file asks for; `None` if the file system says that it has
/// no direct I/O.
fn direct_io_alignment(fd: BorrowedFd<'_>) -> Option<usize> {
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    match stat.filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0) {
        // Kernels before 6.1 and some file systems don't say: a memory page satisfies every device.
        None => Some(BUFFER_ALIGNMENT),
        Some(stat) => {
            let align = stat.stx_dio_mem_align.max(stat.stx_dio_offset_align) as usize;
            let usable = stat.stx_dio_offset_align > 0 && align <= BUFFER_ALIGNMENT;
            usable.then_some(align)
        }
    }
}

fn clear_direct(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags - OFlags::DIRECT)
}

fn report_fallback(reported: &AtomicBool, name: &str) {
    if !reported.swap(true, Ordering::Relaxed) {
        tracing::warn!(file = name, "the file system refuses direct I/O: using buffered I/O");
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
