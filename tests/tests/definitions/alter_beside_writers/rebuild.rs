//! Tables that are rebuilt beside writers.
//!
//! The writers of `t` do the same in `shadow`, in the same transaction. Nothing else happens to
//! `shadow`, so it has the rows that `t` should have.

use std::path::Path;

use super::*;

const ROWS: &str = "id INT NOT NULL, u VARCHAR(30) NOT NULL, n INT, c TEXT";
const SAME: &str = "SELECT id, u, n, c FROM ";

const ALTERS: &[&str] = &[
    "ALTER TABLE t FORCE, ALGORITHM=INPLACE, LOCK=NONE",
    "OPTIMIZE TABLE t",
    "ALTER TABLE t ENGINE=Tidepool, LOCK=NONE",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (u), ADD KEY id (id), LOCK=NONE",
    "ALTER TABLE t FORCE, DROP KEY n, ADD KEY n (n, c(20)), LOCK=NONE",
    "ALTER TABLE t MODIFY n BIGINT, LOCK=NONE",
    "ALTER TABLE t MODIFY u VARCHAR(40) COLLATE utf8mb4_bin NOT NULL, LOCK=NONE",
    "ALTER TABLE t ADD e INT NOT NULL DEFAULT 3 FIRST, ALGORITHM=INSTANT",
    "ALTER TABLE t FORCE, COMPRESSION=OFF, LOCK=NONE",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, e), DROP KEY id, LOCK=NONE",
    "ALTER TABLE t DROP e, DROP PRIMARY KEY, ADD PRIMARY KEY (id), LOCK=NONE",
    "ALTER TABLE t MODIFY c MEDIUMTEXT CHARACTER SET utf8mb3, LOCK=NONE",
];

/// Transactions that write both tables, until they are to stop.
fn write_both(conn: &mut Conn, seed: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut random = StdRng::seed_from_u64(seed);
    run(conn, &["SET lock_wait_timeout = 20, tidepool_lock_wait_timeout = 1"]);
    while !stop.load(Ordering::Relaxed) {
        run(conn, &["BEGIN"]);
        let mut end = if random.random_bool(0.8) { "COMMIT" } else { "ROLLBACK" };
        for _ in 0..random.random_range(1..6) {
            let id = random.random_range(1..4000);
            let other = random.random_range(1..1_000_000_000);
            let len = if random.random_ratio(1, 5) { 20_000 } else { 200 };
            let statement = match random.random_range(0..7) {
                0 => format!("UPDATE {{t}} SET n = n + 1, u = 'w{other}' WHERE id = {id}"),
                1 => format!("UPDATE {{t}} SET c = REPEAT('x', {other} % {len}) WHERE id = {id}"),
                2 => format!("UPDATE {{t}} SET id = {other} WHERE id = {id}"),
                3 => format!("DELETE FROM {{t}} WHERE id = {id}"),
                4 => format!("INSERT INTO {{t}} (id, u, n) VALUES ({id}, 'i{other}', NULL)"),
                5 => "SAVEPOINT s".into(),
                _ => "ROLLBACK TO SAVEPOINT s".into(),
            };
            // What one table refuses is done in neither.
            let codes = ["t", "shadow"].map(|t| code_of(conn, &statement.replace("{t}", t)));
            let is_void = codes[0] == 1305 && statement.contains("SAVEPOINT");
            for code in codes {
                assert!(code == 0 || is_void || MAY_FAIL.contains(&code), "{statement}: {code}");
                if code != 0 && !is_void {
                    end = "ROLLBACK";
                }
            }
            if end == "ROLLBACK" && codes != [0, 0] && !is_void {
                break;
            }
        }
        run(conn, &[end]);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until the engine has this number of files for tables: one that was replaced goes in the
/// background.
fn wait_for_files(server: &Server, count: usize) {
    wait_until(PATIENCE, "replaced files to go", || files(server) == count);
}

/// The files that the engine has for tables.
fn files(server: &Server) -> usize {
    let count = |dir: &Path| std::fs::read_dir(dir).expect("the engine's directory").count();
    count(&server.data_dir().join("tidepool/tables"))
}

#[test]
fn a_table_rebuilt_beside_writers_has_their_rows() {
    let server = Server::start(Options::new("rebuilt_beside"));
    let mut conn = server.connect_to("test");
    for table in ["t", "shadow"] {
        run(
            &mut conn,
            &[
                &format!(
                    "CREATE TABLE {table} ({ROWS}, PRIMARY KEY (id), UNIQUE KEY u (u), KEY n (n))"
                ),
                &format!(
                    "INSERT INTO {table} SELECT seq, CONCAT('v', seq), seq % 50,
                     REPEAT('long ', IF(seq % 40, seq % 30, 3000)) FROM seq_1_to_3000"
                ),
            ],
        );
    }
    let before = files(&server);
    let writers = Writers::start(&server, 4, write_both);
    let mut beside = 0;
    for alter in ALTERS {
        let written = writers.done();
        let code = code_of(&mut conn, alter);
        assert_eq!(code, 0, "{alter}");
        beside += writers.done() - written;
        run(&mut conn, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
        let [t, shadow] = ["t", "shadow"].map(|t| sorted_rows(&mut conn, &format!("{SAME}{t}")));
        assert!(t == shadow, "{alter}");
        agree(&mut conn, "t", &[("u", "u"), ("n", "n")]);
        run(&mut conn, &["COMMIT"]);
    }
    writers.end();
    assert!(beside > 20, "{beside} transactions beside them");
    let rows = |conn: &mut Conn, table: &str| sorted_rows(conn, &format!("{SAME}{table}"));
    let expected = rows(&mut conn, "shadow");
    assert!(rows(&mut conn, "t") == expected);
    wait_for_files(&server, before);
    let mut server = server;
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    assert!(rows(&mut conn, "t") == expected);
    check(&mut conn, "t EXTENDED");
}

/// Foreign keys, row ids, partitions, a key of text.
#[test]
fn tables_of_all_kinds_are_rebuilt_beside_writers() {
    let server = Server::start(Options::new("rebuilt_kinds"));
    let mut conn = server.connect_to("test");
    create(&mut conn);
    let writers = Writers::start(&server, 4, write);
    let mut written = 0;
    for round in 0..3 {
        for table in TABLES.iter().chain(&["parent"]) {
            let change = match (*table, round) {
                (_, 0) | ("parent", _) => "FORCE",
                ("by_row_id", 1) => "MODIFY a BIGINT",
                ("by_int", 1) => "DROP PRIMARY KEY, ADD PRIMARY KEY (id, d)",
                ("by_text", 1) => "DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)",
                ("parted", 1) => "MODIFY a BIGINT",
                _ => "ADD INDEX a (a), ADD x INT DEFAULT 5, FORCE",
            };
            let alter = format!("ALTER TABLE {table} {change}, ALGORITHM=INPLACE, LOCK=NONE");
            let before = writers.done();
            let code = code_of(&mut conn, &alter);
            written += writers.done() - before;
            // By a session that stores NULL where there may be none now.
            assert!(code == 0, "{alter}: {code}");
            check(&mut conn, &format!("{table} EXTENDED"));
        }
    }
    writers.end();
    for table in TABLES {
        agree(&mut conn, table, &[("a", "a")]);
    }
    assert!(written > 20, "{written} statements");
    assert_eq!(
        number(
            &mut conn,
            "SELECT COUNT(*) FROM by_int LEFT JOIN parent ON p = parent.id
                WHERE p IS NOT NULL AND parent.id IS NULL"
        ),
        0
    );
}

const FORCE: &str = "ALTER TABLE t FORCE, ALGORITHM=INPLACE, LOCK=NONE";

#[test]
fn only_the_rebuild_fails_for_what_a_writer_commits() {
    let server = Server::start(Options::new("rebuild_refused"));
    let mut conn = server.connect_to("test");
    run(&mut conn, LARGE);
    let before = files(&server);
    let cases = [
        (
            "ALTER TABLE t ADD UNIQUE INDEX u (u), FORCE, LOCK=NONE",
            "INSERT INTO t (id, u) VALUES (400002, 'U77')",
            (DUPLICATE, "Duplicate entry 'U77' for key 'u'"),
        ),
        (
            "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (u), LOCK=NONE",
            "INSERT INTO t (id, u) VALUES (400003, 'u78')",
            (DUPLICATE, "Duplicate entry 'u78' for key 'PRIMARY'"),
        ),
        (
            "ALTER TABLE t MODIFY n BIGINT NOT NULL, LOCK=NONE",
            "INSERT INTO t (id, u, n) VALUES (400004, 'x', NULL)",
            (1265, "Data truncated for column 'n'"),
        ),
    ];
    for (alter, insert, (code, text)) in cases {
        let mut held = hold(&server, &mut conn, alter, FORCE);
        wait_for_files(&server, before + 1);
        run(&mut conn, &[insert]);
        let (found, message) = held.altering.join().expect("no panic");
        assert_eq!(found, code, "{message}");
        assert!(message.contains(text), "{message}");
        run(&mut held.holder, &["UPDATE t SET n = 0 WHERE id = 5", "COMMIT"]);
        wait_for_files(&server, before);
        check(&mut conn, "t EXTENDED");
        run(
            &mut conn,
            &["DELETE FROM t WHERE id > 400000", "UPDATE t SET pad = 'x' WHERE id < 701"],
        );
    }
    let codes = number(&mut conn, "SELECT COUNT(*) FROM t WHERE n IS NOT NULL");
    assert_eq!(codes, 300_000);
}

#[test]
fn a_rebuild_shows_its_stage_and_ends_when_it_is_killed() {
    let server = Server::start(Options::new("rebuild_killed"));
    let mut conn = server.connect_to("test");
    run(&mut conn, LARGE);
    let before = files(&server);
    let mut held = hold(&server, &mut conn, FORCE, "DO 1");
    let stage = format!(
        "SELECT STAGE * 10 + MAX_STAGE FROM information_schema.PROCESSLIST WHERE ID = {}",
        held.id
    );
    wait_until(PATIENCE, "the last stage of three", || number(&mut conn, &stage) == 33);
    let kill = format!("KILL QUERY {}", held.id);
    run(&mut conn, &["UPDATE t SET n = n + 1 WHERE id = 50000", &kill]);
    wait_until(PATIENCE, "the ALTER to end", || held.altering.is_finished());
    assert_eq!(held.altering.join().expect("no panic").0, INTERRUPTED);
    wait_for_files(&server, before);
    run(&mut held.holder, &["COMMIT"]);
    check(&mut conn, "t EXTENDED");

    // While it reads and sorts.
    let mut killed = 0;
    for wait_ms in [0, 30, 100, 250, 400, 600] {
        let mut altering = server.connect_to("test");
        let id = altering.connection_id();
        let alter = "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (u, id), LOCK=NONE";
        let thread = thread::spawn(move || code_of(&mut altering, alter));
        let state = format!("{STATE}{id}");
        while number(&mut conn, &state) == 0 && !thread.is_finished() {}
        thread::sleep(Duration::from_millis(wait_ms));
        code_of(&mut conn, &format!("KILL QUERY {id}"));
        let code = thread.join().expect("no panic");
        assert!(code == 0 || code == INTERRUPTED, "{code}");
        killed += u32::from(code == INTERRUPTED);
        wait_for_files(&server, before);
        if code == 0 {
            run(&mut conn, &["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id)"]);
        }
    }
    assert!(killed > 0);
    check(&mut conn, "t EXTENDED");

    // A holder that rolls back lets it end.
    let mut held = hold(&server, &mut conn, FORCE, "DO 1");
    run(&mut held.holder, &["ROLLBACK"]);
    assert_eq!(held.altering.join().expect("no panic"), (0, String::new()));
    wait_for_files(&server, before);

    let mut server = server;
    let mut held = hold(&server, &mut conn, FORCE, "DO 1");
    run(&mut conn, &["UPDATE t SET u = CONCAT('w', id) WHERE id = 60000"]);
    server.kill9();
    assert_ne!(held.altering.join().unwrap_or((1, String::new())).0, 0);
    assert!(held.holder.query_drop("COMMIT").is_err());
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(files(&server), before);
    check(&mut conn, "t EXTENDED");
    assert_eq!(number(&mut conn, "SELECT id FROM t WHERE u = 'w60000'"), 60000);
}

#[test]
fn an_older_snapshot_does_not_read_a_rebuilt_table() {
    let server = Server::start(Options::new("rebuild_snapshot"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, n INT, KEY n (n))",
            "INSERT INTO t (n) SELECT seq % 9 FROM seq_1_to_2000",
            "CREATE TABLE other (id INT PRIMARY KEY)",
        ],
    );
    let mut old = server.connect_to("test");
    run(&mut old, &["START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT * FROM other"]);
    const NEXT: &str =
        "SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_NAME = 't'";
    let next = number(&mut conn, NEXT);
    run(&mut conn, &["DELETE FROM t WHERE id > 1000", "OPTIMIZE TABLE t"]);
    for index in ["PRIMARY", "n"] {
        let read = format!("SELECT SUM(n) FROM t FORCE INDEX ({index}) WHERE id > 0 AND n > 0");
        assert_eq!(code_of(&mut old, &read), 1412);
    }
    run(&mut old, &["COMMIT", "INSERT INTO t (n) VALUES (77)"]);
    // The counter goes on, after rows that are gone.
    assert_eq!(number(&mut old, "SELECT id FROM t WHERE n = 77"), next);
    assert_eq!(number(&mut old, "SELECT COUNT(*) FROM t"), 1001);
}

/// What depends on more than a row, or must be checked of each, is the copy's.
#[test]
fn what_is_not_a_rows_alone_is_copied() {
    let server = Server::start(Options::new("rebuild_not"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, a INT, b INT, v INT AS (a + 1) VIRTUAL,
             s INT AS (a * 2) STORED, c VARCHAR(20), CHECK (b >= 0))",
            "CREATE TABLE f (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id))",
            "CREATE TABLE d (id INT, x INT NOT NULL, PRIMARY KEY (id))",
            "CREATE TABLE h (id INT PRIMARY KEY, x TEXT, UNIQUE (x))",
            "CREATE TABLE sv (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
            "CREATE TABLE w (id INT PRIMARY KEY, v INT AS (id + 1) VIRTUAL, KEY v (v))",
            "INSERT INTO p SELECT seq FROM seq_1_to_9",
            "INSERT INTO t (a, b, c) SELECT seq % 10, seq, CONCAT('c', seq) FROM seq_1_to_2000",
            "INSERT INTO f SELECT seq, seq % 9 + 1 FROM seq_1_to_100",
            "INSERT INTO d SELECT seq, seq FROM seq_1_to_100",
            "INSERT INTO h SELECT seq, seq FROM seq_1_to_100",
            "INSERT INTO sv SELECT seq FROM seq_1_to_100",
            "INSERT INTO w (id) SELECT seq FROM seq_1_to_100",
        ],
    );
    for statement in [
        "ALTER TABLE t MODIFY b INT AS (a + 5) STORED",
        "ALTER TABLE t MODIFY a BIGINT",
        "ALTER TABLE t MODIFY s INT AS (a * 3) STORED",
        "ALTER TABLE t ADD r DOUBLE DEFAULT RAND(), FORCE",
        "ALTER TABLE t ADD CHECK (a < 100), FORCE",
        "ALTER TABLE t MODIFY id INT, FORCE",
        "ALTER TABLE f MODIFY p BIGINT UNSIGNED NOT NULL",
        "ALTER TABLE d DROP PRIMARY KEY",
        "ALTER TABLE h FORCE",
        "ALTER TABLE sv DROP SYSTEM VERSIONING",
        "ALTER IGNORE TABLE d ADD UNIQUE (x), FORCE",
    ] {
        let code = code_of(&mut conn, &format!("{statement}, ALGORITHM=INPLACE"));
        assert!([1845, 1846].contains(&code), "{statement}: {code}");
    }
    run(&mut conn, &["SET sql_mode = ''"]);
    let refused = "ALTER TABLE d MODIFY x TINYINT, ALGORITHM=INPLACE";
    let error = conn.query_drop(refused).expect_err("only in strict mode").to_string();
    assert!(error.contains("values may be cut outside of strict mode"), "{error}");
    run(&mut conn, &["SET sql_mode = DEFAULT"]);
    // In strict mode a value that would be cut ends it, as the copy.
    run(&mut conn, &["UPDATE d SET x = 1000 WHERE id = 50"]);
    for algorithm in ["INPLACE", "COPY"] {
        let alter = format!("ALTER TABLE d MODIFY x TINYINT, ALGORITHM={algorithm}");
        let error = conn.query_drop(alter).expect_err("1000 is no TINYINT").to_string();
        assert!(error.contains("Out of range value for column 'x' at row 50"), "{error}");
    }
    let computed = "SELECT COUNT(*) FROM t WHERE b = a + 5 AND s = a * 2";
    run(&mut conn, &["ALTER TABLE t MODIFY b INT AS (a + 5) STORED"]);
    assert_eq!(number(&mut conn, computed), 2000);
    // What was computed stays what it is.
    run(&mut conn, &["ALTER TABLE t MODIFY s INT"]);
    assert_eq!(number(&mut conn, computed), 2000);
    for table in ["t", "f", "d", "h", "sv", "w"] {
        check(&mut conn, &format!("{table} EXTENDED"));
    }
}
