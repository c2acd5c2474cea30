//! Definition changes that meet something else half-way: a pause point stops one side there.

use super::*;
use crate::catalog::{IndexDef, TableDef};
use crate::pause::{PausePoint, with_hook};
use crate::trx::TrxOptions;
use tidepool_pool::storage::SimStorage;

fn open(sim: &SimStorage) -> Db {
    let options = Options {
        buffer_pool_size_bytes: 4 << 20,
        redo_capacity_bytes: 8 << 20,
        background: false,
        ..Options::default()
    };
    Db::open_on(Arc::new(sim.clone()), options).unwrap()
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
