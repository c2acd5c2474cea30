//! Damaged pages of the engine's own files: a start mends them from their second copies, and
//! `tidepool_force_recovery` starts where both are lost.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use mysql::prelude::Queryable;
use tidepool_tests::server::{Options, Server};
use tidepool_tests::sql::number;

const PAGE: u64 = 16384;
const ROWS: i64 = 500;

/// Flips a bit in a page of one of the engine's files.
fn damage(server: &Server, file: &str, page: u64) {
    let path = server.data_dir().join("tidepool").join(file);
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the file is there");
    let (mut byte, at) = ([0], page * PAGE + PAGE / 3);
    file.read_exact_at(&mut byte, at).expect("the page is there");
    file.write_all_at(&[byte[0] ^ 4], at).expect("it can be written");
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
fn single_broken_pages_of_the_catalog_and_the_undo_directory_are_mended() {
    let mut server = server_with_rows("mended_pages");
    server.stop();
    let pages = [("system.tpd", 0), ("system.tpd", 2), ("undo.tpd", 0), ("undo.tpd", 2)];
    for (file, page) in pages {
        damage(&server, file, page);
    }
    server.launch().expect("a start");
    let log = server.error_log();
    for (file, page) in pages {
        let said = format!("{file}: page {page} is broken, and was restored from its copy in ");
        assert!(log.contains(&said), "{said}");
    }
    let mut conn = server.connect_to("test");
    for table in ["one", "two"] {
        assert_eq!(number(&mut conn, &format!("SELECT COUNT(*) FROM {table}")), ROWS);
    }
    conn.query_drop("UPDATE one SET v = 'newer'").expect("a write");
    conn.query_drop("CREATE TABLE three (id INT PRIMARY KEY)").expect("a table");
}

#[test]
fn tables_can_be_dumped_without_the_undo_log() {
    let mut server = server_with_rows("forced");
    server.stop();
    damage(&server, "undo.tpd", 2);
    damage(&server, "undo-mirror.tpd", 2);
    server.restart_with(&["--tidepool-force-recovery=4"]);
    assert!(server.error_log().contains("force_recovery is 4: nothing is written"));
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
