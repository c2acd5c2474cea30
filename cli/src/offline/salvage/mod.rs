//! `tidepool salvage`: writes what can still be read of a damaged directory, table by table, and
//! says what can not.
//!
//! | file | what |
//! |---|---|
//! | `names` | engine's names of tables as the server's, and as files |
//! | `output` | rows to SQL, CSV, or hexadecimal |
//! | `report` | what could not be read, for people and for programs |

mod names;
mod output;
mod report;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use tidepool::inspect::Inspection;
use tidepool::inspect::salvage::SalvageTable;

use super::directory::{Directory, ENGINE_DIR, Place, directory_above, engine_dir};
use super::progress::Progress;
use super::rows::description::{self, Description};
use crate::exit::{DAMAGED, Error, Result};
use crate::terminal::print;
use names::TableName;
use output::{Output, write_private};
use report::{Outcome, Table};

/// The file with the statements for foreign keys, to be loaded last.
const FOREIGN_KEYS: &str = "foreign-keys.sql";

/// What `salvage` is given.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// Where the files go: a directory that is empty, or is made
    #[arg(long, value_name = "OUT")]
    to: PathBuf,
    /// What the rows are written as
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Only this table, as db/table or db.table; several times for several
    #[arg(long = "table", value_name = "DB/TABLE")]
    tables: Vec<String>,
    /// Print the report for programs
    #[arg(long)]
    json: bool,
}

/// What rows are written as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// CREATE TABLE and INSERT statements.
    #[default]
    Sql,
    /// Comma-separated values, and the statements that create and load the table in separate files.
    Csv,
}

/// Writes what can be read.
///
/// # Errors
/// The directory can't be looked at, or the files can't be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    check_is_outside(&options.to, &options.place.dir)?;
    let is_made = make_empty_dir(&options.to)?;
    let directory = Directory::open(&options.place).inspect_err(|_| {
        if is_made {
            // Nothing is in it.
            let _ = fs::remove_dir(&options.to);
        }
    })?;
    let progress = Progress::new();
    let outcome = salvage(&directory.inspection, options, &progress);
    drop(progress);
    let (outcome, foreign_keys) = outcome?;
    if !foreign_keys.is_empty() {
        let path = options.to.join(FOREIGN_KEYS);
        let sql = format!("SET NAMES utf8mb4;\nSET foreign_key_checks = 0;\n{foreign_keys}");
        write_private(&path, &sql)?;
    }
    let text = report::text(&outcome);
    let json = format!("{:#}\n", report::as_json(&outcome));
    for (name, content) in [("report.txt", &text), ("report.json", &json)] {
        write_private(&options.to.join(name), content)?;
    }
    print(if options.json { &json } else { &text })?;
    directory.inspection.abandon();
    Ok(if outcome.is_whole() { 0 } else { DAMAGED }.into())
}

/// In a server's data directory each directory is a database, and in the engine's only its own
/// files are expected.
fn check_is_outside(to: &Path, dir: &Path) -> Result<()> {
    let root = engine_dir(dir)?;
    let real = |path: &Path| path.canonicalize().map_err(|error| Error::file(path, &error));
    let root = real(&root)?;
    // Of a directory that does not exist yet, the one above it.
    let to_real = to.canonicalize().or_else(|_| real(directory_above(to)))?;
    // The server's own directory, where the engine's in it was named.
    let server = root.parent().filter(|above| {
        root.file_name().is_some_and(|name| name == ENGINE_DIR) && above.join("mysql").is_dir()
    });
    let is_inside = to_real.starts_with(real(dir)?)
        || to_real.starts_with(&root)
        || server.is_some_and(|server| to_real.starts_with(server));
    match is_inside {
        false => Ok(()),
        true => Err(Error::Usage(format!(
            "--to {}: it is in the directory that is read: give another one",
            to.display()
        ))),
    }
}

/// For the user alone: the rows of all tables are in it. Returns whether it is a new one.
fn make_empty_dir(dir: &Path) -> Result<bool> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let mut entries = fs::read_dir(dir).map_err(|error| Error::file(dir, &error))?;
            match entries.next() {
                None => Ok(false),
                Some(_) => Err(Error::Usage(format!("--to {}: it is not empty", dir.display()))),
            }
        }
        Err(error) => Err(Error::file(dir, &error)),
    }
}

/// What came of it, and the statements for foreign keys.
fn salvage(
    inspection: &Inspection,
    options: &Options,
    progress: &Progress,
) -> Result<(Outcome, String)> {
    let mut foreign_keys = String::new();
    let storage_error = |error: tidepool::Error| Error::Local(error.to_string());
    let (all, catalog) = inspection.salvage_tables().map_err(storage_error)?;
    let mut outcome = Outcome {
        engine_error: inspection.refusal_text(),
        level: inspection.level(),
        catalog,
        tables: Vec::new(),
        missing: Vec::new(),
    };
    let names: Vec<TableName> = all.iter().map(|table| TableName::of(&table.name)).collect();
    for wanted in &options.tables {
        if !names.iter().any(|name| name.is_meant(wanted)) {
            outcome.missing.push(wanted.clone());
        }
    }
    for (table, name) in all.iter().zip(names) {
        let is_wanted = match options.tables.is_empty() {
            // No session can use a temporary table any more.
            true => !name.is_temporary(),
            false => options.tables.iter().any(|wanted| name.is_meant(wanted)),
        };
        if is_wanted {
            let (table, keys) = salvage_table(inspection, table, name, options, progress)?;
            outcome.tables.push(table);
            foreign_keys.extend(keys);
        }
    }
    Ok((outcome, foreign_keys))
}

fn salvage_table(
    inspection: &Inspection,
    table: &SalvageTable,
    name: TableName,
    options: &Options,
    progress: &Progress,
) -> Result<(Table, Option<String>)> {
    let described = describe(inspection, table);
    let (description, why_not) = match described {
        Ok(description) => (Some(description), None),
        Err(why) => (None, Some(why)),
    };
    let mut output = Output::create(&options.to, &name, options.format, description.as_ref())?;
    let mut failure = None;
    let mut see = |key: &[u8], row: &[u8]| {
        output.row(key, row).map_err(|error| {
            let text = error.to_string();
            failure = Some(error);
            tidepool::Error::Storage(text)
        })
    };
    let found = inspection.salvage(table, &mut see, &mut |at| {
        progress.tell(at.what, at.done_bytes, at.total_bytes);
    });
    let found = match (found, failure) {
        (_, Some(error)) => return Err(error),
        (found, None) => found.map_err(|error| Error::Local(error.to_string()))?,
    };
    let written = output.finish()?;
    let keys = description
        .as_ref()
        .and_then(|description| names::add_foreign_keys(&name, &description.foreign_keys));
    let clustered = description.as_ref().map(|description| description.clustered().clone());
    Ok((Table { name, space: table.space, found, written, why_not, clustered }, keys))
}

/// The table's columns and keys, if they are known.
fn describe(
    inspection: &Inspection,
    table: &SalvageTable,
) -> std::result::Result<Description, String> {
    let def = table.def.as_ref().ok_or("no table has this file, so its columns are not known")?;
    let description = description::of_table(inspection, &table.name, def)?;
    Ok(description.ok_or("its columns are not described in the catalog")?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_go_nowhere_into_the_directory_that_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let server = dir.path().join("data");
        let engine = server.join(ENGINE_DIR);
        fs::create_dir_all(engine.join("redo")).unwrap();
        fs::create_dir(server.join("mysql")).unwrap();
        fs::write(engine.join("redo/control"), "").unwrap();
        for to in [server.join("rescue"), engine.join("rescue"), server.join("mysql")] {
            for read in [&server, &engine] {
                let error = check_is_outside(&to, read).unwrap_err();
                assert_eq!(error.code(), 2, "{error}");
            }
        }
        assert!(!server.join("rescue").exists());
        check_is_outside(&dir.path().join("rescue"), &server).unwrap();
        check_is_outside(&dir.path().join("rescue"), &engine).unwrap();
        check_is_outside(&dir.path().join("data-rescue"), &server).unwrap();
    }

    #[test]
    fn what_is_made_is_for_the_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("rescue");
        make_empty_dir(&to).unwrap();
        write_private(&to.join("report.txt"), "text").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&to), mode(&to.join("report.txt"))), (0o700, 0o600));
        let name = TableName::of("shop/orders");
        let output = Output::create(&to, &name, Format::Sql, None).unwrap();
        drop(output);
        assert_eq!(mode(&to.join("shop")), 0o700);
    }
}
