//! The redo log fails under a running server: what was acknowledged is there after the next start,
//! and that needs no help.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{number, run};

/// This many updates bring the redo log beyond the limit at which its writes then fail, and the
/// binary log not nearly there.
const UPDATES: u32 = 60;
const LIMIT_BYTES: u64 = 64 << 10;
/// Nothing here takes long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Much for the redo log, and little for a binary log that is compressed. Needs no new page.
fn update(conn: &mut Conn, n: u32) -> mysql::Result<()> {
    let letter = char::from(b'a' + (n % 26) as u8);
    conn.query_drop(format!("UPDATE t SET n = {n}, v = REPEAT('{letter}', 3000)"))
}

fn value(conn: &mut Conn) -> u32 {
    conn.query_first("SELECT n FROM t").expect("the table can be read").expect("a row")
}

/// Writes nearly as much as the limit allows.
fn fill_the_log(conn: &mut Conn) {
    conn.query_drop("CREATE TABLE t (id INT PRIMARY KEY, n INT, v TEXT)").expect("a table");
    conn.query_drop("INSERT INTO t VALUES (1, 0, REPEAT('a', 3000))").expect("a row");
    (1..=UPDATES).for_each(|n| update(conn, n).expect("the log is well"));
}

/// Lets the log fail, which is full.
fn break_the_log(server: &Server, conn: &mut Conn) {
    // Behind a binary log, the last commit is in the redo log's memory only.
    server.limit_file_size(Some(LIMIT_BYTES));
    update(conn, UPDATES + 1).expect_err("the log cannot be written");
    // The statement may have met the limit in another file first; the log's regular flush comes
    // within a second.
    wait_until(PATIENCE, "the log fails", || {
        server.error_log().contains("the engine stops writing")
    });
    server.limit_file_size(None);
}

/// Lets the log fail after the last update.
fn fail_the_log(server: &Server) {
    let mut conn = server.connect_to("test");
    fill_the_log(&mut conn);
    break_the_log(server, &mut conn);
    // Reads go on. Without a binary log, a commit is seen before it is durable, and is taken back
    // by the restart.
    assert!([UPDATES, UPDATES + 1].contains(&value(&mut conn)));
    conn.query_drop("INSERT INTO t VALUES (2, 0, '')").expect_err("writes don't");
}

/// What becomes of a statement that needs a row which another session has locked.
fn wait_for_a_lock(server: &Server) -> mysql::Result<()> {
    let mut conn = server.connect_to("test");
    conn.query_drop("SET SESSION tidepool_lock_wait_timeout = 240").expect("patience");
    conn.query_drop("UPDATE held SET n = 2")
}

#[test]
fn nobody_waits_for_a_lock_once_the_redo_log_has_failed() {
    let options = Options::new("failed_log_waits").engine(Engine::Tidepool);
    let server = Server::start(options.arg("--tidepool-redo-log-capacity=8M"));
    let mut holder = server.connect_to("test");
    run(
        &mut holder,
        &[
            "CREATE TABLE held (id INT PRIMARY KEY, n INT)",
            "INSERT INTO held VALUES (1, 0)",
            "BEGIN",
            "UPDATE held SET n = 1",
        ],
    );
    let before = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for_a_lock(&server));
        let waits = "SELECT COUNT(*) FROM information_schema.TIDEPOOL_TRX WHERE trx_requested_lock_id IS NOT NULL";
        while number(&mut holder, waits) == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        fail_the_log(&server);
        wait_until(PATIENCE, "no session waits", || waiter.is_finished());
        waiter.join().expect("a thread of the test")
    });
    let since = Instant::now();
    let after = wait_for_a_lock(&server);
    assert!(since.elapsed() < PATIENCE);
    for outcome in [before, after] {
        let text = outcome.expect_err("somebody has the row").to_string();
        assert!(text.contains("the engine has stopped writing"), "{text}");
    }
}

#[test]
fn a_verdict_that_cannot_be_written_is_an_error() {
    let options = Options::new("failed_log_xa").engine(Engine::Tidepool);
    let mut server = Server::start(options.arg("--tidepool-redo-log-capacity=8M"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE kept (id INT PRIMARY KEY)"]);
    for (xid, id) in [("yes", 1), ("no", 2)] {
        let mut conn = server.connect_to("test");
        let xa = |verb: &str| format!("XA {verb} '{xid}'");
        let insert = format!("INSERT INTO kept VALUES ({id})");
        run(&mut conn, &[&xa("START"), &insert, &xa("END"), &xa("PREPARE")]);
    }
    fail_the_log(&server);
    for verdict in ["XA COMMIT 'yes'", "XA ROLLBACK 'no'"] {
        let error = conn.query_drop(verdict).expect_err("it cannot be written").to_string();
        assert!(error.contains("XAER_RMERR"), "{error}");
    }
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    run(&mut conn, &["XA COMMIT 'yes'", "XA ROLLBACK 'no'"]);
    assert_eq!(number(&mut conn, "SELECT SUM(id) FROM kept"), 1);
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

/// RESET MASTER waits, with the binary log in its hands, until all that is committed is durable;
/// and that will never be.
#[test]
fn a_reset_of_the_binary_log_ends_a_server_whose_redo_log_failed() {
    let options = Options::new("failed_log_reset").engine(Engine::Tidepool);
    let options = options.arg("--tidepool-redo-log-capacity=8M").arg("--sync-binlog=1");
    let mut server = Server::start(options.arg("--log-bin=binlog").arg("--log-bin-compress=ON"));
    fail_the_log(&server);
    let mut conn = server.connect_to("test");
    // A rotation waits for nothing, and reads go on.
    run(&mut conn, &["FLUSH BINARY LOGS"]);
    assert!([UPDATES, UPDATES + 1].contains(&value(&mut conn)));
    conn.query_drop("RESET MASTER").expect_err("the server ends");
    let since = Instant::now();
    let status = loop {
        if let Some(status) = server.exited() {
            break status;
        }
        assert!(since.elapsed() < PATIENCE, "{}", server.error_log());
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.signal(), Some(9), "{}", server.error_log());
    assert!(server.error_log().contains("RESET MASTER waits for it"), "{}", server.error_log());
    server.end(); // it is gone: only to start it again
    server.launch().expect("it recovers by itself");
    let mut conn = server.connect_to("test");
    assert_eq!(value(&mut conn), UPDATES);
    run(&mut conn, &["RESET MASTER"]);
    update(&mut conn, 20_000).expect("the log is well");
}

/// One thread commits for all of a group: each learns why its commit failed.
#[test]
fn all_of_a_group_learn_why_their_commit_failed() {
    let options = Options::new("failed_log_group").engine(Engine::Tidepool);
    let options = options.arg("--tidepool-redo-log-capacity=8M").arg("--log-bin=binlog");
    let server = Server::start(options.arg("--log-bin-compress=ON").arg("--sync-binlog=1"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE kept (id INT PRIMARY KEY)"]);
    fill_the_log(&mut conn);
    run(
        &mut conn,
        &["SET GLOBAL binlog_commit_wait_usec = 10000000, binlog_commit_wait_count = 100"],
    );
    std::thread::scope(|scope| {
        let members = [1, 2].map(|id| {
            let mut conn = server.connect_to("test");
            scope.spawn(move || {
                let failed = conn.query_drop(format!("INSERT INTO kept VALUES ({id})")).is_err();
                let warnings: Vec<(String, u32, String)> =
                    conn.query("SHOW WARNINGS").expect("warnings");
                (failed, warnings)
            })
        });
        let committing = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE info LIKE 'INSERT INTO kept%' AND state = 'Commit'";
        wait_until(PATIENCE, "both commit", || number(&mut conn, committing) >= 2);
        // Until they have prepared, too.
        std::thread::sleep(Duration::from_millis(300));
        break_the_log(&server, &mut conn);
        for member in members {
            let (failed, warnings) = member.join().expect("a thread of the test");
            let why = |(_, _, text): &(String, u32, String)| {
                text.contains("the engine has stopped writing")
            };
            assert!(failed && warnings.iter().any(why), "{warnings:?}");
        }
    });
}
