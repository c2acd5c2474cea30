//! Which transaction committed when: transaction id → commit sequence number.
//!
//! # Types
//! A [`TrxId`] names a transaction that writes; ids are handed out in order and never reused, not
//! even after a restart. A [`Csn`] is the place of a commit in the order of commits. The table
//! answers one question, at the speed of two loads: *has this id ended, and if it committed, when?*
//! One 64-bit word an id:
//!
//! ```text
//! 0            active
//! 1 ..         committed with this CSN
//! u64::MAX     rolled back
//! ```
//!
//! # Memory
//! Words live in chunks of [`CHUNK_IDS`] ids. A chunk goes back to the free list as soon as no
//! reader can learn anything from it: every id in it has ended, and for every live read view either
//! the whole chunk is younger than the view (`first id >= view.high`) or the whole chunk committed
//! before it (`newest csn <= view.csn`). *A missing chunk therefore means: ended, and visible to
//! any reader that may ask.* So an old view (a dump of hours) and an old writer each pin the few
//! chunks that straddle their own beginning, and nothing that happens later.
//!
//! # Protocol
//! Chunks are never returned to the allocator before the table is dropped, so that a late reader
//! reads stale words, never unmapped memory; it notices by looking at the chunk's number before and
//! after (chunk numbers never repeat). [`directory`] finds the chunk of a number.
//!
//! A commit holds the commit mutex while it takes its number, reserves the place of its record in
//! the redo log and publishes: hence CSN order is redo order, and `published = n` means that the
//! words of all commits up to `n` are stored. A reader never takes it.
//!
//! The record itself is made after that, outside of the mutex. Who sees the commit before may
//! append to the log at once; that lies behind the reserved place, and the log's writer leaves no
//! hole. So *if a commit is durable, then so is each commit that it may have seen.*

mod directory;
#[cfg(test)]
mod directory_tests;
mod sync;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use crate::padded::Padded;
use crate::pause::{self, PausePoint};
use directory::{Directory, INDEX_BITS, Occupancy};

/// Identifies a transaction that writes. 0 is no transaction; 48 bits are stored in each entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TrxId(pub u64);

impl TrxId {
    /// No transaction.
    pub const NONE: TrxId = TrxId(0);
    /// The largest id an entry can hold.
    pub const MAX: TrxId = TrxId((1 << 48) - 1);
}

/// A commit's place in the order of commits; the first commit has 2 (1 is "before this engine was
/// opened").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Csn(pub u64);

impl Csn {
    /// What committed before the engine was opened, when no better is known.
    pub const FIRST: Csn = Csn(1);
}

/// What the table knows of a live read view ([`ReadView`](crate::trx::ReadView)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewBounds {
    /// It sees the commits up to this one.
    pub csn: Csn,
    /// Ids from here on began after it.
    pub high: TrxId,
}

/// What is known of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrxState {
    /// Running, or prepared.
    Active,
    /// Committed at this place in the order.
    Committed(Csn),
    /// Rolled back: no entry carries its id any more.
    RolledBack,
    /// Ended so long ago that every view that may ask about it sees it.
    Ended,
}

pub const CHUNK_IDS: u64 = 1024;
/// Chunks in use at once, at most.
const CHUNKS_MAX: usize = 1 << 14;
const ACTIVE: u64 = 0;
const ROLLED_BACK: u64 = u64::MAX;
const ARENA_STEP: usize = 16;

struct Chunk {
    /// Chunk number + 1, or 0 while the chunk is free.
    tag: AtomicU64,
    words: [AtomicU64; CHUNK_IDS as usize],
}

impl Chunk {
    fn new() -> Self {
        Chunk {
            tag: AtomicU64::new(0),
            words: [const { AtomicU64::new(ACTIVE) }; CHUNK_IDS as usize],
        }
    }
}

/// A chunk in use, as the reclaimer sees it.
struct LiveChunk {
    number: u64,
    index: usize,
    /// Words before this one are known to be ended.
    ended: usize,
    /// Newest CSN among the ended words.
    newest: u64,
}

#[derive(Default)]
struct Allocator {
    occupancy: Occupancy,
    free: Vec<usize>,
    created: usize,
    live: Vec<LiveChunk>,
}

/// The table; see the module's description.
pub struct CsnTable {
    ids: Padded<Ids>,
    ends: Padded<Ends>,
    directory: Directory,
    arena: Box<[OnceLock<Box<[Chunk]>>]>,
    alloc: Padded<Mutex<Allocator>>,
    commit: Padded<Mutex<()>>,
}

/// The ids that are handed out, by one atomic step each.
struct Ids {
    /// The next one; all below have been handed out, and their chunk exists or existed.
    next: AtomicU64,
    /// Ids below this have a chunk, and may be handed out. Written under the mutex of `alloc`.
    ready: AtomicU64,
}

/// What each view that opens reads, and each commit writes.
struct Ends {
    /// Every id below has ended.
    low: AtomicU64,
    /// The words of all commits up to this CSN are stored.
    published: AtomicU64,
}

impl CsnTable {
    /// The most memory that the table can take, bytes: the chunks, and for each two slots in both
    /// arrays of the directory.
    pub const MEMORY_MAX_BYTES: u64 =
        (CHUNKS_MAX * (4 * size_of::<AtomicU64>() + size_of::<Chunk>())) as u64;

    /// Memory of the directory and of the chunks that were ever needed at once, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let chunks = self.alloc.lock().created.next_multiple_of(ARENA_STEP);
        (self.directory.memory_bytes() + chunks * size_of::<Chunk>()) as u64
    }

    /// A table in which every id below `next_id` has ended, except `active`, and the newest commit
    /// was `published`.
    pub fn new(next_id: TrxId, published: Csn, active: &[TrxId]) -> Self {
        assert!(next_id.0 > 0 && published.0 > 0);
        let arena = (0..(1 << INDEX_BITS) / ARENA_STEP).map(|_| OnceLock::new()).collect();
        let table = CsnTable {
            ids: Padded(Ids { next: AtomicU64::new(next_id.0), ready: AtomicU64::new(next_id.0) }),
            ends: Padded(Ends {
                low: AtomicU64::new(active.iter().map(|id| id.0).min().unwrap_or(next_id.0)),
                published: AtomicU64::new(published.0),
            }),
            directory: Directory::new(2 * CHUNKS_MAX),
            arena,
            alloc: Padded::default(),
            commit: Padded::default(),
        };
        let mut numbers: Vec<u64> = active.iter().map(|id| id.0 / CHUNK_IDS).collect();
        if !next_id.0.is_multiple_of(CHUNK_IDS) {
            numbers.push(next_id.0 / CHUNK_IDS);
        }
        numbers.sort_unstable();
        numbers.dedup();
        let mut alloc = table.alloc.lock();
        for number in numbers {
            let chunk = table.create_chunk(&mut alloc, number);
            for at in 0..CHUNK_IDS {
                let id = number * CHUNK_IDS + at;
                let is_active = id >= next_id.0 || active.contains(&TrxId(id));
                let word = if is_active { ACTIVE } else { Csn::FIRST.0 };
                chunk.words[at as usize].store(word, Ordering::Relaxed);
            }
        }
        drop(alloc);
        table
    }

    /// The id the next writer will get.
    pub fn next_id(&self) -> TrxId {
        TrxId(self.ids.next.load(Ordering::SeqCst))
    }

    /// Every id below has ended.
    pub fn low(&self) -> TrxId {
        TrxId(self.ends.low.load(Ordering::SeqCst))
    }

    /// The newest commit whose effects a new view sees.
    pub fn published(&self) -> Csn {
        Csn(self.ends.published.load(Ordering::SeqCst))
    }

    /// Hands out an id, unless those that are ready are used up.
    pub fn assign_ready(&self) -> Option<TrxId> {
        let ready = self.ids.ready.load(Ordering::Acquire);
        // No plain addition: an id from `ready` on would be taken for one whose chunk is gone.
        let next = |id: u64| (id < ready).then_some(id + 1);
        let id = self.ids.next.fetch_update(Ordering::SeqCst, Ordering::Relaxed, next);
        debug_assert!(id.is_err() || self.word(TrxId(ready - 1)).is_some(), "ready ids have words");
        id.ok().map(TrxId)
    }

    /// Hands out an id below `limit`, or none when they are used up. `views` gives the live views'
    /// bounds when it reclaims chunks (once in [`CHUNK_IDS`] calls); it returns `None` if
    /// they are not known at the moment.
    pub fn assign(
        &self,
        limit: TrxId,
        views: impl Fn() -> Option<Vec<ViewBounds>>,
    ) -> Option<TrxId> {
        loop {
            let id = self.assign_ready();
            if id.is_some() || !self.make_ready(limit, &views) {
                return id;
            }
        }
    }

    /// Makes ids ready up to the end of a chunk, or up to `limit`. False: all up to `limit` are.
    fn make_ready(&self, limit: TrxId, views: impl FnOnce() -> Option<Vec<ViewBounds>>) -> bool {
        let mut alloc = self.alloc.lock();
        let ready = self.ids.ready.load(Ordering::Relaxed);
        if ready >= limit.0 {
            return false;
        }
        // Another thread may have been here in between.
        if self.ids.next.load(Ordering::Relaxed) == ready {
            if ready.is_multiple_of(CHUNK_IDS) {
                self.reclaim(&mut alloc, views);
                self.create_chunk(&mut alloc, ready / CHUNK_IDS);
            }
            let end = (ready / CHUNK_IDS + 1) * CHUNK_IDS;
            assert!(end.min(limit.0) > ready, "more ids are ready");
            self.ids.ready.store(end.min(limit.0), Ordering::Release);
        }
        true
    }

    /// Commits `id`: gives it the next number, and makes it visible to every view from now on.
    /// `reserve`, which must not wait, reserves the place of the commit in the redo log: before any
    /// place that somebody who sees the commit can reserve.
    pub fn commit(&self, id: TrxId, reserve: impl FnOnce()) -> Csn {
        let word = self.word_of_active(id);
        let csn = {
            let _turn = self.commit.lock();
            let csn = self.ends.published.load(Ordering::Relaxed) + 1;
            debug_assert!(ACTIVE < csn && csn < ROLLED_BACK, "a commit's number is no state");
            reserve();
            end_word(word, id, csn);
            pause::reach(PausePoint::CommitStored);
            self.ends.published.store(csn, Ordering::SeqCst);
            Csn(csn)
        };
        self.raise_low();
        csn
    }

    /// Records that `id` rolled back; its entries must be restored by now.
    pub fn rolled_back(&self, id: TrxId) {
        end_word(self.word_of_active(id), id, ROLLED_BACK);
        self.raise_low();
    }

    /// What became of `id`, which must have been handed out.
    pub fn state(&self, id: TrxId) -> TrxState {
        match self.word(id) {
            None => TrxState::Ended,
            Some(ACTIVE) => TrxState::Active,
            Some(ROLLED_BACK) => TrxState::RolledBack,
            Some(csn) => TrxState::Committed(Csn(csn)),
        }
    }

    /// Whether `id` still runs, or new views do not see its commit yet: who took it for ended could
    /// lock what he does not find when he reads by a view. The answer "no" is final.
    pub fn is_active(&self, id: TrxId) -> bool {
        id.0 >= self.ends.low.load(Ordering::Acquire)
            && match self.word(id) {
                Some(ACTIVE) => true,
                Some(ROLLED_BACK) | None => false,
                Some(csn) => csn > self.ends.published.load(Ordering::SeqCst),
            }
    }

    /// Chunks in use, for tests and statistics.
    pub fn live_chunks(&self) -> usize {
        self.alloc.lock().live.len()
    }

    /// The word of an id that has not ended.
    fn word_of_active(&self, id: TrxId) -> &AtomicU64 {
        let chunk = self.find(id.0 / CHUNK_IDS).expect("the chunk of an active id is kept");
        &chunk.words[(id.0 % CHUNK_IDS) as usize]
    }

    /// Moves `low` over ids that have rolled back, or whose commits are published: a view must not
    /// see by `low` what is newer than its CSN. The thread that ends the id that `low` stands at
    /// finds it there: the word, or `published`, is stored before `low` is loaded here, `low` is
    /// stored before the next word and `published` are loaded, and all of these are sequentially
    /// consistent.
    fn raise_low(&self) {
        loop {
            let low = self.ends.low.load(Ordering::SeqCst);
            if low >= self.ids.next.load(Ordering::SeqCst) {
                return;
            }
            let next = match self.word(TrxId(low)) {
                Some(ACTIVE) => return,
                Some(ROLLED_BACK) => low + 1,
                // The thread that commits this one has still to publish it, and comes here then.
                Some(csn) if csn > self.ends.published.load(Ordering::SeqCst) => return,
                Some(_) => low + 1,
                // The whole chunk has ended and is gone.
                None => (low / CHUNK_IDS + 1) * CHUNK_IDS,
            };
            let _ = self.ends.low.compare_exchange(low, next, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The word of `id`; none if its chunk is gone.
    fn word(&self, id: TrxId) -> Option<u64> {
        let number = id.0 / CHUNK_IDS;
        let chunk = self.find(number)?;
        let word = chunk.words[(id.0 % CHUNK_IDS) as usize].load(Ordering::SeqCst);
        // Pairs with the release fence in `reclaim`: a word that was already wiped comes with a
        // changed tag.
        fence(Ordering::Acquire);
        (chunk.tag.load(Ordering::Relaxed) == number + 1).then_some(word)
    }

    fn chunk(&self, index: usize) -> &Chunk {
        &self.arena[index / ARENA_STEP].get().expect("an indexed chunk exists")[index % ARENA_STEP]
    }

    fn find(&self, number: u64) -> Option<&Chunk> {
        let chunk = self.chunk(self.directory.find(number)?);
        (chunk.tag.load(Ordering::Acquire) == number + 1).then_some(chunk)
    }

    fn create_chunk(&self, alloc: &mut Allocator, number: u64) -> &Chunk {
        let index = alloc.free.pop().unwrap_or_else(|| {
            let index = alloc.created;
            assert!(index < 1 << INDEX_BITS, "too many chunks of transaction states");
            self.arena[index / ARENA_STEP]
                .get_or_init(|| (0..ARENA_STEP).map(|_| Chunk::new()).collect());
            alloc.created += 1;
            index
        });
        let chunk = self.chunk(index);
        debug_assert_eq!(chunk.tag.load(Ordering::Relaxed), 0, "a chunk has one number");
        debug_assert!(chunk.words.iter().all(|word| word.load(Ordering::Relaxed) == ACTIVE));
        chunk.tag.store(number + 1, Ordering::Release);
        self.directory.insert(&mut alloc.occupancy, number, index);
        alloc.live.push(LiveChunk { number, index, ended: 0, newest: 0 });
        chunk
    }

    fn reclaim(&self, alloc: &mut Allocator, views: impl FnOnce() -> Option<Vec<ViewBounds>>) {
        // Views that begin later have at least this CSN.
        let published = self.ends.published.load(Ordering::SeqCst);
        let Some(views) = views() else { return };
        let mut at = 0;
        while at < alloc.live.len() {
            let live = &mut alloc.live[at];
            let chunk = self.chunk(live.index);
            while live.ended < CHUNK_IDS as usize {
                match chunk.words[live.ended].load(Ordering::SeqCst) {
                    ACTIVE => break,
                    ROLLED_BACK => {}
                    csn => live.newest = live.newest.max(csn),
                }
                live.ended += 1;
            }
            let first = live.number * CHUNK_IDS;
            let useless = live.ended == CHUNK_IDS as usize
                && live.newest <= published
                && views.iter().all(|view| first >= view.high.0 || live.newest <= view.csn.0);
            if useless {
                let live = alloc.live.swap_remove(at);
                self.free_chunk(&mut alloc.occupancy, &live);
                alloc.free.push(live.index);
            } else {
                at += 1;
            }
        }
    }

    fn free_chunk(&self, occupancy: &mut Occupancy, live: &LiveChunk) {
        self.directory.remove(occupancy, live.number);
        let chunk = self.chunk(live.index);
        assert_eq!(chunk.tag.load(Ordering::Relaxed), live.number + 1, "the chunk of this number");
        debug_assert!(
            (live.number + 1) * CHUNK_IDS <= self.ids.next.load(Ordering::Relaxed),
            "all ids of the chunk were handed out"
        );
        chunk.tag.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for word in &chunk.words {
            word.store(ACTIVE, Ordering::Relaxed);
        }
    }
}

/// Stores how `id` has ended. `low` is still to be raised.
fn end_word(word: &AtomicU64, id: TrxId, end: u64) {
    let before = word.swap(end, Ordering::SeqCst);
    assert_eq!(before, ACTIVE, "transaction {} ended twice", id.0);
}

#[cfg(test)]
mod tests;
