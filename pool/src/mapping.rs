//! Memory straight from the kernel: reserved at once, zero until touched, costing nothing till then.

#![expect(unsafe_code, reason = "mmap, and turning its bytes into slices")]

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::extents::Extent;
use crate::latch::PageWord;

/// A private, anonymous, zero-filled mapping that counts against no commit limit until touched.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory, owned by this value; whoever hands out references into it
// answers for their exclusion.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` bytes of address space.
    pub(crate) fn reserve(len: usize) -> io::Result<Mapping> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len.max(1),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(Mapping { base, len: len.max(1) })
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
    pub(crate) unsafe fn from_raw(base: NonNull<u8>, len: usize) -> Mapping {
        Mapping { base, len }
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> io::Result<()> {
        assert!(offset + len <= self.len);
        // SAFETY: the range lies in this mapping (just checked). `DONTNEED`, the only advice given
        // that changes contents, is given by callers who own the range: see `discard`.
        unsafe { Ok(madvise(self.base.as_ptr().add(offset).cast(), len, advice)?) }
    }

    /// Leaves the mapping out of core dumps. Best effort: it is about the dump's size only.
    pub(crate) fn exclude_from_core_dumps(&self) {
        let _ = self.advise(0, self.len, Advice::LinuxDontDump);
    }

    /// Asks for huge pages in a range. Best effort: kernels without them refuse.
    pub(crate) fn prefer_huge_pages(&self, offset: usize, len: usize) {
        let _ = self.advise(offset, len, Advice::LinuxHugepage);
    }

    /// Gives the memory of a range back to the kernel; it reads as zeroes afterwards.
    ///
    /// # Safety
    /// Nobody holds a reference into the range, but to atomics that others may change.
    pub(crate) unsafe fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        self.advise(offset, len, Advice::LinuxDontNeed)
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
// SAFETY: integers, and an enum of which zero is a variant.
unsafe impl Zeroable for Extent {}

/// An array of fixed length whose untouched parts cost nothing.
pub(crate) struct ZeroedArray<T: Zeroable> {
    mapping: Mapping,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Zeroable> ZeroedArray<T> {
    /// `len` elements of all-zero bytes.
    pub(crate) fn new(len: usize) -> io::Result<ZeroedArray<T>> {
        // Mappings are aligned to the machine's page size.
        const { assert!(align_of::<T>() <= 4096) };
        let mapping = Mapping::reserve(len * size_of::<T>())?;
        mapping.exclude_from_core_dumps();
        Ok(ZeroedArray { mapping, len, elements: PhantomData })
    }
}

impl<T: Zeroable> std::ops::Deref for ZeroedArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping has room for `len` elements, is aligned, and zeroes are values of `T`.
        unsafe { std::slice::from_raw_parts(self.mapping.base.as_ptr().cast(), self.len) }
    }
}

impl<T: Zeroable> std::ops::DerefMut for ZeroedArray<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` excludes all other references.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base.as_ptr().cast(), self.len) }
    }
}
