//! Indexes on virtual columns, and system-versioned tables: both have more than a row's own bytes
//! to take from the old table to the new trees.

use super::*;

/// Transactions on `t`, until they are to stop.
fn write(conn: &mut Conn, seed: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut random = StdRng::seed_from_u64(seed);
    run(conn, &["SET lock_wait_timeout = 20, tidepool_lock_wait_timeout = 1, sql_mode = ''"]);
    while !stop.load(Ordering::Relaxed) {
        let id = random.random_range(1..4000);
        let other = random.random_range(1..1_000_000_000);
        let statement = match random.random_range(0..7) {
            0 => format!("UPDATE t SET a = a + 1 WHERE id = {id}"),
            1 => format!("UPDATE t SET b = 'w{other}', d = {id} % 3 WHERE id = {id}"),
            2 => format!("UPDATE t SET c = REPEAT('x', {other} % 9000) WHERE id = {id}"),
            3 => format!("UPDATE t SET id = {other} WHERE id = {id}"),
            4 => format!("DELETE FROM t WHERE id = {id}"),
            5 => format!("INSERT INTO t (id, a, b, c, d) VALUES ({id}, NULL, 'i{other}', 'c', 1)"),
            _ => ["BEGIN", "COMMIT", "ROLLBACK"][random.random_range(0..3)].into(),
        };
        let code = code_of(conn, &statement);
        assert!(code == 0 || MAY_FAIL.contains(&code), "{statement}: {code}");
        done.fetch_add(u64::from(code == 0), Ordering::Relaxed);
    }
    run(conn, &["COMMIT"]);
}

const COLUMNS: &str = "id INT NOT NULL, a INT, b VARCHAR(30) NOT NULL, c TEXT, d INT DEFAULT 0";
const ROWS: &str = "INSERT INTO t (id, a, b, c, d) SELECT seq, seq % 300, CONCAT('v', seq), \
                    REPEAT('long ', seq % 300), seq % 4 FROM seq_1_to_3000";
/// Plain, of a text, longer than its entry's prefix, of another virtual column, and without a value
/// where a strict session may not divide.
const VIRTUAL: &str = "v INT AS (a + 1) VIRTUAL, w VARCHAR(60) AS (CONCAT(b, '-', a)) VIRTUAL, x \
                       TEXT AS (CONCAT(c, b)) VIRTUAL, y INT AS (v * 2) VIRTUAL, z DECIMAL(10,2) \
                       AS (a / d) VIRTUAL";
const ON_VIRTUAL: [(&str, &str); 5] =
    [("v", "v"), ("wu", "w, id"), ("xp", "x(40)"), ("y", "y, b"), ("z", "z")];

/// Each index has what a scan of the rows computes, NULLs too.
fn indexes_agree(conn: &mut Conn, of: &str) {
    for (index, columns) in ON_VIRTUAL {
        let column = columns.split([',', '(']).next().expect("a column");
        for rows in ["IS NULL OR 1", "IS NULL", "IS NOT NULL"] {
            let read = |by: &str| {
                format!(
                    "SELECT id, {column} FROM t {of} {by} WHERE {column} {rows} ORDER BY {column}"
                )
            };
            let by_index = read(&format!("FORCE INDEX ({index})"));
            let by_scan = read("IGNORE INDEX (v, wu, xp, y, z)");
            assert!(sorted_rows(conn, &by_index) == sorted_rows(conn, &by_scan), "{by_index}");
        }
    }
    // It computes the columns: a strict session is warned of divisions.
    run(conn, &["SET sql_mode = ''"]);
    check(conn, "t EXTENDED");
}

#[test]
fn indexes_on_virtual_columns_are_built_beside_writers() {
    for partitions in ["", " PARTITION BY HASH (id) PARTITIONS 3"] {
        let server = Server::start(Options::new("virtual_beside"));
        let mut conn = server.connect_to("test");
        let create = format!("CREATE TABLE t ({COLUMNS}, {VIRTUAL}, PRIMARY KEY (id)){partitions}");
        run(&mut conn, &[&create, "SET sql_mode = ''", ROWS, "SET sql_mode = DEFAULT"]);
        let writers = Writers::start(&server, 2, write);
        for round in 0..3 {
            let before = writers.done();
            for (index, columns) in ON_VIRTUAL {
                let unique = if index == "wu" { "UNIQUE" } else { "" };
                let alter =
                    format!("ALTER TABLE t ADD {unique} INDEX {index} ({columns}), LOCK=NONE");
                run(&mut conn, &[&format!("{alter}, ALGORITHM=NOCOPY")]);
            }
            run(&mut conn, &["ALTER TABLE t FORCE, ALGORITHM=INPLACE, LOCK=NONE"]);
            wait_until(PATIENCE, "sessions to write", || writers.done() > before);
            if round < 2 {
                let drop = "DROP INDEX v, DROP INDEX wu, DROP INDEX xp, DROP INDEX y, DROP INDEX z";
                run(&mut conn, &[&format!("ALTER TABLE t {drop}, ALGORITHM=INSTANT")]);
            }
        }
        writers.end();
        indexes_agree(&mut conn, "");
        run(&mut conn, &["ALTER TABLE t ADD q INT AS (a * 3) VIRTUAL, ADD INDEX q (q), LOCK=NONE"]);
        let counted = "SELECT COUNT(*) FROM t FORCE INDEX (q) WHERE q > 0";
        let wanted = number(&mut conn, "SELECT COUNT(*) FROM t IGNORE INDEX (q) WHERE a > 0");
        assert_eq!(number(&mut conn, counted), wanted);
    }
}

#[test]
fn a_duplicate_of_a_virtual_column_is_shown() {
    let server = Server::start(Options::new("virtual_duplicate"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT,
             v VARCHAR(20) AS (CONCAT('v', a % 70)) VIRTUAL)",
            "INSERT INTO t (id, a) SELECT seq, seq FROM seq_1_to_71",
        ],
    );
    for algorithm in ["NOCOPY", "COPY"] {
        let alter = format!("ALTER TABLE t ADD UNIQUE INDEX v (v), ALGORITHM={algorithm}");
        let error = conn.query_drop(alter).expect_err("v1 is there twice").to_string();
        assert!(error.contains("Duplicate entry 'v1' for key 'v'"), "{error}");
    }
    run(&mut conn, &["DELETE FROM t WHERE id = 71", "ALTER TABLE t ADD UNIQUE INDEX v (v)"]);
    assert_eq!(code_of(&mut conn, "INSERT INTO t (id, a) VALUES (100, 71)"), DUPLICATE);
}

/// Rows of the past keep their times, and get the columns and indexes that those of now get.
#[test]
fn a_versioned_table_changes_beside_writers() {
    let (_server, mut conn) = versioned_beside_writers("");
    let before = sorted_rows(&mut conn, HISTORY);
    for algorithm in ["INPLACE", "COPY", "INPLACE"] {
        run(&mut conn, &[&format!("ALTER TABLE t FORCE, ALGORITHM={algorithm}")]);
        assert!(sorted_rows(&mut conn, HISTORY) == before, "{algorithm}");
    }
    for statement in
        ["ALTER TABLE t DROP SYSTEM VERSIONING", "ALTER TABLE t DROP e1, DROP SYSTEM VERSIONING"]
    {
        let code = code_of(&mut conn, &format!("{statement}, ALGORITHM=INPLACE"));
        assert!([1845, 1846].contains(&code), "{statement}: {code}");
    }
    run(&mut conn, &["ALTER TABLE t DROP SYSTEM VERSIONING"]);
    let current = before.len() as i64 - number(&mut conn, "SELECT COUNT(*) FROM t");
    assert!(current > 100, "rows of the past are gone: {current}");
}

#[test]
fn a_versioned_table_with_partitions_changes_beside_writers() {
    for partitions in ["SYSTEM_TIME LIMIT 400 PARTITIONS 5", "HASH (id) PARTITIONS 3"] {
        let (_server, mut conn) = versioned_beside_writers(&format!(" PARTITION BY {partitions}"));
        let before = sorted_rows(&mut conn, HISTORY);
        run(&mut conn, &["ALTER TABLE t FORCE, ALGORITHM=INPLACE"]);
        assert!(sorted_rows(&mut conn, HISTORY) == before, "{partitions}");
    }
}

const HISTORY: &str = "SELECT t.*, row_start, row_end FROM t FOR SYSTEM_TIME ALL";

/// A versioned table that was changed while others wrote to it.
fn versioned_beside_writers(partitions: &str) -> (Server, Conn) {
    let server = Server::start(Options::new("versioned_beside"));
    let mut conn = server.connect_to("test");
    let create = format!(
        "CREATE TABLE t ({COLUMNS}, {VIRTUAL}, PRIMARY KEY (id)) WITH SYSTEM VERSIONING{partitions}"
    );
    run(&mut conn, &[&create, "SET system_versioning_alter_history = KEEP, sql_mode = ''", ROWS]);
    let writers = Writers::start(&server, 2, write);
    for round in 0..3 {
        let before = writers.done();
        for (index, columns) in ON_VIRTUAL {
            let unique = if index == "wu" { "UNIQUE" } else { "" };
            let alter = format!("ALTER TABLE t ADD {unique} INDEX {index} ({columns}), LOCK=NONE");
            run(&mut conn, &[&format!("{alter}, ALGORITHM=NOCOPY")]);
        }
        run(
            &mut conn,
            &[
                &format!("ALTER TABLE t ADD e{round} INT DEFAULT {round}, ALGORITHM=INSTANT"),
                "ALTER TABLE t FORCE, ALGORITHM=INPLACE, LOCK=NONE",
            ],
        );
        wait_until(PATIENCE, "sessions to write", || writers.done() > before + 50);
        if round < 2 {
            let drop = "DROP INDEX v, DROP INDEX wu, DROP INDEX xp, DROP INDEX y, DROP INDEX z";
            run(&mut conn, &[&format!("ALTER TABLE t {drop}, ALGORITHM=INSTANT")]);
        }
    }
    writers.end();
    indexes_agree(&mut conn, "FOR SYSTEM_TIME ALL");
    let history =
        number(&mut conn, "SELECT COUNT(*) FROM t FOR SYSTEM_TIME ALL WHERE row_end < NOW(6)");
    assert!(history > 100, "{history}");
    (server, conn)
}
