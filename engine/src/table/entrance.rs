//! Whether transactions may enter a table.
//!
//! ```text
//! OPEN       they may
//! UNDECIDED  a thread wants to close it, and looks whether one is inside: who comes waits
//! CLOSED     the table is dropped, or another takes its place
//! ```
//! Locking: `deciding` before the list of presences (`presence`). Who waits for it holds no lock.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

use super::Table;
use super::presence::Presences;
use crate::error::{Error, Result};
use crate::pause::{self, PausePoint};

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

impl Table {
    /// [`Error::TableBusy`] if a transaction is inside.
    pub(super) fn check_unused(&self, presences: &Presences) -> Result<()> {
        match self.entrance.state() {
            State::Closed => Err(self.missing()),
            _ if presences.find(self) => Err(Error::TableBusy(self.name())),
            _ => Ok(()),
        }
    }

    /// Lets no transaction in any more, if none is inside. [`Table::reopen_entrance`] takes it
    /// back.
    pub(crate) fn close_entrance(&self, presences: &Presences) -> Result<()> {
        // First without making others wait.
        self.check_unused(presences)?;
        pause::reach(PausePoint::EntranceFoundUnused);
        let _deciding = self.entrance.deciding.lock();
        if self.entrance.state() == State::Closed {
            return Err(self.missing());
        }
        self.entrance.set(State::Undecided);
        pause::reach(PausePoint::EntranceUndecided);
        if presences.find(self) {
            self.entrance.set(State::Open);
            return Err(Error::TableBusy(self.name()));
        }
        self.entrance.set(State::Closed);
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
