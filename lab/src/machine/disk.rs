//! The disk before an experiment: volumes of clouds and thin-provisioned disks serve what has not
//! been read for long many times slower than what has. Without this the first engine to run would
//! be the slowest.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use crate::error::{Error, Result};

/// Read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Reads all files in `dir`, at any depth, once from the disk; says which share is done. The system
/// keeps none of them in memory.
///
/// # Errors
/// If a file or directory can't be read.
pub fn read_through(dir: &Path, say: &mut dyn FnMut(f64)) -> Result<()> {
    let mut files = Vec::new();
    list(dir, &mut files)?;
    let total: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    let mut done = 0;
    let mut chunk = vec![0; CHUNK_BYTES];
    for (path, _) in files {
        let mut file = File::open(&path).map_err(Error::at(&path))?;
        let forget = |file: &File| {
            fadvise(file, 0, None, Advice::DontNeed).map_err(|errno| Error::at(&path)(errno.into()))
        };
        // What the system holds already would not come from the disk.
        forget(&file)?;
        loop {
            let read = file.read(&mut chunk).map_err(Error::at(&path))?;
            if read == 0 {
                break;
            }
            done += read as u64;
            say(done as f64 / total.max(1) as f64);
        }
        forget(&file)?;
    }
    Ok(())
}

fn list(dir: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(Error::at(dir))? {
        let path = entry.map_err(Error::at(dir))?.path();
        // Not through links: what they lead to is not of this directory.
        let meta = std::fs::symlink_metadata(&path).map_err(Error::at(&path))?;
        if meta.is_dir() {
            list(&path, files)?;
        } else if meta.is_file() {
            files.push((path, meta.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_at_any_depth_are_read_and_links_are_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/large"), vec![1; 3 * CHUNK_BYTES]).unwrap();
        std::fs::write(dir.path().join("empty"), []).unwrap();
        std::fs::write(dir.path().join("a/small"), vec![1; CHUNK_BYTES]).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
        let mut shares = Vec::new();
        read_through(dir.path(), &mut |share| shares.push(share)).unwrap();
        assert_eq!(shares.len(), 4);
        assert!(shares.is_sorted() && *shares.last().unwrap() == 1.0, "{shares:?}");
        let message = read_through(&dir.path().join("gone"), &mut |_| ()).unwrap_err().to_string();
        assert!(message.contains("gone"), "{message}");
    }
}
