//! Being woken when tasks stall on memory, instead of looking again and again.
//!
//! The kernel lets a process write a threshold into a pressure file and then `poll` it. Without privileges the window must be a
//! multiple of two seconds. In many containers the file can't be written at all: then [`Trigger::open`] is an error,
//! and the caller goes on polling, which is what it would have done anyway, only slower to notice.
//! (Kernel documentation, `accounting/psi.rst`.)

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

    /// Waits until the kernel reports a stall (`true`) or `timeout` is over (`false`).
    ///
    /// # Errors
    /// When the file went away, as it does with its cgroup.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut fds = [PollFd::new(&self.file, PollFlags::PRI)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
            Ok(_) if fds[0].revents().contains(PollFlags::ERR) => {
                Err(io::ErrorKind::NotFound.into())
            }
            Ok(_) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_pressure_file_is_an_error_or_never_fires() {
        let missing = Trigger::open(Path::new("/nonexistent/memory.pressure"));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_real_trigger_times_out_when_nothing_stalls() {
        let Ok(trigger) = Trigger::open(Path::new("/proc/pressure/memory")) else {
            eprintln!("skipped: this kernel or container offers no pressure triggers");
            return;
        };
        // Either answer is right on a busy machine; an error is not.
        trigger.wait(Duration::from_millis(10)).unwrap();
    }
}
