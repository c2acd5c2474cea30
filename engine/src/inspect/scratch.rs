//! The storage that recovery writes to, which remembers that it has failed: what can't be written
//! there is no damage of the directory.
//!
//! On a full disk the engine waits for space, as its transactions are worth the wait. Here it is
//! worth none: to the engine, a full disk is one that fails.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tidepool_pool::storage::{Storage, StorageError, StorageFile, StorageLock};

use crate::error::Error;

type Result<T> = std::result::Result<T, StorageError>;

/// The scratch storage of an overlay.
pub(super) struct Scratch {
    storage: Arc<dyn Storage>,
    failure: Arc<Failure>,
}

/// The first error.
#[derive(Default)]
struct Failure(Mutex<Option<StorageError>>);

impl Failure {
    fn note<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| {
            self.0.lock().get_or_insert_with(|| error.clone());
            match error.is_no_space() {
                true => StorageError {
                    source: Arc::new(io::Error::other("the scratch directory is full")),
                    ..error
                },
                false => error,
            }
        })
    }
}

impl Scratch {
    pub fn new(storage: Arc<dyn Storage>) -> Scratch {
        Scratch { storage, failure: Arc::default() }
    }

    /// Why it failed, if it did.
    pub fn error(&self) -> Option<Error> {
        let error = self.failure.0.lock().clone()?;
        Some(match error.is_no_space() {
            true => Error::NoSpace("what recovery writes to the scratch directory".into()),
            false => Error::Storage(format!("the scratch directory fails: {error}")),
        })
    }

    /// What failed until now has cost nothing.
    pub fn forget_error(&self) {
        *self.failure.0.lock() = None;
    }

    fn file(&self, file: Result<Arc<dyn StorageFile>>) -> Result<Arc<dyn StorageFile>> {
        let file = self.failure.note(file)?;
        Ok(Arc::new(ScratchFile { file, failure: self.failure.clone() }))
    }
}

impl Storage for Scratch {
    fn open(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        self.file(self.storage.open(name))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        self.file(self.storage.create(name))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.failure.note(self.storage.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.failure.note(self.storage.rename(from, to))
    }

    fn exists(&self, name: &str) -> Result<bool> {
        self.failure.note(self.storage.exists(name))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.failure.note(self.storage.list(dir))
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        self.failure.note(self.storage.create_dir(dir))
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.failure.note(self.storage.sync_dir(dir))
    }

    fn lock(&self, name: &str) -> Result<StorageLock> {
        self.storage.lock(name)
    }
}

struct ScratchFile {
    file: Arc<dyn StorageFile>,
    failure: Arc<Failure>,
}

impl StorageFile for ScratchFile {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.failure.note(self.file.read_at(buf, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.failure.note(self.file.write_at(bytes, offset))
    }

    fn sync_data(&self) -> Result<()> {
        self.failure.note(self.file.sync_data())
    }

    fn len(&self) -> Result<u64> {
        self.failure.note(self.file.len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.failure.note(self.file.set_len(len))
    }

    fn io_alignment(&self) -> usize {
        self.file.io_alignment()
    }
}
