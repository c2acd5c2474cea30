//! `damage --trials N --seed S`: damages files of a data directory and reads all that the server
//! still gives. See
//! `tidepool_tests::damage`.

use std::process::ExitCode;

use lexopt::prelude::*;
use tidepool_tests::command_line::{self, named};
use tidepool_tests::damage::harm::FileKind;
use tidepool_tests::damage::{Settings, run};

const USAGE: &str = "damage [--trials N] [--seed S] \
                     [--only table|system|undo|redo|control|mirror|hot-list|other] [-- server options]";

fn settings() -> Result<Settings, lexopt::Error> {
    let mut settings =
        Settings { trials: 200, seed: 1, only: None, args: Vec::new(), verbose: true };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("trials") => settings.trials = parser.value()?.parse()?,
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("only") => settings.only = Some(named(&mut parser, FileKind::by_name)?),
            Value(value) => settings.args.push(value.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(settings)
}

fn main() -> ExitCode {
    command_line::main(USAGE, settings(), damage)
}

/// Runs it; whether no fault was found.
fn damage(settings: &Settings) -> bool {
    let summary = run(settings);
    println!("\nThe first message of each kind:");
    for ((kind, verdict), message) in &summary.examples {
        println!("{}: {}: {message}", kind.name(), verdict.name());
    }
    println!("\n{}\n", summary.table());
    for fault in &summary.faults {
        println!("{fault}");
    }
    println!(
        "{} trials from seed {}: {} faults",
        settings.trials,
        settings.seed,
        summary.faults.len()
    );
    summary.faults.is_empty()
}
