//! Handles used in ways that their types do not rule out: with those of another transaction or
//! database, or after their time.

use std::sync::Arc;
use tidepool::storage::SimStorage;
use tidepool::{
    Access, ChangedIndex, CheckProgress, Cursor, Db, Error, IndexDef, Isolation, LockMode,
    LockWait, Options, ReadRequest, Sampled, Table, TableDef, Transaction, TransactionOptions,
};

fn open(seed: u64) -> Db {
    Db::open_on(Arc::new(SimStorage::new(seed)), Options::small()).unwrap()
}

fn table(db: &Db, name: &str) -> Arc<Table> {
    db.create_table(name, &TableDef::new([IndexDef::unique("primary")])).unwrap()
}

fn begin(db: &Db, isolation: Isolation) -> Transaction {
    db.begin(TransactionOptions { isolation, read_only: false })
}

fn get(trx: &mut Transaction, table: &Arc<Table>, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let found = trx.read(table, 0, ReadRequest::new(key, &mut value)).unwrap();
    found.then_some(value)
}

#[test]
fn a_table_of_another_database_is_refused() {
    let (one, other) = (open(1), open(2));
    let (mine, theirs) = (table(&one, "t"), table(&other, "t"));
    let mut trx = begin(&one, Isolation::RepeatableRead);
    trx.insert(&mine, 0, b"a", b"1").unwrap();
    let refused = trx.insert(&theirs, 0, b"b", b"2");
    assert!(matches!(refused, Err(Error::InvalidOption(_))), "{refused:?}");
    trx.commit().unwrap();
    let mut trx = begin(&other, Isolation::RepeatableRead);
    assert_eq!(get(&mut trx, &theirs, b"b"), None);
}

#[test]
fn a_savepoint_of_another_transaction_is_refused() {
    let db = open(1);
    let t = table(&db, "t");
    let mut trx = begin(&db, Isolation::RepeatableRead);
    trx.insert(&t, 0, b"a", b"1").unwrap();
    let savepoint = trx.savepoint();
    trx.insert(&t, 0, b"b", b"1").unwrap();
    trx.commit().unwrap();
    trx.insert(&t, 0, b"c", b"1").unwrap();
    trx.insert(&t, 0, b"d", b"1").unwrap();
    let refused = trx.rollback_to(savepoint);
    assert!(matches!(refused, Err(Error::InvalidOption(_))), "{refused:?}");
    assert!(!trx.must_rollback());
    trx.commit().unwrap();
    assert_eq!(get(&mut trx, &t, b"d"), Some(b"1".to_vec()));
}

#[test]
fn a_cursor_in_another_transaction_reads_what_that_one_sees() {
    let db = open(1);
    let t = table(&db, "t");
    let mut writer = begin(&db, Isolation::RepeatableRead);
    for n in 0..100u8 {
        writer.insert(&t, 0, &[n], b"old").unwrap();
    }
    writer.commit().unwrap();
    let mut cursor = Cursor::new(t.clone(), 0, LockMode::None, LockWait::Wait);
    cursor.set_expected_rows(100);
    let mut one = begin(&db, Isolation::RepeatableRead);
    assert!(cursor.first(&mut one).unwrap());
    for n in 0..100u8 {
        writer.update(&t, 0, &[n], b"new").unwrap();
    }
    writer.commit().unwrap();
    let mut other = begin(&db, Isolation::RepeatableRead);
    assert!(cursor.next(&mut other).unwrap());
    assert_eq!((cursor.key(), cursor.value()), (&[1][..], &b"new"[..]));
}

#[test]
fn a_cursor_on_no_entry_is_in_no_scan() {
    let db = open(1);
    let t = table(&db, "t");
    let cursor = Cursor::new(t, 0, LockMode::None, LockWait::Wait);
    assert_eq!(cursor.lookup_access(), Access::Normal);
}

#[test]
fn a_call_outside_of_a_statement_sees_what_is_committed_by_then() {
    let db = open(1);
    let t = table(&db, "t");
    for isolation in [Isolation::ReadUncommitted, Isolation::ReadCommitted] {
        let mut writer = begin(&db, Isolation::RepeatableRead);
        let key = [isolation as u8];
        writer.insert(&t, 0, &key, b"old").unwrap();
        writer.commit().unwrap();
        let mut reader = begin(&db, isolation);
        assert!(get(&mut reader, &t, &key).is_some());
        writer.update(&t, 0, &key, b"new").unwrap();
        writer.commit().unwrap();
        assert_eq!(get(&mut reader, &t, &key).unwrap(), b"new", "{isolation:?}");
        // Within one there is one snapshot.
        reader.begin_statement();
        let seen = get(&mut reader, &t, &key).unwrap();
        writer.update(&t, 0, &key, b"newer").unwrap();
        let newest = if isolation == Isolation::ReadUncommitted { b"newer".to_vec() } else { seen };
        writer.commit().unwrap();
        assert_eq!(get(&mut reader, &t, &key).unwrap(), newest, "{isolation:?}");
        reader.end_statement();
    }
}

/// Both handles write the same place in the file: with a counter lowered there, a crash would have
/// values given twice.
#[test]
fn counters_of_a_void_handle_leave_those_of_the_table_alone() {
    let db = open(1);
    let old = table(&db, "t");
    assert_eq!(old.reserve_auto_increment(1).unwrap(), 1);
    let index = |name, from| ChangedIndex { def: IndexDef::unique(name), from };
    let indexes = [index("primary", Some(0)), index("second", None)];
    let mut change = db.change_indexes(&db.open_table("t").unwrap(), &indexes).unwrap();
    change.build(&mut || true).unwrap();
    let new = change.commit(&[]).unwrap();
    assert_eq!(new.reserve_auto_increment(1000).unwrap(), 2);
    let missing = Err(Error::TableMissing("t".into()));
    assert_eq!(old.reserve_auto_increment(1).map(drop), missing);
    assert_eq!(old.raise_auto_increment(500), missing);
    assert_eq!(old.reset_auto_increment(1), missing);
    assert_eq!(new.reserve_auto_increment(1).unwrap(), 1002);
    db.drop_table("t").unwrap();
    assert_eq!(new.reserve_auto_increment(1).map(drop), missing);
}

/// As many row ids as the table has rows come from the new handle, and a row of the old one's would
/// be in its way.
#[test]
fn a_void_handle_gives_no_row_ids() {
    let db = open(1);
    let old = table(&db, "t");
    assert_eq!(old.next_row_id().unwrap(), 1_u64.to_be_bytes());
    let new = db.truncate_table("t").unwrap();
    let missing = Err(Error::TableMissing("t".into()));
    assert_eq!(old.next_row_id(), missing);
    assert_eq!(new.next_row_id().unwrap(), 1_u64.to_be_bytes());
    db.drop_table("t").unwrap();
    assert_eq!(new.next_row_id(), missing);
}

#[test]
fn a_void_savepoint_is_refused() {
    let db = open(1);
    let t = table(&db, "t");
    let mut trx = begin(&db, Isolation::RepeatableRead);
    let put = |trx: &mut Transaction, n: u8| {
        trx.insert(&t, 0, &[n; 9][..1 + usize::from(n)], b"1").unwrap()
    };
    put(&mut trx, 0);
    let early = trx.savepoint();
    put(&mut trx, 1);
    let void = trx.savepoint();
    put(&mut trx, 2);
    trx.rollback_to(early).unwrap();
    // As it is, and when others have come to where it was: as many, or more, of the same length or
    // another.
    for n in 0..5 {
        let refused = trx.rollback_to(void);
        assert!(
            matches!(&refused, Err(Error::InvalidOption(why)) if why.contains("void")),
            "{n}: {refused:?}"
        );
        assert!(!trx.must_rollback());
        put(&mut trx, if n == 2 { 1 } else { 3 + n });
    }
    let late = trx.savepoint();
    put(&mut trx, 2);
    trx.rollback_to(late).unwrap();
    assert_eq!(get(&mut trx, &t, &[2; 3]), None);
    assert_eq!(get(&mut trx, &t, &[1; 2]), Some(b"1".to_vec()));
    trx.rollback_to(early).unwrap();
    trx.commit().unwrap();
    assert_eq!(get(&mut trx, &t, &[1; 2]), None);
    assert_eq!(get(&mut trx, &t, &[0]), Some(b"1".to_vec()));
}

/// However many rollbacks there were before: each went back less far than the next.
#[test]
fn a_savepoint_that_is_void_after_many_rollbacks_is_refused() {
    let db = open(1);
    let t = table(&db, "t");
    let mut trx = begin(&db, Isolation::RepeatableRead);
    let put = |trx: &mut Transaction, n: u16| {
        trx.insert(&t, 0, &n.to_be_bytes(), b"1").map(drop).unwrap()
    };
    for n in 0..1000 {
        put(&mut trx, n);
        let place = trx.savepoint();
        put(&mut trx, 5000);
        trx.rollback_to(place).unwrap();
    }
    let early = trx.savepoint();
    put(&mut trx, 2000);
    let void = trx.savepoint();
    assert!(!trx.has_written_since(&void));
    trx.rollback_to(early).unwrap();
    put(&mut trx, 3000);
    assert!(trx.has_written_since(&void), "as much as before, and something else");
    put(&mut trx, 3001);
    let refused = trx.rollback_to(void);
    assert!(matches!(&refused, Err(Error::InvalidOption(_))), "{refused:?}");
    trx.commit().unwrap();
    for n in [0, 999, 3000, 3001_u16] {
        assert!(get(&mut trx, &t, &n.to_be_bytes()).is_some(), "{n}");
    }
}

/// Who is asked during a check, or shown a sample, holds nothing of the table, and may do with it
/// what he likes.
#[test]
fn who_is_called_back_may_change_the_table() {
    for rows in [1, 3000_u32] {
        let db = open(1);
        let t = table(&db, "t");
        let mut trx = begin(&db, Isolation::ReadCommitted);
        for n in 0..rows {
            trx.insert(&t, 0, &n.to_be_bytes(), &[7; 100]).unwrap();
        }
        trx.commit().unwrap();
        let mut change = |n: u32| {
            for n in [n, 1 + n % rows] {
                trx.update(&t, 0, &(n % rows).to_be_bytes(), &[8; 200]).unwrap();
            }
            trx.commit().unwrap();
        };
        let mut leaves = 0;
        let mut progress = |at: CheckProgress| {
            leaves += 1;
            change(at.entries as u32);
            true
        };
        let report = t.check(&db, &mut progress).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert!(leaves >= rows / 200 && u64::from(rows) == report.indexes[0].entries);
        t.sample_keys(0, Sampled::Entries, 5, &mut |keys, _| change(keys.len() as u32)).unwrap();
        t.sample_keys(0, Sampled::Bounds, 5, &mut |keys, _| change(keys.len() as u32)).unwrap();

        t.sample_keys(0, Sampled::Entries, 5, &mut |_, _| drop(db.drop_table("t"))).unwrap();
        assert!(db.open_table("t").is_err());
        let t = table(&db, "t");
        let drop_it = &mut |_| db.drop_table("t").is_ok();
        assert_eq!(t.check(&db, drop_it), Err(Error::TableMissing("t".into())));
        let t = table(&db, "t");
        assert!(t.check(&db, &mut |_| db.truncate_table("t").is_ok()).is_err());
    }
}

/// The values of a thread's locals are dropped in any order at its end.
#[test]
fn a_transaction_in_a_thread_local_is_rolled_back_at_the_threads_end() {
    use std::cell::RefCell;
    thread_local! {
        static KEPT: RefCell<Option<(Transaction, Db)>> = const { RefCell::new(None) };
    }
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::small()).unwrap();
    let mine = table(&db, "t");
    let mut trx = begin(&db, Isolation::RepeatableRead);
    trx.insert(&mine, 0, b"a", b"1").unwrap();
    trx.commit().unwrap();
    drop((trx, mine));
    // The last handles.
    let thread = std::thread::spawn(move || {
        KEPT.with_borrow(|_| ());
        let mine = db.open_table("t").unwrap();
        let mut trx = begin(&db, Isolation::RepeatableRead);
        for n in 0..5000u16 {
            trx.insert(&mine, 0, &n.to_be_bytes(), &[1; 500]).unwrap();
        }
        KEPT.set(Some((trx, db)));
    });
    thread.join().unwrap();
    let db = Db::open(dir.path(), Options::small()).unwrap();
    let mine = db.open_table("t").unwrap();
    let mut trx = begin(&db, Isolation::RepeatableRead);
    assert_eq!(get(&mut trx, &mine, b"a").unwrap(), b"1");
    assert_eq!(get(&mut trx, &mine, &7u16.to_be_bytes()), None);
}
