//! The quick part of `scripts/crash-points`: the server dies at the moments at which its DDL log
//! relies on the engine.
//!
//! At flush 0 the engine writes its log once a second only, so what the DDL log relies on is there
//! only if the engine makes it durable first. The whole enumerates every call, setting and
//! statement.

use tidepool_tests::crash_points::calls::is_strace_there;
use tidepool_tests::crash_points::{
    BinaryLog, CASES, Case, Choice, Crash, Setting, Victim, run_case,
};
use tidepool_tests::server::Engine;

fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("there is a case of this name")
}

/// A server at flush 0 that is killed.
const KILLED: Setting =
    Setting { engine: Engine::Tidepool, flush: 0, binary_log: BinaryLog::Off, crash: Crash::Kill };

/// Runs cases, and ends the server at the calls whose trace lines contain `text`.
fn run(name: &str, setting: Setting, cases: &[&str], text: &str) {
    if !is_strace_there() {
        tidepool_skip::skip("strace is not there");
        return;
    }
    let Some(mut victim) = Victim::start(setting, name) else { return };
    for name in cases {
        let choice = Choice::Containing(vec![text.into()]);
        let report = run_case(&mut victim, setting, case(name), &choice);
        assert!(report.violations.is_empty(), "{name}: {:#?}", report.violations);
        // The last one is the end of the statement, which is always there. Others may not come up
        // again, as who syncs for whom varies.
        let reached = report.tried - 1 - report.survived;
        match text {
            NO_CALL => assert_eq!(report.tried, 1, "{name}"),
            text => assert!(reached > 0, "{name}: no kill at a call with {text}: {report:?}"),
        }
    }
}

const NO_CALL: &str = "no call: only the end of the statement";

#[test]
fn the_ddl_log_relies_on_rows_that_are_durable() {
    let cases = ["alter-copy-modify", "alter-engine-from-other", "partition-coalesce"];
    run("ddl_log_syncs", KILLED, &cases, "/ddl_recovery.log>)");
}

#[test]
fn a_rebuilt_table_is_the_old_or_the_new_one() {
    let cases = ["alter-rebuild-force", "alter-rebuild-primary-key", "alter-rebuild-partitions"];
    run("rebuilt", KILLED, &cases, "/ddl_recovery.log>)");
    run("rebuilt_acknowledged", KILLED, &cases, NO_CALL);
}

#[test]
fn a_table_is_discarded_or_imported_as_a_whole() {
    let cases = ["discard-tablespace", "import-tablespace"];
    run("transportable", KILLED, &cases, "/redo/redo.");
    run("transportable_acknowledged", KILLED, &cases, NO_CALL);
}

#[test]
fn an_acknowledged_change_of_definitions_or_verdict_is_durable() {
    let cases = ["create-select", "create-sequence", "xa-prepare", "xa-commit", "xa-rollback"];
    run("acknowledged", KILLED, &cases, NO_CALL);
}

#[test]
fn the_binary_log_relies_on_rows_that_are_durable() {
    let cases = ["create-select", "commit-two-engines"];
    let setting = Setting { binary_log: BinaryLog::Synced, ..KILLED };
    run("binary_log_syncs", setting, &cases, "fdatasync(");
}

/// The server forgets its partitions; the engine does not.
#[test]
fn a_partitioned_table_that_was_never_finished_is_gone() {
    run("unfinished_partitions", KILLED, &["create-partitioned"], ".tpd>)");
}

/// The binary log is what commits a prepared transaction after a crash, but it is not synced.
#[test]
fn a_commit_is_durable_though_the_binary_log_may_lose_it() {
    let setting =
        Setting { flush: 1, binary_log: BinaryLog::Unsynced, crash: Crash::PowerCut, ..KILLED };
    let cases = ["commit-insert", "commit-transaction", "commit-two-engines"];
    run("unsynced_binary_log", setting, &cases, NO_CALL);
}

/// The engine drops and renames all partitions in one commit, and knows the files to come before
/// the server's log
/// relies on them.
#[test]
fn a_power_cut_leaves_the_partitioned_table_of_before_or_of_afterwards() {
    let setting = Setting { flush: 1, crash: Crash::PowerCut, ..KILLED };
    let cases = ["drop-partitioned", "rename-partitioned", "partition-drop"];
    run("partitions_and_power", setting, &cases, "/redo/redo.");
}

/// The server makes, renames and removes files of triggers without a word to the engine, and syncs
/// none of their names.
#[test]
fn acknowledged_changes_of_triggers_survive_a_power_cut() {
    let setting = Setting { flush: 1, crash: Crash::PowerCut, ..KILLED };
    let cases = [
        "create-trigger",
        "create-trigger-under-lock",
        "create-second-trigger",
        "drop-trigger",
        "drop-with-trigger",
        "rename-with-trigger",
        "alter-copy-rename-with-trigger",
    ];
    run("triggers_and_power", setting, &cases, NO_CALL);
}

/// A new table of this name would have the triggers of the old one.
#[test]
fn a_power_cut_leaves_no_triggers_of_a_dropped_table() {
    let setting = Setting { flush: 1, crash: Crash::PowerCut, ..KILLED };
    run("dropped_triggers_and_power", setting, &["drop-with-trigger"], "/tidepool/tables");
}

/// The server does not sync `db.opt`.
#[test]
fn a_table_in_a_new_database_takes_the_options_of_the_database_along() {
    let setting = Setting { flush: 1, crash: Crash::PowerCut, ..KILLED };
    run("options_and_power", setting, &["create-in-new-database"], NO_CALL);
}

/// The server needs the copy's `.par` file to go on or back, and does not sync it.
#[test]
fn a_power_cut_leaves_the_table_that_gets_partitions_or_the_one_that_has_them() {
    let setting = Setting { flush: 1, crash: Crash::PowerCut, ..KILLED };
    run("partition_by_and_power", setting, &["partition-by"], "/ddl_recovery.log>)");
}
