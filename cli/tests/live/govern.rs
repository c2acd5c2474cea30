//! `tidepool govern` on a live server: what it does in a cgroup that gets too small, and how it
//! leaves a server behind.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::spawn;
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;
use rustix::process::{Pid, Signal, kill_process};
use tidepool_tests::server::Server;

use crate::advise::{beside_a_key_cache, fill_both};
use crate::cgroup::Cgroup;
use crate::{Reader, fill, innodb, stderr, stdout, tidepool};

const MIB: u64 = 1 << 20;
/// Long enough for any machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn pool_size(server: &Server) -> u64 {
    server.connect().query_first("SELECT @@GLOBAL.innodb_buffer_pool_size").unwrap().unwrap()
}

/// A running `tidepool govern` and what it prints. Killed when dropped.
pub struct Govern {
    pub child: Child,
    lines: Receiver<String>,
    pub seen: Vec<String>,
}

impl Govern {
    pub fn start(command: &mut Command) -> Govern {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Govern { child, lines, seen: Vec::new() }
    }

    /// Waits for a line with this in it.
    pub fn line(&mut self, with: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(with) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("no line with {with:?} in {:#?}", self.seen)
                }
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Govern {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_pool_is_shrunk_below_a_limit_that_comes_down_and_grows_back() {
    let Some(group) = Cgroup::new("govern") else { return };
    // So few pages kept free that the pool counts as full when the load fills it.
    let args = [
        "--innodb-buffer-pool-size=96M",
        "--innodb-log-file-size=96M",
        "--innodb-lru-scan-depth=100",
    ];
    let Some(server) = group.start(|| innodb("govern-cgroup", &args)) else { return };
    let rows = fill(&server, 64);
    let reader = Reader::start(&server, rows);
    let log = server.dir().join("govern.jsonl");
    let mut govern = Govern::start(
        tidepool(server.socket())
            .args(["govern", "--apply", "--max=96M", "--min=16M"])
            .arg(format!("--log={}", log.display())),
    );
    govern.line("governing MariaDB");
    // Less room than what is to stay free. (A limit below the usage the kernel may refuse.)
    let limit = group.usage() + 6 * MIB;
    group.limit(limit);
    // As the first reading or as a later one.
    govern.line("shrink 96 MiB ->");
    govern.line("step 96 MiB ->");
    let deadline = Instant::now() + PATIENCE;
    while group.usage() > limit - 8 * MIB {
        assert!(Instant::now() < deadline, "{} used, {:#?}", group.usage(), govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    let small = pool_size(&server);
    assert!(small >= 16 * MIB, "{small}");
    // Room again, a pool that misses: it comes back by itself, and no further than it may.
    group.limit(1024 * MIB);
    govern.line("room lasted");
    let deadline = Instant::now() + PATIENCE;
    while pool_size(&server) <= small {
        assert!(Instant::now() < deadline, "{:#?}", govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    govern.signal(Signal::TERM);
    govern.line("stopped; pool size left at");
    assert!(govern.child.wait().unwrap().success());
    assert!(pool_size(&server) <= 96 * MIB);
    drop(reader);
    let log = std::fs::read_to_string(log).unwrap();
    let records: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for record in records.iter().filter(|record| record["event"] == "step") {
        let (from, to) =
            (record["from_bytes"].as_u64().unwrap(), record["to_bytes"].as_u64().unwrap());
        assert!(from.abs_diff(to) <= from / 2 + MIB, "{record}");
    }
    assert!(
        records.iter().any(|record| record["signal"] == "room lasted" && record["applied"] == true)
    );
    // Before its group.
    drop(server);
}

#[test]
fn a_dry_run_sets_nothing() {
    let Some(group) = Cgroup::new("govern-dry") else { return };
    let args = ["--innodb-buffer-pool-size=256M", "--innodb-log-file-size=512M"];
    let Some(server) = group.start(|| innodb("govern-dry", &args)) else { return };
    group.limit(280 * MIB);
    let mut govern = Govern::start(tidepool(server.socket()).args(["govern", "--min=16M"]));
    govern.line("dry run");
    let line = govern.line("would shrink");
    assert!(line.contains("256 MiB ->"), "{line}");
    govern.signal(Signal::INT);
    govern.line("stopped");
    assert_eq!(pool_size(&server), 256 * MIB);
    drop(server);
}

/// On a pool of 96 MiB: a kill between the steps down to a ceiling leaves one of their sizes, and
/// the next one goes on from there.
pub fn a_kill_leaves_a_safe_size(server: &Server) {
    let govern = |max: &str| {
        let args = ["govern", "--apply", max, "--min=16M"];
        Govern::start(tidepool(server.socket()).args(args))
    };
    let mut first = govern("--max=64M");
    first.line("step 96 MiB ->");
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    let size = pool_size(server);
    assert!((64 * MIB..96 * MIB).contains(&size), "{size}");
    let mut next = govern("--max=40M");
    let deadline = Instant::now() + PATIENCE;
    while pool_size(server) != 40 * MIB {
        assert!(Instant::now() < deadline, "{:#?}", next.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    next.signal(Signal::TERM);
    next.line("stopped");
    assert!(next.child.wait().unwrap().success());
}

#[test]
fn a_ceiling_is_kept_and_a_kill_leaves_a_size_that_is_safe() {
    let args = ["--innodb-buffer-pool-size=96M", "--innodb-log-file-size=96M"];
    a_kill_leaves_a_safe_size(&innodb("govern-kill", &args));
}

/// What a step down changes for a moment.
fn settings(conn: &mut Conn) -> (u64, u64, u64, f64) {
    let query = "SELECT @@GLOBAL.innodb_lru_scan_depth, @@GLOBAL.innodb_old_blocks_pct,
        @@GLOBAL.innodb_old_blocks_time, @@GLOBAL.innodb_max_dirty_pages_pct_lwm";
    conn.query_first(query).unwrap().unwrap()
}

/// A pool of 256 MiB that is made smaller.
fn shrinking(name: &str) -> (Server, Govern) {
    let args = ["--innodb-buffer-pool-size=256M", "--innodb-log-file-size=96M"];
    let server = innodb(name, &args);
    fill(&server, 200);
    let mut command = tidepool(server.socket());
    command.args(["govern", "--apply", "--max=64M", "--min=16M"]);
    let govern = Govern::start(&mut command);
    (server, govern)
}

#[test]
fn a_kill_in_the_middle_of_a_step_leaves_no_setting_behind() {
    let (server, mut govern) = shrinking("govern-depth");
    let mut conn = server.connect();
    let before = settings(&mut conn);
    let deadline = Instant::now() + PATIENCE;
    while settings(&mut conn) == before {
        assert!(Instant::now() < deadline, "no step down was seen: {:#?}", govern.seen);
    }
    govern.signal(Signal::KILL);
    govern.child.wait().unwrap();
    while settings(&mut conn) != before {
        assert!(Instant::now() < deadline, "they stayed at {:?}", settings(&mut conn));
    }
}

#[test]
fn a_connection_killed_in_the_middle_of_a_step_leaves_no_setting_behind() {
    let (server, mut govern) = shrinking("govern-cut");
    let mut conn = server.connect();
    let before = settings(&mut conn);
    let deadline = Instant::now() + PATIENCE;
    let step = "SELECT id FROM information_schema.processlist WHERE info LIKE 'BEGIN NOT ATOMIC%'
        AND @@GLOBAL.innodb_old_blocks_pct = 95";
    loop {
        assert!(Instant::now() < deadline, "no step down was seen: {:#?}", govern.seen);
        let Some(id) = conn.query_first::<u64, _>(step).unwrap() else { continue };
        if conn.query_drop(format!("KILL CONNECTION {id}")).is_ok() {
            break;
        }
    }
    govern.line("connected again");
    // And it goes on to the end. The next step may have begun: what it finds is what it sets back.
    while pool_size(&server) != 64 * MIB {
        assert!(Instant::now() < deadline, "{:#?}", govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    govern.signal(Signal::TERM);
    govern.line("stopped");
    assert_eq!(settings(&mut conn), before, "{:#?}", govern.seen);
}

#[test]
fn an_account_that_keeps_the_lock_stops_no_step() {
    let server = innodb("govern-lock", &["--innodb-buffer-pool-size=96M"]);
    let mut other = server.connect();
    for statement in
        ["CREATE USER poor@localhost IDENTIFIED BY ''", "CREATE DATABASE IF NOT EXISTS test"]
    {
        other.query_drop(statement).unwrap();
    }
    let options = mysql::OptsBuilder::new()
        .socket(Some(server.socket().to_str().unwrap()))
        .user(Some("poor"));
    let mut poor = Conn::new(options).unwrap();
    let locked: Option<u64> = poor.query_first("SELECT GET_LOCK('tidepool_resize', 0)").unwrap();
    assert_eq!(locked, Some(1));
    let before = settings(&mut other);
    let args = ["govern", "--apply", "--max=64M", "--min=16M"];
    let mut govern = Govern::start(tidepool(server.socket()).args(args));
    let line = govern.line("the lock is ignored");
    assert!(line.contains("poor@localhost") && line.contains("KILL "), "{line}");
    govern.line("-> 64 MiB");
    let deadline = Instant::now() + PATIENCE;
    while pool_size(&server) != 64 * MIB {
        assert!(Instant::now() < deadline, "{:#?}", govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(settings(&mut other), before, "none was touched beside another's step");
    govern.signal(Signal::TERM);
    govern.line("stopped");
    drop(poor);
}

#[test]
fn a_frozen_server_does_not_keep_it_from_ending() {
    let server = innodb("govern-frozen", &["--innodb-buffer-pool-size=64M"]);
    let mut command = tidepool(server.socket());
    let mut govern = Govern::start(command.args(["govern", "--apply"]).stderr(Stdio::piped()));
    govern.line("governing");
    let process = Pid::from_raw(server.pid().unwrap().cast_signed()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    govern.signal(Signal::TERM);
    let mut text = String::new();
    govern.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    let status = govern.child.wait().unwrap();
    kill_process(process, Signal::CONT).unwrap();
    assert_eq!(status.code(), Some(7), "{text}");
    assert!(text.contains("stopped; the server went away: it does not answer"), "{text}");
}

#[test]
fn a_second_governor_waits_for_the_first() {
    let server = innodb("govern-second", &["--innodb-buffer-pool-size=96M"]);
    let start = |max: &str| {
        Govern::start(tidepool(server.socket()).args(["govern", "--apply", "--min=16M", max]))
    };
    let mut first = start("--max=80M");
    first.line("step 96 MiB ->");
    let mut second = start("--max=48M");
    let line = second.line("governs this server already");
    assert!(line.contains(&format!("process {} governs", first.child.id())), "{line}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(pool_size(&server), 80 * MIB);
    // A dry run sets nothing, and so need not wait.
    let dry = ["govern", "--duration=1"];
    assert!(tidepool(server.socket()).args(dry).output().unwrap().status.success());
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    second.line("step 80 MiB -> 48 MiB");
    // A size that somebody else sets is not passed over in silence.
    server.connect().query_drop("SET GLOBAL innodb_buffer_pool_size = 41943040").unwrap();
    second.line("another program or a person has changed the pool's size from 48 MiB to 40 MiB");
    second.signal(Signal::TERM);
    second.line("stopped");
}

#[test]
fn a_process_that_the_server_is_not_is_not_taken_for_it() {
    let server = innodb("govern-pid", &["--innodb-buffer-pool-size=64M"]);
    let own = std::process::id();
    for command in ["govern", "watch"] {
        let args = [command, "--duration=1", &format!("--pid={own}")];
        let output = tidepool(server.socket()).args(args).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(&format!("is process {}", server.pid().unwrap())), "{text}");
    }
    let args = ["govern", "--duration=1", &format!("--pid={}", server.pid().unwrap())];
    let output = tidepool(server.socket()).args(args).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn two_do_not_resize_at_once() {
    let server = innodb("govern-two", &["--innodb-buffer-pool-size=96M"]);
    let mut other = server.connect();
    let locked: Option<u64> = other.query_first("SELECT GET_LOCK('tidepool_resize', 0)").unwrap();
    assert_eq!(locked, Some(1));
    let id: Option<u64> = other.query_first("SELECT CONNECTION_ID()").unwrap();
    let args = ["govern", "--apply", "--max=64M", "--min=16M"];
    let mut govern = Govern::start(tidepool(server.socket()).args(args));
    let line = govern.line("holds the resize lock");
    assert!(line.contains(&format!("connection {}", id.unwrap())), "{line}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(pool_size(&server), 96 * MIB);
    other.query_drop("DO RELEASE_LOCK('tidepool_resize')").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while pool_size(&server) != 64 * MIB {
        assert!(Instant::now() < deadline, "{:#?}", govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    govern.signal(Signal::TERM);
    govern.line("stopped");
    // It was said once, and no step was made smaller for it.
    let said = govern.seen.iter().filter(|line| line.contains("holds the resize lock")).count();
    assert_eq!(said, 1, "{:#?}", govern.seen);
    assert!(!govern.seen.iter().any(|line| line.contains("smaller steps")), "{:#?}", govern.seen);
    let free: Option<u64> = other.query_first("SELECT IS_FREE_LOCK('tidepool_resize')").unwrap();
    assert_eq!(free, Some(1), "it is given back");
}

#[test]
fn a_step_down_keeps_the_pages_that_fit() {
    let args = ["--innodb-buffer-pool-size=256M", "--innodb-log-file-size=512M"];
    let server = innodb("govern-keep", &args);
    fill(&server, 320);
    let mut conn = server.connect();
    let mut pages = |which: &str| -> u64 {
        let query = format!("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_{which}'");
        conn.query_first::<(String, u64), _>(query).unwrap().unwrap().1
    };
    // Pages that have to be written first go at the disk's pace; and with none, the page cleaner
    // sleeps until it is woken.
    let mut other = server.connect();
    for statement in [
        "FLUSH TABLES test.filler FOR EXPORT",
        "UNLOCK TABLES",
        "SET GLOBAL innodb_max_dirty_pages_pct = 0",
    ] {
        other.query_drop(statement).unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while pages("dirty") > 0 {
        assert!(Instant::now() < deadline, "{} pages stay dirty", pages("dirty"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let (before, gone) = (pages("data"), 32 * MIB / 16384);
    let mut govern =
        Govern::start(tidepool(server.socket()).args(["govern", "--apply", "--max=224M"]));
    govern.line("step 256 MiB -> 224 MiB");
    let after = pages("data");
    // Those that go, and what is kept free for queries that go on reading.
    assert!(after + gone + 2 * 1024 > before, "{before} pages, then {after}");
}

#[test]
fn setting_needs_a_privilege_and_says_which() {
    let server = innodb("govern-grant", &["--innodb-buffer-pool-size=64M"]);
    server.connect().query_drop("CREATE USER poor@localhost").unwrap();
    let output = tidepool(server.socket())
        .args(["--user=poor", "govern", "--apply", "--duration=1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(
        stderr(&output).contains("GRANT SUPER ON *.* TO 'poor'@'localhost'"),
        "{}",
        stderr(&output)
    );
    let output =
        tidepool(server.socket()).args(["--user=poor", "govern", "--duration=1"]).output().unwrap();
    assert!(output.status.success(), "a dry run needs no privilege: {}", stderr(&output));
}

#[test]
fn a_limit_on_the_time_of_statements_cuts_off_no_step() {
    let args = ["--innodb-buffer-pool-size=256M", "--innodb-log-file-size=96M"];
    let server = innodb("govern-limit", &args);
    fill(&server, 200);
    // This session began without it. An idle server is prepared for its second step for 0.15 s, to
    // the end.
    let mut conn = server.connect();
    conn.query_drop("SET GLOBAL max_statement_time = 0.1").unwrap();
    let args = ["govern", "--apply", "--max=64M", "--min=16M"];
    let mut govern = Govern::start(tidepool(server.socket()).args(args));
    let deadline = Instant::now() + PATIENCE;
    let query = "SELECT @@GLOBAL.innodb_buffer_pool_size";
    while conn.query_first::<u64, _>(query).unwrap() != Some(64 * MIB) {
        assert!(Instant::now() < deadline, "{:#?}", govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    govern.signal(Signal::TERM);
    govern.line("stopped");
    assert!(!govern.seen.iter().any(|line| line.contains("exceeded")), "{:#?}", govern.seen);
}

#[test]
fn steps_are_measured_on_when_the_connection_that_measures_is_killed() {
    let server = innodb("govern-probe", &["--innodb-buffer-pool-size=64M"]);
    let mut govern = Govern::start(tidepool(server.socket()).args(["govern", "--apply"]));
    govern.line("governing");
    let mut conn = server.connect();
    // The one that governs is the older of the two.
    let query = "SELECT id FROM information_schema.processlist
        WHERE user = 'root' AND id <> CONNECTION_ID() ORDER BY id";
    let deadline = Instant::now() + PATIENCE;
    let mut killed = None;
    loop {
        assert!(Instant::now() < deadline, "{killed:?} killed, {:#?}", govern.seen);
        std::thread::sleep(Duration::from_millis(50));
        let ids: Vec<u64> = conn.query(query).unwrap();
        match (ids.as_slice(), killed) {
            (&[_, probe], None) => {
                conn.query_drop(format!("KILL CONNECTION {probe}")).unwrap();
                killed = Some(probe);
            }
            (&[_, probe], Some(killed)) if probe > killed => break,
            _ => {}
        }
    }
    govern.signal(Signal::TERM);
    govern.line("stopped");
}

#[test]
fn no_transaction_stays_open_where_autocommit_is_off() {
    let server = innodb("govern-autocommit", &["--innodb-buffer-pool-size=64M", "--autocommit=0"]);
    let mut govern = Govern::start(tidepool(server.socket()).args(["govern", "--apply"]));
    govern.line("governing");
    let mut conn = server.connect();
    // The small reads come four times a second, and the table is a copy of what was so at most 0.1
    // s ago.
    let open = "SELECT COUNT(*) FROM information_schema.innodb_trx
        WHERE trx_mysql_thread_id <> CONNECTION_ID()";
    let mut seen = Vec::new();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(150));
        seen.push(conn.query_first::<u64, _>(open).unwrap().unwrap());
    }
    assert!(seen.contains(&0), "{seen:?} transactions were open");
    govern.signal(Signal::TERM);
    govern.line("stopped");
}

#[test]
fn a_pool_that_cannot_grow_is_told() {
    let args = ["--innodb-buffer-pool-size=64M", "--innodb-buffer-pool-size-max=64M"];
    let server = innodb("govern-max", &args);
    let told = |max: &str| {
        let output =
            tidepool(server.socket()).args(["govern", "--duration=1", max]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).contains("innodb_buffer_pool_size_max")
    };
    assert!(told("--max=1G"));
    assert!(!told("--max=64M"), "nothing else was asked for");
}

#[test]
fn a_floor_above_the_present_size_is_reached() {
    let server = innodb("govern-min", &["--innodb-buffer-pool-size=64M"]);
    let args = ["govern", "--apply", "--min=128M", "--max=256M"];
    let govern = Govern::start(tidepool(server.socket()).args(args));
    let deadline = Instant::now() + PATIENCE;
    while pool_size(&server) != 128 * MIB {
        assert!(Instant::now() < deadline, "{} now, {:#?}", pool_size(&server), govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn limits_that_cannot_be_seen_from_here_end_it() {
    let Some(group) = Cgroup::new("govern-sight") else { return };
    let server = innodb("govern-sight", &["--innodb-buffer-pool-size=64M"]);
    let govern = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--cgroup", "--mount", "sh", "-ec", script])
            .args([env!("CARGO_BIN_EXE_tidepool"), "--defaults-file=/dev/null", "--user=root"])
            .arg(format!("--socket={}", server.socket().display()))
            .args(["govern", "--apply", "--duration=5"]);
        group.start(|| command.output().unwrap())
    };
    // In a cgroup namespace that begins below the server's group, with the groups of that.
    let below = "umount -l /sys/fs/cgroup/memory
        mount -t cgroup -o memory cgroup /sys/fs/cgroup/memory
        exec \"$0\" \"$@\"";
    let Some(output) = govern(below) else { return };
    assert_eq!(output.status.code(), Some(6), "{}", stdout(&output));
    assert!(stderr(&output).contains("can't be seen from here"), "{}", stderr(&output));
    assert_eq!(pool_size(&server), 64 * MIB);
    // With those of the machine, among which is the server's.
    let output = govern("exec \"$0\" \"$@\"").expect("it could be started before");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_server_that_dies_ends_it_with_its_own_code() {
    let mut server = innodb("govern-dies", &["--innodb-buffer-pool-size=64M"]);
    let mut govern =
        Govern::start(tidepool(server.socket()).args(["govern"]).stderr(Stdio::piped()));
    govern.line("governing");
    server.kill9();
    let status = govern.child.wait().unwrap();
    let mut text = String::new();
    govern.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(status.code(), Some(7), "{text}");
    assert!(text.contains("the server went away"), "{text}");
}

#[test]
fn a_pool_larger_than_its_cgroup_is_not_killed() {
    let Some(group) = Cgroup::new("govern-oversized") else { return };
    // Half as much again as there is, and data to fill it.
    let args = ["--innodb-buffer-pool-size=384M", "--innodb-log-file-size=96M"];
    let Some(server) = group.start(|| innodb("govern-oversized", &args)) else { return };
    let limit = 256 * MIB;
    let mut govern = Govern::start(tidepool(server.socket()).args(["govern", "--apply"]));
    govern.line("governing MariaDB");
    group.limit(limit);
    govern.line("step 384 MiB ->");
    let rows = fill(&server, 320);
    let reader = Reader::start(&server, rows);
    // All of the table comes by, more than once, while the reader goes on.
    let mut conn = server.connect_to("test");
    for _ in 0..3 {
        let query = "SELECT COUNT(*) FROM test.filler WHERE v <> ''";
        let seen: Option<u64> = conn.query_first(query).expect("the server lives");
        assert_eq!(seen, Some(rows));
    }
    drop(reader);
    assert!(pool_size(&server) < limit, "{:#?}", govern.seen);
    govern.signal(Signal::TERM);
    govern.line("stopped");
    drop((conn, server));
}

#[test]
fn a_key_cache_that_fills_at_once_beside_a_governed_pool_kills_no_server() {
    let Some(group) = Cgroup::new("govern-key") else { return };
    let Some(server) = beside_a_key_cache(&group, "govern-key") else { return };
    let mut conn = server.connect_to("test");
    conn.query_drop("SET GLOBAL innodb_buffer_pool_size = 301989888").unwrap();
    conn.query_drop("SELECT COUNT(*) FROM filler WHERE v <> ''").unwrap();
    let args = ["govern", "--apply", "--min=16M"];
    let mut govern = Govern::start(tidepool(server.socket()).args(args));
    let line = govern.line("shrink 288 MiB ->");
    assert!(line.contains("is reserved by the server and not taken yet"), "{line}");
    let deadline = Instant::now() + PATIENCE;
    while pool_size(&server) > 144 * MIB {
        assert!(Instant::now() < deadline, "{:#?}", govern.seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    fill_both(&server);
    govern.signal(Signal::TERM);
    govern.line("stopped");
    assert!(!govern.seen.iter().any(|line| line.contains("cannot save")), "{:#?}", govern.seen);
    // More than there is: said before anything is done.
    conn.query_drop("SET GLOBAL key_buffer_size = 805306368").unwrap();
    let mut govern = Govern::start(tidepool(server.socket()).args(["govern", "--min=16M"]));
    let line = govern.line("govern cannot save this server");
    assert!(line.contains("key_buffer_size"), "{line}");
    assert!(!govern.seen.iter().any(|line| line.contains("shrink")), "{:#?}", govern.seen);
    drop((govern, conn, server));
}
