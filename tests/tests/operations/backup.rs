//! `SET GLOBAL tidepool_backup_to`: tables are copied while they are written to and altered, and
//! what is laid over an empty server is the primary's state at one place of its binary log.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mysql::prelude::Queryable;
use tidepool_tests::bank::{self, Bank};
use tidepool_tests::environment::Environment;
use tidepool_tests::server::{Engine, Options, Server, free_port, wait_until};
use tidepool_tests::sql::{StopOnDrop, check, code_of, number, rows, run};

const GET_ERRMSG: u16 = 1296;
const WRONG_ARGUMENTS: u16 = 1210;
const OPTION_PREVENTS: u16 = 1290;
const QUERY_INTERRUPTED: u16 = 1317;

fn back_up(dir: &Path) -> String {
    format!("SET GLOBAL tidepool_backup_to = '{}'", dir.display())
}

/// 1 while this connection waits for a lock of the server's.
fn waits_for_a_lock(id: i64) -> String {
    format!(
        "SELECT COUNT(*) FROM information_schema.processlist
         WHERE id = {id} AND state LIKE 'Waiting for%'"
    )
}

/// The lines of the file that says of which moment a backup is.
fn info(dir: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(dir.join("tidepool_backup_info")).expect("the file can be read");
    let pairs = text.lines().map(|line| line.split_once(" = ").expect("a name and a value"));
    pairs.map(|(name, value)| (name.into(), value.into())).collect()
}

/// A server whose data directory is a new one with the backup laid over it.
fn restore(options: Options, dir: &Path) -> Server {
    let mut server = Server::create(options);
    let copied = Command::new("cp").arg("-a").arg(dir.join(".")).arg(server.data_dir()).status();
    assert!(copied.is_ok_and(|status| status.success()), "a backup can be copied");
    server.launch().unwrap_or_else(|error| panic!("{error}"));
    server
}

#[test]
fn a_backup_beside_writers_is_one_state_at_a_place_in_the_binary_log() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let port = free_port();
    let options = |name: &str, id| {
        Options::new(name).arg(format!("--server-id={id}")).arg("--binlog-format=ROW")
    };
    let primary = Server::start(
        options("backup_primary", 1)
            .arg("--log-bin=primary")
            .arg("--skip-networking=0")
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--port={port}")),
    );
    let mut conn = primary.connect();
    run(
        &mut conn,
        &[
            "GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1' IDENTIFIED BY 'x'",
            "CREATE DATABASE `a shop` COLLATE latin1_swedish_ci",
            "USE `a shop`",
            "CREATE TABLE `its log` (id BIGINT PRIMARY KEY AUTO_INCREMENT, what INT, KEY (what))",
            "CREATE TABLE orders (id INT PRIMARY KEY, v INT)",
            "CREATE TRIGGER noted AFTER INSERT ON orders FOR EACH ROW INSERT INTO `its log` (what) VALUES (NEW.id)",
            "CREATE TRIGGER spaced BEFORE UPDATE ON `its log` FOR EACH ROW SET NEW.what = NEW.what + 1",
            "CREATE TABLE `größe` (id INT PRIMARY KEY)",
            "CREATE TRIGGER counted AFTER INSERT ON `größe` FOR EACH ROW INSERT INTO `its log` (what) VALUES (-1)",
            "CREATE VIEW overview AS SELECT COUNT(*) AS n FROM orders",
            "CREATE SEQUENCE numbers",
            "CREATE TABLE elsewhere (id INT) ENGINE=MyISAM",
            "INSERT INTO orders SELECT seq, seq FROM seq_1_to_500",
        ],
    );
    let mut bank = Bank::open(&primary, "PARTITION BY HASH (id) PARTITIONS 3");
    let dir = primary.dir().join("backup");
    let (socket, done) = (primary.socket().to_path_buf(), AtomicBool::new(false));
    let altered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // Definitions change all the while.
        let altering = scope.spawn(|| {
            let mut conn =
                tidepool_tests::server::connect_to_socket(&socket, "bank").expect("a connection");
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                for statement in [
                    format!("CREATE TABLE coming{n} (id INT PRIMARY KEY, v TEXT)"),
                    format!("INSERT INTO coming{n} SELECT seq, REPEAT('c', 300) FROM seq_1_to_200"),
                    format!("ALTER TABLE coming{n} ADD KEY (v(20)), ADD w INT DEFAULT {n}"),
                    format!("ALTER TABLE coming{n} FORCE"),
                    format!("DROP TABLE IF EXISTS `coming{}`", n - 2),
                ] {
                    run(&mut conn, &[&statement]);
                    altered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let _stop = StopOnDrop(&done);
        // One beside which both have gone on.
        for round in 1.. {
            let (commits, alters) = (bank.commits(), altered.load(Ordering::Relaxed));
            run(&mut conn, &[&back_up(&dir)]);
            let commits = bank.commits() - commits;
            let alters = altered.load(Ordering::Relaxed) - alters;
            println!("{commits} commits and {alters} changes of definitions beside the backup");
            if commits > 1 && alters > 1 {
                break;
            }
            assert!(round < 10, "each backup was made while nothing else happened");
            std::fs::remove_dir_all(&dir).expect("a backup can be removed");
        }
        bank.wait_for_commits(200);
        done.store(true, Ordering::Relaxed);
        altering.join().expect("no error");
    });
    bank.close();
    // No session waits for the backup any more, and its variable is empty.
    assert_eq!(rows(&mut conn, "SELECT @@tidepool_backup_to"), ["[Bytes(\"\")]"]);

    let replica = restore(options("backup_restored", 2).arg("--skip-slave-start"), &dir);
    assert_eq!(bank::total(&replica, "bank"), bank::TOTAL);
    let mut restored = replica.connect_to("a shop");
    assert!(!dir.join("a@0020shop/elsewhere.frm").exists(), "another engine's table");
    assert_eq!(number(&mut restored, "SELECT n FROM overview"), 500);
    assert_eq!(number(&mut restored, "SELECT COUNT(*) FROM `its log`"), 500);
    let position = info(&dir)["gtid_binlog_pos"].clone();
    assert!(position.starts_with("0-1-"), "{position}");
    run(
        &mut restored,
        &[
            &format!("SET GLOBAL gtid_slave_pos = '{position}'"),
            &format!(
                "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='replica', MASTER_PASSWORD='x',
                 MASTER_USE_GTID=slave_pos"
            ),
            "START SLAVE",
        ],
    );
    // What came after the backup, no more and no less: a transaction twice, or one left out, would
    // be an error, or another content.
    let end: String =
        conn.query_first("SELECT @@gtid_binlog_pos").expect("a position").expect("a row");
    let waited = number(&mut restored, &format!("SELECT MASTER_GTID_WAIT('{end}', 60)"));
    assert_eq!(waited, 0, "{:?}", rows(&mut restored, "SHOW SLAVE STATUS"));
    let tables = "SELECT CONCAT('`', table_schema, '`.`', table_name, '`') FROM information_schema.tables
                  WHERE engine = 'Tidepool' AND table_type IN ('BASE TABLE', 'SEQUENCE') ORDER BY 1";
    let names: Vec<String> = conn.query(tables).expect("names");
    assert!(names.len() >= 5, "{names:?}");
    assert_eq!(restored.query::<String, _>(tables).expect("names"), names);
    for name in &names {
        let checksum = format!("CHECKSUM TABLE {name} EXTENDED");
        assert_eq!(rows(&mut restored, &checksum), rows(&mut conn, &checksum), "{name}");
        if !name.contains("numbers") {
            check(&mut restored, name);
        }
    }
    // Triggers are there, of tables with any name.
    run(&mut restored, &["STOP SLAVE", "INSERT INTO orders VALUES (1000, 7)"]);
    assert_eq!(number(&mut restored, "SELECT COUNT(*) FROM `its log`"), 501);
    run(
        &mut restored,
        &["INSERT INTO `größe` VALUES (1)", "UPDATE `its log` SET what = 5000 WHERE what = 1000"],
    );
    assert_eq!(number(&mut restored, "SELECT COUNT(*) FROM `its log` WHERE what = -1"), 1);
    assert_eq!(number(&mut restored, "SELECT MAX(what) FROM `its log`"), 5001);
}

#[test]
fn what_can_not_be_backed_up_is_said_and_nothing_is_left() {
    if Engine::from_environment() != Engine::Tidepool {
        return;
    }
    let server = Server::start(Options::new("backup_refused"));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "INSERT INTO t VALUES (1)",
            "CREATE USER someone@localhost",
            "GRANT SUPER ON *.* TO someone@localhost",
        ],
    );
    let outside = server.dir().join("backup");
    let said = |conn: &mut mysql::Conn| {
        let said: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").expect("warnings");
        said.into_iter().map(|(_, _, text)| text).collect::<String>()
    };
    for (dir, code, words) in [
        ("relative", WRONG_ARGUMENTS, "is no absolute path"),
        (
            &format!("{}/test/new", server.data_dir().display()),
            WRONG_ARGUMENTS,
            "in the server's data directory",
        ),
        ("/proc/nowhere/new", WRONG_ARGUMENTS, "is in no directory that exists"),
        ("/proc/new", GET_ERRMSG, "cannot make '/proc/new'"),
        (&*server.dir().display().to_string(), GET_ERRMSG, "holds files"),
    ] {
        assert_eq!(code_of(&mut conn, &back_up(Path::new(dir))), code, "{dir}");
        let said = said(&mut conn);
        assert!(said.contains(words), "{dir}: {said}");
    }
    // Who may not write files.
    let someone =
        server.client("CLIENT").args(["--user=someone", "-e", &back_up(&outside)]).output();
    let said = String::from_utf8(someone.expect("the client can be run").stderr).expect("text");
    assert!(said.contains("privilege(s) for this operation") && said.contains("FILE"), "{said}");

    // Somebody else holds commits up, for longer than the backup is waited for.
    let mut other = server.connect();
    run(&mut other, &["BACKUP STAGE START", "BACKUP STAGE BLOCK_COMMIT"]);
    let id = number(&mut conn, "SELECT CONNECTION_ID()");
    std::thread::scope(|scope| {
        let backup = scope.spawn(|| code_of(&mut conn, &back_up(&outside)));
        let waits = waits_for_a_lock(id);
        wait_until(Duration::from_secs(60), "the backup waits", || number(&mut other, &waits) == 1);
        assert!(outside.join("tidepool/system.tpd").exists());
        // No other session waits for the statement meanwhile.
        run(&mut other, &["SET GLOBAL tidepool_max_purge_lag = 0", &format!("KILL QUERY {id}")]);
        assert_eq!(backup.join().expect("no panic"), QUERY_INTERRUPTED);
    });
    assert!(!outside.exists(), "something is left of a backup that was interrupted");
    run(&mut other, &["BACKUP STAGE END"]);
    run(&mut conn, &[&back_up(&outside), "INSERT INTO t VALUES (2)"]);

    // The same again, and by a server that writes files to one place only.
    assert_eq!(code_of(&mut conn, &back_up(&outside)), GET_ERRMSG);
    let restricted = Options::new("backup_restricted").arg("--secure-file-priv=/usr/share");
    let restricted = restore(restricted, &outside);
    let mut conn = restricted.connect_to("test");
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 1);
    assert_eq!(code_of(&mut conn, &back_up(&server.dir().join("other"))), OPTION_PREVENTS);
}

/// Temporary tables have no definition to copy, and a database's directory may be lost.
#[test]
fn temporary_tables_and_lost_directories_do_not_stop_a_backup() {
    let server = Server::start(Options::new("backup_temporary").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &[
            "CREATE TABLE t (id INT PRIMARY KEY)",
            "INSERT INTO t VALUES (1)",
            "CREATE TABLE used (id INT PRIMARY KEY)",
            "CREATE TEMPORARY TABLE own (id INT PRIMARY KEY)",
            "INSERT INTO own VALUES (1)",
            "CREATE DATABASE lost",
            "CREATE TABLE lost.t (id INT PRIMARY KEY)",
            "INSERT INTO lost.t VALUES (7)",
            "FLUSH TABLES",
        ],
    );
    // Dropped while a transaction that has closed it may still read it.
    let mut reader = server.connect_to("test");
    run(&mut reader, &["BEGIN", "HANDLER used OPEN", "HANDLER used READ FIRST"]);
    run(&mut reader, &["HANDLER used CLOSE"]);
    run(&mut conn, &["DROP TABLE used"]);
    fs::remove_dir_all(server.data_dir().join("lost")).expect("a directory");
    let dir = server.dir().join("backup");
    run(&mut conn, &[&back_up(&dir)]);
    let log = server.error_log();
    assert!(log.contains("the directory of the database `lost` is missing"), "{log}");
    assert!(!dir.join("#tmp").exists());

    let restored = restore(Options::new("backup_of_temporary"), &dir);
    let mut conn = restored.connect_to("test");
    assert_eq!(number(&mut conn, "SELECT SUM(id) FROM t"), 1);
    assert_eq!(number(&mut conn, "SELECT SUM(id) FROM lost.t"), 7);
}

/// A lock against commits waits for such writes, and commits wait behind it.
#[test]
fn writes_to_a_table_without_transactions_hold_up_a_backup_and_no_commit() {
    let server = Server::start(Options::new("backup_beside_myisam").engine(Engine::Tidepool));
    let (mut conn, mut writer) = (server.connect_to("test"), server.connect_to("test"));
    run(
        &mut conn,
        &["CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE plain (id INT) ENGINE=MyISAM"],
    );
    let mut backup = server.connect_to("test");
    let [writing, backing_up] = [&mut writer, &mut backup].map(|conn| {
        let id = "SELECT CONNECTION_ID()";
        number(conn, id)
    });
    let dir = server.dir().join("backup");
    std::thread::scope(|scope| {
        let write = scope.spawn(|| code_of(&mut writer, "INSERT INTO plain SELECT SLEEP(600)"));
        let sleeps = format!(
            "SELECT COUNT(*) FROM information_schema.processlist
             WHERE id = {writing} AND state = 'User sleep'"
        );
        wait_until(Duration::from_secs(60), "the write", || number(&mut conn, &sleeps) == 1);
        let backup = scope.spawn(|| run(&mut backup, &[&back_up(&dir)]));
        let waits = waits_for_a_lock(backing_up);
        wait_until(Duration::from_secs(60), "the backup waits", || number(&mut conn, &waits) == 1);
        run(&mut conn, &["SET lock_wait_timeout = 1", "INSERT INTO t VALUES (1)"]);
        assert!(!backup.is_finished());
        run(&mut conn, &[&format!("KILL QUERY {writing}")]);
        assert_eq!(write.join().expect("no panic"), QUERY_INTERRUPTED);
        backup.join().expect("the backup succeeds");
    });
    let restored = restore(Options::new("backup_of_myisam"), &dir);
    let mut conn = restored.connect_to("test");
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 1);
}

#[test]
fn a_database_with_the_name_of_the_engines_directory_is_refused_before_anything_is_copied() {
    let home = tempfile::tempdir().expect("a directory");
    let option = format!("--tidepool-data-home-dir={}", home.path().join("td").display());
    let options = Options::new("backup_of_tidepool").engine(Engine::Tidepool).arg(option);
    let server = Server::start(options);
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE DATABASE tidepool", "CREATE TABLE tidepool.t (id INT PRIMARY KEY)"]);
    let dir = server.dir().join("backup");
    assert_eq!(code_of(&mut conn, &back_up(&dir)), GET_ERRMSG);
    let said: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").expect("warnings");
    assert!(said[0].2.contains("the directory of the database `tidepool`"), "{said:?}");
    assert!(!dir.exists());
    run(&mut conn, &["RENAME TABLE tidepool.t TO test.t", &back_up(&dir)]);
}

/// The calls of which one ends the server. All that a backup changes goes by them.
const FILE_CALLS: &str =
    "openat,mkdir,rename,unlink,rmdir,fsync,fdatasync,pwrite64,write,ftruncate,fallocate";

/// `strace` on the thread of a session, attached; `None` where there is none, or it is not allowed.
fn strace(conn: &mut mysql::Conn, calls: &Path, arguments: &[&str]) -> Option<Child> {
    let thread = "SELECT tid FROM information_schema.processlist WHERE id = CONNECTION_ID()";
    let mut strace = Command::new("strace")
        .args(["-p", &number(conn, thread).to_string(), "-e", &format!("trace={FILE_CALLS}")])
        .args(arguments)
        .arg("-o")
        .arg(calls)
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut said = String::new();
    let stderr = strace.stderr.take().expect("it is a pipe");
    BufReader::new(stderr).read_line(&mut said).expect("strace's first words");
    if said.contains("attached") {
        return Some(strace);
    }
    strace.wait().expect("it has ended");
    tidepool_skip::skip(said);
    None
}

fn end(mut strace: Child) {
    let pid = rustix::process::Pid::from_child(&strace);
    // It may have ended with the server.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    strace.wait().expect("a child can be waited for");
}

/// A server killed at any call of a backup leaves a directory on which no server starts, or a
/// complete one.
#[test]
fn a_server_does_not_start_on_what_a_killed_backup_has_left() {
    let mut server = Server::start(Options::new("backup_killed").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"]);
    let calls = server.dir().join("calls");
    let Some(counting) = strace(&mut conn, &calls, &[]) else { return };
    run(&mut conn, &[&back_up(&server.dir().join("whole"))]);
    end(counting);
    let calls = fs::read_to_string(&calls).expect("a file").lines().count() as u64;
    assert!(calls > 30, "{calls}");

    let [mut left, mut marked, mut complete] = [0; 3];
    let into_new = (1..=20).chain(calls - 7..=calls).map(|at| (at, false));
    for (at, is_there) in into_new.chain((1..=6).map(|at| (at, true))) {
        let dir = server.dir().join(format!("backup-{at}-{is_there}"));
        if is_there {
            fs::create_dir(&dir).expect("a directory");
        }
        let mut conn = server.connect_to("test");
        let inject = format!("inject={FILE_CALLS}:signal=KILL:when={at}");
        let strace = strace(&mut conn, Path::new("/dev/null"), &["-e", &inject]);
        let strace = strace.expect("it was there before");
        let survived = conn.query_drop(back_up(&dir)).is_ok();
        end(strace);
        if survived {
            assert!(at > calls - 8, "it survived its call {at} of {calls}");
        } else {
            drop(conn);
            server.kill9();
            server.launch().unwrap_or_else(|error| panic!("{error}"));
        }
        let holds_nothing = !dir.exists() || fs::read_dir(&dir).expect("a directory").count() == 0;
        let has_mark = dir.join("tidepool-backup-unfinished").exists();
        let is_complete = dir.join("tidepool_backup_info").exists() && !has_mark;
        assert!(holds_nothing || has_mark || is_complete, "killed at {at} of {calls}");
        // A new directory is not even there without the mark.
        assert!(!dir.exists() || is_there || has_mark || is_complete, "killed at {at}");
        left += u32::from(holds_nothing);
        marked += u32::from(has_mark);
        complete += u32::from(is_complete);
        if is_complete || (has_mark && [3, 4, 5, 6, 9, 20, calls].contains(&at)) {
            assert_eq!(starts(&dir), is_complete, "killed at {at} of {calls}");
        }
        if has_mark {
            // The mark in the engine's own directory does the same, for a server that has it
            // elsewhere.
            let mark = dir.join("tidepool/tidepool-backup-unfinished");
            let control = dir.join("tidepool/redo/control");
            let engine = dir.join("tidepool");
            assert!(!engine.exists() || mark.exists() || control.exists(), "killed at {at}");
        }
    }
    assert!(left > 0 && marked > 15 && complete > 0, "{left}, {marked}, {complete}");
}

/// Whether a server starts on what is in `dir`, with the rows; it says why if not.
fn starts(dir: &Path) -> bool {
    let mut server = Server::create(Options::new("backup_left").engine(Engine::Tidepool));
    let copied = Command::new("cp").arg("-a").arg(dir.join(".")).arg(server.data_dir()).status();
    assert!(copied.is_ok_and(|status| status.success()), "a backup can be copied");
    match server.launch() {
        Ok(()) => {
            assert_eq!(number(&mut server.connect_to("test"), "SELECT COUNT(*) FROM t"), 1);
            true
        }
        Err(error) => {
            assert!(error.contains("a backup that was interrupted"), "{error}");
            false
        }
    }
}

/// `mariadb-backup` knows nothing of the engine's files, and reports success.
#[test]
fn a_backup_by_other_means_is_warned_of_in_the_error_log() {
    const WARNING: &str = "[Warning] Tidepool: connection ";
    let server = Server::start(Options::new("backup_other").engine(Engine::Tidepool));
    let mut conn = server.connect_to("test");
    // Without tables there is nothing to miss.
    run(&mut conn, &["BACKUP STAGE START", "BACKUP STAGE END"]);
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"]);
    run(&mut conn, &[&back_up(&server.dir().join("ours"))]);
    assert!(!server.error_log().contains(WARNING), "{}", server.error_log());

    let target = server.dir().join("mariabackup");
    let mariabackup = Environment::get().path("BASEDIR").join("bin/mariadb-backup");
    let copied = Command::new(mariabackup)
        .args(["--no-defaults", "--backup", "--user=root"])
        .arg(format!("--socket={}", server.socket().display()))
        .arg(format!("--target-dir={}", target.display()))
        .output()
        .expect("mariadb-backup can be run");
    let said = String::from_utf8_lossy(&copied.stderr);
    assert!(copied.status.success() && said.contains("completed OK!"), "{said}");
    assert!(target.join("test/t.frm").exists() && !target.join("tidepool").exists());
    let log = server.error_log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains(WARNING)).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    for words in [
        "begins a backup by BACKUP STAGE. If that is mariadb-backup, none of the data of the 1 table",
        "SET GLOBAL tidepool_backup_to = '<directory>'; the last one was complete at 20",
    ] {
        assert!(warnings[0].contains(words), "{}", warnings[0]);
    }
    // What it has made is no data directory with an empty engine.
    let mut restored = Server::create(Options::new("backup_other").engine(Engine::Tidepool));
    let frm = restored.data_dir().join("test");
    fs::create_dir_all(&frm).expect("a directory");
    fs::copy(target.join("test/t.frm"), frm.join("t.frm")).expect("a copy");
    let error = restored.launch().expect_err("it must not start");
    assert!(error.contains("'test/t.frm' for one"), "{error}");
}
