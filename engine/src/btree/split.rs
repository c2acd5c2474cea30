//! Where to split a node.
//!
//! A node splits near the middle of its bytes, at the place in a window around it whose separator is shortest: short
//! separators make inner nodes wide and fences small. Where the last inserts went side by side, the split follows them
//! instead: keys inserted in ascending order leave nodes up to 15/16 full behind them (the rest is for rows that grow later),
//! and so do keys in descending order.
//!
//! # Why both halves always fit
//! The separator that a half takes as a new fence is no longer than the cell next to it on the other side and the fence it
//! replaces together: a half never grows. A leaf with one cell splits between it and the new key; then the limits
//! on keys and payloads leave room ([`node::max_key_len`](super::node::max_key_len)).

use super::node::{Node, common_prefix_len, shortest_separator};
use std::ops::RangeInclusive;

/// From this many inserts side by side on, a split follows them.
const RUN_MIN: i16 = 8;

/// A split of a leaf: cells from `at` on go right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeafSplit {
    pub at: usize,
    pub separator: Vec<u8>,
}

/// Where to split a leaf that `key` does not fit into; `None` when splitting cannot help.
pub(crate) fn split_leaf(node: &Node<'_>, key: &[u8]) -> Option<LeafSplit> {
    let count = node.count();
    let position = node.find(key);
    if count < 2 {
        // Between the only cell and the key to come.
        let only = (count == 1).then(|| node.key(0))?;
        return match position {
            Ok(_) => None,
            Err(0) => Some(LeafSplit { at: 0, separator: shortest_separator(key, &only).to_vec() }),
            Err(_) => Some(LeafSplit { at: 1, separator: shortest_separator(&only, key).to_vec() }),
        };
    }
    let separator_len = |at: usize| {
        let (left, right) = (node.suffix(at - 1), node.suffix(at));
        shortest_separator(left, right).len()
    };
    let at = choose(node, position.unwrap_or_else(|at| at), 1..=count - 1, separator_len);
    let separator =
        [node.prefix(), shortest_separator(node.suffix(at - 1), node.suffix(at))].concat();
    Some(LeafSplit { at, separator })
}

/// Where to split an inner node that a separator `key` does not fit into: the cell whose key moves up to the parent.
pub(crate) fn split_inner(node: &Node<'_>, key: &[u8]) -> Option<usize> {
    let count = node.count();
    let position = node.find(key).unwrap_or_else(|at| at);
    match count {
        0 => None,
        1 | 2 => Some(count - 1),
        _ => Some(choose(node, position, 1..=count - 2, |at| node.suffix(at).len())),
    }
}

/// The best place to cut within `places`: at the run of inserts that reaches `position`, or near the middle.
fn choose(
    node: &Node<'_>,
    position: usize,
    places: RangeInclusive<usize>,
    separator_len: impl Fn(usize) -> usize,
) -> usize {
    let (first, last) = (*places.start(), *places.end());
    let count = node.count();
    let (run_slot, run) = node.insert_run();
    let total: usize = (0..count).map(|index| node.cell_size(index)).sum();
    let room = total + node.free_bytes();
    if run >= RUN_MIN && position == run_slot + 1 {
        if position < count {
            return position.clamp(first, last);
        }
        // The left half gets an upper fence, perhaps its first, and with it a longer prefix: its cells shrink.
        let longest = common_prefix_len(node.lower_fence(), &node.key(count - 1));
        let shrink_by = longest.saturating_sub(node.prefix_len());
        return last_cut_below(node, room * 15 / 16, shrink_by).clamp(first, last);
    }
    if run <= -RUN_MIN && position == run_slot {
        if position > 0 {
            return position.clamp(first, last);
        }
        let cut = last_cut_below(node, total.saturating_sub(room * 15 / 16), 0);
        return (cut + 1).clamp(first, last);
    }
    // The shortest separator with 2/5 to 3/5 of the bytes on either side; of equals the nearest to the middle.
    let mut left_bytes: usize = (0..first).map(|index| node.cell_size(index)).sum();
    let mut best = (true, usize::MAX, usize::MAX, first);
    for at in places {
        let distance = left_bytes.abs_diff(total - left_bytes);
        let candidate = if distance * 5 <= total {
            (false, separator_len(at), distance, at)
        } else {
            (true, 0, distance, at)
        };
        best = best.min(candidate);
        left_bytes += node.cell_size(at);
    }
    best.3
}

/// Most cells from the left that take no more than `bytes`, each being `shrink_by` bytes smaller.
fn last_cut_below(node: &Node<'_>, bytes: usize, shrink_by: usize) -> usize {
    let mut sum = 0;
    (0..node.count())
        .take_while(|&index| {
            sum += node.cell_size(index) - shrink_by;
            sum <= bytes
        })
        .count()
}
