//! Three servers with MariaDB's own replication, writers, and what happens to servers.
//!
//! ```text
//!   6 writers ── route ──▶ primary ──binary log──▶ replica, replica (delayed, now and then)
//!                             ▲  acknowledgement before the commit (semi-sync, AFTER_SYNC)
//! ```
//!
//! One event follows the other while the writers go on: SIGKILL of a replica or of the primary,
//! promotion, the return of the old primary, a planned switch, a replica made anew from a backup,
//! changes of definitions. After each, three things must hold:
//!
//! - No acknowledged transaction is lost, and none is there in part ([`load`]).
//! - All servers have the same rows, in all tables, by all indexes.
//! - All servers are at the same position, so each could be the next primary.
//!
//! The same code runs for half a minute in `make test` and for hours by `scripts/soak-cluster`. A
//! seed decides the events; the servers' threads run as the kernel schedules them.
//!
//! | module | what it is |
//! |---|---|
//! | [`node`] | one server, and what an operator asks of it |
//! | [`load`] | the writers, and what they must find |

pub mod load;
pub mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::sql::{check_table, run, sorted_rows};
use load::{DATABASE, Load};
use node::{Node, Recovery, lay_over, sequence};

const NODES: u32 = 3;
/// Writers that need longer for some commits hang.
const PATIENCE: Duration = Duration::from_secs(90);

/// How a soak is run.
#[derive(Clone, Debug)]
pub struct Soak {
    pub seed: u64,
    /// Events after which it ends.
    pub events: u32,
    /// No event begins after this time.
    pub duration: Duration,
    /// A line for each event.
    pub verbose: bool,
}

/// What happens to the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    ReplicaKilled,
    PrimaryKilledAndAnotherPromoted,
    PrimaryKilledAndRecovered,
    Switchover,
    ReplicaFromBackup,
    ReplicaDelayed,
    DefinitionsChanged,
}

/// All of them, the frequent ones twice. A soak begins with each once, so a short one has them all.
const EVENTS: [Event; 9] = [
    Event::PrimaryKilledAndAnotherPromoted,
    Event::ReplicaKilled,
    Event::ReplicaFromBackup,
    Event::PrimaryKilledAndRecovered,
    Event::ReplicaDelayed,
    Event::DefinitionsChanged,
    Event::Switchover,
    Event::PrimaryKilledAndAnotherPromoted,
    Event::ReplicaKilled,
];

/// What a soak did.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub events: u32,
    pub commits: u64,
    pub promotions: u32,
    pub kills: u32,
    /// COMMITs without an answer, and how many of these the next primary had.
    pub in_doubt: u64,
    pub in_doubt_found: u64,
    /// Times that an old primary had transactions in its binary log that no replica had, and gave
    /// them up.
    pub cut_logs: u32,
    /// The longest time without a primary, ms.
    pub outage_ms_max: u128,
    /// What was wrong. The soak ends with the first event that finds anything.
    pub violations: Vec<String>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} events, {} kills, {} promotions (at most {} ms without a primary), {} commits, \
             {} of {} in doubt found, {} old primaries cut their binary log",
            self.events,
            self.kills,
            self.promotions,
            self.outage_ms_max,
            self.commits,
            self.in_doubt_found,
            self.in_doubt,
            self.cut_logs
        )
    }
}

/// Runs a soak.
///
/// # Panics
/// If a server doesn't start or refuses what an operator asks of it.
pub fn run_soak(soak: &Soak) -> Summary {
    let mut rng = StdRng::seed_from_u64(soak.seed);
    let begun = Instant::now();
    let mut cluster = Cluster::start();
    for round in 0..soak.events {
        if begun.elapsed() >= soak.duration {
            break;
        }
        let event = match EVENTS.get(round as usize) {
            Some(event) => *event,
            None => EVENTS[rng.random_range(0..EVENTS.len())],
        };
        cluster.load_for(rng.random_range(50..400));
        cluster.event(event, &mut rng);
        cluster.load_for(rng.random_range(10..100));
        cluster.compare();
        cluster.summary.events += 1;
        if soak.verbose {
            println!("{:7.1} s, {event:?}: {}", begun.elapsed().as_secs_f64(), cluster.summary());
        }
        if !cluster.summary.violations.is_empty() {
            // What there is on disk is the evidence.
            cluster.nodes.iter_mut().for_each(|node| node.server.keep());
            break;
        }
    }
    cluster.load.end();
    cluster.summary()
}

/// The servers and their load.
struct Cluster {
    nodes: Vec<Node>,
    /// Which of them is the primary.
    primary: usize,
    load: Load,
    summary: Summary,
    /// Servers so far, for names of backups and of replaced servers.
    made: u32,
    /// Tables that an event has made.
    tables: u32,
}

impl Cluster {
    fn start() -> Cluster {
        let nodes: Vec<Node> =
            (1..=NODES).map(|id| Node::start(&format!("cluster{id}"), id)).collect();
        nodes.iter().for_each(load::create_account);
        nodes[0].promote();
        for replica in &nodes[1..] {
            replica.follow(&nodes[0], 0);
            replica.wait_until_it_receives();
        }
        let load = Load::begin(&nodes[0]);
        Cluster { nodes, primary: 0, load, summary: Summary::default(), made: NODES, tables: 0 }
    }

    fn summary(&self) -> Summary {
        let progress = &self.load.progress;
        let count = |number: &std::sync::atomic::AtomicU64| {
            number.load(std::sync::atomic::Ordering::Relaxed)
        };
        Summary {
            commits: self.load.commits(),
            in_doubt: count(&progress.in_doubt),
            in_doubt_found: count(&progress.in_doubt_found),
            ..self.summary.clone()
        }
    }

    /// Lets the writers commit this often.
    fn load_for(&mut self, commits: u64) {
        if !self.load.wait_for_commits(commits, PATIENCE) {
            self.summary.violations.push("the writers hang".into());
        }
    }

    fn replicas(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| *node != self.primary).collect()
    }

    fn any_replica(&self, rng: &mut StdRng) -> usize {
        let replicas = self.replicas();
        replicas[rng.random_range(0..replicas.len())]
    }

    fn event(&mut self, event: Event, rng: &mut StdRng) {
        match event {
            Event::ReplicaKilled => self.kill_replica(rng),
            Event::PrimaryKilledAndAnotherPromoted => self.fail_over(),
            Event::PrimaryKilledAndRecovered => self.recover_primary(),
            Event::Switchover => self.switch_over(rng),
            Event::ReplicaFromBackup => self.replace_replica(rng),
            Event::ReplicaDelayed => self.delay_replica(rng),
            Event::DefinitionsChanged => self.change_definitions(rng),
        }
    }

    /// Commits go on: the other replica acknowledges them.
    fn kill_replica(&mut self, rng: &mut StdRng) {
        let replica = self.any_replica(rng);
        self.nodes[replica].server.kill9();
        self.summary.kills += 1;
        self.load_for(rng.random_range(1..200));
        // In a fifth of the cases it is killed while it recovers or catches up, too.
        if rng.random_bool(0.2) {
            self.nodes[replica].recover(Recovery::AsReplica);
            run(&mut self.nodes[replica].connect(), &["START SLAVE"]);
            self.nodes[replica].server.kill9();
            self.summary.kills += 1;
        }
        self.nodes[replica].recover(Recovery::AsReplica);
        run(&mut self.nodes[replica].connect(), &["START SLAVE"]);
    }

    /// The primary dies, the replica with the most is promoted, and the old primary comes back.
    fn fail_over(&mut self) {
        let old = self.primary;
        self.nodes[old].server.kill9();
        self.summary.kills += 1;
        let since = Instant::now();
        self.load.progress.route.close();
        let replicas = self.replicas();
        // Both, so that neither receives anything after it was asked for its position.
        let received: Vec<(u64, usize)> = replicas
            .iter()
            .map(|node| (sequence(&self.nodes[*node].apply_all_received()), *node))
            .collect();
        let (_, new) = *received.iter().max().expect("there is a replica");
        self.primary = new;
        self.nodes[new].promote();
        for other in replicas.into_iter().filter(|node| *node != new) {
            run(&mut self.nodes[other].connect(), &["STOP SLAVE"]);
            self.nodes[other].follow(&self.nodes[new], 0);
            self.nodes[other].wait_until_it_receives();
        }
        self.load.progress.route.open(&self.nodes[new]);
        self.summary.promotions += 1;
        self.summary.outage_ms_max = self.summary.outage_ms_max.max(since.elapsed().as_millis());
        self.load_for(20);
        self.rejoin(old);
    }

    /// An old primary becomes a replica. What it alone had is gone with its recovery.
    fn rejoin(&mut self, old: usize) {
        let log_start = self.nodes[old].server.error_log().len();
        self.nodes[old].recover(Recovery::AsReplica);
        let is_cut = self.nodes[old].server.error_log()[log_start..].contains("truncated");
        self.summary.cut_logs += u32::from(is_cut);
        let position = self.nodes[old].text("SELECT @@gtid_binlog_pos");
        self.nodes[old].set_position(&position);
        self.nodes[old].follow(&self.nodes[self.primary], 0);
        self.nodes[old].wait_until_it_receives();
    }

    /// The primary dies and stays the primary: what its binary log has counts.
    fn recover_primary(&mut self) {
        self.nodes[self.primary].server.kill9();
        self.summary.kills += 1;
        self.load.progress.route.close();
        self.nodes[self.primary].recover(Recovery::AsPrimary);
        for replica in self.replicas() {
            self.nodes[replica].wait_until_it_receives();
        }
        self.nodes[self.primary].promote();
        self.load.progress.route.open(&self.nodes[self.primary]);
    }

    /// A planned change of the primary.
    fn switch_over(&mut self, rng: &mut StdRng) {
        let (old, new) = (self.primary, self.any_replica(rng));
        self.nodes[old].demote();
        self.load.progress.route.close();
        let end = self.nodes[old].text("SELECT @@gtid_binlog_pos");
        self.replicas().iter().for_each(|replica| self.nodes[*replica].wait_for(&end));
        self.primary = new;
        self.nodes[new].promote();
        for other in self.replicas() {
            run(&mut self.nodes[other].connect(), &["STOP SLAVE"]);
            if other == old {
                self.nodes[other].set_position(&end);
            }
            self.nodes[other].follow(&self.nodes[new], 0);
            self.nodes[other].wait_until_it_receives();
        }
        self.load.progress.route.open(&self.nodes[new]);
        self.summary.promotions += 1;
    }

    /// A replica is lost with its disk, and made anew from a backup of another server, while the
    /// writers go on.
    fn replace_replica(&mut self, rng: &mut StdRng) {
        let replica = self.any_replica(rng);
        let others: Vec<usize> = (0..self.nodes.len()).filter(|node| *node != replica).collect();
        let source = others[rng.random_range(0..others.len())];
        self.nodes[replica].server.kill9();
        self.summary.kills += 1;
        self.made += 1;
        let backup = self.nodes[source].server.dir().join(format!("backup{}", self.made));
        let back_up = format!("SET GLOBAL tidepool_backup_to = '{}'", backup.display());
        run(&mut self.nodes[source].connect(), &[&back_up]);
        let info =
            fs::read_to_string(backup.join("tidepool_backup_info")).expect("the file is there");
        let position = info.lines().find_map(|line| line.strip_prefix("gtid_binlog_pos = "));
        let position = position.expect("a backup has a position").to_owned();
        let id = self.nodes[replica].id();
        let new =
            Node::create(&format!("cluster{}", self.made), id, |data| lay_over(&backup, data));
        fs::remove_dir_all(&backup).expect("a backup can be removed");
        load::create_account(&new);
        new.set_position(&position);
        new.follow(&self.nodes[self.primary], 0);
        new.wait_until_it_receives();
        self.nodes[replica] = new;
    }

    /// A delayed replica receives at once, so it acknowledges; it has nothing newer than its delay.
    fn delay_replica(&mut self, rng: &mut StdRng) {
        const DELAY_S: u32 = 1;
        let replica = self.any_replica(rng);
        let end = self.nodes[self.primary].text("SELECT @@gtid_binlog_pos");
        self.nodes[replica].wait_for(&end);
        run(&mut self.nodes[replica].connect(), &["STOP SLAVE"]);
        self.nodes[replica].follow(&self.nodes[self.primary], DELAY_S);
        self.nodes[replica].wait_until_it_receives();
        let begun = Instant::now();
        self.load_for(50);
        let end = self.nodes[self.primary].text("SELECT @@gtid_binlog_pos");
        let applied = self.nodes[replica].text("SELECT @@gtid_slave_pos");
        // What was committed since the replica received again is younger than the delay.
        if begun.elapsed() < Duration::from_millis(900) && sequence(&applied) >= sequence(&end) {
            self.summary.violations.push(format!("{applied} was applied without the delay"));
        }
        self.nodes[replica].wait_for(&end);
        run(&mut self.nodes[replica].connect(), &["STOP SLAVE"]);
        self.nodes[replica].follow(&self.nodes[self.primary], 0);
        self.nodes[replica].wait_until_it_receives();
    }

    /// Definitions change on the primary, and a replica dies while it applies the changes.
    fn change_definitions(&mut self, rng: &mut StdRng) {
        let replica = self.any_replica(rng);
        let mut conn = self.nodes[self.primary].server.connect_to(DATABASE);
        self.tables += 1;
        let table = format!("other{}", self.tables);
        let columns = "id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(200), KEY (v)";
        run(
            &mut conn,
            &[
                &format!("CREATE TABLE {table} ({columns})"),
                &format!("INSERT INTO {table} (v) SELECT REPEAT(seq, 20) FROM seq_1_to_500"),
                &format!("ALTER TABLE {table} ADD w INT DEFAULT 7, ADD KEY (w, v)"),
            ],
        );
        self.nodes[replica].server.kill9();
        self.summary.kills += 1;
        run(
            &mut conn,
            &[
                &format!("UPDATE {table} SET w = id WHERE id % 3 = 0"),
                &format!("ALTER TABLE {table} FORCE"),
                &format!("ALTER TABLE {table} DROP COLUMN w"),
                &format!("ALTER TABLE hot ADD note{} INT DEFAULT {}", self.tables, self.tables),
            ],
        );
        if self.tables > 2 {
            run(&mut conn, &[&format!("DROP TABLE other{}", self.tables - 2)]);
        }
        self.nodes[replica].recover(Recovery::AsReplica);
        run(&mut self.nodes[replica].connect(), &["START SLAVE"]);
    }

    /// Holds the writers, waits for the replicas, and compares all that there is.
    fn compare(&mut self) {
        self.load.progress.route.close();
        let end = self.nodes[self.primary].text("SELECT @@gtid_binlog_pos");
        for replica in self.replicas() {
            self.nodes[replica].wait_for(&end);
        }
        let found = &mut self.summary.violations;
        found.extend(self.load.progress.violations());
        let reference = contents(&self.nodes[self.primary]);
        for node in &self.nodes {
            found.extend(self.load.violations_on(node));
            let position = node.text("SELECT @@gtid_binlog_pos");
            if sequence(&position) != sequence(&end) {
                found.push(format!("node {} is at {position}, the primary at {end}", node.id()));
            }
            let contents = contents(node);
            found.extend(contents.violations.iter().map(|it| format!("node {}: {it}", node.id())));
            let tables: BTreeSet<_> = contents.rows.keys().chain(reference.rows.keys()).collect();
            for table in tables {
                if contents.rows.get(table) != reference.rows.get(table) {
                    found.push(format!("node {}: {table} differs from the primary's", node.id()));
                }
            }
        }
        self.load.progress.route.open(&self.nodes[self.primary]);
    }
}

/// What a node has in the database.
#[derive(Default)]
struct Contents {
    /// By table, in order.
    rows: BTreeMap<String, Vec<String>>,
    /// What contradicts itself.
    violations: Vec<String>,
}

/// The rows of all tables; each table must be whole, and each index must have all rows.
fn contents(node: &Node) -> Contents {
    let mut conn = node.connect();
    run(&mut conn, &[&format!("USE {DATABASE}")]);
    let tables: Vec<String> = conn.query("SHOW TABLES").expect("tables");
    let mut found = Contents::default();
    for table in tables {
        let checked = check_table(&mut conn, &table);
        if checked != "OK" {
            found.violations.push(format!("{table}: CHECK TABLE says {checked}"));
        }
        let all = sorted_rows(&mut conn, &format!("SELECT * FROM {table} USE INDEX ()"));
        let indexes: Vec<String> = conn
            .query(format!(
                "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS \
                 WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'"
            ))
            .expect("indexes");
        for index in indexes {
            // Only an order by its columns makes the server read all of an index.
            let order: Vec<String> = conn
                .query(format!(
                    "SELECT COLUMN_NAME FROM information_schema.STATISTICS \
                     WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}' \
                     AND INDEX_NAME = '{index}' ORDER BY SEQ_IN_INDEX"
                ))
                .expect("columns");
            let by_index = format!(
                "SELECT * FROM {table} FORCE INDEX ({index}) ORDER BY {}",
                order.join(", ")
            );
            if sorted_rows(&mut conn, &by_index) != all {
                found.violations.push(format!("{table}: index {index} has other rows"));
            }
        }
        found.rows.insert(table, all);
    }
    found
}
