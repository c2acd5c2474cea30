//! Reading a page that may be changing: the one module that touches bytes without a latch.
//!
//! [`PageView`] is what a search needs of a page. `[u8]` implements it for a page that is latched,
//! and [`RacyBytes`] for one that is not. The racy reads are aligned, relaxed 8-byte atomic loads:
//! they may see any mixture of old and new bytes, never tear the program. A caller that uses their
//! results must ask the latch (`OptimisticGuard::validate`) before believing them, and must bound
//! its own loops: an offset read from such a page may be anything, hence every read is checked and
//! answers [`Retry`] when it points outside the page.
//!
//! What remains outside the language's memory model is the writer's side: it holds the exclusive
//! latch and writes plain bytes. The compiler may not invent stores it was not asked for, and the
//! fences in `latch.rs` order those it was asked for, so the worst a reader sees is a mixture,
//! which validation throws away.

#![expect(unsafe_code, reason = "atomic loads from page bytes that others may be writing")]

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The page changed under an optimistic reader: begin anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page changed while it was read")]
pub struct Retry;

/// Reads of a page, the same for latched pages and optimistic readers.
pub trait PageView {
    /// Bytes in the page.
    fn size(&self) -> usize;

    /// The byte at `offset`.
    fn u8_at(&self, offset: usize) -> Result<u8, Retry>;

    /// The little-endian integer at `offset`.
    fn u16_at(&self, offset: usize) -> Result<u16, Retry>;

    /// The little-endian integer at `offset`.
    fn u32_at(&self, offset: usize) -> Result<u32, Retry>;

    /// The little-endian integer at `offset`.
    fn u64_at(&self, offset: usize) -> Result<u64, Retry>;

    /// How `len` bytes at `offset` compare with `other`, as strings of bytes.
    fn compare(&self, offset: usize, len: usize, other: &[u8]) -> Result<Ordering, Retry>;

    /// Appends `len` bytes at `offset` to `out`.
    fn copy_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> Result<(), Retry>;
}

/// A latched page: nothing changes, so `Retry` means that the page's own offsets are wrong.
impl PageView for [u8] {
    #[inline]
    fn size(&self) -> usize {
        self.len()
    }

    #[inline]
    fn u8_at(&self, offset: usize) -> Result<u8, Retry> {
        self.get(offset).copied().ok_or(Retry)
    }

    #[inline]
    fn u16_at(&self, offset: usize) -> Result<u16, Retry> {
        let bytes = self.get(offset..).and_then(|rest| rest.first_chunk()).ok_or(Retry)?;
        Ok(u16::from_le_bytes(*bytes))
    }

    #[inline]
    fn u32_at(&self, offset: usize) -> Result<u32, Retry> {
        let bytes = self.get(offset..).and_then(|rest| rest.first_chunk()).ok_or(Retry)?;
        Ok(u32::from_le_bytes(*bytes))
    }

    #[inline]
    fn u64_at(&self, offset: usize) -> Result<u64, Retry> {
        let bytes = self.get(offset..).and_then(|rest| rest.first_chunk()).ok_or(Retry)?;
        Ok(u64::from_le_bytes(*bytes))
    }

    #[inline]
    fn compare(&self, offset: usize, len: usize, other: &[u8]) -> Result<Ordering, Retry> {
        let end = offset.checked_add(len).ok_or(Retry)?;
        Ok(self.get(offset..end).ok_or(Retry)?.cmp(other))
    }

    fn copy_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> Result<(), Retry> {
        let end = offset.checked_add(len).ok_or(Retry)?;
        out.extend_from_slice(self.get(offset..end).ok_or(Retry)?);
        Ok(())
    }
}

/// The bytes of a frame, read without a latch.
#[derive(Clone, Copy)]
pub(crate) struct RacyBytes<'a> {
    /// The frame as aligned words; frames are aligned to their size, a multiple of eight.
    words: &'a [AtomicU64],
}

impl<'a> RacyBytes<'a> {
    /// Views `size` bytes at `base`.
    ///
    /// # Safety
    /// The range is mapped and stays mapped for `'a`; `base` is a multiple of 8, so is `size`.
    /// Others may write it meanwhile (see the head of this module).
    #[inline]
    pub(crate) unsafe fn new(base: *const u8, size: usize) -> RacyBytes<'a> {
        // SAFETY: the caller's promise; any bytes are a value of an atomic integer.
        RacyBytes { words: unsafe { std::slice::from_raw_parts(base.cast(), size / 8) } }
    }

    /// The `len` (at most 8) bytes at `offset`, as a little-endian integer.
    #[inline]
    fn bits(&self, offset: usize, len: usize) -> Result<u64, Retry> {
        debug_assert!((1..=8).contains(&len));
        let (first, shift) = (offset / 8, offset % 8);
        let low = u64::from_le(self.words.get(first).ok_or(Retry)?.load(Relaxed)) >> (shift * 8);
        if shift + len <= 8 {
            return Ok(low);
        }
        let high = u64::from_le(self.words.get(first + 1).ok_or(Retry)?.load(Relaxed));
        Ok(low | high << (64 - shift * 8))
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Retry> {
        let end = offset.checked_add(len).ok_or(Retry)?;
        if end > self.words.len() * 8 { Err(Retry) } else { Ok(()) }
    }
}

impl PageView for RacyBytes<'_> {
    #[inline]
    fn size(&self) -> usize {
        self.words.len() * 8
    }

    #[inline]
    fn u8_at(&self, offset: usize) -> Result<u8, Retry> {
        Ok(self.bits(offset, 1)? as u8)
    }

    #[inline]
    fn u16_at(&self, offset: usize) -> Result<u16, Retry> {
        Ok(self.bits(offset, 2)? as u16)
    }

    #[inline]
    fn u32_at(&self, offset: usize) -> Result<u32, Retry> {
        Ok(self.bits(offset, 4)? as u32)
    }

    #[inline]
    fn u64_at(&self, offset: usize) -> Result<u64, Retry> {
        self.bits(offset, 8)
    }

    fn compare(&self, offset: usize, len: usize, other: &[u8]) -> Result<Ordering, Retry> {
        self.check(offset, len)?;
        let common = len.min(other.len());
        let mut at = 0;
        while at + 8 <= common {
            let mine = self.bits(offset + at, 8)?.to_le_bytes();
            match mine[..].cmp(&other[at..at + 8]) {
                Ordering::Equal => at += 8,
                unequal => return Ok(unequal),
            }
        }
        if at < common {
            let rest = common - at;
            let mine = self.bits(offset + at, rest)?.to_le_bytes();
            match mine[..rest].cmp(&other[at..common]) {
                Ordering::Equal => {}
                unequal => return Ok(unequal),
            }
        }
        Ok(len.cmp(&other.len()))
    }

    fn copy_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> Result<(), Retry> {
        self.check(offset, len)?;
        out.reserve(len);
        let mut at = 0;
        while at < len {
            let part = (len - at).min(8);
            out.extend_from_slice(&self.bits(offset + at, part)?.to_le_bytes()[..part]);
            at += part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Both views of the same bytes give the same answers, in bounds and out.
        #[test]
        fn racy_and_plain_views_agree(
            words in proptest::collection::vec(any::<u64>(), 1..12),
            offset in 0usize..100,
            len in 0usize..40,
            other in proptest::collection::vec(any::<u8>(), 0..40),
            same in any::<bool>(),
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            // SAFETY: the vector outlives the view, is aligned to 8, and no thread writes it.
            let racy = unsafe { RacyBytes::new(words.as_ptr().cast(), words.len() * 8) };
            let plain = &bytes[..];
            prop_assert_eq!(racy.size(), plain.size());
            prop_assert_eq!(racy.u8_at(offset), plain.u8_at(offset));
            prop_assert_eq!(racy.u16_at(offset), plain.u16_at(offset));
            prop_assert_eq!(racy.u32_at(offset), plain.u32_at(offset));
            prop_assert_eq!(racy.u64_at(offset), plain.u64_at(offset));
            let mut other = other;
            if same && let Some(part) = bytes.get(offset..) {
                let shared = part.len().min(other.len());
                other[..shared].copy_from_slice(&part[..shared]);
            }
            prop_assert_eq!(racy.compare(offset, len, &other), plain.compare(offset, len, &other));
            let (mut one, mut two) = (vec![9], vec![9]);
            prop_assert_eq!(
                racy.copy_to(offset, len, &mut one),
                plain.copy_to(offset, len, &mut two)
            );
            prop_assert_eq!(one, two);
            prop_assert_eq!(racy.copy_to(usize::MAX, 2, &mut vec![]), Err(Retry));
        }
    }
}
