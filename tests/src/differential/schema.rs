//! Tables as the generator knows them: columns, indexes, and the orders that follow from them.

use super::column::{Column, Generated, Kind};
use super::dice::Dice;
use super::partition::Partitions;
use super::period::Period;
use super::statement::{Body, Item, Statement};
use super::text::COLLATIONS;

/// The bytes of an index's columns, as they are stored, that every engine here takes.
const KEY_BYTES_MAX: usize = 2900;
/// The bytes of an index's columns and the primary key's, in ordered form.
const ORDERED_BYTES_MAX: usize = 3400;

/// A part of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The column's name.
    pub column: String,
    /// A prefix of this many characters.
    pub prefix: Option<usize>,
    /// DESC.
    pub descending: bool,
}

/// An index. The primary key's name is PRIMARY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pub name: String,
    /// UNIQUE, or the primary key.
    pub unique: bool,
    pub parts: Vec<Part>,
}

impl Index {
    /// The definition in CREATE TABLE.
    pub fn definition(&self) -> String {
        let parts: Vec<String> = self.parts.iter().map(Part::definition).collect();
        let parts = parts.join(", ");
        match (self.name.as_str(), self.unique) {
            ("PRIMARY", _) => format!("PRIMARY KEY ({parts})"),
            (name, true) => format!("UNIQUE KEY {name} ({parts})"),
            (name, false) => format!("KEY {name} ({parts})"),
        }
    }

    /// Whether the index holds its columns whole, so that it orders rows and covers them.
    pub fn is_whole(&self) -> bool {
        self.parts.iter().all(|part| part.prefix.is_none())
    }

    /// Whether a part is this column.
    pub fn has(&self, column: &str) -> bool {
        self.parts.iter().any(|part| part.column == column)
    }

    /// ORDER BY of the index, forward or backward.
    pub fn order(&self, backward: bool) -> String {
        let direction = |part: &Part| if part.descending != backward { " DESC" } else { "" };
        let parts: Vec<String> =
            self.parts.iter().map(|part| format!("{}{}", part.column, direction(part))).collect();
        parts.join(", ")
    }
}

impl Part {
    fn definition(&self) -> String {
        let prefix = self.prefix.map_or(String::new(), |length| format!("({length})"));
        format!("{}{prefix}{}", self.column, if self.descending { " DESC" } else { "" })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub name: String,
    pub columns: Vec<Column>,
    /// The indexes; the primary key comes first, if there is one.
    pub indexes: Vec<Index>,
    /// Constraints that no index shows: CHECK, periods, and UNIQUE … USING HASH or WITHOUT
    /// OVERLAPS, which is unique but orders nothing.
    pub checks: Vec<String>,
    /// Table options.
    pub options: String,
    /// CREATE TEMPORARY TABLE.
    pub temporary: bool,
    /// InnoDB's on both sides: a transaction that writes it and another one is of two engines on
    /// the subject's side.
    pub foreign_engine: bool,
    /// WITH SYSTEM VERSIONING.
    pub versioned: bool,
    pub partitions: Option<Partitions>,
    pub period: Option<Period>,
    /// The next number that no row has.
    pub next_id: u64,
    /// It has hundreds of rows: joins with it are costly.
    pub bulky: bool,
    /// Names given so far, for new columns and indexes.
    pub names_given: usize,
}

impl Table {
    /// A table of any kind.
    pub fn random(dice: &mut Dice, name: &str) -> Table {
        let mut table = Table {
            name: name.into(),
            columns: Vec::new(),
            indexes: Vec::new(),
            checks: Vec::new(),
            options: String::new(),
            temporary: dice.percent(8),
            foreign_engine: dice.percent(8),
            versioned: dice.percent(10),
            partitions: None,
            period: None,
            next_id: 1,
            bulky: false,
            names_given: 0,
        };
        let with_id = dice.percent(65);
        if with_id {
            let sql_type = *dice.pick(&["INT", "BIGINT", "INT UNSIGNED", "BIGINT UNSIGNED", "INT"]);
            let bits = if sql_type.starts_with("INT") { 32 } else { 64 };
            table.columns.push(Column::integer_of("id", sql_type, bits));
        }
        for _ in 0..dice.range(2, 8) {
            let column = table.new_column(dice);
            table.columns.push(column);
        }
        if with_id && dice.percent(25) {
            // Keys need not be the first columns.
            dice.shuffle(&mut table.columns);
        }
        table.add_primary_key(dice, with_id);
        for _ in 0..dice.range(0, 2) {
            if let Some(column) = table.new_generated_column(dice) {
                table.columns.push(column);
            }
        }
        for _ in 0..dice.range(0, 5) {
            if let Some(index) = table.new_index(dice) {
                table.indexes.push(index);
            }
        }
        table.add_check(dice);
        if dice.percent(8) {
            table.add_period(dice);
        } else {
            table.add_unique_hash(dice);
        }
        if dice.percent(12) && !table.temporary {
            table.partition(dice);
        }
        if dice.percent(20) {
            let collation = dice.pick(COLLATIONS);
            table.options =
                format!(" CHARACTER SET {} COLLATE {}", collation.charset, collation.name);
        }
        table
    }

    /// A column with a new name.
    pub fn new_column(&mut self, dice: &mut Dice) -> Column {
        let name = format!("c{}", self.names_given);
        self.names_given += 1;
        Column::random(dice, name)
    }

    fn add_primary_key(&mut self, dice: &mut Dice, with_id: bool) {
        if dice.percent(if with_id { 8 } else { 30 }) {
            return;
        }
        let mut index = Index { name: "PRIMARY".into(), unique: true, parts: Vec::new() };
        if with_id {
            index.parts.push(Part {
                column: "id".into(),
                prefix: None,
                descending: dice.percent(10),
            });
        }
        if !with_id || dice.percent(25) {
            let more = dice.range(1, if with_id { 2 } else { 3 });
            self.add_parts(dice, &mut index, more, false);
        }
        if index.parts.is_empty() {
            return;
        }
        if with_id && dice.percent(50) {
            dice.shuffle(&mut index.parts);
        }
        for part in &index.parts {
            let column = self.columns.iter_mut().find(|c| c.name == part.column);
            let column = column.expect("a part names a column");
            column.nullable = false;
            column.auto_increment =
                column.name == "id" && index.parts[0].column == "id" && dice.percent(70);
        }
        self.indexes.push(index);
    }

    /// Adds parts of columns that the index does not have, as far as its length allows.
    fn add_parts(&self, dice: &mut Dice, index: &mut Index, count: usize, generated: bool) {
        for _ in 0..count {
            let column = dice.pick(&self.columns);
            if index.has(&column.name) || (!generated && column.generated.is_some()) {
                continue;
            }
            let prefix = match column.key_bytes() {
                Some(_) if dice.percent(85) => None,
                _ => Some(*dice.pick(&[1, 2, 4, 7, 20, 100, 500])),
            };
            let bytes = match prefix {
                None => column.key_bytes(),
                // A prefix of a virtual column of type BLOB and the like: rarely allowed.
                Some(_) if column.generated.is_some() => None,
                Some(length) => column.prefix_bytes(length),
            };
            let used: usize = index.parts.iter().filter_map(|part| self.part_bytes(part)).sum();
            let Some(bytes) = bytes else { continue };
            let primary = self.primary().map_or(10, |primary| {
                primary.parts.iter().filter_map(|part| self.part_bytes(part)).sum()
            });
            // Ordered, bytes take an eighth more; characters of few bytes may take four.
            let ordered = if bytes > 200 { bytes + bytes / 8 } else { 3 * bytes };
            if used + bytes <= KEY_BYTES_MAX && used + primary + ordered <= ORDERED_BYTES_MAX {
                let column = column.name.clone();
                index.parts.push(Part { column, prefix, descending: dice.percent(12) });
            }
        }
    }

    fn part_bytes(&self, part: &Part) -> Option<usize> {
        let column = self.column(&part.column);
        part.prefix.map_or_else(|| column.key_bytes(), |length| column.prefix_bytes(length))
    }

    /// An index with a new name, if one can be found.
    pub fn new_index(&mut self, dice: &mut Dice) -> Option<Index> {
        let name = format!("k{}", self.names_given);
        self.names_given += 1;
        let mut index = Index { name, unique: dice.percent(30), parts: Vec::new() };
        let parts = dice.weighted(&[(5, 1), (4, 2), (2, 3), (1, 4)]);
        self.add_parts(dice, &mut index, parts, true);
        if let Some(partitions) = &self.partitions {
            partitions.complete(&mut index);
        }
        (!index.parts.is_empty()).then_some(index)
    }

    /// A generated column over one that is there.
    pub fn new_generated_column(&mut self, dice: &mut Dice) -> Option<Column> {
        let base = dice.pick(&self.columns).clone();
        if base.generated.is_some() || base.auto_increment {
            return None;
        }
        let name = format!("g{}", self.names_given);
        self.names_given += 1;
        let of = &base.name;
        let (kind, sql_type, expression) = match &base.kind {
            Kind::Integer { .. } if dice.percent(50) => {
                (Kind::Integer { bits: 64, unsigned: false }, "BIGINT", format!("{of} DIV 2"))
            }
            Kind::Integer { .. } => {
                (Kind::Integer { bits: 32, unsigned: false }, "INT", format!("{of} % 7"))
            }
            Kind::Text { blob: false, length, .. } if *length <= 100 && dice.percent(70) => {
                let call = dice.pick(&["UPPER(#)", "LEFT(#, 2)", "#", "REVERSE(#)"]);
                let sql_type = base.sql_type.clone();
                return Some(Column {
                    name,
                    sql_type,
                    nullable: true,
                    attributes: String::new(),
                    generated: Some(Generated {
                        expression: call.replace('#', of),
                        stored: self.partitions.is_some() || dice.percent(40),
                    }),
                    auto_increment: false,
                    ..base
                });
            }
            Kind::Text { .. } | Kind::Binary { .. } => {
                (Kind::Integer { bits: 64, unsigned: false }, "BIGINT", format!("LENGTH({of})"))
            }
            Kind::Date | Kind::DateTime => {
                (Kind::Integer { bits: 32, unsigned: false }, "INT", format!("MONTH({of})"))
            }
            _ => (Kind::Integer { bits: 8, unsigned: false }, "TINYINT", format!("{of} IS NULL")),
        };
        let stored = self.partitions.is_some() || dice.percent(40);
        let pool = (0..12).map(|number: u32| number.to_string()).collect();
        let generated = Some(Generated { expression, stored });
        Some(Column {
            name,
            kind,
            sql_type: sql_type.into(),
            nullable: true,
            attributes: String::new(),
            generated,
            auto_increment: false,
            pool,
        })
    }

    fn add_check(&mut self, dice: &mut Dice) {
        if !dice.percent(12) {
            return;
        }
        let column = dice.pick(&self.columns);
        let name = &column.name;
        let check = match column.kind {
            Kind::Integer { .. } if !column.auto_increment => format!("{name} <> 7"),
            Kind::Text { .. } => format!("CHAR_LENGTH({name}) <> 3"),
            _ => return,
        };
        self.checks.push(format!("CONSTRAINT ck{} CHECK ({check})", self.names_given));
    }

    fn add_unique_hash(&mut self, dice: &mut Dice) {
        // Of a row that violates this and another key, engines name the one that they happen to
        // look at first.
        if self.indexes.iter().any(|index| index.unique) || !dice.percent(40) {
            return;
        }
        let mut columns = dice.some(&self.base_columns(), 2);
        columns.retain(|column| !column.auto_increment && !matches!(column.kind, Kind::Geometry));
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        if !names.is_empty() {
            let names = names.join(", ");
            self.checks.push(format!("UNIQUE KEY h{} ({names}) USING HASH", self.names_given));
        }
    }

    /// The column of this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn column(&self, name: &str) -> &Column {
        let found = self.columns.iter().find(|column| column.name == name);
        found.unwrap_or_else(|| panic!("{} has no column {name}", self.name))
    }

    /// The primary key.
    pub fn primary(&self) -> Option<&Index> {
        self.indexes.first().filter(|index| index.name == "PRIMARY")
    }

    /// The auto-increment column.
    pub fn auto_column(&self) -> Option<&Column> {
        self.columns.iter().find(|column| column.auto_increment)
    }

    /// The columns that are written.
    pub fn base_columns(&self) -> Vec<&Column> {
        self.columns.iter().filter(|column| column.generated.is_none()).collect()
    }

    /// Whether a unique index has the column, or a generated column that depends on it.
    pub fn is_in_unique(&self, name: &str) -> bool {
        let depends = |part: &Part| {
            part.column == name
                || self.column(&part.column).generated.as_ref().is_some_and(|generated| {
                    // Names like c1 and c10 make this say yes too often: that is safe.
                    generated.expression.contains(name)
                })
        };
        self.indexes.iter().any(|index| index.unique && index.parts.iter().any(depends))
            || self.unique_hashes().any(|it| it.contains(name))
    }

    fn unique_hashes(&self) -> impl Iterator<Item = &String> {
        self.checks.iter().filter(|it| it.starts_with("UNIQUE"))
    }

    /// Whether it has a UNIQUE … USING HASH.
    pub fn has_unique_hash(&self) -> bool {
        self.unique_hashes().next().is_some()
    }

    /// ORDER BY that leaves no two rows' order open, unless they are identical.
    pub fn total_order(&self, backward: bool) -> String {
        if let Some(primary) = self.primary()
            && primary.is_whole()
        {
            return primary.order(backward);
        }
        let direction = if backward { " DESC" } else { "" };
        let columns: Vec<String> =
            self.columns.iter().map(|column| format!("{}{direction}", column.identity())).collect();
        columns.join(", ")
    }

    /// Every column, as a select list.
    pub fn select_list(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(Column::shown).collect();
        columns.join(", ")
    }

    /// A sum over rows that a change of any column of any row changes. Columns are taken from
    /// `alias`.
    pub fn digest(&self, alias: &str) -> String {
        let columns: Vec<String> = self
            .columns
            .iter()
            .map(|column| {
                let qualified =
                    Column { name: format!("{alias}.{}", column.name), ..column.clone() };
                format!("COALESCE({}, 'NULL')", qualified.identity())
            })
            .collect();
        format!("SUM(CRC32(CONCAT_WS('|', {})))", columns.join(", "))
    }

    /// What follows the definitions in CREATE TABLE.
    fn tail(&self) -> String {
        let engine = if self.foreign_engine { " ENGINE=InnoDB" } else { "" };
        let versioning = if self.versioned { " WITH SYSTEM VERSIONING" } else { "" };
        let partitions =
            self.partitions.as_ref().map_or(String::new(), |it| format!(" {}", it.clause));
        format!("{engine}{}{versioning}{partitions}", self.options)
    }

    /// CREATE TABLE.
    pub fn create(&self) -> Statement {
        let column =
            |column: &Column| Item { column: Some(column.name.clone()), sql: column.definition() };
        let other = |sql: String| Item { column: None, sql };
        let items = self
            .columns
            .iter()
            .map(column)
            .chain(self.indexes.iter().map(|index| other(index.definition())))
            .chain(self.checks.iter().cloned().map(other))
            .collect();
        let temporary = if self.temporary { "TEMPORARY " } else { "" };
        Statement::new(Body::Create {
            table: self.name.clone(),
            head: format!("CREATE {temporary}TABLE {}", self.name),
            items,
            tail: self.tail(),
        })
    }
}
