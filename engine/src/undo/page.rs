//! Pages of the undo space: the directory of streams, and pages of records.
//!
//! ```text
//! directory: page 2                            undo page
//! 32  next transaction id limit  u64           32  stream         u32
//! 40  streams                    u32           36  previous page  u32   0 = none; stale once that page was freed
//! 44  reserved                   u32           40  next page      u32   0 = none
//! 48  all had ended before id    u64           44  used           u16   end of the records
//! 56  streams: 12 bytes each                   46  reserved       u16
//!     0  first page   u32                      48  records
//!     4  head page    u32
//!     8  head offset  u16
//!     10 flags        u16   1 = pages before the head were lost sight of
//! ```
//! Ids below the limit may be in use; a restart continues at the limit, so no id is ever used
//! twice. Every transaction with an id below that at offset 48 has ended: it may lag behind, and
//! matters only if a page of records is broken ([`super::damage`]).

use tidepool_pool::PAGE_HEADER_SIZE;

use crate::format::entry::RollPointer;
use crate::page_op::PageOp;

pub use crate::format::UNDO_DIRECTORY_PAGE as DIRECTORY_PAGE;
/// Offset of the transaction id limit.
pub const TRX_ID_LIMIT_AT: usize = PAGE_HEADER_SIZE;
/// Offset of the number of streams.
pub const STREAMS_AT: usize = 40;
/// Offset of the id before which all transactions have ended.
pub const ENDED_BELOW_AT: usize = 48;
const ENTRIES_AT: usize = 56;
const ENTRY_SIZE: usize = 12;

/// Offset of a page's stream number.
pub const STREAM_AT: usize = PAGE_HEADER_SIZE;
/// Offset of the link to the next page.
pub const NEXT_AT: usize = 40;
/// Offset of the end of the records.
pub const USED_AT: usize = 44;
/// Where records begin.
pub const DATA_AT: usize = 48;

/// Streams a directory has room for.
pub const fn max_streams(page_size: usize) -> usize {
    (page_size - ENTRIES_AT) / ENTRY_SIZE
}

/// Where records must end. Offsets are 16 bits, so the last bytes of a 64 KiB page stay unused.
pub const fn page_end(page_size: usize) -> usize {
    if page_size > 65_535 { 65_535 } else { page_size }
}

pub(super) fn u16_at(page: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

pub(super) fn u32_at(page: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
}

/// What the directory says of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// First page that is not freed.
    pub first: u32,
    /// Oldest log that purge has not done, or where the next log will begin.
    pub head: RollPointer,
    /// Pages of the stream from before its head are still allocated, because a broken page led to
    /// them.
    pub has_lost_pages: bool,
}

impl DirectoryEntry {
    /// Offset of a stream's entry.
    pub fn offset(stream: u32) -> usize {
        ENTRIES_AT + stream as usize * ENTRY_SIZE
    }

    /// Reads the entry of `stream`.
    pub fn read(page: &[u8], stream: u32) -> DirectoryEntry {
        let at = Self::offset(stream);
        DirectoryEntry {
            first: u32_at(page, at),
            head: RollPointer::read(&page[at + 4..at + 10]),
            has_lost_pages: page[at + 10] & 1 != 0,
        }
    }

    /// The entry's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.first.to_le_bytes().to_vec();
        self.head.write(&mut bytes);
        bytes.extend_from_slice(&[u8::from(self.has_lost_pages), 0]);
        bytes
    }
}

/// The fields of an undo page's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    pub stream: u32,
    /// Page before.
    pub prev: u32,
    /// Page behind.
    pub next: u32,
    /// End of the records.
    pub used: usize,
}

impl PageHeader {
    /// Reads the header; none if it cannot be one.
    pub fn read(page: &[u8]) -> Option<PageHeader> {
        let used = usize::from(u16_at(page, USED_AT));
        (DATA_AT..=page_end(page.len())).contains(&used).then(|| PageHeader {
            stream: u32_at(page, STREAM_AT),
            prev: u32_at(page, STREAM_AT + 4),
            next: u32_at(page, NEXT_AT),
            used,
        })
    }

    /// The header's bytes.
    pub fn bytes(&self) -> [u8; DATA_AT - PAGE_HEADER_SIZE] {
        let mut bytes = [0; DATA_AT - PAGE_HEADER_SIZE];
        bytes[..4].copy_from_slice(&self.stream.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.prev.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.next.to_le_bytes());
        bytes[12..14].copy_from_slice(&(self.used as u16).to_le_bytes());
        bytes
    }
}

/// An operation that writes `bytes` at `at`.
pub(super) fn write(at: usize, bytes: &[u8]) -> PageOp<'_> {
    PageOp::Write { offset: at as u32, bytes }
}
