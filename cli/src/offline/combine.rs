//! `tidepool combine`: one complete backup of a complete one and its incremental ones.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tidepool::storage::{FileOptions, FileStorage, Storage, StorageLock};
use tidepool::{CombineReport, Remedy, UNFINISHED_MARK, combine_backups, make_marked_dir};

use super::directory::{ENGINE_DIR, directory_above, open_to_read};
use super::progress::Progress;
use crate::bytes::human;
use crate::exit::{Error, Result};
use crate::terminal::print_text;

/// The file of a server's backup that says of which moment it is.
const INFO_FILE: &str = "tidepool_backup_info";

/// What `combine` is given.
#[derive(Debug, Args)]
pub struct Options {
    /// The backups: the complete one, then the incremental ones, the oldest first
    #[arg(value_name = "BACKUP", required = true, num_args = 1..)]
    backups: Vec<PathBuf>,
    /// Where the complete backup goes: a directory that does not exist
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

/// A backup that is read.
struct Source {
    /// The directory that was named.
    dir: PathBuf,
    /// The engine's, which is the same or in it.
    root: PathBuf,
    storage: Arc<dyn Storage>,
    /// Keeps servers out.
    _lock: Option<StorageLock>,
}

/// Combines them.
///
/// # Errors
/// They do not follow each other, one is damaged, or the directory can't be made. Then the
/// directory has the mark "unfinished", and no server starts on it.
pub fn run(options: &Options) -> Result<ExitCode> {
    let sources: Vec<Source> =
        options.backups.iter().map(|dir| Source::open(dir)).collect::<Result<_>>()?;
    let newest = sources.last().expect("one is required");
    let to = &options.to;
    if to.exists() {
        return Err(Error::Usage(format!(
            "--to {}: it exists: name a directory that does not",
            to.display()
        )));
    }
    let read = sources.iter().flat_map(|source| [&*source.dir, &*source.root]);
    if let Some(dir) = source_around(to, read) {
        let why = format!("it is in the backup {}: name another", dir.display());
        return Err(Error::Usage(format!("--to {}: {why}", to.display())));
    }
    let local = |error: tidepool::Error| Error::Local(error.to_string());
    make_marked_dir(to).map_err(local)?;
    let is_of_server = newest.root != newest.dir;
    let target = if is_of_server { to.join(ENGINE_DIR) } else { to.clone() };
    if is_of_server {
        make_marked_dir(&target).map_err(local)?;
    }
    let report = combine_into(&sources, &target)?;
    if is_of_server {
        copy_server_files(&newest.dir, to)?;
        let mark = to.join(UNFINISHED_MARK);
        sync_dir(to)
            .and_then(|()| fs::remove_file(&mark))
            .and_then(|()| sync_dir(to))
            .map_err(|error| Error::file(&mark, &error))?;
    }
    print_text(&format!(
        "{}: a complete backup, as of {}. {} files of tables and undo, {} of pages.\n",
        to.display(),
        newest.dir.display(),
        report.files,
        human(report.copied_bytes)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The backup in whose directory `to` would be.
fn source_around<'s>(to: &Path, sources: impl Iterator<Item = &'s Path>) -> Option<PathBuf> {
    // If it isn't there, nothing can be made in it.
    let above = directory_above(to).canonicalize().ok()?;
    sources.filter_map(whole_backup).find(|dir| above.starts_with(dir))
}

/// The directory of the backup: that of a server may have been named by the engine's in it.
fn whole_backup(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().ok()?;
    let is_inner = |above: &&Path| dir.ends_with(ENGINE_DIR) && above.join(INFO_FILE).exists();
    let above = dir.parent().filter(is_inner).map(Path::to_path_buf);
    Some(above.unwrap_or(dir))
}

fn combine_into(sources: &[Source], target: &Path) -> Result<CombineReport> {
    let storage = FileStorage::new(target, FileOptions::default());
    let storage =
        storage.map_err(|error| Error::Local(format!("{}: {error}", target.display())))?;
    let parts: Vec<Arc<dyn Storage>> =
        sources.iter().map(|source| source.storage.clone()).collect();
    let total = sources.iter().map(|source| tables_bytes(&source.root)).sum();
    let progress = Progress::new();
    let mut go_on = |done: u64| {
        progress.tell("pages", done, total);
        true
    };
    let report = combine_backups(&parts, Arc::new(storage), &mut go_on);
    drop(progress);
    report.map_err(|error| Error::Local(error.to_string()))
}

/// Bytes of the files of tables, as far as they can be counted.
fn tables_bytes(root: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(root.join("tables")) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
}

impl Source {
    fn open(dir: &Path) -> Result<Source> {
        let (root, storage, lock) = open_to_read(dir)?;
        if dir.join(UNFINISHED_MARK).exists() {
            let why = "this backup was interrupted, or is still being made";
            let remedy = Remedy::WaitOrUseAnotherBackup;
            return Err(Error::Local(format!("{}: {why}: {remedy}", dir.display())));
        }
        Ok(Source { dir: dir.to_path_buf(), root, storage, _lock: lock })
    }
}

/// Copies what the newest backup has beside the engine's directory: the databases' directories, and
/// of which moment it is.
fn copy_server_files(from: &Path, to: &Path) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |error: io::Error| Error::file(&path, &error)
    };
    for entry in fs::read_dir(from).map_err(failed(from))? {
        let entry = entry.map_err(failed(from))?;
        let (path, name) = (entry.path(), entry.file_name());
        if [OsStr::new(ENGINE_DIR), OsStr::new("lost+found")].contains(&&*name) {
            continue;
        }
        let goal = to.join(&name);
        if path.is_dir() {
            // As a backup has them: `cp -a` restores them so.
            DirBuilder::new().mode(0o700).create(&goal).map_err(failed(&goal))?;
            copy_server_files(&path, &goal)?;
            sync_dir(&goal).map_err(failed(&goal))?;
        } else {
            let copy = fs::copy(&path, &goal).and_then(|_| fs::File::open(&goal)?.sync_all());
            copy.map_err(failed(&goal))?;
        }
    }
    Ok(())
}

/// Makes the names in `dir` durable.
fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn nothing_is_made_in_a_backup_that_is_read() {
        let is_in = |to: &str, source: &str| {
            source_around(Path::new(to), [Path::new(source)].into_iter()).is_some()
        };
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        for to in ["complete", "./complete", "src/complete", &format!("{here}/complete")] {
            assert!(is_in(to, ".") && is_in(to, here), "{to}");
        }
        assert!(!is_in("../complete", ".") && !is_in("complete", "src"));
    }

    #[test]
    fn nothing_is_made_beside_the_directory_of_the_engine_in_a_servers_backup() {
        let dir = tempfile::tempdir().unwrap();
        let (backup, inner) = (dir.path().join("monday"), dir.path().join("monday/tidepool"));
        fs::create_dir_all(&inner).unwrap();
        let around = |to: &Path| source_around(to, [&*inner].into_iter());
        let (beside, within) = (backup.join("complete"), inner.join("complete"));
        // A directory of this name may be a backup by itself, among others.
        assert_eq!(around(&beside), None);
        assert_eq!(around(&within), Some(inner.canonicalize().unwrap()));
        fs::write(backup.join(INFO_FILE), "").unwrap();
        for to in [&beside, &within] {
            assert_eq!(around(to), Some(backup.canonicalize().unwrap()), "{}", to.display());
        }
        assert_eq!(around(&dir.path().join("complete")), None);
    }

    #[test]
    fn directories_of_databases_are_their_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        fs::create_dir_all(from.join("shop")).unwrap();
        fs::write(from.join("shop/t.frm"), "frm").unwrap();
        fs::set_permissions(from.join("shop"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(&to).unwrap();
        copy_server_files(&from, &to).unwrap();
        assert_eq!(fs::read(to.join("shop/t.frm")).unwrap(), b"frm");
        let mode = fs::metadata(to.join("shop")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
