//! Writers that come to the worst moments of a build.

use super::definition_tests::open;
use super::*;
use crate::catalog::{IndexDef, TableDef};
use crate::pause::{PausePoint, with_hook};
use crate::trx::TransactionOptions;
use std::cell::RefCell;
use std::rc::Rc;
use tidepool_pool::storage::SimStorage;

const ADDED: usize = 1;

fn begin_change(db: &Db) -> Result<IndexChange> {
    let index = |name: &str, from| ChangedIndex { def: IndexDef::unique(name), from };
    db.change_indexes(
        &db.open_table("t").unwrap(),
        &[index("primary", Some(0)), index("added", None)],
    )
}

/// Each row has its key in the new index.
fn round(change: &mut IndexChange) -> RoundReport {
    change.begin_round().unwrap();
    while let Some(row) = change.next_changed_row().unwrap() {
        let (key, was, is) = (row.key.to_vec(), row.before.is_some(), row.after.is_some());
        if was {
            change.remove(ADDED, &key, b"").unwrap();
        }
        if is {
            change.add(ADDED, &key, b"").unwrap();
        }
    }
    change.end_round(&mut || true).unwrap()
}

fn keys(db: &Db, table: &Arc<Table>, index: usize) -> Vec<Vec<u8>> {
    let mut trx = db.begin(TransactionOptions::default());
    let (none, wait) = (crate::LockMode::None, crate::LockWait::Wait);
    let mut cursor = Cursor::new(table.clone(), index, none, wait);
    let mut keys = vec![];
    while cursor.next(&mut trx).unwrap() {
        keys.push(cursor.key().to_vec());
    }
    keys
}

/// A commit between the view of a round and the taking of the log belongs to the next round; a
/// write before the view, committed in between, too.
#[test]
fn what_a_round_does_not_see_comes_with_the_next() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut change = begin_change(&db).unwrap();
    change.build(&mut || true).unwrap();
    let insert = |trx: &mut Transaction, key: &[u8]| trx.insert(&table, 0, key, b"").unwrap();
    let mut before = db.begin(TransactionOptions::default());
    insert(&mut before, b"a");
    let between = db.begin(TransactionOptions::default());
    let writers = Rc::new(RefCell::new([before, between]));
    let hook = {
        let (writers, table) = (writers.clone(), table.clone());
        move |point| {
            if point == PausePoint::RoundViewOpen {
                let [before, between] = &mut *writers.borrow_mut();
                between.insert(&table, 0, b"b", b"").unwrap();
                before.commit().unwrap();
                between.commit().unwrap();
            }
        }
    };
    let report = with_hook(hook, || round(&mut change));
    assert_eq!(report, RoundReport { rows: 0, writes_open: 2, writes_left: 2 });
    assert_eq!(round(&mut change), RoundReport { rows: 2, writes_open: 0, writes_left: 0 });
    change.stop_writes().unwrap();
    round(&mut change);
    let table = change.commit(&[]).unwrap();
    assert_eq!(keys(&db, &table, ADDED), keys(&db, &table, 0));
    assert_eq!(keys(&db, &table, 0).len(), 2);
}

/// A transaction that comes in while the log is being begun, or writes stopped, is in the way; the
/// log goes on if it was there.
#[test]
fn who_comes_in_at_the_last_moment_is_in_the_way() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let inside: Rc<RefCell<Option<Transaction>>> = Rc::default();
    let enter_at = |at: PausePoint| {
        let (db, table, inside) = (db.clone(), table.clone(), inside.clone());
        move |point| {
            if point == at {
                let mut trx = db.begin(TransactionOptions::default());
                let written = trx.insert(&table, 0, b"early", b"");
                assert_eq!(written.is_ok(), at == PausePoint::WritesLogged);
                // Who was refused is inside by what it reads alone.
                assert_eq!(trx.get(&table, b"early").unwrap().is_some(), written.is_ok());
                *inside.borrow_mut() = Some(trx);
            }
        }
    };
    let busy = Error::TableBusy("t".into());
    let begun = with_hook(enter_at(PausePoint::WritesLogged), || begin_change(&db).map(drop));
    assert_eq!(begun.unwrap_err(), busy);
    inside.take().unwrap().rollback().unwrap();

    let mut change = begin_change(&db).unwrap();
    change.build(&mut || true).unwrap();
    let stopped = with_hook(enter_at(PausePoint::WritesRefused), || change.stop_writes());
    assert_eq!(stopped.unwrap_err(), busy);
    let mut trx = inside.take().unwrap();
    trx.insert(&table, 0, b"late", b"").unwrap();
    trx.commit().unwrap();
    change.stop_writes().unwrap();
    assert_eq!(round(&mut change), RoundReport { rows: 1, writes_open: 0, writes_left: 0 });
    let table = change.commit(&[]).unwrap();
    assert_eq!(keys(&db, &table, ADDED), [b"late"]);
}
