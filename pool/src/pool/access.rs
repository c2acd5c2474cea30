//! How others get a page: shared, exclusive, optimistically, as a new one, or ahead of time.

use crate::error::Result;
use crate::latch::PageWord;
use crate::page::{self, Lsn, PageId};
use crate::page_guard::{ExclusiveGuard, OptimisticGuard, PageRef, SharedGuard, place};
use crate::pool::Pool;
use crate::pool::load::Load;
use crate::replacement::Access;
use crate::space::Space;
use crate::stats::{count, note_prefetched};
use crate::sync::Wants;

/// The most page numbers in one prefetch that are looked at.
const PREFETCH_MAX: usize = 1024;

impl Pool {
    /// Counts an access to a page that is there or will be loaded, and shows it to the samplers.
    #[inline]
    fn note_access(&self, space: &Space, no: u32, hint: Access) {
        self.counters.read_requests.increment();
        if self.samplers.access(PageId::new(space.id(), no), hint, &self.clock) {
            self.background.wake_advisor();
        }
    }

    /// The same, of a page made anew.
    fn note_created(&self, space: &Space, no: u32) {
        self.counters.read_requests.increment();
        if self.samplers.created(PageId::new(space.id(), no), &self.clock) {
            self.background.wake_advisor();
        }
    }

    /// The page `no` of `space`, to read beside others.
    #[inline]
    pub fn shared<'a>(
        &'a self,
        space: &'a Space,
        no: u32,
        hint: Access,
    ) -> Result<SharedGuard<'a>> {
        self.note_access(space, no, hint);
        let word = space.word(no)?;
        let frame = match word.lock_shared() {
            Some(latched) => {
                let frame = latched.latched_frame();
                self.replacement.hit(frame, hint);
                frame
            }
            None => self.shared_slowly(space, word, no, hint)?,
        };
        Ok(SharedGuard::new(place(self, space, word, no, frame)))
    }

    #[cold]
    fn shared_slowly(&self, space: &Space, word: &PageWord, no: u32, hint: Access) -> Result<u32> {
        loop {
            if let Load::Done(frame) = self.load(space, word, no, hint)? {
                word.downgrade(true);
                return Ok(frame);
            }
            if let Some(latched) = word.lock_shared() {
                self.replacement.hit(latched.latched_frame(), hint);
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
        self.note_access(space, no, hint);
        let word = space.word(no)?;
        loop {
            if let Some(latched) = word.lock_exclusive() {
                let frame = latched.latched_frame();
                self.replacement.hit(frame, hint);
                let place = place(self, space, word, no, frame);
                return Ok(ExclusiveGuard::new(place, false, false));
            }
            if let Load::Done(frame) = self.load(space, word, no, hint)? {
                // Counts as changed: loading did change the frame's bytes.
                return Ok(ExclusiveGuard::new(place(self, space, word, no, frame), true, false));
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
        self.note_access(space, no, hint);
        self.replacement.hit(frame, hint);
        Some(place(self, space, word, no, frame))
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
        self.note_access(space, no, hint);
        let word = space.word(no)?;
        loop {
            let seen = word.load();
            match seen.frame() {
                Some(frame) if !seen.is_exclusive() => {
                    self.replacement.hit(frame, hint);
                    return Ok(OptimisticGuard::new(place(self, space, word, no, frame), seen));
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
        self.note_created(space, no);
        let word = space.word(no)?;
        let mut guard = loop {
            if let Some(latched) = word.lock_exclusive() {
                let frame = latched.latched_frame();
                self.replacement.hit(frame, Access::Normal);
                break ExclusiveGuard::new(place(self, space, word, no, frame), true, false);
            }
            let frame = self.take_frame()?;
            if self.install(space, word, no, frame)? {
                self.replacement.insert(frame, PageId::new(space.id(), no), Access::Normal);
                count(&self.counters.pages_data);
                break ExclusiveGuard::new(place(self, space, word, no, frame), true, true);
            }
        };
        let id = guard.page_id();
        let bytes = guard.bytes_mut();
        bytes.fill(0);
        page::set_page_id(bytes, id);
        count(&self.counters.pages_created);
        Ok(guard)
    }

    /// A new page's guard went without the page having been marked dirty.
    #[cold]
    pub(crate) fn abandon_new(&self, place: PageRef<'_>) {
        self.replacement.remove(place.frame);
        self.vacate(place.word, place.frame);
        self.frames.give(place.frame);
    }

    /// Notes that a mini-transaction whose redo is `start .. end` changed the page. To be called
    /// inside the redo log's append section, so that `start` never decreases from call to call.
    pub fn mark_dirty(&self, guard: &mut ExclusiveGuard<'_>, start: Lsn, end: Lsn) {
        assert!(guard.is_of(self), "the page is of another pool");
        // A log that has failed gives every mini-transaction the place where it stopped.
        debug_assert!(start <= end && guard.page_lsn() <= end, "LSNs only grow");
        page::set_page_lsn(guard.bytes_mut(), end);
        guard.set_marked();
        self.dirty.mark(&self.frames, guard.frame(), start);
        self.counters.write_requests.increment();
    }

    /// Asks for pages that will be wanted soon, in the background. Those already there, beyond the
    /// end of the file, or too many are passed over. `access` is how they will be wanted.
    pub fn prefetch(&self, space: &Space, pages: &[u32], access: Access) {
        let end = space.page_count();
        let absent =
            |no: u32| space.existing_word(no).is_none_or(|word| word.load().frame().is_none());
        let access = match access {
            Access::Scan | Access::PrefetchForScan => Access::PrefetchForScan,
            Access::Normal | Access::Prefetch => Access::Prefetch,
        };
        let wanted: Vec<_> = pages
            .iter()
            .take(PREFETCH_MAX)
            .filter(|&&no| no < end && absent(no))
            .map(|&no| (PageId::new(space.id(), no), access))
            .collect();
        if wanted.is_empty() {
            return;
        }
        note_prefetched(wanted.len());
        self.read_ahead.request(&wanted);
        match self.background.runs() {
            true => self.background.wake_read_ahead(),
            false => {
                self.run_read_ahead_step();
            }
        }
    }
}
