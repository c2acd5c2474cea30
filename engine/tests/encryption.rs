//! Encryption at rest: no byte of a row is in the files of an encrypted table, and what a missing
//! key, a newer version of a key and a crash do.

#[path = "support/packed.rs"]
mod packed;

use std::path::Path;
use std::sync::Arc;

use tidepool::inspect::{Inspection, Report};
use tidepool::storage::{FileOptions, FileStorage, Storage};
use tidepool::{
    Cursor, Db, EncryptTables, EncryptionChoice, Error, IndexDef, KeySource, LockMode, LockWait,
    MemoryKeyring, Options, Seek, Table, TableDef, TableEncryption, TransactionOptions,
    combine_backups,
};

const SECRET: &str = "what only the owner may read";
const ROWS: u32 = 3000;

fn keyring() -> Arc<MemoryKeyring> {
    let ring = MemoryKeyring::default();
    ring.insert(1, 1, vec![1; 16]);
    ring.insert(5, 1, vec![5; 32]);
    Arc::new(ring)
}

fn options(ring: &Arc<MemoryKeyring>) -> Options {
    Options {
        keyring: Some(KeySource(ring.clone())),
        encryption_rotation_iops: 1000,
        ..Options::small()
    }
}

fn encrypted(choice: EncryptionChoice, key_id: u32) -> TableDef {
    let indexes = [IndexDef::unique("id"), IndexDef::non_unique("text")];
    let mut def = TableDef::new(indexes);
    def.encryption = TableEncryption { choice, key_id };
    def
}

fn fill(db: &Db, table: &Arc<Table>) {
    let mut trx = db.begin(TransactionOptions::default());
    for no in 0..ROWS {
        let text = format!("{no:08} {SECRET} {no:08}");
        trx.insert(table, 0, &no.to_be_bytes(), text.as_bytes()).unwrap();
        trx.insert(table, 1, format!("{text}{no}").as_bytes(), b"").unwrap();
    }
    trx.commit().unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for no in 0..ROWS / 3 {
        let text = format!("{no:08} {SECRET} updated");
        trx.update(table, 0, &no.to_be_bytes(), text.as_bytes()).unwrap();
    }
    trx.commit().unwrap();
}

/// Tables `a` and `b`, encrypted with keys 1 and 5.
fn fill_two_encrypted(db: &Db) {
    for (name, key) in [("a", 1), ("b", 5)] {
        let table = db.create_table(name, &encrypted(EncryptionChoice::Yes, key)).unwrap();
        fill(db, &table);
    }
}

/// Rows that take more than the pool has.
const MANY_ROWS: u32 = 12_000;

fn fill_beyond_pool(db: &Db, table: &Arc<Table>) {
    let pad = "-".repeat(200);
    for first in (0..MANY_ROWS).step_by(1000) {
        let mut trx = db.begin(TransactionOptions::default());
        for no in first..first + 1000 {
            let text = format!("{no:08} {SECRET} {pad}");
            trx.insert(table, 0, &no.to_be_bytes(), text.as_bytes()).unwrap();
            trx.insert(table, 1, text.as_bytes(), b"").unwrap();
        }
        trx.commit().unwrap();
    }
    update_beyond_pool(db, table);
}

fn update_beyond_pool(db: &Db, table: &Arc<Table>) {
    let pad = "+".repeat(200);
    let mut trx = db.begin(TransactionOptions::default());
    for no in (0..MANY_ROWS).step_by(2) {
        let text = format!("{no:08} {SECRET} {pad}");
        trx.update(table, 0, &no.to_be_bytes(), text.as_bytes()).unwrap();
    }
    trx.commit().unwrap();
}

fn count(db: &Db, table: &Arc<Table>) -> Result<u32, Error> {
    let mut trx = db.begin(TransactionOptions::default());
    let mut cursor = Cursor::new(table.clone(), 0, LockMode::None, LockWait::Wait);
    let mut rows = 0;
    let mut is_there = cursor.seek(&mut trx, b"", Seek::AtOrAfter)?;
    while is_there {
        assert!(std::str::from_utf8(cursor.value()).unwrap().contains(SECRET));
        rows += 1;
        is_there = cursor.next(&mut trx)?;
    }
    Ok(rows)
}

/// The files that have the secret's bytes.
fn leaks(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(leaks(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            if bytes.windows(SECRET.len()).any(|bytes| bytes == SECRET.as_bytes()) {
                found.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// A copy of the directory as a kill would leave it now: what it has in memory alone is gone.
fn killed(dir: &Path) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        for entry in std::fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let to = to.join(path.file_name().unwrap());
            if path.is_dir() {
                std::fs::create_dir(&to).unwrap();
                copy(&path, &to);
            } else {
                std::fs::copy(&path, &to).unwrap();
            }
        }
    }
    let to = tempfile::tempdir().unwrap();
    copy(dir, to.path());
    to
}

fn rotate(db: &Db) {
    while db.step_rotation().unwrap() {}
}

#[test]
fn no_row_of_an_encrypted_table_is_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let options = Options { encrypt_log: true, page_compression: NO_CODEC, ..options(&ring) };
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
    fill(&db, &table);
    assert_eq!(leaks(dir.path()), [""; 0], "while it is open");
    let dir = killed(dir.path());
    drop((table, db));
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let table = db.open_table("t").unwrap();
    assert_eq!(count(&db, &table).unwrap(), ROWS);
    drop(table);
    db.close().unwrap();
    assert_eq!(leaks(dir.path()), [""; 0], "after a recovery");

    let db = Db::open(dir.path(), options).unwrap();
    let plain = db.create_table("plain", &encrypted(EncryptionChoice::No, 1)).unwrap();
    fill(&db, &plain);
    drop(plain);
    db.close().unwrap();
    assert_eq!(leaks(dir.path()), ["00000011.tpd"], "the search finds what is there");
}

const NO_CODEC: tidepool::PageCompression = tidepool::PageCompression::Off;

#[test]
fn a_missing_key_costs_its_tables_alone() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    fill_two_encrypted(&db);
    let error = db.create_table("c", &encrypted(EncryptionChoice::Yes, 9)).unwrap_err();
    assert!(error.to_string().contains("encryption key 9: the keyring has no such key"), "{error}");
    assert!(db.open_table("c").is_err());
    while db.step_purge().unwrap() {}
    db.close().unwrap();

    ring.remove(5, 1);
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), ROWS);
    let error = db.open_table("b").unwrap_err();
    assert!(matches!(error, Error::Key { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("table 'b'") && text.contains("encryption key 5"), "{text}");
    ring.insert(5, 1, vec![5; 32]);
    assert_eq!(count(&db, &db.open_table("b").unwrap()).unwrap(), ROWS);
    db.close().unwrap();

    // Undo records are encrypted with key 1.
    let error = Db::open(dir.path(), Options::small()).unwrap_err();
    assert!(error.to_string().contains("undo.tpd: it is encrypted: it takes key 1"), "{error}");
}

#[test]
fn a_recovery_without_the_key_is_refused_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
    fill(&db, &table);
    // The log has changes of the table.
    let dir = killed(dir.path());
    drop((table, db));
    ring.remove(5, 1);
    let error = Db::open(dir.path(), options(&ring)).unwrap_err();
    assert!(matches!(error, Error::Key { .. }), "{error}");
    assert!(error.to_string().contains("encryption key 5"), "{error}");
    ring.insert(5, 1, vec![5; 32]);
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    assert_eq!(count(&db, &db.open_table("t").unwrap()).unwrap(), ROWS);
    db.close().unwrap();
}

#[test]
fn a_rollback_waits_for_a_missing_key_and_ends_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
    fill(&db, &table);
    let mut trx = db.begin(TransactionOptions::default());
    trx.delete(&table, 0, &7u32.to_be_bytes()).unwrap();
    // The next opening rolls it back; the log has nothing of the table any more.
    std::mem::forget(trx);
    drop(table);
    db.close().unwrap();
    ring.remove(5, 1);
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    for _ in 0..50 {
        let _ = db.step_rollback_recovered();
    }
    assert!(matches!(db.open_table("t"), Err(Error::Key { .. })));
    ring.insert(5, 1, vec![5; 32]);
    let rows = |db: &Db| count(db, &db.open_table("t").unwrap()).unwrap();
    while rows(&db) != ROWS || db.step_rollback_recovered().unwrap() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    db.close().unwrap();
}

#[test]
fn a_newer_version_of_the_key_reaches_every_page() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
    fill(&db, &table);
    drop(table);
    db.close().unwrap();
    ring.insert(5, 2, vec![55; 32]);
    ring.insert(1, 2, vec![11; 32]);
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    rotate(&db);
    let report = db.encryption_report();
    let row = report.iter().find(|row| row.name == "t").unwrap();
    assert_eq!((row.key_id, row.oldest_version, row.newest_version), (Some(5), 2, 2));
    assert_eq!(row.rotating, None);
    db.close().unwrap();
    ring.remove(5, 1);
    ring.remove(1, 1);
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    assert_eq!(count(&db, &db.open_table("t").unwrap()).unwrap(), ROWS);
    db.close().unwrap();
}

fn row_of_table(db: &Db) -> (u32, u32) {
    let report = db.encryption_report();
    let row = report.iter().find(|row| row.name == "t").unwrap();
    assert_eq!(row.rotating, None);
    (row.oldest_version, row.newest_version)
}

/// The map has versions modulo 15.
#[test]
fn versions_of_a_key_that_are_fifteen_apart_are_distinguished() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let newer = |version: u32| {
        ring.insert(5, version, vec![version as u8; 32]);
        ring.insert(1, version, vec![version as u8; 16]);
    };
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
    fill(&db, &table);
    drop(table);
    db.close().unwrap();

    newer(16);
    let options = Options { encryption_rotate_key_age: 20, ..options(&ring) };
    let db = Db::open(dir.path(), options).unwrap();
    rotate(&db);
    assert_eq!(row_of_table(&db), (1, 16), "while the database was closed");
    newer(20);
    rotate(&db);
    assert_eq!(row_of_table(&db), (1, 20), "the next turn");
    db.set_encryption_rotate_key_age(0);
    newer(35);
    rotate(&db);
    assert_eq!(row_of_table(&db), (1, 35), "without a turn");
    db.set_encryption_rotate_key_age(20);
    rotate(&db);
    assert_eq!(row_of_table(&db), (35, 35));
    newer(36);
    rotate(&db);
    assert_eq!(row_of_table(&db), (35, 36));
    db.close().unwrap();
    for version in [1, 16, 20] {
        ring.remove(5, version);
        ring.remove(1, version);
    }
    let db = Db::open(dir.path(), Options { keyring: Some(KeySource(ring)), ..Options::small() });
    let db = db.unwrap();
    assert_eq!(count(&db, &db.open_table("t").unwrap()).unwrap(), ROWS);
    db.close().unwrap();
}

#[test]
fn tables_that_do_not_say_follow_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let options = Options { page_compression: NO_CODEC, ..options(&ring) };
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::Default, 5)).unwrap();
    let other = db.create_table("n", &encrypted(EncryptionChoice::No, 1)).unwrap();
    fill(&db, &table);
    drop((table, other));
    db.close().unwrap();
    let db = Db::open(dir.path(), options.clone()).unwrap();
    for (tables, key) in
        [(EncryptTables::On, Some(5)), (EncryptTables::Off, None), (EncryptTables::Force, Some(5))]
    {
        db.set_encrypt_tables(tables).unwrap();
        rotate(&db);
        let report = db.encryption_report();
        let key_of = |name| report.iter().find(|row| row.name == name).unwrap().key_id;
        assert_eq!((key_of("t"), key_of("n")), (key, None), "{tables:?}");
        assert_eq!(count(&db, &db.open_table("t").unwrap()).unwrap(), ROWS);
    }
    let error = db.create_table("x", &encrypted(EncryptionChoice::No, 1)).unwrap_err();
    assert!(error.to_string().contains("FORCE"), "{error}");
    db.close().unwrap();
}

#[test]
fn a_table_that_gets_its_key_in_the_life_that_made_it_is_read_from_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let options = Options { page_compression: NO_CODEC, ..options(&ring) };
    let db = Db::open(dir.path(), options).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::Default, 5)).unwrap();
    fill_beyond_pool(&db, &table);
    for tables in [EncryptTables::On, EncryptTables::Off, EncryptTables::Force] {
        db.set_encrypt_tables(tables).unwrap();
        rotate(&db);
        assert_eq!(count(&db, &table).unwrap(), MANY_ROWS, "{tables:?}");
        update_beyond_pool(&db, &table);
        assert_eq!(count(&db, &table).unwrap(), MANY_ROWS, "{tables:?}");
    }
    db.close().unwrap();
}

/// How a table's file may look to a recovery whose log creates it.
#[derive(Clone, Copy, Debug)]
enum FileAtRecovery {
    /// As a kill leaves it.
    Made,
    /// Without a byte.
    Empty,
    /// Not there, as in a backup of earlier versions.
    Absent,
}

/// Pages are stored as they are, so that their text can be searched for; the log has all of them.
fn options_to_search(ring: &Arc<MemoryKeyring>) -> Options {
    Options {
        encrypt_log: true,
        page_compression: NO_CODEC,
        redo_capacity_bytes: 64 << 20,
        ..options(ring)
    }
}

#[test]
fn recovery_makes_the_file_of_an_encrypted_table_without_a_row_in_the_clear() {
    for file in [FileAtRecovery::Made, FileAtRecovery::Empty, FileAtRecovery::Absent] {
        let dir = tempfile::tempdir().unwrap();
        let ring = keyring();
        let options = options_to_search(&ring);
        let db = Db::open(dir.path(), options.clone()).unwrap();
        // The log has all of it.
        let table = db.create_table("t", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
        fill_beyond_pool(&db, &table);
        let dir = killed(dir.path());
        drop((table, db));
        let path = dir.path().join("tables/00000010.tpd");
        match file {
            FileAtRecovery::Made => {}
            FileAtRecovery::Empty => std::fs::File::create(&path).map(drop).unwrap(),
            FileAtRecovery::Absent => std::fs::remove_file(&path).unwrap(),
        }
        // As an older backup, it does not know of runs of the file either.
        for no in 0..2 {
            std::fs::remove_file(dir.path().join(format!("newest-runs.{no}"))).unwrap();
        }
        let db = Db::open(dir.path(), options.clone()).unwrap();
        let table = db.open_table("t").unwrap();
        assert_eq!(leaks(dir.path()), [""; 0], "{file:?}: after the recovery");
        update_beyond_pool(&db, &table);
        assert_eq!(count(&db, &table).unwrap(), MANY_ROWS, "{file:?}");
        let key_of_table = |db: &Db| {
            let report = db.encryption_report();
            report.into_iter().find(|row| row.name == "t").unwrap().key_id
        };
        assert_eq!(key_of_table(&db), Some(5), "{file:?}");
        assert_eq!(leaks(dir.path()), [""; 0], "{file:?}: after changes");
        rotate(&db);
        assert_eq!(count(&db, &table).unwrap(), MANY_ROWS, "{file:?}");
        drop(table);
        db.close().unwrap();
        assert_eq!(leaks(dir.path()), [""; 0], "{file:?}: closed");
        let db = Db::open(dir.path(), options).unwrap();
        assert_eq!(count(&db, &db.open_table("t").unwrap()).unwrap(), MANY_ROWS, "{file:?}");
        db.close().unwrap();
    }
}

#[test]
fn a_table_made_without_a_key_stays_so_when_recovery_makes_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let options =
        Options { redo_capacity_bytes: 64 << 20, page_compression: NO_CODEC, ..options(&ring) };
    let db = Db::open(dir.path(), options.clone()).unwrap();
    db.create_table("first", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::No, 1)).unwrap();
    fill_beyond_pool(&db, &table);
    let dir = killed(dir.path());
    drop((table, db));
    std::fs::remove_file(dir.path().join("tables/00000011.tpd")).unwrap();
    for no in 0..2 {
        std::fs::remove_file(dir.path().join(format!("newest-runs.{no}"))).unwrap();
    }
    let db = Db::open(dir.path(), options.clone()).unwrap();
    rotate(&db);
    let report = db.encryption_report();
    assert_eq!(report.iter().find(|row| row.name == "t").unwrap().key_id, None);
    assert_eq!(count(&db, &db.open_table("t").unwrap()).unwrap(), MANY_ROWS);
    db.close().unwrap();
    let without = checked(dir.path(), Options::small());
    let of_table = without.files.iter().find(|file| file.file.ends_with("00000011.tpd")).unwrap();
    assert_eq!(of_table.encrypted_pages, 0, "no image needs a key any more");
}

/// What a check finds, with the keys of the options.
fn checked(dir: &Path, options: Options) -> Report {
    let storage = |dir: &Path, read_only: bool| -> Arc<dyn Storage> {
        let options = FileOptions { direct_io: false, read_only, ..FileOptions::default() };
        Arc::new(FileStorage::new(dir, options).unwrap())
    };
    let scratch = tempfile::tempdir().unwrap();
    let base = storage(dir, true);
    let inspection = Inspection::open(base, storage(scratch.path(), false), options).unwrap();
    let report = inspection.check(&mut |_| {}).unwrap();
    inspection.abandon();
    report
}

#[test]
fn a_check_looks_into_encrypted_pages_with_the_keys_and_says_what_it_lacks_without() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let options = Options { encrypt_log: true, ..options(&ring) };
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
    fill(&db, &table);
    drop(table);
    db.close().unwrap();
    let whole = checked(dir.path(), options);
    assert!(whole.is_clean(), "{:?}", whole.problems);
    assert!(whole.files.iter().all(|file| file.encrypted_pages == 0));
    let without = checked(dir.path(), Options::small());
    assert_eq!(without.damaged_pages(), 0);
    let of_table = without.files.iter().find(|file| file.file.starts_with("tables/")).unwrap();
    assert!(of_table.encrypted_pages > 10, "{of_table:?}");
    let notes = without.notes.join("\n");
    assert!(notes.contains(&of_table.file) && notes.contains("pages are encrypted"), "{notes}");
    assert!(notes.contains("key 1"), "{notes}");
    assert!(without.lacks_key && !without.is_clean());
    assert!(!without.has_damage(), "{without:?}");
}

#[test]
fn a_check_that_lacks_one_of_two_keys_calls_nothing_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let db = Db::open(dir.path(), options(&ring)).unwrap();
    fill_two_encrypted(&db);
    while db.step_purge().unwrap() {}
    db.close().unwrap();
    ring.remove(5, 1);
    let report = checked(dir.path(), options(&ring));
    assert!(report.lacks_key && !report.has_damage(), "{report:?}");
    let notes = report.notes.join("\n");
    assert!(notes.contains("table b: not looked at: "), "{notes}");
    assert!(!notes.contains("table a"), "{notes}");
    let whole = report.tables.iter().find(|table| table.name == "a").unwrap();
    assert_eq!(whole.indexes.len(), 2);
}

/// The scrub goes on behind a whole piece of pages whose key can't be had: damage is found without
/// a key.
#[test]
fn the_scrub_reads_all_of_a_file_whose_key_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let options = Options { page_compression: NO_CODEC, ..options(&ring) };
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let open = db.create_table("open", &encrypted(EncryptionChoice::No, 1)).unwrap();
    fill(&db, &open);
    let table = db.create_table("secret", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
    fill_beyond_pool(&db, &table);
    let later = db.create_table("later", &encrypted(EncryptionChoice::No, 1)).unwrap();
    fill(&db, &later);
    while db.step_purge().unwrap() {}
    drop((open, table, later));
    db.close().unwrap();
    let pages = |db: &Db| {
        let before = db.status().get("scrub_pages").unwrap();
        db.scrub().unwrap();
        while db.step_scrub().unwrap() {}
        db.status().get("scrub_pages").unwrap() - before
    };
    let db = Db::open(dir.path(), options.clone()).unwrap();
    let all = pages(&db);
    db.close().unwrap();
    ring.remove(5, 1);
    let db = Db::open(dir.path(), options).unwrap();
    assert_eq!(pages(&db), all);
    assert_eq!(db.status().get("scrub_errors"), Some(0));
    let files = files(dir.path());
    let numbers = packed::page_numbers(&*files, 17);
    // Of 16 KiB; a piece has 64.
    assert!(numbers.len() > 200, "{} pages", numbers.len());
    packed::flip(&*files, 17, &[numbers[numbers.len() - 5]]);
    pages(&db);
    assert_eq!(db.status().get("scrub_errors"), Some(1));
    db.close().unwrap();
}

#[test]
fn a_backup_stays_encrypted_and_is_opened_with_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let ring = keyring();
    let options = Options { encrypt_log: true, page_compression: NO_CODEC, ..options(&ring) };
    let db = Db::open(dir.path().join("data"), options.clone()).unwrap();
    let table = db.create_table("t", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
    fill(&db, &table);
    let copy = dir.path().join("copy");
    db.backup(&copy, &mut |_| true).unwrap();
    drop(table);
    db.close().unwrap();
    assert_eq!(leaks(&copy), [""; 0]);
    let error = Db::open(&copy, Options::small()).unwrap_err();
    assert!(error.to_string().contains("key"), "{error}");
    let db = Db::open(&copy, options).unwrap();
    assert_eq!(count(&db, &db.open_table("t").unwrap()).unwrap(), ROWS);
    db.close().unwrap();
}

fn files(dir: &Path) -> Arc<dyn Storage> {
    let options = FileOptions { direct_io: false, ..FileOptions::default() };
    Arc::new(FileStorage::new(dir, options).unwrap())
}

/// The first encrypted table of all: undo records are not encrypted when their file is copied.
#[test]
fn a_table_made_while_a_backup_runs_is_encrypted_by_the_recovery_of_the_backup() {
    for is_incremental in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let ring = keyring();
        let options = options_to_search(&ring);
        let db = Db::open(dir.path().join("data"), options.clone()).unwrap();
        let [base, mut copy] = ["base", "copy"].map(|name| dir.path().join(name));
        let mut backup = match is_incremental {
            false => db.begin_backup_in(&copy).unwrap(),
            true => {
                db.backup(&base, &mut |_| true).unwrap();
                db.begin_backup_since_in(&base, &copy).unwrap()
            }
        };
        backup.copy_files(&mut |_| true).unwrap();
        let table = db.create_table("t", &encrypted(EncryptionChoice::Yes, 5)).unwrap();
        fill_beyond_pool(&db, &table);
        backup.finish().unwrap();
        drop(table);
        db.close().unwrap();
        if is_incremental {
            let combined = dir.path().join("combined");
            let parts = [files(&base), files(&copy)];
            combine_backups(&parts, files(&combined), &mut |_| true).unwrap();
            copy = combined;
        }

        let db = Db::open(&copy, options).unwrap();
        let table = db.open_table("t").unwrap();
        assert_eq!(count(&db, &table).unwrap(), MANY_ROWS);
        assert_eq!(leaks(&copy), [""; 0], "after the recovery; incremental: {is_incremental}");
        update_beyond_pool(&db, &table);
        assert_eq!(count(&db, &table).unwrap(), MANY_ROWS);
        drop(table);
        db.close().unwrap();
        assert_eq!(leaks(&copy), [""; 0], "closed; incremental: {is_incremental}");
        // Undo records take key 1; the table's pages none but their own.
        let only_five = MemoryKeyring::default();
        only_five.insert(5, 1, vec![5; 32]);
        let keyring = Some(KeySource(Arc::new(only_five)));
        let report = checked(&copy, Options { keyring, ..Options::small() });
        let of_table = report.files.iter().find(|file| file.file.starts_with("tables/")).unwrap();
        assert_eq!(of_table.encrypted_pages, 0, "{of_table:?}");
    }
}
