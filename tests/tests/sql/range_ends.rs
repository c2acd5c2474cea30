//! Ranges of indexes end where the server's conditions say: by every type of key, with every kind
//! of end, with and without locks, each beside a scan of the table.

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::{code_of, rows, run, sorted_rows};

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

/// An index that has a group's column first, and then the one whose least and greatest are asked
/// for; between them may be a column of which one value is wanted.
struct Grouped {
    index: &'static str,
    column: &'static str,
    is_text: bool,
    between: &'static str,
}

const GROUPED: [Grouped; 5] = [
    Grouped { index: "a_b", column: "a", is_text: false, between: "" },
    Grouped { index: "n_b", column: "n", is_text: false, between: "" },
    Grouped { index: "s_b", column: "s", is_text: true, between: "" },
    Grouped { index: "d_b", column: "d", is_text: false, between: "" },
    Grouped { index: "a_c_b", column: "a", is_text: false, between: "c" },
];

/// A group by itself is no range if the column of the extremes has several: the server then gives
/// the group for each of them, with every engine.
fn group_condition(dice: &mut StdRng, grouped: &Grouped, singles: bool) -> String {
    let literal = |number: i32| match grouped.is_text {
        true => format!("'g{number:02}'"),
        false => number.to_string(),
    };
    let column = grouped.column;
    let range = |dice: &mut StdRng| {
        let low = dice.random_range(0..40);
        let (a, b) = (literal(low), literal(low + dice.random_range(1..6)));
        match dice.random_range(0..12) {
            0 if singles => format!("{column} = {a}"),
            1 if singles => format!("{column} > {a} AND {column} < {b}"),
            2 if singles => format!("{column} IN ({a}, {b})"),
            3 if singles => format!("{column} IS NULL"),
            4 => format!("{column} < {}", literal(low / 6)),
            5 => format!("{column} >= {}", literal(40 - low / 6)),
            _ => format!("{column} BETWEEN {a} AND {b}"),
        }
    };
    let ranges: Vec<String> = (0..dice.random_range(1..5)).map(|_| range(dice)).collect();
    format!("({})", ranges.join(" OR "))
}

fn grouping(dice: &mut StdRng, grouped: &Grouped) -> [String; 3] {
    let Grouped { column, between, .. } = grouped;
    let (low, high) = (dice.random_range(0..400), dice.random_range(100..500));
    let only_extremes = dice.random_ratio(2, 3);
    let within = match dice.random_range(0..12) {
        0 => format!(" AND b > {low}"),
        1 => format!(" AND b <= {high}"),
        2 => format!(" AND b BETWEEN {low} AND {high}"),
        3 => " AND b IS NOT NULL".to_owned(),
        4 => format!(" AND (b < {low} OR b > {high})"),
        5 => format!(" AND (b IS NULL OR b > {low})"),
        _ => String::new(),
    };
    let within = if only_extremes { &within } else { "" };
    let mut condition = group_condition(dice, grouped, !within.contains("OR"));
    if !between.is_empty() {
        condition += &format!(" AND {between} = {}", dice.random_range(0..3));
    }
    condition += within;
    if only_extremes {
        let extremes = ["MIN(b)", "MAX(b)", "MIN(b), MAX(b)"][dice.random_range(0..3)];
        return [format!("{column}, {extremes}"), condition, format!("GROUP BY {column}")];
    }
    match dice.random_range(0..4) {
        0 => [format!("DISTINCT {column}"), condition, String::new()],
        1 => [column.to_string(), condition, format!("GROUP BY {column}")],
        2 => [format!("DISTINCT {column}"), condition, format!("ORDER BY {column} DESC")],
        _ => [format!("COUNT(DISTINCT {column})"), condition, String::new()],
    }
}

/// The server goes from group to group by searches, and ends a range by its own comparison.
#[test]
fn a_scan_from_group_to_group_gives_each_group_once() {
    let server = Server::start(Options::new("range_ends_groups"));
    let mut conn = server.connect_to("test");
    let mut dice = StdRng::seed_from_u64(17);
    for partitions in ["", "PARTITION BY HASH (id) PARTITIONS 3"] {
        let table = format!(
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, n INT NOT NULL, s VARCHAR(20), d INT, b \
             INT, c INT NOT NULL, KEY a_b (a, b), KEY n_b (n, b), KEY s_b (s, b), KEY d_b (d DESC, \
             b DESC), KEY a_c_b (a, c, b)) CHARSET utf8mb4 {partitions}"
        );
        let fill = "INSERT INTO t SELECT seq, IF(seq MOD 43 = 0, NULL, seq MOD 40), seq MOD 41,
             IF(seq MOD 53 = 0, NULL, CONCAT('g', LPAD(seq MOD 39, 2, '0'))),
             IF(seq MOD 47 = 0, NULL, seq MOD 42), IF(seq MOD 5 = 0, NULL, seq * 7919 MOD 501),
             seq MOD 3 FROM seq_1_to_8000";
        run(&mut conn, &["DROP TABLE IF EXISTS t", &table, fill, "ANALYZE TABLE t"]);
        let mut loose = 0;
        for round in 0..600 {
            let grouped = &GROUPED[round % GROUPED.len()];
            let [columns, condition, tail] = grouping(&mut dice, grouped);
            let scan = format!(
                "SELECT {columns} FROM t IGNORE INDEX (a_b, n_b, s_b, d_b, a_c_b) WHERE \
                 {condition} {tail}"
            );
            let expected = sorted_rows(&mut conn, &scan);
            let lock = ["", "LOCK IN SHARE MODE", "FOR UPDATE"][dice.random_range(0..3)];
            let index = grouped.index;
            let by_groups = format!(
                "SELECT {columns} FROM t FORCE INDEX ({index}) WHERE {condition} {tail} {lock}"
            );
            let levels = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
            let level = levels[dice.random_range(0..4)];
            let pushdown = ["on", "off"][dice.random_range(0..2)];
            run(
                &mut conn,
                &[
                    &format!("SET optimizer_switch = 'index_condition_pushdown={pushdown}'"),
                    &format!("SET TRANSACTION ISOLATION LEVEL {level}"),
                    "BEGIN",
                ],
            );
            let plan = rows(&mut conn, &format!("EXPLAIN {by_groups}")).concat();
            loose += usize::from(plan.contains("Using index for group-by"));
            assert_eq!(
                sorted_rows(&mut conn, &by_groups),
                expected,
                "{level}: {by_groups}: {plan}"
            );
            run(&mut conn, &["COMMIT"]);
        }
        assert!(loose > 200, "{loose} scans from group to group");
    }
}

/// It locks the first entry beyond its range, and not the groups that follow.
#[test]
fn a_scan_from_group_to_group_locks_nothing_far_behind_its_range() {
    let server = Server::start(Options::new("range_ends_group_locks"));
    let (mut conn, mut other) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, a INT, b INT, KEY (a, b))",
            "INSERT INTO t (a, b) SELECT seq MOD 10, seq FROM seq_1_to_20000",
            "ANALYZE TABLE t",
        ],
    );
    let groups = "SELECT a, MIN(b) FROM t WHERE a BETWEEN 1 AND 2 GROUP BY a FOR UPDATE";
    let plan = rows(&mut conn, &format!("EXPLAIN {groups}")).concat();
    assert!(plan.contains("Using index for group-by"), "{plan}");
    run(&mut conn, &["BEGIN"]);
    assert_eq!(sorted_rows(&mut conn, groups).len(), 2);
    for (group, code) in [(1, 1205), (2, 1205), (4, 0), (5, 0), (9, 0)] {
        let first = format!(
            "SELECT id FROM t FORCE INDEX (a) WHERE a = {group} ORDER BY b LIMIT 1 FOR UPDATE \
             NOWAIT"
        );
        assert_eq!(code_of(&mut other, &first), code, "{first}");
    }
}
