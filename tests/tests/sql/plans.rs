//! What the optimizer gets: how many values an index has, and what reading costs. The same plans
//! as with InnoDB come of it.

use mysql::prelude::Queryable;
use mysql::{Conn, Row};
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{number, run};

/// Columns, and how many values each has.
const VALUES: [(&str, f64); 4] =
    [("ten", 10.0), ("hundred", 100.0), ("thousand", 1_000.0), ("name", 20.0)];

fn create(conn: &mut Conn, table: &str, engine: Engine, rows: u32) {
    run(
        conn,
        &[
            &format!(
                "CREATE TABLE {table} (id INT PRIMARY KEY, ten INT, hundred INT, thousand INT, name VARCHAR(30), u INT,
                 KEY (ten), KEY (hundred), KEY (thousand), KEY (name), UNIQUE (u)) ENGINE={}",
                engine.name()
            ),
            &format!(
                "INSERT INTO {table} SELECT seq, seq % 10, seq % 100, seq % 1000, CONCAT('a common beginning ', seq % 20), seq
                 FROM seq_1_to_{rows}"
            ),
            &format!("ANALYZE TABLE {table}"),
        ],
    );
}

#[test]
fn few_values_in_many_rows_are_counted() {
    let server = Server::start(Options::new("cardinality").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    create(&mut conn, "t", Engine::Tidepool, 30_000);
    for (column, values) in VALUES {
        let shown = "SELECT CARDINALITY FROM information_schema.STATISTICS WHERE TABLE_NAME = 't' AND COLUMN_NAME = ?";
        let found: u64 = conn.exec_first(shown, (column,)).expect("statistics").expect("an index");
        let ratio = found as f64 / values;
        assert!((0.5..2.0).contains(&ratio), "{column}: {found} values, there are {values}");
    }
}

/// How each table of a query's plan is read: by what, and how.
fn plan(conn: &mut Conn, query: &str) -> Vec<[Option<String>; 3]> {
    let rows: Vec<Row> = conn.query(format!("EXPLAIN {query}")).expect("a plan");
    let columns = ["type", "key", "Extra"];
    rows.iter().map(|row| columns.map(|column| row.get(column).expect("a column"))).collect()
}

#[test]
fn small_tables_are_read_as_those_of_innodb() {
    let server = Server::start(Options::new("plans").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    for rows in [3, 8] {
        run(&mut conn, &["DROP TABLE IF EXISTS t, i"]);
        create(&mut conn, "t", Engine::Tidepool, rows);
        create(&mut conn, "i", Engine::InnoDb, rows);
        for query in [
            "SELECT * FROM # WHERE u IN (1, 2, 3)",
            "SELECT * FROM # WHERE u BETWEEN 2 AND 3",
            "SELECT * FROM # WHERE ten = 1",
            "SELECT * FROM # ORDER BY ten LIMIT 3",
            "SELECT * FROM # ORDER BY u DESC LIMIT 5",
            "SELECT ten FROM # WHERE ten > 1",
            "SELECT * FROM # a JOIN # b ON a.ten = b.u",
            "SELECT * FROM # WHERE id IN (1, 3)",
        ] {
            let [tidepool, innodb] =
                ["t", "i"].map(|table| plan(&mut conn, &query.replace('#', table)));
            assert_eq!(tidepool, innodb, "{query}, {rows} rows");
        }
    }
}

/// The beginnings of columns in an index are no reason to fetch rows that its other columns rule
/// out, nor is another index.
#[test]
fn entries_are_filtered_where_innodb_filters_them() {
    let server = Server::start(Options::new("filters").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    for (table, engine) in [("t", Engine::Tidepool), ("i", Engine::InnoDb)] {
        run(
            &mut conn,
            &[
                &format!(
                    "CREATE TABLE {table} (id INT PRIMARY KEY, a INT, b INT, p VARCHAR(100), pad CHAR(200), KEY (a), KEY (b),
                     KEY prefix (a, p(10), b)) ENGINE={}",
                    engine.name()
                ),
                &format!(
                    "INSERT INTO {table} SELECT seq, seq % 40, seq * 7 % 10000, CONCAT('some text ', seq), REPEAT('x', 200)
                     FROM seq_1_to_10000"
                ),
                &format!("ANALYZE TABLE {table}"),
            ],
        );
    }
    for query in [
        "SELECT * FROM # FORCE INDEX (prefix) WHERE a = 3 AND p LIKE 'some%' AND b % 7 = 1",
        "SELECT * FROM # FORCE INDEX (prefix) WHERE a BETWEEN 3 AND 4 AND b % 7 = 1",
        "SELECT * FROM # IGNORE INDEX (prefix) WHERE a = 3 AND b < 300",
        "SELECT * FROM # IGNORE INDEX (prefix) WHERE a < 3 AND b BETWEEN 100 AND 400",
    ] {
        let [tidepool, innodb] =
            ["t", "i"].map(|table| plan(&mut conn, &query.replace('#', table)));
        assert_eq!(tidepool, innodb, "{query}");
        let filtered = tidepool.iter().any(|read| {
            let extra = read[2].as_deref().unwrap_or_default();
            extra.contains("index condition") || extra.contains("rowid filter")
        });
        assert!(filtered, "{query}: {tidepool:?}");
    }
    // Rows that the range does not have are not asked for, though no entry behind its end meets the
    // condition.
    run(&mut conn, &["FLUSH STATUS"]);
    run(
        &mut conn,
        &["SELECT COUNT(pad) FROM t FORCE INDEX (prefix) WHERE a BETWEEN 3 AND 4 AND b < 0"],
    );
    let attempts: (String, u64) = conn
        .query_first("SHOW STATUS LIKE 'Handler_icp_attempts'")
        .expect("a status")
        .expect("a row");
    assert_eq!(attempts.1, 500);
}

/// A range is never without rows, and a table neither: the optimizer would take that for certain.
/// Nor has a range as many as the table.
#[test]
fn estimates_leave_room_for_what_they_miss() {
    let server = Server::start(Options::new("estimates").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    for (rows, table) in [(0, "none"), (1, "one"), (3, "few"), (20_000, "many")] {
        create(&mut conn, table, Engine::Tidepool, rows.max(1));
        if rows == 0 {
            run(&mut conn, &["DELETE FROM none", "ANALYZE TABLE none"]);
        }
        for condition in [
            "u BETWEEN 100000 AND 200000",
            "u > 100000",
            "u < 0",
            "u > 0",
            "u BETWEEN -1000000 AND 1000000",
            "id > 0",
            "id > 0 AND u > 0 AND ten >= 0 AND hundred >= 0 AND name > ''",
            "u < 0 AND ten < 0 AND hundred < 0",
        ] {
            let query = format!("EXPLAIN EXTENDED SELECT * FROM {table} WHERE {condition}");
            let plan: Vec<Row> = conn.query(&query).expect("a plan");
            // With a filter by another index, what that leaves stands behind it.
            let value = |column: &str| -> f64 {
                let value: Option<String> = plan[0].get(column).expect("a column");
                let value = value.unwrap_or_else(|| panic!("{query}: no {column}: {plan:?}"));
                value.split(' ').next().expect("a word").parse().expect("a number")
            };
            let (estimate, filtered) = (value("rows"), value("filtered"));
            assert!(
                estimate >= 1.0 && estimate <= f64::from(rows.max(2)) * 1.1,
                "{query}: {plan:?}"
            );
            assert!((0.0..=100.0).contains(&filtered), "{query}: {plan:?}");
        }
    }
    // What a snapshot still has of a table that is empty by now.
    let mut old = server.connect_to("test");
    run(&mut old, &["START TRANSACTION WITH CONSISTENT SNAPSHOT"]);
    run(&mut conn, &["DELETE FROM many", "ANALYZE TABLE many"]);
    for query in [
        "SELECT COUNT(*) FROM many",
        "SELECT COUNT(*) FROM many WHERE u > 0",
        "SELECT COUNT(*) FROM few JOIN many ON many.u > few.id - 5 AND many.ten >= 0 WHERE few.id = 1",
    ] {
        assert_eq!(number(&mut old, query), 20_000, "{query}");
    }
}
