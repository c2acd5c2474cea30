//! The translation directory of one tablespace: page number → page word, in two loads.
//!
//! The first level is an array of 65,536 pointers, the second are groups of 65,536 words, made when
//! a page of the group is first asked for. Both are mappings of which the kernel backs only the
//! 4 KiB parts that were touched, so a small table costs two such parts, and the untouched middle
//! of a huge one costs nothing. A group, once made, stays until the directory goes: page words have
//! stable addresses, on which threads park.

#![expect(unsafe_code, reason = "groups are published through atomic pointers")]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::latch::PageWord;
use crate::mapping::{Mapping, ZeroedArray};

/// Pages whose words are made together.
const GROUP_PAGES: usize = 1 << 16;
const GROUP_BYTES: usize = GROUP_PAGES * size_of::<PageWord>();

/// Translation words of the 2^32 pages that a tablespace may have.
pub(crate) struct Directory {
    groups: ZeroedArray<AtomicPtr<PageWord>>,
}

impl Directory {
    pub(crate) fn new() -> io::Result<Directory> {
        Ok(Directory { groups: ZeroedArray::new((1 << 32) / GROUP_PAGES)? })
    }

    /// The word of page `no`, unless its group has never been needed: then the page is absent.
    #[inline]
    pub(crate) fn get(&self, no: u32) -> Option<&PageWord> {
        // Acquire pairs with the publication in `get_or_make`.
        let group = self.groups[no as usize / GROUP_PAGES].load(Ordering::Acquire);
        if group.is_null() {
            return None;
        }
        // SAFETY: a published group is a mapping of GROUP_PAGES words, zero (valid) from birth,
        // and lives as long as the directory. The index is below GROUP_PAGES.
        Some(unsafe { &*group.add(no as usize % GROUP_PAGES) })
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
            let mapping = Mapping::reserve(GROUP_BYTES)?;
            mapping.exclude_from_core_dumps();
            let slot = &self.groups[no as usize / GROUP_PAGES];
            let base = mapping.base().as_ptr().cast();
            let published = slot.compare_exchange(
                std::ptr::null_mut(),
                base,
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
}

impl Drop for Directory {
    fn drop(&mut self) {
        for group in &mut *self.groups {
            if let Some(base) = NonNull::new(group.get_mut().cast()) {
                // SAFETY: the pointer came from `into_raw` of a mapping of this size, and
                // `&mut self` says that nobody uses it any more.
                drop(unsafe { Mapping::from_raw(base, GROUP_BYTES) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_start_absent_and_keep_their_address() {
        let directory = Directory::new().unwrap();
        for no in [0, 1, 65_535, 65_536, 1 << 31, u32::MAX] {
            assert!(no % 65_536 != 0 || directory.get(no).is_none());
            let word = std::ptr::from_ref(directory.get_or_make(no).unwrap());
            assert_eq!(word, std::ptr::from_ref(directory.get(no).unwrap()));
            assert_eq!(directory.get(no).unwrap().load().frame(), None);
        }
    }

    #[test]
    fn two_threads_make_one_group() {
        let directory = Directory::new().unwrap();
        let addresses: Vec<usize> = std::thread::scope(|scope| {
            let make = || std::ptr::from_ref(directory.get_or_make(5).unwrap()) as usize;
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(addresses.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
