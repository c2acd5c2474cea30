//! What can be wrong with a data directory or a disk, as a client and the error log of a server
//! tell it, and what stays usable. (`engine/tests/bad_input/` has more cases, without a server.)

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::packed;
use mysql::Conn;
use mysql::prelude::Queryable;
use tidepool_tests::fulltext::wait_for_merges;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{check, number, run};

/// Nothing here takes long.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(name: &str) -> Options {
    Options::new(name).engine(Engine::Tidepool).arg("--tidepool-redo-log-capacity=8M")
}

fn engine_dir(server: &Server) -> PathBuf {
    server.data_dir().join("tidepool")
}

/// The space of the table that was made first.
const FIRST_SPACE: u32 = 0x10;

/// The file of that table.
fn first_file(server: &Server) -> PathBuf {
    engine_dir(server).join(packed::file_name(FIRST_SPACE))
}

fn fill(conn: &mut Conn, table: &str) {
    conn.query_drop(format!("CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(200))"))
        .expect("a table can be made");
    conn.query_drop(format!("INSERT INTO {table} SELECT seq, REPEAT('x', 200) FROM seq_1_to_2000"))
        .expect("rows can be inserted");
}

fn count(server: &Server, table: &str) -> Result<u64, String> {
    let mut conn = server.connect_to("test");
    let count = conn.query_first::<u64, _>(format!("SELECT COUNT(*) FROM {table} USE INDEX ()"));
    count.map(|count| count.expect("a row")).map_err(|error| error.to_string())
}

/// A server that was stopped, with the tables `a` and `b`.
fn stopped(name: &str) -> Server {
    let mut server = Server::start(options(name));
    let mut conn = server.connect_to("test");
    fill(&mut conn, "a");
    fill(&mut conn, "b");
    drop(conn);
    server.stop();
    server
}

/// The server does not start, and says this.
fn refuses_to_start(server: &mut Server, why: &str) {
    let error = server.launch().expect_err("it must not start");
    assert!(error.contains("the server did not start"), "{error}");
    assert!(error.contains(why), "no '{why}' in: {error}");
    assert!(!error.contains("panicked") && !error.contains("got signal"), "{error}");
}

#[test]
fn another_page_size_is_refused() {
    let mut server = stopped("page_size");
    let plain: Vec<String> = server.options().args.clone();
    server.set_args([&plain[..], &["--tidepool-page-size=4096".into()]].concat());
    refuses_to_start(
        &mut server,
        "redo/control: the data directory has pages of 16384 bytes, but 4096 were asked for: set the page size to 16384, \
         or use another data directory",
    );
    server.set_args(plain);
    server.launch().expect("with the right size it starts");
    assert_eq!(count(&server, "a"), Ok(2000));
}

#[test]
fn a_missing_redo_file_is_named() {
    let mut server = stopped("missing_redo");
    let control = engine_dir(&server).join("redo/control");
    let aside = control.with_extension("aside");
    fs::rename(&control, &aside).expect("it is there");
    refuses_to_start(
        &mut server,
        "redo/control: missing, though the data directory holds 'system.tpd': put the file back or restore the data \
         directory from a backup",
    );
    fs::rename(&aside, &control).expect("it is there");
    // The log's files in use: none may be missing.
    let mut named = 0;
    for entry in fs::read_dir(engine_dir(&server).join("redo")).expect("it is there") {
        let file = entry.expect("can be read").path();
        let name = file.file_name().expect("has one").to_string_lossy().into_owned();
        if !name.starts_with("redo.") || named > 0 {
            continue;
        }
        let aside = server.dir().join(&name);
        fs::rename(&file, &aside).expect("it is there");
        if let Err(error) = server.launch() {
            assert!(
                error.contains(&format!(
                    "redo/{name}: missing, but it holds the redo log from LSN "
                )),
                "{error}"
            );
            assert!(
                error.contains(": put the file back or restore the data directory from a backup"),
                "{error}"
            );
            named += 1;
        } else {
            server.stop();
        }
        fs::rename(&aside, &file).expect("it is there");
    }
    assert_eq!(named, 1, "no redo file is in use");
    server.launch().expect("with all files it starts");
    assert_eq!(count(&server, "a"), Ok(2000));
}

#[test]
fn the_redo_log_of_another_directory_is_refused() {
    let mut server = stopped("foreign_redo");
    let other = stopped("foreign_redo_other");
    let (own, foreign) = (engine_dir(&server).join("redo"), engine_dir(&other).join("redo"));
    let aside = server.dir().join("own_redo");
    fs::rename(&own, &aside).expect("it is there");
    let copied = Command::new("cp").arg("-a").arg(&foreign).arg(&own).status().expect("cp runs");
    assert!(copied.success());
    refuses_to_start(
        &mut server,
        "redo: the redo log belongs to another data directory (instance ",
    );
    refuses_to_start(&mut server, ": put back this data directory's own redo log");
    fs::remove_dir_all(&own).expect("it is there");
    fs::rename(&aside, &own).expect("it is there");
    server.launch().expect("with its own log it starts");
    assert_eq!(count(&server, "b"), Ok(2000));
}

#[test]
fn a_truncated_table_file_concerns_that_table_only() {
    let mut server = stopped("truncated");
    let file = fs::File::options().write(true).open(first_file(&server)).expect("it is there");
    file.set_len(5 * 4096).expect("it can be cut");
    server.launch().expect("the server starts");
    let error = count(&server, "a").expect_err("the table is cut short");
    let text = ": it was cut short: restore the data directory from a backup, save what can be read with \
                'tidepool salvage', or drop the table";
    assert!(
        error.contains(text) || server.error_log().contains(text),
        "{error}\n{}",
        server.error_log()
    );
    assert_eq!(count(&server, "b"), Ok(2000));
    server.connect_to("test").query_drop("DROP TABLE a").expect("it can be dropped");
    server.restart();
    assert_eq!(count(&server, "b"), Ok(2000));
}

#[test]
fn flipped_bits_are_found_and_concern_that_table_only() {
    let mut server = stopped("flipped");
    let files = packed::files_in(&engine_dir(&server));
    let pages = packed::page_numbers(&files, FIRST_SPACE);
    packed::flip(&files, FIRST_SPACE, &pages);
    server.launch().expect("the server starts");
    let error = count(&server, "a").expect_err("pages are damaged");
    let log = server.error_log();
    assert!(
        log.contains("tables/00000010.tpd: page ") && log.contains(" is corrupt: "),
        "{error}\n{log}"
    );
    let checked: Vec<(String, String, String, String)> =
        server.connect_to("test").query("CHECK TABLE a").expect("CHECK TABLE answers");
    assert!(checked.iter().any(|(.., text)| text != "OK"), "{checked:?}");
    assert_eq!(count(&server, "b"), Ok(2000));
    assert!(server.exited().is_none(), "the server lives");
    server.stop();
}

/// The pages are those of a table that no query reads.
#[test]
fn a_scrub_finds_damage_that_no_query_meets() {
    let mut server = stopped("scrubbed");
    let status = |server: &Server, name: &str| -> u64 {
        let row: Option<(String, u64)> = server
            .connect()
            .query_first(format!("SHOW GLOBAL STATUS LIKE 'Tidepool_scrub_{name}'"))
            .expect("a status");
        row.expect("a row").1
    };
    let scrub = |server: &Server, last: u64| {
        // The end of a pass is known in seconds.
        std::thread::sleep(Duration::from_millis(1100));
        server.connect().query_drop("SET GLOBAL tidepool_scrub = ON").expect("it begins");
        wait_until(Duration::from_secs(60), "a pass of the scrub", || {
            status(server, "last_finished") > last
        });
        status(server, "last_finished")
    };
    // No pass but those that are asked for.
    server.restart_with(&["--tidepool-scrub-days=0", "--tidepool-buffer-pool-load-at-startup=OFF"]);
    let last = status(&server, "last_finished");
    let last = scrub(&server, last);
    assert!(status(&server, "pages") > 10);
    assert_eq!(status(&server, "errors"), 0, "{}", server.error_log());
    server.stop();

    let files = packed::files_in(&engine_dir(&server));
    let pages = packed::page_numbers(&files, FIRST_SPACE);
    let page = pages[pages.len() / 2];
    packed::flip(&files, FIRST_SPACE, &[page]);
    drop(files);
    server.launch().expect("the server starts");
    let log_start = server.error_log().len();
    scrub(&server, last.max(status(&server, "last_finished")));
    assert_eq!(status(&server, "errors"), 1, "{}", server.error_log());
    let log = server.error_log().split_off(log_start);
    let place = format!("tables/00000010.tpd: page {page} ");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(&place)).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains("test/a") || lines[0].contains("test.a"), "{}", lines[0]);
    assert_eq!(count(&server, "b"), Ok(2000));
    server.stop();
}

#[test]
fn a_key_that_is_too_long_says_so() {
    let server = Server::start(options("long_key"));
    let mut conn = server.connect_to("test");
    conn.query_drop(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(700) CHARACTER SET utf8mb4, KEY (v))",
    )
    .expect("a table can be made");
    // Every single space takes three bytes in the order-preserving form.
    let error = conn
        .query_drop("INSERT INTO t VALUES (1, REPEAT('a ', 350))")
        .and_then(|()| {
            conn.query_drop("INSERT INTO t VALUES (2, REPEAT(_utf8mb4 x'F09F9880', 700))")
        })
        .and_then(|()| {
            conn.query_drop("CREATE TABLE u (a VARCHAR(3000) CHARACTER SET latin1 PRIMARY KEY)")
        })
        .and_then(|()| conn.query_drop("INSERT INTO u VALUES (REPEAT('a ', 1500))"))
        .expect_err("the key's limit is met");
    let text = error.to_string();
    assert!(text.contains("(1071)") || text.contains("1071"), "{text}");
    assert!(text.contains("key was too long"), "{text}");
    conn.query_drop("INSERT INTO t VALUES (3, 'short')").expect("the table is fine");
}

/// A separate small file system, mounted while this lives.
struct Mount {
    dir: PathBuf,
}

impl Mount {
    /// On a block device of `mib` MiB; `None` where this user may not mount.
    fn new(name: &str, mib: u64) -> Option<Mount> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("tidepool-{name}-{}-{unique}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory can be made");
        let image = dir.with_extension("img");
        fs::File::create(&image)
            .and_then(|file| file.set_len(mib << 20))
            .expect("a file can be made");
        let mount = Mount { dir };
        let (image, dir) = (image.display().to_string(), mount.dir.display().to_string());
        let mounted = rustix::process::geteuid().is_root()
            && run_program("mkfs.ext4", &["-q", "-m", "0", &image])
            && run_program("mount", &["-o", "loop", &image, &dir]);
        if !mounted {
            tidepool_skip::skip("this user may not mount a small file system here");
        }
        mounted.then_some(mount)
    }

    fn option(&self) -> String {
        format!("--tidepool-data-home-dir={}", self.dir.join("data").display())
    }

    fn remount(&self, how: &str) {
        let how = format!("remount,{how}");
        assert!(run_program("mount", &["-o", &how, &self.dir.display().to_string()]));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run_program("umount", &["-l", &self.dir.display().to_string()]);
        let _ = fs::remove_file(self.dir.with_extension("img"));
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Runs a program; whether it succeeded.
pub(super) fn run_program(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// The server's own error, and what to do beside it.
fn assert_says_to_free_space(conn: &mut Conn, error: &mysql::Error) {
    assert!(error.to_string().contains("ERROR 1021 "), "{error}");
    let warnings: Vec<(String, u16, String)> = conn.query("SHOW WARNINGS").expect("they are kept");
    let says = |(_, _, text): &(String, u16, String)| {
        text.contains("Tidepool: no space left for ")
            && text.contains(": free disk space and try again")
    };
    assert!(warnings.iter().any(says), "{warnings:?}");
}

#[test]
fn a_full_disk_refuses_statements_and_nothing_else() {
    let Some(mount) = Mount::new("full", 60) else { return };
    let mut server = Server::start(options("full_disk").arg(mount.option()));
    let mut conn = server.connect_to("test");
    conn.query_drop("CREATE TABLE done (thread INT, id INT, PRIMARY KEY (thread, id))")
        .expect("a table can be made");
    conn.query_drop("INSERT INTO done SELECT 100, seq FROM seq_1_to_5000").expect("rows");
    // Several threads fill it, each with its own table, so that the end of the disk is met
    // everywhere.
    let acknowledged: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|thread| {
                let mut conn = server.connect_to("test");
                scope.spawn(move || {
                    conn.query_drop(format!(
                        "CREATE TABLE big{thread} (id INT PRIMARY KEY, v LONGBLOB)"
                    ))
                    .expect("a table can be made");
                    let mut rows = 0;
                    loop {
                        let outcome = conn
                            .query_drop("BEGIN")
                            .and_then(|()| {
                                conn.query_drop(format!(
                                    "INSERT INTO big{thread} VALUES ({rows}, REPEAT('x', 30000))"
                                ))
                            })
                            .and_then(|()| {
                                conn.query_drop(format!(
                                    "INSERT INTO done VALUES ({thread}, {rows})"
                                ))
                            })
                            .and_then(|()| conn.query_drop("COMMIT"));
                        match outcome {
                            Ok(()) => rows += 1,
                            Err(error) => {
                                assert_says_to_free_space(&mut conn, &error);
                                let _ = conn.query_drop("ROLLBACK");
                                return rows;
                            }
                        }
                        assert!(rows < 100_000, "the disk is never full");
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("ends")).collect()
    });
    assert!(server.error_log().contains("no space left for tables/"), "{}", server.error_log());
    let whole = |server: &Server| {
        let mut conn = server.connect_to("test");
        for (thread, &rows) in (0..).zip(&acknowledged) {
            let sql = format!("SELECT COUNT(*), SUM(LENGTH(v)) FROM big{thread}");
            let found: (u32, Option<u64>) =
                conn.query_first(sql).expect("can be read").expect("a row");
            let bytes = (rows > 0).then_some(u64::from(rows) * 30_000);
            assert_eq!(found, (rows, bytes), "thread {thread}");
            let sql = format!("SELECT COUNT(*) FROM done WHERE thread = {thread}");
            assert_eq!(conn.query_first::<u32, _>(sql).expect("can be read"), Some(rows));
        }
    };
    whole(&server);
    // What needs no room is done, and when there is room again all is, without a restart.
    conn.query_drop("UPDATE done SET id = id + 100000 WHERE thread = 100 AND id < 100")
        .expect("an update in place works on a full disk");
    conn.query_drop("CREATE TABLE spare (id INT PRIMARY KEY)").ok();
    let dropped = acknowledged.len() - 1;
    conn.query_drop(format!("DROP TABLE big{dropped}")).expect("a drop works on a full disk");
    conn.query_drop("INSERT INTO big0 VALUES (-1, REPEAT('y', 100000))")
        .expect("there is room again");
    conn.query_drop("DELETE FROM big0 WHERE id = -1").expect("a delete works");
    conn.query_drop(format!("CREATE TABLE big{dropped} (id INT PRIMARY KEY, v LONGBLOB)"))
        .expect("a table can be made");
    conn.query_drop(format!("DELETE FROM done WHERE thread = {dropped}")).expect("a delete works");
    drop(conn);
    let mut acknowledged = acknowledged.clone();
    acknowledged[dropped] = 0;
    let whole = |server: &Server| {
        for (thread, &rows) in (0..).zip(&acknowledged) {
            assert_eq!(
                count(server, &format!("big{thread}")),
                Ok(u64::from(rows)),
                "thread {thread}"
            );
        }
    };
    whole(&server);
    server.kill9();
    server.restart();
    whole(&server);
    let mut conn = server.connect_to("test");
    let checked: Vec<(String, String, String, String)> =
        conn.query("CHECK TABLE done, big0, big1").expect("CHECK TABLE answers");
    assert!(checked.iter().all(|(.., text)| text == "OK"), "{checked:?}");
    drop(conn);
    server.stop();
}

/// `rows` rows of words that no other row has.
fn rows_of_words(first: u32, rows: u32) -> String {
    let row = |id: u32| {
        let words: Vec<String> = (0..80).map(|word| format!("word{id}x{word}")).collect();
        format!("({id}, '{}')", words.join(" "))
    };
    let rows: Vec<String> = (first..first + rows).map(row).collect();
    format!("INSERT INTO t VALUES {}", rows.join(", "))
}

#[test]
fn a_full_disk_delays_words_of_new_rows_and_loses_none() {
    let Some(mount) = Mount::new("full_words", 60) else { return };
    let mut server = Server::start(options("full_disk_words").arg(mount.option()));
    let (mut conn, mut writer) = (server.connect_to("test"), server.connect_to("test"));
    let table = "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, FULLTEXT (a))";
    conn.query_drop(table).expect("a table can be made");
    // What an open transaction has written is not merged.
    writer.query_drop("BEGIN").expect("a transaction");
    writer.query_drop(rows_of_words(0, 600)).expect("rows");
    let filler = fill_disk(&mount);
    writer.query_drop("COMMIT").expect("a commit works on a full disk");
    let note = "words of new rows could not be merged into a FULLTEXT index";
    wait_until(PATIENCE, "a merge fails", || server.error_log().contains(note));
    let find = |conn: &mut Conn, row: u32| -> Vec<u32> {
        let query = format!("SELECT id FROM t WHERE MATCH (a) AGAINST ('word{row}x7')");
        conn.query(query).expect("a search works on a full disk")
    };
    [0, 300, 599].iter().for_each(|row| assert_eq!(find(&mut conn, *row), [*row]));
    // The merge is tried again when there is room, without a restart.
    fs::remove_file(&filler).expect("can be removed");
    wait_for_merges(&mut conn, 600);
    [0, 300, 599].iter().for_each(|row| assert_eq!(find(&mut conn, *row), [*row]));
    let said = server.error_log().matches(note).count();
    assert_eq!(said, 1, "{}", server.error_log());
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    [0, 300, 599].iter().for_each(|row| assert_eq!(find(&mut conn, *row), [*row]));
    check(&mut conn, "t");
}

/// Files that no checkpoint has written yet find room in what the engine keeps for that.
#[test]
fn a_disk_that_was_full_from_early_on_takes_changes_of_the_rows_it_has() {
    let Some(mount) = Mount::new("full_early", 100) else { return };
    let options = options("full_disk_early").arg("--tidepool-lock-wait-timeout=1");
    let mut server = Server::start(options.arg(mount.option()));
    let mut conn = server.connect_to("test");
    fill(&mut conn, "t");
    run(&mut conn, &["CREATE TABLE grows (id INT PRIMARY KEY AUTO_INCREMENT, v MEDIUMTEXT)"]);
    let update = |n: u32| {
        let value = format!("CONCAT({n}, REPEAT(MD5(RAND()), 5))");
        format!("UPDATE t SET v = {value} WHERE id % 10 = {n} % 10")
    };
    // The next ones find room for their undo records where those of this one are purged.
    run(&mut conn, &["UPDATE t SET v = REPEAT(MD5(RAND()), 5)"]);
    let filler = fill_disk(&mount);
    let (mut kept, mut refused) = (0, 0);
    for n in 1..=500_u32 {
        match conn.query_drop(update(n)) {
            Ok(()) => kept = n,
            Err(error) => {
                assert_says_to_free_space(&mut conn, &error);
                refused += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    println!("{refused} of 500 updates were refused");
    assert!(refused < 250, "{refused} of 500 updates were refused");
    // What needs more space is refused, and holds up nothing else.
    let grow = "INSERT INTO grows (v) VALUES (REPEAT(MD5(RAND()), 20000))";
    let refusal = (0..200).find_map(|_| conn.query_drop(grow).err());
    assert_says_to_free_space(&mut conn, &refusal.expect("an insert is refused"));
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    let count = format!(
        "SELECT COUNT(*) FROM t WHERE LENGTH(v) = 160 + LENGTH({kept}) AND v LIKE '{kept}%'"
    );
    assert_eq!(number(&mut conn, &count), 200, "what was acknowledged is there");
    fs::remove_file(&filler).expect("can be removed");
    run(&mut conn, &[grow, &update(1)]);
    let ballast = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
                   WHERE VARIABLE_NAME = 'Tidepool_ballast_bytes'";
    assert_eq!(number(&mut conn, ballast), 2 << 20);
    check(&mut conn, "t");
    check(&mut conn, "grows");
}

/// A file that takes all that the file system has left.
fn fill_disk(mount: &Mount) -> PathBuf {
    let path = mount.dir.join("filler");
    let mut file = fs::File::create(&path).expect("a file can be made");
    let chunk = [1u8; 4096];
    while file.write_all(&chunk).is_ok() {}
    path
}

#[test]
fn a_read_only_file_system_is_reported_at_the_start() {
    let Some(mount) = Mount::new("read_only", 60) else { return };
    let mut server = Server::start(options("read_only").arg(mount.option()));
    fill(&mut server.connect_to("test"), "a");
    server.stop();
    mount.remount("ro");
    refuses_to_start(
        &mut server,
        "Read-only file system (os error 30) (the file system is mounted read-only: remount it for writing, after looking in \
         the kernel log for the reason)",
    );
    mount.remount("rw");
    server.launch().expect("writable again, it starts");
    assert_eq!(count(&server, "a"), Ok(2000));
    server.stop();
}

/// The server removes the definition of a table that an engine says has another one: then the rows
/// would be of no use, whatever is restored.
#[test]
fn a_frm_file_of_another_table_is_refused_and_stays() {
    let mut server = Server::start(options("frm_of_another"));
    let mut conn = server.connect_to("test");
    const PARTITIONS: &str = "PARTITION BY HASH (id) PARTITIONS 2";
    for (name, partitions) in [("t", ""), ("p", PARTITIONS)] {
        for statement in [
            format!("CREATE TABLE {name} (id INT PRIMARY KEY, a INT, KEY (a)) {partitions}"),
            format!("INSERT INTO {name} SELECT seq, seq FROM seq_1_to_100"),
            format!("CREATE TABLE {name}_other (id INT PRIMARY KEY, a BIGINT) {partitions}"),
        ] {
            conn.query_drop(statement).expect("a table");
        }
    }
    server.stop();
    let frm = |server: &Server, table: &str| server.data_dir().join(format!("test/{table}.frm"));
    let right = ["t", "p"].map(|table| (table, fs::read(frm(&server, table)).expect("a .frm")));
    for (table, _) in &right {
        fs::copy(frm(&server, &format!("{table}_other")), frm(&server, table)).expect("a copy");
    }
    server.restart();
    let mut conn = server.connect_to("test");
    for (table, _) in &right {
        for _ in 0..2 {
            let query = format!("SELECT COUNT(*) FROM {table}");
            let error = conn.query_drop(query).expect_err("another table's definition");
            assert!(error.to_string().contains("1030"), "{error}");
        }
        assert!(frm(&server, table).exists(), "{table}");
    }
    assert!(server.error_log().contains("is not the one that its .frm file describes"));
    server.stop();
    for (table, bytes) in &right {
        fs::write(frm(&server, table), bytes).expect("the right .frm");
    }
    server.restart();
    let mut conn = server.connect_to("test");
    for (table, _) in &right {
        let sum: Option<u64> =
            conn.query_first(format!("SELECT SUM(a) FROM {table}")).expect("rows");
        assert_eq!(sum, Some(5050), "{table}");
    }
}
