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
//! Before anything is read, [`reconcile`] makes the two files the same again. Where the space's own
//! page is whole, it is the one that counts: an older copy of the file would have been refused, and
//! the mirror may be one. Where that is broken or was never written, the mirror's page takes its
//! place, with a line in the error log. After a crash either may be the newer; redo makes the same
//! of both. A mirror whose first page is broken, or of another data directory, restores nothing,
//! and is written anew.
//!
//! A `system.tpd` that is missing, can't be opened, or is an older copy is made anew of its mirror,
//! under another name, and takes its place when it is durable. So that a mirror that is an older
//! copy as well makes no older catalog, it must have a page as new as one that was durable there
//! ([`crate::newest_runs`]). A file of another data directory stays as it is: the start is refused.
//!
//! All pages that have a copy are read and compared byte by byte, after a clean shutdown too: a
//! copy that is not the same as its page would be believed when that breaks. Checksums are looked
//! at only where the two differ.

use std::sync::Arc;

use tidepool_pool::packed::{self, Codec, Image, PackedFile, Stream};
use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile, StorageOp};
use tidepool_pool::{Lsn, Mirror, PageId, PageSize, page};

use crate::error::Result;
use crate::files::{SYSTEM_SPACE, UNDO_SPACE, mirror_file_name, space_file_name};
use crate::format::UNDO_DIRECTORY_PAGE;
use crate::format::space_header::{SpaceHeader, pages_per_bitmap};
use crate::page_files::{PageFiles, error_of, file_error};

/// Bytes read at once, a multiple of every page size.
const PIECE_BYTES: usize = 1 << 20;
/// Pages of a file that is made anew that are written at once.
const BATCH_PAGES: usize = 128;
/// The name of a `system.tpd` that is made anew, until it is durable.
pub(crate) const SUCCESSOR_FILE: &str = "system.tpd.new";

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
///
/// # Errors
/// Of the disk; and a file that can't be opened, if its mirror can't make it anew.
pub(crate) fn reconcile(storage: &dyn Storage, files: &PageFiles) -> Result<()> {
    let page_size = files.page_size;
    let mut is_new = false;
    for space in [SYSTEM_SPACE, UNDO_SPACE] {
        let name = mirror_file_name(space).expect("it has one");
        if !storage.exists(name)? {
            storage.create(name)?.sync_data()?;
            is_new = true;
        }
        let mirror = open(storage, page_size, space)?.expect("it is there");
        let header = header_of(&mirror, space, page_size);
        let is_ours = header.is_some_and(|header| header.instance == files.instance);
        // Without the file, the open is refused later, and the mirror is kept for when the file is
        // back.
        if let Some(home) = open_home(storage, files, space, is_ours.then_some(&mirror))? {
            Pair { space, home, mirror, page_size }.reconcile(is_ours)?;
        }
    }
    if is_new {
        storage.sync_dir("")?;
    }
    Ok(())
}

/// The header of a space as its mirror has it, if it has one.
fn header_of(mirror: &Mirror, space: u32, page_size: PageSize) -> Option<SpaceHeader> {
    let mut bytes = AlignedBuf::zeroed(page_size.bytes());
    let is_whole = mirror.read(PageId::new(space, 0), &mut bytes);
    is_whole.then(|| SpaceHeader::parse(&bytes, mirror.file().name()).ok()).flatten()
}

/// Opens the file of a space, or makes it anew of the mirror. None if it is missing and stays so,
/// or, as the last resort, can't be opened.
fn open_home(
    storage: &dyn Storage,
    files: &PageFiles,
    space: u32,
    mirror: Option<&Mirror>,
) -> Result<Option<PackedFile>> {
    let mirror = mirror.filter(|_| space == SYSTEM_SPACE);
    if space == SYSTEM_SPACE {
        storage.remove_if_there(SUCCESSOR_FILE)?;
    }
    let name = space_file_name(space);
    if !storage.exists(&name)? {
        return match mirror {
            Some(mirror) => {
                tracing::error!("{name}: missing: it is made anew of {}", mirror.file().name());
                make_anew(storage, files, mirror)
            }
            None => Ok(None),
        };
    }
    let opened = storage.open(&name).map_err(packed::Error::from);
    let refusal = match opened.and_then(|file| open_whole(files, space, file)) {
        Ok(home) => return Ok(Some(home)),
        Err(error) => error,
    };
    let is_damaged = match &refusal {
        packed::Error::Corrupt { .. } | packed::Error::File { .. } => true,
        packed::Error::Storage(error) => error.op == StorageOp::Read,
        packed::Error::WrongFile { .. } => false,
    };
    let made = match mirror.filter(|_| is_damaged) {
        Some(mirror) => {
            tracing::error!(
                "{refusal}; it is made anew of {}; check the disk",
                mirror.file().name()
            );
            make_anew(storage, files, mirror)?
        }
        None => None,
    };
    match made {
        // As the last resort it is rescued later.
        None if !files.last_resort => Err(error_of(space, refusal)),
        made => Ok(made),
    }
}

/// Opens a file whose map can be read as a whole: a page whose place is not known could not be
/// written either.
fn open_whole(
    files: &PageFiles,
    space: u32,
    file: Arc<dyn StorageFile>,
) -> packed::Result<PackedFile> {
    let file = files.open(space, file)?;
    let mut from = Some(0);
    while let Some(at) = from {
        // One page of each node is enough.
        let next = file.next_page(space, at)?;
        from = next.and_then(|no| (no / packed::MAP_PAGES + 1).checked_mul(packed::MAP_PAGES));
    }
    Ok(file)
}

/// Makes `system.tpd` anew of its mirror. None if that has not all of its pages.
fn make_anew(
    storage: &dyn Storage,
    files: &PageFiles,
    mirror: &Mirror,
) -> Result<Option<PackedFile>> {
    let name = space_file_name(SYSTEM_SPACE);
    if restore(mirror, files, storage.create(SUCCESSOR_FILE)?).map_err(file_error)?.is_none() {
        storage.remove(SUCCESSOR_FILE)?;
        return Ok(None);
    }
    storage.rename(SUCCESSOR_FILE, &name)?;
    storage.sync_dir("")?;
    let made = files.open(SYSTEM_SPACE, storage.open(&name)?);
    Ok(Some(made.map_err(file_error)?))
}

/// Makes a system space of the pages in its mirror, in `file`, which is empty; durable, except for
/// its name. None if the mirror is of another data directory or an older copy, or one of its pages
/// is broken.
pub(crate) fn restore(
    mirror: &Mirror,
    files: &PageFiles,
    file: Arc<dyn StorageFile>,
) -> packed::Result<Option<PackedFile>> {
    let header = header_of(mirror, SYSTEM_SPACE, files.page_size);
    let Some(header) = header.filter(|header| header.instance == files.instance) else {
        return Ok(None);
    };
    let made = files.make_successor(SYSTEM_SPACE, file)?;
    let mut bytes = AlignedBuf::zeroed(files.page_size.bytes());
    let mut pieces = Pieces::of(mirror.file(), bytes.len())?;
    let (mut images, mut newest) = (Vec::new(), Lsn::ZERO);
    for no in 0..header.size_pages {
        let offset = mirror.offset_of(no).expect("every page has a copy");
        let id = PageId::new(SYSTEM_SPACE, no);
        // The mirror ends behind the last page that was written.
        let is_there = offset < pieces.len;
        if is_there && (!pieces.read(offset, &mut bytes) || page::verify(&bytes, id).is_err()) {
            tracing::error!("{}: page {no} is broken, too", mirror.file().name());
            return Ok(None);
        }
        if is_there && !page::is_zero(&bytes) {
            newest = newest.max(page::page_lsn(&bytes));
            images.push(image_of(id, &bytes));
        }
        if images.len() == BATCH_PAGES {
            made.write(Stream::Flushed, &std::mem::take(&mut images))?;
        }
    }
    let known = files.newest_runs.of_mirror(SYSTEM_SPACE);
    if newest < known {
        let name = mirror.file().name();
        tracing::error!("{name}: an older copy: a page with LSN {known} was durable there");
        return Ok(None);
    }
    made.write(Stream::Flushed, &images)?;
    made.checkpoint()?;
    Ok(Some(made))
}

fn image_of(page: PageId, bytes: &[u8]) -> Image {
    let mut image = Vec::new();
    let codec = Codec::Zstd.encode(bytes, &mut image);
    Image { space: page.space, no: page.no, codec, bytes: image }
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
    fn of(file: &'a Arc<dyn StorageFile>, page_size: usize) -> packed::Result<Self> {
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
    home: PackedFile,
    mirror: Mirror,
    page_size: PageSize,
}

impl Pair {
    /// `is_ours`: the mirror is of this data directory, and may restore pages.
    fn reconcile(&self, is_ours: bool) -> Result<()> {
        let bytes = self.page_size.bytes();
        let (mut own, mut copy) = (AlignedBuf::zeroed(bytes), AlignedBuf::zeroed(bytes));
        let mut pieces = Pieces::of(self.mirror.file(), bytes).map_err(file_error)?;
        let (mut pages, mut no) = (self.home.end(self.space).map_err(file_error)?, 0);
        let mut mirrored = 0;
        while no < pages.max(1) {
            let id = PageId::new(self.space, no);
            if let Some(offset) = self.mirror.offset_of(no) {
                // A later read of the page gives the error, if the mirror does not help.
                let is_read = self.home.read(self.space, no, &mut own).is_ok();
                let has_copy = pieces.read(offset, &mut copy);
                if is_read && has_copy && own[..] == copy[..] && no > 0 {
                    no += 1;
                    continue;
                }
                let is_whole = |page: &[u8]| page::verify(page, id).is_ok() && !page::is_zero(page);
                let has_copy = has_copy && is_whole(&copy);
                let mut is_whole = is_read && is_whole(&own);
                if is_whole && (!has_copy || own[..] != copy[..]) {
                    self.mirror.write(no, &own)?;
                    mirrored += 1;
                } else if !is_whole && has_copy && is_ours {
                    self.restore(id, &copy)?;
                    own.copy_from_slice(&copy);
                    is_whole = true;
                }
                // The file may lack pages. Only a whole header says how many there were.
                if no == 0
                    && is_whole
                    && let Ok(header) = SpaceHeader::parse(&own, self.home.name())
                {
                    pages = pages.max(header.size_pages);
                }
            }
            no += 1;
        }
        if mirrored > 0 {
            self.mirror.file().sync_data()?;
        }
        Ok(())
    }

    /// Writes a page of the mirror to the space's own file.
    fn restore(&self, page: PageId, copy: &[u8]) -> Result<()> {
        let (home, mirror) = (self.home.name(), self.mirror.file().name());
        tracing::error!(
            "{home}: page {} is broken, and was restored from its copy in {mirror}; check the disk",
            page.no
        );
        let written = self.home.write(Stream::Flushed, &[image_of(page, copy)]);
        written.map_err(file_error)
    }
}
