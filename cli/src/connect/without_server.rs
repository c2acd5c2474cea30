//! Commands that reach no server: they list none of the options that say how to reach one, and
//! refuse them instead of passing them over.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};

use super::Options;

/// Their names.
const COMMANDS: [&str; 6] = ["lab", "check", "salvage", "combine", "completions", "man"];

/// The definition of the command line for others than the parser: options of the connection are on
/// the program and on the commands that reach a server only.
pub fn described(program: Command) -> Command {
    let ids = ids();
    let mut program = program.mut_args(|arg| {
        let is_one = ids.iter().any(|id| arg.get_id() == id.as_str());
        if is_one { arg.global(false) } else { arg }
    });
    let names: Vec<String> =
        program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in names.iter().filter(|name| !COMMANDS.contains(&name.as_str())) {
        program = program.mut_subcommand(name, |command| command.args(options()));
    }
    program
}

/// Options of the connection.
fn options() -> Vec<Arg> {
    Options::augment_args(Command::new("options")).get_arguments().cloned().collect()
}

fn ids() -> Vec<String> {
    options().iter().map(|arg| arg.get_id().to_string()).collect()
}

/// Reads a command line.
///
/// # Errors
/// As the parser has it, for help and versions too; and where such a command is given an option of
/// the connection.
pub fn parse(
    mut program: Command,
    line: impl IntoIterator<Item = OsString>,
) -> Result<ArgMatches, clap::Error> {
    let ids = ids();
    // Only then do the subcommands have the options that all of them share.
    program.build();
    for name in COMMANDS {
        program = program.mut_subcommand(name, |command| hidden(command, &ids));
    }
    let matches = program.try_get_matches_from_mut(line)?;
    let Some((name, below)) = matches.subcommand().filter(|(name, _)| COMMANDS.contains(name))
    else {
        return Ok(matches);
    };
    let is_given = |id: &&String| {
        [&matches, below].iter().any(|matches| {
            matches.try_contains_id(id).is_ok()
                && matches.value_source(id) == Some(ValueSource::CommandLine)
        })
    };
    match ids.iter().find(is_given) {
        None => Ok(matches),
        Some(id) => {
            let option = id.replace('_', "-");
            let why = format!("--{option}: `{name}` reaches no server, so this has no effect\n");
            Err(clap::Error::raw(ErrorKind::ArgumentConflict, why).with_cmd(&program))
        }
    }
}

fn hidden(command: Command, ids: &[String]) -> Command {
    let command = command.mut_args(|arg| {
        let is_one = ids.iter().any(|id| arg.get_id() == id.as_str());
        if is_one { arg.hide(true) } else { arg }
    });
    let names: Vec<String> =
        command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    names
        .iter()
        .fold(command, |command, name| command.mut_subcommand(name, |below| hidden(below, ids)))
}
