//! What a power cut leaves of a server's data directory: the tests' own means first, then
//! definitions.

use std::fs;

use tidepool_tests::definitions::{CASES, Loss, Moment, try_case};
use tidepool_tests::power_cut::{FileSystem, Machine};
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::{check, definition, number, rows, run};

/// Without this, tests that cut the power would pass for the wrong reason.
#[test]
fn a_power_cut_takes_what_was_not_synced_and_leaves_the_rest() {
    for kind in FileSystem::ALL {
        let options = Options::new(&format!("power-{}", kind.name()));
        let Some(mut machine) = Machine::create(options, kind) else { continue };
        let dir = machine.server.data_dir();
        fs::write(dir.join("kept"), "old").unwrap();
        machine.sync_disk();

        fs::write(dir.join("new"), "new").unwrap();
        fs::rename(dir.join("new"), dir.join("kept")).unwrap();
        fs::write(dir.join("unsynced"), "new").unwrap();
        machine.cut_power();

        assert_eq!(fs::read_to_string(dir.join("kept")).unwrap(), "old", "{}", kind.name());
        assert!(!dir.join("unsynced").exists(), "{}", kind.name());
        assert!(dir.join("mysql").is_dir(), "{}: the data directory is gone", kind.name());
    }
}

/// The whole list is for `power-cuts`.
#[test]
fn definitions_survive_a_power_cut() {
    try_all("power-cut", Loss::PowerCut);
}

/// What is written again after a power cut must not be written over what a kill leaves.
#[test]
fn definitions_survive_a_kill() {
    try_all("power-kill", Loss::Kill);
}

/// A start behind a clean stop compares no file with its image: it may have been put there on
/// purpose.
#[test]
fn definitions_survive_a_power_cut_behind_a_clean_stop() {
    try_all("power-stop", Loss::StopThenPowerCut);
}

fn try_all(name: &str, loss: Loss) {
    let Some(mut machine) = Machine::start(Options::new(name), FileSystem::Ext4) else { return };
    let quick = CASES.iter().filter(|case| case.is_quick);
    let wrong: Vec<String> = quick
        .flat_map(|case| {
            let wrong = try_case(&mut machine, case, loss, Moment::Acknowledged);
            wrong.into_iter().map(|what| format!("{}: {what}", case.name)).collect::<Vec<_>>()
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whatever removed them, and however the server had ended.
#[test]
fn tables_whose_files_were_lost_can_be_opened_again() {
    let mut server = Server::start(Options::new("lost-files"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, b VARCHAR(20) DEFAULT 'b', KEY k (b))",
            "CREATE TABLE r (id INT PRIMARY KEY) PARTITION BY RANGE (id)
             (PARTITION p0 VALUES LESS THAN (10), PARTITION `p-1` VALUES LESS THAN (20))",
            "ALTER TABLE t ADD c INT DEFAULT 5 FIRST, COMMENT 'changed'",
            "ALTER TABLE r ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))",
            "INSERT INTO t (id) VALUES (1), (2)",
            "INSERT INTO r VALUES (1), (11), (21)",
            "CREATE DATABASE lost CHARACTER SET latin2 COMMENT 'of before'",
            "CREATE TABLE lost.`ä b` (id INT PRIMARY KEY)",
            "INSERT INTO lost.`ä b` VALUES (7)",
        ],
    );
    let database = rows(&mut conn, "SHOW CREATE DATABASE lost");
    assert!(database[0].contains("latin2"), "{database:?}");
    let defined = ["t", "r", "lost.`ä b`"].map(|table| definition(&mut conn, table));
    drop(conn);
    for is_clean in [true, false] {
        if is_clean {
            server.stop();
        } else {
            server.kill9();
        }
        let dir = server.data_dir();
        for file in ["test/t.frm", "test/r.frm", "test/r.par"] {
            fs::remove_file(dir.join(file)).unwrap();
        }
        fs::remove_dir_all(dir.join("lost")).unwrap();
        server.launch().unwrap();

        let mut conn = server.connect_to("test");
        for (table, was) in ["t", "r", "lost.`ä b`"].iter().zip(&defined) {
            assert_eq!(definition(&mut conn, table), *was);
            check(&mut conn, table);
        }
        assert_eq!(rows(&mut conn, "SHOW CREATE DATABASE lost"), database);
        assert_eq!(number(&mut conn, "SELECT SUM(id + c) FROM t"), 13);
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM r PARTITION (`p-1`, p2)"), 2);
        assert_eq!(number(&mut conn, "SELECT id FROM lost.`ä b`"), 7);
        let log = server.error_log();
        assert!(log.contains("./test/t.frm of table test.t was lost: it is written anew"), "{log}");
    }
    // A file that somebody has put there on purpose stays, unless there was a crash.
    server.stop();
    let file = server.data_dir().join("test/t.frm");
    fs::write(&file, b"damaged").unwrap();
    server.launch().unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"damaged");
    server.kill9();
    server.launch().unwrap();
    check(&mut server.connect_to("test"), "t");
}
