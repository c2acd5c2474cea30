//! A statement of a case: its text, in parts that shrinking can take away, and how its outcomes are
//! compared.
//!
//! A case is written as a script that this tester and the `mariadb` client both read: one statement
//! a line, in front of it a comment with the [`Strictness`] and the session.

use std::fmt::{self, Write as _};

/// What of the two outcomes must agree, beside success or failure.
///
/// The defaults are the strict ones; a generator loosens what SQL leaves open for a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strictness {
    /// Rows may come in any order.
    pub any_order: bool,
    /// The rows are visited in an order that is open: which error comes first, and the texts of
    /// warnings, are too.
    pub lenient: bool,
    /// Warnings depend on the plan (comparisons with constants of another type, say).
    pub no_warnings: bool,
    /// The affected-row count is the engine's own affair (in-place ALTER TABLE).
    pub no_count: bool,
}

/// An element of a CREATE TABLE: a column's definition, or an index or constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The column's name, if it is one.
    pub column: Option<String>,
    /// The definition.
    pub sql: String,
}

/// The text, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Text that can only be kept or dropped as a whole.
    Plain(String),
    /// `head (items) tail`.
    Create {
        /// The table's name.
        table: String,
        /// `CREATE TABLE t`.
        head: String,
        /// Columns, indexes, constraints.
        items: Vec<Item>,
        /// Table options.
        tail: String,
    },
    /// `head (columns) VALUES (row), (row) tail`.
    Insert {
        /// The table's name.
        table: String,
        /// `INSERT IGNORE INTO t`.
        head: String,
        /// The column list.
        columns: Vec<String>,
        /// The rows, a literal each column.
        rows: Vec<Vec<String>>,
        /// ON DUPLICATE KEY UPDATE and the like.
        tail: String,
    },
    /// The server is stopped in order, or killed, and started again.
    Restart {
        /// With SIGKILL.
        kill: bool,
    },
}

/// One step of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The connection: 0, or 1 for the second session.
    pub session: usize,
    /// How outcomes are compared.
    pub strictness: Strictness,
    /// The server is killed while it runs it. It must be done wholly or not at all, wholly if that
    /// was answered; then it is done on both sides.
    pub killed: bool,
    /// What is run.
    pub body: Body,
}

impl Statement {
    /// A statement of the first session, compared strictly.
    pub fn plain(sql: impl Into<String>) -> Statement {
        Statement::new(Body::Plain(sql.into()))
    }

    /// A body, for the first session, compared strictly.
    pub fn new(body: Body) -> Statement {
        Statement { session: 0, strictness: Strictness::default(), killed: false, body }
    }

    /// A query without a complete ORDER BY.
    pub fn query(sql: impl Into<String>) -> Statement {
        Statement::plain(sql).any_order().no_warnings()
    }

    /// A query with a complete ORDER BY.
    pub fn ordered_query(sql: impl Into<String>) -> Statement {
        Statement::plain(sql).no_warnings()
    }

    /// The same with rows in any order.
    pub fn any_order(mut self) -> Statement {
        self.strictness.any_order = true;
        self
    }

    /// The same with the order of the visited rows open.
    pub fn lenient(mut self) -> Statement {
        self.strictness.lenient = true;
        self
    }

    /// The same without a look at warnings.
    pub fn no_warnings(mut self) -> Statement {
        self.strictness.no_warnings = true;
        self
    }

    /// The same without a look at the number of rows.
    pub fn no_count(mut self) -> Statement {
        self.strictness.no_count = true;
        self
    }

    /// The same in the second session.
    pub fn in_second_session(mut self) -> Statement {
        self.session = 1;
        self
    }

    /// The same with the server killed meanwhile.
    pub fn killed(mut self) -> Statement {
        self.killed = true;
        self
    }

    /// The text for the server.
    pub fn sql(&self) -> String {
        match &self.body {
            Body::Plain(sql) => sql.clone(),
            Body::Create { head, items, tail, .. } => {
                let items: Vec<&str> = items.iter().map(|item| item.sql.as_str()).collect();
                format!("{head} ({}){tail}", items.join(", "))
            }
            Body::Insert { head, columns, rows, tail, .. } => {
                let rows: Vec<String> =
                    rows.iter().map(|row| format!("({})", row.join(", "))).collect();
                format!("{head} ({}) VALUES {}{tail}", columns.join(", "), rows.join(", "))
            }
            Body::Restart { .. } => String::new(),
        }
    }

    /// A line of a script; [`Statement::parse`] reads it.
    pub fn script_line(&self) -> String {
        let mut line = String::from("/*");
        let Strictness { any_order, lenient, no_warnings, no_count } = self.strictness;
        let words = [
            (self.session == 1, "session2"),
            (any_order, "any_order"),
            (lenient, "lenient"),
            (no_warnings, "no_warnings"),
            (no_count, "no_count"),
            (self.killed, "killed"),
            (self.body == Body::Restart { kill: false }, "restart"),
            (self.body == Body::Restart { kill: true }, "kill"),
        ];
        for (_, word) in words.iter().filter(|(is, _)| *is) {
            let _ = write!(line, "{}{word}", if line.len() > 2 { " " } else { "" });
        }
        line.push_str("*/ ");
        line.push_str(&self.sql());
        line.push(';');
        line
    }

    /// Reads a line of a script; `None` if it holds no statement.
    ///
    /// # Errors
    /// If the comment holds a word that means nothing.
    pub fn parse(line: &str) -> Result<Option<Statement>, String> {
        let line = line.trim();
        if line.is_empty() || line.starts_with("--") {
            return Ok(None);
        }
        let (words, sql) = match line.strip_prefix("/*").and_then(|rest| rest.split_once("*/")) {
            Some((words, sql)) if !words.starts_with('!') => (words, sql),
            _ => ("", line),
        };
        let mut statement = Statement::plain(sql.trim().trim_end_matches(';').trim_end());
        for word in words.split_whitespace() {
            match word {
                "session2" => statement.session = 1,
                "any_order" => statement.strictness.any_order = true,
                "lenient" => statement.strictness.lenient = true,
                "no_warnings" => statement.strictness.no_warnings = true,
                "no_count" => statement.strictness.no_count = true,
                "killed" => statement.killed = true,
                "restart" => statement.body = Body::Restart { kill: false },
                "kill" => statement.body = Body::Restart { kill: true },
                _ => return Err(format!("{word:?} in {line:?} means nothing")),
            }
        }
        Ok(Some(statement))
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.script_line())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_line_is_read_back() {
        let statements = [
            Statement::plain("SELECT 1"),
            Statement::query("SELECT /* x */ ';'").in_second_session(),
            Statement::plain("UPDATE t SET a = 1").lenient().no_count(),
            Statement::plain("DELETE FROM t").killed(),
            Statement::new(Body::Restart { kill: true }),
        ];
        for statement in statements {
            assert_eq!(Statement::parse(&statement.script_line()), Ok(Some(statement)));
        }
        assert_eq!(Statement::parse("-- a remark"), Ok(None));
        assert_eq!(Statement::parse("SELECT 1;"), Ok(Some(Statement::plain("SELECT 1"))));
        assert!(Statement::parse("/*odd*/ SELECT 1;").is_err());
    }

    #[test]
    fn parts_make_sql() {
        let insert = Statement::new(Body::Insert {
            table: "t".into(),
            head: "INSERT INTO t".into(),
            columns: vec!["a".into(), "b".into()],
            rows: vec![vec!["1".into(), "NULL".into()], vec!["2".into(), "'x'".into()]],
            tail: " ON DUPLICATE KEY UPDATE b = 3".into(),
        });
        let sql = "INSERT INTO t (a, b) VALUES (1, NULL), (2, 'x') ON DUPLICATE KEY UPDATE b = 3";
        assert_eq!(insert.sql(), sql);
        let item = |sql: &str| Item { column: None, sql: sql.into() };
        let create = Statement::new(Body::Create {
            table: "t".into(),
            head: "CREATE TABLE t".into(),
            items: vec![item("a INT"), item("KEY (a)")],
            tail: " COMMENT 'x'".into(),
        });
        assert_eq!(create.sql(), "CREATE TABLE t (a INT, KEY (a)) COMMENT 'x'");
    }
}
