//! Writes of many entries at once.

use std::sync::Arc;

use tidepool::storage::SimStorage;
use tidepool::{Db, Error, IndexDef, Options, ReadRequest, Table, TableDef, TransactionOptions};

const ROWS: u64 = 12_000;

fn options() -> Options {
    Options {
        background: false,
        buffer_pool_size_bytes: 4 << 20,
        redo_capacity_bytes: 8 << 20,
        ..Options::default()
    }
}

/// A number's key: far from its neighbour's.
fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

fn value(number: u64) -> Vec<u8> {
    [&number.to_be_bytes()[..], &[number as u8; 600]].concat()
}

/// A table of twice the pool's size, opened after a restart: nothing of it is in the pool.
fn large_table(storage: &Arc<SimStorage>) -> (Db, Arc<Table>) {
    let db = Db::open_on(storage.clone(), options()).unwrap();
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("key")])).unwrap();
    for first in (0..ROWS).step_by(1000) {
        let entries: Vec<_> = (first..first + 1000).map(|n| (key(2 * n), value(2 * n))).collect();
        db.write(|trx| trx.insert_many(&table, Table::CLUSTERED, &entries)).unwrap();
    }
    drop(table);
    db.close().unwrap();
    let db = Db::open_on(storage.clone(), options()).unwrap();
    let table = db.open_table("t").unwrap();
    (db, table)
}

fn rows(db: &Db, table: &Arc<Table>) -> u64 {
    db.read(|trx| {
        let mut range = trx.range::<&[u8]>(table, ..);
        let mut rows = 0;
        while range.next()?.is_some() {
            rows += 1;
        }
        Ok(rows)
    })
    .unwrap()
}

fn status(db: &Db, name: &str) -> u64 {
    db.status().get(name).unwrap()
}

#[test]
fn leaves_of_a_batch_are_read_ahead() {
    let (db, table) = large_table(&Arc::new(SimStorage::new(1)));
    let (ahead, waited) = (status(&db, "buffer_pool_read_ahead"), status(&db, "buffer_pool_reads"));
    let entries: Vec<_> = (0..1000).map(|n| (key(2 * n * 39 + 1), value(2 * n * 39 + 1))).collect();
    db.write(|trx| trx.insert_many(&table, Table::CLUSTERED, &entries)).unwrap();
    let ahead = status(&db, "buffer_pool_read_ahead") - ahead;
    let waited = status(&db, "buffer_pool_reads") - waited;
    assert!(ahead > 300 && waited < ahead / 5, "{ahead} read ahead, {waited} waited for");
    let mut found = Vec::new();
    let mut trx = db.begin(TransactionOptions::default());
    for n in (0..1000).map(|n| 2 * n * 39 + 1) {
        let key = key(n);
        let request = ReadRequest::new(&key, &mut found);
        assert!(trx.read(&table, Table::CLUSTERED, request).unwrap());
        assert_eq!(found, value(n));
    }
    drop(trx);
    assert_eq!(rows(&db, &table), ROWS + 1000);
}

#[test]
fn of_a_batch_with_a_duplicate_nothing_is_inserted() {
    let (db, table) = large_table(&Arc::new(SimStorage::new(2)));
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, Table::CLUSTERED, &key(1), b"before").unwrap();
    for twice in [key(0), key(7)] {
        let mut entries: Vec<_> = (0..500).map(|n| (key(2 * n + 3), b"new")).collect();
        entries.push((twice, b"new"));
        let error = trx.insert_many(&table, Table::CLUSTERED, &entries).unwrap_err();
        assert!(matches!(error, Error::DuplicateKey { .. }), "{error}");
        assert_eq!(trx.get(&table, &key(3)).unwrap(), None);
    }
    let error = trx.insert_many(&table, 1, &[(key(3), b"new")]).unwrap_err();
    assert!(matches!(error, Error::NoIndex { .. }), "{error}");
    trx.insert_many::<&[u8], &[u8]>(&table, Table::CLUSTERED, &[]).unwrap();
    trx.commit().unwrap();
    assert_eq!(db.read(|trx| trx.get(&table, &key(1))).unwrap().as_deref(), Some(&b"before"[..]));
    assert_eq!(rows(&db, &table), ROWS + 1);
}
