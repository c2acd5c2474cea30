//! What all experiments share: settings, the machine, the data, and one run of a server under load.
//!
//! Here: what an experiment asks of the lab. `load`: the user's choices of the load. `plan`: the
//! plan of a run. `run`: a run, from the server's start to its end. `stage`: what an experiment can
//! do in the middle of one.
//!
//! Everything made outside of the working directory (cgroups, swap files) is noted in the registry
//! before it is made, and removed when its value is dropped, or by the janitor if this process is
//! gone.

mod load;
mod plan;
mod run;
mod stage;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

pub use load::{Load, Takes};
pub use plan::Plan;
pub use stage::{Moment, Stage};

use crate::engine::Engine;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::load::tables::{self, DataSet};
use crate::machine::cgroup::{Cgroup, Hierarchy};
use crate::machine::disk;
use crate::machine::janitor::Janitor;
use crate::machine::registry::{self, Leftover, Registry};
use crate::machine::swap::SwapFile;
use crate::progress::Progress;
use crate::record::{Earlier, Output, Record};

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engines, which take turns.
    pub engines: Vec<Engine>,
    /// At most three minutes an experiment.
    pub quick: bool,
    /// The memory of the machine that an experiment pretends to have; its pools and tables are in
    /// proportion.
    pub memory_bytes: u64,
    /// Where results go.
    pub out: PathBuf,
    /// A MySQL server other than the one that was unpacked.
    pub mysqld: Option<PathBuf>,
    /// Only cases whose name contains one of these, if there are any, in the experiments whose
    /// cases stand alone.
    pub only: Vec<String>,
    /// Whether results are added to those of the same experiment that are there already. Without it
    /// they replace them, or with `only` those of the cases that are run.
    pub append: bool,
    /// What the user chose of the load.
    pub load: Load,
}

impl Settings {
    /// Client threads, where the experiment lets the user choose them.
    pub fn threads(&self, usual: u32) -> u32 {
        self.load.threads.unwrap_or(usual)
    }

    /// Seconds of measuring, where the experiment lets the user choose them.
    pub fn seconds(&self, usual: u32) -> u32 {
        self.load.seconds.unwrap_or(usual)
    }

    /// Whether a case of this name was asked for.
    pub fn wants(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| case.contains(only.as_str()))
    }

    /// Those of a test.
    #[cfg(test)]
    pub(crate) fn usual() -> Settings {
        Settings {
            engines: Vec::new(),
            quick: false,
            memory_bytes: 1 << 30,
            out: "out".into(),
            mysqld: None,
            only: Vec::new(),
            append: false,
            load: Load::default(),
        }
    }

    fn earlier(&self) -> Earlier {
        match (self.append, self.only.is_empty()) {
            (true, _) => Earlier::Stay,
            (false, false) => Earlier::GoByCase,
            (false, true) => Earlier::Go,
        }
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
        let output = Output::new(&settings.out, settings.earlier())?;
        let read_through = Mutex::default();
        Ok(Lab { environment, settings, output, read_through, registry, _janitor: janitor })
    }

    /// Begins an experiment's results. Those of an earlier command go, unless the [`Settings`] say
    /// otherwise.
    ///
    /// # Errors
    /// If the file can't be made.
    pub fn begin(&self, experiment: &str) -> Result<()> {
        self.output.begin(experiment)
    }

    /// Keeps a result.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn keep(&self, record: &Record) -> Result<()> {
        self.output.write(record)
    }

    /// The directory with an experiment's data for an engine. It is made the first time, which
    /// takes a while, and [read through](disk::read_through) the first time in a process.
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

    /// Says why the processors of a server can't be limited here, if they can't.
    ///
    /// # Errors
    /// What is missing.
    pub fn need_cpu_cgroups(&self) -> Result<()> {
        need_root("limiting the processors of a server")?;
        Hierarchy::find("cpu", "cpu").map(drop).ok_or_else(|| {
            Error::Missing("no cgroup hierarchy with the cpu controller is mounted".into())
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

    /// A limit of processors, as 0.5, until it is dropped.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn cpu_cgroup(&self, cpus: f64) -> Result<Cgroup> {
        Cgroup::cpu(&self.registry, cpus)
    }

    /// A limit of reads until it is dropped.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn read_throttle(&self, reads_per_second: u32) -> Result<Cgroup> {
        Cgroup::read_throttle(&self.registry, &self.environment.work_dir, reads_per_second)
    }
}

fn need_root(what: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::Missing(format!("{what} needs root")))
}
