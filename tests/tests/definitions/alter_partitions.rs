//! Partitioned tables changed without a copy: each partition is a table of the engine's, and all
//! change at one moment.

use std::thread;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check, is_acknowledged, number, run, sorted_rows};

const NOT_SO: [u16; 2] = [1845, 1846];
const TABLES_DIFFER: u16 = 1736;

/// The code of the error; 0 if there is none.
fn answer(conn: &mut Conn, statement: &str) -> u16 {
    match conn.query_drop(statement) {
        Ok(()) => 0,
        Err(mysql::Error::MySqlError(error)) => error.code,
        Err(error) => panic!("{statement}: {error}"),
    }
}

/// Runs the statement on `t`, and as a copy on `copied`; then both are the same.
fn both(conn: &mut Conn, clause: &str) {
    run(conn, &[&format!("ALTER TABLE t {clause}, ALGORITHM=NOCOPY")]);
    run(conn, &[&format!("ALTER TABLE copied {clause}, ALGORITHM=COPY")]);
    same(conn, clause);
}

fn same(conn: &mut Conn, what: &str) {
    check(conn, "t");
    let sums: Vec<(String, Option<u64>)> = conn.query("CHECKSUM TABLE t, copied").expect("sums");
    assert!(sums[0].1.is_some() && sums[0].1 == sums[1].1, "{what}: {sums:?}");
    assert_eq!(places(conn, "t"), places(conn, "copied"), "{what}");
}

/// How many rows each partition has.
fn places(conn: &mut Conn, table: &str) -> Vec<(String, i64)> {
    let names: Vec<String> = conn
        .query(format!(
            "SELECT DISTINCT PARTITION_NAME FROM information_schema.PARTITIONS
             WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = '{table}' AND PARTITION_NAME IS NOT NULL ORDER BY 1"
        ))
        .expect("partitions");
    let count = |name: String| {
        let rows = format!("SELECT COUNT(*) FROM {table} PARTITION ({name})");
        (name, number(conn, &rows))
    };
    names.into_iter().map(count).collect()
}

const COLUMNS: &str = "id INT NOT NULL, a INT NOT NULL, b VARCHAR(20), c INT NOT NULL DEFAULT 3, \
     v INT AS (a + 1) VIRTUAL, PRIMARY KEY (id, a), KEY (c)";

fn create(conn: &mut Conn, partitions: &str) {
    for table in ["t", "copied"] {
        run(
            conn,
            &[
                &format!("DROP TABLE IF EXISTS {table}"),
                &format!("CREATE TABLE {table} ({COLUMNS}) {partitions}"),
                &format!(
                    "INSERT INTO {table} (id, a, b, c) SELECT seq, seq % 50, seq, seq * 7 % 300 FROM seq_1_to_900"
                ),
            ],
        );
    }
}

const KINDS: [&str; 6] = [
    "PARTITION BY HASH (id) PARTITIONS 4",
    "PARTITION BY KEY () PARTITIONS 3",
    "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (500), PARTITION p2 VALUES LESS THAN MAXVALUE)",
    "PARTITION BY RANGE COLUMNS (a, id) (PARTITION p0 VALUES LESS THAN (10, 5), PARTITION p1 VALUES LESS THAN (MAXVALUE, MAXVALUE))",
    "PARTITION BY LIST (a % 3) (PARTITION p0 VALUES IN (0), PARTITION p1 VALUES IN (1, 2))",
    "PARTITION BY RANGE (id) SUBPARTITION BY HASH (a) SUBPARTITIONS 2 (PARTITION p0 VALUES LESS THAN (300), PARTITION p1 VALUES LESS THAN (2000))",
];

#[test]
fn partitions_are_changed_without_a_copy() {
    let mut server = Server::start(Options::new("alter_partitions"));
    let mut conn = server.connect_to("test");
    for kind in KINDS {
        create(&mut conn, kind);
        for clause in [
            "ADD INDEX b (b), ADD UNIQUE INDEX u (c, id, a)",
            "ADD COLUMN x INT NOT NULL DEFAULT 7 FIRST, ADD COLUMN y TEXT DEFAULT 'long ago' AFTER b",
            "MODIFY COLUMN a INT NOT NULL AFTER c, RENAME COLUMN b TO bb",
            "MODIFY COLUMN x INT NULL",
            "DROP COLUMN y, DROP INDEX b, ADD INDEX x (x, bb), ADD COLUMN w INT AS (x + id) VIRTUAL",
            "RENAME INDEX x TO xx",
            "MODIFY COLUMN bb VARCHAR(200)",
        ] {
            both(&mut conn, clause);
            for table in ["t", "copied"] {
                run(
                    &mut conn,
                    &[
                        &format!("INSERT INTO {table} (id, a) SELECT MAX(id) + 1, 5 FROM {table}"),
                        &format!("UPDATE {table} SET c = c + 1 WHERE id % 17 = 3"),
                        &format!(
                            "UPDATE {table} SET id = id + 1000 WHERE id % 113 = 7 AND id < 950"
                        ),
                        &format!("DELETE FROM {table} WHERE id % 113 = 5"),
                    ],
                );
            }
            same(&mut conn, clause);
        }
        let by_index = "SELECT * FROM t FORCE INDEX (xx) WHERE x = 7 ORDER BY id";
        assert_eq!(
            sorted_rows(&mut conn, by_index),
            sorted_rows(
                &mut conn,
                "SELECT * FROM copied IGNORE INDEX (xx) WHERE x = 7 ORDER BY id"
            ),
        );
    }
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    same(&mut conn, "after a crash");
    both(&mut conn, "ADD COLUMN z INT, DROP COLUMN bb, DROP INDEX xx, DROP COLUMN w");
}

#[test]
fn partitions_come_and_go_between_changes_of_their_columns() {
    let server = Server::start(Options::new("alter_partitions_mixed"));
    let mut conn = server.connect_to("test");
    create(
        &mut conn,
        "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (200), PARTITION p1 VALUES LESS THAN (500), PARTITION p2 VALUES LESS THAN (1000))",
    );
    let twice = |conn: &mut Conn, statement: &str| {
        for table in ["t", "copied"] {
            run(conn, &[&statement.replace("TABLE_NAME", table)]);
        }
        same(conn, statement);
    };
    both(&mut conn, "ADD COLUMN x INT DEFAULT 7 AFTER id, DROP COLUMN v");
    twice(&mut conn, "ALTER TABLE TABLE_NAME ADD PARTITION (PARTITION p3 VALUES LESS THAN (2000))");
    twice(&mut conn, "INSERT INTO TABLE_NAME (id, a, x) SELECT seq, 1, seq FROM seq_1000_to_1100");
    both(&mut conn, "ADD COLUMN y VARCHAR(9) DEFAULT 'yy' FIRST, ADD INDEX y (y, x)");
    twice(&mut conn, "ALTER TABLE TABLE_NAME TRUNCATE PARTITION p1");
    twice(&mut conn, "INSERT INTO TABLE_NAME (id, a) SELECT seq, 2 FROM seq_200_to_250");
    twice(&mut conn, "ALTER TABLE TABLE_NAME REBUILD PARTITION p0");
    both(&mut conn, "DROP COLUMN x, ADD COLUMN n INT NOT NULL DEFAULT 1 AFTER id");
    twice(
        &mut conn,
        "ALTER TABLE TABLE_NAME REORGANIZE PARTITION p0, p1 INTO (PARTITION q VALUES LESS THAN (500))",
    );
    both(&mut conn, "ADD COLUMN m INT DEFAULT 8");
    // A table whose rows are of one version changes places with a partition that has several.
    for table in ["t", "copied"] {
        run(
            &mut conn,
            &[
                "DROP TABLE IF EXISTS alone",
                &format!("CREATE TABLE alone LIKE {table}"),
                "ALTER TABLE alone REMOVE PARTITIONING",
                "INSERT INTO alone (id, a, y) SELECT seq, 3, 'alone' FROM seq_600_to_640",
                &format!("ALTER TABLE {table} EXCHANGE PARTITION p2 WITH TABLE alone"),
            ],
        );
        check(&mut conn, "alone");
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM alone WHERE m = 8"), 401);
        run(
            &mut conn,
            &[
                "ALTER TABLE alone ADD COLUMN late INT DEFAULT 4 FIRST, ALGORITHM=INSTANT",
                "DELETE FROM alone WHERE id % 3 = 0",
            ],
        );
        check(&mut conn, "alone");
    }
    same(&mut conn, "exchanged");
    both(&mut conn, "ADD COLUMN last INT DEFAULT 9 FIRST");
    twice(&mut conn, "ALTER TABLE TABLE_NAME DROP PARTITION q");
    twice(&mut conn, "ALTER TABLE TABLE_NAME REMOVE PARTITIONING");
}

#[test]
fn what_would_move_rows_is_copied() {
    let server = Server::start(Options::new("alter_partitions_copied"));
    let mut conn = server.connect_to("test");
    for kind in ["PARTITION BY HASH (a) PARTITIONS 5", "PARTITION BY KEY (id, a) PARTITIONS 5"] {
        for table in ["t", "copied"] {
            run(
                &mut conn,
                &[
                    &format!("DROP TABLE IF EXISTS {table}"),
                    &format!(
                        "CREATE TABLE {table} (id INT NOT NULL, a INT, c INT, KEY (id)) {kind}"
                    ),
                    &format!("INSERT INTO {table} SELECT seq, seq % 50, seq FROM seq_1_to_900"),
                ],
            );
        }
        // The server writes the new names into what places rows.
        both(&mut conn, "RENAME COLUMN a TO old, RENAME COLUMN c TO a");
        for clause in [
            // What places rows is another column from here on.
            "DROP COLUMN old, ADD COLUMN old INT NOT NULL DEFAULT 4",
            "ADD COLUMN x INT, MODIFY id INT NOT NULL AUTO_INCREMENT, AUTO_INCREMENT = 5000",
        ] {
            let refused = answer(&mut conn, &format!("ALTER TABLE t {clause}, ALGORITHM=INPLACE"));
            assert!(NOT_SO.contains(&refused), "{clause}: {refused}");
            for table in ["t", "copied"] {
                run(&mut conn, &[&format!("ALTER TABLE {table} {clause}")]);
            }
            same(&mut conn, clause);
        }
        let refused = answer(
            &mut conn,
            "ALTER TABLE t ADD COLUMN y INT, AUTO_INCREMENT = 6000, ALGORITHM=INPLACE",
        );
        assert!(NOT_SO.contains(&refused), "{refused}");
        both(&mut conn, "AUTO_INCREMENT = 7000");
        let insert = "INSERT INTO TABLE_NAME (a) VALUES (1), (2)";
        for table in ["t", "copied"] {
            run(&mut conn, &[&insert.replace("TABLE_NAME", table)]);
        }
        same(&mut conn, insert);
        assert_eq!(number(&mut conn, "SELECT MAX(id) FROM t"), 7001);
    }
    let refused = answer(&mut conn, "ALTER TABLE t ALGORITHM=INPLACE REMOVE PARTITIONING");
    assert_ne!(refused, 0);
    run(&mut conn, &["ALTER TABLE t ADD INDEX (a) REMOVE PARTITIONING"]);
    check(&mut conn, "t");
}

#[test]
fn a_partition_that_cannot_be_changed_leaves_all_as_they_were() {
    let server = Server::start(Options::new("alter_partitions_refused"));
    let mut conn = server.connect_to("test");
    create(&mut conn, KINDS[2]);
    // Twice in the last partition.
    for table in ["t", "copied"] {
        run(&mut conn, &[&format!("UPDATE {table} SET c = 10000 WHERE id IN (801, 851)")]);
    }
    let statement =
        "ALTER TABLE t ADD COLUMN x INT, ADD UNIQUE INDEX u (c, a, id), ADD INDEX b (b)";
    let twice = "ALTER TABLE t ADD COLUMN x INT, ADD UNIQUE INDEX u (id), ADD INDEX b (b)";
    // A unique index must have the columns that place rows; so these differ by them alone.
    assert_eq!(answer(&mut conn, twice), 0);
    run(&mut conn, &["ALTER TABLE t DROP COLUMN x, DROP INDEX u, DROP INDEX b"]);
    same(&mut conn, "added and dropped");
    for table in ["t", "copied"] {
        run(
            &mut conn,
            &[&format!("INSERT INTO {table} (id, a) VALUES (900, 777), (2, 777), (2, 778)")],
        );
    }
    assert_eq!(answer(&mut conn, twice), 1062);
    same(&mut conn, "refused");
    // A prepared transaction has used one partition.
    let mut other = server.connect_to("test");
    run(
        &mut other,
        &["XA START 'x'", "DELETE FROM t WHERE id = 850", "XA END 'x'", "XA PREPARE 'x'"],
    );
    drop(other);
    run(&mut conn, &["SET lock_wait_timeout = 1"]);
    assert_ne!(answer(&mut conn, statement), 0);
    run(&mut conn, &["XA COMMIT 'x'", "DELETE FROM copied WHERE id = 850"]);
    same(&mut conn, "after the prepared transaction");
    run(&mut conn, &[&format!("{statement}, ALGORITHM=NOCOPY")]);
    check(&mut conn, "t");
}

#[test]
fn a_server_killed_in_the_middle_has_all_partitions_old_or_new() {
    let mut server = Server::start(Options::new("alter_partitions_kill9"));
    let mut conn = server.connect_to("test");
    create(
        &mut conn,
        "PARTITION BY RANGE (id) SUBPARTITION BY HASH (a) SUBPARTITIONS 2 (PARTITION p0 VALUES LESS THAN (300), PARTITION p1 VALUES LESS THAN (600), PARTITION p2 VALUES LESS THAN (2000))",
    );
    run(&mut conn, &["UPDATE t SET b = id + 2, c = id + 3"]);
    let (mut unacknowledged, mut undone) = (0, 0);
    // Columns of the same type change places: their layout alone would not tell.
    let statements = [
        "ALTER TABLE t ADD COLUMN x INT NOT NULL DEFAULT 7 AFTER id, MODIFY COLUMN c INT NOT NULL FIRST, ADD INDEX b (b), ALGORITHM=NOCOPY",
        "ALTER TABLE t DROP COLUMN x, MODIFY COLUMN a INT NOT NULL FIRST, DROP INDEX b, ALGORITHM=NOCOPY",
    ];
    // How long each takes, so that the kills fall all over it, and a little beyond.
    let whole = statements.map(|statement| {
        let since = Instant::now();
        run(&mut conn, &[statement]);
        since.elapsed()
    });
    let rounds = std::env::var("TIDEPOOL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    for round in 0..rounds {
        let columns = |conn: &mut Conn| -> Vec<String> {
            conn.query("SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = 't' ORDER BY ORDINAL_POSITION").expect("columns")
        };
        let has = columns(&mut conn).contains(&"x".to_string());
        let statement = statements[usize::from(has)];
        let mut altering = server.connect_to("test");
        let thread = thread::spawn(move || is_acknowledged(&mut altering, statement));
        thread::sleep(whole[usize::from(has)] * (round * 7 % 24) / 20);
        // However slow the machine is: once it comes to its end.
        while round + 1 == rounds && !thread.is_finished() {
            thread::sleep(Duration::from_millis(10));
        }
        server.kill9();
        let done = thread.join().expect("no panic");
        server.restart();
        conn = server.connect_to("test");
        let has_now = columns(&mut conn).contains(&"x".to_string());
        assert!(!done || has_now != has, "round {round}");
        unacknowledged += u32::from(!done && has_now != has);
        undone += u32::from(has_now == has);
        check(&mut conn, "t");
        let x = if has_now { " AND x = 7" } else { "" };
        let right =
            format!("SELECT COUNT(*) FROM t WHERE a = id % 50 AND b = id + 2 AND c = id + 3{x}");
        assert_eq!(number(&mut conn, &right), 900, "round {round}");
        run(
            &mut conn,
            &[
                "UPDATE t SET c = c + 1, b = b + 1 WHERE id % 3 = 0",
                "UPDATE t SET c = c - 1, b = b - 1 WHERE id % 3 = 0",
            ],
        );
        check(&mut conn, "t");
        if round % 10 == 9 {
            run(&mut conn, &["ALTER TABLE t FORCE"]);
        }
    }
    println!(
        "{undone} of {rounds} left the table as it was, {unacknowledged} changed it without an answer"
    );
    assert!((1..rounds).contains(&undone), "{undone} of {rounds} were undone");
}

/// The server sorts keys when partitions come and go, and does not ask the engine: unique keys that
/// can be NULL come after those that can't.
#[test]
fn keys_in_another_order_keep_their_trees() {
    let mut server = Server::start(Options::new("alter_partitions_key_order"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT NOT NULL, p INT NOT NULL, a INT NOT NULL, b INT NOT NULL, PRIMARY KEY (id, p), UNIQUE ua (a, p), UNIQUE ub (b, p))
             PARTITION BY RANGE (p) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
            "INSERT INTO t SELECT seq, seq % 20, seq + 1000, seq + 2000 FROM seq_1_to_400",
            "ALTER TABLE t MODIFY a INT NULL",
        ],
    );
    let by_keys = |conn: &mut Conn, table: &str| {
        for index in ["ua", "ub", "PRIMARY"] {
            let rows = |conn: &mut Conn, condition: &str| {
                let query =
                    format!("SELECT id, a, b FROM {table} FORCE INDEX ({index}) WHERE {condition}");
                sorted_rows(conn, &query)
            };
            assert_eq!(
                rows(conn, "a = 1007 AND p = 7"),
                ["[Bytes(\"7\"), Bytes(\"1007\"), Bytes(\"2007\")]"]
            );
            assert_eq!(
                rows(conn, "b = 2007 AND p = 7"),
                ["[Bytes(\"7\"), Bytes(\"1007\"), Bytes(\"2007\")]"]
            );
            let sums = format!(
                "SELECT SUM(a) - SUM(b) + 1000 * COUNT(*) FROM {table} FORCE INDEX ({index}) WHERE b > 0 AND a > 0 AND id > 0"
            );
            assert_eq!(number(conn, &sums), 0, "{index}");
        }
        assert_eq!(
            number(conn, &format!("SELECT MIN(a) FROM {table} FORCE INDEX (ua)")) + 1000,
            number(conn, &format!("SELECT MIN(b) FROM {table} FORCE INDEX (ub)")),
        );
        check(conn, table);
    };
    let write = |conn: &mut Conn| {
        run(
            conn,
            &[
                "INSERT INTO t VALUES (5000, 3, 6000, 7000), (5001, 13, NULL, 7001), (5002, 13, NULL, 7002)",
                "UPDATE t SET a = a + 1, b = b - 1 WHERE id = 5000",
                "UPDATE t SET b = b + 1 WHERE b = 6999",
                "UPDATE t SET a = 6001 WHERE id = 5001",
            ],
        );
        for (row, key) in
            [("9, 3, 6001, 1", "ua"), ("9, 3, 1, 7000", "ub"), ("5000, 3, 1, 1", "PRIMARY")]
        {
            let error =
                conn.query_drop(format!("INSERT INTO t VALUES ({row})")).expect_err("a duplicate");
            assert!(error.to_string().contains(&format!("'{key}'")), "{key}: {error}");
        }
        run(
            conn,
            &[
                "INSERT INTO t VALUES (9, 3, 6001, 1) ON DUPLICATE KEY UPDATE a = 1, b = 2",
                "DELETE FROM t WHERE a = 1 AND b = 2",
                "DELETE FROM t WHERE id >= 5000",
            ],
        );
    };
    for change in [
        "ADD PARTITION (PARTITION p2 VALUES LESS THAN (30), PARTITION p3 VALUES LESS THAN (40))",
        "REORGANIZE PARTITION p1 INTO (PARTITION p1a VALUES LESS THAN (15), PARTITION p1 VALUES LESS THAN (20))",
        "DROP PARTITION p3",
    ] {
        run(&mut conn, &[&format!("ALTER TABLE t {change}")]);
        by_keys(&mut conn, "t");
        write(&mut conn);
        by_keys(&mut conn, "t");
        run(&mut conn, &["ANALYZE TABLE t"]);
    }
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    by_keys(&mut conn, "t");

    // Partitions whose trees are in different orders are changed in place together.
    run(
        &mut conn,
        &[
            "ALTER TABLE t RENAME INDEX ua TO ux, ALGORITHM=INSTANT",
            "ALTER TABLE t RENAME INDEX ub TO ua, RENAME INDEX ux TO ub, ALGORITHM=INSTANT",
            "ALTER TABLE t RENAME INDEX ub TO ux, RENAME INDEX ua TO ub, ALGORITHM=INSTANT",
            "ALTER TABLE t RENAME INDEX ux TO ua, ALGORITHM=INSTANT",
        ],
    );
    by_keys(&mut conn, "t");
    run(
        &mut conn,
        &[
            "ALTER TABLE t ADD COLUMN c VARCHAR(10) DEFAULT 'x' FIRST, ALGORITHM=INSTANT",
            "ALTER TABLE t MODIFY c VARCHAR(100) DEFAULT 'x' FIRST, ALGORITHM=INSTANT",
            "ALTER TABLE t DROP COLUMN c, ALGORITHM=INSTANT",
        ],
    );
    by_keys(&mut conn, "t");
    run(&mut conn, &["ALTER TABLE t ADD INDEX x (b, a), ALGORITHM=NOCOPY"]);
    by_keys(&mut conn, "t");
    write(&mut conn);
    run(&mut conn, &["ALTER TABLE t DROP INDEX x, ALGORITHM=INSTANT"]);
    by_keys(&mut conn, "t");

    run(
        &mut conn,
        &[
            "ALTER TABLE t MODIFY b INT NULL",
            "ALTER TABLE t MODIFY a INT NOT NULL",
            "ALTER TABLE t CONVERT PARTITION p0 TO TABLE part",
        ],
    );
    by_keys(&mut conn, "part");
    check(&mut conn, "t");
    // The other side of a foreign key finds the tree, too.
    run(
        &mut conn,
        &[
            "CREATE TABLE child (id INT PRIMARY KEY, b INT, p INT, a INT NULL,
               FOREIGN KEY (b, p) REFERENCES part (b, p) ON UPDATE CASCADE, FOREIGN KEY (a) REFERENCES part (a))",
            "INSERT INTO child VALUES (1, 2007, 7, 1007)",
            "UPDATE part SET b = 3007 WHERE id = 7",
        ],
    );
    assert_eq!(
        sorted_rows(&mut conn, "SELECT b, p FROM child"),
        ["[Bytes(\"3007\"), Bytes(\"7\")]"]
    );
    assert_eq!(answer(&mut conn, "INSERT INTO child VALUES (2, 1007, 7, 1007)"), 1452);
    assert_eq!(answer(&mut conn, "DELETE FROM part WHERE id = 7"), 1451);
    check(&mut conn, "child");
    check(&mut conn, "part");
}

/// A conflict with the last key of the server's means to REPLACE that no other has one: trees may
/// be in another order.
#[test]
fn a_row_replaces_all_that_are_in_its_way_whatever_the_order_of_trees() {
    let server = Server::start(Options::new("replace_key_order"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT, p INT, a INT NOT NULL, b INT, PRIMARY KEY (id, p), UNIQUE ka (a, p), UNIQUE kb (b, p))
             PARTITION BY RANGE (p) (PARTITION p0 VALUES LESS THAN (10))",
            "ALTER TABLE t MODIFY a INT NULL, MODIFY b INT NOT NULL",
            "ALTER TABLE t ADD PARTITION (PARTITION p1 VALUES LESS THAN (20))",
        ],
    );
    let keys =
        "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_NAME = 't'";
    let names: Vec<String> = conn.query(keys).expect("names");
    assert_eq!(names, ["PRIMARY", "kb", "ka"], "so the test shows something");
    for p in [1, 11] {
        run(
            &mut conn,
            &[
                "DELETE FROM t",
                &format!("INSERT INTO t VALUES (1, {p}, 10, 20), (2, {p}, 11, 21)"),
                &format!("REPLACE INTO t VALUES (3, {p}, 10, 21)"),
            ],
        );
        let rows: Vec<(i64, i64, i64, i64)> = conn.query("SELECT * FROM t").expect("rows");
        assert_eq!(rows, [(3, p, 10, 21)]);
        check(&mut conn, "t");
    }
}

/// The server compares keys by their names, and exchanges tables whose keys are in different
/// orders.
#[test]
fn a_table_with_keys_in_another_order_is_exchanged() {
    let mut server = Server::start(Options::new("alter_partitions_exchange"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, a INT, b INT, KEY ka (a), KEY kb (b))
             PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))",
            "CREATE TABLE s (id INT PRIMARY KEY, a INT, b INT, KEY kb (b), KEY ka (a))",
            "INSERT INTO p VALUES (1, 11, 21), (101, 111, 121)",
            "INSERT INTO s VALUES (2, 12, 22)",
            "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE s",
        ],
    );
    let look = |conn: &mut Conn| {
        for index in ["ka", "kb", "PRIMARY"] {
            for (table, row) in [("s", 1), ("p", 2)] {
                let (a, b) = (row + 10, row + 20);
                let query = format!(
                    "SELECT id, a, b FROM {table} FORCE INDEX ({index}) WHERE a = {a} AND b = {b} AND id = {row}"
                );
                assert_eq!(
                    sorted_rows(conn, &query),
                    [format!("[Bytes(\"{row}\"), Bytes(\"{a}\"), Bytes(\"{b}\")]")],
                    "{query}"
                );
            }
        }
        run(
            conn,
            &[
                "UPDATE p SET a = a + 1000 WHERE b > 20",
                "UPDATE p SET a = a - 1000, b = b + 1 WHERE a > 1000",
                "UPDATE p SET b = b - 1 WHERE a > 0",
                "INSERT INTO s VALUES (3, 5, 6)",
                "DELETE FROM s WHERE b = 6",
            ],
        );
        check(conn, "p");
        check(conn, "s");
    };
    look(&mut conn);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    look(&mut conn);
    run(
        &mut conn,
        &[
            "ALTER TABLE p ADD INDEX ab (a, b), ALGORITHM=NOCOPY",
            "ALTER TABLE p DROP INDEX ab, ALGORITHM=INSTANT",
            "ALTER TABLE s MODIFY b BIGINT, ALGORITHM=COPY",
            "ALTER TABLE s MODIFY b INT, ALGORITHM=COPY",
        ],
    );
    look(&mut conn);
    run(
        &mut conn,
        &[
            "CREATE TABLE n (id INT PRIMARY KEY, a INT, b INT, KEY kb (b), KEY ka (a))",
            "INSERT INTO n VALUES (250, 5, 6)",
            "ALTER TABLE p CONVERT TABLE n TO PARTITION p2 VALUES LESS THAN (300)",
        ],
    );
    look(&mut conn);
    run(
        &mut conn,
        &["DELETE FROM p WHERE b = 6 AND a = 5", "ALTER TABLE p CONVERT PARTITION p2 TO TABLE n"],
    );
    check(&mut conn, "n");
}

/// The server compares the columns of the two tables, and the expressions of the one that has no
/// partitions.
#[test]
fn tables_that_differ_in_what_the_server_does_not_compare_are_not_exchanged() {
    let server = Server::start(Options::new("exchange_refused").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    let in_parts = "PARTITION BY RANGE (id)
        (PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN (200))";
    for (parted, plain) in [
        ("b INT AS (a + 1) VIRTUAL", "b INT"),
        ("b INT AS (a + 1) STORED", "b INT"),
        ("b INT AS (a + 1) VIRTUAL, KEY (b)", "b INT, KEY (b)"),
        ("b INT", "b INT AS (a + 1) VIRTUAL"),
        ("e ENUM('A'), v VARBINARY(9) AS (e) STORED", "e ENUM('a'), v VARBINARY(9) AS (e) STORED"),
    ] {
        run(
            &mut conn,
            &[
                &format!("CREATE TABLE p (id INT PRIMARY KEY, a INT, {parted}) {in_parts}"),
                &format!("CREATE TABLE s (id INT PRIMARY KEY, a INT, {plain})"),
                "INSERT INTO p (id, a) VALUES (1, 1)",
                "INSERT INTO s (id, a) VALUES (2, 2)",
            ],
        );
        let exchange = "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE s";
        assert_eq!(answer(&mut conn, exchange), TABLES_DIFFER, "{parted}");
        let convert = "ALTER TABLE p CONVERT TABLE s TO PARTITION p2 VALUES LESS THAN (300)";
        assert_eq!(answer(&mut conn, convert), TABLES_DIFFER, "{parted}");
        assert_eq!(number(&mut conn, "SELECT SUM(id) FROM p"), 1, "{parted}");
        assert_eq!(number(&mut conn, "SELECT SUM(id) FROM s"), 2, "{parted}");
        run(&mut conn, &["DROP TABLE p, s"]);
    }
    // A file is compressed and encrypted as it is, and a partition has no foreign keys.
    run(
        &mut conn,
        &[
            &format!("CREATE TABLE p (id INT PRIMARY KEY, a INT) COMPRESSION='ZSTD' {in_parts}"),
            "CREATE TABLE s (id INT PRIMARY KEY, a INT)",
        ],
    );
    let exchange = "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE s";
    assert_eq!(answer(&mut conn, exchange), TABLES_DIFFER);
    run(&mut conn, &["ALTER TABLE p COMPRESSION=DEFAULT", exchange]);
    run(
        &mut conn,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "CREATE TABLE n (id INT PRIMARY KEY, a INT, FOREIGN KEY (id) REFERENCES parent (id))",
        ],
    );
    for table in ["n", "parent"] {
        let convert = format!(
            "ALTER TABLE {} CONVERT TABLE {table} TO PARTITION p2 VALUES LESS THAN (300)",
            if table == "n" { "p" } else { "q" }
        );
        if table == "parent" {
            run(&mut conn, &[&format!("CREATE TABLE q (id INT PRIMARY KEY) {in_parts}")]);
        }
        assert_eq!(answer(&mut conn, &convert), TABLES_DIFFER, "{table}");
    }
    run(&mut conn, &["INSERT INTO parent VALUES (250)", "INSERT INTO n VALUES (250, 1)"]);
    assert_eq!(answer(&mut conn, "DELETE FROM parent"), 1451);
}

/// Without a PRIMARY KEY the first unique key places the rows: that can't change with the order of
/// the keys.
#[test]
fn rows_stay_in_the_order_of_their_key() {
    let server = Server::start(Options::new("alter_partitions_clustered"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (a INT NOT NULL, b INT NOT NULL, UNIQUE ka (a), UNIQUE kb (a, b))
             PARTITION BY RANGE (a) (PARTITION p0 VALUES LESS THAN (100))",
            "CREATE TABLE s (a INT NOT NULL, b INT NOT NULL, UNIQUE kb (a, b), UNIQUE ka (a))",
            "INSERT INTO p VALUES (1, 2)",
            "INSERT INTO s VALUES (3, 4)",
        ],
    );
    const DIFFERENT: u16 = 1736;
    assert_eq!(answer(&mut conn, "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE s"), DIFFERENT);
    assert_eq!(
        answer(&mut conn, "ALTER TABLE p CONVERT TABLE s TO PARTITION p1 VALUES LESS THAN (200)"),
        DIFFERENT
    );
    check(&mut conn, "p");
    check(&mut conn, "s");
    run(
        &mut conn,
        &[
            "ALTER TABLE s DROP KEY kb, ADD UNIQUE kb (a, b)",
            "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE s",
        ],
    );
    assert_eq!(sorted_rows(&mut conn, "SELECT * FROM p"), ["[Bytes(\"3\"), Bytes(\"4\")]"]);

    // What the server's sorting would change is refused before.
    run(
        &mut conn,
        &[
            "CREATE TABLE t (p INT NOT NULL, a INT, b INT, UNIQUE ua (a, p), UNIQUE ub (b, p))
             PARTITION BY RANGE (p) (PARTITION p0 VALUES LESS THAN (10))",
            "INSERT INTO t VALUES (1, 1, 1)",
        ],
    );
    for algorithm in ["", ", ALGORITHM=COPY"] {
        let change = format!("ALTER TABLE t MODIFY b INT NOT NULL{algorithm}");
        assert_eq!(answer(&mut conn, &change), 1005);
        let warnings: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").expect("warnings");
        let warnings = format!("{warnings:?}");
        assert!(warnings.contains("add a PRIMARY KEY"), "{warnings}");
    }
    run(
        &mut conn,
        &[
            "ALTER TABLE t MODIFY b INT NOT NULL, DROP KEY ub, ADD UNIQUE ub (b, p)",
            "ALTER TABLE t ADD PARTITION (PARTITION p1 VALUES LESS THAN (20))",
            "INSERT INTO t VALUES (11, NULL, 2)",
        ],
    );
    check(&mut conn, "t");
    assert_eq!(number(&mut conn, "SELECT SUM(b) FROM t FORCE INDEX (ua)"), 3);
}

/// Other statements that sort the keys; and one that adds partitions without being asked.
#[test]
fn keys_are_sorted_again_in_other_ways() {
    let server = Server::start(Options::new("alter_partitions_sorted"));
    let mut conn = server.connect_to("test");
    let keys = "UNIQUE ua (a, p), UNIQUE ub (b, p)";
    run(
        &mut conn,
        &[
            &format!(
                "CREATE TABLE h (id INT, p INT, a INT NOT NULL, b INT NOT NULL, PRIMARY KEY (id, p), {keys}) PARTITION BY HASH (p) PARTITIONS 3"
            ),
            "INSERT INTO h SELECT seq, seq % 20, seq + 1000, seq + 2000 FROM seq_1_to_400",
            "ALTER TABLE h MODIFY a INT NULL",
            "ALTER TABLE h COALESCE PARTITION 1",
            "ALTER TABLE h ADD PARTITION PARTITIONS 3",
        ],
    );
    check(&mut conn, "h");
    let by_both = "SELECT COUNT(*) FROM h x FORCE INDEX (ua) JOIN h y FORCE INDEX (ub) ON y.b = x.a + 1000 AND y.p = x.p WHERE x.a > 0 AND x.id = y.id";
    assert_eq!(number(&mut conn, by_both), 400);

    run(
        &mut conn,
        &[
            "SET system_versioning_alter_history = KEEP",
            "CREATE TABLE v (id INT PRIMARY KEY, a INT NOT NULL, b INT NOT NULL, UNIQUE ua (a), UNIQUE ub (b)) WITH SYSTEM VERSIONING
             PARTITION BY SYSTEM_TIME LIMIT 10 AUTO PARTITIONS 3",
            "INSERT INTO v SELECT seq, seq + 1000, seq + 2000 FROM seq_1_to_40",
            "ALTER TABLE v MODIFY a INT NULL",
        ],
    );
    for id in 1..=40 {
        run(
            &mut conn,
            &[&format!("UPDATE v SET a = a + 100, b = b + 100 WHERE b = {}", id + 2000)],
        );
    }
    let partitions = "SELECT COUNT(*) FROM information_schema.PARTITIONS WHERE TABLE_NAME = 'v'";
    assert!(number(&mut conn, partitions) > 3);
    check(&mut conn, "v");
    for index in ["ua", "ub"] {
        let rows = format!(
            "SELECT COUNT(*) FROM v FOR SYSTEM_TIME ALL FORCE INDEX ({index}) WHERE a + 1000 = b AND a > 0 AND b > 0"
        );
        assert_eq!(number(&mut conn, &rows), 80, "{index}");
    }
}

/// As if a crash had come before the server's own definition was replaced: the catalog has the
/// names already, and each is the other's.
#[test]
fn names_that_were_exchanged_mislead_nobody() {
    let mut server = Server::start(Options::new("alter_partitions_exchanged_names"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, KEY ka (a), KEY kb (b))",
            "INSERT INTO t SELECT seq, seq + 100, seq + 200 FROM seq_1_to_50",
        ],
    );
    let file = server.data_dir().join("test/t.frm");
    let old_definition = std::fs::read(&file).expect("a .frm");
    for name in ["kc", "kb"] {
        run(&mut conn, &["ALTER TABLE t RENAME INDEX ka TO kt"]);
        run(
            &mut conn,
            &[&format!("ALTER TABLE t RENAME INDEX kb TO ka, RENAME INDEX kt TO {name}")],
        );
        drop(conn);
        server.stop();
        std::fs::write(&file, &old_definition).expect("a .frm");
        server.restart();
        conn = server.connect_to("test");
        check(&mut conn, "t");
        let query = "SELECT COUNT(*) FROM t FORCE INDEX (ka) WHERE a = 107";
        assert_eq!(number(&mut conn, query), 1);
        run(
            &mut conn,
            &[
                "UPDATE t SET a = a + 1, b = b - 1 WHERE b = 210",
                "UPDATE t SET a = a - 1, b = b + 1 WHERE a = 111 AND b = 209",
            ],
        );
        check(&mut conn, "t");
    }
}
