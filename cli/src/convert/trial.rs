//! Asks the server, with empty copies, which tables and foreign keys the new engine takes.
//!
//! What an engine supports changes with its version, so it is not written down here. In the schema
//! `tidepool_convert_trial_<connection>`, which the command drops at the end of the trial, it makes
//! an empty copy of each table (`CREATE TABLE … LIKE`), runs the same ALTER on it, and adds the
//! foreign keys between the copies. Nothing of it goes into the binary log: where the user may not
//! leave it out (`sql_log_bin`), there is no trial.
//!
//! Each trial has a schema, and a lock of the server (`GET_LOCK`) with the schema's name for as
//! long as its connection lives. A schema whose lock is free was left by a trial that has ended:
//! the next one drops it. (The list of processes would take a privilege.)

use std::collections::{BTreeMap, BTreeSet};

use crate::exit::Result;
use crate::server::Server;
use crate::sql_text::{identifier, literal};

use super::names::TableName;
use super::schema::{Constraint, Kind, Table};
use super::statements::{Direction, add_clause, alter};

/// What the name of a trial's schema begins with; the connection's number follows.
const PREFIX: &str = "tidepool_convert_trial_";
/// The longest name that the server takes.
const NAME_CHARS_MAX: usize = 64;
const WHAT: &str = "trying empty copies in the schema tidepool_convert_trial_<connection>";

/// What the server refused.
#[derive(Debug, Default)]
pub struct Refused {
    pub tables: BTreeMap<TableName, String>,
    /// By the child.
    pub constraints: BTreeMap<TableName, String>,
    /// Why nothing could be tried, or not all.
    pub untried: Option<String>,
}

/// Tries all of these tables, on a session with the settings of a conversion. `on_way` hears which
/// table is next.
///
/// # Errors
/// As [`Server::rows`], where the server goes away. Any other refusal is an answer.
pub fn try_all(
    server: &mut Server,
    tables: &[&Table],
    constraints: &[Constraint],
    direction: Direction,
    mut on_way: impl FnMut(&TableName),
) -> Result<Refused> {
    let mut refused = Refused::default();
    if tables.is_empty() {
        return Ok(refused);
    }
    let schema = format!("{PREFIX}{}", server.connection_id());
    if let Err(why) = begin(server, &schema)? {
        refused.untried = Some(why);
        return Ok(refused);
    }
    let copies: BTreeMap<TableName, TableName> = tables
        .iter()
        .enumerate()
        .map(|(at, table)| (table.name.clone(), TableName::new(&schema, format!("t{at}"))))
        .collect();
    let is_referenced =
        |table: &Table| constraints.iter().any(|constraint| constraint.touches(&table.name));
    for table in tables.iter().filter(|table| table.kind == Kind::Table) {
        on_way(&table.name);
        let copy = &copies[&table.name];
        let like = format!("CREATE TABLE {copy} LIKE {}", table.name);
        if let Err(refusal) = server.attempt(WHAT, &like)? {
            refused.untried = Some(format!("{}: {refusal}", table.name));
            continue;
        }
        if let Err(refusal) = server.attempt(WHAT, &alter(copy, direction, &[]))? {
            let why = format!("{} refuses an empty copy: {refusal}", direction.engine());
            refused.tables.insert(table.name.clone(), why);
        }
        if !is_referenced(table) {
            let _ = server.attempt(WHAT, &format!("DROP TABLE {copy}"))?;
        }
    }
    let schemas: BTreeSet<&String> = tables.iter().map(|table| &table.name.schema).collect();
    let mut number = 0;
    for table in tables {
        let child = &table.name;
        let of_child: Vec<&Constraint> = constraints
            .iter()
            .filter(|constraint| constraint.child.name() == *child)
            .filter(|constraint| copies.contains_key(&constraint.parent.name()))
            .collect();
        let is_refused = |name: &TableName| refused.tables.contains_key(name);
        let has_copies =
            !is_refused(child) && !of_child.iter().any(|of| is_refused(&of.parent.name()));
        if of_child.is_empty() || !has_copies {
            continue;
        }
        let clauses: Vec<String> = of_child
            .iter()
            .map(|constraint| {
                number += 1;
                let schema = schemas.iter().position(|schema| **schema == child.schema);
                let name = trial_name(schema.unwrap_or_default(), number, &constraint.name);
                add_clause(constraint, &name, &copies[&constraint.parent.name()])
            })
            .collect();
        let statement = format!("ALTER TABLE {} {}", copies[child], clauses.join(", "));
        if let Err(refusal) = server.attempt(WHAT, &statement)? {
            let why = format!(
                "{} refuses its foreign keys between empty copies: {refusal}",
                direction.engine()
            );
            refused.constraints.insert(child.clone(), why);
        }
        on_way(child);
    }
    drop_schema(server, &schema)?;
    Ok(refused)
}

/// The name of a foreign key between copies. The copies of all schemas are in one schema, in which
/// each name can be there once; names of one schema stay as different as they are. One that has no
/// room for that gets the number, which no other has.
fn trial_name(schema: usize, number: usize, name: &str) -> String {
    let within = format!("{schema}_{name}");
    match within.chars().count() {
        ..=NAME_CHARS_MAX => within,
        _ => format!("{schema}:{number}"),
    }
}

fn begin(server: &mut Server, schema: &str) -> Result<std::result::Result<(), String>> {
    let logs = server.named("SHOW GLOBAL VARIABLES LIKE 'log_bin'")?;
    let logs = logs.get("log_bin").is_some_and(|value| value == "ON");
    if let Err(refusal) = server.attempt(WHAT, "SET SESSION sql_log_bin = 0")?
        && logs
    {
        return Ok(Err(format!("sql_log_bin can't be set: {refusal}")));
    }
    // Before the schema exists, so that no other trial finds it without its lock.
    let lock = format!("DO GET_LOCK({}, 0)", literal(schema));
    if server.attempt(WHAT, &lock)?.is_ok() {
        drop_left_over(server)?;
    }
    // Since the server's last start its numbers begin anew.
    drop_schema(server, schema)?;
    let made = server.attempt(WHAT, &format!("CREATE SCHEMA {}", identifier(schema)))?;
    Ok(made.map(|_| ()).map_err(|refusal| refusal.to_string()))
}

/// Drops what trials have left whose connections are gone.
fn drop_left_over(server: &mut Server) -> Result<()> {
    let query = format!(
        "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE BINARY SCHEMA_NAME REGEXP \
         '^{PREFIX}[0-9]+$'"
    );
    let schemas: Vec<String> = server.rows(WHAT, "", &query)?;
    for schema in schemas {
        let query = format!("SELECT IS_FREE_LOCK({})", literal(&schema));
        if server.first::<Option<u8>>(WHAT, "", &query)? == Some(Some(1)) {
            drop_schema(server, &schema)?;
        }
    }
    Ok(())
}

fn drop_schema(server: &mut Server, schema: &str) -> Result<()> {
    // Foreign keys between the copies don't order the drops.
    let _ = server.attempt(WHAT, "SET SESSION foreign_key_checks = 0")?;
    let _ = server.attempt(WHAT, &format!("DROP SCHEMA IF EXISTS {}", identifier(schema)))?;
    let _ = server.attempt(WHAT, "SET SESSION foreign_key_checks = 1")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_of_two_schemas_are_two_in_the_trial() {
        let long = "x".repeat(NAME_CHARS_MAX);
        let names = [
            trial_name(0, 1, "fk"),
            trial_name(1, 2, "fk"),
            trial_name(0, 3, &long),
            trial_name(1, 4, &long),
        ];
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| name.chars().count() <= NAME_CHARS_MAX), "{names:?}");
        // What one schema would refuse, the trial refuses.
        assert_eq!(trial_name(2, 5, "FK").to_lowercase(), trial_name(2, 6, "fk"));
    }
}
