//! Makes a failing case small: drops statements, rows, columns, indexes, while it still fails.

use std::time::{Duration, Instant};

use super::statement::{Body, Statement};

/// Tries candidates until none helps, or the time is over. `fails` runs a candidate from an empty
/// database.
pub fn shrink(
    mut statements: Vec<Statement>,
    limit: Duration,
    mut fails: impl FnMut(&[Statement]) -> bool,
) -> Vec<Statement> {
    let deadline = Instant::now() + limit;
    loop {
        let before = size(&statements);
        drop_statements(&mut statements, deadline, &mut fails);
        drop_elements(&mut statements, deadline, &mut fails);
        drop_columns(&mut statements, deadline, &mut fails);
        if size(&statements) == before || Instant::now() > deadline {
            return statements;
        }
    }
}

/// Bytes of the script: every step that helps makes it less.
fn size(statements: &[Statement]) -> usize {
    statements.iter().map(|statement| statement.script_line().len()).sum()
}

/// Drops runs of statements, long ones first. The last one is where it fails, and stays.
fn drop_statements(
    statements: &mut Vec<Statement>,
    deadline: Instant,
    fails: &mut impl FnMut(&[Statement]) -> bool,
) {
    let mut run = (statements.len() / 2).max(1);
    loop {
        let mut end = statements.len().saturating_sub(1);
        while end > 0 {
            if Instant::now() > deadline {
                return;
            }
            let start = end.saturating_sub(run);
            let mut candidate = statements.clone();
            candidate.drain(start..end);
            if fails(&candidate) {
                *statements = candidate;
            }
            end = start;
        }
        if run == 1 {
            return;
        }
        run /= 2;
    }
}

/// Drops rows of INSERTs (but the first, on which generated numbers may depend), and indexes and
/// checks of tables.
fn drop_elements(
    statements: &mut Vec<Statement>,
    deadline: Instant,
    fails: &mut impl FnMut(&[Statement]) -> bool,
) {
    for at in 0..statements.len() {
        let mut run = elements(&statements[at]).div_ceil(2).max(1);
        loop {
            let mut end = elements(&statements[at]);
            while end > 0 {
                if Instant::now() > deadline {
                    return;
                }
                let start = end.saturating_sub(run);
                let mut candidate = statements.clone();
                if remove_elements(&mut candidate[at], start, end) && fails(&candidate) {
                    *statements = candidate;
                }
                end = start;
            }
            if run == 1 {
                break;
            }
            run /= 2;
        }
    }
}

/// The number of elements that may go.
fn elements(statement: &Statement) -> usize {
    match &statement.body {
        Body::Create { items, .. } => items.len(),
        Body::Insert { rows, .. } => rows.len(),
        Body::Plain(_) | Body::Restart { .. } => 0,
    }
}

fn remove_elements(statement: &mut Statement, start: usize, end: usize) -> bool {
    match &mut statement.body {
        Body::Create { items, .. } => {
            let before = items.len();
            let mut at = 0;
            items.retain(|item| {
                at += 1;
                item.column.is_some() || !(start..end).contains(&(at - 1))
            });
            items.len() < before
        }
        Body::Insert { rows, .. } => {
            let start = start.max(1);
            if start < end {
                rows.drain(start..end);
            }
            start < end
        }
        Body::Plain(_) | Body::Restart { .. } => false,
    }
}

/// Drops columns from tables, and from the INSERTs into them.
fn drop_columns(
    statements: &mut Vec<Statement>,
    deadline: Instant,
    fails: &mut impl FnMut(&[Statement]) -> bool,
) {
    let mut columns = Vec::new();
    for statement in statements.iter() {
        if let Body::Create { table, items, .. } = &statement.body {
            let names = items.iter().filter_map(|item| item.column.clone());
            columns.extend(names.map(|name| (table.clone(), name)));
        }
    }
    for (table, column) in columns.iter().rev() {
        if Instant::now() > deadline {
            return;
        }
        let candidate: Vec<Statement> =
            statements.iter().map(|statement| without_column(statement, table, column)).collect();
        if fails(&candidate) {
            *statements = candidate;
        }
    }
}

fn without_column(statement: &Statement, of: &str, column: &str) -> Statement {
    let mut statement = statement.clone();
    match &mut statement.body {
        Body::Create { table, items, .. } if table == of => {
            items.retain(|item| item.column.as_deref() != Some(column));
        }
        Body::Insert { table, columns, rows, .. } if table == of => {
            if let Some(at) = columns.iter().position(|name| name == column) {
                columns.remove(at);
                for row in rows {
                    row.remove(at);
                }
            }
        }
        Body::Create { .. } | Body::Insert { .. } | Body::Plain(_) | Body::Restart { .. } => {}
    }
    if let Body::Plain(sql) = &mut statement.body
        && sql.starts_with("SELECT")
    {
        // Select lists name every column.
        for pattern in [format!("{column}, "), format!(", {column}")] {
            *sql = sql.replacen(&pattern, "", 1);
        }
    }
    statement
}

#[cfg(test)]
mod tests {
    use super::super::statement::Item;
    use super::*;

    fn insert(rows: usize) -> Statement {
        Statement::new(Body::Insert {
            table: "t".into(),
            head: "INSERT INTO t".into(),
            columns: vec!["a".into(), "b".into()],
            rows: (0..rows).map(|row| vec![row.to_string(), "0".into()]).collect(),
            tail: String::new(),
        })
    }

    #[test]
    fn what_does_not_matter_goes() {
        let item = |column: Option<&str>, sql: &str| Item {
            column: column.map(ToString::to_string),
            sql: sql.into(),
        };
        let create = Statement::new(Body::Create {
            table: "t".into(),
            head: "CREATE TABLE t".into(),
            items: vec![item(Some("a"), "a INT"), item(Some("b"), "b INT"), item(None, "KEY (a)")],
            tail: String::new(),
        });
        let noise = || Statement::plain("SELECT 1");
        let last = Statement::plain("SELECT a FROM t");
        let case = vec![noise(), create, noise(), insert(9), noise(), last];
        // It fails if row 5 is inserted after the table was made.
        let fails = |case: &[Statement]| {
            let all: Vec<String> = case.iter().map(Statement::sql).collect();
            let all = all.join(";");
            all.contains("CREATE TABLE t (a INT") && all.contains("(5") && all.contains("SELECT a")
        };
        let small = shrink(case, Duration::from_secs(5), fails);
        let sql: Vec<String> = small.iter().map(Statement::sql).collect();
        assert_eq!(
            sql,
            ["CREATE TABLE t (a INT)", "INSERT INTO t (a) VALUES (0), (5)", "SELECT a FROM t"]
        );
    }
}
