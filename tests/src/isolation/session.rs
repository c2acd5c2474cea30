//! A session: one connection, random transactions, and the record of them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;

use super::history::{Kind, Level, Outcome, Read, Row, Span, Step, Transaction, Write, WriteId};
use super::schema::{DATABASE, parse};
use crate::differential::dice::Dice;
use crate::server::connect_to_socket;

/// What all sessions of a round have in common.
#[derive(Clone, Debug)]
pub struct Load {
    /// Levels to choose from, for each transaction.
    pub levels: Vec<Level>,
    /// Keys in each table.
    pub keys: u8,
    /// Transactions that write leave a mark, so that after a crash their fate is known.
    pub marks: bool,
    /// Read-modify-write without a lock at READ COMMITTED too, where it loses updates.
    pub careless: bool,
    /// How many in a hundred transactions are single statements.
    pub autocommit_percent: u32,
    /// Reads by an index that comes and goes.
    pub extra_index: bool,
    /// Only rows in the clustered index are compared with the snapshot when they are locked
    /// (InnoDB): at REPEATABLE READ, a locking read by another index may meet what the snapshot
    /// does not see.
    pub clustered_only: bool,
    /// A locking read below SERIALIZABLE misses rows that move while it runs (InnoDB at READ
    /// COMMITTED).
    pub misses_moved_rows: bool,
    /// Statements are killed. An UPDATE or DELETE that is killed while the server plans it says
    /// that it found no row.
    pub interrupts: bool,
    /// How many in a thousand transactions dawdle, and keep old versions needed.
    pub slow_permille: usize,
}

/// What all sessions share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The server's socket.
    pub socket: PathBuf,
    /// Set when the load is over.
    pub stop: Arc<AtomicBool>,
    /// The next id.
    pub ids: Arc<AtomicU32>,
    /// When the history began.
    pub start: Instant,
    /// The sessions' connections, for who interrupts them.
    pub connections: Arc<Mutex<Vec<u32>>>,
}

/// What sessions did.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Transactions committed.
    pub committed: u64,
    /// Rolled back on purpose.
    pub rolled_back: u64,
    /// In doubt at a crash.
    pub in_doubt: u64,
    /// Statements that succeeded.
    pub statements: u64,
    /// Deadlocks (1213).
    pub deadlocks: u64,
    /// Rows changed since the snapshot (1020).
    pub changed: u64,
    /// Lock waits that took too long, or were not to be (1205).
    pub timeouts: u64,
    /// Other statements that were refused as they must be.
    pub refused: u64,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: &Tally) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.in_doubt += other.in_doubt;
        self.statements += other.statements;
        self.deadlocks += other.deadlocks;
        self.changed += other.changed;
        self.timeouts += other.timeouts;
        self.refused += other.refused;
    }
}

/// What a session leaves behind.
#[derive(Debug, Default)]
pub struct Record {
    /// Its transactions, each with its mark.
    pub transactions: Vec<(Transaction, Option<WriteId>)>,
    /// Counts.
    pub tally: Tally,
    /// Answers that should never be.
    pub errors: Vec<String>,
}

/// Why a statement did not succeed.
#[derive(Debug)]
pub enum Trouble {
    /// The server is gone.
    Gone,
    /// Nothing is left but a rollback.
    RollBack,
    /// The statement changed nothing, and the transaction may go on.
    Refused,
    /// Something that should never be.
    Wrong(String),
}

/// What a statement gave.
pub struct Answer {
    /// Rows with lists.
    pub rows: Vec<Row>,
    /// Rows changed.
    pub affected: u64,
    /// When.
    pub span: Span,
}

const DUPLICATE_KEY: u16 = 1062;
const TIMEOUT: u16 = 1205;
const DEADLOCK: u16 = 1213;
const RECORD_CHANGED: u16 = 1020;
const NO_SUCH_INDEX: u16 = 1176;
const DATA_TOO_LONG: u16 = 1406;
const DEFINITION_CHANGED: u16 = 1412;
const INTERRUPTED: u16 = 1317;

/// A session. See the [module](self).
pub struct Session {
    pub(super) number: u32,
    pub(super) dice: Dice,
    pub(super) load: Load,
    pub(super) level: Level,
    shared: Shared,
    conn: Conn,
    /// The present transaction's.
    steps: Vec<Step>,
    /// When the last statement was sent.
    last: Span,
    record: Record,
}

/// Runs a session until it is asked to stop, or the server is gone.
pub fn run(number: u32, seed: u64, load: Load, shared: Shared) -> Record {
    let Ok(conn) = connect_to_socket(&shared.socket, DATABASE) else { return Record::default() };
    shared.connections.lock().expect("no thread panics with it").push(conn.connection_id());
    let (dice, level) = (Dice::new(seed), Level::RepeatableRead);
    let last = Span { from: 0, to: 0 };
    let record = Record::default();
    let mut session =
        Session { number, dice, load, level, shared, conn, steps: Vec::new(), last, record };
    while !session.shared.stop.load(Ordering::Relaxed) {
        match session.transaction() {
            Ok(()) => {}
            Err(Trouble::Gone) => break,
            Err(Trouble::Wrong(what)) => {
                let what = format!("session {number}, {}: {what}", session.level.sql());
                session.record.errors.push(what);
                break;
            }
            Err(Trouble::RollBack | Trouble::Refused) => unreachable!("ends with the transaction"),
        }
    }
    session.record
}

impl Session {
    fn now(&self) -> u64 {
        self.shared.start.elapsed().as_nanos() as u64
    }

    /// A number that no other has.
    pub(super) fn id(&self) -> WriteId {
        self.shared.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a statement.
    pub(super) fn ask(&mut self, sql: &str) -> Result<Answer, Trouble> {
        let from = self.now();
        let result = self.conn.query::<mysql::Row, _>(sql);
        let span = Span { from, to: self.now() };
        self.last = span;
        let tally = &mut self.record.tally;
        let error = match result {
            Ok(rows) => {
                tally.statements += 1;
                let rows = rows.into_iter().map(parse).collect::<Result<Vec<Row>, String>>();
                let rows = rows.map_err(|what| Trouble::Wrong(format!("{sql}: {what}")))?;
                return Ok(Answer { rows, affected: self.conn.affected_rows(), span });
            }
            Err(mysql::Error::MySqlError(error)) => error,
            Err(_) => {
                self.last.to = u64::MAX;
                return Err(Trouble::Gone);
            }
        };
        Err(match error.code {
            DEADLOCK => {
                tally.deadlocks += 1;
                Trouble::RollBack
            }
            RECORD_CHANGED => {
                tally.changed += 1;
                Trouble::RollBack
            }
            TIMEOUT => {
                tally.timeouts += 1;
                Trouble::Refused
            }
            DUPLICATE_KEY | NO_SUCH_INDEX | DATA_TOO_LONG => {
                tally.refused += 1;
                Trouble::Refused
            }
            INTERRUPTED => {
                tally.refused += 1;
                self.after_interrupt()
            }
            DEFINITION_CHANGED => {
                tally.refused += 1;
                Trouble::RollBack
            }
            // The server stops, or the connection was killed.
            1053 | 1927 => {
                self.last.to = u64::MAX;
                Trouble::Gone
            }
            _ => Trouble::Wrong(format!("{sql}: {error}")),
        })
    }

    /// A statement that was interrupted while it became the victim of a deadlock only says that it
    /// was interrupted.
    fn after_interrupt(&mut self) -> Trouble {
        loop {
            match self.conn.query_first::<u8, _>("SELECT @@in_transaction") {
                Ok(Some(1)) => return Trouble::Refused,
                Ok(_) => return Trouble::RollBack,
                // That, too, was interrupted.
                Err(mysql::Error::MySqlError(error)) if error.code == INTERRUPTED => {}
                Err(_) => {
                    self.last.to = u64::MAX;
                    return Trouble::Gone;
                }
            }
        }
    }

    /// Notes a statement that took place.
    pub(super) fn note(&mut self, span: Span, sql: &str, reads: Vec<Read>, writes: Vec<Write>) {
        self.steps.push(Step { span, sql: sql.into(), kind: Kind::Done, reads, writes });
    }

    /// Sends a statement that writes what is given; if it fails, the writes are noted as such that
    /// must never be seen.
    pub(super) fn ask_to_write(&mut self, sql: &str, writes: &[Write]) -> Result<Answer, Trouble> {
        let answer = self.ask(sql);
        if answer.is_err() {
            self.fail(self.last, sql, writes);
        }
        answer
    }

    /// Notes writes that must never be seen.
    pub(super) fn fail(&mut self, span: Span, sql: &str, writes: &[Write]) {
        let writes = writes.to_vec();
        self.steps.push(Step {
            span,
            sql: sql.into(),
            kind: Kind::Failed,
            reads: Vec::new(),
            writes,
        });
    }

    fn control(&mut self, sql: &str, kind: Kind) -> Result<(), Trouble> {
        let span = self.ask(sql)?.span;
        self.steps.push(Step {
            span,
            sql: sql.into(),
            kind,
            reads: Vec::new(),
            writes: Vec::new(),
        });
        Ok(())
    }

    /// The transaction is over, as `outcome` says.
    fn close(&mut self, autocommit: bool, end: Span, outcome: Outcome, mark: Option<WriteId>) {
        let tally = &mut self.record.tally;
        tally.committed += u64::from(outcome == Outcome::Committed);
        tally.in_doubt += u64::from(outcome == Outcome::Unknown);
        let steps = std::mem::take(&mut self.steps);
        let (session, level) = (self.number, self.level);
        let transaction = Transaction { session, level, autocommit, steps, end, outcome };
        self.record.transactions.push((transaction, mark));
    }

    /// One transaction, or one statement by itself.
    fn transaction(&mut self) -> Result<(), Trouble> {
        let level = *self.dice.pick(&self.load.levels);
        if level != self.level || self.record.tally.statements == 0 {
            let sql = format!("SET SESSION TRANSACTION ISOLATION LEVEL {}", level.sql());
            loop {
                match self.ask(&sql) {
                    // Interrupted, and perhaps done all the same.
                    Err(Trouble::Refused | Trouble::RollBack) => {}
                    result => {
                        result?;
                        break;
                    }
                };
            }
            self.level = level;
        }
        if self.dice.percent(self.load.autocommit_percent) {
            return self.single_statement();
        }
        let outcome = self.explicit();
        match outcome {
            Ok(()) => Ok(()),
            Err(Trouble::RollBack | Trouble::Refused) => {
                let from = self.last.from;
                let mut result = self.ask("ROLLBACK");
                while matches!(result, Err(Trouble::Refused | Trouble::RollBack)) {
                    result = self.ask("ROLLBACK");
                }
                self.close(false, Span { from, ..self.last }, Outcome::Aborted, None);
                result.map(|_| ())
            }
            Err(trouble) => {
                let span = Span { to: u64::MAX, ..self.last };
                self.close(false, span, Outcome::Aborted, None);
                Err(trouble)
            }
        }
    }

    fn single_statement(&mut self) -> Result<(), Trouble> {
        let outcome = self.single();
        let end = self.last;
        match outcome {
            Ok(()) => self.close(true, end, Outcome::Committed, None),
            Err(Trouble::Gone) => {
                // What was noted as failed may have been done.
                for step in &mut self.steps {
                    step.kind = Kind::Done;
                }
                self.close(true, end, Outcome::Unknown, None);
                return Err(Trouble::Gone);
            }
            Err(Trouble::Wrong(what)) => return Err(Trouble::Wrong(what)),
            Err(Trouble::RollBack | Trouble::Refused) => {
                self.close(true, end, Outcome::Aborted, None);
            }
        }
        Ok(())
    }

    fn takes_part(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.kind, Kind::Done | Kind::Snapshot))
    }

    fn explicit(&mut self) -> Result<(), Trouble> {
        match self.dice.range(0, 11) {
            0 => self.control("START TRANSACTION WITH CONSISTENT SNAPSHOT", Kind::Snapshot)?,
            _ => {
                self.ask("START TRANSACTION")?;
            }
        }
        let mut savepoint = false;
        let slow = self.dice.range(1, 1000) <= self.load.slow_permille;
        for _ in 0..self.dice.range(1, 6) {
            if self.shared.stop.load(Ordering::Relaxed) && self.dice.percent(50) {
                break;
            }
            if slow {
                sleep(Duration::from_millis(self.dice.range(1, 150) as u64));
            }
            match self.dice.range(0, 11) {
                // Not before the engine has a part in the transaction: the server has it roll back
                // to such a one by ending that part as a whole, with its snapshot and its locks.
                0 if self.takes_part() => {
                    self.control("SAVEPOINT s", Kind::Savepoint)?;
                    savepoint = true;
                }
                1 if savepoint => self.control("ROLLBACK TO SAVEPOINT s", Kind::BackToSavepoint)?,
                _ => match self.operation() {
                    Err(Trouble::Refused) if self.dice.percent(60) => {}
                    result => result?,
                },
            }
        }
        if self.dice.percent(8) {
            let span = self.ask("ROLLBACK")?.span;
            self.record.tally.rolled_back += 1;
            self.close(false, span, Outcome::Aborted, None);
            return Ok(());
        }
        let writes = self.steps.iter().any(|step| !step.writes.is_empty());
        let mark = (self.load.marks && writes).then(|| self.id());
        if let Some(mark) = mark {
            self.ask(&format!("INSERT INTO mark VALUES ({mark})"))?;
        }
        match self.ask("COMMIT") {
            Ok(answer) => self.close(false, answer.span, Outcome::Committed, mark),
            Err(Trouble::Gone) => {
                self.close(false, self.last, Outcome::Unknown, mark);
                return Err(Trouble::Gone);
            }
            Err(trouble) => return Err(trouble),
        }
        Ok(())
    }
}
