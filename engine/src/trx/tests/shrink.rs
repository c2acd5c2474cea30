//! The undo space gives back what a long history has left free.

use super::*;
use crate::files::UNDO_SPACE;
use crate::format::space_header;
use crate::test_storage::end_of;

/// Runs transactions that write side by side, so that their logs lie between each other's, and ends
/// them all, some by a rollback.
fn write_much(engine: &Engine) {
    let tree = &engine.trees[0];
    let mut running: Vec<TransactionCore> = (0..8).map(|_| engine.begin(ReadCommitted)).collect();
    for n in 0..120u32 {
        for (at, trx) in running.iter_mut().enumerate() {
            let key = [&[at as u8][..], &n.to_be_bytes()].concat();
            match tree.insert(trx, &key, &[1; 600], LockMode::None) {
                Err(Error::DuplicateKey { .. }) => tree.update(trx, &key, &[2; 600]),
                inserted => inserted,
            }
            .unwrap();
            tree.update(trx, &key, &[n as u8; 600]).unwrap();
        }
    }
    for (at, mut trx) in running.into_iter().enumerate() {
        if at == 3 { trx.rollback() } else { trx.commit() }.unwrap();
    }
}

/// Pages of the undo space.
fn undo_size(engine: &Engine) -> u32 {
    space_header::read(engine.env.pool(), engine.system.undo.space()).unwrap().size_pages
}

/// Pages of the undo space in its file; none is written behind them.
fn undo_end(storage: &SimStorage) -> u32 {
    end_of(storage, UNDO_SPACE)
}

fn close(engine: &Engine) -> Result<()> {
    engine.system.undo.shrink(1)?;
    engine.env.close()
}

#[test]
fn a_purged_history_leaves_a_short_file() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    write_much(&engine);
    let rows = engine.contents(0).unwrap();
    let mut prepared = engine.begin(ReadCommitted);
    engine.trees[0].update(&mut prepared, &[0, 0, 0, 0, 0], b"prepared").unwrap();
    prepared.prepare(b"x").unwrap();
    prepared.detach();
    let long = undo_size(&engine);
    assert!(long > 150, "{long}");
    // A history keeps its pages; what the space has grown in advance goes.
    assert!(engine.system.undo.shrink(1).unwrap() < long / 4);
    engine.settle().unwrap();
    close(&engine).unwrap();
    engine.check_undo_file();
    let storage = storage.kill();
    // The prepared transaction is somewhere in the middle; all others' pages are before it.
    let middle = undo_end(&storage);
    assert!(middle < long, "{middle} of {long} pages");

    let engine = Engine::open(&storage, &options()).unwrap();
    assert!(engine.env.was_clean());
    engine.system.take_prepared(b"x").unwrap().rollback().unwrap();
    assert_eq!(engine.contents(0).unwrap(), rows);
    engine.settle().unwrap();
    engine.check_settled().unwrap();
    close(&engine).unwrap();
    engine.check_undo_file();
    let storage = storage.kill();
    let short = undo_end(&storage);
    assert!(short < 20, "{short} pages");

    // It grows as ever.
    let engine = Engine::open(&storage, &options()).unwrap();
    write_much(&engine);
    assert!(undo_size(&engine) > 150);
    engine.env.redo().flush().unwrap();
    let engine = Engine::open(&storage.crash(), &options()).unwrap();
    engine.settle().unwrap();
    engine.check_settled().unwrap();
    assert_eq!(engine.contents(0).unwrap().keys().len(), rows.len());
}

#[test]
fn little_is_not_given_back() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    write_much(&engine);
    engine.settle().unwrap();
    let long = undo_size(&engine);
    assert_eq!(engine.system.undo.shrink(long).unwrap(), 0);
    assert_eq!(undo_size(&engine), long);
    engine.env.close().unwrap();
}

/// Every operation on the disk that a close takes, cut off once; then a life with a crash of its
/// own, whose recovery looks for nothing that is gone.
#[test]
fn a_close_cut_off_anywhere_leaves_a_sound_undo_space() {
    let base = SimStorage::new(1);
    let engine = Engine::create(&base, &options());
    write_much(&engine);
    engine.settle().unwrap();
    let rows = engine.contents(0).unwrap();
    engine.env.redo().flush().unwrap();
    let base = base.kill();
    drop(engine);
    let settled = || {
        let storage = base.kill();
        let engine = Engine::open(&storage, &options()).unwrap();
        engine.settle().unwrap();
        (storage, engine)
    };
    let (storage, engine) = settled();
    let before = storage.operation_count();
    close(&engine).unwrap();
    let operations = storage.operation_count() - before;
    drop(engine);
    assert!(operations > 30 && undo_end(&storage.crash()) < 20, "{operations}");
    // Each of the last: they are the checkpoints and the cut.
    for cut in (0..operations).filter(|cut| cut % 4 == 0 || cut + 12 > operations) {
        let (storage, engine) = settled();
        storage.crash_at(storage.operation_count() + cut);
        assert!(close(&engine).is_err() || cut + 5 > operations, "cut {cut} of {operations}");
        drop(engine);
        let mut storage = storage.crash();
        for life in 0..2 {
            let engine = Engine::open(&storage, &options()).unwrap();
            assert_eq!(engine.contents(0).unwrap(), rows, "cut {cut}, life {life}");
            engine.settle().unwrap();
            engine.check_settled().unwrap();
            let mut trx = engine.begin(ReadCommitted);
            for key in rows.keys().take(100) {
                engine.trees[0].update(&mut trx, key, &[9; 600]).unwrap();
            }
            engine.env.redo().flush().unwrap();
            storage = storage.crash();
        }
    }
}

/// The newest slot of the control file is lost, and the log is read from the checkpoint before.
#[test]
fn a_recovery_by_the_older_checkpoint_misses_no_page() {
    let storage = SimStorage::new(1);
    let engine = Engine::create(&storage, &options());
    engine.env.checkpoint_all().unwrap();
    write_much(&engine);
    engine.settle().unwrap();
    let rows = engine.contents(0).unwrap();
    close(&engine).unwrap();
    drop(engine);
    for slot in 0..2 {
        let storage = storage.kill();
        assert!(undo_end(&storage) < 20);
        storage.corrupt("redo/control", slot * 4096 + 100, 0xff);
        let engine = Engine::open(&storage, &options()).unwrap();
        assert_eq!(engine.contents(0).unwrap(), rows);
        engine.settle().unwrap();
        engine.check_settled().unwrap();
    }
}
