//! A directory in use, and directories that may only be read.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool::storage::{Fault, FaultKind, SimStorage, StorageOp};
use tidepool::{Db, Error, Options, TransactionOptions};

use crate::fixture::{count, def, directory, killed, open_error, options};

#[test]
fn directory_in_use() {
    let dir = directory();
    let _db = Db::open(dir.path(), options()).unwrap();
    assert_eq!(
        open_error(dir.path()),
        "cannot lock 'lock': Resource temporarily unavailable (os error 11) \
         (this data directory is open already, in another process or in this one: close it there first)"
    );
}

#[test]
fn read_only_mode_reads_and_refuses_to_write() {
    let dir = directory();
    let before = listing(dir.path());
    let db = Db::open(dir.path(), Options { read_only: true, ..options() }).unwrap();
    let a = db.open_table("a").unwrap();
    assert_eq!(count(&db, &a).unwrap(), 1000);
    let mut trx = db.begin(TransactionOptions::default());
    assert_eq!(
        trx.insert(&a, 0, b"x", b"").unwrap_err().to_string(),
        "read-only: the data directory is open read-only"
    );
    trx.commit().unwrap();
    assert_eq!(
        db.create_table("c", &def()).unwrap_err().to_string(),
        "read-only: the data directory is open read-only"
    );
    assert_eq!(
        db.drop_table("a").unwrap_err().to_string(),
        "read-only: the data directory is open read-only"
    );
    assert!(a.check(&db, &mut |_| true).unwrap().is_clean());
    db.close().unwrap();
    assert_eq!(listing(dir.path()), before);
}

#[test]
fn readers_share_a_directory_and_a_writer_has_it_alone() {
    let dir = directory();
    let read_only = || Db::open(dir.path(), Options { read_only: true, ..options() });
    let (one, two) = (read_only().unwrap(), read_only().unwrap());
    for db in [&one, &two] {
        assert_eq!(count(db, &db.open_table("a").unwrap()).unwrap(), 1000);
    }
    assert!(open_error(dir.path()).contains("this data directory is open already"));
    one.close().unwrap();
    assert!(open_error(dir.path()).contains("this data directory is open already"));
    two.close().unwrap();
    let _writer = Db::open(dir.path(), options()).unwrap();
    let error = read_only().unwrap_err().to_string();
    assert!(error.contains("this data directory is open already"), "{error}");
}

#[test]
fn read_only_mode_needs_a_clean_directory() {
    let dir = killed();
    let error = Db::open(dir.path(), Options { read_only: true, ..options() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "read-only: the data directory was not closed cleanly, and recovery must write: open it writable once"
    );
}

/// Names, lengths and contents.
fn listing(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = vec![];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => out.extend(listing(&path)),
            false => out.push((path.clone(), fs::read(path).unwrap())),
        }
    }
    out.sort();
    out
}

#[test]
fn read_only_mode_makes_no_new_directory() {
    let dir = tempfile::tempdir().unwrap();
    let error = Db::open(dir.path(), Options { read_only: true, ..options() }).unwrap_err();
    assert_eq!(error.to_string(), "read-only: there is no data directory, and none can be made");
    assert!(!dir.path().join("redo").exists());
    assert!(matches!(error, Error::ReadOnly(_)));
    let missing = dir.path().join("missing");
    Db::open(&missing, Options { read_only: true, ..options() }).unwrap_err();
    assert!(!missing.exists());
}

/// A mount of a directory, over itself, that may only be read; while this lives.
struct ReadOnlyMount<'p>(&'p Path);

impl<'p> ReadOnlyMount<'p> {
    /// None if this user may not mount.
    fn new(dir: &'p Path) -> Option<Self> {
        let path = dir.to_str().unwrap();
        if !run("mount", &["--bind", path, path]) {
            return None;
        }
        let mount = Self(dir);
        run("mount", &["-o", "remount,bind,ro", path]).then_some(mount)
    }
}

impl Drop for ReadOnlyMount<'_> {
    fn drop(&mut self) {
        run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let output = std::process::Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// A snapshot, say. Files are closed and opened again meanwhile.
#[test]
fn read_only_mode_on_a_file_system_that_may_only_be_read() {
    for has_lock_file in [true, false] {
        let dir = directory();
        if !has_lock_file {
            fs::remove_file(dir.path().join("lock")).unwrap();
        }
        let Some(_mount) = ReadOnlyMount::new(dir.path()) else {
            tidepool_skip::skip("this user may not mount");
            return;
        };
        let options = || Options { read_only: true, open_files: 1, ..options() };
        let db = Db::open(dir.path(), options()).unwrap();
        for name in ["a", "b", "a"] {
            assert_eq!(count(&db, &db.open_table(name).unwrap()).unwrap(), 1000);
        }
        // Those who only read do not disturb each other.
        Db::open(dir.path(), options()).unwrap().close().unwrap();
        db.close().unwrap();
    }
}

#[test]
fn read_only_data_directory() {
    let sim = SimStorage::new(4);
    sim.inject(Fault::new(StorageOp::Create, FaultKind::ReadOnly).always());
    let error = Db::open_on(Arc::new(sim), options()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "read-only: cannot create 'system.tpd': Read-only file system (os error 30) (the file system is mounted read-only: remount it for writing, after looking in the kernel log for the reason)"
    );
}
