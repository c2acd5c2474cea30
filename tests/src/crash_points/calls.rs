//! The calls by which one thread of the server changes files, counted and cut short by `strace`.
//!
//! `strace` attaches to the thread that serves one connection. A first run of a statement notes the
//! calls; each later run kills the server as it enters one of them, before the call does anything.
//! `strace` counts each kind of call of each thread by itself, so a [`Call`] is a kind and a
//! number. Calls of the engine's own threads are not counted: what these write is covered by the
//! engine's simulation, which crashes at any step of any thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::server::{spawn_tied_to_thread, wait_until};

/// What changes files, or makes a change durable.
const CALLS: &str = "\
    write,pwrite64,pwritev,pwritev2,fsync,fdatasync,sync_file_range,rename,renameat,\
    renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,truncate,ftruncate,fallocate,\
    openat,link,linkat,symlink,symlinkat,copy_file_range,sendfile";
/// How long `strace` may take to attach, or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A crash point: the server dies as the thread enters this call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name of the system call.
    pub name: String,
    /// Which call of this name, from 1.
    pub number: u32,
    /// The line that `strace` printed, without the contents of buffers.
    pub text: String,
}

/// `strace`, attached to a thread.
pub struct Tracer {
    child: Child,
    output: PathBuf,
}

/// Whether `strace` is there and may attach to another process.
pub fn is_strace_there() -> bool {
    Command::new("strace")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

impl Tracer {
    /// Notes the calls of a thread. `output` is a file that is made.
    ///
    /// # Panics
    /// If `strace` does not attach.
    pub fn note(thread: u32, output: &Path) -> Tracer {
        Tracer::attach(thread, output, &[])
    }

    /// Kills the process when the thread enters a call.
    ///
    /// # Panics
    /// If `strace` does not attach.
    pub fn kill_at(thread: u32, call: &Call, output: &Path) -> Tracer {
        let inject = format!("inject={}:signal=KILL:when={}", call.name, call.number);
        Tracer::attach(thread, output, &["-e", &inject])
    }

    fn attach(thread: u32, output: &Path, more: &[&str]) -> Tracer {
        let mut command = Command::new("strace");
        command
            .args(["-q", "-y", "-s", "0", "-e", &format!("trace={CALLS}")])
            .args(more)
            .args(["-p", &thread.to_string(), "-o"])
            .arg(output)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = spawn_tied_to_thread(&mut command);
        let tracer = Tracer { child, output: output.into() };
        // The thread may make the call, and the server be gone, before this looks.
        let is_gone = || !Path::new(&format!("/proc/{thread}")).exists();
        wait_until(PATIENCE, "strace attaches", || {
            tracer_of(thread) == Some(tracer.child.id()) || is_gone()
        });
        tracer
    }

    /// Detaches, if the thread is still there, and gives what changed files below `data_dir`.
    ///
    /// # Panics
    /// If `strace` does not end, or its output can't be read.
    pub fn finish(mut self, data_dir: &Path) -> Vec<Call> {
        let pid = rustix::process::Pid::from_child(&self.child);
        // It may have ended with the thread.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        wait_until(PATIENCE, "strace ends", || {
            self.child.try_wait().expect("a child can be waited for").is_some()
        });
        let text = fs::read_to_string(&self.output).expect("strace has made its output");
        calls_of(&text, data_dir)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process that traces a thread.
fn tracer_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok()
}

fn calls_of(trace: &str, data_dir: &Path) -> Vec<Call> {
    let mut counts: Vec<(String, u32)> = Vec::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let Some((name, arguments)) = line.split_once('(') else { continue };
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            continue;
        }
        let number = match counts.iter_mut().find(|(of, _)| of == name) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                counts.push((name.into(), 1));
                1
            }
        };
        if changes_data(name, arguments, data_dir) {
            calls.push(Call { name: name.into(), number, text: line.into() });
        }
    }
    calls
}

/// Whether a call changes a file below `data_dir`. The server names files there by relative paths.
fn changes_data(name: &str, arguments: &str, data_dir: &Path) -> bool {
    if name == "openat" && !arguments.contains("O_CREAT") && !arguments.contains("O_TRUNC") {
        return false;
    }
    let data_dir = data_dir.to_string_lossy();
    arguments.contains(&*data_dir) || arguments.contains("\"./")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_kind_and_those_that_change_nothing_are_left_out() {
        let trace = "openat(AT_FDCWD</d>, \"./t/a.frm\", O_RDONLY|O_CLOEXEC) = 9</d/t/a.frm>\n\
                     openat(AT_FDCWD</d>, \"./t/b.frm\", O_RDWR|O_CREAT|O_TRUNC, 0660) = 9</d/t/b.frm>\n\
                     write(2</log>, \"\"..., 10) = 10\n\
                     write(9</d/t/b.frm>, \"\"..., 10) = 10\n\
                     rename(\"./t/b.frm\", \"./t/c.frm\") = 0\n\
                     +++ killed by SIGKILL +++\n";
        let calls = calls_of(trace, Path::new("/d"));
        let found: Vec<_> = calls.iter().map(|call| (call.name.as_str(), call.number)).collect();
        assert_eq!(found, [("openat", 2), ("write", 2), ("rename", 1)]);
    }
}
