//! What the pool takes beside its frames, counted.
//!
//! Arrays with an entry a frame are mappings that the kernel backs as they are touched, from the first frame up, so what they cost
//! follows from the highest frame ever used; the bound is the whole of the address space reserved. A space's translation costs
//! 8 bytes a page up to its highest resident one, in parts of 4 KiB.

use crate::doublewrite::Doublewrite;
use crate::frames::{Descriptor, EXTENT_BYTES};
use crate::pool::Pool;

/// One thing that memory goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// What.
    pub name: &'static str,
    /// Bytes now.
    pub bytes: u64,
    /// The most it can come to as things are, if there is such a number.
    pub bound_bytes: Option<u64>,
}

/// What describes a frame: its descriptor, and its link of the free list.
const FRAME_BYTES: u64 = size_of::<Descriptor>() as u64 + 4;

impl Pool {
    /// What the pool's memory goes to, frames first.
    pub fn memory(&self) -> Vec<MemoryUse> {
        let frames = self.frames();
        let touched = frames.highest() as u64;
        let page_size = self.page_size().bytes() as u64;
        let spaces: Vec<_> = self.all_spaces();
        let translation = |pages: u64| (pages * 8).next_multiple_of(4096) + 4096;
        let batch = Doublewrite::half_pages(self.flush_batch_pages()) as u64 * page_size;
        let has_buffer = self.flusher.try_lock().is_none_or(|flusher| flusher.has_buffer());
        vec![
            MemoryUse {
                name: "frames",
                bytes: self.resident_bytes(),
                bound_bytes: Some(
                    (frames.limit() as u64 * page_size).next_multiple_of(EXTENT_BYTES as u64),
                ),
            },
            MemoryUse {
                name: "frame_descriptors",
                bytes: touched * FRAME_BYTES,
                bound_bytes: Some(frames.reserved() as u64 * FRAME_BYTES),
            },
            MemoryUse {
                name: "replacement",
                bytes: self.replacement().memory_bytes(touched as u32),
                bound_bytes: Some(self.replacement().memory_bytes(frames.reserved())),
            },
            MemoryUse {
                name: "translation",
                bytes: spaces.iter().map(|s| translation(s.highest_resident() as u64 + 1)).sum(),
                bound_bytes: Some(
                    spaces.iter().map(|s| translation(s.page_count().max(1) as u64)).sum(),
                ),
            },
            MemoryUse {
                name: "flush_buffers",
                bytes: if has_buffer { batch } else { 0 },
                bound_bytes: Some(batch),
            },
            MemoryUse { name: "tap_rings", bytes: self.tap_memory_bytes(), bound_bytes: None },
        ]
    }
}
