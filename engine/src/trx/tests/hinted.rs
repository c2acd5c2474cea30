//! Locking scans that find their leaf again by a hint, while others change the leaf between two of
//! their reads.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn key_of(n: u32) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

/// One scanner and its surroundings.
struct Scan {
    engine: Engine,
    rng: StdRng,
    /// What is there: all but the scanner's changes is committed.
    newest: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Scan {
    fn value(&mut self) -> Vec<u8> {
        let len = self.rng.random_range(1..300);
        vec![self.rng.random(); len]
    }

    /// Another transaction's change near the scanner's place, committed at once; of what the
    /// scanner has locked there is none.
    fn change_nearby(&mut self, place: u32) {
        let n = (place + self.rng.random_range(0..60)).saturating_sub(30);
        let (key, value) = (key_of(n), self.value());
        let tree = &self.engine.trees[0];
        let mut other = self.engine.begin(ReadCommitted);
        let deletes = self.rng.random_bool(0.5);
        let outcome = match self.newest.contains_key(&key) {
            true if deletes => tree.delete(&mut other, &key),
            true => tree.update(&mut other, &key, &value),
            false => tree.insert(&mut other, &key, &value, LockMode::None),
        };
        match outcome {
            Ok(()) if deletes && self.newest.remove(&key).is_some() => {}
            Ok(()) => _ = self.newest.insert(key, value),
            Err(error) => {
                assert_eq!(error, Error::LockWaitTimeout);
                return other.rollback().unwrap();
            }
        }
        other.commit().unwrap();
    }

    fn is_locked(&self, key: &[u8]) -> bool {
        let mut other = self.engine.begin(ReadCommitted);
        let (mode, wait, mut value) = (LockMode::Exclusive, LockWait::NoWait, Vec::new());
        let outcome = self.engine.trees[0]
            .read(&mut other, ReadRequest::new(key, &mut value).locked(mode, wait));
        assert!(matches!(outcome, Ok(_) | Err(Error::LockNoWait)), "{outcome:?}");
        outcome.is_err()
    }

    fn run(&mut self, direction: Direction, isolation: Isolation) {
        let mut scanner = self.engine.begin(isolation);
        let mut position = match direction {
            Direction::Forward => ScanPosition::start(),
            Direction::Backward => ScanPosition::end(),
        };
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut last: Option<Vec<u8>> = None;
        loop {
            let expected = match (direction, &last) {
                (Direction::Forward, None) => self.newest.iter().next(),
                (Direction::Backward, None) => self.newest.iter().next_back(),
                (Direction::Forward, Some(last)) => self.newest.iter().find(|(key, _)| *key > last),
                (Direction::Backward, Some(last)) => {
                    self.newest.iter().rfind(|(key, _)| *key < last)
                }
            };
            let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
            let tree = &self.engine.trees[0];
            let (mode, wait) = (LockMode::Exclusive, LockWait::NoWait);
            let found = lock_next(
                &mut scanner,
                tree,
                &mut position,
                (direction, mode, wait),
                (&mut key, &mut value),
            )
            .unwrap();
            assert_eq!(found.then(|| (key.clone(), value.clone())), expected);
            if !found {
                // It stays at its end.
                assert!(position.at_end());
                let again = lock_next(
                    &mut scanner,
                    tree,
                    &mut position,
                    (direction, mode, wait),
                    (&mut key, &mut value),
                );
                assert_eq!(again, Ok(false));
                break;
            }
            assert!(self.is_locked(&key));
            match self.rng.random_range(0..8) {
                0 => {
                    let value = self.value();
                    self.engine.trees[0].update(&mut scanner, &key, &value).unwrap();
                    self.newest.insert(key.clone(), value);
                }
                1 => {
                    self.engine.trees[0].delete(&mut scanner, &key).unwrap();
                    self.newest.remove(&key);
                }
                2 if isolation == ReadCommitted => {
                    self.engine.trees[0].unlock(&mut scanner, &key);
                    assert!(!self.is_locked(&key));
                }
                _ => {}
            }
            let place = str::from_utf8(&key[3..]).unwrap().parse().unwrap();
            for _ in 0..self.rng.random_range(0..4) {
                self.change_nearby(place);
            }
            if self.rng.random_bool(0.2) {
                while self.engine.system.purge_step(10).unwrap() > 0 {}
            }
            last = Some(key.clone());
        }
        scanner.commit().unwrap();
    }
}

/// Leaves are split, merged and emptied under the scan, by others and by itself.
#[test]
fn a_locking_scan_goes_on_where_it_was_whatever_happens_to_its_leaf() {
    for seed in 0..u64::from(crate::test_cases(4)) {
        let engine = engine();
        let mut scan = Scan { engine, rng: StdRng::seed_from_u64(seed), newest: BTreeMap::new() };
        for n in (0..600).step_by(2) {
            let value = scan.value();
            put(&scan.engine, &key_of(n), &value);
            scan.newest.insert(key_of(n), value);
        }
        for isolation in [ReadCommitted, RepeatableRead, Serializable] {
            for direction in [Direction::Forward, Direction::Backward] {
                scan.run(direction, isolation);
            }
        }
        scan.engine.settle().unwrap();
        scan.engine.check_settled().unwrap();
        assert_eq!(scan.engine.contents(0).unwrap(), scan.newest);
    }
}

/// A write that follows a locking read begins at the leaf of that, and goes where it belongs all
/// the same.
#[test]
fn a_write_after_a_locking_read_of_another_entry_goes_where_it_belongs() {
    let engine = engine();
    for n in 0..500 {
        put(&engine, &key_of(n), &[0; 100]);
    }
    let (rows, other) = (&engine.trees[0], &engine.trees[1]);
    let mut trx = engine.begin(ReadCommitted);
    let mut value = Vec::new();
    let (mode, wait) = (LockMode::Exclusive, LockWait::NoWait);
    for (read, written) in [(10, 10), (10, 11), (10, 490), (490, 10), (250, 251)] {
        for step in 0..3 {
            assert!(
                rows.read(&mut trx, ReadRequest::new(&key_of(read), &mut value).locked(mode, wait))
                    .unwrap()
            );
            match step {
                0 => rows.update(&mut trx, &key_of(written), &[1; 2000]).unwrap(),
                1 => rows.delete(&mut trx, &key_of(written)).unwrap(),
                _ => assert_eq!(rows.update(&mut trx, b"none", b""), Err(Error::NotFound)),
            }
            assert_eq!(other.update(&mut trx, &key_of(read), b""), Err(Error::NotFound));
            if step == 1 {
                rows.insert(&mut trx, &key_of(written), b"back", LockMode::None).unwrap();
            }
        }
    }
    trx.commit().unwrap();
    engine.settle().unwrap();
    engine.check_settled().unwrap();
    let found = engine.contents(0).unwrap();
    assert_eq!(found.len(), 500);
    for n in 0..500 {
        let is_written = [10, 11, 251, 490].contains(&n);
        assert_eq!(found[&key_of(n)] == b"back", is_written, "{n}");
    }
}

/// Figures, not a test: `cargo test --release -p tidepool-engine locking_scan_figures -- --ignored
/// --nocapture`.
#[test]
#[ignore = "measures"]
fn locking_scan_figures() {
    const ROWS: u32 = 200_000;
    let options = EnvOptions {
        buffer_pool_size_bytes: 256 << 20,
        redo_capacity_bytes: 1 << 30,
        background: true,
        ..EnvOptions::small()
    };
    let engine = Engine::create(&SimStorage::new(1), &options);
    engine.system.set_flush_log_at_trx_commit(0);
    let tree = &engine.trees[0];
    let mut trx = engine.begin(ReadCommitted);
    for n in 0..ROWS {
        tree.insert(&mut trx, &u64::from(n).to_be_bytes(), &[1; 80], LockMode::None).unwrap();
    }
    trx.commit().unwrap();
    type Then = fn(&mut TransactionCore, &VersionedTree, &[u8]);
    let unlock: Then = |trx, tree, key| tree.unlock(trx, key);
    let update: Then = |trx, tree, key| tree.update(trx, key, &[2; 80]).unwrap();
    for (what, isolation, mode, then) in [
        ("exclusive", RepeatableRead, LockMode::Exclusive, None),
        ("exclusive, unlocked again", ReadCommitted, LockMode::Exclusive, Some(unlock)),
        ("exclusive, updated", RepeatableRead, LockMode::Exclusive, Some(update)),
        ("shared", RepeatableRead, LockMode::Shared, None),
    ] {
        let mut best = Duration::MAX;
        for _ in 0..7 {
            let mut trx = engine.begin(isolation);
            let (mut position, mut key, mut value) =
                (ScanPosition::start(), Vec::new(), Vec::new());
            let (forward, wait) = (Direction::Forward, LockWait::Wait);
            let start = Instant::now();
            while lock_next(
                &mut trx,
                tree,
                &mut position,
                (forward, mode, wait),
                (&mut key, &mut value),
            )
            .unwrap()
            {
                then.into_iter().for_each(|then| then(&mut trx, tree, &key));
            }
            best = best.min(start.elapsed());
            trx.commit().unwrap();
            engine.settle().unwrap();
        }
        println!("locking scan, {what:30} {:6.0} ns", best.as_nanos() as f64 / f64::from(ROWS));
    }
}
