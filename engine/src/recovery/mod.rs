//! Opening a data directory: [`recover`] brings the pages to where the redo log ends.
//!
//! The steps are the same after a clean shutdown and after a crash; after a clean shutdown most of
//! them find nothing to do. `docs/internals/recovery.md` describes them under the same names, and
//! says case by case what they find.
//!
//! | step | does |
//! |---|---|
//! | `open_log` ([`crate::env`]) | locks the directory, reads the control file, opens the redo files |
//! | [`find_end_of_log`] | reads the log once: its end, and the files that it creates and deletes ([`scan`]) |
//! | [`heal_files`] | restores damaged pages and second copies, before anything reads them ([`mirrors`]) |
//! | `open_pool` ([`crate::env`]) | makes the buffer pool, within the memory that there is |
//! | [`begin_epoch`] | opens the log for appending, in a new epoch |
//! | [`apply_log`] | reads the log again, and applies every change that its page has not seen ([`apply`]) |
//! | [`keep_pending_spaces`] | carries on what the log says of unfinished CREATEs and DROPs |
//!
//! Every step can be interrupted and done again: a page's LSN shows which changes it has seen, and
//! the checkpoint moves only by the ordinary rules afterwards.
//!
//! Transactions that the log left unfinished are not rolled back here: the layers above do that, by
//! their undo records.

pub mod apply;
mod mirrors;
mod owner;
pub mod scan;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use tidepool_pool::storage::Storage;
use tidepool_pool::{Lsn, Pool};

use crate::error::{Error, Result};
use crate::files::{FIRST_TABLE_SPACE, space_file_name};
use crate::options::{AcceptLogLoss, ForceRecovery};
use crate::page_files::PageFiles;
use crate::redo::{Failure, LogAccess, LogStart, RedoLog, Ring};
use apply::Applied;
use scan::Scan;

/// What a recovery may do.
pub struct Options<'a> {
    /// Where the data files are. (The log may be elsewhere: `force_recovery` 5 has one in memory.)
    pub storage: &'a Arc<dyn Storage>,
    /// What the files have in common.
    pub(crate) page_files: PageFiles,
    /// The directory is opened for reading only.
    pub read_only: bool,
    /// What the start does without.
    pub force: ForceRecovery,
    /// Whether damage ends the log.
    pub accept_log_loss: AcceptLogLoss,
    /// The memory budget in bytes; 0 = none.
    pub memory_budget_bytes: u64,
    /// The redo log's capacity in bytes.
    pub redo_capacity_bytes: u64,
    /// Size of the log buffer, and of the buffer of its writer, in bytes.
    pub redo_buffer_bytes: usize,
    /// Whether the log is encrypted from now on.
    pub encrypt_log: bool,
}

impl Options<'_> {
    /// Whether the log counts, and may be written.
    fn has_redo(&self) -> bool {
        self.force < ForceRecovery::NoRedo
    }

    /// Whether pages in the files may be restored. Without the log, no file is changed.
    fn may_heal(&self) -> bool {
        !self.read_only && self.has_redo()
    }
}

/// What [`recover`] leaves.
pub struct Recovered {
    /// The pool, with the pages that the log changed.
    pub pool: Arc<Pool>,
    /// The log, open for appending.
    pub redo: Arc<RedoLog>,
    /// A failure of the log, when there is one.
    pub failure: Arc<Failure>,
    /// The directory had been closed cleanly.
    pub clean: bool,
    /// End of the log that was found.
    pub end: Lsn,
    /// Tables' spaces whose changes are lost: see [`apply::apply`].
    pub missing_spaces: HashSet<u32>,
    /// Tables' spaces whose file was made of the log alone.
    pub made_spaces: HashSet<u32>,
    /// Spaces that the log creates or deletes, or whose table it takes off the catalog.
    pub unfinished_spaces: HashSet<u32>,
}

/// Recovers a data directory whose log is open for reading. `open_pool` makes the buffer pool,
/// given the bytes that recovery takes beside it.
///
/// # Errors
/// Damage that the user has not accepted, of the log or of files that no start can do without; an
/// error of the disk; [`Error::ReadOnly`] if recovery must write, and may not.
pub fn recover(
    mut log: Ring,
    options: &Options<'_>,
    open_pool: impl FnOnce(u64) -> Result<Arc<Pool>>,
) -> Result<Recovered> {
    let (mut found, clean) = find_end_of_log(&mut log, options)?;
    heal_files(options)?;
    let pool = open_pool(memory_bytes(clean, options))?;
    let failure = Arc::new(Failure::default());
    let redo = begin_epoch(log, &mut found, failure.clone(), options)?;
    pool.set_write_ahead(redo.clone());
    let Applied { missing: missing_spaces, made: made_spaces } =
        apply_log(&pool, &redo, &found, options)?;
    keep_pending_spaces(&redo, &found, options)?;
    let unfinished_spaces = &(&found.created | &found.unlisted) | &found.deleted;
    let end = found.end;
    Ok(Recovered {
        pool,
        redo,
        failure,
        clean,
        end,
        missing_spaces,
        made_spaces,
        unfinished_spaces,
    })
}

/// Reads the log once. Gives what it says, and whether the directory was closed cleanly.
fn find_end_of_log(log: &mut Ring, options: &Options<'_>) -> Result<(Scan, bool)> {
    let found = scan::scan(log, options.accept_log_loss)?;
    // If the newest control slot was damaged, an older one may wrongly say so.
    let clean = log.control().clean && found.frames == 0 && found.loss.is_none();
    if options.read_only && !clean {
        return Err(Error::ReadOnly(
            "the data directory was not closed cleanly, and recovery must write: open it writable \
             once"
                .into(),
        ));
    }
    Ok((found, clean))
}

/// Checks that the files and the log are of one directory, and restores what has a second copy.
/// Nothing has read a page before.
fn heal_files(options: &Options<'_>) -> Result<()> {
    let (storage, files) = (&**options.storage, &options.page_files);
    owner::check_owner(storage, files)?;
    if options.may_heal() { mirrors::reconcile(storage, files) } else { Ok(()) }
}

/// Memory that recovery takes beside the pool, in bytes, about.
fn memory_bytes(clean: bool, options: &Options<'_>) -> u64 {
    if clean { 0 } else { apply::memory_bytes(options.memory_budget_bytes) }
}

/// Opens the log for appending behind its end, in a new epoch.
fn begin_epoch(
    mut log: Ring,
    found: &mut Scan,
    failure: Arc<Failure>,
    options: &Options<'_>,
) -> Result<Arc<RedoLog>> {
    let access = if options.may_heal() { LogAccess::Append } else { LogAccess::ReadOnly };
    let lost = match access {
        LogAccess::Append => found.go_on_behind_lost(&mut log)?,
        LogAccess::ReadOnly => None,
    };
    let start = LogStart {
        end: found.end,
        lost,
        epochs: found.epochs.clone(),
        capacity_bytes: options.redo_capacity_bytes,
        buffer_bytes: options.redo_buffer_bytes,
        is_encrypted: options.encrypt_log,
        access,
    };
    let redo = Arc::new(RedoLog::start(log, start, failure)?);
    if found.accept == AcceptLogLoss::Yes {
        // Once the epoch is durable, what the lost log says of itself does not count any more.
        redo.flush()?;
        if found.loss.is_none() {
            tracing::warn!(
                "accept_log_loss is set: the next damage of the redo log would not stop a start; \
                 unset it"
            );
        }
    }
    Ok(redo)
}

/// Applies the log from the checkpoint to its end. If changes of tables are lost, no checkpoint
/// passes the log until the catalog has marked them.
fn apply_log(pool: &Pool, redo: &RedoLog, found: &Scan, options: &Options<'_>) -> Result<Applied> {
    let is_read_only = options.force.is_read_only();
    let applied = match found.frames {
        0 => Applied::default(),
        _ => {
            let limits = apply::Limits {
                memory_budget_bytes: options.memory_budget_bytes,
                expendable_from: if is_read_only { 0 } else { FIRST_TABLE_SPACE },
                page_files: &options.page_files,
            };
            apply::apply(options.storage, pool, redo, found, limits)?
        }
    };
    if !is_read_only {
        // From now on a page that is newer than the log is an error.
        redo.set_applied();
    }
    redo.hold_checkpoint(!applied.missing.is_empty() || is_read_only);
    Ok(applied)
}

/// Has the log go on to say which files belong to an unfinished CREATE or DROP, whatever
/// checkpoints come.
fn keep_pending_spaces(redo: &RedoLog, found: &Scan, options: &Options<'_>) -> Result<()> {
    let mut pending = Vec::new();
    for &id in found.unlisted.union(&found.deleted) {
        if options.storage.exists(&space_file_name(id))? {
            pending.push(id);
        }
    }
    redo.set_pending_spaces(pending);
    Ok(())
}
