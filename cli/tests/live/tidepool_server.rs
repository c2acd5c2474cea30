//! The commands on a server whose tables are Tidepool's, which governs its pool itself.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use mysql::prelude::Queryable;
use serde_json::Value;
use tidepool_tests::server::{Engine, Options, Server};

use crate::advise::{apply, finding, global, until};
use crate::watch::{Page, in_the_dashboard, metrics};
use crate::{Reader, fill_in, stderr, stdout, tidepool};

const MIB: u64 = 1 << 20;

/// A private server with the plugin.
pub fn server(name: &str, args: &[&str]) -> Server {
    let options = Options::new(name).engine(Engine::Tidepool);
    Server::start(args.iter().fold(options, |options, arg| options.arg(*arg)))
}

fn advise(server: &Server) -> Value {
    let output =
        tidepool(server.socket()).args(["advise", "--json", "--interval=0.3"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The rules of the findings about a pool or a log: what else is found depends on the machine.
fn about_sizes(report: &Value) -> Vec<&str> {
    let rules = report["findings"].as_array().unwrap().iter().map(|f| f["rule"].as_str().unwrap());
    rules.filter(|rule| rule.contains("pool") || rule.contains("redo")).collect()
}

#[test]
fn system_versioned_tables_and_sequences_are_tables() {
    let server = server("advise-versioned", &[]);
    let mut conn = server.connect();
    for statement in [
        "CREATE DATABASE shop",
        "CREATE TABLE shop.v (id INT PRIMARY KEY) ENGINE=Tidepool WITH SYSTEM VERSIONING",
        "CREATE TABLE shop.m (id INT PRIMARY KEY) ENGINE=MyISAM WITH SYSTEM VERSIONING",
        "INSERT INTO shop.m VALUES (1)",
        "CREATE SEQUENCE shop.s ENGINE=Tidepool",
    ] {
        conn.query_drop(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let report = advise(&server);
    let data = &report["facts"]["data"];
    assert_eq!(data["tidepool_tables"], 2, "{data:#}");
    assert!(data["myisam_index_bytes"].as_u64().unwrap() > 0, "{data:#}");
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["rule"] == "mariadb_backup"), "{report:#}");
}

#[test]
fn a_governed_pool_needs_no_advice_about_its_size() {
    let server = server("advise-tidepool", &["--innodb-log-file-size=10M"]);
    fill_in(Engine::Tidepool, &server, 24);
    let report = advise(&server);
    assert_eq!(about_sizes(&report), Vec::<&str>::new(), "{report:#}");
    let facts = &report["facts"]["tidepool"];
    assert_eq!((&facts["size_setting_bytes"], &facts["guarded"]), (&0.into(), &true.into()));
    assert!(facts["limit_bytes"].as_u64().unwrap() > 64 * MIB, "{facts:#}");
    assert!(report["facts"]["data"]["tidepool_bytes"].as_u64().unwrap() > 20 * MIB);
    let text =
        stdout(&tidepool(server.socket()).args(["advise", "--interval=0.3"]).output().unwrap());
    assert!(text.contains("Tidepool pool governed, may hold "), "{text}");
    let note = "[note] mariadb-backup does not back up Tidepool's tables";
    assert!(text.contains(note), "{text}");
    // A size that no machine has, with nothing to keep the pool below it; and the advice helps.
    server
        .connect()
        .query_drop("SET GLOBAL tidepool_memory_guard = OFF, tidepool_buffer_pool_size = 1 << 50")
        .unwrap();
    let report = advise(&server);
    assert_eq!(about_sizes(&report), ["tidepool_unguarded"], "{report:#}");
    let findings = report["findings"].as_array().unwrap();
    let finding = findings.iter().find(|f| f["rule"] == "tidepool_unguarded").unwrap();
    for statement in finding["set"].as_array().unwrap() {
        server.connect().query_drop(statement.as_str().unwrap()).unwrap();
    }
    assert_eq!(about_sizes(&advise(&server)), ["tidepool_pool_too_large"]);
}

#[test]
fn a_fixed_pool_that_misses_is_told_to_be_governed() {
    let server = server("advise-small-tidepool", &["--tidepool-buffer-pool-size=16M"]);
    let rows = fill_in(Engine::Tidepool, &server, 64);
    let reader = Reader::start(&server, rows);
    let report = until(|| {
        let report = advise(&server);
        let least = &report["facts"]["tidepool"]["advice"][0]["hit_ratio"];
        let is_known = least.as_f64().is_some_and(|hit| hit < 1.0);
        (is_known && about_sizes(&report).contains(&"tidepool_pool_too_small")).then_some(report)
    });
    let found = finding(&report, "tidepool_pool_too_small");
    assert!(found["why"].as_str().unwrap().contains("The engine predicts "), "{found:#}");
    apply(&server, found);
    assert_eq!(global(&server, "tidepool_buffer_pool_size"), 0);
    assert_eq!(about_sizes(&advise(&server)), Vec::<&str>::new());
    drop(reader);
}

#[test]
fn settings_that_waste_the_pool_are_found_as_those_of_innodb() {
    let args = [
        "--tidepool-buffer-pool-replacement=midpoint",
        "--tidepool-old-blocks-time=0",
        "--tidepool-use-direct-io=OFF",
        "--tidepool-buffer-pool-dump-at-shutdown=OFF",
    ];
    let server = server("advise-settings-tidepool", &args);
    let rules = |report: &Value| -> Vec<String> {
        let findings = report["findings"].as_array().unwrap().iter();
        let rules = findings.map(|found| found["rule"].as_str().unwrap().to_owned());
        rules.filter(|rule| rule.starts_with("tidepool_")).collect()
    };
    let report = advise(&server);
    let (scan, twice, cold) =
        ("tidepool_old_blocks_time", "tidepool_direct_io", "tidepool_warm_up");
    assert_eq!(rules(&report), [scan, twice, cold]);
    [scan, cold].iter().for_each(|rule| apply(&server, finding(&report, rule)));
    assert_eq!(rules(&advise(&server)), [twice], "that one takes a restart");
}

#[test]
fn the_page_shows_the_engines_own_curve_content_and_decisions() {
    let server = server("watch-tidepool", &[]);
    let rows = fill_in(Engine::Tidepool, &server, 24);
    let reader = Reader::start(&server, rows);
    let page = Page::start(&server, &[]);
    let state = page.state_with(|state| {
        let last = state["samples"].as_array().and_then(|samples| samples.last());
        last.is_some_and(|last| last["hit_ratio"].is_f64())
            && state["content"].as_array().is_some_and(|rows| !rows.is_empty())
    });
    assert_eq!(state["about"]["engine"], "tidepool");
    // Reading it is free, so it needs no request.
    assert_eq!(state["content_is_costly"], false);
    let content = state["content"].as_array().unwrap();
    let filler = content.iter().find(|row| row["table"] == "test.filler").expect("it is cached");
    assert_eq!(filler["index"], "PRIMARY");
    assert!(filler["mb"].as_f64().unwrap() > 20.0, "{filler:#}");
    // The curve is a prediction, at sizes around the present one.
    let state = page.state_with(|state| state["curve"]["points"].as_array().is_some());
    let points = state["curve"]["points"].as_array().unwrap();
    assert_eq!(state["curve"]["predicted"], true);
    let sizes: Vec<u64> =
        points.iter().map(|point| point["size_bytes"].as_u64().unwrap()).collect();
    assert!(sizes.len() > 2 && sizes.is_sorted(), "{sizes:?}");
    // The governor's first decision.
    let state = page.state_with(|state| !state["decisions"].as_array().unwrap().is_empty());
    let decisions = state["decisions"].as_array().unwrap();
    assert!(
        decisions.iter().any(|decision| decision["text"].as_str().unwrap().contains(": start: ")),
        "{decisions:#?}"
    );
    for note in [&state["curve"]["note"], &state["content_note"], &state["decisions_note"]] {
        assert_eq!(note, &Value::Null);
    }
    let found = metrics(&page.get("/metrics").1);
    for name in in_the_dashboard().into_iter().filter(|name| !name.contains("_replication_")) {
        assert!(found.contains_key(&name), "{name} in {found:?}");
    }
    // The same curve, as data.
    let output = tidepool(server.socket())
        .args(["advise", "--format=json", "--interval=0.3"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let changes = report["curve"].as_array().unwrap();
    assert_eq!(changes.len(), sizes.len(), "{changes:#?}");
    assert!(changes.iter().any(|change| change["change_bytes"] == 0), "{changes:#?}");
    assert!(changes[0]["extra_reads_per_s"].as_f64().unwrap() >= 0.0, "{changes:#?}");
    for name in ["size_bytes", "reads_per_second", "extra_reads_per_second"] {
        let name = format!("tidepool_watch_buffer_pool_curve_{name}");
        assert!(found.contains_key(&name), "{name} in {found:?}");
    }
    for name in ["rows_read_total", "buffer_pool_read_requests_total", "checkpoint_age_max_bytes"] {
        assert!(found[&format!("tidepool_watch_{name}")] > 0.0, "{name} in {found:?}");
    }
    drop(reader);
}

#[test]
fn a_fixed_size_is_not_taken_for_what_fits() {
    let server = server("watch-fixed-tidepool", &["--tidepool-buffer-pool-size=16M"]);
    let page = Page::start(&server, &[]);
    let fits = |state: &Value| {
        let last = state["samples"].as_array()?.last()?.clone();
        (last["pool_bytes"] == 16 * MIB).then(|| last["target_bytes"].as_u64())
    };
    let state = page.state_with(|state| fits(state).is_some());
    assert!(fits(&state).flatten() > Some(64 * MIB), "{:?}", fits(&state));
    let (status, body) = page.post("/api/size", &format!("{{\"bytes\": {}}}", 32 * MIB), &[]);
    assert_eq!(status, 202, "{body}");
    page.state_with(|state| {
        let last = state["samples"].as_array().and_then(|samples| samples.last());
        last.is_some_and(|last| last["pool_bytes"] == 32 * MIB)
    });
}

#[test]
fn the_page_leaves_a_pool_of_a_fixed_size_to_its_engine_again() {
    let server = server("watch-governed-tidepool", &[]);
    let page = Page::start(&server, &[]);
    let is = |governed: bool| {
        page.state_with(|state| {
            let last = state["samples"].as_array().and_then(|samples| samples.last());
            last.is_some_and(|last| last["governed"] == governed)
        })
    };
    let state = is(true);
    // What is less the engine makes this much.
    let least = state["about"]["least_bytes"].as_u64().unwrap();
    server.connect().query_drop("SET GLOBAL tidepool_buffer_pool_size = 1").unwrap();
    assert_eq!(global(&server, "tidepool_buffer_pool_size"), least);
    is(false);
    for (asked, set) in [(16 * MIB, 16 * MIB), (0, 0), (least + 1, least), (0, 0)] {
        let wish = format!("{{\"bytes\": {asked}, \"below_an_eighth\": true}}");
        let (status, body) = page.post("/api/size", &wish, &[]);
        assert_eq!((status, body), (202, format!("{{\"bytes\":{set}}}")));
        let state = page.state_with(|state| state["setting"]["running"] == false);
        assert_eq!(state["setting"]["error"], Value::Null);
        assert_eq!(global(&server, "tidepool_buffer_pool_size"), set);
        is(set == 0);
    }
    page.state_with(|state| state["decisions"].to_string().contains("left by this page to its"));
}

#[test]
fn a_server_that_comes_back_with_another_engine_has_its_pool_shown_and_set() {
    let mut server = server("watch-engine-tidepool", &["--tidepool-buffer-pool-size=16M"]);
    let page = Page::start(&server, &[]);
    let newest = |state: &Value| state["samples"].as_array().and_then(|all| all.last().cloned());
    page.state_with(|state| newest(state).is_some_and(|last| last["pool_bytes"] == 16 * MIB));
    server.restart_with(&["--default-storage-engine=InnoDB", "--innodb-buffer-pool-size=64M"]);
    let state = page.state_with(|state| state["about"]["engine"] == "innodb");
    for sample in state["samples"].as_array().unwrap() {
        assert_eq!(sample["pool_bytes"], 64 * MIB, "those of another pool are gone");
    }
    page.state_with(|state| newest(state).is_some());
    assert!(page.get("/metrics").1.contains("tidepool_watch_up{engine=\"innodb\"} 1"));
    let (status, body) = page.post("/api/size", &format!("{{\"bytes\": {}}}", 40 * MIB), &[]);
    assert_eq!(status, 202, "{body}");
    let state = page.state_with(|state| state["setting"]["running"] == false);
    assert_eq!(state["setting"]["error"], Value::Null);
    assert_eq!(global(&server, "innodb_buffer_pool_size"), 40 * MIB);
    assert_eq!(global(&server, "tidepool_buffer_pool_size"), 0);
}

#[test]
fn what_takes_a_privilege_is_said_with_its_grant() {
    let server = server("watch-poor-tidepool", &[]);
    let rows = fill_in(Engine::Tidepool, &server, 8);
    let reader = Reader::start(&server, rows);
    server.connect().query_drop("CREATE USER poor@localhost").unwrap();
    let grant = "GRANT PROCESS ON *.* TO 'poor'@'localhost'";
    let advise = || {
        let mut command = tidepool(server.socket());
        stdout(&command.args(["--user=poor", "advise", "--interval=0.3"]).output().unwrap())
    };
    let text = advise();
    let unseen = format!("Skipped: Tidepool's miss-ratio curve\n    requires: {grant};\n");
    assert!(text.contains(&unseen), "{text}");
    // The sizes of tables take another.
    let tables = "    requires: GRANT SELECT ON *.* TO 'poor'@'localhost';\n";
    assert!(text.contains(tables), "{text}");

    let page = Page::start(&server, &["--user=poor"]);
    let state = page.state_with(|state| state["decisions_note"].is_string());
    for note in [&state["curve"]["note"], &state["content_note"], &state["decisions_note"]] {
        assert!(note.as_str().unwrap().contains(grant), "{note}");
    }
    assert_eq!(state["curve"]["predicted"], false);
    assert_eq!(state["error"], Value::Null);
    let (status, body) = page.post("/api/size", &format!("{{\"bytes\": {}}}", 32 * MIB), &[]);
    // It is not offered what it may not do, and not said to be on the way there.
    assert_eq!(status, 409, "{body}");
    for error in [body.as_str(), state["about"]["fixed"].as_str().unwrap()] {
        assert!(error.contains("GRANT SUPER ON *.* TO 'poor'@'localhost'"), "{error}");
    }

    server.connect().query_drop(grant).unwrap();
    let text = advise();
    assert!(!text.contains("curve") && text.contains(tables), "{text}");
    let page = Page::start(&server, &["--user=poor"]);
    let state = page.state_with(|state| !state["decisions"].as_array().unwrap().is_empty());
    assert_eq!((&state["decisions_note"], &state["curve"]["note"]), (&Value::Null, &Value::Null));
    drop(reader);
}

#[test]
fn in_the_terminal_the_figures_are_those_of_tidepool() {
    let server = server("watch-text-tidepool", &["--innodb-buffer-pool-size=8M"]);
    let rows = fill_in(Engine::Tidepool, &server, 24);
    let reader = Reader::start(&server, rows);
    let mut child =
        tidepool(server.socket()).args(["watch", "--text"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The first second may have had no reads yet.
    let line = lines.take(60).find(|line| !line.contains("hit_pct -")).expect("a hit ratio");
    let words: Vec<&str> = line.split(' ').collect();
    let figure = |name: &str| -> f64 {
        let at = words.iter().position(|word| *word == name).expect("it is there");
        words[at + 1].parse().unwrap()
    };
    assert!(figure("hit_pct") > 99.0, "all of the table is cached: {line}");
    assert!(figure("pool_mib") > 8.0 && figure("fits_mib") > 8.0, "not InnoDB's: {line}");
    let _ = child.kill();
    let _ = child.wait();
    drop(reader);
}
