//! Packed files kept short, and quick to open: checkpoints of their maps, and segments emptied so
//! that they can be filled again.
//!
//! # How much room
//! Over all files together, the segments in use may take [`GOAL_WRITING`] times what the images in
//! them take while pages are being written, and [`GOAL_AT_REST`] times once nothing was written for
//! [`REST_AFTER`]. The more room, the fewer images are moved for each one written
//! (`docs/results/store-model.md`). Victims come from whichever file has the emptiest segment: a
//! table that is only read has none, and costs nothing.
//!
//! Once the files are at rest and their segments full enough, those with many idle segments are cut
//! shorter: what the last segment holds moves to an idle one before it. Then each file that was
//! changed gets a checkpoint.
//!
//! # Files that fail
//! A file whose checkpoint or cleaning failed is tried again when nothing else is due, and takes
//! the turn of no other. What a segment holds and can't be read costs that segment alone: the file
//! passes over it ([`Cleaned::stuck`](packed::Cleaned::stuck)).
//!
//! # Pace
//! After each step the thread rests as a scan does while queries wait for the disk, unless the
//! files take more than [`GOAL_PRESSING`] times the images: then it is to keep up with who writes.
//!
//! # Locking
//! flusher's mutex → `Upkeep::step` → those of a packed file. The mutex is held for one step. Who
//! closes a space takes it once after marking the space, so that no step writes to the file later.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_store::LogThrottle;
use tidepool_store::packed::{self, Usage, Victim};

use crate::error::{Error, Result};
use crate::pool_core::PoolCore;
use crate::space::Space;

/// What the segments in use may take, as a multiple of the images in them.
const GOAL_WRITING: f64 = 1.4;
const GOAL_AT_REST: f64 = 1.2;
const GOAL_PRESSING: f64 = 1.6;
/// Bytes beyond the goal that are left alone: segments that are being filled are never full.
const SLACK: u64 = 4 << 20;
/// A file is cut shorter if more than this part of it is idle, and more than [`SLACK`].
const IDLE_SHARE: u64 = 16;
/// Without a write for so long, the files are at rest.
const REST_AFTER: Duration = Duration::from_secs(5);
/// Files whose victims are compared in one step, those with the most room to gain.
const FILES_COMPARED: usize = 4;
/// The maps in memory may take this part of the pool.
const MAP_SHARE: u64 = 32;
/// Nodes of a map that stay in memory in any case.
const MAP_NODES_MIN: usize = 16;
const NODE_BYTES: u64 = 16 << 10;

/// See the head of this module.
pub(crate) struct Upkeep {
    core: Arc<PoolCore>,
    step: Mutex<State>,
    failures: LogThrottle,
    moved_bytes: AtomicU64,
    freed_bytes: AtomicU64,
    checkpoints: AtomicU64,
    /// Of the files of spaces that are closed.
    closed_read_bytes: AtomicU64,
    closed_written_bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    /// How many pages had been written when that changed last, and when that was.
    written: Option<(u64, Instant)>,
    /// All files have had a checkpoint since.
    is_settled: bool,
    /// Spaces whose files could not be cut shorter since.
    kept: BTreeSet<u32>,
    /// Spaces whose last checkpoint or cleaning failed.
    failed: BTreeSet<u32>,
}

/// What packed files take, over all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedUsage {
    /// Length of the files in bytes.
    pub file_bytes: u64,
    /// Bytes of the segments in use.
    pub occupied_bytes: u64,
    /// Bytes of the images in use.
    pub live_bytes: u64,
    /// Bytes that the maps take in memory.
    pub map_bytes: u64,
    /// Bytes of images that were moved, since the pool was made.
    pub moved_bytes: u64,
    /// Bytes of segments that were emptied, since the pool was made.
    pub freed_bytes: u64,
    /// Checkpoints of files, since the pool was made.
    pub checkpoints: u64,
    /// Bytes read from the files, since the pool was made, those of spaces that are closed
    /// included.
    pub read_bytes: u64,
    /// The same, of bytes written.
    pub written_bytes: u64,
}

/// A file that may have a segment to empty.
struct Candidate {
    space: Arc<Space>,
    usage: Usage,
}

impl Candidate {
    fn dead_bytes(&self) -> u64 {
        self.usage.occupied_bytes.saturating_sub(self.usage.live_bytes)
    }
}

impl Upkeep {
    pub(crate) fn new(core: Arc<PoolCore>) -> Upkeep {
        Upkeep {
            core,
            step: Mutex::default(),
            failures: LogThrottle::default(),
            moved_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
            closed_read_bytes: AtomicU64::new(0),
            closed_written_bytes: AtomicU64::new(0),
        }
    }

    /// What the packed files of the open spaces take.
    pub(crate) fn usage(&self) -> PackedUsage {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut sum = PackedUsage {
            moved_bytes: load(&self.moved_bytes),
            freed_bytes: load(&self.freed_bytes),
            checkpoints: load(&self.checkpoints),
            read_bytes: load(&self.closed_read_bytes),
            written_bytes: load(&self.closed_written_bytes),
            ..PackedUsage::default()
        };
        for space in self.core.kept_spaces() {
            let usage = space.file_usage();
            sum.file_bytes += usage.file_bytes;
            sum.occupied_bytes += usage.occupied_bytes;
            sum.live_bytes += usage.live_bytes;
            sum.map_bytes += usage.memory_bytes;
            sum.read_bytes += usage.read_bytes;
            sum.written_bytes += usage.written_bytes;
        }
        sum
    }

    /// Does one thing that is due: a checkpoint of a file, or a segment emptied. Returns how long
    /// to rest before the next; `None` if nothing is due.
    pub(crate) fn run_step(&self) -> Result<Option<Duration>> {
        let began = Instant::now();
        let mut state = self.step.lock();
        let done = self.run_locked(&mut state, began);
        drop(state);
        Ok(done?.map(|is_pressing| match is_pressing {
            true => Duration::ZERO,
            false => self.core.scan_throttle.rest_after(began.elapsed(), Instant::now()),
        }))
    }

    /// Waits until no step uses the space, which is marked as closed; and counts what went through
    /// its file.
    pub(crate) fn end_for(&self, space: &Space) {
        let _step = self.step.lock();
        let usage = space.file().usage();
        self.closed_read_bytes.fetch_add(usage.read_bytes, Ordering::Relaxed);
        self.closed_written_bytes.fetch_add(usage.written_bytes, Ordering::Relaxed);
    }

    /// Writes a checkpoint of each packed file that was changed since its last one: so an open need
    /// follow no run, and what is spoilt later in one costs its pages alone.
    ///
    /// # Errors
    /// Of the first file that can't be written; the others have their checkpoint.
    pub(crate) fn checkpoint_files(&self) -> Result<()> {
        let _step = self.step.lock();
        let mut outcome = Ok(());
        for space in self.core.kept_spaces() {
            let done = self.core.with_ballast(|| space.file().checkpoint());
            outcome = outcome.and(done.map_err(Error::of_file));
        }
        outcome
    }

    /// Reports what failed in the error log, now and then. The first error becomes the outcome.
    fn note_failure(&self, outcome: &mut Result<()>, error: packed::Error) {
        let error = Error::of_file(error);
        if let Some(unsaid) = self.failures.is_due(Instant::now()) {
            tracing::error!(%error, unsaid, "a data file could not be checkpointed or cleaned");
        }
        if outcome.is_ok() {
            *outcome = Err(error);
        }
    }

    /// Whether something was done, and then, whether the next is pressing. The error is the first,
    /// if nothing was done.
    fn run_locked(&self, state: &mut State, now: Instant) -> Result<Option<bool>> {
        let mut outcome = Ok(());
        let spaces = self.core.kept_spaces().into_iter();
        let mut files: Vec<Candidate> =
            spaces.map(|space| Candidate { usage: space.file_usage(), space }).collect();
        let sum = |bytes: fn(&Usage) -> u64| files.iter().map(|file| bytes(&file.usage)).sum();
        let (occupied, live): (u64, u64) =
            (sum(|usage| usage.occupied_bytes), sum(|usage| usage.live_bytes));
        self.trim_maps(&files, sum(|usage| usage.memory_bytes));
        let takes_more_than = |goal: f64| occupied as f64 > live as f64 * goal + SLACK as f64;
        let goal = match self.is_at_rest(state, now) {
            true => GOAL_AT_REST,
            false => GOAL_WRITING,
        };
        files.sort_by_key(|file| Reverse(file.dead_bytes()));
        state.failed.retain(|id| files.iter().any(|file| file.space.id() == *id));
        let has_failed = |file: &&Candidate| state.failed.contains(&file.space.id());
        let (failed, sound): (Vec<_>, Vec<_>) = files.iter().partition(has_failed);
        for among in [sound, failed] {
            if self.checkpoint_one(&among, state, &mut outcome) {
                return Ok(Some(false));
            }
            if takes_more_than(goal) && self.clean_best(&among, state, &mut outcome) {
                state.is_settled = false;
                return Ok(Some(takes_more_than(GOAL_PRESSING)));
            }
        }
        if goal == GOAL_AT_REST && !state.is_settled {
            if self.shorten_one(&files, state, &mut outcome) {
                return Ok(Some(false));
            }
            state.is_settled = true;
            for file in &files {
                if let Err(error) = file.space.file().checkpoint() {
                    self.note_failure(&mut outcome, error);
                }
            }
        }
        outcome.map(|()| None)
    }

    /// A checkpoint of the first file that wants one and can have it; false if none has.
    fn checkpoint_one(
        &self,
        files: &[&Candidate],
        state: &mut State,
        outcome: &mut Result<()>,
    ) -> bool {
        for Candidate { space, .. } in
            files.iter().filter(|file| file.space.file().wants_checkpoint())
        {
            match space.file().checkpoint() {
                Ok(()) => {
                    state.failed.remove(&space.id());
                    self.checkpoints.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Err(error) => {
                    state.failed.insert(space.id());
                    self.note_failure(outcome, error);
                }
            }
        }
        false
    }

    /// Whether no page was written for a while.
    fn is_at_rest(&self, state: &mut State, now: Instant) -> bool {
        let written = self.core.counters.pages_flushed.load(Ordering::Relaxed);
        match state.written {
            Some((before, since)) if before == written => now - since >= REST_AFTER,
            _ => {
                let failed = std::mem::take(&mut state.failed);
                *state = State { written: Some((written, now)), failed, ..State::default() };
                false
            }
        }
    }

    /// Empties the emptiest segment of the files that have most to gain, which come first; false if
    /// none has any that can be emptied.
    fn clean_best(
        &self,
        files: &[&Candidate],
        state: &mut State,
        outcome: &mut Result<()>,
    ) -> bool {
        // Only as many are asked for as are compared: there may be thousands of files.
        let mut victims =
            files.iter().filter_map(|file| Some((&file.space, file.space.file().victim()?)));
        loop {
            let mut compared: Vec<(&Arc<Space>, Victim)> =
                victims.by_ref().take(FILES_COMPARED).collect();
            if compared.is_empty() {
                return false;
            }
            compared.sort_by(|(_, a), (_, b)| a.share().total_cmp(&b.share()));
            for (space, victim) in compared {
                match space.file().clean(victim) {
                    Ok(cleaned) => {
                        state.failed.remove(&space.id());
                        self.moved_bytes.fetch_add(cleaned.moved_bytes, Ordering::Relaxed);
                        self.freed_bytes.fetch_add(cleaned.freed_bytes, Ordering::Relaxed);
                        return true;
                    }
                    Err(error) => {
                        state.failed.insert(space.id());
                        self.note_failure(outcome, error);
                    }
                }
            }
        }
    }

    /// Cuts one file shorter by a segment; false if none can be. Those that can't be are not tried
    /// again.
    fn shorten_one(
        &self,
        files: &[Candidate],
        state: &mut State,
        outcome: &mut Result<()>,
    ) -> bool {
        for Candidate { space, usage } in files {
            let idle = usage.file_bytes.saturating_sub(usage.occupied_bytes);
            let is_long = idle > SLACK && idle > usage.file_bytes / IDLE_SHARE;
            if is_long && !state.kept.contains(&space.id()) {
                match space.file().shorten() {
                    Ok(true) => return true,
                    Ok(false) => {}
                    Err(error) => self.note_failure(outcome, error),
                }
                state.kept.insert(space.id());
            }
        }
        false
    }

    /// Forgets parts of the maps if they take more than their part of the pool, in proportion.
    fn trim_maps(&self, files: &[Candidate], map_bytes: u64) {
        let pool_bytes = u64::from(self.core.frames.limit()) * self.core.page_size().bytes() as u64;
        let allowed = pool_bytes / MAP_SHARE;
        if map_bytes <= allowed {
            return;
        }
        for Candidate { space, usage } in files {
            let nodes = usage.memory_bytes / NODE_BYTES * allowed / map_bytes;
            space.file().trim_map((nodes as usize).max(MAP_NODES_MIN));
        }
    }
}
