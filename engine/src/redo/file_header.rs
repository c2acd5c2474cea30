//! The header of a redo file: its first block.
//!
//! ```text
//!   0  magic "TPREDO\0\0"
//!   8  format version u32
//!  12  file number u32
//!  16  instance uuid, 16 bytes
//!  32  LSN of the first byte after the header u64
//!  40  bytes of log the file holds u64
//! 508  crc32c u32 of bytes 0..508
//! ```
//!
//! All of it lies in one 512-byte sector, so a header is the old or the new one, never a mixture.

use tidepool_pool::Lsn;
use tidepool_pool::storage::{AlignedBuf, StorageFile};

use super::{BLOCK_SIZE, FORMAT_VERSION};
use crate::error::{Error, Remedy, Result};

const MAGIC: &[u8; 8] = b"TPREDO\0\0";
const CRC_AT: usize = 508;

/// Bytes before the log begins in a redo file.
pub const HEADER_SIZE: u64 = BLOCK_SIZE as u64;

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// Number in the file's name.
    pub file_no: u32,
    /// Identifies the data directory.
    pub uuid: [u8; 16],
    /// LSN of the first byte after the header.
    pub start: Lsn,
    /// Bytes of log the file holds.
    pub size: u64,
}

impl FileHeader {
    /// Writes the header over the first block of `block`.
    pub fn encode(&self, block: &mut [u8]) {
        block[..BLOCK_SIZE].fill(0);
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&self.file_no.to_le_bytes());
        block[16..32].copy_from_slice(&self.uuid);
        block[32..40].copy_from_slice(&self.start.0.to_le_bytes());
        block[40..48].copy_from_slice(&self.size.to_le_bytes());
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a header; `file` is for messages.
    pub fn decode(block: &[u8], file: &str) -> Result<Self> {
        if &block[..8] != MAGIC {
            return Err(Error::lost(file, "not a redo log file", Remedy::RestoreDirectory));
        }
        let stored = u32::from_le_bytes(field(block, CRC_AT));
        if stored != crc32c::crc32c(&block[..CRC_AT]) {
            let why = "the header's checksum is wrong";
            return Err(Error::lost(file, why, Remedy::RestoreDirectory));
        }
        let version = u32::from_le_bytes(field(block, 8));
        if version != FORMAT_VERSION {
            return Err(super::unknown_version(file, version));
        }
        Ok(Self {
            file_no: u32::from_le_bytes(field(block, 12)),
            uuid: field(block, 16),
            start: Lsn(u64::from_le_bytes(field(block, 32))),
            size: u64::from_le_bytes(field(block, 40)),
        })
    }
}

impl FileHeader {
    /// The header of `file`, if it is a whole file of this data directory with this number. `block`
    /// is room for it.
    ///
    /// One that can't be read is taken for one that a power cut tore, as some devices tell of it in
    /// this way until it is written again. Then the file was about to be used, and there is no log
    /// in it yet: the header is synced before the log goes on in it.
    pub fn read(
        file: &dyn StorageFile,
        uuid: &[u8; 16],
        file_no: u32,
        block: &mut AlignedBuf,
    ) -> Option<Self> {
        let len = match file.read_at(&mut block[..BLOCK_SIZE], 0).and_then(|()| file.len()) {
            Ok(len) => len,
            Err(error) => {
                if !error.is_unexpected_eof() {
                    tracing::warn!(%error, "taken for a redo file that was not in use yet");
                }
                return None;
            }
        };
        let header = Self::decode(block, file.name()).ok()?;
        let is_ours = header.uuid == *uuid
            && header.file_no == file_no
            && len >= HEADER_SIZE.saturating_add(header.size);
        is_ours.then_some(header)
    }
}

/// The `N` bytes at `at`.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> FileHeader {
        FileHeader { file_no: 3, uuid: [7; 16], start: Lsn(4096), size: 1 << 20 }
    }

    #[test]
    fn bytes_are_as_documented() {
        let mut block = vec![0xaa; BLOCK_SIZE];
        header().encode(&mut block);
        assert_eq!(&block[..16], b"TPREDO\0\0\x05\0\0\0\x03\0\0\0");
        assert_eq!(&block[16..32], &[7; 16]);
        assert_eq!(&block[32..48], &[0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0]);
        assert!(block[48..508].iter().all(|&b| b == 0));
        assert!(block[512..].iter().all(|&b| b == 0));
    }

    proptest! {
        #[test]
        fn round_trip_and_flipped_bits(file_no in any::<u32>(), uuid in any::<[u8; 16]>(), start in any::<u64>(), size in any::<u64>(), bit in 0usize..4096) {
            let header = FileHeader { file_no, uuid, start: Lsn(start), size };
            let mut block = vec![0; BLOCK_SIZE];
            header.encode(&mut block);
            prop_assert_eq!(FileHeader::decode(&block, "f").unwrap(), header);
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(FileHeader::decode(&block, "f").is_err());
        }
    }

    #[test]
    fn messages() {
        let mut block = vec![0; BLOCK_SIZE];
        header().encode(&mut block);
        block[100] = 1;
        assert_eq!(
            FileHeader::decode(&block, "redo/redo.00000003").unwrap_err().to_string(),
            "redo/redo.00000003: the header's checksum is wrong: restore the data directory from a \
             backup"
        );
        header().encode(&mut block);
        block[8] = 6;
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            FileHeader::decode(&block, "redo/redo.00000003").unwrap_err().to_string(),
            "redo/redo.00000003: format version 6, but this program reads only version 5: use the \
             version of Tidepool that wrote it"
        );
        assert_eq!(
            FileHeader::decode(&[0; BLOCK_SIZE], "x").unwrap_err().to_string(),
            "x: not a redo log file: restore the data directory from a backup"
        );
    }
}
