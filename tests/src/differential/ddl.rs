//! Statements that change tables, with what the table is afterwards.

use super::column::Column;
use super::dice::Dice;
use super::schema::{Index, Table};
use super::statement::Statement;

/// What becomes of the generator's tables when a statement succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is a table more.
    Add(Table),
    /// The table of this name is gone.
    Remove(String),
    /// The table of this name is another.
    Replace(String, Table),
}

/// A change of the definition of a table that is not temporary and has no generated columns in the
/// way.
pub fn alter(dice: &mut Dice, table: &Table) -> Option<(Statement, Change)> {
    type Alteration = fn(&mut Dice, &mut Table) -> Option<String>;
    let alteration: Alteration = dice.weighted(&[
        (4, add_column as Alteration),
        (3, drop_column),
        (5, add_index),
        (3, drop_index),
        (2, change_nullability),
        (4, change_type),
        (2, change_default),
        (1, change_engine),
        (1, drop_primary_key),
        (1, rename_column),
        (1, force),
    ]);
    let mut altered = table.clone();
    let mut clauses = vec![alteration(dice, &mut altered)?];
    for more in [add_index as Alteration, add_column, drop_index, drop_column, change_type] {
        if dice.percent(7)
            && let Some(clause) = more(dice, &mut altered)
        {
            clauses.push(clause);
        }
    }
    // Without COPY an engine may do it in place, and then counts no rows. What NULLs become in a
    // column that is now NOT NULL differs between InnoDB's own ways, in place and by copy.
    let copy = dice.percent(40) || clauses[0].starts_with("MODIFY");
    let algorithm = if copy { ", ALGORITHM=COPY" } else { "" };
    let sql = format!("ALTER TABLE {} {}{algorithm}", table.name, clauses.join(", "));
    let statement = Statement::plain(sql).lenient();
    let statement = if copy { statement } else { statement.no_count().no_warnings() };
    Some((statement, Change::Replace(table.name.clone(), altered)))
}

fn add_column(dice: &mut Dice, table: &mut Table) -> Option<String> {
    let column =
        if dice.percent(25) { table.new_generated_column(dice)? } else { table.new_column(dice) };
    let (at, place) = match dice.range(0, 2) {
        0 if column.generated.is_none() => (0, " FIRST".to_string()),
        1 if column.generated.is_none() => {
            let at = dice.range(0, table.columns.len() - 1);
            (at + 1, format!(" AFTER {}", table.columns[at].name))
        }
        _ => (table.columns.len(), String::new()),
    };
    let clause = format!("ADD COLUMN {}{place}", column.definition());
    table.columns.insert(at, column);
    Some(clause)
}

/// Whether something but a plain index depends on the column.
fn is_needed(table: &Table, name: &str) -> bool {
    let generated = table
        .columns
        .iter()
        .any(|c| c.generated.as_ref().is_some_and(|g| g.expression.contains(name)));
    generated || table.checks.iter().any(|check| check.contains(name))
}

fn drop_column(dice: &mut Dice, table: &mut Table) -> Option<String> {
    let at = dice.range(0, table.columns.len() - 1);
    let name = table.columns[at].name.clone();
    let indexed = table.indexes.iter().any(|index| index.has(&name));
    if table.columns.len() < 4 || indexed || is_needed(table, &name) {
        return None;
    }
    table.columns.remove(at);
    Some(format!("DROP COLUMN {name}"))
}

fn add_index(dice: &mut Dice, table: &mut Table) -> Option<String> {
    let index = table.new_index(dice)?;
    let clause = format!("ADD {}", index.definition());
    table.indexes.push(index);
    Some(clause)
}

fn drop_index(dice: &mut Dice, table: &mut Table) -> Option<String> {
    let secondary: Vec<String> = table
        .indexes
        .iter()
        .map(|index| index.name.clone())
        .filter(|name| name != "PRIMARY")
        .collect();
    if secondary.is_empty() {
        return None;
    }
    let name = dice.pick(&secondary).clone();
    table.indexes.retain(|index| index.name != name);
    Some(format!("DROP INDEX {name}"))
}

fn drop_primary_key(_: &mut Dice, table: &mut Table) -> Option<String> {
    if table.auto_column().is_some() || table.primary().is_none() {
        return None;
    }
    table.indexes.retain(|index: &Index| index.name != "PRIMARY");
    Some("DROP PRIMARY KEY".into())
}

fn change_nullability(dice: &mut Dice, table: &mut Table) -> Option<String> {
    let at = dice.range(0, table.columns.len() - 1);
    let name = table.columns[at].name.clone();
    let in_primary = table.primary().is_some_and(|index| index.has(&name));
    let column = &mut table.columns[at];
    if in_primary || column.generated.is_some() || column.auto_increment {
        return None;
    }
    column.nullable = !column.nullable;
    Some(format!("MODIFY COLUMN {}", column.definition()))
}

/// Another type for a column, mostly of the same family.
fn change_type(dice: &mut Dice, table: &mut Table) -> Option<String> {
    let at = dice.range(0, table.columns.len() - 1);
    let old = table.columns[at].clone();
    let indexed = table.indexes.iter().any(|index| index.has(&old.name));
    if old.generated.is_some() || old.name == "id" || is_needed(table, &old.name) {
        return None;
    }
    let any = dice.percent(15);
    for _ in 0..20 {
        let new = Column::random(dice, old.name.clone());
        let alike = std::mem::discriminant(&new.kind) == std::mem::discriminant(&old.kind);
        let fits = !indexed || new.key_bytes().is_some_and(|bytes| bytes < 300);
        if (alike || any) && fits && !new.attributes.contains("CHECK") {
            let new = Column { nullable: old.nullable, ..new };
            let clause = format!("CHANGE COLUMN {} {}", old.name, new.definition());
            table.columns[at] = new;
            return Some(clause);
        }
    }
    None
}

fn change_default(dice: &mut Dice, table: &mut Table) -> Option<String> {
    let at = dice.range(0, table.columns.len() - 1);
    let column = &mut table.columns[at];
    if column.generated.is_some() || column.auto_increment || column.attributes.contains("CHECK") {
        return None;
    }
    let name = column.name.clone();
    if !column.attributes.is_empty() && dice.percent(50) {
        column.attributes = String::new();
        return Some(format!("ALTER COLUMN {name} DROP DEFAULT"));
    }
    let value = column.constant(dice);
    column.attributes = format!(" DEFAULT ({value})");
    Some(format!("ALTER COLUMN {name} SET DEFAULT ({value})"))
}

/// From the side's engine to InnoDB, or back.
fn change_engine(_: &mut Dice, table: &mut Table) -> Option<String> {
    // From an engine whose histories are its own to one that leaves them to the server is refused.
    if table.versioned {
        return None;
    }
    table.foreign_engine = !table.foreign_engine;
    Some(format!("ENGINE={}", if table.foreign_engine { "InnoDB" } else { "{engine}" }))
}

fn rename_column(dice: &mut Dice, table: &mut Table) -> Option<String> {
    let at = dice.range(0, table.columns.len() - 1);
    let old = table.columns[at].name.clone();
    if table.partitions.as_ref().is_some_and(|it| it.column == old) || table.period.is_some() {
        return None;
    }
    let attributes = &table.columns[at].attributes;
    if old == "id" || is_needed(table, &old) || attributes.contains("CHECK") {
        return None;
    }
    let new = format!("r{}", table.names_given);
    table.names_given += 1;
    table.columns[at].name = new.clone();
    for part in table.indexes.iter_mut().flat_map(|index| &mut index.parts) {
        if part.column == old {
            part.column = new.clone();
        }
    }
    Some(format!("RENAME COLUMN {old} TO {new}"))
}

fn force(_: &mut Dice, _: &mut Table) -> Option<String> {
    Some("FORCE".into())
}

/// RENAME TABLE.
pub fn rename(table: &Table, new_name: &str) -> Option<(Statement, Change)> {
    if table.temporary {
        return None;
    }
    let renamed = Table { name: new_name.into(), ..table.clone() };
    let sql = format!("RENAME TABLE {} TO {new_name}", table.name);
    Some((Statement::plain(sql), Change::Replace(table.name.clone(), renamed)))
}

/// TRUNCATE TABLE.
pub fn truncate(table: &Table) -> (Statement, Change) {
    let empty = Table { bulky: false, ..table.clone() };
    let statement = Statement::plain(format!("TRUNCATE TABLE {}", table.name));
    (statement, Change::Replace(table.name.clone(), empty))
}

pub fn drop_table(table: &Table) -> (Statement, Change) {
    let statement = Statement::plain(format!("DROP TABLE {}", table.name));
    (statement, Change::Remove(table.name.clone()))
}

/// CREATE TABLE … LIKE.
pub fn create_like(table: &Table, new_name: &str) -> (Statement, Change) {
    let like = Table { name: new_name.into(), temporary: false, bulky: false, ..table.clone() };
    (Statement::plain(format!("CREATE TABLE {new_name} LIKE {}", table.name)), Change::Add(like))
}

/// CREATE TABLE … SELECT, a look at it, and its end.
pub fn create_select(dice: &mut Dice, table: &Table, new_name: &str) -> Vec<Statement> {
    let mut key = String::new();
    if let Some(primary) = table.primary()
        && primary.is_whole()
        && dice.percent(50)
    {
        key = format!(" ({})", primary.definition());
    }
    let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let (names, order) = (names.join(", "), table.total_order(false));
    let temporary = if dice.percent(25) { "TEMPORARY " } else { "" };
    vec![
        Statement::plain(format!(
            "CREATE {temporary}TABLE {new_name}{key} SELECT {names} FROM {} ORDER BY {order}",
            table.name
        )),
        Statement::plain(format!("SHOW CREATE TABLE {new_name}")),
        Statement::query(format!("SELECT {} FROM {new_name}", table.select_list())),
        Statement::plain(format!("CHECK TABLE {new_name} EXTENDED")),
        Statement::plain(format!("DROP TABLE IF EXISTS {new_name}")),
    ]
}
