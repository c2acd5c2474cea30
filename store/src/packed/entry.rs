//! What the map says of an image: where it is, how it is coded, and which bytes it must have.
//!
//! ```text
//!  0  place   u64   bits 0–39 offset in units of 64 bytes; 40–56 length in bytes; 57–59 codec;
//!                   60–63 seal
//!  8  crc     u32   CRC32C of the image's bytes and of what it is the image of
//! 12  run     u32   low bits of the number of the run that holds it
//! ```
//! Sixteen zero bytes: there is no image.
//!
//! The checksum covers the identity of the image and the run, so an image of another page, an older
//! image of the same page, and bytes that a lost write left behind are all found out.

use super::codec::Codec;
use super::geometry::{BLOCK, UNIT, units_of};
use crate::encryption::SEAL_BYTES;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 16;

const OFFSET_BITS: u32 = 40;
const LEN_BITS: u32 = 17;
const CODEC_BITS: u32 = 3;
const CODEC_AT: u32 = OFFSET_BITS + LEN_BITS;
const SEAL_AT: u32 = CODEC_AT + CODEC_BITS;

/// Largest image in bytes: a page of 64 KiB that does not shrink, encrypted.
pub const IMAGE_MAX: usize = (64 << 10) + SEAL_BYTES;

/// Where an image is and which bytes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Offset in the file, in units.
    pub unit: u64,
    /// Bytes of the image.
    pub len: u32,
    /// How the page becomes the image.
    pub codec: Codec,
    /// Whether the image is encrypted.
    pub seal: Seal,
    /// Checksum of the image and its identity.
    pub crc: u32,
    /// Low bits of the number of the run that holds the image.
    pub run: u32,
}

impl Entry {
    /// The sixteen bytes of an entry; `None` is all zeroes.
    pub fn encode(entry: Option<Entry>) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        if let Some(entry) = entry {
            assert!(entry.unit < 1 << OFFSET_BITS && entry.len as usize <= IMAGE_MAX);
            assert!(entry.len > 0, "an image has bytes");
            let place = entry.unit
                | u64::from(entry.len) << OFFSET_BITS
                | u64::from(entry.codec.id()) << CODEC_AT
                | u64::from(entry.seal.0) << SEAL_AT;
            bytes[..8].copy_from_slice(&place.to_le_bytes());
            bytes[8..12].copy_from_slice(&entry.crc.to_le_bytes());
            bytes[12..].copy_from_slice(&entry.run.to_le_bytes());
        }
        debug_assert_eq!(Entry::decode(&bytes), Ok(entry), "a start reads the same entry");
        bytes
    }

    /// The inverse. `Err` if the bytes cannot be an entry.
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Result<Option<Entry>, &'static str> {
        if *bytes == [0; ENTRY_BYTES] {
            return Ok(None);
        }
        let (place, rest) = bytes.split_at(8);
        let place = u64::from_le_bytes(place.try_into().expect("8 bytes"));
        let (crc, run) = rest.split_at(4);
        let len = (place >> OFFSET_BITS) as u32 & ((1 << LEN_BITS) - 1);
        if len == 0 || len as usize > IMAGE_MAX {
            return Err("the length of an image is impossible");
        }
        Ok(Some(Entry {
            unit: place & ((1 << OFFSET_BITS) - 1),
            len,
            codec: Codec::from_id((place >> CODEC_AT) as u8 & ((1 << CODEC_BITS) - 1))
                .ok_or("an image has an unknown codec")?,
            seal: Seal((place >> SEAL_AT) as u8),
            crc: u32::from_le_bytes(crc.try_into().expect("4 bytes")),
            run: u32::from_le_bytes(run.try_into().expect("4 bytes")),
        }))
    }

    /// Byte offset in the file.
    pub fn offset(&self) -> u64 {
        self.unit * UNIT as u64
    }

    /// Units that the image takes.
    pub fn units(&self) -> u32 {
        units_of(self.len as usize)
    }

    /// The blocks that hold the image: byte offset of the first, and bytes of all.
    pub fn window(&self) -> (u64, usize) {
        let start = self.offset() / BLOCK as u64 * BLOCK as u64;
        let end = (self.offset() + u64::from(self.len)).next_multiple_of(BLOCK as u64);
        debug_assert!((end - start) as usize <= IMAGE_MAX + BLOCK, "an image lies in few blocks");
        (start, (end - start) as usize)
    }

    /// The image within the bytes of its window.
    pub fn image_in<'a>(&self, window: &'a [u8]) -> &'a [u8] {
        assert_eq!(window.len(), self.window().1, "the blocks are those of the image");
        let at = (self.offset() % BLOCK as u64) as usize;
        &window[at..at + self.len as usize]
    }
}

/// Whether an image is encrypted, and the version of the key modulo 15: so the map alone says which
/// images have to be sealed anew when the key has a newer version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seal(u8);

impl Seal {
    /// The image is not encrypted.
    pub const NONE: Seal = Seal(0);

    /// Versions that a seal distinguishes.
    pub const VERSIONS: u32 = 15;

    /// It is encrypted with a key of this version.
    pub fn of_version(version: u32) -> Seal {
        Seal((version % Seal::VERSIONS) as u8 + 1)
    }

    /// Whether the image is encrypted.
    pub fn is_sealed(self) -> bool {
        self != Seal::NONE
    }

    /// How many versions of its key are newer, if `newest` is the newest; modulo 15, which is the
    /// least that it can be. `None`: the image is not encrypted.
    pub fn age(self, newest: u32) -> Option<u32> {
        let of = u32::from(self.0.checked_sub(1)?);
        debug_assert!(of < Seal::VERSIONS, "a seal is a version modulo 15");
        Some((newest % Seal::VERSIONS + Seal::VERSIONS - of) % Seal::VERSIONS)
    }
}

/// What an image is the image of, and of which file and life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The file's random number.
    pub file: u64,
    /// Page, node of the map, or part of a table of the file.
    pub object: Object,
    /// Low bits of the number of the run that holds the image.
    pub run: u32,
}

impl Identity {
    /// The checksum of an image: its bytes, then its identity.
    pub fn checksum(&self, image: &[u8]) -> u32 {
        let mut tail = [0; 24];
        tail[..8].copy_from_slice(&self.file.to_le_bytes());
        tail[8..20].copy_from_slice(&self.object.encode());
        tail[20..].copy_from_slice(&self.run.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c(image), &tail)
    }
}

/// What an image can be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// A page of a space.
    Page {
        /// The space.
        space: u32,
        /// The page's number.
        no: u32,
    },
    /// A node of a space's map: level 0 has the entries of pages.
    Node {
        /// The space.
        space: u32,
        /// Height above the leaves.
        level: u8,
        /// Which of the level.
        index: u32,
    },
    /// A part of the list of spaces.
    Directory {
        /// Which part.
        part: u32,
    },
    /// A part of the table of segments.
    Segments {
        /// Which part.
        part: u32,
    },
    /// A list of such parts, if they are more than the top has room for.
    Tables {
        /// Which one.
        part: u32,
    },
    /// The list of the parts of both, or of the lists.
    Top,
}

const PAGE: u8 = 0;
const NODE: u8 = 1;
const DIRECTORY: u8 = 16;
const SEGMENTS: u8 = 17;
const TOP: u8 = 18;
const TABLES: u8 = 19;

/// Levels of a map at most: 1024^4 entries are more than pages of a space can be.
pub const LEVELS_MAX: u8 = 4;

impl Object {
    /// Twelve bytes: space, number, kind.
    pub fn encode(&self) -> [u8; 12] {
        let (space, no, kind) = match *self {
            Object::Page { space, no } => (space, no, PAGE),
            Object::Node { space, level, index } => (space, index, NODE + level),
            Object::Directory { part } => (0, part, DIRECTORY),
            Object::Segments { part } => (0, part, SEGMENTS),
            Object::Tables { part } => (0, part, TABLES),
            Object::Top => (0, 0, TOP),
        };
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&space.to_le_bytes());
        bytes[4..8].copy_from_slice(&no.to_le_bytes());
        bytes[8] = kind;
        debug_assert_eq!(Object::decode(&bytes), Some(*self), "a start reads the same object");
        bytes
    }

    /// The inverse; `None` if the kind is unknown.
    pub fn decode(bytes: &[u8; 12]) -> Option<Object> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let (space, no) = (word(0), word(4));
        match bytes[8] {
            PAGE => Some(Object::Page { space, no }),
            kind @ NODE..DIRECTORY if kind - NODE < LEVELS_MAX => {
                Some(Object::Node { space, level: kind - NODE, index: no })
            }
            DIRECTORY => Some(Object::Directory { part: no }),
            SEGMENTS => Some(Object::Segments { part: no }),
            TABLES => Some(Object::Tables { part: no }),
            TOP => Some(Object::Top),
            _ => None,
        }
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Object::Page { space, no } => write!(f, "page {no} of space {space}"),
            Object::Node { space, level, index } => {
                write!(f, "node {index} at level {level} of the map of space {space}")
            }
            Object::Directory { part } => write!(f, "part {part} of the list of spaces"),
            Object::Segments { part } => write!(f, "part {part} of the table of segments"),
            Object::Tables { part } => write!(f, "part {part} of the list of tables"),
            Object::Top => write!(f, "the top of the map"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_its_bytes() {
        let entry = Entry {
            unit: (1 << OFFSET_BITS) - 1,
            len: IMAGE_MAX as u32,
            codec: Codec::Zstd,
            seal: Seal::of_version(14),
            crc: 0x1234_5678,
            run: u32::MAX,
        };
        assert_eq!(Entry::decode(&Entry::encode(Some(entry))), Ok(Some(entry)));
        assert_eq!(Entry::decode(&Entry::encode(None)), Ok(None));
        assert!(Entry::decode(&[0xff; ENTRY_BYTES]).is_err());
    }

    #[test]
    fn a_seal_knows_how_far_behind_its_version_is() {
        assert_eq!(Seal::NONE.age(7), None);
        assert_eq!(Seal::of_version(1).age(1), Some(0));
        assert_eq!(Seal::of_version(14).age(16), Some(2));
        assert_eq!(Seal::of_version(30).age(31), Some(1));
        assert!(Seal::of_version(15).is_sealed());
    }

    #[test]
    fn an_object_survives_its_bytes() {
        let objects = [
            Object::Page { space: 7, no: 9 },
            Object::Node { space: 7, level: 3, index: 2 },
            Object::Directory { part: 1 },
            Object::Segments { part: 4 },
            Object::Tables { part: 3 },
            Object::Top,
        ];
        for object in objects {
            assert_eq!(Object::decode(&object.encode()), Some(object));
        }
        assert_eq!(Object::decode(&[0xff; 12]), None);
    }

    #[test]
    fn the_window_of_an_image_is_the_blocks_that_hold_it() {
        let entry =
            Entry { unit: 63, len: 65, codec: Codec::Raw, seal: Seal::NONE, crc: 0, run: 1 };
        assert_eq!(entry.window(), (0, 2 * BLOCK));
        assert_eq!(entry.units(), 2);
        let mut window = vec![0; 2 * BLOCK];
        window[63 * UNIT] = 1;
        assert_eq!(entry.image_in(&window)[0], 1);
    }

    #[test]
    fn the_checksum_covers_who_the_image_is_of() {
        let object = Object::Page { space: 1, no: 2 };
        let of = |file, object, run| Identity { file, object, run }.checksum(b"image");
        let crc = of(5, object, 3);
        assert_ne!(crc, of(5, object, 4), "an older version");
        assert_ne!(crc, of(6, object, 3), "another file");
        assert_ne!(crc, of(5, Object::Page { space: 1, no: 3 }, 3), "another page");
    }
}
