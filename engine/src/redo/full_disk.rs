//! Waiting for space on the log's disk.
//!
//! Redo files are filled when they are made, so on most file systems a write inside them needs no
//! space. File systems that copy on write (btrfs, ZFS) need some for every write, and may refuse
//! one. Such a refusal is no failure: no sync has covered the blocks, so they can be written again.
//! The writer keeps what it was about to write, and tries again until it succeeds.
//!
//! # Who waits
//! Commits wait for the writer as they wait for any write. Mini-transactions are not begun
//! meanwhile, as if the log had no room: they wait for as long as they do for a log that cannot
//! grow, and then the statement fails. Those that have begun hold latches; the log buffer grows for
//! them, so that they end and readers get on.
//!
//! # When the wait ends
//! With a write that succeeds, with a failure of the log, or, once the engine is being closed,
//! after the time that the closing gives it. In the last case writing stops for good, as after a
//! failed write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::RedoLog;
use crate::error::{Error, Result};

/// How often the writer tries again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How often a warning says that it still waits.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Whether the writer waits for space.
#[derive(Default)]
pub(super) struct FullDisk {
    is_full: AtomicBool,
    /// What the writer waits for, while it does.
    error: Mutex<Option<Error>>,
    /// When the wait ends for good, once the engine is being closed.
    deadline: Mutex<Option<Instant>>,
}

impl FullDisk {
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    fn set(&self, error: Option<Error>) {
        let mut current = self.error.lock();
        self.is_full.store(error.is_some(), Ordering::Release);
        *current = error;
    }

    fn is_over(&self) -> bool {
        self.deadline.lock().is_some_and(|deadline| Instant::now() >= deadline)
    }
}

impl RedoLog {
    /// Runs a write of the log, again and again while the disk has no space for it.
    /// [`Error::NoSpace`] only if the engine is being closed.
    pub(super) fn once_there_is_space<T>(&self, mut write: impl FnMut() -> Result<T>) -> Result<T> {
        let mut warned: Option<Instant> = None;
        loop {
            let error = match write() {
                Err(error @ Error::NoSpace(_)) => error,
                outcome => {
                    if warned.is_some() {
                        self.stop_waiting_for_space();
                    }
                    return outcome;
                }
            };
            if self.failure.is_set() || self.full_disk.is_over() {
                self.stop_waiting_for_space();
                self.failure.check()?;
                return Err(error);
            }
            if warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
                warn(&error);
                warned = Some(Instant::now());
            }
            self.full_disk.set(Some(error));
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    fn stop_waiting_for_space(&self) {
        self.full_disk.set(None);
        self.wake_room();
        if !self.failure.is_set() && !self.full_disk.is_over() {
            tracing::info!("there is space for the redo log again: commits go on");
        }
    }

    /// Why the log cannot be written at present, if its disk is full.
    pub(crate) fn full_disk_error(&self) -> Option<Error> {
        self.full_disk.error.lock().clone()
    }

    /// Waits for space on a full disk no longer than `patience` from now on: the engine is being
    /// closed.
    pub(crate) fn limit_wait_for_space(&self, patience: Duration) {
        self.full_disk.deadline.lock().get_or_insert(Instant::now() + patience);
    }
}

fn warn(error: &Error) {
    let Error::NoSpace(file) = error else { return };
    tracing::warn!(
        file,
        "the file system of the redo log is full: commits wait until there is space on it; free some"
    );
}
