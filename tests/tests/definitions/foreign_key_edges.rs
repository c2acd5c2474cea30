//! Foreign keys where something else of the server comes in: hashes as unique keys, statements that
//! are older than a constraint, virtual columns, several tables dropped at once, columns renamed as
//! a table is altered, metadata locks, and a crash between catalog and `.frm`.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check, code_of, definition, number, rows, run};

const NO_COLUMN: u16 = 1054;
const NO_TABLE: u16 = 1146;
const NO_PARENT: u16 = 1452;
const HAS_CHILDREN: u16 = 1451;
const CANT_CREATE: u16 = 1005;

/// UNIQUE over a long value is an index of hashes, in which no search finds a row by the first of
/// its columns.
#[test]
fn a_unique_hash_is_no_index_of_its_columns() {
    let server = Server::start(Options::new("fk_hash"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "INSERT INTO p VALUES (1), (2), (3)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, t TEXT, UNIQUE KEY pt (p, t), KEY (p), FOREIGN KEY (p) REFERENCES p (id) ON UPDATE CASCADE)",
            "CREATE TABLE h (id INT PRIMARY KEY, p INT, UNIQUE KEY (p) USING HASH, FOREIGN KEY (p) REFERENCES p (id))",
            "INSERT INTO c VALUES (1, 1, 'a'), (2, 1, 'b')",
            "INSERT INTO h VALUES (1, 2)",
        ],
    );
    assert_eq!(code_of(&mut conn, "DELETE FROM p WHERE id = 1"), HAS_CHILDREN);
    assert_eq!(code_of(&mut conn, "DELETE FROM p WHERE id = 2"), HAS_CHILDREN);
    run(&mut conn, &["UPDATE p SET id = 10 WHERE id = 1"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM c WHERE p = 10"), 2);
    // The hash follows: the same pair is refused, another is not.
    assert_eq!(code_of(&mut conn, "INSERT INTO c VALUES (3, 10, 'a')"), 1062);
    run(&mut conn, &["INSERT INTO c VALUES (3, 10, 'c')"]);
    // As an index of a parent it is none either.
    run(&mut conn, &["CREATE TABLE hp (id INT PRIMARY KEY, u INT, UNIQUE KEY (u) USING HASH)"]);
    let create = "CREATE TABLE hc (u INT, FOREIGN KEY (u) REFERENCES hp (u))";
    assert_eq!(code_of(&mut conn, create), CANT_CREATE);
    for table in ["c", "h"] {
        check(&mut conn, table);
    }
}

/// A prepared statement, and one in a procedure, know the children of when they first ran; those
/// that have come since are acted on all the same.
#[test]
fn statements_older_than_a_constraint_follow_it() {
    let server = Server::start(Options::new("fk_older"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
            "INSERT INTO p SELECT seq FROM seq_1_to_12",
            "INSERT INTO c SELECT seq, seq FROM seq_1_to_10",
            "PREPARE d FROM 'DELETE FROM p WHERE id = ?'",
            "CREATE PROCEDURE del(n INT) DELETE FROM p WHERE id = n",
            "CREATE PROCEDURE upd(n INT) UPDATE p SET id = id + 100 WHERE id = n",
            "SET @n = 1",
            "EXECUTE d USING @n",
            "CALL del(2)",
            "CALL upd(3)",
            // Beside the one that is known, and further down.
            "CREATE TABLE late (id INT PRIMARY KEY, p INT, t TEXT, v TEXT AS (CONCAT(p, t)) VIRTUAL, KEY (v(20)),
                 FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
            "CREATE TABLE g (id INT PRIMARY KEY, c INT, l INT, FOREIGN KEY (c) REFERENCES c (id) ON DELETE SET NULL,
                 FOREIGN KEY (l) REFERENCES late (id) ON DELETE CASCADE)",
            "INSERT INTO late (id, p, t) SELECT id, id, 'x' FROM p WHERE id < 100",
            "INSERT INTO g SELECT id, id, NULL FROM c",
            "INSERT INTO g SELECT id + 100, NULL, id FROM late",
        ],
    );
    let left = |conn: &mut Conn| {
        (
            number(conn, "SELECT COUNT(*) FROM late"),
            number(conn, "SELECT COUNT(*) FROM g"),
            number(conn, "SELECT COUNT(*) FROM g WHERE c IS NOT NULL"),
        )
    };
    assert_eq!(left(&mut conn), (9, 17, 8));
    run(&mut conn, &["SET @n = 4", "EXECUTE d USING @n", "CALL del(5)"]);
    assert_eq!(left(&mut conn), (7, 15, 6));
    // Two rows in one statement, and within a transaction that is rolled back.
    run(&mut conn, &["BEGIN", "CALL upd(6)", "CALL upd(7)", "CALL del(8)"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM late WHERE p IN (106, 107)"), 2);
    assert_eq!(left(&mut conn), (6, 14, 5));
    run(&mut conn, &["ROLLBACK"]);
    assert_eq!(left(&mut conn), (7, 15, 6));
    run(&mut conn, &["CALL upd(6)", "SET @n = 9", "EXECUTE d USING @n"]);
    let found = "SELECT id FROM late FORCE INDEX (v) WHERE v = '106x'";
    assert_eq!(number(&mut conn, found), 6);
    // What was opened on the way is closed again: the table can be altered and dropped by others.
    let mut other = server.connect_to("test");
    run(&mut other, &["SET lock_wait_timeout = 5", "ALTER TABLE late ADD z INT, ALGORITHM=COPY"]);
    run(&mut conn, &["CALL del(10)"]);
    run(&mut other, &["DROP TABLE g", "DROP TABLE late"]);
    run(&mut conn, &["CALL del(11)"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM c WHERE p NOT IN (SELECT id FROM p)"), 0);
}

/// Long virtual columns that an index has are computed for what an action changes, also where the
/// statement stands at such a row itself.
#[test]
fn indexed_virtual_columns_follow_an_action() {
    let server = Server::start(Options::new("fk_virtual"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, s TEXT, v TEXT AS (CONCAT(p, '-', s)) VIRTUAL, w VARCHAR(40) AS (LEFT(v, 30)) VIRTUAL,
                 KEY (v(50)), KEY (w), FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL ON UPDATE CASCADE)",
            "INSERT INTO p VALUES (1), (2), (3)",
            "INSERT INTO c (id, p, s) VALUES (1, 1, REPEAT('a', 20000)), (2, 1, 'b'), (3, 2, 'c'), (4, 3, NULL)",
            "UPDATE p SET id = 10 WHERE id = 1",
            "DELETE FROM p WHERE id = 2",
            "UPDATE p SET id = 30 WHERE id = 3",
        ],
    );
    let by_v = "SELECT id FROM c FORCE INDEX (v) WHERE v LIKE '10-%' ORDER BY id";
    assert_eq!(rows(&mut conn, by_v).len(), 2);
    let by_w = "SELECT COUNT(*) FROM c FORCE INDEX (w) WHERE w = '10-b'";
    assert_eq!(number(&mut conn, by_w), 1);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM c FORCE INDEX (v) WHERE v IS NULL"), 2);
    check(&mut conn, "c");

    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, up INT, s TEXT, v TEXT AS (CONCAT(up, '-', s)) VIRTUAL, KEY (v(50)),
                 FOREIGN KEY (up) REFERENCES t (id) ON DELETE CASCADE)",
            "INSERT INTO t (id, up, s) SELECT seq, NULLIF(seq DIV 3, 0), REPEAT(CHAR(96 + seq), 1000 * seq) FROM seq_1_to_20",
            "CREATE TABLE log (id INT AUTO_INCREMENT PRIMARY KEY, was TEXT)",
            "CREATE TRIGGER gone AFTER DELETE ON t FOR EACH ROW INSERT INTO log (was) VALUES (CONCAT(OLD.id, ':', OLD.v))",
            "DELETE FROM t WHERE v LIKE '1-%'",
        ],
    );
    // 3, 4 and 5 go, with those below them; the trigger has seen the values of the rows that the
    // statement itself deletes.
    assert_eq!(
        number(
            &mut conn,
            "SELECT COUNT(*) FROM t WHERE up IS NOT NULL AND up NOT IN (SELECT id FROM t)"
        ),
        0
    );
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 8);
    let seen = rows(
        &mut conn,
        "SELECT was = CONCAT(SUBSTRING_INDEX(was, ':', 1), ':1-', REPEAT(CHAR(96 + SUBSTRING_INDEX(was, ':', 1)), 1000 * SUBSTRING_INDEX(was, ':', 1))) FROM log",
    );
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen.iter().all(|row| row.contains("Int(1)") || row.contains('1')), "{seen:?}");
    check(&mut conn, "t");
}

/// A table that would go with its parent, but can't, keeps the parent.
#[test]
fn tables_go_together_or_not_at_all() {
    let server = Server::start(Options::new("fk_together").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE DATABASE d",
            "CREATE DATABASE e",
            "CREATE TABLE d.a (id INT PRIMARY KEY)",
            "CREATE TABLE d.b (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES d.a (id))",
            "CREATE TABLE e.x (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES d.b (id))",
            "INSERT INTO d.a VALUES (1)",
            "INSERT INTO d.b VALUES (1)",
        ],
    );
    for drop in ["DROP TABLE d.a, d.b", "DROP TABLE d.b, d.a", "DROP DATABASE d"] {
        assert_eq!(code_of(&mut conn, drop), HAS_CHILDREN, "{drop}");
        assert_eq!(rows(&mut conn, "SHOW TABLES FROM d").len(), 2, "{drop}");
    }
    assert_eq!(code_of(&mut conn, "DELETE FROM d.a"), HAS_CHILDREN);
    // A temporary table is not the child whose name it has.
    run(&mut conn, &["DROP TABLE e.x"]);
    for drop in ["DROP TABLE d.a, d.b", "DROP TABLE d.b, d.a"] {
        run(&mut conn, &["CREATE TEMPORARY TABLE d.b (id INT)"]);
        assert_eq!(code_of(&mut conn, drop), HAS_CHILDREN, "{drop}");
        run(&mut conn, &["DROP TEMPORARY TABLE IF EXISTS d.b"]);
        assert_eq!(rows(&mut conn, "SHOW TABLES FROM d").len(), 2, "{drop}");
    }
    run(
        &mut conn,
        &[
            "LOCK TABLES d.a WRITE, d.b WRITE",
            "DROP TABLE d.a, d.b",
            "UNLOCK TABLES",
            "DROP DATABASE d",
            "DROP DATABASE e",
        ],
    );
}

/// ALTER TABLE may rename columns of a constraint and change rows or indexes with the same
/// statement.
#[test]
fn columns_are_renamed_together_with_other_changes() {
    let mut server = Server::start(Options::new("fk_renamed_column").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, u INT, UNIQUE (u))",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, q INT, up INT, CONSTRAINT one FOREIGN KEY (p) REFERENCES p (id),
                 CONSTRAINT two FOREIGN KEY (q) REFERENCES p (u) ON UPDATE CASCADE, CONSTRAINT up FOREIGN KEY (up) REFERENCES c (id))",
            "INSERT INTO p VALUES (1, 1)",
            "INSERT INTO c VALUES (1, 1, 1, 1)",
            "ALTER TABLE c RENAME COLUMN p TO pp, ADD a INT FIRST, ALGORITHM=INSTANT",
            "ALTER TABLE p RENAME COLUMN u TO uu, ADD a INT FIRST, ALGORITHM=INSTANT",
            "ALTER TABLE c RENAME COLUMN id TO ident, RENAME COLUMN up TO above, ADD b INT, ADD KEY (pp, a), ALGORITHM=NOCOPY",
            "ALTER TABLE p RENAME COLUMN id TO ident, ADD b INT, ALGORITHM=INSTANT",
        ],
    );
    for restart in [false, true] {
        if restart {
            server.restart();
            conn = server.connect_to("test");
        }
        let text = definition(&mut conn, "c");
        for clause in [
            "CONSTRAINT `one` FOREIGN KEY (`pp`) REFERENCES `p` (`ident`)",
            "CONSTRAINT `two` FOREIGN KEY (`q`) REFERENCES `p` (`uu`) ON UPDATE CASCADE",
            "CONSTRAINT `up` FOREIGN KEY (`above`) REFERENCES `c` (`ident`)",
        ] {
            assert!(text.contains(clause), "{clause}: {text}");
        }
        for column in ["pp", "q", "above"] {
            let insert = format!("INSERT INTO c (ident, {column}) VALUES (9, 7)");
            assert_eq!(code_of(&mut conn, &insert), NO_PARENT, "{column}");
        }
        assert_eq!(code_of(&mut conn, "DELETE FROM p"), HAS_CHILDREN);
        run(&mut conn, &["UPDATE p SET uu = uu + 1"]);
        assert_eq!(number(&mut conn, "SELECT q - uu FROM c, p"), 0);
    }
}

/// Whenever the server dies while a column is renamed that constraints mention, they and the table
/// agree on its name afterwards.
#[test]
fn a_kill_while_columns_are_renamed_leaves_one_name() {
    const KILLS: u64 = 25;
    let mut server = Server::start(Options::new("fk_renamed_kill").engine(Engine::Tidepool));
    run(
        &mut server.connect_to("test"),
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, u INT, UNIQUE (u))",
            "CREATE TABLE c (id INT PRIMARY KEY, q INT, CONSTRAINT one FOREIGN KEY (q) REFERENCES p (u))",
            "INSERT INTO p VALUES (1, 1)",
            "INSERT INTO c VALUES (1, 1)",
        ],
    );
    let mut renamed = 0;
    for kill in 0..KILLS {
        let mut conn = server.connect_to("test");
        let work = thread::spawn(move || {
            let pairs = [("p", "u", "v"), ("c", "q", "r")];
            let mut renamed = 0;
            // Whichever name it has; and with a change of rows every other time.
            for n in 0.. {
                let (table, one, other) = pairs[n / 2 % 2];
                let rest = if n % 8 < 4 { "" } else { ", ADD IF NOT EXISTS extra INT" };
                for (from, to) in [(one, other), (other, one)] {
                    let alter = format!("ALTER TABLE {table} RENAME COLUMN {from} TO {to}{rest}");
                    match conn.query_drop(alter) {
                        Ok(()) => renamed += 1,
                        Err(mysql::Error::MySqlError(error)) => {
                            assert_eq!(error.code, NO_COLUMN, "{error}");
                        }
                        Err(_) => return renamed,
                    }
                }
                if n % 16 == 15 {
                    for table in ["p", "c"] {
                        let _ = conn.query_drop(format!("ALTER TABLE {table} FORCE"));
                        let _ =
                            conn.query_drop(format!("ALTER TABLE {table} DROP IF EXISTS extra"));
                    }
                }
            }
            renamed
        });
        sleep(Duration::from_millis(20 + kill * 7));
        server.kill9();
        renamed += work.join().expect("no panic");
        server.launch().expect("it recovers");
        let mut conn = server.connect_to("test");
        let column = |conn: &mut Conn, table: &str, one: &str, other: &str| {
            if definition(conn, table).contains(&format!("\n  `{one}` ")) {
                one.to_owned()
            } else {
                other.to_owned()
            }
        };
        let (parent, child) = (column(&mut conn, "p", "u", "v"), column(&mut conn, "c", "q", "r"));
        let clause =
            format!("CONSTRAINT `one` FOREIGN KEY (`{child}`) REFERENCES `p` (`{parent}`)");
        let text = definition(&mut conn, "c");
        assert!(text.contains(&clause), "kill {kill}: {clause}: {text}");
        run(
            &mut conn,
            &[
                &format!("INSERT INTO p (id, {parent}) VALUES (2, 2)"),
                &format!("INSERT INTO c (id, {child}) VALUES (2, 2)"),
            ],
        );
        let orphan = format!("INSERT INTO c (id, {child}) VALUES (3, 3)");
        assert_eq!(code_of(&mut conn, &orphan), NO_PARENT);
        assert_eq!(code_of(&mut conn, "DELETE FROM p WHERE id = 2"), HAS_CHILDREN);
        run(&mut conn, &["DELETE FROM c WHERE id = 2", "DELETE FROM p WHERE id = 2"]);
        for table in ["p", "c"] {
            check(&mut conn, table);
        }
    }
    assert!(renamed > 0, "no column was ever renamed");
}

/// A copy takes over what is said of its table also when the server died before it had its new
/// name.
#[test]
fn a_kill_while_a_parent_is_copied_to_another_name_leaves_it_a_parent() {
    const KILLS: u64 = 20;
    let mut server = Server::start(Options::new("fk_copied_kill").engine(Engine::Tidepool));
    run(
        &mut server.connect_to("test"),
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES p (id))",
            "INSERT INTO p VALUES (1)",
            "INSERT INTO c VALUES (1)",
        ],
    );
    let mut copied = 0;
    for kill in 0..KILLS {
        let mut conn = server.connect_to("test");
        let work = thread::spawn(move || {
            let mut copied = 0;
            for (from, to) in [("p", "q"), ("q", "p")].into_iter().cycle() {
                let alter = format!("ALTER TABLE {from} RENAME TO {to}, FORCE, ALGORITHM=COPY");
                match conn.query_drop(alter) {
                    Ok(()) => copied += 1,
                    Err(mysql::Error::MySqlError(error)) => {
                        assert_eq!(error.code, NO_TABLE, "{error}");
                    }
                    Err(_) => break,
                }
            }
            copied
        });
        sleep(Duration::from_millis(20 + kill * 9));
        server.kill9();
        copied += work.join().expect("no panic");
        server.launch().expect("it recovers");
        let mut conn = server.connect_to("test");
        let names: Vec<String> =
            conn.query("SHOW TABLES WHERE Tables_in_test IN ('p', 'q')").expect("names");
        let [name] = &names[..] else { panic!("kill {kill}: {names:?}") };
        let text = definition(&mut conn, "c");
        assert!(text.contains(&format!("REFERENCES `{name}` ")), "kill {kill}: {name}: {text}");
        assert_eq!(code_of(&mut conn, &format!("DELETE FROM {name}")), HAS_CHILDREN);
        assert_eq!(code_of(&mut conn, "INSERT INTO c VALUES (2)"), NO_PARENT);
        check(&mut conn, name);
    }
    assert!(copied > 0, "the table was never copied");
}

/// Who wants a parent for himself waits for a transaction that waits for rows of a third, which
/// wants to look at the parent: the third goes past.
#[test]
fn a_check_passes_those_who_wait_for_the_table() {
    let server = Server::start(Options::new("fk_circle").arg("--lock-wait-timeout=60"));
    let (mut one, mut two, mut three) =
        (server.connect_to("test"), server.connect_to("test"), server.connect_to("test"));
    run(
        &mut one,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id))",
            "CREATE TABLE x (id INT PRIMARY KEY, n INT)",
            "INSERT INTO p VALUES (1)",
            "INSERT INTO x VALUES (1, 0)",
            "BEGIN",
            "UPDATE x SET n = 1",
        ],
    );
    run(
        &mut two,
        &["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN", "SELECT * FROM p"],
    );
    let second = thread::spawn(move || {
        run(&mut two, &["UPDATE x SET n = 2", "COMMIT"]);
    });
    sleep(Duration::from_millis(200));
    let third = thread::spawn(move || run(&mut three, &["ALTER TABLE p ADD n INT"]));
    sleep(Duration::from_millis(200));
    let started = Instant::now();
    run(&mut one, &["INSERT INTO c VALUES (1, 1)", "COMMIT"]);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    second.join().expect("no statement fails");
    third.join().expect("no statement fails");
    assert_eq!(code_of(&mut one, "DELETE FROM p"), HAS_CHILDREN);
}

/// While a child gets an index in place its parent may be renamed: later, not never.
#[test]
fn a_parent_is_renamed_after_its_child_has_its_index() {
    let server = Server::start(Options::new("fk_index_beside"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, n INT)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, s VARCHAR(100), FOREIGN KEY (p) REFERENCES p (id))",
            "INSERT INTO p VALUES (1, 1)",
            "INSERT INTO c SELECT seq, 1, REPEAT(seq, 10) FROM seq_1_to_100000",
        ],
    );
    let mut other = server.connect_to("test");
    for (rename, name, column) in [
        ("RENAME TABLE p TO q", "q", "id"),
        ("ALTER TABLE q RENAME COLUMN id TO ident", "q", "ident"),
    ] {
        let build = thread::spawn(move || {
            run(&mut other, &["ALTER TABLE c ADD KEY k (s, p)"]);
            other
        });
        sleep(Duration::from_millis(100));
        run(&mut conn, &[rename]);
        other = build.join().expect("no statement fails");
        let clause = format!("REFERENCES `{name}` (`{column}`)");
        let text = definition(&mut conn, "c");
        assert!(text.contains(&clause) && text.contains("KEY `k`"), "{text}");
        assert_eq!(code_of(&mut conn, "DELETE FROM q"), HAS_CHILDREN);
        run(&mut conn, &["ALTER TABLE c DROP KEY k"]);
    }
}

/// An error says which constraint it is about, by the name of the table that the user knows.
#[test]
fn errors_name_the_constraint() {
    let server = Server::start(Options::new("fk_errors").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE s (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES s (id) ON DELETE CASCADE)",
            "INSERT INTO s SELECT seq, NULLIF(seq - 1, 0) FROM seq_1_to_20",
            "CREATE TABLE late (id INT PRIMARY KEY, s INT)",
            "INSERT INTO late VALUES (1, 77)",
        ],
    );
    for (statement, code, said) in [
        ("DELETE FROM s WHERE id = 1", 1296, "CONSTRAINT `s_ibfk_1`"),
        ("ALTER TABLE late ADD FOREIGN KEY (s) REFERENCES s (id)", NO_PARENT, "(`test`.`late`,"),
        ("DROP TABLE s", 0, ""),
    ] {
        match conn.query_drop(statement) {
            Ok(()) => assert_eq!(code, 0, "{statement}"),
            Err(mysql::Error::MySqlError(error)) => {
                assert_eq!(error.code, code, "{statement}: {error}");
                assert!(error.message.contains(said), "{statement}: {error}");
            }
            Err(error) => panic!("{statement}: {error}"),
        }
    }
}

/// Children may have a parent that is not there: a DROP of it says that, and not that it has
/// children.
#[test]
fn a_table_that_is_not_there_has_no_children() {
    const UNKNOWN_TABLE: u16 = 1051;
    let server = Server::start(Options::new("fk_missing"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "SET foreign_key_checks = 0",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id))",
            "SET foreign_key_checks = 1",
            "DROP TABLE IF EXISTS p",
        ],
    );
    assert_eq!(code_of(&mut conn, "DROP TABLE p"), UNKNOWN_TABLE);
    run(&mut conn, &["CREATE TABLE p (id INT PRIMARY KEY)"]);
    assert_eq!(code_of(&mut conn, "DROP TABLE p"), HAS_CHILDREN);
}

/// In a mode that is not strict a column with SET NULL can become NOT NULL. Its rows go to no
/// parent that no statement named.
#[test]
fn what_cannot_be_null_is_not_set_null() {
    let server = Server::start(Options::new("fk_not_null"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "SET sql_mode = ''",
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL)",
            "INSERT INTO p VALUES (0), (1), (2)",
            "INSERT INTO c VALUES (1, 1)",
            "ALTER TABLE c MODIFY p INT NOT NULL",
        ],
    );
    assert_eq!(code_of(&mut conn, "DELETE FROM p WHERE id = 1"), HAS_CHILDREN);
    run(&mut conn, &["DELETE FROM p WHERE id = 2"]);
    assert_eq!(number(&mut conn, "SELECT SUM(p) FROM c"), 1);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM p"), 2);
}

/// An action writes the columns of its constraint and nothing else: what is stored of a computation
/// from them would be left behind.
#[test]
fn nothing_stored_is_computed_from_what_actions_change() {
    /// The server refuses what it sees itself.
    const REFUSED: [u16; 2] = [CANT_CREATE, 1901];
    let server = Server::start(Options::new("fk_stored"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE p (id INT PRIMARY KEY)", "INSERT INTO p VALUES (1), (2), (3)"]);
    for action in ["ON UPDATE CASCADE", "ON UPDATE SET NULL", "ON DELETE SET NULL"] {
        let key = format!("FOREIGN KEY (p) REFERENCES p (id) {action}");
        for columns in [
            "g INT AS (p * 10) STORED",
            "v INT AS (p * 10) VIRTUAL, g INT AS (v + 1) STORED",
            "v INT AS (p * 10) VIRTUAL, w INT AS (v + 1) VIRTUAL, g INT AS (w + 1) STORED",
        ] {
            let create = format!("CREATE TABLE c (id INT PRIMARY KEY, p INT, {columns}, {key})");
            let code = code_of(&mut conn, &create);
            assert!(REFUSED.contains(&code), "{code}: {create}");
        }
        run(
            &mut conn,
            &[
                &format!(
                    "CREATE TABLE c (id INT PRIMARY KEY, p INT, n INT, v INT AS (p * 10) VIRTUAL, w INT AS (n + 1) VIRTUAL, KEY (v), {key})"
                ),
                "INSERT INTO c (id, p, n) VALUES (1, 1, 5), (2, 2, 6)",
            ],
        );
        for change in ["ADD g INT AS (p * 10) STORED", "ADD g INT AS (v + 1) STORED"] {
            let statement = format!("ALTER TABLE c {change}");
            assert!(REFUSED.contains(&code_of(&mut conn, &statement)), "{action}: {change}");
        }
        // What is computed from other columns is no hindrance.
        run(&mut conn, &["ALTER TABLE c ADD g INT AS (w * 10) STORED"]);
        let (change, back) = match action.starts_with("ON UPDATE") {
            true => ("UPDATE p SET id = 20 WHERE id = 2", "UPDATE p SET id = 2 WHERE id = 20"),
            false => ("DELETE FROM p WHERE id = 2", "INSERT INTO p VALUES (2)"),
        };
        run(&mut conn, &[change]);
        assert_eq!(number(&mut conn, "SELECT SUM(g) FROM c"), 130);
        check(&mut conn, "c");
        run(
            &mut conn,
            &[
                "ALTER TABLE c DROP FOREIGN KEY c_ibfk_1, ADD h INT AS (p + 1) STORED",
                "DROP TABLE c",
                back,
            ],
        );
    }
    // A row that goes leaves nothing behind.
    run(
        &mut conn,
        &[
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
            "ALTER TABLE c ADD v INT AS (p * 10) VIRTUAL, ADD g INT AS (v + 1) STORED",
        ],
    );
}
