//! The whole engine on a simulated disk, from a seed, single-threaded: several sessions'
//! transactions, definition changes, purge, cleaner and checkpoints in a random order; the buffer
//! pool grows and shrinks, by steps that come between all these; power cuts in the middle of any
//! disk operation; a full disk now and then. In some lives the disk fails: a sync, after which the
//! engine must write nothing more, or the removal of files, in recoveries too. A second index comes
//! and goes: it has an entry for each row. Tables are filled that no session sees, and backups
//! taken, while all that goes on. The seed says which page size. After each recovery what the disk
//! holds is compared with what was acknowledged: all of it is there, and nothing else, except for
//! the one operation that the power cut interrupted, which may have happened or not.
//!
//! `TIDEPOOL_SEEDS=n` runs more seeds than the default; `TIDEPOOL_SEED=n` runs that one alone: a
//! failure's message names its seed, and the same seed fails again in the same way.
//!
//! `model`: what is acknowledged. `life`: openings and what must be found. `statement`,
//! `transaction`, `definition`, `memory`, `backup`: the steps of a life.

/// Prints on standard error what happens, if `TIDEPOOL_TRACE` is set.
macro_rules! trace {
    ($($arg:tt)*) => {
        if std::env::var_os("TIDEPOOL_TRACE").is_some() {
            eprintln!($($arg)*);
        }
    };
}

mod backup;
mod definition;
mod life;
mod memory;
mod model;
#[path = "../scan/mod.rs"]
mod scan;
mod statement;
mod transaction;

use rand::prelude::*;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tidepool::storage::SimStorage;
use tidepool::{Db, Error, Isolation, Options, Savepoint, Table, TableLoad, Transaction};

use model::{Model, Rows, TableNo, Writes};

const SESSIONS: usize = 4;
const LIVES: usize = 4;
const STEPS: usize = 250;

/// The power is off: the life ends.
struct PowerCut;
type Step<T = ()> = Result<T, PowerCut>;

/// Sizes of the pool, which takes whole extents of them.
const SIZES_MIB: std::ops::RangeInclusive<u64> = 4..=9;

struct Session {
    trx: Transaction,
    /// The snapshot, once taken (REPEATABLE READ), and the commit number it was taken after.
    view: Option<(Model, u64)>,
    isolation: Isolation,
    writes: Writes,
    savepoint: Option<(Savepoint, Writes, BTreeSet<TableNo>)>,
    /// Tables used since the transaction began.
    used: BTreeSet<TableNo>,
}

/// What came to be tried.
#[derive(Debug, Default)]
struct Counts {
    /// By resizes.
    pages_moved: u64,
    /// Backups that were opened, and compared.
    backups: u64,
    /// Those that were combined with their base.
    combined: u64,
    /// Writes that succeeded.
    writes: u64,
    /// Writes that a full disk refused.
    no_space: u64,
    /// Writes and locking reads that met a row changed since the snapshot.
    changed: u64,
    /// Locking reads that met a lock.
    locked: u64,
    /// Lives in which a fault that the seed ordered struck.
    troubled: u64,
    /// Power cuts in a recovery.
    cut_recoveries: u64,
    /// Power cuts in an operation that may have happened or not.
    in_flight: u64,
    /// Recoveries that found prepared transactions.
    prepared: u64,
}

impl Counts {
    fn all(&mut self) -> [(&'static str, &mut u64); 11] {
        [
            ("a page moved by a resize", &mut self.pages_moved),
            ("a backup", &mut self.backups),
            ("an incremental backup", &mut self.combined),
            ("a write", &mut self.writes),
            ("a write that a full disk refuses", &mut self.no_space),
            ("a row changed since the snapshot", &mut self.changed),
            ("a row locked by another", &mut self.locked),
            ("a fault of the disk", &mut self.troubled),
            ("a power cut in a recovery", &mut self.cut_recoveries),
            ("an operation in flight at a power cut", &mut self.in_flight),
            ("a prepared transaction in a recovery", &mut self.prepared),
        ]
    }
}

/// A table that is being filled.
struct Loading {
    load: TableLoad,
    name: String,
    rows: Rows,
    no: TableNo,
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
    /// Filled, and not finished while other things happen.
    loading: Option<Loading>,
    /// Not finished.
    backup: Option<backup::Running>,
    /// The disk has no room at present, except for what has its space already.
    is_full: bool,
    counts: Counts,
    /// The last complete one, and the incremental ones since: a power cut gives a copy of each.
    chain: Vec<SimStorage>,
    next_table: TableNo,
    /// Tables that transactions detached in this life use; of those of earlier lives the engine
    /// does not know.
    detached: BTreeMap<Vec<u8>, BTreeSet<TableNo>>,
    next_xid: u64,
    /// Commits and definitions so far, and the last for each key and for each table's content or
    /// name.
    commits: u64,
    changed: BTreeMap<(TableNo, Vec<u8>), u64>,
    defined: BTreeMap<TableNo, u64>,
    /// When a table last left a name in this life, and which one.
    vacated: BTreeMap<String, (u64, TableNo)>,
}

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
    let seeds = std::env::var("TIDEPOOL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    let first = std::env::var("TIDEPOOL_FIRST_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut sum = Counts::default();
    for seed in first..first + seeds {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(mut counts) => {
                for ((_, sum), (_, count)) in sum.all().into_iter().zip(counts.all()) {
                    *sum += *count;
                }
            }
            Err(panic) => {
                eprintln!("failed with TIDEPOOL_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{sum:?}");
    for (what, count) in sum.all() {
        assert!(*count > 0 || seeds < 30, "{what}: none in {seeds} seeds, so it was not tried");
    }
}

fn run(seed: u64) -> Counts {
    let mut world = World::new(seed);
    for life in 0..LIVES {
        if life > 0 {
            world.note_pages_moved();
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
    world.note_pages_moved();
    world.reopen();
    world.model_is_on_disk(true);
    world.nothing_is_lost();
    world.note_pages_moved();
    world.counts
}

impl World {
    fn note_pages_moved(&mut self) {
        let status = self.db.status();
        trace!("evicted: {:?}", status.get("buffer_pool_pages_evicted"));
        self.counts.pages_moved += status.get("buffer_pool_resize_pages_moved").unwrap();
    }

    /// Distinguishes a power cut from a wrong answer. `result` of anything that should succeed.
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
            8..11 => self.backup(),
            11..64 => self.statement(),
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
}
