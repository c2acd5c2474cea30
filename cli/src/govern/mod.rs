//! `tidepool govern`: keeps the InnoDB pool of a running server at the right size.
//!
//! The decisions are crate `governor`'s: the tightest limit less everything but the pool, measured
//! several times a second; swap and memory stalls outrank that. This module carries them out on a
//! server that it reaches as any client does.
//!
//! # Small steps
//! A resize is a sequence of `SET GLOBAL innodb_buffer_pool_size`, each so small that it costs the
//! queries less than `--max-stall` of their work ([`stride`], [`probe`]), with a rest after each.
//! When memory runs out *now* (half of the headroom is gone), there is no rest: a stall is better
//! than swap, and much better than the kernel's killer. Steps are hardly larger then: a server
//! gives the memory of a step back at its end.
//!
//! # Ahead of the neighbours
//! A size takes effect after a reading, a statement, and the looks at what it cost: up to half a
//! second, where a pool that governs itself needs a few milliseconds. So the headroom is ahead of
//! the others' pace by that time, and up to twice as large where nothing moves (`TIMING`). Between
//! two readings the room is glanced at, which needs no server: when it goes, the next reading comes
//! at once. When others take it at a pace that leaves less than half of the headroom by the end of
//! a step ([`rush`]), no step down is small or rested from for a second: each has its fixed cost,
//! and in the time of a small one more is taken than it gives back. Nor is one rested from when
//! that half has gone. The governor hears what each step took, so that a large one is not gone back
//! on in the middle of the rush.
//!
//! # What is promised
//! Memory that the server has reserved for its other caches and its connections counts as used
//! before it is ([`reserve`]): it can be taken faster than a pool shrinks. Only the *urgency* of a
//! step follows what is used. Where the reservations alone exceed the limit, no size of the pool
//! helps, and a note says so before the first step.
//!
//! # What is safe when
//! * Every size that is ever set, each step's included, fits the memory there was at that moment,
//!   with headroom. So wherever this program ends (SIGTERM, SIGKILL, a power cut of its machine),
//!   the server is left with a size that was safe then. It only stops being *adjusted*.
//! * On SIGTERM or SIGINT the running step is finished, nothing is restored: the size that the
//!   server started with may be the very one that does not fit any more.
//! * Shrinking needs no further condition, and ends when the room that went is back ([`goal`]).
//!   Growing needs room that has lasted, a full pool that misses, and data left to cache; and the
//!   room is checked again before each step.
//! * Nothing is written to the server's option files: after a restart it has its own size, and is
//!   governed from there.

pub mod alone;
pub mod bounds;
pub mod goal;
pub mod lock;
pub mod log;
pub mod pool;
pub mod probe;
pub mod reserve;
pub mod rush;
pub mod shrink;
pub mod stride;

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tidepool_governor::kernel::Root;
use tidepool_governor::{Decision, Governor, PoolState, Reader, Signal, Signals, Timing};

use crate::bytes::{MIB, human, parse};
use crate::clock::after;
use crate::connect::{self, Target};
use crate::exit::{Error, Result};
use crate::facts::machine::{huge_bytes, limits_out_of_sight};
use crate::facts::process::{Running, chosen_process};
use crate::rules::room::is_in_huge_pages;
use crate::server::Server;
use alone::Alone;
use bounds::Bounds;
use goal::Goal;
use log::{Log, Step};
use pool::{InnodbPool, Set, State};
use probe::Probe;
use rush::Rush;
use stride::{Direction, Stride};

/// How often the signals are read while nothing happens.
const TICK: Duration = Duration::from_millis(100);
/// How often the room alone is looked at in between.
const GLANCE: Duration = Duration::from_millis(20);
/// Less than this is no news between two readings.
const GLANCE_MIN_BYTES: u64 = 4 * MIB;
/// How fast a pool can be resized from outside.
const TIMING: Timing = Timing {
    reaction: Duration::from_millis(500),
    pace: Duration::from_millis(200),
    lead: Duration::from_millis(600),
    // A step takes 0.1 s or more, and a process that fills fresh memory takes a GiB a second.
    unforeseen_bytes: 128 * MIB,
};
/// After the server refused a step.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// A server whose process runs is tried again for this time, and with this time between two tries.
const RECONNECT_FOR: Duration = Duration::from_secs(60);
const RECONNECT_EVERY: Duration = Duration::from_millis(500);
/// What goes on is said again after this time.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// While another program is resizing. Its steps are short, and memory may be too.
const BUSY_RETRY_AFTER: Duration = Duration::from_millis(200);

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Really set the size. Without this the decisions are only printed
    #[arg(long)]
    apply: bool,
    /// Never below this size [default: 64M, or the size now if that is smaller]
    #[arg(long, value_name = "SIZE", value_parser = parse)]
    min: Option<u64>,
    /// Never above this size [default: what fits]
    #[arg(long, value_name = "SIZE", value_parser = parse)]
    max: Option<u64>,
    /// Maximum query time that one step may cost, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    max_stall: u64,
    /// Append the decisions to this file, as JSON lines
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Process id of the server, where it can't be found through the connection
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Stop after SECONDS
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
}

/// Runs the command until it is stopped.
///
/// # Errors
/// See [`crate::exit`].
pub fn run(options: &Options, connection: &connect::Options) -> Result<ExitCode> {
    if let (Some(min), Some(max)) = (options.min, options.max)
        && min > max
    {
        return Err(Error::Usage(format!("--min {} is above --max {}", human(min), human(max))));
    }
    let named = options.pid.map(Running::named).transpose()?;
    let target = connection.target()?;
    let mut server = Server::connect(&target)?;
    let variables = server.variables()?;
    let process = chosen_process(&mut server, &variables, named)?.ok_or_else(|| {
        Error::Unsupported(
            "cannot find the server's process: run govern on the server's machine, or give --pid"
                .into(),
        )
    })?;
    let pid = process.pid;
    let kind = server.kind().clone();
    let mut pool = InnodbPool::new(server)?;
    if is_in_huge_pages(huge_bytes(&Root::default(), pid), pool.size()?) {
        // It would shrink and shrink, and room would never come of it.
        return Err(Error::Unsupported(
            "this server's pool is in huge pages: no other program can use what it gives back; start it with \
             large_pages=0"
                .into(),
        ));
    }
    let bounds = Bounds::new(options.min, options.max, &pool);
    bounds.check()?;
    if options.apply {
        pool.check_privilege()?;
    }
    let stop = stop_flag()?;
    let mut log = Log::open(options.log.as_deref())?;
    let mode = if options.apply { "" } else { " (dry run: nothing is set without --apply)" };
    log.note(&format!("governing {kind} at {}, process {pid}{mode}", target.place()));
    if kind.tidepool {
        log.note("governing the InnoDB pool only; the Tidepool pool manages itself");
    }
    for notice in bounds.notices(pool.size()?) {
        log.note(&notice);
    }
    let end = after(options.duration);
    let over = || stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
    let _alone = if options.apply { alone(process, &mut log, over) } else { None };
    let mut governing = Governing {
        process,
        reader: Reader::new(Root::default(), Some(pid)),
        governor: Governor::with_timing(TIMING),
        probe: options.apply.then(|| Probe::start(&target)).transpose()?,
        stride: Stride::new(pool.unit_bytes.max(MIB), Duration::from_millis(options.max_stall)),
        pool,
        bounds,
        log,
        goal: None,
        rush: Rush::default(),
        imagined: None,
        start: Instant::now(),
        retry_at: None,
        busy_said_at: None,
        known_size: None,
        change_said_at: None,
        room_bytes: None,
        reserved_bytes: 0,
        is_beyond_help: false,
        headroom_bytes: 0,
        resting: false,
    };
    while !over() {
        let pause = match governing.tick(options) {
            Err(Error::Gone(why)) if governing.runs() => {
                governing.reconnect(&target, &why, over)?
            }
            pause => pause?,
        };
        governing.pause(&stop, pause);
    }
    let size = human(governing.pool.size()?);
    governing.log.note(&format!("stopped; pool size left at {size}"));
    Ok(ExitCode::SUCCESS)
}

/// Waits until no other process governs this server.
fn alone(process: Running, log: &mut Log, over: impl Fn() -> bool) -> Option<UnixListener> {
    let mut said = None;
    while !over() {
        match alone::bind(process) {
            Alone::Ours(listener) => return Some(listener),
            Alone::Another(pid) => {
                if said.replace(pid) != Some(pid) {
                    log.note(&format!(
                        "process {pid} governs this server already: waiting until it ends"
                    ));
                }
            }
            Alone::Unknown(why) => {
                log.note(&format!("whether another process governs this server is unknown: {why}"));
                return None;
            }
        }
        sleep(RECONNECT_EVERY);
    }
    None
}

/// Set by SIGTERM and SIGINT. A second one ends the program at once, which is safe too.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let register = || {
            // As a shell reports an end by this signal.
            let code = 128 + signal;
            signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(&stop))?;
            signal_hook::flag::register(signal, Arc::clone(&stop))
        };
        register().map_err(|e| Error::Local(format!("signal {signal}: {e}")))?;
    }
    Ok(stop)
}

struct Governing {
    process: Running,
    reader: Reader,
    governor: Governor,
    pool: InnodbPool,
    bounds: Bounds,
    /// Absent in a dry run.
    probe: Option<Probe>,
    stride: Stride,
    log: Log,
    goal: Option<Goal>,
    rush: Rush,
    /// In a dry run: the size the pool would have.
    imagined: Option<u64>,
    start: Instant,
    retry_at: Option<Instant>,
    /// When it was said last that the step is another program's turn.
    busy_said_at: Option<Instant>,
    /// The size that the pool had after the last look or step.
    known_size: Option<u64>,
    /// When it was said last that somebody else has changed it.
    change_said_at: Option<Instant>,
    /// The room that the last reading found.
    room_bytes: Option<u64>,
    /// What the server had reserved then.
    reserved_bytes: u64,
    /// The reservations exceed the limit, which was said.
    is_beyond_help: bool,
    /// What it wanted to be kept free.
    headroom_bytes: u64,
    /// A step was taken after it.
    resting: bool,
}

impl Governing {
    /// Sleeps, but not while the room goes.
    fn pause(&mut self, stop: &AtomicBool, pause: Duration) {
        let end = Instant::now() + pause;
        while !stop.load(Ordering::Relaxed) && Instant::now() < end && !self.room_goes() {
            sleep(GLANCE.min(end.saturating_duration_since(Instant::now())));
        }
    }

    /// Whether enough room was taken since the last reading to need another.
    fn room_goes(&mut self) -> bool {
        let (Some(then), Some(now)) = (self.room_bytes, self.reader.glance()) else { return false };
        let goes = match self.goal.is_none() && !self.resting {
            true => now + (then / 4).max(GLANCE_MIN_BYTES) < then,
            // After a step the queries have their rest, unless the next is urgent.
            false => now < self.headroom_bytes / 2 && now + GLANCE_MIN_BYTES < then,
        };
        if !goes {
            self.rush.glance(Instant::now(), now.saturating_sub(self.reserved_bytes));
        }
        goes
    }

    /// Whether the server's process does.
    fn runs(&self) -> bool {
        self.process.runs(self.reader.root())
    }

    /// A connection may end while its server runs: somebody kills it, or the server ends idle ones.
    /// Connects again; returns how long to wait before the next look.
    fn reconnect(
        &mut self,
        target: &Target,
        why: &str,
        over: impl Fn() -> bool,
    ) -> Result<Duration> {
        self.log.note(&format!("connection lost: {why}; the server runs, so connecting again"));
        let deadline = Instant::now() + RECONNECT_FOR;
        while !over() {
            let again = Server::connect(target).and_then(|server| self.pool.go_on_with(server));
            match again {
                Ok(()) => {
                    self.log.note("connected again");
                    return Ok(Duration::ZERO);
                }
                // Trying again locks an account where that is counted.
                Err(error @ Error::Denied { .. }) => return Err(error),
                Err(_) if !self.runs() => return Err(Error::Gone("its process has ended".into())),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => sleep(RECONNECT_EVERY),
            }
        }
        Ok(Duration::ZERO)
    }

    /// Says that somebody else sets sizes too, at most every ten seconds.
    fn note_foreign_size(&mut self, size_bytes: u64) {
        let known = self.known_size.replace(size_bytes);
        let Some(known) = known.filter(|&known| known != size_bytes) else { return };
        if self.change_said_at.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
            self.change_said_at = Some(Instant::now());
            self.log.note(&format!(
                "another program or a person has changed the pool's size from {} to {}",
                human(known),
                human(size_bytes)
            ));
        }
    }

    /// Looks, decides, takes at most one step. Returns how long to wait before the next.
    fn tick(&mut self, options: &Options) -> Result<Duration> {
        let state = self.pool.state()?;
        self.note_foreign_size(state.size_bytes);
        let signals = self.reader.read(self.start.elapsed());
        self.room_bytes = signals.room().map(|room| room.bytes());
        self.resting = false;
        for notice in self.reader.take_notices() {
            self.log.note(&notice);
        }
        if signals.own_resident_bytes.is_none() || !self.runs() {
            return Err(Error::Gone("its process has ended".into()));
        }
        if let Some(why) = self.reader.out_of_sight() {
            // What fits the machine is no measure for a server that has less.
            return Err(Error::Unsupported(limits_out_of_sight(self.process.pid, why)));
        }
        let pool = self.as_pool_state(&state);
        let is_out_of_room = |governor: &Governor| {
            let used = governor.binding(&signals, &pool);
            used.is_some_and(|used| used.room.bytes() < used.headroom_bytes / 2)
        };
        let out_of_room = is_out_of_room(&self.governor);
        let signals = self.with_reserve(&signals, &pool);
        let decision = self.governor.decide(&signals, &pool);
        let binding = self.governor.binding(&signals, &pool);
        self.headroom_bytes = binding.as_ref().map_or(0, |binding| binding.headroom_bytes);
        if let Some(binding) = &binding {
            let (size, held) = (state.size_bytes, state.held_bytes);
            self.rush.observe(Instant::now(), size, held, &binding.room, binding.headroom_bytes);
        }
        if let Some(mut decision) = decision {
            if self.reserved_bytes >= MIB {
                decision.reason.push_str(&format!(
                    " (of what counts as used, {} is reserved by the server and not taken yet)",
                    human(self.reserved_bytes)
                ));
            }
            self.take(&decision, out_of_room, &pool, options);
        }
        if let Some(probe) = &self.probe {
            probe.attend(self.goal.is_some());
        }
        let Some(goal) = self.goal else { return Ok(TICK) };
        if !options.apply {
            self.imagined = Some(goal.bytes);
            self.governor.took(signals.at, goal.signal, goal.bytes);
            self.goal = None;
            return Ok(TICK);
        }
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return Ok(TICK);
        }
        self.step(goal, &state, &signals, &pool)
    }

    /// The signals with what the server has reserved counted as used. Says so where that is more
    /// than there is.
    fn with_reserve(&mut self, signals: &Signals, pool: &PoolState) -> Signals {
        let Some(room) = signals.room() else { return signals.clone() };
        let limit_bytes = room.limit_bytes;
        self.reserved_bytes = self.pool.reserve.bytes(limit_bytes);
        let others = room.used_bytes.saturating_sub(pool.resident_bytes);
        let why = reserve::beyond_help(
            (limit_bytes, &room.place.to_string()),
            (pool.floor_bytes, others),
            self.reserved_bytes,
            &self.pool.reserve.words(limit_bytes),
        );
        let was = std::mem::replace(&mut self.is_beyond_help, why.is_some());
        if let Some(why) = why.filter(|_| !was) {
            self.log.note(&why);
        }
        reserve::counted(signals, self.reserved_bytes)
    }

    fn as_pool_state(&self, state: &State) -> PoolState {
        let floor_bytes = self.bounds.floor_bytes(state.size_bytes);
        PoolState {
            resident_bytes: state.held_bytes,
            limit_bytes: self.imagined.unwrap_or(state.size_bytes),
            floor_bytes,
            ceiling_bytes: self.bounds.ceiling_bytes(floor_bytes),
            wants_more: state.wants_more,
        }
    }

    /// Makes a decision the goal, if there is anything to do about it.
    fn take(
        &mut self,
        decision: &Decision,
        out_of_room: bool,
        pool: &PoolState,
        options: &Options,
    ) {
        if decision.signal == Signal::Start && decision.to_bytes > decision.from_bytes {
            // A pool inside a server has its memory reserved from the start and may grow into it at
            // once. This one grows when it has shown that it misses.
            let fits = human(decision.to_bytes);
            self.log.note(&format!(
                "the pool has {}, {fits} would fit: {}",
                human(decision.from_bytes),
                decision.reason
            ));
            return;
        }
        let at_most = match decision.signal {
            Signal::RoomShrank | Signal::OwnSwap | Signal::Stall => {
                self.rush.at_most(Instant::now(), decision.from_bytes, out_of_room)
            }
            _ => None,
        };
        let to_bytes = self.bounds.size_for(decision, at_most, pool.floor_bytes);
        let reason = rush::reason(decision, at_most);
        let decision = Decision { to_bytes, reason, ..decision.clone() };
        if decision.to_bytes == decision.from_bytes
            || self.goal.is_some_and(|goal| goal.bytes == decision.to_bytes)
        {
            return;
        }
        let urgent = match decision.signal {
            Signal::OwnSwap | Signal::Stall => true,
            Signal::RoomShrank | Signal::Start => out_of_room || at_most.is_some(),
            Signal::RoomLasted | Signal::Ceiling | Signal::Floor | Signal::Budget => false,
        };
        // While shrinking, the target moves with every step; only what is news is logged.
        let news = self.goal.is_none_or(|goal| {
            urgent != goal.urgent || goal.bytes.abs_diff(decision.to_bytes) > goal.bytes / 20
        });
        if news {
            self.log.decision(&decision, options.apply);
        }
        // While others rush in, it isn't today's room that says how far.
        let while_short = decision.signal == Signal::RoomShrank && at_most.is_none();
        let Decision { signal, from_bytes, to_bytes: bytes, .. } = decision;
        self.goal = Some(Goal { bytes, signal, grows: bytes > from_bytes, urgent, while_short });
    }

    /// Takes a step towards the goal, and learns what it cost. Returns how long to rest from it.
    fn step(
        &mut self,
        goal: Goal,
        state: &State,
        signals: &Signals,
        pool: &PoolState,
    ) -> Result<Duration> {
        let direction =
            if goal.bytes < state.size_bytes { Direction::Shrink } else { Direction::Grow };
        let towards = goal.towards(state.size_bytes, self.governor.target(signals, pool));
        let next = match towards == state.size_bytes {
            true => towards,
            false => self.stride.next(state.size_bytes, towards, goal.urgent),
        };
        if next == state.size_bytes {
            self.goal = None;
            return Ok(TICK);
        }
        let begin = Instant::now();
        let patience = if goal.urgent { pool::PREPARE_URGENT } else { pool::PREPARE };
        let set = self.pool.set_size(next, patience);
        let took = begin.elapsed();
        for notice in self.pool.take_notices() {
            self.log.note(&notice);
        }
        let size = match set {
            Ok(Set::Done(size)) => size,
            Ok(Set::Busy(holder)) => {
                self.retry_at = Some(Instant::now() + BUSY_RETRY_AFTER);
                if self.busy_said_at.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
                    self.busy_said_at = Some(Instant::now());
                    let busy = lock::taken(holder);
                    self.log.note(&format!("{busy}; waiting"));
                }
                return Ok(TICK);
            }
            Err(Error::Refused { why, .. }) => {
                // It may have come part of the way.
                let size = self.pool.size()?;
                self.known_size = Some(size);
                self.governor.took(self.start.elapsed(), goal.signal, size);
                self.stride.failed(direction);
                self.retry_at = Some(Instant::now() + RETRY_AFTER);
                let asked = human(next);
                self.log.note(&format!(
                    "the server did not take {asked}: {why}; smaller steps from now on"
                ));
                return Ok(TICK);
            }
            Err(error) => return Err(error),
        };
        self.resting = true;
        self.busy_said_at = None;
        self.known_size = Some(size);
        self.governor.took(self.start.elapsed(), goal.signal, size);
        if !goal.urgent {
            self.pause(&AtomicBool::new(false), probe::AFTER);
        }
        let cost =
            self.probe.as_ref().map(|probe| probe.cost(begin, Instant::now())).unwrap_or_default();
        self.stride.learn(direction, size.abs_diff(state.size_bytes), cost.worst());
        self.log.step(&Step {
            from_bytes: state.size_bytes,
            to_bytes: size,
            took,
            cost,
            stride_bytes: self.stride.bytes(direction),
        });
        let there = match direction {
            Direction::Shrink => size <= goal.bytes,
            Direction::Grow => size >= goal.bytes,
        };
        if there || size == state.size_bytes {
            self.goal = None;
        }
        Ok(self.stride.rest(cost.worst(), goal.urgent))
    }
}
