// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Rows of the `information_schema` tables: the engine's reports, one `Cell` a column.
//!
//! The columns of each table are declared in `mariadb/shim/i_s_*.cc`, in the order in which they
//! are given here.

use std::ffi::{c_int, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

use tidepool::explain::{
    BufferPoolReport, CachedIndex, Covers, DeadlockReport, LockReport, MemoryDecision, Owner,
    TableFile, TransactionReport, TransactionState,
};
use tidepool::{Advice, Db, EncryptionRow, FileUsage, Isolation, LockMode};

use crate::boundary::{TP_OK, guard};
use crate::constants::{
    TP_BUFFER_POOL, TP_BUFFER_POOL_BY_INDEX, TP_CACHE_ADVICE, TP_DEADLOCKS, TP_ENCRYPTION,
    TP_LOCKS, TP_MEMORY_DECISIONS, TP_TABLE_FILES, TP_TRANSACTIONS, TP_VALUE_NAME, TP_VALUE_NULL,
    TP_VALUE_REAL, TP_VALUE_STATEMENT, TP_VALUE_TEXT, TP_VALUE_TIME, TP_VALUE_UNSIGNED,
};

const MIB: f64 = (1 << 20) as f64;

/// A column's value.
#[derive(Clone, Copy)]
enum Cell<'a> {
    Null,
    Unsigned(u64),
    Real(f64),
    Text(&'a str),
    /// Part of a table's name, as the server spells it in file names.
    Name(&'a str),
    Time(SystemTime),
    /// The statement that a connection is at.
    StatementOf(u64),
}

impl<'a> Cell<'a> {
    fn or_null<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell<'a>) -> Cell<'a> {
        value.map_or(Cell::Null, cell)
    }
}

/// A `Cell` as C++ sees it (`tp_value` in bridge.h).
#[repr(C)]
pub struct Value {
    kind: c_int,
    number: u64,
    real: f64,
    data: *const u8,
    len: usize,
}

impl Value {
    fn of(cell: &Cell<'_>) -> Value {
        let empty =
            Value { kind: TP_VALUE_NULL, number: 0, real: 0.0, data: std::ptr::null(), len: 0 };
        let text = |kind, text: &str| Value { kind, data: text.as_ptr(), len: text.len(), ..empty };
        match *cell {
            Cell::Null => empty,
            Cell::Unsigned(number) => Value { kind: TP_VALUE_UNSIGNED, number, ..empty },
            Cell::Real(real) => Value { kind: TP_VALUE_REAL, real, ..empty },
            Cell::Text(value) => text(TP_VALUE_TEXT, value),
            Cell::Name(value) => text(TP_VALUE_NAME, value),
            Cell::Time(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                Value { kind: TP_VALUE_TIME, number: since.as_micros() as u64, ..empty }
            }
            Cell::StatementOf(number) => Value { kind: TP_VALUE_STATEMENT, number, ..empty },
        }
    }
}

/// Takes a row; false: no more are wanted.
type Take<'a> = &'a mut dyn FnMut(&[Cell<'_>]) -> bool;

/// Calls `row` with every row of a table, until it answers something else than 0. `*is_truncated`:
/// there are more, for which no memory was to be spent.
///
/// # Safety
/// `db` is an open data directory; `row` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_explain(
    db: *const Db,
    table: c_int,
    context: *mut c_void,
    row: extern "C" fn(*mut c_void, *const Value, usize) -> c_int,
    is_truncated: *mut u8,
) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        let db = unsafe { &*db };
        let mut take = |cells: &[Cell<'_>]| {
            let values: Vec<Value> = cells.iter().map(Value::of).collect();
            row(context, values.as_ptr(), values.len()) == 0
        };
        match table {
            TP_BUFFER_POOL => buffer_pool(&db.buffer_pool(), &mut take),
            TP_BUFFER_POOL_BY_INDEX => {
                let page_size = db.buffer_pool().page_size_bytes;
                by_index(&db.buffer_pool_by_index(), page_size, &mut take);
            }
            TP_TRANSACTIONS => transactions(&db.transactions(), &mut take),
            TP_LOCKS => {
                let report = db.locks();
                // SAFETY: a valid place to store to.
                unsafe { *is_truncated = report.is_truncated.into() };
                locks(&report.locks, &mut take);
            }
            TP_CACHE_ADVICE => cache_advice(&db.advice(), &mut take),
            TP_MEMORY_DECISIONS => memory_decisions(&db.memory_decisions(), &mut take),
            TP_TABLE_FILES => table_files(&db.table_files(), &mut take),
            TP_ENCRYPTION => encryption(&db.encryption_report(), &mut take),
            TP_DEADLOCKS => deadlocks(&db.deadlocks(), &mut take),
            _ => {}
        }
        Ok(TP_OK)
    })
}

fn buffer_pool(pool: &BufferPoolReport, take: Take<'_>) {
    take(&[
        Cell::Text(pool.state),
        Cell::Unsigned(pool.size_bytes),
        Cell::Unsigned(pool.resident_bytes),
        Cell::Unsigned(pool.target_bytes),
        Cell::or_null(pool.ceiling_bytes, Cell::Unsigned),
        Cell::or_null(pool.limit.as_ref(), |limit| Cell::Unsigned(limit.0)),
        Cell::or_null(pool.limit.as_ref(), |limit| Cell::Text(&limit.1)),
        Cell::Text(&pool.why),
        Cell::Text(if pool.governed { "YES" } else { "NO" }),
        Cell::Unsigned(pool.page_size_bytes),
        Cell::Unsigned(pool.pages_total),
        Cell::Unsigned(pool.pages_free),
        Cell::Unsigned(pool.pages_data),
        Cell::Unsigned(pool.pages_dirty),
        Cell::Unsigned(pool.pages_old),
        Cell::Unsigned(pool.tier_bytes),
        Cell::Unsigned(pool.tier_pages),
        Cell::or_null(pool.hit_ratio(), Cell::Real),
        Cell::Unsigned(pool.longest_resize_wait_us),
    ]);
}

fn by_index(rows: &[CachedIndex], page_size: u64, take: Take<'_>) {
    let mb = |pages: u64| Cell::Real(pages as f64 * page_size as f64 / MIB);
    for row in rows {
        let (table, index) = match &row.owner {
            Owner::Index { table, index } => (Some(table), Some(index.as_str())),
            Owner::File { table } => (Some(table), None),
            Owner::Catalog => (None, Some("(catalog)")),
            Owner::Undo => (None, Some("(undo)")),
            Owner::Unknown => (None, Some("(dropped)")),
        };
        let [schema, table] = table_name(table);
        let wanted = take(&[
            schema,
            table,
            Cell::or_null(index, Cell::Text),
            Cell::Unsigned(row.pages),
            mb(row.pages),
            mb(row.pages_hot),
            mb(row.pages - row.pages_hot),
            mb(row.pages_dirty),
        ]);
        if !wanted {
            return;
        }
    }
}

/// Schema and table.
fn table_name<'a>(name: Option<&'a String>) -> [Cell<'a>; 2] {
    // A name without a slash is not the server's.
    match name.map(|name| name.split_once('/').unwrap_or(("", name))) {
        Some((schema, table)) => [Cell::Name(schema), Cell::Name(table)],
        None => [Cell::Null, Cell::Null],
    }
}

fn transactions(rows: &[TransactionReport], take: Take<'_>) {
    for row in rows {
        let requested = row.requested_lock.as_ref();
        let wanted = take(&[
            Cell::Unsigned(row.id),
            Cell::Text(match row.state {
                TransactionState::Running => "RUNNING",
                TransactionState::LockWait => "LOCK WAIT",
                TransactionState::Prepared => "PREPARED",
                TransactionState::Committing => "COMMITTING",
                TransactionState::RollingBack => "ROLLING BACK",
            }),
            Cell::or_null(row.started_at, Cell::Time),
            Cell::or_null(requested, |lock| Cell::Text(&lock.0)),
            Cell::or_null(requested, |lock| Cell::Time(lock.1)),
            Cell::Unsigned(row.weight),
            Cell::or_null(row.session, Cell::Unsigned),
            Cell::or_null(row.session, Cell::StatementOf),
            Cell::Unsigned(row.tables),
            Cell::Unsigned(row.rows_locked),
            Cell::Unsigned(row.rows_modified),
            Cell::or_null(row.isolation, |level| {
                Cell::Text(match level {
                    Isolation::ReadUncommitted => "READ UNCOMMITTED",
                    Isolation::ReadCommitted => "READ COMMITTED",
                    Isolation::RepeatableRead => "REPEATABLE READ",
                    Isolation::Serializable => "SERIALIZABLE",
                })
            }),
        ]);
        if !wanted {
            return;
        }
    }
}

/// Bytes of a key that are shown.
const KEY_BYTES_SHOWN: usize = 1024;

fn hex(key: &[u8]) -> String {
    let mut text = String::with_capacity(2 * key.len().min(KEY_BYTES_SHOWN));
    for byte in key.iter().take(KEY_BYTES_SHOWN) {
        text.push_str(&format!("{byte:02X}"));
    }
    text
}

fn locks(rows: &[LockReport], take: Take<'_>) {
    for row in rows {
        let (kind, low, high) = match &row.covers {
            Covers::Key(key) => ("RECORD", hex(key), None),
            Covers::Range(low, high) => ("RANGE", hex(low), high.as_deref().map(hex)),
        };
        let [schema, table] = table_name(row.index.as_ref().map(|index| &index.0));
        let wanted = take(&[
            Cell::Text(&row.id),
            Cell::Unsigned(row.trx),
            Cell::Text(if row.mode == LockMode::Exclusive { "X" } else { "S" }),
            Cell::Text(kind),
            Cell::Text(if row.granted { "GRANTED" } else { "WAITING" }),
            schema,
            table,
            Cell::or_null(row.index.as_ref(), |index| Cell::Text(&index.1)),
            Cell::Text(&low),
            Cell::or_null(high.as_deref(), Cell::Text),
            Cell::or_null(row.blocking.first().copied(), Cell::Unsigned),
            Cell::Unsigned(row.blocking.len() as u64),
        ]);
        if !wanted {
            return;
        }
    }
}

fn deadlocks(rows: &[DeadlockReport], take: Take<'_>) {
    for deadlock in rows {
        for (member, at) in deadlock.transactions.iter().zip(1..) {
            let [schema, table] = table_name(member.index.as_ref().map(|index| &index.0));
            let wanted = take(&[
                Cell::Unsigned(deadlock.number),
                Cell::Time(deadlock.at),
                Cell::Unsigned(at),
                Cell::Unsigned(member.id),
                Cell::or_null(member.session, Cell::Unsigned),
                Cell::or_null(member.statement.as_deref(), Cell::Text),
                schema,
                table,
                Cell::or_null(member.index.as_ref(), |index| Cell::Text(&index.1)),
                Cell::Text(&hex(&member.key)),
                Cell::Unsigned(member.undo_records),
                Cell::Text(if member.is_victim { "YES" } else { "NO" }),
            ]);
            if !wanted {
                return;
            }
        }
    }
}

fn cache_advice(advice: &Advice, take: Take<'_>) {
    for row in &advice.rows {
        let wanted = take(&[
            Cell::Real(row.size_bytes as f64 / MIB),
            Cell::Real(row.size_factor),
            Cell::Real(row.hit_ratio),
            Cell::Real(row.reads_per_second),
        ]);
        if !wanted {
            return;
        }
    }
}

fn memory_decisions(rows: &[MemoryDecision], take: Take<'_>) {
    for row in rows {
        let wanted = take(&[
            Cell::Time(row.taken_at),
            Cell::Text(&row.signal),
            Cell::Unsigned(row.from_bytes),
            Cell::Unsigned(row.to_bytes),
            Cell::Text(&row.reason),
            Cell::or_null(row.took, |took| Cell::Unsigned(took.as_micros() as u64)),
        ]);
        if !wanted {
            return;
        }
    }
}

fn encryption(rows: &[EncryptionRow], take: Take<'_>) {
    for row in rows {
        let [schema, table] = table_name(Some(&row.name));
        let is_encrypted = row.key_id.is_some();
        let (page, pages) = row.rotating.unzip();
        let number =
            |value: Option<u32>| Cell::or_null(value, |value| Cell::Unsigned(value.into()));
        let wanted = take(&[
            Cell::Unsigned(row.space.into()),
            schema,
            table,
            Cell::Unsigned(is_encrypted.into()),
            Cell::Unsigned(row.oldest_version.into()),
            Cell::Unsigned(row.newest_version.into()),
            number(page),
            number(pages),
            Cell::Unsigned(row.key_id.unwrap_or(0).into()),
            Cell::Unsigned(row.rotating.is_some().into()),
        ]);
        if !wanted {
            return;
        }
    }
}

fn table_files(rows: &[TableFile], take: Take<'_>) {
    for row in rows {
        let [schema, table] = table_name(Some(&row.table));
        let bytes = |of: fn(&FileUsage) -> u64| {
            Cell::or_null(row.usage.as_ref(), |usage| Cell::Unsigned(of(usage)))
        };
        let wanted = take(&[
            schema,
            table,
            Cell::Text(&row.file),
            bytes(|usage| usage.file_bytes),
            bytes(|usage| usage.occupied_bytes),
            bytes(|usage| usage.live_bytes),
            bytes(FileUsage::dead_bytes),
        ]);
        if !wanted {
            return;
        }
    }
}
