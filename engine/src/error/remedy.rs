//! What to do about an error of a file, and the words for it.
//!
//! An error says what is wrong; its [`Remedies`] say what to do. The store gives a remedy for a
//! file as such ([`packed::Remedy`]). Here it becomes one for what the file is for: a table's can
//! be dropped, and only the undo log's has a level of `force_recovery` that does without.

use std::fmt;

use tidepool_pool::packed;

use crate::files::{TABLES_DIR, UNDO_FILE};

/// What to do about an error of a file: what is best, and what is left if that can't be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remedies {
    /// What to do.
    pub first: Remedy,
    /// What is left if that can't be done.
    pub last: Option<LastResort>,
}

/// What to do about an error of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Restore the data directory from a backup.
    RestoreDirectory,
    /// The same, or save what can be read.
    RestoreOrSalvage,
    /// The same, or drop the table: its file alone is damaged.
    RestoreTable,
    /// Restore the data directory, or read rows whose transactions' ends are unknown.
    RestoreOrReadNewest,
    /// Restore the data directory, or go on without the end of the redo log.
    RestoreOrAcceptLogLoss,
    /// Restore a table's file and the undo log from one backup.
    RestoreBothOrDrop,
    /// Restore the data directory before the next start, which will need what is damaged.
    RestoreBeforeStart,
    /// Find out what is damaged of a table that is in use, then restore the directory.
    CheckThenRestore,
    /// A file is missing that all tables need.
    PutBack,
    /// The file of a table is missing.
    PutBackOrDrop,
    /// Another directory's file lies in the place of this one's.
    PutOwnFile,
    /// The same of a table's file.
    PutOwnFileOrDrop,
    /// Another directory's redo log lies in the place of this one's.
    PutOwnLog,
    /// The table alone stands in the way.
    DropTable,
    /// Another version of Tidepool wrote the file.
    UseItsVersion,
    /// No version reads the file and goes on with it.
    DumpIntoNewDirectory,
    /// The disk gives other bytes each time.
    CheckDisk,
    /// The data directory has pages of this many bytes.
    SetPageSize(u32),
    /// The list of the redo log's keys is full.
    StartWithoutLogEncryption,
    /// The directory is of something else, and there is no data in it yet.
    ChooseDirectory,
    /// The directory holds no data.
    NameDataDirectory,
    /// The directory is an incremental backup.
    Combine,
    /// The backup is of no use.
    UseAnotherBackup,
    /// The backup is of no use, unless it is still being made.
    WaitOrUseAnotherBackup,
    /// These backups do not follow each other.
    NameAllBackups,
    /// The backup can't be the base of an incremental one.
    MakeCompleteBackup,
    /// Files are in the way of a backup.
    GiveEmptyDirectory,
    /// The file of an export is damaged.
    CopyOrExportAgain,
    /// The file is none of an export.
    CopyExport,
    /// Another version has exported the table.
    ImportWithItsVersion,
    /// The words of a program on top of the engine, whose settings the engine does not know.
    Other(&'static str),
}

/// What is left if an error's remedy can't be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastResort {
    /// A start at this level of `force_recovery`, which does without what is lost.
    ForceRecovery(u8),
    /// No level does without what is lost: `tidepool salvage`.
    Salvage,
}

impl Remedies {
    /// What to do about damage of a file of the data directory.
    pub(crate) fn of_damaged(file: &str) -> Remedies {
        let first = match is_of_table(file) {
            true => Remedy::RestoreTable,
            false => Remedy::RestoreOrSalvage,
        };
        let last = (file == UNDO_FILE).then_some(LastResort::ForceRecovery(WITHOUT_UNDO));
        Remedies { first, last }
    }

    /// What to do about a file of another data directory in the place of this one's.
    pub(crate) fn of_foreign(file: &str) -> Remedies {
        match is_of_table(file) {
            true => Remedy::PutOwnFileOrDrop.into(),
            false => Remedy::PutOwnFile.into(),
        }
    }
}

/// The level of `force_recovery` that does without the undo log.
const WITHOUT_UNDO: u8 = 4;

fn is_of_table(file: &str) -> bool {
    file.strip_prefix(TABLES_DIR).is_some_and(|rest| rest.starts_with('/'))
}

impl From<Remedy> for Remedies {
    fn from(first: Remedy) -> Remedies {
        Remedies { first, last: None }
    }
}

impl fmt::Display for Remedies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        match self.last {
            None => Ok(()),
            Some(LastResort::ForceRecovery(level)) => {
                write!(f, "; or start with force_recovery={level} and dump what can still be read")
            }
            Some(LastResort::Salvage) => {
                f.write_str("; or save what can be read with 'tidepool salvage'")
            }
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Remedy::RestoreOrSalvage => return packed::Remedy::Restore.fmt(f),
            Remedy::PutOwnFile => return packed::Remedy::PutOwnFile.fmt(f),
            Remedy::UseItsVersion => return packed::Remedy::UseItsVersion.fmt(f),
            Remedy::SetPageSize(bytes) => {
                return write!(f, "set the page size to {bytes}, or use another data directory");
            }
            Remedy::Other(words) => words,
            Remedy::RestoreDirectory => "restore the data directory from a backup",
            Remedy::RestoreTable => {
                "restore the data directory from a backup, save what can be read with 'tidepool \
                 salvage', or drop the table"
            }
            Remedy::RestoreOrReadNewest => {
                "restore the data directory from a backup, or read the newest versions with \
                 force_recovery=4"
            }
            Remedy::RestoreOrAcceptLogLoss => {
                "restore the data directory from a backup, or accept the loss: start once with \
                 accept_log_loss (in a server, tidepool_accept_log_loss=ON)"
            }
            Remedy::RestoreBothOrDrop => "restore both from one backup, or drop the table",
            Remedy::RestoreBeforeStart => {
                "restore the data directory from a backup before the server is started again"
            }
            Remedy::CheckThenRestore => {
                "look for rows that can still be read with CHECK TABLE; then restore the data \
                 directory from a backup, or stop the server and save what can be read with \
                 'tidepool salvage'"
            }
            Remedy::PutBack => "put the file back or restore the data directory from a backup",
            Remedy::PutBackOrDrop => "put it back, or drop the table",
            Remedy::PutOwnFileOrDrop => {
                "put back this data directory's own file, or drop the table"
            }
            Remedy::PutOwnLog => "put back this data directory's own redo log",
            Remedy::DropTable => "drop the table",
            Remedy::DumpIntoNewDirectory => {
                "dump the tables with the version of Tidepool that wrote it, and load the dump into \
                 a new data directory"
            }
            Remedy::CheckDisk => "check the disk, and start again",
            Remedy::StartWithoutLogEncryption => "start once without encrypt_log",
            Remedy::ChooseDirectory => {
                "choose a directory that is empty or does not exist, or the one where the data is"
            }
            Remedy::NameDataDirectory => "name the directory where the data is",
            Remedy::Combine => {
                "make a complete backup of both with 'tidepool combine', and open that"
            }
            Remedy::UseAnotherBackup => "use another backup",
            Remedy::WaitOrUseAnotherBackup => "wait for its end, or use another backup",
            Remedy::NameAllBackups => {
                "begin with the complete backup, and name all later ones in their order"
            }
            Remedy::MakeCompleteBackup => "make a complete backup, and take that as the base",
            Remedy::GiveEmptyDirectory => "give it an empty directory",
            Remedy::CopyOrExportAgain => "copy the file again, or export the table again",
            Remedy::CopyExport => "copy the file that FLUSH TABLES … FOR EXPORT has written",
            Remedy::ImportWithItsVersion => {
                "import it with the Tidepool that wrote it, or dump the table there"
            }
        })
    }
}
