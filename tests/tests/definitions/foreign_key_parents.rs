//! What becomes of a foreign key's other table: it is gone, or no longer fits, and rows that keep
//! their key are none of its business; it is altered while the key is being made; it is dropped or
//! rebuilt while handlers that no session uses have it open.

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use mysql::Conn;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{check, code_of, number, run};

const PATIENCE: Duration = Duration::from_secs(60);
const NO_PARENT: u16 = 1452;
const HAS_CHILDREN: u16 = 1451;
const CANT_CREATE: u16 = 1005;
const INDEX_IS_NEEDED: u16 = 1553;
const COLUMN_IS_REFERENCED: u16 = 1829;
const COLUMN_CANT_CHANGE: u16 = 1833;
const NOT_OF_PARTITIONS: u16 = 1506;

/// InnoDB checks a change of the primary key, too, for that is in the entries of the key's index.
#[test]
fn an_update_that_keeps_the_key_needs_no_parent() {
    let server = Server::start(Options::new("fk_no_parent").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE p (id INT PRIMARY KEY)",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, s VARCHAR(20), n INT, KEY (p),
                CONSTRAINT k FOREIGN KEY (p) REFERENCES p (id) ON UPDATE CASCADE)",
            "INSERT INTO p VALUES (1), (2)",
            "INSERT INTO c VALUES (1, 1, 'a', 0), (2, 2, 'b', 0), (3, NULL, 'c', 0)",
            // The handler knows the parent by now.
            "UPDATE c SET n = 1",
            "SET foreign_key_checks = 0",
            "DROP TABLE p",
            "SET foreign_key_checks = 1",
            "UPDATE c SET n = n + 1",
            "UPDATE c SET s = CONCAT(s, s), p = p",
            "INSERT INTO c VALUES (1, 1, 'a', 0) ON DUPLICATE KEY UPDATE n = 5",
            "UPDATE c SET id = 10 WHERE id = 2",
        ],
    );
    assert_eq!(number(&mut conn, "SELECT SUM(n) FROM c"), 9);
    for change in [
        "UPDATE c SET p = 2 WHERE id = 1",
        "UPDATE c SET n = 7, p = p + 1 WHERE id = 1",
        "INSERT INTO c VALUES (4, 1, 'd', 0)",
        "INSERT INTO c VALUES (1, 1, 'a', 0) ON DUPLICATE KEY UPDATE p = 3",
    ] {
        assert_eq!(code_of(&mut conn, change), NO_PARENT, "{change}");
    }
    // What has no value references nothing.
    run(&mut conn, &["UPDATE c SET p = NULL WHERE id = 10", "INSERT INTO c (id) VALUES (5)"]);
    check(&mut conn, "c");
}

/// The same of a parent's rows, where the children's column has another type; and where the parent
/// has lost its index.
#[test]
fn an_update_that_keeps_the_key_needs_no_fitting_child() {
    let server = Server::start(Options::new("fk_unfit").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "SET foreign_key_checks = 0",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, n INT, KEY (p),
                FOREIGN KEY (p) REFERENCES p (u))",
            "CREATE TABLE p (id INT PRIMARY KEY, u BIGINT, n INT, KEY (u))",
            "INSERT INTO p VALUES (1, 1, 0), (2, 2, 0)",
            "INSERT INTO c VALUES (1, 1, 0)",
            "SET foreign_key_checks = 1",
            "UPDATE p SET n = n + 1",
            "UPDATE p SET u = u, id = id + 10",
            "UPDATE c SET n = n + 1, p = p",
        ],
    );
    assert_eq!(code_of(&mut conn, "UPDATE p SET u = 7 WHERE u = 2"), HAS_CHILDREN);
    assert_eq!(code_of(&mut conn, "DELETE FROM p WHERE u = 2"), HAS_CHILDREN);
    assert_eq!(code_of(&mut conn, "UPDATE c SET p = 2"), NO_PARENT);
    run(
        &mut conn,
        &[
            "SET foreign_key_checks = 0",
            "DROP TABLE p",
            "CREATE TABLE p (id INT PRIMARY KEY, u INT, n INT, KEY (u))",
            "INSERT INTO p VALUES (1, 1, 0), (2, 2, 0)",
            "SET foreign_key_checks = 1",
            "UPDATE c SET p = 2",
            "SET foreign_key_checks = 0",
            "ALTER TABLE p DROP KEY u",
            "SET foreign_key_checks = 1",
            "UPDATE c SET n = n + 1, p = p",
            "UPDATE p SET n = n + 1",
        ],
    );
    assert_eq!(code_of(&mut conn, "UPDATE c SET p = 1"), NO_PARENT);
    assert_eq!(code_of(&mut conn, "DELETE FROM p WHERE u = 2"), HAS_CHILDREN);
    run(&mut conn, &["DELETE FROM p WHERE u = 1"]);
    assert_eq!(number(&mut conn, "SELECT SUM(n) FROM c"), 2);
    for table in ["p", "c"] {
        check(&mut conn, table);
    }
}

const PARENT: [&str; 3] = [
    "DROP TABLE IF EXISTS c, p, q",
    "CREATE TABLE p (id INT PRIMARY KEY, u INT, s VARCHAR(100), KEY u (u))",
    "INSERT INTO p SELECT seq, seq, REPEAT(seq, 10) FROM seq_1_to_60000",
];
const WITH_KEY: &str = "CREATE TABLE c (u INT, KEY (u), FOREIGN KEY (u) REFERENCES p (u))";
const ADD_KEY: &str = "ALTER TABLE c ADD FOREIGN KEY (u) REFERENCES p (u)";

/// Begins to alter the parent, and runs `make` when it is at work. The errors of both.
fn meet(server: &Server, conn: &mut Conn, alter: &str, make: &str) -> (u16, u16) {
    let mut altering = server.connect_to("test");
    let at_work = format!(
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST
         WHERE STATE IN ('altering table', 'copy to tmp table') AND ID = {}",
        altering.connection_id()
    );
    thread::scope(|scope| {
        let altering = scope.spawn(move || code_of(&mut altering, alter));
        while number(conn, &at_work) == 0 && !altering.is_finished() {}
        let made = code_of(conn, make);
        (altering.join().expect("no panic"), made)
    })
}

/// A CREATE TABLE looks at its parent as it is, and does not wait for a statement that is altering
/// it. That statement looks for new children before it ends.
#[test]
fn a_key_that_is_made_while_its_parent_is_altered_stops_the_alter() {
    let server = Server::start(Options::new("fk_parent_altered").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    for (alter, code) in [
        ("DROP KEY u, ADD KEY s (s), ALGORITHM=NOCOPY, LOCK=NONE", INDEX_IS_NEEDED),
        ("DROP COLUMN u, ADD KEY s (s), ALGORITHM=NOCOPY, LOCK=NONE", COLUMN_IS_REFERENCED),
        ("MODIFY u BIGINT, ALGORITHM=INPLACE, LOCK=NONE", COLUMN_CANT_CHANGE),
        ("DROP KEY u, ALGORITHM=COPY", INDEX_IS_NEEDED),
        ("CHANGE u v INT, ALGORITHM=COPY", COLUMN_IS_REFERENCED),
        ("MODIFY u BIGINT, ALGORITHM=COPY", COLUMN_CANT_CHANGE),
        ("DROP KEY u, RENAME TO q, ALGORITHM=COPY", INDEX_IS_NEEDED),
        ("PARTITION BY HASH (id) PARTITIONS 2", NOT_OF_PARTITIONS),
    ] {
        let statement = format!("ALTER TABLE p {alter}");
        let has_met = (0..50).any(|_| {
            run(&mut conn, &PARENT);
            match meet(&server, &mut conn, &statement, WITH_KEY) {
                // The ALTER was over before the key came.
                (0, CANT_CREATE) => false,
                codes => {
                    assert_eq!(codes, (code, 0), "{alter}");
                    true
                }
            }
        });
        assert!(has_met, "{alter}");
        // The parent is as it was, and is one.
        run(&mut conn, &["INSERT INTO c VALUES (1), (60000)"]);
        assert_eq!(code_of(&mut conn, "INSERT INTO c VALUES (-1)"), NO_PARENT, "{alter}");
        assert_eq!(code_of(&mut conn, "DELETE FROM p WHERE u = 1"), HAS_CHILDREN, "{alter}");
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM p FORCE INDEX (u)"), 60_000);
        check(&mut conn, "p");
        run(&mut conn, &["DROP TABLE c", &statement]);
    }
}

/// What may be done to a parent goes on: its children follow.
#[test]
fn a_key_that_is_made_while_its_parent_is_altered_goes_with_it() {
    let server = Server::start(Options::new("fk_parent_follows").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    for (alter, parent, column) in [
        ("CHANGE u v INT, ADD n INT, ADD KEY s (s), ALGORITHM=NOCOPY, LOCK=NONE", "p", "v"),
        ("ADD KEY s (s), DROP KEY u, ADD KEY us (u, s), ALGORITHM=NOCOPY, LOCK=NONE", "p", "u"),
        ("FORCE, ALGORITHM=INPLACE, LOCK=NONE", "p", "u"),
        ("ADD n INT, RENAME TO q, ALGORITHM=COPY", "q", "u"),
    ] {
        let statement = format!("ALTER TABLE p {alter}");
        let has_met = (0..50).any(|_| {
            run(&mut conn, &PARENT);
            match meet(&server, &mut conn, &statement, WITH_KEY) {
                (0, CANT_CREATE) => false,
                codes => {
                    assert_eq!(codes, (0, 0), "{alter}");
                    // Where the names stay, both orders look alike.
                    true
                }
            }
        });
        assert!(has_met, "{alter}");
        run(&mut conn, &["INSERT INTO c VALUES (1), (60000)"]);
        assert_eq!(code_of(&mut conn, "INSERT INTO c VALUES (-1)"), NO_PARENT, "{alter}");
        let delete = format!("DELETE FROM {parent} WHERE {column} = 1");
        assert_eq!(code_of(&mut conn, &delete), HAS_CHILDREN, "{alter}");
        check(&mut conn, parent);
    }
}

/// Metadata locks have these wait for each other: ALTER TABLE … ADD FOREIGN KEY has one that
/// excludes an ALTER of the parent, also with `foreign_key_checks` off. DROP TABLE excludes all.
#[test]
fn a_key_that_is_added_and_a_change_of_its_parent_come_one_after_the_other() {
    let server = Server::start(Options::new("fk_parent_waits").engine(Engine::Tidepool));
    let (mut conn, mut other) = (server.connect_to("test"), server.connect_to("test"));
    let unchecked = format!("SET STATEMENT foreign_key_checks = 0 FOR {ADD_KEY}");
    let drop = "ALTER TABLE p DROP KEY u, ADD KEY s (s), ALGORITHM=NOCOPY, LOCK=NONE";
    for add in [ADD_KEY, &unchecked] {
        run(&mut conn, &PARENT);
        run(&mut conn, &["CREATE TABLE c (u INT, KEY (u))", "INSERT INTO c VALUES (1)"]);
        assert_eq!(meet(&server, &mut conn, drop, add), (0, CANT_CREATE), "{add}");
    }
    for (one, two, outcomes) in [
        (ADD_KEY, drop, [(0, INDEX_IS_NEEDED), (CANT_CREATE, 0)]),
        (&unchecked, drop, [(0, INDEX_IS_NEEDED), (CANT_CREATE, 0)]),
        (ADD_KEY, "DROP TABLE p", [(0, HAS_CHILDREN), (CANT_CREATE, 0)]),
        (WITH_KEY, "DROP TABLE p", [(0, HAS_CHILDREN), (CANT_CREATE, 0)]),
    ] {
        for round in 0..20 {
            run(
                &mut conn,
                &[PARENT[0], PARENT[1], "INSERT INTO p SELECT seq, seq, 'x' FROM seq_1_to_100"],
            );
            if one != WITH_KEY {
                run(&mut conn, &["CREATE TABLE c (u INT, KEY (u))", "INSERT INTO c VALUES (1)"]);
            }
            let both = Barrier::new(2);
            let codes = thread::scope(|scope| {
                let second = scope.spawn(|| {
                    both.wait();
                    code_of(&mut other, two)
                });
                both.wait();
                let first = code_of(&mut conn, one);
                (first, second.join().expect("no panic"))
            });
            assert!(outcomes.contains(&codes), "{one}, {two}, round {round}: {codes:?}");
        }
    }
}

/// Files of tables that are no more, and that the server has open.
fn open_and_gone(server: &Server) -> Vec<String> {
    let pid = server.pid().expect("the server runs");
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("its open files");
    descriptors
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .map(|file| file.to_string_lossy().into_owned())
        .filter(|file| file.contains("/tidepool/tables/") && file.ends_with("(deleted)"))
        .collect()
}

/// A handler of the table at the other end stays in the server's cache when its statement is over.
#[test]
fn a_table_that_is_dropped_or_rebuilt_leaves_no_file_open_at_the_other_end() {
    let server = Server::start(Options::new("fk_open_files").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    // What a statement makes of one of the tables, while handlers of the other have it open.
    for change in [
        "SET STATEMENT foreign_key_checks = 0 FOR DROP TABLE p",
        "DROP TABLE c",
        "ALTER TABLE p FORCE, ALGORITHM=INPLACE",
        "ALTER TABLE c FORCE, ALGORITHM=INPLACE",
        "ALTER TABLE p FORCE, ALGORITHM=COPY",
        "ALTER TABLE c FORCE, ALGORITHM=COPY",
        "TRUNCATE TABLE c",
        "ALTER TABLE c DROP FOREIGN KEY k; DROP TABLE p",
        "DROP TABLE c; DROP TABLE p",
    ] {
        run(
            &mut conn,
            &[
                "DROP TABLE IF EXISTS c, p",
                "CREATE TABLE p (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES p (id))",
                "CREATE TABLE c (id INT PRIMARY KEY, p INT, KEY (p),
                    CONSTRAINT k FOREIGN KEY (p) REFERENCES p (id))",
            ],
        );
        // Several handlers of each.
        let mut sessions: Vec<Conn> = (0..4).map(|_| server.connect_to("test")).collect();
        for (n, session) in sessions.iter_mut().enumerate() {
            run(
                session,
                &[
                    "BEGIN",
                    &format!("INSERT INTO p VALUES ({n}, NULL), (100 + {n}, {n})"),
                    &format!("INSERT INTO c VALUES ({n}, {n})"),
                    &format!("DELETE FROM p WHERE id = 100 + {n}"),
                ],
            );
        }
        for session in &mut sessions {
            run(session, &["COMMIT"]);
        }
        for statement in change.split("; ") {
            run(&mut conn, &[statement]);
        }
        // Purge and the like may have it for a moment; a handler would keep it.
        wait_until(PATIENCE, change, || open_and_gone(&server).is_empty());
        // The sessions go on with what is there now.
        for (n, session) in sessions.iter_mut().enumerate() {
            let insert = format!("INSERT INTO c VALUES (10 + {n}, {n})");
            let code = code_of(session, &insert);
            assert!([0, NO_PARENT, 1146].contains(&code), "{change}: {code}");
            let delete = format!("DELETE FROM p WHERE id = {n}");
            let code = code_of(session, &delete);
            assert!([0, HAS_CHILDREN, 1146].contains(&code), "{change}: {code}");
        }
    }
}
