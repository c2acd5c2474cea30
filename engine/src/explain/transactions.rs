//! Transactions that have begun and not ended.

use std::time::SystemTime;

use super::{shown_id, shown_lock};
use crate::db::Db;
use crate::trx::Isolation;
use crate::trx::activity::Phase;

/// What a transaction is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionState {
    /// It can go on.
    Running,
    /// It waits for a lock.
    LockWait,
    /// It waits for its verdict.
    Prepared,
    /// It becomes visible and durable.
    Committing,
    /// It is undone.
    RollingBack,
}

/// A transaction at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TransactionReport {
    /// Its id; before its first write a number above all ids.
    pub id: u64,
    /// What it is at.
    pub state: TransactionState,
    /// When it began; none for one of an earlier life, or of the engine itself.
    pub started_at: Option<SystemTime>,
    /// The lock it waits for, as [`LockReport::id`](super::LockReport::id), and since when.
    pub requested_lock: Option<(String, SystemTime)>,
    /// What a rollback would cost, and what it keeps others from: changes made and locks held.
    pub weight: u64,
    /// Whatever the layer above knows its session by; none for one that no session runs.
    pub session: Option<u64>,
    /// Tables it has used.
    pub tables: u64,
    /// Locks on keys that it holds or waits for. What it wrote is locked besides.
    pub rows_locked: u64,
    /// Index entries that it has written, each as often as it did.
    pub rows_modified: u64,
    /// Its isolation level, if a session runs it.
    pub isolation: Option<Isolation>,
}

impl Db {
    /// All transactions at this moment, by id.
    pub fn transactions(&self) -> Vec<TransactionReport> {
        let mut all: Vec<_> = self
            .inner
            .observe()
            .into_iter()
            .filter(|one| !one.owner.has_ended() || one.owner.blocked().is_some())
            .map(|one| {
                let owner = &one.owner;
                let requested = owner.requested();
                let kept = self.trx_system().locks.compact.len_of(owner);
                let rows_locked = (owner.key_locks() + kept) as u64;
                let rows_modified = owner.undo_records();
                TransactionReport {
                    id: shown_id(owner),
                    state: match one.phase {
                        Phase::Running if requested.is_some() => TransactionState::LockWait,
                        Phase::Running => TransactionState::Running,
                        Phase::Prepared => TransactionState::Prepared,
                        Phase::Committing => TransactionState::Committing,
                        Phase::RollingBack => TransactionState::RollingBack,
                    },
                    started_at: one.started_at,
                    requested_lock: requested
                        .map(|lock| (shown_lock(owner, lock.tree, &lock.key), lock.since)),
                    weight: rows_locked + rows_modified,
                    session: (one.session != 0).then_some(one.session),
                    tables: one.tables,
                    rows_locked,
                    rows_modified,
                    isolation: one.isolation,
                }
            })
            .collect();
        all.sort_by_key(|one| one.id);
        all
    }
}
