//! `damage --trials N --seed S`: damages files of a data directory and reads all that the server
//! still gives. See
//! `tidepool_tests::damage`.

use std::process::ExitCode;

use lexopt::prelude::*;
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
            Long("only") => settings.only = Some(FileKind::by_name(&parser.value()?.string()?)?),
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
    if summary.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
