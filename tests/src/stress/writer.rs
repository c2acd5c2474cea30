//! A writer: transactions on rows that no other writer touches, compared with its model of them.
//!
//! What a statement that fails leaves behind is certain, too: after each error the writer asks
//! whether its transaction is still open, until the server answers. Only a connection that is lost,
//! and a COMMIT or a statement in autocommit that is interrupted, may have committed or not: then
//! one of two models must be what is there.

mod xa;

use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::model::{ROW_COLUMNS, Row, Rows, difference};
use super::session::{Answer, Lost, Session};
use super::stage::{Count, Stage};
use super::statements::{Effect, Statement, statement};

const INTERRUPTED: u16 = 1317;
/// What concurrent statements and kills may end a statement with: a duplicate key, a lock wait, an
/// interruption, a deadlock, a row or a table changed since the snapshot.
const EXPECTED_ERRORS: [u16; 7] = [1062, 1586, 1205, INTERRUPTED, 1213, 1020, 1412];
const TAKEN_TWICE: &str = "a unique index took a value twice";
const LEVELS: [&str; 4] = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phases {
    /// By COMMIT.
    One,
    /// By XA PREPARE and what follows.
    Two,
}

/// A writer. See the [module](self).
pub struct Writer<'a> {
    number: u64,
    stage: &'a Stage,
    session: Session<'a>,
    rng: StdRng,
    /// What is committed.
    rows: Rows,
    /// What is committed instead, if a COMMIT without an answer succeeded.
    perhaps: Option<Effect>,
    /// A transaction between PREPARE and its end.
    prepared: Option<xa::Prepared>,
    /// The statements of this transaction and their answers, for a report.
    story: Vec<String>,
}

impl<'a> Writer<'a> {
    /// A writer without rows; sessions have its number.
    pub fn new(number: usize, seed: u64, stage: &'a Stage) -> Writer<'a> {
        Writer {
            number: number as u64,
            stage,
            session: Session::new(number, stage),
            rng: StdRng::seed_from_u64(seed),
            rows: Rows::new(),
            perhaps: None,
            prepared: None,
            story: Vec::new(),
        }
    }

    /// Works until the stage ends.
    pub fn run(mut self) {
        while !self.stage.has_ended() {
            let _turn = self.stage.turn();
            // A connection that is lost is replaced at the next turn.
            let _ = self.step();
        }
    }

    fn step(&mut self) -> Result<(), Lost> {
        let is_new = self.session.ensure()?;
        self.end_prepared()?;
        if is_new || self.rng.random_bool(0.1) {
            self.settle()?;
        }
        if self.rng.random_bool(0.1) {
            let level = LEVELS.choose(&mut self.rng).expect("there are some");
            self.session.insist(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}"))?;
        }
        self.story.clear();
        match self.rng.random_range(0..10) {
            0..3 => self.single_statement(),
            3..8 => self.transaction(Phases::One),
            _ => self.transaction(Phases::Two),
        }
    }

    /// A statement that commits by itself.
    fn single_statement(&mut self) -> Result<(), Lost> {
        let Statement { sql, effect } = statement(&mut self.rng, self.number, &self.rows);
        self.perhaps = Some(effect.clone());
        match self.change(&sql)? {
            Answer::Done => {
                self.stage.count(Count::Commits);
                match effect {
                    Effect::Leaves(rows) => (self.rows, self.perhaps) = (rows, None),
                    Effect::Refused => self.report(TAKEN_TWICE.into()),
                    // What it added is read below.
                    Effect::AddsSome(_) => {}
                }
            }
            // It may have been interrupted behind its commit.
            Answer::Failed(INTERRUPTED) | Answer::Unsure => {}
            Answer::Failed(_) => self.perhaps = None,
        }
        self.settle()
    }

    fn transaction(&mut self, phases: Phases) -> Result<(), Lost> {
        let is_open = match phases {
            Phases::One => {
                self.session.insist("BEGIN")?;
                self.session.in_transaction()?
            }
            Phases::Two => self.begin_xa()?,
        };
        if !is_open {
            self.report("the transaction began, but none is open".into());
            return Ok(());
        }
        let mut rows = self.rows.clone();
        let mut saved: Option<Rows> = None;
        for _ in 0..self.rng.random_range(1..=6) {
            let open = match (self.rng.random_range(0..8), &saved) {
                (0, _) => self.save(&rows, &mut saved)?,
                (1, Some(_)) => self.return_to(&mut rows, saved.clone())?,
                _ => self.write(&mut rows)?,
            };
            if !open {
                self.stage.count(Count::Lost);
                match phases {
                    Phases::One => self.give_up()?,
                    Phases::Two => self.give_up_xa()?,
                }
                return self.settle();
            }
        }
        match phases {
            Phases::One => self.end(rows),
            Phases::Two => self.end_xa(rows),
        }
    }

    fn save(&mut self, rows: &Rows, saved: &mut Option<Rows>) -> Result<bool, Lost> {
        // It replaces the earlier one, or may have deleted it if it fails.
        *saved = None;
        if self.run_one("SAVEPOINT s")? == Answer::Done {
            *saved = Some(rows.clone());
            return Ok(true);
        }
        self.session.in_transaction()
    }

    fn return_to(&mut self, rows: &mut Rows, saved: Option<Rows>) -> Result<bool, Lost> {
        if self.run_one("ROLLBACK TO SAVEPOINT s")? == Answer::Done {
            *rows = saved.expect("there is a savepoint");
            return Ok(true);
        }
        self.session.in_transaction()
    }

    /// A statement of a transaction; answers whether the transaction goes on.
    fn write(&mut self, rows: &mut Rows) -> Result<bool, Lost> {
        let Statement { sql, effect } = statement(&mut self.rng, self.number, rows);
        match self.change(&sql)? {
            Answer::Done => match self.after(rows, effect)? {
                Some(after) => *rows = after,
                None => return Ok(false),
            },
            // It may have changed a row to what it was, or have done nothing.
            Answer::Unsure => return Ok(false),
            Answer::Failed(_) if !self.session.in_transaction()? => return Ok(false),
            Answer::Failed(_) => {}
        }
        if self.rng.random_bool(0.4) {
            let Some(found) = self.read()? else { return self.session.in_transaction() };
            self.compare(&found, rows, "in the transaction");
            *rows = found;
        }
        Ok(true)
    }

    /// The rows after a statement that succeeded, or `None` if they can't be read.
    fn after(&mut self, before: &Rows, effect: Effect) -> Result<Option<Rows>, Lost> {
        match effect {
            Effect::Leaves(rows) => Ok(Some(rows)),
            Effect::Refused => {
                self.report(TAKEN_TWICE.into());
                self.read()
            }
            Effect::AddsSome(new) => {
                let Some(found) = self.read()? else { return Ok(None) };
                if !adds_some(&found, before, &new) {
                    self.compare(&found, before, "after INSERT IGNORE");
                }
                Ok(Some(found))
            }
        }
    }

    fn end(&mut self, rows: Rows) -> Result<(), Lost> {
        if self.rng.random_bool(0.25) {
            self.give_up()?;
            return self.settle();
        }
        self.perhaps = Some(Effect::Leaves(rows.clone()));
        match self.run_one("COMMIT")? {
            Answer::Done => {
                (self.rows, self.perhaps) = (rows, None);
                self.stage.count(Count::Commits);
            }
            Answer::Failed(INTERRUPTED) | Answer::Unsure => {}
            Answer::Failed(code) => self.report(format!("COMMIT failed: {code}")),
        }
        if self.session.in_transaction()? {
            self.give_up()?;
        }
        if self.rng.random_bool(0.3) { self.settle() } else { Ok(()) }
    }

    /// Rolls back; the transaction is open no longer.
    fn give_up(&mut self) -> Result<(), Lost> {
        self.session.insist("ROLLBACK")?;
        if self.session.in_transaction()? {
            self.report("ROLLBACK succeeded, but a transaction is open".into());
        }
        Ok(())
    }

    /// Compares what is committed with the model; outside of a transaction.
    fn settle(&mut self) -> Result<(), Lost> {
        let found = loop {
            if let Some(found) = self.read()? {
                break found;
            }
        };
        let may_be = match &self.perhaps {
            Some(Effect::Leaves(rows)) => found == *rows,
            Some(Effect::AddsSome(new)) => adds_some(&found, &self.rows, new),
            Some(Effect::Refused) | None => false,
        };
        if !may_be {
            let expected = self.rows.clone();
            self.compare(&found, &expected, "committed");
        }
        (self.rows, self.perhaps) = (found, None);
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Rows>, Lost> {
        let sql = format!("SELECT {ROW_COLUMNS} FROM m WHERE owner = {}", self.number);
        match self.session.ask(|conn| conn.query_map(&sql, Row::from_columns))? {
            Ok(rows) => Ok(Some(rows.into_iter().collect())),
            Err(code) => {
                self.note(&sql, Answer::Failed(code));
                Ok(None)
            }
        }
    }

    fn run_one(&mut self, sql: &str) -> Result<Answer, Lost> {
        let answer = self.session.run(sql);
        self.note_answer(sql, answer)
    }

    fn change(&mut self, sql: &str) -> Result<Answer, Lost> {
        let answer = self.session.change(sql);
        self.note_answer(sql, answer)
    }

    fn note_answer(&mut self, sql: &str, answer: Result<Answer, Lost>) -> Result<Answer, Lost> {
        let Ok(answer) = answer else {
            self.story.push(format!("{sql:.300}: the connection is lost"));
            return answer;
        };
        self.note(sql, answer);
        Ok(answer)
    }

    fn note(&mut self, sql: &str, answer: Answer) {
        self.story.push(format!("{sql:.300}: {answer:?}"));
        if let Answer::Failed(code) = answer
            && !EXPECTED_ERRORS.contains(&code)
        {
            self.report(format!("error {code}"));
        }
    }

    fn compare(&mut self, found: &Rows, expected: &Rows, when: &str) {
        if found != expected {
            self.report(format!("{when}: {}", difference(found, expected)));
        }
    }

    fn report(&mut self, what: String) {
        let story = self.story.join("\n    ");
        self.stage.report(format!("writer {}: {what}\n    {story}", self.number));
    }
}

/// Whether these are the rows before, and some of the new ones.
fn adds_some(found: &Rows, before: &Rows, new: &Rows) -> bool {
    before.iter().all(|(id, row)| found.get(id) == Some(row))
        && found.iter().all(|(id, row)| before.contains_key(id) || new.get(id) == Some(row))
}
