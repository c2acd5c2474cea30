//! All workloads on all stores, by turns.

use crate::bytes::{GIB, human};
use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::process::{self, End};
use crate::store::Kind;
use crate::task::{ROWS_MIN, Task};
use crate::workload::{Size, Workload};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The share of all cores that others may have before a run is tried again. Kernel threads that
/// work for the store have some of it.
const OTHERS_MAX: f64 = 0.2;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    pub stores: Vec<Kind>,
    pub workloads: Vec<Workload>,
    /// Rows of what fits the memory; half of the memory, if not said.
    pub keys: Option<u64>,
    /// How long each value is.
    pub value_bytes: usize,
    /// How many threads, where a workload doesn't say.
    pub threads: usize,
    /// How long each measurement takes.
    pub seconds: f64,
    /// The memory that each store may use.
    pub memory_bytes: u64,
    /// Where the data go.
    pub dir: PathBuf,
    /// How often.
    pub repeat: u32,
    /// How often a run is tried until others leave it alone; then the one with which they
    /// interfered least counts.
    pub tries: u32,
}

/// What was measured.
#[derive(Debug, Default)]
pub struct Results {
    /// Of each workload on each store, one a repeat.
    pub figures: HashMap<(Workload, Kind), Vec<Figures>>,
    /// How often one was killed because it wanted more memory than its cgroup has.
    pub killed: HashMap<(Workload, Kind), u32>,
}

impl Settings {
    /// How many rows are `size`.
    pub fn rows(&self, size: Size) -> u64 {
        let row_bytes = size_of::<u64>() as u64 + self.value_bytes as u64;
        let rows = match size {
            Size::Fits => self.keys.unwrap_or(self.memory_bytes / 2 / row_bytes),
            Size::Full => self.memory_bytes / row_bytes,
            Size::Double => self.memory_bytes * 2 / row_bytes,
            Size::Large => self.memory_bytes * 4 / row_bytes,
        };
        rows.max(ROWS_MIN)
    }

    /// What a run may need on the disk: a store that copies before it writes has all of it several
    /// times, one that may not forget old versions grows as long as it is updated, and logs come on
    /// top.
    fn disk_bytes_needed(&self) -> u64 {
        let row_bytes = self.value_bytes as u64 + 8;
        let rows = self.workloads.iter().map(|workload| self.rows(workload.size()));
        rows.max().unwrap_or(0) * row_bytes * 6
            + (self.seconds.ceil() as u64) * (200 << 20)
            + GIB / 2
    }

    fn check_disk_space(&self) -> Result<()> {
        let stat =
            rustix::fs::statvfs(&self.dir).map_err(|error| Error::at(&self.dir)(error.into()))?;
        let (free, needed) = (stat.f_bavail * stat.f_frsize, self.disk_bytes_needed());
        if free >= needed {
            return Ok(());
        }
        Err(Error::NoSpace { dir: self.dir.clone(), free: human(free), needed: human(needed) })
    }

    /// Runs a task, again if others had too much of the machine meanwhile. Which run counts is
    /// decided by that alone, not by its figures.
    fn run_alone(&self, program: &Path, task: &Task, stop: &AtomicBool) -> Result<End> {
        let mut best: Option<Figures> = None;
        for _ in 0..self.tries {
            std::fs::create_dir(&task.dir).map_err(Error::at(&task.dir))?;
            let end = process::run(program, task, task.workload.is_confined(), stop)?;
            std::fs::remove_dir_all(&task.dir).map_err(Error::at(&task.dir))?;
            let End::Figures(figures) = end else { return Ok(end) };
            if best.is_none_or(|best| figures.others < best.others) {
                best = Some(figures);
            }
            if figures.others <= OTHERS_MAX {
                break;
            }
        }
        Ok(End::Figures(best.expect("there is at least one try")))
    }

    fn task(&self, store: Kind, workload: Workload, dir: &Path) -> Task {
        Task {
            store,
            workload,
            dir: dir.into(),
            rows: self.rows(workload.size()),
            value_bytes: self.value_bytes,
            threads: self.threads,
            seconds: self.seconds,
            memory_bytes: self.memory_bytes,
        }
    }

    /// Measures all, each in a process of `program`, until `stop`.
    ///
    /// # Errors
    /// The first. Nothing is left in the directory then, either.
    pub fn run(&self, program: &Path, stop: &AtomicBool) -> Result<Results> {
        std::fs::create_dir_all(&self.dir).map_err(Error::at(&self.dir))?;
        self.check_disk_space()?;
        let scratch = Scratch::create(&self.dir)?;
        let runs = self.repeat as usize * self.workloads.len() * self.stores.len();
        let progress = Progress::new(runs as u64);
        let mut results = Results::default();
        for repeat in 1..=self.repeat {
            for &workload in &self.workloads {
                for &store in &self.stores {
                    progress.begin(repeat, workload, store);
                    let task = self.task(store, workload, &scratch.0.join("store"));
                    let end = self.run_alone(program, &task, stop)?;
                    progress.end(&end);
                    let of = (workload, store);
                    match end {
                        End::Figures(figures) => {
                            results.figures.entry(of).or_default().push(figures);
                        }
                        End::OutOfMemory => {
                            *results.killed.entry(of).or_default() += 1;
                        }
                    }
                }
            }
        }
        Ok(results)
    }
}

/// A directory that goes with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn create(dir: &Path) -> Result<Scratch> {
        let path = dir.join(format!("tidepool-bench-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(Error::at(&path))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}

/// A bar; a line a run where the output is no terminal.
struct Progress(ProgressBar);

impl Progress {
    fn new(runs: u64) -> Progress {
        let bar = ProgressBar::new(runs);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {eta} left  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(250));
        Progress(bar)
    }

    fn begin(&self, repeat: u32, workload: Workload, store: Kind) {
        let text = format!("turn {repeat}: {}: {}", store.name(), workload.name());
        if self.0.is_hidden() {
            eprintln!("{text}");
        }
        self.0.set_message(text);
    }

    fn end(&self, end: &End) {
        self.0.inc(1);
        if self.0.is_hidden() {
            match end {
                End::Figures(figures) => {
                    let others = figures.others * 100.0;
                    eprintln!(
                        "    {:.0}/s, others had {others:.0} % of the cores",
                        figures.per_second
                    );
                }
                End::OutOfMemory => eprintln!("    killed"),
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
