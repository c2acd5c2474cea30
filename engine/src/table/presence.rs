//! Who is inside which tables: a [`Presence`] for each handle on transactions.
//!
//! A transaction notes the tables that it enters in the presence of its handle, which no other
//! handle writes. So transactions that use the same table write no memory in common for that. Who
//! needs a table without transactions pays instead: it looks through all presences.
//!
//! # Why no one is overlooked
//! Who wants the table sets its state first, and then locks one presence after the other. Who
//! enters looks at the state and notes the table within one section of its presence's lock. If that
//! section comes before, the note is found; if it comes after, the new state is seen. The same
//! holds for any state that is set before [`Presences::find`] and looked at after
//! [`Presence::enter`]: see [`writes`](super::writes).
//!
//! # Kept handles
//! A handle keeps references to the last tables that it has left, and enters such a table again
//! without counting a reference to it. [`Presences::forget`] ends that for a table that goes, so an
//! idle handle keeps no dropped table's file open.
//!
//! # Locking
//! A shard of the list, then a presence; both are leaves to everything else.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Table;
use super::entrance::State;
use crate::error::Result;
use crate::trx::activity::{Activity, Observed};

/// Tables that a handle keeps a reference to after it has left them.
const KEPT_MAX: usize = 8;

/// Shards of the list.
const SHARDS: usize = 16;

/// What one handle on transactions shows to other threads. On cache lines that it shares with no
/// other.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Presence {
    number: u64,
    activity: Activity,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    /// Addresses of those that it is inside, each of which it has a reference to.
    inside: Vec<usize>,
    /// Some that it was inside, the last one left at the end.
    kept: Vec<Arc<Table>>,
}

fn address(table: &Table) -> usize {
    std::ptr::from_ref(table).addr()
}

impl Presence {
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Enters a table; an error if its entrance is closed. The reference is given back to
    /// [`leave`](Self::leave).
    pub fn enter(&self, table: &Arc<Table>) -> Result<Arc<Table>> {
        table.check_not_discarded()?;
        loop {
            let mut tables = self.tables.lock();
            match table.entrance.state() {
                State::Open => {
                    debug_assert!(!tables.inside.contains(&address(table)));
                    tables.inside.push(address(table));
                    let kept = tables.kept.iter().position(|kept| Arc::ptr_eq(kept, table));
                    return Ok(match kept {
                        Some(at) => tables.kept.remove(at),
                        None => Arc::clone(table),
                    });
                }
                State::Closed => return Err(table.missing()),
                State::Undecided => {}
            }
            // Who decides looks at this presence, too.
            drop(tables);
            table.entrance.await_decision();
        }
    }

    /// Leaves tables.
    pub fn leave(&self, left: impl Iterator<Item = Arc<Table>>) {
        let mut dropped = Vec::new();
        let mut tables = self.tables.lock();
        for table in left {
            let at = tables.inside.iter().rposition(|&inside| inside == address(&table));
            tables.inside.swap_remove(at.expect("a table that is left was entered"));
            if tables.kept.len() == KEPT_MAX {
                dropped.push(tables.kept.remove(0));
            }
            tables.kept.push(table);
        }
        // The last reference to a table closes its file: not within the lock.
        drop(tables);
    }
}

/// The presences of all handles of a database.
#[derive(Default)]
pub(crate) struct Presences {
    next: AtomicU64,
    shards: [Mutex<HashMap<u64, Arc<Presence>>>; SHARDS],
}

impl Presences {
    /// Lists a new presence for as long as the result lives.
    pub fn join(self: &Arc<Self>) -> ListedPresence {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let presence = Arc::new(Presence { number, ..Presence::default() });
        self.shard(number).lock().insert(number, Arc::clone(&presence));
        ListedPresence { presence, list: Arc::clone(self) }
    }

    /// Whether any transaction is inside a table.
    pub fn find(&self, table: &Table) -> bool {
        let is_inside =
            |presence: &Arc<Presence>| presence.tables.lock().inside.contains(&address(table));
        self.shards.iter().any(|shard| shard.lock().values().any(is_inside))
    }

    /// Gives up the references to a table that handles have kept.
    pub fn forget(&self, table: &Table) {
        for shard in &self.shards {
            for presence in shard.lock().values() {
                let mut tables = presence.tables.lock();
                tables.kept.retain(|kept| address(kept) != address(table));
            }
        }
    }

    /// Handles with a transaction.
    pub fn observe(&self) -> Vec<Observed> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().values().filter_map(|presence| presence.activity.observe()));
        }
        all
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Arc<Presence>>> {
        &self.shards[number as usize % SHARDS]
    }
}

/// A presence that is in the list until this is dropped.
pub(crate) struct ListedPresence {
    presence: Arc<Presence>,
    list: Arc<Presences>,
}

impl ListedPresence {
    /// A new one in the same list.
    pub fn another(&self) -> ListedPresence {
        self.list.join()
    }
}

impl std::ops::Deref for ListedPresence {
    type Target = Presence;

    fn deref(&self) -> &Presence {
        &self.presence
    }
}

impl Drop for ListedPresence {
    fn drop(&mut self) {
        self.list.shard(self.presence.number).lock().remove(&self.presence.number);
    }
}
