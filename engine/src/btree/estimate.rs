//! What the tree can say without reading all of itself: entries in a range, its size, and which
//! leaves come next.
//!
//! # Entries between two keys
//! Both keys' paths are read from the root down. Where they part, the children strictly between
//! them are counted; each level further down turns that number into children of the next by the
//! average width of a few nodes there, and adds what lies to the right of the lower path and to the
//! left of the upper one. Ranges over few leaves are counted exactly. Where leaves of one part of
//! the tree hold many more entries than those of another, the estimate is far off: `count_range`
//! counts.
//!
//! # Size
//! Leaves are sampled by random descents. One that had `w1`, `w2`, … children to choose from stands
//! for `w1 · w2 · …` leaves: the mean of that over the samples estimates the number of leaves
//! without bias, whatever the shape of the tree.

use super::Tree;
use super::descent::{Backoff, Coupled, Shared, Standing, Stop};
use crate::error::Result;
use crate::format::node::{self, Node, Seek};
use std::ops::Bound;
use tidepool_pool::{Access, OptimisticGuard};

/// Nodes of a level between the two paths that are looked at rather than estimated.
const COUNTED_NODES_MAX: u64 = 8;
/// Leaves sampled for statistics.
const SAMPLED_LEAVES: usize = 32;

/// Estimated size of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeStatistics {
    /// Levels, leaves included; exact.
    pub depth: usize,
    /// Leaves; exact up to two levels.
    pub leaf_pages: u64,
    pub entries: u64,
    /// Bytes that entries and their slots take in the leaves.
    pub entry_bytes: u64,
}

/// A node on the way to a key.
struct Place {
    no: u32,
    /// The child taken; in a leaf, the position among the entries.
    index: u64,
    /// Children; in a leaf, entries.
    width: u64,
    /// Where the node ends: the next of its level begins there.
    upper_fence: Option<Vec<u8>>,
}

/// The way to a key, root first.
type Path = Vec<Place>;

impl Tree {
    /// About how many entries lie between two keys. Exact for ranges within a few leaves, while
    /// no other thread changes them.
    pub fn estimate_range(&self, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> Result<u64> {
        let (lo_seek, lo_after) = match lo {
            Bound::Unbounded => (Seek::First, false),
            Bound::Included(key) => (Seek::Key(key), false),
            Bound::Excluded(key) => (Seek::Key(key), true),
        };
        let (hi_seek, hi_after) = match hi {
            Bound::Unbounded => (Seek::Last, true),
            Bound::Included(key) => (Seek::Key(key), true),
            Bound::Excluded(key) => (Seek::Key(key), false),
        };
        let low = self.path(lo_seek, lo_after)?;
        let high = self.path(hi_seek, hi_after)?;
        self.entries_between(&low, &high)
    }

    /// How many entries there are from `lo` up to `hi`, without that, but at most `max`. Looks at
    /// each leaf between them.
    pub fn count_range(&self, lo: &[u8], hi: &[u8], max: u64) -> Result<u64> {
        let mut from = lo.to_vec();
        let mut count = 0;
        loop {
            let leaf = self.leaf_shared(Seek::Key(&from), Access::Normal)?;
            let place = |key| leaf.find(key).unwrap_or_else(|slot| slot);
            count += place(hi).saturating_sub(place(&from)) as u64;
            match leaf.upper_fence() {
                Some(fence) if fence < hi && count < max => {
                    from.clear();
                    from.extend_from_slice(fence);
                }
                _ => return Ok(count.min(max)),
            }
        }
    }

    fn entries_between(&self, low: &Path, high: &Path) -> Result<u64> {
        // Nodes strictly between the paths at the level looked at; none while the paths run
        // together.
        let mut between: Option<u64> = None;
        let levels = low.len().min(high.len());
        for (depth, (l, h)) in low.iter().zip(high).enumerate() {
            let level = levels - 1 - depth;
            between = match between {
                None if l.no == h.no && level == 0 => return Ok(h.index.saturating_sub(l.index)),
                None if l.no == h.no && l.index == h.index => None,
                None if l.no == h.no => match h.index.checked_sub(l.index + 1) {
                    Some(children) => Some(children),
                    None => return Ok(0),
                },
                // The tree changed between the two descents.
                None => return Ok(0),
                Some(nodes) => {
                    let edges = l.width.saturating_sub(l.index) + h.index;
                    let mean_width = (l.width + h.width) as f64 / 2.0;
                    let inside =
                        self.children_of(nodes, l.upper_fence.clone(), level, mean_width)?;
                    // The child that the lower path takes is not strictly between.
                    Some(inside + edges.saturating_sub(u64::from(level > 0)))
                }
            };
        }
        Ok(between.unwrap_or(0))
    }

    /// Children (in leaves: entries) of `nodes` nodes at `level` from key `from` on; `width` is a
    /// first guess of how many each has.
    fn children_of(
        &self,
        nodes: u64,
        mut from: Option<Vec<u8>>,
        level: usize,
        width: f64,
    ) -> Result<u64> {
        let (mut counted, mut children) = (0, 0);
        while counted < nodes.min(COUNTED_NODES_MAX)
            && let Some(key) = from
            && let Some(page) = self.descend::<Shared>(Seek::Key(&key), level, Access::Normal)?
        {
            let node = Node::trusted(&page);
            counted += 1;
            children += node.count() as u64 + u64::from(level > 0);
            from = node.upper_fence().map(<[u8]>::to_vec);
        }
        if counted >= nodes {
            return Ok(children);
        }
        let mean = (children as f64 + 2.0 * width) / (counted as f64 + 2.0);
        Ok(children + (mean * (nodes - counted) as f64).round() as u64)
    }

    fn path(&self, seek: Seek<'_>, after: bool) -> Result<Path> {
        let mut backoff = Backoff::default();
        loop {
            let outcome = if backoff.is_exhausted() {
                self.try_path::<Coupled<'_>>(seek, after)
            } else {
                self.try_path::<OptimisticGuard<'_>>(seek, after)
            };
            match outcome {
                Ok(path) => return Ok(path),
                Err(Stop::Retry | Stop::TooLow) => backoff.wait(),
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    }

    fn try_path<'t, S: Standing<'t>>(&'t self, seek: Seek<'_>, after: bool) -> Result<Path, Stop> {
        let (pool, space) = (self.env.pool(), &*self.space);
        let mut places = Vec::with_capacity(4);
        let mut no = self.root;
        let mut page = S::on(pool, space, no, Access::Normal)?;
        loop {
            let level = self.read(&page, no, |page| page.u16_at(node::LEVEL))?;
            if level == 0 {
                let leaf = page.into_shared()?;
                self.check_node(&leaf, no, 0)?;
                let leaf = Node::trusted(&leaf);
                let index = match seek {
                    Seek::First => 0,
                    Seek::Last => leaf.count(),
                    Seek::Key(key) | Seek::Before(key) => match leaf.find(key) {
                        Ok(slot) => slot + usize::from(after),
                        Err(slot) => slot,
                    },
                };
                places.push(Place {
                    no,
                    index: index as u64,
                    width: leaf.count() as u64,
                    upper_fence: leaf.upper_fence().map(<[u8]>::to_vec),
                });
                return Ok(places);
            }
            let (place, child_no) = self.read(&page, no, |page| {
                let index = node::child_index(page, seek)?;
                let width = node::count(page)? as u64 + 1;
                let upper_fence = node::copy_upper_fence(page)?;
                let place = Place { no, index: index as u64, width, upper_fence };
                Ok((place, node::child(page, index)?))
            })?;
            page.validate()?;
            places.push(place);
            page = self.step_down(page, child_no, usize::from(level) - 1, Access::Normal)?;
            no = child_no;
        }
    }

    /// Estimated size of the tree, from a few dozen of its leaves.
    pub fn statistics(&self) -> Result<TreeStatistics> {
        let depth = self.depth()?;
        let mut samples = 0.0;
        let (mut pages, mut entries, mut bytes) = (0.0, 0.0, 0.0);
        self.sample_nodes(0, SAMPLED_LEAVES, &mut |leaf, stands_for| {
            samples += 1.0;
            pages += stands_for;
            entries += stands_for * leaf.count() as f64;
            bytes += stands_for * leaf.used_bytes() as f64;
            Ok(())
        })?;
        let mean = |sum: f64| (sum / samples).round() as u64;
        Ok(TreeStatistics {
            depth,
            leaf_pages: mean(pages).max(1),
            entries: mean(entries),
            entry_bytes: mean(bytes),
        })
    }

    /// Shows `count` nodes of a level, chosen at random (the same ones for the same tree), to
    /// `visitor`, each with the number of nodes it stands for. The root is shown once; a tree that
    /// is lower shows nothing. The visitor runs under the node's latch.
    pub fn sample_nodes(
        &self,
        level: usize,
        count: usize,
        visitor: &mut dyn FnMut(Node<'_>, f64) -> Result<()>,
    ) -> Result<()> {
        let mut random = u64::from(self.id) << 32 | u64::from(self.root);
        let mut shown = 0;
        let mut backoff = Backoff::default();
        while shown < count {
            // Stratified at the root: the samples are spread over its children.
            let stratum = (shown as f64 + 0.5) / count as f64;
            let outcome = if backoff.is_exhausted() {
                self.sample_node::<Coupled<'_>>(level, stratum, &mut random, visitor)
            } else {
                self.sample_node::<OptimisticGuard<'_>>(level, stratum, &mut random, visitor)
            };
            match outcome {
                Ok(true) => return Ok(()),
                Ok(false) => shown += 1,
                Err(Stop::TooLow) => return Ok(()),
                Err(Stop::Retry) => backoff.wait(),
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Shows one node; says whether it is the only one.
    fn sample_node<'t, S: Standing<'t>>(
        &'t self,
        target: usize,
        stratum: f64,
        random: &mut u64,
        visitor: &mut dyn FnMut(Node<'_>, f64) -> Result<()>,
    ) -> Result<bool, Stop> {
        let (pool, space) = (self.env.pool(), &*self.space);
        let mut stands_for = 1.0;
        let mut no = self.root;
        let mut page = S::on(pool, space, no, Access::Normal)?;
        loop {
            let level = usize::from(self.read(&page, no, |page| page.u16_at(node::LEVEL))?);
            if level < target {
                page.validate()?;
                return Err(Stop::TooLow);
            }
            if level == target {
                let is_only = no == self.root;
                let node = page.into_shared()?;
                self.check_node(&node, no, target)?;
                visitor(Node::trusted(&node), stands_for)?;
                return Ok(is_only);
            }
            let choice = if no == self.root { stratum } else { next_random(random) };
            let (width, child_no) = self.read(&page, no, |page| {
                let width = node::count(page)? + 1;
                Ok((width, node::child(page, (choice * width as f64) as usize)?))
            })?;
            page.validate()?;
            stands_for *= width as f64;
            page = self.step_down(page, child_no, level - 1, Access::Scan)?;
            no = child_no;
        }
    }

    /// Asks the pool to read, in the background, up to `pages` leaves that come after the one
    /// `seek` leads to (before it, if `backward`); returns how many there are, less than `pages`
    /// only at the tree's end. `access` is how they will be read. A scan calls it every few leaves.
    pub fn read_ahead(
        &self,
        seek: Seek<'_>,
        backward: bool,
        pages: usize,
        access: Access,
    ) -> Result<usize> {
        let mut numbers = Vec::with_capacity(pages);
        let mut fence: Option<Vec<u8>> = None;
        loop {
            // Past the first parent, all its children count; before, those beyond the scan's own
            // leaf.
            let at = match &fence {
                None => seek,
                Some(key) if backward => Seek::Before(key),
                Some(key) => Seek::Key(key),
            };
            let Some(page) = self.descend::<Shared>(at, 1, Access::Normal)? else { break };
            let parent = Node::trusted(&page);
            let missing = pages - numbers.len();
            let index = node::child_index::<[u8]>(&page, at);
            let no = page.page_id().no;
            let index = index.map_err(|_| self.corrupt(no, "an offset points outside the page"))?;
            let others = usize::from(fence.is_none());
            if backward {
                let last = index + 1 - others;
                numbers.extend((0..last).rev().take(missing).filter_map(|i| parent.child(i)));
                fence = Some(parent.lower_fence().to_vec()).filter(|key| !key.is_empty());
            } else {
                let first = index + others;
                let children = first..=parent.count();
                numbers.extend(children.take(missing).filter_map(|i| parent.child(i)));
                fence = parent.upper_fence().map(<[u8]>::to_vec);
            }
            if numbers.len() >= pages || fence.is_none() {
                break;
            }
        }
        if !numbers.is_empty() {
            self.env.pool().prefetch(&self.space, &numbers, access);
        }
        Ok(numbers.len())
    }

    /// Asks the pool to read, in the background, up to `leaves` leaves: those of the first of
    /// `keys`, which ascend. Returns how many keys that is; 0 if the root is a leaf, or there are
    /// no keys.
    pub fn prefetch_leaves<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        leaves: usize,
    ) -> Result<usize> {
        let mut keys = keys.peekable();
        let mut numbers: Vec<u32> = Vec::with_capacity(leaves);
        let mut covered = 0;
        'parents: while let Some(key) = keys.peek() {
            let Some(page) = self.descend::<Shared>(Seek::Key(key), 1, Access::Normal)? else {
                break;
            };
            let parent = Node::trusted(&page);
            let is_inside = |key: &[u8]| parent.upper_fence().is_none_or(|fence| key < fence);
            while let Some(key) = keys.next_if(|key| is_inside(key)) {
                let index = node::child_index::<[u8]>(&page, Seek::Key(key));
                let child = index.ok().and_then(|index| parent.child(index));
                let child = child.ok_or_else(|| {
                    self.corrupt(page.page_id().no, "an offset points outside the page")
                })?;
                if numbers.last() != Some(&child) {
                    if numbers.len() == leaves {
                        break 'parents;
                    }
                    numbers.push(child);
                }
                covered += 1;
            }
        }
        if !numbers.is_empty() {
            self.env.pool().prefetch(&self.space, &numbers, Access::Normal);
        }
        Ok(covered)
    }
}

/// A number from 0 up to 1 (splitmix64).
fn next_random(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
