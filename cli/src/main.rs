//! The program: reads the command line, runs one command, turns its error into a sentence and an exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidepool_cli::{advise, connect, govern, watch};
use tidepool_lab::{command as lab, hidden};

/// Looks after the buffer pool of a running MariaDB, MySQL or Percona Server, and of Tidepool.
///
/// Exit codes: 0 done, 1 an experiment of the lab failed, 2 wrong options, 3 no server, 4 access denied, 5 a privilege is missing, 6 unsupported by this server,
/// 7 the server went away, 8 a local file, port or terminal, 9 the server refused, 10 `advise --check` found something.
#[derive(Debug, Parser)]
#[command(name = "tidepool", version, max_term_width = 110, args_override_self = true)]
struct Arguments {
    #[command(flatten)]
    connection: connect::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what is wrong with the server's memory settings, and what to set. Changes nothing
    Advise(advise::Options),
    /// Keep the InnoDB pool at the size that fits, in small steps, while the server runs. A dry run unless --apply
    Govern(govern::Options),
    /// Show the pool and the load as a live page, whose slider sets the pool's size
    Watch(watch::Options),
    /// Experiments on private servers under load and pressure, from a checkout of Tidepool
    #[command(subcommand)]
    Lab(lab::Command),
}

fn main() -> ExitCode {
    // The lab starts this program again as a neighbour and as a janitor.
    if let Some(code) = hidden::main() {
        return code;
    }
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::INFO)
        .with_target(false)
        .without_time()
        .init();
    let result = match arguments.command {
        Command::Advise(options) => advise::run(&options, &arguments.connection),
        Command::Govern(options) => govern::run(&options, &arguments.connection),
        Command::Watch(options) => watch::run(&options, &arguments.connection),
        Command::Lab(command) => {
            return lab::run(command).unwrap_or_else(|error| {
                eprintln!("tidepool lab: {error}");
                ExitCode::FAILURE
            });
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("tidepool: {error}");
        error.into()
    })
}
