// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! A search with a cursor, and how much it will find.
//!
//! The cursor goes to the first range of the window and reads on. An entry beyond the range says
//! which range is next. If the entry is before that, the cursor skips to the range, once it has
//! used up the few entries that it has copied. So classes and ranges without entries cost nothing.

use std::ffi::c_int;
use std::ops::{Bound, Range};
use std::sync::Arc;

use tidepool::{Cursor, Error, Table};

use super::cell::{self, Code, KEY_MAX};
use super::rectangle::{self, IMAGE_LEN, Rectangle, Relation, VALUE_MAX};
use super::statistics::Statistics;
use super::window::{Ranges, Window};
use crate::boundary::{Bytes, TP_END, TP_OK, guard, guard_or, set_last_error};
use crate::constants::{
    TP_CORRUPT, TP_ENTRY_AROUND, TP_ENTRY_DISJOINT, TP_ENTRY_EQUAL, TP_ENTRY_INSIDE, TP_INVALID,
    TP_RECTANGLE_LEN, TP_SPATIAL_KEY_MAX, TP_SPATIAL_VALUE_MAX,
};
use crate::reader::{Entry, Reader};
use crate::transaction::ServerTransaction;

const _: () = assert!(TP_SPATIAL_KEY_MAX as usize == KEY_MAX);
const _: () = assert!(TP_RECTANGLE_LEN as usize == IMAGE_LEN);
const _: () = assert!(TP_SPATIAL_VALUE_MAX as usize == VALUE_MAX);

/// Entries between looks at whether the statement is interrupted.
const ENTRIES_BETWEEN_LOOKS: u32 = 1000;

/// Entries that the cursor copies at once after it has skipped. Often one is enough to know which
/// range is next.
const ENTRIES_COPIED: u32 = 2;

/// What is searched for; see bridge.h.
#[repr(C)]
pub struct SpatialRequest {
    index: usize,
    rectangle: Bytes,
    relation: c_int,
}

impl SpatialRequest {
    /// # Safety
    /// A valid pointer and length.
    unsafe fn window(&self) -> Option<Window> {
        // SAFETY: the caller's contract.
        let rectangle = Rectangle::of_image(unsafe { self.rectangle.get() })?;
        Some(Window::new(relation(self.relation), rectangle))
    }
}

/// A `tp_spatial_relation`.
fn relation(number: c_int) -> Relation {
    match number {
        TP_ENTRY_INSIDE => Relation::Inside,
        TP_ENTRY_AROUND => Relation::Around,
        TP_ENTRY_DISJOINT => Relation::Disjoint,
        TP_ENTRY_EQUAL => Relation::Equal,
        _ => Relation::Intersects,
    }
}

fn refuse(code: c_int, text: &str) -> Result<c_int, Error> {
    set_last_error(text.to_owned());
    Ok(code)
}

/// The key of a rectangle, without the clustered key behind it. Gives its length; 0: that is no
/// rectangle.
///
/// # Safety
/// A valid pointer and length; `key` has room for `TP_SPATIAL_KEY_MAX` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_key(rectangle: Bytes, key: *mut u8) -> usize {
    guard_or(0, || {
        // SAFETY: a valid pointer and length from the shim.
        let Some(rectangle) = Rectangle::of_image(unsafe { rectangle.get() }) else { return 0 };
        let (bytes, len) = cell::to_bytes(cell::Cell::of(&rectangle).code());
        // SAFETY: there is room.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), key, len) };
        len
    })
}

/// What the value of its entry begins with, at most `TP_SPATIAL_VALUE_MAX` bytes. Gives its length.
///
/// # Safety
/// A valid pointer and length; `value` has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_value(rectangle: Bytes, value: *mut u8) -> usize {
    guard_or(0, || {
        // SAFETY: a valid pointer and length from the shim.
        let Some(rectangle) = Rectangle::of_image(unsafe { rectangle.get() }) else { return 0 };
        let mut bytes = [0; VALUE_MAX];
        let len = rectangle.put_value(&mut bytes);
        // SAFETY: there is room.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value, len) };
        len
    })
}

/// How long a key is that begins with this byte; 0: none does.
#[unsafe(no_mangle)]
pub extern "C" fn tp_spatial_key_len(first: u8) -> usize {
    cell::key_len(first).unwrap_or(0)
}

/// How long the rectangle is in a value that begins with this byte; 0: none does.
#[unsafe(no_mangle)]
pub extern "C" fn tp_spatial_value_len(first: u8) -> usize {
    rectangle::value_len(first).unwrap_or(0)
}

/// Whether a rectangle is one that is searched for: 1 or 0.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_takes(request: *const SpatialRequest, entry: Bytes) -> c_int {
    guard_or(0, || {
        // SAFETY: valid pointers and lengths from the shim.
        let (window, entry) = unsafe { ((*request).window(), Rectangle::of_image(entry.get())) };
        let (Some(window), Some(entry)) = (window, entry) else { return 0 };
        window.takes(&entry).into()
    })
}

/// A search under way.
#[derive(Debug)]
pub(crate) struct Search {
    index: usize,
    ranges: Ranges,
    /// The range that the cursor is in, or was last.
    range: Range<Code>,
}

/// How the cursor gets to the next entry that is looked at.
enum Move {
    Skip(Code),
    Next,
}

/// Goes on until an entry is found that is searched for. A `TP_*` code.
fn advance(
    search: &mut Search,
    cursor: &mut Cursor,
    transaction: &mut ServerTransaction,
    first: Move,
) -> Result<c_int, Error> {
    let mut go = first;
    let mut since_skip = 0;
    for looked_at in 1u32.. {
        let found = match go {
            Move::Skip(code) => {
                let (key, len) = cell::to_bytes(code);
                cursor.set_expected_rows(ENTRIES_COPIED as usize);
                since_skip = 0;
                cursor.skip_to(&mut transaction.inner, &key[..len])?
            }
            Move::Next => cursor.next(&mut transaction.inner)?,
        };
        if !found {
            return Ok(TP_END);
        }
        since_skip += 1;
        if looked_at.is_multiple_of(ENTRIES_BETWEEN_LOOKS) && transaction.is_interrupted() {
            return Err(Error::Interrupted);
        }
        let Some(code) = cell::from_bytes(cursor.key()) else {
            return refuse(TP_CORRUPT, "a key of a SPATIAL index can't be read: run CHECK TABLE");
        };
        if code >= search.range.end {
            match search.ranges.next_from(code) {
                Some(range) => search.range = range,
                None => return Ok(TP_END),
            }
        }
        if code < search.range.start {
            go = match since_skip < ENTRIES_COPIED {
                true => Move::Next,
                false => Move::Skip(search.range.start),
            };
            continue;
        }
        let Some(entry) = Rectangle::of_value(cursor.value()) else {
            return refuse(
                TP_CORRUPT,
                "an entry of a SPATIAL index can't be read: run CHECK TABLE",
            );
        };
        if search.ranges.window().takes(&entry) {
            return Ok(TP_OK);
        }
        go = Move::Next;
    }
    Ok(TP_END)
}

/// Goes on with the search of the reader, and stores the entry that it finds.
///
/// # Safety
/// `entry` is a valid place to store to.
unsafe fn find(
    reader: &mut Reader,
    transaction: &mut ServerTransaction,
    first: Move,
    entry: *mut Entry,
) -> Result<c_int, Error> {
    let Some(mut search) = reader.search.take() else {
        return refuse(TP_INVALID, "there is no search to go on with");
    };
    let cursor = reader.cursor(search.index);
    let result = advance(&mut search, cursor, transaction, first);
    if matches!(result, Ok(TP_OK)) {
        // SAFETY: the caller's contract.
        unsafe { *entry = Entry::of(cursor.key(), cursor.value()) };
    }
    reader.search = Some(search);
    result
}

/// Begins a search, and gives its first entry; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_first(
    reader: *mut Reader,
    transaction: *mut ServerTransaction,
    request: *const SpatialRequest,
    entry: *mut Entry,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (reader, transaction, request) =
            unsafe { (&mut *reader, &mut *transaction, &*request) };
        // SAFETY: a valid pointer and length from the shim.
        let Some(window) = (unsafe { request.window() }) else {
            return refuse(TP_INVALID, "the window of a search in a SPATIAL index can't be read");
        };
        let mut ranges = Ranges::of(window);
        let Some(range) = ranges.next_from(0) else { return Ok(TP_END) };
        let start = range.start;
        reader.search = Some(Search { index: request.index, ranges, range });
        // SAFETY: entry is a valid place to store to.
        unsafe { find(reader, transaction, Move::Skip(start), entry) }
    })
}

/// The next entry of the search that was begun last.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_next(
    reader: *mut Reader,
    transaction: *mut ServerTransaction,
    entry: *mut Entry,
) -> c_int {
    // SAFETY: valid pointers from the shim.
    guard(|| unsafe { find(&mut *reader, &mut *transaction, Move::Next, entry) })
}

/// Entries of an index with keys from `range`.
fn entries_in(table: &Table, index: usize, range: &Range<Code>) -> Result<u64, Error> {
    let ((low, low_len), (high, high_len)) =
        (cell::to_bytes(range.start), cell::to_bytes(range.end));
    let (low, high) = (Bound::Included(&low[..low_len]), Bound::Excluded(&high[..high_len]));
    table.estimate_range(index, low, high)
}

/// Counts where the entries of an index are; see bridge.h.
///
/// # Safety
/// Valid pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_count(
    table: *const Arc<Table>,
    index: usize,
    statistics: *mut *mut Statistics,
) -> c_int {
    guard(|| {
        // SAFETY: a valid table from the shim.
        let table = unsafe { &*table };
        let counted = Statistics::count(&mut |range| entries_in(table, index, range))?;
        // SAFETY: a valid place to store to.
        unsafe { *statistics = Box::into_raw(Box::new(counted)) };
        Ok(TP_OK)
    })
}

/// Gives them back.
///
/// # Safety
/// `statistics` came from [`tp_spatial_count`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_statistics_free(statistics: *mut Statistics) {
    guard_or((), || {
        // SAFETY: made by Box::into_raw in tp_spatial_count, given back once.
        drop(unsafe { Box::from_raw(statistics) });
    });
}

/// About how many entries a search will find, in an index that has as many as there are rows.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_estimate(
    statistics: *const Statistics,
    request: *const SpatialRequest,
    rows: u64,
) -> u64 {
    guard_or(0, || {
        // SAFETY: valid pointers and lengths from the shim.
        let (statistics, window) = unsafe { (&*statistics, (*request).window()) };
        window.map_or(0, |window| statistics.estimate(&window, rows))
    })
}
