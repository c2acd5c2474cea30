//! The hot pages of one life come back in the next, before anybody asks for them; and whatever
//! happened to the list, to the tables or to the pool meanwhile does no harm.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidepool::storage::{AlignedBuf, Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool::{
    Cursor, Db, IndexDef, LockMode, LockWait, Options, ReadRequest, Table, TableDef,
    TransactionOptions,
};

const ROWS: u32 = 4_000;
const LIST: &str = "hot-list";

fn options() -> Options {
    Options {
        page_size: 4096,
        buffer_pool_size_bytes: 16 << 20,
        memory_guard: false,
        background: false,
        ..Options::default()
    }
}

fn open(sim: &SimStorage) -> Db {
    Db::open_on(Arc::new(sim.clone()), options()).unwrap()
}

fn count(db: &Db, name: &str) -> u64 {
    db.status().get(name).unwrap()
}

fn text(db: &Db, name: &str) -> String {
    let status = db.status();
    status.texts().iter().find(|text| text.0 == name).unwrap().1.clone()
}

fn make(db: &Db, name: &str) -> Arc<Table> {
    let table = db.create_table(name, &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for n in 0..ROWS {
        trx.insert(&table, 0, &n.to_be_bytes(), &[7; 300]).unwrap();
        if n % 500 == 499 {
            trx.commit().unwrap();
        }
    }
    trx.commit().unwrap();
    table
}

/// Reads every row by its key; gives how many pages had to be read from files.
fn read(db: &Db, name: &str) -> u64 {
    let table = db.open_table(name).unwrap();
    let before = count(db, "pages_read");
    let mut trx = db.begin(TransactionOptions::default());
    let mut value = Vec::new();
    for n in 0..ROWS {
        trx.begin_statement();
        let key = n.to_be_bytes();
        assert!(trx.read(&table, 0, ReadRequest::new(&key, &mut value)).unwrap());
        trx.end_statement();
    }
    count(db, "pages_read") - before
}

fn load(db: &Db) -> u64 {
    let before = count(db, "buffer_pool_read_ahead");
    while db.step_load().unwrap() {}
    count(db, "buffer_pool_read_ahead") - before
}

fn resize(db: &Db, bytes: u64) {
    static LOOKS: AtomicU64 = AtomicU64::new(0);
    db.set_buffer_pool_size(bytes).unwrap();
    let now = LOOKS.fetch_add(1, Ordering::Relaxed);
    db.step_governor(Duration::from_secs(now));
    while db.step_resize() {}
    assert_eq!(count(db, "buffer_pool_size_bytes"), bytes);
}

/// A directory with a table "t" that is in the files, all of it hot, and a list that says so.
fn life() -> (SimStorage, Db) {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    make(&db, "t");
    db.close().unwrap();
    let db = open(&sim);
    load(&db);
    read(&db, "t");
    assert!(db.step_dump().unwrap());
    (sim, db)
}

#[test]
fn after_a_kill_the_hot_pages_come_back_before_anybody_asks() {
    let (sim, db) = life();
    let sim = sim.kill();
    drop(db);
    let cold = open(&sim);
    assert!(read(&cold, "t") > 200);
    let sim = sim.kill();
    drop(cold);

    let db = open(&sim);
    assert!(load(&db) > 200);
    let status = text(&db, "buffer_pool_load_status");
    assert!(status.starts_with("Buffer pool(s) load completed: "), "{status}");
    assert_eq!(read(&db, "t"), 0);
    assert_eq!(count(&db, "buffer_pool_read_errors"), 0);
    assert!(!db.step_load().unwrap());
}

#[test]
fn a_clean_shutdown_saves_and_an_option_forbids_it() {
    let (sim, db) = life();
    sim.remove(LIST).unwrap();
    db.close().unwrap();
    assert!(sim.exists(LIST).unwrap());

    sim.remove(LIST).unwrap();
    let db = open(&sim);
    assert!(!db.step_load().unwrap());
    assert_eq!(text(&db, "buffer_pool_load_status"), "There is no list of hot pages");
    db.set_buffer_pool_dump_at_shutdown(false);
    assert!(!db.step_dump().unwrap());
    db.close().unwrap();
    assert!(!sim.exists(LIST).unwrap());
}

#[test]
fn a_list_that_is_being_loaded_is_not_replaced_by_a_part_of_it() {
    let (sim, db) = life();
    db.close().unwrap();
    for ends in 0..3 {
        let db = open(&sim);
        assert!(db.step_load().unwrap() && db.step_load().unwrap());
        assert!(db.step_dump().unwrap());
        match ends {
            0 => db.close().unwrap(),
            1 => {
                db.abort_buffer_pool_load();
                load(&db);
                db.close().unwrap();
            }
            _ => {}
        }
    }
    let db = open(&sim);
    load(&db);
    assert_eq!(read(&db, "t"), 0);
}

#[test]
fn a_cold_start_keeps_the_list_that_nobody_loaded() {
    let (sim, db) = life();
    db.close().unwrap();
    let cold = Options { buffer_pool_load_at_startup: false, ..options() };
    for _ in 0..3 {
        let db = Db::open_on(Arc::new(sim.clone()), cold.clone()).unwrap();
        assert!(!db.step_load().unwrap());
        assert!(db.step_dump().unwrap());
        db.close().unwrap();
    }
    let db = open(&sim);
    assert!(load(&db) > 200);
    assert_eq!(read(&db, "t"), 0);
    db.close().unwrap();

    // Asked for by name, the pool's own pages alone are saved.
    let db = Db::open_on(Arc::new(sim.clone()), cold).unwrap();
    db.dump_buffer_pool().unwrap();
    drop(db);
    let sim = sim.kill();
    let db = open(&sim);
    load(&db);
    assert!(read(&db, "t") > 200);
}

#[test]
fn what_nobody_asks_for_leaves_the_list_in_the_end() {
    let (sim, db) = life();
    db.close().unwrap();
    let cold = Options { buffer_pool_load_at_startup: false, ..options() };
    let db = Db::open_on(Arc::new(sim.clone()), cold).unwrap();
    let mut lists = 0;
    for _ in 0..20 {
        make(&db, "u");
        lists += u32::from(db.step_dump().unwrap());
        db.drop_table("u").unwrap();
    }
    assert_eq!(lists, 20);
    make(&db, "u");
    let sim = sim.kill();
    drop(db);
    let db = open(&sim);
    load(&db);
    assert!(read(&db, "t") > 200);
}

#[test]
fn a_list_is_written_again_only_when_much_has_changed() {
    let (_sim, db) = life();
    assert!(!db.step_dump().unwrap());
    make(&db, "u");
    assert!(db.step_dump().unwrap());
}

#[test]
fn pages_of_tables_that_are_gone_are_passed_over() {
    let (sim, db) = life();
    make(&db, "u");
    make(&db, "v");
    // All three tables fit, with their undo: none of the pages listed left before.
    assert_eq!(count(&db, "buffer_pool_pages_evicted"), 0);
    db.dump_buffer_pool().unwrap();
    db.drop_table("u").unwrap();
    db.truncate_table("v").unwrap();
    make(&db, "u");
    let sim = sim.kill();
    drop(db);
    let db = open(&sim);
    load(&db);
    assert_eq!(read(&db, "t"), 0);
    let table = db.open_table("v").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    let mut rows = Cursor::new(table, 0, LockMode::None, LockWait::Wait);
    assert!(!rows.first(&mut trx).unwrap());
    drop((rows, trx));
    read(&db, "u");
    // Nor does a table keep another from being dropped because it was loaded.
    db.drop_table("t").unwrap();
    assert_eq!(count(&db, "buffer_pool_read_errors"), 0);
}

#[test]
fn a_table_dropped_while_it_is_loaded_stays_away() {
    let (sim, db) = life();
    make(&db, "u");
    db.dump_buffer_pool().unwrap();
    db.close().unwrap();
    let db = open(&sim);
    assert!(db.step_load().unwrap() && db.step_load().unwrap());
    db.drop_table("t").unwrap();
    db.drop_table("u").unwrap();
    load(&db);
    assert_eq!(sim.list("tables").unwrap(), Vec::<String>::new());
}

#[test]
fn a_smaller_pool_takes_what_fits_and_displaces_nothing() {
    let (sim, db) = life();
    db.close().unwrap();
    let small = Options { buffer_pool_size_bytes: 4 << 20, ..options() };
    // The table alone fits, so it is made to share.
    let db = open(&sim);
    make(&db, "u");
    make(&db, "v");
    for name in ["t", "u", "v"] {
        read(&db, name);
    }
    db.dump_buffer_pool().unwrap();
    db.close().unwrap();
    let db = Db::open_on(Arc::new(sim.clone()), small.clone()).unwrap();
    let loaded = load(&db);
    assert!(loaded > 700, "{loaded}");
    assert_eq!(count(&db, "buffer_pool_pages_evicted"), 0);
    assert!(count(&db, "buffer_pool_pages_free") > 0);
    let status = text(&db, "buffer_pool_load_status");
    assert!(status.ends_with(" pages, and waits: the buffer pool is full"), "{status}");
    // Free frames alone are no reason to go on: a full pool has some now and then.
    db.drop_table("v").unwrap();
    assert_eq!(load(&db), 0);

    // The list that is saved meanwhile is a whole one.
    assert!(db.step_dump().unwrap());
    let sim = sim.kill();
    drop(db);
    let db = open(&sim);
    load(&db);
    assert_eq!((read(&db, "t"), read(&db, "u")), (0, 0));
    make(&db, "v");
    db.close().unwrap();

    // It goes on when the pool grows.
    let db = Db::open_on(Arc::new(sim.clone()), small).unwrap();
    load(&db);
    assert!(text(&db, "buffer_pool_load_status").contains("waits"));
    resize(&db, 16 << 20);
    assert!(load(&db) > 0);
    let status = text(&db, "buffer_pool_load_status");
    assert!(status.starts_with("Buffer pool(s) load completed: "), "{status}");
    for name in ["t", "u", "v"] {
        assert_eq!(read(&db, name), 0, "{name}");
    }
    assert_eq!(count(&db, "buffer_pool_pages_evicted"), 0);
}

/// What a larger pool held was hot then; what the smaller one holds is asked for now, and fits.
#[test]
fn what_a_smaller_pool_held_comes_before_the_list_of_a_larger_one() {
    const OTHERS: [&str; 4] = ["u", "v", "w", "x"];
    let sim = SimStorage::new(1);
    let db = open(&sim);
    for name in OTHERS {
        make(&db, name);
    }
    make(&db, "t");
    for name in OTHERS.iter().chain(&OTHERS) {
        read(&db, name);
    }
    db.dump_buffer_pool().unwrap();
    db.set_buffer_pool_dump_at_shutdown(false);
    db.close().unwrap();

    let small = Options { buffer_pool_size_bytes: 4 << 20, ..options() };
    let cold = Options { buffer_pool_load_at_startup: false, ..small.clone() };
    let db = Db::open_on(Arc::new(sim.clone()), cold).unwrap();
    assert!(read(&db, "t") > 200);
    assert!(db.step_dump().unwrap());
    let sim = sim.kill();
    drop(db);
    let db = Db::open_on(Arc::new(sim.clone()), small).unwrap();
    load(&db);
    assert!(text(&db, "buffer_pool_load_status").contains("waits: the buffer pool is full"));
    assert_eq!(read(&db, "t"), 0);
    db.close().unwrap();
    // Nothing of the others is lost.
    let db = open(&sim);
    load(&db);
    for name in OTHERS {
        assert_eq!(read(&db, name), 0, "{name}");
    }
}

#[test]
fn a_load_waits_when_the_pool_is_made_smaller() {
    let (sim, db) = life();
    make(&db, "u");
    db.dump_buffer_pool().unwrap();
    db.close().unwrap();
    let db = open(&sim);
    assert!(db.step_load().unwrap() && db.step_load().unwrap());
    resize(&db, 6 << 20);
    assert_eq!(load(&db), 0);
    let status = text(&db, "buffer_pool_load_status");
    assert!(status.ends_with(" pages, and waits: the buffer pool is getting smaller"), "{status}");
    resize(&db, 4 << 20);
    assert_eq!(load(&db), 0);
    // More than at the least, though less than at first.
    resize(&db, 6 << 20);
    load(&db);
    assert_eq!((read(&db, "t"), read(&db, "u")), (0, 0));

    // While it waits it can be given up, too.
    db.close().unwrap();
    let db = open(&sim);
    assert!(db.step_load().unwrap() && db.step_load().unwrap());
    resize(&db, 6 << 20);
    assert_eq!(load(&db), 0);
    db.abort_buffer_pool_load();
    resize(&db, 16 << 20);
    assert_eq!(load(&db), 0);
    let status = text(&db, "buffer_pool_load_status");
    assert!(status.starts_with("Buffer pool(s) load aborted on request: "), "{status}");
}

#[test]
fn a_damaged_list_is_ignored() {
    let (sim, db) = life();
    db.close().unwrap();
    let file = sim.open(LIST).unwrap();
    let mut block = AlignedBuf::zeroed(512);
    file.read_at(&mut block, 0).unwrap();
    block[66] ^= 1;
    file.write_at(&block, 0).unwrap();
    let db = open(&sim);
    assert_eq!(load(&db), 0);
    let status = text(&db, "buffer_pool_load_status");
    assert_eq!(status, "The list of hot pages is not usable: its checksum is wrong");
    // The next one is as good as any.
    read(&db, "t");
    db.close().unwrap();
    assert!(load(&open(&sim)) > 200);
}

#[test]
fn failures_of_the_disk_are_told_and_do_nothing_else() {
    let (sim, db) = life();
    for op in [StorageOp::Write, StorageOp::Sync, StorageOp::Rename, StorageOp::Create] {
        for kind in [FaultKind::Io, FaultKind::NoSpace] {
            sim.inject(Fault::new(op, kind).on(LIST));
            assert!(db.dump_buffer_pool().is_err(), "{op:?} {kind:?}");
            let status = text(&db, "buffer_pool_dump_status");
            assert!(status.starts_with("Buffer pool(s) dump failed: "), "{status}");
            db.dump_buffer_pool().unwrap();
        }
    }
    make(&db, "u");
    db.close().unwrap();
    // The first are reads of the opening of either file, later ones those of pages.
    for reads in 0..8 {
        let db = open(&sim);
        sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("tables/").skip(reads).times(3));
        let loaded = load(&db);
        sim.clear_faults();
        let status = text(&db, "buffer_pool_load_status");
        assert!(status.starts_with("Buffer pool(s) load completed: "), "{status}");
        if reads == 0 {
            assert!(status.ends_with("; 2 files could not be opened"), "{status}");
            // Those of the engine's own files.
            assert!(loaded < 100, "{loaded}");
        }
        read(&db, "t");
        read(&db, "u");
        // The list is still whole.
        db.set_buffer_pool_dump_at_shutdown(false);
        db.close().unwrap();
    }
}

#[test]
fn a_read_only_directory_is_loaded_and_not_written() {
    let (sim, db) = life();
    db.close().unwrap();
    let before = sim.list("").unwrap();
    let read_only = Options { read_only: true, ..options() };
    let db = Db::open_on(Arc::new(sim.clone()), read_only).unwrap();
    assert!(load(&db) > 200);
    assert!(db.dump_buffer_pool().is_err());
    sim.remove(LIST).unwrap();
    db.close().unwrap();
    assert_eq!(sim.list("").unwrap().len(), before.len() - 1);
}

#[test]
fn threads_load_on_real_files() {
    let dir = tempfile::tempdir().unwrap();
    let with_threads = || Options { background: true, ..options() };
    let db = Db::open(dir.path(), with_threads()).unwrap();
    make(&db, "t");
    read(&db, "t");
    db.close().unwrap();
    let db = Db::open(dir.path(), with_threads()).unwrap();
    let began = Instant::now();
    while !text(&db, "buffer_pool_load_status").contains("completed") {
        assert!(began.elapsed() < Duration::from_secs(120), "loading never ends");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(read(&db, "t"), 0);
    db.load_buffer_pool().unwrap();
    db.abort_buffer_pool_load();
    db.close().unwrap();
}
