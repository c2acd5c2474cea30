//! Tables that are filled before anybody sees them: what they hold then, what is refused, and what
//! is left when it does not come to that.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tidepool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool::{
    Cursor, Db, DefinitionChange, Error, IndexDef, LockMode, LockWait, Options, Result, Table,
    TableDef, TableLoad, Transaction, TransactionOptions,
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// The smallest, the default and the largest.
const PAGE_SIZES: [usize; 3] = [4096, 16384, 65536];

fn open(sim: &SimStorage) -> Db {
    open_with(sim, 0)
}

/// A page size of 0 is that of the directory.
fn open_with(sim: &SimStorage, page_size: usize) -> Db {
    Db::open_on(Arc::new(sim.clone()), Options { page_size, ..Options::small() }).unwrap()
}

fn def() -> TableDef {
    TableDef::new([IndexDef::unique("primary"), IndexDef::non_unique("second")])
}

fn begin(db: &Db) -> Transaction {
    db.begin(TransactionOptions::default())
}

fn entries(trx: &mut Transaction, table: &Arc<Table>, index: usize) -> Result<Model> {
    let mut cursor = Cursor::new(table.clone(), index, LockMode::None, LockWait::Wait);
    let mut found = Model::new();
    let mut more = cursor.first(trx)?;
    while more {
        assert!(found.insert(cursor.key().to_vec(), cursor.value().to_vec()).is_none());
        more = cursor.next(trx)?;
    }
    Ok(found)
}

/// Rows whose values are of all lengths, some of several pages; the keys differ by more than their
/// ends.
fn rows(count: u32) -> Model {
    let len = |n: u32| match n % 50 {
        7 => 40_000 + n as usize,
        8 => 9_000,
        other => other as usize * 3,
    };
    (0..count).map(|n| (key(n), vec![n as u8; len(n)])).collect()
}

fn key(n: u32) -> Vec<u8> {
    format!("{:03}/{n:07}", n / 100).into_bytes()
}

fn second(primary: &[u8]) -> Vec<u8> {
    primary.iter().rev().copied().collect()
}

/// The clustered index in order, the other sorted.
fn give(load: &mut TableLoad, rows: &Model) -> Result<()> {
    for (key, value) in rows {
        load.push(0, key, value)?;
        load.add(1, &second(key), b"")?;
    }
    Ok(())
}

fn assert_holds(db: &Db, table: &Arc<Table>, rows: &Model) {
    let mut trx = begin(db);
    assert!(entries(&mut trx, table, 0).unwrap() == *rows);
    let seconds: Vec<_> = entries(&mut trx, table, 1).unwrap().into_keys().collect();
    let mut expected: Vec<_> = rows.keys().map(|key| second(key)).collect();
    expected.sort();
    assert_eq!(seconds, expected);
    assert!(table.check(db, &mut |_| true).unwrap().is_clean());
}

fn table_files(sim: &SimStorage) -> Vec<String> {
    sim.list("tables").unwrap()
}

#[test]
fn a_table_is_loaded_and_used_like_any_other() {
    PAGE_SIZES.into_iter().for_each(load_and_use);
}

fn load_and_use(page_size: usize) {
    let sim = SimStorage::new(1);
    let db = open_with(&sim, page_size);
    let mut model = rows(2000);
    let mut load = db.load_table("t", &def()).unwrap();
    give(&mut load, &model).unwrap();
    assert_eq!(db.table_names().unwrap(), Vec::<String>::new());
    let table = load.commit().unwrap();
    assert_eq!(table.rows(), 2000);
    assert_holds(&db, &table, &model);

    let mut trx = begin(&db);
    let gone = key(57);
    trx.delete(&table, 0, &gone).unwrap();
    trx.delete(&table, 1, &second(&gone)).unwrap();
    trx.update(&table, 0, &key(8), b"short").unwrap();
    trx.insert(&table, 0, b"zzz", &[1; 50_000]).unwrap();
    trx.insert(&table, 1, &second(b"zzz"), b"").unwrap();
    trx.commit().unwrap();
    trx.delete(&table, 0, b"zzz").unwrap();
    trx.update(&table, 0, &key(7), b"not for long").unwrap();
    trx.rollback().unwrap();
    model.remove(&gone);
    model.insert(key(8), b"short".to_vec());
    model.insert(b"zzz".to_vec(), vec![1; 50_000]);
    assert_holds(&db, &table, &model);
    drop((trx, table));

    // Durable without another word.
    let sim = sim.crash();
    let db = open(&sim);
    assert_holds(&db, &db.open_table("t").unwrap(), &model);
    db.close().unwrap();
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    // Estimated after the crash.
    assert!((1900..2100).contains(&table.rows()), "{}", table.rows());
    assert_holds(&db, &table, &model);
}

#[test]
fn the_rows_of_a_load_are_counted_to_the_next_life() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let mut load = db.load_table("t", &def()).unwrap();
    give(&mut load, &rows(2000)).unwrap();
    drop(load.commit().unwrap());
    db.close().unwrap();
    assert_eq!(open(&sim).open_table("t").unwrap().rows(), 2000);
}

#[test]
fn an_empty_load_is_an_empty_table() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.load_table("t", &def()).unwrap().commit().unwrap();
    assert_holds(&db, &table, &Model::new());
    let mut trx = begin(&db);
    trx.insert(&table, 0, b"k", b"v").unwrap();
    trx.commit().unwrap();
}

#[test]
fn what_can_not_be_an_entry_is_refused_and_the_load_goes_on() {
    PAGE_SIZES.into_iter().for_each(refuse_and_go_on);
}

fn refuse_and_go_on(page_size: usize) {
    let sim = SimStorage::new(1);
    let db = open_with(&sim, page_size);
    let mut load = db.load_table("t", &def()).unwrap();
    let long = vec![3; 40_000];
    load.push(0, b"b", &long).unwrap();
    assert_eq!(load.push(0, b"a", b""), Err(Error::KeyOutOfOrder { index: 0 }));
    assert_eq!(
        load.push(0, b"b", b"other"),
        Err(Error::DuplicateKey { index: 0, value: long.clone() })
    );
    assert!(matches!(load.push(0, &[b'z'; 60_000], b""), Err(Error::KeyTooLong { .. })));
    assert!(matches!(load.add(0, b"c", b""), Err(Error::InvalidOption(_))));
    load.push(0, b"c", b"3").unwrap();
    load.add(1, b"2", b"").unwrap();
    assert!(matches!(load.push(1, b"3", b""), Err(Error::InvalidOption(_))));
    load.add(1, b"1", b"").unwrap();
    let table = load.commit().unwrap();
    let mut trx = begin(&db);
    let expected = Model::from([(b"b".to_vec(), long), (b"c".to_vec(), b"3".to_vec())]);
    assert_eq!(entries(&mut trx, &table, 0).unwrap(), expected);
    assert_eq!(entries(&mut trx, &table, 1).unwrap().len(), 2);
    assert_eq!(table.rows(), 2);

    // Those that are sorted are compared at the end.
    let mut load = db.load_table("u", &def()).unwrap();
    for (key, value) in [(b"b", b"1"), (b"a", b"2"), (b"b", b"3")] {
        load.add(0, key, value).unwrap();
    }
    let duplicate = Error::DuplicateKey { index: 0, value: b"3".to_vec() };
    assert_eq!(load.commit().unwrap_err(), duplicate);
    assert_eq!(db.table_names().unwrap(), ["t"]);
    assert_eq!(table_files(&sim).len(), 1);
}

#[test]
fn the_name_is_taken_until_the_load_ends() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let busy = Error::TableBusy("t".into());
    let mut load = db.load_table("t", &def()).unwrap();
    give(&mut load, &rows(300)).unwrap();
    assert_eq!(db.load_table("t", &def()).err(), Some(busy.clone()));
    assert_eq!(db.create_table("t", &def()).unwrap_err(), busy);
    let other = db.create_table("other", &def()).unwrap();
    assert_eq!(db.rename_table("other", "t").unwrap_err(), busy);
    assert_eq!(db.open_table("t").unwrap_err(), Error::TableMissing("t".into()));
    assert_eq!(table_files(&sim).len(), 2);
    drop(load);
    assert_eq!(table_files(&sim).len(), 1);
    db.rename_table("other", "t").unwrap();
    assert_eq!(db.load_table("t", &def()).err(), Some(Error::TableExists("t".into())));
    drop(other);
    let after = db.load_table("after", &def()).unwrap().commit().unwrap();
    assert_holds(&db, &after, &Model::new());
}

#[test]
fn a_snapshot_older_than_the_load_does_not_take_the_table_for_empty() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let mut load = db.load_table("t", &def()).unwrap();
    give(&mut load, &rows(10)).unwrap();
    let mut old = begin(&db);
    old.ensure_view();
    let table = load.commit().unwrap();
    assert_eq!(entries(&mut old, &table, 0), Err(Error::TableChanged("t".into())));
    old.rollback().unwrap();
    assert_eq!(entries(&mut old, &table, 0).unwrap().len(), 10);
}

#[test]
fn a_load_that_ends_with_the_database_leaves_nothing() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let mut load = db.load_table("t", &def()).unwrap();
    give(&mut load, &rows(300)).unwrap();
    db.close().unwrap();
    assert_eq!(table_files(&sim), Vec::<String>::new());
    assert_eq!(load.push(0, b"zzz", b""), Err(Error::Closed));
    assert_eq!(load.add(1, b"zzz", b""), Err(Error::Closed));
    assert_eq!(load.commit().map(drop), Err(Error::Closed));
    drop(db);
    // It was closed cleanly.
    let options = Options { read_only: true, ..Options::small() };
    let db = Db::open_on(Arc::new(sim.clone()), options).unwrap();
    assert_eq!(db.table_names().unwrap(), Vec::<String>::new());
}

#[test]
fn a_close_does_not_wait_for_a_load() {
    let sim = SimStorage::new(1);
    let options = Options { background: true, memory_guard: false, ..Options::small() };
    let db = Db::open_on(Arc::new(sim.clone()), options).unwrap();
    let mut load = db.load_table("t", &def()).unwrap();
    std::thread::scope(|scope| {
        let (begun, has_begun) = std::sync::mpsc::channel();
        let loading = scope.spawn(move || {
            for n in 0..u32::MAX {
                let pushed = load.push(0, &n.to_be_bytes(), &[1; 500]);
                let added = load.add(1, &n.to_le_bytes(), b"");
                if n == 1000 {
                    begun.send(()).unwrap();
                }
                if pushed.is_err() {
                    return (pushed, added, load.commit().map(drop));
                }
            }
            unreachable!("no thread has closed the database")
        });
        has_begun.recv().unwrap();
        db.close().unwrap();
        let (pushed, added, committed) = loading.join().unwrap();
        assert_eq!((pushed, added), (Err(Error::Closed), Err(Error::Closed)));
        assert_eq!(committed, Err(Error::Closed));
    });
    drop(db);
    assert_eq!(table_files(&sim), Vec::<String>::new());
    assert_eq!(sim.list("sort").unwrap_or_default(), Vec::<String>::new());
    assert_eq!(open(&sim).table_names().unwrap(), Vec::<String>::new());
}

#[test]
fn more_than_fits_the_memory_is_sorted_in_a_file() {
    PAGE_SIZES.into_iter().for_each(sort_in_a_file);
}

fn sort_in_a_file(page_size: usize) {
    let sim = SimStorage::new(1);
    let options = Options { page_size, memory_budget_bytes: 16 << 20, ..Options::small() };
    let db = Db::open_on(Arc::new(sim.clone()), options).unwrap();
    let rows: Model = (0..60_000u32).map(|n| (key(n), vec![n as u8; 30])).collect();
    let mut load = db.load_table("t", &def()).unwrap();
    let mut most = 0;
    for (n, (key, value)) in rows.iter().enumerate() {
        load.add(1, &second(key), b"").unwrap();
        load.add(0, key, value).unwrap();
        if n % 1000 == 0 {
            most = most.max(db.memory().get("sorts").unwrap());
        }
    }
    assert!(sim.list("sort").unwrap().len() == 2, "{:?}", sim.list("sort"));
    assert!(most > 1 << 20 && most < 5 << 19, "{most}");
    let table = load.commit().unwrap();
    assert_eq!(db.memory().get("sorts"), Some(0));
    assert_eq!(sim.list("sort").unwrap(), Vec::<String>::new());
    assert_holds(&db, &table, &rows);
}

#[test]
fn a_load_cut_off_by_a_crash_leaves_the_whole_table_or_none() {
    PAGE_SIZES.into_iter().for_each(cut_off_anywhere);
}

fn cut_off_anywhere(page_size: usize) {
    let model = rows(120);
    for cut in 1.. {
        let sim = SimStorage::new(cut);
        let db = open_with(&sim, page_size);
        let keep = db.create_table("keep", &def()).unwrap();
        sim.crash_at(sim.operation_count() + cut);
        let load = || -> Result<()> {
            let mut load = db.load_table("t", &def())?;
            give(&mut load, &model)?;
            // A checkpoint, and pages that are written, in the middle of it.
            while db.step_cleaner()? {}
            db.step_checkpoint()?;
            load.raise_auto_increment(121)?;
            load.commit().map(drop)
        };
        let done = load().is_ok();
        drop(keep);
        let sim = sim.crash();
        let db = open(&sim);
        let names = db.table_names().unwrap();
        assert_eq!(table_files(&sim).len(), names.len(), "cut {cut}: {names:?}");
        assert!(!done || names.len() == 2, "cut {cut}: {names:?}");
        if names.len() == 2 {
            let table = db.open_table("t").unwrap();
            assert_holds(&db, &table, &model);
            // What the rows have is not given again.
            assert!(table.auto_increment() >= 121, "cut {cut}");
        }
        if done {
            break;
        }
    }
}

#[test]
fn a_full_disk_ends_the_load_and_nothing_else() {
    PAGE_SIZES.into_iter().for_each(fill_the_disk);
}

/// Goes on after 200 rows, on a disk that is full from now on; how that ends.
fn push_until_the_disk_is_full(sim: &SimStorage, load: &mut TableLoad) -> Result<()> {
    sim.set_capacity(Some(sim.used_bytes()));
    let mut pushed = (200..100_000).map(|n| load.push(0, &key(n), &[1; 20_000]));
    let outcome = pushed.find(Result::is_err).unwrap_or(Ok(()));
    assert!(matches!(outcome, Err(Error::NoSpace(_))), "{outcome:?}");
    outcome
}

fn fill_the_disk(page_size: usize) {
    let sim = SimStorage::new(1);
    let db = open_with(&sim, page_size);
    let mut load = db.load_table("t", &def()).unwrap();
    give(&mut load, &rows(200)).unwrap();
    let outcome = push_until_the_disk_is_full(&sim, &mut load);
    sim.set_capacity(None);
    assert_eq!(load.push(0, b"zzz", b""), outcome);
    assert_eq!(load.commit().err(), outcome.err());
    assert_eq!(table_files(&sim), Vec::<String>::new());
    let mut load = db.load_table("t", &def()).unwrap();
    give(&mut load, &rows(200)).unwrap();
    assert_holds(&db, &load.commit().unwrap(), &rows(200));
}

/// A copy of a table, as a server makes it: there, empty, and to be renamed when it is full.
fn filled(db: &Db, rows: &Model) -> Result<Arc<Table>> {
    let mut load = db.fill_table("copy")?;
    give(&mut load, rows)?;
    // A checkpoint, and pages that are written, in the middle of it.
    while db.step_cleaner()? {}
    db.step_checkpoint()?;
    load.build(&mut || true)?;
    load.raise_auto_increment(50)?;
    load.commit()
}

#[test]
fn an_empty_table_is_filled_and_keeps_its_counters() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let empty = db.create_table("copy", &def()).unwrap();
    empty.raise_auto_increment(77).unwrap();
    let row_id = empty.next_row_id().unwrap();
    let mut of_before = begin(&db);
    of_before.ensure_view();
    let model = rows(2000);
    let table = filled(&db, &model).unwrap();
    assert_eq!((table.rows(), table.id()), (2000, empty.id()));
    assert_eq!(table.auto_increment(), 77);
    assert!(table.next_row_id().unwrap() > row_id);
    assert_eq!(table_files(&sim).len(), 1);
    assert_eq!(empty.check(&db, &mut |_| true).err(), Some(Error::TableMissing("copy".into())));
    assert_eq!(db.fill_table("none").err(), Some(Error::TableMissing("none".into())));
    assert!(matches!(db.fill_table("copy"), Err(Error::InvalidOption(_))));
    // The transaction that fills it goes on with it; under its new name it is not for those of
    // before.
    assert!(entries(&mut of_before, &table, 0).unwrap() == model);
    of_before.insert(&table, 0, b"zzz", b"").unwrap();
    of_before.rollback().unwrap();
    of_before.ensure_view();
    drop(db.create_table("other", &def()).unwrap());
    let (renames, replacements) = (&[("copy", "t")], &["copy"]);
    db.change_tables(&DefinitionChange { renames, replacements, ..Default::default() }).unwrap();
    let found = entries(&mut of_before, &table, 0).map(|found| found.len());
    assert_eq!(found, Err(Error::TableChanged("t".into())));
    drop((of_before, table, empty));
    let sim = sim.crash();
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!(table.auto_increment(), 77);
    assert_holds(&db, &table, &model);
}

#[test]
fn a_filling_that_comes_to_nothing_leaves_the_empty_table() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let empty = db.create_table("copy", &def()).unwrap();
    let mut load = db.fill_table("copy").unwrap();
    give(&mut load, &rows(300)).unwrap();
    let busy = Error::TableBusy("copy".into());
    let mut trx = begin(&db);
    assert_eq!(trx.insert(&empty, 0, b"a", b""), Err(busy.clone()));
    trx.rollback().unwrap();
    assert_eq!(db.fill_table("copy").err(), Some(busy.clone()));
    assert_eq!(db.drop_table("copy").err(), Some(busy.clone()));
    assert_eq!(load.build(&mut || false), Err(Error::Interrupted));
    assert!(matches!(load.add(1, b"a", b""), Err(Error::Interrupted)));
    assert_eq!(load.commit().err(), Some(Error::Interrupted));
    assert_eq!(table_files(&sim).len(), 1);

    let mut load = db.fill_table("copy").unwrap();
    load.push(0, b"a", b"first").unwrap();
    load.push(0, b"b", b"second").unwrap();
    load.add(1, b"same", b"a").unwrap();
    load.add(1, b"same", b"b").unwrap();
    let duplicate = Error::DuplicateKey { index: 1, value: b"b".to_vec() };
    assert_eq!(load.build(&mut || true), Err(duplicate.clone()));
    assert_eq!(load.duplicate().unwrap().key, b"same");
    let mut row = Vec::new();
    assert!(load.row(b"b", &mut row).unwrap() && row == b"second");
    assert!(!load.row(b"c", &mut row).unwrap());
    assert_eq!(load.commit().err(), Some(duplicate));

    // Somebody is inside at the end.
    let load = db.fill_table("copy").unwrap();
    let mut reader = begin(&db);
    assert_eq!(entries(&mut reader, &empty, 0).unwrap().len(), 0);
    assert_eq!(load.commit().err(), Some(busy));
    drop(reader);

    assert_eq!(table_files(&sim).len(), 1);
    trx.insert(&empty, 0, b"a", b"").unwrap();
    trx.rollback().unwrap();
    drop(trx);
    db.drop_table("copy").unwrap();
    assert_eq!(table_files(&sim), Vec::<String>::new());
}

#[test]
fn a_filling_cut_off_by_a_crash_leaves_all_rows_or_none() {
    let model = rows(120);
    for cut in 1.. {
        let sim = SimStorage::new(cut);
        let db = open(&sim);
        drop(db.create_table("copy", &def()).unwrap());
        sim.crash_at(sim.operation_count() + cut);
        let done = filled(&db, &model).is_ok();
        let sim = sim.crash();
        let db = open(&sim);
        assert_eq!(table_files(&sim).len(), 1, "cut {cut}");
        let table = db.open_table("copy").unwrap();
        let is_empty = entries(&mut begin(&db), &table, 0).unwrap().is_empty();
        assert!(!done || !is_empty, "cut {cut}");
        let none = Model::new();
        assert_holds(&db, &table, if is_empty { &none } else { &model });
        assert!(is_empty || table.auto_increment() >= 50, "cut {cut}");
        if done {
            break;
        }
    }
}

#[test]
fn a_full_disk_leaves_the_empty_table() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let empty = db.create_table("copy", &def()).unwrap();
    let mut load = db.fill_table("copy").unwrap();
    give(&mut load, &rows(200)).unwrap();
    let outcome = push_until_the_disk_is_full(&sim, &mut load);
    assert_eq!(load.build(&mut || true), outcome);
    drop(load);
    sim.set_capacity(None);
    assert_eq!(table_files(&sim).len(), 1);
    assert_holds(&db, &empty, &Model::new());
    drop(empty);
    assert_holds(&db, &filled(&db, &rows(200)).unwrap(), &rows(200));
}

#[test]
fn a_load_that_has_met_a_panic_is_over() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let mut load = db.load_table("t", &def()).unwrap();
    load.push(0, b"a", b"1").unwrap();
    // Its file grows.
    sim.inject(Fault::new(StorageOp::SetLen, FaultKind::Panic).on("tables/"));
    let (mut pushed, mut outcome) = (0u32, Ok(Ok(())));
    while let Ok(Ok(())) = outcome {
        pushed += 1;
        let (load, key) = (&mut load, [b"b".as_slice(), &pushed.to_be_bytes()].concat());
        let push = std::panic::AssertUnwindSafe(|| load.push(0, &key, &[2; 3000]));
        outcome = std::panic::catch_unwind(push);
    }
    assert!(outcome.is_err(), "{outcome:?}");
    let error = load.push(0, b"z", b"").unwrap_err();
    assert!(matches!(error, Error::Storage(_) | Error::Crashed(_)), "{error}");
    assert!(load.commit().is_err(), "a row is missing");
    assert_eq!(db.table_names().unwrap(), Vec::<String>::new());
}

#[test]
fn an_error_of_the_disk_anywhere_leaves_the_whole_table_or_none() {
    let model = rows(60);
    let mut failed = 0;
    let ops = [
        StorageOp::Create,
        StorageOp::Write,
        StorageOp::Sync,
        StorageOp::SyncDir,
        StorageOp::SetLen,
        StorageOp::Len,
        StorageOp::Remove,
        StorageOp::List,
    ];
    for (op, skip) in ops.into_iter().flat_map(|op| (0..9).map(move |skip| (op, skip))) {
        let page_size = PAGE_SIZES[skip as usize % PAGE_SIZES.len()];
        for kind in [FaultKind::Io, FaultKind::NoSpace] {
            let sim = SimStorage::new(skip);
            let db = open_with(&sim, page_size);
            sim.inject(Fault::new(op, kind).skip(skip));
            let load = || -> Result<()> {
                let mut load = db.load_table("t", &def())?;
                give(&mut load, &model)?;
                while db.step_cleaner()? {}
                db.step_checkpoint()?;
                load.commit().map(drop)
            };
            let outcome = load();
            failed += u32::from(outcome.is_err());
            let case = format!("{op:?} {skip} {kind:?}: {outcome:?}");
            sim.clear_faults();
            if outcome.is_err() && db.flush_log().is_ok() {
                assert_eq!(db.table_names().unwrap(), Vec::<String>::new(), "{case}");
                let mut again = db.load_table("t", &def()).expect(&case);
                give(&mut again, &model).expect(&case);
                again.commit().expect(&case);
            }
            let is_there = db.flush_log().is_ok();
            let sim = if skip % 2 == 0 { sim.crash() } else { sim.kill() };
            let db = open(&sim);
            let names = db.table_names().unwrap();
            assert_eq!(table_files(&sim).len(), names.len(), "{case}: {names:?}");
            assert!(!is_there || names.len() == 1, "{case}");
            if names.len() == 1 {
                assert_holds(&db, &db.open_table("t").unwrap(), &model);
            }
        }
    }
    assert!(failed > 10, "{failed}");
}

#[test]
fn an_index_that_the_table_does_not_have_is_an_error() {
    let db = open(&SimStorage::new(1));
    let mut load = db.load_table("t", &TableDef::map()).unwrap();
    let refused = Error::NoIndex { table: "t".into(), index: 1, count: 1 };
    assert_eq!(load.push(1, b"a", b""), Err(refused.clone()));
    assert_eq!(load.add(1, b"a", b""), Err(refused.clone()));
    load.push(0, b"a", b"").unwrap();
    let table = load.commit().unwrap();
    assert_eq!(table.estimate_range(1, Bound::Unbounded, Bound::Unbounded), Err(refused));
    assert_eq!(table.rows(), 1);
}
