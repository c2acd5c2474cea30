//! One server of a cluster: its port, its options, and what an operator asks of it.
//!
//! The statements are those of `docs/operations/replication.md`. A node starts read-only, without
//! its replication threads, and with semi-synchronous replication off on the primary's side:
//! a promotion switches that on before the first client writes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Conn, Row};

use crate::server::{Options, Server, free_port, wait_until};
use crate::sql::run;

/// A replica that needs longer than this has hung, s.
const PATIENCE_S: u64 = 60;

/// With which role a server recovers the transactions that only its binary log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It stays the primary: what its binary log has is committed.
    AsPrimary,
    /// Another has been promoted: what no replica has acknowledged is cut off the binary log and
    /// rolled back.
    AsReplica,
}

/// One server of the cluster.
#[derive(Debug)]
pub struct Node {
    pub server: Server,
    id: u32,
    port: u16,
}

impl Node {
    /// A new server with nothing in it.
    ///
    /// # Panics
    /// If it doesn't start.
    pub fn start(name: &str, id: u32) -> Node {
        Node::create(name, id, |_| {})
    }

    /// A new server whose data directory `fill` has put something into before the start.
    ///
    /// # Panics
    /// If it doesn't start.
    pub fn create(name: &str, id: u32, fill: impl FnOnce(&Path)) -> Node {
        let port = free_port();
        let mut server = Server::create(options(name, id, port));
        fill(&server.data_dir());
        server.launch().unwrap_or_else(|error| panic!("{error}"));
        let node = Node { server, id, port };
        // Accounts are of the server's own tables, which a backup of Tidepool's does not have.
        run(
            &mut node.connect(),
            &[
                "SET sql_log_bin = 0",
                "GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1' IDENTIFIED BY 'x'",
            ],
        );
        node
    }

    /// A connection as root, without a database.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn connect(&self) -> Conn {
        self.server.connect()
    }

    /// What it is called in messages.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// A value that a query gives as text; empty for NULL.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn text(&self, query: &str) -> String {
        let value: Option<Option<String>> = self
            .connect()
            .query_first(query)
            .unwrap_or_else(|error| panic!("node {}: {query}: {error}", self.id));
        value.flatten().unwrap_or_default()
    }

    /// A column of `SHOW SLAVE STATUS`; empty if the node replicates from none.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn replication_status(&self, column: &str) -> String {
        let row: Option<Row> = self.connect().query_first("SHOW SLAVE STATUS").expect("a status");
        let value = row.and_then(|mut row| row.take::<Option<String>, _>(column)).flatten();
        value.unwrap_or_default()
    }

    /// Makes it the primary: it takes writes, and waits with each for a replica.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn promote(&self) {
        run(
            &mut self.connect(),
            &[
                "STOP SLAVE",
                "RESET SLAVE ALL",
                "SET GLOBAL rpl_semi_sync_master_enabled = ON",
                "SET GLOBAL read_only = OFF",
            ],
        );
    }

    /// Takes writes away from it. Commits under way end first.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn demote(&self) {
        run(&mut self.connect(), &["SET GLOBAL read_only = ON"]);
    }

    /// Has it replicate from `primary`. Both of its threads must have stopped, and the thread that
    /// applies must have applied all: what is left in the relay log is thrown away.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn follow(&self, primary: &Node, delay_s: u32) {
        let change = format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'replica',
             MASTER_PASSWORD = 'x', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1,
             MASTER_DELAY = {delay_s}",
            primary.port
        );
        run(
            &mut self.connect(),
            &["SET GLOBAL rpl_semi_sync_master_enabled = OFF", &change, "START SLAVE"],
        );
    }

    /// Sets where it replicates from, for a server that was the primary or comes from a backup.
    ///
    /// # Panics
    /// If the server refuses.
    pub fn set_position(&self, position: &str) {
        run(&mut self.connect(), &[&format!("SET GLOBAL gtid_slave_pos = '{position}'")]);
    }

    /// Ends the thread that receives, and waits until all that it had received is applied. Returns
    /// the position then: the node with the highest one has all that any replica acknowledged.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn apply_all_received(&self) -> String {
        run(&mut self.connect(), &["STOP SLAVE IO_THREAD"]);
        let received = self.replication_status("Gtid_IO_Pos");
        self.wait_for(&received);
        received
    }

    /// Waits until the node has applied a position.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for(&self, position: &str) {
        let wait = format!("SELECT MASTER_GTID_WAIT('{position}', {PATIENCE_S})");
        let reached = self.text(&wait) == "0";
        if !reached {
            let mut conn = self.connect();
            let status: Vec<Row> = conn.query("SHOW SLAVE STATUS").expect("a status");
            let threads: Vec<Row> = conn.query("SHOW PROCESSLIST").expect("a list");
            panic!(
                "node {} is at {} and does not get to {position}: {status:?}\n{threads:#?}",
                self.id,
                self.text("SELECT @@gtid_slave_pos")
            );
        }
    }

    /// Waits until a replica receives events, semi-synchronously.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_until_it_receives(&self) {
        let mut conn = self.connect();
        wait_until(Duration::from_secs(PATIENCE_S), "a replica that receives", || {
            let status = "SHOW STATUS LIKE 'Rpl_semi_sync_slave_status'";
            let row: Option<(String, String)> = conn.query_first(status).expect("a status");
            row.is_some_and(|(_, value)| value == "ON")
        });
    }

    /// Starts it again after it was killed. A replica goes on behind all that its binary log has:
    /// the server logs a change of a definition before it notes its position, and would apply it
    /// twice.
    ///
    /// # Panics
    /// If it doesn't start.
    pub fn recover(&mut self, role: Recovery) {
        let mut args = options("", self.id, self.port).args;
        if role == Recovery::AsReplica {
            args.push("--init-rpl-role=SLAVE".into());
        }
        self.server.set_args(args);
        self.server.launch().unwrap_or_else(|error| panic!("node {}: {error}", self.id));
        if role == Recovery::AsReplica {
            let logged = self.text("SELECT @@gtid_binlog_pos");
            if sequence(&logged) > sequence(&self.text("SELECT @@gtid_slave_pos")) {
                self.set_position(&logged);
            }
        }
    }
}

/// The number of the last transaction of a position with one domain.
///
/// # Panics
/// If it isn't such a position.
pub fn sequence(position: &str) -> u64 {
    if position.is_empty() {
        return 0;
    }
    let parts: Vec<&str> = position.split('-').collect();
    match parts[..] {
        ["0", _, number] => number.parse().expect("a number"),
        _ => panic!("not a position of domain 0 alone: {position}"),
    }
}

/// Copies a backup into a data directory.
///
/// # Panics
/// If it can't be copied.
pub fn lay_over(backup: &Path, data_dir: &Path) {
    let copied = Command::new("cp").arg("-a").arg(backup.join(".")).arg(data_dir).status();
    assert!(copied.is_ok_and(|status| status.success()), "a backup can be copied");
}

fn options(name: &str, id: u32, port: u16) -> Options {
    let options = Options::new(name);
    let engine = options.engine.name();
    options
        .arg(format!("--server-id={id}"))
        .args([
            "--skip-networking=0",
            "--bind-address=127.0.0.1",
            "--read-only",
            "--skip-slave-start",
        ])
        .arg(format!("--port={port}"))
        .args(["--log-bin=binlog", "--log-slave-updates", "--binlog-format=ROW", "--sync-binlog=1"])
        .args([
            "--gtid-strict-mode",
            "--slave-parallel-threads=4",
            "--slave-parallel-mode=optimistic",
        ])
        .arg(format!("--gtid-pos-auto-engines={engine}"))
        .args(["--rpl-semi-sync-slave-enabled", "--rpl-semi-sync-master-wait-point=AFTER_SYNC"])
        // A kill may leave relay-log.info with the name of a relay log that is gone.
        .arg("--relay-log-recovery")
        // A primary waits for a replica for a day rather than go on without.
        .arg("--rpl-semi-sync-master-timeout=86400000")
        .arg("--slave-net-timeout=10")
}
