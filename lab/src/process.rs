//! Starting programs so that none outlives its experiment, and so that each is in its cgroups
//! before its first instruction (memory is charged to the cgroup in which it is touched first).

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use crate::error::{Error, Result};

/// Starts a process that the kernel kills when the calling thread ends, in the cgroups whose
/// `cgroup.procs` are given.
///
/// # Errors
/// If a cgroup can't be opened or joined, or the program can't be run.
pub fn spawn_tied(command: &mut Command, cgroup_procs: &[PathBuf]) -> Result<Child> {
    let mut groups = Vec::new();
    for path in cgroup_procs {
        groups.push(File::options().write(true).open(path).map_err(Error::at(path))?);
    }
    // SAFETY: the closure runs in the child between fork and exec. It makes system calls that are
    // async-signal-safe (prctl, write) on descriptors that were opened before the fork, and neither
    // allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            for group in &groups {
                // "0" is the writing process.
                rustix::io::write(group.as_fd(), b"0")?;
            }
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            Ok(())
        });
    }
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(Error::io(program))
}
