//! Definitions changed, indexes added and dropped without a copy of the table: what is in them,
//! what they refuse, and what a kill leaves.

use std::thread;
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, Row};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::{check, is_acknowledged, number, run, sorted_rows};

const TABLE_CHANGED: u16 = 1412;
const DUPLICATE: u16 = 1062;
const INTERRUPTED: u16 = 1317;
const NOT_IN_PLACE: [u16; 2] = [1845, 1846];

fn error(conn: &mut Conn, statement: &str) -> mysql::MySqlError {
    match conn.query::<Row, _>(statement) {
        Err(mysql::Error::MySqlError(error)) => error,
        Err(error) => panic!("{statement}: {error}"),
        Ok(_) => panic!("{statement} succeeded"),
    }
}

/// Names of a table's keys, in their order.
fn keys(conn: &mut Conn, table: &str) -> Vec<String> {
    let query = format!(
        "SELECT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = '{table}' \
         AND SEQ_IN_INDEX = 1"
    );
    conn.query(query).expect("keys")
}

const COLUMNS: &str = "
    n INT, u BIGINT UNSIGNED, d DECIMAL(10, 3), f FLOAT, g DOUBLE, t TIMESTAMP(3) NULL, dt DATETIME, da DATE,
    ci VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, uca VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci,
    bin VARCHAR(30) CHARACTER SET latin1 COLLATE latin1_bin, nopad VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
    c CHAR(10) NOT NULL DEFAULT '', b VARBINARY(20), e ENUM('one', 'two', 'three'), s SET('x', 'y', 'z'), bit BIT(5),
    txt TEXT, bl BLOB, stored INT AS (n + 1) STORED, virt INT AS (n + 2) VIRTUAL";

/// An index's name and its parts.
const INDEXES: &[(&str, &str)] = &[
    ("i_n", "n"),
    ("i_u", "u"),
    ("i_d", "d DESC, n"),
    ("i_f", "f, g"),
    ("i_t", "t, dt, da"),
    ("i_ci", "ci"),
    ("i_uca", "uca DESC, ci"),
    ("i_bin", "bin, b"),
    ("i_nopad", "nopad, c"),
    ("i_c", "c(3), n"),
    ("i_e", "e, s, bit"),
    ("i_txt", "txt(7), bl(5)"),
    ("i_prefix", "ci(3)"),
    ("i_stored", "stored"),
];

fn fill(conn: &mut Conn, table: &str, id: &str) {
    let rows = format!(
        "INSERT INTO {table} ({id}n, u, d, f, g, t, dt, da, ci, uca, bin, nopad, c, b, e, s, bit, txt, bl)
         SELECT {}IF(seq % 7, CAST(seq * 31 % 1000 AS SIGNED) - 500, NULL), seq * 17 % 900, IF(seq % 5, seq / 7 - 100, NULL), seq / 3 - 300,
             IF(seq % 11, -1.5e10 * seq, NULL), IF(seq % 6, FROM_UNIXTIME(1e9 + seq * 1000.125), NULL), '2020-01-01' + INTERVAL seq HOUR,
             '2021-01-01' + INTERVAL seq % 50 DAY,
             IF(seq % 9, CONCAT(ELT(1 + seq % 4, 'abc', 'ABC', 'äbc', 'Straße'), REPEAT(' ', seq % 3), seq % 40), NULL),
             CONCAT(ELT(1 + seq % 3, 'x', 'X', 'é'), seq % 100), CONCAT(seq % 77, REPEAT(' ', seq % 4)), CONCAT(seq % 33, REPEAT(' ', seq % 2)),
             CONCAT('c', seq % 500), IF(seq % 3, UNHEX(HEX(seq)), NULL), 1 + seq % 3, seq % 8, seq % 32,
             CONCAT(REPEAT('long ', seq % 200), seq), UNHEX(MD5(seq))
         FROM seq_1_to_3000",
        if id.is_empty() { "" } else { "seq, " }
    );
    run(conn, &[&rows]);
}

#[test]
fn a_new_index_answers_as_the_table_does() {
    let server = Server::start(Options::new("in_place"));
    let mut conn = server.connect_to("test");
    // Values for generated columns come with `SELECT *`, and are ignored.
    run(&mut conn, &["SET sql_mode = ''"]);
    for (table, id) in [
        ("by_int", "id INT PRIMARY KEY,"),
        ("by_text", "id VARCHAR(20) CHARACTER SET utf8mb4 PRIMARY KEY,"),
        ("by_row_id", ""),
        ("by_two", "id INT, PRIMARY KEY (c, id),"),
    ] {
        run(&mut conn, &[&format!("CREATE TABLE {table} ({id} {COLUMNS})")]);
        fill(&mut conn, table, if id.is_empty() { "" } else { "id, " });
        run(
            &mut conn,
            &[
                &format!("DELETE FROM {table} WHERE u % 10 = 3"),
                &format!("UPDATE {table} SET n = n + 1, ci = CONCAT(ci, 'x') WHERE u % 10 = 4"),
                &format!("CREATE TABLE copy_{table} LIKE {table}"),
                &format!("INSERT INTO copy_{table} SELECT * FROM {table}"),
            ],
        );
        let (alone, together) = INDEXES.split_at(3);
        for (name, parts) in alone {
            let statement = format!("ALTER TABLE {table} ADD INDEX {name} ({parts})");
            run(&mut conn, &[&format!("{statement}, ALGORITHM=INPLACE, LOCK=SHARED")]);
        }
        let add: Vec<_> =
            together.iter().map(|(name, parts)| format!("ADD INDEX {name} ({parts})")).collect();
        run(&mut conn, &[&format!("ALTER TABLE {table} {}, ALGORITHM=NOCOPY", add.join(", "))]);
        let add: Vec<_> =
            INDEXES.iter().map(|(name, parts)| format!("ADD INDEX {name} ({parts})")).collect();
        run(&mut conn, &[&format!("ALTER TABLE copy_{table} {}, ALGORITHM=COPY", add.join(", "))]);
        check(&mut conn, table);
        check(&mut conn, &format!("copy_{table}"));
        let whole =
            sorted_rows(&mut conn, &format!("SELECT * FROM {table} IGNORE INDEX FOR JOIN (i_n)"));
        for (name, parts) in INDEXES {
            let first = parts.split([' ', ',', '(']).next().expect("a column");
            let forced = format!("{table} FORCE INDEX ({name}) WHERE {first} IS NULL OR {first}");
            let forced_rows = sorted_rows(&mut conn, &format!("SELECT * FROM {forced} >= ''"));
            assert!(forced_rows.len() <= whole.len());
            let read = format!("SELECT * FROM {table} FORCE INDEX ({name}) ORDER BY {first}");
            assert!(sorted_rows(&mut conn, &read) == whole, "{table}.{name}");
        }
        // Written as ever.
        let last = if id.is_empty() { "" } else { "id + 10000, " };
        let into = if id.is_empty() { "" } else { "id, " };
        run(
            &mut conn,
            &[
                &format!(
                    "INSERT INTO {table} ({into}n, ci, c, txt) SELECT {last}n, ci, c, txt FROM copy_{table} WHERE u < 50"
                ),
                &format!("UPDATE {table} SET n = -n, ci = 'other', txt = NULL WHERE u % 7 = 1"),
                &format!("DELETE FROM {table} WHERE u % 7 = 2"),
            ],
        );
        check(&mut conn, table);
    }
    // Figures for the optimizer are those that a copy has.
    run(&mut conn, &["ANALYZE TABLE copy_by_int"]);
    let cardinality = |conn: &mut Conn, table: &str| -> Vec<(String, f64)> {
        let query = format!(
            "SELECT CONCAT(INDEX_NAME, SEQ_IN_INDEX), COALESCE(CARDINALITY, -1) FROM information_schema.STATISTICS \
             WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = '{table}' ORDER BY 1"
        );
        conn.query(query).expect("cardinalities")
    };
    let (mine, of_copy) = (cardinality(&mut conn, "by_int"), cardinality(&mut conn, "copy_by_int"));
    for ((name, mine), (other, of_copy)) in mine.iter().zip(&of_copy) {
        assert_eq!(name, other);
        let ratio = (mine + 1.0) / (of_copy + 1.0);
        assert!((0.3..3.0).contains(&ratio), "{name}: {mine}, of the copy {of_copy}");
    }
    assert_eq!(mine.len(), of_copy.len());
    let mut server = server;
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    for table in ["by_int", "by_text", "by_row_id", "by_two"] {
        check(&mut conn, table);
    }
    run(&mut conn, &["INSERT INTO by_row_id (n) VALUES (1), (1)"]);
    check(&mut conn, "by_row_id");
}

#[test]
fn keys_change_their_order_and_their_names() {
    let server = Server::start(Options::new("key_order"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, a INT, b INT, c INT NOT NULL, d VARCHAR(20), KEY a (a), KEY b (b))",
            "INSERT INTO t (a, b, c, d) SELECT seq % 100, seq % 90, seq * 7, seq FROM seq_1_to_2000",
            "SET alter_algorithm = 'NOCOPY'",
        ],
    );
    let mut step = |statement: &str, expected: &[&str]| {
        run(&mut conn, &[statement]);
        assert_eq!(keys(&mut conn, "t"), expected, "{statement}");
        check(&mut conn, "t");
        run(
            &mut conn,
            &[
                "SET @last = (SELECT MAX(id) FROM t)",
                "INSERT INTO t (a, b, c, d) VALUES (1000, 1000, -1 - @last, -1 - @last)",
                "UPDATE t SET a = a + 1, b = b - 1, d = CONCAT(d, '.') WHERE id % 100 = 7",
                "DELETE FROM t WHERE id % 1000 = 9",
            ],
        );
        check(&mut conn, "t");
    };
    // Unique keys come first.
    step("ALTER TABLE t ADD UNIQUE INDEX c (c)", &["PRIMARY", "c", "a", "b"]);
    step("CREATE UNIQUE INDEX d ON t (d)", &["PRIMARY", "c", "d", "a", "b"]);
    step(
        "ALTER TABLE t RENAME INDEX a TO z, ADD INDEX a (b, a)",
        &["PRIMARY", "c", "d", "z", "b", "a"],
    );
    step("DROP INDEX c ON t", &["PRIMARY", "d", "z", "b", "a"]);
    step(
        "ALTER TABLE t DROP INDEX z, ADD UNIQUE INDEX z (c, d), DROP INDEX b",
        &["PRIMARY", "d", "z", "a"],
    );
    step("ALTER TABLE t RENAME INDEX z TO y", &["PRIMARY", "d", "y", "a"]);
    step("ALTER TABLE t ADD INDEX z (c)", &["PRIMARY", "d", "y", "a", "z"]);
    step("ALTER TABLE t DROP INDEX y, DROP INDEX d, DROP INDEX a, DROP INDEX z", &["PRIMARY"]);
    step("ALTER TABLE t ADD INDEX a (a), ALGORITHM=INPLACE", &["PRIMARY", "a"]);
    step("ALTER TABLE t DROP INDEX a, ALGORITHM=INSTANT", &["PRIMARY"]);
    step("LOCK TABLES t WRITE", &["PRIMARY"]);
    step("ALTER TABLE t ADD INDEX a (a)", &["PRIMARY", "a"]);
    step("ALTER TABLE t DROP INDEX a", &["PRIMARY"]);
    step("UNLOCK TABLES", &["PRIMARY"]);
    step("CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.c = NEW.c - 1", &["PRIMARY"]);
    step("ALTER TABLE t ADD INDEX a (a)", &["PRIMARY", "a"]);
    let next = number(&mut conn, "SELECT MAX(id) + 1 FROM t");
    run(&mut conn, &["ALTER TABLE t ADD INDEX b (b), RENAME TO u"]);
    run(&mut conn, &["INSERT INTO u (a, b, c, d) VALUES (1, 1, 1, 'next')"]);
    assert_eq!(number(&mut conn, "SELECT id FROM u WHERE d = 'next'"), next);
    assert_eq!(keys(&mut conn, "u"), ["PRIMARY", "a", "b"]);
    check(&mut conn, "u");
    let owners = sorted_rows(
        &mut conn,
        "SELECT INDEX_NAME FROM information_schema.TIDEPOOL_BUFFER_POOL_BY_INDEX WHERE TABLE_NAME = 'u'",
    );
    assert!(owners.iter().any(|row| row.contains("\"b\"")), "{owners:?}");
    let mut server = server;
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(keys(&mut conn, "u"), ["PRIMARY", "a", "b"]);
    check(&mut conn, "u");
}

#[test]
fn duplicates_are_refused_by_name_and_value() {
    let server = Server::start(Options::new("in_place_duplicates"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, b INT, c TEXT, KEY b (b))",
            "INSERT INTO t SELECT seq, CONCAT('v', seq), seq DIV 2, REPEAT('x', 9000) FROM seq_1_to_500",
            "INSERT INTO t VALUES (1001, 'V77', NULL, 'y'), (1002, NULL, NULL, 'y'), (1003, NULL, NULL, 'z')",
            "CREATE TABLE r LIKE t",
            "ALTER TABLE r DROP PRIMARY KEY",
            "INSERT INTO r SELECT * FROM t",
        ],
    );
    for table in ["t", "r"] {
        for algorithm in ["INPLACE", "COPY"] {
            let add = format!("ALTER TABLE {table} ADD INDEX o (b, a), ADD UNIQUE INDEX ua (a)");
            let refused = error(&mut conn, &format!("{add}, ALGORITHM={algorithm}"));
            assert_eq!(refused.code, DUPLICATE);
            assert!(refused.message.ends_with("Duplicate entry 'V77' for key 'ua'"), "{refused}");
        }
        let keys_before: &[&str] = if table == "t" { &["PRIMARY", "b"] } else { &["b"] };
        assert_eq!(keys(&mut conn, table), keys_before);
        check(&mut conn, table);
        let two = format!("ALTER TABLE {table} ADD UNIQUE INDEX two (b, c(1)), ALGORITHM=INPLACE");
        let refused = error(&mut conn, &two);
        assert!(refused.message.contains("-x' for key 'two'"), "{refused}");
        // What is NULL is no duplicate.
        run(
            &mut conn,
            &[
                &format!("DELETE FROM {table} WHERE id = 1001"),
                &format!("ALTER TABLE {table} ADD UNIQUE INDEX ua (a), ALGORITHM=INPLACE"),
            ],
        );
        check(&mut conn, table);
        let again = format!("INSERT INTO {table} VALUES (2000, 'V78', 1, '')");
        assert_eq!(error(&mut conn, &again).code, DUPLICATE);
        run(&mut conn, &[&format!("INSERT INTO {table} VALUES (2001, NULL, 1, '')")]);
        check(&mut conn, table);
    }
}

/// What changes no row and no entry costs no copy of them; and the numbers go on above all rows.
#[test]
fn a_definition_changes_at_once_where_the_bytes_stay() {
    let server = Server::start(Options::new("definitions"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4, w VARCHAR(30),
                 x TINYTEXT, n INT, g INT AS (n + 1) VIRTUAL, UNIQUE (v, n), KEY (w(10)), KEY (x(5)))",
            "INSERT INTO t (v, w, x, n) SELECT CONCAT('v', seq), CONCAT('w', seq % 50), REPEAT('x', seq % 200), seq FROM seq_1_to_1000",
        ],
    );
    let whole = sorted_rows(&mut conn, "SELECT id, v, w, x, n FROM t");
    for change in [
        "MODIFY v VARCHAR(300) CHARACTER SET utf8mb4",
        "MODIFY w VARCHAR(400), MODIFY x LONGTEXT",
        "ADD h INT AS (n * 2) VIRTUAL",
        "DROP g",
        "DEFAULT CHARACTER SET utf8mb4",
        "MAX_ROWS = 10, CHECKSUM = 1, COMMENT = 'no row changes'",
        "AUTO_INCREMENT = 5000",
    ] {
        run(&mut conn, &[&format!("ALTER TABLE t {change}, ALGORITHM=INSTANT, LOCK=NONE")]);
        assert!(sorted_rows(&mut conn, "SELECT id, v, w, x, n FROM t") == whole, "{change}");
        check(&mut conn, "t");
    }
    // Another collation sorts in another way, a shorter column may cut, and the beginning of a
    // column is not the whole.
    for change in [
        "MODIFY v VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "MODIFY v VARCHAR(30) CHARACTER SET utf8mb4",
        "MODIFY x TEXT",
        "MODIFY w VARCHAR(400) NOT NULL",
        "MODIFY w TEXT",
        "ADD i INT AS (n * 2) STORED",
    ] {
        let refused = error(&mut conn, &format!("ALTER TABLE t {change}, ALGORITHM=INSTANT"));
        assert!(NOT_IN_PLACE.contains(&refused.code), "{change}: {refused:?}");
    }
    run(
        &mut conn,
        &["CREATE TABLE p (w VARCHAR(20), KEY (w(20)))", "INSERT INTO p VALUES ('abc'), ('abd ')"],
    );
    run(&mut conn, &["ALTER TABLE p MODIFY w VARCHAR(60), DROP KEY w, ADD KEY (w(20))"]);
    assert_eq!(
        number(
            &mut conn,
            "SELECT COUNT(*) FROM p FORCE INDEX (w) WHERE w LIKE 'abd%' AND LENGTH(w) = 4"
        ),
        1
    );
    check(&mut conn, "p");

    run(
        &mut conn,
        &[
            "INSERT INTO t (v, w, x, n) VALUES (REPEAT('v', 300), REPEAT('w', 400), REPEAT('x', 100000), 0)",
        ],
    );
    assert_eq!(number(&mut conn, "SELECT MAX(id) FROM t"), 5000);
    assert_eq!(number(&mut conn, "SELECT h FROM t WHERE n = 7"), 14);
    let duplicate = "INSERT INTO t (v, n) VALUES (REPEAT('V', 300), 0)";
    assert_eq!(error(&mut conn, duplicate).code, DUPLICATE);
    // Not below what is there, and be it in a transaction that is only prepared.
    run(&mut conn, &["ALTER TABLE t AUTO_INCREMENT = 100", "INSERT INTO t (n) VALUES (-1)"]);
    assert_eq!(number(&mut conn, "SELECT id FROM t WHERE n = -1"), 5001);
    run(
        &mut conn,
        &["XA START 'x'", "INSERT INTO t (n) VALUES (-2)", "XA END 'x'", "XA PREPARE 'x'"],
    );
    drop(conn);
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &["ALTER TABLE t AUTO_INCREMENT = 1", "XA COMMIT 'x'", "INSERT INTO t (n) VALUES (-3)"],
    );
    assert_eq!(number(&mut conn, "SELECT id FROM t WHERE n = -2"), 5002);
    assert_eq!(number(&mut conn, "SELECT id FROM t WHERE n = -3"), 5003);
    check(&mut conn, "t");
}

#[test]
fn what_is_not_surely_right_is_copied() {
    let server = Server::start(Options::new("not_in_place"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b INT, v INT AS (b + 1) VIRTUAL,
             w TEXT AS (x) VIRTUAL, x TEXT, s DATE, e DATE, KEY (b))",
            "INSERT INTO t (id, a, b, x, s, e) SELECT seq, seq, seq, seq, '2020-01-01', '2020-01-02' FROM seq_1_to_100",
            "CREATE TABLE n (a INT NOT NULL, b INT)",
            "INSERT INTO n SELECT seq, seq FROM seq_1_to_100",
            "CREATE TABLE h (id INT PRIMARY KEY, a INT, x TEXT, UNIQUE (x))",
            "INSERT INTO h SELECT seq, seq, seq FROM seq_1_to_100",
            // What the server takes for the primary key: the rows are written in its order.
            "ALTER TABLE n ADD UNIQUE INDEX ua (a), ALGORITHM=INPLACE",
        ],
    );
    run(&mut conn, &["ALTER TABLE t ADD INDEX i (v), ALGORITHM=NOCOPY, LOCK=NONE"]);
    for statement in [
        "ALTER TABLE t DROP INDEX b, MODIFY s DATETIME",
        "ALTER TABLE t ADD INDEX b (b), MODIFY a BIGINT NOT NULL",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a)",
    ] {
        run(&mut conn, &[statement]);
        check(&mut conn, "t");
        let by_index = number(&mut conn, "SELECT SUM(v) FROM t FORCE INDEX (i) WHERE v > 0");
        assert_eq!(by_index, 5150, "{statement}");
    }
    for statement in [
        "ALTER TABLE t ADD INDEX j (a), ADD COLUMN y INT DEFAULT (a)",
        "ALTER TABLE t ADD FULLTEXT INDEX f (w)",
        "ALTER TABLE t ADD UNIQUE INDEX ux (x)",
        "ALTER TABLE n DROP INDEX ua, ADD INDEX ub (b)",
        "ALTER TABLE h ADD INDEX i (a)",
    ] {
        let refused = error(&mut conn, &format!("{statement}, ALGORITHM=INPLACE"));
        assert!(NOT_IN_PLACE.contains(&refused.code), "{statement}: {refused}");
        run(&mut conn, &[statement]);
        for table in ["t", "n", "h"] {
            check(&mut conn, table);
            assert_eq!(number(&mut conn, &format!("SELECT COUNT(*) FROM {table}")), 100);
        }
    }
    let refused = error(&mut conn, "ALTER TABLE t ADD INDEX k (s), ALGORITHM=INPLACE, LOCK=NONE");
    assert!(NOT_IN_PLACE.contains(&refused.code), "{refused}");
    run(&mut conn, &["CREATE TEMPORARY TABLE own (a INT)", "INSERT INTO own VALUES (1)"]);
    run(&mut conn, &["ALTER TABLE own ADD INDEX (a)"]);
    assert_eq!(number(&mut conn, "SELECT a FROM own FORCE INDEX (a) WHERE a = 1"), 1);
}

#[test]
fn an_older_snapshot_does_not_read_by_a_newer_index() {
    let server = Server::start(Options::new("older_than_index"));
    let (mut old, mut new) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut new,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, KEY b (b))",
            "INSERT INTO t SELECT seq, seq, seq FROM seq_1_to_100",
        ],
    );
    run(&mut old, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
    run(
        &mut new,
        &[
            "DELETE FROM t WHERE id = 1",
            "UPDATE t SET a = 1000 WHERE id = 2",
            "ALTER TABLE t ADD UNIQUE INDEX a (a), ALGORITHM=INPLACE",
        ],
    );
    let by = |index: &str| {
        format!("SELECT COUNT(*) FROM t FORCE INDEX ({index}) WHERE {index} > 0 AND {index} < 500")
    };
    assert_eq!(number(&mut old, &by("b")), 100);
    assert_eq!(number(&mut old, "SELECT a FROM t WHERE id = 2"), 2);
    assert_eq!(error(&mut old, &by("a")).code, TABLE_CHANGED);
    assert_eq!(number(&mut new, &by("a")), 98);
    run(&mut old, &["COMMIT"]);
    assert_eq!(number(&mut old, &by("a")), 98);
}

#[test]
fn a_prepared_transaction_stands_in_the_way_of_an_index() {
    let mut server = Server::start(Options::new("index_beside_xa"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, KEY b (b))"]);
    run(&mut conn, &["INSERT INTO t VALUES (1, 1, 1)"]);
    let mut other = server.connect_to("test");
    run(
        &mut other,
        &["XA START 'x'", "INSERT INTO t VALUES (2, 2, 2)", "XA END 'x'", "XA PREPARE 'x'"],
    );
    drop(other);
    for again in [false, true] {
        run(&mut conn, &["SET lock_wait_timeout = 2"]);
        for statement in ["ADD INDEX a (a), ALGORITHM=INPLACE", "DROP INDEX b, ALGORITHM=INPLACE"] {
            let altered = conn.query_drop(format!("ALTER TABLE t {statement}"));
            assert!(altered.is_err(), "the index would lack a row, or its undo");
        }
        if !again {
            server.kill9();
            server.restart();
            conn = server.connect_to("test");
        }
    }
    run(
        &mut conn,
        &["XA COMMIT 'x'", "ALTER TABLE t ADD INDEX a (a), DROP INDEX b, ALGORITHM=INPLACE"],
    );
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t FORCE INDEX (a) WHERE a > 0"), 2);
    check(&mut conn, "t");
}

const LARGE: &[&str] = &[
    "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, c CHAR(60) NOT NULL, KEY c (c))",
    "INSERT INTO t (k, c) SELECT seq * 7919 % 1000003, MD5(seq) FROM seq_1_to_200000",
];

#[test]
fn others_read_while_an_index_is_built_and_a_kill_ends_it() {
    let server = Server::start(Options::new("kill_a_build"));
    let mut conn = server.connect_to("test");
    run(&mut conn, LARGE);
    let (mut killed, mut read, mut delay) = (0, 0, 20);
    for _ in 0..40 {
        let mut builder = server.connect_to("test");
        let id = builder.connection_id();
        let building = thread::spawn(move || {
            let built = builder.query_drop(
                "ALTER TABLE t ADD INDEX k (k), ADD INDEX ck (c, k), ALGORITHM=INPLACE",
            );
            // The connection must be there for the KILL.
            (built, builder)
        });
        thread::sleep(Duration::from_millis(delay));
        // Not blocked: the build takes longer than this, or has not begun, or is over.
        let state =
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'altering table'";
        if number(&mut conn, state) == 1 {
            run(
                &mut conn,
                &["SET STATEMENT max_statement_time = 5 FOR SELECT c FROM t WHERE id = 5"],
            );
            read += number(&mut conn, state);
        }
        run(&mut conn, &[&format!("KILL QUERY {id}")]);
        match building.join().expect("no panic").0 {
            Ok(()) => {
                run(&mut conn, &["ALTER TABLE t DROP INDEX k, DROP INDEX ck"]);
                delay = delay * 2 / 3;
            }
            Err(mysql::Error::MySqlError(error)) => {
                assert_eq!(error.code, INTERRUPTED, "{error}");
                killed += 1;
                delay += 35;
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(keys(&mut conn, "t"), ["PRIMARY", "c"]);
        run(
            &mut conn,
            &["INSERT INTO t (k, c) VALUES (1, 'one')", "DELETE FROM t WHERE c = 'one'"],
        );
        if killed >= 8 && read > 0 {
            break;
        }
    }
    assert!(killed > 2, "{killed} were killed");
    assert!(read > 0, "no session read beside a build");
    check(&mut conn, "t");
    run(&mut conn, &["ALTER TABLE t ADD INDEX k (k), ALGORITHM=INPLACE"]);
    check(&mut conn, "t");
}

#[test]
fn a_server_killed_in_the_middle_has_the_old_or_the_new_indexes() {
    let mut server = Server::start(Options::new("kill9_a_build"));
    let mut conn = server.connect_to("test");
    run(&mut conn, LARGE);
    // How long it takes, so that the kills fall all over it, and beyond.
    let since = std::time::Instant::now();
    run(&mut conn, &["ALTER TABLE t ADD UNIQUE INDEX ck (c, k), ALGORITHM=INPLACE"]);
    let whole = since.elapsed();
    run(&mut conn, &["ALTER TABLE t DROP INDEX ck, ALGORITHM=INPLACE"]);
    let rounds = std::env::var("TIDEPOOL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    // Behind the engine's commit the server has its own files to change: a crash there is the
    // hardest.
    let (mut unacknowledged, mut undone) = (0, 0);
    for round in 0..rounds {
        let before = keys(&mut conn, "t");
        let has = before.contains(&"ck".to_string());
        let statement = match has {
            true => "ALTER TABLE t DROP INDEX ck, ALGORITHM=INPLACE",
            false => "ALTER TABLE t ADD UNIQUE INDEX ck (c, k), ALGORITHM=INPLACE",
        };
        let mut altering = server.connect_to("test");
        let thread = thread::spawn(move || is_acknowledged(&mut altering, statement));
        let ahead = match has {
            true => Duration::from_millis(round % 30),
            false => whole * (round as u32 % 10 + 3) / 10,
        };
        thread::sleep(ahead);
        // However slow the machine is: once it comes to its end.
        while round + 1 == rounds && !thread.is_finished() {
            thread::sleep(Duration::from_millis(10));
        }
        server.kill9();
        let done = thread.join().expect("no panic");
        server.restart();
        conn = server.connect_to("test");
        let now = keys(&mut conn, "t");
        let has_now = now.contains(&"ck".to_string());
        assert!(!done || has_now != has, "round {round}: {statement}: {now:?}");
        unacknowledged += u32::from(!done && has_now != has);
        undone += u32::from(has_now == has);
        check(&mut conn, "t");
        run(
            &mut conn,
            &[
                "INSERT INTO t (k, c) VALUES (1, 'one')",
                "UPDATE t SET k = 2 WHERE c = 'one'",
                "DELETE FROM t WHERE c = 'one'",
            ],
        );
        check(&mut conn, "t");
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 200_000);
    }
    println!(
        "{undone} of {rounds} left the table as it was, \
         {unacknowledged} changed it without an answer"
    );
    assert!((1..rounds as u32).contains(&undone), "{undone} of {rounds} were undone");
}

/// The server sees no other type where decimals, or zeros before a number, are others; but what is
/// computed is.
#[test]
fn what_is_kept_of_computed_values_follows_the_definition() {
    let server = Server::start(Options::new("computed_values"));
    let mut conn = server.connect_to("test");
    let create = [
        "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, a INT(5) ZEROFILL, f DOUBLE(10,2), s VARCHAR(20), w VARCHAR(3) AS (LEFT(s, 3)) VIRTUAL,
           d DOUBLE(10,2) AS (a / 3) VIRTUAL, c VARCHAR(20) AS (CONCAT(a)) VIRTUAL, e DOUBLE AS (d * 2) VIRTUAL,
           g DOUBLE(10,2) AS (a / 7) STORED, KEY (d), KEY (c), KEY (e), KEY (s), KEY (w))",
        "INSERT INTO t (id, a, f, s) VALUES (1, 1, 1.234, 'one'), (2, 20, 2.345, 'two'), (3, 300, 3.456, 'three')",
    ];
    for change in [
        "MODIFY d DOUBLE(10,4) AS (a / 3) VIRTUAL",
        "MODIFY a INT(8) ZEROFILL",
        "MODIFY a INT(5)",
        "MODIFY g DOUBLE(10,5) AS (a / 7) STORED",
        "MODIFY w VARCHAR(9) AS (LEFT(s, 3)) VIRTUAL",
        "MODIFY d DOUBLE(10,4) AS (a / 3) VIRTUAL, ADD COLUMN x INT FIRST",
        "MODIFY a INT(8) ZEROFILL, ADD COLUMN x INT FIRST",
        "MODIFY a INT(8) ZEROFILL, ADD INDEX f (f)",
    ] {
        run(&mut conn, &create);
        run(&mut conn, &[&format!("ALTER TABLE t {change}")]);
        check(&mut conn, "t");
        for (column, index) in [("d", "d"), ("c", "c"), ("e", "e"), ("w", "w")] {
            let by =
                |hint: &str| format!("SELECT id, {column} FROM t {hint} ORDER BY {column}, id");
            assert_eq!(
                sorted_rows(&mut conn, &by(&format!("FORCE INDEX ({index})"))),
                sorted_rows(&mut conn, &by("IGNORE INDEX (d, c, e, w)")),
                "{change}"
            );
        }
        let places = if change.contains(" g ") { 5 } else { 2 };
        let wrong =
            format!("SELECT COUNT(*) FROM t WHERE ABS(g - ROUND(a / 7, {places})) > 0.000001");
        assert_eq!(number(&mut conn, &wrong), 0, "{change}");
        run(&mut conn, &["UPDATE t SET a = a + 1", "DELETE FROM t WHERE id < 3"]);
        check(&mut conn, "t");
    }
    // By way of a virtual column that is in no index.
    run(
        &mut conn,
        &[
            "CREATE TABLE u (id INT PRIMARY KEY, a INT, v DOUBLE(10,2) AS (a / 3) VIRTUAL, k DOUBLE AS (v + 1) VIRTUAL, KEY (k))",
            "INSERT INTO u (id, a) VALUES (1, 1), (2, 2)",
            "ALTER TABLE u MODIFY v DOUBLE(10,5) AS (a / 3) VIRTUAL",
        ],
    );
    check(&mut conn, "u");
    run(&mut conn, &["DELETE FROM u WHERE id = 1"]);
    check(&mut conn, "u");
    // The server compares values of ENUM and SET by their collation.
    run(
        &mut conn,
        &[
            "CREATE TABLE n (id INT PRIMARY KEY, e ENUM('a', 'b'), s SET('x', 'y'),
               v VARCHAR(10) COLLATE utf8mb4_bin AS (e) VIRTUAL,
               w VARCHAR(10) AS (HEX(s)) STORED, KEY (v)) COLLATE utf8mb4_general_ci",
            "INSERT INTO n (id, e, s) VALUES (1, 'a', 'x'), (2, 'b', 'y'), (3, 'a', 'y')",
            "ALTER TABLE n MODIFY e ENUM('A', 'b')",
        ],
    );
    assert_eq!(number(&mut conn, "SELECT SUM(id) FROM n FORCE INDEX (v) WHERE v = 'A'"), 4);
    run(&mut conn, &["ALTER TABLE n MODIFY s SET('X', 'y')"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM n WHERE w = HEX(s)"), 3);
    run(&mut conn, &["DELETE FROM n WHERE id = 1", "UPDATE n SET e = 'b' WHERE id = 3"]);
    check(&mut conn, "n");
    run(&mut conn, &["ALTER TABLE n MODIFY e ENUM('A', 'b', 'c'), ALGORITHM=INSTANT"]);
    // Where nothing is kept of it, nothing is copied.
    run(
        &mut conn,
        &[
            "ALTER TABLE n DROP INDEX v, DROP COLUMN w",
            "ALTER TABLE n MODIFY e ENUM('a', 'B', 'c'), ALGORITHM=INSTANT",
            "ALTER TABLE u DROP INDEX k",
            "ALTER TABLE u MODIFY v DOUBLE(10,6) AS (a / 3) VIRTUAL, ALGORITHM=INSTANT",
            "CREATE TABLE h (id INT PRIMARY KEY, n INT CHECK (n > 0), s VARCHAR(5) CHECK (s > ''), v INT AS (n + 1) VIRTUAL, KEY (v))",
            "ALTER TABLE h COMMENT = 'nothing', ALGORITHM=INSTANT",
            "ALTER TABLE h ALTER n SET DEFAULT 3, ALGORITHM=INSTANT",
            "ALTER TABLE h MODIFY s VARCHAR(50) CHECK (s > ''), ALGORITHM=INSTANT",
        ],
    );
}
