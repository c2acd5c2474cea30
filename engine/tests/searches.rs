//! Searches: a statement reads an index without locks, and locks the rows that it has found there
//! by their keys. What others have done to them in between it meets, or fails.

use std::sync::Arc;

use tidepool::storage::SimStorage;
use tidepool::{
    Cursor, Db, Error, IndexDef, Isolation, LockMode, LockWait, Options, ReadRequest, Result,
    Table, TableDef, Transaction, TransactionOptions,
};

const CLUSTERED: usize = Table::CLUSTERED;
const INDEX: usize = 1;
const ROWS: u8 = 9;
const LEVELS: [Isolation; 3] =
    [Isolation::ReadUncommitted, Isolation::ReadCommitted, Isolation::RepeatableRead];

fn open() -> (Db, Arc<Table>) {
    let db = Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap();
    let def = TableDef::new([IndexDef::unique("primary"), IndexDef::unique("index")]);
    let table = db.create_table("t", &def).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    (1..=ROWS).for_each(|row| insert(&mut trx, &table, row));
    trx.commit().unwrap();
    (db, table)
}

fn begin(db: &Db, isolation: Isolation) -> Transaction {
    db.begin(TransactionOptions { isolation, read_only: false })
}

fn insert(trx: &mut Transaction, table: &Arc<Table>, row: u8) {
    trx.insert(table, CLUSTERED, &[row], b"old").unwrap();
    trx.insert(table, INDEX, &[row], &[row]).unwrap();
}

fn move_row(trx: &mut Transaction, table: &Arc<Table>, from: u8, to: u8) {
    insert(trx, table, to);
    trx.move_away(table, CLUSTERED, &[from]).unwrap();
    trx.move_away(table, INDEX, &[from]).unwrap();
}

fn delete(trx: &mut Transaction, table: &Arc<Table>, row: u8) {
    trx.delete(table, CLUSTERED, &[row]).unwrap();
    trx.delete(table, INDEX, &[row]).unwrap();
}

/// The rows that a search finds in the index.
fn search(trx: &mut Transaction, table: &Arc<Table>) -> Vec<u8> {
    trx.set_searching(true);
    let mut cursor = Cursor::new(table.clone(), INDEX, LockMode::None, LockWait::Wait);
    let mut found = Vec::new();
    let mut more = cursor.first(trx).unwrap();
    while more {
        found.push(cursor.key()[0]);
        more = cursor.next(trx).unwrap();
    }
    trx.set_searching(false);
    found
}

/// Locks a row that a search has found: whether it is there, and whether it may be newer than the
/// search.
fn lock(trx: &mut Transaction, table: &Arc<Table>, row: u8) -> Result<Option<bool>> {
    let key = [row];
    let request = ReadRequest::presence(&key).locked(LockMode::Exclusive, LockWait::NoWait);
    trx.set_searching(true);
    let found = trx.read(table, CLUSTERED, request);
    trx.set_searching(false);
    Ok(found?.then_some(trx.read_is_recent()))
}

#[test]
fn a_row_found_is_met_as_it_is_or_has_moved() {
    for isolation in LEVELS {
        let (db, table) = open();
        let mut statement = begin(&db, isolation);
        statement.begin_statement();
        let all: Vec<u8> = (1..=ROWS).collect();
        assert_eq!(search(&mut statement, &table), all);
        let mut other = begin(&db, Isolation::ReadCommitted);
        other.update(&table, CLUSTERED, &[2], b"new").unwrap();
        delete(&mut other, &table, 3);
        delete(&mut other, &table, 4);
        other.commit().unwrap();
        // Another row comes to the place of one that is deleted, and moves.
        insert(&mut other, &table, 4);
        other.commit().unwrap();
        move_row(&mut other, &table, 4, 40);
        other.commit().unwrap();
        assert_eq!(search(&mut statement, &table), all, "by the same view");
        assert_eq!(lock(&mut statement, &table, 1), Ok(Some(false)));
        assert_eq!(lock(&mut statement, &table, 2), Ok(Some(true)));
        assert_eq!(lock(&mut statement, &table, 3), Ok(None));
        assert_eq!(lock(&mut statement, &table, 4), Ok(None));
        statement.end_statement();
        // Nothing of that is a snapshot.
        let mut value = Vec::new();
        statement.begin_statement();
        assert!(statement.read(&table, CLUSTERED, ReadRequest::new(&[2], &mut value)).unwrap());
        assert_eq!(value, b"new", "{isolation:?}");
        statement.end_statement();
        statement.rollback().unwrap();
    }
}

#[test]
fn a_row_found_that_has_moved_is_an_error() {
    for (isolation, another_comes) in LEVELS.into_iter().flat_map(|l| [(l, false), (l, true)]) {
        let (db, table) = open();
        let mut statement = begin(&db, isolation);
        statement.begin_statement();
        assert_eq!(search(&mut statement, &table).len(), usize::from(ROWS));
        let mut other = begin(&db, Isolation::ReadCommitted);
        move_row(&mut other, &table, 5, 50);
        other.commit().unwrap();
        if another_comes {
            insert(&mut other, &table, 5);
            other.commit().unwrap();
        }
        assert_eq!(lock(&mut statement, &table, 6), Ok(Some(false)));
        assert_eq!(lock(&mut statement, &table, 5), Err(Error::RecordChanged), "{isolation:?}");
        statement.rollback().unwrap();
    }
}

/// What others have not committed is nothing to a search, at any level.
#[test]
fn a_search_finds_what_was_committed() {
    for isolation in LEVELS {
        let (db, table) = open();
        let mut other = begin(&db, Isolation::ReadCommitted);
        insert(&mut other, &table, 20);
        delete(&mut other, &table, 1);
        let mut statement = begin(&db, isolation);
        statement.begin_statement();
        assert_eq!(search(&mut statement, &table), (1..=ROWS).collect::<Vec<u8>>());
        assert_eq!(lock(&mut statement, &table, 1), Err(Error::LockNoWait));
        other.rollback().unwrap();
        assert_eq!(lock(&mut statement, &table, 1), Ok(Some(false)));
        // Its own writes are.
        insert(&mut statement, &table, 30);
        assert!(search(&mut statement, &table).contains(&30));
        statement.end_statement();
        statement.rollback().unwrap();
    }
}

#[test]
fn a_search_sees_beyond_a_snapshot() {
    let (db, table) = open();
    let mut other = begin(&db, Isolation::ReadCommitted);
    let mut trx = begin(&db, Isolation::RepeatableRead);
    trx.ensure_view();
    trx.begin_statement();
    assert_eq!(search(&mut trx, &table).len(), usize::from(ROWS));
    assert!(!trx.searches_beyond_snapshot(), "nothing has changed");
    trx.end_statement();
    insert(&mut other, &table, 20);
    delete(&mut other, &table, 1);
    other.commit().unwrap();
    trx.begin_statement();
    let found = search(&mut trx, &table);
    assert_eq!(found, [2, 3, 4, 5, 6, 7, 8, 9, 20]);
    assert!(trx.searches_beyond_snapshot());
    // Purge must leave what the snapshot sees once the statement's view is closed.
    trx.end_statement();
    assert!(!trx.searches_beyond_snapshot());
    assert!(trx.read(&table, CLUSTERED, ReadRequest::presence(&[1])).unwrap());
    assert!(!trx.read(&table, CLUSTERED, ReadRequest::presence(&[20])).unwrap());
    trx.begin_statement();
    assert_eq!(search(&mut trx, &table), found);
    assert_eq!(lock(&mut trx, &table, 2), Ok(Some(false)));
    assert_eq!(lock(&mut trx, &table, 20), Err(Error::RecordChanged));
    trx.rollback().unwrap();
    // Where what has changed may be locked, the search needs no more than the statement's view.
    db.set_lost_update_check(false);
    trx.ensure_view();
    insert(&mut other, &table, 21);
    delete(&mut other, &table, 2);
    other.commit().unwrap();
    trx.begin_statement();
    assert_eq!(search(&mut trx, &table), [3, 4, 5, 6, 7, 8, 9, 20, 21]);
    assert!(!trx.searches_beyond_snapshot());
    assert_eq!(lock(&mut trx, &table, 21), Ok(Some(false)));
    move_row(&mut other, &table, 3, 33);
    other.commit().unwrap();
    assert_eq!(lock(&mut trx, &table, 3), Err(Error::RecordChanged));
    trx.rollback().unwrap();
}
