//! The undo file after a long history: as long as it has to be, and no longer than that after a
//! clean close.

use std::sync::Arc;

use tidepool::storage::{SimStorage, Storage};
use tidepool::{Db, IndexDef, Options, ReadRequest, TableDef, TransactionOptions};

fn open(sim: &SimStorage) -> Db {
    Db::open_on(Arc::new(sim.clone()), Options::small()).unwrap()
}

/// Bytes that do not shrink.
fn value(n: u32, round: u8) -> Vec<u8> {
    let mut state = u64::from(n) << 8 | u64::from(round);
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    (0..1000).map(|_| next()).collect()
}

fn undo_bytes(sim: &SimStorage) -> u64 {
    sim.open("undo.tpd").unwrap().len().unwrap()
}

#[test]
fn a_clean_close_gives_back_what_a_long_history_has_left() {
    let mut sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let update_all = |db: &Db, round: u8| {
        let table = db.open_table("t").unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for n in 0..2000u32 {
            let value = value(n, round);
            match round {
                0 => trx.insert(&table, 0, &n.to_be_bytes(), &value).unwrap(),
                _ => trx.update(&table, 0, &n.to_be_bytes(), &value).unwrap(),
            }
        }
        trx.commit().unwrap();
    };
    update_all(&db, 0);
    drop((table, db));
    for life in 1..4u8 {
        sim = sim.kill();
        let db = open(&sim);
        // A snapshot keeps the history.
        let mut reader = db.begin(TransactionOptions::default());
        reader.ensure_view();
        for round in 0..3 {
            update_all(&db, 3 * life + round);
        }
        reader.commit().unwrap();
        let long = undo_bytes(&sim);
        assert!(long > 5 << 20, "{long}");
        drop(reader);
        while db.step_purge().unwrap() {}
        db.close().unwrap();
        drop(db);
        let short = undo_bytes(&sim);
        assert!(short < 1 << 20, "{short}");
    }
    let db = open(&sim.kill());
    let table = db.open_table("t").unwrap();
    let (mut trx, mut value) = (db.begin(TransactionOptions::default()), vec![]);
    for n in 0..2000u32 {
        let key = n.to_be_bytes();
        assert!(trx.read(&table, 0, ReadRequest::new(&key, &mut value)).unwrap());
        assert_eq!(value, self::value(n, 11));
    }
}
