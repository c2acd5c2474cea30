//! After the restart: is everything there that was acknowledged, is nothing there that was not,
//! does every index agree with its table?

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;

use super::WORKERS;
use super::content::{Content, content};
use super::expected::{Change, Journal, OwnTable, State, Transfer};
use super::schema::{ACCOUNTS, DATABASE, OPENING_BALANCE, is_noted_elsewhere, own_table, xa_name};
use crate::server::{Engine, Server};
use crate::sql::{CheckAnswer, check_answers};

/// What a verification found.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Transactions without an answer, and how many of these were found committed.
    pub in_doubt: u32,
    /// See `in_doubt`.
    pub in_doubt_found: u32,
    /// Transactions that were prepared and not ended at the crash.
    pub prepared_found: u32,
    /// Rows that were compared.
    pub rows: usize,
    /// What is wrong.
    pub violations: Vec<String>,
}

/// Compares the server with the journals, and writes the journals anew if all is well.
pub fn verify(server: &Server, journals: Vec<Journal>) -> Outcome {
    let mut outcome = Outcome::default();
    if let Err(error) = compare_all(server, journals, &mut outcome) {
        outcome.violations.push(format!("the tables cannot be read: {error}"));
    }
    outcome
}

fn compare_all(
    server: &Server,
    journals: Vec<Journal>,
    outcome: &mut Outcome,
) -> mysql::Result<()> {
    let mut conn = server.try_connect(DATABASE)?;
    end_prepared(&mut conn, &journals, outcome)?;
    let mut actual = actual_states(&mut conn, outcome)?;
    let transfers: Vec<Transfer> =
        actual.iter().flat_map(|state| state.transfers.values().copied()).collect();
    balances(&mut conn, &transfers, outcome)?;
    elsewhere(&mut conn, &actual, &journals, outcome)?;
    check_tables(&mut conn, outcome)?;
    leftovers(server, outcome);
    for (worker, journal) in journals.into_iter().enumerate() {
        compare(worker, journal, std::mem::take(&mut actual[worker]), outcome);
    }
    Ok(())
}

/// Ends the transactions that are still prepared, as their coordinator would: one whose XA
/// PREPARE was not acknowledged may be prepared in one engine only, and is rolled back.
fn end_prepared(conn: &mut Conn, journals: &[Journal], outcome: &mut Outcome) -> mysql::Result<()> {
    let prepared: Vec<(u64, u64, u64, String)> = conn.query("XA RECOVER")?;
    for (_, _, _, name) in prepared {
        let worker = (0..).zip(journals).find(|(worker, _)| xa_name(*worker) == name);
        let Some((_, journal)) = worker else {
            outcome.violations.push(format!("no session prepared {name:?}"));
            continue;
        };
        outcome.prepared_found += 1;
        let how = if journal.is_prepared { "COMMIT" } else { "ROLLBACK" };
        conn.query_drop(format!("XA {how} '{name}'"))?;
    }
    Ok(())
}

/// What a transaction has written to two engines is in both. Only with a binary log can that be
/// said of one that was not answered: without it the server (10.11.18) rolls back after a crash
/// what is prepared, in each engine by itself. What is so in one only is then made the same, for
/// the number is used again.
fn elsewhere(
    conn: &mut Conn,
    actual: &[State],
    journals: &[Journal],
    outcome: &mut Outcome,
) -> mysql::Result<()> {
    let binary_log: bool = conn.query_first("SELECT @@log_bin")?.unwrap_or_default();
    for (worker, (state, journal)) in (0..).zip(actual.iter().zip(journals)) {
        let rows: Vec<(u32, u32, u32, i64)> = conn.exec(
            "SELECT number, debit, credit, amount FROM transfer_elsewhere WHERE worker = ?",
            (worker,),
        )?;
        let found: BTreeMap<u32, Transfer> = rows
            .into_iter()
            .map(|(number, from, to, amount)| (number, (from, to, amount)))
            .collect();
        let in_doubt = |number: u32| {
            let changes = journal.in_doubt.iter().flatten();
            changes.into_iter().any(|it| matches!(it, Change::Transfer(n, _) if *n == number))
        };
        let numbers: BTreeSet<u32> = found.keys().chain(state.transfers.keys()).copied().collect();
        for number in numbers.into_iter().filter(|number| is_noted_elsewhere(*number)) {
            let (here, there) = (state.transfers.get(&number), found.get(&number));
            if here == there {
                continue;
            }
            if binary_log || journal.is_prepared || !in_doubt(number) {
                outcome.violations.push(format!(
                    "worker {worker}: transfer {number} is {here:?} in the engine, {there:?} in InnoDB"
                ));
            }
            conn.exec_drop(
                "DELETE FROM transfer_elsewhere WHERE worker = ? AND number = ?",
                (worker, number),
            )?;
            if let Some((from, to, amount)) = here {
                conn.exec_drop(
                    "INSERT INTO transfer_elsewhere VALUES (?, ?, ?, ?, ?)",
                    (worker, number, from, to, amount),
                )?;
            }
        }
    }
    Ok(())
}

/// A worker's state is what is certain, or that and all of what is in doubt.
fn compare(worker: usize, journal: Journal, actual: State, outcome: &mut Outcome) {
    outcome.rows += actual.records.len() + actual.loose.len() + actual.transfers.len();
    let mut committed = false;
    match journal.in_doubt.as_ref() {
        None if actual == journal.state => {}
        None => {
            let differences = journal.state.differences(&actual).join("; ");
            outcome.violations.push(format!("worker {worker}: {differences}"));
        }
        Some(changes) => {
            outcome.in_doubt += 1;
            let with = journal.state.with(changes);
            if actual == with {
                committed = true;
                outcome.in_doubt_found += 1;
            } else if journal.is_prepared {
                outcome.violations.push(format!(
                    "worker {worker}: what was prepared is not there: {}",
                    with.differences(&actual).join("; "),
                ));
            } else if actual != journal.state {
                outcome.violations.push(format!(
                    "worker {worker}: neither without the transaction in doubt ({}) nor with it ({})",
                    journal.state.differences(&actual).join("; "),
                    with.differences(&actual).join("; "),
                ));
            }
        }
    }
    if outcome.violations.is_empty() {
        journal.settle(committed);
    }
}

/// A row of `record`, in the order of the columns.
type Record = (u32, u32, u64, u32, String, String, Option<Vec<u8>>);

fn actual_states(conn: &mut Conn, outcome: &mut Outcome) -> mysql::Result<Vec<State>> {
    let mut states = vec![State::default(); WORKERS as usize];
    let mut bad = Vec::new();
    conn.query_map(
        "SELECT * FROM record ORDER BY id",
        |(id, owner, version, small, name, tag, data): Record| {
            if (Content { small, name, tag, data }) != content(id, version) || id % WORKERS != owner
            {
                bad.push(format!("record {id}, version {version}: wrong content"));
            }
            states[(id % WORKERS) as usize].records.insert(id, version);
        },
    )?;
    let by_table: BTreeMap<u32, u64> =
        states.iter().flat_map(|state| state.records.clone()).collect();
    for index in ["by_name", "by_small", "by_tag", "by_owner"] {
        let rows: Vec<(u32, u64)> = conn.query(format!(
            "SELECT id, version FROM record FORCE INDEX ({index}) WHERE {}",
            match index {
                "by_name" => "name >= ''",
                "by_small" => "small >= 0",
                "by_tag" => "tag >= ''",
                _ => "owner >= 0",
            }
        ))?;
        let count = rows.len();
        let by_index: BTreeMap<u32, u64> = rows.into_iter().collect();
        if count != by_index.len() || by_index != by_table {
            bad.push(format!(
                "record: index {index} finds {count} rows, not the {} of the table",
                by_table.len()
            ));
        }
    }
    let loose: Vec<(u32, u32, u64, String)> =
        conn.query("SELECT owner, id, version, note FROM loose")?;
    for (owner, id, version, note) in loose {
        if note != content(id, version).tag {
            bad.push(format!("loose {owner}/{id}, version {version}: wrong content"));
        }
        if states[owner as usize].loose.insert(id, version).is_some() {
            bad.push(format!("loose {owner}/{id}: found twice"));
        }
    }
    let transfers: Vec<(u32, u32, u32, u32, i64)> = conn.query("SELECT * FROM transfer")?;
    for (worker, number, from, to, amount) in transfers {
        states[worker as usize].transfers.insert(number, (from, to, amount));
    }
    for (worker, state) in (0..).zip(&mut states) {
        state.own = own(conn, worker, &mut bad)?;
    }
    outcome.violations.extend(bad);
    Ok(states)
}

/// A worker's own table, as it is.
fn own(conn: &mut Conn, worker: u32, bad: &mut Vec<String>) -> mysql::Result<Option<OwnTable>> {
    let mut found = None;
    for renamed in [false, true] {
        let name = own_table(worker, renamed);
        let columns: Vec<String> = conn.exec(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?",
            (DATABASE, &name),
        )?;
        if columns.is_empty() {
            continue;
        }
        let wide = columns.iter().any(|column| column == "extra");
        let extra = if wide { "SUM(extra = 7)" } else { "COUNT(*)" };
        let row: Option<(u32, u64, u32, u32)> = conn.query_first(format!(
            "SELECT COUNT(*), CAST(COALESCE(SUM(v), 0) AS UNSIGNED), COALESCE(MAX(id), 0),
             CAST(COALESCE({extra}, 0) AS UNSIGNED) FROM {name}"
        ))?;
        let (rows, sum, last, wide_rows) = row.expect("an aggregate is a row");
        let expected_sum = (1..=u64::from(rows)).map(|id| id * 3).sum::<u64>();
        if last != rows || sum != expected_sum || wide_rows != rows {
            bad.push(format!("{name}: {rows} rows, the last is {last}, their sum {sum}, {wide_rows} with the new column"));
        }
        if found.replace(OwnTable { renamed, wide, rows }).is_some() {
            bad.push(format!("worker {worker}'s table has both names"));
        }
    }
    Ok(found)
}

/// The accounts hold what the transfers make of them.
fn balances(conn: &mut Conn, transfers: &[Transfer], outcome: &mut Outcome) -> mysql::Result<()> {
    let mut expected: BTreeMap<u32, i64> = (0..ACCOUNTS).map(|id| (id, OPENING_BALANCE)).collect();
    for (from, to, amount) in transfers {
        *expected.entry(*from).or_default() -= amount;
        *expected.entry(*to).or_default() += amount;
    }
    let rows: Vec<(u32, i64)> = conn.query("SELECT id, balance FROM account")?;
    let actual: BTreeMap<u32, i64> = rows.into_iter().collect();
    if actual != expected {
        let wrong: Vec<String> = expected
            .iter()
            .filter(|(id, balance)| actual.get(id) != Some(*balance))
            .map(|(id, balance)| {
                format!("account {id}: {:?}, its transfers make {balance}", actual.get(id))
            })
            .collect();
        outcome.violations.push(wrong.join("; "));
    }
    Ok(())
}

fn check_tables(conn: &mut Conn, outcome: &mut Outcome) -> mysql::Result<()> {
    let tables: Vec<String> = conn.exec(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = ?",
        (DATABASE,),
    )?;
    for table in tables {
        let answers = check_answers(conn, &format!("`{table}`"))?;
        if !answers.last().is_some_and(CheckAnswer::is_ok) {
            outcome.violations.push(format!("CHECK TABLE {table}: {answers:?}"));
        }
    }
    Ok(())
}

/// How long a server may take to remove, in the background, what a half-done DDL statement left.
const CLEANUP_LIMIT: Duration = Duration::from_secs(5);

/// A half-done DDL statement leaves no temporary table behind for long once the server is up again.
/// (InnoDB is let off: 10.11.18 may keep an orphaned `#sql-backup-….ibd`.)
fn leftovers(server: &Server, outcome: &mut Outcome) {
    if server.engine() == Engine::InnoDb {
        return;
    }
    let dir = server.data_dir().join(DATABASE);
    let deadline = Instant::now() + CLEANUP_LIMIT;
    loop {
        let names = fs::read_dir(&dir).expect("the database is a directory");
        let names = names.map(|entry| entry.expect("a directory can be read").file_name());
        let left: Vec<String> = names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.starts_with("#sql"))
            .collect();
        if left.is_empty() {
            return;
        }
        if Instant::now() > deadline {
            outcome.violations.push(format!("left over: {left:?}"));
            return;
        }
        sleep(Duration::from_millis(100));
    }
}
