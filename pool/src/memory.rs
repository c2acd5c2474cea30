//! What the pool takes beside its frames, counted.
//!
//! Arrays with an entry a frame are mappings that the kernel backs as they are touched, from the
//! first frame up, so what they cost follows from the highest frame ever used; the bound is the
//! whole of the address space reserved. A space's translation costs 8 bytes a page up to its
//! highest resident one, in parts of 4 KiB.
//!
//! What follows from the spaces is counted as they change ([`SpacesMemory`]): a budget is kept by
//! asking for the sum twenty times a second, and there may be a hundred thousand of them. The maps
//! of their files grow where no layer above sees it, so a look asks some files, by turns.
//!
//! [`SpacesMemory`]: crate::space::SpacesMemory

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::frames::{Descriptor, EXTENT_BYTES};
use crate::pool::Pool;
use crate::space::{Space, translation_bytes};

/// One thing that memory goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    pub name: &'static str,
    /// Bytes now.
    pub bytes: u64,
    /// The most it can come to as things are, if there is such a number.
    pub bound_bytes: Option<u64>,
}

/// Files whose maps a look at the sum asks for.
const FILES_AT_ONCE: usize = 256;

/// What describes a frame: its descriptor, and its link of the free list.
const FRAME_BYTES: u64 = size_of::<Descriptor>() as u64 + 4;

impl Pool {
    /// What the pool's memory goes to, frames first.
    pub fn memory(&self) -> Vec<MemoryUse> {
        let frames = &self.core.frames;
        let page_size = self.page_size().bytes() as u64;
        let spaces = self.core.all_spaces();
        for space in &spaces {
            space.file_usage();
        }
        let full = |space: &Arc<Space>| translation_bytes(space.page_count().saturating_sub(1));
        let pages = MemoryUse {
            name: "frames",
            bytes: self.resident_bytes(),
            bound_bytes: Some(
                (frames.limit() as u64 * page_size).next_multiple_of(EXTENT_BYTES as u64),
            ),
        };
        let translation = spaces.iter().map(full).sum();
        [pages].into_iter().chain(self.beside_frames(translation)).collect()
    }

    /// Bytes of all but the frames. The cost is the same however many spaces are open; of many, the
    /// maps of some files are as they were some looks ago.
    pub fn memory_beside_frames(&self) -> u64 {
        let next = &self.core.next_map;
        let first = next.load(Ordering::Relaxed);
        let mut spaces = self.core.some_spaces(first, FILES_AT_ONCE);
        let rest = FILES_AT_ONCE - spaces.len();
        spaces.extend(self.core.some_spaces(0, rest).into_iter().take_while(|it| it.id() < first));
        for space in &spaces {
            space.file_usage();
        }
        next.store(spaces.last().map_or(0, |last| last.id().wrapping_add(1)), Ordering::Relaxed);
        self.beside_frames(0).iter().map(|used| used.bytes).sum()
    }

    /// What is beside the frames; `translation` is the bound of that.
    fn beside_frames(&self, translation: u64) -> [MemoryUse; 7] {
        let (frames, spaces) = (&self.core.frames, &self.core.spaces_memory);
        let touched = frames.highest() as u64;
        let batch = self.core.flush_batch_pages() as u64 * self.page_size().bytes() as u64;
        let buffer = self.flusher.buffer_bytes().map_or(batch, |bytes| bytes as u64);
        [
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
                bytes: spaces.translation_bytes(),
                bound_bytes: Some(translation),
            },
            MemoryUse {
                name: "flush_buffers",
                bytes: buffer,
                bound_bytes: Some(batch.max(buffer)),
            },
            MemoryUse { name: "page_maps", bytes: spaces.map_bytes(), bound_bytes: None },
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

    /// However many files are open, a look asks a bounded number for their maps, by turns.
    #[test]
    fn a_look_at_the_sum_asks_some_files_and_knows_all_spaces() {
        const FILES: u32 = 600;
        let storage = SimStorage::new(1);
        let config = PoolConfig { background: false, ..PoolConfig::default() };
        let pool = Pool::new(config, Arc::new(storage.clone())).unwrap();
        let mut spaces: Vec<Arc<Space>> = (0..FILES)
            .map(|no| {
                let id = 16 + 3 * no;
                let file = storage.create(&format!("{id}.tpd")).unwrap();
                pool.open_space(id, test_files::create(file, id, pool.page_size())).unwrap()
            })
            .collect();
        for space in &spaces {
            let mut page = pool.new_page(space, 0).unwrap();
            pool.mark_dirty(&mut page, Lsn(10), Lsn(20));
        }
        pool.flush_all().unwrap();
        let memory = |name| pool.memory().iter().find(|row| row.name == name).unwrap().bytes;
        let maps = memory("page_maps");
        assert!(maps > 0);
        assert_eq!(pool.packed_usage().map_bytes, maps);
        // What is known of the maps is forgotten, file by file.
        let known = || spaces.iter().filter(|space| space.counted_map_bytes() > 0).count();
        spaces.iter().for_each(|space| space.forget_map_bytes());
        for expected in [256, 512, 600, 600] {
            pool.memory_beside_frames();
            assert_eq!(known(), expected);
        }
        assert_eq!(pool.core.spaces_memory.map_bytes(), maps);
        assert_eq!(memory("page_maps"), maps);

        // What the translation takes is known at once, of any of them.
        let before = memory("translation");
        assert_eq!(before, u64::from(FILES) * 8192);
        spaces[300].note_resident(10_000).unwrap();
        assert_eq!(memory("translation"), before - 8192 + translation_bytes(10_000));
        let all = pool.memory().iter().map(|row| row.bytes).sum::<u64>() - pool.resident_bytes();
        assert_eq!(pool.memory_beside_frames(), all);
        for space in spaces.drain(..) {
            pool.close_space(&space, true).unwrap();
        }
        assert_eq!((memory("translation"), memory("page_maps")), (0, 0));
    }

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
