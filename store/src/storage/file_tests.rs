//! Real files: contents, directories, locks, exact error messages.

use super::*;
use crate::storage::AlignedBuf;

fn storage(direct_io: bool) -> (tempfile::TempDir, FileStorage) {
    let dir = tempfile::tempdir().unwrap();
    let storage =
        FileStorage::new(dir.path(), FileOptions { direct_io, ..FileOptions::default() }).unwrap();
    (dir, storage)
}

#[test]
fn bytes_written_are_bytes_read() {
    for direct_io in [false, true] {
        let (_dir, storage) = storage(direct_io);
        let file = storage.create("a.tpd").unwrap();
        file.set_len(65536).unwrap();
        assert_eq!(file.len().unwrap(), 65536);
        let mut page = AlignedBuf::zeroed(16384);
        page.fill(0xAB);
        file.write_at(&page, 16384).unwrap();
        file.sync_data().unwrap();
        let mut back = AlignedBuf::zeroed(65536);
        file.read_at(&mut back, 0).unwrap();
        assert!(back[..16384].iter().all(|&b| b == 0));
        assert!(back[16384..32768].iter().all(|&b| b == 0xAB));
        let error = file.read_at(&mut back, 4096).unwrap_err();
        assert!(error.is_unexpected_eof());
        assert_eq!(
            error.to_string(),
            "cannot read 'a.tpd' at offset 4096: unexpected end of file (the file has been \
             truncated: restore the data directory from a backup)"
        );
        file.set_len(16384).unwrap();
        assert_eq!(file.len().unwrap(), 16384);
    }
}

#[test]
fn misaligned_direct_io_is_refused_by_name() {
    let (_dir, storage) = storage(true);
    let file = storage.create("a").unwrap();
    if file.io_alignment() > 1 {
        let buf = AlignedBuf::zeroed(4096);
        let error = file.write_at(&buf[1..], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn names_live_in_directories() {
    let (_dir, storage) = storage(true);
    storage.create_dir("tables").unwrap();
    storage.create_dir("tables").unwrap();
    storage.create("tables/b").unwrap();
    storage.create("tables/a").unwrap();
    assert_eq!(storage.list("tables").unwrap(), ["a", "b"]);
    assert!(storage.create("tables/a").err().unwrap().is_already_exists());
    storage.rename("tables/a", "tables/c").unwrap();
    storage.rename("tables/c", "tables/b").unwrap();
    storage.sync_dir("tables").unwrap();
    storage.sync_dir("").unwrap();
    assert_eq!(storage.list("tables").unwrap(), ["b"]);
    storage.remove("tables/b").unwrap();
    assert!(!storage.exists("tables/b").unwrap());
    assert!(storage.open("tables/b").err().unwrap().is_not_found());
    assert_eq!(storage.list("").unwrap(), ["tables"]);
    for bad in ["", "/etc/passwd", "../x", "a//b", "a/./b"] {
        assert!(storage.open(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_missing_directory_is_made_unless_nothing_may_be() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("a");
    let read_only = FileOptions { read_only: true, ..FileOptions::default() };
    assert!(FileStorage::new(&root, read_only).is_err());
    assert!(!root.exists());
    let storage = FileStorage::new(&root, FileOptions::default()).unwrap();
    storage.create("x").unwrap().write_at(&AlignedBuf::zeroed(4096), 0).unwrap();
    let storage = FileStorage::new(&root, read_only).unwrap();
    let file = storage.open("x").unwrap();
    file.read_at(&mut AlignedBuf::zeroed(4096), 0).unwrap();
    file.write_at(&AlignedBuf::zeroed(4096), 0).unwrap_err();
    file.set_len(0).unwrap_err();
    assert_eq!(file.len().unwrap(), 4096);
    assert!(storage.create("y").err().unwrap().is_read_only());
    assert!(storage.create_dir("y").unwrap_err().is_read_only());
    assert!(storage.rename("x", "y").unwrap_err().is_read_only());
    assert!(storage.remove("x").unwrap_err().is_read_only());
    assert_eq!(storage.list("").unwrap(), ["x"]);
}

#[test]
fn the_lock_is_exclusive_and_given_back() {
    let (dir, storage) = storage(true);
    let other = FileStorage::new(dir.path(), FileOptions::default()).unwrap();
    let held = storage.lock("lock").unwrap();
    let error = other.lock("lock").unwrap_err();
    assert!(error.is_locked());
    assert_eq!(
        error.to_string(),
        "cannot lock 'lock': Resource temporarily unavailable (os error 11) (this data \
         directory is open already, in another process or in this one: close it there first)"
    );
    drop(held);
    other.lock("lock").unwrap();
}

#[test]
fn a_file_cut_inside_a_block_reads_as_truncated() {
    for direct_io in [false, true] {
        let (dir, storage) = storage(direct_io);
        let file = storage.create("a").unwrap();
        file.write_at(&AlignedBuf::zeroed(16384), 0).unwrap();
        File::options().write(true).open(dir.path().join("a")).unwrap().set_len(5000).unwrap();
        let mut buf = AlignedBuf::zeroed(16384);
        assert!(file.read_at(&mut buf, 0).unwrap_err().is_unexpected_eof());
        file.read_at(&mut buf[..4096], 0).unwrap();
        assert_eq!(file.io_alignment() > 1, direct_io, "no fallback");
    }
}

/// Storages with each way of running batches; the first has io_uring where the machine allows it.
fn storages_by_batching() -> [(tempfile::TempDir, FileStorage); 2] {
    let (first, second) = (storage(true), storage(true));
    if !first.1.uses_io_uring() {
        eprintln!("io_uring is not allowed here: only the threads are tested");
    }
    let second = (second.0, second.1.without_io_uring());
    assert!(!second.1.uses_io_uring());
    [first, second]
}

#[test]
fn a_batch_runs_every_operation() {
    for (_dir, storage) in storages_by_batching() {
        let files = ["a", "b"].map(|name| storage.create(name).unwrap());
        // More than a ring holds, and sizes that differ.
        let buf = |i: usize| {
            let mut buf = AlignedBuf::zeroed(4096 * (1 + i % 3));
            buf.fill(i as u8);
            buf
        };
        let written: Vec<_> = (0..500).map(buf).collect();
        let place = |i: usize| (&*files[i % 2], (i * 3 * 4096) as u64);
        let mut ops: Vec<_> =
            (0..500).map(|i| IoOp::write(place(i).0, &written[i], place(i).1)).collect();
        storage.run_batch(&mut ops);
        assert!(ops.iter().all(|op| op.result.is_ok()));
        let mut read: Vec<_> = written.iter().map(|buf| AlignedBuf::zeroed(buf.len())).collect();
        let mut ops: Vec<_> = read
            .iter_mut()
            .enumerate()
            .map(|(i, buf)| IoOp::read(place(i).0, buf, place(i).1))
            .collect();
        storage.run_batch(&mut ops);
        assert!(ops.iter().all(|op| op.result.is_ok()));
        drop(ops);
        for (read, written) in read.iter().zip(&written) {
            assert_eq!(**read, **written);
        }
    }
}

#[test]
fn each_operation_of_a_batch_has_its_own_result() {
    for (_dir, storage) in storages_by_batching() {
        let file = storage.create("a").unwrap();
        file.set_len(65536).unwrap();
        let mut bufs: Vec<_> = (0..40).map(|_| AlignedBuf::zeroed(4096)).collect();
        let mut ops: Vec<_> = bufs
            .iter_mut()
            .enumerate()
            .map(|(i, buf)| IoOp::read(&*file, buf, i as u64 * 4096))
            .collect();
        storage.run_batch(&mut ops);
        for (i, op) in ops.iter().enumerate() {
            match &op.result {
                Ok(()) => assert!(i < 16),
                Err(error) => assert!(i >= 16 && error.is_unexpected_eof(), "{error}"),
            }
        }
        drop(ops);
        if file.io_alignment() > 1 {
            let mut ops: Vec<_> =
                bufs.iter().map(|buf| IoOp::write(&*file, &buf[1..], 0)).collect();
            ops.push(IoOp::write(&*file, &bufs[0], 0));
            storage.run_batch(&mut ops);
            let (good, bad) = ops.split_last().unwrap();
            assert!(good.result.is_ok());
            assert!(bad.iter().all(|op| op.result.is_err()));
        }
    }
}

#[test]
fn batches_of_several_threads_do_not_mix() {
    for (_dir, storage) in storages_by_batching() {
        let storage = &storage;
        std::thread::scope(|scope| {
            for thread in 0..6u8 {
                scope.spawn(move || {
                    let file = storage.create(&format!("{thread}")).unwrap();
                    file.set_len(64 * 4096).unwrap();
                    for round in 0..20u8 {
                        let mut buf = AlignedBuf::zeroed(4096);
                        buf.fill(thread * 20 + round);
                        let mut ops: Vec<_> =
                            (0..64).map(|i| IoOp::write(&*file, &buf, i * 4096)).collect();
                        storage.run_batch(&mut ops);
                        assert!(ops.iter().all(|op| op.result.is_ok()));
                        let mut back = AlignedBuf::zeroed(64 * 4096);
                        let mut ops: Vec<_> = back
                            .chunks_mut(4096)
                            .enumerate()
                            .map(|(i, buf)| IoOp::read(&*file, buf, i as u64 * 4096))
                            .collect();
                        storage.run_batch(&mut ops);
                        assert!(ops.iter().all(|op| op.result.is_ok()));
                        drop(ops);
                        assert!(back.iter().all(|&b| b == thread * 20 + round));
                    }
                });
            }
        });
    }
}

/// Who may only read a file can lock it.
#[test]
fn others_can_neither_lock_nor_enter_what_is_made() {
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    let storage = FileStorage::new(&root, FileOptions::default()).unwrap();
    assert_eq!(mode(&root), 0o700);
    drop(storage.lock("lock").unwrap());
    let path = root.join("lock");
    assert_eq!(mode(&path) & 0o137, 0);
    // As earlier versions have made it; and one to which the owner has given less.
    for (before, after) in [(0o644, 0o640), (0o666, 0o640), (0o600, 0o600)] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(before)).unwrap();
        drop(storage.lock("lock").unwrap());
        assert_eq!(mode(&path), after);
    }
    // Who only reads changes nothing.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let options = FileOptions { read_only: true, ..FileOptions::default() };
    drop(FileStorage::new(&root, options).unwrap().lock("lock").unwrap());
    assert_eq!(mode(&path), 0o644);
}

#[test]
fn another_process_sees_the_lock() {
    let (dir, storage) = storage(true);
    let _held = storage.lock("lock").unwrap();
    let tries = std::process::Command::new("flock")
        .arg("-n")
        .arg(dir.path().join("lock"))
        .arg("true")
        .status();
    match tries {
        Ok(status) => assert!(!status.success()),
        Err(error) => tidepool_skip::skip(format!("there is no flock command here ({error})")),
    }
}

#[test]
fn a_failed_sync_poisons_the_file() {
    // The device that is always full can't be synced either, and refuses O_DIRECT at open.
    let devices = FileStorage::new("/dev", FileOptions::default()).unwrap();
    let full = devices.open("full").unwrap();
    assert_eq!(full.io_alignment(), 1);
    assert!(full.write_at(&[1; 512], 0).unwrap_err().is_no_space());
    assert_eq!(
        full.sync_data().unwrap_err().to_string(),
        "cannot sync 'full': Invalid argument (os error 22)"
    );
    assert_eq!(
        full.sync_data().unwrap_err().to_string(),
        "cannot sync 'full': an earlier sync of this file failed, so what reached the disk is \
         unknown; restart to recover"
    );
}

/// A separate small file system, mounted while this lives.
struct Mount {
    dir: tempfile::TempDir,
}

impl Mount {
    /// Two kinds: one in memory, one on a block device. Those that can't be had are left out.
    fn all() -> Vec<Self> {
        let tmpfs =
            Self::new("tmpfs", |dir| run("mount", &["-t", "tmpfs", "-o", "size=4m", "tmpfs", dir]));
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(16 << 20).unwrap();
        let path = image.path().to_str().unwrap();
        let ext4 = Self::new("ext4", |dir| {
            run("mkfs.ext4", &["-q", "-m", "0", path]) && run("mount", &["-o", "loop", path, dir])
        });
        [tmpfs, ext4].into_iter().flatten().collect()
    }

    fn new(kind: &str, mount: impl FnOnce(&str) -> bool) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() && mount(dir.path().to_str().unwrap()) {
            Some(Self { dir })
        } else {
            tidepool_skip::skip(format!("this user may not mount a small {kind} here"));
            None
        }
    }

    fn storage(&self) -> FileStorage {
        FileStorage::new(self.dir.path(), FileOptions::default()).unwrap()
    }

    fn remount_read_only(&self) {
        assert!(run("mount", &["-o", "remount,ro", self.dir.path().to_str().unwrap()]));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &["-l", self.dir.path().to_str().unwrap()]);
    }
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let output = std::process::Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn a_full_disk_refuses_growth_and_nothing_else() {
    const STEP: u64 = 256 << 10;
    for mount in Mount::all() {
        let storage = mount.storage();
        let file = storage.create("a").unwrap();
        let mut len = 0;
        let error = loop {
            match file.set_len(len + STEP) {
                Ok(()) => len += STEP,
                Err(error) => break error,
            }
            assert!(len < 32 << 20, "the disk is never full");
        };
        assert!(error.is_no_space());
        assert_eq!(
            error.to_string(),
            format!(
                "cannot change the length of 'a' to {} bytes: No space left on device (os error 28) \
                 (free space on this disk; nothing committed is lost)",
                len + STEP
            )
        );
        assert_eq!(file.len().unwrap(), len, "the length stays");
        // What is allocated can be written, on a disk as full as can be.
        let other = storage.create("b").unwrap();
        let mut buf = AlignedBuf::zeroed(STEP as usize);
        buf.fill(7);
        let filled = (0..1000).map(|i| other.write_at(&buf[..4096], i * 4096));
        let error = filled.filter_map(Result::err).next().expect("b runs into the end of the disk");
        assert!(error.is_no_space(), "{error}");
        for offset in (0..len).step_by(STEP as usize) {
            file.write_at(&buf, offset).unwrap();
        }
        file.sync_data().unwrap();
        let mut back = AlignedBuf::zeroed(STEP as usize);
        file.read_at(&mut back, len - STEP).unwrap();
        assert_eq!(*back, *buf);
        // Space that comes back is used again.
        drop(other);
        storage.remove("b").unwrap();
        file.set_len(len / 2).unwrap();
        file.set_len(len - STEP).unwrap();
        file.read_at(&mut back, len / 2).unwrap();
        assert!(back.iter().all(|&b| b == 0));
    }
}

#[test]
fn a_read_only_file_system_says_so() {
    for mount in Mount::all() {
        let storage = mount.storage();
        drop(storage.create("a").unwrap());
        mount.remount_read_only();
        let errors = [
            storage.open("a").err().unwrap(),
            storage.create("b").err().unwrap(),
            storage.remove("a").unwrap_err(),
            storage.rename("a", "b").unwrap_err(),
            storage.create_dir("dir").unwrap_err(),
            storage.lock("lock").unwrap_err(),
        ];
        for error in &errors {
            assert!(error.is_read_only(), "{error}");
        }
        assert_eq!(
            errors[0].to_string(),
            "cannot open 'a': Read-only file system (os error 30) (the file system is mounted \
             read-only: remount it for writing, after looking in the kernel log for the reason)"
        );
        assert_eq!(storage.list("").unwrap().iter().filter(|name| *name == "a").count(), 1);
    }
}

#[test]
fn a_directory_of_somebody_else_says_so() {
    if rustix::process::geteuid().is_root() {
        tidepool_skip::skip("root may write everywhere");
        return;
    }
    let (dir, storage) = storage(true);
    let mut permissions = std::fs::metadata(dir.path()).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(dir.path(), permissions).unwrap();
    assert_eq!(
        storage.create("a").err().unwrap().to_string(),
        "cannot create 'a': Permission denied (os error 13) (give the user this process runs as \
         read and write permission on it)"
    );
}

#[test]
fn the_root_is_made_and_must_be_a_directory() {
    let (dir, storage) = storage(true);
    let root = dir.path().join("x");
    FileStorage::new(&root, FileOptions::default()).unwrap();
    assert!(root.is_dir());
    // Its parent is not: that may be a file system which is not mounted, or another path is meant.
    let deep = dir.path().join("y/z");
    assert_eq!(
        FileStorage::new(&deep, FileOptions::default()).unwrap_err().to_string(),
        format!(
            "cannot open '{}': neither it nor '{}', where it would be made, exists: is the path \
             right, and the file system mounted?",
            deep.display(),
            dir.path().join("y").display()
        )
    );
    assert!(!dir.path().join("y").exists());
    storage.create("file").unwrap();
    let path = dir.path().join("file");
    assert_eq!(
        FileStorage::new(&path, FileOptions::default()).unwrap_err().to_string(),
        format!("cannot open '{}': not a directory", path.display())
    );
}

/// As on a file system that takes `O_DIRECT` at open and refuses it at I/O: a descriptor for direct
/// I/O that takes only whole blocks, and a file that asks for less. Every thread that is refused
/// goes on.
#[test]
fn all_threads_survive_that_direct_io_is_given_up() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 200;
    let (_dir, storage) = storage(true);
    for round in 0..ROUNDS {
        let name = format!("f{round}");
        let path = storage.root().join(&name);
        let opened = storage.handles.add(path.clone(), || {
            let flags = OFlags::CREATE | OFlags::EXCL;
            let (file, direct) = storage.open_descriptor(&path, flags)?;
            assert!(direct.is_some(), "no direct I/O here");
            Ok((file, true))
        });
        let state = opened.unwrap();
        let file = OpenFile::new(state, &storage.handles, &name, 1, Arc::default());
        let together = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for n in 0..THREADS {
                let (file, together) = (&file, &together);
                scope.spawn(move || {
                    together.wait();
                    file.write_at(&[n as u8; 10], 10 * n as u64).unwrap();
                    let mut read = [0; 10];
                    file.read_at(&mut read, 10 * n as u64).unwrap();
                    assert_eq!(read, [n as u8; 10]);
                });
            }
        });
    }
}
