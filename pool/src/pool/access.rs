//! How others get a page: shared, exclusive, optimistically, as a new one, or ahead of time.

use std::sync::Arc;

use crate::error::Result;
use crate::latch::PageWord;
use crate::page::{self, Lsn, PageId};
use crate::page_guard::{ExclusiveGuard, OptimisticGuard, PageRef, SharedGuard, place};
use crate::pool::Pool;
use crate::pool::load::Load;
use crate::read_ahead::Warmed;
use crate::replacement::Access;
use crate::space::Space;
use crate::stats::count;
use crate::sync::Wants;

impl Pool {
    /// The page `no` of `space`, to read beside others.
    #[inline]
    pub fn shared<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Result<SharedGuard<'a>> {
        self.core.note_access(space, no, hint);
        let word = space.word(no)?;
        let frame = match word.lock_shared() {
            Some(latched) => {
                let frame = latched.latched_frame();
                self.core.replacement.hit(frame, hint);
                frame
            }
            None => self.shared_slowly(space, word, no, hint)?,
        };
        Ok(SharedGuard::new(place(&self.core, space, word, no, frame)))
    }

    #[cold]
    fn shared_slowly(&self, space: &Space, word: &PageWord, no: u32, hint: Access) -> Result<u32> {
        loop {
            if let Load::Done(frame) = self.load(space, word, no, hint)? {
                word.downgrade(true);
                return Ok(frame);
            }
            if let Some(latched) = word.lock_shared() {
                self.core.replacement.hit(latched.latched_frame(), hint);
                return Ok(latched.latched_frame());
            }
        }
    }

    /// The page `no` of `space`, to change.
    pub fn exclusive<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Result<ExclusiveGuard<'a>> {
        self.core.note_access(space, no, hint);
        let word = space.word(no)?;
        loop {
            if let Some(latched) = word.lock_exclusive() {
                let frame = latched.latched_frame();
                self.core.replacement.hit(frame, hint);
                let place = place(&self.core, space, word, no, frame);
                return Ok(ExclusiveGuard::new(place, false, false));
            }
            if let Load::Done(frame) = self.load(space, word, no, hint)? {
                // Counts as changed: loading did change the frame's bytes.
                return Ok(ExclusiveGuard::new(
                    place(&self.core, space, word, no, frame),
                    true,
                    false,
                ));
            }
        }
    }

    /// The page if it is resident and can be latched at once, to read beside others.
    pub fn try_shared<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Option<SharedGuard<'a>> {
        self.try_latch(space, no, hint, Wants::Shared).map(SharedGuard::new)
    }

    /// The page if it is resident and can be latched at once, to change.
    pub fn try_exclusive<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Option<ExclusiveGuard<'a>> {
        let place = self.try_latch(space, no, hint, Wants::Exclusive)?;
        Some(ExclusiveGuard::new(place, false, false))
    }

    /// Latches a resident page without waiting; the latch is the caller's to give back.
    #[inline]
    fn try_latch<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
        wants: Wants,
    ) -> Option<PageRef<'a>> {
        let word = space.existing_word(no)?;
        let frame = word.try_lock(wants).ok()?.latched_frame();
        self.core.note_access(space, no, hint);
        self.core.replacement.hit(frame, hint);
        Some(place(&self.core, space, word, no, frame))
    }

    /// The page, to read without a latch. Loads it if need be, and waits while somebody has it
    /// exclusively.
    #[inline]
    pub fn optimistic<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Result<OptimisticGuard<'a>> {
        self.core.note_access(space, no, hint);
        let word = space.word(no)?;
        loop {
            let seen = word.load();
            match seen.frame() {
                Some(frame) if !seen.is_exclusive() => {
                    self.core.replacement.hit(frame, hint);
                    return Ok(OptimisticGuard::new(
                        place(&self.core, space, word, no, frame),
                        seen,
                    ));
                }
                Some(_) => {
                    // Wait for the writer (or loader) as a reader would.
                    if word.lock_shared().is_some() {
                        word.unlock_shared();
                    }
                }
                None => {
                    if let Load::Done(_) = self.load(space, word, no, hint)? {
                        word.unlock_exclusive(true);
                    }
                }
            }
        }
    }

    /// A page made anew: all zeroes except its address in the header, whatever it held before.
    /// Nothing is read. If the guard is dropped without [`Pool::mark_dirty`], a page that was not
    /// resident before is not resident after.
    pub fn new_page<'a>(&'a self, space: &'a Space, no: u32) -> Result<ExclusiveGuard<'a>> {
        self.core.note_created(space, no);
        let word = space.word(no)?;
        let mut guard = loop {
            if let Some(latched) = word.lock_exclusive() {
                let frame = latched.latched_frame();
                self.core.replacement.hit(frame, Access::Normal);
                break ExclusiveGuard::new(place(&self.core, space, word, no, frame), true, false);
            }
            let frame = self.evictor.take_frame()?;
            if let Some(mut loading) = self.core.install(space, word, no, frame)? {
                loading.admit(PageId::new(space.id(), no), Access::Normal);
                loading.finish();
                break ExclusiveGuard::new(place(&self.core, space, word, no, frame), true, true);
            }
        };
        let id = guard.page_id();
        let bytes = guard.bytes_mut();
        bytes.fill(0);
        page::set_page_id(bytes, id);
        count(&self.core.counters.pages_created);
        Ok(guard)
    }

    /// Notes that a mini-transaction whose redo is `start .. end` changed the page. To be called
    /// inside the redo log's append section, so that `start` never decreases from call to call.
    pub fn mark_dirty(&self, guard: &mut ExclusiveGuard<'_>, start: Lsn, end: Lsn) {
        assert!(guard.is_of(&self.core), "the page is of another pool");
        let frame = guard.frame();
        self.core.mark_dirty(frame, guard.bytes_mut(), start, end);
        guard.set_marked();
    }

    /// Asks for pages that will be wanted soon, in the background. Those already there, beyond the
    /// end of the file, or too many are passed over. `access` is how they will be wanted.
    pub fn prefetch(&self, space: &Space, pages: &[u32], access: Access) {
        self.read_ahead.prefetch(space, pages, access);
    }

    /// Whether a page may come in that no query has asked for: not while memory must be given back,
    /// nor into the frames that are kept free.
    pub fn has_room_to_warm(&self) -> bool {
        self.read_ahead.has_room_to_warm()
    }

    /// Reads pages of `space` that were hot before the last restart, and informs the replacement
    /// policy how hot they were. `pages` are their numbers, ascending, and heats. Their images are
    /// read through `buffer`, which is aligned for direct I/O.
    ///
    /// No page is displaced: it ends when [`Pool::has_room_to_warm`] says no. Passed over, without
    /// an error, are pages that are resident already, beyond the end of the file, free, never
    /// written or damaged, and those of a part that can't be read.
    pub fn warm(&self, space: &Arc<Space>, pages: &[(u32, u8)], buffer: &mut [u8]) -> Warmed {
        self.read_ahead.warm(space, pages, buffer)
    }
}
