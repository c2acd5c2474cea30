//! The list of what this process has made outside of itself, on disk, so that it can be removed by
//! another process.
//!
//! ```text
//! /run/tidepool-lab/<pid>-<start time>     one line a thing: "cgroup /sys/fs/cgroup/memory/tidepool-lab-…"
//! ```
//!
//! A line is written before the thing is made and stays after it is gone: removing what is not
//! there does nothing. The start time distinguishes a process from a later one with its recycled
//! id.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How long processes of a cgroup may take to die.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// A thing that outlives the process unless it is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// The directory of a cgroup. Processes in it are killed.
    Cgroup(PathBuf),
    /// A file that may be in use as swap space.
    SwapFile(PathBuf),
    /// A directory of a server's run.
    Directory(PathBuf),
}

impl Leftover {
    fn to_line(&self) -> String {
        let (kind, path) = match self {
            Leftover::Cgroup(path) => ("cgroup", path),
            Leftover::SwapFile(path) => ("swap", path),
            Leftover::Directory(path) => ("directory", path),
        };
        format!("{kind} {}\n", path.display())
    }

    fn from_line(line: &str) -> Option<Leftover> {
        let (kind, path) = line.split_once(' ')?;
        let path = PathBuf::from(path);
        // Only what this program names so: a damaged list must not remove anything else.
        let named_by_us = path.file_name()?.to_str()?.starts_with("tidepool-lab");
        match kind {
            _ if !named_by_us => None,
            "cgroup" => Some(Leftover::Cgroup(path)),
            "swap" => Some(Leftover::SwapFile(path)),
            "directory" => Some(Leftover::Directory(path)),
            _ => None,
        }
    }

    /// Removes it, if it is there.
    ///
    /// # Errors
    /// If it is still there afterwards.
    pub fn remove(&self) -> Result<()> {
        match self {
            Leftover::Cgroup(path) => remove_cgroup(path),
            Leftover::SwapFile(path) => remove_swap_file(path),
            Leftover::Directory(path) if path.exists() => {
                fs::remove_dir_all(path).map_err(Error::at(path))
            }
            Leftover::Directory(_) => Ok(()),
        }
    }

    fn exists(&self) -> bool {
        match self {
            Leftover::Cgroup(path) | Leftover::SwapFile(path) | Leftover::Directory(path) => {
                path.exists()
            }
        }
    }
}

fn remove_cgroup(path: &Path) -> Result<()> {
    let deadline = Instant::now() + KILL_LIMIT;
    while path.exists() {
        let procs = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines().filter_map(|line| line.parse().ok()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(50)),
            Err(error) => return Err(Error::at(path)(error)),
        }
    }
    Ok(())
}

fn remove_swap_file(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    if is_swap(path) {
        let output = Command::new("swapoff").arg(path).output().map_err(Error::io("swapoff"))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
            return Err(Error::Program { program: "swapoff".into(), message });
        }
    }
    fs::remove_file(path).map_err(Error::at(path))
}

/// True if the kernel swaps to this file.
pub fn is_swap(path: &Path) -> bool {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let swaps = fs::read("/proc/swaps").unwrap_or_default();
    is_listed(&String::from_utf8_lossy(&swaps), &path.to_string_lossy())
}

/// Whether a path is in the kernel's list, which writes what would end a word as a backslash and
/// three octal digits.
fn is_listed(swaps: &str, path: &str) -> bool {
    let mut written = String::with_capacity(path.len());
    for c in path.chars() {
        match c {
            ' ' | '\t' | '\n' | '\\' => written += &format!("\\{:03o}", u32::from(c)),
            c => written.push(c),
        }
    }
    swaps.lines().skip(1).any(|line| line.split_whitespace().next() == Some(&written))
}

/// The list of one process.
#[derive(Debug)]
pub struct Registry {
    path: PathBuf,
    file: Mutex<File>,
}

impl Registry {
    /// Starts the list of this process, in `dir`.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn create(dir: &Path) -> Result<Registry> {
        fs::create_dir_all(dir).map_err(Error::at(dir))?;
        let pid = std::process::id();
        let start = start_time(pid).unwrap_or(0);
        let path = dir.join(format!("{pid}-{start}"));
        let file = File::options().create(true).append(true).open(&path);
        Ok(Registry { file: Mutex::new(file.map_err(Error::at(&path))?), path })
    }

    /// Notes a thing that is about to be made.
    ///
    /// # Errors
    /// If the list can't be written; the thing must not be made then.
    pub fn note(&self, leftover: &Leftover) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(leftover.to_line().as_bytes()).map_err(Error::at(&self.path))
    }

    /// The file of the list.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = clean_list(&self.path);
    }
}

/// Removes everything in a list, the last first, and then the list. Returns what was really there.
///
/// # Errors
/// If something can't be removed; the list stays then.
pub fn clean_list(list: &Path) -> Result<Vec<Leftover>> {
    let text = match fs::read_to_string(list) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::at(list)(error)),
    };
    let mut removed = Vec::new();
    let mut failure = None;
    for leftover in text.lines().rev().filter_map(Leftover::from_line) {
        let was_there = leftover.exists();
        match leftover.remove() {
            Ok(()) if was_there => removed.push(leftover),
            Ok(()) => {}
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) => Err(error),
        None => {
            fs::remove_file(list).map_err(Error::at(list))?;
            Ok(removed)
        }
    }
}

/// Cleans the lists of processes that have ended. Returns what was found.
///
/// # Errors
/// If the directory can't be read, or something can't be removed.
pub fn clean_dead(dir: &Path) -> Result<Vec<Leftover>> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(Vec::new()) };
    let mut removed = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::at(dir))?.path();
        let owner = path.file_name().and_then(|name| name.to_str()).and_then(owner);
        let Some((pid, start)) = owner else { continue };
        if start_time(pid) != Some(start) {
            removed.extend(clean_list(&path)?);
        }
    }
    Ok(removed)
}

/// The process id and start time in a list's name.
fn owner(name: &str) -> Option<(u32, u64)> {
    let (pid, start) = name.split_once('-')?;
    Some((pid.parse().ok()?, start.parse().ok()?))
}

/// When a process started, in clock ticks since the boot: field 22 of `/proc/<pid>/stat`. Nothing
/// if it has ended.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the program's name in parentheses, may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    // A zombie has ended.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back_and_foreign_paths_are_refused() {
        let leftovers = [
            Leftover::Cgroup("/sys/fs/cgroup/memory/tidepool-lab-1".into()),
            Leftover::SwapFile("/tmp/a dir/tidepool-lab.swap".into()),
            Leftover::Directory("/tmp/tidepool-lab-x".into()),
        ];
        for leftover in leftovers {
            assert_eq!(Leftover::from_line(leftover.to_line().trim_end()), Some(leftover));
        }
        assert_eq!(Leftover::from_line("directory /home"), None);
        assert_eq!(Leftover::from_line("cgroup /sys/fs/cgroup/memory"), None);
    }

    #[test]
    fn swap_space_is_found_in_a_directory_with_a_space_in_its_name() {
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n\
                     /a\\040dir/tidepool-lab.swap\tfile\t1024\t0\t-2\n/b\\134c\tfile\t1024\t0\t-3\n";
        assert!(is_listed(swaps, "/a dir/tidepool-lab.swap"));
        assert!(is_listed(swaps, r"/b\c"));
        assert!(!is_listed(swaps, "/a"));
    }

    #[test]
    fn the_start_time_tells_processes_apart() {
        let own = start_time(std::process::id());
        assert!(own.is_some());
        assert_eq!(start_time(u32::MAX), None);
    }

    #[test]
    fn the_list_of_a_dead_process_is_cleaned_and_that_of_a_living_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let ours = dir.path().join("tidepool-lab-ours");
        let theirs = dir.path().join("tidepool-lab-theirs");
        fs::create_dir_all(ours.join("sub")).unwrap();
        fs::create_dir_all(theirs.join("sub")).unwrap();
        let lists = dir.path().join("lists");
        let registry = Registry::create(&lists).unwrap();
        registry.note(&Leftover::Directory(ours.clone())).unwrap();
        // A process with our id that started at another time is not us.
        let dead = lists.join(format!("{}-1", std::process::id()));
        fs::write(&dead, Leftover::Directory(theirs.clone()).to_line()).unwrap();

        let removed = clean_dead(&lists).unwrap();
        assert_eq!(removed, [Leftover::Directory(theirs.clone())]);
        assert!(!theirs.exists() && !dead.exists());
        assert!(ours.exists() && registry.path().exists());

        drop(registry);
        assert!(!ours.exists());
    }
}
