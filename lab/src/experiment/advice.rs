//! The advice: the hit ratio that `TIDEPOOL_CACHE_ADVICE` predicts for other sizes of the pool,
//! against the hit ratio of a pool of that size.
//!
//! One run at the present size gives the predictions for ¼, ½, 1, 2 and 4 times that size; then one
//! run at each of these sizes measures. Rows chosen uniformly, by Pareto, and as TPC-C does.

use std::thread::sleep;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;

use crate::engine::{Engine, PoolStatus};
use crate::error::{Error, Result};
use crate::lab::{Lab, Plan, Settings};
use crate::load::sysbench::{Distribution, Job, Sysbench};
use crate::load::tables::DataSet;
use crate::load::tpcc;
use crate::progress::Progress;
use crate::server::{Server, ServerOptions};

use super::data::{for_tidepool, tables};

/// The sizes, in quarters of the present one. The present one is first: its run predicts the
/// others.
const QUARTERS: [u64; 5] = [4, 1, 2, 8, 16];
const CLIENTS: u32 = 8;
/// What is asked of the server.
const ADVICE: &str = "SELECT SIZE_FACTOR, PREDICTED_HIT_RATIO FROM information_schema.TIDEPOOL_CACHE_ADVICE ORDER BY SIZE_FACTOR";

/// What keeps the server busy.
enum Work {
    Sysbench(Job),
    Tpcc(tpcc::Scale),
}

/// A prediction: size relative to the present one, hit ratio from 0 to 1.
type Advice = Vec<(f64, f64)>;

/// Their tables are about four times the present size of the pool.
fn warehouses(memory_bytes: u64) -> u32 {
    ((memory_bytes >> 20) / 250).max(1) as u32
}

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    let mut data = vec![tables(settings.memory_bytes)];
    if !settings.quick {
        data.push(DataSet::tpcc(warehouses(settings.memory_bytes)));
    }
    for_tidepool(settings, data)
}

/// Runs the experiment. It is about Tidepool only: no other engine gives such advice.
///
/// # Errors
/// If a run can't begin, or the server has no advice.
pub fn run(lab: &Lab) -> Result<()> {
    let settings = &lab.settings;
    if !settings.engines.contains(&Engine::Tidepool) {
        return Err(Error::Missing("only Tidepool gives advice".into()));
    }
    let engine = Engine::Tidepool;
    let memory = settings.memory_bytes;
    let present_bytes = memory / 8;
    let large = tables(memory);
    // Eight times the present size: of the largest size, a half.
    let rows = large.tables[0].rows * 10 / 32;
    let threads = settings.threads(CLIENTS);
    let job = |distribution| Job::point_selects(rows, threads, distribution);
    let warehouses = warehouses(memory);
    let mut cases = vec![
        ("uniform", large.clone(), Work::Sysbench(job(Distribution::Uniform))),
        ("pareto", large.clone(), Work::Sysbench(job(Distribution::Pareto))),
    ];
    if !settings.quick {
        let scale = tpcc::Scale::full(warehouses);
        cases.push(("TPC-C", DataSet::tpcc(warehouses), Work::Tpcc(scale)));
    }
    let (warm_up_s, measure_s) = if settings.quick { (6, 8) } else { (10, 10) };
    let measure_s = settings.seconds(measure_s);
    let runs = (cases.len() * QUARTERS.len()) as u32;
    let mut progress = Progress::new(runs * (warm_up_s + measure_s));
    lab.begin("advice")?;
    for (name, data, work) in &cases {
        let dir = lab.data(engine, data, &mut progress)?;
        let mut predicted = Advice::new();
        for quarters in QUARTERS {
            let size_bytes = present_bytes / 4 * quarters;
            let job = match work {
                Work::Sysbench(job) => job.clone(),
                Work::Tpcc(_) => Job { script: "tpcc".into(), ..job(Distribution::Uniform) },
            };
            let mut plan = Plan::new("advice", engine, &dir, job);
            plan.scenario = format!("{name}, {} × the size", quarters as f64 / 4.0);
            plan.args = vec![engine.pool_size_option(size_bytes)];
            (plan.warm_up_s, plan.measure_s) = (warm_up_s, measure_s);
            progress.say(&format!("advice: {}", plan.scenario));
            let mut record = plan.record(settings);
            let options = ServerOptions {
                engine,
                data_dir: dir.clone(),
                args: plan.args.clone(),
                cgroup_procs: Vec::new(),
            };
            let server = Server::start(&lab.environment, options)?;
            record.server_version = server.value("SELECT VERSION()")?.unwrap_or_default();
            let measured = hit_ratio(&server, work, &plan, &mut progress)?;
            if quarters == 4 {
                predicted = server.connect("")?.query(ADVICE).map_err(|error| {
                    Error::Missing(format!("the server has no advice: {error}"))
                })?;
            }
            server.stop()?;
            let prediction = at_size(&predicted, quarters as f64 / 4.0).ok_or_else(|| {
                Error::Missing(format!(
                    "the advice has no size near {quarters} quarters: {predicted:?}"
                ))
            })?;
            let figures = [
                ("size_factor", quarters as f64 / 4.0),
                ("hit_ratio_predicted", prediction),
                ("hit_ratio_measured", measured),
                ("error", (prediction - measured).abs()),
            ];
            record.summary.extend(figures.map(|(name, value)| (name.to_string(), value)));
            tracing::info!("{}: predicted {prediction:.3}, measured {measured:.3}", plan.scenario);
            lab.keep(&record)?;
        }
    }
    Ok(())
}

/// Runs a load, and returns the hit ratio of the measured seconds.
fn hit_ratio(server: &Server, work: &Work, plan: &Plan, progress: &mut Progress) -> Result<f64> {
    let socket = server.socket();
    let terminals = tpcc::LoadOptions { terminals: plan.job.threads, seed: 1 };
    let (sysbench, tpcc) = match work {
        Work::Sysbench(job) => (Some(Sysbench::start(socket, job)?), None),
        Work::Tpcc(scale) => (None, Some(tpcc::Load::start(socket, *scale, terminals))),
    };
    let mut wait = |seconds: u32| {
        let start = Instant::now();
        for second in 1..=seconds {
            sleep((start + Duration::from_secs(u64::from(second))) - Instant::now());
            progress.second();
        }
    };
    wait(plan.warm_up_s);
    let before = server.pool_status()?;
    wait(plan.measure_s);
    let after = server.pool_status()?;
    drop(sysbench);
    if let Some(errors) = tpcc.map(|load| load.finish().errors)
        && let Some(error) = errors.first()
    {
        return Err(Error::Program { program: "TPC-C".into(), message: error.clone() });
    }
    hits(&before, &after).ok_or_else(|| Error::Missing("the load asked for no page".into()))
}

fn hits(before: &PoolStatus, after: &PoolStatus) -> Option<f64> {
    let requests = after.read_requests.checked_sub(before.read_requests)?;
    let reads = after.reads.checked_sub(before.reads)?;
    (requests > 0).then(|| 1.0 - reads as f64 / requests as f64)
}

/// The predicted hit ratio at a size, between the two nearest of the advice.
fn at_size(advice: &Advice, wanted: f64) -> Option<f64> {
    let exact = |(size, ratio): &(f64, f64)| ((size / wanted - 1.0).abs() < 0.02).then_some(*ratio);
    if let Some(ratio) = advice.iter().find_map(exact) {
        return Some(ratio);
    }
    let above = advice.iter().position(|(size, _)| *size >= wanted)?;
    let (low, high) = (advice.get(above.checked_sub(1)?)?, advice[above]);
    Some(low.1 + (high.1 - low.1) * (wanted - low.0) / (high.0 - low.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_interpolated_and_not_extrapolated() {
        let advice = vec![(100.0, 0.2), (200.0, 0.6)];
        assert_eq!(at_size(&advice, 101.0), Some(0.2));
        assert!((at_size(&advice, 150.0).unwrap() - 0.4).abs() < 1e-9);
        assert_eq!(at_size(&advice, 300.0), None);
        assert_eq!(at_size(&advice, 50.0), None);
    }

    #[test]
    fn a_hit_is_a_request_without_a_read() {
        let status =
            |read_requests, reads| PoolStatus { read_requests, reads, ..PoolStatus::default() };
        assert_eq!(hits(&status(100, 10), &status(300, 60)), Some(0.75));
        assert_eq!(hits(&status(100, 10), &status(100, 10)), None);
    }
}
