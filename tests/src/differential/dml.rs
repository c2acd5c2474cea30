//! Statements that change rows.

use super::column::{Column, Kind};
use super::dice::Dice;
use super::query::{condition, joinable};
use super::schema::Table;
use super::statement::{Body, Statement};

/// Generated numbers start this far from the last one, so that gaps that only one engine leaves
/// don't matter.
const AUTO_INCREMENT_STEP: u64 = 1000;

/// The columns of an INSERT: mostly all, sometimes without some that then get their defaults.
fn insert_columns<'a>(dice: &mut Dice, table: &'a Table) -> Vec<&'a Column> {
    let mut columns = table.base_columns();
    if dice.percent(15) && columns.len() > 2 {
        let primary = table.primary();
        columns.retain(|column| {
            // A geometry that is left out is empty: InnoDB refuses that where REPLACE finds a row
            // to update.
            primary.is_some_and(|index| index.has(&column.name))
                || column.kind == Kind::Geometry
                || dice.percent(70)
        });
    }
    if dice.percent(10) {
        dice.shuffle(&mut columns);
    }
    columns
}

/// A literal for a column of a new row.
fn new_value(dice: &mut Dice, table: &mut Table, column: &Column) -> String {
    if column.name != "id" {
        return column.value(dice);
    }
    if table.next_id > 1 && dice.percent(12) {
        return dice.range(1, table.next_id as usize - 1).to_string();
    }
    table.next_id += 1;
    (table.next_id - 1).to_string()
}

fn rows(dice: &mut Dice, table: &mut Table, columns: &[Column], count: usize) -> Vec<Vec<String>> {
    (0..count)
        .map(|_| columns.iter().map(|column| new_value(dice, table, column)).collect())
        .collect()
}

/// INSERT … VALUES in one of its forms, or REPLACE.
pub fn insert(dice: &mut Dice, table: &mut Table, count: usize) -> Statement {
    let columns: Vec<Column> = insert_columns(dice, table).into_iter().cloned().collect();
    let mut rows = rows(dice, table, &columns, count);
    let verb = dice.weighted(&[
        (35, "INSERT INTO"),
        (25, "INSERT IGNORE INTO"),
        (18, "REPLACE INTO"),
        (22, "ON DUPLICATE"),
    ]);
    // A first row that is ignored, or updates another, need not set the counter.
    let first_row_stands = matches!(verb, "INSERT INTO" | "REPLACE INTO");
    if let Some(at) = columns.iter().position(|column| column.auto_increment)
        && first_row_stands
        && dice.percent(45)
    {
        // The first row sets the counter; the numbers of some of the others come from it.
        table.next_id += AUTO_INCREMENT_STEP;
        rows[0][at] = table.next_id.to_string();
        for row in &mut rows[1..] {
            if dice.percent(80) {
                row[at] = dice.pick(&["NULL", "DEFAULT"]).to_string();
            }
        }
        table.next_id += AUTO_INCREMENT_STEP;
    }
    for row in &mut rows {
        for (value, column) in row.iter_mut().zip(&columns) {
            if !column.attributes.is_empty() && dice.percent(5) && !column.auto_increment {
                *value = "DEFAULT".into();
            }
        }
    }
    let (verb, tail) = match verb {
        "ON DUPLICATE" => {
            let may_ignore = dice.percent(20) && !table.has_unique_hash();
            let ignore = if may_ignore { "INSERT IGNORE INTO" } else { "INSERT INTO" };
            (ignore, on_duplicate_key(dice, table, &columns))
        }
        verb => (verb, String::new()),
    };
    let returning = if dice.percent(8) { returning(table) } else { String::new() };
    let tail = format!("{tail}{returning}");
    Statement::new(Body::Insert {
        table: table.name.clone(),
        head: format!("{verb} {}", table.name),
        columns: columns.into_iter().map(|column| column.name).collect(),
        rows,
        tail,
    })
}

/// RETURNING of all columns.
fn returning(table: &Table) -> String {
    format!(" RETURNING {}", table.select_list())
}

/// INSERT IGNORE of `count` rows.
pub fn fill(dice: &mut Dice, table: &mut Table, count: usize) -> Statement {
    let columns: Vec<Column> = table.base_columns().into_iter().cloned().collect();
    let rows = rows(dice, table, &columns, count);
    Statement::new(Body::Insert {
        table: table.name.clone(),
        head: format!("INSERT IGNORE INTO {}", table.name),
        columns: columns.into_iter().map(|column| column.name).collect(),
        rows,
        tail: String::new(),
    })
}

fn on_duplicate_key(dice: &mut Dice, table: &Table, columns: &[Column]) -> String {
    let mut assignments = Vec::new();
    // An insert may name no column at all.
    let columns = if columns.is_empty() { table.base_columns() } else { columns.iter().collect() };
    for _ in 0..dice.range(1, 2) {
        let column = dice.pick(&columns);
        let name = &column.name;
        if name == "id" && dice.percent(80) {
            continue;
        }
        assignments.push(match dice.range(0, 2) {
            0 => format!("{name} = VALUES({name})"),
            1 => format!("{name} = {}", column.value(dice)),
            _ => format!("{name} = {}", changed(dice, column)),
        });
    }
    if assignments.is_empty() {
        let name = &table.base_columns()[0].name;
        assignments.push(format!("{name} = {name}"));
    }
    format!(" ON DUPLICATE KEY UPDATE {}", assignments.join(", "))
}

/// An expression with the column's old value.
fn changed(dice: &mut Dice, column: &Column) -> String {
    let name = &column.name;
    match column.kind {
        Kind::Integer { .. } => {
            format!("{name} {} {}", dice.pick(&["+", "-", "*"]), dice.range(1, 5))
        }
        Kind::Decimal { .. } | Kind::Float { .. } => format!("{name} + 1"),
        Kind::Text { blob: false, .. } => {
            let call = dice.pick(&["CONCAT(#, 'a')", "LEFT(#, 1)", "UPPER(#)", "CONCAT(#, ' ')"]);
            call.replace('#', name)
        }
        Kind::Binary { .. } => format!("CONCAT({name}, x'00')"),
        _ => column.value(dice),
    }
}

/// INSERT … SELECT of many rows from a sequence.
pub fn bulk_insert(dice: &mut Dice, table: &mut Table, count: usize) -> Statement {
    let columns: Vec<Column> = table.base_columns().into_iter().cloned().collect();
    let first = table.next_id;
    table.next_id += count as u64;
    let values: Vec<String> = columns
        .iter()
        .map(|column| {
            let stride = dice.pick(&[1usize, 3, 7, 11]);
            // Megabytes in hundreds of rows would take minutes.
            let huge = |value: &&String| value.contains("0000)");
            let pool: Vec<String> = column.pool.iter().filter(|v| !huge(v)).cloned().collect();
            match column.kind {
                _ if column.name == "id" => format!("{first} + seq - 1"),
                Kind::Integer { bits, .. } if bits >= 32 && dice.percent(50) => {
                    format!("seq * {stride}")
                }
                Kind::Geometry => pool[0].clone(),
                Kind::Text { blob: false, length, .. } if length > 40 && dice.percent(60) => {
                    format!("CONCAT(ELT(1 + seq % {}, {}), seq)", pool.len(), pool.join(", "))
                }
                _ => {
                    let null = if column.nullable { ", NULL" } else { "" };
                    let members = pool.len() + usize::from(column.nullable);
                    format!("ELT(1 + (seq * {stride}) % {members}, {}{null})", pool.join(", "))
                }
            }
        })
        .collect();
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    Statement::plain(format!(
        "INSERT IGNORE INTO {} ({}) SELECT {} FROM seq_1_to_{count}",
        table.name,
        names.join(", "),
        values.join(", ")
    ))
}

/// The SET list of an UPDATE. `free` may set unique columns and fail midway.
fn assignments(dice: &mut Dice, table: &Table, free: bool) -> Option<String> {
    let mut list = Vec::new();
    for _ in 0..dice.range(1, 3) {
        let columns = table.base_columns();
        let column = *dice.pick(&columns);
        if list.iter().any(|(name, _)| *name == column.name) {
            continue;
        }
        if free {
            let value = match dice.percent(45) {
                true => changed(dice, column),
                false => column.value(dice),
            };
            list.push((column.name.clone(), value));
        } else if !table.is_in_unique(&column.name) {
            list.push((column.name.clone(), column.constant(dice)));
        }
    }
    let list: Vec<String> =
        list.into_iter().map(|(name, value)| format!("{name} = {value}")).collect();
    (!list.is_empty()).then(|| list.join(", "))
}

/// UPDATE of one table.
pub fn update(dice: &mut Dice, table: &Table) -> Option<Statement> {
    let name = &table.name;
    let condition = condition(dice, table, "");
    if dice.percent(35) {
        let set = assignments(dice, table, false)?;
        return Some(
            Statement::plain(format!("UPDATE {name} SET {set} WHERE {condition}")).lenient(),
        );
    }
    let set = assignments(dice, table, true)?;
    // The server can't let a row be that a hash refuses after the write, as InnoDB's in READ
    // COMMITTED.
    let ignore = if dice.percent(30) && !table.has_unique_hash() { " IGNORE" } else { "" };
    let limit =
        if dice.percent(50) { format!(" LIMIT {}", dice.range(1, 12)) } else { String::new() };
    let order = order(dice, table);
    let sql = format!("UPDATE{ignore} {name} SET {set} WHERE {condition} ORDER BY {order}{limit}");
    Some(Statement::plain(sql))
}

fn order(dice: &mut Dice, table: &Table) -> String {
    let backward = dice.percent(40);
    let total = table.total_order(backward);
    if table.indexes.is_empty() || dice.percent(50) {
        return total;
    }
    format!("{}, {total}", dice.pick(&table.indexes).order(backward))
}

/// DELETE from one table; seldom of many rows.
pub fn delete(dice: &mut Dice, table: &Table) -> Statement {
    let name = &table.name;
    let condition = condition(dice, table, "");
    if dice.percent(12) {
        return Statement::plain(format!("DELETE FROM {name} WHERE {condition}")).no_warnings();
    }
    let (order, limit) = (order(dice, table), dice.range(1, 8));
    let returning = if dice.percent(15) { returning(table) } else { String::new() };
    let sql =
        format!("DELETE FROM {name} WHERE {condition} ORDER BY {order} LIMIT {limit}{returning}");
    Statement::plain(sql).no_warnings()
}

/// UPDATE or DELETE of a join.
pub fn multi_table(dice: &mut Dice, left: &Table, right: &Table) -> Option<Statement> {
    let pairs = joinable(left, right);
    if pairs.is_empty() || left.bulky || right.bulky {
        return None;
    }
    let (x, y) = dice.pick(&pairs);
    let join = format!("{} a JOIN {} b ON a.{x} = b.{y}", left.name, right.name);
    let narrow = condition(dice, left, "a.");
    let narrower = condition(dice, right, "b.");
    let sql = if dice.percent(65) {
        let columns = left.base_columns();
        let column = *dice.pick(&columns);
        if left.is_in_unique(&column.name) {
            return None;
        }
        let value = column.constant(dice);
        format!("UPDATE {join} SET a.{} = {value} WHERE {narrow} AND {narrower}", column.name)
    } else {
        let from = if dice.percent(30) && left.name != right.name { "a, b" } else { "a" };
        format!("DELETE {from} FROM {join} WHERE {narrow} AND {narrower}")
    };
    Some(Statement::plain(sql).lenient().no_warnings())
}

/// INSERT … SELECT of a table's own rows with other keys, so that it grows.
pub fn insert_own_rows(dice: &mut Dice, table: &mut Table) -> Option<Statement> {
    if table.bulky || table.columns.iter().all(|column| column.name != "id") {
        return None;
    }
    let offset = table.next_id;
    table.next_id *= 2;
    let columns = table.base_columns();
    let values: Vec<String> = columns
        .iter()
        .map(|column| match column.name.as_str() {
            "id" => format!("id + {offset}"),
            name => name.to_string(),
        })
        .collect();
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let condition = condition(dice, table, "");
    let verb = dice.pick(&["INSERT INTO", "INSERT IGNORE INTO", "REPLACE INTO"]);
    // Read in the order of the primary key, the server loses rows with long texts, from any engine.
    Some(Statement::plain(format!(
        "{verb} {name} ({}) SELECT {} FROM {name} USE INDEX () WHERE {condition} ORDER BY {} LIMIT 60",
        names.join(", "),
        values.join(", "),
        table.total_order(false),
        name = table.name
    )))
}

/// Statements that copy a table's rows into another one with the same columns.
pub fn copy_rows(dice: &mut Dice, from: &Table, to: &Table) -> Vec<Statement> {
    let names: Vec<&str> = from.base_columns().iter().map(|column| column.name.as_str()).collect();
    let names = names.join(", ");
    let order = from.total_order(dice.percent(50));
    let (from_name, to_name) = (&from.name, &to.name);
    if dice.percent(50) {
        let verb = dice.pick(&["INSERT INTO", "INSERT IGNORE INTO", "REPLACE INTO"]);
        let sql =
            format!("{verb} {to_name} ({names}) SELECT {names} FROM {from_name} ORDER BY {order}");
        return vec![Statement::plain(sql)];
    }
    let file = format!("{{dir}}/{}-{}.txt", from.name, dice.u64());
    let options = "CHARACTER SET binary FIELDS TERMINATED BY ',' ENCLOSED BY '\"'";
    let duplicates = dice.pick(&["", " IGNORE", " REPLACE"]);
    vec![
        Statement::plain(format!(
            "SELECT {names} INTO OUTFILE '{file}' {options} FROM {from_name} ORDER BY {order}"
        )),
        Statement::plain(format!(
            "LOAD DATA INFILE '{file}'{duplicates} INTO TABLE {to_name} {options} ({names})"
        )),
    ]
}

/// A prepared statement, executed several times.
pub fn prepared(dice: &mut Dice, table: &mut Table) -> Vec<Statement> {
    let name = table.name.clone();
    if dice.percent(50) {
        let columns: Vec<Column> = insert_columns(dice, table).into_iter().cloned().collect();
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let marks = vec!["?"; columns.len()].join(", ");
        let verb = dice.pick(&["INSERT INTO", "INSERT IGNORE INTO", "REPLACE INTO"]);
        let sql = format!("PREPARE p FROM '{verb} {name} ({}) VALUES ({marks})'", names.join(", "));
        let mut statements = vec![Statement::plain(sql)];
        for row in rows(dice, table, &columns, 4) {
            statements.push(Statement::plain(format!("EXECUTE p USING {}", row.join(", "))));
        }
        return statements;
    }
    let comparable: Vec<&Column> = table.columns.iter().filter(|c| c.is_comparable()).collect();
    let Some(column) = (!comparable.is_empty()).then(|| *dice.pick(&comparable)) else {
        return Vec::new();
    };
    let operator = dice.pick(&["=", ">", "<=", "<>", "<=>"]);
    let (list, of) = (table.select_list(), &column.name);
    let sql = format!("PREPARE p FROM 'SELECT {list} FROM {name} WHERE {of} {operator} ?'");
    let mut statements = vec![Statement::plain(sql)];
    for _ in 0..3 {
        let value = column.constant(dice);
        statements.push(Statement::query(format!("EXECUTE p USING {value}")));
    }
    statements
}
