//! What the server's performance_schema shows of the engine, and that it shows nothing of it while
//! it is off.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{number, rows, run};

/// A server to which the engine can be installed, and of which it can be uninstalled.
fn start(name: &str) -> Server {
    let plugin_dir = Environment::get().plugin_dir();
    let options = Options::new(name)
        .engine(Engine::InnoDb)
        .arg(format!("--plugin-dir={}", plugin_dir.display()))
        .args(["--performance-schema=ON", "--performance-schema-instrument=%=ON"])
        // MariaDB 10.11 fills the 160 that it has by default with its stages, up to two.
        .arg("--performance-schema-max-stage-classes=200");
    let server = Server::start(options);
    run(&mut server.connect(), &["INSTALL SONAME 'ha_tidepool'"]);
    let lost = "SELECT SUM(variable_value) FROM information_schema.global_status
                WHERE variable_name LIKE 'performance_schema_%_classes_lost'";
    assert_eq!(number(&mut server.connect(), lost), 0, "instruments that had no room");
    server
}

/// The engine's threads by the kernel's ids: their names, as far as the kernel has them. Those that
/// live for a few syncs only are left out.
fn threads_of_kernel(server: &Server) -> BTreeMap<u64, String> {
    let pid = server.pid().expect("it runs");
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process has threads");
    let named = tasks.flatten().filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?.trim_end().to_owned();
        let ours = name.starts_with("tidepool-") || name.starts_with("tp-");
        let id = task.file_name().to_str()?.parse().ok()?;
        (ours && name != "tidepool-sync").then_some((id, name))
    });
    named.collect()
}

fn threads_listed(conn: &mut Conn) -> BTreeMap<u64, String> {
    let query = "SELECT thread_os_id, name FROM performance_schema.threads
                 WHERE name LIKE 'thread/tidepool/%' AND type = 'BACKGROUND'";
    conn.query::<(u64, String), _>(query).expect("threads").into_iter().collect()
}

#[test]
fn each_thread_is_listed_while_it_lives() {
    let server = start("psi_threads");
    let mut conn = server.connect_to("test");
    let pending = "INSERT INTO t SELECT seq, CONCAT('word', seq) FROM seq_1_to_10";
    for install in [true, false] {
        // This one begins when it has something to do.
        let table = "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a)) ENGINE=Tidepool";
        run(&mut conn, &[table, pending]);
        let words = |name: &String| name == "tidepool-words";
        wait_until(Duration::from_secs(60), "words are merged by a thread", || {
            threads_of_kernel(&server).values().any(words)
        });
        // A thread has its name before it is listed.
        let (mut kernel, mut listed) = (BTreeMap::new(), BTreeMap::new());
        wait_until(Duration::from_secs(60), "threads are listed", || {
            (kernel, listed) = (threads_of_kernel(&server), threads_listed(&mut conn));
            // Threads are still started after the statement.
            kernel.keys().eq(listed.keys()) && listed.len() > 12
        });
        for (id, name) in &kernel {
            let role = name.split_once('-').expect("it has two parts").1.replace('-', "_");
            assert_eq!(listed[id], format!("thread/tidepool/{role}"));
        }
        // A session that has used the engine keeps it until it ends.
        run(&mut conn, &["DROP TABLE t"]);
        conn = server.connect_to("test");
        run(&mut conn, &["UNINSTALL SONAME 'ha_tidepool'"]);
        wait_until(Duration::from_secs(60), "the engine is closed", || {
            threads_of_kernel(&server).is_empty()
        });
        assert_eq!(threads_listed(&mut conn), BTreeMap::new());
        // Until the server has forgotten the engine, it passes over it as one that it has.
        let left = "SELECT COUNT(*) FROM information_schema.plugins WHERE plugin_name = 'Tidepool'";
        wait_until(Duration::from_secs(60), "the server forgets the engine", || {
            number(&mut conn, left) == 0
        });
        if install {
            run(&mut conn, &["INSTALL SONAME 'ha_tidepool'"]);
        }
    }
}

/// Statements of a server whose consumers of events are all on, and the stages that were seen: each
/// with how much of how much was done.
fn stages_of(conn: &mut Conn, statements: &[&str]) -> BTreeMap<String, (u64, u64)> {
    run(conn, &["TRUNCATE performance_schema.events_stages_history_long"]);
    run(conn, statements);
    let query = "SELECT event_name, MAX(work_completed), MAX(work_estimated)
                 FROM performance_schema.events_stages_history_long
                 WHERE event_name LIKE 'stage/tidepool/%' AND timer_end IS NOT NULL GROUP BY 1";
    let stages = conn.query::<(String, u64, u64), _>(query).expect("stages");
    let short = |name: String| name.trim_start_matches("stage/tidepool/").to_owned();
    stages.into_iter().map(|(name, done, all)| (short(name), (done, all))).collect()
}

#[test]
fn long_statements_show_stages_and_how_far_they_are() {
    let server = start("psi_stages");
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "UPDATE performance_schema.setup_consumers SET enabled = 'YES'",
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(100)) ENGINE=Tidepool",
            "INSERT INTO t SELECT seq, -seq, CONCAT('word', seq) FROM seq_1_to_20000",
        ],
    );
    for alter in [
        "ALTER TABLE t ADD KEY (a), ALGORITHM=INPLACE",
        "ALTER TABLE t ADD FULLTEXT (b), ALGORITHM=INPLACE",
        "OPTIMIZE TABLE t",
    ] {
        let stages = stages_of(&mut conn, &[alter]);
        let (read, rows) = stages["reading rows"];
        assert!(read >= 19_000 && read <= rows && rows >= 19_000, "{alter}: {stages:?}");
        let (sorted, entries) = stages["sorting and building indexes"];
        assert!(sorted <= entries, "{alter}: {stages:?}");
        assert!(stages.contains_key("applying changes of other sessions"), "{alter}: {stages:?}");
    }
    let stages = stages_of(&mut conn, &["FLUSH TABLES t FOR EXPORT", "UNLOCK TABLES"]);
    let (written, entries) = stages["exporting a table"];
    assert!(written > 0 && written <= entries, "{stages:?}");
    // Other stages come after these, and none of ours is left.
    let current = "SELECT COUNT(*) FROM performance_schema.events_stages_current
                   WHERE event_name LIKE 'stage/tidepool/%' AND timer_end IS NULL";
    assert_eq!(number(&mut conn, current), 0);
}

/// What was done with files of a kind: reads and bytes read, writes and bytes written, the rest.
fn done_with(conn: &mut Conn, kind: &str) -> [u64; 5] {
    let query = format!(
        "SELECT count_read, sum_number_of_bytes_read, count_write, sum_number_of_bytes_write,
                count_misc
         FROM performance_schema.file_summary_by_event_name
         WHERE event_name = 'wait/io/file/tidepool/{kind}'"
    );
    conn.query_first::<(u64, u64, u64, u64, u64), _>(query).expect("counts").expect("a row").into()
}

#[test]
fn reads_writes_and_syncs_of_files_are_counted_by_kind_and_file() {
    let options = Options::new("psi_files").engine(Engine::Tidepool);
    let server = Server::start(
        options
            .args(["--performance-schema=ON", "--performance-schema-instrument=%=ON"])
            .arg("--tidepool-buffer-pool-size=8M"),
    );
    let mut conn = server.connect_to("test");
    let consumers = "UPDATE performance_schema.setup_consumers SET enabled = 'YES'";
    run(&mut conn, &[consumers, "CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(900))"]);
    let redo = done_with(&mut conn, "redo");
    let table = done_with(&mut conn, "table");
    // Four times the pool.
    let rows = "INSERT INTO t SELECT seq, RANDOM_BYTES(900) FROM seq_1_to_35000";
    run(&mut conn, &[rows]);
    let redo_after = done_with(&mut conn, "redo");
    assert!(redo_after[3] - redo[3] > 30_000_000, "bytes of rows: {redo:?} {redo_after:?}");
    assert!(redo_after[4] > redo[4], "a commit syncs: {redo:?} {redo_after:?}");
    let table_after = done_with(&mut conn, "table");
    assert!(table_after[2] > table[2], "writes: {table:?} {table_after:?}");
    assert!(table_after[3] - table[3] > 10_000_000, "evicted pages: {table:?} {table_after:?}");

    run(&mut conn, &["SELECT COUNT(DISTINCT v) FROM t"]);
    let read = done_with(&mut conn, "table");
    assert!(read[0] > table_after[0], "reads: {table_after:?} {read:?}");
    assert!(read[1] - table_after[1] > 20_000_000, "pages read: {table_after:?} {read:?}");
    let timed = "SELECT COUNT(*) FROM performance_schema.file_summary_by_event_name
                 WHERE event_name IN ('wait/io/file/tidepool/table', 'wait/io/file/tidepool/redo')
                   AND sum_timer_write > 0 AND sum_timer_misc > 0";
    assert_eq!(number(&mut conn, timed), 2);

    // The counts of a table's file are those of its kind, if there is one table.
    let of_file = "SELECT COUNT(*) FROM performance_schema.file_summary_by_instance
                   WHERE file_name LIKE '%/tidepool/tables/%' AND sum_number_of_bytes_write > 0";
    assert_eq!(number(&mut conn, of_file), 1);
    let path = "SELECT file_name FROM performance_schema.file_summary_by_instance
                WHERE event_name = 'wait/io/file/tidepool/table' AND sum_number_of_bytes_write > 0";
    let path: String = conn.query_first(path).expect("a path").expect("a row");
    assert!(fs::exists(&path).expect("a path can be looked up"), "{path}");
    run(&mut conn, &["DROP TABLE t"]);
    wait_until(Duration::from_secs(60), "the file of a dropped table is not listed", || {
        number(&mut conn, of_file) == 0
    });
}

#[test]
fn a_server_whose_performance_schema_is_off_has_no_instruments() {
    let server = Server::start(Options::new("psi_off").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"]);
    run(&mut conn, &["ALTER TABLE t ADD COLUMN a INT, ADD KEY (a), ALGORITHM=INPLACE"]);
    assert_eq!(rows(&mut conn, "SHOW VARIABLES LIKE 'performance_schema'").len(), 1);
    assert_eq!(number(&mut conn, "SELECT @@performance_schema"), 0);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM performance_schema.threads"), 0);
}
