//! `tidepool govern` on MySQL, which resizes by chunks and in the background.

use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use rustix::process::Signal;
use tidepool_tests::server::Server;

use super::mysql;
use crate::cgroup::Cgroup;
use crate::govern::{Govern, PATIENCE, a_kill_leaves_a_safe_size, pool_size};
use crate::{Reader, fill, stderr, tidepool};

const MIB: u64 = 1 << 20;

/// Memory of the server that no file backs.
fn own_bytes(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.pid().expect("the server runs"));
    let status = std::fs::read_to_string(path).expect("the server runs");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("it is there");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// What `look` gives when it has been the same for a second.
fn at_rest(mut look: impl FnMut() -> u64, is_same: impl Fn(u64, u64) -> bool) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    let (mut then, mut since) = (look(), Instant::now());
    while since.elapsed() < Duration::from_secs(1) {
        assert!(Instant::now() < deadline, "{then} does not stay");
        std::thread::sleep(Duration::from_millis(50));
        let now = look();
        if !is_same(then, now) {
            (then, since) = (now, Instant::now());
        }
    }
    then
}

fn is_resized(server: &Server) -> bool {
    let status: Option<(String, String)> = server
        .connect()
        .query_first("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_resize_status'")
        .unwrap();
    status.unwrap().1.starts_with("Completed")
}

#[test]
fn a_pool_is_shrunk_below_a_limit_that_comes_down_and_grows_back() {
    let Some(group) = Cgroup::new("mysql-govern") else { return };
    let args = ["--innodb-buffer-pool-size=96M", "--innodb-buffer-pool-chunk-size=1M"];
    let Some(server) = group.start(|| mysql("mysql-govern", &args)) else { return };
    let Some(server) = server else { return };
    // No query reads yet: a reader takes each page that a shrinking pool frees to move others to,
    // and then MySQL sleeps for seconds, some ten times.
    let rows = fill(&server, 96);
    let mut govern = Govern::start(tidepool(server.socket()).args([
        "govern",
        "--apply",
        "--max=96M",
        "--min=16M",
    ]));
    govern.line("governing MySQL");
    // Less room than what is to stay free, and no files of the server's in the kernel's cache that
    // could go instead. (After its start, and after many writes, it still takes some.)
    let own = at_rest(|| own_bytes(&server), |then, now| now.abs_diff(then) <= MIB / 4);
    let limit = own + 16 * MIB;
    group.limit(limit);
    govern.line("shrink 96 MiB ->");
    govern.line("step 96 MiB ->");
    let deadline = Instant::now() + PATIENCE;
    while own_bytes(&server) > limit - 26 * MIB {
        assert!(Instant::now() < deadline, "{} used, {:#?}", own_bytes(&server), govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    group.limit(2048 * MIB);
    // Another step may have begun, which must end before anybody reads.
    let small = at_rest(|| pool_size(&server), |then, now| then == now && is_resized(&server));
    assert!((16 * MIB..96 * MIB).contains(&small), "{small}");
    let reader = Reader::start(&server, rows);
    govern.line("room lasted");
    let deadline = Instant::now() + PATIENCE;
    while pool_size(&server) <= small {
        assert!(Instant::now() < deadline, "{:#?}", govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    govern.signal(Signal::TERM);
    let line = govern.line("stopped; pool size left at");
    assert!(govern.child.wait().unwrap().success());
    // No resize is left to be done behind its back.
    assert!(is_resized(&server), "{line}");
    assert!(pool_size(&server) <= 96 * MIB);
    drop(reader);
    drop(server);
}

#[test]
fn steps_are_whole_chunks_of_every_instance_and_end_at_a_gib() {
    let args = [
        "--innodb-buffer-pool-size=1536M",
        "--innodb-buffer-pool-chunk-size=64M",
        "--innodb-buffer-pool-instances=2",
    ];
    let Some(server) = mysql("mysql-chunks", &args) else { return };
    assert_eq!(pool_size(&server), 1536 * MIB);
    let run = |bounds: &[&str]| {
        let mut govern =
            Govern::start(tidepool(server.socket()).args(["govern", "--apply"]).args(bounds));
        govern.line("governing MySQL");
        govern
    };
    let until = |size: u64, govern: &Govern| {
        let deadline = Instant::now() + PATIENCE;
        while pool_size(&server) != size {
            assert!(Instant::now() < deadline, "{} {:#?}", pool_size(&server), govern.seen);
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    // Not a size that it can have: the next below that.
    let mut govern = run(&["--max=1300M", "--min=16M"]);
    until(1280 * MIB, &govern);
    govern.signal(Signal::KILL);
    govern.child.wait().unwrap();
    // With several instances MySQL refuses to be smaller than a GiB, so that is not tried.
    let output = tidepool(server.socket())
        .args(["govern", "--apply", "--max=200M", "--min=16M"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("--max 200 MiB is less than the 1 GiB"), "{words}");
    let mut govern = run(&["--max=1G", "--min=16M"]);
    govern.line("step 1280 MiB ->");
    until(1024 * MIB, &govern);
    govern.signal(Signal::TERM);
    govern.line("stopped; pool size left at 1 GiB");
    assert!(govern.child.wait().unwrap().success());
    assert!(!govern.seen.iter().any(|line| line.contains("did not take")), "{:#?}", govern.seen);
}

#[test]
fn a_kill_leaves_a_size_that_the_next_one_goes_on_from() {
    let args = ["--innodb-buffer-pool-size=96M", "--innodb-buffer-pool-chunk-size=1M"];
    let Some(server) = mysql("mysql-kill", &args) else { return };
    a_kill_leaves_a_safe_size(&server);
}

#[test]
fn a_dry_run_sets_nothing_and_setting_needs_a_privilege() {
    let args = ["--innodb-buffer-pool-size=96M", "--innodb-buffer-pool-chunk-size=1M"];
    let Some(server) = mysql("mysql-dry", &args) else { return };
    let mut govern = Govern::start(tidepool(server.socket()).args(["govern", "--max=64M"]));
    govern.line("dry run");
    govern.line("would shrink 96 MiB -> 64 MiB");
    govern.signal(Signal::INT);
    govern.line("stopped");
    assert_eq!(pool_size(&server), 96 * MIB);
    server.connect().query_drop("CREATE USER poor@localhost").unwrap();
    let run = || {
        tidepool(server.socket())
            .args(["--user=poor", "govern", "--apply", "--max=64M", "--duration=1"])
            .output()
            .unwrap()
    };
    let output = run();
    assert_eq!(output.status.code(), Some(5));
    let grant = "GRANT SYSTEM_VARIABLES_ADMIN ON *.* TO 'poor'@'localhost'";
    assert!(stderr(&output).contains(grant), "{}", stderr(&output));
    server.connect().query_drop(grant).unwrap();
    let output = run();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(pool_size(&server) < 96 * MIB);
}
