//! Data directories that earlier versions have left, in `tests/archives/`: this version must open
//! each of them and find what the earlier version had.
//!
//! An archive is what a server leaves that is killed while it works: tables of every kind, indexes
//! of every kind, a transaction that is unfinished and one that is prepared, deletions that are not
//! purged yet. `expected.txt` in it has the answers to [`QUESTIONS`] at that moment.
//!
//! A change of a format adds an archive of its version, made by
//! `cargo test -p tidepool-tests --test durability archived -- --ignored`. An archive goes only
//! with the support for its version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::keys::with_keys;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check_table, code_of, number, rows, run};

/// Files of a data directory that are the server's and not the engine's: a new server has its own.
const OF_THE_SERVER: [&str; 9] = [
    "aria_log",
    "ib_",
    "ibdata",
    "ibtmp",
    "undo0",
    "mysql",
    "performance_schema",
    "sys",
    "ddl_recovery",
];

const TABLES: &str = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'a' \
     AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY table_name";

/// What is asked of the archived server and of the one that opens its directory.
const QUESTIONS: [&str; 7] = [
    TABLES,
    "SELECT id FROM words WHERE MATCH (text) AGAINST ('word17') ORDER BY id",
    "SELECT id FROM words WHERE MATCH (text) AGAINST ('+word3 -word5' IN BOOLEAN MODE) ORDER BY id",
    "SELECT id FROM shapes WHERE MBRIntersects(shape, \
     ST_GeomFromText('POLYGON((10 10, 10 60, 60 60, 60 10, 10 10))')) ORDER BY id",
    "SELECT COUNT(*), SUM(v) FROM parent JOIN child ON parent.id = child.parent",
    "SELECT COUNT(*) FROM kinds FORCE INDEX (by_text) WHERE text > 'text 5'",
    "XA RECOVER",
];

fn archives() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("archives")
}

fn options(name: &str) -> (Options, tidepool_tests::keys::PluginDir) {
    let (options, plugins) = with_keys(name, &[1, 2]);
    let options = options
        .engine(Engine::Tidepool)
        .arg("--tidepool-redo-log-capacity=8M")
        .arg("--tidepool-buffer-pool-size=16M");
    (options, plugins)
}

fn tables(conn: &mut Conn) -> Vec<String> {
    conn.query(TABLES).expect("tables can be listed")
}

/// The answers to all questions, and the rows of all tables, as text.
fn answers(conn: &mut Conn) -> String {
    let mut text = String::new();
    let mut ask = |conn: &mut Conn, question: &str| {
        text += &format!("{question}\n");
        for row in rows(conn, question) {
            text += &format!("    {row}\n");
        }
    };
    for question in QUESTIONS {
        ask(conn, question);
    }
    for table in tables(conn) {
        ask(conn, &format!("SHOW CREATE TABLE `{table}`"));
        // Rows are long: their number and a sum that each byte of each column goes into.
        ask(conn, &format!("CHECKSUM TABLE `{table}`"));
        ask(conn, &format!("SELECT COUNT(*) FROM `{table}`"));
    }
    text
}

fn make_tables(conn: &mut Conn) {
    let sql = fs::read_to_string(archives().join("tables.sql")).expect("the statements");
    for statement in sql.split(";\n").filter(|statement| !statement.trim().is_empty()) {
        run(conn, &[statement]);
    }
}

/// What is left of a data directory when everything that a new server makes itself is out of it.
fn is_archived(name: &str) -> bool {
    !OF_THE_SERVER.iter().any(|prefix| name.starts_with(prefix))
        && !["multi-master.info", "test", "log"].contains(&name)
}

fn tar(arguments: &[&str], dir: &Path) {
    let status = Command::new("tar").args(arguments).current_dir(dir).status();
    assert!(status.is_ok_and(|status| status.success()), "tar {arguments:?}");
}

/// Opens the archived directory with this version.
fn open(archive: &Path) {
    let name = archive.file_name().and_then(|name| name.to_str()).expect("a name");
    let (options, _plugins) = options("archived");
    let mut server = Server::create(options);
    tar(&["-xzf", &archive.display().to_string()], server.data_dir().as_path());
    let expected = fs::read_to_string(server.data_dir().join("expected.txt")).expect("answers");
    fs::remove_file(server.data_dir().join("expected.txt")).expect("it can be removed");
    server.launch().unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut conn = server.connect_to("a");
    let found = answers(&mut conn);
    for (expected, found) in expected.lines().zip(found.lines()) {
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(found.len(), expected.len(), "{name}");
    let tables = tables(&mut conn);
    assert!(tables.len() >= 14, "{name}: {tables:?}");
    for table in &tables {
        assert_eq!(check_table(&mut conn, table), "OK", "{name}: {table}");
    }
    // Locked by the prepared transaction, until its verdict.
    run(&mut conn, &["SET innodb_lock_wait_timeout = 1, tidepool_lock_wait_timeout = 1"]);
    assert_eq!(code_of(&mut conn, "UPDATE parts SET v = '' WHERE id = 1"), 1205, "{name}");
    run(&mut conn, &["XA COMMIT 'archived'"]);
    let value: Option<String> = conn.query_first("SELECT v FROM parts WHERE id = 1").unwrap();
    assert_eq!(value.as_deref(), Some("prepared"), "{name}");
    // It can be written to, and altered.
    for table in &tables {
        run(&mut conn, &[&format!("ALTER TABLE `{table}` COMMENT 'opened'")]);
    }
    run(
        &mut conn,
        &[
            "DELETE FROM kinds WHERE id % 2 = 0",
            "INSERT INTO kinds (tiny) VALUES (1)",
            "ALTER TABLE kinds ADD KEY (dt), DROP KEY by_text",
            "ALTER TABLE versions FORCE",
            "INSERT INTO words VALUES (1000, 'word17')",
        ],
    );
    server.stop();
    server.launch().unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut conn = server.connect_to("a");
    for table in &tables {
        assert_eq!(check_table(&mut conn, table), "OK", "{name}: {table} after a restart");
    }
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM kinds"), 241, "{name}");
}

#[test]
fn directories_of_earlier_versions_are_opened() {
    let mut archives: Vec<_> = fs::read_dir(archives())
        .expect("the archives' directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "gz"))
        .collect();
    archives.sort();
    assert!(!archives.is_empty(), "there is no archive");
    archives.iter().for_each(|archive| open(archive));
}

#[test]
#[ignore = "writes an archive into the source tree"]
fn an_archive_is_made() {
    let (options, _plugins) = options("to_archive");
    let mut server = Server::start(options);
    let mut conn = server.connect();
    make_tables(&mut conn);
    // All that is in files by now is read from files later, and the rest from the log.
    server.stop();
    server.launch().unwrap_or_else(|error| panic!("{error}"));
    let mut conn = server.connect_to("a");
    run(
        &mut conn,
        &[
            "UPDATE kinds SET big = id, text = CONCAT(text, '!') WHERE id % 3 = 0",
            "DELETE FROM kinds WHERE id % 5 = 1",
            "INSERT INTO longs VALUES (100, REPEAT('z', 300000), 'last')",
        ],
    );
    let mut prepared = server.connect_to("a");
    let xa = [
        "XA START 'archived'",
        "UPDATE parts SET v = 'prepared' WHERE id = 1",
        "XA END 'archived'",
    ];
    run(&mut prepared, &xa);
    run(&mut prepared, &["XA PREPARE 'archived'"]);
    let text = answers(&mut conn);
    // What is unfinished is in the log, and is not in the answers. The commit behind it makes it
    // durable.
    let mut unfinished = server.connect_to("a");
    run(
        &mut unfinished,
        &[
            "BEGIN",
            "UPDATE kinds SET big = 0 WHERE id < 100",
            "DELETE FROM without_key",
            "INSERT INTO words VALUES (999, 'word17')",
        ],
    );
    run(&mut conn, &["CREATE TABLE later (id INT PRIMARY KEY)", "DROP TABLE later"]);
    server.kill9();
    fs::write(server.data_dir().join("expected.txt"), text).expect("answers can be written");
    let mut names: Vec<_> = fs::read_dir(server.data_dir())
        .expect("the data directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .filter(|name| is_archived(name))
        .collect();
    names.sort();
    fs::create_dir_all(archives()).expect("the archives' directory");
    let archive = archives().join(format!("{}.tar.gz", env!("CARGO_PKG_VERSION")));
    let path = archive.display().to_string();
    let mut arguments = vec!["--sort=name", "--owner=0", "--group=0", "-czf", &path];
    arguments.extend(names.iter().map(String::as_str));
    tar(&arguments, server.data_dir().as_path());
    println!("{path}: {} bytes of {names:?}", fs::metadata(&archive).expect("it is there").len());
}
