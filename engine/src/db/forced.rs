//! What a start says at each level of [`ForceRecovery`], and which level a start that fails is to
//! be tried with.

use crate::error::{Error, LastResort, Remedy};
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
/// Only errors about lost data get a last resort. Another version, another page size and files of
/// something else have other remedies.
pub(super) fn with_last_resort(mut error: Error, force: ForceRecovery) -> Error {
    let is_lost = matches!(error, Error::Lost { .. });
    if let Error::Corrupt { file, remedies, .. } | Error::Lost { file, remedies, .. } = &mut error {
        remedies.last = match remedies.first {
            // It names a level itself.
            Remedy::RestoreOrReadNewest => None,
            // One that is damaged is read as far as it can be.
            Remedy::RestoreOrSalvage => level_without(file, force),
            // No level does without the catalog's file.
            _ if is_lost && file == SYSTEM_FILE => Some(LastResort::Salvage),
            _ => level_without(file, force),
        };
    }
    error
}

/// The level that does without `file`; none if `force` is that level.
fn level_without(file: &str, force: ForceRecovery) -> Option<LastResort> {
    let needed = match file {
        _ if file.starts_with(REDO_DIR) => ForceRecovery::NoRedo,
        UNDO_FILE => ForceRecovery::NoUndo,
        _ => ForceRecovery::ReadOnly,
    };
    (needed > force).then(|| LastResort::ForceRecovery(needed.level()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_resort_is_the_level_that_does_without_what_is_lost() {
        use ForceRecovery::{NoRedo, NoUndo, Off, ReadOnly};
        let level = |level: ForceRecovery| Some(LastResort::ForceRecovery(level.level()));
        let missing = |file: &str| Error::lost(file, "missing", Remedy::PutBack);
        let damaged = |file: &str| Error::damaged(file, "it is cut short");
        let page = |file: &str| Error::corrupt(file, 7, "its checksum is wrong");
        let in_doubt = page(UNDO_FILE).with_remedies(Remedy::RestoreOrReadNewest);
        let other = Error::format(SYSTEM_FILE, "it is of another version", Remedy::UseItsVersion);
        for (error, force, last) in [
            (missing("redo/control"), Off, level(NoRedo)),
            (missing("redo/control"), NoRedo, None),
            (missing(UNDO_FILE), Off, level(NoUndo)),
            (damaged(UNDO_FILE), ReadOnly, level(NoUndo)),
            (page(UNDO_FILE), Off, level(NoUndo)),
            (page(UNDO_FILE), NoUndo, None),
            (in_doubt, Off, None),
            (missing(SYSTEM_FILE), Off, Some(LastResort::Salvage)),
            (damaged(SYSTEM_FILE), Off, level(ReadOnly)),
            (damaged(SYSTEM_FILE), ReadOnly, None),
            (page(SYSTEM_FILE), Off, level(ReadOnly)),
            (other, Off, None),
        ] {
            let first = error.remedies().map(|remedies| remedies.first);
            let with_last = with_last_resort(error, force);
            let remedies = with_last.remedies().expect("it is about a file");
            assert_eq!((Some(remedies.first), remedies.last), (first, last), "{with_last}");
        }
    }
}
