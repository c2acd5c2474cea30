//! What a power cut leaves of a file that was growing.

mod scan;

use scan::scan;
use std::sync::Arc;

use tidepool::storage::{SimStorage, Storage};
use tidepool::{Db, IndexDef, Options, TableDef, TransactionOptions};

fn options() -> Options {
    Options {
        page_size: 4096,
        buffer_pool_size_bytes: 8 << 20,
        memory_guard: false,
        background: false,
        ..Options::default()
    }
}

fn rows(db: &Db) -> u32 {
    let table = db.open_table("t").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    scan(&mut trx, &table, 0).unwrap().len() as u32
}

/// A file grows ahead of what is written to it. Its new length is no part of the log and is lost
/// unless the file was synced; the header's change to the new size is in the log, or even in the
/// file.
#[test]
fn a_table_whose_growth_was_lost_is_there_after_recovery() {
    let mut grown_again = 0;
    for seed in 0..24u32 {
        let sim = SimStorage::new(seed.into());
        let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table("t", &def).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        let count = 60 + 41 * seed;
        for n in 0..count {
            trx.insert(&table, 0, &n.to_be_bytes(), &[7; 1500]).unwrap();
        }
        trx.commit().unwrap();
        if seed % 3 == 0 {
            // The header may be on the disk, and synced.
            while db.step_cleaner().unwrap() {}
        }
        let name = sim.list("tables").unwrap().pop().unwrap();
        let length = |sim: &SimStorage| sim.open(&format!("tables/{name}")).unwrap().len().unwrap();
        let before = length(&sim);
        // Twice: what recovery did is not lost by the next cut either.
        let mut sim = sim.crash();
        grown_again += u32::from(length(&sim) < before);
        for _ in 0..2 {
            let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
            assert_eq!(rows(&db), count, "seed {seed}");
            let table = db.open_table("t").unwrap();
            assert!(table.check(&db, &mut |_| true).unwrap().is_clean(), "seed {seed}");
            sim = sim.crash();
        }
    }
    assert!(grown_again > 5, "hardly any growth was lost: {grown_again}");
}
