//! What a page is for its file: an image, compressed as the settings say.

use std::sync::atomic::Ordering;

use tidepool_store::packed::Image;

use super::PoolCore;
use crate::page::PageId;
use crate::page_compression::PageCompression;
use crate::space::Space;

impl PoolCore {
    /// How pages are compressed from now on.
    pub(crate) fn page_compression(&self) -> PageCompression {
        PageCompression::ALL[usize::from(self.compression.load(Ordering::Relaxed))]
    }

    /// Changes it.
    pub(crate) fn set_page_compression(&self, compression: PageCompression) {
        self.compression.store(compression as u8, Ordering::Relaxed);
    }

    /// The image of a page for the file of its space.
    pub(crate) fn image_in(&self, space: &Space, no: u32, bytes: &[u8]) -> Image {
        let compression = match space.compression() {
            PageCompression::Auto => self.page_compression(),
            chosen => chosen,
        };
        encode(compression, PageId::new(space.id(), no), bytes)
    }

    /// The image of a page, as files without a setting are written now.
    pub(crate) fn image_of(&self, page: PageId, bytes: &[u8]) -> Image {
        encode(self.page_compression(), page, bytes)
    }
}

fn encode(compression: PageCompression, page: PageId, bytes: &[u8]) -> Image {
    let mut image = Vec::new();
    let codec = compression.codec().encode(bytes, &mut image);
    Image::plain((page.space, page.no), codec, image)
}
