//! `differential --seed S --minutes N`: the same random SQL on two engines. See
//! `tidepool_tests::differential`.

use std::process::ExitCode;
use std::time::Duration;

use lexopt::prelude::*;
use tidepool_tests::command_line::{self, duration};
use tidepool_tests::differential::{Settings, replay, run};
use tidepool_tests::server::Engine;

const USAGE: &str = "differential [--engine NAME] [--seed S] [--minutes N] [--cases N] [--blocks N] [--failures N] \
                     [--shrink-s N] [--restarts] [--no-bulk] [--trace] [--replay FILE] [-- server options]";

fn settings() -> Result<(Settings, Option<String>), lexopt::Error> {
    let mut settings = Settings::new(Engine::from_environment().name(), 1);
    settings.duration = Duration::from_secs(600);
    settings.verbose = true;
    let mut script = None;
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("engine") => settings.subject = parser.value()?.string()?,
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("minutes") => settings.duration = duration(&mut parser, 60)?,
            Long("cases") => settings.cases_max = parser.value()?.parse()?,
            Long("blocks") => settings.limits.blocks = parser.value()?.parse()?,
            Long("failures") => settings.failures_max = parser.value()?.parse()?,
            Long("shrink-s") => settings.shrink_limit = duration(&mut parser, 1)?,
            Long("trace") => settings.trace = true,
            Long("restarts") => settings.limits.restarts = true,
            Long("no-bulk") => settings.limits.bulk = false,
            Long("replay") => script = Some(parser.value()?.string()?),
            Value(value) => settings.args.push(value.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok((settings, script))
}

fn main() -> ExitCode {
    command_line::main(USAGE, settings(), |(settings, script)| compare(settings, script.as_deref()))
}

/// Replays the script, or makes statements; whether the engines agree.
fn compare(settings: &Settings, script: Option<&str>) -> bool {
    match script {
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"));
            match text.and_then(|text| replay(&settings.subject, &text, &settings.args)) {
                Ok(None) => true,
                Ok(Some(difference)) => {
                    println!("{difference}");
                    false
                }
                Err(error) => {
                    eprintln!("{error}");
                    false
                }
            }
        }
        None => {
            let summary = run(settings);
            println!(
                "{} cases, {} at a documented limit, {} at a bug of InnoDB or the server, {} given up by the reference, {} statements, {} refused by both, {} differences",
                summary.cases,
                summary.at_limit,
                summary.innodb_bugs,
                summary.gave_up,
                summary.statements,
                summary.refused,
                summary.failures.len()
            );
            summary.failures.is_empty()
        }
    }
}
