//! What the threads of a run share: whose turn it is, the sessions to kill, the counts.
//!
//! Each thread holds a turn (the lock, shared) for a transaction, an ALTER or a kill. The checks
//! hold the lock alone: no statement runs then, and no transaction is open.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The database of the table.
pub const DATABASE: &str = "stress";

/// Differences after which a run ends.
const DIFFERENCES_MAX: usize = 5;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// Statements that ended.
    Statements,
    /// Commits that were acknowledged.
    Commits,
    /// Transactions that an error rolled back.
    Lost,
    /// ALTER TABLEs that succeeded.
    Alters,
    /// KILLs that found their session.
    Kills,
    /// SET GLOBALs that succeeded.
    Settings,
    /// Times the server was killed.
    Crashes,
    /// Comparisons of the whole table.
    Checks,
    /// Reads that gave what their snapshot's first gave.
    Rereads,
    /// Transactions that were prepared.
    Prepared,
}

const NAMES: [&str; 10] = [
    "statements",
    "commits",
    "transactions lost",
    "ALTERs",
    "KILLs",
    "settings",
    "crashes",
    "checks",
    "snapshots read again",
    "prepared",
];

/// How often each thing happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts([u64; NAMES.len()]);

impl Counts {
    pub fn of(&self, what: Count) -> u64 {
        self.0[what as usize]
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            NAMES.iter().zip(self.0).map(|(name, count)| format!("{count} {name}")).collect();
        f.write_str(&parts.join(", "))
    }
}

/// See the [module](self).
pub struct Stage {
    pub socket: PathBuf,
    /// Grows with each start of the server.
    pub life: AtomicU64,
    /// The connection of each session, by its number; 0: none.
    pub sessions: Vec<AtomicU32>,
    /// How often a KILL of each session began or ended.
    kills: Vec<AtomicU64>,
    /// The server's process; 0: the run is over.
    pub process: AtomicU32,
    turns: RwLock<()>,
    counts: [AtomicU64; NAMES.len()],
    /// Whether all threads are asked to end.
    pub ended: AtomicBool,
    differences: Mutex<Vec<String>>,
}

impl Stage {
    pub fn new(socket: PathBuf, sessions: usize) -> Stage {
        Stage {
            socket,
            life: AtomicU64::new(1),
            sessions: (0..sessions).map(|_| AtomicU32::new(0)).collect(),
            kills: (0..sessions).map(|_| AtomicU64::new(0)).collect(),
            process: AtomicU32::new(0),
            turns: RwLock::new(()),
            counts: Default::default(),
            ended: AtomicBool::new(false),
            differences: Mutex::new(Vec::new()),
        }
    }

    /// Waits while the table is checked.
    pub fn turn(&self) -> RwLockReadGuard<'_, ()> {
        self.turns.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all turns have ended, and lets none begin.
    pub fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.turns.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A KILL of this session begins, or has ended.
    pub fn note_kill(&self, session: usize) {
        self.kills[session].fetch_add(1, Ordering::SeqCst);
    }

    /// How often [`Stage::note_kill`] was called: odd while a KILL is under way.
    pub fn kills_noted(&self, session: usize) -> u64 {
        self.kills[session].load(Ordering::SeqCst)
    }

    pub fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn counts(&self) -> Counts {
        Counts(std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed)))
    }

    /// Notes what should never be; ends the run if that is too much.
    pub fn report(&self, what: String) {
        let mut differences = self.differences.lock().unwrap_or_else(PoisonError::into_inner);
        differences.push(what);
        if differences.len() >= DIFFERENCES_MAX {
            self.end();
        }
    }

    pub fn differences(&self) -> Vec<String> {
        self.differences.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks all threads to end.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}
