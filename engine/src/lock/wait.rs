//! The wait-for graph.
//!
//! Nodes are the owners that wait at this moment. Edges are computed when asked for, from the lock
//! queues, so they are never stale.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::deadlock::Deadlock;
use super::keys::KeyLocks;
use super::owner::Owner;

/// What an owner waits for.
#[derive(Clone)]
pub(super) enum Target {
    /// Its turn in the queue of a key.
    Key { tree: u32, key: Box<[u8]> },
    /// The end of one of these.
    End(Vec<Arc<Owner>>),
}

#[derive(Default)]
pub(super) struct WaitGraph {
    waiting: Mutex<HashMap<u64, (Arc<Owner>, Target)>>,
}

/// What comes of a wait's beginning.
#[derive(Default)]
pub(super) struct Entered {
    /// Who must not go on waiting: either the one that has begun to, or others.
    pub victims: Vec<Arc<Owner>>,
    /// The cycles that it closed.
    pub deadlocks: Vec<Deadlock>,
}

impl WaitGraph {
    /// Adds `owner`, and finds the cycles that this closes: one that asks may wait for several, and
    /// each may wait for it.
    pub fn enter(&self, owner: &Arc<Owner>, target: Target, keys: &KeyLocks) -> Entered {
        let mut deadlocks = Vec::new();
        let mut waiting = self.waiting.lock();
        let before = waiting.insert(owner.number(), (Arc::clone(owner), target));
        debug_assert!(before.is_none(), "one wait at a time");
        let mut victims: Vec<(Arc<Owner>, Target)> = Vec::new();
        while let Some(cycle) = find_cycle(&waiting, owner, keys) {
            if !owner.is_waiting() {
                break;
            }
            // One that will be rolled back in any case costs nothing. The first of equals wins in
            // `min_by_key`, and the cycle begins with the one that asks.
            let victim =
                cycle.iter().min_by_key(|member| (!member.gives_way(), member.undo_records()));
            let victim = victim.expect("a cycle has members").number();
            deadlocks.push(Deadlock::of(&cycle, victim));
            // It waits no more: other cycles through it are broken as well.
            let victim = waiting.remove(&victim).expect("members of a cycle wait");
            if victim.0.number() == owner.number() {
                // That breaks all of them.
                waiting.extend(victims.into_iter().map(|other| (other.0.number(), other)));
                return Entered { victims: vec![victim.0], deadlocks };
            }
            victims.push(victim);
        }
        let victims = victims.into_iter().map(|victim| victim.0).collect();
        Entered { victims, deadlocks }
    }

    pub fn leave(&self, owner: &Owner) {
        self.waiting.lock().remove(&owner.number());
    }
}

/// Depth-first search for a path from `start` back to it; its members, `start` first. In a long
/// queue each looks at the one before it, not at all: a row that a thousand want would else cost a
/// million looks for each of them.
fn find_cycle(
    waiting: &HashMap<u64, (Arc<Owner>, Target)>,
    start: &Arc<Owner>,
    keys: &KeyLocks,
) -> Option<Vec<Arc<Owner>>> {
    let blockers = |owner: &Owner| -> Vec<Arc<Owner>> {
        match waiting.get(&owner.number()) {
            None => Vec::new(),
            Some((_, Target::Key { tree, key })) => {
                let is_known = |other: &Owner| waiting.contains_key(&other.number());
                keys.nearest_blockers(owner, *tree, key, is_known)
            }
            Some((_, Target::End(others))) => others.clone(),
        }
    };
    let mut seen = HashSet::from([start.number()]);
    let mut path = vec![Arc::clone(start)];
    let mut todo = vec![blockers(start)];
    while let Some(next) = todo.last_mut() {
        match next.pop() {
            Some(owner) if owner.number() == start.number() => return Some(path),
            Some(owner) => {
                if seen.insert(owner.number()) {
                    todo.push(blockers(&owner));
                    path.push(owner);
                }
            }
            None => {
                todo.pop();
                path.pop();
            }
        }
    }
    None
}
