//! What can be wrong with a data directory or a disk, each with the exact message a user sees, and what stays usable.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool::{
    Cursor, Db, Error, IndexDef, LockMode, LockWait, Options, Result, Table, TableDef, TrxOptions,
};

const PAGE_SIZE: u64 = 16384;

/// Without threads, so that the messages' numbers are the same each time.
fn options() -> Options {
    Options::small()
}

fn def() -> TableDef {
    TableDef::new([IndexDef::unique("primary")])
}

fn fill(db: &Db, table: &Arc<Table>, rows: u32) -> Result<()> {
    let mut trx = db.begin(TrxOptions::default());
    for row in 0..rows {
        trx.insert(table, 0, &row.to_be_bytes(), &[7; 200])?;
    }
    trx.commit()
}

fn count(db: &Db, table: &Arc<Table>) -> Result<u32> {
    let mut trx = db.begin(TrxOptions::default());
    let mut cursor = Cursor::new(table.clone(), 0, LockMode::None, LockWait::Wait);
    let (mut rows, mut more) = (0, cursor.first(&mut trx)?);
    while more {
        rows += 1;
        more = cursor.next(&mut trx)?;
    }
    Ok(rows)
}

/// A cleanly closed directory with the tables `a` (file 10) and `b` (file 11), 1000 rows each.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    for name in ["a", "b"] {
        let table = db.create_table(name, &def()).unwrap();
        fill(&db, &table, 1000).unwrap();
    }
    db.close().unwrap();
    dir
}

fn file_of_a(dir: &Path) -> PathBuf {
    dir.join("tables/00000010.tpd")
}

fn flip(file: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// Table `a` fails with this message (up to a checksum's value), table `b` is whole.
fn only_a_fails(dir: &Path, message: &str) {
    let db = Db::open(dir, options()).unwrap();
    let error = db.open_table("a").and_then(|a| count(&db, &a)).unwrap_err().to_string();
    // Checksums in the text differ from run to run.
    let (said, sum) = error.split_once("its checksum is").unwrap_or((&error, ""));
    assert_eq!(said, message);
    assert!(sum.is_empty() || sum.contains("but its bytes give"), "{error}");
    let b = db.open_table("b").unwrap();
    assert_eq!(count(&db, &b).unwrap(), 1000);
    fill_more(&db, &b);
    assert_eq!(db.table_names().unwrap(), ["a", "b"]);
    db.drop_table("a").unwrap();
    db.close().unwrap();
    let db = Db::open(dir, options()).unwrap();
    assert_eq!(db.table_names().unwrap(), ["b"]);
    assert_eq!(count(&db, &db.open_table("b").unwrap()).unwrap(), 1001);
}

fn fill_more(db: &Db, table: &Arc<Table>) {
    let mut trx = db.begin(TrxOptions::default());
    trx.insert(table, 0, b"more", b"").unwrap();
    trx.commit().unwrap();
}

fn open_error(dir: &Path) -> String {
    Db::open(dir, options()).unwrap_err().to_string()
}

#[test]
fn flipped_bits_in_a_page() {
    let dir = directory();
    // Page 3 is a leaf, whatever the tree's shape: 1000 rows need more than ten pages.
    flip(&file_of_a(dir.path()), 3 * PAGE_SIZE + 5000);
    only_a_fails(dir.path(), "tables/00000010.tpd: page 3 is corrupt: ");
}

#[test]
fn flipped_bits_in_a_table_s_header() {
    let dir = directory();
    flip(&file_of_a(dir.path()), 200);
    only_a_fails(dir.path(), "tables/00000010.tpd: page 0 is corrupt: ");
}

#[test]
fn zeroed_allocation_bitmap() {
    let dir = directory();
    let file = fs::OpenOptions::new().write(true).open(file_of_a(dir.path())).unwrap();
    file.write_all_at(&[0; PAGE_SIZE as usize], PAGE_SIZE).unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let a = db.open_table("a").unwrap();
    let mut inserted = 0;
    let error = loop {
        let mut trx = db.begin(TrxOptions::default());
        match trx.insert(&a, 0, &[b"y", &[inserted as u8][..]].concat(), &[1; 3000]) {
            Ok(()) => trx.commit().unwrap(),
            Err(error) => break error,
        }
        inserted += 1;
        assert!(inserted < 100, "pages come from somewhere");
    };
    assert_eq!(
        error.to_string(),
        "tables/00000010.tpd: page 1 is corrupt: it is no allocation bitmap: restore the file from a backup, or drop the table"
    );
    assert_eq!(count(&db, &a).unwrap(), 1000 + inserted, "nothing was overwritten");
    drop(a);
    db.drop_table("a").unwrap();
}

#[test]
fn truncated_table_file() {
    let dir = directory();
    let file = fs::OpenOptions::new().write(true).open(file_of_a(dir.path())).unwrap();
    file.set_len(5 * PAGE_SIZE).unwrap();
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: the file is cut short: 81920 bytes, its header says 393216: restore it from a backup, or drop the table",
    );
}

#[test]
fn empty_table_file() {
    let dir = directory();
    fs::write(file_of_a(dir.path()), b"").unwrap();
    only_a_fails(
        dir.path(),
        "cannot read 'tables/00000010.tpd' at offset 0: unexpected end of file (the file has been truncated: restore it from a backup)",
    );
}

#[test]
fn missing_table_file() {
    let dir = directory();
    fs::remove_file(file_of_a(dir.path())).unwrap();
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: the file is missing: put it back, or drop the table",
    );
}

#[test]
fn table_file_of_another_directory() {
    let (dir, other) = (directory(), directory());
    fs::copy(file_of_a(other.path()), file_of_a(dir.path())).unwrap();
    only_a_fails(dir.path(), "tables/00000010.tpd: belongs to another data directory");
}

#[test]
fn table_file_of_another_table() {
    let dir = directory();
    fs::copy(dir.path().join("tables/00000011.tpd"), file_of_a(dir.path())).unwrap();
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: page 0 is corrupt: its header says that it is page 0 of space 17",
    );
}

/// As left by a kill: nothing was written back, all of it is in the redo log.
fn killed() -> tempfile::TempDir {
    let dir = directory();
    let copy = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    for name in ["a", "b"] {
        let table = db.open_table(name).unwrap();
        fill_more(&db, &table);
    }
    copy_dir(dir.path(), copy.path());
    copy
}

fn copy_dir(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (from, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        if from.is_dir() {
            fs::create_dir_all(to.join(&name)).unwrap();
            copy_dir(&from, &to.join(name));
        } else {
            fs::copy(from, to.join(name)).unwrap();
        }
    }
}

#[test]
fn missing_table_file_after_a_crash() {
    let dir = killed();
    fs::remove_file(file_of_a(dir.path())).unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    assert_eq!(
        db.open_table("a").unwrap_err().to_string(),
        "tables/00000010.tpd: the file is missing: put it back, or drop the table"
    );
    assert_eq!(count(&db, &db.open_table("b").unwrap()).unwrap(), 1001);
    db.drop_table("a").unwrap();
}

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

fn redo_files(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.join("redo")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some()).collect();
    files.sort();
    files
}

/// Does `harm` to each redo file of a copy of its own. Gives the errors of those that the log needs; without the others,
/// nothing is missing.
fn harm_redo_files(harm: impl Fn(&Path)) -> Vec<String> {
    let dir = killed();
    let mut errors = vec![];
    for file in redo_files(dir.path()) {
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        harm(&copy.path().join("redo").join(file.file_name().unwrap()));
        match Db::open(copy.path(), options()) {
            Err(error) => errors.push(error.to_string()),
            Ok(db) => assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1001),
        }
    }
    errors
}

#[test]
fn missing_redo_file() {
    let errors = harm_redo_files(|file| fs::remove_file(file).unwrap());
    assert_eq!(
        errors,
        [
            "redo/redo.00000002: missing, but it holds the redo log from LSN 528384 to 1052672; put the file back or restore the \
         data directory from a backup"
        ]
    );
}

#[test]
fn truncated_redo_file() {
    let errors = harm_redo_files(|file| {
        fs::OpenOptions::new().write(true).open(file).unwrap().set_len(8192).unwrap();
    });
    assert_eq!(
        errors,
        [
            "redo/redo.00000002: 8192 bytes long instead of 528384: it was truncated; restore the file from a backup"
        ]
    );
}

#[test]
fn missing_redo_directory() {
    let dir = directory();
    fs::remove_dir_all(dir.path().join("redo")).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "redo/control: missing, though the data directory holds 'system.tpd'; put the file back or restore the data directory from a backup"
    );
}

#[test]
fn missing_system_file() {
    let dir = directory();
    fs::remove_file(dir.path().join("system.tpd")).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "cannot open 'system.tpd': No such file or directory (os error 2) (put the missing file back, or restore a backup)"
    );
}

#[test]
fn empty_undo_file() {
    let dir = directory();
    fs::write(dir.path().join("undo.tpd"), b"").unwrap();
    let expected = "undo.tpd: there is no undo log in it, though the data directory is not new: put the file back or restore \
                    the data directory from a backup";
    assert_eq!(open_error(dir.path()), expected);
    assert_eq!(open_error(dir.path()), expected, "nothing was made in its place");
    // With changes of it in the redo log, recovery may see it first.
    let dir = killed();
    fs::write(dir.path().join("undo.tpd"), b"").unwrap();
    let error = open_error(dir.path());
    assert!(error.starts_with("undo.tpd: "), "{error}");
}

#[test]
fn undo_file_with_a_zeroed_first_page() {
    let dir = directory();
    let file = fs::OpenOptions::new().write(true).open(dir.path().join("undo.tpd")).unwrap();
    file.write_all_at(&[0; PAGE_SIZE as usize], 0).unwrap();
    let error = open_error(dir.path());
    assert!(error.starts_with("undo.tpd: there is no undo log in it"), "{error}");
}

#[test]
fn redo_of_another_directory() {
    let (dir, other) = (directory(), directory());
    fs::remove_dir_all(dir.path().join("redo")).unwrap();
    fs::create_dir(dir.path().join("redo")).unwrap();
    copy_dir(&other.path().join("redo"), &dir.path().join("redo"));
    assert_eq!(
        without_uuids(&open_error(dir.path())),
        "redo: the redo log belongs to another data directory (instance … but system.tpd is of … put back this \
         data directory's own redo log"
    );
}

#[test]
fn one_redo_file_of_another_directory() {
    let other = killed();
    let foreign = &redo_files(other.path())[0];
    let errors = harm_redo_files(|file| _ = fs::copy(foreign, file).unwrap());
    let errors: Vec<_> = errors.iter().map(|error| without_uuids(error)).collect();
    assert_eq!(
        errors,
        [
            "redo/redo.00000002: belongs to another data directory (instance … this one is … put back the file of this data \
         directory"
        ]
    );
}

/// A message with `…` in place of each uuid.
fn without_uuids(message: &str) -> String {
    let is_uuid = |word: &str| word.len() >= 36 && word.matches('-').count() == 4;
    let words = message.split(' ').map(|word| if is_uuid(word) { "…" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn corrupt_control_file() {
    let dir = directory();
    fs::write(dir.path().join("redo/control"), vec![0x55; 8192]).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "redo/control: both slots are corrupt; restore the data directory from a backup"
    );
}

#[test]
fn page_size_mismatch() {
    let dir = directory();
    let error = Db::open(dir.path(), Options { page_size: 4096, ..options() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "redo/control: the data directory has pages of 16384 bytes, but 4096 were asked for: set the page size to 16384, or use another data directory"
    );
    // 0 takes what is there.
    Db::open(dir.path(), Options { page_size: 0, ..options() }).unwrap();
}

/// Sets the format version of a table's header page, with a right checksum.
fn set_format_version(file: &Path, version: u32) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut page = vec![0; PAGE_SIZE as usize];
    file.read_exact_at(&mut page, 0).unwrap();
    page[40..44].copy_from_slice(&version.to_le_bytes());
    let crc = crc32c::crc32c(&page[4..]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&page, 0).unwrap();
}

#[test]
fn newer_format_version_of_a_table() {
    let dir = directory();
    set_format_version(&file_of_a(dir.path()), 9);
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: written in format version 9, this program reads version 2: use the version of Tidepool that wrote it",
    );
}

#[test]
fn newer_format_version_of_the_directory() {
    let dir = directory();
    set_format_version(&dir.path().join("system.tpd"), 9);
    assert_eq!(
        open_error(dir.path()),
        "system.tpd: written in format version 9, this program reads version 2: use the version of Tidepool that wrote it"
    );
}

#[test]
fn newer_format_version_of_the_redo_log() {
    let dir = directory();
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(dir.path().join("redo/control"))
        .unwrap();
    for slot in [0, 4096] {
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, slot).unwrap();
        block[8..12].copy_from_slice(&9u32.to_le_bytes());
        let crc = crc32c::crc32c(&block[..4092]);
        block[4092..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&block, slot).unwrap();
    }
    assert_eq!(
        open_error(dir.path()),
        "redo/control: format version 9, but this program reads only version 2: use the version of Tidepool that wrote it"
    );
}

#[test]
fn directory_in_use() {
    let dir = directory();
    let _db = Db::open(dir.path(), options()).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "cannot lock 'lock': Resource temporarily unavailable (os error 11) (another process uses this data directory: stop that one first)"
    );
}

#[test]
fn read_only_mode_reads_and_refuses_to_write() {
    let dir = directory();
    let before = listing(dir.path());
    let db = Db::open(dir.path(), Options { read_only: true, ..options() }).unwrap();
    let a = db.open_table("a").unwrap();
    assert_eq!(count(&db, &a).unwrap(), 1000);
    let mut trx = db.begin(TrxOptions::default());
    assert_eq!(
        trx.insert(&a, 0, b"x", b"").unwrap_err().to_string(),
        "read-only: the data directory is open read-only"
    );
    trx.commit().unwrap();
    assert_eq!(
        db.create_table("c", &def()).unwrap_err().to_string(),
        "read-only: the data directory is open read-only"
    );
    assert_eq!(
        db.drop_table("a").unwrap_err().to_string(),
        "read-only: the data directory is open read-only"
    );
    assert!(a.check(&db, &mut |_| true).unwrap().is_clean());
    db.close().unwrap();
    assert_eq!(listing(dir.path()), before);
}

#[test]
fn read_only_mode_needs_a_clean_directory() {
    let dir = killed();
    let error = Db::open(dir.path(), Options { read_only: true, ..options() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "read-only: the data directory was not closed cleanly, and recovery must write: open it writable once"
    );
}

/// Names, lengths and contents.
fn listing(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = vec![];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => out.extend(listing(&path)),
            false => out.push((path.clone(), fs::read(path).unwrap())),
        }
    }
    out.sort();
    out
}

/// On a simulated disk, single-threaded.
fn simulated() -> (SimStorage, Db, Arc<Table>) {
    let sim = SimStorage::new(3);
    let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
    let table = db.create_table("a", &def()).unwrap();
    fill(&db, &table, 1000).unwrap();
    (sim, db, table)
}

#[test]
fn disk_full_while_writing() {
    let (sim, db, table) = simulated();
    sim.set_capacity(Some(sim.used_bytes()));
    let mut trx = db.begin(TrxOptions::default());
    let mut inserted = 0u32;
    let error = loop {
        match trx.insert(&table, 0, &[b"y", &inserted.to_be_bytes()[..]].concat(), &[1; 3000]) {
            Ok(()) => inserted += 1,
            Err(error) => break error,
        }
        assert!(inserted < 100_000, "the disk is never full");
    };
    assert_eq!(
        error.to_string(),
        "no space left for tables/00000010.tpd: free disk space and run the statement again"
    );
    // The statement failed, the transaction goes on, and so does everybody else.
    trx.update(&table, 0, &5u32.to_be_bytes(), b"new").unwrap();
    trx.commit().unwrap();
    assert_eq!(count(&db, &table).unwrap(), 1000 + inserted);
    assert_eq!(
        db.create_table("c", &def()).unwrap_err().to_string(),
        "no space left for tables/00000011.tpd: free disk space and run the statement again"
    );
    assert_eq!(db.table_names().unwrap(), ["a"]);
    sim.set_capacity(None);
    let c = db.create_table("c", &def()).unwrap();
    fill(&db, &c, 10).unwrap();
    assert!(table.check(&db, &mut |_| true).unwrap().is_clean());
    drop((table, c, db));
    let db = Db::open_on(Arc::new(sim.crash()), options()).unwrap();
    assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1000 + inserted);
}

#[test]
fn read_only_mode_makes_no_new_directory() {
    let dir = tempfile::tempdir().unwrap();
    let error = Db::open(dir.path(), Options { read_only: true, ..options() }).unwrap_err();
    assert_eq!(error.to_string(), "read-only: there is no data directory, and none can be made");
    assert!(!dir.path().join("redo").exists());
    assert!(matches!(error, Error::ReadOnly(_)));
}

/// The same disk, in the next process, with nothing cached.
fn reopened(sim: &SimStorage, db: Db) -> (SimStorage, Db) {
    db.close().unwrap();
    drop(db);
    let sim = sim.kill();
    let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
    (sim, db)
}

#[test]
fn io_error_on_read() {
    let (sim, db, table) = simulated();
    drop(table);
    let (sim, db) = reopened(&sim, db);
    let table = db.open_table("a").unwrap();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("tables/").always());
    let mut trx = db.begin(TrxOptions::default());
    let mut value = vec![];
    let key = 999u32.to_be_bytes();
    let mut get = || trx.get(&table, 0, &key, LockMode::None, LockWait::Wait, &mut value);
    assert_eq!(
        get().unwrap_err().to_string(),
        "cannot read 'tables/00000010.tpd' at offset 32768: Input/output error (os error 5) (the disk failed: look in the kernel log and check the device)"
    );
    sim.clear_faults();
    assert!(get().unwrap());
    drop(trx);
    assert_eq!(count(&db, &table).unwrap(), 1000);
    fill_more(&db, &table);
}

#[test]
fn io_error_on_fsync_of_the_log() {
    let (sim, db, table) = simulated();
    sim.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("redo/"));
    let mut trx = db.begin(TrxOptions::default());
    trx.insert(&table, 0, b"lost?", b"").unwrap();
    let expected = "the engine has stopped writing: cannot sync 'redo/redo.00000001': Input/output error (os error 5) (the disk failed: look in the kernel log and check the device); restart the server to recover";
    assert_eq!(trx.commit().unwrap_err().to_string(), expected);
    // Nothing is written any more, and nothing that a retry could make look right. Reading goes on.
    let refused = trx.insert(&table, 0, b"later", b"").unwrap_err();
    assert_eq!(refused.to_string(), expected);
    assert_eq!(db.create_table("c", &def()).unwrap_err().to_string(), expected);
    assert_eq!(count(&db, &table).unwrap(), 1001);
    assert_eq!(db.close().unwrap_err().to_string(), expected);
    drop((trx, table, db));
    let db = Db::open_on(Arc::new(sim.crash()), options()).unwrap();
    let rows = count(&db, &db.open_table("a").unwrap()).unwrap();
    assert!(rows == 1000 || rows == 1001, "{rows}");
}

/// Pages stay in the pool and the redo log fills. Writers then get the disk's error, instead of waiting for ever, and go on when it is mended.
#[test]
fn io_error_on_writing_a_table() {
    let sim = SimStorage::new(3);
    let with_threads = Options { background: true, ..options() };
    let db = Db::open_on(Arc::new(sim.clone()), with_threads).unwrap();
    let table = db.create_table("a", &def()).unwrap();
    fill(&db, &table, 1000).unwrap();
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).on("tables/").always());
    let mut trx = db.begin(TrxOptions::default());
    let mut update =
        |round: u32| trx.update(&table, 0, &(round % 1000).to_be_bytes(), &[round as u8; 200]);
    let (rounds, error) = (0..1_000_000)
        .find_map(|round| update(round).err().map(|error| (round, error)))
        .expect("the redo log is never full");
    let text = error.to_string();
    assert!(text.starts_with("cannot write 'tables/00000010.tpd' at offset "), "{text}");
    assert!(text.contains("Input/output error (os error 5)"), "{text}");
    sim.clear_faults();
    update(rounds).unwrap();
    trx.commit().unwrap();
    assert_eq!(count(&db, &table).unwrap(), 1000);
    assert!(table.check(&db, &mut |_| true).unwrap().is_clean());
}

#[test]
fn io_error_on_fsync_of_a_table() {
    let (sim, db, table) = simulated();
    sim.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("tables/"));
    let error = db.close().unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot sync 'tables/00000010.tpd': Input/output error (os error 5) (the disk failed: look in the kernel log and check the device)"
    );
    drop((table, db));
    let db = Db::open_on(Arc::new(sim.crash()), options()).unwrap();
    assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1000);
}

#[test]
fn disk_remounted_read_only() {
    let (sim, db, table) = simulated();
    sim.inject(Fault::new(StorageOp::Write, FaultKind::ReadOnly).always());
    let mut trx = db.begin(TrxOptions::default());
    let error =
        trx.insert(&table, 0, b"x", b"").and_then(|()| trx.commit()).unwrap_err().to_string();
    let (file, why) = error.split_once(" at offset ").unwrap();
    assert_eq!(
        file,
        "the engine has stopped writing: read-only: cannot write 'redo/redo.00000001'"
    );
    assert_eq!(
        why.split_once(": ").unwrap().1,
        "Read-only file system (os error 30) (the file system is mounted read-only: remount it for writing, after \
         looking in the kernel log for the reason); restart the server to recover"
    );
    assert!(count(&db, &table).unwrap() >= 1000);
    drop((trx, table, db));
    let db = Db::open_on(Arc::new(sim.crash()), options()).unwrap();
    assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1000);
}

#[test]
fn read_only_data_directory() {
    let sim = SimStorage::new(4);
    sim.inject(Fault::new(StorageOp::Create, FaultKind::ReadOnly).always());
    let error = Db::open_on(Arc::new(sim), options()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "read-only: cannot create 'system.tpd': Read-only file system (os error 30) (the file system is mounted read-only: remount it for writing, after looking in the kernel log for the reason)"
    );
}
