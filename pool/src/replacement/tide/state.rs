//! The lists, and who leaves next. All of it is under the policy's mutex.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Setting;
use super::ghosts::Ghosts;
use super::word::{Now, PENDING, RECENT, Word};
use crate::error::{Error, Result};
use crate::mapping::ZeroedArray;
use crate::replacement::lists::{Lists, Passed};

/// Scan pages that found room, and stay until it is needed.
pub(super) const KEPT: usize = 0;
/// The scans' newest pages, which pass through.
pub(super) const SLIVER: usize = 1;
/// Pages that a query read and that have not been admitted to main, a list for each of the newest
/// generations: see [`State::window_victim`].
pub(super) const WINDOW: usize = 2;
pub(super) const GENERATIONS: usize = 16;
/// Pages that were admitted, a list for each level of use; see [`level_of`].
pub(super) const MAIN: usize = WINDOW + GENERATIONS;
const LEVELS: usize = 5;
pub(super) const PLACES: usize = MAIN + LEVELS;

/// The sliver's share of the pool.
const SLIVER_PARTS: usize = 100;
/// After this many evictions since a scan last brought a page, no scan is under way: parts of the
/// pool.
const IDLE_SCAN_PARTS: usize = 16;
/// Victims named without letting go of the mutex. In tests so few that most walks are in several
/// parts.
pub(super) const BATCH: usize = if cfg!(test) { 8 } else { 256 };
/// Pages that may be moved for a batch, beyond two for each victim: so long is the mutex held,
/// however many pages were used, or have grown old, since the last time. What is not moved now is
/// moved by the next calls.
pub(super) const SLACK: usize = 256;

/// The list of the main area for pages with `uses` uses.
fn level_of(uses: u32) -> usize {
    MAIN + (u32::BITS - uses.leading_zeros()) as usize
}

pub(super) struct State {
    pub(super) lists: Lists<PLACES>,
    /// Of the page in each frame: the lower halves, and the upper.
    hashes: [ZeroedArray<u32>; 2],
    pub(super) ghosts: Ghosts,
    /// Frames that may hold pages.
    pub(super) capacity: usize,
    pub(super) setting: Setting,
    /// The most pages that window and main held together: the level to which the pool fills.
    pub(super) level: usize,
    pub(super) evictions_since_scan: usize,
    /// Pages that came in this generation.
    pub(super) arrivals: usize,
    /// Pages that went from the window to main, and that were named for eviction instead.
    pub(super) promoted: u64,
    pub(super) rejected: u64,
    /// How often a page left its place in a list, be it for another list.
    pub(super) departures: u64,
}

/// A walk over the lists in search of victims, from their tails. What was named stays where it is,
/// behind the walk: the caller may find the page dirty or latched, and not evict it. Other pages
/// looked at are moved to some list's head. So the next to look at is always before the last named.
///
/// It is of use only while no page leaves a list but by the walk itself, and within one generation:
/// see [`Walk::holds`].
pub(super) struct Walk {
    last_named: Passed<PLACES>,
    /// How many of each list.
    named: [usize; PLACES],
    /// Moves that may still be made in this batch, and those made before the first.
    moves: usize,
    filled: usize,
    /// [`State::departures`], and the time, as the walk knows them.
    departures: u64,
    now: Now,
}

impl Walk {
    /// Whether the walk can go on after the mutex was let go.
    pub(super) fn holds(&self, state: &State, now: Now) -> bool {
        self.departures == state.departures && self.now == now
    }

    /// The same walk, of which an earlier part has passed these. How many it was is unknown by now:
    /// most have been evicted since.
    pub(super) fn behind(self, passed: Passed<PLACES>) -> Walk {
        Walk { last_named: passed, ..self }
    }

    /// What it has passed.
    pub(super) fn passed(&self) -> Passed<PLACES> {
        self.last_named
    }
}

impl State {
    pub(super) fn new(frames: u32, setting: Setting) -> Result<State> {
        let array = || {
            ZeroedArray::new(frames as usize)
                .map_err(|error| Error::system("reserving replacement state", error))
        };
        Ok(State {
            lists: Lists::new(frames)?,
            hashes: [array()?, array()?],
            ghosts: Ghosts::new(0)?,
            capacity: frames as usize,
            setting,
            level: 0,
            evictions_since_scan: 0,
            arrivals: 0,
            promoted: 0,
            rejected: 0,
            departures: 0,
        })
    }

    pub(super) fn hash_of(&self, frame: u32) -> u64 {
        let [low, high] = &self.hashes;
        u64::from(high[frame as usize]) << 32 | u64::from(low[frame as usize])
    }

    pub(super) fn set_hash(&mut self, frame: u32, hash: u64) {
        let [low, high] = &mut self.hashes;
        low[frame as usize] = hash as u32;
        high[frame as usize] = (hash >> 32) as u32;
    }

    pub(super) fn main_len(&self) -> usize {
        (MAIN..PLACES).map(|place| self.lists.len(place)).sum()
    }

    /// The window's list of the present generation.
    pub(super) fn newest(now: Now) -> usize {
        WINDOW + now.generation() as usize % GENERATIONS
    }

    pub(super) fn window_len(&self) -> usize {
        (WINDOW..MAIN).map(|place| self.lists.len(place)).sum()
    }

    fn window_target(&self) -> usize {
        (self.level * self.setting.window_pct as usize / 100).max(1)
    }

    fn main_target(&self) -> usize {
        self.level.saturating_sub(self.window_target())
    }

    /// Whether the window is there for recency, and so honours it.
    fn window_is_large(&self) -> bool {
        self.setting.window_pct >= 10
    }

    fn sliver_target(&self) -> usize {
        (self.capacity / SLIVER_PARTS).max(1)
    }

    fn relink(&mut self, words: &[AtomicU64], frame: u32, to: usize) {
        let from = Word(words[frame as usize].load(Relaxed)).place();
        self.lists.unlink(from, frame);
        self.lists.push_head(to, frame);
        set_place(words, frame, to);
        self.departures += 1;
    }

    /// A query's page has come to the window's head.
    pub(super) fn page_came(&mut self, words: &[AtomicU64], now: Now) {
        let pages = self.window_len() + self.main_len();
        // While a shrink goes on there are more than there will be room for.
        self.level = self.level.max(pages).min(self.capacity);
        debug_assert!(self.window_target() <= self.capacity.max(1), "the window is a part");
        self.fill_main(words, now, 2);
    }

    /// While main has room, what the window has too much of goes there without a contest. Returns
    /// how many went.
    fn fill_main(&mut self, words: &[AtomicU64], now: Now, max: usize) -> usize {
        let surplus = self.window_len().saturating_sub(self.window_target());
        let room = self.main_target().saturating_sub(self.main_len());
        let wanted = max.min(surplus).min(room);
        for _ in 0..wanted {
            let frame = self.oldest_of_window(now).expect("the window has a surplus");
            self.promote(words, frame, now);
        }
        wanted
    }

    fn oldest_of_window(&self, now: Now) -> Option<u32> {
        (1..=GENERATIONS).find_map(|age| {
            let place = WINDOW + (now.generation() as usize + age) % GENERATIONS;
            self.lists.tail(place)
        })
    }

    /// Uses after which an epoch ends.
    pub(super) fn uses_of_epoch(&self) -> u64 {
        self.capacity as u64 * u64::from(self.setting.epoch_uses)
    }

    /// Whether enough has come in for a new generation to begin, and its list is free. While the
    /// pool fills, generations are so long that they last until it is full.
    pub(super) fn generation_is_over(&self, now: Now) -> bool {
        let filling = self.level < self.capacity - self.capacity / 8;
        let share = match filling {
            true => self.capacity / GENERATIONS,
            false => self.capacity / (4 * GENERATIONS),
        };
        self.arrivals > share && self.lists.len(Self::newest(now.next_generation())) == 0
    }

    fn promote(&mut self, words: &[AtomicU64], frame: u32, now: Now) {
        let uses = Word(words[frame as usize].load(Relaxed)).uses(now);
        clear(words, frame, RECENT);
        self.relink(words, frame, level_of(uses));
        self.promoted += 1;
    }

    pub(super) fn scan_page_came(&mut self, words: &[AtomicU64]) {
        self.evictions_since_scan = 0;
        while self.lists.len(SLIVER) > self.sliver_target() {
            let frame = self.lists.tail(SLIVER).expect("the sliver is not empty");
            self.relink(words, frame, KEPT);
        }
    }

    /// A walk from the tails of the lists, once main has what it has room for.
    pub(super) fn begin_walk(&mut self, words: &[AtomicU64], now: Now) -> Walk {
        let filled = self.fill_main(words, now, SLACK);
        let departures = self.departures;
        let (last_named, named) = ([None; PLACES], [0; PLACES]);
        Walk { last_named, named, moves: 0, filled, departures, now }
    }

    /// Names up to [`BATCH`] victims, and no more than it takes for `out` to have `end`. True if
    /// that was all there is to name.
    pub(super) fn name_batch(
        &mut self,
        words: &[AtomicU64],
        walk: &mut Walk,
        end: usize,
        out: &mut Vec<u32>,
    ) -> bool {
        let now = walk.now;
        let batch = BATCH.min(end - out.len());
        walk.moves = 2 * batch + SLACK - std::mem::take(&mut walk.filled);
        for _ in 0..batch {
            let victim = self
                .scan_victim(words, now, walk)
                .or_else(|| self.query_victim(words, now, walk))
                .or_else(|| self.any_victim(walk));
            match victim {
                Some(frame) => out.push(frame),
                None => return true,
            }
        }
        walk.departures = self.departures;
        out.len() == end
    }

    fn peek(&self, walk: &Walk, place: usize) -> Option<u32> {
        match walk.last_named[place] {
            Some(frame) => self.lists.before(frame),
            None => self.lists.tail(place),
        }
    }

    fn name(&self, walk: &mut Walk, place: usize, frame: u32) -> Option<u32> {
        walk.last_named[place] = Some(frame);
        walk.named[place] += 1;
        debug_assert!(walk.named[place] <= self.lists.len(place), "each frame is named once");
        Some(frame)
    }

    fn left(&self, walk: &Walk, place: usize) -> usize {
        self.lists.len(place) - walk.named[place]
    }

    fn scan_victim(&mut self, words: &[AtomicU64], now: Now, walk: &mut Walk) -> Option<u32> {
        let idle = self.evictions_since_scan > self.capacity / IDLE_SCAN_PARTS;
        loop {
            let spared = if idle { 0 } else { self.sliver_target() / 2 };
            let place = if self.left(walk, SLIVER) > spared { SLIVER } else { KEPT };
            let frame = self.peek(walk, place)?;
            let word = Word(words[frame as usize].load(Relaxed));
            if walk.moves > 0 && word.has(RECENT | PENDING) {
                walk.moves -= 1;
                clear(words, frame, RECENT | PENDING);
                // Wanted by a query, too; or it has its grace now.
                let to = if word.has(RECENT) { Self::newest(now) } else { place };
                self.relink(words, frame, to);
                continue;
            }
            return self.dead_victim(words, now, walk).or_else(|| self.name(walk, place, frame));
        }
    }

    /// A page that no query has used for so long that all its uses are forgotten: even a scan may
    /// have its frame. Else a pool full of what was wanted yesterday would never let in a table
    /// that is scanned all day.
    fn dead_victim(&mut self, words: &[AtomicU64], now: Now, walk: &mut Walk) -> Option<u32> {
        let (place, frame) = match self.window_is_large() {
            true => self.window_victim(words, now, walk)?,
            false => self.peek_main(words, now, walk)?,
        };
        let word = Word(words[frame as usize].load(Relaxed));
        let idle = word.idle(now) as usize >= GENERATIONS / 2;
        if word.uses(now) == 0 && idle { self.name(walk, place, frame) } else { None }
    }

    /// The loser of the next contest, or main's coldest while the window is too small for one.
    ///
    /// Victims are named many at a time, and the frames that they leave are filled by pages that
    /// come to the window. So each is named as if those before it were gone *and* others had come
    /// for them: else only the first of a walk would be contested, and the window, too small for
    /// the rest of it and then too large, would pass what comes on to main without a contest as
    /// well.
    fn query_victim(&mut self, words: &[AtomicU64], now: Now, walk: &mut Walk) -> Option<u32> {
        let window: usize = (WINDOW..MAIN).map(|place| self.left(walk, place)).sum();
        let main: usize = (MAIN..PLACES).map(|place| self.left(walk, place)).sum();
        let named: usize = walk.named[WINDOW..].iter().sum();
        if main > 0 && (window == 0 || window + named < self.window_target()) {
            return self.main_victim(words, now, walk);
        }
        let (place, frame) = self.window_victim(words, now, walk)?;
        let word = Word(words[frame as usize].load(Relaxed));
        if walk.moves > 0
            && main > 0
            && let Some((rivals_place, rival)) = self.peek_main(words, now, walk)
            && word.uses(now) > Word(words[rival as usize].load(Relaxed)).uses(now)
        {
            walk.moves = walk.moves.saturating_sub(1);
            self.promote(words, frame, now);
            return self.name(walk, rivals_place, rival);
        }
        self.rejected += 1;
        self.name(walk, place, frame)
    }

    /// The page that leaves the window next, and its list: the oldest, and in a window that is
    /// large enough to be there for recency, the one longest unused.
    ///
    /// A hit moves nothing, it only notes the generation in the page's word. A page that comes to
    /// the tail of the oldest list, but was used in a later generation, then goes to the list of
    /// that generation. So the order is LRU's, except within a generation.
    /// (Multi-generational LRU, Linux 6.1; a clock's single bit can't tell what was used lately
    /// from what was used before the working set moved.)
    fn window_victim(
        &mut self,
        words: &[AtomicU64],
        now: Now,
        walk: &mut Walk,
    ) -> Option<(usize, u32)> {
        for age in (0..GENERATIONS).rev() {
            let place = WINDOW + (now.generation() as usize + GENERATIONS - age) % GENERATIONS;
            while let Some(frame) = self.peek(walk, place) {
                let idle = Word(words[frame as usize].load(Relaxed)).idle(now) as usize;
                if idle >= age || walk.moves == 0 || !self.window_is_large() {
                    return Some((place, frame));
                }
                walk.moves -= 1;
                let to = WINDOW + (now.generation() as usize + GENERATIONS - idle) % GENERATIONS;
                self.relink(words, frame, to);
            }
        }
        None
    }

    fn main_victim(&mut self, words: &[AtomicU64], now: Now, walk: &mut Walk) -> Option<u32> {
        let (place, frame) = self.peek_main(words, now, walk)?;
        self.name(walk, place, frame)
    }

    /// The page of the main area that is worth least, and its list.
    fn peek_main(
        &mut self,
        words: &[AtomicU64],
        now: Now,
        walk: &mut Walk,
    ) -> Option<(usize, u32)> {
        for place in MAIN..PLACES {
            while let Some(frame) = self.peek(walk, place) {
                let word = Word(words[frame as usize].load(Relaxed));
                let level = level_of(word.uses(now));
                if walk.moves == 0 || !word.has(RECENT) && level == place {
                    return Some((place, frame));
                }
                walk.moves = walk.moves.saturating_sub(1);
                clear(words, frame, RECENT);
                self.relink(words, frame, level);
            }
        }
        None
    }

    /// What the other ways passed over.
    fn any_victim(&mut self, walk: &mut Walk) -> Option<u32> {
        for place in (MAIN..PLACES).chain(WINDOW..MAIN).chain([KEPT, SLIVER]) {
            if let Some(frame) = self.peek(walk, place) {
                return self.name(walk, place, frame);
            }
        }
        None
    }
}

fn set_place(words: &[AtomicU64], frame: u32, place: usize) {
    let _ =
        words[frame as usize].fetch_update(Relaxed, Relaxed, |word| Some(Word(word).at(place).0));
}

fn clear(words: &[AtomicU64], frame: u32, bits: u64) {
    words[frame as usize].fetch_and(!bits, Relaxed);
}
