//! `stress --seed S --minutes N`: writers beside ALTERs, KILLs, changing settings and crashes.
//! See `tidepool_tests::stress`.

use std::process::ExitCode;

use lexopt::prelude::*;
use tidepool_tests::command_line::{self, duration, named};
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
            Long("engine") => settings.engine = named(&mut parser, Engine::by_name)?,
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("minutes") => settings.duration = duration(&mut parser, 60)?,
            Long("no-crashes") => settings.crashes = false,
            Value(value) => settings.args.push(value.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(settings)
}

fn main() -> ExitCode {
    command_line::main(USAGE, settings(), stress)
}

/// Runs it; whether no difference was found.
fn stress(settings: &Settings) -> bool {
    let summary = run(settings);
    for difference in &summary.differences {
        println!("DIFFERENCE: {difference}\n");
    }
    let (engine, seed, differences) =
        (settings.engine.name(), settings.seed, summary.differences.len());
    println!("{engine}, seed {seed}: {}, {differences} differences", summary.counts);
    summary.differences.is_empty()
}
