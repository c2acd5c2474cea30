//! Changes that are refused, interrupted, or run into duplicates.

use std::sync::Arc;
use tidepool::storage::{SimStorage, Storage};
use tidepool::{ChangedIndex, Error, IndexDef};

use crate::fixture::{
    agree, begin, change, def, delete, feed, fill, insert, key, nothing_is_lost, open, value,
    wanted,
};

#[test]
fn duplicates_are_told_and_leave_no_trace() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..2000);
    let mut trx = begin(&db);
    for (n, same) in [(3000, 700), (3001, 1500)] {
        insert(&mut trx, &table, &key(n), &value(same)).unwrap();
    }
    trx.commit().unwrap();
    let names = ["primary", "backward", "unique", "by value"];
    for sort_memory in [5_000, 1 << 20] {
        let mut change =
            db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names)).unwrap();
        change.set_sort_memory(sort_memory);
        feed(&mut change, &names).unwrap();
        let first = std::cmp::min(value(700), value(1500));
        let later = key(if first == value(700) { 3000 } else { 3001 });
        let error = change.build(&mut || true).unwrap_err();
        assert_eq!(error, Error::DuplicateKey { index: 2, value: later.clone() });
        let duplicate = change.duplicate().unwrap().clone();
        assert_eq!((duplicate.index, duplicate.key), (2, first.clone()));
        assert_eq!(duplicate.value, later);
        let mut row = vec![];
        assert!(change.row(&later, &mut row).unwrap());
        assert_eq!(row, first);
        assert!(matches!(change.commit(&[]), Err(Error::InvalidOption(_))));
        assert!(Arc::ptr_eq(&table, &db.open_table("t").unwrap()));
        nothing_is_lost(&db, &table);
        assert!(sim.list("sort").unwrap_or_default().is_empty());
    }
    delete(&mut trx, &table, &key(3000)).unwrap();
    delete(&mut trx, &table, &key(3001)).unwrap();
    trx.commit().unwrap();
    let table = change(&db, "t", &names).unwrap();
    assert_eq!(agree(&db, &table).len(), 2000);
}

#[test]
fn a_change_can_be_interrupted_and_must_make_sense() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..3000);
    let names = ["primary", "unique", "by value"];
    let mut change =
        db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names)).unwrap();
    feed(&mut change, &names).unwrap();
    let mut turns = 2;
    let go_on = &mut || {
        turns -= 1;
        turns >= 0
    };
    assert_eq!(change.build(go_on).unwrap_err(), Error::Interrupted);
    // Half an index is none, and its entries are gone.
    assert!(matches!(change.build(&mut || true), Err(Error::InvalidOption(_))));
    assert!(matches!(change.commit(&[]), Err(Error::InvalidOption(_))));
    assert!(Arc::ptr_eq(&table, &db.open_table("t").unwrap()));
    nothing_is_lost(&db, &table);
    assert_eq!(agree(&db, &table).len(), 3000);

    let refused = |indexes: &[ChangedIndex]| {
        db.change_indexes(&db.open_table("t").unwrap(), indexes)
            .err()
            .expect("it is refused")
            .to_string()
    };
    let mut indexes = wanted(&db, "t", &["primary", "by value"]);
    assert!(refused(&indexes[1..]).ends_with("must stay what it is"));
    assert!(refused(&[]).ends_with("the clustered index must stay"));
    indexes[1].from = Some(2);
    assert!(refused(&indexes).ends_with("an index that the table does not have"));
    indexes[1].from = Some(0);
    assert!(refused(&indexes).ends_with("keeps an index twice"));
    indexes[1].from = Some(1);
    indexes[1].def.unique = true;
    assert!(refused(&indexes).ends_with("must stay what it is"));
    indexes[1].def = IndexDef::non_unique("primary");
    assert!(refused(&indexes).ends_with("two indexes named 'primary'"));
    let many: Vec<_> = (0..33)
        .map(|n| ChangedIndex { def: IndexDef::non_unique(format!("{n}")), from: None })
        .collect();
    let indexes = [&wanted(&db, "t", &["primary", "by value"])[..], &many[..]].concat();
    assert!(refused(&indexes).contains("more than 32 indexes"));
    fill(&db, &table, 3000..3001);
    nothing_is_lost(&db, &table);

    // As many as can be, and not built.
    let indexes = [&wanted(&db, "t", &["primary"])[..], &many[..31]].concat();
    let change = db.change_indexes(&db.open_table("t").unwrap(), &indexes).unwrap();
    assert!(matches!(change.commit(&[]), Err(Error::InvalidOption(_))));
    nothing_is_lost(&db, &table);
    let mut change =
        db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names)).unwrap();
    let long = vec![0; table.value_len_inline_max() + 1];
    assert!(matches!(change.add(1, b"k", &long), Err(Error::ValueTooLong { .. })));
    let long = vec![0; table.key_len_max() + 1];
    assert!(matches!(change.add(1, &long, b""), Err(Error::KeyTooLong { .. })));
    assert_eq!(change.add(2, b"k", b"").unwrap_err(), Error::NotFound);
}

/// Rows that the snapshot does not see, leaf after leaf: the reading does not come back to its
/// caller.
#[test]
fn a_reading_that_finds_no_row_can_be_interrupted() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..2000);
    let mut trx = begin(&db);
    for n in 0..2000 {
        delete(&mut trx, &table, &key(n)).unwrap();
    }
    trx.commit().unwrap();
    let session = begin(&db);
    let interrupt = session.interrupt_handle();
    let names = ["primary", "by value", "backward"];
    for is_killed in [true, false] {
        let mut change =
            db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names)).unwrap();
        change.set_interrupt(interrupt.clone());
        if is_killed {
            interrupt.interrupt();
            assert_eq!(change.next_row().unwrap_err(), Error::Interrupted);
            interrupt.clear();
        } else {
            assert_eq!(change.next_row().unwrap(), None);
        }
    }
    drop(trx);
    nothing_is_lost(&db, &table);
}
