//! Resizing on line: the limit moves at once, memory follows it in slices, and no query waits.
//!
//! # Growing
//! The limit is raised; frames come with the next misses, from extents given back earlier first.
//!
//! # Shrinking
//! The limit is lowered; what the started extents hold beyond it is the *debt*. The background
//! thread (or the caller of [`Resize::run_step`]) pays it off, a slice of some hundred
//! microseconds at a time, in waves. In each wave it
//! 1. *evicts* the coldest pages of the whole pool, in the replacement policy's order, wherever
//!    they are: as many as the wave's extents have frames, or as there are too many. The cleaner
//!    writes dirty pages beside it. An urgent shrink that must give back much also evicts clean
//!    pages far from the cold end. A shrink writes pages itself only if no cleaner runs, or if
//!    nothing left the pool for a while; a [throttled](crate::shrink_throttle) shrink never writes.
//! 2. *marks* as draining the extents to be given back, all of them: those with the most free
//!    frames (which are those that held cold pages). A frame of a draining extent, once free, stays
//!    free.
//! 3. *moves* the pages that are left in the first of them to free frames of open extents, and
//!    gives each extent back to the kernel as it empties.
//!
//! Where memory is in swap, what is there of clean pages goes before the coldest (`swapped`).
//!
//! Waves start small, so that the first extent goes back within a millisecond or so, and grow. So
//! what leaves the pool is what is coldest in it, not what happens to lie in the extents that go.
//! Every wave chooses the marked anew: a page that stays latched makes its extent the last choice.
//! A limit that falls again while a wave goes on changes nothing about that wave.
//!
//! # Contents
//! Here: what is asked for and reported, and what a slice does next. `coldest`: what leaves the
//! pool. `emptying`: which extents go, and how the pages in them are moved. `swapped`: what leaves
//! it because it is in swap.
//!
//! # Moving a page
//! Like cleaner and evictor, the mover only tries latches. It takes a free frame, copies the page
//! under a shared latch, lets go, and takes the exclusive latch if the page is unchanged
//! ([`PageWord::try_upgrade`](crate::latch::PageWord::try_upgrade)); under that, it only changes
//! the numbers: the word's, the policy's, the dirty queue's. A dirty page moves as it is, with the
//! recovery LSN it has; one being written out is passed over until that is done.
//!
//! # What anybody waits for
//! A writer waits for the copy of its page, a reader for the change of numbers. Besides, a mutex of
//! the policy, the free list or the dirty queue is held for a slice's share of work. Each of these
//! goes into [`ResizeStatus::longest_wait_us`] with the whole time it took, if anybody was there to
//! wait for it: threads asleep on the page's latch, or that found one of the mutexes taken
//! meanwhile. So does any wait for a free frame while there is debt.
//!
//! # Locking
//! The worker's mutex comes before the flusher's, hence before everything; the status' mutex comes
//! before the free list's, and nothing else is taken under it.

mod coldest;
mod emptying;
mod swapped;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::config::MIN_FRAMES;
use crate::eviction::Evictor;
use crate::flush::Flusher;
use crate::frames::EXTENT_BYTES;
use crate::pool_core::PoolCore;
use crate::shrink_throttle::ShrinkUrgency;
use crate::tier::Tier;
use swapped::Sweep;

/// What a resize is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResizeState {
    /// The pool has the size that was asked for (or will have, with the misses to come).
    #[default]
    Idle,
    /// The limit was raised a moment ago.
    Growing,
    /// Memory is being given back.
    Shrinking,
    /// Memory should be given back, and none could be for a while. The pool goes on trying.
    Stuck {
        /// What stands in the way.
        why: String,
    },
}

/// How the last resize goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeStatus {
    /// The size asked for, in whole extents.
    pub target_bytes: u64,
    /// What the pool may hold at present: the target, or what a shrink has still to give back
    /// besides.
    pub limit_bytes: u64,
    /// Memory held: that of all extents in use.
    pub resident_bytes: u64,
    /// What it is doing.
    pub state: ResizeState,
    /// The longest that any thread can have waited because of a resize, in microseconds, since the
    /// pool was made. 0: none had to.
    pub longest_wait_us: u64,
    /// Resizes since the pool was made.
    pub resizes: u64,
    /// Pages moved to other frames since the pool was made.
    pub pages_moved: u64,
    /// Pages dropped by resizes because they were in swap, since the pool was made.
    pub pages_dropped_from_swap: u64,
    /// When the last one began.
    pub started_at: Option<SystemTime>,
    /// How long the last one took, or has taken so far.
    pub duration: Duration,
}

/// Pages evicted at a time.
const SLICE_PAGES: usize = 64;

/// How long nothing may have come of a shrink before it is called stuck.
const STUCK: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Published {
    state: ResizeState,
    resizes: u64,
    started: Option<(SystemTime, Instant)>,
    duration: Duration,
}

/// See the head of this module.
pub(crate) struct Resize {
    core: Arc<PoolCore>,
    tier: Arc<Tier>,
    flusher: Arc<Flusher>,
    evictor: Arc<Evictor>,
    worker: Mutex<Worker>,
    published: Mutex<Published>,
    pages_moved: AtomicU64,
    pages_dropped_from_swap: AtomicU64,
}

impl Resize {
    pub(crate) fn new(
        core: Arc<PoolCore>,
        tier: Arc<Tier>,
        flusher: Arc<Flusher>,
        evictor: Arc<Evictor>,
    ) -> Resize {
        Resize {
            core,
            tier,
            flusher,
            evictor,
            worker: Mutex::default(),
            published: Mutex::default(),
            pages_moved: AtomicU64::new(0),
            pages_dropped_from_swap: AtomicU64::new(0),
        }
    }
}

#[derive(Default)]
struct Worker {
    /// The limit that all this is about.
    limit: Option<u32>,
    /// Whether the pool was within it, so that the next resize is another one.
    is_done: bool,
    /// The marked extents that are being emptied.
    wave: Vec<u32>,
    /// Where in the wave the next slice goes on.
    at: usize,
    /// Extents of the next wave.
    wave_len: usize,
    /// Pages evicted since the last wave, and whether no more could be.
    ahead: usize,
    starved: bool,
    /// Extents with pages that could not be moved, and whether the wave consists of such extents
    /// only.
    blocked: BTreeSet<u32>,
    last_resort: bool,
    /// Whether this pass over the wave has moved a page or given an extent back, and the pages that
    /// it passed over.
    progress: bool,
    passed_over: PassedOver,
    /// How many of the coldest pages to look at.
    depth: usize,
    /// Frames of pages that were clean when last seen, far from the cold end; the coldest is last.
    found: Vec<u32>,
    /// How many more pages the walk looks at that finds such pages; 0 if none is under way.
    far_left: usize,
    /// What is looked for in swap.
    sweep: Sweep,
    /// Whether the present slice has evicted a page or given memory back (a page that moves may
    /// move back again), and since when none has after one was blocked.
    worked: bool,
    blocked_since: Option<Instant>,
}

impl Worker {
    /// The pool has another limit. A shrink that is under way goes on if that is a lower one: a
    /// pool whose target falls twenty times a second would else never get beyond the search for
    /// pages that may leave.
    fn begin(&mut self, limit: u32) {
        let goes_on = !self.is_done && self.limit.is_some_and(|before| limit < before);
        if !goes_on {
            *self = Worker {
                wave_len: 1,
                depth: SLICE_PAGES,
                sweep: self.sweep.again(),
                ..Worker::default()
            };
        } else if !self.sweep.finds_any() {
            // Pages may have gone to swap since.
            self.sweep = self.sweep.again();
        }
        self.limit = Some(limit);
    }
}

/// Pages that a pass could not move.
#[derive(Clone, Copy, Default)]
struct PassedOver {
    in_use: u32,
    in_flight: u32,
}

impl PassedOver {
    fn why(self) -> String {
        match (self.in_use, self.in_flight) {
            (in_use, 0) => format!("{in_use} pages are being used"),
            (0, in_flight) => format!("{in_flight} pages are being written"),
            (in_use, in_flight) => {
                format!("{in_use} pages are being used, and {in_flight} written")
            }
        }
    }
}

/// What came of a slice.
enum Slice {
    /// The pool is within its limit.
    Done,
    /// There is more to do.
    More,
    /// There is, but not now.
    Blocked(String),
    /// There is, once the cleaner has written pages at its pace.
    Waiting(String),
}

impl Resize {
    /// Sets the size, rounded down to whole extents of 2 MiB, but at least one, and at most the
    /// address space reserved ([`PoolConfig::max_size_bytes`](crate::PoolConfig::max_size_bytes)).
    /// Returns at once. Growing, frames may be used from now on; shrinking, memory is given back in
    /// the background, or by [`Resize::run_step`]. A later call overrides the one under way;
    /// one with the same size changes its urgency, which is nothing to a pool without threads: time
    /// stands still there.
    pub(crate) fn set_size(&self, size_bytes: u64, urgency: ShrinkUrgency) {
        let frames = &self.core.frames;
        let extent = frames.per_extent();
        let least = (MIN_FRAMES as u32).next_multiple_of(extent);
        let asked = size_bytes / EXTENT_BYTES as u64 * extent as u64;
        let asked = asked.clamp(least as u64, frames.reserved() as u64) as u32;
        let mut published = self.published.lock();
        let is_throttled = urgency == ShrinkUrgency::Background && self.core.background.runs();
        let was_throttled = self.core.shrink_throttle.set(is_throttled);
        if asked == frames.limit() {
            drop(published);
            if was_throttled && !is_throttled {
                self.core.background.wake_resize();
                self.core.background.wake_cleaner();
            }
            return;
        }
        published.state = match asked < frames.limit() {
            true => ResizeState::Shrinking,
            false => ResizeState::Growing,
        };
        published.resizes += 1;
        published.started = Some((SystemTime::now(), Instant::now()));
        frames.set_limit(asked);
        drop(published);
        self.core.background.wake_resize();
        // There may be too many dirty pages now.
        self.core.background.wake_cleaner();
    }

    /// How the last [`Resize::set_size`] goes.
    pub(crate) fn status(&self) -> ResizeStatus {
        let published = self.published.lock();
        let bytes = |frames: u32| frames as u64 * self.core.page_size().bytes() as u64;
        let (limit, started) = (self.core.frames.limit(), self.core.frames.started());
        ResizeStatus {
            target_bytes: bytes(limit),
            limit_bytes: bytes(limit.max(started)),
            resident_bytes: self.core.resident_bytes(),
            state: published.state.clone(),
            longest_wait_us: self.core.resize_wait.longest_us(),
            resizes: published.resizes,
            pages_moved: self.pages_moved.load(Ordering::Relaxed),
            pages_dropped_from_swap: self.pages_dropped_from_swap.load(Ordering::Relaxed),
            started_at: published.started.map(|(at, _)| at),
            duration: match (&published.state, published.started) {
                (ResizeState::Idle, _) | (_, None) => published.duration,
                (_, Some((_, started))) => started.elapsed(),
            },
        }
    }

    /// A slice of the resize under way, of some hundred microseconds if it needs no I/O. True if
    /// there is more to do at once; false if all is done, or nothing can be done now
    /// ([`ResizeState::Stuck`]).
    pub(crate) fn run_step(&self) -> bool {
        let mut worker = self.worker.lock();
        worker.worked = false;
        let slice = self.slice(&mut worker);
        if self.core.shrink_throttle.ends_at(self.core.frames.debt()) {
            self.core.background.wake_cleaner();
        }
        let mut published = self.published.lock();
        if worker.limit != Some(self.core.frames.limit()) {
            // Overridden meanwhile.
            return true;
        }
        match slice {
            Slice::Done => {
                if published.state != ResizeState::Idle {
                    published.state = ResizeState::Idle;
                    published.duration =
                        published.started.map_or(Duration::ZERO, |(_, started)| started.elapsed());
                }
                false
            }
            Slice::More => {
                // Else it has only chosen, or moved to and fro, what it tries again.
                if worker.worked {
                    worker.blocked_since = None;
                    published.state = ResizeState::Shrinking;
                }
                true
            }
            Slice::Blocked(why) | Slice::Waiting(why) => {
                let since = *worker.blocked_since.get_or_insert_with(Instant::now);
                if !self.core.background.runs() || since.elapsed() >= STUCK {
                    published.state = ResizeState::Stuck { why };
                }
                false
            }
        }
    }

    /// For how long nothing has come of the resize, since it was blocked.
    pub(crate) fn blocked_for(&self) -> Duration {
        let blocked_since = self.worker.lock().blocked_since;
        blocked_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn slice(&self, worker: &mut Worker) -> Slice {
        let frames = &self.core.frames;
        let limit = frames.limit();
        if worker.limit != Some(limit) {
            self.tier.fit_replacement();
            worker.begin(limit);
        }
        if self.tier.release_slice() {
            return Slice::More;
        }
        if frames.debt() == 0 {
            worker.wave.clear();
            worker.found = Vec::new();
            (worker.far_left, worker.is_done) = (0, true);
            return Slice::Done;
        }
        self.sample_swap(worker);
        if !worker.wave.is_empty() {
            return self.drain_next(worker);
        }
        let wave_frames = worker.wave_len * frames.per_extent() as usize;
        if worker.ahead < wave_frames && self.excess() > 0 && !worker.starved {
            if self.sweep_swap(worker) {
                return Slice::More;
            }
            match self.evict_slice(worker) {
                // There may be free frames all the same.
                Slice::Blocked(_) => worker.starved = true,
                Slice::Waiting(why) => return Slice::Waiting(why),
                Slice::Done | Slice::More => {}
            }
            return Slice::More;
        }
        self.mark(worker);
        Slice::More
    }

    /// Does something under the mutexes of policy, free list or dirty queue, and notes how long it
    /// took if any thread found one of them taken meanwhile.
    fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let (began, waits) = (Instant::now(), self.mutex_waits());
        let result = work();
        if self.mutex_waits() != waits {
            self.core.resize_wait.note_since(began);
        }
        result
    }

    /// How often a thread found a mutex taken of those that a resize takes.
    fn mutex_waits(&self) -> u64 {
        self.core.replacement.waits() + self.core.frames.waits() + self.core.dirty.waits()
    }
}
