// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! What the server's own data directory says against a start of the engine: a backup that was not
//! finished lies there, or the server has tables of the engine's, but the engine's directory is
//! new. Then its file system is not mounted, or its name is misspelt, and a start would make an
//! empty engine in the place of one that is elsewhere.

use std::ffi::{OsStr, c_char, c_int};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tidepool::{Db, Error, Remedy, UNFINISHED_MARK};

use crate::boundary::{TP_OK, bytes, guard};
use crate::frm;

/// An error if a backup that was not finished lies in the server's data directory.
fn check_mark(data_dir: &Path) -> Result<(), Error> {
    let mark = data_dir.join(UNFINISHED_MARK);
    // One that can't be looked for lies in a directory that the server can't use either.
    if fs::symlink_metadata(&mark).is_err() {
        return Ok(());
    }
    Err(Error::format(
        mark.display().to_string(),
        "this data directory was restored from a backup that was interrupted",
        Remedy::Other("restore another backup, to an empty directory"),
    ))
}

/// An error if the engine's directory is new, but the server has tables of the engine's.
fn check_tables(data_dir: &Path, engine_dir: &Path) -> Result<(), Error> {
    // Where only its control file is gone, the engine says so.
    if Db::exists(engine_dir)? || engine_dir.join("system.tpd").exists() {
        return Ok(());
    }
    let found = find_table(data_dir).map_err(|error| {
        Error::Storage(format!("cannot look for tables in '{}': {error}", data_dir.display()))
    })?;
    let Some(table) = found else { return Ok(()) };
    Err(Error::format(
        engine_dir.display().to_string(),
        format!(
            "no data of Tidepool is there, but the server has tables of Tidepool, '{}' for one",
            table.display()
        ),
        Remedy::Other(
            "mount the file system, or correct tidepool_data_home_dir. If the tables' data is lost, \
             start once with --tidepool-start-empty",
        ),
    ))
}

/// A definition of one of the engine's tables, relative to the server's data directory.
fn find_table(data_dir: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(data_dir)? {
        // A database may be a link.
        let database = entry?.path();
        if !database.is_dir() {
            continue;
        }
        let entries = match fs::read_dir(&database) {
            // lost+found, for one, is no database.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            if path.extension() == Some(OsStr::new("frm")) && is_ours(&path)? {
                return Ok(Some(path.strip_prefix(data_dir).unwrap_or(&path).into()));
            }
        }
    }
    Ok(None)
}

fn is_ours(path: &Path) -> io::Result<bool> {
    /// The server makes none that is longer.
    const FRM_BYTES_MAX: u64 = 16 << 20;
    let mut file = fs::File::open(path)?.take(FRM_BYTES_MAX);
    let mut frm = Vec::new();
    file.by_ref().take(frm::HEADER_BYTES as u64).read_to_end(&mut frm)?;
    if !frm::may_be_ours(&frm) {
        return Ok(false);
    }
    file.read_to_end(&mut frm)?;
    Ok(frm::engine_name(&frm).is_some_and(|name| name.eq_ignore_ascii_case(b"Tidepool")))
}

/// Whether the engine may start in the server's data directory; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_check_data_dir(
    data_dir: *const c_char,
    data_dir_len: usize,
    engine_dir: *const c_char,
    engine_dir_len: usize,
    start_empty: u8,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let [data_dir, engine_dir] = unsafe {
            [bytes(data_dir.cast(), data_dir_len), bytes(engine_dir.cast(), engine_dir_len)]
        }
        .map(|path| Path::new(OsStr::from_bytes(path)));
        check_mark(data_dir)?;
        if start_empty == 0 {
            check_tables(data_dir, engine_dir)?;
        }
        Ok(TP_OK)
    })
}
