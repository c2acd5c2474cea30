//! Which rows READ COMMITTED keeps locked.

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};

fn run(conn: &mut Conn, statements: &[&str]) {
    for statement in statements {
        conn.query_drop(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

fn read_committed(server: &Server) -> Conn {
    let mut conn = server.connect_to("test");
    run(&mut conn, &["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"]);
    conn
}

/// Which rows another session finds not locked, by the index that `hint` forces.
fn free(server: &Server, hint: &str) -> Vec<i32> {
    let sql = format!("SELECT id FROM t {hint} WHERE a >= 0 FOR UPDATE SKIP LOCKED");
    let mut ids: Vec<i32> = read_committed(server).query(sql).expect("locked rows are skipped");
    ids.sort_unstable();
    ids
}

#[test]
fn a_row_that_does_not_match_is_locked_in_no_index() {
    // InnoDB keeps the locks of some of these.
    let server = Server::start(Options::new("unlock_row").engine(Engine::Tidepool));
    let mut conn = read_committed(&server);
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, c INT, KEY (a), UNIQUE (c))",
            "INSERT INTO t SELECT seq, seq DIV 2, seq % 3, seq FROM seq_1_to_12",
            "BEGIN",
            // Held before, so not given up by the scan.
            "SELECT * FROM t WHERE id = 5 FOR UPDATE",
            "UPDATE t FORCE INDEX (a) SET b = 10 WHERE a >= 0 AND b = 0",
        ],
    );
    let expected = [1, 2, 4, 7, 8, 10, 11];
    for hint in ["FORCE INDEX (PRIMARY)", "FORCE INDEX (a)"] {
        assert_eq!(free(&server, hint), expected, "{hint}");
    }
    run(&mut conn, &["ROLLBACK", "BEGIN", "DELETE FROM t WHERE c = 4 AND b = 0"]);
    run(
        &mut conn,
        &["UPDATE t FORCE INDEX (a) SET b = 11 WHERE a = 3 AND b = 0 ORDER BY b LIMIT 5"],
    );
    for hint in ["FORCE INDEX (PRIMARY)", "FORCE INDEX (a)", "FORCE INDEX (c)"] {
        let all: Vec<i32> = (1..13).filter(|id| *id != 6).collect();
        assert_eq!(free(&server, hint), all, "{hint}");
    }
    run(&mut conn, &["ROLLBACK"]);
}
