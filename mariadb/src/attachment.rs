// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Attachments of definitions: the server's own files of a table, as the engine's catalog keeps
//! them.

use std::borrow::Cow;
use std::ffi::{c_char, c_int, c_void};

use tidepool::{Attachment, Db};

use crate::boundary::{TP_NOT_FOUND, TP_OK, bytes, guard, text};

/// One attachment as a change leaves it; see bridge.h.
#[repr(C)]
pub struct AttachmentChange {
    name: *const c_char,
    name_len: usize,
    kind: u8,
    is_removed: u8,
    data: *const u8,
    len: usize,
}

/// Some of them.
#[repr(C)]
pub struct AttachmentChanges {
    all: *const AttachmentChange,
    count: usize,
}

/// The same with names that are surely UTF-8.
pub(crate) struct Attached<'a>(Vec<AttachedOne<'a>>);

/// A table's name, a kind, and the bytes or none.
type AttachedOne<'a> = (Cow<'a, str>, u8, Option<&'a [u8]>);

impl<'a> Attached<'a> {
    /// Those of a change; none if the pointer is null.
    ///
    /// # Safety
    /// Null or a valid pointer, with valid pointers and lengths, for as long as the result is used.
    pub(crate) unsafe fn of(changes: *const AttachmentChanges) -> Self {
        // SAFETY: null or valid, as the caller says.
        let changes = match unsafe { changes.as_ref() } {
            Some(changes) if changes.count > 0 => changes,
            _ => return Attached(Vec::new()),
        };
        // SAFETY: count > 0 of them are there, as the caller says.
        let all = unsafe { std::slice::from_raw_parts(changes.all, changes.count) };
        let one = |change: &AttachmentChange| {
            // SAFETY: each pointer is valid for its length.
            let (name, data) =
                unsafe { (text(change.name, change.name_len), bytes(change.data, change.len)) };
            (name, change.kind, (change.is_removed == 0).then_some(data))
        };
        Attached(all.iter().map(one).collect())
    }

    /// As the engine wants them.
    pub(crate) fn all(&self) -> Vec<Attachment<'_>> {
        self.0
            .iter()
            .map(|(name, kind, bytes)| Attachment { name, kind: *kind, bytes: *bytes })
            .collect()
    }
}

/// Gives an attachment to `take`; `TP_NOT_FOUND` if there is none.
///
/// # Safety
/// Valid pointers and lengths; `take` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_attachment(
    db: *const Db,
    name: *const c_char,
    name_len: usize,
    kind: u8,
    context: *mut c_void,
    take: extern "C" fn(*mut c_void, *const u8, usize),
) -> c_int {
    guard(|| {
        // SAFETY: valid pointers and lengths from the shim.
        let (db, name) = unsafe { (&*db, text(name, name_len)) };
        let Some(bytes) = db.attachment(&name, kind)? else { return Ok(TP_NOT_FOUND) };
        take(context, bytes.as_ptr(), bytes.len());
        Ok(TP_OK)
    })
}
