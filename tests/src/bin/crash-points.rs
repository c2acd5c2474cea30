//! Kills a server at every call of a statement that changes a file, statement by statement.
//!
//! ```text
//! crash-points [--engine Tidepool|InnoDB] [--crash kill,power-cut] [--flush 0,1,2] [--binlog off,on,unsynced]
//!              [--case NAME]… [--every N] [--list]
//! ``` A name may have a `*`. Prints a line for each statement and setting, and each violation.
//! Ends with status 1 if there are any.

use std::process::ExitCode;
use std::time::Instant;

use lexopt::prelude::*;
use tidepool_tests::command_line::{self, list, named};
use tidepool_tests::crash_points::{
    BinaryLog, CASES, Case, Choice, Crash, Setting, Victim, run_case,
};
use tidepool_tests::server::Engine;

const USAGE: &str =
    "crash-points [--engine Tidepool|InnoDB] [--crash kill,power-cut] [--flush 0,1,2]
                    [--binlog off,on,unsynced] [--case NAME]… [--every N] [--list]";

struct Wanted {
    engine: Engine,
    crashes: Vec<Crash>,
    flushes: Vec<u8>,
    binary_logs: Vec<BinaryLog>,
    cases: Vec<Case>,
    choice: Choice,
}

fn main() -> ExitCode {
    command_line::main(USAGE, parse(), |wanted| wanted.as_ref().is_none_or(run))
}

/// Runs the cases at each setting; whether nothing is violated.
fn run(wanted: &Wanted) -> bool {
    let mut total = Total::default();
    for &crash in &wanted.crashes {
        for &binary_log in &wanted.binary_logs {
            for &flush in &wanted.flushes {
                let setting = Setting { engine: wanted.engine, flush, binary_log, crash };
                total.run(setting, wanted);
            }
        }
    }
    println!(
        "{} crash points, {} wrong, {} violations, {} known server faults",
        total.tried, total.wrong, total.violations, total.known
    );
    total.violations == 0
}

#[derive(Default)]
struct Total {
    tried: u32,
    wrong: u32,
    violations: usize,
    known: usize,
}

impl Total {
    fn run(&mut self, setting: Setting, wanted: &Wanted) {
        for (index, case) in wanted.cases.iter().enumerate() {
            let since = Instant::now();
            let Some(mut victim) = Victim::start(setting, "crash_points") else { return };
            let report = run_case(&mut victim, setting, case, &wanted.choice);
            println!(
                "{setting}, {}/{} {}: {} crash points, {} before, {} after, {} survived, {} wrong, \
                 {} violations, {} known server faults, {:.0} s",
                index + 1,
                wanted.cases.len(),
                case.name,
                report.tried,
                report.before,
                report.after,
                report.survived,
                report.wrong,
                report.violations.len(),
                report.known.len(),
                since.elapsed().as_secs_f64()
            );
            report.violations.iter().for_each(|violation| println!("VIOLATION {violation}"));
            self.tried += report.tried;
            self.wrong += report.wrong;
            self.violations += report.violations.len();
            self.known += report.known.len();
        }
    }
}

fn parse() -> Result<Option<Wanted>, lexopt::Error> {
    let mut wanted = Wanted {
        engine: Engine::Tidepool,
        crashes: vec![Crash::Kill, Crash::PowerCut],
        flushes: vec![0, 1, 2],
        binary_logs: vec![BinaryLog::Off, BinaryLog::Synced],
        cases: Vec::new(),
        choice: Choice::All,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("engine") => wanted.engine = named(&mut parser, Engine::by_name)?,
            Long("crash") => {
                wanted.crashes = list(&mut parser, crash)?;
            }
            Long("flush") => {
                wanted.flushes =
                    list(&mut parser, |level| level.parse().map_err(|_| level.to_string()))?;
            }
            Long("binlog") => {
                wanted.binary_logs = list(&mut parser, binary_log)?;
            }
            Long("case") => {
                let name = parser.value()?.string()?;
                let before = wanted.cases.len();
                let is_meant = |case: &&Case| match name.split_once('*') {
                    Some((start, end)) => case.name.starts_with(start) && case.name.ends_with(end),
                    None => case.name == name,
                };
                wanted.cases.extend(CASES.iter().filter(is_meant));
                if wanted.cases.len() == before {
                    return Err(format!("there is no case {name}; see --list").into());
                }
            }
            Long("every") => wanted.choice = Choice::EveryNth(parser.value()?.parse()?),
            Long("list") => {
                CASES.iter().for_each(|case| println!("{}", case.name));
                return Ok(None);
            }
            _ => return Err(argument.unexpected()),
        }
    }
    if wanted.cases.is_empty() {
        wanted.cases = CASES.to_vec();
    }
    Ok(Some(wanted))
}

fn crash(word: &str) -> Result<Crash, String> {
    match word {
        "kill" => Ok(Crash::Kill),
        "power-cut" => Ok(Crash::PowerCut),
        _ => Err(format!("{word}: neither kill nor power-cut")),
    }
}

fn binary_log(word: &str) -> Result<BinaryLog, String> {
    match word {
        "off" => Ok(BinaryLog::Off),
        "on" => Ok(BinaryLog::Synced),
        "unsynced" => Ok(BinaryLog::Unsynced),
        _ => Err(format!("{word}: neither off nor on nor unsynced")),
    }
}
