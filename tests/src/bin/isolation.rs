//! `isolation --seed S --seconds N`: random transactions at once, checked for isolation anomalies.
//! See `tidepool_tests::isolation`.

use std::process::ExitCode;
use std::time::Duration;

use lexopt::prelude::*;
use tidepool_tests::isolation::history::Level;
use tidepool_tests::isolation::{Settings, run};
use tidepool_tests::server::Engine;

const USAGE: &str = "isolation [--engine Tidepool|InnoDB] [--seed S] [--seconds N] [--rounds N] [--round-s N] [--level rc|rr|serializable] \
                     [--claim LEVEL] [--careless] [--kill EVERY] [--alters] [-- server options]";

fn settings() -> Result<Settings, lexopt::Error> {
    let mut settings = Settings::new(Engine::from_environment(), 1);
    settings.verbose = true;
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("engine") => settings.engine = Engine::by_name(&parser.value()?.string()?)?,
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("seconds") => settings.duration = Duration::from_secs(parser.value()?.parse()?),
            Long("rounds") => settings.rounds_max = parser.value()?.parse()?,
            Long("round-s") => settings.round = Duration::from_secs_f64(parser.value()?.parse()?),
            Long("level") => settings.level = Some(Level::by_name(&parser.value()?.string()?)?),
            Long("claim") => settings.claim = Some(Level::by_name(&parser.value()?.string()?)?),
            Long("kill") => settings.kill_every = parser.value()?.parse()?,
            Long("careless") => settings.careless = true,
            Long("alters") => settings.alters = true,
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
    let mut summary = run(&settings);
    let passed = summary.failures.is_empty();
    for failure in std::mem::take(&mut summary.failures) {
        println!("{failure}\n");
    }
    println!("{}, seeds from {}: {summary:#?}", settings.engine.name(), settings.seed);
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
