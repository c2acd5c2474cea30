//! Indexes that are added and dropped in place: what is in them, who may read them, and what a crash leaves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidepool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool::{
    ChangedIndex, Cursor, Db, Error, IndexChange, IndexDef, Isolation, LockMode, LockWait, Options,
    Result, Table, TableDef, Trx, TrxOptions,
};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options { lock_wait_timeout: Duration::ZERO, ..Options::small() }
}

fn open(sim: &SimStorage) -> Db {
    Db::open_on(Arc::new(sim.clone()), options()).unwrap()
}

fn begin(db: &Db) -> Trx {
    db.begin(TrxOptions::default())
}

fn def() -> TableDef {
    TableDef::new([IndexDef::unique("primary"), IndexDef::non_unique("by value")])
}

/// What an index has of a row, by its name. "by value" and "backward" are not unique, "unique" is keyed by the value alone.
fn entry(index: &str, key: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    match index {
        "by value" => ([value, key].concat(), vec![]),
        "backward" => {
            (value.iter().rev().chain(key).copied().collect(), b"something to unpack".to_vec())
        }
        "unique" => (value.to_vec(), key.to_vec()),
        _ => (key.to_vec(), value.to_vec()),
    }
}

fn insert(trx: &mut Trx, table: &Arc<Table>, key: &[u8], value: &[u8]) -> Result<()> {
    for (at, index) in table.def().indexes.iter().enumerate() {
        let (key, value) = entry(&index.name, key, value);
        trx.insert(table, at, &key, &value)?;
    }
    Ok(())
}

fn delete(trx: &mut Trx, table: &Arc<Table>, key: &[u8]) -> Result<()> {
    let mut value = vec![];
    assert!(trx.get(table, 0, key, LockMode::Exclusive, LockWait::Wait, &mut value)?);
    for (at, index) in table.def().indexes.iter().enumerate() {
        trx.delete(table, at, &entry(&index.name, key, &value).0)?;
    }
    Ok(())
}

fn update(trx: &mut Trx, table: &Arc<Table>, key: &[u8], new: &[u8]) -> Result<()> {
    let mut old = vec![];
    assert!(trx.get(table, 0, key, LockMode::Exclusive, LockWait::Wait, &mut old)?);
    trx.update(table, 0, key, new)?;
    for (at, index) in table.def().indexes.iter().enumerate().skip(1) {
        trx.delete(table, at, &entry(&index.name, key, &old).0)?;
        let (key, value) = entry(&index.name, key, new);
        trx.insert(table, at, &key, &value)?;
    }
    Ok(())
}

fn scan(trx: &mut Trx, table: &Arc<Table>, index: usize) -> Result<Rows> {
    let mut cursor = Cursor::new(table.clone(), index, LockMode::None, LockWait::Wait);
    let (mut rows, mut more) = (Rows::new(), cursor.first(trx)?);
    while more {
        rows.insert(cursor.key().to_vec(), cursor.value().to_vec());
        more = cursor.next(trx)?;
    }
    Ok(rows)
}

/// All indexes agree with the clustered one, whose rows are given back.
fn agree(db: &Db, table: &Arc<Table>) -> Rows {
    let mut trx = begin(db);
    let rows = scan(&mut trx, table, 0).unwrap();
    for (at, index) in table.def().indexes.iter().enumerate().skip(1) {
        let expected: Rows =
            rows.iter().map(|(key, value)| entry(&index.name, key, value)).collect();
        assert!(scan(&mut trx, table, at).unwrap() == expected, "index {}", index.name);
    }
    let report = table.check(db, &mut |_| true).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    rows
}

/// With all purged, every page leads somewhere.
fn nothing_is_lost(db: &Db, table: &Table) {
    while db.step_rollback_recovered().unwrap() {}
    while db.step_purge().unwrap() {}
    assert_eq!(db.status().get("history_list_length"), Some(0));
    assert_eq!(table.unreachable_pages().unwrap(), []);
}

fn key(n: u32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn value(n: u32) -> Vec<u8> {
    format!("value {}", n.wrapping_mul(2_654_435_761) % 1_000_003).into_bytes()
}

fn fill(db: &Db, table: &Arc<Table>, rows: std::ops::Range<u32>) {
    let mut trx = begin(db);
    for n in rows {
        insert(&mut trx, table, &key(n), &value(n)).unwrap();
    }
    trx.commit().unwrap();
}

/// The indexes that the table is to have, by name; those that it has keep their entries.
fn wanted(db: &Db, table: &str, names: &[&str]) -> Vec<ChangedIndex> {
    let now = db.table_def(table).unwrap();
    let changed = names.iter().map(|name| ChangedIndex {
        def: IndexDef { name: name.to_string(), unique: ["primary", "unique"].contains(name) },
        from: now.indexes.iter().position(|index| index.name == *name),
    });
    changed.collect()
}

fn feed(change: &mut IndexChange, names: &[&str]) -> Result<()> {
    let new: Vec<usize> = change.new_indexes().collect();
    while let Some((key, value)) = change.next_row()? {
        let entries: Vec<_> = new.iter().map(|&at| (at, entry(names[at], key, value))).collect();
        for (at, (key, value)) in entries {
            change.add(at, &key, &value)?;
        }
    }
    Ok(())
}

fn change(db: &Db, table: &str, names: &[&str]) -> Result<Arc<Table>> {
    let mut change = db.change_indexes(table, &wanted(db, table, names))?;
    feed(&mut change, names)?;
    change.build(&mut || true)?;
    change.commit(None)
}

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
        let got = old.get(&changed, new, &key, LockMode::None, LockWait::Wait, &mut value);
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
    assert!(one.get(&changed, 1, &entry, LockMode::Exclusive, LockWait::Wait, &mut value).unwrap());
    let got = other.get(&changed, 1, &entry, LockMode::Shared, LockWait::NoWait, &mut value);
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
    let pages = |table: &Table| table.statistics().unwrap().free_size_bytes;
    let before = pages(&table);
    // Two go, one moves, one gets another name.
    let mut indexes = wanted(&db, "t", &["primary", "unique", "backward"]);
    let mut renamed = db.change_indexes("t", &indexes).unwrap();
    renamed.build(&mut || true).unwrap();
    let table = renamed.commit(Some(b"other metadata")).unwrap();
    assert_eq!(table.def().metadata, b"other metadata");
    assert!(pages(&table) > before);
    let rows = agree(&db, &table);
    indexes = wanted(&db, "t", &["primary", "unique", "backward"]);
    indexes.remove(1);
    indexes[1].def.name = "other name".into();
    let table = db.change_indexes("t", &indexes).unwrap().commit(None).unwrap();
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
    assert_eq!(db.change_indexes("t", &indexes).err(), Some(busy.clone()));
    reader.rollback().unwrap();
    fill(&db, &table, 100..101);

    let mut change = db.change_indexes("t", &indexes).unwrap();
    assert_eq!(scan(&mut reader, &table, 1).unwrap().len(), 101);
    assert_eq!(insert(&mut begin(&db), &table, b"k", b"v").unwrap_err(), busy);
    assert_eq!(delete(&mut begin(&db), &table, &key(1)).unwrap_err(), busy);
    assert_eq!(db.open_table("t").unwrap().rows(), 101);
    assert_eq!(db.drop_table("t").unwrap_err(), busy);
    assert_eq!(db.truncate_table("t").unwrap_err(), busy);
    assert_eq!(db.rename_table("t", "u").unwrap_err(), busy);
    assert_eq!(db.set_table_metadata("t", b"").unwrap_err(), busy);
    assert_eq!(db.change_indexes("t", &indexes).err(), Some(busy.clone()));
    feed(&mut change, &names).unwrap();
    change.build(&mut || true).unwrap();
    // Too early, for somebody is still reading: and so it is taken back.
    assert_eq!(change.commit(None).unwrap_err(), busy);
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
fn what_was_unfinished_at_a_crash_is_not_in_the_index() {
    for wait in [false, true] {
        let sim = SimStorage::new(1);
        let db = open(&sim);
        let table = db.create_table("t", &def()).unwrap();
        fill(&db, &table, 0..500);
        let mut trx = begin(&db);
        for n in (0..500).step_by(5) {
            delete(&mut trx, &table, &key(n)).unwrap();
            update(&mut trx, &table, &key(n + 1), &value(n + 10_000)).unwrap();
            insert(&mut trx, &table, &key(n + 1000), &value(n + 1000)).unwrap();
        }
        db.log_flush().unwrap();
        let db = open(&sim.crash());
        if wait {
            while db.step_rollback_recovered().unwrap() {}
        }
        let table = change(&db, "t", &["primary", "backward", "unique"]).unwrap();
        assert_eq!(agree(&db, &table).len(), 500);
        nothing_is_lost(&db, &table);
        assert_eq!(agree(&db, &table).len(), 500);
    }
}

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
        let mut change = db.change_indexes("t", &wanted(&db, "t", &names)).unwrap();
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
        assert!(matches!(change.commit(None), Err(Error::InvalidOption(_))));
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
    let mut change = db.change_indexes("t", &wanted(&db, "t", &names)).unwrap();
    feed(&mut change, &names).unwrap();
    let mut turns = 2;
    let go_on = &mut || {
        turns -= 1;
        turns >= 0
    };
    assert_eq!(change.build(go_on).unwrap_err(), Error::Interrupted);
    drop(change);
    nothing_is_lost(&db, &table);
    assert_eq!(agree(&db, &table).len(), 3000);

    let refused = |indexes: &[ChangedIndex]| {
        db.change_indexes("t", indexes).err().expect("it is refused").to_string()
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
    let change = db.change_indexes("t", &indexes).unwrap();
    assert!(matches!(change.commit(None), Err(Error::InvalidOption(_))));
    nothing_is_lost(&db, &table);
    let mut change = db.change_indexes("t", &wanted(&db, "t", &names)).unwrap();
    let long = vec![0; table.value_len_inline_max() + 1];
    assert!(matches!(change.add(1, b"k", &long), Err(Error::ValueTooLong { .. })));
    let long = vec![0; table.key_len_max() + 1];
    assert!(matches!(change.add(1, &long, b""), Err(Error::KeyTooLong { .. })));
    assert_eq!(change.add(2, b"k", b"").unwrap_err(), Error::NotFound);
}

#[test]
fn a_full_disk_ends_a_change_and_leaves_no_trace() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..5000);
    db.step_checkpoint().unwrap();
    let names = ["primary", "by value", "backward"];
    for sort_memory in [10_000, 1 << 30] {
        sim.set_capacity(Some(sim.used_bytes() + 20_000));
        let outcome = (|| {
            let mut change = db.change_indexes("t", &wanted(&db, "t", &names))?;
            change.set_sort_memory(sort_memory);
            feed(&mut change, &names)?;
            change.build(&mut || true)?;
            change.commit(None)
        })();
        assert!(matches!(outcome, Err(Error::NoSpace(_))), "{outcome:?}");
        sim.set_capacity(None);
        assert_eq!(agree(&db, &table).len(), 5000);
        nothing_is_lost(&db, &table);
        assert!(sim.list("sort").unwrap_or_default().is_empty());
    }
    let table = change(&db, "t", &names).unwrap();
    assert_eq!(agree(&db, &table).len(), 5000);
}

#[test]
fn a_sort_that_does_not_fit_in_memory_goes_by_the_disk() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    fill(&db, &table, 0..10_000);
    let names = ["primary", "by value", "backward"];
    let mut change = db.change_indexes("t", &wanted(&db, "t", &names)).unwrap();
    change.set_sort_memory(20_000);
    feed(&mut change, &names).unwrap();
    assert_eq!(sim.list("sort").unwrap().len(), 2);
    change.build(&mut || true).unwrap();
    assert!(sim.list("sort").unwrap().is_empty());
    let table = change.commit(None).unwrap();
    assert_eq!(agree(&db, &table).len(), 10_000);
    let mut change = db.change_indexes("t", &wanted(&db, "t", &["primary", "unique"])).unwrap();
    change.set_sort_memory(20_000);
    feed(&mut change, &["primary", "unique"]).unwrap();
    let sim = sim.kill();
    let db = open(&sim);
    assert!(sim.list("sort").unwrap().is_empty());
    let table = db.open_table("t").unwrap();
    assert_eq!(agree(&db, &table).len(), 10_000);
    nothing_is_lost(&db, &table);
}

#[test]
fn a_bad_read_of_a_sort_leaves_the_old_indexes() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..10_000);
    drop(table);
    let names = ["primary", "by value", "backward"];
    let begun = || {
        let mut change = db.change_indexes("t", &wanted(&db, "t", &names)).unwrap();
        change.set_sort_memory(100_000);
        feed(&mut change, &names).unwrap();
        let file = format!("sort/{}", sim.list("sort").unwrap()[0]);
        (change, file)
    };
    let unchanged = || {
        let table = db.open_table("t").unwrap();
        assert_eq!(table.def(), &def());
        assert_eq!(agree(&db, &table).len(), 10_000);
        nothing_is_lost(&db, &table);
        assert!(sim.list("sort").unwrap().is_empty());
        assert_eq!(db.status().get("memory_sorts"), Some(0));
    };
    let (mut change, file) = begun();
    assert!(db.status().get("memory_sorts").unwrap() > 90_000);
    sim.corrupt(&file, (64 << 10) + 5, 1);
    let error = change.build(&mut || true).unwrap_err().to_string();
    assert!(
        error.contains(&format!("{file}: the checksum is wrong of the block at offset 65536:")),
        "{error}"
    );
    drop(change);
    unchanged();
    // An error of the disk names them too.
    let (mut change, file) = begun();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("sort/").skip(2));
    let error = change.build(&mut || true).unwrap_err().to_string();
    assert!(error.contains(&file) && error.contains("at offset 262144"), "{error}");
    drop(change);
    unchanged();
    let (mut change, _) = begun();
    change.build(&mut || true).unwrap();
    assert_eq!(agree(&db, &change.commit(None).unwrap()).len(), 10_000);
}

/// Every operation on the disk that a change takes, cut off once.
#[test]
fn a_change_cut_off_anywhere_leaves_the_old_or_the_new_indexes() {
    let old = ["primary", "by value"];
    let plans: [&[&str]; 3] =
        [&["primary", "unique", "by value", "backward"], &["primary"], &["primary", "backward"]];
    for (plan, names) in plans.iter().enumerate() {
        let mut switched = 0;
        for cut in 1.. {
            let sim = SimStorage::new(cut);
            let db = open(&sim);
            let table = db.create_table("t", &def()).unwrap();
            fill(&db, &table, 0..1200);
            let mut trx = begin(&db);
            for n in (0..1200).step_by(9) {
                delete(&mut trx, &table, &key(n)).unwrap();
            }
            trx.commit().unwrap();
            drop((trx, table));
            sim.crash_at(sim.operation_count() + cut);
            let done = (|| {
                let mut change = db.change_indexes("t", &wanted(&db, "t", names))?;
                change.set_sort_memory(8_000);
                feed(&mut change, names)?;
                change.build(&mut || true)?;
                // Pages of the new trees reach the disk before anybody knows of them.
                for _ in 0..3 {
                    db.step_cleaner()?;
                }
                change.commit(None).map(drop)?;
                db.step_purge()
            })()
            .is_ok();
            let mut sim = sim.crash();
            if cut % 2 == 0 {
                // Recovery, too.
                sim.crash_at(sim.operation_count() + cut % 41);
                let _ = Db::open_on(Arc::new(sim.clone()), options());
                sim = sim.crash();
            }
            let db = open(&sim);
            let table = db.open_table("t").unwrap();
            let found: Vec<_> = table.def().indexes.iter().map(|index| &index.name[..]).collect();
            let is_new = found == *names;
            assert!(is_new || found == old, "plan {plan}, cut {cut}: {found:?}");
            assert!(is_new || !done, "plan {plan}, cut {cut}");
            switched += u32::from(is_new && !done);
            assert_eq!(agree(&db, &table).len(), 1200 - 1200_usize.div_ceil(9));
            nothing_is_lost(&db, &table);
            fill(&db, &table, 1200..1300);
            agree(&db, &table);
            if !is_new {
                let table = change(&db, "t", names).unwrap();
                agree(&db, &table);
                nothing_is_lost(&db, &table);
            }
            if done {
                break;
            }
        }
        assert!(switched > 0, "plan {plan}: no crash came behind the catalog's commit");
    }
}

#[test]
fn trees_that_could_not_be_freed_are_freed_by_the_next_opening() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    db.create_table("t", &def()).unwrap();
    let table = change(&db, "t", &["primary", "by value", "backward"]).unwrap();
    fill(&db, &table, 0..20_000);
    let mut trx = begin(&db);
    for n in 0..100 {
        delete(&mut trx, &table, &key(n)).unwrap();
    }
    trx.commit().unwrap();
    drop(trx);
    db.close().unwrap();
    drop((table, db));
    // Inner pages of the dropped tree can't be read.
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    let change = db.change_indexes("t", &wanted(&db, "t", &["primary", "by value"])).unwrap();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("tables/").always());
    let changed = change.commit(None).unwrap();
    sim.clear_faults();
    assert!(!changed.unreachable_pages().unwrap().is_empty());
    // Purge passes over what undo says of it.
    while db.step_purge().unwrap() {}
    assert_eq!(agree(&db, &changed).len(), 19_900);
    // And more can be changed meanwhile.
    let changed = self::change(&db, "t", &["primary", "by value", "unique"]).unwrap();
    assert_eq!(agree(&db, &changed).len(), 19_900);
    db.close().unwrap();
    drop((table, changed, db));
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!(agree(&db, &table).len(), 19_900);
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
    let mut by_statement =
        db.begin(TrxOptions { isolation: Isolation::ReadCommitted, ..TrxOptions::default() });
    by_statement.ensure_view();
    let mut trx = begin(&db);
    update(&mut trx, &table, &key(2), b"changed").unwrap();
    trx.commit().unwrap();
    let table = change(&db, "t", &["primary", "unique", "by value"]).unwrap();
    insert(&mut old, &table, &key(11), &value(11)).unwrap();
    // The entry is newer than the snapshot; what matters is whether the row is.
    delete(&mut old, &table, &key(1)).unwrap();
    // By that index it can't be told which rows have changed.
    let (mut found, lock) = (vec![], LockMode::Exclusive);
    let got = old.get(&table, 1, &value(3), lock, LockWait::Wait, &mut found);
    assert_eq!(got.unwrap_err(), Error::TableChanged("t".into()));
    let got = old.get(&table, 0, &key(2), lock, LockWait::Wait, &mut found);
    assert_eq!(got.unwrap_err(), Error::RecordChanged);
    old.rollback().unwrap();
    assert_eq!(agree(&db, &table).len(), 10);
    delete(&mut by_statement, &table, &key(1)).unwrap();
    by_statement.begin_statement();
    assert_eq!(scan(&mut by_statement, &table, 1).unwrap().len(), 9);
    by_statement.commit().unwrap();
    assert_eq!(agree(&db, &table).len(), 9);
}
