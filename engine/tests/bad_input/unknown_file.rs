//! Files that the catalog does not know: rests of a crash are removed, anything else is set aside.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool::storage::{SimStorage, Storage};
use tidepool::{Db, Result};

use crate::copy::copy_dir;
use crate::fixture::{count, def, directory, fill, options};

/// Files in `tables/` and in `tables/orphans/`.
fn table_files(dir: &Path) -> (Vec<String>, Vec<String>) {
    let names = |dir: PathBuf| {
        let entries = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = entries
            .filter(|path| path.is_file())
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    (names(dir.join("tables")), names(dir.join("tables/orphans")))
}

#[test]
fn a_file_that_the_catalog_does_not_know_is_set_aside_whole() {
    let dir = directory();
    // A catalog older than table c.
    let older = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), older.path());
    let db = Db::open(dir.path(), options()).unwrap();
    let table = db.create_table("c", &def()).unwrap();
    fill(&db, &table, 500).unwrap();
    drop(table);
    db.close().unwrap();
    let (files, _) = table_files(dir.path());
    let [c] = &files
        .iter()
        .filter(|name| !older.path().join("tables").join(name).exists())
        .collect::<Vec<_>>()[..]
    else {
        panic!("{files:?}")
    };
    fs::copy(dir.path().join("tables").join(c), older.path().join("tables").join(c)).unwrap();
    let bytes = fs::read(older.path().join("tables").join(c)).unwrap();
    let db = Db::open(older.path(), options()).unwrap();
    let (files, aside) = table_files(older.path());
    assert_eq!((files.len(), aside.len()), (2, 1), "{files:?} {aside:?}");
    assert!(fs::read(older.path().join("tables/orphans").join(&aside[0])).unwrap() == bytes);
    // Its number may be given to another table, and a crash finds nothing wrong.
    let table = db.create_table("d", &def()).unwrap();
    fill(&db, &table, 10).unwrap();
    let crashed = tempfile::tempdir().unwrap();
    copy_dir(older.path(), crashed.path());
    let db = Db::open(crashed.path(), options()).unwrap();
    assert_eq!(count(&db, &db.open_table("d").unwrap()).unwrap(), 10);
    assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1000);
    assert_eq!(table_files(crashed.path()).1, aside);
    drop(db);
    // Put back after a kill, it is set aside once more, and not taken for the rest of something.
    let killed = tempfile::tempdir().unwrap();
    copy_dir(older.path(), killed.path());
    fs::rename(
        killed.path().join("tables/orphans").join(&aside[0]),
        killed.path().join("tables").join(c),
    )
    .unwrap();
    let db = Db::open(killed.path(), options()).unwrap();
    assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1000);
    let again = table_files(killed.path()).1;
    assert!(fs::read(killed.path().join("tables/orphans").join(&again[0])).unwrap() == bytes);
}

#[test]
fn what_a_crash_in_create_or_drop_leaves_is_removed() {
    // The power fails at each step of a CREATE, a TRUNCATE and a DROP.
    for cut in 0..90 {
        let sim = SimStorage::new(cut);
        let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
        let table = db.create_table("old", &def()).unwrap();
        fill(&db, &table, 100).unwrap();
        drop(table);
        db.close().unwrap();
        let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
        sim.crash_at(sim.operation_count() + cut);
        let steps = || -> Result<()> {
            db.create_table("new", &def())?;
            db.truncate_table("old")?;
            db.drop_table("old")
        };
        let done = steps();
        drop(db);
        let sim = sim.crash();
        let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
        assert!(!sim.exists("tables/orphans").unwrap(), "cut {cut}, {done:?}");
        assert_eq!(sim.list("tables").unwrap().len(), db.table_names().unwrap().len(), "cut {cut}");
    }
}
