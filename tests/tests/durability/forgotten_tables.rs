//! Tables that the server has forgotten and the engine has not: dropped while the plugin was not
//! loaded, or their `.frm` file was removed by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server};
use tidepool_tests::sql::{check, number, rows, run};

/// The same server without the plugin.
const WITHOUT: [&str; 2] = ["--tidepool=OFF", "--default-storage-engine=InnoDB"];

/// The names that tables were set aside under, by the error log.
fn set_aside(server: &Server) -> Vec<String> {
    let log = server.error_log();
    let lines = log.lines().filter(|line| line.contains("[Warning] Tidepool: CREATE TABLE: "));
    let name = |line: &str| {
        let name = line.split("DROP TABLE `test`.`").nth(1).expect("how to remove it");
        name.split('`').next().expect("a name").to_owned()
    };
    lines.map(name).collect()
}

#[test]
fn a_table_dropped_without_the_plugin_is_back_and_one_without_its_file_is_set_aside() {
    let mut server = Server::start(Options::new("forgotten").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    let definition =
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))";
    let partitioned =
        "CREATE TABLE `many parts` (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2";
    run(
        &mut conn,
        &[
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "INSERT INTO parent VALUES (1), (2)",
            definition,
            "INSERT INTO child VALUES (10, 1), (20, 2)",
            partitioned,
            "INSERT INTO `many parts` VALUES (1), (2), (3)",
        ],
    );
    drop(conn);
    let frm = server.data_dir().join("test/child.frm");
    let old = fs::read(&frm).expect("a definition");
    server.restart_with(&WITHOUT);
    run(&mut server.connect_to("test"), &["DROP TABLE child", "DROP TABLE `many parts`"]);
    assert!(!frm.exists());

    // The engine has the rows and the definition: it gives both back.
    server.restart_with(&[]);
    let mut conn = server.connect_to("test");
    assert_eq!(number(&mut conn, "SELECT SUM(id) FROM child"), 30);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM `many parts`"), 3);
    let log = server.error_log();
    let restored = |file: &str| log.lines().any(|l| l.contains("Tidepool") && l.contains(file));
    assert!(restored("child.frm") && restored("many"), "{log}");

    // While the server runs, the name without a file is free.
    run(&mut conn, &["FLUSH TABLES"]);
    for file in ["child.frm", "many@0020parts.frm", "many@0020parts.par"] {
        fs::remove_file(server.data_dir().join("test").join(file)).expect("a definition");
    }
    // No row is inherited, and those of before hold no parent.
    run(&mut conn, &[definition]);
    let warned: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").expect("warnings");
    assert!(warned[0].2.contains("the engine still had 'test/child'"), "{warned:?}");
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM child"), 0);
    run(&mut conn, &["INSERT INTO child VALUES (10, 1)", "DELETE FROM parent WHERE id = 2"]);
    run(&mut conn, &[partitioned, "INSERT INTO `many parts` VALUES (7)"]);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM `many parts`"), 1);
    check(&mut conn, "child");
    let aside = set_aside(&server);
    assert_eq!(aside.len(), 3, "the table, and two partitions: {aside:?}");

    // It can be read, as the log says, and removed.
    fs::write(server.data_dir().join(format!("test/{}.frm", aside[0])), old).expect("a definition");
    assert_eq!(number(&mut conn, &format!("SELECT SUM(id) FROM {}", aside[0])), 30);
    for name in &aside {
        run(&mut conn, &[&format!("DROP TABLE `test`.`{name}`")]);
    }
    drop(conn);
    server.restart_with(&[]);
    let mut conn = server.connect_to("test");
    let tables = fs::read_dir(server.data_dir().join("tidepool/tables")).expect("a directory");
    assert_eq!(tables.count(), 4, "the files of those set aside are gone");
    run(&mut conn, &["DROP TABLE child, parent", "DROP TABLE `many parts`", definition_alone()]);
    assert_eq!(set_aside(&server).len(), 3, "nothing was forgotten since");
}

fn definition_alone() -> &'static str {
    "CREATE TABLE child (id INT PRIMARY KEY)"
}

/// The server has other tables under the names of tables that were dropped without the plugin: the
/// engine gives its tables other names, and leaves the files alone.
#[test]
fn another_engines_table_or_a_view_keeps_its_name() {
    let mut server = Server::start(Options::new("taken_names").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    let parts = "PARTITION BY HASH (id) PARTITIONS 2";
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "INSERT INTO t VALUES (1)",
            &format!("CREATE TABLE p (id INT PRIMARY KEY) {parts}"),
            "INSERT INTO p VALUES (1), (2)",
            "CREATE TABLE v (id INT PRIMARY KEY)",
            "INSERT INTO v VALUES (4)",
        ],
    );
    drop(conn);
    server.restart_with(&WITHOUT);
    run(
        &mut server.connect_to("test"),
        &[
            "DROP TABLE t, p, v",
            "CREATE TABLE t (id INT PRIMARY KEY, a INT) ENGINE=InnoDB",
            "INSERT INTO t VALUES (10, 1)",
            "CREATE TABLE p (id INT PRIMARY KEY) ENGINE=InnoDB",
            "INSERT INTO p VALUES (20)",
            "CREATE VIEW v AS SELECT 30 AS id",
        ],
    );
    let sums = |server: &Server| {
        let mut conn = server.connect_to("test");
        ["t", "p", "v"].map(|name| number(&mut conn, &format!("SELECT SUM(id) FROM {name}")))
    };
    for how in ["a start", "another one", "a kill"] {
        match how {
            "a kill" => {
                server.kill9();
                server.restart();
            }
            _ => server.restart_with(&[]),
        }
        assert_eq!(sums(&server), [10, 20, 30], "after {how}");
    }
    // What the engine had is there under the names that the log gives.
    let mut conn = server.connect_to("test");
    let lost = "SELECT GROUP_CONCAT(table_name ORDER BY table_name) FROM information_schema.tables
                WHERE table_schema = 'test' AND table_name LIKE 'tidepool_lost%'";
    let names: String = conn.query_first(lost).expect("a query").expect("a row");
    let mut found = Vec::new();
    for name in names.split(',') {
        assert!(server.error_log().contains(&format!("It is test.{name} now")), "{name}");
        found.push(number(&mut conn, &format!("SELECT SUM(id) FROM {name}")));
        check(&mut conn, name);
        run(&mut conn, &[&format!("DROP TABLE {name}")]);
    }
    found.sort_unstable();
    assert_eq!(found, [1, 3, 4], "{names}");
    drop(conn);
    server.restart_with(&[]);
    assert_eq!(sums(&server), [10, 20, 30]);
}

/// After a crash InnoDB has removed the files of tables that it has not.
#[test]
fn another_engines_table_keeps_its_name_after_a_crash() {
    let mut server = Server::start(Options::new("taken_in_a_crash").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"]);
    drop(conn);
    server.kill9();
    server.restart_with(&WITHOUT);
    run(
        &mut server.connect_to("test"),
        &[
            "DROP TABLE t",
            "CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB",
            "INSERT INTO t VALUES (10)",
        ],
    );
    server.restart_with(&[]);
    assert_eq!(number(&mut server.connect_to("test"), "SELECT SUM(id) FROM t"), 10);
}

/// The files of a database's directory that have the extension, with their bytes.
fn set_aside_files(server: &Server, database: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(server.data_dir().join(database)).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let aside = paths.filter(|path| path.extension().is_some_and(|it| it == "BAK"));
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    aside.map(|path| (name(&path), fs::read(&path).expect("it can be read"))).collect()
}

/// A power cut may bring the files of a dropped table back. They are kept beside, once, and are in
/// nothing's way.
#[test]
fn files_of_a_dropped_table_are_set_aside_after_a_crash() {
    let mut server = Server::start(Options::new("files_are_back").engine(Engine::Tidepool));
    let mut conn = server.connect();
    run(
        &mut conn,
        &[
            "CREATE DATABASE d",
            "CREATE TABLE d.t (id INT PRIMARY KEY)",
            "CREATE TRIGGER d.old BEFORE INSERT ON d.t FOR EACH ROW SET NEW.id = NEW.id + 100",
            "CREATE TABLE d.stays (id INT PRIMARY KEY)",
            "CREATE TRIGGER d.own BEFORE INSERT ON d.stays FOR EACH ROW SET NEW.id = NEW.id + 1",
            "INSERT INTO d.stays VALUES (1)",
        ],
    );
    let dir = server.data_dir().join("d");
    let names = ["t.frm", "t.TRG", "old.TRN"];
    let old = names.map(|name| fs::read(dir.join(name)).expect("a file of the table's"));
    run(&mut conn, &["DROP TABLE d.t"]);
    drop(conn);
    server.kill9();
    for (name, bytes) in names.iter().zip(&old) {
        assert!(!dir.join(name).exists(), "{name}");
        fs::write(dir.join(name), bytes).expect("a file comes back");
    }
    let expected: BTreeMap<String, Vec<u8>> =
        names.iter().map(|name| format!("{name}.BAK")).zip(old.iter().cloned()).collect();
    for life in 0..2 {
        server.restart();
        assert_eq!(set_aside_files(&server, "d"), expected, "life {life}");
        let log = server.error_log();
        let said = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!(said("d/t.frm.BAK now"), 1, "{log}");
        let mut conn = server.connect_to("d");
        assert_eq!(rows(&mut conn, "SHOW TABLES").len(), 1);
        // The name is free, and a new table has no triggers.
        run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"]);
        assert_eq!(number(&mut conn, "SELECT id FROM t"), 1);
        // The other table has kept its own.
        assert_eq!(number(&mut conn, "SELECT MIN(id) FROM stays"), 2);
        run(&mut conn, &["INSERT INTO stays VALUES (10)", "DELETE FROM stays WHERE id = 11"]);
        run(&mut conn, &["DROP TABLE t"]);
        drop(conn);
        server.kill9();
    }
    server.restart();
    run(&mut server.connect(), &["DROP DATABASE d"]);
    assert!(!dir.exists());
}

/// An `ALTER TABLE … ENGINE=Tidepool` was acknowledged, and a power cut brings the other engine's
/// definition back; or a view's.
#[test]
fn a_foreign_definition_after_a_crash_is_set_aside_and_the_tables_own_is_written() {
    let mut server = Server::start(Options::new("foreign_files").engine(Engine::Tidepool));
    let mut conn = server.connect();
    run(
        &mut conn,
        &[
            "CREATE DATABASE d",
            "CREATE TABLE d.t (id INT PRIMARY KEY) ENGINE=Aria",
            "INSERT INTO d.t VALUES (1), (2)",
            "CREATE VIEW d.v AS SELECT 7 AS id",
            "FLUSH TABLES",
        ],
    );
    let dir = server.data_dir().join("d");
    let names = ["t.frm", "v.frm"];
    let old = names.map(|name| fs::read(dir.join(name)).expect("a definition"));
    run(
        &mut conn,
        &[
            "ALTER TABLE d.t ENGINE=Tidepool",
            "DROP VIEW d.v",
            "CREATE TABLE d.v (id INT PRIMARY KEY)",
            "INSERT INTO d.v VALUES (3)",
        ],
    );
    drop(conn);
    server.kill9();
    for (name, bytes) in names.iter().zip(&old) {
        fs::write(dir.join(name), bytes).expect("an older file comes back");
    }
    server.restart();
    let expected: BTreeMap<String, Vec<u8>> =
        names.iter().map(|name| format!("{name}.BAK")).zip(old.iter().cloned()).collect();
    assert_eq!(set_aside_files(&server, "d"), expected);
    let log = server.error_log();
    for name in names {
        let said = format!("d/{name}.BAK now");
        assert_eq!(log.lines().filter(|line| line.contains(&said)).count(), 1, "{said}: {log}");
    }
    let mut conn = server.connect_to("d");
    assert_eq!(number(&mut conn, "SELECT SUM(id) FROM t"), 3);
    assert_eq!(number(&mut conn, "SELECT SUM(id) FROM v"), 3);
    for table in ["t", "v"] {
        check(&mut conn, table);
    }
}
