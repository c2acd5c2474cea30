//! `crash-loop --rounds N --seed S`: kills a server under load again and again, with a binary log
//! if the seed is even. See `tidepool_tests::crash`.

use std::process::ExitCode;

use lexopt::prelude::*;
use tidepool_tests::command_line::{self, named};
use tidepool_tests::crash::moment::Moment;
use tidepool_tests::crash::{LoopOptions, run};
use tidepool_tests::server::Engine;

const USAGE: &str = "crash-loop [--rounds N] [--seed S] [--engine Tidepool|InnoDB] [--load-ms N] \
    [--kill-in any|page-writer|upkeep|backup] [-- server options]";

fn options() -> Result<LoopOptions, lexopt::Error> {
    let mut options = LoopOptions {
        rounds: 200,
        seed: 1,
        engine: Engine::from_environment(),
        load_ms_max: 2500,
        moment: Moment::Any,
        args: Vec::new(),
        verbose: true,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("rounds") => options.rounds = parser.value()?.parse()?,
            Long("seed") => options.seed = parser.value()?.parse()?,
            Long("load-ms") => options.load_ms_max = parser.value()?.parse()?,
            Long("kill-in") => options.moment = named(&mut parser, Moment::by_name)?,
            Long("engine") => options.engine = named(&mut parser, Engine::by_name)?,
            Value(value) => options.args.push(value.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    command_line::main(USAGE, options(), crash_loop)
}

/// Runs it; whether nothing is violated.
fn crash_loop(options: &LoopOptions) -> bool {
    let summary = run(options);
    println!("{}, seed {}: {summary:#?}", options.engine.name(), options.seed);
    summary.violations.is_empty()
}
