//! Rows that the server refuses after the engine has written them: by the hash of a UNIQUE over a
//! TEXT, or a period WITHOUT OVERLAPS.

use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check, code_of, number, run, sorted_rows};

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

/// The engine refuses a row for its own unique keys, and only then does the server compare hashes:
/// REPLACE deletes every row that is in the new one's way.
#[test]
fn a_row_takes_the_place_of_all_that_have_its_keys() {
    let server = Server::start(Options::new("refused_replaced").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    let statements = [
        "REPLACE INTO # VALUES (1, 'y', 9, 9)",
        "REPLACE INTO # VALUES (3, 'q', 4, 5)",
        "REPLACE INTO # VALUES (2, 'x', 1, 1), (7, 'x', 9, 4)",
        "REPLACE INTO # VALUES (4, 'w', 8, NULL), (4, 'v', 8, NULL), (5, 'w', 3, 7)",
        "REPLACE INTO # SELECT id + 1, a, b, c + 1 FROM #",
        "REPLACE INTO # SELECT 7 - id, a, b, c FROM # WHERE id < 7",
        "REPLACE INTO # (id, a, b, c) VALUES (1, NULL, 1, 1), (2, NULL, 2, 1)",
        "INSERT IGNORE INTO # VALUES (1, 'n', 90, 90), (90, 'w', 91, 91), (92, 'n', 1, 92)",
    ];
    let keys = [
        ("PRIMARY KEY (id), UNIQUE (a)", ""),
        ("UNIQUE (a), UNIQUE (b), PRIMARY KEY (id), UNIQUE (c)", ""),
        ("UNIQUE (a), UNIQUE (b) USING HASH, UNIQUE (c)", ""),
        ("UNIQUE (a, id), UNIQUE (id)", ""),
        ("UNIQUE (id), UNIQUE (id, a)", "PARTITION BY HASH (id) PARTITIONS 3"),
        ("PRIMARY KEY (id), UNIQUE (id, a)", "PARTITION BY HASH (id) PARTITIONS 3"),
    ];
    for (keys, partitions) in keys {
        for trigger in ["", "BEFORE DELETE", "AFTER DELETE"] {
            for (table, engine) in [("t", Engine::Tidepool), ("i", Engine::InnoDb)] {
                let create = format!(
                    "CREATE OR REPLACE TABLE {table} (id INT, a TEXT, b INT, c INT, {keys}) \
                     ENGINE={} {partitions}",
                    engine.name()
                );
                let fill = format!(
                    "INSERT INTO {table} VALUES (1, 'x', 1, 1), (2, 'y', 2, 2), \
                     (3, 'z', 3, 3), (4, 'w', 4, 4), (5, 'v', 5, 5)"
                );
                run(&mut conn, &[&create, &fill]);
                if !trigger.is_empty() {
                    run(
                        &mut conn,
                        &[&format!(
                            "CREATE TRIGGER {table}_d {trigger} ON {table} FOR EACH ROW \
                             SET @gone = OLD.id"
                        )],
                    );
                }
            }
            for statement in statements {
                let left = ["t", "i"].map(|table| {
                    let code = code_of(&mut conn, &statement.replace('#', table));
                    check(&mut conn, table);
                    (code, sorted_rows(&mut conn, &format!("SELECT * FROM {table}")))
                });
                assert_eq!(left[0], left[1], "{keys} {partitions} {trigger}: {statement}");
                assert_eq!(left[0].0, 0, "{statement}");
            }
        }
    }
}

/// Of several rows that are in its way, an upsert changes the one with the first of the table's
/// keys, and the server comes to hashes last. InnoDB does so at low isolation levels alone.
#[test]
fn an_upsert_changes_the_row_with_the_first_of_its_keys() {
    let server = Server::start(Options::new("refused_upserts").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    let levels = [
        ("READ UNCOMMITTED", true),
        ("READ COMMITTED", true),
        ("REPEATABLE READ", false),
        ("SERIALIZABLE", false),
    ];
    for (level, same) in levels {
        let [ours, theirs] = [Engine::Tidepool, Engine::InnoDb].map(|engine| {
            let create = format!(
                "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, a TEXT, n INT DEFAULT 0, UNIQUE \
                 (a)) ENGINE={}",
                engine.name()
            );
            run(
                &mut conn,
                &[
                    &format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}"),
                    &create,
                    "INSERT INTO t (id, a) VALUES (1, 'x'), (2, 'y')",
                    "INSERT INTO t (id, a) VALUES (1, 'y') ON DUPLICATE KEY UPDATE n = n + 1",
                    "INSERT INTO t (id, a) VALUES (3, 'y') ON DUPLICATE KEY UPDATE n = n + 10",
                ],
            );
            let rows: Vec<(u32, u32)> =
                conn.query("SELECT id, n FROM t ORDER BY id").expect("rows");
            rows
        });
        assert_eq!(ours, [(1, 1), (2, 10)], "{level}");
        assert_eq!(ours == theirs, same, "{level}: {theirs:?}");
    }
}
