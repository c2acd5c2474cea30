//! Transactions that no session runs: prepared, or left to the background.

use std::cell::Cell;

use super::*;
use crate::files::FIRST_TABLE_SPACE;
use crate::page_op::PageOp;
use crate::test_storage::spoil;
use tidepool_pool::PageId;

#[test]
fn prepared_transactions_survive_a_crash_and_a_session() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let tree = &engine.trees[0];
    put(&engine, b"c", b"committed");
    for xid in [b"x1", b"x2", b"x3"] {
        let mut trx = engine.begin(ReadCommitted);
        tree.insert(&mut trx, xid, b"prepared", LockMode::None).unwrap();
        trx.prepare(xid).unwrap();
        assert!(matches!(
            tree.insert(&mut trx, b"q", b"", LockMode::None),
            Err(Error::ReadOnly(_))
        ));
        trx.detach();
    }
    let mut lost = engine.begin(ReadCommitted);
    tree.update(&mut lost, b"c", b"lost").unwrap();
    let mut third = engine.system.take_prepared(b"x3").unwrap();
    third.commit().unwrap();
    engine.env.redo().flush().unwrap();
    let storage = storage.crash();
    let engine = Engine::open(&storage, &options()).unwrap();
    let tree = &engine.trees[0];
    assert_eq!(engine.system.recovered_xids(), [b"x1", b"x2"]);
    assert_eq!(engine.system.status().rollbacks_pending, 1);
    let contents = engine.contents(0).unwrap();
    assert_eq!(contents.keys().collect::<Vec<_>>(), [&b"c"[..], b"x3"]);
    assert_eq!(contents[&b"c"[..]], b"committed");
    // What the lost transaction wrote is locked until its rollback.
    let mut trx = engine.begin(ReadCommitted);
    assert_eq!(tree.update(&mut trx, b"c", b"x"), Err(Error::LockWaitTimeout));
    assert!(engine.system.rollback_step().unwrap());
    tree.update(&mut trx, b"c", b"new").unwrap();
    assert_eq!(tree.update(&mut trx, b"x1", b"x"), Err(Error::LockWaitTimeout));
    trx.commit().unwrap();
    engine.system.take_prepared(b"x1").unwrap().commit().unwrap();
    engine.system.take_prepared(b"x2").unwrap().rollback().unwrap();
    assert!(engine.system.take_prepared(b"x1").is_none());
    let keys: Vec<_> = engine.contents(0).unwrap().into_keys().collect();
    assert_eq!(keys, [&b"c"[..], b"x1", b"x3"]);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn an_xid_names_one_prepared_transaction() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let prepare = |engine: &Engine, key: &[u8]| {
        let mut trx = engine.begin(ReadCommitted);
        engine.trees[0].insert(&mut trx, key, b"prepared", LockMode::None).unwrap();
        let outcome = trx.prepare(b"x\0");
        (trx, outcome)
    };
    let exists = Err(Error::XidExists("x\\x00".into()));
    let (mut first, prepared) = prepare(&engine, b"a");
    prepared.unwrap();
    let (mut second, refused) = prepare(&engine, b"b");
    assert_eq!(refused, exists);
    engine.trees[0].insert(&mut second, b"c", b"still usable", LockMode::None).unwrap();
    second.commit().unwrap();
    first.detach();
    assert_eq!(prepare(&engine, b"d").1, exists);
    engine.env.redo().flush().unwrap();
    let engine = Engine::open(&storage.crash(), &options()).unwrap();
    engine.settle().unwrap();
    assert_eq!(prepare(&engine, b"d").1, exists);
    engine.system.take_prepared(b"x\0").unwrap().rollback().unwrap();
    let (mut again, prepared) = prepare(&engine, b"d");
    prepared.unwrap();
    again.commit().unwrap();
    let (mut again, prepared) = prepare(&engine, b"e");
    prepared.unwrap();
    again.rollback().unwrap();
    assert!(engine.system.xids.lock().is_empty());
    let keys: Vec<_> = engine.contents(0).unwrap().into_keys().collect();
    assert_eq!(keys, [b"b", b"c", b"d"]);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn what_is_prepared_commits_when_the_redo_log_has_no_room() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let tree = &engine.trees[0];
    put(&engine, b"k", b"0");
    let mut prepared = engine.begin(ReadCommitted);
    tree.insert(&mut prepared, b"p", b"prepared", LockMode::None).unwrap();
    prepared.prepare(b"x").unwrap();
    // No page of the table can be written, so no checkpoint moves on.
    storage.inject(Fault::new(StorageOp::Write, FaultKind::NoSpace).on("tables/").always());
    let mut writes = 0u32;
    while Mtr::begin(&engine.env).is_ok() {
        let mut trx = engine.begin(ReadCommitted);
        let _ = tree.update(&mut trx, b"k", &[writes as u8; 1000]).and_then(|()| trx.commit());
        writes += 1;
        assert!(writes < 20_000, "the log does not fill");
    }
    prepared.commit().unwrap();
    storage.clear_faults();
    assert_eq!(engine.contents(0).unwrap()[&b"p"[..]], b"prepared");
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}

#[test]
fn a_shutdown_waits_for_no_rollback_and_no_purge() {
    const ROWS: u32 = 300;
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let write = |value: &[u8]| {
        let mut trx = engine.begin(ReadCommitted);
        for row in 0..ROWS {
            match value {
                b"" => engine.trees[0].delete(&mut trx, &row.to_be_bytes()),
                _ => engine.trees[0].insert(&mut trx, &row.to_be_bytes(), value, LockMode::None),
            }
            .unwrap();
        }
        trx
    };
    write(b"old").commit().unwrap();
    write(b"").commit().unwrap();
    let unfinished = write(b"lost");
    engine.env.redo().flush().unwrap();
    let mut storage = storage.crash();
    drop(unfinished);
    // One turn of the rollback in each life; the next goes on.
    for life in 0..3 {
        let engine = Engine::open(&storage, &options()).unwrap();
        assert_eq!(engine.system.status().rollbacks_pending, 1);
        engine.system.stop_background();
        engine.system.rollback_go();
        let status = engine.system.status();
        assert_eq!(status.rollbacks_pending, 1, "life {life} rolled all of it back");
        assert_eq!(status.history_len, 2, "life {life} purged");
        assert_eq!(engine.contents(0).unwrap(), BTreeMap::new());
        engine.env.redo().flush().unwrap();
        storage = storage.crash();
    }
    let engine = Engine::open(&storage, &options()).unwrap();
    assert!(engine.system.rollback_step().unwrap());
    // Asked to stop in the middle of a log.
    let asked = Cell::new(0);
    let stop = || asked.replace(asked.get() + 1) == 2;
    assert_eq!(engine.system.purge_step_unless(10, &stop), Ok(0));
    assert_eq!((asked.get(), engine.system.status().history_len), (3, 2));
    engine.settle().unwrap();
    engine.check_settled().unwrap();
    assert_eq!(engine.contents(0).unwrap(), BTreeMap::new());
}

/// Purges a log of many pages, one read of which fails: in each life another. `go_on` learns
/// whether the log was done, and pages of it were left before the head; there must be such lives.
fn purge_with_a_failing_read(mut go_on: impl FnMut(&SimStorage, Engine, bool)) {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    put(&engine, b"k", b"old");
    let mut trx = engine.begin(ReadCommitted);
    for n in 0..20 {
        engine.trees[0].update(&mut trx, b"k", &[n; 900]).unwrap();
    }
    trx.commit().unwrap();
    engine.env.close().unwrap();
    let mut left = 0;
    for skipped in 0..10 {
        let storage = storage.kill();
        let engine = Engine::open(&storage, &options()).unwrap();
        // Twice: the mirror can't be read either.
        let fault = Fault::new(StorageOp::Read, FaultKind::Io).on("undo").skip(skipped).times(2);
        storage.inject(fault);
        let failed = engine.system.purge_step(10).is_err();
        storage.clear_faults();
        let is_left = failed && engine.system.status().history_len == 0;
        left += u32::from(is_left);
        go_on(&storage, engine, is_left);
    }
    assert!(left > 0);
}

/// What is before a head is freed at the next opening, if that may write.
#[test]
fn a_directory_is_read_though_purge_has_left_pages_before_a_head() {
    purge_with_a_failing_read(|storage, engine, _| {
        engine.env.close().unwrap();
        let read_only = EnvOptions { read_only: true, ..options() };
        let engine = Engine::open(&storage.kill(), &read_only).unwrap();
        assert_eq!(engine.contents(0).unwrap()[&b"k"[..]], [19; 900]);
        let engine = Engine::open(&storage.kill(), &options()).unwrap();
        engine.settle().unwrap();
        engine.check_settled().unwrap();
    });
}

/// The log is done. What its pages were is freed with the next one's, and until then the stream is
/// as good as any.
#[test]
fn a_stream_whose_purged_pages_could_not_be_freed_is_used_again() {
    purge_with_a_failing_read(|_, engine, is_left| {
        if !is_left {
            return;
        }
        put(&engine, b"k", b"new");
        engine.settle().unwrap();
        engine.check_settled().unwrap();
        assert_eq!(engine.system.status().undo_streams, 1);
        let pages = engine.system.undo.pages().unwrap();
        assert_eq!(pages.len(), 2, "the directory, and where the next log begins");
    });
}

/// What the other streams hold is purged all the same.
#[test]
fn a_broken_page_of_one_undo_stream_does_not_stop_purge_in_the_others() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let tree = &engine.trees[0];
    put(&engine, b"a", b"old");
    put(&engine, b"b", b"old");
    let (mut first, mut second) = (engine.begin(ReadCommitted), engine.begin(ReadCommitted));
    tree.delete(&mut first, b"a").unwrap();
    tree.delete(&mut second, b"b").unwrap();
    first.commit().unwrap();
    second.commit().unwrap();
    let undo = &engine.system.undo;
    let pages = undo.pages().unwrap();
    assert_eq!(pages.len(), 3, "the directory, and a page of each stream");
    let name_stream = |stream: &[u8]| {
        let mut mtr = Mtr::begin(&engine.env).unwrap();
        let page = mtr.exclusive(undo.space(), pages[1]).unwrap();
        mtr.apply(page, &PageOp::Write { offset: 32, bytes: stream });
        mtr.commit();
    };
    let stream = {
        let page = engine.env.pool().shared(undo.space(), pages[1], Access::Normal).unwrap();
        page[32..36].to_vec()
    };
    name_stream(&[0xff; 4]);
    assert_eq!(engine.system.purge_step(10), Ok(1));
    assert!(matches!(engine.system.purge_step(10), Err(Error::Corrupt { .. })));
    assert_eq!(engine.system.status().history_len, 1);
    name_stream(&stream);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
    assert_eq!(engine.contents(0).unwrap(), BTreeMap::new());
}

/// A leaf that has become small is merged if that is possible: neither a rollback nor purge depends
/// on it.
#[test]
fn a_broken_leaf_does_not_stop_what_is_done_next_to_it() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    for n in 0..600u32 {
        put(&engine, &n.to_be_bytes(), &[1; 100]);
    }
    let mut leaves: Vec<Vec<Vec<u8>>> = Vec::new();
    let report = engine.trees[0].tree().check(&mut |leaf, _| {
        leaves.push((0..leaf.count()).map(|slot| leaf.key(slot)).collect());
        Ok(())
    });
    // Behind the root's. The leaf to the right of the broken one has a single row, and finds no
    // room in its neighbours.
    let broken = report.unwrap().pages[1..][2];
    let mut trx = engine.begin(ReadCommitted);
    for key in &leaves[3][1..] {
        engine.trees[0].delete(&mut trx, key).unwrap();
    }
    trx.commit().unwrap();
    engine.settle().unwrap();
    engine.env.close().unwrap();
    let storage = storage.kill();
    spoil(&storage, PageId::new(FIRST_TABLE_SPACE, broken));

    let engine = Engine::open(&storage, &options()).unwrap();
    let (tree, key) = (&engine.trees[0], &leaves[3][1]);
    let mut trx = engine.begin(ReadCommitted);
    assert!(matches!(tree.delete(&mut trx, &leaves[2][0]), Err(Error::Corrupt { .. })));
    let savepoint = trx.savepoint();
    tree.insert(&mut trx, key, b"v", LockMode::None).unwrap();
    trx.rollback_to(savepoint).unwrap();
    tree.insert(&mut trx, key, b"v", LockMode::None).unwrap();
    tree.delete(&mut trx, key).unwrap();
    trx.commit().unwrap();
    engine.settle().unwrap();
    assert_eq!(engine.system.status().history_len, 0);
}

#[test]
fn a_session_uses_its_owner_again_unless_another_thread_knows_it() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    let mut trx = engine.begin(ReadCommitted);
    let interrupt = trx.interrupt_handle();
    let renew = |trx: &mut TransactionCore| {
        trx.finish();
        trx.renew(TransactionOptions::default(), &interrupt);
        trx.owner.number()
    };
    let mut numbers = BTreeSet::from([trx.owner.number()]);
    let first = Arc::as_ptr(&trx.owner);
    for n in 0..200u8 {
        engine.trees[0].insert(&mut trx, &[n], b"value", LockMode::None).unwrap();
        // One that is not committed is taken back.
        if n % 2 == 0 {
            trx.commit().unwrap();
        }
        assert!(numbers.insert(renew(&mut trx)), "a number twice");
        assert_eq!((trx.id(), trx.isolation()), (TrxId::NONE, Isolation::RepeatableRead));
    }
    assert_eq!(Arc::as_ptr(&trx.owner), first);
    assert_eq!(engine.contents(0).unwrap().len(), 100);
    assert!(numbers.insert(engine.begin(ReadCommitted).owner.number()), "another session's");
    // A thread that waits for the end of the old one must not wait for the new one's.
    let known = Arc::clone(&trx.owner);
    trx.commit().unwrap();
    assert!(numbers.insert(renew(&mut trx)));
    assert!(known.has_ended() && !trx.owner.has_ended());
    assert_eq!(known.number() + 1, trx.owner.number());
    // A prepared one goes on without the session.
    engine.trees[0].insert(&mut trx, b"another", b"prepared", LockMode::None).unwrap();
    trx.prepare(b"x").unwrap();
    renew(&mut trx);
    assert!(!trx.is_prepared() && trx.commit().is_ok());
    engine.system.take_prepared(b"x").unwrap().commit().unwrap();
    assert_eq!(engine.contents(0).unwrap().len(), 101);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
}
