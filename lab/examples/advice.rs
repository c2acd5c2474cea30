//! Hit ratios that the advisor predicts, beside those that the policy has at full size, on
//! generated or given traces: `cargo run --release -p tidepool-lab --example advice [trace file]…`.

use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;

use tidepool_lab::policy::generate;
use tidepool_lab::policy::trace::Trace;
use tidepool_pool::ReplacementConfig;
use tidepool_pool::advisor::compare;

fn main() -> ExitCode {
    let mut traces = Vec::new();
    for path in std::env::args().skip(1) {
        let read = File::open(&path)
            .map_err(Into::into)
            .and_then(|file| Trace::read_from(&path, &mut BufReader::new(file)));
        match read {
            Ok(trace) => traces.push(trace),
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    if traces.is_empty() {
        traces = generate::all(20_000, 1_500_000, 1);
    }
    println!(
        "| trace | pages | size | predicted | measured | error |\n|---|---:|---:|---:|---:|---:|"
    );
    for trace in &traces {
        let pages = trace.distinct_pages();
        let frames = (pages / 3).max(64) as u32;
        let rows =
            match compare(&ReplacementConfig::default(), frames, trace, trace.requests.len() / 4) {
                Ok(rows) => rows,
                Err(error) => {
                    eprintln!("{}: {error}", trace.name);
                    return ExitCode::FAILURE;
                }
            };
        let mut errors = 0.0;
        for row in &rows {
            let error = (row.predicted - row.measured).abs();
            errors += error;
            println!(
                "| {} | {pages} | {frames} × {} | {:.4} | {:.4} | {error:.4} |",
                trace.name, row.size_factor, row.predicted, row.measured
            );
        }
        println!("| {} | {pages} | mean | | | {:.4} |", trace.name, errors / rows.len() as f64);
    }
    ExitCode::SUCCESS
}
