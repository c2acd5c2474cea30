//! What is in a new index, and what a dropped one leaves.

use std::sync::Arc;
use tidepool::storage::SimStorage;
use tidepool::{Error, LockMode, LockWait, ReadRequest, Table};

use crate::fixture::{
    agree, begin, change, def, delete, entry, fill, insert, key, nothing_is_lost, open, update,
    value, wanted,
};
use crate::scan::scan;

#[test]
fn a_new_index_has_the_rows_that_are_there() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..3000);
    // Rows that are gone, purged and not, and rows that have changed.
    let mut trx = begin(&db);
    for n in (0..3000).step_by(7) {
        delete(&mut trx, &table, &key(n)).unwrap();
    }
    trx.commit().unwrap();
    while db.step_purge().unwrap() {}
    let mut old = begin(&db);
    old.ensure_view();
    for n in (1..3000).step_by(7) {
        delete(&mut trx, &table, &key(n)).unwrap();
    }
    for n in (2..3000).step_by(7) {
        update(&mut trx, &table, &key(n), &value(n + 10_000)).unwrap();
    }
    trx.commit().unwrap();
    assert_eq!(table.reserve_auto_increment(5).unwrap(), 1);

    let names = ["primary", "unique", "by value", "backward"];
    let changed = change(&db, "t", &names).unwrap();
    let of: Vec<_> = changed.def().indexes.iter().map(|index| &index.name[..]).collect();
    assert_eq!(of, names);
    assert_eq!(changed.rows(), table.rows());
    assert_eq!(changed.auto_increment(), 6);
    assert_eq!(changed.reserve_auto_increment(1).unwrap(), 6);
    let rows = agree(&db, &changed);
    assert_eq!(rows.len() as u64, changed.rows());
    assert!(Arc::ptr_eq(&changed, &db.open_table("t").unwrap()));
    let missing = Error::TableMissing("t".into());
    assert_eq!(insert(&mut trx, &table, b"k", b"v").unwrap_err(), missing);
    assert_eq!(scan(&mut trx, &table, 0).unwrap_err(), missing);

    // The older snapshot reads what it did, except by what was not there.
    assert_eq!(scan(&mut old, &changed, 0).unwrap().len(), 3000 - 3000_usize.div_ceil(7));
    assert_eq!(scan(&mut old, &changed, 2).unwrap().len(), 3000 - 3000_usize.div_ceil(7));
    for new in [1, 3] {
        let error = Error::TableChanged("t".into());
        assert_eq!(scan(&mut old, &changed, new).unwrap_err(), error);
        let (key, mut value) = (entry(names[new], &key(3), &value(3)).0, vec![]);
        let got = old.read(&changed, new, ReadRequest::new(&key, &mut value));
        assert_eq!(got.unwrap_err(), error);
    }
    old.rollback().unwrap();
    assert_eq!(scan(&mut old, &changed, 1).unwrap().len(), rows.len());
    old.rollback().unwrap();

    // What is left to purge is of the other trees. And the new ones are used like any.
    nothing_is_lost(&db, &changed);
    assert_eq!(agree(&db, &changed), rows);
    let mut before = begin(&db);
    assert_eq!(scan(&mut before, &changed, 3).unwrap().len(), rows.len());
    for n in (3..2990).step_by(7) {
        delete(&mut trx, &changed, &key(n)).unwrap();
        insert(&mut trx, &changed, &key(n + 20_000), &value(n)).unwrap();
        update(&mut trx, &changed, &key(n + 1), &value(n + 30_000)).unwrap();
    }
    assert_eq!(scan(&mut before, &changed, 3).unwrap().len(), rows.len());
    trx.rollback().unwrap();
    before.rollback().unwrap();
    assert_eq!(agree(&db, &changed), rows);
    for n in (3..2990).step_by(7) {
        delete(&mut trx, &changed, &key(n)).unwrap();
        update(&mut trx, &changed, &key(n + 1), &value(n + 30_000)).unwrap();
    }
    trx.commit().unwrap();
    let rows = agree(&db, &changed);
    nothing_is_lost(&db, &changed);
    assert_eq!(agree(&db, &changed), rows);

    // A locking read locks an entry that the build wrote.
    let (mut one, mut other, mut value) = (begin(&db), begin(&db), vec![]);
    let entry = scan(&mut trx, &changed, 1).unwrap().into_keys().next().unwrap();
    assert!(
        one.read(
            &changed,
            1,
            ReadRequest::new(&entry, &mut value).locked(LockMode::Exclusive, LockWait::Wait)
        )
        .unwrap()
    );
    let got = other.read(
        &changed,
        1,
        ReadRequest::new(&entry, &mut value).locked(LockMode::Shared, LockWait::NoWait),
    );
    assert_eq!(got.unwrap_err(), Error::LockNoWait);

    let db = open(&sim.crash());
    let table = db.open_table("t").unwrap();
    assert_eq!(agree(&db, &table), rows);
    nothing_is_lost(&db, &table);
}

#[test]
fn a_dropped_index_leaves_its_pages_and_its_undo_records_behind() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    db.create_table("t", &def()).unwrap();
    let table = change(&db, "t", &["primary", "backward", "by value", "unique"]).unwrap();
    fill(&db, &table, 0..2000);
    let mut trx = begin(&db);
    for n in (0..2000).step_by(3) {
        delete(&mut trx, &table, &key(n)).unwrap();
        update(&mut trx, &table, &key(n + 1), &value(n + 10_000)).unwrap();
    }
    trx.commit().unwrap();
    let indexes = |table: &Table| table.statistics().unwrap().indexes;
    let bytes_of_leaves =
        |table: &Table| indexes(table).iter().map(|index| index.data_size_bytes).sum::<u64>();
    let before = bytes_of_leaves(&table);
    // Two go, one moves, one gets another name.
    let mut indexes = wanted(&db, "t", &["primary", "unique", "backward"]);
    let mut renamed = db.change_indexes(&db.open_table("t").unwrap(), &indexes).unwrap();
    renamed.build(&mut || true).unwrap();
    let table = renamed.commit(&[("t", b"other metadata")]).unwrap();
    assert_eq!(table.def().metadata, b"other metadata");
    assert!(bytes_of_leaves(&table) < before);
    let rows = agree(&db, &table);
    indexes = wanted(&db, "t", &["primary", "unique", "backward"]);
    indexes.remove(1);
    indexes[1].def.name = "other name".into();
    let table =
        db.change_indexes(&db.open_table("t").unwrap(), &indexes).unwrap().commit(&[]).unwrap();
    let of: Vec<_> = table.def().indexes.iter().map(|index| &index.name[..]).collect();
    assert_eq!(of, ["primary", "other name"]);
    assert_eq!(scan(&mut begin(&db), &table, 1).unwrap().len(), rows.len());
    nothing_is_lost(&db, &table);
    let names: Vec<_> = db.buffer_pool_by_index().into_iter().map(|row| row.owner).collect();
    let names = format!("{names:?}");
    assert!(names.contains("other name") && !names.contains("by value"), "{names}");

    let db = open(&sim.crash());
    let table = db.open_table("t").unwrap();
    assert_eq!(scan(&mut begin(&db), &table, 0).unwrap(), rows);
    assert_eq!(table.def().metadata, b"other metadata");
    nothing_is_lost(&db, &table);
}
