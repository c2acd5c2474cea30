//! The plan of a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::engine::Engine;
use crate::load::sysbench::{self, Job};
use crate::machine::counters::swappiness;
use crate::record::{CHOSEN, Outcome, Record, fnv64};

use super::Settings;

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command.
    pub experiment: &'static str,
    /// Which of its cases.
    pub scenario: String,
    pub engine: Engine,
    /// What differs from its defaults, for people.
    pub variant: String,
    /// The data directory.
    pub data_dir: PathBuf,
    /// Options of the server.
    pub args: Vec<String>,
    /// Begin with what an earlier run has left on the list of hot pages. Mostly that would be
    /// another experiment's.
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
    /// Stop in order afterwards, so that the next run on this directory needs no recovery: for
    /// loads that write.
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
    pub(super) fn server_args(&self) -> Vec<String> {
        let cold = self.engine.cold_start_option().filter(|_| !self.starts_warm);
        self.args.iter().cloned().chain(cold.map(str::to_string)).collect()
    }

    pub(super) fn label(&self) -> String {
        format!("{} {}", self.engine.key(), self.variant).trim_end().to_string()
    }

    /// A record of this plan with nothing measured yet.
    pub fn record(&self, settings: &Settings) -> Record {
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
        let chosen = settings.load.options();
        if !chosen.is_empty() {
            config.insert(CHOSEN.into(), chosen.join(" "));
        }
        if let Some(limit) = self.memory_limit {
            config.insert("memory_limit_bytes".into(), limit.to_string());
        }
        if let Some(limit) = self.reads_per_second {
            config.insert("reads_per_second".into(), limit.to_string());
        }
        let text: String = config.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        let config_hash = format!("{:016x}", fnv64(text.as_bytes()));
        // Said, but no reason not to compare: the machine's, not the plan's, as its speed is.
        if let Some(swappiness) = swappiness() {
            config.insert("vm.swappiness".into(), swappiness.to_string());
        }
        Record {
            experiment: self.experiment.into(),
            scenario: self.scenario.clone(),
            engine: self.engine.key().into(),
            variant: self.variant.clone(),
            server_version: String::new(),
            config_hash,
            config,
            quick: settings.quick,
            started_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            outcome: Outcome::Finished,
            events: Vec::new(),
            series: Vec::new(),
            summary: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Load;
    use crate::load::sysbench::Distribution;

    #[test]
    fn a_load_of_ones_own_tells_runs_apart() {
        let record = |threads: Option<u32>| {
            let load = Load { threads, ..Load::default() };
            let settings = Settings { load, ..Settings::usual() };
            let job = Job::point_selects(1, settings.threads(16), Distribution::Uniform);
            Plan::new("swap", Engine::InnoDb, Path::new("data"), job).record(&settings)
        };
        let (usual, own) = (record(None), record(Some(32)));
        assert_eq!((usual.config["threads"].as_str(), usual.config.get(CHOSEN)), ("16", None));
        assert_eq!((&*own.config["threads"], &*own.config[CHOSEN]), ("32", "--threads 32"));
        assert_ne!(usual.config_hash, own.config_hash);
    }

    #[test]
    fn the_machine_is_told_and_does_not_tell_runs_apart() {
        let job = Job::point_selects(1, 1, Distribution::Uniform);
        let plan = Plan::new("swap", Engine::InnoDb, Path::new("data"), job);
        let record = plan.record(&Settings::usual());
        assert!(record.config.contains_key("vm.swappiness"));
        let compared = record.config.iter().filter(|(key, _)| *key != "vm.swappiness");
        let text: String = compared.map(|(key, value)| format!("{key}={value}\n")).collect();
        assert_eq!(record.config_hash, format!("{:016x}", fnv64(text.as_bytes())));
    }
}
