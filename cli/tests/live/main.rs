//! The program against real servers: private ones, each with its own data directory and socket.

mod advise;
mod bad_input;
mod browser;
mod cgroup;
mod combine;
mod convert;
mod govern;
mod lab;
mod mysql_server;
mod salvage;
mod tidepool_server;
mod tls;
mod watch;
mod watch_servers;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};

use mysql::prelude::Queryable;
use tidepool_tests::server::{Engine, Options, Program, Server};

/// The program, set to reach a server; no option file of this machine is read.
fn tidepool(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool"));
    command
        .args(["--defaults-file=/dev/null", "--user=root"])
        .arg(format!("--socket={}", socket.display()))
        .env_remove("MYSQL_PWD")
        .stdin(Stdio::null());
    command
}

/// A private MariaDB whose tables are InnoDB's.
fn innodb(name: &str, args: &[&str]) -> Server {
    let options = Options::new(name).engine(Engine::InnoDb);
    // MariaDB since 11.8 lets the pool grow no further than it was at the start, if nothing is
    // said.
    let options = options.arg("--loose-innodb-buffer-pool-size-max=8G");
    let options = args.iter().fold(options, |options, arg| options.arg(*arg));
    Server::start(options.arg("--innodb-flush-log-at-trx-commit=0").arg("--loose-skip-log-bin"))
}

/// Makes `test.filler` in InnoDB with about this much in it: 14 rows of 1,100 bytes a page of 16
/// KiB. Returns the number of rows.
fn fill(server: &Server, mib: u64) -> u64 {
    fill_in(Engine::InnoDb, server, mib)
}

/// The same in an engine.
fn fill_in(engine: Engine, server: &Server, mib: u64) -> u64 {
    let mut conn = server.connect();
    let rows = mib * 64 * 14;
    let numbers = match server.options().program {
        Program::MariaDb => format!("SELECT seq, REPEAT('x', 1100) FROM seq_1_to_{rows}"),
        Program::MySql => {
            conn.query_drop(format!("SET cte_max_recursion_depth = {rows}")).unwrap();
            format!(
                "WITH RECURSIVE numbers (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM numbers WHERE seq < {rows}) \
                 SELECT seq, REPEAT('x', 1100) FROM numbers"
            )
        }
    };
    for statement in [
        "CREATE DATABASE IF NOT EXISTS test".to_owned(),
        "USE test".to_owned(),
        // Into an empty table and without these checks InnoDB loads in bulk.
        "SET unique_checks = 0, foreign_key_checks = 0".to_owned(),
        format!(
            "CREATE TABLE test.filler (id INT PRIMARY KEY, v VARCHAR(1100)) ENGINE={}",
            engine.name()
        ),
        format!("INSERT INTO test.filler {numbers}"),
    ] {
        conn.query_drop(statement).unwrap();
    }
    rows
}

/// A client that reads rows of `test.filler` all over the place until it is dropped.
struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn start(server: &Server, rows: u64) -> Reader {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, mut conn) = (Arc::clone(&stop), server.connect());
        let thread = spawn(move || {
            let mut id = 1;
            while !stopped.load(Ordering::Relaxed) {
                // Lehmer's generator: rows in no order that read-ahead would know.
                id = id * 48_271 % 2_147_483_647_u64;
                let row = format!("SELECT v FROM test.filler WHERE id = {}", id % rows + 1);
                // The server may be stopped by the test.
                if conn.query_drop(row).is_err() {
                    return;
                }
            }
        });
        Reader { stop, thread: Some(thread) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The checkout.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in it")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
