//! How SPATIAL indexes come, stay and go: CREATE and ALTER TABLE, what is refused,
//! referential actions, and what CHECK TABLE finds.

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tidepool::{Db, Options as EngineOptions};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::spatial::{Shape, geometry};
use tidepool_tests::sql::{beside_writer, check, code_of, definition, number, rows, run};

use crate::write_past_server;

const WINDOW: &str = "ST_GeomFromText('POLYGON((0 0,9 0,9 9,0 9,0 0))')";

/// Ids of the rows in the window, by the index.
fn in_window(conn: &mut Conn, table: &str) -> Vec<u32> {
    let sql = format!(
        "SELECT id FROM {table} FORCE INDEX (g) WHERE MBRIntersects(g, {WINDOW}) ORDER BY id"
    );
    conn.query(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Its count, without an index.
fn scanned(conn: &mut Conn, table: &str) -> usize {
    let sql =
        format!("SELECT COUNT(*) FROM {table} IGNORE INDEX (g) WHERE MBRIntersects(g, {WINDOW})");
    number(conn, &sql) as usize
}

#[test]
fn an_index_is_added_and_dropped_in_place_and_in_a_copy() {
    let mut server = Server::start(Options::new("spatial_alter"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, g GEOMETRY NOT NULL, b VARCHAR(50))",
            "INSERT INTO t SELECT seq, POINT(seq % 100, seq DIV 100), 'plain' FROM seq_1_to_3000",
        ],
    );
    let expect = |conn: &mut Conn| {
        assert_eq!(in_window(conn, "t").len(), 99);
        check(conn, "t");
    };
    run(&mut conn, &["ALTER TABLE t ADD SPATIAL (g), ADD KEY (b), ALGORITHM=INPLACE, LOCK=NONE"]);
    expect(&mut conn);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    expect(&mut conn);
    assert!(definition(&mut conn, "t").contains("SPATIAL KEY `g` (`g`)"));
    let kind = "SELECT INDEX_TYPE FROM information_schema.STATISTICS \
                WHERE TABLE_NAME = 't' AND INDEX_NAME = 'g'";
    assert_eq!(rows(&mut conn, kind), ["[Bytes(\"SPATIAL\")]"]);
    run(&mut conn, &["ALTER TABLE t DROP KEY b, ALGORITHM=INSTANT"]);
    run(&mut conn, &["ALTER TABLE t ADD c INT FIRST, ALGORITHM=INSTANT"]);
    run(&mut conn, &["INSERT INTO t VALUES (7, 4000, POINT(1, 1), '')"]);
    assert_eq!(in_window(&mut conn, "t").len(), 100);
    run(&mut conn, &["DELETE FROM t WHERE c = 7"]);
    run(&mut conn, &["ALTER TABLE t FORCE, ALGORITHM=COPY"]);
    expect(&mut conn);
    run(
        &mut conn,
        &["OPTIMIZE TABLE t", "ALTER TABLE t RENAME INDEX g TO places, ALGORITHM=INPLACE"],
    );
    run(&mut conn, &["ALTER TABLE t RENAME INDEX places TO g", "RENAME TABLE t TO u"]);
    run(&mut conn, &["RENAME TABLE u TO t", "ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE (b, id)"]);
    expect(&mut conn);
    run(
        &mut conn,
        &["ALTER TABLE t DROP KEY g, ALGORITHM=INSTANT", "ALTER TABLE t ADD SPATIAL (g)"],
    );
    expect(&mut conn);
    run(&mut conn, &["ALTER TABLE t ENGINE=InnoDB", "ALTER TABLE t ENGINE=Tidepool"]);
    expect(&mut conn);
    run(&mut conn, &["TRUNCATE t", "INSERT INTO t (id, g) VALUES (1, POINT(1, 1))"]);
    assert_eq!(in_window(&mut conn, "t"), [1]);
    check(&mut conn, "t");
    run(
        &mut conn,
        &[
            "CREATE TEMPORARY TABLE temp (id INT, g POINT NOT NULL, SPATIAL (g))",
            "INSERT INTO temp VALUES (1, POINT(1, 1)), (2, POINT(10, 10)), (1, POINT(1, 2))",
            "DELETE FROM temp WHERE ST_Y(g) = 2",
        ],
    );
    assert_eq!(in_window(&mut conn, "temp"), [1]);
}

#[test]
fn rows_that_are_written_while_an_index_is_built_are_in_it() {
    let server = Server::start(Options::new("spatial_beside_writers"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, g POINT NOT NULL)",
            "INSERT INTO t SELECT seq, POINT(seq % 20, seq DIV 20) FROM seq_1_to_20000",
        ],
    );
    let writes = |id: u32| {
        let id = id % 20000;
        vec![
            format!("UPDATE t SET g = POINT(5, {id} % 12) WHERE id = {id}"),
            format!("DELETE FROM t WHERE id = {}", id + 10000),
            format!("REPLACE INTO t VALUES ({}, POINT({id} % 7, 3))", 30000 + id),
        ]
    };
    beside_writer(server.connect_to("test"), writes, || {
        run(&mut conn, &["ALTER TABLE t ADD SPATIAL (g), ALGORITHM=INPLACE, LOCK=NONE"]);
    });
    check(&mut conn, "t");
    assert_eq!(in_window(&mut conn, "t").len(), scanned(&mut conn, "t"));
}

#[test]
fn what_has_no_geometry_is_refused_as_innodb_refuses_it() {
    let server = Server::start(Options::new("spatial_refused"));
    let mut conn = server.connect_to("test");
    let tables: [(&str, &[&str]); 9] = [
        ("(g POINT, SPATIAL (g))", &[]),
        ("(g POINT NOT NULL, h POINT NOT NULL, SPATIAL (g, h))", &[]),
        ("(a INT NOT NULL, SPATIAL (a))", &[]),
        ("(x INT, g POINT AS (POINT(x, x)) STORED, SPATIAL (g))", &[]),
        ("(a VARCHAR(9) NOT NULL, SPATIAL (a))", &[]),
        ("(g POINT NOT NULL, UNIQUE (g))", &[]),
        ("(g POINT NOT NULL, SPATIAL (g)) PARTITION BY HASH (1)", &[]),
        (
            "(g POINT NOT NULL, SPATIAL (g))",
            &[
                "INSERT INTO t VALUES (NULL)",
                "INSERT INTO t VALUES ('')",
                "INSERT INTO t VALUES (1)",
                "INSERT IGNORE INTO t VALUES (NULL)",
                "INSERT INTO t VALUES (POINT(1, 1))",
                "UPDATE IGNORE t SET g = NULL",
                "INSERT INTO t VALUES (ST_GeomFromText('LINESTRING(1 1,2 2)'))",
                "ALTER TABLE t MODIFY g POINT NULL",
                "UPDATE t SET g = POINT(3, 3)",
            ],
        ),
        (
            "(a INT, g POINT NOT NULL)",
            &[
                "INSERT IGNORE INTO t VALUES (1, NULL)",
                "ALTER TABLE t ADD SPATIAL (g)",
                "ALTER TABLE t ADD SPATIAL (g), ALGORITHM=COPY",
                "UPDATE t SET g = POINT(1, 1)",
                "ALTER TABLE t ADD SPATIAL (g)",
                "ALTER TABLE t ADD SPATIAL (a)",
            ],
        ),
    ];
    for (table, statements) in tables {
        let create = |engine: &str| {
            format!("CREATE OR REPLACE TABLE t {table}").replacen(
                ") PARTITION",
                &format!(") ENGINE={engine} PARTITION"),
                1,
            ) + if table.contains("PARTITION") { "" } else { " ENGINE=" }
                + if table.contains("PARTITION") { "" } else { engine }
        };
        let mut codes_of = |engine: &str| -> Vec<u16> {
            std::iter::once(create(engine).as_str())
                .chain(statements.iter().copied())
                .map(|statement| code_of(&mut conn, statement))
                .collect()
        };
        let theirs = codes_of("InnoDB");
        assert_eq!(codes_of("Tidepool"), theirs, "{table}");
    }
}

#[test]
fn cascades_reach_the_index() {
    let server = Server::start(Options::new("spatial_cascades"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "CREATE TABLE child (id INT, p INT, g POINT NOT NULL, PRIMARY KEY (p, id), \
             SPATIAL (g), \
             FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE)",
            "INSERT INTO parent VALUES (1), (2), (3)",
            "INSERT INTO child VALUES (1, 1, POINT(1, 1)), (2, 2, POINT(2, 2)), \
             (3, 3, POINT(3, 3))",
            "DELETE FROM parent WHERE id = 1",
            "UPDATE parent SET id = 20 WHERE id = 2",
        ],
    );
    assert_eq!(in_window(&mut conn, "child"), [2, 3]);
    check(&mut conn, "child");
}

#[test]
fn purge_leaves_no_entries_of_rows_that_have_moved() {
    let mut server = Server::start(Options::new("spatial_purge"));
    let mut conn = server.connect_to("test");
    let mut dice = StdRng::seed_from_u64(5);
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY, g GEOMETRY NOT NULL, SPATIAL (g))"]);
    for round in 0..20 {
        for id in 0..50 {
            let g = geometry(&mut dice, "GEOMETRY", Shape::Near);
            run(&mut conn, &[&format!("REPLACE INTO t VALUES ({id}, ST_GeomFromText('{g}'))")]);
        }
        run(&mut conn, &[&format!("DELETE FROM t WHERE id % 20 = {round}")]);
    }
    let left = number(&mut conn, "SELECT COUNT(*) FROM t") as usize;
    server.stop();
    let directory = server.data_dir().join("tidepool");
    let db = Db::open(&directory, EngineOptions::default()).expect("the directory opens");
    let table = db.open_table("test/t").expect("the table opens");
    let mut entries = 0;
    for _ in 0..1000 {
        let statistics = table.statistics().expect("statistics");
        entries = statistics.indexes[1].entries as usize;
        if entries == left {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(entries, left);
    drop(table);
    db.close().expect("it closes");
}

#[test]
fn check_table_finds_rectangles_that_rows_do_not_have() {
    let mut server = Server::start(Options::new("spatial_check"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, g POINT NOT NULL, SPATIAL (g))",
            "INSERT INTO t VALUES (1, POINT(0, 0)), (2, POINT(0, 0)), (3, POINT(5, 5))",
        ],
    );
    check(&mut conn, "t");
    write_past_server(&mut server, |trx, table| {
        // The key of a point at 0, 0: class 0, the highest bits of both places, the primary key.
        let key = |id: u8| [&[0, 0xC0][..], &[0; 11], &[0x80, 0, 0, id]].concat();
        trx.delete(table, 1, &key(1)).expect("the entry is there");
        trx.insert(table, 1, &key(9), &[0; 17]).expect("it can be inserted");
        trx.update(table, 1, &key(2), &[&[0; 16][..], &[1]].concat()).expect("the entry is there");
    });
    let mut conn = server.connect_to("test");
    let said = rows(&mut conn, "CHECK TABLE t").join("\n");
    assert!(said.contains("lacks the entry of the row with key 80000001"), "{said}");
    assert!(
        said.contains("has another value for the entry of the row with key 80000002"),
        "{said}"
    );
    assert!(said.contains("has an entry without a row"), "{said}");
    // A search does not give a row that is not there.
    let search = format!("SELECT id FROM t FORCE INDEX (g) WHERE MBRIntersects(g, {WINDOW})");
    assert_eq!(code_of(&mut conn, &search), 1034);
    run(
        &mut conn,
        &["ALTER TABLE t DROP KEY g", "ALTER TABLE t ADD SPATIAL (g), ALGORITHM=INPLACE"],
    );
    check(&mut conn, "t");
    assert_eq!(in_window(&mut conn, "t"), [1, 2, 3]);
}
