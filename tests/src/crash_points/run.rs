//! One statement and all of its crash points.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;

use super::calls::{Call, Tracer};
use super::cases::{Case, Promise};
use super::known::{self, Known, Point};
use super::state::{State, check_all, stray_files};
use super::{Setting, Victim};
use crate::server::wait_until;
use crate::sql;

/// How long a killed server may take to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

/// The crash point behind all calls: hardly a fault of the server excuses what is lost there.
const ACKNOWLEDGED: &str = "after the statement";

/// Which crash points are tried.
#[derive(Clone, Debug)]
pub enum Choice {
    All,
    /// Only calls whose trace line contains one of these.
    Containing(Vec<String>),
    EveryNth(usize),
}

impl Choice {
    fn of(&self, calls: Vec<Call>) -> Vec<Call> {
        match self {
            Choice::All => calls,
            Choice::Containing(texts) => {
                let is_meant = |call: &Call| texts.iter().any(|text| call.text.contains(text));
                calls.into_iter().filter(is_meant).collect()
            }
            Choice::EveryNth(n) => calls.into_iter().step_by(*n).collect(),
        }
    }
}

/// What came of a case.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Crash points tried.
    pub tried: u32,
    /// Of these, the crashes that left the state before, and the state after.
    pub before: u32,
    /// See `before`.
    pub after: u32,
    /// Crash points that the statement did not reach.
    pub survived: u32,
    /// Crash points with a violation.
    pub wrong: u32,
    /// What must not be, each with its crash point. A crash point may have several.
    pub violations: Vec<String>,
    /// The server's own faults that were met.
    pub known: Vec<&'static Known>,
}

/// Runs a case on a server that runs, and whose user databases may go. The server runs afterwards.
///
/// # Panics
/// If the case is wrong: its setup fails, or its statements without a crash.
pub fn run_case(victim: &mut Victim, setting: Setting, case: &Case, choice: &Choice) -> Report {
    Run { victim, setting, case, report: Report::default(), counted: 0 }.run(choice)
}

/// Begins an element of a prelude that is no statement: a file of the first database is copied.
const COPY: &str = "copy ";

struct Run<'a> {
    victim: &'a mut Victim,
    setting: Setting,
    case: &'a Case,
    report: Report,
    /// Violations of crash points that are counted.
    counted: usize,
}

/// The states that a case may leave.
struct Allowed {
    before: State,
    after: State,
    between: Vec<State>,
}

impl Run<'_> {
    fn run(mut self, choice: &Choice) -> Report {
        let between = self.states_of_steps();
        let mut session = self.begin();
        let before = self.state().expect("the state before can be read");
        let calls = self.note_calls(&mut session);
        drop(session);
        let after = self.state().expect("the state after can be read");
        let allowed = Allowed { before, after, between };
        let mut is_before = false;
        for call in choice.of(calls) {
            let known = self.report.known.len();
            is_before = self.crash_at(&call, is_before, &allowed);
            // What is wrong here is no part of what the next crash finds.
            is_before &= !self.count_wrong() && self.report.known.len() == known;
        }
        self.crash_after(&allowed);
        self.count_wrong();
        self.report
    }

    /// Whether the last crash point has a violation.
    fn count_wrong(&mut self) -> bool {
        let is_wrong = self.report.violations.len() > self.counted;
        self.report.wrong += u32::from(is_wrong);
        self.counted = self.report.violations.len();
        is_wrong
    }

    /// The states after each of the steps.
    fn states_of_steps(&mut self) -> Vec<State> {
        if self.case.steps.is_empty() {
            return Vec::new();
        }
        let mut conn = self.begin();
        let mut states = Vec::new();
        for step in self.case.steps {
            sql::run(&mut conn, &[&self.setting.statement(step)]);
            states.push(self.state().expect("the state between can be read"));
        }
        states
    }

    /// Sets everything up, durably, and gives the session for the statements, its prelude run.
    fn begin(&mut self) -> Conn {
        let mut conn = self.victim.server().connect();
        for xid in prepared(&mut conn) {
            sql::run(&mut conn, &[&format!("XA ROLLBACK {xid}")]);
        }
        sql::run(&mut conn, &["SET foreign_key_checks = 0"]);
        for database in ["cp", "cp2", "cp3"] {
            let drop = format!("DROP DATABASE IF EXISTS {database}");
            if conn.query_drop(&drop).is_err() {
                // Stray files are in its way, which have been reported.
                let directory = self.victim.server().data_dir().join(database);
                for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                    let _ = fs::remove_file(entry.path());
                }
                sql::run(&mut conn, &[&drop]);
            }
        }
        sql::run(
            &mut conn,
            &["SET foreign_key_checks = 1", "CREATE DATABASE cp", "CREATE DATABASE cp2", "USE cp"],
        );
        for statement in self.case.setup {
            sql::run(&mut conn, &[&self.setting.statement(statement)]);
        }
        self.prelude(conn)
    }

    fn prelude(&mut self, mut conn: Conn) -> Conn {
        // All that comes before is older than any flush interval.
        sql::run(&mut conn, &["USE cp", "FLUSH ENGINE LOGS"]);
        for statement in self.case.prelude {
            match statement.strip_prefix(COPY).and_then(|files| files.split_once(' ')) {
                None => sql::run(&mut conn, &[&self.setting.statement(statement)]),
                Some((from, to)) => {
                    let dir = self.victim.server().data_dir().join("cp");
                    fs::copy(dir.join(from), dir.join(to)).expect("a file can be copied");
                }
            }
        }
        self.victim.settle();
        conn
    }

    fn state(&mut self) -> Result<State, String> {
        State::read(&mut self.victim.server().connect())
    }

    fn trace_file(&mut self) -> PathBuf {
        self.victim.server().dir().join("strace")
    }

    /// Runs the statements without a crash.
    fn note_calls(&mut self, conn: &mut Conn) -> Vec<Call> {
        let tracer = Tracer::note(thread_of(conn), &self.trace_file());
        for statement in self.case.statements {
            sql::run(conn, &[&self.setting.statement(statement)]);
        }
        tracer.finish(&self.victim.server().data_dir())
    }

    /// Runs the statements up to the call. Returns whether the state before is there afterwards, on
    /// a server that runs.
    fn crash_at(&mut self, call: &Call, is_before: bool, allowed: &Allowed) -> bool {
        // What the prelude does is part of the state before, and can't be done twice.
        let mut conn = match is_before && self.case.prelude.is_empty() {
            true => {
                let conn = self.victim.server().connect();
                self.prelude(conn)
            }
            false => self.begin(),
        };
        let tracer = Tracer::kill_at(thread_of(&mut conn), call, &self.trace_file());
        let point = format!("{} {}: {}", call.name, call.number, call.text);
        self.report.tried += 1;
        for statement in self.case.statements {
            match conn.query_drop(self.setting.statement(statement)) {
                Ok(()) => {}
                Err(mysql::Error::MySqlError(error)) => {
                    self.violation(&point, &format!("{statement} fails: {error}"));
                    return false;
                }
                // The server is gone.
                Err(_) => {
                    drop(tracer);
                    return self.recover(&point, allowed, Expect::Either);
                }
            }
        }
        self.report.survived += 1;
        false
    }

    /// The statement as a whole, and a crash as soon as it is acknowledged.
    fn crash_after(&mut self, allowed: &Allowed) {
        let mut conn = self.begin();
        for statement in self.case.statements {
            sql::run(&mut conn, &[&self.setting.statement(statement)]);
        }
        let is_durable = self.case.promise == Promise::Definition || self.setting.keeps_commits();
        let expect = if is_durable { Expect::After } else { Expect::Either };
        self.report.tried += 1;
        self.recover(ACKNOWLEDGED, allowed, expect);
    }

    /// Restarts the server, dying or still alive, and looks at it.
    fn recover(&mut self, point: &str, allowed: &Allowed, expect: Expect) -> bool {
        if point != ACKNOWLEDGED {
            wait_until(PATIENCE, "the killed server is gone", || {
                self.victim.server().exited().is_some()
            });
        }
        self.victim.crash();
        self.victim
            .server()
            .launch()
            .unwrap_or_else(|error| panic!("{}: {point}: {error}", self.case.name));
        let state = match self.state() {
            Ok(state) => state,
            Err(error) => {
                self.violation(point, &error);
                return false;
            }
        };
        let is_before = state == allowed.before;
        let is_after = state == allowed.after;
        if is_before {
            self.report.before += 1;
        } else if is_after {
            self.report.after += 1;
        }
        let is_allowed = is_before || is_after || allowed.between.contains(&state);
        if !is_allowed {
            let text = format!(
                "neither the state before nor the state after\ncompared with before: {}\ncompared with after: {}",
                state.difference(&allowed.before),
                state.difference(&allowed.after)
            );
            self.violation(point, &text);
        } else if expect == Expect::After && !is_after {
            let text =
                format!("an acknowledged change is lost: {}", state.difference(&allowed.after));
            self.violation(point, &text);
        }
        let mut conn = self.victim.server().connect();
        for fault in check_all(&mut conn) {
            self.violation(point, &fault);
        }
        for file in stray_files(&mut conn, &self.victim.server().data_dir()) {
            self.violation(point, &format!("stray: {file}"));
        }
        is_before && !is_after
    }

    fn violation(&mut self, point: &str, text: &str) {
        let (setting, case) = (self.setting, self.case.name);
        let kind = if point == ACKNOWLEDGED { Point::Acknowledged } else { Point::Call };
        match known::explain(case, setting, kind, text) {
            Some(known) => self.report.known.push(known),
            None => {
                self.report.violations.push(format!("{setting}, {case}, at {point}: {text}"));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    Either,
    After,
}

/// The server's thread that serves a connection.
fn thread_of(conn: &mut Conn) -> u32 {
    const THREAD: &str =
        "SELECT TID FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()";
    u32::try_from(sql::number(conn, THREAD)).expect("a thread's number")
}

/// The transactions that wait for a verdict, as `XA ROLLBACK` wants them.
fn prepared(conn: &mut Conn) -> Vec<String> {
    let rows: Vec<(u32, u32, u32, String)> = conn.query("XA RECOVER").expect("XA RECOVER works");
    rows.into_iter()
        .map(|(_, global_len, _, data)| {
            let (global, branch) = data.split_at(global_len as usize);
            format!("'{global}', '{branch}'")
        })
        .collect()
}
