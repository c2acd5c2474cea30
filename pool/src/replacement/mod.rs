//! Replacement: which page gives up its frame.
//!
//! A policy knows frames, not pages. It hears of every access (`Replacement::hit`, which must
//! cost next to nothing and take no mutex), of pages that come and go, and names the coldest when
//! frames are needed. It decides nothing by itself: the caller may find a named page latched or
//! dirty and take the next.
//!
//! Locking: a policy's own mutex is taken under page latches, and under it nothing is taken.

#[cfg(test)]
pub(crate) mod hooked;
mod lists;
mod midpoint;
mod simulate;
mod tide;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub use midpoint::MidpointConfig;
use rustix::time::{ClockId, clock_gettime};
pub use simulate::{Request, Simulation};
pub use tide::{Setting as TideSetting, TideConfig};

use crate::error::Result;
use crate::page::PageId;

/// Why a page is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// By a query that has a reason to want this page.
    Normal,
    /// By a scan of a whole table or index, which will not soon come back.
    Scan,
    /// By read-ahead: no query has wanted it yet. Counts as no access.
    Prefetch,
    /// The same, on behalf of a scan.
    PrefetchForScan,
}

impl Access {
    /// By read-ahead, for whomever.
    pub fn is_prefetch(self) -> bool {
        matches!(self, Access::Prefetch | Access::PrefetchForScan)
    }

    /// On behalf of a scan of a whole table or index, be it by read-ahead.
    pub fn is_for_scan(self) -> bool {
        matches!(self, Access::Scan | Access::PrefetchForScan)
    }
}

/// The policy to use, and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplacementConfig {
    /// Tidepool's own, with nothing to set.
    Tide(TideConfig),
    /// Young and old lists, as InnoDB has them.
    Midpoint(MidpointConfig),
}

impl Default for ReplacementConfig {
    fn default() -> ReplacementConfig {
        ReplacementConfig::Tide(TideConfig::default())
    }
}

/// What a policy counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplacementStats {
    pub(crate) pages_old: u64,
    pub(crate) made_young: u64,
    pub(crate) not_made_young: u64,
}

/// A replacement policy.
pub(crate) trait Replacement: Send + Sync {
    /// The page in `frame` was accessed. The caller has it latched, or reads it optimistically:
    /// then the frame may hold another page by now.
    fn hit(&self, frame: u32, access: Access);

    /// `page` came into `frame`. The caller has it latched exclusively.
    fn insert(&self, frame: u32, page: PageId, access: Access);

    /// The page leaves `frame`. The caller has it latched exclusively.
    fn remove(&self, frame: u32);

    /// Appends to `out` up to `max` frames, coldest first. They stay where they are until removed.
    fn coldest(&self, max: usize, out: &mut Vec<u32>);

    /// Begins a long walk from the coldest page on. There is one at a time: the last ends the one
    /// before.
    fn begin_walk(&self);

    /// Appends to `out` the next `max` frames that the walk comes to, in about the order of
    /// [`Replacement::coldest`]. It goes on though pages come, go and move between the calls, and
    /// may pass one twice that has moved. False if it has come to its end, and gave fewer.
    fn walk_on(&self, max: usize, out: &mut Vec<u32>) -> bool;

    /// Whether the page in `frame` was ever accessed since it came.
    fn was_accessed(&self, frame: u32) -> bool;

    /// Whether the page in `frame` is among those that the policy means to keep, not merely one
    /// that happens to be here still. A guess if the page is coming, going or moving.
    fn is_hot(&self, frame: u32) -> bool;

    /// How hot the page in `frame` is, from 0 to 4: the uses that the policy knows of, in powers of
    /// two. `None`: only a scan brought it. A guess, like [`Replacement::is_hot`].
    fn heat(&self, frame: u32) -> Option<u8>;

    /// The page that just came into `frame`, by read-ahead, had this [`heat`](Replacement::heat) in
    /// an earlier life. The caller still has it latched exclusively.
    fn warm(&self, frame: u32, heat: u8);

    /// Changes the settings; false if `config` is of another policy.
    fn configure(&self, config: &ReplacementConfig) -> bool;

    /// The page in `from` moved to `to`, which held none. The caller has it latched exclusively.
    fn relocate(&self, from: u32, to: u32);

    /// How many frames may hold pages from now on: the shares of the lists are shares of this.
    fn set_capacity(&self, frames: u32);

    /// Whether [`Replacement::observe`] does anything.
    fn learns(&self) -> bool {
        false
    }

    /// Requests for a sample of the pages, in order: of one page in `pages_per_sample`, chosen by
    /// a hash of [`Request::page`]. From them a policy may learn which of its settings would do
    /// best. Called by one background thread, every tenth of a second or so.
    fn observe(&self, _sampled: &[Request], _pages_per_sample: u32) {}

    /// How often a thread found the policy's mutex taken.
    fn waits(&self) -> u64;

    /// Memory that the policy takes while no more than the first `frames` frames have ever been
    /// used, bytes.
    fn memory_bytes(&self, frames: u32) -> u64;

    fn stats(&self) -> ReplacementStats;
}

/// Spreads page addresses over all bits.
pub(crate) fn hash(page: u64) -> u64 {
    let mut x = page ^ 0x5851_F42D_4C95_7F2D;
    x = (x ^ x >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x = (x ^ x >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ x >> 32
}

/// Makes the policy for up to `frames` frames.
pub(crate) fn make(
    config: &ReplacementConfig,
    frames: u32,
    clock: Arc<Clock>,
) -> Result<Box<dyn Replacement>> {
    let policy: Box<dyn Replacement> = match config {
        ReplacementConfig::Tide(config) => Box::new(tide::Tide::new(*config, frames)?),
        ReplacementConfig::Midpoint(config) => {
            Box::new(midpoint::Midpoint::new(*config, frames, clock)?)
        }
    };
    #[cfg(test)]
    let policy = hooked::wrap(policy);
    Ok(policy)
}

/// Milliseconds: of the machine, coarse but cheap, or set by hand for deterministic runs.
pub(crate) enum Clock {
    Machine,
    Manual(AtomicU32),
}

impl Clock {
    /// Now; wraps.
    pub(crate) fn now_ms(&self) -> u32 {
        match self {
            Clock::Machine => {
                let now = clock_gettime(ClockId::MonotonicCoarse);
                (now.tv_sec as u32).wrapping_mul(1000).wrapping_add(now.tv_nsec as u32 / 1_000_000)
            }
            Clock::Manual(now) => now.load(Ordering::Relaxed),
        }
    }

    /// Sets a manual clock.
    pub(crate) fn set(&self, ms: u32) {
        if let Clock::Manual(now) = self {
            now.store(ms, Ordering::Relaxed);
        }
    }

    pub(crate) fn advance(&self, ms: u32) {
        if let Clock::Manual(now) = self {
            now.fetch_add(ms, Ordering::Relaxed);
        }
    }
}
