//! The `information_schema` tables `TIDEPOOL_*`: what they say right after known operations, to whom, and under load.

use std::sync::atomic::{AtomicBool, Ordering};

use mysql::prelude::Queryable;
use mysql::{Conn, Row};
use tidepool_tests::server::{Engine, Options, Server, connect_to_socket};

/// Tables of the library, beside the engine itself.
const TABLES: [&str; 2] = ["TIDEPOOL_BUFFER_POOL", "TIDEPOOL_BUFFER_POOL_BY_INDEX"];
const POOL_SIZE_BYTES: u64 = 64 << 20;

fn start(name: &str) -> Server {
    let options = Options::new(name).engine(Engine::Tidepool);
    Server::start(options.arg(Engine::Tidepool.pool_size_option(POOL_SIZE_BYTES)))
}

fn run(conn: &mut Conn, sql: &str) {
    conn.query_drop(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

fn number(conn: &mut Conn, sql: &str) -> f64 {
    let row: Option<f64> = conn.query_first(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    row.unwrap_or_else(|| panic!("{sql}: no row"))
}

fn status(conn: &mut Conn, name: &str) -> u64 {
    let row: Option<(String, u64)> =
        conn.query_first(format!("SHOW GLOBAL STATUS LIKE 'Tidepool_{name}'")).expect("a status");
    row.unwrap_or_else(|| panic!("no status variable Tidepool_{name}")).1
}

/// A table of `rows` rows of about 200 bytes, with a secondary index.
fn make_table(conn: &mut Conn, table: &str, rows: u64) {
    run(
        conn,
        &format!("CREATE TABLE {table} (id INT PRIMARY KEY, k INT, pad CHAR(180), KEY by_k (k))"),
    );
    run(
        conn,
        &format!(
            "INSERT INTO {table} SELECT seq, seq % 1000, REPEAT('x', 180) FROM seq_1_to_{rows}"
        ),
    );
}

#[test]
fn loading_the_library_brings_all_tables() {
    let server = start("i_s_load");
    let mut conn = server.connect();
    let found: Vec<String> = conn
        .query("SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'TIDEPOOL%' ORDER BY 1")
        .expect("the list of tables can be read");
    assert_eq!(found, TABLES);
}

#[test]
fn the_buffer_pool_says_its_size_and_what_is_in_it() {
    let server = start("i_s_pool");
    let mut conn = server.connect_to("test");
    make_table(&mut conn, "t", 20_000);
    let pool: Row = conn
        .query_first("SELECT * FROM information_schema.TIDEPOOL_BUFFER_POOL")
        .expect("a select works")
        .expect("there is a row");
    let number =
        |name: &str| pool.get::<u64, _>(name).unwrap_or_else(|| panic!("{name}: {pool:?}"));
    assert_eq!(pool.get::<String, _>("STATE").as_deref(), Some("idle"), "{pool:?}");
    assert_eq!(number("SIZE_BYTES"), POOL_SIZE_BYTES);
    assert_eq!(number("TARGET_BYTES"), POOL_SIZE_BYTES);
    assert_eq!(number("PAGES_TOTAL") * number("PAGE_SIZE"), POOL_SIZE_BYTES);
    assert_eq!(number("PAGES_FREE") + number("PAGES_DATA"), number("PAGES_TOTAL"));
    // 20,000 rows of 200 bytes are 4 MB at least, and all of them are there.
    let data = number("PAGES_DATA") * number("PAGE_SIZE");
    assert!((4 << 20..POOL_SIZE_BYTES).contains(&data), "{pool:?}");
    assert!((data..=POOL_SIZE_BYTES).contains(&number("RESIDENT_BYTES")), "{pool:?}");
    assert!(!pool.get::<String, _>("WHY").expect("a reason").is_empty());
    let hits: f64 = pool.get("HIT_RATIO").expect("there were accesses");
    assert!((0.5..=1.0).contains(&hits), "{pool:?}");
}

#[test]
fn pages_are_counted_by_index() {
    let mut server = start("i_s_by_index");
    let mut conn = server.connect_to("test");
    make_table(&mut conn, "t", 20_000);
    make_table(&mut conn, "u", 10);
    let of_t = "SELECT INDEX_NAME, PAGES, MB, MB_HOT + MB_COLD - MB, MB_DIRTY
                FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX
                WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = 't' ORDER BY INDEX_NAME";
    type Line = (Option<String>, u64, f64, f64, f64);
    let before: Vec<Line> = conn.query(of_t).expect("a select works");
    let names: Vec<_> = before.iter().map(|line| line.0.as_deref()).collect();
    assert_eq!(names, [None, Some("by_k"), Some("PRIMARY")], "{before:?}");
    assert!(before[2].2 >= 4.0 && before[2].2 < 12.0, "{before:?}");
    assert!(before[1].2 > 0.1 && before[1].2 < before[2].2, "{before:?}");
    for line in &before {
        assert!((line.2 - line.1 as f64 / 64.0).abs() < 0.001, "16 KiB a page: {line:?}");
        assert!(line.3.abs() < 0.0015 && line.4 <= line.2, "{line:?}");
    }
    // The sum is what the pool says of itself, but for pages that come and go meanwhile.
    let sum = number(
        &mut conn,
        "SELECT SUM(PAGES) FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX",
    );
    let all = status(&mut conn, "buffer_pool_pages_data") as f64;
    assert!((sum - all).abs() <= 10.0, "{sum} pages by index, {all} in all");

    // After a restart nothing of it is there; then exactly what was read.
    server.restart_with(&[&Engine::Tidepool.pool_size_option(POOL_SIZE_BYTES)]);
    let mut conn = server.connect_to("test");
    run(&mut conn, "SELECT COUNT(k) FROM t FORCE INDEX (by_k) WHERE k >= 0");
    let after: Vec<Line> = conn.query(of_t).expect("a select works");
    let pages = |name: &str| {
        after.iter().find(|line| line.0.as_deref() == Some(name)).map_or(0, |line| line.1)
    };
    assert_eq!(pages("by_k"), before[1].1, "{after:?}");
    assert!(pages("PRIMARY") * 4 < before[2].1, "only read by the way: {after:?}");
    assert_eq!(after.iter().map(|line| line.4).sum::<f64>(), 0.0, "clean: {after:?}");

    run(&mut conn, "DROP TABLE t");
    assert_eq!(conn.query::<Line, _>(of_t).expect("a select works"), []);
}

#[test]
fn names_are_told_as_the_user_wrote_them() {
    let server = start("i_s_names");
    let mut conn = server.connect();
    let schema = "dä-t#a.b";
    let long = "ü".repeat(64);
    let tables = ["a b", "x/y", "quo'te", "#hash", "MiXed", "100% ¼", long.as_str(), "`tick`"];
    run(&mut conn, &format!("CREATE DATABASE `{schema}`"));
    for table in tables {
        let quoted = table.replace('`', "``");
        run(&mut conn, &format!("CREATE TABLE `{schema}`.`{quoted}` (a INT, KEY `ke y'ä` (a))"));
        run(&mut conn, &format!("INSERT INTO `{schema}`.`{quoted}` VALUES (1)"));
    }
    run(
        &mut conn,
        &format!(
            "CREATE TABLE `{schema}`.p (a INT PRIMARY KEY) PARTITION BY HASH (a) PARTITIONS 2"
        ),
    );
    run(&mut conn, &format!("INSERT INTO `{schema}`.p VALUES (1), (2)"));
    let found: Vec<(String, String)> = conn
        .exec(
            "SELECT TABLE_NAME, INDEX_NAME FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX
             WHERE TABLE_SCHEMA = ? AND INDEX_NAME IS NOT NULL",
            (schema,),
        )
        .expect("a select works");
    for table in tables {
        let indexes: Vec<&str> =
            found.iter().filter(|row| row.0 == table).map(|row| row.1.as_str()).collect();
        assert_eq!(indexes, ["#row_id", "ke y'ä"], "{table}: {found:?}");
    }
    for partition in ["p#P#p0", "p#P#p1"] {
        assert!(found.contains(&(partition.into(), "PRIMARY".into())), "{found:?}");
    }
    assert_eq!(found.len(), 2 * tables.len() + 2, "{found:?}");
}

/// As of InnoDB's tables: the very same answer, whatever that is.
#[test]
fn without_the_privilege_nothing_is_told() {
    let server = start("i_s_privilege");
    let mut root = server.connect();
    run(&mut root, "CREATE USER nobody@localhost");
    let answer = |table: &str| -> String {
        let output = server
            .client("CLIENT")
            .args(["--user=nobody", "--show-warnings", "--batch", "-e"])
            .arg(format!("SELECT COUNT(*) FROM information_schema.{table}"))
            .output()
            .expect("the client can be run");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).replace(table, "…")
    };
    let of_innodb = answer("INNODB_TRX");
    assert!(of_innodb.contains("PROCESS"), "{of_innodb}");
    for table in TABLES {
        assert_eq!(answer(table), of_innodb, "{table}");
    }
    run(&mut root, "GRANT PROCESS ON *.* TO nobody@localhost");
    for table in TABLES {
        let allowed = answer(table);
        assert!(!allowed.contains("PROCESS"), "{table}: {allowed}");
    }
}

/// Tells the other threads to stop, whatever becomes of this one.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reading the tables again and again harms nobody: writers, definition changes, and a pool too small for the data.
#[test]
fn the_tables_can_be_read_under_load() {
    let server = start("i_s_load_test");
    let mut conn = server.connect_to("test");
    make_table(&mut conn, "t", 20_000);
    let socket = server.socket().to_path_buf();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connect = || connect_to_socket(&socket, "test").expect("the server is there");
        for worker in 0..3 {
            let mut conn = connect();
            let done = &done;
            scope.spawn(move || {
                for round in 0u64.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let id = 1 + (round * 7919 + worker) % 20_000;
                    run(
                        &mut conn,
                        &format!("UPDATE t SET k = k + 1, pad = MD5({round}) WHERE id = {id}"),
                    );
                }
            });
        }
        let mut definer = connect();
        let done = &done;
        scope.spawn(move || {
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                run(
                    &mut definer,
                    &format!("CREATE OR REPLACE TABLE short_lived (a INT) SELECT {round} AS a"),
                );
                run(&mut definer, "TRUNCATE TABLE short_lived");
            }
        });
        let _stop = Stop(done);
        let mut reader = connect();
        for _ in 0..100 {
            for table in TABLES {
                let rows: Vec<Row> = reader
                    .query(format!("SELECT * FROM information_schema.{table}"))
                    .unwrap_or_else(|error| panic!("{table}: {error}"));
                assert!(!rows.is_empty() || !table.starts_with("TIDEPOOL_BUFFER_POOL"), "{table}");
            }
        }
    });
    let check: Vec<(String, String, String, String)> =
        conn.query("CHECK TABLE t EXTENDED").expect("a check works");
    assert_eq!(check.last().map(|row| row.3.as_str()), Some("OK"), "{check:?}");
}
