//! Spaces and their mirrors made the same again.
//!
//! Before anything else is read, [`reconcile`] makes the two files the same. Where the space's own
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

use tidepool_pool::packed::{self, PackedFile, Stream};
use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile, StorageOp};
use tidepool_pool::{Mirror, PageId, PageSize, page};

use crate::error::Result;
use crate::files::{SUCCESSOR_FILE, SYSTEM_SPACE, UNDO_SPACE, mirror_file_name, space_file_name};
use crate::format::space_header::SpaceHeader;
use crate::mirror::{Pieces, header_of, image_of, open};
use crate::page_files::{PageFiles, file_error};

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
        packed::Error::WrongFile { .. } | packed::Error::Key { .. } => false,
    };
    let made = match mirror.filter(|_| is_damaged) {
        Some(mirror) => {
            let what = file_error(refusal.clone()).what();
            tracing::error!("{what}; it is made anew of {}; check the disk", mirror.file().name());
            make_anew(storage, files, mirror)?
        }
        None => None,
    };
    match made {
        // As the last resort it is rescued later.
        None if !files.last_resort => Err(file_error(refusal)),
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
    if files.restore_system(mirror, storage.create(SUCCESSOR_FILE)?).map_err(file_error)?.is_none()
    {
        storage.remove(SUCCESSOR_FILE)?;
        return Ok(None);
    }
    storage.rename(SUCCESSOR_FILE, &name)?;
    storage.sync_dir("")?;
    let made = files.open(SYSTEM_SPACE, storage.open(&name)?);
    Ok(Some(made.map_err(file_error)?))
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
