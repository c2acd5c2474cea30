//! What is printed: text for people, JSON for programs, the statements as a script.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::{Value, json};

use crate::bytes::human;
use crate::exit::Result;
use crate::server::{Kind, Named, Server};
use crate::terminal::{printable, printable_lines};

use super::apply::Outcome;
use super::look::Look;
use super::names::TableName;
use super::plan::Group;
use super::rules::{Finding, Weight};
use super::schema::{Constraint, Table};
use super::space::Space;
use super::statements::{Direction, NO_BINARY_LOG, Setting, group};

/// How many names a line of the text has.
const NAMES_MAX: usize = 8;

/// Everything to print about a look.
pub struct Report<'a> {
    look: &'a Look,
    kind: Kind,
    free_bytes: Option<u64>,
    seconds: f64,
    /// The most that one copy may take.
    largest_bytes: u64,
    writers: &'static str,
    notes: Vec<String>,
    locks_tables: bool,
}

#[derive(Serialize)]
struct TableReport<'a> {
    #[serde(flatten)]
    table: &'a Table,
    /// `convert` or `blocked`.
    verdict: &'static str,
    findings: &'a [Finding],
}

impl<'a> Report<'a> {
    /// Asks the server for what it says beside the tables.
    ///
    /// # Errors
    /// As [`Server::rows`].
    pub fn new(
        server: &mut Server,
        look: &'a Look,
        space: &Space,
        no_lock_tables: bool,
    ) -> Result<Report<'a>> {
        let variables = server.variables()?;
        let replicas = server.named("SHOW GLOBAL STATUS LIKE 'Slaves_connected'")?;
        let kind = server.kind().clone();
        let notes = notes(look, &kind, &variables, &replicas);
        let to_alter = || look.plan.groups.iter().flat_map(|group| &group.alter);
        let to_alter = || to_alter().map(|alter| &alter.name);
        let needed = |name| space.needed(look.table(name), look.direction);
        Ok(Report {
            free_bytes: space.free(server)?,
            seconds: space.seconds(to_alter().map(|name| look.table(name).bytes()).sum()),
            largest_bytes: to_alter().map(needed).max().unwrap_or_default(),
            writers: writers(&kind),
            notes,
            locks_tables: !no_lock_tables,
            look,
            kind,
        })
    }

    fn to_alter(&self) -> impl Iterator<Item = &Table> {
        let names = self.look.plan.groups.iter().flat_map(|group| &group.alter);
        names.map(|alter| self.look.table(&alter.name))
    }

    fn engine(&self) -> &'static str {
        self.look.direction.engine()
    }

    /// How much there is to do.
    pub fn head(&self) -> String {
        let bytes: u64 = self.to_alter().map(Table::bytes).sum();
        let mut text = format!("{}\n", self.kind);
        let tables = counted(self.to_alter().count(), "table");
        let _ = match bytes {
            0 => writeln!(text, "{tables} to convert to {}", self.engine()),
            _ => writeln!(
                text,
                "{tables} to convert to {}: {}, about {} (an estimate until some are done)",
                self.engine(),
                human(bytes),
                duration(self.seconds)
            ),
        };
        let constraints: usize =
            { self.look.plan.groups.iter().map(|group| group.all_added().count()).sum() };
        if constraints > 0 {
            let groups =
                self.look.plan.groups.iter().filter(|group| group.has_constraints()).count();
            let _ = writeln!(
                text,
                "{} dropped and added again, in {} of tables",
                counted(constraints, "foreign key"),
                counted(groups, "group")
            );
        }
        if !self.look.missing.is_empty() {
            let _ = writeln!(
                text,
                "{} missing: an earlier run has dropped them and did not come to add them",
                counted(self.look.missing.len(), "foreign key")
            );
        }
        if let Some(free) = self.free_bytes.filter(|_| self.largest_bytes > 0) {
            let _ = writeln!(
                text,
                "room on disk: {} free; the largest copy takes up to {}",
                human(free),
                human(self.largest_bytes)
            );
        }
        let mut rest = Vec::new();
        let blocked = self.look.findings.values().filter(|found| is_blocked(found)).count();
        for (count, what) in [
            (blocked, "can't be converted"),
            (self.look.done, "with the engine already"),
            (self.look.sequences, "for sequences, which stay"),
        ] {
            if count > 0 {
                rest.push(format!("{count} {what}"));
            }
        }
        for (engine, count) in &self.look.others {
            rest.push(format!("{count} of {engine} (--from {engine})"));
        }
        if !rest.is_empty() {
            let _ = writeln!(text, "other tables: {}", rest.join("; "));
        }
        printable_lines(&text)
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = self.head();
        for (weight, title) in [
            (Weight::Blocks, "Can't be converted:"),
            (Weight::Warning, "Becomes different:"),
            (Weight::Note, "Good to know:"),
        ] {
            let found = self.by_text(weight);
            if found.is_empty() {
                continue;
            }
            let _ = writeln!(text, "\n{title}");
            for (why, names) in found {
                let _ = writeln!(text, "  {}\n    {}", names_of(&names), why);
            }
        }
        if self.to_alter().next().is_some() {
            let _ = writeln!(text, "\nWriters: {}", self.writers);
            if self.look.plan.groups.iter().any(Group::has_constraints) {
                text.push_str(match self.locks_tables {
                    true => {
                        "Tables with foreign keys: other sessions wait with reads, too, until the \
                         group is done (--no-lock-tables)\n"
                    }
                    false => {
                        "Tables with foreign keys: other sessions go on while the keys are \
                         missing; the rows are checked when they are added\n"
                    }
                });
            }
            text.push_str(
                "Without downtime: convert a replica, let it catch up, and make it the primary\n",
            );
        }
        for note in &self.notes {
            let _ = writeln!(text, "Note: {note}");
        }
        if !self.look.plan.groups.is_empty() {
            text.push_str("\nSee the statements: --format=sql. Carry them out: --apply\n");
        }
        printable_lines(&text)
    }

    /// Tables by what is said of them.
    fn by_text(&self, weight: Weight) -> Vec<(&str, Vec<&TableName>)> {
        let mut found: BTreeMap<(&str, &str), Vec<&TableName>> = BTreeMap::new();
        for (name, findings) in &self.look.findings {
            // Nothing becomes different with a table that stays.
            if weight != Weight::Blocks && is_blocked(findings) {
                continue;
            }
            for finding in findings.iter().filter(|finding| finding.weight == weight) {
                found.entry((finding.rule, &finding.text)).or_default().push(name);
            }
        }
        found.into_iter().map(|((_, text), names)| (text, names)).collect()
    }

    /// After `--apply`.
    pub fn after(&self, outcome: &Outcome, missing: &[Constraint]) -> String {
        let seconds: f64 = outcome.converted.iter().map(|table| table.seconds).sum();
        let sum = |bytes: fn(&super::apply::Converted) -> u64| -> u64 {
            outcome.converted.iter().map(bytes).sum()
        };
        let mut text = format!(
            "{} converted to {} in {}",
            counted(outcome.converted.len(), "table"),
            self.engine(),
            duration(seconds)
        );
        if !outcome.converted.is_empty() {
            let (before, after) = (sum(|t| t.bytes_before), sum(|t| t.bytes_after));
            let _ = write!(text, ", {}", sizes(before, after));
        }
        if outcome.constraints > 0 {
            let _ =
                write!(text, "; {} added", counted(outcome.constraints as usize, "foreign key"));
        }
        text.push('\n');
        if outcome.is_stopped {
            text.push_str("Stopped: run the command again to go on.\n");
        }
        if !missing.is_empty() {
            let _ = writeln!(
                text,
                "{} missing{}: {}.constraints has them.",
                counted(missing.len(), "foreign key"),
                if outcome.is_stopped { " until then" } else { "" },
                super::journal::SCHEMA
            );
        }
        for (why, names) in self.by_text(Weight::Blocks) {
            let _ = writeln!(text, "Not converted: {}\n    {why}", names_of(&names));
        }
        for left in &outcome.left {
            let names: Vec<&TableName> = left.tables.iter().collect();
            let _ = writeln!(text, "Not converted: {}\n    {}", names_of(&names), left.why);
        }
        for (engine, count) in &self.look.others {
            let tables = counted(*count, "table");
            let _ = writeln!(text, "Not converted: {tables} of {engine} (--from {engine})");
        }
        printable_lines(&text)
    }

    /// For programs. `outcome` after `--apply`.
    pub fn json(&self, outcome: Option<&Outcome>) -> String {
        let tables: Vec<TableReport<'_>> = self
            .look
            .findings
            .iter()
            .map(|(name, findings)| TableReport {
                table: self.look.table(name),
                verdict: if is_blocked(findings) { "blocked" } else { "convert" },
                findings,
            })
            .collect();
        let bytes = |part: &Group| -> u64 {
            part.alter.iter().map(|alter| self.look.table(&alter.name).bytes()).sum()
        };
        let groups: Vec<Value> = self
            .look
            .plan
            .groups
            .iter()
            .map(|part| {
                json!({
                    "tables": part.alter.iter().map(|alter| &alter.name).collect::<Vec<_>>(),
                    "foreign_keys": part.all_added().collect::<Vec<_>>(),
                    "bytes": bytes(part),
                    "statements": self.statements(part),
                })
            })
            .collect();
        let report = json!({
            "server": self.kind,
            "engine": self.engine(),
            "tables": tables,
            "groups": groups,
            "missing_foreign_keys": self.look.missing,
            "already_converted": self.look.done,
            "other_engines": self.look.others,
            "sequences": self.look.sequences,
            "views": self.look.views,
            "seconds": self.seconds,
            "free_bytes": self.free_bytes,
            "largest_copy_bytes": self.largest_bytes,
            "writers": self.writers,
            "notes": self.notes,
            "outcome": outcome,
        });
        serde_json::to_string_pretty(&report).expect("plain facts can be written") + "\n"
    }

    /// The tables that a script does not convert, as its comments.
    fn left_out(&self) -> String {
        let mut text = String::new();
        for (why, names) in self.by_text(Weight::Blocks) {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let line = printable(&format!("Left out: {}: {why}", names.join(", ")));
            let _ = writeln!(text, "-- {line}");
        }
        for (engine, count) in &self.look.others {
            let tables = counted(*count, "table");
            let line = printable(&format!("Left out: {tables} of {engine} (--from {engine})"));
            let _ = writeln!(text, "-- {line}");
        }
        text
    }

    fn statements(&self, part: &Group) -> Vec<String> {
        group(part, &self.look.headless, self.look.direction, self.locks_tables)
    }

    /// The statements as a script for the `mariadb` client.
    pub fn sql(&self, settings: &[Setting], skips_log_bin: bool) -> String {
        let mut text = script_head(settings, skips_log_bin);
        text.push_str(&self.left_out());
        for part in &self.look.plan.groups {
            text.push('\n');
            for statement in self.statements(part) {
                let _ = writeln!(text, "{statement};");
            }
        }
        text
    }
}

/// What a script says before its first table.
fn script_head(settings: &[Setting], skips_log_bin: bool) -> String {
    let mut text = String::from(
        "-- This script keeps no journal of foreign keys, unlike convert --apply. Keep the script\n\
         -- until all is done. If it fails between a DROP FOREIGN KEY and the ALTER with its\n\
         -- ADD CONSTRAINT, the key is missing, and no later run of convert adds it. Correct what\n\
         -- has failed. Then run the rest of the script, from the statement that failed, behind\n\
         -- these settings and the group's LOCK TABLES. To give up instead, run the clauses\n\
         -- ADD CONSTRAINT whose child and parent have one engine. SHOW CREATE TABLE has the keys\n\
         -- that there are.\n",
    );
    for setting in settings.iter().filter(|setting| !setting.may_fail) {
        let _ = writeln!(text, "{};", setting.statement);
    }
    if skips_log_bin {
        let _ = writeln!(text, "{NO_BINARY_LOG};");
    }
    text
}

fn is_blocked(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.weight == Weight::Blocks)
}

/// What happens to writers on this version.
fn writers(kind: &Kind) -> &'static str {
    match kind.is_mariadb_since((11, 2, 0)) {
        true => {
            "other sessions read and write a table while it is copied; they wait for a moment at \
             its end, and a session that has written may be slow for that long"
        }
        false => {
            "other sessions read a table while it is copied, and their writes to it wait until its \
             end; a transaction that has used the table keeps the copy from starting"
        }
    }
}

/// What the server's settings mean for the conversion.
fn notes(look: &Look, kind: &Kind, variables: &Named, status: &Named) -> Vec<String> {
    let is = |name: &str, value: &str| {
        variables.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value))
    };
    let mut notes = Vec::new();
    let to_tidepool = look.direction == Direction::ToTidepool;
    if to_tidepool && !kind.tidepool {
        notes.push("Tidepool is not loaded: INSTALL SONAME 'ha_tidepool'".to_owned());
    } else if let Some(why) = &look.untried {
        notes.push(format!("not all could be tried with empty copies: {why}"));
    }
    for constraint in &look.without_table {
        notes.push(format!(
            "foreign key {} of {} is in {}.constraints, and this user sees no such table: delete \
             its row if you have dropped the table",
            constraint.name,
            constraint.child.name(),
            super::journal::SCHEMA
        ));
    }
    if is("wsrep_on", "ON") {
        notes.push("this is a Galera node: Galera does not replicate Tidepool's tables".to_owned());
    }
    if is("log_bin", "ON") && to_tidepool {
        if !is("binlog_format", "ROW") {
            notes.push("Tidepool replicates by rows: set binlog_format = ROW".to_owned());
        }
        let count = status.get("slaves_connected").map_or("0", String::as_str);
        if count != "0" {
            notes.push(format!(
                "{count} replicas are connected, and the ALTERs reach them through the binary log: \
                 they need the plugin first; --skip-log-bin converts this server alone"
            ));
        }
    }
    if to_tidepool && !is("default_storage_engine", "Tidepool") {
        notes.push(
            "new tables become Tidepool's only with default_storage_engine = Tidepool".to_owned(),
        );
    }
    if to_tidepool {
        notes.push(
            "mariadb-backup copies none of Tidepool's rows: SET GLOBAL tidepool_backup_to"
                .to_owned(),
        );
    }
    notes
}

fn names_of(names: &[&TableName]) -> String {
    let shown: Vec<String> = names.iter().take(NAMES_MAX).map(|name| name.to_string()).collect();
    match names.len() {
        0..=NAMES_MAX => shown.join(", "),
        more => format!("{} and {} more", shown.join(", "), more - NAMES_MAX),
    }
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// What tables took and take. A new table of Tidepool has its size once it is written out.
pub fn sizes(before: u64, after: u64) -> String {
    match after {
        0 => human(before),
        after => format!("{} -> {}", human(before), human(after)),
    }
}

/// A time for people.
pub fn duration(seconds: f64) -> String {
    match seconds {
        ..1.0 => "a second".into(),
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_names_are_cut() {
        let names: Vec<TableName> =
            (0..10).map(|at| TableName::new("s", format!("t{at}"))).collect();
        let names: Vec<&TableName> = names.iter().collect();
        assert!(names_of(&names).ends_with("`s`.`t7` and 2 more"), "{}", names_of(&names));
        assert_eq!(names_of(&names[..1]), "`s`.`t0`");
    }

    #[test]
    fn a_script_leaves_the_binary_log_out_where_it_is_asked_to_and_says_what_it_lacks() {
        let settings = super::super::statements::settings(60);
        let off = format!("\n{NO_BINARY_LOG};\n");
        let script = script_head(&settings, true);
        assert!(script.starts_with("-- ") && script.contains("no journal"), "{script}");
        assert!(script.contains(&off), "{script}");
        assert!(!script_head(&settings, false).contains(&off));
    }

    #[test]
    fn times_are_as_people_say_them() {
        let said: Vec<String> = [0.2, 59.6, 600.0, 9000.0].into_iter().map(duration).collect();
        assert_eq!(said, ["a second", "60 s", "10 min", "2.5 h"]);
    }
}
