//! `tidepool convert`: takes tables from InnoDB to Tidepool, and back.
//!
//! | module | what it holds |
//! |---|---|
//! | [`names`], [`schema`] | tables and foreign keys as plain facts |
//! | [`gather`] | the facts, from the server |
//! | [`rules`], [`trial`] | what stands in the way: by rules, and by the server's own answer |
//! | [`plan`], [`statements`] | which statements, in which order |
//! | [`look`] | all of the above, put together |
//! | [`space`] | room and time |
//! | [`journal`] | foreign keys that are dropped and not back yet, on the server |
//! | [`apply`], [`progress`] | carrying the plan out |
//! | [`report`] | what is printed |
//!
//! Without `--apply` nothing of the user's is changed. With it, the command may be killed at any
//! moment, and so may the server: a further run goes on from what it finds. The tables say by their
//! engine what has been done, and the journal has the foreign keys that are missing.

pub mod apply;
pub mod gather;
pub mod journal;
pub mod look;
pub mod names;
pub mod plan;
pub mod progress;
pub mod report;
pub mod rules;
pub mod schema;
pub mod space;
pub mod statements;
pub mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::ExitCode;

use crate::connect;
use crate::exit::{Error, Result, UNFINISHED};
use crate::govern::stop_flag;
use crate::server::{Flavour, Server};
use crate::terminal::print;
use apply::{Outcome, Run, Wishes};
use journal::Journal;
use look::{Look, Selection};
use names::{Chosen, TableName};
use report::Report;
use schema::Table;
use space::Space;
use statements::{Direction, NO_BINARY_LOG, settings};

/// The longest that a session of the server waits.
const LOCK_WAIT_MAX_S: u64 = 31_536_000;

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Schemas and tables, as SCHEMA or SCHEMA.TABLE [default: all but the system's]
    #[arg(value_name = "SCHEMA[.TABLE]")]
    chosen: Vec<Chosen>,
    /// Convert the tables, one after the other. Can be stopped at any time; run it again to go on
    #[arg(long)]
    apply: bool,
    /// From Tidepool to InnoDB
    #[arg(long)]
    back: bool,
    /// Engines whose tables are converted [default: InnoDB; with --back: Tidepool]
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    from: Vec<String>,
    /// Leave these out
    #[arg(long, value_name = "SCHEMA[.TABLE]")]
    exclude: Vec<Chosen>,
    /// Compare CHECKSUM TABLE before and after; other sessions wait while a table is converted
    #[arg(long)]
    verify: bool,
    /// Let other sessions use tables while their foreign keys are missing. Rows without a parent
    /// may come, which is checked afterwards
    #[arg(long)]
    no_lock_tables: bool,
    /// Add foreign keys again without checking the rows
    #[arg(long)]
    leave_orphans: bool,
    /// Leave the changes out of the binary log: replicas keep their tables
    #[arg(long)]
    skip_log_bin: bool,
    /// Seconds to wait for other sessions' transactions on a table
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = lock_wait)]
    lock_wait: u64,
    /// Do not compare the estimates with the free room on the disk
    #[arg(long)]
    no_space_check: bool,
    /// What to print: text for people, JSON for programs, or the statements as a script
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// What is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
    /// The statements.
    Sql,
}

fn lock_wait(text: &str) -> std::result::Result<u64, String> {
    match text.parse() {
        Ok(seconds) if (1..=LOCK_WAIT_MAX_S).contains(&seconds) => Ok(seconds),
        _ => Err(format!("from 1 to {LOCK_WAIT_MAX_S} seconds")),
    }
}

impl Options {
    fn direction(&self) -> Direction {
        match self.back {
            true => Direction::ToInnodb,
            false => Direction::ToTidepool,
        }
    }

    fn selection(&self) -> Result<Selection> {
        let direction = self.direction();
        let from = match self.from.as_slice() {
            [] => vec![direction.from_engine().to_owned()],
            from => from.to_vec(),
        };
        if from.iter().any(|engine| engine.eq_ignore_ascii_case(direction.engine())) {
            let engine = direction.engine();
            return Err(Error::Usage(format!(
                "--from {engine}: that is what tables are to become"
            )));
        }
        let (chosen, excluded) = (self.chosen.clone(), self.exclude.clone());
        Ok(Selection { direction, from, chosen, excluded })
    }
}

/// Runs the command.
///
/// # Errors
/// See [`crate::exit`].
pub fn run(options: &Options, connection: &connect::Options) -> Result<ExitCode> {
    if options.apply && options.format == Format::Sql {
        return Err(Error::Usage("--format=sql prints statements instead of running them".into()));
    }
    let mut selection = options.selection()?;
    let target = connection.target()?.without_answer_timeout();
    let mut work = Server::connect(&target)?;
    check_server(&mut work, options)?;
    prepare(&mut work, options)?;
    if options.apply {
        claim(&mut work)?;
    }
    let look = look::look(&mut work, &mut selection, options.lock_wait)?;
    let space = Space::new(&mut work, selection.direction)?;
    let report = Report::new(&mut work, &look, &space, options.no_lock_tables)?;
    if !options.apply {
        print(&match options.format {
            Format::Text => report.text(),
            Format::Json => report.json(None),
            Format::Sql => report.sql(&settings(options.lock_wait), options.skip_log_bin),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before the first statement, so that a signal always ends in order.
    let stop = stop_flag()?;
    let is_json = options.format == Format::Json;
    if !is_json {
        print(&report.head())?;
    }
    if !options.no_space_check {
        check_space(&mut work, &space, &look)?;
    }
    let tables: BTreeMap<TableName, Table> =
        look.tables.iter().map(|table| (table.name.clone(), table.clone())).collect();
    let mut journal = Journal::open(&target)?;
    journal.forget(&look.back_already)?;
    let mut say = |line: &str| {
        // The reader may have gone; the work goes on.
        let line = crate::terminal::printable(line);
        let _ = match is_json {
            true => writeln!(std::io::stderr(), "{line}"),
            false => writeln!(std::io::stdout(), "{line}"),
        };
    };
    let wishes = Wishes {
        direction: selection.direction,
        is_verifying: options.verify,
        locks_tables: !options.no_lock_tables,
        leaves_orphans: options.leave_orphans,
        checks_space: !options.no_space_check,
    };
    let to_alter = || look.plan.groups.iter().flat_map(|group| &group.alter);
    let mut run = Run {
        work: &mut work,
        journal: &mut journal,
        bytes_left: to_alter().map(|alter| tables[&alter.name].bytes()).sum(),
        tables_total: to_alter().count(),
        schemas: BTreeSet::new(),
        tables: &tables,
        headless: &look.headless,
        space,
        wishes,
        stop,
        say: &mut say,
        outcome: Outcome::default(),
    };
    let result = run.carry_out(&look.plan);
    let outcome = run.outcome;
    if let Err(error) = result {
        let error = with_what_is_left(error, &mut work);
        if !matches!(error, Error::Gone(_)) {
            // Removes it where nothing is missing; the error says more than one of this would.
            let _ = journal.close();
        }
        return Err(error);
    }
    journal.close()?;
    let missing = journal::read(&mut work)?;
    let is_done =
        !outcome.is_stopped && outcome.left.is_empty() && look.is_complete() && missing.is_empty();
    print(&match is_json {
        true => report.json(Some(&outcome)),
        false => report.after(&outcome, &missing),
    })?;
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::from(UNFINISHED) })
}

fn check_server(server: &mut Server, options: &Options) -> Result<()> {
    let kind = server.kind();
    if kind.flavour != Flavour::MariaDb || !kind.is_mariadb_since((10, 5, 0)) {
        return Err(Error::Unsupported(format!(
            "Tidepool is an engine of MariaDB; this is {kind}"
        )));
    }
    if options.back && !kind.innodb {
        return Err(Error::Unsupported("InnoDB is switched off in this server".into()));
    }
    if options.apply && !kind.tidepool && !options.back {
        return Err(Error::Unsupported(
            "Tidepool is not loaded: INSTALL SONAME 'ha_tidepool'; (and `plugin-load-add = \
             ha_tidepool` in the option file)"
                .into(),
        ));
    }
    let variables = server.named("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'")?;
    if options.apply && variables.get("wsrep_on").is_some_and(|value| value == "ON") {
        return Err(Error::Unsupported(
            "this is a Galera node, and Galera does not replicate Tidepool's tables".into(),
        ));
    }
    Ok(())
}

/// The settings of the session that converts.
fn prepare(server: &mut Server, options: &Options) -> Result<()> {
    for setting in settings(options.lock_wait) {
        let what = setting.statement.as_str();
        match setting.may_fail {
            true => drop(server.attempt(what, what)?),
            false => server.execute(what, "", what)?,
        }
    }
    if options.apply && options.skip_log_bin {
        server.execute("--skip-log-bin", "BINLOG ADMIN", NO_BINARY_LOG)?;
    }
    Ok(())
}

/// One conversion at a time.
fn claim(server: &mut Server) -> Result<()> {
    let what = "the lock tidepool_convert";
    // A server takes a moment to notice that the connection of a command that has ended is closed.
    let query = "SELECT GET_LOCK('tidepool_convert', 3)";
    if server.first::<Option<u8>>(what, "", query)? == Some(Some(1)) {
        return Ok(());
    }
    let holder: Option<Option<u64>> =
        server.first(what, "", "SELECT IS_USED_LOCK('tidepool_convert')")?;
    let holder = holder.flatten().map_or(String::new(), |id| format!(" (connection {id})"));
    Err(Error::Refused {
        what: "convert".into(),
        why: format!(
            "another conversion runs{holder}; that of a command that was killed ends after its \
             statement"
        ),
    })
}

fn check_space(server: &mut Server, space: &Space, look: &Look) -> Result<()> {
    let Some(free) = space.free(server)? else {
        tracing::warn!(
            "the free room on the server's disk can't be seen from here: look at it yourself, or \
             INSTALL SONAME 'disks'"
        );
        return Ok(());
    };
    let order = look.plan.groups.iter().flat_map(|group| &group.alter);
    space.check_all(free, order.map(|alter| look.table(&alter.name)), look.direction)
}

/// An error that leaves foreign keys missing says so: that is the one thing to know then.
fn with_what_is_left(error: Error, server: &mut Server) -> Error {
    let left = match &error {
        // Nothing can be asked any more.
        Error::Gone(why) => {
            return Error::Gone(format!(
                "{why}; run the command again once the server is there: it goes on where it \
                 stopped, and adds the foreign keys that are in {}.constraints",
                journal::SCHEMA
            ));
        }
        _ => journal::read(server).map_or(0, |missing| missing.len()),
    };
    let note = match left {
        0 => return error,
        left => format!(
            " ({left} foreign keys are missing now; they are in {}.constraints, and the next run \
             adds them)",
            journal::SCHEMA
        ),
    };
    match error {
        Error::Refused { what, why } => Error::Refused { what, why: why + &note },
        Error::Unsupported(why) => Error::Unsupported(why + &note),
        Error::Differs(why) => Error::Differs(why + &note),
        Error::Privilege { what, grant } => Error::Privilege { what, grant: grant + &note },
        other => other,
    }
}
