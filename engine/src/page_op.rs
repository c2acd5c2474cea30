//! Page operations: the only way bytes of a page ever change.
//!
//! A [`PageOp`] is one small, self-contained change of one page. Forward, a mini-transaction
//! applies it to the latched page and appends its encoding to the redo log; at recovery,
//! [`apply_encoded`] applies the same encoding to the page as it was found on disk. Both run the
//! same code on the same bytes, so an operation may leave decisions to `apply` (where in the heap a
//! cell goes, whether the node must be compacted first) and log only what it cannot compute: that
//! keeps redo small.
//!
//! # Invariants
//! - `apply` is a pure function of the page's bytes and the operation: no clock, no address, no
//!   hash order.
//! - `apply` leaves the first [`PAGE_HEADER_SIZE`] bytes alone except page type and tree id
//!   ([`PageOp::Format`], [`PageOp::Image`], [`PageOp::NodeInit`]); checksum, page number, space id
//!   and LSN belong to the pool.
//! - On bytes that are no valid page, or an encoding that is no valid operation, it returns an
//!   error and never panics. The page may then be half changed, and must be thrown away.
//!
//! # Encoding
//! One tag byte, then the fields in the order of their declaration; integers as LEB128 varints (at
//! most five bytes), byte strings as a varint length and the bytes, except a last one, which runs
//! to the end of the encoding. `docs/internals/format/pages.md` has it byte by byte.

use crate::format::OpError;
use crate::format::entry::settle_cells;
use crate::format::node::{self, edit};
use crate::varint;
use tidepool_pool::page::{set_page_type, set_tree_id};
use tidepool_pool::{PAGE_HEADER_SIZE, PageType};

/// One change of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageOp<'a> {
    /// Zeroes the page's body and sets its type and tree id.
    Format {
        /// New page type.
        page_type: PageType,
        /// Tree (or other owner) the page belongs to.
        tree_id: u32,
    },
    /// Writes bytes at an offset from the start of the page, behind the page header.
    Write {
        /// Offset from the start of the page, at least [`PAGE_HEADER_SIZE`].
        offset: u32,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// Sets type, tree id and the whole body; what `body` leaves of the page is zeroed.
    Image {
        /// New page type.
        page_type: PageType,
        /// Tree (or other owner) the page belongs to.
        tree_id: u32,
        /// The bytes behind the page header.
        body: &'a [u8],
    },
    /// Makes the page an empty tree node.
    NodeInit {
        /// Tree the node belongs to.
        tree_id: u32,
        /// Height above the leaves; 0 = leaf.
        level: u16,
        /// Leftmost child of an inner node; 0 in a leaf.
        first_child: u32,
        /// Lower fence: no key of the node is below it.
        lower: &'a [u8],
        /// Upper fence: every key of the node is below it. `None` = unbounded.
        upper: Option<&'a [u8]>,
    },
    /// Inserts a cell before `slot`. The key comes without the node's common prefix.
    InsertCell {
        /// Position among the node's cells.
        slot: u16,
        /// Key behind the node's prefix.
        suffix: &'a [u8],
        /// The cell's value.
        payload: &'a [u8],
    },
    /// Removes a cell.
    RemoveCell {
        /// Position among the node's cells.
        slot: u16,
    },
    /// Replaces a cell's payload except the first `front` and the last `back` bytes.
    ReplaceCell {
        /// Position among the node's cells.
        slot: u16,
        /// Bytes kept at the payload's start.
        front: u16,
        /// Bytes kept at the payload's end.
        back: u16,
        /// Bytes between them.
        middle: &'a [u8],
    },
    /// Keeps the first `keep` cells and sets a new upper fence (narrower after a split, wider
    /// before a merge).
    SetUpper {
        /// Cells kept.
        keep: u16,
        /// The new upper fence.
        upper: Option<&'a [u8]>,
    },
    /// Appends cells, all above those in the node.
    AppendCells {
        /// The cells, as `CellList` collects them.
        cells: &'a [u8],
    },
    /// Settles entries of a leaf: their headers shrink to one byte ([`crate::format::entry`]).
    SettleCells {
        /// A bit for each cell, the first of a byte being its lowest. Cells that it has no bit for
        /// stay as they are.
        slots: &'a [u8],
    },
}

const TAG_FORMAT: u8 = 1;
const TAG_WRITE: u8 = 2;
const TAG_IMAGE: u8 = 3;
const TAG_NODE_INIT: u8 = 4;
const TAG_INSERT_CELL: u8 = 5;
const TAG_REMOVE_CELL: u8 = 6;
const TAG_REPLACE_CELL: u8 = 7;
const TAG_SET_UPPER: u8 = 8;
const TAG_APPEND_CELLS: u8 = 9;
const TAG_SETTLE_CELLS: u8 = 10;

impl<'a> PageOp<'a> {
    /// The shortest operation that turns the payload `old` of cell `slot` into `new`.
    pub fn replace_payload(slot: usize, old: &[u8], new: &'a [u8]) -> PageOp<'a> {
        let same = |(a, b): &(&u8, &u8)| a == b;
        let front = old.iter().zip(new).take_while(same).count();
        let (old_rest, new_rest) = (&old[front..], &new[front..]);
        let back = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(same).count();
        PageOp::ReplaceCell {
            slot: slot as u16,
            front: front as u16,
            back: back as u16,
            middle: &new_rest[..new_rest.len() - back],
        }
    }

    /// Appends the operation's encoding to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            PageOp::Format { page_type, tree_id } => {
                out.push(TAG_FORMAT);
                varint::put_u32(out, page_type.0.into());
                varint::put_u32(out, tree_id);
            }
            PageOp::Write { offset, bytes } => {
                out.push(TAG_WRITE);
                varint::put_u32(out, offset);
                out.extend_from_slice(bytes);
            }
            PageOp::Image { page_type, tree_id, body } => {
                out.push(TAG_IMAGE);
                varint::put_u32(out, page_type.0.into());
                varint::put_u32(out, tree_id);
                out.extend_from_slice(body);
            }
            PageOp::NodeInit { tree_id, level, first_child, lower, upper } => {
                out.push(TAG_NODE_INIT);
                varint::put_u32(out, tree_id);
                varint::put_u32(out, level.into());
                varint::put_u32(out, first_child);
                put_bytes(out, lower);
                put_fence(out, upper);
            }
            PageOp::InsertCell { slot, suffix, payload } => {
                out.push(TAG_INSERT_CELL);
                varint::put_u32(out, slot.into());
                put_bytes(out, suffix);
                out.extend_from_slice(payload);
            }
            PageOp::RemoveCell { slot } => {
                out.push(TAG_REMOVE_CELL);
                varint::put_u32(out, slot.into());
            }
            PageOp::ReplaceCell { slot, front, back, middle } => {
                out.push(TAG_REPLACE_CELL);
                varint::put_u32(out, slot.into());
                varint::put_u32(out, front.into());
                varint::put_u32(out, back.into());
                out.extend_from_slice(middle);
            }
            PageOp::SetUpper { keep, upper } => {
                out.push(TAG_SET_UPPER);
                varint::put_u32(out, keep.into());
                put_fence(out, upper);
            }
            PageOp::AppendCells { cells } => {
                out.push(TAG_APPEND_CELLS);
                out.extend_from_slice(cells);
            }
            PageOp::SettleCells { slots } => {
                out.push(TAG_SETTLE_CELLS);
                out.extend_from_slice(slots);
            }
        }
    }

    /// Reads an operation from exactly `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<PageOp<'a>, OpError> {
        let mut r = Reader { rest: bytes };
        let op = match r.byte()? {
            TAG_FORMAT => {
                PageOp::Format { page_type: PageType(r.varint_u16()?), tree_id: r.varint()? }
            }
            TAG_WRITE => PageOp::Write { offset: r.varint()?, bytes: r.take_rest() },
            TAG_IMAGE => PageOp::Image {
                page_type: PageType(r.varint_u16()?),
                tree_id: r.varint()?,
                body: r.take_rest(),
            },
            TAG_NODE_INIT => PageOp::NodeInit {
                tree_id: r.varint()?,
                level: r.varint_u16()?,
                first_child: r.varint()?,
                lower: r.bytes()?,
                upper: r.fence()?,
            },
            TAG_INSERT_CELL => PageOp::InsertCell {
                slot: r.varint_u16()?,
                suffix: r.bytes()?,
                payload: r.take_rest(),
            },
            TAG_REMOVE_CELL => PageOp::RemoveCell { slot: r.varint_u16()? },
            TAG_REPLACE_CELL => PageOp::ReplaceCell {
                slot: r.varint_u16()?,
                front: r.varint_u16()?,
                back: r.varint_u16()?,
                middle: r.take_rest(),
            },
            TAG_SET_UPPER => PageOp::SetUpper { keep: r.varint_u16()?, upper: r.fence()? },
            TAG_APPEND_CELLS => PageOp::AppendCells { cells: r.take_rest() },
            TAG_SETTLE_CELLS => PageOp::SettleCells { slots: r.take_rest() },
            _ => return Err(OpError("unknown page operation")),
        };
        if !r.rest.is_empty() {
            return Err(OpError("page operation is longer than its fields"));
        }
        Ok(op)
    }

    /// Changes `page` (a whole page, header included).
    pub fn apply(&self, page: &mut [u8]) -> Result<(), OpError> {
        if page.len() < node::SLOTS {
            return Err(OpError("page is shorter than a node header"));
        }
        match *self {
            PageOp::Format { page_type, tree_id } => {
                set_type(page, page_type, tree_id);
                page[PAGE_HEADER_SIZE..].fill(0);
                Ok(())
            }
            PageOp::Write { offset, bytes } => {
                let start = offset as usize;
                if start < PAGE_HEADER_SIZE {
                    return Err(OpError("write into the page header"));
                }
                let target = start
                    .checked_add(bytes.len())
                    .and_then(|end| page.get_mut(start..end))
                    .ok_or(OpError("write beyond the page's end"))?;
                target.copy_from_slice(bytes);
                Ok(())
            }
            PageOp::Image { page_type, tree_id, body } => {
                let rest = &mut page[PAGE_HEADER_SIZE..];
                if body.len() > rest.len() {
                    return Err(OpError("image is longer than the page"));
                }
                rest[..body.len()].copy_from_slice(body);
                rest[body.len()..].fill(0);
                set_type(page, page_type, tree_id);
                Ok(())
            }
            PageOp::NodeInit { tree_id, level, first_child, lower, upper } => {
                set_type(page, node::page_type_at(level), tree_id);
                edit::init(page, level, first_child, lower, upper)
            }
            PageOp::InsertCell { slot, suffix, payload } => {
                edit::insert(page, slot.into(), suffix, payload)
            }
            PageOp::RemoveCell { slot } => edit::remove(page, slot.into()),
            PageOp::ReplaceCell { slot, front, back, middle } => {
                edit::replace(page, slot.into(), front.into(), back.into(), middle)
            }
            PageOp::SetUpper { keep, upper } => edit::set_upper(page, keep.into(), upper),
            PageOp::AppendCells { cells } => {
                let mut list = CellListReader { rest: Reader { rest: cells } };
                while let Some((suffix, payload)) = list.next()? {
                    edit::append(page, suffix, &[], payload)?;
                }
                Ok(())
            }
            PageOp::SettleCells { slots } => settle_cells(page, slots),
        }
    }
}

/// Decodes an operation and applies it to `page`: what recovery calls for each redo record.
pub fn apply_encoded(op: &[u8], page: &mut [u8]) -> Result<(), OpError> {
    PageOp::decode(op)?.apply(page)
}

fn set_type(page: &mut [u8], page_type: PageType, tree_id: u32) {
    set_page_type(page, page_type);
    set_tree_id(page, tree_id);
}

/// Collects cells for [`PageOp::AppendCells`].
#[derive(Debug, Default)]
pub struct CellList {
    bytes: Vec<u8>,
}

impl CellList {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a cell whose key, behind the target node's prefix, is `suffix_a` followed by
    /// `suffix_b`.
    pub fn push(&mut self, suffix_a: &[u8], suffix_b: &[u8], payload: &[u8]) {
        varint::put_u32(&mut self.bytes, (suffix_a.len() + suffix_b.len()) as u32);
        varint::put_u32(&mut self.bytes, payload.len() as u32);
        self.bytes.extend_from_slice(suffix_a);
        self.bytes.extend_from_slice(suffix_b);
        self.bytes.extend_from_slice(payload);
    }

    /// Whether no cell was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The operation that appends the collected cells.
    pub fn op(&self) -> PageOp<'_> {
        PageOp::AppendCells { cells: &self.bytes }
    }
}

struct CellListReader<'a> {
    rest: Reader<'a>,
}

impl<'a> CellListReader<'a> {
    #[expect(clippy::type_complexity, reason = "a pair of slices needs no name")]
    fn next(&mut self) -> Result<Option<(&'a [u8], &'a [u8])>, OpError> {
        if self.rest.rest.is_empty() {
            return Ok(None);
        }
        let suffix_len = self.rest.varint()? as usize;
        let payload_len = self.rest.varint()? as usize;
        let suffix = self.rest.take(suffix_len)?;
        Ok(Some((suffix, self.rest.take(payload_len)?)))
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put_u32(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

/// A fence that may be unbounded: 0, or its length + 1 and its bytes.
fn put_fence(out: &mut Vec<u8>, fence: Option<&[u8]>) {
    match fence {
        None => out.push(0),
        Some(bytes) => {
            varint::put_u32(out, bytes.len() as u32 + 1);
            out.extend_from_slice(bytes);
        }
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, OpError> {
        let (&first, rest) = self.rest.split_first().ok_or(OpError("page operation is cut off"))?;
        self.rest = rest;
        Ok(first)
    }

    fn varint(&mut self) -> Result<u32, OpError> {
        varint::take_u32(&mut self.rest).ok_or(OpError("page operation with an impossible number"))
    }

    fn varint_u16(&mut self) -> Result<u16, OpError> {
        self.varint()?.try_into().map_err(|_| OpError("page operation with an impossible number"))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], OpError> {
        let (taken, rest) =
            self.rest.split_at_checked(len).ok_or(OpError("page operation is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn bytes(&mut self) -> Result<&'a [u8], OpError> {
        let len = self.varint()? as usize;
        self.take(len)
    }

    fn fence(&mut self) -> Result<Option<&'a [u8]>, OpError> {
        match self.varint()? as usize {
            0 => Ok(None),
            len => Ok(Some(self.take(len - 1)?)),
        }
    }

    fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

#[cfg(test)]
mod tests;
