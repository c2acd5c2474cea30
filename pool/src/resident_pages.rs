//! The pages in the pool, one by one: no latch, no mutex, no waiting.
//!
//! The walk goes over the frames' descriptors and looks at each page's header with racy reads.
//! Every page that is reported was there when it was looked at; one that comes, goes or moves
//! during the walk may be missed. So the whole is no snapshot.

use crate::page::{PAGE_NO, PAGE_TYPE, PageId, PageType, SPACE_ID, TREE_ID};
use crate::page_view::{PageView, RacyBytes, Retry};
use crate::pool::Pool;

/// A resident page, as [`Pool::for_each_resident`] found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentPage {
    /// Which page.
    pub id: PageId,
    /// What it holds; [`PageType::FREE`] too while it is being read.
    pub page_type: PageType,
    /// The tree it belongs to; 0 for none.
    pub tree_id: u32,
    /// Whether it differs from its file.
    pub is_dirty: bool,
    /// Whether the replacement policy means to keep it.
    pub is_hot: bool,
}

impl Pool {
    /// Calls `visit` for every resident page, in the order of the frames. Costs about two cache
    /// misses a page.
    pub fn for_each_resident(&self, mut visit: impl FnMut(ResidentPage)) {
        let frames = &self.core.frames;
        for frame in 0..frames.highest() {
            let descriptor = frames.descriptor(frame);
            let Some(id) = descriptor.page() else { continue };
            let (page_type, tree_id) =
                owner(&frames.racy(frame), id).unwrap_or((PageType::FREE, 0));
            let resident = ResidentPage {
                id,
                page_type,
                tree_id,
                is_dirty: descriptor.is_dirty(),
                is_hot: self.core.replacement.is_hot(frame),
            };
            // What was read is this page's only if it was here all the time.
            if descriptor.page() == Some(id) {
                visit(resident);
            }
        }
    }
}

/// Type and tree of page `id`; none while the frame still has the bytes of another.
fn owner(bytes: &RacyBytes<'_>, id: PageId) -> Option<(PageType, u32)> {
    let read = || -> Result<_, Retry> {
        let stated = PageId::new(bytes.u32_at(SPACE_ID)?, bytes.u32_at(PAGE_NO)?);
        Ok((stated, PageType(bytes.u16_at(PAGE_TYPE)?), bytes.u32_at(TREE_ID)?))
    };
    match read() {
        Ok((stated, page_type, tree_id)) if stated == id => Some((page_type, tree_id)),
        _ => None,
    }
}
