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
        self.open_mirrored_space(id, file, None)
    }

    /// The same, with a second copy of some of the pages in a mirror.
    pub fn open_mirrored_space(
        &self,
        id: u32,
        file: PackedFile,
        mirror: Option<Mirror>,
    ) -> Result<Arc<Space>> {
        let space = Arc::new(Space::new(id, file, mirror, self.frames.accounting())?);
        let mut spaces = self.spaces.write();
        if spaces.contains_key(&id) {
            return Err(Error::Space { space: id, state: "is already open" });
        }
        spaces.insert(id, space.clone());
        Ok(space)
    }

    /// The open tablespace `id`.
    pub fn space(&self, id: u32) -> Option<Arc<Space>> {
        self.spaces.read().get(&id).cloned()
    }

    /// All open tablespaces.
    pub(crate) fn all_spaces(&self) -> Vec<Arc<Space>> {
        self.spaces.read().values().cloned().collect()
    }

    /// Takes the space out of the pool, its dirty pages written first, or forgotten if `discard`
    /// (the file is about to be removed). The space may not be used any more. On an error it stays
    /// open.
    pub fn close_space(&self, space: &Arc<Space>, discard: bool) -> Result<()> {
        if space.is_closed() {
            return Err(Error::Space { space: space.id(), state: "is already closed" });
        }
        if !discard {
            self.flush_space(space)?;
        } else {
            space.discard();
        }
        if !space.close() {
            return Err(Error::Space { space: space.id(), state: "is already closed" });
        }
        // Who held the flusher before may have pages in flight; who gets it later sees the mark.
        self.flusher.lock().forget_space(space.id());
        self.end_upkeep(space);
        // Pairs with the fence in `load`: either we see the loader's word, or it sees the mark.
        fence(Ordering::SeqCst);
        let mut kept_dirty = 0;
        space.for_each_resident(|_, word| {
            let Some(latched) = word.lock_exclusive() else { return };
            let frame = latched.latched_frame();
            if discard {
                self.dirty.forget(&self.frames, frame);
            } else if self.frames.descriptor(frame).is_dirty() {
                kept_dirty += 1;
                word.unlock_exclusive(false);
                return;
            }
            self.replacement.remove(frame);
            self.vacate(word, frame);
            self.frames.give(frame);
        });
        assert_eq!(kept_dirty, 0, "space {} was changed while it was being closed", space.id());
        self.spaces.write().remove(&space.id());
        Ok(())
    }
}
