//! Page 0 of a space: which file this is, how large the space is, and what the table layer keeps
//! there.
//!
//! `docs/internals/format/pages.md` has it byte by byte.

use std::ops::Range;

use tidepool_pool::{Access, PAGE_HEADER_SIZE, Pool, Space};

use crate::error::{Error, Remedies, Remedy, Result};

/// First bytes of a space header, behind the page header.
pub const MAGIC: &[u8; 8] = b"TIDEPOOL";
/// Version of the page formats that this code reads and writes.
pub const FORMAT_VERSION: u32 = 3;

const MAGIC_AT: usize = 32;
const VERSION_AT: usize = 40;
const PAGE_SIZE_AT: usize = 44;
const SPACE_ID_AT: usize = 48;
/// Offset in page 0 of the flags, u32.
pub(crate) const FLAGS_AT: usize = 52;
/// Flag: the number of rows is what it was when no change of them was to come. The first change
/// takes the flag back.
pub const ROWS_SETTLED: u32 = 1;
const UUID_AT: usize = 56;
pub(crate) const SIZE_PAGES_AT: usize = 72;
pub(crate) const FREE_HINT_AT: usize = 76;
/// Offset in page 0 of the table's next auto-increment value, u64; the table layer's.
pub const AUTO_INCREMENT_AT: usize = 80;
/// Offset in page 0 of the number of rows, u64; the table layer's.
pub const ROW_COUNT_AT: usize = 88;
/// Bytes of page 0 that are the table layer's alone.
pub const TABLE_AREA: Range<usize> = 96..352;

/// Offset in a bitmap page of the bits.
pub(crate) const BITMAP_BITS_AT: usize = 64;

/// Pages that one bitmap page of a space covers.
pub const fn pages_per_bitmap(page_size: usize) -> u32 {
    ((page_size - BITMAP_BITS_AT) * 8) as u32
}

pub(crate) fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
}

/// What page 0 of a space says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceHeader {
    /// Version of the page formats.
    pub format_version: u32,
    /// Page size, bytes.
    pub page_size: u32,
    pub space_id: u32,
    /// Flags: [`ROWS_SETTLED`].
    pub flags: u32,
    /// Data directory the file belongs to.
    pub instance: [u8; 16],
    /// Pages in use by the space; the file may be longer.
    pub size_pages: u32,
    /// No page below this one is free.
    pub free_hint: u32,
    /// The table's next auto-increment value.
    pub auto_increment: u64,
    /// Number of rows, if the flags say so.
    pub row_count: u64,
}

impl SpaceHeader {
    /// In the place of one that can't be read, for a table of which the rest must be read.
    pub(crate) fn unknown(space_id: u32) -> SpaceHeader {
        SpaceHeader {
            format_version: FORMAT_VERSION,
            page_size: 0,
            space_id,
            flags: 0,
            instance: [0; 16],
            size_pages: 0,
            free_hint: 0,
            auto_increment: 0,
            row_count: 0,
        }
    }

    /// Reads the header from the bytes of page 0; `file` is for the error.
    pub fn parse(page: &[u8], file: &str) -> Result<SpaceHeader> {
        if page.len() < TABLE_AREA.end || &page[MAGIC_AT..MAGIC_AT + 8] != MAGIC {
            return Err(Error::damaged(
                file,
                "not a Tidepool tablespace: its first page lacks the magic number",
            ));
        }
        Ok(SpaceHeader {
            format_version: u32_at(page, VERSION_AT),
            page_size: u32_at(page, PAGE_SIZE_AT),
            space_id: u32_at(page, SPACE_ID_AT),
            flags: u32_at(page, FLAGS_AT),
            instance: page[UUID_AT..UUID_AT + 16].try_into().expect("16 bytes"),
            size_pages: u32_at(page, SIZE_PAGES_AT),
            free_hint: u32_at(page, FREE_HINT_AT),
            auto_increment: u64_at(page, AUTO_INCREMENT_AT),
            row_count: u64_at(page, ROW_COUNT_AT),
        })
    }

    /// The bytes of page 0 behind the page header.
    pub(crate) fn body(&self) -> [u8; TABLE_AREA.end - PAGE_HEADER_SIZE] {
        let mut body = [0; TABLE_AREA.end - PAGE_HEADER_SIZE];
        let mut put = |at: usize, field: &[u8]| {
            body[at - PAGE_HEADER_SIZE..at - PAGE_HEADER_SIZE + field.len()].copy_from_slice(field);
        };
        put(MAGIC_AT, MAGIC);
        put(VERSION_AT, &self.format_version.to_le_bytes());
        put(PAGE_SIZE_AT, &self.page_size.to_le_bytes());
        put(SPACE_ID_AT, &self.space_id.to_le_bytes());
        put(FLAGS_AT, &self.flags.to_le_bytes());
        put(UUID_AT, &self.instance);
        put(SIZE_PAGES_AT, &self.size_pages.to_le_bytes());
        put(FREE_HINT_AT, &self.free_hint.to_le_bytes());
        put(AUTO_INCREMENT_AT, &self.auto_increment.to_le_bytes());
        put(ROW_COUNT_AT, &self.row_count.to_le_bytes());
        body
    }

    /// Checks that the space belongs here: version, page size, space id, data directory.
    pub fn check(&self, file: &str, page_size: usize, id: u32, instance: &[u8; 16]) -> Result<()> {
        let mut remedies = Remedies::of_damaged(file);
        let why = if self.format_version != FORMAT_VERSION {
            remedies = Remedy::UseItsVersion.into();
            format!(
                "written in format version {}, this program reads version {FORMAT_VERSION}",
                self.format_version
            )
        } else if self.page_size as usize != page_size {
            format!("pages of {} bytes, the data directory has {page_size}", self.page_size)
        } else if self.space_id != id {
            format!("tablespace {}, expected {id}: the file was renamed or copied", self.space_id)
        } else if &self.instance != instance {
            remedies = Remedies::of_foreign(file);
            "belongs to another data directory".to_string()
        } else {
            return Ok(());
        };
        Err(Error::format(file, why, remedies))
    }
}

/// Reads a space's header.
pub fn read(pool: &Pool, space: &Space) -> Result<SpaceHeader> {
    let page = pool.shared(space, 0, Access::Normal)?;
    SpaceHeader::parse(&page, space.name())
}

/// The size that a space's header has, in pages.
pub fn size_pages(header: &[u8]) -> u32 {
    u32_at(header, SIZE_PAGES_AT)
}
