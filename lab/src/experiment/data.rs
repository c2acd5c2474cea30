//! The tables that several experiments use, all in proportion to the memory that an experiment
//! pretends to have.
//!
//! One set, so that it is made once: a large table of 3.7 times the memory, and some that fit a
//! pool of an eighth of it.

use crate::engine::Engine;
use crate::lab::Settings;
use crate::load::tables::{DataSet, Table};

/// Rows of the large table for each GiB of memory: with its index 3.7 GiB.
const ROWS_PER_GIB: u64 = 16_000_000;
const GIB: u64 = 1 << 30;
/// Bytes of a row in the clustered index: what an OLTP on sysbench's table needs in the pool.
const CLUSTERED_ROW_BYTES: u64 = 215;

/// Rows of the large table.
fn rows(memory_bytes: u64) -> u64 {
    (u128::from(memory_bytes) * u128::from(ROWS_PER_GIB) / u128::from(GIB)) as u64
}

/// The large table, first, and those that fit the pool.
pub(super) fn tables(memory_bytes: u64) -> DataSet {
    let mut tables = vec![Table::new("sbtest", rows(memory_bytes))];
    tables.extend(resident_tables(memory_bytes));
    DataSet::of_tables("tables", tables)
}

/// These tables for each of the engines, for an experiment that needs no others.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    for_all(settings, &[tables(settings.memory_bytes)])
}

/// The pool that the resident tables fit: an eighth of the large table.
pub(super) fn pool_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 16 * 7
}

/// Rows of a table that takes this many bytes in the pool.
pub(super) fn rows_of(bytes: u64) -> u64 {
    bytes / CLUSTERED_ROW_BYTES
}

/// The tables that fit the pool, by the percentage of it that they take.
fn resident_tables(memory_bytes: u64) -> Vec<Table> {
    let pool_bytes = pool_bytes(memory_bytes);
    let table = |name: &str, percent| Table::new(name, rows_of(pool_bytes / 100 * percent));
    vec![table("hot45", 45), table("other45", 45), table("hot85", 85), table("small", 5)]
}

/// A statement that reads the first rows of a table.
pub(super) fn read_all(table: &str, rows: u64) -> String {
    format!("SELECT SUM(LENGTH(pad)) FROM {table} FORCE INDEX (PRIMARY) WHERE id <= {rows}")
}

/// The same data for every engine.
pub(super) fn for_all(settings: &Settings, data: &[DataSet]) -> Vec<(Engine, DataSet)> {
    let pairs = settings
        .engines
        .iter()
        .flat_map(|&engine| data.iter().map(move |data| (engine, data.clone())));
    pairs.collect()
}

/// Data for Tidepool alone, if it is among the engines.
pub(super) fn for_tidepool(settings: &Settings, data: Vec<DataSet>) -> Vec<(Engine, DataSet)> {
    let chosen = settings.engines.contains(&Engine::Tidepool);
    data.into_iter().filter(|_| chosen).map(|data| (Engine::Tidepool, data)).collect()
}
