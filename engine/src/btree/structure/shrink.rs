//! Merges, and a root that shrinks.

use super::{TreeNode, discard};
use crate::btree::Tree;
use crate::btree::descent::{Exclusive, Shared};
use crate::btree::reshape;
use crate::error::Result;
use crate::format::node::{self, Node, Seek};
use crate::mtr::Mtr;
use crate::page_op::PageOp;
use crate::space::Allocation;
use tidepool_pool::Access;

/// A leaf becomes a candidate for a merge when its cells take less than this part of a page…
const UNDERFULL_DIVISOR: usize = 4;
/// …and two nodes are merged if together they leave this part of a page free, so that the next
/// inserts don't split again.
const MERGED_FREE_DIVISOR: usize = 4;

impl Node<'_> {
    /// Whether so little is left in the node that merging it with a neighbour is worth a try.
    pub fn is_underfull(&self) -> bool {
        self.used_bytes() < self.page().len() / UNDERFULL_DIVISOR
    }
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
    /// Merges the leaf for `key` with a neighbour if it is underfull and both fit one page; then,
    /// where that left the parent underfull, the parent, and so on up. Says whether anything was
    /// merged. Call it with no latch held and no mini-transaction open, after removals.
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

    /// The same for a caller that does not depend on the merge: an error is logged for debugging
    /// only, and the leaf stays as small as it is. A page that cannot be read is reported when
    /// somebody needs it.
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

    /// A look beforehand, with shared latches: most attempts at a merge end here, without getting
    /// in anyone's way, and those that don't will find the pages that they latch exclusively in the
    /// pool. `None`: no merge is possible. Else whether to try with the left neighbour; if not,
    /// with the right one.
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
            // No parent is latched, so either may be something else by now: never wait for one
            // while holding the other.
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

#[cfg(test)]
mod tests {
    use crate::btree::tests::{Model, fixture, put, remove, verify};

    /// Two inner levels of which each has one child.
    #[test]
    fn a_chain_of_single_children_is_shrunk_whole() {
        let tree = fixture::tree(256, 4096);
        let mut model = Model::new();
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
