//! SPATIAL indexes of both engines in one server, by turns: how long they take to build, their
//! size, writes, and window queries that find one row to ten thousand. Inserts are measured with
//! and without the index.
//!
//! The rows are rectangles in a square, evenly spread, with sides of 0 to 10 units; a hundredth of
//! a row begins in each square unit. Statements are the same for both engines, in one connection.
//! Of three turns the least time counts.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::prelude::*;
use mysql::Conn;
use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_tests::command_line;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{number, run};

const USAGE: &str = "spatial-windows [--rows 1000000] [--queries 200] [--turns 3]";
/// Rows that begin in a square unit.
const DENSITY: f64 = 0.01;
const SIDE_MAX: f64 = 10.0;

#[derive(Clone, Copy)]
struct Settings {
    rows: u32,
    queries: u32,
    turns: u32,
}

fn settings() -> Result<Settings, lexopt::Error> {
    let mut settings = Settings { rows: 1_000_000, queries: 200, turns: 3 };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("rows") => settings.rows = parser.value()?.parse()?,
            Long("queries") => settings.queries = parser.value()?.parse()?,
            Long("turns") => settings.turns = parser.value()?.parse()?,
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(settings)
}

/// The engines' tables: `t` is Tidepool's, `i` is InnoDB's. Those with the same rows and without
/// the index have names that begin with `plain_`.
const TABLES: [(&str, Engine); 2] = [("t", Engine::Tidepool), ("i", Engine::InnoDb)];

fn plain(table: &str) -> String {
    format!("plain_{table}")
}

fn timed(conn: &mut Conn, statements: &[String]) -> Duration {
    let start = Instant::now();
    for statement in statements {
        conn.query_drop(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    start.elapsed()
}

/// One line of the result: what it is, and the times of both.
fn show(what: &str, [ours, theirs]: [Duration; 2]) {
    let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
    println!("| {what} | {ours:.2?} | {theirs:.2?} | {ratio:.2} |");
}

fn polygon(x: f64, y: f64, width: f64, height: f64) -> String {
    let (right, top) = (x + width, y + height);
    format!("ST_GeomFromText('POLYGON(({x} {y},{right} {y},{right} {top},{x} {top},{x} {y}))')")
}

/// Inserts the rows up to a number, with other numbers.
fn copy_of_made(table: &str, from: u32, count: u32) -> String {
    format!(
        "INSERT INTO {table} SELECT id + {from}, ST_GeomFromText(CONCAT('POLYGON((', x, ' ', y, \
         ',', x + w, ' ', y, ',', x + w, ' ', y + h, ',', x, ' ', y + h, ',', x, ' ', y, '))')) \
         FROM made WHERE id <= {count}"
    )
}

struct Bench {
    server: Server,
    conn: Conn,
    dice: StdRng,
    settings: Settings,
    /// The side of the square that the rows are in.
    square: f64,
}

impl Bench {
    fn fill(&mut self) {
        let sides = "RAND() * 10";
        let square = self.square;
        run(
            &mut self.conn,
            &[
                "CREATE TABLE made (id INT PRIMARY KEY, x DOUBLE, y DOUBLE, w DOUBLE, h DOUBLE) \
             ENGINE=MyISAM",
                &format!(
                    "INSERT INTO made SELECT seq, RAND({}) * {square}, RAND() * {square}, {sides}, \
                 {sides} FROM seq_1_to_{}",
                    1, self.settings.rows
                ),
            ],
        );
        for (table, engine) in TABLES {
            for table in [table.to_owned(), plain(table)] {
                run(
                    &mut self.conn,
                    &[
                        &format!(
                            "CREATE TABLE {table} (id INT PRIMARY KEY, g POLYGON NOT NULL) \
                             ENGINE={}",
                            engine.name()
                        ),
                        &copy_of_made(&table, 0, u32::MAX),
                    ],
                );
            }
        }
    }

    /// The same for both engines, the least of all turns each.
    fn by_turns(
        &mut self,
        turns: u32,
        mut statements: impl FnMut(&str, u32) -> Vec<String>,
    ) -> [Duration; 2] {
        let mut least = [Duration::MAX; 2];
        for turn in 0..turns {
            for ((table, _), least) in TABLES.iter().zip(&mut least) {
                let statements = statements(table, turn);
                *least = (*least).min(timed(&mut self.conn, &statements));
            }
        }
        least
    }

    fn build(&mut self) {
        let add = |table: &str, _| vec![format!("ALTER TABLE {table} ADD SPATIAL INDEX (g)")];
        let drop = |table: &str, _| vec![format!("ALTER TABLE {table} DROP INDEX g")];
        let before = self.sizes();
        let mut least = self.by_turns(1, add);
        let after = self.sizes();
        println!("| size, MB | {:.0} | {:.0} | |", after[0] - before[0], after[1] - before[1]);
        for _ in 1..self.settings.turns {
            self.by_turns(1, drop);
            let times = self.by_turns(1, add);
            least = [least[0].min(times[0]), least[1].min(times[1])];
        }
        show("ADD SPATIAL INDEX", least);
    }

    /// Megabytes on disk of both tables, with all pages written.
    fn sizes(&mut self) -> [f64; 2] {
        self.server.stop();
        self.server.restart();
        self.conn = self.server.connect_to("test");
        let ours = "SELECT DATA_LENGTH + INDEX_LENGTH FROM information_schema.TABLES \
                    WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = 't'";
        let file = self.server.data_dir().join("test/i.ibd");
        let theirs = std::fs::metadata(file).expect("InnoDB's file").len();
        [number(&mut self.conn, ours) as f64 / 1e6, theirs as f64 / 1e6]
    }

    fn write(&mut self) {
        let (rows, square) = (self.settings.rows, self.square);
        let mut dice = self.dice.clone();
        let mut place = move || {
            let (x, y) = (dice.random_range(0.0..square), dice.random_range(0.0..square));
            polygon(x, y, dice.random_range(0.0..SIDE_MAX), dice.random_range(0.0..SIDE_MAX))
        };
        let places: Vec<String> = (0..20_000).map(|_| place()).collect();
        let groups = |statements: Vec<String>, size: usize| -> Vec<String> {
            let mut all = Vec::new();
            for group in statements.chunks(size) {
                all.push("BEGIN".into());
                all.extend_from_slice(group);
                all.push("COMMIT".into());
            }
            all
        };
        let insert = |table: &str, n: usize, turn: u32| -> Vec<String> {
            let first = rows as usize + 1 + turn as usize * n;
            (0..n)
                .map(|at| format!("INSERT INTO {table} VALUES ({}, {})", first + at, places[at]))
                .collect()
        };
        let turns = self.settings.turns;
        let times = self.by_turns(turns, |table, turn| groups(insert(table, 5000, turn), 100));
        show("5,000 inserts, 100 a transaction", times);
        let times =
            self.by_turns(turns, |table, turn| groups(insert(&plain(table), 5000, turn), 100));
        show("the same without the index", times);
        let times = self.by_turns(turns, |table, turn| insert(table, 1000, turn + 1000));
        show("1,000 inserts, one a transaction", times);
        let times = self.by_turns(turns, |table, turn| insert(&plain(table), 1000, turn + 1000));
        show("the same without the index", times);
        let first = 10_000_000;
        let many = |table: &str, turn| vec![copy_of_made(table, first * (turn + 1), 50_000)];
        show("50,000 inserts by one statement", self.by_turns(turns, many));
        let update = |table: &str, turn: u32| -> Vec<String> {
            (0..2000)
                .map(|n| {
                    let id = 1 + (n * 331 + turn as usize) % rows as usize;
                    format!("UPDATE {table} SET g = {} WHERE id = {id}", places[5000 + n])
                })
                .collect()
        };
        let times = self.by_turns(turns, |table, turn| groups(update(table, turn), 100));
        show("2,000 updates that move a rectangle", times);
        let delete = |table: &str, turn: u32| -> Vec<String> {
            (0..2000)
                .map(|n| format!("DELETE FROM {table} WHERE id = {}", 1 + n * 331 + 100 + turn))
                .collect()
        };
        let times = self.by_turns(turns, |table, turn| groups(delete(table, turn), 100));
        show("2,000 deletes", times);
    }

    fn search(&mut self, wanted: &str, relation: &str, rows_wanted: f64) {
        // A window finds those that begin in it, and half a rectangle around it.
        let side = ((rows_wanted / DENSITY).sqrt() - SIDE_MAX / 2.0).max(0.0);
        let queries = self.settings.queries;
        let square = self.square - side;
        let mut corner =
            || (self.dice.random_range(0.0..square), self.dice.random_range(0.0..square));
        let corners: Vec<(f64, f64)> = (0..queries).map(|_| corner()).collect();
        let query = |table: &str, (x, y): (f64, f64)| {
            let window = match side {
                0.0 => format!("POINT({x}, {y})"),
                side => polygon(x, y, side, side),
            };
            format!("SELECT {wanted} FROM {table} FORCE INDEX (g) WHERE {relation}(g, {window})")
        };
        let count = |conn: &mut Conn, table: &str| -> i64 {
            corners
                .iter()
                .map(|at| number(conn, &query(table, *at).replace(wanted, "COUNT(*)")))
                .sum()
        };
        let [ours, theirs] = TABLES.map(|(table, _)| count(&mut self.conn, table));
        assert_eq!(ours, theirs, "{}", query("t", corners[0]));
        let all = |table: &str, _| corners.iter().map(|at| query(table, *at)).collect();
        let times = self.by_turns(self.settings.turns, all).map(|time| time / queries);
        show(&format!("{relation}, {:.1} rows", ours as f64 / f64::from(queries)), times);
    }
}

fn main() -> ExitCode {
    command_line::main(USAGE, settings(), measure)
}

/// Measures all. It panics where the engines differ.
fn measure(&settings: &Settings) -> bool {
    let options = Options::new("spatial-windows")
        .engine(Engine::Tidepool)
        .arg("--tidepool-buffer-pool-size=1G")
        .arg("--innodb-buffer-pool-size=1G")
        .arg("--innodb-log-file-size=256M");
    let server = Server::start(options);
    let square = (f64::from(settings.rows) / DENSITY).sqrt();
    let (conn, dice) = (server.connect_to("test"), StdRng::seed_from_u64(1));
    let mut bench = Bench { server, conn, dice, settings, square };
    println!("| | Tidepool | InnoDB | ratio |\n|---|--:|--:|--:|");
    bench.fill();
    bench.build();
    for rows_wanted in [0.0, 1.0, 10.0, 100.0, 1000.0, 10_000.0] {
        bench.search("COUNT(*)", "MBRIntersects", rows_wanted);
    }
    for rows_wanted in [10.0, 1000.0] {
        bench.search("COUNT(*)", "MBRWithin", rows_wanted);
        bench.search("COUNT(*)", "ST_Intersects", rows_wanted);
    }
    bench.search("COUNT(*)", "MBRContains", 0.0);
    bench.write();
    bench.search("COUNT(*)", "MBRIntersects", 100.0);
    true
}
