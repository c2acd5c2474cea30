//! ADD INDEX, and ALTER TABLE that writes all rows anew, with LOCK=NONE: sessions write the table
//! while the statement runs. Afterwards the table has their rows, in all indexes. A duplicate that
//! a session makes fails the ALTER, never the session.

mod computed;
mod rebuild;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::prelude::*;
use rand::rngs::StdRng;
use tidepool_tests::server::{Options, Server, wait_until};
use tidepool_tests::sql::{check, code_of, number, run, sorted_rows};

const DUPLICATE: u16 = 1062;
const INTERRUPTED: u16 = 1317;
/// A lock wait that timed out, a deadlock, a row that has changed, a duplicate, a snapshot older
/// than the table's definition, a constraint.
const MAY_FAIL: [u16; 7] = [1205, 1213, 1020, DUPLICATE, 1412, 1451, 1452];
const PATIENCE: Duration = Duration::from_secs(60);

const TABLES: [&str; 4] = ["by_int", "by_text", "by_row_id", "parted"];

fn create(conn: &mut Conn) {
    let columns = "id INT NOT NULL, a INT, b VARCHAR(30) CHARACTER SET utf8mb4, c TEXT,
        d INT NOT NULL DEFAULT 0, p INT";
    run(
        conn,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "INSERT INTO parent SELECT seq FROM seq_1_to_50",
            &format!(
                "CREATE TABLE by_int ({columns}, PRIMARY KEY (id), KEY p (p), \
                 FOREIGN KEY (p) REFERENCES parent (id) ON DELETE SET NULL ON UPDATE CASCADE)"
            ),
            &format!("CREATE TABLE by_text ({columns}, PRIMARY KEY (b, id))"),
            &format!("CREATE TABLE by_row_id ({columns}, KEY id (id))"),
            &format!(
                "CREATE TABLE parted ({columns}, PRIMARY KEY (id))
                 PARTITION BY HASH (id) PARTITIONS 3"
            ),
        ],
    );
    for table in TABLES {
        run(
            conn,
            &[&format!(
                "INSERT INTO {table} (id, a, b, c, p) SELECT seq, seq % 300, CONCAT('v', seq), \
                 REPEAT('long ', seq % 300), IF(seq % 3, seq % 50 + 1, NULL) FROM seq_1_to_6000"
            )],
        );
    }
}

/// Statements of one session until it is to stop: of each, that it was refused by what may refuse
/// it, or done.
fn write(conn: &mut Conn, seed: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut random = StdRng::seed_from_u64(seed);
    run(conn, &["SET lock_wait_timeout = 20, tidepool_lock_wait_timeout = 1"]);
    while !stop.load(Ordering::Relaxed) {
        let table = TABLES[random.random_range(0..TABLES.len())];
        let id = random.random_range(1..8000);
        let other = random.random_range(1..1_000_000_000);
        let statements = [
            format!("UPDATE {table} SET a = a + 1, b = CONCAT('w', {other}) WHERE id = {id}"),
            format!(
                "UPDATE {table} SET c = REPEAT('x', {other} % 2000)
                 WHERE id BETWEEN {id} AND {id} + 5"
            ),
            format!("UPDATE {table} SET id = {other} WHERE id = {id}"),
            format!("DELETE FROM {table} WHERE id = {id}"),
            format!(
                "INSERT INTO {table} (id, a, b)
                 VALUES ({id}, NULL, 'i{other}'), ({other}, {id}, 'i{id}')"
            ),
            format!(
                "REPLACE INTO {table} (id, a, b, c) VALUES ({id}, {id}, 'r{other}', 'replaced')"
            ),
            format!(
                "INSERT INTO {table} (id, a, b) VALUES ({id}, 1, 'd{other}')
                 ON DUPLICATE KEY UPDATE a = a - 1, b = 'd{other}'"
            ),
            format!("UPDATE parent SET id = id + 1000 WHERE id = {}", id % 50 + 1),
            format!("DELETE FROM parent WHERE id = {}", id % 50 + 1),
            format!("INSERT IGNORE INTO parent VALUES ({})", id % 50 + 1),
            "SAVEPOINT s".to_string(),
            "ROLLBACK TO SAVEPOINT s".to_string(),
            "BEGIN".to_string(),
            "COMMIT".to_string(),
            "ROLLBACK".to_string(),
        ];
        let statement = &statements[random.random_range(0..statements.len())];
        let code = code_of(conn, statement);
        // There is no such savepoint.
        let is_void = code == 1305 && statement.contains("SAVEPOINT");
        assert!(code == 0 || is_void || MAY_FAIL.contains(&code), "{statement}: {code}");
        done.fetch_add(u64::from(code == 0), Ordering::Relaxed);
    }
    run(conn, &["COMMIT"]);
}

struct Writers {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

/// What a session does, from this seed on, until it must stop; it counts what is done.
type Write = fn(&mut Conn, u64, &AtomicBool, &AtomicU64);

impl Writers {
    fn start(server: &Server, count: u64, write: Write) -> Writers {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let begin = |seed| {
            let (mut conn, stop, done) = (server.connect_to("test"), stop.clone(), done.clone());
            thread::spawn(move || write(&mut conn, seed, &stop, &done))
        };
        let threads = (0..count).map(begin).collect();
        Writers { stop, done, threads }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no panic");
        }
    }
}

/// Each index, named with its first column, has the rows that the table has.
fn agree(conn: &mut Conn, table: &str, indexes: &[(&str, &str)]) {
    let whole = sorted_rows(conn, &format!("SELECT * FROM {table}"));
    for (index, column) in indexes {
        let read = format!("SELECT * FROM {table} FORCE INDEX ({index}) ORDER BY {column}");
        assert!(sorted_rows(conn, &read) == whole, "{table}.{index}");
    }
    check(conn, table);
}

#[test]
fn indexes_built_beside_writers_have_their_rows() {
    let server = Server::start(Options::new("beside_writers"));
    let mut conn = server.connect_to("test");
    create(&mut conn);
    let writers = Writers::start(&server, 4, write);
    let mut written = 0;
    let (mut added, mut refused) = (0, 0);
    for round in 0..4 {
        for table in TABLES {
            // A unique key of a partitioned table has the columns that place its rows.
            let unique = match (table, round % 2) {
                ("parted", _) => "ADD UNIQUE INDEX b (b, id)",
                (_, 0) => "ADD INDEX b (b(5) DESC, id)",
                _ => "ADD UNIQUE INDEX b (b)",
            };
            let alter = format!(
                "ALTER TABLE {table} ADD INDEX a (a), {unique}, ADD INDEX d (d, c(10)), \
                 ADD COLUMN e{round} INT DEFAULT 7, \
                 ALGORITHM=NOCOPY, LOCK=NONE"
            );
            let before = writers.done();
            let code = code_of(&mut conn, &alter);
            written += writers.done() - before;
            assert!(code == 0 || code == DUPLICATE && alter.contains("UNIQUE"), "{alter}: {code}");
            if code != 0 {
                refused += 1;
                continue;
            }
            added += 1;
            run(
                &mut conn,
                &[&format!(
                    "ALTER TABLE {table} ADD INDEX e (e{round}, a), ALGORITHM=INPLACE, LOCK=NONE"
                )],
            );
            // Readers see one state of the table; writers go on.
            run(&mut conn, &["BEGIN", "SELECT 1 FROM parent LIMIT 1"]);
            let e = format!("e{round}");
            agree(&mut conn, table, &[("a", "a"), ("b", "b"), ("d", "d"), ("e", &e)]);
            run(
                &mut conn,
                &[
                    "COMMIT",
                    &format!(
                        "ALTER TABLE {table} DROP INDEX a, DROP INDEX b, DROP INDEX d, DROP INDEX e"
                    ),
                ],
            );
        }
    }
    for table in TABLES {
        run(&mut conn, &[&format!("ALTER TABLE {table} ADD INDEX a (a, b(3)), LOCK=NONE")]);
    }
    writers.end();
    for table in TABLES {
        agree(&mut conn, table, &[("a", "a")]);
    }
    assert!(added >= 8 && written > 20, "{added} added, {refused} refused, {written} statements");
    let mut server = server;
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    for table in TABLES {
        agree(&mut conn, table, &[("a", "a")]);
    }
}

/// An ALTER in another session, held in its rounds by a transaction that has written much.
struct Held {
    altering: JoinHandle<(u16, String)>,
    id: u32,
    holder: Conn,
}

const STATE: &str = "SELECT COUNT(*) FROM information_schema.PROCESSLIST
    WHERE STATE LIKE 'altering table' AND ID = ";

/// The holder begins to write when the build has begun, and if the build is over before it has
/// written, all of it is done again.
fn hold(server: &Server, conn: &mut Conn, statement: &str, undo: &str) -> Held {
    for _ in 0..50 {
        let mut altering = server.connect_to("test");
        let mut holder = server.connect_to("test");
        let id = altering.connection_id();
        let text = statement.to_string();
        let thread = thread::spawn(move || match altering.query_drop(text) {
            Ok(()) => (0, String::new()),
            Err(mysql::Error::MySqlError(error)) => (error.code, error.message),
            Err(error) => panic!("{error}"),
        });
        let state = format!("{STATE}{id}");
        while number(conn, &state) == 0 && !thread.is_finished() {}
        run(
            &mut holder,
            &["BEGIN", "UPDATE t SET pad = CONCAT('held', CONNECTION_ID()) WHERE id <= 700"],
        );
        thread::sleep(Duration::from_millis(500));
        if !thread.is_finished() && number(conn, &state) == 1 {
            return Held { altering: thread, id, holder };
        }
        run(&mut holder, &["ROLLBACK"]);
        assert_eq!(thread.join().expect("no panic").0, 0);
        run(conn, &[undo]);
    }
    panic!("the build is always over before a row is written");
}

const LARGE: &[&str] = &[
    "CREATE TABLE t (id INT PRIMARY KEY, u VARCHAR(20) NOT NULL, n INT,
         pad CHAR(60) NOT NULL DEFAULT 'x', KEY pad (pad))",
    "INSERT INTO t (id, u, n) SELECT seq, CONCAT('u', seq), seq FROM seq_1_to_300000",
];
const ADD: &str = "ALTER TABLE t ADD UNIQUE INDEX u (u), ALGORITHM=NOCOPY, LOCK=NONE";
const DROP: &str = "ALTER TABLE t DROP INDEX u";

#[test]
fn a_duplicate_by_a_writer_fails_the_alter_alone() {
    let server = Server::start(Options::new("duplicate_beside"));
    let mut conn = server.connect_to("test");
    run(&mut conn, LARGE);
    let mut held = hold(&server, &mut conn, ADD, DROP);
    // What is undone, and what is gone before it is committed, is no duplicate.
    run(
        &mut conn,
        &[
            "BEGIN",
            "INSERT INTO t (id, u) VALUES (400001, 'u5000')",
            "ROLLBACK",
            "BEGIN",
            "INSERT INTO t (id, u) VALUES (400001, 'u5001')",
            "DELETE FROM t WHERE id = 5001",
            "COMMIT",
        ],
    );
    thread::sleep(Duration::from_millis(400));
    assert!(!held.altering.is_finished());
    run(&mut conn, &["INSERT INTO t (id, u) VALUES (400002, 'U77')"]);
    let (code, message) = held.altering.join().expect("no panic");
    assert_eq!(code, DUPLICATE);
    assert!(message.ends_with("Duplicate entry 'U77' for key 'u'"), "{message}");
    run(&mut held.holder, &["UPDATE t SET n = 0 WHERE id = 5", "COMMIT"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t WHERE pad LIKE 'held%'"), 700);
    assert_eq!(code_of(&mut conn, "SELECT 1 FROM t FORCE INDEX (u)"), 1176);
    check(&mut conn, "t");
    run(&mut conn, &["DELETE FROM t WHERE id = 400002", ADD]);
    assert_eq!(code_of(&mut conn, "INSERT INTO t (id, u) VALUES (400003, 'u77')"), DUPLICATE);
    agree(&mut conn, "t", &[("u", "u")]);
}

#[test]
fn a_held_build_shows_its_stage_and_ends_when_it_is_killed() {
    let server = Server::start(Options::new("killed_beside"));
    let mut conn = server.connect_to("test");
    run(&mut conn, LARGE);
    let mut held = hold(&server, &mut conn, ADD, DROP);
    let stage = format!(
        "SELECT STAGE * 10 + MAX_STAGE FROM information_schema.PROCESSLIST WHERE ID = {}",
        held.id
    );
    wait_until(PATIENCE, "the last stage of three", || number(&mut conn, &stage) == 33);
    // Others write all the time.
    run(
        &mut conn,
        &["UPDATE t SET n = n + 1 WHERE id = 50000", &format!("KILL QUERY {}", held.id)],
    );
    wait_until(PATIENCE, "the ALTER to end", || held.altering.is_finished());
    assert_eq!(held.altering.join().expect("no panic").0, INTERRUPTED);
    run(&mut held.holder, &["COMMIT"]);
    check(&mut conn, "t");

    // A holder that rolls back, and one that is prepared: the ALTER waits for it.
    let mut held = hold(&server, &mut conn, ADD, DROP);
    run(&mut held.holder, &["ROLLBACK"]);
    assert_eq!(held.altering.join().expect("no panic"), (0, String::new()));
    agree(&mut conn, "t", &[("u", "u")]);
    run(&mut conn, &[DROP]);

    let mut server = server;
    let mut held = hold(&server, &mut conn, ADD, DROP);
    run(&mut conn, &["UPDATE t SET u = CONCAT('w', id) WHERE id = 60000"]);
    server.kill9();
    assert_ne!(held.altering.join().unwrap_or((1, String::new())).0, 0);
    assert!(held.holder.query_drop("COMMIT").is_err());
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(code_of(&mut conn, "SELECT 1 FROM t FORCE INDEX (u)"), 1176);
    check(&mut conn, "t");
    run(&mut conn, &[ADD]);
    agree(&mut conn, "t", &[("u", "u")]);
    assert_eq!(number(&mut conn, "SELECT id FROM t WHERE u = 'w60000'"), 60000);
}
