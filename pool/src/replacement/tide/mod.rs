//! Tide, the default policy: a window, a main area, admission by frequency, and shadows that set
//! the window's size. Nothing is left to set by hand.
//!
//! ```text
//!   a query's page ──▶ window ──┬─▶ main: used 0, 1, 2–3, 4–7, 8–15 times ──▶ evicted
//!                               └─▶ evicted, unless used more than main's coldest
//!   a scan's page ──▶ sliver ───┬─▶ kept, while frames are free ──▶ evicted before all others
//!                               └─▶ evicted
//! ```
//!
//! * **One use a statement.** A statement that reads fifty rows of a page has used it once
//!   ([`statement`]). This is what InnoDB's timer tries to find out by waiting a second.
//! * **Scans never displace.** The page of a scan takes a free frame; when there is none, that of
//!   the scan's own newest pages, a sliver of the pool. The older ones stay, so that a scan that
//!   comes round again finds them, until a query needs a frame: it takes theirs first. A scan's
//!   page that a query uses becomes a query's page.
//! * **Window and main.** A query's page enters the window, a FIFO. When it leaves, it competes
//!   with the coldest page of main: the one used more often lately stays, and at equality nothing
//!   moves. So a loop larger than the pool keeps a part of itself resident, where LRU keeps
//!   nothing. (Admission by frequency: TinyLFU, Einziger et al., ToS 2017. Main as a list for each
//!   level of use: Multi-Queue, Zhou et al., ATC 2001.)
//! * **Frequency** is counted in the access word of the frame while a page is resident, and among
//!   the ghosts when it is not; both are halved once an epoch, lazily.
//! * **Generations** tell what was used lately from what was used long ago: a hit notes the present
//!   one in the page's word. A large window lets go of the page longest unused, as LRU does. And
//!   uses within a few generations can be counted as one: the tail of a table of orders is used
//!   many times in its hour, and then never again.
//! * **Shadows** find out how large the window should be and how long an epoch: recency wants a
//!   large window, stable popularity a small one and a long memory. See [`shadows`].
//!
//! # What a hit costs
//! Two loads and a comparison if the page was used before in this generation (a 64th of the pool
//! has come in since it began); else a look at the thread's statement, and for a statement's first
//! use of the page one compare-and-swap on the frame's word, which may fail: then the use is lost.
//! No mutex. Victims are named in batches of 256, between which others get the mutex.
//!
//! Locking: the shadows' mutex before that of the lists.

mod ghosts;
mod shadows;
mod state;
#[cfg(test)]
mod tests;
mod word;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

use self::ghosts::Ghosts;
use self::shadows::Shadows;
use self::state::{PLACES, SLIVER, State};
use self::word::{ACCESSED, Now, PENDING, SETTLED, Word};
use super::simulate::Request;
use super::{Access, Replacement, ReplacementConfig, ReplacementStats, hash};
use crate::contention::CountingMutex;
use crate::error::{Error, Result};
use crate::mapping::ZeroedArray;
use crate::page::PageId;
use crate::statement;

/// Settings of the default policy. Only experiments set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TideConfig {
    /// A setting to stay at. `None`: whichever does best, found out all the time.
    pub fixed: Option<Setting>,
}

/// What the shadows find out for the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The window's share of the pool, in percent: 1 to 100.
    pub window_pct: u32,
    /// An epoch has this many counted uses for each frame: frequencies are halved when it ends.
    pub epoch_uses: u32,
    /// Uses of a page within this many generations count as one: in each, a 64th of the pool comes
    /// in.
    pub burst_generations: u32,
}

/// What the shadows try: recency, popularity that lasts, and two between, of which one takes bursts
/// for single uses. It begins with recency: the one that a load must prove wrong, since it alone is
/// never slow to let a new working set in.
const SETTINGS: [Setting; 4] = [
    Setting { window_pct: 100, epoch_uses: 8, burst_generations: 1 },
    Setting { window_pct: 1, epoch_uses: 100, burst_generations: 1 },
    Setting { window_pct: 20, epoch_uses: 16, burst_generations: 1 },
    Setting { window_pct: 20, epoch_uses: 16, burst_generations: 8 },
];

/// One counted use in this many, by chance, adds as many to the count that all threads share.
const TICK: u32 = 16;

pub(crate) struct Tide {
    words: ZeroedArray<AtomicU64>,
    /// [`Now`]: the epoch and the generation. They change under the lists' mutex.
    now: AtomicU64,
    /// Uses counted, and at how many the epoch ends.
    ticks: AtomicU64,
    epoch_ends: AtomicU64,
    /// [`Setting::burst_generations`] of the present one.
    burst: AtomicU32,
    state: CountingMutex<State>,
    shadows: Mutex<Option<Shadows>>,
    learns: bool,
}

impl Tide {
    pub(crate) fn new(config: TideConfig, frames: u32) -> Result<Tide> {
        let array = |error| Error::system("reserving replacement state", error);
        let setting = config.fixed.unwrap_or(SETTINGS[0]);
        Ok(Tide {
            words: ZeroedArray::new(frames as usize).map_err(array)?,
            now: AtomicU64::new(Now::BEGINNING.0),
            ticks: AtomicU64::new(0),
            epoch_ends: AtomicU64::new(u64::from(frames) * u64::from(setting.epoch_uses)),
            burst: AtomicU32::new(setting.burst_generations),
            state: CountingMutex::new(State::new(frames, setting)?),
            shadows: Mutex::new(None),
            learns: config.fixed.is_none(),
        })
    }

    fn now(&self) -> Now {
        Now(self.now.load(Relaxed))
    }

    /// What time it is, a new epoch or generation if it is time for one.
    fn keep_time(&self, state: &mut State) -> Now {
        let before = self.now();
        let mut now = before;
        if self.ticks.load(Relaxed) >= self.epoch_ends.load(Relaxed) {
            now = now.next_epoch();
            self.begin_epoch(state);
        }
        if state.generation_is_over(now) {
            state.arrivals = 0;
            now = now.next_generation();
        }
        if now != before {
            self.now.store(now.0, Relaxed);
        }
        now
    }

    /// From now on, an epoch's uses lie ahead.
    fn begin_epoch(&self, state: &State) {
        let uses = state.uses_of_epoch();
        self.epoch_ends.store(self.ticks.load(Relaxed) + uses, Relaxed);
    }

    /// Counts a use of the page in `frame`, unless the statement has used it before.
    fn count_use(&self, frame: u32, word: Word) {
        let statement = statement::current();
        let now = self.now();
        if word.was_used_by(statement, now) {
            return;
        }
        let used = word.used(statement, now, self.burst.load(Relaxed));
        // May lose against another thread's use, or a move: no harm.
        let _ = self.words[frame as usize].compare_exchange(word.0, used.0, Relaxed, Relaxed);
        if (statement ^ frame).wrapping_mul(0x9E37_79B1) < u32::MAX / TICK {
            self.ticks.fetch_add(u64::from(TICK), Relaxed);
        }
    }
}

impl Replacement for Tide {
    #[inline]
    fn hit(&self, frame: u32, access: Access) {
        let word = self.words[frame as usize].load(Relaxed);
        if (word ^ self.now.load(Relaxed)) & SETTLED == 0 {
            return;
        }
        match access {
            Access::Normal => self.count_use(frame, Word(word)),
            Access::Scan if word & ACCESSED == 0 => {
                self.words[frame as usize].fetch_or(ACCESSED, Relaxed);
            }
            Access::Scan | Access::Prefetch | Access::PrefetchForScan => {}
        }
    }

    fn insert(&self, frame: u32, page: PageId, access: Access) {
        let hash = hash(page.to_u64());
        let mut state = self.state.lock();
        let state = &mut *state;
        self.ticks.fetch_add(1, Relaxed);
        let now = self.keep_time(state);
        state.set_hash(frame, hash);
        let newest = State::newest(now);
        let (place, word) = match access {
            Access::Scan => (SLIVER, Word::new(SLIVER, 0, now).by(statement::current())),
            Access::PrefetchForScan => (SLIVER, Word::new(SLIVER, 0, now).with(PENDING)),
            Access::Normal => {
                let uses = state.ghosts.recall(hash, now.epoch()) + 1;
                (newest, Word::new(newest, uses, now).by(statement::current()))
            }
            Access::Prefetch => {
                (newest, Word::new(newest, state.ghosts.recall(hash, now.epoch()), now))
            }
        };
        self.words[frame as usize].store(word.0, Relaxed);
        state.lists.push_head(place, frame);
        state.arrivals += 1;
        match place {
            SLIVER => state.scan_page_came(&self.words),
            _ => state.page_came(&self.words, now),
        }
    }

    fn remove(&self, frame: u32) {
        let mut state = self.state.lock();
        let word = Word(self.words[frame as usize].load(Relaxed));
        let now = self.keep_time(&mut state);
        state.lists.unlink(word.place(), frame);
        state.departures += 1;
        state.evictions_since_scan += 1;
        let hash = state.hash_of(frame);
        if word.uses(now) > 0 {
            state.ghosts.remember(hash, word.uses(now), now.epoch());
        }
    }

    fn coldest(&self, max: usize, out: &mut Vec<u32>) {
        let mut state = self.state.lock();
        let end = out.len() + max;
        let now = self.keep_time(&mut state);
        let mut walk = state.begin_walk(&self.words, now);
        while !state.name_batch(&self.words, &mut walk, end, out) {
            MutexGuard::bump(&mut state);
            // Fewer than asked for, then: another thread has moved or evicted pages in between
            // itself.
            if !walk.holds(&state, self.now()) {
                return;
            }
        }
    }

    fn begin_walk(&self) {
        self.state.lock().lists.keep_passed([None; PLACES]);
    }

    fn walk_on(&self, max: usize, out: &mut Vec<u32>) -> bool {
        let end = out.len() + max;
        let mut state = self.state.lock();
        loop {
            let now = self.keep_time(&mut state);
            // It moves pages, so what was passed is taken behind it.
            let walk = state.begin_walk(&self.words, now);
            let Some(passed) = state.lists.take_passed() else { return false };
            let mut walk = walk.behind(passed);
            let is_over = state.name_batch(&self.words, &mut walk, end, out);
            let goes_on = !is_over || out.len() == end;
            if goes_on {
                state.lists.keep_passed(walk.passed());
            }
            if is_over {
                return goes_on;
            }
            MutexGuard::bump(&mut state);
        }
    }

    fn was_accessed(&self, frame: u32) -> bool {
        self.words[frame as usize].load(Relaxed) & ACCESSED != 0
    }

    fn is_hot(&self, frame: u32) -> bool {
        let word = Word(self.words[frame as usize].load(Relaxed));
        word.uses(self.now()) > 1
    }

    fn heat(&self, frame: u32) -> Option<u8> {
        let word = Word(self.words[frame as usize].load(Relaxed));
        let uses = word.uses(self.now());
        (uses > 0 || word.place() != SLIVER).then(|| (u32::BITS - uses.leading_zeros()) as u8)
    }

    fn warm(&self, frame: u32, heat: u8) {
        let now = self.keep_time(&mut self.state.lock());
        let uses = (1 << heat.min(4)) >> 1;
        let warmed = |word| Some(Word(word).with_uses(uses, now).0);
        // Never refused: the closure always has a value.
        let _ = self.words[frame as usize].fetch_update(Relaxed, Relaxed, warmed);
    }

    fn configure(&self, config: &ReplacementConfig) -> bool {
        matches!(config, ReplacementConfig::Tide(_))
    }

    fn relocate(&self, from: u32, to: u32) {
        let mut state = self.state.lock();
        let word = self.words[from as usize].load(Relaxed);
        state.lists.replace(Word(word).place(), from, to);
        state.departures += 1;
        let hash = state.hash_of(from);
        state.set_hash(to, hash);
        self.words[to as usize].store(word, Relaxed);
    }

    fn set_capacity(&self, frames: u32) {
        let mut state = self.state.lock();
        state.capacity = frames as usize;
        state.level = state.level.min(state.capacity);
        if !state.ghosts.suits(frames)
            && let Ok(ghosts) = Ghosts::new(frames)
        {
            state.ghosts = ghosts;
        }
        // Never later than before: where the size changes all the time, no epoch would end.
        let uses = state.uses_of_epoch();
        self.epoch_ends.fetch_min(self.ticks.load(Relaxed) + uses, Relaxed);
    }

    fn waits(&self) -> u64 {
        self.state.waits()
    }

    fn learns(&self) -> bool {
        self.learns
    }

    fn observe(&self, sampled: &[Request], pages_per_sample: u32) {
        let mut shadows = self.shadows.lock();
        let frames = self.state.lock().capacity as u32 / pages_per_sample.max(1);
        let best = match &mut *shadows {
            Some(shadows) => shadows.resize(frames).map(|()| shadows.observe(sampled)),
            none => Shadows::new(frames).map(|new| none.insert(new).observe(sampled)),
        };
        // Without memory for shadows, things stay as they are.
        let Ok(best) = best else { return };
        let mut state = self.state.lock();
        if state.setting != best {
            state.setting = best;
            self.burst.store(best.burst_generations, Relaxed);
            self.begin_epoch(&state);
        }
    }

    fn memory_bytes(&self, frames: u32) -> u64 {
        // A word, a hash of two halves, and the lists' two links; ghosts are scattered over their
        // whole table.
        const WORDS: u64 = 5;
        let ghosts = self.state.lock().ghosts.memory_bytes();
        u64::from(frames) * WORDS * size_of::<u32>() as u64 + ghosts
    }

    fn stats(&self) -> ReplacementStats {
        let state = self.state.lock();
        ReplacementStats {
            pages_old: state.window_len() as u64,
            made_young: state.promoted,
            not_made_young: state.rejected,
        }
    }
}
