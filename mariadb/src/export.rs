// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! One table moves between servers: FLUSH TABLES … FOR EXPORT, DISCARD and IMPORT TABLESPACE.
//!
//! The shim opens the files, by paths that it makes of a table's name alone. A `tp_export` is an
//! export that is open to be imported: what its header says, until the import takes it.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::sync::Arc;

use tidepool::{Db, Error, ExportProgress, Table, TableExport};

use crate::boundary::{Bytes, TP_OK, guard, guard_or, text};

/// Bytes that are read or written at once.
const BUFFER: usize = 1 << 20;

/// Where an export goes, and what the shim says of the table.
#[repr(C)]
pub struct ExportFile {
    fd: c_int,
    name: Bytes,
    description: Bytes,
}

/// What the header of an export says.
#[repr(C)]
pub struct ExportHeader {
    table: Bytes,
    metadata: Bytes,
    description: Bytes,
    file_bytes: u64,
}

/// Asked now and then whether to go on: entries and bytes so far.
type GoOn = extern "C" fn(*mut c_void, u64, u64) -> c_int;

/// An export that is open to be imported.
pub struct Import {
    file_bytes: u64,
    export: TableExport,
}

fn storage_error(name: &str, what: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull => Error::NoSpace(name.into()),
        _ => Error::Storage(format!("{name} can't be {what}: {error}")),
    }
}

/// Writes the rows of a table to an open file, and syncs it.
///
/// # Safety
/// Valid pointers and lengths; `go_on` may be called with `context`; the file is open for writing,
/// and stays the shim's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_export_table(
    db: *const Db,
    name: *const c_char,
    name_len: usize,
    file: *const ExportFile,
    context: *mut c_void,
    go_on: GoOn,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name, to) = unsafe { (&*db, text(name, name_len), &*file) };
        // SAFETY: as above.
        let (label, description) = unsafe { (to.name.get(), to.description.get()) };
        let label = String::from_utf8_lossy(label);
        // SAFETY: an open descriptor, which the shim closes: this handle never does.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(to.fd) });
        let mut writer = BufWriter::with_capacity(BUFFER, &*file);
        let mut go_on = |at: ExportProgress| go_on(context, at.entries, at.bytes) != 0;
        db.export_table(&name, description, &mut writer, &mut go_on)?;
        // The other server must not have rows that a crash takes from this one.
        db.flush_log()?;
        let written = writer.flush().and_then(|()| file.sync_all());
        written.map_err(|error| storage_error(&label, "written", &error))?;
        Ok(TP_OK)
    })
}

/// Opens an export: an open file, which is closed with it, or at once if this fails.
///
/// # Safety
/// Valid pointers and lengths; no other thread uses the descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_export_open(
    fd: c_int,
    name: *const c_char,
    name_len: usize,
    export: *mut *mut Import,
) -> c_int {
    guard(|| {
        // SAFETY: an open descriptor that is ours from here on.
        let file = unsafe { File::from_raw_fd(fd) };
        // SAFETY: valid pointers and lengths from the shim.
        let name = unsafe { text(name, name_len) };
        let file_bytes = file.metadata().map_err(|error| storage_error(&name, "read", &error))?;
        let reader = BufReader::with_capacity(BUFFER, file);
        let opened = TableExport::open(&name, Box::new(reader))?;
        let import = Import { file_bytes: file_bytes.len(), export: opened };
        // SAFETY: export is a valid place to store to.
        unsafe { *export = Box::into_raw(Box::new(import)) };
        Ok(TP_OK)
    })
}

/// What an export says; good until it is given back.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_export_header(export: *const Import, header: *mut ExportHeader) {
    guard_or((), || {
        // SAFETY: an export of the shim's alone.
        let import = unsafe { &*export };
        let exported = import.export.exported();
        let found = ExportHeader {
            table: Bytes::of(exported.table.as_bytes()),
            metadata: Bytes::of(&exported.def.metadata),
            description: Bytes::of(&exported.description),
            file_bytes: import.file_bytes,
        };
        // SAFETY: header is a valid place to store to.
        unsafe { *header = found };
    });
}

/// Calls `index` with the name of each index of an export, and whether it is unique.
///
/// # Safety
/// Valid pointers; `index` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_export_indexes(
    export: *const Import,
    context: *mut c_void,
    index: extern "C" fn(*mut c_void, *const c_char, usize, u8),
) {
    guard_or((), || {
        // SAFETY: an export of the shim's alone.
        for def in unsafe { &(*export).export.exported().def.indexes } {
            index(context, def.name.as_ptr().cast(), def.name.len(), u8::from(def.unique));
        }
    });
}

/// Makes the rows of an export those of a table that was discarded, with other metadata. This frees
/// the export, also when it fails.
///
/// # Safety
/// Valid pointers and lengths; `go_on` may be called with `context`; `export` is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_import_table(
    db: *const Db,
    name: *const c_char,
    name_len: usize,
    export: *mut Import,
    metadata: Bytes,
    context: *mut c_void,
    go_on: GoOn,
) -> c_int {
    guard(|| {
        // SAFETY: made by Box::into_raw in tp_export_open, given back once.
        let Import { export, .. } = *unsafe { Box::from_raw(export) };
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name, metadata) = unsafe { (&*db, text(name, name_len), metadata.get()) };
        if !db.is_discarded(&name)? {
            return Err(Error::TableExists(name.into_owned()));
        }
        // How its file is compressed and encrypted is this server's choice.
        let present = db.table_def(&name)?;
        let mut def = export.exported().def.clone();
        def.metadata = metadata.to_vec();
        (def.encryption, def.compression) = (present.encryption, present.compression);
        let mut go_on = |at: ExportProgress| go_on(context, at.entries, at.bytes) != 0;
        db.import_table(&name, &def, export, &mut go_on)?;
        Ok(TP_OK)
    })
}

/// Gives an export back that is not imported.
///
/// # Safety
/// `export` came from [`tp_export_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_export_free(export: *mut Import) {
    guard_or((), || {
        // SAFETY: made by Box::into_raw in tp_export_open, given back once.
        drop(unsafe { Box::from_raw(export) });
    });
}

/// Takes the rows of a table away, until an export is imported.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_discard_table(
    db: *const Db,
    name: *const c_char,
    name_len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name) = unsafe { (&*db, text(name, name_len)) };
        db.discard_table(&name)?;
        Ok(TP_OK)
    })
}

/// Whether the rows of an open table were discarded.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_is_discarded(table: *const Arc<Table>) -> c_int {
    // SAFETY: an open table from the shim.
    guard_or(0, || c_int::from(unsafe { &*table }.is_discarded()))
}
