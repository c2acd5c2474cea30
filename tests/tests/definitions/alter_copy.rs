//! The copy that ALTER TABLE makes: what is in it, what it refuses, who still writes it row by row,
//! and what a kill leaves.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use mysql::{Conn, Row};
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check, is_acknowledged, number, rows, run, sorted_rows};

const TABLE_CHANGED: u16 = 1412;
const DUPLICATE: u16 = 1062;
const INTERRUPTED: u16 = 1317;

fn server(name: &str) -> Server {
    Server::start(Options::new(name).engine(Engine::Tidepool))
}

fn error(conn: &mut Conn, statement: &str) -> mysql::MySqlError {
    match conn.query::<Row, _>(statement) {
        Err(mysql::Error::MySqlError(error)) => error,
        Err(error) => panic!("{statement}: {error}"),
        Ok(_) => panic!("{statement} succeeded"),
    }
}

/// How many rows a statement inserts, as transactions do: none if it loads them.
fn inserted(conn: &mut Conn, statement: &str) -> i64 {
    let count = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'tidepool_rows_inserted'";
    let before = number(conn, count);
    run(conn, &[statement]);
    number(conn, count) - before
}

/// Whether the server says when a copy ends, and looks at the answer (`server_versions.h`).
fn copies_have_ends() -> bool {
    let version = Environment::get().value("VERSION");
    let numbers: Vec<u32> = version.split('.').map_while(|number| number.parse().ok()).collect();
    numbers >= vec![10, 11, 18] && numbers < vec![11]
}

fn assert_loads(conn: &mut Conn, statement: &str) {
    let count = inserted(conn, statement);
    assert!(count == 0 || !copies_have_ends(), "{statement}: {count} rows were inserted");
}

/// How many files of tables the engine has.
fn table_files(server: &Server) -> usize {
    let tables = server.data_dir().join("tidepool/tables");
    fs::read_dir(tables).expect("the tables' directory").count()
}

const COLUMNS: &str = "
    n INT, u BIGINT UNSIGNED, d DECIMAL(10, 3), f FLOAT, g DOUBLE, t TIMESTAMP(3) NULL, dt DATETIME, da DATE,
    ci VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, uca VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci,
    bin VARCHAR(30) CHARACTER SET latin1 COLLATE latin1_bin, nopad VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin,
    c CHAR(10) NOT NULL DEFAULT '', b VARBINARY(20), e ENUM('one', 'two', 'three'), s SET('x', 'y', 'z'), bit BIT(5),
    txt TEXT, bl MEDIUMBLOB, stored INT AS (n + 1) STORED";

/// An index's name and its parts; those of `UNIQUE` with NULLs among them.
const INDEXES: &[(&str, &str)] = &[
    ("INDEX i_n", "n"),
    ("UNIQUE i_u", "u"),
    ("INDEX i_d", "d DESC, n"),
    ("INDEX i_f", "f, g"),
    ("INDEX i_t", "t, dt, da"),
    ("INDEX i_ci", "ci"),
    ("INDEX i_uca", "uca DESC, ci"),
    ("UNIQUE i_bin", "bin, u"),
    ("INDEX i_nopad", "nopad, c"),
    ("INDEX i_c", "c(3), n"),
    ("INDEX i_e", "e, s, bit"),
    ("INDEX i_txt", "txt(7), bl(5)"),
    ("INDEX i_stored", "stored"),
];

fn fill(conn: &mut Conn, table: &str, has_id: bool) {
    let (into, id) = if has_id { ("id, ", "seq, ") } else { ("", "") };
    run(
        conn,
        &[&format!(
            "INSERT INTO {table} ({into}n, u, d, f, g, t, dt, da, ci, uca, bin, nopad, c, b, e, s, bit, txt, bl)
             SELECT {id}IF(seq % 7, CAST(seq * 31 % 1000 AS SIGNED) - 500, NULL), IF(seq % 13, seq * 17, NULL),
             IF(seq % 5, seq / 7 - 100, NULL), seq / 3 - 300, IF(seq % 11, -1.5e10 * seq, NULL),
             IF(seq % 6, FROM_UNIXTIME(1e9 + seq * 1000.125), NULL), '2020-01-01' + INTERVAL seq HOUR, '2021-01-01' + INTERVAL seq % 50 DAY,
             IF(seq % 9, CONCAT(ELT(1 + seq % 4, 'abc', 'ABC', 'äbc', 'Straße'), REPEAT(' ', seq % 3), seq % 40), NULL),
             CONCAT(ELT(1 + seq % 3, 'x', 'X', 'é'), seq % 100), CONCAT(seq % 77, REPEAT(' ', seq % 4)), CONCAT(seq % 33, REPEAT(' ', seq % 2)),
             CONCAT('c', seq % 500), IF(seq % 3, UNHEX(HEX(seq)), NULL), 1 + seq % 3, seq % 8, seq % 32,
             CONCAT(REPEAT('long ', seq % 200), seq), IF(seq % 500 = 1, REPEAT('longer', 20000), UNHEX(MD5(seq))) FROM seq_1_to_2000"
        )],
    );
}

#[test]
fn a_copy_holds_what_the_table_does() {
    let mut server = server("copy_contents");
    let mut conn = server.connect_to("test");
    let definitions: Vec<_> =
        INDEXES.iter().map(|(name, parts)| format!("{name} ({parts})")).collect();
    let definitions = definitions.join(", ");
    let tables = [
        ("by_int", "id INT PRIMARY KEY,"),
        ("by_text", "id VARCHAR(20) CHARACTER SET utf8mb4 PRIMARY KEY,"),
        ("by_row_id", ""),
        ("by_two", "id INT, PRIMARY KEY (c, id DESC),"),
    ];
    let mut contents = Vec::new();
    for (table, id) in tables {
        run(&mut conn, &[&format!("CREATE TABLE {table} ({id} {COLUMNS}, {definitions})")]);
        fill(&mut conn, table, !id.is_empty());
        run(
            &mut conn,
            &[
                &format!("DELETE FROM {table} WHERE n % 10 = 3"),
                &format!("UPDATE {table} SET n = n + 1, ci = CONCAT(ci, 'x') WHERE n % 10 = 4"),
            ],
        );
        let whole = sorted_rows(&mut conn, &format!("SELECT * FROM {table}"));
        let files = table_files(&server);
        assert_loads(&mut conn, &format!("ALTER TABLE {table} FORCE, ALGORITHM=COPY"));
        assert_loads(&mut conn, &format!("OPTIMIZE TABLE {table}"));
        assert_loads(&mut conn, &format!("ALTER TABLE {table} MODIFY n BIGINT, ALGORITHM=COPY"));
        assert_eq!(table_files(&server), files, "{table}");
        check(&mut conn, table);
        assert!(sorted_rows(&mut conn, &format!("SELECT * FROM {table}")) == whole, "{table}");
        for (name, parts) in INDEXES {
            let name = name.split(' ').next_back().expect("a name");
            let first = parts.split([' ', ',', '(']).next().expect("a column");
            let by = format!("SELECT * FROM {table} FORCE INDEX ({name}) ORDER BY {first}");
            assert!(sorted_rows(&mut conn, &by) == whole, "{table}.{name}");
        }
        // Written as ever.
        run(
            &mut conn,
            &[
                &format!("UPDATE {table} SET n = -n, ci = 'other', txt = NULL WHERE u % 7 = 1"),
                &format!("DELETE FROM {table} WHERE u % 7 = 2"),
            ],
        );
        if id.is_empty() {
            // Row ids go on above those of the copy.
            run(&mut conn, &["INSERT INTO by_row_id (n) VALUES (1), (2)"]);
        }
        assert_eq!(error(&mut conn, &format!("UPDATE {table} SET u = 17")).code, DUPLICATE);
        check(&mut conn, table);
        contents.push(sorted_rows(&mut conn, &format!("SELECT * FROM {table}")));
    }
    // What has been acknowledged is there after a crash, and nothing beside it.
    let files = table_files(&server);
    run(&mut conn, &["ALTER TABLE by_int FORCE, ALGORITHM=COPY"]);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    for ((table, _), contents) in tables.iter().zip(contents) {
        check(&mut conn, table);
        assert!(sorted_rows(&mut conn, &format!("SELECT * FROM {table}")) == contents, "{table}");
    }
    assert_eq!(table_files(&server), files);
}

/// In another order than that of the copy, from another engine, and with numbers that are given
/// meanwhile.
#[test]
fn rows_come_in_any_order_and_from_any_engine() {
    let mut server = server("copy_order");
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b INT, UNIQUE (b))",
            "INSERT INTO t SELECT seq, seq * 7919 % 1000, seq FROM seq_1_to_1999",
        ],
    );
    // The first hundred or so are in order.
    run(
        &mut conn,
        &["UPDATE t SET a = id WHERE id <= 100", "UPDATE t SET a = 2000 + id WHERE id > 100"],
    );
    run(&mut conn, &["UPDATE t SET a = 0 WHERE id = 500"]);
    let whole = sorted_rows(&mut conn, "SELECT id, a, b FROM t");
    let statement = "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a), ALGORITHM=COPY";
    let count = inserted(&mut conn, statement);
    assert!(count == 1500 || !copies_have_ends(), "{count}");
    check(&mut conn, "t");
    assert_eq!(sorted_rows(&mut conn, "SELECT id, a, b FROM t"), whole);
    assert_eq!(rows(&mut conn, "SELECT id FROM t ORDER BY a LIMIT 1"), ["[Bytes(\"500\")]"]);
    let back = "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id), DROP INDEX b, \
                ADD UNIQUE b (b, id), ALGORITHM=COPY";
    run(&mut conn, &[back]);
    check(&mut conn, "t");
    assert_eq!(sorted_rows(&mut conn, "SELECT id, a, b FROM t"), whole);
    // Behind the rows that were loaded comes one that can't be with them.
    run(&mut conn, &["INSERT INTO t VALUES (2000, 50, 2000)"]);
    let refused = error(&mut conn, statement);
    assert_eq!(refused.code, DUPLICATE);
    assert!(refused.message.ends_with("Duplicate entry '50' for key 'PRIMARY'"), "{refused}");
    run(&mut conn, &["UPDATE t SET a = 9999, b = 1 WHERE id = 2000"]);
    let refused = error(
        &mut conn,
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a), DROP INDEX b, ADD UNIQUE b (b), \
         ALGORITHM=COPY",
    );
    assert!(refused.message.ends_with("Duplicate entry '1' for key 'b'"), "{refused}");
    run(&mut conn, &["DELETE FROM t WHERE id = 2000"]);
    check(&mut conn, "t");

    for engine in ["InnoDB", "MyISAM"] {
        run(&mut conn, &[&format!("ALTER TABLE t ENGINE={engine}")]);
        let back = "ALTER TABLE t ENGINE=Tidepool";
        assert_loads(&mut conn, back);
        check(&mut conn, "t");
        assert_eq!(sorted_rows(&mut conn, "SELECT id, a, b FROM t"), whole);
    }

    run(&mut conn, &["ALTER TABLE t DROP PRIMARY KEY, DROP INDEX b, DROP COLUMN id"]);
    assert_loads(
        &mut conn,
        "ALTER TABLE t ADD id INT AUTO_INCREMENT PRIMARY KEY FIRST, AUTO_INCREMENT = 500",
    );
    assert_eq!(rows(&mut conn, "SELECT MIN(id), MAX(id), COUNT(*) FROM t").len(), 1);
    let greatest = number(&mut conn, "SELECT MAX(id) FROM t");
    run(&mut conn, &["ALTER TABLE t AUTO_INCREMENT = 5000", "ALTER TABLE t FORCE, ALGORITHM=COPY"]);
    assert!(greatest < 5000);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    run(&mut conn, &["INSERT INTO t (a, b) VALUES (1, 10000)"]);
    assert_eq!(number(&mut conn, "SELECT id FROM t WHERE b = 10000"), 5000);
    check(&mut conn, "t");
}

#[test]
fn duplicates_are_refused_as_innodb_refuses_them() {
    let server = server("copy_duplicates");
    let mut conn = server.connect_to("test");
    let files = table_files(&server);
    for (table, engine) in [("t", "Tidepool"), ("i", "InnoDB")] {
        run(
            &mut conn,
            &[
                &format!(
                    "CREATE TABLE {table} (id INT PRIMARY KEY, a VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, \
                     b INT, c TEXT, d BLOB) ENGINE={engine}"
                ),
                &format!(
                    "INSERT INTO {table} SELECT seq, CONCAT('v', seq), seq DIV 2, REPEAT('x', 9000), CONCAT(seq, '-', REPEAT(seq, 3000)) FROM seq_1_to_1500"
                ),
                &format!("UPDATE {table} SET d = 'same' WHERE id IN (7, 400)"),
                &format!(
                    "INSERT INTO {table} VALUES (3001, 'V77', 250, 'y', NULL), (3002, NULL, 250, 'y', NULL), (3003, NULL, NULL, 'z', NULL)"
                ),
            ],
        );
    }
    for (change, entry, key) in [
        ("ADD UNIQUE INDEX ua (a)", "V77", "ua"),
        ("ADD INDEX o (b, a), ADD UNIQUE INDEX ua (a)", "V77", "ua"),
        ("ADD UNIQUE INDEX ud (d(50))", "same", "ud"),
        ("DROP PRIMARY KEY, ADD UNIQUE INDEX ud (d(4)), MODIFY b BIGINT", "same", "ud"),
        ("ADD UNIQUE INDEX ub (c(1), b)", "x-1", "ub"),
    ] {
        let [ours, innodb] = ["t", "i"].map(|table| {
            error(&mut conn, &format!("ALTER TABLE {table} {change}, ALGORITHM=COPY"))
        });
        let expected = format!("Duplicate entry '{entry}' for key '{key}'");
        assert_eq!((ours.code, &ours.message), (DUPLICATE, &expected), "{change}");
        // InnoDB finds them at the end, too, and shows the row that was copied last.
        assert_eq!(innodb.code, DUPLICATE, "{innodb}");
        assert!(innodb.message.ends_with(&format!("' for key '{key}'")), "{innodb}");
        check(&mut conn, "t");
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 1503);
    }
    assert_eq!(table_files(&server), files + 1);
}

/// Where the copy is read while it is filled, or checked against another table, or may leave rows
/// out.
#[test]
fn other_copies_are_written_row_by_row() {
    let server = server("copy_old_path");
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "INSERT INTO parent SELECT seq FROM seq_1_to_2000",
            "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))",
            "INSERT INTO child SELECT seq, seq FROM seq_1_to_100",
            "CREATE TABLE hash (id INT PRIMARY KEY, x TEXT, UNIQUE (x))",
            "INSERT INTO hash SELECT seq, seq FROM seq_1_to_100",
            "CREATE TABLE overlaps (id INT, s DATE, e DATE, PERIOD FOR p (s, e), UNIQUE (id, p WITHOUT OVERLAPS))",
            "INSERT INTO overlaps SELECT seq, '2020-01-01', '2020-02-01' FROM seq_1_to_100",
            "CREATE TABLE versions (id INT PRIMARY KEY, a INT) WITH SYSTEM VERSIONING",
            "INSERT INTO versions SELECT seq, seq FROM seq_1_to_100",
            "UPDATE versions SET a = 0 WHERE id = 5",
            "CREATE TABLE parts (id INT PRIMARY KEY, a INT, KEY (a)) PARTITION BY HASH (id) PARTITIONS 3",
            "INSERT INTO parts SELECT seq, seq FROM seq_1_to_100",
            "CREATE TABLE computed (id INT PRIMARY KEY, a INT, v INT AS (a + 1) VIRTUAL, UNIQUE (v))",
            "INSERT INTO computed (id, a) SELECT seq, seq FROM seq_1_to_100",
            "CREATE SEQUENCE numbers",
            "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
            "INSERT INTO t SELECT seq, seq DIV 2 FROM seq_1_to_4000",
        ],
    );
    for (table, count) in [
        ("child", 100),
        ("hash", 100),
        ("overlaps", 100),
        ("versions", 101),
        ("parts", 100),
        ("computed", 100),
    ] {
        let all = format!(
            "SELECT * FROM {table}{}",
            if table == "versions" { " FOR SYSTEM_TIME ALL" } else { "" }
        );
        let before = sorted_rows(&mut conn, &all);
        assert_eq!(
            inserted(&mut conn, &format!("ALTER TABLE {table} FORCE, ALGORITHM=COPY")),
            count,
            "{table}"
        );
        check(&mut conn, table);
        assert_eq!(sorted_rows(&mut conn, &all), before, "{table}");
    }
    assert_loads(&mut conn, "ALTER TABLE parent FORCE, ALGORITHM=COPY");
    assert_eq!(error(&mut conn, "DELETE FROM parent WHERE id = 3").code, 1451);
    run(&mut conn, &["ALTER TABLE numbers FORCE", "SELECT NEXTVAL(numbers)"]);
    // Those that were taken back are counted, too.
    assert!(
        inserted(&mut conn, "ALTER IGNORE TABLE t ADD UNIQUE INDEX (a), ALGORITHM=COPY") >= 2001
    );
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 2001);
    check(&mut conn, "t");
    run(
        &mut conn,
        &[
            "CREATE TEMPORARY TABLE own (id INT PRIMARY KEY, a INT)",
            "INSERT INTO own SELECT seq, seq FROM seq_1_to_100",
            "ALTER TABLE own ADD INDEX (a), ALGORITHM=COPY",
            "CREATE TABLE selected (KEY (a)) SELECT * FROM own",
        ],
    );
    for table in ["own", "selected"] {
        assert_eq!(
            number(
                &mut conn,
                &format!("SELECT COUNT(*) FROM {table} FORCE INDEX (a) WHERE a > 50")
            ),
            50
        );
    }
    // Virtual columns in an index that is not unique are in the entries.
    run(&mut conn, &["ALTER TABLE computed DROP INDEX v, ADD INDEX v (v), ALGORITHM=COPY"]);
    check(&mut conn, "computed");
    assert_eq!(number(&mut conn, "SELECT id FROM computed FORCE INDEX (v) WHERE v = 8"), 7);

    // Under LOCK TABLES, in a transaction's way, and with another name.
    run(&mut conn, &["LOCK TABLES t WRITE, child WRITE"]);
    assert_loads(&mut conn, "ALTER TABLE t FORCE, ALGORITHM=COPY");
    run(&mut conn, &["INSERT INTO t VALUES (10000, 10000)", "UNLOCK TABLES"]);
    let mut old = server.connect_to("test");
    run(&mut old, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
    assert_loads(&mut conn, "ALTER TABLE t RENAME TO renamed, FORCE, ALGORITHM=COPY");
    assert_eq!(error(&mut old, "SELECT * FROM renamed").code, TABLE_CHANGED);
    run(&mut old, &["COMMIT"]);
    assert_eq!(number(&mut old, "SELECT COUNT(*) FROM renamed"), 2002);
    check(&mut conn, "renamed");
}

const LARGE: &[&str] = &[
    "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, c VARCHAR(100), KEY k (k), UNIQUE c (c))",
    "INSERT INTO t (k, c) SELECT seq * 7919 % 100003, CONCAT(MD5(seq), REPEAT('-', 60)) FROM seq_1_to_200000",
];

/// Makes the table; its files, and how long a copy takes.
fn make_large(server: &Server, conn: &mut Conn) -> (usize, Duration) {
    run(conn, LARGE);
    let files = table_files(server);
    let since = Instant::now();
    run(conn, &["ALTER TABLE t FORCE, ALGORITHM=COPY"]);
    (files, since.elapsed())
}

#[test]
fn a_killed_copy_leaves_the_table_as_it_was() {
    let server = server("copy_kill");
    let mut conn = server.connect_to("test");
    let (files, whole) = make_large(&server, &mut conn);
    let mut killed = 0;
    for round in 1..=10 {
        let mut altering = server.connect_to("test");
        let id = altering.connection_id();
        let thread = thread::spawn(move || {
            let altered = altering.query_drop("ALTER TABLE t FORCE, ALGORITHM=COPY");
            // The connection must be there for the KILL.
            (altered, altering)
        });
        thread::sleep(whole * round / 11);
        run(&mut conn, &[&format!("KILL QUERY {id}")]);
        match thread.join().expect("no panic").0 {
            Ok(()) => {}
            Err(mysql::Error::MySqlError(error)) => {
                assert_eq!(error.code, INTERRUPTED, "{error}");
                killed += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(table_files(&server), files);
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 200_000);
    }
    assert!(killed > 2, "{killed} were killed");
    check(&mut conn, "t");
}

#[test]
fn a_server_killed_in_a_copy_has_all_rows_and_no_file_besides() {
    let mut server = server("copy_kill9");
    let mut conn = server.connect_to("test");
    let (files, whole) = make_large(&server, &mut conn);
    let rounds = std::env::var("TIDEPOOL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let mut unfinished = 0;
    for round in 0..rounds {
        let mut altering = server.connect_to("test");
        let thread = thread::spawn(move || {
            is_acknowledged(&mut altering, "ALTER TABLE t FORCE, ALGORITHM=COPY")
        });
        thread::sleep(whole * (round % 8 + 2) / 9 + Duration::from_millis(u64::from(round)));
        server.kill9();
        unfinished += u32::from(!thread.join().expect("no panic"));
        server.restart();
        conn = server.connect_to("test");
        check(&mut conn, "t");
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 200_000);
        run(
            &mut conn,
            &["INSERT INTO t (k, c) VALUES (1, 'one')", "DELETE FROM t WHERE c = 'one'"],
        );
        assert_eq!(table_files(&server), files, "round {round}");
        let copies =
            fs::read_dir(server.data_dir().join("test")).expect("the database's directory");
        let copies = copies.filter(|file| {
            let name = file.as_ref().expect("its name").file_name();
            name.to_string_lossy().contains("#sql")
        });
        assert_eq!(copies.count(), 0, "round {round}");
    }
    assert!(unfinished > 0, "each copy had ended before the kill");
}
