//! The program: reads the command line, runs one command, turns its error into a sentence and an exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidepool_cli::{advise, connect, govern, watch};

/// Looks after the buffer pool of a running MariaDB, MySQL or Percona Server, and of Tidepool.
///
/// Exit codes: 0 done, 2 wrong options, 3 no server, 4 access denied, 5 a privilege is missing, 6 unsupported by this server,
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
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::INFO)
        .with_target(false)
        .without_time()
        .init();
    let result = match &arguments.command {
        Command::Advise(options) => advise::run(options, &arguments.connection),
        Command::Govern(options) => govern::run(options, &arguments.connection),
        Command::Watch(options) => watch::run(options, &arguments.connection),
    };
    result.unwrap_or_else(|error| {
        eprintln!("tidepool: {error}");
        error.into()
    })
}
