//! Transactions that enter a table while it is closed.

use super::definition_tests::{create, open};
use super::*;
use crate::pause::{PausePoint, with_hook};
use crate::trx::TransactionOptions;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use tidepool_pool::storage::SimStorage;

fn write(db: &Db, table: &Arc<Table>) -> Result<Transaction> {
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(table, 0, b"k", b"v").map(|()| trx)
}

#[test]
fn who_enters_a_table_that_was_just_found_unused_is_in_the_way() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    let inside: Rc<RefCell<Option<Transaction>>> = Rc::default();
    let hook = {
        let (db, table, inside) = (db.clone(), table.clone(), inside.clone());
        move |point| {
            if point == PausePoint::EntranceFoundUnused {
                *inside.borrow_mut() = Some(write(&db, &table).unwrap());
            }
        }
    };
    let dropped = with_hook(hook, || db.drop_table("t"));
    assert_eq!(dropped, Err(Error::TableBusy("t".into())));
    inside.take().unwrap().commit().unwrap();
    db.drop_table("t").unwrap();
    assert_eq!(write(&db, &table).err(), Some(Error::TableMissing("t".into())));
}

/// Who comes while it is not decided gets its answer by the decision.
#[test]
fn who_comes_while_a_table_is_being_closed_waits() {
    for fails in [false, true] {
        let sim = SimStorage::new(1);
        let db = open(&sim);
        let table = create(&db, "t");
        let comers: Rc<RefCell<Vec<thread::JoinHandle<_>>>> = Rc::default();
        let inside: Rc<RefCell<Option<Transaction>>> = Rc::default();
        let hook = {
            let (db, table) = (db.clone(), table.clone());
            let (comers, inside) = (comers.clone(), inside.clone());
            move |point| match point {
                PausePoint::EntranceFoundUnused if fails => {
                    *inside.borrow_mut() = Some(write(&db, &table).unwrap());
                }
                PausePoint::EntranceUndecided => {
                    let (db, table) = (db.clone(), table.clone());
                    let comer = thread::spawn(move || {
                        let mut trx = db.begin(TransactionOptions::default());
                        trx.insert(&table, 0, b"other", b"")
                    });
                    comers.borrow_mut().push(comer);
                    // It may well have come by now; it can't have entered.
                    thread::sleep(Duration::from_millis(20));
                    assert!(!comers.borrow()[0].is_finished());
                }
                _ => {}
            }
        };
        let dropped = with_hook(hook, || db.drop_table("t"));
        let came = comers.take().pop().unwrap().join().unwrap();
        match fails {
            false => assert_eq!((dropped, came), (Ok(()), Err(Error::TableMissing("t".into())))),
            true => assert_eq!((dropped, came), (Err(Error::TableBusy("t".into())), Ok(()))),
        }
    }
}

/// No handle that has used a table, and is idle, keeps it open after its drop.
#[test]
fn idle_handles_forget_a_dropped_table() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    let mut trx = write(&db, &table).unwrap();
    trx.commit().unwrap();
    let observer = Arc::downgrade(&table);
    drop(table);
    db.drop_table("t").unwrap();
    assert!(observer.upgrade().is_none());
}

/// As many tables as a transaction has used, its handle keeps only some.
#[test]
fn a_handle_leaves_many_tables_and_enters_them_again() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let tables: Vec<_> = (0..20).map(|n| create(&db, &format!("t{n}"))).collect();
    let mut trx = db.begin(TransactionOptions::default());
    for round in 0..3_u8 {
        for table in tables.iter().cycle().skip(round.into()).take(tables.len()) {
            trx.insert(table, 0, &[round], b"").unwrap();
        }
        let busy = db.drop_table("t7").unwrap_err();
        assert_eq!(busy, Error::TableBusy("t7".into()));
        trx.commit().unwrap();
    }
    for n in 0..20 {
        db.drop_table(&format!("t{n}")).unwrap();
    }
}

/// While a table is closed none is inside, whatever comes when.
#[test]
fn none_is_inside_a_closed_table() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    let presences = &db.inner.presences;
    let (inside, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let entries = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..4 {
            let (inside, over, table, entries) = (&inside, &over, &table, &entries);
            scope.spawn(move || {
                let mut presence = presences.join();
                let mut turns = 0;
                while !over.load(Ordering::Relaxed) {
                    if let Ok(entered) = presence.enter(table) {
                        inside.fetch_add(1, Ordering::Relaxed);
                        std::hint::spin_loop();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        entries.fetch_add(1, Ordering::Relaxed);
                        presence.leave([entered].into_iter());
                    }
                    turns += 1;
                    if turns % (n + 2) == 0 {
                        presence = presence.another();
                        thread::yield_now();
                    }
                }
            });
        }
        let mut closed = 0;
        while closed < 300 || entries.load(Ordering::Relaxed) < 1000 {
            assert!(closed < 1_000_000, "hardly anyone gets in: {entries:?}");
            if table.close_entrance(presences).is_ok() {
                for _ in 0..20 {
                    assert_eq!(inside.load(Ordering::Relaxed), 0);
                    std::hint::spin_loop();
                }
                table.reopen_entrance();
                closed += 1;
            }
            thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
    });
}
