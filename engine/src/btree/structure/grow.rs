//! Splits, and a root that grows.

use super::{TreeNode, insert_child};
use crate::btree::Tree;
use crate::btree::descent::Exclusive;
use crate::btree::reshape::{self, NodeInit};
use crate::btree::split::{split_inner, split_leaf};
use crate::error::Result;
use crate::format::node::{self, Node, Seek};
use crate::mtr::Mtr;
use crate::page_op::PageOp;
use crate::space::Allocation;
use std::cmp::Ordering;
use tidepool_pool::Access;

/// What one attempt at a split came to.
enum Split {
    /// The cell fits now, or a split has brought it closer to fitting.
    Done,
    /// The tree changed on the way.
    Again,
    /// The parent has no room for this separator.
    ParentFull(Vec<u8>),
}

impl Tree {
    /// Splits what must be split for an entry with this key and payload length. Call it with no
    /// latch held and no mini-transaction open, when [`LeafMut::fits`](crate::btree::LeafMut::fits)
    /// or `fits_replaced` said no; then look again, for others may have used the room, or one split
    /// may not have been enough.
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

    /// The root is the node to split: its content moves into a new child, which can then be split
    /// as any other.
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
            // The tree shrank below this level meanwhile: there is nothing to split here. The
            // thread that wanted room a level down looks again.
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

    /// Gives a tree that is nothing but its root, a leaf, another level; for
    /// [`Loader`](crate::btree::Loader), which is alone with the tree.
    pub(in crate::btree) fn push_root_down<'t>(&'t self, mtr: Mtr<'t>) -> Result<()> {
        let root = self.own(self.env.pool().exclusive(&self.space, self.root, Access::Normal)?);
        self.check_node(&root.guard, root.no, 0)?;
        self.move_root_down(mtr, root)
    }

    /// Splits what must be split for a separator above the leaves.
    pub(in crate::btree) fn make_room_above(&self, separator: &[u8]) -> Result<()> {
        self.split(1, separator, size_of::<u32>())
    }
}

fn node_has_room(node: &Node<'_>, key: &[u8], payload_len: usize) -> bool {
    match node.find(key) {
        Ok(slot) => node.fits_replaced(slot, payload_len),
        Err(_) => node.fits(key.len(), payload_len),
    }
}

#[cfg(test)]
mod tests {
    use crate::btree::tests::{fixture, get, put};

    /// A thread finds the root full, lets go of it to split it first, and meanwhile others remove
    /// until there is no such level any more.
    #[test]
    fn a_split_of_a_level_that_is_gone_does_nothing() {
        let tree = fixture::tree(64, 4096);
        put(&tree, b"a", b"1").unwrap();
        tree.split(1, b"a", 4).unwrap();
        tree.split(3, b"a", 4).unwrap();
        assert_eq!(get(&tree, b"a").unwrap().as_deref(), Some(&b"1"[..]));
    }
}
