//! What all experiments share: settings, the machine, the data, and one run of a server under load.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mysql::prelude::Queryable;

use crate::engine::Engine;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::govern::Governing;
use crate::load::sysbench::{self, Job, Silence, Sysbench};
use crate::load::tables::{self, DataSet};
use crate::machine::cgroup::{Cgroup, Hierarchy};
use crate::machine::disk;
use crate::machine::janitor::Janitor;
use crate::machine::neighbour::{Neighbour, Pattern};
use crate::machine::registry::{self, Leftover, Registry};
use crate::machine::swap::SwapFile;
use crate::progress::Progress;
use crate::record::{Event, Outcome, Output, Point, Record, fnv64};
use crate::sample::Sampler;
use crate::server::{Server, ServerOptions};

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engines, which take turns.
    pub engines: Vec<Engine>,
    /// At most three minutes an experiment.
    pub quick: bool,
    /// The memory of the machine that an experiment pretends to have; its pools and tables are in proportion.
    pub memory_bytes: u64,
    /// Where results go.
    pub out: PathBuf,
    /// A MySQL server other than the one that was unpacked.
    pub mysqld: Option<PathBuf>,
    /// Only cases whose name contains this, in the experiments whose cases stand alone.
    pub only: Option<String>,
    /// Whether results are added to those of the same experiment that are there already.
    pub append: bool,
}

impl Settings {
    /// Whether a case of this name was asked for.
    pub fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|only| case.contains(only.as_str()))
    }
}

/// The laboratory: removes, when dropped, whatever its experiments have made.
#[derive(Debug)]
pub struct Lab {
    /// Where the programs are.
    pub environment: Environment,
    /// What the user chose.
    pub settings: Settings,
    output: Output,
    /// Directories that were read through since the program started.
    read_through: Mutex<BTreeSet<PathBuf>>,
    // Dropped in this order: the janitor has nothing left to do when it ends.
    registry: Registry,
    _janitor: Janitor,
}

impl Lab {
    /// Tidies up after earlier runs that were killed, and gets ready.
    ///
    /// # Errors
    /// If something of an earlier run can't be removed, or a directory can't be made.
    pub fn open(settings: Settings) -> Result<Lab> {
        let mut environment = Environment::find()?;
        if settings.mysqld.is_some() {
            environment.mysqld.clone_from(&settings.mysqld);
        }
        let lists = if rustix::process::geteuid().is_root() {
            PathBuf::from("/run/tidepool-lab")
        } else {
            environment.work_dir.join("lists")
        };
        for leftover in registry::clean_dead(&lists)? {
            tracing::info!("removed what a killed run had left: {leftover:?}");
        }
        let registry = Registry::create(&lists)?;
        registry.note(&Leftover::Directory(environment.run_dir()))?;
        let janitor = Janitor::start(registry.path())?;
        let output = Output::new(&settings.out)?;
        let read_through = Mutex::default();
        Ok(Lab { environment, settings, output, read_through, registry, _janitor: janitor })
    }

    /// Begins an experiment's results. Those of an earlier run go, unless [`Settings::append`] says otherwise.
    ///
    /// # Errors
    /// If the file can't be made.
    pub fn begin(&self, experiment: &str) -> Result<()> {
        if self.settings.append { Ok(()) } else { self.output.begin(experiment) }
    }

    /// Keeps a result.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn keep(&self, record: &Record) -> Result<()> {
        self.output.write(record)
    }

    /// The directory with an experiment's data for an engine. It is made the first time, which takes a while, and
    /// [read through](disk::read_through) the first time in a process.
    ///
    /// # Errors
    /// As [`tables::prepare`], and if a file can't be read.
    pub fn data(&self, engine: Engine, data: &DataSet, progress: &mut Progress) -> Result<PathBuf> {
        let dir = self.make_data(engine, data, progress)?;
        let mut read = self.read_through.lock().unwrap_or_else(PoisonError::into_inner);
        if read.insert(dir.clone()) {
            let text = format!("reading {} through", dir.display());
            disk::read_through(&dir, &mut |share| progress.say_share(&text, share))?;
        }
        progress.forget_time();
        Ok(dir)
    }

    fn make_data(
        &self,
        engine: Engine,
        data: &DataSet,
        progress: &mut Progress,
    ) -> Result<PathBuf> {
        let mut say = |text: &str, share: f64| progress.say_share(text, share);
        tables::prepare(&self.environment, engine, data, &mut say)
    }

    /// Makes data, unless it is there.
    ///
    /// # Errors
    /// As [`tables::prepare`].
    pub fn prepare(&self, data: &[(Engine, DataSet)]) -> Result<()> {
        let mut progress = Progress::new(1);
        for (engine, data) in data {
            self.make_data(*engine, data, &mut progress)?;
        }
        Ok(())
    }

    /// Says why experiments with memory cgroups can't be done here, if they can't.
    ///
    /// # Errors
    /// What is missing.
    pub fn need_memory_cgroups(&self) -> Result<()> {
        need_root("a memory cgroup and a swap file")?;
        Hierarchy::find("memory", "memory").map(drop).ok_or_else(|| {
            Error::Missing("no cgroup hierarchy with the memory controller is mounted".into())
        })
    }

    /// Says why reads can't be throttled here, if they can't.
    ///
    /// # Errors
    /// What is missing.
    pub fn need_read_throttle(&self) -> Result<()> {
        need_root("limiting the reads of a disk")?;
        Hierarchy::find("blkio", "io").map(drop).ok_or_else(|| {
            Error::Missing("no cgroup hierarchy with the blkio or io controller is mounted".into())
        })
    }

    /// Swap space until it is dropped.
    ///
    /// # Errors
    /// If there is no room.
    pub fn swap_file(&self, size_bytes: u64) -> Result<SwapFile> {
        SwapFile::create(&self.registry, &self.environment.work_dir, size_bytes)
    }

    /// A memory cgroup until it is dropped.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn memory_cgroup(&self, limit_bytes: u64) -> Result<Cgroup> {
        Cgroup::memory(&self.registry, limit_bytes)
    }

    /// A limit of reads until it is dropped.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn read_throttle(&self, reads_per_second: u32) -> Result<Cgroup> {
        Cgroup::read_throttle(&self.registry, &self.environment.work_dir, reads_per_second)
    }

    /// Runs a server under load as planned. A server that dies is a result, not an error.
    ///
    /// `each` is called at every [`Moment`] of the run.
    ///
    /// # Errors
    /// If the run could not begin, or `each` fails.
    pub fn run(
        &self,
        plan: &Plan,
        progress: &mut Progress,
        each: impl FnMut(&mut Stage, Moment) -> Result<()>,
    ) -> Result<Record> {
        let memory = plan.memory_limit.map(|limit| self.memory_cgroup(limit)).transpose()?;
        self.run_in(memory.as_ref(), plan, progress, each)
    }

    /// The same in a memory cgroup that others may be in as well.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_in(
        &self,
        memory: Option<&Cgroup>,
        plan: &Plan,
        progress: &mut Progress,
        mut each: impl FnMut(&mut Stage, Moment) -> Result<()>,
    ) -> Result<Record> {
        progress.say(&format!("{} {}: {}", plan.experiment, plan.label(), plan.scenario));
        let _lock = tables::lock(&plan.data_dir)?;
        let reads = plan.reads_per_second.map(|limit| self.read_throttle(limit)).transpose()?;
        let groups = [memory, reads.as_ref()];
        let options = ServerOptions {
            engine: plan.engine,
            data_dir: plan.data_dir.clone(),
            args: plan.server_args(),
            cgroup_procs: groups.into_iter().flatten().map(Cgroup::procs).collect(),
        };
        let mut record = plan.record(self.settings.quick);
        let starting = Instant::now();
        let mut server = match Server::start(&self.environment, options) {
            Ok(server) => server,
            Err(error) if memory.is_some_and(|group| group.memory_use().oom_kills > 0) => {
                tracing::info!("killed while starting: {error}");
                record.outcome = Outcome::OomKilled;
                return Ok(record);
            }
            Err(error) => {
                tracing::warn!("{error}");
                record.outcome = Outcome::Failed("the server did not start".into());
                return Ok(record);
            }
        };
        let ready_s = starting.elapsed().as_secs_f64();
        record.summary.insert("start_s".into(), ready_s);
        record.server_version = server.value("SELECT VERSION()")?.unwrap_or_default();
        if let Some(statement) = &plan.first_statement {
            server.execute(statement)?;
        }
        let governing =
            plan.governed.then(|| Governing::start(&server, server.dir())).transpose()?;
        let mut sampler = Sampler::new(&server, memory);
        let mut stage = Stage {
            server: &mut server,
            memory,
            governing,
            neighbour: None,
            neighbour_killed: false,
            events: Vec::new(),
            point: Point::default(),
            next_job: None,
            resizes: Vec::new(),
        };
        drive(plan, &mut stage, &mut sampler, &mut record, progress, &mut each)?;
        drop(stage.neighbour.take());
        if record.outcome == Outcome::Finished {
            each(&mut stage, Moment::End)?;
        }
        let returned = std::mem::take(&mut stage.resizes).into_iter();
        let slowest = returned.filter_map(|thread| thread.join().ok().flatten()).max();
        if let Some(slowest) = slowest {
            record.summary.insert("set_returned_ms".into(), slowest.as_secs_f64() * 1e3);
        }
        if let Some(mut governing) = stage.governing.take() {
            let steps = governing.steps();
            record.summary.insert("steps".into(), steps.count as f64);
            record.summary.insert("step_lost_ms_max".into(), steps.lost_ms_max as f64);
            record.summary.insert("step_took_ms_max".into(), steps.took_ms_max as f64);
            if record.outcome == Outcome::Finished && !governing.is_running() {
                record.outcome = Outcome::Failed("tidepool govern has ended".into());
            }
            self.output
                .log(&format!("{}-{}", plan.experiment, plan.scenario), &governing.text())?;
        }
        record.events = std::mem::take(&mut stage.events);
        let neighbour_killed = f64::from(u8::from(stage.neighbour_killed));
        record.summary.insert("neighbour_killed".into(), neighbour_killed);
        let status = sampler.pool_status();
        drop(sampler);
        if let Some(wait) = status.resize_longest_wait_us {
            record.summary.insert("resize_longest_wait_us".into(), wait as f64);
        }
        if let Some(group) = memory {
            record.summary.insert("oom_kills".into(), group.memory_use().oom_kills as f64);
        }
        if record.outcome == Outcome::Finished
            && plan.keeps_clean
            && server.is_running()
            && let Err(error) = server.stop()
        {
            // A server with a pool that is too large may get through its load and be killed when it writes its pages.
            if memory.is_none_or(|group| group.memory_use().oom_kills == 0) {
                return Err(error);
            }
            record.outcome = Outcome::OomKilled;
        }
        Ok(record)
    }
}

/// Puts the load on, and takes a point a second until the plan's end or the server's.
fn drive(
    plan: &Plan,
    stage: &mut Stage,
    sampler: &mut Sampler,
    record: &mut Record,
    progress: &mut Progress,
    each: &mut impl FnMut(&mut Stage, Moment) -> Result<()>,
) -> Result<()> {
    let mut load = Sysbench::start(stage.server.socket(), &plan.job)?;
    let warm_up = i64::from(plan.warm_up_s);
    for at_s in 1 - warm_up..=i64::from(plan.measure_s) {
        if at_s == 1 {
            each(stage, Moment::After(0)).or_else(|error| stage.unless_dead(error))?;
        }
        if let Some(job) = stage.next_job.take() {
            drop(load);
            load = Sysbench::start(stage.server.socket(), &job)?;
        }
        let second = match load.next_second() {
            Ok(second) => second,
            Err(silence) => {
                record.outcome = stage.why_silent(silence);
                break;
            }
        };
        stage.point = sampler.point(at_s as f64, &second, stage.neighbour_bytes());
        record.series.push(stage.point);
        if let Ok(measured) = u32::try_from(at_s)
            && measured > 0
        {
            each(stage, Moment::After(measured)).or_else(|error| stage.unless_dead(error))?;
        }
        progress.second();
    }
    Ok(())
}

fn need_root(what: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::Missing(format!("{what} needs root")))
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command.
    pub experiment: &'static str,
    /// Which of its cases.
    pub scenario: String,
    /// The engine.
    pub engine: Engine,
    /// What differs from its defaults, for people.
    pub variant: String,
    /// The data directory.
    pub data_dir: PathBuf,
    /// Options of the server.
    pub args: Vec<String>,
    /// Begin with what an earlier run has left on the list of hot pages. Mostly that would be another experiment's.
    pub starts_warm: bool,
    /// The limit of the memory cgroup that the server is in.
    pub memory_limit: Option<u64>,
    /// The limit of the server's reads.
    pub reads_per_second: Option<u32>,
    /// The load.
    pub job: Job,
    /// Seconds before the measuring.
    pub warm_up_s: u32,
    /// Seconds of measuring.
    pub measure_s: u32,
    /// Run before the load starts, for instance to fill the pool.
    pub first_statement: Option<String>,
    /// With `tidepool govern` beside the server, from before the load starts.
    pub governed: bool,
    /// Stop in order afterwards, so that the next run on this directory needs no recovery: for loads that write.
    pub keeps_clean: bool,
}

impl Plan {
    /// A run that only needs an engine, its data and a load; other fields are set afterwards.
    pub fn new(experiment: &'static str, engine: Engine, data_dir: &Path, job: Job) -> Plan {
        Plan {
            experiment,
            scenario: String::new(),
            engine,
            variant: String::new(),
            data_dir: data_dir.to_path_buf(),
            args: Vec::new(),
            starts_warm: false,
            memory_limit: None,
            reads_per_second: None,
            job,
            warm_up_s: 5,
            measure_s: 10,
            first_statement: None,
            governed: false,
            keeps_clean: false,
        }
    }

    /// Its seconds, with those that starting and stopping take, roughly.
    pub fn duration_s(&self) -> u32 {
        self.warm_up_s + self.measure_s + 3
    }

    /// All options of its server.
    fn server_args(&self) -> Vec<String> {
        let cold = self.engine.cold_start_option().filter(|_| !self.starts_warm);
        self.args.iter().cloned().chain(cold.map(str::to_string)).collect()
    }

    fn label(&self) -> String {
        format!("{} {}", self.engine.key(), self.variant).trim_end().to_string()
    }

    /// A record of this plan with nothing measured yet.
    pub fn record(&self, quick: bool) -> Record {
        let mut config = BTreeMap::from([
            ("server".to_string(), self.server_args().join(" ")),
            ("script".to_string(), self.job.script.clone()),
            ("rows".to_string(), self.job.rows.to_string()),
            ("threads".to_string(), self.job.threads.to_string()),
            ("distribution".to_string(), self.job.distribution.key().to_string()),
            ("warm_up_s".to_string(), self.warm_up_s.to_string()),
            ("measure_s".to_string(), self.measure_s.to_string()),
            ("sysbench".to_string(), sysbench::version().unwrap_or_default()),
        ]);
        if let Some(limit) = self.memory_limit {
            config.insert("memory_limit_bytes".into(), limit.to_string());
        }
        if let Some(limit) = self.reads_per_second {
            config.insert("reads_per_second".into(), limit.to_string());
        }
        let text: String = config.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        Record {
            experiment: self.experiment.into(),
            scenario: self.scenario.clone(),
            engine: self.engine.key().into(),
            variant: self.variant.clone(),
            server_version: String::new(),
            config_hash: format!("{:016x}", fnv64(text.as_bytes())),
            config,
            quick,
            started_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            outcome: Outcome::Finished,
            events: Vec::new(),
            series: Vec::new(),
            summary: BTreeMap::new(),
        }
    }
}

/// When an experiment may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So many measured seconds have passed; first 0.
    After(u32),
    /// The load has ended as planned, and the server is still there.
    End,
}

/// What an experiment can do in the middle of a run.
#[derive(Debug)]
pub struct Stage<'a> {
    /// The server under load.
    pub server: &'a mut Server,
    /// Its memory cgroup.
    pub memory: Option<&'a Cgroup>,
    /// The second that has just passed.
    pub point: Point,
    governing: Option<Governing>,
    neighbour: Option<Neighbour>,
    neighbour_killed: bool,
    events: Vec<Event>,
    next_job: Option<Job>,
    /// Statements on their way, which return how long they took.
    resizes: Vec<JoinHandle<Option<Duration>>>,
}

impl Stage<'_> {
    /// Replaces the load from the next second on.
    pub fn change_load(&mut self, job: Job) {
        self.note(format!("load moves to {}", job.database));
        self.next_job = Some(job);
    }

    /// Changes the pool's size on line; does not wait for the statement to return.
    ///
    /// # Errors
    /// If the server takes no connection.
    pub fn set_pool_size(&mut self, size_bytes: u64) -> Result<()> {
        let statement = self.server.options().engine.set_pool_size(size_bytes);
        let mut conn = self.server.connect("")?;
        self.note(format!("pool → {} MiB", size_bytes >> 20));
        self.resizes.push(std::thread::spawn(move || {
            let start = Instant::now();
            match conn.query_drop(&statement) {
                Ok(()) => Some(start.elapsed()),
                Err(error) => {
                    tracing::warn!("{statement}: {error}");
                    None
                }
            }
        }));
        Ok(())
    }

    /// Ends the neighbour, if there is one.
    pub fn stop_neighbour(&mut self) {
        self.neighbour = None;
    }

    /// Steps that `tidepool govern` has taken so far, if there is one.
    pub fn governor_steps(&self) -> u64 {
        self.governing.as_ref().map_or(0, |governing| governing.steps().count)
    }

    /// Notes that something is done now.
    pub fn note(&mut self, what: impl Into<String>) {
        self.events.push(Event { at_s: self.point.at_s.max(0.0), what: what.into() });
    }

    /// Starts a neighbour in the server's memory cgroup.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start_neighbour(&mut self, pattern: Pattern, peak_bytes: u64) -> Result<()> {
        let groups: Vec<PathBuf> = self.memory.map(Cgroup::procs).into_iter().collect();
        self.neighbour = Some(Neighbour::start(pattern, peak_bytes, &groups)?);
        self.note(format!("neighbour: {}", pattern.key()));
        Ok(())
    }

    fn neighbour_bytes(&mut self) -> u64 {
        let Some(neighbour) = &mut self.neighbour else { return 0 };
        self.neighbour_killed |= neighbour.was_killed();
        neighbour.resident_bytes()
    }

    /// What goes wrong because the server has died is not an error: the load will notice as well.
    fn unless_dead(&mut self, error: Error) -> Result<()> {
        std::thread::sleep(Duration::from_millis(200));
        if self.server.is_running() { Err(error) } else { Ok(()) }
    }

    fn why_silent(&mut self, silence: Silence) -> Outcome {
        let oom_killed = self.memory.is_some_and(|group| group.memory_use().oom_kills > 0);
        // A killed process is gone a moment later.
        std::thread::sleep(Duration::from_millis(200));
        match (self.server.is_running(), silence) {
            (false, _) if oom_killed => Outcome::OomKilled,
            (false, _) => Outcome::Failed("the server has died".into()),
            (true, Silence::Ended) => Outcome::Failed("sysbench gave up".into()),
            (true, Silence::Stuck) => Outcome::Failed("sysbench was silent for 10 s".into()),
        }
    }
}
