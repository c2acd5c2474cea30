//! Cgroups with a limit: of memory, of processors, or of reads a second. Version 1 and 2
//! hierarchies, whichever has the controller.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::registry::{Leftover, Registry};
use crate::error::{Error, Result};

/// Where a controller's hierarchy is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// A hierarchy of this controller alone.
    V1(PathBuf),
    /// The unified hierarchy, with the controller available at its root.
    V2(PathBuf),
}

impl Hierarchy {
    /// The hierarchy that has a controller, by its version 1 and version 2 names.
    pub fn find(v1_name: &str, v2_name: &str) -> Option<Hierarchy> {
        let mounts = fs::read_to_string("/proc/mounts").ok()?;
        find_in(&mounts, v1_name).or_else(|| {
            let root = unified(&mounts)?;
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).ok()?;
            let there = controllers.split_whitespace().any(|name| name == v2_name);
            there.then_some(Hierarchy::V2(root))
        })
    }

    fn root(&self) -> &Path {
        match self {
            Hierarchy::V1(root) | Hierarchy::V2(root) => root,
        }
    }
}

fn find_in(mounts: &str, controller: &str) -> Option<Hierarchy> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, path, "cgroup", options, ..] = fields[..] else { return None };
        let has = options.split(',').any(|option| option == controller);
        has.then(|| Hierarchy::V1(PathBuf::from(path)))
    })
}

fn unified(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, path, "cgroup2", ..] = fields[..] else { return None };
        Some(PathBuf::from(path))
    })
}

/// The time within which a group of processors may use its quota. Shorter than the kernel's 100 ms,
/// so that a statement does not wait long for the next period.
const CPU_PERIOD_US: u32 = 10_000;

/// A cgroup that exists for the length of an experiment. Processes that are in it when it is
/// dropped are killed.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    is_v2: bool,
}

/// What a memory cgroup holds, and what happened in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// All that is charged.
    pub usage_bytes: u64,
    /// Of this, memory of processes.
    pub anonymous_bytes: u64,
    /// Of this, pages of files.
    pub file_bytes: u64,
    /// What was swapped out and not read back.
    pub swap_bytes: u64,
    /// Processes killed because the limit was reached.
    pub oom_kills: u64,
}

impl Cgroup {
    /// A group whose processes together get no more than `limit_bytes`; swap space is not limited.
    ///
    /// # Errors
    /// If there is no such controller, or the user may not.
    pub fn memory(registry: &Registry, limit_bytes: u64) -> Result<Cgroup> {
        let group = Cgroup::create(registry, "memory", "memory")?;
        let path = group.memory_limit();
        fs::write(&path, limit_bytes.to_string()).map_err(Error::at(&path))?;
        Ok(group)
    }

    /// The file of a memory group's limit. The write of a lower one waits while the kernel
    /// reclaims what is above it.
    pub fn memory_limit(&self) -> PathBuf {
        self.path.join(if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" })
    }

    /// A group whose processes together do no more than `reads_per_second` on the disk that holds
    /// `path`.
    ///
    /// # Errors
    /// If there is no such controller, the user lacks the right, or the file system has no disk.
    pub fn read_throttle(
        registry: &Registry,
        path: &Path,
        reads_per_second: u32,
    ) -> Result<Cgroup> {
        let device = whole_disk_of(path)?;
        let group = Cgroup::create(registry, "blkio", "io")?;
        if group.is_v2 {
            group.write("io.max", &format!("{device} riops={reads_per_second}"))?;
        } else {
            let line = format!("{device} {reads_per_second}");
            group.write("blkio.throttle.read_iops_device", &line)?;
        }
        Ok(group)
    }

    /// A group whose processes together get no more than `cpus` processors' time, as 0.5.
    ///
    /// # Errors
    /// If there is no such controller, or the user may not.
    pub fn cpu(registry: &Registry, cpus: f64) -> Result<Cgroup> {
        let group = Cgroup::create(registry, "cpu", "cpu")?;
        group.limit_cpus(cpus)?;
        Ok(group)
    }

    /// Changes the limit of a group of processors.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn limit_cpus(&self, cpus: f64) -> Result<()> {
        let quota_us = (cpus * f64::from(CPU_PERIOD_US)) as u64;
        if self.is_v2 {
            return self.write("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}"));
        }
        self.write("cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
        self.write("cpu.cfs_quota_us", &quota_us.to_string())
    }

    fn create(registry: &Registry, v1_name: &str, v2_name: &str) -> Result<Cgroup> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let hierarchy = Hierarchy::find(v1_name, v2_name).ok_or_else(|| {
            Error::Missing(format!("no cgroup hierarchy with the {v2_name} controller is mounted"))
        })?;
        let is_v2 = matches!(hierarchy, Hierarchy::V2(_));
        if is_v2 {
            let control = hierarchy.root().join("cgroup.subtree_control");
            fs::write(&control, format!("+{v2_name}")).map_err(Error::at(&control))?;
        }
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidepool-lab-{}-{unique}", std::process::id());
        let path = hierarchy.root().join(name);
        registry.note(&Leftover::Cgroup(path.clone()))?;
        fs::create_dir(&path).map_err(Error::at(&path))?;
        Ok(Cgroup { path, is_v2 })
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(Error::at(&path))
    }

    /// The file through which a process joins.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// What the group holds, if it is one of memory.
    pub fn memory_use(&self) -> MemoryUse {
        let read = |file: &str| fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let one = |file: &str| read(file).trim().parse().unwrap_or(0);
        let stat = read("memory.stat");
        if self.is_v2 {
            MemoryUse {
                usage_bytes: one("memory.current"),
                anonymous_bytes: field(&stat, "anon"),
                file_bytes: field(&stat, "file"),
                swap_bytes: one("memory.swap.current"),
                oom_kills: field(&read("memory.events"), "oom_kill"),
            }
        } else {
            MemoryUse {
                usage_bytes: one("memory.usage_in_bytes"),
                anonymous_bytes: field(&stat, "rss"),
                file_bytes: field(&stat, "cache"),
                swap_bytes: field(&stat, "swap"),
                oom_kills: field(&read("memory.oom_control"), "oom_kill"),
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = Leftover::Cgroup(self.path.clone()).remove() {
            tracing::warn!("the cgroup stays until the next run: {error}");
        }
    }
}

/// The number after a name, in a file of lines "name number". 0 if it is not there.
pub(super) fn field(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.split_once([' ', '\t']));
    let found = lines.find(|(key, _)| *key == name);
    found.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

/// "major:minor" of the whole disk that holds a path: limits of a partition are refused.
fn whole_disk_of(path: &Path) -> Result<String> {
    let device = fs::metadata(path).map_err(Error::at(path))?.dev();
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let link = PathBuf::from(format!("/sys/dev/block/{number}"));
    let entry = fs::canonicalize(&link).map_err(|_| {
        Error::Missing(format!(
            "{} is on a file system without a disk (device {number}): reads can't be limited",
            path.display()
        ))
    })?;
    let disk = if entry.join("partition").exists() { entry.parent() } else { Some(&*entry) };
    let disk = disk.unwrap_or(&entry).join("dev");
    Ok(fs::read_to_string(&disk).map_err(Error::at(&disk))?.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_in_the_list_of_mounts() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let memory = Hierarchy::V1("/sys/fs/cgroup/memory".into());
        assert_eq!(find_in(mounts, "memory"), Some(memory));
        assert_eq!(find_in(mounts, "blkio"), None);
        assert_eq!(unified(mounts), Some("/sys/fs/cgroup/unified".into()));
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let stat = "cache 1\nrss_huge 2\nrss 3\ntotal_rss 4\n";
        assert_eq!(field(stat, "rss"), 3);
        assert_eq!(field(stat, "swap"), 0);
        assert_eq!(field("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", "oom_kill"), 7);
    }
}
