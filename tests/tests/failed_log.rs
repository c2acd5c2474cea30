//! The redo log fails under a running server: what was acknowledged is there after the next start, and that needs nobody's help.

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};

/// So many updates bring the redo log beyond the limit at which its writes then fail, and the binary log not nearly there.
const UPDATES: u32 = 60;
const LIMIT_BYTES: u64 = 64 << 10;

/// Much for the redo log, and little for a binary log that is compressed. Needs no new page.
fn update(conn: &mut Conn, n: u32) -> mysql::Result<()> {
    let letter = char::from(b'a' + (n % 26) as u8);
    conn.query_drop(format!("UPDATE t SET n = {n}, v = REPEAT('{letter}', 3000)"))
}

fn value(conn: &mut Conn) -> u32 {
    conn.query_first("SELECT n FROM t").expect("the table can be read").expect("a row")
}

/// Lets the log fail after the last update.
fn fail_the_log(server: &Server) {
    let mut conn = server.connect_to("test");
    conn.query_drop("CREATE TABLE t (id INT PRIMARY KEY, n INT, v TEXT)").expect("a table");
    conn.query_drop("INSERT INTO t VALUES (1, 0, REPEAT('a', 3000))").expect("a row");
    (1..=UPDATES).for_each(|n| update(&mut conn, n).expect("the log is well"));
    // Behind a binary log, the last commit is in the redo log's memory only.
    server.limit_file_size(Some(LIMIT_BYTES));
    update(&mut conn, UPDATES + 1).expect_err("the log cannot be written");
    server.limit_file_size(None);
    assert!(server.error_log().contains("the engine stops writing"), "{}", server.error_log());
    // Reads go on. Without a binary log, a commit is seen before it is durable, and is taken back by the restart.
    assert!([UPDATES, UPDATES + 1].contains(&value(&mut conn)));
    conn.query_drop("INSERT INTO t VALUES (2, 0, '')").expect_err("writes don't");
}

#[test]
fn the_server_starts_by_itself_after_the_redo_log_failed() {
    for binary_log in [true, false] {
        let mut options = Options::new("failed_log")
            .engine(Engine::Tidepool)
            .arg("--tidepool-redo-log-capacity=8M");
        if binary_log {
            options =
                options.arg("--log-bin=binlog").arg("--log-bin-compress=ON").arg("--sync-binlog=1");
        }
        let mut server = Server::start(options);
        fail_the_log(&server);
        let status = server.terminate();
        let started = server.launch();
        assert_eq!(started, Ok(()), "it had ended with {status}");
        assert_eq!(status.code(), Some(1), "{}", server.error_log());
        let log = server.error_log();
        assert!(log.contains("The server ends here, without closing its binary log"), "{log}");
        let mut conn = server.connect_to("test");
        assert_eq!(value(&mut conn), UPDATES);
        update(&mut conn, 20_000).expect("the log is well");
        drop(conn);
        server.stop();
        server.launch().expect("it was stopped in order");
        assert_eq!(value(&mut server.connect_to("test")), 20_000);
    }
}
