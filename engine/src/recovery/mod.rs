//! What happens when a data directory is opened after a crash.
//!
//! 1. The control file says where the log begins, and which files it is in ([`crate::redo`]).
//! 2. [`scan`]: the log is read once, to find its end and the files it creates and deletes.
//! 3. Torn pages are healed from the doublewrite file, before anything reads them.
//! 4. A new epoch begins; from here on the log can be appended to.
//! 5. [`apply`]: the log is read again, and every change that its page has not seen is applied.
//!
//! Every step can be interrupted and done again: changes that a page has seen are told by its LSN, and the
//! checkpoint moves only by the ordinary rules afterwards.
//!
//! What follows is not physical and not done here: transactions that the log left unfinished are rolled
//! back by their undo records.

pub mod apply;
pub mod scan;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use tidepool_pool::storage::{Storage, StorageFile};
use tidepool_pool::{Doublewrite, Lsn, PageSize};

use crate::error::Result;
use crate::files::space_file_name;

/// Replaces torn pages by their copies in the doublewrite file, if the log, which begins at the checkpoint, reaches back to them.
pub fn heal_torn_pages(storage: &dyn Storage, page_size: PageSize, checkpoint: Lsn) -> Result<()> {
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
    Doublewrite::recover(storage, page_size, checkpoint, |page| file_of(page.space))?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}
