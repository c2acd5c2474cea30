//! Scripts of statements on both engines.

use std::collections::BTreeMap;
use std::fmt::Write;

use mysql::prelude::Queryable;
use mysql::{Conn, Row};
use tidepool_tests::server::Engine;
use tidepool_tests::sql::{row_text, run};

use super::{ENGINES, assert_reasoned, server, text};

/// A script has a line `## name`, then statements that end with `;` at the end of a line. One that
/// begins with `@b` runs on a second connection.
struct Script {
    name: String,
    statements: Vec<String>,
}

fn scripts() -> Vec<Script> {
    let text = text("statements.txt");
    let (_, blocks) = text.split_once("\n## ").expect("there are scripts");
    blocks
        .split("\n## ")
        .map(|block| {
            let (name, body) = block.split_once('\n').expect("a script has statements");
            let statements = body.split(";\n").map(str::trim).filter(|part| !part.is_empty());
            let statements = statements.map(|part| part.trim_end_matches(';').to_owned()).collect();
            Script { name: name.trim().into(), statements }
        })
        .collect()
}

/// Two sessions in an empty database.
fn sessions(server: &tidepool_tests::server::Server, engine: Engine) -> [Conn; 2] {
    let mut conn = server.connect();
    run(&mut conn, &["DROP DATABASE IF EXISTS same", "CREATE DATABASE same"]);
    let session = || {
        let mut conn = server.connect_to("same");
        run(
            &mut conn,
            &[
                &format!("SET default_storage_engine = {}", engine.name()),
                "SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, timestamp = 1700000000",
                "SET tidepool_lock_wait_timeout = 1",
            ],
        );
        conn
    };
    [session(), session()]
}

/// What a client sees of a statement.
fn seen(conn: &mut Conn, statement: &str) -> String {
    let mut text = String::new();
    match conn.query::<Row, _>(statement) {
        Ok(rows) => {
            let affected = conn.affected_rows();
            let mut rows: Vec<String> = rows.into_iter().map(row_text).collect();
            // Without an order any is right.
            if !statement.to_ascii_uppercase().contains("ORDER BY") {
                rows.sort();
            }
            let _ = write!(text, "{affected} affected {}", rows.join(" "));
        }
        Err(mysql::Error::MySqlError(error)) => {
            let _ = write!(text, "error {}", error.code);
        }
        Err(error) => panic!("{statement}: {error}"),
    }
    // SHOW WARNINGS after itself or GET DIAGNOSTICS would say less, and not the same.
    let warnings: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").unwrap();
    let mut codes: Vec<String> = warnings.iter().map(|warning| warning.1.to_string()).collect();
    // InnoDB notes some errors twice.
    if text.starts_with("error") {
        codes.dedup();
    }
    if !codes.is_empty() {
        let _ = write!(text, " warnings {}", codes.join(" "));
    }
    text
}

/// The statements with what was seen, where the engines' names are one.
fn transcript(
    server: &tidepool_tests::server::Server,
    script: &Script,
    engine: Engine,
) -> Vec<String> {
    let [mut a, mut b] = sessions(server, engine);
    let mut lines = Vec::new();
    for statement in &script.statements {
        let text = statement.replace("{engine}", engine.name());
        let seen = match text.strip_prefix("@b") {
            Some(text) => seen(&mut b, text.trim()),
            None => seen(&mut a, &text),
        };
        let seen =
            ENGINES.iter().fold(seen, |seen, engine| seen.replace(engine.name(), "{engine}"));
        lines.push(format!("    {statement}\n      {}", seen.to_ascii_lowercase()));
    }
    lines
}

#[test]
fn other_statements_answer_as_innodbs_except_for_reasons() {
    let server = server("compatibility-statements");
    let scripts = scripts();
    assert!(scripts.len() >= 98, "{}", scripts.len());
    let mut differences = BTreeMap::new();
    for script in &scripts {
        let [tidepool, innodb] = ENGINES.map(|engine| transcript(&server, script, engine));
        let differing: Vec<String> = tidepool
            .iter()
            .zip(&innodb)
            .filter(|(tidepool, innodb)| tidepool != innodb)
            .map(|(tidepool, innodb)| {
                let innodb = innodb.lines().last().unwrap_or_default().trim();
                format!("{tidepool}\n      InnoDB: {innodb}")
            })
            .collect();
        if !differing.is_empty() {
            let before = differences.insert(script.name.clone(), differing.join("\n"));
            assert_eq!(before, None, "two scripts are called {}", script.name);
        }
    }
    // The list of reasons is of one version.
    let version: Option<String> = server.connect().query_first("SELECT VERSION()").unwrap();
    if version.is_some_and(|version| version.starts_with("10.11.")) {
        assert_reasoned("statements.allowed", &differences);
    }
}
