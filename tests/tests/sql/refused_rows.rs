//! Rows that the server refuses after the engine has written them: by the hash of a UNIQUE over a
//! TEXT, or a period WITHOUT OVERLAPS.

use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check, number, run, sorted_rows};

/// In a function, the server does not roll the statement back whose error was handled.
#[test]
fn a_row_refused_after_its_write_does_not_stay() {
    let server = Server::start(Options::new("refused_rows"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (a TEXT, UNIQUE (a))",
            "INSERT INTO t VALUES ('x'), ('y')",
            "CREATE FUNCTION put() RETURNS INT MODIFIES SQL DATA BEGIN
                 DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
                 INSERT INTO t VALUES ('x');
                 UPDATE t SET a = 'x' WHERE a = 'y';
                 INSERT IGNORE INTO t VALUES ('y') ON DUPLICATE KEY UPDATE a = 'x';
                 RETURN 1;
             END",
        ],
    );
    assert_eq!(number(&mut conn, "SELECT put()"), 1);
    let rows: Vec<String> = conn.query("SELECT a FROM t ORDER BY a").expect("rows");
    assert_eq!(rows, ["x", "y"]);
    check(&mut conn, "t");
}

const HASHED: &str = "PARTITION BY HASH (id) PARTITIONS 4";

/// In a partitioned table the server says less to the engine.
#[test]
fn a_row_refused_after_its_write_does_not_stay_in_a_partition() {
    refused_rows_of_partitions(Options::new("refused_rows_of_partitions"));
}

#[test]
fn a_row_refused_after_its_write_does_not_stay_in_a_partition_beside_a_binary_log() {
    let options = Options::new("refused_rows_and_binary_log");
    refused_rows_of_partitions(options.arg("--log-bin").arg("--log-bin-trust-function-creators"));
}

fn refused_rows_of_partitions(options: Options) {
    let server = Server::start(options);
    let mut conn = server.connect_to("test");
    let bodies = [
        // A refused row is followed by nothing, by a read, by a write, by another refused one, by a
        // savepoint.
        "INSERT INTO t VALUES (3, 'x');",
        "INSERT INTO t VALUES (3, 'x'); SET seen = (SELECT COUNT(*) FROM t);",
        "INSERT INTO t VALUES (3, 'x'); INSERT INTO u VALUES (1);",
        "INSERT INTO t VALUES (3, 'z'), (4, 'x'), (5, 'w');",
        "INSERT INTO t VALUES (3, 'x'); INSERT INTO t VALUES (4, 'x'); INSERT INTO t VALUES (3, 'z');",
        "SAVEPOINT s; INSERT INTO t VALUES (3, 'x'); SAVEPOINT s; INSERT INTO t VALUES (4, 'z'); ROLLBACK TO s;",
        // In its partition, and to another one.
        "UPDATE t SET a = 'x' WHERE a = 'y';",
        "UPDATE t SET a = 'x', id = 3 WHERE a = 'y';",
        "UPDATE t SET a = 'x', id = 4 WHERE a = 'y'; SET seen = (SELECT COUNT(*) FROM t);",
        "UPDATE t SET a = 'z' ORDER BY id;",
        // The server takes back what it may itself.
        "INSERT IGNORE INTO t VALUES (3, 'x'), (4, 'z'), (5, 'y');",
        "INSERT IGNORE INTO t VALUES (3, 'z'), (4, 'x');",
        "INSERT INTO t VALUES (3, 'x') ON DUPLICATE KEY UPDATE id = 5;",
        "INSERT INTO t VALUES (3, 'x') ON DUPLICATE KEY UPDATE a = 'y';",
        "INSERT INTO t VALUES (3, 'x') ON DUPLICATE KEY UPDATE id = 4, a = 'y';",
        "INSERT INTO t VALUES (3, 'x') ON DUPLICATE KEY UPDATE id = 1;",
        "REPLACE INTO t VALUES (3, 'x'), (4, 'y'), (6, 'z');",
        // What is not refused stays.
        "INSERT INTO t VALUES (3, 'z'); DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (3, 'v');",
        "UPDATE t SET id = id + 5; UPDATE t SET id = 9 WHERE id = 7;",
        "INSERT INTO t VALUES (3, 'z'); SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062;",
        "DELETE FROM t; INSERT INTO t VALUES (3, 'x'); INSERT INTO u VALUES (1);",
    ];
    run(&mut conn, &["CREATE TABLE u (id INT)", "CREATE TABLE calls (id INT)"]);
    for body in bodies {
        let mut left = Vec::new();
        for (engine, partitions) in [
            (Engine::Tidepool, ""),
            (Engine::Tidepool, HASHED),
            (Engine::InnoDb, ""),
            (Engine::InnoDb, HASHED),
        ] {
            let handled = format!(
                "DECLARE seen INT;
                 DECLARE CONTINUE HANDLER FOR 1062 BEGIN END;
                 {body}"
            );
            run(
                &mut conn,
                &[
                    "DROP FUNCTION IF EXISTS put",
                    "DROP TRIGGER IF EXISTS put",
                    &format!(
                        "CREATE OR REPLACE TABLE t (id INT, a TEXT, UNIQUE (a)) ENGINE={} {partitions}",
                        engine.name()
                    ),
                    &format!(
                        "CREATE FUNCTION put() RETURNS INT MODIFIES SQL DATA BEGIN {handled} RETURN seen; END"
                    ),
                    &format!(
                        "CREATE TRIGGER put BEFORE INSERT ON calls FOR EACH ROW BEGIN {handled} END"
                    ),
                ],
            );
            let mut answers = Vec::new();
            for call in [
                &["SELECT put()"][..],
                &["INSERT INTO calls VALUES (1)"],
                &["INSERT INTO calls VALUES (1), (2)"],
                &["SELECT put() UNION ALL SELECT put()"],
                &["BEGIN", "INSERT INTO t VALUES (8, 'q')", "SELECT put()", "COMMIT"],
                &["BEGIN", "SELECT put()", "ROLLBACK"],
                &["LOCK TABLES t WRITE, u WRITE, calls WRITE", "SELECT put()", "UNLOCK TABLES"],
            ] {
                run(
                    &mut conn,
                    &["DELETE FROM t", "DELETE FROM u", "INSERT INTO t VALUES (1, 'x'), (2, 'y')"],
                );
                let codes: Vec<String> = call
                    .iter()
                    .map(|statement| match conn.query::<mysql::Row, _>(statement) {
                        Ok(found) => format!("{found:?}"),
                        Err(error) => error.to_string(),
                    })
                    .collect();
                answers.push((call, codes, sorted_rows(&mut conn, "SELECT id, a FROM t")));
            }
            check(&mut conn, "t");
            left.push(answers);
        }
        for (n, answers) in left[0].iter().enumerate() {
            assert_eq!(answers, &left[2][n], "not partitioned: {body}");
            assert_eq!(left[1][n], left[3][n], "partitioned: {body}");
        }
    }
}

#[test]
fn a_period_refused_after_its_write_does_not_stay_in_a_partition() {
    let server = Server::start(Options::new("refused_periods_of_partitions"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT, s DATE, e DATE, PERIOD FOR p (s, e), UNIQUE (id, p WITHOUT OVERLAPS))
             PARTITION BY HASH (id) PARTITIONS 4",
            "INSERT INTO t VALUES (1, '2020-01-01', '2020-03-01'), (2, '2020-02-01', '2020-04-01')",
            "CREATE FUNCTION put() RETURNS INT MODIFIES SQL DATA BEGIN
                 DECLARE CONTINUE HANDLER FOR 1062 BEGIN END;
                 INSERT INTO t VALUES (1, '2020-02-01', '2020-04-01');
                 UPDATE t SET id = 1 WHERE s = '2020-02-01';
                 RETURN 1;
             END",
        ],
    );
    let before = sorted_rows(&mut conn, "SELECT * FROM t");
    assert_eq!(number(&mut conn, "SELECT put()"), 1);
    assert_eq!(sorted_rows(&mut conn, "SELECT * FROM t"), before);
    check(&mut conn, "t");
}
