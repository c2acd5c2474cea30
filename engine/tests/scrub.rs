//! The scrub finds damage in pages that no query asks for, and takes nothing for damage that is
//! none.

#[path = "support/packed.rs"]
mod packed;

use std::path::Path;

use packed::files_in;
use tidepool::{Db, IndexDef, Options, TableDef, TransactionOptions};

const PAGE: usize = 4096;
/// The table's.
const SPACE: u32 = 16;

fn options() -> Options {
    Options { page_size: PAGE, direct_io: false, ..Options::small() }
}

/// A database of some MiB.
fn open(dir: &Path) -> Db {
    let db = Db::open(dir, options()).unwrap();
    if !db.table_exists("d/t").unwrap() {
        let table = db.create_table("d/t", &TableDef::new([IndexDef::unique("id")])).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for id in 0..20_000u32 {
            trx.insert(&table, 0, &id.to_be_bytes(), &[7; 200]).unwrap();
        }
        trx.commit().unwrap();
        while db.step_purge().unwrap() {}
    }
    db
}

fn flip(dir: &Path, pages: &[u32]) {
    packed::flip(&files_in(dir), SPACE, pages);
}

fn status(db: &Db, name: &str) -> u64 {
    db.status().get(name).unwrap()
}

fn pass(db: &Db) {
    db.scrub().unwrap();
    while db.step_scrub().unwrap() {}
}

#[test]
fn a_flipped_bit_is_found_and_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).close().unwrap();
    let db = open(dir.path());
    pass(&db);
    assert_eq!(status(&db, "scrub_errors"), 0);
    let pages = status(&db, "scrub_pages");
    let file_pages = packed::page_numbers(&files_in(dir.path()), SPACE).len() as u64;
    assert!(pages > file_pages, "{pages} of {file_pages}");
    assert!(status(&db, "scrub_last_finished") > 0);

    flip(dir.path(), &[500, 700]);
    pass(&db);
    assert_eq!(status(&db, "scrub_errors"), 2);
    pass(&db);
    assert_eq!(status(&db, "scrub_errors"), 2, "counted once");
}

#[test]
fn a_page_that_is_newer_in_the_pool_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).close().unwrap();
    let db = open(dir.path());
    let table = db.open_table("d/t").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    // The leaf of this row is dirty now, and no thread writes it.
    trx.update(&table, 0, &1u32.to_be_bytes(), &[8; 200]).unwrap();
    trx.commit().unwrap();
    let pages = packed::pages(&files_in(dir.path()), SPACE);
    let holds = |page: &Vec<u8>| page[12] == 3 && page.windows(8).any(|eight| eight == [7; 8]);
    // The leftmost leaf has no lower fence.
    let no = pages.iter().position(|page| holds(page) && page[46..48] == [0, 0]).unwrap();
    flip(dir.path(), &[no as u32]);
    pass(&db);
    assert_eq!(status(&db, "scrub_errors"), 0);
    // Once it is written, the file is right again.
    db.close().unwrap();
    let db = open(dir.path());
    pass(&db);
    assert_eq!(status(&db, "scrub_errors"), 0);
}

#[test]
fn a_pass_goes_on_in_the_next_life() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    // A paced one, as one that was asked for does not outlive the life.
    db.step_scrub().unwrap();
    db.step_scrub().unwrap();
    db.close().unwrap();
    flip(dir.path(), &[900]);
    let db = open(dir.path());
    let mut steps = 0;
    while db.step_scrub().unwrap() {
        steps += 1;
    }
    assert_eq!(status(&db, "scrub_errors"), 1);
    let pages = status(&db, "scrub_pages");
    let pages_of = |space| packed::page_numbers(&files_in(dir.path()), space).len() as u64;
    let total: u64 = [packed::SYSTEM, packed::UNDO, SPACE].into_iter().map(pages_of).sum();
    assert!(steps > 2 && pages < total, "{pages} of {total} pages are read again");
}

#[test]
fn it_can_be_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path());
    db.set_scrub_days(0);
    assert!(!db.step_scrub().unwrap());
    assert_eq!(status(&db, "scrub_pages"), 0);
    pass(&db);
    assert!(status(&db, "scrub_pages") > 0, "one that is asked for goes all the same");
}

#[test]
fn a_pass_that_goes_by_itself_waits_for_its_time() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).close().unwrap();
    let db = Db::open(dir.path(), Options { background: true, ..options() }).unwrap();
    // The first piece is due at once, the next ones spread over days.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while status(&db, "scrub_pages") == 0 && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pages = status(&db, "scrub_pages");
    assert!(pages > 0 && pages <= 256, "{pages}");
    db.scrub().unwrap();
    while status(&db, "scrub_last_finished") == 0 && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(status(&db, "scrub_last_finished") > 0, "one that is asked for does not wait");
    db.close().unwrap();
}
