//! `tidepool advise` on servers that are wrong in a known way, and on one that isn't.

use mysql::prelude::Queryable;
use serde_json::Value;
use tidepool_tests::server::Server;

use crate::cgroup::Cgroup;
use crate::{Reader, fill, innodb, stderr, stdout, tidepool};

const MIB: u64 = 1 << 20;

/// What `advise --json` says, with the findings' rules in their order.
pub fn advise(server: &Server) -> (Value, Vec<String>) {
    let output =
        tidepool(server.socket()).args(["advise", "--json", "--interval=0.3"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let rules = findings.iter().map(|f| f["rule"].as_str().unwrap().to_owned()).collect();
    (report, rules)
}

pub fn finding<'a>(report: &'a Value, rule: &str) -> &'a Value {
    let findings = report["findings"].as_array().unwrap();
    findings
        .iter()
        .find(|f| f["rule"] == rule)
        .unwrap_or_else(|| panic!("no {rule} in {findings:#?}"))
}

/// Asks until there is an answer: a busy machine may be slow, but not for ever.
pub fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..100 {
        if let Some(answer) = ask() {
            return answer;
        }
    }
    panic!("it never happened");
}

/// The statements of a finding do what they say.
pub fn apply(server: &Server, finding: &Value) {
    let mut conn = server.connect();
    for statement in finding["set"].as_array().unwrap() {
        conn.query_drop(statement.as_str().unwrap()).unwrap();
    }
}

pub fn global(server: &Server, name: &str) -> u64 {
    server.connect().query_first(format!("SELECT @@GLOBAL.{name}")).unwrap().unwrap()
}

#[test]
fn a_default_server_with_more_data_than_its_pool() {
    let server = innodb("advise-default", &["--innodb-log-file-size=512M"]);
    assert_eq!(global(&server, "innodb_buffer_pool_size"), 128 * MIB);
    let rows = fill(&server, 160);
    let reader = Reader::start(&server, rows);
    let (report, rules) = until(|| {
        let advice = advise(&server);
        advice.1.contains(&"pool_too_small".to_owned()).then_some(advice)
    });
    drop(reader);
    assert_eq!(rules[0], "pool_too_small", "{rules:?}");
    assert_eq!(report["healthy"], false);
    apply(&server, finding(&report, "pool_too_small"));
    let size = global(&server, "innodb_buffer_pool_size");
    assert!((160 * MIB..400 * MIB).contains(&size), "{size}: no more than the data can use");
    let (_, rules) = advise(&server);
    assert!(!rules.iter().any(|rule| rule.starts_with("pool")), "{rules:?}");
}

#[test]
fn a_default_is_told_from_the_same_size_by_choice() {
    for (name, args, is_default) in [
        ("advise-origin", &["--innodb-log-file-size=512M"][..], true),
        (
            "advise-chosen",
            &["--innodb-log-file-size=512M", "--innodb-buffer-pool-size=128M"],
            false,
        ),
    ] {
        let server = innodb(name, args);
        let (report, rules) = advise(&server);
        assert_eq!(report["facts"]["settings"]["pool_size_is_set"], !is_default, "{name}");
        assert_eq!(rules.contains(&"pool_default".to_owned()), is_default, "{rules:?}");
    }
}

#[test]
fn over_eighty_per_cent_in_a_cgroup_that_is_too_small_for_it() {
    let Some(group) = Cgroup::new("advise") else { return };
    group.limit(192 * MIB);
    let args = ["--innodb-buffer-pool-size=160M", "--innodb-log-file-size=512M"];
    let Some(server) = group.start(|| innodb("advise-cgroup", &args)) else { return };
    fill(&server, 48);
    let (report, rules) = advise(&server);
    assert_eq!(rules[0], "pool_too_large", "{rules:?}: {report:#}");
    let machine = &report["facts"]["machine"];
    assert_eq!(machine["limit_bytes"], 192 * MIB);
    assert!(machine["limit_place"].as_str().unwrap().contains(group.path().to_str().unwrap()));
    // Once, or a few times: what the rest of the server uses moves too, and here a few MiB are a
    // large part.
    let mut size = 160 * MIB;
    let mut advice = report;
    for _ in 0..4 {
        apply(&server, finding(&advice, "pool_too_large"));
        let smaller = global(&server, "innodb_buffer_pool_size");
        assert!(smaller < size, "{smaller} after {size}");
        size = smaller;
        let (next, rules) = advise(&server);
        advice = next;
        if !rules.contains(&"pool_too_large".to_owned()) {
            break;
        }
    }
    assert!(
        advice["findings"].as_array().unwrap().iter().all(|f| f["rule"] != "pool_too_large"),
        "{advice:#}"
    );
    assert!(group.usage() <= 192 * MIB);
    // Before its group.
    drop(server);
}

#[test]
fn a_pool_that_scans_wash_out() {
    let server =
        innodb("advise-scan", &["--innodb-old-blocks-time=0", "--innodb-buffer-pool-size=64M"]);
    let (report, rules) = advise(&server);
    assert_eq!(rules[0], "old_blocks_time", "{rules:?}");
    apply(&server, finding(&report, "old_blocks_time"));
    assert_eq!(global(&server, "innodb_old_blocks_time"), 1000);
    assert!(!advise(&server).1.contains(&"old_blocks_time".to_owned()));
}

#[test]
fn a_tiny_redo_log_under_writes() {
    let server = innodb(
        "advise-redo",
        &[
            "--innodb-log-file-size=10M",
            "--innodb-buffer-pool-size=256M",
            // Less than that MariaDB does not take for the log.
            "--innodb-log-buffer-size=300M",
        ],
    );
    fill(&server, 16);
    let (report, rules) = advise(&server);
    assert_eq!(rules[0], "redo_capacity", "{rules:?}");
    apply(&server, finding(&report, "redo_capacity"));
    assert!(global(&server, "innodb_log_file_size") >= 256 * MIB);
}

#[test]
fn a_healthy_server_gets_no_suggestion() {
    let server =
        innodb("advise-healthy", &["--innodb-buffer-pool-size=96M", "--innodb-log-file-size=512M"]);
    fill(&server, 16);
    let output =
        tidepool(server.socket()).args(["advise", "--check", "--interval=0.3"]).output().unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("Healthy: nothing to change."), "{text}");
    assert!(!text.contains("SET GLOBAL") && !text.contains("Skipped:"), "{text}");
    // The same with something wrong.
    server.connect().query_drop("SET GLOBAL innodb_old_blocks_time = 0").unwrap();
    let output =
        tidepool(server.socket()).args(["advise", "--check", "--interval=0.3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(10));
    assert!(stdout(&output).contains("SET GLOBAL innodb_old_blocks_time = 1000;"));
}

#[test]
fn advice_changes_nothing() {
    let server =
        innodb("advise-reads", &["--innodb-old-blocks-time=0", "--innodb-log-file-size=10M"]);
    let variables = |server: &Server| -> Vec<(String, String)> {
        let rows: Vec<(String, String)> = server.connect().query("SHOW GLOBAL VARIABLES").unwrap();
        // Names of what the last statement did, not settings.
        rows.into_iter()
            .filter(|(name, _)| !name.contains("gtid") && !name.contains("timestamp"))
            .collect()
    };
    let before = variables(&server);
    advise(&server);
    assert_eq!(variables(&server), before);
    // Nor does it leave a trace that a monitoring of the server would show.
    let aborted: Vec<(String, u64)> =
        server.connect().query("SHOW GLOBAL STATUS LIKE 'Aborted%'").unwrap();
    assert!(aborted.iter().all(|(_, count)| *count == 0), "{aborted:?}");
    assert!(!server.error_log().contains("Aborted"), "{}", server.error_log());
}

/// A server of 64 MiB below a limit of 448 MiB, whose key cache of 192 MiB is empty and can fill.
pub fn beside_a_key_cache(group: &Cgroup, name: &str) -> Option<Server> {
    group.limit(448 * MIB);
    let args = [
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=96M",
        "--innodb-log-buffer-size=4M",
        "--innodb-lru-scan-depth=100",
        "--key-buffer-size=192M",
        "--aria-pagecache-buffer-size=8M",
        "--tmp-table-size=1M",
    ];
    let server = group.start(|| innodb(name, &args))?;
    fill(&server, 256);
    let mut conn = server.connect_to("test");
    for statement in [
        "CREATE TABLE keyed (k BINARY(250) NOT NULL) ENGINE=MyISAM PACK_KEYS=0",
        "INSERT INTO keyed SELECT LPAD(seq, 250, '0') FROM seq_1_to_600000",
        "SET SESSION myisam_sort_buffer_size = 8388608",
        "ALTER TABLE keyed ADD KEY (k)",
    ] {
        conn.query_drop(statement).unwrap();
    }
    Some(server)
}

/// Reads all of both tables into their caches.
pub fn fill_both(server: &Server) {
    let mut conn = server.connect_to("test");
    for _ in 0..2 {
        conn.query_drop("SELECT COUNT(*) FROM filler WHERE v <> ''").expect("the server lives");
    }
    conn.query_drop("LOAD INDEX INTO CACHE keyed").expect("the server lives");
    conn.query_drop("SELECT COUNT(*) FROM filler WHERE v <> ''").expect("the server lives");
}

/// The unused blocks of the key cache, bytes.
fn key_cache_left(server: &Server) -> u64 {
    let query = "SHOW GLOBAL STATUS LIKE 'Key_blocks_unused'";
    let row: Option<(String, u64)> = server.connect().query_first(query).unwrap();
    row.unwrap().1 * 1024
}

#[test]
fn the_size_that_is_advised_leaves_room_for_a_key_cache_that_is_empty() {
    let Some(group) = Cgroup::new("advise-key") else { return };
    let Some(server) = beside_a_key_cache(&group, "advise-key") else { return };
    let left = key_cache_left(&server);
    assert!(left > 120 * MIB, "{left}: nothing was read of it");
    let rows = 256 * 64 * 14;
    let reader = Reader::start(&server, rows);
    let (report, rules) = until(|| {
        let advice = advise(&server);
        advice.1.iter().any(|rule| rule.starts_with("pool_too")).then_some(advice)
    });
    drop(reader);
    let finding = finding(&report, &rules[0]);
    assert!(finding["why"].as_str().unwrap().contains("key_buffer_size"), "{finding:#}");
    apply(&server, finding);
    fill_both(&server);
    assert!(key_cache_left(&server) + 100 * MIB < left, "it has filled");
    // Alive, and with room: nothing had to go to swap either.
    assert!(group.usage() <= 448 * MIB);
    drop(server);
}
