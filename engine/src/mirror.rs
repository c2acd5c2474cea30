//! The pages that no start can do without, a second time.
//!
//! Every table is found through `system.tpd`, and every unfinished transaction through the
//! directory in `undo.tpd`. So one broken page there would cost all tables. These pages have a copy
//! in a mirror: all pages of `system.tpd` in `system-mirror.tpd`; the header, the directory and the
//! allocation bitmaps of `undo.tpd` in `undo-mirror.tpd`. Pages of undo records have none: each is
//! about a few transactions ([`crate::undo::damage`]).
//!
//! # While running
//! The pool writes both copies in one batch, and reads the second where the first is broken
//! ([`Mirror`]).
//!
//! # At an open
//! After torn pages were healed and before anything is read, [`reconcile`] makes the two files the
//! same again. Where the space's own page is whole, it is the one that counts: somebody may have
//! restored the file from a backup, and the mirror not. Where that is broken, zeroed or cut off,
//! the mirror's page takes its place, with a line in the error log. After a crash either may be the
//! newer; redo makes the same of both. A mirror whose first page is broken, or of another data
//! directory, restores nothing, and is written anew.
//!
//! Both files are read as a whole, [`PIECE_BYTES`] at a time, and compared byte by byte, after a
//! clean shutdown too: a copy
//! that is not the same as its page would be believed when that breaks. Checksums are looked at
//! only where the two differ.

use std::sync::Arc;

use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile};
use tidepool_pool::{Mirror, PageId, PageSize, page};

use crate::error::Result;
use crate::files::{SYSTEM_SPACE, UNDO_SPACE, mirror_file_name, space_file_name};
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

/// Makes the mirrors if they are not there, and makes them and their spaces the same. Before redo
/// is applied, and before a pool is made.
pub(crate) fn reconcile(
    storage: &dyn Storage,
    page_size: PageSize,
    instance: &[u8; 16],
) -> Result<()> {
    let mut is_new = false;
    for space in [SYSTEM_SPACE, UNDO_SPACE] {
        let (home, name) = (space_file_name(space), mirror_file_name(space).expect("it has one"));
        if !storage.exists(name)? {
            storage.create(name)?.sync_data()?;
            is_new = true;
        }
        let mirror = open(storage, page_size, space)?.expect("it is there");
        let mut pair = Pair { space, mirror, page_size, home: None };
        let is_ours = pair.mirror_header().is_some_and(|header| header.instance == *instance);
        if storage.exists(&home)? {
            pair.home = Some(storage.open(&home)?);
        } else if is_ours && space == SYSTEM_SPACE {
            // All of it is in the mirror.
            pair.home = Some(storage.create(&home)?);
            is_new = true;
        }
        pair.reconcile(is_ours)?;
    }
    if is_new {
        storage.sync_dir("")?;
    }
    Ok(())
}

/// A file that is read from its beginning to its end, a piece at a time.
struct Pieces<'a> {
    file: &'a Arc<dyn StorageFile>,
    len: u64,
    buf: AlignedBuf,
    /// Where the piece in `buf` begins, and how long it is.
    start: u64,
    held: usize,
}

impl<'a> Pieces<'a> {
    fn of(file: &'a Arc<dyn StorageFile>, page_size: usize) -> Result<Self> {
        // A page that was cut off is as good as none.
        let len = file.len()? / page_size as u64 * page_size as u64;
        Ok(Self { file, len, buf: AlignedBuf::zeroed(PIECE_BYTES), start: 0, held: 0 })
    }

    /// Reads a page; false if it can't be read. An error of the disk in one page does not hide its
    /// neighbours.
    fn read(&mut self, offset: u64, page: &mut [u8]) -> bool {
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

/// A space's file and its mirror.
struct Pair {
    space: u32,
    home: Option<Arc<dyn StorageFile>>,
    mirror: Mirror,
    page_size: PageSize,
}

impl Pair {
    fn mirror_header(&self) -> Option<SpaceHeader> {
        let mut bytes = AlignedBuf::zeroed(self.page_size.bytes());
        let is_whole = self.mirror.read(PageId::new(self.space, 0), &mut bytes);
        is_whole.then(|| SpaceHeader::parse(&bytes, self.mirror.file().name()).ok()).flatten()
    }

    /// `is_ours`: the mirror is of this data directory, and may restore pages.
    fn reconcile(&self, is_ours: bool) -> Result<()> {
        // Without the file, the open is refused later, and the mirror is kept for when the file is
        // back.
        let Some(home) = &self.home else { return Ok(()) };
        let bytes = self.page_size.bytes();
        let (mut own, mut copy) = (AlignedBuf::zeroed(bytes), AlignedBuf::zeroed(bytes));
        let (mut own_pieces, mut pieces) =
            (Pieces::of(home, bytes)?, Pieces::of(self.mirror.file(), bytes)?);
        let (mut pages, mut no) = ((home.len()? / bytes as u64) as u32, 0);
        let (mut restored, mut mirrored) = (0, 0);
        while no < pages.max(1) {
            let id = PageId::new(self.space, no);
            if let Some(offset) = self.mirror.offset_of(no) {
                let is_whole = |page: &[u8]| page::verify(page, id).is_ok() && !page::is_zero(page);
                let is_read = own_pieces.read(self.page_size.offset_of(no), &mut own);
                let has_copy = pieces.read(offset, &mut copy);
                if is_read && has_copy && own[..] == copy[..] && no > 0 {
                    no += 1;
                    continue;
                }
                let has_copy = has_copy && is_whole(&copy);
                let mut is_whole = is_read && is_whole(&own);
                if is_whole && (!has_copy || own[..] != copy[..]) {
                    self.mirror.write(no, &own)?;
                    mirrored += 1;
                } else if !is_whole && has_copy && is_ours {
                    tracing::error!(
                        "{}: page {no} is broken, and was restored from its copy in {}; check the disk",
                        home.name(),
                        self.mirror.file().name()
                    );
                    home.write_at(&copy, self.page_size.offset_of(no))?;
                    own.copy_from_slice(&copy);
                    is_whole = true;
                    restored += 1;
                }
                // The file may have been cut off. Only a whole header says how long it was.
                if no == 0
                    && is_whole
                    && let Ok(header) = SpaceHeader::parse(&own, home.name())
                {
                    pages = pages.max(header.size_pages);
                }
            }
            no += 1;
        }
        if restored > 0 {
            home.sync_data()?;
        }
        if mirrored > 0 {
            self.mirror.file().sync_data()?;
        }
        Ok(())
    }
}
