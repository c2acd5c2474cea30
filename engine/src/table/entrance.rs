//! Whether transactions may enter a table.
//!
//! ```text
//! OPEN       they may
//! UNDECIDED  a thread wants the table without transactions, and looks whether one is inside, or
//!            waits a moment for those inside to leave: who comes waits
//! CLOSED     the table is dropped, or another takes its place
//! ```
//! Locking: `deciding` before the list of presences (`presence`). Who waits for it holds no lock.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::Table;
use super::presence::Presences;
use crate::error::{Error, Result};
use crate::pause::{self, PausePoint};

/// Between two looks whether those inside have left.
const LOOK_EVERY: Duration = Duration::from_micros(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    Open,
    Undecided,
    Closed,
}

pub(super) struct Entrance {
    state: AtomicU8,
    /// Held while the state is [`State::Undecided`].
    deciding: Mutex<()>,
}

impl Entrance {
    pub fn new() -> Self {
        Self { state: AtomicU8::new(State::Open as u8), deciding: Mutex::new(()) }
    }

    #[inline]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Open,
            1 => State::Undecided,
            _ => State::Closed,
        }
    }

    fn set(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Waits until who wants to close it knows whether it can.
    pub fn await_decision(&self) {
        drop(self.deciding.lock());
    }
}

/// An entrance whose state is [`State::Undecided`], unless it is closed before this is dropped.
pub(super) struct HeldEntrance<'t> {
    entrance: &'t Entrance,
    _deciding: MutexGuard<'t, ()>,
}

impl Drop for HeldEntrance<'_> {
    fn drop(&mut self) {
        if self.entrance.state() == State::Undecided {
            self.entrance.set(State::Open);
        }
    }
}

impl Table {
    /// [`Error::TableBusy`] if a transaction is inside.
    pub(super) fn check_unused(&self, presences: &Presences) -> Result<()> {
        match self.entrance.state() {
            State::Closed => Err(self.missing()),
            _ if presences.find(self) => Err(Error::TableBusy(self.name())),
            _ => Ok(()),
        }
    }

    /// The table without a transaction inside: who comes waits until the result is dropped. Those
    /// inside have `wait` to leave.
    ///
    /// [`Error::TableBusy`] if they don't. So two that wait for each other, one inside for a lock,
    /// the other one at the entrance, both go on after that.
    pub(super) fn hold_entrance(
        &self,
        presences: &Presences,
        wait: Duration,
    ) -> Result<HeldEntrance<'_>> {
        let _deciding = self.entrance.deciding.lock();
        if self.entrance.state() == State::Closed {
            return Err(self.missing());
        }
        self.entrance.set(State::Undecided);
        let held = HeldEntrance { entrance: &self.entrance, _deciding };
        pause::reach(PausePoint::EntranceUndecided);
        let since = Instant::now();
        while presences.find(self) {
            if since.elapsed() >= wait {
                return Err(Error::TableBusy(self.name()));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(held)
    }

    /// [`check_unused`](Self::check_unused), without making others wait; only if a transaction is
    /// inside, and there is time to wait for it, by holding the entrance.
    pub(super) fn await_unused(
        &self,
        presences: &Presences,
        wait: Duration,
    ) -> Result<Option<HeldEntrance<'_>>> {
        match self.check_unused(presences) {
            Err(Error::TableBusy(_)) if !wait.is_zero() => {
                self.hold_entrance(presences, wait).map(Some)
            }
            unused => unused.map(|()| None),
        }
    }

    /// Lets no transaction in any more, if none is inside. [`Table::reopen_entrance`] takes it
    /// back.
    pub(crate) fn close_entrance(&self, presences: &Presences) -> Result<()> {
        self.close_entrance_within(presences, Duration::ZERO)
    }

    /// The same; those inside have `wait` to leave, for as long as which who comes waits.
    pub(crate) fn close_entrance_within(
        &self,
        presences: &Presences,
        wait: Duration,
    ) -> Result<()> {
        // First without making others wait.
        let held = self.await_unused(presences, wait)?;
        pause::reach(PausePoint::EntranceFoundUnused);
        let held = match held {
            Some(held) => held,
            None => self.hold_entrance(presences, wait)?,
        };
        held.entrance.set(State::Closed);
        presences.forget(self);
        Ok(())
    }

    /// Takes back [`Table::close_entrance`].
    pub(crate) fn reopen_entrance(&self) {
        debug_assert_eq!(self.entrance.state(), State::Closed);
        self.entrance.set(State::Open);
    }

    /// [`Error::TableMissing`] if the entrance is closed. That it stays open is certain only for
    /// who has passed the gate.
    pub(super) fn check_there(&self) -> Result<()> {
        match self.entrance.state() {
            State::Closed => Err(self.missing()),
            State::Open | State::Undecided => Ok(()),
        }
    }

    pub(super) fn missing(&self) -> Error {
        Error::TableMissing(self.name())
    }
}
