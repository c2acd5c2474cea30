// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Indexes that are added and dropped in place, and tables that are rebuilt.
//!
//! A `tp_index_change` is a boxed [`IndexChange`]. It gives the rows of the table one by one; the
//! shim, which knows columns and collations, gives the entries of the new indexes back.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use tidepool::{ChangedIndex, Db, DuplicateEntry, IndexChange, IndexDef, Interrupt, RoundReport};

use crate::attachment::{Attached, AttachmentChanges};
use crate::boundary::{Bytes, TP_END, TP_OK, guard, guard_or, text};
use crate::database::{FileOptions, IndexDefinition, TableMetadata};
use crate::reader::Entry;

/// An index as the change leaves it.
#[repr(C)]
pub struct ChangedIndexDefinition {
    name: *const c_char,
    name_len: usize,
    /// Which of the present trees it is; negative: a new one.
    from: i64,
    unique: u8,
}

/// A change under way, and the row last asked for.
pub struct Change {
    change: IndexChange,
    row: Vec<u8>,
}

/// Most indexes that a change adds and drops together.
#[unsafe(no_mangle)]
pub extern "C" fn tp_changed_indexes_max() -> usize {
    IndexChange::INDEXES_MAX
}

/// Begins a change; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_indexes(
    db: *const Db,
    name: *const c_char,
    name_len: usize,
    indexes: *const ChangedIndexDefinition,
    index_count: usize,
    change: *mut *mut Change,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name, indexes) = unsafe {
            (&*db, text(name, name_len), std::slice::from_raw_parts(indexes, index_count))
        };
        let indexes: Vec<_> = indexes
            .iter()
            .map(|index| {
                // SAFETY: each name is valid for its length.
                let name = unsafe { text(index.name, index.name_len) }.into_owned();
                ChangedIndex {
                    def: IndexDef { name, unique: index.unique != 0 },
                    from: usize::try_from(index.from).ok(),
                }
            })
            .collect();
        // The metadata lock keeps other changes of the table's indexes away.
        let table = db.open_table(&name)?;
        let begun = Change { change: db.change_indexes(&table, &indexes)?, row: Vec::new() };
        // SAFETY: change is a valid place to store to.
        unsafe { *change = Box::into_raw(Box::new(begun)) };
        Ok(TP_OK)
    })
}

/// Begins to rebuild a table; see bridge.h.
///
/// # Safety
/// Valid pointers and lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_rebuild_table(
    db: *const Db,
    name: *const c_char,
    name_len: usize,
    indexes: *const IndexDefinition,
    index_count: usize,
    options: *const FileOptions,
    change: *mut *mut Change,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name, options) = unsafe { (&*db, text(name, name_len), &*options) };
        // SAFETY: valid pointers and lengths from the shim.
        let def = unsafe { IndexDefinition::table(indexes, index_count, options) };
        let begun = Change { change: db.rebuild_table(&name, &def)?, row: Vec::new() };
        // SAFETY: change is a valid place to store to.
        unsafe { *change = Box::into_raw(Box::new(begun)) };
        Ok(TP_OK)
    })
}

/// A row of a table that is rebuilt, in the order of its keys.
///
/// # Safety
/// Valid pointers and lengths; no other thread uses `change`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_push_row(
    change: *mut Change,
    key: Bytes,
    value: Bytes,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (change, key, value) = unsafe { (&mut *change, key.get(), value.get()) };
        change.change.push_row(key, value)?;
        Ok(TP_OK)
    })
}

/// Has the reading of rows end when the session is interrupted.
///
/// # Safety
/// Valid pointers, `interrupt` from [`tp_interrupt_new`](crate::transaction::tp_interrupt_new);
/// no other thread uses `change`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_set_interrupt(
    change: *mut Change,
    interrupt: *const Arc<Interrupt>,
) {
    // SAFETY: a change of the shim's alone, and a valid handle.
    guard_or((), || unsafe { (*change).change.set_interrupt((*interrupt).clone()) });
}

/// The next row of the table; `TP_END` after the last.
///
/// # Safety
/// Valid pointers; no other thread uses `change`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_next_row(change: *mut Change, entry: *mut Entry) -> c_int {
    guard(|| {
        // SAFETY: a change of the shim's alone.
        let change = unsafe { &mut *change };
        let Some((key, value)) = change.change.next_row()? else { return Ok(TP_END) };
        // SAFETY: entry is a valid place to store to.
        unsafe { *entry = Entry::of(key, value) };
        Ok(TP_OK)
    })
}

/// An entry of a new index: of the build, or added by a round.
///
/// # Safety
/// Valid pointers and lengths; no other thread uses `change`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_add(
    change: *mut Change,
    index: usize,
    key: Bytes,
    value: Bytes,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (change, key, value) = unsafe { (&mut *change, key.get(), value.get()) };
        change.change.add(index, key, value)?;
        Ok(TP_OK)
    })
}

/// Fills the new indexes.
///
/// # Safety
/// Valid pointers; no other thread uses `change`; `killed` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_build(
    change: *mut Change,
    context: *mut c_void,
    killed: extern "C" fn(*mut c_void) -> c_int,
) -> c_int {
    guard(|| {
        // SAFETY: a change of the shim's alone.
        let change = unsafe { &mut *change };
        change.change.build(&mut || killed(context) == 0)?;
        Ok(TP_OK)
    })
}

/// A row that a round has found changed. Null: there was none, or there is none any more.
#[repr(C)]
pub struct ChangedRowBytes {
    key: Bytes,
    before: Bytes,
    after: Bytes,
}

/// Begins a round; see bridge.h.
///
/// # Safety
/// Valid pointers; `change` is the caller's alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_begin_round(change: *mut Change) -> c_int {
    guard(|| {
        // SAFETY: a change of the shim's alone.
        unsafe { &mut *change }.change.begin_round()?;
        Ok(TP_OK)
    })
}

/// The next row that differs; `TP_END` after the last.
///
/// # Safety
/// Valid pointers; `change` is the caller's alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_next_changed(
    change: *mut Change,
    row: *mut ChangedRowBytes,
) -> c_int {
    guard(|| {
        // SAFETY: a change of the shim's alone.
        let change = unsafe { &mut *change };
        let Some(changed) = change.change.next_changed_row()? else { return Ok(TP_END) };
        let value = |value: Option<&[u8]>| value.map_or(Bytes::EMPTY, Bytes::of);
        let found = ChangedRowBytes {
            key: Bytes::of(changed.key),
            before: value(changed.before),
            after: value(changed.after),
        };
        // SAFETY: row is a valid place to store to.
        unsafe { *row = found };
        Ok(TP_OK)
    })
}

/// An entry that the round removes from a new index.
///
/// # Safety
/// Valid pointers and lengths; `change` is the caller's alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_remove(
    change: *mut Change,
    index: usize,
    key: Bytes,
    value: Bytes,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (change, key, value) = unsafe { (&mut *change, key.get(), value.get()) };
        change.change.remove(index, key, value)?;
        Ok(TP_OK)
    })
}

/// What a round has come to: see [`RoundReport`].
#[repr(C)]
pub struct Round {
    rows: u64,
    writes_open: u64,
    writes_left: u64,
}

/// Ends a round.
///
/// # Safety
/// Valid pointers; `change` is the caller's alone; `killed` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_end_round(
    change: *mut Change,
    context: *mut c_void,
    killed: extern "C" fn(*mut c_void) -> c_int,
    round: *mut Round,
) -> c_int {
    guard(|| {
        // SAFETY: a change of the shim's alone.
        let change = unsafe { &mut *change };
        let RoundReport { rows, writes_open, writes_left } =
            change.change.end_round(&mut || killed(context) == 0)?;
        // SAFETY: a valid place to store to.
        unsafe { *round = Round { rows, writes_open, writes_left } };
        Ok(TP_OK)
    })
}

/// Takes no more writes to the table.
///
/// # Safety
/// Valid pointers; `change` is the caller's alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_stop_writes(change: *mut Change) -> c_int {
    guard(|| {
        // SAFETY: a change of the shim's alone.
        unsafe { &mut *change }.change.stop_writes()?;
        Ok(TP_OK)
    })
}

/// Stores what was found twice: of which index, and the later one of the two entries. `TP_END` if
/// nothing was.
///
/// # Safety
/// Valid pointers.
pub(crate) unsafe fn tell_duplicate(
    duplicate: Option<&DuplicateEntry>,
    index: *mut usize,
    entry: *mut Entry,
) -> c_int {
    let Some(duplicate) = duplicate else { return TP_END };
    // SAFETY: valid by the caller's promise.
    unsafe {
        *index = duplicate.index;
        *entry = Entry::of(&duplicate.key, &duplicate.value);
    }
    TP_OK
}

/// What [`tp_change_build`] or [`tp_change_end_round`] found twice; `TP_END` if nothing.
///
/// # Safety
/// Valid pointers; no other thread uses `change`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_duplicate(
    change: *const Change,
    index: *mut usize,
    entry: *mut Entry,
) -> c_int {
    guard(|| {
        // SAFETY: a change of the shim's alone.
        let change = unsafe { &*change };
        // SAFETY: valid places to store to.
        Ok(unsafe { tell_duplicate(change.change.duplicate(), index, entry) })
    })
}

/// The row with this clustered key; `TP_END` if there is none.
///
/// # Safety
/// Valid pointers and lengths; no other thread uses `change`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_row(change: *mut Change, key: Bytes, row: *mut Bytes) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (change, key) = unsafe { (&mut *change, key.get()) };
        if !change.change.row(key, &mut change.row)? {
            return Ok(TP_END);
        }
        // SAFETY: row is a valid place to store to.
        unsafe { *row = Bytes::of(&change.row) };
        Ok(TP_OK)
    })
}

/// Makes the changes, and gives tables other metadata, all at one moment; the changes are gone
/// afterwards, whatever is returned.
///
/// # Safety
/// Each of `changes` came from [`tp_change_indexes`] and is not used again; valid pointers and
/// lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_commit(
    changes: *const *mut Change,
    change_count: usize,
    tables: *const TableMetadata,
    table_count: usize,
    attached: *const AttachmentChanges,
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let attached = unsafe { Attached::of(attached) };
        // SAFETY: a valid pointer and length from the shim.
        let changes = unsafe { std::slice::from_raw_parts(changes, change_count) };
        // SAFETY: each was made by Box::into_raw in tp_change_indexes, and is given back once.
        let one = |change: &*mut Change| unsafe { Box::from_raw(*change) }.change;
        let changes: Vec<_> = changes.iter().map(one).collect();
        // SAFETY: valid pointers and lengths from the shim.
        let metadata = unsafe { TableMetadata::all(tables, table_count) };
        let metadata: Vec<_> =
            metadata.iter().map(|(name, metadata)| (&**name, *metadata)).collect();
        IndexChange::commit_all(changes, &metadata, &attached.all())?;
        Ok(TP_OK)
    })
}

/// Takes the change back.
///
/// # Safety
/// `change` came from [`tp_change_indexes`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_change_free(change: *mut Change) {
    guard_or((), || {
        // SAFETY: made by Box::into_raw in tp_change_indexes, given back once.
        drop(unsafe { Box::from_raw(change) });
    });
}
