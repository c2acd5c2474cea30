//! [`ObservedStorage`]: a storage that says what is done with its files.
//!
//! Nothing of it is in the way of a storage that is not observed: who observes wraps the storage,
//! and who does not has no branch to pass.
//!
//! A batch is a single wait of the thread that has it run, however many operations it holds: the
//! observer hears of the first of them around the whole batch, and then of the others as if they
//! took no time. So counts and bytes are those of the operations, and times are those that threads
//! waited.
//!
//! Locking order: the table of open files is innermost.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{FileLease, FileUse, IoBuf, IoOp, Result, Storage, StorageFile, StorageLock};
use crate::OptionalObserver;

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOperation {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// What was written is made durable.
    Sync,
    /// The length is set.
    Resize,
}

/// By which an observer knows an open file again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileToken(pub usize);

/// Hears of files, in the threads that use them.
pub trait FileObserver: Send + Sync {
    /// A file of this name was opened or made.
    fn opened(&self, name: &str) -> FileToken;

    /// Such an open file was closed.
    fn closed(&self, file: FileToken);

    /// The file of this name is gone, and not open any more.
    fn removed(&self, name: &str);

    /// Has to call `run`, once, which does this operation with that number of bytes of a file.
    fn operation(&self, file: FileToken, op: FileOperation, bytes: usize, run: &mut dyn FnMut());
}

/// The observer of a storage, if there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileWatch(OptionalObserver<dyn FileObserver>);

impl FileWatch {
    /// This one hears of the files.
    pub fn by(observer: Arc<dyn FileObserver>) -> FileWatch {
        FileWatch(OptionalObserver::some(observer))
    }

    /// The storage, observed if there is an observer.
    pub fn over(&self, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
        match self.0.get() {
            Some(observer) => Arc::new(ObservedStorage::new(storage, observer.clone())),
            None => storage,
        }
    }
}

/// See the module's description.
pub struct ObservedStorage {
    inner: Arc<dyn Storage>,
    open: Arc<Observed>,
}

struct Observed {
    observer: Arc<dyn FileObserver>,
    names: Mutex<HashMap<String, Opened>>,
}

/// How often a file is open.
#[derive(Default)]
struct Opened {
    handles: usize,
    /// The name is gone, or another file's.
    removed: bool,
}

impl ObservedStorage {
    /// `observer` hears of what is done with the files of `inner`.
    pub fn new(inner: Arc<dyn Storage>, observer: Arc<dyn FileObserver>) -> ObservedStorage {
        ObservedStorage { inner, open: Arc::new(Observed { observer, names: Mutex::default() }) }
    }

    fn observed(&self, inner: Arc<dyn StorageFile>) -> Arc<dyn StorageFile> {
        // Under the mutex, as the end of another file of this name is.
        let mut names = self.open.names.lock();
        let opened = names.entry(inner.name().to_owned()).or_default();
        (opened.handles, opened.removed) = (opened.handles + 1, false);
        let token = self.open.observer.opened(inner.name());
        Arc::new(ObservedFile { inner, token, open: self.open.clone() })
    }
}

impl Storage for ObservedStorage {
    fn open(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        Ok(self.observed(self.inner.open(name)?))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn StorageFile>> {
        Ok(self.observed(self.inner.create(name)?))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.inner.remove(name)?;
        let mut names = self.open.names.lock();
        match names.get_mut(name) {
            Some(opened) => opened.removed = true,
            None => self.open.observer.removed(name),
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn exists(&self, name: &str) -> Result<bool> {
        self.inner.exists(name)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn create_dir(&self, dir: &str) -> Result<()> {
        self.inner.create_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.inner.sync_dir(dir)
    }

    fn lock(&self, name: &str) -> Result<StorageLock> {
        self.inner.lock(name)
    }

    fn run_batch(&self, ops: &mut [IoOp<'_>]) {
        let mut files: Vec<(FileToken, FileOperation, usize)> = Vec::with_capacity(ops.len());
        let mut plain: Vec<IoOp<'_>> = Vec::with_capacity(ops.len());
        for op in &mut *ops {
            let (operation, buf) = match &mut op.buf {
                IoBuf::Read(bytes) => (FileOperation::Read, IoBuf::Read(bytes)),
                IoBuf::Write(bytes) => (FileOperation::Write, IoBuf::Write(bytes)),
            };
            let (file, token) = match op.file.as_observed() {
                Some(observed) => (&*observed.inner, observed.token),
                None => (op.file, FileToken::default()),
            };
            files.push((token, operation, buf.len()));
            plain.push(IoOp { file, offset: op.offset, buf, result: Ok(()) });
        }
        let mut files = files.into_iter();
        let Some((file, operation, bytes)) = files.next() else { return };
        let observer = &self.open.observer;
        observer.operation(file, operation, bytes, &mut || self.inner.run_batch(&mut plain));
        for (file, operation, bytes) in files {
            observer.operation(file, operation, bytes, &mut || ());
        }
        let results: Vec<Result<()>> = plain.into_iter().map(|op| op.result).collect();
        for (op, result) in ops.iter_mut().zip(results) {
            op.result = result;
        }
    }
}

/// An open file of such a storage.
pub struct ObservedFile {
    inner: Arc<dyn StorageFile>,
    token: FileToken,
    open: Arc<Observed>,
}

impl ObservedFile {
    fn observe<R>(&self, op: FileOperation, bytes: usize, run: impl FnOnce() -> R) -> R {
        let (mut run, mut result) = (Some(run), None);
        self.open.observer.operation(self.token, op, bytes, &mut || {
            result = run.take().map(|run| run());
        });
        result.expect("an observer runs each operation once")
    }
}

impl StorageFile for ObservedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.observe(FileOperation::Read, buf.len(), || self.inner.read_at(buf, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.observe(FileOperation::Write, bytes.len(), || self.inner.write_at(bytes, offset))
    }

    fn sync_data(&self) -> Result<()> {
        self.observe(FileOperation::Sync, 0, || self.inner.sync_data())
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.observe(FileOperation::Resize, 0, || self.inner.set_len(len))
    }

    fn set_len_without_writing(&self, len: u64) -> Result<bool> {
        self.observe(FileOperation::Resize, 0, || self.inner.set_len_without_writing(len))
    }

    fn io_alignment(&self) -> usize {
        self.inner.io_alignment()
    }

    fn lease(&self, purpose: FileUse) -> Option<FileLease> {
        self.inner.lease(purpose)
    }

    fn as_observed(&self) -> Option<&ObservedFile> {
        Some(self)
    }
}

impl Drop for ObservedFile {
    fn drop(&mut self) {
        let mut names = self.open.names.lock();
        self.open.observer.closed(self.token);
        let Some(opened) = names.get_mut(self.inner.name()) else { return };
        opened.handles -= 1;
        if opened.handles == 0 {
            if opened.removed {
                self.open.observer.removed(self.inner.name());
            }
            names.remove(self.inner.name());
        }
    }
}
