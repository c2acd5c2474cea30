//! The redo log: every change of every page, in order, durable before the page is.
//!
//! # Words
//! - **LSN**: byte position in the endless log. The log's bytes are *frames* without gaps, one
//!   frame a mini-transaction (`frame`), made of *records* (`record`), and they know nothing of
//!   files.
//! - **Ring**: the files `redo/redo.NNNNNNNN` that hold the recent part of the log, and
//!   `redo/control`, which lists them and says where recovery starts (`ring`, `control`,
//!   `file_header`).
//! - **Epoch**: a life of the data directory, from one recovery to the next. A frame's checksum
//!   covers its epoch, so that what a torn end of an earlier life left behind never becomes part of
//!   the log again.
//! - **Keys**: an epoch may be encrypted; `keys` says with what.
//! - **Checkpoint**: the LSN below which every change is in its page's file.
//!
//! # The way of a change
//! ```text
//! append      reserve a place, copy into the log buffer, mark the pages dirty      memory
//! write_to    log buffer -> file                                                   survives the process
//! flush_to    sync the file, for all that waits at once (group commit)             survives a power cut
//! checkpoint  the pages are in their files: the ring's space may be used again
//! ```
//! `next >= written >= flushed >= checkpoint`, always.
//!
//! # Locking order
//! `pending_spaces` -> `io` (who writes) -> `ring` (files and control) -> a part of the log buffer
//! (`buffer`), one at a time -> the commit mutex, or the pool's dirty queue. `group` (who waits for
//! a sync) is a leaf: nothing is locked under it. No one holding any of these waits for a page
//! latch or for the cleaner, so the cleaner may always wait for the log. The reverse wait, for room
//! in the ring, happens only at the beginning of a mini-transaction, before any latch.
//!
//! # Failure
//! A write that finds no space on the disk is tried again until there is some (`full_disk`). Any
//! other write of the log that fails, and any sync, leaves unknown what is durable; the log then
//! refuses everything for good ([`Failure`]), and a restart finds out by recovery. Waits for
//! transactional locks end then, since what they wait for can neither commit nor be rolled back. A
//! failed sync is never tried again. A panic in one of them (a bug) counts as its failure: no
//! thread may wait for ever for a sync whose thread is gone.

mod append;
pub(crate) mod beyond;
mod buffer;
pub mod capacity;
pub mod checkpoint;
pub(crate) mod control;
pub(crate) mod copy;
pub(crate) mod file_header;
pub(crate) mod frame;
mod full_disk;
mod group;
pub(crate) mod keys;
mod log;
mod mark;
mod pending_spaces;
pub(crate) mod reader;
pub(crate) mod record;
mod ring;
mod sync;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::OnceLock;

use parking_lot::Mutex;

use control::CONTROL_FILE;

pub(crate) use control::LostLog;
pub(crate) use log::{LogAccess, LogStart, contradiction};
pub use log::{RedoLog, RedoStats};
pub(crate) use ring::Ring;
pub use ring::{REDO_DIR, default_file_size};

use crate::error::{Error, Remedy, Result};

/// Version of the redo files and of the control file.
pub const FORMAT_VERSION: u32 = 5;

/// Redo files are written in blocks of this size, aligned to it.
pub const BLOCK_SIZE: usize = 4096;

/// LSN of the first frame of a new data directory. Zero is the LSN of pages never written.
pub const FIRST_LSN: tidepool_pool::Lsn = tidepool_pool::Lsn(BLOCK_SIZE as u64);

/// Smallest redo capacity accepted.
pub const CAPACITY_MIN_BYTES: u64 = 1 << 20;

fn unknown_version(file: &str, version: u32) -> Error {
    let remedy = match version < FORMAT_VERSION {
        true => Remedy::DumpIntoNewDirectory,
        false => Remedy::UseItsVersion,
    };
    let why =
        format!("format version {version}, but this program reads only version {FORMAT_VERSION}");
    Error::format(file, why, remedy)
}

/// Formats an instance uuid for messages.
pub fn format_uuid(uuid: &[u8; 16]) -> String {
    let mut out = String::with_capacity(36);
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02x}"));
    }
    out
}

/// What wakes those who wait for something that only a write would bring.
type Wake = Box<dyn Fn() + Send + Sync>;

/// Whether writing has stopped for good, and why. Shared by the log, the environment and every
/// waiter.
#[derive(Default)]
pub struct Failure {
    /// [`Error::Crashed`] or [`Error::Closed`].
    reason: OnceLock<Error>,
    /// Called once writing has stopped, in the thread that met the failure, whatever it holds.
    wakes: Mutex<Vec<Wake>>,
}

impl Failure {
    /// Stops all writing; the first reason stays.
    pub fn set(&self, reason: impl Into<String>) -> Error {
        let reason = reason.into();
        let error = Error::Crashed(reason.clone());
        if self.reason.set(error.clone()).is_ok() {
            tracing::error!(reason, "the engine stops writing");
            self.wake_all();
        }
        self.reason.get().cloned().unwrap_or(error)
    }

    /// Stops all writing at the end of an ordinary life, which is nothing to report.
    pub(crate) fn set_closed(&self) {
        if self.reason.set(Error::Closed).is_ok() {
            self.wake_all();
        }
    }

    /// From now on a failure calls `wake`, which takes only mutexes that are leaves: the thread may
    /// hold latches, and any mutex of the log. A thread that waits makes itself known to `wake`
    /// first, and then asks whether writing has stopped already.
    pub(crate) fn wake_at_failure(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.wakes.lock().push(Box::new(wake));
    }

    fn wake_all(&self) {
        self.wakes.lock().iter().for_each(|wake| wake());
    }

    /// An error if writing has stopped.
    pub fn check(&self) -> Result<()> {
        self.reason.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// Whether writing has stopped.
    pub fn is_set(&self) -> bool {
        self.reason.get().is_some()
    }
}

/// Rounds down to a block boundary.
const fn block_floor(position: u64) -> u64 {
    position & !(BLOCK_SIZE as u64 - 1)
}

/// Rounds up to a block boundary.
const fn block_ceil(position: u64) -> u64 {
    block_floor(position + BLOCK_SIZE as u64 - 1)
}
