//! Old versions, walked to while they come and go: a pause point stops the reader at the worst
//! moment.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::pause::{PausePoint, with_hook};
use crate::undo::records_read_by_thread;
use crate::versioned::Batch;
use crate::versioned::skip_pointers::{Interval, set_interval};

/// Counts the versions that this thread passes, and those of them under the root's latch.
#[derive(Clone)]
struct Passes {
    engine: Arc<Engine>,
    all: Arc<AtomicU64>,
    latched: Arc<AtomicU64>,
}

impl Passes {
    /// From here on, this thread writes no skip pointers, which would pass over versions.
    fn new(engine: &Arc<Engine>) -> Passes {
        set_interval(Interval::Never);
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

/// Most of a long chain of versions is walked without the leaf's latch, whatever happens there
/// meanwhile.
#[test]
fn an_old_view_keeps_nobody_from_a_row_with_many_versions() {
    const VERSIONS: u32 = 300;
    let engine = Arc::new(engine());
    let passes = Passes::new(&engine);
    put(&engine, b"k", b"seen");
    put(&engine, b"l", b"seen");
    let mut old = engine.begin(RepeatableRead);
    old.ensure_view();
    for n in 0..VERSIONS {
        put(&engine, b"k", &[n as u8; 20]);
    }
    let mut unfinished = engine.begin(ReadCommitted);
    for n in 0..20 {
        engine.trees[0].update(&mut unfinished, b"k", &[n; 30]).unwrap();
    }
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

/// One transaction has changed a row very often. The first reader gets behind that without the
/// latch, the others at once.
#[test]
fn an_unfinished_transaction_keeps_nobody_from_a_row_that_it_changes_often() {
    const VERSIONS: u32 = 3000;
    let engine = Arc::new(engine());
    let (tree, passes) = (&engine.trees[0], Passes::new(&engine));
    put(&engine, b"k", b"seen");
    let mut old = engine.begin(RepeatableRead);
    let mut writer = engine.begin(ReadCommitted);
    let change = |writer: &mut TransactionCore, n: u32| {
        tree.update(writer, b"k", &n.to_le_bytes().repeat(1 + n as usize % 20)).unwrap();
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
    tree.insert(&mut writer, b"new", b"", LockMode::None).unwrap();
    tree.delete(&mut writer, b"k").unwrap();
    tree.insert(&mut writer, b"k", b"again", LockMode::None).unwrap();
    for n in 0..100u8 {
        tree.update(&mut writer, b"new", &[n]).unwrap();
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
    let peek = lock_next_or_peek(
        &mut peeking,
        tree,
        &mut position,
        (forward, mode),
        (&mut key, &mut value),
    );
    assert_eq!((peek.unwrap(), value), (Peek::Committed, b"seen".to_vec()));
    drop((peeking, old));
    writer.commit().unwrap();
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

/// Of a row that is changed all the time, an old view has to pass as many versions as there are
/// changes: its reader can be killed.
#[test]
fn a_walk_through_very_many_versions_can_be_interrupted() {
    set_interval(Interval::Never);
    const VERSIONS: u32 = 5000;
    for is_committed in [false, true] {
        let engine = engine();
        put(&engine, b"k", b"seen");
        let (mut old, mut writer) = (engine.begin(RepeatableRead), engine.begin(ReadCommitted));
        old.ensure_view();
        for n in 0..VERSIONS {
            engine.trees[0].update(&mut writer, b"k", &n.to_be_bytes()).unwrap();
            if is_committed {
                writer.commit().unwrap();
                writer = engine.begin(ReadCommitted);
            }
        }
        let interrupt = old.interrupt_handle();
        let engine = Arc::new(engine);
        let passes = Passes::new(&engine);
        let (mut batch, mut value) = (Batch::default(), Vec::new());
        for scans in [false, true] {
            interrupt.clear();
            let meanwhile = {
                let interrupt = Arc::clone(&interrupt);
                move || interrupt.interrupt()
            };
            let (outcome, passed, _) = passes.count(Some(meanwhile), || match scans {
                false => {
                    engine.trees[0].read(&mut old, ReadRequest::new(b"k", &mut value)).map(drop)
                }
                true => {
                    let (mut at, forward) = (ScanPosition::start(), Direction::Forward);
                    engine.trees[0].scan(&mut old, &mut at, scan_request(forward, 1), &mut batch)
                }
            });
            assert_eq!(outcome, Err(Error::Interrupted));
            assert!(passed < 2000, "{passed}");
        }
        interrupt.clear();
        assert_eq!(get(&mut old, &engine.trees[0], b"k").unwrap(), b"seen");
    }
}

/// Of the versions that one transaction has made of a row, none but the newest is ever committed.
#[test]
fn a_version_is_not_read_because_its_writer_commits_in_between() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"before");
    let mut writer = engine.begin(ReadCommitted);
    for value in [b"passing", b"between", b"its end"] {
        tree.update(&mut writer, b"k", value).unwrap();
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
        lock_next_or_peek(
            &mut peeking,
            tree,
            &mut position,
            (forward, mode),
            (&mut key, &mut value),
        )
    });
    assert_eq!((peek, &value[..]), (Ok(Peek::Committed), &b"before"[..]));
}

/// What is walked through without the latch goes, in whichever way, and other versions may come.
#[test]
fn versions_that_go_while_they_are_walked_through_are_not_read() {
    const VERSIONS: u8 = 200;
    /// What the transaction does meanwhile, and whether it lives on.
    type Meanwhile = fn(&Engine, &mut TransactionCore, Savepoint);
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
                    engine.trees[0].update(writer, b"l", &[n; 70]).unwrap();
                    engine.trees[0].update(writer, b"k", &[n; 40]).unwrap();
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
            tree.update(&mut writer, b"l", b"first").unwrap();
            let savepoint = writer.savepoint();
            for n in 0..VERSIONS {
                tree.update(&mut writer, b"k", &[n; 60]).unwrap();
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
                    lock_next_or_peek(
                        &mut peeking,
                        tree,
                        &mut position,
                        (forward, mode),
                        (&mut key, &mut value),
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

/// A writer that changes a row very often. A number of times, when a reader has begun to walk
/// through that, it takes all of it back and changes the row as often again.
struct Rewriter {
    engine: Arc<Engine>,
    writer: TransactionCore,
    savepoint: Savepoint,
    times: u32,
}

impl Rewriter {
    const VERSIONS: u32 = 2000;

    fn new(engine: &Arc<Engine>, times: u32) -> Rewriter {
        let mut writer = engine.begin(ReadCommitted);
        engine.trees[0].update(&mut writer, b"l", b"first").unwrap();
        let savepoint = writer.savepoint();
        let mut rewriter = Rewriter { engine: Arc::clone(engine), writer, savepoint, times };
        rewriter.write();
        rewriter
    }

    fn write(&mut self) {
        for n in 0..Self::VERSIONS {
            self.engine.trees[0].update(&mut self.writer, b"k", &n.to_le_bytes()).unwrap();
        }
    }

    /// Runs `read`, and says how many versions it passed under the root's latch at a time at most.
    /// `at_last` is run after the last rewriting.
    fn disturb<R>(self, mut at_last: impl FnMut() + 'static, read: impl FnOnce() -> R) -> (R, u64) {
        let most = Arc::new(AtomicU64::new(0));
        let (counter, mut latched) = (Arc::clone(&most), 0);
        // It ends behind the hook, which a rollback would come to.
        let rewriter = Arc::new(parking_lot::Mutex::new(self));
        let this = Arc::clone(&rewriter);
        let hook = move |point| {
            if point != PausePoint::VersionPassed {
                return;
            }
            let this = &mut *this.lock();
            let root = this.engine.env.space(FIRST_TABLE_SPACE).unwrap();
            if this.engine.env.pool().try_exclusive(&root, 2, Access::Normal).is_none() {
                latched += 1;
                counter.fetch_max(latched, Ordering::Relaxed);
                return;
            }
            // Once for each way that the reader begins.
            if std::mem::take(&mut latched) > 0 && this.times > 0 {
                this.times -= 1;
                this.writer.rollback_to(this.savepoint).unwrap();
                this.write();
                if this.times == 0 {
                    at_last();
                }
            }
        };
        let outcome = with_hook(hook, read);
        (outcome, most.load(Ordering::Relaxed))
    }
}

/// However often what it walks through is taken back, a reader never keeps the latch for all of a
/// long chain, and can be killed.
#[test]
fn a_reader_that_begins_anew_again_and_again_keeps_nobody_from_the_row() {
    const LATCHED_MAX: u64 = 256;
    for scans in [false, true] {
        for is_killed in [false, true] {
            let engine = Arc::new(engine());
            set_interval(Interval::Never);
            put(&engine, b"k", b"seen");
            put(&engine, b"l", b"seen");
            let mut old = engine.begin(RepeatableRead);
            old.ensure_view();
            let interrupt = old.interrupt_handle();
            let at_last = move || {
                if is_killed {
                    interrupt.interrupt();
                }
            };
            let tree = &engine.trees[0];
            let read = || match scans {
                false => {
                    let mut value = Vec::new();
                    let found = tree.read(&mut old, ReadRequest::new(b"k", &mut value));
                    found.map(|found| assert!(found && value == b"seen"))
                }
                true => scan_all(&mut old, tree, Direction::Forward).map(|all| {
                    assert_eq!(all.len(), 2);
                    assert!(all.iter().all(|(_, value)| value == b"seen"));
                }),
            };
            let (outcome, latched) = Rewriter::new(&engine, 12).disturb(at_last, read);
            assert!(latched <= LATCHED_MAX, "{latched}");
            assert_eq!(outcome, if is_killed { Err(Error::Interrupted) } else { Ok(()) });
        }
    }
}

/// The transaction takes back what lies before the version that the reader has come to, or what is
/// about other rows: the reader goes on.
#[test]
fn a_walk_goes_on_from_a_version_that_is_still_there() {
    const VERSIONS: u32 = 2000;
    for takes_back_own in [false, true] {
        let engine = Arc::new(engine());
        let (tree, passes) = (&engine.trees[0], Passes::new(&engine));
        put(&engine, b"k", b"seen");
        put(&engine, b"l", b"seen");
        let mut old = engine.begin(RepeatableRead);
        old.ensure_view();
        let mut writer = engine.begin(ReadCommitted);
        let change = |engine: &Engine, writer: &mut TransactionCore, key, n: u32| {
            engine.trees[0].update(writer, key, &n.to_le_bytes()).unwrap();
        };
        (0..VERSIONS - 100).for_each(|n| change(&engine, &mut writer, b"k", n));
        let savepoint = writer.savepoint();
        (0..100).for_each(|n| change(&engine, &mut writer, b"k", n));
        let mut passed = 0;
        // It ends behind the hook, which a rollback would come to.
        let writer = Arc::new(parking_lot::Mutex::new(writer));
        let hook = {
            let (engine, writer) = (Arc::clone(&engine), Arc::clone(&writer));
            move |point| {
                let writer = &mut *writer.lock();
                passed += u32::from(point == PausePoint::VersionPassed);
                // The reader has noted that it has come behind the first hundred.
                if point != PausePoint::VersionPassed || passed < 400 || passed % 100 != 0 {
                    return;
                }
                if takes_back_own {
                    writer.rollback_to(savepoint).unwrap();
                    (0..50).for_each(|n| change(&engine, writer, b"k", n));
                } else {
                    let savepoint = writer.savepoint();
                    change(&engine, writer, b"l", passed);
                    writer.rollback_to(savepoint).unwrap();
                }
            }
        };
        let before = records_read_by_thread();
        let seen = with_hook(hook, || get(&mut old, tree, b"k"));
        assert_eq!(seen.unwrap(), b"seen");
        let read = records_read_by_thread() - before;
        assert!(read < u64::from(VERSIONS) * 2, "{read}");
        drop(passes);
    }
}

/// So does a scan that passes over a row because another transaction has it.
#[test]
fn a_scan_that_skips_a_row_with_many_versions_keeps_nobody_from_it() {
    const VERSIONS: u32 = 3000;
    let skip = |trx: &mut TransactionCore, tree: &VersionedTree| {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut position = ScanPosition::start();
        let how = (Direction::Forward, LockMode::Exclusive, LockWait::SkipLocked);
        let found = lock_next(trx, tree, &mut position, how, (&mut key, &mut value));
        found.map(|found| found.then_some(key))
    };
    let engine = Arc::new(engine());
    let (tree, passes) = (&engine.trees[0], Passes::new(&engine));
    for key in [b"k", b"m"] {
        put(&engine, key, b"seen");
    }
    let mut writer = engine.begin(ReadCommitted);
    for n in 0..VERSIONS {
        tree.update(&mut writer, b"k", &n.to_le_bytes()).unwrap();
    }
    let mut reader = engine.begin(ReadCommitted);
    let (outcome, all, latched) = passes.count_only(|| skip(&mut reader, tree));
    assert_eq!(outcome, Ok(Some(b"m".to_vec())));
    assert_eq!((all, latched), (VERSIONS.into(), 32));
    // What was found is left for the next.
    reader.rollback().unwrap();
    let mut reader = engine.begin(ReadCommitted);
    let (outcome, all, _) = passes.count_only(|| skip(&mut reader, tree));
    assert_eq!((outcome, all), (Ok(Some(b"m".to_vec())), 0));
    reader.rollback().unwrap();
    writer.rollback().unwrap();

    for is_killed in [false, true] {
        put(&engine, b"l", b"0");
        let mut reader = engine.begin(ReadCommitted);
        let interrupt = reader.interrupt_handle();
        let at_last = move || {
            if is_killed {
                interrupt.interrupt();
            }
        };
        let rewriter = Rewriter::new(&engine, 6);
        let (outcome, latched) = rewriter.disturb(at_last, || skip(&mut reader, tree));
        assert!(latched <= 256, "{latched}");
        let expected = if is_killed { Err(Error::Interrupted) } else { Ok(Some(b"m".to_vec())) };
        assert_eq!(outcome, expected);
        reader.rollback().unwrap();
    }
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

/// A deletion that is overwritten many times by a transaction that has not ended.
fn overwritten(engine: &Engine, versions: u32) -> (TransactionCore, [Savepoint; 2]) {
    let tree = &engine.trees[0];
    put(engine, b"k", &[1; 9000]);
    put(engine, b"l", b"0");
    let mut trx = engine.begin(ReadCommitted);
    tree.delete(&mut trx, b"k").unwrap();
    trx.commit().unwrap();
    let mut over = engine.begin(ReadCommitted);
    tree.update(&mut over, b"l", b"1").unwrap();
    let before = over.savepoint();
    tree.insert(&mut over, b"k", b"again", LockMode::None).unwrap();
    let behind = over.savepoint();
    for n in 0..versions {
        tree.update(&mut over, b"k", &n.to_le_bytes().repeat(1 + n as usize % 20)).unwrap();
    }
    (over, [before, behind])
}

/// Purge finds who has overwritten a deletion, and leaves the leaf to others while it looks.
#[test]
fn purge_keeps_nobody_from_a_row_that_is_overwritten_many_times() {
    for (versions, unlatched) in [(31, 0), (32, 1), (3000, 3000 - 31)] {
        let engine = Arc::new(engine());
        let (mut over, _) = overwritten(&engine, versions);
        let passes = Passes::new(&engine);
        let purge = || while engine.system.purge_step(10).unwrap() > 0 {};
        let ((), all, latched) = passes.count_only(purge);
        assert_eq!((all, all - latched), (u64::from(versions) + 1, unlatched));
        over.rollback().unwrap();
        engine.settle().unwrap();
        engine.check_settled().unwrap();
        assert_eq!(engine.contents(0).unwrap().len(), 1);
    }
}

/// What purge walks through goes, in whichever way, and other versions may come: no delete mark is
/// left that would never be purged.
#[test]
fn versions_that_go_while_purge_walks_through_them_leave_nothing() {
    const VERSIONS: u32 = 300;
    type Meanwhile = fn(&Engine, &mut TransactionCore, [Savepoint; 2]);
    let write_on: Meanwhile = |engine, over, _| {
        for n in 0..VERSIONS {
            engine.trees[0].update(over, b"l", &[n as u8; 70]).unwrap();
            engine.trees[0].update(over, b"k", &[n as u8; 40]).unwrap();
        }
    };
    let meanwhiles: [Vec<Meanwhile>; 7] = [
        vec![|_, over, _| over.commit().unwrap()],
        vec![|engine, over, _| {
            over.rollback().unwrap();
            (0..VERSIONS).for_each(|n| put(engine, b"l", &[n as u8; 50]));
        }],
        vec![|_, over, [_, behind]| drop(over.rollback_to(behind).unwrap())],
        vec![|_, over, [_, behind]| drop(over.rollback_to(behind).unwrap()), write_on],
        vec![|_, over, [before, _]| drop(over.rollback_to(before).unwrap())],
        vec![|engine, over, [before, _]| {
            over.rollback_to(before).unwrap();
            engine.trees[0].insert(over, b"k", b"anew", LockMode::None).unwrap();
        }],
        vec![
            |engine, over, [before, _]| {
                over.rollback_to(before).unwrap();
                engine.trees[0].update(over, b"l", b"elsewhere").unwrap();
                engine.trees[0].insert(over, b"k", b"anew", LockMode::None).unwrap();
            },
            write_on,
        ],
    ];
    let cases = meanwhiles.iter().enumerate().flat_map(|case| [(case, false), (case, true)]);
    for ((n, meanwhile), at_its_end) in cases {
        let (engine, meanwhile) = (Arc::new(engine()), meanwhile.clone());
        let (over, savepoints) = overwritten(&engine, VERSIONS);
        let over = Arc::new(parking_lot::Mutex::new(over));
        let meanwhile = {
            let (engine, over) = (Arc::clone(&engine), Arc::clone(&over));
            move || meanwhile.iter().for_each(|go| go(&engine, &mut over.lock(), savepoints))
        };
        let purge = || while engine.system.purge_step(10).unwrap() > 0 {};
        if at_its_end {
            let mut walks = 0;
            let hook = move |point| {
                walks += u32::from(point == PausePoint::OverwriterFound);
                if walks == 1 {
                    walks += 1;
                    meanwhile();
                }
            };
            with_hook(hook, purge);
        } else {
            let ((), _, latched) = Passes::new(&engine).count(Some(meanwhile), purge);
            assert!(latched <= 64, "{n}: {latched}");
        }
        let commits = n == 0;
        over.lock().rollback().unwrap();
        engine.settle().unwrap();
        engine.check_settled().unwrap();
        assert_eq!(engine.contents(0).unwrap().contains_key(&b"k"[..]), commits, "{n}");
    }
}
