//! Two lists of statements, each run on Tidepool and on InnoDB in one server: what differs must be
//! in a list of reasons, and a reason for what no longer differs fails too.
//!
//! * `compatibility/alters.txt`: changes of a table, in every ALGORITHM and LOCK. The table in
//!   docs/reference/compatibility.md is written from the answers
//!   (`TIDEPOOL_UPDATE=1 cargo test -p tidepool-tests --test sql compatibility` writes it anew).
//! * `compatibility/statements.txt`: scripts of other statements. Compared are rows, affected rows,
//!   the errors' and the warnings' numbers.

mod alters;
mod statements;

use std::collections::BTreeMap;
use std::path::PathBuf;

use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server};

const ENGINES: [Engine; 2] = [Engine::Tidepool, Engine::InnoDb];

/// One server with both engines.
fn server(name: &str) -> Server {
    let options = Options::new(name).engine(Engine::Tidepool);
    // Nothing here survives the server, so nothing has to be on disk.
    let options = options.arg("--innodb-flush-log-at-trx-commit=0");
    Server::start(options.arg("--tidepool-flush-log-at-trx-commit=0"))
}

fn file(name: &str) -> PathBuf {
    Environment::get().root().join("tests/tests/sql/compatibility").join(name)
}

fn text(name: &str) -> String {
    let path = file(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Lines `name | reason`; `#` begins a comment.
fn reasons(name: &str) -> BTreeMap<String, String> {
    let lines = text(name);
    let lines = lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, reason) = line.split_once(" | ").unwrap_or_else(|| panic!("{line}"));
            assert!(!reason.trim().is_empty(), "{line}");
            (name.to_owned(), reason.to_owned())
        })
        .collect()
}

/// Fails for a difference without a reason, and for a reason without a difference.
fn assert_reasoned(list: &str, differences: &BTreeMap<String, String>) {
    let reasons = reasons(list);
    let unreasoned: Vec<String> = differences
        .iter()
        .filter(|(name, _)| !reasons.contains_key(*name))
        .map(|(name, difference)| format!("{name}\n{difference}"))
        .collect();
    let gone: Vec<&String> =
        reasons.keys().filter(|name| !differences.contains_key(*name)).collect();
    assert!(
        unreasoned.is_empty() && gone.is_empty(),
        "without a reason in {list}:\n{}\nin {list}, and no different any more: {gone:?}",
        unreasoned.join("\n")
    );
}
