//! Where to split a node.
//!
//! A node splits near the middle of its bytes, at the place in a window around it whose separator
//! is shortest: short separators make inner nodes wide and fences small. Where the last inserts
//! went side by side, the split follows them instead: keys inserted in ascending order leave nodes
//! up to 15/16 full behind them (the rest is for rows that grow later), and so do keys in
//! descending order. Where entries are larger than that rest, nodes are left as full as they are.
//!
//! # Why both halves always fit
//! The separator that a half takes as a new fence is no longer than the cell next to it on the
//! other side and the fence it replaces together: a half never grows. Where all cells stay
//! together, it is seen to that they fit with the new fence. A leaf with one cell splits between it
//! and the new key; then the limits on keys and payloads leave room
//! ([`node::max_key_len`](crate::format::node::max_key_len)).

use crate::format::node::{Node, SLOTS, common_prefix_len, shortest_separator};
use std::ops::RangeInclusive;

/// From this many inserts side by side on, a split follows them; or if half of what the node holds
/// came so.
const RUN_MIN: usize = 8;
/// The room over this is left free for rows that grow, and for the first inserts that come.
const RESERVE: usize = 16;

/// How much of `room` bytes `count` cells that take `cells` bytes may fill when they are left
/// behind. A reserve that is smaller than a cell would be of no use.
pub(crate) fn fill_limit(room: usize, cells: usize, count: usize) -> usize {
    if cells > count * (room / RESERVE) { room } else { room - room / RESERVE }
}

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
    if let Some(split) = position.err().and_then(|at| split_beside(node, key, at)) {
        return Some(split);
    }
    let separator_len = |at: usize| {
        let (left, right) = (node.suffix(at - 1), node.suffix(at));
        shortest_separator(left, right).len()
    };
    let at = choose(node, position.unwrap_or_else(|at| at), 1..=count - 1, separator_len);
    let separator =
        [node.prefix(), shortest_separator(node.suffix(at - 1), node.suffix(at))].concat();
    debug_assert!(
        node.key(at - 1) < separator && separator <= node.key(at),
        "the separator lies between the halves"
    );
    Some(LeafSplit { at, separator })
}

/// The split that leaves all cells of a leaf together, when a run of inserts has reached either end
/// of it.
fn split_beside(node: &Node<'_>, key: &[u8], position: usize) -> Option<LeafSplit> {
    let count = node.count();
    let (at, separator) = match run_at(node, position)? {
        Run::Up if position == count => {
            (count, shortest_separator(&node.key(count - 1), key).to_vec())
        }
        Run::Down if position == 0 => (0, shortest_separator(key, &node.key(0)).to_vec()),
        _ => return None,
    };
    let (lower, upper) = match at {
        0 => (&separator[..], node.upper_fence()),
        _ => (node.lower_fence(), Some(&separator[..])),
    };
    let prefix_len = upper.map_or(0, |upper| common_prefix_len(lower, upper));
    let shrink_by = prefix_len.saturating_sub(node.prefix_len());
    let cells = node.used_bytes() - count * shrink_by;
    let fences = lower.len() + upper.map_or(0, <[u8]>::len);
    let room = (node.page().len() - SLOTS).checked_sub(fences)?;
    (cells <= fill_limit(room, cells, count)).then_some(LeafSplit { at, separator })
}

/// Where to split an inner node that a separator `key` does not fit into: the cell whose key moves
/// up to the parent.
pub(crate) fn split_inner(node: &Node<'_>, key: &[u8]) -> Option<usize> {
    let count = node.count();
    let position = node.find(key).unwrap_or_else(|at| at);
    match count {
        0 => None,
        1 | 2 => Some(count - 1),
        _ => Some(choose(node, position, 1..=count - 2, |at| node.suffix(at).len())),
    }
}

/// A run of inserts side by side.
enum Run {
    Up,
    Down,
}

/// The run that an insert at `position` would go on with.
fn run_at(node: &Node<'_>, position: usize) -> Option<Run> {
    let (slot, run) = node.insert_run();
    let is_run = usize::from(run.unsigned_abs()) >= RUN_MIN.min((node.count() / 2).max(2) - 1);
    match run {
        1.. if is_run && position == slot + 1 => Some(Run::Up),
        ..=-1 if is_run && position == slot => Some(Run::Down),
        _ => None,
    }
}

/// The best place to cut within `places`: at the run of inserts that reaches `position`, or near
/// the middle.
fn choose(
    node: &Node<'_>,
    position: usize,
    places: RangeInclusive<usize>,
    separator_len: impl Fn(usize) -> usize,
) -> usize {
    let (first, last) = (*places.start(), *places.end());
    let count = node.count();
    let total: usize = (0..count).map(|index| node.cell_size(index)).sum();
    let room = total + node.free_bytes();
    let run = run_at(node, position);
    if matches!(run, Some(Run::Up)) {
        if position < count {
            return position.clamp(first, last);
        }
        // The left half gets an upper fence, perhaps its first, and with it a longer prefix: its
        // cells shrink.
        let longest = common_prefix_len(node.lower_fence(), &node.key(count - 1));
        let shrink_by = longest.saturating_sub(node.prefix_len());
        return last_cut_below(node, room - room / RESERVE, shrink_by).clamp(first, last);
    }
    if matches!(run, Some(Run::Down)) {
        if position > 0 {
            return position.clamp(first, last);
        }
        let cut = last_cut_below(node, total.saturating_sub(room - room / RESERVE), 0);
        return (cut + 1).clamp(first, last);
    }
    // The shortest separator with 2/5 to 3/5 of the bytes on either side; of equals the nearest to
    // the middle.
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
