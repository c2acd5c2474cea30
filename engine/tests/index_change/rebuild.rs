//! A table is rebuilt in another file, beside writers.

use std::sync::Arc;

use tidepool::storage::{SimStorage, Storage};
use tidepool::{
    Db, Error, IndexChange, IndexDef, ReadRequest, Result, RoundReport, Table, TableDef,
    Transaction,
};

use crate::fixture::{
    Changed, Row, agree, begin, catch_up, def, delete, edit, entry, fill, insert, key,
    nothing_is_lost, open, round, update, value,
};
use crate::scan::{Rows, scan};
use crate::writers::{Feeding, Writers, cases, thirty_rows};

const NAMES: [&str; 4] = ["primary", "by value", "unique", "backward"];

fn def_of(names: &[&str]) -> TableDef {
    let unique = |name: &&str| ["primary", "turned", "unique"].contains(name);
    TableDef::new(
        names.iter().map(|name| IndexDef { name: name.to_string(), unique: unique(name) }),
    )
}

/// What the new table has of a row of the old one: "turned" is the clustered index in the order of
/// the keys' bytes from behind.
fn new_entry(index: &str, key: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    match index {
        "turned" => (key.iter().rev().copied().collect(), value.to_vec()),
        _ => entry(index, key, value),
    }
}

fn feed_row(change: &mut IndexChange, names: &[&str], row: Row<'_>) -> Result<()> {
    for (at, name) in names.iter().enumerate() {
        let (key, value) = new_entry(name, row.0, row.1);
        match *name {
            "primary" => change.push_row(&key, &value)?,
            _ => change.add(at, &key, &value)?,
        }
    }
    Ok(())
}

fn feed(change: &mut IndexChange, names: &[&str]) -> Result<()> {
    while let Some((key, value)) = change.next_row()? {
        let (key, value) = (key.to_vec(), value.to_vec());
        feed_row(change, names, (&key, &value))?;
    }
    Ok(())
}

fn edit_row(change: &mut IndexChange, names: &[&str], row: &Changed) -> Result<()> {
    match names[0] {
        "turned" => turn(change, row),
        _ => edit(change, names, row),
    }
}

fn catch_up_rebuild(change: &mut IndexChange, names: &[&str]) -> Result<RoundReport> {
    round(change, &|change, row| edit_row(change, names, row), &mut || true)
}

fn turn(change: &mut IndexChange, (row, before, after): &Changed) -> Result<()> {
    if let Some(before) = before {
        let (key, value) = new_entry("turned", row, before);
        change.remove(0, &key, &value)?;
    }
    if let Some(after) = after {
        let (key, value) = new_entry("turned", row, after);
        change.add(0, &key, &value)?;
    }
    Ok(())
}

fn rebuilt(db: &Db, names: &[&str]) -> Result<IndexChange> {
    let mut change = db.rebuild_table("t", &def_of(names))?;
    feed(&mut change, names)?;
    change.build(&mut || true)?;
    Ok(change)
}

fn files(sim: &SimStorage) -> Vec<String> {
    let mut files = sim.list("tables").unwrap();
    files.sort();
    files
}

fn rebuild_beside(
    db: &Db,
    table: &Arc<Table>,
    names: &[&str],
    writers: &mut Writers,
) -> Result<(Arc<Table>, Rows)> {
    let mut change = db.rebuild_table("t", &def_of(names))?;
    let feeding = Feeding {
        row: &|change, row| feed_row(change, names, row),
        edit: &|change, row| edit_row(change, names, row),
    };
    writers.beside((db, table), &mut change, &feeding)?;
    let rows = scan(&mut begin(db), table, 0)?;
    let expected = if names[0] == "turned" { turned(rows) } else { rows };
    Ok((change.commit(&[])?, expected))
}

fn turned(rows: Rows) -> Rows {
    rows.iter().map(|(key, value)| new_entry("turned", key, value)).collect()
}

#[test]
fn a_table_rebuilt_beside_random_writers_has_their_rows() {
    let (mut writes, mut refused, cases) = (0, 0, cases(150));
    for seed in 0..cases {
        let sim = SimStorage::new(seed);
        let db = open(&sim);
        let table = thirty_rows(&db);
        let names: &[&str] = match seed % 3 {
            0 => &["primary", "by value"],
            1 => &NAMES,
            _ => &["turned"],
        };
        let mut writers = Writers::new(seed, &db, if seed % 2 == 0 { 1_000_000 } else { 300 });
        let outcome = rebuild_beside(&db, &table, names, &mut writers);
        writes += writers.writes;
        drop(writers);
        let (def, rows) = match outcome {
            Ok((new, expected)) => {
                assert_eq!(table.id(), new.id());
                assert_ne!(table.space_id(), new.space_id());
                assert_eq!(new.rows() as usize, expected.len());
                if names[0] == "primary" {
                    agree(&db, &new);
                }
                nothing_is_lost(&db, &new);
                (def_of(names), expected)
            }
            Err(Error::DuplicateKey { .. }) => {
                assert!(names.contains(&"unique"), "seed {seed}");
                refused += 1;
                (def(), agree(&db, &table))
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        assert_eq!(files(&sim).len(), 1, "seed {seed}");
        assert!(sim.list("sort").unwrap_or_default().is_empty());
        drop((table, db));
        let db = open(&sim.crash());
        let table = db.open_table("t").unwrap();
        assert_eq!(table.def(), &def);
        assert_eq!(scan(&mut begin(&db), &table, 0).unwrap(), rows, "seed {seed}");
        nothing_is_lost(&db, &table);
    }
    assert!(writes > cases * 10 && (refused > 0 || cases < 100), "{writes}, {refused} refused");
}

#[test]
fn what_was_in_another_order_is_sorted() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..3000);
    let mut change = rebuilt(&db, &["turned"]).unwrap();
    let mut trx = begin(&db);
    for n in (0..3000).step_by(3) {
        delete(&mut trx, &table, &key(n)).unwrap();
        insert(&mut trx, &table, &key(n + 10_000), &value(n)).unwrap();
    }
    trx.commit().unwrap();
    let expected = turned(agree(&db, &table));
    change.stop_writes().unwrap();
    catch_up_rebuild(&mut change, &["turned"]).unwrap();
    let table = change.commit(&[]).unwrap();
    assert_eq!(scan(&mut begin(&db), &table, 0).unwrap(), expected);
    nothing_is_lost(&db, &table);
}

fn long(n: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 * 31 + n) as u8).collect()
}

/// Values of a few bytes, and of many pages.
fn put(trx: &mut Transaction, table: &Arc<Table>, n: u32, len: usize) {
    let mut old = vec![];
    let value = long(n, len);
    match trx.read(table, 0, ReadRequest::new(&key(n), &mut old)).unwrap() {
        true => trx.update(table, 0, &key(n), &value).unwrap(),
        false => trx.insert(table, 0, &key(n), &value).unwrap(),
    }
}

#[test]
fn long_values_move_and_their_pages_are_freed() {
    let names = ["primary"];
    for sorted in [false, true] {
        let sim = SimStorage::new(1);
        let db = open(&sim);
        let table = db.create_table("t", &def_of(&names)).unwrap();
        let mut trx = begin(&db);
        for n in 0..60 {
            put(&mut trx, &table, n, if n % 3 == 0 { 30_000 } else { 20 });
        }
        trx.commit().unwrap();
        let mut change = db.rebuild_table("t", &def_of(&names)).unwrap();
        while let Some((key, value)) = change.next_row().unwrap() {
            let (key, value) = (key.to_vec(), value.to_vec());
            match sorted {
                true => change.add(0, &key, &value).unwrap(),
                false => change.push_row(&key, &value).unwrap(),
            }
        }
        change.build(&mut || true).unwrap();
        for lens in [[40_000, 15], [10, 50_000], [50_000, 60_000]] {
            let mut trx = begin(&db);
            for n in 0..20 {
                put(&mut trx, &table, n, lens[n as usize % 2]);
            }
            trx.delete(&table, 0, &key(30)).unwrap();
            trx.commit().unwrap();
            catch_up_rebuild(&mut change, &names).unwrap();
            let mut trx = begin(&db);
            put(&mut trx, &table, 30, 20_000);
            trx.commit().unwrap();
        }
        let mut trx = begin(&db);
        let expected = scan(&mut trx, &table, 0).unwrap();
        trx.rollback().unwrap();
        change.stop_writes().unwrap();
        catch_up_rebuild(&mut change, &names).unwrap();
        let table = change.commit(&[]).unwrap();
        assert!(scan(&mut begin(&db), &table, 0).unwrap() == expected);
        let report = table.check(&db, &mut |_| true).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        nothing_is_lost(&db, &table);
        let db = open(&sim.crash());
        let table = db.open_table("t").unwrap();
        assert!(scan(&mut begin(&db), &table, 0).unwrap() == expected);
    }
}

#[test]
fn a_rebuild_that_is_given_up_leaves_the_table_and_no_file() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..200);
    let before = files(&sim);
    // At once, half-way, built, in a round, and because of a duplicate.
    drop(db.rebuild_table("t", &def()).unwrap());
    let mut change = db.rebuild_table("t", &def()).unwrap();
    feed(&mut change, &["primary", "by value"]).unwrap();
    assert_eq!(files(&sim).len(), 2);
    assert_eq!(change.build(&mut || false).unwrap_err(), Error::Interrupted);
    drop(change);
    drop(rebuilt(&db, &["primary", "by value"]).unwrap());
    let mut change = rebuilt(&db, &["primary", "by value"]).unwrap();
    fill(&db, &table, 200..210);
    change.begin_round().unwrap();
    change.next_changed_row().unwrap();
    drop(change);
    fill(&db, &table, 210..211);
    let mut trx = begin(&db);
    update(&mut trx, &table, &key(5), &value(6)).unwrap();
    trx.commit().unwrap();
    let error = rebuilt(&db, &["primary", "unique"]).err().unwrap();
    assert!(matches!(error, Error::DuplicateKey { index: 1, .. }), "{error:?}");
    // A full disk.
    sim.set_capacity(Some(sim.used_bytes() + 10_000));
    let error = rebuilt(&db, &["primary", "by value"]).err();
    sim.set_capacity(None);
    assert!(matches!(error, Some(Error::NoSpace(_))), "{error:?}");
    assert_eq!(files(&sim), before);
    assert_eq!(agree(&db, &table).len(), 211);
    nothing_is_lost(&db, &table);
    // Keys that do not ascend, and what is no rebuild.
    let mut change = db.rebuild_table("t", &def()).unwrap();
    change.push_row(b"b", b"").unwrap();
    for key in [&b"b"[..], b"a"] {
        let error = change.push_row(key, b"").unwrap_err();
        assert!(matches!(error, Error::KeyOutOfOrder { index: 0 }), "{error:?}");
    }
    drop(change);
    assert_eq!(files(&sim), before);
}

#[test]
fn a_duplicate_shows_the_new_row() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..20);
    let names = ["primary", "unique"];
    let mut change = rebuilt(&db, &names).unwrap();
    let mut trx = begin(&db);
    insert(&mut trx, &table, &key(30), &value(3)).unwrap();
    trx.commit().unwrap();
    let error = catch_up(&mut change, &names).unwrap_err();
    assert_eq!(error, Error::DuplicateKey { index: 1, value: key(30) });
    let mut row = vec![];
    assert!(change.row(&key(30), &mut row).unwrap());
    assert_eq!(row, value(3));
    drop(change);
    assert_eq!(agree(&db, &table).len(), 21);
}

#[test]
fn an_older_snapshot_is_refused_and_the_counters_go_on() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..50);
    assert_eq!(table.reserve_auto_increment(7).unwrap(), 1);
    let mut old = begin(&db);
    old.ensure_view();
    let names = ["primary", "by value"];
    let mut change = rebuilt(&db, &names).unwrap();
    assert_eq!(table.reserve_auto_increment(3).unwrap(), 8);
    let busy = Error::TableBusy("t".into());
    assert_eq!(db.truncate_table("t").unwrap_err(), busy);
    assert_eq!(db.rebuild_table("t", &def()).err(), Some(busy));
    change.stop_writes().unwrap();
    catch_up(&mut change, &names).unwrap();
    let table = change.commit(&[("t", b"other metadata")]).unwrap();
    assert_eq!(table.def().metadata, b"other metadata");
    assert_eq!(table.auto_increment(), 11);
    assert_eq!(table.rows(), 50);
    for index in 0..2 {
        let mut found = vec![];
        let error = old.read(&table, index, ReadRequest::new(&key(1), &mut found)).unwrap_err();
        assert_eq!(error, Error::TableChanged("t".into()));
    }
    old.rollback().unwrap();
    fill(&db, &table, 50..60);
    assert_eq!(agree(&db, &table).len(), 60);
    nothing_is_lost(&db, &table);
    drop(table);
    db.close().unwrap();
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!((table.rows(), table.auto_increment()), (60, 11));
}

#[test]
fn a_close_takes_the_new_file_away() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = db.create_table("t", &def()).unwrap();
    fill(&db, &table, 0..50);
    drop(table);
    let mut change = db.rebuild_table("t", &def()).unwrap();
    change.push_row(b"a", b"b").unwrap();
    db.close().unwrap();
    assert!(change.push_row(b"b", b"b").is_err());
    assert!(change.build(&mut || true).is_err());
    drop(change);
    assert_eq!(files(&sim).len(), 1);
    let db = open(&sim);
    assert_eq!(agree(&db, &db.open_table("t").unwrap()).len(), 50);
}

#[test]
fn a_crash_at_any_point_leaves_the_old_or_the_new_table() {
    let mut new = 0;
    for seed in 0..cases(6) {
        let names = if seed % 2 == 0 { &NAMES[..2] } else { &["turned"][..] };
        let run = |cut: Option<u64>| {
            let sim = SimStorage::new(seed);
            let db = open(&sim);
            let table = thirty_rows(&db);
            let start = sim.operation_count();
            cut.inspect(|cut| sim.crash_at(start + cut));
            let mut writers = Writers::new(seed, &db, 1_000_000);
            let outcome = rebuild_beside(&db, &table, names, &mut writers);
            (sim.clone(), outcome.is_ok(), sim.operation_count() - start)
        };
        let (_, _, whole) = run(None);
        let cuts = (1..8).map(|part| whole * part / 8).chain(whole.saturating_sub(12)..whole);
        for cut in cuts {
            let (sim, done, _) = run(Some(cut));
            let sim = sim.crash();
            let db = open(&sim);
            let table = db.open_table("t").unwrap();
            let is_new = table.def() == &def_of(names);
            assert!(is_new || table.def() == &def(), "seed {seed}, cut {cut}");
            assert!(is_new || !done, "seed {seed}, cut {cut}");
            new += u32::from(is_new);
            assert_eq!(files(&sim).len(), 1, "seed {seed}, cut {cut}");
            if names[0] == "primary" || !is_new {
                agree(&db, &table);
            }
            nothing_is_lost(&db, &table);
        }
    }
    assert!(new > 0, "no crash came behind the commit");
}
