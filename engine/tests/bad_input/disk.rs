//! Disks that are full, fail, or are remounted: on a simulated disk, single-threaded.

use std::sync::Arc;
use tidepool::storage::{Fault, FaultKind, SimStorage, StorageOp};
use tidepool::{Db, Error, Options, ReadRequest, Table, TransactionOptions};

use crate::fixture::{count, def, fill, fill_more, options, without_numbers};

/// On a simulated disk, single-threaded.
fn simulated() -> (SimStorage, Db, Arc<Table>) {
    let sim = SimStorage::new(3);
    let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
    let table = db.create_table("a", &def()).unwrap();
    fill(&db, &table, 1000).unwrap();
    (sim, db, table)
}

#[test]
fn disk_full_while_writing() {
    let (sim, db, table) = simulated();
    // The log of a new directory is small. This one has been in use.
    for round in 0..20 {
        db.write(|trx| {
            (0..1000u32).try_for_each(|key| trx.put(&table, &key.to_be_bytes(), &[round; 100]))
        })
        .unwrap();
    }
    sim.set_capacity(Some(sim.used_bytes()));
    let mut trx = db.begin(TransactionOptions::default());
    let mut inserted = 0u32;
    let error = loop {
        match trx.insert(&table, 0, &[b"y", &inserted.to_be_bytes()[..]].concat(), &[1; 3000]) {
            Ok(()) => inserted += 1,
            Err(error) => break error,
        }
        assert!(inserted < 100_000, "the disk is never full");
    };
    assert_eq!(
        error.to_string(),
        "no space left for tables/00000010.tpd: free disk space and try again"
    );
    // The statement failed, the transaction goes on, and so does everybody else.
    trx.update(&table, 0, &5u32.to_be_bytes(), b"new").unwrap();
    trx.commit().unwrap();
    assert_eq!(count(&db, &table).unwrap(), 1000 + inserted);
    assert_eq!(
        db.create_table("c", &def()).unwrap_err().to_string(),
        "no space left for tables/00000011.tpd: free disk space and try again"
    );
    assert_eq!(db.table_names().unwrap(), ["a"]);
    sim.set_capacity(None);
    let c = db.create_table("c", &def()).unwrap();
    fill(&db, &c, 10).unwrap();
    assert!(table.check(&db, &mut |_| true).unwrap().is_clean());
    drop((table, c, db));
    let db = Db::open_on(Arc::new(sim.crash()), options()).unwrap();
    assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1000 + inserted);
}

/// The files were never written. The rows change all the same, however little is left of the disk.
#[test]
fn a_young_directory_takes_changes_of_its_rows_on_a_full_disk() {
    for free in (0..512u64).step_by(96).map(|kib| kib << 10) {
        let (sim, db, table) = simulated();
        let capacity = Some(sim.used_bytes() + free);
        sim.set_capacity(capacity);
        let mut versions = [0u32; 1000];
        let mut refused = 0;
        // As much as the log holds four times.
        for round in 1..=300u32 {
            let mut trx = db.begin(TransactionOptions::default());
            let changed = (0..1000u32).step_by(7).try_for_each(|key| {
                let value = [&round.to_be_bytes()[..], &[7; 200]].concat();
                trx.update(&table, 0, &key.to_be_bytes(), &value)
            });
            match changed {
                Ok(()) => {
                    trx.commit().unwrap();
                    (0..1000).step_by(7).for_each(|key| versions[key] = round);
                }
                Err(error) => {
                    assert!(error.to_string().starts_with("no space left for "), "{error}");
                    trx.rollback().unwrap();
                    refused += 1;
                }
            }
            while db.step_purge().unwrap() {}
        }
        println!("{free} bytes free: {refused} of 300 transactions were refused");
        assert!(refused < 30, "{refused} with {free} bytes free");
        let is_whole = |db: &Db, table: &Arc<Table>| {
            let mut trx = db.begin(TransactionOptions::default());
            let mut value = vec![];
            for (key, version) in versions.iter().enumerate().filter(|(_, version)| **version > 0) {
                let key = (key as u32).to_be_bytes();
                assert!(trx.read(table, 0, ReadRequest::new(&key, &mut value)).unwrap());
                assert_eq!(value[..4], version.to_be_bytes());
            }
            assert!(table.check(db, &mut |_| true).unwrap().is_clean());
        };
        is_whole(&db, &table);
        drop((table, db));
        // The next process finds the disk as full as it was.
        let sim = sim.kill();
        sim.set_capacity(capacity);
        let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
        is_whole(&db, &db.open_table("a").unwrap());
        sim.set_capacity(None);
        fill(&db, &db.create_table("c", &def()).unwrap(), 10).unwrap();
        assert_eq!(db.status().get("ballast_bytes"), Some(2 << 20));
        db.close().unwrap();
    }
}

/// Rows that were shortened are to become long again, and others have taken their room since.
#[test]
fn a_rollback_ends_on_a_full_disk() {
    let (sim, db, table) = simulated();
    let key_of = |row: u32, part: u8| [&row.to_be_bytes()[..], &[part]].concat();
    let write = |row: u32, part: u8, len: usize| {
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(&table, 0, &key_of(row, part), &vec![part; len])?;
        trx.commit()
    };
    (0..400).for_each(|row| write(row, 0, 2000).unwrap());
    let mut shortened = db.begin(TransactionOptions::default());
    for row in 0..400 {
        shortened.update(&table, 0, &key_of(row, 0), b"short").unwrap();
    }
    sim.set_capacity(Some(sim.used_bytes()));
    let mut more = (1..=20).flat_map(|part| (0..400).map(move |row| (row, part)));
    let refused = more.find_map(|(row, part)| write(row, part, 1500).err());
    assert!(matches!(refused, Some(Error::NoSpace(_))), "{refused:?}");
    shortened.rollback().unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    let mut value = vec![];
    for row in 0..400 {
        let key = key_of(row, 0);
        assert!(trx.read(&table, 0, ReadRequest::new(&key, &mut value)).unwrap());
        assert_eq!(value, [0; 2000]);
    }
    assert_eq!(db.status().get("ballast_bytes"), Some(0), "it was needed");
    assert!(table.check(&db, &mut |_| true).unwrap().is_clean());
}

/// The same disk, in the next process, with nothing cached.
fn reopened(sim: &SimStorage, db: Db) -> (SimStorage, Db) {
    db.close().unwrap();
    drop(db);
    let sim = sim.kill();
    let db = Db::open_on(Arc::new(sim.clone()), options()).unwrap();
    (sim, db)
}

#[test]
fn io_error_on_read() {
    let (sim, db, table) = simulated();
    drop(table);
    let (sim, db) = reopened(&sim, db);
    let table = db.open_table("a").unwrap();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("tables/").always());
    let mut trx = db.begin(TransactionOptions::default());
    let mut value = vec![];
    let key = 999u32.to_be_bytes();
    let mut get = || trx.read(&table, 0, ReadRequest::new(&key, &mut value));
    assert_eq!(
        get().unwrap_err().to_string(),
        "cannot read 'tables/00000010.tpd' at offset 16384: Input/output error (os error 5) (the disk failed: look in the kernel log and check the device)"
    );
    sim.clear_faults();
    assert!(get().unwrap());
    drop(trx);
    assert_eq!(count(&db, &table).unwrap(), 1000);
    fill_more(&db, &table);
}

#[test]
fn io_error_on_fsync_of_the_log() {
    let (sim, db, table) = simulated();
    sim.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("redo/"));
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"lost?", b"").unwrap();
    let expected = trx.commit().unwrap_err().to_string();
    assert_eq!(
        without_numbers(&expected),
        "the engine has stopped writing: cannot sync 'redo/redo.#': \
         Input/output error (os error #) (the disk failed: look in the kernel log and check the \
         device); restart to recover"
    );
    // Nothing is written any more, and nothing that a retry could make look right. Reading goes on.
    let refused = trx.insert(&table, 0, b"later", b"").unwrap_err();
    assert_eq!(refused.to_string(), expected);
    assert_eq!(db.create_table("c", &def()).unwrap_err().to_string(), expected);
    assert_eq!(count(&db, &table).unwrap(), 1001);
    assert_eq!(db.close().unwrap_err().to_string(), expected);
    drop((trx, table, db));
    let db = Db::open_on(Arc::new(sim.crash()), options()).unwrap();
    let rows = count(&db, &db.open_table("a").unwrap()).unwrap();
    assert!(rows == 1000 || rows == 1001, "{rows}");
}

/// Pages stay in the pool and the redo log fills. Writers then get the disk's error, instead of
/// waiting for ever, and go on when it is mended.
#[test]
fn io_error_on_writing_a_table() {
    let sim = SimStorage::new(3);
    let with_threads = Options { background: true, ..options() };
    let db = Db::open_on(Arc::new(sim.clone()), with_threads).unwrap();
    let table = db.create_table("a", &def()).unwrap();
    fill(&db, &table, 1000).unwrap();
    sim.inject(Fault::new(StorageOp::Write, FaultKind::Io).on("tables/").always());
    let mut trx = db.begin(TransactionOptions::default());
    let mut update =
        |round: u32| trx.update(&table, 0, &(round % 1000).to_be_bytes(), &[round as u8; 200]);
    let (rounds, error) = (0..1_000_000)
        .find_map(|round| update(round).err().map(|error| (round, error)))
        .expect("the redo log is never full");
    let text = error.to_string();
    assert!(text.starts_with("cannot write 'tables/00000010.tpd' at offset "), "{text}");
    assert!(text.contains("Input/output error (os error 5)"), "{text}");
    sim.clear_faults();
    update(rounds).unwrap();
    trx.commit().unwrap();
    assert_eq!(count(&db, &table).unwrap(), 1000);
    assert!(table.check(&db, &mut |_| true).unwrap().is_clean());
}

#[test]
fn io_error_on_fsync_of_a_table() {
    let (sim, db, table) = simulated();
    sim.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("tables/"));
    let error = db.close().unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot sync 'tables/00000010.tpd': Input/output error (os error 5) (the disk failed: look in the kernel log and check the device)"
    );
    drop((table, db));
    let db = Db::open_on(Arc::new(sim.crash()), options()).unwrap();
    assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1000);
}

#[test]
fn disk_remounted_read_only() {
    let (sim, db, table) = simulated();
    sim.inject(Fault::new(StorageOp::Write, FaultKind::ReadOnly).always());
    let mut trx = db.begin(TransactionOptions::default());
    let error =
        trx.insert(&table, 0, b"x", b"").and_then(|()| trx.commit()).unwrap_err().to_string();
    let (file, why) = error.split_once(" at offset ").unwrap();
    assert_eq!(
        without_numbers(file),
        "the engine has stopped writing: read-only: cannot write 'redo/redo.#'"
    );
    assert_eq!(
        why.split_once(": ").unwrap().1,
        "Read-only file system (os error 30) (the file system is mounted read-only: remount it for writing, after \
         looking in the kernel log for the reason); restart to recover"
    );
    assert!(count(&db, &table).unwrap() >= 1000);
    drop((trx, table, db));
    let db = Db::open_on(Arc::new(sim.crash()), options()).unwrap();
    assert_eq!(count(&db, &db.open_table("a").unwrap()).unwrap(), 1000);
}
