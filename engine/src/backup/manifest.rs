//! What a backup is of: for each file, which of its runs are in the backup for sure. The next
//! incremental backup needs no more of its base than this.
//!
//! # What the numbers mean
//! A row of the manifest names a file of the data directory by its random number, and a run of that
//! file that was durable before the backup read its first image. Every image that the file had at
//! that run, and that was not written again since, is in the backup. An incremental backup copies
//! the images of later runs. Not every run that the backup saw counts: one that was not durable may
//! be lost in a crash, and the file then goes on with other images under the same number.
//!
//! Recovery makes the same page of an image that such a lost run has left in the base: its changes
//! were durable in the log before it was written.
//!
//! # A data directory that went back in time
//! A snapshot of the file system can bring back an older state, which then goes on with other runs
//! of the same numbers. So the data directory knows the backups that were made of it
//! ([`super::made`]), and takes no other as a base.
//!
//! # Format
//! One file, `tidepool-backup-manifest`, little-endian, written once as a whole:
//! ```text
//!  0  magic      "TPBACKUP"
//!  8  crc32c     u32 of the bytes from 12 to the end of the rows
//! 12  version    u32: 1
//! 16  instance   uuid of the data directory, 16 bytes
//! 32  id         of this backup, 16 random bytes
//! 48  base       id of the backup that it is an increment of; zeroes: it is complete
//! 64  page size  u32
//! 68  rows       u32
//! 72  rows: space u32 | stretches u32 | file u64 | run u64 | since u64,
//!     then 8 bytes for each stretch of pages: first u32 | count u32
//! ```
//! `since` is the run after which images are in it; 0: all are. Only a row with a `since` has
//! stretches: they are the pages that have an image, in this backup or in its base. Zeroes follow
//! up to a whole block.

use tidepool_pool::PageSize;
use tidepool_pool::storage::{AlignedBuf, Storage};

use crate::error::{Error, Remedy, Result};
use crate::files::MANIFEST_FILE;

const MAGIC: &[u8; 8] = b"TPBACKUP";
const VERSION: u32 = 1;
const CHECKED_AT: usize = 12;
const ROWS_AT: usize = 72;
const ROW_BYTES: usize = 32;
const BLOCK: usize = 4096;

/// See the module's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// uuid of the data directory.
    pub instance: [u8; 16],
    /// Of this backup.
    pub id: [u8; 16],
    /// Of its base; `None`: it is complete.
    pub base: Option<[u8; 16]>,
    /// Bytes in a page.
    pub page_size: u32,
    pub files: Vec<FileRow>,
}

/// A file in a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRow {
    /// Of which space it is.
    pub space: u32,
    /// Its random number in the data directory.
    pub file: u64,
    /// What was written up to this run is in the backup, or in its base.
    pub run: u64,
    /// Only images of later runs are in the backup; 0: all are.
    pub since: u64,
    /// The pages that have an image, here or in the base: first page and count. Empty if all images
    /// are in the backup.
    pub stretches: Vec<(u32, u32)>,
}

impl FileRow {
    /// Adds pages behind those that it has.
    pub fn add_present(&mut self, stretches: &[(u32, u32)]) {
        for &(first, count) in stretches {
            match self.stretches.last_mut() {
                Some((start, len)) if *start + *len == first => *len += count,
                _ => self.stretches.push((first, count)),
            }
        }
    }
}

impl Manifest {
    /// The row of a file, if the backup has that very file.
    pub fn row_of(&self, space: u32, file: u64) -> Option<&FileRow> {
        self.files.iter().find(|row| row.space == space && row.file == file)
    }

    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// [`Error::Format`] if there is none, as in a directory that is no backup or that was opened
    /// since, or if it is spoilt.
    pub fn read(storage: &dyn Storage) -> Result<Manifest> {
        let file = storage.open(MANIFEST_FILE).map_err(|error| match error.is_not_found() {
            true => Error::format(
                MANIFEST_FILE,
                "missing: this directory is no backup, or was opened as a data directory since",
                Remedy::MakeCompleteBackup,
            ),
            false => error.into(),
        })?;
        let mut bytes = AlignedBuf::zeroed((file.len()? as usize / BLOCK * BLOCK).max(BLOCK));
        let read = file.read_at(&mut bytes, 0);
        match read.map(|()| decode(&bytes)) {
            Ok(Some(manifest)) => Ok(manifest),
            Err(error) if !error.is_unexpected_eof() => Err(error.into()),
            _ => Err(Error::format(
                MANIFEST_FILE,
                "spoilt, or of another version",
                Remedy::MakeCompleteBackup,
            )),
        }
    }

    /// Writes it, durable except for its name.
    pub fn write(&self, storage: &dyn Storage) -> Result<()> {
        let bytes = self.encode();
        let file = storage.create(MANIFEST_FILE)?;
        file.write_at(&bytes, 0)?;
        Ok(file.sync_data()?)
    }

    fn encode(&self) -> AlignedBuf {
        let stretches: usize = self.files.iter().map(|row| row.stretches.len()).sum();
        let len = ROWS_AT + self.files.len() * ROW_BYTES + stretches * 8;
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.instance);
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(&self.base.unwrap_or_default());
        bytes.extend_from_slice(&self.page_size.to_le_bytes());
        bytes.extend_from_slice(&(self.files.len() as u32).to_le_bytes());
        for row in &self.files {
            bytes.extend_from_slice(&row.space.to_le_bytes());
            bytes.extend_from_slice(&(row.stretches.len() as u32).to_le_bytes());
            for number in [row.file, row.run, row.since] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            for (first, count) in &row.stretches {
                bytes.extend_from_slice(&first.to_le_bytes());
                bytes.extend_from_slice(&count.to_le_bytes());
            }
        }
        debug_assert_eq!(bytes.len(), len);
        let checksum = crc32c::crc32c(&bytes[CHECKED_AT..]);
        bytes[8..CHECKED_AT].copy_from_slice(&checksum.to_le_bytes());
        let mut block = AlignedBuf::zeroed(len.next_multiple_of(BLOCK));
        block[..len].copy_from_slice(&bytes);
        block
    }
}

/// Takes numbers off the front of bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        self.take(LEN)?.try_into().ok()
    }

    fn word(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// `None` unless it is whole.
fn decode(bytes: &[u8]) -> Option<Manifest> {
    let mut reader = Reader(bytes);
    if reader.array()? != *MAGIC {
        return None;
    }
    let (checksum, version) = (reader.word()?, reader.word()?);
    let (instance, id, base) = (reader.array()?, reader.array()?, reader.array::<16>()?);
    let (page_size, rows) = (reader.word()?, reader.word()?);
    PageSize::new(page_size as usize)?;
    let mut files = Vec::new();
    for _ in 0..rows {
        let (space, stretches) = (reader.word()?, reader.word()?);
        let (file, run, since) = (reader.long()?, reader.long()?, reader.long()?);
        let mut row = FileRow { space, file, run, since, stretches: Vec::new() };
        for _ in 0..stretches {
            row.stretches.push((reader.word()?, reader.word()?));
        }
        files.push(row);
    }
    let len = bytes.len() - reader.0.len();
    let is_whole = version == VERSION && crc32c::crc32c(&bytes[CHECKED_AT..len]) == checksum;
    let base = (base != [0; 16]).then_some(base);
    is_whole.then_some(Manifest { instance, id, base, page_size, files })
}

#[cfg(test)]
mod tests {
    use tidepool_pool::storage::SimStorage;

    use super::*;

    fn manifest() -> Manifest {
        let row =
            |space, since, stretches| FileRow { space, file: 7, run: 1 << 40, since, stretches };
        Manifest {
            instance: [1; 16],
            id: [2; 16],
            base: Some([3; 16]),
            page_size: 16 << 10,
            files: vec![row(0, 0, vec![]), row(16, 9, vec![(0, 5), (8, u32::MAX - 8)])],
        }
    }

    #[test]
    fn a_manifest_survives_its_bytes_and_a_flipped_bit_is_found() {
        let manifest = manifest();
        let mut bytes = manifest.encode();
        assert_eq!(decode(&bytes), Some(manifest.clone()));
        for at in 0..ROWS_AT + 2 * ROW_BYTES + 16 {
            bytes[at] ^= 1;
            assert_eq!(decode(&bytes), None, "byte {at}");
            bytes[at] ^= 1;
        }
        assert_eq!(decode(&bytes[..ROWS_AT + 20]), None);
        let complete = Manifest { base: None, ..manifest };
        assert_eq!(decode(&complete.encode()), Some(complete));
    }

    #[test]
    fn a_directory_without_one_is_refused() {
        let storage = SimStorage::new(1);
        let error = Manifest::read(&storage).unwrap_err();
        assert!(error.to_string().contains("is no backup"), "{error}");
        manifest().write(&storage).unwrap();
        assert_eq!(Manifest::read(&storage).unwrap(), manifest());
        storage.corrupt(MANIFEST_FILE, 70, 1);
        let error = Manifest::read(&storage).unwrap_err();
        assert!(error.to_string().contains("spoilt"), "{error}");
    }

    #[test]
    fn pages_that_follow_each_other_are_one_stretch() {
        let mut row = FileRow { space: 16, file: 1, run: 1, since: 1, stretches: Vec::new() };
        row.add_present(&[(0, 3), (5, 1)]);
        row.add_present(&[(6, 2), (9, 1)]);
        assert_eq!(row.stretches, [(0, 3), (5, 3), (9, 1)]);
    }
}
