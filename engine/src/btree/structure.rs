//! Changes of a tree's structure: splits, merges, a root that grows and shrinks, and the end of a tree.
//!
//! Each is a mini-transaction of its own and leaves a valid tree, so none is ever undone: a transaction that rolls back takes
//! its entries out again, and leaves the room it made.
//!
//! | change | latched exclusively, in this order |
//! |---|---|
//! | split of a node | parent, node, space header, bitmap, new right node |
//! | root grows | root, space header, bitmap, new child |
//! | merge of two neighbours | parent, left, right, space header, bitmap |
//! | root shrinks | root, its only child, space header, bitmap |
//!
//! A split needs room for the separator in the parent. Where there is none, everything is let go, the parent is split first
//! (from the top, by the same way down), and the split begins again: latches are only ever taken downward.
//!
//! A page that leaves the tree is formatted as free in the same mini-transaction: the change of its bytes is what tells a reader
//! that still stands on it, without a latch, to start over.

use super::Tree;
use super::descent::{Exclusive, Shared};
use super::node::{self, Node, Seek};
use super::reshape::{self, NodeInit};
use super::split::{split_inner, split_leaf};
use crate::error::{Error, Result};
use crate::mtr::{Mtr, PageHandle};
use crate::page_op::{OpError, PageOp};
use crate::space::Allocation;
use std::cmp::Ordering;
use tidepool_pool::{Access, ExclusiveGuard, PageType, Space};

/// A leaf becomes a candidate for a merge when its cells take less than this part of a page…
const UNDERFULL_DIVISOR: usize = 4;
/// …and two nodes are merged if together they leave this part of a page free, so that the next inserts don't split again.
const MERGED_FREE_DIVISOR: usize = 4;

impl Node<'_> {
    /// Whether so little is left in the node that merging it with a neighbour is worth a try.
    pub fn is_underfull(&self) -> bool {
        self.used_bytes() < self.page().len() / UNDERFULL_DIVISOR
    }
}

/// A latched node on its way into a mini-transaction.
struct TreeNode<'t> {
    no: u32,
    guard: ExclusiveGuard<'t>,
}

impl TreeNode<'_> {
    fn node(&self) -> Node<'_> {
        Node::trusted(&self.guard)
    }
}

/// What one attempt at a split came to.
enum Split {
    /// The cell fits now, or a split has brought it closer to fitting.
    Done,
    /// The tree changed on the way.
    Again,
    /// The parent has no room for this separator.
    ParentFull(Vec<u8>),
}

/// What one attempt at a merge came to.
enum Merge {
    /// Nothing to do.
    Nothing,
    /// Two nodes became one, or the root swallowed its only child; the parent may be underfull now.
    Done { parent_underfull: bool },
    /// The parent has no other child: it must be merged before its child can be.
    Up,
}

impl Tree {
    /// Splits what must be split for an entry with this key and payload length. Call it with no latch held and no
    /// mini-transaction open, when [`LeafMut::fits`](super::LeafMut::fits) or `fits_replaced` said no; then look again, for
    /// others may have used the room, or one split may not have been enough.
    pub fn make_room(&self, key: &[u8], payload_len: usize) -> Result<()> {
        self.check_lengths(key.len(), payload_len)?;
        self.split(0, key, payload_len)
    }

    fn split(&self, level: usize, key: &[u8], payload_len: usize) -> Result<()> {
        loop {
            match self.try_split(level, key, payload_len)? {
                Split::Done => return Ok(()),
                Split::Again => {}
                Split::ParentFull(separator) => {
                    self.split(level + 1, &separator, size_of::<u32>())?;
                }
            }
        }
    }

    fn try_split(&self, level: usize, key: &[u8], payload_len: usize) -> Result<Split> {
        let mut mtr = Mtr::begin(&self.env)?;
        let Some(parent) = self.descend::<Exclusive>(Seek::Key(key), level + 1, Access::Normal)?
        else {
            return self.grow_root(mtr, level, key, payload_len);
        };
        let parent = self.own(parent);
        let index =
            self.sound(parent.no, node::child_index::<[u8]>(&parent.guard, Seek::Key(key)))?;
        let child = self.own_child(&parent, index, level)?;
        let node = child.node();
        if node_has_room(&node, key, payload_len) {
            return Ok(Split::Done);
        }
        let (at, separator) = if level == 0 {
            let split = split_leaf(&node, key);
            split.map(|split| (split.at, split.separator))
        } else {
            split_inner(&node, key).map(|at| (at, node.key(at)))
        }
        .ok_or_else(|| self.corrupt(child.no, "a node with nothing to split is full"))?;
        if !parent.node().fits(separator.len(), size_of::<u32>()) {
            return Ok(Split::ParentFull(separator));
        }
        let (right_init, right_cells) = reshape::right_half(&node, at, &separator)
            .map_err(|why| self.corrupt(child.no, why))?;
        let mut allocation = Allocation::reserve(&mut mtr, &self.space, child.no, 1)?;

        let (left, parent_prefix) = (mtr.adopt(child.guard), parent.node().prefix_len());
        let parent = mtr.adopt(parent.guard);
        let (right_no, right) = allocation.take(&mut mtr);
        mtr.apply(right, &right_init.op());
        mtr.apply(right, &right_cells.op());
        mtr.apply(left, &PageOp::SetUpper { keep: at as u16, upper: Some(&separator) });
        insert_child(&mut mtr, parent, index, &separator[parent_prefix..], right_no);
        mtr.commit();
        Ok(Split::Done)
    }

    /// The root is the node to split: its content moves into a new child, which can then be split as any other.
    fn grow_root<'t>(
        &'t self,
        mtr: Mtr<'t>,
        level: usize,
        key: &[u8],
        payload_len: usize,
    ) -> Result<Split> {
        let root = self.own(self.env.pool().exclusive(&self.space, self.root, Access::Normal)?);
        let node = root.node();
        match node.level().cmp(&level) {
            Ordering::Greater => return Ok(Split::Again),
            // The tree shrank below this level meanwhile: there is nothing to split here. Whoever wanted
            // room a level down looks again.
            Ordering::Less => return Ok(Split::Done),
            Ordering::Equal => {}
        }
        self.check_node(&root.guard, root.no, level)?;
        if node_has_room(&node, key, payload_len) {
            return Ok(Split::Done);
        }
        self.move_root_down(mtr, root)?;
        Ok(Split::Again)
    }

    /// Moves the content of the latched root into a new child.
    fn move_root_down<'t>(&'t self, mut mtr: Mtr<'t>, root: TreeNode<'t>) -> Result<()> {
        let (child_init, child_cells) =
            reshape::whole(&root.node()).map_err(|why| self.corrupt(root.no, why))?;
        let mut allocation = Allocation::reserve(&mut mtr, &self.space, self.root, 1)?;
        let root = mtr.adopt(root.guard);
        let (child_no, child) = allocation.take(&mut mtr);
        mtr.apply(child, &child_init.op());
        if !child_cells.is_empty() {
            mtr.apply(child, &child_cells.op());
        }
        let init =
            NodeInit { level: child_init.level + 1, first_child: child_no, ..child_init.clone() };
        mtr.apply(root, &init.op());
        mtr.commit();
        Ok(())
    }

    /// Gives a tree that is nothing but its root, a leaf, another level; for [`Loader`](super::Loader), which is alone with the tree.
    pub(super) fn push_root_down<'t>(&'t self, mtr: Mtr<'t>) -> Result<()> {
        let root = self.own(self.env.pool().exclusive(&self.space, self.root, Access::Normal)?);
        self.check_node(&root.guard, root.no, 0)?;
        self.move_root_down(mtr, root)
    }

    /// Splits what must be split for a separator above the leaves.
    pub(super) fn make_room_above(&self, separator: &[u8]) -> Result<()> {
        self.split(1, separator, size_of::<u32>())
    }

    /// Merges the leaf for `key` with a neighbour if it is underfull and both fit one page; then, where that left the parent
    /// underfull, the parent, and so on up. Says whether anything was merged. Call it with no latch held and no
    /// mini-transaction open, after removals.
    pub fn try_merge(&self, key: &[u8]) -> Result<bool> {
        let mut merged = false;
        let mut level = 0;
        loop {
            match self.merge_at(level, key)? {
                Merge::Nothing => return Ok(merged),
                Merge::Up => level += 1,
                Merge::Done { parent_underfull } => {
                    merged = true;
                    if !parent_underfull {
                        return Ok(true);
                    }
                    level += 1;
                }
            }
        }
    }

    /// The same for who has done what it came for, and does not depend on it: if it fails, the leaf stays as small as it is. A page that
    /// cannot be read will be told of by who needs it.
    pub fn merge_if_possible(&self, key: &[u8]) {
        if let Err(error) = self.try_merge(key) {
            tracing::debug!(%error, tree = self.id, "a leaf cannot be merged");
        }
    }

    fn merge_at(&self, level: usize, key: &[u8]) -> Result<Merge> {
        let Some(with_left) = self.merge_candidate(level, key)? else { return Ok(Merge::Nothing) };
        let mtr = Mtr::begin(&self.env)?;
        let Some(parent) = self.descend::<Exclusive>(Seek::Key(key), level + 1, Access::Normal)?
        else {
            // The root has no neighbour, but it may have a single child.
            return if level > 0 { self.shrink_root(mtr, level) } else { Ok(Merge::Nothing) };
        };
        let parent = self.own(parent);
        let count = parent.node().count();
        if count == 0 {
            let is_root = parent.no == self.root;
            drop(parent);
            return if is_root { self.shrink_root(mtr, level + 1) } else { Ok(Merge::Up) };
        }
        let index =
            self.sound(parent.no, node::child_index::<[u8]>(&parent.guard, Seek::Key(key)))?;
        let left_index = index.saturating_sub(usize::from(with_left)).min(count - 1);
        let left = self.own_child(&parent, left_index, level)?;
        let right = self.own_child(&parent, left_index + 1, level)?;
        self.merge_pair(mtr, parent, left_index, left, right)
    }

    /// A look beforehand, with shared latches: most attempts at a merge end here, without getting in anyone's way, and the
    /// pages that the others will latch are in the pool then. `None`: a merge is impossible; else whether it looks possible
    /// with the left neighbour (or with the right one, or not clear).
    fn merge_candidate(&self, level: usize, key: &[u8]) -> Result<Option<bool>> {
        let Some(parent) = self.descend::<Shared>(Seek::Key(key), level + 1, Access::Normal)?
        else {
            return Ok((level > 0).then_some(false));
        };
        let no = parent.page_id().no;
        let index = self.sound(no, node::child_index::<[u8]>(&parent, Seek::Key(key)))?;
        let parent_node = Node::trusted(&parent);
        if parent_node.count() == 0 {
            return Ok(Some(false));
        }
        let child = |index: usize| parent_node.child(index);
        let (left, own, right) =
            (index.checked_sub(1).and_then(child), child(index), child(index + 1));
        drop(parent);
        let pool = self.env.pool();
        for (left, right, with_left) in [(own, right, false), (left, own, true)] {
            let (Some(left_no), Some(right_no)) = (left, right) else { continue };
            drop(pool.shared(&self.space, right_no, Access::Normal)?);
            let left = pool.shared(&self.space, left_no, Access::Normal)?;
            // No parent is latched, so either may be something else by now: never wait for one while holding the other.
            let right = pool.try_shared(&self.space, right_no, Access::Normal);
            let Some(right) = right
                .filter(|right| self.check_node(right, right_no, level).is_ok())
                .filter(|_| self.check_node(&left, left_no, level).is_ok())
            else {
                return Ok(Some(with_left));
            };
            let (left, right) = (Node::trusted(&left), Node::trusted(&right));
            if left.upper_fence() != Some(right.lower_fence()) {
                return Ok(Some(with_left));
            }
            let is_possible = reshape::merged_size(&left, &right) <= merge_limit(&left, &right);
            if is_possible && is_merge_useful(&left, &right) {
                return Ok(Some(with_left));
            }
        }
        Ok(None)
    }

    fn merge_pair<'t>(
        &'t self,
        mut mtr: Mtr<'t>,
        parent: TreeNode<'t>,
        left_index: usize,
        left: TreeNode<'t>,
        right: TreeNode<'t>,
    ) -> Result<Merge> {
        let (left_node, right_node) = (left.node(), right.node());
        if !is_merge_useful(&left_node, &right_node) {
            return Ok(Merge::Nothing);
        }
        let limit = merge_limit(&left_node, &right_node);
        let plan = reshape::merge(&left_node, &right_node, limit);
        let Some(plan) = plan.map_err(|why| self.corrupt(right.no, why))? else {
            return Ok(Merge::Nothing);
        };
        let keep = left_node.count() as u16;
        let right_no = right.no;
        let mut allocation = Allocation::holding(&mut mtr, &self.space, &[right_no])?;

        let left = mtr.adopt(left.guard);
        let right = mtr.adopt(right.guard);
        let parent = mtr.adopt(parent.guard);
        mtr.apply(left, &PageOp::SetUpper { keep, upper: plan.upper.as_deref() });
        if !plan.cells.is_empty() {
            mtr.apply(left, &plan.cells.op());
        }
        mtr.apply(parent, &PageOp::RemoveCell { slot: left_index as u16 });
        discard(&mut mtr, &mut allocation, right, right_no);
        let parent_underfull = Node::trusted(mtr.page(parent)).is_underfull();
        mtr.commit();
        Ok(Merge::Done { parent_underfull })
    }

    /// Lets a root with a single child take that child's content, and its level.
    fn shrink_root<'t>(&'t self, mut mtr: Mtr<'t>, level: usize) -> Result<Merge> {
        let root = self.own(self.env.pool().exclusive(&self.space, self.root, Access::Normal)?);
        let node = root.node();
        if node.level() != level || level == 0 || node.count() > 0 {
            return Ok(Merge::Nothing);
        }
        let child = self.own_child(&root, 0, level - 1)?;
        let (init, cells) =
            reshape::whole(&child.node()).map_err(|why| self.corrupt(child.no, why))?;
        let child_no = child.no;
        let mut allocation = Allocation::holding(&mut mtr, &self.space, &[child_no])?;
        let child = mtr.adopt(child.guard);
        let root = mtr.adopt(root.guard);
        mtr.apply(root, &init.op());
        if !cells.is_empty() {
            mtr.apply(root, &cells.op());
        }
        discard(&mut mtr, &mut allocation, child, child_no);
        mtr.commit();
        // Perhaps that child, too, had a single one.
        if level > 1 {
            self.shrink_root(Mtr::begin(&self.env)?, level - 1)?;
        }
        Ok(Merge::Done { parent_underfull: false })
    }

    /// Frees the tree's pages, the root too; nobody may use the tree any more. Works in small steps, each of which leaves
    /// a tree that this function can go on with, so that after a crash it is simply called again. Says how many pages it freed.
    pub fn free_all(&self) -> Result<u64> {
        let mut freed = 0;
        loop {
            let step = self.free_step(None)?;
            freed += step.0;
            if step.1 {
                return Ok(freed);
            }
        }
    }

    /// Frees the rightmost lowest pages; says how many, and whether the root was among them. With the root, eight bytes of the
    /// space's header are zeroed, at the offset `note`: what said that there is a tree to be freed.
    pub fn free_step(&self, note: Option<usize>) -> Result<(u64, bool)> {
        /// Pages freed at once: enough to spread the cost of a mini-transaction, few enough to keep it small.
        const BATCH: usize = 16;
        let mut mtr = Mtr::begin(&self.env)?;
        let mut parent: Option<TreeNode<'_>> = None;
        let mut node =
            self.own(self.env.pool().exclusive(&self.space, self.root, Access::Normal)?);
        let mut level = node.node().level();
        // Down the right edge, to the lowest inner node that still has children.
        while level > 1 && has_children(&node.node()) {
            let child = self.own_child(&node, node.node().count(), level - 1)?;
            parent = Some(std::mem::replace(&mut node, child));
            level -= 1;
        }
        if !has_children(&node.node()) {
            let mut allocation = Allocation::holding(&mut mtr, &self.space, &[node.no])?;
            let no = node.no;
            let page = mtr.adopt(node.guard);
            if let Some(parent) = parent {
                let parent = mtr.adopt(parent.guard);
                drop_last_child(&mut mtr, parent);
            }
            discard(&mut mtr, &mut allocation, page, no);
            if let Some(note) = note.filter(|_| no == self.root) {
                allocation.clear_in_header(&mut mtr, note);
            }
            mtr.commit();
            return Ok((1, no == self.root));
        }
        let total = node.node().count() + 1;
        let first = total.saturating_sub(BATCH);
        let mut numbers = Vec::with_capacity(BATCH);
        for index in first..total {
            let no = node.node().child(index);
            numbers.push(no.ok_or_else(|| self.corrupt(node.no, "an inner node lacks a child"))?);
        }
        let mut allocation = Allocation::holding(&mut mtr, &self.space, &numbers)?;
        let page = mtr.adopt(node.guard);
        for &no in numbers.iter().rev() {
            drop_last_child(&mut mtr, page);
            // Nobody is on the leaf: it need not be touched.
            allocation.free(&mut mtr, no);
        }
        mtr.commit();
        Ok((numbers.len() as u64, false))
    }

    pub(super) fn check_lengths(&self, key_len: usize, payload_len: usize) -> Result<()> {
        let page_size = self.env.page_size();
        let max_key = node::max_key_len(page_size);
        if key_len > max_key {
            return Err(Error::KeyTooLong { len: key_len, max: max_key });
        }
        let max_payload = node::max_payload_len(page_size, key_len);
        if payload_len > max_payload {
            return Err(Error::ValueTooLong { len: payload_len as u64, max: max_payload as u64 });
        }
        Ok(())
    }

    fn own<'t>(&'t self, guard: ExclusiveGuard<'t>) -> TreeNode<'t> {
        TreeNode { no: guard.page_id().no, guard }
    }

    fn own_child<'t>(
        &'t self,
        parent: &TreeNode<'t>,
        index: usize,
        level: usize,
    ) -> Result<TreeNode<'t>> {
        let no = self.sound(parent.no, node::child::<[u8]>(&parent.guard, index))?;
        let guard = self.env.pool().exclusive(&self.space, no, Access::Normal)?;
        self.check_node(&guard, no, level)?;
        Ok(TreeNode { no, guard })
    }

    /// What was read from a latched page is wrong only if the page is.
    fn sound<T>(&self, no: u32, read: Result<T, tidepool_pool::Retry>) -> Result<T> {
        read.map_err(|_| self.corrupt(no, OpError("an offset in the node points outside the page")))
    }
}

fn is_merge_useful(left: &Node<'_>, right: &Node<'_>) -> bool {
    left.is_underfull() || right.is_underfull()
}

/// Bytes of cells and slots that the outcome of a merge may have.
fn merge_limit(left: &Node<'_>, right: &Node<'_>) -> usize {
    let page_size = left.page().len();
    // A node without cells goes wherever it can; leaving it would not make the next split later.
    if left.count() == 0 || right.count() == 0 {
        page_size
    } else {
        page_size - page_size / MERGED_FREE_DIVISOR
    }
}

fn node_has_room(node: &Node<'_>, key: &[u8], payload_len: usize) -> bool {
    match node.find(key) {
        Ok(slot) => node.fits_replaced(slot, payload_len),
        Err(_) => node.fits(key.len(), payload_len),
    }
}

fn has_children(node: &Node<'_>) -> bool {
    node.level() > 0 && (node.count() > 0 || node.first_child() != 0)
}

/// Takes the last child's page number out of an inner node. Fences are left wrong: only [`Tree::free_all`] goes there again.
fn drop_last_child(mtr: &mut Mtr<'_>, page: PageHandle) {
    let count = Node::trusted(mtr.page(page)).count();
    if count > 0 {
        mtr.apply(page, &PageOp::RemoveCell { slot: count as u16 - 1 });
    } else {
        let offset = node::FIRST_CHILD as u32;
        mtr.apply(page, &PageOp::Write { offset, bytes: &0u32.to_le_bytes() });
    }
}

/// Makes page `no` the child to the right of the separator that takes slot `slot` of `parent`. `suffix` is the separator without the parent's
/// prefix.
pub(super) fn insert_child(
    mtr: &mut Mtr<'_>,
    parent: PageHandle,
    slot: usize,
    suffix: &[u8],
    no: u32,
) {
    let payload = &no.to_le_bytes();
    mtr.apply(parent, &PageOp::InsertCell { slot: slot as u16, suffix, payload });
}

/// Frees a page that leaves the tree, and changes its bytes for readers that stand on it.
fn discard(mtr: &mut Mtr<'_>, allocation: &mut Allocation, page: PageHandle, no: u32) {
    mtr.apply(page, &PageOp::Format { page_type: PageType::FREE, tree_id: 0 });
    allocation.free(mtr, no);
}

/// Makes page `no`, new, the empty root of a tree.
pub(super) fn create_root<'a>(mtr: &mut Mtr<'a>, space: &'a Space, tree_id: u32) -> Result<u32> {
    let mut allocation = Allocation::reserve(mtr, space, 0, 1)?;
    let (no, page) = allocation.take(mtr);
    mtr.apply(
        page,
        &PageOp::NodeInit { tree_id, level: 0, first_child: 0, lower: &[], upper: None },
    );
    Ok(no)
}

#[cfg(test)]
mod tests {
    use crate::btree::tests::{fixture, get, put, remove, verify};

    /// A thread finds the root full, lets go of it to split it first, and meanwhile others remove so much that there is no
    /// such level any more.
    #[test]
    fn a_split_of_a_level_that_is_gone_does_nothing() {
        let tree = fixture::tree(64, 4096);
        put(&tree, b"a", b"1").unwrap();
        tree.split(1, b"a", 4).unwrap();
        tree.split(3, b"a", 4).unwrap();
        assert_eq!(get(&tree, b"a").unwrap().as_deref(), Some(&b"1"[..]));
    }

    /// Two inner levels of which each has one child.
    #[test]
    fn a_chain_of_single_children_is_shrunk_whole() {
        let tree = fixture::tree(256, 4096);
        let mut model = crate::btree::tests::Model::new();
        let key = |n: u32| [vec![b'k'; 600], n.to_be_bytes().to_vec()].concat();
        for n in 0..200 {
            put(&tree, &key(n), b"p").unwrap();
            model.insert(key(n), b"p".to_vec());
        }
        assert!(tree.depth().unwrap() > 2);
        for n in 0..200 {
            assert!(remove(&tree, &key(n)).unwrap());
            model.remove(&key(n));
            if n % 50 == 0 {
                verify(&tree, &model);
            }
        }
        assert_eq!(tree.depth().unwrap(), 1);
    }
}
