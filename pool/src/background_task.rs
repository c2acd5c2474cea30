//! Panics in background work.
//!
//! A panic is a bug, and ends its thread. Of a background thread that is the worst that can happen:
//! others wait for what it would have done next, and can't see that it is gone. So a thread runs
//! its steps through [`StepRunner`], which logs a panic and lets the thread go on: what the step
//! held it gave back as it unwound, and what it did not do is still to be done. Where a panic
//! leaves more unknown than that, [`catch_panic`] makes an error of it, and the code around does
//! what it does about a failed disk.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How long a thread rests after a step that panicked: longer each time, from the first to the
/// second, so that a step that can't succeed neither takes a CPU nor fills the error log.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Runs `body`; `None` if it panicked, which the log then reports with `what`.
///
/// Whatever `body` changes must be right at any point at which it may panic, or be put right by the
/// caller.
pub fn catch_panic<R>(what: impl Display, body: impl FnOnce() -> R) -> Option<R> {
    // The panic hook reports what the panic said.
    catch_unwind(AssertUnwindSafe(body))
        .inspect_err(|_| tracing::error!("{what} panicked; please report this"))
        .ok()
}

/// Runs the steps of a thread, which outlives a panic in one of them.
#[derive(Debug)]
pub struct StepRunner {
    thread: &'static str,
    pause: Duration,
}

impl StepRunner {
    /// Of the thread of this name.
    pub fn new(thread: &'static str) -> StepRunner {
        StepRunner { thread, pause: PAUSE }
    }

    /// Runs a step.
    ///
    /// # Errors
    /// It panicked: how long to rest before the next one.
    pub fn run<R>(&mut self, step: impl FnOnce() -> R) -> Result<R, Duration> {
        match catch_panic(format_args!("a step of the thread {}", self.thread), step) {
            Some(result) => {
                self.pause = PAUSE;
                Ok(result)
            }
            None => {
                let longer = (2 * self.pause).min(PAUSE_MAX);
                Err(std::mem::replace(&mut self.pause, longer))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_until_a_step_succeeds() {
        let mut steps = StepRunner::new("test");
        let mut fails = || steps.run(|| panic!("on purpose")).map(|()| unreachable!());
        let rests: Vec<Duration> = (0..9).map_while(|_| fails().err()).collect();
        assert_eq!(rests[..3], [PAUSE, 2 * PAUSE, 4 * PAUSE]);
        assert_eq!(rests[7..], [PAUSE_MAX; 2]);
        assert_eq!(steps.run(|| 5), Ok(5));
        assert_eq!(steps.run(|| panic!("on purpose")).map(|()| 5), Err(PAUSE));
    }
}
