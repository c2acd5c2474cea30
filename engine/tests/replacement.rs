//! What reaches the buffer pool's replacement: a long reading, and the rows looked up by one,
//! displace nothing.

use std::sync::Arc;

use tidepool::storage::SimStorage;
use tidepool::{
    Cursor, Db, IndexDef, LockMode, LockWait, Options, ReadRequest, Table, TableDef,
    TransactionOptions,
};

const HOT_ROWS: u32 = 2_000;
const COLD_ROWS: u32 = 60_000;

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// The secondary entry of row `n`: in an order that has nothing to do with that of the rows.
fn entry(n: u32) -> [u8; 8] {
    let mixed = n.wrapping_mul(0x9E37_79B1);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&mixed.to_be_bytes());
    bytes[4..].copy_from_slice(&key(n));
    bytes
}

fn reads(db: &Db) -> u64 {
    db.status().get("buffer_pool_reads").unwrap()
}

fn fill(db: &Db, table: &Arc<Table>, rows: u32, with_entries: bool) {
    let mut trx = db.begin(TransactionOptions::default());
    for n in 0..rows {
        trx.insert(table, 0, &key(n), &[7; 300]).unwrap();
        if with_entries {
            trx.insert(table, 1, &entry(n), b"").unwrap();
        }
        if n % 500 == 499 {
            trx.commit().unwrap();
        }
    }
    trx.commit().unwrap();
}

/// Reads the hot table row by row, each by a statement; gives how many pages had to be read.
fn read_hot(db: &Db, table: &Arc<Table>) -> u64 {
    let before = reads(db);
    let mut trx = db.begin(TransactionOptions::default());
    let mut value = Vec::new();
    for n in 0..HOT_ROWS {
        let found = trx.read(table, 0, ReadRequest::new(&key(n), &mut value)).unwrap();
        assert!(found);
    }
    reads(db) - before
}

#[test]
fn long_readings_and_reports_in_index_order_displace_nothing() {
    let options =
        Options { buffer_pool_size_bytes: 8 << 20, background: false, ..Options::default() };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    let hot = db.create_table("hot", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let indexes = [IndexDef::unique("primary"), IndexDef::non_unique("mixed")];
    let cold = db.create_table("cold", &TableDef::new(indexes)).unwrap();
    fill(&db, &cold, COLD_ROWS, true);
    fill(&db, &hot, HOT_ROWS, false);
    for _ in 0..5 {
        read_hot(&db, &hot);
    }
    assert_eq!(read_hot(&db, &hot), 0, "it is resident");

    // Not announced: the engine finds out by itself.
    let mut trx = db.begin(TransactionOptions::default());
    trx.begin_statement();
    let mut rows = Cursor::new(cold.clone(), 0, LockMode::None, LockWait::Wait);
    let mut found = rows.first(&mut trx).unwrap();
    let mut count = 0;
    while found {
        count += 1;
        found = rows.next(&mut trx).unwrap();
    }
    trx.end_statement();
    assert_eq!(count, COLD_ROWS);
    assert!(read_hot(&db, &hot) <= 3, "a long reading");

    trx.begin_statement();
    let mut entries = Cursor::new(cold.clone(), 1, LockMode::None, LockWait::Wait);
    let mut value = Vec::new();
    let mut found = entries.first(&mut trx).unwrap();
    let before = reads(&db);
    while found {
        let row = entries.key()[4..].to_vec();
        let request = ReadRequest::new(&row, &mut value).with_access(entries.lookup_access());
        assert!(trx.read(&cold, 0, request).unwrap());
        found = entries.next(&mut trx).unwrap();
    }
    assert!(reads(&db) - before > 5_000, "far more than the pool has pages");
    let lost = read_hot(&db, &hot);
    assert!(lost <= 10, "{lost} pages lost to a report in index order");
}
