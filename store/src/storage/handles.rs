//! Open file descriptors are scarce: [`Handles`] keeps at most a number of them, and reopens by
//! name.
//!
//! A process may have 1,024 descriptors open where the limit was not raised, and a server may
//! have ten thousand tables. So a file that the storage has opened ([`FileState`]) may be without
//! its descriptor for a while: it is closed when another file needs the place, and opened again, by
//! its present name, at the next use. Which one goes is decided by second chance: the file that was
//! opened first goes unless it was used since the last look at it, an LRU that costs a use no more
//! than a store.
//!
//! # Descriptors in use are never closed
//! Who reads, writes or syncs holds a lease, a reference to the open file, and only a descriptor
//! without leases is closed. So the limit is soft: when all are in use, one more is opened.
//!
//! # Nor the error of a write
//! Closing a file loses none of its bytes: they are the inode's, and a later sync through another
//! descriptor covers them. But a descriptor reports only write errors that came while it was
//! open (or that were unreported when it was opened, if the inode stayed in memory). A sync
//! through a younger descriptor could report success for bytes that are gone. Hence a file that was
//! written (or whose length was changed) since its last sync is never closed as it is: it is synced
//! first, outside of all mutexes, and a failure poisons it as any failed sync does. Files that need
//! no sync go first; the pool syncs what it has written within moments, so there are nearly always
//! some.
//!
//! # Renames and removals
//! A rename through the storage is followed. A file that is removed, or that another is renamed
//! over, is opened once more before that and stays open while anybody has it, as the operating
//! system does for descriptors. What others do to the directory shows at the next opening: a
//! missing file is an error, and so is a file that is not the same inode.
//!
//! # Locking order
//! `Handles::table` → `FileState::place`. A reopening takes the place alone, after it has made
//! room; the search for a file to close only tries it. No read, write or sync happens under either.
//! `FileState::syncing` is held while a file is synced, with neither of them.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::file::{poisoned, retry_interrupted};

/// Fewer than this are of no use: the redo log wants some too.
const OPEN_FILES_MIN: usize = 8;

/// How many files that need a sync are synced in search of a place, before one more is opened than
/// allowed.
const SYNCS_MAX: usize = 4;

/// Keeps a file's descriptor open while it lives.
pub struct FileLease {
    file: Arc<File>,
    /// Held by the thread that changes the file.
    writes_to: Option<Arc<FileState>>,
}

impl FileLease {
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

impl AsFd for FileLease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for FileLease {
    fn drop(&mut self) {
        // When the write is over: a sync that ran beside it has not covered it. The descriptor
        // itself goes after this, so no thread closes the file in between.
        if let Some(state) = &self.writes_to {
            state.written.store(true, Ordering::SeqCst);
        }
    }
}

impl std::fmt::Debug for FileLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FileLease").field(&self.file).finish()
    }
}

/// What a file is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// Bytes or length are read, or the file is synced.
    Read,
    /// Bytes or length are changed: the file needs a sync from now on.
    Write,
}

/// A file that the storage has opened, with or without its descriptor.
pub(super) struct FileState {
    place: RwLock<Place>,
    /// Device and inode, by which it is recognised.
    identity: (u64, u64),
    /// Whether it is opened with `O_DIRECT`.
    direct: AtomicBool,
    /// Used since the last search passed it.
    used: AtomicBool,
    /// A change has ended since the last sync began.
    written: AtomicBool,
    /// Set by the first failed sync, never cleared.
    poisoned: AtomicBool,
    /// Held from before a sync until its failure is known to all.
    syncing: Mutex<()>,
}

struct Place {
    path: PathBuf,
    handle: Option<Arc<File>>,
    /// It has no name any more, so its descriptor is the only way to it.
    nameless: bool,
}

enum TryClose {
    Closed(Arc<File>),
    Written,
    InUse,
}

impl FileState {
    pub(super) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Acquire)
    }

    pub(super) fn give_up_direct(&self) {
        self.direct.store(false, Ordering::Release);
    }

    /// Whether a sync has failed.
    fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Makes all completed writes durable. The first failure poisons the file, and every later call
    /// fails.
    pub(super) fn sync(&self, lease: &FileLease) -> io::Result<()> {
        self.sync_by(|| retry_interrupted(|| rustix::fs::fdatasync(lease)))
    }

    /// One at a time: the kernel reports a failed write once for each descriptor, and a thread that
    /// synced beside the one that gets the report would see success before the file is poisoned.
    fn sync_by(&self, sync: impl FnOnce() -> Result<(), Errno>) -> io::Result<()> {
        let _alone = self.syncing.lock();
        if self.is_poisoned() {
            return Err(poisoned());
        }
        // Before the sync: a write that ends beside it is not covered.
        self.written.store(false, Ordering::SeqCst);
        sync().inspect_err(|_| self.poisoned.store(true, Ordering::Release))?;
        Ok(())
    }

    fn lease_if_open(self: &Arc<Self>, purpose: FileUse) -> Option<FileLease> {
        let file = self.place.read().handle.clone()?;
        Some(self.lease_of(file, purpose))
    }

    fn lease_of(self: &Arc<Self>, file: Arc<File>, purpose: FileUse) -> FileLease {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        FileLease { file, writes_to: (purpose == FileUse::Write).then(|| self.clone()) }
    }

    fn reopen(&self, path: &Path, access: OFlags) -> io::Result<File> {
        let direct = if self.is_direct() { OFlags::DIRECT } else { OFlags::empty() };
        let flags = access | OFlags::CLOEXEC | direct;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        if identity(&file)? != self.identity {
            return Err(io::Error::other(
                "another file has taken its place while the server runs: stop the server, put the right file back",
            ));
        }
        Ok(file)
    }

    fn try_close(&self) -> TryClose {
        let Some(mut place) = self.place.try_write() else { return TryClose::InUse };
        let in_use = place.nameless || self.is_poisoned();
        // `get_mut` answers only if there is no lease, and sees all that the last one's holder did.
        let alone = place.handle.as_mut().is_some_and(|handle| Arc::get_mut(handle).is_some());
        if in_use || !alone {
            TryClose::InUse
        } else if self.written.load(Ordering::SeqCst) {
            TryClose::Written
        } else {
            place.handle.take().map_or(TryClose::InUse, TryClose::Closed)
        }
    }
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

#[derive(Default)]
struct Table {
    /// Every file that somebody has, by its present name.
    by_path: HashMap<PathBuf, Vec<Arc<FileState>>>,
    /// Those with a descriptor; the next to be closed in front.
    open: VecDeque<Arc<FileState>>,
}

impl Table {
    fn named(&self, path: &Path) -> Vec<Arc<FileState>> {
        self.by_path.get(path).cloned().unwrap_or_default()
    }
}

/// Runs `open`, as often as there is no descriptor for it and `close_one` makes room for one.
fn open_with_room<T>(
    mut open: impl FnMut() -> io::Result<T>,
    mut close_one: impl FnMut() -> bool,
) -> io::Result<T> {
    loop {
        match open() {
            Err(error) if is_out_of_descriptors(&error) && close_one() => {}
            outcome => return outcome,
        }
    }
}

/// The descriptors of one storage.
pub(super) struct Handles {
    limit: usize,
    /// What files are opened for.
    access: OFlags,
    /// Files with a descriptor.
    count: AtomicUsize,
    table: Mutex<Table>,
}

impl Handles {
    /// At most `limit`; 0 = half of what the process may have, as the other half is the server's.
    pub(super) fn new(limit: usize, access: OFlags) -> Handles {
        let limit = if limit > 0 { limit } else { descriptors_of_process() / 2 };
        let limit = limit.max(OPEN_FILES_MIN);
        Handles { limit, access, count: AtomicUsize::new(0), table: Mutex::default() }
    }

    /// Files with a descriptor.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Opens a file for the first time by `open`, which returns whether it is with `O_DIRECT`.
    pub(super) fn add(
        &self,
        path: PathBuf,
        open: impl FnMut() -> io::Result<(File, bool)>,
    ) -> io::Result<Arc<FileState>> {
        self.make_room();
        // Held throughout, so that no rename comes between.
        let mut table = self.table.lock();
        let close_one = || MutexGuard::unlocked(&mut table, || self.close_one_by_force());
        let (file, direct) = open_with_room(open, close_one)?;
        let state = Arc::new(FileState {
            identity: identity(&file)?,
            place: RwLock::new(Place {
                path: path.clone(),
                handle: Some(Arc::new(file)),
                nameless: false,
            }),
            direct: AtomicBool::new(direct),
            used: AtomicBool::new(true),
            written: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            syncing: Mutex::new(()),
        });
        table.by_path.entry(path).or_default().push(state.clone());
        self.note_open(&mut table, &state);
        drop(table);
        self.keep_to_limit();
        Ok(state)
    }

    /// Forgets a file that no handle has any more.
    pub(super) fn forget(&self, state: &Arc<FileState>) {
        let mut table = self.table.lock();
        let mut place = state.place.write();
        if let Some(same) = table.by_path.get_mut(&place.path) {
            same.retain(|other| !Arc::ptr_eq(other, state));
            if same.is_empty() {
                table.by_path.remove(&place.path);
            }
        }
        let at = table.open.iter().position(|other| Arc::ptr_eq(other, state));
        if let Some(at) = at {
            table.open.remove(at);
        }
        let handle = place.handle.take();
        if handle.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        drop((place, table));
        drop(handle);
    }

    /// The file's descriptor, opened again if need be.
    pub(super) fn lease(&self, state: &Arc<FileState>, purpose: FileUse) -> io::Result<FileLease> {
        loop {
            if let Some(lease) = state.lease_if_open(purpose) {
                return Ok(lease);
            }
            self.make_room();
            let mut place = state.place.write();
            if place.handle.is_some() {
                continue; // another thread was quicker
            }
            match state.reopen(&place.path, self.access) {
                Ok(file) => {
                    let lease = state.lease_of(Arc::new(file), purpose);
                    place.handle = Some(lease.file.clone());
                    drop(place);
                    self.note_open(&mut self.table.lock(), state);
                    self.keep_to_limit();
                    return Ok(lease);
                }
                Err(error) if is_out_of_descriptors(&error) => {
                    drop(place);
                    if !self.close_one_by_force() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs `open`, which takes a descriptor that is not counted here, for a moment. If there is
    /// none left, files are closed for it.
    pub(super) fn with_room<T>(&self, open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        open_with_room(open, || self.close_one_by_force())
    }

    /// Removes a name by `remove`; who has the file keeps it.
    pub(super) fn remove(
        &self,
        path: &Path,
        remove: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut table = self.table.lock();
        let files = self.open_named(&mut table, path)?;
        let mut places: Vec<_> = files.iter().map(|state| state.place.write()).collect();
        remove()?;
        places.iter_mut().for_each(|place| place.nameless = true);
        table.by_path.remove(path);
        Ok(())
    }

    /// Renames a file by `rename`, over another if there is one.
    pub(super) fn rename(
        &self,
        from: &Path,
        to: &Path,
        rename: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        if from == to {
            return rename();
        }
        let mut table = self.table.lock();
        let replaced = self.open_named(&mut table, to)?;
        let moved = table.named(from);
        let mut replaced_places: Vec<_> =
            replaced.iter().map(|state| state.place.write()).collect();
        let mut moved_places: Vec<_> = moved.iter().map(|state| state.place.write()).collect();
        rename()?;
        replaced_places.iter_mut().for_each(|place| place.nameless = true);
        moved_places.iter_mut().for_each(|place| place.path = to.to_owned());
        table.by_path.remove(from);
        table.by_path.remove(to);
        if !moved.is_empty() {
            table.by_path.insert(to.to_owned(), moved.clone());
        }
        Ok(())
    }

    /// The files of a name, with their descriptors open; as long as the table stays locked, no
    /// thread closes them. On the way it may have been unlocked.
    fn open_named(
        &self,
        table: &mut MutexGuard<'_, Table>,
        path: &Path,
    ) -> io::Result<Vec<Arc<FileState>>> {
        let mut tries = 0;
        loop {
            let files = table.named(path);
            let Err(error) = files.iter().try_for_each(|state| self.ensure_open(table, state))
            else {
                return Ok(files);
            };
            // Not for ever: two of this name might be closed for each other.
            tries += 1;
            let gives_up = !is_out_of_descriptors(&error) || tries > files.len() + SYNCS_MAX;
            if gives_up || !MutexGuard::unlocked(table, || self.close_one_by_force()) {
                return Err(error);
            }
        }
    }

    /// Opens a file again that has no descriptor, unless somebody else has removed it: then there
    /// is nothing to keep.
    fn ensure_open(&self, table: &mut Table, state: &Arc<FileState>) -> io::Result<()> {
        let mut place = state.place.write();
        if place.handle.is_some() {
            return Ok(());
        }
        match state.reopen(&place.path, self.access) {
            Ok(file) => {
                place.handle = Some(Arc::new(file));
                self.note_open(table, state);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn note_open(&self, table: &mut Table, state: &Arc<FileState>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        table.open.push_back(state.clone());
        debug_assert_eq!(self.count(), table.open.len(), "the files with a descriptor are counted");
    }

    /// Closes files until one more may be opened, or until there is none to close.
    fn make_room(&self) {
        self.close_down_to(self.limit - 1);
    }

    /// Closes what is too much: several may have made room at the same time, each for his own.
    fn keep_to_limit(&self) {
        self.close_down_to(self.limit);
    }

    /// Closes files until there are `most`, or until there is none to close.
    fn close_down_to(&self, most: usize) {
        for _ in 0..SYNCS_MAX {
            while self.count() > most {
                match self.close_one() {
                    CloseOne::Closed => {}
                    CloseOne::AllInUse => return,
                    CloseOne::SyncFirst(state) => {
                        self.sync_for_closing(&state);
                        break;
                    }
                }
            }
            if self.count() <= most {
                return;
            }
        }
    }

    /// Whether a file could be closed, be it one that must be synced first.
    fn close_one_by_force(&self) -> bool {
        for _ in 0..SYNCS_MAX {
            match self.close_one() {
                CloseOne::Closed => return true,
                CloseOne::AllInUse => return false,
                CloseOne::SyncFirst(state) => self.sync_for_closing(&state),
            }
        }
        false
    }

    fn sync_for_closing(&self, state: &Arc<FileState>) {
        let Some(lease) = state.lease_if_open(FileUse::Read) else { return };
        state.used.store(false, Ordering::Relaxed);
        if let Err(error) = state.sync(&lease) {
            // The next sync of the file fails: it is poisoned.
            let path = state.place.read().path.clone();
            tracing::error!(path = %path.display(), %error, "a file could not be synced");
        }
    }

    fn close_one(&self) -> CloseOne {
        let mut table = self.table.lock();
        let mut sync_first = None;
        for _ in 0..2 * table.open.len() {
            let Some(state) = table.open.pop_front() else { break };
            if !state.used.swap(false, Ordering::Relaxed) {
                match state.try_close() {
                    TryClose::Closed(file) => {
                        self.count.fetch_sub(1, Ordering::Relaxed);
                        drop(table);
                        drop(file);
                        return CloseOne::Closed;
                    }
                    TryClose::Written => {
                        sync_first.get_or_insert_with(|| state.clone());
                    }
                    TryClose::InUse => {}
                }
            }
            table.open.push_back(state);
        }
        sync_first.map_or(CloseOne::AllInUse, CloseOne::SyncFirst)
    }
}

enum CloseOne {
    Closed,
    SyncFirst(Arc<FileState>),
    AllInUse,
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    errno == Some(Errno::MFILE.raw_os_error()) || errno == Some(Errno::NFILE.raw_os_error())
}

/// The soft limit of the process.
fn descriptors_of_process() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(1 << 20, |limit| usize::try_from(limit).unwrap_or(usize::MAX).min(1 << 20))
}

#[cfg(test)]
#[path = "handles_tests.rs"]
mod tests;
