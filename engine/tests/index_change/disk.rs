//! Full and failing disks, sorts that spill, and crashes at any point.

use std::sync::Arc;
use tidepool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool::{Db, Error, IndexChange, IndexDef, TableDef};

use crate::fixture::{
    agree, begin, built, change, def, delete, feed, fill, insert, key, nothing_is_lost, open,
    options, update, value, wanted,
};

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
            let mut change =
                db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names))?;
            change.set_sort_memory(sort_memory);
            feed(&mut change, &names)?;
            change.build(&mut || true)?;
            change.commit(&[])
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
    let mut change =
        db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names)).unwrap();
    change.set_sort_memory(20_000);
    feed(&mut change, &names).unwrap();
    assert_eq!(sim.list("sort").unwrap().len(), 2);
    change.build(&mut || true).unwrap();
    assert!(sim.list("sort").unwrap().is_empty());
    let table = change.commit(&[]).unwrap();
    assert_eq!(agree(&db, &table).len(), 10_000);
    let mut change = db
        .change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &["primary", "unique"]))
        .unwrap();
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
        let mut change =
            db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &names)).unwrap();
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
    assert!(error.contains(&file) && error.contains("at offset "), "{error}");
    drop(change);
    unchanged();
    let (mut change, _) = begun();
    change.build(&mut || true).unwrap();
    assert_eq!(agree(&db, &change.commit(&[]).unwrap()).len(), 10_000);
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
        db.flush_log().unwrap();
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
                let mut change =
                    db.change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", names))?;
                change.set_sort_memory(8_000);
                feed(&mut change, names)?;
                change.build(&mut || true)?;
                // Pages of the new trees reach the disk before anybody knows of them.
                for _ in 0..3 {
                    db.step_cleaner()?;
                }
                change.commit(&[]).map(drop)?;
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
fn changes_of_several_tables_cut_off_anywhere_come_together() {
    let (old, new) = (["primary", "by value"], ["primary", "unique", "backward"]);
    let tables = [("t", 300), ("u", 0), ("v", 50)];
    let mut switched = 0;
    for cut in 1.. {
        let sim = SimStorage::new(cut);
        let db = open(&sim);
        for (name, rows) in tables {
            fill(&db, &db.create_table(name, &def()).unwrap(), 0..rows);
        }
        sim.crash_at(sim.operation_count() + cut);
        let done = (|| {
            let changes = tables.map(|(name, _)| built(&db, name, &new));
            let changes = changes.into_iter().collect::<Result<_, _>>()?;
            db.step_cleaner()?;
            IndexChange::commit_all(changes, &[], &[])?;
            db.step_purge()
        })()
        .is_ok();
        let db = open(&sim.crash());
        let found = tables.map(|(name, rows)| {
            let table = db.open_table(name).unwrap();
            assert_eq!(agree(&db, &table).len(), rows as usize);
            nothing_is_lost(&db, &table);
            let names: Vec<_> = table.def().indexes.iter().map(|index| &index.name[..]).collect();
            assert!(names == old || names == new, "cut {cut}: {names:?}");
            names == new
        });
        assert!(found == [found[0]; 3], "cut {cut}: {found:?}");
        assert!(found[0] || !done, "cut {cut}");
        if done {
            break;
        }
        switched += u32::from(found[0]);
    }
    assert!(switched > 0, "no crash came behind the catalog's commit");
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
    let change = db
        .change_indexes(&db.open_table("t").unwrap(), &wanted(&db, "t", &["primary", "by value"]))
        .unwrap();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("tables/").always());
    let changed = change.commit(&[]).unwrap();
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

/// The note of an added index must not outlive the change because a dropped one can't be freed: it
/// would come upon the index later.
#[test]
fn an_index_added_beside_one_that_could_not_be_freed_can_be_dropped() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..20_000);
    db.close().unwrap();
    drop((table, db));
    // Inner pages of the dropped tree can't be read.
    let db = open(&sim);
    let change = built(&db, "t", &["primary", "backward"]).unwrap();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("tables/").always());
    let table = change.commit(&[]).unwrap();
    sim.clear_faults();
    assert!(!table.unreachable_pages().unwrap().is_empty());
    drop(table);
    let table = self::change(&db, "t", &["primary"]).unwrap();
    // The pages of the index that was added are the rows' then.
    fill(&db, &table, 20_000..60_000);
    let rows = agree(&db, &table);
    assert_eq!(rows.len(), 60_000);
    db.close().unwrap();
    drop((table, db));
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!(table.unreachable_pages().unwrap(), []);
    assert!(agree(&db, &table) == rows);
}
