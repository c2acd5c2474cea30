//! Who waits for a lock at this moment, to be woken when writing has stopped.
//!
//! The log can fail in any thread, with latches and the log's mutexes in hand; so the mutex here is
//! one that nothing but `Owner::wait` is taken under. A waiter enters *before* it asks, under its
//! `Owner::wait`, whether writing has stopped; the failure is published before the list is read. So
//! one of the two sees the other.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Owner;

#[derive(Default)]
pub(super) struct Sleepers(Mutex<HashMap<u64, Arc<Owner>>>);

impl Sleepers {
    pub fn enter(&self, owner: &Arc<Owner>) {
        self.0.lock().insert(owner.number(), Arc::clone(owner));
    }

    pub fn leave(&self, owner: &Owner) {
        self.0.lock().remove(&owner.number());
    }

    /// Has all of them ask anew whether there is a reason to wait.
    pub fn wake_all(&self) {
        self.0.lock().values().for_each(|owner| owner.look_again());
    }
}
