//! Backups of a directory on real files, with threads that write meanwhile; and what is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidepool::storage::{
    AlignedBuf, Fault, FaultKind, FileOptions, FileStorage, SimStorage, Storage, StorageOp,
};
use tidepool::{
    Backup, Db, Error, ForceRecovery, IndexDef, Options, TableDef, TransactionOptions,
    UNFINISHED_MARK,
};

#[path = "support/packed.rs"]
mod packed;
mod scan;

/// The first table's.
const SPACE: u32 = 16;

fn options() -> Options {
    Options {
        buffer_pool_size_bytes: 8 << 20,
        memory_guard: false,
        // The log goes round many times.
        redo_capacity_bytes: 8 << 20,
        flush_log_at_trx_commit: 2,
        ..Options::default()
    }
}

fn quiet() -> Options {
    Options { background: false, page_size: 4096, ..options() }
}

/// A row is its key and a version, which every transaction raises in all rows of a group at once.
const GROUPS: u32 = 3;
const ROWS_IN_GROUP: u32 = 600;

fn write_group(db: &Db, group: u32, version: u64) {
    let table = db.open_table("t").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for row in 0..ROWS_IN_GROUP {
        let key = (group * ROWS_IN_GROUP + row).to_be_bytes();
        let value = [&version.to_be_bytes()[..], &[version as u8; 700]].concat();
        if version == 0 {
            trx.insert(&table, 0, &key, &value).unwrap();
        } else {
            trx.update(&table, 0, &key, &value).unwrap();
        }
    }
    trx.commit().unwrap();
}

#[test]
fn transactions_of_many_pages_are_in_a_backup_as_a_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("data"), options()).unwrap();
    db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    (0..GROUPS).for_each(|group| write_group(&db, group, 0));
    let (stop, committed) =
        (AtomicBool::new(false), [const { AtomicU64::new(0) }; GROUPS as usize]);
    let mut copies = Vec::new();
    thread::scope(|scope| {
        for group in 0..GROUPS {
            let (db, stop, committed) = (&db, &stop, &committed);
            scope.spawn(move || {
                for version in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    write_group(db, group, version);
                    committed[group as usize].store(version, Ordering::Release);
                    if version % 8 == 0 {
                        let name = format!("comes and goes {group}");
                        let def = TableDef::new([IndexDef::unique("primary")]);
                        db.create_table(&name, &def).unwrap();
                        db.drop_table(&name).unwrap();
                    }
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        for round in 0..3 {
            let copy = dir.path().join(format!("copy {round}"));
            let read = |n: &AtomicU64| n.load(Ordering::Acquire);
            let mut backup = db.begin_backup(files(&copy)).unwrap();
            backup.copy_files(&mut |_| true).unwrap();
            // The log goes round once more.
            while backup.progress().log_bytes < 9 << 20 {
                backup.step().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            let least: Vec<u64> = committed.iter().map(read).collect();
            let report = backup.finish().unwrap();
            let most: Vec<u64> = committed.iter().map(|n| read(n) + 1).collect();
            assert!(report.log_bytes >= 9 << 20, "{report:?}");
            copies.push((copy, least, most));
        }
    });
    db.close().unwrap();
    for (copy, least, most) in copies {
        let restored = Db::open(&copy, options()).unwrap();
        let table = restored.open_table("t").unwrap();
        let mut trx = restored.begin(TransactionOptions::default());
        let rows = scan::scan(&mut trx, &table, 0).unwrap();
        assert_eq!(rows.len(), (GROUPS * ROWS_IN_GROUP) as usize);
        let versions: Vec<u64> =
            rows.values().map(|row| u64::from_be_bytes(row[..8].try_into().unwrap())).collect();
        for (group, rows) in versions.chunks(ROWS_IN_GROUP as usize).enumerate() {
            assert!(rows.iter().all(|version| *version == rows[0]), "group {group}: {rows:?}");
            assert!((least[group]..=most[group]).contains(&rows[0]), "group {group}");
        }
        assert!(table.check(&restored, &mut |_| true).unwrap().is_clean());
        // The copy takes writes, and is opened again.
        drop(trx);
        write_group(&restored, 0, u64::MAX);
        restored.close().unwrap();
        Db::open(&copy, options()).unwrap().close().unwrap();
    }
}

/// Ends the writers, also when the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn files(dir: &std::path::Path) -> Arc<dyn Storage> {
    Arc::new(FileStorage::new(dir, FileOptions::default()).unwrap())
}

fn small_db() -> (SimStorage, Db) {
    let sim = SimStorage::new(1);
    let db = Db::open_on(Arc::new(sim.clone()), quiet()).unwrap();
    fill(&db);
    (sim, db)
}

fn fill(db: &Db) {
    let table = db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for n in 0..2000u32 {
        trx.insert(&table, 0, &n.to_be_bytes(), &[n as u8; 400]).unwrap();
    }
    trx.commit().unwrap();
}

fn rows_in(db: &Db) -> usize {
    let table = db.open_table("t").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    scan::scan(&mut trx, &table, 0).unwrap().len()
}

/// Bytes that the disk has spoilt under a page that is whole in the pool.
#[test]
fn a_page_that_is_torn_in_the_file_is_taken_from_the_pool() {
    let (sim, db) = small_db();
    db.close().unwrap();
    let db = Db::open_on(Arc::new(sim.clone()), quiet()).unwrap();
    // Into the pool.
    assert_eq!(rows_in(&db), 2000);
    let pages: Vec<u32> =
        packed::page_numbers(&sim, SPACE).into_iter().filter(|no| *no >= 2).collect();
    assert!(pages.len() > 10);
    for place in packed::places(&sim, SPACE, &pages) {
        packed::change_bytes(&sim, SPACE, &place, |image| {
            let half = image.len() / 2;
            image[half..].fill(0xaa);
        });
    }
    let target = SimStorage::new(2);
    db.begin_backup(Arc::new(target.clone())).unwrap().finish().unwrap();
    assert_eq!(rows_in(&Db::open_on(Arc::new(target.crash()), quiet()).unwrap()), 2000);
}

/// One that is broken in the file, and nowhere else, must not become a copy that is trusted.
#[test]
fn a_broken_page_ends_the_backup_and_nothing_is_left_of_it() {
    let (sim, db) = small_db();
    db.close().unwrap();
    packed::change_image(&sim, SPACE, 5, |image| {
        let half = image.len() / 2;
        image[half..].fill(0xaa);
    });
    let db = Db::open_on(Arc::new(sim.clone()), quiet()).unwrap();
    let target = SimStorage::new(2);
    let error = db.begin_backup(Arc::new(target.clone())).unwrap().finish().unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { file, page: 5, .. } if *file == packed::file_name(SPACE)),
        "{error}"
    );
    for dir in ["redo", "tables"] {
        assert_eq!(target.list(dir).unwrap(), [""; 0]);
    }
    // The log is not kept any more, and the next may begin.
    db.drop_table("t").unwrap();
    db.begin_backup(Arc::new(target)).unwrap().finish().unwrap();
}

#[test]
fn what_is_refused() {
    let (_, db) = small_db();
    let target = SimStorage::new(2);
    let running = db.begin_backup(Arc::new(target.clone())).unwrap();
    let other = SimStorage::new(3);
    let error = db.begin_backup(Arc::new(other.clone())).unwrap_err();
    assert_eq!(error.to_string(), "invalid option: another backup is under way: wait for its end");
    assert_eq!(other.list("redo").unwrap(), [""; 0]);
    // The copy is no data directory before it is complete.
    let error = Db::open_on(Arc::new(target.clone()), quiet()).unwrap_err();
    assert!(
        error.to_string().contains("is still being made: wait for its end, or use another"),
        "{error}"
    );
    running.finish().unwrap();
    let error = db.begin_backup(Arc::new(target)).unwrap_err();
    assert_eq!(error.to_string(), "system.tpd: in the way of a backup: give it an empty directory");
    let running = db.begin_backup(Arc::new(other)).unwrap();
    db.close().unwrap();
    assert_eq!(running.finish().unwrap_err(), Error::Closed);
    assert!(db.begin_backup(Arc::new(SimStorage::new(4))).is_err());
}

#[test]
fn an_interrupted_backup_leaves_nothing() {
    let (sim, db) = small_db();
    // So that there are images to copy.
    db.close().unwrap();
    drop(db);
    let db = Db::open_on(Arc::new(sim.kill()), quiet()).unwrap();
    let target = SimStorage::new(2);
    let backup = db.begin_backup(Arc::new(target.clone())).unwrap();
    let mut seen = 0;
    let stopped = backup.run(&mut |progress| {
        seen = progress.copied_bytes;
        progress.copied_bytes == 0
    });
    assert!(matches!(stopped, Err(Error::Interrupted)) && seen > 0, "{stopped:?}, {seen} bytes");
    assert_eq!(target.list("tables").unwrap(), [""; 0]);
    assert_eq!(target.list("redo").unwrap(), [""; 0]);
}

/// Opens what is left of a backup: true if it is complete. Else it is refused, or the directory is
/// as empty as it was.
fn is_complete(left: SimStorage, at: &str) -> bool {
    left.set_capacity(None);
    if left.list("").unwrap().is_empty() {
        return false;
    }
    match Db::open_on(Arc::new(left), quiet()) {
        Ok(copy) => {
            assert_eq!(copy.table_names().unwrap(), ["t"], "{at}: opened as another directory");
            assert_eq!(rows_in(&copy), 2000, "{at}");
            true
        }
        Err(error) => {
            assert!(error.to_string().contains(UNFINISHED_MARK), "{at}: {error}");
            false
        }
    }
}

/// At each of its operations: a kill, a power cut of a few outcomes, and an error, after which
/// another backup may go there.
#[test]
fn what_an_interruption_leaves_is_refused_or_complete() {
    let (_, db) = small_db();
    let begin = |target: &SimStorage| db.begin_backup(Arc::new(target.clone()));
    let back_up = |target: &SimStorage| begin(target).and_then(Backup::finish);
    let (mut complete, mut operations) = ([0; 3], 0);
    for at in 1.. {
        let target = SimStorage::new(at);
        target.kill_at(at);
        let killed = back_up(&target);
        if killed.is_ok() {
            operations = at - 1;
            break;
        }
        complete[0] += u32::from(is_complete(target.kill(), &format!("killed at {at}")));

        let target = SimStorage::new(at);
        target.crash_at(at);
        back_up(&target).unwrap_err();
        for seed in 0..6 {
            let left = target.crash_with(seed);
            complete[1] += u32::from(is_complete(left, &format!("cut at {at}, outcome {seed}")));
        }

        let target = SimStorage::new(at);
        let ops = [StorageOp::Create, StorageOp::Write, StorageOp::Sync, StorageOp::SyncDir];
        let op = ops[at as usize % ops.len()];
        target.inject(Fault::new(op, FaultKind::Io).skip(at / 4));
        if back_up(&target).is_err() {
            assert!(!is_complete(target.clone(), &format!("{op:?} failed")));
            target.clear_faults();
            back_up(&target).unwrap();
        }
        assert!(is_complete(target.crash(), &format!("{op:?} failed, then another backup")));
    }
    assert!(operations > 20, "{operations}");
    // The mark's removal is durable only with the sync behind it, the last operation of all.
    assert!(complete[0] >= 1 && complete[1] >= 1, "{complete:?}");
}

/// The server does not wait for a target that stands still: the log goes on where the backup has
/// not copied it, and the backup says so.
#[test]
fn a_log_that_cannot_grow_goes_on_without_the_backup() {
    let (sim, db) = small_db();
    let table = db.open_table("t").unwrap();
    let backup = db.begin_backup(Arc::new(SimStorage::new(2))).unwrap();
    // Room for what tables and undo take, and for less log than is written.
    sim.set_capacity(Some(sim.used_bytes() + (12 << 20)));
    for round in 0..60u8 {
        let mut trx = db.begin(TransactionOptions::default());
        for n in 0..400u32 {
            trx.update(&table, 0, &n.to_be_bytes(), &[round; 400]).unwrap();
        }
        trx.commit().unwrap();
        while db.step_purge().unwrap() {}
        db.step_checkpoint().unwrap();
    }
    let error = backup.finish().unwrap_err();
    assert!(error.to_string().contains("which was not copied yet"), "{error}");
    assert!(db.status().get("redo_log_checkpoints").unwrap_or(1) > 0);
    db.begin_backup(Arc::new(SimStorage::new(3))).unwrap().finish().unwrap();
}

#[test]
fn a_directory_that_is_open_read_only_can_be_copied() {
    let (sim, db) = small_db();
    db.close().unwrap();
    let db = Db::open_on(Arc::new(sim), Options { read_only: true, ..quiet() }).unwrap();
    let target = SimStorage::new(2);
    db.begin_backup(Arc::new(target.clone())).unwrap().finish().unwrap();
    assert_eq!(rows_in(&Db::open_on(Arc::new(target.crash()), quiet()).unwrap()), 2000);
}

/// The same on real files, which take no write then.
#[test]
fn a_directory_of_files_that_is_open_read_only_can_be_copied() {
    let dir = tempfile::tempdir().unwrap();
    let [data, copy, increment] = ["data", "copy", "increment"].map(|name| dir.path().join(name));
    let db = Db::open(&data, quiet()).unwrap();
    fill(&db);
    db.close().unwrap();
    let db = Db::open(&data, Options { read_only: true, ..quiet() }).unwrap();
    db.backup(&copy, &mut |_| true).unwrap();
    // The directory could not note it.
    let error = db.begin_backup_since_in(&copy, &increment).unwrap_err().to_string();
    assert!(error.contains("make a complete backup"), "{error}");
    assert_eq!(rows_in(&Db::open(&copy, quiet()).unwrap()), 2000);
}

#[test]
fn nothing_that_was_opened_without_its_log_is_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    let (data, copy) = (dir.path().join("data"), dir.path().join("copy"));
    let db = Db::open(&data, quiet()).unwrap();
    fill(&db);
    db.close().unwrap();
    for force_recovery in [ForceRecovery::ReadOnly, ForceRecovery::NoUndo, ForceRecovery::NoRedo] {
        let db = Db::open(&data, Options { force_recovery, ..quiet() }).unwrap();
        let error = db.backup(&copy, &mut |_| true).unwrap_err();
        assert!(matches!(error, Error::ReadOnly(_)), "{force_recovery:?}: {error}");
        assert!(error.to_string().contains("dump the tables"), "{error}");
        assert!(!data.join("backups").exists());
    }
}

/// A file that is gone while the server runs, or was gone at its start.
#[test]
fn a_table_whose_file_is_missing_is_not_left_out_in_silence() {
    for is_open in [true, false] {
        let (sim, db) = small_db();
        db.create_table("u", &TableDef::new([IndexDef::unique("primary")])).unwrap();
        db.close().unwrap();
        let file = format!("tables/{SPACE:08x}.tpd");
        let db = match is_open {
            true => {
                let db = Db::open_on(Arc::new(sim.clone()), quiet()).unwrap();
                rows_in(&db);
                sim.remove(&file).unwrap();
                db
            }
            false => {
                sim.remove(&file).unwrap();
                Db::open_on(Arc::new(sim.clone()), quiet()).unwrap()
            }
        };
        let target = SimStorage::new(2);
        let backup = db.begin_backup(Arc::new(target.clone())).unwrap();
        let error = backup.finish().unwrap_err().to_string();
        assert!(error.contains(&file) && error.contains("table t is missing"), "{error}");
        assert_eq!(target.list("tables").unwrap(), [""; 0]);
        // One that was dropped is no table any more.
        let backup = db.begin_backup(Arc::new(SimStorage::new(3))).unwrap();
        db.drop_table("t").unwrap();
        backup.finish().unwrap();
    }
}

/// What was prepared when the backup ended stays so, and the directory stays known as a backup,
/// until a coordinator has decided.
#[test]
fn a_restored_backup_is_known_as_one_until_its_coordinator_has_decided() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("data"), options()).unwrap();
    assert!(!db.is_restored().unwrap());
    db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let table = db.open_table("t").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"key", b"value").unwrap();
    trx.prepare(b"xid").unwrap();
    let copy = dir.path().join("copy");
    db.backup(&copy, &mut |_| true).unwrap();
    for _ in 0..2 {
        let restored = Db::open(&copy, options()).unwrap();
        assert!(restored.is_restored().unwrap());
        assert_eq!(restored.recovered_xids(), [b"xid".to_vec()]);
        restored.close().unwrap();
    }
    let restored = Db::open(&copy, options()).unwrap();
    restored.rollback_prepared(b"xid").unwrap();
    restored.end_restore().unwrap();
    restored.close().unwrap();
    let restored = Db::open(&copy, options()).unwrap();
    assert!(!restored.is_restored().unwrap());
    assert!(restored.recovered_xids().is_empty());
}

#[test]
fn a_directory_that_went_back_in_time_takes_no_later_backup_as_its_base() {
    let sim = SimStorage::new(1);
    let open = |sim: &SimStorage| Db::open_on(Arc::new(sim.clone()), quiet()).unwrap();
    let db = open(&sim);
    db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    write_group(&db, 0, 0);
    db.close().unwrap();
    // Two states of one moment: the second is what a snapshot of the file system has kept.
    let (now, before) = (sim.crash_with(1), sim.crash_with(2));
    let db = open(&now);
    let base = SimStorage::new(2);
    db.begin_backup(Arc::new(base.clone())).unwrap().run(&mut |_| true).unwrap();
    write_group(&db, 0, 1);
    let next = SimStorage::new(3);
    let backup = db.begin_backup_since(&base, Arc::new(next)).unwrap();
    backup.run(&mut |_| true).unwrap();
    db.close().unwrap();

    let db = open(&before);
    write_group(&db, 0, 2);
    let error = db.begin_backup_since(&base, Arc::new(SimStorage::new(4))).unwrap_err();
    assert!(
        error.to_string().contains("make a complete backup, and take that as the base"),
        "{error}"
    );
    let error = db.begin_backup_since(&SimStorage::new(5), Arc::new(SimStorage::new(6)));
    assert!(error.unwrap_err().to_string().contains("is no backup"));
    db.close().unwrap();
}

/// The directory may be another process's when a backup that was begun before is dropped.
#[test]
fn a_backup_that_outlives_its_database_writes_nothing() {
    fn control(sim: &SimStorage) -> Vec<u8> {
        let file = sim.open("redo/control").unwrap();
        let mut bytes = AlignedBuf::zeroed(file.len().unwrap() as usize);
        file.read_at(&mut bytes, 0).unwrap();
        bytes.to_vec()
    }
    for steps in [0, 3] {
        let (sim, db) = small_db();
        let mut backup = db.begin_backup(Arc::new(SimStorage::new(2))).unwrap();
        for _ in 0..steps {
            backup.step().unwrap();
        }
        // More than a file of the log, which the backup keeps.
        for version in 1..20 {
            for group in 0..GROUPS {
                write_group(&db, group, version);
            }
        }
        db.close().unwrap();
        let other = Db::open_on(Arc::new(sim.clone()), quiet()).unwrap();
        for group in 0..GROUPS {
            write_group(&other, group, 20);
        }
        other.flush_log().unwrap();
        let before = control(&sim);
        if steps > 0 {
            assert_eq!(backup.step(), Err(Error::Closed));
        }
        drop(backup);
        assert!(control(&sim) == before, "after {steps} steps");
        other.close().unwrap();
    }
}
