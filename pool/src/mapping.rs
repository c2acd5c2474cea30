//! Memory straight from the kernel: reserved at once, zero until touched, costing nothing till
//! then.
//!
//! # Accounting
//! As a rule only memory that is touched costs anything. With `vm.overcommit_memory` = 2 the kernel
//! counts all memory that *may be written*, touched or not, against a limit of the machine beyond
//! which every `mmap` and `malloc` fails, and `MAP_NORESERVE` means nothing. Memory that may only
//! be read is not counted. So there a [`Mapping::reserve`] is mapped to be read, which is all that
//! optimistic readers need, and a part of it can be written from [`Mapping::commit`] until
//! [`Mapping::release`].
//!
//! A process that locks its memory (`mlockall`) gets all of it that may be written, and none of it
//! is given back by `madvise`. There the same is done: what may only be read costs no more than its
//! page table, and what replaces a range is not locked.

#![expect(unsafe_code, reason = "mmap, and turning its bytes into slices")]

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};

use crate::latch::PageWord;

/// What the kernel counts of the memory that it has promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accounting {
    Touched,
    /// What may be written.
    Writable,
}

impl Accounting {
    /// The present way of this machine.
    pub(crate) fn of_machine() -> Accounting {
        match std::fs::read_to_string("/proc/sys/vm/overcommit_memory") {
            Ok(mode) if mode.trim() == "2" => Accounting::Writable,
            _ => Accounting::Touched,
        }
    }
}

/// A private, anonymous, zero-filled mapping.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Of a mapping that can be written only in parts: `Writable`.
    accounting: Accounting,
}

// SAFETY: the mapping is plain memory, owned by this value; the code that hands out references into
// it answers for their exclusion.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes, of which those may be written that were [committed](Mapping::commit).
    pub(crate) fn reserve(len: usize, accounting: Accounting) -> io::Result<Mapping> {
        let (protection, flags) = modes(accounting);
        let len = len.max(1);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(Mapping { base, len, accounting })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Forgets the mapping without unmapping it; [`Mapping::from_raw`] is the way back.
    pub(crate) fn into_raw(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).base
    }

    /// Takes back what [`Mapping::into_raw`] gave.
    ///
    /// # Safety
    /// `base` came from `into_raw` of a mapping of `len` bytes, and is taken back once.
    pub(crate) unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        accounting: Accounting,
    ) -> Mapping {
        Mapping { base, len, accounting }
    }

    /// Lets a range be written. Nothing happens if it can be already.
    ///
    /// # Errors
    /// If that would be more than the kernel may promise.
    pub(crate) fn commit(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.len);
        if self.accounting == Accounting::Touched {
            return Ok(());
        }
        // SAFETY: the range lies in this mapping (just checked), and is allowed more than before.
        unsafe {
            let at = self.base.as_ptr().add(offset).cast();
            Ok(mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE)?)
        }
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> io::Result<()> {
        assert!(offset + len <= self.len);
        // SAFETY: the range lies in this mapping (just checked). `DONTNEED`, the only advice given
        // that changes contents, is given by callers who own the range: see `release` and
        // `discard`.
        unsafe { Ok(madvise(self.base.as_ptr().add(offset).cast(), len, advice)?) }
    }

    /// Leaves the mapping out of core dumps. Best effort: it is about the dump's size only.
    pub(crate) fn exclude_from_core_dumps(&self) {
        self.exclude_from_core_dumps_at(0, self.len);
    }

    /// The same, of a range.
    pub(crate) fn exclude_from_core_dumps_at(&self, offset: usize, len: usize) {
        let _ = self.advise(offset, len, Advice::LinuxDontDump);
    }

    /// Asks for huge pages in a range. Best effort: kernels without them refuse.
    pub(crate) fn prefer_huge_pages(&self, offset: usize, len: usize) {
        let _ = self.advise(offset, len, Advice::LinuxHugepage);
    }

    /// Gives the memory of a range back to the kernel; it reads as zeroes afterwards, and must be
    /// committed before it is written.
    ///
    /// # Safety
    /// There is no reference into the range, except to atomics that others may read.
    pub(crate) unsafe fn release(&self, offset: usize, len: usize) -> io::Result<()> {
        if self.accounting == Accounting::Writable {
            assert!(offset + len <= self.len);
            let (protection, flags) = modes(self.accounting);
            // `mprotect` would not do: the kernel goes on counting what was touched once. This
            // replaces the range in one go, so who reads it meanwhile meets no hole. SAFETY: the
            // range lies in this mapping (just checked), and its loss is harmless by the caller's
            // promise.
            let replaced = unsafe {
                let at = self.base.as_ptr().add(offset).cast();
                mmap_anonymous(at, len, protection, flags | MapFlags::FIXED)
            };
            if replaced.is_ok() {
                return Ok(());
            }
            // With too many mappings (`vm.max_map_count`), say. The memory can go all the same,
            // though it still counts.
        }
        self.advise(offset, len, Advice::LinuxDontNeed)
    }

    /// Lets the kernel forget what a range holds, in memory and in swap; it reads as zeroes
    /// afterwards, and can be written as before.
    ///
    /// # Errors
    /// If the range does not begin and end between two of the kernel's pages, or is locked.
    ///
    /// # Safety
    /// As of [`Mapping::release`].
    pub(crate) unsafe fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        if !(offset | len).is_multiple_of(rustix::param::page_size()) {
            // The kernel would round the length up, and take what lies behind as well.
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.advise(offset, len, Advice::LinuxDontNeed)
    }

    /// Which parts of a range are in memory: neither in swap nor never touched. `out` has a byte
    /// for each of the kernel's pages, the lowest bit of which is set if it is.
    pub(crate) fn residency(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        assert!(offset + len <= self.len);
        out.clear();
        out.resize(len.div_ceil(rustix::param::page_size()), 0);
        // SAFETY: the range lies in this mapping (just checked), and `out` has the byte that the
        // kernel writes for each page of it.
        let result =
            unsafe { libc::mincore(self.base.as_ptr().add(offset).cast(), len, out.as_mut_ptr()) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// How to map what can only be written in parts, if the kernel counts so.
fn modes(accounting: Accounting) -> (ProtFlags, MapFlags) {
    match accounting {
        Accounting::Touched => {
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE)
        }
        Accounting::Writable => (ProtFlags::READ, MapFlags::PRIVATE),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and whatever borrowed from it is gone.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok());
    }
}

/// Types for which all-zero bytes are a value.
///
/// # Safety
/// Zeroed memory must be a valid value, and dropping it must need nothing.
pub(crate) unsafe trait Zeroable {}

// SAFETY: an integer in an atomic cell.
unsafe impl Zeroable for AtomicU32 {}
// SAFETY: an integer in an atomic cell.
unsafe impl Zeroable for AtomicU64 {}
// SAFETY: a null pointer in an atomic cell.
unsafe impl<T> Zeroable for AtomicPtr<T> {}
// SAFETY: a transparent wrapper of an atomic integer.
unsafe impl Zeroable for PageWord {}
// SAFETY: an integer.
unsafe impl Zeroable for u32 {}

/// An array of fixed length whose untouched parts cost nothing.
pub(crate) struct ZeroedArray<T: Zeroable> {
    mapping: Mapping,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Zeroable> ZeroedArray<T> {
    /// `len` elements of all-zero bytes.
    pub(crate) fn new(len: usize) -> io::Result<ZeroedArray<T>> {
        ZeroedArray::new_in_parts(len, Accounting::Touched)
    }

    /// The same, where [`ZeroedArray::commit_up_to`] must come before an element is written.
    pub(crate) fn new_in_parts(len: usize, accounting: Accounting) -> io::Result<ZeroedArray<T>> {
        // Mappings are aligned to the machine's page size.
        const { assert!(align_of::<T>() <= 4096) };
        let mapping = Mapping::reserve(len * size_of::<T>(), accounting)?;
        mapping.exclude_from_core_dumps();
        Ok(ZeroedArray { mapping, len, elements: PhantomData })
    }

    /// Lets the elements before `end` be written.
    pub(crate) fn commit_up_to(&self, end: usize) -> io::Result<()> {
        assert!(end <= self.len);
        self.mapping.commit(0, end * size_of::<T>())
    }
}

impl<T: Zeroable> std::ops::Deref for ZeroedArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping has room for `len` elements, is aligned, and zeroes are values of
        // `T`.
        unsafe { std::slice::from_raw_parts(self.mapping.base.as_ptr().cast(), self.len) }
    }
}

impl<T: Zeroable> std::ops::DerefMut for ZeroedArray<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` excludes all other references.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base.as_ptr().cast(), self.len) }
    }
}

/// Bytes of a range that the kernel counts as promised; `None` where it does not say.
#[cfg(test)]
pub(crate) fn charged_bytes(from: *const u8, len: usize) -> Option<u64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let (from, to) = (from as usize, from as usize + len);
    let mut here = 0;
    let mut charged = 0;
    for line in smaps.lines() {
        let addresses = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some(range) = addresses {
            let [begin, end] = [range.0, range.1].map(|hex| usize::from_str_radix(hex, 16));
            if let (Ok(begin), Ok(end)) = (begin, end) {
                here = end.min(to).saturating_sub(begin.max(from));
            }
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split(' ').any(|flag| flag == "ac")
        {
            charged += here as u64;
        }
    }
    Some(charged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_in_memory_until_it_is_discarded() {
        let page = rustix::param::page_size();
        let mapping = Mapping::reserve(8 * page, Accounting::Touched).unwrap();
        let residency = || {
            let mut parts = Vec::new();
            mapping.residency(0, 8 * page, &mut parts).unwrap();
            parts.iter().map(|part| part & 1 == 1).collect::<Vec<_>>()
        };
        assert_eq!(residency(), [false; 8]);
        for part in [1, 2, 5] {
            // SAFETY: within the mapping, which no other code knows.
            unsafe { mapping.base().as_ptr().add(part * page).write_volatile(7) };
        }
        assert_eq!(residency(), [false, true, true, false, false, true, false, false]);
        // SAFETY: there is no reference into the mapping.
        unsafe {
            mapping.discard(2 * page, page).unwrap();
            assert!(mapping.discard(page, 100).is_err());
            assert!(mapping.discard(page + 100, page).is_err());
            assert_eq!(mapping.base().as_ptr().add(page).read(), 7);
            assert_eq!(mapping.base().as_ptr().add(2 * page).read(), 0);
        }
        assert!(residency()[1] && residency()[5]);
    }
}
