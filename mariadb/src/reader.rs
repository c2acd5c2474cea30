// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Point reads and cursors.
//!
//! A `tp_reader` belongs to one open handler. It keeps a cursor for each index that was used, and the buffer of point
//! reads, from one statement to the next, so that a statement allocates nothing once the handler is warm. What long values took is
//! given back: handlers are many, and stay open.

use std::ffi::c_int;
use std::ops::Bound;
use std::sync::Arc;

use tidepool::{Cursor, Error, LockMode, LockWait, ROW_BYTES_KEPT, Seek, Table, Transaction};

use crate::boundary::{Bytes, TP_END, TP_OK, bytes, guard, guard_or};
use crate::constants::{
    TP_AFTER, TP_AT_OR_AFTER, TP_AT_OR_BEFORE, TP_LOCK_NONE, TP_LOCK_SHARED, TP_NO_WAIT,
    TP_SKIP_LOCKED,
};
use crate::transaction::ServerTransaction;

/// What an open handler reads with.
pub struct Reader {
    table: Arc<Table>,
    lock: LockMode,
    wait: LockWait,
    semi_consistent: bool,
    heads: bool,
    cursors: Vec<Option<KeptCursor>>,
    row: Vec<u8>,
}

struct KeptCursor {
    cursor: Cursor,
    lock: LockMode,
    wait: LockWait,
}

/// An entry handed to C++.
#[repr(C)]
pub struct Entry {
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    is_cut: u8,
}

impl Entry {
    pub(crate) fn of(key: &[u8], value: &[u8]) -> Self {
        Self {
            key: key.as_ptr(),
            key_len: key.len(),
            value: value.as_ptr(),
            value_len: value.len(),
            is_cut: 0,
        }
    }
}

impl Reader {
    /// Whether rows are looked up on behalf of a scan.
    fn is_scanning(&self) -> bool {
        self.cursors.iter().flatten().any(|kept| kept.cursor.is_scanning())
    }

    /// The cursor of an index, made on its first use, locking as the reader does now.
    #[inline]
    fn cursor(&mut self, index: usize) -> &mut Cursor {
        let (table, lock, wait) = (&self.table, self.lock, self.wait);
        let kept = self.cursors[index].get_or_insert_with(|| KeptCursor {
            cursor: Cursor::new(Arc::clone(table), index, lock, wait),
            lock,
            wait,
        });
        if kept.lock != lock || kept.wait != wait {
            kept.cursor.set_lock(lock, wait);
            kept.lock = lock;
            kept.wait = wait;
        }
        // By another index, the entry might be of one version and the row of another.
        kept.cursor.set_semi_consistent(self.semi_consistent && index == Table::CLUSTERED);
        kept.cursor.set_heads(self.heads && index == Table::CLUSTERED);
        &mut kept.cursor
    }
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
        let (lock, wait) = (LockMode::None, LockWait::Wait);
        let (semi_consistent, heads) = (false, false);
        let reader = Reader { table, lock, wait, semi_consistent, heads, cursors, row: Vec::new() };
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
        reader.lock = lock_mode(lock);
        reader.wait = match wait {
            TP_NO_WAIT => LockWait::NoWait,
            TP_SKIP_LOCKED => LockWait::SkipLocked,
            _ => LockWait::Wait,
        };
    });
}

/// Whether the coming locking moves in the clustered index wait for nobody; see bridge.h.
///
/// # Safety
/// A valid reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_set_semi_consistent(reader: *mut Reader, on: c_int) {
    // SAFETY: a valid reader from the shim.
    guard_or((), || unsafe { &mut *reader }.semi_consistent = on != 0);
}

/// Whether of long rows only the beginnings are read, as a rule; see bridge.h.
///
/// # Safety
/// A valid reader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_reader_set_heads(reader: *mut Reader, on: c_int) {
    // SAFETY: a valid reader from the shim.
    guard_or((), || unsafe { &mut *reader }.heads = on != 0);
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

/// Point read.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_get(
    reader: *mut Reader,
    transaction: *mut ServerTransaction,
    index: usize,
    key: *const u8,
    key_len: usize,
    value: *mut Bytes,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (reader, transaction, key) =
            unsafe { (&mut *reader, &mut *transaction, bytes(key, key_len)) };
        let scanning = reader.is_scanning();
        let get = if scanning { Transaction::get_for_scan } else { Transaction::get };
        let (lock, wait) = (reader.lock, reader.wait);
        let found =
            get(&mut transaction.inner, &reader.table, index, key, lock, wait, &mut reader.row)?;
        if !found {
            return Ok(TP_END);
        }
        // SAFETY: a valid place to store to.
        unsafe { *value = Bytes::of(&reader.row) };
        Ok(TP_OK)
    })
}

/// Point read of an entry of the clustered index, of which a long row may be cut; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_get_row(
    reader: *mut Reader,
    transaction: *mut ServerTransaction,
    key: *const u8,
    key_len: usize,
    value: *mut Bytes,
    is_cut: *mut u8,
) -> c_int {
    // SAFETY: a valid reader from the shim.
    if !guard_or(false, || unsafe { &*reader }.heads) {
        // SAFETY: as this function's.
        unsafe {
            *is_cut = 0;
            return tp_get(reader, transaction, Table::CLUSTERED, key, key_len, value);
        }
    }
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (reader, transaction, key) =
            unsafe { (&mut *reader, &mut *transaction, bytes(key, key_len)) };
        let scanning = reader.is_scanning();
        let (lock, wait) = (reader.lock, reader.wait);
        let (trx, table) = (&mut transaction.inner, &reader.table);
        let row = &mut reader.row;
        match trx.get_head(scanning, table, Table::CLUSTERED, key, lock, wait, row)? {
            None => Ok(TP_END),
            Some(cut) => {
                // SAFETY: valid places to store to.
                unsafe { (*value, *is_cut) = (Bytes::of(&reader.row), cut.into()) };
                Ok(TP_OK)
            }
        }
    })
}

/// Whether there is an entry with this key: a point read without the value.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_find(
    reader: *mut Reader,
    transaction: *mut ServerTransaction,
    index: usize,
    key: *const u8,
    key_len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (reader, transaction, key) =
            unsafe { (&mut *reader, &mut *transaction, bytes(key, key_len)) };
        let (lock, wait) = (reader.lock, reader.wait);
        match transaction.inner.find(&reader.table, index, key, lock, wait)? {
            true => Ok(TP_OK),
            false => Ok(TP_END),
        }
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
        let cursor = reader.cursor(index);
        if !step(cursor, &mut transaction.inner)? {
            return Ok(TP_END);
        }
        let found =
            Entry { is_cut: cursor.is_cut().into(), ..Entry::of(cursor.key(), cursor.value()) };
        // SAFETY: a valid place to store to.
        unsafe { *entry = found };
        Ok(TP_OK)
    })
}

/// Seeks a key.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_seek(
    reader: *mut Reader,
    transaction: *mut ServerTransaction,
    index: usize,
    key: *const u8,
    key_len: usize,
    seek: c_int,
    entry: *mut Entry,
) -> c_int {
    // SAFETY: valid pointers and lengths from the shim.
    unsafe {
        let key = bytes(key, key_len);
        let seek = match seek {
            TP_AT_OR_AFTER => Seek::AtOrAfter,
            TP_AFTER => Seek::After,
            TP_AT_OR_BEFORE => Seek::AtOrBefore,
            _ => Seek::Before,
        };
        move_cursor(reader, transaction, index, entry, |cursor, trx| cursor.seek(trx, key, seek))
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
pub unsafe extern "C" fn tp_reader_set_end(
    reader: *mut Reader,
    index: usize,
    key: *const u8,
    key_len: usize,
) {
    guard_or((), || {
        // SAFETY: valid pointers and lengths from the shim.
        let (reader, key) = unsafe { (&mut *reader, bytes(key, key_len)) };
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
        reader.row.clear();
        reader.row.shrink_to(ROW_BYTES_KEPT);
    });
}
