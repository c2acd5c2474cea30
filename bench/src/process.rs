//! A task in a separate process: the program runs itself again. The task goes there as JSON, its
//! figures come back as JSON.

use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::task::Task;
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGKILL;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The hidden option that a process of a task is started with.
pub const OPTION: &str = "--one";
/// What a confined process gets beyond the memory that its store may use: for the program,
/// and buffers of threads.
const CONFINED_EXTRA_BYTES: u64 = 48 << 20;
/// How often is looked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Serialize, Deserialize)]
struct One {
    task: Task,
    /// The file of a cgroup to write oneself into.
    join: Option<PathBuf>,
}

/// How a process of a task ended.
#[derive(Debug)]
pub enum End {
    Figures(Figures),
    /// The kernel killed it: it wanted more memory than its cgroup has.
    OutOfMemory,
}

/// Starts `program` with the task and waits for its end, or for `stop`.
///
/// # Errors
/// What the process said, if it failed; [`Error::Interrupted`].
pub fn run(program: &Path, task: &Task, confined: bool, stop: &AtomicBool) -> Result<End> {
    let group = confined.then(|| Cgroup::create(memory_limit(task.memory_bytes))).transpose()?;
    let join = group.as_ref().map(Cgroup::procs);
    let one = serde_json::to_string(&One { task: task.clone(), join });
    let mut command = Command::new(program);
    command.arg(OPTION).arg(one.expect("a task can be written as JSON"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Error::at(program))?;
    // What it writes is short: no pipe fills before its end.
    let status = wait(&mut child, stop).map_err(Error::at(program))?;
    if stop.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    let (mut figures, mut errors) = (String::new(), String::new());
    let read = child.stdout.take().map_or(Ok(0), |mut out| out.read_to_string(&mut figures));
    read.map_err(Error::at(program))?;
    let read = child.stderr.take().map_or(Ok(0), |mut out| out.read_to_string(&mut errors));
    read.map_err(Error::at(program))?;
    let failed = |message: String| Error::Run {
        store: task.store.name(),
        workload: task.workload.name(),
        message,
    };
    // Nothing else kills it so, and elsewhere than in a cgroup that is no figure but an accident.
    if confined && status.signal() == Some(SIGKILL) {
        return Ok(End::OutOfMemory);
    }
    if !status.success() {
        let errors = errors.trim();
        let how =
            if errors.is_empty() { format!("it ended by itself: {status}") } else { errors.into() };
        return Err(failed(how));
    }
    let figures = serde_json::from_str(&figures);
    figures.map(End::Figures).map_err(|error| failed(format!("no figures: {error}")))
}

fn wait(child: &mut Child, stop: &AtomicBool) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What the process of a task does.
///
/// # Errors
/// Of the task.
pub fn run_one(json: &str) -> Result<String> {
    let one: One = serde_json::from_str(json)
        .map_err(|error| Error::Usage(format!("{OPTION} is for the program itself: {error}")))?;
    if let Some(procs) = &one.join {
        // 0 is the process that writes it.
        std::fs::write(procs, "0").map_err(Error::at(procs))?;
    }
    let figures = one.task.run()?;
    Ok(serde_json::to_string(&figures).expect("figures can be written as JSON"))
}

/// The limit of a confined process.
pub fn memory_limit(memory_bytes: u64) -> u64 {
    memory_bytes + CONFINED_EXTRA_BYTES
}

/// A memory cgroup, version 1 or 2, that goes with this value.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// A group whose processes get no more than `limit_bytes`, files that the kernel caches for
    /// them included.
    ///
    /// # Errors
    /// If there is no such controller, or this user may not.
    pub fn create(limit_bytes: u64) -> Result<Cgroup> {
        let path = Path::new("/proc/mounts");
        let mounts = std::fs::read_to_string(path).map_err(Error::at(path))?;
        let (root, is_v2) = hierarchy(&mounts).ok_or_else(|| {
            Error::Usage("no memory cgroups are mounted: leave reads-confined out".into())
        })?;
        if is_v2 {
            let control = root.join("cgroup.subtree_control");
            std::fs::write(&control, "+memory").map_err(Error::at(&control))?;
        }
        let path = root.join(format!("tidepool-bench-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(Error::at(&path))?;
        let group = Cgroup(path);
        let limit = group.0.join(if is_v2 { "memory.max" } else { "memory.limit_in_bytes" });
        std::fs::write(&limit, limit_bytes.to_string()).map_err(Error::at(&limit))?;
        Ok(group)
    }

    fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel may take moments to notice that the last process has gone.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Where the memory controller is, and whether that is version 2.
fn hierarchy(mounts: &str) -> Option<(PathBuf, bool)> {
    let fields = || mounts.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let v1 = fields().find_map(|fields| match fields[..] {
        [_, path, "cgroup", options, ..] if options.split(',').any(|o| o == "memory") => {
            Some((PathBuf::from(path), false))
        }
        _ => None,
    });
    v1.or_else(|| {
        fields().find_map(|fields| match fields[..] {
            [_, path, "cgroup2", ..] => Some((PathBuf::from(path), true)),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_found_in_the_list_of_mounts() {
        let v1 =
            "cgroup /groups/cpu cgroup rw,cpu 0 0\ncgroup /groups/memory cgroup rw,memory 0 0\n";
        let v2 = "cgroup2 /groups cgroup2 rw,relatime 0 0\n";
        let both = format!("{v2}{v1}");
        assert_eq!(hierarchy(v1), Some(("/groups/memory".into(), false)));
        assert_eq!(hierarchy(v2), Some(("/groups".into(), true)));
        assert_eq!(hierarchy(&both), Some(("/groups/memory".into(), false)));
        assert_eq!(hierarchy("tmpfs / tmpfs rw 0 0\n"), None);
    }
}
