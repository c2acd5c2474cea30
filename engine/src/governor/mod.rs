//! The engine governs its own buffer pool: reads what the kernel says about memory, asks
//! [`tidepool_governor`] what size that allows, and sets the pool's target.
//!
//! # Contents
//! - here: the settings, one step (read, decide, act), what is reported about it.
//! - `budget`: what a budget for all of the engine leaves the pool.
//! - `returning`: what the pool holds beyond its need goes back.
//! - `thread`: how often that is done, and what wakes it earlier.
//!
//! # What is governed
//! | size asked for | guard | the pool has |
//! |---|---|---|
//! | 0 | – | what the memory allows, as far as it has use for it |
//! | a number | on | that number at most, and less while the memory doesn't allow it |
//! | a number | off | that number |
//!
//! and in all cases no more than a memory budget leaves it, if there is one. A governed pool that
//! is to [return](Policy) memory has no more than it needs, either.
//!
//! The pool commits memory only as misses need it, so a large limit costs an idle engine nothing.
//!
//! # Locking
//! `control` is held for a step: some tens of microseconds, in which no file but the kernel's is
//! read. Under it the pool's own mutexes are taken, and, with a memory budget, for a moment each
//! those of the log's buffers, of transactions' states and of the lock tables; never the other way
//! round. Of open tables, the pool keeps a sum, and a step looks at a bounded number of them.

mod budget;
mod log;
mod returning;
#[cfg(test)]
mod tests;
mod thread;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tidepool_governor::journal::Entry;
use tidepool_governor::kernel::Root;
use tidepool_governor::trigger::Bell;
use tidepool_governor::{Decision, Governor, Journal, Policy, PoolState, Reader, Signal, Signals};
use tidepool_pool::{EXTENT_BYTES, Pool, ResizeState, ShrinkUrgency};

use crate::error::{Error, Result};
use budget::Budget;
pub(crate) use budget::RestOfEngine;
use log::LogGate;
use returning::Returning;
use thread::Thread;

/// A governed pool is not made smaller than this, in bytes: some hundred threads with a few latched
/// pages each go on working in it. (A smaller number can be asked for.)
const FLOOR_BYTES: u64 = 16 << 20;
/// Size of a governed pool as long as nothing about the machine's memory can be read, in bytes.
const BLIND_SIZE_BYTES: u64 = 128 << 20;
/// Decisions that are remembered.
const JOURNAL_ENTRIES: usize = 1000;
/// How often it is asked whether the pool has use for more.
const APPETITE_EVERY: Duration = Duration::from_millis(500);

/// What the pool's size is to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeOptions {
    /// Size asked for, in bytes; 0 = governed.
    pub size_bytes: u64,
    /// Memory for all that the engine allocates, in bytes; 0 = there is no such budget.
    pub budget_bytes: u64,
    /// Whether a number is a ceiling only.
    pub memory_guard: bool,
    /// Whether a governed pool gives back what brings nothing.
    pub memory_policy: Policy,
    /// The least size that may be asked for, in bytes.
    pub size_min_bytes: u64,
    /// Where `/proc` and `/sys` are.
    pub system_root: PathBuf,
}

/// The governor's figures at one moment, in bytes where not said otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GovernorReport {
    /// Size asked for; 0 = governed.
    pub size_bytes: u64,
    /// Whether a number is a ceiling only.
    pub memory_guard: bool,
    /// Memory for all that the engine allocates; 0 = there is no such budget.
    pub budget_bytes: u64,
    /// What of it is not for the pool's pages.
    pub budget_rest_bytes: u64,
    /// The pool's target.
    pub target_bytes: u64,
    /// What the limit that binds still allowed at the last reading, if any could be read.
    pub room_bytes: Option<u64>,
    pub limit_bytes: Option<u64>,
    pub limit_place: String,
    /// What is left free below it.
    pub headroom_bytes: u64,
    /// Memory of the process that is in swap.
    pub own_swapped_bytes: Option<u64>,
    /// Memory of the process that is not.
    pub own_resident_bytes: Option<u64>,
    /// Decisions to shrink, ever.
    pub shrinks: u64,
    /// Decisions to grow, ever.
    pub grows: u64,
    /// Full readings of the signals, ever.
    pub readings: u64,
    /// Whether the pool was found to have use for more memory.
    pub wants_more: bool,
    /// How small the pool could be, by its miss-ratio curve, if that is known.
    pub needed_bytes: Option<u64>,
    /// The nice value of the threads that give memory back; none if there are none yet.
    pub thread_nice: Option<i32>,
    /// Why the pool has the size it has: the last decision's reason.
    pub why: String,
}

/// Sizes one pool. See the [module](self).
pub struct PoolGovernor {
    pool: Arc<Pool>,
    control: Mutex<Control>,
    bell: Bell,
    thread: Mutex<Option<Thread>>,
}

/// What a step works on.
struct Control {
    options: SizeOptions,
    budget: Budget,
    reader: Reader,
    governor: Governor,
    journal: Journal,
    log: LogGate,
    /// The pool's target, bytes.
    target_bytes: u64,
    /// The largest target, as the pool's address space has an end. Not known before there is a
    /// pool.
    size_max_bytes: u64,
    /// When the change that the pool is still at was decided.
    changing_since: Option<Duration>,
    appetite: Appetite,
    returning: Returning,
    signals: Signals,
    shrinks: u64,
    grows: u64,
    readings: u64,
}

/// Whether the pool has use for more, asked now and then.
#[derive(Default)]
struct Appetite {
    asked_at: Option<Duration>,
    wants_more: bool,
}

/// A governor that has taken its first reading, and has no pool yet.
pub(crate) struct InitialSizing {
    control: Control,
    reserve_bytes: u64,
}

impl InitialSizing {
    /// Reads the signals for the first time. `beside_pool_bytes`: what a budget is charged with
    /// before anybody can be asked. `size_max_bytes`: what a pool of such pages can have.
    pub(crate) fn read(
        options: SizeOptions,
        beside_pool_bytes: u64,
        size_max_bytes: u64,
    ) -> InitialSizing {
        let mut reader = Reader::new(Root::new(&options.system_root), None);
        let signals = reader.read(Duration::ZERO);
        let total = signals.machine_total_bytes.unwrap_or(0);
        let asked_bytes = match (options.size_bytes, options.budget_bytes) {
            (0, 0) => BLIND_SIZE_BYTES,
            (0, budget) => budget,
            (size, _) => size,
        };
        let mut control = Control {
            reader,
            governor: Governor::new(),
            journal: Journal::new(JOURNAL_ENTRIES),
            log: LogGate::default(),
            target_bytes: asked_bytes,
            size_max_bytes,
            changing_since: None,
            appetite: Appetite::default(),
            returning: Returning::default(),
            signals,
            shrinks: 0,
            grows: 0,
            readings: 1,
            budget: Budget::default(),
            options,
        };
        control.budget.charge(beside_pool_bytes, Duration::ZERO);
        control.target_bytes = asked_bytes.min(control.ceiling_bytes());
        control.begin();
        let most_bytes = asked_bytes.max(control.target_bytes).max(BLIND_SIZE_BYTES);
        let reserve_bytes = total.max(most_bytes);
        InitialSizing { control, reserve_bytes }
    }

    /// Size that the pool is to begin with, in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.control.target_bytes
    }

    /// How far the pool may ever grow, in bytes: all of the machine's memory, since limits can be
    /// raised.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// Goes on with the pool that was made, in a separate thread if `background`.
    ///
    /// # Errors
    /// When the process can't have another thread or file descriptor.
    pub(crate) fn govern(mut self, pool: Arc<Pool>, background: bool) -> Result<Arc<PoolGovernor>> {
        self.control.size_max_bytes = pool.size_max_bytes();
        let bell = Bell::new().map_err(|error| Error::Storage(format!("the governor: {error}")))?;
        let governor = Arc::new(PoolGovernor {
            pool,
            control: Mutex::new(self.control),
            bell,
            thread: Mutex::new(None),
        });
        if background {
            *governor.thread.lock() = Some(Thread::start(&governor)?);
        }
        Ok(governor)
    }
}

impl PoolGovernor {
    /// Reads the signals, decides, and sets the pool's target. `at` is on any clock that only moves
    /// forward. In an engine without background threads the caller does this.
    pub fn step(&self, at: Duration) {
        self.control.lock().step(&self.pool, at);
    }

    /// Changes the size asked for. Returns at once; the pool gets there in the background.
    pub(crate) fn set_size_bytes(&self, size_bytes: u64) {
        self.change(|options| options.size_bytes = size_bytes);
    }

    /// Changes the memory for all that the engine allocates; 0 = no such budget.
    pub(crate) fn set_budget_bytes(&self, budget_bytes: u64) {
        self.change(|options| options.budget_bytes = budget_bytes);
    }

    /// Registers the callback that reports memory beside the pool.
    pub(crate) fn set_rest_of_engine(&self, rest: RestOfEngine) {
        self.control.lock().budget.set_rest_of_engine(rest);
    }

    /// Changes whether a size asked for is a ceiling only.
    pub(crate) fn set_memory_guard(&self, on: bool) {
        self.change(|options| options.memory_guard = on);
    }

    /// Changes whether a governed pool gives back what brings nothing.
    pub(crate) fn set_memory_policy(&self, policy: Policy) {
        self.change(|options| options.memory_policy = policy);
    }

    fn change(&self, change: impl FnOnce(&mut SizeOptions)) {
        let mut control = self.control.lock();
        let was_governed = control.is_governed();
        change(&mut control.options);
        control.appetite = Appetite::default();
        if control.is_governed() && !was_governed {
            control.governor.resume();
        }
        drop(control);
        self.bell.ring();
    }

    /// The last decisions, oldest first.
    pub fn decisions(&self) -> Vec<Entry> {
        self.control.lock().journal.entries().cloned().collect()
    }

    /// The figures now.
    pub fn report(&self) -> GovernorReport {
        self.control.lock().report(&self.pool)
    }

    /// Ends the thread, and waits for it.
    pub(crate) fn stop(&self) {
        if let Some(thread) = self.thread.lock().take() {
            thread.stop(&self.bell);
        }
    }
}

impl Control {
    /// Whether the signals have a say.
    fn is_governed(&self) -> bool {
        self.options.size_bytes == 0 || self.options.memory_guard
    }

    /// What the user, and the pool's address space, allow at most.
    fn ceiling_bytes(&self) -> u64 {
        let asked_for = match self.options.size_bytes {
            0 => self.size_max_bytes,
            size => size.min(self.size_max_bytes),
        };
        asked_for.min(self.budgeted_bytes())
    }

    /// What the budget leaves the pool.
    fn budgeted_bytes(&self) -> u64 {
        match self.options.budget_bytes {
            0 => u64::MAX,
            budget => self.budget.leaves_of(budget).max(self.options.size_min_bytes),
        }
    }

    /// What the rules of this engine leave the pool: the signals have their say later.
    fn pool_state(&self, resident_bytes: u64) -> PoolState {
        let state = self.pool_state_without_return(resident_bytes);
        let returned = self.returning.ceiling_bytes().map_or(u64::MAX, whole_extents);
        let ceiling_bytes = state.ceiling_bytes.min(returned.max(state.floor_bytes));
        PoolState { ceiling_bytes, ..state }
    }

    /// The same, had the pool returned nothing.
    fn pool_state_without_return(&self, resident_bytes: u64) -> PoolState {
        // In whole extents, as targets are: a ceiling between two could never be reached, and
        // there would be a decision for it at every reading. (A number that is not governed stays
        // what it is: such a pool begins with that to the page.)
        let ceiling_bytes = whole_extents(self.ceiling_bytes());
        PoolState {
            resident_bytes,
            limit_bytes: self.target_bytes,
            floor_bytes: FLOOR_BYTES.min(ceiling_bytes).max(self.options.size_min_bytes),
            ceiling_bytes,
            wants_more: self.appetite.wants_more,
        }
    }

    /// The first decision, before there is a pool.
    fn begin(&mut self) {
        self.say_notices();
        if !self.is_governed() {
            return;
        }
        let state = self.pool_state(0);
        if let Some(decision) = self.governor.decide(&self.signals, &state) {
            self.note(Duration::ZERO, decision);
            self.journal.done(Duration::ZERO);
        }
    }

    fn step(&mut self, pool: &Pool, at: Duration) {
        self.signals = self.reader.read(at);
        self.readings += 1;
        self.say_notices();
        if self.options.budget_bytes != 0 {
            self.budget.look(pool, at);
        }
        if let Some(since) = self.changing_since
            && !is_resizing(pool)
        {
            self.changing_since = None;
            self.journal.done(at.saturating_sub(since));
        }
        self.ask_appetite(pool, at);
        self.return_surplus(pool, at);
        let decision = if self.is_governed() {
            let state = self.pool_state(pool.resident_bytes());
            self.governor.decide(&self.signals, &state)
        } else {
            let allowed = self.ceiling_bytes();
            (allowed != self.target_bytes).then(|| Decision {
                signal: Signal::Ceiling,
                from_bytes: self.target_bytes,
                to_bytes: allowed,
                reason: match allowed < self.options.size_bytes {
                    true => "more was asked for, but the pool's address space ends here".to_owned(),
                    false => "this size was asked for, and the memory guard is off".to_owned(),
                },
            })
        };
        if let Some(mut decision) = decision {
            let before = self.target_bytes;
            let is_budget = self.ceiling_bytes() == self.budgeted_bytes();
            let is_return = self.returning.ceiling_bytes().map(whole_extents)
                == Some(decision.to_bytes)
                && decision.to_bytes < whole_extents(self.ceiling_bytes());
            let haste = match decision.signal {
                Signal::Ceiling if is_return => {
                    decision.signal = Signal::Surplus;
                    decision.reason = self.returning.why().to_owned();
                    ShrinkUrgency::Background
                }
                Signal::Ceiling if is_budget => {
                    decision.signal = Signal::Budget;
                    decision.reason = self.budget.reason(self.options.budget_bytes);
                    // What the rest of the engine has taken is gone already.
                    ShrinkUrgency::Immediate
                }
                Signal::Ceiling | Signal::Floor => ShrinkUrgency::Background,
                _ => ShrinkUrgency::Immediate,
            };
            let signal = decision.signal;
            self.note(at, decision);
            if self.target_bytes != before {
                pool.set_size(self.target_bytes, haste);
                // The pool knows best what it can do.
                self.target_bytes = pool.resize_status().target_bytes;
                self.governor.took(at, signal, self.target_bytes);
                self.changing_since = Some(at);
            }
        }
        if self.changing_since.is_some() && self.is_short(pool) {
            // A shrink to the user's ceiling may take its time no longer.
            pool.set_size(self.target_bytes, ShrinkUrgency::Immediate);
        }
        self.log.flush(at);
    }

    /// Whether the budget, or the signals, if they have a say, leave less room than the pool holds.
    fn is_short(&self, pool: &Pool) -> bool {
        let resident_bytes = pool.resident_bytes();
        let state = PoolState { ceiling_bytes: u64::MAX, ..self.pool_state(resident_bytes) };
        self.budgeted_bytes() < resident_bytes
            || self.is_governed()
                && self
                    .governor
                    .target(&self.signals, &state)
                    .is_some_and(|room| room < resident_bytes)
    }

    /// Makes a decision the target, and writes it down, unless it comes to nothing in whole
    /// extents.
    fn note(&mut self, at: Duration, mut decision: Decision) {
        let first = decision.signal == Signal::Start;
        decision.to_bytes = whole_extents(decision.to_bytes);
        if decision.to_bytes == self.target_bytes && !first {
            return;
        }
        match decision.to_bytes.cmp(&self.target_bytes) {
            std::cmp::Ordering::Less if !first => self.shrinks += 1,
            std::cmp::Ordering::Greater if !first => self.grows += 1,
            _ => {}
        }
        self.target_bytes = decision.to_bytes;
        self.log.say(at, &decision);
        self.journal.note(SystemTime::now(), decision);
    }

    fn say_notices(&mut self) {
        for notice in self.reader.take_notices() {
            tracing::warn!("memory signals: {notice}");
        }
    }

    /// A number that was asked for is wanted. A governed pool is asked now and then, but not while
    /// memory is short: it could not grow anyhow, and the advisor may take its time.
    fn ask_appetite(&mut self, pool: &Pool, at: Duration) {
        let appetite = &mut self.appetite;
        if self.options.size_bytes != 0 {
            appetite.wants_more = true;
            return;
        }
        // A pool that returned memory may miss it from one moment to the next.
        let has_returned = self.returning.ceiling_bytes().is_some();
        let is_asked = |asked| at.saturating_sub(asked) < APPETITE_EVERY;
        if !has_returned && appetite.asked_at.is_some_and(is_asked) {
            return;
        }
        let state = self.pool_state_without_return(pool.resident_bytes());
        let target = self.governor.target(&self.signals, &state);
        if target.is_some_and(|target| target > self.target_bytes) {
            self.appetite = Appetite { asked_at: Some(at), wants_more: pool.wants_more() };
        }
    }

    /// Memory without use goes back, if that is the policy. A number that was asked for is wanted
    /// as it is.
    fn return_surplus(&mut self, pool: &Pool, at: Duration) {
        let returns =
            self.options.size_bytes == 0 && self.options.memory_policy.returns(&self.signals);
        let state = self.pool_state(pool.resident_bytes());
        match returns {
            true => self.returning.step(at, pool, &state),
            false => self.returning.forget(),
        }
    }

    fn report(&self, pool: &Pool) -> GovernorReport {
        let state = self.pool_state(pool.resident_bytes());
        let binding = self.governor.binding(&self.signals, &state);
        let room = binding.as_ref().map(|binding| &binding.room);
        let newest = self.journal.entries().next_back();
        GovernorReport {
            size_bytes: self.options.size_bytes,
            budget_bytes: self.options.budget_bytes,
            budget_rest_bytes: match self.options.budget_bytes {
                0 => 0,
                _ => self.budget.rest_bytes(),
            },
            memory_guard: self.options.memory_guard,
            target_bytes: self.target_bytes,
            room_bytes: room.map(|room| room.bytes()),
            limit_bytes: room.map(|room| room.limit_bytes),
            limit_place: room.map(|room| room.place.to_string()).unwrap_or_default(),
            headroom_bytes: binding.as_ref().map_or(0, |binding| binding.headroom_bytes),
            own_swapped_bytes: self.signals.own_swapped_bytes,
            own_resident_bytes: self.signals.own_resident_bytes,
            shrinks: self.shrinks,
            grows: self.grows,
            readings: self.readings,
            wants_more: self.appetite.wants_more,
            needed_bytes: pool.need().map(|need| need.size_bytes),
            thread_nice: pool.priority().nice(),
            why: newest.map(|entry| entry.decision.reason.clone()).unwrap_or_default(),
        }
    }
}

/// The size that the pool takes `bytes` for.
fn whole_extents(bytes: u64) -> u64 {
    let extent = EXTENT_BYTES as u64;
    (bytes / extent).max(1) * extent
}

/// Whether the pool has not reached its target yet.
fn is_resizing(pool: &Pool) -> bool {
    pool.resize_status().state != ResizeState::Idle
}

impl std::fmt::Debug for PoolGovernor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let control = self.control.lock();
        f.debug_struct("PoolGovernor")
            .field("options", &control.options)
            .field("target_bytes", &control.target_bytes)
            .finish_non_exhaustive()
    }
}
