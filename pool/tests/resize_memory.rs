//! What a pool costs, as the kernel counts it. A separate test binary, and one test at a time, so
//! that nothing else in the process moves the figures.

mod packed;
mod zero_file;

use std::sync::Arc;

use parking_lot::Mutex;

use tidepool_pool::storage::SimStorage;
use tidepool_pool::{
    Access, EXTENT_BYTES, Pool, PoolConfig, ResizeState, ShrinkUrgency, statement,
};

use zero_file::ZeroFile;

const EXTENT: u64 = EXTENT_BYTES as u64;
const PAGE: u64 = 16384;

static ALONE: Mutex<()> = Mutex::new(());

/// A figure of the process, in bytes; `None` where the kernel does not say.
fn status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Anonymous memory that the process has.
fn resident_anonymous() -> Option<u64> {
    status("RssAnon")
}

#[test]
fn memory_is_really_given_back() {
    let _alone = ALONE.lock();
    if resident_anonymous().is_none() {
        tidepool_skip::skip("the kernel does not say what memory the process has");
        return;
    }
    for huge_pages in [true, false] {
        let before = resident_anonymous().unwrap();
        let size = 64 * EXTENT;
        let config =
            PoolConfig { size_bytes: size, huge_pages, background: false, ..PoolConfig::default() };
        let pool = Pool::new(config, Arc::new(SimStorage::new(3))).unwrap();
        let space = pool
            .open_space(16, packed::create(Arc::new(ZeroFile(size)), 16, PAGE as usize))
            .unwrap();
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
        pool.set_size(16 * EXTENT, ShrinkUrgency::Immediate);
        while pool.run_resize_step() {}
        let status = pool.resize_status();
        assert_eq!((&status.state, status.resident_bytes), (&ResizeState::Idle, 16 * EXTENT));
        assert!(status.pages_moved > 0, "{status:?}");
        check("shrunk");
        pool.set_size(32 * EXTENT, ShrinkUrgency::Immediate);
        read(1);
        assert_eq!(pool.resident_bytes(), 32 * EXTENT);
        check("grown");
        drop(space);
    }
}

/// Where all counts that may be written, be it touched or not. That is a setting of the whole
/// machine, so it is taken as it is.
#[test]
fn room_to_grow_is_not_promised_before_it_is_used() {
    let _alone = ALONE.lock();
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if mode.trim() != "2" {
        tidepool_skip::skip("on this machine what is not touched does not count");
        return;
    }
    let writable = || status("VmData").unwrap();
    let before = writable();
    let config = PoolConfig {
        size_bytes: 8 * EXTENT,
        max_size_bytes: 4 << 30,
        background: false,
        ..PoolConfig::default()
    };
    let pool = Pool::new(config, Arc::new(SimStorage::new(3))).unwrap();
    assert_eq!(pool.size_max_bytes(), 4 << 30);
    let file = 64 * EXTENT;
    let space =
        pool.open_space(16, packed::create(Arc::new(ZeroFile(file)), 16, PAGE as usize)).unwrap();
    // What describes 4 GiB of pages, and what the allocator has in stock.
    let least = writable() - before;
    assert!(least < (4 << 30) / 64, "{least}");
    for size in [8, 64, 4, 32].map(|extents| extents * EXTENT) {
        pool.set_size(size, ShrinkUrgency::Immediate);
        while pool.run_resize_step() {}
        for no in 0..(file / PAGE) as u32 {
            pool.shared(&space, no, Access::Normal).unwrap();
        }
        let writable = writable() - before;
        println!("{} KiB may be written with {} in use", writable >> 10, size >> 10);
        assert_eq!(pool.resident_bytes(), size);
        assert!(writable >= size && writable < size + least + EXTENT);
    }
}
