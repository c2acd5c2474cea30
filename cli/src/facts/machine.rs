//! The server's machine, as any process on it can see it: `/proc`, `/sys`, the cgroups of the
//! server's process.
//!
//! Limits and room come from crate `governor`, so that advice and governor never disagree about
//! them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tidepool_governor::cgroup;
use tidepool_governor::kernel::{Root, field, field_kib};
use tidepool_governor::signals::{Place, Reader, Signals};

use super::process::is_server;
use crate::server::text;

/// The machine, with the server's process on it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Machine {
    /// The server's process.
    pub pid: u32,
    pub memory_bytes: u64,
    /// What can be had without swapping.
    pub available_bytes: u64,
    /// The tightest limit above the server, the machine's included.
    pub limit_bytes: u64,
    /// Whose limit that is, for people.
    pub limit_place: String,
    /// Whether the kernel slows processes down at that limit instead of killing one: `memory.high`
    /// of a cgroup.
    pub limit_throttles: bool,
    /// What is left below that limit.
    pub room_bytes: u64,
    /// Swap space: the machine's, or what the cgroup of the tightest limit may use of it.
    pub swap_bytes: u64,
    /// The machine's used swap space, of all processes.
    pub swap_used_bytes: u64,
    /// `vm.swappiness`, or the cgroup's own where it has one.
    pub swappiness: Option<u64>,
    /// The cgroup's file that it is from, if it is a cgroup's.
    pub swappiness_file: Option<String>,
    /// Read from and written to swap in the interval by the whole machine.
    pub swap_bytes_per_s: f64,
    /// The server's resident memory.
    pub server_resident_bytes: u64,
    /// Memory of the server that is in swap now.
    pub server_swapped_bytes: u64,
    /// The server's huge pages (of hugetlbfs). The kernel reserved them at its start or by a
    /// setting, charges them to no memory cgroup, and gives them to no other process when the
    /// server frees them.
    pub server_huge_bytes: u64,
    /// The biggest other processes below the tightest limit.
    pub others: Vec<Process>,
    /// Other database servers below that limit: what is free there is free for each of them.
    pub servers: Vec<Process>,
    /// All other processes' resident memory (what they share is counted for each of them).
    pub others_bytes: u64,
    /// The data directory's disk.
    pub disk: Option<Disk>,
    /// The one of InnoDB's redo log.
    pub redo_disk: Option<Disk>,
}

/// Another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    pub name: String,
    /// Its resident memory.
    pub resident_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// Its name below `/sys/dev/block`, such as `254:0`.
    pub device: String,
    /// Whether it turns; `None` when the kernel doesn't say.
    pub rotational: Option<bool>,
    /// Free space for the server.
    pub free_bytes: u64,
    /// What is on it, as far as that matters.
    pub filesystem: Filesystem,
}

/// A kind of file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    /// Files are memory (tmpfs, ramfs): none of it is read from a disk, and what is written there
    /// is taken from the rest.
    Memory,
    /// ZFS has its own cache, and most of its releases ignore O_DIRECT.
    Zfs,
    /// One that the kernel caches, and whose files can be read past that cache.
    #[default]
    Other,
}

impl Filesystem {
    /// From the number that the kernel has for its kind.
    fn from_kind(kind: u64) -> Filesystem {
        match kind {
            0x0102_1994 | 0x8584_58f6 => Filesystem::Memory,
            0x2fc1_2fc1 => Filesystem::Zfs,
            _ => Filesystem::Other,
        }
    }
}

/// What to do where the governor's reader [says](Reader::out_of_sight) that the limits above the
/// server are out of its sight.
pub fn limits_out_of_sight(pid: u32, why: &str) -> String {
    format!(
        "the memory limits of the server's process {pid} can't be seen from here: {why}; run this on the host, or in the server's own container"
    )
}

/// Where the server has its files, as it says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Directories<'a> {
    /// `datadir`.
    pub data: Option<&'a str>,
    /// `innodb_log_group_home_dir`, which may begin in the other.
    pub redo: Option<&'a str>,
}

impl Directories<'_> {
    fn redo(&self) -> Option<PathBuf> {
        Some(Path::new(self.data?).join(self.redo.unwrap_or_default()))
    }
}

/// Reads the machine twice, `interval` apart (the caller sleeps in between).
#[derive(Debug)]
pub struct Look {
    pid: u32,
    reader: Reader,
    before: Signals,
}

impl Look {
    /// The first reading.
    pub fn begin(pid: u32) -> Look {
        let mut reader = Reader::new(Root::default(), Some(pid));
        let before = reader.read(Duration::ZERO);
        Look { pid, reader, before }
    }

    /// The second reading, `elapsed` later.
    ///
    /// # Errors
    /// When the process or its limits can't be read: a sentence that says why, and what would help.
    pub fn end(
        mut self,
        elapsed: Duration,
        directories: Directories<'_>,
    ) -> std::result::Result<Machine, String> {
        let now = self.reader.read(elapsed);
        if let Some(why) = self.reader.out_of_sight() {
            return Err(limits_out_of_sight(self.pid, why));
        }
        let cannot = format!("process {} can't be seen in /proc here", self.pid);
        self.machine(&now, elapsed, directories).ok_or(cannot)
    }

    fn machine(
        &self,
        now: &Signals,
        elapsed: Duration,
        directories: Directories<'_>,
    ) -> Option<Machine> {
        let room = now.room()?;
        let root = Root::default();
        let meminfo = root.text("/proc/meminfo")?;
        let swap_bytes = field_kib(&meminfo, "SwapTotal").unwrap_or(0);
        let swap_pages = |s: &Signals| Some(s.swapped_in_pages? + s.swapped_out_pages?);
        let pages = match (swap_pages(&self.before), swap_pages(now)) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => 0,
        };
        let page_bytes = rustix::param::page_size() as f64;
        let all = other_processes(self.pid);
        let others_bytes = all.iter().map(|process| process.resident_bytes).sum();
        let (others, servers) = neighbours(&root, &room.place, all);
        let (swappiness, swappiness_file) = swappiness(&root, &room.place);
        Some(Machine {
            pid: self.pid,
            memory_bytes: now.machine_total_bytes?,
            available_bytes: now.machine_available_bytes?,
            limit_bytes: room.limit_bytes,
            limit_place: room.place.to_string(),
            limit_throttles: throttles(&root, &room.place),
            room_bytes: room.bytes(),
            swap_bytes: swap_bytes.min(swap_allowed(&root, &room.place)),
            swap_used_bytes: swap_bytes
                .saturating_sub(field_kib(&meminfo, "SwapFree").unwrap_or(0)),
            swappiness,
            swappiness_file,
            swap_bytes_per_s: pages as f64 * page_bytes / elapsed.as_secs_f64().max(0.001),
            server_resident_bytes: now.own_resident_bytes?,
            server_swapped_bytes: now.own_swapped_bytes.unwrap_or(0),
            server_huge_bytes: huge_bytes(&root, self.pid),
            others,
            servers,
            others_bytes,
            disk: directories.data.and_then(|data| disk(self.pid, Path::new(data))),
            redo_disk: directories.redo().and_then(|redo| disk(self.pid, &redo)),
        })
    }
}

/// The huge pages of a process, bytes.
pub fn huge_bytes(root: &Root, pid: u32) -> u64 {
    let status = root.text(format!("/proc/{pid}/status"));
    status.and_then(|status| field_kib(&status, "HugetlbPages")).unwrap_or(0)
}

/// Whether the limit of a group is the one at which the kernel slows its tasks down and reclaims,
/// below the one at which it kills.
fn throttles(root: &Root, place: &Place) -> bool {
    let Place::Cgroup(directory) = place else { return false };
    // A zero is no limit to the governor.
    let limit = |name: &str| root.number(directory.join(name)).filter(|&limit| limit > 0);
    let (high, most) = (limit("memory.high"), limit("memory.max").unwrap_or(u64::MAX));
    high.is_some_and(|high| high < most)
}

/// What may go to swap where this limit is reached, bytes. Containers often may swap nothing,
/// whatever the machine has.
fn swap_allowed(root: &Root, place: &Place) -> u64 {
    let Place::Cgroup(directory) = place else { return u64::MAX };
    // Version 1 limits memory and swap together.
    let both = root.number(directory.join("memory.memsw.limit_in_bytes"));
    let memory = root.number(directory.join("memory.limit_in_bytes"));
    if let (Some(both), Some(memory)) = (both, memory) {
        return both.saturating_sub(memory);
    }
    let limit = |group: &Path| root.number(group.join("memory.swap.max"));
    directory.ancestors().filter_map(limit).min().unwrap_or(u64::MAX)
}

/// Version 1 of the memory controller has a swappiness for each group: what counts when it is the
/// group's limit that is reached.
fn swappiness(root: &Root, place: &Place) -> (Option<u64>, Option<String>) {
    if let Place::Cgroup(directory) = place {
        let file = directory.join("memory.swappiness");
        if let Some(own) = root.number(&file) {
            return (Some(own), Some(file.display().to_string()));
        }
    }
    (root.number("/proc/sys/vm/swappiness"), None)
}

/// The processes but the server, the biggest first.
fn other_processes(server: u32) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut processes: Vec<Process> = pids
        .filter(|&pid| pid != server)
        .filter_map(|pid| process(pid, fs::read(format!("/proc/{pid}/status")).ok()?))
        .collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.resident_bytes));
    processes
}

/// Of the processes (the biggest first) the five biggest below the limit, and the database servers
/// there.
fn neighbours(root: &Root, place: &Place, all: Vec<Process>) -> (Vec<Process>, Vec<Process>) {
    const SHOWN: usize = 5;
    let (mut others, mut servers) = (Vec::new(), Vec::new());
    for process in all {
        let is_shown = others.len() < SHOWN;
        if (!is_shown && !is_server(&process.name)) || !is_below(root, place, process.pid) {
            continue;
        }
        if is_server(&process.name) {
            servers.push(process.clone());
        }
        if is_shown {
            others.push(process);
        }
    }
    (others, servers)
}

/// Whether what a process takes counts below this limit. One whose group can't be seen is not.
fn is_below(root: &Root, place: &Place, pid: u32) -> bool {
    let Place::Cgroup(group) = place else { return true };
    let found = cgroup::find(root, Path::new(&format!("/proc/{pid}")));
    found.ok().flatten().is_some_and(|found| found.directories.contains(group))
}

/// From `/proc/<pid>/status`. The name may be any bytes.
fn process(pid: u32, status: Vec<u8>) -> Option<Process> {
    let status = text(status);
    let name = status.lines().next()?.strip_prefix("Name:")?.trim().to_owned();
    Some(Process { pid, name, resident_bytes: field_kib(&status, "VmRSS")? })
}

/// The disk of a directory of the server, which may be in another mount namespace.
fn disk(pid: u32, directory: &Path) -> Option<Disk> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let inside = root.join(directory.strip_prefix("/").unwrap_or(directory));
    let path = if inside.exists() { inside } else { directory.to_owned() };
    let stat = rustix::fs::stat(&path).ok()?;
    let space = rustix::fs::statvfs(&path).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let device = format!("{major}:{minor}");
    // A partition has no queue: its disk is the directory above.
    let queue = |above: &str| {
        let path = format!("/sys/dev/block/{device}/{above}queue/rotational");
        fs::read_to_string(path).ok().map(|text| text.trim() == "1")
    };
    Some(Disk {
        rotational: queue("").or_else(|| queue("../")),
        device,
        free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        filesystem: Filesystem::from_kind(rustix::fs::statfs(&path).ok()?.f_type as u64),
    })
}

/// Free room for the server on the disk of one of its directories.
pub fn free_bytes(pid: u32, directory: &Path) -> Option<u64> {
    Some(disk(pid, directory)?.free_bytes)
}

/// Bytes read and written by a process so far: `/proc/<pid>/io`, which only its owner and root may
/// read.
pub fn process_io(pid: u32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    Some((field(&text, "read_bytes")?, field(&text, "write_bytes")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_outside_of_the_group_is_no_neighbour() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let process = |pid: u32, name: &str, group: &str| {
            file(&format!("proc/{pid}/cgroup"), &format!("0::{group}\n"));
            file(&format!("sys/fs/cgroup{group}/memory.current"), "1000");
            Process { pid, name: name.into(), resident_bytes: 100 }
        };
        let mut all = vec![process(7, "mysqld", "/other"), process(8, "mariadbd", "/db/second")];
        all.extend((20..26).map(|pid| process(pid, "java", "/db")));
        all.push(process(9, "mysqld", "/db"));
        let pids = |found: &[Process]| found.iter().map(|process| process.pid).collect::<Vec<_>>();
        let group = Place::Cgroup("/sys/fs/cgroup/db".into());
        let (others, servers) = neighbours(&root, &group, all.clone());
        assert_eq!((pids(&others), pids(&servers)), (vec![8, 20, 21, 22, 23], vec![8, 9]));
        let (others, servers) = neighbours(&root, &Place::Machine, all);
        assert_eq!((pids(&others), pids(&servers)), (vec![7, 8, 20, 21, 22], vec![7, 8, 9]));
    }

    #[test]
    fn this_process_is_seen_as_a_server_would_be() {
        let directory = std::env::temp_dir();
        let machine = Look::begin(std::process::id())
            .end(Duration::from_millis(1), Directories { data: directory.to_str(), redo: None })
            .expect("this machine can be read");
        assert!(machine.server_resident_bytes > 0);
        assert!(machine.room_bytes <= machine.limit_bytes);
        assert!(machine.limit_bytes <= machine.memory_bytes);
        assert!(machine.disk.unwrap().free_bytes > 0);
        assert!(machine.others.iter().all(|process| process.pid != machine.pid));
        let (read, _) = process_io(std::process::id()).unwrap();
        assert!(read < u64::MAX);
    }

    #[test]
    fn a_process_whose_name_is_no_text_is_counted() {
        let status = b"Name:\tma\xdflos\nUmask:\t0022\nVmRSS:\t    2048 kB\n".to_vec();
        let found = process(7, status).unwrap();
        assert_eq!((&*found.name, found.resident_bytes), ("ma\u{fffd}los", 2 << 20));
        // A thread of the kernel.
        assert_eq!(process(2, b"Name:\tkthreadd\nUmask:\t0000\n".to_vec()), None);
    }

    #[test]
    fn the_huge_pages_of_a_process_are_told_by_its_status() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        fs::create_dir_all(directory.path().join("proc/7")).unwrap();
        let status = "Name:\tmysqld\nVmSwap:\t0 kB\nHugetlbPages:\t 8388608 kB\n";
        fs::write(directory.path().join("proc/7/status"), status).unwrap();
        assert_eq!((huge_bytes(&root, 7), huge_bytes(&root, 8)), (8 << 30, 0));
    }

    #[test]
    fn a_group_of_version_1_has_its_own_swappiness() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        for (name, text) in [("proc/sys/vm", "60"), ("sys/fs/cgroup/memory/db", "0")] {
            let directory = directory.path().join(name);
            fs::create_dir_all(&directory).unwrap();
            let file = if text == "60" { "swappiness" } else { "memory.swappiness" };
            fs::write(directory.join(file), text).unwrap();
        }
        assert_eq!(swappiness(&root, &Place::Machine), (Some(60), None));
        let group = |name: &str| Place::Cgroup(PathBuf::from("/sys/fs/cgroup/memory").join(name));
        assert_eq!(
            swappiness(&root, &group("db")),
            (Some(0), Some("/sys/fs/cgroup/memory/db/memory.swappiness".into()))
        );
        // A group of version 2 has none.
        assert_eq!(swappiness(&root, &group("other")), (Some(60), None));
    }

    #[test]
    fn a_group_with_a_lower_memory_high_slows_down_before_it_kills() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let place = Place::Cgroup("/cg".into());
        let with = |high: &str, most: &str| {
            fs::create_dir_all(directory.path().join("cg")).unwrap();
            fs::write(directory.path().join("cg/memory.high"), high).unwrap();
            fs::write(directory.path().join("cg/memory.max"), most).unwrap();
            throttles(&root, &place)
        };
        assert!(with("1000", "2000") && with("1000", "max"));
        assert!(!with("max", "2000") && !with("0", "2000") && !with("max", "max"));
        assert!(!throttles(&root, &Place::Machine));
    }

    #[test]
    fn a_group_swaps_no_more_than_it_and_those_above_it_may() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        for (group, file, text) in [
            ("pod", "memory.swap.max", "0"),
            ("pod/db", "memory.swap.max", "max"),
            ("free", "memory.swap.max", "max"),
            ("old", "memory.limit_in_bytes", "1000"),
            ("old", "memory.memsw.limit_in_bytes", "1500"),
        ] {
            let group = directory.path().join("sys/fs/cgroup").join(group);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join(file), text).unwrap();
        }
        let group = |name: &str| Place::Cgroup(PathBuf::from("/sys/fs/cgroup").join(name));
        assert_eq!(swap_allowed(&root, &group("pod/db")), 0);
        assert_eq!(swap_allowed(&root, &group("free")), u64::MAX);
        assert_eq!(swap_allowed(&root, &group("old")), 500);
        assert_eq!(swap_allowed(&root, &Place::Machine), u64::MAX);
    }

    #[test]
    fn files_that_are_memory_are_told_from_others() {
        let disk = |directory: &str| disk(std::process::id(), Path::new(directory)).unwrap();
        assert_eq!(disk("/proc").filesystem, Filesystem::Other);
        if Path::new("/dev/shm").exists() {
            assert_eq!(disk("/dev/shm").filesystem, Filesystem::Memory);
        }
        assert_eq!(Filesystem::from_kind(0x2fc1_2fc1), Filesystem::Zfs);
    }

    #[test]
    fn the_redo_log_may_be_elsewhere_than_the_data() {
        let redo = |redo| Directories { data: Some("/var/lib/mysql/"), redo }.redo().unwrap();
        assert_eq!(redo(None), Path::new("/var/lib/mysql/"));
        assert_eq!(redo(Some("./")), Path::new("/var/lib/mysql/."));
        assert_eq!(redo(Some("/fast/log")), Path::new("/fast/log"));
        assert_eq!(redo(Some("log")), Path::new("/var/lib/mysql/log"));
        assert_eq!(Directories::default().redo(), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_no_machine() {
        // The kernel's largest process id is 2^22.
        assert!(
            Look::begin(1 << 23).end(Duration::from_millis(1), Directories::default()).is_err()
        );
    }
}
