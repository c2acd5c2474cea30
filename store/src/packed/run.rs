//! Runs: what one batch writes to one segment in one piece.
//!
//! ```text
//!  0  magic      u32   "TPRN"
//!  4  version    u16
//!  6  kind       u8    0 pages, 1 nodes of the map
//!  7  stream     u8
//!  8  file       u64   the file's random number
//! 16  sequence   u64   one more than the run before
//! 24  synced     u64   the newest run that was durable when this one was written
//! 32  epoch      u32   random, another one for each opening of the file
//! 36  previous   u32   checksum of the header of the run before
//! 40  blocks     u32   length of the run
//! 44  entries    u32
//! 48  next       u32   the segment in which this stream goes on when this one is full
//! 52  after      u32   the segment after that one
//! 56  checksum   u32   CRC32C of the header and the entries, this field taken as 0
//! 60  …                0
//! 64  entries          object (12 bytes), entry (16 bytes); an entry of zeroes: the page is free
//!     images           at units of 64 bytes, within the run
//! ```
//!
//! Each run names the one before by its checksum, so a run that a crash made void, and that still
//! lies behind the newest one, can't be taken for its successor.

use super::entry::{ENTRY_BYTES, Entry, Object};
use super::geometry::{BLOCK, UNIT, units_of};

const MAGIC: u32 = u32::from_le_bytes(*b"TPRN");
const VERSION: u16 = 1;
const FIXED_BYTES: usize = 64;
const OBJECT_BYTES: usize = 12;
const ENTRIES_AT: usize = 44;
const CHECKSUM_AT: usize = 56;

/// Entries of a run at most: its header stays below a small segment's half.
pub const ENTRIES_MAX: usize = 512;

/// What a run holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// Images of pages, and the pages that are free now.
    Pages,
    /// Nodes of the map and parts of the file's tables. They count only if a root names them.
    Map,
}

/// Which of the open segments a run goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Pages as they are flushed, and the map.
    Flushed,
    /// Images that the cleaner moves for the first time: they have lived long, and will.
    Moved,
    /// Images that the cleaner moves again.
    MovedAgain,
}

/// How many there are.
pub const STREAMS: usize = 3;

impl Stream {
    /// All of them.
    pub const ALL: [Stream; STREAMS] = [Stream::Flushed, Stream::Moved, Stream::MovedAgain];

    /// Its number, from 0.
    pub fn index(self) -> usize {
        match self {
            Stream::Flushed => 0,
            Stream::Moved => 1,
            Stream::MovedAgain => 2,
        }
    }

    /// The stream that the cleaner moves images of this one to.
    pub fn next(self) -> Stream {
        match self {
            Stream::Flushed => Stream::Moved,
            Stream::Moved | Stream::MovedAgain => Stream::MovedAgain,
        }
    }
}

/// The fixed part of a run's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHeader {
    /// What it holds.
    pub kind: RunKind,
    /// The stream that it belongs to.
    pub stream: Stream,
    /// The file's random number.
    pub file: u64,
    /// Random number of this opening of the file.
    pub epoch: u32,
    /// Number of the run.
    pub sequence: u64,
    /// Checksum of the header of the run before.
    pub previous: u32,
    /// Newest run known to be durable.
    pub synced: u64,
    /// Length in blocks.
    pub blocks: u32,
    /// Where the stream goes on.
    pub next: u32,
    /// And after that.
    pub after: u32,
}

/// Bytes of a header with this number of entries.
pub fn header_bytes(entries: usize) -> usize {
    FIXED_BYTES + entries * (OBJECT_BYTES + ENTRY_BYTES)
}

/// What a run says of an object: where its image is, or that it has none any more.
pub type Change = (Object, Option<Entry>);

/// Whether a run seems to begin here.
pub fn has_magic(block: &[u8]) -> bool {
    block[..4] == MAGIC.to_le_bytes()
}

impl RunHeader {
    /// Writes the header and the entries to the start of `run`; returns its checksum.
    pub fn encode(&self, changes: &[Change], run: &mut [u8]) -> u32 {
        assert!(changes.len() <= ENTRIES_MAX, "a run has few entries");
        let (fixed, rest) = run[..header_bytes(changes.len())].split_at_mut(FIXED_BYTES);
        fixed.fill(0);
        let mut put = |at: usize, bytes: &[u8]| fixed[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(4, &VERSION.to_le_bytes());
        put(6, &[matches!(self.kind, RunKind::Map).into(), self.stream.index() as u8]);
        put(8, &self.file.to_le_bytes());
        put(16, &self.sequence.to_le_bytes());
        put(24, &self.synced.to_le_bytes());
        let words = [
            (32, self.epoch),
            (36, self.previous),
            (40, self.blocks),
            (ENTRIES_AT, changes.len() as u32),
            (48, self.next),
            (52, self.after),
        ];
        for (at, word) in words {
            put(at, &word.to_le_bytes());
        }
        for (bytes, (object, entry)) in
            rest.chunks_exact_mut(OBJECT_BYTES + ENTRY_BYTES).zip(changes)
        {
            bytes[..OBJECT_BYTES].copy_from_slice(&object.encode());
            bytes[OBJECT_BYTES..].copy_from_slice(&Entry::encode(*entry));
        }
        let checksum = crc32c::crc32c(&run[..header_bytes(changes.len())]);
        run[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        debug_assert_eq!(
            RunHeader::decode(run),
            Some((*self, changes.to_vec(), checksum)),
            "a start reads the same header"
        );
        checksum
    }

    /// How many bytes the header at the start of `block` takes, if there seems to be one.
    pub fn peek(block: &[u8]) -> Option<usize> {
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
        let entries = word(ENTRIES_AT) as usize;
        (has_magic(block) && entries <= ENTRIES_MAX).then(|| header_bytes(entries))
    }

    /// Reads the header and the entries at the start of `run`, and the header's checksum. `None`
    /// unless the checksum is right and every field can be.
    pub fn decode(run: &[u8]) -> Option<(RunHeader, Vec<Change>, u32)> {
        let len = RunHeader::peek(run).filter(|len| *len <= run.len())?;
        let word = |at: usize| u32::from_le_bytes(run[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(run[at..at + 8].try_into().expect("8 bytes"));
        let checksum = crc32c::crc32c(&run[..CHECKSUM_AT]);
        let checksum = crc32c::crc32c_append(checksum, &[0; 4]);
        let checksum = crc32c::crc32c_append(checksum, &run[CHECKSUM_AT + 4..len]);
        let version = u16::from_le_bytes([run[4], run[5]]);
        if checksum != word(CHECKSUM_AT) || version != VERSION {
            return None;
        }
        let header = RunHeader {
            kind: match run[6] {
                0 => RunKind::Pages,
                1 => RunKind::Map,
                _ => return None,
            },
            stream: *Stream::ALL.get(usize::from(run[7]))?,
            file: long(8),
            epoch: word(32),
            sequence: long(16),
            previous: word(36),
            synced: long(24),
            blocks: word(40),
            next: word(48),
            after: word(52),
        };
        let changes = run[FIXED_BYTES..len].chunks_exact(OBJECT_BYTES + ENTRY_BYTES).map(|bytes| {
            let (object, entry) = bytes.split_at(OBJECT_BYTES);
            let object = Object::decode(object.try_into().expect("12 bytes"))?;
            let entry = Entry::decode(entry.try_into().expect("16 bytes")).ok()?;
            Some((object, entry))
        });
        Some((header, changes.collect::<Option<_>>()?, checksum))
    }
}

/// Where each image goes in a run, in units from its start, and how many blocks the run takes. They
/// lie end to end, in the order given: room that is left so that images touch fewer blocks would
/// cost half as much again in writes, and any image is read with one operation
/// (`docs/results/store-model.md`).
pub fn pack(lens: &[usize]) -> (Vec<u32>, u32) {
    let mut end = units_of(header_bytes(lens.len()));
    let place = |len: &usize| {
        let unit = end;
        end += units_of(*len);
        unit
    };
    let units = lens.iter().map(place).collect();
    (units, end.div_ceil((BLOCK / UNIT) as u32))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::codec::Codec;
    use super::super::entry::Seal;
    use super::*;

    fn header() -> RunHeader {
        RunHeader {
            kind: RunKind::Pages,
            stream: Stream::Moved,
            file: 0x0123_4567_89ab_cdef,
            epoch: 5,
            sequence: (3 << 32) + 7,
            previous: 9,
            synced: (3 << 32) + 6,
            blocks: 2,
            next: 11,
            after: 12,
        }
    }

    #[test]
    fn a_header_survives_its_bytes_and_a_flipped_bit_is_found() {
        let entry =
            Entry { unit: 70, len: 10, codec: Codec::Lz4, seal: Seal::NONE, crc: 3, run: 7 };
        let changes = [
            (Object::Page { space: 1, no: 2 }, Some(entry)),
            (Object::Page { space: 1, no: 3 }, None),
        ];
        let mut run = vec![0; 2 * BLOCK];
        let checksum = header().encode(&changes, &mut run);
        assert_eq!(RunHeader::decode(&run), Some((header(), changes.to_vec(), checksum)));
        for at in 0..header_bytes(2) {
            run[at] ^= 4;
            assert_eq!(RunHeader::decode(&run), None, "byte {at}");
            run[at] ^= 4;
        }
    }

    proptest! {
        #[test]
        fn images_lie_behind_the_header_and_end_to_end(
            lens in proptest::collection::vec(0usize..20_000, 0..200)
        ) {
            let (units, blocks) = pack(&lens);
            let mut taken: Vec<(u32, u32)> = vec![(0, units_of(header_bytes(lens.len())))];
            for (unit, len) in units.iter().zip(&lens).filter(|(_, len)| **len > 0) {
                let at = *unit as usize * UNIT;
                prop_assert!(at + len <= blocks as usize * BLOCK);
                taken.push((*unit, units_of(*len)));
            }
            taken.sort_unstable();
            for pair in taken.windows(2) {
                prop_assert_eq!(pair[0].0 + pair[0].1, pair[1].0);
            }
        }
    }
}
