//! Files of tables that are damaged, missing, or of another table: the others stay usable.

use std::fs;

use tidepool::{Cursor, Db, LockMode, LockWait, Result, TransactionOptions};
use tidepool_pool::PageType;
use tidepool_pool::page::page_type;

use crate::copy::{copy_dir, copy_of};
use crate::fixture::{PAGE_SIZE, count, directory, file_of_a, killed, only_a_fails, options};
use crate::packed::{self, files_in};

/// The space of table `a`.
const A: u32 = 16;

#[test]
fn flipped_bits_in_a_page() {
    let dir = directory();
    // Page 3 is a leaf, whatever the tree's shape: 1000 rows need more than ten pages.
    packed::flip(&files_in(dir.path()), A, &[3]);
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: page 3 is corrupt: the 552 bytes at offset 17408 are not those that run 1 wrote there: restore the data directory from a backup, save what can be read with 'tidepool salvage', or drop the table",
    );
}

#[test]
fn flipped_bits_in_a_table_s_header() {
    let dir = directory();
    packed::flip(&files_in(dir.path()), A, &[0]);
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: page 0 is corrupt: the 84 bytes at offset 16960 are not those that run 1 wrote there: restore the data directory from a backup, save what can be read with 'tidepool salvage', or drop the table",
    );
}

#[test]
fn zeroed_allocation_bitmap() {
    let dir = directory();
    // No broken disk does this, for the file's map says so; a fault of a program may.
    packed::write_page(&files_in(dir.path()), A, 1, Vec::new());
    let db = Db::open(dir.path(), options()).unwrap();
    let a = db.open_table("a").unwrap();
    let mut inserted = 0;
    let error = loop {
        let mut trx = db.begin(TransactionOptions::default());
        match trx.insert(&a, 0, &[b"y", &[inserted as u8][..]].concat(), &[1; 3000]) {
            Ok(()) => trx.commit().unwrap(),
            Err(error) => break error,
        }
        inserted += 1;
        assert!(inserted < 100, "pages come from somewhere");
    };
    assert_eq!(
        error.to_string(),
        "tables/00000010.tpd: page 1 is corrupt: it is no allocation bitmap: restore the data directory from a backup, save what can be read with 'tidepool salvage', or drop the table"
    );
    assert_eq!(count(&db, &a).unwrap(), 1000 + inserted, "nothing was overwritten");
    drop(a);
    db.drop_table("a").unwrap();
}

/// The redo log holds changes of both tables, new pages among them, and a block of one table's file
/// is lost: whatever the block held, the start goes on, and the other table is whole.
#[test]
fn no_block_of_a_table_s_file_is_needed_to_start_after_a_kill() {
    const BLOCK: usize = 4096;
    let dir = directory();
    let db = Db::open(dir.path(), options()).unwrap();
    for name in ["a", "b"] {
        let table = db.open_table(name).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for row in 1000_u32..1500 {
            trx.insert(&table, 0, &row.to_be_bytes(), &[8; 200]).unwrap();
        }
        trx.commit().unwrap();
    }
    let killed = copy_of(dir.path());
    drop(db);
    let bytes = fs::read(file_of_a(killed.path())).unwrap();
    let is_used = |at: &usize| bytes[*at..(*at + BLOCK).min(bytes.len())].iter().any(|b| *b != 0);
    let used: Vec<_> = (0..bytes.len()).step_by(BLOCK).filter(is_used).collect();
    assert!(used.len() > 5, "roots, nodes of the map and pages");
    for at in used {
        let damaged = copy_of(killed.path());
        let mut bytes = bytes.clone();
        bytes[at..at + BLOCK].fill(0);
        fs::write(file_of_a(damaged.path()), bytes).unwrap();
        let db = Db::open(damaged.path(), options())
            .unwrap_or_else(|error| panic!("the block at {at} refuses the start: {error}"));
        assert_eq!(count(&db, &db.open_table("b").unwrap()).unwrap(), 1500);
        if let Ok(rows) = db.open_table("a").and_then(|a| count(&db, &a)) {
            assert_eq!(rows, 1500, "the block at {at}");
        }
        db.drop_table("a").unwrap();
        db.close().unwrap();
    }
}

#[test]
fn truncated_table_file() {
    let dir = directory();
    let file = fs::OpenOptions::new().write(true).open(file_of_a(dir.path())).unwrap();
    // Its roots, and a block of its first segment.
    file.set_len(5 * 4096).unwrap();
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: the top of the map is corrupt: the file ends before the 64 bytes at offset 33088: it was cut short: restore the data directory from a backup, save what can be read with 'tidepool salvage', or drop the table",
    );
}

#[test]
fn empty_table_file() {
    let dir = directory();
    fs::write(file_of_a(dir.path()), b"").unwrap();
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: it is empty or cut short: it has 0 bytes, and its roots take 16384: restore the data directory from a backup, save what can be read with 'tidepool salvage', or drop the table",
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
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: it belongs to another data directory: put back this data directory's own file, or drop the table",
    );
}

#[test]
fn table_file_of_another_table() {
    let dir = directory();
    fs::copy(dir.path().join("tables/00000011.tpd"), file_of_a(dir.path())).unwrap();
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: it is of space 17, expected 16: the file was renamed or copied: restore the data directory from a backup, save what can be read with 'tidepool salvage', or drop the table",
    );
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

/// Its rows name transactions that are still to come.
#[test]
fn table_file_of_a_later_time() {
    let dir = directory();
    let backup = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), backup.path());
    let db = Db::open(dir.path(), options()).unwrap();
    let a = db.open_table("a").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for row in 0..1000u32 {
        trx.update(&a, 0, &row.to_be_bytes(), &[8; 200]).unwrap();
    }
    trx.commit().unwrap();
    drop((trx, a));
    db.close().unwrap();
    fs::copy(file_of_a(dir.path()), file_of_a(backup.path())).unwrap();
    let db = Db::open(backup.path(), options()).unwrap();
    let error = db.open_table("a").and_then(|a| count(&db, &a)).unwrap_err().to_string();
    assert!(error.starts_with("tables/00000010.tpd: page "), "{error}");
    assert!(
        error.contains("is corrupt: it was written at LSN ")
            && error.contains("the file is of a later time than the log, or the log was damaged"),
        "{error}"
    );
    assert_eq!(count(&db, &db.open_table("b").unwrap()).unwrap(), 1000);
    db.drop_table("a").unwrap();
    db.close().unwrap();
}

/// No broken disk does this, for the checksum is right; a fault of a program may.
#[test]
fn a_cell_outside_of_its_node() {
    let dir = directory();
    packed::change_page(&files_in(dir.path()), A, 3, |page| {
        assert_eq!(page_type(page), PageType::TREE_LEAF);
        // The first slot's offset.
        page[64..66].copy_from_slice(&0xfff0u16.to_le_bytes());
    });
    only_a_fails(
        dir.path(),
        "tables/00000010.tpd: page 3 is corrupt: a cell lies outside the heap: restore the data directory from a backup, save what can be read with 'tidepool salvage', or drop the table",
    );
}

/// Its cells would have other keys. A backward scan over such a node had no end once.
#[test]
fn a_prefix_that_is_not_the_fences() {
    let dir = directory();
    let pages = packed::pages(&files_in(dir.path()), A);
    let mut others = 0;
    for (no, page) in (0..).zip(&pages) {
        if page_type(page) != PageType::TREE_LEAF {
            continue;
        }
        let u16_at = |at: usize| u16::from_le_bytes([page[at], page[at + 1]]);
        let (prefix, lower, upper) = (u16_at(44), u16_at(46), u16_at(48));
        // The first and the last leaf have a fence of no bytes.
        let why = match prefix < lower.min(upper) {
            true => "the prefix is not the fences' common one",
            false => "node header: the prefix is longer than a fence",
        };
        others += usize::from(prefix < lower.min(upper));
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        packed::change_page(&files_in(copy.path()), A, no, |page| {
            page[44..46].copy_from_slice(&(prefix + 1).to_le_bytes());
        });
        only_a_fails(
            copy.path(),
            &format!(
                "tables/00000010.tpd: page {no} is corrupt: {why}: restore the data directory from a \
                 backup, save what can be read with 'tidepool salvage', or drop the table"
            ),
        );
    }
    assert!(others > 0, "no leaf has two fences that are longer than its prefix");
}

/// Rows of an index, forward or backward; more than the table can have is a scan without an end.
fn count_up_to(db: &Db, rows_max: usize, backward: bool) -> Result<usize> {
    let mut trx = db.begin(TransactionOptions::default());
    let mut cursor = Cursor::new(db.open_table("a")?, 0, LockMode::None, LockWait::Wait);
    let mut rows = 0;
    let mut more = if backward { cursor.last(&mut trx)? } else { cursor.first(&mut trx)? };
    while more {
        rows += 1;
        assert!(rows <= rows_max, "a scan without an end, backward: {backward}");
        more = if backward { cursor.prev(&mut trx)? } else { cursor.next(&mut trx)? };
    }
    Ok(rows)
}

/// A backward scan goes on at the lower fence: with one that is too high it would come to the same
/// leaf again and again.
#[test]
fn a_lower_fence_that_is_too_high_is_no_scan_without_an_end() {
    let dir = directory();
    let pages = packed::pages(&files_in(dir.path()), A);
    let mut refused = 0;
    for (no, page) in (0..).zip(&pages) {
        let u16_at = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
        let (prefix, lower, upper) = (u16_at(44), u16_at(46), u16_at(48));
        if page_type(page) != PageType::TREE_LEAF || lower <= prefix + 1 {
            continue;
        }
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        packed::change_page(&files_in(copy.path()), A, no, |page| {
            let end = PAGE_SIZE as usize - upper;
            // Not the first byte behind the prefix: that would be another prefix.
            page[end - lower + prefix + 1..end].fill(0xff);
        });
        let db = Db::open(copy.path(), options()).unwrap();
        let _ = count_up_to(&db, 2000, false);
        let error = count_up_to(&db, 2000, true).unwrap_err().to_string();
        assert!(error.contains("its fences are not those that its parent has"), "{error}");
        refused += 1;
    }
    assert!(refused > 0, "no leaf has such a fence");
}
