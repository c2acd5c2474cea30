//! A bug that panics in the background: no thread waits for ever, nothing that was acknowledged is
//! lost, and what can go on does.
//!
//! The simulated disk panics in an operation, in whichever thread asks for it.

mod scan;

use scan::scan;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool::storage::{Fault, FaultKind, SimStorage, StorageOp};
use tidepool::{Db, Error, IndexDef, Options, Table, TableDef, TransactionOptions};

fn options() -> Options {
    Options {
        page_size: 4096,
        buffer_pool_size_bytes: 8 << 20,
        memory_guard: false,
        redo_capacity_bytes: 8 << 20,
        flush_log_interval: Duration::from_millis(20),
        ..Options::default()
    }
}

fn open(sim: &SimStorage, options: Options) -> Db {
    Db::open_on(Arc::new(sim.clone()), options).unwrap()
}

fn make(db: &Db) -> Arc<Table> {
    db.create_table("t", &TableDef::new([IndexDef::unique("primary")])).unwrap()
}

fn insert(db: &Db, table: &Arc<Table>, no: u32) -> Result<(), Error> {
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(table, 0, &no.to_be_bytes(), &[7; 300])?;
    trx.commit()
}

fn keys(db: &Db) -> Vec<u32> {
    let table = db.open_table("t").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    let rows = scan(&mut trx, &table, 0).unwrap();
    rows.into_keys().map(|key| u32::from_be_bytes(key[..].try_into().unwrap())).collect()
}

fn wait_for(what: &str, is_it: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_it() {
        assert!(since.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn count(db: &Db, name: &str) -> u64 {
    db.status().get(name).unwrap()
}

fn text(db: &Db, name: &str) -> String {
    let status = db.status();
    status.texts().iter().find(|text| text.0 == name).unwrap().1.clone()
}

/// The leader of a group commit: a session or the thread that flushes now and then.
#[test]
fn a_panic_in_a_write_of_the_log_is_a_failure_of_the_log() {
    for (op, flush_log_at_trx_commit) in
        [(StorageOp::Write, 1), (StorageOp::Sync, 1), (StorageOp::Write, 0), (StorageOp::Sync, 0)]
    {
        let sim = SimStorage::new(1);
        let db = open(&sim, Options { flush_log_at_trx_commit, ..options() });
        let table = make(&db);
        db.flush_log().unwrap();
        sim.inject(Fault::new(op, FaultKind::Panic).on("redo/redo").skip(5).always());
        let acknowledged: Vec<u32> = std::thread::scope(|scope| {
            let work = |thread: u32| {
                let (db, table) = (&db, &table);
                move || {
                    let mut acknowledged = Vec::new();
                    loop {
                        let no = 4 * acknowledged.len() as u32 + thread;
                        match insert(db, table, no) {
                            Ok(()) => acknowledged.push(no),
                            Err(Error::Crashed(_)) => return acknowledged,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            };
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let error = db.flush_log().unwrap_err().to_string();
        assert_eq!(
            error,
            "the engine has stopped writing: a write of the redo log panicked; restart to recover"
        );
        assert_eq!(db.close().unwrap_err().to_string(), error);
        drop((db, table));
        let db = open(&sim.crash(), options());
        let found = keys(&db);
        if flush_log_at_trx_commit == 1 {
            assert!(acknowledged.iter().all(|no| found.contains(no)), "{op:?}: {acknowledged:?}");
            assert!(found.len() <= acknowledged.len() + 4, "{op:?}");
        }
        db.close().unwrap();
    }
}

#[test]
fn the_checkpointer_goes_on_after_a_panic() {
    let sim = SimStorage::new(1);
    let db = open(&sim, options());
    let table = make(&db);
    // It makes the log's files.
    sim.inject(Fault::new(StorageOp::Create, FaultKind::Panic).on("redo/redo").times(2));
    let checkpoints = count(&db, "checkpoints");
    for no in 0..10_000 {
        insert(&db, &table, no).unwrap();
    }
    wait_for("no checkpoint", || count(&db, "checkpoints") > checkpoints);
    db.close().unwrap();
}

#[test]
fn who_waits_for_a_checkpointer_that_always_panics_gets_an_error() {
    let sim = SimStorage::new(1);
    let db = open(&sim, options());
    let table = make(&db);
    sim.inject(Fault::new(StorageOp::Create, FaultKind::Panic).on("redo/redo").always());
    // Another size, so that it has files to make.
    db.set_redo_capacity_bytes(16 << 20).unwrap();
    let failed = (0..1_000_000).find_map(|no| Some((no, insert(&db, &table, no).err()?)));
    let (rows, error) = failed.unwrap();
    assert!(matches!(error, Error::Storage(_)), "{error}");
    assert!(error.to_string().contains("the redo log is full"), "{error}");
    assert_eq!(keys(&db).len() as u32, rows);
    sim.clear_faults();
    wait_for("it goes on", || insert(&db, &table, rows).is_ok());
    db.close().unwrap();
    assert_eq!(keys(&open(&sim.kill(), options())).len() as u32, rows + 1);
}

#[test]
fn purge_and_rollback_go_on_after_a_panic() {
    let sim = SimStorage::new(1);
    let by_hand = Options { background: false, ..options() };
    let db = open(&sim, by_hand);
    let table = make(&db);
    (0..2_000).for_each(|no| insert(&db, &table, no).unwrap());
    let mut trx = db.begin(TransactionOptions::default());
    for no in 0..1_000u32 {
        trx.delete(&table, 0, &no.to_be_bytes()).unwrap();
    }
    trx.commit().unwrap();
    let mut unfinished = db.begin(TransactionOptions::default());
    for no in 1_000..2_000u32 {
        unfinished.update(&table, 0, &no.to_be_bytes(), &[8; 300]).unwrap();
    }
    db.flush_log().unwrap();
    let sim = sim.kill();
    drop((unfinished, trx, table, db));
    // So that nothing but the threads opens the table's file.
    let db = open(&sim, Options { background: false, ..options() });
    assert_eq!((count(&db, "trx_rollbacks_pending"), db.close()), (1, Ok(())));
    drop(db);
    let sim = sim.kill();
    let cold = Options { buffer_pool_load_at_startup: false, ..options() };
    sim.inject(Fault::new(StorageOp::Open, FaultKind::Panic).on("tables/").times(3));
    let db = open(&sim, cold);
    wait_for("rollback", || count(&db, "trx_rollbacks_pending") == 0);
    wait_for("purge", || count(&db, "history_list_length") == 0);
    let purged = count(&db, "purge_entries");
    assert_eq!((purged, keys(&db)), (1_000, (1_000..2_000).collect()));
    db.close().unwrap();
}

#[test]
fn a_loading_of_hot_pages_that_panics_is_given_up() {
    let sim = SimStorage::new(1);
    let db = open(&sim, options());
    let table = make(&db);
    (0..1_000).for_each(|no| insert(&db, &table, no).unwrap());
    drop(table);
    db.close().unwrap();
    drop(db);
    let sim = sim.kill();
    sim.inject(Fault::new(StorageOp::Open, FaultKind::Panic).on("hot-list"));
    let db = open(&sim, options());
    let told = "Buffer pool(s) load ended by an internal error";
    wait_for("no end", || text(&db, "buffer_pool_load_status") == told);
    db.load_buffer_pool().unwrap();
    wait_for("no load", || text(&db, "buffer_pool_load_status").contains("completed"));
    assert_eq!(keys(&db).len(), 1_000);
    db.close().unwrap();
}
