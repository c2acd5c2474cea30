//! One reading of everything the kernel says about memory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cgroup::{self, Hierarchy, Level};
use crate::kernel::{Root, field, field_kib, pressure_some_total_us};

/// What was measured at one moment. A source that could not be read is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signals {
    /// When, on any clock that only moves forward.
    pub at: Duration,
    /// The process's cgroup and each ancestor that says something.
    pub levels: Vec<Level>,
    /// The machine's memory, bytes.
    pub machine_total_bytes: Option<u64>,
    /// What the kernel thinks can be had without swapping, bytes.
    pub machine_available_bytes: Option<u64>,
    /// Bytes of the process that are in swap now.
    pub own_swapped_bytes: Option<u64>,
    /// Resident bytes of the process.
    pub own_resident_bytes: Option<u64>,
    /// Pages swapped in on the machine, ever.
    pub swapped_in_pages: Option<u64>,
    /// Pages swapped out on the machine, ever.
    pub swapped_out_pages: Option<u64>,
    /// Microseconds of memory stall in the process's own cgroup (version 2), ever.
    pub own_stall_us: Option<u64>,
    /// Microseconds of memory stall on the machine, ever.
    pub machine_stall_us: Option<u64>,
}

impl Signals {
    /// Bytes that the pool could still take before the tightest limit, the machine's included, and where that limit is.
    /// `None` when nothing could be read at all.
    pub fn room(&self) -> Option<Room> {
        let levels = self.levels.iter().filter_map(|level| {
            Some(Room {
                bytes: level.room_bytes()?,
                limit_bytes: level.limit_bytes?,
                place: Place::Cgroup(level.directory.clone()),
            })
        });
        let machine = self.machine_available_bytes.map(|bytes| Room {
            bytes,
            limit_bytes: self.machine_total_bytes.unwrap_or(u64::MAX).max(bytes),
            place: Place::Machine,
        });
        levels.chain(machine).min_by_key(|room| room.bytes)
    }
}

/// The room below one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Bytes that can still be used.
    pub bytes: u64,
    /// The limit itself, bytes.
    pub limit_bytes: u64,
    /// Whose limit.
    pub place: Place,
}

/// Whose limit is the tightest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The machine's memory.
    Machine,
    /// A cgroup's, by its directory.
    Cgroup(PathBuf),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Machine => f.write_str("the machine"),
            Place::Cgroup(directory) => write!(f, "cgroup {}", directory.display()),
        }
    }
}

/// Reads signals again and again, and says once of each source that it is missing.
#[derive(Debug)]
pub struct Reader {
    root: Root,
    proc_dir: PathBuf,
    hierarchy: Option<Hierarchy>,
    silent: Vec<&'static str>,
    notices: Vec<String>,
}

impl Reader {
    /// A reader for this process, or with `pid` for another one, below `root`.
    pub fn new(root: Root, pid: Option<u32>) -> Self {
        let proc_dir = match pid {
            Some(pid) => PathBuf::from(format!("/proc/{pid}")),
            None => PathBuf::from("/proc/self"),
        };
        let hierarchy = cgroup::find(&root, &proc_dir);
        Reader { root, proc_dir, hierarchy, silent: Vec::new(), notices: Vec::new() }
    }

    /// Sources that fell silent since the last call, a sentence each; for the log.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// One reading. Costs a dozen small files, some tens of microseconds.
    pub fn read(&mut self, at: Duration) -> Signals {
        let mut signals = Signals { at, ..Signals::default() };
        if let Some(hierarchy) = &self.hierarchy {
            let read =
                |directory: &PathBuf| cgroup::read_level(&self.root, hierarchy.version, directory);
            signals.levels = hierarchy.directories.iter().filter_map(read).collect();
            let own = hierarchy.directories.first().map(|d| d.join("memory.pressure"));
            signals.own_stall_us =
                own.and_then(|file| pressure_some_total_us(&self.root.text(file)?));
        }
        // A process may be moved to another group, and a group may vanish: look again when nothing answers.
        if signals.levels.is_empty() {
            self.hierarchy = cgroup::find(&self.root, &self.proc_dir);
        }
        let meminfo = self.text("/proc/meminfo");
        signals.machine_total_bytes =
            meminfo.as_deref().and_then(|text| field_kib(text, "MemTotal"));
        signals.machine_available_bytes = meminfo.as_deref().and_then(available_bytes);
        let status = self.text("status");
        signals.own_swapped_bytes = status.as_deref().and_then(|text| field_kib(text, "VmSwap"));
        signals.own_resident_bytes = status.as_deref().and_then(|text| field_kib(text, "VmRSS"));
        let vmstat = self.text("/proc/vmstat");
        signals.swapped_in_pages = vmstat.as_deref().and_then(|text| field(text, "pswpin"));
        signals.swapped_out_pages = vmstat.as_deref().and_then(|text| field(text, "pswpout"));
        let pressure = self.root.text("/proc/pressure/memory");
        signals.machine_stall_us = pressure.as_deref().and_then(pressure_some_total_us);
        signals
    }

    /// A file that ought to exist on every Linux; relative names are the process's.
    fn text(&mut self, name: &'static str) -> Option<String> {
        let path =
            if name.starts_with('/') { PathBuf::from(name) } else { self.proc_dir.join(name) };
        let text = self.root.text(&path);
        self.note(name, &path, text.is_none());
        text
    }

    fn note(&mut self, name: &'static str, path: &Path, missing: bool) {
        let known = self.silent.contains(&name);
        if missing && !known {
            self.silent.push(name);
            self.notices.push(format!("{} can't be read: going on without it", path.display()));
        } else if !missing && known {
            self.silent.retain(|&silent| silent != name);
            self.notices.push(format!("{} can be read again", path.display()));
        }
    }
}

/// `MemAvailable`, or on kernels and emulations without it what it is made of.
fn available_bytes(meminfo: &str) -> Option<u64> {
    field_kib(meminfo, "MemAvailable").or_else(|| {
        let free = field_kib(meminfo, "MemFree")?;
        Some(free + field_kib(meminfo, "Inactive(file)").unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_read() {
        let mut reader = Reader::new(Root::default(), None);
        let signals = reader.read(Duration::ZERO);
        assert!(signals.machine_total_bytes.unwrap() >= signals.machine_available_bytes.unwrap());
        assert!(signals.own_resident_bytes.unwrap() > 0);
        let room = signals.room().unwrap();
        assert!(room.bytes <= signals.machine_total_bytes.unwrap());
    }

    #[test]
    fn a_silent_source_is_said_once_and_its_return_too() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let mut reader = Reader::new(Root::new(dir.path()), None);
        assert_eq!(reader.read(Duration::ZERO).room(), None);
        assert_eq!(reader.take_notices().len(), 3);
        reader.read(Duration::ZERO);
        assert_eq!(reader.take_notices(), Vec::<String>::new());
        std::fs::write(
            dir.path().join("proc/meminfo"),
            "MemTotal: 100 kB\nMemFree: 40 kB\nInactive(file): 20 kB\n",
        )
        .unwrap();
        let signals = reader.read(Duration::ZERO);
        assert_eq!(signals.room().unwrap().bytes, 60 * 1024);
        assert_eq!(reader.take_notices(), ["/proc/meminfo can be read again"]);
    }

    #[test]
    fn the_tightest_level_wins() {
        let level = |name: &str, limit, usage| Level {
            directory: name.into(),
            limit_bytes: limit,
            usage_bytes: usage,
            file_cache_bytes: 0,
            limit_hits: 0,
        };
        let signals = Signals {
            levels: vec![
                level("/a/b", Some(1000), 400),
                level("/a", Some(1200), 900),
                level("/", None, 5000),
            ],
            machine_available_bytes: Some(5000),
            ..Signals::default()
        };
        let room = signals.room().unwrap();
        assert_eq!((room.bytes, room.place), (300, Place::Cgroup("/a".into())));
    }
}
