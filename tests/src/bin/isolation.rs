//! `isolation --seed S --seconds N`: random transactions at once, checked for isolation anomalies.
//! See `tidepool_tests::isolation`.

use std::process::ExitCode;

use lexopt::prelude::*;
use tidepool_tests::command_line::{self, duration, named};
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
            Long("engine") => settings.engine = named(&mut parser, Engine::by_name)?,
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("seconds") => settings.duration = duration(&mut parser, 1)?,
            Long("rounds") => settings.rounds_max = parser.value()?.parse()?,
            Long("round-s") => settings.round = duration(&mut parser, 1)?,
            Long("level") => settings.level = Some(named(&mut parser, Level::by_name)?),
            Long("claim") => settings.claim = Some(named(&mut parser, Level::by_name)?),
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
    command_line::main(USAGE, settings(), check)
}

/// Runs it; whether no anomaly was found.
fn check(settings: &Settings) -> bool {
    let mut summary = run(settings);
    let passed = summary.failures.is_empty();
    for failure in std::mem::take(&mut summary.failures) {
        println!("{failure}\n");
    }
    println!("{}, seeds from {}: {summary:#?}", settings.engine.name(), settings.seed);
    passed
}
