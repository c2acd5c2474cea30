//! Histories written by hand: a call for each statement.

use super::super::anomaly::{Anomaly, Name};
use super::super::check::check;
use super::super::history::{
    Follows, History, Key, Kind, Level, Outcome, Read, Row, Scope, Span, Step, Transaction, Write,
    WriteId,
};

pub(super) const X: Key = Key { table: 0, key: 1 };
pub(super) const Y: Key = Key { table: 1, key: 2 };

/// A history in the making: each call is a statement, which is over before the next one begins.
pub(super) struct Script {
    now: u64,
    pub(super) history: History,
}

impl Script {
    /// Both rows are there, by the writes 1 and 2, in bucket 0; the transactions have these levels.
    pub(super) fn new(levels: &[Level]) -> Script {
        let transaction = |(session, level): (usize, &Level)| Transaction {
            session: session as u32,
            level: *level,
            autocommit: false,
            steps: Vec::new(),
            end: Span { from: u64::MAX, to: u64::MAX },
            outcome: Outcome::Aborted,
        };
        let transactions = levels.iter().enumerate().map(transaction).collect();
        let initial = vec![row(X, &[1], 0), row(Y, &[2], 0)];
        Script { now: 10, history: History { initial, transactions, after_crash: None } }
    }

    fn span(&mut self) -> Span {
        self.now += 10;
        Span { from: self.now, to: self.now + 5 }
    }

    pub(super) fn step(
        mut self,
        t: usize,
        kind: Kind,
        reads: Vec<Read>,
        writes: Vec<Write>,
    ) -> Script {
        let span = self.span();
        let step = Step { span, sql: String::new(), kind, reads, writes };
        self.history.transactions[t].steps.push(step);
        self
    }

    pub(super) fn read_by(self, t: usize, scope: Scope, rows: &[Row], locking: bool) -> Script {
        let scopes = vec![scope];
        let read = Read { scopes, rows: rows.to_vec(), locking, ..Read::default() };
        self.step(t, Kind::Done, vec![read], Vec::new())
    }

    pub(super) fn read(self, t: usize, key: Key, list: &[WriteId]) -> Script {
        let rows: Vec<Row> = if list.is_empty() { vec![] } else { vec![row(key, list, 0)] };
        self.read_by(t, Scope::point(key), &rows, false)
    }

    pub(super) fn lock(self, t: usize, key: Key, list: &[WriteId]) -> Script {
        let rows: Vec<Row> = if list.is_empty() { vec![] } else { vec![row(key, list, 0)] };
        self.read_by(t, Scope::point(key), &rows, true)
    }

    pub(super) fn write(self, t: usize, write: Write) -> Script {
        self.step(t, Kind::Done, Vec::new(), vec![write])
    }

    pub(super) fn append(self, t: usize, key: Key, id: WriteId) -> Script {
        self.write(t, put(key, id, Follows::Unseen))
    }

    pub(super) fn delete(self, t: usize, key: Key, last: WriteId, id: WriteId) -> Script {
        let follows = Follows::List(last);
        self.write(t, Write { key, id, bucket: None, fresh: true, follows })
    }

    pub(super) fn insert(self, t: usize, key: Key, id: WriteId) -> Script {
        self.write(t, Write { fresh: true, ..put(key, id, Follows::Nothing) })
    }

    pub(super) fn kind(self, t: usize, kind: Kind) -> Script {
        self.step(t, kind, Vec::new(), Vec::new())
    }

    pub(super) fn end(mut self, t: usize, outcome: Outcome) -> Script {
        let span = self.span();
        let to = if outcome == Outcome::Unknown { u64::MAX } else { span.to };
        let transaction = &mut self.history.transactions[t];
        (transaction.end, transaction.outcome) = (Span { to, ..span }, outcome);
        self
    }

    pub(super) fn commit(self, t: usize) -> Script {
        self.end(t, Outcome::Committed)
    }

    pub(super) fn abort(self, t: usize) -> Script {
        self.end(t, Outcome::Aborted)
    }

    /// A last transaction reads both rows and commits, so that all writes are seen.
    pub(super) fn finally(mut self, x: &[WriteId], y: &[WriteId]) -> Vec<Anomaly> {
        let t = self.history.transactions.len();
        self.history.transactions.push(Transaction {
            session: 99,
            level: Level::RepeatableRead,
            autocommit: false,
            steps: Vec::new(),
            end: Span { from: 0, to: 0 },
            outcome: Outcome::Aborted,
        });
        check(&self.read(t, X, x).read(t, Y, y).commit(t).history)
    }

    pub(super) fn check(self) -> Vec<Anomaly> {
        check(&self.history)
    }
}

pub(super) fn row(key: Key, list: &[WriteId], bucket: u8) -> Row {
    Row { key, list: list.to_vec(), bucket }
}

pub(super) fn put(key: Key, id: WriteId, follows: Follows) -> Write {
    Write { key, id, bucket: Some(0), fresh: false, follows }
}

#[track_caller]
pub(super) fn is(anomalies: &[Anomaly], name: Name) {
    assert!(anomalies.iter().any(|anomaly| anomaly.name == name), "{name} in {anomalies:#?}");
}

#[track_caller]
pub(super) fn none(anomalies: &[Anomaly]) {
    assert!(anomalies.is_empty(), "{anomalies:#?}");
}
