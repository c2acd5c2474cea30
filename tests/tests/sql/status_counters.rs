//! Status variables count what `docs/reference/sql.md` says that they count.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{code_of, run};

const PATIENCE: Duration = Duration::from_secs(30);
const DEADLOCK: u16 = 1213;
const LOCK_WAIT_TIMEOUT: u16 = 1205;

/// All counters of one moment, without their prefix.
fn all(conn: &mut Conn) -> BTreeMap<String, i64> {
    let rows: Vec<(String, String)> =
        conn.query("SHOW GLOBAL STATUS LIKE 'Tidepool\\_%'").expect("a status");
    let number = |(name, text): (String, String)| {
        let name = name.trim_start_matches("Tidepool_").to_owned();
        Some((name, text.parse().ok()?))
    };
    rows.into_iter().filter_map(number).collect()
}

fn one(conn: &mut Conn, name: &str) -> i64 {
    *all(conn).get(name).unwrap_or_else(|| panic!("no status variable Tidepool_{name}"))
}

/// Statements, a counter, and by how much they raise it, at least and at most.
type Effect = (&'static [&'static str], &'static str, i64, i64);

const MANY: i64 = i64::MAX;
const UPDATE: &str = "UPDATE t SET v = v + 1 WHERE id = 5";
const EFFECTS: [Effect; 19] = [
    (&["INSERT INTO t SELECT seq, 0, '' FROM seq_2001_to_2007"], "rows_inserted", 7, 7),
    (&["UPDATE t SET v = v + 1 WHERE id <= 10"], "rows_updated", 10, 10),
    (&["UPDATE t SET v = v + 1 WHERE id <= 10"], "rows_inserted", 0, 0),
    (&["UPDATE t SET v = v + 1 WHERE id <= 10"], "rows_deleted", 0, 0),
    (&["DELETE FROM t WHERE id > 2004"], "rows_deleted", 3, 3),
    (&["DELETE FROM t WHERE id > 2001"], "rows_updated", 0, 0),
    (&["SELECT pad FROM t WHERE id BETWEEN 1 AND 100"], "rows_read", 100, 101),
    (&["BEGIN", UPDATE, "COMMIT"], "trx_commits", 1, 3),
    (&["BEGIN", UPDATE, "COMMIT"], "trx_rollbacks", 0, 0),
    (&["BEGIN", UPDATE, "ROLLBACK"], "trx_rollbacks", 1, 1),
    (&[UPDATE], "log_write_requests", 2, MANY),
    (&[UPDATE], "log_writes", 1, MANY),
    (&[UPDATE], "log_flush_requests", 1, MANY),
    (&[UPDATE], "os_log_written", 100, MANY),
    (&[UPDATE], "os_log_fsyncs", 1, MANY),
    (&[UPDATE], "lsn_current", 100, MANY),
    (&[UPDATE], "trx_newest_csn", 1, MANY),
    (&["SELECT COUNT(*) FROM t"], "buffer_pool_read_requests", 5, MANY),
    (
        &["CREATE TABLE more (id INT PRIMARY KEY)", "INSERT INTO more VALUES (1)"],
        "pages_created",
        1,
        MANY,
    ),
];

#[test]
fn counters_count_what_they_say() {
    let options = Options::new("status_counters").engine(Engine::Tidepool);
    let server = Server::start(options.arg("--tidepool-flush-log-at-trx-commit=1"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, pad CHAR(200))",
            "INSERT INTO t SELECT seq, 0, 'x' FROM seq_1_to_1000",
            "CREATE TABLE parent (id INT PRIMARY KEY)",
        ],
    );
    for (statements, name, least, most) in EFFECTS {
        let before = one(&mut conn, name);
        run(&mut conn, statements);
        let grown = one(&mut conn, name) - before;
        assert!((least..=most).contains(&grown), "{name} grows by {grown}: {statements:?}");
    }
    states_of_sessions(&server, &mut conn);
    waits_for_locks(&server, &mut conn);
    wait_until(PATIENCE, "the purge", || one(&mut conn, "history_list_length") == 0);
    let now = all(&mut conn);
    assert!(now["purge_logs"] > 0 && now["purge_entries"] > 0, "{now:?}");
    relations(&now);
}

/// What counts what there is now.
fn states_of_sessions(server: &Server, conn: &mut Conn) {
    let mut other = server.connect_to("test");
    let mut expect = |name: &str, is_right: fn(i64) -> bool| {
        let value = one(conn, name);
        assert!(is_right(value), "{name} is {value}");
    };
    expect("trx_active_writers", |n| n == 0);
    expect("lock_keys", |n| n == 0);
    expect("lock_ranges", |n| n == 0);
    run(&mut other, &["BEGIN", UPDATE]);
    expect("trx_active_writers", |n| n == 1);
    run(&mut other, &["SELECT id FROM t WHERE id BETWEEN 20 AND 30 FOR UPDATE"]);
    expect("lock_keys", |n| n >= 1);
    run(&mut other, &["ROLLBACK", "START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
    expect("trx_read_views", |n| n >= 1);
    expect("trx_active_writers", |n| n == 0);
    expect("lock_ranges", |n| n == 0);
    run(&mut other, &["COMMIT", "XA START 'x'", UPDATE, "XA END 'x'", "XA PREPARE 'x'"]);
    drop(other);
    wait_until(PATIENCE, "the session's end", || one(conn, "trx_prepared") == 1);
    run(conn, &["XA COMMIT 'x'"]);
    assert_eq!(one(conn, "trx_prepared"), 0);
}

/// Two sessions that want the same rows.
fn waits_for_locks(server: &Server, conn: &mut Conn) {
    let mut holder = server.connect_to("test");
    let before = all(conn);
    run(&mut holder, &["BEGIN", UPDATE]);
    let mut waiter = server.connect_to("test");
    let waiting = thread::spawn(move || {
        run(&mut waiter, &[UPDATE]);
        waiter
    });
    wait_until(PATIENCE, "a wait", || one(conn, "row_lock_current_waits") == 1);
    thread::sleep(Duration::from_millis(500));
    run(&mut holder, &["COMMIT"]);
    let mut waiter = waiting.join().expect("no panic");
    let after = all(conn);
    let grown = |name: &str| after[name] - before[name];
    assert_eq!(grown("row_lock_waits"), 1);
    assert_eq!(grown("row_lock_timeouts"), 0);
    assert_eq!(after["row_lock_current_waits"], 0);
    // In milliseconds.
    assert!((500..60_000).contains(&grown("row_lock_time")), "{}", grown("row_lock_time"));
    let average = after["row_lock_time"] / after["row_lock_waits"];
    assert_eq!(after["row_lock_time_avg"], average);

    run(&mut holder, &["BEGIN", UPDATE]);
    run(&mut waiter, &["SET tidepool_lock_wait_timeout = 1"]);
    assert_eq!(code_of(&mut waiter, UPDATE), LOCK_WAIT_TIMEOUT);
    assert_eq!(one(conn, "row_lock_timeouts") - after["row_lock_timeouts"], 1);
    run(&mut holder, &["ROLLBACK"]);

    // A circle, which is found, and one that is not looked for.
    for (detect, code) in [("ON", DEADLOCK), ("OFF", LOCK_WAIT_TIMEOUT), ("ON", DEADLOCK)] {
        run(conn, &[&format!("SET GLOBAL tidepool_deadlock_detect = {detect}")]);
        let deadlocks = one(conn, "deadlocks");
        let waits = one(conn, "row_lock_waits");
        run(&mut holder, &["SET tidepool_lock_wait_timeout = 20", "BEGIN"]);
        run(&mut holder, &["UPDATE t SET v = 0 WHERE id = 1"]);
        run(&mut waiter, &["SET tidepool_lock_wait_timeout = 1", "BEGIN"]);
        run(&mut waiter, &["UPDATE t SET v = 0 WHERE id = 2"]);
        let waiting = thread::spawn(move || {
            let code = code_of(&mut holder, "UPDATE t SET v = 1 WHERE id = 2");
            let _ = holder.query_drop("ROLLBACK");
            (holder, code)
        });
        wait_until(PATIENCE, "a wait", || one(conn, "row_lock_current_waits") == 1);
        let own = code_of(&mut waiter, "UPDATE t SET v = 1 WHERE id = 1");
        run(&mut waiter, &["ROLLBACK"]);
        let (back, others) = waiting.join().expect("no panic");
        holder = back;
        // One of the two is the victim.
        assert_eq!(own.max(others), code, "detection is {detect}: {own}, {others}");
        assert_eq!(own.min(others), 0, "detection is {detect}");
        let found = one(conn, "deadlocks") - deadlocks;
        assert_eq!(found, i64::from(detect == "ON"), "detection is {detect}");
        assert!(one(conn, "row_lock_waits") > waits);
    }
}

/// What must hold between counters while nothing runs.
fn relations(now: &BTreeMap<String, i64>) {
    let ascending = |names: &[&str]| {
        for pair in names.windows(2) {
            assert!(now[pair[0]] <= now[pair[1]], "{pair:?}: {} > {}", now[pair[0]], now[pair[1]]);
        }
    };
    ascending(&["lsn_last_checkpoint", "lsn_flushed", "lsn_written", "lsn_current"]);
    ascending(&["data_live_bytes", "data_occupied_bytes", "data_files_bytes"]);
    ascending(&["buffer_pool_pages_dirty", "buffer_pool_pages_data", "buffer_pool_pages_total"]);
    ascending(&["buffer_pool_pages_old", "buffer_pool_pages_data"]);
    ascending(&["checkpoint_age", "checkpoint_max_age"]);
    assert_eq!(now["checkpoint_age"], now["lsn_current"] - now["lsn_last_checkpoint"]);
    let page_size = now["page_size"];
    for (pages, bytes) in [
        ("buffer_pool_pages_dirty", "buffer_pool_bytes_dirty"),
        ("buffer_pool_pages_data", "buffer_pool_bytes_data"),
        ("buffer_pool_pages_total", "buffer_pool_size_bytes"),
    ] {
        assert_eq!(now[pages] * page_size, now[bytes], "{pages}, {bytes}");
    }
    let all_read = now["buffer_pool_reads"] + now["buffer_pool_read_ahead"];
    assert_eq!(now["pages_read"], all_read);
    assert!(now["open_tables"] >= 2, "{}", now["open_tables"]);
    assert_eq!(now["buffer_pool_write_errors"] + now["buffer_pool_read_errors"], 0);
    assert_eq!((now["log_waits"], now["log_buffer_waits"]), (0, 0));
}
