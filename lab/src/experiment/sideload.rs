//! The side load (the fourth article): OLTP on a table that fits the pool, beside dumps of one that
//! does not.
//!
//! Reads are limited to 2,000 a second, as a cloud volume's are; a fast local disk hides the loss.
//! The big table is eight times the pool, the resident table 45 % or 85 % of it.
//!
//! What a dump costs in CPU is not held against the pool: throughput is compared with the same OLTP
//! beside a dump of a small table that is fully cached, fed to its reader at the rate that the dump
//! of the big table had.
//!
//! What the resident table has lost is counted at the end: load and dump are stopped, the table is
//! read once, and the pages that come from the disk were missing. Rows being chosen uniformly, this
//! share is the chance of a miss.
//!
//! How long a working set that moves takes to be read is up to the disk, so that is measured
//! without a dump, too.
//!
//! Each also runs alone: the OLTP on either table, and one dump from its beginning to its end, on a
//! pool that is empty. What the pool holds of which index is asked at the end of each run.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lab::{Lab, Moment, Plan, Settings, Stage};
use crate::load::dump::{Complete, DumpLoop, ReportLoop};
use crate::load::sysbench::{Distribution, Job};
use crate::progress::Progress;
use crate::record::{NEVER, Outcome, Record, statistics};

use super::data::{self, read_all, rows_of, tables};
use super::{READS_PER_SECOND, summarise};

/// The database of the big table.
const BIG: &str = "sbtest";
const PAGE_BYTES: u64 = 16 * 1024;
/// How long a case goes on in which the OLTP moves, after that: long enough for a slow disk.
const AFTER_MOVE_S: u32 = 40;

/// A dump alone that takes longer is not waited for.
const DUMP_LIMIT_S: u32 = 300;
/// The result leaves out an index with fewer pages.
const CONTENT_PAGES: u64 = 64;
/// What pages of no table are called.
const NO_INDEX: &str = "no table's";

/// What a scenario with nothing beside the OLTP ends with, and the one without OLTP.
pub(crate) const OLTP_ALONE: &str = "OLTP alone";
pub(crate) const DUMP_ALONE: &str = "dump alone";
/// What the names of figures begin with that say how much of an index the pool holds at the end, in
/// MiB.
pub(crate) const CONTENT: &str = "content_mib ";

/// What happens beside the OLTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Nothing,
    /// A dump of the big table, and no OLTP: beside nothing.
    DumpAlone,
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

    /// Whether the big table is dumped.
    fn dumps_big(self) -> bool {
        matches!(self, Side::Dumps(_) | Side::Move | Side::DumpAlone)
    }
}

struct Case {
    share_percent: u64,
    side: Side,
}

impl Case {
    fn name(&self) -> String {
        let side = match self.side {
            Side::DumpAlone => return DUMP_ALONE.into(),
            Side::Nothing => OLTP_ALONE.to_string(),
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
        case(45, Side::Nothing),
        case(85, Side::Nothing),
        case(0, Side::DumpAlone),
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

/// What can be chosen from.
pub(super) fn case_names(settings: &Settings) -> Vec<String> {
    cases(settings.quick).iter().map(Case::name).collect()
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
        if let Side::CachedDumps(count) = case.side {
            let dump = Case { side: Side::Dumps(count), ..case };
            if !settings.wants(&dump.name()) {
                let (cached, dump) = (case.name(), dump.name());
                let what = format!("'{cached}' runs at the rate of '{dump}': choose that, too");
                return Err(Error::Missing(what));
            }
        }
        for (engine, variant, args) in variants(&settings.engines, &case) {
            let dir = lab.data(engine, &data, &mut Progress::new(1))?;
            let database = format!("hot{}", case.share_percent);
            let rows = rows_of(pool_bytes / 100 * case.share_percent);
            let job = match case.side {
                Side::DumpAlone => Job::nothing(BIG, data.tables[0].rows),
                _ => Job {
                    script: "oltp_read_only".into(),
                    database: database.clone(),
                    rows,
                    threads: 1,
                    distribution: Distribution::Uniform,
                },
            };
            let mut plan = Plan::new("sideload", engine, &dir, job);
            plan.scenario = case.name();
            plan.variant = variant.into();
            plan.args = vec![engine.pool_size_option(pool_bytes)];
            plan.args.extend(args.iter().map(ToString::to_string));
            plan.reads_per_second = Some(READS_PER_SECOND);
            if case.side != Side::DumpAlone {
                plan.first_statement = Some(read_all(&format!("{database}.sbtest1"), rows));
                plan.warm_up_s = timing.warm_up_s;
            } else {
                plan.warm_up_s = 0;
            }
            plan.measure_s = measure_s(case.side, &timing);
            plans.push((plan, case.side));
        }
    }
    let planned = plans.iter().map(|(plan, _)| plan.warm_up_s + plan.measure_s).sum();
    let mut progress = Progress::new(planned);
    lab.begin("sideload")?;
    let mut known = Known::default();
    for (plan, side) in &plans {
        let mut record = one(lab, plan, *side, &timing, &mut known, &mut progress)?;
        summarise(&mut record);
        judge(&mut record, *side, &timing);
        lab.keep(&record)?;
    }
    Ok(())
}

/// Seconds of a run: the dump starts at 0, and what is measured begins when it has had time to do
/// its harm.
struct Timing {
    warm_up_s: u32,
    settle_s: u32,
    end_s: u32,
}

fn measure_s(side: Side, timing: &Timing) -> u32 {
    match side {
        Side::DumpAlone => DUMP_LIMIT_S,
        _ if side.moves() => timing.settle_s + AFTER_MOVE_S,
        _ => timing.end_s,
    }
}

/// What runs beside the OLTP; stopped when dropped.
#[derive(Default)]
struct SideLoad {
    dumps: Vec<DumpLoop>,
    report: Option<ReportLoop>,
}

impl SideLoad {
    /// Why it was none.
    fn failure(&self) -> Option<String> {
        let of_dumps = self.dumps.iter().find_map(DumpLoop::failure);
        of_dumps.or_else(|| self.report.as_ref()?.failure())
    }
}

/// What earlier runs tell of dumps of the big table.
#[derive(Default)]
struct Known {
    /// Bytes a second that a dump wrote: (engine's key, dumps, rate).
    rates: Vec<(&'static str, u32, f64)>,
    /// Bytes of a whole dump, which is the same text with every engine, except for the numbers in
    /// it.
    dump_bytes: Option<f64>,
}

impl Known {
    /// The last such rate: that of the dump before.
    fn rate(&self, engine: Engine, dumps: u32) -> Option<f64> {
        let mut same =
            self.rates.iter().filter(|(key, count, _)| *key == engine.key() && *count == dumps);
        same.next_back().map(|(_, _, rate)| *rate).filter(|rate| *rate > 0.0)
    }

    /// The figures of a run's dumps, in MB and seconds. What one takes is worked out from the rate
    /// if none has come to its end.
    fn figures(&mut self, side: Side, dumps: &Dumps) -> Vec<(&'static str, f64)> {
        if dumps.count == 0 {
            return Vec::new();
        }
        if !side.dumps_big() {
            return vec![("dump_mb_s", dumps.bytes_per_second / 1e6)];
        }
        if let Some(complete) = dumps.complete {
            self.dump_bytes = Some(complete.bytes as f64);
        }
        let rate = match dumps.complete {
            // Another has begun since.
            Some(complete) if side == Side::DumpAlone => complete.bytes as f64 / complete.seconds,
            _ => dumps.bytes_per_second,
        };
        let seconds = match dumps.complete {
            Some(complete) => Some(complete.seconds),
            None if rate > 0.0 => self.dump_bytes.map(|all| all / (rate / f64::from(dumps.count))),
            None => None,
        };
        let mut figures = vec![("dump_mb_s", rate / 1e6)];
        figures.extend(seconds.map(|seconds| ("dump_s", seconds)));
        figures.extend(self.dump_bytes.map(|bytes| ("dump_mb", bytes / 1e6)));
        figures
    }
}

/// The dumps of a run: what they wrote together, and the first that has come to its end.
struct Dumps {
    count: u32,
    bytes_per_second: f64,
    complete: Option<Complete>,
}

impl Dumps {
    fn of(dumps: &[DumpLoop]) -> Dumps {
        Dumps {
            count: dumps.len() as u32,
            bytes_per_second: dumps.iter().map(DumpLoop::bytes_per_second).sum(),
            complete: dumps.iter().find_map(DumpLoop::complete),
        }
    }
}

/// How much of each index the pool holds, in MiB, for the summary.
fn content(stage: &Stage) -> Vec<(String, f64)> {
    match stage.server.pool_content() {
        Ok(indexes) => content_figures(indexes),
        Err(error) => {
            tracing::warn!("what the pool holds: {error}");
            Vec::new()
        }
    }
}

fn content_figures(indexes: Vec<(String, u64)>) -> Vec<(String, f64)> {
    let large = indexes.into_iter().filter(|(_, pages)| *pages >= CONTENT_PAGES);
    let mib = |pages: u64| (pages * PAGE_BYTES) as f64 / f64::from(1 << 20);
    let name = |name: String| if name.is_empty() { NO_INDEX.to_string() } else { name };
    large.map(|(index, pages)| (CONTENT.to_string() + &name(index), mib(pages))).collect()
}

fn one(
    lab: &Lab,
    plan: &Plan,
    side: Side,
    timing: &Timing,
    known: &mut Known,
    progress: &mut Progress,
) -> Result<Record> {
    let mut beside = SideLoad::default();
    let cap = match side {
        Side::CachedDumps(count) => match known.rate(plan.engine, count) {
            // At full speed it would be another load than the one that is compared with it.
            None => {
                let mut record = plan.record(&lab.settings);
                record.outcome = Outcome::Failed("the dump before it gave no rate".into());
                return Ok(record);
            }
            rate => rate,
        },
        _ => None,
    };
    let mut failure = None;
    let mut figures = Vec::new();
    let mut contents = Vec::new();
    let mut rate = None;
    let mut record = lab.run(plan, progress, |stage, moment| {
        let socket = stage.server.socket().to_path_buf();
        match (moment, side) {
            (Moment::After(0), _) if side.dumps_big() || matches!(side, Side::CachedDumps(_)) => {
                let (count, database) = match side {
                    Side::Dumps(count) => (count, BIG),
                    Side::CachedDumps(count) => (count, "small"),
                    _ => (1, BIG),
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
            (Moment::After(_), Side::DumpAlone) => {
                if beside.dumps.iter().any(|dump| dump.complete().is_some()) {
                    stage.end();
                }
                Ok(())
            }
            (Moment::After(second), _) if side.moves() && second == timing.settle_s => {
                let job = Job { database: "other45".into(), ..plan.job.clone() };
                stage.change_load(job);
                Ok(())
            }
            (Moment::End, _) => {
                let dumps = Dumps::of(&beside.dumps);
                figures.extend(known.figures(side, &dumps));
                if matches!(side, Side::Dumps(_)) && plan.variant.is_empty() {
                    let one = dumps.bytes_per_second / f64::from(dumps.count.max(1));
                    rate = Some((plan.engine.key(), dumps.count, one));
                }
                failure = beside.failure();
                beside = SideLoad::default();
                contents = content(stage);
                if side == Side::DumpAlone {
                    return Ok(());
                }
                let database = if side.moves() { "other45" } else { &plan.job.database };
                figures.push(("missing_share", missing_share(stage, database, plan.job.rows)?));
                Ok(())
            }
            _ => Ok(()),
        }
    })?;
    if let Some(why) = failure.filter(|_| record.outcome == Outcome::Finished) {
        record.outcome = Outcome::Failed(why);
        rate = None;
    }
    known.rates.extend(rate);
    record.summary.extend(contents);
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
    // DATA_LENGTH may be of compressed images; the length of a row is of pages.
    let query = format!(
        "SELECT TABLE_ROWS * AVG_ROW_LENGTH FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{database}' AND TABLE_NAME = 'sbtest1'"
    );
    let value = server.value(&query)?;
    let bytes: f64 = value.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    if bytes < PAGE_BYTES as f64 {
        return Err(Error::Missing(format!("the size of {database}.sbtest1 is {value:?}")));
    }
    let before = server.pool_status()?.pages_read;
    server.execute(&read_all(&format!("{database}.sbtest1"), rows))?;
    let read = server.pool_status()?.pages_read - before;
    // A page that is evicted before it is used is read twice.
    Ok((read as f64 / (bytes / PAGE_BYTES as f64)).min(1.0))
}

fn judge(record: &mut Record, side: Side, timing: &Timing) {
    if side == Side::DumpAlone {
        // There was no OLTP.
        for name in ["qps", "tps", "p95_ms"] {
            record.summary.remove(name);
        }
        return;
    }
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
        let seconds = moved.map_or(NEVER, |point| point.at_s - f64::from(timing.settle_s));
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
    fn each_side_runs_alone_too_and_a_dump_without_oltp() {
        let names: Vec<String> = cases(false).iter().map(Case::name).collect();
        for name in ["resident 45 %, OLTP alone", "resident 85 %, OLTP alone", DUMP_ALONE] {
            assert!(names.iter().any(|one| one == name), "{names:?}");
        }
        let mut record = crate::record::finished("sideload", DUMP_ALONE, "innodb", &[("qps", 0.0)]);
        let timing = Timing { warm_up_s: 3, settle_s: 16, end_s: 31 };
        judge(&mut record, Side::DumpAlone, &timing);
        assert!(record.summary.is_empty(), "{record:?}");
    }

    #[test]
    fn what_a_dump_takes_is_measured_or_worked_out() {
        let mut known = Known::default();
        let dumps = |count, bytes_per_second, complete| Dumps { count, bytes_per_second, complete };
        let whole = Some(Complete { seconds: 20.0, bytes: 2_000_000_000 });
        // Nothing is known of the size yet.
        let slow = known.figures(Side::Dumps(1), &dumps(1, 25e6, None));
        assert_eq!(slow, [("dump_mb_s", 25.0)]);
        let alone = known.figures(Side::DumpAlone, &dumps(1, 90e6, whole));
        assert_eq!(alone, [("dump_mb_s", 100.0), ("dump_s", 20.0), ("dump_mb", 2000.0)]);
        let two = known.figures(Side::Dumps(2), &dumps(2, 50e6, None));
        assert_eq!(two, [("dump_mb_s", 50.0), ("dump_s", 80.0), ("dump_mb", 2000.0)]);
        // A table of another size.
        let cached = known.figures(Side::CachedDumps(1), &dumps(1, 50e6, whole));
        assert_eq!(cached, [("dump_mb_s", 50.0)]);
        assert_eq!(known.figures(Side::Report, &dumps(0, 0.0, None)), []);
    }

    #[test]
    fn the_content_of_a_pool_is_told_in_mib_and_without_crumbs() {
        let indexes = [("hot85.sbtest1.PRIMARY", 128), ("mysql.x", 3), ("", 64)];
        let figures =
            content_figures(indexes.map(|(name, pages)| (name.to_string(), pages)).into());
        let names = ["hot85.sbtest1.PRIMARY", NO_INDEX].map(|name| format!("{CONTENT}{name}"));
        assert_eq!(figures, [(names[0].clone(), 2.0), (names[1].clone(), 1.0)]);
    }

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
