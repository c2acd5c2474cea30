//! Guards: a page in hand, shared, exclusive, or optimistic. Dropping one gives its latch back.
//!
//! A latched page cannot be evicted, and nothing else holds it: there are no pins. An optimistic
//! guard holds nothing at all; the page may change or leave under it, and validation finds that
//! out.

use std::cmp::Ordering;
use std::ops::Deref;

use crate::latch::{PageWord, Word};
use crate::page::{self, Lsn, PageId};
use crate::page_view::{PageView, RacyBytes, Retry};
use crate::pool_core::PoolCore;
use crate::space::Space;
use crate::sync::Wants;

/// What all guards know of their page.
#[derive(Clone, Copy)]
pub(crate) struct PageRef<'a> {
    pub(crate) core: &'a PoolCore,
    pub(crate) word: &'a PageWord,
    pub(crate) id: PageId,
    pub(crate) frame: u32,
}

impl PageRef<'_> {
    /// Whether the page is in the frame, and the frame names the page: so it is as long as it is
    /// latched.
    fn is_latched(&self) -> bool {
        self.word.load().frame() == Some(self.frame)
            && self.core.frames.descriptor(self.frame).page() == Some(self.id)
    }
}

/// A page that other threads may read too, and that none changes.
pub struct SharedGuard<'a> {
    place: PageRef<'a>,
    bytes: &'a [u8],
}

impl<'a> SharedGuard<'a> {
    /// Takes over a shared latch that the caller holds.
    #[inline]
    pub(crate) fn new(place: PageRef<'a>) -> SharedGuard<'a> {
        debug_assert!(place.is_latched(), "the caller has latched the page");
        #[expect(unsafe_code, reason = "the latch makes the bytes safe to read")]
        // SAFETY: the shared latch is held until the guard is dropped.
        let bytes = unsafe { place.core.frames.bytes(place.frame) };
        SharedGuard { place, bytes }
    }

    /// Which page.
    pub fn page_id(&self) -> PageId {
        self.place.id
    }

    /// The end of the last mini-transaction that changed it.
    pub fn page_lsn(&self) -> Lsn {
        page::page_lsn(self.bytes)
    }
}

impl Deref for SharedGuard<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for SharedGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.place.word.unlock_shared();
    }
}

/// A page that no other thread sees.
pub struct ExclusiveGuard<'a> {
    place: PageRef<'a>,
    bytes: &'a mut [u8],
    /// The bytes were (or may have been) written under this latch.
    changed: bool,
    /// Made by `Pool::new_page` in a new frame, and not yet marked dirty.
    fresh: bool,
}

impl<'a> ExclusiveGuard<'a> {
    /// Takes over an exclusive latch that the caller holds.
    #[inline]
    pub(crate) fn new(place: PageRef<'a>, changed: bool, fresh: bool) -> ExclusiveGuard<'a> {
        debug_assert!(place.is_latched() && place.word.load().is_exclusive());
        #[expect(unsafe_code, reason = "the latch makes the bytes safe to write")]
        // SAFETY: the exclusive latch is held until the guard is dropped or downgraded.
        let bytes = unsafe { place.core.frames.bytes_mut(place.frame) };
        ExclusiveGuard { place, bytes, changed, fresh }
    }

    /// Which page.
    pub fn page_id(&self) -> PageId {
        self.place.id
    }

    /// The end of the last mini-transaction that changed it.
    pub fn page_lsn(&self) -> Lsn {
        page::page_lsn(self.bytes)
    }

    /// The bytes, to be changed: and then the page must be marked dirty before the guard goes.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.changed = true;
        self.bytes
    }

    /// Lets other readers in.
    pub fn downgrade(self) -> SharedGuard<'a> {
        debug_assert!(!self.fresh, "a new page is marked dirty before others see it");
        let this = std::mem::ManuallyDrop::new(self);
        this.place.word.downgrade(this.changed);
        SharedGuard::new(this.place)
    }

    pub(crate) fn frame(&self) -> u32 {
        self.place.frame
    }

    pub(crate) fn is_of(&self, core: &PoolCore) -> bool {
        std::ptr::eq(self.place.core, core)
    }

    pub(crate) fn set_marked(&mut self) {
        self.fresh = false;
    }
}

impl Deref for ExclusiveGuard<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for ExclusiveGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.fresh {
            self.place.core.abandon_new(self.place.word, self.place.frame);
        } else {
            self.place.word.unlock_exclusive(self.changed);
        }
    }
}

/// A page read without a latch. What its reads return is valid only after
/// [`OptimisticGuard::validate`], and not before.
#[derive(Clone, Copy)]
pub struct OptimisticGuard<'a> {
    place: PageRef<'a>,
    seen: Word,
    bytes: RacyBytes<'a>,
}

impl<'a> OptimisticGuard<'a> {
    /// `seen` is what the word was, not exclusively latched, before any byte is read.
    #[inline]
    pub(crate) fn new(place: PageRef<'a>, seen: Word) -> OptimisticGuard<'a> {
        debug_assert!(seen.frame() == Some(place.frame) && !seen.is_exclusive());
        let size = place.core.frames.page_size().bytes();
        #[expect(unsafe_code, reason = "the module that reads under writers' hands")]
        // SAFETY: frames stay mapped as long as the pool, and are aligned to at least 4096.
        let bytes = unsafe { RacyBytes::new(place.core.frames.address(place.frame), size) };
        OptimisticGuard { place, seen, bytes }
    }

    /// Which page.
    pub fn page_id(&self) -> PageId {
        self.place.id
    }

    /// Whether all that was read through this guard so far is what the page held when the guard
    /// was made.
    #[inline]
    pub fn validate(&self) -> Result<(), Retry> {
        if self.place.word.is_unchanged(self.seen) { Ok(()) } else { Err(Retry) }
    }

    /// A shared latch, if the page is still as it was; never waits.
    pub fn upgrade_shared(self) -> Result<SharedGuard<'a>, Retry> {
        self.place.word.try_upgrade(self.seen, Wants::Shared).ok_or(Retry)?;
        Ok(SharedGuard::new(self.place))
    }

    /// An exclusive latch, if the page is still as it was and no thread reads it under a latch;
    /// never waits.
    pub fn upgrade_exclusive(self) -> Result<ExclusiveGuard<'a>, Retry> {
        self.place.word.try_upgrade(self.seen, Wants::Exclusive).ok_or(Retry)?;
        Ok(ExclusiveGuard::new(self.place, false, false))
    }
}

impl PageView for OptimisticGuard<'_> {
    #[inline]
    fn size(&self) -> usize {
        self.bytes.size()
    }

    #[inline]
    fn u8_at(&self, offset: usize) -> Result<u8, Retry> {
        self.bytes.u8_at(offset)
    }

    #[inline]
    fn u16_at(&self, offset: usize) -> Result<u16, Retry> {
        self.bytes.u16_at(offset)
    }

    #[inline]
    fn u32_at(&self, offset: usize) -> Result<u32, Retry> {
        self.bytes.u32_at(offset)
    }

    #[inline]
    fn u64_at(&self, offset: usize) -> Result<u64, Retry> {
        self.bytes.u64_at(offset)
    }

    fn compare(&self, offset: usize, len: usize, other: &[u8]) -> Result<Ordering, Retry> {
        self.bytes.compare(offset, len, other)
    }

    fn copy_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> Result<(), Retry> {
        self.bytes.copy_to(offset, len, out)
    }
}

macro_rules! debug_as_page {
    ($($guard:ident)*) => {$(
        impl std::fmt::Debug for $guard<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($guard), "({})"), self.place.id)
            }
        }
    )*};
}
debug_as_page!(SharedGuard ExclusiveGuard OptimisticGuard);

/// The word of a page lives in its space.
pub(crate) fn place<'a>(
    core: &'a PoolCore,
    space: &'a Space,
    word: &'a PageWord,
    no: u32,
    frame: u32,
) -> PageRef<'a> {
    PageRef { core, word, id: PageId::new(space.id(), no), frame }
}
