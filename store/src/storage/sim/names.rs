//! The simulated directory tree, as programs see it and as the disk holds it.
//!
//! A change of names is seen at once and durable once every directory it touches has been synced.
//! A change is atomic: a rename survives a crash as a whole or not at all. Changes of the same name
//! survive in order; changes of different names survive independently of each other.

use std::collections::{BTreeMap, BTreeSet};

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    File(u64),
}

/// One change of names.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Create(String, Node),
    Remove(String),
    Rename(String, String),
}

impl NameChange {
    fn names(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            NameChange::Create(name, _) | NameChange::Remove(name) => (name, None),
            NameChange::Rename(from, to) => (from, Some(to)),
        };
        std::iter::once(first.as_str()).chain(second.map(String::as_str))
    }

    fn shares_a_name_with(&self, other: &NameChange) -> bool {
        self.names().any(|name| other.names().any(|other| name == other))
    }

    fn apply(&self, tree: &mut BTreeMap<String, Node>) {
        match self {
            NameChange::Create(name, node) => {
                tree.insert(name.clone(), *node);
            }
            NameChange::Remove(name) => {
                tree.remove(name);
            }
            NameChange::Rename(from, to) => {
                if let Some(node) = tree.remove(from) {
                    tree.insert(to.clone(), node);
                }
            }
        }
    }
}

/// A change that a crash may still undo.
#[derive(Clone, Debug)]
struct Pending {
    change: NameChange,
    /// Position in the storage's order of all changes.
    order: u64,
    unsynced_dirs: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    live: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    pending: Vec<Pending>,
}

/// The directory part of a name ("" = the root).
pub(super) fn parent_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

impl Names {
    pub(super) fn get(&self, name: &str) -> Option<Node> {
        self.live.get(name).copied()
    }

    pub(super) fn is_directory(&self, dir: &str) -> bool {
        dir.is_empty() || self.get(dir) == Some(Node::Directory)
    }

    /// Names directly in `dir`, sorted.
    pub(super) fn list(&self, dir: &str) -> Vec<String> {
        let here = self.live.keys().filter(|name| parent_of(name) == dir);
        here.map(|name| name.rsplit('/').next().unwrap_or(name).to_owned()).collect()
    }

    /// Makes a change seen, not durable.
    pub(super) fn change(&mut self, change: NameChange, order: u64) {
        change.apply(&mut self.live);
        let mut unsynced_dirs: Vec<_> =
            change.names().map(|name| parent_of(name).to_owned()).collect();
        unsynced_dirs.dedup();
        self.pending.push(Pending { change, order, unsynced_dirs });
    }

    /// Makes the changes in `dir` durable, and the earlier changes of the same names with them.
    pub(super) fn sync(&mut self, dir: &str) {
        for pending in &mut self.pending {
            pending.unsynced_dirs.retain(|unsynced| unsynced != dir);
        }
        let mut due: Vec<bool> =
            self.pending.iter().map(|pending| pending.unsynced_dirs.is_empty()).collect();
        for later in (0..due.len()).rev() {
            for earlier in 0..later {
                let (a, b) = (&self.pending[earlier].change, &self.pending[later].change);
                due[earlier] |= due[later] && a.shares_a_name_with(b);
            }
        }
        let mut due = due.into_iter();
        let durable = &mut self.durable;
        self.pending.retain(|pending| {
            let due = due.next() == Some(true);
            if due {
                pending.change.apply(durable);
            }
            !due
        });
    }

    /// The order of the oldest change that a crash may undo.
    pub(super) fn first_pending_order(&self) -> Option<u64> {
        self.pending.first().map(|pending| pending.order)
    }

    /// Whether a crash or a program may still bring up this file.
    pub(super) fn mention(&self, inode: u64) -> bool {
        let node = Node::File(inode);
        self.live.values().chain(self.durable.values()).any(|&other| other == node)
            || self.pending.iter().any(
                |pending| matches!(pending.change, NameChange::Create(_, other) if other == node),
            )
    }

    /// The files that have a name at present.
    pub(super) fn live_files(&self) -> impl Iterator<Item = u64> {
        self.live.values().filter_map(|node| match node {
            Node::File(inode) => Some(*inode),
            Node::Directory => None,
        })
    }

    /// The tree after a crash in which `survives` decides, by its order, over each unsynced change.
    pub(super) fn after_crash(&self, mut survives: impl FnMut(u64) -> bool) -> Names {
        let mut tree = self.durable.clone();
        let mut lost: BTreeSet<&str> = BTreeSet::new();
        for pending in &self.pending {
            // Asked in any case, so that the draws do not depend on the outcome.
            let survives = survives(pending.order);
            if survives && !pending.change.names().any(|name| lost.contains(name)) {
                pending.change.apply(&mut tree);
            } else {
                lost.extend(pending.change.names());
            }
        }
        // What lies in a lost directory is lost, at any depth: parents sort before their children.
        let mut reachable = BTreeMap::new();
        for (name, node) in tree {
            let parent = parent_of(&name);
            if parent.is_empty() || reachable.get(parent) == Some(&Node::Directory) {
                reachable.insert(name, node);
            }
        }
        Names { live: reachable.clone(), durable: reachable, pending: Vec::new() }
    }
}
