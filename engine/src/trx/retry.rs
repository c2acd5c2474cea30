//! Retries a rollback that failed with a disk error.
//!
//! Most such errors pass: a path to the disk fails and another takes over, a request times out, the
//! process runs out of descriptors for a moment. What a rollback has still to undo is locked. So it
//! is tried again, after a pause that grows.
//!
//! - The session whose transaction or statement it is tries for about half a second
//!   ([`TrxSystem::with_retries`]), without a latch. Then it leaves the whole transaction to the
//!   background.
//! - The background tries without an end. A request that meets a row which is still to be undone
//!   waits for its lock, as for any other, up to the lock wait timeout.
//! - An error that does not pass ([`RetryState::gives_up_on`]) blocks the rollback
//!   ([`super::blocked_rollback`]). That is a page that is wrong when it is read a second time, at
//!   once; or a missing file, or any error of a table's file, that has come for a minute with
//!   nothing undone in between.
//!
//! A rollback waits without an end for room on a full disk, and for the undo space, unless a page
//! of that is broken.

use std::thread;
use std::time::{Duration, Instant};

use super::system::TrxSystem;
use crate::error::{Error, Result};

/// The background's first pause. (It looks five times a second: see [`super::purge`].)
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The longest, in units of the first.
const PAUSE_MAX_UNITS: u32 = 50;
/// Failures in a row after which an error that might have passed counts as one that does not: the
/// pauses between them add up to a minute.
pub(super) const FAILURES_MAX: u32 = 12;
/// A session's first pause is this part of the background's.
const SESSION_PAUSE_DIVISOR: u32 = 20;
/// How often a session tries again: for 630 ms, in pauses of 10 to 320.
const SESSION_RETRIES: u32 = 6;

/// What a rollback has met since it last undid anything.
#[derive(Default)]
pub(super) struct RetryState {
    failures: u32,
    rests_until: Option<Instant>,
}

impl RetryState {
    /// An attempt has failed. One that came before its time, because somebody asked for it, does
    /// not count.
    pub fn failed(&mut self, now: Instant, unit: Duration) {
        if self.rests(now) {
            return;
        }
        let units = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX).min(PAUSE_MAX_UNITS);
        self.failures = self.failures.saturating_add(1);
        self.rests_until = Some(now + unit * units);
    }

    /// Something has been undone.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Whether it is not yet time for the next attempt.
    pub fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Whether this error, met again now, is one that does not pass.
    pub fn gives_up_on(&self, error: &Error) -> bool {
        match error {
            Error::Corrupt { .. } | Error::Format { .. } => true,
            Error::Io { .. } | Error::Storage(_) | Error::Lost { .. } | Error::Key { .. } => {
                self.failures >= FAILURES_MAX
            }
            _ => false,
        }
    }
}

impl TrxSystem {
    /// Runs `attempt` until it succeeds, or fails in a way that a short while does not mend. It
    /// calls what it is given when it has got on by a step. No latch may be held.
    pub(super) fn with_retries(
        &self,
        mut attempt: impl FnMut(&mut dyn FnMut()) -> Result<()>,
    ) -> Result<()> {
        let (mut failures, mut wrong) = (0, 0);
        loop {
            let mut has_got_on = false;
            let outcome = attempt(&mut || has_got_on = true);
            if has_got_on {
                (failures, wrong) = (0, 0);
            }
            match outcome {
                Err(Error::Io { .. } | Error::Storage(_) | Error::Lost { .. })
                    if failures < SESSION_RETRIES =>
                {
                    let pause = self.retry_pause() / SESSION_PAUSE_DIVISOR;
                    thread::sleep(pause * 2u32.pow(failures));
                    failures += 1;
                }
                // The bytes may have been spoilt on their way here: they are read again.
                Err(Error::Corrupt { .. }) if wrong == 0 => wrong += 1,
                outcome => return outcome,
            }
        }
    }
}
