//! Definition changes that meet something else half-way: a pause point stops one side there.

use super::*;
use crate::ReadRequest;
use crate::catalog::{Attachment, IndexDef, TableDef};
use crate::lock::{LockMode, LockWait};
use crate::pause::{PausePoint, with_hook};
use crate::trx::{Isolation, TransactionOptions};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::thread;
use tidepool_pool::storage::SimStorage;

/// A database on this disk, without threads.
pub(super) fn open(sim: &SimStorage) -> Db {
    Db::open_on(Arc::new(sim.clone()), Options::small()).unwrap()
}

pub(super) fn create(db: &Db, name: &str) -> Arc<Table> {
    db.create_table(name, &TableDef::new([IndexDef::unique("primary")])).unwrap()
}

#[test]
fn no_table_goes_while_a_prepared_transaction_is_rolled_back() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"k", b"prepared").unwrap();
    trx.prepare(b"x").unwrap();

    let db = open(&sim.crash());
    let refused = Arc::new(AtomicU64::new(0));
    let hook = {
        let (db, refused) = (db.clone(), Arc::clone(&refused));
        move |point| {
            if point == PausePoint::UndoRecordRead {
                let busy = Error::TableBusy("t".into());
                assert_eq!(db.drop_table("t").unwrap_err(), busy);
                assert_eq!(db.truncate_table("t").unwrap_err(), busy);
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    with_hook(hook, || db.rollback_prepared(b"x")).unwrap();
    assert_eq!(refused.load(Ordering::Relaxed), 2, "for the row and for the XID");
    assert_eq!(db.rollback_prepared(b"x").unwrap_err(), Error::NotFound);
    db.drop_table("t").unwrap();
}

/// As soon as a prepared transaction has ended, another may be prepared under its XID.
#[test]
fn a_prepared_transaction_keeps_its_tables_when_another_of_its_xid_has_just_ended() {
    fn prepare(db: &Db, table: &Arc<Table>) {
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(table, 0, b"k", b"prepared").unwrap();
        trx.prepare(b"x").unwrap();
        trx.detach();
    }
    let db = open(&SimStorage::new(1));
    let (first, second) = (create(&db, "first"), create(&db, "second"));
    prepare(&db, &first);
    let hook = {
        let (db, second) = (db.clone(), second.clone());
        move |point| {
            if point == PausePoint::PreparedEnded {
                prepare(&db, &second);
            }
        }
    };
    with_hook(hook, || db.commit_prepared(b"x")).unwrap();
    assert_eq!((first.rows(), second.rows()), (1, 0));
    let busy = Error::TableBusy("second".into());
    assert_eq!(db.drop_table("second").unwrap_err(), busy);
    assert!(db.is_used_without_session(|name| name == "second"));
    db.drop_table("first").unwrap();
    db.rollback_prepared(b"x").unwrap();
    db.drop_table("second").unwrap();
}

#[test]
fn nobody_opens_a_table_that_is_being_dropped() {
    for truncate in [false, true] {
        let sim = SimStorage::new(1);
        let db = open(&sim);
        create(&db, "t");
        create(&db, "other");
        db.close().unwrap();

        let db = open(&sim);
        let (tell, opened) = mpsc::channel();
        let hook = {
            let db = db.clone();
            let mut opener = Some(move |db: Db| tell.send(db.open_table("t")).unwrap());
            move |point| {
                if point == PausePoint::TableFoundClosed
                    && let Some(opener) = opener.take()
                {
                    let its = db.clone();
                    thread::spawn(move || opener(its));
                    // Time for it to come in between, if it may.
                    thread::sleep(Duration::from_millis(50));
                    db.open_table("other").unwrap();
                }
            }
        };
        let changed = with_hook(hook, || match truncate {
            false => db.drop_table("t").map(|()| None),
            true => db.truncate_table("t").map(Some),
        });
        let opened = opened.recv().unwrap();
        match changed.unwrap() {
            None => assert_eq!(opened.unwrap_err(), Error::TableMissing("t".into())),
            Some(table) => assert!(Arc::ptr_eq(&opened.unwrap(), &table)),
        }
        db.open_table("other").unwrap();
    }
}

/// While the change waits for the log, others commit.
#[test]
fn a_snapshot_that_sees_a_change_of_a_table_reads_the_table() {
    for truncate in [false, true] {
        let db = open(&SimStorage::new(1));
        let (table, other) = (create(&db, "t"), create(&db, "other"));
        let write = |table: &Arc<Table>| {
            let mut trx = db.begin(TransactionOptions::default());
            trx.insert(table, 0, b"k", b"v").unwrap();
            trx.commit().unwrap();
        };
        write(&table);
        let taken = Arc::new(Mutex::new(None));
        let hook = {
            let (db, taken) = (db.clone(), taken.clone());
            move |point| {
                if point == PausePoint::DefinitionCommitted {
                    let mut snapshot = db.begin(TransactionOptions::default());
                    snapshot.ensure_view();
                    *taken.lock() = Some(snapshot);
                    let mut trx = db.begin(TransactionOptions::default());
                    trx.insert(&other, 0, b"k", b"v").unwrap();
                    trx.commit().unwrap();
                }
            }
        };
        let changed = with_hook(hook, || match truncate {
            false => db.rename_table("t", "u").and_then(|()| db.open_table("u")),
            true => db.truncate_table("t"),
        });
        let mut snapshot = taken.lock().take().expect("the point was reached");
        let mut value = Vec::new();
        let (none, wait) = (LockMode::None, LockWait::Wait);
        let found = snapshot.read(
            &changed.unwrap(),
            0,
            ReadRequest::new(b"k", &mut value).locked(none, wait),
        );
        assert_eq!(found, Ok(!truncate));
    }
}

#[test]
fn a_rename_and_what_others_say_of_it_are_one_change() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let definition = |metadata: &[u8]| TableDef {
        metadata: metadata.to_vec(),
        ..TableDef::new([IndexDef::unique("primary")])
    };
    for (name, metadata) in [("p", b"parent"), ("c", b"of p  "), ("d", b"of p  ")] {
        db.create_table(name, &definition(metadata)).unwrap();
    }
    let metadata = |db: &Db, name: &str| db.table_def(name).unwrap().metadata;
    // One of them is not there: nothing is changed.
    let changes: [(&str, &[u8]); 3] = [("c", b"of q"), ("p", b"q"), ("x", b"of q")];
    let missing = Error::TableMissing("x".into());
    let others = |metadata| DefinitionChange { metadata, ..DefinitionChange::default() };
    let renamed = |metadata| DefinitionChange { renames: &[("p", "q")], ..others(metadata) };
    assert_eq!(db.change_tables(&renamed(&changes)).unwrap_err(), missing);
    assert_eq!(db.change_tables(&others(&changes)).unwrap_err(), missing);
    for db in [db.clone(), open(&sim.crash())] {
        assert_eq!(db.table_names().unwrap(), ["c", "d", "p"]);
        assert_eq!(metadata(&db, "c"), b"of p  ");
    }
    let sim = sim.crash();
    let db = open(&sim);
    db.change_tables(&renamed(&changes[..2])).unwrap();
    db.change_tables(&others(&[("c", b"1"), ("d", b"2")])).unwrap();
    for db in [db.clone(), open(&sim.crash())] {
        assert_eq!(db.table_names().unwrap(), ["c", "d", "q"]);
        assert_eq!(["c", "d", "q"].map(|name| metadata(&db, name)), [&b"1"[..], b"2", b"q"]);
    }
    open(&sim.crash()).open_table("q").unwrap();
}

/// All attachments, as `name kind: bytes`, the bytes as text and cut.
fn attachments(db: &Db) -> Vec<String> {
    let mut all = Vec::new();
    db.for_each_attachment(&mut |name, kind, bytes| {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(8)]).into_owned();
        all.push(format!("{name} {kind}: {text} of {}", bytes.len()));
    })
    .unwrap();
    all
}

#[test]
fn attachments_go_with_the_definition_through_crashes() {
    let long = vec![b'l'; 100_000];
    let attach = |name, kind, bytes| Attachment { name, kind, bytes };
    let def = TableDef::new([IndexDef::unique("primary")]);
    let mut sim = SimStorage::new(1);
    let mut db = open(&sim);
    let mut step = |change: &dyn Fn(&Db), after: &[&str]| {
        change(&db);
        assert_eq!(attachments(&db), after);
        sim = sim.crash();
        db = open(&sim);
        assert_eq!(attachments(&db), after, "after a crash");
    };
    // Of a table and of a name that has none; one of them longer than a page.
    let created = [attach("t", 1, Some(&b"image"[..])), attach("base", 2, Some(&long[..]))];
    step(
        &|db| drop(db.create_table_with("t", &def, &created).unwrap()),
        &["base 2: llllllll of 100000", "t 1: image of 5"],
    );
    step(
        &|db| {
            let change = DefinitionChange {
                renames: &[("t", "u")],
                attachments: &[attach("u", 3, Some(b"more")), attach("base", 2, Some(b"short"))],
                ..DefinitionChange::default()
            };
            db.change_tables(&change).unwrap();
        },
        &["base 2: short of 5", "u 1: image of 5", "u 3: more of 4"],
    );
    step(
        &|db| {
            let indexes = [
                ChangedIndex { def: IndexDef::unique("primary"), from: Some(0) },
                ChangedIndex { def: IndexDef::unique("added"), from: None },
            ];
            let mut change = db.change_indexes(&db.open_table("u").unwrap(), &indexes).unwrap();
            change.build(&mut || true).unwrap();
            let other = attach("u", 1, Some(&b"other image"[..]));
            IndexChange::commit_all(vec![change], &[], &[other]).unwrap();
        },
        &["base 2: short of 5", "u 1: other im of 11", "u 3: more of 4"],
    );
    step(
        &|db| drop(db.truncate_table("u").unwrap()),
        &["base 2: short of 5", "u 1: other im of 11", "u 3: more of 4"],
    );
    step(&|db| db.drop_tables(&["u"], &[attach("base", 2, None)]).unwrap(), &[]);
}

/// Partitions, which the layer above takes for one table.
#[test]
fn several_tables_are_renamed_and_dropped_together_whenever_the_power_is_cut() {
    const PARTS: [&str; 3] = ["t#0", "t#1", "t#2"];
    const RENAMED: [&str; 3] = ["u#0", "u#1", "u#2"];
    let renames = [0, 1, 2].map(|at| (PARTS[at], RENAMED[at]));
    let rename = DefinitionChange { renames: &renames, ..DefinitionChange::default() };
    let gone = [Attachment { name: "t", kind: 1, bytes: None }];
    type Change<'a> = (&'a dyn Fn(&Db) -> Result<()>, &'a [&'a str]);
    let changes: [Change<'_>; 2] =
        [(&|db| db.change_tables(&rename), &RENAMED), (&|db| db.drop_tables(&PARTS, &gone), &[])];
    for (change, after) in changes {
        let (mut befores, mut done) = (0, false);
        for cut_after in 0.. {
            let sim = SimStorage::new(cut_after);
            let db = open(&sim);
            for name in PARTS {
                create(&db, name);
            }
            sim.crash_at(sim.operation_count() + cut_after);
            done = change(&db).is_ok() && !sim.is_down();
            let sim = sim.crash();
            let db = open(&sim);
            let found = db.table_names().unwrap();
            assert!(found == after || found == PARTS && !done, "cut {cut_after}: {found:?}");
            befores += usize::from(found == PARTS);
            found.iter().for_each(|name| drop(db.open_table(name).unwrap()));
            assert_eq!(sim.list("tables").unwrap().len(), found.len(), "cut {cut_after}");
            if done {
                break;
            }
        }
        assert!(done && befores > 0);
    }
}

#[test]
fn of_several_tables_one_that_can_t_go_keeps_the_others() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let tables = ["t", "u"].map(|name| create(&db, name));
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&tables[1], 0, b"k", b"v").unwrap();
    let busy = Error::TableBusy("u".into());
    assert_eq!(db.drop_tables(&["t", "u"], &[]).unwrap_err(), busy);
    let missing = Error::TableMissing("x".into());
    assert_eq!(db.drop_tables(&["t", "x"], &[]).unwrap_err(), missing);
    let exists = Error::TableExists("u".into());
    let renames = [("t", "v"), ("u", "u")];
    let change = DefinitionChange { renames: &renames, ..DefinitionChange::default() };
    assert_eq!(db.change_tables(&change).unwrap_err(), exists);
    // It is as usable as ever.
    trx.insert(&tables[0], 0, b"k", b"v").unwrap();
    trx.commit().unwrap();
    drop(trx);
    db.drop_tables(&["t", "u"], &[]).unwrap();
    assert_eq!(db.table_names().unwrap(), [""; 0]);
}

#[test]
fn a_refused_change_leaves_the_attachments() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    create(&db, "t");
    create(&db, "u");
    let attachments_of_t = [Attachment { name: "t", kind: 1, bytes: Some(b"image") }];
    let rename = |attachments| DefinitionChange {
        renames: &[("t", "u")],
        attachments,
        ..DefinitionChange::default()
    };
    let exists = Error::TableExists("u".into());
    assert_eq!(db.change_tables(&rename(&attachments_of_t)).unwrap_err(), exists);
    assert_eq!(attachments(&db), [""; 0]);
    // Under a name whose record of before was deleted, and is not purged.
    for _ in 0..3 {
        let there = DefinitionChange { renames: &[("t", "v")], ..rename(&[]) };
        db.change_tables(&DefinitionChange { renames: &[], ..rename(&attachments_of_t) }).unwrap();
        db.change_tables(&there).unwrap();
        assert_eq!(attachments(&db), ["v 1: image of 5"]);
        assert_eq!(db.attachment("t", 1).unwrap(), None);
        db.change_tables(&DefinitionChange { renames: &[("v", "t")], ..there }).unwrap();
        assert_eq!(db.attachment("t", 1).unwrap().unwrap(), b"image");
    }
}

/// Rows written while an index is built would not be in it.
#[test]
fn the_end_of_an_index_change_leaves_the_log_of_the_next() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    let index =
        |name: &str, from: Option<usize>| ChangedIndex { def: IndexDef::unique(name), from };
    let indexes = [index("primary", Some(0)), index("added", None)];
    let next: Rc<RefCell<Option<IndexChange>>> = Rc::default();
    let hook = {
        let (db, next, indexes) = (db.clone(), Rc::clone(&next), indexes.clone());
        move |point| {
            if point == PausePoint::IndexChangeOver {
                *next.borrow_mut() =
                    Some(db.change_indexes(&db.open_table("t").unwrap(), &indexes).unwrap());
            }
        }
    };
    let first = db.change_indexes(&db.open_table("t").unwrap(), &indexes).unwrap();
    with_hook(hook, || drop(first));
    let mut next = next.take().expect("the next one has begun");
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"k", b"").unwrap();
    trx.commit().unwrap();
    next.build(&mut || true).unwrap();
    next.stop_writes().unwrap();
    next.begin_round().unwrap();
    let row = next.next_changed_row().unwrap().expect("it was logged");
    assert_eq!((row.key, row.before, row.after), (&b"k"[..], None, Some(&b""[..])));
    next.add(1, b"k", b"").unwrap();
    assert!(next.next_changed_row().unwrap().is_none());
    next.end_round(&mut || true).unwrap();
    next.commit(&[]).unwrap();
}

/// At the moment at which a table is closed to writes, readers come and go; one that stays is in
/// the way, and then writes are taken again.
#[test]
fn who_reads_finds_a_table_that_is_closed_to_writes() {
    type Begin = fn(&Db) -> Result<()>;
    let fill: Begin = |db| db.fill_table("t").map(drop);
    let change: Begin = |db| {
        // It adds none, and so takes no writes.
        let same = ChangedIndex { def: IndexDef::unique("primary"), from: Some(0) };
        db.change_indexes(&db.open_table("t").unwrap(), &[same]).map(drop)
    };
    for (begin, stays) in [(fill, false), (fill, true), (change, false), (change, true)] {
        let sim = SimStorage::new(1);
        let db = open(&sim);
        let table = create(&db, "t");
        let busy = Error::TableBusy("t".into());
        let inside = Rc::new(RefCell::new(None));
        let hook = {
            let (db, table) = (db.clone(), Arc::clone(&table));
            let (inside, busy) = (Rc::clone(&inside), busy.clone());
            move |point| {
                if point == PausePoint::WritesRefused {
                    let mut trx = db.begin(TransactionOptions::default());
                    let (mode, wait) = (LockMode::None, LockWait::Wait);
                    assert_eq!(
                        trx.read(&table, 0, ReadRequest::new(b"k", &mut vec![]).locked(mode, wait)),
                        Ok(false)
                    );
                    assert_eq!(trx.insert(&table, 0, b"k", b""), Err(busy.clone()));
                    *inside.borrow_mut() = Some(trx).filter(|_| stays);
                }
            }
        };
        let begun = with_hook(hook, || begin(&db));
        assert_eq!(begun, if stays { Err(busy) } else { Ok(()) });
        assert_eq!(inside.take().is_some(), stays);
        let mut trx = db.begin(TransactionOptions::default());
        trx.insert(&table, 0, b"k", b"").unwrap();
        trx.commit().unwrap();
    }
}

/// What is written once the table has been found empty would be gone with its file.
#[test]
fn nobody_writes_to_a_table_that_was_found_empty_to_be_filled() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    let refused = Rc::new(RefCell::new(None));
    let hook = {
        let (db, table, refused) = (db.clone(), Arc::clone(&table), Rc::clone(&refused));
        move |point| {
            if point == PausePoint::TableFoundEmpty {
                let mut trx = db.begin(TransactionOptions::default());
                let written = trx.insert(&table, 0, b"k", b"").and_then(|()| trx.commit());
                *refused.borrow_mut() = written.err();
            }
        }
    };
    let load = with_hook(hook, || db.fill_table("t")).unwrap();
    assert_eq!(refused.take(), Some(Error::TableBusy("t".into())));
    drop(load);
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"k", b"").unwrap();
    trx.commit().unwrap();
    // And one that is not empty takes writes all the same.
    assert!(matches!(db.fill_table("t"), Err(Error::InvalidOption(_))));
    trx.insert(&table, 0, b"l", b"").unwrap();
    trx.commit().unwrap();
}

/// What a snapshot does not see is nothing to a referential constraint but what is there.
#[test]
fn an_operation_for_a_constraint_passes_over_the_snapshot() {
    for isolation in [Isolation::RepeatableRead, Isolation::Serializable] {
        let sim = SimStorage::new(1);
        let db = open(&sim);
        let table = create(&db, "t");
        let options = TransactionOptions { isolation, read_only: false };
        let write = |key: &[u8], value: &[u8]| {
            let mut trx = db.begin(TransactionOptions::default());
            trx.insert(&table, 0, key, value).unwrap();
            trx.commit().unwrap();
        };
        let mut trx = db.begin(options);
        trx.ensure_view();
        write(b"k", b"young");
        let mut value = Vec::new();
        let mut get = |trx: &mut Transaction, key: &[u8], lock| {
            trx.read(&table, 0, ReadRequest::new(key, &mut value).locked(lock, LockWait::NoWait))
        };
        trx.set_referential(true);
        assert_eq!(get(&mut trx, b"k", LockMode::Shared), Ok(true));
        assert_eq!(get(&mut trx, b"absent", LockMode::Shared), Ok(false));
        trx.delete(&table, 0, b"k").unwrap();
        trx.set_referential(false);
        // It has locked no gap, at any level.
        write(b"absent", b"now");
        if isolation == Isolation::RepeatableRead {
            let refused = get(&mut trx, b"absent", LockMode::Shared);
            assert_eq!(refused, Err(Error::RecordChanged));
        }
        trx.rollback().unwrap();
    }
}

/// The close comes right behind the commit, before the rebuild is dropped.
#[test]
fn a_table_that_was_rebuilt_keeps_its_new_file_when_the_database_is_closed_at_once() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    let mut trx = db.begin(TransactionOptions::default());
    trx.insert(&table, 0, b"k", b"old").unwrap();
    trx.commit().unwrap();
    let mut change = db.rebuild_table("t", table.def()).unwrap();
    while let Some((key, value)) = change.next_row().unwrap() {
        let (key, value) = (key.to_vec(), value.to_vec());
        change.add(0, &key, &value).unwrap();
    }
    change.build(&mut || true).unwrap();
    let hook = {
        let db = db.clone();
        move |point| {
            if point == PausePoint::IndexChangeEnds {
                db.close().unwrap();
            }
        }
    };
    with_hook(hook, || change.commit(&[])).unwrap();
    drop((trx, table, db));
    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    assert_eq!(db.read(|trx| trx.get(&table, b"k")).unwrap().unwrap(), b"old");
}

/// As a background thread does in the middle of a step.
#[test]
fn the_last_handle_closes_the_database_though_a_thread_works_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), Options::small()).unwrap();
    let table = create(&db, "t");
    db.set_flush_log_at_trx_commit(0).unwrap();
    db.write(|trx| trx.put(&table, b"k", b"committed")).unwrap();
    let of_step: Arc<Inner> = Arc::clone(&db.inner);
    // A transaction is a handle, too.
    let trx = db.begin(TransactionOptions::default());
    drop(db);
    assert!(of_step.check_open().is_ok());
    drop(trx);
    let db = Db::open(dir.path(), Options::small()).unwrap();
    assert!(db.was_clean());
    let table = db.open_table("t").unwrap();
    assert_eq!(db.read(|trx| trx.get(&table, b"k")).unwrap().unwrap(), b"committed");
    drop(of_step);
}

/// Who is refused, and holds nothing of the table, is not in the way of what refuses it.
#[test]
fn a_writer_that_is_refused_does_not_stay_inside() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    let same = ChangedIndex { def: IndexDef::unique("primary"), from: Some(0) };
    let change = db.change_indexes(&table, &[same]).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    assert_eq!(trx.insert(&table, 0, b"k", b""), Err(Error::TableBusy("t".into())));
    let table = change.commit(&[]).unwrap();
    trx.insert(&table, 0, b"k", b"").unwrap();
    trx.commit().unwrap();
}

/// The positions of a change are those of the table that it was given.
#[test]
fn a_change_of_indexes_by_a_void_handle_is_refused() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let names = ["primary", "a", "b"];
    let old = db.create_table("t", &TableDef::new(names.map(IndexDef::unique))).unwrap();
    let keep = |table: &Arc<Table>, positions: &[usize]| {
        let kept = positions.iter().map(|&from| {
            let def = table.def().indexes[from].clone();
            ChangedIndex { def, from: Some(from) }
        });
        db.change_indexes(table, &kept.collect::<Vec<_>>())
    };
    let new = keep(&old, &[0, 2]).unwrap().commit(&[]).unwrap();
    let busy = Error::TableBusy("t".into());
    assert_eq!(keep(&old, &[0, 1]).err(), Some(busy.clone()));
    let emptied = db.truncate_table("t").unwrap();
    assert_eq!(keep(&new, &[0, 1]).err(), Some(busy));
    drop(keep(&emptied, &[0, 1]).unwrap());
    db.drop_table("t").unwrap();
    assert_eq!(keep(&emptied, &[0]).err(), Some(Error::TableMissing("t".into())));
}

/// Another process may have the directory by then.
#[test]
fn what_was_begun_before_a_close_goes_no_further() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let table = create(&db, "t");
    db.write(|trx| (0..2000u16).try_for_each(|n| trx.put(&table, &n.to_be_bytes(), &[1; 100])))
        .unwrap();
    let mut reader = db.begin(TransactionOptions::default());
    assert!(reader.get(&table, &7u16.to_be_bytes()).unwrap().is_some());
    let mut cursor = Cursor::new(table.clone(), 0, LockMode::None, LockWait::Wait);
    assert!(cursor.first(&mut reader).unwrap());
    let mut writer = db.begin(TransactionOptions::default());
    writer.put(&table, b"never committed", b"").unwrap();
    db.close().unwrap();

    let other = open(&sim);
    while other.step_rollback_recovered().unwrap() {}
    let theirs = other.open_table("t").unwrap();
    other.write(|trx| trx.remove_range::<&[u8]>(&theirs, ..)).unwrap();
    assert_eq!(reader.get(&table, &7u16.to_be_bytes()), Err(Error::Closed));
    assert_eq!(cursor.last(&mut reader), Err(Error::Closed));
    assert_eq!(cursor.seek(&mut reader, b"", Seek::After), Err(Error::Closed));
    assert_eq!(writer.get_for_update(&table, &8u16.to_be_bytes()), Err(Error::Closed));
    assert_eq!(writer.put(&table, b"k", b""), Err(Error::Closed));
    assert_eq!(writer.commit(), Err(Error::Closed));
    assert_eq!(db.read(|trx| trx.get(&table, b"k")), Err(Error::Closed));
    // Those that ask no transaction read no file either: what is not in memory can't be had.
    let read = |no| db.inner.env.pool().shared(table.space(), no, tidepool_pool::Access::Normal);
    let results: Vec<_> = (0..200).map(|no| read(no).map(drop).map_err(Error::from)).collect();
    assert!(results.contains(&Err(Error::Closed)), "{results:?}");
    drop((reader, writer));
    other.close().unwrap();
}
