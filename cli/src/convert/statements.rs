//! The statements of a group, and the settings of the session that runs them.

use std::collections::BTreeSet;

use crate::sql_text::{identifier, identifiers};

use super::names::TableName;
use super::plan::Group;
use super::schema::Constraint;

/// The way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToTidepool,
    ToInnodb,
}

impl Direction {
    /// The engine that tables get.
    pub fn engine(self) -> &'static str {
        match self {
            Direction::ToTidepool => "Tidepool",
            Direction::ToInnodb => "InnoDB",
        }
    }

    /// The engine whose tables are converted where the user names none.
    pub fn from_engine(self) -> &'static str {
        match self {
            Direction::ToTidepool => "InnoDB",
            Direction::ToInnodb => "Tidepool",
        }
    }
}

/// A setting of the session, and why.
pub struct Setting {
    pub statement: String,
    /// Whether a server without the variable is fine.
    pub may_fail: bool,
}

/// What the session sets before anything else.
pub fn settings(lock_wait_s: u64) -> Vec<Setting> {
    let must = |statement: &str| Setting { statement: statement.into(), may_fail: false };
    let may = |statement: &str| Setting { statement: statement.into(), may_fail: true };
    vec![
        // Without the first an engine that is not there makes a warning and a table of another
        // engine. With the second a row with 0 in its AUTO_INCREMENT column keeps it. No strict
        // mode: what the table holds now stays, zero dates too.
        must("SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'"),
        // A waiting ALTER keeps later statements on the table waiting, too.
        must(&format!("SET SESSION lock_wait_timeout = {lock_wait_s}")),
        must("SET SESSION foreign_key_checks = 1"),
        // A row that a CHECK would refuse today is there, and stays.
        must("SET SESSION check_constraint_checks = 0"),
        must("SET SESSION max_statement_time = 0"),
        // The connection that keeps the journal is idle while a table is altered.
        must("SET SESSION wait_timeout = 31536000"),
        // A server may have another default, which would refuse to copy.
        may("SET SESSION alter_algorithm = DEFAULT"),
        // A row format that InnoDB took once it takes again.
        may("SET SESSION innodb_strict_mode = OFF"),
    ]
}

/// Keeps what the session does out of the binary log.
pub const NO_BINARY_LOG: &str = "SET SESSION sql_log_bin = 0";

/// Changes the engine, and adds foreign keys of the table by the same copy.
pub fn alter(name: &TableName, direction: Direction, add: &[Constraint]) -> String {
    let mut statement = format!("ALTER TABLE {name} ENGINE={}", direction.engine());
    for constraint in add {
        statement.push_str(", ");
        statement.push_str(&own_add_clause(constraint));
    }
    statement
}

/// One statement for each child.
pub fn drops(constraints: &[Constraint]) -> Vec<String> {
    by_child(constraints, |constraint| format!("DROP FOREIGN KEY {}", identifier(&constraint.name)))
}

/// The same for what is added.
pub fn adds(constraints: &[Constraint]) -> Vec<String> {
    by_child(constraints, own_add_clause)
}

fn own_add_clause(constraint: &Constraint) -> String {
    add_clause(constraint, &constraint.name, &constraint.parent.name())
}

/// `ADD CONSTRAINT …` with other names for the constraint and its parent.
pub fn add_clause(constraint: &Constraint, name: &str, parent: &TableName) -> String {
    let mut clause = format!(
        "ADD CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {parent} ({})",
        identifier(name),
        identifiers(&constraint.child.columns),
        identifiers(&constraint.parent.columns),
    );
    for (event, action) in [("DELETE", &constraint.on_delete), ("UPDATE", &constraint.on_update)] {
        // RESTRICT is what a foreign key does by default, and `SHOW CREATE TABLE` leaves it out.
        if action != "RESTRICT" {
            clause.push_str(&format!(" ON {event} {action}"));
        }
    }
    clause
}

fn by_child(constraints: &[Constraint], clause: impl Fn(&Constraint) -> String) -> Vec<String> {
    let mut statements: Vec<(TableName, Vec<String>)> = Vec::new();
    for constraint in constraints {
        let child = constraint.child.name();
        match statements.iter_mut().find(|(name, _)| *name == child) {
            Some((_, clauses)) => clauses.push(clause(constraint)),
            None => statements.push((child, vec![clause(constraint)])),
        }
    }
    let statement = |(child, clauses): (TableName, Vec<String>)| {
        format!("ALTER TABLE {child} {}", clauses.join(", "))
    };
    statements.into_iter().map(statement).collect()
}

/// Keeps other sessions out of the tables.
pub fn lock(tables: &[TableName]) -> String {
    let tables: Vec<String> = tables.iter().map(|name| format!("{name} WRITE")).collect();
    format!("LOCK TABLES {}", tables.join(", "))
}

/// Whether the server looks at the rows when it adds foreign keys.
pub fn checks(is_on: bool) -> &'static str {
    match is_on {
        true => "SET SESSION foreign_key_checks = 1",
        false => "SET SESSION foreign_key_checks = 0",
    }
}

/// All statements of a group, in their order, as they run where nothing goes wrong. `headless` has
/// the foreign keys of an earlier run whose parent did not exist when they were dropped.
pub fn group(
    group: &Group,
    headless: &BTreeSet<(TableName, String)>,
    direction: Direction,
    locks: bool,
) -> Vec<String> {
    let mut statements = Vec::new();
    let is_locked = locks && group.has_constraints();
    if is_locked {
        statements.push(lock(&group.tables));
    }
    statements.extend(drops(&group.drop));
    if is_locked && !group.drop.is_empty() {
        statements.push(checks(false).into());
    }
    for part in &group.alter {
        let add = if is_locked { part.add.as_slice() } else { &[] };
        statements.push(alter(&part.name, direction, add));
    }
    // With checks, no foreign key to a parent that is not there can be added. One whose parent has
    // gone since it was dropped stays with those that are checked: that is refused.
    let is_headless = |added: &Constraint| {
        !group.tables.contains(&added.parent.name())
            && (group.drop.contains(added) || headless.contains(&added.owned_key()))
    };
    let rest: Vec<Constraint> = match is_locked {
        true => group.add.clone(),
        false => group.all_added().cloned().collect(),
    };
    let (unchecked, checked): (Vec<Constraint>, Vec<Constraint>) = rest
        .into_iter()
        .partition(|added| is_headless(added) || (is_locked && group.drop.contains(added)));
    let was_off = is_locked && !group.drop.is_empty();
    if !was_off && !unchecked.is_empty() {
        statements.push(checks(false).into());
    }
    statements.extend(adds(&unchecked));
    if was_off || !unchecked.is_empty() {
        statements.push(checks(true).into());
    }
    statements.extend(adds(&checked));
    if is_locked {
        statements.push("UNLOCK TABLES".into());
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::super::plan::Alter;
    use super::super::schema::ChildOrParent;
    use super::*;

    fn side(table: &str, columns: &[&str]) -> ChildOrParent {
        let columns = columns.iter().map(ToString::to_string).collect();
        ChildOrParent { schema: "s".into(), table: table.into(), columns }
    }

    fn constraint(name: &str, on_delete: &str, on_update: &str) -> Constraint {
        Constraint {
            name: name.into(),
            child: side("c", &["a", "b`"]),
            parent: side("p", &["x", "y"]),
            on_delete: on_delete.into(),
            on_update: on_update.into(),
        }
    }

    #[test]
    fn constraints_of_one_child_are_dropped_and_added_by_one_statement() {
        let both =
            [constraint("f`1", "SET NULL", "RESTRICT"), constraint("f2", "RESTRICT", "NO ACTION")];
        assert_eq!(
            drops(&both),
            ["ALTER TABLE `s`.`c` DROP FOREIGN KEY `f``1`, DROP FOREIGN KEY `f2`"]
        );
        assert_eq!(
            adds(&both),
            ["ALTER TABLE `s`.`c` ADD CONSTRAINT `f``1` FOREIGN KEY (`a`, `b```) REFERENCES \
                 `s`.`p` (`x`, `y`) ON DELETE SET NULL, ADD CONSTRAINT `f2` FOREIGN KEY (`a`, \
                 `b```) REFERENCES `s`.`p` (`x`, `y`) ON UPDATE NO ACTION"]
        );
    }

    #[test]
    fn foreign_keys_are_added_unchecked_only_under_the_lock_that_has_kept_writers_out() {
        let (here, before) = (constraint("f1", "CASCADE", "RESTRICT"), constraint("f0", "", ""));
        let name = TableName::new("s", "c");
        let parts = Group {
            tables: vec![name.clone(), TableName::new("s", "p")],
            drop: vec![here.clone()],
            alter: vec![Alter { name, add: vec![here] }],
            add: vec![before],
        };
        let locked = group(&parts, &BTreeSet::new(), Direction::ToTidepool, true);
        assert_eq!(locked[0], "LOCK TABLES `s`.`c` WRITE, `s`.`p` WRITE");
        assert_eq!(locked[1], "ALTER TABLE `s`.`c` DROP FOREIGN KEY `f1`");
        assert_eq!(locked[2], checks(false));
        assert!(locked[3].starts_with("ALTER TABLE `s`.`c` ENGINE=Tidepool, ADD CONSTRAINT `f1` "));
        assert_eq!(locked[4], checks(true));
        assert!(locked[5].starts_with("ALTER TABLE `s`.`c` ADD CONSTRAINT `f0` "), "{locked:?}");
        assert_eq!(locked[6..], ["UNLOCK TABLES"]);
        let free = group(&parts, &BTreeSet::new(), Direction::ToInnodb, false);
        assert_eq!(free[1], "ALTER TABLE `s`.`c` ENGINE=InnoDB");
        assert!(free[2].contains("`f1`") && free[2].contains("`f0`"), "{free:?}");
        assert_eq!(free.len(), 3, "and nothing switches the checks off: {free:?}");
    }

    #[test]
    fn foreign_keys_without_a_parent_are_added_unchecked_and_those_that_lost_it_are_not() {
        let to_nowhere = |name: &str| Constraint {
            parent: side("gone", &["x", "y"]),
            ..constraint(name, "RESTRICT", "RESTRICT")
        };
        let name = TableName::new("s", "c");
        // One is dropped here; of two of earlier runs, one had a parent when it was dropped.
        let (here, before, lost) = (to_nowhere("here"), to_nowhere("before"), to_nowhere("lost"));
        let headless = BTreeSet::from([before.owned_key()]);
        let parts = Group {
            tables: vec![name.clone()],
            drop: vec![here.clone()],
            alter: vec![Alter { name, add: vec![here] }],
            add: vec![before, lost],
        };
        for locks in [true, false] {
            let statements = group(&parts, &headless, Direction::ToTidepool, locks);
            let is_checked = |name: &str| {
                let added = format!("ADD CONSTRAINT `{name}`");
                let at = statements.iter().position(|statement| statement.contains(&added));
                let set = statements[..at.unwrap()].iter().rev();
                let mut set = set.filter(|statement| statement.contains("foreign_key_checks"));
                set.next().is_none_or(|statement| statement == checks(true))
            };
            assert!(!is_checked("here") && !is_checked("before"), "{statements:?}");
            assert!(is_checked("lost"), "{statements:?}");
        }
    }
}
