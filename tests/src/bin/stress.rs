//! `stress --seed S --minutes N`: writers beside ALTERs, KILLs, changing settings and crashes.
//! See `tidepool_tests::stress`.

use std::process::ExitCode;
use std::time::Duration;

use lexopt::prelude::*;
use tidepool_tests::server::Engine;
use tidepool_tests::stress::{Settings, run};

const USAGE: &str = "stress [--seed S] [--minutes N] [--engine Tidepool|InnoDB] [--no-crashes] \
                     [-- server options]";

fn settings() -> Result<Settings, lexopt::Error> {
    let mut settings = Settings::new(Engine::from_environment(), 1);
    settings.verbose = true;
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("engine") => settings.engine = Engine::by_name(&parser.value()?.string()?)?,
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("minutes") => {
                let minutes: f64 = parser.value()?.parse()?;
                settings.duration = Duration::try_from_secs_f64(60.0 * minutes)
                    .map_err(|error| error.to_string())?;
            }
            Long("no-crashes") => settings.crashes = false,
            Value(value) => settings.args.push(value.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(settings)
}

fn main() -> ExitCode {
    let settings = match settings() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error}\nusage: {USAGE}");
            return ExitCode::from(2);
        }
    };
    let summary = run(&settings);
    for difference in &summary.differences {
        println!("DIFFERENCE: {difference}\n");
    }
    let (engine, seed, differences) =
        (settings.engine.name(), settings.seed, summary.differences.len());
    println!("{engine}, seed {seed}: {}, {differences} differences", summary.counts);
    if summary.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
