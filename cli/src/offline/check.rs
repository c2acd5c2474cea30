//! `tidepool check`: is this directory whole?

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tidepool::inspect::{FileReport, Inspection, Report};

use super::agreement;
use super::directory::{Directory, Place};
use super::progress::Progress;
use super::rows::description;
use crate::bytes;
use crate::exit::{DAMAGED, Result};
use crate::terminal::{print, printable_lines};

/// Damaged pages of a file that the text lists.
const PAGES_LISTED: usize = 20;

/// What `check` is given.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    place: Place,
    /// How the report is written
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// How a report is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Looks at the directory, and prints what is wrong.
///
/// # Errors
/// The directory can't be looked at.
pub fn run(options: &Options) -> Result<std::process::ExitCode> {
    let began = Instant::now();
    let directory = Directory::open(&options.place)?;
    let progress = Progress::new();
    let report = directory.inspection.check(&mut |at| {
        progress.tell(at.what, at.done_bytes, at.total_bytes);
    });
    let report = report.map(|mut report| {
        compare_indexes(&directory.inspection, &mut report, &progress);
        report
    });
    drop(progress);
    let report = report.map_err(|error| {
        crate::exit::Error::Local(format!("{}: {error}", directory.root.display()))
    })?;
    let took = began.elapsed();
    let root = directory.root.display().to_string();
    directory.inspection.abandon();
    print(&match options.format {
        Format::Text => text(&root, &report, took),
        Format::Json => format!("{:#}\n", as_json(&root, &report, took)),
    })?;
    Ok(if report.is_clean() { 0 } else { DAMAGED }.into())
}

/// Compares the indexes of tables whose columns are known, and whose trees are whole, with their
/// rows.
fn compare_indexes(inspection: &Inspection, report: &mut Report, progress: &Progress) {
    let Ok(db) = inspection.db() else { return };
    let files = &report.files;
    for table in report.tables.iter_mut().filter(|table| table.problems.is_empty()) {
        let total = table.indexes.iter().map(|index| index.entries).sum::<u64>().max(1);
        let file = files.iter().find(|file| file.file == table.file);
        let bytes = file.map_or(0, |file| file.bytes);
        let what = format!("{}: indexes against rows", table.name);
        let mut done = 0;
        let mut told = || {
            done += 1;
            if done % 4096 == 0 {
                let share = done.min(total) as f64 / total as f64;
                progress.tell(&what, (bytes as f64 * share) as u64, bytes);
            }
        };
        let def = db.table_def(&table.name).map_err(|error| error.to_string());
        let description =
            def.and_then(|def| description::of_table(inspection, &table.name, &def)).transpose();
        // A table of a program that embeds the engine: what its indexes mean is not known.
        let Some(description) = description else { continue };
        let problems = description.and_then(|description| {
            agreement::compare(db, &table.name, &description, &mut told)
                .map_err(|error| error.to_string())
        });
        match problems {
            Ok(problems) => table.problems.extend(problems),
            Err(why) => table.problems.push(format!("its indexes can't be compared: {why}")),
        }
    }
}

fn file_bytes(report: &Report) -> u64 {
    report.files.iter().map(|file| file.bytes).sum()
}

/// The report for people.
fn text(root: &str, report: &Report, took: Duration) -> String {
    let mut out = String::new();
    // Writing to a string never fails.
    let mut line = |text: String| _ = writeln!(out, "{text}");
    for problem in &report.problems {
        line(format!("damage: {problem}"));
    }
    for file in report.files.iter().filter(|file| !file.is_clean()) {
        let of = file.table.as_ref().map_or(String::new(), |table| format!(" (table {table})"));
        for problem in &file.problems {
            line(format!("damage: {problem}{of}"));
        }
        for page in file.damaged.iter().take(PAGES_LISTED) {
            line(format!("damage: {}: page {} is corrupt: {}{of}", file.file, page.page, page.why));
        }
        let listed = file.damaged.len().min(PAGES_LISTED) as u64;
        if file.damaged_pages > listed {
            let more = file.damaged_pages - listed;
            line(format!("damage: {}: {more} more pages are corrupt{of}", file.file));
        }
    }
    for table in &report.tables {
        for problem in &table.problems {
            line(format!("damage: table {}: {problem}", table.name));
        }
        if let Some(pages) = table.unreachable_pages.filter(|pages| *pages > 0) {
            line(format!(
                "note: table {}: {pages} pages are allocated, and nothing leads to them; ALTER TABLE … FORCE gives \
                 them back",
                table.name
            ));
        }
    }
    for note in &report.notes {
        line(format!("note: {note}"));
    }
    if report.log.damaged_control_slots == 1 {
        line(
            "note: redo/control: one of the two slots is not whole, as in a backup, and after a \
             power cut in its write"
                .into(),
        );
    }
    let healed: u64 = report.files.iter().map(|file| file.healed_pages).sum();
    if healed > 0 {
        line(format!("note: {healed} torn pages are whole after recovery"));
    }
    let read = file_bytes(report);
    line(format!(
        "{root}: {} in {} files, {} tables; {}; {:.1} s, {}/s",
        bytes::human(read),
        report.files.len(),
        report.tables.len(),
        match (report.log.end, report.log.clean) {
            (None, _) => "not recovered".to_string(),
            (Some(end), true) => format!("closed cleanly at LSN {end}"),
            (Some(end), false) => format!("not closed cleanly, the log ends at LSN {end}"),
        },
        took.as_secs_f64(),
        bytes::human((read as f64 / took.as_secs_f64().max(1e-3)) as u64),
    ));
    line(match report.has_damage() {
        true => "damage found: restore a backup, or save what can be read with 'tidepool salvage'"
            .into(),
        false if report.lacks_key => {
            "not all could be looked at: give the keys of what is encrypted with --key-file".into()
        }
        false => "no damage found".into(),
    });
    printable_lines(&out)
}

/// The report for programs.
fn as_json(root: &str, report: &Report, took: Duration) -> Value {
    let file = |file: &FileReport| {
        let damaged = file.damaged.iter().map(|page| json!({"page": page.page, "why": page.why}));
        json!({
            "file": file.file,
            "space": file.space,
            "table": file.table,
            "pages": file.pages,
            "bytes": file.bytes,
            "damaged_pages": file.damaged_pages,
            "encrypted_pages": file.encrypted_pages,
            "damaged": damaged.collect::<Vec<_>>(),
            "healed_pages": file.healed_pages,
            "problems": file.problems,
        })
    };
    let tables = report.tables.iter().map(|table| {
        let indexes = table.indexes.iter().map(|index| {
            json!({
                "name": index.name,
                "entries": index.entries,
                "delete_marked": index.delete_marked,
                "pages": index.pages,
            })
        });
        json!({
            "name": table.name,
            "file": table.file,
            "indexes": indexes.collect::<Vec<_>>(),
            "problems": table.problems,
            "unreachable_pages": table.unreachable_pages,
        })
    });
    json!({
        "directory": root,
        "damaged": report.has_damage(),
        "damaged_pages": report.damaged_pages(),
        "force_recovery": report.force_recovery,
        "lacks_key": report.lacks_key,
        "log": {
            "checkpoint": report.log.checkpoint.map(|lsn| lsn.0),
            "end": report.log.end.map(|lsn| lsn.0),
            "closed_cleanly": report.log.clean,
            "damaged_control_slots": report.log.damaged_control_slots,
        },
        "bytes": file_bytes(report),
        "seconds": took.as_secs_f64(),
        "problems": report.problems,
        "notes": report.notes,
        "files": report.files.iter().map(file).collect::<Vec<_>>(),
        "tables": tables.collect::<Vec<_>>(),
    })
}
