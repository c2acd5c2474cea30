//! Partitioned tables.

use super::column::{Column, Kind};
use super::ddl::Change;
use super::dice::Dice;
use super::schema::{Index, Part, Table};
use super::statement::Statement;

/// The bounds of ranges: generated keys lie in all of them.
const RANGES: &str = "(PARTITION p0 VALUES LESS THAN (5), PARTITION p1 VALUES LESS THAN (30), PARTITION p2 VALUES LESS THAN MAXVALUE)";

/// How a table is partitioned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitions {
    /// The column that decides.
    pub column: String,
    /// PARTITION BY and all that follows.
    pub clause: String,
}

impl Partitions {
    /// Every unique index has the column that decides.
    pub fn complete(&self, index: &mut Index) {
        if index.unique && !index.has(&self.column) {
            let column = self.column.clone();
            index.parts.push(Part { column, prefix: None, descending: false });
        } else if index.unique {
            // Whole: a prefix does not decide.
            for part in index.parts.iter_mut().filter(|part| part.column == self.column) {
                part.prefix = None;
            }
        }
    }

    /// Whether a range decides, not a hash.
    fn is_ranges(&self) -> bool {
        self.clause.starts_with("PARTITION BY RANGE")
    }
}

fn clause(dice: &mut Dice, table: &Table, column: &str) -> String {
    let integer = matches!(table.column(column).kind, Kind::Integer { .. });
    match dice.range(0, 3) {
        0 if integer => format!("PARTITION BY HASH ({column}) PARTITIONS 3"),
        1 if integer => format!("PARTITION BY RANGE ({column}) {RANGES}"),
        2 if integer => format!(
            "PARTITION BY RANGE ({column}) SUBPARTITION BY HASH ({column}) SUBPARTITIONS 2 {RANGES}"
        ),
        _ => format!("PARTITION BY KEY ({column}) PARTITIONS 3"),
    }
}

impl Table {
    /// Partitions the table, if a column can decide: one of the primary key, or any if there is
    /// none.
    pub fn partition(&mut self, dice: &mut Dice) {
        let mut candidates: Vec<String> = match self.primary() {
            Some(primary) => primary
                .parts
                .iter()
                .filter(|part| part.prefix.is_none())
                .map(|part| part.column.clone())
                .collect(),
            None => self.base_columns().iter().map(|column| column.name.clone()).collect(),
        };
        // InnoDB gives rows of several partitions in the wrong order by a virtual column.
        let is_virtual = |column: &Column| column.generated.as_ref().is_some_and(|it| !it.stored);
        if self.columns.iter().any(is_virtual) {
            return;
        }
        candidates.retain(|name| self.column(name).key_bytes().is_some_and(|bytes| bytes < 200));
        if candidates.is_empty() {
            return;
        }
        let column = dice.pick(&candidates).clone();
        let clause = clause(dice, self, &column);
        let partitions = Partitions { column, clause };
        for index in &mut self.indexes {
            partitions.complete(index);
        }
        // A statement that looks into some partitions only would miss the hash's duplicates in the
        // others.
        self.checks.retain(|check| !check.starts_with("UNIQUE"));
        self.partitions = Some(partitions);
    }
}

/// A change of a table's partitions, or of what is in them.
pub fn change(dice: &mut Dice, table: &Table, spare: &str) -> Vec<(Statement, Option<Change>)> {
    let name = &table.name;
    let Some(partitions) = &table.partitions else {
        let mut parted = table.clone();
        parted.partition(dice);
        let Some(partitions) = &parted.partitions else { return Vec::new() };
        // Without its unique indexes made complete the table can't be.
        if parted.indexes != table.indexes || parted.checks != table.checks {
            return Vec::new();
        }
        let sql = format!("ALTER TABLE {name} {}", partitions.clause);
        return vec![(altered(sql), Some(Change::Replace(name.clone(), parted)))];
    };
    let one = *dice.pick(&["p0", "p1", "p2"]);
    let same = || None;
    let sql = match dice.range(0, 11) {
        0 => format!("ALTER TABLE {name} TRUNCATE PARTITION {one}"),
        1 => format!("ALTER TABLE {name} REBUILD PARTITION {one}"),
        2 => format!("ALTER TABLE {name} CHECK PARTITION {one}"),
        3 if partitions.is_ranges() => format!("ALTER TABLE {name} DROP PARTITION {one}"),
        4 if partitions.is_ranges() => format!(
            "ALTER TABLE {name} REORGANIZE PARTITION p0 INTO (PARTITION n0 VALUES LESS THAN (2), PARTITION p0 VALUES LESS THAN (5))"
        ),
        5 if partitions.is_ranges() => format!(
            "ALTER TABLE {name} REORGANIZE PARTITION p0, p1 INTO (PARTITION p0 VALUES LESS THAN (30))"
        ),
        3 | 4 => format!("ALTER TABLE {name} ADD PARTITION PARTITIONS 2"),
        5 => format!("ALTER TABLE {name} COALESCE PARTITION 1"),
        6 => {
            let whole = Table { partitions: None, ..table.clone() };
            let sql = format!("ALTER TABLE {name} REMOVE PARTITIONING");
            return vec![(altered(sql), Some(Change::Replace(name.clone(), whole)))];
        }
        7 => {
            let column = partitions.column.clone();
            let clause = clause(dice, table, &column);
            let sql = format!("ALTER TABLE {name} {clause}");
            let other = Table { partitions: Some(Partitions { column, clause }), ..table.clone() };
            return vec![(altered(sql), Some(Change::Replace(name.clone(), other)))];
        }
        8 if partitions.is_ranges() => {
            return vec![
                (
                    altered(format!("ALTER TABLE {name} CONVERT PARTITION {one} TO TABLE {spare}")),
                    same(),
                ),
                (Statement::query(format!("SELECT {} FROM {spare}", table.select_list())), same()),
                (Statement::plain(format!("CHECK TABLE {spare} EXTENDED")), same()),
                (Statement::plain(format!("DROP TABLE IF EXISTS {spare}")), same()),
            ];
        }
        _ => {
            let list = table.select_list();
            let exchange =
                format!("ALTER TABLE {name} EXCHANGE PARTITION {one} WITH TABLE {spare}");
            return vec![
                (Statement::plain(format!("CREATE TABLE {spare} LIKE {name}")), same()),
                (altered(format!("ALTER TABLE {spare} REMOVE PARTITIONING")), same()),
                (altered(exchange.clone()), same()),
                (Statement::query(format!("SELECT {list} FROM {spare}")), same()),
                (Statement::query(format!("SELECT {list} FROM {name}")), same()),
                (Statement::plain(format!("CHECK TABLE {spare} EXTENDED")), same()),
                // Rows that belong elsewhere are refused, or there are none.
                (altered(exchange), same()),
                (Statement::plain(format!("DROP TABLE IF EXISTS {spare}")), same()),
            ];
        }
    };
    vec![(altered(sql), None)]
}

fn altered(sql: String) -> Statement {
    Statement::plain(sql).lenient().no_count().no_warnings()
}

/// A query of some partitions.
pub fn query(dice: &mut Dice, table: &Table) -> Statement {
    let some = dice.pick(&["p0", "p1", "p2", "p0, p1", "p2, p0"]);
    let (list, name) = (table.select_list(), &table.name);
    let condition = super::query::condition(dice, table, "");
    Statement::query(format!("SELECT {list} FROM {name} PARTITION ({some}) WHERE {condition}"))
}
