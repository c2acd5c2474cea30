//! A server with `tidepool_read_only`: all is read, all writes are refused, and no file changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check_table, number, rows, run};

const READ_ONLY: [&str; 1] = ["--tidepool-read-only=ON"];

/// All files below a directory, with their contents.
pub fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.insert(path.clone(), Vec::new());
            found.extend(tree(&path));
        } else {
            let bytes = fs::read(&path).expect("a file can be read");
            found.insert(path, bytes);
        }
    }
    found
}

/// The files that are not the same.
pub fn changed(
    before: &BTreeMap<PathBuf, Vec<u8>>,
    now: &BTreeMap<PathBuf, Vec<u8>>,
) -> Vec<PathBuf> {
    let all = before.keys().chain(now.keys());
    let mut names: Vec<PathBuf> =
        all.filter(|name| before.get(*name) != now.get(*name)).cloned().collect();
    names.sort();
    names.dedup();
    names
}

/// What refuses a statement: its error, or the rows of an answer to OPTIMIZE TABLE and the like.
fn refusal(conn: &mut Conn, statement: &str) -> Option<String> {
    match conn.query::<mysql::Row, _>(statement) {
        Err(mysql::Error::MySqlError(error)) => Some(error.message),
        Err(error) => panic!("{statement}: {error}"),
        Ok(rows) => {
            let text: Vec<String> = rows.into_iter().map(|row| format!("{row:?}")).collect();
            text.iter().find(|row| row.contains("rror")).cloned()
        }
    }
}

/// Everything that the tables hold, by each way to read them.
fn contents(conn: &mut Conn) -> Vec<Vec<String>> {
    let queries = [
        "SELECT * FROM t ORDER BY id",
        "SELECT id, k FROM t FORCE INDEX (k) WHERE k >= 0 ORDER BY k, id",
        "SELECT id FROM t WHERE MATCH (words) AGAINST ('seventh') ORDER BY id",
        "SELECT id FROM t FORCE INDEX (g)
         WHERE ST_Within(g, ST_GeomFromText('POLYGON((0 0, 0 9, 9 9, 9 0, 0 0))')) ORDER BY id",
        "SELECT * FROM parts ORDER BY id",
        "SELECT * FROM child ORDER BY id",
        "SELECT * FROM plain",
        "SHOW TABLES",
    ];
    queries.iter().map(|query| rows(conn, query)).collect()
}

#[test]
fn a_read_only_server_reads_all_refuses_all_writes_and_changes_no_file() {
    let mut server = Server::start(
        Options::new("read_only").engine(Engine::Tidepool).arg("--tidepool-redo-log-capacity=8M"),
    );
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, k INT, words TEXT, g POINT NOT NULL,
                KEY k (k), FULLTEXT (words), SPATIAL g (g))",
            "INSERT INTO t SELECT seq, seq % 7, IF(seq % 7 = 0, 'the seventh row', 'some row'),
                POINT(seq, seq) FROM seq_1_to_500",
            "CREATE TABLE parts (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 3",
            "INSERT INTO parts SELECT seq, seq FROM seq_1_to_100",
            "CREATE TABLE child (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES t (id))",
            "INSERT INTO child VALUES (1), (2)",
            "CREATE SEQUENCE numbers ENGINE=Tidepool",
            "SELECT NEXTVAL(numbers)",
            "CREATE VIEW seen AS SELECT id FROM t",
            "CREATE TABLE plain (id INT PRIMARY KEY)",
            "INSERT INTO plain VALUES (7)",
        ],
    );
    let before = contents(&mut conn);
    drop(conn);
    server.stop();
    let dirs = [server.data_dir().join("tidepool"), server.data_dir().join("test")];
    let files = || dirs.each_ref().map(|dir| tree(dir));
    let old = files();
    server.restart_with(&READ_ONLY);
    let mut conn = server.connect_to("test");
    assert_eq!(number(&mut conn, "SELECT @@tidepool_read_only"), 1);
    // It would report that the files can't be written.
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid().expect("it runs")));
    let name = |task: std::io::Result<fs::DirEntry>| {
        fs::read_to_string(task.expect("an entry").path().join("comm")).unwrap_or_default()
    };
    let names: Vec<String> = threads.expect("threads").map(name).collect();
    let has = |thread: &str| names.iter().any(|name| name.trim() == thread);
    assert!(has("tp-evictor") && !has("tidepool-upkeep"), "{names:?}");
    assert_eq!(contents(&mut conn), before);
    for table in ["t", "parts", "child"] {
        assert_eq!(check_table(&mut conn, table), "OK", "{table}");
    }
    for statement in [
        "INSERT INTO t (id, k, words, g) VALUES (1000, 1, 'new', POINT(1, 1))",
        "INSERT INTO parts VALUES (1000, 1)",
        "UPDATE t SET k = k + 1 WHERE id = 5",
        "UPDATE parts SET v = 0",
        "DELETE FROM child",
        "REPLACE INTO parts VALUES (1, 2)",
        "SELECT NEXTVAL(numbers)",
        "CREATE TABLE more (id INT PRIMARY KEY)",
        "CREATE TABLE copied AS SELECT id FROM t",
        "CREATE TABLE more LIKE t",
        "ALTER TABLE t ADD COLUMN x INT, ALGORITHM=INSTANT",
        "ALTER TABLE t ADD INDEX x (k, id), ALGORITHM=INPLACE",
        "ALTER TABLE t DROP INDEX k",
        "ALTER TABLE t FORCE",
        "ALTER TABLE parts ADD PARTITION PARTITIONS 1",
        "ALTER TABLE parts TRUNCATE PARTITION p0",
        "ALTER TABLE child DISCARD TABLESPACE",
        "TRUNCATE TABLE child",
        "RENAME TABLE child TO elder",
        "ALTER TABLE child RENAME TO elder",
        "DROP TABLE child",
        "DROP TABLE plain",
        "DROP TABLE parts",
        "DROP TABLE t, child",
        "DROP SEQUENCE numbers",
        "OPTIMIZE TABLE t",
    ] {
        let said = refusal(&mut conn, statement);
        let said = said.unwrap_or_else(|| panic!("{statement} is not refused"));
        println!("{statement}: {said}");
        run(&mut conn, &["FLUSH TABLES"]);
        let found = contents(&mut conn);
        assert_eq!(found, before, "after {statement}: {said}");
    }
    // A read needs no table of the engine's, however it is done.
    run(&mut conn, &["SELECT SQL_BUFFER_RESULT k, COUNT(*) FROM t GROUP BY k ORDER BY 2"]);
    run(&mut conn, &["BEGIN", "SELECT * FROM t WHERE id = 7 FOR UPDATE", "COMMIT"]);

    let backup = server.dir().join("backup");
    run(&mut conn, &[&format!("SET GLOBAL tidepool_backup_to = '{}'", backup.display())]);
    let next = server.dir().join("next");
    let base = format!("SET SESSION tidepool_backup_incremental_from = '{}'", backup.display());
    let from = format!("SET GLOBAL tidepool_backup_to = '{}'", next.display());
    let refused = conn.query_drop(base).is_err() || conn.query_drop(from).is_err();
    assert!(refused, "a backup that the directory does not know is a base");
    drop(conn);
    server.stop();
    let now = files();
    for (old, now) in old.iter().zip(&now) {
        assert_eq!(changed(old, now), Vec::<PathBuf>::new());
    }

    // All is there when it may write again, and a restored backup has the same.
    server.restart_with(&[]);
    let mut conn = server.connect_to("test");
    assert_eq!(contents(&mut conn), before);
    run(&mut conn, &["INSERT INTO parts VALUES (1000, 1)"]);
    drop(conn);
    server.kill9();
    server.set_args(READ_ONLY.map(str::to_owned).into());
    let log_start = server.error_log().len();
    let started = server.launch().is_ok_and(|()| {
        let there = "SELECT COUNT(*) FROM information_schema.ENGINES WHERE ENGINE = 'Tidepool'";
        number(&mut server.connect(), there) > 0
    });
    let log = server.error_log().split_off(log_start);
    assert!(!started && log.contains("was not closed cleanly"), "{log}");
    server.end();

    let mut restored = Server::create(Options::new("read_only_restored").engine(Engine::Tidepool));
    let copied =
        Command::new("cp").arg("-a").arg(backup.join(".")).arg(restored.data_dir()).status();
    assert!(copied.is_ok_and(|status| status.success()), "a backup can be copied");
    restored.launch().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(contents(&mut restored.connect_to("test")), before);
}
