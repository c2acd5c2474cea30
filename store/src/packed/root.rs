//! The root of a packed file: where its map was at the last checkpoint, and where the chain of runs
//! went on from there.
//!
//! ```text
//!  0  magic       8    "TIDEPACK"
//!  8  version     u32
//! 12  page size   u32
//! 16  instance    16   the data directory's uuid
//! 32  space       u32  the space whose file it is
//! 36  segments    u32  how many the file has
//! 40  file        u64  random number of the file
//! 48  root        u64  sequence number of the root; the slot is its parity
//! 56  sequence    u64  newest run that the map knows
//! 64  top         16   entry of the map's top; zeroes: the map is empty
//! 80  previous    u32  checksum of that run's header
//! 84  streams     3 × (segment u32, blocks filled u32, next segment u32, the one after that u32);
//!                 segment 2^32-1: none yet
//! 132 key         u32  in version 2: the key that images are encrypted with; 0: none any more
//! …   0
//! 4092 checksum   u32  CRC32C of the bytes before
//! ```
//!
//! Each slot is two equal blocks, so that one block that rots costs nothing. The older slot is no
//! substitute for the newer one once that is durable: the segments that its map names may have been
//! used again.

use super::entry::{ENTRY_BYTES, Entry};
use super::geometry::BLOCK;
use super::run::STREAMS;
use crate::page::PageSize;

const MAGIC: &[u8; 8] = b"TIDEPACK";
/// The format's version of a file that never had a key.
pub const VERSION: u32 = 1;
/// The version of one that has or had a key, so that some of its images may be encrypted.
pub const VERSION_WITH_KEY: u32 = 2;
const CHECKSUM_AT: usize = BLOCK - 4;
const TOP_AT: usize = 64;
const PREVIOUS_AT: usize = 80;
const STREAMS_AT: usize = 84;
const TAIL_BYTES: usize = 16;
const KEY_AT: usize = STREAMS_AT + STREAMS * TAIL_BYTES;
const NO_SEGMENT: u32 = u32::MAX;

/// Where a stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The segment that it fills; `None` before the first run.
    pub segment: Option<u32>,
    /// Blocks of it that are filled.
    pub filled: u32,
    /// The segment that comes after it. It need not be in the file yet.
    pub next: u32,
    /// The one after that. So a start finds what lies behind a run whose header is lost, also if
    /// that run filled its segment.
    pub after: u32,
}

/// The root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Page size of the data directory.
    pub page_size: PageSize,
    /// The data directory's uuid.
    pub instance: [u8; 16],
    /// The space.
    pub space: u32,
    /// Segments in the file.
    pub segments: u32,
    /// The file's random number.
    pub file: u64,
    /// Sequence number of the root.
    pub number: u64,
    /// Newest run in the map.
    pub sequence: u64,
    /// Checksum of the header of that run; any number if there is none.
    pub previous: u32,
    /// The map.
    pub top: Option<Entry>,
    /// Where the streams go on.
    pub tails: [Tail; STREAMS],
    /// The key that images are encrypted with.
    pub key: FileKey,
}

/// The key that a file encrypts its images with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileKey {
    /// None, and no image of the file is encrypted.
    #[default]
    Never,
    /// None. Images of earlier times may be encrypted.
    NoMore,
    /// The newest version of the key of this number, which is not 0.
    Id(u32),
}

impl FileKey {
    fn number(self) -> u32 {
        match self {
            FileKey::Never | FileKey::NoMore => 0,
            FileKey::Id(id) => id,
        }
    }
}

/// What a block of a slot may hold.
#[derive(Debug, PartialEq, Eq)]
pub enum Slot {
    /// A root.
    Root(Box<Root>),
    /// Nothing yet, or bytes that a crash or the disk spoilt.
    Nothing,
    /// A whole root of another version.
    OtherVersion(u32),
}

impl Root {
    /// The block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        let version = if self.key == FileKey::Never { VERSION } else { VERSION_WITH_KEY };
        put(8, &version.to_le_bytes());
        put(KEY_AT, &self.key.number().to_le_bytes());
        put(12, &(self.page_size.bytes() as u32).to_le_bytes());
        put(16, &self.instance);
        put(32, &self.space.to_le_bytes());
        put(36, &self.segments.to_le_bytes());
        put(40, &self.file.to_le_bytes());
        put(48, &self.number.to_le_bytes());
        put(56, &self.sequence.to_le_bytes());
        put(PREVIOUS_AT, &self.previous.to_le_bytes());
        put(TOP_AT, &Entry::encode(self.top));
        for (at, tail) in (STREAMS_AT..).step_by(TAIL_BYTES).zip(&self.tails) {
            put(at, &tail.segment.unwrap_or(NO_SEGMENT).to_le_bytes());
            put(at + 4, &tail.filled.to_le_bytes());
            put(at + 8, &tail.next.to_le_bytes());
            put(at + 12, &tail.after.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&block[..CHECKSUM_AT]);
        block[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        debug_assert_eq!(
            Root::decode(&block),
            Slot::Root(Box::new(self.clone())),
            "a start reads the same root"
        );
        block
    }

    /// What a block holds.
    pub fn decode(block: &[u8]) -> Slot {
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"));
        if &block[..8] != MAGIC || crc32c::crc32c(&block[..CHECKSUM_AT]) != word(CHECKSUM_AT) {
            return Slot::Nothing;
        }
        let key = match (word(8), word(KEY_AT)) {
            (VERSION, _) => FileKey::Never,
            (VERSION_WITH_KEY, 0) => FileKey::NoMore,
            (VERSION_WITH_KEY, id) => FileKey::Id(id),
            (other, _) => return Slot::OtherVersion(other),
        };
        let top = block[TOP_AT..TOP_AT + ENTRY_BYTES].try_into().expect("16 bytes");
        let (Some(page_size), Ok(top)) = (PageSize::new(word(12) as usize), Entry::decode(top))
        else {
            return Slot::Nothing;
        };
        let tail = |stream: usize| {
            let at = STREAMS_AT + TAIL_BYTES * stream;
            let segment = Some(word(at)).filter(|segment| *segment != NO_SEGMENT);
            Tail { segment, filled: word(at + 4), next: word(at + 8), after: word(at + 12) }
        };
        Slot::Root(Box::new(Root {
            page_size,
            instance: block[16..32].try_into().expect("16 bytes"),
            space: word(32),
            segments: word(36),
            file: long(40),
            number: long(48),
            sequence: long(56),
            previous: word(PREVIOUS_AT),
            top,
            tails: std::array::from_fn(tail),
            key,
        }))
    }

    /// Byte offset of the slot of a root with this number.
    pub fn slot_offset(number: u64) -> u64 {
        (number % 2) * 2 * BLOCK as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::Codec;
    use super::super::entry::Seal;
    use super::*;

    #[test]
    fn a_root_survives_its_bytes_and_a_flipped_bit_is_found() {
        let root = Root {
            page_size: PageSize::DEFAULT,
            instance: [3; 16],
            space: 4,
            segments: 5,
            file: 6,
            number: 7,
            sequence: (1 << 32) + 8,
            previous: 9,
            top: Some(Entry {
                unit: 10,
                len: 11,
                codec: Codec::Raw,
                seal: Seal::NONE,
                crc: 12,
                run: 8,
            }),
            tails: [
                Tail { segment: Some(1), filled: 2, next: 3, after: 6 },
                Tail { segment: None, filled: 0, next: 4, after: 7 },
                Tail { segment: None, filled: 0, next: 5, after: 8 },
            ],
            key: FileKey::Never,
        };
        for key in [FileKey::NoMore, FileKey::Id(7)] {
            let root = Root { key, ..root.clone() };
            assert_eq!(Root::decode(&root.encode()), Slot::Root(Box::new(root)));
        }
        let mut block = root.encode();
        assert_eq!(Root::decode(&block), Slot::Root(Box::new(root)));
        for at in 0..BLOCK {
            block[at] ^= 1;
            assert_eq!(Root::decode(&block), Slot::Nothing, "byte {at}");
            block[at] ^= 1;
        }
        assert_eq!(Root::decode(&[0; BLOCK]), Slot::Nothing);
    }
}
