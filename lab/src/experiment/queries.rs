//! Reports: the 22 queries of TPC-H by one client, in memory and with a pool of a quarter of the
//! data.
//!
//! The servers of all engines run at the same time with pools of the same size, and one query runs
//! at a time: each query goes round the engines in turns, so a machine that gets slower meets all
//! of them. The first turn warms up and does not count; a figure is the median of the others.
//!
//! At scale factor 1 each answer is compared with the published one, at others with the first
//! engine's. A query that takes longer than the limit is ended, and counts as not finished.

use std::collections::BTreeSet;
use std::time::Instant;

use mysql::prelude::Queryable;
use mysql::{Conn, Value};

use crate::engine::{Engine, Program};
use crate::error::{Error, Result};
use crate::lab::{Lab, Plan, Settings};
use crate::load::sysbench::{Distribution, Job};
use crate::load::tables::{self, DataSet};
use crate::load::tpch::answers::{self, Rows};
use crate::load::tpch::queries::{self, Query};
use crate::load::tpch::{DATABASE, Scale};
use crate::progress::Progress;
use crate::record::{Outcome, Record, statistics};
use crate::server::{Server, ServerOptions};

use super::data::for_all;

/// A query is ended after this.
const LIMIT_S: u64 = 300;
/// Turns that count, after the one that warms up.
const TURNS: usize = 3;
/// For the bar: a query's turn, roughly.
const QUERY_S: u32 = 3;
/// The numbers of the errors that say "it took too long" in MariaDB and MySQL.
const TIMEOUTS: [u16; 2] = [1969, 3024];

fn scale(settings: &Settings) -> Scale {
    if settings.quick { Scale { thousandths: 20 } } else { Scale::ONE }
}

/// The names of the cases, with the sizes of their pools.
fn cases(settings: &Settings) -> [(&'static str, u64); 2] {
    let data = scale(settings).size_bytes();
    [("in memory", 2 * data), ("a pool of a quarter", (data / 4).max(16 << 20))]
}

/// The names of the cases.
pub(super) fn case_names(settings: &Settings) -> Vec<String> {
    cases(settings).map(|(name, _)| name.to_string()).to_vec()
}

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    for_all(settings, &[DataSet::tpch(scale(settings))])
}

/// The figure that has a query's seconds.
pub(crate) fn figure(query: usize) -> String {
    format!("q{query:02}_s")
}

/// Runs the experiment.
///
/// # Errors
/// If a server does not start or dies, or a statement fails for another reason than its time.
pub fn run(lab: &Lab) -> Result<()> {
    let settings = &lab.settings;
    let scale = scale(settings);
    let mut dirs = Vec::new();
    let mut loading = Progress::new(1);
    for &engine in &settings.engines {
        dirs.push((engine, lab.data(engine, &DataSet::tpch(scale), &mut loading)?));
    }
    drop(loading);
    lab.begin("queries")?;
    let wanted = || cases(settings).into_iter().filter(|(name, _)| settings.wants(name));
    let statements = wanted().count() * queries::COUNT * (1 + TURNS) * dirs.len();
    let mut progress = Progress::new(statements as u32 * QUERY_S);
    for (name, pool_bytes) in wanted() {
        let mut locks = Vec::new();
        let mut sides = Vec::new();
        for (engine, dir) in &dirs {
            locks.push(tables::lock(dir)?);
            let mut plan = Plan::new("queries", *engine, dir, job(scale));
            plan.scenario = name.into();
            plan.args = vec![engine.pool_size_option(pool_bytes)];
            sides.push(Side::start(lab, &plan)?);
        }
        for query in queries::all(scale) {
            run_query(&query, scale, &mut sides, name, &mut progress)?;
        }
        for side in sides {
            lab.keep(&side.finish()?)?;
        }
    }
    Ok(())
}

/// For the record: the load is not sysbench's.
fn job(scale: Scale) -> Job {
    Job {
        script: format!("tpch, scale factor {}", scale.factor()),
        database: DATABASE.into(),
        rows: u64::from(scale.thousandths) * 6000,
        threads: 1,
        distribution: Distribution::Uniform,
    }
}

/// All turns of a query on all engines.
fn run_query(
    query: &Query,
    scale: Scale,
    sides: &mut [Side],
    case: &str,
    progress: &mut Progress,
) -> Result<()> {
    let mut expected = (scale == Scale::ONE).then(|| answers::published(query.number));
    let mut times = vec![Vec::new(); sides.len()];
    for turn in 0..=TURNS {
        for at in 0..sides.len() {
            // The one that was second is first in the next turn.
            let at = (at + turn) % sides.len();
            let side = &mut sides[at];
            if side.unfinished.contains(&query.number) {
                continue;
            }
            progress.say(&format!(
                "queries {}: {case}, query {}",
                side.engine().key(),
                query.number
            ));
            let Some((rows, took_s)) = side.run(query)? else {
                side.unfinished.push(query.number);
                continue;
            };
            let rows = answers::compared(query.number, rows);
            (0..QUERY_S).for_each(|_| progress.second());
            if turn > 0 {
                times[at].push(took_s);
            }
            let expected = expected.get_or_insert_with(|| rows.clone());
            if let Some(difference) = answers::difference(query.number, &rows, expected) {
                let number = query.number;
                tracing::error!("{} query {number}: {difference}", side.engine().key());
                side.wrong.insert(number);
            }
        }
    }
    for (side, times) in sides.iter_mut().zip(times) {
        if !times.is_empty() && !side.unfinished.contains(&query.number) {
            let median = statistics::median(times);
            side.record.summary.insert(figure(query.number), median);
        }
    }
    Ok(())
}

/// An engine's server, and what it has done so far.
struct Side {
    server: Server,
    conn: Conn,
    record: Record,
    /// The numbers of queries that were ended.
    unfinished: Vec<usize>,
    /// The numbers of queries with another answer than the expected one, in any turn.
    wrong: BTreeSet<usize>,
}

impl Side {
    fn start(lab: &Lab, plan: &Plan) -> Result<Side> {
        let mut record = plan.record(&lab.settings);
        let options = ServerOptions {
            engine: plan.engine,
            data_dir: plan.data_dir.clone(),
            args: plan.args.clone(),
            cgroup_procs: Vec::new(),
        };
        let server = Server::start(&lab.environment, options)?;
        record.server_version = server.value("SELECT VERSION()")?.unwrap_or_default();
        let mut conn = server.connect(DATABASE)?;
        let limit = match plan.engine.program() {
            Program::MySql => format!("SET SESSION max_execution_time = {}", LIMIT_S * 1000),
            _ => format!("SET SESSION max_statement_time = {LIMIT_S}"),
        };
        conn.query_drop(&limit).map_err(Error::sql(&limit))?;
        Ok(Side { server, conn, record, unfinished: Vec::new(), wrong: BTreeSet::new() })
    }

    fn engine(&self) -> Engine {
        self.server.options().engine
    }

    /// Its rows and seconds; nothing if it took too long.
    fn run(&mut self, query: &Query) -> Result<Option<(Rows, f64)>> {
        for statement in &query.before {
            self.conn.query_drop(statement).map_err(Error::sql(statement))?;
        }
        let begin = Instant::now();
        let found: mysql::Result<Vec<mysql::Row>> = self.conn.query(&query.statement);
        let took_s = begin.elapsed().as_secs_f64();
        for statement in &query.after {
            self.conn.query_drop(statement).map_err(Error::sql(statement))?;
        }
        match found {
            Ok(rows) => Ok(Some((rows.into_iter().map(text).collect(), took_s))),
            Err(mysql::Error::MySqlError(error)) if TIMEOUTS.contains(&error.code) => Ok(None),
            Err(error) => Err(Error::sql(&query.statement)(error)),
        }
    }

    fn finish(mut self) -> Result<Record> {
        drop(self.conn);
        self.server.stop()?;
        let summary = &mut self.record.summary;
        let seconds: f64 =
            (1..=queries::COUNT).filter_map(|query| summary.get(&figure(query))).sum();
        // A query that was ended took so long at least.
        let seconds = seconds + self.unfinished.len() as f64 * LIMIT_S as f64;
        summary.insert("queries_s".into(), seconds);
        summary.insert("queries_unfinished".into(), self.unfinished.len() as f64);
        summary.insert("wrong_answers".into(), self.wrong.len() as f64);
        self.record.outcome = Outcome::Finished;
        tracing::info!("queries {}: {}: {seconds:.1} s", self.record.label(), self.record.scenario);
        Ok(self.record)
    }
}

/// A row's cells as text; NULL as the word.
fn text(row: mysql::Row) -> Vec<String> {
    let cell = |value| match value {
        Value::NULL => "NULL".to_string(),
        Value::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => other.as_sql(true),
    };
    row.unwrap().into_iter().map(cell).collect()
}
