//! Packed files for the tests of this crate.

use std::sync::Arc;

use crate::packed::{PackedFile, Settings};
use crate::page::PageSize;
use crate::storage::StorageFile;

/// Makes a packed file of one that is empty.
pub fn create(file: Arc<dyn StorageFile>, space: u32, page_size: PageSize) -> PackedFile {
    let settings = Settings { page_size, instance: *b"a data directory", space, random: 7 };
    PackedFile::create(file, settings).expect("it can be made")
}
