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

use super::Env;
use crate::error::{Error, Result};
use crate::files::space_file_name;

/// What the catalog says of a space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    /// It is a table's.
    Whole,
    /// It is a table's that has lost changes.
    Lost,
}

/// Whether there is a space, as undo asks.
pub enum FoundSpace {
    /// It is there.
    Space(Arc<Space>),
    /// The catalog has a table there, whose file is missing.
    FileMissing,
    /// It was dropped, or has lost changes.
    Gone,
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
        self.withdraw_announcement(id);
    }

    /// The catalog tells by this that its table in the space `id` has lost changes, and will never be used again.
    pub fn list_lost_space(&self, id: u32) {
        self.listed_spaces.0.write().insert(id, Listed::Lost);
        self.withdraw_announcement(id);
    }

    /// It has none there any more, durably.
    pub fn unlist_space(&self, id: u32) {
        self.listed_spaces.0.write().remove(&id);
    }

    /// Whether the catalog has a table in the space `id` that has lost no changes.
    pub fn lists_space(&self, id: u32) -> bool {
        self.listed_spaces.get(id) == Some(Listed::Whole)
    }

    /// The space `id`, opened if need be. A disk that cannot tell whether its file is there is an error.
    pub fn find_space(&self, id: u32) -> Result<FoundSpace> {
        // What is left of a dropped one lacks what had not been written yet.
        let is_left_behind = || self.unremoved.lock().contains(&id);
        if self.listed_spaces.get(id) == Some(Listed::Lost) || is_left_behind() {
            return Ok(FoundSpace::Gone);
        }
        if self.pool.space(id).is_some() || self.storage.exists(&space_file_name(id))? {
            return self.space(id).map(FoundSpace::Space);
        }
        Ok(if self.lists_space(id) { FoundSpace::FileMissing } else { FoundSpace::Gone })
    }

    /// The same; `None` if the space is gone. If its file is only missing, that is an error.
    pub fn space_unless_dropped(&self, id: u32) -> Result<Option<Arc<Space>>> {
        match self.find_space(id)? {
            FoundSpace::Space(space) => Ok(Some(space)),
            FoundSpace::Gone => Ok(None),
            FoundSpace::FileMissing => Err(Error::format(
                space_file_name(id),
                "the file is missing, and a transaction that changed it waits for it: put it back, or drop the table",
            )),
        }
    }
}
