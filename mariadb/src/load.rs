// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! The copy that ALTER TABLE makes, filled before anybody sees it.
//!
//! A `tp_load` is a boxed [`TableLoad`] of a table that is there and empty. The shim gives the
//! entries of each index.

use std::ffi::{c_char, c_int, c_void};

use tidepool::{Db, Error, Table, TableLoad};

use crate::boundary::{Bytes, TP_END, TP_OK, TP_OUT_OF_ORDER, guard, guard_or, text};
use crate::index_change::tell_duplicate;
use crate::reader::Entry;

/// A load under way, and the row last asked for.
pub struct Load {
    load: TableLoad,
    row: Vec<u8>,
}

/// Begins to fill an empty table that no other session knows.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_load_begin(
    db: *const Db,
    name: *const c_char,
    name_len: usize,
    load: *mut *mut Load,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name) = unsafe { (&*db, text(name, name_len)) };
        let begun = Load { load: db.fill_table(&name)?, row: Vec::new() };
        // SAFETY: load is a valid place to store to.
        unsafe { *load = Box::into_raw(Box::new(begun)) };
        Ok(TP_OK)
    })
}

/// An entry of the clustered index; `TP_OUT_OF_ORDER` if its key is below the last one's.
///
/// # Safety
/// Valid pointers and lengths; no other thread uses `load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_load_row(load: *mut Load, key: Bytes, value: Bytes) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (load, key, value) = unsafe { (&mut *load, key.get(), value.get()) };
        match load.load.push(Table::CLUSTERED, key, value) {
            Err(Error::KeyOutOfOrder { .. }) => Ok(TP_OUT_OF_ORDER),
            pushed => pushed.map(|()| TP_OK),
        }
    })
}

/// An entry of another index, in any order.
///
/// # Safety
/// Valid pointers and lengths; no other thread uses `load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_load_add(
    load: *mut Load,
    index: usize,
    key: Bytes,
    value: Bytes,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (load, key, value) = unsafe { (&mut *load, key.get(), value.get()) };
        load.load.add(index, key, value)?;
        Ok(TP_OK)
    })
}

/// Fills the indexes with what waits.
///
/// # Safety
/// Valid pointers; no other thread uses `load`; `killed` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_load_build(
    load: *mut Load,
    context: *mut c_void,
    killed: extern "C" fn(*mut c_void) -> c_int,
) -> c_int {
    guard(|| {
        // SAFETY: a load of the shim's alone.
        let load = unsafe { &mut *load };
        load.load.build(&mut || killed(context) == 0)?;
        Ok(TP_OK)
    })
}

/// What [`tp_load_build`] found twice; `TP_END` if nothing.
///
/// # Safety
/// Valid pointers; no other thread uses `load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_load_duplicate(
    load: *const Load,
    index: *mut usize,
    entry: *mut Entry,
) -> c_int {
    guard(|| {
        // SAFETY: a load of the shim's alone.
        let load = unsafe { &*load };
        // SAFETY: valid places to store to.
        Ok(unsafe { tell_duplicate(load.load.duplicate(), index, entry) })
    })
}

/// The row with this clustered key, once the clustered index is built; `TP_END` if there is none.
///
/// # Safety
/// Valid pointers and lengths; no other thread uses `load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_load_find(load: *mut Load, key: Bytes, row: *mut Bytes) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (load, key) = unsafe { (&mut *load, key.get()) };
        let Load { load, row: found } = load;
        if !load.row(key, found)? {
            return Ok(TP_END);
        }
        // SAFETY: row is a valid place to store to.
        unsafe { *row = Bytes::of(found) };
        Ok(TP_OK)
    })
}

/// Makes the rows the table's; the load is gone afterwards, whatever is returned.
///
/// # Safety
/// `load` came from [`tp_load_begin`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_load_commit(load: *mut Load) -> c_int {
    guard(|| {
        // SAFETY: made by Box::into_raw in tp_load_begin, given back once.
        let load = unsafe { Box::from_raw(load) }.load;
        load.commit()?;
        Ok(TP_OK)
    })
}

/// Leaves the table empty.
///
/// # Safety
/// `load` came from [`tp_load_begin`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_load_free(load: *mut Load) {
    guard_or((), || {
        // SAFETY: made by Box::into_raw in tp_load_begin, given back once.
        drop(unsafe { Box::from_raw(load) });
    });
}
