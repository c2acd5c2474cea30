//! `tidepool-bench`: the embedded engine beside embedded peers.

use clap::Parser;
use clap::error::ErrorKind;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tidepool_bench::row::VALUE_BYTES_MIN;
use tidepool_bench::store::Kind;
use tidepool_bench::turns::Settings;
use tidepool_bench::workload::Workload;
use tidepool_bench::{Error, Result, bytes, process, table};

/// Measures the embedded engine against embedded peers.
///
/// Each workload on each store runs in a separate process, the stores by turns. The result is a
/// page of markdown: medians, and Tidepool's ratio to the best peer.
#[derive(Parser)]
#[command(name = "tidepool-bench", version)]
struct Args {
    /// Which stores.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Kind::ALL)]
    stores: Vec<Kind>,
    /// Which workloads; all if not said.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Workload::ALL, hide_default_value = true)]
    workloads: Vec<Workload>,
    /// Rows of the data that fits the memory; as many as fill half of it, if not said.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(200..))]
    keys: Option<u64>,
    /// Length of each value.
    #[arg(long, value_name = "N", default_value_t = 200)]
    value_bytes: u64,
    /// Threads of the point reads by N threads.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// How long each measurement takes; a load takes what it takes.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// The memory that each store may use.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = bytes::parse)]
    memory: u64,
    /// Where the data go while it runs: a directory on the disk that is meant.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// How often everything is measured.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// How often a run is tried, on a machine that others use too, until they have at most a fifth
    /// of the cores meanwhile.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    tries: u32,
    /// Where the page goes; to the standard output, if not said.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The program itself uses this.
    #[arg(long, hide = true)]
    one: Option<String>,
}

/// What a value may be at most: Tidepool puts longer ones beside the tree, and that would be
/// another comparison.
const VALUE_BYTES_MAX: u64 = 4000;
/// Tidepool's least pool.
const MEMORY_BYTES_MIN: u64 = 4 << 20;
const SECONDS: std::ops::RangeInclusive<f64> = 0.01..=3600.0;

fn settings(args: &Args) -> Result<Settings> {
    let usage = |text: String| Err(Error::Usage(text));
    if !SECONDS.contains(&args.seconds) {
        return usage(format!("--seconds {}: must be 0.01 to 3600", args.seconds));
    }
    if !(VALUE_BYTES_MIN as u64..=VALUE_BYTES_MAX).contains(&args.value_bytes) {
        let range = format!("{VALUE_BYTES_MIN} to {VALUE_BYTES_MAX}");
        return usage(format!("--value-bytes {}: must be {range}", args.value_bytes));
    }
    if args.memory < MEMORY_BYTES_MIN {
        return usage(format!("--memory {}: must be at least 4M", args.memory));
    }
    let mut stores = args.stores.clone();
    let mut workloads = args.workloads.clone();
    // In the order of the table, each once.
    stores = Kind::ALL.into_iter().filter(|kind| stores.contains(kind)).collect();
    workloads = Workload::ALL.into_iter().filter(|workload| workloads.contains(workload)).collect();
    Ok(Settings {
        stores,
        workloads,
        keys: args.keys,
        value_bytes: args.value_bytes as usize,
        threads: args.threads as usize,
        seconds: args.seconds,
        memory_bytes: args.memory,
        dir: args.dir.clone(),
        repeat: args.repeat,
        tries: args.tries,
    })
}

/// Leaves out what this machine can't do, and says so.
fn leave_out_confined(settings: &mut Settings) {
    if !settings.workloads.iter().any(|workload| workload.is_confined()) {
        return;
    }
    if let Err(error) = process::Cgroup::create(process::memory_limit(settings.memory_bytes)) {
        eprintln!("reads-confined is left out, it needs a memory cgroup: {error}");
        settings.workloads.retain(|workload| !workload.is_confined());
    }
}

/// Where the page goes. That it can be written is seen before minutes of measuring, not after. One
/// that was there stays as it is until there is a new one; none that was made is left empty.
struct Page {
    path: PathBuf,
    is_new: bool,
}

impl Page {
    fn at(path: &Path) -> Result<Page> {
        let is_new = !path.exists();
        let mut options = File::options();
        options.append(true).create(true).open(path).map_err(Error::at(path))?;
        Ok(Page { path: path.into(), is_new })
    }

    fn write(mut self, text: &str) -> Result<()> {
        self.is_new = false;
        std::fs::write(&self.path, text).map_err(Error::at(&self.path))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if let Some(json) = &args.one {
        println!("{}", process::run_one(json)?);
        return Ok(());
    }
    let mut settings = settings(args)?;
    leave_out_confined(&mut settings);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Without it an interrupted run leaves its files, no more.
        let _ = signal_hook::flag::register(signal, stop.clone());
    }
    let page = args.out.as_deref().map(Page::at).transpose()?;
    let program = std::env::current_exe().map_err(Error::at("the program itself".as_ref()))?;
    let results = settings.run(&program, &stop)?;
    let command: Vec<String> = std::env::args().skip(1).collect();
    let command = format!("tidepool-bench {}", command.join(" "));
    let text = table::render(&settings, &results, command.trim());
    match page {
        Some(page) => page.write(&text),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let is_answer =
                matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let _ = error.print();
            return if is_answer { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
