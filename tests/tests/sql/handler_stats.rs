//! What a statement took of the engine, as the server shows it: ANALYZE FORMAT=JSON, the slow log.

use std::fs;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::run;

/// The sum of a figure in all tables' `r_engine_stats`.
fn engine_stats(conn: &mut Conn, statement: &str, figure: &str) -> u64 {
    let text: String = conn
        .query_first(format!("ANALYZE FORMAT=JSON {statement}"))
        .expect("a plan")
        .expect("one row");
    assert!(text.contains("r_engine_stats"), "{text}");
    let name = format!("\"{figure}\": ");
    let values = text.split(&name).skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).expect("JSON goes on");
        rest[..end].parse::<u64>().expect("a number")
    });
    values.sum()
}

#[test]
fn a_statement_shows_the_pages_that_it_took() {
    let options = Options::new("handler_stats").engine(Engine::Tidepool);
    let server = Server::start(
        options
            .arg("--tidepool-buffer-pool-size=16M")
            .arg("--slow-query-log=1")
            .arg("--slow-query-log-file=slow.log")
            .arg("--log-output=FILE"),
    );
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(900), k INT, KEY (k))",
            // Twice the pool.
            "INSERT INTO t SELECT seq, REPEAT(MD5(seq), 28), seq % 10 FROM seq_1_to_40000",
            "CREATE TABLE p (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 4",
            "INSERT INTO p SELECT seq, seq FROM seq_1_to_1000",
        ],
    );
    // The first plan of a table samples its statistics.
    engine_stats(&mut conn, "SELECT v FROM t WHERE id = 7", "pages_accessed");
    let point = engine_stats(&mut conn, "SELECT v FROM t WHERE id = 7", "pages_accessed");
    assert!((2..20).contains(&point), "{point} pages for a point read");
    let all = "SELECT SUM(LENGTH(v)) FROM t";
    let scan = engine_stats(&mut conn, all, "pages_accessed");
    assert!(scan > 2_300, "{scan} pages for a scan of 2,300 leaves or more");
    let read = engine_stats(&mut conn, all, "pages_read_count")
        + engine_stats(&mut conn, all, "pages_prefetch_read_count");
    assert!(read > 1_000, "{read} pages were read of a table twice as large as the pool");
    let partitions = engine_stats(&mut conn, "SELECT SUM(v) FROM p", "pages_accessed");
    assert!(partitions >= 4, "{partitions} pages of four partitions");
    let update = "UPDATE t SET k = k + 1 WHERE id BETWEEN 1 AND 100";
    let updated = engine_stats(&mut conn, update, "pages_updated");
    assert!(updated >= 200, "{updated} changes of pages for 100 rows in two indexes");

    // An older version costs the reading of undo records.
    let mut other = server.connect_to("test");
    let snapshot = "START TRANSACTION WITH CONSISTENT SNAPSHOT";
    run(&mut conn, &[snapshot]);
    run(&mut other, &["UPDATE t SET v = REVERSE(v) WHERE id <= 50"]);
    let older = "SELECT SUM(LENGTH(v)) FROM t WHERE id <= 50";
    let undo = engine_stats(&mut conn, older, "old_rows_read");
    assert!(undo >= 50, "{undo} undo records for 50 rows that were changed since");
    run(&mut conn, &["COMMIT", "SET long_query_time = 0, log_slow_verbosity = 'engine'", all]);
    // The server answers before it writes the log.
    let mut line = String::new();
    wait_until(Duration::from_secs(60), "the slow log has the statement", || {
        let log = fs::read_to_string(server.data_dir().join("slow.log")).expect("the slow log");
        let found = log.lines().rfind(|line| line.starts_with("# Pages_accessed:"));
        line = found.unwrap_or_default().to_owned();
        !line.is_empty()
    });
    let pages: u64 = line.split_whitespace().nth(2).expect("a number").parse().expect("a number");
    assert!(pages > 2_300, "{line}");
}
