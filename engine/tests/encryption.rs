//! Encryption at rest: no byte of a row is in the files of an encrypted table, and what a missing
//! key, a newer version of a key and a crash do.

use std::path::Path;
use std::sync::Arc;

use tidepool::inspect::{Inspection, Report};
use tidepool::storage::{FileOptions, FileStorage, Storage};
use tidepool::{
    Cursor, Db, EncryptTables, EncryptionChoice, Error, IndexDef, KeySource, LockMode, LockWait,
    MemoryKeyring, Options, Seek, Table, TableDef, TableEncryption, TransactionOptions,
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
    for (name, key) in [("a", 1), ("b", 5)] {
        let table = db.create_table(name, &encrypted(EncryptionChoice::Yes, key)).unwrap();
        fill(&db, &table);
    }
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
    let problems = without.problems.join("\n");
    assert!(problems.contains("key 1"), "{problems}");
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
