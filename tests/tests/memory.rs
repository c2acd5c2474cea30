//! The size of the buffer pool: what can be set, what is shown, and what a neighbour in the same
//! cgroup does to it.
//!
//! Only Tidepool has these variables, so on another engine nothing is tested. What takes its time
//! is waited for, as long as it takes; only what must never happen is asserted while waiting.

use std::process::Command;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::cgroup::MemoryCgroup;
use tidepool_tests::server::{self, Engine, Options, Server};
use tidepool_tests::sql::run;

const MIB: u64 = 1 << 20;
/// Nothing here takes long; a test that waits for this has failed.
const PATIENCE: Duration = Duration::from_secs(180);

fn start(options: Options) -> Option<Server> {
    (options.engine == Engine::Tidepool).then(|| Server::start(options))
}

fn text(conn: &mut Conn, sql: &str) -> String {
    conn.query_first(sql).expect("a query works").expect("a row")
}

fn variable(conn: &mut Conn, name: &str) -> String {
    text(conn, &format!("SELECT CAST(@@global.tidepool_{name} AS CHAR)"))
}

fn status(conn: &mut Conn, name: &str) -> String {
    let sql = format!(
        "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'TIDEPOOL_{name}'"
    );
    text(conn, &sql)
}

fn number(conn: &mut Conn, name: &str) -> u64 {
    status(conn, name).parse().expect("a number")
}

fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    server::wait_until(PATIENCE, what, condition);
}

fn warnings(conn: &mut Conn) -> Vec<(String, u16, String)> {
    conn.query("SHOW WARNINGS").expect("warnings can be shown")
}

#[test]
fn every_form_of_set_global() {
    let Some(server) = start(Options::new("set_global")) else { return };
    let conn = &mut server.connect();
    assert_eq!(variable(conn, "buffer_pool_size"), "0", "governed is the default");
    assert_eq!(variable(conn, "memory_guard"), "ON");
    assert!(number(conn, "memory_room_bytes") > 0);

    let mut set =
        |value: &str| conn.query_drop(format!("SET GLOBAL tidepool_buffer_pool_size = {value}"));
    set("64 * 1024 * 1024").expect("a size can be set");
    let conn = &mut server.connect();
    assert_eq!(variable(conn, "buffer_pool_size"), (64 * MIB).to_string());
    wait_until("64 MiB", || number(conn, "buffer_pool_size_bytes") == 64 * MIB);
    wait_until("the resize's end", || {
        status(conn, "buffer_pool_resize_status")
            .starts_with("Completed resizing buffer pool to 64 MiB")
    });
    assert_eq!(number(conn, "buffer_pool_resize_status_code"), 0);
    assert!(number(conn, "buffer_pool_resizes") >= 1);
    let _: u64 = number(conn, "buffer_pool_resize_longest_wait_us");

    // Too small: the least, with a warning, as InnoDB does.
    for (value, shown) in [("1000", "'1000'"), ("-5", "'-5'")] {
        conn.query_drop(format!("SET GLOBAL tidepool_buffer_pool_size = {value}"))
            .expect("is adjusted");
        let warnings = warnings(conn);
        assert_eq!((warnings.len(), warnings[0].1), (1, 1292), "{warnings:?}");
        assert!(warnings[0].2.contains(shown), "{warnings:?}");
        assert_eq!(variable(conn, "buffer_pool_size"), (4 * MIB).to_string());
    }
    wait_until("4 MiB", || number(conn, "buffer_pool_size_bytes") == 4 * MIB);
    conn.query_drop("SET GLOBAL tidepool_buffer_pool_size = 'much'").expect_err("no number");
    conn.query_drop("SET GLOBAL tidepool_buffer_pool_size = 1.5").expect_err("no whole number");
    assert_eq!(variable(conn, "buffer_pool_size"), (4 * MIB).to_string());

    // A ceiling far above the machine's memory promises nothing.
    conn.query_drop("SET GLOBAL tidepool_buffer_pool_size = 1 << 50").expect("a ceiling");
    wait_until("growth", || number(conn, "buffer_pool_size_bytes") > 4 * MIB);
    assert!(number(conn, "buffer_pool_size_bytes") < 1 << 50);

    // Governed again, by number and by name.
    for value in ["0", "DEFAULT"] {
        conn.query_drop("SET GLOBAL tidepool_buffer_pool_size = 33554432").expect("32 MiB");
        wait_until("32 MiB", || number(conn, "buffer_pool_size_bytes") == 32 * MIB);
        conn.query_drop(format!("SET GLOBAL tidepool_buffer_pool_size = {value}"))
            .expect("governed");
        assert_eq!(variable(conn, "buffer_pool_size"), "0");
    }

    // Without the guard a number is what it says.
    conn.query_drop("SET GLOBAL tidepool_memory_guard = OFF").expect("can be switched");
    conn.query_drop("SET GLOBAL tidepool_buffer_pool_size = 48 << 20").expect("48 MiB");
    wait_until("48 MiB", || number(conn, "buffer_pool_size_bytes") == 48 * MIB);
    assert!(status(conn, "memory_decision_reason").contains("guard is off"));
    conn.query_drop("SET GLOBAL tidepool_memory_guard = ON").expect("can be switched");

    // The redo log's size likewise.
    assert_eq!(variable(conn, "redo_log_capacity"), "0");
    conn.query_drop("SET GLOBAL tidepool_redo_log_capacity = 1000").expect("is adjusted");
    assert!(warnings(conn)[0].2.contains("'1000'"));
    assert_eq!(variable(conn, "redo_log_capacity"), (8 * MIB).to_string());
    conn.query_drop("SET GLOBAL tidepool_redo_log_capacity = DEFAULT").expect("automatic");
}

#[test]
fn memory_is_accounted_for() {
    let Some(server) = start(Options::new("accounts").arg("--tidepool-buffer-pool-size=64M"))
    else {
        return;
    };
    let conn = &mut server.connect_to("test");
    conn.query_drop("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100))").expect("a table");
    conn.query_drop("INSERT INTO t SELECT seq, REPEAT('x', 90) FROM seq_1_to_20000").expect("rows");
    let frames = number(conn, "memory_frames");
    assert_eq!(frames, number(conn, "buffer_pool_resident_bytes"));
    assert!(frames > 0 && frames <= 64 * MIB, "{frames}");
    for name in ["frame_descriptors", "replacement", "translation", "redo_buffers", "trx_states"] {
        let bytes = number(conn, &format!("memory_{name}"));
        assert!(bytes > 0 && bytes < 64 * MIB, "{name}: {bytes}");
    }
    // Locks on 20,000 rows take some 250 bytes each for the first thousand, and are bits behind
    // that, for as long as they are held.
    let before = number(conn, "memory_lock_table");
    let mut locker = server.connect_to("test");
    let mut locked_by = |suffix: &str| {
        locker.query_drop("BEGIN").expect("a transaction");
        let rows: Vec<i64> = locker.query(format!("SELECT id FROM t {suffix}")).expect("locks");
        assert_eq!(rows.len(), 20_000);
        assert_eq!(number(conn, "lock_keys"), 20_000);
        let bytes = number(conn, "memory_lock_table") - before;
        locker.query_drop("ROLLBACK").expect("a rollback");
        wait_until("the locks' end", || number(conn, "memory_lock_table") == before);
        bytes
    };
    for suffix in ["LOCK IN SHARE MODE", "FOR UPDATE"] {
        let bytes = locked_by(suffix);
        assert!((1_000 * 100..1_000_000).contains(&bytes), "{suffix}: {bytes}");
    }
    conn.query_drop("ALTER TABLE t ADD INDEX (v), ALGORITHM=NOCOPY").expect("an index");
    assert_eq!(number(conn, "memory_sorts"), 0, "a sort's memory goes with it");
    assert!(number(conn, "memory_total") < number(conn, "memory_own_resident_bytes") + 64 * MIB);
}

/// Connections stay, and tables stay open, long after a statement has read or written a long value.
#[test]
fn long_values_leave_no_memory_with_connections_and_open_tables() {
    const CONNECTIONS: u64 = 4;
    const VALUE_MIB: u64 = 40;
    // What is freed goes back to the system at once.
    let options = Options::new("long-values")
        .wrapper(&["env", "MALLOC_MMAP_THRESHOLD_=262144"])
        .arg("--tidepool-buffer-pool-size=64M")
        .arg("--max-allowed-packet=256M");
    let Some(server) = start(options) else { return };
    let conn = &mut server.connect_to("test");
    conn.query_drop("CREATE TABLE t (id INT PRIMARY KEY, k INT, v LONGBLOB, KEY (k))")
        .expect("a table");
    let use_all = |conn: &mut Conn, id: u64| {
        let statements = [
            format!("INSERT INTO t VALUES ({id}, 1, REPEAT('x', {}))", VALUE_MIB << 20),
            format!("SELECT LENGTH(v) FROM t WHERE id = {id}"),
            "SELECT SUM(LENGTH(v)) FROM t".into(),
            "SELECT SUM(LENGTH(v)) FROM t FORCE INDEX (k) WHERE k = 1".into(),
            "SELECT SUM(LENGTH(v)) FROM t FOR UPDATE".into(),
            format!("UPDATE t SET v = CONCAT(v, 'y') WHERE id = {id}"),
            format!("INSERT IGNORE INTO t VALUES ({id}, 1, REPEAT('x', {}))", VALUE_MIB << 20),
        ];
        statements.iter().for_each(|sql| conn.query_drop(sql).expect("a statement"));
    };
    use_all(conn, 0);
    conn.query_drop("FLUSH TABLES").expect("tables are closed");
    let before = number(conn, "memory_own_resident_bytes");
    let mut others: Vec<Conn> = (0..CONNECTIONS).map(|_| server.connect_to("test")).collect();
    for (id, other) in (1..).zip(&mut others) {
        use_all(other, id);
    }
    wait_until("the memory's return", || {
        number(conn, "memory_own_resident_bytes") < before + CONNECTIONS * VALUE_MIB * MIB / 2
    });
    drop(others);
}

/// `--memlock` locks what the server uses, not all that the pool might use once, and what the pool
/// gives back is free.
#[test]
fn locked_memory_is_no_more_than_what_is_used() {
    let group = match MemoryCgroup::create(1024 * MIB) {
        Ok(group) => group,
        Err(why) => return tidepool_skip::skip(why),
    };
    let options = Options::new("memlock").cgroup(group.procs()).arg("--memlock");
    let Some(mut server) = start(options) else { return };
    let conn = &mut server.connect_to("test");
    if text(conn, "SELECT @@locked_in_memory") != "1" {
        return tidepool_skip::skip("memory can't be locked here");
    }
    run(
        conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(1000))",
            "INSERT INTO t SELECT seq, REPEAT('x', 1000) FROM seq_1_to_200000",
        ],
    );
    let full = number(conn, "buffer_pool_resident_bytes");
    assert!(full > 200 * MIB, "the pool has only {} MiB", full / MIB);
    let used = number(conn, "memory_own_resident_bytes");
    run(conn, &["SET GLOBAL tidepool_buffer_pool_size = 64 * 1024 * 1024"]);
    wait_until("the shrink", || number(conn, "buffer_pool_resident_bytes") <= 70 * MIB);
    wait_until("the memory's return", || {
        number(conn, "memory_own_resident_bytes") < used - (full - 100 * MIB)
    });
    assert_eq!(text(conn, "SELECT CAST(SUM(LENGTH(v)) AS CHAR) FROM t"), "200000000");
    run(conn, &["SET GLOBAL tidepool_buffer_pool_size = 0"]);
    assert_eq!(text(conn, "SELECT CAST(SUM(LENGTH(v)) AS CHAR) FROM t"), "200000000");
    assert_eq!(group.oom_kills(), 0);
    server.stop();
}

/// Makes a table with rows of a kilobyte.
fn make_table(conn: &mut Conn, rows: u64) {
    conn.query_drop("CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(1000))").expect("a table");
    for from in (0..rows).step_by(50_000) {
        conn.query_drop(format!(
            "INSERT INTO t SELECT seq + {from}, REPEAT('x', 1000) FROM seq_1_to_50000"
        ))
        .expect("rows");
    }
}

/// Reads all rows of the table.
fn sum(conn: &mut Conn) -> u64 {
    text(conn, "SELECT CAST(SUM(LENGTH(v)) AS CHAR) FROM t").parse().expect("a number")
}

#[test]
fn a_limit_is_lowered_below_a_server_in_the_documented_order() {
    let group = match MemoryCgroup::create(768 * MIB) {
        Ok(group) => group,
        Err(why) => return tidepool_skip::skip(why),
    };
    let options = Options::new("lowered_limit").cgroup(group.procs()).arg("--skip-log-bin");
    let Some(mut server) = start(options) else { return };
    let conn = &mut server.connect_to("test");
    let rows = 12 * 50_000;
    make_table(conn, rows);
    assert_eq!(sum(conn), rows * 1000);
    let full = number(conn, "buffer_pool_resident_bytes");
    let limit = 400 * MIB;
    assert!(full > limit, "the pool has only {} MiB", full / MIB);
    // docs/operations/memory.md: a ceiling first, the limit when the pool has that size, then no
    // ceiling.
    let ceiling = limit / 100 * 60;
    conn.query_drop(format!("SET GLOBAL tidepool_buffer_pool_size = {ceiling}")).expect("is set");
    wait_until("the ceiling", || number(conn, "buffer_pool_resident_bytes") <= ceiling);
    group.set_limit(limit).expect("what is in use fits the limit");
    conn.query_drop("SET GLOBAL tidepool_buffer_pool_size = 0").expect("is set");
    wait_until("the room that is left", || {
        assert_eq!(sum(conn), rows * 1000);
        let resident = number(conn, "buffer_pool_resident_bytes");
        assert!(resident < limit, "{} MiB of {}", resident / MIB, limit / MIB);
        resident > ceiling
    });
    assert_eq!(number(conn, "memory_limit_bytes"), limit);
    // And back.
    group.set_limit(768 * MIB).expect("a limit can be raised");
    wait_until("the old size", || {
        assert_eq!(sum(conn), rows * 1000);
        number(conn, "buffer_pool_resident_bytes") > full / 10 * 9
    });
    assert_eq!(group.oom_kills(), 0);
    assert!(server.exited().is_none());
    server.stop();
}

#[test]
fn a_neighbour_gets_its_memory_and_the_pool_comes_back() {
    let group = match MemoryCgroup::create(512 * MIB) {
        Ok(group) => group,
        Err(why) => return tidepool_skip::skip(why),
    };
    let options = Options::new("neighbour").cgroup(group.procs()).arg("--skip-log-bin");
    let Some(mut server) = start(options) else { return };
    let conn = &mut server.connect_to("test");
    let limit = 512 * MIB;
    assert_eq!(number(conn, "memory_limit_bytes"), limit);
    assert!(status(conn, "memory_limit_place").contains("tidepool-test"));
    // More rows than fit.
    let rows = 12 * 50_000;
    make_table(conn, rows);
    assert_eq!(sum(conn), rows * 1000);
    let full = number(conn, "buffer_pool_resident_bytes");
    assert!(full > limit / 4, "the pool took only {} MiB", full / MIB);
    assert!(full < limit, "the pool took {} MiB", full / MIB);

    let mut neighbour = group.neighbour(200);
    wait_until("the neighbour's memory", || {
        assert!(!neighbour.is_gone(), "the neighbour was killed");
        neighbour.resident_bytes() >= 200 * MIB
    });
    assert_eq!(sum(conn), rows * 1000);
    let small = number(conn, "buffer_pool_resident_bytes");
    assert!(
        small <= limit - 200 * MIB,
        "{} of {} MiB, with a neighbour of 200",
        small / MIB,
        full / MIB
    );
    assert!(number(conn, "memory_shrinks") > 0);
    assert_eq!(group.oom_kills(), 0);
    assert!(server.exited().is_none() && !neighbour.is_gone());

    drop(neighbour);
    wait_until("the size's return", || {
        assert_eq!(sum(conn), rows * 1000);
        number(conn, "buffer_pool_resident_bytes") > full / 10 * 9
    });
    assert!(number(conn, "memory_grows") > 0);
    assert_eq!(group.oom_kills(), 0);
    assert!(server.exited().is_none());
    let log = server.error_log();
    assert!(log.contains("Tidepool: the buffer pool may have"), "{log}");
    assert!(log.contains("MiB: room shrank: cgroup"), "{log}");
    let lines = log.lines().filter(|line| line.contains("Tidepool: buffer pool from")).count();
    assert!(lines < 200, "{lines} lines about sizes");
    server.stop();
}

#[test]
#[ignore = "takes three minutes"]
fn memory_that_brings_nothing_goes_back_and_a_load_that_returns_has_it_again() {
    let group = match MemoryCgroup::create(768 * MIB) {
        Ok(group) => group,
        Err(why) => return tidepool_skip::skip(why),
    };
    let options = Options::new("returned").cgroup(group.procs()).arg("--skip-log-bin");
    let Some(mut server) = start(options) else { return };
    let conn = &mut server.connect_to("test");
    assert_eq!(variable(conn, "memory_policy"), "AUTO", "so it returns memory in a cgroup");
    let rows = 6 * 50_000;
    make_table(conn, rows);
    assert_eq!(sum(conn), rows * 1000);
    let full = number(conn, "buffer_pool_resident_bytes");
    let asked_again = |conn: &mut Conn| {
        let few = text(conn, "SELECT CAST(SUM(LENGTH(v)) AS CHAR) FROM t WHERE id <= 20000");
        assert_eq!(few, "20000000");
    };
    let returned = "FROM information_schema.TIDEPOOL_MEMORY_DECISIONS \
                    WHERE SIGNAL_NAME = 'memory without use'";
    // The engine must have seen for a minute what the load needs, and for another that it stays so.
    server::wait_until(3 * PATIENCE, "memory to go back", || {
        asked_again(conn);
        number(conn, "buffer_pool_resident_bytes") < full / 3 * 2
    });
    let steps: u64 = text(conn, &format!("SELECT COUNT(*) {returned}")).parse().expect("a number");
    assert!(steps >= 2, "{steps}");
    let reason = text(conn, &format!("SELECT REASON {returned} LIMIT 1"));
    assert!(
        reason.contains(" MiB would do, with ") && reason.contains(" reads/s more"),
        "{reason}"
    );
    assert!(number(conn, "memory_needed_bytes") < full);
    // What returns is read again, and then it is there.
    wait_until("the size's return", || {
        assert_eq!(sum(conn), rows * 1000);
        number(conn, "buffer_pool_resident_bytes") > full / 10 * 9
    });
    sum(conn);
    let before = number(conn, "buffer_pool_reads") + number(conn, "buffer_pool_read_ahead");
    sum(conn);
    let after = number(conn, "buffer_pool_reads") + number(conn, "buffer_pool_read_ahead");
    assert!(after - before < 100, "{} pages were read", after - before);
    // It can be turned off.
    conn.query_drop("SET GLOBAL tidepool_memory_policy = KEEP").expect("can be set");
    assert_eq!(variable(conn, "memory_policy"), "KEEP");
    assert_eq!(group.oom_kills(), 0);
    server.stop();
}

#[test]
fn hot_pages_come_back_after_a_kill() {
    let Some(mut server) = start(Options::new("hot_pages")) else { return };
    let conn = &mut server.connect();
    assert_eq!(variable(conn, "buffer_pool_dump_at_shutdown"), "ON");
    assert_eq!(variable(conn, "buffer_pool_load_at_startup"), "ON");
    conn.query_drop("CREATE DATABASE warm").expect("a database can be made");
    conn.query_drop("USE warm").expect("and used");
    conn.query_drop("CREATE TABLE warm.t (id INT PRIMARY KEY, a CHAR(200)) ENGINE=Tidepool")
        .expect("a table can be made");
    conn.query_drop("INSERT INTO warm.t SELECT seq, 'x' FROM seq_1_to_20000")
        .expect("rows can be inserted");
    let read = |conn: &mut Conn| {
        let before = number(conn, "buffer_pool_reads");
        text(conn, "SELECT CAST(SUM(LENGTH(a)) AS CHAR) FROM warm.t WHERE id > 0");
        number(conn, "buffer_pool_reads") - before
    };
    read(conn);
    conn.query_drop("SET GLOBAL tidepool_buffer_pool_dump_now = ON").expect("it can be saved");
    assert_eq!(variable(conn, "buffer_pool_dump_now"), "OFF");
    let dumped = status(conn, "buffer_pool_dump_status");
    assert!(dumped.starts_with("Buffer pool(s) dump completed: "), "{dumped}");

    server.kill9();
    server.launch().expect("it starts again");
    let conn = &mut server.connect();
    let loaded = |conn: &mut Conn| {
        wait_until("the hot pages", || {
            status(conn, "buffer_pool_load_status").starts_with("Buffer pool(s) load completed: ")
        });
    };
    loaded(conn);
    assert_eq!(read(conn), 0, "all of the table is there");
    conn.query_drop("SET GLOBAL tidepool_buffer_pool_load_now = ON").expect("once more");
    conn.query_drop("SET GLOBAL tidepool_buffer_pool_load_abort = ON").expect("or rather not");
}

#[test]
fn settings_of_another_replacement_policy_warn() {
    let Some(mut server) = start(Options::new("old_blocks")) else { return };
    let settings = [("old_blocks_time", 500), ("old_blocks_pct", 20)];
    let conn = &mut server.connect();
    for (name, value) in settings {
        run(conn, &[&format!("SET GLOBAL tidepool_{name} = {value}")]);
        let warnings = warnings(conn);
        assert_eq!((warnings.len(), warnings[0].0.as_str()), (1, "Warning"), "{warnings:?}");
        let text = &warnings[0].2;
        assert!(text.starts_with(&format!("tidepool_{name} has no effect")), "{text}");
        assert!(text.contains("tidepool_buffer_pool_replacement=midpoint"), "{text}");
        assert_eq!(variable(conn, name), value.to_string());
    }
    const AT_START: &str =
        "Tidepool: tidepool_old_blocks_pct and tidepool_old_blocks_time have no effect";
    assert!(!server.error_log().contains(AT_START));
    let midpoint = "--tidepool-buffer-pool-replacement=midpoint";
    server.restart_with(&[midpoint, "--tidepool-old-blocks-time=0"]);
    let conn = &mut server.connect();
    for (name, value) in settings {
        run(conn, &[&format!("SET GLOBAL tidepool_{name} = {value}")]);
        assert_eq!(warnings(conn), []);
    }
    assert!(!server.error_log().contains(AT_START));
    server.restart_with(&["--tidepool-old-blocks-time=0"]);
    assert_eq!(server.error_log().matches(AT_START).count(), 1);
}

/// What `LimitNICE=` of the server's service grants, and what is said where it is missing.
#[test]
fn the_priority_of_the_threads_is_told() {
    let own = rustix::process::getpriority_process(None).expect("a nice value");
    let raised = (own - 10).max(-20);
    // Without the privilege, by the limit alone; last as it is here, with whatever privilege there
    // is.
    for (limit, allowed) in
        [("--nice=0:0", vec![own]), ("--nice=30:30", vec![raised]), ("", vec![own, raised])]
    {
        let mut wrapper = vec!["prlimit", limit];
        if rustix::process::geteuid().is_root() {
            wrapper.extend(["setpriv", "--bounding-set=-sys_nice"]);
        }
        if limit.is_empty() {
            wrapper = vec!["env"];
        }
        let can_be_had = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
        if !can_be_had.is_ok_and(|output| output.status.success()) {
            tidepool_skip::skip_part(format!("{wrapper:?} is not possible here"));
            continue;
        }
        let Some(server) = start(Options::new("priority").wrapper(&wrapper)) else { return };
        let conn = &mut server.connect();
        wait_until("the threads", || !status(conn, "memory_thread_nice").is_empty());
        let nice: i32 = status(conn, "memory_thread_nice").parse().expect("a number");
        assert!(allowed.contains(&nice), "{wrapper:?}: {nice}");
        let log = server.error_log();
        assert_eq!(log.matches("LimitNICE=").count(), usize::from(nice == own), "{log}");
    }
}
