//! One life of the engine after another, and what each must find.

use rand::prelude::*;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidepool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool::{Db, Error, Options, TransactionOptions};

use crate::model::{Model, second_key};
use crate::scan::scan;
use crate::{Counts, SIZES_MIB, World, options};

impl World {
    pub fn new(seed: u64) -> Self {
        let sim = SimStorage::new(seed);
        let mut random = StdRng::seed_from_u64(seed);
        let page_size = 4096 << random.random_range(0..5);
        let options = options(page_size, *SIZES_MIB.start());
        let db = Db::open_on(Arc::new(sim.clone()), options).unwrap();
        Self {
            seed,
            random,
            sim,
            page_size,
            db,
            failing: false,
            looks: 0,
            model: Model::default(),
            in_flight: None,
            handles: BTreeMap::new(),
            sessions: vec![],
            loading: None,
            backup: None,
            is_full: false,
            counts: Counts::default(),
            chain: Vec::new(),
            next_table: 0,
            detached: BTreeMap::new(),
            next_xid: 0,
            commits: 0,
            defined: BTreeMap::new(),
            changed: BTreeMap::new(),
            vacated: BTreeMap::new(),
        }
    }

    /// What the disk will fail at in this life.
    pub fn trouble(&mut self) {
        self.failing = self.random.random_ratio(1, 3);
        if !self.failing {
            return;
        }
        let fault = match self.random.random_range(0..3) {
            0 => Fault::new(StorageOp::Remove, FaultKind::Io).on("tables/").always(),
            _ => {
                let files = ["redo/", "redo/control", "tables/", "undo.tpd", "system.tpd"];
                let file = *files.choose(&mut self.random).expect("there are some");
                let skip = self.random.random_range(0..30);
                Fault::new(StorageOp::Sync, FaultKind::Io).on(file).skip(skip)
            }
        };
        trace!("trouble: {fault:?}");
        self.sim.inject(fault);
    }

    /// The power is off, or the engine has met what ends its life. For who has met an error.
    pub fn is_over(&self) -> bool {
        self.sim.is_down() || self.failing && matches!(self.db.flush_log(), Err(Error::Crashed(_)))
    }

    /// A definition change that met a failing disk, which has left all as it was.
    pub fn is_disk_error<T>(&self, result: &Result<T, Error>) -> bool {
        self.failing && matches!(result, Err(Error::Io { .. })) && !self.is_over()
    }

    pub fn options(&mut self) -> Options {
        options(self.page_size, self.random.random_range(SIZES_MIB))
    }

    /// The next life: on what the disk kept, or (one time in eight) after a clean shutdown.
    pub fn reopen(&mut self) {
        trace!("reopen, power {}", if self.sim.is_down() { "off" } else { "on" });
        self.sessions.clear();
        self.backup = None;
        self.handles.clear();
        self.changed.clear();
        self.vacated.clear();
        self.detached.clear();
        if !self.sim.is_down() && self.random.random_ratio(1, 8) {
            let closed = self.db.close();
            let over = self.sim.is_down() || self.failing;
            assert!(closed.is_ok() || over, "seed {}: close: {closed:?}", self.seed);
        }
        self.counts.troubled += u64::from(self.failing && self.sim.faults_struck() > 0);
        self.counts.in_flight += u64::from(self.sim.is_down() && self.in_flight.is_some());
        let killed = !self.sim.is_down() && self.random.random_ratio(1, 4);
        self.sim = if killed { self.sim.kill() } else { self.sim.crash() };
        // Not before: the disk is to have what it has left.
        self.loading = None;
        self.failing = false;
        // A power cut during recovery, now and then.
        if self.random.random_ratio(1, 3) {
            let ahead = self.random.random_range(1..60);
            self.sim.crash_at(self.sim.operation_count() + ahead);
            if self.random.random_ratio(1, 4) {
                let fault = Fault::new(StorageOp::Remove, FaultKind::Io).on("tables/");
                self.sim.inject(fault.always());
            }
            let options = self.options();
            if let Ok(db) = Db::open_on(Arc::new(self.sim.clone()), options) {
                while let Ok(true) = db.step_rollback_recovered() {}
                let _ = db.step_cleaner();
                let _ = db.step_checkpoint();
            }
            self.counts.cut_recoveries += u64::from(self.sim.is_down());
            self.sim = self.sim.crash();
        }
        let options = self.options();
        self.db = Db::open_on(Arc::new(self.sim.clone()), options)
            .unwrap_or_else(|e| panic!("seed {}: open after a crash: {e}", self.seed));
        assert!(!self.sim.exists("tables/orphans").unwrap(), "seed {}: set aside", self.seed);
        let files = self.sim.list("tables").unwrap().len();
        assert_eq!(files, self.db.table_names().unwrap().len(), "seed {}: files", self.seed);
        if self.random.random() {
            while self.db.step_rollback_recovered().unwrap() {}
        }
        if self.random.random() {
            while self.db.step_load().unwrap() {}
        }
        let tables = self.db.table_names().unwrap();
        let xids = self.db.recovered_xids();
        self.counts.prepared += u64::from(!xids.is_empty());
        if let Some(other) = self.in_flight.take()
            && (!tables.iter().eq(self.model.names.keys())
                || !xids.iter().eq(self.model.prepared.keys())
                || self.on_disk(&self.model) != self.model)
        {
            self.model = other;
        }
        // The operation in flight may have used it.
        self.next_table += 1;
        self.model_is_on_disk(false);
        for (name, no) in &self.model.names {
            self.handles.insert(*no, self.db.open_table(name).unwrap());
        }
    }

    /// What the disk holds of the tables of `model`, under its numbers.
    pub fn on_disk(&self, model: &Model) -> Model {
        self.try_on_disk(model).unwrap()
    }

    /// The same, while there may be power cuts.
    pub fn try_on_disk(&self, model: &Model) -> Result<Model, Error> {
        found_in(self.seed, &self.db, model)
    }

    pub fn model_is_on_disk(&self, check: bool) {
        let seed = self.seed;
        let names: Vec<_> = self.model.names.keys().cloned().collect();
        assert_eq!(self.db.table_names().unwrap(), names, "seed {seed}: tables");
        let xids: Vec<_> = self.model.prepared.keys().cloned().collect();
        assert_eq!(self.db.recovered_xids(), xids, "seed {seed}: prepared");
        assert_eq!(self.on_disk(&self.model), self.model, "seed {seed}: rows");
        for name in names.iter().filter(|_| check) {
            let report = self.db.open_table(name).unwrap().check(&self.db, &mut |_| true).unwrap();
            assert!(report.is_clean(), "seed {seed}: {name}: {:?}", report.problems);
        }
    }

    /// With no session and all purged, every allocated page of a table leads somewhere.
    pub fn nothing_is_lost(&mut self) {
        for xid in std::mem::take(&mut self.model.prepared).into_keys() {
            self.db.rollback_prepared(&xid).unwrap();
        }
        while self.db.step_rollback_recovered().unwrap() {}
        while self.db.step_purge().unwrap() {}
        assert_eq!(self.db.status().get("history_list_length"), Some(0), "seed {}", self.seed);
        for name in self.model.names.keys() {
            let lost = self.db.open_table(name).unwrap().unreachable_pages().unwrap();
            assert_eq!(lost, [], "seed {}: pages of {name} that nothing leads to", self.seed);
        }
    }
}

/// What is in `db` of the tables of `model`, under its numbers.
pub fn found_in(seed: u64, db: &Db, model: &Model) -> Result<Model, Error> {
    let mut found = Model { rows: BTreeMap::new(), indexed: BTreeSet::new(), ..model.clone() };
    for (name, no) in &model.names {
        let table = db.open_table(name)?;
        let mut trx = db.begin(TransactionOptions::default());
        let rows = scan(&mut trx, &table, 0)?;
        if table.index_count() > 1 {
            found.indexed.insert(*no);
            let entries = scan(&mut trx, &table, 1)?;
            let expected: BTreeSet<_> = rows.keys().map(|key| second_key(key)).collect();
            assert!(entries.into_keys().eq(expected), "seed {seed}: {name}'s second index");
        }
        found.rows.insert(*no, rows);
    }
    Ok(found)
}
