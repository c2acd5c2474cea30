//! A process that outlives ours to tidy up after it.
//!
//! It is this program again, in a new session (so that Ctrl-C does not reach it), reading from a
//! pipe whose other end only we hold. However we end, the pipe closes, and the janitor removes what
//! the [`registry`](super::registry) still lists. Unlike a signal handler this works for SIGKILL,
//! too, and needs no code that is safe in one.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use super::registry::clean_list;
use crate::error::{Error, Result};
use crate::subprocess;

/// Keeps the pipe open. Dropped, it waits until the janitor has ended.
#[derive(Debug)]
pub struct Janitor {
    child: Child,
}

impl Janitor {
    /// Starts a janitor for a list.
    ///
    /// # Errors
    /// If this program can't be run again.
    pub fn start(list: &Path) -> Result<Janitor> {
        let child = Command::new(subprocess::own_program()?)
            .args([subprocess::JANITOR.as_ref(), list.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(Error::io("the janitor process"))?;
        Ok(Janitor { child })
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The janitor's main function.
pub fn main(arguments: &[String]) -> ExitCode {
    let [list] = arguments else { return ExitCode::from(2) };
    let _ = rustix::process::setsid();
    // Returns when the pipe closes: nothing is ever written to it.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    match clean_list(&PathBuf::from(list)) {
        Ok(removed) if removed.is_empty() => ExitCode::SUCCESS,
        Ok(removed) => {
            eprintln!("removed what was left behind: {removed:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!(
                "could not remove all that was left behind; the next run will try again: {error}"
            );
            ExitCode::FAILURE
        }
    }
}
