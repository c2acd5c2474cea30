//! Settings of a pool, and the rule that they must keep.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::page::PageSize;
use crate::page_compression::PageCompression;
use crate::priority::MemoryThreads;
use crate::replacement::ReplacementConfig;
use crate::storage::Ballast;
use crate::thread_observer::Threads;

/// The smallest pool, in frames: enough for a few threads with a few latched pages each.
pub const MIN_FRAMES: u64 = 16;

/// Looks at the bytes of a page that came from its file, behind the page header; the error says
/// what cannot be.
pub type CheckPage = fn(&[u8]) -> std::result::Result<(), &'static str>;

/// Whether part of the pool holds compressed images of pages that left their frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CompressedTier {
    /// As many frames as bring more so than with pages in them.
    #[default]
    Auto,
    /// None.
    Off,
}

impl CompressedTier {
    /// All of them, by their number.
    pub const ALL: [CompressedTier; 2] = [CompressedTier::Auto, CompressedTier::Off];
}

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Bytes in a page; fixed when the data directory is created.
    pub page_size: PageSize,
    /// Bytes of frames.
    pub size_bytes: u64,
    /// Bytes of address space to reserve, so that the pool can grow; at least `size_bytes` is.
    pub max_size_bytes: u64,
    /// The replacement policy.
    pub replacement: ReplacementConfig,
    /// How pages are compressed.
    pub page_compression: PageCompression,
    /// Whether part of the pool holds compressed images of pages that left their frames.
    pub compressed_tier: CompressedTier,
    /// Pages written in one batch; fewer while the pool has not eight times as many.
    pub flush_batch_pages: usize,
    /// Ask the kernel for huge pages.
    pub huge_pages: bool,
    /// The process locks its memory (`mlockall`), or is about to: then the kernel would make all
    /// that may be written, and only what is in use may be.
    pub memory_locked: bool,
    /// What the layer above demands of a page that is read, besides checksum and place: its readers
    /// may then rely on that.
    pub check_page: CheckPage,
    /// How the kernel schedules the threads that give memory back.
    pub memory_threads: MemoryThreads,
    /// How threads are started, and who hears of them.
    pub threads: Threads,
    /// What a write of dirty pages releases when it finds the disk full.
    pub ballast: Option<Arc<Ballast>>,
    /// The files are opened for reading only: they get no upkeep.
    pub read_only: bool,
    /// Run cleaner, evictor and read-ahead in threads. Without, they run when called, or in the
    /// calling thread when needed, and only [`Pool::advance_clock`](crate::Pool::advance_clock)
    /// moves the time: then a single-threaded run is the same each time.
    pub background: bool,
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        PoolConfig {
            page_size: PageSize::DEFAULT,
            size_bytes: 128 << 20,
            max_size_bytes: 0,
            replacement: ReplacementConfig::default(),
            page_compression: PageCompression::default(),
            compressed_tier: CompressedTier::default(),
            flush_batch_pages: 128,
            huge_pages: true,
            memory_locked: false,
            check_page: |_| Ok(()),
            memory_threads: MemoryThreads::default(),
            threads: Threads::default(),
            ballast: None,
            read_only: false,
            background: true,
        }
    }
}

impl PoolConfig {
    pub(crate) fn validate(&self) -> Result<()> {
        let pages = self.size_bytes / self.page_size.bytes() as u64;
        if pages < MIN_FRAMES {
            return Err(Error::InvalidConfig(format!(
                "{} bytes hold {pages} pages of {} bytes, but at least {MIN_FRAMES} are needed",
                self.size_bytes,
                self.page_size.bytes(),
            )));
        }
        if self.flush_batch_pages == 0 || self.flush_batch_pages > 4096 {
            return Err(Error::InvalidConfig(format!(
                "a flush batch has 1 to 4096 pages, not {}",
                self.flush_batch_pages
            )));
        }
        Ok(())
    }
}
