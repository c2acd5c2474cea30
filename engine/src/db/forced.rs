//! What a start says at each level of [`ForceRecovery`], and which level a start that fails is to
//! be tried with.

use crate::error::{Error, advice};
use crate::files::{SYSTEM_FILE, UNDO_FILE};
use crate::options::ForceRecovery;
use crate::redo::REDO_DIR;

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

/// The error of a start, with the level that reads the directory without what is lost, if that
/// level is above `force`.
///
/// Only errors about lost data name a level. Another version, another page size and files of
/// something else have other remedies.
pub(super) fn with_last_resort(error: Error, force: ForceRecovery) -> Error {
    match error {
        // The error's own advice names the level.
        Error::Corrupt { ref file, ref why, .. }
            if file == UNDO_FILE && !advice(file, why).is_empty() =>
        {
            error
        }
        Error::Corrupt { file, page, why } => {
            let why = format!("{why}{}{}", advice(&file, &why), resort(&file, force));
            Error::Corrupt { file, page, why }
        }
        // No level does without the catalog's file. One that is damaged is read as far as it can
        // be.
        Error::Lost { file, why } if file == SYSTEM_FILE && !why.contains("tidepool salvage") => {
            let why =
                format!("{why}; or take the rows out of the table files with `tidepool salvage`");
            Error::Lost { file, why }
        }
        Error::Lost { file, why } => {
            let why = format!("{why}{}", resort(&file, force));
            Error::Lost { file, why }
        }
        error => error,
    }
}

/// The end of a message about lost data of `file`: which level does without the file. Empty if
/// `force` is that level.
fn resort(file: &str, force: ForceRecovery) -> String {
    let needed = match file {
        _ if file.starts_with(REDO_DIR) => ForceRecovery::NoRedo,
        UNDO_FILE => ForceRecovery::NoUndo,
        _ => ForceRecovery::ReadOnly,
    };
    match needed > force {
        true => format!(
            "; or start with force_recovery={} and dump what can still be read",
            needed.level()
        ),
        false => String::new(),
    }
}
