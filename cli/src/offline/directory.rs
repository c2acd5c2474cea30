//! Which directory is meant, its lock, and the scratch that recovery writes to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use tempfile::TempDir;
use tidepool::Options;
use tidepool::inspect::Inspection;
use tidepool::storage::{FileOptions, FileStorage, Storage, StorageError, StorageLock};

use super::key_file;
use crate::bytes;
use crate::exit::{Error, Result};

/// The file that says that a directory is one of the engine's.
const CONTROL_FILE: &str = "redo/control";
/// The engine's directory in a server's.
pub(super) const ENGINE_DIR: &str = "tidepool";

/// Where the data directory is, and what may be used beside it.
#[derive(Debug, Args)]
pub struct Place {
    /// A server's data directory, the engine's in it (`tidepool`), or a backup. No server may be
    /// running on it
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Memory for pages
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = bytes::parse)]
    pub memory: u64,
    /// Where recovery writes to, instead of DIR: a directory with room for the pages that the log
    /// changes
    #[arg(long, value_name = "PATH", default_value_os_t = std::env::temp_dir())]
    pub temp_dir: PathBuf,
    /// The keys of what is encrypted: a file in the plain format of the server's
    /// file_key_management plugin
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

/// A directory that is being looked at.
pub struct Directory {
    /// The engine's directory.
    pub root: PathBuf,
    /// The engine, on an overlay of it.
    pub inspection: Inspection,
    /// Removed when all is over.
    _scratch: TempDir,
    /// Keeps servers out.
    _lock: Option<StorageLock>,
}

impl Directory {
    /// Opens it for looking.
    ///
    /// # Errors
    /// There is no data directory, a server has it open, or the temporary directory can't be used.
    pub fn open(place: &Place) -> Result<Directory> {
        let (root, base, lock) = open_to_read(&place.dir)?;
        let scratch =
            tempfile::Builder::new().prefix("tidepool-scratch-").tempdir_in(&place.temp_dir);
        let scratch = scratch.map_err(|error| Error::file(&place.temp_dir, &error))?;
        let options = FileOptions { direct_io: false, ..FileOptions::default() };
        let files = FileStorage::new(scratch.path(), options)
            .map_err(|error| Error::Local(format!("{}: {error}", scratch.path().display())))?;
        let keyring = place.key_file.as_deref().map(key_file::read).transpose()?;
        let options =
            Options { buffer_pool_size_bytes: place.memory, keyring, ..Options::default() };
        options.validate().map_err(|error| Error::Usage(format!("--memory: {error}")))?;
        let inspection = Inspection::open(base, Arc::new(files), options);
        let inspection = inspection.map_err(|error| {
            Error::Local(match error {
                // Nothing of the directory itself is written.
                tidepool::Error::NoSpace(_) => format!(
                    "{}: {error}, or name another directory with --temp-dir",
                    place.temp_dir.display()
                ),
                tidepool::Error::Storage(_) => {
                    format!("{}, given by --temp-dir: {error}", place.temp_dir.display())
                }
                error => format!("{}: {error}", root.display()),
            })
        })?;
        Ok(Directory { root, inspection, _scratch: scratch, _lock: lock })
    }
}

/// The engine's directory in `dir`, to be read alone, and the lock that keeps servers out.
pub(super) fn open_to_read(dir: &Path) -> Result<(PathBuf, Arc<dyn Storage>, Option<StorageLock>)> {
    let root = engine_dir(dir)?;
    let local = |error: StorageError| Error::Local(format!("{}: {error}", root.display()));
    // Buffered, as an overlay needs it.
    let options = FileOptions { direct_io: false, read_only: true, ..FileOptions::default() };
    let base = FileStorage::new(&root, options).map_err(local)?;
    let lock = base.lock_shared("lock").map_err(|error| match error.is_locked() {
        true => Error::Local(format!(
            "{}: a server, or another program, has this directory open: stop it first, or look at \
             a backup",
            root.display()
        )),
        false => local(error),
    })?;
    Ok((root, Arc::new(base), lock))
}

/// The directory that `path` is in, or would be.
pub(super) fn directory_above(path: &Path) -> &Path {
    match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    }
}

/// The engine's directory: `dir`, or the one in it.
pub(super) fn engine_dir(dir: &Path) -> Result<PathBuf> {
    if let Err(error) = std::fs::read_dir(dir) {
        return Err(Error::file(dir, &error));
    }
    let is_engine_dir =
        |dir: &Path| dir.join(CONTROL_FILE).exists() || dir.join("system.tpd").exists();
    let candidates = [dir.to_path_buf(), dir.join(ENGINE_DIR)];
    candidates.into_iter().find(|dir| is_engine_dir(dir)).ok_or_else(|| {
        Error::Local(format!(
            "{}: no data directory of Tidepool, for there is no {CONTROL_FILE} in it nor in \
             {ENGINE_DIR}/. With tidepool_data_home_dir it is the directory that this names",
            dir.display()
        ))
    })
}
