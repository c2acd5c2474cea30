//! Queries: the same condition over every access path.

use super::column::{Column, Kind};
use super::dice::Dice;
use super::schema::{Index, Table};
use super::statement::Statement;

/// The most access paths that a condition takes.
const PATHS_MAX: usize = 4;

/// Reads in the order of rows. With indexes on virtual columns InnoDB gives rows twice then.
const MRR_ON: &str = "mrr=on,mrr_cost_based=off,mrr_sort_keys=on";
const MRR_OFF: &str = "mrr=off,mrr_cost_based=on,mrr_sort_keys=off";

/// A condition on a table's columns, mostly one that an index can be used for. Columns carry the
/// `alias`, if any.
pub fn condition(dice: &mut Dice, table: &Table, alias: &str) -> String {
    let first = simple_condition(dice, table, alias);
    match dice.range(0, 9) {
        0..=5 => first,
        6 | 7 => format!("{first} AND {}", simple_condition(dice, table, alias)),
        8 => format!("({first} OR {})", simple_condition(dice, table, alias)),
        _ => format!("NOT ({first})"),
    }
}

fn simple_condition(dice: &mut Dice, table: &Table, alias: &str) -> String {
    if !table.indexes.is_empty() && dice.percent(75) {
        let index = dice.pick(&table.indexes);
        return index_condition(dice, table, index, alias);
    }
    let columns: Vec<&Column> = table.columns.iter().filter(|c| c.is_comparable()).collect();
    match columns.is_empty() {
        true => "1 = 1".into(),
        false => {
            let column = *dice.pick(&columns);
            comparison(dice, column, alias)
        }
    }
}

/// Equality on the first parts of an index, a range on the next one.
fn index_condition(dice: &mut Dice, table: &Table, index: &Index, alias: &str) -> String {
    let equal = dice.range(0, index.parts.len().min(2)).min(index.parts.len() - 1);
    let mut conditions = Vec::new();
    for (at, part) in index.parts.iter().take(equal + 1).enumerate() {
        let column = table.column(&part.column);
        if !column.is_comparable() {
            break;
        }
        conditions.push(if at < equal {
            format!("{alias}{} = {}", column.name, column.constant(dice))
        } else {
            comparison(dice, column, alias)
        });
    }
    if conditions.is_empty() { "1 = 1".into() } else { conditions.join(" AND ") }
}

/// A condition on one column.
pub fn comparison(dice: &mut Dice, column: &Column, alias: &str) -> String {
    let name = format!("{alias}{}", column.name);
    let value = column.constant(dice);
    match dice.range(0, 15) {
        0..=3 => format!("{name} = {value}"),
        4 => format!("{name} > {value}"),
        5 => format!("{name} >= {value}"),
        6 => format!("{name} < {value}"),
        7 => format!("{name} <= {value}"),
        8 => format!("{name} BETWEEN {value} AND {}", column.constant(dice)),
        9 => format!("{name} IS NULL"),
        10 => format!("{name} IS NOT NULL"),
        11 => format!("{name} <=> {value}"),
        12 => format!("{name} <> {value}"),
        13 => {
            let values: Vec<String> =
                (0..dice.range(2, 5)).map(|_| column.constant(dice)).collect();
            let not = if dice.percent(20) { " NOT" } else { "" };
            format!("{name}{not} IN ({})", values.join(", "))
        }
        14 => format!("({name} IS NULL OR {name} > {value})"),
        _ => match column.kind {
            Kind::Text { .. } => {
                let pattern =
                    dice.pick(&["a%", "%", "A%", "_", "a_%", "ch%", "a %", "😀%", "%b", ""]);
                format!("{name} LIKE '{pattern}'")
            }
            _ => format!("({name} > {value} AND {name} < {})", column.constant(dice)),
        },
    }
}

/// `FROM table` with a hint for each access path: none, the primary key, each index, no index.
fn paths(dice: &mut Dice, table: &Table, at_most: usize) -> Vec<String> {
    let name = &table.name;
    let mut paths = vec![name.clone()];
    for index in &table.indexes {
        let kind = dice.pick(&["", "", " FOR ORDER BY", " FOR JOIN"]);
        // The hint without FOR is the one that forces most.
        let kind = if dice.percent(70) { "" } else { kind };
        paths.push(format!("{name} FORCE INDEX{kind} ({})", index.name));
    }
    if let Some(index) = table.indexes.last() {
        paths.push(format!("{name} IGNORE INDEX ({})", index.name));
    }
    dice.some(&paths, at_most)
}

fn locking(dice: &mut Dice) -> &'static str {
    dice.weighted(&[(12, ""), (1, " FOR UPDATE"), (1, " LOCK IN SHARE MODE")])
}

/// Queries on one table: one shape, one condition, several access paths.
pub fn table_queries(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    type Shape = fn(&mut Dice, &Table) -> Vec<Statement>;
    let shape: Shape = dice.weighted(&[
        (6, rows_by_path as Shape),
        (5, ordered_limit),
        (4, aggregates),
        (3, groups),
        (3, distinct),
        (4, extremes),
        (3, covering),
        (2, index_merge),
        (2, exists),
    ]);
    shape(dice, table)
}

fn rows_by_path(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    let condition = condition(dice, table, "");
    let list = table.select_list();
    let lock = locking(dice);
    paths(dice, table, PATHS_MAX)
        .iter()
        .map(|path| Statement::query(format!("SELECT {list} FROM {path} WHERE {condition}{lock}")))
        .collect()
}

fn covering(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    if table.indexes.is_empty() {
        return rows_by_path(dice, table);
    }
    let index = dice.pick(&table.indexes).clone();
    let mut columns: Vec<String> =
        index.parts.iter().map(|part| table.column(&part.column).shown()).collect();
    if dice.percent(50)
        && let Some(primary) = table.primary()
    {
        columns.extend(primary.parts.iter().map(|part| table.column(&part.column).shown()));
    }
    let list = columns.join(", ");
    let condition = index_condition(dice, table, &index, "");
    paths(dice, table, PATHS_MAX)
        .iter()
        .map(|path| Statement::query(format!("SELECT {list} FROM {path} WHERE {condition}")))
        .collect()
}

fn ordered_limit(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    let condition = if dice.percent(30) { "1".into() } else { condition(dice, table, "") };
    let backward = dice.percent(50);
    let total = table.total_order(backward);
    let mut order = total.clone();
    if let Some(index) = some_index(dice, table) {
        order = format!("{}, {total}", index.order(backward));
    }
    let limit = match dice.range(0, 3) {
        0 => String::new(),
        1 => format!(" LIMIT {}", dice.range(0, 3)),
        2 => format!(" LIMIT {} OFFSET {}", dice.range(1, 20), dice.range(0, 10)),
        _ => format!(" LIMIT {}", dice.range(1, 50)),
    };
    let list = table.select_list();
    let lock = locking(dice);
    paths(dice, table, PATHS_MAX)
        .iter()
        .map(|path| {
            let sql = format!(
                "SELECT {list} FROM {path} WHERE {condition} ORDER BY {order}{limit}{lock}"
            );
            Statement::ordered_query(sql)
        })
        .collect()
}

fn some_index(dice: &mut Dice, table: &Table) -> Option<Index> {
    (!table.indexes.is_empty()).then(|| dice.pick(&table.indexes).clone())
}

fn aggregates(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    let condition = condition(dice, table, "");
    let column = dice.pick(&table.columns);
    let mut list = format!("COUNT(*), COUNT({})", column.name);
    if column.is_comparable() {
        list.push_str(&format!(", COUNT(DISTINCT {})", column.name));
        if !column.has_faces() {
            list.push_str(&format!(", MIN({0}), MAX({0})", column.name));
        }
    }
    if dice.percent(50) {
        list.push_str(&format!(", {}", table.digest(&table.name)));
    }
    paths(dice, table, PATHS_MAX)
        .iter()
        .map(|path| Statement::query(format!("SELECT {list} FROM {path} WHERE {condition}")))
        .collect()
}

/// Ranks of the first columns of an index, or of any column, and the columns themselves.
fn grouping(dice: &mut Dice, table: &Table) -> Option<(String, String)> {
    let columns: Vec<&Column> = match some_index(dice, table) {
        Some(index) if dice.percent(80) => {
            let parts = dice.range(1, index.parts.len());
            index.parts[..parts].iter().map(|part| table.column(&part.column)).collect()
        }
        _ => vec![dice.pick(&table.columns)],
    };
    if !columns.iter().all(|column| column.is_comparable()) {
        return None;
    }
    let ranks: Vec<String> = columns.iter().map(|column| column.rank()).collect();
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    Some((ranks.join(", "), names.join(", ")))
}

fn groups(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    let Some((ranks, names)) = grouping(dice, table) else { return rows_by_path(dice, table) };
    let condition = if dice.percent(50) { "1".into() } else { condition(dice, table, "") };
    let having = if dice.percent(20) { " HAVING COUNT(*) > 1" } else { "" };
    let order = if dice.percent(30) { format!(" ORDER BY {names}") } else { String::new() };
    let more = match dice.pick(&table.columns) {
        column if column.is_comparable() && !column.has_faces() => {
            format!(", MIN({0}), MAX({0})", column.name)
        }
        _ => String::new(),
    };
    paths(dice, table, PATHS_MAX)
        .iter()
        .map(|path| {
            let sql = format!(
                "SELECT {ranks}, COUNT(*){more} FROM {path} WHERE {condition} GROUP BY {names}{having}{order}"
            );
            Statement::query(sql)
        })
        .collect()
}

fn distinct(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    let Some((ranks, _)) = grouping(dice, table) else { return rows_by_path(dice, table) };
    let condition = if dice.percent(60) { "1".into() } else { condition(dice, table, "") };
    paths(dice, table, PATHS_MAX)
        .iter()
        .map(|path| {
            Statement::query(format!("SELECT DISTINCT {ranks} FROM {path} WHERE {condition}"))
        })
        .collect()
}

fn extremes(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    let Some(index) = some_index(dice, table) else { return aggregates(dice, table) };
    let at = dice.range(0, index.parts.len() - 1);
    let column = table.column(&index.parts[at].column);
    if !column.is_comparable() {
        return aggregates(dice, table);
    }
    let fixed: Vec<String> = index.parts[..at]
        .iter()
        .map(|part| table.column(&part.column))
        .filter(|column| column.is_comparable())
        .map(|column| format!("{} = {}", column.name, column.constant(dice)))
        .collect();
    let mut condition = if fixed.is_empty() { "1".into() } else { fixed.join(" AND ") };
    if dice.percent(40) {
        let operator = dice.pick(&["<", "<=", ">", ">="]);
        condition = format!("{condition} AND {} {operator} {}", column.name, column.constant(dice));
    }
    let function = dice.pick(&["MIN", "MAX"]);
    let name = &column.name;
    paths(dice, table, PATHS_MAX)
        .iter()
        .map(|path| {
            let extreme = format!("SELECT {function}({name}) FROM {path} WHERE {condition}");
            // Equal values that look different: which of them comes out is open.
            Statement::query(if column.has_faces() {
                let from = &table.name;
                format!(
                    "SELECT COUNT(*), {} FROM {from} WHERE {name} = ({extreme})",
                    table.digest(from)
                )
            } else {
                extreme
            })
        })
        .collect()
}

fn index_merge(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    if table.indexes.len() < 2 {
        return rows_by_path(dice, table);
    }
    let joint = if dice.percent(60) { " OR " } else { " AND " };
    let mut indexes = dice.some(&table.indexes, 3);
    indexes.truncate(3);
    let conditions: Vec<String> = indexes
        .iter()
        .map(|index| format!("({})", index_condition(dice, table, index, "")))
        .collect();
    let condition = conditions.join(joint);
    let list = table.select_list();
    paths(dice, table, 3)
        .iter()
        .map(|path| Statement::query(format!("SELECT {list} FROM {path} WHERE {condition}")))
        .collect()
}

fn exists(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    let condition = condition(dice, table, "");
    paths(dice, table, PATHS_MAX)
        .iter()
        .map(|path| {
            Statement::query(format!("SELECT EXISTS (SELECT 1 FROM {path} WHERE {condition})"))
        })
        .collect()
}

/// Pairs of columns whose values compare without conversion.
pub fn joinable(left: &Table, right: &Table) -> Vec<(String, String)> {
    let alike = |a: &Kind, b: &Kind| match (a, b) {
        (Kind::Text { collation: x, .. }, Kind::Text { collation: y, .. }) => x == y,
        (Kind::Geometry, _) | (Kind::Enum { .. }, _) | (Kind::Set, _) | (Kind::Json, _) => false,
        (Kind::Decimal { .. }, Kind::Decimal { .. }) => true,
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    };
    let mut pairs = Vec::new();
    for a in &left.columns {
        for b in &right.columns {
            if alike(&a.kind, &b.kind) {
                pairs.push((a.name.clone(), b.name.clone()));
            }
        }
    }
    pairs
}

/// Joins of two tables (or of one with itself), each in several shapes of plan.
pub fn join_queries(dice: &mut Dice, left: &Table, right: &Table) -> Vec<Statement> {
    let mut pairs = joinable(left, right);
    if pairs.is_empty() || left.bulky || right.bulky {
        return table_queries(dice, left);
    }
    dice.shuffle(&mut pairs);
    let equal = if dice.percent(10) { "<=>" } else { "=" };
    let on: Vec<String> = pairs[..dice.range(1, pairs.len().min(2))]
        .iter()
        .map(|(a, b)| format!("a.{a} {equal} b.{b}"))
        .collect();
    let on = on.join(" AND ");
    let condition = if dice.percent(60) { condition(dice, left, "a.") } else { "1".into() };
    let hint = |dice: &mut Dice, table: &Table| match some_index(dice, table) {
        Some(index) if dice.percent(50) => format!(" FORCE INDEX ({})", index.name),
        _ => String::new(),
    };
    let shape = dice.range(0, 5);
    let mut statements = Vec::new();
    let is_virtual = |column: &Column| column.generated.as_ref().is_some_and(|g| !g.stored);
    let with_virtual = left.columns.iter().chain(&right.columns).any(is_virtual);
    // Hashed and batched join caches lose the rows with NULL of `<=>` (the server's fault, whatever
    // the engine).
    let levels: &[u32] = if equal == "=" { &[0, 2, 3, 4, 6, 8] } else { &[0, 2] };
    for level in dice.some(levels, 2) {
        let mrr = if with_virtual { &MRR_OFF } else { dice.pick(&[MRR_ON, MRR_OFF]) };
        statements.push(Statement::plain(format!(
            "SET join_cache_level = {level}, optimizer_switch = '{mrr}'"
        )));
        let a = format!("{} a{}", left.name, hint(dice, left));
        let b = format!("{} b{}", right.name, hint(dice, right));
        let (da, db) = (left.digest("a"), right.digest("b"));
        let sql = match shape {
            0 => format!("SELECT COUNT(*), {da}, {db} FROM {a} JOIN {b} ON {on} WHERE {condition}"),
            1 => format!(
                "SELECT COUNT(*), {da}, {db} FROM {a} STRAIGHT_JOIN {b} ON {on} WHERE {condition}"
            ),
            2 => {
                format!(
                    "SELECT COUNT(*), {da}, {db} FROM {a} LEFT JOIN {b} ON {on} WHERE {condition}"
                )
            }
            3 => format!(
                "SELECT COUNT(*), {da} FROM {a} WHERE {condition} AND NOT EXISTS (SELECT 1 FROM {b} WHERE {on})"
            ),
            4 => format!(
                "SELECT COUNT(*), {da} FROM {a} WHERE {condition} AND EXISTS (SELECT 1 FROM {b} WHERE {on})"
            ),
            _ => {
                let (x, y) = &pairs[0];
                format!(
                    "SELECT COUNT(*), {da} FROM {a} WHERE {condition} AND a.{x} IN (SELECT b.{y} FROM {b})"
                )
            }
        };
        statements.push(Statement::query(sql));
    }
    statements.push(Statement::plain(format!("SET optimizer_switch = '{MRR_OFF}'")));
    statements
}

/// HANDLER reads: every way to move in an index. The table has a primary key, so that ties have an
/// order.
pub fn handler_reads(dice: &mut Dice, table: &Table) -> Vec<Statement> {
    let name = &table.name;
    let mut statements = vec![Statement::plain(format!("HANDLER {name} OPEN AS h"))];
    for _ in 0..dice.range(1, 3) {
        let index = dice.pick(&table.indexes).clone();
        let key = match index.name.as_str() {
            "PRIMARY" => "`PRIMARY`",
            other => other,
        };
        for _ in 0..dice.range(2, 6) {
            let limit = dice.range(1, 4);
            let how = match dice.range(0, 5) {
                0 => "FIRST".to_string(),
                1 => "LAST".to_string(),
                2 | 3 => dice.pick(&["NEXT", "PREV"]).to_string(),
                _ => {
                    let parts = dice.range(1, index.parts.len());
                    let values: Vec<String> = index.parts[..parts]
                        .iter()
                        .map(|part| table.column(&part.column).constant(dice))
                        .collect();
                    let operator = dice.pick(&["=", ">=", "<=", ">", "<"]);
                    format!("{operator} ({})", values.join(", "))
                }
            };
            let sql = format!("HANDLER h READ {key} {how} LIMIT {limit}");
            statements.push(Statement::ordered_query(sql));
        }
    }
    if dice.percent(50) {
        statements.push(Statement::ordered_query("HANDLER h READ FIRST LIMIT 3"));
        statements.push(Statement::ordered_query("HANDLER h READ NEXT LIMIT 5"));
    }
    statements.push(Statement::plain("HANDLER h CLOSE"));
    statements
}
