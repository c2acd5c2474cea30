//! Application-time periods, and the history of system-versioned tables.

use super::column::{Column, Kind};
use super::dice::Dice;
use super::query::condition;
use super::schema::Table;
use super::statement::Statement;

/// `timestamp` of the session when a case begins.
pub const CLOCK_START: u64 = 1_700_000_000;

/// The columns of a PERIOD FOR p.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// The column where it begins.
    pub start: String,
    /// The column where it ends.
    pub end: String,
}

fn date(day: usize) -> String {
    format!("'2001-{:02}-{:02}'", 1 + day / 28, 1 + day % 28)
}

impl Table {
    /// Adds a period, mostly with a key that lets no two of them overlap.
    pub fn add_period(&mut self, dice: &mut Dice) {
        // Rows that are split get numbers from the counter, whose gaps are the engine's affair.
        if self.temporary
            || self.auto_column().is_some()
            || self.columns.iter().any(|c| c.name == "id")
        {
            return;
        }
        let (start, end) = ("starts".to_string(), "ends".to_string());
        for (name, days) in [(&start, 0..40), (&end, 25..70)] {
            self.columns.push(Column {
                name: name.clone(),
                kind: Kind::Date,
                sql_type: "DATE".into(),
                nullable: false,
                attributes: String::new(),
                generated: None,
                auto_increment: false,
                pool: days.step_by(5).map(date).collect(),
            });
        }
        self.checks.push(format!("PERIOD FOR p ({start}, {end})"));
        let mut keys = self.base_columns();
        keys.retain(|column| {
            column.key_bytes().is_some_and(|bytes| bytes < 300) && column.kind != Kind::Date
        });
        // Of a row that violates this and another key, engines name the one that they happen to
        // look at first.
        let alone = !self.indexes.iter().any(|index| index.unique);
        if !keys.is_empty() && alone && dice.percent(75) {
            let key = &dice.pick(&keys).name;
            let names = self.names_given;
            self.checks.push(format!("UNIQUE KEY o{names} ({key}, p WITHOUT OVERLAPS)"));
        }
        self.period = Some(Period { start, end });
    }
}

/// UPDATE or DELETE of a portion of a table's periods.
pub fn portion(dice: &mut Dice, table: &Table) -> Option<Statement> {
    table.period.as_ref()?;
    let name = &table.name;
    let (from, to) = (dice.range(0, 50), dice.range(5, 70));
    let portion = format!("FOR PORTION OF p FROM {} TO {}", date(from), date(to));
    let condition = condition(dice, table, "");
    let sql = if dice.percent(40) {
        format!("DELETE FROM {name} {portion} WHERE {condition}")
    } else {
        let columns = table.base_columns();
        let column = *dice.pick(&columns);
        if table.is_in_unique(&column.name) || column.kind == Kind::Date {
            return None;
        }
        let value = column.constant(dice);
        format!("UPDATE {name} {portion} SET {} = {value} WHERE {condition}", column.name)
    };
    Some(Statement::plain(sql).lenient().no_warnings())
}

/// Queries of a system-versioned table's history, or its end.
pub fn history(dice: &mut Dice, table: &Table, now: u64) -> Vec<Statement> {
    let (name, list) = (&table.name, table.select_list());
    let at = CLOCK_START + dice.u64() % (now - CLOCK_START + 1);
    let then = format!("FROM_UNIXTIME({at})");
    match dice.range(0, 6) {
        0 => {
            vec![Statement::plain(format!("DELETE HISTORY FROM {name} BEFORE SYSTEM_TIME {then}"))]
        }
        1 | 2 => {
            let condition = condition(dice, table, "");
            let sql =
                format!("SELECT {list} FROM {name} FOR SYSTEM_TIME AS OF {then} WHERE {condition}");
            vec![Statement::query(sql)]
        }
        3 => vec![Statement::query(format!(
            "SELECT {list}, row_start, row_end FROM {name} FOR SYSTEM_TIME BETWEEN {then} AND FROM_UNIXTIME({})",
            at + 10
        ))],
        _ => whole_history(table),
    }
}

/// All rows that there are and were, over each index.
pub fn whole_history(table: &Table) -> Vec<Statement> {
    let (name, list) = (&table.name, table.select_list());
    let mut hints = vec!["USE INDEX ()".to_string()];
    hints.extend(table.indexes.iter().map(|index| format!("FORCE INDEX ({})", index.name)));
    let digest = table.digest(name);
    let mut statements = vec![Statement::query(format!(
        "SELECT {list}, row_start, row_end FROM {name} FOR SYSTEM_TIME ALL"
    ))];
    statements.extend(hints.iter().map(|hint| {
        Statement::query(format!(
            "SELECT COUNT(*), {digest} FROM {name} FOR SYSTEM_TIME ALL {hint}"
        ))
    }));
    statements
}
