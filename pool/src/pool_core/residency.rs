//! Pages that come into frames, change there, and go.
//!
//! A page being loaded is exclusively latched from [`PoolCore::install`] on, so no thread sees it
//! half read. It is a [`Loading`] until then. If that goes before the page is filled, be it by a
//! panic, the page is taken out again. Filled and verified, it is made known by [`Loading::admit`].

use std::sync::atomic::{Ordering, fence};

use super::PoolCore;
use crate::error::{Error, Result};
use crate::latch::PageWord;
use crate::page::{self, Lsn, PageId};
use crate::replacement::Access;
use crate::space::Space;
use crate::stats::count;

/// A page being loaded, exclusively latched: in its frame, and not known to the replacement policy
/// before it is [admitted](Loading::admit).
pub(crate) struct Loading<'a> {
    core: &'a PoolCore,
    word: &'a PageWord,
    frame: u32,
    is_admitted: bool,
}

impl<'a> Loading<'a> {
    /// Its frame, which is reached through this value alone.
    pub(crate) fn frame(&self) -> u32 {
        self.frame
    }

    /// The page is filled, and verified: makes it known to the replacement policy.
    pub(crate) fn admit(&mut self, id: PageId, access: Access) {
        assert!(!self.is_admitted, "a page comes once");
        self.core.admit(self.frame, id, access);
        self.is_admitted = true;
    }

    /// The word, whose latch is the caller's to give back.
    pub(crate) fn finish(self) -> &'a PageWord {
        assert!(self.is_admitted, "a page is filled before others see it");
        std::mem::ManuallyDrop::new(self).word
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        match self.is_admitted {
            true => self.word.unlock_exclusive(true),
            false => self.core.abandon(self.word, self.frame),
        }
    }
}

impl PoolCore {
    /// Counts an access to a page that is there or will be loaded, and shows it to the samplers.
    #[inline]
    pub(crate) fn note_access(&self, space: &Space, no: u32, hint: Access) {
        self.counters.read_requests.increment();
        if self.samplers.access(PageId::new(space.id(), no), hint, &self.clock) {
            self.background.wake_advisor();
        }
    }

    /// The same, of a page made anew.
    pub(crate) fn note_created(&self, space: &Space, no: u32) {
        self.counters.read_requests.increment();
        if self.samplers.created(PageId::new(space.id(), no), &self.clock) {
            self.background.wake_advisor();
        }
    }

    /// Makes the absent page resident in `frame`, exclusively latched, not yet known to the
    /// replacement policy. `None` (and the frame is given back): it is not absent any more.
    pub(crate) fn install<'a>(
        &'a self,
        space: &Space,
        word: &'a PageWord,
        no: u32,
        frame: u32,
    ) -> Result<Option<Loading<'a>>> {
        if let Err(error) = space.note_resident(no) {
            self.frames.give(frame);
            return Err(error);
        }
        let descriptor = self.frames.descriptor(frame);
        debug_assert!(descriptor.is_vacant(), "a frame in transit has no page and no images");
        if !word.install(frame, descriptor.version()) {
            self.frames.give(frame);
            return Ok(None);
        }
        descriptor.set_page(Some(PageId::new(space.id(), no)));
        let loading = Loading { core: self, word, frame, is_admitted: false };
        // Pairs with the fence in `Pool::close_space`.
        fence(Ordering::SeqCst);
        if space.is_closed() {
            return Err(Error::Space { space: space.id(), state: "is closed" });
        }
        Ok(Some(loading))
    }

    /// Undoes [`PoolCore::install`].
    fn abandon(&self, word: &PageWord, frame: u32) {
        self.clear(word, frame);
        self.frames.give(frame);
    }

    /// Makes the page in `frame` absent, which the caller has latched exclusively.
    fn clear(&self, word: &PageWord, frame: u32) {
        let descriptor = self.frames.descriptor(frame);
        assert_eq!(word.load().frame(), Some(frame), "the word names the frame of its page");
        assert!(descriptor.page().is_some(), "the frame of a resident page names it");
        assert!(!descriptor.is_dirty(), "a page is clean when it leaves its frame");
        descriptor.set_page(None);
        descriptor.set_version(word.evict());
    }

    /// Makes an installed page, which is filled by now, known to the replacement policy. It stays
    /// exclusively latched.
    fn admit(&self, frame: u32, id: PageId, access: Access) {
        let descriptor = self.frames.descriptor(frame);
        assert_eq!(descriptor.page(), Some(id), "the frame was installed for this page");
        assert!(!descriptor.is_dirty(), "a page is clean when it comes");
        self.replacement.insert(frame, id, access);
        count(&self.counters.pages_data);
    }

    /// Takes the page out of `frame`; the caller has it exclusively latched, clean, and off the
    /// policy's lists, and has the frame in transit afterwards.
    pub(crate) fn vacate(&self, word: &PageWord, frame: u32) {
        self.clear(word, frame);
        let before = self.counters.pages_data.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a page that leaves was counted");
    }

    /// Undoes [`Loading::admit`] and [`PoolCore::install`] of a page whose guard went without the
    /// page having been marked dirty.
    #[cold]
    pub(crate) fn abandon_new(&self, word: &PageWord, frame: u32) {
        self.replacement.remove(frame);
        self.vacate(word, frame);
        self.frames.give(frame);
    }

    /// Notes that a mini-transaction, whose redo is `start .. end`, changed the page in `frame`,
    /// which the caller has latched exclusively.
    pub(crate) fn mark_dirty(&self, frame: u32, bytes: &mut [u8], start: Lsn, end: Lsn) {
        debug_assert!(self.frames.descriptor(frame).page().is_some(), "a frame without a page");
        // A log that has failed gives every mini-transaction the place where it stopped.
        assert!(start <= end && page::page_lsn(bytes) <= end, "LSNs only grow");
        page::set_page_lsn(bytes, end);
        self.dirty.mark(&self.frames, frame, start);
        self.counters.write_requests.increment();
    }

    /// Panics unless a page that was read and verified is the one that is installed in `frame`, or
    /// was never written. Debug builds work out its checksum once more. The counterpart of
    /// [`assert_writable`](PoolCore::assert_writable).
    pub(crate) fn assert_readable(&self, frame: u32, id: PageId, bytes: &[u8]) {
        assert_eq!(self.frames.descriptor(frame).page(), Some(id), "read into another's frame");
        let found = page::page_id(bytes);
        let is_unwritten = found == PageId::new(0, 0) && page::page_lsn(bytes) == Lsn::ZERO;
        assert!(found == id || is_unwritten, "page {id} was read, but its header says {found}");
        debug_assert!(page::verify(bytes, id).is_ok(), "page {id} was changed before it was seen");
    }

    /// Panics unless the copy of a page is fit to be written: it is that page, as of `lsn`. Debug
    /// builds work out its checksum once more.
    pub(crate) fn assert_writable(&self, id: PageId, lsn: Lsn, copy: &[u8]) {
        assert_eq!(copy.len(), self.page_size().bytes(), "a page is written whole");
        assert_eq!(page::page_id(copy), id, "the copy is of another page");
        assert_eq!(page::page_lsn(copy), lsn, "page {id} was changed after its redo was durable");
        debug_assert!(page::verify(copy, id).is_ok(), "page {id} was changed after its stamp");
    }

    /// Checks a page as it came from its file.
    pub(crate) fn verify(&self, space: &Space, no: u32, bytes: &[u8]) -> Result<()> {
        let id = PageId::new(space.id(), no);
        let corrupt = |why| Error::Corrupt { file: space.name().to_owned(), page: id, why };
        page::verify(bytes, id).map_err(|defect| corrupt(defect.to_string()))?;
        (self.check_page)(bytes).map_err(|why| corrupt(why.to_owned()))?;
        let log = self.write_ahead.read();
        let why = log.as_ref().and_then(|log| log.contradiction(page::page_lsn(bytes)));
        why.map_or(Ok(()), |why| Err(corrupt(why)))
    }
}
