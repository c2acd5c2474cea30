//! The simplest promises: what is written is read, and a restart or a crash changes nothing.

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Options, Server};

type Person = (i64, String, Option<i64>);

fn people(conn: &mut Conn) -> Vec<Person> {
    conn.query("SELECT id, name, age FROM person ORDER BY id").expect("a select works")
}

fn person(id: i64, name: &str, age: Option<i64>) -> Person {
    (id, name.to_string(), age)
}

fn create(conn: &mut Conn) {
    conn.query_drop(
        "CREATE TABLE person (
            id BIGINT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(100) NOT NULL, age INT, KEY by_age (age, name))",
    )
    .expect("a table can be created");
}

fn fill(conn: &mut Conn) -> Vec<Person> {
    conn.query_drop(
        "INSERT INTO person (name, age) VALUES ('Ada', 36), ('Grace', 85), ('Edsger', NULL)",
    )
    .expect("rows can be inserted");
    vec![person(1, "Ada", Some(36)), person(2, "Grace", Some(85)), person(3, "Edsger", None)]
}

#[test]
fn the_default_engine_is_the_one_under_test() {
    let server = Server::start(Options::new("default_engine"));
    let mut conn = server.connect_to("test");
    create(&mut conn);
    let engine: Option<String> = conn
        .query_first("SELECT engine FROM information_schema.tables WHERE table_name = 'person'")
        .expect("the schema can be read");
    assert_eq!(engine.as_deref(), Some(server.engine().name()));
}

#[test]
fn rows_are_inserted_read_updated_and_deleted() {
    let server = Server::start(Options::new("rows"));
    let mut conn = server.connect_to("test");
    create(&mut conn);
    let mut expected = fill(&mut conn);
    assert_eq!(people(&mut conn), expected);

    conn.query_drop("UPDATE person SET age = 72 WHERE name = 'Edsger'").expect("an update works");
    expected[2].2 = Some(72);
    assert_eq!(people(&mut conn), expected);

    conn.query_drop("DELETE FROM person WHERE age > 80").expect("a delete works");
    expected.remove(1);
    assert_eq!(people(&mut conn), expected);

    let by_key: Option<String> =
        conn.query_first("SELECT name FROM person WHERE id = 3").expect("a point select works");
    assert_eq!(by_key.as_deref(), Some("Edsger"));
    let by_index: Vec<String> = conn
        .query("SELECT name FROM person FORCE INDEX (by_age) WHERE age >= 36 ORDER BY age DESC")
        .expect("a range works");
    assert_eq!(by_index, ["Edsger", "Ada"]);
}

#[test]
fn a_duplicate_key_is_refused_and_changes_nothing() {
    let server = Server::start(Options::new("duplicate"));
    let mut conn = server.connect_to("test");
    create(&mut conn);
    let expected = fill(&mut conn);
    let error = conn
        .query_drop("INSERT INTO person VALUES (10, 'Alan', 41), (1, 'Again', 1)")
        .expect_err("the second row's key exists");
    assert!(error.to_string().contains("Duplicate entry '1' for key 'PRIMARY'"), "{error}");
    assert_eq!(people(&mut conn), expected, "the statement's first row must be gone as well");
}

#[test]
fn a_transaction_is_invisible_until_it_commits() {
    let server = Server::start(Options::new("commit"));
    let (mut writer, mut reader) = (server.connect_to("test"), server.connect_to("test"));
    create(&mut writer);
    writer.query_drop("START TRANSACTION").expect("a transaction can begin");
    let expected = fill(&mut writer);
    assert_eq!(people(&mut reader), []);
    assert_eq!(people(&mut writer), expected, "a transaction sees its own rows");
    writer.query_drop("COMMIT").expect("a commit works");
    assert_eq!(people(&mut reader), expected);
}

#[test]
fn a_rollback_leaves_nothing() {
    let server = Server::start(Options::new("rollback"));
    let mut conn = server.connect_to("test");
    create(&mut conn);
    let expected = fill(&mut conn);
    conn.query_drop("START TRANSACTION").expect("a transaction can begin");
    conn.query_drop("INSERT INTO person (name) VALUES ('Nobody')").expect("an insert works");
    conn.query_drop("UPDATE person SET age = 0").expect("an update works");
    conn.query_drop("DELETE FROM person WHERE id = 1").expect("a delete works");
    conn.query_drop("ROLLBACK").expect("a rollback works");
    assert_eq!(people(&mut conn), expected);
    let zero: Option<i64> = conn
        .query_first("SELECT COUNT(*) FROM person FORCE INDEX (by_age) WHERE age = 0")
        .expect("an index can be read");
    assert_eq!(zero, Some(0), "the index was rolled back too");
}

#[test]
fn an_orderly_restart_keeps_the_rows() {
    let mut server = Server::start(Options::new("restart"));
    let mut conn = server.connect_to("test");
    create(&mut conn);
    let expected = fill(&mut conn);
    drop(conn);
    server.restart();
    assert_eq!(people(&mut server.connect_to("test")), expected);
}

#[test]
fn a_crash_keeps_what_was_committed_and_nothing_else() {
    let mut server = Server::start(Options::new("crash"));
    let mut conn = server.connect_to("test");
    create(&mut conn);
    let mut expected = fill(&mut conn);
    let mut unfinished = server.connect_to("test");
    unfinished.query_drop("START TRANSACTION").expect("a transaction can begin");
    unfinished.query_drop("INSERT INTO person VALUES (100, 'Nobody', 1)").expect("an insert works");
    unfinished.query_drop("UPDATE person SET age = 0 WHERE id = 2").expect("an update works");
    // A later commit of another transaction makes the log reach the disk with the unfinished one in
    // it.
    conn.query_drop("INSERT INTO person VALUES (4, 'Barbara', 80)").expect("an insert works");
    expected.push(person(4, "Barbara", Some(80)));
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(people(&mut conn), expected);
    let check: Vec<(String, String, String, String)> =
        conn.query("CHECK TABLE person EXTENDED").expect("a check works");
    assert_eq!(check.last().map(|row| row.3.as_str()), Some("OK"), "{check:?}");
}

/// The number that the table gives next, as the server shows it.
fn next_number(conn: &mut Conn, table: &str) -> u64 {
    let sql = format!(
        "SELECT AUTO_INCREMENT FROM information_schema.TABLES
         WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = '{table}'"
    );
    conn.query_first(sql).expect("a select works").expect("there is a table")
}

/// Statements on a table `t` with columns `id` and a unique `v`, and the number that follows them
/// after a restart. InnoDB's are the same.
const NUMBERED: [(&str, u64); 13] = [
    ("INSERT INTO t (v) VALUES (1), (2), (3); DELETE FROM t WHERE id = 3", 4),
    ("INSERT INTO t (v) SELECT seq FROM seq_1_to_5", 6),
    ("BEGIN; INSERT INTO t (v) VALUES (7), (8); ROLLBACK", 3),
    ("INSERT INTO t VALUES (1000, 1); DELETE FROM t", 1001),
    ("INSERT INTO t VALUES (9, 1), (3, 2), (-5, 3)", 10),
    ("INSERT INTO t (v) VALUES (1); REPLACE INTO t (v) VALUES (1), (1)", 4),
    ("INSERT INTO t (v) VALUES (1); INSERT INTO t (v) VALUES (1) ON DUPLICATE KEY UPDATE v = 2", 3),
    ("INSERT INTO t (v) VALUES (1); UPDATE t SET id = 50", 51),
    ("INSERT INTO t (v) VALUES (1); ALTER TABLE t AUTO_INCREMENT = 500", 500),
    ("INSERT INTO t VALUES (100, 1); DELETE FROM t; ALTER TABLE t AUTO_INCREMENT = 0", 1),
    ("INSERT INTO t (v) VALUES (1), (2); DELETE FROM t; ALTER TABLE t FORCE", 3),
    (
        "INSERT INTO t (v) SELECT seq FROM seq_1_to_2000; DELETE FROM t; \
         ALTER TABLE t FORCE, ALGORITHM=COPY",
        2048,
    ),
    ("INSERT INTO t (v) VALUES (1), (2); TRUNCATE t; INSERT INTO t (v) VALUES (1)", 2),
];

#[test]
fn the_next_number_is_exact_after_a_kill_and_after_a_restart() {
    let mut server = Server::start(Options::new("auto_increment"));
    let mut conn = server.connect_to("test");
    for (i, (statements, _)) in NUMBERED.iter().enumerate() {
        let create = "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v INT UNIQUE)";
        conn.query_drop(create).expect("a table is made");
        for statement in statements.split("; ") {
            conn.query_drop(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        conn.query_drop(format!("RENAME TABLE t TO t{i}")).expect("a rename works");
    }
    server.kill9();
    server.restart();
    for way in ["a kill", "a restart"] {
        let mut conn = server.connect_to("test");
        for (i, (statements, next)) in NUMBERED.iter().enumerate() {
            assert_eq!(next_number(&mut conn, &format!("t{i}")), *next, "{way}: {statements}");
        }
        server.stop();
        server.restart();
    }
}
