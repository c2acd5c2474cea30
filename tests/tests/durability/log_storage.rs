//! The redo log under a server, on storage that changes its bytes, or that has no space for a
//! while.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Server, wait_until};
use tidepool_tests::sql::{StopOnDrop, number, run};

use super::bad_input::run_program;

const PATIENCE: Duration = Duration::from_secs(60);

fn redo_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("redo")).expect("the log's directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some()).collect()
}

/// The redo file that holds `text`, and where it does.
fn find_in_log(dir: &Path, text: &[u8]) -> (PathBuf, u64) {
    let find = |path: PathBuf| {
        let bytes = fs::read(&path).expect("a redo file");
        let at = bytes.windows(text.len()).position(|window| window == text)?;
        Some((path, at as u64))
    };
    redo_files(dir).into_iter().find_map(find).expect("the text is in the log")
}

#[test]
fn a_flipped_bit_in_the_log_stops_the_start_until_its_loss_is_accepted() {
    let options = Options::new("log_rot").engine(Engine::Tidepool);
    let mut server = Server::start(options.arg("--tidepool-redo-log-capacity=8M"));
    let mut conn = server.connect_to("test");
    run(&mut conn, &["CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(50))"]);
    for id in 1..=100 {
        run(&mut conn, &[&format!("INSERT INTO t VALUES ({id}, 'row number {id}.')")]);
    }
    server.kill9();
    let dir = server.data_dir().join("tidepool");
    let (path, offset) = find_in_log(&dir, b"row number 50.");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("a redo file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], offset).expect("a byte");
    // It can still be mended.
    let refusal = server.launch().expect_err("acknowledged rows are damaged");
    let expected = [
        "redo/redo.0",
        ": the redo log is damaged at offset ",
        "but it was durable up to LSN ",
        "start once with accept_log_loss (in a server, tidepool_accept_log_loss=ON)",
    ];
    for part in expected {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    file.write_all_at(&byte, offset).expect("a byte");
    server.launch().expect("the log is whole again");
    let mut conn = server.connect_to("test");
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 100);
    for id in 101..=200 {
        run(&mut conn, &[&format!("INSERT INTO t VALUES ({id}, 'row number {id}.')")]);
    }
    server.kill9();
    // The loss is accepted.
    let (path, offset) = find_in_log(&dir, b"row number 150.");
    let file = OpenOptions::new().write(true).open(&path).expect("a redo file");
    file.write_all_at(b"?", offset).expect("a byte");
    server.launch().expect_err("acknowledged rows are damaged");
    server.restart_with(&["--tidepool-accept-log-loss=ON"]);
    let log = server.error_log();
    assert!(log.contains("this loss is accepted"), "{log}");
    let mut conn = server.connect_to("test");
    assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 149);
    run(&mut conn, &["INSERT INTO t VALUES (1000, '')", "CHECK TABLE t EXTENDED"]);
    // The next start is an ordinary one.
    server.kill9();
    server.restart_with(&[]);
    assert_eq!(number(&mut server.connect_to("test"), "SELECT COUNT(*) FROM t"), 150);
}

/// A small file system that copies on write, so that a full disk refuses writes inside of files,
/// too.
struct Btrfs {
    dir: PathBuf,
}

impl Btrfs {
    /// `None` where this user may not mount one.
    fn new(mib: u64) -> Option<Btrfs> {
        let dir = std::env::temp_dir().join(format!("tidepool-btrfs-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory can be made");
        let btrfs = Btrfs { dir };
        let image = btrfs.dir.with_extension("img");
        let made = File::create(&image).and_then(|file| file.set_len(mib << 20));
        made.expect("a file can be made");
        let (image, dir) = (image.display().to_string(), btrfs.dir.display().to_string());
        let mounted = rustix::process::geteuid().is_root()
            && run_program("mkfs.btrfs", &["-q", "--mixed", &image])
            && run_program("mount", &["-o", "loop", &image, &dir]);
        if !mounted {
            tidepool_skip::skip("this user may not mount a small btrfs here");
        }
        mounted.then_some(btrfs)
    }

    fn filler(&self) -> PathBuf {
        self.dir.join("filler")
    }

    /// Lets a file take all the space that there is now.
    fn fill(&self) {
        let file = OpenOptions::new().create(true).append(true).open(self.filler());
        let mut file = file.expect("a file can be made");
        for size in [1 << 20, 4096] {
            while file.write_all(&vec![7; size]).and_then(|()| file.sync_data()).is_ok() {}
        }
    }

    /// Keeps it full, as the file system frees the space of what was written over when it likes,
    /// until it is so.
    fn keep_full_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        wait_until(PATIENCE, what, || {
            self.fill();
            is_so()
        });
    }

    fn make_space(&self) {
        fs::remove_file(self.filler()).expect("the filler can go");
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        run_program("umount", &["-l", &self.dir.display().to_string()]);
        let _ = fs::remove_file(self.dir.with_extension("img"));
        let _ = fs::remove_dir(&self.dir);
    }
}

/// How often the server has logged that a commit waits for space.
fn noted_full(server: &Server) -> usize {
    server.error_log().matches("the file system of the redo log is full").count()
}

#[test]
fn commits_wait_for_space_on_a_file_system_that_copies_on_write() {
    let Some(disk) = Btrfs::new(64) else { return };
    let options = Options::new("log_space").engine(Engine::Tidepool);
    let options = options.arg("--tidepool-redo-log-capacity=8M");
    let home = format!("--tidepool-data-home-dir={}", disk.dir.join("data").display());
    let mut server = Server::start(options.arg(home));
    let mut conn = server.connect_to("test");
    run(
        &mut conn,
        &["CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 0), (2, 0)"],
    );
    let refused = |outcome: mysql::Result<()>| match outcome {
        Ok(()) => false,
        Err(error) => {
            assert!(error.to_string().contains("Disk got full"), "{error}");
            true
        }
    };
    let stop = AtomicBool::new(false);
    let mut beside = server.connect_to("test");
    let acknowledged = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        disk.fill();
        let writer = scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                // A statement that begins on a full disk fails, and says why.
                let sql = format!("UPDATE t SET n = {} WHERE id = 1", n + 1);
                n += i64::from(!refused(beside.query_drop(sql)));
            }
            n
        });
        disk.keep_full_until("a commit waits", || noted_full(&server) > 0);
        // Another one waits for the time that statements do.
        disk.keep_full_until("a statement is refused", || {
            refused(conn.query_drop("UPDATE t SET n = 1 WHERE id = 2"))
        });
        assert_eq!(number(&mut conn, "SELECT COUNT(*) FROM t"), 2);
        assert!(!writer.is_finished());
        disk.make_space();
        wait_until(PATIENCE, "commits go on", || {
            server.error_log().contains("there is space for the redo log again")
        });
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("a thread of the test")
    });
    run(&mut conn, &["UPDATE t SET n = 3 WHERE id = 2"]);
    server.kill9();
    server.restart();
    let mut conn = server.connect_to("test");
    assert_eq!(number(&mut conn, "SELECT n FROM t WHERE id = 1"), acknowledged);
    assert_eq!(number(&mut conn, "SELECT n FROM t WHERE id = 2"), 3);

    // A server that is asked to stop then does, and the next start finds what was acknowledged.
    let noted_before = noted_full(&server);
    let acknowledged = std::thread::scope(|scope| {
        disk.fill();
        let writer = scope.spawn(move || {
            let mut n = acknowledged;
            while conn.query_drop(format!("UPDATE t SET n = {} WHERE id = 1", n + 1)).is_ok() {
                n += 1;
            }
            n
        });
        disk.keep_full_until("a commit waits", || noted_full(&server) > noted_before);
        run_program("kill", &[&server.pid().expect("it runs").to_string()]);
        writer.join().expect("a thread of the test")
    });
    wait_until(PATIENCE, "the server ends", || server.exited().is_some());
    let status = server.end().expect("it was there");
    // Its binary log stays open, so that the next start recovers from it.
    let log = server.error_log();
    assert_eq!(status.code(), Some(1), "the server ended with {status}:\n{log}");
    assert!(log.contains("The server ends here, without closing its binary log"), "{log}");
    disk.make_space();
    server.launch().expect("it recovers");
    let found = number(&mut server.connect_to("test"), "SELECT n FROM t WHERE id = 1");
    assert!((acknowledged..=acknowledged + 1).contains(&found), "{found} for {acknowledged}");
}
