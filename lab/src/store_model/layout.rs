//! What layouts have in common: pages by dense numbers, the size of an image, what is counted.

use std::collections::BTreeMap;

use super::trace::{Image, PAGE_BYTES, Writes};

/// Bytes in front of each image: what it is of, its codec, its checksum.
pub const HEADER_BYTES: u32 = 32;
/// The disk is written in blocks of this many bytes.
pub const BLOCK_BYTES: u32 = 4096;
/// Bytes that a write has at most; a longer one is several, as on a cloud volume.
pub const WRITE_BYTES_MAX: u64 = 256 << 10;

/// How pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Not at all.
    Raw,
    /// zstd, level 1.
    Zstd,
    /// LZ4.
    Lz4,
}

impl Codec {
    /// Bytes of an image with its header, in units of `granule` bytes.
    pub fn bytes(self, image: &Image, granule: u32) -> u32 {
        let raw = PAGE_BYTES as u32;
        let compressed = match self {
            Codec::Raw => raw,
            Codec::Zstd => u32::from(image.zstd),
            Codec::Lz4 => u32::from(image.lz4),
        };
        // What saves less than a sixteenth is left as it is.
        let bytes = if compressed > raw / 16 * 15 { raw } else { compressed };
        (bytes + HEADER_BYTES).next_multiple_of(granule)
    }
}

/// A page write as a layout sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The page, by its dense number.
    pub page: u32,
    /// Its tablespace, by its dense number.
    pub space: u32,
    /// Bytes of its image.
    pub bytes: u32,
}

/// A trace for one codec and granule.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Pages, by dense numbers.
    pub pages: u32,
    /// The tablespace of each dense number.
    pub spaces: Vec<u32>,
    /// What is there before.
    pub before: Vec<Write>,
    /// The batches.
    pub batches: Vec<Vec<Write>>,
}

impl Load {
    /// The trace with the sizes that images have by `codec`, in units of `granule` bytes. Each
    /// `merged` batches are one.
    pub fn new(writes: &Writes, codec: Codec, granule: u32, merged: usize) -> Load {
        let mut pages = BTreeMap::new();
        let mut space_numbers = BTreeMap::new();
        let mut load = Load::default();
        let mut convert = |image: &Image| {
            let (next_page, next_space) = (pages.len() as u32, space_numbers.len() as u32);
            let space = *space_numbers.entry(image.space).or_insert(next_space);
            if space == next_space {
                load.spaces.push(image.space);
            }
            let page = *pages.entry(image.page()).or_insert(next_page);
            Write { page, space, bytes: codec.bytes(image, granule) }
        };
        load.before = writes.before.iter().map(&mut convert).collect();
        load.batches = writes
            .batches
            .chunks(merged)
            .map(|batches| batches.iter().flatten().map(&mut convert).collect())
            .collect();
        load.pages = pages.len() as u32;
        load
    }

    /// Page writes from batch `first` on.
    pub fn page_writes_from(&self, first: usize) -> usize {
        self.batches[first..].iter().map(Vec::len).sum()
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Pages that were written.
    pub pages: u64,
    /// Batches.
    pub batches: u64,
    /// Bytes of the pages' images.
    pub image_bytes: u64,
    /// Bytes that went to disk for them, with what fills blocks.
    pub written_bytes: u64,
    /// Bytes that the cleaner wrote.
    pub moved_bytes: u64,
    /// Bytes that the cleaner read.
    pub cleaner_read_bytes: u64,
    /// Write operations for pages.
    pub writes: u64,
    /// Write operations of the cleaner.
    pub cleaner_writes: u64,
    /// Files that were synced.
    pub syncs: u64,
}

impl Counts {
    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            pages: self.pages - earlier.pages,
            batches: self.batches - earlier.batches,
            image_bytes: self.image_bytes - earlier.image_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            moved_bytes: self.moved_bytes - earlier.moved_bytes,
            cleaner_read_bytes: self.cleaner_read_bytes - earlier.cleaner_read_bytes,
            writes: self.writes - earlier.writes,
            cleaner_writes: self.cleaner_writes - earlier.cleaner_writes,
            syncs: self.syncs - earlier.syncs,
        }
    }

    /// Bytes written in all, over those of the images.
    pub fn amplification(&self) -> f64 {
        (self.written_bytes + self.moved_bytes) as f64 / self.image_bytes.max(1) as f64
    }

    /// What the cleaner writes, over what pages write.
    pub fn cleaner_share(&self) -> f64 {
        self.moved_bytes as f64 / self.written_bytes.max(1) as f64
    }
}

/// Write operations that a run of bytes takes.
pub fn write_operations(bytes: u64) -> u64 {
    bytes.div_ceil(WRITE_BYTES_MAX)
}

/// What a layout has stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of live images.
    pub live_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Files.
    pub files: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(space: u32, no: u32, zstd: u16) -> Image {
        Image { space, no, lsn: 0, kind: 3, zstd, lz4: 16384 }
    }

    #[test]
    fn images_take_whole_granules_and_what_saves_nothing_stays_raw() {
        let image = image(17, 1, 1000);
        assert_eq!(Codec::Zstd.bytes(&image, 64), 1088);
        assert_eq!(Codec::Zstd.bytes(&image, 4096), 4096);
        assert_eq!(Codec::Lz4.bytes(&image, 64), 16384 + 64);
        assert_eq!(Codec::Raw.bytes(&Image { zstd: 15361, ..image }, 512), 16384 + 512);
        assert_eq!(Codec::Zstd.bytes(&Image { zstd: 15361, ..image }, 64), 16384 + 64);
    }

    #[test]
    fn pages_and_spaces_get_dense_numbers_and_batches_are_merged() {
        let batches = vec![vec![image(40, 9, 10)], vec![image(17, 1, 20), image(40, 9, 90)]];
        let writes = Writes { before: vec![image(17, 1, 10)], batches, ..Writes::default() };
        let load = Load::new(&writes, Codec::Zstd, 64, 2);
        assert_eq!((load.pages, load.spaces.as_slice()), (2, [17, 40].as_slice()));
        let pages: Vec<u32> = load.batches[0].iter().map(|write| write.page).collect();
        assert_eq!((load.batches.len(), pages), (1, vec![1, 0, 1]));
        assert_eq!(load.page_writes_from(0), 3);
        assert_eq!(load.page_writes_from(1), 0);
    }
}
