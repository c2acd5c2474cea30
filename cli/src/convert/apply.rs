//! Carries a plan out, group by group.
//!
//! A group with foreign keys is locked (`LOCK TABLES … WRITE`) from before the first DROP to after
//! the last ADD, so no other session sees or writes its tables while a constraint is missing, and
//! the constraints need no check when they are added. Where the lock was not held throughout (an
//! earlier run dropped them, or the user said `--no-lock-tables`), the server checks all rows.
//!
//! A table without foreign keys is not locked: the ALTER itself keeps others from writing on
//! servers that copy under a lock, and lets them read.
//!
//! A group may be hours behind the look at the start. So its tables and constraints are looked at
//! again before the first DROP, and under the lock where there is one: a group that others have
//! changed is left as it is, and the next one follows.
//!
//! When a statement fails, or the user stops the command, the constraints come back that this run
//! has dropped, and whose tables are in one engine. Those that can't are in the
//! [journal](super::journal).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;

use crate::exit::{Error, Result};
use crate::server::{Refusal, Server};
use crate::sql_text::identifier;
use crate::terminal::printable;

use super::gather::{constraints_of, stored_columns};
use super::journal::Journal;
use super::names::TableName;
use super::plan::{Group, Plan};
use super::progress::watched;
use super::schema::{Constraint, Table, Versioning};
use super::space::Space;
use super::statements::{Direction, adds, alter, checks, drops, lock};

/// The server's code for a lock that was not given in time.
const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// What a conversion needs on the schemas.
const PRIVILEGES: &str = "ALTER, CREATE, DROP, INSERT, SELECT, LOCK TABLES, REFERENCES";
/// A row has no parent.
const NO_REFERENCED_ROW: [u16; 2] = [1452, 1216];

/// How the user wants it.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    pub direction: Direction,
    /// Compare the tables' checksums.
    pub is_verifying: bool,
    pub locks_tables: bool,
    /// Add constraints without looking at the rows.
    pub leaves_orphans: bool,
    pub checks_space: bool,
}

/// A table that has the new engine.
#[derive(Debug, Clone, Serialize)]
pub struct Converted {
    #[serde(flatten)]
    pub name: TableName,
    /// As many as the server copied.
    pub rows: u64,
    pub bytes_before: u64,
    /// Tidepool says what is on disk, which for a new table comes after a while: 0 until then.
    pub bytes_after: u64,
    pub seconds: f64,
    /// With `--verify`: of all rows, the same before and after.
    pub checksum: Option<u64>,
}

/// Tables of a group that was left as it is.
#[derive(Debug, Clone, Serialize)]
pub struct Left {
    pub tables: Vec<TableName>,
    pub why: String,
}

/// Why a group was not carried out.
#[derive(Debug)]
enum Ended {
    /// Others have changed it since the look: the next one follows.
    Left(String),
    /// No other follows.
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::Failed(error)
    }
}

impl Ended {
    fn is_gone(&self) -> bool {
        matches!(self, Ended::Failed(Error::Gone(_)))
    }
}

/// What became of the plan.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    pub converted: Vec<Converted>,
    /// Foreign keys that were added again.
    pub constraints: u64,
    /// Groups that others have changed since the look.
    pub left: Vec<Left>,
    /// Whether the user stopped it before the end.
    pub is_stopped: bool,
}

/// What a run has in its hands.
pub struct Run<'a> {
    pub work: &'a mut Server,
    pub journal: &'a mut Journal,
    pub tables: &'a BTreeMap<TableName, Table>,
    /// Foreign keys of an earlier run whose parent did not exist when they were dropped.
    pub headless: &'a BTreeSet<(TableName, String)>,
    pub space: Space,
    pub wishes: Wishes,
    pub stop: Arc<AtomicBool>,
    /// Lines about what has been done.
    pub say: &'a mut dyn FnMut(&str),
    pub outcome: Outcome,
    /// Bytes of all tables that are still to be altered.
    pub bytes_left: u64,
    pub tables_total: usize,
    /// Of the group that is under way.
    pub schemas: BTreeSet<String>,
}

/// What was measured of a table under its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Measured {
    rows: u64,
    checksum: Option<u64>,
}

impl Run<'_> {
    /// Carries out all groups.
    ///
    /// # Errors
    /// What the server refuses. What was done so far is in `outcome`, and a further run goes on.
    pub fn carry_out(&mut self, plan: &Plan) -> Result<()> {
        for group in &plan.groups {
            if self.is_stopped() {
                return Ok(());
            }
            match self.group(group) {
                Ok(()) => {}
                Err(Ended::Left(why)) => self.leave(group, why),
                Err(Ended::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn leave(&mut self, group: &Group, why: String) {
        let is_done =
            |name: &TableName| self.outcome.converted.iter().any(|done| done.name == *name);
        let altered = group.alter.iter().map(|alter| &alter.name).filter(|name| !is_done(name));
        let mut tables: Vec<TableName> = altered.cloned().collect();
        for name in &tables {
            self.bytes_left = self.bytes_left.saturating_sub(self.tables[name].bytes());
        }
        if group.alter.is_empty() {
            tables.clone_from(&group.tables);
        }
        let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
        (self.say)(&format!("{}: not converted: {why}", names.join(", ")));
        self.outcome.left.push(Left { tables, why });
    }

    fn is_stopped(&mut self) -> bool {
        self.outcome.is_stopped |= self.stop.load(Ordering::Relaxed);
        self.outcome.is_stopped
    }

    fn group(&mut self, group: &Group) -> std::result::Result<(), Ended> {
        self.schemas = group.tables.iter().map(|name| name.schema.clone()).collect();
        self.check_parents(group)?;
        let has_constraints = group.has_constraints();
        let is_locked = (has_constraints && self.wishes.locks_tables) || self.wishes.is_verifying;
        if is_locked {
            let what = format!("locking {}", group.tables[0]);
            self.run_on_tables(&what, &lock(&group.tables))?;
        }
        let result = self.locked(group, is_locked);
        if is_locked && !result.as_ref().is_err_and(Ended::is_gone) {
            self.run("unlocking", "UNLOCK TABLES")?;
        }
        result
    }

    /// Compares the group's tables and foreign keys with those of the look. What is dropped now is
    /// added again by the definition of the look: a key that others have changed would get its old
    /// definition, and one that they have dropped would come back.
    fn check_unchanged(&mut self, group: &Group) -> std::result::Result<(), Ended> {
        for name in &group.tables {
            let engine = self.space.engine(self.work, name)?;
            if engine.as_ref() != Some(&self.tables[name].engine) {
                return Err(Ended::Left(match engine {
                    None => format!("{name} was dropped since the look at the start"),
                    Some(engine) => format!(
                        "{name} was changed since the look at the start (its engine is {engine}): \
                         run the command again"
                    ),
                }));
            }
        }
        let altered = group.alter.iter().map(|alter| alter.name.clone());
        let children = group.drop.iter().map(|constraint| constraint.child.name());
        for child in altered.clone().chain(children).collect::<BTreeSet<_>>() {
            let there = constraints_of(self.work, &child)?;
            let of_look: Vec<&Constraint> =
                group.drop.iter().filter(|dropped| dropped.child.name() == child).collect();
            let mut is_same = of_look.iter().all(|dropped| there.contains(dropped));
            // All keys of a table that is altered are dropped first.
            if altered.clone().any(|name| name == child) {
                is_same &= there.iter().all(|there| of_look.contains(&there));
            }
            if !is_same {
                return Err(Ended::Left(format!(
                    "the foreign keys of {child} were changed since the look at the start: run \
                     the command again"
                )));
            }
        }
        Ok(())
    }

    /// A foreign key may lead to a table that is not there. One that this user can't see may be
    /// there, in whatever engine: then the key can't be dropped, because it might not come back.
    fn check_parents(&mut self, group: &Group) -> Result<()> {
        for constraint in &group.drop {
            let parent = constraint.parent.name();
            if self.tables.contains_key(&parent) {
                continue;
            }
            let probe = format!("SELECT 1 FROM {parent} LIMIT 0");
            match self.work.attempt("looking for a parent", &probe)? {
                Err(refusal) if refusal.is_of_missing_table() => {}
                _ => {
                    return Err(Error::Refused {
                        what: printable(&format!("dropping the foreign key {}", constraint.name)),
                        why: printable(&format!(
                            "whether its parent {parent} exists can't be seen: grant this user \
                             SELECT on it, or leave {} out with --exclude",
                            constraint.child.name()
                        )),
                    });
                }
            }
        }
        Ok(())
    }

    fn locked(&mut self, group: &Group, is_locked: bool) -> std::result::Result<(), Ended> {
        self.check_unchanged(group)?;
        let tables = self.tables;
        self.journal.note(&group.drop, |parent| tables.contains_key(parent))?;
        let mut dropped = Vec::new();
        let altered = self.drop_and_alter(group, is_locked, &mut dropped);
        if altered.as_ref().is_err_and(Ended::is_gone) {
            return altered;
        }
        // Also after an error: as many as can be.
        let added = self.add_again(group, is_locked, &dropped, altered.is_err());
        match (altered, added) {
            (Err(Ended::Left(_)), Err(error)) => Err(error.into()),
            (altered, added) => altered.and(added.map_err(Ended::from)),
        }
    }

    fn drop_and_alter(
        &mut self,
        group: &Group,
        is_locked: bool,
        dropped: &mut Vec<Constraint>,
    ) -> std::result::Result<(), Ended> {
        for part in by_child(&group.drop) {
            for statement in drops(&part) {
                self.run("dropping foreign keys", &statement)?;
            }
            dropped.extend(part);
        }
        for part in &group.alter {
            if self.is_stopped() {
                return Ok(());
            }
            // Only where nothing needs a check: a self-reference can't be checked while the rows
            // are copied.
            let add = if is_locked { part.add.as_slice() } else { &[] };
            self.table(&part.name, add, is_locked)?;
        }
        Ok(())
    }

    fn table(
        &mut self,
        name: &TableName,
        add: &[Constraint],
        is_locked: bool,
    ) -> std::result::Result<(), Ended> {
        let table = &self.tables[name];
        if self.wishes.checks_space {
            self.space.check(self.work, table, self.wishes.direction)?;
        }
        let before = if is_locked { Some(self.measure(table)?) } else { None };
        let statement = alter(name, self.wishes.direction, add);
        if !add.is_empty() {
            self.run("foreign_key_checks", checks(false))?;
        }
        let number = self.outcome.converted.len() + 1;
        let label = format!("[{number}/{}] {name}", self.tables_total);
        let start = Instant::now();
        let target = self.work.target().clone();
        let id = self.work.connection_id();
        let copied = watched(&target, id, &printable(&label), || {
            self.work.attempt("changing the engine", &statement)
        })?;
        let rows = copied.map_err(|refusal| self.ended(&statement, refusal))?;
        self.run("foreign_key_checks", checks(true))?;
        self.outcome.constraints += add.len() as u64;
        self.journal.forget(add)?;
        let seconds = start.elapsed().as_secs_f64();
        let checksum = match before {
            None => None,
            Some(before) => self.compare(table, before, rows)?,
        };
        let bytes_after = self.space.size(self.work, name)?;
        let bytes_before = table.bytes();
        self.space.learn(bytes_before, bytes_after, seconds);
        self.bytes_left = self.bytes_left.saturating_sub(bytes_before);
        let left = self.space.seconds(self.bytes_left);
        let rest = match self.bytes_left {
            0 => String::new(),
            _ => format!("; about {} left", super::report::duration(left)),
        };
        (self.say)(&format!(
            "{label}: {rows} rows in {seconds:.1} s, {}{}{rest}",
            super::report::sizes(bytes_before, bytes_after),
            if checksum.is_some() { ", checksum equal" } else { "" },
        ));
        let name = name.clone();
        self.outcome.converted.push(Converted {
            name,
            rows,
            bytes_before,
            bytes_after,
            seconds,
            checksum,
        });
        Ok(())
    }

    /// The number of rows, with those of the history, and the checksum if that is wanted.
    fn measure(&mut self, table: &Table) -> Result<Measured> {
        let history = match table.versioning {
            Versioning::None => "",
            Versioning::Time | Versioning::TransactionId => " FOR SYSTEM_TIME ALL",
        };
        let query = format!("SELECT COUNT(*) FROM {}{history}", table.name);
        let rows = self.work.first("counting rows", "SELECT", &query)?.unwrap_or_default();
        let checksum = match self.wishes.is_verifying {
            false => None,
            true => self.checksum(table)?,
        };
        Ok(Measured { rows, checksum })
    }

    /// Of all rows, whatever their order.
    fn checksum(&mut self, table: &Table) -> Result<Option<u64>> {
        let query = match table.has_virtual_columns {
            false => format!("CHECKSUM TABLE {} EXTENDED", table.name),
            // CHECKSUM TABLE counts the NULL bits of virtual columns, which nothing has set.
            true => {
                let columns = stored_columns(self.work, &table.name)?;
                let text = |name: &String| {
                    format!("IFNULL(HEX(CAST({} AS BINARY)), '-')", identifier(name))
                };
                let texts: Vec<String> = columns.iter().map(text).collect();
                format!(
                    "SELECT '', IFNULL(SUM(CRC32(CONCAT_WS(',', {}))), 0) FROM {}",
                    texts.join(", "),
                    table.name
                )
            }
        };
        let row: Option<(String, Option<u64>)> =
            self.work.first("the checksum", "SELECT", &query)?;
        Ok(row.and_then(|(_, checksum)| checksum))
    }

    /// Looks at the table again: its lock has kept others out.
    fn compare(&mut self, table: &Table, before: Measured, copied: u64) -> Result<Option<u64>> {
        let after = self.measure(table)?;
        if after != before || copied != before.rows {
            return Err(Error::Differs(format!(
                "{} had {} rows before, {copied} were copied, and it has {} now{}; keep its \
                 backup, and report this",
                table.name,
                before.rows,
                after.rows,
                if after.checksum == before.checksum { "" } else { ", with another checksum" },
            )));
        }
        Ok(after.checksum)
    }

    /// Adds the group's constraints whose sides are in one engine, and takes them out of the
    /// journal.
    fn add_again(
        &mut self,
        group: &Group,
        is_locked: bool,
        dropped: &[Constraint],
        has_failed: bool,
    ) -> Result<()> {
        let (mut dropped_here, mut earlier) = (Vec::new(), Vec::new());
        let (mut never_gone, mut without_parent) = (Vec::new(), None);
        for constraint in group.all_added() {
            let there = constraints_of(self.work, &constraint.child.name())?;
            if there.iter().any(|there| there.name == constraint.name) {
                never_gone.push(constraint.clone());
                continue;
            }
            let is_dropped = dropped.contains(constraint);
            if !is_dropped && group.drop.contains(constraint) {
                // Others have dropped it: it is theirs to add.
                never_gone.push(constraint.clone());
                continue;
            }
            if !self.is_possible(constraint)? {
                continue;
            }
            if self.has_lost_parent(group, constraint) && !self.wishes.leaves_orphans {
                without_parent = Some(constraint);
                continue;
            }
            match is_dropped {
                true => dropped_here.push(constraint.clone()),
                false => earlier.push(constraint.clone()),
            }
        }
        // Under the lock no row can have changed since the constraint was there.
        let checks = !is_locked && !self.wishes.leaves_orphans;
        self.add(&dropped_here, checks)?;
        self.add(&earlier, !self.wishes.leaves_orphans)?;
        // Those that this run has not dropped. (Others that are there have left the journal
        // before.)
        if has_failed {
            self.journal.forget(&never_gone)?;
        }
        without_parent.map_or(Ok(()), |constraint| Err(lost_parent(constraint)))
    }

    /// Whether the parent has gone, or can't be seen any more, since the constraint was dropped.
    fn has_lost_parent(&self, group: &Group, constraint: &Constraint) -> bool {
        !self.tables.contains_key(&constraint.parent.name())
            && !group.drop.contains(constraint)
            && !self.headless.contains(&constraint.owned_key())
    }

    fn add(&mut self, constraints: &[Constraint], checks: bool) -> Result<()> {
        if constraints.is_empty() {
            return Ok(());
        }
        // A constraint may have named a parent that is not there: with checks it can't be added.
        let (whole, headless): (Vec<_>, Vec<_>) = constraints
            .iter()
            .cloned()
            .partition(|constraint| self.tables.contains_key(&constraint.parent.name()));
        for (constraints, checks) in [(whole, checks), (headless, false)] {
            self.run("foreign_key_checks", super::statements::checks(checks))?;
            // Child by child, so that the journal has no more than what is missing.
            for part in constraints.chunk_by(|a, b| a.child.name() == b.child.name()) {
                for statement in adds(part) {
                    self.add_by(&statement)?;
                }
                self.outcome.constraints += part.len() as u64;
                self.journal.forget(part)?;
            }
        }
        self.run("foreign_key_checks", super::statements::checks(true))
    }

    fn add_by(&mut self, statement: &str) -> Result<()> {
        let Err(refusal) = self.work.attempt("adding foreign keys", statement)? else {
            return Ok(());
        };
        let mut error = self.refused(statement, refusal.clone());
        if NO_REFERENCED_ROW.contains(&refusal.code)
            && let Error::Refused { why, .. } = &mut error
        {
            why.push_str(
                "; rows without a parent came while the constraint was missing: correct them and \
                 run the command again, or add it without a check with --leave-orphans",
            );
        }
        Err(error)
    }

    /// Whether both sides are there and in one engine now. What it is not, the journal keeps.
    fn is_possible(&mut self, constraint: &Constraint) -> Result<bool> {
        let child = self.space.engine(self.work, &constraint.child.name())?;
        let parent = self.space.engine(self.work, &constraint.parent.name())?;
        Ok(child.is_some() && (parent.is_none() || child == parent))
    }

    /// The same as [`run`](Self::run) for a statement that no table of the group may lack.
    fn run_on_tables(&mut self, what: &str, statement: &str) -> std::result::Result<(), Ended> {
        match self.work.attempt(what, statement)? {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.ended(statement, refusal)),
        }
    }

    fn run(&mut self, what: &str, statement: &str) -> Result<()> {
        match self.work.attempt(what, statement)? {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.refused(statement, refusal)),
        }
    }

    /// A table that is not there any more was dropped by others.
    fn ended(&mut self, statement: &str, refusal: Refusal) -> Ended {
        match refusal.is_of_missing_table() {
            true => {
                let why = "a table was dropped since the look at the start";
                Ended::Left(format!("{why}: {refusal}"))
            }
            false => self.refused(statement, refusal).into(),
        }
    }

    fn refused(&mut self, statement: &str, refusal: Refusal) -> Error {
        if refusal.is_of_privilege() {
            let grants: Vec<String> = self
                .schemas
                .iter()
                .map(|schema| self.work.grant(&format!("{PRIVILEGES} ON {}.*", identifier(schema))))
                .collect();
            return Error::Privilege { what: printable(statement), grant: grants.join("; ") };
        }
        let hint = match refusal.code {
            LOCK_WAIT_TIMEOUT => {
                "; another session uses the table: end its transaction (SHOW PROCESSLIST), or \
                 wait longer with --lock-wait"
            }
            _ => "",
        };
        Error::Refused { what: printable(statement), why: format!("{refusal}{hint}") }
    }
}

/// Constraints by their child, which one statement drops.
fn by_child(constraints: &[Constraint]) -> Vec<Vec<Constraint>> {
    let mut parts: BTreeMap<TableName, Vec<Constraint>> = BTreeMap::new();
    for constraint in constraints {
        parts.entry(constraint.child.name()).or_default().push(constraint.clone());
    }
    parts.into_values().collect()
}

fn lost_parent(constraint: &Constraint) -> Error {
    let (child, parent) = (constraint.child.name(), constraint.parent.name());
    Error::Refused {
        what: printable(&format!("adding the foreign key {} of {child}", constraint.name)),
        why: printable(&format!(
            "its parent {parent} existed when the key was dropped, and this user sees no such \
             table now: {child} would take no more rows. Make the table again, or grant this user \
             SELECT on it; if it is gone for good, delete the key's row from {}.constraints, or \
             add the key all the same with --leave-orphans",
            super::journal::SCHEMA
        )),
    }
}
