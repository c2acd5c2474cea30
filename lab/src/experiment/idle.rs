//! What looking after itself costs when there is nothing to do: in-memory point selects, with governor, guard and
//! advisor on and off.
//!
//! On and off take turns, in the order off-on-on-off, so that a drift of the machine meets both alike.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lab::{Lab, Plan, Settings};
use crate::load::sysbench::{Distribution, Job};
use crate::load::tables::DataSet;
use crate::progress::Progress;

use super::{for_tidepool, resize::read_all, summarise};

/// Rows of a table that fits any pool.
const ROWS: u64 = 500_000;

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    for_tidepool(settings, vec![DataSet::one("idle", ROWS)])
}

/// Runs the experiment. It is about Tidepool only.
///
/// # Errors
/// If a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    if !lab.settings.engines.contains(&Engine::Tidepool) {
        return Err(Error::Missing("only Tidepool has a governor".into()));
    }
    let engine = Engine::Tidepool;
    let rounds = if lab.settings.quick { 2 } else { 4 };
    let (warm_up_s, measure_s) = if lab.settings.quick { (3, 8) } else { (4, 12) };
    let mut progress = Progress::new(rounds * 2 * (warm_up_s + measure_s));
    let dir = lab.data(engine, &DataSet::one("idle", ROWS), &mut progress)?;
    lab.begin("idle")?;
    for round in 0..rounds {
        for on in if round % 2 == 0 { [false, true] } else { [true, false] } {
            let job = Job {
                script: "oltp_point_select".into(),
                database: "sbtest".into(),
                rows: ROWS,
                threads: 8,
                distribution: Distribution::Uniform,
            };
            let mut plan = Plan::new("idle", engine, &dir, job);
            plan.scenario = format!("round {}", round + 1);
            plan.variant = if on { "on" } else { "off" }.into();
            plan.args = if on {
                vec![engine.pool_size_option(0)]
            } else {
                vec![
                    engine.pool_size_option(512 << 20),
                    "--loose-tidepool-memory-guard=OFF".into(),
                    "--loose-tidepool-cache-advice=OFF".into(),
                ]
            };
            plan.first_statement = Some(read_all("sbtest.sbtest1", ROWS));
            (plan.warm_up_s, plan.measure_s) = (warm_up_s, measure_s);
            let mut record = lab.run(&plan, &mut progress, |_, _| Ok(()))?;
            summarise(&mut record);
            lab.keep(&record)?;
        }
    }
    Ok(())
}
