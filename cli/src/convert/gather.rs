//! Asks the server for its tables and foreign keys.
//!
//! `information_schema` lists what the user has a privilege on. A foreign key of a table that the
//! user can't see stays unseen; the server then refuses the ALTER of its parent, and nothing is
//! lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::exit::{Error, Result};
use crate::server::{Refusal, Server, text};
use crate::sql_text::literal;

use super::names::{Chosen, TableName};
use super::schema::{ChildOrParent, Constraint, Kind, Table, Versioning};

/// The condition that leaves out schemas that the server and this command have for themselves. By
/// bytes: `information_schema` compares names without their case and accents, and `Sys` is a
/// user's.
const USERS_OWN: &str = "BINARY TABLE_SCHEMA NOT IN ('mysql','sys','information_schema',\
                         'performance_schema','tidepool_convert') AND BINARY TABLE_SCHEMA NOT \
                         REGEXP '^tidepool_convert_trial(_[0-9]+)?$'";

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
    found.constraints = constraints(server, None)?;
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
    constraints(server, Some(child))
}

/// Foreign keys, of one table or of all.
fn constraints(server: &mut Server, child: Option<&TableName>) -> Result<Vec<Constraint>> {
    // With constants the server opens the table of exactly this name.
    let of_child = |schema: &str| {
        child.map_or(String::new(), |child| {
            let (of, table) = (literal(&child.schema), literal(&child.table));
            format!(" AND {schema} = {of} AND TABLE_NAME = {table}")
        })
    };
    let what = "listing the foreign keys";
    let query = format!(
        "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM \
         information_schema.REFERENTIAL_CONSTRAINTS WHERE TRUE{}",
        of_child("CONSTRAINT_SCHEMA")
    );
    let rules: Vec<mysql::Row> = server.rows(what, "", &query)?;
    let query = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_TABLE_SCHEMA, \
         REFERENCED_TABLE_NAME, REFERENCED_COLUMN_NAME, ORDINAL_POSITION FROM \
         information_schema.KEY_COLUMN_USAGE WHERE REFERENCED_TABLE_NAME IS NOT NULL{}",
        of_child("TABLE_SCHEMA")
    );
    let columns: Vec<mysql::Row> = server.rows(what, "", &query)?;
    let columns = columns.iter().map(|row| KeyColumn {
        constraint: (TableName::new(word(row, 0), word(row, 1)), word(row, 2)),
        column: word(row, 3),
        parent: TableName::new(word(row, 4), word(row, 5)),
        parent_column: word(row, 6),
        position: row.get_opt(7).and_then(|value| value.ok()).unwrap_or_default(),
    });
    let rules = rules.iter().map(|row| {
        ((TableName::new(word(row, 0), word(row, 1)), word(row, 2)), (word(row, 3), word(row, 4)))
    });
    Ok(joined(columns.collect(), &rules.collect()))
}

fn word(row: &mysql::Row, at: usize) -> String {
    let bytes: Option<Vec<u8>> = row.get_opt(at).and_then(|value| value.ok()).flatten();
    text(bytes.unwrap_or_default())
}

/// The child and the constraint's name.
type ConstraintKey = (TableName, String);

/// A column of a foreign key.
#[derive(Debug, Clone)]
struct KeyColumn {
    constraint: ConstraintKey,
    position: u64,
    column: String,
    parent: TableName,
    parent_column: String,
}

/// Foreign keys with their columns in order, and what they do when a parent is deleted or updated.
/// Names are compared by their bytes: the server's own join takes `cafe` and `café` for one.
fn joined(
    mut columns: Vec<KeyColumn>,
    rules: &BTreeMap<ConstraintKey, (String, String)>,
) -> Vec<Constraint> {
    columns.sort_by(|a, b| (&a.constraint, a.position).cmp(&(&b.constraint, b.position)));
    let mut found = Vec::new();
    for columns in columns.chunk_by(|a, b| a.constraint == b.constraint) {
        let (child, name) = &columns[0].constraint;
        let parent = &columns[0].parent;
        // One whose rules can't be seen went between the two questions.
        let Some((on_delete, on_update)) = rules.get(&columns[0].constraint).cloned() else {
            continue;
        };
        let side = |of: &TableName, column: fn(&KeyColumn) -> &String| ChildOrParent {
            schema: of.schema.clone(),
            table: of.table.clone(),
            columns: columns.iter().map(column).cloned().collect(),
        };
        found.push(Constraint {
            name: name.clone(),
            child: side(child, |column| &column.column),
            parent: side(parent, |column| &column.parent_column),
            on_delete,
            on_update,
        });
    }
    found
}

/// Reads what only `SHOW CREATE TABLE` says: the options behind the columns. The server refuses it
/// where the table has been dropped since it was listed, or this user may not see its definition.
///
/// # Errors
/// As [`Server::attempt`].
pub fn options(server: &mut Server, table: &mut Table) -> Result<std::result::Result<(), Refusal>> {
    if table.kind != Kind::Table {
        return Ok(Ok(()));
    }
    let what = format!("SHOW CREATE TABLE {}", table.name);
    let row: Option<mysql::Row> = match server.attempt_first(&what, &what)? {
        Ok(row) => row,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let bytes: Option<Vec<u8>> = row.and_then(|row| row.get_opt(1)?.ok());
    table.options = behind_columns(&text(bytes.unwrap_or_default())).to_owned();
    Ok(Ok(()))
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
    fn foreign_keys_differ_where_the_bytes_of_their_names_do() {
        let mut columns = Vec::new();
        let mut rules = BTreeMap::new();
        let schemas = ["cafe", "café", "Cafe"];
        // In the order that a comparison without case and accents gives.
        for position in [2, 1] {
            for schema in schemas {
                let constraint = (TableName::new(schema, "t"), "fk".to_owned());
                rules.insert(constraint.clone(), ("CASCADE".into(), format!("of {schema}")));
                columns.push(KeyColumn {
                    constraint,
                    position,
                    column: format!("c{position}"),
                    parent: TableName::new(schema, "p"),
                    parent_column: format!("p{position}"),
                });
            }
        }
        let found = joined(columns, &rules);
        assert_eq!(found.len(), 3);
        for constraint in found {
            let schema = &constraint.child.schema;
            assert!(schemas.contains(&schema.as_str()) && constraint.parent.schema == *schema);
            assert_eq!(constraint.child.columns, ["c1", "c2"]);
            assert_eq!(constraint.parent.columns, ["p1", "p2"]);
            assert_eq!(constraint.on_update, format!("of {schema}"));
        }
    }

    #[test]
    fn options_begin_behind_the_columns() {
        let create = "CREATE TABLE `a` (\n  `b` int COMMENT ')'\n) ENGINE=InnoDB\n PARTITION BY x";
        assert_eq!(behind_columns(create), " ENGINE=InnoDB\n PARTITION BY x");
    }
}
