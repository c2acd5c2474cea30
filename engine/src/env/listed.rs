//! The spaces that the catalog lists: what tells a table that was dropped from one whose file is missing.
//!
//! Undo outlives tables. What it says of a dropped one is passed over, for good. Of one whose file is only not there at the moment, what a
//! rollback needs must be kept, or the file, put back, would show changes that were never committed. What purge would do there is passed
//! over too: the file, put back, keeps entries that nobody can see, and that is all.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::RwLock;
use tidepool_pool::Space;

use super::{Env, space_file_name};
use crate::error::{Error, Result};

/// Ids of the spaces whose tables are in the catalog.
#[derive(Default)]
pub(super) struct ListedSpaces(RwLock<HashSet<u32>>);

impl Env {
    /// The catalog tells by this that it has a table in the space `id`.
    pub fn list_space(&self, id: u32) {
        self.listed_spaces.0.write().insert(id);
    }

    /// It has none there any more, durably, or none that will ever be used again.
    pub fn unlist_space(&self, id: u32) {
        self.listed_spaces.0.write().remove(&id);
    }

    /// Whether the catalog has a table in the space `id`.
    pub fn lists_space(&self, id: u32) -> bool {
        self.listed_spaces.0.read().contains(&id)
    }

    /// Whether the catalog has a table in the space `id`, whose file is not there. A disk that cannot tell is an error.
    pub fn misses_space(&self, id: u32) -> Result<bool> {
        Ok(self.pool.space(id).is_none()
            && !self.storage.exists(&space_file_name(id))?
            && self.lists_space(id))
    }

    /// The space `id`, opened if need be; `None` if it was dropped. If its file is only missing, that is an error.
    pub fn space_unless_dropped(&self, id: u32) -> Result<Option<Arc<Space>>> {
        let name = space_file_name(id);
        if self.pool.space(id).is_some() || self.storage.exists(&name)? {
            return self.space(id).map(Some);
        }
        if self.lists_space(id) {
            return Err(Error::format(
                name,
                "the file is missing, and a transaction that changed it waits for it: put it back, or drop the table",
            ));
        }
        Ok(None)
    }
}
