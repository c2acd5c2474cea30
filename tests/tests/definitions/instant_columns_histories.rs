//! Columns added, dropped and moved at once while others have snapshots from before, and between
//! them transactions that are rolled back, are prepared, or are ended by a crash: each reader finds
//! what a model of the table says.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::thread;
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, Row};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::{code_of, run};

const LOCK_WAIT_TIMEOUT: u16 = 1205;

/// Columns by name; NULL is None.
type Values = BTreeMap<String, Option<String>>;
/// Rows by id.
type Rows = BTreeMap<i64, Values>;

const TYPES: [&str; 5] = ["INT", "VARCHAR(300)", "TEXT", "CHAR(20)", "DECIMAL(20,0)"];

struct Column {
    name: String,
    kind: &'static str,
    nullable: bool,
}

/// The table as it should be, and what else there is.
struct History {
    dice: StdRng,
    columns: Vec<Column>,
    rows: Rows,
    /// Readers that have not looked at the table yet, and what they would see.
    snapshots: Vec<(Conn, Rows)>,
    /// What a prepared transaction has changed, if there is one.
    prepared: Option<Rows>,
    named: usize,
    next_id: i64,
}

impl History {
    /// Digits, which every type gives back as they are; long ones go to separate pages.
    fn value(&mut self, kind: &str) -> String {
        let n = (1 + self.dice.random_range(0..1_000_000)).to_string();
        match (kind, self.dice.random_range(0..6)) {
            ("TEXT", 0) => n.repeat(9000 / n.len() * (1 + self.dice.random_range(0..4))),
            ("TEXT" | "VARCHAR(300)", 1 | 2) => n.repeat(200 / n.len()),
            _ => n,
        }
    }

    fn alter(&mut self, conn: &mut Conn) {
        let mut clauses: Vec<String> = Vec::new();
        // Of all snapshots, too, once it is done.
        let mut added: Vec<(String, Option<String>)> = Vec::new();
        let mut dropped = None;
        let mut columns_before = std::mem::take(&mut self.columns);
        let place = match (self.dice.random_range(0..3), columns_before.first()) {
            (0, _) => " FIRST".to_string(),
            (1, Some(column)) => format!(" AFTER {}", column.name),
            _ => String::new(),
        };
        match self.dice.random_range(0..6) {
            0 | 1 if columns_before.len() > 2 => {
                let at = 1 + self.dice.random_range(0..columns_before.len() - 1);
                let column = columns_before.remove(at);
                clauses.push(format!("DROP COLUMN {}", column.name));
                // The name comes back, as another column.
                if self.dice.random_range(0..2) == 0 {
                    clauses.push(format!("ADD COLUMN {} TEXT DEFAULT '77'{place}", column.name));
                    added.push((column.name.clone(), Some("77".into())));
                    columns_before.push(Column {
                        name: column.name.clone(),
                        kind: "TEXT",
                        nullable: true,
                    });
                }
                dropped = Some(column.name);
            }
            2 if columns_before.len() > 1 => {
                let at = 1 + self.dice.random_range(0..columns_before.len() - 1);
                let column = &mut columns_before[at];
                column.nullable = true;
                clauses.push(format!("MODIFY COLUMN {} {} NULL{place}", column.name, column.kind));
            }
            _ => {
                for _ in 0..=self.dice.random_range(0..2) {
                    self.named += 1;
                    let name = format!("c{}", self.named);
                    let kind = TYPES[self.dice.random_range(0..TYPES.len())];
                    let nullable = self.dice.random_range(0..2) == 0;
                    let default =
                        (!nullable || self.dice.random_range(0..2) == 0).then(|| self.value(kind));
                    let mut clause = format!("ADD COLUMN {name} {kind}");
                    clause += if nullable { " NULL" } else { " NOT NULL" };
                    if let Some(default) = &default {
                        write!(clause, " DEFAULT '{default}'").expect("to memory");
                    }
                    clauses.push(clause + &place);
                    added.push((name.clone(), default));
                    columns_before.push(Column { name, kind, nullable });
                }
            }
        }
        self.columns = columns_before;
        let clauses = clauses.join(", ");
        run(conn, &[&format!("ALTER TABLE t {clauses}, ALGORITHM=INSTANT")]);
        for rows in
            self.snapshots.iter_mut().map(|(_, rows)| rows).chain(std::iter::once(&mut self.rows))
        {
            for row in rows.values_mut() {
                if let Some(name) = &dropped {
                    row.remove(name);
                }
                row.extend(added.iter().cloned());
            }
        }
    }

    /// Changes some rows, in the model `rows` and in the table.
    fn change(&mut self, conn: &mut Conn, rows: &mut Rows) {
        let modulus = 2 + self.dice.random_range(0..6) as i64;
        let remainder = self.dice.random_range(0..modulus as usize) as i64;
        match self.dice.random_range(0..5) {
            0 | 1 => {
                for _ in 0..1 + self.dice.random_range(0..8) {
                    let mut row = Values::new();
                    for at in 0..self.columns.len() {
                        let (kind, nullable) = (self.columns[at].kind, self.columns[at].nullable);
                        let is_null = nullable && self.dice.random_range(0..4) == 0;
                        let value = (!is_null).then(|| self.value(kind));
                        row.insert(self.columns[at].name.clone(), value);
                    }
                    let names: Vec<_> = row.keys().cloned().collect();
                    let values: Vec<_> = row.values().map(literal).collect();
                    let id = self.next_id;
                    self.next_id += 1;
                    let (names, values) = (names.join(", "), values.join(", "));
                    run(conn, &[&format!("INSERT INTO t (id, {names}) VALUES ({id}, {values})")]);
                    rows.insert(id, row);
                }
            }
            2 | 3 => {
                let at = self.dice.random_range(0..self.columns.len());
                let value = self.value(self.columns[at].kind);
                let name = self.columns[at].name.clone();
                run(
                    conn,
                    &[&format!(
                        "UPDATE t SET {name} = '{value}' WHERE id % {modulus} = {remainder}"
                    )],
                );
                for (_, row) in rows.iter_mut().filter(|(id, _)| *id % modulus == remainder) {
                    row.insert(name.clone(), Some(value.clone()));
                }
            }
            _ => {
                let modulus = modulus * 3;
                run(conn, &[&format!("DELETE FROM t WHERE id % {modulus} = {remainder}")]);
                rows.retain(|id, _| id % modulus != remainder);
            }
        }
    }

    fn expect(&self, conn: &mut Conn, should_be: &Rows, what: &str) {
        let names: Vec<_> = self.columns.iter().map(|column| &column.name[..]).collect();
        let found: Vec<Row> =
            conn.query(format!("SELECT id, {} FROM t", names.join(", "))).expect("the rows");
        let found: Rows = found
            .into_iter()
            .map(|mut row| {
                let values = names.iter().enumerate().map(|(at, name)| {
                    (name.to_string(), row.take::<Option<String>, _>(at + 1).expect("a value"))
                });
                let values = values.collect();
                (row.take(0).expect("an id"), values)
            })
            .collect();
        assert!(found == *should_be, "{what}: {found:#?} should be {should_be:#?}");
    }
}

fn literal(value: &Option<String>) -> String {
    value.as_ref().map_or("NULL".into(), |value| format!("'{value}'"))
}

/// Ends a prepared transaction, as soon as its connection is gone.
fn finish(conn: &mut Conn, statement: &str) {
    const UNKNOWN_XID: u16 = 1397;
    let mut attempts = 0;
    while let Err(error) = conn.query_drop(statement) {
        let unknown =
            matches!(&error, mysql::Error::MySqlError(error) if error.code == UNKNOWN_XID);
        attempts += 1;
        assert!(unknown && attempts < 500, "{statement}: {error}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn each_reader_finds_its_rows_whatever_has_become_of_their_columns() {
    let seeds = std::env::var("TIDEPOOL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let mut server = Server::start(Options::new("instant_histories"));
    let (mut busy, mut read) = (0, 0);
    for seed in 0..seeds {
        let mut conn = server.connect_to("test");
        run(
            &mut conn,
            &["DROP TABLE IF EXISTS t", "CREATE TABLE t (a INT, id INT PRIMARY KEY, KEY (a))"],
        );
        let mut history = History {
            dice: StdRng::seed_from_u64(seed),
            columns: vec![Column { name: "a".into(), kind: "INT", nullable: true }],
            rows: Rows::new(),
            snapshots: Vec::new(),
            prepared: None,
            named: 0,
            next_id: 1,
        };
        for step in 0..90 {
            let what = format!("seed {seed}, step {step}");
            match history.dice.random_range(0..12) {
                // What is prepared has the table to itself.
                _ if history.prepared.is_some() => {
                    run(&mut conn, &["SET lock_wait_timeout = 1"]);
                    let alter = "ALTER TABLE t ADD COLUMN z INT, ALGORITHM=INSTANT";
                    assert_eq!(code_of(&mut conn, alter), LOCK_WAIT_TIMEOUT, "{what}");
                    busy += 1;
                    if history.dice.random_range(0..2) == 0 {
                        history.snapshots.clear();
                        server.kill9();
                        server.restart();
                        conn = server.connect_to("test");
                    }
                    let changed = history.prepared.take().expect("one is prepared");
                    if history.dice.random_range(0..2) == 0 {
                        finish(&mut conn, "XA COMMIT 'x'");
                        history.rows = changed;
                    } else {
                        finish(&mut conn, "XA ROLLBACK 'x'");
                    }
                    history.expect(&mut conn, &history.rows, &what);
                }
                0..=3 => history.alter(&mut conn),
                4..=6 => {
                    let mut rows = history.rows.clone();
                    history.change(&mut conn, &mut rows);
                    history.rows = rows;
                }
                7 => {
                    // Its rows come back in the versions in which they were.
                    let mut rows = history.rows.clone();
                    run(&mut conn, &["BEGIN"]);
                    history.change(&mut conn, &mut rows);
                    history.change(&mut conn, &mut rows);
                    history.expect(&mut conn, &rows, &what);
                    run(&mut conn, &["ROLLBACK"]);
                }
                8 if history.snapshots.len() < 4 => {
                    let mut reader = server.connect_to("test");
                    run(
                        &mut reader,
                        &[
                            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                            "START TRANSACTION WITH CONSISTENT SNAPSHOT",
                        ],
                    );
                    history.snapshots.push((reader, history.rows.clone()));
                }
                9 if !history.snapshots.is_empty() => {
                    let at = history.dice.random_range(0..history.snapshots.len());
                    let (mut reader, rows) = history.snapshots.remove(at);
                    history.expect(&mut reader, &rows, &what);
                    read += 1;
                }
                10 => {
                    let mut rows = history.rows.clone();
                    let mut other = server.connect_to("test");
                    run(&mut other, &["XA START 'x'"]);
                    history.change(&mut other, &mut rows);
                    history.change(&mut other, &mut rows);
                    run(&mut other, &["XA END 'x'", "XA PREPARE 'x'"]);
                    if rows == history.rows {
                        // It may have written nothing, and then it is in no one's way.
                        run(&mut other, &["XA ROLLBACK 'x'"]);
                    } else {
                        history.prepared = Some(rows);
                    }
                }
                11 if history.dice.random_range(0..2) == 0 => {
                    let mut other = server.connect_to("test");
                    let mut rows = history.rows.clone();
                    run(&mut other, &["BEGIN"]);
                    history.change(&mut other, &mut rows);
                    // So that the log has it.
                    run(&mut conn, &["CREATE OR REPLACE TABLE other (id INT)"]);
                    history.snapshots.clear();
                    server.kill9();
                    server.restart();
                    conn = server.connect_to("test");
                    // The rollback and this change go side by side.
                    history.alter(&mut conn);
                    history.expect(&mut conn, &history.rows, &what);
                }
                _ => history.expect(&mut conn, &history.rows, &what),
            }
        }
        if history.prepared.take().is_some() {
            finish(&mut conn, "XA ROLLBACK 'x'");
        }
        history.expect(&mut conn, &history.rows, &format!("seed {seed}, at the end"));
        let checked: Vec<(String, String, String, String)> =
            conn.query("CHECK TABLE t EXTENDED").expect("a check");
        assert_eq!(checked.last().expect("a row").3, "OK", "seed {seed}: {checked:?}");
    }
    assert!(busy >= seeds && read >= seeds, "{busy} were busy, {read} snapshots were read");
}
