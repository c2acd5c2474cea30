//! Whether definitions survive: each statement that changes one, with a kill or a power cut right
//! after its acknowledgement.
//!
//! A case runs twice: in the database `reference` first, where nothing happens to it, and in
//! `changed`. After the start, the second must be what the first was: the same tables with the same
//! definitions and rows, each of them clean for CHECK TABLE, and no file that belongs to none of
//! them.

mod cases;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;

pub use cases::{CASES, Case};

use crate::power_cut::Machine;
use crate::server::{Server, connect_to_socket};
use crate::sql::{is_acknowledged, run};

/// How the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// SIGKILL: what was written is there.
    Kill,
    /// What the file system had not committed is lost.
    PowerCut,
    /// The same, when the server has been stopped in order.
    StopThenPowerCut,
}

const REFERENCE: &str = "reference";
const CHANGED: &str = "changed";

/// When the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// When the client has the answer.
    Acknowledged,
    /// So long after the client has sent the statement: the table may be as before, too.
    During(Duration),
}

/// Tries one case. The server runs before, and afterwards if it started again; what was found wrong
/// is returned.
///
/// # Panics
/// If the case itself is wrong: its statements fail.
pub fn try_case(machine: &mut Machine, case: &Case, loss: Loss, moment: Moment) -> Vec<String> {
    let mut conn = machine.server.connect();
    for database in [REFERENCE, CHANGED] {
        drop_databases(&mut conn, database).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        conn.query_drop(format!("CREATE DATABASE {database}")).expect("a database can be made");
        perform(&machine.server, database, case.before);
    }
    let before = state(&mut conn, REFERENCE);
    perform(&machine.server, REFERENCE, case.statements);
    let after = state(&mut conn, REFERENCE);
    for line in before.iter().chain(&after) {
        assert!(!has_error(line), "{}: {line}", case.name);
    }
    machine.sync_disk();
    let acknowledged = match moment {
        Moment::Acknowledged => {
            perform(&machine.server, CHANGED, case.statements);
            lose(machine, loss);
            true
        }
        Moment::During(delay) => {
            let socket = machine.server.socket().to_path_buf();
            let statements: Vec<String> =
                case.statements.iter().map(|one| told(&machine.server, CHANGED, one)).collect();
            let client = std::thread::spawn(move || {
                let Ok(mut conn) = connect_to_socket(&socket, CHANGED) else { return false };
                statements.iter().all(|one| is_acknowledged(&mut conn, one))
            });
            std::thread::sleep(delay);
            lose(machine, loss);
            client.join().expect("the client does not panic")
        }
    };
    if let Err(why) = machine.server.launch() {
        return vec![format!("no start: {why}")];
    }
    let mut conn = machine.server.connect();
    let found = state(&mut conn, CHANGED);
    let mut wrong = difference(&after, &found);
    if !acknowledged && found == before {
        wrong.clear();
    }
    wrong.extend(stray_files(&mut conn, &machine.server));
    for database in [REFERENCE, CHANGED] {
        if let Err(error) = drop_databases(&mut conn, database) {
            wrong.push(format!("DROP DATABASE {database}: {error}"));
        }
    }
    wrong
}

fn lose(machine: &mut Machine, loss: Loss) {
    match loss {
        Loss::Kill => machine.server.kill9(),
        Loss::PowerCut => machine.cut_power(),
        Loss::StopThenPowerCut => {
            machine.server.stop();
            machine.cut_power();
        }
    }
}

/// A case's statement as it is sent.
fn told(server: &Server, database: &str, statement: &str) -> String {
    statement.replace("{db}", database).replace("{engine}", server.engine().name())
}

fn perform(server: &Server, database: &str, statements: &[&str]) {
    let mut conn = server.connect_to(database);
    for statement in statements {
        run(&mut conn, &[&told(server, database, statement)]);
    }
}

/// The databases with names that begin so.
fn databases(conn: &mut Conn, database: &str) -> Vec<String> {
    let like = format!("SHOW DATABASES LIKE '{database}%'");
    conn.query(like).expect("databases")
}

fn drop_databases(conn: &mut Conn, database: &str) -> Result<(), mysql::Error> {
    for name in databases(conn, database) {
        conn.query_drop("SET foreign_key_checks = 0")?;
        conn.query_drop(format!("DROP DATABASE `{name}`"))?;
    }
    Ok(())
}

/// Everything about the tables of these databases, a line each, without the databases' own names.
fn state(conn: &mut Conn, database: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for name in databases(conn, database) {
        let shown = name.replacen(database, "db", 1);
        lines.push(format!("database {shown}"));
        let tables: Vec<(String, String)> =
            conn.query(format!("SHOW FULL TABLES FROM `{name}`")).expect("tables");
        for (table, kind) in tables {
            let of = format!("`{name}`.`{table}`");
            lines.push(format!("{shown}.{table}: {kind}"));
            for query in [
                format!("SHOW CREATE TABLE {of}"),
                format!("CHECK TABLE {of} EXTENDED"),
                format!("SELECT * FROM {of}"),
            ] {
                let mut answer = answer(conn, &query);
                answer.sort();
                let answer = answer.join(" / ").replace(&name, &shown);
                lines.push(format!("{shown}.{table}: {} {answer}", &query[..12]));
            }
        }
    }
    lines
}

/// Whether a line of a state says that a table can't be read, or is damaged. If it is so before any
/// loss, the same line afterwards is no success.
fn has_error(line: &str) -> bool {
    let is_discarded = line.contains("discarded");
    let is_bad_check = line.contains(": CHECK TABLE ") && !line.ends_with("'status', 'OK'");
    !is_discarded && (line.contains("error: ") || is_bad_check)
}

/// The rows of an answer as texts, or the error.
fn answer(conn: &mut Conn, query: &str) -> Vec<String> {
    match conn.query_iter(query) {
        Ok(result) => result
            .map(|row| match row {
                Ok(row) => {
                    let values = row.unwrap();
                    values.iter().map(|value| value.as_sql(true)).collect::<Vec<_>>().join(", ")
                }
                Err(error) => format!("error: {error}"),
            })
            .collect(),
        Err(error) => vec![format!("error: {error}")],
    }
}

fn difference(expected: &[String], found: &[String]) -> Vec<String> {
    let (all, there): (BTreeSet<_>, BTreeSet<_>) =
        (expected.iter().collect(), found.iter().collect());
    let cut = |line: &str| line.chars().take(300).collect::<String>();
    let missing = all.difference(&there).map(|line| format!("missing: {}", cut(line)));
    let other = there.difference(&all).map(|line| format!("instead: {}", cut(line)));
    missing.chain(other).collect()
}

/// Files of the server's that no table has.
fn stray_files(conn: &mut Conn, server: &Server) -> Vec<String> {
    let mut stray = Vec::new();
    for database in databases(conn, CHANGED) {
        let query = format!(
            "SELECT DISTINCT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{database}'"
        );
        let tables: Vec<String> = conn.query(&query).expect("tables");
        let dir = server.data_dir().join(&database);
        for entry in std::fs::read_dir(&dir).expect("a database's directory can be read") {
            let path = entry.expect("a directory's entry can be read").path();
            if !is_expected(&path, &tables) {
                stray.push(format!("stray file: {}/{}", database, file_name(&path)));
            }
        }
    }
    stray
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_expected(path: &Path, tables: &[String]) -> bool {
    let name = file_name(path);
    if name == "db.opt" || name.ends_with(".BAK") {
        return true;
    }
    let stem = name.split(['.', '#']).next().unwrap_or_default();
    // Names with other characters are encoded; only one table has such a name.
    tables.iter().any(|table| {
        table == stem || (stem.contains('@') && !table.is_ascii() | table.contains(' '))
    })
}
