//! Rows that move along an index while a statement locks what it reads there: the statement meets
//! each row that matches all the time, or ends with an error. And the error is for nothing else.

use std::thread;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{check, number, run};

const CHECKREAD: u16 = 1020;
/// Nothing here takes long.
const PATIENCE: Duration = Duration::from_secs(60);

fn server(name: &str) -> Server {
    let server = Server::start(Options::new(name).engine(Engine::Tidepool));
    run(
        &mut server.connect_to("test"),
        &[
            "CREATE TABLE mv (id INT PRIMARY KEY, k INT, u INT, v INT DEFAULT 0, KEY k (k), UNIQUE u (u))",
            "CREATE TABLE other (id INT PRIMARY KEY, k INT)",
        ],
    );
    server
}

/// What became of a statement: the error's code, or the rows that it has changed or given.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Error(u16),
    Changed(u64),
    Gave(Vec<i64>),
}

fn outcome(conn: &mut Conn, statement: &str) -> Outcome {
    if statement.starts_with("SELECT") {
        return match conn.query::<i64, _>(statement) {
            Ok(ids) => Outcome::Gave(ids),
            Err(mysql::Error::MySqlError(error)) => Outcome::Error(error.code),
            Err(error) => panic!("{statement}: {error}"),
        };
    }
    match conn.query_drop(statement) {
        Ok(()) => Outcome::Changed(conn.affected_rows()),
        Err(mysql::Error::MySqlError(error)) => Outcome::Error(error.code),
        Err(error) => panic!("{statement}: {error}"),
    }
}

/// The statement, in a transaction of the level that has read nothing, begins and waits in the
/// middle for the row 30, which another transaction has changed; meanwhile `moves` are done and
/// committed. What becomes of the statement.
fn race(server: &Server, level: &str, sql: &str, moves: &[&str]) -> Outcome {
    let (mut holder, mut mover) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut holder,
        &[
            "DELETE FROM mv",
            "DELETE FROM other",
            "INSERT INTO mv SELECT seq, seq * 10, seq * 10, 0 FROM seq_1_to_60",
            "INSERT INTO other SELECT seq, seq * 10 FROM seq_1_to_60 UNION SELECT 0, 15",
            "BEGIN",
            "UPDATE mv SET v = v + 100 WHERE id = 30",
        ],
    );
    thread::scope(|scope| {
        let statement = scope.spawn(|| {
            let mut conn = server.connect_to("test");
            let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
            run(&mut conn, &[&set, "SET SESSION optimizer_switch = 'rowid_filter=off'", "BEGIN"]);
            let outcome = outcome(&mut conn, sql);
            run(&mut conn, &["ROLLBACK"]);
            outcome
        });
        let waits =
            "SELECT COUNT(*) FROM information_schema.TIDEPOOL_TRX WHERE trx_state = 'LOCK WAIT'";
        wait_until(PATIENCE, statement_waits(), || {
            statement.is_finished() || number(&mut mover, waits) == 1
        });
        if statement.is_finished() {
            panic!("{sql} did not wait: {:?}", statement.join());
        }
        for one in moves {
            run(&mut mover, &[one]);
        }
        run(&mut holder, &["COMMIT"]);
        statement.join().expect("the statement's thread")
    })
}

fn statement_waits() -> &'static str {
    "the statement waits"
}

const LEVELS: [&str; 3] = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ"];

#[test]
fn a_statement_that_would_miss_a_row_ends_with_an_error() {
    let server = server("moved_rows");
    let behind: &[&str] = &["UPDATE mv SET k = 5, u = 5 WHERE id = 50"];
    let cases: &[(&str, &[&str])] = &[
        ("UPDATE mv FORCE INDEX (k) SET v = v + 1 WHERE k >= 0", behind),
        ("DELETE mv FROM mv FORCE INDEX (k) WHERE k >= 0", behind),
        ("SELECT id + v * 0 FROM mv FORCE INDEX (k) WHERE k >= 0 FOR UPDATE", behind),
        ("SELECT id + v * 0 FROM mv FORCE INDEX (k) WHERE k >= 0 LOCK IN SHARE MODE", behind),
        ("UPDATE mv FORCE INDEX (u) SET v = v + 1 WHERE u >= 0", behind),
        ("SELECT id + v * 0 FROM mv FORCE INDEX (u) WHERE u IN (5, 300, 500) FOR UPDATE", behind),
        ("SELECT id + v * 0 FROM mv FORCE INDEX (k) WHERE k IN (5, 300, 500) FOR UPDATE", behind),
        (
            "SELECT id + v * 0 FROM mv FORCE INDEX (k) WHERE k <= 1000 ORDER BY k DESC FOR UPDATE",
            &["UPDATE mv SET k = 1000 WHERE id = 10"],
        ),
        // By the primary key, and rows that change theirs.
        (
            "UPDATE mv FORCE INDEX (PRIMARY) SET v = v + 1 WHERE id >= -100",
            &["UPDATE mv SET id = -5 WHERE id = 50"],
        ),
        (
            "SELECT id + v * 0 FROM mv FORCE INDEX (k) WHERE k >= 0 FOR UPDATE",
            &["UPDATE mv SET id = -5, k = 5 WHERE id = 50"],
        ),
        // First ahead, then behind.
        (
            "UPDATE mv FORCE INDEX (k) SET v = v + 1 WHERE k >= 0",
            &["UPDATE mv SET k = 550 WHERE id = 50", "UPDATE mv SET k = 5 WHERE id = 50"],
        ),
        // Another row comes to the place that the row has left, or comes and goes.
        (
            "UPDATE mv FORCE INDEX (PRIMARY) SET v = v + 1 WHERE id >= -100",
            &["UPDATE mv SET id = -5 WHERE id = 50", "INSERT INTO mv VALUES (50, 7, 7, 0)"],
        ),
        (
            "UPDATE mv FORCE INDEX (PRIMARY) SET v = v + 1 WHERE id >= -100",
            &["UPDATE mv SET id = -5 WHERE id = 50", "UPDATE mv SET id = 50 WHERE id = 60"],
        ),
        (
            "UPDATE mv FORCE INDEX (PRIMARY) SET v = v + 1 WHERE id >= -100",
            &[
                "UPDATE mv SET id = -5 WHERE id = 50",
                "INSERT INTO mv VALUES (50, 7, 7, 0)",
                "UPDATE mv SET v = 5 WHERE id = 50",
                "DELETE FROM mv WHERE id = 50",
            ],
        ),
        (
            "SELECT id + v * 0 FROM mv FORCE INDEX (u) WHERE u IN (5, 300, 500) FOR UPDATE",
            &["UPDATE mv SET u = 5 WHERE id = 50", "UPDATE mv SET u = 500 WHERE id = 60"],
        ),
        // The inner table of a join.
        (
            "SELECT STRAIGHT_JOIN mv.id + mv.v * 0 FROM other JOIN mv FORCE INDEX (k) ON mv.k = other.k - 5 + 5 ORDER BY other.id FOR UPDATE",
            &["UPDATE mv SET k = 15 WHERE id = 50"],
        ),
        // What a statement reads to copy it.
        (
            "INSERT INTO other SELECT id + 1000 + v * 0, k FROM mv FORCE INDEX (k) WHERE k >= 0 FOR UPDATE",
            behind,
        ),
        (
            "REPLACE INTO other SELECT id + v * 0, k FROM mv FORCE INDEX (k) WHERE k >= 0 LOCK IN SHARE MODE",
            behind,
        ),
    ];
    for level in LEVELS {
        for (statement, moves) in cases {
            let outcome = race(&server, level, statement, moves);
            assert_eq!(outcome, Outcome::Error(CHECKREAD), "{level}: {statement}");
        }
    }
    let mut conn = server.connect_to("test");
    run(&mut conn, &["SET GLOBAL tidepool_lost_update_check = OFF"]);
    let (statement, moves) = cases[0];
    let outcome = race(&server, "REPEATABLE READ", statement, moves);
    assert_eq!(
        outcome,
        Outcome::Error(CHECKREAD),
        "without refusing what the snapshot doesn't see"
    );
    run(&mut conn, &["SET GLOBAL tidepool_lost_update_check = ON"]);
    check(&mut conn, "mv");
}

/// At these levels a statement leaves rows unlocked that it does not want, or that others have
/// locked.
#[test]
fn a_row_that_moves_where_others_move_too_is_not_missed() {
    let server = server("moved_rows_beside_others");
    let cases: &[(&str, &[&str])] = &[
        // Two rows change places, by one transaction.
        (
            "UPDATE mv FORCE INDEX (PRIMARY) SET v = v + 1 WHERE id >= -100 AND k <> 50",
            &[
                "BEGIN",
                "UPDATE mv SET id = 100 WHERE id = 5",
                "UPDATE mv SET id = 5 WHERE id = 50",
                "UPDATE mv SET id = 50 WHERE id = 100",
                "COMMIT",
            ],
        ),
        // One comes to the place that the row has left, and is not committed.
        (
            "UPDATE mv FORCE INDEX (PRIMARY) SET v = v + 1 WHERE id >= -100 AND k <> 7",
            &[
                "UPDATE mv SET id = -5 WHERE id = 50",
                "BEGIN",
                "INSERT INTO mv VALUES (50, 7, 7, 0)",
                "UPDATE mv SET v = 1 WHERE id = 50",
            ],
        ),
    ];
    for level in &LEVELS[..2] {
        for (statement, moves) in cases {
            let outcome = race(&server, level, statement, moves);
            assert_eq!(outcome, Outcome::Error(CHECKREAD), "{level}: {statement}: {moves:?}");
        }
    }
    // What is not committed has moved nothing yet.
    let moves = ["BEGIN", "UPDATE mv SET id = -5, k = 7 WHERE id = 50"];
    let statement = "UPDATE mv FORCE INDEX (PRIMARY) SET v = v + 1 WHERE id >= -100 AND k <> 500";
    for level in &LEVELS[..2] {
        assert_eq!(race(&server, level, statement, &moves), Outcome::Changed(59), "{level}");
    }
    check(&mut server.connect_to("test"), "mv");
}

#[test]
fn serializable_lets_no_row_go_behind() {
    let server = server("moved_rows_serializable");
    // The move waits for the range that was read; of the two that wait for each other, one is
    // rolled back.
    let mut holder = server.connect_to("test");
    run(
        &mut holder,
        &[
            "INSERT INTO mv SELECT seq, seq * 10, seq * 10, 0 FROM seq_1_to_60",
            "BEGIN",
            "UPDATE mv SET v = v + 100 WHERE id = 30",
        ],
    );
    let waits =
        "SELECT COUNT(*) FROM information_schema.TIDEPOOL_TRX WHERE trx_state = 'LOCK WAIT'";
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut conn = server.connect_to("test");
            run(&mut conn, &["SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN"]);
            let sql = "UPDATE mv FORCE INDEX (k) SET v = v + 1 WHERE k >= 0";
            let outcome = outcome(&mut conn, sql);
            run(&mut conn, &["COMMIT"]);
            outcome
        });
        wait_until(PATIENCE, statement_waits(), || number(&mut holder, waits) == 1);
        let mover = scope.spawn(|| {
            let mut conn = server.connect_to("test");
            outcome(&mut conn, "UPDATE mv SET k = 5 WHERE id = 50")
        });
        wait_until(PATIENCE, "the move waits", || number(&mut holder, waits) == 2);
        run(&mut holder, &["COMMIT"]);
        let (read, moved) = (reader.join().expect("reads"), mover.join().expect("moves"));
        let deadlock = Outcome::Error(1213);
        assert!(read == Outcome::Changed(60) || read == deadlock, "{read:?} {moved:?}");
        assert!(moved == Outcome::Changed(1) || moved == deadlock, "{read:?} {moved:?}");
        assert!(read != deadlock || moved != deadlock, "one of the two goes on");
    });
}

#[test]
fn what_concerns_no_row_that_matches_is_no_error() {
    let server = server("moved_rows_harmless");
    let all = "UPDATE mv FORCE INDEX (k) SET v = v + 1 WHERE k >= 0";
    let some = "UPDATE mv FORCE INDEX (k) SET v = v + 1 WHERE k BETWEEN 250 AND 550";
    let cases: &[(&str, &[&str], u64)] = &[
        (all, &["DELETE FROM mv WHERE id = 50"], 59),
        (all, &["UPDATE mv SET k = 595 WHERE id = 50"], 60),
        (all, &["UPDATE mv SET k = -5 WHERE id = 50"], 59),
        (all, &["UPDATE mv SET v = 7 WHERE id = 50"], 60),
        (all, &["REPLACE INTO mv VALUES (50, 500, 500, 7)"], 60),
        // A new row, another changed by the same transaction, and one that goes by another.
        (
            all,
            &[
                "BEGIN",
                "INSERT INTO mv VALUES (100, 5, 5, 0)",
                "UPDATE mv SET v = 7 WHERE id = 50",
                "COMMIT",
                "DELETE FROM mv WHERE id = 51",
            ],
            59,
        ),
        // Two rows, by one transaction.
        (
            all,
            &[
                "BEGIN",
                "DELETE FROM mv WHERE id = 50",
                "INSERT INTO mv VALUES (-5, 5, 5, 0)",
                "COMMIT",
            ],
            59,
        ),
        (
            "UPDATE mv SET v = v + 1",
            &[
                "BEGIN",
                "DELETE FROM mv WHERE id = 50",
                "INSERT INTO mv VALUES (-5, 5, 5, 0)",
                "COMMIT",
            ],
            59,
        ),
        (some, &["UPDATE mv SET k = 5 WHERE id = 50"], 30),
        (some, &["UPDATE mv SET k = 1000 WHERE id = 50"], 30),
    ];
    for level in LEVELS {
        for (statement, moves, expected) in cases {
            let outcome = race(&server, level, statement, moves);
            assert_eq!(outcome, Outcome::Changed(*expected), "{level}: {statement}: {moves:?}");
        }
    }
}

/// Each consumer takes the first that are waiting; it is no error that others took some while it
/// waited for a lock.
#[test]
fn consumers_of_a_queue_do_not_disturb_each_other() {
    const JOBS: i64 = 400;
    let server = server("moved_rows_queue");
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE jobs (id INT PRIMARY KEY, state VARCHAR(10) NOT NULL, by_whom INT, KEY (state, id))",
            &format!("INSERT INTO jobs SELECT seq, 'new', NULL FROM seq_1_to_{JOBS}"),
        ],
    );
    for (level, clause) in
        LEVELS.into_iter().flat_map(|level| ["", " SKIP LOCKED"].map(|c| (level, c)))
    {
        run(&mut conn, &["UPDATE jobs SET state = 'new', by_whom = NULL"]);
        let select = format!(
            "SELECT id FROM jobs FORCE INDEX (state) WHERE state = 'new' ORDER BY id LIMIT 3 FOR UPDATE{clause}"
        );
        let (server, select) = (&server, &select);
        let taken: i64 = thread::scope(|scope| {
            let work = |whom: usize| {
                move || {
                    let mut conn = server.connect_to("test");
                    let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
                    run(&mut conn, &[&set]);
                    let (mut taken, mut empty) = (0, 0);
                    // With SKIP LOCKED there may be none that is not locked.
                    while empty < 3 {
                        run(&mut conn, &["BEGIN"]);
                        let ids = match outcome(&mut conn, select) {
                            Outcome::Gave(ids) => ids,
                            // InnoDB's consumers deadlock as well.
                            Outcome::Error(1213) => continue,
                            other => panic!("{level}: {select}: {other:?}"),
                        };
                        empty = if ids.is_empty() { empty + 1 } else { 0 };
                        for id in &ids {
                            let sql = format!(
                                "UPDATE jobs SET state = 'taken', by_whom = {whom} WHERE id = {id} AND state = 'new'"
                            );
                            assert_eq!(outcome(&mut conn, &sql), Outcome::Changed(1), "{level}");
                        }
                        run(&mut conn, &["COMMIT"]);
                        taken += ids.len() as i64;
                    }
                    taken
                }
            };
            let workers: Vec<_> = (0..4).map(|whom| scope.spawn(work(whom))).collect();
            workers.into_iter().map(|worker| worker.join().expect("a consumer")).sum()
        });
        assert_eq!(taken, JOBS, "{level}{clause}");
    }
}

/// A child whose primary key changes stays a child: the cascade that has passed its new place must
/// not leave it behind.
#[test]
fn a_cascade_leaves_no_child_behind() {
    let server = server("moved_rows_cascade");
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "CREATE TABLE child (id INT PRIMARY KEY, p INT, v INT, KEY (p),
             FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        ],
    );
    let alone: &[&str] = &["UPDATE child SET id = 5 WHERE id = 500"];
    // Another child comes to its place.
    let followed = &[alone[0], "UPDATE child SET id = 500 WHERE id = 510"];
    for (level, moves) in LEVELS.into_iter().flat_map(|level| [(level, alone), (level, followed)]) {
        run(
            &mut conn,
            &[
                "DELETE FROM parent",
                "INSERT INTO parent VALUES (1), (2)",
                "INSERT INTO child SELECT seq * 10, 1, 0 FROM seq_1_to_60",
                "BEGIN",
                "UPDATE child SET v = 1 WHERE id = 300",
            ],
        );
        let deleted = thread::scope(|scope| {
            let server = &server;
            let delete = scope.spawn(move || {
                let mut conn = server.connect_to("test");
                let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
                run(&mut conn, &[&set]);
                outcome(&mut conn, "DELETE FROM parent WHERE id = 1")
            });
            let mut mover = server.connect_to("test");
            let waits = "SELECT COUNT(*) FROM information_schema.TIDEPOOL_TRX WHERE trx_state = 'LOCK WAIT'";
            wait_until(PATIENCE, statement_waits(), || number(&mut mover, waits) == 1);
            run(&mut mover, moves);
            run(&mut conn, &["COMMIT"]);
            delete.join().expect("the statement's thread")
        });
        let orphans =
            "SELECT COUNT(*) FROM child LEFT JOIN parent ON parent.id = p WHERE parent.id IS NULL";
        assert_eq!(number(&mut conn, orphans), 0, "{level}: {moves:?}: {deleted:?}");
        assert_eq!(deleted, Outcome::Error(CHECKREAD), "{level}: {moves:?}");
        run(&mut conn, &["DELETE FROM parent WHERE id = 1"]);
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM child"), 0);
    }
}

/// A statement at READ UNCOMMITTED reads entries some at a time, and their rows one by one, each as
/// it is by then: a row that doesn't match any more isn't given. The server does not compare again
/// what it has searched an index for.
#[test]
fn a_row_that_is_newer_than_its_entry_matches_or_is_passed_over() {
    let server = Server::start(Options::new("moved_newer").engine(Engine::Tidepool));
    let (mut holder, mut mover) = (server.connect_to("test"), server.connect_to("test"));
    let statements = [
        "FORCE INDEX (k) WHERE k = 5",
        "FORCE INDEX (k) WHERE k BETWEEN 5 AND 6 AND k MOD 2 = 1",
        "FORCE INDEX (s) WHERE s = 'five'",
        "FORCE INDEX (p) WHERE p = 'five and more'",
        "FORCE INDEX (k_s) WHERE k = 5 AND s LIKE '%v%'",
        "FORCE INDEX (d) WHERE d = 5",
        "FORCE INDEX (w) WHERE w = 105",
        "FORCE INDEX (w_p) WHERE w = 105 AND p = 'five and more'",
    ];
    for partitions in ["", "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN MAXVALUE)"] {
        for statement in statements {
            let create = format!(
                "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, k INT, s VARCHAR(20), p TEXT, \
                 d INT, w INT AS (k + 100) VIRTUAL, KEY k (k), KEY s (s), KEY p (p(4)), \
                 KEY k_s (k, s), KEY d (d DESC), KEY w (w), KEY w_p (w, p(4))) \
                 CHARSET utf8mb4 {partitions}"
            );
            run(
                &mut holder,
                &[
                    &create,
                    "INSERT INTO t (id, k, s, p, d)
                         SELECT seq, 5, 'five', 'five and more', 5 FROM seq_1_to_100",
                    "DO GET_LOCK('gate', 100)",
                ],
            );
            let found = thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let mut conn = server.connect_to("test");
                    run(&mut conn, &["SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"]);
                    let query = format!(
                        "SELECT id, k, s, p, d, w, IF(id = 1, GET_LOCK('gate', 100), 0) FROM t \
                         {statement}"
                    );
                    conn.query::<(i64, i64, String, String, i64, i64, i64), _>(query).expect("rows")
                });
                let waits =
                    "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'";
                wait_until(PATIENCE, statement_waits(), || {
                    reader.is_finished() || number(&mut mover, waits) == 1
                });
                assert!(!reader.is_finished(), "{statement} did not wait");
                run(
                    &mut mover,
                    &[
                        "BEGIN",
                        // Equal in the index.
                        "UPDATE t SET s = 'FIVE', p = 'FIVE and more' WHERE id MOD 5 = 1",
                        "UPDATE t SET k = 6, s = 'six', p = 'six', d = 6 WHERE id MOD 5 = 2",
                        "DELETE FROM t WHERE id MOD 5 = 3",
                    ],
                );
                run(&mut holder, &["DO RELEASE_LOCK('gate')"]);
                reader.join().expect("the reader's thread")
            });
            run(&mut mover, &["COMMIT"]);
            let ids: Vec<i64> = found.iter().map(|row| row.0).collect();
            let stays = |id: &i64| matches!(id % 5, 0 | 1 | 4);
            assert_eq!(ids, Vec::from_iter((1..=100).filter(stays)), "{statement}: {found:?}");
            for (id, k, s, p, d, w, _) in found {
                assert_eq!((k, d, w), (5, 5, 105), "{statement}: {id}");
                assert!(
                    s.eq_ignore_ascii_case("five") && p.eq_ignore_ascii_case("five and more"),
                    "{id}"
                );
            }
            check(&mut mover, "t");
        }
    }
}
