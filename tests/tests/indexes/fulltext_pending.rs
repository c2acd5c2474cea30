//! FULLTEXT indexes whose rows have pending words: merges beside writers, snapshots and definition
//! changes, long rows, and damage.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::fulltext::{WRITTEN_WORDS, merged_rows, wait_for_merges, write_at_random};
use tidepool_tests::server::{Options, Server, wait_until};
use tidepool_tests::sql::{check, code_of, number, rows, run};

use crate::write_past_server;

const TABLE: &str = "CREATE TABLE t (id INT PRIMARY KEY, a LONGTEXT, FULLTEXT (a)) CHARSET utf8mb4";
fn found(conn: &mut Conn, query: &str) -> Vec<u32> {
    let sql =
        format!("SELECT id FROM t WHERE MATCH (a) AGAINST ('{query}' IN BOOLEAN MODE) ORDER BY id");
    conn.query(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// What a look at each row finds, without the index.
fn scanned(conn: &mut Conn, word: &str) -> Vec<u32> {
    conn.query(format!("SELECT id FROM t WHERE a REGEXP '\\\\b{word}\\\\b' ORDER BY id"))
        .expect("a scan")
}

/// The key of an entry is the word's and the row's together.
#[test]
fn a_row_whose_entry_has_too_long_a_key_is_refused_and_holds_no_merge_up() {
    let server = Server::start(Options::new("fulltext_long_keys"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id VARBINARY(3000) PRIMARY KEY, a TEXT, FULLTEXT (a))"]);
    let id = "CONCAT(REPEAT(CHAR(0), 580), REPEAT('x', 2400))";
    let refused = format!("INSERT INTO t VALUES ({id}, REPEAT('w', 60))");
    assert_eq!(code_of(&mut conn, &refused), 1071);
    run(&mut conn, &["INSERT INTO t VALUES ('b', 'alpha beta gamma delta omega')"]);
    wait_for_merges(&mut conn, 1);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t WHERE MATCH (a) AGAINST ('omega')"), 1);
    check(&mut conn, "t");
}

#[test]
fn writers_never_fail_for_a_merge_and_searches_find_what_scans_do() {
    let server = Server::start(Options::new("fulltext_beside"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &[TABLE]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let mut conn = server.connect_to("test");
                scope.spawn(move || {
                    run(&mut conn, &["SET tidepool_lock_wait_timeout = 0"]);
                    write_at_random(&mut conn, writer, 1000);
                })
            })
            .collect();
        let (over, server) = (&over, &server);
        let reader = scope.spawn(move || {
            let mut conn = server.connect_to("test");
            let mut snapshots = 0;
            while snapshots < 3 || !over.load(Ordering::Relaxed) {
                run(&mut conn, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
                for word in WRITTEN_WORDS.iter().cycle().take(2 * WRITTEN_WORDS.len()) {
                    assert_eq!(found(&mut conn, word), scanned(&mut conn, word), "{word}");
                }
                run(&mut conn, &["COMMIT"]);
                snapshots += 1;
            }
        });
        for writer in writers {
            writer.join().expect("a writer");
        }
        over.store(true, Ordering::Relaxed);
        reader.join().expect("the reader");
    });
    assert_ne!(merged_rows(&mut conn), 0);
    for word in WRITTEN_WORDS {
        assert_eq!(found(&mut conn, word), scanned(&mut conn, word), "{word}");
    }
    check(&mut conn, "t");
}

#[test]
fn a_snapshot_finds_its_rows_after_merges_and_rollbacks() {
    let server = Server::start(Options::new("fulltext_snapshots"));
    let (mut conn, mut old) = (server.connect_to("test"), server.connect_to("test"));
    let mut other = server.connect_to("test");
    run(&mut conn, &[TABLE, "INSERT INTO t VALUES (1, 'alpha beta'), (2, 'beta')"]);
    run(&mut old, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
    assert_eq!(found(&mut old, "beta"), [1, 2]);
    wait_for_merges(&mut conn, 2);
    // An open change of a row is not merged.
    let many = "gamma delta omega kappa sigma";
    run(&mut other, &["BEGIN", &format!("UPDATE t SET a = '{many}' WHERE id = 2")]);
    run(&mut conn, &["DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3, 'beta delta')"]);
    wait_for_merges(&mut conn, 4);
    assert_eq!(found(&mut conn, "beta"), [2, 3]);
    assert_eq!(found(&mut other, "gamma"), [2]);
    assert_eq!(found(&mut other, "beta"), [3]);
    assert_eq!(found(&mut old, "beta"), [1, 2]);
    assert_eq!(found(&mut old, "+alpha +beta"), [1]);
    run(&mut other, &["ROLLBACK"]);
    // A change of a merged row that is taken back leaves what was merged.
    run(&mut conn, &["BEGIN", "SAVEPOINT s", &format!("UPDATE t SET a = '{many}' WHERE id = 3")]);
    assert_eq!(found(&mut conn, "omega"), [3]);
    assert_eq!(found(&mut conn, "beta"), [2]);
    run(&mut conn, &["UPDATE t SET a = 'zeta' WHERE id = 3"]);
    assert_eq!(found(&mut conn, "omega"), [0u32; 0]);
    assert_eq!(found(&mut conn, "zeta"), [3]);
    run(&mut conn, &["ROLLBACK TO SAVEPOINT s", "COMMIT"]);
    assert_eq!(found(&mut conn, "beta"), [2, 3]);
    // The old session changes a row that was merged since its snapshot, as entries and pending.
    run(&mut old, &["UPDATE t SET a = 'kappa beta' WHERE id = 2"]);
    assert_eq!(found(&mut old, "kappa"), [2]);
    assert_eq!(found(&mut old, "beta"), [1, 2]);
    run(&mut old, &[&format!("UPDATE t SET a = '{many} beta' WHERE id = 2")]);
    assert_eq!(found(&mut old, "+omega +beta"), [2]);
    run(&mut old, &["DELETE FROM t WHERE id = 2"]);
    assert_eq!(found(&mut old, "beta"), [1]);
    run(&mut old, &["COMMIT"]);
    assert_eq!(found(&mut conn, "beta"), [3]);
    check(&mut conn, "t");
    wait_for_merges(&mut conn, 5);
    assert_eq!(found(&mut conn, "beta"), [3]);
    check(&mut conn, "t");
    // A key comes again after its row went, and moves.
    run(&mut conn, &["INSERT INTO t VALUES (2, 'alpha')", "UPDATE t SET id = 4 WHERE id = 3"]);
    assert_eq!(found(&mut conn, "alpha"), [2]);
    assert_eq!(found(&mut conn, "beta"), [4]);
    run(&mut conn, &["DELETE FROM t WHERE id = 2", "UPDATE t SET id = 2 WHERE id = 4"]);
    assert_eq!(found(&mut conn, "alpha"), [0u32; 0]);
    assert_eq!(found(&mut conn, "beta"), [2]);
    check(&mut conn, "t");
}

#[test]
fn a_long_text_may_follow_a_pending_row() {
    let mut server = Server::start(Options::new("fulltext_long"));
    let (mut conn, mut old) = (server.connect_to("test"), server.connect_to("test"));
    let long: Vec<String> = (0..9000).map(|number| format!("word{number}")).collect();
    run(&mut conn, &[TABLE, "INSERT INTO t VALUES (1, 'alpha'), (2, 'beta')"]);
    run(&mut old, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
    run(
        &mut conn,
        &[
            &format!("UPDATE t SET a = '{}' WHERE id = 1", long.join(" ")),
            &format!("INSERT INTO t VALUES (3, '{}')", long.join(" ")),
        ],
    );
    assert_eq!(found(&mut conn, "+word0 +word8999"), [1, 3]);
    assert_eq!(found(&mut old, "alpha"), [1]);
    assert_eq!(found(&mut old, "word0"), [0u32; 0]);
    check(&mut conn, "t");
    run(&mut conn, &["BEGIN", "UPDATE t SET a = 'gamma' WHERE id = 1"]);
    assert_eq!(found(&mut conn, "word8999"), [3]);
    run(&mut conn, &["ROLLBACK"]);
    assert_eq!(found(&mut conn, "word8999"), [1, 3]);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(found(&mut conn, "word8999"), [1, 3]);
    check(&mut conn, "t");
    // The snapshot that had seen the pending row is gone.
    run(&mut conn, &["DELETE FROM t WHERE id IN (1, 3)"]);
    assert_eq!(found(&mut conn, "word8999"), [0u32; 0]);
    assert_eq!(found(&mut conn, "beta"), [2]);
    check(&mut conn, "t");
}

/// At SERIALIZABLE a search locks pending rows. None but merges have locked any here.
#[test]
fn locking_searches_never_fail_for_a_merge() {
    let server = Server::start(Options::new("fulltext_serializable"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            TABLE,
            "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "SET tidepool_lock_wait_timeout = 0",
        ],
    );
    for round in 1..=20 {
        run(
            &mut conn,
            &[&format!(
                "REPLACE INTO t SELECT seq, CONCAT('alpha beta gamma delta round', seq % {round}) \
                 FROM seq_1_to_400"
            )],
        );
        for locking in ["FOR UPDATE", "FOR UPDATE SKIP LOCKED", "LOCK IN SHARE MODE"] {
            let search = format!(
                "SELECT COUNT(*) FROM (SELECT id FROM t WHERE MATCH (a) AGAINST ('delta') \
                 {locking}) AS found"
            );
            assert_eq!(number(&mut conn, &search), 400, "{round} {locking}");
        }
    }
    check(&mut conn, "t");
}

/// Merges go on all the time. What the statement waits for is not theirs.
#[test]
fn a_lock_wait_has_an_end_while_words_are_merged() {
    const LOCK_TIMEOUT: u16 = 1205;
    let server = Server::start(Options::new("fulltext_waits"));
    let (mut holder, mut writer) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut holder,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, b TEXT, FULLTEXT (a), FULLTEXT (b))",
            "INSERT INTO t VALUES (1, 'alpha', 'one'), (2, 'beta', 'two')",
            "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        ],
    );
    let text = "gamma delta omega kappa sigma lambda";
    let search = "SELECT id FROM t WHERE MATCH (a) AGAINST ('alpha') FOR UPDATE";
    let insert = format!("INSERT INTO t VALUES (3, '{text}', '{text}')");
    for (held, waiting) in [
        (format!("UPDATE t SET a = '{text} alpha' WHERE id = 1"), search),
        (search.to_owned(), &insert[..]),
    ] {
        run(&mut holder, &["BEGIN", &held]);
        let (code, server) = (AtomicU16::new(0), &server);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut conn = server.connect_to("test");
                run(
                    &mut conn,
                    &[
                        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
                        "SET tidepool_lock_wait_timeout = 1",
                    ],
                );
                code.store(code_of(&mut conn, waiting), Ordering::Relaxed);
            });
            let mut round = 0;
            wait_until(Duration::from_secs(60), "the statement ends", || {
                let before = merged_rows(&mut writer);
                round += 1;
                let change = format!("UPDATE t SET b = 'word{round} {text}' WHERE id = 2");
                run(&mut writer, &[&change, "UPDATE t SET b = 'two' WHERE id = 2"]);
                wait_until(Duration::from_secs(60), "a merge", || {
                    merged_rows(&mut writer) > before
                });
                waiter.is_finished()
            });
        });
        assert_eq!(code.into_inner(), LOCK_TIMEOUT, "{waiting}");
        run(&mut holder, &["ROLLBACK"]);
    }
    check(&mut holder, "t");
}

/// Whatever changes a table's definition meets merges of it, and does not fail for them.
#[test]
fn definitions_change_while_words_are_merged() {
    let mut server = Server::start(Options::new("fulltext_ddl"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &[TABLE]);
    let fill = "REPLACE INTO t (id, a) \
        SELECT seq, CONCAT('alpha beta gamma delta omega word', seq) FROM seq_1_to_700";
    let changes: [&[&str]; 11] = [
        &["ALTER TABLE t ADD COLUMN n INT, ADD KEY (n), ALGORITHM=INPLACE"],
        &["ALTER TABLE t DROP KEY n, DROP COLUMN n"],
        &["ALTER TABLE t ADD FULLTEXT again (a), ALGORITHM=INPLACE"],
        &["ALTER TABLE t DROP KEY again, ALGORITHM=INPLACE"],
        &["OPTIMIZE TABLE t"],
        &["ALTER TABLE t FORCE, ALGORITHM=COPY"],
        &["FLUSH TABLES t FOR EXPORT", "UNLOCK TABLES"],
        &["RENAME TABLE t TO s, s TO t"],
        &["FLUSH TABLES"],
        &["ALTER TABLE t DISCARD TABLESPACE", "DROP TABLE t", TABLE],
        &["TRUNCATE TABLE t"],
    ];
    for round in 0..3 {
        for change in changes {
            run(&mut conn, &[fill, "DELETE FROM t WHERE id % 7 = 0"]);
            run(&mut conn, change);
            let is_empty = change[0].contains("TRUNCATE") || change[0].contains("DISCARD");
            let rows = if is_empty { 0 } else { 600 };
            assert_eq!(found(&mut conn, "+alpha +omega").len(), rows, "{round} {change:?}");
            check(&mut conn, "t");
        }
        run(&mut conn, &[fill, "DROP TABLE t", TABLE]);
    }
    run(&mut conn, &[fill]);
    server.stop();
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(found(&mut conn, "+alpha +omega").len(), 700);
    check(&mut conn, "t");
}

/// The same of partitions, some of which go while their table stays.
#[test]
fn partitions_change_while_words_are_merged() {
    let server = Server::start(Options::new("fulltext_partitions"));
    let mut conn = server.connect_to("test");
    let text = "CONCAT('alpha beta gamma delta omega word', seq)";
    let fill = format!("REPLACE INTO t (id, a) SELECT seq, {text} FROM seq_1_to_800");
    for _ in 0..2 {
        run(
            &mut conn,
            &[
                "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a)) PARTITION BY RANGE (id) \
                 (PARTITION p0 VALUES LESS THAN (300), PARTITION p1 VALUES LESS THAN (600), \
                 PARTITION p2 VALUES LESS THAN (900))",
                "CREATE TABLE other (id INT PRIMARY KEY, a TEXT, FULLTEXT (a))",
            ],
        );
        let changes = [
            ("ALTER TABLE t TRUNCATE PARTITION p0", 501),
            ("ALTER TABLE t DROP PARTITION p1", 500),
            ("ALTER TABLE t ADD COLUMN n INT, ADD KEY (n), ALGORITHM=INPLACE", 800),
            ("ALTER TABLE t DROP KEY n, ALGORITHM=INPLACE", 800),
            ("ALTER TABLE t DROP COLUMN n", 800),
            ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE other", 501),
            (
                "ALTER TABLE t REORGANIZE PARTITION p0 INTO (PARTITION a VALUES LESS THAN (100), \
              PARTITION b VALUES LESS THAN (300))",
                800,
            ),
        ];
        for (change, rows) in changes {
            run(&mut conn, &[&fill, change]);
            assert_eq!(found(&mut conn, "delta").len(), rows, "{change}");
            check(&mut conn, "t");
        }
        let of_other = "SELECT id FROM other WHERE MATCH (a) AGAINST ('omega')";
        assert_eq!(rows(&mut conn, of_other).len(), 299);
        check(&mut conn, "other");
        run(&mut conn, &[&fill, "DROP TABLE t, other"]);
    }
}

#[test]
fn check_table_finds_pending_words_that_rows_do_not_have() {
    let mut server = Server::start(Options::new("fulltext_pending_check"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &[TABLE, "INSERT INTO t VALUES (1, 'alpha beta'), (2, 'beta'), (3, 'gamma')"]);
    wait_for_merges(&mut conn, 3);
    check(&mut conn, "t");
    write_past_server(&mut server, |trx, table| {
        let of = |id: u8| [0xD0, 0x80, 0, 0, id];
        // Of a row that has entries of the text 'beta', and the word `zeta`.
        let other = b"\x05\x05beta\x05ZETA\0\x02\x01\0";
        trx.insert(table, 1, &of(2), other).expect("it can be inserted");
        // Of a row that is said to have no entries.
        trx.insert(table, 1, &of(3), b"\0\x06GAMMA\0\x02\x01\0").expect("it can be inserted");
        trx.insert(table, 1, &of(9), b"\0\x05ZETA\0\x02\x01\0").expect("it can be inserted");
    });
    let mut conn = server.connect_to("test");
    let said = rows(&mut conn, "CHECK TABLE t").join("\n");
    assert!(said.contains("other pending words of the row with key 80000002"), "{said}");
    assert!(said.contains("has 4 entries, the rows have 3"), "{said}");
    assert!(said.contains("pending words without a row: 80000009"), "{said}");
    // Such words are not merged, and what is right is found.
    assert_eq!(found(&mut conn, "alpha"), [1]);
    assert_eq!(code_of(&mut conn, "SELECT id FROM t WHERE MATCH (a) AGAINST ('zeta')"), 1034);
    wait_until(Duration::from_secs(60), "the error log says it", || {
        server.error_log().contains("are not merged any more; run CHECK TABLE")
    });
    run(&mut conn, &["ALTER TABLE t DROP KEY a, ADD FULLTEXT (a), ALGORITHM=INPLACE"]);
    check(&mut conn, "t");
    assert_eq!(found(&mut conn, "beta"), [1, 2]);
}
