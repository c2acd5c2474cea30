//! A data directory is looked at without a change of it, and damage of every kind is found.

#[path = "support/copy.rs"]
mod copy;
#[path = "support/packed.rs"]
mod packed;

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tidepool::inspect::{Inspection, Report};
use tidepool::storage::{
    Fault, FaultKind, FileOptions, FileStorage, SimStorage, Storage, StorageOp,
};
use tidepool::{Db, Error, IndexDef, Options, TableDef, TransactionOptions};

use copy::copy_of;
use packed::files_in;

const PAGE: usize = 4096;
const ROWS: u32 = 4000;
/// The file of the first table, and its space.
const TABLE: &str = "tables/00000010.tpd";
const SPACE: u32 = 16;

fn options() -> Options {
    Options { page_size: PAGE, ..Options::small() }
}

fn storage(dir: &Path, read_only: bool) -> Arc<dyn Storage> {
    let options = FileOptions { direct_io: false, read_only, ..FileOptions::default() };
    Arc::new(FileStorage::new(dir, options).unwrap())
}

/// A table of several levels with an index and long values, closed cleanly.
fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    fill(&db);
    while db.step_purge().unwrap() {}
    db.close().unwrap();
    dir
}

fn fill(db: &Db) {
    let def = TableDef::new([IndexDef::unique("id"), IndexDef::non_unique("v")]);
    let table = db.create_table("d/t", &def).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for id in 0..ROWS {
        let len = if id % 500 == 7 { 3 * PAGE } else { 60 };
        trx.insert(&table, 0, &id.to_be_bytes(), &vec![id as u8; len]).unwrap();
        trx.insert(&table, 1, &[(id * 7 % ROWS).to_be_bytes(), id.to_be_bytes()].concat(), b"")
            .unwrap();
    }
    trx.commit().unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for id in (0..ROWS).step_by(3) {
        trx.update(&table, 0, &id.to_be_bytes(), &[1; 90]).unwrap();
    }
    trx.commit().unwrap();
}

/// All files of a directory, by name.
fn bytes_of(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(bytes_of(&path)),
            false => all.push((path.display().to_string(), std::fs::read(&path).unwrap())),
        }
    }
    all.sort();
    all
}

/// Looks at it, and makes sure that it has not changed.
fn check(dir: &Path) -> Report {
    let before = bytes_of(dir);
    let scratch = tempfile::tempdir().unwrap();
    let inspection =
        Inspection::open(storage(dir, true), storage(scratch.path(), false), options()).unwrap();
    let mut told = (0, 0);
    let report = inspection.check(&mut |at| told = (at.done_bytes, at.total_bytes)).unwrap();
    assert!(told.0 > 0 && told.0 <= told.1, "{told:?}");
    inspection.abandon();
    assert!(before == bytes_of(dir), "the check has changed the directory");
    report
}

fn edit(dir: &Path, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let path = dir.join(file);
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// All that is said to be wrong.
fn told(report: &Report) -> String {
    let mut all = report.problems.clone();
    for file in &report.files {
        all.extend(file.problems.clone());
        let pages =
            file.damaged.iter().map(|page| format!("{}: {}: {}", file.file, page.page, page.why));
        all.extend(pages);
    }
    all.extend(report.tables.iter().flat_map(|table| table.problems.clone()));
    all.join("\n")
}

#[test]
fn a_whole_directory_is_clean_and_stays_as_it_is() {
    let dir = directory();
    let report = check(dir.path());
    assert!(report.is_clean(), "{}", told(&report));
    assert!(report.log.clean && report.log.damaged_control_slots == 0);
    assert_eq!(report.tables.len(), 1);
    let table = &report.tables[0];
    assert_eq!(table.indexes.iter().map(|index| index.entries).collect::<Vec<_>>(), [4000, 4000]);
    assert_eq!(table.unreachable_pages, Some(0));
    assert!(
        report.files.iter().any(|file| file.table.as_deref() == Some("d/t") && file.pages > 100)
    );
}

#[test]
fn what_a_crash_leaves_is_recovered_aside() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    fill(&db);
    let table = db.open_table("d/t").unwrap();
    let mut unfinished = db.begin(TransactionOptions::default());
    unfinished.delete(&table, 0, &5u32.to_be_bytes()).unwrap();
    db.flush_log().unwrap();
    let crashed = copy_of(dir.path());
    let report = check(crashed.path());
    assert!(report.is_clean(), "{}", told(&report));
    assert!(!report.log.clean);
    assert_eq!(report.tables[0].indexes[0].entries, 4000);
    // A transaction is unfinished: what it will free is not known yet.
    assert_eq!(report.tables[0].unreachable_pages, None);

    drop(unfinished);
    db.close().unwrap();
}

#[test]
fn damage_of_every_kind_is_found() {
    let whole = directory();
    type Damage<'a> = (&'a str, &'a str, Box<dyn Fn(&Path)>);
    let spoil = |no: u32| -> Box<dyn Fn(&Path)> {
        Box::new(move |dir| packed::flip(&files_in(dir), SPACE, &[no]))
    };
    let image = |dir: &Path, no: u32| {
        let place = packed::places(&files_in(dir), SPACE, &[no]).remove(0);
        std::fs::read(dir.join(TABLE)).unwrap()[place].to_vec()
    };
    let cases: Vec<Damage<'_>> = vec![
        ("a bit of a leaf", "tables/00000010.tpd: 20: the ", spoil(20)),
        ("a bit of the header", "tables/00000010.tpd: 0: the ", spoil(0)),
        ("a bit of the bitmap", "tables/00000010.tpd: 1: the ", spoil(1)),
        ("a bit of the root", "tables/00000010.tpd: 2: the ", spoil(2)),
        (
            "an image in the place of another",
            "tables/00000010.tpd: 20: the ",
            Box::new(move |dir| {
                let other = image(dir, 21);
                packed::change_image(&files_in(dir), SPACE, 20, |image| {
                    let len = image.len().min(other.len());
                    image[..len].copy_from_slice(&other[..len]);
                });
            }),
        ),
        (
            "a page written as another",
            "its header says that it is page 21 of space 16",
            Box::new(move |dir| {
                let other = packed::read_page(&files_in(dir), SPACE, 21);
                packed::write_page(&files_in(dir), SPACE, 20, other);
            }),
        ),
        (
            "an image of zeroes",
            "tables/00000010.tpd: 20: the ",
            Box::new(move |dir| {
                packed::change_image(&files_in(dir), SPACE, 20, |image| image.fill(0));
            }),
        ),
        (
            "a page that has no image any more",
            "index 'id'",
            Box::new(move |dir| packed::write_page(&files_in(dir), SPACE, 20, Vec::new())),
        ),
        (
            "no root of a file",
            "tables/00000010.tpd: none of its roots is whole",
            Box::new(|dir| edit(dir, TABLE, |bytes| bytes[..4 * 4096].fill(0))),
        ),
        (
            "a file cut short",
            "the top of the map is corrupt: the file ends before",
            Box::new(|dir| edit(dir, TABLE, |bytes| bytes.truncate(12 * PAGE))),
        ),
        (
            "a bit of the catalog",
            "system.tpd: 2: the ",
            Box::new(|dir| packed::flip(&files_in(dir), packed::SYSTEM, &[2])),
        ),
        (
            "a bit of undo",
            "undo.tpd: 2: the ",
            Box::new(|dir| packed::flip(&files_in(dir), packed::UNDO, &[2])),
        ),
        (
            "no root of the catalog's file",
            "system.tpd: none of its roots is whole",
            Box::new(|dir| edit(dir, "system.tpd", |bytes| bytes[..4 * 4096].fill(0))),
        ),
        (
            "no root of the undo file",
            "undo.tpd: none of its roots is whole",
            Box::new(|dir| edit(dir, "undo.tpd", |bytes| bytes[..4 * 4096].fill(0))),
        ),
        (
            "a file that is gone",
            "the file is missing",
            Box::new(|dir| std::fs::remove_file(dir.join(TABLE)).unwrap()),
        ),
        (
            "the control file",
            "both slots are corrupt",
            Box::new(|dir| edit(dir, "redo/control", |bytes| bytes.fill(7))),
        ),
        (
            "undo that is gone",
            "undo.tpd",
            Box::new(|dir| std::fs::remove_file(dir.join("undo.tpd")).unwrap()),
        ),
    ];
    for (name, expected, damage) in cases {
        let dir = copy_of(whole.path());
        damage(dir.path());
        let report = check(dir.path());
        assert!(!report.is_clean(), "{name}: not found");
        assert!(told(&report).contains(expected), "{name}: {}", told(&report));
    }
}

/// Of a file that can't be opened, the pages are looked at all the same.
#[test]
fn the_pages_of_a_file_without_a_root_are_looked_at() {
    let dir = directory();
    let spoilt = packed::places(&files_in(dir.path()), SPACE, &[20]).remove(0);
    edit(dir.path(), TABLE, |bytes| {
        bytes[..4 * 4096].fill(0);
        bytes[spoilt.start + 9] ^= 1;
    });
    let report = check(dir.path());
    let file = report.files.iter().find(|file| file.file == TABLE).unwrap();
    assert!(file.problems[0].contains("none of its roots is whole"), "{:?}", file.problems);
    assert!(file.pages > 100, "{} pages", file.pages);
    let damaged: Vec<u32> = file.damaged.iter().map(|page| page.page).collect();
    assert_eq!(damaged, [20]);
}

#[test]
fn a_directory_that_does_not_open_is_looked_at_with_the_lowest_level_that_helps() {
    let whole = directory();
    let overwrite = |dir: &Path, file: &str| {
        edit(dir, file, |bytes| bytes[2 * PAGE..3 * PAGE].fill(0x55));
    };
    let remove = |dir: &Path, file: &str| std::fs::remove_file(dir.join(file)).unwrap();
    type Damage<'a> = (u8, usize, &'a dyn Fn(&Path));
    let cases: [Damage<'_>; 4] = [
        // The root of the catalog, in both copies: no table can be found.
        (3, 0, &|dir| {
            packed::flip(&files_in(dir), packed::SYSTEM, &[2]);
            overwrite(dir, "system-mirror.tpd");
        }),
        (4, 1, &|dir| remove(dir, "undo.tpd")),
        (5, 1, &|dir| edit(dir, "redo/control", |bytes| bytes.fill(7))),
        (5, 1, &|dir| remove(dir, "redo/control")),
    ];
    for (level, tables, damage) in cases {
        let dir = copy_of(whole.path());
        damage(dir.path());
        let report = check(dir.path());
        let found = told(&report);
        assert_eq!(report.force_recovery, level, "{found}");
        assert!(found.contains("the engine can't start on this directory: "), "{found}");
        assert!(found.contains(&format!("it does with force_recovery={level}")), "{found}");
        assert_eq!(report.tables.len(), tables, "{found}");
        for table in &report.tables {
            assert_eq!((&table.problems, table.indexes[0].entries), (&vec![], 4000));
        }
    }
}

#[test]
fn a_copy_in_a_mirror_that_is_broken_or_of_another_time_is_found() {
    let dir = directory();
    let older = std::fs::read(dir.path().join("system-mirror.tpd")).unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    db.create_table("d/u", &TableDef::new([IndexDef::unique("id")])).unwrap();
    db.close().unwrap();
    assert!(check(dir.path()).is_clean());
    for (mirror, damage) in [
        ("system-mirror.tpd", 2 * PAGE + 100),
        ("undo-mirror.tpd", 1000),
        ("undo-mirror.tpd", 2 * PAGE + 100),
    ] {
        let dir = copy_of(dir.path());
        edit(dir.path(), mirror, |bytes| bytes[damage] ^= 1);
        let (report, page) = (check(dir.path()), damage / PAGE);
        let expected = format!("{mirror}: {page}: its checksum");
        let found = told(&report);
        assert!(found.starts_with(&expected), "{found}");
        assert!(found.ends_with("the next start writes the copy anew; check the disk"), "{found}");
        assert!(!report.is_clean() && report.force_recovery == 0);
    }
    edit(dir.path(), "system-mirror.tpd", |bytes| {
        bytes[2 * PAGE..3 * PAGE].copy_from_slice(&older[2 * PAGE..3 * PAGE]);
    });
    let found = told(&check(dir.path()));
    assert!(found.starts_with("system-mirror.tpd: 2: it was written at LSN "), "{found}");
    assert!(
        found.contains("one of the two files was replaced by a copy of another time"),
        "{found}"
    );
}

#[test]
fn one_damaged_slot_of_the_control_file_is_told_and_is_no_damage() {
    let dir = directory();
    edit(dir.path(), "redo/control", |bytes| {
        let newest = bytes[32..40] > bytes[4128..4136];
        // The older one: the newer says that the directory was closed.
        let at = if newest { 4096 + 100 } else { 100 };
        bytes[at] ^= 1;
    });
    let report = check(dir.path());
    assert_eq!(report.log.damaged_control_slots, 1);
    assert!(report.is_clean(), "{}", told(&report));
}

#[test]
fn files_that_no_table_has_are_told() {
    let dir = directory();
    let table = std::fs::read(dir.path().join(TABLE)).unwrap();
    std::fs::write(dir.path().join("tables/00000077.tpd"), table).unwrap();
    std::fs::write(dir.path().join("tables/notes.txt"), b"x").unwrap();
    let report = check(dir.path());
    assert!(report.notes.iter().any(|note| note.starts_with("tables/00000077.tpd: no table")));
    assert!(report.notes.iter().any(|note| note.starts_with("tables/notes.txt:")));
    // And it is of another space than its name says.
    assert!(!report.is_clean());
}

#[test]
fn what_is_no_data_directory_is_refused() {
    let (dir, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("ibdata1"), b"x").unwrap();
    let error =
        Inspection::open(storage(dir.path(), true), storage(scratch.path(), false), options());
    assert!(error.unwrap_err().to_string().contains("no data directory"), "wrong error");
}

/// A directory of a killed server, whose log has many changes that no file has.
fn crashed_directory() -> TempDir {
    let dir = directory();
    let db = Db::open(dir.path(), options()).unwrap();
    let table = db.open_table("d/t").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for id in 0..ROWS {
        trx.update(&table, 0, &id.to_be_bytes(), &[2; 90]).unwrap();
    }
    trx.commit().unwrap();
    db.flush_log().unwrap();
    let crashed = copy_of(dir.path());
    drop((trx, table, db));
    crashed
}

/// Looks at it with such a scratch storage: what is found, and the rows that have the last value.
fn look(dir: &Path, scratch: &SimStorage) -> Result<(Report, usize), Error> {
    let inspection = Inspection::open(storage(dir, true), Arc::new(scratch.clone()), options())?;
    let report = inspection.check(&mut |_| {})?;
    let (tables, _) = inspection.salvage_tables()?;
    let mut rows = 0;
    let mut see = |_: &[u8], value: &[u8]| {
        rows += usize::from(value == [2; 90]);
        Ok(())
    };
    let found = inspection.salvage(&tables[0], &mut see, &mut |_| {})?;
    assert!(found.is_whole(), "{found:?}");
    inspection.abandon();
    Ok((report, rows))
}

/// What recovery writes has no room: then it is not known what the directory holds.
#[test]
fn a_scratch_that_is_full_is_an_error_and_no_damage() {
    let dir = crashed_directory();
    let whole = SimStorage::with_alignment(1, 1);
    let (report, rows) = look(dir.path(), &whole).unwrap();
    assert!(report.is_clean(), "{}", told(&report));
    assert_eq!(rows, ROWS as usize);
    let needed = whole.used_bytes();
    assert!(needed > 100 << 10, "{needed}");
    let mut refused = 0;
    for eighths in 0..8 {
        let scratch = SimStorage::with_alignment(1, 1);
        scratch.set_capacity(Some(needed * eighths / 8));
        match look(dir.path(), &scratch) {
            Ok((report, rows)) => {
                assert!(report.is_clean(), "{eighths} eighths: {}", told(&report));
                assert_eq!(rows, ROWS as usize, "{eighths} eighths");
            }
            Err(error) => {
                assert!(matches!(error, Error::NoSpace(_)), "{eighths} eighths: {error}");
                assert!(error.to_string().contains("scratch directory"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 3, "{refused}");
}

#[test]
fn a_scratch_that_fails_is_an_error_and_no_damage() {
    let dir = crashed_directory();
    for (op, skip) in [(StorageOp::Create, 0), (StorageOp::Write, 0), (StorageOp::Write, 9)] {
        let scratch = SimStorage::with_alignment(1, 1);
        scratch.inject(Fault::new(op, FaultKind::Io).skip(skip).always());
        let error = look(dir.path(), &scratch).unwrap_err();
        assert!(error.to_string().contains("the scratch directory fails: "), "{op:?}: {error}");
    }
}

/// It is no data directory, but its pages can be looked at.
#[test]
fn of_an_incremental_backup_the_pages_are_looked_at() {
    let dir = directory();
    let backups = tempfile::tempdir().unwrap();
    let [base, increment] = ["base", "increment"].map(|name| backups.path().join(name));
    let change = |value: u8| {
        let db = Db::open(dir.path(), options()).unwrap();
        let table = db.open_table("d/t").unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for id in (0..ROWS).step_by(50) {
            trx.update(&table, 0, &id.to_be_bytes(), &[value; 90]).unwrap();
        }
        trx.commit().unwrap();
        drop((trx, table));
        db.close().unwrap();
        Db::open(dir.path(), options()).unwrap()
    };
    let db = change(3);
    db.backup(&base, &mut |_| true).unwrap();
    db.close().unwrap();
    let db = change(4);
    db.begin_backup_since_in(&base, &increment).unwrap().run(&mut |_| true).unwrap();
    db.close().unwrap();
    let report = check(&increment);
    assert!(report.is_clean(), "{}", told(&report));
    let notes = report.notes.join("\n");
    assert!(notes.contains("incremental backup") && notes.contains("its pages"), "{notes}");
    let pages: u64 = report.files.iter().map(|file| file.pages).sum();
    assert!(pages > 50, "{pages}");
    let no = packed::page_numbers(&files_in(&increment), SPACE)[30];
    packed::flip(&files_in(&increment), SPACE, &[no]);
    let report = check(&increment);
    assert!(told(&report).contains(&format!("{TABLE}: {no}: ")), "{}", told(&report));
}
