//! What a start says at each level of [`ForceRecovery`], and which level a start that fails is to be tried with.

use crate::error::Error;
use crate::files::UNDO_FILE;
use crate::options::ForceRecovery;

/// Says in the error log what is done without, and what to do next.
pub(super) fn warn(force: ForceRecovery) {
    let without = match force {
        ForceRecovery::Off => return,
        ForceRecovery::NoPurge => {
            "nothing is purged: what was deleted takes up room. Dump the tables that can't be read otherwise, then start without it"
        }
        ForceRecovery::NoRollback => {
            "nothing is purged, and no transaction that an earlier life left unfinished is rolled back: its rows stay locked. \
             Dump the tables, then start without it"
        }
        ForceRecovery::ReadOnly => {
            "nothing is written. Pages that can't be read are passed over, with a line here for each, and so are changes of the \
             redo log that can't be applied. Dump the tables, and restore them into a new data directory"
        }
        ForceRecovery::NoUndo => {
            "nothing is written, and the undo log is not read: rows are as they were written last, also by transactions that were \
             never committed. Dump the tables, check what they hold, and restore them into a new data directory"
        }
        ForceRecovery::NoRedo => {
            "nothing is written, and neither the undo log nor the redo log is read: pages are as the files have them, of \
             different times. Dump the tables, check what they hold, and restore them into a new data directory"
        }
    };
    tracing::warn!("force_recovery is {}: {without}", force.level());
}

/// The error of a start, with the level that does without what it is about, if that is above `force`.
pub(super) fn with_last_resort(error: Error, force: ForceRecovery) -> Error {
    let needed = |file: &str| match file {
        _ if file.starts_with("redo") => ForceRecovery::NoRedo,
        UNDO_FILE => ForceRecovery::NoUndo,
        _ => ForceRecovery::ReadOnly,
    };
    let resort = |file: &str, why: String| {
        let level = needed(file);
        // The remedy for lost data is a backup, or a file put back. Other errors (a version, a page size, files of something else) have
        // another remedy, and no level helps.
        let is_about_lost_data = ["restore", "put back", "put the file back"];
        if level <= force
            || why.contains("force_recovery=")
            || !is_about_lost_data.iter().any(|remedy| why.contains(remedy))
        {
            return why;
        }
        format!(
            "{why}; or start with force_recovery={} and dump what can still be read",
            level.level()
        )
    };
    match error {
        Error::Format { file, why } => {
            let why = resort(&file, why);
            Error::Format { file, why }
        }
        Error::Corrupt { file, page, why } => {
            let why = resort(&file, why);
            Error::Corrupt { file, page, why }
        }
        Error::Storage(why) if why.contains("'redo/") => Error::Storage(resort("redo", why)),
        Error::Storage(why) if why.contains(UNDO_FILE) => Error::Storage(resort(UNDO_FILE, why)),
        error => error,
    }
}
