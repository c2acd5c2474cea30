//! That shrinking gives memory back, as the kernel counts it. A test binary of its own, so that
//! nothing else in the process moves the figure.

use std::sync::Arc;

use tidepool_pool::storage::{Result, SimStorage, StorageFile};
use tidepool_pool::{Access, Haste, Pool, PoolConfig, ResizeState, statement};

const EXTENT: u64 = 2 << 20;
const PAGE: u64 = 16384;

/// A file of zeroes that takes no memory.
struct ZeroFile(u64);

impl StorageFile for ZeroFile {
    fn name(&self) -> &str {
        "zero"
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> Result<()> {
        // The kernel gives memory for bytes that are written, whatever they are.
        buf.fill(0);
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        unreachable!("nothing is dirty")
    }

    fn sync_data(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0)
    }

    fn set_len(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn io_alignment(&self) -> usize {
        1
    }
}

/// Anonymous memory that the process has, in bytes; `None` where the kernel does not say.
fn resident_anonymous() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[test]
fn memory_is_really_given_back() {
    if resident_anonymous().is_none() {
        eprintln!("skipped: the kernel does not say what memory the process has");
        return;
    }
    for huge_pages in [true, false] {
        let before = resident_anonymous().unwrap();
        let size = 64 * EXTENT;
        let config =
            PoolConfig { size_bytes: size, huge_pages, background: false, ..PoolConfig::default() };
        let pool = Pool::new(config, Arc::new(SimStorage::new(3))).unwrap();
        let space = pool.open_space(16, Arc::new(ZeroFile(size))).unwrap();
        let pages = (size / PAGE) as u32;
        let read = |every: usize| {
            for no in (0..pages).step_by(every) {
                pool.shared(&space, no, Access::Normal).unwrap();
            }
        };
        // What the kernel counts is what we count, and what describes the pages: far below a tenth.
        let check = |what: &str| {
            let (ours, kernels) = (pool.resident_bytes(), resident_anonymous().unwrap() - before);
            println!("huge pages {huge_pages}, {what}: {} KiB of {}", ours >> 10, kernels >> 10);
            assert!(kernels >= ours && kernels < ours + size / 10, "{what}: {kernels} for {ours}");
        };
        read(1);
        assert_eq!(pool.resident_bytes(), size);
        check("full");
        // Some in every extent stay, and must move.
        pool.advance_clock(5000);
        statement::begin();
        read(8);
        pool.set_size(16 * EXTENT, Haste::Pressing);
        while pool.run_resize_step() {}
        let status = pool.resize_status();
        assert_eq!((&status.state, status.resident_bytes), (&ResizeState::Idle, 16 * EXTENT));
        assert!(status.pages_moved > 0, "{status:?}");
        check("shrunk");
        pool.set_size(32 * EXTENT, Haste::Pressing);
        read(1);
        assert_eq!(pool.resident_bytes(), 32 * EXTENT);
        check("grown");
        drop(space);
    }
}
