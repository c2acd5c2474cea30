//! Which tablespaces are open.
//!
//! How one is closed, for which its dirty pages are written, is in the pool's face.

use std::sync::Arc;

use tidepool_store::packed::PackedFile;

use super::PoolCore;
use crate::error::{Error, Result};
use crate::mirror::Mirror;
use crate::space::Space;

impl PoolCore {
    /// Makes the pages of `file` available as the tablespace `id`, with a second copy of some of
    /// them in `mirror`.
    pub(crate) fn open_space(
        &self,
        id: u32,
        file: PackedFile,
        mirror: Option<Mirror>,
    ) -> Result<Arc<Space>> {
        let (accounting, memory) = (self.frames.accounting(), self.spaces_memory.clone());
        let space = Arc::new(Space::new(id, file, mirror, accounting, memory)?);
        let mut spaces = self.spaces.write();
        if spaces.contains_key(&id) {
            return Err(Error::Space { space: id, state: "is already open" });
        }
        spaces.insert(id, space.clone());
        Ok(space)
    }

    /// The open tablespace `id`.
    pub(crate) fn space(&self, id: u32) -> Option<Arc<Space>> {
        self.spaces.read().get(&id).cloned()
    }

    /// All open tablespaces, those included that are being closed.
    pub(crate) fn all_spaces(&self) -> Vec<Arc<Space>> {
        self.spaces.read().values().cloned().collect()
    }

    /// Up to `count` of them in the order of their numbers, from `first` on.
    pub(crate) fn some_spaces(&self, first: u32, count: usize) -> Vec<Arc<Space>> {
        let spaces = self.spaces.read();
        spaces.range(first..).take(count).map(|(_, space)| space.clone()).collect()
    }

    /// The spaces that are open for good.
    pub(crate) fn kept_spaces(&self) -> Vec<Arc<Space>> {
        let mut spaces = self.all_spaces();
        spaces.retain(|space| !space.is_closed());
        spaces
    }
}
