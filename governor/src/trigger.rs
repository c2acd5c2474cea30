//! Sleeping between two readings, and being woken when there is reason not to.
//!
//! Two things end a [`Waiter`]'s sleep before its time: somebody rings its [`Bell`] (a new setting,
//! the end), or the kernel reports memory pressure. It lets a process write a threshold into a
//! pressure file and then `poll` it; without privileges the window must be a multiple of two
//! seconds (kernel documentation, `accounting/psi.rst`). In many containers the file can't be
//! written: then [`Trigger::open`] is an error, and the caller goes on polling, which is what it
//! would have done anyway, only slower to notice.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Stall within the window after which the kernel wakes us.
const THRESHOLD_US: u32 = 40_000;
/// Window; the shortest that needs no privilege.
const WINDOW_US: u32 = 2_000_000;

/// An armed trigger on one pressure file.
#[derive(Debug)]
pub struct Trigger {
    file: File,
}

impl Trigger {
    /// Arms a trigger on `path` (a cgroup's `memory.pressure`, or `/proc/pressure/memory`).
    ///
    /// # Errors
    /// When the file is missing, can't be written, or the kernel refuses the threshold.
    pub fn open(path: &Path) -> io::Result<Trigger> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        // The kernel takes the whole line in one write, with its final NUL.
        file.write_all(format!("some {THRESHOLD_US} {WINDOW_US}\0").as_bytes())?;
        Ok(Trigger { file })
    }
}

/// Wakes a [`Waiter`] from another thread. Clones ring the same bell.
#[derive(Debug, Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes the waiter, or keeps it from falling asleep.
    #[expect(clippy::host_endian_bytes, reason = "it goes to this machine's kernel")]
    pub fn ring(&self) {
        // It can only fail because it has been rung 2^64 times already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Silences it. Whether it had been rung.
    fn hush(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0; 8]).is_ok()
    }
}

/// Why a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The time was over.
    Timeout,
    /// The bell was rung.
    Called,
    /// The kernel has something to say.
    Triggered,
}

/// Sleeps until a time is over, a bell rings, or a trigger fires.
#[derive(Debug)]
pub struct Waiter {
    bell: Bell,
    trigger: Option<Trigger>,
}

impl Waiter {
    /// A waiter for this bell, without a trigger yet.
    pub fn new(bell: Bell) -> Waiter {
        Waiter { bell, trigger: None }
    }

    /// Waits for this trigger from now on, or for none, in place of the one before.
    pub fn set_trigger(&mut self, trigger: Option<Trigger>) {
        self.trigger = trigger;
    }

    /// Whether it waits for a trigger.
    pub fn has_trigger(&self) -> bool {
        self.trigger.is_some()
    }

    /// Sleeps at most for `timeout`. A trigger whose file went away, as it does with its cgroup, is
    /// forgotten.
    ///
    /// # Errors
    /// When the kernel refuses to wait at all: the caller must then sleep in some other way.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Woken> {
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(2);
        fds.push(PollFd::new(&*self.bell.0, PollFlags::IN));
        fds.extend(self.trigger.iter().map(|t| PollFd::new(&t.file, PollFlags::PRI)));
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Woken::Timeout),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let reported = fds.get(1).map_or(PollFlags::empty(), PollFd::revents);
        drop(fds);
        let triggered = !reported.is_empty();
        if reported.intersects(PollFlags::ERR | PollFlags::NVAL) {
            self.trigger = None;
        }
        Ok(match (self.bell.hush(), triggered) {
            (true, _) => Woken::Called,
            (false, true) => Woken::Triggered,
            (false, false) => Woken::Timeout,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pressure_file_is_an_error() {
        let missing = Trigger::open(Path::new("/nonexistent/memory.pressure"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_bell_rung_before_the_wait_or_during_it_wakes_once() {
        let bell = Bell::new().unwrap();
        let mut waiter = Waiter::new(bell.clone());
        assert_eq!(waiter.wait(Duration::ZERO).unwrap(), Woken::Timeout);
        bell.ring();
        bell.ring();
        assert_eq!(waiter.wait(Duration::from_secs(60)).unwrap(), Woken::Called);
        assert_eq!(waiter.wait(Duration::ZERO).unwrap(), Woken::Timeout);
        let thread = std::thread::spawn(move || waiter.wait(Duration::from_secs(60)).unwrap());
        bell.ring();
        assert_eq!(thread.join().unwrap(), Woken::Called);
    }

    #[test]
    fn a_real_pressure_trigger_times_out_when_nothing_stalls() {
        let Ok(trigger) = Trigger::open(Path::new("/proc/pressure/memory")) else {
            tidepool_skip::skip("this kernel or container offers no pressure triggers");
            return;
        };
        let mut waiter = Waiter::new(Bell::new().unwrap());
        waiter.set_trigger(Some(trigger));
        // Whether it fires depends on the machine; that it is not taken for gone does not.
        waiter.wait(Duration::from_millis(10)).unwrap();
        assert!(waiter.has_trigger());
    }
}
