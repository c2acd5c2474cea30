//! FULLTEXT indexes: searches beside a model, in transactions, after crashes, and beside InnoDB.

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_tests::fulltext::{
    Document, Documents, INDEXED, Query, Shape, WORDS, matching, quoted, text, words_of,
};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::{check, code_of, number, rows, run};
use tidepool_tests::two_sessions::{Modelled, history};

const RECORD_CHANGED: u16 = 1020;

fn ids(conn: &mut Conn, query: &str) -> Vec<u32> {
    conn.query(query).unwrap_or_else(|error| panic!("{query}: {error}"))
}

fn boolean(conn: &mut Conn, table: &str, columns: &str, query: &str) -> Vec<u32> {
    let sql = format!(
        "SELECT id FROM {table} WHERE MATCH ({columns}) AGAINST ('{query}' IN BOOLEAN MODE) ORDER \
         BY id"
    );
    ids(conn, &sql)
}

/// Documents with a FULLTEXT index of both columns, and one of the second.
struct TwoTexts;

impl Modelled for TwoTexts {
    type Row = Document;

    const TABLE: &str = "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(300), b TEXT, \
        FULLTEXT (a, b), FULLTEXT (b)) CHARSET utf8mb4";
    const STEPS: u32 = 150;
    const CHANGES: u32 = 6;
    const KILLS: f64 = 0.05;

    fn change(conn: &mut Conn, dice: &mut StdRng, session: u32, sees: &mut Documents) {
        let id = 1 + 2 * dice.random_range(0..40) + session;
        let document = [text(dice), text(dice)];
        let [a, b] = [quoted(document[0].as_deref()), quoted(document[1].as_deref())];
        let statement = match (sees.contains_key(&id), dice.random_range(0..5)) {
            (true, 0 | 1) => {
                sees.remove(&id);
                conn.query_drop(format!("DELETE FROM t WHERE id = {id}")).expect("a delete");
                return;
            }
            (true, 2) => format!("UPDATE t SET a = {a}, b = {b} WHERE id = {id}"),
            (true, 3) => format!(
                "INSERT INTO t VALUES ({id}, {a}, {b}) ON DUPLICATE KEY UPDATE a = VALUES(a), b = \
                 VALUES(b)"
            ),
            (true, _) => format!("REPLACE INTO t VALUES ({id}, {a}, {b})"),
            (false, _) => format!("INSERT INTO t VALUES ({id}, {a}, {b})"),
        };
        conn.query_drop(&statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        sees.insert(id, document);
    }

    /// Asks queries of both modes, and the model the same.
    fn compare(conn: &mut Conn, dice: &mut StdRng, documents: &Documents, what: &str) {
        let query = Query::new(dice, Shape::Any);
        let expected = matching(documents, |document| query.matches(document));
        let found = boolean(conn, "t", "a, b", &query.sql());
        assert_eq!(found, expected, "{what}: {}", query.sql());

        let wanted: Vec<&str> =
            (0..dice.random_range(1..3)).map(|_| WORDS[dice.random_range(0..INDEXED)]).collect();
        let has_any =
            |text: &str| words_of(text).iter().any(|word| wanted.contains(&word.as_str()));
        let expected =
            matching(documents, |document| document.iter().flatten().any(|text| has_any(text)));
        let sql = format!(
            "SELECT id FROM t WHERE MATCH (a, b) AGAINST ('{}') ORDER BY id",
            wanted.join(" ")
        );
        assert_eq!(ids(conn, &sql), expected, "{what}: {sql}");
        let in_b = matching(documents, |document| document[1].as_deref().is_some_and(has_any));
        let sql = format!(
            "SELECT id FROM t WHERE MATCH (b) AGAINST ('{}') > 0 ORDER BY id",
            wanted.join(" ")
        );
        assert_eq!(ids(conn, &sql), in_b, "{what}: {sql}");
    }
}

#[test]
fn searches_find_what_the_model_does_in_transactions_and_after_crashes() {
    let mut server = Server::start(Options::new("fulltext_model"));
    let seeds = std::env::var("TIDEPOOL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    for seed in 0..seeds {
        history::<TwoTexts>(&mut server, seed);
    }
}

/// Committed rows, and queries about which both engines mean the same.
#[test]
fn searches_find_and_rate_the_rows_that_innodb_finds() {
    let server = Server::start(Options::new("fulltext_innodb"));
    let mut conn = server.connect_to("test");
    let mut dice = StdRng::seed_from_u64(7);
    for (table, engine) in [("t", "Tidepool"), ("i", "InnoDB")] {
        run(
            &mut conn,
            &[&format!(
                "CREATE TABLE {table} (id INT PRIMARY KEY, a TEXT, FULLTEXT (a)) ENGINE={engine}"
            )],
        );
    }
    for id in 1..200 {
        let text = quoted(text(&mut dice).as_deref());
        let insert = |table: &str| format!("INSERT INTO {table} VALUES ({id}, {text})");
        run(&mut conn, &[&insert("t"), &insert("i")]);
    }
    // InnoDB rates by the statistics' number of rows.
    run(&mut conn, &["ANALYZE TABLE i"]);
    let mut found_some = 0;
    for _ in 0..400 {
        let query = Query::new(&mut dice, Shape::Plain).sql();
        let ours = boolean(&mut conn, "t", "a", &query);
        assert_eq!(ours, boolean(&mut conn, "i", "a", &query), "{query}");
        found_some += usize::from(!ours.is_empty());
    }
    assert!(found_some > 100, "{found_some}");
    let mut rated = |table: &str, words: &str| -> Vec<(u32, f64)> {
        let matched = format!("MATCH (a) AGAINST ('{words}')");
        let sql = format!("SELECT id, {matched} FROM {table} WHERE {matched} ORDER BY id");
        conn.query(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    };
    for first in &WORDS[..INDEXED] {
        let words = if *first == "gamma" { "gamma".into() } else { format!("{first} gamma") };
        let (ours, theirs) = (rated("t", &words), rated("i", &words));
        assert_eq!(ours.len(), theirs.len(), "{words}");
        for ((id, rank), (other_id, other_rank)) in ours.iter().zip(&theirs) {
            assert_eq!(id, other_id, "{words}");
            assert!(
                (rank - other_rank).abs() < 1e-4,
                "{words}: {id} has {rank}, InnoDB {other_rank}"
            );
        }
    }
}

#[test]
fn the_best_row_comes_first_and_each_match_has_its_own_relevance() {
    let server = Server::start(Options::new("fulltext_order"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a))",
            "INSERT INTO t VALUES (1, 'alpha'), (2, 'alpha alpha alpha beta'), (3, 'beta beta \
             alpha alpha'), (4, 'gamma')",
            "CREATE TABLE u (tid INT PRIMARY KEY)",
            "INSERT INTO u VALUES (1), (3), (4)",
        ],
    );
    assert_eq!(ids(&mut conn, "SELECT id FROM t WHERE MATCH (a) AGAINST ('alpha')"), [2, 3, 1]);
    assert_eq!(ids(&mut conn, "SELECT id FROM t WHERE MATCH (a) AGAINST ('alpha') LIMIT 1"), [2]);
    let sql = "SELECT id FROM t WHERE MATCH (a) AGAINST ('alpha') ORDER BY MATCH (a) AGAINST \
     ('beta') DESC, id DESC";
    assert_eq!(ids(&mut conn, sql), [3, 2, 1]);
    let sql = "SELECT id, MATCH (a) AGAINST ('alpha') > 0, MATCH (a) AGAINST ('+beta -alpha' IN \
     BOOLEAN MODE) > 0,
                      MATCH (a) AGAINST ('gamma') > 0 FROM t ORDER BY MATCH (a) AGAINST ('beta') \
                       DESC, id";
    assert_eq!(
        rows(&mut conn, sql),
        [
            "[Bytes(\"3\"), Bytes(\"1\"), Bytes(\"0\"), Bytes(\"0\")]",
            "[Bytes(\"2\"), Bytes(\"1\"), Bytes(\"0\"), Bytes(\"0\")]",
            "[Bytes(\"1\"), Bytes(\"1\"), Bytes(\"0\"), Bytes(\"0\")]",
            "[Bytes(\"4\"), Bytes(\"0\"), Bytes(\"0\"), Bytes(\"1\")]"
        ]
    );
    // In joins, in subqueries, and where the key is found by another index.
    let sql =
        "SELECT id FROM u JOIN t ON t.id = u.tid WHERE MATCH (a) AGAINST ('alpha') ORDER BY id";
    assert_eq!(ids(&mut conn, sql), [1, 3]);
    let sql = "SELECT tid FROM u WHERE tid IN (SELECT id FROM t WHERE MATCH (a) AGAINST ('gamma \
     beta')) ORDER BY tid";
    assert_eq!(ids(&mut conn, sql), [3, 4]);
    assert_eq!(
        ids(&mut conn, "SELECT id FROM t WHERE id IN (1, 4) AND MATCH (a) AGAINST ('gamma')"),
        [4]
    );
    let sql = "SELECT id FROM t WHERE MATCH (a) AGAINST ('alpha') UNION ALL SELECT id FROM t \
     WHERE MATCH (a) AGAINST ('gamma')";
    assert_eq!(ids(&mut conn, sql).len(), 4);
    let sql = "SELECT id FROM t WHERE MATCH (a) AGAINST ('\"beta alpha\" gamma') ORDER BY id";
    assert_eq!(ids(&mut conn, sql), [3, 4]);
    // Expansion: rows 2 and 3 have beta beside alpha.
    run(&mut conn, &["INSERT INTO t VALUES (5, 'beta')"]);
    let sql = "SELECT id FROM t WHERE MATCH (a) AGAINST ('alpha' WITH QUERY EXPANSION) ORDER BY id";
    assert_eq!(ids(&mut conn, sql), [1, 2, 3, 5]);
    // A query that asks for nothing finds nothing; without an index there is no search.
    for query in ["", "the", "xy", "+the -alpha", "-alpha", "\"the xy\"", "((("] {
        assert_eq!(boolean(&mut conn, "t", "a", query), [0u32; 0], "{query}");
    }
    assert_eq!(
        code_of(&mut conn, "SELECT * FROM u WHERE MATCH (tid) AGAINST ('x' IN BOOLEAN MODE)"),
        1191
    );
    // No other access path takes the index.
    for sql in [
        "SELECT COUNT(*) FROM t FORCE INDEX (a)",
        "SELECT COUNT(a) FROM t FORCE INDEX (a) WHERE a > ''",
    ] {
        assert_eq!(number(&mut conn, sql), 5, "{sql}");
    }
    check(&mut conn, "t");
}

/// Waits until a session waits for a lock, or it is over.
fn wait_for_waiter(server: &Server, is_over: impl Fn() -> bool) {
    let mut other = server.connect();
    let waits =
        "SELECT COUNT(*) FROM information_schema.TIDEPOOL_LOCKS WHERE lock_status = 'WAITING'";
    while number(&mut other, waits) == 0 && !is_over() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn locking_searches_lock_rows_and_give_none_that_has_changed_since() {
    let server = Server::start(Options::new("fulltext_locks"));
    let (mut first, mut second) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut first,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a))",
            "INSERT INTO t VALUES (1, 'alpha one'), (2, 'alpha two'), (3, 'beta')",
        ],
    );
    run(&mut second, &["SET tidepool_lock_wait_timeout = 20"]);
    let (statement, transaction) = ("BEGIN", "START TRANSACTION WITH CONSISTENT SNAPSHOT");
    for (level, begin) in [
        ("READ COMMITTED", statement),
        ("REPEATABLE READ", statement),
        ("REPEATABLE READ", transaction),
    ] {
        run(
            &mut first,
            &[
                "UPDATE t SET a = 'alpha one' WHERE id = 1",
                "BEGIN",
                "UPDATE t SET a = 'gamma' WHERE id = 1",
            ],
        );
        run(&mut second, &[&format!("SET TRANSACTION ISOLATION LEVEL {level}"), begin]);
        let found = std::thread::scope(|scope| {
            let second = &mut second;
            let search = scope.spawn(move || {
                let sql =
                    "SELECT id FROM t WHERE MATCH (a) AGAINST ('alpha') ORDER BY id FOR UPDATE";
                second.query::<u32, _>(sql)
            });
            wait_for_waiter(&server, || false);
            run(&mut first, &["COMMIT"]);
            search.join().expect("the search ends")
        });
        match found {
            found if begin == statement => assert_eq!(found.expect("a result"), [2], "{level}"),
            Err(mysql::Error::MySqlError(error)) => assert_eq!(error.code, RECORD_CHANGED),
            other => panic!("{other:?}"),
        }
        // The row is locked that was found, and no other.
        if level == "READ COMMITTED" {
            run(&mut first, &["UPDATE t SET a = 'gamma delta' WHERE id = 1"]);
            assert_eq!(
                code_of(&mut first, "SELECT id FROM t WHERE id = 2 FOR UPDATE NOWAIT"),
                1205
            );
        }
        run(&mut second, &["ROLLBACK"]);
    }
    // What others commit is not seen by a snapshot, uncommitted words by READ UNCOMMITTED alone.
    run(&mut second, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
    run(&mut first, &["UPDATE t SET a = 'zeta' WHERE id = 3"]);
    assert_eq!(boolean(&mut second, "t", "a", "beta"), [3]);
    assert_eq!(boolean(&mut second, "t", "a", "zeta"), [0u32; 0]);
    run(&mut second, &["COMMIT"]);
    assert_eq!(boolean(&mut second, "t", "a", "zeta"), [3]);
    run(&mut first, &["BEGIN", "INSERT INTO t VALUES (4, 'zeta')"]);
    assert_eq!(boolean(&mut second, "t", "a", "zeta"), [3]);
    run(&mut second, &["SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"]);
    assert_eq!(boolean(&mut second, "t", "a", "zeta"), [3, 4]);
    run(&mut first, &["ROLLBACK"]);
    // At SERIALIZABLE no row with words can come, whichever they are.
    run(&mut second, &["SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN"]);
    assert_eq!(boolean(&mut second, "t", "a", "zeta"), [3]);
    run(&mut first, &["SET tidepool_lock_wait_timeout = 1"]);
    assert_eq!(code_of(&mut first, "INSERT INTO t VALUES (5, 'zeta')"), 1205);
    assert_eq!(code_of(&mut first, "INSERT INTO t VALUES (5, 'alpha')"), 1205);
    run(&mut second, &["COMMIT"]);
    run(&mut first, &["INSERT INTO t VALUES (5, 'alpha')"]);
    run(&mut first, &["UPDATE t SET a = CONCAT(a, ' eta') WHERE MATCH (a) AGAINST ('alpha')"]);
    assert_eq!(boolean(&mut first, "t", "a", "eta"), [2, 5]);
    run(&mut first, &["DELETE FROM t WHERE MATCH (a) AGAINST ('+eta -two' IN BOOLEAN MODE)"]);
    assert_eq!(boolean(&mut first, "t", "a", "eta"), [2]);
    check(&mut first, "t");
}

/// Such a statement reads rows by a scan, and asks of each how relevant the search found it.
#[test]
fn statements_that_change_rows_leave_those_that_match_no_longer() {
    let server = Server::start(Options::new("fulltext_changes"));
    let (mut first, mut second) = (server.connect_to("test"), server.connect_to("test"));
    run(&mut first, &["CREATE TABLE t (id INT PRIMARY KEY, a TEXT, n INT, FULLTEXT (a))"]);
    let changes = [
        "UPDATE t SET a = 'gamma' WHERE id = 1",
        "REPLACE INTO t VALUES (1, 'gamma', 0)",
        "UPDATE t SET n = 0, a = 'gamma alpha' WHERE id = 1",
    ];
    let statements = [
        ("DELETE FROM t WHERE MATCH (a) AGAINST ('alpha')", "id"),
        ("UPDATE t SET n = 1 WHERE MATCH (a) AGAINST ('alpha')", "IF(n = 0, id, NULL)"),
    ];
    for (change, (statement, left)) in changes.iter().flat_map(|c| statements.map(|s| (c, s))) {
        run(
            &mut first,
            &[
                "DELETE FROM t",
                "INSERT INTO t VALUES (1, 'alpha one', 0), (2, 'alpha two', 0), (3, 'beta', 0)",
                "BEGIN",
                change,
            ],
        );
        run(&mut second, &["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"]);
        std::thread::scope(|scope| {
            let second = &mut second;
            let changing = scope.spawn(move || run(second, &[statement]));
            wait_for_waiter(&server, || changing.is_finished());
            run(&mut first, &["COMMIT"]);
            changing.join().expect("the statement succeeds");
        });
        let sql = format!("SELECT {left} AS left_id FROM t HAVING left_id IS NOT NULL ORDER BY 1");
        let matches_still = change.contains("alpha");
        let expected = if matches_still { vec![3] } else { vec![1, 3] };
        assert_eq!(ids(&mut first, &sql), expected, "{change}; {statement}");
    }
    check(&mut first, "t");
}

#[test]
fn a_search_that_needs_too_much_memory_fails_alone() {
    let server = Server::start(Options::new("fulltext_memory"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a))",
            "INSERT INTO t SELECT seq, IF(seq % 100, 'alpha', 'alpha rare') FROM seq_1_to_60000",
            "SET GLOBAL tidepool_ft_result_cache_limit = 1000000",
        ],
    );
    let all = "SELECT COUNT(*) FROM t WHERE MATCH (a) AGAINST ('alpha')";
    // What one search has taken, the next has again.
    for _ in 0..3 {
        assert_eq!(code_of(&mut conn, all), 1041);
        assert_eq!(boolean(&mut conn, "t", "a", "rare").len(), 600);
    }
    run(&mut conn, &["SET GLOBAL tidepool_ft_result_cache_limit = DEFAULT"]);
    assert_eq!(number(&mut conn, all), 60_000);
}
