//! A copy of a data directory, for tests that harm it.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// Copies everything below `from` into the directory `to`.
pub fn copy_dir(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (from, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        if from.is_dir() {
            fs::create_dir_all(to.join(&name)).unwrap();
            copy_dir(&from, &to.join(name));
        } else {
            fs::copy(from, to.join(name)).unwrap();
        }
    }
}

/// A copy in a temporary directory.
pub fn copy_of(from: &Path) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    copy_dir(from, to.path());
    to
}
