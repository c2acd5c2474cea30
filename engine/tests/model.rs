//! The whole engine against a `BTreeMap`: random transactions on two tables, savepoints, definition
//! changes, reopening (cleanly and by power cut), and after each step that shows something, what
//! the model says. The seed says which page size.
//!
//! `TIDEPOOL_CASES=n` runs more cases than the default few dozen. Everything is single-threaded and
//! deterministic.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tidepool::storage::{SimStorage, Storage};
use tidepool::{
    Cursor, Db, Error, IndexDef, Isolation, LockMode, LockWait, Options, ReadRequest, Savepoint,
    Seek, Table, TableDef, Transaction, TransactionOptions,
};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug, Clone)]
enum Step {
    Insert(Vec<u8>, Vec<u8>),
    Update(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Get(Vec<u8>),
    Scan(Vec<u8>, usize),
    ScanBack(Vec<u8>, usize),
    Savepoint,
    BackToSavepoint,
    Commit,
    Rollback,
    Truncate,
    Rename,
    Purge,
    Checkpoint,
    Reopen,
    PowerCut,
    Check,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (0..60u8).prop_map(|n| vec![b'k', n]),
        2 => (0..6u8, 100..890usize).prop_map(|(n, len)| [vec![b'l'; len], vec![n]].concat()),
        1 => Just(vec![]),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let filled = |(byte, len)| vec![byte; len];
    prop_oneof![
        6 => (any::<u8>(), 0..40usize).prop_map(filled),
        3 => (any::<u8>(), 400..3000usize).prop_map(filled),
        1 => (any::<u8>(), 5000..40000usize).prop_map(filled),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (key(), value()).prop_map(|(k, v)| Step::Insert(k, v)),
        15 => (key(), value()).prop_map(|(k, v)| Step::Update(k, v)),
        15 => key().prop_map(Step::Delete),
        8 => key().prop_map(Step::Get),
        5 => (key(), 0..30usize).prop_map(|(k, n)| Step::Scan(k, n)),
        5 => (key(), 0..30usize).prop_map(|(k, n)| Step::ScanBack(k, n)),
        3 => Just(Step::Savepoint),
        3 => Just(Step::BackToSavepoint),
        8 => Just(Step::Commit),
        3 => Just(Step::Rollback),
        1 => Just(Step::Truncate),
        1 => Just(Step::Rename),
        3 => Just(Step::Purge),
        3 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
        1 => Just(Step::PowerCut),
        2 => Just(Step::Check),
    ]
}

/// The engine and what it should hold.
struct Subject {
    page_size: usize,
    sim: Arc<SimStorage>,
    db: Db,
    table: Arc<Table>,
    trx: Transaction,
    renames: u32,
    committed: Rows,
    now: Rows,
    savepoint: Option<(Savepoint, Rows)>,
}

fn options(page_size: usize) -> Options {
    Options { page_size, ..Options::small() }
}

fn begin(db: &Db) -> Transaction {
    db.begin(TransactionOptions {
        isolation: Isolation::RepeatableRead,
        ..TransactionOptions::default()
    })
}

impl Subject {
    fn new(seed: u64) -> Self {
        let page_size = 4096 << (seed % 5);
        let sim = Arc::new(SimStorage::new(seed));
        let db = Db::open_on(sim.clone() as Arc<dyn Storage>, options(page_size)).unwrap();
        let table = db.create_table("t0", &TableDef::new([IndexDef::unique("primary")])).unwrap();
        let trx = begin(&db);
        Self {
            page_size,
            sim,
            db,
            table,
            trx,
            renames: 0,
            committed: Rows::new(),
            now: Rows::new(),
            savepoint: None,
        }
    }

    fn run(&mut self, step: Step) {
        let table = self.table.clone();
        match step {
            Step::Insert(key, value) => {
                let result = self.trx.insert(&table, 0, &key, &value);
                match self.now.get(&key) {
                    Some(there) => {
                        let there = there.clone();
                        assert_eq!(result, Err(Error::DuplicateKey { index: 0, value: there }));
                    }
                    None => {
                        result.unwrap();
                        self.now.insert(key, value);
                    }
                }
            }
            Step::Update(key, value) => {
                let result = self.trx.update(&table, 0, &key, &value);
                match self.now.get_mut(&key) {
                    Some(there) => {
                        result.unwrap();
                        *there = value;
                    }
                    None => assert_eq!(result, Err(Error::NotFound)),
                }
            }
            Step::Delete(key) => {
                let result = self.trx.delete(&table, 0, &key);
                let expected = self.now.remove(&key).map(|_| ()).ok_or(Error::NotFound);
                assert_eq!(result, expected);
            }
            Step::Get(key) => {
                let mut value = vec![];
                let found = self.trx.read(&table, 0, ReadRequest::new(&key, &mut value)).unwrap();
                assert_eq!(found.then_some(&value), self.now.get(&key));
            }
            Step::Scan(from, limit) => {
                let expected = self.now.range(from.clone()..).take(limit);
                let expected: Vec<_> = expected.map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(self.scan(&from, limit, false), expected);
            }
            Step::ScanBack(from, limit) => {
                let range = (Bound::Unbounded, Bound::Included(from.clone()));
                let expected = self.now.range(range).rev().take(limit);
                let expected: Vec<_> = expected.map(|(k, v)| (k.clone(), v.clone())).collect();
                assert_eq!(self.scan(&from, limit, true), expected);
            }
            Step::Savepoint => self.savepoint = Some((self.trx.savepoint(), self.now.clone())),
            Step::BackToSavepoint => {
                if let Some((savepoint, rows)) = &self.savepoint {
                    self.trx.rollback_to(*savepoint).unwrap();
                    self.now = rows.clone();
                }
            }
            Step::Commit => self.commit(),
            Step::Rollback => {
                self.trx.rollback().unwrap();
                self.savepoint = None;
                self.now = self.committed.clone();
            }
            Step::Truncate => {
                self.commit();
                self.table = self.db.truncate_table(&self.name()).unwrap();
                let mut value = vec![];
                let dead = self.trx.read(&table, 0, ReadRequest::new(b"k", &mut value));
                assert_eq!(dead, Err(Error::TableMissing(self.name())));
                self.committed.clear();
                self.now.clear();
            }
            Step::Rename => {
                self.commit();
                let from = self.name();
                self.renames += 1;
                self.db.rename_table(&from, &self.name()).unwrap();
                assert_eq!(self.table.name(), self.name());
                assert_eq!(self.db.open_table(&from).err(), Some(Error::TableMissing(from)));
            }
            Step::Purge => while self.db.step_purge().unwrap() {},
            Step::Checkpoint => {
                self.db.step_cleaner().unwrap();
                self.db.step_checkpoint().unwrap();
            }
            Step::Reopen => {
                self.trx.rollback().unwrap();
                self.db.close().unwrap();
                self.reopen(self.sim.clone());
            }
            Step::PowerCut => {
                let survived = Arc::new(self.sim.crash());
                self.reopen(survived);
            }
            Step::Check => {
                self.commit();
                let report = self.table.check(&self.db, &mut |_| true).unwrap();
                assert!(report.is_clean(), "{:?}", report.problems);
                let there = report.indexes[0].entries - report.indexes[0].delete_marked;
                assert_eq!(there, self.now.len() as u64);
            }
        }
    }

    fn name(&self) -> String {
        format!("t{}", self.renames)
    }

    fn commit(&mut self) {
        self.trx.commit().unwrap();
        self.savepoint = None;
        self.committed = self.now.clone();
    }

    fn reopen(&mut self, sim: Arc<SimStorage>) {
        self.savepoint = None;
        self.now = self.committed.clone();
        self.sim = sim;
        let options = options(self.page_size);
        self.db = Db::open_on(self.sim.clone() as Arc<dyn Storage>, options).unwrap();
        while self.db.step_rollback_recovered().unwrap() {}
        self.table = self.db.open_table(&self.name()).unwrap();
        self.trx = begin(&self.db);
        let expected: Vec<_> = self.now.clone().into_iter().collect();
        assert_eq!(self.scan(b"", usize::MAX, false), expected);
        assert_eq!(self.db.table_names().unwrap(), [self.name()]);
    }

    fn scan(&mut self, from: &[u8], limit: usize, back: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut cursor = Cursor::new(self.table.clone(), 0, LockMode::None, LockWait::Wait);
        let mut out = vec![];
        let seek = if back { Seek::AtOrBefore } else { Seek::AtOrAfter };
        let mut more = limit > 0 && cursor.seek(&mut self.trx, from, seek).unwrap();
        while more {
            out.push((cursor.key().to_vec(), cursor.value().to_vec()));
            let step = if back { Cursor::prev } else { Cursor::next };
            more = out.len() < limit && step(&mut cursor, &mut self.trx).unwrap();
        }
        out
    }
}

fn config() -> ProptestConfig {
    let cases = std::env::var("TIDEPOOL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    ProptestConfig { cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn the_engine_does_what_the_model_does(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..300)) {
        let mut subject = Subject::new(seed);
        for step in steps {
            subject.run(step);
        }
        subject.run(Step::Reopen);
        subject.run(Step::PowerCut);
        subject.run(Step::Check);
    }
}
