//! What a server is worth as it is installed (the fifth article): TPC-C at two sizes of memory,
//! with every engine's defaults and with what a person would set.
//!
//! The machine that the experiment pretends to have is a memory cgroup without swap space, once
//! with all of `--memory` and once with a quarter of it (256 MiB at least); the data is about twice
//! as large as the larger pool. Every run has a copy of the same freshly loaded data, which is not
//! in the page cache, so that no run profits from an earlier one, and all that a server caches is
//! charged to its cgroup, in its own pool or in the kernel's cache. After the run the server is
//! stopped, or was killed; it is started once more outside the cgroup, and must hold all that it
//! acknowledged.
//!
//! "Tuned" is the advice that each server's documentation gives: see `cases`. The sizes of defaults
//! are left as they are: 128 MiB are a larger share of these small machines than of real ones,
//! which favours the defaults of others.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::engine::{Engine, Program};
use crate::error::{Error, Result};
use crate::lab::{Lab, Plan, Settings};
use crate::load::sysbench::{Distribution, Job, Second};
use crate::load::tables::{self, DataSet};
use crate::load::tpcc::{self, Load, LoadOptions, Report, Scale, consistency};
use crate::machine::cgroup::Cgroup;
use crate::progress::Progress;
use crate::record::{Outcome, Record, statistics};
use crate::sample::Sampler;
use crate::server::{Server, ServerOptions};

use super::data::for_all;
use super::summarise;

/// The engines that take part.
pub(super) const ENGINES: [Engine; 5] =
    [Engine::Tidepool, Engine::InnoDb, Engine::MyRocks, Engine::Postgres, Engine::MySql];

const TERMINALS: u32 = 16;
/// A warehouse with its orders, on the disk.
const WAREHOUSE_BYTES: u64 = 100 << 20;
/// A machine smaller than this has no room for a server besides any pool.
const LEAST_MEMORY: u64 = 256 << 20;
/// What a person leaves to the rest of a server and its connections.
const RESERVE_BYTES: u64 = 128 << 20;

/// The name of the variant that a person has tuned, in records.
pub(crate) const TUNED: &str = "tuned";
/// The name of Tidepool's default.
pub(crate) const GOVERNED: &str = "governed";

/// The sizes of memory, the larger first; a quick run takes the smaller only.
fn memories(settings: &Settings) -> Vec<u64> {
    let least = (settings.memory_bytes / 4).max(LEAST_MEMORY);
    if settings.quick { vec![least] } else { vec![settings.memory_bytes, least] }
}

/// Data of about twice the larger pool; a quick run takes a quarter of it, since each run copies
/// and checks it.
fn warehouses(settings: &Settings) -> u32 {
    if let Some(chosen) = settings.load.warehouses {
        return chosen;
    }
    let whole = 2 * tuned_pool(settings.memory_bytes) / WAREHOUSE_BYTES;
    (if settings.quick { whole / 4 } else { whole }).max(2) as u32
}

/// Three quarters of the memory, unless that leaves too little for the rest.
fn tuned_pool(memory_bytes: u64) -> u64 {
    let rest = memory_bytes.saturating_sub(RESERVE_BYTES);
    (memory_bytes / 4 * 3).min(rest).max(memory_bytes / 4)
}

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    for_all(settings, &[DataSet::tpcc(warehouses(settings))])
}

/// How an engine is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Case {
    variant: &'static str,
    args: Vec<String>,
}

/// The ways in which an engine is set up for a machine with this much memory, its default first.
fn cases(engine: Engine, memory_bytes: u64) -> Vec<Case> {
    let pool = tuned_pool(memory_bytes);
    let with_redo = vec![engine.pool_size_option(pool), engine.redo_option(memory_bytes / 2)];
    let case = |variant, args| Case { variant, args };
    match engine {
        Engine::Tidepool => vec![case(GOVERNED, Vec::new()), case(TUNED, with_redo)],
        // MariaDB has no option for a dedicated server; O_DIRECT is its default.
        Engine::InnoDb => vec![case("default", Vec::new()), case(TUNED, with_redo)],
        Engine::MySql => {
            let mut tuned = with_redo;
            tuned.push("--innodb-flush-method=O_DIRECT".into());
            let dedicated = vec!["--innodb-dedicated-server=ON".into()];
            vec![case("default", Vec::new()), case(TUNED, tuned), case("dedicated", dedicated)]
        }
        Engine::MyRocks => {
            let memtables = memory_bytes / 16;
            let tuned = vec![
                engine.pool_size_option(pool.saturating_sub(2 * memtables)),
                format!("--rocksdb-db-write-buffer-size={memtables}"),
                "--rocksdb-use-direct-reads=ON".into(),
                "--rocksdb-use-direct-io-for-flush-and-compaction=ON".into(),
            ];
            vec![case("default", Vec::new()), case(TUNED, tuned)]
        }
        // A quarter for itself, the rest for the kernel's cache, which it reads through.
        Engine::Postgres => {
            let tuned = vec![
                engine.pool_size_option(memory_bytes / 4),
                engine.redo_option(memory_bytes),
                format!("--effective_cache_size={}kB", (memory_bytes / 4 * 3) >> 10),
                "--checkpoint_timeout=900".into(),
                "--random_page_cost=1.1".into(),
            ];
            vec![case("default", Vec::new()), case(TUNED, tuned)]
        }
    }
}

/// Runs the experiment. An engine that is not there is said, and left out.
///
/// # Errors
/// If the machine can't do it, no engine is there, or a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    lab.need_memory_cgroups()?;
    let settings = &lab.settings;
    let scale = Scale::full(warehouses(settings));
    let (warm_up_s, measure_s) = if settings.quick { (3, 6) } else { (30, 60) };
    let measure_s = settings.seconds(measure_s);
    let mut prepared = Vec::new();
    let mut loading = Progress::new(1);
    for &engine in &settings.engines {
        match lab.data(engine, &DataSet::tpcc(scale.warehouses), &mut loading) {
            Ok(dir) => prepared.push((engine, dir)),
            Err(Error::Missing(what)) => eprintln!("defaults: {} left out: {what}", engine.key()),
            Err(error) => return Err(error),
        }
    }
    drop(loading);
    if prepared.is_empty() {
        return Err(Error::Missing("none of the engines is there".into()));
    }
    lab.begin("defaults")?;
    let runs: usize = prepared.iter().map(|(engine, _)| cases(*engine, 0).len()).sum();
    let memories = memories(settings);
    let runs = (memories.len() * runs) as u32;
    let mut progress = Progress::new(runs * (warm_up_s + measure_s));
    for memory in memories {
        // One engine after the other within a variant: a slow drift of the machine meets all.
        for number in 0..3 {
            for (engine, dir) in &prepared {
                let Some(case) = cases(*engine, memory).into_iter().nth(number) else { continue };
                let mut plan = Plan::new("defaults", *engine, dir, job(&scale, settings));
                plan.scenario = format!("{} MiB", memory >> 20);
                plan.variant = case.variant.into();
                plan.args = case.args;
                plan.memory_limit = Some(memory);
                (plan.warm_up_s, plan.measure_s) = (warm_up_s, measure_s);
                let record = run_case(lab, &plan, memory, scale, &mut progress)?;
                lab.keep(&record)?;
            }
        }
    }
    Ok(())
}

/// For the record: the load is not sysbench's.
fn job(scale: &Scale, settings: &Settings) -> Job {
    Job {
        script: format!("tpcc, {} warehouses", scale.warehouses),
        database: consistency::DATABASE.into(),
        rows: u64::from(scale.warehouses),
        threads: settings.threads(TERMINALS),
        distribution: Distribution::Uniform,
    }
}

/// One run on a copy of the data, and what the server holds afterwards.
fn run_case(
    lab: &Lab,
    plan: &Plan,
    memory: u64,
    scale: Scale,
    progress: &mut Progress,
) -> Result<Record> {
    progress.say(&format!("defaults {} {}: {}", plan.engine.key(), plan.variant, plan.scenario));
    let copy = lab.environment.run_dir().join("defaults");
    {
        let _lock = tables::lock(&plan.data_dir)?;
        tables::copy(&plan.data_dir, &copy)?;
        tables::drop_from_cache(&plan.data_dir)?;
    }
    tables::drop_from_cache(&copy)?;
    let mut record = plan.record(&lab.settings);
    let group = lab.memory_cgroup(memory)?;
    let options = ServerOptions {
        engine: plan.engine,
        data_dir: copy.clone(),
        args: plan.args.clone(),
        cgroup_procs: vec![group.procs()],
    };
    let report = match Server::start(&lab.environment, options) {
        Ok(server) => under_load(server, plan, &group, scale, &mut record, progress)?,
        Err(error) => {
            tracing::warn!("{error}");
            record.outcome = if group.memory_use().oom_kills > 0 {
                Outcome::OomKilled
            } else {
                Outcome::Failed("the server did not start".into())
            };
            Report::default()
        }
    };
    record.summary.insert("oom_kills".into(), group.memory_use().oom_kills as f64);
    drop(group);
    let wrong = check(lab, plan.engine, &copy, &scale, &report)?;
    for violation in wrong.iter().take(10) {
        tracing::error!("{} {}: {violation}", plan.engine.key(), plan.variant);
    }
    record.summary.insert("violations".into(), wrong.len() as f64);
    std::fs::remove_dir_all(&copy).map_err(Error::at(&copy))?;
    summarise(&mut record);
    if !plan.engine.publishes_pool() {
        record.summary.remove("pool_mib");
    }
    if plan.engine.program() == Program::Postgres {
        // The kernel counts the server's first process only, and others do the work.
        for name in ["disk_read_mb_s", "disk_write_mb_s", "cpu_s_per_s"] {
            record.summary.remove(name);
        }
    }
    Ok(record)
}

/// Keeps the server busy, a point a second, and stops it.
fn under_load(
    mut server: Server,
    plan: &Plan,
    group: &Cgroup,
    scale: Scale,
    record: &mut Record,
    progress: &mut Progress,
) -> Result<Report> {
    record.server_version = server.value("SELECT VERSION()")?.unwrap_or_default();
    let mut sampler = Sampler::new(&server, Some(group));
    let connector = server.connector(consistency::DATABASE);
    let load =
        Load::start_on(connector, scale, LoadOptions { terminals: plan.job.threads, seed: 1 });
    let mut last = Instant::now();
    for at_s in 1 - i64::from(plan.warm_up_s)..=i64::from(plan.measure_s) {
        sleep(Duration::from_secs(1).saturating_sub(last.elapsed()));
        let (seconds, done) = (last.elapsed().as_secs_f64(), load.take());
        last = Instant::now();
        record.series.push(sampler.point(at_s as f64, &second(done, seconds), 0));
        progress.second();
        if !server.is_running() || !load.is_running() {
            record.outcome = Outcome::Failed("the load ended early".into());
            break;
        }
    }
    let report = load.finish();
    let killed = group.memory_use().oom_kills > 0;
    if let Some(error) = report.errors.first() {
        record.outcome = Outcome::Failed(error.clone());
    }
    if killed {
        record.outcome = Outcome::OomKilled;
    }
    let retried: u64 = report.retried.values().sum();
    record.summary.insert("retried".into(), retried as f64);
    drop(sampler);
    if server.is_running()
        && let Err(error) = server.stop()
    {
        // Killed while it wrote its pages, perhaps; the check will see whether that did harm.
        tracing::warn!("{error}");
    }
    Ok(report)
}

/// A second of the load as sysbench would report it.
fn second(done: tpcc::load::Done, seconds: f64) -> Second {
    let seconds = seconds.max(0.05);
    Second {
        tps: done.latencies_ms.len() as f64 / seconds,
        qps: done.statements as f64 / seconds,
        p95_ms: statistics::quantile(done.latencies_ms, 0.95),
        errors_per_s: 0.0,
    }
}

/// Starts a server on the data, outside of any cgroup, and returns all that is wrong there.
fn check(
    lab: &Lab,
    engine: Engine,
    dir: &Path,
    scale: &Scale,
    report: &Report,
) -> Result<Vec<String>> {
    let args = vec![engine.pool_size_option(512 << 20)];
    let options = ServerOptions { engine, data_dir: dir.into(), args, cgroup_procs: Vec::new() };
    let server = match Server::start(&lab.environment, options) {
        Ok(server) => server,
        Err(error) => return Ok(vec![format!("no start after the run: {error}")]),
    };
    let mut client = server.client(consistency::DATABASE)?;
    let error = || Error::statement("the conditions of TPC-C");
    let mut wrong = consistency::violations(client.as_mut()).map_err(error())?;
    let lost = consistency::lost_or_phantom(client.as_mut(), scale, report).map_err(error())?;
    wrong.extend(lost);
    drop(client);
    server.stop()?;
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_person_takes_three_quarters_and_less_where_the_rest_would_not_fit() {
        assert_eq!(tuned_pool(8 * GIB), 6 * GIB);
        assert_eq!(tuned_pool(GIB), 768 << 20);
        assert_eq!(tuned_pool(256 << 20), 128 << 20);
    }

    #[test]
    fn every_engine_has_its_default_first_and_a_tuned_set_up() {
        for engine in ENGINES {
            let cases = cases(engine, GIB);
            assert_eq!(cases[0].args, Vec::<String>::new(), "{engine:?}");
            assert_eq!(cases[1].variant, TUNED);
            let size = cases[1].args.iter().any(|arg| {
                arg.contains("pool-size") || arg.contains("cache-size") || arg.contains("buffers")
            });
            assert!(size, "{engine:?}: {cases:?}");
            assert_eq!(cases.len() > 2, engine == Engine::MySql);
        }
    }

    fn settings(memory_bytes: u64) -> Settings {
        Settings { engines: ENGINES.to_vec(), memory_bytes, ..Settings::usual() }
    }

    #[test]
    fn the_smaller_machine_has_a_quarter_but_room_for_a_server() {
        assert_eq!(memories(&settings(4 * GIB)), [4 * GIB, GIB]);
        assert_eq!(memories(&settings(GIB / 2)), [GIB / 2, GIB / 4]);
        assert_eq!(memories(&Settings { quick: true, ..settings(4 * GIB) }), [GIB]);
    }

    #[test]
    fn the_data_is_twice_the_larger_pool() {
        let mut settings = settings(GIB);
        assert_eq!(warehouses(&settings), 15);
        assert_eq!(data(&settings).len(), ENGINES.len());
        settings.quick = true;
        assert_eq!(warehouses(&settings), 3);
        settings.load.warehouses = Some(40);
        assert_eq!(warehouses(&settings), 40);
        assert_eq!(data(&settings)[0].1.warehouses, 40);
        settings.load.threads = Some(32);
        assert_eq!(job(&Scale::full(40), &settings).threads, 32);
    }

    #[test]
    fn a_second_is_what_was_done_by_the_time_it_took() {
        let done = tpcc::load::Done { statements: 300, latencies_ms: vec![2.0; 10] };
        let second = second(done, 2.0);
        assert_eq!((second.tps, second.qps, second.p95_ms), (5.0, 150.0, 2.0));
    }
}
