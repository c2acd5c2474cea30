//! Layout A: each file is an array of 4 KiB blocks. An image goes to a new place each time, the
//! smallest hole that it fits; its old place is a hole once the batch is durable. No cleaner.

use std::collections::{BTreeMap, BTreeSet};

use super::layout::{BLOCK_BYTES, Counts, Load, Stored, Write, write_operations};

/// Blocks of a file that hold no image: what describes the file.
const ROOT_BLOCKS: u64 = 2;

#[derive(Default)]
struct File {
    /// Where the file ends.
    end: u64,
    /// Holes: first block, blocks. No two touch.
    holes: BTreeMap<u64, u64>,
    /// The same by size: blocks, first block.
    by_size: BTreeSet<(u64, u64)>,
}

impl File {
    fn new() -> File {
        File { end: ROOT_BLOCKS, ..File::default() }
    }

    fn add_hole(&mut self, first: u64, blocks: u64) {
        self.holes.insert(first, blocks);
        self.by_size.insert((blocks, first));
    }

    /// Forgets the hole that begins there; its blocks.
    fn remove_hole(&mut self, first: u64) -> Option<u64> {
        let blocks = self.holes.remove(&first)?;
        assert!(self.by_size.remove(&(blocks, first)), "both know every hole");
        Some(blocks)
    }

    /// Takes the smallest hole with room, else grows.
    fn take(&mut self, blocks: u64) -> u64 {
        let best = self.by_size.range((blocks, 0)..).next().copied();
        let Some((length, first)) = best else {
            let first = self.end;
            self.end += blocks;
            return first;
        };
        self.remove_hole(first);
        if length > blocks {
            self.add_hole(first + blocks, length - blocks);
        }
        first
    }

    /// Makes a hole, joined with its neighbours; one at the end is cut off.
    fn free(&mut self, mut first: u64, mut blocks: u64) {
        if let Some((&before, &length)) = self.holes.range(..first).next_back()
            && before + length == first
        {
            self.remove_hole(before);
            (first, blocks) = (before, blocks + length);
        }
        if let Some(length) = self.remove_hole(first + blocks) {
            blocks += length;
        }
        if first + blocks == self.end {
            self.end = first;
        } else {
            self.add_hole(first, blocks);
        }
    }
}

/// The layout with all its files.
pub struct Slots {
    files: Vec<File>,
    /// Of each page: first block and blocks.
    places: Vec<Option<(u64, u64)>>,
    /// What was counted.
    pub counts: Counts,
}

impl Slots {
    /// With what is there before.
    pub fn new(load: &Load) -> Slots {
        let files = load.spaces.iter().map(|_| File::new()).collect();
        let places = vec![None; load.pages as usize];
        let mut slots = Slots { files, places, counts: Counts::default() };
        for write in &load.before {
            slots.batch(std::slice::from_ref(write));
        }
        slots.counts = Counts::default();
        slots
    }

    /// Writes a batch.
    pub fn batch(&mut self, batch: &[Write]) {
        let mut freed = Vec::new();
        let mut written: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for write in batch {
            let blocks = u64::from(write.bytes.div_ceil(BLOCK_BYTES));
            let first = self.files[write.space as usize].take(blocks);
            let place = self.places[write.page as usize].replace((first, blocks));
            freed.extend(place.map(|(first, blocks)| (write.space, first, blocks)));
            written.entry(write.space).or_default().push((first, blocks));
            self.counts.pages += 1;
            self.counts.image_bytes += u64::from(write.bytes);
            self.counts.written_bytes += blocks * u64::from(BLOCK_BYTES);
        }
        for runs in written.values_mut() {
            runs.sort_unstable();
            for run in runs.chunk_by(|a, b| a.0 + a.1 == b.0) {
                let blocks: u64 = run.iter().map(|(_, blocks)| blocks).sum();
                self.counts.writes += write_operations(blocks * u64::from(BLOCK_BYTES));
            }
        }
        self.counts.batches += 1;
        self.counts.syncs += written.len() as u64;
        for (space, first, blocks) in freed {
            self.files[space as usize].free(first, blocks);
        }
    }

    /// Bytes of the blocks that the image of a page takes, on average.
    pub fn read_bytes(&self) -> f64 {
        let images = self.places.iter().flatten().count().max(1);
        self.stored().live_bytes as f64 / images as f64
    }

    /// What is stored.
    pub fn stored(&self) -> Stored {
        let block = u64::from(BLOCK_BYTES);
        let live: u64 = self.places.iter().flatten().map(|(_, blocks)| blocks).sum();
        let disk: u64 = self.files.iter().map(|file| file.end).sum();
        Stored {
            live_bytes: live * block,
            disk_bytes: disk * block,
            files: self.files.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(page: u32, bytes: u32) -> Write {
        Write { page, space: 0, bytes }
    }

    #[test]
    fn a_hole_is_used_again_joined_with_its_neighbours_and_cut_off_at_the_end() {
        let mut file = File::new();
        let places: Vec<u64> = (0..4).map(|_| file.take(1)).collect();
        assert_eq!(places, [2, 3, 4, 5]);
        file.free(2, 1);
        file.free(4, 1);
        assert_eq!(file.take(2), 6, "no hole has room for two");
        file.free(3, 1);
        assert_eq!(file.holes, BTreeMap::from([(2, 3)]));
        assert_eq!(file.take(2), 2);
        file.free(6, 2);
        file.free(5, 1);
        assert_eq!((file.end, file.holes.len()), (4, 0), "the hole before the end went with it");
    }

    #[test]
    fn an_old_image_stays_until_its_batch_is_durable() {
        let before = vec![write(0, 5000), write(1, 100)];
        let load = Load { pages: 2, spaces: vec![17], before, batches: Vec::new() };
        let mut slots = Slots::new(&load);
        assert_eq!(slots.stored().disk_bytes, (2 + 2 + 1) * 4096);
        slots.batch(&[write(0, 100), write(1, 100)]);
        // Neither went where the other had been: two more blocks, one write, and a hole of three.
        assert_eq!((slots.counts.writes, slots.counts.syncs), (1, 1));
        assert_eq!(slots.places, [Some((5, 1)), Some((6, 1))]);
        assert_eq!(slots.files[0].holes, BTreeMap::from([(2, 3)]));
        assert_eq!(slots.counts.written_bytes, 2 * 4096);
    }
}
