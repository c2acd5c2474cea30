//! Pages that are restored before recovery reads any: those torn in their files, and those with a
//! second copy.

use std::collections::HashMap;
use std::sync::Arc;

use tidepool_pool::storage::{AlignedBuf, Storage, StorageFile};
use tidepool_pool::{Doublewrite, PageId, page};

use crate::error::{Error, Result};
use crate::files::{SYSTEM_SPACE, space_file_name};
use crate::format::space_header::SpaceHeader;
use crate::mirror;
use crate::redo::control::Control;
use crate::redo::{self, format_uuid};

/// Replaces torn pages by their copies in the doublewrite file, if the log, which begins at the
/// checkpoint, reaches back to them.
pub(super) fn restore_torn_pages(storage: &dyn Storage, control: &Control) -> Result<()> {
    let mut files: HashMap<u32, Option<Arc<dyn StorageFile>>> = HashMap::new();
    let mut failure = None;
    let mut file_of = |space: u32| {
        let open = || match storage.open(&space_file_name(space)) {
            Ok(file) => Some(file),
            Err(error) => {
                // A space that was dropped since.
                if !error.is_not_found() {
                    failure.get_or_insert(error);
                }
                None
            }
        };
        files.entry(space).or_insert_with(open).clone()
    };
    let (page_size, checkpoint) = (control.page_size, control.checkpoint);
    Doublewrite::recover(storage, page_size, checkpoint, |page| file_of(page.space))?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// Removes the doublewrite file of a directory whose pages will be written only once: its copies
/// would be older than the pages, and pass for the newest when it is on again.
pub(super) fn remove_doublewrite(storage: &dyn Storage) -> Result<()> {
    Ok(Doublewrite::remove(storage)?)
}

/// Compares the pages that have a second copy with it, and restores the damaged ones of both.
pub(super) fn reconcile_mirrors(storage: &dyn Storage, control: &Control) -> Result<()> {
    mirror::reconcile(storage, control.page_size, &control.uuid)
}

/// The system tablespace must be of the same data directory as the redo log.
pub(super) fn check_owner(storage: &dyn Storage, control: &Control) -> Result<()> {
    let Control { page_size, uuid, .. } = control;
    let name = space_file_name(SYSTEM_SPACE);
    let file = match storage.open(&name) {
        // Who opens the space says so, or finds its mirror.
        Err(error) if error.is_not_found() => return Ok(()),
        file => file?,
    };
    let mut header = AlignedBuf::zeroed(page_size.bytes());
    match file.read_at(&mut header, 0) {
        Ok(()) => {}
        // Never written: the first recovery will make it.
        Err(error) if error.is_unexpected_eof() => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let id = PageId::new(SYSTEM_SPACE, 0);
    // A page that is broken is reported when it is read through the pool.
    if page::verify(&header, id).is_err() {
        return Ok(());
    }
    let Ok(SpaceHeader { instance: owner, .. }) = SpaceHeader::parse(&header, &name) else {
        return Ok(());
    };
    if owner == *uuid || owner == [0; 16] {
        return Ok(());
    }
    Err(Error::lost(
        redo::REDO_DIR,
        format!(
            "the redo log belongs to another data directory (instance {}, but {name} is of {}); put back this \
             data directory's own redo log",
            format_uuid(uuid),
            format_uuid(&owner)
        ),
    ))
}
