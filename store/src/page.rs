//! Pages: their identity, their sizes, and the 32-byte header that each begins with.
//!
//! ```text
//!  0  checksum      u32   CRC32C of bytes 4 .. page size; stamped when the page is written out
//!  4  page number   u32
//!  8  space id      u32
//! 12  page type     u16
//! 14  reserved      u16   0
//! 16  page LSN      u64   end of the last mini-transaction that changed the page
//! 24  tree id       u32
//! 28  reserved      u32   0
//! 32  …                   owned by the layer above
//! ```
//!
//! Integers are little-endian. A page of nothing but zeroes is valid: it has never been written.
//! The checksum of a resident page is stale; only the copy that goes to disk carries a fresh one.

use std::fmt;

/// Bytes at the start of every page that this crate defines.
pub const PAGE_HEADER_SIZE: usize = 32;

const CHECKSUM: usize = 0;
/// Offset of the page number.
pub const PAGE_NO: usize = 4;
/// Offset of the space id.
pub const SPACE_ID: usize = 8;
/// Offset of the page type.
pub const PAGE_TYPE: usize = 12;
const PAGE_LSN: usize = 16;
/// Offset of the tree id.
pub const TREE_ID: usize = 24;

/// A log sequence number: a byte position in the endless redo log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The start of the log.
    pub const ZERO: Lsn = Lsn(0);
    /// Later than any position in any log.
    pub const MAX: Lsn = Lsn(u64::MAX);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The address of a page: a tablespace and the page's number in that space's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// The tablespace.
    pub space: u32,
    /// The page's number: its byte offset in the file divided by the page size.
    pub no: u32,
}

impl PageId {
    /// The page `no` of the tablespace `space`.
    pub const fn new(space: u32, no: u32) -> PageId {
        PageId { space, no }
    }

    /// Both parts in one word, the space in the upper half: sorting by it sorts by file position.
    pub const fn to_u64(self) -> u64 {
        (self.space as u64) << 32 | self.no as u64
    }

    /// The inverse of [`PageId::to_u64`].
    pub const fn from_u64(word: u64) -> PageId {
        PageId { space: (word >> 32) as u32, no: word as u32 }
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of space {}", self.no, self.space)
    }
}

/// The size of every page of a data directory: a power of two from 4 KiB to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize(u32);

impl PageSize {
    /// 16 KiB, the size used unless another is asked for.
    pub const DEFAULT: PageSize = PageSize(16 << 10);
    /// 4 KiB.
    pub const MIN: PageSize = PageSize(4 << 10);
    /// 64 KiB.
    pub const MAX: PageSize = PageSize(64 << 10);

    /// `None` unless `bytes` is 4096, 8192, 16384, 32768 or 65536.
    pub const fn new(bytes: usize) -> Option<PageSize> {
        if bytes.is_power_of_two() && bytes >= 4 << 10 && bytes <= 64 << 10 {
            Some(PageSize(bytes as u32))
        } else {
            None
        }
    }

    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        self.0 as usize
    }

    /// The byte offset of page `no` in its file.
    pub const fn offset_of(self, no: u32) -> u64 {
        no as u64 * self.0 as u64
    }
}

impl Default for PageSize {
    fn default() -> PageSize {
        PageSize::DEFAULT
    }
}

/// What a page holds. The numbers are part of the file format; this layer gives meaning to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageType(pub u16);

impl PageType {
    /// Not allocated, or all zeroes.
    pub const FREE: PageType = PageType(0);
    /// Page 0 of a space.
    pub const SPACE_HEADER: PageType = PageType(1);
    /// A bitmap of allocated pages.
    pub const BITMAP: PageType = PageType(2);
    /// A leaf of a B+tree.
    pub const TREE_LEAF: PageType = PageType(3);
    /// An inner node of a B+tree.
    pub const TREE_INNER: PageType = PageType(4);
    /// A part of a long value.
    pub const OVERFLOW: PageType = PageType(5);
    /// The directory of undo streams.
    pub const UNDO_DIRECTORY: PageType = PageType(6);
    /// A page of undo records.
    pub const UNDO: PageType = PageType(7);
}

fn read_u16(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn read_u32(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

/// The page number that the header of `page` states.
pub fn page_no(page: &[u8]) -> u32 {
    read_u32(page, PAGE_NO)
}

/// The space id that the header of `page` states.
pub fn space_id(page: &[u8]) -> u32 {
    read_u32(page, SPACE_ID)
}

/// Both together.
pub fn page_id(page: &[u8]) -> PageId {
    PageId { space: space_id(page), no: page_no(page) }
}

/// What the page holds.
pub fn page_type(page: &[u8]) -> PageType {
    PageType(read_u16(page, PAGE_TYPE))
}

/// The end of the last mini-transaction that changed the page.
pub fn page_lsn(page: &[u8]) -> Lsn {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[PAGE_LSN..PAGE_LSN + 8]);
    Lsn(u64::from_le_bytes(bytes))
}

/// The tree that the page belongs to.
pub fn tree_id(page: &[u8]) -> u32 {
    read_u32(page, TREE_ID)
}

/// Writes the page's own address into its header.
pub fn set_page_id(page: &mut [u8], id: PageId) {
    page[PAGE_NO..PAGE_NO + 4].copy_from_slice(&id.no.to_le_bytes());
    page[SPACE_ID..SPACE_ID + 4].copy_from_slice(&id.space.to_le_bytes());
}

/// Writes the page type.
pub fn set_page_type(page: &mut [u8], page_type: PageType) {
    page[PAGE_TYPE..PAGE_TYPE + 2].copy_from_slice(&page_type.0.to_le_bytes());
}

/// Writes the page LSN.
pub fn set_page_lsn(page: &mut [u8], lsn: Lsn) {
    page[PAGE_LSN..PAGE_LSN + 8].copy_from_slice(&lsn.0.to_le_bytes());
}

/// Writes the tree id.
pub fn set_tree_id(page: &mut [u8], tree_id: u32) {
    page[TREE_ID..TREE_ID + 4].copy_from_slice(&tree_id.to_le_bytes());
}

/// The checksum that `page` should carry.
pub fn compute_checksum(page: &[u8]) -> u32 {
    crc32c::crc32c(&page[CHECKSUM + 4..])
}

/// The checksum that `page` does carry.
pub fn stored_checksum(page: &[u8]) -> u32 {
    read_u32(page, CHECKSUM)
}

/// Makes the header's checksum that of the bytes: the last thing done before a write.
pub fn stamp_checksum(page: &mut [u8]) {
    let checksum = compute_checksum(page);
    page[CHECKSUM..CHECKSUM + 4].copy_from_slice(&checksum.to_le_bytes());
    debug_assert_eq!(verify(page, page_id(page)), Ok(()), "a start reads the same page");
}

/// Whether the page has never been written.
pub fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|&byte| byte == 0)
}

/// Why the bytes of a page are not to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageDefect {
    /// Bits have changed, or only a part of a write arrived.
    #[error("its checksum is {stored:#010x} but its bytes give {computed:#010x}")]
    Checksum {
        /// What the header says.
        stored: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// A good page in the wrong place.
    #[error("its header says that it is {found}")]
    Misplaced {
        /// The address in the page's header.
        found: PageId,
    },
}

/// Checks the bytes of page `id` as they came from disk.
pub fn verify(page: &[u8], id: PageId) -> Result<(), PageDefect> {
    let (stored, computed) = (stored_checksum(page), compute_checksum(page));
    if stored != computed {
        // An all-zero page fails the checksum too (the CRC of zeroes is not zero), and is the rare
        // case, so it is looked for only here.
        if stored == 0 && is_zero(page) {
            return Ok(());
        }
        return Err(PageDefect::Checksum { stored, computed });
    }
    let found = page_id(page);
    if found != id {
        return Err(PageDefect::Misplaced { found });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_powers_of_two_from_4_to_64_kib() {
        for bytes in [4096, 8192, 16384, 32768, 65536] {
            assert_eq!(PageSize::new(bytes).map(PageSize::bytes), Some(bytes));
        }
        for bytes in [0, 1, 2048, 4097, 12288, 131_072] {
            assert_eq!(PageSize::new(bytes), None);
        }
    }

    #[test]
    fn header_fields_do_not_overlap() {
        let mut page = vec![0; 4096];
        let id = PageId::new(0xa1a2_a3a4, 0xb1b2_b3b4);
        set_page_id(&mut page, id);
        set_page_type(&mut page, PageType(0xc1c2));
        set_page_lsn(&mut page, Lsn(0xd1d2_d3d4_d5d6_d7d8));
        set_tree_id(&mut page, 0xe1e2_e3e4);
        assert_eq!(page_id(&page), id);
        assert_eq!(page_type(&page), PageType(0xc1c2));
        assert_eq!(page_lsn(&page), Lsn(0xd1d2_d3d4_d5d6_d7d8));
        assert_eq!(tree_id(&page), 0xe1e2_e3e4);
        assert_eq!(PageId::from_u64(id.to_u64()), id);
        assert!(page[PAGE_HEADER_SIZE..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_zero_page_is_valid_and_a_flipped_bit_is_not() {
        let mut page = vec![0; 4096];
        let id = PageId::new(3, 7);
        assert_eq!(verify(&page, id), Ok(()));
        set_page_id(&mut page, id);
        stamp_checksum(&mut page);
        assert_eq!(verify(&page, id), Ok(()));
        for at in [0, 4, 100, 4095] {
            page[at] ^= 1;
            assert!(matches!(verify(&page, id), Err(PageDefect::Checksum { .. })));
            page[at] ^= 1;
        }
        let elsewhere = PageId::new(3, 8);
        assert_eq!(verify(&page, elsewhere), Err(PageDefect::Misplaced { found: id }));
        // Zeroed except one byte: torn, not new.
        let mut torn = vec![0; 4096];
        torn[4000] = 1;
        assert!(matches!(verify(&torn, id), Err(PageDefect::Checksum { .. })));
    }
}
