//! A node whose bytes do not change: latched, or a copy.
//!
//! [`Node::new`] checks the header, so that the accessors may rely on what it says; where a cell
//! lies is checked as it is read.

use super::search::{find, lower_bound};
use super::{
    CELL_HEADER, COUNT, FIRST_CHILD, FLAGS, GARBAGE, HEAP_START, LEVEL, LOWER_LEN, PREFIX_LEN,
    RUN_LEN, RUN_SLOT, SLOT_SIZE, SLOTS, Slot, UPPER_LEN, UPPER_UNBOUNDED, cell_size,
    common_prefix_len, head_of, page_type_at, slot_offset,
};
use tidepool_pool::{PageType, PageView};

/// A node's bytes under a latch (or a copy of them), for reading.
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

    /// Slot of the last insert, and the length of the run of inserts side by side (negative:
    /// descending).
    pub(crate) fn insert_run(&self) -> (usize, i16) {
        (self.u16(RUN_SLOT), self.u16(RUN_LEN) as u16 as i16)
    }

    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot {
        let start = slot_offset(index);
        assert!(start < self.slots_end(), "slot {index} of {}", self.count());
        let word = self.page[start..start + SLOT_SIZE].try_into().expect("eight bytes");
        Slot::unpack(u64::from_le_bytes(word))
    }

    /// The cells, for who reads many.
    #[inline]
    pub(crate) fn cells(&self) -> Cells<'p> {
        let slots = &self.page[SLOTS..self.slots_end()];
        Cells { slots, heap: &self.page[..self.heap_end()], heap_start: self.heap_start() }
    }

    /// Suffix and payload of a cell, or `None` where the slot or cell reaches out of the heap.
    #[inline]
    pub fn cell(&self, index: usize) -> Option<(&'p [u8], &'p [u8])> {
        let cell = self.cells().get(index)?;
        Some(cell.bytes.split_at(cell.suffix_len))
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

    /// The same for a key within the fences, such as the one a descent led here by: spares a look
    /// at the prefix.
    #[inline]
    pub fn find_covered(&self, key: &[u8]) -> Result<usize, usize> {
        debug_assert!(self.covers(key), "a key outside the node's range");
        let found = key.get(self.prefix_len()..).map(|suffix| lower_bound(self.page, suffix));
        match found.expect("the key has the prefix").expect("cell lies in the page") {
            (slot, true) => Ok(slot),
            (slot, false) => Err(slot),
        }
    }

    /// Whether this is the key of the cell at `index`.
    #[inline]
    pub fn is_at(&self, index: usize, key: &[u8]) -> bool {
        let Some(suffix) = key.strip_prefix(self.prefix()) else { return false };
        self.cell(index).is_some_and(|cell| cell.0 == suffix)
    }

    /// Whether the key lies within the fences.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.lower_fence() <= key && self.upper_fence().is_none_or(|upper| key < upper)
    }

    /// Whether a new cell with a key and payload of these lengths fits. The key must lie within the
    /// fences.
    pub fn fits(&self, key_len: usize, payload_len: usize) -> bool {
        self.lacking(key_len, payload_len) == 0
    }

    /// Whether the cell fits with a payload of this length in place of the present one.
    pub fn fits_replaced(&self, index: usize, payload_len: usize) -> bool {
        self.growth_lacking(index, payload_len) == 0
    }

    /// Bytes that lack for a new cell with a key, within the fences, and a payload of these
    /// lengths.
    pub fn lacking(&self, key_len: usize, payload_len: usize) -> usize {
        let size = cell_size(key_len.saturating_sub(self.prefix_len()), payload_len);
        size.saturating_sub(self.free_bytes())
    }

    /// Bytes that lack for the cell to have a payload of this length.
    pub fn growth_lacking(&self, index: usize, payload_len: usize) -> usize {
        payload_len.saturating_sub(self.free_bytes() + self.payload(index).len())
    }
}

/// Where a node's cells are, taken out of its header once.
#[derive(Clone, Copy)]
pub(crate) struct Cells<'p> {
    slots: &'p [u8],
    /// The page up to the heap's end.
    heap: &'p [u8],
    heap_start: usize,
}

/// A cell's bytes: its key behind the prefix, and its payload.
#[derive(Clone, Copy)]
pub(crate) struct Cell<'p> {
    pub bytes: &'p [u8],
    pub suffix_len: usize,
}

impl<'p> Cells<'p> {
    /// A cell, or `None` where the slot or cell reaches out of the heap.
    #[inline]
    pub fn get(&self, index: usize) -> Option<Cell<'p>> {
        let slot = self.slots.get(index * SLOT_SIZE..)?.first_chunk::<SLOT_SIZE>()?;
        let Slot { offset, suffix_len, .. } = Slot::unpack(u64::from_le_bytes(*slot));
        if offset < self.heap_start {
            return None;
        }
        let (header, rest) = self.heap.get(offset..)?.split_first_chunk::<CELL_HEADER>()?;
        let payload_len = usize::from(u16::from_le_bytes(*header));
        Some(Cell { bytes: rest.get(..suffix_len + payload_len)?, suffix_len })
    }
}

impl<'p> Cell<'p> {
    #[inline]
    pub fn payload(&self) -> &'p [u8] {
        &self.bytes[self.suffix_len..]
    }
}

impl Node<'_> {
    /// Checks where things lie, so that every reader finds them, and every change has the room that
    /// it counts on: type and level, the prefix, and the cells. What their keys are is
    /// [`verify`](Self::verify)'s.
    pub fn check_layout(&self) -> Result<(), &'static str> {
        if self.page_type() != page_type_at(self.level() as u16) {
            return Err("its page type is not that of its level");
        }
        let upper = self.upper_fence();
        if self.prefix_len() != upper.map_or(0, |u| common_prefix_len(self.lower_fence(), u)) {
            return Err("the prefix is not the fences' common one");
        }
        let mut heap_bytes = self.garbage();
        for index in 0..self.count() {
            let (suffix, payload) = self.cell(index).ok_or("a cell lies outside the heap")?;
            if self.level() > 0 && payload.len() != size_of::<u32>() {
                return Err("a cell of an inner node holds no page number");
            }
            heap_bytes += cell_size(suffix.len(), payload.len()) - SLOT_SIZE;
        }
        if heap_bytes != self.heap_end() - self.heap_start() {
            return Err("cells and dead bytes do not add up to the heap");
        }
        Ok(())
    }

    /// Checks everything that holds of a node by itself; says what does not.
    pub fn verify(&self) -> Result<(), String> {
        self.check_layout()?;
        let (upper, prefix_len) = (self.upper_fence(), self.prefix_len());
        if upper.is_some_and(|upper| self.lower_fence() >= upper) {
            return Err("lower fence is not below the upper fence".into());
        }
        let mut previous = None;
        for index in 0..self.count() {
            let suffix = self.suffix(index);
            if self.slot(index).head != head_of(suffix) {
                return Err(format!("head of slot {index} is not its key's"));
            }
            if previous.is_some_and(|previous| previous >= suffix) {
                return Err(format!("key {index} is not above the one before"));
            }
            previous = Some(suffix);
        }
        if self.count() > 0 {
            let last = &upper.map(|upper| &upper[prefix_len..]);
            if self.suffix(0) < &self.lower_fence()[prefix_len..]
                || last.is_some_and(|last| self.suffix(self.count() - 1) >= last)
            {
                return Err("a key lies outside the fences".into());
            }
        }
        Ok(())
    }
}
