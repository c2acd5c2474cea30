use super::file::TableExport;
use super::*;
use crate::{
    EncryptionChoice, IndexDef, KeySource, MemoryKeyring, Options, ReadRequest, TableEncryption,
    TransactionOptions,
};
use std::io::Cursor as Bytes;
use tidepool_pool::storage::SimStorage;

fn options() -> Options {
    Options { page_size: 4096, ..Options::small() }
}

fn open(seed: u64, options: Options) -> Db {
    Db::open_on(Arc::new(SimStorage::new(seed)), options).unwrap()
}

fn two_indexes() -> TableDef {
    TableDef {
        metadata: b"metadata".to_vec(),
        ..TableDef::new([IndexDef::unique("id"), IndexDef::non_unique("k")])
    }
}

/// Rows whose values are of all lengths: inside of a page, on overflow pages, of several blocks.
fn rows() -> Vec<(Vec<u8>, Vec<u8>)> {
    let lens = [0, 1, 100, 3000, 70_000, file::PIECE, 3 * file::PIECE + 7];
    (0..2000u32)
        .map(|n| {
            let len = if n % 300 == 7 { lens[(n / 300) as usize % lens.len()] } else { 40 };
            (n.to_be_bytes().to_vec(), vec![n as u8; len])
        })
        .collect()
}

fn fill(db: &Db, name: &str, def: &TableDef) -> Arc<Table> {
    let table = db.create_table(name, def).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for (key, value) in rows() {
        trx.insert(&table, 0, &key, &value).unwrap();
        let second = [&[key[3]], &key[..]].concat();
        trx.insert(&table, 1, &second, b"").unwrap();
    }
    trx.commit().unwrap();
    table.raise_auto_increment(77).unwrap();
    table
}

fn exported(db: &Db, name: &str) -> Vec<u8> {
    let mut file = Vec::new();
    db.export_table(name, b"described", &mut file, &mut |_| true).unwrap();
    file
}

fn read(file: &[u8]) -> Result<TableExport> {
    TableExport::open("t.tpx", Box::new(Bytes::new(file.to_vec())))
}

fn import(db: &Db, name: &str, file: &[u8]) -> Result<Arc<Table>> {
    let export = read(file)?;
    let def = export.exported().def.clone();
    db.import_table(name, &def, export, &mut |_| true)
}

fn entries(db: &Db, table: &Arc<Table>, index: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut trx = db.begin(TransactionOptions::default());
    let mut cursor = Cursor::new(table.clone(), index, LockMode::None, LockWait::Wait);
    let mut found = Vec::new();
    let mut is_there = cursor.first(&mut trx).unwrap();
    while is_there {
        found.push((cursor.key().to_vec(), cursor.value().to_vec()));
        is_there = cursor.next(&mut trx).unwrap();
    }
    found
}

#[test]
fn a_table_comes_out_as_it_went_in_with_pages_of_another_size() {
    let db = open(1, options());
    let table = fill(&db, "t", &two_indexes());
    let mut trx = db.begin(TransactionOptions::default());
    trx.delete(&table, 0, &5u32.to_be_bytes()).unwrap();
    trx.commit().unwrap();
    let mut open_one = db.begin(TransactionOptions::default());
    open_one.insert(&table, 0, b"uncommitted", b"").unwrap();
    let file = exported(&db, "t");
    open_one.rollback().unwrap();

    let other = open(2, Options { page_size: 16384, ..options() });
    let export = read(&file).unwrap();
    assert_eq!(export.exported().description, b"described");
    assert_eq!((export.exported().table.as_str(), export.exported().page_size), ("t", 4096));
    let there = import(&other, "elsewhere", &file).unwrap();
    let mut expected = rows();
    expected.remove(5);
    assert_eq!(entries(&other, &there, 0), expected);
    assert_eq!(entries(&other, &there, 1), entries(&db, &table, 1));
    assert_eq!((there.rows(), there.auto_increment()), (expected.len() as u64, 77));
    assert_eq!(other.table_def("elsewhere").unwrap(), two_indexes());
    other.write(|trx| trx.put(&there, b"z", b"new")).unwrap();
}

#[test]
fn an_empty_table_moves_too() {
    let db = open(1, options());
    db.create_table("t", &two_indexes()).unwrap();
    let file = exported(&db, "t");
    let there = import(&db, "u", &file).unwrap();
    assert_eq!((there.rows(), entries(&db, &there, 0)), (0, vec![]));
}

#[test]
fn a_discarded_table_is_used_by_no_one_until_it_is_imported() {
    let db = open(1, options());
    let table = fill(&db, "t", &two_indexes());
    let mut old = db.begin(TransactionOptions::default());
    old.ensure_view();
    let file = exported(&db, "t");
    let exists = import(&db, "t", &file).err();
    assert_eq!(exists, Some(Error::TableExists("t".into())));

    let discarded = db.discard_table("t").unwrap();
    assert!(db.is_discarded("t").unwrap() && discarded.is_discarded());
    let refused = Some(Error::TableDiscarded("t".into()));
    let mut trx = db.begin(TransactionOptions::default());
    assert_eq!(trx.insert(&discarded, 0, b"k", b"v").err(), refused);
    let mut value = Vec::new();
    let found = trx.read(&discarded, 0, ReadRequest::new(b"k", &mut value));
    assert_eq!(found.err(), refused);
    assert_eq!(db.truncate_table("t").err(), refused);
    assert_eq!(db.fill_table("t").err(), refused);
    assert_eq!(db.rebuild_table("t", &two_indexes()).err(), refused);
    assert_eq!(db.export_table("t", &[], &mut Vec::new(), &mut |_| true).err(), refused);
    // Twice is once.
    assert!(db.discard_table("t").unwrap().is_discarded());
    db.rename_table("t", "u").unwrap();

    let there = import(&db, "u", &file).unwrap();
    assert!(!db.is_discarded("u").unwrap());
    assert_eq!(entries(&db, &there, 0), rows());
    assert_eq!(there.id(), table.id());
    // A view from before sees neither the rows of before nor these.
    let found = old.read(&there, 0, ReadRequest::new(&7u32.to_be_bytes(), &mut value));
    assert_eq!(found.err(), Some(Error::TableChanged("u".into())));
}

#[test]
fn every_cut_and_every_changed_byte_is_found_out_and_leaves_nothing() {
    let db = open(1, options());
    let table = db.create_table("t", &two_indexes()).unwrap();
    db.write(|trx| {
        for n in 0..50u32 {
            trx.insert(&table, 0, &n.to_be_bytes(), b"value")?;
        }
        Ok(())
    })
    .unwrap();
    let file = exported(&db, "t");
    for len in 0..file.len() {
        let error = import(&db, "u", &file[..len]).err();
        assert!(matches!(&error, Some(Error::Format { .. })), "{len} bytes: {error:?}");
    }
    for at in 0..file.len() {
        let mut changed = file.clone();
        changed[at] ^= 0x10;
        let error = import(&db, "u", &changed).err();
        assert!(matches!(&error, Some(Error::Format { .. })), "byte {at}: {error:?}");
    }
    let longer = [&file[..], &[0]].concat();
    assert!(import(&db, "u", &longer).err().unwrap().to_string().contains("follows the end"));
    assert!(!db.table_exists("u").unwrap());
    assert_eq!(import(&db, "u", &file).unwrap().rows(), 50);
}

#[test]
fn an_error_names_the_file_the_block_and_what_to_do() {
    let db = open(1, options());
    fill(&db, "t", &two_indexes());
    let mut file = exported(&db, "t");
    let middle = file.len() / 2;
    file[middle] ^= 1;
    let error = import(&db, "u", &file).err().unwrap().to_string();
    assert!(error.starts_with("t.tpx: block "), "{error}");
    assert!(error.ends_with("copy the file again, or export the table again"), "{error}");
    let error = read(b"something else").err().unwrap().to_string();
    assert!(error.contains("no table that Tidepool has exported"), "{error}");
}

#[test]
fn an_import_that_is_interrupted_leaves_the_table_discarded() {
    let db = open(1, options());
    fill(&db, "t", &two_indexes());
    let file = exported(&db, "t");
    db.discard_table("t").unwrap();
    let mut turns = 0;
    let mut go_on = |_: ExportProgress| {
        turns += 1;
        turns < 3
    };
    let export = read(&file).unwrap();
    let stopped = db.import_table("t", &two_indexes(), export, &mut go_on);
    assert_eq!(stopped.err(), Some(Error::Interrupted));
    assert!(db.is_discarded("t").unwrap());
    let other = TableDef::new([IndexDef::unique("id")]);
    let refused = db.import_table("t", &other, read(&file).unwrap(), &mut |_| true);
    assert!(matches!(refused.err(), Some(Error::InvalidOption(_))));
    assert_eq!(entries(&db, &import(&db, "t", &file).unwrap(), 0), rows());
}

fn with_key(byte: u8) -> Options {
    let ring = MemoryKeyring::default();
    ring.insert(1, 1, vec![byte; 32]);
    Options { keyring: Some(KeySource(Arc::new(ring))), ..options() }
}

#[test]
fn an_encrypted_table_is_encrypted_in_its_export_and_needs_its_key() {
    let def = TableDef {
        encryption: TableEncryption { choice: EncryptionChoice::Yes, key_id: 1 },
        ..two_indexes()
    };
    let db = open(1, with_key(1));
    let table = db.create_table("t", &def).unwrap();
    let secret = b"what only the owner of the keyring may read";
    db.write(|trx| trx.insert(&table, 0, b"k", secret)).unwrap();
    let file = exported(&db, "t");
    assert!(!file.windows(secret.len()).any(|window| window == secret));

    let same = open(2, with_key(1));
    let there = import(&same, "t", &file).unwrap();
    assert_eq!(entries(&same, &there, 0), vec![(b"k".to_vec(), secret.to_vec())]);

    let error = import(&open(3, with_key(2)), "t", &file).err().unwrap().to_string();
    assert!(error.contains("another key of that number"), "{error}");
    let without = open(4, options());
    let refused = without.import_table("t", &two_indexes(), read(&file).unwrap(), &mut |_| true);
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("t.tpx is encrypted: version 1 of encryption key 1"), "{error}");
    assert!(!without.table_exists("t").unwrap());
}

/// After a power cut at any operation of a discard and an import the table is whole: as it was,
/// discarded, or imported.
#[test]
fn a_crash_leaves_the_table_as_it_was_or_discarded_or_imported() {
    let source = open(1, options());
    fill(&source, "t", &two_indexes());
    let file = exported(&source, "t");
    let prepared = |seed| {
        let disk = SimStorage::new(seed);
        let db = Db::open_on(Arc::new(disk.clone()), options()).unwrap();
        let table = db.create_table("t", &two_indexes()).unwrap();
        db.write(|trx| trx.insert(&table, 0, b"old", b"row")).unwrap();
        (disk, db)
    };
    let change = |db: &Db| db.discard_table("t").and_then(|_| import(db, "t", &file));
    let (disk, db) = prepared(0);
    let before = disk.operation_count();
    change(&db).unwrap();
    let all = disk.operation_count() - before;

    let mut seen = [0; 3];
    let points = 60.min(all);
    for point in 0..=points {
        let (disk, db) = prepared(point);
        disk.crash_at(disk.operation_count() + 1 + point * all / points);
        let acknowledged = change(&db).is_ok();
        drop(db);
        let db = Db::open_on(Arc::new(disk.crash()), options()).unwrap();
        let table = db.open_table("t").unwrap();
        if db.is_discarded("t").unwrap() {
            assert!(!acknowledged);
            seen[1] += 1;
            assert_eq!(import(&db, "t", &file).unwrap().rows(), rows().len() as u64);
            continue;
        }
        let found = entries(&db, &table, 0);
        if found.len() == 1 {
            assert!(!acknowledged);
            seen[0] += 1;
            assert_eq!(found, vec![(b"old".to_vec(), b"row".to_vec())]);
        } else {
            seen[2] += 1;
            assert_eq!(found, rows());
            assert_eq!(table.auto_increment(), 77);
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
