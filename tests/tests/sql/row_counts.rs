//! How many rows the optimizer takes a table to have, over crashes and clean stops.

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{number, run};

const ROWS: i64 = 900;

/// TABLE_ROWS, and the rows that EXPLAIN expects of a scan.
fn believed(conn: &mut Conn) -> [i64; 2] {
    let table_rows = "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_NAME = 't'";
    let plan: mysql::Row =
        conn.query_first("EXPLAIN SELECT * FROM t WHERE v > 0").expect("a plan").expect("a row");
    [number(conn, table_rows), plan.get::<i64, _>("rows").expect("an estimate")]
}

fn check_rows(server: &Server, expected: i64, when: &str) {
    for rows in believed(&mut server.connect_to("test")) {
        assert!((rows - expected).abs() <= expected / 10, "{when}: {rows} of {expected} rows");
    }
}

#[test]
fn a_table_keeps_its_row_count_over_a_crash_and_lives_that_do_not_use_it() {
    let mut server = Server::start(Options::new("row_counts").engine(Engine::Tidepool));
    run(
        &mut server.connect_to("test"),
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
            &format!("INSERT INTO t SELECT seq, seq FROM seq_1_to_{ROWS}"),
        ],
    );
    check_rows(&server, ROWS, "before");
    server.kill9();
    server.launch().expect("it recovers");
    // Twice without a look at the table.
    for _ in 0..2 {
        server.stop();
        server.launch().expect("it starts");
    }
    check_rows(&server, ROWS, "after a crash and clean stops");
    server.stop();
    server.launch().expect("it starts");
    check_rows(&server, ROWS, "after another one");
    // A count of an earlier life is not taken for the present one.
    run(
        &mut server.connect_to("test"),
        &[&format!("INSERT INTO t SELECT seq + {ROWS}, seq FROM seq_1_to_{ROWS}")],
    );
    server.kill9();
    server.launch().expect("it recovers");
    server.stop();
    server.launch().expect("it starts");
    check_rows(&server, 2 * ROWS, "after more rows and a crash");
}

#[test]
fn rows_prepared_before_a_restart_count_when_they_are_committed() {
    let mut server = Server::start(Options::new("row_counts_xa").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
            "INSERT INTO t SELECT seq, seq FROM seq_1_to_100",
            "XA START 'x'",
            &format!("INSERT INTO t SELECT seq + 100, seq FROM seq_1_to_{ROWS}"),
            "XA END 'x'",
            "XA PREPARE 'x'",
        ],
    );
    drop(conn);
    server.stop();
    server.launch().expect("it starts");
    check_rows(&server, 100, "prepared");
    run(&mut server.connect(), &["XA COMMIT 'x'"]);
    check_rows(&server, 100 + ROWS, "committed");
    server.stop();
    server.launch().expect("it starts");
    check_rows(&server, 100 + ROWS, "committed and started again");
}
