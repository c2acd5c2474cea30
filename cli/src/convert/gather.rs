//! Asks the server for its tables and foreign keys.
//!
//! `information_schema` lists what the user has a privilege on. A foreign key of a table that the
//! user can't see stays unseen; the server then refuses the ALTER of its parent, and nothing is
//! lost.

use std::collections::BTreeSet;

use crate::exit::{Error, Result};
use crate::server::{Server, text};
use crate::sql_text::literal;

use super::names::{Chosen, TableName};
use super::schema::{ChildOrParent, Constraint, Kind, Table, Versioning};

/// The condition that leaves out schemas that the server and this command have for themselves.
const USERS_OWN: &str = "TABLE_SCHEMA NOT IN ('mysql','sys','information_schema',\
                         'performance_schema','tidepool_convert') AND TABLE_SCHEMA NOT REGEXP \
                         '^tidepool_convert_trial(_[0-9]+)?$'";

/// Everything that was found.
#[derive(Debug, Default)]
pub struct Found {
    pub tables: Vec<Table>,
    pub views: u64,
    pub constraints: Vec<Constraint>,
}

/// All user schemas.
///
/// # Errors
/// As [`Server::rows`].
pub fn gather(server: &mut Server) -> Result<Found> {
    let mut found = Found::default();
    tables(server, &mut found)?;
    found.constraints = constraints(server, "")?;
    Ok(found)
}

/// The user schemas' tables, and the number of views by schema.
fn tables(server: &mut Server, found: &mut Found) -> Result<()> {
    let query = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_ROWS, DATA_LENGTH, \
         INDEX_LENGTH, ROW_FORMAT, CREATE_OPTIONS FROM information_schema.TABLES WHERE {USERS_OWN} \
         ORDER BY 1, 2"
    );
    let rows: Vec<mysql::Row> = server.rows("listing the tables", "", &query)?;
    let primary = names(server, "INDEX_NAME = 'PRIMARY'")?;
    let fulltext = names(server, "INDEX_TYPE = 'FULLTEXT'")?;
    let by_id = columns(server, "GENERATION_EXPRESSION = 'ROW START' AND DATA_TYPE = 'bigint'")?;
    let virtual_columns = columns(server, "EXTRA LIKE '%VIRTUAL GENERATED%'")?;
    for row in rows {
        let word = |at: usize| {
            let bytes: Option<Vec<u8>> = row.get_opt(at).and_then(|value| value.ok()).flatten();
            bytes.map(text)
        };
        let number = |at: usize| row.get_opt::<Option<u64>, _>(at).and_then(|v| v.ok()).flatten();
        let name = TableName::new(word(0).unwrap_or_default(), word(1).unwrap_or_default());
        let kind = match word(2).as_deref() {
            Some("BASE TABLE" | "SYSTEM VERSIONED") => Kind::Table,
            Some("SEQUENCE") => Kind::Sequence,
            _ => {
                found.views += 1;
                continue;
            }
        };
        let versioning = match word(2).as_deref() {
            Some("SYSTEM VERSIONED") if by_id.contains(&name) => Versioning::TransactionId,
            Some("SYSTEM VERSIONED") => Versioning::Time,
            _ => Versioning::None,
        };
        let create_options = word(8).unwrap_or_default();
        found.tables.push(Table {
            kind,
            engine: word(3).unwrap_or_default(),
            rows: number(4).unwrap_or_default(),
            data_bytes: number(5).unwrap_or_default(),
            index_bytes: number(6).unwrap_or_default(),
            row_format: word(7).unwrap_or_default(),
            has_primary_key: primary.contains(&name),
            has_fulltext: fulltext.contains(&name),
            versioning,
            has_virtual_columns: virtual_columns.contains(&name),
            is_partitioned: create_options.contains("partitioned"),
            options: String::new(),
            name,
        });
    }
    Ok(())
}

/// The tables that have an index of this kind.
fn names(server: &mut Server, condition: &str) -> Result<BTreeSet<TableName>> {
    let query = format!(
        "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.STATISTICS WHERE \
         {condition} AND {USERS_OWN}"
    );
    pairs(server, &query)
}

/// The tables that have a column of this kind.
fn columns(server: &mut Server, condition: &str) -> Result<BTreeSet<TableName>> {
    let query = format!(
        "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.COLUMNS WHERE \
         {condition} AND {USERS_OWN}"
    );
    pairs(server, &query)
}

/// The columns that a table stores, in their order.
///
/// # Errors
/// As [`Server::rows`].
pub fn stored_columns(server: &mut Server, table: &TableName) -> Result<Vec<String>> {
    let query = format!(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {} AND TABLE_NAME \
         = {} AND EXTRA NOT LIKE '%VIRTUAL GENERATED%' ORDER BY ORDINAL_POSITION",
        literal(&table.schema),
        literal(&table.table)
    );
    let rows: Vec<Vec<u8>> = server.rows("listing the columns", "", &query)?;
    Ok(rows.into_iter().map(text).collect())
}

fn pairs(server: &mut Server, query: &str) -> Result<BTreeSet<TableName>> {
    let rows: Vec<(Vec<u8>, Vec<u8>)> = server.rows("listing the tables", "", query)?;
    Ok(rows.into_iter().map(|(schema, table)| TableName::new(text(schema), text(table))).collect())
}

/// The foreign keys that one table has now.
///
/// # Errors
/// As [`Server::rows`].
pub fn constraints_of(server: &mut Server, child: &TableName) -> Result<Vec<Constraint>> {
    let (schema, table) = (literal(&child.schema), literal(&child.table));
    let condition = format!(
        "AND k.TABLE_SCHEMA = {schema} AND k.TABLE_NAME = {table} AND r.CONSTRAINT_SCHEMA = \
         {schema} AND r.TABLE_NAME = {table}"
    );
    constraints(server, &condition)
}

/// Foreign keys, with their columns in order.
fn constraints(server: &mut Server, condition: &str) -> Result<Vec<Constraint>> {
    let query = format!(
        "SELECT k.CONSTRAINT_NAME, k.TABLE_SCHEMA, k.TABLE_NAME, k.COLUMN_NAME, \
                 k.REFERENCED_TABLE_SCHEMA, k.REFERENCED_TABLE_NAME, k.REFERENCED_COLUMN_NAME, \
                 r.DELETE_RULE, r.UPDATE_RULE FROM information_schema.KEY_COLUMN_USAGE k JOIN \
                 information_schema.REFERENTIAL_CONSTRAINTS r ON r.CONSTRAINT_SCHEMA = \
                 k.CONSTRAINT_SCHEMA AND r.TABLE_NAME = k.TABLE_NAME AND r.CONSTRAINT_NAME = \
                 k.CONSTRAINT_NAME WHERE k.REFERENCED_TABLE_NAME IS NOT NULL {condition} ORDER BY \
                 k.TABLE_SCHEMA, k.TABLE_NAME, k.CONSTRAINT_NAME, k.ORDINAL_POSITION"
    );
    let rows: Vec<mysql::Row> = server.rows("listing the foreign keys", "", &query)?;
    let mut found: Vec<Constraint> = Vec::new();
    for row in rows {
        let word = |at: usize| {
            let bytes: Option<Vec<u8>> = row.get_opt(at).and_then(|value| value.ok()).flatten();
            text(bytes.unwrap_or_default())
        };
        let side = |schema, table| ChildOrParent { schema, table, columns: Vec::new() };
        let (child, parent) = (side(word(1), word(2)), side(word(4), word(5)));
        let is_next = found
            .last()
            .is_some_and(|last| last.name == word(0) && last.child.name() == child.name());
        if !is_next {
            let (on_delete, on_update) = (word(7), word(8));
            found.push(Constraint { name: word(0), child, parent, on_delete, on_update });
        }
        let last = found.last_mut().expect("one was pushed");
        last.child.columns.push(word(3));
        last.parent.columns.push(word(6));
    }
    Ok(found)
}

/// Reads what only `SHOW CREATE TABLE` says: the options behind the columns.
///
/// # Errors
/// As [`Server::rows`].
pub fn options(server: &mut Server, table: &mut Table) -> Result<()> {
    if table.kind != Kind::Table {
        return Ok(());
    }
    let what = format!("SHOW CREATE TABLE {}", table.name);
    let row: Option<mysql::Row> = server.first(&what, "", &what)?;
    let bytes: Option<Vec<u8>> = row.and_then(|row| row.get_opt(1)?.ok());
    table.options = behind_columns(&text(bytes.unwrap_or_default())).to_owned();
    Ok(())
}

/// The lines of columns and keys begin with two spaces; `)` alone ends them.
fn behind_columns(create: &str) -> &str {
    create.find("\n)").map_or("", |at| &create[at + 2..])
}

/// Refuses choices that name nothing.
///
/// # Errors
/// [`Error::Usage`] with their names.
pub fn check_known(found: &Found, chosen: &[Chosen]) -> Result<()> {
    let is_known = |chosen: &Chosen| found.tables.iter().any(|table| chosen.covers(&table.name));
    let unknown: Vec<String> =
        chosen.iter().filter(|chosen| !is_known(chosen)).map(ToString::to_string).collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "{}: no such schema or table that this user can see, or only views",
            unknown.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_that_names_nothing_is_refused() {
        let tables = vec![super::super::schema::tests::plain("shop", "orders")];
        let found = Found { tables, ..Found::default() };
        let check = |text: &str| check_known(&found, &[text.parse().unwrap()]);
        check("shop").unwrap();
        check("shop.orders").unwrap();
        for text in ["shop.order", "shops"] {
            assert_eq!(check(text).unwrap_err().code(), 2, "{text}");
        }
    }

    #[test]
    fn options_begin_behind_the_columns() {
        let create = "CREATE TABLE `a` (\n  `b` int COMMENT ')'\n) ENGINE=InnoDB\n PARTITION BY x";
        assert_eq!(behind_columns(create), " ENGINE=InnoDB\n PARTITION BY x");
    }
}
