//! Statements that are easy to get half right: beside other sessions, with IGNORE, in functions,
//! and under changing definitions.

use std::thread;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{check, code_of, number, rows, run};

const TABLE_CHANGED: u16 = 1412;
const DUPLICATE: u16 = 1062;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const ERROR_ON_RENAME: u16 = 1025;
const ROW_IS_REFERENCED: u16 = 1451;

#[test]
fn a_snapshot_that_is_older_than_the_table_is_told_so() {
    let server = Server::start(Options::new("older_snapshot"));
    let (mut old, mut new) = (server.connect_to("test"), server.connect_to("test"));
    let changes: &[&[&str]] = &[
        &["OPTIMIZE TABLE t"],
        &["ALTER TABLE t ADD x INT, ALGORITHM=COPY"],
        &["TRUNCATE t"],
        &["DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"],
        &["CREATE TABLE n LIKE t", "INSERT INTO n SELECT * FROM t", "RENAME TABLE t TO o, n TO t"],
    ];
    for change in changes {
        run(&mut new, &["DROP TABLE IF EXISTS t, n, o", "CREATE TABLE t (id INT PRIMARY KEY)"]);
        run(&mut new, &["INSERT INTO t VALUES (1), (2)"]);
        run(&mut old, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
        run(&mut new, change);
        assert_eq!(code_of(&mut old, "SELECT COUNT(*) FROM t"), TABLE_CHANGED);
        assert_eq!(code_of(&mut old, "SELECT * FROM t WHERE id = 1"), TABLE_CHANGED);
        // It may insert, but what a duplicate is about it would have to read, as in InnoDB (which
        // says so with another code).
        run(&mut old, &["INSERT INTO t (id) VALUES (10)", "INSERT IGNORE INTO t (id) VALUES (10)"]);
        for statement in [
            "REPLACE INTO t (id) VALUES (10)",
            "INSERT INTO t (id) VALUES (10) ON DUPLICATE KEY UPDATE id = 11",
            "UPDATE t SET id = 11 WHERE id = 10",
            "DELETE FROM t WHERE id = 10",
        ] {
            assert_eq!(code_of(&mut old, statement), TABLE_CHANGED, "{statement}");
        }
        assert_eq!(code_of(&mut old, "INSERT INTO t (id) VALUES (10)"), DUPLICATE);
        run(&mut old, &["COMMIT", "SELECT COUNT(*) FROM t"]);
    }
    // A temporary table is this session's own, and newer than its snapshot as often as not.
    run(&mut old, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
    run(
        &mut old,
        &["CREATE TEMPORARY TABLE own (id INT PRIMARY KEY)", "INSERT INTO own VALUES (7)"],
    );
    assert_eq!(number(&mut old, "SELECT id FROM own"), 7);
    run(&mut old, &["ALTER TABLE own ADD x INT DEFAULT 8"]);
    assert_eq!(number(&mut old, "SELECT x FROM own"), 8);
    run(&mut old, &["TRUNCATE own", "INSERT INTO own VALUES (9, 9)"]);
    assert_eq!(number(&mut old, "SELECT id FROM own"), 9);
}

#[test]
fn a_consistent_snapshot_is_refused_to_levels_that_would_not_read_it() {
    let server = Server::start(Options::new("snapshot_levels"));
    let (mut reader, mut writer) = (server.connect_to("test"), server.connect_to("test"));
    run(&mut writer, &["CREATE TABLE t (id INT PRIMARY KEY)"]);
    // Rows inserted after the snapshot that are seen all the same, and warnings.
    let cases = [("READ COMMITTED", 1, 1), ("SERIALIZABLE", 1, 1), ("REPEATABLE READ", 0, 0)];
    for (level, seen, warnings) in cases {
        run(&mut writer, &["DELETE FROM t"]);
        run(
            &mut reader,
            &[
                &format!("SET TRANSACTION ISOLATION LEVEL {level}"),
                "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            ],
        );
        let said: Vec<(String, u16, String)> = reader.query("SHOW WARNINGS").expect("warnings");
        assert_eq!(said.len(), warnings, "{level}: {said:?}");
        assert!(said.iter().all(|(_, _, text)| text.contains("REPEATABLE READ")), "{said:?}");
        run(&mut writer, &["INSERT INTO t VALUES (1)"]);
        assert_eq!(number(&mut reader, "SELECT COUNT(*) FROM t"), seen, "{level}");
        run(&mut reader, &["COMMIT"]);
    }
}

#[test]
fn delete_ignore_deletes_a_row_whole_or_not() {
    let server = Server::start(Options::new("delete_ignore"));
    let (mut holder, mut conn) = (server.connect_to("test"), server.connect_to("test"));
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY, b INT, c INT, KEY (b))"]);
    run(&mut conn, &["INSERT INTO t VALUES (1, 5, 0), (2, 6, 0)"]);
    // Of the row to be deleted only the index entry is locked.
    run(&mut holder, &["BEGIN", "SELECT b FROM t FORCE INDEX (b) WHERE b = 5 LOCK IN SHARE MODE"]);
    run(&mut conn, &["SET tidepool_lock_wait_timeout = 1", "DELETE IGNORE FROM t WHERE id = 1"]);
    run(&mut holder, &["COMMIT"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t FORCE INDEX (b)"), 2);
    assert_eq!(number(&mut conn, "SELECT id FROM t FORCE INDEX (b) WHERE b = 5 AND c = 0"), 1);
    check(&mut conn, "t");
}

#[test]
fn periods_do_not_overlap_with_or_without_a_binary_log() {
    let server = Server::start(Options::new("periods"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT, s DATE, e DATE, PERIOD FOR p (s, e), UNIQUE (id, p WITHOUT OVERLAPS))",
            "INSERT INTO t VALUES (1, '2020-01-01', '2020-03-01'), (2, '2020-02-01', '2020-04-01')",
        ],
    );
    let overlapping = "INSERT INTO t VALUES (1, '2020-02-01', '2020-04-01')";
    assert_eq!(code_of(&mut conn, overlapping), DUPLICATE);
    assert_eq!(code_of(&mut conn, "UPDATE t SET id = 1 WHERE s = '2020-02-01'"), DUPLICATE);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 2);
}

#[test]
fn a_row_found_by_a_covering_index_is_locked_too() {
    let server = Server::start(Options::new("covering_lock"));
    let (mut first, mut second) = (server.connect_to("test"), server.connect_to("test"));
    run(&mut first, &["CREATE TABLE jobs (id INT PRIMARY KEY, st INT, p TEXT, KEY (st))"]);
    run(&mut first, &["INSERT INTO jobs VALUES (1, 0, ''), (2, 0, '')"]);
    run(&mut first, &["BEGIN"]);
    let take = "SELECT id FROM jobs FORCE INDEX (st) WHERE st = 0 LIMIT 1 FOR UPDATE SKIP LOCKED";
    assert_eq!(number(&mut first, take), 1);
    let by_key = "SELECT p FROM jobs WHERE id = 1 FOR UPDATE NOWAIT";
    assert_eq!(code_of(&mut second, by_key), LOCK_WAIT_TIMEOUT);
    run(&mut first, &["ROLLBACK"]);
    // The other way round: what is locked by its key is not handed out by the index.
    run(&mut second, &["BEGIN", by_key]);
    run(&mut first, &["BEGIN"]);
    assert_eq!(number(&mut first, take), 2);
}

#[test]
fn a_virtual_column_below_an_indexed_one_is_changed_by_a_copy() {
    let server = Server::start(Options::new("virtual_columns"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, v1 INT AS (a + 1) VIRTUAL, v2 INT AS (v1 * 10) VIRTUAL, KEY (v2))",
            "INSERT INTO t (id, a) VALUES (1, 1)",
            "ALTER TABLE t MODIFY v1 INT AS (a + 2) VIRTUAL",
        ],
    );
    assert_eq!(number(&mut conn, "SELECT id FROM t FORCE INDEX (v2) WHERE v2 = 30"), 1);
    check(&mut conn, "t");
    run(&mut conn, &["DELETE FROM t WHERE id = 1"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t FORCE INDEX (v2)"), 0);
}

/// An index merge reads by several handlers.
#[test]
fn an_index_merge_locks_with_all_its_handlers() {
    let server = Server::start(Options::new("index_merge"));
    let (mut first, mut second) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut first,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, c INT, pad CHAR(200) DEFAULT '', KEY (a), KEY (b))",
            "INSERT INTO t (id, a, b, c) SELECT seq, seq % 60, seq % 61, 0 FROM seq_1_to_20000",
            "ANALYZE TABLE t",
        ],
    );
    let update = "UPDATE t SET c = 1 WHERE a = 1 AND b = 1";
    let plan: Vec<mysql::Row> = second.query(format!("EXPLAIN {update}")).expect("a plan");
    let plan = format!("{plan:?}");
    assert!(plan.contains("index_me"), "so the test shows something: {plan}");
    run(&mut first, &["BEGIN", "DELETE FROM t WHERE id = 1"]);
    let waiting = thread::spawn(move || {
        run(&mut second, &["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"]);
        second.query_drop(update)
    });
    thread::sleep(Duration::from_millis(500));
    run(&mut first, &["COMMIT"]);
    waiting.join().expect("no panic").expect("the update waits, and does without the row");
    let changed = number(&mut first, "SELECT COUNT(*) FROM t WHERE c = 1");
    assert_eq!(changed, number(&mut first, "SELECT COUNT(*) FROM t WHERE a = 1 AND b = 1"));
    assert!(changed > 0);
}

#[test]
fn auto_increment_is_shown_of_tables_that_have_such_a_column() {
    let server = Server::start(Options::new("show_create"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE without (a INT) AUTO_INCREMENT = 10"]);
    run(
        &mut conn,
        &["CREATE TABLE with_one (a INT AUTO_INCREMENT PRIMARY KEY) AUTO_INCREMENT = 10"],
    );
    let mut shown = |table: &str| {
        let row: Option<(String, String)> =
            conn.query_first(format!("SHOW CREATE TABLE {table}")).expect("a definition");
        row.expect("a row").1.contains("AUTO_INCREMENT=10")
    };
    assert!(shown("with_one") && !shown("without"));
}

/// Both find the row, and both mean to change it.
#[test]
fn two_upserts_of_one_row_do_not_deadlock() {
    let server = Server::start(Options::new("upserts"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL)"]);
    run(&mut conn, &["INSERT INTO t VALUES (1, 0)"]);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let mut conn = server.connect_to("test");
            thread::spawn(move || {
                for _ in 0..200 {
                    let upsert = "INSERT INTO t VALUES (1, 1) ON DUPLICATE KEY UPDATE n = n + 1";
                    conn.query_drop(upsert)?;
                }
                Ok::<(), mysql::Error>(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic").expect("no deadlock");
    }
    assert_eq!(number(&mut conn, "SELECT n FROM t"), 800);
}

/// Runs the statements in a transaction that is prepared, and then without a connection (and its
/// metadata locks).
fn prepare_and_leave(server: &Server, statements: &[&str]) {
    let mut conn = server.connect_to("test");
    run(&mut conn, &["XA START 'x'"]);
    run(&mut conn, statements);
    run(&mut conn, &["XA END 'x'", "XA PREPARE 'x'"]);
    let id = conn.connection_id();
    drop(conn);
    // Only then can another session decide on it.
    let left = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id = {id}");
    let mut conn = server.connect();
    wait_until(Duration::from_secs(60), "the session ends", || number(&mut conn, &left) == 0);
}

/// What is in the cache says nothing of what a snapshot sees, nor hears of every commit.
#[test]
fn results_are_not_cached() {
    let options = Options::new("query_cache").arg("--query-cache-type=1");
    let server = Server::start(options.arg("--query-cache-size=1M"));
    let (mut conn, mut other) = (server.connect_to("test"), server.connect_to("test"));
    for partitions in ["", "PARTITION BY HASH (id) PARTITIONS 2"] {
        run(
            &mut conn,
            &[
                &format!("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY) {partitions}"),
                "INSERT INTO t VALUES (1), (2)",
            ],
        );
        prepare_and_leave(&server, &["INSERT INTO t VALUES (3)"]);
        let count = "SELECT COUNT(*) FROM t";
        assert_eq!(number(&mut conn, count), 2, "{partitions}");
        run(&mut other, &["XA COMMIT 'x'"]);
        assert_eq!(number(&mut conn, count), 3, "{partitions}");
    }
}

#[test]
fn a_table_with_a_prepared_transaction_is_not_altered() {
    let server = Server::start(Options::new("alter_beside_xa"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"]);
    prepare_and_leave(&server, &["INSERT INTO t VALUES (2)"]);
    run(&mut conn, &["SET lock_wait_timeout = 3"]);
    let altered = conn.query_drop("ALTER TABLE t ADD x INT, ALGORITHM=COPY");
    assert!(altered.is_err(), "the copy lacks a row that is not committed yet");
    run(&mut conn, &["XA COMMIT 'x'"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 2);
    run(&mut conn, &["ALTER TABLE t ADD x INT, ALGORITHM=COPY"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 2);
    check(&mut conn, "t");
}

#[test]
fn a_partition_with_a_prepared_transaction_is_not_copied() {
    let server = Server::start(Options::new("reorganize_beside_xa"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT) PARTITION BY RANGE (id)
             (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
            "INSERT INTO t VALUES (1, 1), (11, 1)",
        ],
    );
    prepare_and_leave(
        &server,
        &["INSERT INTO t VALUES (12, 2)", "UPDATE t SET a = 2 WHERE id = 11"],
    );
    run(&mut conn, &["SET lock_wait_timeout = 3"]);
    for change in [
        "REORGANIZE PARTITION p0, p1 INTO (PARTITION p VALUES LESS THAN (20))",
        "REBUILD PARTITION p1",
        "REMOVE PARTITIONING",
    ] {
        let changed = conn.query_drop(format!("ALTER TABLE t {change}"));
        assert!(changed.is_err(), "{change}: the copy lacks what is not committed yet");
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 2, "{change}");
    }
    run(&mut conn, &["XA COMMIT 'x'"]);
    let sum = "SELECT SUM(id * a) FROM t";
    assert_eq!(number(&mut conn, sum), 1 + 22 + 24);
    run(&mut conn, &["ALTER TABLE t REBUILD PARTITION p1"]);
    run(
        &mut conn,
        &["ALTER TABLE t REORGANIZE PARTITION p0, p1 INTO (PARTITION p VALUES LESS THAN (20))"],
    );
    assert_eq!(number(&mut conn, sum), 1 + 22 + 24);
    check(&mut conn, "t");
}

#[test]
fn what_is_committed_while_a_table_is_copied_is_in_the_copy() {
    let server = Server::start(Options::new("commit_beside_alter"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, KEY (a))",
            "INSERT INTO t SELECT seq, seq FROM seq_1_to_200000",
        ],
    );
    prepare_and_leave(&server, &["INSERT INTO t VALUES (0, 0)"]);
    let mut altering = server.connect_to("test");
    let alter = thread::spawn(move || {
        altering.query_drop("ALTER TABLE t ADD x INT, ALGORITHM=COPY").is_ok()
    });
    // Most likely within the copy, if there is one; what counts is that the row is never lost.
    thread::sleep(Duration::from_millis(100));
    run(&mut conn, &["XA COMMIT 'x'"]);
    let altered = alter.join().expect("no panic");
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 200_001, "altered: {altered}");
}

#[test]
fn an_alter_cut_off_by_a_kill_is_undone_beside_a_prepared_transaction() {
    let mut server = Server::start(Options::new("kill9_a_copy").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE other (id INT PRIMARY KEY)",
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, KEY (a))",
            "INSERT INTO t SELECT seq, seq FROM seq_1_to_100000",
        ],
    );
    prepare_and_leave(&server, &["INSERT INTO other VALUES (1)"]);
    let alter = "ALTER TABLE t FORCE, ALGORITHM=COPY";
    let since = Instant::now();
    run(&mut conn, &[alter]);
    let whole = since.elapsed();
    for percent in [30, 60, 90, 97] {
        let mut altering = server.connect_to("test");
        let thread = thread::spawn(move || altering.query_drop(alter).is_ok());
        thread::sleep(whole * percent / 100);
        server.kill9();
        thread.join().expect("no panic");
        server.restart();
        conn = server.connect_to("test");
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 100_000, "at {percent} %");
        check(&mut conn, "t");
        // The copy is gone, or the original.
        let files = std::fs::read_dir(server.data_dir().join("tidepool/tables"));
        assert_eq!(files.expect("the engine's directory").count(), 2, "at {percent} %");
    }
    run(&mut conn, &["XA COMMIT 'x'"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM other"), 1);
}

#[test]
fn a_connection_that_is_reset_leaves_its_prepared_transaction() {
    let server = Server::start(Options::new("reset_after_xa"));
    let (mut conn, mut other) = (server.connect_to("test"), server.connect_to("test"));
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"]);
    let prepare = |conn: &mut Conn, statement: &str| {
        run(conn, &["XA START 'x'", statement, "XA END 'x'", "XA PREPARE 'x'"]);
        conn.reset().expect("the connection is reset");
    };
    let count = "SELECT COUNT(*) FROM t";

    // The next statements are a separate transaction, and no verdict.
    prepare(&mut conn, "INSERT INTO t VALUES (2)");
    assert_eq!(number(&mut conn, count), 1);
    run(&mut conn, &["INSERT INTO t VALUES (3)"]);
    assert_eq!(number(&mut other, count), 2);
    run(&mut other, &["XA ROLLBACK 'x'"]);
    assert_eq!(number(&mut other, count), 2);

    // The verdict may come before them, from anybody.
    prepare(&mut conn, "INSERT INTO t VALUES (4)");
    run(&mut other, &["XA COMMIT 'x'"]);
    assert_eq!(number(&mut conn, count), 3);
    prepare(&mut conn, "INSERT INTO t VALUES (5)");
    run(&mut conn, &["XA COMMIT 'x'"]);
    assert_eq!(number(&mut other, count), 4);

    // What has only read goes too, with its snapshot.
    run(&mut conn, &["XA START 'x'"]);
    assert_eq!(number(&mut conn, count), 4);
    run(&mut conn, &["INSERT IGNORE INTO t VALUES (1)", "XA END 'x'", "XA PREPARE 'x'"]);
    conn.reset().expect("the connection is reset");
    run(&mut other, &["DELETE FROM t WHERE id = 5"]);
    assert_eq!(number(&mut conn, count), 3);
    run(&mut other, &["XA COMMIT 'x'"]);

    // No session drops the table before the verdict, nor copies it.
    prepare(&mut conn, "INSERT INTO t VALUES (6)");
    assert_eq!(code_of(&mut other, "DROP TABLE t"), LOCK_WAIT_TIMEOUT);
    run(&mut other, &["XA COMMIT 'x'", "DELETE FROM t WHERE id = 6"]);
    prepare(&mut conn, "INSERT INTO t VALUES (6)");
    assert_eq!(code_of(&mut other, "ALTER TABLE t FORCE, ALGORITHM=COPY"), LOCK_WAIT_TIMEOUT);
    drop(conn);
    run(&mut other, &["XA COMMIT 'x'", "ALTER TABLE t FORCE, ALGORITHM=COPY"]);
    assert_eq!(number(&mut other, count), 4);
    check(&mut other, "t");
}

/// The server's pools reset a connection between two uses, and take it for another XA transaction.
/// What it had prepared before stays prepared, whatever statements come.
#[test]
fn statements_after_a_reset_give_a_prepared_transaction_no_verdict() {
    let server = Server::start(Options::new("parted_xa").engine(Engine::Tidepool));
    let (mut conn, mut other) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "CREATE TABLE child (id INT REFERENCES parent (id))",
            "CREATE TRIGGER of_parent BEFORE INSERT ON parent FOR EACH ROW SET @x = 1",
        ],
    );
    let prepare = |conn: &mut Conn, id: u32| {
        let insert = format!("INSERT INTO t VALUES ({id})");
        run(conn, &["XA START 'x'", &insert, "XA END 'x'", "XA PREPARE 'x'"]);
        conn.reset().expect("the connection is reset");
    };
    let ids = "SELECT GROUP_CONCAT(id ORDER BY id) FROM t";
    let found = |conn: &mut Conn| -> Option<String> {
        conn.query_first::<Option<String>, _>(ids).expect("a query").expect("a row")
    };

    // A DROP that succeeds, of a table with triggers: the engine is at its end for their files.
    run(&mut other, &["CREATE TABLE gone (id INT)"]);
    run(&mut other, &["CREATE TRIGGER g BEFORE INSERT ON gone FOR EACH ROW SET @x = 1"]);
    prepare(&mut conn, 1);
    run(&mut conn, &["DROP TABLE gone"]);
    assert_eq!(found(&mut other), None);
    run(&mut other, &["XA ROLLBACK 'x'"]);
    assert_eq!(found(&mut other), None);

    // One that fails.
    prepare(&mut conn, 2);
    assert_eq!(code_of(&mut conn, "DROP TABLE parent"), ROW_IS_REFERENCED);
    run(&mut other, &["XA COMMIT 'x'"]);
    assert_eq!(found(&mut other).as_deref(), Some("2"));

    // The next XA transaction has begun, without a word to the engine.
    prepare(&mut conn, 3);
    run(&mut conn, &["XA START 'y'"]);
    for (ddl, code) in [
        ("ALTER TABLE t FORCE, ALGORITHM=COPY", LOCK_WAIT_TIMEOUT),
        ("RENAME TABLE t TO u", ERROR_ON_RENAME),
        ("DROP TABLE t", LOCK_WAIT_TIMEOUT),
    ] {
        assert_eq!(code_of(&mut other, ddl), code, "{ddl}");
    }
    run(&mut conn, &["INSERT INTO parent VALUES (1)", "XA END 'y'", "XA PREPARE 'y'"]);
    run(&mut other, &["XA COMMIT 'x'"]);
    run(&mut conn, &["XA COMMIT 'y'"]);
    assert_eq!(found(&mut other).as_deref(), Some("2,3"));
    assert_eq!(number(&mut other, "SELECT COUNT(*) FROM parent"), 1);
    run(&mut other, &["ALTER TABLE t FORCE, ALGORITHM=COPY"]);
    check(&mut other, "t");
}

/// How many files of tables the engine has.
fn table_files(server: &Server) -> usize {
    let tables = server.data_dir().join("tidepool/tables");
    std::fs::read_dir(tables).expect("the tables' directory").count()
}

#[test]
fn temporary_tables_of_a_prepared_transaction_go_when_it_is_over() {
    let mut server = Server::start(Options::new("temporary_in_xa").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT)"]);
    let before = table_files(&server);
    let prepare = |server: &Server| {
        let mut conn = server.connect_to("test");
        run(&mut conn, &["CREATE TEMPORARY TABLE tmp (id INT)", "XA START 'x'"]);
        // Without the other table the server rolls back when the connection ends.
        run(&mut conn, &["INSERT INTO tmp VALUES (1)", "INSERT INTO t VALUES (1)"]);
        run(&mut conn, &["XA END 'x'", "XA PREPARE 'x'"]);
        conn
    };
    let mut owner = prepare(&server);
    run(&mut owner, &["XA COMMIT 'x'", "DROP TEMPORARY TABLE tmp"]);
    assert_eq!(table_files(&server), before);

    for end in ["XA COMMIT 'x'", "XA ROLLBACK 'x'"] {
        drop(prepare(&server));
        // The server may not have noticed yet that the connection is gone.
        let since = Instant::now();
        while let Err(error) = conn.query_drop(end) {
            assert!(since.elapsed() < Duration::from_secs(60), "{end}: {error}");
            thread::sleep(Duration::from_millis(5));
        }
        while table_files(&server) != before {
            assert!(since.elapsed() < Duration::from_secs(60), "{end}: a table is left");
            thread::sleep(Duration::from_millis(5));
        }
    }

    // What a crash has left, too; and it is not in the way of temporary tables with the same file
    // names.
    let _owner = prepare(&server);
    server.kill9();
    server.launch().expect("the server starts");
    let mut conn = server.connect_to("test");
    assert_eq!(table_files(&server), before + 1);
    run(&mut conn, &["CREATE TEMPORARY TABLE tmp (id INT)", "INSERT INTO tmp VALUES (2)"]);
    run(&mut conn, &["DROP TEMPORARY TABLE tmp", "XA COMMIT 'x'"]);
    assert_eq!(table_files(&server), before);
}

/// The server's sum is of its records, NULL bits, paddings and virtual columns included, whichever
/// statement had them before. The same rows have the same sum in both engines, after a crash, too.
#[test]
fn a_checksum_depends_on_the_rows_alone() {
    let mut server = Server::start(Options::new("checksum"));
    let tables = [("t", "Tidepool"), ("i", "InnoDB")];
    let mut conn = server.connect_to("test");
    for (table, engine) in tables {
        run(
            &mut conn,
            &[
                &format!(
                    "CREATE TABLE {table} (f DOUBLE, id INT, a INT, v INT GENERATED ALWAYS AS (NULLIF(a, 0)) VIRTUAL,
                    b BIT(3), c CHAR(9), d VARCHAR(9), e ENUM('x', 'y'), n DECIMAL(9, 2), t TIMESTAMP(3) NULL, x TEXT,
                    u CHAR(5) CHARACTER SET utf8mb4, PRIMARY KEY (f, id), INDEX (v)) ENGINE={engine}"
                ),
                &format!("INSERT INTO {table} (f, id, a, b, c, d, e, n, x, u) VALUES
                    (-0e0, 1, 5, 1, 'c', 'long', 'x', -0.01, 'text', 'ü'), (0e0, 2, 0, NULL, NULL, '', NULL, NULL, NULL, NULL)"),
            ],
        );
    }
    let sums = |conn: &mut Conn, before: &str| -> Vec<i64> {
        let of = |(table, _): (&str, &str)| {
            if !before.is_empty() {
                run(conn, &[&before.replace("<table>", table)]);
            }
            let sums: Vec<(String, i64)> =
                conn.query(format!("CHECKSUM TABLE {table} EXTENDED")).expect("a sum");
            sums[0].1
        };
        tables.map(of).to_vec()
    };
    let first = sums(&mut conn, "");
    assert_eq!(first[0], first[1]);
    for before in [
        "SELECT v FROM <table> WHERE id = 1",
        "SELECT * FROM <table> WHERE id = 2",
        "SELECT COUNT(v) FROM <table>",
        "INSERT IGNORE INTO <table> (f, id, a, b) VALUES (0, 2, 7, 7)",
        "UPDATE <table> SET d = 'other' WHERE id = 9",
        "FLUSH TABLES",
    ] {
        assert_eq!(sums(&mut conn, before), first, "after {before}");
    }
    server.kill9();
    server.launch().expect("it starts again");
    assert_eq!(sums(&mut server.connect_to("test"), ""), first, "after a crash");
}

/// A coordinator that got the answer to its verdict on a prepared transaction will not repeat it.
/// Here it is given in the session that prepared, with and without a binary log.
#[test]
fn the_verdict_about_a_prepared_transaction_outlives_a_crash() {
    let with = |options: Options| options.arg("--log-bin=binlog").arg("--sync-binlog=1");
    for options in [Options::new("xa_verdict"), with(Options::new("xa_verdict_binlog"))] {
        let mut server = Server::start(options);
        run(&mut server.connect_to("test"), &["CREATE TABLE t (id INT PRIMARY KEY)"]);
        for (id, verdict) in ["COMMIT", "ROLLBACK", "COMMIT", "ROLLBACK"].into_iter().enumerate() {
            let mut conn = server.connect_to("test");
            run(&mut conn, &["XA START 'x'", &format!("INSERT INTO t VALUES ({id})")]);
            run(&mut conn, &["XA END 'x'", "XA PREPARE 'x'", &format!("XA {verdict} 'x'")]);
            server.kill9();
            server.launch().expect("it starts again");
            let mut conn = server.connect_to("test");
            let left: Vec<mysql::Row> = conn.query("XA RECOVER").expect("a list");
            assert_eq!(left.len(), 0, "{verdict} {id} must be given again");
            let there = number(&mut conn, &format!("SELECT COUNT(*) FROM t WHERE id = {id}"));
            assert_eq!(there, i64::from(verdict == "COMMIT"), "{verdict} {id}");
        }
    }
}

#[test]
fn the_time_of_a_tables_definition_is_shown() {
    let server = Server::start(Options::new("create_time"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "CREATE TABLE p (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
        ],
    );
    let shown = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'test' AND ROW_FORMAT = 'Dynamic'
                 AND CREATE_TIME BETWEEN NOW() - INTERVAL 10 MINUTE AND NOW() + INTERVAL 1 SECOND";
    assert_eq!(number(&mut conn, shown), 2);
}

/// Runs the statements on a table of each engine, `#` for its name. Each is answered in the same
/// way, and leaves the same rows.
fn same_as_innodb(server: &Server, statements: &[&str]) -> Vec<u16> {
    let said = [("t", Engine::Tidepool), ("i", Engine::InnoDb)].map(|(table, engine)| {
        let mut conn = server.connect_to("test");
        run(
            &mut conn,
            &[
                &format!("CREATE OR REPLACE TABLE {table} (id INT PRIMARY KEY, a INT, KEY (a)) ENGINE={}", engine.name()),
                &format!("INSERT INTO {table} VALUES (1, 1)"),
            ],
        );
        let mut answer = |statement: &&str| {
            let code = code_of(&mut conn, &statement.replace('#', table));
            (code, ["id", "a"].map(|key| rows(&mut conn, &format!("SELECT * FROM {table} ORDER BY {key}, id"))))
        };
        let answers: Vec<_> = statements.iter().map(&mut answer).collect();
        check(&mut conn, table);
        answers
    });
    for (n, statement) in statements.iter().enumerate() {
        assert_eq!(said[0][n], said[1][n], "{statement}");
    }
    said[0].iter().map(|(code, _)| *code).collect()
}

/// A failing statement of several rows is undone, and no more, where LOCK TABLES has begun it.
#[test]
fn a_failing_statement_is_undone_under_lock_tables() {
    let server = Server::start(Options::new("lock_tables_rollback").engine(Engine::Tidepool));
    let failing = [
        "INSERT INTO # VALUES (12, 12), (13, 13), (1, 9)",
        "UPDATE # SET id = 20, a = a + 1 ORDER BY id",
        "INSERT INTO # VALUES (14, 14), (1, 9) ON DUPLICATE KEY UPDATE id = 11",
    ];
    for begin in ["SET autocommit = 1", "SET autocommit = 0"] {
        for end in ["COMMIT", "ROLLBACK"] {
            let mut statements =
                vec![begin, "LOCK TABLES # WRITE", "INSERT INTO # VALUES (10, 10), (11, 11)"];
            statements.extend(failing);
            statements.extend([
                "UPDATE # SET a = a + 100",
                end,
                "UNLOCK TABLES",
                "SET autocommit = 1",
            ]);
            let codes = same_as_innodb(&server, &statements);
            let failed = codes.iter().filter(|code| **code == DUPLICATE).count();
            assert_eq!(failed, failing.len(), "{codes:?}");
        }
    }
}

/// What a function's failed statements leave, and what is left of them when the function itself
/// fails.
#[test]
fn statements_that_fail_in_a_function_leave_what_they_leave_in_innodb() {
    let server = Server::start(Options::new("function_rollback").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    for table in ["t", "i"] {
        for (name, end) in [("handles", ""), ("fails", "SIGNAL SQLSTATE '45000';")] {
            run(
                &mut conn,
                &[&format!(
                    "CREATE FUNCTION {name}_{table}() RETURNS INT MODIFIES SQL DATA BEGIN
                         DECLARE failed INT DEFAULT 0;
                         DECLARE CONTINUE HANDLER FOR 1062 SET failed = failed + 1;
                         INSERT INTO {table} VALUES (2, 2), (3, 3), (1, 9);
                         INSERT INTO {table} VALUES (4, 4), (5, 5), (1, 9);
                         INSERT INTO {table} VALUES (6, 6);
                         UPDATE {table} SET id = 1, a = a + 100 WHERE id > 1;
                         DELETE FROM {table} WHERE id = 6;
                         {end}
                         RETURN failed;
                     END"
                )],
            );
        }
    }
    let (handles, fails) = ("SELECT handles_#()", "SELECT fails_#()");
    let codes = same_as_innodb(&server, &[handles, "DELETE FROM # WHERE id > 1", fails, handles]);
    assert!(codes[2] != 0, "{codes:?}");
    same_as_innodb(
        &server,
        &[
            "BEGIN",
            "INSERT INTO # VALUES (10, 10)",
            handles,
            fails,
            handles,
            "SAVEPOINT s",
            fails,
            "ROLLBACK TO s",
            "COMMIT",
        ],
    );
    same_as_innodb(&server, &["BEGIN", "UPDATE # SET a = 50", fails, handles, "ROLLBACK"]);
    same_as_innodb(
        &server,
        &["SET autocommit = 0", handles, "ROLLBACK", fails, "COMMIT", handles, "COMMIT"],
    );
}
