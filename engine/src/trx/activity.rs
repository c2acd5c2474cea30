//! What a session's transaction is at: its [`Activity`], for reports.
//!
//! A session shows what it does by a few relaxed stores, into its own memory, at the beginning
//! and the end of a transaction. A reader looks at them without stopping any thread, and gets what
//! was true a moment ago.
//!
//! Locking: `Activity::owner` is a leaf.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::Isolation;
use crate::lock::Owner;

/// What a transaction is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// It may read and write.
    Running,
    /// It waits for its verdict.
    Prepared,
    /// It becomes visible and durable.
    Committing,
    /// It is undone.
    RollingBack,
}

impl Phase {
    const ALL: [Phase; 4] =
        [Phase::Running, Phase::Prepared, Phase::Committing, Phase::RollingBack];
}

/// A session's transaction, as it shows itself.
#[derive(Default)]
pub struct Activity {
    /// Whatever the layer above knows its session by; 0 = nothing.
    session: AtomicU64,
    /// Microseconds since 1970; 0 = no transaction has begun.
    started_us: AtomicU64,
    phase: AtomicU8,
    isolation: AtomicU8,
    tables: AtomicU64,
    owner: Mutex<Option<Arc<Owner>>>,
}

/// A transaction at one moment.
pub struct Observed {
    /// See [`Activity::set_session_number`]; 0 as well for one that no session runs.
    pub session: u64,
    /// When it began; unknown for one that no session runs.
    pub started_at: Option<SystemTime>,
    pub phase: Phase,
    /// Its isolation level; unknown for one that no session runs.
    pub isolation: Option<Isolation>,
    /// Tables it has used.
    pub tables: u64,
    /// Its locks' owner.
    pub owner: Arc<Owner>,
}

impl Activity {
    /// See [`set_session_number`](Self::set_session_number).
    pub fn session_number(&self) -> u64 {
        self.session.load(Relaxed)
    }

    /// Names the session.
    pub fn set_session_number(&self, session: u64) {
        self.session.store(session, Relaxed);
    }

    /// A transaction begins.
    pub fn begin(&self, owner: &Arc<Owner>, isolation: Isolation) {
        owner.set_session_number(self.session.load(Relaxed));
        *self.owner.lock() = Some(Arc::clone(owner));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.phase.store(Phase::Running as u8, Relaxed);
        self.isolation.store(isolation as u8, Relaxed);
        self.tables.store(0, Relaxed);
        self.started_us.store((since.as_micros() as u64).max(1), Relaxed);
    }

    /// Whether one has begun and not ended.
    pub fn has_begun(&self) -> bool {
        self.started_us.load(Relaxed) != 0
    }

    /// It comes to another phase.
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
    }

    /// Sets how many tables it uses.
    pub fn set_tables(&self, tables: usize) {
        self.tables.store(tables as u64, Relaxed);
    }

    /// It has ended. Its owner is forgotten here, so that the session can use it again.
    pub fn end(&self) {
        self.started_us.store(0, Relaxed);
        *self.owner.lock() = None;
    }

    /// What it shows; none between transactions.
    pub fn observe(&self) -> Option<Observed> {
        let started_us = self.started_us.load(Relaxed);
        let owner = self.owner.lock().clone();
        let owner = owner.filter(|_| started_us != 0)?;
        let isolation =
            Isolation::ALL[self.isolation.load(Relaxed) as usize % Isolation::ALL.len()];
        Some(Observed {
            session: self.session.load(Relaxed),
            started_at: Some(UNIX_EPOCH + Duration::from_micros(started_us)),
            phase: Phase::ALL[self.phase.load(Relaxed) as usize % Phase::ALL.len()],
            isolation: Some(isolation),
            tables: self.tables.load(Relaxed),
            owner,
        })
    }
}
