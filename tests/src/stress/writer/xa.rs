//! Transactions of two phases. Once PREPARE is acknowledged, nothing but COMMIT and ROLLBACK may
//! end a transaction: no KILL, no lost connection, no crash of the server.

use mysql::prelude::Queryable;
use rand::Rng;

use super::{Lost, Rows, Writer};
use crate::stress::session::Answer;
use crate::stress::stage::Count;

/// No such transaction: it has ended.
const UNKNOWN: u16 = 1397;

/// A transaction that PREPARE was sent for.
pub(super) struct Prepared {
    /// The rows if it commits.
    rows: Rows,
    /// What is certain of it.
    known: Known,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// PREPARE has no answer, or failed.
    Nothing,
    Prepared,
    /// As before, and COMMIT was sent.
    CommitSent,
    /// ROLLBACK was sent.
    RollbackSent,
}

impl Writer<'_> {
    fn xa(&self, verb: &str) -> String {
        format!("XA {verb} 'writer{}'", self.number)
    }

    pub(super) fn begin_xa(&mut self) -> Result<bool, Lost> {
        let start = self.xa("START");
        self.session.insist(&start)?;
        self.session.in_transaction()
    }

    /// Rolls back what is not prepared, in whatever state the session has it.
    pub(super) fn give_up_xa(&mut self) -> Result<(), Lost> {
        let (end, rollback) = (self.xa("END"), self.xa("ROLLBACK"));
        loop {
            self.run_quietly(&end)?;
            if matches!(self.run_quietly(&rollback)?, Answer::Done | Answer::Failed(UNKNOWN)) {
                return Ok(());
            }
        }
    }

    /// Ends a transaction that is open and has left these rows.
    pub(super) fn end_xa(&mut self, rows: Rows) -> Result<(), Lost> {
        if self.rng.random_bool(0.2) || self.run_quietly(&self.xa("END"))? != Answer::Done {
            self.give_up_xa()?;
            return self.settle();
        }
        self.prepared = Some(Prepared { rows, known: Known::Nothing });
        if self.run_quietly(&self.xa("PREPARE"))? == Answer::Done {
            self.know(Known::Prepared);
            self.stage.count(Count::Prepared);
            if self.rng.random_bool(0.3) {
                self.session.disconnect();
                self.session.ensure()?;
            }
        } else {
            self.know(Known::RollbackSent);
            self.give_up_xa()?;
        }
        self.end_prepared()?;
        self.settle()
    }

    /// Ends the transaction that is prepared, if there is one. The session has no transaction of
    /// another kind.
    pub(super) fn end_prepared(&mut self) -> Result<(), Lost> {
        while let Some(prepared) = &self.prepared {
            let known = prepared.known;
            let name = format!("writer{}", self.number);
            let listed = self.session.ask(|conn| {
                let listed: Vec<(i64, i64, i64, String)> = conn.query("XA RECOVER")?;
                Ok(listed.iter().any(|(.., data)| *data == name))
            })?;
            match (listed, known) {
                (Err(_), _) => {}
                (Ok(true), _) => {
                    // What was asked for first holds, or the rows would depend on what failed.
                    let commits = match known {
                        Known::CommitSent => true,
                        Known::RollbackSent => false,
                        Known::Nothing | Known::Prepared => self.rng.random_bool(0.6),
                    };
                    self.know(if commits { Known::CommitSent } else { Known::RollbackSent });
                    let verb = if commits { "COMMIT" } else { "ROLLBACK" };
                    if self.run_quietly(&self.xa(verb))? == Answer::Done {
                        self.leave_prepared(commits);
                    }
                }
                (Ok(false), Known::Prepared) => {
                    self.report("a prepared transaction is gone".into());
                    self.prepared = None;
                }
                // It ended, or never was prepared.
                (Ok(false), known) => self.leave_prepared(known == Known::CommitSent),
            }
        }
        Ok(())
    }

    fn leave_prepared(&mut self, commits: bool) {
        let prepared = self.prepared.take().expect("a transaction was prepared");
        if commits {
            self.rows = prepared.rows;
            self.stage.count(Count::Commits);
        }
    }

    fn know(&mut self, known: Known) {
        self.prepared.as_mut().expect("a transaction is prepared").known = known;
    }

    /// Runs a statement that any state of the transaction may refuse.
    fn run_quietly(&mut self, sql: &str) -> Result<Answer, Lost> {
        let answer = self.session.run(sql)?;
        self.story.push(format!("{sql}: {answer:?}"));
        Ok(answer)
    }
}
