//! The log copied while it grows, into a separate redo directory: a backup's.
//!
//! The copy is one redo file, which begins with the block that the checkpoint lies in, and a
//! control file that says so. A recovery of it finds all frames from that checkpoint to the last
//! that was copied. The control file comes last; that no copy is opened before, the backup sees
//! to.
//!
//! # What is read
//! Blocks that are in the log's files whole, up to the last write; no frame is looked into. The
//! files are kept ([`Ring::keep`]) until they are copied: checkpoints go on, and what they free is
//! used again behind the copy. Should the copy stay behind so far that the log had to outgrow its
//! capacity by much for it, the log goes on without regard for it, and the copy fails. So does one
//! that finds another under way.
//!
//! # Locking order
//! `ring` is taken for moments, and not while a file is read or written.

use std::sync::Arc;

use tidepool_pool::Lsn;
use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile};

use super::control::{CONTROL_FILE, Control, FileEntry};
use super::file_header::{FileHeader, HEADER_SIZE};
use super::keys::KEYS_FILE;
use super::ring::{LiveFile, REDO_DIR, file_name};
use super::{BLOCK_SIZE, RedoLog, Ring, block_floor};
use crate::error::{Error, Result};

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;
/// Number of the copy's only file.
const FILE_NO: u32 = 1;

/// See the module's description.
pub(crate) struct LogCopy {
    log: Arc<RedoLog>,
    target: Arc<dyn Storage>,
    file: Arc<dyn StorageFile>,
    /// The log's state when the copy began: where a recovery of it begins.
    origin: Control,
    /// LSN of the copy's first byte, and of the one after its last; block boundaries.
    start: u64,
    end: u64,
    buf: AlignedBuf,
}

impl LogCopy {
    /// Begins to copy `log` into `target`, from its checkpoint on.
    pub fn begin(log: &Arc<RedoLog>, target: &Arc<dyn Storage>) -> Result<Self> {
        target.create_dir(REDO_DIR)?;
        let file = target.create(&file_name(FILE_NO))?;
        let mut ring = log.ring.lock();
        if ring.kept().is_some() {
            let _ = target.remove(&file_name(FILE_NO));
            return Err(Error::InvalidOption(
                "another backup is under way: wait for its end".into(),
            ));
        }
        let origin = ring.control().clone();
        let start = block_floor(origin.checkpoint.0);
        log.or_fail_unless_full(|| ring.keep(Some(Lsn(start))))?;
        drop(ring);
        Ok(Self {
            log: log.clone(),
            target: target.clone(),
            file,
            origin,
            start,
            end: start,
            buf: AlignedBuf::zeroed(CHUNK),
        })
    }

    /// The names of the files that it makes, the last one first.
    pub fn file_names() -> [String; 3] {
        [CONTROL_FILE.into(), KEYS_FILE.into(), file_name(FILE_NO)]
    }

    /// Where a recovery of the copy begins.
    pub fn checkpoint(&self) -> Lsn {
        self.origin.checkpoint
    }

    /// Bytes copied.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Copies what was written since the last time, except a block that is not full yet.
    pub fn follow(&mut self) -> Result<()> {
        self.copy_to(block_floor(self.log.written_lsn().0))
    }

    /// Copies the rest up to `end`, which has been flushed, and makes the copy complete and
    /// durable.
    pub fn finish(&mut self, end: Lsn) -> Result<()> {
        // The last block is being filled, and rewritten, all the time. What was synced in it keeps
        // its bytes in every rewrite. What lies behind `end` is left out: read in the middle of a
        // write, it might pass for damage.
        self.copy_to(block_floor(end.0))?;
        self.copy_last_block(end)?;
        // An empty file would say no more than none: a block that holds no frame ends the log as
        // well.
        if self.bytes() == 0 {
            self.buf[..BLOCK_SIZE].fill(0);
            self.file.write_at(&self.buf[..BLOCK_SIZE], HEADER_SIZE)?;
            self.end += BLOCK_SIZE as u64;
        }
        let header = FileHeader {
            file_no: FILE_NO,
            uuid: self.origin.uuid,
            start: Lsn(self.start),
            size: self.bytes(),
        };
        header.encode(&mut self.buf);
        self.file.write_at(&self.buf[..BLOCK_SIZE], 0)?;
        self.file.sync_data()?;
        self.target.sync_dir(REDO_DIR)?;
        self.write_control(header.size, end)
    }

    /// Copies what lies before `end` of the block that `end` is in.
    fn copy_last_block(&mut self, end: Lsn) -> Result<()> {
        let kept = end.0.saturating_sub(self.end) as usize;
        if kept == 0 {
            return Ok(());
        }
        let file = {
            let ring = self.log.ring.lock();
            self.check_kept(&ring)?;
            self.file_at_end(&ring)?
        };
        let block = &mut self.buf[..BLOCK_SIZE];
        file.file.read_at(block, file.offset(self.end))?;
        block[kept..].fill(0);
        self.file.write_at(block, HEADER_SIZE + self.end - self.start)?;
        self.go_on_behind(BLOCK_SIZE)
    }

    /// Lets the log have the files of these `len` bytes, which are copied.
    fn go_on_behind(&mut self, len: usize) -> Result<()> {
        let mut ring = self.log.ring.lock();
        // Once the directory is closed it may be another process's: a close waits for the ring.
        self.log.failure.check()?;
        // If it is not kept any more, what was read may be what the log went on with.
        self.check_kept(&ring)?;
        self.end += len as u64;
        self.log.or_fail_unless_full(|| ring.keep(Some(Lsn(self.end))))?;
        self.log.update_begin_limit(&ring);
        Ok(())
    }

    fn file_at_end(&self, ring: &Ring) -> Result<LiveFile> {
        ring.find(Lsn(self.end)).ok_or_else(|| {
            Error::Storage(format!("no redo file holds the log at LSN {}", self.end))
        })
    }

    fn write_control(&mut self, size: u64, end: Lsn) -> Result<()> {
        let control = Control {
            epoch: self.log.ring.lock().control().epoch,
            clean: false,
            next_file_no: FILE_NO + 1,
            durable: end,
            files: vec![FileEntry { file_no: FILE_NO, start: Some(Lsn(self.start)), size }],
            ..self.origin.clone()
        };
        {
            let mut ring = self.log.ring.lock();
            if !ring.keys().is_empty() {
                ring.keys().write(&*self.target, self.origin.uuid)?;
            }
        }
        let file = self.target.create(CONTROL_FILE)?;
        file.set_len(2 * BLOCK_SIZE as u64)?;
        control.encode(&mut self.buf);
        file.write_at(&self.buf[..BLOCK_SIZE], Control::slot_offset(control.sequence))?;
        file.sync_data()?;
        Ok(self.target.sync_dir(REDO_DIR)?)
    }

    /// Copies the blocks up to `to`, which are written.
    fn copy_to(&mut self, to: u64) -> Result<()> {
        while self.end < to {
            let (file, len) = {
                let ring = self.log.ring.lock();
                self.check_kept(&ring)?;
                let file = self.file_at_end(&ring)?;
                let len = (to.min(file.end.0) - self.end).min(CHUNK as u64) as usize;
                (file, len)
            };
            let bytes = &mut self.buf[..len];
            file.file.read_at(bytes, file.offset(self.end))?;
            self.file.write_at(bytes, HEADER_SIZE + self.end - self.start)?;
            self.go_on_behind(len)?;
        }
        Ok(())
    }

    fn check_kept(&self, ring: &Ring) -> Result<()> {
        match ring.kept() == Some(Lsn(self.end)) {
            true => Ok(()),
            false => Err(Error::Storage(format!(
                "the redo log has gone on from LSN {}, which was not copied yet: the backup's disk is too slow, or the log's is full; \
                 raise the redo log's capacity, or try again when less is written",
                self.end
            ))),
        }
    }
}

impl Drop for LogCopy {
    fn drop(&mut self) {
        let mut ring = self.log.ring.lock();
        if ring.kept() == Some(Lsn(self.end)) {
            // A failure stops the log, which reports it. Of a log that is closed nothing is
            // written.
            let _ = self.log.or_fail_unless_full(|| ring.keep(None));
            self.log.update_begin_limit(&ring);
        }
    }
}
