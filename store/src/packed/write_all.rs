//! Batches of several files at once.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::Mutex;

use super::error::{Error, Result};
use super::write::Prepared;
use crate::storage::{IoOp, Storage, StorageError, StorageFile, StorageOp};

/// Syncs that run at once, at most.
const SYNCS_MAX: usize = 8;

/// In which threads files are synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// In the calling thread, one after the other in the order of the batches: a simulated disk
    /// needs a fixed order.
    Caller,
    /// Up to eight at once, one of them in the calling thread.
    SideBySide,
}

/// Writes batches of several files at once, syncs each file, and publishes those that are durable.
/// The outcomes are in the order of the batches; a batch that failed has changed nothing.
///
/// If an outcome is [`Error::Storage`] and [`Error::is_failed_sync`], the file takes no change any
/// more. After a failed write the next batch may succeed.
pub fn write_all(
    storage: &dyn Storage,
    batches: Vec<Prepared<'_>>,
    threads: Threads,
) -> Vec<Result<()>> {
    let mut outcomes: Vec<Result<()>> = batches.iter().map(|_| Ok(())).collect();
    {
        let numbered = batches.iter().enumerate();
        let (owners, mut ops): (Vec<usize>, Vec<IoOp<'_>>) =
            numbered.flat_map(|(at, batch)| batch.ops().map(move |op| (at, op))).unzip();
        storage.run_batch(&mut ops);
        for (owner, op) in owners.into_iter().zip(ops) {
            if let Err(error) = op.result {
                outcomes[owner] = Err(error.into());
            }
        }
    }
    let written = batches.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_ok());
    let syncs: Vec<Sync<'_>> = written.map(|(batch, outcome)| (batch.io_file(), outcome)).collect();
    sync_all(syncs, threads);
    for (outcome, batch) in outcomes.iter().zip(batches) {
        match outcome {
            Ok(()) => batch.publish(),
            Err(error) => batch.fail(error),
        }
    }
    outcomes
}

/// A file whose writes have succeeded, and the outcome of its batch.
type Sync<'a> = (&'a dyn StorageFile, &'a mut Result<()>);

fn sync_all(files: Vec<Sync<'_>>, threads: Threads) {
    let helpers = match threads {
        Threads::Caller => 0,
        Threads::SideBySide => files.len().clamp(1, SYNCS_MAX) - 1,
    };
    let queue = Mutex::new(files.into_iter());
    let sync = || {
        loop {
            let next = queue.lock().next();
            let Some((file, outcome)) = next else { break };
            *outcome = synced(file);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            // If the system has no thread left, fewer sync.
            let name = "tidepool-sync".to_owned();
            if std::thread::Builder::new().name(name).spawn_scoped(scope, sync).is_err() {
                break;
            }
        }
        sync();
    });
}

/// Syncs a file. A panic, which a bug is behind, counts as a failure: whether the bytes are durable
/// is not known, and a second sync might lie.
pub(super) fn synced(file: &dyn StorageFile) -> Result<()> {
    let synced = catch_unwind(AssertUnwindSafe(|| file.sync_data())).unwrap_or_else(|_| {
        let panicked = io::Error::other("it panicked: please report this");
        Err(StorageError::new(StorageOp::Sync, file.name(), panicked))
    });
    Ok(synced?)
}

/// Writes to a file. A panic, which a bug is behind, counts as a failure: the caller takes back
/// what it counted for the write, as after an error.
pub(super) fn written(
    file: &dyn StorageFile,
    write: impl FnOnce() -> std::result::Result<(), StorageError>,
) -> Result<()> {
    let written = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
        let panicked = io::Error::other("it panicked: please report this");
        Err(StorageError::new(StorageOp::Write, file.name(), panicked))
    });
    Ok(written?)
}

impl Error {
    /// Whether a sync failed: the file takes no change any more, and what was written and not
    /// synced before may be lost.
    pub fn is_failed_sync(&self) -> bool {
        matches!(self, Error::Storage(error) if error.op == StorageOp::Sync)
    }
}
