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

/// Counts the versions that this thread passes, and those of them under the root's latch.
#[derive(Clone)]
struct Passes {
    engine: Arc<Engine>,
    all: Arc<AtomicU64>,
    latched: Arc<AtomicU64>,
}

impl Passes {
    fn new(engine: &Arc<Engine>) -> Passes {
        let [all, latched] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        Passes { engine: Arc::clone(engine), all, latched }
    }

    /// Runs `read`; once, while it passes a version without the latch, `meanwhile`.
    fn count<R>(
        &self,
        mut meanwhile: Option<impl FnOnce() + 'static>,
        read: impl FnOnce() -> R,
    ) -> (R, u64, u64) {
        let this = self.clone();
        let hook = move |point| {
            if point != PausePoint::VersionPassed {
                return;
            }
            this.all.fetch_add(1, Ordering::Relaxed);
            let root = this.engine.env.space(FIRST_TABLE_SPACE).unwrap();
            if this.engine.env.pool().try_exclusive(&root, 2, Access::Normal).is_none() {
                this.latched.fetch_add(1, Ordering::Relaxed);
            } else if let Some(meanwhile) = meanwhile.take() {
                meanwhile();
            }
        };
        let outcome = with_hook(hook, read);
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        (outcome, take(&self.all), take(&self.latched))
    }

    fn count_only<R>(&self, read: impl FnOnce() -> R) -> (R, u64, u64) {
        self.count(None::<fn()>, read)
    }
}

/// Most of a long chain of versions is walked without the leaf's latch, whatever happens there meanwhile.
#[test]
fn an_old_view_keeps_nobody_from_a_row_with_many_versions() {
    const VERSIONS: u32 = 300;
    let engine = Arc::new(engine());
    put(&engine, b"k", b"seen");
    put(&engine, b"l", b"seen");
    let mut old = engine.begin(RepeatableRead);
    old.ensure_view();
    for n in 0..VERSIONS {
        put(&engine, b"k", &[n as u8; 20]);
    }
    let mut unfinished = engine.begin(ReadCommitted);
    for n in 0..20 {
        unfinished.update(&engine.trees[0], b"k", &[n; 30]).unwrap();
    }
    let passes = Passes::new(&engine);
    let meanwhile = {
        let engine = Arc::clone(&engine);
        move || {
            // The chain's beginning goes, another one comes, and purge goes as far as it may.
            unfinished.rollback().unwrap();
            put(&engine, b"k", b"newest");
            engine.settle().unwrap();
        }
    };
    let tree = &engine.trees[0];
    let (read, all, latched) = passes.count(Some(meanwhile), || get(&mut old, tree, b"k"));
    assert_eq!(read.unwrap(), b"seen");
    assert_eq!((all, latched), (u64::from(VERSIONS) + 20, 32));
    for direction in [Direction::Forward, Direction::Backward] {
        let (seen, all, latched) = passes.count_only(|| scan_all(&mut old, tree, direction));
        let expected = [(b"k".to_vec(), b"seen".to_vec()), (b"l".to_vec(), b"seen".to_vec())];
        assert_eq!(seen.unwrap(), expected);
        assert!(all > u64::from(VERSIONS) && latched <= 64, "{latched} of {all}");
    }
    drop(old);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

/// One transaction has changed a row very often. The first reader gets behind that without the latch, the others at once.
#[test]
fn an_unfinished_transaction_keeps_nobody_from_a_row_that_it_changes_often() {
    const VERSIONS: u32 = 3000;
    let engine = Arc::new(engine());
    let (tree, passes) = (&engine.trees[0], Passes::new(&engine));
    put(&engine, b"k", b"seen");
    let mut old = engine.begin(RepeatableRead);
    let mut writer = engine.begin(ReadCommitted);
    let change = |writer: &mut Transaction, n: u32| {
        writer.update(tree, b"k", &n.to_le_bytes().repeat(1 + n as usize % 20)).unwrap();
    };
    (0..VERSIONS).for_each(|n| change(&mut writer, n));
    let mut read = || passes.count_only(|| get(&mut old, tree, b"k").unwrap());
    assert_eq!(read(), (b"seen".to_vec(), VERSIONS.into(), 32));
    assert_eq!(read(), (b"seen".to_vec(), 32, 32));
    let savepoint = writer.savepoint();
    (0..100).for_each(|n| change(&mut writer, n));
    assert_eq!(read(), (b"seen".to_vec(), 32, 32));
    // What comes behind a savepoint is another matter.
    writer.rollback_to(savepoint).unwrap();
    assert_eq!(read(), (b"seen".to_vec(), VERSIONS.into(), 32));
    assert_eq!(read(), (b"seen".to_vec(), 32, 32));
    // A row that the transaction has inserted, and one that was deleted.
    writer.insert(tree, b"new", b"", LockMode::None).unwrap();
    writer.delete(tree, b"k").unwrap();
    writer.insert(tree, b"k", b"again", LockMode::None).unwrap();
    for n in 0..100u8 {
        writer.update(tree, b"new", &[n]).unwrap();
    }
    for passed in [100, 32] {
        let (seen, all, latched) = passes.count_only(|| get(&mut old, tree, b"new"));
        assert_eq!((seen, all, latched), (None, passed, 32));
    }
    let (seen, all, _) = passes.count_only(|| scan_all(&mut old, tree, Direction::Forward));
    assert_eq!((seen.unwrap(), all), (vec![(b"k".to_vec(), b"seen".to_vec())], 64));
    let mut peeking = engine.begin(ReadCommitted);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let (forward, mode) = (Direction::Forward, LockMode::Exclusive);
    let mut position = ScanPosition::start();
    let peek = peeking.lock_next_or_peek(tree, &mut position, forward, mode, &mut key, &mut value);
    assert_eq!((peek.unwrap(), value), (Peek::Committed, b"seen".to_vec()));
    drop((peeking, old));
    writer.commit().unwrap();
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

/// Of the versions that one transaction has made of a row, none but the newest is ever committed.
#[test]
fn a_version_is_not_read_because_its_writer_commits_in_between() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"before");
    let mut writer = engine.begin(ReadCommitted);
    for value in [b"passing", b"between", b"its end"] {
        writer.update(tree, b"k", value).unwrap();
    }
    let mut peeking = engine.begin(ReadCommitted);
    let mut writer = Some(writer);
    let commit = move |point| {
        if point == PausePoint::VersionPassed
            && let Some(mut writer) = writer.take()
        {
            writer.commit().unwrap();
        }
    };
    let (mut position, forward) = (ScanPosition::start(), Direction::Forward);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mode = LockMode::Exclusive;
    let peek = with_hook(commit, || {
        peeking.lock_next_or_peek(tree, &mut position, forward, mode, &mut key, &mut value)
    });
    assert_eq!((peek, &value[..]), (Ok(Peek::Committed), &b"before"[..]));
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
            false => writer.update(&engine.trees[0], b"k", b"new").unwrap(),
            true => writer.delete(&engine.trees[0], b"k").unwrap(),
        }
        // What was locked, and what a new view makes of that.
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
                        reader.lock_next(
                            tree, &mut at, forward, EXCLUSIVE, NO_WAIT, &mut key, &mut value,
                        )
                    } else {
                        reader.get(tree, b"k", EXCLUSIVE, NO_WAIT, &mut value)
                    };
                    let locked = locked.map(|found| found.then_some(value));
                    seen.lock().push((locked, get(&mut reader, tree, b"k")));
                }
            }
        };
        with_hook(read, || writer.commit().unwrap());
        let seen = std::mem::take(&mut *seen.lock());
        assert_eq!(seen.len(), 2);
        for (locked, viewed) in seen {
            match locked {
                Ok(locked) => assert_eq!(locked, viewed),
                Err(error) => assert_eq!(error, Error::LockNoWait),
            }
        }
        let (mut reader, mut value) = (engine.begin(RepeatableRead), Vec::new());
        let found = reader.get(&engine.trees[0], b"k", EXCLUSIVE, NO_WAIT, &mut value);
        assert_eq!(found, Ok(!deletes));
    }
}

/// What is walked through without the latch goes, in whichever way, and other versions may come.
#[test]
fn versions_that_go_while_they_are_walked_through_are_not_read() {
    const VERSIONS: u8 = 200;
    /// What the transaction does meanwhile, and whether it lives on.
    type Meanwhile = fn(&Engine, &mut Transaction, Savepoint);
    let meanwhiles: [(Meanwhile, &[u8]); 4] = [
        (|_, writer, _| writer.commit().unwrap(), b"0"),
        (
            |engine, writer, _| {
                writer.rollback().unwrap();
                (0..VERSIONS).for_each(|n| put(engine, b"k", &[n; 50]));
                engine.settle().unwrap();
            },
            &[VERSIONS - 1; 50],
        ),
        (
            |engine, writer, savepoint| {
                writer.rollback_to(savepoint).unwrap();
                for n in 0..VERSIONS {
                    writer.update(&engine.trees[0], b"l", &[n; 70]).unwrap();
                    writer.update(&engine.trees[0], b"k", &[n; 40]).unwrap();
                }
            },
            b"0",
        ),
        (|_, writer, savepoint| drop(writer.rollback_to(savepoint).unwrap()), b"0"),
    ];
    for (meanwhile, committed) in meanwhiles {
        for peeks in [false, true] {
            let engine = Arc::new(engine());
            let (tree, passes) = (&engine.trees[0], Passes::new(&engine));
            put(&engine, b"k", b"0");
            put(&engine, b"l", b"0");
            let mut old = engine.begin(RepeatableRead);
            old.ensure_view();
            let mut writer = engine.begin(ReadCommitted);
            writer.update(tree, b"l", b"first").unwrap();
            let savepoint = writer.savepoint();
            for n in 0..VERSIONS {
                writer.update(tree, b"k", &[n; 60]).unwrap();
            }
            let meanwhile = {
                let engine = Arc::clone(&engine);
                move || {
                    meanwhile(&engine, &mut writer, savepoint);
                    // Whatever is left ends only when the reader has read.
                    std::mem::forget(writer);
                }
            };
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let (seen, expected) = if peeks {
                let mut peeking = engine.begin(ReadCommitted);
                let mut position = ScanPosition::start();
                let (seen, ..) = passes.count(Some(meanwhile), || {
                    let (forward, mode) = (Direction::Forward, LockMode::Exclusive);
                    peeking.lock_next_or_peek(
                        tree,
                        &mut position,
                        forward,
                        mode,
                        &mut key,
                        &mut value,
                    )
                });
                assert_eq!(seen, Ok(Peek::Committed));
                (Some(value), committed)
            } else {
                let (seen, ..) = passes.count(Some(meanwhile), || get(&mut old, tree, b"k"));
                (seen, &b"0"[..])
            };
            assert_eq!(seen.as_deref(), Some(expected), "{peeks}");
        }
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
    holder.get(tree, b"k", LockMode::Exclusive, LockWait::Wait, &mut value).unwrap();
    thread::scope(|scope| {
        // The waiter has seen the holder, and stops before its own request until the holder's write is over.
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
            with_hook(at_holder, || waiter.update(tree, b"k", b"2"))?;
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
        with_hook(at_write, || holder.update(tree, b"k", b"1")).unwrap();
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
    /// Long enough for others to get in between. More of it between transactions, or there would always be a queue.
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
        assert!(trx.get(tree, b"k", LockMode::Exclusive, LockWait::Wait, &mut value).unwrap());
        let counted = u64::from_le_bytes(value[..].try_into().expect("eight bytes"));
        trx.update(tree, b"k", &(counted + 1).to_le_bytes()).unwrap();
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
fn lock_next(
    trx: &mut Transaction,
    tree: &VersionedTree,
    position: &mut ScanPosition,
) -> Option<Vec<u8>> {
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let (direction, mode, wait) = (Direction::Forward, LockMode::Exclusive, LockWait::Wait);
    let found = trx.lock_next(tree, position, direction, mode, wait, &mut key, &mut value);
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
        deleter.delete(tree, b"b").unwrap();
        let mut deleter = Some(deleter);
        let mut reader = engine.begin(isolation);
        let mut position = ScanPosition::start();
        assert_eq!(lock_next(&mut reader, tree, &mut position).unwrap(), b"a");
        let commit = move |point| {
            if point == PausePoint::ScanJudgedEntry
                && let Some(mut deleter) = deleter.take()
            {
                deleter.commit().unwrap();
            }
        };
        let next = with_hook(commit, || lock_next(&mut reader, tree, &mut position));
        assert_eq!(next.unwrap(), b"c", "{isolation:?}");
        let locks = &engine.system.locks.keys;
        let is_locked = locks.holds(&reader.owner, tree.tree().id(), b"b", LockMode::Shared);
        assert_eq!(is_locked, isolation == Serializable);
        assert_eq!(lock_next(&mut reader, tree, &mut position), None);
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
    deleter.delete(tree, b"a").unwrap();
    let mut reader = engine.begin(ReadCommitted);
    reader.set_lock_wait_timeout(Duration::from_secs(60));
    thread::scope(|scope| {
        let next = scope.spawn(|| lock_next(&mut reader, tree, &mut ScanPosition::start()));
        wait_until(|| engine.system.status().lock_waits_current > 0);
        deleter.commit().unwrap();
        assert_eq!(next.join().unwrap().unwrap(), b"b");
    });
    let locks = &engine.system.locks.keys;
    assert!(!locks.holds(&reader.owner, tree.tree().id(), b"a", LockMode::Shared));
    assert!(locks.holds(&reader.owner, tree.tree().id(), b"b", LockMode::Exclusive));
}

/// As an insert that was taken back leaves no row, so it leaves no lock behind with those who waited for it.
#[test]
fn who_waited_for_an_insert_that_was_taken_back_keeps_no_lock() {
    type Read = fn(&mut Transaction, &VersionedTree) -> Option<Vec<u8>>;
    let get: Read = |trx, tree| {
        let mut value = Vec::new();
        let found = trx.get(tree, b"b", LockMode::Exclusive, LockWait::Wait, &mut value).unwrap();
        found.then_some(value)
    };
    let scan: Read = |trx, tree| Some(lock_next(trx, tree, &mut ScanPosition::start()).unwrap());
    // The next row is locked already, and isn't; there is none.
    for (read, others, held) in
        [(get, &[][..], false), (scan, &[b"c"], false), (scan, &[b"c"], true)]
    {
        let engine = engine();
        let tree = &engine.trees[0];
        others.iter().for_each(|key| put(&engine, *key, b"0"));
        let mut inserter = engine.begin(ReadCommitted);
        inserter.insert(tree, b"b", b"1", LockMode::None).unwrap();
        let mut reader = engine.begin(ReadCommitted);
        reader.set_lock_wait_timeout(Duration::from_secs(60));
        if held {
            reader.get(tree, b"c", LockMode::Exclusive, LockWait::Wait, &mut Vec::new()).unwrap();
        }
        thread::scope(|scope| {
            let found = scope.spawn(|| read(&mut reader, tree));
            wait_until(|| engine.system.status().lock_waits_current > 0);
            inserter.rollback().unwrap();
            assert_eq!(found.join().unwrap().as_deref(), others.first().map(|key| &key[..]));
        });
        let mut later = engine.begin(ReadCommitted);
        later.insert(tree, b"b", b"2", LockMode::None).unwrap();
        if !others.is_empty() {
            let locks = &engine.system.locks.keys;
            assert!(locks.holds(&reader.owner, tree.tree().id(), b"c", LockMode::Exclusive));
        }
        later.commit().unwrap();
        reader.commit().unwrap();
    }
}

/// A scan that locks its gaps as it goes comes last, and waits for the row. Who is before it gets the row, and is done.
#[test]
fn a_scan_that_waits_behind_a_writer_does_not_stand_in_its_way() {
    let engine = Arc::new(engine());
    let tree = &engine.trees[0];
    put(&engine, b"k", b"0");
    let mut first = engine.begin(ReadCommitted);
    first.update(tree, b"k", b"1").unwrap();
    thread::scope(|scope| {
        let engine = &engine;
        let write = move |value: &'static [u8]| {
            let mut trx = engine.begin(ReadCommitted);
            trx.set_lock_wait_timeout(Duration::from_secs(60));
            trx.update(tree, b"k", value)?;
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
            let found = trx.lock_next(
                tree,
                &mut ScanPosition::start(),
                Direction::Forward,
                LockMode::Shared,
                LockWait::Wait,
                &mut key,
                &mut value,
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
        trx.get(tree, b"k", LockMode::Shared, LockWait::Wait, &mut value).unwrap();
        trx
    };
    let mut scans = [cover(), cover()];
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut trx = engine.begin(ReadCommitted);
            trx.set_lock_wait_timeout(Duration::from_millis(400));
            let outcome = trx.insert(tree, b"k", b"1", LockMode::None);
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
    holder.get(tree, b"k", LockMode::Exclusive, LockWait::Wait, &mut value).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut waiter = engine.begin(ReadCommitted);
            waiter.set_lock_wait_timeout(Duration::from_secs(60));
            waiter.update(tree, b"k", b"2")?;
            waiter.commit()
        });
        wait_until(|| engine.system.status().lock_waits_current > 0);
        holder.update(tree, b"k", b"1").unwrap();
        holder.unlock(tree, b"k");
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
        trx.delete(tree, b"k").unwrap();
        trx.commit().unwrap();
        let mut over = engine.begin(ReadCommitted);
        over.insert(tree, b"k", b"again", LockMode::None).unwrap();
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
        trx.delete(tree, b"k").unwrap();
        trx.commit().unwrap();
        let mut reader = engine.begin(Serializable);
        let mut value = Vec::new();
        let (mode, wait) = (LockMode::Shared, LockWait::Wait);
        assert!(!reader.get(tree, b"k", mode, wait, &mut value).unwrap());
        let savepoint = reader.savepoint();
        reader.insert(tree, b"k", b"again", LockMode::None).unwrap();
        while engine.system.purge_step(10).unwrap() > 0 {}
        reader.rollback_to(savepoint).unwrap();
        let mut other = engine.begin(ReadCommitted);
        let refused = other.insert(tree, b"k", b"phantom", LockMode::None);
        assert_eq!(refused, Err(Error::LockWaitTimeout));
        assert!(!reader.get(tree, b"k", mode, wait, &mut value).unwrap());
        reader.commit().unwrap();
        other.insert(tree, b"k", b"new", LockMode::None).unwrap();
        other.commit().unwrap();
        engine.settle().unwrap();
        engine.check_settled().unwrap();
    }
}
