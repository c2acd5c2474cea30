//! What an inspection has found.

use tidepool_pool::Lsn;

use crate::error::Error;

/// All that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The redo log.
    pub log: LogReport,
    /// Each file that holds pages.
    pub files: Vec<FileReport>,
    /// Each table, by name.
    pub tables: Vec<TableReport>,
    /// The lowest level of `force_recovery` that the engine opens with; 0 if a start is not
    /// refused, or at every level.
    pub force_recovery: u8,
    /// Keys are missing: pages that are encrypted with them were not looked at, nor the tables that
    /// have such pages; if a start is refused for that, the log was not applied. By itself that is
    /// no damage. The notes name what was not looked at.
    pub lacks_key: bool,
    /// What is wrong with the directory as a whole: each names a file, and what to do.
    pub problems: Vec<String>,
    /// What is no damage, but worth a look.
    pub notes: Vec<String>,
}

/// What was found of the redo log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogReport {
    /// Where recovery begins; unknown if the control file can't be read.
    pub checkpoint: Option<Lsn>,
    /// Where the log ends; unknown if the engine can't be opened.
    pub end: Option<Lsn>,
    /// The directory was closed cleanly.
    pub clean: bool,
    /// Slots of the control file, of two, that are not whole. One is what a power cut in a write
    /// leaves.
    pub damaged_control_slots: usize,
}

/// What was found of a file that holds pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileReport {
    /// Relative to the data directory.
    pub file: String,
    /// Number of its space.
    pub space: u32,
    /// The table that has it.
    pub table: Option<String>,
    /// Pages of the space that the file holds.
    pub pages: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Pages that are broken, in order; the first [`DAMAGED_PAGES_MAX`](super::DAMAGED_PAGES_MAX)
    /// of them.
    pub damaged: Vec<DamagedPage>,
    /// How many are broken.
    pub damaged_pages: u64,
    /// Pages that are encrypted and whose key is missing: only their checksums were looked at.
    pub encrypted_pages: u64,
    /// Pages that are broken in the file, and whole after the recovery.
    pub healed_pages: u64,
    /// What else is wrong with it.
    pub problems: Vec<String>,
}

/// A page that is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedPage {
    /// Its number.
    pub page: u32,
    /// What is wrong.
    pub why: String,
}

/// What was found of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableReport {
    /// Its name.
    pub name: String,
    /// Its file, relative to the data directory.
    pub file: String,
    /// Its indexes, the clustered one first.
    pub indexes: Vec<IndexReport>,
    /// What is wrong with its trees, its allocation, and whether its indexes agree.
    pub problems: Vec<String>,
    /// Pages that are allocated, and that nothing leads to: of no use to anybody until the table is
    /// rebuilt. Known only
    /// where no transaction is unfinished and nothing waits for purge.
    pub unreachable_pages: Option<u64>,
}

/// What was counted in an index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexReport {
    /// Its name.
    pub name: String,
    /// Entries, the deleted ones included that are not purged yet.
    pub entries: u64,
    /// Entries that are marked as deleted.
    pub delete_marked: u64,
    /// Pages of its tree.
    pub pages: u64,
}

impl Report {
    /// Whether all was looked at, and nothing is wrong.
    pub fn is_clean(&self) -> bool {
        !self.lacks_key && !self.has_damage()
    }

    /// Whether something is wrong with what was looked at.
    pub fn has_damage(&self) -> bool {
        !self.problems.is_empty()
            || !self.files.iter().all(FileReport::is_clean)
            || !self.tables.iter().all(|table| table.problems.is_empty())
    }

    /// Something was not looked at, for its key is missing.
    pub(super) fn note_missing_key(&mut self, what: &str, error: &Error) {
        self.lacks_key = true;
        self.notes.push(format!("{what}: not looked at: {}", error.what()));
    }

    /// Pages that are broken.
    pub fn damaged_pages(&self) -> u64 {
        self.files.iter().map(|file| file.damaged_pages).sum()
    }
}

impl FileReport {
    /// Whether nothing is wrong with it.
    pub fn is_clean(&self) -> bool {
        self.damaged_pages == 0 && self.problems.is_empty()
    }
}
