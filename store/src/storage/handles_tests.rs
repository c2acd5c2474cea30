//! More files than descriptors: contents, renames and removals of what is closed, and what must
//! never be closed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use super::{FileState, Place};
use crate::storage::{AlignedBuf, FileOptions, FileStorage, FileUse, IoOp, Storage, StorageFile};

const BLOCK: usize = 4096;

fn storage(open_files: usize) -> (tempfile::TempDir, FileStorage) {
    let dir = tempfile::tempdir().unwrap();
    let options = FileOptions { open_files, ..FileOptions::default() };
    let storage = FileStorage::new(dir.path(), options).unwrap();
    (dir, storage)
}

fn block(of: usize) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(BLOCK);
    block[..8].copy_from_slice(&of.to_le_bytes());
    block
}

/// Files of this process below `dir` that are open at the moment.
fn descriptors_below(dir: &tempfile::TempDir) -> usize {
    let root = dir.path().canonicalize().unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
        .filter(|path| path.starts_with(&root))
        .count()
}

/// Closes whatever the storage can close.
fn crowd_out(storage: &FileStorage) -> Vec<Arc<dyn StorageFile>> {
    (0..2 * storage.open_files_limit())
        .map(|i| {
            let name = format!("crowd{i}");
            storage.create(&name).unwrap()
        })
        .collect()
}

#[test]
fn three_thousand_files_share_two_hundred_descriptors() {
    const FILES: usize = 3000;
    const LIMIT: usize = 200;
    for uring in [true, false] {
        // Thousands of syncs: in memory, where that can be had.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let options = FileOptions { open_files: LIMIT, ..FileOptions::default() };
        let storage = FileStorage::new(dir.path(), options).unwrap();
        let storage = if uring { storage } else { storage.without_io_uring() };
        let files: Vec<_> = (0..FILES).map(|i| storage.create(&format!("{i}")).unwrap()).collect();
        // Singly, then in batches of files that are mostly closed.
        for (i, file) in files.iter().enumerate() {
            file.write_at(&block(i), 0).unwrap();
        }
        assert!(descriptors_below(&dir) <= LIMIT + 1, "{}", descriptors_below(&dir));
        for (i, files) in files.chunks(64).enumerate() {
            let blocks: Vec<_> = (0..files.len()).map(|j| block(1_000_000 + i * 64 + j)).collect();
            let ops = files.iter().zip(&blocks);
            let mut ops: Vec<_> =
                ops.map(|(file, block)| IoOp::write(&**file, block, BLOCK as u64)).collect();
            storage.run_batch(&mut ops);
            assert!(ops.iter().all(|op| op.result.is_ok()));
            files.iter().for_each(|file| file.sync_data().unwrap());
        }
        let (open, descriptors) = (storage.open_files(), descriptors_below(&dir));
        assert!(open <= LIMIT && descriptors <= LIMIT + 1, "{uring}: {open}, {descriptors}");
        for (i, file) in files.iter().enumerate().rev() {
            assert_eq!(file.len().unwrap(), 2 * BLOCK as u64);
            let mut both = AlignedBuf::zeroed(2 * BLOCK);
            file.read_at(&mut both, 0).unwrap();
            assert_eq!((&both[..BLOCK], &both[BLOCK..]), (&*block(i), &*block(1_000_000 + i)));
        }
        drop(files);
        assert_eq!((storage.open_files(), descriptors_below(&dir)), (0, 0));
    }
}

#[test]
fn a_file_in_use_stays_open_and_a_written_one_is_synced_before_it_goes() {
    let (dir, storage) = storage(8);
    let files: Vec<_> = (0..20).map(|i| storage.create(&format!("{i}")).unwrap()).collect();
    let leases: Vec<_> = files.iter().map(|file| file.lease(FileUse::Write).unwrap()).collect();
    // All are in use: the limit gives way.
    assert_eq!(descriptors_below(&dir), 20);
    drop(leases);
    // All have been written now.
    let other = storage.create("other").unwrap();
    assert!(storage.open_files() < 20, "nothing is closed for want of a sync");
    for _ in 0..20 {
        let _ = storage.create("other2").map(|_| storage.remove("other2"));
    }
    assert!(storage.open_files() <= 8);
    other.write_at(&block(1), 0).unwrap();
}

#[test]
fn a_closed_file_follows_its_renames() {
    let (_dir, storage) = storage(8);
    let (a, b) = (storage.create("a").unwrap(), storage.create("b").unwrap());
    a.write_at(&block(1), 0).unwrap();
    b.write_at(&block(2), 0).unwrap();
    let crowd = crowd_out(&storage);
    storage.rename("a", "c").unwrap();
    // Over a file that somebody still reads.
    storage.rename("c", "b").unwrap();
    let new_a = storage.create("a").unwrap();
    new_a.write_at(&block(3), 0).unwrap();
    drop(crowd);
    let crowd = ["x", "y", "z"].map(|name| storage.create(name).unwrap());
    let mut back = AlignedBuf::zeroed(BLOCK);
    for (file, of) in [(&a, 1), (&b, 2), (&new_a, 3)] {
        file.read_at(&mut back, 0).unwrap();
        assert_eq!(*back, *block(of));
        file.sync_data().unwrap();
    }
    assert_eq!(a.name(), "a", "messages name what was opened");
    drop(crowd);
}

#[test]
fn a_removed_file_keeps_its_bytes_for_who_has_it() {
    let (dir, storage) = storage(8);
    let a = storage.create("a").unwrap();
    a.write_at(&block(1), 0).unwrap();
    let crowd = crowd_out(&storage);
    storage.remove("a").unwrap();
    let again = storage.create("a").unwrap();
    again.write_at(&block(2), 0).unwrap();
    drop(crowd);
    let crowd: Vec<_> = (0..30).map(|i| storage.create(&format!("more{i}")).unwrap()).collect();
    let mut back = AlignedBuf::zeroed(BLOCK);
    a.read_at(&mut back, 0).unwrap();
    assert_eq!(*back, *block(1));
    again.read_at(&mut back, 0).unwrap();
    assert_eq!(*back, *block(2));
    drop((a, again, crowd));
    assert_eq!(descriptors_below(&dir), 0);
}

#[test]
fn a_file_replaced_from_outside_is_refused() {
    let (dir, storage) = storage(8);
    let (a, b) = (storage.create("a").unwrap(), storage.create("b").unwrap());
    let _crowd = crowd_out(&storage);
    std::fs::write(dir.path().join("new"), [0; BLOCK]).unwrap();
    std::fs::rename(dir.path().join("new"), dir.path().join("a")).unwrap();
    std::fs::remove_file(dir.path().join("b")).unwrap();
    let mut back = AlignedBuf::zeroed(BLOCK);
    assert_eq!(
        a.read_at(&mut back, 0).unwrap_err().to_string(),
        "cannot read 'a' at offset 0: another file has taken its place while the server runs: stop the server, \
         put the right file back"
    );
    let error = b.write_at(&back, 0).unwrap_err();
    assert!(error.is_not_found(), "{error}");
}

#[test]
fn threads_that_take_descriptors_from_each_other_read_what_they_wrote() {
    let (_dir, storage) = storage(8);
    let files: Vec<_> = (0..40).map(|i| storage.create(&format!("{i}")).unwrap()).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (files, storage, stop) = (&files, &storage, &stop);
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    let mut back = AlignedBuf::zeroed(BLOCK);
                    for round in 0..300 {
                        // Ten files each.
                        let file = &files[(thread * 10) + round % 10];
                        file.write_at(&block(round), 0).unwrap();
                        if round % 3 == 0 {
                            file.sync_data().unwrap();
                        }
                        file.read_at(&mut back, 0).unwrap();
                        assert_eq!(*back, *block(round));
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                let name = format!("moved{round}");
                let file = storage.create(&name).unwrap();
                file.write_at(&block(round), 0).unwrap();
                storage.rename(&name, "moved").unwrap();
                let mut back = AlignedBuf::zeroed(BLOCK);
                file.read_at(&mut back, 0).unwrap();
                assert_eq!(*back, *block(round));
                round += 1;
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(storage.open_files() <= 8 + 5, "{}", storage.open_files());
}

#[test]
fn a_sync_beside_one_that_fails_reports_no_success() {
    let state = FileState {
        place: RwLock::new(Place { path: "file".into(), handle: None, nameless: false }),
        identity: (0, 0),
        direct: AtomicBool::new(false),
        used: AtomicBool::new(false),
        written: AtomicBool::new(true),
        poisoned: AtomicBool::new(false),
        syncing: Mutex::new(()),
    };
    let told = Barrier::new(2);
    std::thread::scope(|scope| {
        let failing = scope.spawn(|| {
            state.sync_by(|| {
                // From here on the kernel has nothing to report to anybody else.
                told.wait();
                std::thread::sleep(Duration::from_millis(50));
                Err(Errno::IO)
            })
        });
        told.wait();
        let error = state.sync_by(|| Ok(())).unwrap_err();
        assert!(error.to_string().contains("an earlier sync of this file failed"), "{error}");
        assert_eq!(failing.join().unwrap().unwrap_err().raw_os_error(), Some(5));
    });
}
