//! What a server has: databases, tables, definitions and rows in one canonical text, and files that
//! belong to none of them.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::{Duration, Instant};

use mysql::prelude::Queryable;
use mysql::{Conn, Row};

use crate::sql::{self, CheckAnswer, check_answers};

/// Databases of the server that no case touches.
const SYSTEM: [&str; 4] = ["information_schema", "performance_schema", "mysql", "sys"];
/// How long the engine may take to remove the files of dropped tables after a start.
const PATIENCE: Duration = Duration::from_secs(3);

const TABLESPACE_DISCARDED: u16 = 1814;

/// All of a server's user databases. A key is a database, a table or a trigger; a value is the
/// definition, and a summary of the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State(BTreeMap<String, String>);

impl State {
    /// Reads all. An error is a table that can't be read, with what the server says.
    ///
    /// # Errors
    /// See above.
    pub fn read(conn: &mut Conn) -> Result<State, String> {
        let mut state = State::default();
        for database in databases(conn) {
            let created: Option<(String, String)> =
                conn.query_first(format!("SHOW CREATE DATABASE `{database}`")).expect("databases");
            state.0.insert(database.clone(), created.expect("one row").1);
            for (trigger, table, definition) in triggers(conn, &database) {
                let name = format!("trigger {trigger} of `{database}`.`{table}`");
                state.0.insert(name, definition);
            }
            for (table, kind) in tables(conn, &database) {
                let name = format!("`{database}`.`{table}`");
                state.0.insert(name.clone(), table_text(conn, &name, &kind)?);
            }
        }
        // Transactions that wait for their verdict.
        for xid in sql::sorted_rows(conn, "XA RECOVER") {
            state.0.insert(format!("prepared {xid}"), String::new());
        }
        Ok(state)
    }

    /// Where two states differ, in a few lines.
    pub fn difference(&self, other: &State) -> String {
        let mut lines = Vec::new();
        for (name, text) in &self.0 {
            match other.0.get(name) {
                None => lines.push(format!("{name} is here only")),
                Some(found) if found != text => {
                    lines.push(format!("{name} is\n{text}\ninstead of\n{found}"));
                }
                Some(_) => {}
            }
        }
        let absent = other.0.keys().filter(|name| !self.0.contains_key(*name));
        lines.extend(absent.map(|name| format!("{name} is absent")));
        lines.join("\n")
    }
}

fn databases(conn: &mut Conn) -> Vec<String> {
    let all: Vec<String> = conn.query("SHOW DATABASES").expect("databases can be listed");
    all.into_iter().filter(|name| !SYSTEM.contains(&name.as_str())).collect()
}

fn tables(conn: &mut Conn, database: &str) -> Vec<(String, String)> {
    conn.query(format!("SHOW FULL TABLES FROM `{database}`")).expect("tables can be listed")
}

/// Name, table and definition. What can't be read has no definition.
fn triggers(conn: &mut Conn, database: &str) -> Vec<(String, String, String)> {
    const TRIGGERS: &str = "SELECT TRIGGER_NAME, EVENT_OBJECT_TABLE, \
         CONCAT_WS(' ', ACTION_TIMING, EVENT_MANIPULATION, ACTION_STATEMENT) \
         FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = ?";
    conn.exec(TRIGGERS, (database,)).expect("triggers can be listed")
}

fn table_text(conn: &mut Conn, name: &str, kind: &str) -> Result<String, String> {
    let failed = |error: mysql::Error| format!("{name}: {error}");
    let created: Option<(String, String)> =
        conn.query_first(format!("SHOW CREATE TABLE {name}")).map_err(failed)?;
    let definition = without_counter(&created.expect("one row").1);
    let read = conn.query::<Row, _>(format!("SELECT * FROM {name}"));
    if let Err(mysql::Error::MySqlError(error)) = &read
        && error.code == TABLESPACE_DISCARDED
    {
        return Ok(format!("{kind} {definition}\ndiscarded"));
    }
    let rows = read.map_err(failed)?;
    let mut rows: Vec<String> = rows.into_iter().map(sql::row_text).collect();
    rows.sort();
    let mut hasher = DefaultHasher::new();
    rows.hash(&mut hasher);
    let first = rows.first().map_or("", String::as_str);
    Ok(format!("{kind} {definition}\n{} rows, hash {:016x}, {first}", rows.len(), hasher.finish()))
}

/// The definition without `AUTO_INCREMENT=n`: a crash may leave a later number, for numbers are
/// taken in batches.
fn without_counter(definition: &str) -> String {
    const COUNTER: &str = " AUTO_INCREMENT=";
    let Some(at) = definition.find(COUNTER) else { return definition.into() };
    let rest = definition[at + COUNTER.len()..].trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{}{rest}", &definition[..at])
}

/// The answers of `CHECK TABLE … EXTENDED` that are not "OK".
pub fn check_all(conn: &mut Conn) -> Vec<String> {
    let mut faults = Vec::new();
    for database in databases(conn) {
        for (table, kind) in tables(conn, &database) {
            // The server checks no sequence.
            if kind == "SEQUENCE" {
                continue;
            }
            match check_answers(conn, &format!("`{database}`.`{table}`")) {
                // It waits for an import.
                Ok(all) if all.iter().any(|answer| answer.text.contains("has been discarded")) => {}
                Ok(all) => {
                    let bad =
                        all.iter().filter(|answer| answer.kind != "status" || !answer.is_ok());
                    faults.extend(bad.map(CheckAnswer::to_string));
                }
                Err(error) => faults.push(format!("CHECK TABLE {database}.{table}: {error}")),
            }
        }
    }
    faults
}

/// Files that no table explains, and tables of the engine that no definition explains.
pub fn stray_files(conn: &mut Conn, data_dir: &Path) -> Vec<String> {
    let mut stray = Vec::new();
    let databases = databases(conn);
    for name in entries(data_dir) {
        if data_dir.join(&name).is_dir() {
            let known =
                databases.contains(&name) || SYSTEM.contains(&name.as_str()) || name == "tidepool";
            if !known && !name.starts_with('#') {
                stray.push(format!("{name}/"));
            }
        } else if name.contains("#sql") {
            stray.push(name);
        }
    }
    for database in &databases {
        let tables: Vec<String> = tables(conn, database)
            .into_iter()
            .map(|(table, _)| table.to_ascii_lowercase())
            .collect();
        let triggers = triggers(conn, database);
        for file in entries(&data_dir.join(database)) {
            match file.rsplit_once('.') {
                Some((table, "TRG")) if triggers.iter().any(|(_, of, _)| of == table) => continue,
                Some((name, "TRN")) if triggers.iter().any(|(has, _, _)| has == name) => continue,
                Some((_, "TRG" | "TRN")) => {
                    stray.push(format!("{database}/{file}"));
                    continue;
                }
                _ => {}
            }
            let lower = file.to_ascii_lowercase();
            let stem = lower.split_once('.').map_or(lower.as_str(), |(stem, _)| stem);
            let table = stem.split_once("#p#").map_or(stem, |(table, _)| table);
            // The engine puts the files of a table that it does not have aside, as documented.
            let is_aside = [".frm.bak", ".par.bak", ".trg.bak", ".trn.bak"]
                .iter()
                .any(|end| lower.ends_with(end));
            if file != "db.opt" && !is_aside && !tables.iter().any(|known| known == table) {
                stray.push(format!("{database}/{file}"));
            }
        }
    }
    stray.extend(stray_spaces(conn, &data_dir.join("tidepool/tables")));
    stray
}

/// The engine has a file for each table and each partition, once those of dropped tables are
/// removed.
fn stray_spaces(conn: &mut Conn, dir: &Path) -> Option<String> {
    if !dir.exists() {
        return None;
    }
    let orphans = entries(&dir.join("orphans"));
    if !orphans.is_empty() {
        return Some(format!("tidepool/tables/orphans: {}", orphans.join(", ")));
    }
    const EXPECTED: &str = "SELECT COUNT(*) \
         FROM information_schema.PARTITIONS p JOIN information_schema.TABLES t \
         USING (TABLE_SCHEMA, TABLE_NAME) WHERE t.ENGINE = 'Tidepool'";
    let since = Instant::now();
    loop {
        let files = entries(dir).into_iter().filter(|name| name.ends_with(".tpd")).count();
        let expected = sql::number(conn, EXPECTED);
        if files as i64 == expected {
            return None;
        }
        if since.elapsed() > PATIENCE {
            return Some(format!(
                "tidepool/tables has {files} files for {expected} tables and partitions"
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_no_part_of_a_definition() {
        let with = "CREATE TABLE `t` (\n) ENGINE=Tidepool AUTO_INCREMENT=17 DEFAULT CHARSET=latin1";
        assert_eq!(
            without_counter(with),
            "CREATE TABLE `t` (\n) ENGINE=Tidepool DEFAULT CHARSET=latin1"
        );
    }

    #[test]
    fn a_difference_names_the_tables() {
        let state = |tables: &[(&str, &str)]| {
            State(tables.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect())
        };
        let before = state(&[("a", "1 row"), ("b", "")]);
        let after = state(&[("a", "2 rows"), ("c", "")]);
        assert_eq!(
            before.difference(&after),
            "a is\n1 row\ninstead of\n2 rows\nb is here only\nc is absent"
        );
        assert_eq!(before.difference(&before), "");
    }
}
