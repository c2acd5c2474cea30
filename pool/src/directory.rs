//! The translation directory of one tablespace: page number → page word, in two loads.
//!
//! The first level is an array of 65,536 pointers, the second are groups of 65,536 words, made when
//! a page of the group is first asked for. Both are mappings of which the kernel backs only the
//! 4 KiB parts that were touched, so a small table costs two such parts, and the untouched middle
//! of a huge one costs nothing. A group, once made, stays until the directory goes: page words have
//! stable addresses, on which threads park.
//!
//! Neighbouring pages have their words on different cache lines ([`place_of`]): threads that latch
//! the leaves of a small table, or neighbouring leaves of a large one, write no line in common.
//!
//! Where the kernel [counts all writable memory](crate::mapping), touched or not, two such arrays
//! would cost each table a mebibyte. So there only the first words of a group can be written, and
//! [`Directory::let_be_installed`] moves that border as pages come. Behind the border all words are
//! zero, and a word that is zero is written only to install a page. Where the border is, stands in
//! a separate 4 KiB part before the words; where the kernel counts touched memory only, that part
//! is never touched.

#![expect(unsafe_code, reason = "groups are published through atomic pointers")]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::latch::PageWord;
use crate::mapping::{Accounting, Mapping, ZeroedArray};

/// Pages whose words are made together.
const GROUP_PAGES: usize = 1 << 16;
/// The kernel's pages, before the words of a group and in general.
const PART_BYTES: usize = 4096;
const PART_WORDS: usize = PART_BYTES / size_of::<PageWord>();
const GROUP_BYTES: usize = PART_BYTES + GROUP_PAGES * size_of::<PageWord>();
/// Groups whose pointers can be written from the start.
const GROUPS_AT_FIRST: usize = PART_BYTES / size_of::<AtomicPtr<PageWord>>();

/// Words between those of neighbouring pages: 128 bytes, for processors fetch lines in pairs.
const STRIDE: usize = 16;

/// Where in its group the word of page `no` is. The words of a part stay in it, in the order of the
/// bits of the page's number turned by those of the stride.
#[inline]
const fn place_of(no: u32) -> usize {
    let (part, page) = (no as usize % GROUP_PAGES / PART_WORDS, no as usize % PART_WORDS);
    part * PART_WORDS + page * STRIDE % PART_WORDS + page * STRIDE / PART_WORDS
}

/// Translation words of the 2^32 pages that a tablespace may have.
pub(crate) struct Directory {
    groups: ZeroedArray<AtomicPtr<PageWord>>,
    accounting: Accounting,
}

impl Directory {
    pub(crate) fn new(accounting: Accounting) -> io::Result<Directory> {
        let groups = ZeroedArray::new_in_parts((1 << 32) / GROUP_PAGES, accounting)?;
        groups.commit_up_to(GROUPS_AT_FIRST)?;
        Ok(Directory { groups, accounting })
    }

    /// The first word of the group of page `no`; null if there is no group.
    #[inline]
    fn group(&self, no: u32) -> *mut PageWord {
        // Acquire pairs with the publication in `get_or_make`.
        self.groups[no as usize / GROUP_PAGES].load(Ordering::Acquire)
    }

    /// The word of page `no`, unless its group has never been needed: then the page is absent.
    #[inline]
    pub(crate) fn get(&self, no: u32) -> Option<&PageWord> {
        let group = self.group(no);
        if group.is_null() {
            return None;
        }
        // SAFETY: a published group is a mapping of GROUP_PAGES words, zero (valid) from birth,
        // and lives as long as the directory. The place is below GROUP_PAGES.
        Some(unsafe { &*group.add(place_of(no)) })
    }

    /// Calls `visit` with every word of every group there is, up to page `highest`.
    pub(crate) fn for_each_up_to(&self, highest: u32, mut visit: impl FnMut(u32, &PageWord)) {
        let groups = highest as usize / GROUP_PAGES + 1;
        for group in 0..groups {
            let first = (group * GROUP_PAGES) as u32;
            let last = first.saturating_add(GROUP_PAGES as u32 - 1).min(highest);
            for no in first..=last {
                let Some(word) = self.get(no) else { break };
                visit(no, word);
            }
        }
    }

    /// The word of page `no`. An error only if the kernel refuses half a mebibyte of addresses.
    #[cold]
    pub(crate) fn get_or_make(&self, no: u32) -> io::Result<&PageWord> {
        if self.get(no).is_none() {
            let group = no as usize / GROUP_PAGES;
            if group >= GROUPS_AT_FIRST {
                self.groups.commit_up_to(self.groups.len())?;
            }
            let mapping = Mapping::reserve(GROUP_BYTES, self.accounting)?;
            mapping.exclude_from_core_dumps();
            mapping.commit(0, PART_BYTES)?;
            // SAFETY: the words begin one part into the mapping.
            let words = unsafe { mapping.base().as_ptr().add(PART_BYTES) };
            let published = self.groups[group].compare_exchange(
                std::ptr::null_mut(),
                words.cast(),
                Ordering::Release,
                Ordering::Relaxed,
            );
            if published.is_ok() {
                // The directory owns it now; `drop` takes it back.
                let _ = mapping.into_raw();
            }
        }
        Ok(self.get(no).expect("the group was just made, by this thread or another"))
    }

    /// To be called before a page is installed in the word of page `no`, whose group there is.
    ///
    /// # Errors
    /// If the kernel may promise no more memory.
    #[inline]
    pub(crate) fn let_be_installed(&self, no: u32) -> io::Result<()> {
        match self.accounting {
            Accounting::Touched => Ok(()),
            Accounting::Writable => self.commit_word(no),
        }
    }

    #[cold]
    fn commit_word(&self, no: u32) -> io::Result<()> {
        let words = NonNull::new(self.group(no)).expect("words are asked for before pages come");
        // SAFETY: one part before the words is where the group's mapping begins.
        let base = unsafe { words.cast::<u8>().sub(PART_BYTES) };
        // SAFETY: it was committed from birth, is zero (valid) then, and nothing else lies there.
        let committed = unsafe { base.cast::<AtomicU32>().as_ref() };
        let index = no as usize % GROUP_PAGES;
        if index < committed.load(Ordering::Acquire) as usize {
            return Ok(());
        }
        // Twice as far each time, so that it is not done often; whole parts.
        let end = (index + 1).next_power_of_two().max(PART_WORDS);
        // SAFETY: `into_raw` gave it, and it is given back at once.
        let mapping = unsafe { Mapping::from_raw(base, GROUP_BYTES, self.accounting) };
        let whole = GROUP_BYTES - PART_BYTES;
        let result = mapping
            .commit(PART_BYTES, end * size_of::<PageWord>())
            .map(|()| end)
            // It takes no further mapping of the kernel's, of which it may have too many, if there
            // is no rest.
            .or_else(|_| mapping.commit(PART_BYTES, whole).map(|()| GROUP_PAGES));
        let _ = mapping.into_raw();
        committed.fetch_max(result? as u32, Ordering::Release);
        Ok(())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Of the pointers that can't be written, none was.
        let groups = self.groups.iter().map(|group| group.load(Ordering::Acquire));
        for words in groups.filter_map(NonNull::new) {
            // SAFETY: the words begin one part into a mapping of this size, which `into_raw` gave,
            // and `&mut self` says that no thread uses it any more.
            drop(unsafe {
                Mapping::from_raw(words.cast().sub(PART_BYTES), GROUP_BYTES, self.accounting)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::charged_bytes;

    const BOTH: [Accounting; 2] = [Accounting::Touched, Accounting::Writable];

    #[test]
    fn each_page_has_a_word_far_from_those_of_its_neighbours() {
        let first = 3 * PART_WORDS as u32;
        let places: Vec<usize> = (first..first + PART_WORDS as u32).map(place_of).collect();
        for two in places.windows(2) {
            assert!(two[0].abs_diff(two[1]) >= STRIDE, "{two:?}");
        }
        let mut sorted = places;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(3 * PART_WORDS..4 * PART_WORDS));
        let lines_of_first_eight: std::collections::HashSet<usize> =
            (0..8).map(|no| place_of(no) * size_of::<PageWord>() / 128).collect();
        assert_eq!(lines_of_first_eight.len(), 8);
    }

    #[test]
    fn words_start_absent_and_keep_their_address() {
        for directory in BOTH.map(|accounting| Directory::new(accounting).unwrap()) {
            for no in [0, 1, 65_535, 65_536, 70_000, 1 << 31, u32::MAX] {
                assert!(no % 65_536 != 0 || directory.get(no).is_none());
                let word = std::ptr::from_ref(directory.get_or_make(no).unwrap());
                assert_eq!(word, std::ptr::from_ref(directory.get(no).unwrap()));
                assert_eq!(directory.get(no).unwrap().load().frame(), None);
                assert_eq!(directory.get(no).unwrap().lock_shared(), None);
                assert_eq!(directory.get(no).unwrap().lock_exclusive(), None);
                directory.let_be_installed(no).unwrap();
                assert!(directory.get(no).unwrap().install(7, 0));
            }
        }
    }

    #[test]
    fn where_all_counts_that_may_be_written_a_small_table_may_write_little() {
        let directory = Directory::new(Accounting::Writable).unwrap();
        let pages = |to: u32| {
            for no in (0..to).step_by(100) {
                directory.get_or_make(no).unwrap();
                directory.let_be_installed(no).unwrap();
                directory.get(no).unwrap().install(0, 0);
            }
            let words = directory.get(0).map_or(0, |word| std::ptr::from_ref(word) as usize);
            let groups = self::charged_bytes(directory.groups.as_ptr().cast(), 1 << 19);
            let words = charged_bytes((words - PART_BYTES) as *const u8, GROUP_BYTES);
            groups.zip(words)
        };
        let Some(small) = pages(500) else {
            tidepool_skip::skip("the kernel does not say what it counts");
            return;
        };
        assert_eq!(small, (4096, 2 * 4096));
        assert_eq!(pages(5000), Some((4096, 4096 + 8 * 8192)));
        assert_eq!(pages(65_536), Some((4096, GROUP_BYTES as u64)));
    }

    #[test]
    fn two_threads_make_one_group() {
        for directory in BOTH.map(|accounting| Directory::new(accounting).unwrap()) {
            let addresses: Vec<usize> = std::thread::scope(|scope| {
                let make = || {
                    let address = std::ptr::from_ref(directory.get_or_make(5).unwrap()) as usize;
                    directory.let_be_installed(5).unwrap();
                    address
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(addresses.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}
