//! A file of nothing, which gives its space to what must be written on a full disk.
//!
//! A page is written beside what it replaces, so even a checkpoint, which lets the redo log go on,
//! may take space that there is not. The ballast is that space: a write that must not fail, and
//! finds the disk full, releases it and tries again. Until it can be restored, the layers above
//! refuse what can be refused.
//!
//! # Locking order
//! The mutex is innermost: under it, only the file's length is changed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::{Result, Storage, StorageFile};
use crate::log_throttle::LogThrottle;

/// See the module's description.
pub struct Ballast {
    file: Mutex<Arc<dyn StorageFile>>,
    /// How long the file is when it is whole.
    bytes: AtomicU64,
    is_whole: AtomicBool,
    releases: LogThrottle,
}

impl Ballast {
    /// Opens the file `name`, or makes it, and lets it have `bytes` bytes if the disk has them.
    ///
    /// # Errors
    /// The file can't be opened or made. A full disk is no error: the ballast is not whole then.
    pub fn open(storage: &dyn Storage, name: &str, bytes: u64) -> Result<Ballast> {
        let file = match storage.exists(name)? {
            true => storage.open(name)?,
            false => storage.create(name)?,
        };
        let ballast = Ballast {
            file: Mutex::new(file),
            bytes: AtomicU64::new(bytes),
            is_whole: AtomicBool::new(false),
            releases: LogThrottle::default(),
        };
        match ballast.restore() {
            Err(error) if !error.is_no_space() => Err(error),
            _ => Ok(ballast),
        }
    }

    /// Whether all of it is there to be released.
    pub fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// Bytes that it takes on the disk now.
    pub fn bytes(&self) -> u64 {
        self.file.lock().len().unwrap_or(0)
    }

    /// Changes how long [`Ballast::restore`] makes it. With another length it is not whole.
    pub fn set_bytes(&self, bytes: u64) {
        if self.bytes.swap(bytes, Ordering::Relaxed) != bytes {
            self.is_whole.store(false, Ordering::Release);
        }
    }

    /// Gives its space back to the file system. Returns whether there was any: then it is worth
    /// trying again what the full disk has refused.
    pub fn release(&self) -> bool {
        let file = self.file.lock();
        let len = file.len().unwrap_or(0);
        if len == 0 || file.set_len(0).is_err() {
            return false;
        }
        self.is_whole.store(false, Ordering::Release);
        if let Some(unsaid) = self.releases.is_due(Instant::now()) {
            tracing::warn!(
                unsaid,
                "{}: the disk is full: this file gives its {len} bytes to what the redo log has; \
                 statements that need more fail until the disk has these bytes again: free some",
                file.name()
            );
        }
        true
    }

    /// Makes it whole again. Where the file system would have to be written to for that, it is
    /// whole without a byte: to write it again and again, on a disk that is full, would harm more
    /// than it helps.
    ///
    /// # Errors
    /// The disk has not enough space: nothing has changed.
    pub fn restore(&self) -> Result<()> {
        let file = self.file.lock();
        if !self.is_whole() {
            let bytes = self.bytes.load(Ordering::Relaxed);
            if file.set_len_without_writing(bytes)? {
                debug_assert_eq!(file.len().ok(), Some(bytes), "it has the length that was set");
            }
            self.is_whole.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl fmt::Debug for Ballast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ballast").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimStorage;

    #[test]
    fn its_space_is_there_for_whoever_releases_it_and_comes_back_with_space() {
        let disk = SimStorage::new(1);
        disk.set_capacity(Some(1 << 20));
        let ballast = Ballast::open(&disk, "ballast", 512 << 10).unwrap();
        assert!(ballast.is_whole());
        let file = disk.create("file").unwrap();
        assert!(file.set_len(600 << 10).unwrap_err().is_no_space());
        assert!(ballast.release() && !ballast.is_whole());
        assert!(!ballast.release(), "there is nothing more to release");
        file.set_len(600 << 10).unwrap();
        assert!(ballast.restore().unwrap_err().is_no_space());
        assert_eq!(ballast.bytes(), 0);
        file.set_len(400 << 10).unwrap();
        ballast.restore().unwrap();
        assert_eq!((ballast.is_whole(), ballast.bytes()), (true, 512 << 10));
    }

    #[test]
    fn a_full_disk_leaves_it_released_until_there_is_space_at_an_open_or_later() {
        let disk = SimStorage::new(1);
        disk.set_capacity(Some(256 << 10));
        let ballast = Ballast::open(&disk, "ballast", 512 << 10).unwrap();
        assert!(!ballast.is_whole() && !ballast.release());
        ballast.set_bytes(128 << 10);
        ballast.restore().unwrap();
        assert!(ballast.is_whole());
        drop(ballast);
        let ballast = Ballast::open(&disk, "ballast", 64 << 10).unwrap();
        assert_eq!((ballast.is_whole(), ballast.bytes()), (true, 64 << 10));
        assert_eq!(disk.open("ballast").unwrap().len().unwrap(), 64 << 10);
    }
}
