//! Statements that find rows by MATCH or in a window, and lock them, beside others that change
//! rows: each row that matches all the time is met, or the statement ends with an error. And the
//! error is for nothing else.

use std::thread;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Options, Server, wait_until};
use tidepool_tests::sql::{check, number, run};

const CHECKREAD: u16 = 1020;
const OUT_OF_RESOURCES: u16 = 1041;
/// Nothing here takes long.
const PATIENCE: Duration = Duration::from_secs(60);

const LEVELS: [&str; 3] = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ"];

/// Of the rows 1 to 60, those match that 3 does not divide.
const FILL: &str = "INSERT INTO t SELECT seq, IF(seq % 3, 'alpha', 'beta'), \
    IF(seq % 3, POINT(1, 1), POINT(50, 50)), seq, 0 FROM seq_1_to_60";
const MATCHING: u64 = 40;
const A_MATCH: &str = "'alpha', POINT(1, 1), 7, 0";
const NO_MATCH: &str = "'beta', POINT(50, 50), 7, 0";

/// The rows that are read are those that the index finds.
const BY_SEARCH: [&str; 9] = [
    "SELECT id + v * 0 FROM t WHERE MATCH (a) AGAINST ('alpha') FOR UPDATE",
    "SELECT id + v * 0 FROM t WHERE MATCH (a) AGAINST ('+alpha' IN BOOLEAN MODE) \
     LOCK IN SHARE MODE",
    "UPDATE t JOIN (SELECT 1) AS one SET v = v + 1 WHERE MATCH (a) AGAINST ('alpha')",
    "DELETE t FROM t JOIN (SELECT 1) AS one WHERE MATCH (a) AGAINST ('alpha')",
    "SELECT id + v * 0 FROM t FORCE INDEX (g) WHERE MBRWithin(g, @w) FOR UPDATE",
    "SELECT id + v * 0 FROM t FORCE INDEX (g) WHERE ST_Intersects(g, @w) LOCK IN SHARE MODE",
    // An index merge reads keys alone at first.
    "SELECT id + v * 0 FROM t FORCE INDEX (g, k) WHERE MBRWithin(g, @w) OR k = -1 \
     LOCK IN SHARE MODE",
    "UPDATE t FORCE INDEX (g) SET v = v + 1 WHERE MBRWithin(g, @w)",
    "DELETE t FROM t FORCE INDEX (g) WHERE MBRWithin(g, @w)",
];

/// The rows that are read are all of the table, or of another index, and the search says which of
/// them match.
const BESIDE_SEARCH: [&str; 3] = [
    "UPDATE t SET v = v + 1 WHERE MATCH (a) AGAINST ('alpha')",
    "DELETE FROM t WHERE MATCH (a) AGAINST ('alpha')",
    "SELECT id + v * 0 FROM t FORCE INDEX (k) WHERE k >= 0 AND MATCH (a) AGAINST ('alpha') * 1 > 0 \
     FOR UPDATE",
];

fn server(name: &str) -> Server {
    let server = Server::start(Options::new(name));
    run(
        &mut server.connect_to("test"),
        &["CREATE TABLE t (id INT PRIMARY KEY, a TEXT, g POINT NOT NULL, k INT, v INT, \
             FULLTEXT (a), SPATIAL g (g), KEY k (k))"],
    );
    server
}

/// A session of this isolation level that knows the window.
fn session(server: &Server, level: &str) -> Conn {
    let mut conn = server.connect_to("test");
    let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
    let window = "SET @w = ST_GeomFromText('POLYGON((0 0,9 0,9 9,0 9,0 0))')";
    run(&mut conn, &[&set, window]);
    conn
}

/// What became of a statement: the error's code, or how many rows it has changed or given.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Error(u16),
    Rows(u64),
}

fn outcome(conn: &mut Conn, statement: &str) -> Outcome {
    let result = if statement.starts_with("SELECT") {
        conn.query::<i64, _>(statement).map(|ids| ids.len() as u64)
    } else {
        conn.query_drop(statement).map(|()| conn.affected_rows())
    };
    match result {
        Ok(rows) => Outcome::Rows(rows),
        // The server forgets why an index merge failed.
        Err(mysql::Error::MySqlError(error)) if error.code == OUT_OF_RESOURCES => {
            assert!(statement.contains(" OR k = "), "{statement}: {error}");
            Outcome::Error(CHECKREAD)
        }
        Err(mysql::Error::MySqlError(error)) => Outcome::Error(error.code),
        Err(error) => panic!("{statement}: {error}"),
    }
}

fn fill(conn: &mut Conn) {
    run(conn, &["DELETE FROM t", FILL]);
}

/// The statement begins, and waits for the row 31, which another transaction has changed, then
/// changes like this, and commits after `changes` of others are committed. What becomes of the
/// statement.
fn race(
    server: &Server,
    level: &str,
    sql: &str,
    holder_does: &[&str],
    changes: &[&str],
) -> Outcome {
    let (mut holder, mut other) = (server.connect_to("test"), server.connect_to("test"));
    fill(&mut holder);
    run(&mut holder, &["BEGIN", "UPDATE t SET v = v + 100 WHERE id = 31"]);
    thread::scope(|scope| {
        let statement = scope.spawn(|| {
            let mut conn = session(server, level);
            outcome(&mut conn, sql)
        });
        let waits =
            "SELECT COUNT(*) FROM information_schema.TIDEPOOL_TRX WHERE trx_state = 'LOCK WAIT'";
        wait_until(PATIENCE, "the statement waits", || {
            statement.is_finished() || number(&mut other, waits) == 1
        });
        if statement.is_finished() {
            panic!("{level}: {sql} did not wait: {:?}", statement.join());
        }
        run(&mut other, changes);
        run(&mut holder, holder_does);
        run(&mut holder, &["COMMIT"]);
        statement.join().expect("the statement's thread")
    })
}

#[test]
fn a_search_misses_no_row_whose_primary_key_changes() {
    let server = server("searches_of_moved_rows");
    let comes_beta = format!("INSERT INTO t VALUES (50, {NO_MATCH})");
    let comes_alpha = format!("INSERT INTO t VALUES (50, {A_MATCH})");
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["UPDATE t SET id = -5 WHERE id = 50"]),
        (&[], &["UPDATE t SET id = 500 WHERE id = 50"]),
        // The row that the statement waits for.
        (&["UPDATE t SET id = 500 WHERE id = 31"], &[]),
        // Another row comes to the place that the row has left, or comes and goes.
        (&[], &["UPDATE t SET id = -5 WHERE id = 50", &comes_beta]),
        (&[], &["UPDATE t SET id = 500 WHERE id = 50", &comes_alpha]),
        (
            &[],
            &["UPDATE t SET id = 500 WHERE id = 50", &comes_alpha, "DELETE FROM t WHERE id = 50"],
        ),
        // Two rows change places.
        (
            &[],
            &[
                "BEGIN",
                "UPDATE t SET id = 500 WHERE id = 50",
                "UPDATE t SET id = 50 WHERE id = 51",
                "UPDATE t SET id = 51 WHERE id = 500",
                "COMMIT",
            ],
        ),
    ];
    for level in LEVELS {
        for (sql, (holder_does, changes)) in
            BY_SEARCH.iter().flat_map(|sql| cases.iter().map(move |case| (sql, case)))
        {
            let outcome = race(&server, level, sql, holder_does, changes);
            assert_eq!(
                outcome,
                Outcome::Error(CHECKREAD),
                "{level}: {sql}: {holder_does:?} {changes:?}"
            );
        }
    }
    check(&mut server.connect_to("test"), "t");
}

/// The search has not found the row where it is by now.
#[test]
fn a_row_that_moves_beside_a_search_is_met_where_the_statement_reads_on() {
    let server = server("searches_beside_moved_rows");
    for (level, sql) in LEVELS.into_iter().flat_map(|level| BESIDE_SEARCH.map(|sql| (level, sql))) {
        for (change, expected) in [
            ("UPDATE t SET id = 500, k = 500 WHERE id = 50", Outcome::Rows(MATCHING)),
            ("UPDATE t SET id = -5, k = 5 WHERE id = 50", Outcome::Error(CHECKREAD)),
        ] {
            let outcome = race(&server, level, sql, &[], &[change]);
            assert_eq!(outcome, expected, "{level}: {sql}: {change}");
        }
    }
    check(&mut server.connect_to("test"), "t");
}

/// At REPEATABLE READ, too: the statement has no snapshot.
#[test]
fn a_search_fails_for_no_change_by_which_it_misses_no_row() {
    let server = server("searches_beside_changes");
    let comes_alpha = format!("INSERT INTO t VALUES (50, {A_MATCH})");
    let replaced = format!("REPLACE INTO t VALUES (50, {A_MATCH})");
    let (new_beta, new_alpha) = (
        format!("INSERT INTO t VALUES (100, {NO_MATCH})"),
        format!("INSERT INTO t VALUES (100, {A_MATCH})"),
    );
    let everywhere: &[(&[&str], u64)] = &[
        (&[], MATCHING),
        (&["DELETE FROM t WHERE id = 50"], MATCHING - 1),
        (&["UPDATE t SET v = 7 WHERE id = 50"], MATCHING),
        (&["UPDATE t SET a = 'gamma', g = POINT(20, 20) WHERE id = 50"], MATCHING - 1),
        (&["UPDATE t SET a = 'gamma alpha', g = POINT(2, 2) WHERE id = 50"], MATCHING),
        (&[&replaced], MATCHING),
        (&["UPDATE t SET v = 7 WHERE id = 51"], MATCHING),
        (&["DELETE FROM t WHERE id = 51", &new_beta], MATCHING),
        // Of another row.
        (&["UPDATE t SET id = 501, k = 501 WHERE id = 51"], MATCHING),
    ];
    let by_search: &[(&[&str], u64)] = &[
        (&["UPDATE t SET id = -5 WHERE id = 51"], MATCHING),
        // The row is deleted. Another one moves.
        (
            &["DELETE FROM t WHERE id = 50", &comes_alpha, "UPDATE t SET id = -5 WHERE id = 50"],
            MATCHING - 1,
        ),
        // What came later may be left out.
        (&[&new_alpha], MATCHING),
    ];
    let by_other_index: &[(&[&str], u64)] = &[
        (&["DELETE FROM t WHERE id = 50"], MATCHING - 1),
        (&["UPDATE t SET a = 'gamma' WHERE id = 50"], MATCHING - 1),
        (&["UPDATE t SET a = 'gamma alpha' WHERE id = 50"], MATCHING),
        (&["UPDATE t SET a = 'alpha' WHERE id = 51"], MATCHING + 1),
        (&["UPDATE t SET id = 501, k = 501 WHERE id = 51"], MATCHING),
    ];
    // Here it is met.
    let beside_search: &[(&[&str], u64)] = &[
        (&[&new_alpha], MATCHING + 1),
        (&["UPDATE t SET a = 'alpha' WHERE id = 51"], MATCHING + 1),
    ];
    let all = |statements: &[&'static str], cases: &'_ [(&[&str], u64)]| {
        for level in LEVELS {
            for (sql, (changes, expected)) in
                statements.iter().flat_map(|sql| cases.iter().map(move |case| (sql, case)))
            {
                let outcome = race(&server, level, sql, &[], changes);
                assert_eq!(outcome, Outcome::Rows(*expected), "{level}: {sql}: {changes:?}");
            }
        }
    };
    all(&BY_SEARCH, everywhere);
    all(&BY_SEARCH, by_search);
    all(&BESIDE_SEARCH[..2], everywhere);
    all(&BESIDE_SEARCH[..2], beside_search);
    all(&BESIDE_SEARCH[2..], by_other_index);
    check(&mut server.connect_to("test"), "t");
}

/// What the search reads by is given up with the statement: consistent reads of the transaction see
/// what is committed when the first of them begins.
#[test]
fn a_search_that_locks_makes_no_snapshot() {
    let server = server("searches_without_snapshot");
    let mut other = server.connect_to("test");
    for sql in BY_SEARCH.iter().chain(&BESIDE_SEARCH) {
        fill(&mut other);
        let mut conn = session(&server, "REPEATABLE READ");
        run(&mut conn, &["BEGIN"]);
        assert_eq!(outcome(&mut conn, sql), Outcome::Rows(MATCHING), "{sql}");
        run(&mut other, &[&format!("INSERT INTO t VALUES (100, {A_MATCH})")]);
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t WHERE id = 100"), 1, "{sql}");
        run(&mut conn, &["ROLLBACK"]);
    }
}

/// A transaction that has a snapshot locks nothing that has changed since, and says so, be it that
/// a row has come, or has gone.
#[test]
fn a_search_leaves_out_nothing_that_the_snapshot_does_not_see() {
    let server = server("searches_after_snapshot");
    let mut other = server.connect_to("test");
    let new_alpha = format!("INSERT INTO t VALUES (100, {A_MATCH})");
    let new_beta = format!("INSERT INTO t VALUES (100, {NO_MATCH})");
    let mut after_snapshot = |sql: &str, change: &str| {
        fill(&mut other);
        let mut conn = session(&server, "REPEATABLE READ");
        run(&mut conn, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
        run(&mut other, &[change]);
        let outcome = outcome(&mut conn, sql);
        run(&mut conn, &["ROLLBACK"]);
        outcome
    };
    for sql in BY_SEARCH.iter().chain(&BESIDE_SEARCH) {
        for change in [
            &new_alpha,
            "UPDATE t SET a = 'alpha', g = POINT(1, 1) WHERE id = 51",
            "DELETE FROM t WHERE id = 50",
            "UPDATE t SET a = 'gamma', g = POINT(20, 20) WHERE id = 50",
            "UPDATE t SET id = 500 WHERE id = 50",
            "UPDATE t SET v = 1 WHERE id = 50",
        ] {
            assert_eq!(after_snapshot(sql, change), Outcome::Error(CHECKREAD), "{sql}: {change}");
        }
    }
    for sql in BY_SEARCH {
        for change in [
            &new_beta,
            "UPDATE t SET v = 1 WHERE id = 51",
            "UPDATE t SET id = 501 WHERE id = 51",
            "DELETE FROM t WHERE id = 51",
        ] {
            assert_eq!(after_snapshot(sql, change), Outcome::Rows(MATCHING), "{sql}: {change}");
        }
    }
    let mut conn = server.connect_to("test");
    run(&mut conn, &["SET GLOBAL tidepool_lost_update_check = OFF"]);
    for sql in BY_SEARCH.iter().chain(&BESIDE_SEARCH) {
        for (change, expected) in [
            (&new_alpha[..], MATCHING + 1),
            (&new_beta, MATCHING),
            ("UPDATE t SET a = 'alpha', g = POINT(1, 1) WHERE id = 51", MATCHING + 1),
            ("DELETE FROM t WHERE id = 50", MATCHING - 1),
            ("UPDATE t SET a = 'gamma', g = POINT(20, 20) WHERE id = 50", MATCHING - 1),
            ("UPDATE t SET id = 500 WHERE id = 50", MATCHING),
            ("UPDATE t SET v = 1 WHERE id = 50", MATCHING),
        ] {
            assert_eq!(after_snapshot(sql, change), Outcome::Rows(expected), "{sql}: {change}");
        }
    }
    run(&mut conn, &["SET GLOBAL tidepool_lost_update_check = ON"]);
    check(&mut conn, "t");
}
