//! Tables without a primary key: their rows are numbered on, through openings and restarts.

use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check, number, run, sorted_rows};

#[test]
fn a_table_that_is_opened_again_and_again_still_takes_rows() {
    let mut server = Server::start(Options::new("row_ids").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (a INT, KEY (a))", "INSERT INTO t VALUES (1), (2), (3)"]);
    drop(conn);
    server.stop();
    server.launch().expect("the server starts");
    let mut conn = server.connect_to("test");
    for n in 4..10 {
        let insert = format!("INSERT INTO t VALUES ({n}), ({n})");
        run(&mut conn, &[insert.as_str(), "FLUSH TABLES"]);
    }
    run(
        &mut conn,
        &["ALTER TABLE t ADD KEY again (a), ALGORITHM=INPLACE", "INSERT INTO t VALUES (10)"],
    );
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 16);
    assert_eq!(number(&mut conn, "SELECT SUM(a) FROM t"), 6 + 2 * 39 + 10);
    let checked: Vec<(String, String, String, String)> =
        conn.query("CHECK TABLE t EXTENDED").expect("a verdict");
    assert_eq!(checked[0].3, "OK", "{checked:?}");
}

/// An ordered scan has read a row ahead of each partition: it is still that row which is changed
/// when the statement has moved another one to the partition.
#[test]
fn a_row_read_ahead_of_a_partition_is_the_one_that_is_changed() {
    let server = Server::start(Options::new("row_ids_ahead").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    // Of several tables, the first is changed while it is read.
    let statements = [
        "SET m.s = 30 WHERE m.k BETWEEN 1 AND 6 AND u.x = 1",
        "SET m.s = 5 WHERE m.k BETWEEN 10 AND 60 AND u.x = 1",
        "SET m.s = IF(m.k MOD 3, 7, 70), m.v = m.k WHERE m.k BETWEEN 40 AND 120 AND u.x < 3",
        "SET m.s = m.k WHERE (m.k < 5 OR m.k BETWEEN 300 AND 320) AND u.x = 2",
        "SET m.s = IF(m.k MOD 2, 15, 20), m.v = -m.k
             WHERE m.k BETWEEN 301 AND 340 AND m.k MOD 5 AND u.x = 1",
    ];
    run(&mut conn, &["CREATE TABLE u (x INT)", "INSERT INTO u VALUES (1), (2)"]);
    let keys = [
        "KEY k (k)",
        "KEY k (k), KEY v (v)",
        "KEY k (k), UNIQUE (h, s)",
        "KEY k (k), PRIMARY KEY (id, s)",
    ];
    for keys in keys {
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            run(&mut conn, &[&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")]);
            // InnoDB finds a duplicate in the row itself, where it compares hashes of partitions.
            for (table, engine, keys) in
                [("t", Engine::Tidepool, keys), ("i", Engine::InnoDb, "KEY k (k)")]
            {
                let create = format!(
                    "CREATE OR REPLACE TABLE {table} (id INT, k INT, s INT, v INT, h TEXT, {keys}) \
                     ENGINE={} PARTITION BY RANGE (s) (PARTITION p0 VALUES LESS THAN (10), \
                     PARTITION p1 VALUES LESS THAN (25), PARTITION p2 VALUES LESS THAN MAXVALUE)",
                    engine.name()
                );
                let fill = format!(
                    "INSERT INTO {table} SELECT seq, seq, seq * 7 MOD 33, seq, CONCAT('h', seq) \
                     FROM seq_1_to_1000"
                );
                run(&mut conn, &[&create, &fill, &format!("ANALYZE TABLE {table}")]);
            }
            for statement in statements {
                let left = ["t", "i"].map(|table| {
                    let update =
                        format!("UPDATE {table} AS m FORCE INDEX (k) STRAIGHT_JOIN u {statement}");
                    run(&mut conn, &[&update]);
                    check(&mut conn, &format!("{table} EXTENDED"));
                    sorted_rows(&mut conn, &format!("SELECT * FROM {table} IGNORE INDEX (k)"))
                });
                assert_eq!(left[0], left[1], "{keys}, {level}: {statement}");
            }
        }
    }
}
