//! The experiments from the command line: `tidepool lab`. Exit code 1 means that an experiment
//! failed, or that none could be run.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::experiment::{self, Experiment};
use crate::lab::{Lab, Load, Settings};
use crate::record::DEFAULT_OUT;
use crate::{policy, report};

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run experiments
    Run(Choice),
    /// Make the data that experiments will need, and do nothing else: it takes a while the first
    /// time
    Prepare(Choice),
    /// Draw and judge the results of a directory: report.html, summary.md, charts/*.svg, csv/*.csv
    Report {
        /// The directory with results.
        #[arg(long, default_value = DEFAULT_OUT)]
        out: PathBuf,
    },
    /// Compare replacement policies on page traces: misses over requests, of each policy at several
    /// sizes
    Policy(policy::command::Options),
}

/// What an experiment is asked for.
#[derive(Debug, clap::Args)]
pub struct Choice {
    /// Experiments: swap, pressure, limits, govern, resize, sideload, warm, queries, advice,
    /// idle, defaults, cluster, traces, or "all".
    #[arg(required = true)]
    experiments: Vec<String>,
    /// The engines to compare; they take turns. Without it tidepool and innodb, for `defaults` all
    /// that are there.
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
    /// Of swap, pressure, limits, govern, resize, sideload, queries and cluster, only the cases
    /// whose name contains this, as "in turns" or "rescue"; may be given several times. Results of
    /// other cases in the directory stay.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// How many times each experiment is run. The report judges the median of the repeats, and of
    /// waits and kills the worst.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Keep the results that the directory holds of the same cases as well, and add to them.
    #[arg(long)]
    append: bool,
    /// The directory for results.
    #[arg(long, default_value = DEFAULT_OUT)]
    out: PathBuf,
    #[command(flatten)]
    load: Load,
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

/// The engines that an experiment gets: those that were asked for, less those that it has nothing
/// for.
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

/// An experiment, and the engines that it gets.
type Chosen = (&'static Experiment, Vec<Engine>);

/// Those with a case that was asked for. They are known before anything is run, let alone replaced.
///
/// # Errors
/// If something was asked for that no case has in its name: all their names.
fn with_wanted_cases(chosen: Vec<Chosen>, settings: &Settings) -> Result<Vec<Chosen>> {
    if settings.only.is_empty() {
        return Ok(chosen);
    }
    let (mut wanted, mut others) = (Vec::new(), String::new());
    let (mut left_out, mut unknown) = (Vec::new(), settings.only.clone());
    for (experiment, engines) in chosen {
        let cases = (experiment.cases)(&Settings { engines: engines.clone(), ..settings.clone() });
        unknown.retain(|only| !cases.iter().any(|case| case.contains(only.as_str())));
        match cases.iter().any(|case| settings.wants(case)) {
            true => wanted.push((experiment, engines)),
            false => left_out.push(experiment.name),
        }
        match cases.is_empty() {
            true => others += &format!("\n{}: nothing to choose from", experiment.name),
            false => others += &format!("\n{}:\n  {}", experiment.name, cases.join("\n  ")),
        }
    }
    if let Some(only) = unknown.first() {
        return Err(Error::Usage(format!(
            "--only: no case has {only:?} in its name; there are{others}"
        )));
    }
    for name in left_out {
        eprintln!("tidepool lab: {name} left out: --only names none of its cases");
    }
    Ok(wanted)
}

/// Says which experiments leave what was chosen of the load as they have it.
///
/// # Errors
/// If all of them do: then it was meant otherwise.
fn check_load(chosen: &[&'static Experiment], load: Load) -> Result<()> {
    for option in load.options() {
        let takes = |one: &Experiment| load.taken(one.takes).options().contains(&option);
        let names = |mut wanted: Vec<&str>| {
            wanted.dedup();
            wanted.join(", ")
        };
        let without = chosen.iter().filter(|one| !takes(one)).map(|one| one.name).collect();
        if !chosen.iter().any(|one| takes(one)) {
            let with = experiment::ALL.iter().filter(|one| takes(one)).map(|one| one.name);
            return Err(Error::Usage(format!(
                "{option}: {} has its own; {} can be given it",
                names(without),
                names(with.collect())
            )));
        }
        if !without.is_empty() {
            eprintln!("tidepool lab: {option} changes nothing of {}", names(without));
        }
    }
    Ok(())
}

/// Runs each this many times; reports and skips one that this machine can't do. False if one
/// failed, or none could be run.
fn run_each(chosen: &[Chosen], repeat: u32, mut run: impl FnMut(&Chosen) -> Result<()>) -> bool {
    let (mut done, mut failed) = (0, 0);
    for one in chosen {
        for _ in 0..repeat {
            match run(one) {
                Ok(()) => done += 1,
                Err(Error::Missing(what)) => {
                    eprintln!("tidepool lab: {} skipped: {what}", one.0.name);
                    break;
                }
                Err(error) => {
                    eprintln!("tidepool lab: {}: {error}", one.0.name);
                    failed += 1;
                }
            }
        }
    }
    if done + failed == 0 {
        eprintln!("tidepool lab: nothing was run");
    }
    done > 0 && failed == 0
}

/// Prints a result. A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// If it can't be written, as on a full disk.
pub(crate) fn print_line(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io("standard output")(error))
        }
        _ => Ok(()),
    }
}

/// Does it. An experiment that this machine can't do is said, and skipped.
///
/// # Errors
/// If nothing could be begun: an unknown experiment or case, no server, leftovers that can't be
/// removed.
pub fn run(command: Command) -> Result<ExitCode> {
    let (choice, only_prepare) = match command {
        Command::Run(choice) => (choice, false),
        Command::Prepare(choice) => (choice, true),
        Command::Report { out } => {
            let written = report::write(&out)?;
            let (met, judged) = written.met;
            let page = written.page.display();
            print_line(&format!("{page}: {met} of {judged} requirements met"))?;
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
            return Err(Error::Usage(format!(
                "there is no experiment {wanted}; there are {} and all",
                names.join(", ")
            )));
        }
        chosen.extend(found);
    }
    check_load(&chosen, choice.load)?;
    let settings = Settings {
        load: choice.load,
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
    let with_engines = |one: &'static Experiment| (one, engines(one, &choice.engine, mysql));
    let chosen = chosen.into_iter().map(with_engines).collect();
    let chosen = with_wanted_cases(chosen, &lab.settings)?;
    if only_prepare {
        for (experiment, engines) in chosen {
            lab.settings.engines = engines;
            lab.settings.load = choice.load.taken(experiment.takes);
            lab.prepare(&(experiment.data)(&lab.settings))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let succeeded = run_each(&chosen, choice.repeat, |(experiment, engines)| {
        lab.settings.engines.clone_from(engines);
        lab.settings.load = choice.load.taken(experiment.takes);
        (experiment.run)(&lab)
    });
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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

    /// As the program reads it.
    #[derive(Debug, clap::Parser)]
    #[command(args_override_self = true)]
    struct Line {
        #[command(flatten)]
        choice: Choice,
    }

    fn parse(options: &[&str]) -> clap::error::Result<Choice> {
        let words = ["lab", "swap"].iter().chain(options);
        Ok(<Line as clap::Parser>::try_parse_from(words)?.choice)
    }

    fn chosen(names: &[&str]) -> Vec<Chosen> {
        let both = vec![Engine::Tidepool, Engine::InnoDb];
        let named = experiment::ALL.iter().filter(|one| names.contains(&one.name));
        named.map(|one| (one, both.clone())).collect()
    }

    fn settings(only: &str) -> Settings {
        Settings { only: vec![only.into()], ..Settings::usual() }
    }

    fn wanted(names: &[&str], only: &str) -> Vec<&'static str> {
        let wanted = with_wanted_cases(chosen(names), &settings(only)).unwrap();
        wanted.iter().map(|(one, _)| one.name).collect()
    }

    #[test]
    fn a_case_that_is_not_there_is_refused_with_those_that_are() {
        let refused = |names: &[&str], only: &str| {
            with_wanted_cases(chosen(names), &settings(only)).unwrap_err().to_string()
        };
        let error = refused(&["swap", "warm"], "no such case");
        for part in
            ["no such case", "swap:", "  oltp_point_select, uniform, 75 %", "  rescue", "warm"]
        {
            assert!(error.contains(part), "{error}");
        }
        assert!(refused(&["idle"], "rescue").contains("idle: nothing to choose from"));
        let quick = Settings { quick: true, ..settings("rescue") };
        assert!(with_wanted_cases(chosen(&["swap"]), &quick).is_err());
        // One of two is there.
        let both =
            Settings { only: ["rescue", "nowhere"].map(String::from).into(), ..settings("") };
        let error = with_wanted_cases(chosen(&["swap"]), &both).unwrap_err().to_string();
        assert!(error.contains("\"nowhere\""), "{error}");
    }

    #[test]
    fn each_case_can_be_chosen_and_other_experiments_are_left_out() {
        let all: Vec<&str> = experiment::ALL.iter().map(|one| one.name).collect();
        assert_eq!(wanted(&all, "rescue"), ["swap"]);
        assert_eq!(wanted(&all, "in turns"), ["swap"]);
        assert_eq!(wanted(&all, "sawtooth"), ["pressure", "govern"]);
        assert_eq!(wanted(&all, "two servers"), ["pressure"]);
        assert_eq!(wanted(&all, "shrink of clean pages"), ["resize"]);
        assert_eq!(wanted(&all, "alone"), ["sideload"]);
    }

    #[test]
    fn only_may_be_given_several_times() {
        let choice = parse(&["--only", "ramp", "--only", "sawtooth"]).unwrap();
        let settings = Settings { only: choice.only, ..Settings::usual() };
        let wanted = |case| settings.wants(case);
        assert_eq!(["step", "ramp", "sawtooth"].map(wanted), [false, true, true]);
    }

    #[test]
    fn a_load_is_chosen_for_those_that_can_take_it() {
        let named = |names: &[&str]| -> Vec<&'static Experiment> {
            experiment::ALL.iter().filter(|one| names.contains(&one.name)).collect()
        };
        let threads = Load { threads: Some(32), ..Load::default() };
        check_load(&named(&["swap", "traces"]), threads).unwrap();
        let error = check_load(&named(&["traces", "sideload"]), threads).unwrap_err().to_string();
        assert!(error.contains("--threads 32: sideload, traces has its own"), "{error}");
        assert!(error.contains("swap, pressure, "), "{error}");
        let all = Load { seconds: Some(60), warehouses: Some(4), ..threads };
        assert!(check_load(&named(&["pressure", "swap"]), all).is_err(), "no warehouses in these");
        check_load(&named(&["defaults", "pressure"]), all).unwrap();
        let taken = |name: &str| all.taken(named(&[name])[0].takes).options().join(" ");
        assert_eq!(taken("defaults"), "--threads 32 --seconds 60 --warehouses 4");
        assert_eq!(taken("swap"), "--threads 32 --seconds 60");
        assert_eq!(taken("pressure"), "--threads 32");
        assert_eq!(taken("traces"), "");
    }

    #[test]
    fn a_load_that_is_none_is_refused() {
        assert_eq!(parse(&["--threads=64"]).unwrap().load.threads, Some(64));
        for option in
            ["--threads=0", "--threads=1001", "--seconds=4", "--seconds=x", "--warehouses=0"]
        {
            assert!(parse(&[option]).is_err(), "{option}");
        }
    }

    #[test]
    fn a_command_that_could_run_nothing_has_not_succeeded() {
        let none = |_: &Chosen| Err(Error::Missing("it needs root".into()));
        assert!(!run_each(&chosen(&["swap", "warm"]), 2, none));
        let mut runs = 0;
        let some = |(one, _): &Chosen| {
            runs += 1;
            if one.name == "swap" { Err(Error::Missing("it needs root".into())) } else { Ok(()) }
        };
        assert!(run_each(&chosen(&["swap", "idle"]), 2, some));
        assert_eq!(runs, 3);
        let failed = |(one, _): &Chosen| match one.name {
            "idle" => Ok(()),
            _ => Err(Error::Program { program: "mariadbd".into(), message: "died".into() }),
        };
        assert!(!run_each(&chosen(&["swap", "idle"]), 1, failed));
    }
}
