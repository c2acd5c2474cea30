//! The experiments from the command line: `tidepool lab`. Exit code 1 means that an experiment failed.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::experiment::{self, Experiment};
use crate::lab::{Lab, Settings};
use crate::record::DEFAULT_OUT;
use crate::{policy, report};

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run experiments
    Run(Choice),
    /// Make the data that experiments will need, and do nothing else: it takes a while the first time
    Prepare(Choice),
    /// Draw and judge the results of a directory: report.html, summary.md, charts/*.svg
    Report {
        /// The directory with results.
        #[arg(long, default_value = DEFAULT_OUT)]
        out: PathBuf,
    },
    /// Compare replacement policies on page traces: misses over requests, of each policy at several sizes
    Policy(policy::command::Options),
}

/// What an experiment is asked for.
#[derive(Debug, clap::Args)]
pub struct Choice {
    /// Experiments: swap, pressure, govern, resize, sideload, warm, advice, idle,
    /// defaults, traces, or "all".
    #[arg(required = true)]
    experiments: Vec<String>,
    /// The engines to compare; they take turns. Without it tidepool and innodb, for `defaults` all that are there.
    #[arg(long, value_delimiter = ',')]
    engine: Vec<Engine>,
    /// The server of the engine mysql [default: the one that scripts/deps has unpacked].
    #[arg(long)]
    mysqld: Option<PathBuf>,
    /// At most three minutes an experiment (after its data has been made).
    #[arg(long)]
    quick: bool,
    /// The memory of the machine that the experiments pretend to have, as 1G or 512M.
    #[arg(long, value_parser = size, default_value = "1G")]
    memory: u64,
    /// Of swap, pressure, govern, resize and sideload, only the cases whose name contains this, as "in turns".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// How many times each experiment is run. The report judges the median of the repeats, and of waits and kills the worst.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Keep the results of the same experiments that the directory holds, and add to them.
    #[arg(long)]
    append: bool,
    /// The directory for results.
    #[arg(long, default_value = DEFAULT_OUT)]
    out: PathBuf,
}

fn size(text: &str) -> std::result::Result<u64, String> {
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

/// The engines that an experiment gets: those that were asked for, less those that it has nothing for.
fn engines(experiment: &Experiment, wanted: &[Engine], mysql: bool) -> Vec<Engine> {
    if wanted.is_empty() {
        let usable = |engine: &&Engine| **engine != Engine::MySql || mysql;
        return experiment.engines.iter().filter(usable).copied().collect();
    }
    let can =
        |engine: &&Engine| experiment.engines.contains(engine) || experiment.also.contains(engine);
    let (able, other): (Vec<Engine>, Vec<Engine>) = wanted.iter().partition(can);
    for engine in other {
        eprintln!("tidepool lab: {} has nothing for {}", experiment.name, engine.key());
    }
    able
}

/// Does it. An experiment that this machine can't do is said, and skipped.
///
/// # Errors
/// If nothing could be begun: an unknown experiment, no server, leftovers that can't be removed.
pub fn run(command: Command) -> Result<ExitCode> {
    let (choice, only_prepare) = match command {
        Command::Run(choice) => (choice, false),
        Command::Prepare(choice) => (choice, true),
        Command::Report { out } => {
            let written = report::write(&out)?;
            let (met, judged) = written.met;
            println!("{}: {met} of {judged} requirements met", written.page.display());
            return Ok(ExitCode::SUCCESS);
        }
        Command::Policy(options) => {
            policy::command::run(&options)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let mut chosen = Vec::new();
    for wanted in &choice.experiments {
        let found: Vec<_> =
            experiment::ALL.iter().filter(|one| wanted == one.name || wanted == "all").collect();
        if found.is_empty() {
            let names: Vec<&str> = experiment::ALL.iter().map(|one| one.name).collect();
            return Err(Error::Missing(format!(
                "there is no experiment {wanted}; there are {} and all",
                names.join(", ")
            )));
        }
        chosen.extend(found);
    }
    let settings = Settings {
        engines: Vec::new(),
        quick: choice.quick,
        memory_bytes: choice.memory,
        out: choice.out,
        mysqld: choice.mysqld,
        only: choice.only,
        append: choice.append,
    };
    let mut lab = Lab::open(settings)?;
    let mysql = lab.environment.mysqld.is_some();
    if only_prepare {
        for experiment in chosen {
            lab.settings.engines = engines(experiment, &choice.engine, mysql);
            lab.prepare(&(experiment.data)(&lab.settings))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    for experiment in chosen {
        lab.settings.engines = engines(experiment, &choice.engine, mysql);
        lab.settings.append = choice.append;
        for _ in 0..choice.repeat {
            match (experiment.run)(&lab) {
                Ok(()) => {}
                Err(Error::Missing(what)) => {
                    eprintln!("tidepool lab: {} skipped: {what}", experiment.name);
                    break;
                }
                Err(error) => {
                    eprintln!("tidepool lab: {}: {error}", experiment.name);
                    code = ExitCode::FAILURE;
                }
            }
            lab.settings.append = true;
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_gets_the_engines_that_it_is_made_for() {
        let one = |name: &str| experiment::ALL.iter().find(|one| one.name == name).unwrap();
        let both = [Engine::Tidepool, Engine::InnoDb];
        assert_eq!(engines(one("swap"), &[], false), both);
        assert_eq!(engines(one("swap"), &[], true), both);
        assert_eq!(engines(one("swap"), &[Engine::MySql], true), [Engine::MySql]);
        let asked = [Engine::Postgres, Engine::InnoDb];
        assert_eq!(engines(one("swap"), &asked, false), [Engine::InnoDb]);
        assert_eq!(engines(one("defaults"), &asked, false), asked);
        assert!(!engines(one("defaults"), &[], false).contains(&Engine::MySql));
        assert!(engines(one("defaults"), &[], true).contains(&Engine::MySql));
    }
}
