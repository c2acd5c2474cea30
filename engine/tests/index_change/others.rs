//! What other transactions may do during a change and after it.

use tidepool::storage::SimStorage;
use tidepool::{
    Db, Error, IndexChange, Isolation, LockMode, LockWait, ReadRequest, TransactionOptions,
};

use crate::fixture::{
    agree, begin, built, change, def, delete, feed, fill, insert, key, nothing_is_lost, open,
    update, value, wanted,
};
use crate::scan::scan;

#[test]
fn while_an_index_is_built_others_read() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..100);
    let busy = Error::TableBusy("t".into());
    let names = ["primary", "by value", "unique"];
    let indexes = wanted(&db, "t", &names);

    let mut reader = begin(&db);
    scan(&mut reader, &table, 0).unwrap();
    assert_eq!(db.change_indexes(&db.open_table("t").unwrap(), &indexes).err(), Some(busy.clone()));
    reader.rollback().unwrap();
    fill(&db, &table, 100..101);

    let mut change = db.change_indexes(&db.open_table("t").unwrap(), &indexes).unwrap();
    assert_eq!(scan(&mut reader, &table, 1).unwrap().len(), 101);
    assert_eq!(db.open_table("t").unwrap().rows(), 101);
    assert_eq!(db.drop_table("t").unwrap_err(), busy);
    assert_eq!(db.truncate_table("t").unwrap_err(), busy);
    assert_eq!(db.rename_table("t", "u").unwrap_err(), busy);
    assert_eq!(db.set_table_metadata("t", b"").unwrap_err(), busy);
    assert_eq!(db.change_indexes(&db.open_table("t").unwrap(), &indexes).err(), Some(busy.clone()));
    feed(&mut change, &names).unwrap();
    change.build(&mut || true).unwrap();
    // Too early, for somebody is still reading: and so it is taken back.
    assert_eq!(change.commit(&[]).unwrap_err(), busy);
    assert_eq!(scan(&mut reader, &table, 1).unwrap().len(), 101);
    reader.rollback().unwrap();
    fill(&db, &table, 101..102);
    assert_eq!(agree(&db, &table).len(), 102);
    nothing_is_lost(&db, &table);
    assert_eq!(table.def(), &def());
}

#[test]
fn prepared_transactions_stand_in_the_way() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..10);
    let names = ["primary", "unique", "by value"];
    let busy = Error::TableBusy("t".into());
    let mut trx = begin(&db);
    delete(&mut trx, &table, &key(1)).unwrap();
    trx.prepare(b"x").unwrap();
    trx.detach();
    assert_eq!(change(&db, "t", &names).unwrap_err(), busy);

    let db = open(&sim.crash());
    assert_eq!(change(&db, "t", &names).unwrap_err(), busy);
    db.commit_prepared(b"x").unwrap();
    let table = change(&db, "t", &names).unwrap();
    assert_eq!(agree(&db, &table).len(), 9);
    nothing_is_lost(&db, &table);
}

#[test]
fn an_older_transaction_may_write_what_it_knows() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..10);
    let mut old = begin(&db);
    old.ensure_view();
    let mut by_statement = db.begin(TransactionOptions {
        isolation: Isolation::ReadCommitted,
        ..TransactionOptions::default()
    });
    by_statement.ensure_view();
    let mut trx = begin(&db);
    update(&mut trx, &table, &key(2), b"changed").unwrap();
    trx.commit().unwrap();
    let table = change(&db, "t", &["primary", "unique", "by value"]).unwrap();
    insert(&mut old, &table, &key(11), &value(11)).unwrap();
    // The entry is newer than the snapshot; what matters is whether the row is.
    delete(&mut old, &table, &key(1)).unwrap();
    // That index does not show which rows have changed.
    let (mut found, lock) = (vec![], LockMode::Exclusive);
    let got =
        old.read(&table, 1, ReadRequest::new(&value(3), &mut found).locked(lock, LockWait::Wait));
    assert_eq!(got.unwrap_err(), Error::TableChanged("t".into()));
    let got =
        old.read(&table, 0, ReadRequest::new(&key(2), &mut found).locked(lock, LockWait::Wait));
    assert_eq!(got.unwrap_err(), Error::RecordChanged);
    old.rollback().unwrap();
    assert_eq!(agree(&db, &table).len(), 10);
    delete(&mut by_statement, &table, &key(1)).unwrap();
    by_statement.begin_statement();
    assert_eq!(scan(&mut by_statement, &table, 1).unwrap().len(), 9);
    by_statement.commit().unwrap();
    assert_eq!(agree(&db, &table).len(), 9);
}

/// Metadata of other tables change with the table, or nothing does.
#[test]
fn other_tables_metadata_come_with_the_change() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    for name in ["t", "u", "v"] {
        fill(&db, &db.create_table(name, &def()).unwrap(), 0..10);
    }
    let names = ["primary", "unique"];
    let both: [(&str, &[u8]); 2] = [("t", b"own"), ("u", b"other")];
    let metadata = |db: &Db, name| db.table_def(name).unwrap().metadata.clone();
    let before = metadata(&db, "u");

    let change = built(&db, "t", &names).unwrap();
    let other = db.change_indexes(&db.open_table("u").unwrap(), &wanted(&db, "u", &names)).unwrap();
    // The other's change would put its own in their place.
    assert_eq!(change.commit(&both).unwrap_err(), Error::TableBusy("u".into()));
    drop(other);
    let change = built(&db, "t", &names).unwrap();
    assert!(change.commit(&[("t", b"own"), ("w", b"")]).is_err());
    assert_eq!([metadata(&db, "t"), metadata(&db, "u")], [&before[..], &before[..]]);
    drop(db);

    let db = open(&sim);
    assert_eq!([metadata(&db, "t"), metadata(&db, "u")], [&before[..], &before[..]]);
    let change = built(&db, "t", &names).unwrap();
    change.commit(&both).unwrap();
    let all_is_there = |db: &Db| {
        assert_eq!([metadata(db, "t"), metadata(db, "u")], [&b"own"[..], b"other"]);
        assert_eq!(metadata(db, "v"), before);
        assert_eq!(agree(db, &db.open_table("t").unwrap()).len(), 10);
    };
    all_is_there(&db);
    all_is_there(&open(&sim.crash()));
}

#[test]
fn several_tables_change_together_or_not_at_all() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let tables = ["t", "u", "v"];
    for name in tables {
        fill(&db, &db.create_table(name, &def()).unwrap(), 0..10);
    }
    let names = ["primary", "unique"];
    let all = || tables.map(|table| built(&db, table, &names).unwrap()).into();
    let found = |db: &Db| {
        tables.map(|name| {
            let table = db.open_table(name).unwrap();
            assert_eq!(agree(db, &table).len(), 10);
            nothing_is_lost(db, &table);
            (table.def().indexes[1].name.clone(), table.def().metadata.clone())
        })
    };
    let metadata: [(&str, &[u8]); 2] = [("t", b"one"), ("v", b"three")];
    let before = found(&db);
    // A new index of one of them is not built.
    let unbuilt =
        db.change_indexes(&db.open_table("v").unwrap(), &wanted(&db, "v", &names)).unwrap();
    let changes = vec![built(&db, "t", &names).unwrap(), unbuilt];
    let refused = IndexChange::commit_all(changes, &metadata, &[]).unwrap_err();
    assert!(matches!(refused, Error::InvalidOption(_)), "{refused}");
    assert_eq!(found(&db), before);
    // One is of another database.
    let other = open(&SimStorage::new(2));
    other.create_table("v", &def()).unwrap();
    let changes = vec![built(&db, "t", &names).unwrap(), built(&other, "v", &names).unwrap()];
    let refused = IndexChange::commit_all(changes, &[], &[]).unwrap_err();
    assert!(matches!(refused, Error::InvalidOption(_)), "{refused}");
    assert!(IndexChange::commit_all(vec![], &metadata, &[]).is_err());

    // The last one's table is in use.
    let changes = all();
    let mut reader = begin(&db);
    scan(&mut reader, &db.open_table("v").unwrap(), 0).unwrap();
    let busy = Error::TableBusy("v".into());
    assert_eq!(IndexChange::commit_all(changes, &metadata, &[]).unwrap_err(), busy);
    reader.rollback().unwrap();
    assert_eq!(found(&db), before);

    let changed = IndexChange::commit_all(all(), &metadata, &[]).unwrap();
    assert_eq!(changed.iter().map(|table| table.name()).collect::<Vec<_>>(), tables);
    let unique = "unique".to_string();
    let after = [
        (unique.clone(), b"one".to_vec()),
        (unique.clone(), before[1].1.clone()),
        (unique, b"three".to_vec()),
    ];
    assert_eq!(found(&db), after);
    for table in &changed {
        fill(&db, table, 10..20);
        assert_eq!(agree(&db, table).len(), 20);
    }
    let db = open(&sim.crash());
    for name in tables {
        assert_eq!(agree(&db, &db.open_table(name).unwrap()).len(), 20);
    }
}
