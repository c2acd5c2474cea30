//! The lab on a real server: a run in a memory cgroup under pressure gives a record of every
//! second, and leaves nothing.
//!
//! A separate program rather than a test of the harness's, since the lab starts the running
//! program again as its neighbour and its janitor.

use std::path::Path;
use std::process::ExitCode;

use tidepool_lab::engine::Engine;
use tidepool_lab::lab::{Lab, Moment, Plan, Settings};
use tidepool_lab::load::sysbench::{Distribution, Job};
use tidepool_lab::load::tables::DataSet;
use tidepool_lab::machine::neighbour::Pattern;
use tidepool_lab::progress::Progress;
use tidepool_lab::record::{Outcome, read_all};
use tidepool_lab::{report, subprocess};

const MEMORY: u64 = 512 << 20;
const ROWS: u64 = 20_000;

fn main() -> ExitCode {
    if let Some(code) = subprocess::main() {
        return code;
    }
    let out = std::env::temp_dir().join(format!("tidepool-lab-test-{}", std::process::id()));
    let engines = vec![Engine::Tidepool];
    let (memory_bytes, mysqld) = (MEMORY, None);
    let settings = Settings {
        engines,
        quick: true,
        memory_bytes,
        out: out.clone(),
        mysqld,
        only: Vec::new(),
        append: false,
        load: Default::default(),
    };
    let lab = Lab::open(settings).expect("the lab opens");
    if let Err(why) = lab.need_memory_cgroups() {
        tidepool_skip::skip_part(why);
        println!("0 passed, 0 failed, 1 skipped");
        return ExitCode::SUCCESS;
    }
    a_run_under_pressure_is_recorded(&lab, &out);
    let work_dir = lab.environment.run_dir();
    let groups = own_cgroups();
    drop(lab);
    assert_eq!(own_cgroups(), Vec::<String>::new(), "while it ran: {groups:?}");
    assert!(!work_dir.exists());
    std::fs::remove_dir_all(&out).expect("the results can be removed");
    println!("test a_run_under_pressure_is_recorded ... ok\n1 passed, 0 failed");
    ExitCode::SUCCESS
}

fn a_run_under_pressure_is_recorded(lab: &Lab, out: &Path) {
    let mut progress = Progress::hidden();
    let data = DataSet::one("smoke", ROWS);
    let dir = lab.data(Engine::Tidepool, &data, &mut progress).expect("the data can be made");
    let job = Job {
        script: "oltp_point_select".into(),
        database: "sbtest".into(),
        rows: ROWS,
        threads: 2,
        distribution: Distribution::Uniform,
    };
    let mut plan = Plan::new("smoke", Engine::Tidepool, &dir, job);
    plan.args = vec![Engine::Tidepool.pool_size_option(64 << 20)];
    plan.memory_limit = Some(MEMORY);
    // The neighbour is a process to be started, which takes seconds where others want the
    // processors.
    (plan.warm_up_s, plan.measure_s) = (1, 9);
    let mut own_group = Vec::new();
    let record = lab.run(&plan, &mut progress, |stage, moment| {
        if moment == Moment::After(1) {
            own_group = own_cgroups();
            stage.start_neighbour(Pattern::Step, 64 << 20)?;
        }
        Ok(())
    });
    let record = record.expect("the run begins");
    assert_eq!(record.outcome, Outcome::Finished);
    assert_eq!(own_group.len(), 1);
    assert_eq!(record.series.len(), 10);
    assert!(record.series.iter().all(|point| point.qps > 0.0 && point.cgroup_bytes > 0));
    assert!(record.series.iter().any(|point| point.neighbour_bytes >= 60 << 20), "{record:?}");
    assert_eq!(record.figure("neighbour_killed"), Some(0.0));
    lab.keep(&record).expect("the record can be written");
    assert_eq!(read_all(out).expect("it can be read back").len(), 1);
    assert_eq!(report::write(out).expect("a report can be made").charts, 1);
}

/// The memory cgroups that this process has made.
fn own_cgroups() -> Vec<String> {
    let prefix = format!("tidepool-lab-{}-", std::process::id());
    let mut names = Vec::new();
    for root in ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"] {
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        names.extend(
            entries
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .filter(|name| name.starts_with(&prefix)),
        );
    }
    names
}
