//! What can still be read of a damaged directory, entry by entry, and what can not.
//!
//! # How
//! A tree is walked from its root by its own pages, not through the engine: each page is read from
//! its file as
//! recovery has left it, and trusted only if its checksum, its address, its place in the tree and
//! its inside are right.
//! A leaf that is broken is a *gap*: the keys that it held lie between the separators around it in
//! its parent. An
//! inner node that is broken hides its subtree, but not the leaves in it: each says its tree and
//! its fences. So all of
//! the file is searched for those between the node's separators (`rescue`), and what no leaf covers
//! is the gap.
//!
//! # Versions
//! With the engine and its undo log open, an entry gives the version that was committed last: the
//! version before
//! that of an
//! unfinished transaction is in undo. Where that can't be read the entry is lost. Without
//! them it is unknown who had
//! committed: the newest version is given, and counted as unsure.
//!
//! # Invariants
//! Every entry is given once. No entry of a broken page is given. Every key of the tree is given or
//! lies in a gap, or
//! is listed as lost.

mod catalog;
mod rescue;
mod walk;

use tidepool_pool::page;

use super::{Inspection, ProgressFn};
use crate::catalog::TableDef;
use crate::error::Result;

/// Entries that are listed as lost, each by its key; the others are counted.
pub const LOST_ENTRIES_MAX: usize = 10_000;

/// A table, as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SalvageTable {
    /// Its name; of a file that no table has, the file's.
    pub name: String,
    /// Its indexes, the clustered one first, and what the layer above keeps with it; none for a
    /// file that no table has.
    pub def: Option<TableDef>,
    /// Number of its space.
    pub space: u32,
    /// Tree id and root page of its clustered index, if they are known.
    pub clustered: Option<(u32, u32)>,
    /// A recovery could not make changes of it that the log had, at this or at an earlier start:
    /// its pages are whole, and may be of different moments.
    pub lost_changes: bool,
}

/// Keys that can't be read: those from `lower` on and below `upper`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The first key; empty: from the beginning.
    pub lower: Vec<u8>,
    /// The key behind the last one; none: to the end.
    pub upper: Option<Vec<u8>>,
    /// The page that held them, if that is known.
    pub page: Option<u32>,
    /// What is wrong with it.
    pub why: String,
}

/// An entry whose key can be read, and its value not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostEntry {
    /// Its key.
    pub key: Vec<u8>,
    /// What is wrong, with file and page.
    pub why: String,
}

/// What came of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Entries given.
    pub entries: u64,
    /// Leaves read.
    pub leaves: u64,
    /// Keys that can't be read, by key.
    pub gaps: Vec<Gap>,
    /// Entries that can't be read; the first [`LOST_ENTRIES_MAX`].
    pub lost: Vec<LostEntry>,
    /// How many there are.
    pub lost_entries: u64,
    /// Entries, of those given, of which it is unknown whether their transaction had committed.
    pub unsure_entries: u64,
    /// Leaves that were found without their parents.
    pub rescued_leaves: u64,
    /// The file can't be opened: its pages were found by what is left of it. Rows may be missing,
    /// or older than they should be, as the notes say.
    pub is_rescued: bool,
    /// The table has [lost changes](SalvageTable::lost_changes): rows may be missing, older than
    /// they should be, or deleted ones.
    pub lacks_changes: bool,
    /// What else matters.
    pub notes: Vec<String>,
}

impl Salvaged {
    /// Whether all was read.
    pub fn is_whole(&self) -> bool {
        self.gaps.is_empty()
            && self.lost_entries == 0
            && self.unsure_entries == 0
            && !self.is_rescued
            && !self.lacks_changes
    }

    /// Counts an entry as lost, and lists it if there is room.
    fn lose(&mut self, key: &[u8], why: String) {
        self.lost_entries += 1;
        if self.lost.len() < LOST_ENTRIES_MAX {
            self.lost.push(LostEntry { key: key.into(), why });
        }
    }
}

/// Gets each entry: key and value. An error ends it.
pub type EntryFn<'f> = &'f mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

impl Inspection {
    /// The tables that can be found, by name; and what of the catalog can't be read.
    ///
    /// # Errors
    /// Only of the scratch storage.
    pub fn salvage_tables(&self) -> Result<(Vec<SalvageTable>, Salvaged)> {
        catalog::tables(self)
    }

    /// Gives every entry of the table's clustered index that can be read. In the order of keys,
    /// except those of
    /// leaves that were found without their parents, which come last.
    ///
    /// # Errors
    /// Those of `see`, and of the scratch storage. What can't be read is in the outcome.
    pub fn salvage(
        &self,
        table: &SalvageTable,
        see: EntryFn<'_>,
        progress: ProgressFn<'_>,
    ) -> Result<Salvaged> {
        let found = walk::salvage(self, table, see, progress)?;
        self.unless_scratch_failed(found)
    }

    /// An attachment, as it was committed last; none if this name has none of this kind, or it
    /// can't be read.
    ///
    /// # Errors
    /// Of the engine, where it is open.
    pub fn attachment(&self, name: &str, kind: u8) -> Result<Option<Vec<u8>>> {
        match self.sound_db() {
            Some(db) => db.attachment(name, kind),
            None => {
                let all = self.attachments.get_or_init(|| catalog::attachments(self));
                Ok(all.get(&(name.to_string(), kind)).cloned())
            }
        }
    }

    /// A page as recovery has left it, if it can be trusted.
    fn trusted_page(&self, id: tidepool_pool::PageId, bytes: &mut [u8]) -> Result<(), String> {
        self.overlay_page(id, bytes).map_err(|error| error.to_string())?;
        self.verify(bytes, id)?;
        match page::is_zero(bytes) {
            true => Err("a page of zeroes".into()),
            false => Ok(()),
        }
    }
}
