//! Transactions over real pages: what each operation does, alone and against others.

mod churn;
mod hinted;
mod patience;
mod races;
mod settled;
mod shrink;
mod simulation;
mod skips;
mod streams;
mod stress;
mod unfinished;
mod walks;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use tidepool_pool::Access;
use tidepool_pool::storage::{Fault, FaultKind, SimStorage, StorageOp};

use super::*;
use crate::env::{Env, EnvOptions};
use crate::error::{Error, Result};
use crate::files::{FIRST_TABLE_SPACE, UNDO_SPACE};
use crate::format::entry::Entry;
use crate::format::node::Node;
use crate::format::space_header;
use crate::lock::{LockMode, LockWait};
use crate::mtr::Mtr;
use crate::space;
use crate::versioned::{
    Batch, Direction, LockRequest, LockedEntry, LongValues, Peek, ReadRequest, ScanPosition,
    ScanRequest, VersionedTree,
};

/// An engine with a few trees in one space.
pub(super) struct Engine {
    pub env: Arc<Env>,
    pub system: Arc<TrxSystem>,
    pub trees: Vec<VersionedTree>,
}

pub(super) const TREES: u32 = 3;
const FIRST_TREE: u32 = 100;

impl Engine {
    /// Makes a new one, with everything on disk.
    pub fn create(storage: &SimStorage, options: &EnvOptions) -> Engine {
        let env = Env::open(Arc::new(storage.clone()), options).unwrap();
        let system = TrxSystem::create(&env).unwrap();
        // With keys, all is encrypted.
        let key = options.keys.as_ref().map(|keys| keys.newest_page_key(1).unwrap());
        if key.is_some() {
            let undo = env.space(UNDO_SPACE).unwrap();
            undo.file().encrypt_with(key.clone());
            undo.file().checkpoint().unwrap();
        }
        let space = env.create_encrypted_space(FIRST_TABLE_SPACE, key).unwrap();
        let mut mtr = Mtr::begin(&env).unwrap();
        space::create(&mut mtr, &env, &space).unwrap();
        mtr.commit();
        for tree in 0..TREES {
            let mut mtr = Mtr::begin(&env).unwrap();
            let root = VersionedTree::create(&mut mtr, &env, &space, FIRST_TREE + tree).unwrap();
            mtr.commit();
            assert_eq!(root, 2 + tree);
        }
        env.redo().flush().unwrap();
        Engine::of(env, system).unwrap()
    }

    /// Opens what [`Engine::create`] made.
    pub fn open(storage: &SimStorage, options: &EnvOptions) -> Result<Engine> {
        let env = Env::open(Arc::new(storage.clone()), options)?;
        let system = TrxSystem::open(&env)?;
        Engine::of(env, system)
    }

    fn of(env: Arc<Env>, system: Arc<TrxSystem>) -> Result<Engine> {
        let space = env.space(FIRST_TABLE_SPACE)?;
        let open =
            |tree| VersionedTree::open(&env, &space, 2 + tree, FIRST_TREE + tree, tree as usize);
        let trees = (0..TREES).map(open).collect();
        // No back-off takes time: what is tried again is tried at once.
        system.settings.retry_pause_us.store(0, Ordering::Relaxed);
        Ok(Engine { env, system, trees })
    }

    pub fn begin(&self, isolation: Isolation) -> TransactionCore {
        let mut trx = self.system.begin(TransactionOptions { isolation, read_only: false });
        trx.set_lock_wait_timeout(Duration::ZERO);
        trx
    }

    /// Finishes all rollbacks and purges everything; nothing may be running.
    pub fn settle(&self) -> Result<()> {
        while self.system.rollback_step()? {}
        while self.system.purge_step(10)? > 0 {}
        Ok(())
    }

    /// What a separate transaction reads of a tree.
    pub fn contents(&self, tree: usize) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut trx = self.begin(Isolation::RepeatableRead);
        let found = scan_all(&mut trx, &self.trees[tree], Direction::Forward)?;
        trx.commit()?;
        Ok(found.into_iter().collect())
    }

    /// Verifies every page of a settled engine: trees are sound, nothing is delete-marked, nothing
    /// is allocated that nothing leads to.
    pub fn check_settled(&self) -> Result<()> {
        assert_eq!(self.system.status().history_len, 0);
        assert_eq!(self.system.status().active_writers, 0, "{:?}", self.system.status());
        let locks = &self.system.locks;
        assert!(locks.keys.is_empty() && locks.ranges.is_empty() && locks.compact.is_empty());
        let space = self.env.space(FIRST_TABLE_SPACE)?;
        let mut reached = BTreeSet::from([0, 1]);
        for tree in &self.trees {
            let mut chains = Vec::new();
            let report = tree.tree().check(&mut |leaf, _| {
                for slot in 0..leaf.count() {
                    let entry = Entry::decode(leaf.payload(slot)).expect("a versioned entry");
                    assert!(!entry.is_deleted(), "a delete-mark that purge has left");
                    chains.extend(entry.overflow().map(|o| o.first_page));
                }
                Ok(())
            })?;
            let tree = tree.tree();
            for &page in &report.pages {
                assert!(
                    reached.insert(page),
                    "page {page} of {tree:?} is in two trees: {report:?}"
                );
            }
            for mut page in chains {
                while page != 0 {
                    assert!(reached.insert(page), "page {page} is reached twice");
                    let bytes = self.env.pool().shared(&space, page, Access::Normal)?;
                    page = u32::from_le_bytes(bytes[32..36].try_into().expect("four bytes"));
                }
            }
        }
        let allocated = space::allocated_pages(&self.env, &space)?;
        assert_eq!(allocated, reached.into_iter().collect::<Vec<_>>(), "leaked or missing pages");
        let mut undo = vec![0, 1];
        undo.extend(self.system.undo.pages()?);
        let allocated = space::allocated_pages(&self.env, self.system.undo.space())?;
        assert_eq!(allocated, undo, "leaked or missing undo pages");
        Ok(())
    }

    /// Of an engine that was closed when nothing more could be given back: the undo space ends with
    /// a page in use, or is as short as they come, and its file has no page behind that.
    pub fn check_undo_file(&self) {
        let undo = self.system.undo.space();
        let end = undo.file().end(undo.id()).unwrap();
        let size = space_header::read(self.env.pool(), undo).unwrap().size_pages;
        assert!(end <= size, "page {} of {size}", end - 1);
        let last = space::allocated_pages(&self.env, undo).unwrap().pop();
        assert!(size == 8 || last == Some(size - 1), "{size} pages, the last in use is {last:?}");
    }
}

/// Everything a transaction's consistent read sees of a tree, in ascending order.
pub(super) fn scan_all(
    trx: &mut TransactionCore,
    tree: &VersionedTree,
    direction: Direction,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut position = match direction {
        Direction::Forward => ScanPosition::start(),
        Direction::Backward => ScanPosition::end(),
    };
    let (mut batch, mut all) = (Batch::default(), Vec::new());
    while !position.at_end() {
        batch.clear();
        tree.scan(trx, &mut position, scan_request(direction, 7), &mut batch)?;
        all.extend((0..batch.len()).map(|at| (batch.key(at).to_vec(), batch.value(at).to_vec())));
    }
    if direction == Direction::Backward {
        all.reverse();
    }
    assert!(all.is_sorted_by(|a, b| a.0 < b.0), "a scan in disorder");
    Ok(all)
}

pub(super) fn options() -> EnvOptions {
    EnvOptions { page_size: 4096, buffer_pool_size_bytes: 64 * 4096, ..EnvOptions::small() }
}

/// A step of a scan that reads whole values.
fn scan_request(direction: Direction, rows: usize) -> ScanRequest {
    ScanRequest { direction, rows, access: Access::Normal, long_values: LongValues::Whole }
}

/// [`VersionedTree::lock_next`] into a key and a value apart.
fn lock_next(
    trx: &mut TransactionCore,
    tree: &VersionedTree,
    position: &mut ScanPosition,
    (direction, lock, wait): (Direction, LockMode, LockWait),
    (key, value): (&mut Vec<u8>, &mut Vec<u8>),
) -> Result<bool> {
    let request = LockRequest { direction, lock, wait, access: Access::Normal };
    let mut found = LockedEntry { key: take(key), value: take(value) };
    let outcome = tree.lock_next(trx, position, request, &mut found);
    (*key, *value) = (found.key, found.value);
    outcome
}

/// [`VersionedTree::lock_next_or_peek`] into a key and a value apart.
fn lock_next_or_peek(
    trx: &mut TransactionCore,
    tree: &VersionedTree,
    position: &mut ScanPosition,
    (direction, lock): (Direction, LockMode),
    (key, value): (&mut Vec<u8>, &mut Vec<u8>),
) -> Result<Peek> {
    let (wait, access) = (LockWait::NoWait, Access::Normal);
    let request = LockRequest { direction, lock, wait, access };
    let mut found = LockedEntry { key: take(key), value: take(value) };
    let outcome = tree.lock_next_or_peek(trx, position, request, &mut found);
    (*key, *value) = (found.key, found.value);
    outcome
}

fn engine() -> Engine {
    Engine::create(&SimStorage::new(1), &options())
}

fn get(trx: &mut TransactionCore, tree: &VersionedTree, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    tree.read(trx, ReadRequest::new(key, &mut value)).unwrap().then_some(value)
}

fn put(engine: &Engine, key: &[u8], value: &[u8]) {
    let mut trx = engine.begin(Isolation::ReadCommitted);
    let tree = &engine.trees[0];
    match tree.insert(&mut trx, key, value, LockMode::Exclusive) {
        Err(Error::DuplicateKey { .. }) => tree.update(&mut trx, key, value).unwrap(),
        other => other.unwrap(),
    }
    trx.commit().unwrap();
}

use Isolation::{ReadCommitted, RepeatableRead, Serializable};

#[test]
fn a_transaction_sees_itself_others_see_it_after_its_commit() {
    let engine = engine();
    let tree = &engine.trees[0];
    let mut writer = engine.begin(RepeatableRead);
    let mut reader = engine.begin(RepeatableRead);
    tree.insert(&mut writer, b"k", b"one", LockMode::None).unwrap();
    assert_eq!(get(&mut writer, tree, b"k").unwrap(), b"one");
    assert_eq!(get(&mut reader, tree, b"k"), None);
    writer.commit().unwrap();
    assert_eq!(get(&mut reader, tree, b"k"), None, "a snapshot does not move");
    reader.commit().unwrap();
    assert_eq!(get(&mut engine.begin(RepeatableRead), tree, b"k").unwrap(), b"one");
}

#[test]
fn read_committed_moves_with_the_statement() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"one");
    let mut reader = engine.begin(ReadCommitted);
    reader.begin_statement();
    assert_eq!(get(&mut reader, tree, b"k").unwrap(), b"one");
    put(&engine, b"k", b"two");
    assert_eq!(get(&mut reader, tree, b"k").unwrap(), b"one");
    reader.end_statement();
    reader.begin_statement();
    assert_eq!(get(&mut reader, tree, b"k").unwrap(), b"two");
}

#[test]
fn a_rollback_restores_every_version() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"a", b"old a");
    put(&engine, b"b", b"old b");
    let mut trx = engine.begin(RepeatableRead);
    tree.update(&mut trx, b"a", b"new a").unwrap();
    tree.update(&mut trx, b"a", b"newer a").unwrap();
    tree.delete(&mut trx, b"b").unwrap();
    tree.insert(&mut trx, b"b", b"another b", LockMode::None).unwrap();
    tree.insert(&mut trx, b"c", b"c", LockMode::None).unwrap();
    assert_eq!(trx.undo_records(), 5);
    trx.rollback().unwrap();
    let contents = engine.contents(0).unwrap();
    let expected =
        BTreeMap::from([(b"a".to_vec(), b"old a".to_vec()), (b"b".to_vec(), b"old b".to_vec())]);
    assert_eq!(contents, expected);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn a_savepoint_undoes_what_came_after_it() {
    let engine = engine();
    let tree = &engine.trees[0];
    let mut trx = engine.begin(RepeatableRead);
    let start = trx.savepoint();
    tree.insert(&mut trx, b"a", b"1", LockMode::None).unwrap();
    let middle = trx.savepoint();
    // Enough for several undo pages.
    for n in 0..200u32 {
        tree.insert(&mut trx, format!("b{n}").as_bytes(), &[7; 100], LockMode::None).unwrap();
        tree.update(&mut trx, b"a", &n.to_le_bytes()).unwrap();
    }
    trx.rollback_to(middle).unwrap();
    assert_eq!(get(&mut trx, tree, b"a").unwrap(), b"1");
    assert_eq!(get(&mut trx, tree, b"b7"), None);
    tree.insert(&mut trx, b"c", b"3", LockMode::None).unwrap();
    trx.rollback_to(start).unwrap();
    tree.insert(&mut trx, b"d", b"4", LockMode::None).unwrap();
    trx.commit().unwrap();
    let only = BTreeMap::from([(b"d".to_vec(), b"4".to_vec())]);
    assert_eq!(engine.contents(0).unwrap(), only);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn duplicates_are_told_with_their_value_and_locked_as_asked() {
    let engine = engine();
    let tree = &engine.trees[1];
    let mut trx = engine.begin(ReadCommitted);
    let long = vec![9; 20_000];
    tree.insert(&mut trx, b"k", &long, LockMode::None).unwrap();
    trx.commit().unwrap();
    let mut other = engine.begin(ReadCommitted);
    let error = tree.insert(&mut other, b"k", b"x", LockMode::Shared).unwrap_err();
    assert_eq!(error, Error::DuplicateKey { index: 1, value: long });
    let mut value = Vec::new();
    let mut third = engine.begin(ReadCommitted);
    assert!(
        tree.read(
            &mut third,
            ReadRequest::new(b"k", &mut value).locked(LockMode::Shared, LockWait::NoWait)
        )
        .unwrap()
    );
    let exclusive = tree.read(
        &mut third,
        ReadRequest::new(b"k", &mut value).locked(LockMode::Exclusive, LockWait::NoWait),
    );
    assert_eq!(exclusive, Err(Error::LockNoWait));
    assert!(
        !tree
            .read(
                &mut third,
                ReadRequest::new(b"k", &mut value)
                    .locked(LockMode::Exclusive, LockWait::SkipLocked)
            )
            .unwrap()
    );
    // A second insert of the same needs no more than to know that it is there.
    assert!(matches!(
        tree.insert(&mut third, b"k", b"y", LockMode::Shared),
        Err(Error::DuplicateKey { .. })
    ));
    other.rollback().unwrap();
    third.rollback().unwrap();
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn a_lost_update_is_refused_at_repeatable_read_only() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"one");
    put(&engine, b"gone", b"one");
    let mut value = Vec::new();
    for lost_update_check in [true, false] {
        engine.system.set_lost_update_check(lost_update_check);
        let mut old = engine.begin(RepeatableRead);
        old.ensure_view();
        let mut committed = engine.begin(ReadCommitted);
        committed.ensure_view();
        let mut blind = engine.begin(RepeatableRead);
        put(&engine, b"k", b"two");
        let outcome = tree.read(
            &mut old,
            ReadRequest::new(b"k", &mut value).locked(LockMode::Exclusive, LockWait::NoWait),
        );
        if lost_update_check {
            assert_eq!(outcome, Err(Error::RecordChanged));
            assert!(old.must_rollback());
            assert_eq!(tree.update(&mut old, b"k", b"three"), Err(Error::MustRollback));
            assert_eq!(old.commit(), Err(Error::MustRollback));
            old.rollback().unwrap();
        } else {
            assert_eq!(outcome, Ok(true));
            assert_eq!(value, b"two");
            drop(old);
        }
        // No view yet, and READ COMMITTED, see the newest.
        tree.update(&mut blind, b"k", b"four").unwrap();
        blind.commit().unwrap();
        tree.update(&mut committed, b"k", b"five").unwrap();
        committed.commit().unwrap();
    }
    engine.system.set_lost_update_check(true);
    let mut old = engine.begin(RepeatableRead);
    old.ensure_view();
    let mut deleter = engine.begin(RepeatableRead);
    tree.delete(&mut deleter, b"gone").unwrap();
    deleter.commit().unwrap();
    while engine.system.purge_step(10).unwrap() > 0 {}
    assert_eq!(get(&mut old, tree, b"gone").unwrap(), b"one");
    assert_eq!(tree.insert(&mut old, b"gone", b"x", LockMode::None), Err(Error::RecordChanged));
}

#[test]
fn writers_wait_for_each_other_and_the_next_gets_the_lock() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"0");
    let mut first = engine.begin(ReadCommitted);
    tree.update(&mut first, b"k", b"1").unwrap();
    let mut refused = engine.begin(ReadCommitted);
    assert_eq!(tree.update(&mut refused, b"k", b"x"), Err(Error::LockWaitTimeout));
    assert_eq!(tree.insert(&mut refused, b"k", b"x", LockMode::None), Err(Error::LockWaitTimeout));
    assert_eq!(tree.delete(&mut refused, b"k"), Err(Error::LockWaitTimeout));
    tree.insert(&mut refused, b"other", b"still usable", LockMode::None).unwrap();
    refused.commit().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut second = engine.begin(ReadCommitted);
            second.set_lock_wait_timeout(Duration::from_secs(60));
            tree.update(&mut second, b"k", b"2")?;
            second.commit()
        });
        while engine.system.status().lock_waits_current == 0 {
            thread::yield_now();
        }
        first.commit().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(engine.contents(0).unwrap()[&b"k"[..]], b"2");
    assert!(engine.system.locks.keys.is_empty());
}

#[test]
fn an_insert_that_waited_for_a_rollback_succeeds() {
    let engine = engine();
    let tree = &engine.trees[0];
    let mut first = engine.begin(ReadCommitted);
    tree.insert(&mut first, b"k", b"1", LockMode::None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut second = engine.begin(ReadCommitted);
            second.set_lock_wait_timeout(Duration::from_secs(60));
            tree.insert(&mut second, b"k", b"2", LockMode::None)?;
            second.commit()
        });
        while engine.system.status().lock_waits_current == 0 {
            thread::yield_now();
        }
        first.rollback().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(engine.contents(0).unwrap()[&b"k"[..]], b"2");
}

#[test]
fn a_deadlock_aborts_one_and_the_other_goes_on() {
    let engine = engine();
    let tree = &engine.trees[0];
    for key in [b"x", b"y", b"z"] {
        put(&engine, key, b"0");
    }
    let mut heavy = engine.begin(ReadCommitted);
    heavy.set_lock_wait_timeout(Duration::from_secs(60));
    tree.update(&mut heavy, b"x", b"1").unwrap();
    tree.update(&mut heavy, b"z", b"1").unwrap();
    thread::scope(|scope| {
        let light = scope.spawn(|| {
            let mut light = engine.begin(ReadCommitted);
            light.set_lock_wait_timeout(Duration::from_secs(60));
            tree.update(&mut light, b"y", b"2").unwrap();
            let outcome = tree.update(&mut light, b"x", b"2");
            assert_eq!(tree.update(&mut light, b"k", b"2"), Err(Error::MustRollback));
            light.rollback().unwrap();
            outcome
        });
        while engine.system.status().lock_waits_current == 0 {
            thread::yield_now();
        }
        tree.update(&mut heavy, b"y", b"1").unwrap();
        heavy.commit().unwrap();
        assert_eq!(light.join().unwrap(), Err(Error::Deadlock));
    });
    assert!(engine.contents(0).unwrap().values().all(|value| value == b"1"));
    assert_eq!(engine.system.status().deadlocks, 1);
}

#[test]
fn a_kill_ends_a_lock_wait() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"0");
    let mut first = engine.begin(ReadCommitted);
    tree.update(&mut first, b"k", b"1").unwrap();
    let mut second = engine.begin(ReadCommitted);
    second.set_lock_wait_timeout(Duration::from_secs(60));
    let interrupt = second.interrupt_handle();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| tree.update(&mut second, b"k", b"2"));
        while engine.system.status().lock_waits_current == 0 {
            thread::yield_now();
        }
        interrupt.interrupt();
        assert_eq!(waiter.join().unwrap(), Err(Error::Interrupted));
    });
}

#[test]
fn a_failed_sync_of_the_log_ends_a_lock_wait() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let tree = &engine.trees[0];
    put(&engine, b"k", b"0");
    let mut first = engine.begin(ReadCommitted);
    tree.update(&mut first, b"k", b"1").unwrap();
    let update = || {
        let mut second = engine.begin(ReadCommitted);
        second.set_lock_wait_timeout(Duration::from_secs(3600));
        tree.update(&mut second, b"k", b"2")
    };
    let lock = || {
        let mut reader = engine.begin(ReadCommitted);
        reader.set_lock_wait_timeout(Duration::from_secs(3600));
        tree.read(
            &mut reader,
            ReadRequest::new(b"k", &mut Vec::new()).locked(LockMode::Shared, LockWait::Wait),
        )
    };
    thread::scope(|scope| {
        let (writer, reader) = (scope.spawn(update), scope.spawn(lock));
        while engine.system.status().lock_waits_current < 2 {
            thread::yield_now();
        }
        storage.inject(Fault::new(StorageOp::Sync, FaultKind::Io).on("redo/redo"));
        let failed = engine.env.redo().flush().unwrap_err();
        assert!(matches!(failed, Error::Crashed(_)), "{failed}");
        assert_eq!(writer.join().unwrap(), Err(failed.clone()));
        assert_eq!(reader.join().unwrap(), Err(failed.clone()));
        assert_eq!(first.rollback(), Err(failed.clone()));
        // The locks stay, and no transaction begins to wait for them.
        assert_eq!((update(), lock()), (Err(failed.clone()), Err(failed)));
    });
}

#[test]
fn serializable_scans_keep_phantoms_away() {
    let engine = engine();
    let tree = &engine.trees[0];
    for key in ["b", "d", "f"] {
        put(&engine, key.as_bytes(), b"0");
    }
    let mut reader = engine.begin(Serializable);
    let mut position = ScanPosition::at(std::ops::Bound::Included(b"c"));
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut next = |reader: &mut TransactionCore| {
        let (mode, wait) = (LockMode::Shared, LockWait::Wait);
        let found = lock_next(
            reader,
            tree,
            &mut position,
            (Direction::Forward, mode, wait),
            (&mut key, &mut value),
        );
        found.unwrap().then(|| key.clone())
    };
    assert_eq!(next(&mut reader).unwrap(), b"d");
    let mut writer = engine.begin(ReadCommitted);
    assert_eq!(tree.insert(&mut writer, b"cc", b"", LockMode::None), Err(Error::LockWaitTimeout));
    assert_eq!(tree.update(&mut writer, b"d", b""), Err(Error::LockWaitTimeout));
    tree.insert(&mut writer, b"e", b"", LockMode::None).unwrap();
    writer.commit().unwrap();
    assert_eq!(next(&mut reader).unwrap(), b"e");
    assert_eq!(next(&mut reader).unwrap(), b"f");
    assert_eq!(next(&mut reader), None);
    let mut writer = engine.begin(ReadCommitted);
    assert_eq!(tree.insert(&mut writer, b"z", b"", LockMode::None), Err(Error::LockWaitTimeout));
    tree.insert(&mut writer, b"a", b"", LockMode::None).unwrap();
    drop(writer);
    // An absent key is locked as well.
    let mut value = Vec::new();
    assert!(
        !tree
            .read(
                &mut reader,
                ReadRequest::new(b"aa", &mut value).locked(LockMode::Shared, LockWait::Wait)
            )
            .unwrap()
    );
    let mut writer = engine.begin(ReadCommitted);
    assert_eq!(tree.insert(&mut writer, b"aa", b"", LockMode::None), Err(Error::LockWaitTimeout));
    reader.commit().unwrap();
    tree.insert(&mut writer, b"aa", b"", LockMode::None).unwrap();
    writer.commit().unwrap();
    assert!(engine.system.locks.ranges.is_empty());
}

#[test]
fn unlock_gives_up_only_what_the_last_read_locked() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"0");
    let mut value = Vec::new();
    let (mode, wait) = (LockMode::Exclusive, LockWait::NoWait);
    let mut trx = engine.begin(ReadCommitted);
    let mut other = engine.begin(ReadCommitted);
    tree.read(&mut trx, ReadRequest::new(b"k", &mut value).locked(mode, wait)).unwrap();
    tree.unlock(&mut trx, b"k");
    assert!(tree.read(&mut other, ReadRequest::new(b"k", &mut value).locked(mode, wait)).unwrap());
    other.commit().unwrap();
    let mut other = engine.begin(ReadCommitted);
    tree.read(&mut trx, ReadRequest::new(b"k", &mut value).locked(mode, wait)).unwrap();
    tree.read(&mut trx, ReadRequest::new(b"k", &mut value).locked(mode, wait)).unwrap();
    tree.unlock(&mut trx, b"k");
    assert_eq!(
        tree.read(&mut other, ReadRequest::new(b"k", &mut value).locked(mode, wait)),
        Err(Error::LockNoWait)
    );
    assert_eq!(tree.update(&mut trx, b"absent", b""), Err(Error::NotFound));
    trx.commit().unwrap();
}

/// As a statement at READ COMMITTED does that looks, for sharing, at rows which one before it has
/// locked for itself.
#[test]
fn unlock_leaves_one_of_many_locks_that_an_earlier_statement_took() {
    const ROWS: u32 = 1100;
    let engine = engine();
    let tree = &engine.trees[0];
    let mut writer = engine.begin(ReadCommitted);
    for n in 0..ROWS {
        tree.insert(&mut writer, &n.to_be_bytes(), b"old", LockMode::None).unwrap();
    }
    writer.commit().unwrap();
    let mut value = Vec::new();
    let wait = LockWait::NoWait;
    let mut trx = engine.begin(ReadCommitted);
    for mode in [LockMode::Exclusive, LockMode::Shared] {
        for n in 0..ROWS {
            assert!(
                tree.read(
                    &mut trx,
                    ReadRequest::new(&n.to_be_bytes(), &mut value).locked(mode, wait)
                )
                .unwrap()
            );
            if mode == LockMode::Shared {
                tree.unlock(&mut trx, &n.to_be_bytes());
            }
        }
    }
    let mut other = engine.begin(ReadCommitted);
    for n in 0..ROWS {
        let read = tree.read(
            &mut other,
            ReadRequest::new(&n.to_be_bytes(), &mut value).locked(LockMode::Shared, wait),
        );
        assert_eq!(read, Err(Error::LockNoWait), "{n}");
    }
    other.rollback().unwrap();
    trx.commit().unwrap();
}

#[test]
fn unlock_gives_up_all_that_the_row_was_read_by() {
    let engine = engine();
    let (rows, index) = (&engine.trees[0], &engine.trees[1]);
    for no in 0..3u8 {
        for tree in [rows, index] {
            let mut trx = engine.begin(ReadCommitted);
            tree.insert(&mut trx, &[no], b"0", LockMode::None).unwrap();
            trx.commit().unwrap();
        }
    }
    let (mode, wait) = (LockMode::Exclusive, LockWait::NoWait);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut trx = engine.begin(ReadCommitted);
    let mut other = engine.begin(ReadCommitted);
    rows.read(&mut trx, ReadRequest::new(&[1], &mut value).locked(mode, wait)).unwrap();
    // A scan of the index, with a look at each row: which it had locked before stays locked.
    let mut position = ScanPosition::start();
    let forward = Direction::Forward;
    while lock_next(&mut trx, index, &mut position, (forward, mode, wait), (&mut key, &mut value))
        .unwrap()
    {
        assert!(
            rows.read(&mut trx, ReadRequest::new(&key, &mut value).locked(mode, wait)).unwrap()
        );
        assert_eq!(engine.system.locks.keys.len(), if key[0] == 1 { 2 } else { 3 });
        index.unlock(&mut trx, &key);
        rows.unlock(&mut trx, &key);
        assert_eq!(engine.system.locks.keys.len(), 1);
    }
    assert_eq!(
        rows.read(&mut other, ReadRequest::new(&[1], &mut value).locked(mode, wait)),
        Err(Error::LockNoWait)
    );
    assert!(rows.read(&mut other, ReadRequest::new(&[0], &mut value).locked(mode, wait)).unwrap());
    other.commit().unwrap();
    // What another reader of the statement finds locked is not given up by it, nor by the first
    // then.
    let mut other = engine.begin(ReadCommitted);
    rows.read(&mut trx, ReadRequest::new(&[2], &mut value).locked(mode, wait)).unwrap();
    rows.read(&mut trx, ReadRequest::new(&[2], &mut value).locked(mode, wait)).unwrap();
    rows.unlock(&mut trx, &[2]);
    assert_eq!(
        rows.read(&mut other, ReadRequest::new(&[2], &mut value).locked(mode, wait)),
        Err(Error::LockNoWait)
    );
    trx.commit().unwrap();
}

#[test]
fn a_bulk_update_keeps_no_lock_for_each_row() {
    const ROWS: u32 = 500;
    let engine = engine();
    let tree = &engine.trees[0];
    for row in 0..ROWS {
        put(&engine, &row.to_be_bytes(), b"old");
    }
    let locked = || engine.system.locks.keys.len();
    let mut trx = engine.begin(Isolation::RepeatableRead);
    let mut position = ScanPosition::start();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let (mode, wait) = (LockMode::Exclusive, LockWait::Wait);
    let mut most = 0;
    while lock_next(
        &mut trx,
        tree,
        &mut position,
        (Direction::Forward, mode, wait),
        (&mut key, &mut value),
    )
    .unwrap()
    {
        most = most.max(locked());
        tree.update(&mut trx, &key, b"new").unwrap();
    }
    assert!(most <= 1 && locked() == 0, "{most} locks, then {}", locked());
    // The rows are locked all the same.
    let mut other = engine.begin(Isolation::ReadCommitted);
    for row in [0, 77, ROWS - 1] {
        let refused = tree.update(&mut other, &row.to_be_bytes(), b"theirs");
        assert!(matches!(refused, Err(Error::LockWaitTimeout)), "{refused:?}");
        let refused = tree.read(
            &mut other,
            ReadRequest::new(&row.to_be_bytes(), &mut value)
                .locked(LockMode::Shared, LockWait::NoWait),
        );
        assert!(matches!(refused, Err(Error::LockNoWait)), "{refused:?}");
    }
    trx.commit().unwrap();
    tree.update(&mut other, &0u32.to_be_bytes(), b"theirs").unwrap();
    other.rollback().unwrap();
    assert_eq!(locked(), 0);
}

#[test]
fn a_lock_survives_the_rollback_of_the_write_that_replaced_it() {
    let engine = engine();
    let tree = &engine.trees[0];
    for key in [b"a", b"b", b"c"] {
        put(&engine, key, b"old");
    }
    let mut trx = engine.begin(Isolation::RepeatableRead);
    let mut value = Vec::new();
    tree.read(
        &mut trx,
        ReadRequest::new(b"a", &mut value).locked(LockMode::Shared, LockWait::Wait),
    )
    .unwrap();
    tree.read(
        &mut trx,
        ReadRequest::new(b"b", &mut value).locked(LockMode::Exclusive, LockWait::Wait),
    )
    .unwrap();
    let savepoint = trx.savepoint();
    tree.update(&mut trx, b"a", b"new").unwrap();
    tree.update(&mut trx, b"a", b"newer").unwrap();
    tree.delete(&mut trx, b"b").unwrap();
    assert_eq!(engine.system.locks.keys.len(), 0);
    trx.rollback_to(savepoint).unwrap();
    let mut other = engine.begin(Isolation::ReadCommitted);
    for key in [b"a", b"b"] {
        let refused = tree.update(&mut other, key, b"theirs");
        assert!(matches!(refused, Err(Error::LockWaitTimeout)), "{refused:?}");
    }
    tree.update(&mut other, b"c", b"theirs").unwrap();
    trx.rollback().unwrap();
    tree.update(&mut other, b"a", b"theirs").unwrap();
    tree.update(&mut other, b"b", b"theirs").unwrap();
    other.commit().unwrap();
    assert_eq!(engine.system.locks.keys.len(), 0);
}

#[test]
fn purge_waits_for_the_oldest_view() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"one");
    let mut old = engine.begin(RepeatableRead);
    old.ensure_view();
    for n in 0..50u32 {
        put(&engine, b"k", &n.to_le_bytes());
    }
    while engine.system.purge_step(10).unwrap() > 0 {}
    assert_eq!(engine.system.status().history_len, 50);
    assert_eq!(get(&mut old, tree, b"k").unwrap(), b"one");
    drop(old);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn a_trace_of_an_entry_lasts_as_long_as_a_view_may_see_it() {
    let engine = engine();
    let tree = &engine.trees[0];
    let has_trace =
        |key: &[u8]| tree.tree().count_range(key, &[key, b"\0"].concat(), 1).unwrap() == 1;
    assert!(!has_trace(b"k"));
    let mut trx = engine.begin(ReadCommitted);
    tree.insert(&mut trx, b"k", b"one", LockMode::None).unwrap();
    assert!(has_trace(b"k"));
    trx.rollback().unwrap();
    assert!(!has_trace(b"k"));
    put(&engine, b"k", b"one");
    let mut old = engine.begin(RepeatableRead);
    old.ensure_view();
    let mut trx = engine.begin(ReadCommitted);
    tree.delete(&mut trx, b"k").unwrap();
    trx.commit().unwrap();
    while engine.system.purge_step(10).unwrap() > 0 {}
    assert!(has_trace(b"k"));
    assert!(!has_trace(b"j") && !has_trace(b"kk"));
    drop(old);
    engine.settle().unwrap();
    assert!(!has_trace(b"k"));
}

#[test]
fn a_rollback_over_a_purged_delete_mark_leaves_nothing() {
    for long in [false, true] {
        let engine = engine();
        let tree = &engine.trees[0];
        let value = if long { vec![1; 9000] } else { vec![1; 10] };
        put(&engine, b"k", &value);
        let mut trx = engine.begin(ReadCommitted);
        tree.delete(&mut trx, b"k").unwrap();
        trx.commit().unwrap();
        let mut over = engine.begin(ReadCommitted);
        tree.insert(&mut over, b"k", b"again", LockMode::None).unwrap();
        tree.update(&mut over, b"k", b"and again").unwrap();
        while engine.system.purge_step(10).unwrap() > 0 {}
        over.rollback().unwrap();
        engine.settle().unwrap();
        engine.check_settled().unwrap();
        assert!(engine.contents(0).unwrap().is_empty());
    }
}

#[test]
fn long_values_come_and_go_without_a_leak() {
    let engine = engine();
    let tree = &engine.trees[0];
    let long = |n: u8| vec![n; 30_000];
    let mut trx = engine.begin(RepeatableRead);
    tree.insert(&mut trx, b"k", &long(1), LockMode::None).unwrap();
    trx.commit().unwrap();
    let mut old = engine.begin(RepeatableRead);
    old.ensure_view();
    let mut trx = engine.begin(RepeatableRead);
    tree.update(&mut trx, b"k", &long(2)).unwrap();
    let savepoint = trx.savepoint();
    tree.update(&mut trx, b"k", &long(3)).unwrap();
    tree.insert(&mut trx, b"l", &long(4), LockMode::None).unwrap();
    trx.rollback_to(savepoint).unwrap();
    assert_eq!(get(&mut trx, tree, b"k").unwrap(), long(2));
    trx.commit().unwrap();
    let mut trx = engine.begin(RepeatableRead);
    tree.delete(&mut trx, b"k").unwrap();
    tree.insert(&mut trx, b"k", &long(5), LockMode::None).unwrap();
    tree.delete(&mut trx, b"k").unwrap();
    trx.commit().unwrap();
    assert_eq!(get(&mut old, tree, b"k").unwrap(), long(1));
    while engine.system.purge_step(10).unwrap() > 0 {}
    assert_eq!(get(&mut old, tree, b"k").unwrap(), long(1));
    drop(old);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
    assert!(engine.contents(0).unwrap().is_empty());
}

/// A statement that is taken back leaves its transaction the locks, and they take little memory
/// each.
#[test]
fn a_large_rollback_to_a_savepoint_keeps_its_locks_in_little_memory() {
    const ROWS: u32 = 20_000;
    let engine = engine();
    let tree = &engine.trees[0];
    let mut trx = engine.begin(RepeatableRead);
    for n in 0..=ROWS {
        tree.insert(&mut trx, &n.to_be_bytes(), b"old", LockMode::None).unwrap();
    }
    trx.commit().unwrap();
    let bytes = || engine.system.memory()[0].bytes;
    let before = bytes();
    let mut trx = engine.begin(RepeatableRead);
    let savepoint = trx.savepoint();
    for n in 0..ROWS {
        match n % 2 {
            0 => tree.update(&mut trx, &n.to_be_bytes(), b"new").unwrap(),
            _ => tree.delete(&mut trx, &n.to_be_bytes()).unwrap(),
        }
    }
    assert_eq!(bytes(), before);
    trx.rollback_to(savepoint).unwrap();
    assert_eq!(engine.system.status().key_locks, u64::from(ROWS));
    let a_row = (bytes() - before) as f64 / f64::from(ROWS);
    assert!(a_row < 40.0, "{a_row} bytes a row");

    // They are as good as others.
    let mut other = engine.begin(ReadCommitted);
    let (mut key, mut value) = (vec![], vec![]);
    for n in (0..ROWS).step_by(501) {
        let key = n.to_be_bytes();
        assert_eq!(tree.update(&mut other, &key, b"x"), Err(Error::LockWaitTimeout));
        assert_eq!(tree.delete(&mut other, &key), Err(Error::LockWaitTimeout));
        let inserted = tree.insert(&mut other, &key, b"x", LockMode::Shared);
        assert_eq!(inserted, Err(Error::LockWaitTimeout));
        for (wait, end) in [
            (LockWait::Wait, Err(Error::LockWaitTimeout)),
            (LockWait::NoWait, Err(Error::LockNoWait)),
            (LockWait::SkipLocked, Ok(false)),
        ] {
            assert_eq!(
                tree.read(
                    &mut other,
                    ReadRequest::new(&key, &mut value).locked(LockMode::Shared, wait)
                ),
                end
            );
        }
        assert_eq!(get(&mut other, tree, &key).unwrap(), b"old");
        // And their owner's.
        assert!(
            tree.read(
                &mut trx,
                ReadRequest::new(&key, &mut value).locked(LockMode::Exclusive, LockWait::NoWait)
            )
            .unwrap()
        );
        tree.unlock(&mut trx, &key);
        assert_eq!(tree.update(&mut other, &key, b"x"), Err(Error::LockWaitTimeout));
        tree.update(&mut trx, &key, b"newer").unwrap();
    }
    let mut position = ScanPosition::start();
    let (direction, mode) = (Direction::Forward, LockMode::Exclusive);
    let skip = LockWait::SkipLocked;
    assert!(
        lock_next(&mut other, tree, &mut position, (direction, mode, skip), (&mut key, &mut value))
            .unwrap()
    );
    assert_eq!(key, ROWS.to_be_bytes());
    // One that waits goes on when they are released.
    other.set_lock_wait_timeout(Duration::from_secs(60));
    let waits = engine.system.status().lock_waits;
    thread::scope(|scope| {
        let waiter = scope.spawn(|| tree.update(&mut other, &1u32.to_be_bytes(), b"x"));
        while engine.system.status().lock_waits == waits {
            thread::yield_now();
        }
        trx.rollback().unwrap();
        waiter.join().unwrap().unwrap();
    });
    other.commit().unwrap();
    assert_eq!(bytes(), before);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn values_of_up_to_half_a_page_stay_in_their_leaf() {
    let engine = engine();
    let tree = &engine.trees[0];
    let long_values = || {
        let mut count = 0;
        let look = &mut |leaf: Node<'_>, _: usize| {
            let entries = (0..leaf.count()).map(|slot| Entry::decode(leaf.payload(slot)).unwrap());
            count += entries.filter(|entry| entry.overflow().is_some()).count();
            Ok(())
        };
        tree.tree().check(look).unwrap();
        count
    };
    for key in [&b"k"[..], &[b'l'; 500]] {
        let max = tree.inline_max(key.len());
        assert!((max + key.len()).abs_diff(engine.env.page_size() / 2) < 100, "{max}");
        let mut trx = engine.begin(RepeatableRead);
        tree.insert(&mut trx, key, &vec![1; max], LockMode::None).unwrap();
        trx.commit().unwrap();
        assert_eq!(long_values(), 0);
        let mut old = engine.begin(RepeatableRead);
        old.ensure_view();
        let mut trx = engine.begin(RepeatableRead);
        tree.update(&mut trx, key, &vec![2; max]).unwrap();
        let savepoint = trx.savepoint();
        tree.update(&mut trx, key, &vec![3; max + 1]).unwrap();
        assert_eq!(long_values(), 1);
        trx.rollback_to(savepoint).unwrap();
        assert_eq!(get(&mut trx, tree, key).unwrap(), vec![2; max]);
        tree.delete(&mut trx, key).unwrap();
        trx.commit().unwrap();
        assert_eq!(get(&mut old, tree, key).unwrap(), vec![1; max]);
        drop(old);
        engine.settle().unwrap();
        engine.check_settled().unwrap();
    }
}

#[test]
fn ids_are_never_used_twice() {
    let mut storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    put(&engine, b"k", b"1");
    let mut last = engine.system.status().next_trx_id;
    drop(engine);
    for _ in 0..3 {
        storage = storage.crash();
        let engine = Engine::open(&storage, &options()).unwrap();
        assert!(engine.system.status().next_trx_id >= last);
        put(&engine, b"k", b"2");
        last = engine.system.status().next_trx_id;
    }
}

/// A bug leaves a leaf as no transaction has made it. Its reader gets an error, and no rows.
#[test]
fn nothing_is_read_of_a_change_that_was_left_half_way() {
    let engine = engine();
    let tree = &engine.trees[0];
    put(&engine, b"k", b"1");
    put(&engine, b"l", &[2; 9000]);
    let mut reader = engine.begin(RepeatableRead);
    assert_eq!(get(&mut reader, tree, b"k"), Some(b"1".to_vec()));
    let mut mtr = Mtr::begin(&engine.env).unwrap();
    let leaf = tree.tree().leaf_exclusive(b"k").unwrap();
    let slot = leaf.find(b"k").unwrap();
    leaf.remove(&mut mtr, slot);
    drop(mtr);
    let mut value = Vec::new();
    let is_told = |outcome: Result<()>| {
        assert!(matches!(outcome, Err(Error::Crashed(_))), "{outcome:?}");
    };
    for mode in [LockMode::None, LockMode::Shared] {
        for key in [b"k", b"l"] {
            is_told(
                tree.read(
                    &mut reader,
                    ReadRequest::new(key, &mut value).locked(mode, LockWait::Wait),
                )
                .map(drop),
            );
        }
    }
    is_told(scan_all(&mut reader, tree, Direction::Forward).map(drop));
    is_told(scan_all(&mut engine.begin(ReadCommitted), tree, Direction::Backward).map(drop));
    is_told(tree.tree().check(&mut |_, _| Ok(())).map(drop));
    is_told(tree.tree().statistics().map(drop));
}
