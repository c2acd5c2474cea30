//! A swap file that exists for the length of an experiment.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::registry::{Leftover, Registry};
use crate::error::{Error, Result};

/// Swap space; given back when dropped.
#[derive(Debug)]
pub struct SwapFile {
    path: PathBuf,
}

impl SwapFile {
    /// Makes a file of `size_bytes` in `dir` and swaps to it.
    ///
    /// # Errors
    /// If there is no room, or the user may not.
    pub fn create(registry: &Registry, dir: &Path, size_bytes: u64) -> Result<SwapFile> {
        let path = dir.join(format!("tidepool-lab-{}.swap", std::process::id()));
        registry.note(&Leftover::SwapFile(path.clone()))?;
        let swap = SwapFile { path };
        let path = &swap.path;
        {
            let file = File::create(path).map_err(Error::at(path))?;
            rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o600))
                .and_then(|()| {
                    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size_bytes)
                })
                .map_err(|errno| Error::at(path)(errno.into()))?;
        }
        run("mkswap", path)?;
        run("swapon", path)?;
        Ok(swap)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        if let Err(error) = Leftover::SwapFile(self.path.clone()).remove() {
            tracing::warn!("the swap file stays until the next run: {error}");
        }
    }
}

fn run(program: &str, path: &Path) -> Result<()> {
    let output = Command::new(program).arg(path).output().map_err(Error::io(program))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(Error::Program { program: program.into(), message })
}
