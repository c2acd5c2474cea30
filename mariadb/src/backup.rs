// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Backups: the engine's files, and the server's that belong to its tables.
//!
//! A backup is a directory that is laid over a server's data directory:
//! ```text
//! tidepool/…                what the engine has (tidepool::Backup)
//! shop/db.opt               of each database with a table of the engine's: its character set,
//! shop/orders.frm           the tables' definitions,
//! shop/orders.par           their partitions,
//! shop/orders.TRG, *.TRN    their triggers,
//! shop/overview.frm         and the views
//! tidepool_backup_info      of which moment it is
//! ```
//! From the first moment to the last, `tidepool-backup-unfinished` lies in it
//! ([`UNFINISHED_MARK`]), and the plugin starts on no data directory that has this file.
//!
//! The engine's part is copied while everything goes on; for the rest the shim holds up changes of
//! definitions, which is a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tidepool::{Backup, Db, Error, Remedy, UNFINISHED_MARK, make_marked_dir};

use crate::boundary::{TP_OK, bytes, guard};
use crate::database::{is_intermediate, is_temporary};

/// Where the engine's files go.
const ENGINE_DIR: &str = "tidepool";
/// The file that says of which moment it is.
const INFO_FILE: &str = "tidepool_backup_info";

/// A backup under way: a `tp_backup`. Given back unfinished, it leaves nothing.
pub struct ServerBackup {
    db: Db,
    dir: PathBuf,
    /// `None` when it is finished.
    engine: Option<Backup>,
    /// Files and directories made beside the engine's, in their order.
    made: Vec<PathBuf>,
    finished: bool,
}

fn failed(path: &Path, what: &str) -> impl Fn(io::Error) -> Error {
    let path = path.display().to_string();
    move |error| Error::Storage(format!("{what} '{path}': {error}"))
}

impl ServerBackup {
    /// With a `base`, which is an earlier backup, an incremental one.
    fn begin(db: &Db, dir: &Path, base: Option<&Path>) -> Result<Self, Error> {
        if let Some(base) = base
            && base.join(UNFINISHED_MARK).exists()
        {
            let why = "this backup was interrupted: it can't be the base of an incremental one";
            let remedy = Remedy::MakeCompleteBackup;
            return Err(Error::format(base.display().to_string(), why, remedy));
        }
        let mut backup = Self {
            db: db.clone(),
            dir: dir.into(),
            engine: None,
            made: Vec::new(),
            finished: false,
        };
        backup.databases()?;
        match fs::read_dir(dir) {
            Ok(entries) => {
                for entry in entries {
                    let name = entry.map_err(failed(dir, "cannot read"))?.file_name();
                    refuse(dir, &name)?;
                }
                let mark = dir.join(UNFINISHED_MARK);
                fs::File::create_new(&mark).map_err(failed(&mark, "cannot make"))?;
                backup.made.push(mark);
                sync_dir(dir)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => backup.make_marked(dir)?,
            Err(error) => return Err(failed(dir, "cannot read")(error)),
        }
        let engine_dir = dir.join(ENGINE_DIR);
        backup.make_marked(&engine_dir)?;
        for dir in ["redo", "tables"] {
            backup.make_dir(&engine_dir.join(dir))?;
        }
        // The engine leaves it, as it does not know what else is in the directory.
        backup.made.push(engine_dir.join("lock"));
        backup.engine = Some(match base {
            Some(base) => db.begin_backup_since_in(base.join(ENGINE_DIR), &engine_dir)?,
            None => db.begin_backup_in(&engine_dir)?,
        });
        Ok(backup)
    }

    fn engine(&mut self) -> Result<&mut Backup, Error> {
        self.engine.as_mut().ok_or_else(|| Error::InvalidOption("the backup is finished".into()))
    }

    fn make_dir(&mut self, dir: &Path) -> Result<(), Error> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().mode(0o700).create(dir).map_err(failed(dir, "cannot make"))?;
        self.made.push(dir.into());
        Ok(())
    }

    /// Makes a directory that holds the mark from the beginning.
    fn make_marked(&mut self, dir: &Path) -> Result<(), Error> {
        make_marked_dir(dir)?;
        self.made.extend([dir.into(), dir.join(UNFINISHED_MARK)]);
        Ok(())
    }

    /// The tables whose definitions belong to the backup, by database.
    fn databases(&self) -> Result<BTreeMap<String, BTreeSet<String>>, Error> {
        let mut databases: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for name in self.db.table_names()? {
            let Some((database, table)) = name.split_once('/') else { continue };
            // It has no definition, or not yet, and will be no table in the backup.
            if is_temporary(&name) || is_intermediate(&name) {
                continue;
            }
            // A partition is a table of the engine's.
            let table = table.split('#').next().unwrap_or(table);
            databases.entry(database.into()).or_default().insert(table.into());
        }
        if databases.contains_key(ENGINE_DIR) {
            return Err(Error::InvalidOption(format!(
                "a backup has the engine's files in the directory '{ENGINE_DIR}', which is also \
                 the directory of the database `{ENGINE_DIR}`: move its tables to another database"
            )));
        }
        Ok(databases)
    }

    /// Copies the server's files of the tables, from its data directory.
    fn copy_definitions(&mut self, data_dir: &Path) -> Result<(), Error> {
        for (database, tables) in self.databases()? {
            let from = data_dir.join(&database);
            let entries = match fs::read_dir(&from) {
                Ok(entries) => entries,
                // The start of a server on the backup makes it, from the definitions' images in the
                // catalog.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tracing::warn!(
                        "the directory of the database `{database}` is missing: the backup has the \
                         tables {tables:?} of it without their files of definitions"
                    );
                    continue;
                }
                Err(error) => return Err(failed(&from, "cannot read")(error)),
            };
            let to = self.dir.join(&database);
            self.make_dir(&to)?;
            for entry in entries {
                let path = entry.map_err(failed(&from, "cannot read"))?.path();
                if belongs(&path, &tables).map_err(failed(&path, "cannot read"))? {
                    self.copy_file(&path, &to)?;
                }
            }
            sync_dir(&to)?;
        }
        Ok(())
    }

    fn copy_file(&mut self, from: &Path, dir: &Path) -> Result<(), Error> {
        let to = dir.join(from.file_name().unwrap_or_default());
        self.made.push(to.clone());
        fs::copy(from, &to)
            .and_then(|_| fs::File::open(&to)?.sync_all())
            .map_err(failed(&to, "cannot write"))
    }

    /// Ends the backup; `info` is what the server knows of this moment.
    fn finish(&mut self, info: &[u8]) -> Result<(), Error> {
        let Some(engine) = self.engine.take() else { return Ok(()) };
        let info_file = self.dir.join(INFO_FILE);
        self.made.push(info_file.clone());
        let report = engine.finish()?;
        let write = || -> io::Result<()> {
            let mut file = fs::File::create_new(&info_file)?;
            file.write_all(info)?;
            writeln!(file, "backup_id = {}", hexadecimal(&report.id))?;
            if let Some(base) = report.base {
                writeln!(file, "incremental_from = {}", hexadecimal(&base))?;
            }
            writeln!(file, "checkpoint_lsn = {}", report.checkpoint.0)?;
            writeln!(file, "end_lsn = {}", report.end.0)?;
            writeln!(file, "table_bytes = {}", report.copied_bytes)?;
            writeln!(file, "redo_bytes = {}", report.log_bytes)?;
            file.sync_all()
        };
        let written = write().map_err(failed(&info_file, "cannot write"));
        let mark = self.dir.join(UNFINISHED_MARK);
        let complete = || {
            sync_dir(&self.dir)?;
            fs::remove_file(&mark).map_err(failed(&mark, "cannot remove"))?;
            sync_dir(&self.dir)
        };
        if let Err(error) = written.and_then(|()| complete()) {
            // What is complete would pass for a backup, though the statement fails.
            let _ = fs::File::create_new(&mark);
            let _ = fs::remove_dir_all(self.dir.join(ENGINE_DIR));
            return Err(error);
        }
        self.finished = true;
        Ok(())
    }
}

fn hexadecimal(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An error if `dir` can't be the place of a backup because of this file in it.
fn refuse(dir: &Path, name: &OsStr) -> Result<(), Error> {
    let (why, remedy) = match name.to_str() {
        Some("lost+found") => return Ok(()),
        Some(UNFINISHED_MARK) => {
            ("holds a backup that was not finished", "remove it, or name another directory")
        }
        _ => ("holds files", "name a directory that is empty or does not exist"),
    };
    Err(Error::format(dir.display().to_string(), why, Remedy::Other(remedy)))
}

/// Makes the names in `dir` durable.
fn sync_dir(dir: &Path) -> Result<(), Error> {
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed(dir, "cannot write"))
}

/// Whether a file of a database's directory is of one of these tables, or of the database.
fn belongs(path: &Path, tables: &BTreeSet<String>) -> io::Result<bool> {
    let is_table = |name: &OsStr| name.to_str().is_some_and(|name| tables.contains(name));
    let extension = path.extension().and_then(OsStr::to_str);
    let stem = path.file_stem().unwrap_or_default();
    Ok(match extension {
        _ if path.file_name() == Some(OsStr::new("db.opt")) => true,
        Some("par" | "TRG") => is_table(stem),
        Some("frm") => is_table(stem) || starts_with(path, b"TYPE=VIEW")?,
        // It names its table in a separate line. One too many does no harm: a trigger is what the
        // table's TRG file lists.
        Some("TRN") => {
            let text = fs::read(path)?;
            let table = text
                .split(|byte| *byte == b'\n')
                .find_map(|line| line.strip_prefix(b"trigger_table="));
            table.is_some_and(|table| !table.is_ascii() || is_table(&file_name_of(table)))
        }
        _ => false,
    })
}

/// The file name of a table with a name of ASCII: what is no letter, digit or underscore stands
/// there by its code.
fn file_name_of(table: &[u8]) -> std::ffi::OsString {
    let mut name = String::new();
    for byte in table {
        if byte.is_ascii_alphanumeric() || *byte == b'_' {
            name.push(char::from(*byte));
        } else {
            name.push_str(&format!("@{byte:04x}"));
        }
    }
    name.into()
}

fn starts_with(path: &Path, start: &[u8]) -> io::Result<bool> {
    use std::io::Read;
    let mut head = Vec::new();
    fs::File::open(path)?.take(start.len() as u64).read_to_end(&mut head)?;
    Ok(head == start)
}

impl Drop for ServerBackup {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Its own files first.
        self.engine = None;
        for path in self.made.iter().rev() {
            let _ = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
    }
}

/// A path given by the server.
///
/// # Safety
/// As for [`bytes`].
unsafe fn path<'a>(data: *const c_char, len: usize) -> &'a Path {
    // SAFETY: the caller's contract.
    Path::new(OsStr::from_bytes(unsafe { bytes(data.cast(), len) }))
}

/// Where a backup goes, and its base: a `tp_backup_place`.
#[repr(C)]
pub struct BackupPlace {
    dir: *const c_char,
    dir_len: usize,
    /// Null for a complete backup.
    base: *const c_char,
    base_len: usize,
}

/// Begins a backup into a directory that is empty or does not exist.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_backup_begin(
    db: *const Db,
    place: *const BackupPlace,
    backup: *mut *mut ServerBackup,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        let place = unsafe { &*place };
        // SAFETY: likewise; a base that is null is not looked at.
        let (dir, base) = unsafe {
            let has_base = !place.base.is_null();
            (path(place.dir, place.dir_len), has_base.then(|| path(place.base, place.base_len)))
        };
        // SAFETY: likewise.
        let begun = ServerBackup::begin(unsafe { &*db }, dir, base)?;
        // SAFETY: backup is a valid place to store to.
        unsafe { *backup = Box::into_raw(Box::new(begun)) };
        Ok(TP_OK)
    })
}

/// Copies the tables; `go_on` gets how many bytes are copied, and of how many, and says whether
/// to go on.
///
/// # Safety
/// `backup` is a backup under way; `go_on` is called with `context` on this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_backup_copy(
    backup: *mut ServerBackup,
    context: *mut c_void,
    go_on: extern "C" fn(*mut c_void, u64, u64) -> c_int,
) -> c_int {
    guard(|| {
        // SAFETY: a backup from tp_backup_begin, of one thread.
        let backup = unsafe { &mut *backup };
        backup.engine()?.copy_files(&mut |progress| {
            go_on(context, progress.copied_bytes, progress.total_bytes) != 0
        })?;
        Ok(TP_OK)
    })
}

/// Copies the server's files of the tables; definitions do not change meanwhile.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_backup_definitions(
    backup: *mut ServerBackup,
    data_dir: *const c_char,
    data_dir_len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        unsafe { (*backup).copy_definitions(path(data_dir, data_dir_len))? };
        Ok(TP_OK)
    })
}

/// Ends the backup: it is of this moment, of which `info` are lines that the server has written.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_backup_finish(
    backup: *mut ServerBackup,
    info: *const c_char,
    info_len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        unsafe { (*backup).finish(bytes(info.cast(), info_len))? };
        Ok(TP_OK)
    })
}

/// Gives a backup back. One that is not finished leaves nothing.
///
/// # Safety
/// `backup` came from [`tp_backup_begin`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_backup_free(backup: *mut ServerBackup) {
    guard(|| {
        // SAFETY: made by Box::into_raw, given back once.
        drop(unsafe { Box::from_raw(backup) });
        Ok(TP_OK)
    });
}
