//! Data directories whose files are not all there, or not all the catalog's, on a simulated disk.

use super::definition_tests::{create, open};
use super::*;
use crate::ReadRequest;
use crate::btree::Tree;
use crate::pause::{PausePoint, with_hook};
use crate::table::provisional_trees;
use crate::test_storage::{place_of, spoil};
use crate::{IndexDef, LockMode, LockWait, TableDef, TransactionOptions};
use tidepool_pool::PageId;
use tidepool_pool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};

const FILE_OF_A: &str = "tables/00000010.tpd";

/// The value of the key `k` in a table.
fn value(db: &Db, table: &str) -> Result<Vec<u8>> {
    let table = db.open_table(table)?;
    let mut trx = db.begin(TransactionOptions::default());
    let mut value = vec![];
    assert!(trx.read(&table, 0, ReadRequest::new(b"k", &mut value))?);
    Ok(value)
}

/// Tables `a` and `b`, in each a committed value and over it one that is not, all of it in the
/// files of the pages: as a kill left it.
fn unfinished() -> SimStorage {
    let sim = SimStorage::new(5);
    let db = open(&sim);
    let mut unfinished = vec![];
    for name in ["a", "b"] {
        let table = db.create_table(name, &TableDef::new([IndexDef::unique("primary")])).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(&table, 0, b"k", b"committed").unwrap();
        trx.commit().unwrap();
        trx.update(&table, 0, b"k", b"never committed").unwrap();
        unfinished.push(trx);
    }
    db.inner.env().checkpoint_all().unwrap();
    sim.kill()
}

/// Each once: those that fail go to the end of the line.
fn try_each_rollback(db: &Db) {
    for _ in 0..db.inner.trx_system().rollbacks_pending() {
        let _may_wait_for_a_file = db.step_rollback_recovered();
    }
}

#[test]
fn a_rollback_waits_for_a_file_that_is_missing() {
    let sim = unfinished();
    sim.rename(FILE_OF_A, "away").unwrap();
    let db = open(&sim);
    // The other's is not held up by it.
    try_each_rollback(&db);
    let error = db.step_rollback_recovered().unwrap_err().to_string();
    assert_eq!(
        error,
        "tables/00000010.tpd: the file is missing, and a transaction that changed it waits for it: put it back, or drop the table"
    );
    assert_eq!(db.inner.trx_system().rollbacks_pending(), 1);
    assert_eq!(value(&db, "b").unwrap(), b"committed");
    let b = db.open_table("b").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.update(&b, 0, b"k", b"newer").unwrap();
    trx.commit().unwrap();
    drop((trx, b));
    db.close().unwrap();
    drop(db);
    let sim = sim.kill();
    sim.rename("away", FILE_OF_A).unwrap();
    let db = open(&sim);
    while db.step_rollback_recovered().unwrap() {}
    assert_eq!(value(&db, "a").unwrap(), b"committed");
    assert_eq!(value(&db, "b").unwrap(), b"newer");
}

/// Messages of errors and warnings.
#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    /// What the work of this thread says in the log.
    pub(super) fn during<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
        let told = Told::default();
        // With one subscriber alone, tracing asks the thread that comes to a message first whether
        // anything listens, and keeps the answer: a test beside this one would answer no.
        let _second = tracing::Dispatch::new(told.clone());
        let outcome = tracing::subscriber::with_default(told.clone(), work);
        let said = told.0.lock().clone();
        (outcome, said)
    }
}

impl tracing::field::Visit for Told {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Told {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

const KEYS: u16 = 4000;

/// Tables `a` and `b` with [`KEYS`] keys each, some with long values; every second is deleted, and
/// nothing purged. Clean, and the file of `a` is away.
fn unpurged_without_a_file() -> SimStorage {
    let sim = SimStorage::new(9);
    let db = open(&sim);
    for name in ["a", "b"] {
        let table = db.create_table(name, &TableDef::new([IndexDef::unique("primary")])).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for n in 0..KEYS {
            let len = if n % 100 == 0 { 50_000 } else { 20 };
            trx.insert(&table, 0, &n.to_be_bytes(), &vec![1; len]).unwrap();
        }
        trx.commit().unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for n in (0..KEYS).step_by(2) {
            trx.delete(&table, 0, &n.to_be_bytes()).unwrap();
        }
        trx.commit().unwrap();
    }
    db.close().unwrap();
    let sim = sim.kill();
    sim.rename(FILE_OF_A, "away").unwrap();
    sim
}

fn history(db: &Db) -> u64 {
    db.status().get("history_list_length").unwrap()
}

fn purge(db: &Db) {
    while db.step_purge().unwrap() {}
    assert_eq!(history(db), 0);
}

/// Entries of a table that are delete-marked.
fn delete_marked(db: &Db, table: &Table) -> u64 {
    let report = table.check(db, &mut |_| true).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    report.indexes[0].delete_marked
}

#[test]
fn purge_passes_over_a_table_whose_file_is_missing() {
    let sim = unpurged_without_a_file();
    let db = open(&sim);
    let ((), said) = Told::during(|| purge(&db));
    assert_eq!(db.status().get("purge_entries"), Some(u64::from(KEYS) / 2));
    assert_eq!(
        said,
        [
            "tables/00000010.tpd: the file of a table is missing, and purge passes over what transactions deleted there: put it back, or drop the table"
        ]
    );
    let error = db.open_table("a").unwrap_err().to_string();
    assert_eq!(error, "tables/00000010.tpd: the file is missing: put it back, or drop the table");
    let b = db.open_table("b").unwrap();
    assert_eq!((delete_marked(&db, &b), b.unreachable_pages().unwrap()), (0, vec![]));
    drop(b);
    db.close().unwrap();
    drop(db);

    // Put back, it has what was committed, and is written as ever.
    let sim = sim.kill();
    sim.rename("away", FILE_OF_A).unwrap();
    let db = open(&sim);
    let a = db.open_table("a").unwrap();
    let live = || -> Vec<u16> {
        let mut trx = db.begin(TransactionOptions::default());
        let (mode, wait, mut value) = (LockMode::None, LockWait::Wait, vec![]);
        let mut is_there = |n: &u16| {
            trx.read(&a, 0, ReadRequest::new(&n.to_be_bytes(), &mut value).locked(mode, wait))
        };
        (0..KEYS).filter(|n| is_there(n).unwrap()).collect()
    };
    let is_odd = |n: &u16| n % 2 == 1;
    assert_eq!(live(), (0..KEYS).filter(is_odd).collect::<Vec<_>>());
    purge(&db);
    let left = delete_marked(&db, &a);
    assert!(left > 1000, "{left}");
    let insert = |end: fn(&mut crate::Transaction)| {
        let mut trx = db.begin(TransactionOptions::default());
        for n in (0..KEYS / 2).step_by(2) {
            trx.insert(&a, 0, &n.to_be_bytes(), b"anew").unwrap();
        }
        end(&mut trx);
    };
    insert(|trx| trx.rollback().unwrap());
    assert_eq!((live().len() as u16, delete_marked(&db, &a)), (KEYS / 2, left));
    insert(|trx| trx.commit().unwrap());
    let mut trx = db.begin(TransactionOptions::default());
    for n in 0..KEYS / 4 {
        trx.delete(&a, 0, &n.to_be_bytes()).unwrap();
    }
    trx.commit().unwrap();
    purge(&db);
    assert_eq!(live(), (KEYS / 4..KEYS).filter(|n| is_odd(n) || *n < KEYS / 2).collect::<Vec<_>>());
    assert!(delete_marked(&db, &a) < left);
    drop(a);
    db.drop_table("a").unwrap();
    db.close().unwrap();
}

#[test]
fn purge_waits_for_a_disk_that_cannot_tell_whether_a_file_is_there() {
    let sim = unpurged_without_a_file();
    sim.rename("away", FILE_OF_A).unwrap();
    for op in [StorageOp::List, StorageOp::Open, StorageOp::Read] {
        let sim = sim.kill();
        let db = open(&sim);
        sim.inject(Fault::new(op, FaultKind::Io).on(FILE_OF_A).always());
        while db.step_purge().is_ok_and(|purged| purged) {}
        let error = db.step_purge().unwrap_err().to_string();
        assert!(error.contains("tables/00000010.tpd"), "{op:?}: {error}");
        assert!(history(&db) > 0, "{op:?}");
        sim.clear_faults();
        purge(&db);
        let a = db.open_table("a").unwrap();
        assert_eq!((delete_marked(&db, &a), a.unreachable_pages().unwrap()), (0, vec![]));
        drop(a);
        db.close().unwrap();
    }
}

#[test]
fn dropping_a_table_without_a_file_ends_the_rollback_that_waits_for_it() {
    let sim = unfinished();
    sim.remove(FILE_OF_A).unwrap();
    let db = open(&sim);
    db.drop_table("a").unwrap();
    while db.step_rollback_recovered().unwrap() {}
    assert_eq!(db.inner.trx_system().rollbacks_pending(), 0);
    assert_eq!(value(&db, "b").unwrap(), b"committed");
}

/// A rollback may have millions of rows to undo.
#[test]
fn a_change_of_a_definition_does_not_wait_for_rollbacks_of_an_earlier_life() {
    let sim = unfinished();
    let db = open(&sim);
    let pending = || db.inner.trx_system().rollbacks_pending();
    create(&db, "new");
    db.rename_table("b", "c").unwrap();
    let def = db.table_def("a").unwrap();
    let mut change = db.rebuild_table("a", &def).unwrap();
    while let Some((key, value)) = change.next_row().unwrap() {
        let (key, value) = (key.to_vec(), value.to_vec());
        change.push_row(&key, &value).unwrap();
    }
    change.build(&mut || true).unwrap();
    change.commit(&[]).unwrap();
    assert_eq!(pending(), 2);
    assert_eq!(value(&db, "a").unwrap(), b"committed");
    let a = db.open_table("a").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.update(&a, 0, b"k", b"newer").unwrap();
    trx.commit().unwrap();
    while db.step_rollback_recovered().unwrap() {}
    assert_eq!(pending(), 0);
    assert_eq!(value(&db, "a").unwrap(), b"newer");
    assert_eq!(value(&db, "c").unwrap(), b"committed");
}

#[test]
fn a_rollback_waits_for_a_tree_that_is_zeroed() {
    let sim = unfinished();
    let file = sim.open(FILE_OF_A).unwrap();
    let len = file.len().unwrap();
    file.set_len(0).unwrap();
    file.set_len(len).unwrap();
    drop(file);
    let db = open(&sim);
    try_each_rollback(&db);
    let error = db.step_rollback_recovered().unwrap_err().to_string();
    assert!(error.starts_with("tables/00000010.tpd: none of its roots is whole"), "{error}");
    db.drop_table("a").unwrap();
    while db.step_rollback_recovered().unwrap() {}
    assert_eq!(db.inner.trx_system().rollbacks_pending(), 0);
}

#[test]
fn files_that_cannot_be_tables_are_ignored() {
    let sim = SimStorage::new(6);
    let db = open(&sim);
    let table = db.create_table("a", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"k", b"v").unwrap();
    trx.commit().unwrap();
    drop((trx, table));
    db.close().unwrap();
    drop(db);
    let sim = sim.kill();
    let strangers = [
        "00000000.tpd",
        "00000001.tpd",
        "0000000f.tpd",
        "0000001A.tpd",
        "+000001a.tpd",
        "1a.tpd",
        "a.txt",
        "ffffffff.tpd",
    ];
    for name in strangers {
        sim.create(&format!("tables/{name}")).unwrap();
    }
    for _ in 0..2 {
        let db = open(&sim);
        assert_eq!(value(&db, "a").unwrap(), b"v");
        db.close().unwrap();
        for name in strangers {
            assert!(sim.exists(&format!("tables/{name}")).unwrap(), "{name}");
        }
        assert!(!sim.exists("tables/orphans").unwrap());
    }
}

#[test]
fn files_that_nobody_needs_keep_no_database_from_opening() {
    const ORPHAN: &str = "tables/000000aa.tpd";
    let sim = SimStorage::new(22);
    let db = open(&sim);
    db.create_table("a", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&db.open_table("a").unwrap(), 0, b"k", b"v").unwrap();
    trx.commit().unwrap();
    drop(trx);
    db.close().unwrap();
    drop(db);
    let mut sim = sim.kill();
    sim.create_dir("sort").unwrap();
    sim.create("sort/00000011").unwrap();
    let bytes = tidepool_pool::storage::AlignedBuf::copy_of(&[1; 1 << 16]);
    sim.create(ORPHAN).unwrap().write_at(&bytes, 0).unwrap();
    for (op, file) in [
        (StorageOp::Open, ORPHAN),
        (StorageOp::Read, ORPHAN),
        (StorageOp::CreateDir, "tables/orphans"),
        (StorageOp::Rename, ORPHAN),
        (StorageOp::Remove, "sort/"),
    ] {
        sim = sim.kill();
        sim.inject(Fault::new(op, FaultKind::Io).on(file).always());
        let db = open(&sim);
        assert_eq!(value(&db, "a").unwrap(), b"v", "{op:?}");
        db.close().unwrap();
        assert_eq!(sim.exists(ORPHAN).unwrap(), op != StorageOp::Remove, "{op:?}");
    }
}

#[test]
fn a_table_that_lost_changes_is_marked_though_a_change_of_its_definition_was_unfinished() {
    let sim = SimStorage::new(7);
    let db = open(&sim);
    let table = db.create_table("a", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    db.inner.env().checkpoint_all().unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"k", b"v").unwrap();
    trx.commit().unwrap();
    let mut definition = db.inner.definition_trx();
    db.inner.catalog.tree().delete(&mut definition, b"a").unwrap();
    db.flush_log().unwrap();
    let killed = sim.kill();
    drop((definition, trx, table, db));
    killed.rename(FILE_OF_A, "away").unwrap();
    let db = open(&killed);
    assert!(db.inner.catalog.get("a").unwrap().lost_changes);
    db.close().unwrap();
    drop(db);
    let sim = killed.kill();
    sim.rename("away", FILE_OF_A).unwrap();
    let error = open(&sim).open_table("a").unwrap_err().to_string();
    assert!(error.contains("lacks changes made before"), "{error}");
}

#[test]
fn a_prepared_transaction_that_fails_to_roll_back_lets_go_of_its_tables() {
    let sim = SimStorage::new(8);
    let db = open(&sim);
    let table = db.create_table("a", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"k", b"v").unwrap();
    trx.prepare(b"xid").unwrap();
    trx.detach();
    drop((trx, table));
    assert_eq!(db.drop_table("a").unwrap_err(), Error::TableBusy("a".into()));
    // The page is read again, and cannot be.
    let env = db.inner.env();
    let space = env.space(db.inner.catalog.get("a").unwrap().space).unwrap();
    env.pool().flush_all().unwrap();
    db.inner.tables.lock().by_name.clear();
    env.pool().close_space(&space, false).unwrap();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on("tables/").always());
    let error = db.rollback_prepared(b"xid").unwrap_err().to_string();
    assert!(error.starts_with("cannot read 'tables/00000010.tpd'"), "{error}");
    assert!(db.recovered_xids().is_empty());
    assert!(db.inner.detached.lock().is_empty());
    sim.clear_faults();
    while db.step_rollback_recovered().unwrap() {}
    db.drop_table("a").unwrap();
}

/// What recovery could not make is lost for good, and what undo says of the table is of no use: its
/// file is there, but not as undo takes it to be.
#[test]
fn rollback_and_purge_pass_over_a_table_that_lost_changes() {
    let sim = SimStorage::new(10);
    let db = open(&sim);
    let [a, b] = ["a", "b"].map(|name| {
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table(name, &def).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(&table, 0, b"k", b"committed").unwrap();
        trx.commit().unwrap();
        table
    });
    db.inner.env().checkpoint_all().unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for n in 0..100u16 {
        trx.insert(&a, 0, &n.to_be_bytes(), &[1; 50_000]).unwrap();
        trx.update(&a, 0, &n.to_be_bytes(), b"short").unwrap();
        trx.delete(&a, 0, &n.to_be_bytes()).unwrap();
    }
    trx.commit().unwrap();
    trx.update(&b, 0, b"k", b"never committed").unwrap();
    trx.update(&a, 0, b"k", b"never committed").unwrap();
    db.flush_log().unwrap();
    let sim = sim.kill();
    drop((trx, a, b, db));

    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on(FILE_OF_A).always());
    let db = open(&sim);
    sim.clear_faults();
    assert!(db.inner.catalog.get("a").unwrap().lost_changes);
    while db.step_rollback_recovered().unwrap() {}
    purge(&db);
    let b = db.open_table("b").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.update(&b, 0, b"k", b"newer").unwrap();
    trx.commit().unwrap();
    drop((trx, b));
    assert!(db.open_table("a").unwrap_err().to_string().contains("lacks changes made before"));
    db.drop_table("a").unwrap();
    db.close().unwrap();
}

/// A broken page keeps the log that is about it, and none that begins after purge has met it.
#[test]
fn a_broken_table_does_not_keep_the_history_of_others() {
    let sim = SimStorage::new(11);
    let db = open(&sim);
    for name in ["a", "b"] {
        let table = db.create_table(name, &TableDef::new([IndexDef::unique("primary")])).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(&table, 0, b"k", b"v").unwrap();
        trx.commit().unwrap();
    }
    let mut trx = db.begin(TransactionOptions::default());
    trx.delete(&db.open_table("a").unwrap(), 0, b"k").unwrap();
    trx.commit().unwrap();
    drop(trx);
    db.close().unwrap();
    drop(db);
    let sim = sim.kill();
    // Page 2: the tree's root.
    spoil(&sim, PageId::new(16, 2));

    let db = open(&sim);
    let error = db.step_purge().unwrap_err().to_string();
    assert!(error.starts_with("tables/00000010.tpd: page 2 is corrupt"), "{error}");
    let b = db.open_table("b").unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for n in 0..100u8 {
        trx.update(&b, 0, b"k", &[n]).unwrap();
        trx.commit().unwrap();
        let purged = db.step_purge();
        assert_eq!((purged, history(&db)), (Ok(true), 1));
    }
    assert_eq!(db.status().get("undo_streams"), Some(2));
    drop((trx, b));
    db.drop_table("a").unwrap();
    purge(&db);
    db.close().unwrap();
}

#[test]
fn a_file_that_cannot_be_removed_goes_as_soon_as_it_can_be() {
    #[derive(Debug, PartialEq)]
    enum Until {
        Close,
        NextOpen,
        NextClose,
    }
    for crashes in [false, true] {
        for until in [Until::Close, Until::NextOpen, Until::NextClose] {
            let mut sim = SimStorage::new(12);
            let db = open(&sim);
            db.create_table("a", &TableDef::new([IndexDef::unique("primary")])).unwrap();
            let fault = || Fault::new(StorageOp::Remove, FaultKind::Io).on(FILE_OF_A).always();
            sim.inject(fault());
            db.drop_table("a").unwrap();
            assert!(sim.exists(FILE_OF_A).unwrap());
            if until == Until::Close {
                sim.clear_faults();
            }
            if !crashes {
                db.close().unwrap();
            }
            sim = sim.kill();
            if until == Until::NextClose {
                sim.inject(fault());
            }
            let db = open(&sim);
            sim.clear_faults();
            assert_eq!(sim.exists(FILE_OF_A).unwrap(), until == Until::NextClose);
            db.close().unwrap();
            for file in [FILE_OF_A, "tables/orphans"] {
                assert!(!sim.exists(file).unwrap(), "{file}, {until:?}, crashes: {crashes}");
            }
            assert!(open(&sim.kill()).inner.env().was_clean());
        }
    }
}

/// A power cut may bring the file back, when the log has nothing left to say of it.
#[test]
fn a_removal_is_made_durable_before_the_log_forgets_it() {
    let sim = SimStorage::new(12);
    let db = open(&sim);
    db.create_table("a", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    // Of a file without pages it would be known anyway.
    db.inner.env().checkpoint_all().unwrap();
    sim.inject(Fault::new(StorageOp::SyncDir, FaultKind::Io).on("tables"));
    db.drop_table("a").unwrap();
    assert!(!sim.exists(FILE_OF_A).unwrap());
    db.close().unwrap();
    for outcome in 0..16 {
        let disk = sim.crash_with(outcome);
        let db = open(&disk);
        assert!(db.inner.env().was_clean());
        for file in [FILE_OF_A, "tables/orphans"] {
            assert!(!disk.exists(file).unwrap(), "{file}, outcome {outcome}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_removed_is_known_to_be_nobodys_whatever_checkpoints_come() {
    let mut sim = SimStorage::new(12);
    let db = open(&sim);
    db.create_table("a", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    // Of a file without pages it would be known anyway.
    db.inner.env().checkpoint_all().unwrap();
    let fault = || Fault::new(StorageOp::Remove, FaultKind::Io).on(FILE_OF_A).always();
    sim.inject(fault());
    db.drop_table("a").unwrap();
    db.inner.env().checkpoint_all().unwrap();
    drop(db);
    for life in 0..3 {
        sim = sim.kill();
        sim.inject(fault());
        let db = open(&sim);
        db.create_table(&format!("b{life}"), &TableDef::new([IndexDef::unique("primary")]))
            .unwrap();
        let env = db.inner.env();
        for _ in 0..3 {
            env.checkpoint_all().unwrap();
        }
        // What is repeated is no reason for another checkpoint.
        let at = || (env.redo().next_lsn(), env.redo().stats().checkpoints);
        let idle = at();
        env.step_checkpoint(std::time::Duration::from_secs(10)).unwrap();
        assert_eq!(at(), idle);
        if life == 1 {
            db.close().unwrap();
        }
        assert!(sim.exists(FILE_OF_A).unwrap());
    }
    sim = sim.kill();
    let db = open(&sim);
    assert!(!sim.exists(FILE_OF_A).unwrap() && !sim.exists("tables/orphans").unwrap());
    db.close().unwrap();
    drop(db);
    assert!(open(&sim.kill()).inner.env().was_clean());
}

/// Pages that had not been written when the table was dropped are not there: who comes to one finds
/// zeroes.
#[test]
fn purge_passes_over_a_dropped_table_whose_file_cannot_be_removed() {
    let sim = SimStorage::new(23);
    let db = open(&sim);
    let table = db.create_table("a", &TableDef::new([IndexDef::unique("primary")])).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"k", b"v").unwrap();
    trx.commit().unwrap();
    trx.delete(&table, 0, b"k").unwrap();
    trx.commit().unwrap();
    drop((trx, table));
    db.inner.env().checkpoint_all().unwrap();
    sim.inject(Fault::new(StorageOp::Remove, FaultKind::Io).on(FILE_OF_A).always());
    db.drop_table("a").unwrap();
    assert!(sim.exists(FILE_OF_A).unwrap());
    purge(&db);
    assert_eq!(db.status().get("purge_entries"), Some(1), "not only the catalog's");
}

/// Without its word in the log, the file would be taken for somebody's data.
#[test]
fn a_checkpoint_in_the_middle_of_a_definition_change_leaves_no_orphan() {
    type Change = fn(&Db);
    let changes: [(Change, PausePoint); 4] = [
        (
            |db| _ = db.create_table("b", &TableDef::new([IndexDef::unique("primary")])),
            PausePoint::TableMade,
        ),
        (|db| _ = db.drop_table("a"), PausePoint::TableUnlisted),
        (|db| _ = db.truncate_table("a"), PausePoint::TableMade),
        (|db| _ = db.truncate_table("a"), PausePoint::TableUnlisted),
    ];
    for (n, (change, at)) in changes.into_iter().enumerate() {
        let sim = SimStorage::new(21);
        let db = open(&sim);
        db.create_table("a", &TableDef::new([IndexDef::unique("primary")])).unwrap();
        let killed = Arc::new(Mutex::new(None));
        let (inner, disk, seen) = (db.inner.clone(), sim.clone(), killed.clone());
        let hook = move |point| {
            if point == at {
                inner.env().checkpoint_all().unwrap();
                *seen.lock() = Some(disk.crash_with(n as u64));
            }
        };
        with_hook(hook, || change(&db));
        let killed = killed.lock().take().expect("the point was reached");
        // The first recovery does not get to the removal.
        killed.inject(Fault::new(StorageOp::Remove, FaultKind::Io).on("tables/").always());
        let again = open(&killed);
        again.inner.env().checkpoint_all().unwrap();
        let killed = killed.kill();
        let db = open(&killed);
        assert!(!killed.exists("tables/orphans").unwrap(), "change {n}");
        let tables = killed.list("tables").unwrap().len();
        assert_eq!(tables, db.table_names().unwrap().len(), "change {n}: files that no table has");
    }
}

/// Undo must not go into a tree that is half freed; which ones are is noted in the file.
#[test]
fn purge_passes_over_a_half_freed_tree_whose_file_was_away_at_the_opening() {
    let sim = SimStorage::new(13);
    let db = open(&sim);
    let indexes = ["primary", "dropped"].map(IndexDef::unique);
    let table = db.create_table("a", &TableDef::new(indexes)).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for n in 0..KEYS {
        trx.insert(&table, 1, &n.to_be_bytes(), &[1; 20]).unwrap();
    }
    trx.commit().unwrap();
    for n in 0..KEYS {
        trx.delete(&table, 1, &n.to_be_bytes()).unwrap();
    }
    trx.commit().unwrap();
    db.close().unwrap();
    drop((trx, table, db));
    // None of its pages can be read: the tree is only noted.
    let db = open(&sim);
    db.open_table("a").unwrap();
    let primary = db.table_def("a").unwrap().indexes[0].clone();
    let kept = [ChangedIndex { def: primary, from: Some(0) }];
    let change = db.change_indexes(&db.open_table("a").unwrap(), &kept).unwrap();
    sim.inject(Fault::new(StorageOp::Read, FaultKind::Io).on(FILE_OF_A).always());
    change.commit(&[]).unwrap();
    sim.clear_faults();
    {
        let env = db.inner.env();
        let space = env.space(db.inner.catalog.get("a").unwrap().space).unwrap();
        let noted = provisional_trees::all(env, &space).unwrap()[0];
        let (freed, is_all) =
            Tree::open(env, &space, noted.root, noted.tree).free_step(None).unwrap();
        assert!(freed > 0 && !is_all);
    }
    db.close().unwrap();
    drop(db);
    let sim = sim.kill();
    sim.rename(FILE_OF_A, "away").unwrap();
    let db = open(&sim);
    sim.rename("away", FILE_OF_A).unwrap();
    purge(&db);

    // An index that is made now is not among those passed over.
    let mut indexes = kept.to_vec();
    indexes.push(ChangedIndex { def: IndexDef::unique("added"), from: None });
    let mut change = db.change_indexes(&db.open_table("a").unwrap(), &indexes).unwrap();
    change.build(&mut || true).unwrap();
    let table = change.commit(&[]).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 1, b"never committed", b"").unwrap();
    trx.rollback().unwrap();
    trx.insert(&table, 1, b"deleted", b"").unwrap();
    trx.commit().unwrap();
    trx.delete(&table, 1, b"deleted").unwrap();
    trx.commit().unwrap();
    purge(&db);
    let report = table.check(&db, &mut |_| true).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.indexes[1].entries, report.indexes[1].delete_marked), (0, 0));
    drop((trx, table));
    db.close().unwrap();
    drop(db);
    let db = open(&sim);
    assert_eq!(db.open_table("a").unwrap().unreachable_pages().unwrap(), [] as [u32; 0]);
    db.close().unwrap();
}

/// Three tables, of which `a` has several leaves, and a transaction that has changed all of them in
/// turns and is not finished, all in the files of the pages. With the page of the leaf of `a` that
/// has the first key.
fn unfinished_in_many() -> (SimStorage, u32) {
    let sim = SimStorage::new(14);
    let db = open(&sim);
    let tables = ["a", "b", "c"].map(|name| {
        let def = TableDef::new([IndexDef::unique("primary")]);
        let table = db.create_table(name, &def).unwrap();
        let mut trx = db.begin(TransactionOptions::default());
        for n in 0..1000u16 {
            trx.insert(&table, 0, &n.to_be_bytes(), &[1; 50]).unwrap();
        }
        trx.commit().unwrap();
        table
    });
    let mut trx = db.begin(TransactionOptions::default());
    for (turn, n) in [0u16, 990, 1, 991].into_iter().enumerate() {
        for table in &tables {
            trx.update(table, 0, &n.to_be_bytes(), &[2; 60]).unwrap();
            trx.delete(table, 0, &(n + 2).to_be_bytes()).unwrap();
            trx.insert(table, 0, &(2000 + n).to_be_bytes(), b"never committed").unwrap();
            // Long values, at first and over it again.
            trx.insert(table, 0, &(3000 + n).to_be_bytes(), &[turn as u8; 60_000]).unwrap();
            trx.update(table, 0, &(3000 + n).to_be_bytes(), &[9; 50_000]).unwrap();
        }
    }
    let first = {
        let tree = tables[0].tree(0).tree();
        let key = crate::btree::Seek::Key(&[0, 0]);
        tree.leaf_shared(key, tidepool_pool::Access::Normal).unwrap().page_id().no
    };
    db.inner.env().checkpoint_all().unwrap();
    (sim.kill(), first)
}

/// A page that blocks one table's rollback does not block the others, and transactions that want
/// what it has locked get an error that says so.
#[test]
fn a_rollback_that_a_broken_page_stands_in_the_way_of_keeps_only_that_table() {
    let (sim, first_leaf) = unfinished_in_many();
    let (at, len) = place_of(&sim, PageId::new(16, first_leaf));
    let break_or_mend = |sim: &SimStorage| sim.corrupt(FILE_OF_A, at + len as u64 / 2, 1);
    break_or_mend(&sim);
    let mut db = open(&sim);
    let begin = |db: &Db| {
        let mut trx = db.begin(TransactionOptions::default());
        trx.set_lock_wait_timeout(Duration::ZERO);
        trx
    };
    let (last, free) = (990u16.to_be_bytes(), 900u16.to_be_bytes());
    // One waits already.
    let a = db.open_table("a").unwrap();
    let mut waiter = db.begin(TransactionOptions::default());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.update(&a, 0, &last, b"x").unwrap_err().to_string());
        while db.status().get("row_lock_current_waits") != Some(1) {
            std::thread::yield_now();
        }
        let error = db.step_rollback_recovered().unwrap_err().to_string();
        assert!(error.starts_with("tables/00000010.tpd: page"), "{error}");
        let error = waiting.join().unwrap();
        assert!(
            error.starts_with(
                "tables/00000010.tpd: a transaction that has changed this row can't be rolled back"
            ),
            "{error}"
        );
    });
    drop((waiter, a));
    for life in 0..3 {
        assert_eq!(db.inner.trx_system().rollbacks_pending(), 1);
        assert_eq!(db.transactions().iter().filter(|trx| trx.session.is_none()).count(), 1);
        let mut trx = begin(&db);
        for name in ["b", "c"] {
            let table = db.open_table(name).unwrap();
            for n in [0u16, 2, 3, 990, 992, 993] {
                trx.update(&table, 0, &n.to_be_bytes(), &[life; 70]).unwrap();
            }
            trx.insert(&table, 0, &2990u16.to_be_bytes(), b"").unwrap();
            trx.delete(&table, 0, &2990u16.to_be_bytes()).unwrap();
        }
        let a = db.open_table("a").unwrap();
        trx.update(&a, 0, &free, &[life; 50]).unwrap();
        let mut value = vec![];
        let (none, wait) = (LockMode::None, LockWait::Wait);
        assert!(trx.read(&a, 0, ReadRequest::new(&last, &mut value).locked(none, wait)).unwrap());
        assert_eq!(value, [1; 50]);
        trx.commit().unwrap();
        let is_told = |done: Result<()>| {
            let error = done.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Format { .. }) && text.contains("is corrupt"), "{text}");
        };
        is_told(trx.update(&a, 0, &last, b""));
        is_told(trx.delete(&a, 0, &last));
        is_told(trx.insert(&a, 0, &2990u16.to_be_bytes(), b""));
        let (mode, skip, no_wait) = (LockMode::Shared, LockWait::SkipLocked, LockWait::NoWait);
        is_told(trx.read(&a, 0, ReadRequest::new(&last, &mut value).locked(mode, wait)).map(drop));
        assert_eq!(
            trx.read(&a, 0, ReadRequest::new(&last, &mut value).locked(mode, skip)),
            Ok(false)
        );
        assert_eq!(
            trx.read(&a, 0, ReadRequest::new(&last, &mut value).locked(mode, no_wait)),
            Err(Error::LockNoWait)
        );
        trx.rollback().unwrap();
        assert!(db.step_rollback_recovered().is_err());
        drop((trx, a));
        // By a clean close, and by a crash.
        if life == 0 {
            db.close().unwrap();
        }
        db.flush_log().ok();
        let killed = sim.kill();
        drop(db);
        if life == 2 {
            break_or_mend(&killed);
        }
        db = open(&killed);
        let rolled_back = db.step_rollback_recovered();
        assert_eq!(rolled_back.is_ok(), life == 2);
    }
    assert_eq!(db.inner.trx_system().rollbacks_pending(), 0);
    purge(&db);
    for (name, changed) in [("a", 1), ("b", 6), ("c", 6)] {
        let table = db.open_table(name).unwrap();
        let mut trx = begin(&db);
        let mut cursor = crate::Cursor::new(table.clone(), 0, LockMode::Shared, LockWait::Wait);
        let (mut rows, mut other) = (0, 0);
        while cursor.next(&mut trx).unwrap() {
            rows += 1;
            other += i32::from(cursor.value() != [1; 50]);
        }
        assert_eq!((rows, other), (1000, changed), "{name}");
        drop((trx, cursor));
        let report = table.check(&db, &mut |_| true).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        assert_eq!(table.unreachable_pages().unwrap(), [] as [u32; 0], "{name}");
    }
    db.close().unwrap();
}

/// A page of `a` can't be written, for its file does not say any more where it is: the log fills up
/// because of it. The error says so, and the table can be dropped.
#[test]
fn a_table_that_fills_the_log_can_be_dropped() {
    let sim = SimStorage::new(5);
    let db = open(&sim);
    let tables = ["a", "b"].map(|name| create(&db, name));
    let insert = |table: &Arc<Table>, key: u32, len: usize| {
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(table, 0, &key.to_be_bytes(), &vec![7; len]).and_then(|()| trx.commit())
    };
    tables.iter().for_each(|table| insert(table, 0, 9).unwrap());
    let env = db.inner.env();
    env.checkpoint_all().unwrap();
    let space = env.space(tables[0].space_id()).unwrap();
    space.file().checkpoint().unwrap();
    space.file().trim_map(0);
    sim.inject(
        Fault::new(StorageOp::Read, FaultKind::Io).on(FILE_OF_A).within(0..1 << 40).always(),
    );
    insert(&tables[0], 1, 9).unwrap();
    let keys = 1..20_000;
    let error = keys.clone().find_map(|key| insert(&tables[1], key, 6000).err());
    let error = error.expect("the log is full").to_string();
    assert!(error.starts_with("tables/00000010.tpd: page "), "{error}");
    assert!(error.contains("dropping the table frees the log"), "{error}");
    let [a, b] = tables;
    drop((a, space));
    db.drop_table("a").unwrap();
    keys.take(2000).for_each(|key| insert(&b, 30_000 + key, 6000).unwrap());
}
