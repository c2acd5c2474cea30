//! `tidepool lab policy`: the table of miss ratios, on generated or recorded traces.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use clap::Args;

use super::generate;
use super::table::{self, NAMES, SIZES, Size, Table, measure};
use super::trace::{Trace, read};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::record::DEFAULT_OUT;

/// What to replay.
#[derive(Args, Debug)]
pub struct Options {
    /// A recorded trace (`SET GLOBAL tidepool_page_trace_file`); can be given again. Without any,
    /// traces are generated.
    #[arg(long, num_args = 1.., value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Sizes of the pool: pages, or a share of the pages that a trace touches, as 25%. [default:
    /// 5%,10%,25%,50%,80%]
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<Size>,
    /// The policies. [default: all]
    #[arg(long, value_delimiter = ',', value_parser = NAMES)]
    policies: Vec<String>,
    /// Pages of the data that generated traces are about.
    #[arg(long, default_value = "4000", value_parser = clap::value_parser!(u64).range(100..))]
    pages: u64,
    /// Requests of a generated trace, roughly. [default: 100 a page]
    #[arg(long)]
    requests: Option<usize>,
    /// Seeds of generated traces: the table has the means.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,
    /// The directory for policies.md and policies.json.
    #[arg(long, default_value = DEFAULT_OUT)]
    out: PathBuf,
}

/// Measures, prints the table in Markdown and writes it to `policies.md` and `policies.json`.
///
/// # Errors
/// If a trace can't be read, or a result not be written.
pub fn run(options: &Options) -> Result<()> {
    let table = make(options)?;
    fs::create_dir_all(&options.out).map_err(Error::at(&options.out))?;
    let markdown = table.markdown();
    let json = serde_json::to_string_pretty(&table).expect("a table has a JSON form");
    for (name, text) in [("policies.md", &markdown), ("policies.json", &json)] {
        let path = options.out.join(name);
        fs::write(&path, text).map_err(Error::at(&path))?;
    }
    crate::command::print_line(&markdown)
}

fn make(options: &Options) -> Result<Table> {
    let sizes = if options.sizes.is_empty() { &SIZES[..] } else { &options.sizes };
    let policies: Vec<&str> = match options.policies.is_empty() {
        true => NAMES.to_vec(),
        false => options.policies.iter().map(String::as_str).collect(),
    };
    if !options.trace.is_empty() {
        let traces = options.trace.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
        return Ok(shown(&traces, &policies, sizes, 1, &Mutex::new(None)));
    }
    let requests = options.requests.unwrap_or(options.pages as usize * 100);
    let progress = Mutex::new(None);
    // One seed's traces at a time are in memory.
    let tables = options.seeds.iter().map(|&seed| {
        let traces = generate::all(options.pages, requests, seed);
        shown(&traces, &policies, sizes, options.seeds.len(), &progress)
    });
    let tables: Vec<Table> = tables.collect();
    Ok(table::mean(&tables).expect("there is a seed"))
}

/// Measures, and shows the progress; the caller does the same `times` times.
fn shown(
    traces: &[Trace],
    policies: &[&str],
    sizes: &[Size],
    times: usize,
    progress: &Mutex<Option<Progress>>,
) -> Table {
    let replays = traces.len() * policies.len() * sizes.len() * times;
    let lock = || progress.lock().expect("showing progress does not panic");
    lock().get_or_insert_with(|| Progress::new(replays as u32));
    measure(traces, policies, sizes, |trace, policy| {
        if let Some(progress) = &mut *lock() {
            progress.say(&format!("{policy} on {}", trace.name));
            progress.second();
        }
    })
}
