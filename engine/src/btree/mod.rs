//! B+trees: ordered maps from keys to payloads, both opaque bytes, on the pages of one tablespace.
//!
//! # Shape
//! All entries are in the leaves. Every node, leaf or inner, knows its range by two *fence keys*:
//! it holds the keys from its lower fence on and below its upper fence. There are no sibling
//! pointers: the next leaf is the one that a new descent finds for the upper fence, the previous
//! one that which holds the keys just before the lower fence. The root's page number never changes:
//! it grows by moving its content into a child, and shrinks by taking an only child's content.
//!
//! A node's layout, the search in it and the changes of its bytes are in [`crate::format::node`].
//! Here:
//!
//! | file | what |
//! |---|---|
//! | `split` | where to split |
//! | `reshape` | what a split and a merge write |
//! | `descent` | optimistic lock coupling from the root down |
//! | `leaf` | latched leaves: the readers' and writers' view |
//! | `hint` | a leaf found again without a descent |
//! | `structure` | splits, merges, root, dropping a tree |
//! | `load` | filling a new tree in the order of its keys |
//! | [`check`] | walking and verifying a whole tree |
//! | `estimate` | ranges and sizes estimated, leaves read ahead |
//!
//! # How a writer works
//! ```text
//! loop {
//!     mtr  = Mtr::begin(env)                     may wait, so first
//!     leaf = tree.leaf_exclusive(key)
//!     look: leaf.find(key), leaf.payload_at(slot)
//!     if !leaf.fits(key.len(), payload.len()) { drop leaf and mtr; tree.make_room(key, payload.len()); continue }
//!     undo record, in the same mtr
//!     leaf.insert(&mut mtr, slot, key, payload)
//!     mtr.commit(); break
//! }
//! ```
//! and after removals, `if leaf.is_underfull(&mtr) { …commit…; tree.try_merge(key) }`.
//!
//! # Latching
//! Latches are taken from the root down, and from left to right within a level. A thread that holds
//! a leaf takes no other page of the same tree. Undo pages come after tree pages, the space's
//! header and bitmaps last.

mod beyond;
pub mod check;
mod descent;
mod estimate;
mod hint;
mod leaf;
mod load;
pub(crate) mod reshape;
pub(crate) mod split;
mod structure;

pub use crate::format::node::{Seek, max_key_len, max_payload_len};
pub use hint::LeafHint;
pub use leaf::{LeafMut, LeafRef};
pub use load::Loader;

use crate::env::Env;
use crate::error::Result;
use crate::mtr::Mtr;
use descent::{Exclusive, Shared};
use std::sync::Arc;
use tidepool_pool::{Access, Space};

/// A B+tree. Cheap to open and to clone; all its state is in pages.
#[derive(Clone)]
pub struct Tree {
    env: Arc<Env>,
    space: Arc<Space>,
    root: u32,
    id: u32,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tree {} at page {} of space {}", self.id, self.root, self.space.id())
    }
}

impl Tree {
    /// Makes an empty tree as part of a mini-transaction; returns its root's page number, to be
    /// kept by the caller.
    pub fn create<'a>(mtr: &mut Mtr<'a>, space: &'a Space, tree_id: u32) -> Result<u32> {
        structure::create_root(mtr, space, tree_id)
    }

    /// Opens a tree; reads nothing yet.
    pub fn open(env: &Arc<Env>, space: &Arc<Space>, root: u32, tree_id: u32) -> Tree {
        Tree { env: Arc::clone(env), space: Arc::clone(space), root, id: tree_id }
    }

    /// The tree's id, stamped on each of its pages.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Page number of the root.
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The tablespace that the tree lies in.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The environment that the tree was opened in.
    pub fn env(&self) -> &Arc<Env> {
        &self.env
    }

    /// Latches the leaf that `seek` leads to, for reading.
    ///
    /// There always is one; it may hold no entry on the wanted side of the key, or none at all. The
    /// reader then goes on with `Seek::Key(upper fence)` or `Seek::Before(lower fence)`, after
    /// letting go of this leaf.
    #[inline]
    pub fn leaf_shared(&self, seek: Seek<'_>, access: Access) -> Result<LeafRef<'_>> {
        let guard = self.descend::<Shared>(seek, 0, access)?;
        Ok(LeafRef::new(guard.expect("every tree has leaves")))
    }

    /// Latches the leaf that holds the keys just below `key`: the step to the previous leaf, with a
    /// lower fence as key.
    pub fn leaf_before(&self, key: &[u8], access: Access) -> Result<LeafRef<'_>> {
        self.leaf_shared(Seek::Before(key), access)
    }

    /// The greatest key, whatever is under it; `None` if there is no entry.
    pub fn greatest_key(&self) -> Result<Option<Vec<u8>>> {
        let mut leaf = self.leaf_shared(Seek::Last, Access::Normal)?;
        while leaf.count() == 0 {
            let fence = leaf.lower_fence().to_vec();
            drop(leaf);
            if fence.is_empty() {
                return Ok(None);
            }
            leaf = self.leaf_before(&fence, Access::Normal)?;
        }
        let mut key = Vec::new();
        leaf.key_at(leaf.count() - 1, &mut key);
        Ok(Some(key))
    }

    /// Latches the leaf whose range holds `key`, for changing.
    #[inline]
    pub fn leaf_exclusive(&self, key: &[u8]) -> Result<LeafMut<'_>> {
        self.check_lengths(key.len(), 0)?;
        let guard = self.descend::<Exclusive>(Seek::Key(key), 0, Access::Normal)?;
        Ok(LeafMut::new(guard.expect("every tree has leaves")))
    }
}

#[cfg(test)]
pub(crate) mod tests;
