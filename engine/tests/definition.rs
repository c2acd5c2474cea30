//! Tables: created, dropped, renamed, truncated; what survives a restart and a crash; who may stand
//! in the way.

use std::ops::Bound;
use std::sync::Arc;
use tidepool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool::{
    Cursor, Db, DefinitionChange, Error, IndexDef, LockMode, LockWait, NewRow, Options,
    ReadRequest, Result, Seek, Table, TableDef, Transaction, TransactionOptions,
};

fn options() -> Options {
    Options::small()
}

fn open(sim: &SimStorage) -> Db {
    Db::open_on(Arc::new(sim.clone()), options()).unwrap()
}

fn def() -> TableDef {
    TableDef::new([IndexDef::unique("primary"), IndexDef::non_unique("second")])
}

fn begin(db: &Db) -> Transaction {
    db.begin(TransactionOptions::default())
}

fn get(trx: &mut Transaction, table: &Arc<Table>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut value = vec![];
    let found = trx.read(table, 0, ReadRequest::new(key, &mut value))?;
    Ok(found.then_some(value))
}

fn fill(db: &Db, table: &Arc<Table>, rows: u32) {
    let mut trx = begin(db);
    for row in 0..rows {
        trx.insert(table, 0, &row.to_be_bytes(), b"some value").unwrap();
        trx.insert(table, 1, &[&b"second"[..], &row.to_be_bytes()].concat(), b"").unwrap();
    }
    trx.commit().unwrap();
}

fn table_files(sim: &SimStorage) -> Vec<String> {
    sim.list("tables").unwrap()
}

#[test]
fn a_table_is_there_until_it_is_dropped() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let mut named = def();
    named.metadata = b"columns and such".to_vec();
    let table = db.create_table("shop/Käufe", &named).unwrap();
    assert_eq!(
        db.create_table("shop/Käufe", &def()).unwrap_err(),
        Error::TableExists("shop/Käufe".into())
    );
    fill(&db, &table, 10);
    assert_eq!(table_files(&sim), ["00000010.tpd"]);
    drop(table);
    db.close().unwrap();
    drop(db);

    let db = open(&sim);
    assert_eq!(db.table_names().unwrap(), ["shop/Käufe"]);
    assert!(db.table_exists("shop/Käufe").unwrap());
    assert_eq!(db.table_def("shop/Käufe").unwrap(), named);
    let table = db.open_table("shop/Käufe").unwrap();
    assert_eq!(
        (table.def(), table.name(), table.index_count()),
        (&named, "shop/Käufe".to_string(), 2)
    );
    assert!(Arc::ptr_eq(&table, &db.open_table("shop/Käufe").unwrap()));
    db.set_table_metadata("shop/Käufe", b"other").unwrap();
    assert_eq!(db.table_def("shop/Käufe").unwrap().metadata, b"other");

    db.drop_table("shop/Käufe").unwrap();
    assert!(!db.table_exists("shop/Käufe").unwrap());
    assert!(table_files(&sim).is_empty());
    let missing = Error::TableMissing("shop/Käufe".into());
    assert_eq!(db.drop_table("shop/Käufe").unwrap_err(), missing);
    assert_eq!(db.open_table("shop/Käufe").unwrap_err(), missing);
    assert_eq!(get(&mut begin(&db), &table, b"x").unwrap_err(), missing);
    assert_eq!(table.statistics().unwrap_err(), missing);
    let again = db.create_table("shop/Käufe", &def()).unwrap();
    assert_eq!(table_files(&sim), ["00000011.tpd"]);
    assert_eq!(get(&mut begin(&db), &again, &0u32.to_be_bytes()).unwrap(), None);
    assert_ne!(again.id(), table.id());
}

#[test]
fn a_table_in_use_is_not_dropped() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 10);
    let busy = Error::TableBusy("t".into());
    assert_eq!(
        busy.to_string(),
        "table 't' is in use by an unfinished transaction or change of its definition: end it and try again"
    );
    let mut trx = begin(&db);
    assert!(get(&mut trx, &table, &1u32.to_be_bytes()).unwrap().is_some());
    assert_eq!(db.drop_table("t").unwrap_err(), busy);
    assert_eq!(db.truncate_table("t").unwrap_err(), busy);
    // A rename is no concern of a transaction's.
    db.rename_table("t", "u").unwrap();
    trx.insert(&table, 0, b"new", b"").unwrap();
    assert_eq!(db.drop_table("u").unwrap_err(), Error::TableBusy("u".into()));
    trx.rollback().unwrap();
    let table = db.truncate_table("u").unwrap();
    let mut trx = begin(&db);
    trx.insert(&table, 0, b"new", b"").unwrap();
    drop(trx);
    db.drop_table("u").unwrap();
}

#[test]
fn a_rename_is_atomic_and_keeps_handles() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("a", &def()).unwrap();
    db.create_table("b", &def()).unwrap();
    fill(&db, &table, 10);
    assert_eq!(db.rename_table("a", "b").unwrap_err(), Error::TableExists("b".into()));
    assert_eq!(db.rename_table("x", "y").unwrap_err(), Error::TableMissing("x".into()));
    db.rename_table("a", "c").unwrap();
    assert_eq!(table.name(), "c");
    assert!(Arc::ptr_eq(&table, &db.open_table("c").unwrap()));
    let sim = sim.crash();
    let db = open(&sim);
    assert_eq!(db.table_names().unwrap(), ["b", "c"]);
    assert_eq!(db.open_table("c").unwrap().id(), table.id());
}

#[test]
fn indexes_can_be_renamed() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 10);
    let names = |db: &Db| -> Vec<String> {
        db.table_def("t").unwrap().indexes.into_iter().map(|index| index.name).collect()
    };
    // Beside a transaction that has used the table.
    let mut trx = begin(&db);
    assert_eq!(trx.delete(&table, 0, &1u32.to_be_bytes()), Ok(()));
    db.rename_indexes("t", &["first", "primary"]).unwrap();
    trx.commit().unwrap();
    assert_eq!(names(&db), ["first", "primary"]);
    for wrong in [&["first"][..], &["first", "first"], &["first", ""]] {
        let error = db.rename_indexes("t", wrong).unwrap_err();
        assert!(matches!(error, Error::InvalidOption(_)), "{error}");
        assert!(db.learn_index_names("t", wrong).is_err());
    }
    assert_eq!(db.rename_indexes("u", &["a"]), Err(Error::TableMissing("u".into())));
    assert!(!db.table_def("t").unwrap().indexes[1].unique);
    drop((trx, table));
    let db = open(&sim.crash());
    assert_eq!(names(&db), ["first", "primary"]);
    db.learn_index_names("t", &["first", "other"]).unwrap();
    assert_eq!(names(&db), ["first", "other"]);
    let table = db.open_table("t").unwrap();
    assert!(table.check(&db, &mut |_| true).unwrap().is_clean());
    db.close().unwrap();
}

#[test]
fn row_ids_follow_whatever_the_table_holds() {
    let id = |n: u64| n.to_be_bytes();
    let def = TableDef::new([IndexDef::unique("#row_id")]);
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def).unwrap();
    let mut trx = begin(&db);
    for n in 1..=3 {
        assert_eq!(table.next_row_id().unwrap(), id(n));
        trx.insert(&table, 0, &id(n), b"").unwrap();
    }
    trx.commit().unwrap();
    drop((trx, table));

    // The greatest entry is one that is deleted and not purged; then one that is not committed.
    let sim = sim.crash();
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    let mut trx = begin(&db);
    trx.delete(&table, 0, &id(3)).unwrap();
    trx.commit().unwrap();
    let lsn = db.current_lsn();
    assert_eq!(table.next_row_id().unwrap(), id(4));
    assert_eq!(db.current_lsn(), lsn, "it costs no write");
    trx.insert(&table, 0, &id(4), b"").unwrap();
    trx.prepare(b"x").unwrap();
    drop((trx, table));

    let sim = sim.crash();
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!(table.next_row_id().unwrap(), id(5));
    db.rollback_prepared(b"x").unwrap();
    assert_eq!(table.next_row_id().unwrap(), id(6));
    let mut trx = begin(&db);
    trx.insert(&table, 0, &id(u64::MAX - 1), b"").unwrap();
    trx.commit().unwrap();
    drop((trx, table));

    let sim = sim.crash();
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!(table.next_row_id(), Err(Error::RowIdsUsedUp("t".into())));
    let table = db.truncate_table("t").unwrap();
    assert_eq!(table.next_row_id().unwrap(), id(1));
    let mut trx = begin(&db);
    trx.insert(&table, 0, b"seven b", b"").unwrap();
    trx.commit().unwrap();
    drop((trx, table));
    let sim = sim.crash();
    let db = open(&sim);
    let error = db.open_table("t").unwrap().next_row_id().unwrap_err();
    assert!(error.to_string().contains("a key of 7 bytes where row ids have 8"), "{error}");
}

#[test]
fn a_truncated_table_is_empty_and_new() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let old = db.create_table("t", &def()).unwrap();
    fill(&db, &old, 500);
    old.reserve_auto_increment(77).unwrap();
    let new = db.truncate_table("t").unwrap();
    assert_eq!((new.id(), new.rows(), new.auto_increment()), (old.id(), 0, 1));
    assert_ne!(new.space_id(), old.space_id());
    assert_eq!(table_files(&sim).len(), 1);
    let mut trx = begin(&db);
    assert_eq!(get(&mut trx, &new, &1u32.to_be_bytes()).unwrap(), None);
    assert_eq!(
        get(&mut trx, &old, &1u32.to_be_bytes()).unwrap_err(),
        Error::TableMissing("t".into())
    );
    trx.commit().unwrap();
    fill(&db, &new, 5);
    let db = open(&sim.crash());
    let table = db.open_table("t").unwrap();
    assert_eq!(table.space_id(), new.space_id());
    assert_eq!(table.rows(), 5);
}

/// There are no versions from before: the snapshot would see an empty table, and take it for the
/// truth.
#[test]
fn a_snapshot_older_than_the_table_is_refused() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 3);
    drop(table);
    let old_snapshot = || {
        let mut trx = begin(&db);
        trx.ensure_view();
        trx
    };
    let changed = Error::TableChanged("t".into());
    let key = 1u32.to_be_bytes();

    let mut old = old_snapshot();
    let table = db.truncate_table("t").unwrap();
    fill(&db, &table, 3);
    assert_eq!(get(&mut old, &table, &key).unwrap_err(), changed);
    let mut cursor = Cursor::new(table.clone(), 0, LockMode::None, LockWait::Wait);
    assert_eq!(cursor.first(&mut old).unwrap_err(), changed);
    // Not even after it has written there.
    old.insert(&table, 0, b"own", b"").unwrap();
    assert_eq!(get(&mut old, &table, b"own").unwrap_err(), changed);
    old.rollback().unwrap();
    assert_eq!(get(&mut old, &table, &key).unwrap().as_deref(), Some(&b"some value"[..]));
    old.commit().unwrap();
    drop((cursor, table));

    // A copy that is filled, and then takes the name of what it is a copy of.
    let copy = db.create_table("copy", &def()).unwrap();
    let mut old = old_snapshot();
    fill(&db, &copy, 3);
    db.drop_table("t").unwrap();
    put_in_place(&db, "copy", "t");
    assert_eq!(get(&mut old, &copy, &key).unwrap_err(), changed);
    old.rollback().unwrap();
    assert!(get(&mut old_snapshot(), &copy, &key).unwrap().is_some());
    drop(copy);

    // A read that locks must not miss what was there: the copy does not tell of a row that was
    // deleted before.
    let gone = 2u32.to_be_bytes();
    let mut old = old_snapshot();
    let table = db.open_table("t").unwrap();
    let mut trx = begin(&db);
    trx.delete(&table, 0, &gone).unwrap();
    trx.commit().unwrap();
    drop(table);
    let copy = db.create_table("copy", &def()).unwrap();
    trx.insert(&copy, 0, &key, b"some value").unwrap();
    trx.commit().unwrap();
    db.drop_table("t").unwrap();
    put_in_place(&db, "copy", "t");
    let (mode, wait) = (LockMode::Exclusive, LockWait::Wait);
    let mut value = vec![];
    for key in [key, gone] {
        assert_eq!(
            old.read(&copy, 0, ReadRequest::new(&key, &mut value).locked(mode, wait)).unwrap_err(),
            changed
        );
    }
    let mut cursor = Cursor::new(copy.clone(), 0, mode, wait);
    assert_eq!(cursor.seek(&mut old, &gone, Seek::AtOrAfter).unwrap_err(), changed);
    // Nothing is lost by a new row, nor by one that is overwritten where that is no error.
    old.insert(&copy, 0, b"new", b"").unwrap();
    db.set_lost_update_check(false);
    assert!(old.read(&copy, 0, ReadRequest::new(&key, &mut value).locked(mode, wait)).unwrap());
    db.set_lost_update_check(true);
    old.rollback().unwrap();
    assert!(old.read(&copy, 0, ReadRequest::new(&key, &mut value).locked(mode, wait)).unwrap());
    old.commit().unwrap();

    // One that a session has for itself.
    let mut old = old_snapshot();
    let own = db.create_table("own", &def()).unwrap();
    own.set_temporary();
    old.insert(&own, 0, b"own", b"new").unwrap();
    assert_eq!(get(&mut old, &own, b"own").unwrap().as_deref(), Some(&b"new"[..]));
}

/// Renames a copy that was filled to its original's name.
fn put_in_place(db: &Db, copy: &str, name: &str) {
    let renames = &[(copy, name)];
    let change = DefinitionChange { renames, replacements: &[copy], ..Default::default() };
    db.change_tables(&change).unwrap();
}

#[test]
fn a_snapshot_reads_a_renamed_table_as_it_was() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 3);
    let key = 1u32.to_be_bytes();
    let mut old = begin(&db);
    old.ensure_view();
    let mut trx = begin(&db);
    trx.update(&table, 0, &key, b"newer").unwrap();
    trx.commit().unwrap();
    db.rename_table("t", "u").unwrap();
    let renamed = db.open_table("u").unwrap();
    assert_eq!(get(&mut old, &renamed, &key).unwrap().as_deref(), Some(&b"some value"[..]));
    // A table that takes the name has rows of its time.
    let other = db.create_table("t", &def()).unwrap();
    fill(&db, &other, 1);
    let changed = Error::TableChanged("t".into());
    assert_eq!(get(&mut old, &other, &key).unwrap_err(), changed);
    old.commit().unwrap();
    assert_eq!(get(&mut old, &renamed, &key).unwrap().as_deref(), Some(&b"newer"[..]));

    // A table that was there and takes the other's place: under that name it has other rows than at
    // the snapshot's time. It has not under a third name, nor if it comes back to its first.
    let mut old = begin(&db);
    old.ensure_view();
    db.rename_table("u", "v").unwrap();
    db.rename_table("t", "u").unwrap();
    let moved = db.open_table("v").unwrap();
    assert_eq!(get(&mut old, &moved, &key).unwrap().as_deref(), Some(&b"newer"[..]));
    let swapped = db.open_table("u").unwrap();
    assert_eq!(get(&mut old, &swapped, &key).unwrap_err(), Error::TableChanged("u".into()));
    old.commit().unwrap();
    let mut old = begin(&db);
    old.ensure_view();
    db.rename_table("v", "w").unwrap();
    db.rename_table("w", "v").unwrap();
    assert_eq!(get(&mut old, &moved, &key).unwrap().as_deref(), Some(&b"newer"[..]));
    old.commit().unwrap();
}

#[test]
fn a_definition_change_cut_off_by_a_crash_leaves_no_file_behind() {
    // Every operation on the disk that creating, filling, truncating and dropping take, cut off
    // once.
    let ddl = |db: &Db| -> Result<()> {
        let table = db.create_table("t", &def())?;
        begin(db).insert(&table, 0, b"k", b"v")?;
        db.truncate_table("t")?;
        db.rename_table("t", "u")?;
        db.drop_table("u")
    };
    for cut in 1.. {
        let sim = SimStorage::new(cut);
        let db = open(&sim);
        let keep = db.create_table("keep", &def()).unwrap();
        fill(&db, &keep, 3);
        sim.crash_at(sim.operation_count() + cut);
        let done = ddl(&db).is_ok();
        let sim = sim.crash();
        let db = open(&sim);
        let names = db.table_names().unwrap();
        assert!(names.contains(&"keep".to_string()), "cut {cut}");
        assert_eq!(table_files(&sim).len(), names.len(), "cut {cut}: {names:?}");
        for name in &names {
            let table = db.open_table(name).unwrap();
            assert!(table.check(&db, &mut |_| true).unwrap().is_clean(), "cut {cut}: {name}");
        }
        let t = db.create_table("new", &def()).unwrap();
        fill(&db, &t, 3);
        if done {
            assert_eq!(names, ["keep"]);
            break;
        }
    }
}

#[test]
fn auto_increment_survives() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    assert_eq!(table.auto_increment(), 1);
    assert_eq!(table.reserve_auto_increment(3).unwrap(), 1);
    table.raise_auto_increment(1000).unwrap();
    table.raise_auto_increment(10).unwrap();
    assert_eq!(table.reserve_auto_increment(1).unwrap(), 1000);
    db.close().unwrap();
    drop((table, db));

    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!(table.auto_increment(), 1001, "exact after a clean shutdown");
    assert_eq!(table.reserve_auto_increment(1).unwrap(), 1001);
    fill(&db, &table, 1);

    let db = open(&sim.crash());
    let table = db.open_table("t").unwrap();
    let next = table.auto_increment();
    assert!((1002..1200).contains(&next), "{next} after a crash");
    table.reset_auto_increment(5).unwrap();
    assert_eq!(table.reserve_auto_increment(1).unwrap(), 5);
}

fn insert_numbered(trx: &mut Transaction, table: &Arc<Table>, number: u64) -> Result<()> {
    table.expect_auto_increment(number + 1);
    trx.insert_row(
        table,
        NewRow {
            key: &number.to_be_bytes(),
            value: b"a row",
            on_duplicate: LockMode::None,
            auto_increment: Some(number + 1),
        },
    )
}

#[test]
fn numbers_that_rows_had_are_not_given_again_and_no_others_are_skipped() {
    let crashed = |sim: &SimStorage| {
        let sim = sim.crash();
        let db = open(&sim);
        let table = db.open_table("t").unwrap();
        (sim, db, table)
    };
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    let mut trx = begin(&db);
    (1..=5).for_each(|number| insert_numbered(&mut trx, &table, number).unwrap());
    trx.delete(&table, 0, &5_u64.to_be_bytes()).unwrap();
    trx.commit().unwrap();
    // Given, and used by no row.
    table.expect_auto_increment(40);
    drop((trx, table, db));
    let (sim, db, table) = crashed(&sim);
    assert_eq!(table.auto_increment(), 6);
    // A number stays used when its row is rolled back, and when another has come before it.
    let mut trx = begin(&db);
    insert_numbered(&mut trx, &table, 41).unwrap();
    insert_numbered(&mut trx, &table, 40).unwrap();
    trx.rollback().unwrap();
    assert_eq!(table.auto_increment(), 42);
    insert_numbered(&mut trx, &table, 30).unwrap();
    trx.commit().unwrap();
    drop((trx, table, db));
    let (sim, db, table) = crashed(&sim);
    assert_eq!(table.auto_increment(), 42);
    // A row that is not inserted uses none.
    let row = NewRow {
        key: &30_u64.to_be_bytes(),
        value: b"",
        on_duplicate: LockMode::None,
        auto_increment: Some(900),
    };
    let mut trx = begin(&db);
    let duplicate = trx.insert_row(&table, row).unwrap_err();
    assert!(matches!(duplicate, Error::DuplicateKey { .. }), "{duplicate}");
    trx.rollback().unwrap();
    // Nor does a clean close.
    table.expect_auto_increment(70);
    drop((trx, table));
    db.close().unwrap();
    drop(db);
    assert_eq!(open(&sim).open_table("t").unwrap().auto_increment(), 42);
}

/// Wherever the engine is cut off, the next number follows the last row of the log.
#[test]
fn a_crash_anywhere_leaves_the_next_number_exact() {
    for cut in 1.. {
        let sim = SimStorage::new(cut);
        let db = open(&sim);
        let table = db.create_table("t", &def()).unwrap();
        sim.crash_at(sim.operation_count() + cut);
        let mut committed = 0;
        let mut work = || -> Result<()> {
            let mut trx = begin(&db);
            for number in 1..=30 {
                insert_numbered(&mut trx, &table, number)?;
                match number % 7 {
                    3 => trx.rollback()?,
                    5 => {
                        trx.delete(&table, 0, &number.to_be_bytes())?;
                        trx.commit()?;
                    }
                    _ => trx.commit()?,
                }
                if number % 7 != 3 {
                    committed = number;
                }
                // Pages are written, and the log is cut, in the middle of it.
                if number % 10 == 0 {
                    while db.step_cleaner()? {}
                    db.step_checkpoint()?;
                }
            }
            Ok(())
        };
        let done = work().is_ok();
        drop(table);
        drop(db);
        let db = open(&sim.crash());
        let table = db.open_table("t").unwrap();
        let next = table.auto_increment();
        // After the last commit at most a row that was rolled back, and one without an answer.
        assert!((committed + 1..=committed + 3).contains(&next.max(1)), "cut {cut}: {next}");
        let mut trx = begin(&db);
        insert_numbered(&mut trx, &table, next).unwrap();
        trx.commit().unwrap();
        if done {
            assert_eq!(next, 31);
            break;
        }
    }
}

#[test]
fn a_counter_that_was_set_is_durable() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    table.reset_auto_increment(5000).unwrap();
    let sim = sim.crash();
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!(table.auto_increment(), 5000);
    table.reset_auto_increment(7).unwrap();
    let sim = sim.crash();
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!(table.auto_increment(), 7);
    // Where it can't be made so, no caller gets a success.
    sim.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("redo/").always());
    assert!(table.reset_auto_increment(9).is_err());
}

#[test]
fn rows_are_counted() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 2000);
    assert_eq!(table.rows(), 2000);
    let mut trx = begin(&db);
    trx.delete(&table, 0, &7u32.to_be_bytes()).unwrap();
    let savepoint = trx.savepoint();
    trx.delete(&table, 0, &8u32.to_be_bytes()).unwrap();
    trx.rollback_to(savepoint).unwrap();
    trx.commit().unwrap();
    trx.delete(&table, 0, &9u32.to_be_bytes()).unwrap();
    trx.rollback().unwrap();
    assert_eq!(table.rows(), 1999);
    drop(trx);
    let statistics = table.statistics().unwrap();
    assert_eq!(statistics.rows, 1999);
    assert_eq!(statistics.indexes.len(), 2);
    assert!(statistics.indexes[0].leaf_pages > 2);
    let (lo, hi) = (500u32.to_be_bytes(), 1000u32.to_be_bytes());
    let half = table.estimate_range(0, Bound::Included(&lo), Bound::Excluded(&hi)).unwrap();
    assert!((300..800).contains(&half), "{half}");
    let all = table.estimate_range(0, Bound::Unbounded, Bound::Unbounded).unwrap();
    assert!((1500..2600).contains(&all), "{all}");
    db.close().unwrap();
    drop((table, db));
    let db = open(&sim);
    assert_eq!(db.open_table("t").unwrap().rows(), 1999);
    fill_more(&db);
    let db = open(&sim.crash());
    let rows = db.open_table("t").unwrap().rows();
    assert!((1500..2600).contains(&rows), "{rows} after a crash");
}

fn fill_more(db: &Db) {
    let mut trx = begin(db);
    trx.insert(&db.open_table("t").unwrap(), 0, b"more", b"").unwrap();
    trx.commit().unwrap();
}

#[test]
fn the_verdict_on_a_prepared_transaction_is_durable_at_any_setting() {
    for (level, commits) in [0, 1, 2].into_iter().flat_map(|level| [(level, true), (level, false)])
    {
        let sim = SimStorage::new(1);
        let db = open(&sim);
        db.set_flush_log_at_trx_commit(level).unwrap();
        let table = db.create_table("t", &def()).unwrap();
        let mut trx = begin(&db);
        trx.insert(&table, 0, b"1", b"prepared").unwrap();
        trx.prepare(b"xid").unwrap();
        if commits {
            trx.commit().unwrap()
        } else {
            trx.rollback().unwrap()
        }

        let db = open(&sim.crash());
        assert_eq!(db.recovered_xids(), Vec::<Vec<u8>>::new(), "level {level}");
        let table = db.open_table("t").unwrap();
        assert_eq!(get(&mut begin(&db), &table, b"1").unwrap().is_some(), commits);
    }
}

#[test]
fn prepared_transactions_wait_for_their_verdict() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 3);
    for (xid, key) in [(b"one", b"1"), (b"two", b"2"), (b"six", b"6")] {
        let mut trx = begin(&db);
        trx.insert(&table, 0, key, b"prepared").unwrap();
        trx.prepare(xid).unwrap();
        trx.detach();
        // The handle is a new transaction.
        assert_eq!(get(&mut trx, &table, key).unwrap(), None);
        trx.commit().unwrap();
    }
    assert_eq!(sorted(db.recovered_xids()), [b"one", b"six", b"two"]);
    let busy = Error::TableBusy("t".into());
    assert_eq!(db.drop_table("t").unwrap_err(), busy);
    assert_eq!(db.rename_table("t", "u").unwrap_err(), busy);
    assert!(db.is_used_without_session(|name| name == "t"));
    assert!(!db.is_used_without_session(|name| name == "u"));
    // The copy that an ALTER makes belongs to no table.
    db.create_table("copy", &def()).unwrap();
    db.rename_table("copy", "copied").unwrap();
    let mut dropped = begin(&db);
    let table_of_dropped = db.open_table("copied").unwrap();
    dropped.insert(&table_of_dropped, 0, b"k", b"").unwrap();
    dropped.prepare(b"dropped").unwrap();
    db.rename_table("copied", "copy").unwrap();
    drop(dropped);
    assert_eq!(db.rename_table("copy", "copied").unwrap_err(), Error::TableBusy("copy".into()));
    db.rollback_prepared(b"dropped").unwrap();
    db.rename_table("copy", "copied").unwrap();
    db.commit_prepared(b"six").unwrap();
    assert_eq!(db.commit_prepared(b"six").unwrap_err(), Error::NotFound);
    assert_eq!(get(&mut begin(&db), &table, b"6").unwrap().unwrap(), b"prepared");

    let db = open(&sim.crash());
    let table = db.open_table("t").unwrap();
    assert_eq!(sorted(db.recovered_xids()), [b"one", b"two"]);
    // From undo it is known what they used, and what not: what was begun before the crash can be
    // ended.
    assert!(db.is_used_without_session(|name| name == "t"));
    assert!(!db.is_used_without_session(|name| name != "t"));
    db.rename_table("copied", "copy").unwrap();
    db.truncate_table("copy").unwrap();
    db.drop_table("copy").unwrap();
    assert_eq!(db.drop_table("t").unwrap_err(), busy);
    assert_eq!(db.rename_table("t", "u").unwrap_err(), busy);
    let mut trx = begin(&db);
    trx.set_lock_wait_timeout(std::time::Duration::ZERO);
    assert_eq!(trx.insert(&table, 0, b"1", b"").unwrap_err(), Error::LockWaitTimeout);
    db.commit_prepared(b"one").unwrap();
    db.rollback_prepared(b"two").unwrap();
    assert!(db.recovered_xids().is_empty());
    assert!(!db.is_used_without_session(|_| true));
    trx.commit().unwrap();
    assert_eq!(get(&mut trx, &table, b"1").unwrap().unwrap(), b"prepared");
    assert_eq!(get(&mut trx, &table, b"2").unwrap(), None);
    trx.commit().unwrap();
    db.rename_table("t", "u").unwrap();
    db.drop_table("u").unwrap();
}

fn sorted(mut xids: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    xids.sort();
    xids
}

#[test]
fn a_cursor_follows_its_transaction_s_writes() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 300);
    let key = |n: u32| n.to_be_bytes();
    let mut trx = begin(&db);
    let mut cursor = Cursor::new(table.clone(), 0, LockMode::None, LockWait::Wait);
    let mut seen = vec![];
    let mut more = cursor.first(&mut trx).unwrap();
    while more {
        let n = u32::from_be_bytes(cursor.key().try_into().unwrap());
        seen.push(n);
        if n % 10 == 0 {
            trx.delete(&table, 0, &key(n)).unwrap();
            if n + 5 < 300 {
                trx.delete(&table, 0, &key(n + 5)).unwrap();
            }
        }
        if n == 250 {
            trx.insert(&table, 0, &key(1001), b"").unwrap();
        }
        assert!(seen.len() < 1000);
        more = cursor.next(&mut trx).unwrap();
    }
    let expected: Vec<u32> = (0..300).filter(|n| n % 10 != 5).chain([1001]).collect();
    assert_eq!(seen, expected);

    // Back again, and turning around in the middle.
    assert!(!cursor.is_positioned() && !cursor.next(&mut trx).unwrap());
    assert!(cursor.prev(&mut trx).unwrap());
    assert_eq!(cursor.key(), key(1001));
    assert!(cursor.prev(&mut trx).unwrap() && cursor.prev(&mut trx).unwrap());
    assert_eq!(cursor.key(), key(298));
    assert!(cursor.next(&mut trx).unwrap());
    assert_eq!(cursor.key(), key(299));
    cursor.set_lock(LockMode::Exclusive, LockWait::NoWait);
    assert!(cursor.next(&mut trx).unwrap());
    assert_eq!(cursor.key(), key(1));
    assert!(cursor.next(&mut trx).unwrap() && cursor.prev(&mut trx).unwrap());
    assert_eq!(cursor.key(), key(1));
    assert!(!cursor.prev(&mut trx).unwrap() && !cursor.prev(&mut trx).unwrap());
    assert!(cursor.next(&mut trx).unwrap());
    assert_eq!(cursor.key(), key(1));
}

#[test]
fn a_closed_database_says_so() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    let mut trx = begin(&db);
    trx.insert(&table, 0, b"unfinished", b"").unwrap();
    db.close().unwrap();
    let closed = "the database has been closed: open it again";
    assert_eq!(trx.insert(&table, 0, b"k", b"").unwrap_err().to_string(), closed);
    assert_eq!(db.create_table("u", &def()).unwrap_err().to_string(), closed);
    assert_eq!(db.table_names().unwrap_err().to_string(), closed);
    drop((trx, table, db));
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    while db.step_rollback_recovered().unwrap() {}
    assert_eq!(get(&mut begin(&db), &table, b"unfinished").unwrap(), None);
}
