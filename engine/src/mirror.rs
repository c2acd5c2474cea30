//! The pages that no start can do without, a second time.
//!
//! Every table is found through `system.tpd`, and every unfinished transaction through the
//! directory in `undo.tpd`. So one broken page there would cost all tables. These pages have a copy
//! in a mirror: all pages of `system.tpd` in `system-mirror.tpd`; the header, the directory and the
//! allocation bitmaps of `undo.tpd` in `undo-mirror.tpd`. Pages of undo records have none: each is
//! about a few transactions ([`crate::undo::damage`]).
//!
//! Here: which pages have a copy, and where. While the engine runs, the pool writes both copies in
//! one batch, and reads the second where the first is broken ([`Mirror`]). Recovery makes the two
//! the same again ([`crate::recovery`]).

use std::sync::Arc;

use tidepool_pool::packed::{self, Codec, Image};
use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile};
use tidepool_pool::{Mirror, PageId, PageSize};

use crate::error::Result;
use crate::files::{SYSTEM_SPACE, UNDO_SPACE, mirror_file_name};
use crate::format::UNDO_DIRECTORY_PAGE;
use crate::format::space_header::{SpaceHeader, pages_per_bitmap};

/// Bytes read at once, a multiple of every page size.
const PIECE_BYTES: usize = 1 << 20;

/// Every page of the system space has its own place.
fn system_slot(no: u32, _: PageSize) -> Option<u32> {
    Some(no)
}

/// Of the undo space: header, first bitmap, directory, then the other bitmaps.
fn undo_slot(no: u32, page_size: PageSize) -> Option<u32> {
    let per_bitmap = pages_per_bitmap(page_size.bytes());
    match no {
        ..=UNDO_DIRECTORY_PAGE => Some(no),
        _ => (no % per_bitmap == 1).then(|| UNDO_DIRECTORY_PAGE + no / per_bitmap),
    }
}

/// Whether a page has a place in a mirror.
pub(crate) fn covers(page: PageId, page_size: PageSize) -> bool {
    match page.space {
        SYSTEM_SPACE => system_slot(page.no, page_size).is_some(),
        UNDO_SPACE => undo_slot(page.no, page_size).is_some(),
        _ => false,
    }
}

/// The mirror of a space, if it is one that has a mirror and the file is there.
pub(crate) fn open(
    storage: &dyn Storage,
    page_size: PageSize,
    space: u32,
) -> Result<Option<Mirror>> {
    let Some(name) = mirror_file_name(space) else { return Ok(None) };
    let slot_of = if space == SYSTEM_SPACE { system_slot } else { undo_slot };
    match storage.open(name) {
        Ok(file) => Ok(Some(Mirror::new(file, page_size, slot_of))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The header of a space as its mirror has it, if it has one.
pub(crate) fn header_of(mirror: &Mirror, space: u32, page_size: PageSize) -> Option<SpaceHeader> {
    let mut bytes = AlignedBuf::zeroed(page_size.bytes());
    let is_whole = mirror.read(PageId::new(space, 0), &mut bytes);
    is_whole.then(|| SpaceHeader::parse(&bytes, mirror.file().name()).ok()).flatten()
}

/// A page as it goes into the space's own file.
pub(crate) fn image_of(page: PageId, bytes: &[u8]) -> Image {
    let mut image = Vec::new();
    let codec = Codec::Zstd.encode(bytes, &mut image);
    Image::plain((page.space, page.no), codec, image)
}

/// A file that is read from its beginning to its end, a piece at a time.
pub(crate) struct Pieces<'a> {
    file: &'a Arc<dyn StorageFile>,
    /// Length of the file in bytes, in whole pages.
    pub(crate) len: u64,
    buf: AlignedBuf,
    /// Where the piece in `buf` begins, and how long it is.
    start: u64,
    held: usize,
}

impl<'a> Pieces<'a> {
    pub(crate) fn of(file: &'a Arc<dyn StorageFile>, page_size: usize) -> packed::Result<Self> {
        // A page that was cut off is as good as none.
        let len = file.len()? / page_size as u64 * page_size as u64;
        Ok(Self { file, len, buf: AlignedBuf::zeroed(PIECE_BYTES), start: 0, held: 0 })
    }

    /// Reads a page; false if it can't be read. An error of the disk in one page does not hide its
    /// neighbours.
    pub(crate) fn read(&mut self, offset: u64, page: &mut [u8]) -> bool {
        if offset + page.len() as u64 > self.len {
            return false;
        }
        let is_held = |start: u64, held: usize| {
            (start..start + held as u64).contains(&offset)
                && offset + page.len() as u64 <= start + held as u64
        };
        if !is_held(self.start, self.held) {
            let held = (self.len - offset).min(PIECE_BYTES as u64) as usize;
            (self.start, self.held) = match self.file.read_at(&mut self.buf[..held], offset) {
                Ok(()) => (offset, held),
                Err(_) => (0, 0),
            };
        }
        if !is_held(self.start, self.held) {
            return self.file.read_at(page, offset).is_ok();
        }
        let at = (offset - self.start) as usize;
        page.copy_from_slice(&self.buf[at..at + page.len()]);
        true
    }
}
