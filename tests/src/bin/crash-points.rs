//! Kills a server at every call of a statement that changes a file, statement by statement.
//!
//! ```text
//! crash-points [--engine Tidepool|InnoDB] [--flush 0,1,2] [--binlog off,on] [--case NAME]… [--every N] [--list]
//! ```
//! Prints a line for each statement and setting, and each violation. Ends with status 1 if there are any.

use std::process::ExitCode;
use std::time::Instant;

use lexopt::prelude::*;
use tidepool_tests::crash_points::{CASES, Case, Choice, Setting, run_case};
use tidepool_tests::server::{Engine, Options, Server};

const USAGE: &str = "usage: crash-points [--engine Tidepool|InnoDB] [--flush 0,1,2] [--binlog off,on] [--case NAME]… \
                     [--every N] [--list]";

struct Wanted {
    engine: Engine,
    flushes: Vec<u8>,
    binary_logs: Vec<bool>,
    cases: Vec<Case>,
    choice: Choice,
}

fn main() -> ExitCode {
    let wanted = match parse() {
        Ok(Some(wanted)) => wanted,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crash-points: {error}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let (mut tried, mut violations, mut known) = (0, 0, 0);
    for &binary_log in &wanted.binary_logs {
        for &flush in &wanted.flushes {
            let setting = Setting { engine: wanted.engine, flush, binary_log };
            for (index, case) in wanted.cases.iter().enumerate() {
                let since = Instant::now();
                let mut options = Options::new("crash_points").engine(setting.engine);
                options.args = setting.server_args();
                let mut server = Server::start(options);
                let report = run_case(&mut server, setting, case, &wanted.choice);
                println!(
                    "{setting}, {}/{} {}: {} crash points, {} before, {} after, {} survived, {} violations, \
                     {} known server faults, {:.0} s",
                    index + 1,
                    wanted.cases.len(),
                    case.name,
                    report.tried,
                    report.before,
                    report.after,
                    report.survived,
                    report.violations.len(),
                    report.known.len(),
                    since.elapsed().as_secs_f64()
                );
                report.violations.iter().for_each(|violation| println!("VIOLATION {violation}"));
                tried += report.tried;
                violations += report.violations.len();
                known += report.known.len();
            }
        }
    }
    println!("{tried} crash points, {violations} violations, {known} known server faults");
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse() -> Result<Option<Wanted>, lexopt::Error> {
    let mut wanted = Wanted {
        engine: Engine::Tidepool,
        flushes: vec![0, 1, 2],
        binary_logs: vec![false, true],
        cases: Vec::new(),
        choice: Choice::All,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("engine") => wanted.engine = Engine::by_name(&parser.value()?.string()?)?,
            Long("flush") => {
                let text = parser.value()?.string()?;
                let levels =
                    text.split(',').map(|level| level.parse().map_err(|_| level.to_string()));
                wanted.flushes = levels.collect::<Result<_, String>>()?;
            }
            Long("binlog") => {
                let text = parser.value()?.string()?;
                wanted.binary_logs = text.split(',').map(|word| word == "on").collect();
            }
            Long("case") => {
                let name = parser.value()?.string()?;
                let before = wanted.cases.len();
                let is_meant = |case: &&Case| match name.strip_suffix('*') {
                    Some(prefix) => case.name.starts_with(prefix),
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
