//! How pages are compressed.

use std::sync::atomic::Ordering;

use crate::page_compression::PageCompression;
use crate::pool::Pool;

impl Pool {
    /// How pages are compressed from now on.
    pub fn page_compression(&self) -> PageCompression {
        PageCompression::ALL[usize::from(self.compression.load(Ordering::Relaxed))]
    }

    /// Changes it.
    pub fn set_page_compression(&self, compression: PageCompression) {
        self.compression.store(compression as u8, Ordering::Relaxed);
    }
}
