// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Open tables: statistics, row ids, auto-increment, `CHECK TABLE`.
//!
//! A `tp_table` is a boxed `Arc<Table>`: it stays safe to use after the table is dropped.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Bound;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use tidepool::{Db, Error, Sampled, Table};

use crate::boundary::{Bytes, TP_OK, guard, guard_or, text};

#[repr(C)]
pub struct IndexNumbers {
    entries: u64,
    leaf_pages: u64,
    data_size_bytes: u64,
}

/// What a table's file takes.
#[repr(C)]
pub struct FileNumbers {
    file_bytes: u64,
    live_bytes: u64,
    dead_bytes: u64,
}

/// Opens a table.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_open(
    db: *const Db,
    name: *const c_char,
    len: usize,
    table: *mut *mut Arc<Table>,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name) = unsafe { (&*db, text(name, len)) };
        let opened = db.open_table(&name)?;
        // SAFETY: table is a valid place to store to.
        unsafe { *table = Box::into_raw(Box::new(opened)) };
        Ok(TP_OK)
    })
}

/// Gives an open table back.
///
/// # Safety
/// `table` came from [`tp_table_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_close(table: *mut Arc<Table>) {
    guard_or((), || {
        // SAFETY: made by Box::into_raw in tp_table_open, given back once.
        drop(unsafe { Box::from_raw(table) });
    });
}

/// Says that the table is a temporary one.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_set_temporary(table: *const Arc<Table>) {
    // SAFETY: an open table from the shim.
    guard_or((), || unsafe { &*table }.set_temporary());
}

/// Whether a table may be copied to one that takes its place; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_check_copy(db: *const Db, name: *const c_char, len: usize) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name) = unsafe { (&*db, text(name, len)) };
        let is_meant = |used: &str| {
            let rest = used.strip_prefix(&*name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("#P#"))
        };
        match db.is_used_without_session(is_meant) {
            true => Err(Error::TableBusy(name.into_owned())),
            false => Ok(TP_OK),
        }
    })
}

/// Number of indexes, the clustered one included.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_index_count(table: *const Arc<Table>) -> usize {
    // SAFETY: an open table from the shim.
    guard_or(0, || unsafe { &*table }.index_count())
}

/// Longest key that can be inserted, in bytes.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_key_len_max(table: *const Arc<Table>) -> usize {
    // SAFETY: an open table from the shim.
    guard_or(0, || unsafe { &*table }.key_len_max())
}

/// Longest value that an entry holds itself, in bytes.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_value_len_inline_max(table: *const Arc<Table>) -> usize {
    // SAFETY: an open table from the shim.
    guard_or(0, || unsafe { &*table }.value_len_inline_max())
}

/// Estimated number of rows.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_rows(table: *const Arc<Table>) -> u64 {
    // SAFETY: an open table from the shim.
    guard_or(0, || unsafe { &*table }.rows())
}

/// When a commit last changed its rows, in seconds since 1970; 0 if none has in this life.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_changed_at(table: *const Arc<Table>) -> u64 {
    guard_or(0, || {
        // SAFETY: an open table from the shim.
        let changed = unsafe { &*table }.changed_at();
        changed.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs())
    })
}

/// Samples the trees.
///
/// # Safety
/// Valid pointers; `indexes` has room for `index_capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_statistics_read(
    table: *const Arc<Table>,
    indexes: *mut IndexNumbers,
    index_capacity: usize,
) -> c_int {
    guard(|| {
        // SAFETY: an open table from the shim.
        let statistics = unsafe { &*table }.statistics()?;
        for (i, index) in statistics.indexes.iter().take(index_capacity).enumerate() {
            // SAFETY: i < index_capacity.
            unsafe {
                *indexes.add(i) = IndexNumbers {
                    entries: index.entries,
                    leaf_pages: index.leaf_pages,
                    data_size_bytes: index.data_size_bytes,
                };
            }
        }
        Ok(TP_OK)
    })
}

/// What the table's file takes on disk.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_table_file_usage(
    table: *const Arc<Table>,
    numbers: *mut FileNumbers,
) -> c_int {
    guard(|| {
        // SAFETY: an open table from the shim.
        let usage = unsafe { &*table }.file_usage()?;
        // SAFETY: a valid place to store to.
        unsafe {
            *numbers = FileNumbers {
                file_bytes: usage.file_bytes,
                live_bytes: usage.live_bytes,
                dead_bytes: usage.dead_bytes(),
            };
        }
        Ok(TP_OK)
    })
}

/// Shows a sample of keys; see bridge.h.
///
/// # Safety
/// Valid pointers; `give` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_sample_keys(
    table: *const Arc<Table>,
    index: usize,
    bounds: c_int,
    count: usize,
    context: *mut c_void,
    give: extern "C" fn(*mut c_void, *const Bytes, usize, f64),
) -> c_int {
    guard(|| {
        // SAFETY: an open table from the shim.
        let table = unsafe { &*table };
        let sampled = if bounds == 0 { Sampled::Entries } else { Sampled::Bounds };
        let mut keys: Vec<Bytes> = Vec::new();
        table.sample_keys(index, sampled, count, &mut |list, stands_for| {
            keys.clear();
            keys.extend(list.iter().map(|key| Bytes::of(key)));
            give(context, keys.as_ptr(), keys.len(), stands_for);
        })?;
        Ok(TP_OK)
    })
}

/// Estimates the entries of a range; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths; a null `lo` or `hi` is an open end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_estimate_range(
    table: *const Arc<Table>,
    index: usize,
    lo: Bytes,
    hi: Bytes,
    entries: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (table, lo_bytes, hi_bytes) = unsafe { (&*table, lo.get(), hi.get()) };
        let lo = if lo.is_null() { Bound::Unbounded } else { Bound::Included(lo_bytes) };
        let hi = if hi.is_null() { Bound::Unbounded } else { Bound::Excluded(hi_bytes) };
        let estimate = table.estimate_range(index, lo, hi)?;
        // SAFETY: a valid place to store to.
        unsafe { *entries = estimate };
        Ok(TP_OK)
    })
}

/// Keys from `lo` up to `hi`, without that.
#[repr(C)]
pub struct KeyRange {
    lo: Bytes,
    hi: Bytes,
}

/// Counts the entries of a range, in any version; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_count_traces(
    table: *const Arc<Table>,
    index: usize,
    range: *const KeyRange,
    max: u64,
    entries: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (table, lo, hi) = unsafe { (&*table, (*range).lo.get(), (*range).hi.get()) };
        let count = table.count_traces(index, lo, hi, max)?;
        // SAFETY: a valid place to store to.
        unsafe { *entries = count };
        Ok(TP_OK)
    })
}

/// Walks every tree of a table.
///
/// # Safety
/// Valid pointers; the callbacks may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_check(
    db: *const Db,
    table: *const Arc<Table>,
    context: *mut c_void,
    problem: extern "C" fn(*mut c_void, *const c_char, usize),
    killed: extern "C" fn(*mut c_void) -> c_int,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        let (db, table) = unsafe { (&*db, &*table) };
        let report = table.check(db, &mut |_| killed(context) == 0)?;
        for text in &report.problems {
            problem(context, text.as_ptr().cast(), text.len());
        }
        Ok(TP_OK)
    })
}

/// The key of a new row; see bridge.h.
///
/// # Safety
/// `table` is open; `row_id` has room for 8 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_next_row_id(table: *const Arc<Table>, row_id: *mut [u8; 8]) -> c_int {
    guard(|| {
        // SAFETY: an open table from the shim.
        let id = unsafe { &*table }.next_row_id()?;
        // SAFETY: a valid place to store to, of bytes.
        unsafe { *row_id = id };
        Ok(TP_OK)
    })
}

/// The next value of the auto-increment counter.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_auto_increment(table: *const Arc<Table>) -> u64 {
    // SAFETY: an open table from the shim.
    guard_or(u64::MAX, || unsafe { &*table }.auto_increment())
}

/// The counter in memory becomes at least `next`; see bridge.h.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_expect_auto_increment(table: *const Arc<Table>, next: u64) {
    // SAFETY: an open table from the shim.
    guard_or((), || unsafe { &*table }.expect_auto_increment(next));
}

/// The counter becomes at least `next`.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_raise_auto_increment(table: *const Arc<Table>, next: u64) -> c_int {
    guard(|| {
        // SAFETY: an open table from the shim.
        unsafe { &*table }.raise_auto_increment(next)?;
        Ok(TP_OK)
    })
}

/// The counter becomes `next`.
///
/// # Safety
/// `table` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reset_auto_increment(table: *const Arc<Table>, next: u64) -> c_int {
    guard(|| {
        // SAFETY: an open table from the shim.
        unsafe { &*table }.reset_auto_increment(next)?;
        Ok(TP_OK)
    })
}
