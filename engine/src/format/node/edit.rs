//! Changing a tree node's bytes: the node operations of [`PageOp`](crate::page_op::PageOp).
//!
//! Every function is deterministic, checks what it is given against the page it finds, and returns
//! an error, never a panic, on a page that is no node. A cell that fits the node's free bytes but
//! not the gap between slots and heap makes `insert` compact the heap first: recovery does the same
//! on the same bytes, so a compaction is never logged.

use super::{self as node, Node, Slot, cell_size, common_prefix_len, head_of};
use crate::format::OpError;
use tidepool_pool::PAGE_HEADER_SIZE;

fn open(page: &[u8]) -> Result<Node<'_>, OpError> {
    Node::new(page).map_err(OpError)
}

fn put_u16(page: &mut [u8], offset: usize, value: usize) {
    debug_assert!(value <= usize::from(u16::MAX));
    page[offset..offset + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

fn put_u32(page: &mut [u8], offset: usize, value: usize) {
    page[offset..offset + 4].copy_from_slice(&(value as u32).to_le_bytes());
}

fn put_slot(page: &mut [u8], index: usize, slot: Slot) {
    let start = node::SLOTS + index * node::SLOT_SIZE;
    page[start..start + node::SLOT_SIZE].copy_from_slice(&slot.pack().to_le_bytes());
}

/// Makes the page an empty node.
pub(crate) fn init(
    page: &mut [u8],
    level: u16,
    first_child: u32,
    lower: &[u8],
    upper: Option<&[u8]>,
) -> Result<(), OpError> {
    let bounded = upper.is_some();
    let upper = upper.unwrap_or(&[]);
    if lower.len() > usize::from(u16::MAX) || upper.len() > usize::from(u16::MAX) {
        return Err(OpError("fences are longer than the page"));
    }
    let heap_end = page
        .len()
        .checked_sub(lower.len() + upper.len())
        .filter(|&end| end >= node::SLOTS)
        .ok_or(OpError("fences are longer than the page"))?;
    page[PAGE_HEADER_SIZE..heap_end].fill(0);
    put_u16(page, node::LEVEL, level.into());
    put_u32(page, node::HEAP_START, heap_end);
    put_u16(page, node::LOWER_LEN, lower.len());
    put_u16(page, node::UPPER_LEN, upper.len());
    put_u16(page, node::PREFIX_LEN, common_prefix_len(lower, upper));
    put_u16(page, node::FLAGS, if bounded { 0 } else { node::UPPER_UNBOUNDED.into() });
    put_u32(page, node::FIRST_CHILD, first_child as usize);
    page[heap_end..heap_end + lower.len()].copy_from_slice(lower);
    page[heap_end + lower.len()..].copy_from_slice(upper);
    Ok(())
}

/// Inserts a cell before `index`, and remembers the run of neighbouring inserts for the next split.
pub(crate) fn insert(
    page: &mut [u8],
    index: usize,
    suffix: &[u8],
    payload: &[u8],
) -> Result<(), OpError> {
    let (last, run) = open(page)?.insert_run();
    let count = open(page)?.count();
    insert_cell(page, index, suffix, &[], payload)?;
    let run = if index == last + 1 && run >= 0 {
        run.saturating_add(1)
    } else if index == last && run <= 0 && count > 0 {
        run.saturating_sub(1)
    } else {
        0
    };
    put_u16(page, node::RUN_SLOT, index);
    put_u16(page, node::RUN_LEN, usize::from(run as u16));
    Ok(())
}

/// Appends a cell whose suffix comes in two pieces. The node then counts as filled by ascending
/// inserts; if the next insert is not at the end, that ends the run.
pub(crate) fn append(
    page: &mut [u8],
    suffix_a: &[u8],
    suffix_b: &[u8],
    payload: &[u8],
) -> Result<(), OpError> {
    let count = open(page)?.count();
    insert_cell(page, count, suffix_a, suffix_b, payload)?;
    put_u16(page, node::RUN_SLOT, count);
    put_u16(page, node::RUN_LEN, count.min(i16::MAX as usize));
    Ok(())
}

fn insert_cell(
    page: &mut [u8],
    index: usize,
    suffix_a: &[u8],
    suffix_b: &[u8],
    payload: &[u8],
) -> Result<(), OpError> {
    let node = open(page)?;
    let count = node.count();
    if index > count {
        return Err(OpError("insert beyond the last cell"));
    }
    let suffix_len = suffix_a.len() + suffix_b.len();
    let size = cell_size(suffix_len, payload.len());
    if size > node.free_bytes() {
        return Err(OpError("cell does not fit the node"));
    }
    if size > node.heap_start() - node.slots_end() {
        compact(page)?;
    }
    let node = open(page)?;
    let slots_end = node.slots_end();
    let offset = (node.heap_start().checked_sub(size - node::SLOT_SIZE))
        .filter(|&offset| offset >= slots_end + node::SLOT_SIZE)
        .ok_or(OpError("cells of the node overlap"))?;
    put_u16(page, offset, payload.len());
    let suffix_start = offset + node::CELL_HEADER;
    let suffix = &mut page[suffix_start..suffix_start + suffix_len];
    suffix[..suffix_a.len()].copy_from_slice(suffix_a);
    suffix[suffix_a.len()..].copy_from_slice(suffix_b);
    let head = head_of(suffix);
    let payload_start = suffix_start + suffix_len;
    page[payload_start..payload_start + payload.len()].copy_from_slice(payload);
    let slot_start = node::SLOTS + index * node::SLOT_SIZE;
    page.copy_within(slot_start..slots_end, slot_start + node::SLOT_SIZE);
    put_slot(page, index, Slot { offset, suffix_len, head });
    put_u16(page, node::COUNT, count + 1);
    put_u32(page, node::HEAP_START, offset);
    debug_assert!(
        open(page).is_ok_and(|node| {
            node.cell(index)
                .is_some_and(|(suffix, found)| found == payload && suffix.len() == suffix_len)
        }),
        "the cell is at its slot"
    );
    Ok(())
}

/// Removes a cell.
pub(crate) fn remove(page: &mut [u8], index: usize) -> Result<(), OpError> {
    let node = open(page)?;
    let (suffix, payload) = node.cell(index).ok_or(OpError("no such cell"))?;
    let heap_bytes = cell_size(suffix.len(), payload.len()) - node::SLOT_SIZE;
    let (count, slots_end, heap_end) = (node.count(), node.slots_end(), node.heap_end());
    let (offset, mut heap_start) = (node.slot(index).offset, node.heap_start());
    let mut garbage = node.garbage() + heap_bytes;
    if offset == heap_start {
        heap_start += heap_bytes;
        garbage -= heap_bytes;
    }
    if count == 1 {
        (heap_start, garbage) = (heap_end, 0);
    }
    if garbage > heap_end - heap_start {
        return Err(OpError("cells of the node overlap"));
    }
    let slot_start = node::SLOTS + index * node::SLOT_SIZE;
    page.copy_within(slot_start + node::SLOT_SIZE..slots_end, slot_start);
    put_u16(page, node::COUNT, count - 1);
    put_u32(page, node::HEAP_START, heap_start);
    put_u32(page, node::GARBAGE, garbage);
    Ok(())
}

/// Replaces a payload except its first `front` and last `back` bytes.
pub(crate) fn replace(
    page: &mut [u8],
    index: usize,
    front: usize,
    back: usize,
    middle: &[u8],
) -> Result<(), OpError> {
    let node = open(page)?;
    let (suffix, payload) = node.cell(index).ok_or(OpError("no such cell"))?;
    let kept = front + back;
    if kept > payload.len() {
        return Err(OpError("replacement keeps more than the payload has"));
    }
    let (old_len, new_len) = (payload.len(), kept + middle.len());
    let cell_start = node.slot(index).offset;
    let payload_start = cell_start + node::CELL_HEADER + suffix.len();
    if new_len <= old_len {
        let shrunk_by = old_len - new_len;
        let garbage = node.garbage() + shrunk_by;
        if garbage > node.heap_end() - node.heap_start() {
            return Err(OpError("cells of the node overlap"));
        }
        let old_end = payload_start + old_len;
        page.copy_within(old_end - back..old_end, old_end - back - shrunk_by);
        page[payload_start + front..payload_start + front + middle.len()].copy_from_slice(middle);
        put_u16(page, cell_start, new_len);
        put_u32(page, node::GARBAGE, garbage);
        return Ok(());
    }
    if new_len - old_len > node.free_bytes() {
        return Err(OpError("replacement does not fit the node"));
    }
    let suffix = suffix.to_vec();
    let payload = [&payload[..front], middle, &payload[old_len - back..]].concat();
    remove(page, index)?;
    insert_cell(page, index, &suffix, &[], &payload)
}

/// Keeps the first `keep` cells, and sets a new upper fence: the prefix, and so every suffix, may
/// change.
pub(crate) fn set_upper(page: &mut [u8], keep: usize, upper: Option<&[u8]>) -> Result<(), OpError> {
    let old_bytes = page.to_vec();
    let old = open(&old_bytes)?;
    if keep > old.count() {
        return Err(OpError("node has fewer cells than it is to keep"));
    }
    init(page, old.level() as u16, old.first_child(), old.lower_fence(), upper)?;
    let new_prefix_len = open(page)?.prefix_len();
    let move_cell = |index: usize, page: &mut [u8]| -> Result<(), OpError> {
        let (suffix, payload) = old.cell(index).ok_or(OpError("cell lies outside the heap"))?;
        let (a, b) = rebase_suffix(&old, new_prefix_len, suffix)?;
        append(page, a, b, payload)
    };
    (0..keep).try_for_each(|index| move_cell(index, page))
}

/// The suffix of a key of `node` behind a prefix of another length of the same key: in two pieces.
pub(crate) fn rebase_suffix<'p>(
    node: &Node<'p>,
    new_prefix_len: usize,
    suffix: &'p [u8],
) -> Result<(&'p [u8], &'p [u8]), OpError> {
    let prefix = node.prefix();
    match new_prefix_len.checked_sub(prefix.len()) {
        Some(longer_by) => {
            let rest = suffix.get(longer_by..).ok_or(OpError("key is shorter than the prefix"))?;
            Ok((&[], rest))
        }
        None => Ok((&prefix[new_prefix_len..], suffix)),
    }
}

/// Closes the heap's gaps.
fn compact(page: &mut [u8]) -> Result<(), OpError> {
    let old_bytes = page.to_vec();
    let old = open(&old_bytes)?;
    let mut heap_start = old.heap_end();
    for index in 0..old.count() {
        let (suffix, payload) = old.cell(index).ok_or(OpError("cell lies outside the heap"))?;
        let len = node::CELL_HEADER + suffix.len() + payload.len();
        heap_start = (heap_start.checked_sub(len))
            .filter(|&start| start >= old.slots_end())
            .ok_or(OpError("cells of the node overlap"))?;
        let slot = old.slot(index);
        page[heap_start..heap_start + len]
            .copy_from_slice(&old_bytes[slot.offset..slot.offset + len]);
        put_slot(page, index, Slot { offset: heap_start, ..slot });
    }
    put_u32(page, node::HEAP_START, heap_start);
    put_u32(page, node::GARBAGE, 0);
    Ok(())
}
