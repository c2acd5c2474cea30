//! Of a damaged directory every row outside of the damaged pages is saved, and the others are
//! listed.

#[path = "support/copy.rs"]
mod copy;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool::format::entry::Entry;
use tidepool::format::node::Node;
use tidepool::inspect::Inspection;
use tidepool::inspect::salvage::Salvaged;
use tidepool::storage::{FileOptions, FileStorage, Storage};
use tidepool::{Db, IndexDef, Options, Table, TableDef, Transaction, TransactionOptions};

use copy::copy_of;

const PAGE: usize = 4096;
const TABLE: &str = "tables/00000010.tpd";
/// Page types.
const LEAF: u16 = 3;
const OVERFLOW: u16 = 5;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options { page_size: PAGE, ..Options::small() }
}

fn storage(dir: &Path, read_only: bool) -> Arc<dyn Storage> {
    let options = FileOptions { direct_io: false, read_only, ..FileOptions::default() };
    Arc::new(FileStorage::new(dir, options).unwrap())
}

fn key(id: u32) -> Vec<u8> {
    // Long enough for a tree of three levels.
    [&id.to_be_bytes()[..], &[b'k'; 40]].concat()
}

/// A table whose leaves have split and merged, and what is in it.
fn fill(db: &Db) -> Rows {
    let def = TableDef::new([IndexDef::unique("id"), IndexDef::non_unique("v")]);
    let table = db.create_table("d/t", &def).unwrap();
    let mut rows = Rows::new();
    let mut trx = db.begin(TransactionOptions::default());
    for id in 0..6000u32 {
        // Not in order, so that pages of neighbours are not neighbours.
        let id = id * 2459 % 6000;
        let len = if id % 200 == 7 { 3 * PAGE } else { 60 };
        let value = vec![id as u8; len];
        trx.insert(&table, 0, &key(id), &value).unwrap();
        trx.insert(&table, 1, &[&(id / 7).to_be_bytes()[..], &key(id)].concat(), b"").unwrap();
        rows.insert(key(id), value);
    }
    trx.commit().unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for id in 1000..2500u32 {
        trx.delete(&table, 0, &key(id)).unwrap();
        trx.delete(&table, 1, &[&(id / 7).to_be_bytes()[..], &key(id)].concat()).unwrap();
        rows.remove(&key(id));
    }
    trx.commit().unwrap();
    while db.step_purge().unwrap() {}
    rows
}

fn salvage(dir: &Path) -> (Rows, Salvaged) {
    let scratch = tempfile::tempdir().unwrap();
    let inspection =
        Inspection::open(storage(dir, true), storage(scratch.path(), false), options()).unwrap();
    let (tables, _) = inspection.salvage_tables().unwrap();
    let table = tables.iter().find(|table| table.space == 16).expect("the table is found");
    let mut rows = Rows::new();
    let found = inspection.salvage(
        table,
        &mut |key, value| {
            assert!(rows.insert(key.to_vec(), value.to_vec()).is_none(), "a row is given twice");
            Ok(())
        },
        &mut |_| {},
    );
    inspection.abandon();
    (rows, found.unwrap())
}

/// The file's pages.
fn pages(dir: &Path) -> Vec<Vec<u8>> {
    std::fs::read(dir.join(TABLE)).unwrap().chunks_exact(PAGE).map(<[u8]>::to_vec).collect()
}

fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(page[at..at + 2].try_into().unwrap())
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

/// For each row, the pages that it is on; `rows` says which there are, so that leaves that were
/// freed don't count.
fn pages_of_rows(pages: &[Vec<u8>], rows: &Rows, tree: u32) -> BTreeMap<Vec<u8>, Vec<usize>> {
    let mut found = BTreeMap::new();
    let is_allocated = |no: usize| pages[1][64 + no / 8] >> (no % 8) & 1 == 1;
    for (no, page) in pages.iter().enumerate() {
        if u16_at(page, 12) != LEAF || u32_at(page, 24) != tree || !is_allocated(no) {
            continue;
        }
        let leaf = Node::new(page).unwrap();
        for slot in 0..leaf.count() {
            let mut on = vec![no];
            let entry = Entry::decode(leaf.payload(slot)).unwrap();
            let mut next = entry.overflow().map_or(0, |long| long.first_page as usize);
            while next != 0 {
                assert_eq!(u16_at(&pages[next], 12), OVERFLOW);
                on.push(next);
                next = u32_at(&pages[next], 32) as usize;
            }
            if rows.contains_key(&leaf.key(slot)) {
                assert!(found.insert(leaf.key(slot), on).is_none());
            }
        }
    }
    assert_eq!(found.len(), rows.len());
    found
}

/// Whether the report says that this key can't be read.
fn is_listed(found: &Salvaged, key: &[u8]) -> bool {
    let in_gap = found.gaps.iter().any(|gap| {
        gap.lower.as_slice() <= key && gap.upper.as_ref().is_none_or(|upper| key < upper.as_slice())
    });
    in_gap || found.lost.iter().any(|lost| lost.key == key)
}

fn damage(random: &mut StdRng, dir: &Path, no: usize) {
    let path = dir.join(TABLE);
    let mut bytes = std::fs::read(&path).unwrap();
    let page = &mut bytes[no * PAGE..(no + 1) * PAGE];
    match random.random_range(0..3) {
        0 => page[random.random_range(0..PAGE)] ^= 1 << random.random_range(0..8),
        1 => {
            let at = random.random_range(0..8) * 512;
            page[at..at + 512].iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
        _ => page.fill(0),
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn every_row_outside_of_damaged_pages_is_saved() {
    let whole = tempfile::tempdir().unwrap();
    let db = Db::open(whole.path(), options()).unwrap();
    let rows = fill(&db);
    db.close().unwrap();
    let pages = pages(whole.path());
    let on = pages_of_rows(&pages, &rows, 16);
    let is_inner = |no: &usize| u16_at(&pages[*no], 12) == 4 && u32_at(&pages[*no], 24) == 16;
    let inner: Vec<usize> = (0..pages.len()).filter(is_inner).collect();
    assert!(inner.len() > 2, "a tree of three levels");
    let (saved, found) = salvage(whole.path());
    assert!(found.is_whole() && saved == rows);

    let mut random = StdRng::seed_from_u64(1);
    for round in 0..60 {
        let dir = copy_of(whole.path());
        let count = random.random_range(1..12);
        let mut damaged: BTreeSet<usize> =
            (0..count).map(|_| random.random_range(0..pages.len())).collect();
        // The nodes above the leaves, the root among them, and the pages that say what is
        // allocated.
        if round % 2 == 0 {
            damaged.insert(inner[random.random_range(0..inner.len())]);
        }
        for &no in &damaged {
            damage(&mut random, dir.path(), no);
        }
        let (saved, found) = salvage(dir.path());
        let is_lost = |key: &[u8]| on[key].iter().any(|no| damaged.contains(no));
        let expected: Rows = rows
            .iter()
            .filter(|(key, _)| !is_lost(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let too_few: Vec<_> = expected.keys().filter(|key| !saved.contains_key(*key)).collect();
        assert!(too_few.is_empty(), "round {round}: {} rows are not saved", too_few.len());
        // Without the bitmap, a leaf that was freed passes for one of the tree.
        let knows_allocation = !damaged.contains(&0) && !damaged.contains(&1);
        if knows_allocation || found.notes.is_empty() {
            assert!(saved == expected, "round {round}: rows that are not there");
        }
        for key in rows.keys().filter(|key| !saved.contains_key(*key)) {
            assert!(is_listed(&found, key), "round {round}: a row is neither saved nor listed");
        }
    }
}

/// The same as `fill` leaves, and a transaction in the middle of everything.
fn begin_unfinished(db: &Db, table: &Arc<Table>) -> Transaction {
    let mut trx = db.begin(TransactionOptions::default());
    for id in (0..900).step_by(9) {
        trx.update(table, 0, &key(id), &vec![9; 2 * PAGE]).unwrap();
    }
    for id in (1..900).step_by(9) {
        trx.delete(table, 0, &key(id)).unwrap();
    }
    for id in 7000..7100 {
        trx.insert(table, 0, &key(id), b"not committed").unwrap();
    }
    db.log_flush().unwrap();
    trx
}

#[test]
fn rows_are_as_they_were_committed_last() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let rows = fill(&db);
    let table = db.open_table("d/t").unwrap();
    let trx = begin_unfinished(&db, &table);
    let crashed = copy_of(dir.path());
    let (saved, found) = salvage(crashed.path());
    assert!(found.is_whole(), "{found:?}");
    assert!(saved == rows);
    drop(trx);

    // Without the engine, and so without the log, the newest versions in the files are given, and
    // counted.
    let path = crashed.path().join("undo.tpd");
    std::fs::remove_file(path).unwrap();
    let (saved, found) = salvage(crashed.path());
    assert!(found.unsure_entries > 0 && !found.is_whole());
    assert!(saved.len() > 2000, "{}", saved.len());
}

/// No start succeeds, and force_recovery=3 does: the log is applied, and undo tells which rows were
/// committed.
#[test]
fn without_a_catalog_rows_are_as_they_were_committed_last() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let rows = fill(&db);
    db.close().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let table = db.open_table("d/t").unwrap();
    let trx = begin_unfinished(&db, &table);
    let crashed = copy_of(dir.path());
    for file in ["system.tpd", "system-mirror.tpd"] {
        let path = crashed.path().join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[PAGE * 2..PAGE * 3].fill(0x55);
        std::fs::write(&path, bytes).unwrap();
    }
    let (saved, found) = salvage(crashed.path());
    assert_eq!((found.unsure_entries, found.lost_entries), (0, 0), "{found:?}");
    assert!(found.gaps.is_empty(), "{:?}", found.gaps);
    assert!(saved == rows, "{} rows of {}", saved.len(), rows.len());
    drop(trx);
}

#[test]
fn a_table_whose_catalog_entry_is_lost_is_found_by_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let rows = fill(&db);
    db.close().unwrap();
    let path = dir.path().join("system.tpd");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[PAGE * 2..].fill(0x55);
    std::fs::write(&path, bytes).unwrap();
    let (saved, found) = salvage(dir.path());
    assert!(saved == rows, "{} rows of {}", saved.len(), rows.len());
    assert!(found.gaps.is_empty(), "{:?}", found.gaps);
}
