//! Foreign keys: what they forbid, what follows from them, who waits for whom, and what is left
//! after a crash. Where another engine has them too, `TIDEPOOL_TEST_ENGINE=InnoDB` shows the same.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{check, code_of, definition, is_acknowledged, number, rows, run};

const NO_PARENT: u16 = 1452;
const HAS_CHILDREN: u16 = 1451;
const DEADLOCK: u16 = 1213;
const LOCK_WAIT_TIMEOUT: u16 = 1205;
const RECORD_CHANGED: u16 = 1020;
const CANT_CREATE: u16 = 1005;
const DUPLICATE: u16 = 1062;
const ACTION_DUPLICATES: u16 = 1761;

const LEVELS: [&str; 4] = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Errors of two that meet, and duplicates: of a row, or by an action.
const MEETING: [u16; 8] = [
    0,
    NO_PARENT,
    HAS_CHILDREN,
    DEADLOCK,
    RECORD_CHANGED,
    LOCK_WAIT_TIMEOUT,
    DUPLICATE,
    ACTION_DUPLICATES,
];

/// How often each error came, by the counts that sessions end with.
fn sum(sessions: Vec<thread::JoinHandle<BTreeMap<u16, u32>>>) -> BTreeMap<u16, u32> {
    let mut all = BTreeMap::new();
    for session in sessions {
        for (code, count) in session.join().expect("no panic") {
            *all.entry(code).or_default() += count;
        }
    }
    all
}

/// A statement that must wait for what another session holds.
struct Waiting(thread::JoinHandle<(Conn, u16)>);

impl Waiting {
    fn begin(server: &Server, mut conn: Conn, statement: &str) -> Waiting {
        let statement = statement.to_owned();
        let waits = format!(
            "SELECT COUNT(*) FROM information_schema.{}_TRX
             WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = {}",
            server.engine().name(),
            conn.connection_id()
        );
        let waiting = Waiting(thread::spawn(move || {
            let code = code_of(&mut conn, &statement);
            (conn, code)
        }));
        let mut look = server.connect();
        wait_until(Duration::from_secs(30), "a wait for a lock", || {
            assert!(!waiting.0.is_finished(), "it does not wait");
            number(&mut look, &waits) == 1
        });
        waiting
    }

    fn end(self) -> (Conn, u16) {
        self.0.join().expect("no panic")
    }
}

fn at(server: &Server, level: &str) -> Conn {
    let mut conn = server.connect_to("test");
    run(&mut conn, &[&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")]);
    conn
}

/// The second waits for the first, and goes by what became of that.
#[test]
fn child_and_parent_meet_at_the_parents_row() {
    let server = Server::start(Options::new("fk_meet"));
    let mut conn = server.connect_to("test");
    // By the clustered index, by a unique one, and by one that is not.
    for key in ["id", "u", "k"] {
        for action in ["", "ON DELETE CASCADE"] {
            run(
                &mut conn,
                &[
                    "CREATE TABLE p (id INT PRIMARY KEY, u INT, k INT, UNIQUE (u), KEY (k))",
                    &format!(
                        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p ({key}) {action})"
                    ),
                ],
            );
            for level in LEVELS {
                for (first, verdict) in [
                    ("child", "COMMIT"),
                    ("child", "ROLLBACK"),
                    ("parent", "COMMIT"),
                    ("parent", "ROLLBACK"),
                ] {
                    let what = format!("{key} {action} {level} {first} {verdict}");
                    run(
                        &mut conn,
                        &[
                            "DELETE FROM c",
                            "DELETE FROM p",
                            "INSERT INTO p VALUES (1, 1, 1), (2, 2, 2)",
                        ],
                    );
                    let (insert, delete) =
                        ("INSERT INTO c VALUES (1, 1)", "DELETE FROM p WHERE id = 1");
                    let (one, other) =
                        if first == "child" { (insert, delete) } else { (delete, insert) };
                    let (mut holder, waiter) = (at(&server, level), at(&server, level));
                    run(&mut holder, &["BEGIN", one]);
                    let waiting = Waiting::begin(&server, waiter, other);
                    run(&mut holder, &[verdict]);
                    let (mut waiter, code) = waiting.end();
                    let expected = match (first, verdict, action) {
                        (_, "ROLLBACK", _) | ("child", _, "ON DELETE CASCADE") => 0,
                        ("child", ..) => HAS_CHILDREN,
                        _ => NO_PARENT,
                    };
                    assert_eq!(code, expected, "{what}");
                    run(&mut waiter, &["COMMIT"]);
                    let orphans =
                        format!("SELECT COUNT(*) FROM c WHERE p NOT IN (SELECT {key} FROM p)");
                    assert_eq!(number(&mut conn, &orphans), 0, "{what}");
                }
            }
            run(&mut conn, &["DROP TABLE c", "DROP TABLE p"]);
        }
    }
}

/// A snapshot is no reason to refuse: checks, and what follows from them, are about what is there
/// now.
#[test]
fn a_check_is_of_what_is_there_now() {
    let server = Server::start(Options::new("fk_now"));
    let (mut old, mut other) = (at(&server, "REPEATABLE READ"), server.connect_to("test"));
    run(
        &mut other,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, n INT)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
            "CREATE TABLE r (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id))",
            "INSERT INTO p VALUES (1, 0), (2, 0), (3, 0)",
            "INSERT INTO c VALUES (1, 1), (2, 2)",
        ],
    );
    run(
        &mut old,
        &["BEGIN", "SELECT COUNT(*) FROM p", "SELECT COUNT(*) FROM c", "SELECT COUNT(*) FROM r"],
    );
    run(
        &mut other,
        &[
            "INSERT INTO p VALUES (10, 0)",
            "UPDATE p SET n = 1 WHERE id = 3",
            "INSERT INTO c VALUES (3, 1)",
            "UPDATE c SET id = 20 WHERE id = 2",
            "INSERT INTO r VALUES (1, 2)",
        ],
    );
    // Parents that are younger, or have changed, than the snapshot.
    run(&mut old, &["INSERT INTO c VALUES (4, 10), (5, 3)"]);
    // Children that are, and one that forbids it.
    run(&mut old, &["DELETE FROM p WHERE id = 1"]);
    assert_eq!(code_of(&mut old, "DELETE FROM p WHERE id = 2"), HAS_CHILDREN);
    run(&mut old, &["COMMIT"]);
    assert_eq!(rows(&mut old, "SELECT id, p FROM c ORDER BY id").len(), 3);
    assert_eq!(number(&mut old, "SELECT COUNT(*) FROM c WHERE p NOT IN (SELECT id FROM p)"), 0);

    // A parent that is gone since is seen by the snapshot, and not by the check.
    run(&mut old, &["BEGIN", "SELECT * FROM p"]);
    run(&mut other, &["DELETE FROM p WHERE id = 10"]);
    assert_eq!(number(&mut old, "SELECT COUNT(*) FROM p WHERE id = 10"), 1);
    assert_eq!(code_of(&mut old, "INSERT INTO c VALUES (6, 10)"), NO_PARENT);
    run(&mut old, &["COMMIT"]);
}

#[test]
fn two_that_check_a_row_and_then_change_it_are_a_deadlock() {
    let server = Server::start(Options::new("fk_deadlock"));
    let (mut one, mut other) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut one,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, n INT)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id))",
            "INSERT INTO p VALUES (1, 0)",
            "BEGIN",
            "INSERT INTO c VALUES (1, 1)",
        ],
    );
    run(&mut other, &["BEGIN", "INSERT INTO c VALUES (2, 1)"]);
    let waiting = Waiting::begin(&server, one, "UPDATE p SET n = n + 1");
    let second = code_of(&mut other, "UPDATE p SET n = n + 1");
    run(&mut other, &["COMMIT"]);
    let (mut one, first) = waiting.end();
    run(&mut one, &["COMMIT"]);
    let mut codes = [first, second];
    codes.sort_unstable();
    assert_eq!(codes, [0, DEADLOCK]);
    let (_, _, status): (String, String, String) =
        one.query_first("SHOW ENGINE TIDEPOOL STATUS").expect("it works").expect("a row");
    let (_, deadlock) = status.split_once("LATEST DEADLOCK").expect("there was one");
    assert_eq!(
        deadlock.matches("waited for a lock in test/p, index PRIMARY").count(),
        2,
        "{status}"
    );
    assert_eq!(deadlock.matches(": rolled back").count(), 1, "{status}");
}

/// Many at once, at all levels: whatever errors they get, no child is without its parent.
#[test]
fn nobody_is_an_orphan_after_a_crowd() {
    const TABLES: [&str; 3] = ["a", "b", "c"];
    let server = Server::start(Options::new("fk_crowd").arg("--lock-wait-timeout=5"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE a (id INT PRIMARY KEY, u INT, p INT, n INT NOT NULL DEFAULT 0, UNIQUE (u))",
            "CREATE TABLE b (id INT PRIMARY KEY, u INT, p INT, n INT NOT NULL DEFAULT 0, UNIQUE (u),
                 FOREIGN KEY (p) REFERENCES a (u) ON DELETE CASCADE ON UPDATE CASCADE)",
            "CREATE TABLE c (id INT PRIMARY KEY, u INT, p INT, n INT NOT NULL DEFAULT 0, UNIQUE (u),
                 FOREIGN KEY (p) REFERENCES b (id) ON DELETE SET NULL, FOREIGN KEY (u) REFERENCES a (id))",
        ],
    );
    let stop = Arc::new(AtomicBool::new(false));
    let sessions: Vec<_> = (0..6_u64)
        .map(|session| {
            let (stop, mut conn) = (Arc::clone(&stop), at(&server, LEVELS[session as usize % 4]));
            thread::spawn(move || {
                let mut dice = StdRng::seed_from_u64(session);
                let mut codes = BTreeMap::<u16, u32>::new();
                while !stop.load(Ordering::Relaxed) {
                    run(&mut conn, &["BEGIN"]);
                    for _ in 0..dice.random_range(1..4) {
                        let table = TABLES[dice.random_range(0..3)];
                        let (id, n) = (dice.random_range(0..12), dice.random_range(0..12));
                        let statement = match dice.random_range(0..6) {
                            0 => format!("DELETE FROM {table} WHERE id = {id}"),
                            1 => format!("UPDATE {table} SET n = n + 1 WHERE id = {id}"),
                            2 => format!("UPDATE {table} SET u = {n} WHERE id = {id}"),
                            3 => {
                                format!("REPLACE INTO {table} (id, u, p) VALUES ({id}, {n}, NULL)")
                            }
                            _ => format!(
                                "INSERT INTO {table} (id, u, p) VALUES ({id}, {n}, {})",
                                dice.random_range(0..12)
                            ),
                        };
                        let code = code_of(&mut conn, &statement);
                        *codes.entry(code).or_default() += 1;
                        if [DEADLOCK, RECORD_CHANGED].contains(&code) {
                            break;
                        }
                    }
                    let verdict = if dice.random_range(0..4) == 0 { "ROLLBACK" } else { "COMMIT" };
                    conn.query_drop(verdict).expect("an end");
                }
                codes
            })
        })
        .collect();
    sleep(Duration::from_secs(8));
    stop.store(true, Ordering::Relaxed);
    let all = sum(sessions);
    println!("{all:?}");
    assert!(all.keys().all(|code| MEETING.contains(code)), "{all:?}");
    assert!([0, NO_PARENT, HAS_CHILDREN].iter().all(|code| all.contains_key(code)), "{all:?}");
    for (child, column, parent, key) in
        [("b", "p", "a", "u"), ("c", "p", "b", "id"), ("c", "u", "a", "id")]
    {
        let orphans = format!(
            "SELECT COUNT(*) FROM {child} WHERE {column} IS NOT NULL AND {column} NOT IN (SELECT {key} FROM {parent} WHERE {key} IS NOT NULL)"
        );
        assert_eq!(number(&mut conn, &orphans), 0, "{child}.{column}");
    }
    for table in TABLES {
        check(&mut conn, table);
    }
}

/// All of a cascade or nothing, whenever the server dies.
#[test]
fn a_kill_in_a_cascade_leaves_all_or_nothing() {
    const CHILDREN: i64 = 4000;
    let mut server = Server::start(Options::new("fk_kill9"));
    run(
        &mut server.connect_to("test"),
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
            "CREATE TABLE g (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES c (id) ON DELETE SET NULL)",
        ],
    );
    let mut unfinished = 0;
    for (round, delay) in [5, 20, 40, 60, 90].into_iter().enumerate() {
        let mut conn = server.connect_to("test");
        run(
            &mut conn,
            &[
                "DELETE FROM g",
                "DELETE FROM p",
                "INSERT INTO p VALUES (1), (2)",
                &format!("INSERT INTO c SELECT seq, 1 + seq % 2 FROM seq_1_to_{CHILDREN}"),
                &format!("INSERT INTO g SELECT seq, seq FROM seq_1_to_{CHILDREN}"),
            ],
        );
        let statement = if round % 2 == 0 {
            "DELETE FROM p WHERE id = 1"
        } else {
            "UPDATE p SET id = 3 WHERE id = 1"
        };
        let work = thread::spawn(move || is_acknowledged(&mut conn, statement));
        sleep(Duration::from_millis(delay));
        server.kill9();
        let acknowledged = work.join().expect("no panic");
        server.launch().expect("it recovers");
        let mut conn = server.connect_to("test");
        let is_there = number(&mut conn, "SELECT COUNT(*) FROM p WHERE id = 1") == 1;
        assert!(!(acknowledged && is_there), "round {round}: it was acknowledged");
        unfinished += i32::from(is_there);
        let half = CHILDREN / 2;
        let (of_1, of_3, lost) = match (is_there, round % 2) {
            (true, _) => (half, 0, 0),
            (false, 0) => (0, 0, half),
            (false, _) => (0, half, 0),
        };
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM c WHERE p = 1"), of_1, "round {round}");
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM c WHERE p = 3"), of_3, "round {round}");
        assert_eq!(
            number(&mut conn, "SELECT COUNT(*) FROM g WHERE c IS NULL"),
            lost,
            "round {round}"
        );
        for table in ["p", "c", "g"] {
            check(&mut conn, table);
        }
        // The constraints are there again, too.
        assert_eq!(code_of(&mut conn, "INSERT INTO c VALUES (-1, 77)"), NO_PARENT);
    }
    assert!((1..=5).contains(&unfinished), "no cascade was cut short");
}

/// Definitions survive a restart, and follow their tables.
#[test]
fn constraints_follow_their_tables() {
    let mut server = Server::start(Options::new("fk_follow"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE DATABASE d2",
            "CREATE TABLE p (id INT PRIMARY KEY, u INT, UNIQUE (u))",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, q INT, up INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE,
                 CONSTRAINT mine FOREIGN KEY (q) REFERENCES p (u) ON UPDATE NO ACTION, FOREIGN KEY (up) REFERENCES c (id))",
            "ALTER TABLE p CHANGE u v INT",
            "ALTER TABLE c CHANGE q r INT",
            "RENAME TABLE p TO d2.parent",
            "RENAME TABLE c TO child",
        ],
    );
    let clauses = |conn: &mut Conn| -> Vec<String> {
        let text = definition(conn, "child");
        text.lines()
            .filter(|line| line.contains("FOREIGN KEY"))
            .map(|line| line.trim().trim_end_matches(',').into())
            .collect()
    };
    let expected = [
        "CONSTRAINT `child_ibfk_1` FOREIGN KEY (`p`) REFERENCES `d2`.`parent` (`id`) ON DELETE CASCADE",
        "CONSTRAINT `child_ibfk_2` FOREIGN KEY (`up`) REFERENCES `child` (`id`)",
        "CONSTRAINT `mine` FOREIGN KEY (`r`) REFERENCES `d2`.`parent` (`v`) ON UPDATE NO ACTION",
    ];
    assert_eq!(clauses(&mut conn), expected);
    run(
        &mut conn,
        &["INSERT INTO d2.parent VALUES (1, 1)", "INSERT INTO child VALUES (1, 1, 1, 1)"],
    );
    for how in [Server::restart, |server: &mut Server| {
        server.kill9();
        server.launch().expect("it recovers");
    }] {
        how(&mut server);
        conn = server.connect_to("test");
        assert_eq!(clauses(&mut conn), expected);
        assert_eq!(code_of(&mut conn, "INSERT INTO child VALUES (2, 2, NULL, NULL)"), NO_PARENT);
        assert_eq!(code_of(&mut conn, "UPDATE d2.parent SET v = 2"), HAS_CHILDREN);
        assert_eq!(code_of(&mut conn, "DROP TABLE d2.parent"), HAS_CHILDREN);
        assert_eq!(code_of(&mut conn, "DROP DATABASE d2"), HAS_CHILDREN);
    }
    // An index that comes and goes in place, and copies of both tables, take nothing away.
    run(
        &mut conn,
        &[
            "ALTER TABLE child ADD KEY extra (id, r)",
            "ALTER TABLE child DROP KEY extra",
            "ALTER TABLE d2.parent ADD KEY extra (v, id)",
            "ALTER TABLE d2.parent FORCE, ALGORITHM=COPY",
            "ALTER TABLE child FORCE, ALGORITHM=COPY",
            "OPTIMIZE TABLE child",
        ],
    );
    assert_eq!(clauses(&mut conn), expected);
    assert_eq!(code_of(&mut conn, "INSERT INTO child VALUES (2, 2, NULL, NULL)"), NO_PARENT);
    assert_eq!(
        code_of(&mut conn, "ALTER TABLE d2.parent DROP PRIMARY KEY"),
        if server.engine() == Engine::Tidepool { 1553 } else { 1025 }
    );
    // Another index will do.
    run(&mut conn, &["ALTER TABLE d2.parent DROP KEY u"]);
    assert_eq!(code_of(&mut conn, "ALTER TABLE d2.parent DROP KEY extra"), 1553);
    assert_eq!(code_of(&mut conn, "UPDATE d2.parent SET v = 2"), HAS_CHILDREN);
    run(
        &mut conn,
        &[
            "ALTER TABLE child DROP FOREIGN KEY mine",
            "UPDATE d2.parent SET v = 2",
            "DELETE FROM child",
        ],
    );
    run(&mut conn, &["DROP TABLE child", "DROP TABLE d2.parent"]);
}

/// What can't be is refused, and a warning says why.
#[test]
fn a_constraint_that_cannot_be_is_refused_with_its_reason() {
    let server = Server::start(Options::new("fk_refused").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, k INT, s VARCHAR(20) COLLATE utf8mb4_bin, t TEXT, n INT, KEY (k), KEY (s), KEY (t(5)))",
            "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM",
            "CREATE TABLE h (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
            "CREATE TABLE v (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
        ],
    );
    let cases = [
        ("a INT, FOREIGN KEY (a) REFERENCES nowhere (id)", "test.nowhere does not exist"),
        ("a INT, FOREIGN KEY (a) REFERENCES m (id)", "of another engine"),
        ("a INT, FOREIGN KEY (a) REFERENCES h (id)", "partitioned"),
        ("a INT, FOREIGN KEY (a) REFERENCES v (id)", "system versioning"),
        ("a INT, FOREIGN KEY (a) REFERENCES p (x)", "no column x"),
        ("a INT, FOREIGN KEY (a) REFERENCES p (n)", "no index"),
        ("a BIGINT, FOREIGN KEY (a) REFERENCES p (id)", "type"),
        ("a INT UNSIGNED, FOREIGN KEY (a) REFERENCES p (id)", "type"),
        ("a VARCHAR(20) COLLATE utf8mb4_general_ci, FOREIGN KEY (a) REFERENCES p (s)", "collation"),
        ("a INT NOT NULL, FOREIGN KEY (a) REFERENCES p (id) ON DELETE SET NULL", "NOT NULL"),
        ("a INT, b INT AS (a) VIRTUAL, FOREIGN KEY (b) REFERENCES p (id)", "virtual"),
    ];
    for (columns, reason) in cases {
        let statement = format!("CREATE TABLE c ({columns})");
        assert_eq!(code_of(&mut conn, &statement), CANT_CREATE, "{statement}");
        let said: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").expect("warnings");
        assert!(
            said.iter().any(|(_, code, text)| *code == 150 && text.contains(reason)),
            "{statement}: {said:?}"
        );
    }
    assert_eq!(
        code_of(&mut conn, "CREATE TEMPORARY TABLE c (a INT, FOREIGN KEY (a) REFERENCES p (id))"),
        CANT_CREATE
    );
    assert_eq!(
        code_of(
            &mut conn,
            "CREATE TABLE c (a INT PRIMARY KEY, FOREIGN KEY (a) REFERENCES p (id)) PARTITION BY HASH (a)"
        ),
        1506
    );
    // Nothing of it is left behind.
    run(&mut conn, &["CREATE TABLE c (a INT)", "INSERT INTO c VALUES (5)"]);
    // Rows that are there already are looked at.
    assert_eq!(
        code_of(&mut conn, "ALTER TABLE c ADD FOREIGN KEY (a) REFERENCES p (id)"),
        NO_PARENT
    );
    run(
        &mut conn,
        &["INSERT INTO p (id) VALUES (5)", "ALTER TABLE c ADD FOREIGN KEY (a) REFERENCES p (id)"],
    );
    // A table of an engine that has them does not lose them on its way here, nor the other way
    // round.
    run(
        &mut conn,
        &[
            "CREATE TABLE ip (id INT PRIMARY KEY) ENGINE=InnoDB",
            "CREATE TABLE ic (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES ip (id)) ENGINE=InnoDB",
            "SET foreign_key_checks = 0",
        ],
    );
    for (table, engine) in
        [("ip", "Tidepool"), ("ic", "Tidepool"), ("p", "InnoDB"), ("c", "MyISAM")]
    {
        assert_eq!(code_of(&mut conn, &format!("ALTER TABLE {table} ENGINE={engine}")), 1217);
    }
}

/// A dump names children before their parents.
#[test]
fn a_dump_goes_round() {
    let server = Server::start(Options::new("fk_dump"));
    let mut conn = server.connect();
    run(
        &mut conn,
        &[
            "CREATE DATABASE d",
            "USE d",
            "CREATE TABLE z (id INT PRIMARY KEY, a INT, b INT, KEY (a, b))",
            "CREATE TABLE m (id INT PRIMARY KEY, z INT, FOREIGN KEY (z) REFERENCES z (id) ON UPDATE CASCADE)",
            "CREATE TABLE a (id INT PRIMARY KEY, x INT, y INT, m INT, CONSTRAINT both_of_them FOREIGN KEY (x, y) REFERENCES z (a, b) ON DELETE SET NULL,
                 FOREIGN KEY (m) REFERENCES m (id), FOREIGN KEY (id) REFERENCES a (id))",
            "INSERT INTO z VALUES (1, 1, 1), (2, 2, 2)",
            "INSERT INTO m VALUES (1, 1), (2, NULL)",
            "INSERT INTO a VALUES (1, 1, 1, 1), (2, NULL, 9, 2)",
        ],
    );
    let file = server.dir().join("dump.sql");
    let dump = File::create(&file).expect("a file can be made");
    let status =
        server.client("DUMP").arg("d").stdout(dump).status().expect("mariadb-dump can be run");
    assert!(status.success(), "mariadb-dump: {status}");
    assert!(fs::read_to_string(&file).expect("a dump").contains("both_of_them"));
    run(&mut conn, &["CREATE DATABASE e"]);
    let dump = File::open(&file).expect("a dump can be read");
    let status =
        server.client("CLIENT").arg("e").stdin(dump).status().expect("the client can be run");
    assert!(status.success(), "the dump does not load: {status}");
    for table in ["a", "m", "z"] {
        assert_eq!(
            definition(&mut conn, &format!("d.{table}")),
            definition(&mut conn, &format!("e.{table}"))
        );
        let content = |conn: &mut Conn, db: &str| {
            rows(conn, &format!("SELECT * FROM {db}.{table} ORDER BY id"))
        };
        assert_eq!(content(&mut conn, "d"), content(&mut conn, "e"));
    }
    for db in ["d", "e"] {
        assert_eq!(
            code_of(&mut conn, &format!("INSERT INTO {db}.a VALUES (3, 2, 1, NULL)")),
            NO_PARENT
        );
        assert_eq!(code_of(&mut conn, &format!("DELETE FROM {db}.m WHERE id = 1")), HAS_CHILDREN);
        run(
            &mut conn,
            &[
                &format!("DELETE FROM {db}.a WHERE id = 2"),
                &format!("DELETE FROM {db}.m WHERE id = 2"),
            ],
        );
    }
    let listed = "SELECT CONSTRAINT_NAME, TABLE_NAME, REFERENCED_TABLE_NAME, UNIQUE_CONSTRAINT_NAME, UPDATE_RULE, DELETE_RULE
                  FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA =";
    let (d, e) =
        (rows(&mut conn, &format!("{listed} 'd'")), rows(&mut conn, &format!("{listed} 'e'")));
    assert_eq!((d.len(), &d), (4, &e));
    run(&mut conn, &["DROP DATABASE d", "DROP DATABASE e"]);
}

/// One of several, by a dice.
fn pick<'a>(dice: &mut StdRng, all: &[&'a str]) -> &'a str {
    all[dice.random_range(0..all.len())]
}

/// The same random rows under the same random constraints, in both engines of one server: each
/// statement gives the same and leaves the same.
#[test]
fn random_rows_fare_as_in_innodb() {
    const TABLES: i32 = 4;
    const STATEMENTS: usize = 120;
    const KEYS: [&str; 5] = ["id", "u", "a", "b", "s"];
    let cases =
        std::env::var("TIDEPOOL_FOREIGN_KEY_CASES").map_or(12, |n| n.parse().expect("a number"));
    let seed =
        std::env::var("TIDEPOOL_FOREIGN_KEY_SEED").map_or(1, |n| n.parse().expect("a number"));
    let server = Server::start(
        Options::new("fk_random")
            .engine(Engine::Tidepool)
            .arg("--innodb-flush-log-at-trx-commit=2")
            .arg("--tidepool-flush-log-at-trx-commit=2"),
    );
    let mut conn = server.connect();
    run(&mut conn, &["SET optimizer_switch = 'index_merge=off'"]);
    let (mut done, mut refused) = (0, 0);
    for seed in seed..seed + cases {
        let mut dice = StdRng::seed_from_u64(seed);
        let dice = &mut dice;
        let mut script = Vec::new();
        for table in 0..TABLES {
            script.push(format!(
                "CREATE TABLE t{table} (id INT PRIMARY KEY, u INT, a INT, b INT, s VARCHAR(5), UNIQUE (u), KEY (a), KEY (b), KEY (s))"
            ));
        }
        for constraint in 0..dice.random_range(2..7) {
            let column = pick(dice, &KEYS[1..]);
            let (child, parent) = (dice.random_range(0..TABLES), dice.random_range(0..TABLES));
            // A row that references itself is no other row's parent, as the standard has it; to
            // InnoDB it may be, or may not be there yet.
            let is_self = child == parent;
            let key = match column {
                "s" if is_self => continue,
                "s" => "s",
                _ if is_self => "id",
                _ => pick(dice, &["id", "id", "id", "u", "u", "a"]),
            };
            let actions = match is_self {
                true => &["CASCADE", "SET NULL"][..],
                false => {
                    &["", "RESTRICT", "NO ACTION", "CASCADE", "CASCADE", "SET NULL", "SET NULL"]
                }
            };
            let mut clause = format!(
                "ALTER TABLE t{child} ADD CONSTRAINT k{constraint} FOREIGN KEY ({column}) REFERENCES t{parent} ({key})"
            );
            for event in ["DELETE", "UPDATE"] {
                let action = pick(dice, actions);
                if !action.is_empty() {
                    clause += &format!(" ON {event} {action}");
                }
            }
            script.push(clause);
        }
        for _ in 0..STATEMENTS {
            let table = dice.random_range(0..TABLES);
            let id = dice.random_range(0..8);
            let mut value = |nulls: u32| match dice.random_range(0..10) < nulls {
                true => "NULL".to_owned(),
                false => dice.random_range(0..8).to_string(),
            };
            let (u, a, b, s) = (value(5), value(5), value(5), value(5));
            let s = if s == "NULL" { s } else { format!("'v{s}'") };
            let row = format!("({id}, {u}, {a}, {b}, {s})");
            let change = match dice.random_range(0..6) {
                0 => format!("id = {}", dice.random_range(0..8)),
                1 => format!("u = {u}"),
                2 => format!("a = {a}, b = {b}"),
                3 => format!("s = {s}"),
                4 => format!("u = {u}, a = {a}"),
                _ => format!("b = {b}"),
            };
            let ignore = if dice.random_range(0..5) == 0 { "IGNORE " } else { "" };
            let range = format!("id BETWEEN {id} AND {} ORDER BY id", id + dice.random_range(0..3));
            script.push(match dice.random_range(0..10) {
                0..4 => format!("INSERT {ignore}INTO t{table} VALUES {row}"),
                4 => format!("REPLACE INTO t{table} VALUES {row}"),
                5 => format!("INSERT INTO t{table} VALUES {row} ON DUPLICATE KEY UPDATE {change}"),
                6..8 => format!("UPDATE {ignore}t{table} SET {change} WHERE {range}"),
                _ => format!("DELETE {ignore}FROM t{table} WHERE {range}"),
            });
        }
        for engine in ["Tidepool", "InnoDB"] {
            let statements = [
                "SET foreign_key_checks = 0".to_owned(),
                format!("DROP DATABASE IF EXISTS {engine}"),
                format!("CREATE DATABASE {engine}"),
                "SET foreign_key_checks = 1".to_owned(),
            ];
            statements.iter().for_each(|statement| run(&mut conn, &[statement]));
        }
        for (number, statement) in script.iter().enumerate() {
            let mut outcomes = Vec::new();
            for engine in ["Tidepool", "InnoDB"] {
                run(
                    &mut conn,
                    &[&format!("USE {engine}"), &format!("SET default_storage_engine = {engine}")],
                );
                let code = code_of(&mut conn, statement);
                // Of several reasons, either may come first.
                let refusals = [0, NO_PARENT, HAS_CHILDREN, DUPLICATE, ACTION_DUPLICATES];
                assert!(refusals.contains(&code), "{engine}, seed {seed}: {code}: {statement}");
                let mut outcome =
                    vec![if code == 0 { "done".to_owned() } else { "refused".into() }];
                for table in 0..TABLES {
                    if number >= TABLES as usize {
                        outcome.extend(rows(
                            &mut conn,
                            &format!("SELECT * FROM t{table} ORDER BY id"),
                        ));
                        outcome.push("-".into());
                    }
                }
                outcomes.push(outcome);
                refused += u32::from(code != 0);
                done += 1;
            }
            let so_far = || script[..=number].join(";\n");
            assert_eq!(outcomes[0], outcomes[1], "seed {seed}, Tidepool left:\n{};", so_far());
        }
        for table in 0..TABLES {
            check(&mut conn, &format!("Tidepool.t{table}"));
        }
    }
    println!("{done} statements, {refused} refused");
    assert!(refused > 0 && done > 10 * refused / 9, "{refused} of {done} refused");
}

/// Tables and constraints come, go and are renamed beside those who write rows: what handlers know
/// of the other table is never that of another.
#[test]
fn definitions_change_beside_rows() {
    let server = Server::start(Options::new("fk_definitions").arg("--lock-wait-timeout=3"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, u INT, n INT NOT NULL DEFAULT 0, UNIQUE (u))",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, q INT, CONSTRAINT by_id FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE,
                 CONSTRAINT by_u FOREIGN KEY (q) REFERENCES p (u))",
        ],
    );
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4_u64)
        .map(|session| {
            let (stop, mut conn) = (Arc::clone(&stop), at(&server, LEVELS[session as usize % 4]));
            thread::spawn(move || {
                let mut dice = StdRng::seed_from_u64(session);
                let mut codes = BTreeMap::<u16, u32>::new();
                while !stop.load(Ordering::Relaxed) {
                    let (id, n) = (dice.random_range(0..20), dice.random_range(0..20));
                    let statement = match dice.random_range(0..6) {
                        0 => format!("DELETE FROM p WHERE id = {id}"),
                        1 => format!("UPDATE p SET id = {n} WHERE id = {id}"),
                        2 | 3 => format!("INSERT INTO p (id, u) VALUES ({id}, {n})"),
                        4 => format!(
                            "INSERT INTO c (id, p, q) VALUES ({}, {id}, {n})",
                            dice.random::<u32>() >> 1
                        ),
                        _ => format!("DELETE FROM c WHERE p = {id}"),
                    };
                    *codes.entry(code_of(&mut conn, &statement)).or_default() += 1;
                }
                codes
            })
        })
        .collect();
    let changes = [
        "ALTER TABLE p ADD KEY extra (u, id)",
        "ALTER TABLE p FORCE, ALGORITHM=COPY",
        "ALTER TABLE c FORCE, ALGORITHM=COPY",
        "RENAME TABLE p TO p2",
        "RENAME TABLE p2 TO p",
        "ALTER TABLE p DROP KEY u",
        "CREATE TABLE c2 (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO c2 SELECT id FROM p",
        "ALTER TABLE p ADD UNIQUE KEY u (u)",
        "ALTER TABLE p DROP KEY extra",
        "ALTER TABLE c DROP FOREIGN KEY by_id",
        "DELETE FROM c",
        "ALTER TABLE c ADD CONSTRAINT by_id FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE",
        "DROP TABLE c2",
        "RENAME TABLE c TO d, p TO q, d TO c, q TO p",
    ];
    let mut done = BTreeMap::<&str, u32>::new();
    let started = std::time::Instant::now();
    while started.elapsed() < Duration::from_secs(10) {
        for change in changes {
            if code_of(&mut conn, change) == 0 {
                *done.entry(change).or_default() += 1;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let all = sum(writers);
    println!("{all:?}\n{done:#?}");
    const NO_SUCH_TABLE: u16 = 1146;
    const TABLE_CHANGED: u16 = 1412;
    const ROW_IN_THE_WAY: u16 = 1217;
    let changing = [NO_SUCH_TABLE, TABLE_CHANGED, ROW_IN_THE_WAY];
    assert!(all.keys().all(|code| MEETING.contains(code) || changing.contains(code)), "{all:?}");
    assert!(all[&0] > 100 && done.len() > 10, "{all:?} {done:?}");
    // Whatever was refused on the way, all is as it would have been.
    for back in
        ["RENAME TABLE p2 TO p", "RENAME TABLE d TO c", "RENAME TABLE q TO p", "DROP TABLE c2"]
    {
        let _ = conn.query_drop(back);
    }
    let text = definition(&mut conn, "c");
    if text.contains("CONSTRAINT `by_id`") {
        assert_eq!(
            number(&mut conn, "SELECT COUNT(*) FROM c WHERE p NOT IN (SELECT id FROM p)"),
            0
        );
    }
    assert!(text.contains("CONSTRAINT `by_u`"), "{text}");
    let orphans = "SELECT COUNT(*) FROM c WHERE q NOT IN (SELECT u FROM p WHERE u IS NOT NULL)";
    assert_eq!(number(&mut conn, orphans), 0);
    for table in ["p", "c"] {
        check(&mut conn, table);
    }
}

/// ALTER TABLE renames the old table aside and the copy into its place: between the two, the
/// parent's rows still have children.
#[test]
fn a_child_that_is_being_replaced_is_not_forgotten() {
    let server = Server::start(Options::new("fk_replaced"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        ],
    );
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|session| {
            let (stop, mut conn) = (Arc::clone(&stop), server.connect_to("test"));
            thread::spawn(move || {
                for n in (session..).step_by(3).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    run(
                        &mut conn,
                        &[
                            &format!("INSERT INTO p VALUES ({n})"),
                            &format!("INSERT INTO c VALUES ({n}, {n})"),
                            &format!("DELETE FROM p WHERE id = {n}"),
                        ],
                    );
                }
            })
        })
        .collect();
    let started = std::time::Instant::now();
    while started.elapsed() < Duration::from_secs(4) {
        run(&mut conn, &["ALTER TABLE c FORCE, ALGORITHM=COPY"]);
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().expect("no statement fails");
    }
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM c WHERE p NOT IN (SELECT id FROM p)"), 0);
}

/// A prepared transaction keeps no shared lock over a crash, and no metadata lock when its session
/// is gone; its rows are seen all the same.
#[test]
fn what_is_prepared_counts() {
    let mut server = Server::start(Options::new("fk_prepared").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id))",
            "CREATE TABLE late (id INT PRIMARY KEY)",
            "INSERT INTO p VALUES (1), (2)",
            "INSERT INTO late VALUES (2)",
        ],
    );
    let mut other = server.connect_to("test");
    let changes = ["XA START 'x'", "INSERT INTO c VALUES (1, 1)", "DELETE FROM p WHERE id = 2"];
    run(&mut other, &changes);
    run(&mut other, &["XA END 'x'", "XA PREPARE 'x'"]);
    drop(other);
    server.kill9();
    server.launch().expect("it recovers");
    conn = server.connect_to("test");
    run(&mut conn, &["SET lock_wait_timeout = 1"]);
    assert_eq!(code_of(&mut conn, "DELETE FROM p WHERE id = 1"), LOCK_WAIT_TIMEOUT);
    assert_eq!(code_of(&mut conn, "INSERT INTO c VALUES (2, 2)"), LOCK_WAIT_TIMEOUT);
    let add = "ALTER TABLE late ADD FOREIGN KEY (id) REFERENCES p (id)";
    assert_eq!(code_of(&mut conn, add), LOCK_WAIT_TIMEOUT);
    run(&mut conn, &["XA COMMIT 'x'"]);
    assert_eq!(code_of(&mut conn, "DELETE FROM p WHERE id = 1"), HAS_CHILDREN);
    assert_eq!(code_of(&mut conn, "INSERT INTO c VALUES (2, 2)"), NO_PARENT);
    assert_eq!(code_of(&mut conn, add), NO_PARENT);
}

/// A copy speaks of the parent by the name that it has when the copy takes its place.
#[test]
fn a_parent_is_not_renamed_under_a_copy_of_its_child() {
    let server = Server::start(Options::new("fk_renamed_parent"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id))",
            "INSERT INTO p VALUES (1)",
            "INSERT INTO c SELECT seq, 1 FROM seq_1_to_50000",
        ],
    );
    let mut other = server.connect_to("test");
    let names = ["p", "p2"];
    for round in 0..16 {
        let (from, to) = (names[round % 2], names[(round + 1) % 2]);
        let copy = thread::spawn(move || {
            let code = code_of(&mut other, "ALTER TABLE c FORCE, ALGORITHM=COPY");
            (other, code)
        });
        // Before the copy, and while it is made.
        sleep(Duration::from_millis(5 * round as u64));
        run(&mut conn, &[&format!("RENAME TABLE {from} TO {to}")]);
        let code;
        (other, code) = copy.join().expect("no panic");
        // It may have read the old name and not locked it yet. Neither waits for itself through the
        // other.
        assert!([0, CANT_CREATE].contains(&code), "round {round}: {code}");
        let text = definition(&mut conn, "c");
        assert!(text.contains(&format!("REFERENCES `{to}`")), "{text}");
        assert_eq!(code_of(&mut conn, &format!("DELETE FROM {to}")), HAS_CHILDREN);
        assert_eq!(code_of(&mut conn, "INSERT INTO c VALUES (0, 2)"), NO_PARENT);
    }
}

/// Columns that come and go without a copy leave the constraints, and rows of every version follow
/// them.
#[test]
fn rows_of_several_versions_have_parents_and_children() {
    let server = Server::start(Options::new("fk_versions"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY, u INT, x INT, UNIQUE (u))",
            "CREATE TABLE c (id INT PRIMARY KEY, x INT, p INT, FOREIGN KEY (p) REFERENCES p (u) ON DELETE CASCADE ON UPDATE CASCADE)",
            "INSERT INTO p VALUES (1, 1, 1), (2, 2, 2)",
            "INSERT INTO c VALUES (1, 1, 1), (2, 2, 2)",
            "ALTER TABLE p ADD a INT DEFAULT 7 FIRST",
            "ALTER TABLE c ADD a VARCHAR(10) DEFAULT 'new' FIRST",
            "ALTER TABLE c DROP x, ALGORITHM=COPY",
            "ALTER TABLE c ADD b INT DEFAULT 8 AFTER id",
            "INSERT INTO c (id, p) VALUES (3, 1)",
            "UPDATE p SET u = 10 WHERE u = 1",
        ],
    );
    let kept = rows(&mut conn, "SELECT a, id, b, p FROM c WHERE p = 10 ORDER BY id");
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(kept.iter().all(|row| row.contains("new")), "{kept:?}");
    assert_eq!(code_of(&mut conn, "INSERT INTO c (id, p) VALUES (4, 1)"), NO_PARENT);
    run(&mut conn, &["DELETE FROM p WHERE u = 2"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM c"), 2);
    assert!(definition(&mut conn, "c").contains("CONSTRAINT `c_ibfk_1`"));
    check(&mut conn, "c");
}

#[test]
fn a_generated_name_follows_its_table_and_a_users_own_does_not() {
    let server = Server::start(Options::new("fk_names"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE p (id INT PRIMARY KEY)"]);
    for (from, to, rename) in [
        ("a", "b", "RENAME TABLE a TO b"),
        ("c", "d", "ALTER TABLE c RENAME d"),
        ("e", "f", "ALTER TABLE e RENAME f, ADD y INT, ALGORITHM=COPY"),
    ] {
        let create = format!(
            "CREATE TABLE {from} (id INT PRIMARY KEY, x INT, FOREIGN KEY (x) REFERENCES p (id),
             CONSTRAINT {from}_ibfk_own FOREIGN KEY (id) REFERENCES p (id))"
        );
        run(&mut conn, &[&create, rename]);
        let definition = definition(&mut conn, to);
        for name in [format!("{to}_ibfk_1"), format!("{from}_ibfk_own")] {
            assert!(definition.contains(&format!("CONSTRAINT `{name}`")), "{rename}: {definition}");
        }
    }
}
