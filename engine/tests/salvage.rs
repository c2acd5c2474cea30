//! Of a damaged directory every row outside of the damaged pages is saved, and the others are
//! listed.

#[path = "support/copy.rs"]
mod copy;
#[path = "support/packed.rs"]
mod packed;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool::inspect::Inspection;
use tidepool::inspect::salvage::Salvaged;
use tidepool::internals::entry::Entry;
use tidepool::internals::node::Node;
use tidepool::storage::{FileOptions, FileStorage, Storage};
use tidepool::{
    Cursor, Db, ForceRecovery, IndexDef, LockMode, LockWait, Options, Table, TableDef, Transaction,
    TransactionOptions,
};

use copy::copy_of;
use packed::files_in;

const PAGE: usize = 4096;
/// The table's.
const SPACE: u32 = 16;
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
    let table = tables.iter().find(|table| table.space == SPACE).expect("the table is found");
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

fn damage(random: &mut StdRng, dir: &Path, place: &packed::Place) {
    packed::change_bytes(&files_in(dir), SPACE, place, |image| match random.random_range(0..3) {
        0 => image[random.random_range(0..image.len())] ^= 1 << random.random_range(0..8),
        1 => {
            let at = random.random_range(0..image.len());
            let end = image.len().min(at + 512);
            image[at..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
        _ => image.fill(0),
    });
}

#[test]
fn every_row_outside_of_damaged_pages_is_saved() {
    let whole = tempfile::tempdir().unwrap();
    let db = Db::open(whole.path(), options()).unwrap();
    let rows = fill(&db);
    db.close().unwrap();
    let pages = packed::pages(&files_in(whole.path()), SPACE);
    let written = packed::page_numbers(&files_in(whole.path()), SPACE);
    let places = packed::places(&files_in(whole.path()), SPACE, &written);
    let on = pages_of_rows(&pages, &rows, SPACE);
    let is_inner = |no: &usize| u16_at(&pages[*no], 12) == 4 && u32_at(&pages[*no], 24) == SPACE;
    let inner: Vec<usize> = (0..pages.len()).filter(is_inner).collect();
    assert!(inner.len() > 2, "a tree of three levels");
    let (saved, found) = salvage(whole.path());
    assert!(found.is_whole() && saved == rows);

    let mut random = StdRng::seed_from_u64(1);
    for round in 0..60 {
        let dir = copy_of(whole.path());
        let count = random.random_range(1..12);
        let mut damaged: BTreeSet<usize> =
            (0..count).map(|_| written[random.random_range(0..written.len())] as usize).collect();
        // The nodes above the leaves, the root among them, and the pages that say what is
        // allocated.
        if round % 2 == 0 {
            damaged.insert(inner[random.random_range(0..inner.len())]);
        }
        for &no in &damaged {
            let at = written.iter().position(|of| *of as usize == no).expect("it has an image");
            damage(&mut random, dir.path(), &places[at]);
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
    db.flush_log().unwrap();
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

/// No start succeeds, and force_recovery=3 does: the log is applied, and undo shows which rows were
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
    packed::flip(&files_in(crashed.path()), packed::SYSTEM, &[2]);
    let path = crashed.path().join("system-mirror.tpd");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[PAGE * 2..PAGE * 3].fill(0x55);
    std::fs::write(&path, bytes).unwrap();
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
    for name in ["system.tpd", "system-mirror.tpd"] {
        let path = dir.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[PAGE * 2..].fill(0x55);
        std::fs::write(&path, bytes).unwrap();
    }
    let (saved, found) = salvage(dir.path());
    assert!(saved == rows, "{} rows of {}", saved.len(), rows.len());
    assert!(found.gaps.is_empty(), "{:?}", found.gaps);
}

/// Changes the bytes of the table's file.
fn edit(dir: &Path, change: impl FnOnce(&mut [u8])) {
    let path = dir.join(packed::file_name(SPACE));
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Byte offsets of the headers of runs.
fn run_headers(dir: &Path) -> Vec<usize> {
    let bytes = std::fs::read(dir.join(packed::file_name(SPACE))).unwrap();
    (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..].starts_with(b"TPRN")).collect()
}

/// The table's file as a whole can't be opened: no root of it is whole. All rows are in it.
#[test]
fn of_a_file_without_a_root_all_rows_are_saved() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let rows = fill(&db);
    db.close().unwrap();
    edit(dir.path(), |bytes| bytes[..4 * 4096].fill(0));
    let db = Db::open(dir.path(), options()).unwrap();
    let error = db.open_table("d/t").unwrap_err().to_string();
    assert!(error.contains("tables/00000010.tpd: none of its roots is whole"), "{error}");
    db.close().unwrap();
    let (saved, found) = salvage(dir.path());
    assert!(saved == rows, "{} rows of {}", saved.len(), rows.len());
    assert!(found.gaps.is_empty() && found.lost_entries == 0, "{found:?}");
    assert!(found.is_rescued && !found.is_whole());
    assert!(found.notes[0].contains("none of its roots is whole"), "{:?}", found.notes);
}

/// The same after a kill, so that the log has changes of the table.
#[test]
fn the_last_resort_reads_a_file_without_a_root() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    fill(&db);
    db.close().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let table = db.open_table("d/t").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for id in 0..100 {
        trx.update(&table, 0, &key(id), b"newer").unwrap();
    }
    trx.commit().unwrap();
    db.flush_log().unwrap();
    let crashed = copy_of(dir.path());
    edit(crashed.path(), |bytes| bytes[..4 * 4096].fill(0));
    let before = std::fs::read(crashed.path().join(packed::file_name(SPACE))).unwrap();
    let options = Options { force_recovery: ForceRecovery::ReadOnly, ..options() };
    let forced = Db::open(crashed.path(), options).unwrap();
    let table = forced.open_table("d/t").unwrap();
    let mut trx = forced.begin(TransactionOptions::default());
    let mut cursor = Cursor::new(table, 0, LockMode::None, LockWait::Wait);
    let (mut count, mut newer) = (0, 0);
    let mut more = cursor.first(&mut trx).unwrap();
    while more {
        count += 1;
        newer += u32::from(cursor.value() == b"newer");
        more = cursor.next(&mut trx).unwrap();
    }
    assert_eq!((count, newer), (4500, 100));
    drop((cursor, trx, forced));
    let after = std::fs::read(crashed.path().join(packed::file_name(SPACE))).unwrap();
    assert!(before == after, "the file is as it was");
}

/// The header of each run is spoilt in turn, with and without roots: no row is wrong, and what is
/// missing is listed.
#[test]
fn a_spoilt_header_of_a_run_gives_no_wrong_row() {
    let whole = tempfile::tempdir().unwrap();
    let db = Db::open(whole.path(), options()).unwrap();
    let rows = fill(&db);
    db.close().unwrap();
    let headers = run_headers(whole.path());
    assert!(headers.len() > 4, "{headers:?}");
    for (round, at) in headers.into_iter().enumerate() {
        let dir = copy_of(whole.path());
        edit(dir.path(), |bytes| {
            if round % 2 == 0 {
                bytes[..4 * 4096].fill(0);
            }
            match round % 3 {
                0 => bytes[at + 70] ^= 1,
                1 => bytes[at + 20] ^= 1,
                _ => bytes[at..at + 4096].fill(0),
            }
        });
        let (saved, found) = salvage(dir.path());
        let wrong = saved.iter().filter(|(key, value)| rows.get(*key) != Some(*value)).count();
        assert_eq!(wrong, 0, "header at {at}: {:?}", found.notes);
        for key in rows.keys().filter(|key| !saved.contains_key(*key)) {
            assert!(is_listed(&found, key), "header at {at}: a row is neither saved nor listed");
        }
        assert!(
            round % 3 == 2 || saved.len() + 200 > rows.len(),
            "header at {at}: {}",
            saved.len()
        );
    }
}

/// A directory whose log has newer rows of the table than its file, and the rows.
fn crashed_behind_its_log() -> (tempfile::TempDir, Rows) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let mut rows = fill(&db);
    db.close().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let table = db.open_table("d/t").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for id in 0..900 {
        trx.update(&table, 0, &key(id), b"newer").unwrap();
        rows.insert(key(id), b"newer".to_vec());
    }
    trx.commit().unwrap();
    db.flush_log().unwrap();
    let crashed = copy_of(dir.path());
    drop((trx, table, db));
    (crashed, rows)
}

/// Its file was not there when the crash was recovered from, and is back: all of its pages are
/// whole, and lack what the log had.
#[test]
fn a_table_that_lost_changes_is_not_whole() {
    let (dir, rows) = crashed_behind_its_log();
    let (path, aside) = (dir.path().join(packed::file_name(SPACE)), dir.path().join("aside"));
    std::fs::rename(&path, &aside).unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    db.open_table("d/t").unwrap_err();
    db.close().unwrap();
    std::fs::rename(&aside, &path).unwrap();
    let error = Db::open(dir.path(), options()).unwrap().open_table("d/t").unwrap_err();
    assert!(error.to_string().contains("lacks changes"), "{error}");
    let (saved, found) = salvage(dir.path());
    assert!(saved.len() > 4000 && saved != rows, "{} rows", saved.len());
    assert!(found.lacks_changes && !found.is_whole(), "{found:?}");
}

/// The same where the look at the directory itself finds out that the file takes no changes.
#[test]
fn a_table_that_the_log_does_not_fit_is_not_whole_at_any_level() {
    for is_startable in [true, false] {
        let (dir, rows) = crashed_behind_its_log();
        // Its pages are gone from the file, as from one that was replaced.
        let storage = files_in(dir.path());
        for no in 3..packed::page_numbers(&storage, SPACE).len() as u32 {
            packed::write_page(&storage, SPACE, no, Vec::new());
        }
        if !is_startable {
            // A page of the catalog, and its second copy.
            packed::flip(&storage, packed::SYSTEM, &[2]);
            let path = dir.path().join("system-mirror.tpd");
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[PAGE * 2..PAGE * 3].fill(0x55);
            std::fs::write(&path, bytes).unwrap();
        }
        let (saved, found) = salvage(dir.path());
        assert!(saved != rows);
        assert!(found.lacks_changes && !found.is_whole(), "{is_startable}: {found:?}");
    }
}
