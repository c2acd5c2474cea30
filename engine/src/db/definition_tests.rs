//! Definition changes that meet something else half-way: a pause point stops one side there.

use super::*;
use crate::catalog::{IndexDef, TableDef};
use crate::pause::{PausePoint, with_hook};
use crate::trx::TrxOptions;
use std::sync::mpsc;
use std::thread;
use tidepool_pool::storage::SimStorage;

/// A database on this disk, without threads.
pub(super) fn open(sim: &SimStorage) -> Db {
    Db::open_on(Arc::new(sim.clone()), Options::small()).unwrap()
}

fn create(db: &Db, name: &str) -> Arc<Table> {
    db.create_table(name, &TableDef::new([IndexDef::unique("primary")])).unwrap()
}

#[test]
fn no_table_goes_while_a_prepared_transaction_is_rolled_back() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    let mut trx = db.begin(TrxOptions::default());
    trx.insert(&table, 0, b"k", b"prepared").unwrap();
    trx.prepare(b"x").unwrap();

    let db = open(&sim.crash());
    let refused = Arc::new(AtomicU64::new(0));
    let hook = {
        let (db, refused) = (db.clone(), Arc::clone(&refused));
        move |point| {
            if point == PausePoint::UndoRecordRead {
                let busy = Error::TableBusy("t".into());
                assert_eq!(db.drop_table("t").unwrap_err(), busy);
                assert_eq!(db.truncate_table("t").unwrap_err(), busy);
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    with_hook(hook, || db.rollback_prepared(b"x")).unwrap();
    assert_eq!(refused.load(Ordering::Relaxed), 2, "for the row and for the XID");
    assert_eq!(db.rollback_prepared(b"x").unwrap_err(), Error::NotFound);
    db.drop_table("t").unwrap();
}

#[test]
fn nobody_opens_a_table_that_is_being_dropped() {
    for truncate in [false, true] {
        let sim = SimStorage::new(1);
        let db = open(&sim);
        create(&db, "t");
        create(&db, "other");
        db.close().unwrap();

        let db = open(&sim);
        let (tell, opened) = mpsc::channel();
        let hook = {
            let db = db.clone();
            let mut opener = Some(move |db: Db| tell.send(db.open_table("t")).unwrap());
            move |point| {
                if point == PausePoint::TableFoundClosed
                    && let Some(opener) = opener.take()
                {
                    let its = db.clone();
                    thread::spawn(move || opener(its));
                    // Time for it to come in between, if it may.
                    thread::sleep(Duration::from_millis(50));
                    db.open_table("other").unwrap();
                }
            }
        };
        let changed = with_hook(hook, || match truncate {
            false => db.drop_table("t").map(|()| None),
            true => db.truncate_table("t").map(Some),
        });
        let opened = opened.recv().unwrap();
        match changed.unwrap() {
            None => assert_eq!(opened.unwrap_err(), Error::TableMissing("t".into())),
            Some(table) => assert!(Arc::ptr_eq(&opened.unwrap(), &table)),
        }
        db.open_table("other").unwrap();
    }
}
