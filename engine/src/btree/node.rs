//! Layout of a tree node, and reading it.
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
//! A node holds the keys `k` with `lower fence <= k < upper fence`; both fences are stored in full. All such keys share the
//! fences' common prefix, so cells hold only what follows it, the *suffix*. A slot is one little-endian u64: bits 0–15 the
//! cell's offset, 16–31 the suffix length, 32–63 the *head*: the suffix's first four bytes as a big-endian number, padded
//! with zeros. Two different heads decide a comparison without touching the cell, which most comparisons of a search do.
//!
//! A cell is `payload length u16 | suffix | payload`. In an inner node the payload is the child's page number, u32: child 0
//! is in the node header and holds the keys below the first cell's key, child `i` those from cell `i-1`'s key on.
//!
//! # Racy readers
//! Inner nodes are read without a latch while a writer may be at work, so everything that searches is generic over
//! [`PageView`] and assumes nothing: each offset is bounds-checked by the view, each loop is bounded by the page size. Garbage
//! gives a wrong answer or [`Retry`], and the caller's version check tells.
//!
//! # Invariants
//! - slots are strictly ascending by suffix; every suffix's full key lies within the fences;
//! - `slots end <= heap start <= heap end`; every cell lies in the heap, no two overlap;
//! - `garbage` = heap bytes that belong to no cell.

use std::cmp::Ordering;
use tidepool_pool::{PageType, PageView, Retry};

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
/// Any split must end in nodes that fit: two fences and a leaf's cell, or two fences and two cells of an inner node.
pub const fn max_key_len(page_size: usize) -> usize {
    page_size * 7 / 32
}

/// Longest entry, its key and payload together, that a leaf of this size takes, bytes: 8128 at 16 KiB. Two share a leaf, if the keys
/// are short: what was longer would have a page of its own anyhow.
pub const fn max_entry_len(page_size: usize) -> usize {
    page_size / 2 - SLOTS
}

/// Longest payload that a leaf of this size takes beside a key of `key_len` bytes; 4544 at 16 KiB beside the longest key.
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

#[inline]
fn slot_offset(index: usize) -> usize {
    SLOTS + index * SLOT_SIZE
}

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
    // Eight-byte integers are the most common of keys: their other half is compared as a number too.
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
    // By heads alone, without branches on the outcome: they are not predictable.
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

/// Position of the first cell whose key is at or above `key`, and whether it is equal; `key` may lie outside the fences.
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

/// The upper fence.
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
    // A key that a validated parent sent here starts with the prefix; `get` is for the racy rest.
    let suffix = |key: &'_ [u8]| -> Result<usize, Retry> {
        let prefix_len = usize::from(page.u16_at(PREFIX_LEN)?);
        if prefix_len <= key.len() { Ok(prefix_len) } else { Err(Retry) }
    };
    match seek {
        Seek::Key(key) => {
            let (slot, exact) = lower_bound(page, &key[suffix(key)?..])?;
            Ok(slot + usize::from(exact))
        }
        Seek::Before(key) => Ok(lower_bound(page, &key[suffix(key)?..])?.0),
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

/// A node's bytes under a latch (or a copy of them), for reading.
///
/// Construction checks the header, so that the accessors may rely on it; a cell's bounds are checked as it is read.
#[derive(Debug, Clone, Copy)]
pub struct Node<'p> {
    page: &'p [u8],
}

impl<'p> Node<'p> {
    /// Takes a page for a node, after checking its header.
    pub fn new(page: &'p [u8]) -> Result<Node<'p>, &'static str> {
        if page.len() < SLOTS {
            return Err("page is shorter than a node header");
        }
        let node = Node { page };
        let fences = node.u16(LOWER_LEN) + node.u16(UPPER_LEN);
        let heap_end = page.size().checked_sub(fences).ok_or("fences are longer than the page")?;
        if node.slots_end() > node.heap_start() || node.heap_start() > heap_end {
            return Err("node header: slots, heap and fences overlap");
        }
        if node.garbage() > heap_end - node.heap_start() {
            return Err("node header: more dead bytes than the heap has");
        }
        if node.u16(PREFIX_LEN) > node.u16(LOWER_LEN)
            || (node.u16(PREFIX_LEN) > 0 && node.u16(PREFIX_LEN) > node.u16(UPPER_LEN))
        {
            return Err("node header: the prefix is longer than a fence");
        }
        Ok(node)
    }

    /// Takes a page for a node whose header was checked when it was latched.
    #[inline]
    pub(crate) fn trusted(page: &'p [u8]) -> Node<'p> {
        debug_assert!(Node::new(page).is_ok());
        Node { page }
    }

    fn u16(&self, offset: usize) -> usize {
        usize::from(u16::from_le_bytes([self.page[offset], self.page[offset + 1]]))
    }

    fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.page[offset..offset + 4].try_into().expect("four bytes"))
    }

    /// The page's bytes.
    pub fn page(&self) -> &'p [u8] {
        self.page
    }

    /// Tree the node belongs to.
    pub fn tree_id(&self) -> u32 {
        tidepool_pool::page::tree_id(self.page)
    }

    /// Page type: what [`page_type_at`] says of the level.
    pub fn page_type(&self) -> PageType {
        tidepool_pool::page::page_type(self.page)
    }

    /// Height above the leaves.
    pub fn level(&self) -> usize {
        self.u16(LEVEL)
    }

    /// Number of cells.
    pub fn count(&self) -> usize {
        self.u16(COUNT)
    }

    pub(crate) fn slots_end(&self) -> usize {
        SLOTS + self.count() * SLOT_SIZE
    }

    pub(crate) fn heap_start(&self) -> usize {
        self.u32(HEAP_START) as usize
    }

    pub(crate) fn heap_end(&self) -> usize {
        self.page.len() - self.u16(LOWER_LEN) - self.u16(UPPER_LEN)
    }

    pub(crate) fn garbage(&self) -> usize {
        self.u32(GARBAGE) as usize
    }

    /// Bytes that cells and their slots could still take.
    pub fn free_bytes(&self) -> usize {
        self.heap_start() - self.slots_end() + self.garbage()
    }

    /// Bytes that cells and their slots take.
    pub fn used_bytes(&self) -> usize {
        self.heap_end() - SLOTS - self.free_bytes()
    }

    /// Length of the common prefix of all the node's keys.
    pub fn prefix_len(&self) -> usize {
        self.u16(PREFIX_LEN)
    }

    /// The common prefix of all the node's keys.
    pub fn prefix(&self) -> &'p [u8] {
        &self.lower_fence()[..self.prefix_len()]
    }

    /// Lower bound, inclusive, of the node's keys.
    pub fn lower_fence(&self) -> &'p [u8] {
        let start = self.heap_end();
        &self.page[start..start + self.u16(LOWER_LEN)]
    }

    /// Upper bound, exclusive, of the node's keys; `None` = unbounded.
    pub fn upper_fence(&self) -> Option<&'p [u8]> {
        if self.u16(FLAGS) as u16 & UPPER_UNBOUNDED != 0 {
            return None;
        }
        Some(&self.page[self.page.len() - self.u16(UPPER_LEN)..])
    }

    /// Leftmost child.
    pub fn first_child(&self) -> u32 {
        self.u32(FIRST_CHILD)
    }

    /// Slot of the last insert, and the length of the run of inserts side by side (negative: descending).
    pub(crate) fn insert_run(&self) -> (usize, i16) {
        (self.u16(RUN_SLOT), self.u16(RUN_LEN) as u16 as i16)
    }

    pub(crate) fn slot(&self, index: usize) -> Slot {
        let start = slot_offset(index);
        assert!(start < self.slots_end(), "slot {index} of {}", self.count());
        let word = self.page[start..start + SLOT_SIZE].try_into().expect("eight bytes");
        Slot::unpack(u64::from_le_bytes(word))
    }

    /// Suffix and payload of a cell, or `None` where the slot or cell reaches out of the heap.
    pub fn cell(&self, index: usize) -> Option<(&'p [u8], &'p [u8])> {
        if index >= self.count() {
            return None;
        }
        let slot = self.slot(index);
        let suffix_start = slot.offset + CELL_HEADER;
        if slot.offset < self.heap_start() || suffix_start > self.heap_end() {
            return None;
        }
        let payload_len = self.u16(slot.offset);
        let heap = &self.page[..self.heap_end()];
        let suffix_end = suffix_start + slot.suffix_len;
        Some((heap.get(suffix_start..suffix_end)?, heap.get(suffix_end..suffix_end + payload_len)?))
    }

    /// Key of a cell behind the prefix.
    ///
    /// # Panics
    /// When there is no such cell, or the node breaks its invariants.
    pub fn suffix(&self, index: usize) -> &'p [u8] {
        self.cell(index).expect("cell lies in the heap").0
    }

    /// Payload of a cell.
    ///
    /// # Panics
    /// When there is no such cell, or the node breaks its invariants.
    #[inline]
    pub fn payload(&self, index: usize) -> &'p [u8] {
        self.cell(index).expect("cell lies in the heap").1
    }

    /// Checks everything that holds of a node by itself.
    pub fn verify(&self) -> Result<(), String> {
        if self.page_type() != page_type_at(self.level() as u16) {
            return Err(format!("page type {} at level {}", self.page_type().0, self.level()));
        }
        let upper = self.upper_fence();
        let prefix_len = upper.map_or(0, |upper| common_prefix_len(self.lower_fence(), upper));
        if prefix_len != self.prefix_len() {
            return Err(format!("prefix of {} bytes, not {prefix_len}", self.prefix_len()));
        }
        if upper.is_some_and(|upper| self.lower_fence() >= upper) {
            return Err("lower fence is not below the upper fence".into());
        }
        let mut heap_bytes = self.garbage();
        let mut previous = None;
        for index in 0..self.count() {
            let (suffix, payload) =
                self.cell(index).ok_or_else(|| format!("cell {index} lies outside the heap"))?;
            if self.slot(index).head != head_of(suffix) {
                return Err(format!("head of slot {index} is not its key's"));
            }
            if self.level() > 0 && payload.len() != size_of::<u32>() {
                return Err(format!("cell {index} of an inner node holds no page number"));
            }
            if previous.is_some_and(|previous| previous >= suffix) {
                return Err(format!("key {index} is not above the one before"));
            }
            previous = Some(suffix);
            heap_bytes += cell_size(suffix.len(), payload.len()) - SLOT_SIZE;
        }
        if self.count() > 0 {
            let last = &upper.map(|upper| &upper[prefix_len..]);
            if self.suffix(0) < &self.lower_fence()[prefix_len..]
                || last.is_some_and(|last| self.suffix(self.count() - 1) >= last)
            {
                return Err("a key lies outside the fences".into());
            }
        }
        if heap_bytes != self.heap_end() - self.heap_start() {
            return Err("cells and dead bytes do not add up to the heap".into());
        }
        Ok(())
    }

    /// Replaces `key` by the key of a cell.
    pub fn key_into(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.suffix(index));
    }

    /// Key of a cell.
    pub fn key(&self, index: usize) -> Vec<u8> {
        [self.prefix(), self.suffix(index)].concat()
    }

    /// Bytes a cell and its slot take.
    pub(crate) fn cell_size(&self, index: usize) -> usize {
        let slot = self.slot(index);
        cell_size(slot.suffix_len, self.u16(slot.offset))
    }

    /// Page number of a child of an inner node, 0 ..= count.
    pub fn child(&self, index: usize) -> Option<u32> {
        match index.checked_sub(1) {
            None => Some(self.first_child()),
            Some(cell) => Some(u32::from_le_bytes(self.cell(cell)?.1.try_into().ok()?)),
        }
    }

    /// Position of `key` (`Ok`), or the position to insert it at (`Err`).
    #[inline]
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        match find(self.page, key).expect("cell lies in the page") {
            (slot, true) => Ok(slot),
            (slot, false) => Err(slot),
        }
    }

    /// The same for a key within the fences, such as the one a descent led here by: spares a look at the prefix.
    #[inline]
    pub fn find_covered(&self, key: &[u8]) -> Result<usize, usize> {
        debug_assert!(self.covers(key), "a key outside the node's range");
        let found = key.get(self.prefix_len()..).map(|suffix| lower_bound(self.page, suffix));
        match found.expect("the key has the prefix").expect("cell lies in the page") {
            (slot, true) => Ok(slot),
            (slot, false) => Err(slot),
        }
    }

    /// Whether the key lies within the fences.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.lower_fence() <= key && self.upper_fence().is_none_or(|upper| key < upper)
    }

    /// Whether a new cell with a key and payload of these lengths fits. The key must lie within the fences.
    pub fn fits(&self, key_len: usize, payload_len: usize) -> bool {
        self.lacking(key_len, payload_len) == 0
    }

    /// Whether the cell fits with a payload of this length instead of its own.
    pub fn fits_replaced(&self, index: usize, payload_len: usize) -> bool {
        self.growth_lacking(index, payload_len) == 0
    }

    /// Bytes that lack for a new cell with a key, within the fences, and a payload of these lengths.
    pub fn lacking(&self, key_len: usize, payload_len: usize) -> usize {
        let size = cell_size(key_len.saturating_sub(self.prefix_len()), payload_len);
        size.saturating_sub(self.free_bytes())
    }

    /// Bytes that lack for the cell to have a payload of this length instead of its own.
    pub fn growth_lacking(&self, index: usize, payload_len: usize) -> usize {
        payload_len.saturating_sub(self.free_bytes() + self.payload(index).len())
    }
}

/// Bytes a cell and its slot take.
pub(crate) const fn cell_size(suffix_len: usize, payload_len: usize) -> usize {
    SLOT_SIZE + CELL_HEADER + suffix_len + payload_len
}

#[cfg(test)]
mod tests;
