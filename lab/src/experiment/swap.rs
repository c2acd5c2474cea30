//! The oversized pool (the first two articles): a pool of up to three times the memory that there is.
//!
//! A memory cgroup, a swap file of twice its size, a table of 3.7 times its size, 16 threads; point selects and updates
//! of a column without an index; rows chosen uniformly and by Pareto. Sizes are taken in turn, and engines within a
//! size, so that a slow drift of the machine meets all of them.

use crate::engine::Engine;
use crate::error::Result;
use crate::lab::{Lab, Plan, Settings};
use crate::load::sysbench::{Distribution, Job};
use crate::load::tables::{DataSet, Table};
use crate::progress::Progress;

use super::{for_all, sideload, summarise};

/// Rows of the table for each GiB of memory.
const ROWS_PER_GIB: u64 = 16_000_000;
const GIB: u64 = 1 << 30;

/// Rows of this experiment's table.
fn rows(memory_bytes: u64) -> u64 {
    (u128::from(memory_bytes) * u128::from(ROWS_PER_GIB) / u128::from(GIB)) as u64
}

/// The data of most experiments: the large table, which is this one's, and the resident ones of `sideload`.
pub(super) fn tables(memory_bytes: u64) -> DataSet {
    let mut tables = vec![Table::new("sbtest", rows(memory_bytes))];
    tables.extend(sideload::resident_tables(memory_bytes));
    DataSet { name: "tables".into(), tables, warehouses: 0 }
}

/// What the experiment needs.
pub(super) fn data(settings: &Settings) -> Vec<(Engine, DataSet)> {
    for_all(settings, &[tables(settings.memory_bytes)])
}

/// Percent of the memory; 0 is "governed". Other engines have nothing of that kind, and at three times the memory they
/// only die once more.
fn percents(engine: Engine, quick: bool) -> &'static [u64] {
    match (engine, quick) {
        (Engine::Tidepool, false) => &[0, 75, 100, 150, 300],
        (Engine::Tidepool, true) => &[0, 75, 150],
        (Engine::InnoDb, false) => &[75, 100, 150],
        (Engine::InnoDb, true) => &[75, 150],
    }
}

fn plans(lab: &Lab, progress: &mut Progress) -> Result<Vec<Plan>> {
    let settings = &lab.settings;
    let memory = settings.memory_bytes;
    let data = tables(memory);
    let cases: &[(&str, Distribution)] = if settings.quick {
        &[("oltp_point_select", Distribution::Uniform)]
    } else {
        &[
            ("oltp_point_select", Distribution::Uniform),
            ("oltp_point_select", Distribution::Pareto),
            ("oltp_update_non_index", Distribution::Uniform),
            ("oltp_update_non_index", Distribution::Pareto),
        ]
    };
    let mut plans = Vec::new();
    for (script, distribution) in cases {
        for percent in [0, 75, 100, 150, 300] {
            for &engine in &settings.engines {
                if !percents(engine, settings.quick).contains(&percent) {
                    continue;
                }
                let dir = lab.data(engine, &data, progress)?;
                let job = Job {
                    script: (*script).into(),
                    database: "sbtest".into(),
                    rows: data.tables[0].rows,
                    threads: 16,
                    distribution: *distribution,
                };
                let writes = *script != "oltp_point_select";
                let mut plan = Plan::new("swap", engine, &dir, job);
                let size = if percent == 0 { "governed".into() } else { format!("{percent} %") };
                plan.scenario = format!("{script}, {}, {size}", distribution.key());
                plan.args = vec![
                    engine.pool_size_option(memory / 100 * percent),
                    engine.redo_option(memory / 2),
                ];
                plan.memory_limit = Some(memory);
                plan.keeps_clean = writes;
                (plan.warm_up_s, plan.measure_s) = if settings.quick { (8, 10) } else { (9, 11) };
                plans.push(plan);
            }
        }
    }
    Ok(plans)
}

/// Runs the experiment.
///
/// # Errors
/// If the machine can't do it, or a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    lab.need_memory_cgroups()?;
    let plans = plans(lab, &mut Progress::new(1))?;
    let _swap = lab.swap_file(2 * lab.settings.memory_bytes)?;
    lab.begin("swap")?;
    let mut progress =
        Progress::new(plans.iter().map(|plan| plan.warm_up_s + plan.measure_s).sum());
    for plan in &plans {
        let mut record = lab.run(plan, &mut progress, |_, _| Ok(()))?;
        summarise(&mut record);
        lab.keep(&record)?;
    }
    Ok(())
}
