//! One table on 1, 2 and 4 servers behind MariaDB's Spider: what another node brings, and how far
//! one front goes.
//!
//! All servers are on this machine, so each node gets a cgroup that allows it a small share of one
//! processor, and the nodes are what limits the throughput. The front and the clients have the rest
//! of the machine. Every node holds the whole table, and the front asks each for its range of the
//! primary key; a range that moves needs no rows to be moved.
//!
//! # The model
//! From the run with one node come the processor's time that a transaction takes on the nodes and
//! on the front. With `n` nodes of `c` processors each, and a front of `f` processors, the
//! throughput is the lesser of `n · c / node` and `f / front`. The runs with 2 and 4 nodes say how
//! far that is true; then it is a model for more nodes, larger ones, and several fronts.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lab::{Lab, Plan, Settings};
use crate::load::sysbench::{Distribution, Job, Sysbench};
use crate::load::tables::{self, DataSet, Table};
use crate::machine::cgroup::Cgroup;
use crate::machine::counters::cpu_seconds;
use crate::progress::Progress;
use crate::record::{Outcome, Record, statistics};
use crate::server::{Server, ServerOptions, install};

/// Rows of the table: they fit every pool.
const ROWS: u64 = 200_000;
/// How many nodes a run has.
pub(crate) const NODES: [u32; 3] = [1, 2, 4];
/// Processors that a node may use.
const NODE_CPUS: f64 = 0.1;
const THREADS: u32 = 16;
/// How long Spider may take to make its own tables.
const SPIDER_LIMIT: Duration = Duration::from_secs(60);

/// The loads: a name for people, and sysbench's script. The last one changes rows of several nodes
/// in a transaction.
pub(crate) const LOADS: [(&str, &str); 3] = [
    ("point selects", "oltp_point_select"),
    ("updates of one row", "oltp_update_non_index"),
    ("transactions of four writes", "oltp_write_only"),
];

/// The name of a case: a load, and where it goes.
pub(crate) fn case(load: &str, nodes: u32) -> String {
    format!("{load}, {nodes} {}", if nodes == 1 { "node" } else { "nodes" })
}

fn direct_case(load: &str) -> String {
    format!("{load}, a node without a front")
}

/// Nothing is kept from one run of the lab to the next.
pub(super) fn data(_: &Settings) -> Vec<(Engine, DataSet)> {
    Vec::new()
}

/// The names of the cases.
pub(super) fn case_names(_: &Settings) -> Vec<String> {
    let of_load = |(load, _): (&str, &str)| {
        let through_front = NODES.map(|nodes| case(load, nodes));
        std::iter::once(direct_case(load)).chain(through_front).collect::<Vec<_>>()
    };
    LOADS.into_iter().flat_map(of_load).collect()
}

/// Runs the experiment: the nodes' engine is Tidepool.
///
/// # Errors
/// If the machine has no cgroups of processors, Spider is missing, or a server fails.
pub fn run(lab: &Lab) -> Result<()> {
    lab.need_cpu_cgroups()?;
    let settings = &lab.settings;
    let (warm_up_s, measure_s) = if settings.quick { (2, 4) } else { (5, settings.seconds(15)) };
    let most = NODES.into_iter().max().unwrap_or(1);
    let mut nodes = Vec::new();
    for number in 1..=most {
        nodes.push(Node::start(lab, number)?);
    }
    let front = start_front(lab, &nodes)?;
    lab.begin("cluster")?;
    let wanted = case_names(settings).iter().filter(|name| settings.wants(name)).count() as u32;
    let mut progress = Progress::new(wanted * (warm_up_s + measure_s));
    for (load, script) in LOADS {
        let mut measure = |scenario: String, socket: &Server, used: &[Node]| -> Result<()> {
            if !settings.wants(&scenario) {
                return Ok(());
            }
            let mut plan = Plan::new("cluster", Engine::Tidepool, socket.dir(), job(script, lab));
            plan.scenario = scenario;
            plan.args = vec![format!("--cpus={NODE_CPUS}")];
            (plan.warm_up_s, plan.measure_s) = (warm_up_s, measure_s);
            let record = measure(lab, &plan, socket, used, &mut progress)?;
            lab.keep(&record)
        };
        measure(direct_case(load), &nodes[0].server, &nodes[..1])?;
        for count in NODES {
            spread(&front, count)?;
            measure(case(load, count), &front, &nodes[..count as usize])?;
        }
    }
    front.stop()?;
    nodes.into_iter().try_for_each(|node| node.server.stop())
}

fn job(script: &str, lab: &Lab) -> Job {
    Job {
        script: script.into(),
        database: "sbtest".into(),
        rows: ROWS,
        threads: lab.settings.threads(THREADS),
        distribution: Distribution::Uniform,
    }
}

/// A server with the rows.
struct Node {
    server: Server,
    port: u16,
    /// Ends after the server: dropped last.
    _processors: Cgroup,
}

impl Node {
    /// Starts one and fills its table, and only then limits its processors.
    fn start(lab: &Lab, number: u32) -> Result<Node> {
        let engine = Engine::Tidepool;
        let dir = fresh(lab, engine, &format!("node{number}"))?;
        let port = free_port()?;
        let processors = lab.cpu_cgroup(1.0)?;
        let options = ServerOptions {
            engine,
            data_dir: dir,
            args: vec![
                "--skip-networking=0".into(),
                format!("--bind-address={}", address(number)),
                format!("--port={port}"),
                engine.pool_size_option(256 << 20),
            ],
            cgroup_procs: vec![processors.procs()],
        };
        let server = Server::start(&lab.environment, options)?;
        tables::fill(&server, &Table::new("sbtest", ROWS), &mut |_| ())?;
        // The name that the addresses of this machine have.
        server.execute("CREATE USER spider@localhost IDENTIFIED BY 'spider'")?;
        server.execute("GRANT ALL ON sbtest.* TO spider@localhost")?;
        processors.limit_cpus(NODE_CPUS)?;
        Ok(Node { server, port, _processors: processors })
    }
}

/// Spider knows the members of a transaction by their address alone.
fn address(number: u32) -> String {
    format!("127.0.0.{}", 10 + number)
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Error::io("a free port"))?;
    Ok(listener.local_addr().map_err(Error::io("a free port"))?.port())
}

/// An empty data directory that goes with the lab's.
fn fresh(lab: &Lab, engine: Engine, name: &str) -> Result<PathBuf> {
    let dir = lab.environment.run_dir().join(name);
    install(&lab.environment, engine, &dir)?;
    Ok(dir)
}

/// The server that has no rows, and knows the nodes.
fn start_front(lab: &Lab, nodes: &[Node]) -> Result<Server> {
    let plugins = lab.environment.value("STOCK_PLUGIN_DIR")?;
    if !std::path::Path::new(plugins).join("ha_spider.so").exists() {
        let text = "the package mariadb-plugin-spider is missing: run scripts/deps --test";
        return Err(Error::Missing(text.into()));
    }
    let options = ServerOptions {
        engine: Engine::InnoDb,
        data_dir: fresh(lab, Engine::InnoDb, "front")?,
        args: vec![
            format!("--plugin-dir={plugins}"),
            "--plugin-load-add=ha_spider.so".into(),
            "--spider-internal-xa=ON".into(),
        ],
        cgroup_procs: Vec::new(),
    };
    let front = Server::start(&lab.environment, options)?;
    let begun = Instant::now();
    let made = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'spider_xa'";
    while front.value(made)?.as_deref() != Some("1") {
        if begun.elapsed() > SPIDER_LIMIT {
            return Err(Error::Missing(format!("Spider made no tables in {SPIDER_LIMIT:?}")));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    front.execute("CREATE DATABASE sbtest")?;
    for (number, node) in (1..).zip(nodes) {
        front.execute(&format!(
            "CREATE SERVER node{number} FOREIGN DATA WRAPPER mysql OPTIONS (HOST '{}', PORT {}, \
             DATABASE 'sbtest', USER 'spider', PASSWORD 'spider')",
            address(number),
            node.port
        ))?;
    }
    Ok(front)
}

/// Makes the front's table anew, with a range of the rows on each of the first `nodes` nodes.
fn spread(front: &Server, nodes: u32) -> Result<()> {
    front.execute("DROP TABLE IF EXISTS sbtest.sbtest1")?;
    let partitions: Vec<String> = (1..=nodes)
        .map(|node| {
            let end = match node == nodes {
                true => "MAXVALUE".to_string(),
                false => format!("({})", ROWS * u64::from(node) / u64::from(nodes) + 1),
            };
            format!("PARTITION p{node} VALUES LESS THAN {end} COMMENT = 'srv \"node{node}\"'")
        })
        .collect();
    front.execute(&format!(
        "CREATE TABLE sbtest.sbtest1 (id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER DEFAULT 0 \
         NOT NULL, c CHAR(120) DEFAULT '' NOT NULL, pad CHAR(60) DEFAULT '' NOT NULL, PRIMARY \
         KEY (id), KEY k_1 (k)) ENGINE=Spider COMMENT = 'wrapper \"mysql\", table \"sbtest1\"' \
         PARTITION BY RANGE (id) ({})",
        partitions.join(", ")
    ))
}

/// One load against one server, and the processor's time that it took there and on the nodes.
fn measure(
    lab: &Lab,
    plan: &Plan,
    server: &Server,
    nodes: &[Node],
    progress: &mut Progress,
) -> Result<Record> {
    progress.say(&format!("cluster: {}", plan.scenario));
    let mut record = plan.record(&lab.settings);
    record.server_version = server.value("SELECT VERSION()")?.unwrap_or_default();
    let of = |server: &Server| server.pid().and_then(cpu_seconds).unwrap_or(0.0);
    let mut on_nodes = 0.0;
    let mut on_front = 0.0;
    let mut tps = Vec::new();
    let mut p95_ms = Vec::new();
    let mut load = Sysbench::start(server.socket(), &plan.job)?;
    for second in 1..=plan.warm_up_s + plan.measure_s {
        let Ok(measured) = load.next_second() else {
            record.outcome = Outcome::Failed("sysbench gave up".into());
            return Ok(record);
        };
        progress.second();
        if second == plan.warm_up_s {
            on_nodes = nodes.iter().map(|node| of(&node.server)).sum();
            on_front = of(server);
        } else if second > plan.warm_up_s {
            tps.push(measured.tps);
            p95_ms.push(measured.p95_ms);
        }
    }
    let transactions = tps.iter().sum::<f64>().max(1.0);
    let node_s = nodes.iter().map(|node| of(&node.server)).sum::<f64>() - on_nodes;
    let front_s = of(server) - on_front;
    let figures = [
        ("tps", statistics::median(tps)),
        ("p95_ms", statistics::median(p95_ms)),
        ("node_cpu_ms", 1e3 * node_s / transactions),
        ("front_cpu_ms", 1e3 * front_s / transactions),
    ];
    record.summary.extend(figures.map(|(name, value)| (name.to_string(), value)));
    tracing::info!(
        "cluster: {}: {:.0} transactions/s, {:.3} ms of a processor on nodes, {:.3} on the server \
         asked",
        plan.scenario,
        figures[0].1,
        figures[2].1,
        figures[3].1
    );
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_kind() {
        let names = case_names(&Settings::usual());
        assert_eq!(names.len(), LOADS.len() * (1 + NODES.len()));
        assert!(names.contains(&"point selects, 1 node".to_string()));
        assert!(names.contains(&"updates of one row, 4 nodes".to_string()));
        assert!(names.contains(&"point selects, a node without a front".to_string()));
    }
}
