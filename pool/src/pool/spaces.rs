//! Tablespaces opened and closed.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use tidepool_store::packed::PackedFile;

use crate::error::{Error, Result};
use crate::mirror::Mirror;
use crate::pool::Pool;
use crate::space::Space;

impl Pool {
    /// Makes the pages of `file` available as the tablespace `id`.
    pub fn open_space(&self, id: u32, file: PackedFile) -> Result<Arc<Space>> {
        self.core.open_space(id, file, None)
    }

    /// The same, with a second copy of some of the pages in a mirror.
    pub fn open_mirrored_space(
        &self,
        id: u32,
        file: PackedFile,
        mirror: Option<Mirror>,
    ) -> Result<Arc<Space>> {
        self.core.open_space(id, file, mirror)
    }

    /// The open tablespace `id`.
    pub fn space(&self, id: u32) -> Option<Arc<Space>> {
        self.core.space(id)
    }

    /// Takes the space out of the pool, its dirty pages written first, or forgotten if `discard`
    /// (the file is about to be removed). The space may not be used any more. On an error it stays
    /// open.
    pub fn close_space(&self, space: &Arc<Space>, discard: bool) -> Result<()> {
        if space.is_closed() {
            return Err(Error::Space { space: space.id(), state: "is already closed" });
        }
        if !discard {
            self.flusher.flush_space(space)?;
        } else {
            space.discard();
        }
        if !space.close() {
            return Err(Error::Space { space: space.id(), state: "is already closed" });
        }
        self.flusher.forget_space(space.id());
        self.upkeep.end_for(space);
        // Pairs with the fence in `PoolCore::install`: either we see the loader's word, or it sees
        // the mark.
        fence(Ordering::SeqCst);
        let mut kept_dirty = 0;
        space.for_each_resident(|_, word| {
            let Some(latch) = word.latch_exclusive() else { return };
            let frame = latch.frame();
            if discard {
                self.core.dirty.forget(&self.core.frames, frame);
            } else if self.core.frames.descriptor(frame).is_dirty() {
                kept_dirty += 1;
                return;
            }
            self.core.replacement.remove(frame);
            self.core.vacate(latch.keep(), frame);
            self.core.frames.give(frame);
        });
        assert_eq!(kept_dirty, 0, "space {} was changed while it was being closed", space.id());
        self.core.spaces.write().remove(&space.id());
        Ok(())
    }
}
