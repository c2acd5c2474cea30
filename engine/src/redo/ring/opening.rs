//! Making and opening the redo directory: what each file must be, and what a crash may have left.
//!
//! A file that the control file says is in use is refused unless its header says the same; a spare
//! one may be missing. Files that no list names are strays: they stay until recovery has found
//! where the log ends, for a lost control slot may have listed one.

use std::collections::HashMap;
use std::sync::Arc;

use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile};
use tidepool_pool::{Lsn, PageSize};

use super::super::control::{CONTROL_FILE, Control, FileEntry};
use super::super::file_header::{FileHeader, HEADER_SIZE};
use super::super::keys::{KEYS_FILE, LogKeys};
use super::super::{BLOCK_SIZE, FIRST_LSN, block_ceil, format_uuid};
use super::{
    FILES_MIN, FIRST_FILE_SIZE, LiveFile, REDO_DIR, Ring, file_name, file_no_of, make_file,
};
use crate::error::{Error, Remedy, Result};

/// The control file of a new directory before it is complete.
const CONTROL_FILE_NEW: &str = "redo/control.new";

impl Ring {
    /// Makes the redo directory of a new data directory. It exists once the control file does.
    pub fn create(
        storage: Arc<dyn Storage>,
        page_size: PageSize,
        uuid: [u8; 16],
        file_size: u64,
    ) -> Result<Self> {
        storage.create_dir(REDO_DIR)?;
        storage.sync_dir("")?;
        // What else is there is not of a log: `lost+found`, say, where a separate volume is
        // mounted.
        for name in storage.list(REDO_DIR)? {
            let name = format!("{REDO_DIR}/{name}");
            let is_new = name == CONTROL_FILE_NEW || name == KEYS_FILE;
            if is_new || name.starts_with(&format!("{REDO_DIR}/redo.")) {
                storage.remove(&name)?;
            }
        }
        let control_file = storage.create(CONTROL_FILE_NEW)?;
        control_file.set_len(2 * BLOCK_SIZE as u64)?;
        let mut ring = Self {
            storage,
            control_file,
            control: Control {
                page_size,
                uuid,
                sequence: 0,
                checkpoint: FIRST_LSN,
                checkpoint_epoch: 1,
                epoch: 1,
                clean: true,
                next_file_no: 1,
                durable: FIRST_LSN,
                files: Vec::new(),
                lost: Vec::new(),
            },
            handles: HashMap::new(),
            strays: Vec::new(),
            file_size: block_ceil(file_size),
            growth_error: None,
            overrun: (Lsn::ZERO, 0),
            kept: None,
            lost_a_slot: false,
            keys: LogKeys::default(),
        };
        let size = ring.file_size.min(FIRST_FILE_SIZE);
        for _ in 0..FILES_MIN {
            let file_no = ring.take_file_no();
            let file = make_file(&*ring.storage, file_no, size, &|| false)?;
            ring.push_spare(file_no, file, size)?;
        }
        ring.use_spare(0, FIRST_LSN)?;
        ring.write_control()?;
        ring.storage.rename(CONTROL_FILE_NEW, CONTROL_FILE)?;
        ring.storage.sync_dir(REDO_DIR)?;
        // The open file may go by its old name in messages.
        ring.control_file = ring.storage.open(CONTROL_FILE)?;
        Ok(ring)
    }

    /// Opens the redo directory: reads the control file and checks every file that the log needs.
    pub fn open(storage: Arc<dyn Storage>, file_size: u64) -> Result<Self> {
        let control_file = storage.open(CONTROL_FILE).map_err(|error| {
            if error.is_not_found() {
                Error::lost(CONTROL_FILE, "missing", Remedy::PutBack)
            } else {
                error.into()
            }
        })?;
        let (mut control, whole_slots) = Control::read(&*control_file)?;
        let mut handles = HashMap::new();
        let mut files = Vec::with_capacity(control.files.len());
        for mut entry in std::mem::take(&mut control.files) {
            // One that ends at the checkpoint is the last, or it would be spare by now: it says
            // where the log goes on.
            let needed =
                |e: &FileEntry| e.start.is_some_and(|s| s.0 + e.size >= control.checkpoint.0);
            if !needed(&entry) {
                entry.start = None;
            }
            let name = file_name(entry.file_no);
            match storage.open(&name) {
                Ok(file) => {
                    if let Some(start) = entry.start {
                        check_file(&*file, &control, &entry, start)?;
                    }
                    handles.insert(entry.file_no, file);
                    files.push(entry);
                }
                Err(error) if !error.is_not_found() => return Err(error.into()),
                Err(_) => match entry.start {
                    None => tracing::warn!(name, "a spare redo file is missing; going on without"),
                    Some(start) => return Err(missing(&name, start, entry.size)),
                },
            }
        }
        control.files = files;
        let keys = LogKeys::load(&*storage, control.uuid)?;
        let mut ring = Self {
            storage,
            control_file,
            control,
            handles,
            strays: Vec::new(),
            file_size: block_ceil(file_size),
            growth_error: None,
            overrun: (Lsn::ZERO, 0),
            kept: None,
            lost_a_slot: whole_slots < 2,
            keys,
        };
        ring.sort_files();
        ring.check_covered()?;
        ring.find_strays()?;
        Ok(ring)
    }

    /// The files, not in use, that say by their header that they hold the log from `start` on, and
    /// their numbers.
    pub fn successors(&self, start: Lsn) -> Vec<(u32, LiveFile)> {
        self.unlisted().into_iter().filter(|(_, file)| file.start == start).collect()
    }

    /// The files, not in use, that may hold log behind `lsn` by their header.
    pub fn unlisted_beyond(&self, lsn: Lsn) -> Vec<LiveFile> {
        self.unlisted().into_iter().map(|(_, file)| file).filter(|file| file.end > lsn).collect()
    }

    /// Spare and stray files that have a header of this data directory.
    fn unlisted(&self) -> Vec<(u32, LiveFile)> {
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
        let spares = self.control.files.iter().filter(|file| file.start.is_none());
        let spares = spares.filter_map(|entry| {
            let file = &self.handles[&entry.file_no];
            let header = FileHeader::read(&**file, &self.control.uuid, entry.file_no, &mut block)?;
            (header.size == entry.size).then(|| (entry.file_no, file.clone(), header))
        });
        let mut found: Vec<_> = spares.collect();
        for &(file_no, header) in &self.strays {
            if let (Some(header), Ok(file)) = (header, self.storage.open(&file_name(file_no))) {
                found.push((file_no, file, header));
            }
        }
        let live = |(file_no, file, header): (u32, Arc<dyn StorageFile>, FileHeader)| {
            let end = header.start.0.checked_add(header.size)?;
            Some((file_no, LiveFile { file, start: header.start, end: Lsn(end) }))
        };
        found.into_iter().filter_map(live).collect()
    }

    /// Called by recovery when the log fills the last file in use to its end, and goes on in this
    /// one: puts it to use from `start` on, and syncs it as [`Ring::sync_all`] does the others.
    pub fn adopt(&mut self, file_no: u32, start: Lsn) -> Result<()> {
        assert_eq!(start, self.end(), "the log has no gap between its files");
        let mut entries = self.control.files.iter_mut();
        if let Some(entry) = entries.find(|file| file.file_no == file_no) {
            self.handles[&file_no].sync_data()?;
            entry.start = Some(start);
        } else {
            let stray = self.strays.iter().position(|(no, _)| *no == file_no);
            let (_, header) =
                self.strays.swap_remove(stray.expect("a successor is spare or stray"));
            let size = header.expect("a successor has a header").size;
            let file = self.storage.open(&file_name(file_no))?;
            file.sync_data()?;
            self.handles.insert(file_no, file);
            self.control.files.push(FileEntry { file_no, start: Some(start), size });
            self.control.next_file_no = self.control.next_file_no.max(file_no + 1);
        }
        self.sort_files();
        Ok(())
    }

    /// The files in use must cover the log from the checkpoint without a gap.
    fn check_covered(&self) -> Result<()> {
        let Some(gap) = self.first_gap() else { return Ok(()) };
        Err(Error::lost(
            CONTROL_FILE,
            format!("no redo file holds the log at LSN {}", gap.0),
            Remedy::RestoreDirectory,
        ))
    }

    fn find_strays(&mut self) -> Result<()> {
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
        for name in self.storage.list(REDO_DIR)? {
            let Some(file_no) = file_no_of(&name) else { continue };
            if self.handles.contains_key(&file_no) {
                continue;
            }
            // One that can't be opened does no harm, like one that can't be removed.
            let header = match self.storage.open(&file_name(file_no)) {
                Ok(file) => FileHeader::read(&*file, &self.control.uuid, file_no, &mut block),
                Err(error) => {
                    tracing::warn!(%error, "a file that is not part of the redo log");
                    None
                }
            };
            self.strays.push((file_no, header));
        }
        Ok(())
    }
}

fn missing(name: &str, start: Lsn, size: u64) -> Error {
    Error::lost(
        name,
        format!("missing, but it holds the redo log from LSN {} to {}", start.0, start.0 + size),
        Remedy::PutBack,
    )
}

fn check_file(
    file: &dyn StorageFile,
    control: &Control,
    entry: &FileEntry,
    start: Lsn,
) -> Result<()> {
    let name = file.name();
    let (len, want) = (file.len()?, HEADER_SIZE + entry.size);
    if len < want {
        return Err(Error::lost(
            name,
            format!("{len} bytes long instead of {want}: it was truncated"),
            Remedy::RestoreDirectory,
        ));
    }
    let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
    file.read_at(&mut block, 0)?;
    let header = FileHeader::decode(&block, name)?;
    if header.uuid != control.uuid {
        return Err(Error::lost(
            name,
            format!(
                "belongs to another data directory (instance {}, this one is {})",
                format_uuid(&header.uuid),
                format_uuid(&control.uuid)
            ),
            Remedy::PutOwnFile,
        ));
    }
    if (header.file_no, header.start, header.size) != (entry.file_no, start, entry.size) {
        return Err(Error::lost(
            name,
            format!(
                "holds the log from LSN {} as file {}, but {CONTROL_FILE} expects LSN {} as file {}: the two \
                 are of different times",
                header.start.0, header.file_no, start.0, entry.file_no
            ),
            Remedy::RestoreDirectory,
        ));
    }
    Ok(())
}
