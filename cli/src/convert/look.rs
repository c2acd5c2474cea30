//! Looks at the server: which tables can be converted, which stay and why, and the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;

use indicatif::ProgressBar;

use crate::exit::{Error, Result};
use crate::server::{Refusal, Server};
use crate::terminal::printable;

use super::gather::{check_known, gather, options};
use super::journal;
use super::names::{Chosen, TableName};
use super::plan::{Node, Plan, Role, plan};
use super::rules::{Finding, Weight, findings};
use super::schema::{Constraint, Kind, Table};
use super::statements::{Direction, settings};
use super::trial::{self, try_all};

/// What the user asks for.
#[derive(Debug)]
pub struct Selection {
    pub direction: Direction,
    pub from: Vec<String>,
    /// Empty: everything.
    pub chosen: Vec<Chosen>,
    pub excluded: Vec<Chosen>,
}

impl Selection {
    fn is_from(&self, engine: &str) -> bool {
        self.from.iter().any(|from| from.eq_ignore_ascii_case(engine))
    }

    fn covers(&self, name: &TableName) -> bool {
        (self.chosen.is_empty() || self.chosen.iter().any(|chosen| chosen.covers(name)))
            && !self.excluded.iter().any(|excluded| excluded.covers(name))
    }
}

/// Everything that was seen.
#[derive(Debug)]
pub struct Look {
    pub direction: Direction,
    pub tables: Vec<Table>,
    /// Of tables that were chosen and have one of the engines.
    pub findings: BTreeMap<TableName, Vec<Finding>>,
    pub plan: Plan,
    /// Foreign keys that an earlier run has dropped, and that are missing.
    pub missing: Vec<Constraint>,
    /// Foreign keys of the journal whose parent did not exist when they were dropped.
    pub headless: BTreeSet<(TableName, String)>,
    /// Foreign keys of the journal that exist again.
    pub back_already: Vec<Constraint>,
    /// Foreign keys of the journal whose table is gone.
    pub without_table: Vec<Constraint>,
    /// How many of the chosen tables can't be converted.
    pub blocked: usize,
    /// How many of the chosen tables have the engine already.
    pub done: usize,
    /// Chosen tables of engines that were not asked for, by engine.
    pub others: BTreeMap<String, usize>,
    pub sequences: usize,
    pub views: u64,
    /// Why empty copies could not be tried.
    pub untried: Option<String>,
}

impl Look {
    /// Whether no chosen table keeps its engine, once the plan is carried out. Sequences do, and
    /// work with every engine.
    pub fn is_complete(&self) -> bool {
        self.blocked == 0 && self.plan.left_out.is_empty() && self.others.is_empty()
    }

    /// The facts of a table of the plan.
    ///
    /// # Panics
    /// If it is none.
    pub fn table(&self, name: &TableName) -> &Table {
        self.tables.iter().find(|table| table.name == *name).expect("the plan has found tables")
    }
}

/// Looks.
///
/// # Errors
/// As [`Server::rows`]; [`crate::exit::Error::Usage`] for a name that there is not.
pub fn look(server: &mut Server, selection: &mut Selection, lock_wait_s: u64) -> Result<Look> {
    let noted = journal::read_noted(server)?;
    let mut found = gather(server)?;
    let variables = server.named("SHOW GLOBAL VARIABLES LIKE 'lower_case_table_names'")?;
    if variables.get("lower_case_table_names").is_some_and(|value| value != "0") {
        for chosen in selection.chosen.iter_mut().chain(&mut selection.excluded) {
            *chosen = chosen.spelled(found.tables.iter().map(|table| &table.name));
        }
    }
    let named = selection.from.iter().filter(|from| {
        // That of the other direction may be a plugin that is not there any more.
        !from.eq_ignore_ascii_case(selection.direction.from_engine())
    });
    check_engines(server, named)?;
    check_known(&found, &selection.chosen)?;
    check_known(&found, &selection.excluded)?;
    let headless = noted.iter().filter(|noted| !noted.had_parent);
    let headless = headless.map(|noted| noted.constraint.owned_key()).collect();
    let noted = noted.into_iter().map(|noted| noted.constraint);
    let is_there =
        |noted: &Constraint| found.constraints.iter().any(|there| there.key() == noted.key());
    let (back_already, missing): (Vec<_>, Vec<_>) = noted.partition(is_there);
    let has_table = |constraint: &Constraint| {
        found.tables.iter().any(|table| table.name == constraint.child.name())
    };
    let (missing, without_table): (Vec<_>, Vec<_>) = missing.into_iter().partition(has_table);
    let mut look = Look {
        direction: selection.direction,
        tables: Vec::new(),
        findings: BTreeMap::new(),
        plan: Plan::default(),
        missing,
        headless,
        back_already,
        without_table,
        blocked: 0,
        done: 0,
        others: BTreeMap::new(),
        sequences: 0,
        views: found.views,
        untried: None,
    };
    let mut nodes: Vec<Node> = Vec::new();
    for mut table in found.tables {
        match role(server, selection, &mut table, &mut look)? {
            Some(role) => {
                let (name, engine) = (table.name.clone(), table.engine.clone());
                nodes.push(Node { name, engine, bytes: table.bytes(), role });
                look.tables.push(table);
            }
            // As if it had been dropped before it was listed.
            None => found.constraints.retain(|there| there.child.name() != table.name),
        }
    }
    try_copies(server, &mut look, &mut nodes, &found.constraints, lock_wait_s)?;
    look.plan = plan(&nodes, &found.constraints, &look.missing);
    let blocks = |found: &&Vec<Finding>| found.iter().any(|f| f.weight == Weight::Blocks);
    look.blocked = look.findings.values().filter(blocks).count();
    for (name, why) in &look.plan.left_out {
        let finding = Finding::new(Weight::Blocks, "connected", why.clone());
        look.findings.entry(name.clone()).or_default().push(finding);
    }
    Ok(look)
}

/// Refuses engines that the server does not know, whether they are switched on or not.
fn check_engines<'n>(
    server: &mut Server,
    mut wanted: impl Iterator<Item = &'n String>,
) -> Result<()> {
    let engines: Vec<mysql::Row> = server.rows("SHOW ENGINES", "", "SHOW ENGINES")?;
    let known: Vec<String> =
        engines.iter().filter_map(|row| row.get_opt::<String, _>(0)?.ok()).collect();
    let is_known = |name: &&String| known.iter().any(|known| known.eq_ignore_ascii_case(name));
    match wanted.find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => Err(Error::Usage(format!(
            "--from {name}: the server has no such engine; it has {}",
            known.join(", ")
        ))),
    }
}

/// A line on standard error, if that is a terminal.
fn spinner() -> ProgressBar {
    match std::io::stderr().is_terminal() {
        true => ProgressBar::new_spinner(),
        false => ProgressBar::hidden(),
    }
}

/// What may be done with a table, by the rules; `None` for one that has been dropped since it was
/// listed.
fn role(
    server: &mut Server,
    selection: &Selection,
    table: &mut Table,
    look: &mut Look,
) -> Result<Option<Role>> {
    // A foreign key that is missing needs both of its tables, whatever the user chose.
    let is_needed = look.missing.iter().any(|constraint| constraint.touches(&table.name));
    let is_chosen = selection.covers(&table.name);
    Ok(Some(if table.kind == Kind::Sequence {
        look.sequences += usize::from(is_chosen);
        Role::Stays("a sequence".into())
    } else if table.engine.eq_ignore_ascii_case(selection.direction.engine()) {
        look.done += usize::from(is_chosen);
        Role::Done
    } else if !is_needed && !is_chosen {
        Role::Stays("it is not among the chosen tables".into())
    } else if !selection.is_from(&table.engine) {
        if is_chosen {
            *look.others.entry(table.engine.clone()).or_default() += 1;
        }
        Role::Stays(format!("its engine is {}", table.engine))
    } else {
        let found = match options(server, table)? {
            Ok(()) => findings(table, selection.direction),
            Err(refusal) if refusal.is_of_missing_table() => return Ok(None),
            Err(refusal) => vec![unseen(&refusal)],
        };
        let blocks = found.iter().find(|finding| finding.weight == Weight::Blocks);
        let role = blocks.map_or(Role::Alter, |finding| Role::Stays(finding.text.clone()));
        look.findings.insert(table.name.clone(), found);
        role
    }))
}

/// A table whose definition the server does not show.
fn unseen(refusal: &Refusal) -> Finding {
    let text = format!("its definition can't be seen (SHOW CREATE TABLE): {refusal}");
    Finding::new(Weight::Blocks, "unseen", text)
}

/// What may be done by the server's own answer.
fn try_copies(
    server: &mut Server,
    look: &mut Look,
    nodes: &mut [Node],
    existing: &[Constraint],
    lock_wait_s: u64,
) -> Result<()> {
    if look.direction == Direction::ToTidepool && !server.kind().tidepool {
        look.untried = Some("Tidepool is not loaded".into());
        return Ok(());
    }
    // A session apart: the trial keeps what it does out of the binary log.
    let mut session = Server::connect(&server.target().clone())?;
    for setting in settings(lock_wait_s) {
        let _ = session.attempt("settings", &setting.statement)?;
    }
    let constraints: Vec<Constraint> = existing.iter().chain(&look.missing).cloned().collect();
    // Those that are done take part: foreign keys may lead to them.
    let is_tried = |node: &Node| {
        node.role == Role::Alter
            || (node.role == Role::Done
                && constraints.iter().any(|constraint| {
                    constraint.touches(&node.name)
                        && look.missing.iter().any(|missing| missing.key() == constraint.key())
                }))
    };
    let tables: Vec<&Table> = look
        .tables
        .iter()
        .zip(nodes.iter())
        .filter(|(_, node)| is_tried(node))
        .map(|(table, _)| table)
        .collect();
    let progress = spinner();
    let trial::Refused { tables: refused, constraints, untried } =
        try_all(&mut session, &tables, &constraints, look.direction, |name| {
            progress.set_message(printable(&format!("trying an empty copy of {name}")));
            progress.tick();
        })?;
    progress.finish_and_clear();
    look.untried = untried;
    for (name, why, rule) in refused
        .into_iter()
        .map(|(name, why)| (name, why, "refused"))
        .chain(constraints.into_iter().map(|(name, why)| (name, why, "foreign_key_refused")))
    {
        if let Some(node) = nodes.iter_mut().find(|node| node.name == name)
            && node.role == Role::Alter
        {
            node.role = Role::Stays(why.clone());
        }
        let finding = Finding::new(Weight::Blocks, rule, why);
        look.findings.entry(name).or_default().insert(0, finding);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_table_that_keeps_its_engine_is_not_done() {
        let look = || Look {
            direction: Direction::ToTidepool,
            tables: Vec::new(),
            findings: BTreeMap::new(),
            plan: Plan::default(),
            missing: Vec::new(),
            headless: BTreeSet::new(),
            back_already: Vec::new(),
            without_table: Vec::new(),
            blocked: 0,
            done: 3,
            others: BTreeMap::new(),
            sequences: 1,
            views: 0,
            untried: None,
        };
        assert!(look().is_complete());
        assert!(!Look { blocked: 1, ..look() }.is_complete());
        let others = BTreeMap::from([("MyISAM".to_owned(), 1)]);
        assert!(!Look { others, ..look() }.is_complete());
    }
}
