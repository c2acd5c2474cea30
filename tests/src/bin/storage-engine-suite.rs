//! The `storage_engine` suite of MariaDB's own tests on two engines, compared test by test.
//!
//! The suite's expected results are stale (a newer server prints collations, for one), so that even
//! InnoDB passes little more than half of it. Hence two comparisons:
//!
//! 1. as it stands: which tests does each engine pass?
//! 2. recorded: each engine's actual output is recorded, and the outputs are compared with each
//!    other. Tests
//!    that the suite has disabled because of their stale results take part in this.
//!
//! An engine is named by the overlay that the suite has for it: `innobase`, `tidepool`, `myisam`,
//! ….

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use lexopt::prelude::*;
use tidepool_tests::command_line;
use tidepool_tests::environment::Environment;

const USAGE: &str = "storage-engine-suite [--engine tidepool] [--against innobase] [--test NAME]…";

/// The suites with their folder below `storage_engine`.
const SUITES: [(&str, &str); 3] =
    [("storage_engine", ""), ("storage_engine/trx", "trx"), ("storage_engine/parts", "parts")];

/// Test → outcome ("pass", "fail", "disabled", "skipped").
type Outcomes = BTreeMap<String, String>;

/// A copy of the part of `mysql-test` that a run reads and writes; the rest is symbolic links.
struct Tree {
    top: PathBuf,
    engine: String,
}

impl Tree {
    fn new(engine: &str, place: &str) -> Tree {
        let environment = Environment::get();
        let base = environment.root().join("var/storage-engine-suite").join(place);
        let top = base.join(engine);
        let _ = fs::remove_dir_all(&top);
        let (share, mysql_test) = (environment.path("SHARE"), environment.path("MYSQL_TEST"));
        let test = top.join("share/mysql/mysql-test");
        make_dir(&test.join("suite"));
        make_dir(&test.join("plugin").join(engine));
        link_all(&environment.path("BASEDIR"), &top, &["share"]);
        link_all(&share, &top.join("share/mysql"), &["mysql-test"]);
        link_all(&mysql_test, &test, &["suite", "plugin"]);
        let overlay = match engine {
            "tidepool" => environment.root().join("mariadb/mysql-test/storage_engine"),
            other => mysql_test.join("plugin").join(other).join("storage_engine"),
        };
        copy(&mysql_test.join("suite/storage_engine"), &test.join("suite/storage_engine"));
        copy(&overlay, &test.join("plugin").join(engine).join("storage_engine"));
        Tree { top, engine: engine.into() }
    }

    fn mysql_test(&self) -> PathBuf {
        self.top.join("share/mysql/mysql-test")
    }

    /// The names of all tests.
    fn tests(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (_, folder) in SUITES {
            for file in files(&self.mysql_test().join("suite/storage_engine").join(folder)) {
                if file.extension().is_some_and(|e| e == "test") {
                    names
                        .push(file.file_stem().expect("has a name").to_string_lossy().into_owned());
                }
            }
        }
        names.sort();
        names.dedup();
        names
    }

    /// Removes what adapts the expected results to an engine: a recorded result needs no adapting.
    fn forget_adaptations(&self) {
        for folder in
            ["suite/storage_engine".to_string(), format!("plugin/{}/storage_engine", self.engine)]
        {
            for (_, part) in SUITES {
                for file in files(&self.mysql_test().join(&folder).join(part)) {
                    if file.extension().is_some_and(|e| e == "rdiff" || e == "result~") {
                        fs::remove_file(file).expect("a copy can be removed");
                    }
                }
            }
        }
    }

    /// Runs the tests. Their log stays beside the tree.
    fn run(&self, tests: &[String], options: &[&str]) -> Outcomes {
        let suites: Vec<String> =
            SUITES.iter().map(|(suite, _)| format!("{suite}-{}", self.engine)).collect();
        let output = Command::new("perl")
            .arg("mariadb-test-run.pl")
            .current_dir(self.mysql_test())
            .env("TIDEPOOL_PLUGIN_DIR", Environment::get().plugin_dir())
            .arg(format!("--vardir={}", self.top.join("var").display()))
            .arg(format!("--suite={}", suites.join(",")))
            .args([
                "--force",
                "--max-test-fail=0",
                "--nocheck-testcases",
                "--testcase-timeout=3",
                "--suite-timeout=60",
            ])
            .args(options)
            .args(tests)
            .stdin(Stdio::null())
            .output()
            .expect("perl is there; run scripts/deps --test");
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        fs::write(self.top.join("mtr.log"), text.as_bytes()).expect("the log can be written");
        text.lines()
            .filter_map(outcome)
            .map(|(test, outcome)| (self.plain(&test), outcome))
            .collect()
    }

    /// `storage_engine/trx-innobase.xa` → `trx/xa`.
    fn plain(&self, test: &str) -> String {
        test.replace(&format!("-{}.", self.engine), "/").replace("storage_engine/", "")
    }

    /// What a test printed when it was recorded.
    fn recorded(&self, test: &str) -> String {
        let file = self.mysql_test().join("suite/storage_engine").join(format!("{test}.result"));
        fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

/// A line such as `storage_engine-innobase.delete   w2 [ pass ]     97`.
fn outcome(line: &str) -> Option<(String, String)> {
    let (before, after) = line.split_once("[ ")?;
    let test =
        before.split_whitespace().next().filter(|test| test.starts_with("storage_engine"))?;
    Some((test.into(), after.split_whitespace().next()?.into()))
}

fn make_dir(path: &Path) {
    fs::create_dir_all(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

fn files(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir)
        .map(|entries| entries.filter_map(Result::ok).map(|e| e.path()).collect())
        .unwrap_or_default()
}

fn link_all(from: &Path, to: &Path, but: &[&str]) {
    for file in files(from) {
        let name = file.file_name().expect("has a name");
        if !but.iter().any(|b| name == *b) {
            symlink(&file, to.join(name)).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        }
    }
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-r").arg(from).arg(to).status();
    assert!(status.is_ok_and(|s| s.success()), "{} can't be copied", from.display());
}

/// The tests as they stand, on both engines; the tests that only the second passes.
fn as_they_stand(engines: &[String; 2], tests: &[String]) -> Vec<String> {
    let [ours, theirs] =
        [0, 1].map(|i| Tree::new(&engines[i], "stock").run(tests, &["--parallel=2"]));
    let figures = |outcomes: &Outcomes| {
        let count = |wanted| outcomes.values().filter(|outcome| *outcome == wanted).count();
        (count("pass"), count("pass") + count("fail"))
    };
    println!("as the suite stands:");
    for (engine, outcomes) in engines.iter().zip([&ours, &theirs]) {
        let (passed, run) = figures(outcomes);
        println!("  {engine}: {passed} of {run} pass");
    }
    let passes = |outcomes: &Outcomes, test: &String| {
        outcomes.get(test).is_some_and(|outcome| outcome == "pass")
    };
    let only_theirs: Vec<String> = theirs
        .keys()
        .filter(|test| passes(&theirs, test) && !passes(&ours, test))
        .cloned()
        .collect();
    println!(
        "  {} passes, {} does not: {} {}",
        engines[1],
        engines[0],
        only_theirs.len(),
        only_theirs.join(" ")
    );
    let only_ours: Vec<String> =
        ours.keys().filter(|test| passes(&ours, test) && !passes(&theirs, test)).cloned().collect();
    println!("  the other way round: {} {}", only_ours.len(), only_ours.join(" "));
    only_theirs
}

/// The recorded outputs of both engines, compared; the tests whose outputs are the same.
fn recorded(engines: &[String; 2], tests: &[String]) -> Vec<String> {
    let trees = [0, 1].map(|i| Tree::new(&engines[i], "recorded"));
    let [ours, theirs] = [0, 1].map(|i| {
        trees[i].forget_adaptations();
        trees[i].run(tests, &["--record", "--enable-disabled"])
    });
    let (mut same, mut different, mut ours_ends) = (Vec::new(), Vec::new(), Vec::new());
    for (test, _) in theirs.iter().filter(|(_, outcome)| *outcome == "pass") {
        match ours.get(test).map(String::as_str) {
            Some("pass") if trees[0].recorded(test) == trees[1].recorded(test) => {
                same.push(test.clone())
            }
            Some("pass") => different.push(test.clone()),
            _ => ours_ends.push(test.clone()),
        }
    }
    println!(
        "recorded output, of the {} tests that {} can run to the end:",
        same.len() + different.len() + ours_ends.len(),
        engines[1]
    );
    println!("  the same on {}: {}", engines[0], same.len());
    println!("  another output: {} {}", different.len(), different.join(" "));
    println!(
        "  {} does not reach the end: {} {}",
        engines[0],
        ours_ends.len(),
        ours_ends.join(" ")
    );
    let [our_dir, their_dir] = trees.map(|tree| tree.mysql_test().join("suite/storage_engine"));
    println!(
        "  compare with: diff {}/TEST.result {}/TEST.result",
        their_dir.display(),
        our_dir.display()
    );
    same
}

/// The engines' names, and the tests to run; none: all.
fn options() -> Result<([String; 2], Vec<String>), lexopt::Error> {
    let mut engines = ["tidepool".to_string(), "innobase".to_string()];
    let mut tests = Vec::new();
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("engine") => engines[0] = parser.value()?.string()?,
            Long("against") => engines[1] = parser.value()?.string()?,
            Long("test") => tests.push(parser.value()?.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok((engines, tests))
}

fn main() -> ExitCode {
    command_line::main(USAGE, options(), |(engines, tests)| compare(engines, tests.clone()))
}

/// Runs the tests on both engines; whether both say the same.
fn compare(engines: &[String; 2], mut tests: Vec<String>) -> bool {
    if tests.is_empty() {
        tests = Tree::new(&engines[1], "stock").tests();
    }
    let only_theirs = as_they_stand(engines, &tests);
    let same = recorded(engines, &tests);
    // Another row order or wording in the expected file is no failure if both engines print the
    // same.
    let failed: Vec<&String> = only_theirs.iter().filter(|test| !same.contains(test)).collect();
    println!("{} passed, {} failed", same.len(), failed.len());
    failed.is_empty()
}
