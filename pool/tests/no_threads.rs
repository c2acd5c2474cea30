//! Batches of I/O in a process that can have no further thread, as at the limit of a container that
//! forbids io_uring, too. A separate test binary, since the limit is the whole process's.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidepool_pool::storage::{FileOptions, FileStorage, IoOp, Storage};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

/// Address space that the process has, in bytes; `None` where the kernel does not say.
fn address_space() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[test]
fn a_batch_is_run_by_the_calling_thread_if_there_are_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileOptions { direct_io: false, ..FileOptions::default() };
    let storage = FileStorage::new(dir.path(), options).unwrap().without_io_uring();
    let file = storage.create("file").unwrap();
    let written: Vec<u8> = (0..BLOCK * BLOCKS).map(|at| (at / BLOCK) as u8).collect();
    let mut read = vec![0; written.len()];
    let Some(address_space) = address_space() else {
        tidepool_skip::skip("the kernel does not say how much address space the process has");
        return;
    };
    // Room for the heap, not for a stack.
    let limit = Rlimit { current: Some(address_space + (1 << 20)), ..getrlimit(Resource::As) };
    setrlimit(Resource::As, limit).unwrap();
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "no thread can be started");

    let offsets = || (0u64..).step_by(BLOCK);
    let blocks = written.chunks(BLOCK).zip(offsets());
    let mut ops: Vec<_> = blocks.map(|(bytes, at)| IoOp::write(&*file, bytes, at)).collect();
    storage.run_batch(&mut ops);
    assert!(ops.iter().all(|op| op.result.is_ok()));
    let blocks = read.chunks_mut(BLOCK).zip(offsets());
    let mut ops: Vec<_> = blocks.map(|(bytes, at)| IoOp::read(&*file, bytes, at)).collect();
    storage.run_batch(&mut ops);
    assert!(ops.iter().all(|op| op.result.is_ok()));
    drop(ops);
    assert_eq!(read, written);
}
