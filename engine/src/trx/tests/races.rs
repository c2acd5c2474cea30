//! Races, lost on purpose: a pause point stops one side at the worst moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::pause::{PausePoint, with_hook};

fn wait_until(so: impl Fn() -> bool) {
    while !so() {
        thread::yield_now();
    }
}

/// Who has locked what another has just committed finds it in all that he reads from then on.
#[test]
fn a_row_is_not_locked_before_its_commit_is_seen_by_new_views() {
    const EXCLUSIVE: LockMode = LockMode::Exclusive;
    const NO_WAIT: LockWait = LockWait::NoWait;
    for deletes in [false, true] {
        let engine = Arc::new(engine());
        put(&engine, b"k", b"old");
        let mut writer = engine.begin(ReadCommitted);
        match deletes {
            false => engine.trees[0].update(&mut writer, b"k", b"new").unwrap(),
            true => engine.trees[0].delete(&mut writer, b"k").unwrap(),
        }
        // What was locked, and a view that was opened then. The view looks later: the writer holds
        // the latch of its undo page.
        let seen = Arc::new(Mutex::new(Vec::new()));
        let read = {
            let (engine, seen) = (Arc::clone(&engine), Arc::clone(&seen));
            move |point| {
                if point != PausePoint::CommitStored {
                    return;
                }
                let tree = &engine.trees[0];
                for scans in [false, true] {
                    let mut reader = engine.begin(RepeatableRead);
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    let locked = if scans {
                        let (mut at, forward) = (ScanPosition::start(), Direction::Forward);
                        lock_next(
                            &mut reader,
                            tree,
                            &mut at,
                            (forward, EXCLUSIVE, NO_WAIT),
                            (&mut key, &mut value),
                        )
                    } else {
                        tree.read(
                            &mut reader,
                            ReadRequest::new(b"k", &mut value).locked(EXCLUSIVE, NO_WAIT),
                        )
                    };
                    let locked = locked.map(|found| found.then_some(value));
                    reader.ensure_view();
                    seen.lock().push((locked, reader));
                }
            }
        };
        with_hook(read, || writer.commit().unwrap());
        let seen = std::mem::take(&mut *seen.lock());
        assert_eq!(seen.len(), 2);
        for (locked, mut reader) in seen {
            let viewed = get(&mut reader, &engine.trees[0], b"k");
            match locked {
                Ok(locked) => assert_eq!(locked, viewed),
                Err(error) => assert_eq!(error, Error::LockNoWait),
            }
        }
        let (mut reader, mut value) = (engine.begin(RepeatableRead), Vec::new());
        let found = engine.trees[0]
            .read(&mut reader, ReadRequest::new(b"k", &mut value).locked(EXCLUSIVE, NO_WAIT));
        assert_eq!(found, Ok(!deletes));
    }
}

#[test]
fn a_waiter_that_sees_the_writer_waits_for_it() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"0");
    let [written, seen, done] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let mut holder = engine.begin(ReadCommitted);
    let mut value = Vec::new();
    tree.read(
        &mut holder,
        ReadRequest::new(b"k", &mut value).locked(LockMode::Exclusive, LockWait::Wait),
    )
    .unwrap();
    thread::scope(|scope| {
        // The waiter has seen the holder, and stops before its own request until the holder's write
        // is over.
        let at_holder = {
            let (seen, done) = (Arc::clone(&seen), Arc::clone(&done));
            move |point| {
                if point == PausePoint::HolderMadeExplicit {
                    seen.store(true, Ordering::SeqCst);
                    wait_until(|| done.load(Ordering::SeqCst));
                }
            }
        };
        let waiter = scope.spawn(|| {
            wait_until(|| written.load(Ordering::SeqCst));
            let mut waiter = engine.begin(ReadCommitted);
            waiter.set_lock_wait_timeout(Duration::from_secs(60));
            with_hook(at_holder, || tree.update(&mut waiter, b"k", b"2"))?;
            waiter.commit()
        });
        let at_write = {
            let (written, seen) = (Arc::clone(&written), Arc::clone(&seen));
            move |point| {
                if point == PausePoint::WriteCommitted {
                    written.store(true, Ordering::SeqCst);
                    wait_until(|| seen.load(Ordering::SeqCst));
                }
            }
        };
        with_hook(at_write, || tree.update(&mut holder, b"k", b"1")).unwrap();
        done.store(true, Ordering::SeqCst);
        wait_until(|| engine.system.status().lock_waits_current > 0 || waiter.is_finished());
        assert!(!waiter.is_finished(), "overwrote what was not committed");
        holder.rollback().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(engine.contents(0).unwrap()[&b"k"[..]], b"2");
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn a_counter_under_threads_counts_the_commits() {
    const THREADS: u64 = 4;
    const ROUNDS: u32 = 200;
    /// Long enough for others to get in between. More of it between transactions, or there would
    /// always be a queue.
    const PAUSE: Duration = Duration::from_micros(100);
    let options = EnvOptions { background: true, ..options() };
    let engine = Engine::create(&SimStorage::new(1), &options);
    engine.system.set_flush_log_at_trx_commit(0);
    let tree = &engine.trees[0];
    put(&engine, b"k", &0u64.to_le_bytes());
    let commits = AtomicU64::new(0);
    let count = |random: &mut StdRng| {
        let mut trx = engine.begin(ReadCommitted);
        trx.set_lock_wait_timeout(Duration::from_secs(60));
        let mut value = Vec::new();
        assert!(
            tree.read(
                &mut trx,
                ReadRequest::new(b"k", &mut value).locked(LockMode::Exclusive, LockWait::Wait)
            )
            .unwrap()
        );
        let counted = u64::from_le_bytes(value[..].try_into().expect("eight bytes"));
        tree.update(&mut trx, b"k", &(counted + 1).to_le_bytes()).unwrap();
        if random.random_ratio(1, 10) {
            trx.rollback().unwrap();
        } else {
            trx.commit().unwrap();
            commits.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let count = &count;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                let rounds = || {
                    for _ in 0..ROUNDS {
                        count(&mut random);
                        thread::sleep(PAUSE * random.random_range(0..16));
                    }
                };
                with_hook(|_| thread::sleep(PAUSE), rounds);
            });
        }
    });
    let counted = engine.contents(0).unwrap()[&b"k"[..]].clone();
    assert_eq!(counted, commits.load(Ordering::Relaxed).to_le_bytes());
    assert_eq!(engine.system.status().rollbacks_pending, 0);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

/// A locking read of the next key.
fn lock_next_key(
    trx: &mut TransactionCore,
    tree: &VersionedTree,
    position: &mut ScanPosition,
) -> Option<Vec<u8>> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let (direction, mode, wait) = (Direction::Forward, LockMode::Exclusive, LockWait::Wait);
    let found = lock_next(trx, tree, position, (direction, mode, wait), (&mut key, &mut value));
    found.unwrap().then_some(key)
}

#[test]
fn a_locking_scan_passes_a_row_whose_deletion_commits_meanwhile() {
    for isolation in [ReadCommitted, RepeatableRead, Serializable] {
        let engine = engine();
        let tree = &engine.trees[0];
        for key in [b"a", b"b", b"c"] {
            put(&engine, key, b"0");
        }
        let mut deleter = engine.begin(ReadCommitted);
        tree.delete(&mut deleter, b"b").unwrap();
        let mut deleter = Some(deleter);
        let mut reader = engine.begin(isolation);
        let mut position = ScanPosition::start();
        assert_eq!(lock_next_key(&mut reader, tree, &mut position).unwrap(), b"a");
        let commit = move |point| {
            if point == PausePoint::ScanJudgedEntry
                && let Some(mut deleter) = deleter.take()
            {
                deleter.commit().unwrap();
            }
        };
        let next = with_hook(commit, || lock_next_key(&mut reader, tree, &mut position));
        assert_eq!(next.unwrap(), b"c", "{isolation:?}");
        let locks = &engine.system.locks.keys;
        let is_locked = locks.holds(&reader.owner, tree.tree().id(), b"b", LockMode::Shared);
        assert_eq!(is_locked, isolation == Serializable);
        assert_eq!(lock_next_key(&mut reader, tree, &mut position), None);
    }
}

#[test]
fn a_locking_scan_keeps_no_lock_on_a_row_that_it_waited_for_and_that_is_gone() {
    let engine = engine();
    let tree = &engine.trees[0];
    for key in [b"a", b"b", b"c"] {
        put(&engine, key, b"0");
    }
    let mut deleter = engine.begin(ReadCommitted);
    tree.delete(&mut deleter, b"a").unwrap();
    let mut reader = engine.begin(ReadCommitted);
    reader.set_lock_wait_timeout(Duration::from_secs(60));
    thread::scope(|scope| {
        let next = scope.spawn(|| lock_next_key(&mut reader, tree, &mut ScanPosition::start()));
        wait_until(|| engine.system.status().lock_waits_current > 0);
        deleter.commit().unwrap();
        assert_eq!(next.join().unwrap().unwrap(), b"b");
    });
    let locks = &engine.system.locks.keys;
    assert!(!locks.holds(&reader.owner, tree.tree().id(), b"a", LockMode::Shared));
    assert!(locks.holds(&reader.owner, tree.tree().id(), b"b", LockMode::Exclusive));
}

/// As an insert that was taken back leaves no row, so it leaves no lock behind with those who
/// waited for it.
#[test]
fn who_waited_for_an_insert_that_was_taken_back_keeps_no_lock() {
    type Read = fn(&mut TransactionCore, &VersionedTree) -> Option<Vec<u8>>;
    let get: Read = |trx, tree| {
        let mut value = Vec::new();
        let found = tree
            .read(
                trx,
                ReadRequest::new(b"b", &mut value).locked(LockMode::Exclusive, LockWait::Wait),
            )
            .unwrap();
        found.then_some(value)
    };
    let scan: Read =
        |trx, tree| Some(lock_next_key(trx, tree, &mut ScanPosition::start()).unwrap());
    // The next row is locked already, and isn't; there is none.
    for (read, others, held) in
        [(get, &[][..], false), (scan, &[b"c"], false), (scan, &[b"c"], true)]
    {
        let engine = engine();
        let tree = &engine.trees[0];
        others.iter().for_each(|key| put(&engine, *key, b"0"));
        let mut inserter = engine.begin(ReadCommitted);
        tree.insert(&mut inserter, b"b", b"1", LockMode::None).unwrap();
        let mut reader = engine.begin(ReadCommitted);
        reader.set_lock_wait_timeout(Duration::from_secs(60));
        if held {
            tree.read(
                &mut reader,
                ReadRequest::new(b"c", &mut Vec::new()).locked(LockMode::Exclusive, LockWait::Wait),
            )
            .unwrap();
        }
        thread::scope(|scope| {
            let found = scope.spawn(|| read(&mut reader, tree));
            wait_until(|| engine.system.status().lock_waits_current > 0);
            inserter.rollback().unwrap();
            assert_eq!(found.join().unwrap().as_deref(), others.first().map(|key| &key[..]));
        });
        let mut later = engine.begin(ReadCommitted);
        tree.insert(&mut later, b"b", b"2", LockMode::None).unwrap();
        if !others.is_empty() {
            let locks = &engine.system.locks.keys;
            assert!(locks.holds(&reader.owner, tree.tree().id(), b"c", LockMode::Exclusive));
        }
        later.commit().unwrap();
        reader.commit().unwrap();
    }
}

/// A scan that locks its gaps as it goes comes last, and waits for the row. Who is before it gets
/// the row, and is done.
#[test]
fn a_scan_that_waits_behind_a_writer_does_not_stand_in_its_way() {
    let engine = Arc::new(engine());
    let tree = &engine.trees[0];
    put(&engine, b"k", b"0");
    let mut first = engine.begin(ReadCommitted);
    tree.update(&mut first, b"k", b"1").unwrap();
    thread::scope(|scope| {
        let engine = &engine;
        let write = move |value: &'static [u8]| {
            let mut trx = engine.begin(ReadCommitted);
            trx.set_lock_wait_timeout(Duration::from_secs(60));
            tree.update(&mut trx, b"k", value)?;
            trx.commit()
        };
        let second = scope.spawn(move || write(b"2"));
        wait_until(|| engine.system.status().lock_waits_current == 1);
        let third = scope.spawn(move || write(b"3"));
        wait_until(|| engine.system.status().lock_waits_current == 2);
        let scan = scope.spawn(|| {
            let mut trx = engine.begin(Isolation::Serializable);
            trx.set_lock_wait_timeout(Duration::from_secs(60));
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let found = lock_next(
                &mut trx,
                tree,
                &mut ScanPosition::start(),
                (Direction::Forward, LockMode::Shared, LockWait::Wait),
                (&mut key, &mut value),
            )?;
            trx.commit()?;
            Ok::<_, Error>(found.then_some(value))
        });
        wait_until(|| engine.system.status().lock_waits_current == 3);
        first.commit().unwrap();
        second.join().unwrap().unwrap();
        third.join().unwrap().unwrap();
        assert_eq!(scan.join().unwrap().unwrap().unwrap(), b"3");
    });
}

/// Scans that overlap in time cover a gap without end, though each of them is short.
#[test]
fn the_lock_wait_timeout_is_of_all_waits_of_a_write() {
    let engine = Arc::new(engine());
    let tree = &engine.trees[0];
    put(&engine, b"a", b"0");
    let cover = || {
        let mut trx = engine.begin(Isolation::Serializable);
        let mut value = Vec::new();
        tree.read(
            &mut trx,
            ReadRequest::new(b"k", &mut value).locked(LockMode::Shared, LockWait::Wait),
        )
        .unwrap();
        trx
    };
    let mut scans = [cover(), cover()];
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut trx = engine.begin(ReadCommitted);
            trx.set_lock_wait_timeout(Duration::from_millis(400));
            let outcome = tree.insert(&mut trx, b"k", b"1", LockMode::None);
            trx.rollback().unwrap();
            outcome
        });
        let turns = (0..).take_while(|_| !writer.is_finished());
        for turn in turns {
            assert!(turn < 300, "it waits for ever");
            thread::sleep(Duration::from_millis(100));
            std::mem::replace(&mut scans[turn % 2], cover()).commit().unwrap();
        }
        assert_eq!(writer.join().unwrap(), Err(Error::LockWaitTimeout));
    });
    scans.into_iter().for_each(|mut trx| trx.commit().unwrap());
}

#[test]
fn a_written_row_stays_locked_when_its_reader_gives_it_up() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"0");
    let mut holder = engine.begin(ReadCommitted);
    let mut value = Vec::new();
    tree.read(
        &mut holder,
        ReadRequest::new(b"k", &mut value).locked(LockMode::Exclusive, LockWait::Wait),
    )
    .unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut waiter = engine.begin(ReadCommitted);
            waiter.set_lock_wait_timeout(Duration::from_secs(60));
            tree.update(&mut waiter, b"k", b"2")?;
            waiter.commit()
        });
        wait_until(|| engine.system.status().lock_waits_current > 0);
        tree.update(&mut holder, b"k", b"1").unwrap();
        tree.unlock(&mut holder, b"k");
        let id = tree.tree().id();
        assert!(engine.system.locks.keys.holds(&holder.owner, id, b"k", LockMode::Exclusive));
        assert!(!waiter.is_finished() && engine.system.status().lock_waits_current == 1);
        holder.rollback().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(engine.contents(0).unwrap()[&b"k"[..]], b"2");
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn a_rollback_that_purge_overtakes_restores_no_delete_mark() {
    for long in [false, true] {
        let engine = engine();
        let tree = &engine.trees[0];
        put(&engine, b"k", if long { &[1; 9000] } else { b"short" });
        let mut trx = engine.begin(ReadCommitted);
        tree.delete(&mut trx, b"k").unwrap();
        trx.commit().unwrap();
        let mut over = engine.begin(ReadCommitted);
        tree.insert(&mut over, b"k", b"again", LockMode::None).unwrap();
        let system = Arc::clone(&engine.system);
        let purge = move |point| {
            if point == PausePoint::UndoRecordRead {
                while system.purge_step(10).unwrap() > 0 {}
            }
        };
        with_hook(purge, || over.rollback()).unwrap();
        engine.settle().unwrap();
        engine.check_settled().unwrap();
        assert!(engine.contents(0).unwrap().is_empty());
    }
}

#[test]
fn an_absence_stays_locked_when_a_rollback_removes_the_purged_entry() {
    for long in [false, true] {
        let engine = engine();
        let tree = &engine.trees[0];
        put(&engine, b"k", if long { &[1; 9000] } else { b"short" });
        let mut trx = engine.begin(ReadCommitted);
        tree.delete(&mut trx, b"k").unwrap();
        trx.commit().unwrap();
        let mut reader = engine.begin(Serializable);
        let mut value = Vec::new();
        let (mode, wait) = (LockMode::Shared, LockWait::Wait);
        assert!(
            !tree.read(&mut reader, ReadRequest::new(b"k", &mut value).locked(mode, wait)).unwrap()
        );
        let savepoint = reader.savepoint();
        tree.insert(&mut reader, b"k", b"again", LockMode::None).unwrap();
        while engine.system.purge_step(10).unwrap() > 0 {}
        reader.rollback_to(savepoint).unwrap();
        let mut other = engine.begin(ReadCommitted);
        let refused = tree.insert(&mut other, b"k", b"phantom", LockMode::None);
        assert_eq!(refused, Err(Error::LockWaitTimeout));
        assert!(
            !tree.read(&mut reader, ReadRequest::new(b"k", &mut value).locked(mode, wait)).unwrap()
        );
        reader.commit().unwrap();
        tree.insert(&mut other, b"k", b"new", LockMode::None).unwrap();
        other.commit().unwrap();
        engine.settle().unwrap();
        engine.check_settled().unwrap();
    }
}
