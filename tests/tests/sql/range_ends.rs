//! Ranges of indexes end where the server's conditions say: by every type of key, with every kind
//! of end, with and without locks, each beside a scan of the table.

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::run;

/// An index of the table, its columns, and literals that its first column takes.
struct Ranged {
    index: &'static str,
    column: &'static str,
    literal: fn(&mut StdRng) -> String,
}

fn text(dice: &mut StdRng) -> String {
    let len = dice.random_range(0..4);
    let text: String =
        (0..len).map(|_| *b"aAbB c".get(dice.random_range(0..6)).unwrap() as char).collect();
    format!("'{text}'")
}

const RANGED: [Ranged; 9] = [
    Ranged { index: "PRIMARY", column: "id", literal: |d| d.random_range(0..900).to_string() },
    Ranged { index: "i", column: "i", literal: |d| d.random_range(-60..60).to_string() },
    Ranged { index: "u", column: "u", literal: |d| d.random_range(0..90u64).to_string() },
    Ranged { index: "d", column: "d", literal: |d| format!("{}e0", d.random_range(-9..9)) },
    Ranged { index: "n", column: "n", literal: |d| format!("{}.5", d.random_range(-40..40)) },
    Ranged { index: "s", column: "s", literal: text },
    Ranged { index: "p", column: "p", literal: text },
    Ranged { index: "b", column: "b", literal: text },
    Ranged { index: "i_s", column: "i", literal: |d| d.random_range(-60..60).to_string() },
];

fn condition(dice: &mut StdRng, ranged: &Ranged) -> String {
    let Ranged { index, column, literal } = ranged;
    let (a, b) = (literal(dice), literal(dice));
    if *index == "i_s" && dice.random_ratio(2, 3) {
        let sign = ["<", "<=", ">", ">=", "="][dice.random_range(0..5)];
        return format!("i = {a} AND s {sign} {}", text(dice));
    }
    match dice.random_range(0..8) {
        0 => format!("{column} BETWEEN {a} AND {b}"),
        1 => format!("{column} > {a} AND {column} < {b}"),
        2 => format!("{column} < {a}"),
        3 => format!("{column} <= {a}"),
        4 => format!("{column} > {a}"),
        5 => format!("{column} = {a}"),
        6 => format!("{column} < {a} OR {column} IS NULL"),
        _ => format!("{column} BETWEEN {a} AND {b} OR {column} BETWEEN {b} AND {a}"),
    }
}

fn ids(conn: &mut Conn, query: &str) -> Vec<u32> {
    conn.query(query).unwrap_or_else(|error| panic!("{query}: {error}"))
}

fn create(conn: &mut Conn, dice: &mut StdRng, partitions: &str) {
    let table = format!(
        "CREATE TABLE t (id INT PRIMARY KEY, i INT, u BIGINT UNSIGNED NOT NULL, d DOUBLE, n \
         DECIMAL(9, 2), s VARCHAR(20), p VARCHAR(20), b VARBINARY(20), pad INT, KEY i (i), KEY u \
         (u DESC), KEY d (d), KEY n (n), KEY s (s), KEY p (p(2)), KEY b (b), KEY i_s (i, s)) \
         CHARSET utf8mb4 {partitions}"
    );
    run(conn, &["DROP TABLE IF EXISTS t", &table]);
    for id in 0..900 {
        let value = |dice: &mut StdRng, value: String| match dice.random_ratio(1, 15) {
            true => "NULL".to_owned(),
            false => value,
        };
        let (i, u) = (dice.random_range(-60..60), dice.random_range(0..90u64));
        let d = ["-0e0", "0e0", "1e0", "-2e0", "5e0"][dice.random_range(0..5)];
        let n = format!("{}.{}", dice.random_range(-40..40), dice.random_range(0..99));
        let (s, p, b) = (text(dice), text(dice), text(dice));
        let i = value(dice, i.to_string());
        let s = value(dice, s);
        run(conn, &[&format!("INSERT INTO t VALUES ({id}, {i}, {u}, {d}, {n}, {s}, {p}, {b}, 0)")]);
    }
}

#[test]
fn a_range_by_an_index_has_the_rows_of_a_scan() {
    let server = Server::start(Options::new("range_ends"));
    let mut conn = server.connect_to("test");
    let mut dice = StdRng::seed_from_u64(5);
    for partitions in ["", "PARTITION BY HASH (id) PARTITIONS 3"] {
        create(&mut conn, &mut dice, partitions);
        let mut found = 0;
        for round in 0..400 {
            let ranged = &RANGED[round % RANGED.len()];
            let condition = condition(&mut dice, ranged);
            let scan = "SELECT id FROM t IGNORE INDEX (PRIMARY, i, u, d, n, s, p, b, i_s)";
            let expected = ids(&mut conn, &format!("{scan} WHERE {condition} ORDER BY id"));
            found += expected.len();
            let index = ranged.index;
            let columns = if dice.random() { "id" } else { "id, i, s, pad" };
            let level = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][round % 3];
            let lock = ["", "LOCK IN SHARE MODE", "FOR UPDATE"][dice.random_range(0..3)];
            run(&mut conn, &[&format!("SET TRANSACTION ISOLATION LEVEL {level}"), "BEGIN"]);
            let order = match dice.random_range(0..3) {
                0 => "",
                1 => &format!("ORDER BY {}", ranged.column),
                _ => &format!("ORDER BY {} DESC", ranged.column),
            };
            let by_index = format!(
                "SELECT {columns} FROM t FORCE INDEX ({index}) WHERE {condition} {order} {lock}"
            );
            let rows: Vec<mysql::Row> =
                conn.query(&by_index).unwrap_or_else(|error| panic!("{by_index}: {error}"));
            let mut seen: Vec<u32> = rows.iter().map(|row| row.get(0).expect("an id")).collect();
            seen.sort_unstable();
            assert_eq!(seen, expected, "{level}: {by_index}");
            let update =
                format!("UPDATE t FORCE INDEX ({index}) SET pad = pad + 1 WHERE {condition}");
            run(&mut conn, &[&update]);
            assert_eq!(conn.affected_rows(), expected.len() as u64, "{level}: {update}");
            run(&mut conn, &["COMMIT"]);
        }
        assert!(found > 20_000, "{found} rows in ranges");
    }
}

/// HANDLER goes on behind the entries with the key that it has searched for.
#[test]
fn a_handler_goes_on_behind_its_search() {
    let server = Server::start(Options::new("range_ends_handler"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, k INT, KEY k (k))",
            "INSERT INTO t SELECT seq, seq DIV 10 FROM seq_0_to_99",
            "HANDLER t OPEN",
        ],
    );
    let read = |conn: &mut Conn, what: &str| -> Vec<u32> {
        let rows: Vec<(u32, u32)> = conn.query(format!("HANDLER t READ k {what}")).expect("rows");
        rows.into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!(read(&mut conn, "= (4) LIMIT 100"), Vec::from_iter(40..50));
    assert_eq!(read(&mut conn, "NEXT LIMIT 3"), [50, 51, 52]);
    assert_eq!(read(&mut conn, "= (4) LIMIT 4"), [40, 41, 42, 43]);
    assert_eq!(read(&mut conn, "NEXT LIMIT 8"), Vec::from_iter(44..52));
    assert_eq!(read(&mut conn, "PREV LIMIT 3"), [50, 49, 48]);
    assert_eq!(read(&mut conn, "= (4) LIMIT 1"), [40]);
    assert_eq!(read(&mut conn, "PREV LIMIT 2"), [39, 38]);
    assert_eq!(read(&mut conn, "<= (4) LIMIT 2"), [49, 48]);
    assert_eq!(read(&mut conn, "> (4) LIMIT 2"), [50, 51]);
    run(&mut conn, &["HANDLER t CLOSE"]);
}
