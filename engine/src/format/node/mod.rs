//! Layout of a tree node.
//!
//! Here: the format and its limits. `search`: looking for a key, in a page that may be changing.
//! `latched`: all that is read of a page that is not. `edit`: changes of a node's bytes.
//!
//! ```text
//!  0         32          64                                             size
//!  +---------+-----------+----------------+--------+------+-------+-------+
//!  | page    | node      | slots, 8 bytes | free   | cell | lower | upper |
//!  | header  | header    | each, by key   |        | heap | fence | fence |
//!  +---------+-----------+----------------+--------+------+-------+-------+
//!                                         ^ slots end     ^ heap end
//!                                                  ^ heap start
//! ```
//!
//! A node holds the keys `k` with `lower fence <= k < upper fence`; both fences are stored in full.
//! All such keys share the fences' common prefix, so cells hold only what follows it, the *suffix*.
//! A slot is one little-endian u64: bits 0–15 the cell's offset, 16–31 the suffix length, 32–63 the
//! *head*: the suffix's first four bytes as a big-endian number, padded with zeros. Two different
//! heads decide a comparison without touching the cell, which most comparisons of a search do.
//!
//! A cell is `payload length u16 | suffix | payload`. In an inner node the payload is the child's
//! page number, u32: child 0 is in the node header and holds the keys below the first cell's key,
//! child `i` those from cell `i-1`'s key on.
//!
//! # Invariants
//! - slots are strictly ascending by suffix; every suffix's full key lies within the fences;
//! - `slots end <= heap start <= heap end`; every cell lies in the heap, no two overlap;
//! - `garbage` = heap bytes that belong to no cell.

pub(crate) mod edit;
mod latched;
mod search;

pub(crate) use latched::Cell;
pub use latched::Node;
pub use search::Seek;
#[cfg(test)]
pub(crate) use search::find;
pub(crate) use search::{child, child_index, copy_upper_fence, count};
use tidepool_pool::PageType;

/// Height above the leaves, u16; 0 = leaf.
pub(crate) const LEVEL: usize = 32;
/// Number of cells, u16.
pub(crate) const COUNT: usize = 34;
/// Lowest offset used by the heap, u32 (an empty heap of a 64 KiB page starts beyond a u16).
pub(crate) const HEAP_START: usize = 36;
/// Dead bytes in the heap, u32.
pub(crate) const GARBAGE: usize = 40;
/// Length of the fences' common prefix, u16.
pub(crate) const PREFIX_LEN: usize = 44;
/// Length of the lower fence, u16.
pub(crate) const LOWER_LEN: usize = 46;
/// Length of the upper fence, u16.
pub(crate) const UPPER_LEN: usize = 48;
/// Flags, u16.
pub(crate) const FLAGS: usize = 50;
/// Leftmost child, u32; 0 in a leaf.
pub(crate) const FIRST_CHILD: usize = 52;
/// Slot of the last insert, u16.
pub(crate) const RUN_SLOT: usize = 56;
/// Length of the present run of inserts side by side, i16: > 0 ascending, < 0 descending.
pub(crate) const RUN_LEN: usize = 58;
/// Start of the slots. 60..64 are reserved, zero.
pub(crate) const SLOTS: usize = 64;
/// Bytes a slot.
pub(crate) const SLOT_SIZE: usize = 8;
/// Bytes before a cell's suffix.
pub(crate) const CELL_HEADER: usize = 2;
/// Flag: there is no upper fence.
pub(crate) const UPPER_UNBOUNDED: u16 = 1;

/// Longest key a tree on pages of this size takes, bytes: 3584 at 16 KiB.
///
/// Any split must end in nodes that fit: two fences and a leaf's cell, or two fences and two cells
/// of an inner node.
pub const fn max_key_len(page_size: usize) -> usize {
    page_size * 7 / 32
}

/// Longest entry, its key and payload together, that a leaf of this size takes, bytes: 8128 at 16
/// KiB. Two share a leaf, if the keys are short: what was longer would have a separate page
/// anyhow.
pub const fn max_entry_len(page_size: usize) -> usize {
    page_size / 2 - SLOTS
}

/// Longest payload that a leaf of this size takes beside a key of `key_len` bytes; 4544 at 16 KiB
/// beside the longest key.
pub const fn max_payload_len(page_size: usize, key_len: usize) -> usize {
    max_entry_len(page_size).saturating_sub(key_len)
}

const _: () = {
    let mut size = 4096;
    while size <= 65536 {
        let room = size - SLOTS;
        let overhead = SLOT_SIZE + CELL_HEADER;
        assert!(2 * max_key_len(size) + overhead + max_entry_len(size) <= room);
        assert!(2 * max_key_len(size) + 2 * (overhead + max_key_len(size) + 4) <= room);
        assert!(2 * (overhead + max_entry_len(size)) <= room);
        size *= 2;
    }
};

/// Page type of a node at this height.
pub fn page_type_at(level: u16) -> PageType {
    if level == 0 { PageType::TREE_LEAF } else { PageType::TREE_INNER }
}

/// A slot, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Offset of the cell from the page's start.
    pub offset: usize,
    /// Length of the key behind the prefix.
    pub suffix_len: usize,
    /// First four bytes of the suffix.
    pub head: u32,
}

impl Slot {
    pub fn unpack(word: u64) -> Slot {
        Slot {
            offset: usize::from(word as u16),
            suffix_len: usize::from((word >> 16) as u16),
            head: (word >> 32) as u32,
        }
    }

    pub fn pack(self) -> u64 {
        debug_assert!(self.offset <= usize::from(u16::MAX));
        debug_assert!(self.suffix_len <= usize::from(u16::MAX));
        self.offset as u64 | (self.suffix_len as u64) << 16 | u64::from(self.head) << 32
    }
}

/// The head of a suffix.
#[inline]
pub(crate) fn head_of(suffix: &[u8]) -> u32 {
    match suffix.first_chunk::<4>() {
        Some(first) => u32::from_be_bytes(*first),
        None => {
            let mut padded = [0; 4];
            padded[..suffix.len()].copy_from_slice(suffix);
            u32::from_be_bytes(padded)
        }
    }
}

/// Length of two keys' common prefix.
pub(crate) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The shortest key `s` with `left < s <= right`: what a split hands to the parent.
pub(crate) fn shortest_separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    debug_assert!(left < right);
    &right[..common_prefix_len(left, right) + 1]
}

/// Offset of slot `index` in the page.
#[inline]
fn slot_offset(index: usize) -> usize {
    SLOTS + index * SLOT_SIZE
}

/// Bytes a cell and its slot take.
pub(crate) const fn cell_size(suffix_len: usize, payload_len: usize) -> usize {
    SLOT_SIZE + CELL_HEADER + suffix_len + payload_len
}
