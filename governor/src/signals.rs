//! One reading of everything the kernel says about memory.

use std::path::PathBuf;
use std::time::Duration;

use crate::cgroup::{self, Hierarchy, Level, LevelFiles};
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
    /// How long tasks have waited for memory: those of the process's own cgroup (version 2), or if that isn't told, the machine's.
    pub stall: Option<Stall>,
    /// What processes may be promised, where the kernel counts that strictly.
    pub commit: Option<Commit>,
}

/// The time that the tasks of one place have waited for memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stall {
    /// Whose. Totals of two places have nothing to do with each other: a process that is moved to another cgroup has not waited for the
    /// difference.
    pub place: Place,
    /// Microseconds in which at least one task waited, ever.
    pub total_us: u64,
    /// What a cgroup's tasks wanted back.
    pub refaults: Option<Refaults>,
}

/// Pages that the kernel took from the tasks of a cgroup and that they wanted back, ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refaults {
    /// Memory of their own, which was in swap. Not told before Linux 5.9.
    pub anon_pages: u64,
    /// Pages of files.
    pub file_pages: u64,
}

/// Strict accounting (`vm.overcommit_memory` = 2): private memory counts from when it may be written, used or not, and beyond
/// the limit nobody is given any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// `CommitLimit`, bytes.
    pub limit_bytes: u64,
    /// `Committed_AS`, bytes.
    pub used_bytes: u64,
}

impl Signals {
    /// The limit that binds, the machine's own included: where the least can be taken and its share still stays free. `None` when
    /// nothing could be read at all.
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
    /// The limit, bytes.
    pub limit_bytes: u64,
    /// What is used below it and can't just be dropped, bytes. More than the limit if that was lowered under it.
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

/// How often the reader looks whether the process was moved to another cgroup.
const FIND_AGAIN: Duration = Duration::from_secs(5);

/// Reads signals again and again, and says once of each source that it is missing.
#[derive(Debug)]
pub struct Reader {
    root: Root,
    proc_dir: PathBuf,
    hierarchy: Option<Hierarchy>,
    levels: Vec<LevelFiles>,
    found_at: Duration,
    meminfo: Source,
    status: Source,
    vmstat: Source,
    pressure: Source,
    /// The mode of accounting, if it is the strict one in which this process began. A process that began in another has memory
    /// that is never counted, and so has nothing to give back to that limit.
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

/// Which number tells of the room.
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
            None => PathBuf::from("/proc/self"),
        };
        let mut reader = Reader {
            meminfo: Source::new(&root, "/proc/meminfo"),
            status: Source::new(&root, proc_dir.join("status")),
            vmstat: Source::new(&root, "/proc/vmstat"),
            pressure: Source::new(&root, "/proc/pressure/memory"),
            // What of another process's memory is counted can't be told from here.
            overcommit: Some(Source::new(&root, OVERCOMMIT))
                .filter(|_| pid.is_none() && root.number(OVERCOMMIT) == Some(STRICT)),
            root,
            proc_dir,
            hierarchy: None,
            levels: Vec::new(),
            found_at: Duration::ZERO,
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

    /// Where the files are looked for.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// A process may be moved to another group, and a group may vanish. As long as that can't be looked up, what is known holds: to take a
    /// container for the whole machine would be the end of the process.
    fn find_levels(&mut self, at: Duration) {
        self.found_at = at;
        let Ok(found) = cgroup::find(&self.root, &self.proc_dir) else { return };
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
        if signals.levels.is_empty() {
            self.find_levels(at);
        }
        let counts_commits =
            self.overcommit.as_mut().is_some_and(|mode| mode.number() == Some(STRICT));
        let mut read = |source: &mut Source, name, then: &mut dyn FnMut(&str)| {
            let text = source.text();
            let missing = text.is_none();
            text.into_iter().for_each(then);
            note(&mut self.silent, &mut self.notices, name, missing);
        };
        read(&mut self.meminfo, "/proc/meminfo", &mut |text| {
            signals.machine_total_bytes = field_kib(text, "MemTotal");
            signals.machine_available_bytes = available_bytes(text);
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

    /// The room where the last reading found the least of it, were nothing but the usage changed since: a look at one number,
    /// for between two readings. `None` when there was no reading, or it can't be told.
    pub fn glance(&mut self) -> Option<u64> {
        let tightest = self.tightest?;
        match tightest.glance {
            Glance::Level(level) => {
                let usage = self.levels[level].usage_bytes()?;
                Some((tightest.room_bytes + tightest.usage_bytes).saturating_sub(usage))
            }
            Glance::Available => available_bytes(self.meminfo.text()?),
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

/// What processes may be promised, and what they have been.
fn commit(meminfo: &str) -> Option<Commit> {
    Some(Commit {
        limit_bytes: field_kib(meminfo, "CommitLimit")?,
        used_bytes: field_kib(meminfo, "Committed_AS")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_binds_is_the_one_whose_share_is_used_up_first() {
        // The group has less left than the machine, but the machine must keep more free.
        let level = Level {
            directory: "/g".into(),
            limit_bytes: Some(1 << 30),
            usage_bytes: 900 << 20,
            file_cache_bytes: 0,
            limit_hits: 0,
        };
        let signals = Signals {
            levels: vec![level],
            machine_total_bytes: Some(64 << 30),
            machine_available_bytes: Some(900 << 20),
            ..Signals::default()
        };
        assert_eq!(signals.room().unwrap().place, Place::Machine);
    }

    #[test]
    fn this_machine_can_be_read() {
        let mut reader = Reader::new(Root::default(), None);
        let signals = reader.read(Duration::ZERO);
        assert!(signals.machine_total_bytes.unwrap() >= signals.machine_available_bytes.unwrap());
        assert!(signals.own_resident_bytes.unwrap() > 0);
        let room = signals.room().unwrap();
        assert!(room.bytes() <= signals.machine_total_bytes.unwrap());
    }

    fn write_below(root: &std::path::Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The root of a process in a cgroup of version 2 that uses 400 of 1000 bytes; what it uses them for is still to be written.
    fn in_a_cgroup() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| write_below(dir.path(), file, text);
        write("proc/self/cgroup", "0::/db\n");
        write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
        write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 9000 kB\n");
        write("cg/db/memory.max", "1000");
        write("cg/db/memory.current", "400");
        dir
    }

    #[test]
    fn a_glance_sees_the_usage_and_a_reading_the_limit_too() {
        let dir = in_a_cgroup();
        let write = |file: &str, text: &str| write_below(dir.path(), file, text);
        write("cg/db/memory.stat", "inactive_file 100\nactive_file 0\n");
        let mut reader = Reader::new(Root::new(dir.path()), None);
        assert_eq!(reader.glance(), None);
        assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 700);
        write("cg/db/memory.current", "600");
        assert_eq!(reader.glance(), Some(500));
        write("cg/db/memory.max", "800");
        assert_eq!(reader.glance(), Some(500));
        assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 300);
        // The group vanishes, then the process is somewhere else: found by the next reading but one.
        std::fs::remove_dir_all(dir.path().join("cg")).unwrap();
        assert_eq!(reader.glance(), None);
        write("proc/self/cgroup", "0::/other\n");
        write("cg/other/memory.max", "50");
        write("cg/other/memory.current", "20");
        write("cg/other/memory.stat", "");
        assert_eq!(reader.read(Duration::ZERO).room().unwrap().place, Place::Machine);
        assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 30);
    }

    #[test]
    fn a_stall_says_whose_it_is() {
        let dir = in_a_cgroup();
        let write = |file: &str, text: &str| write_below(dir.path(), file, text);
        let pressure =
            |file: &str, total: u64| write(file, &format!("some avg10=0.00 total={total}\n"));
        pressure("proc/pressure/memory", 9_000_000);
        pressure("cg/db/memory.pressure", 17);
        let mut reader = Reader::new(Root::new(dir.path()), None);
        let mut stall = |at| {
            let Stall { place, total_us, .. } = reader.read(at).stall.unwrap();
            (place, total_us)
        };
        assert_eq!(stall(Duration::ZERO), (Place::Cgroup("/cg/db".into()), 17));
        write("proc/self/cgroup", "0::/other\n");
        write("cg/other/memory.max", "1000");
        write("cg/other/memory.current", "400");
        pressure("cg/other/memory.pressure", 5_000_000);
        assert_eq!(stall(FIND_AGAIN), (Place::Cgroup("/cg/other".into()), 5_000_000));
        std::fs::remove_file(dir.path().join("cg/other/memory.pressure")).unwrap();
        assert_eq!(stall(FIND_AGAIN), (Place::Machine, 9_000_000));
    }

    #[test]
    fn refaults_are_those_of_the_own_group_which_needs_no_limit_for_that() {
        let dir = in_a_cgroup();
        let write = |file: &str, text: &str| write_below(dir.path(), file, text);
        write("cg/db/memory.pressure", "some avg10=0.00 total=17\n");
        write("cg/db/memory.max", "max");
        let mut reader = Reader::new(Root::new(dir.path()), None);
        let mut refaults = || reader.read(Duration::ZERO).stall.unwrap().refaults;
        assert_eq!(refaults(), None);
        let told = |anon_pages, file_pages| Some(Refaults { anon_pages, file_pages });
        write("cg/db/memory.stat", "workingset_refault_anon 42\nworkingset_refault_file 7\n");
        assert_eq!(refaults(), told(42, 7));
        write("cg/db/memory.stat", "workingset_refault 9\n");
        assert_eq!(refaults(), told(0, 9));
        std::fs::remove_file(dir.path().join("cg/db/memory.stat")).unwrap();
        assert_eq!(refaults(), None);
    }

    #[test]
    fn commits_count_where_they_did_from_the_start_and_still_do() {
        let dir = in_a_cgroup();
        let write = |file: &str, text: &str| write_below(dir.path(), file, text);
        let meminfo = |committed: u64| {
            let memory = "MemTotal: 9000 kB\nMemAvailable: 9000 kB\nCommitLimit: 500 kB\n";
            write("proc/meminfo", &format!("{memory}Committed_AS: {committed} kB\n"));
        };
        write("cg/db/memory.max", "max");
        meminfo(100);
        let mode = "proc/sys/vm/overcommit_memory";
        write(mode, "0\n");
        let reader = |pid| Reader::new(Root::new(dir.path()), pid);
        let mut lenient = reader(None);
        write(mode, "2\n");
        assert_eq!(lenient.read(Duration::ZERO).commit, None, "not what this process has");
        assert_eq!(reader(Some(1)).read(Duration::ZERO).commit, None, "who knows what that has");
        let mut strict = reader(None);
        let room = strict.read(Duration::ZERO).room().unwrap();
        assert_eq!((room.bytes(), room.place), (400 << 10, Place::Commit));
        meminfo(450);
        assert_eq!(strict.glance(), Some(50 << 10));
        // Above the limit, as when that was lowered.
        meminfo(510);
        assert_eq!(strict.read(Duration::ZERO).room().unwrap().bytes(), 0);
        write(mode, "1\n");
        assert_eq!(strict.read(Duration::ZERO).room().unwrap().place, Place::Machine);
    }

    #[test]
    fn a_process_out_of_descriptors_keeps_the_limits_that_it_knows() {
        let dir = in_a_cgroup();
        let write = |file: &str, text: &str| write_below(dir.path(), file, text);
        write("cg/db/memory.stat", "");
        let mut reader = Reader::new(Root::new(dir.path()), None);
        assert_eq!(reader.read(Duration::ZERO).room().unwrap().bytes(), 600);
        for file in ["proc/self/mountinfo", "proc/self/cgroup"] {
            // Where the process is can't be looked up. What was open stays readable.
            std::fs::remove_file(dir.path().join(file)).unwrap();
            assert_eq!(reader.read(FIND_AGAIN).room().unwrap().bytes(), 600);
            assert_eq!(reader.read(FIND_AGAIN * 2).room().unwrap().bytes(), 600);
        }
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
        assert_eq!(signals.room().unwrap().bytes(), 60 * 1024);
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
            machine_total_bytes: Some(10_000),
            machine_available_bytes: Some(5000),
            ..Signals::default()
        };
        let room = signals.room().unwrap();
        assert_eq!((room.bytes(), room.place), (300, Place::Cgroup("/a".into())));
    }
}
