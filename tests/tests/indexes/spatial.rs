//! SPATIAL indexes: window queries beside InnoDB, and beside a model in transactions and after
//! crashes; locks.

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::spatial::{Shape, TYPES, geometry};
use tidepool_tests::sql::{check, code_of, number, rows, run};
use tidepool_tests::two_sessions::{Modelled, Rows, history};

const RECORD_CHANGED: u16 = 1020;
const LOCK_TIMEOUT: u16 = 1205;

/// All functions for which the server asks an index.
const RELATIONS: [&str; 15] = [
    "MBRContains",
    "MBRWithin",
    "MBRIntersects",
    "MBRDisjoint",
    "MBREqual",
    "MBROverlaps",
    "MBRTouches",
    "ST_Contains",
    "ST_Within",
    "ST_Intersects",
    "ST_Disjoint",
    "ST_Equals",
    "ST_Overlaps",
    "ST_Touches",
    "ST_Crosses",
];

/// The first of them find the same without an index.
const COMPARED_WITH_A_SCAN: usize = 6;

fn ids(conn: &mut Conn, query: &str) -> Vec<u32> {
    conn.query(query).unwrap_or_else(|error| panic!("{query}: {error}"))
}

/// Whether the server reads the index for a query.
fn uses_index(conn: &mut Conn, query: &str) -> bool {
    rows(conn, &format!("EXPLAIN {query}"))[0].contains("Bytes(\"range\")")
}

#[test]
fn all_types_and_relations_find_the_rows_that_innodb_finds() {
    let server = Server::start(Options::new("spatial_innodb"));
    let mut conn = server.connect_to("test");
    let mut dice = StdRng::seed_from_u64(1);
    let (mut found_some, mut asked) = (0, 0);
    for column_type in TYPES {
        for (table, engine) in [("t", "Tidepool"), ("i", "InnoDB")] {
            run(
                &mut conn,
                &[
                    &format!("DROP TABLE IF EXISTS {table}"),
                    &format!(
                        "CREATE TABLE {table} (id INT PRIMARY KEY, g {column_type} NOT NULL, \
                         SPATIAL (g)) ENGINE={engine}"
                    ),
                ],
            );
        }
        let mut shapes = Vec::new();
        for id in 1..=150 {
            let shape = geometry(&mut dice, column_type, Shape::Any);
            let insert = |table: &str| {
                format!("INSERT INTO {table} VALUES ({id}, ST_GeomFromText('{shape}'))")
            };
            run(&mut conn, &[&insert("t"), &insert("i")]);
            shapes.push(shape);
        }
        for n in 0..80 {
            let relation = RELATIONS[n % RELATIONS.len()];
            let window = match dice.random_range(0..3) {
                0 => shapes[dice.random_range(0..shapes.len())].clone(),
                _ => {
                    let kind = TYPES[dice.random_range(0..TYPES.len())];
                    geometry(&mut dice, kind, Shape::Any)
                }
            };
            let window = format!("ST_GeomFromText('{window}')");
            for arguments in [format!("g, {window}"), format!("{window}, g")] {
                let query = |table: &str| {
                    format!(
                        "SELECT id FROM {table} FORCE INDEX (g) WHERE {relation}({arguments}) \
                         ORDER BY id"
                    )
                };
                let ours = ids(&mut conn, &query("t"));
                assert_eq!(ours, ids(&mut conn, &query("i")), "{column_type}: {}", query("t"));
                // For some others the server asks an index for fewer than it should, InnoDB's too.
                if n % RELATIONS.len() < COMPARED_WITH_A_SCAN {
                    let all = query("t").replace("FORCE", "IGNORE");
                    assert_eq!(ours, ids(&mut conn, &all), "{column_type}: {}", query("t"));
                }
                asked += usize::from(uses_index(&mut conn, &query("t")));
                found_some += usize::from(!ours.is_empty());
            }
        }
        check(&mut conn, "t");
    }
    assert!(found_some > 300 && asked > 900, "{found_some} {asked}");
}

/// What one session knows of the rows: their rectangles.
type Rectangles = Rows<[i32; 4]>;

fn polygon([x, to_x, y, to_y]: [i32; 4]) -> String {
    format!("ST_GeomFromText('POLYGON(({x} {y},{to_x} {y},{to_x} {to_y},{x} {to_y},{x} {y}))')")
}

/// A rectangle that is near 0, of any size; or wide and flat.
fn rectangle(dice: &mut StdRng) -> [i32; 4] {
    let (x, y) = (dice.random_range(-100..100), dice.random_range(-100..100));
    let most = [2, 10, 100][dice.random_range(0..3)];
    [x, x + dice.random_range(1..=most), y, y + dice.random_range(1..=most)]
}

/// Rectangles with an index.
struct Indexed;

impl Modelled for Indexed {
    type Row = [i32; 4];

    const TABLE: &str =
        "CREATE TABLE t (id INT PRIMARY KEY, g POLYGON NOT NULL, a TEXT, SPATIAL (g))";
    const STEPS: u32 = 200;
    const CHANGES: u32 = 8;
    const KILLS: f64 = 0.1;

    fn change(conn: &mut Conn, dice: &mut StdRng, session: u32, sees: &mut Rectangles) {
        let id = 1 + 2 * dice.random_range(0..60) + session;
        let known = sees.get(&id).copied();
        let next = match (known, dice.random_range(0..3)) {
            // A little step, mostly within the cell.
            (Some([x, to_x, y, to_y]), 0) => [x, to_x + 1, y, to_y],
            _ => rectangle(dice),
        };
        let g = polygon(next);
        let statement = match (known, dice.random_range(0..6)) {
            (Some(_), 0) => {
                sees.remove(&id);
                conn.query_drop(format!("DELETE FROM t WHERE id = {id}")).expect("a delete");
                return;
            }
            (Some(_), 1) => format!("REPLACE INTO t VALUES ({id}, {g}, 'new')"),
            (Some(_), 2) => format!(
                "INSERT INTO t VALUES ({id}, {g}, '') ON DUPLICATE KEY UPDATE g = VALUES(g)"
            ),
            (Some(from), 3) => format!(
                "UPDATE t FORCE INDEX (g) SET g = {g} WHERE MBREqual(g, {}) AND id = {id}",
                polygon(from)
            ),
            (Some(_), _) => format!("UPDATE t SET g = {g} WHERE id = {id}"),
            (None, _) => format!("INSERT INTO t VALUES ({id}, {g}, 'some text')"),
        };
        conn.query_drop(&statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        sees.insert(id, next);
    }

    fn compare(conn: &mut Conn, dice: &mut StdRng, sees: &Rectangles, what: &str) {
        let window = rectangle(dice);
        let matching = |lies: fn(&[i32; 4], &[i32; 4]) -> bool| -> Vec<u32> {
            sees.iter().filter(|(_, one)| lies(one, &window)).map(|(id, _)| *id).collect()
        };
        let expected = [
            (
                "MBRIntersects",
                matching(|a, b| a[0] <= b[1] && b[0] <= a[1] && a[2] <= b[3] && b[2] <= a[3]),
            ),
            (
                "MBRWithin",
                matching(|a, b| a[0] >= b[0] && a[1] <= b[1] && a[2] >= b[2] && a[3] <= b[3]),
            ),
            (
                "MBRContains",
                matching(|a, b| a[0] <= b[0] && a[1] >= b[1] && a[2] <= b[2] && a[3] >= b[3]),
            ),
            ("MBREqual", matching(|a, b| a == b)),
        ];
        for (relation, expected) in expected {
            let sql = format!(
                "SELECT id FROM t FORCE INDEX (g) WHERE {relation}(g, {}) ORDER BY id",
                polygon(window)
            );
            assert_eq!(ids(conn, &sql), expected, "{what}: {sql}");
        }
    }
}

#[test]
fn windows_show_what_the_model_has_in_transactions_and_after_crashes() {
    let mut server = Server::start(Options::new("spatial_model"));
    let seeds = std::env::var("TIDEPOOL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    for seed in 0..seeds {
        history::<Indexed>(&mut server, seed);
    }
}

/// Three points in the window of `IN_WINDOW`, one outside of it.
fn make_points(conn: &mut Conn) {
    run(
        conn,
        &[
            "DROP TABLE IF EXISTS t",
            "CREATE TABLE t (id INT PRIMARY KEY, g POINT NOT NULL, SPATIAL (g))",
            "INSERT INTO t VALUES (1, POINT(1, 1)), (2, POINT(2, 2)), (3, POINT(50, 50)), \
             (4, POINT(3, 3))",
        ],
    );
}

const IN_WINDOW: &str = "SELECT id FROM t FORCE INDEX (g) WHERE \
     MBRWithin(g, ST_GeomFromText('POLYGON((0 0,9 0,9 9,0 9,0 0))'))";

#[test]
fn locking_reads_lock_rows_and_give_none_that_has_moved_since() {
    let server = Server::start(Options::new("spatial_locks"));
    let (mut first, mut second) = (server.connect_to("test"), server.connect_to("test"));
    make_points(&mut first);
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
                "UPDATE t SET g = POINT(1, 1) WHERE id = 1",
                "BEGIN",
                "UPDATE t SET g = POINT(20, 20) WHERE id = 1",
            ],
        );
        run(&mut second, &[&format!("SET TRANSACTION ISOLATION LEVEL {level}"), begin]);
        let found = std::thread::scope(|scope| {
            let second = &mut second;
            let search =
                scope.spawn(move || second.query::<u32, _>(format!("{IN_WINDOW} FOR UPDATE")));
            let mut other = server.connect();
            let waits = "SELECT COUNT(*) FROM information_schema.TIDEPOOL_LOCKS WHERE lock_status \
             = 'WAITING'";
            while number(&mut other, waits) == 0 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            run(&mut first, &["COMMIT"]);
            search.join().expect("the search ends")
        });
        match found {
            found if begin == statement => {
                let mut found = found.expect("a result");
                found.sort_unstable();
                assert_eq!(found, [2, 4], "{level}");
                // Those found are locked, and at READ COMMITTED no others.
                if level == "READ COMMITTED" {
                    run(&mut first, &["UPDATE t SET g = POINT(30, 30) WHERE id IN (1, 3)"]);
                }
                let locked = "SELECT id FROM t WHERE id = 2 FOR UPDATE NOWAIT";
                assert_eq!(code_of(&mut first, locked), LOCK_TIMEOUT);
            }
            Err(mysql::Error::MySqlError(error)) => assert_eq!(error.code, RECORD_CHANGED),
            other => panic!("{other:?}"),
        }
        run(&mut second, &["ROLLBACK"]);
    }
    // What is locked by another is left out, or refused.
    make_points(&mut first);
    run(&mut first, &["BEGIN", "SELECT id FROM t WHERE id = 2 FOR UPDATE"]);
    let mut found = ids(&mut second, &format!("{IN_WINDOW} FOR UPDATE SKIP LOCKED"));
    found.sort_unstable();
    assert_eq!(found, [1, 4]);
    assert_eq!(code_of(&mut second, &format!("{IN_WINDOW} FOR UPDATE NOWAIT")), LOCK_TIMEOUT);
    run(&mut first, &["COMMIT"]);
}

#[test]
fn at_serializable_nothing_comes_into_a_window_that_was_read() {
    let server = Server::start(Options::new("spatial_serializable"));
    let (mut first, mut second) = (server.connect_to("test"), server.connect_to("test"));
    make_points(&mut first);
    run(&mut first, &["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "BEGIN"]);
    assert_eq!(ids(&mut first, &format!("{IN_WINDOW} FOR UPDATE")).len(), 3);
    run(&mut second, &["SET tidepool_lock_wait_timeout = 0"]);
    for statement in [
        "INSERT INTO t VALUES (9, POINT(5, 5))",
        "UPDATE t SET g = POINT(4, 4) WHERE id = 3",
        "DELETE FROM t WHERE id = 1",
    ] {
        assert_eq!(code_of(&mut second, statement), LOCK_TIMEOUT, "{statement}");
    }
    run(&mut first, &["COMMIT"]);
    run(&mut second, &["INSERT INTO t VALUES (9, POINT(5, 5))"]);
    assert_eq!(ids(&mut first, IN_WINDOW).len(), 4);
}

#[test]
fn rows_are_found_for_writes_joins_and_other_access_paths() {
    let server = Server::start(Options::new("spatial_paths"));
    let mut conn = server.connect_to("test");
    make_points(&mut conn);
    let window = "ST_GeomFromText('POLYGON((0 0,9 0,9 9,0 9,0 0))')";
    // An update that moves rows along the index does not meet them again.
    run(
        &mut conn,
        &[&format!(
            "UPDATE t FORCE INDEX (g) SET g = POINT(ST_X(g) + 1, ST_Y(g)) \
             WHERE MBRWithin(g, {window})"
        )],
    );
    let sums = "SELECT SUM(ST_X(g)) FROM t";
    assert_eq!(number(&mut conn, sums), 59);
    let both = format!(
        "SELECT id FROM t WHERE MBRWithin(g, {window}) OR \
         MBREqual(g, POINT(50, 50)) ORDER BY id"
    );
    assert_eq!(ids(&mut conn, &both), [1, 2, 3, 4]);
    let or_key =
        format!("SELECT id FROM t FORCE INDEX (g, PRIMARY) WHERE MBRWithin(g, {window}) OR id = 3");
    assert_eq!(ids(&mut conn, &or_key).len(), 4);
    run(&mut conn, &["CREATE TABLE w (n INT PRIMARY KEY, g POLYGON NOT NULL)"]);
    run(&mut conn, &[&format!("INSERT INTO w VALUES (1, {window})")]);
    let join = "SELECT t.id FROM w JOIN t ON MBRWithin(t.g, w.g) ORDER BY t.id";
    assert_eq!(ids(&mut conn, join), [1, 2, 4]);
    for sql in [
        "SELECT COUNT(*) FROM t FORCE INDEX (g)",
        "SELECT COUNT(*) FROM t FORCE INDEX (g) WHERE g IS NOT NULL",
        "SELECT COUNT(DISTINCT g) FROM t FORCE INDEX (g)",
    ] {
        assert_eq!(number(&mut conn, sql), 4, "{sql}");
    }
    let sorted = "SELECT id FROM t FORCE INDEX (g) ORDER BY g LIMIT 1";
    assert_eq!(ids(&mut conn, sorted).len(), 1);
    run(&mut conn, &["HANDLER t OPEN"]);
    assert_eq!(rows(&mut conn, "HANDLER t READ g FIRST").len(), 1);
    assert_eq!(rows(&mut conn, "HANDLER t READ g NEXT LIMIT 10").len(), 3);
    run(&mut conn, &["HANDLER t CLOSE"]);
    run(
        &mut conn,
        &[
            &format!("DELETE FROM t WHERE MBRWithin(g, {window})"),
            "INSERT INTO t VALUES (1, POINT(1, 1))",
        ],
    );
    assert_eq!(ids(&mut conn, "SELECT id FROM t ORDER BY id"), [1, 3]);
    check(&mut conn, "t");
}

/// The clustered key, of which entries have more than the bytes that compare.
#[test]
fn rows_of_any_primary_key_are_found() {
    let server = Server::start(Options::new("spatial_keys"));
    let mut conn = server.connect_to("test");
    for key in [
        "PRIMARY KEY (a)",
        "PRIMARY KEY (b, a)",
        "PRIMARY KEY (d, id)",
        "PRIMARY KEY (a(2) DESC, id)",
        "UNIQUE (id)",
        "UNIQUE (id, b)",
    ] {
        run(
            &mut conn,
            &[
                "DROP TABLE IF EXISTS t",
                &format!(
                    "CREATE TABLE t (id INT, a VARCHAR(20) NOT NULL, b CHAR(10) NOT NULL, \
                     d DOUBLE NOT NULL, g GEOMETRY NOT NULL, SPATIAL (g), KEY (b), {key})"
                ),
                "INSERT INTO t SELECT seq, CONCAT('Row ', seq), CONCAT('b ', seq % 5), -seq / 4, \
                 IF(seq % 2, POINT(seq, seq), \
                    ST_GeomFromText(CONCAT('LINESTRING(', seq, ' 1,1 1)'))) \
                 FROM seq_1_to_50",
            ],
        );
        let window = "ST_GeomFromText('POLYGON((0 0,9 0,9 9,0 9,0 0))')";
        let expected: Vec<u32> = (1..=50).filter(|id| id % 2 == 0 || *id <= 9).collect();
        let query = format!(
            "SELECT id FROM t FORCE INDEX (g) WHERE MBRIntersects(g, {window}) ORDER BY id"
        );
        assert_eq!(ids(&mut conn, &query), expected, "{key}");
        // Both indexes are read without their rows at first.
        let merged = format!(
            "SELECT COUNT(*) FROM t FORCE INDEX (g, b) WHERE MBRWithin(g, {window}) OR b = 'b 0'"
        );
        // Four points and four lines, ten rows with that b, and one that is of both.
        assert_eq!(number(&mut conn, &merged), 4 + 4 + 10 - 1, "{key}");
        check(&mut conn, "t");
    }
}
