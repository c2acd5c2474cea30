//! docs/reference/sql.md says what a running server shows: every name, every column, every default,
//! and no other; and its statements work.

use std::collections::{BTreeMap, BTreeSet};

use mysql::prelude::Queryable;
use mysql::{Conn, Row};
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server};

fn page() -> String {
    let path = Environment::get().root().join("docs/reference/sql.md");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn server(name: &str) -> Server {
    Server::start(Options::new(name).engine(Engine::Tidepool))
}

/// Whole words of the text that begin with `prefix`, in this very case. One that ends with `_`
/// stands for many (`tidepool_…`).
fn words<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let is_boundary = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    text.split(is_boundary)
        .filter(|word| word.starts_with(prefix) && !word.ends_with('_'))
        .collect()
}

/// The tables of the page below a heading, up to the next: rows of cells, without their marks.
fn cells(section: &str) -> Vec<Vec<String>> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        row.trim_matches('|').split(" | ").map(|cell| cell.replace('`', "").trim().into()).collect()
    })
    .collect()
}

/// The part of the page below a heading of this text.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("docs/reference/sql.md has no heading {heading}"));
    rest.split_once("\n#").map_or(rest, |(section, _)| section)
}

fn assert_same(what: &str, told: &BTreeSet<&str>, there: &[String]) {
    let there: BTreeSet<&str> = there.iter().map(String::as_str).collect();
    let untold: Vec<_> = there.difference(told).collect();
    let invented: Vec<_> = told.difference(&there).collect();
    assert!(untold.is_empty(), "docs/reference/sql.md does not name the {what} {untold:?}");
    assert!(
        invented.is_empty(),
        "docs/reference/sql.md names {what} that do not exist: {invented:?}"
    );
}

fn names(conn: &mut Conn, sql: &str) -> Vec<String> {
    let rows: Vec<Row> = conn.query(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
    rows.into_iter().map(|row| row.get(0).expect("a name")).collect()
}

#[test]
fn every_variable_is_told_with_its_default() {
    let (page, server) = (page(), server("sql_variables"));
    let conn = &mut server.connect();
    let there = names(conn, "SHOW GLOBAL VARIABLES LIKE 'tidepool%'");
    assert_same("system variables", &words(&page, "tidepool_"), &there);

    let rows = cells(section(&page, "## System variables"));
    let told: BTreeMap<&str, &[String]> =
        rows.iter().map(|row| (row[0].as_str(), &row[1..])).collect();
    let facts: Vec<(String, Option<String>, String)> = conn
        .query(
            "SELECT LOWER(VARIABLE_NAME), DEFAULT_VALUE, READ_ONLY FROM information_schema.SYSTEM_VARIABLES
             WHERE VARIABLE_NAME LIKE 'tidepool%'",
        )
        .expect("a select works");
    assert_eq!(facts.len(), there.len());
    for (name, default, read_only) in facts {
        let row = told.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no row"));
        assert_eq!(row.len(), 5, "{name}: {row:?}");
        let default = match default.as_deref().unwrap_or_default() {
            "" => "empty",
            text => text,
        };
        let is_same = match (row[0].parse::<f64>(), default.parse::<f64>()) {
            (Ok(told), Ok(real)) => told == real,
            _ => row[0] == default,
        };
        assert!(is_same, "{name}: the default is {default}, not {}", row[0]);
        assert_eq!(row[2], if read_only == "YES" { "no" } else { "yes" }, "{name} is dynamic");
    }
}

/// Programs find the isolation level, which has two names, by one pattern, and take the row that
/// they get: sysbench-tpcc does.
#[test]
fn a_lookup_of_the_isolation_level_finds_nothing_else() {
    let server = server("sql_lookups");
    let conn = &mut server.connect();
    for scope in ["", "SESSION ", "GLOBAL "] {
        let found = names(conn, &format!("SHOW {scope}VARIABLES LIKE 't%_isolation'"));
        let names = ["transaction_isolation", "tx_isolation"];
        assert!(
            !found.is_empty() && found.iter().all(|name| names.contains(&&**name)),
            "{found:?}"
        );
    }
}

#[test]
fn every_status_variable_is_told() {
    let (page, server) = (page(), server("sql_status"));
    let conn = &mut server.connect();
    let there = names(conn, "SHOW GLOBAL STATUS LIKE 'Tidepool%'");
    assert!(there.len() > 100, "{there:?}");
    assert_same("status variables", &words(&page, "Tidepool_"), &there);
    // In a table, too, not only by the way.
    let tables: String = page.lines().filter(|line| line.starts_with("| `Tidepool_")).collect();
    assert_same("status variables in a table", &words(&tables, "Tidepool_"), &there);
}

#[test]
fn every_table_is_told_with_its_columns() {
    let (page, server) = (page(), server("sql_tables"));
    let conn = &mut server.connect();
    let columns: Vec<(String, String)> = conn
        .query(
            "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS
             WHERE TABLE_SCHEMA = 'information_schema' AND TABLE_NAME LIKE 'TIDEPOOL%' ORDER BY TABLE_NAME, ORDINAL_POSITION",
        )
        .expect("a select works");
    let tables: BTreeSet<String> = columns.iter().map(|column| column.0.clone()).collect();
    let tables: Vec<String> = tables.into_iter().collect();
    assert_same("tables", &words(&page, "TIDEPOOL_"), &tables);
    for table in tables {
        let there: Vec<&str> = columns
            .iter()
            .filter(|column| column.0 == table)
            .map(|column| column.1.as_str())
            .collect();
        let rows = cells(section(&page, &format!("### {table}")));
        let told: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(told, there, "columns of {table}");
    }
}

#[test]
fn the_statements_work() {
    let page = page();
    let options = Options::new("sql_statements").engine(Engine::Tidepool);
    let server = Server::start(options.arg("--performance-schema=ON"));
    let conn = &mut server.connect_to("test");
    conn.query_drop("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100), KEY (v))")
        .expect("a table");
    conn.query_drop("INSERT INTO t SELECT seq, 'x' FROM seq_1_to_1000").expect("rows");
    let mut count = 0;
    for block in page.split("```sql\n").skip(1) {
        let (statements, _) = block.split_once("```").expect("a block ends");
        for statement in statements.split(";\n") {
            if statement.trim().is_empty() {
                continue;
            }
            let rows: Vec<Row> =
                conn.query(statement).unwrap_or_else(|e| panic!("{statement}: {e}"));
            count += 1;
            let is_about_waits = statement.contains("'WAITING'") || statement.contains("_TRX");
            let has_rows = !rows.is_empty();
            assert!(has_rows || is_about_waits || statement.starts_with("SET"), "{statement}");
        }
    }
    assert!(count > 15, "only {count} statements were found");
}
