//! Sorting entries by key, in bounded memory.
//!
//! Entries are collected in memory. When that is used up, they are sorted and written to a file one behind the other, a *run*; in the end all runs are
//! merged. Without a run nothing is written at all.
//! ```text
//! run      entries, ascending; begins at a multiple of BLOCK in the file
//! entry    key length u32 | value length u32 | key | value
//! ```
//! The file is of no use to anybody else: it goes with the [`Sorter`], and after a crash at the next opening of the directory
//! ([`clear_files`]). It is never synced.

mod run;

use crate::error::Result;
use run::{Run, RunReader, RunWriter};
use std::cmp::Ordering;
use std::sync::Arc;
use tidepool_pool::storage::{Storage, StorageFile};

/// Where the files are.
const SORT_DIR: &str = "sort";
/// Files are written and read in blocks of this size; each run that is merged takes one of memory.
const BLOCK: usize = 64 << 10;

/// An entry in memory: where it is in [`Sorter::bytes`], and the beginning of its key, which decides most comparisons.
#[derive(Clone, Copy)]
struct Entry {
    head: u64,
    at: usize,
    key_len: u32,
    value_len: u32,
}

/// The first eight bytes of a key as a number; those that it lacks are zeroes.
fn head_of(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = key.len().min(8);
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

/// Collects entries; [`sorted`](Self::sorted) gives them back in order.
pub(crate) struct Sorter {
    storage: Arc<dyn Storage>,
    name: String,
    memory_bytes: usize,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    file: Option<Arc<dyn StorageFile>>,
    runs: Vec<Run>,
}

impl Sorter {
    /// A sorter that takes about `memory_bytes`. `name` is its file's, if it comes to need one.
    pub fn new(storage: &Arc<dyn Storage>, name: &str, memory_bytes: usize) -> Self {
        Self {
            storage: storage.clone(),
            name: format!("{SORT_DIR}/{name}"),
            memory_bytes,
            bytes: Vec::new(),
            entries: Vec::new(),
            file: None,
            runs: Vec::new(),
        }
    }

    /// Adds an entry.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let used = self.bytes.len() + self.entries.len() * size_of::<Entry>();
        if used + key.len() + value.len() + size_of::<Entry>() > self.memory_bytes
            && !self.entries.is_empty()
        {
            self.write_run()?;
        }
        self.entries.push(Entry {
            head: head_of(key),
            at: self.bytes.len(),
            key_len: key.len() as u32,
            value_len: value.len() as u32,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.at..entry.at + entry.key_len as usize]
    }

    fn value(&self, entry: &Entry) -> &[u8] {
        let start = entry.at + entry.key_len as usize;
        &self.bytes[start..start + entry.value_len as usize]
    }

    /// Equal keys stay in the order in which they came.
    fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable_by(|a, b| {
            let by_key = || self.key(a).cmp(self.key(b));
            a.head.cmp(&b.head).then_with(by_key).then(a.at.cmp(&b.at))
        });
        self.entries = entries;
    }

    fn write_run(&mut self) -> Result<()> {
        self.sort();
        let file = match &self.file {
            Some(file) => file.clone(),
            None => {
                self.storage.create_dir(SORT_DIR)?;
                let file = self.storage.create(&self.name)?;
                self.file.insert(file).clone()
            }
        };
        let start = self.runs.last().map_or(0, |run| run.end.next_multiple_of(BLOCK as u64));
        let mut writer = RunWriter::new(&*file, start);
        for entry in &self.entries {
            writer.entry(self.key(entry), self.value(entry))?;
        }
        self.runs.push(writer.finish()?);
        self.bytes.clear();
        self.entries.clear();
        Ok(())
    }

    /// Ends the collecting: the entries by key, equal keys in the order in which they came.
    pub fn sorted(mut self) -> Result<Sorted> {
        if self.runs.is_empty() {
            self.sort();
            return Ok(Sorted { sorter: self, next: 0, readers: Vec::new(), heap: Vec::new() });
        }
        if !self.entries.is_empty() {
            self.write_run()?;
        }
        self.bytes = Vec::new();
        self.entries = Vec::new();
        let file = self.file.clone().expect("runs are in a file");
        let mut readers = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            let mut reader = RunReader::new(file.clone(), run);
            reader.advance()?;
            readers.push(reader);
        }
        let heap = (0..readers.len()).collect();
        let mut sorted = Sorted { sorter: self, next: 0, readers, heap };
        for at in (0..sorted.heap.len() / 2).rev() {
            sorted.sift_down(at);
        }
        Ok(sorted)
    }
}

impl Drop for Sorter {
    fn drop(&mut self) {
        if self.file.take().is_some()
            && let Err(error) = self.storage.remove(&self.name)
        {
            tracing::warn!(%error, "a file of a sort stays until the next start");
        }
    }
}

/// Entries in order.
pub(crate) struct Sorted {
    sorter: Sorter,
    /// In memory: how many have been given.
    next: usize,
    readers: Vec<RunReader>,
    /// The readers that are not at their end, the one with the least key first; a binary heap.
    heap: Vec<usize>,
}

impl Sorted {
    /// The next entry into `key` and `value`; false at the end.
    pub fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool> {
        key.clear();
        value.clear();
        if self.readers.is_empty() {
            let Some(entry) = self.sorter.entries.get(self.next) else { return Ok(false) };
            key.extend_from_slice(self.sorter.key(entry));
            value.extend_from_slice(self.sorter.value(entry));
            self.next += 1;
            return Ok(true);
        }
        let Some(&first) = self.heap.first() else { return Ok(false) };
        let reader = &mut self.readers[first];
        std::mem::swap(key, &mut reader.key);
        std::mem::swap(value, &mut reader.value);
        if !reader.advance()? {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        Ok(true)
    }

    /// Of equal keys the earlier run's comes first.
    fn order(&self, a: usize, b: usize) -> Ordering {
        self.readers[a].key.cmp(&self.readers[b].key).then(a.cmp(&b))
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.order(self.heap[child], self.heap[least]).is_lt()
                {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }
}

/// Removes what sorts of an earlier life left behind.
pub(crate) fn clear_files(storage: &dyn Storage) -> Result<()> {
    if storage.exists(SORT_DIR)? {
        for name in storage.list(SORT_DIR)? {
            storage.remove(&format!("{SORT_DIR}/{name}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::prelude::*;
    use rand::rngs::StdRng;
    use tidepool_pool::storage::SimStorage;

    type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    fn sort(storage: &Arc<dyn Storage>, entries: &Entries, memory_bytes: usize) -> Entries {
        let mut sorter = Sorter::new(storage, "x", memory_bytes);
        for (key, value) in entries {
            sorter.push(key, value).unwrap();
        }
        let (mut key, mut value, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let mut sorted = sorter.sorted().unwrap();
        while sorted.next(&mut key, &mut value).unwrap() {
            out.push((key.clone(), value.clone()));
        }
        assert!(!sorted.next(&mut key, &mut value).unwrap());
        out
    }

    #[test]
    fn entries_come_back_in_order_whatever_the_memory() {
        let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
        for seed in 0..60 {
            let mut random = StdRng::seed_from_u64(seed);
            let (count, key_max) = (random.random_range(0..4000), random.random_range(1..40));
            let value_max = [1, 20, 3000][seed as usize % 3];
            let entries: Entries = (0..count)
                .map(|n: u32| {
                    let len = random.random_range(0..key_max);
                    let key = (0..len).map(|_| random.random_range(0..3u8)).collect();
                    let mut value = vec![7; random.random_range(0..value_max)];
                    // Equal keys are told apart by it.
                    value.extend_from_slice(&n.to_le_bytes());
                    (key, value)
                })
                .collect();
            let mut expected = entries.clone();
            expected.sort_by(|a, b| a.0.cmp(&b.0));
            for memory_bytes in [1, 20_000, 1 << 30] {
                if memory_bytes == 1 && count > 300 {
                    continue;
                }
                assert!(sort(&storage, &entries, memory_bytes) == expected, "seed {seed}");
                assert!(!storage.exists("sort/x").unwrap());
            }
        }
    }

    #[test]
    fn files_of_an_earlier_life_are_removed() {
        let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
        clear_files(&*storage).unwrap();
        let mut sorter = Sorter::new(&storage, "x", 10);
        for n in 0..10u8 {
            sorter.push(&[n], b"value").unwrap();
        }
        std::mem::forget(sorter);
        assert_eq!(storage.list("sort").unwrap(), ["x"]);
        clear_files(&*storage).unwrap();
        assert!(storage.list("sort").unwrap().is_empty());
    }
}
