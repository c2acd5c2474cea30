//! Counters of the kernel: of a process, and of the machine's swapping.

use std::fs;

use super::cgroup::field;

/// The unit of `pswpin` and of resident sizes.
const PAGE_BYTES: u64 = 4096;

/// Bytes that a process moved to and from disks since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskBytes {
    /// Read, pages read back from swap space included.
    pub read: u64,
    pub written: u64,
}

/// Bytes that the machine swapped since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapBytes {
    /// Read back.
    pub swapped_in: u64,
    /// Written out.
    pub swapped_out: u64,
}

/// What a process moved (`/proc/<pid>/io`); nothing if it has ended.
pub fn disk_bytes(pid: u32) -> Option<DiskBytes> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    Some(DiskBytes { read: field(&text, "read_bytes:"), written: field(&text, "write_bytes:") })
}

/// What the machine swapped (`/proc/vmstat`). The experiments' swap file is the only one on most
/// machines that run them; where it is not, the figures hold others' swapping too.
pub fn swap_bytes() -> SwapBytes {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    SwapBytes {
        swapped_in: field(&text, "pswpin") * PAGE_BYTES,
        swapped_out: field(&text, "pswpout") * PAGE_BYTES,
    }
}

/// Bytes of a process in memory (`/proc/<pid>/statm`); nothing if it has ended.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

/// Processor time that a process has had, its threads included, those that have ended too
/// (`/proc/<pid>/stat`), in seconds; nothing if it has ended.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(cpu_ticks(&text)? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User and system time. The program's name before them may hold anything, brackets too.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (times.next()?.parse().ok()?, times.next()?.parse().ok()?);
    Some(user + system)
}

/// How the kernel weighs swapping against dropping pages of files (`vm.swappiness`).
pub fn swappiness() -> Option<u32> {
    fs::read_to_string("/proc/sys/vm/swappiness").ok()?.trim().parse().ok()
}

/// Memory that the machine has, in bytes.
pub fn machine_memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_counters_can_be_read() {
        let own = std::process::id();
        assert!(disk_bytes(own).is_some());
        assert!(resident_bytes(own).is_some_and(|bytes| bytes > 0));
        assert!(machine_memory_bytes() > 0);
        assert_eq!(resident_bytes(u32::MAX), None);
        assert!(cpu_seconds(own).unwrap() >= 0.0);
        assert_eq!(cpu_seconds(u32::MAX), None);
        assert!(swappiness().is_some());
    }

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 3 0 250 50 9 9 20 0 31 0 100 1 2";
        assert_eq!(cpu_ticks(stat), Some(300));
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 3 0 250 42 0 0 20 0 9 0 1 1 1\n";
        assert_eq!(cpu_ticks(stat), Some(292));
        assert_eq!(cpu_ticks("7 (a) S 1"), None);
    }
}
