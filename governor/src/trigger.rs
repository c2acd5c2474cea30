//! Sleeping between two readings, and being woken when there is reason not to.
//!
//! Three things end a [`Waiter`]'s sleep before its time:
//!
//! * somebody calls its [`Bell`] (a new setting, the end);
//! * **pressure**: the kernel lets a process write a threshold into a pressure file and then `poll` it. Without privileges the
//!   window must be a multiple of two seconds (kernel documentation, `accounting/psi.rst`);
//! * **usage**: version 1 of the memory controller signals an `eventfd` as the usage crosses a number, in the very allocation that
//!   crosses it (`admin-guide/cgroup-v1/memory.rst`, section 9). The kernel takes some 10 ms to arm one (it waits for a grace
//!   period), so one is set beyond what polling is meant to handle, and seldom moved.
//!
//! In many containers neither file can be written: then arming is an error, and the caller goes on polling, which is
//! what it would have done anyway, only slower to notice.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Stall within the window after which the kernel wakes us.
const THRESHOLD_US: u32 = 40_000;
/// Window; the shortest that needs no privilege.
const WINDOW_US: u32 = 2_000_000;

/// Something of the kernel's that can be waited for.
#[derive(Debug)]
pub enum Trigger {
    /// Tasks stalled on memory. See the [module](self).
    Pressure(File),
    /// A cgroup's usage crossed a number of bytes, in either direction.
    Usage(Bell),
}

impl Trigger {
    /// Arms a trigger on `path` (a cgroup's `memory.pressure`, or `/proc/pressure/memory`).
    ///
    /// # Errors
    /// When the file is missing, can't be written, or the kernel refuses the threshold.
    pub fn pressure(path: &Path) -> io::Result<Trigger> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        // The kernel takes the whole line in one write, with its final NUL.
        file.write_all(format!("some {THRESHOLD_US} {WINDOW_US}\0").as_bytes())?;
        Ok(Trigger::Pressure(file))
    }

    /// Arms a trigger on the usage of the version 1 cgroup in `directory`. Dropping it disarms.
    ///
    /// # Errors
    /// When it is no such cgroup, or its `cgroup.event_control` can't be written.
    pub fn usage(directory: &Path, bytes: u64) -> io::Result<Trigger> {
        let bell = Bell::new()?;
        let usage = File::open(directory.join("memory.usage_in_bytes"))?;
        let mut control =
            OpenOptions::new().write(true).open(directory.join("cgroup.event_control"))?;
        let line = format!("{} {} {bytes}", bell.0.as_raw_fd(), usage.as_raw_fd());
        control.write_all(line.as_bytes())?;
        Ok(Trigger::Usage(bell))
    }

    fn poll_fd(&self) -> PollFd<'_> {
        match self {
            Trigger::Pressure(file) => PollFd::new(file, PollFlags::PRI),
            Trigger::Usage(bell) => PollFd::new(bell, PollFlags::IN),
        }
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

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
    triggers: Vec<Trigger>,
}

impl Waiter {
    /// A waiter for this bell, without a trigger yet.
    pub fn new(bell: Bell) -> Waiter {
        Waiter { bell, triggers: Vec::new() }
    }

    /// Adds a trigger. A usage trigger replaces the one there was.
    pub fn add(&mut self, trigger: Trigger) {
        if matches!(trigger, Trigger::Usage(_)) {
            self.triggers.retain(|trigger| !matches!(trigger, Trigger::Usage(_)));
        }
        self.triggers.push(trigger);
    }

    /// Sleeps at most for `timeout`. A trigger whose file went away, as it does with its cgroup, is forgotten.
    ///
    /// # Errors
    /// When the kernel refuses to wait at all: the caller must then sleep in some other way.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Woken> {
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(1 + self.triggers.len());
        fds.push(PollFd::new(&self.bell, PollFlags::IN));
        fds.extend(self.triggers.iter().map(Trigger::poll_fd));
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Woken::Timeout),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let gone: Vec<bool> = fds[1..]
            .iter()
            .map(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::NVAL))
            .collect();
        let triggered = fds[1..].iter().any(|fd| !fd.revents().is_empty());
        drop(fds);
        let mut gone = gone.into_iter();
        self.triggers.retain(|_| !gone.next().unwrap_or(false));
        for trigger in &self.triggers {
            if let Trigger::Usage(bell) = trigger {
                bell.hush();
            }
        }
        Ok(match (self.bell.hush(), triggered) {
            (true, _) => Woken::Called,
            (false, true) => Woken::Triggered,
            (false, false) => Woken::Timeout,
        })
    }
}

/// Asks the kernel to run the calling thread before others, by a nice value (-20 to 19). Without the privilege, nothing happens.
pub fn raise_priority(nice: i32) {
    // On Linux this is about a thread, and no id means the caller.
    let _ = rustix::process::setpriority_process(None, nice);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pressure_file_or_no_cgroup_is_an_error() {
        let missing = Trigger::pressure(Path::new("/nonexistent/memory.pressure"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
        let missing = Trigger::usage(Path::new("/nonexistent"), 4096);
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.usage_in_bytes"), "1").unwrap();
        let no_control = Trigger::usage(dir.path(), 4096);
        assert_eq!(no_control.unwrap_err().kind(), io::ErrorKind::NotFound);
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
        let Ok(trigger) = Trigger::pressure(Path::new("/proc/pressure/memory")) else {
            eprintln!("skipped: this kernel or container offers no pressure triggers");
            return;
        };
        let mut waiter = Waiter::new(Bell::new().unwrap());
        waiter.add(trigger);
        // Whether it fires depends on the machine; that it is not taken for gone does not.
        waiter.wait(Duration::from_millis(10)).unwrap();
        assert_eq!(waiter.triggers.len(), 1);
    }

    #[test]
    fn a_real_usage_trigger_fires_as_the_usage_crosses_it() {
        let root = crate::kernel::Root::default();
        let found = crate::cgroup::find(&root, Path::new("/proc/self"))
            .filter(|found| found.version == crate::cgroup::Version::V1);
        let Some(found) = found else {
            eprintln!("skipped: no memory cgroup of version 1");
            return;
        };
        let mut files = found.files(&root).remove(0);
        let goal = files.usage_bytes().unwrap() + (96 << 20);
        let Ok(trigger) = Trigger::usage(files.directory(), goal) else {
            eprintln!("skipped: the cgroup's event control can't be written");
            return;
        };
        let mut waiter = Waiter::new(Bell::new().unwrap());
        waiter.add(trigger);
        // Others in the group may give back meanwhile, so until it is crossed.
        let mut memory: Vec<Vec<u8>> = Vec::new();
        let mut most = 0;
        while most < goal + (16 << 20) && memory.len() < 512 {
            memory.push(vec![1; 1 << 20]);
            most = most.max(files.usage_bytes().unwrap());
        }
        if most < goal + (16 << 20) {
            eprintln!("skipped: the cgroup's usage could not be raised");
            return;
        }
        assert_eq!(waiter.wait(Duration::from_secs(60)).unwrap(), Woken::Triggered);
    }
}
