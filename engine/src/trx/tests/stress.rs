//! Many threads on one engine: money that must not appear or vanish, an index that must agree with
//! its table.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const ACCOUNTS: u32 = 24;
const START: u64 = 1000;

fn account(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn amount(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("eight bytes"))
}

/// A balance, followed by a filler of changing length that makes rows move, and now and then a long
/// value.
fn row(balance: u64, random: &mut StdRng) -> Vec<u8> {
    let mut row = balance.to_le_bytes().to_vec();
    let filler = if random.random_ratio(1, 50) { 5000 } else { random.random_range(0..120) };
    row.resize(8 + filler, 7);
    row
}

/// Key of the index entry: balance, then account.
fn index_key(balance: u64, n: u32) -> Vec<u8> {
    [&balance.to_be_bytes()[..], &account(n)].concat()
}

/// How a transfer reads what it is going to change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Locks both rows, then writes.
    Locking,
    /// Reads by its snapshot, then writes: only a conflict check saves the sum.
    Optimistic,
    /// Locks shared, then strengthens: deadlocks in plenty.
    Strengthening,
}

fn transfer(
    engine: &Engine,
    isolation: Isolation,
    style: Style,
    random: &mut StdRng,
) -> Result<()> {
    let mut trx = engine.begin(isolation);
    trx.set_lock_wait_timeout(Duration::from_secs(60));
    let (table, index) = (&engine.trees[0], &engine.trees[1]);
    let from = random.random_range(0..ACCOUNTS);
    let to = (from + random.random_range(1..ACCOUNTS)) % ACCOUNTS;
    let mode = match style {
        Style::Locking => LockMode::Exclusive,
        Style::Optimistic => LockMode::None,
        Style::Strengthening => LockMode::Shared,
    };
    let mut balances = [0; 2];
    let mut value = Vec::new();
    for (balance, n) in balances.iter_mut().zip([from, to]) {
        assert!(table.read(
            &mut trx,
            ReadRequest::new(&account(n), &mut value).locked(mode, LockWait::Wait)
        )?);
        *balance = amount(&value);
    }
    let sum = random.random_range(0..=balances[0].min(50));
    let savepoint = trx.savepoint();
    if random.random_ratio(1, 10) {
        // A statement that fails half-way.
        table.update(&mut trx, &account(from), &row(0, random))?;
        trx.rollback_to(savepoint)?;
    }
    for (n, before, after) in
        [(from, balances[0], balances[0] - sum), (to, balances[1], balances[1] + sum)]
    {
        table.update(&mut trx, &account(n), &row(after, random))?;
        if before != after {
            index.delete(&mut trx, &index_key(before, n))?;
            index.insert(&mut trx, &index_key(after, n), b"", LockMode::None)?;
        }
    }
    if random.random_ratio(1, 8) { trx.rollback() } else { trx.commit() }
}

/// One consistent look: the sum is right, and the index says the same as the table.
fn check_view(engine: &Engine, trx: &mut TransactionCore, direction: Direction) {
    let rows = scan_all(trx, &engine.trees[0], direction).unwrap();
    assert_eq!(rows.len() as u32, ACCOUNTS);
    let sum: u64 = rows.iter().map(|(_, value)| amount(value)).sum();
    assert_eq!(sum, u64::from(ACCOUNTS) * START, "money appeared or vanished");
    let mut expected: Vec<Vec<u8>> = rows
        .iter()
        .map(|(key, value)| {
            let n = u32::from_be_bytes(key[..].try_into().expect("four bytes"));
            index_key(amount(value), n)
        })
        .collect();
    expected.sort();
    let index = scan_all(trx, &engine.trees[1], direction).unwrap();
    let found: Vec<Vec<u8>> = index.into_iter().map(|(key, _)| key).collect();
    assert_eq!(found, expected, "index and table disagree");
}

fn bank(isolation: Isolation, style: Style) {
    let options = EnvOptions { background: true, ..options() };
    let engine = Engine::create(&SimStorage::new(3), &options);
    let mut random = StdRng::seed_from_u64(1);
    let mut trx = engine.begin(isolation);
    for n in 0..ACCOUNTS {
        let value = row(START, &mut random);
        engine.trees[0].insert(&mut trx, &account(n), &value, LockMode::None).unwrap();
        engine.trees[1].insert(&mut trx, &index_key(START, n), b"", LockMode::None).unwrap();
    }
    trx.commit().unwrap();
    engine.system.set_flush_log_at_trx_commit(0);
    engine.system.start_background().unwrap();
    let seconds: u64 =
        std::env::var("TIDEPOOL_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    let until = Instant::now() + Duration::from_secs(seconds);
    let stop = AtomicBool::new(false);
    let (commits, refused, looks) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for seed in 0..6 {
            let (engine, commits, refused) = (&engine, &commits, &refused);
            threads.push(scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                while Instant::now() < until {
                    match transfer(engine, isolation, style, &mut random) {
                        Ok(()) => commits.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Deadlock | Error::RecordChanged) => {
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                        Err(error) => panic!("{error}"),
                    };
                }
            }));
        }
        // A long reader sees the same all the time, while purge runs.
        let (engine, stop, looks) = (&engine, &stop, &looks);
        let long = scope.spawn(move || {
            let mut trx = engine.begin(Isolation::RepeatableRead);
            trx.ensure_view();
            let first = scan_all(&mut trx, &engine.trees[0], Direction::Forward).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let again = scan_all(&mut trx, &engine.trees[0], Direction::Backward).unwrap();
                assert!(first == again, "a snapshot moved");
            }
        });
        let short = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for direction in [Direction::Forward, Direction::Backward] {
                    let mut trx = engine.begin(Isolation::RepeatableRead);
                    check_view(engine, &mut trx, direction);
                    trx.commit().unwrap();
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
        long.join().unwrap();
        short.join().unwrap();
    });
    engine.system.stop_background();
    println!(
        "{} commits, {refused:?} refused, {looks:?} looks, {:?}",
        commits.load(Ordering::Relaxed),
        engine.system.status()
    );
    assert!(commits.load(Ordering::Relaxed) > 50 && looks.load(Ordering::Relaxed) > 0);
    assert_eq!(engine.system.status().lock_timeouts, 0);
    let mut trx = engine.begin(Isolation::RepeatableRead);
    check_view(&engine, &mut trx, Direction::Forward);
    drop(trx);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn a_bank_at_read_committed_keeps_its_sum() {
    bank(Isolation::ReadCommitted, Style::Locking);
}

#[test]
fn a_bank_at_repeatable_read_keeps_its_sum_by_locks() {
    bank(Isolation::RepeatableRead, Style::Locking);
}

#[test]
fn a_bank_at_repeatable_read_keeps_its_sum_by_conflict_checks() {
    bank(Isolation::RepeatableRead, Style::Optimistic);
}

#[test]
fn a_bank_at_serializable_keeps_its_sum() {
    bank(Isolation::Serializable, Style::Strengthening);
}

/// Figures, not a test: `cargo test --release -p tidepool-engine trx_figures -- --ignored
/// --nocapture`.
#[test]
#[ignore = "measures"]
fn trx_figures() {
    let options = EnvOptions {
        buffer_pool_size_bytes: 64 << 20,
        redo_capacity_bytes: 1 << 30,
        background: true,
        ..EnvOptions::small()
    };
    let engine = Engine::create(&SimStorage::new(1), &options);
    engine.system.set_flush_log_at_trx_commit(0);
    engine.system.start_background().unwrap();
    let tree = &engine.trees[0];
    const ROWS: u32 = 50_000;
    let measure = |what: &str, threads: u64, each: u32, work: &(dyn Fn(&mut StdRng) + Sync)| {
        let start = Instant::now();
        thread::scope(|scope| {
            for seed in 0..threads {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    (0..each).for_each(|_| work(&mut random));
                });
            }
        });
        let each_us = start.elapsed().as_micros() as f64 / f64::from(each) / threads as f64;
        println!("{what:40} {threads:2} threads {each_us:8.2} us");
    };
    let mut trx = engine.begin(Isolation::RepeatableRead);
    let start = Instant::now();
    for n in 0..ROWS {
        tree.insert(&mut trx, &account(n), &[1; 100], LockMode::None).unwrap();
    }
    trx.commit().unwrap();
    println!(
        "insert in one transaction {:.2} us",
        start.elapsed().as_micros() as f64 / f64::from(ROWS)
    );
    for threads in [1, 2, 8] {
        let each = 200_000 / threads as u32;
        measure("begin, commit", threads, each, &|_| {
            engine.begin(Isolation::RepeatableRead).commit().unwrap()
        });
        measure("begin, get, commit", threads, each, &|random| {
            let mut trx = engine.begin(Isolation::RepeatableRead);
            let key = account(random.random_range(0..ROWS));
            let mut value = Vec::new();
            assert!(tree.read(&mut trx, ReadRequest::new(&key, &mut value)).unwrap());
            trx.commit().unwrap();
        });
        measure("begin, update, commit", threads, each, &|random| {
            let mut trx = engine.begin(Isolation::RepeatableRead);
            trx.set_lock_wait_timeout(Duration::from_secs(50));
            let key = account(random.random_range(0..ROWS));
            tree.update(&mut trx, &key, &[random.random(); 100]).unwrap();
            trx.commit().unwrap();
        });
        measure("begin, get for update, update, commit", threads, each, &|random| {
            let mut trx = engine.begin(Isolation::RepeatableRead);
            trx.set_lock_wait_timeout(Duration::from_secs(50));
            let key = account(random.random_range(0..ROWS));
            let mut value = Vec::new();
            tree.read(
                &mut trx,
                ReadRequest::new(&key, &mut value).locked(LockMode::Exclusive, LockWait::Wait),
            )
            .unwrap();
            tree.update(&mut trx, &key, &[random.random(); 100]).unwrap();
            trx.commit().unwrap();
        });
        measure("one hot row, update, commit", threads, each / 10, &|random| {
            let mut trx = engine.begin(Isolation::ReadCommitted);
            trx.set_lock_wait_timeout(Duration::from_secs(50));
            tree.update(&mut trx, &account(7), &[random.random(); 100]).unwrap();
            trx.commit().unwrap();
        });
    }
    println!("{:?}", engine.system.status());
    engine.system.stop_background();
}

/// What a transaction writes on the way begins with this, what it commits does not.
const PASSING: u8 = 0xFF;

/// One row's versions by one transaction are walked through without its leaf's latch, while they
/// come and go: by further changes, by rollbacks, whole and to savepoints, and by purge.
#[test]
fn a_row_that_is_changed_very_often_is_read_as_it_was_committed() {
    const ROUNDS: u8 = 80;
    let engine = engine();
    let (tree, done) = (&engine.trees[0], AtomicBool::new(false));
    put(&engine, b"k", &[0; 9]);
    let writer = || {
        let mut random = StdRng::seed_from_u64(7);
        for round in 1..=ROUNDS {
            let mut trx = engine.begin(ReadCommitted);
            trx.set_lock_wait_timeout(Duration::from_secs(60));
            let mut savepoint = trx.savepoint();
            for n in 0..random.random_range(1..400u32) {
                if trx.id() == TrxId::NONE || random.random_ratio(99, 100) {
                    let value = [&[PASSING][..], &n.to_le_bytes().repeat(n as usize % 20)].concat();
                    tree.update(&mut trx, b"k", &value).unwrap();
                } else if random.random_bool(0.5) {
                    savepoint = trx.savepoint();
                } else {
                    trx.rollback_to(savepoint).unwrap();
                }
            }
            if random.random_bool(0.5) {
                tree.update(&mut trx, b"k", &[round; 9]).unwrap();
                trx.commit().unwrap();
            } else {
                trx.rollback().unwrap();
            }
        }
    };
    let reader = || {
        let (mut reads, mut key, mut value) = (0, Vec::new(), Vec::new());
        while !done.load(Ordering::Relaxed) || reads == 0 {
            reads += 1;
            let mut trx = engine.begin(RepeatableRead);
            let first = get(&mut trx, tree, b"k").unwrap();
            assert!(first.len() == 9 && first[0] != PASSING, "{first:?}");
            assert_eq!(get(&mut trx, tree, b"k").unwrap(), first);
            let all = scan_all(&mut trx, tree, Direction::Forward).unwrap();
            assert_eq!(all, [(b"k".to_vec(), first)]);
            trx.commit().unwrap();
            let mut trx = engine.begin(ReadCommitted);
            let (mut position, forward) = (ScanPosition::start(), Direction::Forward);
            let mode = LockMode::Shared;
            let peek = lock_next_or_peek(
                &mut trx,
                tree,
                &mut position,
                (forward, mode),
                (&mut key, &mut value),
            );
            assert_ne!(peek, Ok(Peek::End));
            assert!(value.len() == 9 && value[0] != PASSING, "{peek:?}: {value:?}");
            trx.commit().unwrap();
        }
    };
    thread::scope(|scope| {
        let writer = scope.spawn(writer);
        let readers = [(); 2].map(|()| scope.spawn(reader));
        while !writer.is_finished() {
            engine.system.purge_step(10).unwrap();
            thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}
