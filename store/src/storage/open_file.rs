//! One open file of the real storage: direct or buffered transfers, growth with allocation, syncs.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::file::{clear_direct, is_aligned, misaligned, report_fallback, retry_interrupted};
use super::handles::{FileLease, FileState, FileUse, Handles};
use super::{AlignedBuf, Result, StorageError, StorageFile, StorageOp};

/// One open file of a [`FileStorage`](super::FileStorage).
pub(super) struct OpenFile {
    state: Arc<FileState>,
    handles: Arc<Handles>,
    name: Box<str>,
    /// Stays as it was at open even when direct I/O is given up later.
    alignment: usize,
    fallback_reported: Arc<AtomicBool>,
}

impl OpenFile {
    pub(super) fn new(
        state: Arc<FileState>,
        handles: &Arc<Handles>,
        name: &str,
        alignment: usize,
        fallback_reported: Arc<AtomicBool>,
    ) -> OpenFile {
        OpenFile {
            state,
            handles: handles.clone(),
            name: name.into(),
            alignment,
            fallback_reported,
        }
    }

    /// The descriptor, opened again if it was closed meanwhile; `op` at `offset` fails if that
    /// fails.
    fn descriptor(
        &self,
        op: StorageOp,
        offset: Option<u64>,
        purpose: FileUse,
    ) -> Result<FileLease> {
        self.handles.lease(&self.state, purpose).map_err(|error| {
            let error = StorageError::new(op, &self.name, error);
            StorageError { offset, ..error }
        })
    }

    fn check_alignment(&self, op: StorageOp, bytes: &[u8], offset: u64) -> Result<()> {
        if is_aligned(bytes, offset, self.alignment) {
            return Ok(());
        }
        Err(StorageError::at(op, &self.name, offset, misaligned(bytes, self.alignment)))
    }

    /// Whether the caller should try an aligned operation again that failed, as the file system
    /// took `O_DIRECT` at open but refuses it now; from here on the file is buffered.
    /// `was_buffered` is the caller's, false before its first try: whether the descriptor was known
    /// to be buffered when the failed try began. Only then is the error not one of direct I/O, for
    /// another thread that was refused may have made the descriptor buffered since; it never
    /// becomes direct again.
    fn gave_up_direct(
        &self,
        lease: &FileLease,
        was_buffered: &mut bool,
        error: &io::Error,
    ) -> bool {
        if *was_buffered || error.raw_os_error() != Some(Errno::INVAL.raw_os_error()) {
            return false;
        }
        match rustix::fs::fcntl_getfl(lease) {
            Ok(flags) if flags.contains(OFlags::DIRECT) => {
                if clear_direct(lease.as_fd()).is_err() {
                    return false;
                }
                self.state.give_up_direct();
                report_fallback(&self.fallback_reported, &self.name);
            }
            Ok(_) => {}
            Err(_) => return false,
        }
        *was_buffered = true;
        true
    }

    /// Sets the length; `grow` does so where that is more than the old one, which it gets.
    fn change_len(
        &self,
        len: u64,
        grow: impl FnOnce(&File, u64) -> io::Result<bool>,
    ) -> Result<bool> {
        let failed = |error| StorageError::at(StorageOp::SetLen, &self.name, len, error);
        let lease = self.descriptor(StorageOp::SetLen, Some(len), FileUse::Write)?;
        let file = lease.file();
        let old = file.metadata().map_err(failed)?.len();
        if len <= old {
            return file.set_len(len).map(|()| true).map_err(failed);
        }
        grow(file, old).map_err(|error| {
            // A half-grown file would pass for a grown one at the next start. If even this fails,
            // the error at hand is still the one to tell.
            let _ = file.set_len(old);
            failed(error)
        })
    }

    fn grow(&self, file: &File, from: u64, to: u64) -> io::Result<()> {
        if allocate(file, from, to)? { Ok(()) } else { self.grow_by_writing(file, from, to) }
    }

    /// For file systems without `fallocate`: zeroes really written allocate the space.
    fn grow_by_writing(&self, file: &File, from: u64, to: u64) -> io::Result<()> {
        const CHUNK: u64 = 1 << 20;
        let zeroes = AlignedBuf::zeroed(CHUNK as usize);
        let mut offset = from;
        // Direct writes need whole blocks: a ragged start or end is only given its length.
        let align = self.alignment as u64;
        let (first, last) = (from.next_multiple_of(align), to / align * align);
        if first < last {
            offset = first;
            while offset < last {
                let len = CHUNK.min(last - offset);
                file.write_all_at(&zeroes[..len as usize], offset)?;
                offset += len;
            }
        }
        if offset < to { file.set_len(to) } else { Ok(()) }
    }
}

/// Lets the file system allocate space for the bytes from `from` to `to`. Returns false where it
/// has no `fallocate`.
fn allocate(file: &File, from: u64, to: u64) -> io::Result<bool> {
    debug_assert!(from < to, "there is space to be allocated");
    let allocated =
        retry_interrupted(|| rustix::fs::fallocate(file, FallocateFlags::empty(), from, to - from));
    match allocated {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

impl StorageFile for OpenFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check_alignment(StorageOp::Read, buf, offset)?;
        let lease = self.descriptor(StorageOp::Read, Some(offset), FileUse::Read)?;
        let (mut done, mut was_buffered) = (0, false);
        while done < buf.len() {
            match lease.file().read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => {
                    let eof = io::ErrorKind::UnexpectedEof;
                    return Err(StorageError::at(StorageOp::Read, &self.name, offset, eof));
                }
                // A short read stops at the end of the file or at a signal. After a signal direct
                // I/O must go on from a whole block.
                Ok(n) if done + n == buf.len() || !self.state.is_direct() => done += n,
                Ok(_) if offset + buf.len() as u64 > self.len()? => {
                    let eof = io::ErrorKind::UnexpectedEof;
                    return Err(StorageError::at(StorageOp::Read, &self.name, offset, eof));
                }
                Ok(n) => done = (done + n) / self.alignment * self.alignment,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.gave_up_direct(&lease, &mut was_buffered, &error) => {}
                Err(error) => {
                    return Err(StorageError::at(StorageOp::Read, &self.name, offset, error));
                }
            }
        }
        assert_eq!(done, buf.len(), "every byte was read");
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_alignment(StorageOp::Write, bytes, offset)?;
        let lease = self.descriptor(StorageOp::Write, Some(offset), FileUse::Write)?;
        let (mut done, mut was_buffered) = (0, false);
        while done < bytes.len() {
            let error = match lease.file().write_at(&bytes[done..], offset + done as u64) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                // A direct write that stops inside a block starts that block again.
                Ok(n) if self.state.is_direct() && done + n < bytes.len() => {
                    let whole = (done + n) / self.alignment * self.alignment;
                    if whole > done {
                        done = whole;
                        continue;
                    }
                    io::ErrorKind::WriteZero.into()
                }
                Ok(n) => {
                    done += n;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if self.gave_up_direct(&lease, &mut was_buffered, &error) => continue,
                Err(error) => error,
            };
            return Err(StorageError::at(StorageOp::Write, &self.name, offset, error));
        }
        assert_eq!(done, bytes.len(), "every byte was written");
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        let lease = self.descriptor(StorageOp::Sync, None, FileUse::Read)?;
        self.state
            .sync(&lease)
            .map_err(|error| StorageError::new(StorageOp::Sync, &self.name, error))
    }

    fn len(&self) -> Result<u64> {
        let lease = self.descriptor(StorageOp::Len, None, FileUse::Read)?;
        match lease.file().metadata() {
            Ok(meta) => Ok(meta.len()),
            Err(error) => Err(StorageError::new(StorageOp::Len, &self.name, error)),
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let grow = |file: &File, old| self.grow(file, old, len).map(|()| true);
        self.change_len(len, grow).map(drop)
    }

    fn set_len_without_writing(&self, len: u64) -> Result<bool> {
        self.change_len(len, |file, old| allocate(file, old, len))
    }

    fn io_alignment(&self) -> usize {
        self.alignment
    }

    fn lease(&self, purpose: FileUse) -> Option<FileLease> {
        self.handles.lease(&self.state, purpose).ok()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.handles.forget(&self.state);
    }
}
