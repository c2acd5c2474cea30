//! The end of a tree: its pages are freed from the right edge on, the root last.
//!
//! Each step is one mini-transaction and leaves a tree that the next step can go on with, be it
//! after a crash. In between the tree is no good for anything else: its inner nodes lack their last
//! children, and fences are wrong.

use super::{TreeNode, discard};
use crate::btree::Tree;
use crate::error::Result;
use crate::format::node::{self, Node};
use crate::mtr::{Mtr, PageHandle};
use crate::page_op::PageOp;
use crate::space::Allocation;
use tidepool_pool::page::{page_type, tree_id};
use tidepool_pool::{Access, PageType};

impl Tree {
    /// Frees the tree's pages, the root too; the tree may not be used any more. Works in small
    /// steps, each of which leaves a tree that this function can go on with, so that after a crash
    /// it is simply called again. Says how many pages it freed.
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

    /// Whether the page of the root still is a node of this tree. The pages of one that was freed
    /// may be anything by now.
    pub fn has_root(&self) -> Result<bool> {
        let page = self.env.pool().shared(&self.space, self.root, Access::Normal)?;
        let is_node = [PageType::TREE_LEAF, PageType::TREE_INNER].contains(&page_type(&page));
        Ok(is_node && tree_id(&page) == self.id)
    }

    /// Frees some pages at the right edge, lowest level first; says how many, and whether the root
    /// was among them. With the root goes the note of the tree in the space's header, if there is
    /// one: eight bytes at the offset `note` become 0.
    pub fn free_step(&self, note: Option<usize>) -> Result<(u64, bool)> {
        /// Pages freed at once: enough to spread the cost of a mini-transaction, few enough to keep
        /// it small.
        const BATCH: usize = 16;
        let mut mtr = Mtr::begin(&self.env)?;
        let mut parent: Option<TreeNode<'_>> = None;
        let root = self.env.pool().exclusive(&self.space, self.root, Access::Normal)?;
        let mut level = Node::new(&root).map_err(|why| self.corrupt(self.root, why))?.level();
        // Who asks for it goes by what was written down some time ago: another's page must not be
        // freed.
        self.check_node(&root, self.root, level)?;
        let mut node = self.own(root);
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
            // No cursor is on the leaf.
            allocation.free_emptied(&mut mtr, &self.space, no);
        }
        mtr.commit();
        Ok((numbers.len() as u64, false))
    }
}

fn has_children(node: &Node<'_>) -> bool {
    node.level() > 0 && (node.count() > 0 || node.first_child() != 0)
}

/// Takes the last child's page number out of an inner node. Fences are left wrong: only
/// [`Tree::free_all`] goes there again.
fn drop_last_child(mtr: &mut Mtr<'_>, page: PageHandle) {
    let count = Node::trusted(mtr.page(page)).count();
    if count > 0 {
        mtr.apply(page, &PageOp::RemoveCell { slot: count as u16 - 1 });
    } else {
        let offset = node::FIRST_CHILD as u32;
        mtr.apply(page, &PageOp::Write { offset, bytes: &0u32.to_le_bytes() });
    }
}
