//! What sessions read, lock and write, and what that must come to.

use rand::prelude::*;
use std::sync::Arc;
use tidepool::{Error, Isolation, LockMode, LockWait, ReadRequest, Table, TransactionOptions};

use crate::model::{TableNo, second_key};
use crate::scan::scan;
use crate::{PowerCut, SESSIONS, Session, Step, World};

impl World {
    /// A session to use, begun if need be.
    pub fn session(&mut self) -> usize {
        if self.sessions.len() < SESSIONS && self.random.random_ratio(1, 2)
            || self.sessions.is_empty()
        {
            let isolation = *[Isolation::ReadCommitted, Isolation::RepeatableRead]
                .choose(&mut self.random)
                .unwrap();
            let trx =
                self.db.begin(TransactionOptions { isolation, ..TransactionOptions::default() });
            let (writes, used) = Default::default();
            let savepoint = None;
            self.sessions.push(Session { trx, view: None, isolation, writes, savepoint, used });
            return self.sessions.len() - 1;
        }
        self.random.random_range(0..self.sessions.len())
    }

    pub fn statement(&mut self) -> Step {
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
            // What a full disk refuses is what must grow: more than the pool and the log hold.
            let full = self.random.random_ratio(1, 8);
            if full {
                self.sim.set_capacity(Some(self.sim.used_bytes()));
                self.is_full = true;
            }
            let filled = self.fill(at, no, &table);
            if full {
                self.sim.set_capacity(None);
                self.is_full = false;
            }
            return filled;
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
            self.is_full = true;
        }
        let kind = self.random.random_range(0..3);
        let written = self.write(at, no, &table, key, len, kind);
        if full {
            self.sim.set_capacity(None);
            self.is_full = false;
        }
        written
    }

    /// Many long rows, for the pool to have more pages than it may keep when it shrinks.
    pub fn fill(&mut self, at: usize, no: TableNo, table: &Arc<Table>) -> Step {
        let sessions = self.sessions.len();
        let rows = if self.is_full { 100..200 } else { 15..45 };
        for _ in 0..self.random.random_range(rows) {
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

    pub fn write(
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
                    match session.trx.rollback_to(before) {
                        Ok(_) => {}
                        // See below, where the transaction ends.
                        Err(Error::NoSpace(_)) if self.is_full => {}
                        Err(error) => panic!("seed {}: {error}", self.seed),
                    }
                }
                // Distinguished below from a wrong answer: by now, a disk that has failed has ended
                // the life.
                Err(Error::Crashed(_)) => {}
                Err(Error::Io { .. }) if self.failing => {}
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
    pub fn judge(
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
                // Locks outlive a write undone by a savepoint or a failed statement, so only the
                // other way is certain.
                self.others_are_there();
                return Ok(());
            }
            Err(Error::NoSpace(why)) => {
                assert!(self.is_full, "seed {seed}: {slot:?}: there is space: {why}");
                self.counts.no_space += 1;
                // What the statement had done already could not be taken back either: for that,
                // pages must come into a pool that can't write the others.
                if self.sessions[at].trx.must_rollback() {
                    self.sim.set_capacity(None);
                    let rolled_back = self.sessions[at].trx.rollback();
                    self.must(rolled_back)?;
                    self.sessions.remove(at);
                }
                return Ok(());
            }
            Err(Error::RecordChanged) => {
                assert!(newer, "seed {seed}: {slot:?} did not change");
                self.counts.changed += 1;
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
                self.counts.writes += 1;
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
    pub fn is_held(&self, at: usize, slot: &(TableNo, Vec<u8>)) -> bool {
        let mut others = self.sessions.iter().enumerate().filter(|(other, _)| *other != at);
        others.any(|(_, session)| session.writes.contains_key(slot))
            || self.model.prepared.values().any(|writes| writes.contains_key(slot))
    }

    /// Somebody may hold a lock.
    pub fn others_are_there(&self) {
        let recovered = self.db.status().get("trx_rollbacks_pending").unwrap_or(0);
        let others = self.sessions.len() - 1 + self.model.prepared.len() + recovered as usize;
        assert!(others > 0, "seed {}: waits without a holder", self.seed);
    }

    /// Whether a session's snapshot is older than the table as it is.
    pub fn is_older_than(&self, at: usize, no: TableNo) -> bool {
        let defined = self.defined.get(&no).copied().unwrap_or(0);
        self.sessions[at].view.as_ref().is_some_and(|(_, seen)| defined > *seen)
    }

    /// A locking read sees the newest version.
    pub fn lock(&mut self, at: usize, no: TableNo, table: &Arc<Table>) -> Step {
        let key = format!("k{}", self.random.random_range(0..40)).into_bytes();
        let mode = *[LockMode::Shared, LockMode::Exclusive].choose(&mut self.random).unwrap();
        let wait = *[LockWait::NoWait, LockWait::SkipLocked].choose(&mut self.random).unwrap();
        let (slot, mut value) = ((no, key.clone()), vec![]);
        let session = &mut self.sessions[at];
        session.trx.begin_statement();
        let found =
            session.trx.read(table, 0, ReadRequest::new(&key, &mut value).locked(mode, wait));
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
        let own = self.sessions[at].writes.get(&slot).cloned();
        let expected = own.unwrap_or_else(|| self.model.rows[&no].get(&key).cloned());
        match found {
            Err(Error::LockNoWait) => {
                self.others_are_there();
                self.counts.locked += 1;
            }
            Err(Error::RecordChanged) => {
                assert!(self.changed.contains_key(&slot), "seed {seed}: {slot:?} did not change");
                let rolled_back = self.sessions[at].trx.rollback();
                self.must(rolled_back)?;
                self.sessions.remove(at);
            }
            Err(error) => panic!("seed {seed}: {error}"),
            Ok(false) if wait == LockWait::SkipLocked && expected.is_some() => {
                self.others_are_there();
                self.counts.locked += 1;
            }
            Ok(false) if wait == LockWait::SkipLocked => {}
            Ok(found) => {
                assert!(!self.is_held(at, &slot), "seed {seed}: locked {slot:?}");
                assert_eq!(found.then_some(value), expected, "seed {seed}: locking read");
            }
        }
        Ok(())
    }

    /// A whole scan sees the snapshot and the session's own writes.
    pub fn read(&mut self, at: usize, no: TableNo, table: &Arc<Table>) -> Step {
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
}
