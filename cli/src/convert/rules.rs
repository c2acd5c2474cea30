//! What stands in the way of a table, and what becomes different: pure rules from facts.
//!
//! Whether Tidepool takes a table's columns, indexes and options is not written down here: the
//! command asks the server with an empty copy ([`super::trial`]). These rules have what an empty
//! copy does not show.

use serde::Serialize;

use super::schema::{Kind, Table, Versioning};
use super::statements::Direction;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// The table can't be converted as it is.
    Blocks,
    /// Something becomes different.
    Warning,
    /// Good to know.
    Note,
}

/// One thing about one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub weight: Weight,
    /// A name for programs.
    pub rule: &'static str,
    pub text: String,
}

impl Finding {
    pub fn new(weight: Weight, rule: &'static str, text: impl Into<String>) -> Finding {
        Finding { weight, rule, text: text.into() }
    }
}

/// What can be seen of a table without trying.
pub fn findings(table: &Table, direction: Direction) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |weight, rule, text: &str| found.push(Finding::new(weight, rule, text));
    if table.kind == Kind::Sequence {
        add(
            Weight::Blocks,
            "sequence",
            "a sequence stays in its engine; tables may use it as before",
        );
        return found;
    }
    if table.versioning == Versioning::TransactionId && direction == Direction::ToTidepool {
        let text = "its rows are versioned by transaction ids, which InnoDB alone has: it stays";
        add(Weight::Blocks, "transaction_precise", text);
    }
    if table.versioning == Versioning::Time {
        let text = "system-versioned: the server changes the engine of no such table that is, or \
                    becomes, InnoDB's (error 4120). The guide has the statements that copy it with \
                    its history";
        add(Weight::Blocks, "versioned", text);
    }
    if table.has_option("DATA DIRECTORY") || table.has_option("INDEX DIRECTORY") {
        let text = "DATA DIRECTORY: the files of the new table lie in the data directory, so the \
                    room must be there. The option is lost";
        add(Weight::Warning, "data_directory", text);
    }
    if direction == Direction::ToTidepool {
        to_tidepool(table, &mut add);
    }
    if direction == Direction::ToInnodb && table.has_option("COMPRESSION") {
        let text = "COMPRESSION is an option of Tidepool; InnoDB ignores it";
        add(Weight::Warning, "compression", text);
    }
    if table.is_partitioned {
        add(Weight::Note, "partitions", "all partitions are converted by one statement");
    }
    found.sort_by_key(|finding| finding.weight);
    found
}

fn to_tidepool(table: &Table, add: &mut impl FnMut(Weight, &'static str, &str)) {
    if table.has_option("PAGE_COMPRESSED") {
        let text = "PAGE_COMPRESSED has no effect in Tidepool, which compresses all pages; it \
                    stays with the table, as a comment, until a conversion back";
        add(Weight::Warning, "page_compressed", text);
    }
    let is_compressed = table.row_format.eq_ignore_ascii_case("compressed");
    if is_compressed || table.has_option("KEY_BLOCK_SIZE") {
        let text = "ROW_FORMAT=COMPRESSED and KEY_BLOCK_SIZE have no effect in Tidepool, which \
                    compresses all pages; the options stay with the table";
        add(Weight::Warning, "row_format", text);
    }
    if table.has_option("ENCRYPTED") || table.has_option("ENCRYPTION_KEY_ID") {
        let text = "ENCRYPTED and ENCRYPTION_KEY_ID mean the same; tables without them follow \
                    tidepool_encrypt_tables instead of innodb_encrypt_tables";
        add(Weight::Note, "encrypted", text);
    }
    if table.has_fulltext {
        let text = "FULLTEXT: a search sees its transaction's own rows, and some queries find \
                    other rows than InnoDB's (see the reference on compatibility)";
        add(Weight::Warning, "fulltext", text);
    }
    match table.engine.to_ascii_lowercase().as_str() {
        "innodb" => {}
        "memory" => add(Weight::Warning, "memory", "its rows will survive a restart of the server"),
        _ => {
            add(Weight::Note, "other_engine", "gets transactions, and locks rows instead of tables")
        }
    }
    if !table.has_primary_key {
        let text = "no PRIMARY KEY: it is converted all the same; row-based replication finds its \
                    rows faster with one";
        add(Weight::Note, "no_primary_key", text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::schema::tests::plain;
    use super::*;

    fn rules(table: &Table, direction: Direction) -> Vec<(&'static str, Weight)> {
        findings(table, direction).iter().map(|found| (found.rule, found.weight)).collect()
    }

    #[test]
    fn a_plain_table_has_nothing_in_its_way() {
        for direction in [Direction::ToTidepool, Direction::ToInnodb] {
            assert_eq!(rules(&plain("a", "b"), direction), []);
        }
    }

    #[test]
    fn what_an_empty_copy_does_not_show_is_known_from_the_facts() {
        let to = |table: Table| rules(&table, Direction::ToTidepool);
        let sequence = Table { kind: Kind::Sequence, ..plain("a", "b") };
        assert_eq!(to(sequence), [("sequence", Weight::Blocks)]);
        let by_id = Table { versioning: Versioning::TransactionId, ..plain("a", "b") };
        assert_eq!(to(by_id), [("transaction_precise", Weight::Blocks)]);
        let versioned = Table { versioning: Versioning::Time, ..plain("a", "b") };
        assert_eq!(to(versioned.clone()), [("versioned", Weight::Blocks)]);
        assert_eq!(rules(&versioned, Direction::ToInnodb), [("versioned", Weight::Blocks)]);
        let options = " ENGINE=InnoDB DATA DIRECTORY='/x' `PAGE_COMPRESSED`=1 `ENCRYPTED`=YES";
        let table = Table { options: options.into(), has_primary_key: false, ..plain("a", "b") };
        let expected = [
            ("data_directory", Weight::Warning),
            ("page_compressed", Weight::Warning),
            ("encrypted", Weight::Note),
            ("no_primary_key", Weight::Note),
        ];
        assert_eq!(to(table), expected);
        let compressed = Table { row_format: "Compressed".into(), ..plain("a", "b") };
        assert_eq!(to(compressed), [("row_format", Weight::Warning)]);
        let memory = Table { engine: "MEMORY".into(), has_fulltext: true, ..plain("a", "b") };
        assert_eq!(to(memory), [("fulltext", Weight::Warning), ("memory", Weight::Warning)]);
    }
}
