//! Runs of a sort in its file: written once, read once, in blocks.

use super::BLOCK;
use crate::error::{Error, Result};
use std::sync::Arc;
use tidepool_pool::storage::{AlignedBuf, StorageFile};

/// Where a run is in the file, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub start: u64,
    pub end: u64,
}

/// Writes a run.
pub(super) struct RunWriter<'f> {
    file: &'f dyn StorageFile,
    start: u64,
    /// Where `block` goes.
    offset: u64,
    block: AlignedBuf,
    filled: usize,
}

impl<'f> RunWriter<'f> {
    /// `start` is a multiple of the block size.
    pub fn new(file: &'f dyn StorageFile, start: u64) -> Self {
        Self { file, start, offset: start, block: AlignedBuf::zeroed(BLOCK), filled: 0 }
    }

    pub fn entry(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.bytes(&(key.len() as u32).to_le_bytes())?;
        self.bytes(&(value.len() as u32).to_le_bytes())?;
        self.bytes(key)?;
        self.bytes(value)
    }

    fn bytes(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.filled == BLOCK {
                self.write_block()?;
            }
            let len = bytes.len().min(BLOCK - self.filled);
            self.block[self.filled..self.filled + len].copy_from_slice(&bytes[..len]);
            self.filled += len;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    fn write_block(&mut self) -> Result<()> {
        // All of it: direct I/O takes no odd lengths.
        self.file.write_at(&self.block, self.offset)?;
        self.offset += BLOCK as u64;
        self.filled = 0;
        Ok(())
    }

    pub fn finish(mut self) -> Result<Run> {
        let end = self.offset + self.filled as u64;
        if self.filled > 0 {
            self.write_block()?;
        }
        Ok(Run { start: self.start, end })
    }
}

/// Reads a run, entry by entry.
pub(super) struct RunReader {
    file: Arc<dyn StorageFile>,
    /// Where the next block is, and where the run ends.
    offset: u64,
    end: u64,
    block: AlignedBuf,
    /// What of the block is still to be given.
    rest: std::ops::Range<usize>,
    /// The present entry.
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl RunReader {
    pub fn new(file: Arc<dyn StorageFile>, run: &Run) -> Self {
        let block = AlignedBuf::zeroed(BLOCK);
        let (key, value) = (Vec::new(), Vec::new());
        Self { file, offset: run.start, end: run.end, block, rest: 0..0, key, value }
    }

    /// Goes to the next entry; false at the end.
    pub fn advance(&mut self) -> Result<bool> {
        if self.rest.is_empty() && self.offset >= self.end {
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
                if self.offset >= self.end {
                    let why = format!("{}: a sorted run is cut short", self.file.name());
                    return Err(Error::Storage(why));
                }
                self.file.read_at(&mut self.block, self.offset)?;
                let filled = (self.end - self.offset).min(BLOCK as u64) as usize;
                self.rest = 0..filled;
                self.offset += BLOCK as u64;
            }
            let taken = len.min(self.rest.len());
            out.extend_from_slice(&self.block[self.rest.start..self.rest.start + taken]);
            self.rest.start += taken;
            len -= taken;
        }
        Ok(())
    }
}
