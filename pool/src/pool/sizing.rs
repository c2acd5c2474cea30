//! How large the pool is, how its memory is divided, and what another size would bring; by the
//! parts that see to it.

use std::path::Path;

use super::Pool;
use crate::advisor::{Advice, Need};
use crate::config::CompressedTier;
use crate::error::Result;
use crate::latch::MAX_FRAMES;
use crate::page::PageSize;
use crate::priority::Priority;
use crate::replacement::ReplacementConfig;
use crate::resize::ResizeStatus;
use crate::shrink_throttle::ShrinkUrgency;
use crate::tier::TierStats;
use crate::tier_sizing::TierDecision;
use crate::trace::{TraceOptions, TraceStatus};

impl Pool {
    // The size.

    /// How many pages may be resident now.
    pub fn page_limit(&self) -> u32 {
        self.core.frames.limit()
    }

    /// Bytes of frames that the pool may use as its size is now.
    pub fn size_limit_bytes(&self) -> u64 {
        self.core.frames.limit() as u64 * self.page_size().bytes() as u64
    }

    /// The most bytes of frames that any pool can have.
    pub fn largest_size_bytes(page_size: PageSize) -> u64 {
        u64::from(MAX_FRAMES) * page_size.bytes() as u64
    }

    /// The most bytes of frames that [`Pool::set_size`] can give: those that address space is
    /// reserved for.
    pub fn size_max_bytes(&self) -> u64 {
        self.core.frames.reserved() as u64 * self.page_size().bytes() as u64
    }

    /// Memory that the frames hold: whole extents, from the first use of a frame until they are
    /// given back.
    pub fn resident_bytes(&self) -> u64 {
        self.core.resident_bytes()
    }

    /// Sets the size, rounded down to whole extents of 2 MiB, but at least one, and at most the
    /// address space reserved ([`PoolConfig::max_size_bytes`](crate::PoolConfig::max_size_bytes)).
    /// Returns at once. Growing, frames may be used from now on; shrinking, memory is given back in
    /// the background, or by [`Pool::run_resize_step`]. A later call overrides the one under way;
    /// one with the same size changes its urgency, which is nothing to a pool without threads: time
    /// stands still there.
    pub fn set_size(&self, size_bytes: u64, urgency: ShrinkUrgency) {
        self.resize.set_size(size_bytes, urgency);
    }

    /// How the last [`Pool::set_size`] goes.
    pub fn resize_status(&self) -> ResizeStatus {
        self.resize.status()
    }

    /// A slice of the resize under way, of some hundred microseconds if it needs no I/O. True if
    /// there is more to do at once; false if all is done, or nothing can be done now
    /// ([`ResizeState::Stuck`](crate::ResizeState::Stuck)).
    pub fn run_resize_step(&self) -> bool {
        self.resize.run_step()
    }

    /// Takes an extent into use ahead of need, if few frames are free and there is room for it.
    /// Memory that the kernel refused is asked for again. False: there is nothing to do.
    pub fn run_grower_step(&self) -> bool {
        self.core.frames.grow_ahead()
    }

    /// Evicts clean cold pages until the reserve of free frames is there, or none is left to be
    /// had. Returns how many.
    pub fn run_evictor_step(&self) -> usize {
        self.evictor.run_step()
    }

    /// The priority of the threads that give memory back: the one that resizes, and the one
    /// that decides about sizes.
    pub fn priority(&self) -> &Priority {
        self.core.background.priority()
    }

    // The replacement policy, and what accesses say.

    /// Changes the settings of the replacement policy; false if the pool has another policy.
    pub fn configure_replacement(&self, config: &ReplacementConfig) -> bool {
        let done = self.core.replacement.configure(config);
        if done {
            self.advisor.configure(config);
        }
        done
    }

    /// Takes in what was sampled since the last time, and decides about the share of the compressed
    /// tier: for a pool without background threads.
    pub fn run_advisor_step(&self) {
        self.recorder.run_step();
        self.advisor.run_step();
        self.tier_sizing.run_step();
    }

    /// Turns the advisor on (as it is at first) or off. Off, it forgets what it knew; accesses cost
    /// nothing, the replacement policy learns no more, and a full pool always wants more.
    pub fn set_advice(&self, enabled: bool) -> Result<()> {
        self.advisor.set_enabled(enabled)
    }

    /// Whether a larger pool would save reads worth having. With hysteresis: it says no again only
    /// when half of what made it say yes would be saved.
    pub fn wants_more(&self) -> bool {
        self.advisor.wants_more()
    }

    /// What other sizes of the pool would bring.
    pub fn advice(&self) -> Advice {
        self.advisor.advice()
    }

    /// How small the pool could be, if there is evidence. No less than a quarter of the limit: the
    /// curve reaches no further.
    pub fn need(&self) -> Option<Need> {
        self.advisor.need()
    }

    /// Memory that hearing of accesses takes, beyond the pool's frames.
    pub fn tap_memory_bytes(&self) -> u64 {
        self.core.samplers.memory_bytes()
    }

    /// Begins to record a page trace into a new file at `path`. A recording under way ends when the
    /// new file is there; if that can't be made, it goes on.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if there is a file or a link at `path`, or none can
    /// be made.
    pub fn start_trace(&self, path: &Path, options: TraceOptions) -> Result<()> {
        self.recorder.start(path, options)
    }

    /// Ends the recording and says how it went; `None` if there was none.
    pub fn stop_trace(&self) -> Option<TraceStatus> {
        self.recorder.stop()
    }

    /// How the recording goes; `None` if there is none.
    pub fn trace_status(&self) -> Option<TraceStatus> {
        self.recorder.status()
    }

    // The compressed tier.

    /// The setting of the compressed tier.
    pub fn compressed_tier(&self) -> CompressedTier {
        self.tier.setting()
    }

    /// Changes it. Turned off, the tier's frames are given back at once.
    pub fn set_compressed_tier(&self, setting: CompressedTier) {
        self.tier_sizing.set_setting(setting);
    }

    /// Gives the tier a share of the pool's frames, in thousandths, until the next decision: for
    /// tests, and for a pool without background threads.
    pub fn set_tier_share(&self, share: u32) {
        self.tier.set_share(share);
    }

    /// What the tier holds and did.
    pub fn tier_stats(&self) -> TierStats {
        self.tier.stats()
    }

    /// The last decisions about the compressed tier, oldest first.
    pub fn tier_decisions(&self) -> Vec<TierDecision> {
        self.tier_sizing.decisions()
    }
}
