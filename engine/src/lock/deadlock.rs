//! The newest deadlocks, as they were found: for reports, since nothing of one is left a moment
//! later.
//!
//! # Locking order
//! The mutexes are leaves. The embedder is asked for statements, and the logger called, while none
//! is held.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::owner::Owner;
use crate::csn::TrxId;

const KEPT: usize = 32;

/// A circle of waits.
#[derive(Debug, Clone)]
pub(crate) struct Deadlock {
    /// Which one since the open, from 1.
    pub number: u64,
    /// When it was found.
    pub at: SystemTime,
    /// Each waits for the next, the last for the first. The first closed the circle.
    pub circle: Vec<DeadlockMember>,
}

/// One who waited.
#[derive(Debug, Clone)]
pub(crate) struct DeadlockMember {
    /// As [`Owner::number`].
    pub number: u64,
    /// As [`Owner::trx_id`].
    pub trx_id: TrxId,
    /// The tree and the key of the lock; none if the wait was over at that moment.
    pub wanted: Option<(u32, Box<[u8]>)>,
    /// As [`Owner::undo_records`].
    pub undo_records: u64,
    /// Whether it was chosen to be rolled back.
    pub is_victim: bool,
    /// As [`Owner::session_number`].
    pub session: u64,
    /// What its session was executing, if the embedder knows.
    pub statement: Option<String>,
}

impl Deadlock {
    pub(super) fn of(circle: &[Arc<Owner>], victim: u64) -> Deadlock {
        let member = |owner: &Arc<Owner>| DeadlockMember {
            number: owner.number(),
            trx_id: owner.trx_id(),
            wanted: owner.requested().map(|wanted| (wanted.tree, wanted.key)),
            undo_records: owner.undo_records(),
            is_victim: owner.number() == victim,
            session: owner.session_number(),
            statement: None,
        };
        let circle = circle.iter().map(member).collect();
        Deadlock { number: 0, at: SystemTime::now(), circle }
    }
}

/// The newest deadlocks.
#[derive(Default)]
pub(crate) struct Deadlocks {
    newest: Mutex<Newest>,
    /// Called with each, by the thread that has found it.
    logger: Mutex<Option<Arc<Logger>>>,
}

/// What writes a deadlock to the log.
pub(crate) type Logger = Box<dyn Fn(&Deadlock) + Send + Sync>;

#[derive(Default)]
struct Newest {
    count: u64,
    deadlocks: VecDeque<Deadlock>,
}

impl Deadlocks {
    /// Sets what writes each deadlock to the log; `None`: nothing does.
    pub fn set_logger(&self, logger: Option<Logger>) {
        *self.logger.lock() = logger.map(Arc::new);
    }

    /// Those that are kept, the newest first.
    pub fn newest(&self) -> Vec<Deadlock> {
        self.newest.lock().deadlocks.iter().rev().cloned().collect()
    }

    pub(super) fn add(&self, mut deadlock: Deadlock) {
        {
            let mut newest = self.newest.lock();
            newest.count += 1;
            deadlock.number = newest.count;
            if newest.deadlocks.len() == KEPT {
                newest.deadlocks.pop_front();
            }
            newest.deadlocks.push_back(deadlock.clone());
        }
        let logger = self.logger.lock().clone();
        if let Some(logger) = logger {
            logger(&deadlock);
        }
    }
}

impl std::fmt::Debug for Deadlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deadlocks")
            .field("count", &self.newest.lock().count)
            .finish_non_exhaustive()
    }
}
