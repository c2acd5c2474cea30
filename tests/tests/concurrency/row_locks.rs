//! Which rows READ COMMITTED keeps locked, and for which it waits.

use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{number, run};

fn read_committed(server: &Server) -> Conn {
    let mut conn = server.connect_to("test");
    run(&mut conn, &["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"]);
    conn
}

/// Which rows another session finds not locked, by the index that `hint` forces.
fn free(server: &Server, hint: &str) -> Vec<i32> {
    let sql = format!("SELECT id FROM t {hint} WHERE a >= 0 FOR UPDATE SKIP LOCKED");
    let mut ids: Vec<i32> = read_committed(server).query(sql).expect("locked rows are skipped");
    ids.sort_unstable();
    ids
}

#[test]
fn a_row_that_does_not_match_is_locked_in_no_index() {
    // InnoDB keeps the locks of some of these.
    let server = Server::start(Options::new("unlock_row").engine(Engine::Tidepool));
    let mut conn = read_committed(&server);
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, c INT, KEY (a), UNIQUE (c))",
            "INSERT INTO t SELECT seq, seq DIV 2, seq % 3, seq FROM seq_1_to_12",
            "BEGIN",
            // Held before, so not given up by the scan.
            "SELECT * FROM t WHERE id = 5 FOR UPDATE",
            "UPDATE t FORCE INDEX (a) SET b = 10 WHERE a >= 0 AND b = 0",
        ],
    );
    let expected = [1, 2, 4, 7, 8, 10, 11];
    for hint in ["FORCE INDEX (PRIMARY)", "FORCE INDEX (a)"] {
        assert_eq!(free(&server, hint), expected, "{hint}");
    }
    run(&mut conn, &["ROLLBACK", "BEGIN", "DELETE FROM t WHERE c = 4 AND b = 0"]);
    run(
        &mut conn,
        &["UPDATE t FORCE INDEX (a) SET b = 11 WHERE a = 3 AND b = 0 ORDER BY b LIMIT 5"],
    );
    for hint in ["FORCE INDEX (PRIMARY)", "FORCE INDEX (a)", "FORCE INDEX (c)"] {
        let all: Vec<i32> = (1..13).filter(|id| *id != 6).collect();
        assert_eq!(free(&server, hint), all, "{hint}");
    }
    run(&mut conn, &["ROLLBACK"]);
}

#[test]
fn a_range_locks_nothing_beyond_its_end() {
    // InnoDB locks the next row, and the gap before it.
    let server = Server::start(Options::new("range_end").engine(Engine::Tidepool));
    let (mut conn, mut other) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, KEY (a))",
            "INSERT INTO t SELECT seq, seq DIV 2, 0 FROM seq_1_to_12",
        ],
    );
    let by = |index: &str, what: &str| {
        format!("SELECT * FROM t FORCE INDEX ({index}) WHERE {what} FOR UPDATE NOWAIT")
    };
    // With the rows that are locked, and that which comes behind.
    let cases: [(String, &[i32], i32); 8] = [
        (by("PRIMARY", "id BETWEEN 3 AND 5"), &[3, 4, 5], 6),
        (by("PRIMARY", "id < 4"), &[1, 2, 3], 4),
        (by("PRIMARY", "id > 2 AND id < 4"), &[3], 4),
        (by("a", "a = 2"), &[4, 5], 6),
        (by("a", "a > 1 AND a < 3"), &[4, 5], 6),
        (by("a", "a BETWEEN 1 AND 2"), &[2, 3, 4, 5], 6),
        (by("a", "a IN (1, 4)"), &[2, 3, 8, 9], 10),
        ("UPDATE t FORCE INDEX (a) SET b = 1 WHERE a = 3".into(), &[6, 7], 8),
    ];
    for (statement, locked, behind) in cases {
        run(&mut other, &["BEGIN", &format!("UPDATE t SET b = 2 WHERE id = {behind}")]);
        run(&mut conn, &["BEGIN", &statement]);
        run(&mut other, &["ROLLBACK"]);
        let rest: Vec<i32> = (1..13).filter(|id| !locked.contains(id)).collect();
        for hint in ["FORCE INDEX (PRIMARY)", "FORCE INDEX (a)"] {
            assert_eq!(free(&server, hint), rest, "{hint}, {statement}");
        }
        run(&mut conn, &["ROLLBACK"]);
    }
    // Where gaps are locked, they are.
    run(&mut conn, &["SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN"]);
    run(&mut conn, &[&by("a", "a = 2")]);
    assert!(!free(&server, "FORCE INDEX (a)").contains(&6));
    run(&mut conn, &["ROLLBACK"]);
}

#[test]
fn an_entry_that_does_not_match_takes_no_lock_of_its_row_along() {
    let server = Server::start(Options::new("unlock_entry"));
    let mut conn = read_committed(&server);
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, KEY (a))",
            "INSERT INTO t VALUES (5, 1, 0), (6, 2, 0)",
            "BEGIN",
            "SELECT * FROM t WHERE id = 5 FOR UPDATE",
            // By the index alone, which leads to that row.
            "SELECT id FROM t FORCE INDEX (a) WHERE a = 1 AND id % 2 = 0 LOCK IN SHARE MODE",
        ],
    );
    assert_eq!(free(&server, "FORCE INDEX (PRIMARY)"), [6]);
    run(&mut conn, &["ROLLBACK"]);
}

#[test]
fn an_update_waits_only_for_rows_that_it_wants() {
    let server = Server::start(Options::new("semi_consistent"));
    update_past_locked_rows(&server, "");
    server.connect_to("test").query_drop("DROP TABLE t").expect("no session uses it");
    update_past_locked_rows(&server, "PARTITION BY HASH (id) PARTITIONS 3");
}

fn update_past_locked_rows(server: &Server, partitions: &str) {
    let mut holder = read_committed(server);
    let create = format!("CREATE TABLE t (id INT PRIMARY KEY, a INT, v TEXT) {partitions}");
    run(
        &mut holder,
        &[
            &create,
            "INSERT INTO t SELECT seq, seq, REPEAT('v', 20000) FROM seq_1_to_10",
            "BEGIN",
            "UPDATE t SET a = 100 WHERE id = 2",
            "DELETE FROM t WHERE id = 4",
            "INSERT INTO t VALUES (11, 50, 'new')",
            "SELECT * FROM t WHERE id = 8 FOR UPDATE",
        ],
    );
    let mut conn = read_committed(server);
    run(&mut conn, &["SET SESSION innodb_lock_wait_timeout = 1"]);
    if server.engine().name() == "Tidepool" {
        run(&mut conn, &["SET SESSION tidepool_lock_wait_timeout = 1"]);
    }
    // None of the locked rows: by a scan of the table, and of a part of it.
    for range in ["", "AND id BETWEEN 2 AND 9"] {
        let sql = format!("UPDATE t SET v = CONCAT(v, 'x') WHERE a IN (3, 5, 50, 100) {range}");
        run(&mut conn, &["BEGIN", &sql]);
        assert_eq!(conn.affected_rows(), 2, "{range}");
        run(&mut conn, &["ROLLBACK"]);
    }
    // Each of them: it is waited for, as what it was.
    for wanted in [2, 4, 8] {
        run(&mut conn, &["BEGIN"]);
        let error = conn.query_drop(format!("UPDATE t SET v = 'w' WHERE a = {wanted}"));
        let error = error.expect_err("the row is locked").to_string();
        assert!(error.contains("1205"), "{error}");
        run(&mut conn, &["ROLLBACK"]);
    }
    // At REPEATABLE READ there is no such thing.
    run(&mut conn, &["SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "BEGIN"]);
    conn.query_drop("UPDATE t SET v = 'w' WHERE a = 3").expect_err("row 2 is locked");
    run(&mut conn, &["ROLLBACK", "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"]);

    // Who waited decides anew: row 2 does not match any more, row 4 is gone, row 8 matches.
    run(&mut conn, &["SET SESSION innodb_lock_wait_timeout = 50"]);
    if server.engine().name() == "Tidepool" {
        run(&mut conn, &["SET SESSION tidepool_lock_wait_timeout = 50"]);
    }
    let waiter = std::thread::spawn(move || {
        let since = Instant::now();
        run(&mut conn, &["UPDATE t SET v = 'mine' WHERE a IN (2, 4, 8, 50)"]);
        (conn.affected_rows(), since.elapsed())
    });
    std::thread::sleep(Duration::from_millis(500));
    run(&mut holder, &["COMMIT"]);
    let (changed, took) = waiter.join().expect("it ends");
    assert!(took >= Duration::from_millis(300), "it did not wait: {took:?}");
    let mine: Vec<i32> =
        holder.query("SELECT id FROM t WHERE v = 'mine' ORDER BY id").expect("rows");
    // The new row is passed over or met, as it comes.
    assert!(mine == [8] || mine == [8, 11], "{mine:?}");
    assert_eq!(changed, mine.len() as u64);
}

/// Updates by scans, each of a few rows: none is lost, and none is done twice.
#[test]
fn concurrent_updates_by_scans_are_all_there_once() {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 60;
    let server = Server::start(Options::new("semi_updates"));
    let mut conn = read_committed(&server);
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, n INT NOT NULL)",
            "INSERT INTO t SELECT seq, seq % 7, 0 FROM seq_1_to_70",
        ],
    );
    let changed: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let mut conn = read_committed(&server);
                scope.spawn(move || {
                    let mut changed = 0;
                    for round in 0..ROUNDS {
                        // It moves rows between the sets that others look for.
                        let (from, to) = ((thread + round) % 7, (thread + 2 * round) % 7);
                        let sql = format!("UPDATE t SET n = n + 1, a = {to} WHERE a = {from}");
                        match conn.query_drop(sql) {
                            Ok(()) => changed += conn.affected_rows(),
                            Err(error) => assert!(error.to_string().contains("1213"), "{error}"),
                        }
                    }
                    changed
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("ends")).sum()
    });
    let (rows, sum): (u64, u64) =
        conn.query_first("SELECT COUNT(*), SUM(n) FROM t").expect("can be read").expect("a row");
    assert_eq!((rows, sum), (70, changed));
    // Most statements are no victims of deadlocks.
    println!("{changed} rows changed by {} statements", THREADS * ROUNDS);
    assert!(changed > 0, "each statement was refused");
    let checked: (String, String, String, String) =
        conn.query_first("CHECK TABLE t").expect("CHECK TABLE answers").expect("a row");
    assert_eq!(checked.3, "OK");
}

/// A SELECT outside a transaction that locks what it finds: others may not put rows where it has
/// been already.
#[test]
fn a_locking_select_by_itself_is_serializable() {
    let server = Server::start(Options::new("locking_select"));
    let mut holder = read_committed(&server);
    run(
        &mut holder,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, KEY (a))",
            "INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)",
            "CREATE FUNCTION locked_sum() RETURNS INT READS SQL DATA
             RETURN (SELECT SUM(a) FROM t FORCE INDEX (a) WHERE a BETWEEN 5 AND 40 LOCK IN SHARE MODE)",
        ],
    );
    let selects = [
        "SELECT id FROM t FORCE INDEX (a) WHERE a BETWEEN 5 AND 40 FOR UPDATE",
        "SELECT id FROM t FORCE INDEX (a) WHERE a BETWEEN 5 AND 40 LOCK IN SHARE MODE",
        "SELECT locked_sum()",
    ];
    for select in selects {
        run(&mut holder, &["BEGIN", "UPDATE t SET a = 21 WHERE id = 2"]);
        let mut reader = server.connect_to("test");
        run(&mut reader, &["SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"]);
        let reader = std::thread::spawn(move || {
            let rows: Vec<i32> = reader.query(select).expect("it ends when the row is free");
            rows
        });
        // By then it waits for row 2, and has been where 4 would be.
        std::thread::sleep(Duration::from_millis(500));
        let mut writer = read_committed(&server);
        run(&mut writer, &["SET SESSION innodb_lock_wait_timeout = 1"]);
        if server.engine().name() == "Tidepool" {
            run(&mut writer, &["SET SESSION tidepool_lock_wait_timeout = 1"]);
        }
        let error = writer.query_drop("INSERT INTO t VALUES (4, 7)").expect_err(select).to_string();
        assert!(error.contains("1205"), "{select}: {error}");
        run(&mut holder, &["ROLLBACK"]);
        reader.join().expect("it ends");
    }
}

fn status(conn: &mut Conn, name: &str) -> i64 {
    let sql = format!(
        "SELECT variable_value FROM information_schema.global_status WHERE variable_name = '{name}'"
    );
    number(conn, &sql)
}

/// Locks of rows far apart take some 20 bytes each, of rows in a row next to nothing; and what they
/// take together has a bound.
#[test]
fn too_many_row_locks_end_their_transaction_and_nothing_else() {
    let server = Server::start(
        Options::new("too_many_locks")
            .engine(Engine::Tidepool)
            .arg("--tidepool-buffer-pool-size=8M"),
    );
    let (mut conn, mut other) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id BIGINT PRIMARY KEY, v INT NOT NULL)",
            "CREATE TABLE small (id INT PRIMARY KEY)",
            "INSERT INTO t SELECT seq * 4096, 0 FROM seq_1_to_600000",
            "INSERT INTO t SELECT -seq, 0 FROM seq_1_to_600000",
        ],
    );
    let lock = |conn: &mut Conn, range: &str, mode: &str| {
        let sql = format!("SELECT COUNT(*) FROM t WHERE id {range} {mode}");
        conn.query_first::<u64, _>(sql)
    };
    for mode in ["LOCK IN SHARE MODE", "FOR UPDATE"] {
        run(&mut conn, &["BEGIN", "INSERT INTO small VALUES (1)"]);
        assert_eq!(lock(&mut conn, "< 0", mode).unwrap(), Some(600_000));
        let bytes = status(&mut other, "Tidepool_memory_lock_table");
        assert!(bytes < 2 << 20, "{bytes} bytes of locks on 600,000 rows in a row");
        let error = lock(&mut conn, "> 0", mode).unwrap_err();
        let mysql::Error::MySqlError(error) = error else { panic!("{error}") };
        assert_eq!(error.code, 1206, "{error}");
        let why: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").unwrap();
        assert!(why.iter().any(|(.., text)| text.contains("lock fewer rows")), "{why:?}");
        // The whole transaction is gone, and its locks with it.
        let rows: Option<u64> = conn.query_first("SELECT COUNT(*) FROM small").unwrap();
        assert_eq!(rows, Some(0));
        run(&mut other, &["UPDATE t SET v = v + 1 WHERE id < 100000"]);
        run(&mut conn, &["COMMIT"]);
    }
    assert_eq!(status(&mut other, "Tidepool_lock_keys"), 0);
}

/// Each handler of a sequence has a transaction to itself, so a lock on the row that outlived the
/// reading would be in the way of the same statement.
#[test]
fn a_sequence_that_is_read_with_a_lock_gives_numbers_at_once() {
    let server = Server::start(
        Options::new("read_sequence")
            .engine(Engine::Tidepool)
            .args(["--tidepool-lock-wait-timeout=2", "--lock-wait-timeout=2"]),
    );
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE SEQUENCE s CACHE 1", "CREATE TABLE t (id INT PRIMARY KEY)"]);
    assert_eq!(number(&mut conn, "SELECT NEXTVAL(s) FROM s FOR UPDATE"), 1);
    assert_eq!(number(&mut conn, "SELECT NEXTVAL(s) FROM s LOCK IN SHARE MODE"), 2);
    run(&mut conn, &["INSERT INTO t SELECT NEXTVAL(s) FROM s FOR UPDATE"]);
    run(&mut conn, &["LOCK TABLES s WRITE, s AS s2 WRITE"]);
    assert_eq!(number(&mut conn, "SELECT next_not_cached_value FROM s AS s2"), 4);
    assert_eq!(number(&mut conn, "SELECT NEXTVAL(s)"), 4);
    run(&mut conn, &["UNLOCK TABLES", "BEGIN"]);
    assert_eq!(number(&mut conn, "SELECT next_not_cached_value FROM s FOR UPDATE"), 5);
    assert_eq!(number(&mut server.connect_to("test"), "SELECT NEXTVAL(s)"), 5);
    run(&mut conn, &["COMMIT"]);
    assert_eq!(number(&mut conn, "SELECT id FROM t"), 3);
}

/// A dump locks the tables of a database while it reads one after the other.
#[test]
fn a_sequence_that_was_read_keeps_no_old_versions_under_lock_tables() {
    let server = Server::start(Options::new("dumped_sequence").engine(Engine::Tidepool));
    let (mut dump, mut writer) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut dump,
        &["CREATE SEQUENCE s", "CREATE TABLE t (id INT PRIMARY KEY, n INT)", "LOCK TABLES s READ"],
    );
    assert_eq!(number(&mut dump, "SELECT next_not_cached_value FROM s"), 1);
    run(&mut writer, &["INSERT INTO t VALUES (1, 0)"]);
    for n in 0..20 {
        run(&mut writer, &[&format!("UPDATE t SET n = {n}")]);
    }
    let history = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS
                   WHERE VARIABLE_NAME = 'Tidepool_history_list_length'";
    wait_until(Duration::from_secs(60), "purge passes", || number(&mut writer, history) == 0);
    run(&mut dump, &["UNLOCK TABLES"]);
}
