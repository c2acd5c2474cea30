//! The order of the statements: a pure function from tables and foreign keys to groups.
//!
//! A server refuses `ALTER TABLE … ENGINE` of a table that a foreign key references (error 1217,
//! also with `foreign_key_checks = 0`) or that has one, and a foreign key has both of its sides in
//! one engine. So tables that foreign keys connect, directly or through others, are one group:
//!
//! ```text
//! drop every foreign key that touches a table of the group
//! alter its tables, parents first; a child's ALTER adds the foreign keys to parents that are done
//! add the others again: those of cycles
//! ```
//!
//! To add a foreign key copies the child, so one that comes with the ALTER saves a second copy.
//!
//! # Invariants
//! * No table is altered while a foreign key on either side of it exists.
//! * Each foreign key that was dropped is added again: by its group, and where the command ended
//!   between, by the next plan, which gets it as `missing`.
//! * No foreign key is added whose sides are in different engines.
//! * A group with a table that can't be altered is left as it is.

use std::collections::{BTreeMap, BTreeSet};

use super::names::TableName;
use super::schema::Constraint;

/// What the plan may do with a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Alter it.
    Alter,
    /// It has the engine that is wanted.
    Done,
    /// It stays as it is, for this reason.
    Stays(String),
}

/// A table, as far as the order depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: TableName,
    pub engine: String,
    pub bytes: u64,
    pub role: Role,
}

/// Tables that are converted together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Tables that take part: those to alter, and those that a constraint to add touches.
    pub tables: Vec<TableName>,
    pub drop: Vec<Constraint>,
    pub alter: Vec<Alter>,
    /// What no ALTER adds, and what an earlier run has dropped.
    pub add: Vec<Constraint>,
}

/// One table that gets the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alter {
    pub name: TableName,
    /// Of the group's dropped constraints, those that the same statement can add.
    pub add: Vec<Constraint>,
}

impl Group {
    /// Every constraint that the group adds.
    pub fn all_added(&self) -> impl Iterator<Item = &Constraint> {
        self.alter.iter().flat_map(|alter| &alter.add).chain(&self.add)
    }

    pub fn has_constraints(&self) -> bool {
        self.all_added().next().is_some()
    }

    /// Those of an earlier run: sessions may have written while they were missing.
    pub fn of_earlier_run(&self) -> impl Iterator<Item = &Constraint> {
        self.add.iter().filter(|constraint| !self.drop.contains(constraint))
    }
}

/// All groups, and the tables that could be altered by themselves and stay because of others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The smallest first: trouble shows early, and estimates get better.
    pub groups: Vec<Group>,
    /// With the reason.
    pub left_out: Vec<(TableName, String)>,
}

/// Orders the work. `missing` has the constraints that an earlier run has dropped and that are not
/// there.
pub fn plan(nodes: &[Node], existing: &[Constraint], missing: &[Constraint]) -> Plan {
    let by_name: BTreeMap<&TableName, &Node> =
        nodes.iter().map(|node| (&node.name, node)).collect();
    let mut plan = Plan::default();
    for component in components(nodes, existing.iter().chain(missing)) {
        let members: Vec<&Node> = component.iter().map(|name| by_name[name]).collect();
        let within = |constraint: &&Constraint| {
            component.contains(&constraint.child.name())
                || component.contains(&constraint.parent.name())
        };
        let stays = members.iter().find_map(|node| match &node.role {
            Role::Stays(why) => Some((&node.name, why)),
            Role::Alter | Role::Done => None,
        });
        let mut group = Group::default();
        let missing = missing.iter().filter(within);
        if let Some((name, why)) = stays {
            for node in members.iter().filter(|node| node.role == Role::Alter) {
                let why = format!("foreign keys connect it with {name}, which stays: {why}");
                plan.left_out.push((node.name.clone(), why));
            }
            // What was dropped comes back where it can.
            let engine = |name: &TableName| by_name.get(name).map(|node| &node.engine);
            group.add = missing
                .filter(|constraint| {
                    let (child, parent) = (constraint.child.name(), constraint.parent.name());
                    engine(&parent).is_none() || engine(&child) == engine(&parent)
                })
                .cloned()
                .collect();
        } else {
            let mut alter: Vec<&Node> =
                members.iter().copied().filter(|node| node.role == Role::Alter).collect();
            alter.sort_by(|a, b| (a.bytes, &a.name).cmp(&(b.bytes, &b.name)));
            let is_altered = |name: &TableName| alter.iter().any(|node| node.name == *name);
            group.drop = existing
                .iter()
                .filter(|constraint| {
                    is_altered(&constraint.child.name()) || is_altered(&constraint.parent.name())
                })
                .cloned()
                .collect();
            let names = alter.iter().map(|node| node.name.clone()).collect();
            group.alter = parents_first(names, &group.drop);
            let is_added =
                |constraint: &Constraint| group.alter.iter().any(|a| a.add.contains(constraint));
            let rest = group.drop.iter().filter(|constraint| !is_added(constraint));
            group.add = rest.chain(missing).cloned().collect();
        }
        let mut tables: BTreeSet<TableName> =
            group.alter.iter().map(|alter| alter.name.clone()).collect();
        for constraint in group.all_added() {
            tables.extend([constraint.child.name(), constraint.parent.name()]);
        }
        // A parent that is not there can be named by a constraint, and by nothing else.
        group.tables = tables.into_iter().filter(|name| by_name.contains_key(name)).collect();
        if !group.alter.is_empty() || !group.add.is_empty() {
            plan.groups.push(group);
        }
    }
    let bytes =
        |group: &Group| group.alter.iter().map(|alter| by_name[&alter.name].bytes).sum::<u64>();
    plan.groups.sort_by(|a, b| (bytes(a), &a.tables).cmp(&(bytes(b), &b.tables)));
    plan
}

/// Orders tables such that parents come before their children, except in cycles, and gives each the
/// dropped constraints whose parent is ready when it is altered.
fn parents_first(mut waiting: Vec<TableName>, dropped: &[Constraint]) -> Vec<Alter> {
    let mut ordered: Vec<Alter> = Vec::new();
    while !waiting.is_empty() {
        let waits = |name: &TableName| {
            dropped
                .iter()
                .filter(|constraint| constraint.child.name() == *name)
                .map(|constraint| constraint.parent.name())
                .filter(|parent| parent != name && waiting.contains(parent))
                .count()
        };
        // In a cycle, the one with the fewest constraints that have to come later.
        let next = (0..waiting.len()).min_by_key(|at| waits(&waiting[*at]));
        let name = waiting.remove(next.expect("one is waiting"));
        let add = dropped
            .iter()
            .filter(|constraint| constraint.child.name() == name)
            .filter(|constraint| !waiting.contains(&constraint.parent.name()))
            .cloned()
            .collect();
        ordered.push(Alter { name, add });
    }
    ordered
}

/// Tables that constraints connect. A side that is no node connects nothing.
fn components<'a>(
    nodes: &[Node],
    constraints: impl Iterator<Item = &'a Constraint>,
) -> Vec<BTreeSet<TableName>> {
    let index: BTreeMap<&TableName, usize> =
        nodes.iter().enumerate().map(|(at, node)| (&node.name, at)).collect();
    // Each points to a member of its component; the root points to itself.
    let mut above: Vec<usize> = (0..nodes.len()).collect();
    fn root(above: &mut [usize], mut at: usize) -> usize {
        while above[at] != at {
            above[at] = above[above[at]];
            at = above[at];
        }
        at
    }
    for constraint in constraints {
        let sides = (index.get(&constraint.child.name()), index.get(&constraint.parent.name()));
        if let (Some(&child), Some(&parent)) = sides {
            let (child, parent) = (root(&mut above, child), root(&mut above, parent));
            above[child] = parent;
        }
    }
    let mut found: BTreeMap<usize, BTreeSet<TableName>> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        found.entry(root(&mut above, at)).or_default().insert(node.name.clone());
    }
    found.into_values().collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
