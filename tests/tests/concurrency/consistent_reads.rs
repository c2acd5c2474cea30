//! Statements that read whole tables and change nothing in them: no row is locked for them, and
//! they see what is committed.

use std::thread;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{code_of, number, rows, run};

const LEVELS: [&str; 4] = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
/// Nothing here takes long.
const PATIENCE: Duration = Duration::from_secs(60);
const LOCK_WAIT_TIMEOUT: u16 = 1205;

fn connect_at(server: &Server, level: &str) -> Conn {
    let mut conn = server.connect_to("test");
    run(&mut conn, &[&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")]);
    conn
}

/// Waits until the query gives anything but 0.
fn wait_for(conn: &mut Conn, query: &str) {
    let since = Instant::now();
    while number(conn, query) == 0 {
        assert!(since.elapsed() < PATIENCE, "{query}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_copy_locks_no_row_of_what_it_copies() {
    let server = Server::start(Options::new("copy_locks").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, n INT, KEY (n))",
            "INSERT INTO t SELECT seq, seq FROM seq_1_to_100000",
        ],
    );
    let copies =
        ["ALTER TABLE t FORCE, ALGORITHM=COPY", "ALTER TABLE t ENGINE=Tidepool, ALGORITHM=COPY"];
    for (level, copy) in LEVELS.into_iter().flat_map(|level| copies.map(|copy| (level, copy))) {
        let mut seen = 0;
        thread::scope(|scope| {
            let copying = scope.spawn(|| {
                let mut conn = connect_at(&server, level);
                conn.query_drop(copy).unwrap_or_else(|error| panic!("{copy}: {error}"));
            });
            while !copying.is_finished() {
                let now: Vec<(u64, String)> = conn
                    .query("SELECT trx_rows_locked, trx_isolation_level FROM information_schema.TIDEPOOL_TRX WHERE trx_query <> ''")
                    .expect("transactions");
                for (locked, at) in now {
                    assert_eq!((locked, at.as_str()), (0, "REPEATABLE READ"), "{level}: {copy}");
                    seen += 1;
                }
            }
        });
        assert!(seen > 0, "{level}: {copy} was not seen");
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 100_000, "{level}: {copy}");
    }
}

#[test]
fn a_copy_has_what_was_committed_while_it_waited_for_the_table() {
    let server = Server::start(Options::new("copy_snapshot"));
    let (mut conn, mut other) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut conn,
        &["CREATE TABLE t (id INT PRIMARY KEY, n INT)", "CREATE TABLE u (id INT PRIMARY KEY)"],
    );
    let copies = [
        "ALTER TABLE t FORCE, ALGORITHM=COPY",
        "CREATE INDEX k ON t (n) ALGORITHM=COPY",
        "DROP INDEX k ON t",
        "OPTIMIZE TABLE t",
    ];
    let mut expected = 0;
    for level in LEVELS {
        for autocommit in ["0", "1"] {
            for copy in copies {
                expected += 1;
                let insert = format!("INSERT INTO t VALUES ({expected}, 0)");
                run(&mut other, &["BEGIN", &insert]);
                thread::scope(|scope| {
                    let copying = scope.spawn(|| {
                        let mut conn = connect_at(&server, level);
                        let autocommit = format!("SET autocommit = {autocommit}");
                        // A snapshot that the statement gives up, with the transaction.
                        run(&mut conn, &[&autocommit, "BEGIN", "SELECT * FROM u"]);
                        conn.query_drop(copy).unwrap_or_else(|error| panic!("{copy}: {error}"));
                    });
                    wait_for(
                        &mut conn,
                        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock'",
                    );
                    run(&mut other, &["COMMIT"]);
                    copying.join().expect("the copy is made");
                });
                let count = number(&mut conn, "SELECT COUNT(*) FROM t");
                assert_eq!(count, expected, "{level}, autocommit = {autocommit}: {copy}");
            }
        }
    }
}

#[test]
fn single_reads_at_serializable_wait_for_nobody() {
    let server = Server::start(Options::new("single_reads").engine(Engine::Tidepool));
    let (mut conn, mut other) = (connect_at(&server, "SERIALIZABLE"), server.connect_to("test"));
    run(
        &mut conn,
        &[
            "SET SESSION tidepool_lock_wait_timeout = 1",
            "CREATE TABLE t (id INT PRIMARY KEY, n INT)",
            "INSERT INTO t SELECT seq, 7 FROM seq_1_to_100",
        ],
    );
    let sum = rows(&mut conn, "CHECKSUM TABLE t");
    run(&mut other, &["BEGIN", "UPDATE t SET n = 8"]);
    assert_eq!(rows(&mut conn, "CHECKSUM TABLE t"), sum);
    let analyzed = rows(&mut conn, "ANALYZE TABLE t PERSISTENT FOR ALL");
    assert!(analyzed.iter().all(|row| row.contains("status")), "{analyzed:?}");
    let seen = "SELECT CAST(min_value + max_value AS SIGNED) FROM mysql.column_stats WHERE table_name = 't' AND column_name = 'n'";
    assert_eq!(number(&mut conn, seen), 14);
    run(&mut conn, &["HANDLER t OPEN"]);
    assert_eq!(rows(&mut conn, "HANDLER t READ FIRST"), ["[Bytes(\"1\"), Bytes(\"7\")]"]);
    assert_eq!(rows(&mut conn, "HANDLER t READ NEXT LIMIT 200").len(), 99);
    run(&mut conn, &["HANDLER t CLOSE"]);
    // In a longer transaction they are part of what must be serializable. ANALYZE never is: it
    // commits first.
    run(&mut conn, &["SET autocommit = 0"]);
    let analyzed = rows(&mut conn, "ANALYZE TABLE t PERSISTENT FOR ALL");
    assert!(analyzed.iter().all(|row| row.contains("status")), "{analyzed:?}");
    run(&mut conn, &["HANDLER t OPEN"]);
    assert_eq!(code_of(&mut conn, "HANDLER t READ FIRST"), LOCK_WAIT_TIMEOUT);
    run(&mut conn, &["HANDLER t CLOSE", "ROLLBACK"]);
    run(&mut other, &["ROLLBACK"]);
}
