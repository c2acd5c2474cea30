//! Rollbacks in tables whose files fail, against a model: in one thread, from a seed.
//!
//! Transactions change rows of three tables, each with a secondary index and some long values. They
//! take back statements, roll back to savepoints, are prepared, committed, or rolled back by
//! sessions and by the background, while reads of a file fail for a moment or for good, a page of
//! one is broken, tables are emptied, made anew or rebuilt, and purge goes on. Each life ends in an order of
//! its own: closed, killed, or by a power cut, which may come in the middle of the rollbacks, or of
//! the next recovery.
//!
//! - Every read sees what was committed.
//! - What is refused is refused for a reason: a lock that somebody has, a file that fails, a
//!   rollback that a file stands in the way of.
//! - What is prepared is there after a crash, as a whole.
//! - Once the files are whole again, and after a restart, everything is rolled back and purged: the
//!   tables hold what was committed, in both indexes; no lock is left, and no page, of a table or
//!   of the undo space, that nothing leads to.
//!
//! `TIDEPOOL_SEED=n` replays one run, `TIDEPOOL_SEEDS=n` runs `n`.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};
use tidepool_pool::PageId;
use tidepool_pool::storage::{AlignedBuf, Fault, FaultKind, SimStorage, Storage, StorageOp};

use super::*;
use crate::files::space_file_name;
use crate::redo::tests::seeds;
use crate::space;
use crate::test_storage::place_of;
use crate::trx::{Isolation, TransactionOptions};
use crate::{Cursor, IndexDef, LockMode, LockWait, Savepoint, TableDef};

const TABLES: [&str; 3] = ["a", "b", "c"];
/// More than the pool holds.
const ROWS: u32 = 2000;
/// Which most changes are about.
const HOT_ROWS: u32 = 100;
const PAGE_BYTES: usize = 4096;

/// Of each table, by row number.
type Rows = [BTreeMap<u32, Vec<u8>>; 3];
/// By table and row number; none: deleted.
type Changes = BTreeMap<(usize, u32), Option<Vec<u8>>>;
/// The run goes on, or the power is gone.
type Flow = std::result::Result<(), ()>;
/// How often what has happened: a simulation that reaches nothing proves nothing.
type Seen = BTreeMap<&'static str, u64>;

fn note(seen: &mut Seen, what: &'static str) {
    *seen.entry(what).or_default() += 1;
}

struct Running {
    trx: Transaction,
    changes: Changes,
    savepoints: Vec<(Savepoint, Changes)>,
}

struct Prepared {
    changes: Changes,
    /// Its rollback has begun.
    ended: bool,
}

#[derive(Default)]
struct Model {
    rows: Rows,
    prepared: BTreeMap<Vec<u8>, Prepared>,
    xids: u32,
}

impl Model {
    fn apply(&mut self, changes: Changes) {
        for ((table, n), value) in changes {
            match value {
                Some(value) => _ = self.rows[table].insert(n, value),
                None => _ = self.rows[table].remove(&n),
            }
        }
    }

    /// The entries of a table's index.
    fn entries(&self, table: usize, index: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let rows = self.rows[table].iter();
        let mut entries: Vec<_> = match index {
            0 => rows.map(|(n, value)| (primary(*n), value.clone())).collect(),
            _ => rows.map(|(n, value)| (secondary(*n, value), Vec::new())).collect(),
        };
        entries.sort();
        entries
    }
}

/// A page that was broken on the disk.
struct Broken {
    table: usize,
    page: PageId,
    /// Where it was when it was broken, and what was there before.
    at: u64,
    whole: Vec<u8>,
    /// A life has met it.
    is_met: bool,
}

fn primary(n: u32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn secondary(n: u32, value: &[u8]) -> Vec<u8> {
    [&value[..1], &n.to_be_bytes()].concat()
}

fn definition() -> TableDef {
    TableDef::new([IndexDef::unique("primary"), IndexDef::unique("secondary")])
}

fn open(sim: &SimStorage) -> Result<Db> {
    let mut options = Options { page_size: PAGE_BYTES, ..Options::small() };
    options.buffer_pool_size_bytes = options.buffer_pool_size_min_bytes();
    let db = Db::open_on(Arc::new(sim.clone()), options)?;
    // What is tried again is tried at once.
    db.inner.trx_system().settings.retry_pause_us.store(0, Ordering::Relaxed);
    db.set_lock_wait_timeout(Duration::ZERO);
    Ok(db)
}

fn file_of(db: &Db, table: usize) -> String {
    space_file_name(db.inner.catalog.get(TABLES[table]).expect("it is there").space)
}

/// Where the image of a page is, and its bytes.
fn image_of(sim: &SimStorage, page: PageId) -> (u64, Vec<u8>) {
    const BLOCK: u64 = 4096;
    let (at, len) = place_of(sim, page);
    let start = at / BLOCK * BLOCK;
    let skipped = (at - start) as usize;
    let mut blocks = AlignedBuf::zeroed((skipped + len).next_multiple_of(BLOCK as usize));
    let file = sim.open(&space_file_name(page.space)).unwrap();
    file.read_at(&mut blocks, start).unwrap();
    (at, blocks[skipped..skipped + len].to_vec())
}

/// Unless the page was written anew meanwhile, to another place.
fn mend(sim: &SimStorage, broken: &Broken) {
    let file = space_file_name(broken.page.space);
    if !sim.exists(&file).unwrap() {
        return;
    }
    let (at, now) = image_of(sim, broken.page);
    if at != broken.at || now.len() != broken.whole.len() {
        return;
    }
    let differing: Vec<usize> = (0..now.len()).filter(|&n| now[n] != broken.whole[n]).collect();
    if let [byte] = differing[..] {
        sim.corrupt(&file, at + byte as u64, now[byte] ^ broken.whole[byte]);
    }
}

fn entries(db: &Db, table: usize, index: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let table = db.open_table(TABLES[table])?;
    let mut trx = db.begin(TransactionOptions::default());
    let mut cursor = Cursor::new(table, index, LockMode::None, LockWait::Wait);
    let mut all = Vec::new();
    while cursor.next(&mut trx)? {
        all.push((cursor.key().to_vec(), cursor.value().to_vec()));
    }
    trx.commit()?;
    Ok(all)
}

struct Sim<'a> {
    seed: u64,
    rng: &'a mut StdRng,
    sim: &'a SimStorage,
    db: &'a Db,
    model: &'a mut Model,
    running: Vec<Running>,
    broken: &'a mut Option<Broken>,
    /// Rows that were being changed when the life before ended.
    left: Vec<(usize, u32)>,
    faulty: bool,
    seen: &'a mut Seen,
}

impl Sim<'_> {
    fn pending(&self) -> bool {
        self.db.inner.trx_system().rollbacks_pending() > 0
    }

    /// An error that has its reason.
    fn excuse(&mut self, what: &str, error: &Error, may_be_locked: bool) -> Flow {
        if self.sim.is_down() {
            return Err(());
        }
        let (excused, noted) = match error {
            Error::Io { .. } => (self.faulty, "read error"),
            Error::Corrupt { .. } => (self.broken.is_some(), "broken page"),
            Error::Format { why, .. } => {
                (self.pending() && why.contains("can't be rolled back"), "blocked")
            }
            Error::LockWaitTimeout => (may_be_locked || self.pending(), "locked"),
            _ => (false, ""),
        };
        assert!(excused, "seed {}: {what}: {error}", self.seed);
        note(self.seen, noted);
        Ok(())
    }

    fn begin(&mut self) {
        let isolation = Isolation::ReadCommitted;
        let mut trx = self.db.begin(TransactionOptions { isolation, read_only: false });
        trx.set_lock_wait_timeout(Duration::ZERO);
        self.running.push(Running { trx, changes: Changes::new(), savepoints: Vec::new() });
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.random_range(0..10) {
            0 => self.rng.random_range(2000..12_000),
            1..4 => self.rng.random_range(200..900),
            _ => self.rng.random_range(1..60),
        };
        let mut value = vec![self.rng.random(); len];
        value[0] = self.rng.random_range(0..8);
        value
    }

    /// A statement: it changes a row in both indexes, or it changes nothing.
    fn write(&mut self, me: usize) -> Flow {
        let rows = if self.rng.random_bool(0.6) { HOT_ROWS } else { ROWS };
        let mut at = (self.rng.random_range(0..TABLES.len()), self.rng.random_range(0..rows));
        if self.rng.random_bool(0.2) {
            at = self.left.choose(self.rng).copied().unwrap_or(at);
        }
        let (t, n) = at;
        let new = if self.rng.random_bool(0.8) { Some(self.value()) } else { None };
        let others = self.running.iter().enumerate().filter(|(other, _)| *other != me);
        let of_prepared = self.model.prepared.values().map(|prepared| &prepared.changes);
        let mut others = others.map(|(_, other)| &other.changes).chain(of_prepared);
        let may_be_locked = others.any(|changes| changes.contains_key(&at));
        // Rows that others have taken back by a savepoint stay locked.
        let may_be_locked =
            may_be_locked || self.running.len() > 1 || !self.model.prepared.is_empty();
        let trx = &mut self.running[me];
        let old = match trx.changes.get(&at) {
            Some(own) => own.clone(),
            None => self.model.rows[t].get(&n).cloned(),
        };
        let table = match self.db.open_table(TABLES[t]) {
            Ok(table) => table,
            Err(error) => return self.excuse("open", &error, false),
        };
        let trx = &mut self.running[me];
        let start = trx.trx.savepoint();
        let key = primary(n);
        let both = |trx: &mut Transaction| match (&old, &new) {
            (None, None) => Ok(()),
            (None, Some(new)) => {
                trx.insert(&table, 0, &key, new)?;
                trx.insert(&table, 1, &secondary(n, new), b"")
            }
            (Some(old), None) => {
                trx.delete(&table, 1, &secondary(n, old))?;
                trx.delete(&table, 0, &key)
            }
            (Some(old), Some(new)) => {
                trx.update(&table, 0, &key, new)?;
                if old[0] != new[0] {
                    trx.delete(&table, 1, &secondary(n, old))?;
                    trx.insert(&table, 1, &secondary(n, new), b"")?;
                }
                Ok(())
            }
        };
        match both(&mut trx.trx) {
            Ok(()) => {
                note(self.seen, "write");
                if old.is_some() || new.is_some() {
                    trx.changes.insert(at, new);
                }
                Ok(())
            }
            Err(error) => {
                self.excuse("write", &error, may_be_locked)?;
                let trx = &mut self.running[me].trx;
                if trx.must_rollback() {
                    return self.roll_back(me);
                }
                match trx.rollback_to(start) {
                    Ok(()) => Ok(()),
                    Err(error) => {
                        note(self.seen, "statement lost");
                        self.excuse("rollback of a statement", &error, false)?;
                        self.roll_back(me)
                    }
                }
            }
        }
    }

    fn savepoint(&mut self, me: usize) -> Flow {
        let trx = &mut self.running[me];
        if trx.savepoints.is_empty() || self.rng.random_bool(0.5) {
            trx.savepoints.push((trx.trx.savepoint(), trx.changes.clone()));
            return Ok(());
        }
        let at = self.rng.random_range(0..trx.savepoints.len());
        trx.savepoints.truncate(at + 1);
        let (savepoint, changes) = trx.savepoints[at].clone();
        match trx.trx.rollback_to(savepoint) {
            Ok(()) => {
                note(self.seen, "rollback to savepoint");
                trx.changes = changes;
                Ok(())
            }
            Err(error) => {
                note(self.seen, "savepoint lost");
                self.excuse("rollback to a savepoint", &error, false)?;
                self.roll_back(me)
            }
        }
    }

    fn roll_back(&mut self, me: usize) -> Flow {
        let mut trx = self.running.swap_remove(me);
        note(self.seen, "rollback");
        if let Err(error) = trx.trx.rollback() {
            note(self.seen, "rollback left");
            self.excuse("rollback", &error, false)?;
        }
        Ok(())
    }

    fn commit(&mut self, me: usize) -> Flow {
        let mut trx = self.running.swap_remove(me);
        match trx.trx.commit() {
            Ok(()) => {
                note(self.seen, "commit");
                self.model.apply(trx.changes);
            }
            Err(error) => {
                self.excuse("commit", &error, false)?;
                if let Err(error) = trx.trx.rollback() {
                    self.excuse("rollback", &error, false)?;
                }
            }
        }
        Ok(())
    }

    fn prepare(&mut self, me: usize) -> Flow {
        let mut trx = self.running.swap_remove(me);
        self.model.xids += 1;
        let xid = format!("xid {}", self.model.xids).into_bytes();
        match trx.trx.prepare(&xid) {
            Ok(()) => {
                note(self.seen, "prepare");
                let changes = trx.changes;
                self.model.prepared.insert(xid, Prepared { changes, ended: false });
                trx.trx.detach();
            }
            Err(error) => {
                self.excuse("prepare", &error, false)?;
                if let Err(error) = trx.trx.rollback() {
                    self.excuse("rollback", &error, false)?;
                }
            }
        }
        Ok(())
    }

    fn end_prepared(&mut self, rollback: bool) -> Flow {
        let open = self.model.prepared.iter().filter(|(_, prepared)| !prepared.ended);
        let Some(xid) = open.map(|(xid, _)| xid.clone()).choose(self.rng) else { return Ok(()) };
        if rollback {
            let rolled_back = self.db.rollback_prepared(&xid);
            note(self.seen, "rollback of a prepared");
            match rolled_back {
                Ok(()) => _ = self.model.prepared.remove(&xid),
                Err(error) => {
                    note(self.seen, "rollback of a prepared left");
                    self.model.prepared.get_mut(&xid).expect("it is there").ended = true;
                    self.excuse("rollback of a prepared", &error, false)?;
                }
            }
        } else {
            match self.db.commit_prepared(&xid) {
                Ok(()) => {
                    let prepared = self.model.prepared.remove(&xid).expect("it is there");
                    note(self.seen, "commit of a prepared");
                    self.model.apply(prepared.changes);
                }
                Err(error) => self.excuse("commit of a prepared", &error, false)?,
            }
        }
        Ok(())
    }

    fn trouble(&mut self) {
        self.faulty = !self.faulty;
        self.sim.clear_faults();
        if self.faulty {
            let files =
                [(0..3).map(|t| file_of(self.db, t)).collect(), vec!["undo.tpd".into(), "".into()]];
            let file = files.concat().choose(self.rng).cloned().unwrap_or_default();
            let times = *[1, 2, 9, 40, u64::MAX].choose(self.rng).expect("not empty");
            let fault = Fault::new(StorageOp::Read, FaultKind::Io).on(file);
            self.sim.inject(fault.skip(self.rng.random_range(0..6)).times(times));
        }
    }

    /// Empties a table, or makes it anew.
    fn empty(&mut self) -> Flow {
        let t = self.rng.random_range(0..TABLES.len());
        let of_prepared = self.model.prepared.values().map(|prepared| &prepared.changes);
        let all = self.running.iter().map(|trx| &trx.changes).chain(of_prepared);
        let in_use = all.flat_map(|changes| changes.keys()).any(|at| at.0 == t);
        let in_use = in_use || !self.running.is_empty();
        let outcome = if self.rng.random_bool(0.5) {
            self.db.truncate_table(TABLES[t]).map(drop)
        } else {
            let dropped = self.db.drop_table(TABLES[t]);
            if dropped.is_ok() {
                self.sim.clear_faults();
                self.faulty = false;
                self.db.create_table(TABLES[t], &definition()).unwrap();
            }
            dropped
        };
        match outcome {
            Ok(()) => {
                note(self.seen, "table emptied");
                if self.pending() {
                    note(self.seen, "table emptied beside a rollback");
                }
                self.model.rows[t].clear();
                if self.broken.as_ref().is_some_and(|broken| broken.table == t) {
                    *self.broken = None;
                }
                Ok(())
            }
            Err(Error::TableBusy(_)) if in_use => Ok(()),
            Err(error) => self.excuse("emptying a table", &error, in_use),
        }
    }

    /// Copies a table to a new file, with its indexes.
    fn rebuild(&mut self) -> Flow {
        let t = self.rng.random_range(0..TABLES.len());
        let may_be_in_use = !self.running.is_empty() || !self.model.prepared.is_empty();
        match self.rebuild_of(t) {
            Ok(()) => {
                note(self.seen, "table rebuilt");
                if self.pending() {
                    note(self.seen, "table rebuilt beside a rollback");
                }
                if self.broken.as_ref().is_some_and(|broken| broken.table == t) {
                    *self.broken = None;
                }
                Ok(())
            }
            Err(Error::TableBusy(_)) if may_be_in_use => Ok(()),
            Err(error) => self.excuse("rebuilding a table", &error, may_be_in_use),
        }
    }

    fn rebuild_of(&self, t: usize) -> Result<()> {
        let mut change = self.db.rebuild_table(TABLES[t], &definition())?;
        while let Some((key, value)) = change.next_row()? {
            let (key, value) = (key.to_vec(), value.to_vec());
            let n = u32::from_be_bytes(key[..4].try_into().expect("a row's number"));
            change.push_row(&key, &value)?;
            change.add(1, &secondary(n, &value), b"")?;
        }
        change.build(&mut || true)?;
        change.commit(&[]).map(drop)
    }

    fn background(&mut self) -> Flow {
        let outcome = match self.rng.random_range(0..10) {
            0..4 => self.db.step_rollback_recovered(),
            4..7 => self.db.step_purge(),
            7 => self.db.step_cleaner(),
            8 => self.db.step_checkpoint(),
            _ => self.db.flush_log().map(|()| true),
        };
        if self.db.inner.observe().iter().any(|one| one.owner.blocked().is_some()) {
            note(self.seen, "rollback blocked");
        }
        match outcome {
            Ok(_) => Ok(()),
            Err(error) => self.excuse("background", &error, false),
        }
    }

    fn step(&mut self) -> Flow {
        if self.running.is_empty() || self.running.len() < 3 && self.rng.random_bool(0.1) {
            self.begin();
        }
        let me = self.rng.random_range(0..self.running.len());
        match self.rng.random_range(0..1000) {
            0..700 => self.write(me),
            700..750 => self.savepoint(me),
            750..775 => self.commit(me),
            775..800 => self.roll_back(me),
            800..810 => self.prepare(me),
            810..820 => {
                let rollback = self.rng.random_bool(0.7);
                self.end_prepared(rollback)
            }
            820..850 => {
                self.trouble();
                Ok(())
            }
            850..856 => self.empty(),
            856..860 => self.rebuild(),
            _ => self.background(),
        }
    }

    /// All that runs is rolled back, and the background works, for some steps.
    fn wind_down(&mut self) -> Flow {
        while !self.running.is_empty() {
            self.roll_back(0)?;
        }
        for _ in 0..self.rng.random_range(0..60) {
            match self.rng.random_range(0..20) {
                0 => self.end_prepared(true)?,
                1..4 => self.trouble(),
                _ => self.background()?,
            }
        }
        Ok(())
    }

    /// What the tables hold, as far as it can be read.
    fn check_tables(&mut self) {
        for t in 0..TABLES.len() {
            for index in 0..2 {
                let wanted = self.model.entries(t, index);
                match entries(self.db, t, index) {
                    Ok(found) => {
                        assert_eq!(found.len(), wanted.len(), "seed {}: {t}.{index}", self.seed);
                        assert!(found == wanted, "seed {}: {t}.{index}", self.seed);
                    }
                    Err(error) => self.excuse("check", &error, false).expect("it is up"),
                }
            }
        }
    }
}

/// Everything ends, and all is looked over from end to end.
fn check_settled(db: &Db, model: &mut Model, seed: u64) {
    while db.step_rollback_recovered().unwrap() {}
    for (xid, prepared) in std::mem::take(&mut model.prepared) {
        db.commit_prepared(&xid).unwrap();
        model.apply(prepared.changes);
    }
    while db.step_purge().unwrap() {}
    let trx_system = db.inner.trx_system();
    let status = trx_system.status();
    assert_eq!((status.rollbacks_pending, status.active_writers), (0, 0), "seed {seed}");
    assert_eq!((status.history_len, status.key_locks), (0, 0), "seed {seed}");
    for (t, name) in TABLES.into_iter().enumerate() {
        for index in 0..2 {
            assert!(entries(db, t, index).unwrap() == model.entries(t, index), "seed {seed}");
        }
        let table = db.open_table(name).unwrap();
        let report = table.check(db, &mut |_| true).unwrap();
        assert!(report.is_clean(), "seed {seed}: {:?}", report.problems);
        let marked: u64 = report.indexes.iter().map(|index| index.delete_marked).sum();
        assert_eq!(marked, 0, "seed {seed}: delete-marks are left");
        assert_eq!(
            table.unreachable_pages().unwrap(),
            [] as [u32; 0],
            "seed {seed}: leaked pages of {name}"
        );
    }
    let mut undo = vec![0, 1];
    undo.extend(trx_system.undo.pages().unwrap());
    let allocated = space::allocated_pages(db.inner.env(), trx_system.undo.space()).unwrap();
    assert_eq!(allocated, undo, "seed {seed}: leaked or missing undo pages");
}

/// Breaks a page that is in use, most likely the leaf of one of these rows, on the disk that a kill
/// leaves: all changes of it are in its file.
fn break_page(
    db: &Db,
    sim: &SimStorage,
    rows: &[(usize, u32)],
    rng: &mut StdRng,
) -> Result<(Broken, SimStorage)> {
    let env = db.inner.env();
    let row = rows.choose(rng).filter(|_| rng.random_bool(0.8));
    let table = row.map_or_else(|| rng.random_range(0..TABLES.len()), |(table, _)| *table);
    let page = if let Some((_, n)) = row {
        let (table, key) = (db.open_table(TABLES[table])?, primary(*n));
        let seek = crate::btree::Seek::Key(&key);
        table.tree(0).tree().leaf_shared(seek, tidepool_pool::Access::Normal)?.page_id().no
    } else {
        let space = env.space(db.inner.catalog.get(TABLES[table]).expect("it is there").space)?;
        let pages = space::allocated_pages(env, &space)?.into_iter();
        let no_bitmap = |no: &u32| *no != 0 && *no != space::bitmap_of(*no, env.page_size());
        pages.filter(no_bitmap).choose(rng).expect("a tree has a root")
    };
    env.checkpoint_all()?;
    let sim = sim.kill();
    let space = db.inner.catalog.get(TABLES[table]).expect("it is there").space;
    let page = PageId::new(space, page);
    let (at, whole) = image_of(&sim, page);
    let byte = rng.random_range(0..whole.len()) as u64;
    sim.corrupt(&space_file_name(space), at + byte, 1 << rng.random_range(0..8));
    Ok((Broken { table, page, at, whole, is_met: false }, sim))
}

fn check_opened(db: &Db, model: &mut Model, seed: u64) {
    let xids = db.recovered_xids();
    for xid in &xids {
        let prepared = model.prepared.get_mut(xid);
        // If its rollback had begun, nothing of that is left.
        prepared.unwrap_or_else(|| panic!("seed {seed}: an unknown XID")).ended = false;
    }
    model.prepared.retain(|xid, prepared| {
        assert!(prepared.ended || xids.contains(xid), "seed {seed}: a prepared one is lost");
        !prepared.ended
    });
}

fn run(seed: u64, seen: &mut Seen) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut sim = SimStorage::new(seed);
    let mut model = Model::default();
    {
        let db = open(&sim).unwrap();
        for (t, name) in TABLES.into_iter().enumerate() {
            let table = db.create_table(name, &definition()).unwrap();
            let mut trx = db.begin(TransactionOptions::default());
            for n in (0..ROWS).filter(|n| n % 4 > 0) {
                let value = vec![n as u8 % 8; 900];
                trx.insert(&table, 0, &primary(n), &value).unwrap();
                trx.insert(&table, 1, &secondary(n, &value), b"").unwrap();
                model.rows[t].insert(n, value);
            }
            trx.commit().unwrap();
        }
        db.close().unwrap();
    }
    let (mut broken, mut left): (Option<Broken>, Vec<(usize, u32)>) = (None, Vec::new());
    let mut lives = rng.random_range(2..6);
    while lives > 0 {
        if let Some(was) = broken.take_if(|broken| broken.is_met && rng.random_bool(0.4)) {
            mend(&sim, &was);
            note(seen, "mended");
        }
        if rng.random_bool(0.2) {
            sim.crash_at(sim.operation_count() + rng.random_range(1..40));
        }
        let down = |sim: &SimStorage, kill: bool| if kill { sim.kill() } else { sim.crash() };
        let kill = rng.random_bool(0.5);
        let db = match open(&sim) {
            Ok(db) => db,
            Err(error) => {
                assert!(sim.is_down(), "seed {seed}: {error}");
                note(seen, "crash in recovery");
                sim = sim.crash();
                continue;
            }
        };
        // What is committed here is not to be in doubt.
        sim.crash_at(u64::MAX);
        check_opened(&db, &mut model, seed);
        lives -= 1;
        let mut life = Sim {
            seed,
            rng: &mut rng,
            sim: &sim,
            db: &db,
            model: &mut model,
            running: Vec::new(),
            broken: &mut broken,
            left: std::mem::take(&mut left),
            faulty: false,
            seen: &mut *seen,
        };
        if life.pending() {
            note(life.seen, "left by an earlier life");
        }
        // Not always: it brings much into memory, and what is there can't fail.
        if life.rng.random_bool(0.3) {
            life.check_tables();
        }
        if life.rng.random_bool(0.6) {
            life.trouble();
        }
        let first = life.rng.random_range(0..20);
        let mut flow = (0..first).try_for_each(|_| life.background());
        if flow.is_ok() && life.rng.random_bool(0.3) {
            flow = life.empty();
        }
        if flow.is_ok() && life.rng.random_bool(0.3) {
            flow = life.rebuild();
        }
        let steps = life.rng.random_range(1..500);
        flow = flow.and_then(|()| (0..steps).try_for_each(|_| life.step()));
        let end = life.rng.random_range(0..8);
        if flow.is_ok() && end < 3 {
            // The power goes in the middle of rollbacks.
            let most = [4, 30, 200][life.rng.random_range(0..3)];
            let at = sim.operation_count() + life.rng.random_range(1..most);
            if kill {
                sim.kill_at(at)
            } else {
                sim.crash_at(at)
            }
            flow = life.wind_down();
            note(life.seen, if flow.is_ok() { "wound down" } else { "crash in rollbacks" });
        }
        let running = std::mem::take(&mut life.running);
        left = running.iter().flat_map(|trx| trx.changes.keys().copied()).collect();
        sim.clear_faults();
        broken.iter_mut().for_each(|broken| broken.is_met = true);
        let next = match end {
            _ if flow.is_err() || sim.is_down() => down(&sim, kill),
            3..6 if broken.is_none() => match break_page(&db, &sim, &left, &mut rng) {
                Ok((page, disk)) => {
                    note(seen, "page broken");
                    broken = Some(page);
                    disk
                }
                Err(error) => panic!("seed {seed}: {error}"),
            },
            6 => {
                db.close().unwrap();
                sim.kill()
            }
            _ => down(&sim, kill),
        };
        drop((running, db));
        sim = next;
    }
    if let Some(was) = &broken {
        mend(&sim, was);
    }
    for _ in 0..2 {
        let db = open(&sim).unwrap();
        check_opened(&db, &mut model, seed);
        check_settled(&db, &mut model, seed);
        db.close().unwrap();
        sim = sim.kill();
    }
}

#[test]
fn rollbacks_beside_files_that_fail_match_the_model() {
    let mut seen = Seen::new();
    let seeds = seeds(16);
    let enough = seeds.end - seeds.start >= 16;
    for seed in seeds {
        run(seed, &mut seen);
    }
    for what in [
        "write",
        "commit",
        "rollback",
        "rollback to savepoint",
        "prepare",
        "commit of a prepared",
        "rollback of a prepared",
        "rollback of a prepared left",
        "read error",
        "page broken",
        "broken page",
        "mended",
        "rollback blocked",
        "blocked",
        "locked",
        "left by an earlier life",
        "table emptied",
        "table emptied beside a rollback",
        "table rebuilt",
        "table rebuilt beside a rollback",
        "crash in rollbacks",
        "crash in recovery",
    ] {
        assert!(
            !enough || seen.get(what).is_some_and(|times| *times > 0),
            "{what} never happened: {seen:?}"
        );
    }
    println!("{seen:?}");
}
