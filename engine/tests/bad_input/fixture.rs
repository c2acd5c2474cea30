//! Directories to do harm to, and what must be left of them.

use crate::copy::copy_of;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool::{Db, Error, IndexDef, Options, Result, Table, TableDef, TransactionOptions};

use crate::scan::scan;

pub const PAGE_SIZE: u64 = 16384;

/// Without threads, so that the messages' numbers are the same each time.
pub fn options() -> Options {
    Options::small()
}

pub fn def() -> TableDef {
    TableDef::new([IndexDef::unique("primary")])
}

pub fn fill(db: &Db, table: &Arc<Table>, rows: u32) -> Result<()> {
    let mut trx = db.begin(TransactionOptions::default());
    for row in 0..rows {
        trx.insert(table, 0, &row.to_be_bytes(), &[7; 200])?;
    }
    trx.commit()
}

pub fn count(db: &Db, table: &Arc<Table>) -> Result<u32> {
    let mut trx = db.begin(TransactionOptions::default());
    Ok(scan(&mut trx, table, 0)?.len() as u32)
}

/// A cleanly closed directory with the tables `a` (file 10) and `b` (file 11), 1000 rows each.
pub fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    for name in ["a", "b"] {
        let table = db.create_table(name, &def()).unwrap();
        fill(&db, &table, 1000).unwrap();
    }
    db.close().unwrap();
    dir
}

pub fn file_of_a(dir: &Path) -> PathBuf {
    dir.join("tables/00000010.tpd")
}

/// Table `a` fails with this message (up to a checksum's value), table `b` is whole.
pub fn only_a_fails(dir: &Path, message: &str) {
    let db = Db::open(dir, options()).unwrap();
    let error = db.open_table("a").and_then(|a| count(&db, &a)).unwrap_err();
    let error = text_of(&error);
    // Checksums in the text differ from run to run, and so does the length of an image by a byte or
    // two: a page has LSNs.
    let (said, sum) = error.split_once("its checksum is").unwrap_or((&error, ""));
    assert_eq!(without_lengths(said), without_lengths(message));
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

/// The text with … for the number of bytes of an image.
fn without_lengths(text: &str) -> String {
    let Some((before, after)) = text.split_once(" bytes at offset") else { return text.into() };
    let before = before.trim_end_matches(|c: char| c.is_ascii_digit());
    format!("{before}… bytes at offset{after}")
}

pub fn fill_more(db: &Db, table: &Arc<Table>) {
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(table, 0, b"more", b"").unwrap();
    trx.commit().unwrap();
}

pub fn open_error(dir: &Path) -> String {
    text_of(&Db::open(dir, options()).unwrap_err())
}

/// The message of an error, which says what to do behind what is wrong and nowhere else.
fn text_of(error: &Error) -> String {
    const ADVICE: [&str; 8] = [
        "restore ",
        "salvage",
        "drop the",
        "put ",
        "dump ",
        "force_recovery",
        "remove ",
        "use the ",
    ];
    let (text, what) = (error.to_string(), error.what());
    if let Some(remedies) = error.remedies() {
        assert_eq!(text, format!("{what}: {remedies}"));
        for word in ADVICE {
            assert!(!what.contains(word), "'{word}' is advice: {what}");
            assert!(text.matches(word).count() <= 1, "'{word}' is said twice: {text}");
        }
    }
    text
}

/// As left by a kill: nothing was written back, all of it is in the redo log.
pub fn killed() -> tempfile::TempDir {
    let dir = directory();
    let db = Db::open(dir.path(), options()).unwrap();
    for name in ["a", "b"] {
        let table = db.open_table(name).unwrap();
        fill_more(&db, &table);
    }
    copy_of(dir.path())
}

/// A message with `#` in place of each number: which files the log goes on in depends on how much
/// was logged.
pub fn without_numbers(message: &str) -> String {
    message.chars().fold(String::new(), |mut text, letter| {
        match letter.is_ascii_digit() {
            true if text.ends_with('#') => {}
            true => text.push('#'),
            false => text.push(letter),
        }
        text
    })
}
