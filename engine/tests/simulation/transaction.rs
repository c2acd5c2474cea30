//! Savepoints, commits, rollbacks, and prepared transactions.

use rand::prelude::*;

use crate::model::Writes;
use crate::{Step, World};

impl World {
    /// A session takes a savepoint, or rolls back to the one it has.
    pub fn savepoint(&mut self) -> Step {
        let Some(at) = (0..self.sessions.len()).choose(&mut self.random) else { return Ok(()) };
        let session = &mut self.sessions[at];
        let Some((savepoint, writes, used)) = session.savepoint.take() else {
            trace!("s{at} savepoint");
            let (writes, used) = (session.writes.clone(), session.used.clone());
            session.savepoint = Some((session.trx.savepoint(), writes, used));
            return Ok(());
        };
        let rolled_back = session.trx.rollback_to(savepoint);
        trace!("s{at} back to savepoint: {rolled_back:?}");
        session.writes = writes;
        if session.trx.has_only_read() {
            session.used = used;
        }
        self.must(rolled_back)
    }

    /// Somebody decides about a prepared transaction without a session.
    pub fn end_prepared(&mut self) -> Step {
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

    pub fn committed(&mut self, writes: Writes) {
        self.commits += 1;
        for slot in writes.into_keys() {
            self.changed.insert(slot, self.commits);
        }
    }

    /// Lets the power fail in one of the next operations of the disk, now and then: few cuts would
    /// meet a commit or a definition change by chance.
    pub fn aim(&mut self) {
        if self.random.random_ratio(1, 100) {
            let ahead = self.random.random_range(0..12);
            self.sim.crash_at(self.sim.operation_count() + ahead);
        }
    }

    /// A session commits or rolls back.
    pub fn end(&mut self) -> Step {
        if self.sessions.is_empty() {
            return Ok(());
        }
        self.aim();
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
}
