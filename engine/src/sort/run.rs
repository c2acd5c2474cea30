//! Runs of a sort in its file: written once, read once, in blocks.
//!
//! ```text
//! block    crc32c u32 of the block's offset in the file (u64), of the run's pass (u32) and of all
//!          that follows | PAYLOAD bytes of the run | tag, 16 bytes
//! ```
//! With a key, the bytes of the run are encrypted, by the number of the block and the pass; else
//! the tag is zeroes.
//!
//! The offset is under the checksum because a disk can also give a block that belongs elsewhere;
//! the pass, because it can give the one that was there before.

use super::BLOCK;
use crate::error::{Error, Result};
use std::sync::Arc;
use tidepool_pool::encryption::{NumberedKey, TAG_BYTES};
use tidepool_pool::storage::{AlignedBuf, StorageFile};

const CRC_SIZE: usize = size_of::<u32>();
/// Bytes of a run in a block.
const PAYLOAD: usize = BLOCK - CRC_SIZE - TAG_BYTES;
const TAG_AT: usize = BLOCK - TAG_BYTES;
/// Bits of a block's number in the number that it is encrypted by; the others are the pass.
const BLOCK_NO_BITS: u32 = 40;

/// A file of runs, and the key that its blocks are encrypted with.
#[derive(Clone)]
pub(super) struct RunFile {
    pub file: Arc<dyn StorageFile>,
    pub key: Option<Arc<NumberedKey>>,
}

impl RunFile {
    /// The number of a block in a pass. A pass writes each block once.
    fn number(offset: u64, pass: u32) -> u64 {
        let block = offset / BLOCK as u64;
        assert!(block < 1 << BLOCK_NO_BITS && pass < 1 << (u64::BITS - BLOCK_NO_BITS));
        u64::from(pass) << BLOCK_NO_BITS | block
    }

    fn seal(&self, block: &mut [u8], offset: u64, pass: u32) {
        let Some(key) = &self.key else { return };
        let (bytes, tag) = block.split_at_mut(TAG_AT);
        let made = key.seal(Self::number(offset, pass), &mut bytes[CRC_SIZE..]);
        tag.copy_from_slice(&made);
    }

    /// False if the block is not the one that was sealed.
    fn open(&self, block: &mut [u8], offset: u64, pass: u32) -> bool {
        let Some(key) = &self.key else { return true };
        let (bytes, tag) = block.split_at_mut(TAG_AT);
        let tag: &[u8; TAG_BYTES] = (&*tag).try_into().expect("16 bytes");
        key.open(Self::number(offset, pass), &mut bytes[CRC_SIZE..], tag).is_ok()
    }
}

fn checksum(block: &[u8], offset: u64, pass: u32) -> [u8; CRC_SIZE] {
    let place = crc32c::crc32c(&offset.to_le_bytes());
    let place = crc32c::crc32c_append(place, &pass.to_le_bytes());
    crc32c::crc32c_append(place, &block[CRC_SIZE..]).to_le_bytes()
}

/// Where a run is in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Offset of the first block.
    start: u64,
    /// Bytes of its entries.
    len: u64,
    /// Merges that its entries have been through.
    pass: u32,
}

/// Puts the right checksums into all blocks of a file's bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn stamp(file: &mut [u8]) {
    for (block, offset) in file.chunks_exact_mut(BLOCK).zip((0..).step_by(BLOCK)) {
        let crc = checksum(block, offset, 0);
        block[..CRC_SIZE].copy_from_slice(&crc);
    }
}

impl Run {
    /// Bytes of its entries.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// One of this length at the beginning of a file.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn at_start(len: u64) -> Run {
        Run { start: 0, len, pass: 0 }
    }

    /// Where it begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Merges that its entries have been through.
    pub fn pass(&self) -> u32 {
        self.pass
    }

    /// Where the next run can begin.
    pub fn end(&self) -> u64 {
        self.start + self.len.div_ceil(PAYLOAD as u64) * BLOCK as u64
    }
}

/// Writes a run.
pub(super) struct RunWriter<'f> {
    file: &'f RunFile,
    run: Run,
    /// Where `block` goes.
    offset: u64,
    block: AlignedBuf,
    /// Bytes of the run in `block`.
    filled: usize,
}

impl<'f> RunWriter<'f> {
    /// `start` is a multiple of the block size.
    pub fn new(file: &'f RunFile, start: u64, pass: u32) -> Self {
        let run = Run { start, len: 0, pass };
        Self { file, run, offset: start, block: AlignedBuf::zeroed(BLOCK), filled: 0 }
    }

    pub fn entry(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.bytes(&(key.len() as u32).to_le_bytes())?;
        self.bytes(&(value.len() as u32).to_le_bytes())?;
        self.bytes(key)?;
        self.bytes(value)
    }

    fn bytes(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.run.len += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.filled == PAYLOAD {
                self.write_block()?;
            }
            let len = bytes.len().min(PAYLOAD - self.filled);
            let at = CRC_SIZE + self.filled;
            self.block[at..at + len].copy_from_slice(&bytes[..len]);
            self.filled += len;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    fn write_block(&mut self) -> Result<()> {
        // All of it, whatever is behind the run's end: direct I/O takes no odd lengths.
        self.file.seal(&mut self.block, self.offset, self.run.pass);
        let crc = checksum(&self.block, self.offset, self.run.pass);
        self.block[..CRC_SIZE].copy_from_slice(&crc);
        self.file.file.write_at(&self.block, self.offset)?;
        self.offset += BLOCK as u64;
        self.filled = 0;
        Ok(())
    }

    pub fn finish(mut self) -> Result<Run> {
        if self.filled > 0 {
            self.write_block()?;
        }
        assert_eq!(self.run.end(), self.offset, "the next run begins behind this one");
        Ok(self.run)
    }
}

/// Reads a run, entry by entry.
pub(super) struct RunReader {
    file: RunFile,
    pass: u32,
    /// Where the next block is.
    offset: u64,
    /// Bytes of the run in the blocks that come.
    unread: u64,
    block: AlignedBuf,
    /// What of the block is still to be given.
    rest: std::ops::Range<usize>,
    /// The present entry.
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl RunReader {
    pub fn new(file: RunFile, run: &Run) -> Self {
        let block = AlignedBuf::zeroed(BLOCK);
        let (key, value) = (Vec::new(), Vec::new());
        let (pass, offset, unread) = (run.pass, run.start, run.len);
        Self { file, pass, offset, unread, block, rest: 0..0, key, value }
    }

    /// Goes to the next entry; false at the end.
    pub fn advance(&mut self) -> Result<bool> {
        if self.rest.is_empty() && self.unread == 0 {
            return Ok(false);
        }
        let (mut key, mut value) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        let key_len = self.length(&mut key)?;
        let value_len = self.length(&mut key)?;
        key.clear();
        value.clear();
        self.take(key_len, &mut key)?;
        self.take(value_len, &mut value)?;
        (self.key, self.value) = (key, value);
        Ok(true)
    }

    /// A length, by way of `scratch`.
    fn length(&mut self, scratch: &mut Vec<u8>) -> Result<usize> {
        scratch.clear();
        self.take(size_of::<u32>(), scratch)?;
        Ok(u32::from_le_bytes(scratch[..].try_into().expect("four bytes")) as usize)
    }

    fn take(&mut self, mut len: usize, out: &mut Vec<u8>) -> Result<()> {
        while len > 0 {
            if self.rest.is_empty() {
                self.read_block()?;
            }
            let taken = len.min(self.rest.len());
            out.extend_from_slice(&self.block[self.rest.start..self.rest.start + taken]);
            self.rest.start += taken;
            len -= taken;
        }
        Ok(())
    }

    fn read_block(&mut self) -> Result<()> {
        if self.unread == 0 {
            return Err(self.damaged("a sorted run is cut short before"));
        }
        self.file.file.read_at(&mut self.block, self.offset)?;
        if self.block[..CRC_SIZE] != checksum(&self.block, self.offset, self.pass) {
            return Err(self.damaged("the checksum is wrong of the block at"));
        }
        if !self.file.open(&mut self.block, self.offset, self.pass) {
            return Err(self.damaged("there are other bytes than were encrypted in the block at"));
        }
        let filled = self.unread.min(PAYLOAD as u64) as usize;
        self.rest = CRC_SIZE..CRC_SIZE + filled;
        self.unread -= filled as u64;
        self.offset += BLOCK as u64;
        Ok(())
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Storage(format!(
            "{}: {what} offset {}: the disk did not give back what was written; the table is as it was, repeat the statement, \
             and check the disk if it comes again",
            self.file.file.name(),
            self.offset
        ))
    }
}
