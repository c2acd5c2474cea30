//! One damage, and what the server makes of it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder};
use rand::Rng as _;
use rand::rngs::StdRng;

use super::Base;
use super::harm::Damage;
use super::schema::{self, ASKED, Asked, DATABASE, Rows, XA_NAME};
use super::verdict::{Report, Verdict, unsaid};
use crate::sql::{CheckAnswer, check_answers};

/// A start with so little to recover takes seconds.
const START_LIMIT: Duration = Duration::from_secs(90);
/// A statement that waits for a row lock takes three seconds.
const STATEMENT_LIMIT: Duration = Duration::from_secs(60);

/// What was observed of one trial.
#[derive(Default)]
struct Seen {
    /// The errors of statements, with their warnings.
    errors: Vec<String>,
    /// Tables whose queries all failed, and those of which some did.
    refused: u32,
    /// See `refused`.
    partly: u32,
    /// Statements other than queries that failed.
    later: u32,
    /// Rows that differ from the truth.
    wrong: Vec<String>,
    /// What is wrong whatever the verdict.
    faults: Vec<String>,
    /// The connection broke or a statement did not end.
    broken: Option<String>,
}

/// Starts the server on the damaged directory, reads all, writes, and stops it.
///
/// # Panics
/// If the server cannot be run at all.
pub fn run(base: &mut Base, damage: &Damage, rng: &mut StdRng) -> Report {
    let log_before = base.server.error_log().len();
    base.server.spawn();
    let since = Instant::now();
    let mut seen = Seen::default();
    let mut status = None;
    let started = loop {
        if base.server.try_connect("").is_ok() {
            break true;
        }
        status = base.server.exited();
        if status.is_some() || since.elapsed() > START_LIMIT {
            break false;
        }
        sleep(Duration::from_millis(20));
    };
    let hung = !started && status.is_none();
    if started {
        let commit = rng.random_bool(0.5);
        if let Err(error) = ask(base, commit, &mut seen) {
            seen.broken = Some(error.to_string());
        }
        status = match base.server.exited() {
            None => Some(base.server.terminate()),
            ended => ended,
        };
    }
    base.server.end();
    let log = base.server.error_log().get(log_before..).unwrap_or_default().to_owned();
    let crashed = status.is_some_and(|status| status.code().is_none())
        || log.contains("panicked at")
        || log.contains("got signal");
    let mut messages = seen.errors.clone();
    messages.extend(log.lines().filter(|line| of_interest(line)).map(str::to_owned));
    let unsaid = unsaid(damage, base.variant.page_size, &messages);
    let verdict = match () {
        () if hung || (seen.broken.is_some() && !crashed) => Verdict::Hang,
        () if crashed => Verdict::Crash,
        () if !started => Verdict::StartRefused,
        () if !seen.wrong.is_empty() && unsaid.is_empty() => Verdict::WrongAndSaid,
        () if !seen.wrong.is_empty() => Verdict::WrongRows,
        () if seen.partly > 0 => Verdict::ErrorOnRead,
        () if seen.refused > 0 => Verdict::TableRefused,
        () if seen.later > 0 => Verdict::ErrorLater,
        () => Verdict::Nothing,
    };
    let mut faults = seen.faults;
    faults.extend(seen.wrong);
    faults.extend(seen.broken);
    match verdict {
        Verdict::Nothing => {}
        Verdict::Hang => faults.push("it did not answer in time".into()),
        Verdict::Crash => faults.push(format!("it ended with {status:?}")),
        _ => faults.extend(unsaid),
    }
    Report { verdict, messages, faults }
}

/// Lines of the error log that a person would look at.
fn of_interest(line: &str) -> bool {
    let is_ours = line.contains("Tidepool: ") && !line.contains("[Note]");
    (is_ours || line.contains("[ERROR]") || line.contains("panicked at"))
        && !line.contains("io_uring")
}

/// Whether an error is the server's answer, and not a broken connection.
fn is_answer(error: &mysql::Error) -> bool {
    matches!(error, mysql::Error::MySqlError(_))
}

/// All statements of a trial. An error is a connection that broke.
fn ask(base: &Base, commit: bool, seen: &mut Seen) -> mysql::Result<()> {
    let mut conn = connect(base)?;
    for (asked, truth) in ASKED.iter().zip(&base.truth.tables) {
        read(&mut conn, asked, truth, seen)?;
    }
    let recovered: Vec<mysql::Row> = conn.query("XA RECOVER")?;
    if recovered.len() == 1 {
        let end = if commit { "COMMIT" } else { "ROLLBACK" };
        if execute(&mut conn, &format!("XA {end} {XA_NAME}"), seen)? {
            let truth = if commit { &base.truth.small_committed } else { &base.truth.tables[0] };
            read(&mut conn, &ASKED[0], truth, seen)?;
        }
    } else if seen.refused + seen.partly == 0 {
        seen.wrong.push(format!("XA RECOVER gives {} transactions", recovered.len()));
    }
    for asked in &ASKED {
        let failed_before = seen.refused + seen.partly;
        let answers = check_answers(&mut conn, asked.table)?;
        if answers.last().is_some_and(|last| !last.is_ok()) && failed_before == 0 {
            seen.later += 1;
        }
        let bad = answers.iter().filter(|answer| !answer.is_ok());
        seen.errors.extend(bad.map(CheckAnswer::to_string));
        for statement in asked.writes {
            execute(&mut conn, statement, seen)?;
        }
    }
    Ok(())
}

/// Reads a table by all its indexes.
fn read(conn: &mut Conn, asked: &Asked, truth: &[Rows], seen: &mut Seen) -> mysql::Result<()> {
    let mut failed = 0;
    for (query, truth) in asked.queries.iter().zip(truth) {
        match schema::rows(conn, query) {
            Ok(rows) if rows == *truth => {}
            Ok(rows) => seen.wrong.push(format!("{query}: {}", difference(&rows, truth))),
            Err(error) if is_answer(&error) => {
                failed += 1;
                note(conn, query, &error, seen)?;
            }
            Err(error) => return Err(error),
        }
    }
    if failed == asked.queries.len() {
        seen.refused += 1;
    } else if failed > 0 {
        seen.partly += 1;
    }
    if failed > 0 && check_answers(conn, asked.table)?.last().is_some_and(CheckAnswer::is_ok) {
        seen.faults.push(format!("CHECK TABLE {} says OK, but it cannot be read", asked.table));
    }
    Ok(())
}

/// Runs a statement that writes; returns whether it succeeded.
fn execute(conn: &mut Conn, statement: &str, seen: &mut Seen) -> mysql::Result<bool> {
    match conn.query_drop(statement) {
        Ok(()) => Ok(true),
        Err(error) if is_answer(&error) => {
            seen.later += 1;
            note(conn, statement, &error, seen)?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Keeps an error with its warnings.
fn note(conn: &mut Conn, sql: &str, error: &mysql::Error, seen: &mut Seen) -> mysql::Result<()> {
    let mut text = format!("{sql}: {error}");
    let warnings: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS")?;
    for (_, code, warning) in warnings {
        text.push_str(&format!(" | {code}: {warning}"));
    }
    seen.errors.push(text);
    Ok(())
}

fn difference(found: &Rows, truth: &Rows) -> String {
    let missing = truth.iter().filter(|row| found.binary_search(row).is_err()).count();
    let other = found.iter().filter(|row| truth.binary_search(row).is_err()).count();
    format!("{} rows of {}, {missing} missing, {other} others", found.len(), truth.len())
}

fn connect(base: &Base) -> mysql::Result<Conn> {
    let options = OptsBuilder::new()
        .socket(Some(base.server.socket().to_string_lossy().into_owned()))
        .user(Some("root"))
        .db_name(Some(DATABASE))
        .read_timeout(Some(STATEMENT_LIMIT));
    Conn::new(options)
}
