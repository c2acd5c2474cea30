//! One reading of everything the kernel says about memory.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::cgroup::{self, Finder, Hierarchy, Level, LevelFiles};
use crate::kernel::{Root, Source, field, field_kib, pressure_some_total_us};

/// What was measured at one moment. A source that could not be read is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signals {
    /// When, on any clock that only moves forward.
    pub at: Duration,
    /// The process's cgroup and each ancestor that says something.
    pub levels: Vec<Level>,
    /// The machine's memory, bytes.
    pub machine_total_bytes: Option<u64>,
    /// What the kernel thinks can be had without swapping, and half of what ZFS can give back,
    /// bytes. `None` too where the process is [out of sight](Reader::out_of_sight): what the
    /// machine has is not what such a process may take.
    pub machine_available_bytes: Option<u64>,
    /// Bytes of the process that are in swap now.
    pub own_swapped_bytes: Option<u64>,
    /// Resident bytes of the process.
    pub own_resident_bytes: Option<u64>,
    /// Pages swapped in on the machine, ever.
    pub swapped_in_pages: Option<u64>,
    /// Pages swapped out on the machine, ever.
    pub swapped_out_pages: Option<u64>,
    /// How long tasks have waited for memory: those of the process's own cgroup (version 2), or if
    /// that has no figure, the machine's.
    pub stall: Option<Stall>,
    /// What processes may be promised, where the kernel counts that strictly.
    pub commit: Option<Commit>,
}

/// The time that the tasks of one place have waited for memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stall {
    /// Whose. Totals of two places have nothing to do with each other: a process that is moved to
    /// another cgroup has not waited for the difference.
    pub place: Place,
    /// Microseconds in which at least one task waited, ever.
    pub total_us: u64,
    /// What a cgroup's tasks wanted back.
    pub refaults: Option<Refaults>,
}

/// Pages that the kernel took from the tasks of a cgroup and that they wanted back, ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refaults {
    /// Their own memory, which was in swap. Linux reports it since 5.9.
    pub anon_pages: u64,
    /// Pages of files.
    pub file_pages: u64,
}

/// Strict accounting (`vm.overcommit_memory` = 2): private memory counts from when it may be
/// written, used or not, and the kernel grants none beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// `CommitLimit`, bytes.
    pub limit_bytes: u64,
    /// `Committed_AS`, bytes.
    pub used_bytes: u64,
}

impl Signals {
    /// The limit that binds, the machine's own included: where the least can be taken and its share
    /// still stays free. `None` when nothing could be read at all.
    pub fn room(&self) -> Option<Room> {
        self.rooms().min_by_key(|room| i128::from(room.bytes()) - i128::from(room.share_bytes()))
    }

    /// The room below each limit.
    pub(crate) fn rooms(&self) -> impl Iterator<Item = Room> {
        let levels = self.levels.iter().filter_map(|level| {
            Some(Room {
                limit_bytes: level.limit_bytes?,
                used_bytes: level.unreclaimable_bytes(),
                place: Place::Cgroup(level.directory.clone()),
            })
        });
        let machine = self.machine_available_bytes.map(|available| {
            let limit_bytes = self.machine_total_bytes.unwrap_or(u64::MAX).max(available);
            Room { limit_bytes, used_bytes: limit_bytes - available, place: Place::Machine }
        });
        let commit = self.commit.map(|Commit { limit_bytes, used_bytes }| Room {
            limit_bytes,
            used_bytes,
            place: Place::Commit,
        });
        levels.chain(machine).chain(commit)
    }
}

/// The limit over this is left free.
pub(crate) const HEADROOM_SHARE: u64 = 20;
/// Headroom is never below this, bytes.
pub(crate) const HEADROOM_MIN_BYTES: u64 = 24 << 20;
/// The share never asks for more than this, bytes.
pub(crate) const HEADROOM_MAX_BYTES: u64 = 1024 << 20;

/// The room below one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    pub limit_bytes: u64,
    /// What is used below it and can't just be dropped, bytes. More than the limit if that was
    /// lowered under it.
    pub used_bytes: u64,
    /// Whose limit.
    pub place: Place,
}

impl Room {
    /// What can still be used, bytes.
    pub fn bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }

    /// [The share of the limit](share_bytes) that stays free, bytes.
    pub fn share_bytes(&self) -> u64 {
        share_bytes(self.limit_bytes)
    }
}

/// What stays free below a limit where nothing asks for more, bytes.
pub fn share_bytes(limit_bytes: u64) -> u64 {
    (limit_bytes / HEADROOM_SHARE).clamp(HEADROOM_MIN_BYTES, HEADROOM_MAX_BYTES)
}

/// Whose limit is the tightest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The machine's memory.
    Machine,
    /// A cgroup's, by its directory.
    Cgroup(PathBuf),
    /// What the machine's processes may be promised.
    Commit,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Machine => f.write_str("the machine"),
            Place::Cgroup(directory) => write!(f, "cgroup {}", directory.display()),
            Place::Commit => f.write_str("the commit limit (vm.overcommit_memory is 2)"),
        }
    }
}

/// How memory is accounted for, and the number for "strictly".
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";
const STRICT: u64 = 2;

/// ZFS's cache of files, which is none to the kernel: it counts as used.
const ARC: &str = "/proc/spl/kstat/zfs/arcstats";

/// How often the reader looks whether the process was moved to another cgroup.
const FIND_AGAIN: Duration = Duration::from_secs(5);

/// Reads signals again and again, and says once of each source that it is missing.
#[derive(Debug)]
pub struct Reader {
    root: Root,
    proc_dir: PathBuf,
    finder: Finder,
    hierarchy: Option<Hierarchy>,
    /// Why the limits may not be the process's.
    doubt: Option<String>,
    levels: Vec<LevelFiles>,
    found_at: Duration,
    /// Why another process's limits can't be seen.
    out_of_sight: Option<String>,
    meminfo: Source,
    status: Source,
    vmstat: Source,
    pressure: Source,
    /// Where there is ZFS.
    arc: Option<Source>,
    /// Half of what its cache could give back at the last reading, bytes.
    arc_bytes: u64,
    /// The mode of accounting, if it is the strict one in which this process began. A process that
    /// began in another has memory that is never counted, and so has nothing to give back to that
    /// limit.
    overcommit: Option<Source>,
    /// Where the last reading found the least room, and that reading's room and usage there.
    tightest: Option<Tightest>,
    silent: Vec<&'static str>,
    notices: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Tightest {
    glance: Glance,
    room_bytes: u64,
    usage_bytes: u64,
}

/// The number that the room follows from.
#[derive(Debug, Clone, Copy)]
enum Glance {
    /// The usage of `levels[_]`.
    Level(usize),
    Available,
    Commit,
}

impl Reader {
    /// A reader for this process, or with `pid` for another one, below `root`.
    pub fn new(root: Root, pid: Option<u32>) -> Self {
        let proc_dir = match pid {
            Some(pid) => PathBuf::from(format!("/proc/{pid}")),
            None => PathBuf::from(cgroup::OWN),
        };
        let mut reader = Reader {
            meminfo: Source::new(&root, "/proc/meminfo"),
            status: Source::new(&root, proc_dir.join("status")),
            vmstat: Source::new(&root, "/proc/vmstat"),
            pressure: Source::new(&root, "/proc/pressure/memory"),
            arc: Some(Source::new(&root, ARC)).filter(|_| root.path(ARC).exists()),
            arc_bytes: 0,
            // How much of another process's memory is counted is unknown here.
            overcommit: Some(Source::new(&root, OVERCOMMIT))
                .filter(|_| pid.is_none() && root.number(OVERCOMMIT) == Some(STRICT)),
            root,
            proc_dir,
            finder: Finder::default(),
            hierarchy: None,
            doubt: None,
            levels: Vec::new(),
            found_at: Duration::ZERO,
            out_of_sight: None,
            tightest: None,
            silent: Vec::new(),
            notices: Vec::new(),
        };
        reader.find_levels(Duration::ZERO);
        reader
    }

    /// The memory controller's directories of the process, as far as they are known.
    pub fn hierarchy(&self) -> Option<&Hierarchy> {
        self.hierarchy.as_ref()
    }

    /// Why the limits above the other process can't be seen: its cgroup is not below what is
    /// mounted here. Readings then know no room at all.
    pub fn out_of_sight(&self) -> Option<&str> {
        self.out_of_sight.as_deref()
    }

    /// Where the files are looked for.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// A process may be moved to another group, and a group may vanish. As long as that can't be
    /// looked up, what is known holds: to take a container for the whole machine would be the end
    /// of the process.
    fn find_levels(&mut self, at: Duration) {
        self.found_at = at;
        let found = match self.finder.find(&self.root, &self.proc_dir) {
            Ok(found) => {
                self.out_of_sight = None;
                found
            }
            Err(why) if why.kind() == io::ErrorKind::Unsupported => {
                let why = why.to_string();
                if self.out_of_sight.as_ref() != Some(&why) {
                    let limits = format!("limits of {} can't be seen", self.proc_dir.display());
                    self.notices.push(format!("{limits}: {why}"));
                    self.out_of_sight = Some(why);
                }
                // The group it was in before says nothing of where it is now.
                None
            }
            Err(_) => return,
        };
        if self.doubt.as_deref() != self.finder.doubt() {
            self.doubt = self.finder.doubt().map(str::to_owned);
            self.notices.extend(self.doubt.clone());
        }
        if found != self.hierarchy {
            self.levels = found.iter().flat_map(|h| h.files(&self.root)).collect();
            self.hierarchy = found;
            self.tightest = None;
        }
    }

    /// Sources that fell silent since the last call, a sentence each; for the log.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// One reading: a dozen small files that are open already, some 30 µs.
    pub fn read(&mut self, at: Duration) -> Signals {
        let mut signals = Signals { at, ..Signals::default() };
        if at.saturating_sub(self.found_at) >= FIND_AGAIN {
            self.find_levels(at);
        }
        let mut indexes = Vec::with_capacity(self.levels.len());
        for (index, files) in self.levels.iter_mut().enumerate() {
            if let Some(level) = files.read() {
                indexes.push(index);
                signals.levels.push(level);
            }
        }
        signals.stall = self.levels.first_mut().and_then(|own| {
            Some(Stall {
                place: Place::Cgroup(own.directory().to_owned()),
                total_us: own.stall_us()?,
                refaults: own.refaults(),
            })
        });
        // Files that were there give nothing: the group is gone, or the process is in another one.
        if signals.levels.is_empty() && !self.levels.is_empty() {
            self.find_levels(at);
        }
        let counts_commits =
            self.overcommit.as_mut().is_some_and(|mode| mode.number() == Some(STRICT));
        let in_sight = self.out_of_sight.is_none();
        self.arc_bytes = self.arc.as_mut().and_then(Source::text).and_then(arc_bytes).unwrap_or(0);
        let arc_bytes = self.arc_bytes;
        let mut read = |source: &mut Source, name, then: &mut dyn FnMut(&str)| {
            let text = source.text();
            let missing = text.is_none();
            text.into_iter().for_each(then);
            note(&mut self.silent, &mut self.notices, name, missing);
        };
        read(&mut self.meminfo, "/proc/meminfo", &mut |text| {
            signals.machine_total_bytes = field_kib(text, "MemTotal");
            let available = available_bytes(text).filter(|_| in_sight);
            signals.machine_available_bytes =
                available.map(|bytes| bytes.saturating_add(arc_bytes));
            signals.commit = commit(text).filter(|_| counts_commits);
        });
        read(&mut self.status, "the process's status", &mut |text| {
            signals.own_swapped_bytes = field_kib(text, "VmSwap");
            signals.own_resident_bytes = field_kib(text, "VmRSS");
        });
        read(&mut self.vmstat, "/proc/vmstat", &mut |text| {
            signals.swapped_in_pages = field(text, "pswpin");
            signals.swapped_out_pages = field(text, "pswpout");
        });
        signals.stall = signals.stall.take().or_else(|| {
            // Many kernels are built without it: that is no news.
            let total_us = pressure_some_total_us(self.pressure.text()?)?;
            Some(Stall { place: Place::Machine, total_us, refaults: None })
        });
        self.tightest = signals.room().and_then(|room| {
            let (glance, usage_bytes) = match &room.place {
                Place::Machine => (Glance::Available, 0),
                Place::Commit => (Glance::Commit, 0),
                Place::Cgroup(directory) => {
                    let is_here = |level: &Level| level.directory == *directory;
                    let at = signals.levels.iter().position(is_here)?;
                    (Glance::Level(indexes[at]), signals.levels[at].usage_bytes)
                }
            };
            Some(Tightest { glance, room_bytes: room.bytes(), usage_bytes })
        });
        signals
    }

    /// The room where the last reading found the least of it, were nothing but the usage changed
    /// since: a look at one number, for between two readings. `None` when there was no reading, or
    /// it has no such figure.
    pub fn glance(&mut self) -> Option<u64> {
        let tightest = self.tightest?;
        match tightest.glance {
            Glance::Level(level) => {
                let usage = self.levels[level].usage_bytes()?;
                Some((tightest.room_bytes + tightest.usage_bytes).saturating_sub(usage))
            }
            Glance::Available => {
                Some(available_bytes(self.meminfo.text()?)?.saturating_add(self.arc_bytes))
            }
            Glance::Commit => {
                let Commit { limit_bytes, used_bytes } = commit(self.meminfo.text()?)?;
                Some(limit_bytes.saturating_sub(used_bytes))
            }
        }
    }
}

/// Notes that a file which every Linux has can't be read, or can be again.
fn note(
    silent: &mut Vec<&'static str>,
    notices: &mut Vec<String>,
    name: &'static str,
    missing: bool,
) {
    let known = silent.contains(&name);
    if missing && !known {
        silent.push(name);
        notices.push(format!("{name} can't be read: going on without it"));
    } else if !missing && known {
        silent.retain(|&silent| silent != name);
        notices.push(format!("{name} can be read again"));
    }
}

/// `MemAvailable`, or on kernels and emulations without it what it is made of.
fn available_bytes(meminfo: &str) -> Option<u64> {
    field_kib(meminfo, "MemAvailable").or_else(|| {
        let free = field_kib(meminfo, "MemFree")?;
        Some(free + field_kib(meminfo, "Inactive(file)").unwrap_or(0))
    })
}

/// Half of what ZFS's cache can give back: as long as memory is short it shrinks, to its least
/// size, but not in a moment.
fn arc_bytes(arcstats: &str) -> Option<u64> {
    // Name, type, value.
    let of = |name: &str| {
        let mut words = arcstats.lines().map(str::split_ascii_whitespace);
        words.find_map(|mut words| {
            (words.next()? == name).then(|| words.nth(1)?.parse::<u64>().ok())?
        })
    };
    let above_least = of("size")?.saturating_sub(of("c_min")?);
    let lists = ["mru", "mfu"]
        .into_iter()
        .flat_map(|list| ["data", "metadata"].map(|kind| of(&format!("{list}_evictable_{kind}"))));
    let evictable = lists.flatten().reduce(u64::saturating_add).unwrap_or(u64::MAX);
    Some(above_least.min(evictable) / 2)
}

/// What processes may be promised, and what they have been.
fn commit(meminfo: &str) -> Option<Commit> {
    Some(Commit {
        limit_bytes: field_kib(meminfo, "CommitLimit")?,
        used_bytes: field_kib(meminfo, "Committed_AS")?,
    })
}

#[cfg(test)]
mod tests;
