//! A process without another file descriptor. Alone in its process, for the limit is everybody's.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidepool_pool::storage::{AlignedBuf, FileOptions, FileStorage, Storage};

const BLOCK: usize = 4096;

fn block(of: usize) -> AlignedBuf {
    let mut block = AlignedBuf::zeroed(BLOCK);
    block.fill(of as u8);
    block
}

#[test]
fn names_are_changed_synced_and_listed_while_another_file_can_be_closed() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileOptions { open_files: 8, ..FileOptions::default() };
    let storage = FileStorage::new(dir.path(), options).unwrap();
    let files = ["a", "b", "c"].map(|name| storage.create(name).unwrap());
    for (of, file) in files.iter().enumerate() {
        file.write_at(&block(of), 0).unwrap();
    }
    // Without their descriptors now: these have them all, and must be synced before they are
    // closed.
    let crowd: Vec<_> = (0..16).map(|n| storage.create(&format!("crowd{n}")).unwrap()).collect();
    crowd.iter().for_each(|file| file.write_at(&block(9), 0).unwrap());

    let limit = Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let all_there_are = || std::iter::from_fn(|| std::fs::File::open("/proc/self/stat").ok());
    let mut taken: Vec<_> = all_there_are().collect();
    assert!(!taken.is_empty());
    storage.remove("a").unwrap();
    storage.rename("c", "b").unwrap();
    for (of, file) in files.iter().enumerate() {
        let mut back = AlignedBuf::zeroed(BLOCK);
        file.read_at(&mut back, 0).unwrap();
        assert!(*back == *block(of), "file {of}");
    }
    // A directory takes one, too, for a moment.
    taken.extend(all_there_are());
    storage.sync_dir("").unwrap();
    taken.extend(all_there_are());
    assert!(storage.list("").unwrap().contains(&"b".to_owned()));
}
