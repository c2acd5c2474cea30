//! The program: reads the command line, runs one command, turns its error into a sentence and an
//! exit code.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tidepool_cli::connect::without_server as connection;
use tidepool_cli::terminal::{Verbosity, print_error};
use tidepool_cli::{advise, command_files, connect, convert, govern, offline, watch};
use tidepool_lab::{command as lab, subprocess};
use tracing::level_filters::LevelFilter;

/// Looks after the buffer pool of a running MariaDB, MySQL or Percona Server, and of Tidepool.
///
/// Exit codes: 0 done, 1 `check` found damage, `salvage` could not read all, `convert` found that a
/// table differs or an experiment of the lab failed, 2 wrong options, 3 no server (or `advise
/// --check` could not see all), 4 access denied or no TLS, 5 a privilege is missing, 6 unsupported
/// by this server, 7 the server went away, 8 a local file, port or terminal, 9 the server refused,
/// 10 `advise --check` found something, 11 `convert --apply` left something to do.
#[derive(Debug, Parser)]
#[command(
    name = "tidepool",
    version,
    max_term_width = 110,
    args_override_self = true,
    disable_help_flag = true
)]
struct Arguments {
    /// Print help
    // Not -h: that is the host, as it is to every client.
    #[arg(long, short = '?', global = true, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Print results and errors only: neither `govern`'s decisions (--log has them) nor the page's
    /// address
    #[arg(long, short = 'q', global = true)]
    quiet: bool,
    #[command(flatten)]
    connection: connect::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what is wrong with the server's memory settings, and what to set. Changes nothing
    Advise(advise::Options),
    /// Keep the InnoDB pool at the size that fits, in small steps, while the server runs. A dry run
    /// unless --apply
    Govern(govern::Options),
    /// Show the pool and the load as a live page, whose slider sets the pool's size
    Watch(watch::Options),
    /// Take tables from InnoDB to Tidepool, or back: says what stands in the way, and which
    /// statements. Changes nothing unless --apply
    Convert(convert::Options),
    /// Look for damage in a data directory that no server has open, or in a backup. Changes nothing
    Check(offline::check::Options),
    /// Write what can still be read of a damaged data directory, table by table, as SQL or CSV.
    /// Changes nothing in it
    Salvage(offline::salvage::Options),
    /// Make a complete backup of a complete one and the incremental ones since
    Combine(offline::combine::Options),
    /// Print what a shell completes: for bash, `tidepool completions bash
    /// >~/.local/share/bash-completion/completions/tidepool`
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    Man {
        /// Is made if it is missing
        directory: std::path::PathBuf,
    },
    /// Experiments on private servers under load and pressure, from a checkout of Tidepool
    #[command(subcommand)]
    Lab(lab::Command),
}

fn main() -> ExitCode {
    // Before anything else parses the words: a parser shows the word that it can't parse.
    let words = std::env::args_os().skip(1);
    if let Err(error) = connect::command_line::refuse_password(Arguments::command(), words) {
        print_error("tidepool", &error);
        return error.into();
    }
    // The lab starts this program again as a neighbour and as a janitor.
    if let Some(code) = subprocess::main() {
        return code;
    }
    let arguments = match connection::parse(Arguments::command(), std::env::args_os()) {
        Ok(matches) => Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()),
        Err(error) => error.exit(),
    };
    // What recovery says of an overlay is not what happens to the directory: the report has what
    // counts.
    let is_offline =
        matches!(arguments.command, Command::Check(_) | Command::Salvage(_) | Command::Combine(_));
    let (level, verbosity) = match (is_offline, arguments.quiet) {
        (true, true) => (LevelFilter::OFF, Verbosity::Quiet),
        (true, false) => (LevelFilter::OFF, Verbosity::Normal),
        (false, true) => (LevelFilter::ERROR, Verbosity::Quiet),
        (false, false) => (LevelFilter::INFO, Verbosity::Normal),
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(level)
        .with_target(false)
        .without_time()
        .init();
    let result = match arguments.command {
        Command::Advise(options) => advise::run(&options, &arguments.connection),
        Command::Govern(options) => govern::run(&options, &arguments.connection, verbosity),
        Command::Watch(options) => watch::run(&options, &arguments.connection, verbosity),
        Command::Convert(options) => convert::run(&options, &arguments.connection),
        Command::Check(options) => {
            return offline::check::run(&options).unwrap_or_else(|error| {
                print_error("tidepool check", &error);
                error.into()
            });
        }
        Command::Salvage(options) => {
            return offline::salvage::run(&options).unwrap_or_else(|error| {
                print_error("tidepool salvage", &error);
                error.into()
            });
        }
        Command::Combine(options) => {
            return offline::combine::run(&options).unwrap_or_else(|error| {
                print_error("tidepool combine", &error);
                error.into()
            });
        }
        Command::Completions { shell } => {
            let program = connection::described(Arguments::command());
            command_files::completions(program, shell).map(|()| ExitCode::SUCCESS)
        }
        Command::Man { directory } => {
            let pages = connection::described(Arguments::command());
            command_files::man_pages(pages, &directory).map(|()| ExitCode::SUCCESS)
        }
        Command::Lab(command) => {
            return lab::run(command).unwrap_or_else(|error| {
                print_error("tidepool lab", &error);
                match error {
                    tidepool_lab::error::Error::Usage(_) => ExitCode::from(2),
                    _ => ExitCode::FAILURE,
                }
            });
        }
    };
    result.unwrap_or_else(|error| {
        print_error("tidepool", &error);
        error.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> Option<String> {
        let words = line.split(' ').map(Into::into);
        let error = connect::command_line::refuse_password(Arguments::command(), words).err()?;
        assert_eq!(error.code(), 2, "{line}");
        Some(error.to_string())
    }

    #[test]
    fn commands_without_a_server_neither_list_nor_take_what_reaches_one() {
        let run =
            |line: &str| connection::parse(Arguments::command(), line.split(' ').map(Into::into));
        for line in ["t lab list --user x", "t --host h check /d", "t salvage -S /s /d --to /o"] {
            let error = run(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
        }
        let error = run("t -u x check /d").unwrap_err().to_string();
        assert!(error.contains("--user") && error.contains("reaches no server"), "{error}");
        assert!(run("t check /d").is_ok() && run("t -u x advise").is_ok());
        for (line, is_listed) in
            [("t lab run --help", false), ("t check --help", false), ("t advise --help", true)]
        {
            let help = run(line).unwrap_err().to_string();
            assert_eq!(help.contains("--defaults-file"), is_listed, "{line}: {help}");
        }
    }

    /// What bash offers after these words.
    fn offered(words: &[&str]) -> Vec<String> {
        let mut script = Vec::new();
        let mut program = connection::described(Arguments::command());
        clap_complete::generate(clap_complete::Shell::Bash, &mut program, "tidepool", &mut script);
        let mut script = String::from_utf8(script).unwrap();
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let last = words.len() - 1;
        script += &format!(
            "\nCOMP_WORDS=({}); COMP_CWORD={last}; _tidepool tidepool '{}' '{}'\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            quoted.join(" "),
            words[last],
            words[last - 1],
        );
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn bash_completes_commands_and_the_options_that_each_has() {
        let has = |found: &[String], word: &str| found.iter().any(|found| found == word);
        let commands = offered(&["tidepool", ""]);
        assert!(has(&commands, "watch") && has(&commands, "convert"), "{commands:?}");
        let options = offered(&["tidepool", "watch", "--h"]);
        assert!(has(&options, "--history") && has(&options, "--host"), "{options:?}");
        let options = offered(&["tidepool", "check", "--"]);
        assert!(has(&options, "--memory") && !has(&options, "--host"), "{options:?}");
    }

    #[test]
    fn each_command_has_a_man_page_with_its_options() {
        let directory = tempfile::tempdir().unwrap();
        let program = connection::described(Arguments::command());
        command_files::man_pages(program.clone(), directory.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        for command in program.get_subcommands() {
            let name = format!("tidepool-{}.1", command.get_name());
            assert!(page(&name).starts_with(".ie") || page(&name).contains(".TH"), "{name}");
        }
        let watch = page("tidepool-watch.1");
        assert!(watch.contains("\\-\\-history") && watch.contains("\\-\\-server"), "{watch}");
        assert!(page("tidepool.1").contains("Exit codes"));
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn words_that_may_be_a_password_are_refused_and_not_repeated() {
        for line in [
            "--password geheim advise",
            "-p geheim advise",
            "advise --password geheim",
            "advise -p geheim",
            "-p -p geheim advise",
            "-pgeheim advise",
            "govern -pgeheim --apply",
            "-p=geheim advise",
            "--password=geheim advise",
            "--user lab -p geheim",
            "lab run -p geheim",
            "-p --geheim advise",
            "-p -geheim advise",
            "-qp geheim advise",
            "advise -qp geheim",
            "convert -qqp geheim",
            "-qpgeheim advise",
            "-qp=geheim advise",
            "-qphgeheim advise",
        ] {
            let text = refused(line).unwrap_or_else(|| panic!("not refused: {line}"));
            assert!(text.contains("use -p alone") && !text.contains("geheim"), "{line}: {text}");
        }
        // A letter that is an option, a word that is a subcommand elsewhere, and nothing at all.
        for line in ["-puroot advise", "advise -p govern", "-p run", "-p  advise", "-p - advise"] {
            assert!(refused(line).is_some(), "{line}");
        }
    }

    #[test]
    fn options_and_subcommands_may_follow_the_wish_to_be_asked() {
        for line in [
            "-p advise",
            "--password advise --json",
            "-p= advise",
            "advise -p",
            "advise -p --interval=1",
            "-p -uroot govern",
            "-p --user root --apply govern",
            "-p --apply govern",
            "--user lab -p advise",
            "-u lab --password watch",
            "--host=lab -p advise",
            "lab -p run swap",
            "-p help",
            "-p --help",
            "-qp advise",
            "-qp -uroot advise",
            "-quroot advise",
            "-qu lab -p advise",
            "-qhpgeheim advise",
            "-p -h lab advise",
            "-h 127.0.0.1 -p advise",
            "-p -V",
            "-p --",
            "lab run -- -pgeheim",
            "-P 3307 --port 3307 --protocol tcp advise",
        ] {
            assert_eq!(refused(line), None, "{line}");
        }
    }
}
