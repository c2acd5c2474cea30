//! A memory cgroup with a limit, made for a test where it may be made, and a neighbour that takes
//! memory in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::server::spawn_tied_to_thread;

/// A group whose processes share a limit. Removed when dropped; processes still in it are killed.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    is_v2: bool,
}

impl MemoryCgroup {
    /// Makes one below the root of the hierarchy.
    ///
    /// # Errors
    /// Why it can't be made: a test then says that it is skipped.
    pub fn create(limit_bytes: u64) -> Result<MemoryCgroup, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/mounts").map_err(|e| e.to_string())?;
        let mounted = |kind: &str, option: &str| {
            mounts.lines().find_map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                let has = option.is_empty() || fields.get(3)?.split(',').any(|o| o == option);
                (*fields.get(2)? == kind && has).then(|| PathBuf::from(fields[1]))
            })
        };
        let (root, is_v2) = match mounted("cgroup", "memory") {
            Some(root) => (root, false),
            None => (mounted("cgroup2", "").ok_or("no memory cgroups are mounted")?, true),
        };
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("tidepool-test-{}-{unique}", std::process::id()));
        let say = |e: std::io::Error| format!("{}: {e}", path.display());
        if is_v2 {
            // It may be on already, or not be ours to switch on: creating the limit will tell.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        fs::create_dir(&path).map_err(say)?;
        let group = MemoryCgroup { path: path.clone(), is_v2 };
        group.set_limit(limit_bytes).map_err(say)?;
        Ok(group)
    }

    /// Changes the limit.
    ///
    /// # Errors
    /// Version 1 without swap space refuses a limit that the memory in use does not fit.
    pub fn set_limit(&self, limit_bytes: u64) -> std::io::Result<()> {
        let file = if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(self.path.join(file), limit_bytes.to_string())
    }

    /// The file through which a process joins.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Processes killed in it because the limit was reached.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Starts a process in it that takes `mib` of memory at once and keeps it.
    pub fn neighbour(&self, mib: u64) -> Neighbour {
        // dd fills one buffer of this size again and again; the shell moves itself into the group
        // first.
        let script = format!(
            "echo $$ > \"$0\" && exec dd if=/dev/zero of=/dev/null bs={mib}M iflag=fullblock"
        );
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(self.procs()).stdin(Stdio::null()).stderr(Stdio::null());
        Neighbour(spawn_tied_to_thread(&mut command))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            let procs = fs::read_to_string(self.procs()).unwrap_or_default();
            for pid in procs.lines().filter_map(|line| line.parse().ok()) {
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{} could not be removed", self.path.display());
    }
}

/// Memory taken beside a server. Given back when dropped.
#[derive(Debug)]
pub struct Neighbour(Child);

impl Neighbour {
    /// Whether it has been killed, or has failed.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    pub fn resident_bytes(&self) -> u64 {
        let file = Path::new("/proc").join(self.0.id().to_string()).join("status");
        let text = fs::read_to_string(file).unwrap_or_default();
        let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
        kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
