//! Damage of the engine's own files: a start makes the catalog anew of its second copy, and
//! `tidepool_force_recovery` starts where the undo file can't be opened.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mysql::prelude::Queryable;
use tidepool_tests::server::{Options, Server, wait_until};
use tidepool_tests::sql::{check, code_of, number, rows, run};

use crate::read_only_server::{changed, tree};

const ROWS: i64 = 500;
const LOCK_WAIT_TIMEOUT: u16 = 1205;

/// Zeroes the roots of one of the engine's files, so that it can't be opened.
fn damage(server: &Server, file: &str) {
    let path = server.data_dir().join("tidepool").join(file);
    let file = OpenOptions::new().write(true).open(path).expect("the file is there");
    file.write_all_at(&[0; 4 * 4096], 0).expect("it can be written");
}

fn server_with_rows(name: &str) -> Server {
    let server = Server::start(Options::new(name));
    let mut conn = server.connect_to("test");
    for table in ["one", "two"] {
        let create = format!("CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(100))");
        conn.query_drop(create).expect("a table");
        let insert = format!("INSERT INTO {table} SELECT seq, 'row' FROM seq_1_to_{ROWS}");
        conn.query_drop(insert).expect("rows");
    }
    server
}

#[test]
fn a_damaged_or_missing_catalog_file_is_made_anew() {
    let mut server = server_with_rows("mended_catalog");
    for (round, said) in [
        "system.tpd: none of its roots is whole",
        "system.tpd: missing: it is made anew of system-mirror.tpd",
    ]
    .into_iter()
    .enumerate()
    {
        server.stop();
        match round {
            0 => damage(&server, "system.tpd"),
            _ => std::fs::remove_file(server.data_dir().join("tidepool/system.tpd"))
                .expect("the file is there"),
        }
        server.launch().expect("a start");
        assert!(server.error_log().contains(said), "{said}");
        let mut conn = server.connect_to("test");
        for table in ["one", "two"] {
            assert_eq!(number(&mut conn, &format!("SELECT COUNT(*) FROM {table}")), ROWS);
        }
        conn.query_drop(format!("UPDATE one SET v = 'newer {round}'")).expect("a write");
        let create = format!("CREATE TABLE new{round} (id INT PRIMARY KEY)");
        conn.query_drop(create).expect("a table");
    }
}

#[test]
fn tables_can_be_dumped_without_the_undo_log() {
    let mut server = server_with_rows("forced");
    server.stop();
    damage(&server, "undo.tpd");
    server.restart_with(&["--tidepool-force-recovery=4"]);
    let log = server.error_log();
    assert!(log.contains("undo.tpd: none of its roots is whole"));
    assert!(log.contains("force_recovery is 4: nothing is written"));
    let mut conn = server.connect_to("test");
    assert_eq!(number(&mut conn, "SELECT @@tidepool_force_recovery"), 4);
    for table in ["one", "two"] {
        assert_eq!(number(&mut conn, &format!("SELECT COUNT(*) FROM {table}")), ROWS);
    }
    for write in ["INSERT INTO one VALUES (0, '')", "CREATE TABLE three (id INT PRIMARY KEY)"] {
        conn.query_drop(write).expect_err(write);
    }
    let dump = server.client("DUMP").arg("test").output().expect("mariadb-dump runs");
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let dumped = String::from_utf8_lossy(&dump.stdout).matches("'row'").count();
    assert_eq!(dumped as i64, 2 * ROWS);
}

/// Where nothing is written, what can't be read of the catalog is passed over: its tables are not
/// gone for that, and their .frm files stay.
#[test]
fn files_of_tables_that_the_catalog_can_not_show_stay() {
    let mut server = server_with_rows("unread_catalog");
    let files = ["one", "two"].map(|table| server.data_dir().join(format!("test/{table}.frm")));
    // The catalog is in its file, and a crash comes after.
    server.stop();
    server.launch().expect("a start");
    server.kill9();
    for file in ["system.tpd", "system-mirror.tpd"] {
        let path = server.data_dir().join("tidepool").join(file);
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the file is there");
        let len = file.metadata().expect("it has a length").len();
        // All but the roots, which say where the pages are.
        let from = 4 * 4096;
        let zeroes = vec![0; usize::try_from(len - from).expect("it is small")];
        file.write_all_at(&zeroes, from).expect("it can be written");
    }
    for level in [3, 4] {
        server.restart_with(&[&format!("--tidepool-force-recovery={level}")]);
        for file in &files {
            assert!(file.exists(), "{}: {}", file.display(), server.error_log());
        }
        let log = server.error_log();
        assert!(log.contains("2 files of definitions, the first of which is ./test/"), "{log}");
        assert!(log.contains("they stay where they are"), "{log}");
        server.kill9();
    }
}

/// A server that was killed with a transaction under way, one that is prepared, and changes that
/// are in the log alone.
fn killed_server(name: &str) -> Server {
    let options = Options::new(name).arg("--tidepool-redo-log-capacity=8M");
    let mut server = Server::start(options.arg("--skip-log-bin"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL, KEY v (v))",
            "INSERT INTO t SELECT seq, 0 FROM seq_1_to_500",
            "CREATE TABLE parts (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 2",
            "INSERT INTO parts SELECT seq, 0 FROM seq_1_to_100",
            "CREATE TABLE gone (id INT PRIMARY KEY)",
        ],
    );
    drop(conn);
    server.restart();
    let mut conn = server.connect_to("test");
    let mut unfinished = server.connect_to("test");
    run(&mut unfinished, &["BEGIN", "UPDATE t SET v = 7 WHERE id BETWEEN 201 AND 220"]);
    run(&mut unfinished, &["INSERT INTO t VALUES (9001, 7)"]);
    let mut prepared = server.connect_to("test");
    run(
        &mut prepared,
        &[
            "XA START 'x'",
            "UPDATE t SET v = 8 WHERE id BETWEEN 301 AND 310",
            "XA END 'x'",
            "XA PREPARE 'x'",
        ],
    );
    run(
        &mut conn,
        &[
            "UPDATE t SET v = 1 WHERE id <= 100",
            "DELETE FROM t WHERE id BETWEEN 101 AND 150",
            "INSERT INTO t SELECT seq, 2 FROM seq_1001_to_1100",
            "CREATE TABLE late (id INT PRIMARY KEY)",
            "INSERT INTO late VALUES (1), (2)",
            "ALTER TABLE parts ADD COLUMN w INT DEFAULT 3",
            "DROP TABLE gone",
        ],
    );
    server.kill9();
    server
}

/// What is committed, each figure by each index.
const TRUTH: [(&str, i64); 9] = [
    ("SELECT COUNT(*) FROM t FORCE INDEX (PRIMARY)", 550),
    ("SELECT COUNT(*) FROM t FORCE INDEX (v) WHERE v >= 0", 550),
    ("SELECT SUM(v) FROM t FORCE INDEX (PRIMARY)", 300),
    ("SELECT SUM(v) FROM t FORCE INDEX (v) WHERE v >= 0", 300),
    ("SELECT COUNT(*) FROM parts", 100),
    ("SELECT SUM(w) FROM parts", 300),
    ("SELECT COUNT(*) FROM late", 2),
    ("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'test'", 3),
    ("SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'test'", 6),
];

fn expect_truth(server: &Server, what: &str) {
    let mut conn = server.connect_to("test");
    for (query, expected) in TRUTH {
        assert_eq!(number(&mut conn, query), expected, "{what}: {query}");
    }
}

/// The levels on the same directory, which lacks nothing: each reads, and takes nothing from the
/// next start.
#[test]
fn each_level_reads_and_the_next_start_has_all() {
    let mut server = killed_server("levels");
    let data = server.data_dir();
    let saved = server.dir().join("saved");
    let copy = |from: &Path, to: &Path| {
        let _ = std::fs::remove_dir_all(to);
        let copied = Command::new("cp").arg("-a").arg("-T").arg(from).arg(to).status();
        assert!(copied.is_ok_and(|status| status.success()), "a directory can be copied");
    };
    copy(&data, &saved);
    for level in 1..=5 {
        if level > 1 {
            copy(&saved, &data);
        }
        let what = format!("level {level}");
        let dirs = [data.join("tidepool"), data.join("test")];
        let old = dirs.each_ref().map(|dir| tree(dir));
        let option = format!("--tidepool-force-recovery={level}");
        server.restart_with(&["--skip-log-bin", "--tidepool-redo-log-capacity=8M", &option]);
        if level <= 3 {
            expect_truth(&server, &what);
        }
        let mut conn = server.connect_to("test");
        // Which rows there are is certain where the log is read.
        if level <= 4 {
            let mut dump = server.client("DUMP");
            let dump = dump
                .args(["--all-databases", "--single-transaction"])
                .output()
                .expect("mariadb-dump runs");
            assert!(dump.status.success(), "{what}: {}", String::from_utf8_lossy(&dump.stderr));
        }
        for write in [
            "INSERT INTO late VALUES (3)",
            "CREATE TABLE more (id INT PRIMARY KEY)",
            "ALTER TABLE late ADD COLUMN x INT",
            "TRUNCATE TABLE late",
            "DROP TABLE late",
        ] {
            // At 5 the tables are those that the files know: what is in the log alone is none.
            if level == 3 || level == 4 {
                let error = conn.query_drop(write).expect_err(write);
                println!("{what}: {write}: {error}");
            }
        }
        if level == 2 {
            // What was unfinished is locked.
            let locked = "SELECT * FROM t WHERE id = 210 FOR UPDATE NOWAIT";
            assert_eq!(code_of(&mut conn, locked), LOCK_WAIT_TIMEOUT, "{what}");
            run(&mut conn, &["INSERT INTO late VALUES (3)", "DELETE FROM late WHERE id = 3"]);
        }
        drop(conn);
        server.stop();
        if level == 5 {
            for (old, dir) in old.iter().zip(&dirs[..1]) {
                assert_eq!(changed(old, &tree(dir)), Vec::<PathBuf>::new(), "{what}");
            }
        }
        server.restart_with(&["--skip-log-bin", "--tidepool-redo-log-capacity=8M"]);
        let what = format!("after level {level}");
        expect_truth(&server, &what);
        let mut conn = server.connect_to("test");
        assert_eq!(rows(&mut conn, "XA RECOVER").len(), 1, "{what}");
        run(&mut conn, &["XA COMMIT 'x'"]);
        assert_eq!(number(&mut conn, "SELECT SUM(v) FROM t"), 380, "{what}");
        wait_until(Duration::from_secs(30), "the rollback", || {
            let sql = "SELECT id FROM t WHERE id = 210 FOR UPDATE NOWAIT";
            code_of(&mut conn, sql) == 0
        });
        for table in ["t", "parts", "late"] {
            check(&mut conn, table);
        }
        drop(conn);
        server.stop();
    }
}
