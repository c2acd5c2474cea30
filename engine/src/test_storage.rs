//! [`Hooked`]: a simulated disk of which a test changes some operations; and where pages are on a
//! disk, to be spoilt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidepool_pool::packed::{Codec, Image, PackedFile, Stream};
use tidepool_pool::storage::{IoOp, Result, SimStorage, Storage, StorageFile, StorageLock};
use tidepool_pool::{PageId, page};

use crate::files::space_file_name;
use crate::page_files::PageFiles;
use crate::redo::control::{CONTROL_FILE, Control};

/// The file of a space, as it is on the disk.
fn file_of(disk: &SimStorage, space: u32) -> PackedFile {
    let (control, _) = Control::read(&*disk.open(CONTROL_FILE).unwrap()).unwrap();
    let files = PageFiles::to_read(disk, control.page_size, control.uuid);
    let files = PageFiles { read_only: false, ..files };
    files.open(space, disk.open(&space_file_name(space)).unwrap()).unwrap()
}

/// Where a page is on the disk: byte offset in its file, and bytes.
pub(crate) fn place_of(disk: &SimStorage, page: PageId) -> (u64, usize) {
    let entry = file_of(disk, page.space).find(page.space, page.no).unwrap();
    let entry = entry.expect("the page was written");
    (entry.offset(), entry.len as usize)
}

/// One more than the highest page of a space on the disk.
pub(crate) fn end_of(disk: &SimStorage, space: u32) -> u32 {
    file_of(disk, space).end(space).unwrap()
}

/// A page as it is on the disk.
pub(crate) fn read_page(disk: &SimStorage, page: PageId, page_size: usize) -> Vec<u8> {
    let mut bytes = vec![0; page_size];
    file_of(disk, page.space).read(page.space, page.no, &mut bytes).unwrap();
    bytes
}

/// Writes a page as the engine does, with its right checksum unless the bytes are zeroes.
pub(crate) fn write_page(disk: &SimStorage, page: PageId, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if !page::is_zero(&bytes) {
        page::stamp_checksum(&mut bytes);
    }
    let image = Image::plain((page.space, page.no), Codec::Raw, bytes);
    file_of(disk, page.space).write(Stream::Flushed, &[image]).unwrap();
}

/// Flips a bit in the middle of a page, as it is on the disk.
pub(crate) fn spoil(disk: &SimStorage, page: PageId) {
    let (offset, len) = place_of(disk, page);
    disk.corrupt(&space_file_name(page.space), offset + len as u64 / 2, 1);
}

/// What is done in place of an operation. What is not overridden goes straight to the disk.
pub(crate) trait Hooks: Send + Sync {
    /// A read of a file.
    fn read(&self, file: &dyn StorageFile, buf: &mut [u8], offset: u64) -> Result<()> {
        file.read_at(buf, offset)
    }

    /// A write to a file.
    fn write(&self, file: &dyn StorageFile, bytes: &[u8], offset: u64) -> Result<()> {
        file.write_at(bytes, offset)
    }

    /// A batch of both, each of which comes to the hooks above.
    fn batch(&self, disk: &SimStorage, ops: &mut [IoOp<'_>]) {
        disk.run_batch(ops);
    }

    /// A lock that was taken.
    fn locked(&self, lock: StorageLock) -> StorageLock {
        lock
    }
}

/// A lock that says in `released` when it is given up.
pub(crate) fn watched_lock(lock: StorageLock, released: &Arc<AtomicBool>) -> StorageLock {
    struct Watched {
        _held: StorageLock,
        released: Arc<AtomicBool>,
    }
    impl Drop for Watched {
        fn drop(&mut self) {
            self.released.store(true, Ordering::SeqCst);
        }
    }
    StorageLock::new(Watched { _held: lock, released: Arc::clone(released) })
}

/// A disk with hooks.
pub(crate) struct Hooked<H> {
    pub(crate) disk: SimStorage,
    pub(crate) hooks: Arc<H>,
}

struct HookedFile<H> {
    file: Arc<dyn StorageFile>,
    hooks: Arc<H>,
}

impl<H: Hooks + 'static> Hooked<H> {
    pub(crate) fn new(disk: SimStorage, hooks: H) -> Arc<Self> {
        Arc::new(Self { disk, hooks: Arc::new(hooks) })
    }

    fn file(&self, file: Arc<dyn StorageFile>) -> Arc<dyn StorageFile> {
        Arc::new(HookedFile { file, hooks: self.hooks.clone() })
    }
}

impl<H: Hooks + 'static> Storage for Hooked<H> {
    fn open(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        Ok(self.file(self.disk.open(name)?))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        Ok(self.file(self.disk.create(name)?))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.disk.rename(from, to)
    }

    fn exists(&self, name: &str) -> Result<bool> {
        self.disk.exists(name)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        self.disk.create_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.disk.sync_dir(dir)
    }

    fn lock(&self, name: &str) -> Result<StorageLock> {
        Ok(self.hooks.locked(self.disk.lock(name)?))
    }

    fn run_batch(&self, ops: &mut [IoOp<'_>]) {
        self.hooks.batch(&self.disk, ops);
    }
}

impl<H: Hooks> StorageFile for HookedFile<H> {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.hooks.read(&*self.file, buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.hooks.write(&*self.file, bytes, offset)
    }

    fn sync_data(&self) -> Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }

    fn io_alignment(&self) -> usize {
        self.file.io_alignment()
    }
}
