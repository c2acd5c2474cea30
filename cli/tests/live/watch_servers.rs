//! `tidepool watch` of several servers and over days, what it says of replication, and its output
//! for programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use mysql::prelude::Queryable;
use serde_json::Value;
use tidepool_tests::server::{Engine, Options, Server, free_port};

use crate::watch::{Page, metrics};
use crate::{innodb, stderr, tidepool};

const MIB: u64 = 1 << 20;

/// An option file with a group for each server.
pub fn option_file(directory: &Path, servers: &[(&str, &Server)]) -> String {
    let group = |(name, server): &(&str, &Server)| {
        format!("[client_{name}]\nuser=root\nsocket={}\n", server.socket().display())
    };
    let path = directory.join("client.cnf");
    fs::write(&path, servers.iter().map(group).collect::<String>()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    format!("--defaults-file={}", path.display())
}

pub fn command(option_file: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool"));
    command.arg(option_file).stdin(Stdio::null());
    command
}

fn state_of(page: &Page, server: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let (status, body) = page.get(&format!("/api/state?server={server}"));
        assert_eq!(status, 200, "{body}");
        let state: Value = serde_json::from_str(&body).unwrap();
        if wanted(&state) {
            return state;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

fn has_samples(state: &Value) -> bool {
    !state["samples"].as_array().unwrap().is_empty()
}

#[test]
fn several_servers_are_on_one_page_and_each_is_set_by_itself() {
    let small = innodb("watch-small", &["--innodb-buffer-pool-size=64M"]);
    let mut large = innodb("watch-larger", &["--innodb-buffer-pool-size=96M"]);
    let directory = tempfile::tempdir().unwrap();
    let options = option_file(directory.path(), &[("small", &small), ("large", &large)]);
    let page = Page::run(command(&options), &["--server=small", "--server=large"]);
    let state = state_of(&page, "large", has_samples);
    let size = |state: &Value| state["samples"][0]["pool_bytes"].as_u64().unwrap();
    assert_eq!((size(&state), &state["server"]), (96 * MIB, &"large".into()));
    let state = state_of(&page, "small", has_samples);
    assert_eq!(size(&state), 64 * MIB);
    let names: Vec<&str> =
        state["servers"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["small", "large"]);
    assert_eq!(page.get("/api/state?server=none").0, 404);
    assert_eq!(page.state()["server"], "small", "the first one, if none is named");
    // One is set, the other stays.
    let wish = format!("{{\"bytes\": {}}}", 48 * MIB);
    assert_eq!(page.post("/api/size?server=large", &wish, &[]).0, 202);
    state_of(&page, "large", |state| state["setting"]["running"] == false);
    assert_eq!(crate::watch::pool_size(&large), 48 * MIB);
    assert_eq!(crate::watch::pool_size(&small), 64 * MIB);
    // One dies, the other is watched on.
    large.kill9();
    let state = state_of(&page, "small", |state| state["servers"][1]["error"].is_string());
    assert_eq!((&state["servers"][0]["error"], &state["error"]), (&Value::Null, &Value::Null));
    let text = page.get("/metrics").1;
    assert!(text.contains("up{engine=\"innodb\",server=\"small\"} 1\n"), "{text}");
    assert!(text.contains("up{engine=\"innodb\",server=\"large\"} 0\n"), "{text}");
    // A page that starts while one is away finds it later.
    let page = Page::run(command(&options), &["--server=small", "--server=large"]);
    state_of(&page, "small", has_samples);
    let state = state_of(&page, "large", |state| state["error"].is_string());
    assert_eq!(state["about"]["fixed"], "the server has not answered yet");
    large.restart();
    let state = state_of(&page, "large", has_samples);
    assert!(state["about"]["server"].as_str().unwrap().starts_with("MariaDB "), "{state:#}");
}

#[test]
fn a_name_without_a_group_is_no_server() {
    let server = innodb("watch-names", &["--innodb-buffer-pool-size=64M"]);
    let directory = tempfile::tempdir().unwrap();
    let options = option_file(directory.path(), &[("one", &server)]);
    let run = |args: &[&str]| {
        let mut command = command(&options);
        command.args(["watch", "--duration=1", "--listen=127.0.0.1:0"]).args(args);
        let output = command.output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (code, text) = run(&["--server=one", "--server=two"]);
    assert!(code == Some(8) && text.contains("[client_two]"), "{code:?} {text}");
    let (code, text) = run(&["--server=one", "--socket=/tmp/x"]);
    assert!(code == Some(2) && text.contains("option group"), "{code:?} {text}");
    assert_eq!(run(&["--server=one", "--server=one"]).0, Some(2));
    assert_eq!(run(&["--server=one"]).0, Some(0));
}

#[test]
fn history_outlives_the_program_and_has_one_writer() {
    let server = innodb("watch-history", &["--innodb-buffer-pool-size=64M"]);
    let directory = tempfile::tempdir().unwrap();
    let kept = format!("--history={}", directory.path().join("kept").display());
    let mut page = Page::start(&server, &[&kept]);
    let history = |page: &Page| -> Value {
        let (status, body) = page.get("/api/history?span=3600");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    assert_eq!(page.state()["keeps_history"], true);
    page.state_with(|_| has_samples(&history(&page)));
    // Another one of the same server would write the same file.
    let output = tidepool(server.socket())
        .args(["watch", "--listen=127.0.0.1:0", "--duration=1", &kept])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(8));
    assert!(stderr(&output).contains("another process writes it"), "{}", stderr(&output));
    page.terminate();
    assert!(page.ended().0.success());
    let page = Page::start(&server, &[&kept]);
    let found = history(&page);
    assert_eq!(found["step_s"], 10);
    assert_eq!(found["samples"][0]["pool_bytes"].as_f64(), Some((64 * MIB) as f64));
    assert_eq!(found["error"], Value::Null);
    assert_eq!(page.get("/api/history").0, 400);
    let page = Page::start(&server, &[]);
    assert_eq!(page.get("/api/history?span=3600").0, 404);
    assert_eq!(page.state()["keeps_history"], false);
}

#[test]
fn a_replica_that_stands_still_is_seen_and_a_missing_privilege_is_said() {
    let server = innodb("watch-replica", &["--innodb-buffer-pool-size=64M", "--server-id=2"]);
    let mut conn = server.connect();
    conn.query_drop("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='x'")
        .unwrap();
    conn.query_drop("CREATE USER poor@localhost").unwrap();
    let page = Page::start(&server, &[]);
    let state = page.state_with(|state| !state["replication"]["channels"][0].is_null());
    let channel = &state["replication"]["channels"][0];
    assert_eq!(
        (&channel["is_running"], &channel["source"]),
        (&false.into(), &"127.0.0.1:1".into())
    );
    let found = metrics(&page.get("/metrics").1);
    assert_eq!(found["tidepool_watch_replication_stopped_channels"], 1.0);
    assert!(!found.contains_key("tidepool_watch_replication_lag_seconds"));
    let page = Page::start(&server, &["--user=poor"]);
    let state = page.state_with(|state| state["replication"]["note"].is_string());
    let note = state["replication"]["note"].as_str().unwrap();
    assert!(note.contains("GRANT SLAVE MONITOR ON *.* TO 'poor'@'localhost'"), "{note}");
    // Nor does this server count statements: the page says how it would.
    let note = state["statements"]["note"].as_str().unwrap();
    assert!(note.contains("log_slow_verbosity") && note.contains("performance_schema"), "{note}");
}

#[test]
fn a_replica_that_falls_behind_shows_by_how_much() {
    let port = free_port();
    let start = |name: &str, args: &[&str]| {
        let options = Options::new(name).engine(Engine::InnoDb);
        Server::start(args.iter().fold(options, |options, arg| options.arg(*arg)))
    };
    let port_arg = format!("--port={port}");
    let tcp = ["--skip-networking=0", "--bind-address=127.0.0.1", &port_arg];
    let log = ["--log-bin=primary", "--server-id=1"];
    let primary = start("watch-primary", &[tcp.as_slice(), &log].concat());
    let replica = start("watch-behind", &["--server-id=2", "--innodb-lock-wait-timeout=3600"]);
    let mut on_primary = primary.connect();
    for statement in [
        "GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1' IDENTIFIED BY 'x'",
        "CREATE DATABASE IF NOT EXISTS test",
        "CREATE TABLE test.t (id INT PRIMARY KEY, v INT) ENGINE=InnoDB",
        "INSERT INTO test.t VALUES (1, 0)",
    ] {
        on_primary.query_drop(statement).unwrap();
    }
    let mut on_replica = replica.connect();
    on_replica
        .query_drop(format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, \
             MASTER_USER='replica', MASTER_PASSWORD='x', MASTER_USE_GTID=slave_pos"
        ))
        .unwrap();
    on_replica.query_drop("START SLAVE").unwrap();
    let page = Page::start(&replica, &[]);
    let lag = |state: &Value| {
        let channel = &state["replication"]["channels"][0];
        channel["lag_s"].as_f64().filter(|_| channel["is_running"] == true)
    };
    page.state_with(|state| lag(state) == Some(0.0));
    assert_eq!(on_replica.query_first("SELECT v FROM test.t").unwrap(), Some(0));
    // The applier waits for a row that a session of the replica has locked.
    on_replica.query_drop("BEGIN").unwrap();
    on_replica.query_drop("SELECT v FROM test.t WHERE id = 1 FOR UPDATE").unwrap();
    on_primary.query_drop("UPDATE test.t SET v = 1").unwrap();
    let state = page.state_with(|state| {
        let last = state["samples"].as_array().and_then(|samples| samples.last());
        last.and_then(|last| last["replication_lag_s"].as_f64()) >= Some(2.0)
    });
    assert!(lag(&state) >= Some(2.0), "{state:#}");
    let found = metrics(&page.get("/metrics").1);
    assert!(found["tidepool_watch_replication_lag_seconds"] >= 2.0, "{found:?}");
    assert_eq!(found["tidepool_watch_replication_stopped_channels"], 0.0);
    assert_eq!(found["tidepool_watch_row_locks_waited_for"], 1.0);
    on_replica.query_drop("ROLLBACK").unwrap();
    page.state_with(|state| lag(state) == Some(0.0));
}

#[test]
fn scrapers_get_the_format_that_they_ask_for_and_heads_alone() {
    let server = innodb("watch-formats", &["--innodb-buffer-pool-size=64M"]);
    let page = Page::start(&server, &[]);
    page.state_with(has_samples);
    let get = |accept: &str| {
        let headers = [("Host", page.address.as_str()), ("Accept", accept)];
        page.request("GET /metrics", &headers, "").1
    };
    let text = get("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4");
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert!(text.contains("# TYPE tidepool_watch_questions counter\n"), "{text}");
    assert!(text.contains("tidepool_watch_build_info{version="), "{text}");
    let text = get("*/*");
    assert!(text.contains("# TYPE tidepool_watch_questions_total counter\n"), "{text}");
    assert!(!text.contains("# EOF"), "{text}");
    for path in ["/", "/page.css", "/graphs.js", "/api/state", "/api/state?since=1", "/metrics"] {
        let (status, body) = page.request(&format!("HEAD {path}"), &[("Host", &page.address)], "");
        assert_eq!((status, body.as_str()), (200, ""), "{path}");
    }
    assert_eq!(page.request("HEAD /none", &[("Host", &page.address)], "").0, 404);
    assert_eq!(page.request("HEAD /api/size", &[("Host", &page.address)], "").0, 404);
}

#[test]
fn programs_get_each_second_as_json_and_quiet_is_quiet() {
    let server = innodb("watch-json", &["--innodb-buffer-pool-size=64M"]);
    let run = |args: &[&str]| tidepool(server.socket()).args(args).output().unwrap();
    let output = run(&["watch", "--text", "--format=json", "--duration=4"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = crate::stdout(&output);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 2, "{text}");
    assert_eq!(lines[0]["pool_bytes"], 64 * MIB);
    assert_eq!(lines[0]["server"], server.socket().display().to_string());
    assert!(lines[0]["dirty_bytes"].is_u64() && lines[0]["history_list_length"].is_u64(), "{text}");
    assert_eq!(run(&["watch", "--format=json"]).status.code(), Some(2), "the page has its own");
    for args in [
        &["--quiet", "watch", "--listen=127.0.0.1:0", "--duration=2"][..],
        &["govern", "-q", "--duration=2"][..],
    ] {
        let output = run(args);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!((crate::stdout(&output), stderr(&output)), (String::new(), String::new()));
    }
}
