// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Result codes, the last error of a thread, and the catching of panics.
//!
//! No panic may unwind into C++: every exported function runs its body in `guard` (or `guard_or`),
//! which turns a panic into a code and a line in the log. The shim never passes a null pointer
//! where bridge.h doesn't allow one; the functions that turn pointers into references here carry
//! that as their safety contract.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tidepool::Error;

use crate::constants::*;
pub(crate) use crate::constants::{TP_DUPLICATE, TP_END, TP_NOT_FOUND, TP_OK, TP_OUT_OF_ORDER};

/// Bytes handed to C++: good until the next call on the object they came from.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    len: usize,
}

impl Bytes {
    pub(crate) const EMPTY: Bytes = Bytes { data: std::ptr::null(), len: 0 };

    pub(crate) fn of(slice: &[u8]) -> Self {
        Bytes { data: slice.as_ptr(), len: slice.len() }
    }

    /// Whether no bytes were given, not even an empty string.
    pub(crate) fn is_null(&self) -> bool {
        self.data.is_null()
    }

    /// The bytes given by the other side.
    ///
    /// # Safety
    /// As for [`bytes`].
    pub(crate) unsafe fn get<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's contract.
        unsafe { bytes(self.data, self.len) }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

pub(crate) fn set_last_error(text: String) {
    LAST_ERROR.with(|last| *last.borrow_mut() = text);
}

/// The code of an error; the text is kept for [`tp_last_error`] where a user may come to see it.
pub(crate) fn code_of(error: &Error) -> c_int {
    let code = match error {
        Error::DuplicateKey { .. } => return TP_DUPLICATE,
        Error::NotFound => return TP_NOT_FOUND,
        Error::LockWaitTimeout => return TP_LOCK_TIMEOUT,
        Error::LockNoWait => return TP_LOCK_NOWAIT,
        Error::Deadlock => return TP_DEADLOCK,
        Error::RecordChanged => return TP_RECORD_CHANGED,
        Error::TooManyLocks(_) => TP_TOO_MANY_LOCKS,
        Error::Interrupted => return TP_INTERRUPTED,
        Error::MustRollback => return TP_MUST_ROLLBACK,
        Error::ReadOnly(_) => TP_READ_ONLY,
        Error::KeyTooLong { .. } => TP_KEY_TOO_LONG,
        Error::ValueTooLong { .. } => TP_VALUE_TOO_LONG,
        Error::Key { .. } => TP_NO_KEY,
        Error::TableExists(_) => TP_TABLE_EXISTS,
        Error::TableMissing(_) => TP_TABLE_MISSING,
        Error::TableBusy(_) => TP_TABLE_BUSY,
        Error::TableDiscarded(_) => TP_TABLE_DISCARDED,
        Error::TooManyTransactions(_) => TP_TOO_MANY_TRX,
        Error::NoSpace(_) => TP_NO_SPACE,
        Error::Io { .. } | Error::Storage(_) | Error::Lost { .. } => TP_STORAGE,
        Error::Corrupt { .. } => TP_CORRUPT,
        Error::Format { .. } => TP_FORMAT,
        Error::Crashed(_) | Error::Closed => TP_CRASHED,
        Error::InvalidOption(_) => TP_INVALID,
        Error::TableChanged(_) => return TP_TABLE_CHANGED,
        _ => TP_OTHER,
    };
    set_last_error(error.to_string());
    code
}

fn report_panic(payload: &(dyn std::any::Any + Send)) {
    let what = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".to_owned());
    let text = format!("internal error: {what}");
    crate::log::line(crate::log::Level::Error, &text);
    set_last_error(text);
}

/// Runs the body of an exported function that reports success by a code.
pub(crate) fn guard(body: impl FnOnce() -> Result<c_int, Error>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => code_of(&error),
        Err(payload) => {
            report_panic(payload.as_ref());
            TP_PANIC
        }
    }
}

/// Runs the body of an exported function that gives a value; `fallback` if it panics.
pub(crate) fn guard_or<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        report_panic(payload.as_ref());
        fallback
    })
}

/// The bytes at `data`; none if it is null.
///
/// # Safety
/// `data` is null or points to `len` readable bytes that no thread writes during `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// A name given by the server. Names of tables are file names of ASCII characters; anything else is
/// taken as it is, with what is not UTF-8 replaced.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn text<'a>(data: *const c_char, len: usize) -> std::borrow::Cow<'a, str> {
    // SAFETY: the caller's contract.
    String::from_utf8_lossy(unsafe { bytes(data.cast(), len) })
}

/// Text of the last failure on this thread; see bridge.h.
///
/// # Safety
/// `buffer` points to `capacity` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_last_error(buffer: *mut c_char, capacity: usize) -> usize {
    guard_or(0, || {
        LAST_ERROR.with(|last| {
            let last = last.borrow();
            if capacity > 0 {
                let len = last.floor_char_boundary(capacity - 1);
                // SAFETY: len < capacity bytes are writable at buffer.
                unsafe {
                    std::ptr::copy_nonoverlapping(last.as_ptr(), buffer.cast(), len);
                    *buffer.add(len) = 0;
                }
            }
            last.len()
        })
    })
}

/// Sets the text of the last failure on this thread; see bridge.h.
///
/// # Safety
/// `data` is null or points to `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_set_last_error(data: *const c_char, len: usize) {
    guard_or((), || {
        // SAFETY: the caller's contract.
        set_last_error(unsafe { text(data, len) }.into_owned());
    });
}
