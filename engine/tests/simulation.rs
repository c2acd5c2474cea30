//! The whole engine on a simulated disk, from a seed, single-threaded: several sessions' transactions, definition changes,
//! purge, cleaner and checkpoints in a random order; the buffer pool grows and shrinks, by steps that come between all these; power cuts
//! in the middle of any disk operation; a full disk now and then. In some lives the disk fails: a sync, after which the engine must write nothing
//! more, or the removal of files, in recoveries too. A second index comes and goes: it has an entry for each row.
//! After each recovery what the disk holds is compared with what was acknowledged: all of it is there, and nothing else,
//! but for the one operation that the power cut interrupted, which may have happened or not.
//!
//! `TIDEPOOL_SEEDS=n` runs more seeds than the default; `TIDEPOOL_SEED=n` runs that one alone: a failure's message
//! names its seed, and the same seed fails again in the same way.

use rand::prelude::*;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidepool::storage::{Fault, FaultKind, SimStorage, Storage, StorageOp};
use tidepool::{
    ChangedIndex, Cursor, Db, Error, IndexDef, Isolation, LockMode, LockWait, Options, Savepoint,
    Table, TableDef, Trx, TrxOptions,
};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
/// Model's identity of a table: survives a rename, not a truncation.
type TableNo = u64;

const SESSIONS: usize = 4;
const LIVES: usize = 4;
const STEPS: usize = 250;

/// What a transaction has written: what each key now has.
type Writes = BTreeMap<(TableNo, Vec<u8>), Option<Vec<u8>>>;

/// What is acknowledged.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    names: BTreeMap<String, TableNo>,
    rows: BTreeMap<TableNo, Rows>,
    /// Tables that have the second index.
    indexed: BTreeSet<TableNo>,
    /// Prepared transactions without a session, by identifier.
    prepared: BTreeMap<Vec<u8>, Writes>,
}

impl Model {
    fn apply(&mut self, writes: &Writes) {
        for ((no, key), value) in writes {
            let rows = self.rows.get_mut(no).expect("a table in use is not dropped");
            match value {
                Some(value) => rows.insert(key.clone(), value.clone()),
                None => rows.remove(key),
            };
        }
    }
}

struct Session {
    trx: Trx,
    /// The snapshot, once taken (REPEATABLE READ), and the commit number it was taken after.
    view: Option<(Model, u64)>,
    isolation: Isolation,
    writes: Writes,
    savepoint: Option<(Savepoint, Writes)>,
    /// Tables used since the transaction began.
    used: BTreeSet<TableNo>,
}

struct World {
    seed: u64,
    random: StdRng,
    sim: SimStorage,
    /// The largest has so few pages in an extent that even these small tables fill several.
    page_size: usize,
    db: Db,
    /// The disk fails in this life.
    failing: bool,
    /// Times that the governor was stepped.
    looks: u32,
    model: Model,
    /// What the model is if the operation in flight happens.
    in_flight: Option<Model>,
    handles: BTreeMap<TableNo, Arc<Table>>,
    sessions: Vec<Session>,
    next_table: TableNo,
    /// Tables that transactions detached in this life use; of those of earlier lives the engine does not know.
    detached: BTreeMap<Vec<u8>, BTreeSet<TableNo>>,
    next_xid: u64,
    /// Commits and definitions so far, and the last for each key and for each table's content or name.
    commits: u64,
    changed: BTreeMap<(TableNo, Vec<u8>), u64>,
    defined: BTreeMap<TableNo, u64>,
}

/// The entry of a row in the second index: its key backward, so that it comes in another order.
fn second_key(key: &[u8]) -> Vec<u8> {
    key.iter().rev().copied().collect()
}

/// Tells on standard error what happens, if `TIDEPOOL_TRACE` is set.
macro_rules! trace {
    ($($arg:tt)*) => {
        if std::env::var_os("TIDEPOOL_TRACE").is_some() {
            eprintln!($($arg)*);
        }
    };
}

/// The power is off: the life ends.
struct PowerCut;
type Step<T = ()> = Result<T, PowerCut>;

/// Sizes of the pool, which takes whole extents of them.
const SIZES_MIB: std::ops::RangeInclusive<u64> = 4..=9;
const EXTENT_BYTES: u64 = 2 << 20;

fn options(page_size: usize, size_mib: u64) -> Options {
    Options {
        page_size,
        buffer_pool_size_bytes: size_mib << 20,
        // The machine's memory is none of the seed's.
        memory_guard: false,
        redo_capacity_bytes: 8 << 20,
        lock_wait_timeout: Duration::ZERO,
        background: false,
        ..Options::default()
    }
}

#[test]
fn seeds() {
    if let Some(seed) = std::env::var("TIDEPOOL_SEED").ok().and_then(|n| n.parse().ok()) {
        run(seed);
        return;
    }
    let count = std::env::var("TIDEPOOL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    let first = std::env::var("TIDEPOOL_FIRST_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut moved = 0;
    for seed in first..first + count {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(pages) => moved += pages,
            Err(panic) => {
                eprintln!("failed with TIDEPOOL_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(moved > 0 || count < 10, "no shrink had a page to move: nothing was tried");
}

/// The pages that resizes moved.
fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    let mut moved = 0;
    for life in 0..LIVES {
        if life > 0 {
            moved += world.pages_moved();
            world.reopen();
        }
        let ahead = world.random.random_range(20..3000);
        world.sim.crash_at(world.sim.operation_count() + ahead);
        world.trouble();
        for _ in 0..STEPS {
            if world.step().is_err() {
                break;
            }
        }
    }
    moved += world.pages_moved();
    world.reopen();
    world.model_is_on_disk(true);
    world.nothing_is_lost();
    moved + world.pages_moved()
}

impl World {
    fn new(seed: u64) -> Self {
        let sim = SimStorage::new(seed);
        let mut random = StdRng::seed_from_u64(seed);
        let page_size = *[4096, 16384, 65536].choose(&mut random).unwrap();
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
            next_table: 0,
            detached: BTreeMap::new(),
            next_xid: 0,
            commits: 0,
            defined: BTreeMap::new(),
            changed: BTreeMap::new(),
        }
    }

    /// What the disk will fail at in this life.
    fn trouble(&mut self) {
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
    fn is_over(&self) -> bool {
        self.sim.is_down() || self.failing && matches!(self.db.log_flush(), Err(Error::Crashed(_)))
    }

    /// A definition change that met a failing disk, which has left all as it was.
    fn is_disk_error<T>(&self, result: &Result<T, Error>) -> bool {
        self.failing && matches!(result, Err(Error::Storage(_))) && !self.is_over()
    }

    fn pages_moved(&self) -> u64 {
        let status = self.db.status();
        trace!("evicted: {:?}", status.get("buffer_pool_pages_evicted"));
        status.get("buffer_pool_resize_pages_moved").unwrap()
    }

    fn options(&mut self) -> Options {
        options(self.page_size, self.random.random_range(SIZES_MIB))
    }

    /// The next life: on what the disk kept, or (one time in eight) after a clean shutdown.
    fn reopen(&mut self) {
        trace!("reopen, power {}", if self.sim.is_down() { "off" } else { "on" });
        self.sessions.clear();
        self.handles.clear();
        self.changed.clear();
        self.detached.clear();
        if !self.sim.is_down() && self.random.random_ratio(1, 8) {
            let closed = self.db.close();
            let over = self.sim.is_down() || self.failing;
            assert!(closed.is_ok() || over, "seed {}: close: {closed:?}", self.seed);
        }
        let killed = !self.sim.is_down() && self.random.random_ratio(1, 4);
        self.sim = if killed { self.sim.kill() } else { self.sim.crash() };
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
    fn on_disk(&self, model: &Model) -> Model {
        self.try_on_disk(model).unwrap()
    }

    /// The same, while there may be power cuts.
    fn try_on_disk(&self, model: &Model) -> Result<Model, Error> {
        let mut found = Model { rows: BTreeMap::new(), indexed: BTreeSet::new(), ..model.clone() };
        for (name, no) in &model.names {
            let table = self.db.open_table(name)?;
            let mut trx = self.db.begin(TrxOptions::default());
            let rows = scan(&mut trx, &table, 0)?;
            if table.index_count() > 1 {
                found.indexed.insert(*no);
                let entries = scan(&mut trx, &table, 1)?;
                let expected: BTreeSet<_> = rows.keys().map(|key| second_key(key)).collect();
                let seed = self.seed;
                assert!(entries.into_keys().eq(expected), "seed {seed}: {name}'s second index");
            }
            found.rows.insert(*no, rows);
        }
        Ok(found)
    }

    fn model_is_on_disk(&self, check: bool) {
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

    /// With nobody there and all purged, every allocated page of a table leads somewhere.
    fn nothing_is_lost(&mut self) {
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

    /// Tells a power cut from a wrong answer. `result` of anything that was to succeed.
    fn must<T>(&self, result: Result<T, Error>) -> Step<T> {
        match result {
            Ok(value) => Ok(value),
            Err(_) if self.is_over() => Err(PowerCut),
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    fn step(&mut self) -> Step {
        match self.random.random_range(0..100) {
            0..3 => self.resize(),
            3..8 => self.step_resize(),
            8..64 => self.statement(),
            64..68 => self.savepoint(),
            68..78 => self.end(),
            78..80 => self.end_prepared(),
            80..88 => self.definition(),
            88..92 => {
                let purged = self.db.step_purge();
                trace!("purge {purged:?}");
                self.must(purged).map(drop)
            }
            92..94 => self.must(self.db.step_cleaner()).map(drop),
            94 => self.hot_list(),
            95..98 => self.must(self.db.step_checkpoint()).map(drop),
            _ => {
                let rolled_back = self.db.step_rollback_recovered();
                trace!("rollback of recovered {rolled_back:?}");
                self.must(rolled_back).map(drop)
            }
        }
    }

    /// The pool is to have another size. What has to be done for it is done now, or later, bit by bit.
    fn resize(&mut self) -> Step {
        let bytes = self.random.random_range(SIZES_MIB) << 20;
        self.db.set_buffer_pool_size(bytes).unwrap();
        self.looks += 1;
        self.db.governor().step(Duration::from_secs(self.looks.into()));
        trace!("resize to {} MiB", bytes >> 20);
        if self.random.random() {
            return Ok(());
        }
        let full = self.random.random_ratio(1, 8);
        if full {
            self.sim.set_capacity(Some(self.sim.used_bytes()));
        }
        while self.db.step_resize() {}
        if full {
            self.sim.set_capacity(None);
            while self.db.step_resize() {}
        }
        if self.is_over() {
            return Err(PowerCut);
        }
        let resident = self.db.status().get("buffer_pool_resident_bytes").unwrap();
        trace!("resized, {} MiB are resident", resident >> 20);
        // A pool that was opened with half an extent more has the memory of a whole one.
        let limit = bytes.next_multiple_of(EXTENT_BYTES);
        assert!(resident <= limit, "seed {}: {resident} bytes of {limit}", self.seed);
        Ok(())
    }

    fn step_resize(&mut self) -> Step {
        for _ in 0..self.random.random_range(1..8) {
            self.db.step_resize();
        }
        trace!("steps of a resize");
        if self.is_over() { Err(PowerCut) } else { Ok(()) }
    }

    /// The hot pages are noted, on a full disk now and then, or some of the life before are loaded.
    fn hot_list(&mut self) -> Step {
        if self.random.random() {
            return self.must(self.db.step_load()).map(drop);
        }
        let full = self.random.random_ratio(1, 4);
        if full {
            self.sim.set_capacity(Some(self.sim.used_bytes()));
        }
        let saved = self.db.dump_buffer_pool();
        if full {
            self.sim.set_capacity(None);
        }
        trace!("hot list, disk full {full}: {saved:?}");
        if full && !self.is_over() { Ok(()) } else { self.must(saved) }
    }

    /// A session to use, begun if need be.
    fn session(&mut self) -> usize {
        if self.sessions.len() < SESSIONS && self.random.random_ratio(1, 2)
            || self.sessions.is_empty()
        {
            let isolation = *[Isolation::ReadCommitted, Isolation::RepeatableRead]
                .choose(&mut self.random)
                .unwrap();
            let trx = self.db.begin(TrxOptions { isolation, ..TrxOptions::default() });
            let (writes, used) = Default::default();
            let savepoint = None;
            self.sessions.push(Session { trx, view: None, isolation, writes, savepoint, used });
            return self.sessions.len() - 1;
        }
        self.random.random_range(0..self.sessions.len())
    }

    fn statement(&mut self) -> Step {
        let Some(no) = self.model.names.values().copied().choose(&mut self.random) else {
            return Ok(());
        };
        let at = self.session();
        let table = self.handles[&no].clone();
        self.sessions[at].used.insert(no);
        if self.random.random_ratio(1, 5) {
            return self.read(at, no, &table);
        }
        if self.random.random_ratio(1, 10) {
            return self.lock(at, no, &table);
        }
        if self.random.random_ratio(1, 40) {
            return self.fill(at, no, &table);
        }
        let key = match self.random.random_range(0..10) {
            0 => vec![b'x'; self.random.random_range(1..800)],
            _ => format!("k{}", self.random.random_range(0..40)).into_bytes(),
        };
        let len = match self.random.random_range(0..20) {
            0 => self.random.random_range(2000..30000),
            1..5 => self.random.random_range(100..1500),
            _ => self.random.random_range(0..60),
        };
        let full = self.random.random_ratio(1, 40);
        if full {
            self.sim.set_capacity(Some(self.sim.used_bytes()));
        }
        let kind = self.random.random_range(0..3);
        let written = self.write(at, no, &table, key, len, kind);
        if full {
            self.sim.set_capacity(None);
        }
        written
    }

    /// Many long rows, for the pool to have more pages than it may keep when it shrinks.
    fn fill(&mut self, at: usize, no: TableNo, table: &Arc<Table>) -> Step {
        let sessions = self.sessions.len();
        for _ in 0..self.random.random_range(15..45) {
            let key = format!("b{}", self.random.random_range(0..100)).into_bytes();
            let len = self.random.random_range(30_000..60_000);
            self.write(at, no, table, key, len, 0)?;
            if self.sessions.len() < sessions {
                // A refusal has ended the transaction.
                return Ok(());
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        at: usize,
        no: TableNo,
        table: &Arc<Table>,
        key: Vec<u8>,
        len: usize,
        kind: u32,
    ) -> Step {
        let value: Vec<u8> = (0..len).map(|i| (i * 31 + self.commits as usize) as u8).collect();
        let session = &mut self.sessions[at];
        session.trx.begin_statement();
        let before = session.trx.savepoint();
        let mut result = match kind {
            0 => session.trx.insert(table, 0, &key, &value),
            1 => session.trx.update(table, 0, &key, &value),
            _ => session.trx.delete(table, 0, &key),
        };
        if result.is_ok() && table.index_count() > 1 {
            let key = second_key(&key);
            result = match kind {
                0 => session.trx.insert(table, 1, &key, b"new"),
                1 => session.trx.update(table, 1, &key, &value[..value.len().min(9)]),
                _ => session.trx.delete(table, 1, &key),
            };
            match &result {
                Err(Error::NoSpace(_) | Error::LockWaitTimeout) => {
                    session.trx.rollback_to(before).unwrap();
                }
                // Told below from a wrong answer.
                Err(Error::Crashed(_)) => {}
                Err(_) if self.sim.is_down() => {}
                Err(error) => panic!("seed {}: second index: {error}", self.seed),
                Ok(()) => {}
            }
        }
        session.trx.end_statement();
        let name = String::from_utf8_lossy(&key[..key.len().min(8)]).into_owned();
        let what = ["insert", "update", "delete"][kind as usize];
        trace!(
            "s{at} t{no} {what} {name}+{} {len} -> {:?}",
            key.len(),
            result.as_ref().map_err(|e| e.to_string())
        );
        if result.is_err() && self.is_over() {
            return Err(PowerCut);
        }
        self.judge(at, no, key, kind, value, result)
    }

    /// Compares a write's outcome with what the model says it must be.
    fn judge(
        &mut self,
        at: usize,
        no: TableNo,
        key: Vec<u8>,
        kind: u32,
        value: Vec<u8>,
        result: Result<(), Error>,
    ) -> Step {
        let slot = (no, key);
        let held = self.is_held(at, &slot);
        let newer = self.sessions[at]
            .view
            .as_ref()
            .is_some_and(|(_, seen)| self.changed.get(&slot).is_some_and(|commit| commit > seen));
        let own = self.sessions[at].writes.get(&slot).cloned();
        let now = own.unwrap_or_else(|| self.model.rows[&no].get(&slot.1).cloned());
        let seed = self.seed;
        match result {
            Err(Error::LockWaitTimeout) => {
                // Locks outlive a write undone by a savepoint or a failed statement, so only the other way is certain.
                self.others_are_there();
                return Ok(());
            }
            Err(Error::NoSpace(_)) => return Ok(()),
            Err(Error::RecordChanged) => {
                assert!(newer, "seed {seed}: {slot:?} did not change");
                let rolled_back = self.sessions[at].trx.rollback();
                self.must(rolled_back)?;
                self.sessions.remove(at);
                return Ok(());
            }
            _ => {}
        }
        assert!(!held, "seed {seed}: wrote {slot:?}, which another transaction wrote: {result:?}");
        match result {
            Ok(()) => {
                assert!(
                    !newer,
                    "seed {seed}: overwrote {slot:?}, which changed after the snapshot"
                );
                assert_eq!(now.is_none(), kind == 0, "seed {seed}: {kind} of {slot:?}");
                let after = (kind != 2).then_some(value);
                self.sessions[at].writes.insert(slot, after);
            }
            Err(Error::DuplicateKey { value: there, .. }) => {
                assert_eq!((kind, now), (0, Some(there)), "seed {seed}: duplicate of {slot:?}");
            }
            Err(Error::NotFound) => {
                assert!(kind != 0 && (now.is_none() || newer), "seed {seed}: {slot:?} not found");
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
        Ok(())
    }

    /// Whether the key is written by a transaction other than that of session `at`, and so locked.
    fn is_held(&self, at: usize, slot: &(TableNo, Vec<u8>)) -> bool {
        let mut others = self.sessions.iter().enumerate().filter(|(other, _)| *other != at);
        others.any(|(_, session)| session.writes.contains_key(slot))
            || self.model.prepared.values().any(|writes| writes.contains_key(slot))
    }

    /// Somebody may hold a lock.
    fn others_are_there(&self) {
        let recovered = self.db.status().get("trx_rollbacks_pending").unwrap_or(0);
        let others = self.sessions.len() - 1 + self.model.prepared.len() + recovered as usize;
        assert!(others > 0, "seed {}: waits for nobody", self.seed);
    }

    /// Whether a session's snapshot is older than the table as it is.
    fn is_older_than(&self, at: usize, no: TableNo) -> bool {
        let defined = self.defined.get(&no).copied().unwrap_or(0);
        self.sessions[at].view.as_ref().is_some_and(|(_, seen)| defined > *seen)
    }

    /// A locking read sees the newest version.
    fn lock(&mut self, at: usize, no: TableNo, table: &Arc<Table>) -> Step {
        let key = format!("k{}", self.random.random_range(0..40)).into_bytes();
        let mode = *[LockMode::Shared, LockMode::Exclusive].choose(&mut self.random).unwrap();
        let wait = *[LockWait::NoWait, LockWait::SkipLocked].choose(&mut self.random).unwrap();
        let (slot, mut value) = ((no, key.clone()), vec![]);
        let session = &mut self.sessions[at];
        session.trx.begin_statement();
        let found = session.trx.get(table, 0, &key, mode, wait, &mut value);
        session.trx.end_statement();
        trace!("s{at} t{no} lock {key:?} {mode:?} {wait:?} -> {found:?}");
        if found.is_err() && self.is_over() {
            return Err(PowerCut);
        }
        let seed = self.seed;
        if self.is_older_than(at, no) {
            assert!(matches!(found, Err(Error::TableChanged(_))), "seed {seed}: {found:?}");
            return Ok(());
        }
        match found {
            Err(Error::LockNoWait) => self.others_are_there(),
            Err(Error::RecordChanged) => {
                assert!(self.changed.contains_key(&slot), "seed {seed}: {slot:?} did not change");
                let rolled_back = self.sessions[at].trx.rollback();
                self.must(rolled_back)?;
                self.sessions.remove(at);
            }
            Err(error) => panic!("seed {seed}: {error}"),
            Ok(false) if wait == LockWait::SkipLocked => {}
            Ok(found) => {
                assert!(!self.is_held(at, &slot), "seed {seed}: locked {slot:?}");
                let own = self.sessions[at].writes.get(&slot).cloned();
                let expected = own.unwrap_or_else(|| self.model.rows[&no].get(&key).cloned());
                assert_eq!(found.then_some(value), expected, "seed {seed}: locking read");
            }
        }
        Ok(())
    }

    /// A session takes a savepoint, or rolls back to the one it has.
    fn savepoint(&mut self) -> Step {
        let Some(at) = (0..self.sessions.len()).choose(&mut self.random) else { return Ok(()) };
        let session = &mut self.sessions[at];
        let Some((savepoint, writes)) = session.savepoint.take() else {
            trace!("s{at} savepoint");
            session.savepoint = Some((session.trx.savepoint(), session.writes.clone()));
            return Ok(());
        };
        let rolled_back = session.trx.rollback_to(savepoint);
        trace!("s{at} back to savepoint: {rolled_back:?}");
        session.writes = writes;
        self.must(rolled_back)
    }

    /// Somebody decides about a prepared transaction without a session.
    fn end_prepared(&mut self) -> Step {
        let Some(xid) = self.model.prepared.keys().choose(&mut self.random).cloned() else {
            return Ok(());
        };
        let commit = self.random.random();
        let mut after = self.model.clone();
        let writes = after.prepared.remove(&xid).expect("chosen among them");
        if commit {
            after.apply(&writes);
        }
        self.in_flight = Some(after.clone());
        let ended = match commit {
            true => self.db.commit_prepared(&xid),
            false => self.db.rollback_prepared(&xid),
        };
        trace!("prepared {xid:?}: commit {commit}: {ended:?}");
        self.must(ended)?;
        self.detached.remove(&xid);
        if commit {
            self.committed(writes);
        }
        self.defined(after)
    }

    fn committed(&mut self, writes: Writes) {
        self.commits += 1;
        for slot in writes.into_keys() {
            self.changed.insert(slot, self.commits);
        }
    }

    /// A whole scan sees the snapshot and the session's own writes.
    fn read(&mut self, at: usize, no: TableNo, table: &Arc<Table>) -> Step {
        let session = &mut self.sessions[at];
        session.trx.begin_statement();
        let found = scan(&mut session.trx, table, 0);
        session.trx.end_statement();
        trace!("s{at} t{no} scan -> {:?}", found.as_ref().map(|rows| rows.len()));
        if self.is_older_than(at, no) {
            if found.is_ok() || !self.is_over() {
                assert!(matches!(found, Err(Error::TableChanged(_))), "seed {}", self.seed);
            }
            return Ok(());
        }
        let found = self.must(found)?;
        let session = &mut self.sessions[at];
        let mut expected = match session.isolation {
            Isolation::RepeatableRead => {
                let view = session.view.get_or_insert_with(|| (self.model.clone(), self.commits));
                view.0.rows.get(&no).cloned().unwrap_or_default()
            }
            _ => self.model.rows[&no].clone(),
        };
        for ((_, key), value) in session.writes.iter().filter(|((table, _), _)| *table == no) {
            match value {
                Some(value) => expected.insert(key.clone(), value.clone()),
                None => expected.remove(key),
            };
        }
        assert_eq!(found, expected, "seed {}: scan at {:?}", self.seed, session.isolation);
        Ok(())
    }

    /// A session commits or rolls back.
    fn end(&mut self) -> Step {
        if self.sessions.is_empty() {
            return Ok(());
        }
        let at = self.random.random_range(0..self.sessions.len());
        let mut session = self.sessions.remove(at);
        trace!("s{at} ends ({:?}, writes: {})", session.isolation, session.writes.len());
        if self.random.random_ratio(1, 4) {
            let rolled_back = session.trx.rollback();
            trace!("rollback {rolled_back:?}");
            return self.must(rolled_back);
        }
        let mut after = self.model.clone();
        if !session.writes.is_empty() && self.random.random_ratio(1, 8) {
            let xid = format!("xid {}", self.next_xid).into_bytes();
            self.next_xid += 1;
            after.prepared.insert(xid.clone(), session.writes);
            self.in_flight = Some(after.clone());
            let prepared = session.trx.prepare(&xid);
            trace!("prepare {xid:?}: {prepared:?}");
            self.must(prepared)?;
            session.trx.detach();
            self.detached.insert(xid, session.used);
            return self.defined(after);
        }
        after.apply(&session.writes);
        self.in_flight = Some(after.clone());
        let committed = session.trx.commit();
        self.must(committed)?;
        self.in_flight = None;
        self.committed(session.writes);
        self.defined(after)
    }

    fn definition(&mut self) -> Step {
        let mut after = self.model.clone();
        let name = |n: u32| format!("t{n}");
        let wanted = name(self.random.random_range(0..6));
        let Some(no) = self.model.names.get(&wanted).copied() else {
            after.names.insert(wanted.clone(), self.next_table);
            after.rows.insert(self.next_table, Rows::new());
            after.indexed.insert(self.next_table);
            trace!("create {wanted} = t{}", self.next_table);
            self.in_flight = Some(after.clone());
            let def = TableDef::new([IndexDef::unique("primary"), IndexDef::non_unique("second")]);
            let created = self.db.create_table(&wanted, &def);
            if self.is_disk_error(&created) {
                self.in_flight = None;
                self.next_table += 1;
                return Ok(());
            }
            self.handles.insert(self.next_table, self.must(created)?);
            self.note_definition(self.next_table);
            self.next_table += 1;
            return self.defined(after);
        };
        trace!("definition of {wanted} = t{no}");
        // Of one of an earlier life it is known what it has written, not what it has read.
        let has_written = |(xid, writes): (&Vec<u8>, &Writes)| {
            !self.detached.contains_key(xid) && writes.keys().any(|(table, _)| *table == no)
        };
        let is_used_by_prepared = self.detached.values().any(|used| used.contains(&no))
            || self.model.prepared.iter().any(has_written);
        let is_used_by_session = self.sessions.iter().any(|session| session.used.contains(&no));
        let (mut renamed, mut reindexed) = (false, false);
        let result = match self.random.random_range(0..5) {
            0 => {
                after.names.remove(&wanted);
                after.rows.remove(&no);
                after.indexed.remove(&no);
                self.in_flight = Some(after.clone());
                self.db.drop_table(&wanted)
            }
            1 => {
                let to = name(self.random.random_range(0..6));
                if self.model.names.contains_key(&to) {
                    let refused = self.db.rename_table(&wanted, &to);
                    if self.is_over() {
                        return Err(PowerCut);
                    }
                    assert_eq!(refused, Err(Error::TableExists(to)), "seed {}", self.seed);
                    return Ok(());
                }
                after.names.remove(&wanted);
                after.names.insert(to.clone(), no);
                self.in_flight = Some(after.clone());
                renamed = true;
                self.db.rename_table(&wanted, &to)
            }
            2 | 3 => {
                if !after.indexed.remove(&no) {
                    after.indexed.insert(no);
                }
                self.in_flight = Some(after.clone());
                reindexed = true;
                self.change_indexes(&wanted, after.indexed.contains(&no)).map(|table| {
                    if let Some(table) = table {
                        self.handles.insert(no, table);
                        self.commits += 1;
                    } else {
                        after = self.model.clone();
                    }
                })
            }
            _ => {
                after.rows.remove(&no);
                if after.indexed.remove(&no) {
                    after.indexed.insert(self.next_table);
                }
                after.rows.insert(self.next_table, Rows::new());
                after.names.insert(wanted.clone(), self.next_table);
                self.in_flight = Some(after.clone());
                self.db.truncate_table(&wanted).map(|table| {
                    self.handles.insert(self.next_table, table);
                    self.note_definition(self.next_table);
                    self.next_table += 1;
                })
            }
        };
        // A rename is no concern of a session's transaction.
        let is_refused = is_used_by_prepared || is_used_by_session && !renamed;
        if is_refused && !self.is_over() {
            assert_eq!(result, Err(Error::TableBusy(wanted)), "seed {}", self.seed);
            self.in_flight = None;
            return Ok(());
        }
        if self.is_disk_error(&result) {
            self.in_flight = None;
            return Ok(());
        }
        self.must(result)?;
        if renamed {
            self.note_definition(no);
        } else if !reindexed {
            self.handles.remove(&no);
        }
        self.defined(after)?;
        if reindexed {
            let found = self.must(self.try_on_disk(&self.model))?;
            assert_eq!(found.indexed, self.model.indexed, "seed {}", self.seed);
        }
        Ok(())
    }

    /// Adds or drops the second index; none if it was given up half-way.
    fn change_indexes(&mut self, name: &str, indexed: bool) -> Result<Option<Arc<Table>>, Error> {
        let kept = ChangedIndex { def: IndexDef::unique("primary"), from: Some(0) };
        let new = ChangedIndex { def: IndexDef::non_unique("second"), from: None };
        let indexes = if indexed { vec![kept, new] } else { vec![kept] };
        let mut change = self.db.change_indexes(name, &indexes)?;
        trace!("second index of {name}: {indexed}");
        change.set_sort_memory(self.random.random_range(100..5000));
        while let Some((key, _)) = change.next_row()? {
            if !indexed {
                break;
            }
            let key = second_key(key);
            change.add(1, &key, b"built")?;
        }
        let given_up = self.random.random_ratio(1, 6);
        let mut turns = self.random.random_range(0..3);
        let built = change.build(&mut || {
            turns -= 1;
            !given_up || turns >= 0
        });
        if given_up && !self.is_over() {
            drop(change);
            return if self.is_over() { Err(Error::Interrupted) } else { Ok(None) };
        }
        built?;
        while self.random.random_bool(0.5) {
            self.db.step_cleaner()?;
        }
        change.commit(None).map(Some)
    }

    /// Older snapshots don't know the table any more.
    fn note_definition(&mut self, no: TableNo) {
        self.commits += 1;
        self.defined.insert(no, self.commits);
    }

    fn defined(&mut self, after: Model) -> Step {
        self.model = after;
        self.in_flight = None;
        Ok(())
    }
}

fn scan(trx: &mut Trx, table: &Arc<Table>, index: usize) -> Result<Rows, Error> {
    let mut cursor = Cursor::new(table.clone(), index, LockMode::None, LockWait::Wait);
    let (mut rows, mut more) = (Rows::new(), cursor.first(trx)?);
    while more {
        rows.insert(cursor.key().to_vec(), cursor.value().to_vec());
        more = cursor.next(trx)?;
    }
    Ok(rows)
}
