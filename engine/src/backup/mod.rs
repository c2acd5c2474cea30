//! A backup of an open data directory, without a stop: its files are copied while they change, and
//! then the log that makes one state of them.
//!
//! # How
//! ```text
//! begin    the mark "unfinished"; the checkpoint, from which the log is copied from now on
//!          (`redo/copy.rs`); then: which files there are
//! step     a piece of a file, page by page, each as it is at that moment; and what was added to the log
//! finish   the log is flushed, and copied to that end; the control file; and the mark is removed,
//!          which makes the copy a data directory
//! ```
//! What comes out is what a crash at the moment of `finish` would leave: opening it recovers all
//! that was committed before, and rolls back what was not. Nothing is locked meanwhile; tables come
//! and go, and are filled.
//!
//! # Why that is one state
//! A page of the copy has the changes up to its LSN and none after it, and its LSN is before the
//! end of the copied log. Recovery brings each page from its LSN to that end, so it does not matter
//! that pages are of different moments. What lies beyond the end that a file had when it was copied
//! was made later, and is in the log as a whole; so are files that were made after the look at the
//! directory: the copy has these without a page. A file that is gone when its turn comes was
//! dropped, and the log says so.
//!
//! Images are copied as they are, not decompressed, in the order of their pages, and packed anew:
//! the copy of a file has no dead images. They hold up neither the cleaner nor who writes. An image
//! that is spoilt is made of the page in the buffer pool, where it may be whole, or which finds its
//! second copy. A page that is broken there too ends the backup: a copy of it would be trusted. So
//! does a table whose file is missing.
//!
//! Memory: a piece of a file; and of the map of its copy the nodes that the next checkpoint of it
//! writes, and [`MAP_NODES`] more.
//!
//! # An incremental backup
//! It has the images that were written since a base was made, which is an earlier backup, complete
//! or incremental; and the log, as every backup has. `manifest.rs` says how it knows. It is no
//! data directory: [`combine_backups`](crate::combine_backups) makes one of it and its base.
//!
//! # A backup that is interrupted
//! [`UNFINISHED_MARK`] is the first thing that is durable in the target, and the last one to go, so
//! whatever a kill or a power cut leaves is either as it was before, or marked, or complete.
//! [`Db::open`](crate::Db::open) refuses a directory with the mark; another backup may go there if
//! nothing else is in it.
//!
//! # What is not copied
//! Mirrors, which the first start of the copy makes. Files that were set aside in
//! `tables/orphans/`. Files of sorts.
//!
//! # Pace
//! Reads rest as those of scans do while queries wait for the disk
//! ([`let_queries_read_after`](tidepool_pool::Pool::let_queries_read_after)), bypass the buffer
//! pool, and with direct I/O the kernel's cache.

pub(crate) mod combine;
mod made;
pub(crate) mod manifest;

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tidepool_pool::packed::{Codec, FileKey, Image, PackedFile, Piece, Since, Stream};
use tidepool_pool::storage::{AlignedBuf, Storage, StorageLock};
use tidepool_pool::{Access, Lsn, PageId, Space, page};

use crate::env::{Env, random_uuid};
use crate::error::{Error, Remedy, Result};
use crate::files::{
    FIRST_TABLE_SPACE, INCREMENT_MARK, LOCK_FILE, MANIFEST_FILE, SYSTEM_SPACE, TABLES_DIR,
    UNDO_SPACE, UNFINISHED_MARK, space_file_name,
};
use crate::hot_list::HOT_LIST_FILE;
use crate::page_files;
use crate::redo::REDO_DIR;
use crate::redo::copy::LogCopy;
use manifest::{FileRow, Manifest};

/// Bytes of a file copied in one step.
const PIECE: usize = 1 << 20;
/// Nodes of a copy's map, of 16 KiB, that stay in memory behind a checkpoint of it.
const MAP_NODES: usize = 16;
/// A file is copied as a whole if it has had more runs than this since the base: entries of images
/// have only the low half of a run's number.
const RUNS_SINCE_BASE_MAX: u64 = 1 << 30;

/// How far a backup is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Bytes of tables and undo copied.
    pub copied_bytes: u64,
    /// Bytes of them when the backup began.
    pub total_bytes: u64,
    /// Bytes of log copied.
    pub log_bytes: u64,
}

/// What a finished backup holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Identifies it.
    pub id: [u8; 16],
    /// Which backup it is an increment of; `None`: it is complete.
    pub base: Option<[u8; 16]>,
    /// A recovery of it reads the log from here.
    pub checkpoint: Lsn,
    /// All that was committed before this is in it, and nothing else.
    pub end: Lsn,
    /// Bytes of tables and undo.
    pub copied_bytes: u64,
    /// Bytes of log.
    pub log_bytes: u64,
}

/// A file under way, whose page `next` comes next. It had `len` bytes, and images of `copied` bytes
/// have been copied.
struct Copying {
    from: Arc<Space>,
    to: PackedFile,
    next: u32,
    len: u64,
    copied: u64,
    row: FileRow,
}

/// The name of the table that has a space.
pub(crate) type TableNames = Box<dyn Fn(u32) -> Option<String> + Send + Sync>;

/// A backup under way; see the module's description. Dropped before its end, it removes the files
/// that it has made, but not the mark.
pub struct Backup {
    env: Arc<Env>,
    target: Arc<dyn Storage>,
    log: LogCopy,
    /// Spaces whose turn comes.
    waiting: VecDeque<u32>,
    copying: Option<Copying>,
    /// The file of undo records and its copy, once that has all pages.
    undo: Option<(Arc<Space>, PackedFile)>,
    progress: BackupProgress,
    /// What the backup holds, and of its base.
    manifest: Manifest,
    base: Option<Manifest>,
    /// Names of the files made, in case it fails, the log's first.
    made: Vec<String>,
    finished: bool,
    table_names: TableNames,
    /// The copy can't be opened before it is complete.
    _lock: StorageLock,
}

impl Backup {
    /// Begins a backup into `target`, which is empty; with a `base` an incremental one.
    pub(crate) fn begin(
        env: &Arc<Env>,
        target: Arc<dyn Storage>,
        base: Option<Manifest>,
        table_names: TableNames,
    ) -> Result<Self> {
        env.check_alive()?;
        if env.force_recovery().is_read_only() {
            // The log is not what the files go with: recovery has passed over some of it, or all.
            return Err(Error::ReadOnly(format!(
                "force_recovery is {}, and what is read so is no data directory: dump the tables, \
                 and restore them into a new one",
                env.force_recovery().level()
            )));
        }
        if let Some(base) = &base
            && (base.instance != env.instance() || !made::knows(&**env.storage(), &base.id)?)
        {
            return Err(Error::format(
                MANIFEST_FILE,
                "the base is a backup of another data directory, or of this one in a state that \
                 it was taken back from",
                Remedy::MakeCompleteBackup,
            ));
        }
        refuse_unless_empty(&*target)?;
        let lock = mark_and_lock(&*target)?;
        let log = LogCopy::begin(env.redo_handle(), &target)?;
        let manifest = Manifest {
            instance: env.instance(),
            id: random_uuid(),
            base: base.as_ref().map(|base| base.id),
            page_size: env.page_size() as u32,
            files: Vec::new(),
        };
        let mut backup = Self {
            manifest,
            base,
            env: env.clone(),
            log,
            waiting: VecDeque::from([SYSTEM_SPACE, UNDO_SPACE]),
            copying: None,
            undo: None,
            progress: BackupProgress { copied_bytes: 0, total_bytes: 0, log_bytes: 0 },
            made: LogCopy::file_names().into(),
            finished: false,
            table_names,
            _lock: lock,
            target,
        };
        backup.target.create_dir(TABLES_DIR)?;
        if backup.base.is_some() {
            backup.made.push(INCREMENT_MARK.into());
            backup.target.create(INCREMENT_MARK)?;
        }
        // After the checkpoint was looked at, so that what comes and goes later is in the log.
        backup.waiting.extend(env.table_space_files()?);
        for &space in &backup.waiting {
            let file = env.storage().open(&space_file_name(space)).and_then(|file| file.len());
            backup.progress.total_bytes += match file {
                Ok(len) => len,
                Err(error) if error.is_not_found() => 0,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(backup)
    }

    /// How far it is.
    pub fn progress(&self) -> BackupProgress {
        BackupProgress { log_bytes: self.log.bytes(), ..self.progress }
    }

    /// Copies some more; false if there is nothing left but to [`finish`](Self::finish), or to go
    /// on following the log.
    pub fn step(&mut self) -> Result<bool> {
        self.env.check_alive()?;
        self.log.follow()?;
        let next = match self.copying.take() {
            None => self.next_file()?,
            copying => copying,
        };
        let Some(copying) = next else { return Ok(false) };
        self.copying = self.copy_images(copying)?;
        Ok(true)
    }

    /// Copies what is left, resting while queries wait for the disk, and finishes. `go_on` is asked
    /// before each step; if it says false, that is [`Error::Interrupted`].
    pub fn run(mut self, go_on: &mut dyn FnMut(BackupProgress) -> bool) -> Result<BackupReport> {
        self.copy_files(go_on)?;
        self.finish()
    }

    /// The same without the end, for a caller that has something to do before it.
    pub fn copy_files(&mut self, go_on: &mut dyn FnMut(BackupProgress) -> bool) -> Result<()> {
        loop {
            if !go_on(self.progress()) {
                return Err(Error::Interrupted);
            }
            let began = Instant::now();
            if !self.step()? {
                return Ok(());
            }
            self.env.pool().let_queries_read_after(began.elapsed());
        }
    }

    /// Ends it: what is committed up to now is in it.
    pub fn finish(mut self) -> Result<BackupReport> {
        while self.step()? {}
        // What is made, and encrypted, before this end is in the log, and can be seen after it.
        let end = self.env.redo().next_lsn();
        self.add_new_files()?;
        self.encrypt_undo_as_now()?;
        self.copy_hot_list();
        self.made.push(MANIFEST_FILE.into());
        self.manifest.write(&*self.target)?;
        // What is named in it is durable when the control file is.
        self.target.sync_dir(TABLES_DIR)?;
        self.target.sync_dir("")?;
        self.env.flush_log(end)?;
        self.log.finish(end)?;
        // A directory closed meanwhile may be another process's by now, and what was read of it
        // torn.
        self.env.check_alive()?;
        self.check_all_tables_are_in()?;
        // Of a directory that is only read it can't be noted, and so no increment be made.
        if !self.env.is_read_only() {
            let env = self.env.clone();
            env.write_aside(|| made::add(&**env.storage(), self.manifest.id))?;
        }
        self.target.remove(UNFINISHED_MARK)?;
        self.target.sync_dir("")?;
        self.finished = true;
        Ok(BackupReport {
            id: self.manifest.id,
            base: self.manifest.base,
            checkpoint: self.log.checkpoint(),
            end,
            copied_bytes: self.progress.copied_bytes,
            log_bytes: self.log.bytes(),
        })
    }

    /// Opens the next file that is still there.
    fn next_file(&mut self) -> Result<Option<Copying>> {
        while let Some(space) = self.waiting.pop_front() {
            let name = space_file_name(space);
            let from = match self.env.storage().open(&name) {
                Ok(file) => file,
                Err(error) if error.is_not_found() && space >= FIRST_TABLE_SPACE => continue,
                Err(error) => return Err(error.into()),
            };
            let to = self.target.create(&name)?;
            self.made.push(name.clone());
            let len = from.len()?;
            let from = match self.env.space(space) {
                // It was dropped: so the log says.
                Err(_) if !self.env.storage().exists(&name)? => continue,
                from => from?,
            };
            let key = from.file().encrypts_with();
            let to = self.env.page_files().make_for_images(space, to, from.file().file_key())?;
            // Images that are not encrypted yet, and those made of pages in the pool.
            if key.is_some() {
                to.encrypt_with(key);
            }
            let row = self.row_of(from.file(), space);
            return Ok(Some(Copying { from, to, next: 0, len, copied: 0, row }));
        }
        Ok(None)
    }

    /// Which images of a file are copied, and what will be in the backup then. Comes before the
    /// first of them is read.
    fn row_of(&self, file: &PackedFile, space: u32) -> FileRow {
        let (number, run) = (file.number(), file.usage().sequence);
        let base = self.base.as_ref().and_then(|base| base.row_of(space, number));
        let near = base.filter(|base| run.saturating_sub(base.run) < RUNS_SINCE_BASE_MAX);
        let since = near.map_or(0, |base| base.run);
        FileRow { space, file: number, run, since, stretches: Vec::new() }
    }

    /// Copies some images of a file; `None` when the file is complete.
    fn copy_images(&mut self, copying: Copying) -> Result<Option<Copying>> {
        let Copying { from, to, next, len, copied, mut row } = copying;
        let Piece { images, present, next, .. } = match self.images(&from, next, row.since) {
            // A file that was dropped may be cut meanwhile: so the log says.
            Err(_) if !self.env.storage().exists(&space_file_name(from.id()))? => return Ok(None),
            piece => piece?,
        };
        if row.since > 0 {
            row.add_present(&present);
        }
        write_images(&to, &images)?;
        let bytes = images.iter().map(|image| image.bytes.len() as u64).sum::<u64>();
        self.progress.copied_bytes += bytes;
        let copied = copied + bytes;
        let Some(next) = next else {
            to.checkpoint().map_err(page_files::file_error)?;
            self.manifest.files.push(row);
            // Its dead images were not copied, nor those that the base has.
            self.progress.total_bytes = (self.progress.total_bytes + copied).saturating_sub(len);
            if from.id() == UNDO_SPACE {
                to.trim_map(MAP_NODES);
                self.undo = Some((from, to));
            }
            return Ok(None);
        };
        Ok(Some(Copying { from, to, next, len, copied, row }))
    }

    /// Makes the files of tables that were made since the backup looked which there are. They stay
    /// empty, as the log has all of their pages. Their roots say with which key a recovery encrypts
    /// these.
    fn add_new_files(&mut self) -> Result<()> {
        let made: HashSet<String> = self.made.iter().cloned().collect();
        for space in self.env.table_space_files()? {
            let name = space_file_name(space);
            if made.contains(&name) {
                continue;
            }
            let from = match self.env.space(space) {
                // It was dropped by now. If the log does not say so yet, recovery makes the file.
                Err(_) if !self.env.storage().exists(&name)? => continue,
                from => from?,
            };
            let to = self.target.create(&name)?;
            self.made.push(name);
            self.env.page_files().make_for_images(space, to, from.file().file_key())?;
            let (file, stretches) = (from.file().number(), Vec::new());
            self.manifest.files.push(FileRow { space, file, run: 0, since: 0, stretches });
        }
        Ok(())
    }

    /// An error if the catalog has a table whose file is missing: it was not copied, and the table
    /// would be missing in the backup as well.
    fn check_all_tables_are_in(&self) -> Result<()> {
        for space in self.env.registered_spaces() {
            let name = space_file_name(space);
            let is_in = self.manifest.files.iter().any(|row| row.space == space);
            if is_in || self.env.storage().exists(&name)? {
                continue;
            }
            // It may have been dropped by now: the file goes after the table.
            if !self.env.has_registered_space(space) {
                continue;
            }
            let of =
                (self.table_names)(space).map_or(String::new(), |of| format!(" of table {of}"));
            let why = format!("the file{of} is missing, so the table can't be in a backup");
            return Err(Error::format(name, why, Remedy::PutBackOrDrop));
        }
        Ok(())
    }

    /// Has the copy of the undo records' file say which key they are encrypted with by now: the
    /// first encrypted table may have been made since the copy began, and a recovery of the backup
    /// writes undo records with rows of it.
    fn encrypt_undo_as_now(&mut self) -> Result<()> {
        let Some((from, to)) = self.undo.take() else { return Ok(()) };
        match from.file().encrypts_with() {
            Some(key) if to.file_key() != FileKey::Id(key.id()) => {
                to.encrypt_with(Some(key));
                to.checkpoint().map_err(page_files::file_error)
            }
            _ => Ok(()),
        }
    }

    /// Some images of a file, from a page on, of the runs after `since`. An image that is spoilt in
    /// the file is made of the page in the pool, if it is there.
    fn images(&self, from: &Space, next: u32, since: u64) -> Result<Piece> {
        let (source, space) = (from.file(), from.id());
        let since = Since { run: since, bytes_max: PIECE };
        let piece = source.images_since(space, next, since);
        let mut piece = piece.map_err(page_files::file_error)?;
        let mut page = AlignedBuf::zeroed(self.env.page_size());
        for (no, _) in std::mem::take(&mut piece.spoilt) {
            if read_through_pool(&self.env, PageId::new(space, no), &mut page)? {
                let mut bytes = Vec::new();
                let codec = Codec::Zstd.encode(&page, &mut bytes);
                piece.images.push(Image::plain((space, no), codec, bytes));
            }
        }
        piece.images.sort_unstable_by_key(|image| image.no);
        Ok(piece)
    }

    /// So that what is opened from the copy is warm soon. It is a hint, and any error of it none of
    /// the backup's.
    fn copy_hot_list(&mut self) {
        self.made.push(HOT_LIST_FILE.into());
        if copy_file(&**self.env.storage(), &*self.target, HOT_LIST_FILE).is_err() {
            let _ = self.target.remove_if_there(HOT_LIST_FILE);
        }
    }
}

/// Writes images to the copy of a file, whose map takes bounded memory.
fn write_images(to: &PackedFile, images: &[Image]) -> Result<()> {
    to.write(Stream::Flushed, images).map_err(page_files::file_error)?;
    if to.wants_checkpoint() {
        to.checkpoint().map_err(page_files::file_error)?;
        to.trim_map(MAP_NODES);
    }
    Ok(())
}

/// Copies a file as it is, durable except for its name.
fn copy_file(from: &dyn Storage, to: &dyn Storage, name: &str) -> Result<()> {
    let (from, to) = (from.open(name)?, to.create(name)?);
    let (mut at, len) = (0, from.len()?);
    let mut buf = AlignedBuf::zeroed(PIECE.min(len as usize));
    while at < len {
        let piece = (len - at).min(buf.len() as u64) as usize;
        from.read_at(&mut buf[..piece], at)?;
        to.write_at(&buf[..piece], at)?;
        at += piece as u64;
    }
    Ok(to.sync_data()?)
}

/// The page as it is now, sealed as for its file. False if its file is gone.
fn read_through_pool(env: &Env, id: PageId, bytes: &mut [u8]) -> Result<bool> {
    let read = |bytes: &mut [u8]| -> Result<()> {
        let space = env.space(id.space)?;
        bytes.copy_from_slice(&env.pool().shared(&space, id.no, Access::Scan)?);
        Ok(())
    };
    match read(bytes) {
        Ok(()) => {
            page::stamp_checksum(bytes);
            Ok(true)
        }
        Err(_) if !env.storage().exists(&space_file_name(id.space))? => Ok(false),
        Err(error) => Err(error),
    }
}

/// An error if there is anything that a backup might be mixed with.
fn refuse_unless_empty(target: &dyn Storage) -> Result<()> {
    for dir in ["", REDO_DIR, TABLES_DIR] {
        if !dir.is_empty() && !target.exists(dir)? {
            continue;
        }
        // An earlier attempt may have left its directories, its mark, and the lock.
        let may_be = |name: &str| {
            dir.is_empty()
                && [REDO_DIR, TABLES_DIR, UNFINISHED_MARK, LOCK_FILE, "lost+found"].contains(&name)
        };
        if let Some(name) = target.list(dir)?.into_iter().find(|name| !may_be(name)) {
            let name = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            return Err(Error::format(name, "in the way of a backup", Remedy::GiveEmptyDirectory));
        }
    }
    Ok(())
}

/// Makes the mark, durably, before anything else; then takes the lock, whose file must not be alone
/// in there.
fn mark_and_lock(target: &dyn Storage) -> Result<StorageLock> {
    let is_new = !target.exists(UNFINISHED_MARK)?;
    if is_new {
        target.create(UNFINISHED_MARK)?;
    }
    target.sync_dir("")?;
    let locked = target.lock(LOCK_FILE);
    if locked.is_err() && is_new {
        // Who has the lock is making a data directory here, or opening one.
        target.remove(UNFINISHED_MARK)?;
    }
    Ok(locked?)
}

/// Makes the directory `dir` such that it never appears without the mark: under another name,
/// `.<name>.backup`, which may be left of an earlier attempt. Durable when it returns, and its
/// owner's alone. Its parent must exist.
pub fn make_marked_dir(dir: &Path) -> Result<()> {
    let failed =
        |error: io::Error| Error::Storage(format!("cannot make '{}': {error}", dir.display()));
    let name = dir.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    let parent = match dir.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let new = parent.join([OsStr::new("."), name, OsStr::new(".backup")].join(OsStr::new("")));
    if fs::symlink_metadata(&new).is_ok_and(|found| found.is_dir()) {
        // Of an earlier attempt. If there is more in it, it stays, and is in the way.
        remove_marked_dir(&new);
    }
    fs::DirBuilder::new().mode(0o700).create(&new).map_err(failed)?;
    let sync = |path: &Path| fs::File::open(path)?.sync_all();
    fs::File::create_new(new.join(UNFINISHED_MARK))
        .and_then(|_| sync(&new))
        // Were there a directory by now, this would replace it only if it were empty.
        .and_then(|()| fs::rename(&new, dir))
        .inspect_err(|_| remove_marked_dir(&new))
        .and_then(|()| sync(parent).inspect_err(|_| remove_marked_dir(dir)))
        .map_err(failed)
}

/// Removes a directory that holds nothing but the mark, as well as it can.
fn remove_marked_dir(dir: &Path) {
    let _ = fs::remove_file(dir.join(UNFINISHED_MARK));
    let _ = fs::remove_dir(dir);
}

impl Drop for Backup {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // If the last step failed, the mark may be gone already.
        let _ = self.target.create(UNFINISHED_MARK);
        for name in &self.made {
            let _ = self.target.remove_if_there(name);
        }
    }
}

impl std::fmt::Debug for Backup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backup").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tidepool_pool::PageSize;
    use tidepool_pool::packed::Codec;
    use tidepool_pool::storage::SimStorage;

    use super::*;
    use crate::page_files::PageFiles;

    #[test]
    fn the_map_of_a_copy_takes_bounded_memory() {
        let storage = SimStorage::new(1);
        let page_files = PageFiles::to_read(&storage, PageSize::DEFAULT, [1; 16]);
        let file = storage.create("f").unwrap();
        let file = page_files.make_for_images(FIRST_TABLE_SPACE, file, FileKey::Never).unwrap();
        let pieces = 40;
        for piece in 0..pieces {
            // One page of each node, so that few images have a large map.
            let nodes = piece * 1000..(piece + 1) * 1000;
            let page = |node: u32| (FIRST_TABLE_SPACE, node * 1024);
            let images: Vec<Image> =
                nodes.map(|node| Image::plain(page(node), Codec::Raw, vec![1])).collect();
            write_images(&file, &images).unwrap();
            // A node takes 16 KiB; a checkpoint is due with 8192 of them.
            let bytes = file.usage().memory_bytes;
            assert!(bytes < 10_000 * (17 << 10), "{bytes} bytes, {piece}");
        }
        let is_there = |node: &u32| file.find(FIRST_TABLE_SPACE, node * 1024).unwrap().is_some();
        assert_eq!((0..pieces * 1000).filter(is_there).count(), 40_000);
    }
}
