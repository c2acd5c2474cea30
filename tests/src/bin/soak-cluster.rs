//! `soak-cluster --minutes M --seed S`: three replicating servers, writers, and kills, for as long
//! as wanted. See `tidepool_tests::cluster`.
//!
//! A run of 40 events has new servers. The first run has the seed, each further one the next. A
//! failure is one line, with the command that runs its seed again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::prelude::*;
use tidepool_tests::cluster::{Soak, run_soak};
use tidepool_tests::command_line::{self, duration};

const USAGE: &str = "soak-cluster [--minutes M] [--seed S] [--events N]";

struct Options {
    duration: Duration,
    seed: u64,
    /// Events of one run.
    events: u32,
}

fn options() -> Result<Options, lexopt::Error> {
    let mut options = Options { duration: Duration::from_secs(3600), seed: 1, events: 40 };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("minutes") => options.duration = duration(&mut parser, 60)?,
            Long("seed") => options.seed = parser.value()?.parse()?,
            Long("events") => options.events = parser.value()?.parse()?,
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    command_line::main(USAGE, options(), soak)
}

/// Runs seeds one after the other; whether all passed.
fn soak(options: &Options) -> bool {
    let begun = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    let mut seed = options.seed;
    while let Some(left) = options.duration.checked_sub(begun.elapsed()) {
        let soak = Soak { seed, events: options.events, duration: left, verbose: true };
        // A server that does not come back is a panic, and a failure like others.
        let result = std::panic::catch_unwind(|| run_soak(&soak));
        let replay = format!("scripts/soak-cluster --seed {seed} --events {}", options.events);
        match result {
            Ok(summary) if summary.violations.is_empty() => {
                println!("ok: seed {seed}: {summary}");
                passed += 1;
            }
            Ok(summary) => {
                println!("FAILED: {}: {replay}", summary.violations.join("; "));
                failed += 1;
            }
            Err(_) => {
                println!("FAILED: a panic, described above: {replay}");
                failed += 1;
            }
        }
        seed += 1;
    }
    println!("{passed} passed, {failed} failed");
    failed == 0
}
