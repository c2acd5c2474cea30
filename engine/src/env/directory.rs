//! A data directory's log, and a new data directory.

use std::sync::Arc;

use tidepool_pool::packed::PackedFile;
use tidepool_pool::storage::{AlignedBuf, SimStorage, Storage};
use tidepool_pool::{PageId, PageSize, page};

use super::EnvOptions;
use crate::error::{Error, Remedy, Result};
use crate::files::{
    BACKUPS_FILE, BALLAST_FILE, INCREMENT_MARK, LOCK_FILE, MANIFEST_FILE, NEWEST_RUNS_FILES,
    RESTORED_MARK, SCRUB_FILE, SUCCESSOR_FILE, SYSTEM_FILE, SYSTEM_SPACE, TABLES_DIR, UNDO_SPACE,
    UNFINISHED_MARK, mirror_file_name, space_file_name,
};
use crate::format::space_header::SpaceHeader;
use crate::hot_list::HOT_LIST_FILE;
use crate::options::ForceRecovery;
use crate::redo::capacity::AUTOMATIC_RANGE_BYTES;
use crate::redo::control::{CONTROL_FILE, Control};
use crate::redo::{self, Ring};
use crate::sort::SORT_DIR;

/// Whether it comes into being later than the control file.
fn is_later_file(name: &str) -> bool {
    [SUCCESSOR_FILE, HOT_LIST_FILE, SORT_DIR, SCRUB_FILE, BACKUPS_FILE, RESTORED_MARK, BALLAST_FILE]
        .iter()
        .chain(&NEWEST_RUNS_FILES)
        .any(|later| name.starts_with(later))
}

/// An error if this can't be a data directory: a backup that is not finished, or, where there is
/// none yet, the place of something else.
pub(super) fn refuse_unfit(storage: &dyn Storage) -> Result<()> {
    if storage.exists(UNFINISHED_MARK)? {
        return Err(Error::format(
            UNFINISHED_MARK,
            "this directory is a backup that was interrupted, or is still being made",
            Remedy::WaitOrUseAnotherBackup,
        ));
    }
    if storage.exists(INCREMENT_MARK)? {
        return Err(Error::format(
            INCREMENT_MARK,
            "this directory is an incremental backup, which has only what its base has not",
            Remedy::Combine,
        ));
    }
    if storage.exists(CONTROL_FILE)? {
        return Ok(());
    }
    let undo = space_file_name(UNDO_SPACE);
    let ours = [LOCK_FILE, redo::REDO_DIR, TABLES_DIR, SYSTEM_FILE, &undo, "lost+found"];
    let mirrors = [SYSTEM_SPACE, UNDO_SPACE].map(mirror_file_name);
    let is_ours = |name: &String| {
        ours.contains(&&**name) || mirrors.contains(&Some(&**name)) || is_later_file(name)
    };
    match storage.list("")?.into_iter().find(|name| !is_ours(name)) {
        None => Ok(()),
        Some(name) => Err(Error::format(
            name,
            "this file is not Tidepool's, and there is no Tidepool in its directory",
            Remedy::ChooseDirectory,
        )),
    }
}

/// Before anything of a restored backup changes: it is no base of a backup from now on. The mark
/// stays until [`Db::end_restore`](crate::Db::end_restore).
pub(super) fn forget_backup(storage: &dyn Storage) -> Result<()> {
    if storage.exists(MANIFEST_FILE)? {
        storage.rename(MANIFEST_FILE, RESTORED_MARK)?;
        storage.sync_dir("")?;
    }
    Ok(())
}

/// A data directory's log, opened for reading.
pub(super) struct OpenedLog {
    pub log: Ring,
    /// The log's capacity in bytes.
    pub capacity_bytes: u64,
    /// The directory was made.
    pub created: bool,
}

/// Opens the redo log of a data directory, which it makes if there is none.
pub(super) fn open_log(storage: &Arc<dyn Storage>, options: &EnvOptions) -> Result<OpenedLog> {
    let least = *AUTOMATIC_RANGE_BYTES.start();
    let is_automatic = options.redo_capacity_bytes == 0;
    let mut capacity_bytes = if is_automatic { least } else { options.redo_capacity_bytes };
    let file_size = redo::default_file_size(capacity_bytes);
    let no_redo = options.force_recovery >= ForceRecovery::NoRedo;
    let created = !no_redo && !storage.exists(CONTROL_FILE)?;
    let mut log = if no_redo {
        log_in_memory(&**storage, file_size)?
    } else if created {
        create_directory(storage, options, file_size)?
    } else {
        Ring::open(storage.clone(), file_size)?
    };
    log.give_keys(options.keys.clone());
    let has = log.control().page_size.bytes();
    let wanted = options.page_size;
    if wanted != 0 && wanted != has {
        return Err(Error::format(
            CONTROL_FILE,
            format!("the data directory has pages of {has} bytes, but {wanted} were asked for"),
            Remedy::SetPageSize(has as u32),
        ));
    }
    if is_automatic {
        // The pool that this log was made for may come back to its size.
        capacity_bytes = log.total_size().clamp(least, *AUTOMATIC_RANGE_BYTES.end());
        log.set_file_size(redo::default_file_size(capacity_bytes));
    }
    Ok(OpenedLog { log, capacity_bytes, created })
}

/// The error for a directory that has lost its control file.
fn missing_beside<T>(name: &str) -> Result<T> {
    Err(Error::lost(
        CONTROL_FILE,
        format!("missing, though the data directory holds '{name}'"),
        Remedy::PutBack,
    ))
}

/// Makes a new data directory. It exists when the control file does, which comes last.
fn create_directory(
    storage: &Arc<dyn Storage>,
    options: &EnvOptions,
    file_size: u64,
) -> Result<Ring> {
    if options.force_recovery.is_read_only() {
        return Err(Error::ReadOnly(
            "redo/control is missing, and no data directory is made: if there is one, start with force_recovery=5".into(),
        ));
    }
    if options.read_only {
        return Err(Error::ReadOnly("there is no data directory, and none can be made".into()));
    }
    let bytes = if options.page_size == 0 { PageSize::DEFAULT.bytes() } else { options.page_size };
    let page_size = PageSize::new(bytes)
        .ok_or_else(|| Error::InvalidOption(format!("page_size = {bytes}: impossible")))?;
    let first = [SYSTEM_SPACE, UNDO_SPACE].map(space_file_name);
    let mirrors = [SYSTEM_SPACE, UNDO_SPACE]
        .into_iter()
        .filter_map(|id| -> Option<&str> { mirror_file_name(id) });
    for name in first.iter().map(String::as_str).chain(mirrors) {
        if storage.exists(name)? && !storage.open(name)?.is_empty()? {
            return missing_beside(name);
        }
    }
    // There are tables only when the control file is there, and files of a log only when the first
    // of these is, durably.
    let is_begun = storage.exists(&first[0])?;
    let is_later = |dir: &str, name: &str| match dir {
        TABLES_DIR => name.ends_with(".tpd"),
        _ => !is_begun && name.starts_with("redo."),
    };
    for dir in [TABLES_DIR, redo::REDO_DIR] {
        let names = if storage.exists(dir)? { storage.list(dir)? } else { Vec::new() };
        if let Some(name) = names.iter().find(|name| is_later(dir, name)) {
            return missing_beside(&format!("{dir}/{name}"));
        }
    }
    if let Some(name) = storage.list("")?.iter().find(|name| is_later_file(name)) {
        return missing_beside(name);
    }
    for name in &first {
        if !storage.exists(name)? {
            storage.create(name)?.sync_data()?;
        }
    }
    storage.create_dir(TABLES_DIR)?;
    storage.sync_dir("")?;
    Ring::create(storage.clone(), page_size, options.uuid.unwrap_or_else(random_uuid), file_size)
}

/// An empty log in memory, in the place of one that can't be read, or is not to be: for a start
/// that writes nothing. Page size and identity are those of the control file, or else of the system
/// tablespace.
fn log_in_memory(storage: &dyn Storage, file_size: u64) -> Result<Ring> {
    let (page_size, uuid) = match storage
        .open(CONTROL_FILE)
        .map_err(Error::from)
        .and_then(|file| Control::read(&*file))
    {
        Ok((control, _)) => (control.page_size, control.uuid),
        Err(error) => identity(storage).ok_or(error)?,
    };
    Ring::create(Arc::new(SimStorage::new(0)), page_size, uuid, file_size)
}

/// Page size and identity as the file of the system tablespace has them, or the header in its
/// mirror.
fn identity(storage: &dyn Storage) -> Option<(PageSize, [u8; 16])> {
    let of_home = || {
        let file = storage.open(&space_file_name(SYSTEM_SPACE)).ok()?;
        let settings = PackedFile::settings_of(&*file).ok()?;
        Some((settings.page_size, settings.instance))
    };
    let of_mirror = || {
        let name = mirror_file_name(SYSTEM_SPACE)?;
        let file = storage.open(name).ok()?;
        // The header is in the first part of the page, whatever the page's size.
        let mut start = AlignedBuf::zeroed(PageSize::MIN.bytes());
        file.read_at(&mut start, 0).ok()?;
        let header = SpaceHeader::parse(&start, name).ok()?;
        let page_size = PageSize::new(header.page_size as usize)?;
        let mut page = AlignedBuf::zeroed(page_size.bytes());
        file.read_at(&mut page, 0).ok()?;
        page::verify(&page, PageId::new(SYSTEM_SPACE, 0)).ok()?;
        Some((page_size, header.instance))
    };
    of_home().or_else(of_mirror)
}

/// A random uuid (version 4).
pub(crate) fn random_uuid() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    // Each `RandomState` is seeded from the operating system's randomness.
    let half = || RandomState::new().hash_one(std::time::SystemTime::now()).to_le_bytes();
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&half());
    uuid[8..].copy_from_slice(&half());
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
