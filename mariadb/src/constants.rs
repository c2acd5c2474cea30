// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! The constants of `shim/bridge.h`. `tests/bridge` compares the two.

#![expect(
    dead_code,
    reason = "the header is listed whole; a few values are the default of a match"
)]

use std::ffi::c_int;

// Result codes.
pub(crate) const TP_OK: c_int = 0;
pub(crate) const TP_END: c_int = 1;
pub(crate) const TP_DUPLICATE: c_int = 2;
pub(crate) const TP_NOT_FOUND: c_int = 3;
pub(crate) const TP_LOCK_TIMEOUT: c_int = 4;
pub(crate) const TP_LOCK_NOWAIT: c_int = 5;
pub(crate) const TP_DEADLOCK: c_int = 6;
pub(crate) const TP_RECORD_CHANGED: c_int = 7;
pub(crate) const TP_INTERRUPTED: c_int = 8;
pub(crate) const TP_MUST_ROLLBACK: c_int = 9;
pub(crate) const TP_READ_ONLY: c_int = 10;
pub(crate) const TP_KEY_TOO_LONG: c_int = 11;
pub(crate) const TP_VALUE_TOO_LONG: c_int = 12;
pub(crate) const TP_TABLE_EXISTS: c_int = 13;
pub(crate) const TP_TABLE_MISSING: c_int = 14;
pub(crate) const TP_TABLE_BUSY: c_int = 15;
pub(crate) const TP_TOO_MANY_TRX: c_int = 16;
pub(crate) const TP_NO_SPACE: c_int = 17;
pub(crate) const TP_STORAGE: c_int = 18;
pub(crate) const TP_CORRUPT: c_int = 19;
pub(crate) const TP_FORMAT: c_int = 20;
pub(crate) const TP_CRASHED: c_int = 21;
pub(crate) const TP_INVALID: c_int = 22;
pub(crate) const TP_PANIC: c_int = 23;
pub(crate) const TP_OTHER: c_int = 24;
pub(crate) const TP_TABLE_CHANGED: c_int = 25;
pub(crate) const TP_OUT_OF_ORDER: c_int = 26;
pub(crate) const TP_NO_KEY: c_int = 27;
pub(crate) const TP_TOO_MANY_LOCKS: c_int = 28;
pub(crate) const TP_TABLE_DISCARDED: c_int = 29;

// Isolation levels.
pub(crate) const TP_READ_UNCOMMITTED: c_int = 0;
pub(crate) const TP_READ_COMMITTED: c_int = 1;
pub(crate) const TP_REPEATABLE_READ: c_int = 2;
pub(crate) const TP_SERIALIZABLE: c_int = 3;

// How a read locks.
pub(crate) const TP_LOCK_NONE: c_int = 0;
pub(crate) const TP_LOCK_SHARED: c_int = 1;
pub(crate) const TP_LOCK_EXCLUSIVE: c_int = 2;

// What a lock that another transaction holds means.
pub(crate) const TP_WAIT: c_int = 0;
pub(crate) const TP_NO_WAIT: c_int = 1;
pub(crate) const TP_SKIP_LOCKED: c_int = 2;

// What a point read gives of a value.
pub(crate) const TP_READ_WHOLE: c_int = 0;
pub(crate) const TP_READ_PREFIX: c_int = 1;
pub(crate) const TP_READ_NOTHING: c_int = 2;

// Where a seek ends.
pub(crate) const TP_AT_OR_AFTER: c_int = 0;
pub(crate) const TP_AFTER: c_int = 1;
pub(crate) const TP_AT_OR_BEFORE: c_int = 2;
pub(crate) const TP_BEFORE: c_int = 3;

// SPATIAL indexes.
pub(crate) const TP_SPATIAL_KEY_MAX: c_int = 13;
pub(crate) const TP_SPATIAL_VALUE_MAX: c_int = 33;
pub(crate) const TP_RECTANGLE_LEN: c_int = 32;

// How an entry of a SPATIAL index lies to the window of a search.
pub(crate) const TP_ENTRY_INTERSECTS: c_int = 0;
pub(crate) const TP_ENTRY_INSIDE: c_int = 1;
pub(crate) const TP_ENTRY_AROUND: c_int = 2;
pub(crate) const TP_ENTRY_DISJOINT: c_int = 3;
pub(crate) const TP_ENTRY_EQUAL: c_int = 4;

// Severity of a line of the log.
pub(crate) const TP_LOG_ERROR: c_int = 0;
pub(crate) const TP_LOG_WARNING: c_int = 1;
pub(crate) const TP_LOG_NOTE: c_int = 2;

// What files are for.
pub(crate) const TP_FILE_TABLE: c_int = 0;
pub(crate) const TP_FILE_REDO: c_int = 1;
pub(crate) const TP_FILE_UNDO: c_int = 2;
pub(crate) const TP_FILE_SYSTEM: c_int = 3;
pub(crate) const TP_FILE_SORT: c_int = 4;
pub(crate) const TP_FILE_OTHER: c_int = 5;

// What is done with files.
pub(crate) const TP_FILE_READ: c_int = 0;
pub(crate) const TP_FILE_WRITE: c_int = 1;
pub(crate) const TP_FILE_SYNC: c_int = 2;
pub(crate) const TP_FILE_RESIZE: c_int = 3;

// Replacement policies.
pub(crate) const TP_REPLACEMENT_TIDE: c_int = 0;
pub(crate) const TP_REPLACEMENT_MIDPOINT: c_int = 1;
pub(crate) const TP_MEMORY_AUTO: c_int = 0;
pub(crate) const TP_MEMORY_KEEP: c_int = 1;
pub(crate) const TP_MEMORY_RETURN: c_int = 2;
pub(crate) const TP_COMPRESSION_AUTO: c_int = 0;
pub(crate) const TP_COMPRESSION_OFF: c_int = 1;
pub(crate) const TP_COMPRESSION_LZ4: c_int = 2;
pub(crate) const TP_COMPRESSION_ZSTD: c_int = 3;

// Which tables are encrypted that do not say.
pub(crate) const TP_ENCRYPT_OFF: c_int = 0;
pub(crate) const TP_ENCRYPT_ON: c_int = 1;
pub(crate) const TP_ENCRYPT_FORCE: c_int = 2;

// What a table says.
pub(crate) const TP_ENCRYPTED_DEFAULT: c_int = 0;
pub(crate) const TP_ENCRYPTED_YES: c_int = 1;
pub(crate) const TP_ENCRYPTED_NO: c_int = 2;

// What to do with the list of hot pages.
pub(crate) const TP_HOT_LIST_DUMP: c_int = 0;
pub(crate) const TP_HOT_LIST_LOAD: c_int = 1;
pub(crate) const TP_HOT_LIST_ABORT: c_int = 2;

// Tables of information_schema.
pub(crate) const TP_BUFFER_POOL: c_int = 1;
pub(crate) const TP_BUFFER_POOL_BY_INDEX: c_int = 2;
pub(crate) const TP_TRANSACTIONS: c_int = 3;
pub(crate) const TP_LOCKS: c_int = 4;
pub(crate) const TP_CACHE_ADVICE: c_int = 5;
pub(crate) const TP_MEMORY_DECISIONS: c_int = 6;
pub(crate) const TP_TABLE_FILES: c_int = 7;
pub(crate) const TP_DEADLOCKS: c_int = 8;
pub(crate) const TP_ENCRYPTION: c_int = 9;

// Kinds of a value in such a table.
pub(crate) const TP_VALUE_NULL: c_int = 0;
pub(crate) const TP_VALUE_UNSIGNED: c_int = 1;
pub(crate) const TP_VALUE_REAL: c_int = 2;
pub(crate) const TP_VALUE_TEXT: c_int = 3;
pub(crate) const TP_VALUE_NAME: c_int = 4;
pub(crate) const TP_VALUE_TIME: c_int = 5;
pub(crate) const TP_VALUE_STATEMENT: c_int = 6;

// Where nothing is written any more.
pub(crate) const TP_FORCE_READ_ONLY: c_int = 3;

/// The engine has the same level.
const _: () = assert!(tidepool::ForceRecovery::ReadOnly as c_int == TP_FORCE_READ_ONLY);
