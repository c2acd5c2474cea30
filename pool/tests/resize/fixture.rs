//! A pool of a few extents whose pages say what they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidepool_pool::storage::{SimStorage, Storage};
use tidepool_pool::{
    Access, EXTENT_BYTES, Error, ExclusiveGuard, Lsn, PageId, PageSize, PageView, Pool, PoolConfig,
    ResizeState, Space, page, statement,
};

use crate::packed;

/// The largest pages: 32 to an extent, so that a few pages are many extents.
pub const SIZE: usize = 65536;
pub const EXTENT: u64 = EXTENT_BYTES as u64;
pub const EXTENT_PAGES: u32 = (EXTENT_BYTES / SIZE) as u32;

pub struct Fixture {
    pub pool: Arc<Pool>,
    pub space: Arc<Space>,
    pub lsn: AtomicU64,
}

pub fn fixture(storage: Arc<dyn Storage>, extents: u64, pages: u32, background: bool) -> Fixture {
    let config = PoolConfig {
        page_size: PageSize::new(SIZE).unwrap(),
        size_bytes: extents * EXTENT,
        max_size_bytes: 64 * EXTENT,
        // With threads, enough that a sort would notice pages that move meanwhile.
        flush_batch_pages: if background { 32 } else { 8 },
        huge_pages: false,
        background,
        ..PoolConfig::default()
    };
    configured(storage, config, pages)
}

/// A fixture whose file has `pages` pages.
pub fn configured(storage: Arc<dyn Storage>, config: PoolConfig, pages: u32) -> Fixture {
    let file = packed::create(storage.create("16.tpd").unwrap(), 16, config.page_size.bytes());
    let pool = Pool::new(config, storage).unwrap();
    let space = pool.open_space(16, file).unwrap();
    space.note_page_count(pages);
    Fixture { pool, space, lsn: AtomicU64::new(100) }
}

pub fn simulated(extents: u64, pages: u32) -> (Fixture, SimStorage) {
    let sim = SimStorage::new(7);
    (fixture(Arc::new(sim.clone()), extents, pages, false), sim)
}

/// What page `no` holds after its `change`-th change: every word says so.
pub fn fill(guard: &mut ExclusiveGuard<'_>, no: u32, change: u64) {
    page::set_page_id(guard.bytes_mut(), PageId::new(16, no));
    let value = (no as u64) << 40 | change;
    let words = &mut guard.bytes_mut()[32..];
    words[..8].copy_from_slice(&value.to_le_bytes());
    let (mut done, len) = (8, words.len());
    while done < len {
        words.copy_within(..done.min(len - done), done);
        done *= 2;
    }
}

/// Which change the page holds; checks the whole of it.
pub fn change_of(bytes: &[u8], no: u32) -> u64 {
    let first = bytes.u64_at(32).unwrap();
    assert!(bytes[40..] == bytes[32..bytes.len() - 8], "torn page");
    assert!(first == 0 || first >> 40 == no as u64, "page {no} holds page {}", first >> 40);
    first & 0xff_ffff_ffff
}

impl Fixture {
    /// Reads all pages, and those that are hot once more, much later.
    pub fn read_all(&self, pages: u32, is_hot: impl Fn(u32) -> bool) {
        for no in 0..pages {
            self.read(no);
        }
        self.pool.advance_clock(5000);
        statement::begin();
        for no in (0..pages).filter(|&no| is_hot(no)) {
            self.read(no);
        }
    }

    pub fn write(&self, no: u32, change: u64) -> Result<(), Error> {
        let mut guard = self.pool.exclusive(&self.space, no, Access::Normal)?;
        fill(&mut guard, no, change);
        let start = self.lsn.fetch_add(10, Ordering::Relaxed);
        self.pool.mark_dirty(&mut guard, Lsn(start), Lsn(start + 10));
        Ok(())
    }

    pub fn read(&self, no: u32) -> u64 {
        statement::begin();
        change_of(&self.pool.shared(&self.space, no, Access::Normal).unwrap(), no)
    }

    /// Pages that are in the pool, of the first `pages`.
    pub fn resident(&self, pages: u32) -> Vec<u32> {
        // Those that are latched count.
        (0..pages)
            .filter(|&no| self.pool.try_shared(&self.space, no, Access::Prefetch).is_some())
            .collect()
    }

    pub fn run(&self) {
        while self.pool.run_resize_step() {}
    }

    pub fn state(&self) -> ResizeState {
        self.pool.resize_status().state
    }

    /// Waits for the background to have it done.
    pub fn settle(&self) {
        let began = Instant::now();
        while self.state() != ResizeState::Idle {
            assert!(began.elapsed() < Duration::from_secs(120), "{:?}", self.pool.resize_status());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
