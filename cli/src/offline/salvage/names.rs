//! The engine's names of tables, as the server's, and as files.
//!
//! The plugin names a table `db/table`, both parts as the server writes them in file names:
//! letters, digits and `_` as they
//! are, others as `@` and four hexadecimal digits, or by codes that only the server knows. A
//! partition has `#P#` and its
//! name behind that.

use std::path::PathBuf;

use crate::offline::rows::description::ForeignKey;
use crate::sql_text::identifier;

/// A table's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    pub engine: String,
}

impl TableName {
    /// The engine's name of a table.
    pub fn of(engine: &str) -> Self {
        Self { engine: engine.into() }
    }

    /// Whether a user means this table, or its partitions.
    pub fn is_meant(&self, wanted: &str) -> bool {
        let (db, table) = self.parts();
        wanted == self.engine
            || wanted == format!("{}/{}", shown(db), shown(table))
            || wanted == format!("{}.{}", shown(db), shown(table))
    }

    /// Whether it is a table of one connection.
    pub fn is_temporary(&self) -> bool {
        self.engine.starts_with("#tmp/")
    }

    /// Whether other tables of the engine are the same table of the server.
    pub fn is_partition(&self) -> bool {
        self.engine.contains("#P#")
    }

    /// Database and table, as in file names.
    fn parts(&self) -> (&str, &str) {
        let (db, table) = self.engine.split_once('/').unwrap_or(("", &self.engine));
        (db, table.split_once("#P#").map_or(table, |(table, _)| table))
    }

    /// The database, as SQL names it; none of a table without.
    pub fn sql_database(&self) -> Option<String> {
        let (db, _) = self.parts();
        (!db.is_empty()).then(|| quoted(db))
    }

    /// The table, as SQL names it, with its database.
    pub fn sql(&self) -> String {
        let (_, table) = self.parts();
        match self.sql_database() {
            Some(db) => format!("{db}.{}", quoted(table)),
            None => quoted(table),
        }
    }

    /// Where its file is, below a directory; without an extension.
    pub fn file(&self) -> PathBuf {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-@#$".contains(c);
        let part = |part: &str| {
            let plain = |c: char| match is_plain(c) {
                true => c.to_string(),
                false => c.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect(),
            };
            part.chars().map(plain).collect::<String>()
        };
        self.engine.split('/').map(part).collect()
    }
}

/// A part of a name as a person writes it.
fn shown(part: &str) -> String {
    decoded(part).unwrap_or_else(|| part.into())
}

/// A part of a name as SQL has it.
fn quoted(part: &str) -> String {
    // The server takes a file's name for what it is behind this prefix.
    let name = decoded(part).unwrap_or_else(|| format!("#mysql50#{part}"));
    identifier(&name)
}

/// The statement that gives a table its foreign keys back; none if it has none.
pub fn add_foreign_keys(table: &TableName, keys: &[ForeignKey]) -> Option<String> {
    let clause = |key: &ForeignKey| {
        let list = |name: fn(&(String, String)) -> &String| {
            key.columns.iter().map(|pair| identifier(name(pair))).collect::<Vec<_>>().join(", ")
        };
        let [on_delete, on_update] = key.actions;
        format!(
            "ADD CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({}) ON DELETE {on_delete} ON UPDATE {on_update}",
            identifier(&key.name),
            list(|pair| &pair.0),
            TableName::of(&key.parent).sql(),
            list(|pair| &pair.1)
        )
    };
    let clauses: Vec<_> = keys.iter().map(clause).collect();
    (!clauses.is_empty()).then(|| format!("ALTER TABLE {} {};\n", table.sql(), clauses.join(", ")))
}

/// What a part of a file name stands for; `None`: only the server knows.
fn decoded(part: &str) -> Option<String> {
    let mut pieces = part.split('@');
    let mut name = pieces.next()?.to_string();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(4)?;
        name.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
        name.push_str(rest);
    }
    // These are the server's own, between two steps of an ALTER TABLE.
    (!name.starts_with("#sql")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_server() {
        let sql = |name: &str| TableName::of(name).sql();
        assert_eq!(sql("shop/orders"), "`shop`.`orders`");
        assert_eq!(sql("shop/a@002db#P#p0"), "`shop`.`a-b`");
        assert_eq!(sql("shop/@0n"), "`shop`.`#mysql50#@0n`");
        assert_eq!(sql("shop/#sql-alter-1"), "`shop`.`#mysql50##sql-alter-1`");
        assert_eq!(sql("fruit"), "`fruit`");
        assert!(TableName::of("shop/a@002db#P#p0").is_meant("shop.a-b"));
        assert!(!TableName::of("shop/ab").is_meant("shop.a"));
        assert_eq!(TableName::of("../a b").file(), PathBuf::from("%2e%2e/a%20b"));
    }
}
