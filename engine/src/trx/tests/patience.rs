//! Rollbacks that the disk stands in the way of, for a moment or for good.

use std::time::Instant;

use super::*;
use crate::error::Remedy;
use crate::trx::retry::{FAILURES_MAX, RETRY_PAUSE, RetryState};

const ROWS: u32 = 400;
const FILE: &str = "tables/";

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn read_error() -> Fault {
    Fault::new(StorageOp::Read, FaultKind::Io)
}

/// An engine, none of its pages in memory, with rows of value 1 in two trees of one file. The last
/// life has left a transaction that was about to change all rows with a number below `changed`.
fn unfinished(changed: u32) -> (SimStorage, Engine) {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let mut trx = engine.begin(ReadCommitted);
    for tree in &engine.trees[..2] {
        (0..ROWS).for_each(|n| tree.insert(&mut trx, &key(n), &[1; 50], LockMode::None).unwrap());
    }
    trx.commit().unwrap();
    let mut lost = engine.begin(ReadCommitted);
    for tree in &engine.trees[..2] {
        (0..changed).for_each(|n| tree.update(&mut lost, &key(n), &[2; 50]).unwrap());
    }
    engine.env.checkpoint_all().unwrap();
    let storage = storage.kill();
    let engine = Engine::open(&storage, &options()).unwrap();
    assert_eq!(engine.system.rollbacks_pending() > 0, changed > 0);
    (storage, engine)
}

fn check_whole(engine: &Engine) {
    engine.settle().unwrap();
    engine.check_settled().unwrap();
    for tree in 0..2 {
        let all = engine.contents(tree).unwrap();
        assert!(all.len() == ROWS as usize && all.values().all(|value| *value == [1; 50]));
    }
}

/// Who wants a row that is in memory, and is still to be rolled back.
fn want(engine: &Engine) -> Result<()> {
    let mut trx = engine.begin(ReadCommitted);
    let wanted = engine.trees[0].update(&mut trx, &key(0), b"x");
    trx.rollback().unwrap();
    wanted
}

fn into_memory(engine: &Engine) {
    let mut trx = engine.begin(ReadCommitted);
    assert_eq!(get(&mut trx, &engine.trees[0], &key(0)), Some(vec![1; 50]));
}

#[test]
fn rows_of_a_rollback_that_the_disk_fails_are_waited_for_while_that_may_pass() {
    for failures in 1..=FAILURES_MAX {
        let (storage, engine) = unfinished(ROWS);
        into_memory(&engine);
        storage.inject(read_error().on(FILE).times(failures.into()));
        for failure in 1..failures {
            assert!(matches!(engine.system.rollback_step(), Err(Error::Io { .. })), "{failure}");
            assert_eq!(want(&engine), Err(Error::LockWaitTimeout), "after failure {failure}");
        }
        storage.clear_faults();
        assert_eq!(engine.system.rollback_step(), Ok(true));
        assert_eq!(want(&engine), Ok(()));
        check_whole(&engine);
    }
}

#[test]
fn a_disk_that_goes_on_failing_is_not_waited_for() {
    let (storage, engine) = unfinished(ROWS);
    into_memory(&engine);
    storage.inject(read_error().on(FILE).always());
    for _ in 0..FAILURES_MAX + 3 {
        assert!(engine.system.rollback_step().is_err());
    }
    let refused = want(&engine).unwrap_err();
    assert!(matches!(refused, Error::Format { .. }), "{refused}");
    storage.clear_faults();
    assert_eq!(engine.system.rollback_step(), Ok(true));
    assert_eq!(want(&engine), Ok(()));
    check_whole(&engine);
}

/// Each failure comes after something was undone: the disk is a bad one, but the rollback gets on.
#[test]
fn failures_do_not_add_up_while_a_rollback_gets_on() {
    let (storage, engine) = unfinished(ROWS);
    into_memory(&engine);
    let mut failures = 0;
    loop {
        storage.inject(read_error().on(FILE).skip(1));
        let step = engine.system.rollback_step();
        storage.clear_faults();
        match step {
            Ok(_) => break,
            Err(_) => assert_eq!(want(&engine), Err(Error::LockWaitTimeout)),
        }
        failures += 1;
    }
    assert!(failures > 2, "{failures}");
    check_whole(&engine);
}

#[test]
fn who_waits_for_a_row_gets_it_when_the_disk_has_recovered() {
    let (storage, engine) = unfinished(ROWS);
    into_memory(&engine);
    engine.system.settings.retry_pause_us.store(20_000, Ordering::Relaxed);
    storage.inject(read_error().on(FILE).always());
    engine.system.start_background().unwrap();
    let wanted = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut trx = engine.begin(ReadCommitted);
            trx.set_lock_wait_timeout(Duration::from_secs(60));
            let (mode, wait, mut value) = (LockMode::Exclusive, LockWait::Wait, Vec::new());
            engine.trees[0].read(&mut trx, ReadRequest::new(&key(0), &mut value).locked(mode, wait))
        });
        // The background, which looks every 200 ms, has failed by then.
        while engine.system.status().lock_waits_current == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(700));
        assert_eq!(engine.system.status().lock_waits_current, 1);
        storage.clear_faults();
        waiter.join().unwrap()
    });
    assert_eq!(wanted, Ok(true));
    engine.system.stop_background();
    check_whole(&engine);
}

#[test]
fn a_session_does_not_lose_its_transaction_to_a_read_that_fails_for_a_moment() {
    let (storage, engine) = unfinished(0);
    let mut trx = engine.begin(ReadCommitted);
    engine.trees[0].update(&mut trx, &key(7), &[7; 50]).unwrap();
    let savepoint = trx.savepoint();
    // More than the pool holds: the rollback reads.
    for n in 0..100 {
        engine.trees[2].insert(&mut trx, &key(n), &[3; 3000], LockMode::None).unwrap();
    }
    storage.inject(read_error().times(5));
    trx.rollback_to(savepoint).unwrap();
    assert_eq!(get(&mut trx, &engine.trees[0], &key(7)), Some(vec![7; 50]));
    for n in 0..100 {
        engine.trees[2].insert(&mut trx, &key(n), &[3; 3000], LockMode::None).unwrap();
    }
    storage.inject(read_error().times(5));
    trx.rollback().unwrap();
    assert_eq!(engine.system.rollbacks_pending(), 0);
    check_whole(&engine);
}

/// Has other pages take the place of all that are in memory.
fn crowd_out(engine: &Engine) {
    let mut trx = engine.begin(ReadCommitted);
    for n in 0..600 {
        engine.trees[2].insert(&mut trx, &key(n), &[3; 1500], LockMode::None).unwrap();
    }
    trx.commit().unwrap();
    for _ in 0..3 {
        assert_eq!(engine.contents(2).unwrap().len(), 600);
    }
}

/// What is marked as undone must not be found in a transaction that can still be committed.
#[test]
fn nothing_is_undone_while_a_log_says_that_it_is_prepared() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let mut trx = engine.begin(ReadCommitted);
    for n in 0..ROWS {
        engine.trees[0].insert(&mut trx, &key(n), &[1; 50], LockMode::None).unwrap();
    }
    trx.prepare(b"x").unwrap();
    trx.detach();
    engine.env.checkpoint_all().unwrap();
    let storage = storage.kill();

    let engine = Engine::open(&storage, &options()).unwrap();
    let mut trx = engine.system.take_prepared(b"x").unwrap();
    // The page that the log begins on is read first.
    crowd_out(&engine);
    storage.inject(read_error().on("undo.tpd").always());
    assert!(trx.rollback().is_err());
    storage.clear_faults();
    storage.inject(read_error().on("undo.tpd"));
    assert!(engine.system.rollback_step().is_err());
    storage.clear_faults();
    engine.env.redo().flush().unwrap();
    let storage = storage.crash();

    let engine = Engine::open(&storage, &options()).unwrap();
    engine.system.take_prepared(b"x").unwrap().commit().unwrap();
    engine.settle().unwrap();
    assert_eq!(engine.contents(0).unwrap().len(), ROWS as usize);
    engine.check_settled().unwrap();
}

#[test]
fn pauses_grow() {
    let error = Error::Io { file: "t".into(), what: "cannot read".into() };
    let (mut retries, start) = (RetryState::default(), Instant::now());
    let (mut now, mut pauses) = (start, Vec::new());
    while !retries.gives_up_on(&error) {
        retries.failed(now, RETRY_PAUSE);
        // Somebody asks for it before its time.
        retries.failed(now, RETRY_PAUSE);
        let before = now;
        while retries.rests(now) {
            now += Duration::from_millis(100);
        }
        pauses.push((now - before).as_millis());
    }
    assert_eq!(
        pauses,
        [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000, 10_000, 10_000, 10_000]
    );
    assert!(retries.gives_up_on(&Error::corrupt("file", 1, "wrong")));
    assert!(!retries.gives_up_on(&Error::NoSpace("file".into())));
    retries.succeeded();
    assert!(
        !retries.gives_up_on(&error)
            && retries.gives_up_on(&Error::format("file", "missing", Remedy::PutBack))
    );
}
