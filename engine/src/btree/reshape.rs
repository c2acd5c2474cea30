//! What a split and a merge write: pure functions from nodes to page operations.

use crate::format::OpError;
use crate::format::node::edit::rebase_suffix;
use crate::format::node::{self, Node, cell_size, common_prefix_len};
use crate::page_op::{CellList, PageOp};

/// The fields of [`PageOp::NodeInit`], owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeInit {
    pub tree_id: u32,
    pub level: u16,
    pub first_child: u32,
    pub lower: Vec<u8>,
    pub upper: Option<Vec<u8>>,
}

impl NodeInit {
    /// Makes an empty node like `node`.
    pub fn like(node: &Node<'_>) -> NodeInit {
        NodeInit {
            tree_id: node.tree_id(),
            level: node.level() as u16,
            first_child: node.first_child(),
            lower: node.lower_fence().to_vec(),
            upper: node.upper_fence().map(<[u8]>::to_vec),
        }
    }

    pub fn op(&self) -> PageOp<'_> {
        PageOp::NodeInit {
            tree_id: self.tree_id,
            level: self.level,
            first_child: self.first_child,
            lower: &self.lower,
            upper: self.upper.as_deref(),
        }
    }

    fn prefix_len(&self) -> usize {
        self.upper.as_ref().map_or(0, |upper| common_prefix_len(&self.lower, upper))
    }
}

/// The new right neighbour of `node`, which keeps its first `at` cells. In an inner node, cell `at`
/// itself moves up: its key is the separator, its child the right node's leftmost.
pub(crate) fn right_half(
    node: &Node<'_>,
    at: usize,
    separator: &[u8],
) -> Result<(NodeInit, CellList), OpError> {
    debug_assert!(node.lower_fence() < separator, "both halves have room for keys");
    debug_assert!(node.upper_fence().is_none_or(|upper| separator < upper));
    let mut init = NodeInit { lower: separator.to_vec(), ..NodeInit::like(node) };
    let mut first = at;
    if init.level > 0 {
        init.first_child = node.child(at + 1).ok_or(OpError("inner node without that child"))?;
        first += 1;
    }
    let mut cells = CellList::new();
    push_cells(node, first, init.prefix_len(), &mut cells)?;
    Ok((init, cells))
}

/// All of `node`, for another page.
pub(crate) fn whole(node: &Node<'_>) -> Result<(NodeInit, CellList), OpError> {
    let init = NodeInit::like(node);
    let mut cells = CellList::new();
    push_cells(node, 0, init.prefix_len(), &mut cells)?;
    Ok((init, cells))
}

/// What makes the left of two neighbours hold both.
#[derive(Debug)]
pub(crate) struct Merge {
    /// The new upper fence; all cells are kept.
    pub upper: Option<Vec<u8>>,
    /// The right node's cells.
    pub cells: CellList,
}

/// Bytes that the cells and slots of two neighbours would take in one node: their prefix gets
/// shorter.
pub(crate) fn merged_size(left: &Node<'_>, right: &Node<'_>) -> usize {
    let upper = right.upper_fence();
    let prefix_len = upper.map_or(0, |upper| common_prefix_len(left.lower_fence(), upper));
    let grown =
        |node: &Node<'_>| node.used_bytes() + node.count() * (node.prefix_len() - prefix_len);
    let separator = match left.level() {
        0 => 0,
        _ => cell_size(right.lower_fence().len() - prefix_len, size_of::<u32>()),
    };
    grown(left) + grown(right) + separator
}

/// Merges `right` into `left`, its left neighbour, if the outcome takes at most `limit` bytes in
/// cells and slots.
pub(crate) fn merge(
    left: &Node<'_>,
    right: &Node<'_>,
    limit: usize,
) -> Result<Option<Merge>, OpError> {
    debug_assert_eq!(left.upper_fence(), Some(right.lower_fence()), "neighbours are merged");
    debug_assert_eq!(left.level(), right.level(), "nodes of one level are merged");
    let upper = right.upper_fence();
    let prefix_len = upper.map_or(0, |upper| common_prefix_len(left.lower_fence(), upper));
    let fences = left.lower_fence().len() + upper.map_or(0, <[u8]>::len);
    let room = left.page().len() - node::SLOTS - fences;
    if merged_size(left, right) > limit.min(room) {
        return Ok(None);
    }
    let separator = right.lower_fence();
    let mut cells = CellList::new();
    if left.level() > 0 {
        cells.push(&separator[prefix_len..], &[], &right.first_child().to_le_bytes());
    }
    push_cells(right, 0, prefix_len, &mut cells)?;
    Ok(Some(Merge { upper: upper.map(<[u8]>::to_vec), cells }))
}

fn push_cells(
    node: &Node<'_>,
    first: usize,
    prefix_len: usize,
    cells: &mut CellList,
) -> Result<(), OpError> {
    for index in first..node.count() {
        let (suffix, payload) = node.cell(index).ok_or(OpError("cell lies outside the heap"))?;
        let (a, b) = rebase_suffix(node, prefix_len, suffix)?;
        cells.push(a, b, payload);
    }
    Ok(())
}
