//! The spaces that the catalog lists: what tells a table that was dropped from one whose file is missing.
//!
//! Undo outlives tables. What it says of a dropped one is passed over, for good. Of one whose file is only not there at the moment, what a
//! rollback needs must be kept, or the file, put back, would show changes that were never committed. What purge would do there is passed
//! over too: the file, put back, keeps entries that nobody can see, and that is all.
//!
//! A table that has lost changes in a recovery counts as dropped, though its file may well be there: it is not what undo takes it to be.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tidepool_pool::Space;

use super::{Env, space_file_name};
use crate::error::{Error, Result};

/// What the catalog says of a space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    /// It is a table's.
    Whole,
    /// It is a table's that has lost changes.
    Lost,
}

/// The spaces whose tables are in the catalog, by id.
#[derive(Default)]
pub(super) struct ListedSpaces(RwLock<HashMap<u32, Listed>>);

impl ListedSpaces {
    fn get(&self, id: u32) -> Option<Listed> {
        self.0.read().get(&id).copied()
    }
}

impl Env {
    /// The catalog tells by this that it has a table in the space `id`.
    pub fn list_space(&self, id: u32) {
        self.listed_spaces.0.write().insert(id, Listed::Whole);
    }

    /// The catalog tells by this that its table in the space `id` has lost changes, and will never be used again.
    pub fn list_lost_space(&self, id: u32) {
        self.listed_spaces.0.write().insert(id, Listed::Lost);
    }

    /// It has none there any more, durably.
    pub fn unlist_space(&self, id: u32) {
        self.listed_spaces.0.write().remove(&id);
    }

    /// Whether the catalog has a table in the space `id` that has lost no changes.
    pub fn lists_space(&self, id: u32) -> bool {
        self.listed_spaces.get(id) == Some(Listed::Whole)
    }

    /// Whether the catalog has a table in the space `id`, whose file is not there. A disk that cannot tell is an error.
    pub fn misses_space(&self, id: u32) -> Result<bool> {
        Ok(self.pool.space(id).is_none()
            && !self.storage.exists(&space_file_name(id))?
            && self.lists_space(id))
    }

    /// The space `id`, opened if need be; `None` if it was dropped, or has lost changes. If its file is only missing, that is an error.
    pub fn space_unless_dropped(&self, id: u32) -> Result<Option<Arc<Space>>> {
        if self.listed_spaces.get(id) == Some(Listed::Lost) {
            return Ok(None);
        }
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
