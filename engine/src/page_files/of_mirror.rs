//! `system.tpd` made anew of its mirror.

use std::sync::Arc;

use tidepool_pool::packed::{self, PackedFile, Stream};
use tidepool_pool::storage::{AlignedBuf, StorageFile};
use tidepool_pool::{Lsn, Mirror, PageId, page};

use super::PageFiles;
use crate::files::SYSTEM_SPACE;
use crate::mirror::{Pieces, header_of, image_of};

/// Pages that are written at once.
const BATCH_PAGES: usize = 128;

impl PageFiles {
    /// Makes a system space of the pages in its mirror, in `file`, which is empty; durable, except
    /// for its name. None if the mirror is of another data directory or an older copy, or one of
    /// its pages is broken.
    pub(crate) fn restore_system(
        &self,
        mirror: &Mirror,
        file: Arc<dyn StorageFile>,
    ) -> packed::Result<Option<PackedFile>> {
        let header = header_of(mirror, SYSTEM_SPACE, self.page_size);
        let Some(header) = header.filter(|header| header.instance == self.instance) else {
            return Ok(None);
        };
        let made = self.make_successor(SYSTEM_SPACE, file)?;
        let mut bytes = AlignedBuf::zeroed(self.page_size.bytes());
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
        let known = self.newest_runs.of_mirror(SYSTEM_SPACE);
        if newest < known {
            let name = mirror.file().name();
            tracing::error!("{name}: an older copy: a page with LSN {known} was durable there");
            return Ok(None);
        }
        made.write(Stream::Flushed, &images)?;
        made.checkpoint()?;
        Ok(Some(made))
    }
}
