//! The page word: translation, latch and version of one page in one atomic 64-bit word.
//!
//! ```text
//!  63            36 35      28  27  26                  0
//! ┌────────────────┬──────────┬───┬─────────────────────┐
//! │ frame + 1      │ latch    │ W │ version             │
//! └────────────────┴──────────┴───┴─────────────────────┘
//!   0: not in the   0: free         W: threads are (or were) parked on this word
//!   pool            1–254: shared
//!                   255: exclusive
//! ```
//!
//! | state | word | leaves it by |
//! |---|---|---|
//! | absent | 0 | [`PageWord::install`]: exclusive, to be filled from disk |
//! | free | frame, latch 0 | [`PageWord::lock_shared`], [`PageWord::lock_exclusive`] |
//! | shared | frame, latch 1–254 | [`PageWord::unlock_shared`] |
//! | exclusive | frame, latch 255 | [`PageWord::unlock_exclusive`], [`PageWord::downgrade`], [`PageWord::evict`]; stays in it by [`PageWord::relocate`] |
//!
//! Invariants:
//! - Frame and version change only under the exclusive latch (or from absent).
//! - A version belongs to the frame, not to the page: [`PageWord::evict`] hands it out for
//!   safekeeping and [`PageWord::install`] takes it back, so that a pair (frame, version) never
//!   comes twice (until 2^27 changes of one frame pass under one reader's nose).
//!   [`PageWord::relocate`], by which a page moves to another frame, does both at once.
//! - An optimistic reader takes no latch. It remembers the word, reads, and asks
//!   [`PageWord::is_unchanged`]. The fences make this a seqlock: the writer's fence stands between
//!   taking the exclusive latch and its first byte, the reader's between its last byte and the
//!   second look at the word.
//! - The thread that makes the latch free while W is set wakes the sleepers; W is set and cleared
//!   only such that a parked thread always has it set (cleared only inside the parking lot's queue
//!   lock when none is left, and a thread goes to sleep only if it sees W under that same lock).

use crate::sync::{
    AtomicU64, Ordering, POLITE_NAPS, POLITE_ROUNDS, SPIN_ROUNDS, Wants, fence, nap, park, spin,
    unpark_all, unpark_next,
};

pub(crate) const VERSION_MASK: u64 = (1 << 27) - 1;
pub(crate) const WAITERS: u64 = 1 << 27;
const LATCH_SHIFT: u32 = 28;
pub(crate) const ONE_SHARED: u64 = 1 << LATCH_SHIFT;
pub(crate) const LATCH_MASK: u64 = 0xff << LATCH_SHIFT;
const EXCLUSIVE: u64 = LATCH_MASK;
const MAX_SHARED: u64 = 254 << LATCH_SHIFT;
pub(crate) const FRAME_SHIFT: u32 = 36;
/// What an optimistic reader must find unchanged.
const IDENTITY: u64 = !(LATCH_MASK | WAITERS);

/// Frames are numbered below this.
pub(crate) const MAX_FRAMES: u32 = (1 << 28) - 2;

/// A value that a page word had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    /// The frame that holds the page, if one does.
    pub(crate) fn frame(self) -> Option<u32> {
        ((self.0 >> FRAME_SHIFT) as u32).checked_sub(1)
    }

    /// The frame of a word that was latched, and hence has one.
    pub(crate) fn latched_frame(self) -> u32 {
        debug_assert!(!self.is_absent(), "only a resident page can be latched");
        (self.0 >> FRAME_SHIFT) as u32 - 1
    }

    fn is_absent(self) -> bool {
        self.0 >> FRAME_SHIFT == 0
    }

    /// Whether some thread has the exclusive latch.
    pub(crate) fn is_exclusive(self) -> bool {
        self.0 & LATCH_MASK == EXCLUSIVE
    }

    /// Whether threads sleep until the latch is let go. Those who spin don't count: they will sleep
    /// before long, or have it.
    pub(crate) fn has_waiters(self) -> bool {
        self.0 & WAITERS != 0
    }

    fn admits(self, wants: Wants) -> bool {
        match wants {
            Wants::Shared => self.0 & LATCH_MASK < MAX_SHARED,
            Wants::Exclusive => self.0 & LATCH_MASK == 0,
        }
    }

    fn latched(self, wants: Wants) -> Word {
        debug_assert!(!self.is_absent() && self.admits(wants), "the caller has looked");
        match wants {
            Wants::Shared => Word(self.0 + ONE_SHARED),
            Wants::Exclusive => Word(self.0 | EXCLUSIVE),
        }
    }
}

/// A latch that is given back when this goes, be it by a panic.
pub(crate) struct Latch<'a> {
    word: &'a PageWord,
    latched: Word,
    wants: Wants,
    /// The bytes, or what frame they are in, may have changed.
    changed: bool,
}

impl<'a> Latch<'a> {
    fn new(word: &'a PageWord, latched: Word, wants: Wants) -> Latch<'a> {
        Latch { word, latched, wants, changed: false }
    }

    /// What the word was when it was latched.
    pub(crate) fn latched(&self) -> Word {
        self.latched
    }

    /// The frame that holds the page.
    pub(crate) fn frame(&self) -> u32 {
        self.latched.latched_frame()
    }

    /// Readers without a latch are to read again.
    pub(crate) fn set_changed(&mut self) {
        self.changed = true;
    }

    /// The word, whose latch is the caller's to give back.
    pub(crate) fn keep(self) -> &'a PageWord {
        std::mem::ManuallyDrop::new(self).word
    }
}

impl Drop for Latch<'_> {
    fn drop(&mut self) {
        match self.wants {
            Wants::Shared => self.word.unlock_shared(),
            Wants::Exclusive => self.word.unlock_exclusive(self.changed),
        }
    }
}

/// Why a latch could not be had at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// The page is not in the pool.
    Absent,
    /// Somebody else has it.
    Busy,
}

/// The word of one page. Zero: the page is not in the pool.
#[repr(transparent)]
pub(crate) struct PageWord(AtomicU64);

impl PageWord {
    /// The word of an absent page. (The directory makes its words out of zeroed memory.)
    #[cfg(test)]
    pub(crate) fn absent() -> PageWord {
        PageWord(AtomicU64::new(0))
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The present value.
    #[inline]
    pub(crate) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Latches the page shared, waiting while somebody has it exclusively. `None`: not in the pool.
    #[inline]
    pub(crate) fn lock_shared(&self) -> Option<Word> {
        let word = Word(self.0.load(Ordering::Relaxed));
        if !word.is_absent() && !word.has_waiters() && word.admits(Wants::Shared) {
            let latched = word.latched(Wants::Shared);
            if self.exchange(word, latched) {
                return Some(latched);
            }
        }
        self.lock_slowly(Wants::Shared)
    }

    /// Latches the page exclusively, waiting for all others to leave. `None`: not in the pool.
    #[inline]
    pub(crate) fn lock_exclusive(&self) -> Option<Word> {
        let word = Word(self.0.load(Ordering::Relaxed));
        if !word.is_absent() && word.admits(Wants::Exclusive) {
            let latched = word.latched(Wants::Exclusive);
            if self.exchange(word, latched) {
                fence(Ordering::Release);
                return Some(latched);
            }
        }
        self.lock_slowly(Wants::Exclusive)
    }

    /// Latches the page without ever waiting.
    pub(crate) fn try_lock(&self, wants: Wants) -> Result<Word, Unavailable> {
        let mut word = Word(self.0.load(Ordering::Relaxed));
        loop {
            if word.is_absent() {
                return Err(Unavailable::Absent);
            }
            if !word.admits(wants) {
                return Err(Unavailable::Busy);
            }
            let latched = word.latched(wants);
            if self.exchange(word, latched) {
                fence(Ordering::Release);
                return Ok(latched);
            }
            word = Word(self.0.load(Ordering::Relaxed));
        }
    }

    /// Latches the page if it still has the frame and version that `seen` had; never waits. Shared
    /// not even if others do: [`PageWord::lock_shared`] knows how to give way to them.
    pub(crate) fn try_upgrade(&self, seen: Word, wants: Wants) -> Option<Word> {
        debug_assert!(!seen.is_absent(), "an absent page cannot be latched");
        loop {
            let word = Word(self.0.load(Ordering::Relaxed));
            let barges = wants == Wants::Shared && word.has_waiters();
            if (word.0 ^ seen.0) & IDENTITY != 0 || !word.admits(wants) || barges {
                return None;
            }
            let latched = word.latched(wants);
            if self.exchange(word, latched) {
                fence(Ordering::Release);
                return Some(latched);
            }
        }
    }

    /// [`PageWord::try_lock`], as a value that gives the latch back.
    pub(crate) fn try_latch(&self, wants: Wants) -> Result<Latch<'_>, Unavailable> {
        self.try_lock(wants).map(|latched| Latch::new(self, latched, wants))
    }

    /// [`PageWord::lock_exclusive`], as a value that gives the latch back.
    pub(crate) fn latch_exclusive(&self) -> Option<Latch<'_>> {
        self.lock_exclusive().map(|latched| Latch::new(self, latched, Wants::Exclusive))
    }

    /// [`PageWord::try_upgrade`] to the exclusive latch, as a value that gives it back.
    pub(crate) fn try_relatch(&self, seen: Word) -> Option<Latch<'_>> {
        let latched = self.try_upgrade(seen, Wants::Exclusive)?;
        Some(Latch::new(self, latched, Wants::Exclusive))
    }

    /// Whether what was read since `seen` was loaded is what the page held at that moment.
    #[inline]
    pub(crate) fn is_unchanged(&self, seen: Word) -> bool {
        fence(Ordering::Acquire);
        let now = Word(self.0.load(Ordering::Relaxed));
        (now.0 ^ seen.0) & IDENTITY == 0 && !now.is_exclusive()
    }

    fn exchange(&self, from: Word, to: Word) -> bool {
        self.0.compare_exchange(from.0, to.0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slowly(&self, wants: Wants) -> Option<Word> {
        let (mut round, mut naps) = (0, 0);
        // A reader who just arrived gives way for a while to those who already sleep, or a stream
        // of readers who hold the latch for long, reading old versions, say, would starve writers.
        // Not for ever: it may itself hold this latch, shared.
        let mut polite = wants == Wants::Shared;
        loop {
            let word = Word(self.0.load(Ordering::Relaxed));
            if word.is_absent() {
                return None;
            }
            let spins = round < POLITE_ROUNDS;
            let give_way = polite && word.has_waiters() && (spins || naps < POLITE_NAPS);
            if word.admits(wants) && give_way && !spins {
                nap();
                naps += 1;
                continue;
            }
            if word.admits(wants) && !give_way {
                let latched = word.latched(wants);
                if self.exchange(word, latched) {
                    fence(Ordering::Release);
                    return Some(latched);
                }
                continue;
            }
            if round < SPIN_ROUNDS {
                spin(round);
                round += 1;
                continue;
            }
            if !word.has_waiters() && !self.exchange(word, Word(word.0 | WAITERS)) {
                continue;
            }
            park(self.address(), wants, || {
                let word = Word(self.0.load(Ordering::Relaxed));
                !word.is_absent() && word.has_waiters() && !word.admits(wants)
            });
            polite = false;
            // Who has slept will be quick to take what it was woken for.
            round = 0;
        }
    }

    /// Gives a shared latch back.
    #[inline]
    pub(crate) fn unlock_shared(&self) {
        let before = self.0.fetch_sub(ONE_SHARED, Ordering::Release);
        let latch = before & LATCH_MASK;
        debug_assert!(latch != 0 && latch != EXCLUSIVE, "only a reader gives a shared latch back");
        if before & WAITERS != 0 && (latch == ONE_SHARED || latch == MAX_SHARED) {
            self.wake();
        }
    }

    /// Gives the exclusive latch back; `changed`: the bytes are no longer those of before.
    #[inline]
    pub(crate) fn unlock_exclusive(&self, changed: bool) {
        self.leave_exclusive(changed, 0);
    }

    /// Turns the exclusive latch into a shared one.
    pub(crate) fn downgrade(&self, changed: bool) {
        self.leave_exclusive(changed, ONE_SHARED);
    }

    fn leave_exclusive(&self, changed: bool, latch: u64) {
        let word = self.0.load(Ordering::Relaxed);
        assert!(Word(word).is_exclusive(), "only its owner gives the exclusive latch back");
        debug_assert!(!Word(word).is_absent(), "a latched page is resident");
        // No other thread changes the version now, so one addition sets latch and version at once,
        // and leaves alone the bit that others may be setting.
        let version = word & VERSION_MASK;
        let next = if changed { (version + 1) & VERSION_MASK } else { version };
        let change = (latch + next).wrapping_sub(EXCLUSIVE + version);
        let before = self.0.fetch_add(change, Ordering::Release);
        if before & WAITERS != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        unpark_next(self.address(), |more| {
            if !more {
                self.0.fetch_and(!WAITERS, Ordering::Relaxed);
            }
        });
    }

    /// Makes an absent page resident in `frame`, exclusively latched. False: it no longer was
    /// absent. `version` is what [`PageWord::evict`] returned for this frame, 0 the first time.
    pub(crate) fn install(&self, frame: u32, version: u32) -> bool {
        assert!(frame < MAX_FRAMES && u64::from(version) <= VERSION_MASK, "each fits its bits");
        let word = (frame as u64 + 1) << FRAME_SHIFT | EXCLUSIVE | version as u64 & VERSION_MASK;
        if !self.exchange(Word(0), Word(word)) {
            return false;
        }
        fence(Ordering::Release);
        true
    }

    /// Makes an exclusively latched page absent, wakes all who wait for it (they will load it
    /// anew), and returns the version that the frame must start from next time.
    pub(crate) fn evict(&self) -> u32 {
        let before = self.0.swap(0, Ordering::Release);
        assert!(Word(before).is_exclusive(), "a page is evicted by who has it exclusively");
        debug_assert!(!Word(before).is_absent(), "a latched page is resident");
        if before & WAITERS != 0 {
            unpark_all(self.address());
        }
        (((before & VERSION_MASK) + 1) & VERSION_MASK) as u32
    }

    /// Moves an exclusively latched page to the frame `to`, where its bytes are already; it stays
    /// latched, and who waits for it goes on waiting. `version` is what [`PageWord::evict`] or this
    /// returned for `to`, 0 the first time. Returns the version that the frame it was in must start
    /// from next time. To be followed by [`PageWord::unlock_exclusive`] with `changed`.
    pub(crate) fn relocate(&self, to: u32, version: u32) -> u32 {
        assert!(to < MAX_FRAMES && u64::from(version) <= VERSION_MASK, "each fits its bits");
        let word = self.0.load(Ordering::Relaxed);
        assert!(Word(word).is_exclusive(), "a page is moved by who has it exclusively");
        assert_ne!(Word(word).latched_frame(), to, "a page moves to another frame");
        // No other thread changes frame and version now, so one addition exchanges both, and leaves
        // alone the bit that others may be setting. Version and frame are the ends of the word: the
        // sum carries nothing from one to the other.
        let before = word & !(LATCH_MASK | WAITERS);
        let after = (to as u64 + 1) << FRAME_SHIFT | version as u64 & VERSION_MASK;
        self.0.fetch_add(after.wrapping_sub(before), Ordering::Release);
        (((word & VERSION_MASK) + 1) & VERSION_MASK) as u32
    }
}
