//! Many threads on leaves that fill, settle, split and merge, read at every level.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const KEYS: u32 = 1500;

/// A value that shows whether it is whole; some are long.
fn value(random: &mut StdRng) -> Vec<u8> {
    let len = match random.random_range(0..100) {
        0..4 => random.random_range(2000..20_000),
        4..80 => random.random_range(9..40),
        _ => random.random_range(9..400),
    };
    let byte: u8 = random.random();
    let mut value = (len as u64).to_le_bytes().to_vec();
    value.resize(len, byte);
    value
}

fn check(value: &[u8]) {
    assert_eq!(u64::from_le_bytes(value[..8].try_into().unwrap()), value.len() as u64);
    assert!(value[8..].iter().all(|byte| *byte == value[8]));
}

/// Key of the index entry of a row.
fn mirror(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = crc32c::crc32c(value).to_be_bytes().to_vec();
    out.extend_from_slice(key);
    out
}

/// A transaction that changes some rows, each with its index entry.
fn write(engine: &Engine, random: &mut StdRng) -> Result<()> {
    let isolation = [ReadCommitted, RepeatableRead][random.random_range(0..2)];
    let mut trx = engine.begin(isolation);
    trx.set_lock_wait_timeout(Duration::from_secs(60));
    let (table, index) = (&engine.trees[0], &engine.trees[1]);
    let mut old = Vec::new();
    for _ in 0..random.random_range(1..6) {
        trx.begin_statement();
        let n: u32 = random.random_range(0..KEYS);
        let key = n.wrapping_mul(2_654_435_761).to_be_bytes();
        let savepoint = trx.savepoint();
        let found = table.read(
            &mut trx,
            ReadRequest::new(&key, &mut old).locked(LockMode::Exclusive, LockWait::Wait),
        )?;
        let new = value(random);
        if found {
            check(&old);
            index.delete(&mut trx, &mirror(&key, &old))?;
            if random.random_ratio(1, 3) {
                table.delete(&mut trx, &key)?;
            } else {
                table.update(&mut trx, &key, &new)?;
                index.insert(&mut trx, &mirror(&key, &new), b"", LockMode::None)?;
            }
        } else {
            match table.insert(&mut trx, &key, &new, LockMode::Exclusive) {
                Err(Error::DuplicateKey { .. }) => {
                    trx.rollback_to(savepoint)?;
                    continue;
                }
                other => other?,
            }
            index.insert(&mut trx, &mirror(&key, &new), b"", LockMode::None)?;
        }
        if random.random_ratio(1, 6) {
            trx.rollback_to(savepoint)?;
        }
        trx.end_statement();
    }
    if random.random_ratio(1, 5) { trx.rollback() } else { trx.commit() }
}

/// One consistent look: the rows are whole, and the index says the same as the table.
fn look(engine: &Engine, trx: &mut TransactionCore, direction: Direction) -> Result<()> {
    let rows = scan_all(trx, &engine.trees[0], direction)?;
    rows.iter().for_each(|(_, value)| check(value));
    let mut expected: Vec<_> = rows.iter().map(|(key, value)| mirror(key, value)).collect();
    expected.sort();
    let index = scan_all(trx, &engine.trees[1], direction)?;
    assert!(index.into_iter().map(|(key, _)| key).eq(expected), "index and table disagree");
    Ok(())
}

fn is_fault(error: &Error) -> bool {
    matches!(error, Error::Io { .. })
}

#[test]
fn readers_at_every_level_find_whole_rows_in_changing_leaves() {
    run(false);
}

#[test]
fn so_they_do_when_the_disk_fails_now_and_then() {
    run(true);
}

fn run(faulty: bool) {
    let seconds: u64 =
        std::env::var("TIDEPOOL_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    let options = EnvOptions {
        background: true,
        buffer_pool_size_bytes: if faulty { 70 } else { 300 } * 4096,
        ..options()
    };
    let storage = SimStorage::new(3);
    let engine = Engine::create(&storage, &options);
    engine.system.set_flush_log_at_trx_commit(0);
    engine.system.start_background().unwrap();
    let until = Instant::now() + Duration::from_secs(seconds);
    let stop = AtomicBool::new(false);
    let [commits, refused, looks, faults] = [const { AtomicU64::new(0) }; 4];
    // An error that a reader or a writer may meet.
    let is_met = |error: &Error| {
        let is_met = faulty && is_fault(error);
        faults.fetch_add(u64::from(is_met), Ordering::Relaxed);
        is_met
    };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for seed in 0..5 {
            let (engine, commits, refused, is_met) = (&engine, &commits, &refused, &is_met);
            threads.push(scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                while Instant::now() < until {
                    match write(engine, &mut random) {
                        Ok(()) => commits.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Deadlock | Error::RecordChanged) => {
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                        Err(error) if is_met(&error) => continue,
                        Err(error) => panic!("{error}"),
                    };
                }
            }));
        }
        let disk = storage.clone();
        threads.push(scope.spawn(move || {
            while faulty && Instant::now() < until {
                disk.set_error_chance(StorageOp::Read, FaultKind::Io, 20_000);
                thread::sleep(Duration::from_millis(300));
                disk.set_error_chance(StorageOp::Read, FaultKind::Io, 0);
                thread::sleep(Duration::from_millis(300));
            }
        }));
        let (engine, stop, looks, is_met) = (&engine, &stop, &looks, &is_met);
        let mut readers = Vec::new();
        // Short snapshots, so that entries can be settled.
        readers.push(scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for direction in [Direction::Forward, Direction::Backward] {
                    let mut trx = engine.begin(RepeatableRead);
                    let looked = look(engine, &mut trx, direction);
                    match looked {
                        Ok(()) => looks.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            assert!(is_met(&error), "{error}");
                            0
                        }
                    };
                    trx.commit().unwrap();
                    thread::sleep(Duration::from_millis(50));
                }
            }
        }));
        readers.push(scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let mut trx = engine.begin(Isolation::ReadUncommitted);
                trx.begin_statement();
                let rows = scan_all(&mut trx, &engine.trees[0], Direction::Forward);
                match rows {
                    Ok(rows) => rows.iter().for_each(|(_, value)| check(value)),
                    Err(error) => {
                        assert!(is_met(&error), "{error}");
                        continue;
                    }
                }
                trx.end_statement();
            }
        }));
        readers.push(scope.spawn(move || {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let mut trx = engine.begin(ReadCommitted);
                trx.begin_statement();
                let mut position = ScanPosition::start();
                loop {
                    let found = lock_next_or_peek(
                        &mut trx,
                        &engine.trees[0],
                        &mut position,
                        (Direction::Forward, LockMode::Exclusive),
                        (&mut key, &mut value),
                    );
                    match found {
                        Ok(Peek::End) => break,
                        Ok(found) => {
                            check(&value);
                            if found == Peek::Locked {
                                engine.trees[0].unlock(&mut trx, &key);
                            }
                        }
                        Err(Error::Deadlock) => break,
                        Err(error) if is_met(&error) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                let _ = trx.rollback();
            }
        }));
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
        readers.into_iter().for_each(|end| end.join().unwrap());
    });
    engine.system.stop_background();
    println!(
        "{commits:?} commits, {refused:?} refused, {looks:?} looks, {:?}",
        engine.system.status()
    );
    assert!(commits.into_inner() > 0 && looks.into_inner() > 0, "hardly anything ran");
    assert_eq!(faults.load(Ordering::Relaxed) > 0, faulty, "{faults:?} faults");
    let mut trx = engine.begin(RepeatableRead);
    storage.set_error_chance(StorageOp::Read, FaultKind::Io, 0);
    look(&engine, &mut trx, Direction::Forward).unwrap();
    drop(trx);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}
