//! The spaces that the catalog lists. They distinguish a dropped table from one whose file is
//! missing.
//!
//! Undo records outlive tables. Undo for a dropped table is skipped. Undo for a table whose file is
//! merely missing is kept for a rollback: else the file, put back, would show changes that were
//! never committed. Purge skips such a table: the file, put back, has entries that no reader can
//! see, and no other harm is done.
//!
//! A table that has lost changes in a recovery counts as dropped, though its file may be there: its
//! content is not what the undo records assume.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tidepool_pool::Space;

use super::Env;
use crate::error::{Error, Remedy, Result};
use crate::files::space_file_name;

/// What the catalog says of a space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Registered {
    /// It is a table's.
    Whole,
    /// It is a table's that has lost changes.
    Lost,
}

/// Whether there is a space, as undo asks.
pub enum FoundSpace {
    Space(Arc<Space>),
    /// The catalog has a table there, whose file is missing.
    FileMissing,
    /// It was dropped, or has lost changes.
    Gone,
}

/// The spaces whose tables are in the catalog, by id.
#[derive(Default)]
pub(super) struct SpaceRegistry(RwLock<HashMap<u32, Registered>>);

impl SpaceRegistry {
    fn get(&self, id: u32) -> Option<Registered> {
        self.0.read().get(&id).copied()
    }
}

impl Env {
    /// Notes that the catalog has a table in the space `id`.
    pub fn register_space(&self, id: u32) {
        self.space_registry.0.write().insert(id, Registered::Whole);
        self.remove_pending_space(id);
    }

    /// Notes that the catalog's table in the space `id` has lost changes, and will never
    /// be used again.
    pub fn register_lost_space(&self, id: u32) {
        self.space_registry.0.write().insert(id, Registered::Lost);
        self.remove_pending_space(id);
    }

    /// It has none there any more, durably.
    pub fn unregister_space(&self, id: u32) {
        self.space_registry.0.write().remove(&id);
    }

    /// Whether the catalog has a table in the space `id` that has lost no changes.
    pub fn has_registered_space(&self, id: u32) -> bool {
        self.space_registry.get(id) == Some(Registered::Whole)
    }

    /// The spaces of tables that have lost no changes.
    pub fn registered_spaces(&self) -> Vec<u32> {
        let all = self.space_registry.0.read();
        all.iter().filter(|(_, of)| **of == Registered::Whole).map(|(id, _)| *id).collect()
    }

    /// The space `id`, opened if need be. A disk that cannot tell whether its file is there is an
    /// error.
    pub fn find_space(&self, id: u32) -> Result<FoundSpace> {
        // What is left of a dropped one lacks what had not been written yet.
        let is_left_behind = || self.unremoved.lock().contains(&id);
        if self.space_registry.get(id) == Some(Registered::Lost) || is_left_behind() {
            return Ok(FoundSpace::Gone);
        }
        if self.pool.space(id).is_some() || self.storage.exists(&space_file_name(id))? {
            return self.space(id).map(FoundSpace::Space);
        }
        Ok(if self.has_registered_space(id) { FoundSpace::FileMissing } else { FoundSpace::Gone })
    }

    /// The same; `None` if the space is gone. If its file is only missing, that is an error.
    pub fn space_unless_dropped(&self, id: u32) -> Result<Option<Arc<Space>>> {
        match self.find_space(id)? {
            FoundSpace::Space(space) => Ok(Some(space)),
            FoundSpace::Gone => Ok(None),
            FoundSpace::FileMissing => Err(Error::format(
                space_file_name(id),
                "the file is missing, and a transaction that changed it waits for it",
                Remedy::PutBackOrDrop,
            )),
        }
    }
}
