//! The side load (the fourth article): OLTP on a table that fits the pool, beside dumps of one that does not.
//!
//! Reads are limited to 2,000 a second, as a cloud volume's are; a fast local disk hides the loss. The big table
//! is eight times the pool, the resident table 45 % or 85 % of it.
//!
//! What a dump costs in CPU is not held against the pool: throughput is compared with the same OLTP beside a dump of a
//! small table that is fully cached, fed to its reader at the rate that the dump of the big table had.
//!
//! What the resident table has lost is counted at the end: load and dump are stopped, the table is read once, and the
//! pages that come from the disk were missing. Rows being chosen uniformly, this share is the chance of a miss.
//!
//! How long a working set that moves takes to be read is up to the disk, so that is measured without a dump, too.

use crate::engine::Engine;
use crate::error::Result;
use crate::lab::{Lab, Moment, Plan, Stage};
use crate::load::dump::{DumpLoop, ReportLoop};
use crate::load::sysbench::{Distribution, Job};
use crate::progress::Progress;
use crate::record::{Record, statistics};

use super::data::{self, read_all, rows_of, tables};
use super::{READS_PER_SECOND, summarise};

/// The database of the big table.
const BIG: &str = "sbtest";
const PAGE_BYTES: u64 = 16 * 1024;
/// How long a case goes on in which the OLTP moves, after that: long enough for a slow disk.
const AFTER_MOVE_S: u32 = 40;

/// What happens beside the OLTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Dumps of the big table.
    Dumps(u32),
    /// Dumps of a table that is fully cached, at the rate that the big table's had.
    CachedDumps(u32),
    /// A report over the big table in the order of its secondary index.
    Report,
    /// A dump, and the OLTP moves to another table in the middle.
    Move,
    /// The same without a dump.
    MoveAlone,
}

impl Side {
    fn moves(self) -> bool {
        matches!(self, Side::Move | Side::MoveAlone)
    }
}

struct Case {
    share_percent: u64,
    side: Side,
}

impl Case {
    fn name(&self) -> String {
        let side = match self.side {
            Side::Dumps(1) => "dump".to_string(),
            Side::Dumps(count) => format!("{count} dumps"),
            Side::CachedDumps(1) => "dump of a cached table".to_string(),
            Side::CachedDumps(count) => format!("{count} dumps of a cached table"),
            Side::Report => "report".to_string(),
            Side::Move => "moving working set".to_string(),
            Side::MoveAlone => "moving working set without a dump".to_string(),
        };
        format!("resident {} %, {side}", self.share_percent)
    }
}

/// In this order: a cached dump is fed at the rate of the dump before it.
fn cases(quick: bool) -> Vec<Case> {
    let case = |share_percent, side| Case { share_percent, side };
    if quick {
        return vec![case(85, Side::Dumps(1)), case(85, Side::CachedDumps(1))];
    }
    vec![
        case(45, Side::Dumps(1)),
        case(45, Side::CachedDumps(1)),
        case(85, Side::Dumps(1)),
        case(85, Side::CachedDumps(1)),
        case(85, Side::Dumps(2)),
        case(85, Side::CachedDumps(2)),
        case(85, Side::Report),
        case(45, Side::MoveAlone),
        case(45, Side::Move),
    ]
}

/// The engines with their settings of interest.
fn variants(
    engines: &[Engine],
    case: &Case,
) -> Vec<(Engine, &'static str, &'static [&'static str])> {
    let mut variants = Vec::new();
    for &engine in engines {
        variants.push((engine, "", &[] as &[&str]));
        // The article's question; elsewhere the knob's default is the better peer.
        if engine != Engine::Tidepool && case.side == Side::Dumps(1) {
            variants.push((engine, "old_blocks_time=0", &["--innodb-old-blocks-time=0"]));
        }
    }
    variants
}

/// Runs the experiment.
///
/// # Errors
/// If the machine can't do it, or a run can't begin.
pub fn run(lab: &Lab) -> Result<()> {
    lab.need_read_throttle()?;
    let settings = &lab.settings;
    let pool_bytes = data::pool_bytes(settings.memory_bytes);
    let data = tables(settings.memory_bytes);
    let timing = if settings.quick {
        Timing { warm_up_s: 4, settle_s: 8, end_s: 18 }
    } else {
        Timing { warm_up_s: 3, settle_s: 16, end_s: 31 }
    };
    let mut plans = Vec::new();
    for case in cases(settings.quick) {
        if !settings.wants(&case.name()) {
            continue;
        }
        for (engine, variant, args) in variants(&settings.engines, &case) {
            let dir = lab.data(engine, &data, &mut Progress::new(1))?;
            let database = format!("hot{}", case.share_percent);
            let rows = rows_of(pool_bytes / 100 * case.share_percent);
            let job = Job {
                script: "oltp_read_only".into(),
                database: database.clone(),
                rows,
                threads: 1,
                distribution: Distribution::Uniform,
            };
            let mut plan = Plan::new("sideload", engine, &dir, job);
            plan.scenario = case.name();
            plan.variant = variant.into();
            plan.args = vec![engine.pool_size_option(pool_bytes)];
            plan.args.extend(args.iter().map(ToString::to_string));
            plan.reads_per_second = Some(READS_PER_SECOND);
            plan.first_statement = Some(read_all(&format!("{database}.sbtest1"), rows));
            plan.warm_up_s = timing.warm_up_s;
            plan.measure_s = measure_s(case.side, &timing);
            plans.push((plan, case.side));
        }
    }
    let planned = plans.iter().map(|(plan, _)| plan.warm_up_s + plan.measure_s).sum();
    let mut progress = Progress::new(planned);
    lab.begin("sideload")?;
    let mut rates = Vec::new();
    for (plan, side) in &plans {
        let mut record = one(lab, plan, *side, &timing, &mut rates, &mut progress)?;
        summarise(&mut record);
        judge(&mut record, *side, &timing);
        lab.keep(&record)?;
    }
    Ok(())
}

/// Seconds of a run: the dump starts at 0, and what is measured begins when it has had time to do its harm.
struct Timing {
    warm_up_s: u32,
    settle_s: u32,
    end_s: u32,
}

fn measure_s(side: Side, timing: &Timing) -> u32 {
    if side.moves() { timing.settle_s + AFTER_MOVE_S } else { timing.end_s }
}

/// What runs beside the OLTP; stopped when dropped.
#[derive(Default)]
struct SideLoad {
    dumps: Vec<DumpLoop>,
    report: Option<ReportLoop>,
}

/// Bytes a second that a dump wrote: (engine's key, dumps, rate).
type Rates = Vec<(&'static str, u32, f64)>;

fn one(
    lab: &Lab,
    plan: &Plan,
    side: Side,
    timing: &Timing,
    rates: &mut Rates,
    progress: &mut Progress,
) -> Result<Record> {
    let mut beside = SideLoad::default();
    let cap = |count: u32| {
        // The last such rate: that of the dump before.
        let rate =
            rates.iter().rev().find(|(key, dumps, _)| *key == plan.engine.key() && *dumps == count);
        rate.map(|(_, _, rate)| *rate)
    };
    let mut figures = Vec::new();
    let mut rate = None;
    let mut record = lab.run(plan, progress, |stage, moment| {
        let socket = stage.server.socket().to_path_buf();
        match (moment, side) {
            (Moment::After(0), Side::Dumps(_) | Side::CachedDumps(_) | Side::Move) => {
                let (count, database, cap) = match side {
                    Side::Dumps(count) => (count, BIG, None),
                    Side::CachedDumps(count) => (count, "small", cap(count)),
                    _ => (1, BIG, None),
                };
                stage.note(side_name(side));
                for _ in 0..count {
                    beside.dumps.push(DumpLoop::start(&lab.environment, &socket, database, cap)?);
                }
                Ok(())
            }
            (Moment::After(0), Side::Report) => {
                stage.note("report");
                beside.report = Some(ReportLoop::start(&socket, BIG)?);
                Ok(())
            }
            (Moment::After(second), _) if side.moves() && second == timing.settle_s => {
                let job = Job { database: "other45".into(), ..plan.job.clone() };
                stage.change_load(job);
                Ok(())
            }
            (Moment::End, _) => {
                let written: f64 = beside.dumps.iter().map(DumpLoop::bytes_per_second).sum();
                let dumps = beside.dumps.len() as u32;
                figures.push(("dump_mb_s", written / 1e6));
                if matches!(side, Side::Dumps(_)) && plan.variant.is_empty() {
                    rate = Some((plan.engine.key(), dumps, written / f64::from(dumps.max(1))));
                }
                beside = SideLoad::default();
                let database = if side.moves() { "other45" } else { &plan.job.database };
                figures.push(("missing_share", missing_share(stage, database, plan.job.rows)?));
                Ok(())
            }
            _ => Ok(()),
        }
    })?;
    rates.extend(rate);
    record.summary.extend(figures.into_iter().map(|(name, value)| (name.to_string(), value)));
    Ok(record)
}

fn side_name(side: Side) -> String {
    match side {
        Side::Dumps(count) | Side::CachedDumps(count) if count > 1 => format!("{count} dumps"),
        _ => "dump".into(),
    }
}

/// The share of the resident table's pages that are not in the pool.
fn missing_share(stage: &mut Stage, database: &str, rows: u64) -> Result<f64> {
    let server = &stage.server;
    let query = format!(
        "SELECT DATA_LENGTH FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{database}' AND TABLE_NAME = 'sbtest1'"
    );
    let bytes: u64 = server.value(&query)?.and_then(|text| text.parse().ok()).unwrap_or(0);
    let before = server.pool_status()?.pages_read;
    server.execute(&read_all(&format!("{database}.sbtest1"), rows))?;
    let read = server.pool_status()?.pages_read - before;
    // A page that is evicted before it is used is read twice.
    Ok((read as f64 / (bytes / PAGE_BYTES).max(1) as f64).min(1.0))
}

fn judge(record: &mut Record, side: Side, timing: &Timing) {
    let tps = |from_s: u32, to_s: u32| {
        statistics::between(&record.series, f64::from(from_s), f64::from(to_s))
            .iter()
            .map(|point| point.tps)
    };
    let mut figures = Vec::new();
    if side.moves() {
        let before = statistics::median(tps(timing.settle_s / 2, timing.settle_s));
        let after = statistics::between(&record.series, f64::from(timing.settle_s), f64::MAX);
        let is_in = |point: &&crate::record::Point| point.tps >= 0.9 * before;
        let moved = after.iter().find(is_in);
        let seconds =
            moved.map_or(f64::from(u16::MAX), |point| point.at_s - f64::from(timing.settle_s));
        figures.push(("new_set_in_after_s", seconds));
    }
    let end_s = measure_s(side, timing);
    let steady = statistics::median(tps(end_s + timing.settle_s - timing.end_s, end_s));
    figures.push(("steady_tps", steady));
    record.summary.extend(figures.into_iter().map(|(name, value)| (name.to_string(), value)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_dump_comes_after_the_dump_whose_rate_it_takes() {
        for quick in [true, false] {
            let cases = cases(quick);
            for (at, case) in cases.iter().enumerate() {
                if let Side::CachedDumps(count) = case.side {
                    assert!(cases[..at].iter().any(|before| before.side == Side::Dumps(count)
                        && before.share_percent == case.share_percent));
                }
            }
        }
    }
}
