//! The control file: where recovery begins, and which files the log is in.
//!
//! `redo/control` has two slots of one block each, at offsets 0 and 4096. Every update writes the
//! slot that does *not* hold the newest state, under the next sequence number, and syncs: so one of
//! the two is always whole. The newest whole slot counts. What an update frees (log before the new
//! checkpoint) may be overwritten only after the update's sync.
//!
//! ```text
//!    0  magic "TPCONTRL"
//!    8  format version u32
//!   12  page size in bytes u32
//!   16  instance uuid, 16 bytes
//!   32  sequence number u64
//!   40  checkpoint LSN u64: recovery reads the log from here
//!   48  checkpoint epoch u32: the epoch in force there
//!   52  epoch u32: the newest one begun
//!   56  flags u32: bit 0 = clean shutdown (the log ends at the checkpoint)
//!   60  next file number u32
//!   64  number of file entries u32
//!   68  reserved u32
//!   72  durable LSN u64: the log was durable up to here, at least
//!   80  file entries, 24 bytes each:
//!         file number u32 | state u32 (0 spare, 1 in use) | start LSN u64 | bytes of log u64
//! 3964  8 ranges of LSNs whose log is lost, 16 bytes each, the oldest first; the rest is zero:
//!         start LSN u64 | end LSN u64
//! 4092  crc32c u32 of bytes 0..4092
//! ```

use tidepool_pool::storage::{AlignedBuf, StorageFile};
use tidepool_pool::{Lsn, PageSize};

use super::file_header::field;
use super::{BLOCK_SIZE, FORMAT_VERSION};
use crate::error::{Error, Remedy, Result};

/// Name of the control file.
pub const CONTROL_FILE: &str = "redo/control";

const MAGIC: &[u8; 8] = b"TPCONTRL";
const CRC_AT: usize = BLOCK_SIZE - 4;
const DURABLE_AT: usize = 72;
const ENTRIES_AT: usize = 80;
const ENTRY_SIZE: usize = 24;
const FLAG_CLEAN: u32 = 1;
const LOST_SIZE: usize = 16;
const LOST_AT: usize = CRC_AT - MAX_LOST * LOST_SIZE;

/// Most losses of log that a directory can have accepted.
pub const MAX_LOST: usize = 8;

/// Most redo files a control slot can list.
pub const MAX_FILES: usize = (LOST_AT - ENTRIES_AT) / ENTRY_SIZE;

/// One file of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileEntry {
    /// Number in the file's name.
    pub file_no: u32,
    /// LSN of its first byte of log, or `None` for a spare file.
    pub start: Option<Lsn>,
    /// Bytes of log the file holds.
    pub size: u64,
}

/// Log that was durable and could not be read any more, a loss that the user accepted. The log goes
/// on behind it: no frame lies in it, and a page with an LSN in it holds changes that are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostLog {
    /// Where the log before it ends.
    pub start: Lsn,
    /// Where the log goes on.
    pub end: Lsn,
}

impl LostLog {
    /// Whether a page with this LSN, which is the end of a frame, was changed by what is lost.
    pub fn has_changed(&self, page_lsn: Lsn) -> bool {
        self.start < page_lsn && page_lsn <= self.end
    }
}

/// What a slot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Page size of the data directory.
    pub page_size: PageSize,
    /// Identifies the data directory.
    pub uuid: [u8; 16],
    /// Number of the update that wrote this.
    pub sequence: u64,
    /// Recovery reads the log from here.
    pub checkpoint: Lsn,
    /// Epoch in force at the checkpoint.
    pub checkpoint_epoch: u32,
    /// The newest epoch that was begun.
    pub epoch: u32,
    /// The log ends at the checkpoint and every page is in its file.
    pub clean: bool,
    /// Number the next new file will get.
    pub next_file_no: u32,
    /// The log was durable up to here before this was written.
    pub durable: Lsn,
    /// The ring, files in use in LSN order.
    pub files: Vec<FileEntry>,
    /// Log that is lost, in LSN order.
    pub lost: Vec<LostLog>,
}

impl Control {
    /// Writes a slot over the first block of `block`.
    pub fn encode(&self, block: &mut [u8]) {
        assert!(self.files.len() <= MAX_FILES, "a control slot lists at most {MAX_FILES} files");
        assert!(self.lost.len() <= MAX_LOST, "a control slot lists at most {MAX_LOST} losses");
        let block = &mut block[..BLOCK_SIZE];
        block.fill(0);
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(8, &FORMAT_VERSION.to_le_bytes());
        put(12, &(self.page_size.bytes() as u32).to_le_bytes());
        put(16, &self.uuid);
        put(32, &self.sequence.to_le_bytes());
        put(40, &self.checkpoint.0.to_le_bytes());
        put(48, &self.checkpoint_epoch.to_le_bytes());
        put(52, &self.epoch.to_le_bytes());
        put(56, &(if self.clean { FLAG_CLEAN } else { 0 }).to_le_bytes());
        put(60, &self.next_file_no.to_le_bytes());
        put(64, &(self.files.len() as u32).to_le_bytes());
        put(DURABLE_AT, &self.durable.0.to_le_bytes());
        for (i, file) in self.files.iter().enumerate() {
            let at = ENTRIES_AT + i * ENTRY_SIZE;
            put(at, &file.file_no.to_le_bytes());
            put(at + 4, &u32::from(file.start.is_some()).to_le_bytes());
            put(at + 8, &file.start.unwrap_or(Lsn(0)).0.to_le_bytes());
            put(at + 16, &file.size.to_le_bytes());
        }
        for (i, lost) in self.lost.iter().enumerate() {
            let at = LOST_AT + i * LOST_SIZE;
            put(at, &lost.start.0.to_le_bytes());
            put(at + 8, &lost.end.0.to_le_bytes());
        }
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        debug_assert!(
            Control::decode(block).is_ok_and(|read| read.as_ref() == Some(self)),
            "a start reads the same state"
        );
    }

    /// Reads one slot. `Ok(None)` if it is no whole slot (never written, torn, or damaged).
    pub fn decode(block: &[u8]) -> Result<Option<Self>> {
        if &block[..8] != MAGIC
            || u32::from_le_bytes(field(block, CRC_AT)) != crc32c::crc32c(&block[..CRC_AT])
        {
            return Ok(None);
        }
        let u32_at = |at| u32::from_le_bytes(field(block, at));
        let u64_at = |at| u64::from_le_bytes(field(block, at));
        let version = u32_at(8);
        if version != FORMAT_VERSION {
            return Err(super::unknown_version(CONTROL_FILE, version));
        }
        let bytes = u32_at(12);
        let Some(page_size) = PageSize::new(bytes as usize) else {
            let why = format!("pages of {bytes} bytes are impossible");
            return Err(Error::format(CONTROL_FILE, why, Remedy::RestoreDirectory));
        };
        let count = u32_at(64) as usize;
        if count > MAX_FILES {
            let why = format!("{count} redo files are too many");
            return Err(Error::format(CONTROL_FILE, why, Remedy::RestoreDirectory));
        }
        let files = (0..count)
            .map(|i| {
                let at = ENTRIES_AT + i * ENTRY_SIZE;
                FileEntry {
                    file_no: u32_at(at),
                    start: (u32_at(at + 4) != 0).then(|| Lsn(u64_at(at + 8))),
                    size: u64_at(at + 16),
                }
            })
            .collect();
        let lost = (0..MAX_LOST)
            .map(|i| LOST_AT + i * LOST_SIZE)
            .map(|at| LostLog { start: Lsn(u64_at(at)), end: Lsn(u64_at(at + 8)) })
            .take_while(|lost| lost.end > Lsn::ZERO)
            .collect();
        Ok(Some(Self {
            page_size,
            uuid: field(block, 16),
            sequence: u64_at(32),
            checkpoint: Lsn(u64_at(40)),
            checkpoint_epoch: u32_at(48),
            epoch: u32_at(52),
            clean: u32_at(56) & FLAG_CLEAN != 0,
            next_file_no: u32_at(60),
            durable: Lsn(u64_at(DURABLE_AT)),
            files,
            lost,
        }))
    }

    /// The newest whole slot of the control file, and how many of the two are whole.
    ///
    /// One that can't be read counts as torn, for some devices tell of a sector that a power cut
    /// tore in this way, until it is written again; and the next update writes the slot that did
    /// not count.
    pub fn read(file: &dyn StorageFile) -> Result<(Self, usize)> {
        let mut slots = AlignedBuf::zeroed(2 * BLOCK_SIZE);
        let (first, second) = slots.split_at_mut(BLOCK_SIZE);
        let mut unreadable = None;
        for (slot, sequence) in [(&mut *first, 0), (&mut *second, 1)] {
            match file.read_at(slot, Self::slot_offset(sequence)) {
                Ok(()) => {}
                // No power cut shortens the file.
                Err(error) if error.is_unexpected_eof() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "taken for a torn slot");
                    slot.fill(0);
                    unreadable = Some(error);
                }
            }
        }
        if let Some(error) = unreadable
            && Self::decode(first)?.is_none()
            && Self::decode(second)?.is_none()
        {
            return Err(error.into());
        }
        Self::choose(first, second)
    }

    /// The newest whole slot of the two, and how many of them are whole.
    pub(crate) fn choose(first: &[u8], second: &[u8]) -> Result<(Self, usize)> {
        let newest = match (Self::decode(first)?, Self::decode(second)?) {
            (Some(a), Some(b)) => Some((if a.sequence > b.sequence { a } else { b }, 2)),
            (a, b) => a.or(b).map(|control| (control, 1)),
        };
        newest.ok_or_else(|| {
            Error::lost(CONTROL_FILE, "both slots are corrupt", Remedy::RestoreDirectory)
        })
    }

    /// Offset of the slot that holds this state.
    pub fn offset(&self) -> u64 {
        Self::slot_offset(self.sequence)
    }

    /// Offset of the slot that holds the state with this sequence number.
    pub fn slot_offset(sequence: u64) -> u64 {
        (sequence % 2) * BLOCK_SIZE as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn control(sequence: u64) -> Control {
        Control {
            page_size: PageSize::new(16384).unwrap(),
            uuid: [9; 16],
            sequence,
            checkpoint: Lsn(8192),
            checkpoint_epoch: 1,
            epoch: 2,
            clean: true,
            next_file_no: 3,
            durable: Lsn(8200),
            files: vec![
                FileEntry { file_no: 2, start: Some(Lsn(4096)), size: 65536 },
                FileEntry { file_no: 1, start: None, size: 65536 },
            ],
            lost: vec![
                LostLog { start: Lsn(5000), end: Lsn(8192) },
                LostLog { start: Lsn(8200), end: Lsn(12288) },
            ],
        }
    }

    fn encoded(control: &Control) -> Vec<u8> {
        let mut block = vec![0xaa; BLOCK_SIZE];
        control.encode(&mut block);
        block
    }

    #[test]
    fn bytes_are_as_documented() {
        let block = encoded(&control(5));
        assert_eq!(&block[..16], b"TPCONTRL\x05\0\0\0\x00\x40\0\0");
        assert_eq!(&block[16..32], &[9; 16]);
        assert_eq!(&block[32..48], &[5, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            &block[48..72],
            &[1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(&block[72..80], &[8, 32, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            &block[80..104],
            &[2, 0, 0, 0, 1, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
        );
        assert_eq!(&block[104..112], &[1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_newest_whole_slot_counts() {
        let (old, new) = (encoded(&control(6)), encoded(&control(7)));
        assert_eq!(Control::choose(&old, &new).unwrap(), (control(7), 2));
        assert_eq!(Control::choose(&new, &old).unwrap(), (control(7), 2));
        let torn = [&new[..512], &old[512..]].concat();
        assert_eq!(Control::choose(&old, &torn).unwrap(), (control(6), 1));
        assert_eq!(
            Control::choose(&torn, &torn).unwrap_err().to_string(),
            "redo/control: both slots are corrupt: restore the data directory from a backup"
        );
    }

    #[test]
    fn a_newer_version_is_refused_even_beside_a_readable_slot() {
        let mut newer = encoded(&control(8));
        newer[8] = 9;
        let crc = crc32c::crc32c(&newer[..CRC_AT]);
        newer[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            Control::choose(&encoded(&control(7)), &newer).unwrap_err().to_string(),
            "redo/control: format version 9, but this program reads only version 5: use the version \
             of Tidepool that wrote it"
        );
    }

    proptest! {
        #[test]
        fn a_flipped_bit_makes_a_slot_unreadable(bit in 0usize..BLOCK_SIZE * 8) {
            let mut block = encoded(&control(1));
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Control::decode(&block).unwrap(), None);
        }

        #[test]
        fn round_trip(sequence in any::<u64>(), checkpoint in any::<u64>(), clean in any::<bool>(), files in prop::collection::vec((any::<u32>(), prop::option::of(any::<u64>()), any::<u64>()), 0..MAX_FILES)) {
            let mut control = control(sequence);
            control.checkpoint = Lsn(checkpoint);
            control.clean = clean;
            control.files = files
                .into_iter()
                .map(|(file_no, start, size)| FileEntry { file_no, start: start.map(Lsn), size })
                .collect();
            prop_assert_eq!(Control::decode(&encoded(&control)).unwrap(), Some(control));
        }
    }
}
