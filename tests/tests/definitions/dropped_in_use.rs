//! Tables that are dropped while a transaction has them without a metadata lock: one that has read
//! by HANDLER, and closed that.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use mysql::Conn;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check, code_of, number, rows, run};

const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// Nothing here takes long.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many files of tables the engine has.
fn table_files(server: &Server) -> usize {
    let tables = server.data_dir().join("tidepool/tables");
    fs::read_dir(tables).expect("the tables' directory").count()
}

/// A transaction that has read the table, and goes on.
fn inside(server: &Server, table: &str) -> Conn {
    let mut conn = server.connect_to("test");
    run(&mut conn, &["BEGIN", &format!("HANDLER {table} OPEN")]);
    assert_eq!(rows(&mut conn, &format!("HANDLER {table} READ FIRST")), ["[Bytes(\"1\")]"]);
    run(&mut conn, &[&format!("HANDLER {table} CLOSE")]);
    conn
}

#[test]
fn a_table_goes_when_the_last_transaction_that_has_read_it_ends() {
    let server = Server::start(Options::new("handler_drop").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    let none = table_files(&server);
    let make = ["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"];
    for end in ["COMMIT", "ROLLBACK", "the connection's end"] {
        run(&mut conn, &make);
        let (mut first, mut last) = (inside(&server, "t"), inside(&server, "t"));
        run(&mut conn, &["DROP TABLE t"]);
        // Its name is free.
        run(&mut conn, &make);
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 1);
        run(&mut conn, &["DROP TABLE t"]);
        run(&mut first, &["COMMIT"]);
        assert_eq!(table_files(&server), none + 1, "before {end}");
        let is_statement = end != "the connection's end";
        if is_statement {
            run(&mut last, &[end]);
        }
        drop(last);
        // The server notices the connection's end a little later.
        let since = Instant::now();
        while table_files(&server) != none {
            assert!(since.elapsed() < PATIENCE && !is_statement, "after {end}");
            sleep(Duration::from_millis(5));
        }
    }
    // Of what another transaction has, nothing else can be made: the statement is refused, and can
    // be repeated.
    run(&mut conn, &make);
    let mut reader = inside(&server, "t");
    assert_eq!(code_of(&mut conn, "TRUNCATE TABLE t"), LOCK_WAIT_TIMEOUT);
    run(&mut reader, &["COMMIT"]);
    run(&mut conn, &["TRUNCATE TABLE t"]);
    check(&mut conn, "t");
}

#[test]
fn a_copying_alter_and_a_dropped_database_leave_nothing_behind() {
    let server = Server::start(Options::new("handler_copy").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    let none = table_files(&server);
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "INSERT INTO t VALUES (1)",
            "CREATE TABLE p (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
            "INSERT INTO p VALUES (1)",
        ],
    );
    for table in ["t", "p"] {
        let before = table_files(&server);
        let mut reader = inside(&server, table);
        run(&mut conn, &[&format!("ALTER TABLE {table} FORCE, ALGORITHM=COPY")]);
        assert_eq!(rows(&mut conn, "SHOW WARNINGS"), Vec::<String>::new());
        assert!(table_files(&server) > before);
        run(&mut reader, &["COMMIT"]);
        assert_eq!(table_files(&server), before);
        check(&mut conn, table);
    }
    let mut reader = inside(&server, "t");
    run(&mut conn, &["DROP DATABASE test", "CREATE DATABASE test"]);
    run(&mut reader, &["COMMIT"]);
    assert_eq!(table_files(&server), none);
}

#[test]
fn a_crash_takes_what_was_set_aside_and_a_verdict_to_come_keeps_its_table() {
    let mut server = Server::start(Options::new("handler_crash").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    let none = table_files(&server);
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"]);
    let _reader = inside(&server, "t");
    run(&mut conn, &["DROP TABLE t"]);
    assert_eq!(table_files(&server), none + 1);
    server.kill9();
    server.restart();
    assert_eq!(table_files(&server), none);

    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)"]);
    let insert = ["XA START 'x'", "INSERT INTO t VALUES (1)", "XA END 'x'", "XA PREPARE 'x'"];
    run(&mut server.connect_to("test"), &insert);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(code_of(&mut conn, "DROP TABLE t"), LOCK_WAIT_TIMEOUT);
    run(&mut conn, &["XA COMMIT 'x'"]);
}

/// The server removes the table's `.par` file before it asks the engine.
#[test]
fn a_partitioned_table_whose_drop_is_refused_can_be_read_and_dropped() {
    let mut server = Server::start(Options::new("par_refused").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
            "INSERT INTO p VALUES (1), (2)",
        ],
    );
    let insert = ["XA START 'x'", "INSERT INTO p VALUES (3)", "XA END 'x'", "XA PREPARE 'x'"];
    run(&mut server.connect_to("test"), &insert);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    let count = "SELECT COUNT(*) FROM p";
    for drop in ["DROP TABLE p", "CREATE OR REPLACE TABLE p (a INT)", "DROP DATABASE test"] {
        assert_eq!(code_of(&mut conn, drop), LOCK_WAIT_TIMEOUT, "{drop}");
        run(&mut conn, &["FLUSH TABLES"]);
        assert_eq!(number(&mut conn, &count.replace("FROM p", "FROM test.p")), 2, "{drop}");
    }
    run(&mut conn, &["XA ROLLBACK 'x'", "DROP TABLE test.p"]);
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(rows(&mut conn, "SHOW TABLES").len(), 0);
}

/// Its rows may be nowhere else: a table is not removed for its name.
#[test]
fn a_copy_without_a_definition_gets_it_back_and_stays_until_it_is_dropped() {
    let mut server = Server::start(Options::new("left_behind").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    let none = table_files(&server);
    let left = "`#mysql50##sql-backup-1a2-3`";
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "INSERT INTO t VALUES (1)",
            &format!("RENAME TABLE t TO {left}"),
        ],
    );
    drop(conn);
    server.restart();
    assert!(!server.error_log().contains("left it behind"), "{}", server.error_log());
    server.stop();
    fs::remove_file(server.data_dir().join("test/#sql-backup-1a2-3.frm")).expect("it is there");
    server.restart();
    let log = server.error_log();
    assert!(
        log.contains("#sql-backup-1a2-3.frm of table test.#sql-backup-1a2-3 was lost"),
        "{log}"
    );
    assert_eq!(table_files(&server), none + 1);
    let mut conn = server.connect_to("test");
    run(&mut conn, &[&format!("DROP TABLE `test`.{left}")]);
    assert_eq!(table_files(&server), none);
}
