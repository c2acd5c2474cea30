//! Writing, by the parts that do it: batches of dirty pages, the cleaner, the upkeep of files.

use std::sync::Arc;
use std::time::Duration;

use super::Pool;
use crate::error::{Error, Result};
use crate::page::Lsn;
use crate::page_compression::PageCompression;
use crate::space::Space;
use crate::upkeep::PackedUsage;
use crate::write_ahead::WriteAhead;

impl Pool {
    /// Names the redo log that page writes must wait for. Without one, they wait for nothing.
    pub fn set_write_ahead(&self, log: Arc<dyn WriteAhead>) {
        self.core.set_write_ahead(Some(log));
    }

    /// Lets go of the redo log (which usually refers to the pool, in a circle).
    pub fn clear_write_ahead(&self) {
        self.core.set_write_ahead(None);
    }

    // Dirty pages.

    /// Where the redo begins that the dirty pages need; `None` if none is dirty.
    pub fn oldest_dirty_lsn(&self) -> Option<Lsn> {
        self.core.oldest_dirty_lsn()
    }

    /// Asks the cleaner to write all pages whose changes begin before `target`.
    pub fn set_checkpoint_pressure(&self, target: Lsn) {
        self.cleaner.set_checkpoint_target(target);
    }

    /// Writes up to `max_pages` dirty pages whose changes begin before `lsn`, oldest first; returns
    /// how many are clean now that were not. Pages latched exclusively by others are passed over.
    /// On an error some pages may have been written all the same; those that could not be stay
    /// dirty, to be tried again.
    pub fn flush_up_to(&self, lsn: Lsn, max_pages: usize) -> Result<usize> {
        self.flusher.flush_up_to(lsn, max_pages)
    }

    /// Writes all dirty pages. Waits for latched ones, but not for ever: [`Error::PagesInUse`].
    pub fn flush_all(&self) -> Result<()> {
        self.flusher.flush_all()
    }

    /// Writes all dirty pages of a space.
    pub fn flush_space(&self, space: &Space) -> Result<()> {
        self.flusher.flush_space(space)
    }

    /// One round of the cleaner: writes up to a batch of cold dirty pages if free frames run short
    /// (and evicts them), and up to a batch of the oldest if the redo log asked for it or too much
    /// is dirty. Returns how many were written.
    pub fn run_cleaner_step(&self) -> Result<usize> {
        self.cleaner.run_step()
    }

    /// Why the last page that could not be written was not. Others may have been written since;
    /// `None` once a batch was written and no page is left whose write failed.
    pub fn last_write_error(&self) -> Option<Error> {
        self.flusher.last_write_error()
    }

    /// How pages are compressed from now on.
    pub fn page_compression(&self) -> PageCompression {
        self.core.page_compression()
    }

    /// Changes it.
    pub fn set_page_compression(&self, compression: PageCompression) {
        self.core.set_page_compression(compression);
    }

    // Files.

    /// Whether pages of the space could not be written, and are still dirty. Waits for a batch
    /// under way.
    pub fn has_unwritten_pages(&self, space: u32) -> bool {
        self.flusher.has_unwritten(space)
    }

    /// What the packed files of the open spaces take.
    pub fn packed_usage(&self) -> PackedUsage {
        self.upkeep.usage()
    }

    /// The newest durable run of each packed file, by space.
    pub fn newest_runs(&self) -> Vec<(u32, u64)> {
        let run = |space: &Arc<Space>| (space.id(), space.file().usage().sequence);
        self.core.kept_spaces().iter().map(run).collect()
    }

    /// The greatest LSN of a page that was made durable in the mirror of each space that has one,
    /// by space.
    pub fn newest_mirrored(&self) -> Vec<(u32, Lsn)> {
        let newest = |space: &Arc<Space>| Some((space.id(), space.mirror()?.newest_lsn()));
        self.core.kept_spaces().iter().filter_map(newest).collect()
    }

    /// Does one thing that is due: a checkpoint of a file, or a segment emptied. Returns how long
    /// to rest before the next; `None` if nothing is due.
    pub fn run_upkeep_step(&self) -> Result<Option<Duration>> {
        self.upkeep.run_step()
    }

    /// Writes a checkpoint of each packed file that was changed since its last one: so an open need
    /// follow no run, and what is spoilt later in one costs its pages alone.
    ///
    /// # Errors
    /// Of the first file that can't be written; the others have their checkpoint.
    pub fn checkpoint_files(&self) -> Result<()> {
        self.upkeep.checkpoint_files()
    }
}
