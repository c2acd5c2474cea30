// Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only
//! Rows of the `information_schema` tables: the engine's reports, one [`Cell`] a column.
//!
//! The columns of each table are declared in `mariadb/shim/i_s_*.cc`, in the order in which they are given here.

use std::ffi::{c_int, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

use tidepool::Db;
use tidepool::explain::{BufferPoolReport, CachedIndex, Owner};

use crate::boundary::{TP_OK, guard};

const MIB: f64 = (1 << 20) as f64;

/// A column's value.
#[derive(Clone, Copy)]
#[expect(dead_code, reason = "times come with the tables that have them")]
enum Cell<'a> {
    Null,
    Unsigned(u64),
    Real(f64),
    Text(&'a str),
    /// Part of a table's name, as the server spells it in file names.
    Name(&'a str),
    Time(SystemTime),
}

impl<'a> Cell<'a> {
    fn or_null<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell<'a>) -> Cell<'a> {
        value.map_or(Cell::Null, cell)
    }
}

/// A [`Cell`] as C++ sees it (`tp_value` in bridge.h).
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
        let empty = Value { kind: 0, number: 0, real: 0.0, data: std::ptr::null(), len: 0 };
        let text = |kind, text: &str| Value { kind, data: text.as_ptr(), len: text.len(), ..empty };
        match *cell {
            Cell::Null => empty,
            Cell::Unsigned(number) => Value { kind: 1, number, ..empty },
            Cell::Real(real) => Value { kind: 2, real, ..empty },
            Cell::Text(value) => text(3, value),
            Cell::Name(value) => text(4, value),
            Cell::Time(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                Value { kind: 5, number: since.as_micros() as u64, ..empty }
            }
        }
    }
}

/// Takes a row; false: no more are wanted.
type Take<'a> = &'a mut dyn FnMut(&[Cell<'_>]) -> bool;

/// Calls `row` with every row of a table, until it answers something else than 0.
///
/// # Safety
/// `db` is an open data directory; `row` may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_explain(
    db: *const Db,
    table: c_int,
    context: *mut c_void,
    row: extern "C" fn(*mut c_void, *const Value, usize) -> c_int,
) -> c_int {
    guard(|| {
        // SAFETY: an open data directory from the shim.
        let db = unsafe { &*db };
        let mut take = |cells: &[Cell<'_>]| {
            let values: Vec<Value> = cells.iter().map(Value::of).collect();
            row(context, values.as_ptr(), values.len()) == 0
        };
        match table {
            1 => buffer_pool(&db.buffer_pool(), &mut take),
            2 => {
                let page_size = db.buffer_pool().page_size_bytes;
                by_index(&db.buffer_pool_by_index(), page_size, &mut take);
            }
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
        // A name without a slash is not the server's.
        let (schema, table) = match table.map(|name| name.split_once('/').unwrap_or(("", name))) {
            Some((schema, table)) => (Cell::Name(schema), Cell::Name(table)),
            None => (Cell::Null, Cell::Null),
        };
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
