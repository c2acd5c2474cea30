//! A memory cgroup for a test, version 1 or 2, below this process's own. Needs root.

use std::fs;
use std::path::{Path, PathBuf};

use tidepool_governor::cgroup::{Version, find};
use tidepool_governor::kernel::Root;

/// Removed when dropped, after the server in it has ended.
pub struct Cgroup {
    directory: PathBuf,
    version: Version,
}

impl Cgroup {
    /// A group without a limit. `None`, and a message that the test is skipped, where this user
    /// can't make one.
    pub fn new(name: &str) -> Option<Cgroup> {
        let group = Cgroup::make(name);
        if group.is_none() {
            tidepool_skip::skip("no memory cgroup can be made by this user");
        }
        group
    }

    fn make(name: &str) -> Option<Cgroup> {
        let found = find(&Root::default(), Path::new("/proc/self")).ok()??;
        let directory = found.directories.first()?.join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&directory).ok()?;
        Some(Cgroup { directory, version: found.version })
    }

    /// Starts a process in the group: all that it ever takes is charged there. Version 1 only,
    /// where a thread may be in a separate group and its children start there; elsewhere `None`,
    /// and a message that the test is skipped.
    pub fn start<T>(&self, start: impl FnOnce() -> T) -> Option<T> {
        if self.version != Version::V1 {
            tidepool_skip::skip("no process can be started in a cgroup of version 2 from here");
            return None;
        }
        let tasks = self.directory.join("tasks");
        let home = self.directory.parent().expect("it has a parent").join("tasks");
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        fs::write(tasks, &thread).expect("a thread can be moved");
        let started = start();
        fs::write(home, &thread).expect("a thread can be moved back");
        Some(started)
    }

    pub fn limit(&self, bytes: u64) {
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        fs::write(self.directory.join(file), bytes.to_string()).expect("a limit can be set");
    }

    pub fn usage(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        fs::read_to_string(self.directory.join(file)).unwrap().trim().parse().unwrap()
    }

    /// Its directory, as the governor prints it.
    pub fn path(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A killed process leaves its group a moment after its parent has seen it die.
        for _ in 0..200 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("{} could not be removed", self.directory.display());
    }
}
