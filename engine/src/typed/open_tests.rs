//! What comes to the worst moments of a change of a typed table's indexes.

use super::{Index, TypedTable};
use crate::pause::{PausePoint, with_hook};
use crate::{Db, Error, Options, Result, Transaction, TransactionOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tidepool_pool::storage::SimStorage;

type Row = (String, String, String);
type ByText = Index<u64, Row, String>;

const ROWS: u64 = 100;

fn by_a() -> ByText {
    Index::new("a", |_: &u64, row: &Row| row.0.clone())
}

fn by_b() -> ByText {
    Index::new("b", |_: &u64, row: &Row| row.1.clone())
}

fn by_c() -> ByText {
    Index::new("c", |_: &u64, row: &Row| row.2.clone())
}

fn open_db() -> Db {
    Db::open_on(Arc::new(SimStorage::new(1)), Options::small()).unwrap()
}

fn fill(db: &Db, indexes: &[&ByText]) -> TypedTable<u64, Row> {
    let indexes: Vec<_> = indexes.iter().map(|index| *index as _).collect();
    let table = TypedTable::<u64, Row>::open_or_create(db, "t", &indexes).unwrap();
    db.write(|trx| {
        (0..ROWS).try_for_each(|n| {
            table.put(trx, &n, &(format!("a{n}"), format!("b{n}"), format!("c{n}")))
        })
    })
    .unwrap();
    table
}

/// Calls `action` when the thread first reaches this point. The test fails if it never does.
fn once_at(point: PausePoint, action: impl FnOnce() + 'static) -> impl FnMut(PausePoint) {
    let mut once = Once(point, Some(action));
    move |reached| {
        if reached == once.0
            && let Some(action) = once.1.take()
        {
            action();
        }
    }
}

/// What waits for a point.
struct Once<F>(PausePoint, Option<F>);

impl<F> Drop for Once<F> {
    fn drop(&mut self) {
        if !thread::panicking() {
            assert!(self.1.is_none(), "{:?} was not reached: nothing was tried", self.0);
        }
    }
}

fn get_by(
    trx: &mut Transaction,
    table: &TypedTable<u64, Row>,
    index: &ByText,
    n: u64,
) -> Option<u64> {
    let key = format!("{}{n}", index.name());
    table.get_by(trx, index, &key).unwrap().map(|(n, _)| n)
}

/// The table with the index by `b` alone, which leads to its rows.
fn open_by_b(db: &Db) -> TypedTable<u64, Row> {
    let b = by_b();
    let table = TypedTable::<u64, Row>::open(db, "t", &[&b]).unwrap();
    db.read(|trx| {
        assert_eq!(get_by(trx, &table, &b, 7), Some(7));
        Ok(())
    })
    .unwrap();
    table
}

#[test]
fn two_indexes_that_are_dropped_at_the_same_time_are_gone_and_the_others_stay() {
    let db = open_db();
    fill(&db, &[&by_a(), &by_b(), &by_c()]);
    let other = db.clone();
    let meanwhile = move || other.drop_typed_index("t", "a").unwrap();
    let dropped = with_hook(once_at(PausePoint::IndexChangePlanned, meanwhile), || {
        db.drop_typed_index("t", "c")
    });
    dropped.unwrap();
    let table = open_by_b(&db);
    let check = db.read(|trx| table.check(trx, &mut || true)).unwrap();
    assert!(check.is_clean(), "{:?}", check.problems);
}

#[test]
fn an_index_that_is_added_while_another_is_dropped_stays() {
    let db = open_db();
    fill(&db, &[&by_a()]);
    let other = db.clone();
    let meanwhile = move || {
        TypedTable::<u64, Row>::open(&other, "t", &[&by_a(), &by_b()]).unwrap();
    };
    with_hook(once_at(PausePoint::IndexChangePlanned, meanwhile), || db.drop_typed_index("t", "a"))
        .unwrap();
    assert_eq!(db.table_def("t").unwrap().indexes[1].name, "b");
    open_by_b(&db);
}

#[test]
fn two_that_open_a_table_with_different_new_indexes_are_not_both_right() {
    let db = open_db();
    fill(&db, &[]);
    let other = db.clone();
    let meanwhile = move || {
        TypedTable::<u64, Row>::open(&other, "t", &[&by_a()]).unwrap();
    };
    let opened = with_hook(once_at(PausePoint::IndexChangePlanned, meanwhile), || {
        TypedTable::<u64, Row>::open(&db, "t", &[&by_b()])
    });
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("has the index 'a', which is not declared"), "{error}");
}

/// The reader has come before the table was closed, and leaves it soon.
#[test]
fn a_reader_at_the_last_moment_does_not_cost_a_second_build() {
    let db = open_db();
    let rows = fill(&db, &[]).table().clone();
    let built = Arc::new(AtomicU64::new(0));
    let counted = {
        let built = built.clone();
        Index::new("counted", move |_: &u64, row: &Row| {
            built.fetch_add(1, Ordering::Relaxed);
            row.0.clone()
        })
    };
    let (inside, is_inside) = mpsc::channel();
    let reader = db.clone();
    let meanwhile = move || {
        thread::spawn(move || {
            reader.read(|trx| {
                trx.get(&rows, &7u64.to_be_bytes())?;
                inside.send(()).unwrap();
                thread::sleep(Duration::from_millis(5));
                Ok(())
            })
        });
        is_inside.recv().unwrap();
    };
    let hook = once_at(PausePoint::EntranceFoundUnused, meanwhile);
    let opened = with_hook(hook, || TypedTable::<u64, Row>::open(&db, "t", &[&counted]));
    let table = opened.unwrap();
    assert_eq!(built.load(Ordering::Relaxed), ROWS);
    let found = db.read(|trx| table.get_by(trx, &counted, "a7")).unwrap();
    assert_eq!(found.unwrap().0, 7);
}

/// A reader leaves the table when another one is inside; or, if that is made to wait at the
/// entrance, after a moment.
#[test]
fn an_index_is_built_although_readers_overlap_all_the_time() {
    const MOMENT: Duration = Duration::from_millis(5);
    let db = open_db();
    let rows = fill(&db, &[]).table().clone();
    let ((to_one, from_other), (to_other, from_one)) = (mpsc::channel(), mpsc::channel());
    let (inside, is_inside) = mpsc::channel();
    let ends = [(to_one, from_one), (to_other, from_other)];
    let readers = ends.map(|(to, from)| {
        let (db, rows, inside) = (db.clone(), rows.clone(), inside.clone());
        thread::spawn(move || {
            loop {
                let read = db.read(|trx| {
                    trx.get(&rows, &7u64.to_be_bytes())?;
                    let _ = (inside.send(()), to.send(()));
                    let _ = from.recv_timeout(MOMENT);
                    Ok(())
                });
                match read {
                    Ok(()) => {}
                    Err(error) => return error,
                }
            }
        })
    });
    is_inside.recv().unwrap();
    let a = by_a();
    let table = TypedTable::<u64, Row>::open(&db, "t", &[&a]).unwrap();
    for reader in readers {
        assert_eq!(reader.join().unwrap(), Error::TableMissing("t".into()));
    }
    let found = db.read(|trx| table.get_by(trx, &a, "a7")).unwrap();
    assert_eq!(found.unwrap().0, 7);
}

#[test]
fn who_waits_for_locks_for_ever_opens_and_drops_indexes() {
    let options = Options { lock_wait_timeout: Duration::MAX, ..Options::small() };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    fill(&db, &[]);
    TypedTable::<u64, Row>::open(&db, "t", &[&by_a()]).unwrap();
    db.drop_typed_index("t", "a").unwrap();
}

#[test]
fn a_function_of_an_index_that_panics_leaves_no_row_without_its_entry() {
    let db = open_db();
    let by_a = Index::new("a", |_: &u64, row: &Row| {
        assert!(row.0 != "bad", "on purpose");
        row.0.clone()
    });
    let table = TypedTable::<u64, Row>::open_or_create(&db, "t", &[&by_a]).unwrap();
    let row = |a: &str| (a.to_owned(), String::new(), String::new());
    let mut trx = db.begin(TransactionOptions::default());
    table.put(&mut trx, &1, &row("good")).unwrap();
    let caught = |trx: &mut Transaction, write: &dyn Fn(&mut Transaction)| {
        let write = std::panic::AssertUnwindSafe(|| write(trx));
        assert!(std::panic::catch_unwind(write).is_err());
    };
    caught(&mut trx, &|trx| table.put(trx, &1, &row("bad")).unwrap());
    caught(&mut trx, &|trx| table.put(trx, &2, &row("bad")).unwrap());
    caught(&mut trx, &|trx| assert!(table.insert(trx, &3, &row("bad")).unwrap()));
    trx.commit().unwrap();
    let keys = db.read(|trx| table.iter(trx).map(|row| Ok(row?.0)).collect::<Result<Vec<_>>>());
    assert_eq!(keys.unwrap(), [1]);
    assert_eq!(db.read(|trx| table.get(trx, &1)).unwrap(), Some(row("good")));
}
