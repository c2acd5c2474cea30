//! What stops together with writing: the growth of files, and, if a change was left half-way,
//! reading.
//!
//! # On a full disk
//! What the redo log has must get into the files all the same, or the log has no room for the
//! rollback of what was refused. A file keeps room for the pages that it grew by last, and finds
//! room for those that are written again in itself; if it doesn't, for it is short, or was never
//! written, it takes the space of the [`Ballast`]. Until that can be restored, files don't grow, no
//! table is made, and no file of the log is made ahead: its space is for what was already allowed,
//! a rollback among it, which may have to split pages.

use std::sync::atomic::{AtomicU32, Ordering};

use tidepool_pool::Space;
use tidepool_pool::storage::Ballast;

use super::Env;
use crate::error::{Error, Result};

/// Lets files grow on a full disk while it is there.
struct Growing<'a>(&'a AtomicU32);

impl Growing<'_> {
    fn begin(growing: &AtomicU32) -> Growing<'_> {
        growing.fetch_add(1, Ordering::AcqRel);
        Growing(growing)
    }
}

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The bytes of the log's files over this are the ballast.
const LOG_SHARE: u64 = 4;
/// Enough for what a directory begins with.
const BYTES_MIN: u64 = 2 << 20;
const BYTES_MAX: u64 = 256 << 20;

/// Bytes of the ballast beside log files of this length: the longer the log, the more changes
/// there can be that must get into the files.
pub(super) fn ballast_bytes(log_files_bytes: u64) -> u64 {
    (log_files_bytes / LOG_SHARE).clamp(BYTES_MIN, BYTES_MAX)
}

impl Env {
    /// What gives its space to changes in the redo log; none if nothing may be written.
    pub(crate) fn ballast(&self) -> Option<&Ballast> {
        self.ballast.as_deref()
    }

    /// Does the work of a rollback, and once more with the space of the ballast if the disk is
    /// full: files may grow for that moment.
    pub(crate) fn with_ballast(&self, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        match (work(), &self.ballast) {
            (Err(Error::NoSpace(_)), Some(ballast)) => {
                let _growing = Growing::begin(&self.growing_on_full_disk);
                ballast.release();
                work()
            }
            (outcome, _) => outcome,
        }
    }

    /// An error if the disk is full: `file` may take no more of it.
    pub(super) fn check_disk(&self, file: &str) -> Result<()> {
        if self.growing_on_full_disk.load(Ordering::Acquire) > 0 {
            return Ok(());
        }
        match &self.ballast {
            Some(ballast) if !ballast.is_whole() => {
                ballast.restore().map_err(|error| match error.is_no_space() {
                    true => Error::NoSpace(file.into()),
                    false => error.into(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Makes room for `pages` pages in a space's file, unless writing has stopped.
    pub(crate) fn grow_file(&self, space: &Space, pages: u32) -> Result<()> {
        let _growing = self.growth.read();
        self.failure.check()?;
        self.check_disk(space.name())?;
        Ok(space.grow_to(pages)?)
    }

    /// Writes something beside the log and the files of spaces, unless writing has stopped: a close
    /// waits for the end of it.
    pub(crate) fn write_aside<T>(&self, write: impl FnOnce() -> Result<T>) -> Result<T> {
        let _growing = self.growth.read();
        self.failure.check()?;
        write()
    }

    /// Stops all writing for good, and reading too: pages hold half a change. To be called while
    /// they are latched.
    pub(crate) fn tear(&self, reason: &str) {
        self.crash(reason.into());
        self.torn.store(true, Ordering::Release);
    }

    /// An error if pages may hold half a change. For who has latched a page, or is about to believe
    /// what he has read without.
    #[inline]
    pub(crate) fn check_whole(&self) -> Result<()> {
        match self.torn.load(Ordering::Acquire) {
            false => Ok(()),
            true => self.failure.check(),
        }
    }
}
