//! The number of rows of a table is exact, whatever is undone on the way, and however many tables a transaction uses.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_pool::storage::SimStorage;

use super::{Db, Trx};
use crate::catalog::{IndexDef, TableDef};
use crate::error::Error;
use crate::options::Options;
use crate::table::Table;
use crate::trx::{Isolation, TrxOptions};

const TABLES: usize = 7;
const KEYS: u8 = 12;
/// Rolled back transactions between the others leave entries with delete marks, and purge takes them away or not.
const TRANSACTIONS: usize = 400;

type Rows = Vec<BTreeSet<u8>>;

/// Inserts or deletes a row, whichever it can.
fn change(trx: &mut Trx, table: &Arc<Table>, rows: &mut BTreeSet<u8>, key: u8) {
    if rows.remove(&key) {
        trx.delete(table, Table::CLUSTERED, &[key]).unwrap();
    } else {
        trx.insert(table, Table::CLUSTERED, &[key], b"row").unwrap();
        rows.insert(key);
    }
}

/// A row comes in, and goes again since its entry of another index is a duplicate.
fn refused_insert(trx: &mut Trx, table: &Arc<Table>, rows: &BTreeSet<u8>) {
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
    let options = TrxOptions { isolation: Isolation::RepeatableRead, read_only: false };
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
