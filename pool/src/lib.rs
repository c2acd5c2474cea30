//! Frames, translation, latches, replacement and page I/O of the Tidepool storage engine.
//!
//! # Reading path
//! [`page`] says what a page is, `latch` what the one atomic word of each page is, `frames` where
//! pages lie in memory; `directory` and `space` lead from a page number to its word; `pool` brings
//! them together; `guard` and `view` are what the layer above holds in its hands. `replacement`
//! chooses who leaves, `tier` keeps the compressed images of those who left, `dirty` knows what
//! must be written and in what order, `flush` writes it, `upkeep` keeps files short, `mirror` keeps
//! second copies of a few pages, `read_ahead` reads what will be wanted, `background` has the
//! threads. `resize` changes how many frames there are while all that goes on; `leisure` and `pace`
//! say how fast what nobody waits for is done.
//!
//! `tap` hears of accesses, [`trace`] records them, and [`advisor`] says from them what another
//! size would bring; `residents` tells who is here, `hot_pages` who should be here again after the
//! next start. Below all of it is the crate `tidepool-store`: [`page`] and [`storage`], files, real
//! and simulated. `mapping` is memory straight from the kernel, `sync` the atomics and the parking
//! lot that latches are made of, `contention` a mutex that counts who waits for it, `signal` and
//! `step` what background threads sleep on and run.

pub mod advisor;
mod background;
mod contention;
mod directory;
mod dirty;
mod error;
mod flush;
mod frames;
mod guard;
mod hot_pages;
mod latch;
#[cfg(test)]
mod latch_tests;
mod leisure;
mod mapping;
mod memory;
mod mirror;
mod pace;
mod pool;
mod priority;
mod read_ahead;
pub mod replacement;
mod residents;
mod resize;
mod signal;
mod space;
pub mod statement;
mod stats;
mod step;
mod sync;
mod tap;
#[cfg(test)]
mod test_files;
mod tier;
pub mod trace;
mod upkeep;
mod view;

pub use tidepool_store::{LogThrottle, encryption, packed, page, storage};

pub use advisor::{Advice, AdviceRow, Need};
pub use error::{Error, Result, WriteAheadError};
pub use flush::PageCompression;
pub use frames::EXTENT_BYTES;
pub use guard::{ExclusiveGuard, OptimisticGuard, SharedGuard};
pub use hot_pages::HEATS;
pub use leisure::Haste;
pub use memory::MemoryUse;
pub use mirror::Mirror;
pub use page::{Lsn, PAGE_HEADER_SIZE, PageId, PageSize, PageType};
pub use pool::{CheckPage, MIN_FRAMES, Pool, PoolConfig, WriteAhead};
pub use priority::Priority;
pub use read_ahead::Warmed;
pub use replacement::{
    Access, MidpointConfig, ReplacementConfig, Request, Simulation, TideConfig, TideSetting,
};
pub use residents::Resident;
pub use resize::{ResizeState, ResizeStatus};
pub use signal::Signal;
pub use space::Space;
pub use stats::{PoolStats, ThreadWork};
pub use step::{Steps, survive};
pub use tap::Sample;
pub use tier::split::TierDecision;
pub use tier::{CompressedTier, SHARE_ONE, TierStats};
pub use upkeep::PackedUsage;
pub use view::{PageView, Retry};
