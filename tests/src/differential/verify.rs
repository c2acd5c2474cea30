//! The full comparison of a table: its definition, CHECK TABLE, and its rows over every index, in
//! both directions.

use super::column::Column;
use super::schema::{Index, Table};
use super::statement::Statement;

pub fn statements(table: &Table) -> Vec<Statement> {
    let (name, list) = (&table.name, table.select_list());
    let mut statements = vec![
        // Hashed and batched join caches lose the rows with NULL of `<=>` (the server's fault,
        // whatever the engine).
        Statement::plain("SET join_cache_level = 2"),
        Statement::plain(format!("CHECK TABLE {name} EXTENDED")),
        Statement::plain(format!("SHOW CREATE TABLE {name}")),
        Statement::query(format!("SELECT {list} FROM {name} USE INDEX ()")),
        Statement::query(format!("SELECT COUNT(*), {} FROM {name}", table.digest(name))),
    ];
    if table.versioned {
        statements.extend(super::period::whole_history(table));
    }
    for index in &table.indexes {
        by_index(table, index, &mut statements);
    }
    statements
}

fn by_index(table: &Table, index: &Index, statements: &mut Vec<Statement>) {
    let (name, list, key) = (&table.name, table.select_list(), &index.name);
    let columns: Vec<&Column> = index.parts.iter().map(|part| table.column(&part.column)).collect();
    if index.is_whole() {
        let values: Vec<String> = columns.iter().map(|column| column.shown()).collect();
        let ranks: Vec<String> = columns.iter().map(|column| column.rank()).collect();
        let (values, ranks) = (values.join(", "), ranks.join(", "));
        for backward in [false, true] {
            let order = index.order(backward);
            statements.push(Statement::ordered_query(format!(
                "SELECT {ranks} FROM {name} FORCE INDEX ({key}) ORDER BY {order}"
            )));
        }
        let order = index.order(false);
        statements.push(Statement::query(format!(
            "SELECT {values} FROM {name} FORCE INDEX ({key}) ORDER BY {order}"
        )));
        statements.push(Statement::query(format!(
            "SELECT {list} FROM {name} FORCE INDEX ({key}) ORDER BY {order}"
        )));
    }
    if !table.bulky {
        // Every key is looked up.
        let on: Vec<String> =
            columns.iter().map(|column| format!("b.{0} <=> a.{0}", column.name)).collect();
        statements.push(Statement::query(format!(
            "SELECT COUNT(*), {} FROM {name} a STRAIGHT_JOIN {name} b FORCE INDEX ({key}) ON {}",
            table.digest("b"),
            on.join(" AND ")
        )));
    }
}
