//! Page writes of real loads, recorded from outside of the server: what layouts of the page store
//! are compared on (`tidepool lab store-model`).
//!
//! Each load runs on a copy of its data. What was on disk before, and each batch of pages that the
//! server writes, goes to `<results>/writes/<name>.writes`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use mysql::prelude::Queryable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lab::{Lab, Settings};
use crate::load::sysbench::{Distribution, Job, Sysbench};
use crate::load::tables::{self, DataSet, Table};
use crate::load::tpcc;
use crate::progress::Progress;
use crate::server::{Server, ServerOptions, connect};
use crate::store_model::strace::Watch;
use crate::store_model::trace::{About, Image, Measurer, Writes};

use super::data::for_tidepool;

const WAREHOUSES: u32 = 8;
const TERMINALS: u32 = 16;
/// The pool for each warehouse: so small that most page writes are evictions, as on a server whose
/// disk is its bound.
const POOL_BYTES_PER_WAREHOUSE: u64 = 28 << 20;
/// The pool of all other loads.
const POOL_BYTES: u64 = 64 << 20;
/// Rows of the table that is updated: four times the pool.
const UPDATED_ROWS: u64 = 4 * POOL_BYTES / tables::ROW_BYTES;
/// Rows that are loaded.
const LOADED_ROWS: u64 = 3_000_000;
const SMALL_TABLES: u64 = 10_000;
/// Rows that go to the small tables while they are recorded, for each.
const SMALL_ROWS: u64 = 3;
const CLIENTS: u32 = 8;
const SECONDS: u32 = 300;
const QUICK_SECONDS: u32 = 20;

/// A load to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Tpcc,
    UpdateIndex(Distribution),
    Bulk,
    SmallTables,
}

const LOADS: [(&str, Load); 5] = [
    ("tpcc", Load::Tpcc),
    ("update-uniform", Load::UpdateIndex(Distribution::Uniform)),
    ("update-pareto", Load::UpdateIndex(Distribution::Pareto)),
    ("bulk-load", Load::Bulk),
    ("small-tables", Load::SmallTables),
];

impl Load {
    fn data(self, settings: &Settings) -> DataSet {
        match self {
            Load::Tpcc => DataSet::tpcc(warehouses(settings)),
            Load::UpdateIndex(_) => DataSet::one("updates", UPDATED_ROWS),
            Load::Bulk | Load::SmallTables => {
                DataSet { name: "empty".into(), tables: Vec::new(), warehouses: 0 }
            }
        }
    }

    fn args(self, settings: &Settings) -> Vec<String> {
        let pool = match self {
            Load::Tpcc => u64::from(warehouses(settings)) * POOL_BYTES_PER_WAREHOUSE,
            _ => POOL_BYTES,
        };
        let mut args = vec![Engine::Tidepool.pool_size_option(pool)];
        // So small a log that small tables are written though their pages would fit the pool.
        if self == Load::SmallTables {
            args.push(Engine::Tidepool.redo_option(16 << 20));
        }
        args
    }
}

fn warehouses(settings: &Settings) -> u32 {
    settings.load.warehouses.unwrap_or(WAREHOUSES)
}

/// The names of its cases.
pub fn case_names(_: &Settings) -> Vec<String> {
    LOADS.iter().map(|(name, _)| (*name).into()).collect()
}

/// The data that it needs.
pub fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    let wanted = LOADS.iter().filter(|(name, _)| settings.wants(name));
    for_tidepool(settings, wanted.map(|(_, load)| load.data(settings)).collect())
}

/// Records all loads.
///
/// # Errors
/// If a run can't begin, or `strace` can't watch the server.
pub fn run(lab: &Lab) -> Result<()> {
    if !lab.settings.engines.contains(&Engine::Tidepool) {
        return Err(Error::Missing("only Tidepool's page writes are recorded".into()));
    }
    let directory = lab.settings.out.join("writes");
    fs::create_dir_all(&directory).map_err(Error::at(&directory))?;
    let mut progress = Progress::new(LOADS.len() as u32 * seconds(&lab.settings));
    for (name, load) in LOADS.into_iter().filter(|(name, _)| lab.settings.wants(name)) {
        let from = lab.data(Engine::Tidepool, &load.data(&lab.settings), &mut progress)?;
        let copy = lab.environment.run_dir().join("writes");
        {
            let _lock = tables::lock(&from)?;
            tables::copy(&from, &copy)?;
        }
        let writes = record(lab, name, load, &copy, &mut progress)?;
        fs::remove_dir_all(&copy).map_err(Error::at(&copy))?;
        writes.save(&directory.join(format!("{name}.writes")))?;
        tracing::info!(
            "{name}: {} pages before, {} transactions, {} page writes in {} batches",
            writes.before.len(),
            writes.about.transactions,
            writes.page_writes(),
            writes.batches.len(),
        );
    }
    Ok(())
}

fn seconds(settings: &Settings) -> u32 {
    settings.seconds(if settings.quick { QUICK_SECONDS } else { SECONDS })
}

/// Runs one load on a data directory, and watches it.
fn record(
    lab: &Lab,
    name: &str,
    load: Load,
    data_dir: &Path,
    progress: &mut Progress,
) -> Result<Writes> {
    let data_dir = fs::canonicalize(data_dir).map_err(Error::at(data_dir))?;
    // The engine's own directory in that of the server.
    let engine_dir = data_dir.join("tidepool");
    let start = || {
        let options = ServerOptions {
            engine: Engine::Tidepool,
            data_dir: data_dir.clone(),
            args: load.args(&lab.settings),
            cgroup_procs: Vec::new(),
        };
        Server::start(&lab.environment, options)
    };
    if load == Load::SmallTables {
        let server = start()?;
        create_small_tables(&server)?;
        server.stop()?;
    }
    progress.say(&format!("writes {name}: measuring the pages that are there"));
    let before = images(&engine_dir)?;
    let server = start()?;
    let counters = counters(server.socket())?;
    let pid = server.pid().ok_or_else(|| Error::Missing("the server is gone".into()))?;
    let watch = Watch::start(pid, &engine_dir)?;
    progress.say(&format!("writes {name}: recording"));
    let transactions = put_on(lab, &server, load, progress)?;
    let grown = growth(&counters, self::counters(server.socket())?);
    // Loads with an end are recorded to the last page; of the others, the stop is no part.
    let batches = match load {
        Load::Tpcc | Load::UpdateIndex(_) => {
            let batches = watch.finish()?;
            server.stop()?;
            batches
        }
        Load::Bulk | Load::SmallTables => {
            server.stop()?;
            watch.finish()?
        }
    };
    let about = About { name: name.into(), transactions, counters: grown };
    Ok(Writes { about, before, batches })
}

/// Puts the load on; returns its transactions when it is over.
fn put_on(lab: &Lab, server: &Server, load: Load, progress: &mut Progress) -> Result<u64> {
    let mut wait = || {
        for _ in 0..seconds(&lab.settings) {
            sleep(Duration::from_secs(1));
            progress.second();
        }
    };
    match load {
        Load::Tpcc => {
            let options = tpcc::LoadOptions { terminals: TERMINALS, seed: 1 };
            let scale = tpcc::Scale::full(warehouses(&lab.settings));
            let load = tpcc::Load::start(server.socket(), scale, options);
            wait();
            let report = load.finish();
            match report.errors.first() {
                Some(error) => Err(Error::Missing(format!("TPC-C failed: {error}"))),
                None => Ok(report.total()),
            }
        }
        Load::UpdateIndex(distribution) => {
            let updates = || {
                let query = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
                             WHERE VARIABLE_NAME = 'COM_STMT_EXECUTE'";
                let value = server.value(query)?.and_then(|value| value.parse::<u64>().ok());
                Ok(value.unwrap_or(0))
            };
            let job = Job {
                script: "oltp_update_index".into(),
                database: "sbtest".into(),
                rows: UPDATED_ROWS,
                threads: CLIENTS,
                distribution,
            };
            let before = updates()?;
            let sysbench = Sysbench::start(server.socket(), &job)?;
            wait();
            drop(sysbench);
            Ok(updates()? - before)
        }
        Load::Bulk => {
            let rows = if lab.settings.quick { LOADED_ROWS / 10 } else { LOADED_ROWS };
            tables::fill(server, &Table::new("sbtest", rows), &mut |_| ())?;
            Ok(rows)
        }
        Load::SmallTables => insert_into_small_tables(server),
    }
}

/// The pages in the files of an engine's directory, as they are on disk.
fn images(engine_dir: &Path) -> Result<Vec<Image>> {
    let mut files: Vec<PathBuf> =
        ["system.tpd", "undo.tpd"].map(|name| engine_dir.join(name)).into();
    let tables = engine_dir.join("tables");
    if tables.exists() {
        let entries = fs::read_dir(&tables).map_err(Error::at(&tables))?;
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.retain(|path| path.is_file());
    files.sort();
    let mut measurer = Measurer::new()?;
    let mut images = Vec::new();
    for path in files {
        measurer.file(&path, &mut images)?;
    }
    Ok(images)
}

/// The engine's counters, and the transactions that the server has committed.
fn counters(socket: &Path) -> Result<BTreeMap<String, u64>> {
    let query = "SHOW GLOBAL STATUS WHERE Variable_name LIKE 'tidepool\\_%' \
                 OR Variable_name = 'Com_commit'";
    let rows: Vec<(String, String)> =
        connect(socket, "")?.query(query).map_err(Error::sql(query))?;
    let number = |(name, value): (String, String)| {
        let name = name.to_ascii_lowercase().replace("tidepool_", "");
        Some((name, value.parse().ok()?))
    };
    Ok(rows.into_iter().filter_map(number).collect())
}

/// By how much counters grew, of those that did.
fn growth(before: &BTreeMap<String, u64>, after: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = after.into_iter().map(|(name, value)| {
        let earlier = before.get(&name).copied().unwrap_or(0);
        (name, value.saturating_sub(earlier))
    });
    grown.filter(|(_, value)| *value > 0).collect()
}

/// Records the page writes of a server that runs already, under whatever load there is.
///
/// # Errors
/// If the server can't be reached or watched, or the file can't be written.
pub fn watch(socket: &Path, seconds: u32, out: &Path) -> Result<()> {
    let mut conn = connect(socket, "")?;
    let mut variable = |name: &str| {
        let query = format!("SELECT @@{name}");
        let value: Option<String> = conn.query_first(&query).map_err(Error::sql(&query))?;
        value.ok_or_else(|| Error::Missing(format!("the server has no {name}")))
    };
    let data_dir = PathBuf::from(variable("datadir")?);
    let pid_file = data_dir.join(variable("pid_file")?);
    let pid = fs::read_to_string(&pid_file).map_err(Error::at(&pid_file))?;
    let pid = pid.trim().parse().map_err(|_| Error::Missing(format!("no process id: {pid}")))?;
    let engine_dir = data_dir.join("tidepool");
    let engine_dir = fs::canonicalize(&engine_dir).map_err(Error::at(&engine_dir))?;
    let before = images(&engine_dir)?;
    let counters = counters(socket)?;
    let watch = Watch::start(pid, &engine_dir)?;
    sleep(Duration::from_secs(seconds.into()));
    let grown = growth(&counters, self::counters(socket)?);
    let batches = watch.finish()?;
    let name = out.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let transactions = grown.get("com_commit").copied().unwrap_or(0);
    let about = About { name, transactions, counters: grown };
    let writes = Writes { about, before, batches };
    tracing::info!("{} page writes in {} batches", writes.page_writes(), writes.batches.len());
    writes.save(out)
}

fn create_small_tables(server: &Server) -> Result<()> {
    server.execute("CREATE DATABASE small")?;
    let each = |conn: &mut mysql::Conn, number: u64| {
        conn.query_drop(format!(
            "CREATE TABLE t{number} (id BIGINT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(100) NOT NULL)"
        ))
    };
    side_by_side(server, SMALL_TABLES, each)
}

/// Some rows for each table, in no order.
fn insert_into_small_tables(server: &Server) -> Result<u64> {
    let inserts = SMALL_TABLES * SMALL_ROWS;
    side_by_side(server, inserts, |conn, number| {
        let table = StdRng::seed_from_u64(number).random_range(0..SMALL_TABLES);
        conn.query_drop(format!("INSERT INTO t{table} (v) VALUES ('{number} of {inserts}')"))
    })?;
    Ok(inserts)
}

/// Does something with each number below `count`, on several connections.
fn side_by_side(
    server: &Server,
    count: u64,
    each: impl Fn(&mut mysql::Conn, u64) -> mysql::Result<()> + Sync,
) -> Result<()> {
    let next = AtomicU64::new(0);
    let client = || {
        let mut conn = connect(server.socket(), "small")?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(());
            }
            each(&mut conn, number).map_err(Error::sql("small tables"))?;
        }
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let results = clients.into_iter().map(|client| client.join().expect("it doesn't panic"));
        results.collect::<Result<Vec<()>>>().map(drop)
    })
}
