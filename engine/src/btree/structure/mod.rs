//! Changes of a tree's structure: splits, merges, a root that grows and shrinks, and the end of a
//! tree.
//!
//! Each is a separate mini-transaction and leaves a valid tree, so none is ever undone: a
//! transaction that rolls back takes its entries out again, and leaves the room it made.
//!
//! | change | latched exclusively, in this order |
//! |---|---|
//! | split of a node | parent, node, space header, bitmap, new right node |
//! | root grows | root, space header, bitmap, new child |
//! | merge of two neighbours | parent, left, right, space header, bitmap |
//! | root shrinks | root, its only child, space header, bitmap |
//!
//! A split needs room for the separator in the parent. Where there is none, everything is let go,
//! the parent is split first (from the top, by the same way down), and the split begins again:
//! latches are only ever taken downward.
//!
//! A page that leaves the tree is formatted as free in the same mini-transaction: the change of its
//! bytes makes a reader that still stands on it, without a latch, start over.
//!
//! Here: what they share. `grow`: splits, and a root that grows. `shrink`: merges, and a root that
//! shrinks. `free`: the end of a tree.

mod free;
mod grow;
mod shrink;

use super::Tree;
use crate::error::{Error, Result};
use crate::format::OpError;
use crate::format::node::{self, Node};
use crate::mtr::{Mtr, PageHandle};
use crate::page_op::PageOp;
use crate::space::Allocation;
use tidepool_pool::{Access, ExclusiveGuard, PageType, Space};

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

impl Tree {
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

/// Makes page `no` the child to the right of the separator that takes slot `slot` of `parent`.
/// `suffix` is the separator without the parent's prefix.
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
