//! What the server's coordinator asks of the engine: transactions that are ended by their XID, and
//! those that the binary log describes by statements.

use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{number, rows, run};

/// Until the server has `count` connections: it notices the end of one a little later.
fn wait_for_connections(conn: &mut Conn, count: i64) {
    let all = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'root'";
    wait_until(Duration::from_secs(60), "connections end", || number(conn, all) == count);
}

/// The server takes two XIDs that differ in their format alone for the same.
#[test]
fn a_prepared_transaction_is_ended_by_its_xid_whatever_the_format() {
    let server = Server::start(Options::new("xid_format").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)"]);
    let prepared = |n: u32, xid: &str| {
        let mut other = server.connect_to("test");
        let statements = [
            format!("XA START {xid}"),
            format!("INSERT INTO t VALUES ({n})"),
            format!("XA END {xid}"),
            format!("XA PREPARE {xid}"),
        ];
        statements.iter().for_each(|statement| run(&mut other, &[statement]));
        other
    };
    // By another connection, while that of the transaction lives and behind its end.
    drop(prepared(1, "'a','b',77"));
    wait_for_connections(&mut conn, 1);
    run(&mut conn, &["XA COMMIT 'a','b'"]);
    drop(prepared(2, "'a','c'"));
    wait_for_connections(&mut conn, 1);
    run(&mut conn, &["XA ROLLBACK 'a','c',99"]);
    let mut other = prepared(3, "'d'");
    run(&mut other, &["XA COMMIT 'd','',5"]);
    // Neither the format nor where the two parts meet makes others of them.
    drop(prepared(4, "'ab','',7"));
    wait_for_connections(&mut conn, 2);
    assert!(conn.query_drop("XA COMMIT 'a','b',7").is_err());
    run(&mut conn, &["XA COMMIT 'ab'"]);
    assert_eq!(rows(&mut conn, "SELECT id FROM t ORDER BY id").len(), 3);
    assert_eq!(rows(&mut conn, "XA RECOVER").len(), 0);
    // Nothing holds a lock.
    run(&mut conn, &["SET innodb_lock_wait_timeout = 1", "DELETE FROM t", "DROP TABLE t"]);
}

/// A statement that reads a snapshot here would read something else on a replica.
#[test]
fn what_a_statement_writes_elsewhere_of_what_it_reads_here_is_logged_as_rows() {
    let server = Server::start(
        Options::new("mixed_format")
            .engine(Engine::Tidepool)
            .arg("--log-bin=log")
            .arg("--binlog-format=MIXED"),
    );
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY) ENGINE=Tidepool",
            "CREATE TABLE p (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
            "CREATE TABLE i (id INT PRIMARY KEY) ENGINE=InnoDB",
            "CREATE TABLE j (id INT PRIMARY KEY) ENGINE=InnoDB",
            "INSERT INTO t VALUES (1), (2)",
            "INSERT INTO p VALUES (3), (4)",
            "CREATE FUNCTION last_id() RETURNS INT READS SQL DATA RETURN (SELECT MAX(id) FROM t)",
        ],
    );
    let mut logged_as_statement = |statement: &str| {
        run(&mut conn, &["FLUSH BINARY LOGS", statement]);
        let log: Option<mysql::Row> = conn.query_first("SHOW MASTER STATUS").expect("a log");
        let log: String = log.expect("a row").get(0).expect("a name");
        let events: Vec<mysql::Row> =
            conn.query(format!("SHOW BINLOG EVENTS IN '{log}'")).expect("events");
        let of = |kind: &str| {
            let is_one = |event: &&mysql::Row| event.get::<String, _>(2).expect("a type") == kind;
            events.iter().filter(is_one).count()
        };
        let (statements, maps) = (of("Query"), of("Table_map"));
        assert!(statements + maps > 0, "{statement} is logged");
        maps == 0
    };
    for statement in [
        "INSERT INTO i SELECT id FROM t",
        "INSERT INTO i SELECT id FROM p",
        "UPDATE i JOIN t USING (id) SET i.id = i.id + 10",
        "DELETE i FROM i JOIN p USING (id)",
        "INSERT INTO i VALUES (100 + last_id())",
    ] {
        assert!(!logged_as_statement(statement), "{statement}");
    }
    // What reads nothing of this engine's is what it was.
    assert!(logged_as_statement("INSERT INTO j SELECT id FROM i"));
}
