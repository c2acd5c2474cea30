//! The engine's names of tables, as the server's, and as files.
//!
//! The plugin names a table `db/table`, both parts as the server writes them in file names:
//! letters, digits and `_` as they
//! are, others as `@` and four hexadecimal digits, or by codes that only the server knows. A
//! partition has `#P#` and its
//! name behind that.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use crate::offline::rows::description::ForeignKey;
use crate::sql_text::identifier;

/// Bytes of a file's name at most, without one of the extensions, which take up to 11.
const FILE_NAME_MAX: usize = 255 - 11;
/// What is kept of a longer one.
const FILE_NAME_KEPT: usize = 200;
/// Characters of a name in SQL at most.
const SQL_NAME_MAX: usize = 64;

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
        let (db, table) = self.split();
        let table = whole_table(table);
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

    /// Why a person has to look at its rows: an ALTER TABLE was not finished when the server ended.
    /// Its steps are in the server's log of them, and the next start goes on with it or takes it
    /// back.
    pub fn unfinished(&self) -> Option<String> {
        let what = match (self.is_unfinished_partition(), self.split().1.starts_with("#sql")) {
            (true, _) => "a partition",
            (_, true) => "a table",
            (false, false) => return None,
        };
        Some(format!(
            "{what} of an ALTER TABLE that was not finished: its rows may be those of another \
             table or partition, or be here alone. They load into {}: compare them",
            self.sql()
        ))
    }

    /// Whether it is a partition that an ALTER TABLE makes, or replaces.
    fn is_unfinished_partition(&self) -> bool {
        self.is_partition() && ["#TMP#", "#REN#"].iter().any(|end| self.engine.ends_with(end))
    }

    /// Database, and table with its partition, as in file names.
    fn split(&self) -> (&str, &str) {
        self.engine.split_once('/').unwrap_or(("", &self.engine))
    }

    /// Database and table, as in file names. A partition that is not finished has rows that may be
    /// in another one too, so it is a table by itself.
    fn parts(&self) -> (&str, &str) {
        let (db, table) = self.split();
        match self.is_unfinished_partition() {
            true => (db, table),
            false => (db, whole_table(table)),
        }
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

    /// Where its file is, below a directory; without an extension. The name of a partition may be
    /// longer than a file's, for the engine has no file of that name.
    pub fn file(&self) -> PathBuf {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-@#$".contains(c);
        let part = |part: &str| {
            let plain = |c: char| match is_plain(c) {
                true => c.to_string(),
                false => c.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect(),
            };
            let name = part.chars().map(plain).collect::<String>();
            match name.len() > FILE_NAME_MAX {
                true => shortened(&name),
                false => name,
            }
        };
        self.engine.split('/').map(part).collect()
    }
}

/// A file's name in the place of one that is too long.
fn shortened(name: &str) -> String {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    format!("{}~{:016x}", &name[..FILE_NAME_KEPT], hasher.finish())
}

/// The table that a partition is of.
fn whole_table(table: &str) -> &str {
    table.split_once("#P#").map_or(table, |(table, _)| table)
}

/// A part of a name as a person writes it.
fn shown(part: &str) -> String {
    decoded(part).unwrap_or_else(|| part.into())
}

/// A part of a name as SQL has it.
fn quoted(part: &str) -> String {
    // The server takes a file's name for what it is behind this prefix.
    let name = decoded(part).unwrap_or_else(|| format!("#mysql50#{part}"));
    identifier(&name.chars().take(SQL_NAME_MAX).collect::<String>())
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

    #[test]
    fn what_an_alter_table_has_not_finished_is_a_table_by_itself() {
        let of = |name: &str| TableName::of(name);
        for name in ["shop/t#P#n0#TMP#", "shop/t#P#n0#SP#s0#TMP#", "shop/t#P#p0#REN#"] {
            assert_ne!(of(name).sql(), of("shop/t#P#p0").sql(), "{name}");
            assert!(of(name).unfinished().is_some_and(|why| why.contains("a partition of")));
            assert!(of(name).is_meant("shop.t") && of(name).is_meant(name));
        }
        assert_eq!(of("shop/a@002db#P#n0#TMP#").sql(), "`shop`.`a-b#P#n0#TMP#`");
        let long = format!("shop/{}#P#{}#TMP#", "t".repeat(50), "p".repeat(50));
        assert_eq!(of(&long).sql().len(), "`shop`.``".len() + SQL_NAME_MAX);
        assert!(of("shop/#sql-alter-1").unfinished().is_some_and(|why| why.contains("a table of")));
        for name in ["shop/t#P#TMP", "shop/t", "shop/t@0023TMP@0023", "fruit"] {
            assert_eq!(of(name).unfinished(), None, "{name}");
        }
    }

    #[test]
    fn the_name_of_a_file_is_no_longer_than_a_directory_takes() {
        let dir = tempfile::tempdir().unwrap();
        let of = |partition: &str| {
            let letters = "@0436".repeat(49);
            TableName::of(&format!("shop/{letters}{partition}")).file()
        };
        let names = ["", "#P#p0", "#P#p1", "#P#p0#SP#s0"].map(of);
        std::fs::create_dir(dir.path().join("shop")).unwrap();
        for name in &names {
            let mut path = dir.path().join(name).into_os_string();
            path.push(".create.sql");
            std::fs::File::create_new(path).unwrap();
        }
        assert_eq!(of("#P#p1"), names[2]);
    }
}
