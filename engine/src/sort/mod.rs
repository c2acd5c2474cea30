//! Sorting entries by key, in bounded memory.
//!
//! Entries are collected in memory. When that is used up, they are sorted and written to a file one
//! behind the other, a *run*; in the end all runs are merged: at once if the memory has a block for
//! each, else in passes, as many at a time as it has. Without a run nothing is written at all. A
//! pass writes where the one before it was read, so that the file has each entry twice at most,
//! however many passes there are.
//! ```text
//! run      entries, ascending, in blocks with a checksum each (`run`); begins at a multiple of BLOCK in the file
//! entry    key length u32 | value length u32 | key | value
//! ```
//! The file is of no use to anybody else: it goes with the [`Sorter`], and after a crash at the
//! next opening of the directory ([`clear_files`]). It is never synced.
//!
//! What sorts take of memory is counted ([`SortMemory`]) as it is allocated: the collected entries,
//! and while runs are merged a block for each.

mod account;
mod run;

pub(crate) use account::SortMemory;

use crate::error::Result;
use account::Share;
use run::{Run, RunFile, RunReader, RunWriter};
use std::cmp::Ordering;
use std::sync::Arc;
use tidepool_pool::encryption::NumberedKey;
use tidepool_pool::storage::Storage;

pub(crate) use crate::files::SORT_DIR;
/// Files are written and read in blocks of this size; each run that is merged takes one of memory.
const BLOCK: usize = 64 << 10;
/// The least number of runs that are merged at a time, however little memory there is.
const MERGED_MIN: usize = 2;
/// Entries that a pass merges between two looks at whether to go on.
const ENTRIES_A_TURN: u32 = 1000;
/// A sort with less memory than this has more in blocks than in entries.
pub(crate) const MEMORY_MIN_BYTES: usize = 4 * BLOCK;

/// An entry in memory: where it is in [`Sorter::bytes`], and the beginning of its key, which
/// decides most comparisons.
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
    counted: Share,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    file: Option<RunFile>,
    key: Option<Arc<NumberedKey>>,
    runs: Vec<Run>,
}

impl Sorter {
    /// A sorter that takes about `memory_bytes`, counted in `memory`. `name` is its file's, if it
    /// comes to need one.
    pub fn new(
        storage: &Arc<dyn Storage>,
        name: &str,
        memory_bytes: usize,
        memory: &Arc<SortMemory>,
    ) -> Self {
        Self {
            storage: storage.clone(),
            name: format!("{SORT_DIR}/{name}"),
            memory_bytes,
            counted: Share::new(memory),
            bytes: Vec::new(),
            entries: Vec::new(),
            file: None,
            key: None,
            runs: Vec::new(),
        }
    }

    /// Has the file encrypted, with a key that goes with the sorter.
    pub fn encrypted(mut self) -> Self {
        self.key = Some(Arc::new(NumberedKey::random()));
        self
    }

    /// Adds an entry.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let used = self.bytes.len() + self.entries.len() * size_of::<Entry>();
        let needed = used + key.len() + value.len() + size_of::<Entry>();
        if needed > self.memory_bytes && !self.entries.is_empty() {
            // The memory is kept for the next run.
            self.write_run()?;
        }
        let entries = |sorter: &Self| sorter.entries.capacity() * size_of::<Entry>();
        let most = self.memory_bytes.saturating_sub(entries(self));
        reserve(&mut self.bytes, key.len() + value.len(), most);
        let most = self.memory_bytes.saturating_sub(self.bytes.capacity()) / size_of::<Entry>();
        reserve(&mut self.entries, 1, most);
        self.counted.grow_to(self.bytes.capacity() + entries(self));
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
                self.file.insert(RunFile { file, key: self.key.clone() }).clone()
            }
        };
        let start = self.runs.last().map_or(0, Run::end);
        let mut writer = RunWriter::new(&file, start, 0);
        for entry in &self.entries {
            writer.entry(self.key(entry), self.value(entry))?;
        }
        self.runs.push(writer.finish()?);
        self.bytes.clear();
        self.entries.clear();
        Ok(())
    }

    /// Ends the collecting: the entries by key, equal keys in the order in which they came. `go_on`
    /// is asked now and then while there is something to merge before the first entry can be given,
    /// and ends it by an error.
    pub fn sorted(mut self, go_on: &mut dyn FnMut() -> Result<()>) -> Result<Sorted> {
        if self.runs.is_empty() {
            self.sort();
            return Ok(Sorted { sorter: self, next: 0, merge: None });
        }
        if !self.entries.is_empty() {
            self.write_run()?;
        }
        self.bytes = Vec::new();
        self.entries = Vec::new();
        self.merge_down_to((self.memory_bytes / BLOCK).max(MERGED_MIN), go_on)?;
        self.counted.set((self.runs.len() * BLOCK) as u64);
        let merge = Merge::new(self.file(), &self.runs)?;
        Ok(Sorted { sorter: self, next: 0, merge: Some(merge) })
    }

    /// Merges runs, `most` at a time, until there are no more than that.
    fn merge_down_to(&mut self, most: usize, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut turn = 0;
        while self.runs.len() > most {
            self.counted.set(((most + 1) * BLOCK) as u64);
            let file = self.file().clone();
            let runs = std::mem::take(&mut self.runs);
            let (first, last) = (&runs[0], &runs[runs.len() - 1]);
            let (start, pass) = (first.start(), first.pass() + 1);
            // They lie one behind the other, and merged they take no more blocks than before.
            let fits_before = last.end() - start <= start;
            let mut end = if fits_before { 0 } else { last.end() };
            // Neighbours, so that equal keys stay in their order.
            for group in runs.chunks(most) {
                let mut merge = Merge::new(&file, group)?;
                let mut writer = RunWriter::new(&file, end, pass);
                while merge.next(&mut key, &mut value)? {
                    if turn == 0 {
                        go_on()?;
                    }
                    turn = (turn + 1) % ENTRIES_A_TURN;
                    writer.entry(&key, &value)?;
                }
                let merged = writer.finish()?;
                end = merged.end();
                self.runs.push(merged);
            }
        }
        Ok(())
    }

    fn file(&self) -> &RunFile {
        self.file.as_ref().expect("runs are in a file")
    }
}

/// Makes room for `more` elements: for twice as many as before, as a vector does, but not beyond
/// `most`.
fn reserve<T>(vec: &mut Vec<T>, more: usize, most: usize) {
    let needed = vec.len() + more;
    if needed > vec.capacity() {
        let capacity = (2 * vec.capacity()).min(most).max(needed);
        vec.reserve_exact(capacity - vec.len());
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
    merge: Option<Merge>,
}

impl Sorted {
    /// The next entry into `key` and `value`; false at the end.
    pub fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool> {
        if let Some(merge) = &mut self.merge {
            return merge.next(key, value);
        }
        key.clear();
        value.clear();
        let Some(entry) = self.sorter.entries.get(self.next) else { return Ok(false) };
        key.extend_from_slice(self.sorter.key(entry));
        value.extend_from_slice(self.sorter.value(entry));
        self.next += 1;
        Ok(true)
    }
}

/// Several runs read as one.
struct Merge {
    readers: Vec<RunReader>,
    /// The readers that are not at their end, the one with the least key first; a binary heap.
    heap: Vec<usize>,
}

impl Merge {
    fn new(file: &RunFile, runs: &[Run]) -> Result<Merge> {
        let mut readers = Vec::with_capacity(runs.len());
        for run in runs {
            let mut reader = RunReader::new(file.clone(), run);
            reader.advance()?;
            readers.push(reader);
        }
        let heap = (0..readers.len()).collect();
        let mut merge = Merge { readers, heap };
        for at in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(at);
        }
        Ok(merge)
    }

    /// The next entry into `key` and `value`; false at the end.
    fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool> {
        key.clear();
        value.clear();
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

/// Removes what sorts of an earlier life left behind. What can't be removed costs room, and no
/// more: its name is that of a tree that is never sorted again.
pub(crate) fn clear_files(storage: &dyn Storage) {
    let clear = || -> Result<()> {
        if storage.exists(SORT_DIR)? {
            for name in storage.list(SORT_DIR)? {
                storage.remove(&format!("{SORT_DIR}/{name}"))?;
            }
        }
        Ok(())
    };
    if let Err(error) = clear() {
        tracing::warn!(%error, "what an earlier life has sorted stays for now");
    }
}

/// All entries of a run of this length at the beginning of a file, for a fuzzer.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_run(
    file: Arc<dyn tidepool_pool::storage::StorageFile>,
    len: u64,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let file = RunFile { file, key: None };
    let mut reader = RunReader::new(file, &Run::at_start(len));
    let mut entries = Vec::new();
    while reader.advance()? {
        entries.push((reader.key.clone(), reader.value.clone()));
    }
    Ok(entries)
}

/// Puts the right checksums into the blocks of a run at the beginning of a file, for a fuzzer.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn stamp_run(file: &mut [u8]) {
    run::stamp(file);
}

/// A run as it is written, and its length, for a fuzzer.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn example_run() -> (Vec<u8>, u64) {
    let disk = tidepool_pool::storage::SimStorage::new(0);
    let file = disk.create("run").expect("a file can be made");
    let file = RunFile { file, key: None };
    let mut writer = RunWriter::new(&file, 0, 0);
    for n in 0..20u32 {
        writer.entry(&n.to_be_bytes(), &[7; 5]).expect("an entry can be written");
    }
    let run = writer.finish().expect("a run can be written");
    let mut bytes = tidepool_pool::storage::AlignedBuf::zeroed(BLOCK);
    file.file.read_at(&mut bytes, 0).expect("it can be read");
    (bytes.to_vec(), run.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::prelude::*;
    use rand::rngs::StdRng;
    use tidepool_pool::storage::SimStorage;

    type Entries = Vec<(Vec<u8>, Vec<u8>)>;

    fn sorter(storage: &Arc<dyn Storage>, entries: &Entries, memory_bytes: usize) -> Sorter {
        let mut sorter = Sorter::new(storage, "x", memory_bytes, &Arc::default());
        if entries.len().is_multiple_of(2) {
            sorter = sorter.encrypted();
        }
        for (key, value) in entries {
            sorter.push(key, value).unwrap();
        }
        sorter
    }

    fn give(sorter: Sorter) -> Result<Entries> {
        let (mut key, mut value, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let mut sorted = sorter.sorted(&mut || Ok(()))?;
        while sorted.next(&mut key, &mut value)? {
            out.push((key.clone(), value.clone()));
        }
        assert!(!sorted.next(&mut key, &mut value)?);
        Ok(out)
    }

    fn sort(storage: &Arc<dyn Storage>, entries: &Entries, memory_bytes: usize) -> Entries {
        give(sorter(storage, entries, memory_bytes)).unwrap()
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
                    // It distinguishes equal keys.
                    value.extend_from_slice(&n.to_le_bytes());
                    (key, value)
                })
                .collect();
            let mut expected = entries.clone();
            expected.sort_by(|a, b| a.0.cmp(&b.0));
            for memory_bytes in [1, 20_000, 1 << 30] {
                if memory_bytes == 1 && count > 100 {
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
        clear_files(&*storage);
        let entries = (0..10u8).map(|n| (vec![n], b"value".to_vec())).collect();
        std::mem::forget(sorter(&storage, &entries, 10));
        assert_eq!(storage.list("sort").unwrap(), ["x"]);
        clear_files(&*storage);
        assert!(storage.list("sort").unwrap().is_empty());
    }

    /// Three runs of some blocks each, the last of each not full.
    fn entries_of_three_runs() -> Entries {
        (0..3000u32)
            .map(|n| (n.wrapping_mul(2_654_435_761).to_be_bytes().into(), vec![9; 150]))
            .collect()
    }

    #[test]
    fn a_damaged_block_is_an_error_that_names_its_place() {
        let sim = SimStorage::new(1);
        let storage: Arc<dyn Storage> = Arc::new(sim.clone());
        let (entries, block) = (entries_of_three_runs(), BLOCK as u64);
        let blocks = {
            let _file = sorter(&storage, &entries, 200_000);
            sim.open("sort/x").unwrap().len().unwrap() / block
        };
        assert_eq!(blocks, 6);
        for damaged in 0..blocks {
            for at in [0, 3, 4, 1000, block - 1] {
                let sorter = sorter(&storage, &entries, 200_000);
                let runs = sorter.runs.len();
                sim.corrupt("sort/x", damaged * block + at, 0x10);
                // The last run is still in memory.
                assert_eq!((runs, sorter.entries.is_empty()), (2, false));
                let error = give(sorter).unwrap_err().to_string();
                let place = format!(
                    "sort/x: the checksum is wrong of the block at offset {}:",
                    damaged * block
                );
                assert!(error.contains(&place), "{error}");
                assert!(!storage.exists("sort/x").unwrap());
            }
        }
    }

    #[test]
    fn a_block_from_elsewhere_is_found_out() {
        let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
        let sorter = sorter(&storage, &entries_of_three_runs(), 200_000);
        let file = storage.open("sort/x").unwrap();
        let mut block = tidepool_pool::storage::AlignedBuf::zeroed(BLOCK);
        file.read_at(&mut block, 0).unwrap();
        file.write_at(&block, BLOCK as u64).unwrap();
        let error = give(sorter).unwrap_err().to_string();
        assert!(error.contains("offset 65536"), "{error}");
    }

    #[test]
    fn memory_is_counted_while_it_is_had() {
        let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
        let memory: Arc<SortMemory> = Arc::default();
        let mut sorters = ["a", "b"].map(|name| Sorter::new(&storage, name, 1 << 20, &memory));
        assert_eq!(memory.bytes(), 0);
        let mut pushed = 0;
        for n in 0..20_000u32 {
            for sorter in &mut sorters {
                sorter.push(&n.to_be_bytes(), &[1; 100]).unwrap();
                pushed += 104 + size_of::<Entry>() as u64;
            }
            let expected = pushed.min(2 << 20);
            assert!(memory.bytes() + (1 << 10) >= expected, "{} of {expected}", memory.bytes());
            let most = (2 * expected).min(2 << 20) + 2 * BLOCK as u64;
            assert!(memory.bytes() <= most, "{} of {most}", memory.bytes());
        }
        let [a, b] = sorters;
        let runs = a.runs.len() as u64 + 1;
        drop(b);
        let merged = a.sorted(&mut || Ok(())).unwrap();
        assert_eq!(memory.bytes(), runs * BLOCK as u64);
        drop(merged);
        assert_eq!(memory.bytes(), 0);
    }

    fn entry(n: u32) -> ([u8; 4], u32) {
        (n.wrapping_mul(2_654_435_761).to_be_bytes(), n % 7)
    }

    /// Of entries that come to twenty runs and some.
    fn sorter_of_many_runs(storage: &Arc<dyn Storage>, memory: &Arc<SortMemory>) -> Sorter {
        let mut sorter = Sorter::new(storage, "x", MEMORY_MIN_BYTES, memory);
        for (key, n) in (0..40_000).map(entry) {
            sorter.push(&key, &[n as u8; 100]).unwrap();
        }
        assert!(sorter.runs.len() > 16, "{}", sorter.runs.len());
        sorter
    }

    #[test]
    fn many_runs_are_merged_in_passes_within_the_memory_and_twice_the_room() {
        let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
        let memory: Arc<SortMemory> = Arc::default();
        let sorter = sorter_of_many_runs(&storage, &memory);
        let mut expected: Vec<_> = (0..40_000).map(entry).collect();
        expected.sort();
        let mut sorted = sorter.sorted(&mut || Ok(())).unwrap();
        assert!(sorted.sorter.runs.len() <= 4 && memory.bytes() <= MEMORY_MIN_BYTES as u64);
        assert_eq!(sorted.sorter.runs[0].pass(), 2);
        let (file_len, entries_len) = (sorted.sorter.file().file.len().unwrap(), 40_000 * 112);
        assert!(file_len < entries_len * 9 / 4, "{file_len} bytes of {entries_len}");
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for (expected_key, n) in expected {
            assert!(sorted.next(&mut key, &mut value).unwrap());
            assert_eq!((&key[..], &value[..]), (&expected_key[..], &[n as u8; 100][..]));
        }
        assert!(!sorted.next(&mut key, &mut value).unwrap());
    }

    #[test]
    fn a_block_of_an_earlier_pass_is_found_out() {
        let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
        let sorter = sorter_of_many_runs(&storage, &Arc::default());
        let file = sorter.file().clone();
        let mut block = tidepool_pool::storage::AlignedBuf::zeroed(BLOCK);
        file.file.read_at(&mut block, BLOCK as u64).unwrap();
        let mut sorted = sorter.sorted(&mut || Ok(())).unwrap();
        // As if the disk had lost what was written there since.
        file.file.write_at(&block, BLOCK as u64).unwrap();
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let error = loop {
            match sorted.next(&mut key, &mut value) {
                Ok(more) => assert!(more, "an old block was taken for a new one"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("offset 65536"), "{error}");
    }

    #[test]
    fn merges_in_passes_are_given_up_when_asked() {
        let storage: Arc<dyn Storage> = Arc::new(SimStorage::new(1));
        for asked in [1, 20, 70] {
            let sorter = sorter_of_many_runs(&storage, &Arc::default());
            let mut left = asked;
            let mut go_on = || {
                left -= 1;
                if left > 0 { Ok(()) } else { Err(crate::Error::Interrupted) }
            };
            let outcome = sorter.sorted(&mut go_on).map(drop);
            assert_eq!((outcome, left), (Err(crate::Error::Interrupted), 0));
            assert!(!storage.exists("sort/x").unwrap());
        }
    }
}
