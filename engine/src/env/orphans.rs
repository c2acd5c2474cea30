//! Files in `tables/` that no table has: which are known to be leftovers, and what becomes of the
//! others.
//!
//! A crash in the middle of CREATE or DROP leaves a file that the catalog doesn't list. So does a
//! catalog that is older than its tables, and then the file holds data that is needed. What
//! distinguishes them apart is the log: it says which files it creates, and which tables are about
//! to come or to go, before that happens; and goes on saying so, whatever checkpoints come, until
//! that is over ([pending spaces](crate::redo)). Only what it names is removed.

use tidepool_pool::page;
use tidepool_pool::storage::AlignedBuf;

use super::Env;
use crate::error::Result;
use crate::files::{ORPHANS_DIR, TABLES_DIR, space_file_name, space_of_file};

impl Env {
    /// Ids of the spaces that have a file in `tables/`, in use or not: what a crash may have left
    /// there and no catalog knows can be found by this. Files that no space can have belong to no
    /// table business but the administrator's.
    pub fn table_space_files(&self) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for name in self.storage.list(TABLES_DIR)? {
            match space_of_file(&name) {
                Some(id) => ids.push(id),
                None if name == ORPHANS_DIR => {}
                None => {
                    tracing::warn!(name, "not the name of a table's file in {TABLES_DIR}/: ignored")
                }
            }
        }
        Ok(ids)
    }

    /// To be called before the file of a new table is made, and before a transaction takes a table
    /// off the catalog: should a crash come between that and the end of it, the next opening knows
    /// that the file is not wanted unless the catalog has it. What ends it is
    /// [`Env::register_space`], [`Env::forget_space`], or, if nothing came of it,
    /// [`Env::remove_pending_space`].
    pub fn add_pending_space(&self, id: u32) -> Result<()> {
        self.wait_for_redo_room()?;
        self.redo.add_pending_space(id);
        Ok(())
    }

    /// The statement is over, with or without success: the space is pending no longer.
    pub fn remove_pending_space(&self, id: u32) {
        self.redo.remove_pending_space(id);
    }

    /// Removes the file of a space that no table has any more, if it is there. Should that fail,
    /// the close tries again.
    pub fn forget_space(&self, id: u32) {
        if let Err(error) = self.try_to_forget(id) {
            tracing::warn!(space = id, %error, "the file of a dropped table stays for now");
            self.unremoved.lock().insert(id);
            // It may be one that nothing was ever written to, and that the log has never named.
            self.redo.add_pending_space(id);
        }
    }

    fn try_to_forget(&self, id: u32) -> Result<()> {
        if self.storage.exists(&space_file_name(id))? {
            self.drop_space(id)?;
        } else {
            // An earlier try may have removed it, and not have made that durable.
            self.storage.sync_dir(TABLES_DIR)?;
        }
        self.redo.remove_pending_space(id);
        Ok(())
    }

    /// Tries once more to remove the files that could not be. Those that still can't be removed
    /// stay pending.
    pub(super) fn forget_the_rest(&self) {
        let unremoved = std::mem::take(&mut *self.unremoved.lock());
        for id in unremoved {
            if let Err(error) = self.try_to_forget(id) {
                tracing::warn!(space = id, %error, "the file of a dropped table stays until the next start");
            }
        }
    }

    /// Whether a space that no catalog lists is known to be the rest of an unfinished creation or
    /// removal: the log that was replayed says so, or nothing was ever written to it.
    pub fn is_leftover(&self, id: u32) -> Result<bool> {
        if self.unfinished_spaces.contains(&id) {
            return Ok(true);
        }
        let mut page = AlignedBuf::zeroed(self.page_size());
        self.space(id)?.read_past_pool(0, &mut page)?;
        Ok(page::is_zero(&page))
    }

    /// Takes a space out of use and keeps its file, under the name that is returned. No thread may
    /// use the space any more.
    ///
    /// The log has no word about this. A record that deletes the space would have the next recovery
    /// remove the file, if it was put back meanwhile; without one, there must be no change of the
    /// space left in the log that recovery would miss the file for.
    pub fn set_space_aside(&self, id: u32) -> Result<String> {
        // What was recovered belongs to it. A file that can't be opened has got nothing.
        if let Some(space) = self.pool.space(id) {
            self.pool.close_space(&space, false)?;
        }
        self.checkpoint_all()?;
        let orphans_dir = format!("{TABLES_DIR}/{ORPHANS_DIR}");
        self.storage.create_dir(&orphans_dir)?;
        self.storage.sync_dir(TABLES_DIR)?;
        let name = space_file_name(id);
        let mut number = self.redo.next_lsn().0;
        let aside = loop {
            let aside = format!("{orphans_dir}/{id:08x}-{number}.tpd");
            if !self.storage.exists(&aside)? {
                break aside;
            }
            number += 1;
        };
        self.storage.rename(&name, &aside)?;
        self.storage.sync_dir(&orphans_dir)?;
        self.storage.sync_dir(TABLES_DIR)?;
        Ok(aside)
    }
}
