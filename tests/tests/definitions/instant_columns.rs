//! Columns added, dropped and moved without a copy of the table: the rows stay as they were
//! written, and answers are those of a table whose rows were copied each time.

use std::thread;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool::{Db, Options as EngineOptions};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::{check, is_acknowledged, number, run, sorted_rows};

const CHECK_FAILED: u16 = 4025;
const NOT_SO: [u16; 2] = [1845, 1846];

/// A type, the defaults it may have, and an expression of `seq` for its values.
const TYPES: &[(&str, &[&str], &str)] = &[
    ("INT", &["7", "-1"], "seq * 31 % 1000"),
    ("BIGINT UNSIGNED", &["18446744073709551615"], "seq * 1000003"),
    ("DECIMAL(12,3)", &["1.5"], "seq / 7"),
    ("DOUBLE", &["0.25"], "seq / 3"),
    ("BIT(11)", &["b'10000000001'"], "seq % 2000"),
    ("ENUM('one','two','three')", &["'two'"], "1 + seq % 3"),
    ("SET('x','y','z')", &["'x,z'"], "seq % 8"),
    ("YEAR", &["2001"], "1950 + seq % 100"),
    ("DATE", &["'2020-02-29'"], "'2021-01-01' + INTERVAL seq DAY"),
    ("DATETIME(3)", &["'2020-02-29 12:00:00.125'"], "'2021-01-01' + INTERVAL seq HOUR"),
    ("TIME", &["'11:12:13'"], "SEC_TO_TIME(seq)"),
    ("CHAR(9) CHARACTER SET latin1", &["'abc'"], "CONCAT('c', seq)"),
    ("CHAR(9) CHARACTER SET utf8mb4", &["'äb'"], "CONCAT('é', seq)"),
    ("BINARY(5)", &["'q'"], "LEFT(seq, 5)"),
    ("VARCHAR(40) CHARACTER SET utf8mb4", &["'Straße'", "''"], "REPEAT('ü', seq % 30)"),
    ("VARCHAR(400) CHARACTER SET utf8mb4", &["'long ago'"], "REPEAT(seq, seq % 70)"),
    ("VARBINARY(30)", &["x'00ff'"], "UNHEX(MD5(seq))"),
    ("INET6", &["'::1'"], "'fe80::2'"),
    ("UUID", &["'123e4567-e89b-12d3-a456-426655440000'"], "MD5(seq)"),
    ("TEXT CHARACTER SET utf8mb4", &["'text that was not there'"], "REPEAT('long ', seq % 900)"),
    ("BLOB", &["'bytes'", "''"], "REPEAT(CHAR(seq % 256), seq % 400)"),
    ("JSON", &["'{}'"], "JSON_OBJECT('n', seq)"),
    ("MEDIUMTEXT", &["'m'"], "REPEAT('page ', seq % 20 * 500)"),
];

struct Column {
    name: String,
    kind: usize,
    definition: String,
    nullable: bool,
    indexed: bool,
}

struct Subject {
    dice: StdRng,
    columns: Vec<Column>,
    named: usize,
    instant: usize,
    next_seq: usize,
}

impl Subject {
    fn both(&self, conn: &mut Conn, statement: &str) {
        for table in ["t", "copied"] {
            let statement = statement.replace("TABLE_NAME", table);
            run(conn, &["SET timestamp = 1700000000", &statement]);
        }
    }

    fn place(&mut self) -> String {
        match self.dice.random_range(0..3) {
            0 => " FIRST".into(),
            1 => {
                let at = self.dice.random_range(0..self.columns.len() + 1);
                format!(" AFTER {}", self.columns.get(at).map_or("id", |column| &column.name))
            }
            _ => String::new(),
        }
    }

    fn clause(&mut self) -> Option<String> {
        let place = self.place();
        match self.dice.random_range(0..if self.columns.len() < 3 { 3 } else { 8 }) {
            0..=2 => {
                let kind = self.dice.random_range(0..TYPES.len());
                let (name, defaults, _) = TYPES[kind];
                let nullable = self.dice.random_range(0..2) == 0;
                let mut definition = name.to_string();
                definition += if nullable { " NULL" } else { " NOT NULL" };
                if self.dice.random_range(0..3) > 0 {
                    definition += " DEFAULT ";
                    definition += defaults[self.dice.random_range(0..defaults.len())];
                } else if name.starts_with("DATETIME") {
                    definition += " DEFAULT CURRENT_TIMESTAMP(3)";
                } else if !nullable
                    && (name == "JSON" || name == "DATE" || name == "INET6" || name == "UUID")
                {
                    // What has no implicit default that all its checks allow.
                    definition += &format!(" DEFAULT {}", defaults[0]);
                }
                self.named += 1;
                let name = format!("c{}", self.named);
                let clause = format!("ADD COLUMN {name} {definition}{place}");
                self.columns.push(Column { name, kind, definition, nullable, indexed: false });
                Some(clause)
            }
            3 | 4 => {
                let at = self.dice.random_range(0..self.columns.len());
                if place.ends_with(&format!(" {}", self.columns[at].name)) {
                    return None;
                }
                Some(format!("DROP COLUMN {}", self.columns.remove(at).name))
            }
            5 | 6 => {
                let at = self.dice.random_range(0..self.columns.len());
                let column = &self.columns[at];
                if place.ends_with(&format!(" {}", column.name)) {
                    return None;
                }
                Some(format!("MODIFY COLUMN {} {}{place}", column.name, column.definition))
            }
            _ => {
                let at = self.dice.random_range(0..self.columns.len());
                let column = &mut self.columns[at];
                if column.nullable || column.indexed {
                    return None;
                }
                column.nullable = true;
                column.definition = column.definition.replace(" NOT NULL", " NULL");
                Some(format!("MODIFY COLUMN {} {}", column.name, column.definition))
            }
        }
    }

    fn alter(&mut self, conn: &mut Conn) {
        if self.columns.len() > 2 && self.dice.random_range(0..6) == 0 {
            let at = self.dice.random_range(0..self.columns.len());
            let (name, kind) = (self.columns[at].name.clone(), TYPES[self.columns[at].kind].0);
            let long = kind.contains("TEXT") || kind.contains("BLOB") || kind == "JSON";
            let part = if long { format!("{name}(5)") } else { name.clone() };
            self.named += 1;
            self.columns[at].indexed = true;
            self.both(conn, &format!("ALTER TABLE TABLE_NAME ADD INDEX i{} ({part})", self.named));
            return;
        }
        let Some(clause) = self.clause() else { return };
        run(conn, &["SET timestamp = 1700000000"]);
        run(conn, &[&format!("ALTER TABLE copied {clause}, ALGORITHM=COPY")]);
        if conn.query_drop(format!("ALTER TABLE t {clause}, ALGORITHM=INSTANT")).is_ok() {
            self.instant += 1;
        } else {
            run(conn, &[&format!("ALTER TABLE t {clause}")]);
        }
    }

    fn change(&mut self, conn: &mut Conn) {
        let modulus = 2 + self.dice.random_range(0..9);
        let remainder = self.dice.random_range(0..modulus);
        match self.dice.random_range(0..4) {
            0 | 1 => {
                let (first, last) =
                    (self.next_seq, self.next_seq + 5 + self.dice.random_range(0..20));
                self.next_seq = last + 1;
                let (mut names, mut values) = (vec!["id".to_string()], vec!["seq".to_string()]);
                for at in 0..self.columns.len() {
                    // The others get the defaults that they have now.
                    if !self.columns[at].definition.contains("DEFAULT")
                        || self.dice.random_range(0..3) > 0
                    {
                        let column = &self.columns[at];
                        names.push(column.name.clone());
                        let value = TYPES[column.kind].2;
                        values.push(match column.nullable {
                            true => format!("IF(seq % {modulus} = {remainder}, NULL, {value})"),
                            false => value.into(),
                        });
                    }
                }
                let (names, values) = (names.join(", "), values.join(", "));
                self.both(
                    conn,
                    &format!("INSERT INTO TABLE_NAME ({names}) SELECT {values} FROM seq_{first}_to_{last}"),
                );
            }
            2 if !self.columns.is_empty() => {
                let at = self.dice.random_range(0..self.columns.len());
                let column = &self.columns[at];
                let value = TYPES[column.kind].2.replace("seq", "(id + 3)");
                self.both(
                    conn,
                    &format!(
                        "UPDATE TABLE_NAME SET {} = {value} WHERE id % {modulus} = {remainder}",
                        column.name
                    ),
                );
            }
            _ => self.both(
                conn,
                &format!("DELETE FROM TABLE_NAME WHERE id % {} = {remainder}", modulus * 4),
            ),
        }
    }
}

#[test]
fn answers_are_those_of_a_copied_table() {
    let mut server = Server::start(Options::new("instant_random"));
    let seeds = std::env::var("TIDEPOOL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let mut instant = 0;
    for seed in 0..seeds {
        let mut conn = server.connect_to("test");
        run(&mut conn, &["SET sql_mode = ''"]);
        let definitions = [
            "(id INT PRIMARY KEY)",
            "(id INT, KEY (id))",
            "(p CHAR(3) DEFAULT 'x', id INT, PRIMARY KEY (p, id))",
            "(id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 3",
        ];
        let mut subject = Subject {
            dice: StdRng::seed_from_u64(seed),
            columns: Vec::new(),
            named: 0,
            instant: 0,
            next_seq: 1,
        };
        subject.both(&mut conn, "DROP TABLE IF EXISTS TABLE_NAME");
        let definition = definitions[seed as usize % definitions.len()];
        subject.both(&mut conn, &format!("CREATE TABLE TABLE_NAME {definition}"));
        for step in 0..70 {
            match subject.dice.random_range(0..2) {
                0 => subject.alter(&mut conn),
                _ => subject.change(&mut conn),
            }
            if step % 5 == 4 {
                let (is, should_be) = (
                    sorted_rows(&mut conn, "SELECT * FROM t"),
                    sorted_rows(&mut conn, "SELECT * FROM copied"),
                );
                assert!(
                    is == should_be,
                    "seed {seed}, step {step}: {is:#?} should be {should_be:#?}"
                );
                check(&mut conn, "t");
                for column in &subject.columns {
                    let read = format!(
                        "SELECT id FROM TABLE_NAME WHERE {0} = (SELECT MAX({0}) FROM TABLE_NAME)",
                        column.name
                    );
                    assert_eq!(
                        sorted_rows(&mut conn, &read.replace("TABLE_NAME", "t")),
                        sorted_rows(&mut conn, &read.replace("TABLE_NAME", "copied")),
                        "seed {seed}, step {step}: {read}"
                    );
                }
            }
        }
        let sums: Vec<(String, u64)> = conn.query("CHECKSUM TABLE t, copied").expect("sums");
        assert_eq!(sums[0].1, sums[1].1, "seed {seed}");
        instant += subject.instant;
        if seed % 2 == 0 {
            server.kill9();
            server.restart();
            let mut conn = server.connect_to("test");
            let (is, should_be) = (
                sorted_rows(&mut conn, "SELECT * FROM t"),
                sorted_rows(&mut conn, "SELECT * FROM copied"),
            );
            assert!(is == should_be, "seed {seed}, after a crash");
            check(&mut conn, "t");
            run(
                &mut conn,
                &["ALTER TABLE t FORCE", "ALTER TABLE t ADD COLUMN z INT, ALGORITHM=INSTANT"],
            );
            check(&mut conn, "t");
        }
    }
    assert!(instant as u64 > seeds * 10, "{instant} were instant");
}

fn answer(conn: &mut Conn, statement: &str) -> u16 {
    match conn.query_drop(statement) {
        Ok(()) => 0,
        Err(mysql::Error::MySqlError(error)) => error.code,
        Err(error) => panic!("{statement}: {error}"),
    }
}

#[test]
fn what_is_done_at_once_and_what_needs_a_copy() {
    let server = Server::start(Options::new("instant_answers"));
    let mut conn = server.connect_to("test");
    let create = "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(20) DEFAULT 'b', c INT, v INT AS (a + 1) VIRTUAL, \
                  KEY c (c), KEY v (v))";
    let instant = [
        "ADD COLUMN x INT",
        "ADD COLUMN x INT NOT NULL DEFAULT 3 FIRST, ADD COLUMN y TEXT AFTER a",
        "ADD COLUMN x TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
        "ADD COLUMN x JSON",
        "ADD COLUMN x INT DEFAULT 3 CHECK (x > 1)",
        "ADD COLUMN x INT CHECK (x > 1)",
        "ADD COLUMN x INT NOT NULL CHECK (x < 1)",
        "ADD COLUMN x BLOB NOT NULL",
        "ADD COLUMN x INT, ADD COLUMN y INT AS (a * 2) VIRTUAL",
        "DROP COLUMN b",
        "DROP COLUMN c",
        "DROP COLUMN b, ADD COLUMN b INT DEFAULT 4",
        "MODIFY COLUMN b VARCHAR(20) FIRST",
        "MODIFY COLUMN id INT AFTER c",
        "MODIFY COLUMN b VARCHAR(20) DEFAULT 'other' AFTER id",
        "CHANGE COLUMN b bb VARCHAR(20) AFTER id",
        "ADD COLUMN x INT, RENAME TO t2",
        "ADD COLUMN x INT, DROP INDEX c",
    ];
    let copied = [
        "ADD COLUMN x INT DEFAULT (a + 1)",
        // Of the functions that depend on the connection, some differ from row to row.
        "ADD COLUMN x DOUBLE DEFAULT (RAND())",
        "ADD COLUMN x VARCHAR(100) DEFAULT (CURRENT_USER())",
        "ADD COLUMN x INT AS (a + 1) STORED",
        "ADD COLUMN x INT NOT NULL AUTO_INCREMENT UNIQUE",
        // The check is about the other column of each row.
        "ADD COLUMN x INT DEFAULT 30 CHECK (x > a)",
        "ADD COLUMN x INT, ADD CONSTRAINT positive CHECK (a > 0)",
        "ADD COLUMN x VARCHAR(3000) COMPRESSED",
        "MODIFY COLUMN a BIGINT NOT NULL FIRST",
        "MODIFY COLUMN c INT NOT NULL",
        "DROP PRIMARY KEY, DROP COLUMN id",
    ];
    for clause in instant {
        run(&mut conn, &["DROP TABLE IF EXISTS t, t2", create]);
        run(
            &mut conn,
            &["INSERT INTO t (id, a, b, c) VALUES (1, 2, 'three', 4), (2, 3, NULL, NULL)"],
        );
        run(&mut conn, &[&format!("ALTER TABLE t {clause}, ALGORITHM=INSTANT, LOCK=NONE")]);
        check(&mut conn, if clause.contains("RENAME TO") { "t2" } else { "t" });
    }
    for clause in copied {
        run(&mut conn, &["DROP TABLE IF EXISTS t, t2", create]);
        run(&mut conn, &["INSERT INTO t (id, a, b, c) VALUES (1, 2, 'three', 4), (2, 3, NULL, 5)"]);
        let code = answer(&mut conn, &format!("ALTER TABLE t {clause}, ALGORITHM=INSTANT"));
        assert!(NOT_SO.contains(&code), "{clause}: {code}");
        run(&mut conn, &[&format!("ALTER TABLE t {clause}")]);
        check(&mut conn, "t");
        if clause.contains("RAND") {
            assert_eq!(number(&mut conn, "SELECT COUNT(DISTINCT x) FROM t"), 2);
        }
    }
    // A default that its check refuses is refused while there are rows.
    run(&mut conn, &["DROP TABLE t", create, "INSERT INTO t (id, a) VALUES (1, 2)"]);
    let refused = "ALTER TABLE t ADD COLUMN x INT DEFAULT 3 CHECK (x > 5)";
    assert_eq!(answer(&mut conn, refused), CHECK_FAILED);
    run(&mut conn, &["DELETE FROM t", refused]);
    assert_eq!(answer(&mut conn, "INSERT INTO t (id, a) VALUES (1, 2)"), CHECK_FAILED);
    // An index is built from rows of all versions, also in the statement that makes one.
    run(&mut conn, &["DROP TABLE IF EXISTS t", create]);
    run(
        &mut conn,
        &[
            "INSERT INTO t (id, a, b, c) SELECT seq, seq, seq, seq FROM seq_1_to_1000",
            "ALTER TABLE t DROP COLUMN b, ADD COLUMN d INT DEFAULT 77 AFTER id, ADD INDEX d (d, a), ALGORITHM=NOCOPY",
            "ALTER TABLE t ADD COLUMN e CHAR(3) DEFAULT 'e' FIRST, ALGORITHM=INSTANT",
            "UPDATE t SET e = 'f', d = 78 WHERE id % 2 = 0",
            "ALTER TABLE t ADD INDEX e (e), ALGORITHM=INPLACE",
        ],
    );
    check(&mut conn, "t");
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t FORCE INDEX (d) WHERE d = 77"), 500);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t FORCE INDEX (e) WHERE e = 'f'"), 500);
    assert_eq!(number(&mut conn, "SELECT SUM(a) FROM t FORCE INDEX (v) WHERE v > 0"), 500_500);
}

/// What an added column holds in the rows that were there before, and which errors there are, is
/// what InnoDB says.
#[test]
fn defaults_are_those_of_innodb() {
    let server = Server::start(Options::new("instant_defaults"));
    let mut conn = server.connect_to("test");
    let columns = [
        "INT",
        "INT NOT NULL",
        "INT UNSIGNED NOT NULL DEFAULT 4",
        "DECIMAL(9,2) NOT NULL",
        "BIT(9) NOT NULL",
        "DATE NOT NULL",
        "DATETIME",
        "DATETIME NOT NULL",
        "TIME NOT NULL",
        "YEAR NOT NULL",
        "TIMESTAMP",
        "TIMESTAMP NULL",
        "TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)",
        "DATETIME(2) DEFAULT NOW(2) ON UPDATE NOW(2)",
        "DATE DEFAULT (NOW())",
        "ENUM('p', 'q') NOT NULL",
        "SET('p', 'q') NOT NULL",
        "CHAR(4) NOT NULL",
        "CHAR(4) CHARACTER SET utf8mb4 DEFAULT 'äö'",
        "VARCHAR(9) NOT NULL",
        "VARCHAR(9) DEFAULT ' x '",
        "TEXT NOT NULL",
        "TEXT DEFAULT 'text'",
        "BLOB DEFAULT (REPEAT('x', 300))",
        "JSON DEFAULT '[]'",
        "UUID NOT NULL",
        "INET6 NOT NULL",
        "POINT",
        "POINT NOT NULL",
        "INT DEFAULT (1 + 2)",
        "VARCHAR(60) DEFAULT (CURRENT_USER())",
        "TINYINT DEFAULT (1000)",
        "INT INVISIBLE DEFAULT 9",
        "BINARY(4) DEFAULT 'a'",
        "DOUBLE NOT NULL",
    ];
    for mode in ["DEFAULT", "''", "'NO_ZERO_DATE,STRICT_ALL_TABLES'"] {
        for column in columns {
            let mut found = Vec::new();
            for engine in ["Tidepool", "InnoDB"] {
                run(
                    &mut conn,
                    &[
                        &format!("SET sql_mode = {mode}, timestamp = 1700000000.123456"),
                        "DROP TABLE IF EXISTS t",
                        &format!(
                            "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(10)) ENGINE={engine}"
                        ),
                        "INSERT INTO t VALUES (1, 'one'), (2, NULL)",
                    ],
                );
                let code =
                    answer(&mut conn, &format!("ALTER TABLE t ADD COLUMN x {column} AFTER id"));
                let get =
                    if code == 0 { "SELECT id, x, HEX(x), a FROM t" } else { "SELECT * FROM t" };
                found.push((code, sorted_rows(&mut conn, get)));
                check(&mut conn, "t");
            }
            assert_eq!(found[0], found[1], "{column}, sql_mode {mode}");
        }
    }
}

#[test]
fn snapshots_and_unfinished_transactions() {
    let mut server = Server::start(Options::new("instant_snapshots"));
    let mut old = server.connect_to("test");
    let mut new = server.connect_to("test");
    run(
        &mut new,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(10))",
            "INSERT INTO t SELECT seq, seq, 'old' FROM seq_1_to_100",
        ],
    );
    run(
        &mut old,
        &[
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT",
        ],
    );
    run(
        &mut new,
        &[
            "UPDATE t SET a = 1000, b = 'new' WHERE id <= 10",
            "ALTER TABLE t ADD COLUMN c INT DEFAULT 5 FIRST, ADD COLUMN d INT AFTER id, ALGORITHM=INSTANT",
            "UPDATE t SET c = 6, a = 2000 WHERE id <= 20",
            "DELETE FROM t WHERE id > 90",
        ],
    );
    // What it saw, with the column as it would have been.
    assert_eq!(
        number(&mut old, "SELECT SUM(c = 5 AND a = id AND b = 'old' AND d IS NULL) FROM t"),
        100
    );
    assert_eq!(number(&mut new, "SELECT SUM(c = 6 AND a = 2000) FROM t"), 20);
    run(&mut old, &["COMMIT"]);
    // A transaction that a crash ended is undone to rows of the version before.
    let mut writer = server.connect_to("test");
    run(&mut writer, &["BEGIN", "UPDATE t SET a = -1, d = 3", "DELETE FROM t WHERE id % 2 = 0"]);
    // So that the log has it.
    run(&mut new, &["CREATE TABLE other (id INT)"]);
    server.kill9();
    server.restart();
    let mut new = server.connect_to("test");
    run(
        &mut new,
        &[
            "ALTER TABLE t DROP COLUMN c, ADD COLUMN e TEXT DEFAULT 'e', MODIFY COLUMN a INT NULL AFTER e, ALGORITHM=INSTANT",
            "UPDATE t SET a = NULL WHERE id = 50",
        ],
    );
    assert_eq!(number(&mut new, "SELECT COUNT(*) FROM t WHERE d IS NULL AND e = 'e'"), 90);
    assert_eq!(number(&mut new, "SELECT SUM(a) FROM t"), 20 * 2000 + (21..=90).sum::<i64>() - 50);
    check(&mut new, "t");
    // A prepared one has to be finished first.
    let mut other = server.connect_to("test");
    run(
        &mut other,
        &["XA START 'x'", "UPDATE t SET d = 9 WHERE id = 1", "XA END 'x'", "XA PREPARE 'x'"],
    );
    drop(other);
    for again in [false, true] {
        run(&mut new, &["SET lock_wait_timeout = 1"]);
        assert_ne!(answer(&mut new, "ALTER TABLE t ADD COLUMN f INT, ALGORITHM=INSTANT"), 0);
        if !again {
            server.kill9();
            server.restart();
            new = server.connect_to("test");
        }
    }
    run(&mut new, &["XA ROLLBACK 'x'", "ALTER TABLE t ADD COLUMN f INT, ALGORITHM=INSTANT"]);
    assert_eq!(number(&mut new, "SELECT COUNT(*) FROM t WHERE d IS NULL AND f IS NULL"), 90);
    check(&mut new, "t");
}

#[test]
fn a_version_too_many_is_a_copy() {
    let server = Server::start(Options::new("instant_limit"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (0)"]);
    for n in 1..=126 {
        run(
            &mut conn,
            &[
                &format!("ALTER TABLE t ADD COLUMN c{n} INT DEFAULT {n} FIRST, ALGORITHM=INSTANT"),
                &format!("INSERT INTO t (id, c{n}) VALUES ({n}, -{n})"),
            ],
        );
    }
    let statement = "ALTER TABLE t ADD COLUMN d INT DEFAULT 127";
    assert!(NOT_SO.contains(&answer(&mut conn, &format!("{statement}, ALGORITHM=INSTANT"))));
    let expect = |conn: &mut Conn| {
        for n in 1..=126 {
            let found = format!("SELECT SUM(c{n} = IF(id = {n}, -{n}, {n})) FROM t");
            assert_eq!(number(conn, &found), 127, "{n}");
        }
    };
    expect(&mut conn);
    check(&mut conn, "t");
    run(&mut conn, &[statement]);
    expect(&mut conn);
    run(&mut conn, &["ALTER TABLE t DROP COLUMN d, ALGORITHM=INSTANT"]);
    expect(&mut conn);
    run(&mut conn, &["TRUNCATE TABLE t", "INSERT INTO t (id) VALUES (1)"]);
    assert_eq!(number(&mut conn, "SELECT SUM(c126) FROM t"), 126);
    check(&mut conn, "t");
}

/// Formats of keys and rows, and the length, of a table's metadata (docs/internals/format/rows.md).
fn metadata(server: &Server, table: &str) -> (u8, u8, usize) {
    let db = Db::open(server.data_dir().join("tidepool"), EngineOptions::default());
    let db = db.expect("the engine's directory can be opened");
    let metadata = db.table_def(table).expect("the table is there").metadata;
    db.close().expect("it closes");
    (metadata[0], metadata[1], metadata.len())
}

#[test]
fn a_table_never_altered_is_stored_as_ever() {
    let mut server = Server::start(Options::new("instant_formats"));
    let mut conn = server.connect_to("test");
    let create = "CREATE TABLE t (id INT PRIMARY KEY, a INT, KEY (a))";
    run(&mut conn, &[create, "INSERT INTO t VALUES (1, 1)", "ALTER TABLE t ADD INDEX i (a, id)"]);
    server.stop();
    assert_eq!(metadata(&server, "test/t"), (1, 1, 10));
    for (statement, versions) in [
        ("ALTER TABLE t ADD COLUMN b INT DEFAULT 7, ALGORITHM=INSTANT", true),
        ("ALTER TABLE t DROP INDEX i", true),
        ("ALTER TABLE t FORCE", false),
    ] {
        server.restart();
        run(&mut server.connect_to("test"), &[statement]);
        server.stop();
        let (_, format, len) = metadata(&server, "test/t");
        assert_eq!((format == 2, len > 10), (versions, versions), "{statement}");
    }
    server.restart();
    assert_eq!(number(&mut server.connect_to("test"), "SELECT b FROM t"), 7);
    // A definition of another version is refused.
    run(
        &mut server.connect_to("test"),
        &[
            "CREATE TABLE u LIKE t",
            "ALTER TABLE t MODIFY COLUMN b INT DEFAULT 7 FIRST, ADD COLUMN c INT",
        ],
    );
    server.stop();
    let frm = |table: &str| server.data_dir().join("test").join(format!("{table}.frm"));
    std::fs::copy(frm("u"), frm("t")).expect("a .frm file is copied");
    server.restart();
    assert_ne!(answer(&mut server.connect_to("test"), "SELECT * FROM t"), 0);
}

#[test]
fn a_server_killed_in_the_middle_has_the_old_or_the_new_columns() {
    let mut server = Server::start(Options::new("instant_kill9"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(20), c INT NOT NULL, KEY (c))",
            "INSERT INTO t SELECT seq, seq + 1, seq + 2, seq + 3 FROM seq_1_to_500",
        ],
    );
    let rounds = std::env::var("TIDEPOOL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let (mut unacknowledged, mut undone) = (0, 0);
    for round in 0..rounds {
        // Columns of the same type change places: their layout alone would not tell.
        let statements = [
            "ALTER TABLE t ADD COLUMN x INT NOT NULL DEFAULT 7 AFTER id, MODIFY COLUMN c INT NOT NULL AFTER id",
            "ALTER TABLE t DROP COLUMN x, MODIFY COLUMN a INT NOT NULL FIRST",
        ];
        let columns = |conn: &mut Conn| -> Vec<String> {
            conn.query("SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'test' AND TABLE_NAME = 't' ORDER BY ORDINAL_POSITION").expect("columns")
        };
        let has = columns(&mut conn).contains(&"x".to_string());
        let statement = format!("{}, ALGORITHM=INSTANT", statements[usize::from(has)]);
        let mut altering = server.connect_to("test");
        let thread = thread::spawn(move || is_acknowledged(&mut altering, &statement));
        thread::sleep(Duration::from_micros(round * 1100 % 17_000));
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
            format!("SELECT COUNT(*) FROM t WHERE a = id + 1 AND b = id + 2 AND c = id + 3{x}");
        assert_eq!(number(&mut conn, &right), 500, "round {round}");
        run(
            &mut conn,
            &[
                "UPDATE t SET a = a + 1, b = b + 1 WHERE id % 3 = 0",
                "UPDATE t SET a = a - 1, b = b - 1 WHERE id % 3 = 0",
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
    assert!((1..rounds as u32).contains(&undone), "{undone} of {rounds} were undone");
}

/// Expressions name columns: what they have computed must be computed anew if a name is another
/// column's, or a column's values are others.
#[test]
fn what_is_computed_from_a_column_follows_the_name() {
    let server = Server::start(Options::new("instant_computed"));
    let mut conn = server.connect_to("test");
    let base = "id INT PRIMARY KEY, a INT NOT NULL, b INT, c VARCHAR(20)";
    let again = "DROP COLUMN a, ADD COLUMN a INT DEFAULT 5 AFTER id";
    let cases = [
        ("v INT AS (a + 1) VIRTUAL, KEY v (v)", again, false),
        ("v INT AS (a + 1) VIRTUAL, w INT AS (v + 1) VIRTUAL, KEY v (w)", again, false),
        ("v INT AS (a + 1) VIRTUAL, KEY b (b)", again, true),
        ("v INT AS (a + 1) STORED", again, false),
        ("v INT AS (a + 1) VIRTUAL, w INT AS (v + 1) STORED", again, false),
        ("CONSTRAINT k CHECK (a > 5 OR b IS NULL)", again, false),
        ("d INT DEFAULT 7 CHECK (d < a)", again, false),
        ("d INT DEFAULT 7 CHECK (d < a)", "DROP COLUMN b, ADD COLUMN b INT DEFAULT 5", true),
        // The same in the definition alone.
        (
            "v INT AS (a + 1) VIRTUAL, w INT AS (v + 1) VIRTUAL, KEY v (w)",
            "DROP COLUMN v, ADD COLUMN v INT AS (a + 5) VIRTUAL AFTER a",
            false,
        ),
        (
            "v INT AS (a + 1) VIRTUAL, w INT AS (v + 1) STORED",
            "DROP COLUMN v, ADD COLUMN v INT AS (a + 5) VIRTUAL AFTER a",
            false,
        ),
        (
            "v INT AS (a + 1) VIRTUAL, w INT AS (v + 1) STORED",
            "MODIFY COLUMN v INT AS (a + 500) VIRTUAL",
            false,
        ),
        (
            "v INT AS (a + 1) VIRTUAL, CONSTRAINT k CHECK (v < 100)",
            "MODIFY COLUMN v INT AS (a + 500) VIRTUAL",
            false,
        ),
        ("v INT AS (a + 1) VIRTUAL", "MODIFY COLUMN v INT AS (a + 500) VIRTUAL", true),
        ("KEY b (b)", "ADD COLUMN v INT AS (a * 2) VIRTUAL CHECK (v > 50)", false),
        (
            "KEY b (b)",
            "ADD COLUMN x INT, ADD COLUMN v INT AS (a * 2) VIRTUAL CHECK (v > 50)",
            false,
        ),
        // Names that move are followed.
        (
            "v INT AS (a + 1) VIRTUAL, w INT AS (b + 1) STORED, KEY v (v)",
            "CHANGE COLUMN a b INT NOT NULL AFTER c, CHANGE COLUMN b a INT",
            true,
        ),
        (
            "v INT AS (a + 1) VIRTUAL, KEY v (v)",
            "CHANGE COLUMN a z INT NOT NULL, ADD COLUMN a INT DEFAULT 3",
            true,
        ),
    ];
    for (more, clause, is_instant) in cases {
        let mut found = Vec::new();
        for copied in [true, false] {
            run(
                &mut conn,
                &[
                    "DROP TABLE IF EXISTS t",
                    &format!("CREATE TABLE t ({base}, {more})"),
                    "INSERT INTO t (id, a, b, c) VALUES (1, 10, 100, 'x'), (2, 20, 200, 'y'), (3, 30, NULL, NULL)",
                ],
            );
            let algorithm = if copied { ", ALGORITHM=COPY" } else { "" };
            let mut answers =
                vec![answer(&mut conn, &format!("ALTER TABLE t {clause}{algorithm}")).to_string()];
            answers.extend(sorted_rows(&mut conn, "SELECT * FROM t"));
            if more.contains("KEY v") {
                let column = if more.contains("w INT AS (v") { "w" } else { "v" };
                answers.extend(sorted_rows(
                    &mut conn,
                    &format!("SELECT {column} FROM t FORCE INDEX (v) WHERE {column} > 0"),
                ));
            }
            check(&mut conn, "t");
            found.push(answers);
        }
        assert_eq!(found[0], found[1], "{more}: {clause}");
        if found[0][0] == "0" {
            run(
                &mut conn,
                &["DROP TABLE IF EXISTS t", &format!("CREATE TABLE t ({base}, {more})")],
            );
            let code = answer(&mut conn, &format!("ALTER TABLE t {clause}, ALGORITHM=INSTANT"));
            assert_eq!(code == 0, is_instant, "{more}: {clause}: {code}");
        }
    }
}

/// Columns of foreign keys have their new names in both tables' definitions with the change of the
/// rows, or not at all.
#[test]
fn columns_of_foreign_keys_are_renamed_with_the_rows() {
    let mut server = Server::start(Options::new("instant_renamed_keys"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, x INT NOT NULL, boss INT, KEY (x), FOREIGN KEY (boss) REFERENCES p (id))",
            "INSERT INTO p VALUES (1, 1, NULL), (2, 2, 1)",
            "CREATE TABLE c (id INT PRIMARY KEY, f INT NOT NULL, FOREIGN KEY (f) REFERENCES p (x) ON UPDATE CASCADE)",
            "INSERT INTO c VALUES (1, 1), (2, 2)",
            "ALTER TABLE c CHANGE COLUMN f g INT NOT NULL FIRST, ADD COLUMN a INT DEFAULT 3, ALGORITHM=INSTANT",
            "ALTER TABLE p CHANGE COLUMN x y INT NOT NULL, CHANGE COLUMN id no INT FIRST, ADD COLUMN a INT DEFAULT 4, ALGORITHM=INSTANT",
        ],
    );
    for killed in [false, true] {
        if killed {
            server.kill9();
            server.restart();
            conn = server.connect_to("test");
        }
        run(&mut conn, &["UPDATE p SET y = y + 10 WHERE no = 1"]);
        assert_eq!(
            sorted_rows(&mut conn, "SELECT g FROM c WHERE id = 1"),
            sorted_rows(&mut conn, "SELECT y FROM p WHERE no = 1")
        );
        for refused in [
            "INSERT INTO c (id, g) VALUES (9, 99)",
            "DELETE FROM p WHERE no = 2",
            "UPDATE p SET boss = 7 WHERE no = 2",
        ] {
            assert!([1451, 1452].contains(&answer(&mut conn, refused)), "{refused}");
        }
        let keys: Vec<(String, String)> = conn
            .query(
                "SELECT COLUMN_NAME, REFERENCED_COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE \
                 WHERE TABLE_SCHEMA = 'test' AND REFERENCED_TABLE_NAME = 'p' ORDER BY 1",
            )
            .expect("keys");
        assert_eq!(keys, [("boss".into(), "no".into()), ("g".into(), "y".into())]);
        check(&mut conn, "p");
        check(&mut conn, "c");
    }
}
