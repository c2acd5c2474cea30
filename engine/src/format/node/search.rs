//! Looking for a key in a node that may be changing.
//!
//! Inner nodes are read without a latch while a writer may be at work, so everything here is
//! generic over [`PageView`] and assumes nothing of the bytes: each offset is bounds-checked by the
//! view, each loop is bounded by the number of cells, a u16. A node read in the middle of a change
//! gives a wrong answer or [`Retry`]; the caller's check of the page's version finds out. Latched
//! pages are searched by the same functions, where [`Retry`] means that the page is corrupt.

use super::{
    CELL_HEADER, COUNT, FIRST_CHILD, FLAGS, LOWER_LEN, PREFIX_LEN, Slot, UPPER_LEN,
    UPPER_UNBOUNDED, head_of, slot_offset,
};
use std::cmp::Ordering;
use tidepool_pool::{PageView, Retry};

/// Reads slot `index`.
#[inline]
pub(crate) fn slot<V: PageView + ?Sized>(page: &V, index: usize) -> Result<Slot, Retry> {
    Ok(Slot::unpack(page.u64_at(slot_offset(index))?))
}

/// Number of cells.
#[inline]
pub(crate) fn count<V: PageView + ?Sized>(page: &V) -> Result<usize, Retry> {
    page.u16_at(COUNT).map(usize::from)
}

/// Compares the key of slot `index`, whose head equals `suffix`'s, with `suffix`.
#[inline]
fn compare_behind_head<V: PageView + ?Sized>(
    page: &V,
    slot: Slot,
    suffix: &[u8],
) -> Result<Ordering, Retry> {
    // Equal heads: where one of the two ends within the head, it is a prefix of the other.
    if slot.suffix_len <= 4 || suffix.len() <= 4 {
        return Ok(slot.suffix_len.cmp(&suffix.len()));
    }
    let rest = slot.offset + CELL_HEADER + 4;
    // Eight-byte integers are the most common of keys: their other half is compared as a number
    // too.
    if slot.suffix_len >= 8
        && let Some(next) = suffix[4..].first_chunk::<4>()
    {
        let order = page.u32_at(rest)?.swap_bytes().cmp(&u32::from_be_bytes(*next));
        if order != Ordering::Equal || (slot.suffix_len == 8 && suffix.len() == 8) {
            return Ok(order);
        }
    }
    page.compare(rest, slot.suffix_len - 4, &suffix[4..])
}

/// Position of the first cell whose suffix is at or above `suffix`, and whether it is equal.
#[inline]
pub(crate) fn lower_bound<V: PageView + ?Sized>(
    page: &V,
    suffix: &[u8],
) -> Result<(usize, bool), Retry> {
    let count = count(page)?;
    let head = head_of(suffix);
    // By heads alone. The outcome of a probe can't be predicted, so it is no branch: the compiler
    // makes a conditional move of it.
    let mut base = 0;
    let mut size = count;
    while size > 1 {
        let half = size / 2;
        let probe = page.u32_at(slot_offset(base + half - 1) + 4)?;
        base += if probe < head { half } else { 0 };
        size -= half;
    }
    if size == 1 && page.u32_at(slot_offset(base) + 4)? < head {
        base += 1;
    }
    if base == count {
        return Ok((base, false));
    }
    let first = slot(page, base)?;
    if first.head != head {
        return Ok((base, false));
    }
    match compare_behind_head(page, first, suffix)? {
        Ordering::Equal => return Ok((base, true)),
        Ordering::Greater => return Ok((base, false)),
        Ordering::Less => base += 1,
    }
    // Rare: several keys share the head.
    let mut end = count;
    while base < end {
        let middle = base + (end - base) / 2;
        let probe = slot(page, middle)?;
        let order = match probe.head.cmp(&head) {
            Ordering::Equal => compare_behind_head(page, probe, suffix)?,
            order => order,
        };
        match order {
            Ordering::Less => base = middle + 1,
            Ordering::Equal => return Ok((middle, true)),
            Ordering::Greater => end = middle,
        }
    }
    Ok((base, false))
}

/// Position of the first cell whose key is at or above `key`, and whether it is equal; `key` may
/// lie outside the fences.
#[inline]
pub(crate) fn find<V: PageView + ?Sized>(page: &V, key: &[u8]) -> Result<(usize, bool), Retry> {
    let prefix_len = usize::from(page.u16_at(PREFIX_LEN)?);
    if prefix_len == 0 {
        return lower_bound(page, key);
    }
    let lower_start = lower_start(page)?;
    let common = prefix_len.min(key.len());
    match page.compare(lower_start, common, &key[..common])? {
        Ordering::Greater => Ok((0, false)),
        Ordering::Less => Ok((count(page)?, false)),
        // A proper prefix of the prefix is below every key that has it.
        Ordering::Equal if common < prefix_len => Ok((0, false)),
        Ordering::Equal => lower_bound(page, &key[prefix_len..]),
    }
}

/// Offset of the lower fence.
#[inline]
pub(crate) fn lower_start<V: PageView + ?Sized>(page: &V) -> Result<usize, Retry> {
    let fences = usize::from(page.u16_at(LOWER_LEN)?) + usize::from(page.u16_at(UPPER_LEN)?);
    page.size().checked_sub(fences).ok_or(Retry)
}

pub(crate) fn copy_upper_fence<V: PageView + ?Sized>(page: &V) -> Result<Option<Vec<u8>>, Retry> {
    if page.u16_at(FLAGS)? & UPPER_UNBOUNDED != 0 {
        return Ok(None);
    }
    let len = usize::from(page.u16_at(UPPER_LEN)?);
    let mut fence = Vec::with_capacity(len);
    page.copy_to(page.size().checked_sub(len).ok_or(Retry)?, len, &mut fence)?;
    Ok(Some(fence))
}

/// Which child of an inner node a descent wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek<'k> {
    /// The node whose range holds this key.
    Key(&'k [u8]),
    /// The node whose range holds the keys just below this one.
    Before(&'k [u8]),
    /// The leftmost node.
    First,
    /// The rightmost node.
    Last,
}

/// Index of the child that `seek` leads to, from 0 to the number of cells.
#[inline]
pub(crate) fn child_index<V: PageView + ?Sized>(page: &V, seek: Seek<'_>) -> Result<usize, Retry> {
    // A key that a validated parent sent here starts with the prefix, so it is not compared again.
    // Only a node that is changing can have a longer one.
    let prefix_len = |key: &[u8]| -> Result<usize, Retry> {
        let prefix_len = usize::from(page.u16_at(PREFIX_LEN)?);
        if prefix_len <= key.len() { Ok(prefix_len) } else { Err(Retry) }
    };
    match seek {
        Seek::Key(key) => {
            let (slot, exact) = lower_bound(page, &key[prefix_len(key)?..])?;
            Ok(slot + usize::from(exact))
        }
        Seek::Before(key) => Ok(lower_bound(page, &key[prefix_len(key)?..])?.0),
        Seek::First => Ok(0),
        Seek::Last => count(page),
    }
}

/// Page number of child `index`.
#[inline]
pub(crate) fn child<V: PageView + ?Sized>(page: &V, index: usize) -> Result<u32, Retry> {
    match index.checked_sub(1) {
        None => page.u32_at(FIRST_CHILD),
        Some(cell) => {
            let slot = slot(page, cell)?;
            page.u32_at(slot.offset + CELL_HEADER + slot.suffix_len)
        }
    }
}
