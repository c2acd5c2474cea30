// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Point reads and cursors.
//!
//! A `tp_reader` belongs to one open handler. It keeps a cursor for each index that was used, and
//! the buffer of point reads, from one statement to the next, so that a statement allocates nothing
//! once the handler is warm. What long values took is given back: handlers are many, and stay open.

use std::ffi::c_int;
use std::ops::Bound;
use std::sync::Arc;

use tidepool::{
    Access, Cursor, Error, LockMode, LockWait, LongValues, ROW_BYTES_KEPT, ReadValue, Seek, Table,
    Transaction,
};

use crate::boundary::{Bytes, TP_END, TP_OK, guard, guard_or};
use crate::constants::{
    TP_AFTER, TP_AT_OR_AFTER, TP_AT_OR_BEFORE, TP_LOCK_NONE, TP_LOCK_SHARED, TP_NO_WAIT,
    TP_READ_NOTHING, TP_READ_PREFIX, TP_SKIP_LOCKED,
};
use crate::spatial::search::Search;
use crate::transaction::ServerTransaction;

/// What an open handler reads with.
pub struct Reader {
    table: Arc<Table>,
    manner: Manner,
    cursors: Vec<Option<KeptCursor>>,
    row: Vec<u8>,
    /// In a SPATIAL index.
    pub(crate) search: Option<Search>,
}

/// How it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Manner {
    lock: LockMode,
    wait: LockWait,
    semi_consistent: bool,
    long_values: LongValues,
}

struct KeptCursor {
    cursor: Cursor,
    /// How the cursor was set to read.
    manner: Manner,
}

impl KeptCursor {
    #[cold]
    fn set_manner(&mut self, index: usize, manner: Manner) {
        if (self.manner.lock, self.manner.wait) != (manner.lock, manner.wait) {
            self.cursor.set_lock(manner.lock, manner.wait);
        }
        // By another index, the entry might be of one version and the row of another.
        self.cursor.set_semi_consistent(manner.semi_consistent && index == Table::CLUSTERED);
        self.cursor.set_long_values(match index {
            Table::CLUSTERED => manner.long_values,
            _ => LongValues::Whole,
        });
        self.manner = manner;
    }
}

/// An entry handed to C++.
#[repr(C)]
pub struct Entry {
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    is_cut: u8,
    is_recent: u8,
}

impl Entry {
    pub(crate) fn of(key: &[u8], value: &[u8]) -> Self {
        Self {
            key: key.as_ptr(),
            key_len: key.len(),
            value: value.as_ptr(),
            value_len: value.len(),
            is_cut: 0,
            is_recent: 0,
        }
    }
}

impl Reader {
    /// How rows are looked up: on behalf of a scan if any cursor is in one.
    fn lookup_access(&self) -> Access {
        let scans = |kept: &KeptCursor| kept.cursor.lookup_access() == Access::Scan;
        match self.cursors.iter().flatten().any(scans) {
            true => Access::Scan,
            false => Access::Normal,
        }
    }

    /// The cursor of an index, made on its first use, locking as the reader does now.
    #[inline]
    pub(crate) fn cursor(&mut self, index: usize) -> &mut Cursor {
        let (table, manner) = (&self.table, self.manner);
        let kept = self.cursors[index].get_or_insert_with(|| {
            let (lock, wait) = (manner.lock, manner.wait);
            let cursor = Cursor::new(Arc::clone(table), index, lock, wait);
            KeptCursor { cursor, manner: Manner { lock, wait, ..Manner::AT_FIRST } }
        });
        if kept.manner != manner {
            kept.set_manner(index, manner);
        }
        &mut kept.cursor
    }
}

impl Manner {
    /// How a cursor reads that nothing was said to.
    const AT_FIRST: Manner = Manner {
        lock: LockMode::None,
        wait: LockWait::Wait,
        semi_consistent: false,
        long_values: LongValues::Whole,
    };
}

/// Makes a reader.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_open(
    table: *const Arc<Table>,
    place: *mut *mut Reader,
) -> c_int {
    guard(|| {
        // SAFETY: an open table from the shim.
        let table = Arc::clone(unsafe { &*table });
        let cursors = (0..table.index_count()).map(|_| None).collect();
        let reader =
            Reader { table, manner: Manner::AT_FIRST, cursors, row: Vec::new(), search: None };
        // SAFETY: a valid place to store to.
        unsafe { *place = Box::into_raw(Box::new(reader)) };
        Ok(TP_OK)
    })
}

/// Gives a reader back.
///
/// # Safety
/// `reader` came from [`tp_reader_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_close(reader: *mut Reader) {
    // SAFETY: made by Box::into_raw in tp_reader_open, given back once.
    guard_or((), || drop(unsafe { Box::from_raw(reader) }));
}

/// A `tp_lock`.
pub(crate) fn lock_mode(lock: c_int) -> LockMode {
    match lock {
        TP_LOCK_NONE => LockMode::None,
        TP_LOCK_SHARED => LockMode::Shared,
        _ => LockMode::Exclusive,
    }
}

/// How the coming reads lock.
///
/// # Safety
/// A valid reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_set_lock(reader: *mut Reader, lock: c_int, wait: c_int) {
    guard_or((), || {
        // SAFETY: a valid reader from the shim.
        let reader = unsafe { &mut *reader };
        reader.manner.lock = lock_mode(lock);
        reader.manner.wait = match wait {
            TP_NO_WAIT => LockWait::NoWait,
            TP_SKIP_LOCKED => LockWait::SkipLocked,
            _ => LockWait::Wait,
        };
    });
}

/// Whether the coming locking moves in the clustered index do not wait; see bridge.h.
///
/// # Safety
/// A valid reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_set_semi_consistent(reader: *mut Reader, on: c_int) {
    // SAFETY: a valid reader from the shim.
    guard_or((), || unsafe { &mut *reader }.manner.semi_consistent = on != 0);
}

/// Whether moves in the clustered index give only the beginnings of long rows; see bridge.h.
///
/// # Safety
/// A valid reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_set_prefixes(reader: *mut Reader, on: c_int) {
    let long_values = if on != 0 { LongValues::Prefix } else { LongValues::Whole };
    // SAFETY: a valid reader from the shim.
    guard_or((), || unsafe { &mut *reader }.manner.long_values = long_values);
}

/// Whether the row that the clustered index's cursor is at was read without a lock.
///
/// # Safety
/// A valid reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_is_peeked(reader: *const Reader) -> c_int {
    guard_or(0, || {
        // SAFETY: a valid reader from the shim.
        let kept = unsafe { &*reader }.cursors[Table::CLUSTERED].as_ref();
        kept.is_some_and(|kept| kept.cursor.is_peeked()).into()
    })
}

/// A point read; see bridge.h.
#[repr(C)]
pub struct ReadRequest {
    index: usize,
    key: Bytes,
    part: c_int,
}

/// Point read.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_read(
    reader: *mut Reader,
    transaction: *mut ServerTransaction,
    request: *const ReadRequest,
    found: *mut Entry,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        let (reader, transaction, request) =
            unsafe { (&mut *reader, &mut *transaction, &*request) };
        // SAFETY: a valid pointer and length from the shim.
        let key = unsafe { request.key.get() };
        let access = reader.lookup_access();
        let Reader { table, manner: Manner { lock, wait, .. }, row, .. } = reader;
        let mut is_cut = false;
        let value = match request.part {
            TP_READ_NOTHING => ReadValue::Nothing,
            TP_READ_PREFIX => ReadValue::Prefix { bytes: &mut *row, is_cut: &mut is_cut },
            _ => ReadValue::Whole(&mut *row),
        };
        let read = tidepool::ReadRequest { key, lock: *lock, wait: *wait, access, value };
        if !transaction.inner.read(table, request.index, read)? {
            return Ok(TP_END);
        }
        let value: &[u8] = if request.part == TP_READ_NOTHING { &[] } else { row };
        let is_recent = *lock != LockMode::None && transaction.inner.read_is_recent();
        let entry =
            Entry { is_cut: is_cut.into(), is_recent: is_recent.into(), ..Entry::of(key, value) };
        // SAFETY: a valid place to store to.
        unsafe { *found = entry };
        Ok(TP_OK)
    })
}

/// Moves the cursor of `index` by `step` and stores the entry that it is at.
///
/// # Safety
/// Valid pointers.
unsafe fn move_cursor(
    reader: *mut Reader,
    transaction: *mut ServerTransaction,
    index: usize,
    entry: *mut Entry,
    step: impl FnOnce(&mut Cursor, &mut Transaction) -> Result<bool, Error>,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers from the shim.
        let (reader, transaction) = unsafe { (&mut *reader, &mut *transaction) };
        let locks = reader.manner.lock != LockMode::None;
        let cursor = reader.cursor(index);
        if !step(cursor, &mut transaction.inner)? {
            return Ok(TP_END);
        }
        let (key, value) = cursor.entry();
        let is_recent = locks && transaction.inner.read_is_recent();
        let found = Entry {
            is_cut: cursor.is_cut().into(),
            is_recent: is_recent.into(),
            ..Entry::of(key, value)
        };
        // SAFETY: a valid place to store to.
        unsafe { *entry = found };
        Ok(TP_OK)
    })
}

/// Where a cursor goes; see bridge.h.
#[repr(C)]
pub struct SeekRequest {
    index: usize,
    key: Bytes,
    seek: c_int,
}

/// Seeks a key.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_seek(
    reader: *mut Reader,
    transaction: *mut ServerTransaction,
    request: *const SeekRequest,
    entry: *mut Entry,
) -> c_int {
    // SAFETY: valid pointers and lengths from the shim.
    unsafe {
        let request = &*request;
        let key = request.key.get();
        let seek = match request.seek {
            TP_AT_OR_AFTER => Seek::AtOrAfter,
            TP_AFTER => Seek::After,
            TP_AT_OR_BEFORE => Seek::AtOrBefore,
            _ => Seek::Before,
        };
        let step = |cursor: &mut Cursor, trx: &mut Transaction| cursor.seek(trx, key, seek);
        move_cursor(reader, transaction, request.index, entry, step)
    }
}

macro_rules! moves {
    ($($(#[$doc:meta])* $name:ident $method:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Valid pointers.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            reader: *mut Reader,
            transaction: *mut ServerTransaction,
            index: usize,
            entry: *mut Entry,
        ) -> c_int {
            // SAFETY: valid pointers from the shim.
            unsafe { move_cursor(reader, transaction, index, entry, |cursor, trx| cursor.$method(trx)) }
        }
    )*};
}

moves! {
    /// The first entry.
    tp_first first;
    /// The last entry.
    tp_last last;
    /// The next entry.
    tp_next next;
    /// The previous entry.
    tp_prev prev;
    /// The current entry again, locked.
    tp_lock_current lock_current;
}

/// The reading of this index that the next seek begins ends before this key; see bridge.h.
///
/// # Safety
/// A valid reader, and a valid pointer and length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_set_end(reader: *mut Reader, index: usize, key: Bytes) {
    guard_or((), || {
        // SAFETY: valid pointers and lengths from the shim.
        let (reader, key) = unsafe { (&mut *reader, key.get()) };
        reader.cursor(index).set_end(Bound::Excluded(key));
    });
}

/// The coming reads of this index are a scan of the whole of it, or not.
///
/// # Safety
/// A valid reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_set_scan(reader: *mut Reader, index: usize, scan: c_int) {
    // SAFETY: a valid reader from the shim.
    guard_or((), || unsafe { &mut *reader }.cursor(index).set_scan(scan != 0));
}

/// Memory for rows that a handler keeps from one statement to the next; see bridge.h.
#[unsafe(no_mangle)]
pub extern "C" fn tp_row_bytes_kept() -> usize {
    ROW_BYTES_KEPT
}

/// Unpositions all cursors, and gives back the memory that long values have taken.
///
/// # Safety
/// A valid reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_end(reader: *mut Reader) {
    guard_or((), || {
        // SAFETY: a valid reader from the shim.
        let reader = unsafe { &mut *reader };
        reader.cursors.iter_mut().flatten().for_each(|kept| kept.cursor.reset());
        reader.search = None;
        reader.row.clear();
        reader.row.shrink_to(ROW_BYTES_KEPT);
    });
}
