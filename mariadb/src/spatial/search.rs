// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! A search with a cursor, and how much it will find.
//!
//! The cursor goes to the first range of the window and reads on. An entry beyond the range says
//! which range is next: if it is not in that itself, the cursor seeks it. So classes and ranges
//! without entries cost nothing, and each entry beyond a range costs one seek at most.

use std::ffi::c_int;
use std::ops::{Bound, Range};
use std::sync::Arc;

use tidepool::{Cursor, Error, Seek, Table};

use super::cell::{self, CLASSES, Code, KEY_MAX, start_of};
use super::rectangle::{RECTANGLE_LEN, Rectangle, Relation};
use super::window::{Ranges, Window};
use crate::boundary::{Bytes, TP_END, TP_OK, guard, guard_or, set_last_error};
use crate::constants::{
    TP_CORRUPT, TP_ENTRY_AROUND, TP_ENTRY_DISJOINT, TP_ENTRY_EQUAL, TP_ENTRY_INSIDE, TP_INVALID,
    TP_RECTANGLE_LEN, TP_SPATIAL_CLASSES, TP_SPATIAL_KEY_MAX,
};
use crate::reader::{Entry, Reader};
use crate::transaction::ServerTransaction;

const _: () = assert!(TP_SPATIAL_KEY_MAX as usize == KEY_MAX);
const _: () = assert!(TP_SPATIAL_CLASSES as usize == CLASSES);
const _: () = assert!(TP_RECTANGLE_LEN as usize == RECTANGLE_LEN);

/// Entries between looks at whether the statement is interrupted.
const ENTRIES_BETWEEN_LOOKS: u32 = 1000;

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
        let rectangle = Rectangle::read(unsafe { self.rectangle.get() })?;
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
        let Some(rectangle) = Rectangle::read(unsafe { rectangle.get() }) else { return 0 };
        let (bytes, len) = cell::to_bytes(cell::Cell::of(&rectangle).code());
        // SAFETY: there is room.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), key, len) };
        len
    })
}

/// The value of its entry, at most `TP_RECTANGLE_LEN` bytes. Gives its length.
///
/// # Safety
/// A valid pointer and length; `value` has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_value(rectangle: Bytes, value: *mut u8) -> usize {
    guard_or(0, || {
        // SAFETY: a valid pointer and length from the shim.
        let Some(rectangle) = Rectangle::read(unsafe { rectangle.get() }) else { return 0 };
        let mut bytes = [0; RECTANGLE_LEN];
        let len = rectangle.write(&mut bytes);
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

/// Whether a rectangle is one that is searched for: 1 or 0.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_takes(request: *const SpatialRequest, entry: Bytes) -> c_int {
    guard_or(0, || {
        // SAFETY: valid pointers and lengths from the shim.
        let (window, entry) = unsafe { ((*request).window(), Rectangle::read(entry.get())) };
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
    Seek(Code),
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
    for looked_at in 1u32.. {
        let found = match go {
            Move::Seek(code) => {
                let (key, len) = cell::to_bytes(code);
                cursor.seek(&mut transaction.inner, &key[..len], Seek::AtOrAfter)?
            }
            Move::Next => cursor.next(&mut transaction.inner)?,
        };
        if !found {
            return Ok(TP_END);
        }
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
            go = Move::Seek(search.range.start);
            continue;
        }
        let Some(entry) = Rectangle::read(cursor.value()) else {
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
        unsafe { find(reader, transaction, Move::Seek(start), entry) }
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

/// About how many entries each class of an index has.
///
/// # Safety
/// Valid pointers; `counts` has room for `TP_SPATIAL_CLASSES` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_count_classes(
    table: *const Arc<Table>,
    index: usize,
    counts: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: a valid table from the shim.
        let table = unsafe { &*table };
        for class in 0..CLASSES {
            let range = start_of(class as u32)..start_of(class as u32 + 1);
            let entries = entries_in(table, index, &range)?;
            // SAFETY: there is room for all classes.
            unsafe { counts.add(class).write(entries) };
        }
        Ok(TP_OK)
    })
}

/// About how many entries a search will find, by the numbers of [`tp_spatial_count_classes`].
///
/// # Safety
/// Valid pointers and lengths; `counts` has `TP_SPATIAL_CLASSES` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_spatial_estimate(
    table: *const Arc<Table>,
    request: *const SpatialRequest,
    counts: *const u64,
    entries: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (table, request, counts) =
            unsafe { (&*table, &*request, std::slice::from_raw_parts(counts, CLASSES)) };
        // SAFETY: a valid pointer and length from the shim.
        let Some(window) = (unsafe { request.window() }) else {
            return refuse(TP_INVALID, "the window of a search in a SPATIAL index can't be read");
        };
        let found =
            estimate(&window, counts, &mut |range| entries_in(table, request.index, range))?;
        // SAFETY: entries is a valid place to store to.
        unsafe { *entries = found };
        Ok(TP_OK)
    })
}

/// Squares in a row that an estimate covers a window with, and the part of the entries of whose
/// classes it asks: each range takes two descents, before each statement.
const ESTIMATED_CELLS: u64 = 3;
const ESTIMATED_PART: f64 = 0.9;

/// The same, with `entries_in` a range.
fn estimate(
    window: &Window,
    counts: &[u64],
    entries_in: &mut dyn FnMut(&Range<Code>) -> Result<u64, Error>,
) -> Result<u64, Error> {
    let all: u64 = counts.iter().sum();
    if window.is_everywhere() {
        return Ok(all);
    }
    let mut classes: Vec<(u64, u32)> = counts.iter().copied().zip(0u32..).collect();
    classes.sort_unstable_by_key(|&(count, _)| std::cmp::Reverse(count));
    let (mut seen, mut found) = (0, 0.0);
    let mut ranges = Vec::new();
    for (count, class) in classes {
        if count == 0 || seen as f64 >= ESTIMATED_PART * all as f64 {
            break;
        }
        seen += count;
        ranges.clear();
        window.ranges_of(class, ESTIMATED_CELLS, &mut ranges);
        let mut inside = 0;
        for range in &ranges {
            inside += entries_in(range)?;
        }
        found += inside as f64 * window.part_found(class, &ranges);
    }
    // The other classes are taken to be like these.
    let scale = if seen == 0 { 1.0 } else { all as f64 / seen as f64 };
    Ok((found * scale).round() as u64)
}
