//! The ring: the files that hold the recent part of the log, and the control file that lists them.
//!
//! A file is *in use* (it holds the log from its start LSN on, or will soon) or *spare*. The files
//! in use cover the log from the checkpoint to its end without a gap, in LSN order. A file becomes
//! spare when the checkpoint passes its end, and is then used again for the front of the log, under
//! a new start LSN. Its old bytes stay: frames are checksummed with their LSN, so they cannot be
//! taken for new ones.
//!
//! Files are filled with zeroes once, when they are made. Afterwards they are only overwritten in
//! place, so a sync of the log costs the file system no journal commit.
//!
//! # Order of the steps that a crash may separate
//! - new file: create, fill, sync, sync directory; then list it in the control file.
//! - use of a spare file: write its header with the new start LSN, sync; then the control file.
//! - checkpoint: the control file; only then are the files behind it spare.
//! - removal: take it off the control file's list; then remove it. Files not listed are removed at
//!   open.
//! - files kept for a backup ([`Ring::keep`]): the control file, which calls them spare; only then
//!   they are.
//!
//! So every listed file exists with the header that the list says, and the log is never in an
//! unlisted file.

use std::collections::HashMap;
use std::sync::Arc;

use tidepool_pool::Lsn;
use tidepool_pool::encryption::{Keys, NumberedKey};
use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile};

use super::control::{CONTROL_FILE, Control, FileEntry, LostLog, MAX_FILES, MAX_LOST};
use super::file_header::{FileHeader, HEADER_SIZE};
use super::keys::LogKeys;
use super::{BLOCK_SIZE, FIRST_LSN, block_ceil};
use crate::error::{Error, Remedy, Result};
use crate::pause::{self, PausePoint};

mod opening;

pub use crate::files::REDO_DIR;
/// New files are filled in pieces of this size.
const FILL_CHUNK: usize = 1 << 20;
/// Files the capacity is divided into: enough that a file's turn is small beside the capacity.
const FILES_PER_CAPACITY: u64 = 16;
const FILE_SIZE_MIN: u64 = 64 << 10;
/// Size of the first files of a new data directory, which may stay as small as it is.
const FIRST_FILE_SIZE: u64 = 128 << 10;
/// Files of a large log are no larger than this, unless there would be too many.
const FILE_SIZE_MAX: u64 = 128 << 20;
const FILES_MAX_FOR_CAPACITY: u64 = 128;
/// The log can turn in as few as these, on a disk too full for more.
const FILES_MIN: usize = 2;
const _: () = assert!(FILES_MAX_FOR_CAPACITY < MAX_FILES as u64);

/// Size of the files made for a log of this capacity.
pub fn default_file_size(capacity_bytes: u64) -> u64 {
    let most = FILE_SIZE_MAX.max(capacity_bytes / FILES_MAX_FOR_CAPACITY);
    block_ceil((capacity_bytes / FILES_PER_CAPACITY).clamp(FILE_SIZE_MIN, most))
}

/// Name of redo file `file_no`.
pub fn file_name(file_no: u32) -> String {
    format!("{REDO_DIR}/redo.{file_no:08}")
}

/// The number in a redo file's name without directory.
fn file_no_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("redo.")?;
    (digits.len() >= 8).then(|| digits.parse().ok())?
}

/// A file in use, open.
#[derive(Clone)]
pub struct LiveFile {
    /// The open file.
    pub file: Arc<dyn StorageFile>,
    /// LSN of its first byte of log.
    pub start: Lsn,
    /// LSN after its last byte of log.
    pub end: Lsn,
}

impl LiveFile {
    /// Offset in the file of the log's byte at `lsn`.
    pub fn offset(&self, lsn: u64) -> u64 {
        assert!((self.start.0..=self.end.0).contains(&lsn), "the file holds LSN {lsn}");
        HEADER_SIZE + (lsn - self.start.0)
    }
}

/// See the module's description.
pub struct Ring {
    storage: Arc<dyn Storage>,
    control_file: Arc<dyn StorageFile>,
    control: Control,
    handles: HashMap<u32, Arc<dyn StorageFile>>,
    /// Files of a directory that no list names, to be removed when the log is known to be whole.
    strays: Vec<(u32, Option<FileHeader>)>,
    /// Size of files made from now on, once the log is as large.
    file_size: u64,
    /// Why the last attempt to make a file failed.
    growth_error: Option<Error>,
    /// Bytes of log in files that the writer could not wait for, and where the first of them
    /// begins.
    overrun: (Lsn, u64),
    /// Somebody copies the log from here on: its files stay in use, though the checkpoint has
    /// passed them.
    kept: Option<Lsn>,
    /// Only one slot of the control file was whole, which may not be the newest.
    lost_a_slot: bool,
    /// What the log is encrypted with.
    keys: LogKeys,
}

impl Ring {
    /// Where the files are.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// What the control file says.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Whether the control file may be older than it says, for a slot of it was not whole.
    pub fn has_lost_a_slot(&self) -> bool {
        self.lost_a_slot
    }

    /// Gives the log the keys that its encrypted frames are read with, and written.
    pub fn give_keys(&mut self, keys: Option<Arc<Keys>>) {
        self.keys.give(keys);
    }

    /// What the log is encrypted with.
    pub fn keys(&mut self) -> &mut LogKeys {
        &mut self.keys
    }

    /// Encrypts the epoch that has begun; durable on return.
    pub fn encrypt_epoch(&mut self) -> Result<NumberedKey> {
        let Control { uuid, checkpoint_epoch, epoch, .. } = self.control;
        self.keys.begin(&*self.storage, uuid, (checkpoint_epoch, epoch))
    }

    /// The files in use, in LSN order.
    fn in_use(&self) -> impl DoubleEndedIterator<Item = (&FileEntry, Lsn)> {
        self.control.files.iter().filter_map(|file| file.start.map(|start| (file, start)))
    }

    /// LSN after the last byte of the last file in use.
    pub fn end(&self) -> Lsn {
        self.in_use().next_back().map_or(FIRST_LSN, |(file, start)| Lsn(start.0 + file.size))
    }

    /// Bytes of log that all the ring's files together hold.
    pub fn total_size(&self) -> u64 {
        self.control.files.iter().map(|file| file.size).sum()
    }

    /// Bytes of log that the spare files hold.
    pub fn spare_bytes(&self) -> u64 {
        self.control.files.iter().filter(|file| file.start.is_none()).map(|file| file.size).sum()
    }

    /// Bytes by which the writer has let the ring outgrow `capacity_bytes`, as long as what was in
    /// the log before that is needed.
    pub fn overrun(&self, capacity_bytes: u64) -> u64 {
        let (from, bytes) = self.overrun;
        match self.control.checkpoint < from {
            true => bytes.min(self.total_size().saturating_sub(capacity_bytes)),
            false => 0,
        }
    }

    /// Why the ring cannot have another file, if the last attempt to make one failed.
    pub fn growth_error(&self) -> Option<&Error> {
        self.growth_error.as_ref()
    }

    /// Remembers how an attempt to make another file ended.
    pub fn set_growth_error(&mut self, error: Option<Error>) {
        self.growth_error = error;
    }

    /// Whether the log can't turn in its files: a copy of a log is a single one, and of a larger
    /// capacity one may be left that has nearly all of the bytes. While the log ends in such a
    /// file, no checkpoint makes it spare.
    pub fn has_too_few(&self) -> bool {
        cannot_turn(self.control.files.iter().map(|file| file.size))
    }

    /// Bytes of the largest spare file that was made for a larger capacity, if the log has more
    /// than its capacity with it: smaller files are to take its place.
    pub fn oversized_spare(&self, capacity_bytes: u64) -> Option<u64> {
        let spares = self.control.files.iter().filter(|file| file.start.is_none());
        let largest = spares.map(|file| file.size).max()?;
        let is_oversized = largest > self.file_size.max(capacity_bytes / 4);
        (is_oversized && self.total_size() > capacity_bytes).then_some(largest)
    }

    /// Number of spare files.
    pub fn spares(&self) -> usize {
        self.control.files.iter().filter(|file| file.start.is_none()).count()
    }

    /// Size of the next file, if the log ends at `next`: not larger than all that there are
    /// together, since it is filled with zeroes, and somebody may wait for it; nor than all that
    /// was ever logged, so that a directory with little in it stays small.
    pub fn next_file_size(&self, next: Lsn) -> u64 {
        let logged = block_ceil(next.0 - FIRST_LSN.0).max(FIRST_FILE_SIZE);
        self.file_size.min(self.total_size()).min(logged)
    }

    /// Sets the size of the files made from now on.
    pub fn set_file_size(&mut self, bytes: u64) {
        self.file_size = block_ceil(bytes);
    }

    /// The file in use that holds `lsn`, or ends there.
    pub fn find_or_last(&self, lsn: Lsn) -> Option<LiveFile> {
        self.find(lsn).or_else(|| self.find(Lsn(lsn.0 - 1)))
    }

    /// The files in use that hold log behind `lsn`, in LSN order.
    pub fn files_beyond(&self, lsn: Lsn) -> Vec<LiveFile> {
        let live = |(entry, start): (&FileEntry, Lsn)| LiveFile {
            file: self.handles[&entry.file_no].clone(),
            start,
            end: Lsn(start.0 + entry.size),
        };
        self.in_use().map(live).filter(|file| file.end > lsn).collect()
    }

    /// The file in use that holds `lsn`.
    pub fn find(&self, lsn: Lsn) -> Option<LiveFile> {
        let (entry, start) =
            self.in_use().find(|(file, start)| *start <= lsn && lsn.0 < start.0 + file.size)?;
        Some(LiveFile {
            file: self.handles[&entry.file_no].clone(),
            start,
            end: Lsn(start.0 + entry.size),
        })
    }

    /// The file that holds `lsn`; the next one is put to use if the log has reached the end of the
    /// last.
    pub fn find_or_extend(&mut self, lsn: Lsn) -> Result<LiveFile> {
        if self.find(lsn).is_none() {
            assert_eq!(lsn, self.end(), "the log is written without gaps");
            self.extend()?;
        }
        Ok(self.find(lsn).expect("the ring was just extended"))
    }

    /// Puts one more file to use after the last one: a spare, or a new one if there is none.
    pub fn extend(&mut self) -> Result<()> {
        self.update(|ring| {
            let end = ring.end();
            let spare = match ring.control.files.iter().position(|file| file.start.is_none()) {
                Some(spare) => spare,
                None => {
                    ring.check_room(0)?;
                    let (file_no, size) = (ring.take_file_no(), ring.next_file_size(end));
                    let file = make_file(&*ring.storage, file_no, size, &|| false)?;
                    if ring.control.checkpoint >= ring.overrun.0 {
                        ring.overrun = (end, 0);
                    }
                    ring.overrun.1 += size;
                    ring.push_spare(file_no, file, size)?
                }
            };
            ring.use_spare(spare, end)
        })
    }

    /// Reserves the number of a file to be made by [`make_file`] without a lock on the ring.
    pub fn take_file_no(&mut self) -> u32 {
        let file_no = self.control.next_file_no;
        self.control.next_file_no += 1;
        file_no
    }

    /// Lists a file that [`make_file`] made.
    pub fn add_spare(&mut self, file_no: u32, file: Arc<dyn StorageFile>, size: u64) -> Result<()> {
        self.update(|ring| ring.push_spare(file_no, file, size).map(drop))
    }

    fn push_spare(&mut self, file_no: u32, file: Arc<dyn StorageFile>, size: u64) -> Result<usize> {
        self.check_room(0)?;
        self.control.files.push(FileEntry { file_no, start: None, size });
        self.handles.insert(file_no, file);
        Ok(self.control.files.len() - 1)
    }

    /// An error unless one more file can be listed with `kept` places left.
    pub fn check_room(&self, kept: usize) -> Result<()> {
        match self.control.files.len() + kept < MAX_FILES {
            true => Ok(()),
            false => Err(Error::InvalidOption(format!(
                "the redo log cannot have over {MAX_FILES} files; with a larger capacity they are larger"
            ))),
        }
    }

    /// Whether one more file can be listed.
    pub fn has_room(&self) -> bool {
        self.check_room(0).is_ok()
    }

    /// Writes the header that makes spare file number `index` of the list hold the log from
    /// `start`.
    fn use_spare(&mut self, index: usize, start: Lsn) -> Result<()> {
        let entry = &mut self.control.files[index];
        assert!(entry.start.is_none(), "a file in use is not written over");
        let header =
            FileHeader { file_no: entry.file_no, uuid: self.control.uuid, start, size: entry.size };
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
        header.encode(&mut block);
        let file = &self.handles[&entry.file_no];
        file.write_at(&block, 0)?;
        sync(&**file)?;
        entry.start = Some(start);
        self.sort_files();
        Ok(())
    }

    /// Moves the checkpoint, and makes the files behind it spare.
    pub fn set_checkpoint(
        &mut self,
        checkpoint: Lsn,
        checkpoint_epoch: u32,
        clean: bool,
    ) -> Result<()> {
        assert!(checkpoint >= self.control.checkpoint, "a checkpoint never moves back");
        self.update(|ring| {
            ring.control.checkpoint = checkpoint;
            ring.control.checkpoint_epoch = checkpoint_epoch;
            ring.control.clean = clean;
            ring.free_files_behind();
            Ok(())
        })
    }

    /// Has the control file note that the log is durable up to `lsn`.
    pub fn set_durable(&mut self, lsn: Lsn) -> Result<()> {
        self.update(|ring| {
            ring.note_durable(lsn);
            Ok(())
        })
    }

    /// Has the control file note, whenever it is written next, that the log is durable up to `lsn`.
    pub fn note_durable(&mut self, lsn: Lsn) {
        self.control.durable = self.control.durable.max(lsn);
    }

    /// Where the files that are not needed any more end.
    fn end_of_unneeded(&self) -> Lsn {
        // The last file stays in use even when it is full, since it says where the log goes on.
        let end = self.end();
        let needed =
            self.kept.map_or(self.control.checkpoint, |kept| kept.min(self.control.checkpoint));
        needed.min(Lsn(end.0 - 1))
    }

    /// Whether there are files that are not needed any more.
    fn has_files_behind(&self) -> bool {
        let unneeded = self.end_of_unneeded();
        self.in_use().any(|(file, start)| start.0 + file.size <= unneeded.0)
    }

    /// Makes these spare.
    fn free_files_behind(&mut self) {
        let unneeded = self.end_of_unneeded();
        let is_behind =
            |file: &FileEntry| file.start.is_some_and(|start| start.0 + file.size <= unneeded.0);
        for file in self.control.files.iter_mut().filter(|file| is_behind(file)) {
            file.start = None;
        }
        self.sort_files();
    }

    /// Keeps the log from `from` on, which is not before the first file in use, where it is;
    /// `None`: it is needed for recovery only.
    pub fn keep(&mut self, from: Option<Lsn>) -> Result<()> {
        self.kept = from;
        match self.has_files_behind() {
            true => self.update(|ring| {
                ring.free_files_behind();
                Ok(())
            }),
            false => Ok(()),
        }
    }

    /// From where on the log is kept beside what recovery needs.
    pub fn kept(&self) -> Option<Lsn> {
        self.kept
    }

    /// Whether there are files in use that recovery does not need.
    pub fn keeps_more(&self) -> bool {
        let first = self.in_use().next();
        self.kept.is_some()
            && first.is_some_and(|(file, start)| start.0 + file.size <= self.control.checkpoint.0)
    }

    /// Where the log goes on that has `next` at the position `at`: behind what is lost, if that
    /// begins there.
    pub fn skip_lost(&self, at: Lsn) -> Lsn {
        let mut ahead = at;
        for lost in &self.control.lost {
            if lost.start == ahead {
                ahead = lost.end;
            }
        }
        ahead
    }

    /// Puts files to use until the log that is lost, which was seen up to `seen`, lies in front of
    /// the ring's end. Returns that end: no page can have it, or a later one, for its LSN.
    pub fn end_of_lost(&mut self, seen: Lsn) -> Result<Lsn> {
        if self.control.lost.len() == MAX_LOST {
            let why = format!("{MAX_LOST} losses of log were accepted, and no more can be noted");
            return Err(Error::format(CONTROL_FILE, why, Remedy::DumpIntoNewDirectory));
        }
        // An update that is lost may have put one more to use.
        let mut unseen = usize::from(self.lost_a_slot);
        while self.end() <= seen || unseen > 0 {
            unseen -= usize::from(self.end() > seen);
            self.extend()?;
        }
        Ok(self.end())
    }

    /// Begins a new epoch, later than `seen`, the last in the log, durably; the control file says
    /// so before any frame of it can be written. It begins at `end`: where the log ends, or behind
    /// what is `lost`. Also ends the state "cleanly shut down", and removes files that are not part
    /// of the ring.
    pub fn begin_epoch(&mut self, seen: u32, end: Lsn, lost: Option<LostLog>) -> Result<u32> {
        assert!(lost.is_none_or(|lost| lost.end == end), "the log goes on behind what is lost");
        let max = self.control.epoch.max(seen).checked_add(1);
        let epoch = max.ok_or_else(|| {
            Error::format(CONTROL_FILE, "out of epochs", Remedy::DumpIntoNewDirectory)
        })?;
        // A process that was killed may have left the slot that was read, and the file's name,
        // without a sync: a power cut in the write of the other slot would take both.
        self.control_file.sync_data()?;
        self.storage.sync_dir(REDO_DIR)?;
        self.update(|ring| {
            ring.control.epoch = epoch;
            ring.control.clean = false;
            ring.control.durable = end;
            if let Some(lost) = lost {
                // One that was noted before, and begins later, lies in it.
                ring.control.lost.retain(|noted| noted.end <= lost.start);
                ring.control.lost.push(lost);
            }
            Ok(())
        })?;
        for (file_no, _) in std::mem::take(&mut self.strays) {
            self.remove_unlisted(file_no);
        }
        Ok(self.control.epoch)
    }

    /// Removes a file that the control file no longer lists. One that stays does no harm: it
    /// is removed at the next open, or by the thread that makes a file of this name.
    fn remove_unlisted(&self, file_no: u32) {
        if let Err(error) = self.storage.remove(&file_name(file_no)) {
            tracing::warn!(%error, "a file that the redo log no longer needs stays");
        }
    }

    /// Takes a spare file off the list and removes it, if the rest still holds `keep_bytes` of log.
    /// Files of another size than new ones have go first, the largest of them. Returns whether one
    /// was removed.
    pub fn remove_spare(&mut self, keep_bytes: u64) -> Result<bool> {
        self.remove_spare_of(0, keep_bytes)
    }

    /// The same, of files that hold `least_bytes` of log or more.
    pub fn remove_spare_of(&mut self, least_bytes: u64, keep_bytes: u64) -> Result<bool> {
        if self.control.files.len() <= FILES_MIN {
            return Ok(false);
        }
        let total = self.total_size();
        let size = self.file_size;
        let files = &self.control.files;
        let can_turn_without = |gone: &FileEntry| {
            let rest = files.iter().filter(|file| file.file_no != gone.file_no);
            !cannot_turn(rest.map(|file| file.size))
        };
        let spare = files
            .iter()
            .filter(|file| file.start.is_none() && file.size >= least_bytes)
            .filter(|file| total - file.size >= keep_bytes)
            .filter(|file| can_turn_without(file))
            .max_by_key(|file| (file.size != size, file.size))
            .map(|file| file.file_no);
        let Some(file_no) = spare else { return Ok(false) };
        self.update(|ring| {
            ring.control.files.retain(|file| file.file_no != file_no);
            assert!(ring.total_size() >= keep_bytes, "the rest holds what must be kept");
            Ok(())
        })?;
        self.handles.remove(&file_no);
        self.remove_unlisted(file_no);
        Ok(true)
    }

    /// Makes what is in the files durable that a process before this one may have left unsynced.
    pub fn sync_all(&self) -> Result<()> {
        for (entry, _) in self.in_use() {
            self.handles[&entry.file_no].sync_data()?;
        }
        Ok(())
    }

    /// Changes the state and writes it. If that fails, the state is what it was: a full disk may
    /// have room later, and until then the ring must be what the control file says.
    fn update(&mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let before = (self.control.clone(), self.overrun);
        let written = change(self).and_then(|()| {
            self.check();
            self.write_control()
        });
        if written.is_err() {
            (self.control, self.overrun) = before;
        }
        written
    }

    /// Asserts what must hold before the control file is written.
    fn check(&self) {
        assert!(self.control.files.len() <= MAX_FILES, "the control file has room for the list");
        let ends: Vec<_> =
            self.control.lost.iter().flat_map(|lost| [lost.start, lost.end]).collect();
        assert!(ends.is_sorted(), "one loss follows the other");
        let is_open = |file: &FileEntry| self.handles.contains_key(&file.file_no);
        assert!(self.control.files.iter().all(is_open), "every listed file is open");
        assert_eq!(self.first_gap(), None, "the files in use hold the log from the checkpoint on");
    }

    /// The first LSN, from the checkpoint on, that the files in use lack; `None` if they hold the
    /// log without a gap.
    fn first_gap(&self) -> Option<Lsn> {
        let checkpoint = self.control.checkpoint;
        let mut end = None;
        for (file, start) in self.in_use() {
            if !end.map_or(start <= checkpoint, |end| end == start) {
                return Some(end.unwrap_or(checkpoint));
            }
            end = Some(Lsn(start.0 + file.size));
        }
        end.is_none_or(|end| end < checkpoint).then_some(checkpoint)
    }

    /// Writes the state into the older slot and syncs it.
    fn write_control(&mut self) -> Result<()> {
        self.control.sequence += 1;
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
        self.control.encode(&mut block);
        self.control_file.write_at(&block, self.control.offset())?;
        sync(&*self.control_file)
    }

    fn sort_files(&mut self) {
        self.control.files.sort_by_key(|file| (file.start.is_none(), file.start, file.file_no));
    }
}

/// Whether files of these sizes are too few for the log to turn in: without the largest, in which
/// the log may end, less than a quarter of the bytes is left.
fn cannot_turn(sizes: impl Iterator<Item = u64>) -> bool {
    let (mut count, mut total, mut largest) = (0, 0, 0);
    for size in sizes {
        (count, total, largest) = (count + 1, total + size, size.max(largest));
    }
    count < FILES_MIN || total - largest < total / 4
}

/// Syncs a file. A failure is never one that passes when there is room on the disk: what was to be
/// synced may be lost.
fn sync(file: &dyn StorageFile) -> Result<()> {
    file.sync_data().map_err(|error| Error::io(&error))
}

/// Makes redo file `file_no`, filled with zeroes, durable but not yet listed. Leaves nothing behind
/// on failure, which is [`Error::Interrupted`] if `stop` says so.
pub fn make_file(
    storage: &dyn Storage,
    file_no: u32,
    size: u64,
    stop: &dyn Fn() -> bool,
) -> Result<Arc<dyn StorageFile>> {
    let name = file_name(file_no);
    let fill = || -> Result<Arc<dyn StorageFile>> {
        if storage.exists(&name)? {
            // Left by a crash before it was listed.
            storage.remove(&name)?;
        }
        let file = storage.create(&name)?;
        let len = HEADER_SIZE + size;
        file.set_len(len)?;
        let zeroes = AlignedBuf::zeroed(FILL_CHUNK.min(len as usize));
        let mut at = 0;
        while at < len {
            pause::reach(PausePoint::RedoFileFilling);
            if stop() {
                return Err(Error::Interrupted);
            }
            let piece = (len - at).min(zeroes.len() as u64);
            file.write_at(&zeroes[..piece as usize], at)?;
            at += piece;
        }
        file.sync_data()?;
        storage.sync_dir(REDO_DIR)?;
        Ok(file)
    };
    fill().inspect_err(|_| {
        // Best effort: a file that stays is removed at the next open.
        let _ = storage.remove(&name);
    })
}
