//! `tidepool advise` on MySQL servers that are wrong in a known way, and on one that isn't.

use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use serde_json::Value;

use super::mysql;
use crate::advise::{advise, apply, finding, global, until};
use crate::cgroup::Cgroup;
use crate::govern::PATIENCE;
use crate::{Reader, fill, stderr, stdout, tidepool};

const MIB: u64 = 1 << 20;

#[test]
fn a_default_installation_with_more_data_than_its_pool() {
    let Some(server) = mysql("mysql-default", &[]) else { return };
    let (report, rules) = advise(&server);
    assert_eq!(report["facts"]["kind"]["flavour"], "MySql");
    assert_eq!(report["unseen"], Value::Array(Vec::new()));
    assert_eq!(finding(&report, "pool_default")["severity"], "low", "{rules:?}");
    let rows = fill(&server, 160);
    let reader = Reader::start(&server, rows);
    let (report, rules) = until(|| {
        let advice = advise(&server);
        advice.1.contains(&"pool_too_small".to_owned()).then_some(advice)
    });
    drop(reader);
    assert_eq!(rules[0], "pool_too_small", "{rules:?}");
    // What it can be set to is a number of chunks, and the last is for the rest of the data.
    let wanted = finding(&report, "pool_too_small")["set"][0].as_str().unwrap();
    assert_eq!(wanted, format!("SET GLOBAL innodb_buffer_pool_size = {};", 384 * MIB));
    apply(&server, finding(&report, "pool_too_small"));
    assert_eq!(global(&server, "innodb_buffer_pool_size"), 384 * MIB);
    let (_, rules) = advise(&server);
    assert!(!rules.iter().any(|rule| rule.starts_with("pool")), "{rules:?}");
}

#[test]
fn a_pool_that_no_cgroup_has_room_for() {
    let Some(group) = Cgroup::new("mysql-advise") else { return };
    let args = ["--innodb-buffer-pool-size=4G", "--innodb-redo-log-capacity=512M"];
    let Some(server) = group.start(|| mysql("mysql-cgroup", &args)) else { return };
    let Some(server) = server else { return };
    // The descriptors of 4 GiB alone are more than 300 MiB, and go with the pages that they
    // describe.
    let limit = group.usage() + 40 * MIB;
    group.limit(limit);
    let (report, rules) = advise(&server);
    assert_eq!(rules[0], "pool_too_large", "{rules:?}: {report:#}");
    assert_eq!(finding(&report, "pool_too_large")["severity"], "critical");
    apply(&server, finding(&report, "pool_too_large"));
    let size = global(&server, "innodb_buffer_pool_size");
    assert!((256 * MIB..=1024 * MIB).contains(&size), "{size}");
    // It returns at once, and the descriptors go when it is done.
    until(|| {
        let (_, rules) = advise(&server);
        (!rules.contains(&"pool_too_large".to_owned())).then_some(())
    });
    assert_eq!(global(&server, "innodb_buffer_pool_size"), size);
    drop(server);
}

#[test]
fn a_tiny_redo_log_under_writes() {
    let args = ["--innodb-redo-log-capacity=8M", "--innodb-buffer-pool-size=256M"];
    let Some(server) = mysql("mysql-redo", &args) else { return };
    fill(&server, 32);
    let (report, rules) = advise(&server);
    assert_eq!(rules[0], "redo_capacity", "{rules:?}");
    let redo = &report["facts"]["redo"];
    assert_eq!(redo["capacity_bytes"], 8 * MIB);
    assert_eq!(redo["option"], "innodb_redo_log_capacity");
    // How full it is, and how full it can get.
    let (age, most) = (&redo["checkpoint_age_bytes"], &redo["checkpoint_max_bytes"]);
    assert!(age.as_u64().unwrap() <= 8 * MIB, "{redo:#}");
    assert!((6 * MIB..8 * MIB).contains(&most.as_u64().unwrap()), "{redo:#}");
    apply(&server, finding(&report, "redo_capacity"));
    assert!(global(&server, "innodb_redo_log_capacity") >= 256 * MIB);
    assert!(!advise(&server).1.contains(&"redo_capacity".to_owned()));
}

#[test]
fn a_pool_that_scans_wash_out() {
    let args = ["--innodb-old-blocks-time=0", "--innodb-buffer-pool-size=64M"];
    let Some(server) = mysql("mysql-scan", &args) else { return };
    let (report, rules) = advise(&server);
    assert_eq!(rules[0], "old_blocks_time", "{rules:?}");
    apply(&server, finding(&report, "old_blocks_time"));
    assert_eq!(global(&server, "innodb_old_blocks_time"), 1000);
    assert!(!advise(&server).1.contains(&"old_blocks_time".to_owned()));
}

#[test]
fn a_healthy_server_gets_no_suggestion_and_keeps_every_setting() {
    // The flush method is what MySQL has by default since 8.4.
    let args = [
        "--innodb-buffer-pool-size=256M",
        "--innodb-redo-log-capacity=512M",
        "--innodb-flush-method=O_DIRECT",
    ];
    let Some(server) = mysql("mysql-healthy", &args) else { return };
    fill(&server, 16);
    let variables = || -> Vec<(String, String)> {
        let rows: Vec<(String, String)> = server.connect().query("SHOW GLOBAL VARIABLES").unwrap();
        rows.into_iter()
            .filter(|(name, _)| !name.contains("gtid") && !name.contains("timestamp"))
            .collect()
    };
    let before = variables();
    let output =
        tidepool(server.socket()).args(["advise", "--check", "--interval=0.3"]).output().unwrap();
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.contains("Healthy: nothing to change."), "{text}");
    assert!(!text.contains("SET GLOBAL") && !text.contains("Skipped:"), "{text}");
    assert_eq!(variables(), before);
}

#[test]
fn sizes_of_tables_are_those_of_now() {
    let Some(server) = mysql("mysql-sizes", &["--innodb-buffer-pool-size=96M"]) else { return };
    let mut conn = server.connect();
    // May read, but not see the files' sizes: what the server says of its tables is all there is.
    conn.query_drop("CREATE USER reader@localhost").unwrap();
    conn.query_drop("GRANT SELECT ON *.* TO reader@localhost").unwrap();
    let known = || {
        let output = tidepool(server.socket())
            .args(["--user=reader", "advise", "--json", "--interval=0.1"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["facts"]["data"]["innodb_data_bytes"].as_u64().unwrap()
    };
    fill(&server, 1);
    // MySQL keeps for a day what it has answered to anyone.
    let sizes = "SELECT data_length FROM information_schema.tables WHERE table_name = 'filler'";
    let kept: Option<u64> = conn.query_first(sizes).unwrap();
    for doubled in 0..6 {
        let more = format!(
            "INSERT INTO test.filler SELECT id + {}, v FROM test.filler",
            1_000_000 << doubled
        );
        conn.query_drop(more).unwrap();
    }
    // Its own estimate follows the inserts some seconds later.
    let deadline = Instant::now() + PATIENCE;
    while known() < 48 * MIB {
        assert!(Instant::now() < deadline, "still {}", known());
        std::thread::sleep(Duration::from_millis(500));
    }
    // Nor was that written down for others.
    assert_eq!(conn.query_first::<u64, _>(sizes).unwrap(), kept);
}

#[test]
fn a_missing_privilege_is_named_by_its_grant() {
    let Some(server) = mysql("mysql-privilege", &["--innodb-buffer-pool-size=96M"]) else { return };
    server.connect().query_drop("CREATE USER poor@localhost").unwrap();
    let run = || {
        let arguments = ["--user=poor", "advise", "--interval=0.1"];
        stdout(&tidepool(server.socket()).args(arguments).output().unwrap())
    };
    let grant = "GRANT PROCESS ON *.* TO 'poor'@'localhost'";
    let text = run();
    assert!(
        text.contains("Skipped: the sizes of InnoDB's files") && text.contains(grant),
        "{text}"
    );
    server.connect().query_drop(grant).unwrap();
    let text = run();
    assert!(!text.contains("Skipped:"), "{text}");
}

#[test]
fn a_server_that_can_have_no_tidepool_is_not_converted() {
    let Some(server) = mysql("mysql-convert", &[]) else { return };
    let output = tidepool(server.socket()).arg("convert").output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    assert!(stderr(&output).contains("an engine of MariaDB"), "{}", stderr(&output));
}
