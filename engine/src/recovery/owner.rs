//! Which data directory the files belong to, checked before recovery reads a page.

use tidepool_pool::packed::{self, PackedFile};
use tidepool_pool::storage::Storage;

use crate::error::{Error, Remedy, Result};
use crate::files::{SYSTEM_SPACE, space_file_name};
use crate::page_files::{PageFiles, file_error};
use crate::redo::{self, format_uuid};

/// The system tablespace must be of the same data directory as the redo log.
pub(super) fn check_owner(storage: &dyn Storage, files: &PageFiles) -> Result<()> {
    let name = space_file_name(SYSTEM_SPACE);
    let file = match storage.open(&name) {
        // Who opens the space says so, or finds its mirror.
        Err(error) if error.is_not_found() => return Ok(()),
        file => file?,
    };
    let owner = match PackedFile::settings_of(&*file) {
        Ok(settings) => settings.instance,
        Err(error @ packed::Error::WrongFile { .. }) => return Err(file_error(error)),
        // Nothing was written to it yet, or who opens the space says what is wrong with it.
        Err(_) => return Ok(()),
    };
    if owner == files.instance {
        return Ok(());
    }
    Err(Error::lost(
        redo::REDO_DIR,
        format!(
            "the redo log belongs to another data directory (instance {}, but {name} is of {})",
            format_uuid(&files.instance),
            format_uuid(&owner)
        ),
        Remedy::PutOwnLog,
    ))
}
