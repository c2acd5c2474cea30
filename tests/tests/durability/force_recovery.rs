//! Damage of the engine's own files: a start makes the catalog anew of its second copy, and
//! `tidepool_force_recovery` starts where the undo file can't be opened.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use mysql::prelude::Queryable;
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::number;

const ROWS: i64 = 500;

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
