//! Transactions.
//!
//! # Contents
//! - [`view`]: read views and their registry.
//! - [`activity`]: who is at work, for reports.
//! - `system`: what all share; `core`: one's life (`savepoint`: which savepoints are void);
//!   `rollback`, and what a failing disk makes of it (`retry`, `blocked_rollback`); `purge`, and
//!   whom it has to find (`purge_overwrite`).
//!
//! Which transaction committed when is in [`crate::csn`], the operations on entries are above, in
//! [`crate::versioned`], the locks in [`crate::lock`], the undo log in [`crate::undo`].
//!
//! # What the layers above use
//! ```text
//! TrxSystem::create(&Arc<Env>) / TrxSystem::open(&Arc<Env>) -> Result<Arc<TrxSystem>>     (open: after redo recovery)
//!     .begin(TransactionOptions) -> TransactionCore
//!     .recovered_xids() -> Vec<Vec<u8>>; .take_prepared(xid) -> Option<TransactionCore>       (then .commit() or .rollback())
//!     .purge_step(max_logs) -> Result<usize>; .rollback_step() -> Result<bool>            (explicit background steps)
//!     .start_background() / .stop_background()
//!     .exclude_purge() -> PurgeExclusion          hold it while a space is dropped or truncated
//!     .status() -> TrxStatus                      history length, active transactions, lock waits ...
//!
//! TransactionCore (Send, not Sync):
//!     .id() -> TrxId (0 before the first write)  .isolation()  .set_isolation(..)  .set_lock_wait_timeout(Duration)  .interrupt_handle()
//!     .begin_statement() / .end_statement()       READ COMMITTED: the view ends with the statement; all: what locking reads have read
//!     .ensure_view()                              START TRANSACTION WITH CONSISTENT SNAPSHOT
//!     .savepoint() -> Savepoint; .rollback_to(Savepoint) -> Result<()>       also the statement rollback
//!     .prepare(xid) -> Result<()>  .commit() -> Result<()>  .commit_no_flush() -> Result<Lsn>  .rollback() -> Result<()>  .detach()
//! ```
//! What a transaction does with entries are operations of [`crate::versioned::VersionedTree`].

pub mod activity;
mod blocked_rollback;
mod core;
mod purge;
mod purge_overwrite;
mod retry;
mod rollback;
mod savepoint;
mod system;
pub mod view;

pub use crate::csn::{Csn, TrxId};
pub use core::{Savepoint, TransactionCore};
pub use system::TrxSystem;

/// Isolation levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    /// Reads without a lock see the newest version of each entry, committed or not. All else is as
    /// at READ COMMITTED.
    ReadUncommitted,
    /// Each statement sees what was committed when it began.
    ReadCommitted,
    /// Every consistent read sees what was committed when the first one began.
    #[default]
    RepeatableRead,
    /// As if transactions ran one after another: reads lock what they read, gaps included.
    Serializable,
}

impl Isolation {
    /// All of them, weakest first.
    pub const ALL: [Isolation; 4] = [
        Isolation::ReadUncommitted,
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ];
}

impl Isolation {
    /// Whether each statement has a separate view, and rows that a locking read did not want are
    /// let go.
    pub fn is_by_statement(self) -> bool {
        matches!(self, Isolation::ReadUncommitted | Isolation::ReadCommitted)
    }
}

/// How a transaction begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransactionOptions {
    /// Isolation level.
    pub isolation: Isolation,
    /// Writes are refused.
    pub read_only: bool,
}

/// Figures of the transaction system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrxStatus {
    /// Committed transactions that purge has still to look at.
    pub history_len: u64,
    /// Transactions that have written and not ended, prepared ones included.
    pub active_writers: u64,
    /// Open read views.
    pub read_views: u64,
    /// The next transaction id.
    pub next_trx_id: u64,
    /// The newest commit sequence number.
    pub newest_csn: u64,
    /// Commits since the start.
    pub commits: u64,
    /// Rollbacks since the start.
    pub rollbacks: u64,
    /// Logs purged since the start.
    pub purged_logs: u64,
    /// Entries removed by purge since the start.
    pub purged_entries: u64,
    /// Entries settled in full leaves since the start.
    pub settled_entries: u64,
    /// Lock waits begun since the start.
    pub lock_waits: u64,
    /// Lock waits that timed out.
    pub lock_timeouts: u64,
    /// Deadlocks resolved.
    pub deadlocks: u64,
    /// Time spent in lock waits, in microseconds.
    pub lock_wait_micros: u64,
    /// Lock waits at the moment.
    pub lock_waits_current: u64,
    /// Keys with locks that no written entry shows.
    pub key_locks: u64,
    /// Locked ranges.
    pub range_locks: u64,
    /// Undo streams that exist: the most writers there were at once, and some more if purge was
    /// stuck in one.
    pub undo_streams: u64,
    /// Rollbacks left to the background.
    pub rollbacks_pending: u64,
    /// Prepared transactions without a session.
    pub prepared: u64,
    /// Chunks of the table of transaction states in memory.
    pub trx_state_chunks: u64,
}

#[cfg(test)]
mod tests;
