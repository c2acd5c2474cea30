//! What the command knows of tables and foreign keys: plain facts, without a server.

use serde::Serialize;

use super::names::TableName;

/// What kind of thing `information_schema.TABLES` lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Table,
    Sequence,
}

/// Who gives the rows of a system-versioned table their times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Versioning {
    None,
    Time,
    /// The server asks the engine for ids of transactions, which InnoDB alone has.
    TransactionId,
}

/// One table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    #[serde(flatten)]
    pub name: TableName,
    pub kind: Kind,
    pub engine: String,
    /// An estimate of the engine.
    pub rows: u64,
    pub data_bytes: u64,
    pub index_bytes: u64,
    pub row_format: String,
    /// Options behind the columns in `SHOW CREATE TABLE`; with the partitions.
    #[serde(skip)]
    pub options: String,
    pub has_primary_key: bool,
    pub has_fulltext: bool,
    pub has_virtual_columns: bool,
    pub versioning: Versioning,
    pub is_partitioned: bool,
}

impl Table {
    /// What it takes on disk.
    pub fn bytes(&self) -> u64 {
        self.data_bytes + self.index_bytes
    }

    /// Whether the options behind the columns have this one.
    pub fn has_option(&self, option: &str) -> bool {
        let options = outside_strings(&self.options).to_ascii_uppercase();
        [format!(" {option}="), format!(" {option} ="), format!(" `{option}`=")]
            .iter()
            .any(|written| options.contains(written.as_str()))
    }
}

/// The same without what stands in quotes: a comment may say anything.
fn outside_strings(text: &str) -> String {
    let mut quote = None;
    let is_outside = |c: &char| match (quote, *c) {
        (None, '\'' | '"') => {
            quote = Some(*c);
            false
        }
        (None, _) => true,
        (Some(end), c) => {
            // A quote that is doubled ends one string and begins the next.
            if c == end {
                quote = None;
            }
            false
        }
    };
    text.chars().filter(is_outside).collect()
}

/// A foreign key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize)]
pub struct Constraint {
    pub name: String,
    pub child: ChildOrParent,
    pub parent: ChildOrParent,
    pub on_delete: String,
    pub on_update: String,
}

/// One side of a foreign key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize)]
pub struct ChildOrParent {
    pub schema: String,
    pub table: String,
    pub columns: Vec<String>,
}

impl ChildOrParent {
    pub fn name(&self) -> TableName {
        TableName::new(&self.schema, &self.table)
    }
}

impl Constraint {
    /// What no other constraint has.
    pub fn key(&self) -> (TableName, &str) {
        (self.child.name(), &self.name)
    }

    /// The same, for a set that outlives it.
    pub fn owned_key(&self) -> (TableName, String) {
        (self.child.name(), self.name.clone())
    }

    pub fn touches(&self, table: &TableName) -> bool {
        self.child.name() == *table || self.parent.name() == *table
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A table without anything that matters.
    pub fn plain(schema: &str, table: &str) -> Table {
        Table {
            name: TableName::new(schema, table),
            kind: Kind::Table,
            engine: "InnoDB".into(),
            rows: 0,
            data_bytes: 16 << 10,
            index_bytes: 0,
            row_format: "Dynamic".into(),
            options: " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4".into(),
            has_primary_key: true,
            has_fulltext: false,
            has_virtual_columns: false,
            versioning: Versioning::None,
            is_partitioned: false,
        }
    }

    #[test]
    fn options_are_found_however_they_are_written_and_not_in_comments() {
        let table = |options: &str| Table { options: options.into(), ..plain("a", "b") };
        for text in [" ENGINE=InnoDB `PAGE_COMPRESSED`=1", " ENGINE=x page_compressed=on"] {
            assert!(table(text).has_option("PAGE_COMPRESSED"), "{text}");
        }
        assert!(table(" PARTITION p DATA DIRECTORY = '/x'").has_option("DATA DIRECTORY"));
        for text in [" ENGINE=InnoDB COMMENT='it''s PAGE_COMPRESSED=1'", " PAGE_COMPRESSED_X=1"] {
            assert!(!table(text).has_option("PAGE_COMPRESSED"), "{text}");
        }
    }
}
