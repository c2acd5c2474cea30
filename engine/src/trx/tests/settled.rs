//! Entries with short headers: when they get them, and that no reader notices.

use rand::prelude::*;
use rand::rngs::StdRng;

use super::*;
use crate::format::entry::SETTLED;

const ROWS: u32 = 1500;

fn key(n: u32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

/// Keys in random order, the same for each seed.
fn shuffled(keys: impl Iterator<Item = u32>, seed: u64) -> Vec<u32> {
    let mut keys: Vec<u32> = keys.collect();
    keys.shuffle(&mut StdRng::seed_from_u64(seed));
    keys
}

/// Inserts, a few in each transaction.
fn fill(engine: &Engine, keys: &[u32]) {
    for keys in keys.chunks(7) {
        let mut trx = engine.begin(ReadCommitted);
        for &n in keys {
            engine.trees[0].insert(&mut trx, &key(n), &n.to_be_bytes(), LockMode::None).unwrap();
        }
        trx.commit().unwrap();
    }
}

/// Leaves of the first tree, and which of its keys are settled. The tree is verified on the way.
fn look(engine: &Engine) -> (u64, BTreeSet<u32>) {
    let mut settled = BTreeSet::new();
    let report = engine.trees[0].tree().check(&mut |leaf, first| {
        for slot in first..leaf.count() {
            let entry = Entry::decode(leaf.payload(slot)).expect("a versioned entry");
            if entry.is_settled() {
                assert!(!entry.is_deleted() && entry.trx_id == TrxId::NONE && entry.roll.is_none());
                settled.insert(u32::from_be_bytes(leaf.key(slot).try_into().unwrap()));
            }
        }
        Ok(())
    });
    (report.unwrap().leaf_pages, settled)
}

fn rows(keys: impl IntoIterator<Item = u32>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    keys.into_iter().map(|n| (key(n), n.to_be_bytes().to_vec())).collect()
}

/// An engine whose first tree holds all even numbers below twice [`ROWS`], many of them settled,
/// and leaves without room for much more.
fn settled_engine(storage: &SimStorage) -> Engine {
    let engine = Engine::create(storage, &options());
    fill(&engine, &shuffled((0..ROWS).map(|n| 2 * n), 3));
    let (_, settled) = look(&engine);
    assert!(settled.len() as u32 > ROWS / 2, "{}", settled.len());
    engine
}

#[test]
fn what_all_see_is_settled_instead_of_a_split() {
    let alone = engine();
    fill(&alone, &shuffled(0..ROWS, 1));
    let (leaves, settled) = look(&alone);

    // The same under the eyes of an old snapshot: nothing younger may be settled, and all leaves
    // are split.
    let watched = engine();
    let early = shuffled((0..ROWS).filter(|n| n % 10 == 0), 1);
    fill(&watched, &early);
    let mut old = watched.begin(RepeatableRead);
    old.ensure_view();
    fill(&watched, &shuffled((0..ROWS).filter(|n| n % 10 != 0), 1));
    let (watched_leaves, watched_settled) = look(&watched);
    assert!(watched_settled.iter().all(|n| n % 10 == 0), "{watched_settled:?}");
    let seen = scan_all(&mut old, &watched.trees[0], Direction::Forward).unwrap();
    assert_eq!(seen.into_iter().collect::<BTreeMap<_, _>>(), rows(early));
    assert_eq!(watched.contents(0).unwrap(), rows(0..ROWS));

    assert!(
        leaves * 5 < watched_leaves * 4,
        "{leaves} leaves, {watched_leaves} if none is settled"
    );
    assert!(settled.len() as u32 > ROWS / 2, "{}", settled.len());
    assert_eq!(alone.contents(0).unwrap(), rows(0..ROWS));

    // Once it is gone, full leaves settle what it kept.
    old.rollback().unwrap();
    for n in shuffled(0..ROWS, 2) {
        put(&watched, &[key(n), b"longer".to_vec()].concat(), b"");
    }
    let mut trx = watched.begin(ReadCommitted);
    for n in 0..ROWS {
        watched.trees[0].delete(&mut trx, &[key(n), b"longer".to_vec()].concat()).unwrap();
    }
    trx.commit().unwrap();
    watched.settle().unwrap();
    assert!(look(&watched).1.len() as u32 > ROWS / 2);
    for engine in [alone, watched] {
        engine.settle().unwrap();
        engine.check_settled().unwrap();
    }
}

#[test]
fn what_is_not_committed_is_never_settled() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let tree = &engine.trees[0];
    let (mut running, mut prepared) = (engine.begin(ReadCommitted), engine.begin(ReadCommitted));
    for n in shuffled(0..ROWS, 1) {
        match n % 4 {
            0 => tree.insert(&mut running, &key(n), b"", LockMode::None).unwrap(),
            1 => tree.insert(&mut prepared, &key(n), &key(n), LockMode::None).unwrap(),
            _ => {}
        }
    }
    prepared.prepare(b"x").unwrap();
    prepared.detach();
    fill(&engine, &shuffled((0..ROWS).filter(|n| n % 4 == 2), 1));
    let (_, settled) = look(&engine);
    assert!(!settled.is_empty() && settled.iter().all(|n| n % 4 == 2), "{settled:?}");
    // A rollback to a savepoint leaves what is before it.
    let savepoint = running.savepoint();
    for n in (2..ROWS).step_by(4) {
        tree.update(&mut running, &key(n), b"a longer value").unwrap();
    }
    running.rollback_to(savepoint).unwrap();
    let rolled_back = look(&engine).1;
    assert!(settled.is_subset(&rolled_back), "a rollback restores what was settled");

    engine.env.redo().flush().unwrap();
    let storage = storage.crash();
    let engine = Engine::open(&storage, &options()).unwrap();
    // Recovery finds one to be rolled back, and one prepared.
    assert_eq!(engine.system.status().rollbacks_pending, 1);
    fill(&engine, &shuffled((0..ROWS).filter(|n| n % 4 == 3), 1));
    let (_, settled) = look(&engine);
    assert!(settled.iter().all(|n| n % 4 > 1), "{settled:?}");
    assert!(settled.iter().any(|n| n % 4 == 3), "{settled:?}");
    assert!(engine.system.rollback_step().unwrap());
    assert_eq!(engine.contents(0).unwrap(), rows((0..ROWS).filter(|n| n % 4 > 1)));
    engine.system.take_prepared(b"x").unwrap().commit().unwrap();
    assert_eq!(engine.contents(0).unwrap(), rows((0..ROWS).filter(|n| n % 4 > 0)));
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn settled_entries_are_changed_and_restored_in_full_leaves() {
    let storage = SimStorage::new(1);
    let engine = settled_engine(&storage);
    let tree = &engine.trees[0];
    let evens = || rows((0..ROWS).map(|n| 2 * n));
    let (leaves, settled) = look(&engine);
    let mut old = engine.begin(RepeatableRead);
    old.ensure_view();

    // All are deleted or changed: each header grows, and the leaves are split.
    let mut trx = engine.begin(RepeatableRead);
    for n in (0..2 * ROWS).step_by(2) {
        match n % 3 {
            0 => tree.delete(&mut trx, &key(n)).unwrap(),
            1 => tree.update(&mut trx, &key(n), b"short").unwrap(),
            _ => tree.update(&mut trx, &key(n), &[9; 40]).unwrap(),
        }
    }
    assert_eq!(look(&engine).1, BTreeSet::new());
    assert!(look(&engine).0 > leaves);
    assert_eq!(
        scan_all(&mut trx, tree, Direction::Forward).unwrap().len(),
        (0..2 * ROWS).step_by(2).filter(|n| n % 3 > 0).count()
    );
    assert_eq!(engine.contents(0).unwrap(), evens());
    trx.rollback().unwrap();
    assert_eq!(engine.contents(0).unwrap(), evens());
    assert!(settled.is_subset(&look(&engine).1));

    // The same, committed: who has the old snapshot reads it by the undo records, which lead to
    // settled versions.
    for n in shuffled((0..ROWS).map(|n| 2 * n), 5) {
        let mut trx = engine.begin(ReadCommitted);
        match n % 3 {
            0 => tree.delete(&mut trx, &key(n)).unwrap(),
            _ => tree.update(&mut trx, &key(n), &[9; 40]).unwrap(),
        }
        trx.commit().unwrap();
    }
    let seen = scan_all(&mut old, tree, Direction::Backward).unwrap();
    assert_eq!(seen.into_iter().collect::<BTreeMap<_, _>>(), evens());
    while engine.system.purge_step(10).unwrap() > 0 {}
    assert!(engine.system.status().history_len > 0);
    assert_eq!(scan_all(&mut old, tree, Direction::Forward).unwrap().len() as u32, ROWS);
    old.rollback().unwrap();
    engine.settle().unwrap();
    engine.check_settled().unwrap();
    let left = (0..2 * ROWS).step_by(2).filter(|n| n % 3 != 0).count();
    assert_eq!(engine.contents(0).unwrap().len(), left);
    assert!(engine.system.status().purged_entries as usize >= ROWS as usize - left);
}

#[test]
fn a_settled_entry_is_locked_like_any() {
    let engine = settled_engine(&SimStorage::new(1));
    let tree = &engine.trees[0];
    let n = *look(&engine).1.first().unwrap();
    let (mut value, wait) = (Vec::new(), LockWait::NoWait);
    // Neither has written: both have the id that the entry is by.
    let (mut one, mut other) = (engine.begin(RepeatableRead), engine.begin(RepeatableRead));
    assert!(
        tree.read(
            &mut one,
            ReadRequest::new(&key(n), &mut value).locked(LockMode::Exclusive, wait)
        )
        .unwrap()
    );
    let refused =
        tree.read(&mut other, ReadRequest::new(&key(n), &mut value).locked(LockMode::Shared, wait));
    assert_eq!(refused, Err(Error::LockNoWait));
    assert_eq!(tree.delete(&mut other, &key(n)), Err(Error::LockWaitTimeout));
    let inserted = tree.insert(&mut other, &key(n), b"", LockMode::None);
    assert!(matches!(inserted, Err(Error::DuplicateKey { .. })), "{inserted:?}");
    tree.update(&mut one, &key(n), b"new").unwrap();
    assert_eq!(tree.update(&mut other, &key(n), b"newer"), Err(Error::LockWaitTimeout));
    // A reader that does not wait gets the settled version below.
    let mut peeker = engine.begin(ReadCommitted);
    let mut position = ScanPosition::at(std::ops::Bound::Included(&key(n)));
    let (mut found, forward) = (Vec::new(), Direction::Forward);
    let peeked = lock_next_or_peek(
        &mut peeker,
        tree,
        &mut position,
        (forward, LockMode::Exclusive),
        (&mut found, &mut value),
    );
    assert_eq!(peeked, Ok(Peek::Committed));
    assert_eq!((found, &value[..]), (key(n), &n.to_be_bytes()[..]));
    one.rollback().unwrap();
    tree.update(&mut other, &key(n), b"newer").unwrap();
    other.commit().unwrap();
}

#[test]
fn purge_passes_by_settled_entries() {
    let engine = engine();
    let tree = &engine.trees[0];
    // Each is deleted and inserted again, some with long values, before any purge.
    let long = |n: u32| vec![n as u8; if n.is_multiple_of(50) { 9000 } else { 4 }];
    for n in shuffled(0..ROWS, 1) {
        put(&engine, &key(n), &long(n));
    }
    for n in shuffled(0..ROWS, 2) {
        let mut trx = engine.begin(ReadCommitted);
        tree.delete(&mut trx, &key(n)).unwrap();
        trx.commit().unwrap();
        put(&engine, &key(n), &long(n));
        let mut trx = engine.begin(ReadCommitted);
        tree.insert(&mut trx, &[key(n), b"+".to_vec()].concat(), b"", LockMode::None).unwrap();
        trx.commit().unwrap();
    }
    let mut settled = 0;
    let report = tree.tree().check(&mut |leaf, _| {
        let flags = (0..leaf.count()).map(|slot| leaf.payload(slot)[0]);
        settled += flags.filter(|flags| flags & SETTLED != 0).count();
        Ok(())
    });
    report.unwrap();
    assert!(settled as u32 > ROWS, "{settled}");
    assert!(u64::from(ROWS) < engine.system.status().history_len);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
    let contents = engine.contents(0).unwrap();
    assert_eq!(contents.len() as u32, 2 * ROWS);
    assert!((0..ROWS).all(|n| contents[&key(n)] == long(n)));
}

/// A power cut at any moment of such a load leaves whole transactions, and a sound tree.
#[test]
fn a_crash_keeps_what_is_settled_and_what_is_not() {
    for seed in crate::redo::tests::seeds(12) {
        let mut random = StdRng::seed_from_u64(seed);
        let storage = SimStorage::new(seed);
        let engine = settled_engine(&storage);
        engine.env.redo().flush().unwrap();
        storage.crash_at(storage.operation_count() + random.random_range(1..400));
        let mut committed: Vec<(tidepool_pool::Lsn, u32)> = Vec::new();
        for n in shuffled((0..ROWS).map(|n| 2 * n + 1), seed) {
            let mut trx = engine.begin(ReadCommitted);
            let done = engine.trees[0]
                .insert(&mut trx, &key(n), &n.to_be_bytes(), LockMode::None)
                .and_then(|()| engine.trees[0].update(&mut trx, &key(n - 1), &key(n)))
                .and_then(|()| trx.commit_no_flush());
            match done {
                Ok(lsn) => committed.push((lsn, n)),
                Err(error) => {
                    assert!(storage.is_down(), "seed {seed}: {error}");
                    break;
                }
            }
            if random.random_ratio(1, 20) && engine.env.redo().flush().is_err() {
                break;
            }
            let pace = std::time::Duration::from_millis(100);
            if random.random_ratio(1, 10) && engine.env.step_checkpoint(pace).is_err() {
                break;
            }
        }
        let storage = storage.crash();
        drop(engine);
        let engine = Engine::open(&storage, &options()).unwrap();
        let end = engine.env.recovered_lsn();
        let mut expected = rows((0..ROWS).map(|n| 2 * n));
        for (_, n) in committed.into_iter().filter(|(lsn, _)| *lsn <= end) {
            expected.insert(key(n), n.to_be_bytes().to_vec());
            expected.insert(key(n - 1), key(n));
        }
        assert!(engine.contents(0).unwrap() == expected, "seed {seed}");
        assert!(!look(&engine).1.is_empty(), "seed {seed}");
        engine.settle().unwrap();
        engine.check_settled().unwrap();
        assert!(engine.contents(0).unwrap() == expected, "seed {seed}");
    }
}
