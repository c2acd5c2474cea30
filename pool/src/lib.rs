//! Frames, translation, latches, replacement and page I/O of the Tidepool storage engine.
//!
//! # Reading path
//! 1. *A page in memory.* [`page`] is the page and its header. `latch` is the one atomic word of
//!    each page. `frames` is the memory that pages lie in. `directory` and `space` lead from a page
//!    number to its word. `page_guard` and `page_view` are the handles that the layer above holds.
//! 2. *The pool.* `pool_core` brings these together: what all parts share. `replacement` chooses
//!    the page that leaves, and `eviction` takes it out of its frame. `tier` keeps compressed
//!    images of pages that left; `tier_sizing` decides how many. `pool` owns all parts, and is what
//!    the layer above sees: access, load, closing of spaces.
//! 3. *Writing.* `dirty` knows which pages must be written, and in which order. `flush` writes
//!    them, behind the redo log (`write_ahead`); `cleaner` decides when. `upkeep` keeps files
//!    short. `mirror` keeps second copies of a few pages.
//! 4. *Reading ahead.* `read_ahead` reads pages that will be wanted. `hot_pages` lists the pages
//!    that the next start should read; `resident_pages` lists those that are here.
//! 5. *Resizing.* `resize` changes the number of frames while all that goes on. `shrink_throttle`
//!    and `scan_throttle` slow down work that no query waits for.
//! 6. *Prediction.* `access_sampling` samples accesses, [`trace`] records them, and [`advisor`]
//!    predicts from them what another size would bring.
//! 7. *Threads.* `background` has them, and `pool/threads` says what each does; `wakeup` is what
//!    they sleep on, `background_task` runs their steps, and `thread_observer` starts them, so that
//!    an embedding program can hear of it.
//!
//! Below all of it are `mapping` (memory from the kernel), `sync` (the atomics and the parking lot
//! that latches are made of), `contention` (a mutex that counts its waiters), and the crate
//! `tidepool-store`: [`page`], [`storage`] and [`packed`] files.

mod access_sampling;
pub mod advisor;
mod background;
mod background_task;
mod cleaner;
mod config;
mod contention;
mod directory;
mod dirty;
mod error;
mod eviction;
mod flush;
mod frames;
mod hot_pages;
mod latch;
#[cfg(test)]
mod latch_tests;
mod mapping;
mod memory;
mod mirror;
mod page_compression;
mod page_guard;
mod page_view;
#[cfg(test)]
mod panic_tests;
mod pool;
mod pool_core;
mod priority;
mod read_ahead;
pub mod replacement;
mod resident_pages;
mod resize;
mod scan_throttle;
#[cfg(test)]
mod sector_tests;
mod shrink_throttle;
mod space;
pub mod statement;
mod stats;
mod sync;
#[cfg(test)]
mod test_files;
mod thread_observer;
mod tier;
mod tier_sizing;
pub mod trace;
mod upkeep;
mod wakeup;
mod write_ahead;

pub use tidepool_store::{LogThrottle, encryption, lend, packed, page, storage};

pub use access_sampling::Sample;
pub use advisor::{Advice, AdviceRow, Need};
pub use background_task::{StepRunner, catch_panic};
pub use config::{CheckPage, CompressedTier, MIN_FRAMES, PoolConfig};
pub use error::{Error, Result, WriteAheadError};
pub use frames::EXTENT_BYTES;
pub use hot_pages::HEATS;
pub use memory::MemoryUse;
pub use mirror::Mirror;
pub use page::{Lsn, PAGE_HEADER_SIZE, PageId, PageSize, PageType};
pub use page_compression::PageCompression;
pub use page_guard::{ExclusiveGuard, OptimisticGuard, SharedGuard};
pub use page_view::{PageView, Retry};
pub use pool::Pool;
pub use priority::{MemoryThreads, Priority};
pub use read_ahead::Warmed;
pub use replacement::{
    Access, MidpointConfig, ReplacementConfig, Request, Simulation, TideConfig, TideSetting,
};
pub use resident_pages::ResidentPage;
pub use resize::{ResizeState, ResizeStatus};
pub use shrink_throttle::ShrinkUrgency;
pub use space::Space;
pub use stats::{PoolStats, ShardedCounters, ThreadWork};
pub use thread_observer::{ThreadObserver, Threads};
pub use tier::{SHARE_ONE, TierStats};
pub use tier_sizing::TierDecision;
pub use upkeep::PackedUsage;
pub use wakeup::Wakeup;
pub use write_ahead::WriteAhead;
