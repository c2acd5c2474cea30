//! [`FileStorage`]: real files below a directory.
//!
//! Direct I/O (`O_DIRECT`) keeps the pages out of the kernel's page cache, as the pool is the
//! cache. Not every file system takes it: some refuse at open, some only at the first read or
//! write. Both fall back to buffered I/O, file by file, and say so once in the log.
//!
//! Batches go through io_uring, or where that is not allowed through a few threads.
//!
//! Any number of files may be open, whatever the limit of descriptors: see `handles.rs`.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::handles::Handles;
use super::open_file::OpenFile;
use super::uring::Rings;
use super::{
    BUFFER_ALIGNMENT, IoOp, Result, Storage, StorageError, StorageFile, StorageLock, StorageOp,
    name_is_valid,
};

/// Who may use files that are made: the owner writes them, the group may read them.
const FILE_MODE: u32 = 0o640;
/// Who may use a directory that is made: the owner.
const DIR_MODE: u32 = 0o700;

/// How a [`FileStorage`] treats its files.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Bypass the kernel's page cache where the file system allows it.
    pub direct_io: bool,
    /// How many files may be open at once, as far as they are not all in use; any number may be
    /// opened, as those that rest are closed and opened again. 0 = half of the descriptors that the
    /// process may have.
    pub open_files: usize,
    /// Nothing is made or changed, so that the directory may be one that can't be: files are only
    /// opened to be read. Only the file of [`Storage::lock`] is made if it is missing and can be.
    pub read_only: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { direct_io: true, open_files: 0, read_only: false }
    }
}

impl FileOptions {
    /// What files are opened for.
    fn access(&self) -> OFlags {
        if self.read_only { OFlags::RDONLY } else { OFlags::RDWR }
    }
}

/// The files below one directory of the operating system.
pub struct FileStorage {
    root: PathBuf,
    options: FileOptions,
    /// `None` where io_uring is not allowed or not wanted.
    rings: Option<Rings>,
    handles: Arc<Handles>,
    /// Set once the fallback to buffered I/O has been reported.
    fallback_reported: Arc<AtomicBool>,
}

impl FileStorage {
    /// The storage below `root`, a directory that is made, durably, if it is missing. Its parent
    /// must exist: if it does not, the path is misspelt or a file system is not mounted.
    pub fn new(root: impl AsRef<Path>, options: FileOptions) -> Result<Self> {
        let root = root.as_ref();
        let failed = |error| StorageError::new(StorageOp::Open, &root.display().to_string(), error);
        match std::fs::metadata(root) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(failed(io::ErrorKind::NotADirectory.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !options.read_only => {
                make_dir(root).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        // Absolute, so that a later change of the working directory moves nothing.
        let root = root.canonicalize().map_err(failed)?;
        let rings = Rings::probe();
        if rings.is_none() {
            tracing::info!("io_uring is not available: batches of I/O use threads");
        }
        let handles = Arc::new(Handles::new(options.open_files, options.access()));
        Ok(Self { root, options, rings, handles, fallback_reported: Arc::default() })
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

    /// How many files have a descriptor at the moment.
    pub fn open_files(&self) -> usize {
        self.handles.count()
    }

    /// How many files may have a descriptor while not all of them are in use.
    pub fn open_files_limit(&self) -> usize {
        self.handles.limit()
    }

    /// Takes the lock of the data directory shared with others that only read it, until the guard
    /// is dropped;
    /// `None` if there is no file of this name. Makes and changes nothing.
    ///
    /// # Errors
    /// [`StorageError::is_locked`] if a process has the directory open for writing.
    pub fn lock_shared(&self, name: &str) -> Result<Option<StorageLock>> {
        let failed = |error: io::Error| StorageError::new(StorageOp::Lock, name, error);
        let file = match File::open(self.path(StorageOp::Lock, name)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        retry_interrupted(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared))
            .map_err(|errno| failed(errno.into()))?;
        Ok(Some(StorageLock::new(file)))
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

    /// The path of a file to make, remove or rename.
    fn path_to_change(&self, op: StorageOp, name: &str) -> Result<PathBuf> {
        match self.options.read_only {
            true => Err(StorageError::new(op, name, Errno::ROFS)),
            false => self.path(op, name),
        }
    }

    fn dir_path(&self, op: StorageOp, dir: &str) -> Result<PathBuf> {
        if dir.is_empty() { Ok(self.root.clone()) } else { self.path(op, dir) }
    }

    fn open_with(&self, op: StorageOp, name: &str, flags: OFlags) -> Result<Arc<dyn StorageFile>> {
        let path = self.path(op, name)?;
        let mut alignment = 1;
        let opened = self.handles.add(path.clone(), || {
            let (file, direct) = self.open_descriptor(&path, flags)?;
            alignment = direct.unwrap_or(1);
            Ok((file, direct.is_some()))
        });
        let state = opened.map_err(|error| StorageError::new(op, name, error))?;
        if self.options.direct_io && !state.is_direct() {
            report_fallback(&self.fallback_reported, name);
        }
        let fallback_reported = self.fallback_reported.clone();
        Ok(Arc::new(OpenFile::new(state, &self.handles, name, alignment, fallback_reported)))
    }

    /// Opens a file, and returns the alignment that direct I/O needs if it is for direct I/O.
    fn open_descriptor(&self, path: &Path, flags: OFlags) -> io::Result<(File, Option<usize>)> {
        let open = |extra: OFlags| {
            let mode = Mode::from_raw_mode(FILE_MODE);
            let access = self.options.access();
            rustix::fs::open(path, access | OFlags::CLOEXEC | flags | extra, mode)
        };
        let mut direct = self.options.direct_io;
        let fd = match open(if direct { OFlags::DIRECT } else { OFlags::empty() }) {
            // Linux refuses O_DIRECT only after it has created the file, so the second try must not
            // ask for a new one.
            Err(Errno::INVAL) if direct => {
                direct = false;
                let flags = self.options.access() | OFlags::CLOEXEC;
                match rustix::fs::open(path, flags, Mode::empty()) {
                    Err(Errno::NOENT) => open(OFlags::empty()),
                    other => other,
                }?
            }
            other => other?,
        };
        if !direct {
            return Ok((File::from(fd), None));
        }
        let alignment = direct_io_alignment(fd.as_fd());
        if alignment.is_none() {
            clear_direct(fd.as_fd())?;
        }
        Ok((File::from(fd), alignment))
    }
}

impl Storage for FileStorage {
    fn open(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        self.open_with(StorageOp::Open, name, OFlags::empty())
    }

    fn create(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        self.path_to_change(StorageOp::Create, name)?;
        self.open_with(StorageOp::Create, name, OFlags::CREATE | OFlags::EXCL)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path_to_change(StorageOp::Remove, name)?;
        self.handles
            .remove(&path, || std::fs::remove_file(&path))
            .map_err(|error| StorageError::new(StorageOp::Remove, name, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (old, new) = (
            self.path_to_change(StorageOp::Rename, from)?,
            self.path_to_change(StorageOp::Rename, to)?,
        );
        self.handles
            .rename(&old, &new, || std::fs::rename(&old, &new))
            .map_err(|error| StorageError::new(StorageOp::Rename, from, error))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        std::fs::exists(self.path(StorageOp::List, name)?)
            .map_err(|error| StorageError::new(StorageOp::List, name, error))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let failed = |error| StorageError::new(StorageOp::List, dir, error);
        let path = self.dir_path(StorageOp::List, dir)?;
        let mut names = Vec::new();
        for entry in self.handles.with_room(|| std::fs::read_dir(&path)).map_err(failed)? {
            // Names that are not UTF-8 are not ours.
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        let path = self.path_to_change(StorageOp::CreateDir, dir)?;
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            other => other.map_err(|error| StorageError::new(StorageOp::CreateDir, dir, error)),
        }
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        let failed = |error: io::Error| StorageError::new(StorageOp::SyncDir, dir, error);
        let path = self.dir_path(StorageOp::SyncDir, dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open =
            || rustix::fs::open(path.as_path(), flags, Mode::empty()).map_err(io::Error::from);
        let handle = self.handles.with_room(open).map_err(failed)?;
        retry_interrupted(|| rustix::fs::fsync(&handle)).map_err(|errno| failed(errno.into()))
    }

    fn lock(&self, name: &str) -> Result<StorageLock> {
        let path = self.path(StorageOp::Lock, name)?;
        let failed = |error: io::Error| StorageError::new(StorageOp::Lock, name, error);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let opened = options.open(&path);
        let file = match opened.or_else(|error| match self.options.read_only {
            true => File::open(&path),
            false => Err(error),
        }) {
            // Where this file can't be made, the others can't be written either.
            Err(error) if self.options.read_only && error.kind() == io::ErrorKind::NotFound => {
                return Ok(StorageLock::new(()));
            }
            opened => opened.map_err(failed)?,
        };
        // flock, not fcntl locks: those vanish when any descriptor of the file in the process is
        // closed, and do not exclude a second open in the same process.
        // Those who only read do not disturb each other.
        let operation = match self.options.read_only {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        retry_interrupted(|| rustix::fs::flock(&file, operation))
            .map_err(|errno| failed(errno.into()))?;
        if !self.options.read_only {
            keep_others_out(&file);
        }
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

/// Who can open a lock file, if only to read it, can lock it, and so keep the owner from opening
/// the directory. Earlier versions made the file with the process's umask alone.
fn keep_others_out(file: &File) {
    let Ok(meta) = file.metadata() else { return };
    let mode = meta.permissions().mode();
    // The owner alone may change that; the lock is held in any case.
    if mode & 0o777 & !FILE_MODE != 0 {
        let _ = file.set_permissions(PermissionsExt::from_mode(mode & FILE_MODE));
    }
}

/// Makes a directory such that a power cut leaves it there.
fn make_dir(dir: &Path) -> io::Result<()> {
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    match std::fs::DirBuilder::new().mode(DIR_MODE).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let why = format!(
                "neither it nor '{}', where it would be made, exists: is the path right, and the \
                 file system mounted?",
                parent.display()
            );
            return Err(io::Error::other(why));
        }
        made => made?,
    }
    match File::open(parent) {
        // It may be one that this user may not list.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        parent => parent?.sync_all(),
    }
}

/// Runs the operations of a batch in a few threads, this one among them; in this one alone if there
/// are no others to be had.
fn run_in_threads(ops: &mut [IoOp<'_>]) {
    /// Below this many operations a further thread costs more than it gains.
    const OPERATIONS_PER_THREAD_MIN: usize = 4;
    const THREADS_MAX: usize = 16;
    let threads = (ops.len() / OPERATIONS_PER_THREAD_MIN).clamp(1, THREADS_MAX);
    let left = Mutex::new(ops.iter_mut());
    let next = || left.lock().next();
    let run = || {
        while let Some(op) = next() {
            op.run();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            if std::thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
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

pub(super) fn invalid_input(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

pub(super) fn retry_interrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
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

pub(super) fn clear_direct(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags - OFlags::DIRECT)
}

pub(super) fn report_fallback(reported: &AtomicBool, name: &str) {
    if !reported.swap(true, Ordering::Relaxed) {
        tracing::warn!(file = name, "the file system refuses direct I/O: using buffered I/O");
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
