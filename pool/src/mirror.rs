//! Mirrors: a second copy of the pages of a space that everything hangs on, in a file beside the
//! space's own.
//!
//! Which pages have a place in the mirror is up to the layer above ([`Mirror::new`]). The pool
//! writes such a page to both files in one batch, its own first, and counts it as written only when
//! both are synced. A page that its own file gives wrong, as zeroes, or not at all, comes from the
//! mirror if that has it whole, and goes home again.
//!
//! A mirror has its pages side by side, and overwrites them in place: a power cut may leave one
//! torn. Its checksum shows that, and the page in the space's own file is durable by then.
//!
//! # Invariant
//! A page that is not dirty is the same in both files. While it is dirty, or after a crash, each
//! copy is at least as new as the checkpoint, so redo makes the same page of either. Who opens a
//! space makes that true of files that somebody may have replaced meanwhile (the engine's
//! `recovery::mirrors`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::page::{self, Lsn, PageId, PageSize};
use crate::storage::{AlignedBuf, Result, StorageFile};

/// The mirror of a space.
pub struct Mirror {
    file: Arc<dyn StorageFile>,
    page_size: PageSize,
    slot_of: fn(u32, PageSize) -> Option<u32>,
    /// The greatest LSN of a page that was written and synced here since the opening.
    newest: AtomicU64,
}

impl Mirror {
    /// The mirror in `file`. `slot_of` says which of its pages is that of a page of the space;
    /// `None`: it has none.
    pub fn new(
        file: Arc<dyn StorageFile>,
        page_size: PageSize,
        slot_of: fn(u32, PageSize) -> Option<u32>,
    ) -> Mirror {
        Mirror { file, page_size, slot_of, newest: AtomicU64::new(0) }
    }

    pub fn file(&self) -> &Arc<dyn StorageFile> {
        &self.file
    }

    /// Where the page `no` of the space is in the file, if it is.
    pub fn offset_of(&self, no: u32) -> Option<u64> {
        (self.slot_of)(no, self.page_size).map(|slot| self.page_size.offset_of(slot))
    }

    /// The page, if the mirror has it and it is whole; one of zeroes is not. An error of the disk
    /// counts as not whole.
    pub fn read(&self, id: PageId, bytes: &mut [u8]) -> bool {
        let Some(offset) = self.offset_of(id.no) else { return false };
        self.file.read_at(bytes, offset).is_ok()
            && page::verify(bytes, id).is_ok()
            && !page::is_zero(bytes)
    }

    /// The greatest LSN of a page that the pool has written to it and synced since it was opened.
    pub fn newest_lsn(&self) -> Lsn {
        Lsn(self.newest.load(Ordering::Acquire))
    }

    /// A page with this LSN is durable in it.
    pub(crate) fn note_durable(&self, lsn: Lsn) {
        self.newest.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// The file, and where the page `no` of the space is in it, if it is.
    pub(crate) fn place_of(&self, no: u32) -> Option<(&dyn StorageFile, u64)> {
        Some((&*self.file, self.offset_of(no)?))
    }

    /// Writes a page, its checksum stamped, to its place.
    pub fn write(&self, no: u32, bytes: &[u8]) -> Result<()> {
        match self.offset_of(no) {
            Some(offset) => self.file.write_at(bytes, offset),
            None => Ok(()),
        }
    }

    /// The page, in a buffer of its size.
    pub(crate) fn read_aligned(&self, id: PageId) -> Option<AlignedBuf> {
        self.offset_of(id.no)?;
        let mut bytes = AlignedBuf::zeroed(self.page_size.bytes());
        self.read(id, &mut bytes).then_some(bytes)
    }
}
