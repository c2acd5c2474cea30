//! What the pool takes beside its frames, counted.
//!
//! Arrays with an entry a frame are mappings that the kernel backs as they are touched, from the
//! first frame up, so what they cost follows from the highest frame ever used; the bound is the
//! whole of the address space reserved. A space's translation costs 8 bytes a page up to its
//! highest resident one, in parts of 4 KiB.

use crate::frames::{Descriptor, EXTENT_BYTES};
use crate::pool::Pool;

/// One thing that memory goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
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
        let frames = &self.core.frames;
        let touched = frames.highest() as u64;
        let page_size = self.page_size().bytes() as u64;
        let spaces: Vec<_> = self.core.all_spaces();
        let translation = |pages: u64| (pages * 8).next_multiple_of(4096) + 4096;
        let batch = self.core.flush_batch_pages() as u64 * page_size;
        let buffer = self.flusher.buffer_bytes().map_or(batch, |bytes| bytes as u64);
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
                bytes: self.core.replacement.memory_bytes(touched as u32),
                bound_bytes: Some(self.core.replacement.memory_bytes(frames.reserved())),
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
                bytes: buffer,
                bound_bytes: Some(batch.max(buffer)),
            },
            MemoryUse {
                name: "page_maps",
                bytes: self.packed_usage().map_bytes,
                bound_bytes: None,
            },
            MemoryUse {
                name: "compressed_tier_index",
                bytes: self.tier_stats().index_bytes,
                bound_bytes: None,
            },
            MemoryUse { name: "tap_rings", bytes: self.tap_memory_bytes(), bound_bytes: None },
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Lsn;
    use crate::config::PoolConfig;
    use crate::page::PageSize;
    use crate::shrink_throttle::ShrinkUrgency;
    use crate::storage::{SimStorage, Storage};
    use crate::test_files;

    #[test]
    fn what_buffers_take_is_what_is_told_and_follows_the_pool() {
        const PAGE: u64 = 65536;
        let large = 2 * 1024 * PAGE;
        let storage = SimStorage::new(1);
        let file = storage.create("16.tpd").unwrap();
        let config = PoolConfig {
            page_size: PageSize::new(PAGE as usize).unwrap(),
            size_bytes: 64 * PAGE,
            max_size_bytes: large,
            background: false,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config, Arc::new(storage)).unwrap();
        let space = pool.open_space(16, test_files::create(file, 16, pool.page_size())).unwrap();
        let told = || pool.memory().iter().find(|row| row.name == "flush_buffers").unwrap().bytes;
        assert_eq!(told(), 0);
        // A batch is an eighth of the pool's pages, 128 at most.
        let sizes = [(64 * PAGE, 8), (large, 128), (64 * PAGE, 8)];
        for (no, (size_bytes, batch)) in (1..).zip(sizes) {
            pool.set_size(size_bytes, ShrinkUrgency::Immediate);
            while pool.run_resize_step() {}
            let mut page = pool.new_page(&space, no).unwrap();
            pool.mark_dirty(&mut page, Lsn(10), Lsn(20));
            drop(page);
            pool.flush_all().unwrap();
            assert_eq!(pool.flusher.buffer_bytes().unwrap() as u64, told());
            assert_eq!(told(), batch * PAGE);
        }
    }
}
