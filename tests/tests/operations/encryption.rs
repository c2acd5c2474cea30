//! Encryption at rest with the server's key management plugins: no file has a row's bytes, options
//! of tables and variables, missing keys, newer versions of a key, backups.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::fulltext::wait_for_merges;
use tidepool_tests::keys::{key_file, plugin_dir, with_keys};
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{StopOnDrop, check, code_of, definition, number, rows, run};

const SECRET: &str = "what only the owner may read";
/// The same as one word, for FULLTEXT indexes.
const SECRET_WORD: &str = "what_only_the_owner_may_read";
const ILLEGAL_CREATE_OPTION: u16 = 1478;
const GET_ERRMSG: u16 = 1296;
/// "Got error 192 'Table encrypted but decryption failed…' from storage engine".
const GET_ERRNO: u16 = 1030;

/// The files below a directory that have the bytes of a secret.
fn leaks(dir: &Path) -> Vec<String> {
    assert!(dir.is_dir(), "{}", dir.display());
    let output = Command::new("grep")
        // A file of a sort may be gone by now.
        .args(["--recursive", "--text", "--fixed-strings", "--files-with-matches", "--no-messages"])
        .args(["-e", SECRET, "-e", SECRET_WORD])
        .arg(dir)
        .output()
        .expect("grep runs");
    let paths = String::from_utf8(output.stdout).expect("names of files");
    let name = |path: &str| Path::new(path).file_name().expect("a name").to_string_lossy().into();
    paths.lines().map(name).collect()
}

/// A connection whose database is a new one.
fn shop(server: &Server) -> Conn {
    let mut conn = server.connect();
    run(&mut conn, &["CREATE DATABASE shop", "USE shop"]);
    conn
}

fn make_filled(conn: &mut Conn, table: &str, options: &str) {
    let create = format!("CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(200)) {options}");
    run(conn, &[&create]);
    fill(conn, table);
}

fn fill(conn: &mut Conn, table: &str) {
    run(
        conn,
        &[
            &format!(
                "INSERT INTO {table} (id, v) SELECT seq, CONCAT(seq, ' {SECRET} ', seq * 7919 % \
                 10007) FROM seq_1_to_30000"
            ),
            &format!("UPDATE {table} SET v = CONCAT(v, ' changed') WHERE id % 3 = 0"),
        ],
    );
}

fn count(conn: &mut Conn, table: &str) -> i64 {
    number(conn, &format!("SELECT COUNT(*) FROM {table} WHERE v LIKE '%{SECRET}%'"))
}

#[test]
fn no_file_has_a_row_of_an_encrypted_table() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (options, _dir) = with_keys("encryption_bytes", &[1, 4]);
    let options = options
        .arg("--tidepool-encrypt-log=ON")
        // Bytes would not be found in compressed pages, encrypted or not.
        .arg("--tidepool-page-compression=OFF")
        .arg("--tidepool-buffer-pool-size=8M");
    let mut server = Server::start(options.clone());
    let home = server.data_dir().join("tidepool");
    let mut conn = shop(&server);
    make_filled(&mut conn, "t", "ENCRYPTED=YES ENCRYPTION_KEY_ID=4");
    assert_eq!(leaks(&home), [""; 0], "tables, undo records and the log");

    // The sort has more than its memory.
    let (stop, socket) = (std::sync::atomic::AtomicBool::new(false), server.socket().to_path_buf());
    let seen = std::thread::scope(|scope| {
        let stop_watcher = StopOnDrop(&stop);
        let watcher = scope.spawn(|| {
            let mut seen = Vec::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let sorts = home.join("sort");
                if sorts.exists() {
                    let files = fs::read_dir(&sorts).into_iter().flatten().flatten();
                    seen.extend(files.map(|file| file.file_name()));
                    assert_eq!(leaks(&sorts), [""; 0], "files of a sort");
                }
            }
            seen
        });
        let mut conn =
            tidepool_tests::server::connect_to_socket(&socket, "shop").expect("a connection");
        run(
            &mut conn,
            &[
                "CREATE TABLE wide (id INT PRIMARY KEY, v VARCHAR(1000)) ENCRYPTED=YES",
                &format!(
                    "INSERT INTO wide SELECT seq, CONCAT(seq * 7919 % 100003, REPEAT(' {SECRET}', \
                     20)) FROM seq_1_to_60000"
                ),
                "ALTER TABLE wide ADD KEY (v), ALGORITHM=INPLACE",
                "ALTER TABLE wide FORCE, ALGORITHM=COPY",
            ],
        );
        drop(stop_watcher);
        watcher.join().expect("the watcher")
    });
    assert_ne!(seen, [""; 0], "files of a sort were looked at");
    assert_eq!(leaks(&home), [""; 0], "after a sort");

    let dir = server.dir().join("backup");
    run(&mut conn, &[&format!("SET GLOBAL tidepool_backup_to = '{}'", dir.display())]);
    assert_eq!(leaks(&dir.join("tidepool")), [""; 0], "a backup");

    let words = "CREATE TABLE words (id INT PRIMARY KEY, v TEXT COLLATE utf8mb4_bin, FULLTEXT (v))";
    let insert_words = format!("INSERT INTO words SELECT seq, '{SECRET_WORD}' FROM seq_1_to_300");
    run(&mut conn, &[&format!("{words} ENCRYPTED=YES"), &insert_words]);
    assert_eq!(leaks(&home), [""; 0], "pending words");
    wait_for_merges(&mut conn, 300);
    // Rows that will be pending, and an open change.
    run(&mut conn, &["UPDATE words SET v = CONCAT(v, ' more')"]);
    run(&mut conn, &["BEGIN", "UPDATE t SET v = CONCAT(v, '!')"]);
    server.kill9();
    assert_eq!(leaks(&home), [""; 0], "after a kill");
    server.restart();
    let mut conn = server.connect_to("shop");
    assert_eq!(count(&mut conn, "t"), 30000);
    check(&mut conn, "t");
    check(&mut conn, "words");
    let found = format!("SELECT COUNT(*) FROM words WHERE MATCH (v) AGAINST ('{SECRET_WORD}')");
    assert_eq!(number(&mut conn, &found), 300);
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t WHERE v LIKE '%!'"), 0);
    run(&mut conn, &["CREATE TABLE n (id INT PRIMARY KEY, v VARCHAR(200)) ENCRYPTED=NO"]);
    fill(&mut conn, "n");
    drop(conn);
    server.stop();
    let found = leaks(&home);
    assert!(found.iter().all(|file| file.ends_with(".tpd") && file != "undo.tpd"), "{found:?}");
    assert_eq!(found.len(), 1, "the search finds what is not encrypted: {found:?}");

    let mut restored = Server::create(options);
    let copied = Command::new("cp").arg("-a").arg(dir.join(".")).arg(restored.data_dir()).status();
    assert!(copied.is_ok_and(|status| status.success()), "a backup can be copied");
    restored.launch().unwrap_or_else(|error| panic!("{error}"));
    let mut conn = restored.connect_to("shop");
    assert_eq!(count(&mut conn, "t"), 30000);
    check(&mut conn, "wide");
}

#[test]
fn options_are_checked_kept_and_altered() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (options, _dir) = with_keys("encryption_options", &[1, 4]);
    let server = Server::start(options.arg("--tidepool-buffer-pool-size=8M"));
    let mut conn = shop(&server);
    make_filled(&mut conn, "t", "ENCRYPTED=YES ENCRYPTION_KEY_ID=4");
    let key_of = |conn: &mut Conn, table: &str| {
        number(
            conn,
            &format!(
                "SELECT CURRENT_KEY_ID FROM information_schema.TIDEPOOL_TABLESPACES_ENCRYPTION \
                 WHERE TABLE_NAME = '{table}'"
            ),
        )
    };
    assert_eq!(key_of(&mut conn, "t"), 4);
    assert!(definition(&mut conn, "t").contains("`ENCRYPTED`=YES `ENCRYPTION_KEY_ID`=4"));
    for statement in [
        "CREATE TABLE x (id INT PRIMARY KEY) ENCRYPTED=YES ENCRYPTION_KEY_ID=9",
        "ALTER TABLE t ENCRYPTION_KEY_ID=9",
    ] {
        assert_eq!(code_of(&mut conn, statement), ILLEGAL_CREATE_OPTION, "{statement}");
        let said = rows(&mut conn, "SHOW WARNINGS").join("\n");
        assert!(said.contains("encryption key 9"), "{said}");
    }
    run(&mut conn, &["ALTER TABLE t ENCRYPTION_KEY_ID=1"]);
    assert_eq!(key_of(&mut conn, "t"), 1);
    assert_eq!(count(&mut conn, "t"), 30000);
    run(&mut conn, &["ALTER TABLE t ENCRYPTED=NO"]);
    assert_eq!(key_of(&mut conn, "t"), 0);
    run(&mut conn, &["ALTER TABLE t ENCRYPTED=YES", "TRUNCATE TABLE t"]);
    assert_eq!(key_of(&mut conn, "t"), 1);
    fill(&mut conn, "t");

    // Each partition is a table.
    run(
        &mut conn,
        &[
            "SET tidepool_default_encryption_key_id = 4",
            "CREATE TABLE p (id INT PRIMARY KEY, v VARCHAR(200)) ENCRYPTED=YES PARTITION BY HASH \
             (id) PARTITIONS 3",
        ],
    );
    assert_eq!(key_of(&mut conn, "p#P#p1"), 4);

    // Tables that do not say.
    run(&mut conn, &["CREATE TABLE d (id INT PRIMARY KEY, v VARCHAR(200)) ENCRYPTION_KEY_ID=1"]);
    fill(&mut conn, "d");
    // More than the pool has: rows are read from the file by the life that made it.
    let more = format!(
        "INSERT INTO d SELECT 30000 + seq, CONCAT('{SECRET}', REPEAT('-', 150), seq) \
         FROM seq_1_to_70000"
    );
    run(&mut conn, &[&more]);
    assert_eq!(key_of(&mut conn, "d"), 0);
    for (tables, key) in [("ON", 1), ("OFF", 0), ("FORCE", 1)] {
        run(&mut conn, &[&format!("SET GLOBAL tidepool_encrypt_tables = '{tables}'")]);
        wait_until(Duration::from_secs(60), "the rotation", || key_of(&mut conn, "d") == key);
        assert_eq!(count(&mut conn, "d"), 100_000);
        let again = format!("UPDATE d SET v = CONCAT('{key}', v) WHERE id > 30000");
        run(&mut conn, &[&again]);
        assert_eq!(count(&mut conn, "d"), 100_000);
    }
    let refused = "CREATE TABLE x (id INT PRIMARY KEY) ENCRYPTED=NO";
    assert_eq!(code_of(&mut conn, refused), ILLEGAL_CREATE_OPTION);
    check(&mut conn, "d");
}

#[test]
fn a_missing_key_costs_the_tables_that_need_it() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let (options, dir) = with_keys("encryption_missing", &[1, 4]);
    let mut server = Server::start(options.arg("--tidepool-encrypt-log=ON"));
    let mut conn = shop(&server);
    let tables = [("a", "ENCRYPTED=YES"), ("b", "ENCRYPTED=YES ENCRYPTION_KEY_ID=4"), ("n", "")];
    for (table, options) in tables {
        make_filled(&mut conn, table, options);
    }
    drop(conn);
    server.stop();

    key_file(&dir.0, &[1]);
    server.restart();
    let mut conn = server.connect_to("shop");
    assert_eq!((count(&mut conn, "a"), count(&mut conn, "n")), (30000, 30000));
    assert_eq!(code_of(&mut conn, "SELECT * FROM b"), GET_ERRNO);
    let said = rows(&mut conn, "SHOW WARNINGS").join("\n");
    assert!(said.contains("shop/b") && said.contains("encryption key 4"), "{said}");
    drop(conn);
    server.stop();

    // Undo records and the log take key 1: the engine does not start, and says why.
    key_file(&dir.0, &[4]);
    server.set_args(server.options().clone().arg("--tidepool=FORCE").args);
    let error = server.launch().expect_err("there is no key 1");
    assert!(error.contains("encryption key 1") || error.contains("of key 1"), "{error}");

    key_file(&dir.0, &[1, 4]);
    server.launch().unwrap_or_else(|error| panic!("{error}"));
    let mut conn = server.connect_to("shop");
    assert_eq!(count(&mut conn, "b"), 30000);
    for table in ["a", "b", "n"] {
        check(&mut conn, table);
    }
}

#[test]
fn a_newer_version_of_a_key_reaches_every_page() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let dir = plugin_dir("encryption_rotation");
    let mut server = Server::start(
        Options::new("encryption_rotation")
            .arg(format!("--plugin-dir={}", dir.0.display()))
            .arg("--plugin-maturity=experimental")
            .arg("--plugin-load-add=debug_key_management.so")
            .arg("--tidepool-encryption-rotation-iops=100000"),
    );
    let mut conn = shop(&server);
    make_filled(&mut conn, "t", "ENCRYPTED=YES");
    let versions = |conn: &mut Conn| {
        let query = "SELECT MIN_KEY_VERSION, CURRENT_KEY_VERSION, KEY_ROTATION_PAGE_NUMBER IS NULL \
                     FROM information_schema.TIDEPOOL_TABLESPACES_ENCRYPTION \
                     WHERE TABLE_NAME = 't'";
        let row: Option<(u32, u32, bool)> = conn.query_first(query).expect("a query");
        row.expect("a row")
    };
    for version in [2, 5] {
        run(&mut conn, &[&format!("SET GLOBAL debug_key_management_version = {version}")]);
        wait_until(Duration::from_secs(60), "the rotation", || {
            versions(&mut conn) == (version, version, true)
        });
        assert_eq!(count(&mut conn, "t"), 30000);
    }
    check(&mut conn, "t");
    assert_eq!(code_of(&mut conn, "SET GLOBAL tidepool_encrypt_tables = 7"), 1231);
    drop(conn);
    server.kill9();
    server.set_args(server.options().clone().arg("--debug-key-management-version=5").args);
    server.restart();
    let mut conn = server.connect_to("shop");
    assert_eq!(count(&mut conn, "t"), 30000);
    check(&mut conn, "t");
}

#[test]
fn without_keys_nothing_can_be_encrypted_and_the_rest_is_as_ever() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let server = Server::start(Options::new("encryption_none"));
    let mut conn = shop(&server);
    run(&mut conn, &["CREATE TABLE n (id INT PRIMARY KEY)"]);
    let encrypted = "CREATE TABLE t (id INT PRIMARY KEY) ENCRYPTED=YES";
    assert_eq!(code_of(&mut conn, encrypted), ILLEGAL_CREATE_OPTION);
    assert_eq!(code_of(&mut conn, "SET GLOBAL tidepool_encrypt_tables = ON"), GET_ERRMSG);
    run(&mut conn, &["SET GLOBAL tidepool_encrypt_tables = OFF"]);
    assert!(!definition(&mut conn, "n").contains("ENCRYPT"));
    check(&mut conn, "n");
}
