//! The whole transaction system against a model, in one thread, from a seed.
//!
//! Several transactions take turns, each doing random things; between them purge, cleaner,
//! checkpoints and leftover rollbacks take steps. The disk fails reads, fills up, and loses power
//! at any operation, recovery's included; what was not synced is lost or torn. The model is a map
//! of committed states:
//!
//! - after each start, exactly the commits whose log survived are there, all acknowledged ones
//!   among them;
//! - every read sees exactly its snapshot and its own writes;
//! - a write succeeds, waits, or is refused exactly when the model says so (a wait may also come
//!   from a lock that the model only knows may be there);
//! - an operation that fails for the disk's sake changes nothing;
//! - once all is settled, no page is leaked and no delete-mark is left.
//!
//! `TIDEPOOL_SEED=n` replays one run, `TIDEPOOL_SEEDS=n` runs `n`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use tidepool_pool::Lsn;
use tidepool_pool::encryption::{Keys, MemoryKeyring};
use tidepool_pool::storage::{FaultKind, SimStorage, StorageOp};

use super::*;
use crate::redo::tests::seeds;
use crate::versioned::Batch;

type Key = (usize, Vec<u8>);
type State = BTreeMap<Key, Vec<u8>>;
type Changes = BTreeMap<Key, Option<Vec<u8>>>;

fn apply(state: &mut State, changes: &Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

struct Prepared {
    changes: Changes,
    /// Whether a crash keeps it for sure.
    certain: bool,
    /// It has been committed here, or rolled back (no LSN).
    ended: Option<Option<Lsn>>,
}

#[derive(Default)]
struct Model {
    /// As recovered last.
    base: State,
    /// Since then.
    commits: Vec<(Lsn, Changes)>,
    /// What a new view sees.
    current: State,
    clock: u64,
    changed_at: BTreeMap<Key, u64>,
    acknowledged: Lsn,
    prepared: BTreeMap<Vec<u8>, Prepared>,
    next_xid: u32,
}

impl Model {
    fn commit(&mut self, lsn: Lsn, changes: Changes) {
        self.clock += 1;
        for key in changes.keys() {
            self.changed_at.insert(key.clone(), self.clock);
        }
        apply(&mut self.current, &changes);
        self.commits.push((lsn, changes));
    }
}

struct SimTrx {
    trx: TransactionCore,
    isolation: Isolation,
    changes: Changes,
    snapshot: Option<(State, u64)>,
    /// Keys it may have locked.
    touched: BTreeSet<Key>,
    /// It may have locked ranges.
    ranges: bool,
    savepoints: Vec<(Savepoint, Changes)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Insert,
    Update,
    Delete,
}

struct Sim<'a> {
    seed: u64,
    rng: &'a mut StdRng,
    storage: &'a SimStorage,
    engine: &'a Engine,
    model: &'a mut Model,
    running: Vec<SimTrx>,
    keys: u32,
    /// How many of a hundred values are long.
    long_pct: u32,
    /// Transactions at once, at most.
    most: usize,
    /// How many of a thousand steps end a transaction.
    ends: u32,
    /// The disk may fail operations at the moment.
    faulty: bool,
    /// Left rollbacks may lock anything.
    zombies: bool,
    seen: &'a mut Seen,
    /// Where the redo log was at its last background step for pace.
    paced: Option<Lsn>,
}

/// How often what has happened: a simulation that reaches nothing proves nothing.
type Seen = BTreeMap<&'static str, u64>;

fn note(seen: &mut Seen, what: &'static str) {
    *seen.entry(what).or_default() += 1;
}

/// The run goes on, or the power is gone.
type Flow = std::result::Result<(), ()>;

impl Sim<'_> {
    fn random_key(&mut self) -> Key {
        let n = self.rng.random_range(0..self.keys);
        (self.rng.random_range(0..TREES as usize), self.key(n))
    }

    fn key(&self, n: u32) -> Vec<u8> {
        // Keys with common beginnings, of various lengths.
        format!("{:02}/{}{n}", n % 7, "key".repeat((n % 5) as usize)).into_bytes()
    }

    fn random_value(&mut self) -> Vec<u8> {
        let len = match self.rng.random_range(0..100) {
            n if n < self.long_pct => self.rng.random_range(1000..15_000),
            0..80 => self.rng.random_range(0..60),
            _ => self.rng.random_range(60..1000),
        };
        let mut value = vec![self.rng.random(); len];
        if let Some(first) = value.first_mut() {
            *first = self.rng.random();
        }
        value
    }

    /// An error that only the disk can be blamed for.
    fn disk_error(&mut self, what: &str, error: &Error) -> Flow {
        if self.storage.is_down() {
            return Err(());
        }
        let pending = self.engine.system.rollbacks_pending() > 0;
        let (blamed, noted) = match error {
            Error::Io { .. } => (self.faulty, "read error"),
            Error::NoSpace(_) => (self.faulty, "disk full"),
            // Of a row that a rollback could not undo for want of a page.
            Error::Format { .. } => (pending, "blocked rollback"),
            _ => (false, ""),
        };
        assert!(blamed, "seed {}: {what}: {error}", self.seed);
        note(self.seen, noted);
        Ok(())
    }

    /// Whether another transaction has surely, or maybe, locked the key.
    fn others(&self, me: usize, key: &Key) -> (bool, bool) {
        let (mut surely, mut maybe) = (false, self.zombies);
        for (at, other) in self.running.iter().enumerate() {
            if at != me {
                surely |= other.changes.contains_key(key);
                maybe |= other.touched.contains(key) || other.ranges;
            }
        }
        for prepared in self.model.prepared.values().filter(|p| p.ended.is_none()) {
            surely |= prepared.changes.contains_key(key);
            maybe = true;
        }
        (surely, maybe | surely)
    }

    fn newest(&self, me: usize, key: &Key) -> Option<Vec<u8>> {
        match self.running[me].changes.get(key) {
            Some(own) => own.clone(),
            None => self.model.current.get(key).cloned(),
        }
    }

    /// Whether the transaction's snapshot misses a change of the key.
    fn is_stale(&self, me: usize, key: &Key) -> bool {
        let trx = &self.running[me];
        let changed = self.model.changed_at.get(key).copied().unwrap_or(0);
        trx.isolation == Isolation::RepeatableRead
            && !trx.changes.contains_key(key)
            && trx.snapshot.as_ref().is_some_and(|(_, clock)| changed > *clock)
    }

    fn begin(&mut self) {
        let isolation = match self.rng.random_range(0..10) {
            0..4 => Isolation::ReadCommitted,
            4..9 => Isolation::RepeatableRead,
            _ => Isolation::Serializable,
        };
        self.running.push(SimTrx {
            trx: self.engine.begin(isolation),
            isolation,
            changes: Changes::new(),
            snapshot: None,
            touched: BTreeSet::new(),
            ranges: false,
            savepoints: Vec::new(),
        });
    }

    /// A long run of inserts: an undo log of many pages that purge need not look at.
    fn bulk_insert(&mut self, me: usize) -> Flow {
        let trx = self.running[me].trx.id();
        let tree = self.rng.random_range(0..TREES as usize);
        for n in 0..self.rng.random_range(0..self.keys) {
            let key = (tree, self.key(n));
            if self.newest(me, &key).is_none() {
                let value = self.random_value();
                self.write_one(me, key, value, Kind::Insert)?;
                if self.running.get(me).is_none_or(|now| trx != TrxId::NONE && now.trx.id() != trx)
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, me: usize) -> Flow {
        let key = self.random_key();
        let value = self.random_value();
        let newest = self.newest(me, &key);
        let kind = match (newest.is_some(), self.rng.random_range(0..20)) {
            (true, 0..12) | (false, 0) => Kind::Update,
            (true, 12..19) | (false, 1) => Kind::Delete,
            _ => Kind::Insert,
        };
        self.write_one(me, key, value, kind)
    }

    /// The redo log counts on its background step to come in time: it has the next file ready.
    fn keep_pace(&mut self) -> Flow {
        let lsn = self.engine.env.redo().next_lsn();
        if self.paced.is_none_or(|paced| lsn.0 - paced.0 > 16_000) {
            self.paced = Some(lsn);
            if let Err(error) = self.engine.env.step_checkpoint(Duration::from_millis(100)) {
                self.disk_error("checkpoint", &error)?;
            }
        }
        Ok(())
    }

    fn write_one(&mut self, me: usize, key: Key, value: Vec<u8>, kind: Kind) -> Flow {
        self.keep_pace()?;
        let newest = self.newest(me, &key);
        let (surely, maybe) = self.others(me, &key);
        let stale = self.is_stale(me, &key);
        let tree = &self.engine.trees[key.0];
        let trx = &mut self.running[me];
        trx.trx.begin_statement();
        let outcome = match kind {
            Kind::Insert => tree.insert(&mut trx.trx, &key.1, &value, LockMode::Shared),
            Kind::Update => tree.update(&mut trx.trx, &key.1, &value),
            Kind::Delete => tree.delete(&mut trx.trx, &key.1),
        };
        trx.trx.end_statement();
        trx.touched.insert(key.clone());
        let seed = self.seed;
        match outcome {
            Ok(()) => {
                assert!(!surely, "seed {seed}: {kind:?} {key:?} though another wrote it");
                assert!(!stale, "seed {seed}: {kind:?} {key:?} lost an update");
                assert_eq!(newest.is_none(), kind == Kind::Insert, "seed {seed}: {kind:?} {key:?}");
                note(
                    self.seen,
                    match kind {
                        _ if kind != Kind::Delete && value.len() > 1100 => "long value",
                        Kind::Insert => "insert",
                        Kind::Update => "update",
                        Kind::Delete => "delete",
                    },
                );
                trx.changes.insert(key, (kind != Kind::Delete).then_some(value));
            }
            Err(Error::LockWaitTimeout) => {
                assert!(maybe, "seed {seed}: {kind:?} {key:?} waited without a holder");
                note(self.seen, "lock wait");
            }
            Err(Error::DuplicateKey { value, .. }) => {
                assert_eq!((kind, newest), (Kind::Insert, Some(value)), "seed {seed}: {key:?}");
                assert!(!surely, "seed {seed}: a duplicate that is not certain");
                note(self.seen, "duplicate");
            }
            Err(Error::NotFound) => {
                assert!(kind != Kind::Insert && newest.is_none() && !stale, "seed {seed}: {key:?}");
            }
            Err(Error::RecordChanged) => {
                assert!(stale, "seed {seed}: {kind:?} {key:?} is refused without a reason");
                note(self.seen, "record changed");
                return self.roll_back(me);
            }
            Err(error) => {
                self.disk_error("write", &error)?;
                if self.running[me].trx.must_rollback() {
                    return self.roll_back(me);
                }
            }
        }
        Ok(())
    }

    /// What a consistent read sees; takes the snapshot if this is the first.
    fn visible(&mut self, me: usize) -> State {
        let trx = &mut self.running[me];
        let mut state = match trx.isolation {
            Isolation::ReadCommitted => self.model.current.clone(),
            _ => {
                let now = || (self.model.current.clone(), self.model.clock);
                trx.snapshot.get_or_insert_with(now).0.clone()
            }
        };
        apply(&mut state, &trx.changes);
        state
    }

    fn get(&mut self, me: usize) -> Flow {
        let key = self.random_key();
        let expected = self.visible(me).get(&key).cloned();
        let trx = &mut self.running[me];
        let mut value = Vec::new();
        let tree = &self.engine.trees[key.0];
        trx.trx.begin_statement();
        let found = tree.read(&mut trx.trx, ReadRequest::new(&key.1, &mut value));
        trx.trx.end_statement();
        match found {
            Ok(found) => assert_eq!(
                found.then_some(value),
                expected,
                "seed {}: {key:?} read wrongly at {:?}",
                self.seed,
                trx.isolation
            ),
            Err(error) => self.disk_error("get", &error)?,
        }
        Ok(())
    }

    fn scan(&mut self, me: usize) -> Flow {
        let (tree, start) = self.random_key();
        let visible = self.visible(me);
        let all =
            visible.iter().filter(|(key, _)| key.0 == tree).map(|(k, v)| (k.1.clone(), v.clone()));
        let forward = self.rng.random_bool(0.6);
        let direction = if forward { Direction::Forward } else { Direction::Backward };
        let (mut position, expected): (_, Vec<_>) = match (self.rng.random_range(0..3), forward) {
            (0, true) => (ScanPosition::start(), all.collect()),
            (0, false) => (ScanPosition::end(), all.collect()),
            (1, true) => (
                ScanPosition::at(Bound::Included(&start)),
                all.filter(|(key, _)| *key >= start).collect(),
            ),
            (1, false) => (
                ScanPosition::at(Bound::Included(&start)),
                all.filter(|(key, _)| *key <= start).collect(),
            ),
            (_, true) => (
                ScanPosition::at(Bound::Excluded(&start)),
                all.filter(|(key, _)| *key > start).collect(),
            ),
            (_, false) => (
                ScanPosition::at(Bound::Excluded(&start)),
                all.filter(|(key, _)| *key < start).collect(),
            ),
        };
        let trx = &mut self.running[me];
        trx.trx.begin_statement();
        let mut found = Vec::new();
        let mut batch = Batch::default();
        while !position.at_end() {
            batch.clear();
            let rows = self.rng.random_range(1..20);
            let long_values = if rows % 2 == 0 { LongValues::Prefix } else { LongValues::Whole };
            let request = ScanRequest { long_values, ..scan_request(direction, rows) };
            let step =
                self.engine.trees[tree].scan(&mut trx.trx, &mut position, request, &mut batch);
            if let Err(error) = step {
                trx.trx.end_statement();
                return self.disk_error("scan", &error);
            }
            for n in 0..batch.len() {
                let (key, mut value) = (batch.key(n).to_vec(), batch.value(n).to_vec());
                if batch.is_cut(n) {
                    let mut whole = Vec::new();
                    let (tree, none) = (&self.engine.trees[tree], LockMode::None);
                    match tree.read(
                        &mut trx.trx,
                        ReadRequest::new(&key, &mut whole).locked(none, LockWait::Wait),
                    ) {
                        Ok(found) => {
                            assert!(found && whole.starts_with(&value) && whole.len() > value.len())
                        }
                        Err(error) => {
                            trx.trx.end_statement();
                            return self.disk_error("get", &error);
                        }
                    }
                    value = whole;
                }
                found.push((key, value));
            }
        }
        trx.trx.end_statement();
        if !forward {
            found.reverse();
        }
        assert!(
            found == expected,
            "seed {}: scan of tree {tree} {direction:?} saw the wrong rows",
            self.seed
        );
        Ok(())
    }

    fn locking_get(&mut self, me: usize) -> Flow {
        let key = self.random_key();
        let (surely, maybe) = self.others(me, &key);
        let (newest, stale) = (self.newest(me, &key), self.is_stale(me, &key));
        let exclusive = self.rng.random_bool(0.5);
        let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
        let waits = [LockWait::Wait, LockWait::NoWait, LockWait::SkipLocked];
        let wait = waits[self.rng.random_range(0..3)];
        let trx = &mut self.running[me];
        let mut value = Vec::new();
        let tree = &self.engine.trees[key.0];
        let outcome =
            tree.read(&mut trx.trx, ReadRequest::new(&key.1, &mut value).locked(mode, wait));
        trx.touched.insert(key.clone());
        trx.ranges |= trx.isolation == Isolation::Serializable;
        let seed = self.seed;
        match outcome {
            Ok(true) => {
                assert!(!surely && !stale, "seed {seed}: {key:?} locked though another wrote it");
                assert_eq!(Some(value), newest, "seed {seed}: {key:?} {mode:?}");
                if self.rng.random_bool(0.3) {
                    self.engine.trees[key.0].unlock(&mut self.running[me].trx, &key.1);
                }
            }
            Ok(false) => {
                let skipped = wait == LockWait::SkipLocked && maybe;
                assert!(newest.is_none() && !surely || skipped, "seed {seed}: {key:?} not found");
            }
            Err(Error::LockNoWait) => assert!(maybe && wait == LockWait::NoWait, "seed {seed}"),
            Err(Error::LockWaitTimeout) => assert!(maybe && wait == LockWait::Wait, "seed {seed}"),
            Err(Error::RecordChanged) => {
                assert!(stale, "seed {seed}: {key:?} is refused without a reason");
                return self.roll_back(me);
            }
            Err(error) => self.disk_error("locking get", &error)?,
        }
        Ok(())
    }

    /// Locks a few entries in order, passing over what others have locked.
    fn locking_scan(&mut self, me: usize) -> Flow {
        let (tree, start) = self.random_key();
        let forward = self.rng.random_bool(0.6);
        let direction = if forward { Direction::Forward } else { Direction::Backward };
        let mut newest = self.model.current.clone();
        apply(&mut newest, &self.running[me].changes);
        let mut position = ScanPosition::at(Bound::Included(&start));
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut last: Option<Vec<u8>> = None;
        for _ in 0..self.rng.random_range(1..12) {
            let trx = &mut self.running[me];
            trx.ranges |= trx.isolation == Isolation::Serializable;
            let found = lock_next(
                &mut trx.trx,
                &self.engine.trees[tree],
                &mut position,
                (direction, LockMode::Exclusive, LockWait::SkipLocked),
                (&mut key, &mut value),
            );
            let seed = self.seed;
            let to = match found {
                Ok(true) => Some(key.clone()),
                Ok(false) => None,
                Err(Error::RecordChanged) => {
                    let any = (0..TREES as usize).any(|_| {
                        self.model
                            .changed_at
                            .keys()
                            .any(|key| key.0 == tree && self.is_stale(me, key))
                    });
                    assert!(any, "seed {seed}: refused without a reason");
                    return self.roll_back(me);
                }
                Err(error) => {
                    // Locked by now, but its long value could not be read.
                    self.running[me].touched.insert((tree, key));
                    return self.disk_error("locking scan", &error);
                }
            };
            // Everything that was passed is locked by others.
            for passed in newest.keys().filter(|(at, _)| *at == tree) {
                let behind = match (&last, forward) {
                    (Some(last), true) => passed.1 > *last,
                    (Some(last), false) => passed.1 < *last,
                    (None, true) => passed.1 >= start,
                    (None, false) => passed.1 <= start,
                };
                let before = match (&to, forward) {
                    (Some(to), true) => passed.1 < *to,
                    (Some(to), false) => passed.1 > *to,
                    (None, _) => true,
                };
                if behind && before {
                    assert!(self.others(me, passed).1, "seed {seed}: {passed:?} was passed over");
                }
            }
            let Some(to) = to else { return Ok(()) };
            let at = (tree, to.clone());
            assert!(!self.others(me, &at).0, "seed {seed}: {at:?} is locked by two");
            assert_eq!(newest.get(&at), Some(&value), "seed {seed}: {at:?}");
            self.running[me].touched.insert(at);
            last = Some(to);
        }
        Ok(())
    }

    /// Locks a few entries in order, and is shown those that others have locked as they were
    /// committed last.
    fn peeking_scan(&mut self, me: usize) -> Flow {
        if self.running[me].isolation != Isolation::ReadCommitted {
            return Ok(());
        }
        let (tree, start) = self.random_key();
        let forward = self.rng.random_bool(0.6);
        let direction = if forward { Direction::Forward } else { Direction::Backward };
        let mut newest = self.model.current.clone();
        apply(&mut newest, &self.running[me].changes);
        let wanted: Vec<(Vec<u8>, Vec<u8>)> = {
            let of_tree = newest.into_iter().filter(|(at, _)| at.0 == tree);
            let of_tree = of_tree.map(|((_, key), value)| (key, value));
            match forward {
                true => of_tree.filter(|(key, _)| *key >= start).collect(),
                false => {
                    let below: Vec<_> = of_tree.filter(|(key, _)| *key <= start).collect();
                    below.into_iter().rev().collect()
                }
            }
        };
        let mut wanted = wanted.into_iter();
        let mut position = ScanPosition::at(Bound::Included(&start));
        let (mut key, mut value) = (Vec::new(), Vec::new());
        self.running[me].trx.begin_statement();
        let mut outcome = Ok(());
        for _ in 0..self.rng.random_range(1..12) {
            let found = lock_next_or_peek(
                &mut self.running[me].trx,
                &self.engine.trees[tree],
                &mut position,
                (direction, LockMode::Exclusive),
                (&mut key, &mut value),
            );
            let seed = self.seed;
            let found = match found {
                Ok(Peek::End) => {
                    assert_eq!(wanted.next(), None, "seed {seed}: passed over");
                    break;
                }
                Ok(found) => found,
                Err(error) => {
                    // Locked by now, perhaps, but its long value could not be read.
                    self.running[me].touched.insert((tree, key));
                    outcome = self.disk_error("peeking scan", &error);
                    break;
                }
            };
            assert_eq!(wanted.next(), Some((key.clone(), value.clone())), "seed {seed}");
            let at = (tree, key.clone());
            let (surely, maybe) = self.others(me, &at);
            match found {
                Peek::Locked => {
                    assert!(!surely, "seed {seed}: {at:?} is locked by two");
                    self.running[me].touched.insert(at);
                }
                _ => assert!(maybe, "seed {seed}: {at:?} is not locked by anybody"),
            }
        }
        self.running[me].trx.end_statement();
        outcome
    }

    fn savepoint(&mut self, me: usize) -> Flow {
        let trx = &mut self.running[me];
        if trx.savepoints.is_empty() || self.rng.random_bool(0.5) {
            trx.savepoints.push((trx.trx.savepoint(), trx.changes.clone()));
            return Ok(());
        }
        let at = self.rng.random_range(0..trx.savepoints.len());
        trx.savepoints.truncate(at + 1);
        let (savepoint, changes) = trx.savepoints[at].clone();
        match trx.trx.rollback_to(savepoint) {
            Ok(_) => {
                note(self.seen, "rollback to savepoint");
                trx.changes = changes;
            }
            Err(error) => {
                self.disk_error("rollback to savepoint", &error)?;
                return self.roll_back(me);
            }
        }
        Ok(())
    }

    fn roll_back(&mut self, me: usize) -> Flow {
        let mut trx = self.running.swap_remove(me);
        if let Err(error) = trx.trx.rollback() {
            self.zombies = true;
            note(self.seen, "rollback left");
            self.disk_error("rollback", &error)?;
        }
        note(self.seen, "rollback");
        Ok(())
    }

    fn commit(&mut self, me: usize) -> Flow {
        let mut trx = self.running.swap_remove(me);
        let wrote = trx.trx.has_writes();
        assert!(wrote || trx.changes.is_empty());
        match trx.trx.commit_no_flush() {
            Ok(lsn) => {
                assert_eq!(wrote, lsn != Lsn::ZERO);
                if wrote {
                    note(self.seen, "commit");
                    self.model.commit(lsn, trx.changes);
                    if self.rng.random_bool(0.7) {
                        self.flush(lsn)?;
                    }
                }
            }
            Err(error) => {
                self.disk_error("commit", &error)?;
                if let Err(error) = trx.trx.rollback() {
                    self.zombies = true;
                    self.disk_error("rollback", &error)?;
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self, lsn: Lsn) -> Flow {
        match self.engine.env.flush_log(lsn) {
            Ok(()) => {
                self.model.acknowledged = self.model.acknowledged.max(lsn);
                Ok(())
            }
            Err(error) => self.disk_error("flush", &error),
        }
    }

    fn prepare(&mut self, me: usize) -> Flow {
        let mut trx = self.running.swap_remove(me);
        self.model.next_xid += 1;
        let xid = format!("xid {}", self.model.next_xid).into_bytes();
        let outcome = trx.trx.prepare(&xid);
        let certain = outcome.is_ok();
        if let Err(error) = outcome {
            if self.storage.is_down() {
                let changes = trx.changes;
                self.model.prepared.insert(xid, Prepared { changes, certain, ended: None });
            }
            self.disk_error("prepare", &error)?;
            assert!(!trx.trx.is_prepared());
            if let Err(error) = trx.trx.rollback() {
                self.zombies = true;
                self.disk_error("rollback", &error)?;
            }
            return Ok(());
        }
        self.model.prepared.insert(xid, Prepared { changes: trx.changes, certain, ended: None });
        trx.trx.detach();
        note(self.seen, "prepare");
        Ok(())
    }

    fn end_prepared(&mut self) -> Flow {
        let open =
            self.model.prepared.iter().filter(|(_, p)| p.ended.is_none()).map(|(xid, _)| xid);
        let Some(xid) = open.choose(self.rng).cloned() else { return Ok(()) };
        let mut trx = self.engine.system.take_prepared(&xid).expect("it is prepared");
        let prepared = self.model.prepared.get_mut(&xid).expect("just found");
        if self.rng.random_bool(0.5) {
            match trx.commit_no_flush() {
                Ok(lsn) => {
                    prepared.ended = Some(Some(lsn));
                    let changes = prepared.changes.clone();
                    self.model.commit(lsn, changes);
                }
                // Dropped here, it stays prepared.
                Err(error) => return self.disk_error("commit of a prepared", &error),
            }
        } else {
            prepared.ended = Some(None);
            if let Err(error) = trx.rollback() {
                self.zombies = true;
                self.disk_error("rollback of a prepared", &error)?;
            }
        }
        Ok(())
    }

    fn background(&mut self) -> Flow {
        let env = &self.engine.env;
        let outcome = match self.rng.random_range(0..100) {
            0..45 => self.engine.system.purge_step(self.rng.random_range(1..5)).map(|_| ()),
            45..60 => env.step_checkpoint(Duration::from_millis(self.rng.random_range(1..2000))),
            60..70 => env.pool().run_cleaner_step().map(|_| ()).map_err(Error::from),
            70..80 => {
                env.pool().run_evictor_step();
                Ok(())
            }
            80..83 => env.checkpoint_all().map(|_| ()),
            83..84 => {
                env.pool().set_tier_share(self.rng.random_range(0..400));
                Ok(())
            }
            84..90 => env.redo().flush().map(|()| {
                let all = self.model.commits.iter().map(|(lsn, _)| *lsn).max();
                self.model.acknowledged = self.model.acknowledged.max(all.unwrap_or_default());
            }),
            90..93 => {
                let least = self.rng.random_range(1..20);
                let gone = self.engine.system.undo.shrink(least);
                gone.map(|gone| {
                    *self.seen.entry("undo page given back").or_default() += u64::from(gone)
                })
            }
            _ => self.engine.system.rollback_step().map(|_| ()),
        };
        if let Err(error) = outcome {
            self.disk_error("background", &error)?;
        }
        self.zombies = self.engine.system.status().rollbacks_pending > 0;
        Ok(())
    }

    fn trouble(&mut self) {
        if self.faulty {
            self.storage.clear_faults();
            self.storage.set_error_chance(StorageOp::Read, FaultKind::Io, 0);
            self.storage.set_capacity(None);
            self.faulty = false;
        } else if self.rng.random_bool(0.5) {
            // The last is a disk that is not there: what is not in memory can't be had, however
            // often it is tried.
            let chance = [50_000, 200_000, 1_000_000][self.rng.random_range(0..3)];
            self.storage.set_error_chance(StorageOp::Read, FaultKind::Io, chance);
            self.faulty = true;
        } else {
            let room = self.rng.random_range(0..20_000);
            // Half of the time, another program has taken what the ballast had released.
            if self.rng.random_bool(0.5)
                && let Some(ballast) = self.engine.env.ballast()
            {
                ballast.release();
            }
            // The log waits for space if mini-transactions have outrun its files, and here the only
            // thread waits with it.
            self.storage.set_capacity_until(self.storage.used_bytes() + room, 100);
            self.faulty = true;
        }
    }

    fn step(&mut self) -> Flow {
        if self.running.is_empty() || self.running.len() < self.most && self.rng.random_bool(0.1) {
            self.begin();
        }
        let me = self.rng.random_range(0..self.running.len());
        if self.rng.random_range(0..1000) < self.ends {
            return match self.rng.random_range(0..10) {
                0..6 => self.commit(me),
                6..9 => self.roll_back(me),
                _ => self.prepare(me),
            };
        }
        match self.rng.random_range(0..1000) {
            0..400 => self.write(me),
            400..480 => self.get(me),
            480..530 => self.scan(me),
            530..590 => self.locking_get(me),
            590..610 => self.locking_scan(me),
            610..620 => self.peeking_scan(me),
            620..670 => self.savepoint(me),
            670..675 => self.bulk_insert(me),
            675..690 => self.end_prepared(),
            690..695 => {
                self.trouble();
                Ok(())
            }
            _ => self.background(),
        }
    }

    /// Everything ends, and the engine is looked over from end to end.
    fn settle(&mut self) -> Flow {
        if self.faulty {
            self.trouble();
        }
        while !self.running.is_empty() {
            let me = self.rng.random_range(0..self.running.len());
            if self.rng.random_bool(0.5) { self.commit(me)? } else { self.roll_back(me)? }
        }
        while self.model.prepared.values().any(|p| p.ended.is_none()) {
            self.end_prepared()?;
        }
        if let Err(error) = self.engine.settle().and_then(|()| self.engine.check_settled()) {
            self.disk_error("settling", &error)?;
        }
        self.zombies = false;
        note(self.seen, "settled");
        Ok(())
    }
}

/// Compares what recovery made with the model.
fn check_recovered(engine: &Engine, model: &mut Model, seed: u64) -> Result<()> {
    let recovered = engine.env.recovered_lsn();
    assert!(recovered >= model.acknowledged, "seed {seed}: acknowledged commits are lost");
    let mut expected = model.base.clone();
    for (_, changes) in model.commits.iter().take_while(|(lsn, _)| *lsn <= recovered) {
        apply(&mut expected, changes);
    }
    for tree in 0..TREES as usize {
        let found = engine.contents(tree)?;
        let wanted: BTreeMap<Vec<u8>, Vec<u8>> = expected
            .iter()
            .filter(|(key, _)| key.0 == tree)
            .map(|(key, value)| (key.1.clone(), value.clone()))
            .collect();
        for (key, value) in &wanted {
            let name = String::from_utf8_lossy(key);
            assert!(
                found.get(key) == Some(value),
                "seed {seed}: tree {tree}: {name} is lost or wrong"
            );
        }
        assert_eq!(
            found.len(),
            wanted.len(),
            "seed {seed}: tree {tree} has rows that no transaction committed"
        );
    }
    let xids: BTreeSet<Vec<u8>> = engine.system.recovered_xids().into_iter().collect();
    let mut prepared = BTreeMap::new();
    for (xid, was) in std::mem::take(&mut model.prepared) {
        let name = String::from_utf8_lossy(&xid).into_owned();
        match was.ended {
            Some(Some(lsn)) => {
                assert_eq!(lsn > recovered, xids.contains(&xid), "seed {seed}: {name}");
            }
            // A rollback is not waited for.
            Some(None) => {}
            None => {
                assert!(!was.certain || xids.contains(&xid), "seed {seed}: {name} is not prepared");
            }
        }
        if xids.contains(&xid) {
            let changes = was.changes;
            prepared.insert(xid, Prepared { changes, certain: true, ended: None });
        }
    }
    assert!(xids.iter().all(|xid| prepared.contains_key(xid)), "seed {seed}: an unknown XID");
    model.prepared = prepared;
    model.base = expected.clone();
    model.current = expected;
    model.commits.clear();
    model.changed_at.clear();
    model.acknowledged = recovered;
    Ok(())
}

/// The keys of the lives that are encrypted.
fn encryption_keys() -> Arc<Keys> {
    let ring = MemoryKeyring::default();
    ring.insert(1, 1, vec![1; 32]);
    Arc::new(Keys::new(Arc::new(ring)))
}

fn run(seed: u64, seen: &mut Seen) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut storage = SimStorage::new(seed);
    let mut model = Model::default();
    // Most with the smallest: the smaller the pages, the more of them.
    let page_size = if rng.random() { 4096 } else { 4096 << rng.random_range(1..5) };
    let options =
        EnvOptions { page_size, buffer_pool_size_bytes: 64 * page_size as u64, ..options() };
    let options = match seed % 3 {
        0 => EnvOptions { keys: Some(encryption_keys()), encrypt_log: true, ..options },
        _ => options,
    };
    drop(Engine::create(&storage, &options));
    storage = storage.crash();
    let lives = rng.random_range(2..6);
    let keys = [4, 20, 60, 400][rng.random_range(0..4)];
    let long_pct = [3, 10, 50][rng.random_range(0..3)];
    let most = [1, 3, 6][rng.random_range(0..3)];
    let ends = [15, 60, 150][rng.random_range(0..3)];
    for life in 0..=lives {
        let last = life == lives;
        let kill = rng.random_bool(0.3);
        let down = |storage: &SimStorage| match kill && storage.is_down() {
            true => storage.kill(),
            false => storage.crash(),
        };
        if !last && rng.random_bool(0.7) {
            let most = [30, 300, 3000][rng.random_range(0..3)];
            let at = storage.operation_count() + rng.random_range(1..most);
            if kill { storage.kill_at(at) } else { storage.crash_at(at) }
        }
        let opened = Engine::open(&storage, &options)
            .and_then(|engine| check_recovered(&engine, &mut model, seed).map(|()| engine));
        let engine = match opened {
            Ok(engine) => engine,
            Err(error) => {
                assert!(storage.is_down(), "seed {seed}: {error}");
                note(seen, "crash in recovery");
                storage = down(&storage);
                continue;
            }
        };
        let status = engine.system.status();
        let zombies = status.rollbacks_pending > 0;
        for (what, n) in [
            ("recovered to roll back", status.rollbacks_pending),
            ("recovered prepared", status.prepared),
            ("recovered history", status.history_len),
        ] {
            *seen.entry(what).or_default() += n;
        }
        let mut sim = Sim {
            seed,
            rng: &mut rng,
            storage: &storage,
            engine: &engine,
            model: &mut model,
            running: Vec::new(),
            keys,
            long_pct,
            most,
            ends,
            faulty: false,
            zombies,
            seen: &mut *seen,
            paced: None,
        };
        // Half of the lives have compressed pages from the start.
        if sim.rng.random_bool(0.5) {
            engine.env.pool().set_tier_share(sim.rng.random_range(100..500));
        }
        let steps = sim.rng.random_range(1..600);
        let mut flow = sim.keep_pace().and_then(|()| (0..steps).try_for_each(|_| sim.step()));
        if flow.is_ok() && (last || sim.rng.random_bool(0.4)) {
            flow = sim.settle();
        }
        let status = engine.system.status();
        *sim.seen.entry("purged entry").or_default() += status.purged_entries;
        *sim.seen.entry("settled entry").or_default() += status.settled_entries;
        let tier = engine.env.pool().tier_stats();
        *sim.seen.entry("compressed page found").or_default() += tier.hits;
        // What runs is cut off by the crash, not rolled back by a drop.
        let running = std::mem::take(&mut sim.running);
        storage.clear_faults();
        storage.set_error_chance(StorageOp::Read, FaultKind::Io, 0);
        storage.set_capacity(None);
        let mut next = match (flow, rng.random_range(0..4)) {
            (Err(()), _) => down(&storage),
            // The cut came in a step whose failure is not reported.
            _ if storage.is_down() => down(&storage),
            (Ok(()), 0) => {
                drop(running);
                let shrunk = rng.random_bool(0.5) && engine.system.undo.shrink(1).is_ok();
                if engine.env.close().is_ok() {
                    if shrunk && !storage.is_down() {
                        engine.check_undo_file();
                    }
                    let all = model.commits.iter().map(|(lsn, _)| *lsn).max();
                    model.acknowledged = model.acknowledged.max(all.unwrap_or_default());
                }
                if storage.is_down() { down(&storage) } else { storage.kill() }
            }
            (Ok(()), 1) => storage.kill(),
            (Ok(()), _) => storage.crash(),
        };
        std::mem::swap(&mut storage, &mut next);
    }
}

#[test]
fn any_history_with_crashes_matches_the_model() {
    let mut seen = Seen::new();
    let seeds = seeds(80);
    let enough = seeds.end - seeds.start >= 80;
    for seed in seeds {
        run(seed, &mut seen);
    }
    for what in [
        "insert",
        "update",
        "delete",
        "long value",
        "lock wait",
        "duplicate",
        "record changed",
        "commit",
        "rollback",
        "rollback left",
        "rollback to savepoint",
        "prepare",
        "settled",
        "read error",
        "disk full",
        "crash in recovery",
        "recovered to roll back",
        "recovered prepared",
        "recovered history",
        "purged entry",
        "settled entry",
        "undo page given back",
        "compressed page found",
    ] {
        assert!(
            !enough || seen.get(what).is_some_and(|times| *times > 0),
            "{what} never happened: {seen:?}"
        );
    }
    println!("{seen:?}");
}
