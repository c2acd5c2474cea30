//! One sample a second: everything that the graph shows, as rates since the last sample.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tidepool_governor::decide::PoolState;
use tidepool_governor::kernel::Root;
use tidepool_governor::signals::Reader;
use tidepool_governor::{Governor, Signals};
use tidepool_lab::machine::counters::cpu_seconds;

use super::counters::Counters;
use super::health::Health;
use super::innodb_metrics::InnodbMetrics;
use super::latency::{Latency, Source};
use super::replication::Replication;
use super::statements::{self, Top};
use crate::bytes::MIB;
use crate::clock::unix_ms;
use crate::exit::{Error, Result};
use crate::facts::AdviceRow;
use crate::facts::gather::{resizing, tidepool_advice};
use crate::facts::machine::{huge_bytes, process_io};
use crate::facts::process::{Running, chosen_process};
use crate::govern::reserve::{Reserve, counted};
use crate::rules::room::is_in_huge_pages;
use crate::server::{Named, Server, number};

/// Tidepool takes its memory by these.
const TIDEPOOL_UNIT_BYTES: u64 = 2 * MIB;
/// The engine's minimum at any page size: it takes a smaller size for this one.
const TIDEPOOL_LEAST_BYTES: u64 = 4 * MIB;

/// Samples kept: a quarter of an hour.
pub const KEEP: usize = 900;

/// Whose pool is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// InnoDB's.
    Innodb,
    /// Tidepool's.
    Tidepool,
}

impl Engine {
    /// The prefix of its variables and counters.
    pub fn prefix(self) -> &'static str {
        match self {
            Engine::Innodb => "innodb",
            Engine::Tidepool => "tidepool",
        }
    }

    /// Huge pages of the server's process that may be its pool's. Only InnoDB takes those that were
    /// set aside.
    fn huge_bytes(self, pid: u32) -> u64 {
        match self {
            Engine::Innodb => huge_bytes(&Root::default(), pid),
            Engine::Tidepool => 0,
        }
    }
}

/// One second.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Sample {
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// Statements.
    pub qps: f64,
    /// 95th percentile of latency, from the source in [`About`].
    pub p95_ms: Option<f64>,
    /// Read from disk by the server, MB (10^6 bytes) a second.
    pub disk_read_mb_s: f64,
    /// Written to disk by the server.
    pub disk_write_mb_s: f64,
    /// To and from swap, the whole machine.
    pub swap_mb_s: Option<f64>,
    /// The pool's size.
    pub pool_bytes: u64,
    /// Whether the engine chose that size, and no setting did; `None` with an
    /// engine that makes none.
    pub governed: Option<bool>,
    /// What it has of pages.
    pub data_bytes: u64,
    /// What it has of compressed pages beside those; `None` with an engine that has no such tier.
    pub compressed_bytes: Option<u64>,
    /// What fits now, as the governor sees it.
    pub target_bytes: Option<u64>,
    /// Share of logical reads served from memory in this second; `None` when there were
    /// hardly any.
    pub hit_ratio: Option<f64>,
    /// Logical reads.
    pub requests_per_s: f64,
    /// Logical reads that went to disk.
    pub reads_per_s: f64,
    /// Connections that execute a statement now, without this program's.
    pub threads_running: u64,
    /// Whether writers, locks, purge or a replica fall behind.
    #[serde(flatten)]
    pub health: Health,
    /// The server's memory.
    pub server_resident_bytes: Option<u64>,
    /// Of that, in swap.
    pub server_swapped_bytes: Option<u64>,
}

/// What doesn't change while the server runs.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    /// Kind and version.
    pub server: String,
    /// Socket or address.
    pub place: String,
    /// The host's name, as the server says it.
    pub host: Option<String>,
    /// Whose pool.
    pub engine: Engine,
    /// Where the percentile comes from.
    pub p95_source: Source,
    /// The same for people.
    pub p95_words: &'static str,
    /// Where disk figures come from, for people.
    pub disk_words: &'static str,
    /// Whether the machine can be seen.
    pub local: bool,
    /// The pool's size can only be a multiple of this.
    pub unit_bytes: u64,
    /// The least it can be set to.
    pub least_bytes: u64,
    /// The most it can be set to at all.
    pub size_max_bytes: Option<u64>,
    /// Why it can't be set while the server runs, or by this user, where it can't.
    pub fixed: Option<String>,
}

impl About {
    /// Of a server that has not answered yet.
    pub fn unseen(place: String) -> About {
        About {
            server: String::new(),
            place,
            host: None,
            engine: Engine::Innodb,
            p95_source: Source::OwnProbe,
            p95_words: Source::OwnProbe.words(),
            disk_words: "not known",
            local: false,
            unit_bytes: MIB,
            least_bytes: MIB,
            size_max_bytes: None,
            fixed: Some("the server has not answered yet".into()),
        }
    }
}

/// Hit ratios by size: the engine's own curve, or what was measured at the sizes that the pool has
/// had.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Curve {
    /// Whether the engine predicts; else the points are measurements.
    pub predicted: bool,
    /// By size.
    pub points: Vec<AdviceRow>,
    /// Why the engine's own can't be seen.
    pub note: Option<String>,
}

/// Reads one server and its machine.
#[derive(Debug)]
pub struct Sampler {
    server: Server,
    engine: Engine,
    latency: Latency,
    machine: Option<(Reader, Running)>,
    governor: Governor,
    start: Instant,
    before: Option<Before>,
    counters: Counters,
    measured: Measured,
    replication: Replication,
    statements: statements::Reader,
    innodb_metrics: InnodbMetrics,
    /// What the server has reserved beside its pools.
    reserve: Reserve,
    about: About,
}

#[derive(Debug)]
struct Before {
    at: Instant,
    status: Named,
    counters: Counters,
    io: Option<(u64, u64)>,
    /// This program's statements since the look before.
    asked: u64,
    /// In and out.
    swap_pages: Option<(u64, u64)>,
}

impl Sampler {
    /// Finds out which figures the server has. `engine` chooses the pool; the default is Tidepool's
    /// where it has tables. `process` is the one that the user named.
    ///
    /// # Errors
    /// If the server goes away, or has not this engine.
    pub fn new(
        mut server: Server,
        engine: Option<Engine>,
        process: Option<Running>,
    ) -> Result<Sampler> {
        let variables = server.variables()?;
        let kind = server.kind().clone();
        let default = variables.get("default_storage_engine").map(|name| name.to_ascii_lowercase());
        let engine = engine.unwrap_or_else(|| {
            let tidepool =
                kind.tidepool && (default.as_deref() == Some("tidepool") || !kind.innodb);
            if tidepool { Engine::Tidepool } else { Engine::Innodb }
        });
        if (engine == Engine::Tidepool && !kind.tidepool)
            || (engine == Engine::Innodb && !kind.innodb)
        {
            return Err(Error::Unsupported(format!("{kind} has not the engine {engine:?} loaded")));
        }
        let latency = Latency::new(&mut server, &variables)?;
        // The one that was named is gone when the server has come back.
        let named = process.filter(|process| process.runs(&Root::default()));
        let process = chosen_process(&mut server, &variables, named)?;
        let pid = process.map(|process| process.pid);
        let can = resizing(&kind, &variables);
        let (unit_bytes, least_bytes) = match engine {
            Engine::Innodb => (can.unit_bytes, can.least_bytes),
            Engine::Tidepool => (TIDEPOOL_UNIT_BYTES, TIDEPOOL_LEAST_BYTES),
        };
        let may_not = match server.check_may_set("setting the pool's size") {
            Ok(()) => None,
            Err(error @ Error::Gone(_)) => return Err(error),
            Err(error) => Some(error.to_string()),
        };
        let about = About {
            server: kind.to_string(),
            place: server.target().place(),
            host: variables.get("hostname").cloned(),
            engine,
            p95_source: latency.source(),
            p95_words: latency.source().words(),
            disk_words: if pid.and_then(process_io).is_some() {
                "the server's process, all files"
            } else {
                "the engine's data files"
            },
            local: pid.is_some(),
            unit_bytes,
            least_bytes,
            size_max_bytes: can.most_bytes.filter(|_| engine == Engine::Innodb),
            fixed: can.why_not(&kind).filter(|_| engine == Engine::Innodb).or(may_not),
        };
        Ok(Sampler {
            server,
            engine,
            latency,
            machine: process
                .map(|process| (Reader::new(Root::default(), Some(process.pid)), process)),
            governor: Governor::new(),
            start: Instant::now(),
            before: None,
            counters: Counters::default(),
            measured: Measured::default(),
            replication: Replication::default(),
            statements: statements::Reader::default(),
            innodb_metrics: InnodbMetrics::default(),
            reserve: Reserve::default(),
            about,
        })
    }

    /// What doesn't change.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The connection, for other questions.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// Takes a sample now. The first one has nothing to compare with, and has no rates.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn look(&mut self) -> Result<Option<Sample>> {
        // Behind a proxy the connection may outlive the server that it was to.
        if self.machine.as_ref().is_some_and(|(reader, process)| !process.runs(reader.root())) {
            return Err(Error::Gone("its process has ended".into()));
        }
        let p95_ms = self.latency.p95_ms(&mut self.server)?;
        let mut status = self.server.status()?;
        if self.engine == Engine::Innodb {
            self.innodb_metrics.complete(&mut self.server, &mut status)?;
        }
        // Up to this statement: the server has counted it.
        let asked = self.server.take_asked();
        self.reserve.observe(&mut self.server, &status)?;
        // The counters' moment, not that of what is asked next: on a slow server they differ.
        let at = Instant::now();
        let size = format!("SELECT @@GLOBAL.{}_buffer_pool_size", self.engine.prefix());
        let size: Option<u64> = self.server.first("the pool's size", "", &size)?;
        let signals = self.machine.as_mut().map(|(reader, _)| reader.read(self.start.elapsed()));
        let io = self.machine.as_ref().and_then(|(_, process)| process_io(process.pid));
        let swap_pages =
            signals.as_ref().and_then(|s| Some((s.swapped_in_pages?, s.swapped_out_pages?)));
        let cpu_s = self.machine.as_ref().and_then(|(_, process)| cpu_seconds(process.pid));
        self.counters = Counters::new(self.engine, &status, io, swap_pages, cpu_s);
        let counters = self.counters.clone();
        let now = Before { at, status, counters, io, asked, swap_pages };
        let sample = self
            .before
            .as_ref()
            .map(|before| self.compare(before, &now, size.unwrap_or(0), p95_ms, signals.as_ref()));
        self.before = Some(now);
        if let Some(sample) = &sample {
            self.measured.learn(sample, Instant::now());
        }
        Ok(sample)
    }

    fn compare(
        &self,
        before: &Before,
        now: &Before,
        size: u64,
        p95_ms: Option<f64>,
        signals: Option<&Signals>,
    ) -> Sample {
        let elapsed = (now.at - before.at).as_secs_f64().max(0.001);
        let prefix = self.engine.prefix();
        let value = |name: &str| number(&now.status, name);
        let rate = |name: &str| {
            let (Some(then), Some(now)) = (number(&before.status, name), value(name)) else {
                return 0.0;
            };
            now.saturating_sub(then) as f64 / elapsed
        };
        let own = |name: &str| format!("{prefix}_{name}");
        let requests_per_s = rate(&own("buffer_pool_read_requests"));
        let reads_per_s = rate(&own("buffer_pool_reads"));
        let megabytes = |then: u64, now: u64| now.saturating_sub(then) as f64 / elapsed / 1e6;
        let (disk_read_mb_s, disk_write_mb_s) = match (before.io, now.io) {
            (Some(then), Some(now)) => (megabytes(then.0, now.0), megabytes(then.1, now.1)),
            _ => (rate(&own("data_read")) / 1e6, rate(&own("data_written")) / 1e6),
        };
        let page_bytes = rustix::param::page_size() as u64;
        let sum = |(inward, outward): (u64, u64)| inward + outward;
        let data_bytes = value(&own("buffer_pool_bytes_data")).unwrap_or(0);
        let compressed_bytes = value("tidepool_compressed_tier_bytes");
        let pool_bytes = match self.engine {
            Engine::Innodb => size,
            // Set to 0 it is governed, and has the limit that the governor gave it.
            Engine::Tidepool => value("tidepool_buffer_pool_limit_bytes").unwrap_or(size),
        };
        // The target of a governed pool is what fits. That of any other is the size that somebody
        // chose.
        let governed = (self.engine == Engine::Tidepool).then_some(size == 0);
        let target_bytes = match governed == Some(true) {
            true => value("tidepool_buffer_pool_target_bytes"),
            false => {
                let used = data_bytes + compressed_bytes.unwrap_or(0);
                signals.and_then(|signals| self.fits(signals, pool_bytes, used))
            }
        };
        Sample {
            at_ms: unix_ms(SystemTime::now()),
            // Ours are not the load's.
            qps: (rate("questions") - now.asked as f64 / elapsed).max(0.0),
            p95_ms,
            disk_read_mb_s,
            disk_write_mb_s,
            swap_mb_s: before
                .swap_pages
                .zip(now.swap_pages)
                .map(|(then, now)| megabytes(sum(then) * page_bytes, sum(now) * page_bytes)),
            pool_bytes,
            governed,
            data_bytes,
            compressed_bytes,
            target_bytes,
            hit_ratio: hit_ratio(requests_per_s, reads_per_s).filter(|_| !is_loading(&now.status)),
            requests_per_s,
            reads_per_s,
            // This look's own statement is running.
            threads_running: value("threads_running").unwrap_or(0).saturating_sub(1),
            health: Health::between(
                &before.counters,
                &now.counters,
                elapsed,
                self.replication.lag_s(),
            ),
            server_resident_bytes: signals.and_then(|s| s.own_resident_bytes),
            server_swapped_bytes: signals.and_then(|s| s.own_swapped_bytes),
        }
    }

    /// What the governor would allow.
    fn fits(&self, signals: &Signals, pool_bytes: u64, data_bytes: u64) -> Option<u64> {
        let pool = PoolState {
            resident_bytes: data_bytes.min(pool_bytes),
            limit_bytes: pool_bytes,
            floor_bytes: 0,
            ceiling_bytes: self.about.size_max_bytes.unwrap_or(u64::MAX),
            wants_more: false,
        };
        let huge_bytes =
            self.machine.as_ref().map_or(0, |(_, process)| self.engine.huge_bytes(process.pid));
        let limit_bytes = signals.room().map_or(0, |room| room.limit_bytes);
        let reserved_bytes = match self.engine {
            Engine::Innodb => self.reserve.bytes(limit_bytes),
            Engine::Tidepool => self.reserve.bytes_beside_pools(limit_bytes),
        };
        fits(&self.governor, &counted(signals, reserved_bytes), &pool, huge_bytes)
    }

    /// How far this server is behind its sources, read anew.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn replication(&mut self) -> Result<Replication> {
        self.replication = Replication::read(&mut self.server)?;
        Ok(self.replication.clone())
    }

    /// The most expensive statements of the last minute.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn statements(&mut self) -> Result<Top> {
        let pid = self.machine.as_ref().map(|(_, process)| process.pid);
        self.statements.read(&mut self.server, pid)
    }

    /// What was counted up to the last look.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The engine's curve, or the measured one.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn curve(&mut self) -> Result<Curve> {
        let mut note = None;
        if self.engine == Engine::Tidepool {
            match tidepool_advice(&mut self.server) {
                Ok(points) if points.is_empty() => {}
                // An engine that was not read yet predicts hits at any size.
                Ok(points) if points.iter().all(|point| point.hit_ratio >= 1.0) => {
                    note =
                        Some("Nothing was read from disk yet, so there is no prediction.".into());
                }
                Ok(points) => return Ok(Curve { predicted: true, points, note }),
                Err(error @ Error::Privilege { .. }) => note = Some(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(Curve { predicted: false, points: self.measured.points(), note })
    }
}

/// No more logical reads a second may be this program's own.
const OWN_PER_S: f64 = 50.0;

/// Of one second. More reads than requests are no queries': the server loads its list of pages.
fn hit_ratio(requests_per_s: f64, reads_per_s: f64) -> Option<f64> {
    (requests_per_s >= OWN_PER_S && reads_per_s <= requests_per_s)
        .then(|| 1.0 - reads_per_s / requests_per_s)
}

/// Whether InnoDB reads the pages of its list after a start: it counts them as reads of queries.
fn is_loading(status: &Named) -> bool {
    let words = status.get("innodb_buffer_pool_load_status");
    words.is_some_and(|words| words.starts_with("Loaded ") || words.contains("oading"))
}

/// `None` for a pool in huge pages too: what there is of these is the administrator's choice, and
/// no other process can use what it gives back.
fn fits(governor: &Governor, signals: &Signals, pool: &PoolState, huge_bytes: u64) -> Option<u64> {
    match is_in_huge_pages(huge_bytes, pool.limit_bytes) {
        true => None,
        false => governor.target(signals, pool),
    }
}

/// Hit ratios at the sizes that the pool has had while we looked: no prediction, but no guess
/// either.
#[derive(Debug, Default)]
struct Measured {
    by_mib: BTreeMap<u64, MeasuredAt>,
    size_bytes: u64,
    since: Option<Instant>,
}

/// Of one size, as moving averages.
#[derive(Debug, Clone, Copy)]
struct MeasuredAt {
    hit_ratio: f64,
    reads_per_s: f64,
    last: Instant,
}

impl Measured {
    /// The pool needs a while at a new size until its content shows it.
    const SETTLE: Duration = Duration::from_secs(5);
    const WEIGHT: f64 = 0.1;
    /// Fewer logical reads a second say nothing.
    const BUSY_PER_S: f64 = 200.0;

    /// A governed pool may have thousands of sizes a day, and the load of yesterday is another.
    const POINTS_MAX: usize = 256;
    const FORGET_AFTER: Duration = Duration::from_secs(86_400);

    fn learn(&mut self, sample: &Sample, now: Instant) {
        self.by_mib.retain(|_, point| now.duration_since(point.last) < Self::FORGET_AFTER);
        if sample.pool_bytes != self.size_bytes {
            (self.size_bytes, self.since) = (sample.pool_bytes, Some(now));
        }
        let settled = self.since.is_some_and(|since| now.duration_since(since) >= Self::SETTLE);
        let Some(hit) =
            sample.hit_ratio.filter(|_| settled && sample.requests_per_s >= Self::BUSY_PER_S)
        else {
            return;
        };
        let first = MeasuredAt { hit_ratio: hit, reads_per_s: sample.reads_per_s, last: now };
        let point = self.by_mib.entry(sample.pool_bytes / MIB).or_insert(first);
        point.hit_ratio += (hit - point.hit_ratio) * Self::WEIGHT;
        point.reads_per_s += (sample.reads_per_s - point.reads_per_s) * Self::WEIGHT;
        point.last = now;
        if self.by_mib.len() > Self::POINTS_MAX {
            let oldest = self.by_mib.iter().min_by_key(|(_, point)| point.last);
            if let Some(mib) = oldest.map(|(mib, _)| *mib) {
                self.by_mib.remove(&mib);
            }
        }
    }

    fn points(&self) -> Vec<AdviceRow> {
        let row = |(mib, point): (&u64, &MeasuredAt)| AdviceRow {
            size_bytes: mib * MIB,
            size_factor: None,
            hit_ratio: point.hit_ratio,
            reads_per_s: point.reads_per_s,
        };
        self.by_mib.iter().map(row).collect()
    }
}

/// The last quarter of an hour.
#[derive(Debug, Default)]
pub struct History(VecDeque<Sample>);

impl History {
    /// Adds the newest.
    pub fn push(&mut self, sample: Sample) {
        // The clock was set back: what has a time that is still to come would hide all until then.
        if self.last().is_some_and(|last| last.at_ms >= sample.at_ms) {
            self.0.clear();
        }
        if self.0.len() == KEEP {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Those after a moment, oldest first; all of them after one that is still to come.
    pub fn since(&self, at_ms: u64) -> Vec<Sample> {
        let is_to_come = self.last().is_some_and(|last| last.at_ms < at_ms);
        let at_ms = if is_to_come { 0 } else { at_ms };
        self.0.iter().filter(|sample| sample.at_ms > at_ms).cloned().collect()
    }

    /// The newest.
    pub fn last(&self) -> Option<&Sample> {
        self.0.back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::GIB;

    #[test]
    fn nothing_is_said_of_what_fits_a_pool_in_huge_pages() {
        let signals = Signals {
            machine_total_bytes: Some(16 * GIB),
            machine_available_bytes: Some(4 * GIB),
            ..Signals::default()
        };
        let pool = PoolState {
            resident_bytes: 8 * GIB,
            limit_bytes: 8 * GIB,
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
            wants_more: false,
        };
        let fits = |huge_bytes| fits(&Governor::new(), &signals, &pool, huge_bytes);
        assert!(fits(0) > Some(8 * GIB), "{:?}", fits(0));
        assert_eq!(fits(8 * GIB), None);
        // A few are something else's.
        assert_eq!(fits(64 * MIB), fits(0));
    }

    #[test]
    fn a_pool_that_is_being_loaded_has_no_hit_ratio() {
        assert_eq!(hit_ratio(1000.0, 250.0), Some(0.75));
        assert_eq!(hit_ratio(1706.0, 8312.0), None);
        // Of an idle server the probe is all there is: no word on the pool.
        assert_eq!(hit_ratio(20.0, 0.0), None);
        let status = |words: &str| {
            let name = "innodb_buffer_pool_load_status".to_owned();
            is_loading(&Named::from([(name, words.to_owned())]))
        };
        assert!(status("Loaded 4096/8312 pages") && status("Loading buffer pool(s) from /x"));
        assert!(!status("Buffer pool(s) load completed at 261127  1:50:00") && !status(""));
    }

    #[test]
    fn history_forgets_the_oldest() {
        let mut history = History::default();
        (0..KEEP as u64 + 10).for_each(|at_ms| history.push(Sample { at_ms, ..Sample::default() }));
        assert_eq!(history.since(0).len(), KEEP);
        assert_eq!(history.since(KEEP as u64 + 5).len(), 4);
        assert_eq!(history.last().unwrap().at_ms, KEEP as u64 + 9);
    }

    #[test]
    fn samples_go_on_when_the_clock_is_set_back() {
        let mut history = History::default();
        let mut push = |at_ms| {
            history.push(Sample { at_ms, ..Sample::default() });
            // As a page asks that has seen the sample of 9000.
            history.since(9000).iter().map(|sample| sample.at_ms).collect::<Vec<u64>>()
        };
        assert_eq!(push(8000), [8000], "of a page that was there before the program");
        assert_eq!(push(9000), [0; 0]);
        assert_eq!(push(5000), [5000]);
        assert_eq!(push(6000), [5000, 6000]);
    }

    #[test]
    fn sizes_are_measured_only_when_settled_and_busy() {
        let mut measured = Measured::default();
        let sample = Sample {
            pool_bytes: 64 * MIB,
            hit_ratio: Some(0.9),
            requests_per_s: 1000.0,
            reads_per_s: 100.0,
            ..Sample::default()
        };
        let now = Instant::now();
        measured.learn(&sample, now);
        assert!(measured.points().is_empty());
        let now = now + Measured::SETTLE;
        measured.learn(&Sample { requests_per_s: 10.0, ..sample.clone() }, now);
        assert!(measured.points().is_empty());
        measured.learn(&sample, now);
        assert_eq!(
            measured.points(),
            [AdviceRow {
                size_bytes: 64 * MIB,
                size_factor: None,
                hit_ratio: 0.9,
                reads_per_s: 100.0
            }]
        );
    }

    #[test]
    fn sizes_of_long_ago_and_too_many_of_them_are_forgotten() {
        let mut measured = Measured::default();
        let mut now = Instant::now();
        let mut settle_at = |mib: u64, measured: &mut Measured| {
            let sample = Sample {
                pool_bytes: mib * MIB,
                hit_ratio: Some(0.9),
                requests_per_s: 1000.0,
                ..Sample::default()
            };
            measured.learn(&sample, now);
            now += Measured::SETTLE;
            measured.learn(&sample, now);
            now
        };
        let sizes = |measured: &Measured| -> Vec<u64> {
            measured.points().iter().map(|point| point.size_bytes / MIB).collect()
        };
        let (most, more) = (Measured::POINTS_MAX as u64, 10);
        // The smallest are the newest.
        let now = (1..=most + more).rev().map(|mib| settle_at(mib, &mut measured)).last().unwrap();
        assert_eq!(sizes(&measured), (1..=most).collect::<Vec<_>>());
        measured.learn(&Sample::default(), now + Measured::FORGET_AFTER);
        assert_eq!(sizes(&measured), [0; 0]);
    }
}
