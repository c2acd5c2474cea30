// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! What the server's own data directory says against a start of the engine.

use std::ffi::{OsStr, c_char, c_int};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tidepool::{Error, UNFINISHED_MARK};

use crate::boundary::{TP_OK, bytes, guard};

/// An error if a backup that was not finished lies in the server's data directory.
fn check_mark(data_dir: &Path) -> Result<(), Error> {
    let mark = data_dir.join(UNFINISHED_MARK);
    // One that can't be looked for lies in a directory that the server can't use either.
    if fs::symlink_metadata(&mark).is_err() {
        return Ok(());
    }
    Err(Error::format(
        mark.display().to_string(),
        "this data directory was restored from a backup that was interrupted: restore another \
         backup, to an empty directory",
    ))
}

/// Whether the engine may start in the server's data directory; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_check_data_dir(data_dir: *const c_char, data_dir_len: usize) -> c_int {
    guard(|| {
        // SAFETY: a valid pointer and length from the shim.
        let data_dir = unsafe { bytes(data_dir.cast(), data_dir_len) };
        check_mark(Path::new(OsStr::from_bytes(data_dir)))?;
        Ok(TP_OK)
    })
}
