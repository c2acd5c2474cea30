//! The binary log is rotated, purged and reset under load, and the server killed behind that: what
//! was acknowledged is there, and the binary log and the engine tell the same.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_tests::server::{Options, Server, connect_to_socket};
use tidepool_tests::sql::{StopOnDrop, number, run};

const WRITERS: u32 = 4;
/// In each round the server is killed once.
const ROUNDS: u32 = 6;

/// What a writer has sent, and what was acknowledged: numbers from 1 on.
#[derive(Default)]
struct Progress {
    sent: AtomicU32,
    acknowledged: AtomicU32,
}

impl Progress {
    fn acknowledged(&self) -> u32 {
        self.acknowledged.load(Ordering::SeqCst)
    }
}

/// Commits one number after the other until the server is gone.
fn write(socket: &Path, writer: u32, progress: &Progress, stop: &AtomicBool) {
    let Ok(mut conn) = connect_to_socket(socket, "test") else { return };
    while !stop.load(Ordering::SeqCst) {
        let n = progress.sent.load(Ordering::SeqCst) + 1;
        progress.sent.store(n, Ordering::SeqCst);
        match conn.query_drop(format!("INSERT INTO t VALUES ({writer}, {n}, REPEAT('x', 100))")) {
            Ok(()) => progress.acknowledged.store(n, Ordering::SeqCst),
            Err(mysql::Error::MySqlError(error)) => panic!("writer {writer}: {error}"),
            Err(_) => return,
        }
    }
}

fn binary_logs(conn: &mut Conn) -> Vec<String> {
    let logs: Vec<mysql::Row> = conn.query("SHOW BINARY LOGS").expect("a list");
    logs.iter().map(|row| row.get(0).expect("a name")).collect()
}

/// The whole events of a binary log. SHOW BINLOG EVENTS refuses a log whose last event was cut off
/// by a kill in the middle of a write, unless a limit keeps it from that event.
fn events_of(conn: &mut Conn, log: &str) -> Vec<mysql::Row> {
    const WRONG_OFFSET: u16 = 1220;
    let mut up_to = |limit: u32| {
        let events = conn.query(format!("SHOW BINLOG EVENTS IN '{log}' LIMIT {limit}"));
        match events {
            Err(mysql::Error::MySqlError(error)) if error.code == WRONG_OFFSET => None,
            events => Some(events.expect("events")),
        }
    };
    let (mut some, mut whole, mut too_many) = (Vec::new(), 0, u32::MAX);
    if let Some(all) = up_to(too_many) {
        return all;
    }
    while too_many - whole > 1 {
        let limit = whole + (too_many - whole) / 2;
        match up_to(limit) {
            Some(events) => (some, whole) = (events, limit),
            None => too_many = limit,
        }
    }
    some
}

/// The insertions that are in the binary logs: their statements are beside their rows. What a crash
/// cut off doesn't count.
fn logged(conn: &mut Conn) -> BTreeSet<(u32, u32)> {
    let mut found = BTreeSet::new();
    for log in binary_logs(conn) {
        let mut written = None;
        for event in events_of(conn, &log) {
            let kind: String = event.get("Event_type").expect("a text");
            let info: String = event.get("Info").expect("a text");
            if let Some((_, values)) = info.split_once("INSERT INTO t VALUES (") {
                let mut numbers = values.split(", ").map_while(|number| number.parse().ok());
                written = numbers.next().zip(numbers.next());
            } else if kind == "Xid" {
                found.extend(written.take());
            }
        }
    }
    found
}

/// One of the statements that are about the binary log, whole.
fn maintain(conn: &mut Conn, what: u32) {
    match what {
        0 => run(conn, &["FLUSH BINARY LOGS"]),
        1 => {
            run(conn, &["FLUSH BINARY LOGS"]);
            let last = binary_logs(conn).pop().expect("a log");
            run(conn, &[&format!("PURGE BINARY LOGS TO '{last}'")]);
        }
        _ => run(conn, &["RESET MASTER"]),
    }
}

/// Loads the server, maintains its binary log, kills it soon after, and compares. `what` comes
/// last.
fn round(server: &mut Server, progress: &[Progress], what: u32, rng: &mut StdRng) {
    let stop = AtomicBool::new(false);
    let mut certain = Vec::new();
    thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for (writer, progress) in progress.iter().enumerate() {
            let (socket, stop) = (server.socket().to_path_buf(), &stop);
            scope.spawn(move || write(&socket, writer as u32, progress, stop));
        }
        let mut conn = server.connect();
        for _ in 0..3 {
            sleep(Duration::from_millis(rng.random_range(0..200)));
            maintain(&mut conn, rng.random_range(0..3));
        }
        sleep(Duration::from_millis(rng.random_range(0..200)));
        maintain(&mut conn, what);
        // One may be on its way; what is sent after it is logged after the statement.
        certain.extend(progress.iter().map(|progress| progress.acknowledged() + 2));
        sleep(Duration::from_millis(rng.random_range(0..100)));
        server.kill9();
    });
    server.restart();
    let mut conn = server.connect_to("test");
    let logged = logged(&mut conn);
    let there: Vec<(u32, u32)> = conn.query("SELECT writer, n FROM t").expect("rows");
    let there: BTreeSet<(u32, u32)> = there.into_iter().collect();
    let lost: Vec<_> = logged.difference(&there).collect();
    assert_eq!(lost, Vec::<&(u32, u32)>::new(), "in the binary log alone");
    for (writer, progress) in (0..).zip(progress) {
        let numbers: Vec<u32> =
            there.range((writer, 0)..(writer + 1, 0)).map(|&(_, n)| n).collect();
        let last = numbers.len() as u32;
        assert!(numbers.iter().copied().eq(1..=last), "writer {writer}: {numbers:?}");
        let (acknowledged, sent) = (progress.acknowledged(), progress.sent.load(Ordering::SeqCst));
        assert!(
            (acknowledged..=sent).contains(&last),
            "writer {writer}: {last} of {acknowledged} to {sent}"
        );
        for n in certain[writer as usize]..=last {
            assert!(logged.contains(&(writer, n)), "writer {writer}: {n} is not in the binary log");
        }
        // The next round goes on from there.
        progress.sent.store(last, Ordering::SeqCst);
        progress.acknowledged.store(last, Ordering::SeqCst);
    }
}

#[test]
fn nothing_is_lost_when_the_binary_log_is_rotated_purged_or_reset() {
    // Small: it also rotates by itself.
    let options = Options::new("binary_log").arg("--log-bin=binlog").arg("--sync-binlog=1");
    let mut server = Server::start(options.arg("--max-binlog-size=32K"));
    let create = "CREATE TABLE t (writer INT, n INT, v VARCHAR(100), PRIMARY KEY (writer, n))";
    run(&mut server.connect_to("test"), &[create]);
    let progress: Vec<Progress> = (0..WRITERS).map(|_| Progress::default()).collect();
    let mut rng = StdRng::seed_from_u64(1);
    for number in 0..ROUNDS {
        round(&mut server, &progress, number % 3, &mut rng);
    }
    let written: u32 = progress.iter().map(Progress::acknowledged).sum();
    assert!(written > 100, "hardly anything was written: {written}");
}

/// Of a commit behind the binary log, the engine has not written the record yet: only the binary
/// log knows of it.
#[test]
fn the_last_commit_is_not_forgotten_with_the_binary_log() {
    let options = Options::new("binary_log_last").arg("--log-bin=binlog").arg("--sync-binlog=1");
    let mut server = Server::start(options);
    run(&mut server.connect_to("test"), &["CREATE TABLE t (id INT PRIMARY KEY)"]);
    for id in 0..9 {
        let mut conn = server.connect_to("test");
        run(&mut conn, &[&format!("INSERT INTO t VALUES ({id})")]);
        maintain(&mut conn, id % 3);
        server.kill9();
        server.restart();
        let count = number(&mut server.connect_to("test"), "SELECT COUNT(*) FROM t");
        assert_eq!(count, i64::from(id) + 1, "the row {id} is lost");
    }
}
