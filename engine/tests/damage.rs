//! One block of `system.tpd` or `undo.tpd` damaged at a time. Nothing of the catalog is lost. Of
//! undo it costs what was in the images there, or the start, if the file as a whole can't be
//! opened.
//!
//! The directory has tables enough for a catalog of several pages, rows that are deleted and not
//! purged, unfinished transactions with undo of several pages, and a prepared one. It is damaged
//! after a clean stop and after a kill.

#[path = "support/packed.rs"]
mod packed;
mod scan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use scan::{Rows, scan};
use tidepool::storage::{AlignedBuf, SimStorage, Storage};
use tidepool::{
    Db, Error, ForceRecovery, IndexDef, LockMode, LockWait, Options, ReadRequest, TableDef,
    TransactionOptions,
};

const PAGE: usize = 4096;
const TABLES: usize = 12;
const ROWS: u32 = 30;
/// Tables with an unfinished transaction each.
const UNFINISHED: usize = 3;
const PREPARED_TABLE: usize = UNFINISHED;
const XID: &[u8] = b"prepared";
/// The first table's.
const SPACE: u32 = 16;

fn options() -> Options {
    Options { page_size: PAGE, memory_guard: false, ..Options::small() }
}

fn name(table: usize) -> String {
    format!("t{table:02}")
}

fn key(row: u32) -> [u8; 4] {
    row.to_be_bytes()
}

/// A data directory, and what is committed in it.
struct Base {
    disk: SimStorage,
    truth: BTreeMap<String, Rows>,
}

/// How the directory was left.
#[derive(Debug, Clone, Copy)]
enum Left {
    Closed,
    Killed,
}

fn base(left: Left) -> Base {
    let disk = SimStorage::new(7);
    let db = Db::open_on(Arc::new(disk.clone()), options()).unwrap();
    let mut truth = BTreeMap::new();
    let mut tables = vec![];
    for table in 0..TABLES {
        let def = TableDef {
            metadata: vec![table as u8; 900],
            ..TableDef::new([IndexDef::unique("primary")])
        };
        let name = name(table);
        let table = db.create_table(&name, &def).unwrap();
        let mut rows = Rows::new();
        let mut trx = db.begin(TransactionOptions::default());
        for row in 0..ROWS {
            let value = format!("{name} {row}").into_bytes();
            trx.insert(&table, 0, &key(row), &value).unwrap();
            rows.insert(key(row).to_vec(), value);
        }
        trx.commit().unwrap();
        tables.push(table);
        truth.insert(name, rows);
    }
    for (table, (name, rows)) in tables.iter().zip(&mut truth) {
        let mut trx = db.begin(TransactionOptions::default());
        for row in 0..ROWS / 3 {
            let value = format!("{name} {row} changed").into_bytes();
            trx.update(table, 0, &key(row), &value).unwrap();
            rows.insert(key(row).to_vec(), value);
        }
        for row in ROWS / 3..ROWS / 2 {
            trx.delete(table, 0, &key(row)).unwrap();
            rows.remove(&key(row)[..]);
        }
        trx.commit().unwrap();
    }
    // So that all of it is in the files, and not in the log.
    drop(tables);
    db.close().unwrap();
    drop(db);
    let db = Db::open_on(Arc::new(disk.clone()), options()).unwrap();
    let tables: Vec<_> = (0..TABLES).map(|table| db.open_table(&name(table)).unwrap()).collect();
    let mut open = vec![];
    for table in &tables[..=UNFINISHED] {
        let mut trx = db.begin(TransactionOptions::default());
        for round in 0..2u8 {
            for row in ROWS / 2..ROWS {
                trx.update(table, 0, &key(row), &[round; 400]).unwrap();
            }
        }
        trx.insert(table, 0, &key(ROWS), b"never committed").unwrap();
        open.push(trx);
    }
    open.pop().unwrap().prepare(XID).unwrap();
    // Of a last moment, and committed.
    let mut trx = db.begin(TransactionOptions::default());
    let last = TABLES - 1;
    trx.insert(&tables[last], 0, &key(ROWS + 1), b"new").unwrap();
    truth.get_mut(&name(last)).unwrap().insert(key(ROWS + 1).to_vec(), b"new".to_vec());
    trx.commit().unwrap();
    drop((trx, tables));
    if let Left::Closed = left {
        db.close().unwrap();
    }
    // Nothing that its end would roll back reaches the disk.
    let disk = disk.kill();
    drop((open, db));
    Base { disk, truth }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Damage {
    Bit,
    Zeroed4K,
    ZeroedPage,
    Swapped,
    CutOff,
    Deleted,
}

impl Damage {
    /// Does it to a block of a file.
    fn apply(self, disk: &SimStorage, file: &str, page: u32) {
        let offset = |page: u32| u64::from(page) * PAGE as u64;
        let open = disk.open(file).unwrap();
        let read = |page: u32| {
            let mut bytes = AlignedBuf::zeroed(PAGE);
            open.read_at(&mut bytes, offset(page)).unwrap();
            bytes
        };
        let write = |page: u32, bytes: &[u8]| open.write_at(bytes, offset(page)).unwrap();
        match self {
            Damage::Bit => {
                let mut bytes = read(page);
                bytes[PAGE / 2] ^= 1;
                write(page, &bytes);
            }
            // A part of a block.
            Damage::Zeroed4K => {
                let mut bytes = read(page);
                bytes[..PAGE / 2].fill(0);
                write(page, &bytes);
            }
            Damage::ZeroedPage => write(page, &AlignedBuf::zeroed(PAGE)),
            Damage::Swapped => {
                let other = if page == 0 { 1 } else { page - 1 };
                let (one, two) = (read(page), read(other));
                write(other, &one);
                write(page, &two);
            }
            Damage::CutOff => open.set_len(offset(page)).unwrap(),
            Damage::Deleted => disk.remove(file).unwrap(),
        }
        open.sync_data().unwrap();
    }
}

/// What an open of a damaged directory has led to.
#[derive(Debug, Default)]
struct Outcome {
    /// Why there was no start.
    refused: Option<String>,
    /// Tables that could not be read completely, and why.
    unread: BTreeMap<String, String>,
    /// What must not be: rows that are wrong, or no later stop or start.
    wrong: Vec<String>,
    /// Tables whose old rows could not all be changed.
    locked: BTreeMap<String, String>,
}

fn read_all(db: &Db, base: &Base, outcome: &mut Outcome) {
    for (name, truth) in &base.truth {
        let rows = db.open_table(name).and_then(|table| {
            let mut trx = db.begin(TransactionOptions::default());
            scan(&mut trx, &table, 0)
        });
        match rows {
            Ok(rows) if rows == *truth => {}
            Ok(_) => outcome.wrong.push(format!("{name} has wrong rows")),
            Err(error) => {
                outcome.unread.insert(name.clone(), error.to_string());
            }
        }
    }
}

/// Opens the directory, reads everything, lets the background do what it can, reads again, changes
/// every row, and starts anew.
fn look(base: &Base, disk: &SimStorage) -> Outcome {
    let mut outcome = Outcome::default();
    let db = match Db::open_on(Arc::new(disk.clone()), options()) {
        Ok(db) => db,
        Err(error) => {
            outcome.refused = Some(error.to_string());
            return outcome;
        }
    };
    read_all(&db, base, &mut outcome);
    for _ in 0..2 * UNFINISHED {
        let _ = db.step_rollback_recovered();
    }
    // It ends, though some can't be purged.
    while db.step_purge().unwrap_or(false) {}
    read_all(&db, base, &mut outcome);
    for (name, truth) in &base.truth {
        let Ok(table) = db.open_table(name) else { continue };
        for key in truth.keys() {
            let mut trx = db.begin(TransactionOptions::default());
            trx.set_lock_wait_timeout(Duration::ZERO);
            let mut value = vec![];
            let changed = trx
                .read(
                    &table,
                    0,
                    ReadRequest::new(key, &mut value).locked(LockMode::Exclusive, LockWait::Wait),
                )
                .and_then(|_| trx.update(&table, 0, key, &truth[key]));
            match changed.and_then(|()| trx.commit()) {
                Ok(()) => {}
                Err(error) => {
                    let is_prepared = *name == self::name(PREPARED_TABLE)
                        && error == Error::LockWaitTimeout
                        && db.recovered_xids() == [XID];
                    if !is_prepared {
                        outcome.locked.insert(name.clone(), error.to_string());
                    }
                    let _ = trx.rollback();
                }
            }
        }
    }
    if let Err(error) = db.close() {
        outcome.wrong.push(format!("no clean stop: {error}"));
    }
    drop(db);
    // The same again in another life.
    match Db::open_on(Arc::new(disk.kill()), options()) {
        Ok(db) => read_all(&db, base, &mut outcome),
        Err(error) => outcome.wrong.push(format!("no second start: {error}")),
    }
    outcome
}

/// The blocks of a file that anything was ever written to.
fn used_blocks(disk: &SimStorage, file: &str) -> Vec<u32> {
    let open = disk.open(file).unwrap();
    let pages = (open.len().unwrap() / PAGE as u64) as u32;
    let mut bytes = AlignedBuf::zeroed(PAGE);
    let mut is_used = |page: &u32| {
        open.read_at(&mut bytes, u64::from(*page) * PAGE as u64).unwrap();
        bytes.iter().any(|&byte| byte != 0)
    };
    (0..pages).filter(|page| is_used(page)).collect()
}

/// Each block of a file damaged in every way; what may come of it is up to `is_fair`. Returns how
/// many starts were refused, and how many had tables not all read, or not all to be changed.
fn each_block(file: &str, is_fair: impl Fn(Damage, &Outcome) -> bool) -> (u32, u32) {
    let (mut trials, mut refused, mut unread, mut locked, mut wrong) = (0, 0, 0, 0, 0);
    let mut unfair = vec![];
    for left in [Left::Closed, Left::Killed] {
        let base = base(left);
        let whole = look(&base, &base.disk.kill());
        assert!(whole.refused.is_none() && whole.wrong.is_empty(), "{whole:?}");
        assert!(whole.unread.is_empty() && whole.locked.is_empty(), "{whole:?}");
        let pages = used_blocks(&base.disk.kill(), file);
        for &page in &pages {
            for damage in [
                Damage::Bit,
                Damage::Zeroed4K,
                Damage::ZeroedPage,
                Damage::Swapped,
                Damage::CutOff,
                Damage::Deleted,
            ] {
                if damage == Damage::Deleted && page > 0 {
                    continue;
                }
                let what = format!("{left:?}, block {page} of {file}, {damage:?}");
                let disk = base.disk.kill();
                damage.apply(&disk, file, page);
                let outcome = look(&base, &disk);
                trials += 1;
                refused += u32::from(outcome.refused.is_some());
                unread += u32::from(!outcome.unread.is_empty());
                locked += u32::from(!outcome.locked.is_empty());
                wrong += u32::from(!outcome.wrong.is_empty());
                if !is_fair(damage, &outcome) {
                    unfair.push(format!("{what}: {outcome:?}"));
                }
            }
        }
    }
    println!(
        "{file}: {trials} trials, {refused} refused, {unread} with tables not all read, {locked} with locked rows, \
         {wrong} wrong"
    );
    assert!(unfair.is_empty(), "{} of {trials}:\n{}", unfair.len(), unfair.join("\n"));
    assert!(trials > 40, "{trials} trials: hardly a block was damaged");
    (refused, unread + locked)
}

#[test]
fn no_block_of_the_system_file_is_missed() {
    each_block("system.tpd", |_, outcome| {
        let Outcome { refused, unread, wrong, locked } = outcome;
        refused.is_none() && unread.is_empty() && wrong.is_empty() && locked.is_empty()
    });
}

#[test]
fn a_block_of_the_undo_file_costs_what_was_in_it_or_the_start() {
    let (refused, partly) = each_block("undo.tpd", |damage, outcome| {
        let names_it = |why: &String| why.contains("undo.tpd");
        let has_advice = |why: &String| why.contains("force_recovery=4");
        outcome.wrong.is_empty()
            && outcome.refused.iter().all(|why| names_it(why) && has_advice(why))
            && (damage != Damage::Deleted || outcome.refused.is_some())
            && outcome.unread.values().chain(outcome.locked.values()).all(names_it)
    });
    assert!(refused > 0 && partly > 0, "{refused} refused, {partly} in part: no damage is felt");
}

/// At a level of `force_recovery`: which tables can be read, and hold what was committed.
fn readable(base: &Base, disk: &SimStorage, force_recovery: ForceRecovery) -> Option<Vec<String>> {
    let options = Options { force_recovery, ..options() };
    let db = Db::open_on(Arc::new(disk.clone()), options).ok()?;
    let mut whole = vec![];
    for (name, truth) in &base.truth {
        let Ok(table) = db.open_table(name) else { continue };
        let mut trx = db.begin(TransactionOptions::default());
        if scan(&mut trx, &table, 0).is_ok_and(|rows| rows == *truth) {
            whole.push(name.clone());
        }
        if force_recovery.is_read_only() {
            let error =
                db.begin(TransactionOptions::default()).insert(&table, 0, b"new", b"").unwrap_err();
            let level = format!("force_recovery is {}", force_recovery.level());
            assert!(error.to_string().contains(&level), "{error}");
        }
    }
    if force_recovery.is_read_only() {
        assert!(
            !db.step_purge().unwrap_or(false) && !db.step_rollback_recovered().unwrap_or(false)
        );
    }
    Some(whole)
}

/// Both copies of what no start can do without, a missing file, a damaged log: refused, and read at
/// the level that the error names.
#[test]
fn what_is_refused_can_be_read_at_the_level_that_the_error_names() {
    type Harm = fn(&SimStorage);
    let harms: [(&str, Harm); 10] = [
        ("the catalog's header twice", |disk| {
            packed::flip(disk, packed::SYSTEM, &[0]);
            Damage::Bit.apply(disk, "system-mirror.tpd", 0);
        }),
        ("the catalog's roots, and a page of its mirror", |disk| {
            (0..4).for_each(|block| Damage::ZeroedPage.apply(disk, "system.tpd", block));
            Damage::Bit.apply(disk, "system-mirror.tpd", 2);
        }),
        ("the undo directory twice", |disk| {
            packed::flip(disk, packed::UNDO, &[2]);
            Damage::Bit.apply(disk, "undo-mirror.tpd", 2);
        }),
        ("the undo file's roots", |disk| {
            (0..4).for_each(|block| Damage::ZeroedPage.apply(disk, "undo.tpd", block));
        }),
        ("no undo log", |disk| disk.remove("undo.tpd").unwrap()),
        ("no undo log and no mirror", |disk| {
            disk.remove("undo.tpd").unwrap();
            disk.remove("undo-mirror.tpd").unwrap();
        }),
        ("no redo log", |disk| {
            for name in disk.list("redo").unwrap() {
                disk.remove(&format!("redo/{name}")).unwrap();
            }
        }),
        ("no redo log and no catalog but the mirror", |disk| {
            for name in disk.list("redo").unwrap() {
                disk.remove(&format!("redo/{name}")).unwrap();
            }
            disk.remove("system.tpd").unwrap();
        }),
        ("a redo file is missing", |disk| {
            let in_use = |name: &String| name.starts_with("redo.");
            let names = disk.list("redo").unwrap();
            names.iter().filter(|name| in_use(name)).for_each(|name| {
                disk.remove(&format!("redo/{name}")).unwrap();
            });
        }),
        ("the control file is broken", |disk| {
            disk.open("redo/control").unwrap().set_len(0).unwrap();
        }),
    ];
    for left in [Left::Closed, Left::Killed] {
        let base = base(left);
        for (what, harm) in harms {
            let what = format!("{left:?}, {what}");
            let disk = base.disk.kill();
            harm(&disk);
            let error = match Db::open_on(Arc::new(disk.clone()), options()) {
                // The log may have all of the page.
                Ok(_) if what == "Killed, the undo directory twice" => {
                    let whole = readable(&base, &disk.kill(), ForceRecovery::Off);
                    assert_eq!(whole.map_or(0, |whole| whole.len()), TABLES, "{what}");
                    continue;
                }
                Ok(_) => panic!("{what}: not refused"),
                Err(error) => error.to_string(),
            };
            let level = error.split("force_recovery=").nth(1).and_then(|rest| rest.chars().next());
            let level = level.and_then(|digit| digit.to_digit(10));
            let level = level.unwrap_or_else(|| panic!("{what}: no level in: {error}"));
            let force = ForceRecovery::from_level(level as u8).unwrap();
            let whole = readable(&base, &disk.kill(), force);
            let whole = whole.unwrap_or_else(|| panic!("{what}: no start at {level}"));
            // Without undo, what was unfinished passes for committed; without redo, the last
            // changes may be missing.
            let fair = match (force, left) {
                (ForceRecovery::NoRedo, Left::Killed) => 1,
                (ForceRecovery::NoRedo | ForceRecovery::NoUndo, _) => TABLES - UNFINISHED - 1,
                _ => TABLES,
            };
            println!("{what}: level {level}, {} of {TABLES} tables whole", whole.len());
            assert!(whole.len() >= fair, "{what}: only {whole:?} are whole at level {level}");
        }
    }
}

/// Scans pass over a broken leaf of a table, and nothing else is missing.
#[test]
fn a_scan_passes_over_a_broken_leaf_of_a_table() {
    let disk = SimStorage::new(3);
    let db = Db::open_on(Arc::new(disk.clone()), options()).unwrap();
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for row in 0..400 {
        trx.insert(&table, 0, &key(row), &[1; 100]).unwrap();
    }
    trx.commit().unwrap();
    let all = scan(&mut db.begin(TransactionOptions::default()), &table, 0).unwrap();
    drop((trx, table));
    db.close().unwrap();
    drop(db);
    let disk = disk.kill();
    let file = packed::file_name(SPACE);
    let (mut broken, mut lost) = (0, 0);
    for page in packed::page_numbers(&disk, SPACE) {
        let disk = disk.kill();
        packed::flip(&disk, SPACE, &[page]);
        let read = |force_recovery| {
            let options = Options { force_recovery, ..options() };
            let db = Db::open_on(Arc::new(disk.kill()), options).unwrap();
            let table = db.open_table("t")?;
            scan(&mut db.begin(TransactionOptions::default()), &table, 0)
        };
        if let Err(error) = read(ForceRecovery::Off) {
            let error = error.to_string();
            assert!(error.starts_with(&format!("{file}: page {page} is corrupt")), "{error}");
            broken += 1;
        }
        match read(ForceRecovery::ReadOnly) {
            Ok(rows) => {
                assert!(rows.iter().all(|(key, value)| all.get(key) == Some(value)));
                assert!(rows.len() + 60 > all.len(), "page {page}: only {} rows", rows.len());
                lost += usize::from(rows.len() < all.len());
            }
            // Behind a broken root nothing leads anywhere.
            Err(error) => assert!(error.to_string().contains("page 2 "), "{error}"),
        }
    }
    assert!(broken >= 10 && lost >= 8, "{broken} pages were missed, {lost} cost rows");
}

#[test]
fn levels_one_and_two_write_and_leave_what_they_say() {
    let base = base(Left::Killed);
    for force_recovery in [ForceRecovery::NoPurge, ForceRecovery::NoRollback] {
        let disk = base.disk.kill();
        let options = Options { force_recovery, ..options() };
        let db = Db::open_on(Arc::new(disk.clone()), options).unwrap();
        let mut outcome = Outcome::default();
        read_all(&db, &base, &mut outcome);
        assert!(!db.step_purge().unwrap(), "there is history, and it stays");
        let rolled_back = db.step_rollback_recovered().unwrap();
        assert_eq!(rolled_back, force_recovery == ForceRecovery::NoPurge);
        let table = db.open_table(&name(TABLES - 1)).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        trx.update(&table, 0, &key(0), b"newer").unwrap();
        trx.commit().unwrap();
        read_all(&db, &Base { disk: disk.clone(), truth: base.truth.clone() }, &mut outcome);
        assert!(outcome.unread.is_empty() && outcome.wrong.len() == 1, "{outcome:?}");
    }
}
