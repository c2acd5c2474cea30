//! Page traces of real loads, recorded from the engine: what replacement policies are compared on.
//!
//! Each load runs until the pool is warm, then its accesses are recorded. Beside the whole trace
//! (`<results>/traces/<name>.trace`) a small one is kept: a sample of the pages, so that everything
//! about those pages is there, and short enough for the sources (`<name>.small.trace`).

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use mysql::prelude::Queryable;
use tidepool_pool::Sample;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lab::{Lab, Settings};
use crate::load::dump::DumpLoop;
use crate::load::sysbench::{Distribution, Job, Sysbench};
use crate::load::tables::{DataSet, Table};
use crate::load::tpcc;
use crate::policy::trace::{self, Trace};
use crate::progress::Progress;
use crate::server::{Server, ServerOptions, connect};

use super::data::for_tidepool;

/// The pool, in bytes; the tables are in proportion to it. Small, so that each page is asked for
/// often while a load is recorded.
const POOL_BYTES: u64 = 16 << 20;
/// Bytes of a sysbench row, with its share of the clustered index only.
const ROW_BYTES: u64 = 215;
/// Bytes of a small trace.
const SMALL_BYTES: u64 = 256 << 10;
const CLIENTS: u32 = 4;
/// Seven times the pool.
const WAREHOUSES: u32 = 1;

/// A load to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    PointSelects(Distribution),
    Tpcc,
    BesideDump,
    TwoScans,
    Loop,
}

const LOADS: [(&str, Load); 6] = [
    ("uniform", Load::PointSelects(Distribution::Uniform)),
    ("pareto", Load::PointSelects(Distribution::Pareto)),
    ("tpcc", Load::Tpcc),
    ("beside-dump", Load::BesideDump),
    ("two-scans", Load::TwoScans),
    ("loop", Load::Loop),
];

fn rows(bytes: u64) -> u64 {
    bytes / ROW_BYTES
}

fn tables() -> DataSet {
    let table = |database: &str, bytes: u64| Table::new(database, rows(bytes));
    DataSet::of_tables(
        "traces",
        vec![
            table("large", POOL_BYTES * 4),
            table("hot", POOL_BYTES * 6 / 10),
            table("one", POOL_BYTES * 8 / 10),
            table("two", POOL_BYTES * 8 / 10),
            table("round", POOL_BYTES * 3 / 2),
        ],
    )
}

/// The data that it needs.
pub fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    for_tidepool(settings, vec![tables(), DataSet::tpcc(WAREHOUSES)])
}

/// Records all loads.
///
/// # Errors
/// If a run can't begin, or a trace can't be recorded.
pub fn run(lab: &Lab) -> Result<()> {
    let engine = Engine::Tidepool;
    if !lab.settings.engines.contains(&engine) {
        return Err(Error::Missing("only Tidepool records page traces".into()));
    }
    let (warm_up_s, record_s) = if lab.settings.quick { (5, 4) } else { (15, 30) };
    let directory = lab.settings.out.join("traces");
    fs::create_dir_all(&directory).map_err(Error::at(&directory))?;
    let directory = fs::canonicalize(&directory).map_err(Error::at(&directory))?;
    let mut progress = Progress::new(LOADS.len() as u32 * (warm_up_s + record_s));
    for (name, load) in LOADS {
        let data = if load == Load::Tpcc { DataSet::tpcc(WAREHOUSES) } else { tables() };
        let options = ServerOptions {
            engine,
            data_dir: lab.data(engine, &data, &mut progress)?,
            args: vec![engine.pool_size_option(POOL_BYTES)],
            cgroup_procs: Vec::new(),
        };
        let server = Server::start(&lab.environment, options)?;
        let running = Running::start(lab, &server, load)?;
        let mut wait = |seconds| {
            for _ in 0..seconds {
                sleep(Duration::from_secs(1));
                progress.second();
            }
        };
        wait(warm_up_s);
        let path = directory.join(format!("{name}.trace"));
        let _ = fs::remove_file(&path);
        server.execute(&format!("SET GLOBAL tidepool_page_trace_file = '{}'", path.display()))?;
        wait(record_s);
        let dropped = server.value(
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'TIDEPOOL_PAGE_TRACE_DROPPED'",
        )?;
        server.execute("SET GLOBAL tidepool_page_trace_file = ''")?;
        running.stop();
        server.stop()?;
        let trace = trace::read(&path)?;
        let small = small(&trace, SMALL_BYTES);
        write(&small, &directory.join(format!("{name}.small.trace")))?;
        tracing::info!(
            "{name}: {} requests for {} pages, {} dropped; small: {} requests for {} pages",
            trace.requests.len(),
            trace.distinct_pages(),
            dropped.unwrap_or_default(),
            small.requests.len(),
            small.distinct_pages(),
        );
    }
    Ok(())
}

/// A load at work.
struct Running {
    _sysbench: Option<Sysbench>,
    _dump: Option<DumpLoop>,
    tpcc: Option<tpcc::Load>,
    reads: Option<Reads>,
}

impl Running {
    fn start(lab: &Lab, server: &Server, load: Load) -> Result<Running> {
        let socket = server.socket();
        let selects = |database: &str, bytes, distribution| {
            let job = Job {
                script: "oltp_point_select".into(),
                database: database.into(),
                rows: rows(bytes),
                threads: CLIENTS,
                distribution,
            };
            Sysbench::start(socket, &job)
        };
        let mut running = Running { _sysbench: None, _dump: None, tpcc: None, reads: None };
        match load {
            Load::PointSelects(distribution) => {
                running._sysbench = Some(selects("large", POOL_BYTES * 4, distribution)?);
            }
            Load::Tpcc => {
                let options = tpcc::LoadOptions { terminals: CLIENTS, seed: 1 };
                let scale = tpcc::Scale::full(WAREHOUSES);
                running.tpcc = Some(tpcc::Load::start(socket, scale, options));
            }
            Load::BesideDump => {
                let hot = selects("hot", POOL_BYTES * 6 / 10, Distribution::Uniform)?;
                running._sysbench = Some(hot);
                running._dump = Some(DumpLoop::start(&lab.environment, socket, "large", None)?);
            }
            Load::TwoScans => {
                let scan = |database| format!("SELECT MAX(LENGTH(c)) FROM {database}.sbtest1");
                running.reads = Some(Reads::start(socket, vec![scan("one"), scan("two")])?);
            }
            Load::Loop => {
                let last = rows(POOL_BYTES * 3 / 2);
                let range = |first: u64| {
                    let end = first + 999;
                    format!(
                        "SELECT MAX(LENGTH(c)) FROM round.sbtest1 WHERE id BETWEEN {first} AND {end}"
                    )
                };
                let statements = (1..=last).step_by(1000).map(range).collect();
                running.reads = Some(Reads::start(socket, statements)?);
            }
        }
        Ok(running)
    }

    fn stop(self) {
        if let Some(load) = self.tpcc {
            load.finish();
        }
    }
}

/// Statements in a loop; ended when dropped.
struct Reads {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reads {
    fn start(socket: &Path, statements: Vec<String>) -> Result<Reads> {
        let mut conn = connect(socket, "")?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for statement in statements.iter().cycle() {
                if stopped.load(Ordering::Relaxed) || conn.query_drop(statement).is_err() {
                    return;
                }
            }
        });
        Ok(Reads { stop, thread: Some(thread) })
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write(trace: &Trace, path: &Path) -> Result<()> {
    let file = File::create(path).map_err(Error::at(path))?;
    trace.write_to(&mut BufWriter::new(file)).map_err(Error::at(path))
}

/// A large sample of the trace's pages that has no more than `bytes` in its file.
fn small(trace: &Trace, bytes: u64) -> Trace {
    let mut bound = trace.sample.bound();
    loop {
        let small = trace.sampled(Sample::of_bound(bound));
        if bound <= 1 || small.file_bytes() <= bytes {
            return small;
        }
        bound = bound / 4 * 3;
    }
}
