//! Triggers.

use super::dice::Dice;
use super::dml;
use super::query::condition;
use super::schema::Table;
use super::statement::{Body, Statement};

/// CREATE TRIGGER: it changes the row that is written, or reads or writes another table. Whatever
/// the order in which a statement visits rows, it comes to the same.
pub fn create(dice: &mut Dice, table: &Table, other: &mut Table, name: &str) -> Option<Statement> {
    let event = *dice.pick(&["INSERT", "UPDATE", "DELETE"]);
    let mut when = *dice.pick(&["BEFORE", "AFTER"]);
    let of = other.name.clone();
    let columns = other.base_columns();
    let column = *dice.pick(&columns);
    let action = match dice.range(0, 4) {
        0 | 1 if event != "DELETE" => {
            let columns = table.base_columns();
            let column = *dice.pick(&columns);
            if table.is_in_unique(&column.name) || column.auto_increment {
                return None;
            }
            when = "BEFORE";
            format!("SET NEW.{} = {}", column.name, column.constant(dice))
        }
        2 => {
            if other.is_in_unique(&column.name) {
                return None;
            }
            let value = column.constant(dice);
            let condition = condition(dice, other, "");
            format!("UPDATE {of} SET {} = {value} WHERE {condition}", column.name)
        }
        3 => format!("DELETE FROM {of} WHERE {}", condition(dice, other, "")),
        4 => format!("SET @seen = (SELECT COUNT(*) FROM {of})"),
        _ => match dml::fill(dice, other, 2).body {
            // Without a key each row that is written would add two more.
            Body::Insert { .. } if other.primary().is_none() => return None,
            body => Statement::new(body).sql(),
        },
    };
    let sql =
        format!("CREATE TRIGGER {name} {when} {event} ON {} FOR EACH ROW {action}", table.name);
    Some(Statement::plain(sql).no_warnings())
}
