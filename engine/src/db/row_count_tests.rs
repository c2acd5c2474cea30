//! The number of rows of a table is exact, whatever is undone on the way, and however many tables a
//! transaction uses.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_pool::storage::SimStorage;

use super::{Db, Transaction};
use crate::catalog::{IndexDef, TableDef};
use crate::error::Error;
use crate::options::Options;
use crate::table::Table;
use crate::trx::{Isolation, TransactionOptions};

const TABLES: usize = 7;
const KEYS: u8 = 12;
/// Rolled back transactions between the others leave entries with delete marks, and purge takes
/// them away or not.
const TRANSACTIONS: usize = 400;

type Rows = Vec<BTreeSet<u8>>;

/// Inserts or deletes a row, whichever it can.
fn change(trx: &mut Transaction, table: &Arc<Table>, rows: &mut BTreeSet<u8>, key: u8) {
    if rows.remove(&key) {
        trx.delete(table, Table::CLUSTERED, &[key]).unwrap();
    } else {
        trx.insert(table, Table::CLUSTERED, &[key], b"row").unwrap();
        rows.insert(key);
    }
}

/// A row comes in, and goes again since its entry of another index is a duplicate.
fn refused_insert(trx: &mut Transaction, table: &Arc<Table>, rows: &BTreeSet<u8>) {
    let Some(key) = (0..KEYS).find(|key| !rows.contains(key)) else { return };
    let before = trx.savepoint();
    trx.insert(table, Table::CLUSTERED, &[key], b"row").unwrap();
    assert!(matches!(trx.insert(table, 1, b"taken", b""), Err(Error::DuplicateKey { .. })));
    trx.rollback_to(before).unwrap();
}

#[test]
fn rows_undone_are_not_counted() {
    let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap();
    let def = TableDef::new([IndexDef::unique("primary"), IndexDef::unique("other")]);
    let tables: Vec<_> =
        (0..TABLES).map(|n| db.create_table(&format!("t{n}"), &def).unwrap()).collect();
    let options = TransactionOptions { isolation: Isolation::RepeatableRead, read_only: false };
    let mut trx = db.begin(options);
    for table in &tables {
        trx.insert(table, 1, b"taken", b"").unwrap();
    }
    trx.commit().unwrap();

    let mut random = StdRng::seed_from_u64(7);
    let mut committed: Rows = vec![BTreeSet::new(); TABLES];
    for n in 0..TRANSACTIONS {
        let mut rows = committed.clone();
        let mut savepoints = Vec::new();
        for _ in 0..random.random_range(0..30) {
            let one = random.random_range(0..TABLES);
            match random.random_range(0..10) {
                0 => savepoints.push((trx.savepoint(), rows.clone())),
                1 if !savepoints.is_empty() => {
                    let (savepoint, then) = savepoints.pop().unwrap();
                    trx.rollback_to(savepoint).unwrap();
                    rows = then;
                }
                2 => refused_insert(&mut trx, &tables[one], &rows[one]),
                _ => {
                    let key = random.random_range(0..KEYS);
                    change(&mut trx, &tables[one], &mut rows[one], key);
                }
            }
        }
        match random.random_range(0..4) {
            0 => trx.rollback().unwrap(),
            1 => {
                let xid = n.to_be_bytes();
                trx.prepare(&xid).unwrap();
                trx.detach();
                db.commit_prepared(&xid).unwrap();
                committed = rows;
            }
            _ => {
                trx.commit().unwrap();
                committed = rows;
            }
        }
        if random.random_bool(0.2) {
            while db.trx_system().purge_step(100).unwrap() > 0 {}
        }
        let counted: Vec<_> = tables.iter().map(|table| table.rows()).collect();
        let there: Vec<_> = committed.iter().map(|rows| rows.len() as u64).collect();
        assert_eq!(counted, there, "after transaction {n}");
    }
}

fn open(sim: &SimStorage) -> Db {
    Db::open_on(Arc::new(sim.clone()), Options::small()).unwrap()
}

fn insert(trx: &mut Transaction, table: &Arc<Table>, keys: std::ops::Range<u32>) {
    for key in keys {
        trx.insert(table, Table::CLUSTERED, &key.to_be_bytes(), b"row").unwrap();
    }
}

/// A directory with `rows` committed rows in table `t`, and the transaction that goes on.
fn filled(rows: u32) -> (SimStorage, Db, Transaction) {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    insert(&mut trx, &table, 0..rows);
    trx.commit().unwrap();
    db.flush_log().unwrap();
    (sim, db, trx)
}

/// The rows of `t` as an opening finds them, and whether it had to estimate them.
fn counted(db: &Db) -> (u64, bool) {
    let table = db.open_table("t").unwrap();
    (table.rows(), table.has_estimated_rows())
}

#[test]
fn rows_are_known_after_a_crash_and_a_life_that_leaves_the_table_alone() {
    let (sim, db, trx) = filled(900);
    let sim = sim.kill();
    drop((trx, db));
    for _ in 0..2 {
        open(&sim).close().unwrap();
    }
    let db = open(&sim);
    assert_eq!(counted(&db), (900, true));
    db.close().unwrap();
    drop(db);
    // It was opened and closed cleanly: from here on the count is exact, also over a crash that
    // does not concern the table.
    let db = open(&sim);
    db.create_table("other", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let crashed = sim.kill();
    drop(db);
    assert_eq!(counted(&open(&crashed)), (900, false));
}

#[test]
fn a_count_from_before_the_last_changes_is_not_believed() {
    let (sim, db, trx) = filled(900);
    drop(trx);
    db.close().unwrap();
    drop(db);
    let db = open(&sim);
    assert_eq!(counted(&db), (900, false));
    let mut trx = db.begin(TransactionOptions::default());
    insert(&mut trx, &db.open_table("t").unwrap(), 900..1000);
    trx.commit().unwrap();
    db.flush_log().unwrap();
    let crashed = sim.kill();
    drop((trx, db));
    open(&crashed).close().unwrap();
    assert_eq!(counted(&open(&crashed)), (1000, true));
}

#[test]
fn what_a_crash_left_unfinished_is_not_counted_for_good() {
    let (sim, db, mut trx) = filled(900);
    insert(&mut trx, &db.open_table("t").unwrap(), 900..1500);
    db.flush_log().unwrap();
    let sim = sim.kill();
    drop((trx, db));
    let db = open(&sim);
    let (rows, is_estimate) = counted(&db);
    assert!(is_estimate && rows > 1200, "{rows}: those of the crash are still there");
    while db.step_rollback_recovered().unwrap() {}
    db.close().unwrap();
    drop(db);
    let db = open(&sim);
    assert_eq!(counted(&db), (900, false));
    db.close().unwrap();
    drop(db);

    // Closed before the rollback: not even then.
    let db = open(&sim);
    let mut trx = db.begin(TransactionOptions::default());
    insert(&mut trx, &db.open_table("t").unwrap(), 900..1500);
    db.flush_log().unwrap();
    let sim = sim.kill();
    drop((trx, db));
    let db = open(&sim);
    assert!(counted(&db).0 > 1200);
    db.close().unwrap();
    drop(db);
    let db = open(&sim);
    while db.step_rollback_recovered().unwrap() {}
    let (rows, is_estimate) = counted(&db);
    assert!(is_estimate && rows.abs_diff(900) < 100, "{rows}");
}

#[test]
fn rows_of_a_prepared_transaction_count_with_its_verdict() {
    for is_commit in [true, false] {
        for is_clean in [true, false] {
            let (sim, db, mut trx) = filled(900);
            let table = db.open_table("t").unwrap();
            insert(&mut trx, &table, 900..1500);
            for key in 0..100u32 {
                trx.delete(&table, Table::CLUSTERED, &key.to_be_bytes()).unwrap();
            }
            // A row that goes and comes back.
            insert(&mut trx, &table, 0..1);
            trx.prepare(b"x").unwrap();
            trx.detach();
            drop((trx, table));
            let sim = if is_clean {
                db.close().unwrap();
                sim
            } else {
                sim.kill()
            };
            drop(db);
            let expected = if is_commit { 1401 } else { 900 };
            let db = open(&sim);
            if is_clean {
                assert_eq!(counted(&db), (900, false));
            } else {
                db.open_table("t").unwrap();
            }
            match is_commit {
                true => db.commit_prepared(b"x").unwrap(),
                false => db.rollback_prepared(b"x").unwrap(),
            }
            if is_clean {
                assert_eq!(counted(&db), (expected, false));
            }
            while db.trx_system().purge_step(100).unwrap() > 0 {}
            db.close().unwrap();
            drop(db);
            let (rows, is_estimate) = counted(&open(&sim));
            let tolerated = if is_clean { 0 } else { 100 };
            assert!(!is_estimate && rows.abs_diff(expected) <= tolerated, "{is_commit}: {rows}");
        }
    }
}

#[test]
fn the_count_from_before_the_verdict_on_a_prepared_transaction_is_not_believed() {
    let (sim, db, mut trx) = filled(100);
    insert(&mut trx, &db.open_table("t").unwrap(), 100..200);
    trx.prepare(b"x").unwrap();
    trx.detach();
    drop(trx);
    db.close().unwrap();
    drop(db);
    let db = open(&sim);
    db.commit_prepared(b"x").unwrap();
    let crashed = sim.kill();
    drop(db);
    open(&crashed).close().unwrap();
    assert_eq!(counted(&open(&crashed)), (200, true));
}
