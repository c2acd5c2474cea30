//! The quick part of `scripts/crash-points`: the server dies at the moments at which its DDL log relies on the engine.
//!
//! At flush 0 the engine writes its log once a second only, so what the DDL log relies on is there only if the engine
//! makes it durable first. The whole enumerates every call, setting and statement.

use tidepool_tests::crash_points::calls::is_strace_there;
use tidepool_tests::crash_points::{CASES, Case, Choice, Setting, run_case};
use tidepool_tests::server::{Engine, Options, Server};

fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("there is a case of this name")
}

/// Runs cases at flush 0, and kills the server at the calls whose trace lines contain `text`.
fn run(name: &str, binary_log: bool, cases: &[&str], text: &str) {
    if !is_strace_there() {
        println!("skipped: strace is not there");
        return;
    }
    let setting = Setting { engine: Engine::Tidepool, flush: 0, binary_log };
    let mut options = Options::new(name).engine(setting.engine);
    options.args = setting.server_args();
    let mut server = Server::start(options);
    for name in cases {
        let choice = Choice::Containing(vec![text.into()]);
        let report = run_case(&mut server, setting, case(name), &choice);
        assert!(report.violations.is_empty(), "{name}: {:#?}", report.violations);
        assert!(report.tried > 0, "{name}: no crash point was tried");
    }
}

#[test]
fn the_ddl_log_relies_on_rows_that_are_durable() {
    let cases = ["alter-copy-modify", "alter-engine-from-other", "partition-coalesce"];
    run("ddl_log_syncs", false, &cases, "/ddl_recovery.log>)");
}

#[test]
fn an_acknowledged_change_of_definitions_or_verdict_is_durable() {
    let cases = ["create-select", "create-sequence", "xa-prepare", "xa-commit", "xa-rollback"];
    run("acknowledged", false, &cases, "no call: only the end of the statement");
}

#[test]
fn the_binary_log_relies_on_rows_that_are_durable() {
    let cases = ["create-select", "commit-two-engines"];
    run("binary_log_syncs", true, &cases, "fdatasync(");
}
