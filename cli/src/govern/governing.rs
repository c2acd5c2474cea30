//! The state of one `govern`, and its look, decision and step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tidepool_governor::kernel::Root;
use tidepool_governor::{Decision, Governor, PoolState, Reader, Signal, Signals};

use super::bounds::Bounds;
use super::burst::{self, BurstDetector};
use super::log::{Log, Step};
use super::pool::{self, InnodbPool, Set, State};
use super::probe::{self, Probe};
use super::size_target::SizeTarget;
use super::step_size::{Direction, StepSize};
use super::{
    BUSY_RETRY_AFTER, GLANCE, GLANCE_MIN_BYTES, Options, RECONNECT_EVERY, RECONNECT_FOR,
    RETRY_AFTER, SAY_AGAIN, TICK, TIMING, lock, reserve,
};
use crate::bytes::{MIB, human};
use crate::connect::Target;
use crate::exit::{Error, Result};
use crate::facts::machine::limits_out_of_sight;
use crate::facts::process::Running;
use crate::server::Server;

/// A pool under government.
pub struct Governing {
    process: Running,
    reader: Reader,
    governor: Governor,
    pool: InnodbPool,
    bounds: Bounds,
    /// Absent in a dry run.
    probe: Option<Probe>,
    step_size: StepSize,
    log: Log,
    target: Option<SizeTarget>,
    burst: BurstDetector,
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
    /// The pool of this process, before the first look.
    pub fn new(
        process: Running,
        pool: InnodbPool,
        bounds: Bounds,
        log: Log,
        options: &Options,
    ) -> Governing {
        let unit_bytes = pool.unit_bytes.max(MIB);
        Governing {
            process,
            reader: Reader::new(Root::default(), Some(process.pid)),
            governor: Governor::with_timing(TIMING),
            probe: None,
            step_size: StepSize::new(unit_bytes, Duration::from_millis(options.max_stall)),
            pool,
            bounds,
            log,
            target: None,
            burst: BurstDetector::default(),
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
        }
    }

    /// Measures from now on what steps cost.
    ///
    /// # Errors
    /// If there is no second connection.
    pub fn measure(&mut self, target: &Target) -> Result<()> {
        self.probe = Some(Probe::start(target)?);
        Ok(())
    }

    /// Says where the pool is left.
    ///
    /// # Errors
    /// If the server goes away.
    pub fn stop(&mut self) -> Result<()> {
        let size = human(self.pool.size()?);
        self.log.note(&format!("stopped; pool size left at {size}"));
        Ok(())
    }

    /// Sleeps, but not while the room goes.
    pub fn pause(&mut self, stop: &AtomicBool, pause: Duration) {
        let end = Instant::now() + pause;
        while !stop.load(Ordering::Relaxed) && Instant::now() < end && !self.room_goes() {
            sleep(GLANCE.min(end.saturating_duration_since(Instant::now())));
        }
    }

    /// Whether enough room was taken since the last reading to need another.
    fn room_goes(&mut self) -> bool {
        let (Some(then), Some(now)) = (self.room_bytes, self.reader.glance()) else { return false };
        let goes = match self.target.is_none() && !self.resting {
            true => now + (then / 4).max(GLANCE_MIN_BYTES) < then,
            // After a step the queries have their rest, unless the next is urgent.
            false => now < self.headroom_bytes / 2 && now + GLANCE_MIN_BYTES < then,
        };
        if !goes {
            self.burst.glance(Instant::now(), now.saturating_sub(self.reserved_bytes));
        }
        goes
    }

    /// Whether the server's process runs.
    pub fn runs(&self) -> bool {
        self.process.runs(self.reader.root())
    }

    /// A connection may end while its server runs: somebody kills it, or the server ends idle ones.
    /// Connects again; returns how long to wait before the next look.
    ///
    /// # Errors
    /// [`Error::Gone`] if the process has ended, [`Error::Denied`], or the last reason after a
    /// minute.
    pub fn reconnect(
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
    ///
    /// # Errors
    /// If the server goes away, or its limits are out of sight.
    pub fn tick(&mut self, options: &Options) -> Result<Duration> {
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
            self.burst.observe(Instant::now(), size, held, &binding.room, binding.headroom_bytes);
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
            probe.attend(self.target.is_some());
        }
        let Some(target) = self.target else { return Ok(TICK) };
        if !options.apply {
            self.imagined = Some(target.bytes);
            self.governor.took(signals.at, target.signal, target.bytes);
            self.target = None;
            return Ok(TICK);
        }
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return Ok(TICK);
        }
        self.step(target, &state, &signals, &pool)
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
            self.bounds.has_min(),
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

    /// Makes a decision the target, if there is anything to do about it.
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
            let is_wish = options.min.is_some() && decision.to_bytes <= pool.floor_bytes;
            self.log.note(&at_start(decision, is_wish));
            return;
        }
        let at_most = match decision.signal {
            Signal::RoomShrank | Signal::OwnSwap | Signal::Stall => {
                self.burst.at_most(Instant::now(), decision.from_bytes, out_of_room)
            }
            _ => None,
        };
        let to_bytes = self.bounds.size_for(decision, at_most, pool.floor_bytes);
        let reason = burst::reason(decision, at_most);
        let decision = Decision { to_bytes, reason, ..decision.clone() };
        if decision.to_bytes == decision.from_bytes
            || self.target.is_some_and(|target| target.bytes == decision.to_bytes)
        {
            return;
        }
        let urgent = match decision.signal {
            Signal::OwnSwap | Signal::Stall => true,
            Signal::RoomShrank | Signal::Start => out_of_room || at_most.is_some(),
            Signal::RoomLasted
            | Signal::Ceiling
            | Signal::Floor
            | Signal::Budget
            | Signal::Surplus => false,
        };
        // While shrinking, the target moves with every step; only what is news is logged.
        let news = self.target.is_none_or(|target| {
            urgent != target.urgent || target.bytes.abs_diff(decision.to_bytes) > target.bytes / 20
        });
        if news {
            self.log.decision(&decision, options.apply);
        }
        // While a burst goes on, it isn't today's room that says how far.
        let while_short = decision.signal == Signal::RoomShrank && at_most.is_none();
        let Decision { signal, from_bytes, to_bytes: bytes, .. } = decision;
        self.target =
            Some(SizeTarget { bytes, signal, grows: bytes > from_bytes, urgent, while_short });
    }

    /// Takes a step towards the target, and learns what it cost. Returns how long to rest from it.
    fn step(
        &mut self,
        target: SizeTarget,
        state: &State,
        signals: &Signals,
        pool: &PoolState,
    ) -> Result<Duration> {
        let direction =
            if target.bytes < state.size_bytes { Direction::Shrink } else { Direction::Grow };
        let towards = target.towards(state.size_bytes, self.governor.target(signals, pool));
        let next = match towards == state.size_bytes {
            true => towards,
            false => self.step_size.next(state.size_bytes, towards, target.urgent),
        };
        if next == state.size_bytes {
            self.target = None;
            return Ok(TICK);
        }
        let begin = Instant::now();
        let patience = if target.urgent { pool::PREPARE_URGENT } else { pool::PREPARE };
        let set = self.pool.set_size(next, patience);
        let took = begin.elapsed();
        for notice in self.pool.take_notices() {
            self.log.note(&notice);
        }
        let size = match set {
            Ok(Set::Done(size)) => size,
            Ok(Set::Busy(holder)) => {
                self.note_busy(holder);
                return Ok(TICK);
            }
            Err(Error::Refused { why, .. }) => {
                self.note_refusal(target, direction, next, &why)?;
                return Ok(TICK);
            }
            Err(error) => return Err(error),
        };
        self.resting = true;
        self.busy_said_at = None;
        self.known_size = Some(size);
        self.governor.took(self.start.elapsed(), target.signal, size);
        if !target.urgent {
            self.pause(&AtomicBool::new(false), probe::AFTER);
        }
        let cost =
            self.probe.as_ref().map(|probe| probe.cost(begin, Instant::now())).unwrap_or_default();
        self.step_size.learn(direction, size.abs_diff(state.size_bytes), cost.worst());
        self.log.step(&Step {
            from_bytes: state.size_bytes,
            to_bytes: size,
            took,
            cost,
            stride_bytes: self.step_size.bytes(direction),
        });
        let there = match direction {
            Direction::Shrink => size <= target.bytes,
            Direction::Grow => size >= target.bytes,
        };
        if there || size == state.size_bytes {
            self.target = None;
        }
        Ok(self.step_size.rest(cost.worst(), target.urgent))
    }

    /// A step has to wait for another connection's.
    fn note_busy(&mut self, holder: Option<u64>) {
        self.retry_at = Some(Instant::now() + BUSY_RETRY_AFTER);
        if self.busy_said_at.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
            self.busy_said_at = Some(Instant::now());
            let busy = lock::taken(holder);
            self.log.note(&format!("{busy}; waiting"));
        }
    }

    /// The server has not taken a step to `asked_bytes`.
    fn note_refusal(
        &mut self,
        target: SizeTarget,
        direction: Direction,
        asked_bytes: u64,
        why: &str,
    ) -> Result<()> {
        // It may have come part of the way.
        let size = self.pool.size()?;
        self.known_size = Some(size);
        self.governor.took(self.start.elapsed(), target.signal, size);
        self.step_size.failed(direction);
        self.retry_at = Some(Instant::now() + RETRY_AFTER);
        let asked = human(asked_bytes);
        self.log
            .note(&format!("the server did not take {asked}: {why}; smaller steps from now on"));
        Ok(())
    }
}

/// What is said of a pool that could be larger at the start. `is_wish`: the size is `--min`,
/// whether it fits or not.
fn at_start(decision: &Decision, is_wish: bool) -> String {
    let (from, to) = (human(decision.from_bytes), human(decision.to_bytes));
    let size = match is_wish {
        true => format!("--min asks for {to}"),
        false => format!("{to} would fit"),
    };
    format!("the pool has {from}, {size}: {}", decision.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::GIB;

    #[test]
    fn what_the_user_asks_for_is_not_said_to_fit() {
        let decision = Decision {
            signal: Signal::Start,
            from_bytes: GIB,
            to_bytes: 30 * GIB,
            reason: "no less than 30720 MiB is allowed".into(),
        };
        let fits = at_start(&decision, false);
        assert!(fits.starts_with("the pool has 1 GiB, 30 GiB would fit: no less"), "{fits}");
        let wish = at_start(&decision, true);
        assert!(wish.contains("--min asks for 30 GiB") && !wish.contains("fit"), "{wish}");
    }
}
