//! The differential tester: the same random SQL on tables of two engines in one server, every
//! answer compared.
//!
//! ```text
//!                      ┌─▶ database `reference`, all tables InnoDB   ─▶ outcome ─┐
//!   seed ─▶ Case ─▶ SQL┤                                                        ├─▶ difference?
//!                      └─▶ database `subject`, all tables Tidepool   ─▶ outcome ─┘
//! ```
//!
//! The text of a statement is the same on both sides: the sessions' default database and default
//! engine differ, and nothing else. Result sets, column types, affected rows, insert ids, errors
//! and warnings are compared, except what [`compare`] lists. A case that differs is shrunk and
//! printed as a script; `differential --replay FILE` runs it again, and so does a client, in any
//! database.
//!
//! With InnoDB as the subject too, it tests itself: no difference may come out.
//!
//! | module | what it is |
//! |---|---|
//! | [`case`] | the generator of a case's stream of statements |
//! | [`schema`], [`mod@column`], [`text`] | tables, types and values, strings and collations |
//! | [`partition`], [`period`] | partitioned tables, periods of validity and histories |
//! | [`query`], [`dml`], [`ddl`], [`trigger`], [`verify`] | the kinds of statements |
//! | [`statement`] | a statement in parts, and the script format |
//! | [`session`] | an engine's side: sessions, outcomes |
//! | [`compare`] | what must agree, and what need not |
//! | [`shrink`] | makes a failing case small |
//! | [`dice`] | choices from the seed |

pub mod case;
pub mod column;
pub mod compare;
pub mod ddl;
pub mod dice;
pub mod dml;
pub mod partition;
pub mod period;
pub mod query;
pub mod schema;
pub mod session;
pub mod shrink;
pub mod statement;
pub mod text;
pub mod trigger;
pub mod verify;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::environment::Environment;
use crate::server::{Engine, Options, Server};
use case::{Case, Limits};
use session::{Answer, Outcome, Side};
use statement::{Body, Statement};

/// A server that is killed in a statement is killed within this time.
const KILL_WITHIN_US: u64 = 20_000;

/// How the tester runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engine under test: any name that the server knows.
    pub subject: String,
    /// The first case's seed; the next ones follow.
    pub seed: u64,
    /// Cases are begun until this time is over.
    pub duration: Duration,
    /// The most cases.
    pub cases_max: u64,
    /// Cases end after this many differences.
    pub failures_max: usize,
    /// What a case may contain.
    pub limits: Limits,
    /// The longest time for making one failure small.
    pub shrink_limit: Duration,
    /// More options for the server.
    pub args: Vec<String>,
    /// A line for each case.
    pub verbose: bool,
    /// A line for each statement, with what the reference made of it.
    pub trace: bool,
}

impl Settings {
    /// A short run.
    pub fn new(subject: &str, seed: u64) -> Settings {
        Settings {
            subject: subject.into(),
            seed,
            duration: Duration::from_secs(40),
            cases_max: u64::MAX,
            failures_max: 1,
            limits: Limits { blocks: 60, restarts: false, bulk: true },
            shrink_limit: Duration::from_secs(120),
            args: Vec::new(),
            verbose: false,
            trace: false,
        }
    }
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Cases that ran.
    pub cases: u64,
    /// Statements that ran on both sides.
    pub statements: u64,
    /// Of these, the ones that both refused.
    pub refused: u64,
    /// Cases that ended at a documented limit of the subject.
    pub at_limit: u64,
    /// Cases that ended at a bug of InnoDB or the server: rows of a temporary table that a rollback
    /// loses, a crash of the reference.
    pub innodb_bugs: u64,
    /// Cases that ended when the reference gave a statement up: it ran out of time, or an undo
    /// record was too large for it.
    pub gave_up: u64,
    /// What was found: the difference and the script.
    pub failures: Vec<String>,
}

/// Runs random cases.
pub fn run(settings: &Settings) -> Summary {
    let mut pair = Pair::start(&settings.subject, &settings.args);
    let start = Instant::now();
    let mut summary = Summary::default();
    let mut seed = settings.seed;
    while start.elapsed() < settings.duration
        && summary.cases < settings.cases_max
        && summary.failures.len() < settings.failures_max
    {
        let case_start = Instant::now();
        let mut case = Case::new(seed, settings.limits);
        let mut statements = Vec::new();
        pair.reset();
        let mut found = None;
        while let Some(statement) = case.next_statement() {
            statements.push(statement);
            let statement = statements.last().expect("was pushed");
            let (difference, ok) = pair.step(statement, settings.trace);
            summary.statements += 1;
            if let Some(excuse) = pair.excuse.filter(|_| difference.is_some()) {
                match excuse {
                    Excuse::AtLimit => summary.at_limit += 1,
                    Excuse::ReferenceGaveUp => summary.gave_up += 1,
                    Excuse::ReferenceDied => {
                        let statement = statements.last().expect("was pushed");
                        println!("seed {seed}: the server died of {}", pair.reference.engine);
                        println!("  {statement}");
                        summary.innodb_bugs += 1;
                    }
                }
                break;
            }
            summary.refused += u64::from(!ok);
            if difference.is_some() && pair.innodb_lost_a_temporary_row(&statements) {
                summary.innodb_bugs += 1;
                break;
            }
            if difference.is_some() {
                found = difference;
                break;
            }
            case.done(ok);
        }
        summary.cases += 1;
        if settings.verbose {
            let (ran, took) = (statements.len(), case_start.elapsed().as_secs_f64());
            let verdict = if found.is_some() { "DIFFERENT" } else { "same" };
            println!("seed {seed}: {ran} statements, {took:.1} s, {verdict}");
        }
        if let Some(difference) = found {
            let failure = report(&mut pair, settings, seed, statements, &difference);
            if settings.verbose {
                println!("{failure}");
            }
            summary.failures.push(failure);
        }
        seed += 1;
    }
    summary
}

/// Runs a script; the first difference, if any.
///
/// # Errors
/// If a line of the script means nothing.
pub fn replay(subject: &str, script: &str, args: &[String]) -> Result<Option<String>, String> {
    let statements = parse(script)?;
    let mut pair = Pair::start(subject, args);
    Ok(pair.run(&statements).map(|(at, difference)| format!("{}\n{difference}", statements[at])))
}

/// Runs scripts, given with their names, in one server: the differences.
///
/// # Panics
/// If a line of a script means nothing.
pub fn replay_all(subject: &str, scripts: &[(String, String)]) -> Vec<String> {
    let mut pair = Pair::start(subject, &[]);
    let mut differences = Vec::new();
    for (name, script) in scripts {
        let statements = parse(script).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Some((at, difference)) = pair.run(&statements) {
            differences.push(format!("{name}: {}\n{difference}", statements[at]));
        }
    }
    differences
}

fn parse(script: &str) -> Result<Vec<Statement>, String> {
    let mut statements = Vec::new();
    for line in script.lines() {
        statements.extend(Statement::parse(line)?);
    }
    Ok(statements)
}

fn report(
    pair: &mut Pair,
    settings: &Settings,
    seed: u64,
    statements: Vec<Statement>,
    difference: &str,
) -> String {
    let original = statements.len();
    let small = shrink::shrink(statements, settings.shrink_limit, |candidate| {
        // A difference at another statement is another failure, and a longer script.
        pair.run(candidate).is_some_and(|(at, _)| at + 1 == candidate.len())
    });
    let again = pair.run(&small).map(|(_, difference)| difference);
    let mut script = format!(
        "-- {} against {}, seed {seed}, {} of {original} statements\n",
        pair.subject.engine,
        pair.reference.engine,
        small.len()
    );
    for statement in &small {
        let _ = writeln!(script, "{statement}");
    }
    let file = Environment::get().test_dir().join(format!("differential-{seed}.sql"));
    let _ = std::fs::write(&file, &script);
    let shown = again.as_deref().unwrap_or(difference);
    let note = if again.is_some() { "" } else { " (not when it ran once more)" };
    let log = pair.deaths.last().map_or(String::new(), |log| format!("\nthe server's log:\n{log}"));
    format!("seed {seed}: {shown}{note}\n{script}({}){log}", file.display())
}

/// Why a difference says nothing of the subject.
#[derive(Clone, Copy, Debug)]
enum Excuse {
    /// The last statement met a documented limit of the subject.
    AtLimit,
    /// The reference gave the statement up. A subject that does so alone is not excused.
    ReferenceGaveUp,
    /// The server died of the reference.
    ReferenceDied,
}

/// The line with which the server's own account of its death begins.
const DEATH: &str = "got signal";

/// Whether the server died, and said so itself, in a place that the subject has no frame of.
/// Without an account there is no telling.
fn died_elsewhere(log: &str) -> bool {
    log.rfind(DEATH).is_some_and(|at| !log[at..].contains("ha_tidepool"))
}

/// Both sides, and their server.
#[derive(Debug)]
struct Pair {
    server: Server,
    reference: Side,
    subject: Side,
    /// The ends of the error log at each time the server died.
    deaths: Vec<String>,
    /// Length of the error log when it died last, bytes.
    log_seen: usize,
    /// Why a difference at the last statement would be none.
    excuse: Option<Excuse>,
    /// What the subject answered last.
    last_answer: Option<Outcome>,
}

impl Pair {
    fn start(subject: &str, args: &[String]) -> Pair {
        let engine = Engine::by_name(subject).unwrap_or(Engine::InnoDb);
        let mut options = Options::new("differential")
            .engine(engine)
            .arg("--innodb-buffer-pool-size=64M")
            .arg("--innodb-log-file-size=96M")
            // What was committed survives SIGKILL on both sides.
            .arg("--innodb-flush-log-at-trx-commit=2")
            .arg("--innodb-stats-persistent=OFF")
            .arg("--max-allowed-packet=64M");
        if engine == Engine::Tidepool {
            options = options.arg("--loose-tidepool-flush-log-at-trx-commit=2");
        }
        options.args.extend(args.iter().cloned());
        let server = Server::start(options);
        let side = |engine: &str, database: &str| {
            let directory: PathBuf = server.dir().join(database);
            std::fs::create_dir_all(&directory).expect("a directory can be made");
            Side::new(engine, database, &directory)
        };
        let reference = side("InnoDB", "differential_reference");
        let subject = side(subject, "differential_subject");
        Pair {
            server,
            reference,
            subject,
            deaths: Vec::new(),
            log_seen: 0,
            excuse: None,
            last_answer: None,
        }
    }

    /// Empty databases; a dead server is started again.
    ///
    /// # Panics
    /// If the server does not start again.
    fn reset(&mut self) {
        for _ in 0..3 {
            let socket = self.server.socket().to_path_buf();
            let done = self.reference.reset(&socket).and_then(|()| self.subject.reset(&socket));
            match done {
                Ok(()) => return,
                Err(why) => self.revive(&why),
            }
        }
        self.server.keep();
        panic!("the databases can't be made empty: {:?}", self.deaths.last());
    }

    fn revive(&mut self, why: &str) {
        self.reference.disconnect();
        self.subject.disconnect();
        let log = self.server.error_log();
        let of_this_death = log.get(self.log_seen..).unwrap_or(&log);
        let lines: Vec<&str> = of_this_death.lines().collect();
        let last = lines.len().saturating_sub(60);
        // The account of a death may be longer.
        let from =
            lines.iter().rposition(|line| line.contains(DEATH)).map_or(last, |at| at.min(last));
        let end = lines[from..].join("\n");
        self.deaths.push(format!("{why}\n{end}"));
        self.log_seen = log.len();
        self.server.end();
        if let Err(error) = self.server.launch() {
            self.server.keep();
            panic!("after the death of the server ({why}): {error}");
        }
    }

    /// Runs statements from empty databases: the first difference, and where it is.
    fn run(&mut self, statements: &[Statement]) -> Option<(usize, String)> {
        self.reset();
        statements.iter().enumerate().find_map(|(at, statement)| {
            let (difference, _) = self.step(statement, false);
            difference.map(|difference| (at, difference))
        })
    }

    /// Whether the difference that these statements end with, the last ones run, is InnoDB's fault.
    /// It loses a row of a temporary table when an INSERT of the same key as one deleted before in
    /// the transaction is rolled back:
    ///
    /// ```text
    /// CREATE TEMPORARY TABLE t (a INT PRIMARY KEY) ENGINE=InnoDB; INSERT INTO t VALUES (1);
    /// BEGIN; DELETE FROM t; INSERT INTO t VALUES (1); ROLLBACK; SELECT * FROM t;     -- nothing; with a permanent table: 1
    /// ```
    ///
    /// (`row_undo_mod_clust` takes the delete-marked record out at once if the table is temporary,
    /// since no other session could read it; but then the undoing of the DELETE finds no record to
    /// bring back.) REPLACE and ON DUPLICATE KEY UPDATE do the same within a statement. It is that
    /// fault if permanent tables show no difference, and the subject answers the last statement as
    /// it did.
    fn innodb_lost_a_temporary_row(&mut self, statements: &[Statement]) -> bool {
        let temporary = |line: &str| line.contains("CREATE TEMPORARY TABLE");
        let lines: Vec<_> = statements.iter().map(Statement::script_line).collect();
        if self.reference.engine != "InnoDB" || !lines.iter().any(|line| temporary(line)) {
            return false;
        }
        let Some(answer) = self.last_answer.clone() else { return false };
        let permanent: Result<Vec<_>, _> =
            lines.iter().map(|line| parse(&line.replace(" TEMPORARY TABLE", " TABLE"))).collect();
        let Ok(permanent) = permanent else { return false };
        if self.run(&permanent.concat()).is_some() {
            return false;
        }
        let Some(again) = &self.last_answer else { return false };
        let strictness = statements.last().expect("something ran").strictness;
        let subject = &self.subject;
        compare::difference((subject, &answer), (subject, again), strictness).is_none()
    }

    /// Runs a statement on both sides: the difference, and whether the reference succeeded.
    fn step(&mut self, statement: &Statement, trace: bool) -> (Option<String>, bool) {
        self.excuse = None;
        if let Body::Restart { kill } = statement.body {
            return (self.restart(kill), true);
        }
        if statement.killed {
            return (self.run_and_kill(statement), true);
        }
        let sql = statement.sql();
        let start = Instant::now();
        let reference = self.reference.run(statement.session, &sql);
        let reference_ms = start.elapsed().as_millis();
        let subject = self.subject.run(statement.session, &sql);
        let subject_ms = start.elapsed().as_millis() - reference_ms;
        if trace {
            println!("{statement}\n  {}", compare::brief(&reference));
            println!("  {reference_ms} ms, {subject_ms} ms");
        }
        let difference = compare::difference(
            (&self.reference, &reference),
            (&self.subject, &subject),
            statement.strictness,
        );
        if compare::is_documented_limit(&subject) {
            self.excuse = Some(Excuse::AtLimit);
        } else if compare::gave_up(&reference) {
            self.excuse = Some(Excuse::ReferenceGaveUp);
        }
        self.last_answer = Some(subject.clone());
        if let Answer::Lost(why) = &reference.answer {
            self.revive(&why.clone());
            // A reference that dies of itself says nothing of the subject.
            let log = self.deaths.last().expect("a death was noted");
            self.excuse = died_elsewhere(log).then_some(Excuse::ReferenceDied);
        } else if let Answer::Lost(why) = &subject.answer {
            self.revive(&why.clone());
        }
        (difference, reference.is_ok())
    }

    /// Kills the server while both sides run a statement, and runs it again where nothing of it was
    /// done. What follows compares the sides: one that has done a part of it has other rows.
    fn run_and_kill(&mut self, statement: &Statement) -> Option<String> {
        let sql = statement.sql();
        // Somewhere in the middle, by the text alone: a script says when, too.
        let delay = Duration::from_micros(sql.bytes().map(u64::from).sum::<u64>() % KILL_WITHIN_US);
        let mode = self.reference.run(0, "SELECT CONCAT('SET sql_mode = ''', @@sql_mode, '''')");
        let mode = mode.first_value().unwrap_or_else(|| "SET sql_mode = DEFAULT".into());
        let before = [self.reference.contents(), self.subject.contents()];
        let (server, reference, subject) =
            (&mut self.server, &mut self.reference, &mut self.subject);
        let answers = std::thread::scope(|scope| {
            let sides = [reference, subject].map(|side| scope.spawn(|| side.run(0, &sql)));
            std::thread::sleep(delay);
            server.kill9();
            sides.map(|side| side.join().expect("a side answers, or is lost"))
        });
        if let Some(difference) = self.restart(true) {
            return Some(difference);
        }
        let sides = [&mut self.reference, &mut self.subject];
        for ((side, before), answer) in sides.into_iter().zip(before).zip(answers) {
            side.run(0, &mode);
            let found = side.contents();
            let changed = matches!(answer.answer, Answer::Done { affected: 1.., .. });
            if changed && found == before {
                return Some(format!("{}: it was acknowledged, and is gone", side.engine));
            }
            if answer.is_lost() && found == before {
                side.run(0, &sql);
            }
        }
        None
    }

    fn restart(&mut self, kill: bool) -> Option<String> {
        self.reference.disconnect();
        self.subject.disconnect();
        if kill {
            self.server.kill9();
        } else {
            self.server.stop();
        }
        if let Err(error) = self.server.launch() {
            self.server.keep();
            panic!("after a restart: {error}");
        }
        let socket = self.server.socket().to_path_buf();
        let done = self.reference.connect(&socket).and_then(|()| self.subject.connect(&socket));
        done.err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_death_with_an_account_of_its_own_is_somebody_elses() {
        let account = "[ERROR] mariadbd got signal 11 ;\nstack_bottom\nhandler::ha_write_row";
        assert!(died_elsewhere(&format!("lost\n[Note] ha_tidepool is ready\n{account}")));
        assert!(!died_elsewhere(&format!("lost\n{account}\nha_tidepool.so(+0x1234)")));
        assert!(!died_elsewhere("lost\n[Note] ready for connections"));
    }
}
