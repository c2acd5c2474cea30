//! `lab`: the experiments from the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidepool_lab::engine::Engine;
use tidepool_lab::error::Error;
use tidepool_lab::lab::{Lab, Settings};
use tidepool_lab::{experiment, hidden};

/// Experiments on buffer pools, on live servers under load and pressure.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run experiments: swap, pressure, … or "all".
    Run {
        /// Their names.
        #[arg(required = true)]
        experiments: Vec<String>,
        /// The engines to compare; they take turns.
        #[arg(long, value_delimiter = ',', default_value = "tidepool,innodb")]
        engine: Vec<Engine>,
        /// At most three minutes an experiment (after its data has been made).
        #[arg(long)]
        quick: bool,
        /// The memory of the machine that the experiments pretend to have, as 1G or 512M.
        #[arg(long, value_parser = size, default_value = "1G")]
        memory: u64,
        /// The directory for results.
        #[arg(long, default_value = "var/lab/results")]
        out: PathBuf,
    },
}

fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        _ => return Err("a number with M or G is wanted".into()),
    };
    let number: u64 = digits.parse().map_err(|_| "no number".to_string())?;
    match number.checked_shl(unit) {
        Some(bytes) if bytes >= 128 << 20 && bytes >> unit == number => Ok(bytes),
        _ => Err("at least 128M are needed".into()),
    }
}

fn main() -> ExitCode {
    if let Some(code) = hidden::main() {
        return code;
    }
    tracing_subscriber::fmt().with_target(false).with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let Command::Run { experiments, engine, quick, memory, out } = arguments.command;
    let chosen: Vec<_> = experiment::ALL
        .iter()
        .filter(|(name, _)| experiments.iter().any(|wanted| wanted == name || wanted == "all"))
        .collect();
    let known =
        |wanted: &String| wanted == "all" || experiment::ALL.iter().any(|(name, _)| name == wanted);
    if let Some(unknown) = experiments.iter().find(|wanted| !known(wanted)) {
        let names: Vec<&str> = experiment::ALL.iter().map(|(name, _)| *name).collect();
        return Err(Error::Missing(format!(
            "there is no experiment {unknown}; there are {} and all",
            names.join(", ")
        )));
    }
    let lab = Lab::open(Settings { engines: engine, quick, memory_bytes: memory, out })?;
    let mut code = ExitCode::SUCCESS;
    for (name, experiment) in chosen {
        match experiment(&lab) {
            Ok(()) => {}
            Err(Error::Missing(what)) => eprintln!("lab: {name} skipped: {what}"),
            Err(error) => {
                eprintln!("lab: {name}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
