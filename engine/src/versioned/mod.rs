//! Versioned trees: trees whose entries have versions, and the operations of a transaction on them.
//!
//! Every index, clustered or secondary, is one. An entry holds its newest version in place
//! ([`crate::format::entry`]); older ones follow from the undo records that its roll pointer leads
//! to. Nothing here knows rows or columns.
//!
//! # Contents
//! | file | what |
//! |---|---|
//! | `read` | which version is visible, long values, `get` |
//! | `committed` | the version committed last, of an entry without its leaf |
//! | `write` | insert, update, delete |
//! | `settle` | room in full leaves, by shorter headers |
//! | `skip` | skip pointers, by which an old view passes over many versions |
//! | `load` | entries of trees that no reader can see yet |
//! | `locking` | when a write or a locking read must wait |
//! | `moved_row` | whether a row has moved behind a statement's locking reads |
//! | `scan` | where a reading is, and batches of consistent reads |
//! | `locking_scan` | locking reads in order |
//! | `semi_consistent` | locking reads in order that do not wait |
//!
//! # Latches
//! An operation latches one leaf. While it holds it, it may latch undo pages (one at a time when
//! reading), read overflow pages, and look into the lock tables; it waits for locks, makes room in
//! the tree or in the undo log, and begins overflow chains only without. A version's undo record
//! can't vanish while its reader holds the leaf: a rollback needs the leaf exclusively to take the
//! version back, and purge leaves alone what a live view may walk through. Of a long chain of
//! versions only the first are walked so. The others that are not committed are walked without the
//! latch. A reader that does so names where it comes from, learns whether that was taken back
//! meanwhile ([`crate::undo::watch`]), and then begins anew; the first who gets behind them leaves
//! what is there for all who come after.

mod committed;
mod load;
mod locking;
mod locking_scan;
mod moved_row;
mod read;
mod scan;
mod semi_consistent;
mod settle;
mod skip;
mod write;

pub(crate) use committed::committed_version;
pub use locking_scan::{LockRequest, LockedEntry};
pub use read::{ReadRequest, ReadValue};
pub use scan::{Batch, Direction, LongValues, ScanEnd, ScanPosition, ScanRequest};
pub use semi_consistent::Peek;
#[cfg(test)]
pub(crate) use skip::of_thread as skip_pointers;
pub(crate) use write::{Insertion, Written};

use std::sync::Arc;

use tidepool_pool::Space;

use crate::btree::{Tree, max_key_len, max_payload_len};
use crate::env::Env;
use crate::error::Result;
use crate::format::entry::{ENTRY_HEADER_SIZE, OVERFLOW_REFERENCE_SIZE};
use crate::lock::reach::Place;
use crate::mtr::Mtr;

/// Bytes of a long value kept in the entry.
const OVERFLOW_HEAD_MAX: usize = 256;

/// A versioned tree: one index. Cheap to open and to clone.
#[derive(Clone)]
pub struct VersionedTree {
    tree: Tree,
    index: usize,
}

impl VersionedTree {
    /// Makes an empty tree; returns its root page, to be kept by the caller.
    pub fn create<'a>(
        mtr: &mut Mtr<'a>,
        _env: &Env,
        space: &'a Space,
        tree_id: u32,
    ) -> Result<u32> {
        Tree::create(mtr, space, tree_id)
    }

    /// Opens a tree. `index` is what [`crate::Error::DuplicateKey`] will name.
    pub fn open(
        env: &Arc<Env>,
        space: &Arc<Space>,
        root: u32,
        tree_id: u32,
        index: usize,
    ) -> VersionedTree {
        VersionedTree { tree: Tree::open(env, space, root, tree_id), index }
    }

    /// The tree below.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    fn id(&self) -> u32 {
        self.tree.id()
    }

    fn place(&self) -> Place {
        Place { tree: self.id(), space: self.tree.space().id() }
    }

    /// The longest value that is kept in the leaf beside a key of this length.
    pub fn inline_max(&self, key_len: usize) -> usize {
        max_payload_len(self.tree.env().page_size(), key_len) - ENTRY_HEADER_SIZE
    }

    /// How much of a long value stays in the leaf.
    fn overflow_head_len(&self) -> usize {
        let longest_key = max_key_len(self.tree.env().page_size());
        OVERFLOW_HEAD_MAX.min(self.inline_max(longest_key) - OVERFLOW_REFERENCE_SIZE)
    }
}
