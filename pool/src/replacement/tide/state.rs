//! The lists, and who leaves next. All of it is under the policy's mutex.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::Setting;
use super::ghosts::Ghosts;
use super::word::{PENDING, RECENT, Word};
use crate::error::{Error, Result};
use crate::mapping::ZeroedArray;
use crate::replacement::lists::Lists;

/// Scan pages that found room, and stay until it is needed.
pub(super) const KEPT: usize = 0;
/// The scans' newest pages, which pass through.
pub(super) const SLIVER: usize = 1;
/// Pages that a query read, newest first.
pub(super) const WINDOW: usize = 2;
/// Pages that were admitted, a list for each level of use; see [`level_of`].
pub(super) const MAIN: usize = 3;
const LEVELS: usize = 5;
pub(super) const PLACES: usize = MAIN + LEVELS;

/// The sliver's share of the pool.
const SLIVER_PARTS: usize = 100;
/// With so many evictions since a scan last brought a page, no scan is under way: parts of the pool.
const IDLE_SCAN_PARTS: usize = 16;
/// Steps of housekeeping that one call may take beyond those it needs.
const SLACK: usize = 256;

/// The list of the main area for pages with so many uses.
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
    /// Pages that went from the window to main, and that were named for eviction instead.
    pub(super) promoted: u64,
    pub(super) rejected: u64,
}

/// A walk over the lists in search of victims, from their tails. What was named stays where it is,
/// behind the walk: whoever asked may find the page dirty or latched, and not evict it. Other pages
/// looked at are moved to some list's head. So the next to look at is always before the last named.
struct Walk {
    last_named: [Option<u32>; PLACES],
    named: [usize; PLACES],
    /// Moves that may still be made.
    moves: usize,
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
            promoted: 0,
            rejected: 0,
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

    fn relink(&mut self, words: &[AtomicU32], frame: u32, to: usize) {
        let from = Word(words[frame as usize].load(Relaxed)).place();
        self.lists.unlink(from, frame);
        self.lists.push_head(to, frame);
        set_place(words, frame, to);
    }

    /// A query's page has come to the window's head.
    pub(super) fn page_came(&mut self, words: &[AtomicU32], epoch: u32) {
        let pages = self.lists.len(WINDOW) + self.main_len();
        self.level = self.level.max(pages);
        self.fill_main(words, epoch, 2);
    }

    /// While main has room, what the window has too much of goes there without a contest.
    fn fill_main(&mut self, words: &[AtomicU32], epoch: u32, max: usize) {
        for _ in 0..max {
            if self.lists.len(WINDOW) <= self.window_target()
                || self.main_len() >= self.main_target()
            {
                return;
            }
            let frame = self.lists.tail(WINDOW).expect("the window is not empty");
            self.promote(words, frame, epoch);
        }
    }

    fn promote(&mut self, words: &[AtomicU32], frame: u32, epoch: u32) {
        let uses = Word(words[frame as usize].load(Relaxed)).uses_in(epoch);
        clear(words, frame, RECENT);
        self.relink(words, frame, level_of(uses));
        self.promoted += 1;
    }

    pub(super) fn scan_page_came(&mut self, words: &[AtomicU32]) {
        self.evictions_since_scan = 0;
        while self.lists.len(SLIVER) > self.sliver_target() {
            let frame = self.lists.tail(SLIVER).expect("the sliver is not empty");
            self.relink(words, frame, KEPT);
        }
    }

    pub(super) fn coldest(
        &mut self,
        words: &[AtomicU32],
        epoch: u32,
        max: usize,
        out: &mut Vec<u32>,
    ) {
        self.fill_main(words, epoch, max + SLACK);
        let mut walk =
            Walk { last_named: [None; PLACES], named: [0; PLACES], moves: 4 * max + SLACK };
        let end = out.len() + max;
        while out.len() < end {
            let victim = self
                .scan_victim(words, &mut walk)
                .or_else(|| self.query_victim(words, epoch, &mut walk))
                .or_else(|| self.any_victim(&mut walk));
            match victim {
                Some(frame) => out.push(frame),
                None => return,
            }
        }
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
        Some(frame)
    }

    fn left(&self, walk: &Walk, place: usize) -> usize {
        self.lists.len(place) - walk.named[place]
    }

    fn scan_victim(&mut self, words: &[AtomicU32], walk: &mut Walk) -> Option<u32> {
        let idle = self.evictions_since_scan > self.capacity / IDLE_SCAN_PARTS;
        loop {
            let spared = if idle { 0 } else { self.sliver_target() / 2 };
            let place = if self.left(walk, SLIVER) > spared { SLIVER } else { KEPT };
            let frame = self.peek(walk, place)?;
            let word = Word(words[frame as usize].load(Relaxed));
            if walk.moves > 0 && word.has(RECENT | PENDING) {
                walk.moves = walk.moves.saturating_sub(1);
                if word.has(RECENT) {
                    // Wanted by a query, too.
                    clear(words, frame, RECENT | PENDING);
                    self.relink(words, frame, WINDOW);
                } else {
                    clear(words, frame, PENDING);
                    self.relink(words, frame, place);
                }
                continue;
            }
            return self.name(walk, place, frame);
        }
    }

    fn query_victim(&mut self, words: &[AtomicU32], epoch: u32, walk: &mut Walk) -> Option<u32> {
        loop {
            let window = self.left(walk, WINDOW);
            let main: usize = (MAIN..PLACES).map(|place| self.left(walk, place)).sum();
            if window < self.window_target() && main > 0 {
                return self.main_victim(words, epoch, walk);
            }
            let frame = self.peek(walk, WINDOW)?;
            let word = Word(words[frame as usize].load(Relaxed));
            if walk.moves > 0 && word.has(RECENT) && self.window_is_large() {
                walk.moves = walk.moves.saturating_sub(1);
                clear(words, frame, RECENT);
                self.relink(words, frame, WINDOW);
                continue;
            }
            if walk.moves > 0
                && main > 0
                && let Some((place, rival)) = self.peek_main(words, epoch, walk)
                && word.uses_in(epoch) > Word(words[rival as usize].load(Relaxed)).uses_in(epoch)
            {
                walk.moves = walk.moves.saturating_sub(1);
                self.promote(words, frame, epoch);
                return self.name(walk, place, rival);
            }
            self.rejected += 1;
            return self.name(walk, WINDOW, frame);
        }
    }

    fn main_victim(&mut self, words: &[AtomicU32], epoch: u32, walk: &mut Walk) -> Option<u32> {
        let (place, frame) = self.peek_main(words, epoch, walk)?;
        self.name(walk, place, frame)
    }

    /// The page of the main area that is worth least, and its list.
    fn peek_main(
        &mut self,
        words: &[AtomicU32],
        epoch: u32,
        walk: &mut Walk,
    ) -> Option<(usize, u32)> {
        for place in MAIN..PLACES {
            while let Some(frame) = self.peek(walk, place) {
                let word = Word(words[frame as usize].load(Relaxed));
                let level = level_of(word.uses_in(epoch));
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
        for place in (MAIN..PLACES).chain([WINDOW, KEPT, SLIVER]) {
            if let Some(frame) = self.peek(walk, place) {
                return self.name(walk, place, frame);
            }
        }
        None
    }
}

fn set_place(words: &[AtomicU32], frame: u32, place: usize) {
    let _ =
        words[frame as usize].fetch_update(Relaxed, Relaxed, |word| Some(Word(word).at(place).0));
}

fn clear(words: &[AtomicU32], frame: u32, bits: u32) {
    words[frame as usize].fetch_and(!bits, Relaxed);
}
