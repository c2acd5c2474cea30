//! Where things are in a packed file: blocks, units and segments.
//!
//! ```text
//! block 0–3              root slots, two copies of each, written by turns
//! block 4 …              16 small segments, then large ones
//! ```
//!
//! A *block* is 4 KiB: what one read or write of the device moves at least. A *unit* is 64 bytes:
//! the granularity at which images are packed. A *segment* is what is filled from its start to its
//! end and reused as a whole. Small segments keep the file of a small table small; large ones keep
//! the tables of segments short.

use super::entry::Entry;
use super::run::header_bytes;
use crate::page::PageSize;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Bytes of a unit.
pub const UNIT: usize = 64;
/// Bytes of a large segment: the size with the fewest written bytes on recorded page writes
/// (`docs/results/store-model.md`).
pub const LARGE_SEGMENT: u64 = 256 << 10;
/// How many segments at the start of a file are small.
pub const SMALL_SEGMENTS: u32 = 16;
/// Blocks before the first segment.
pub const ROOT_BLOCKS: u64 = 4;

/// Where the segments of a file are. It follows from the page size alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    small: u64,
    page_blocks: u64,
}

/// Longest a file can be: offsets are 40 bits of units.
pub const FILE_MAX: u64 = (1 << 40) * UNIT as u64;

impl Geometry {
    /// That of a file with pages of `page_size`. A small segment has room for the header of a run
    /// and a page that does not shrink, whatever the page size.
    pub fn new(page_size: PageSize) -> Geometry {
        let small = (2 * page_size.bytes() as u64).max(64 << 10);
        let page_blocks = (header_bytes(1) + page_size.bytes()).div_ceil(BLOCK) as u64;
        assert!(small.is_multiple_of(BLOCK as u64), "a segment consists of whole blocks");
        assert!(page_blocks * BLOCK as u64 <= small, "a small segment holds any page");
        Geometry { small, page_blocks }
    }

    /// Blocks of a run with a page that does not shrink.
    pub fn page_blocks(self) -> u64 {
        self.page_blocks
    }

    /// Blocks of `segment` that runs of pages or of the map's nodes fill in any case, whatever the
    /// lengths of their images: an image that does not fit at its end goes to another segment.
    pub fn sure_blocks_of(self, segment: u32) -> u64 {
        self.sure_blocks_in(self.blocks_of(segment))
    }

    /// The same, if `blocks` blocks of a segment are left.
    pub fn sure_blocks_in(self, blocks: u32) -> u64 {
        let blocks = u64::from(blocks);
        // Nodes take up to five blocks, and headers of many small images up to an eighth.
        let nodes = (blocks * 3 / 4).saturating_sub(5);
        let sure = nodes.min(blocks / self.page_blocks * self.page_blocks);
        debug_assert!(sure <= blocks, "no more is sure than there is");
        sure
    }

    /// Bytes of `segment`.
    pub fn bytes_of(self, segment: u32) -> u64 {
        if segment < SMALL_SEGMENTS { self.small } else { LARGE_SEGMENT }
    }

    /// Blocks of `segment`.
    pub fn blocks_of(self, segment: u32) -> u32 {
        (self.bytes_of(segment) / BLOCK as u64) as u32
    }

    /// Byte offset of `segment` in the file. Also the length of a file with `segment` segments.
    pub fn offset_of(self, segment: u32) -> u64 {
        let (small, large) = (segment.min(SMALL_SEGMENTS), segment.saturating_sub(SMALL_SEGMENTS));
        ROOT_BLOCKS * BLOCK as u64
            + u64::from(small) * self.small
            + u64::from(large) * LARGE_SEGMENT
    }

    /// The segment that holds the byte at `offset`, which is behind the root slots.
    pub fn segment_at(self, offset: u64) -> u32 {
        debug_assert!(offset >= ROOT_BLOCKS * BLOCK as u64, "the root slots are in no segment");
        let at = offset - ROOT_BLOCKS * BLOCK as u64;
        let small = u64::from(SMALL_SEGMENTS) * self.small;
        let segment = match at.checked_sub(small) {
            None => at / self.small,
            Some(at) => u64::from(SMALL_SEGMENTS) + at / LARGE_SEGMENT,
        };
        let segment = u32::try_from(segment).expect("a file has fewer segments than 2^32");
        debug_assert!(
            (self.offset_of(segment)..self.offset_of(segment + 1)).contains(&offset),
            "the segment holds the byte"
        );
        segment
    }

    /// The segment that holds the whole image; `None` if none can.
    pub fn segment_of(self, entry: &Entry) -> Option<u32> {
        let end = entry.offset() + u64::from(entry.len);
        if entry.offset() < ROOT_BLOCKS * BLOCK as u64 || end > FILE_MAX {
            return None;
        }
        let segment = self.segment_at(entry.offset());
        (end <= self.offset_of(segment) + self.bytes_of(segment)).then_some(segment)
    }

    /// Segments that a file has at most.
    pub fn segments_max(self) -> u32 {
        self.segment_at(FILE_MAX)
    }

    /// How many whole segments a file of `len` bytes has.
    pub fn segments_in(self, len: u64) -> u32 {
        if len < ROOT_BLOCKS * BLOCK as u64 { 0 } else { self.segment_at(len.min(FILE_MAX)) }
    }
}

/// Units that `bytes` bytes take.
pub fn units_of(bytes: usize) -> u32 {
    bytes.div_ceil(UNIT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_lie_side_by_side() {
        for size in [PageSize::MIN, PageSize::DEFAULT, PageSize::MAX] {
            let geometry = Geometry::new(size);
            let mut end = ROOT_BLOCKS * BLOCK as u64;
            for segment in 0..40 {
                assert_eq!(geometry.offset_of(segment), end);
                assert_eq!(geometry.segments_in(end), segment);
                assert_eq!(geometry.segment_at(end), segment);
                end += geometry.bytes_of(segment);
                assert_eq!(geometry.segment_at(end - 1), segment);
                assert_eq!(geometry.segments_in(end - 1), segment);
            }
            assert_eq!(geometry.segments_in(0), 0);
        }
    }

    #[test]
    fn a_small_segment_holds_a_run_with_a_page_that_does_not_shrink() {
        for bytes in [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10] {
            let size = PageSize::new(bytes).unwrap();
            assert!(Geometry::new(size).bytes_of(0) >= (bytes + BLOCK) as u64);
        }
    }
}
