//! A table whose indexes say of each row what they must have of it.

use std::sync::Arc;
use std::time::Duration;
use tidepool::storage::SimStorage;
use tidepool::{
    ChangedIndex, Db, IndexChange, IndexDef, LockMode, LockWait, Options, ReadRequest, Result,
    RoundReport, Table, TableDef, Transaction, TransactionOptions,
};

use crate::scan::{Rows, scan};

pub fn options() -> Options {
    Options { lock_wait_timeout: Duration::ZERO, ..Options::small() }
}

pub fn open(sim: &SimStorage) -> Db {
    Db::open_on(Arc::new(sim.clone()), options()).unwrap()
}

pub fn begin(db: &Db) -> Transaction {
    db.begin(TransactionOptions::default())
}

pub fn def() -> TableDef {
    TableDef::new([IndexDef::unique("primary"), IndexDef::non_unique("by value")])
}

/// What an index has of a row, by its name. "by value" and "backward" are not unique, "unique" is
/// keyed by the value alone.
pub fn entry(index: &str, key: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    match index {
        "by value" => ([value, key].concat(), vec![]),
        "backward" => {
            (value.iter().rev().chain(key).copied().collect(), b"something to unpack".to_vec())
        }
        "unique" => (value.to_vec(), key.to_vec()),
        _ => (key.to_vec(), value.to_vec()),
    }
}

pub fn insert(trx: &mut Transaction, table: &Arc<Table>, key: &[u8], value: &[u8]) -> Result<()> {
    for (at, index) in table.def().indexes.iter().enumerate() {
        let (key, value) = entry(&index.name, key, value);
        trx.insert(table, at, &key, &value)?;
    }
    Ok(())
}

pub fn delete(trx: &mut Transaction, table: &Arc<Table>, key: &[u8]) -> Result<()> {
    let mut value = vec![];
    assert!(trx.read(
        table,
        0,
        ReadRequest::new(key, &mut value).locked(LockMode::Exclusive, LockWait::Wait)
    )?);
    for (at, index) in table.def().indexes.iter().enumerate() {
        trx.delete(table, at, &entry(&index.name, key, &value).0)?;
    }
    Ok(())
}

pub fn update(trx: &mut Transaction, table: &Arc<Table>, key: &[u8], new: &[u8]) -> Result<()> {
    let mut old = vec![];
    assert!(trx.read(
        table,
        0,
        ReadRequest::new(key, &mut old).locked(LockMode::Exclusive, LockWait::Wait)
    )?);
    trx.update(table, 0, key, new)?;
    for (at, index) in table.def().indexes.iter().enumerate().skip(1) {
        trx.delete(table, at, &entry(&index.name, key, &old).0)?;
        let (key, value) = entry(&index.name, key, new);
        trx.insert(table, at, &key, &value)?;
    }
    Ok(())
}

/// All indexes agree with the clustered one, whose rows are given back.
pub fn agree(db: &Db, table: &Arc<Table>) -> Rows {
    let mut trx = begin(db);
    let rows = scan(&mut trx, table, 0).unwrap();
    for (at, index) in table.def().indexes.iter().enumerate().skip(1) {
        let expected: Rows =
            rows.iter().map(|(key, value)| entry(&index.name, key, value)).collect();
        assert!(scan(&mut trx, table, at).unwrap() == expected, "index {}", index.name);
    }
    let report = table.check(db, &mut |_| true).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    rows
}

/// With all purged, every page leads somewhere.
pub fn nothing_is_lost(db: &Db, table: &Table) {
    while db.step_rollback_recovered().unwrap() {}
    while db.step_purge().unwrap() {}
    assert_eq!(db.status().get("history_list_length"), Some(0));
    assert_eq!(table.unreachable_pages().unwrap(), []);
}

pub fn key(n: u32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

pub fn value(n: u32) -> Vec<u8> {
    format!("value {}", n.wrapping_mul(2_654_435_761) % 1_000_003).into_bytes()
}

pub fn fill(db: &Db, table: &Arc<Table>, rows: std::ops::Range<u32>) {
    let mut trx = begin(db);
    for n in rows {
        insert(&mut trx, table, &key(n), &value(n)).unwrap();
    }
    trx.commit().unwrap();
}

/// The indexes that the table is to have, by name; those that it has keep their entries.
pub fn wanted(db: &Db, table: &str, names: &[&str]) -> Vec<ChangedIndex> {
    let now = db.table_def(table).unwrap();
    let changed = names.iter().map(|name| ChangedIndex {
        def: IndexDef { name: name.to_string(), unique: ["primary", "unique"].contains(name) },
        from: now.indexes.iter().position(|index| index.name == *name),
    });
    changed.collect()
}

pub fn feed(change: &mut IndexChange, names: &[&str]) -> Result<()> {
    while let Some((key, value)) = change.next_row()? {
        let (key, value) = (key.to_vec(), value.to_vec());
        feed_row(change, names, (&key, &value))?;
    }
    Ok(())
}

/// A row's key and value.
pub type Row<'r> = (&'r [u8], &'r [u8]);

/// Gives the new indexes' entries of a row of the snapshot.
pub fn feed_row(change: &mut IndexChange, names: &[&str], row: Row<'_>) -> Result<()> {
    let new: Vec<usize> = change.new_indexes().collect();
    for at in new {
        let (key, value) = entry(names[at], row.0, row.1);
        change.add(at, &key, &value)?;
    }
    Ok(())
}

/// A row that has changed: its key, its value before and after.
pub type Changed = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

/// Gives the new indexes' entries of a row that has changed.
pub fn edit(change: &mut IndexChange, names: &[&str], row: &Changed) -> Result<()> {
    let (row, before, after) = row;
    let new: Vec<usize> = change.new_indexes().collect();
    for at in new {
        if let Some(value) = before {
            let (key, value) = entry(names[at], row, value);
            change.remove(at, &key, &value)?;
        }
        if let Some(value) = after {
            let (key, value) = entry(names[at], row, value);
            change.add(at, &key, &value)?;
        }
    }
    Ok(())
}

/// Brings into the new indexes what was written since.
pub fn catch_up(change: &mut IndexChange, names: &[&str]) -> Result<RoundReport> {
    round(change, &|change, row| edit(change, names, row), &mut || true)
}

/// The same, by what `edit` makes of each row.
pub fn round(
    change: &mut IndexChange,
    edit: &dyn Fn(&mut IndexChange, &Changed) -> Result<()>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<RoundReport> {
    change.begin_round()?;
    while let Some(row) = next_changed(change)? {
        edit(change, &row)?;
    }
    change.end_round(go_on)
}

pub fn next_changed(change: &mut IndexChange) -> Result<Option<Changed>> {
    let row = change.next_changed_row()?;
    Ok(row.map(|row| (row.key.to_vec(), row.before.map(Vec::from), row.after.map(Vec::from))))
}

/// A change that is ready to be committed.
pub fn built(db: &Db, table: &str, names: &[&str]) -> Result<IndexChange> {
    let mut change = db.change_indexes(&db.open_table(table)?, &wanted(db, table, names))?;
    feed(&mut change, names)?;
    change.build(&mut || true)?;
    Ok(change)
}

pub fn change(db: &Db, table: &str, names: &[&str]) -> Result<Arc<Table>> {
    built(db, table, names)?.commit(&[])
}
