//! `power-cuts`: each statement that changes a definition, with a power cut right after its
//! acknowledgement, or at a moment while it runs. See `tidepool_tests::definitions`.

use std::process::ExitCode;
use std::time::Duration;

use lexopt::prelude::*;
use rand::{Rng, SeedableRng};
use tidepool_tests::command_line::{self, named};
use tidepool_tests::definitions::{CASES, Case, Loss, Moment, try_case};
use tidepool_tests::power_cut::{FileSystem, Machine};
use tidepool_tests::server::{Engine, Options};

const USAGE: &str = "power-cuts [--engine Tidepool|InnoDB] [--file-system ext4|xfs|btrfs] [--kill] \
     [--during ROUNDS] [--within-ms MS] [--seed S] [--only NAME]… [-- server options]";

struct Wanted {
    engine: Engine,
    file_system: FileSystem,
    loss: Loss,
    /// How many rounds of moments while a statement runs; 0: when it is acknowledged.
    during_rounds: u32,
    /// The latest such moment, after the statement is sent.
    within_ms: u64,
    seed: u64,
    only: Vec<String>,
    args: Vec<String>,
}

fn wanted() -> Result<Wanted, lexopt::Error> {
    let mut wanted = Wanted {
        engine: Engine::from_environment(),
        file_system: FileSystem::Ext4,
        loss: Loss::PowerCut,
        during_rounds: 0,
        within_ms: 150,
        seed: 1,
        only: Vec::new(),
        args: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("engine") => wanted.engine = named(&mut parser, Engine::by_name)?,
            Long("file-system") => {
                let name = parser.value()?.string()?;
                let found = FileSystem::ALL.into_iter().find(|kind| kind.name() == name);
                wanted.file_system = found.ok_or("neither ext4 nor xfs nor btrfs")?;
            }
            Long("during") => wanted.during_rounds = parser.value()?.parse()?,
            Long("within-ms") => wanted.within_ms = parser.value()?.parse()?,
            Long("seed") => wanted.seed = parser.value()?.parse()?,
            Long("kill") => wanted.loss = Loss::Kill,
            Long("only") => wanted.only.push(parser.value()?.string()?),
            Value(value) => wanted.args.push(value.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(wanted)
}

fn start(wanted: &Wanted) -> Option<Machine> {
    let mut options = Options::new("power-cuts").engine(wanted.engine);
    options.args.clone_from(&wanted.args);
    Machine::start(options, wanted.file_system)
}

fn main() -> ExitCode {
    command_line::main(USAGE, wanted(), cut_power)
}

/// Runs the cases; whether none is bad.
fn cut_power(wanted: &Wanted) -> bool {
    let is_wanted = |case: &&Case| {
        (wanted.only.is_empty() || wanted.only.iter().any(|name| name == case.name))
            && (wanted.during_rounds == 0 || case.is_atomic())
    };
    let mut random = rand::rngs::StdRng::seed_from_u64(wanted.seed);
    let (mut tried, mut excused, mut bad, mut without_start) = (0, 0, 0, 0);
    let mut machine = None;
    for _ in 0..wanted.during_rounds.max(1) {
        for case in CASES.iter().filter(is_wanted) {
            let Some(running) = machine.take().or_else(|| start(wanted)) else {
                return false;
            };
            let running: &mut Machine = machine.insert(running);
            let moment = match wanted.during_rounds {
                0 => Moment::Acknowledged,
                _ => Moment::During(Duration::from_millis(
                    random.random_range(0..wanted.within_ms.max(1)),
                )),
            };
            let wrong = try_case(running, case, wanted.loss, moment);
            tried += 1;
            let verdict = match (wrong.is_empty(), case.excuse) {
                (true, _) => "good",
                (false, Some(_)) => "excused",
                (false, None) => "BAD",
            };
            println!("{verdict} {} {moment:?}", case.name);
            if verdict == "good" {
                continue;
            }
            match case.excuse {
                Some(why) => println!("     {why}"),
                None => wrong.iter().for_each(|what| println!("     {what}")),
            }
            excused += u32::from(case.excuse.is_some());
            bad += u32::from(case.excuse.is_none());
            without_start += u32::from(running.server.pid().is_none());
            // What is left of one case is not the next one's matter.
            machine = None;
        }
    }
    println!(
        "{} on {}, {:?}: {tried} statements, {bad} bad, {excused} excused, {without_start} without a start",
        wanted.engine.name(),
        wanted.file_system.name(),
        wanted.loss
    );
    bad == 0
}
