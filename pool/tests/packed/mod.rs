//! Packed files for tests and benchmarks.

use std::sync::Arc;

use tidepool_pool::PageSize;
use tidepool_pool::packed::{Access, PackedFile, Settings};
use tidepool_pool::storage::StorageFile;

fn settings(space: u32, page_size: usize) -> Settings {
    let page_size = PageSize::new(page_size).expect("a page size");
    Settings { page_size, instance: *b"a data directory", space, random: 7 }
}

/// Makes a packed file of one that is empty.
#[allow(dead_code, reason = "not every test makes one")]
pub fn create(file: Arc<dyn StorageFile>, space: u32, page_size: usize) -> PackedFile {
    PackedFile::create(file, settings(space, page_size)).expect("it can be made")
}

/// Opens one that was made.
#[allow(dead_code, reason = "not every test opens one")]
pub fn open(file: Arc<dyn StorageFile>, space: u32, page_size: usize) -> PackedFile {
    let settings = Settings { random: 8, ..settings(space, page_size) };
    PackedFile::open(file, settings, Access::ReadWrite, 0).expect("it can be opened")
}
