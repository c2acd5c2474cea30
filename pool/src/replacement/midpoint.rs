//! The midpoint policy: InnoDB's young and old lists, with hits that take no mutex.
//!
//! ```text
//!      young list                                   old list
//!   ┌─────────────────────────────────────────┐  ┌───────────────────────┐
//!   │ head   …                           tail │▶ │ head   …         tail │▶ evicted
//!   └─────────────────────────────────────────┘  └───────────────────────┘
//!      ▲                                            ▲               │
//!      │                                            └ new pages     │
//!      └──── accessed again, `old_blocks_time` after the first ─────┘
//! ```
//!
//! A page enters at the head of the old list, which is kept at `old_blocks_pct` of all pages. An
//! access that comes at least `old_blocks_time` after the page's first access earns it the head of
//! the young list; the many accesses of one scan, all within milliseconds, do not. The border
//! between the lists moves only when the old one is off its share by a tolerance, so that it does
//! not jitter with each page that comes and goes.
//!
//! Unlike InnoDB, which moves the page at once under a global mutex, a hit only sets a bit in the
//! frame's access word (and mostly finds it set). The move is made when it matters: when a marked
//! page comes to the tail of its list, it goes to the young head and loses the mark. So the order
//! inside the lists is that of a clock rather than of exact recency.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::MutexGuard;

use super::lists::Lists;
use super::{Access, Clock, Replacement, ReplacementConfig, ReplacementStats};
use crate::contention::CountingMutex;
use crate::error::{Error, Result};
use crate::mapping::ZeroedArray;
use crate::page::PageId;

/// Settings of the midpoint policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MidpointConfig {
    /// Share of the pages that the old list holds, in percent: 5 to 95.
    pub old_blocks_pct: u8,
    /// How long after its first access a further access makes a page young, in milliseconds.
    pub old_blocks_time_ms: u32,
}

impl Default for MidpointConfig {
    fn default() -> MidpointConfig {
        MidpointConfig { old_blocks_pct: 37, old_blocks_time_ms: 1000 }
    }
}

// The access word of a frame.
const MARKED: u32 = 1 << 31;
const YOUNG: u32 = 1 << 30;
/// When the page was first accessed, in milliseconds, wrapping after twelve days; 0: not yet.
const FIRST_ACCESS: u32 = YOUNG - 1;

/// Pages that the old list may have too many or too few.
const TOLERANCE: usize = 20;

/// Steps of housekeeping that one call may take beyond those it needs.
const SLACK: usize = 64;

/// Pages that a long walk passes without letting go of the mutex.
const BATCH: usize = 256;

pub(crate) struct Midpoint {
    access: ZeroedArray<AtomicU32>,
    lists: CountingMutex<Lists<2>>,
    old_blocks_pct: AtomicU32,
    old_blocks_time_ms: AtomicU32,
    made_young: AtomicU64,
    not_made_young: AtomicU64,
    clock: Arc<Clock>,
}

/// Which list; of the two.
const YOUNG_LIST: usize = 0;
const OLD_LIST: usize = 1;

impl Midpoint {
    pub(crate) fn new(config: MidpointConfig, frames: u32, clock: Arc<Clock>) -> Result<Midpoint> {
        let array = |error| Error::system("reserving replacement state", error);
        let policy = Midpoint {
            access: ZeroedArray::new(frames as usize).map_err(array)?,
            lists: CountingMutex::new(Lists::new(frames)?),
            old_blocks_pct: AtomicU32::new(0),
            old_blocks_time_ms: AtomicU32::new(0),
            made_young: AtomicU64::new(0),
            not_made_young: AtomicU64::new(0),
            clock,
        };
        policy.set(config);
        Ok(policy)
    }

    fn set(&self, config: MidpointConfig) {
        self.old_blocks_pct.store(config.old_blocks_pct.clamp(5, 95) as u32, Relaxed);
        self.old_blocks_time_ms.store(config.old_blocks_time_ms.min(FIRST_ACCESS / 2), Relaxed);
    }

    /// Now, as the access word keeps it: never 0.
    fn now(&self) -> u32 {
        (self.clock.now_ms() & FIRST_ACCESS).max(1)
    }

    fn is_young(&self, frame: u32) -> bool {
        self.access[frame as usize].load(Relaxed) & YOUNG != 0
    }

    fn list_of(&self, frame: u32) -> usize {
        if self.is_young(frame) { YOUNG_LIST } else { OLD_LIST }
    }

    /// Moves a marked page to the young head; the mark is used up.
    fn rejuvenate(&self, lists: &mut Lists<2>, frame: u32) {
        let list = self.list_of(frame);
        lists.unlink(list, frame);
        lists.push_head(YOUNG_LIST, frame);
        self.access[frame as usize].fetch_and(!MARKED, Relaxed);
        self.access[frame as usize].fetch_or(YOUNG, Relaxed);
        if list == OLD_LIST {
            self.made_young.fetch_add(1, Relaxed);
        }
    }

    /// Moves the border between the lists if the old one is too far from its share.
    fn balance(&self, lists: &mut Lists<2>) {
        let pages = lists.len(YOUNG_LIST) + lists.len(OLD_LIST);
        let share = (pages * self.old_blocks_pct.load(Relaxed) as usize).div_ceil(100);
        let tolerance = TOLERANCE.min(pages / 16);
        if lists.len(OLD_LIST).abs_diff(share) <= tolerance {
            return;
        }
        while lists.len(OLD_LIST) > share {
            let Some(frame) = lists.head(OLD_LIST) else { break };
            lists.unlink(OLD_LIST, frame);
            lists.push_tail(YOUNG_LIST, frame);
            self.access[frame as usize].fetch_or(YOUNG, Relaxed);
        }
        let mut second_chances = 0;
        while lists.len(OLD_LIST) < share {
            let Some(frame) = lists.tail(YOUNG_LIST) else { break };
            let marked = self.access[frame as usize].load(Relaxed) & MARKED != 0;
            if marked && second_chances < SLACK {
                second_chances += 1;
                self.rejuvenate(lists, frame);
                continue;
            }
            lists.unlink(YOUNG_LIST, frame);
            lists.push_head(OLD_LIST, frame);
            // A mark that was not used (everything is hot) must not promote it right back.
            self.access[frame as usize].fetch_and(!(YOUNG | MARKED), Relaxed);
        }
    }
}

impl Replacement for Midpoint {
    #[inline]
    fn hit(&self, frame: u32, access: Access) {
        let cell = &self.access[frame as usize];
        let word = cell.load(Relaxed);
        if word & MARKED != 0 || access.is_prefetch() {
            return;
        }
        let now = self.now();
        if word & FIRST_ACCESS == 0 {
            // May lose against another thread's first access, or a move: no harm.
            let _ = cell.compare_exchange(word, word | now, Relaxed, Relaxed);
            return;
        }
        let age_ms = now.wrapping_sub(word) & FIRST_ACCESS;
        if age_ms >= self.old_blocks_time_ms.load(Relaxed) {
            cell.fetch_or(MARKED, Relaxed);
        } else if word & YOUNG == 0 {
            self.not_made_young.fetch_add(1, Relaxed);
        }
    }

    fn insert(&self, frame: u32, _page: PageId, access: Access) {
        let word = if access.is_prefetch() { 0 } else { self.now() };
        let mut lists = self.lists.lock();
        self.access[frame as usize].store(word, Relaxed);
        lists.push_head(OLD_LIST, frame);
        self.balance(&mut lists);
    }

    fn remove(&self, frame: u32) {
        let mut lists = self.lists.lock();
        let list = self.list_of(frame);
        lists.unlink(list, frame);
        self.balance(&mut lists);
    }

    fn coldest(&self, max: usize, out: &mut Vec<u32>) {
        let mut lists = self.lists.lock();
        let end = out.len() + max;
        let mut next = lists.tail(OLD_LIST);
        let mut promoted = 0;
        while out.len() < end
            && let Some(frame) = next
        {
            next = lists.before(frame);
            let marked = self.access[frame as usize].load(Relaxed) & MARKED != 0;
            if marked && promoted < max + SLACK {
                promoted += 1;
                self.rejuvenate(&mut lists, frame);
            } else {
                out.push(frame);
            }
        }
        // Not enough old pages: go on with the coldest of the young.
        let mut next = lists.tail(YOUNG_LIST);
        while out.len() < end
            && let Some(frame) = next
        {
            next = lists.before(frame);
            out.push(frame);
        }
        self.balance(&mut lists);
    }

    fn begin_walk(&self) {
        self.lists.lock().keep_passed([None; 2]);
    }

    fn walk_on(&self, max: usize, out: &mut Vec<u32>) -> bool {
        let end = out.len() + max;
        let mut lists = self.lists.lock();
        while out.len() < end {
            let Some(mut passed) = lists.take_passed() else { return false };
            for _ in 0..BATCH.min(end - out.len()) {
                let next = [OLD_LIST, YOUNG_LIST].into_iter().find_map(|list| {
                    let frame = match passed[list] {
                        Some(frame) => lists.before(frame),
                        None => lists.tail(list),
                    };
                    Some((list, frame?))
                });
                let Some((list, frame)) = next else { return false };
                passed[list] = Some(frame);
                out.push(frame);
            }
            lists.keep_passed(passed);
            MutexGuard::bump(&mut lists);
        }
        true
    }

    fn was_accessed(&self, frame: u32) -> bool {
        self.access[frame as usize].load(Relaxed) & FIRST_ACCESS != 0
    }

    fn is_hot(&self, frame: u32) -> bool {
        self.is_young(frame)
    }

    fn heat(&self, frame: u32) -> Option<u8> {
        Some(match (self.is_young(frame), self.was_accessed(frame)) {
            (true, _) => 2,
            (false, accessed) => u8::from(accessed),
        })
    }

    fn warm(&self, frame: u32, heat: u8) {
        if heat > 1 {
            let mut lists = self.lists.lock();
            self.rejuvenate(&mut lists, frame);
            self.balance(&mut lists);
        }
    }

    fn configure(&self, config: &ReplacementConfig) -> bool {
        let ReplacementConfig::Midpoint(config) = config else { return false };
        self.set(*config);
        self.balance(&mut self.lists.lock());
        true
    }

    fn relocate(&self, from: u32, to: u32) {
        let mut lists = self.lists.lock();
        // The frame's hits are lost from here on, until the caller sends them to the other.
        let word = self.access[from as usize].load(Relaxed);
        lists.replace(usize::from(word & YOUNG == 0), from, to);
        self.access[to as usize].store(word, Relaxed);
    }

    fn set_capacity(&self, _frames: u32) {
        // The lists' shares are of the pages that there are.
    }

    fn memory_bytes(&self, frames: u32) -> u64 {
        // The last access, and the list's two links.
        frames as u64 * 3 * size_of::<u32>() as u64
    }

    fn waits(&self) -> u64 {
        self.lists.waits()
    }

    fn stats(&self) -> ReplacementStats {
        ReplacementStats {
            pages_old: self.lists.lock().len(OLD_LIST) as u64,
            made_young: self.made_young.load(Relaxed),
            not_made_young: self.not_made_young.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(pct: u8, time_ms: u32) -> (Midpoint, Arc<Clock>) {
        let clock = Arc::new(Clock::Manual(AtomicU32::new(5)));
        let config = MidpointConfig { old_blocks_pct: pct, old_blocks_time_ms: time_ms };
        (Midpoint::new(config, 1000, clock.clone()).unwrap(), clock)
    }

    fn page(no: u32) -> PageId {
        PageId::new(1, no)
    }

    fn coldest(policy: &Midpoint, max: usize) -> Vec<u32> {
        let mut out = Vec::new();
        policy.coldest(max, &mut out);
        out
    }

    /// Reads `pages` once through a full pool, as a scan does, touching each `touches` times.
    /// Returns the frames it took.
    fn scan(policy: &Midpoint, clock: &Clock, pages: u32, touches: u32) -> Vec<u32> {
        let mut evicted = Vec::new();
        for _ in 0..pages {
            let frame = coldest(policy, 1)[0];
            evicted.push(frame);
            policy.remove(frame);
            policy.insert(frame, page(frame), Access::Scan);
            for _ in 1..touches {
                policy.hit(frame, Access::Scan);
            }
            clock.advance(1);
        }
        evicted
    }

    #[test]
    fn new_pages_are_old_and_the_lists_keep_their_shares() {
        let (policy, _) = policy(37, 1000);
        for frame in 0..100 {
            policy.insert(frame, page(frame), Access::Normal);
            let share = (37 * (frame + 1)).div_ceil(100);
            assert!((policy.stats().pages_old as u32).abs_diff(share) <= (frame + 1) / 16);
        }
        let old = coldest(&policy, 100);
        assert_eq!(old.len(), 100);
        for frame in old {
            policy.remove(frame);
        }
        assert_eq!((policy.stats().pages_old, coldest(&policy, 1)), (0, vec![]));
    }

    #[test]
    fn a_scan_leaves_hot_pages_alone_only_with_old_blocks_time() {
        for time_ms in [1000, 0] {
            let (policy, clock) = policy(37, time_ms);
            for frame in 0..100 {
                policy.insert(frame, page(frame), Access::Normal);
            }
            clock.advance(2000);
            for frame in 0..50 {
                policy.hit(frame, Access::Normal);
            }
            let evicted = scan(&policy, &clock, 500, 20);
            let lost = (0..50).filter(|frame| evicted.contains(frame)).count();
            if time_ms > 0 {
                assert_eq!(lost, 0, "hot pages stay");
                assert!(policy.stats().made_young <= 50);
            } else {
                assert!(lost >= 40, "washed out");
                assert!(policy.stats().made_young >= 400, "each scanned page became young");
            }
        }
    }

    #[test]
    fn a_long_walk_goes_on_though_what_it_passed_is_evicted() {
        let (policy, _) = policy(37, 1000);
        for frame in 0..900 {
            policy.insert(frame, page(frame), Access::Normal);
        }
        let all = coldest(&policy, 1000);
        policy.begin_walk();
        let mut passed = Vec::new();
        loop {
            let from = passed.len();
            let goes_on = policy.walk_on(30, &mut passed);
            // All that came but one, the last first.
            passed[from..].iter().rev().skip(1).for_each(|frame| policy.remove(*frame));
            if !goes_on {
                break;
            }
        }
        passed.sort_unstable();
        passed.dedup();
        assert_eq!(passed.len(), all.len());
    }

    #[test]
    fn a_second_access_counts_only_after_old_blocks_time() {
        let (policy, clock) = policy(50, 1000);
        for frame in 0..10 {
            policy.insert(frame, page(frame), Access::Prefetch);
        }
        let victim = coldest(&policy, 1)[0];
        assert!(!policy.was_accessed(victim));
        policy.hit(victim, Access::Normal);
        assert!(policy.was_accessed(victim));
        clock.advance(999);
        policy.hit(victim, Access::Normal);
        assert_eq!(coldest(&policy, 1), [victim], "too soon");
        clock.advance(1);
        policy.hit(victim, Access::Normal);
        assert_ne!(coldest(&policy, 1), [victim]);
        assert!(policy.is_young(victim));
        assert_eq!(policy.stats().made_young, 1);
    }

    #[test]
    fn a_moved_page_keeps_its_place() {
        let (policy, clock) = policy(50, 0);
        for frame in 0..10 {
            policy.insert(frame, page(frame), Access::Normal);
        }
        clock.advance(5);
        policy.hit(0, Access::Normal);
        let before = coldest(&policy, 10);
        for (at, &frame) in before.iter().enumerate() {
            policy.relocate(frame, 100 + frame);
            let mut expected = before.clone();
            expected[..=at].iter_mut().for_each(|frame| *frame += 100);
            assert_eq!(coldest(&policy, 10), expected);
        }
    }
}
